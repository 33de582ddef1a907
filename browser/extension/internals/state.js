/** The state of the API in one headline, with what is wrong and what to do. */

import { day, epochTimes, moment } from "./format.js";

/** @import {Model} from "./model.js" */

/**
 * @typedef {object} ApiState
 * @property {"on" | "paused" | "off" | "waiting" | "hostMissing" | "hostFailed" | "store"} kind
 * @property {"good" | "neutral" | "bad"} tone
 * @property {string} title
 * @property {string} text
 * @property {string} [detail] the words of the host, for engineers
 * @property {string} [advice]
 * @property {boolean} [clockWasAhead] true if epochs can be started again
 */

/** What pages notice while something is broken. */
const UNHARMED = "Pages notice nothing: they get null reports, at the usual time. Nothing is "
    + "measured, and no budget is spent.";

/** @type {Record<string, {title: string, advice: string}>} */
const STORE_PROBLEMS = {
    damaged: {
        title: "The store is damaged",
        advice: "Run “bigbird store check FILE” to see the damage. “bigbird store reset FILE "
            + "--reason TEXT” starts over with an empty store, and measures again from the next "
            + "epoch on.",
    },
    full: { title: "The disk is full", advice: "Free some space. Measuring then goes on." },
    readOnly: {
        title: "The store cannot be written",
        advice: "Make the file and its folder writable for you. Measuring then goes on.",
    },
    denied: {
        title: "The store cannot be opened",
        advice: "Give yourself permission to read and write the file. Measuring then goes on.",
    },
    busy: {
        title: "The store is in use",
        advice: "Another program keeps the file locked. Close it. Measuring then goes on.",
    },
    replaced: {
        title: "The store was replaced",
        advice: "Restart the browser, so that the native host opens the new file.",
    },
};

/**
 * @param {Model} model
 * @returns {ApiState}
 */
export function stateOf(model) {
    const { host, status } = model;
    if (host === null || host.state === "connecting") {
        return {
            kind: "waiting",
            tone: "neutral",
            title: "Connecting to the native host",
            text: host?.message ?? "This takes a moment after the browser starts.",
            advice: host?.advice,
        };
    }
    if (host.state === "missing") {
        return {
            kind: "hostMissing",
            tone: "bad",
            title: "The native host is missing",
            text: UNHARMED,
            detail: host.message,
            advice: host.advice ?? "Run “bigbird browser install” in a terminal. This page "
                + "notices by itself when the host is there.",
        };
    }
    if (host.state === "failed") {
        return {
            kind: "hostFailed",
            tone: "bad",
            title: "The native host does not work",
            text: UNHARMED,
            detail: host.message,
            advice: host.advice ?? "The extension keeps trying to start it. If that does not "
                + "help, run “bigbird browser install” again.",
        };
    }
    if (host.storeError || status?.enabled === null) {
        const problem = STORE_PROBLEMS[host.storeError?.reason ?? ""];
        return {
            kind: "store",
            tone: "bad",
            title: problem?.title ?? "The store cannot be used",
            text: UNHARMED,
            detail: host.storeError?.message ?? status?.lastStoreError ?? undefined,
            advice: host.storeError?.advice ?? problem?.advice
                ?? "The native host keeps trying to open the file.",
        };
    }
    if (status === null) {
        return {
            kind: "waiting",
            tone: "neutral",
            title: "Waiting for the native host",
            text: model.statusError ?? "The state of the API is not known yet.",
        };
    }
    if (!status.enabled) {
        return {
            kind: "off",
            tone: "neutral",
            title: "Off: you opted out",
            text: "No ad is remembered, and every report that a site gets is a null report. Sites "
                + "cannot tell that you opted out.",
        };
    }
    return closed(model) ?? {
        kind: "on",
        tone: "good",
        title: "On: ads are measured on this device",
        text: "Ads and budgets stay on this device. Only encrypted reports leave it, and the "
            + "budgets below limit what can be learned from them.",
    };
}

/**
 * The state while the current epoch cannot be measured.
 *
 * @param {Model} model
 * @returns {ApiState | null}
 */
function closed(model) {
    const until = model.status?.closedUntil ?? null;
    if (until === null) {
        return null;
    }
    const epoch = model.status?.epoch ?? null;
    const ends = epoch === null ? undefined : epochTimes(model.eras, epoch)?.ends;
    if (ends !== undefined && until > ends + 1) {
        return {
            kind: "paused",
            tone: "bad",
            title: `On, but nothing is measured until ${day(until)}`,
            text: "The clock of this computer was far ahead for a while, and something was "
                + "measured then. What was spent at that time must stay spent.",
            advice: "If the clock is right now, start the epochs again. This removes everything "
                + "that is remembered, and measures again from the next epoch on.",
            clockWasAhead: true,
        };
    }
    return {
        kind: "paused",
        tone: "neutral",
        title: "On, but this epoch is closed",
        text: `You cleared data, so nothing is measured before the next epoch begins on ${
            moment(until)}. Reports until then are null reports.`,
    };
}
