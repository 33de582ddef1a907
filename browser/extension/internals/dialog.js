/** Questions that the user answers before something is done that cannot be undone. */

import { el } from "./dom.js";

/** @import {Child} from "./dom.js" */

/**
 * Asks the user to confirm.
 *
 * @param {object} question
 * @param {string} question.title
 * @param {Child[]} question.body
 * @param {string} question.action the words of the button that confirms
 * @returns {Promise<boolean>} true if the user confirmed
 */
export function confirm({ title, body, action }) {
    const cancel = el("button", { value: "cancel", autofocus: true }, "Cancel");
    const dialog = el(
        "dialog",
        { "aria-labelledby": "dialog-title" },
        el(
            "form",
            { method: "dialog" },
            el("h2", { id: "dialog-title" }, title),
            el("div", { class: "dialog-body" }, ...body),
            el(
                "p",
                { class: "row end" },
                cancel,
                el("button", { value: "confirm", class: "danger" }, action),
            ),
        ),
    );
    document.body.append(dialog);
    dialog.showModal();
    cancel.focus();
    return new Promise((resolve) => {
        dialog.addEventListener("close", () => {
            dialog.remove();
            resolve(dialog.returnValue === "confirm");
        });
    });
}
