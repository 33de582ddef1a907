/**
 * The words of this page and what they mean. The meanings are those of `docs/glossary.md`, told to
 * a person who has not read the paper.
 */

import { el } from "./dom.js";

/**
 * @typedef {object} Word
 * @property {string} id
 * @property {string} name
 * @property {string} short one or two sentences for the small window
 * @property {string} [more] what else there is to know, for the section Words
 */

/** @type {Word[]} */
export const WORDS = [
    {
        id: "impression",
        name: "Ad remembered (impression)",
        short: "An ad that you were shown. Its site asked the browser to remember it, so that a "
            + "later purchase can be counted for it. The record stays on this device.",
        more: "The site where the ad was shown is the impression site. A record expires after the "
            + "lifetime that the site chose, at most 30 days.",
    },
    {
        id: "conversion",
        name: "Conversion",
        short: "Something that a site wants to count, such as a purchase. The site asks the "
            + "browser for a report that says which ads may have led to it.",
        more: "The site where it happened is the conversion site.",
    },
    {
        id: "report",
        name: "Report",
        short: "What leaves this device after a conversion: the value of the conversion, divided "
            + "over buckets and encrypted.",
        more: "No organisation can read a report alone. An aggregation service adds up the "
            + "reports of many people and adds noise. The querier gets only that noisy sum.",
    },
    {
        id: "null-report",
        name: "Null report",
        short: "A report whose buckets are all zero. It looks like any other report, so nobody "
            + "can tell that it carries nothing.",
        more: "A site gets a null report if no ad matched, if a limit withheld everything, or if "
            + "you cleared data or opted out.",
    },
    {
        id: "epoch",
        name: "Epoch",
        short: "A fixed period of this device's time, usually a week. Every epoch has budgets of "
            + "its own.",
        more: "A conversion can ask about several epochs. Each of them pays for itself, or is left "
            + "out of the report.",
    },
    {
        id: "epsilon",
        name: "Epsilon (ε)",
        short: "The measure of privacy loss: small is private. A report that costs 0.1 ε reveals "
            + "very little about you, and one that costs 1 ε ten times as much.",
        more: "Losses add up, so the amounts of several reports can be added. One µε is a "
            + "millionth of an ε.",
    },
    {
        id: "budget",
        name: "Budget",
        short: "A limit on privacy loss: the most that may be learned about one epoch of this "
            + "device. When it is used up, that epoch is left out of reports.",
        more: "There are two kinds: the querier budget and the global budget.",
    },
    {
        id: "global-budget",
        name: "Global budget",
        short: "The most that all queriers together can learn about one epoch of this device.",
        more: "This is the promise that matters most. It holds whatever sites do together.",
    },
    {
        id: "querier-budget",
        name: "Querier budget",
        short: "The most that one querier can learn about one epoch of this device.",
    },
    {
        id: "quota",
        name: "Quota",
        short: "A limit that keeps one site from using up the global budget of everyone. It does "
            + "not protect your privacy by itself: budgets do.",
        more: "There are two kinds: the impression-site quota and the conversion-site quota.",
    },
    {
        id: "impression-site-quota",
        name: "Impression-site quota",
        short: "The most that reports about ads shown on one site can take from an epoch's global "
            + "budget.",
    },
    {
        id: "conversion-site-quota",
        name: "Conversion-site quota",
        short: "The most that conversions on one site can take from an epoch's global budget.",
    },
    {
        id: "user-action",
        name: "User action",
        short: "Something that you did on purpose, such as a click or a typed address. Everything "
            + "that it causes, such as redirects and new windows, belongs to it.",
    },
    {
        id: "domain-cap",
        name: "Domain cap",
        short: "The number of distinct sites that one user action may involve in an epoch. "
            + "Further sites are refused.",
        more: "It keeps an attacker from turning one click into visits to hundreds of sites that "
            + "each use up some of the global budget.",
    },
    {
        id: "user-action-budget",
        name: "User-action budget",
        short: "The most that one user action can cost an epoch. It is a limit for experiments, "
            + "and usually not set.",
    },
    {
        id: "querier",
        name: "Querier",
        short: "The site that receives a report and whose budget pays for it.",
        more: "It is the conversion site, or an intermediary site that asks on its behalf.",
    },
    {
        id: "intermediary",
        name: "Intermediary site",
        short: "A third party that calls the API from a frame of a page, such as an ad-tech "
            + "company.",
    },
    {
        id: "aggregation-service",
        name: "Aggregation service",
        short: "Two organisations that add up reports together. Neither of them can read a report "
            + "alone.",
    },
    {
        id: "bucket",
        name: "Bucket",
        short: "One of the numbers in a report. A site chooses for each ad in which bucket it "
            + "counts.",
    },
    {
        id: "priority",
        name: "Priority",
        short: "If several ads match a conversion, those with the highest priority count first, "
            + "then the newest.",
    },
    {
        id: "match-value",
        name: "Match value",
        short: "A number that a site gives an ad, such as the number of a campaign. A conversion "
            + "can ask for ads with certain numbers only.",
    },
    {
        id: "native-host",
        name: "Native host",
        short: "The program on this computer that keeps ads and budgets and makes reports. The "
            + "extension only talks to it.",
    },
];

