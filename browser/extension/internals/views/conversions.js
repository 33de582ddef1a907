/** The section Conversions: each with why it ended as it did. */

import { badge } from "../badge.js";
import { Bar } from "../bar.js";
import { causeWords, KIND_WORDS, outcomeWords, sentenceOf } from "../causes.js";
import { el, foreign, host, time } from "../dom.js";
import { bytes, count, epochDates, epsilon, moment, plural } from "../format.js";
import { RecordList } from "../record-list.js";
import { FILTER_WORDS, word } from "../words.js";
import { facts, section } from "./view.js";

/** @import {Child} from "../dom.js" */
/** @import {DataSetName, Model} from "../model.js" */
/** @import {EpochDecision, FilterCheck, HistoryEntry} from "../protocol.js" */

export class Conversions {
    id = "conversions";
    title = "Conversions";
    /** @type {DataSetName[]} */
    needs = ["budgets", "history"];

    /** @type {Model | null} */
    #model = null;
    /** @type {RecordList<HistoryEntry>} */
    #list;

    constructor() {
        const list = el("ul", { class: "entries", "aria-label": "Conversions" });
        this.#list = new RecordList({
            subject: "conversions",
            names: ["conversion", "conversions"],
            filterLabel: "Filter by site, outcome or cause",
            frame: list,
            container: list,
            key: (entry) => String(entry.number),
            create: (entry) => this.#item(entry),
            text: (entry) => [
                entry.site,
                entry.intermediarySite ?? "",
                entry.querier ?? "",
                entry.aggregationService ?? "",
                KIND_WORDS[entry.kind],
                outcomeWords(entry).label,
                entry.cause ?? "",
                sentenceOf(entry),
                entry.userAction ?? "",
                moment(entry.time),
            ].join(" "),
            rows: (entry) => [{
                number: entry.number,
                time: new Date(entry.time * 1000).toISOString(),
                epoch: entry.epoch,
                kind: entry.kind,
                site: entry.site,
                intermediarySite: entry.intermediarySite,
                querier: entry.querier,
                aggregationService: entry.aggregationService,
                outcome: entry.outcome,
                cause: entry.cause,
                sentence: sentenceOf(entry),
                epsilon: entry.epsilon,
                histogramSize: entry.histogramSize,
                value: entry.value,
                maxValue: entry.maxValue,
                reportBytes: entry.reportBytes,
                userAction: entry.userAction,
                actionLabel: entry.actionLabel,
            }],
            empty: {
                title: "No conversion was measured yet",
                advice: "When a site measures a conversion, such as a purchase, it appears here "
                    + "with the reason for what it got.",
            },
            onMore: () => this.#model?.more("history"),
        });
        this.element = section(
            this.id,
            this.title,
            [
                "Each ", word("conversion", "conversion"), " that a site measured, and why its ",
                word("report", "report"), " carried something or was a ",
                word("null-report", "null report"), ". Only you can see this: sites cannot.",
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
        const entries = model.history.items.filter((entry) => entry.kind !== "impression");
        this.#list.update(entries, model.history);
    }

    /** @param {HistoryEntry} entry */
    #item(entry) {
        const details = el(
            "details",
            { class: "card" },
            el(
                "summary",
                null,
                el(
                    "span",
                    { class: "summary-head" },
                    badge(outcomeWords(entry)),
                    host(entry.site),
                    el("span", { class: "muted nowrap" }, time(entry.time)),
                ),
                el("span", { class: "sentence" }, sentenceOf(entry)),
            ),
        );
        details.addEventListener("toggle", () => {
            if (details.open && details.children.length === 1) {
                details.append(this.#full(entry));
            }
        });
        return el("li", null, details);
    }

    /** @param {HistoryEntry} entry */
    #full(entry) {
        /** @type {[Child, Child | Child[]][]} */
        const entries = [
            ["Kind", KIND_WORDS[entry.kind]],
            [word("querier"), entry.querier ? host(entry.querier) : "not known"],
        ];
        if (entry.intermediarySite) {
            entries.push([word("intermediary"), host(entry.intermediarySite)]);
        }
        if (entry.aggregationService) {
            entries.push([word("aggregation-service"), host(entry.aggregationService)]);
        }
        if (entry.epsilon !== undefined) {
            entries.push([word("epsilon"), epsilon(entry.epsilon * 1e6)]);
        }
        if (entry.value !== undefined) {
            const most = entry.maxValue === undefined ? "" : ` of at most ${count(entry.maxValue)}`;
            entries.push(["Value", `${count(entry.value)}${most}`]);
        }
        if (entry.histogramSize !== undefined) {
            entries.push([word("bucket", "Buckets"), count(entry.histogramSize)]);
        }
        if (entry.reportBytes !== undefined) {
            entries.push(["Size of the report", bytes(entry.reportBytes)]);
        }
        if (entry.userAction !== undefined) {
            const label = entry.actionLabel ? foreign(entry.actionLabel)
                : `Number ${entry.userAction}`;
            const link = el("a", { href: `#actions/${entry.userAction}` }, label);
            entries.push([word("user-action"), link]);
        }
        entries.push(["Budgets", el(
            "a",
            { href: `#budgets/${encodeURIComponent(entry.querier ?? entry.site)}` },
            "Budgets of ",
            host(entry.querier ?? entry.site),
        )]);
        return el("div", { class: "explanation" }, facts(entries), this.#explanation(entry));
    }

    /** @param {HistoryEntry} entry */
    #explanation({ explanation, epoch: current }) {
        if (explanation === undefined) {
            return el("p", { class: "muted" }, "The full explanation was not kept.");
        }
        const notes = [];
        if (!explanation.enabled) {
            notes.push(el("p", null, "You had opted out, so nothing was read or charged."));
        }
        if (explanation.readableFrom !== null && explanation.readableFrom !== undefined) {
            const from = epochDates(this.#model?.eras ?? [], explanation.readableFrom);
            notes.push(el("p", null, `You had cleared data. The first epoch that could be read `
                + `was ${from}.`));
        }
        if (explanation.closed) {
            notes.push(el("p", null, "You had cleared the data of ", host(explanation.closed),
                ", which hid some epochs from it."));
        }
        const decisions = explanation.epochs.toReversed();
        const found = decisions.filter(({ matched, cause }) => matched > 0 || cause !== null);
        const rest = decisions.length - found.length;
        return el(
            "div",
            { class: "decisions" },
            ...notes,
            ...found.map((decision) => this.#decision(decision, current)),
            rest > 0 && el("p", { class: "muted" }, `In ${
                found.length > 0 ? "the other " : ""}${plural(rest, "epoch")} that were asked, no `
                + "ad matched, so nothing was charged there."),
        );
    }

    /**
     * @param {EpochDecision} decision
     * @param {number} current the epoch in which it happened
     */
    #decision(decision, current) {
        const { epoch, matched, passed, cause, filters } = decision;
        const eras = this.#model?.eras ?? [];
        const dates = epochDates(eras, epoch);
        const why = cause === null ? null : causeWords(cause);
        const title = epoch === current ? `${dates} (the epoch in which it happened)` : dates;
        return el(
            "div",
            { class: "decision" },
            el("h2", null, title),
            el(
                "p",
                null,
                badge(passed
                    ? { label: "Paid", tone: "good" }
                    : { label: "Left out", tone: why === null ? "neutral" : "bad" }),
                ` ${plural(matched, "ad")} matched`,
                why && ", but ",
                why && (why.word ? word(why.word, why.text) : why.text),
                ".",
            ),
            ...filters.map(filterBar),
        );
    }
}

/** @param {FilterCheck} check */
function filterBar(check) {
    const words = FILTER_WORDS[check.filter];
    const owner = check.site ?? (check.userAction === undefined ? "" : String(check.userAction));
    return new Bar(
        [word(words.id, words.one), owner === "" ? null : " of ",
            owner === "" ? null : host(owner)],
        owner === "" ? words.one : `${words.one} of ${owner}`,
        check,
    ).element;
}
