// Calls of pages and of response headers: who calls, whether it may, and when it is answered.
//
// An answer to a conversion comes at a fixed time after the call arrived here, whether the native
// host gave it, could not give it in time, or is not there. What a page sees of an invalid call or
// of an impression follows from the call alone, so the gate answers that, not the host.

import { hostOf, isSecure, originOf, pathTo } from "./documents.js";

/**
 * @typedef {import("./host.js").Answer} Answer
 * @typedef {import("./host.js").Host} Host
 * @typedef {import("./gate.js").Gate} Gate
 * @typedef {import("./tabs.js").Tabs} Tabs
 * @typedef {import("./policy.js").Policies} Policies
 * @typedef {import("./policy.js").Feature} Feature
 * @typedef {import("./documents.js").Place} Place
 * @typedef {{
 *   tab: number, path: Place[], top: string, caller: string | null, inPrivate: boolean,
 * }} Caller The origins and the path to the document come from the browser.
 */

/** The time before an answer is due at which a null report is made if there is none yet. */
const PREPARE = 150;

export class Calls {
    #host;
    #gate;
    #tabs;
    #policies;
    #answerAfter;
    #changed;
    /** The number of reports that the gate made because the host did not. */
    fallbacks = 0;

    /**
     * @param {object} parts
     * @param {Host} parts.host
     * @param {Promise<Gate>} parts.gate
     * @param {Tabs} parts.tabs
     * @param {Policies} parts.policies
     * @param {number} parts.answerAfter The time after which conversions are answered, in ms.
     * @param {() => void} parts.changed Called when something may have changed in the store.
     */
    constructor({ host, gate, tabs, policies, answerAfter, changed }) {
        this.#host = host;
        this.#gate = gate;
        this.#tabs = tabs;
        this.#policies = policies;
        this.#answerAfter = answerAfter;
        this.#changed = changed;
    }

    /**
     * Makes a call, and returns its answer when the page may have it.
     * @param {Feature} feature
     * @param {object} options
     * @param {Caller} caller
     * @param {number} arrival
     * @param {boolean} [lost] True if the call was made before, and its answer was lost.
     * @returns {Promise<Answer>}
     */
    async make(feature, options, caller, arrival, lost = false) {
        if (!this.#policies.allows(feature, caller.tab, caller.path)) {
            return notAllowed("the permissions policy of the page does not allow it");
        }
        if (await this.#tabs.check(caller.tab)) {
            // How long ago the user did something, and where, is not for the page to know.
            return notAllowed("the user did nothing here, or too long ago");
        }
        const request = this.#request(feature, options, caller);
        const gate = await this.#gate;
        const valid = gate.call({ event: "check", call: request });
        if (!valid.ok) {
            return valid;
        }
        if (feature === "saveImpression") {
            if (!lost) {
                this.#host.call(request).then(this.#changed, () => undefined);
            }
            return { ok: true };
        }
        return this.#measure(request, gate, arrival, lost);
    }

    /**
     * @param {Feature} feature
     * @param {object} options
     * @param {Caller} caller
     */
    #request(feature, options, { tab, top, caller, inPrivate }) {
        const site = hostOf(top) ?? "";
        const host = hostOf(caller) ?? "";
        return {
            event: feature,
            site,
            ...(caller === top ? {} : { intermediarySite: host }),
            ...this.#tabs.action(tab),
            ...(inPrivate ? { private: true } : {}),
            options,
        };
    }

    /**
     * @param {import("./host.js").Request} request
     * @param {Gate} gate
     * @param {number} arrival
     * @param {boolean} lost
     */
    async #measure(request, gate, arrival, lost) {
        const due = arrival + this.#answerAfter;
        /** @type {{answer?: Answer}} */
        const ready = {};
        if (!lost) {
            this.#host.call(request).then(
                (given) => {
                    this.#changed();
                    // The gate found nothing wrong with the call, so an error is the host's own,
                    // and no business of the page.
                    ready.answer = given.ok ? given : ready.answer;
                },
                () => undefined,
            );
        }
        await delay(due - PREPARE);
        if (!ready.answer) {
            this.fallbacks += 1;
            ready.answer = gate.call({ event: "null", call: request });
        }
        // The host may still answer in between.
        await delay(due);
        return ready.answer;
    }
}

/**
 * The caller of a message from a page, as the browser describes it. Returns null if the page is
 * gone or has no site.
 * @param {chrome.runtime.MessageSender} sender
 * @returns {Promise<Caller | null>}
 */
export async function callerOf(sender) {
    const { tab, documentId, documentLifecycle } = sender;
    // Chromium tells what has become of the document. One that is prepared in advance, or that is
    // kept for later, may not call.
    if (tab?.id === undefined || (documentLifecycle ?? "active") !== "active") {
        return null;
    }
    const path = await pathTo(tab.id, documentId);
    // A page that is not secure has no API, and could still find its own way to the relay.
    if (!path?.every(({ origin }) => origin === null || isSecure(origin))) {
        return null;
    }
    // A sandboxed document has an origin of its own, which is written "null". A window that a page
    // opened without an address has the origin of that page, which only the sender tells.
    const caller = originOf(sender.origin);
    const top = path.length === 1 ? caller : path[0].origin;
    if (top === null || !isSecure(top)) {
        return null;
    }
    return { tab: tab.id, path, top, caller, inPrivate: tab.incognito === true };
}

/** @param {string} message @returns {Answer} */
export function notAllowed(message) {
    return failed("NotAllowedError", message);
}

/** @param {string} name @param {string} message @returns {Answer} */
export function failed(name, message) {
    return { ok: false, error: "DOMException", name, message };
}

/**
 * Waits until a moment of `performance.now()`.
 * @param {number} moment
 * @returns {Promise<void>}
 */
function delay(moment) {
    return new Promise((resolve) => {
        setTimeout(resolve, Math.max(0, moment - performance.now()));
    });
}
