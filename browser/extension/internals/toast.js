/** A message about what the user just did. It is seen wherever the page is scrolled to. */

import { el } from "./dom.js";

const text = el("p", { role: "status" });
const close = el("button", { type: "button", hidden: true }, "Close");
const box = el("div", { class: "toast" }, text, close);

/** The element that had the focus when the message appeared. @type {Element | null} */
let before = null;

close.addEventListener("click", () => {
    hush();
    if (before instanceof HTMLElement) {
        before.focus();
    }
});

/** Adds the place for messages to the page. A live region must be there before its first words. */
export function install() {
    document.body.append(box);
}

/**
 * Says what happened.
 *
 * @param {string} message
 * @param {boolean} problem true if it did not work
 */
export function say(message, problem) {
    before = document.activeElement;
    box.classList.toggle("problem", problem);
    box.classList.add("shown");
    close.hidden = false;
    text.textContent = message;
}

/** Removes the message. */
export function hush() {
    box.classList.remove("shown");
    close.hidden = true;
    text.textContent = "";
}
