/** Labels whose shape says the same as their colour. */

import { el } from "./dom.js";

const SYMBOLS = { good: "✓", neutral: "○", bad: "✕" };

/**
 * @param {{label: string, tone: "good" | "neutral" | "bad"}} words
 * @returns {HTMLElement}
 */
export function badge({ label, tone }) {
    return el(
        "span",
        { class: `badge ${tone}` },
        el("span", { class: "badge-symbol", "aria-hidden": "true" }, SYMBOLS[tone]),
        label,
    );
}
