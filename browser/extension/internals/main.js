/** The internals page: its sections, their addresses, and what is said when something changes. */

import { el, keepPlace, setText } from "./dom.js";
import { plural } from "./format.js";
import { Model } from "./model.js";
import { stateOf } from "./state.js";
import { hush, install } from "./toast.js";
import { Actions } from "./views/actions.js";
import { Ads } from "./views/ads.js";
import { Budgets } from "./views/budgets.js";
import { Conversions } from "./views/conversions.js";
import { Glossary } from "./views/glossary.js";
import { Overview } from "./views/overview.js";
import { Reports } from "./views/reports.js";

/** @import {View} from "./views/view.js" */

/** The shortest time between two announcements, in milliseconds. A screen reader needs time. */
const ANNOUNCE_AFTER = 5000;

const overview = new Overview();
/** @type {View[]} */
const views = [
    overview,
    new Budgets(),
    new Ads(),
    new Conversions(),
    new Reports(),
    new Actions(),
    new Glossary(),
];

const main = /** @type {HTMLElement} */ (document.querySelector("main"));
const menu = /** @type {HTMLElement} */ (document.querySelector("nav ul"));
const live = /** @type {HTMLElement} */ (document.querySelector("#live"));
const brief = /** @type {HTMLElement} */ (document.querySelector("#brief-state"));

const links = views.map((view) => el("a", { href: `#${view.id}` }, view.title));
menu.append(...links.map((link) => el("li", null, link)));
main.append(...views.map((view) => view.element));

install();

/** @type {View} */
let shown = overview;

const model = new Model(() => {
    keepPlace(() => {
        shown.update(model);
        showBrief();
        announce();
    });
});

document.querySelector(".skip")?.addEventListener("click", (event) => {
    // The fragment of the address names a section, so it must not become that of this link.
    event.preventDefault();
    main.focus();
});
window.addEventListener("hashchange", () => follow(true));
follow(false);

/**
 * Shows the section that the address names.
 *
 * @param {boolean} moveFocus true if the user asked for the section
 */
function follow(moveFocus) {
    const [id = "", ...rest] = location.hash.slice(1).split("/");
    const detail = decode(rest.join("/"));
    shown = views.find((view) => view.id === id) ?? overview;
    views.forEach((view, place) => {
        view.element.hidden = view !== shown;
        if (view === shown) {
            links[place]?.setAttribute("aria-current", "page");
        } else {
            links[place]?.removeAttribute("aria-current");
        }
    });
    document.title = `${shown.title} – Big Bird`;
    shown.update(model);
    if (moveFocus) {
        hush();
        window.scrollTo(0, 0);
        shown.element.querySelector("h1")?.focus({ preventScroll: true });
    }
    if (detail !== "") {
        shown.open?.(detail);
        shown.update(model);
    }
    model.show(shown.needs);
}

/**
 * @param {string} text
 * @returns {string}
 */
function decode(text) {
    try {
        return decodeURIComponent(text);
    } catch {
        return text;
    }
}

/** Shows the state of the API in the header, where it is seen from every section. */
function showBrief() {
    const state = stateOf(model);
    setText(brief, state.title);
    brief.className = `brief ${state.tone}`;
}

let lastNumber = -1;
let lastRevision = -1;
let lastSaid = 0;

/** Says what is new, in words that a screen reader reads out. */
function announce() {
    const revision = model.status?.revision ?? lastRevision;
    if (revision === lastRevision || Date.now() - lastSaid < ANNOUNCE_AFTER) {
        return;
    }
    const first = lastRevision === -1;
    const entries = model.history.items;
    const fresh = lastNumber < 0 ? [] : entries.filter((entry) => entry.number > lastNumber);
    const seen = fresh.filter((entry) => entry.kind === "impression");
    // What the domain cap refused is not remembered.
    const ads = seen.filter((entry) => entry.outcome === "saved").length;
    const conversions = fresh.length - seen.length;
    lastRevision = revision;
    lastNumber = entries[0]?.number ?? lastNumber;
    if (first) {
        return;
    }
    lastSaid = Date.now();
    const news = [
        conversions > 0 ? plural(conversions, "new conversion") : "",
        ads > 0 ? plural(ads, "new ad") : "",
    ].filter((part) => part !== "");
    const clock = new Date().toLocaleTimeString("en-GB");
    setText(live, `Updated at ${clock}${news.length > 0 ? `: ${news.join(", ")}` : ""}`);
}
