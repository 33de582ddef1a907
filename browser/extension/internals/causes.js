/** The outcomes and causes of the protocol in words. */

/** @import {HistoryEntry} from "./protocol.js" */

/** @type {Record<string, {text: string, word?: string}>} */
const CAUSES = {
    domainCap: { text: "refused by the domain cap", word: "domain-cap" },
    querierBudget: { text: "the querier budget could not pay", word: "querier-budget" },
    globalBudget: { text: "the global budget could not pay", word: "global-budget" },
    impressionSiteQuota: {
        text: "an impression-site quota could not pay",
        word: "impression-site-quota",
    },
    conversionSiteQuota: {
        text: "the conversion-site quota could not pay",
        word: "conversion-site-quota",
    },
    userActionBudget: {
        text: "the user-action budget could not pay",
        word: "user-action-budget",
    },
    pruned: { text: "the data of this epoch is gone", word: "epoch" },
    disabled: { text: "you had opted out" },
    cleared: { text: "you had cleared this data" },
    unknownShare: { text: "the shared conversion was not known" },
    unfitShare: { text: "the share did not fit the shared conversion" },
};

/**
 * @param {string} cause
 * @returns {{text: string, word?: string}}
 */
export function causeWords(cause) {
    return CAUSES[cause] ?? { text: cause };
}

/**
 * What became of a conversion, as a label and a sign.
 *
 * @param {HistoryEntry} entry
 * @returns {{label: string, tone: "good" | "neutral" | "bad"}}
 */
export function outcomeWords(entry) {
    switch (entry.outcome) {
        case "charged":
            return entry.cause
                ? { label: "Carried a part", tone: "good" }
                : { label: "Carried something", tone: "good" };
        case "nothing":
            return { label: "No ad matched", tone: "neutral" };
        case "null":
            return { label: "Null report", tone: "bad" };
        case "saved":
            return { label: "Ad remembered", tone: "good" };
        case "domainCap":
            return { label: "Refused by the domain cap", tone: "bad" };
        case "closed":
            return { label: "Not remembered: epoch closed", tone: "neutral" };
        default:
            return { label: entry.outcome, tone: "neutral" };
    }
}

/**
 * The one sentence that says why a conversion ended as it did.
 *
 * @param {HistoryEntry} entry
 * @returns {string}
 */
export function sentenceOf(entry) {
    const sentence = entry.sentence ?? entry.explanation?.sentence;
    if (sentence) {
        return sentence;
    }
    const cause = entry.cause ? `: ${causeWords(entry.cause).text}` : "";
    return `${outcomeWords(entry).label}${cause}.`;
}

/** @type {Record<HistoryEntry["kind"], string>} */
export const KIND_WORDS = {
    impression: "Ad",
    conversion: "Conversion",
    sharedConversion: "Shared conversion",
    share: "Share of a conversion",
};
