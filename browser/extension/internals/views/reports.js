/** The section What left this device: every report, and totals. */

import { badge } from "../badge.js";
import { outcomeWords } from "../causes.js";
import { host, setText, time } from "../dom.js";
import { bytes, count, epsilon, moment } from "../format.js";
import { RecordList } from "../record-list.js";
import { word } from "../words.js";
import { via } from "./ads.js";
import { facts, section, table, tableRow } from "./view.js";

/** @import {DataSetName, Model} from "../model.js" */
/** @import {HistoryEntry} from "../protocol.js" */

export class Reports {
    id = "reports";
    title = "What left this device";
    /** @type {DataSetName[]} */
    needs = ["history"];

    /** @type {Model | null} */
    #model = null;
    /** @type {RecordList<HistoryEntry>} */
    #list;
    #totals = facts([
        ["Reports", "–"],
        ["Carried something", "–"],
        ["Size of all", "–"],
        ["Queriers", "–"],
        ["Services", "–"],
        [word("epsilon", "ε paid"), "–"],
    ]);

    constructor() {
        const { frame, body } = table("Reports that left this device", [
            "When",
            word("querier", "To (querier)"),
            word("aggregation-service"),
            "Size",
            word("epsilon", "ε"),
            "Carried",
        ]);
        this.#list = new RecordList({
            subject: "reports",
            names: ["report", "reports"],
            filterLabel: "Filter by site or service",
            frame,
            container: body,
            key: (entry) => String(entry.number),
            create: row,
            text: (entry) => [
                entry.site,
                entry.querier ?? "",
                entry.intermediarySite ?? "",
                entry.aggregationService ?? "",
                outcomeWords(entry).label,
                moment(entry.time),
            ].join(" "),
            rows: (entry) => [exported(entry)],
            exported,
            empty: {
                title: "Nothing has left this device",
                advice: "When a site measures a conversion, the encrypted report that it gets is "
                    + "listed here.",
            },
            onMore: () => this.#model?.more("history"),
        });
        this.#totals.classList.add("card", "totals");
        this.element = section(
            this.id,
            this.title,
            [
                "Only encrypted ", word("report", "reports"), " leave this device, and only when "
                    + "a site measures a conversion. All reports of one form have the same size, "
                    + "so that a ", word("null-report", "null report"), " looks like any other. "
                    + "What a report carried is known only here.",
            ],
            this.#totals,
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
        const reports = model.history.items.filter((entry) => (entry.reportBytes ?? 0) > 0);
        const { read, error, incomplete } = model.history;
        const carried = reports.filter((entry) => entry.outcome === "charged");
        const sum = (/** @type {HistoryEntry[]} */ list,
            /** @type {(entry: HistoryEntry) => number} */ amount) =>
            list.reduce((all, entry) => all + amount(entry), 0);
        const distinct = (/** @type {(entry: HistoryEntry) => string | undefined} */ name) =>
            count(new Set(reports.map(name)).size);
        const values = [
            count(reports.length),
            count(carried.length),
            bytes(sum(reports, (entry) => entry.reportBytes ?? 0)),
            distinct((entry) => entry.querier),
            distinct((entry) => entry.aggregationService),
            epsilon(sum(carried, (entry) => (entry.epsilon ?? 0) * 1e6)),
        ];
        this.#totals.querySelectorAll("dd").forEach((node, place) => {
            const known = read && error === null;
            // Older reports that were not read would only add to these numbers.
            setText(node, known ? `${incomplete ? "at least " : ""}${values[place]}` : "–");
        });
        this.#list.update(reports, model.history);
    }
}

/** @param {HistoryEntry} entry */
function row(entry) {
    return tableRow([
        ["When", time(entry.time), "moment"],
        ["To", [
            host(entry.querier ?? entry.site),
            ...(entry.querier === entry.intermediarySite ? [] : via(entry.intermediarySite)),
        ], "site"],
        ["Aggregation service", entry.aggregationService ? host(entry.aggregationService) : "–",
            "service"],
        ["Size", bytes(entry.reportBytes ?? 0), "numeric"],
        ["ε", entry.epsilon === undefined ? "–" : epsilon(entry.epsilon * 1e6), "numeric"],
        ["Carried", badge(outcomeWords(entry))],
    ]);
}

/** @param {HistoryEntry} entry */
function exported(entry) {
    const { number, kind, site, intermediarySite, querier, aggregationService } = entry;
    const { reportBytes, outcome } = entry;
    return {
        number,
        time: new Date(entry.time * 1000).toISOString(),
        kind,
        site,
        intermediarySite,
        querier,
        aggregationService,
        reportBytes,
        epsilon: entry.epsilon,
        outcome,
    };
}
