/** The section Budgets: what every filter of every kept epoch has paid. */

import { Bar } from "../bar.js";
import { el, host, reconcile, setText } from "../dom.js";
import { count, epochDates, eraOf, plural } from "../format.js";
import { Notice } from "../record-list.js";
import { Toolbar } from "../toolbar.js";
import { FILTER_WORDS, word } from "../words.js";
import { section } from "./view.js";

/** @import {DataSetName, Model} from "../model.js" */
/** @import {Balance, FilterName} from "../protocol.js" */

/** The kinds of filters, in the order in which they are shown. */
const KINDS = /** @type {FilterName[]} */ ([
    "globalBudget",
    "querierBudget",
    "impressionSiteQuota",
    "conversionSiteQuota",
    "userActionBudget",
]);

/** The number of bars of one kind and epoch that are shown at first, and with "Show more". */
const STEP = 8;

/** @typedef {{kind: FilterName, balances: Balance[]}} Group */
/** @typedef {{epoch: number, groups: Group[]}} EpochBalances */

export class Budgets {
    id = "budgets";
    title = "Budgets";
    /** @type {DataSetName[]} */
    needs = ["budgets"];

    /** @type {Model | null} */
    #model = null;
    /** @type {Balance[]} */
    #matching = [];
    #epochs = el("div", { class: "epochs" });
    #notice = new Notice();
    #toolbar = new Toolbar({
        subject: "budgets",
        label: "Filter by site",
        onFilter: () => this.#render(),
        records: () => this.#matching,
        rows: () => this.#matching.map((balance) => ({ ...balance })),
    });
    /** The number of bars to show, by epoch and kind. @type {Map<string, number>} */
    #shown = new Map();
    /** @type {WeakMap<HTMLElement, Bar>} */
    #bars = new WeakMap();

    constructor() {
        this.element = section(
            this.id,
            this.title,
            [
                "Every report is paid for in ", word("epsilon", "epsilon (ε)"), " by each ",
                word("epoch", "epoch"), " it draws on. ", word("budget", "Budgets"),
                " limit what can be learned about you. ", word("quota", "Quotas"),
                " keep one site from using up what all sites share.",
            ],
            this.#toolbar.element,
            this.#notice.element,
            this.#epochs,
        );
    }

    /** @param {string} detail a site to filter by */
    open(detail) {
        this.#toolbar.filter = detail;
        this.#render();
    }

    /** @param {Model} model */
    update(model) {
        this.#model = model;
        this.#render();
    }

    #render() {
        const model = this.#model;
        if (model === null) {
            return;
        }
        const { items, error, read, incomplete } = model.budgets;
        const filtered = this.#toolbar.words.length > 0;
        this.#matching = items.filter((balance) => this.#matches(balance));
        const epochs = byEpoch(this.#matching);
        const current = model.status?.epoch ?? null;
        const closed = (model.status?.closedUntil ?? null) !== null;
        if (!filtered && !closed && error === null && current !== null && model.eras.length > 0
            && !epochs.some((one) => one.epoch === current)) {
            // Nothing was charged in this epoch. Its empty bar says so better than no bar.
            const capacity = eraOf(model.eras, current)?.capacities.globalBudget ?? null;
            const epoch = current;
            const filter = /** @type {const} */ ("globalBudget");
            const balances = [{ epoch, filter, consumed: 0, capacity }];
            epochs.unshift({ epoch, groups: [{ kind: filter, balances }] });
        }
        const held = this.#epochs.contains(document.activeElement);
        reconcile(
            this.#epochs,
            epochs,
            ({ epoch }) => String(epoch),
            (one) => this.#createEpoch(one),
            (node, one) => this.#updateEpoch(node, one),
        );
        if (held && !this.#epochs.contains(document.activeElement)) {
            this.element.querySelector("h1")?.focus();
        }
        const all = `${incomplete ? "the first " : ""}${plural(items.length, "filter")}`;
        this.#toolbar.count = items.length === 0 ? "" : filtered
            ? `${count(this.#matching.length)} of ${all} match`
            : `${all} in ${plural(epochs.length, "epoch")}`;
        this.#notice.error = error;
        this.#notice.waiting = !read;
        this.#notice.show(epochs.length > 0, filtered
            ? {
                title: "Nothing was paid by this site",
                advice: "Use another word, or remove the filter to see all budgets.",
            }
            : {
                title: "Nothing was paid yet",
                advice: "Visit a site that shows ads and one that measures conversions. What they "
                    + "cost appears here.",
            });
    }

    /** @param {Balance} balance */
    #matches(balance) {
        // The global budget pays for every site, but it is not about the site that is searched.
        return this.#toolbar.matches(
            `${balance.site ?? ""} ${balance.userAction ?? ""} ${FILTER_WORDS[balance.filter].one}`,
        );
    }

    /** @param {EpochBalances} one */
    #createEpoch(one) {
        const node = el(
            "section",
            { class: "card epoch" },
            el("h2"),
            el("div", { class: "groups" }),
        );
        this.#updateEpoch(node, one);
        return node;
    }

    /**
     * @param {HTMLElement} node
     * @param {EpochBalances} one
     */
    #updateEpoch(node, { epoch, groups }) {
        const eras = this.#model?.eras ?? [];
        const current = epoch === this.#model?.status?.epoch;
        const title = `${epochDates(eras, epoch)} · epoch ${epoch}${
            current ? " · this epoch" : ""}`;
        const [heading, parent] = node.children;
        if (heading === undefined || parent === undefined) {
            return;
        }
        setText(heading, title);
        node.classList.toggle("current", current);
        reconcile(
            parent,
            groups,
            ({ kind }) => kind,
            (group) => this.#createGroup(epoch, group),
            (child, group) => this.#updateGroup(child, epoch, group),
        );
    }

    /**
     * @param {number} epoch
     * @param {Group} group
     */
    #createGroup(epoch, group) {
        const { kind } = group;
        const more = el("button", { type: "button", class: "more" });
        const place = `${epoch}/${kind}`;
        more.addEventListener("click", () => {
            this.#shown.set(place, (this.#shown.get(place) ?? STEP) * 4);
            this.#render();
            if (more.hidden) {
                node.querySelector("h3")?.focus();
            }
        });
        const words = FILTER_WORDS[kind];
        const node = el(
            "div",
            { class: `group ${kind}` },
            kind === "globalBudget" ? null
                : el("h3", { tabindex: "-1" }, word(words.id, words.many)),
            el("div", { class: "bars" }),
            more,
        );
        this.#updateGroup(node, epoch, group);
        return node;
    }

    /**
     * @param {HTMLElement} node
     * @param {number} epoch
     * @param {Group} group
     */
    #updateGroup(node, epoch, { kind, balances }) {
        const shown = this.#shown.get(`${epoch}/${kind}`) ?? STEP;
        const bars = node.querySelector(".bars");
        const more = node.querySelector(".more");
        if (bars === null || !(more instanceof HTMLElement)) {
            return;
        }
        reconcile(
            bars,
            balances.slice(0, shown),
            (balance) => `${balance.site ?? ""}/${balance.userAction ?? ""}`,
            (balance) => {
                const bar = createBar(balance);
                this.#bars.set(bar.element, bar);
                return bar.element;
            },
            (child, balance) => this.#bars.get(child)?.update(balance),
        );
        more.hidden = balances.length <= shown;
        setText(more, `Show more (${count(balances.length - shown)} left)`);
    }
}

