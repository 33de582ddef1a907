/** What every section of the page has in common. */

import { el } from "../dom.js";

/** @import {Child} from "../dom.js" */
/** @import {DataSetName, Model} from "../model.js" */

/**
 * A section of the page.
 *
 * @typedef {object} View
 * @property {string} id the fragment of its address
 * @property {string} title
 * @property {DataSetName[]} needs the lists that it shows
 * @property {HTMLElement} element
 * @property {(model: Model) => void} update shows what the model has
 * @property {(detail: string) => void} [open] called with the rest of the fragment, if there is one
 */

/**
 * The element of a section, with its heading.
 *
 * @param {string} id
 * @param {string} title
 * @param {Child | Child[]} introduction
 * @param {...Child} children
 * @returns {HTMLElement}
 */
export function section(id, title, introduction, ...children) {
    return el(
        "section",
        { id: `section-${id}`, class: "view", "aria-labelledby": `title-${id}`, hidden: true },
        el("h1", { id: `title-${id}`, tabindex: "-1" }, title),
        el("p", { class: "introduction" }, introduction),
        ...children,
    );
}

/**
 * A table that stays a table for assistive technology when narrow windows show it as cards.
 *
 * @param {string} label
 * @param {(string | HTMLElement)[]} columns
 * @returns {{frame: HTMLElement, body: HTMLElement}}
 */
export function table(label, columns) {
    const head = columns.map((column) =>
        el("th", { scope: "col", role: "columnheader" }, column));
    const body = el("tbody", { role: "rowgroup" });
    const frame = el(
        "table",
        { role: "table", "aria-label": label },
        el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, head)),
        body,
    );
    return { frame, body };
}

/**
 * A row of a {@link table}. Each cell repeats the name of its column, for narrow windows.
 *
 * @param {[label: string, content: Child | Child[], kind?: string][]} cells
 * @returns {HTMLElement}
 */
export function tableRow(cells) {
    return el(
        "tr",
        { role: "row" },
        cells.map(([label, content, kind]) => el(
            "td",
            { role: "cell", "data-label": label, class: kind },
            el("div", null, content),
        )),
    );
}

/**
 * Names with their values.
 *
 * @param {[name: Child, value: Child | Child[]][]} entries
 * @returns {HTMLElement}
 */
export function facts(entries) {
    return el(
        "dl",
        { class: "facts" },
        entries.map(([name, value]) =>
            el("div", null, el("dt", null, name), el("dd", null, value))),
    );
}
