/** The section User actions: the sites that each involved, and what the domain cap refused. */

import { badge } from "../badge.js";
import { KIND_WORDS, outcomeWords } from "../causes.js";
import { el, foreign, host, nodes, reconcile, time } from "../dom.js";
import { eraOf, moment, plural } from "../format.js";
import { RecordList } from "../record-list.js";
import { word } from "../words.js";
import { via } from "./ads.js";
import { section } from "./view.js";

/** @import {DataSetName, Model} from "../model.js" */
/** @import {HistoryEntry} from "../protocol.js" */

/**
 * What one user action caused in one epoch, oldest first. In the next epoch, its number stands for
 * a new action.
 *
 * @typedef {object} Action
 * @property {string} key
 * @property {HistoryEntry[]} entries
 */

export class Actions {
    id = "actions";
    title = "User actions";
    /** @type {DataSetName[]} */
    needs = ["budgets", "history"];

    /** @type {Model | null} */
    #model = null;
    /** @type {RecordList<Action>} */
    #list;

    constructor() {
        const list = el("ul", { class: "entries", "aria-label": "User actions" });
        this.#list = new RecordList({
            subject: "user-actions",
            names: ["user action", "user actions"],
            filterLabel: "Filter by site, words or number",
            frame: list,
            container: list,
            key: ({ key }) => key,
            create: (action) => this.#item(action),
            update: (node, action) => this.#fill(node, action),
            text: ({ entries }) => entries.flatMap((entry) => [
                entry.userAction ?? "",
                entry.actionLabel ?? "",
                entry.site,
                entry.intermediarySite ?? "",
                outcomeWords(entry).label,
                moment(entry.time),
            ]).join(" "),
            rows: ({ entries }) => entries.map((entry) => ({
                userAction: entry.userAction,
                actionLabel: entry.actionLabel,
                number: entry.number,
                time: new Date(entry.time * 1000).toISOString(),
                epoch: entry.epoch,
                kind: entry.kind,
                site: entry.site,
                intermediarySite: entry.intermediarySite,
                outcome: entry.outcome,
                cause: entry.cause,
                refusedByDomainCap: refusal(entry) !== null,
            })),
            exported: ({ entries }) => ({
                userAction: entries[0]?.userAction,
                actionLabel: labelOf(entries),
                entries,
            }),
            empty: {
                title: "No user action used the API yet",
                advice: "When something that you click or open shows an ad or measures a "
                    + "conversion, the sites that took part appear here.",
            },
            onMore: () => this.#model?.more("history"),
        });
        this.element = section(
            this.id,
            this.title,
            [
                "A ", word("user-action", "user action"), " is something you did on purpose. "
                    + "All sites that it leads to belong to it, and the ",
                word("domain-cap", "domain cap"), " limits how many of them may take part.",
            ],
            this.#list.element,
        );
    }

    /** @param {string} detail */
    open(detail) {
        this.#list.toolbar.filter = detail;
    }

    /** @param {Model} model */
    update(model) {
        this.#model = model;
        this.#list.update(group(model.history.items), model.history);
    }

    /** @param {Action} action */
    #item(action) {
        const node = el(
            "li",
            { class: "card action" },
            el("div", { class: "summary-head" }),
            el("p", { class: "muted" }),
            el("ol", { class: "chain" }),
        );
        this.#fill(node, action);
        return node;
    }

    /**
     * Shows an action. It can grow while it is shown, because what a click caused goes on.
     *
     * @param {HTMLElement} node
     * @param {Action} action
     */
    #fill(node, { entries }) {
        const [head, summary, chain] = node.children;
        const first = entries[0];
        if (!head || !summary || !chain || first === undefined) {
            return;
        }
        const version = `${entries.length}/${entries.at(-1)?.number}`;
        if (node.dataset.version === version) {
            return;
        }
        node.dataset.version = version;
        const label = labelOf(entries);
        head.replaceChildren(
            el("strong", null, label === undefined ? "User action" : foreign(label)),
            el("span", { class: "muted nowrap" }, time(first.time)),
        );
        const sites = new Set(entries.map((entry) => entry.site));
        const refused = new Set(
            entries.filter((entry) => refusal(entry) !== null).map((entry) => entry.site),
        );
        const cap = eraOf(this.#model?.eras ?? [], first.epoch)?.domainCap ?? null;
        summary.replaceChildren(...nodes([
            `${plural(sites.size, "site")} involved`,
            refused.size > 0 && `, ${plural(refused.size, "site")} refused`,
            cap !== null && sites.size > 1 && ` (the domain cap allows ${cap} in an epoch)`,
            first.userAction === undefined
                ? ". The browser did not say which action caused this."
                : `. Number ${first.userAction}.`,
        ]));
        reconcile(chain, entries, (entry) => String(entry.number), step);
    }
}

/**
 * Something that an action caused.
 *
 * @param {HistoryEntry} entry
 */
function step(entry) {
    const refused = refusal(entry);
    return el(
        "li",
        { class: refused === null ? "" : "refused" },
        host(entry.site),
        ...via(entry.intermediarySite),
        el("span", { class: "muted" }, KIND_WORDS[entry.kind]),
        badge(refused === null ? outcomeWords(entry) : { label: refused, tone: "bad" }),
    );
}

/**
 * What the domain cap refused.
 *
 * @param {HistoryEntry} entry
 * @returns {string | null} null if it refused nothing
 */
function refusal(entry) {
    if (entry.outcome === "domainCap") {
        return "Refused by the domain cap";
    }
    const epochs = entry.explanation?.epochs ?? [];
    const refused = epochs.filter(({ cause }) => cause === "domainCap").length;
    if (refused > 0 && refused < epochs.length) {
        return `Refused by the domain cap in ${refused} of ${plural(epochs.length, "epoch")}`;
    }
    return refused > 0 || entry.cause === "domainCap" ? "Refused by the domain cap" : null;
}

/** @param {HistoryEntry[]} entries */
function labelOf(entries) {
    return entries.find((entry) => entry.actionLabel)?.actionLabel;
}

/**
 * Entries by user action, the newest action first.
 *
 * @param {HistoryEntry[]} entries newest first
 * @returns {Action[]}
 */
function group(entries) {
    /** @type {Map<string, Action>} */
    const actions = new Map();
    for (const entry of entries) {
        const key = entry.userAction === undefined
            ? `entry ${entry.number}`
            : `${entry.epoch}/${entry.userAction}`;
        const action = actions.get(key) ?? { key, entries: [] };
        action.entries.unshift(entry);
        actions.set(key, action);
    }
    return [...actions.values()];
}
