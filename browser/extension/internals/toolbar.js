/** The line above a list: filter, number of items, export. */

import { el, setText } from "./dom.js";
import { csv, download, fileName } from "./download.js";

/** @import {Row} from "./download.js" */

/** The time after the last key before the list is filtered, in milliseconds. */
const FILTER_AFTER = 120;

export class Toolbar {
    /** @type {HTMLElement} */
    element;

    #input;
    #count = el("p", { class: "count", role: "status" });

    /**
     * @param {object} options
     * @param {string} options.subject names the files, for example "conversions"
     * @param {string} options.label what the filter looks at
     * @param {() => void} options.onFilter called when the filter changed
     * @param {() => unknown[]} options.records what is shown, for JSON
     * @param {() => Row[]} options.rows what is shown, for CSV
     */
    constructor({ subject, label, onFilter, records, rows }) {
        const id = `filter-${subject}`;
        this.#input = el("input", {
            id,
            type: "search",
            autocomplete: "off",
            spellcheck: "false",
        });
        let timer = 0;
        this.#input.addEventListener("input", () => {
            clearTimeout(timer);
            timer = window.setTimeout(onFilter, FILTER_AFTER);
        });
        const toJson = () => download(
            fileName(subject, "json"),
            "application/json",
            `${JSON.stringify(records(), null, 2)}\n`,
        );
        const toCsv = () => download(fileName(subject, "csv"), "text/csv", csv(rows()));
        this.element = el(
            "div",
            { class: "toolbar" },
            el("div", { class: "filter" }, el("label", { for: id }, label), this.#input),
            el(
                "div",
                { class: "row", role: "group", "aria-label": "Save what is shown" },
                el("button", { type: "button", onclick: toJson }, "Save as JSON"),
                el("button", { type: "button", onclick: toCsv }, "Save as CSV"),
            ),
            this.#count,
        );
    }

    /** The words that an item must contain, in lower case. */
    get words() {
        return this.#input.value.toLowerCase().split(/\s+/).filter((part) => part !== "");
    }

    /** @param {string} text */
    set filter(text) {
        this.#input.value = text;
    }

    /** @param {string} text how many items are shown */
    set count(text) {
        setText(this.#count, text);
    }

    /**
     * @param {string} text what can be searched of an item
     * @returns {boolean} true if the item is to be shown
     */
    matches(text) {
        const lower = text.toLowerCase();
        return this.words.every((part) => lower.includes(part));
    }
}