const BY_ID = new Map(WORDS.map((word) => [word.id, word]));

/** The words for the filters of the protocol. */
export const FILTER_WORDS = {
    globalBudget: { id: "global-budget", one: "Global budget", many: "Global budget" },
    querierBudget: { id: "querier-budget", one: "Querier budget", many: "Querier budgets" },
    impressionSiteQuota: {
        id: "impression-site-quota",
        one: "Impression-site quota",
        many: "Impression-site quotas",
    },
    conversionSiteQuota: {
        id: "conversion-site-quota",
        one: "Conversion-site quota",
        many: "Conversion-site quotas",
    },
    userActionBudget: {
        id: "user-action-budget",
        one: "User-action budget",
        many: "User-action budgets",
    },
};

/**
 * A word that opens its meaning when it is pressed.
 *
 * @param {string} id
 * @param {string} [text] how the word appears here
 * @returns {HTMLElement}
 */
export function word(id, text) {
    const meaning = BY_ID.get(id);
    const shown = text ?? meaning?.name ?? id;
    if (meaning === undefined) {
        return el("span", null, shown);
    }
    const button = el(
        "button",
        { type: "button", class: "word", "aria-haspopup": "dialog" },
        shown,
        el("span", { class: "visually-hidden" }, ": what does this mean?"),
    );
    button.addEventListener("click", () => openMeaning(button, meaning));
    return button;
}

/** @type {HTMLElement | null} */
let popover = null;

/**
 * Shows the meaning of a word next to a button.
 *
 * @param {HTMLElement} button
 * @param {Word} meaning
 */
function openMeaning(button, meaning) {
    popover?.remove();
    const close = el("button", { type: "button", class: "plain" }, "Close");
    const title = el("h2", { id: "meaning-title" }, meaning.name);
    const link = el("a", { href: `#words/${meaning.id}` }, "All words");
    const box = el(
        "div",
        {
            id: "meaning",
            popover: "auto",
            role: "dialog",
            "aria-labelledby": "meaning-title",
            tabindex: "-1",
        },
        title,
        el("p", null, meaning.short),
        el("p", { class: "row" }, link, close),
    );
    // Inside a modal dialog, everything outside of it is inert.
    (button.closest("dialog") ?? document.body).append(box);
    popover = box;
    close.addEventListener("click", () => {
        box.hidePopover();
        button.focus();
    });
    link.addEventListener("click", () => box.hidePopover());
    box.addEventListener("keydown", (event) => {
        if (event.key === "Escape") {
            event.preventDefault();
            box.hidePopover();
            button.focus();
        }
    });
    box.showPopover();
    place(box, button.getBoundingClientRect());
    box.focus();
}

/**
 * Puts a box below a rectangle, or above it if there is no room.
 *
 * @param {HTMLElement} box
 * @param {DOMRect} anchor
 */
function place(box, anchor) {
    const margin = 8;
    const width = document.documentElement.clientWidth;
    const left = Math.max(margin, Math.min(anchor.left, width - box.offsetWidth - margin));
    const below = anchor.bottom + margin;
    const above = anchor.top - box.offsetHeight - margin;
    const fits = below + box.offsetHeight <= window.innerHeight || above < 0;
    box.style.left = `${left}px`;
    box.style.top = `${Math.max(margin, fits ? below : above)}px`;
}
