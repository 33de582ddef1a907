/** Bars that show how much of a capacity is consumed. */

import { el, setText } from "./dom.js";
import { epsilon, share } from "./format.js";

/** @import {Child} from "./dom.js" */

/**
 * @typedef {object} BarValues
 * @property {number} consumed in µε
 * @property {number | null} capacity in µε; null is unlimited
 * @property {number} [asked] what a request asks in addition, in µε
 * @property {number} [shortBy] what is missing for that, in µε
 */

/** A bar with its name and numbers as text. */
export class Bar {
    /** @type {HTMLElement} */
    element;

    #label;
    #numbers = el("span", { class: "bar-numbers" });
    #fill = el("span", { class: "fill" });
    #asked = el("span", { class: "fill asked" });
    #track = el("span", { class: "track" }, this.#fill, this.#asked);

    /**
     * @param {Child | Child[]} name as it is shown
     * @param {string} label as it is read out
     * @param {BarValues} values
     */
    constructor(name, label, values) {
        this.#label = label;
        const head = el("div", { class: "bar-head" });
        head.append(el("span", { class: "bar-name" }, name), this.#numbers);
        this.element = el("div", { class: "bar" }, head, this.#track);
        this.update(values);
    }

    /** @param {BarValues} values */
    update(values) {
        const { consumed, capacity, asked = 0, shortBy = 0 } = values;
        const limited = capacity !== null;
        const text = describe(values);
        setText(this.#numbers, text);
        this.#numbers.title = limited
            ? `${consumed} µε of ${capacity} µε`
            : `${consumed} µε, no limit`;
        this.element.classList.toggle("spent", limited && consumed >= capacity);
        this.element.classList.toggle("unlimited", !limited);
        this.element.classList.toggle("short", shortBy > 0);
        const part = (/** @type {number} */ amount) =>
            `${limited && capacity > 0 ? Math.min(100, (100 * amount) / capacity) : 0}%`;
        this.#fill.style.width = limited && capacity === 0 ? "100%" : part(consumed);
        this.#asked.style.width = part(Math.min(asked, (capacity ?? 0) - consumed));
        if (limited) {
            this.#track.setAttribute("role", "meter");
            this.#track.setAttribute("aria-label", this.#label);
            this.#track.setAttribute("aria-valuemin", "0");
            this.#track.setAttribute("aria-valuemax", String(capacity / 1e6));
            this.#track.setAttribute("aria-valuenow", String(Math.min(consumed, capacity) / 1e6));
            this.#track.setAttribute("aria-valuetext", text);
        } else {
            this.#track.setAttribute("aria-hidden", "true");
        }
    }
}

/**
 * @param {BarValues} values
 * @returns {string} for example "0.25 of 1 ε used (25%)"
 */
function describe({ consumed, capacity, asked, shortBy = 0 }) {
    const used = capacity === null
        ? `${epsilon(consumed)} ε used, no limit`
        : `${epsilon(consumed)} of ${epsilon(capacity)} ε used`;
    if (asked !== undefined) {
        const missing = shortBy > 0 ? `, short by ${epsilon(shortBy)} ε` : "";
        return `${used}, ${epsilon(asked)} ε asked${missing}`;
    }
    if (capacity === null) {
        return used;
    }
    return consumed >= capacity ? `${used}: used up` : `${used} (${share(consumed, capacity)})`;
}
