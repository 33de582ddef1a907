/** The section Words: what the words of this page mean. */

import { el } from "../dom.js";
import { WORDS } from "../words.js";
import { section } from "./view.js";

/** @import {DataSetName} from "../model.js" */

export class Glossary {
    id = "words";
    title = "Words";
    /** @type {DataSetName[]} */
    needs = [];

    constructor() {
        this.element = section(
            this.id,
            this.title,
            "What the words on this page mean. On the other pages, press a word with a dotted "
                + "line to see its meaning.",
            el(
                "dl",
                { class: "card words" },
                WORDS.map((word) => el(
                    "div",
                    { id: `word-${word.id}` },
                    el("dt", { tabindex: "-1" }, word.name),
                    el("dd", null, word.short, word.more && el("p", null, word.more)),
                )),
            ),
        );
    }

    /** @param {string} detail the id of a word */
    open(detail) {
        for (const marked of this.element.querySelectorAll(".marked")) {
            marked.classList.remove("marked");
        }
        const entry = this.element.querySelector(`#word-${CSS.escape(detail)}`);
        entry?.classList.add("marked");
        entry?.scrollIntoView({ block: "center" });
        const name = entry?.querySelector("dt");
        name?.focus({ preventScroll: true });
    }

    /** Nothing here depends on the device. */
    update() {}
}
