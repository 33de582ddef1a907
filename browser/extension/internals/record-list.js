/** A list of records with a filter, of which only some are in the document at a time. */

import { el, reconcile } from "./dom.js";
import { count, plural } from "./format.js";
import { Toolbar } from "./toolbar.js";

/** @import {Row} from "./download.js" */
/** @import {DataSet} from "./model.js" */

/** The number of records that are shown at first, and with each "Show more". */
const STEP = 50;

/**
 * @template T
 * @typedef {object} RecordListOptions
 * @property {string} subject names the files and the list, for example "conversions"
 * @property {[one: string, many: string]} names
 * @property {string} filterLabel
 * @property {HTMLElement} frame the element that is hidden if there is nothing to show
 * @property {HTMLElement} container the parent of the records' elements
 * @property {(record: T) => string} key different for any two records
 * @property {(record: T) => HTMLElement} create
 * @property {(node: HTMLElement, record: T) => void} [update]
 * @property {(record: T) => string} text what the filter looks at
 * @property {(record: T) => Row[]} rows what CSV has of a record
 * @property {(record: T) => unknown} [exported] what JSON has of a record
 * @property {{title: string, advice: string}} empty
 * @property {() => void} onMore called when older records are to be read
 */

/** @template T */
export class RecordList {
    /** @type {HTMLElement} */
    element;
    /** @type {Toolbar} */
    toolbar;

    #options;
    #shown = STEP;
    /** @type {T[]} */
    #records = [];
    /** @type {T[]} */
    #matching = [];
    /** @type {Map<string, string>} */
    #texts = new Map();
    #incomplete = false;
    /** True while older records are being read. */
    #asked = false;
    #notice = new Notice();
    #more = el("button", { type: "button", class: "more" }, "Show more");

    /** @param {RecordListOptions<T>} options */
    constructor(options) {
        this.#options = options;
        this.toolbar = new Toolbar({
            subject: options.subject,
            label: options.filterLabel,
            onFilter: () => {
                this.#shown = STEP;
                this.#render();
            },
            records: () => this.#matching.map((record) => options.exported?.(record) ?? record),
            rows: () => this.#matching.flatMap((record) => options.rows(record)),
        });
        this.#more.addEventListener("click", () => this.#showMore());
        this.element = el(
            "div",
            { class: "records" },
            this.toolbar.element,
            this.#notice.element,
            options.frame,
            this.#more,
        );
    }

    /**
     * Shows records.
     *
     * @param {T[]} records
     * @param {DataSet<any>} source the list they come from
     */
    update(records, source) {
        this.#records = records;
        this.#incomplete = source.incomplete;
        this.#asked &&= source.stale;
        this.#texts.clear();
        this.#notice.error = source.error;
        this.#notice.waiting = !source.read;
        this.#render();
    }

    #render() {
        const { key, container, create, update, frame, empty, names } = this.#options;
        const held = container.contains(document.activeElement);
        this.#matching = this.#records.filter((record) => this.#matches(record));
        const shown = this.#matching.slice(0, this.#shown);
        reconcile(container, shown, key, create, update);
        if (held && !container.contains(document.activeElement)) {
            // The record that had the focus is gone.
            frame.closest("section")?.querySelector("h1")?.focus();
        }
        frame.hidden = shown.length === 0;
        const filtered = this.toolbar.words.length > 0;
        this.toolbar.count = this.#countText(shown.length, filtered);
        this.#notice.show(
            shown.length > 0,
            filtered && this.#records.length > 0
                ? {
                    title: "Nothing matches the filter",
                    advice: this.#incomplete
                        ? `Only the newest ${count(this.#records.length)} were searched. Show `
                            + "more to search older ones, or use another word."
                        : `Use another word, or remove the filter to see all ${
                            plural(this.#records.length, ...names)}.`,
                }
                : empty,
        );
        const left = this.#matching.length - shown.length;
        this.#more.hidden = left === 0 && !this.#incomplete;
        this.#more.textContent = left > 0 ? `Show more (${count(left)} left)` : "Show older ones";
    }

    /** @param {T} record */
    #matches(record) {
        if (this.toolbar.words.length === 0) {
            return true;
        }
        const key = this.#options.key(record);
        let text = this.#texts.get(key);
        if (text === undefined) {
            text = this.#options.text(record);
            this.#texts.set(key, text);
        }
        return this.toolbar.matches(text);
    }

    /**
     * @param {number} shown
     * @param {boolean} filtered
     */
    #countText(shown, filtered) {
        const all = plural(this.#records.length, ...this.#options.names);
        const known = this.#incomplete ? `the newest ${all}` : all;
        if (this.#records.length === 0) {
            return "";
        }
        if (filtered) {
            return `${count(this.#matching.length)} of ${known} match`;
        }
        return shown < this.#records.length ? `${count(shown)} of ${known}` : known;
    }

    #showMore() {
        const first = this.#shown;
        if (this.#matching.length <= first) {
            if (!this.#asked) {
                this.#asked = true;
                this.#shown += STEP;
                this.#options.onMore();
            }
            return;
        }
        this.#shown += STEP;
        this.#render();
        // The button may be gone, and the first new record is where reading goes on.
        const next = this.#options.container.children[first];
        const target = next?.querySelector("summary, a, button") ?? next;
        if (target instanceof HTMLElement && this.#more.hidden) {
            target.focus();
        }
    }
}

/** What is said in place of a list: an error, that it is being read, or that it is empty. */
export class Notice {
    /** @type {string | null} */
    error = null;
    waiting = true;
    element = el("div", { class: "notice", hidden: true });

    #key = "";

    /**
     * @param {boolean} filled true if there is something to show
     * @param {{title: string, advice: string}} empty
     */
    show(filled, empty) {
        const { title, advice } = this.#words(empty);
        this.element.hidden = filled && this.error === null;
        this.element.classList.toggle("problem", this.error !== null);
        const key = `${title}\n${advice}`;
        if (key === this.#key) {
            return;
        }
        this.#key = key;
        this.element.replaceChildren(
            el("p", { class: "notice-title" }, title),
            el("p", null, advice),
            this.error !== null
                ? el("p", null, el("a", { href: "#overview" }, "See what to do"))
                : "",
        );
    }

    /**
     * @param {{title: string, advice: string}} empty
     * @returns {{title: string, advice: string}}
     */
    #words(empty) {
        if (this.error !== null) {
            return { title: "This cannot be read now", advice: this.error };
        }
        return this.waiting ? { title: "Reading…", advice: "" } : empty;
    }
}
