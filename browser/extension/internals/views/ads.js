/** The section Ads remembered: the stored impressions. */

import { el, host, hosts, setText, time } from "../dom.js";
import { duration, moment } from "../format.js";
import { RecordList } from "../record-list.js";
import { word } from "../words.js";
import { section, table, tableRow } from "./view.js";

/** @import {Child} from "../dom.js" */
/** @import {DataSetName, Model} from "../model.js" */
/** @import {StoredImpression} from "../protocol.js" */

/** @typedef {{key: string, impression: StoredImpression}} Ad */

export class Ads {
    id = "ads";
    title = "Ads remembered";
    /** @type {DataSetName[]} */
    needs = ["impressions"];

    /** @type {Model | null} */
    #model = null;
    /** @type {RecordList<Ad>} */
    #list;

    constructor() {
        const { frame, body } = table("Ads remembered", [
            "Shown",
            "On",
            "Who may measure it",
            word("bucket"),
            word("priority"),
            word("match-value"),
            "Expires",
        ]);
        this.#list = new RecordList({
            subject: "ads",
            names: ["ad", "ads"],
            filterLabel: "Filter by site or number",
            frame,
            container: body,
            key: ({ key }) => key,
            create: ({ impression }) => this.#row(impression),
            update: (node, { impression }) => this.#age(node, impression),
            text: ({ impression }) => [
                impression.site,
                impression.intermediarySite ?? "",
                ...impression.conversionSites,
                ...impression.conversionCallers,
                impression.userAction,
                impression.histogramIndex,
                moment(impression.time),
            ].join(" "),
            rows: ({ impression }) => [{
                ...impression,
                time: new Date(impression.time * 1000).toISOString(),
                expires: new Date(impression.expires * 1000).toISOString(),
            }],
            exported: ({ impression }) => impression,
            empty: {
                title: "No ad is remembered",
                advice: "When a page shows an ad and asks the browser to remember it, the ad "
                    + "appears here.",
            },
            onMore: () => this.#model?.more("impressions"),
        });
        this.element = section(
            this.id,
            this.title,
            [
                "Each ", word("impression", "ad remembered"), " is a record on this device. It "
                    + "can count in a report until it expires. No site can read this list.",
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
        /** @type {Map<string, number>} */
        const seen = new Map();
        const ads = model.impressions.items.map((impression) => {
            const { epoch, time: at, site, userAction, histogramIndex } = impression;
            const name = [epoch, at, site, userAction, histogramIndex].join("/");
            const again = seen.get(name) ?? 0;
            seen.set(name, again + 1);
            return { key: `${name}/${again}`, impression };
        });
        this.#list.update(ads, model.impressions);
    }

    /** @param {StoredImpression} ad */
    #row(ad) {
        const node = tableRow([
            ["Shown", [
                time(ad.time),
                el("a", { class: "via", href: `#actions/${ad.userAction}` },
                    `user action ${ad.userAction}`),
            ], "moment"],
            ["On", [host(ad.site), ...via(ad.intermediarySite)], "site"],
            ["Who may measure it", audience(ad), "site"],
            ["Bucket", String(ad.histogramIndex), "numeric"],
            ["Priority", String(ad.priority), "numeric"],
            ["Match value", String(ad.matchValue), "numeric"],
            ["Expires", [time(ad.expires), el("span", { class: "muted age" })], "moment"],
        ]);
        this.#age(node, ad);
        return node;
    }

    /**
     * @param {HTMLElement} node
     * @param {StoredImpression} ad
     */
    #age(node, ad) {
        const age = node.querySelector(".age");
        const left = ad.expires - (this.#model?.now ?? Date.now() / 1000);
        if (age !== null) {
            setText(age, left > 0 ? `in ${duration(left)}` : "expired");
        }
    }
}

/**
 * @param {string | undefined} intermediary
 * @returns {Child[]}
 */
export function via(intermediary) {
    return intermediary === undefined
        ? []
        : [el("span", { class: "muted via" }, "through ", host(intermediary))];
}

/**
 * @param {StoredImpression} ad
 * @returns {Child[]}
 */
function audience({ conversionSites, conversionCallers }) {
    const sites = hosts(conversionSites, "any site");
    return conversionCallers.length === 0
        ? sites
        : [
            ...sites,
            el("span", { class: "muted via" }, "asked by ", hosts(conversionCallers, "")),
        ];
}