/** @param {Balance} balance */
function createBar(balance) {
    const words = FILTER_WORDS[balance.filter];
    if (balance.filter === "globalBudget") {
        return new Bar(word(words.id), words.one, balance);
    }
    if (balance.site === undefined) {
        const name = `User action ${balance.userAction ?? ""}`;
        return new Bar(name, `${words.one}, ${name}`, balance);
    }
    return new Bar(host(balance.site), `${words.one} of ${balance.site}`, balance);
}

/**
 * Balances by epoch, newest first, and by kind. What is closest to its limit comes first.
 *
 * @param {Balance[]} balances
 * @returns {EpochBalances[]}
 */
function byEpoch(balances) {
    /** @type {Map<number, Map<FilterName, Balance[]>>} */
    const epochs = new Map();
    for (const balance of balances) {
        const kinds = epochs.get(balance.epoch) ?? new Map();
        epochs.set(balance.epoch, kinds);
        const list = kinds.get(balance.filter) ?? [];
        kinds.set(balance.filter, list);
        list.push(balance);
    }
    return [...epochs]
        .sort(([one], [other]) => other - one)
        .map(([epoch, kinds]) => ({
            epoch,
            groups: KINDS.flatMap((kind) => {
                const list = kinds.get(kind);
                return list === undefined ? [] : [{ kind, balances: list.sort(byShare) }];
            }),
        }));
}

/**
 * @param {Balance} one
 * @param {Balance} other
 */
function byShare(one, other) {
    const share = (/** @type {Balance} */ { consumed, capacity }) =>
        capacity === null ? 0 : capacity === 0 ? 1 : consumed / capacity;
    return share(other) - share(one) || other.consumed - one.consumed
        || (one.site ?? "").localeCompare(other.site ?? "");
}
