// Response headers: `Save-Impression`, `Measure-Conversion` and the upload of its report (the
// draft's section HTTP API), `Clear-Site-Data`, and `Permissions-Policy`.

import { isSecure, originOf, pathTo } from "./documents.js";

/**
 * @typedef {import("./calls.js").Calls} Calls
 * @typedef {import("./calls.js").Caller} Caller
 * @typedef {import("./clearing.js").Clearing} Clearing
 * @typedef {import("./gate.js").Gate} Gate
 * @typedef {import("./policy.js").Policies} Policies
 * @typedef {chrome.webRequest.OnHeadersReceivedDetails & {
 *   documentId?: string, documentLifecycle?: string, fromCache?: boolean,
 * }} Details Each browser has fields of its own.
 */

/** The kinds of requests whose headers count: those with the destinations that the draft lists. */
const DESTINATIONS = ["beacon", "image", "imageset", "media", "ping", "script", "xmlhttprequest"];

/** The pauses before a report is sent again after an error, in milliseconds. */
const RETRIES = [0, 1000, 5000];

export class Headers {
    #calls;
    #clearing;
    #gate;
    #policies;

    /**
     * @param {object} parts
     * @param {Calls} parts.calls
     * @param {Clearing} parts.clearing
     * @param {Promise<Gate>} parts.gate
     * @param {Policies} parts.policies
     */
    constructor({ calls, clearing, gate, policies }) {
        this.#calls = calls;
        this.#clearing = clearing;
        this.#gate = gate;
        this.#policies = policies;
    }

    /**
     * A response arrived.
     * @param {Details} details
     * @param {number} arrival
     */
    async received(details, arrival) {
        const { tabId, frameId, type, url } = details;
        const value = (/** @type {string} */ name) => header(details.responseHeaders, name);
        if (type === "main_frame" || type === "sub_frame") {
            const policy = value("permissions-policy");
            const parsed = policy && (await this.#parse("permissions-policy", policy, url));
            const answered = { url: url.split("#")[0], at: details.timeStamp };
            const frame = { tab: tabId, frame: frameId };
            this.#policies.responded(frame, answered, (parsed && parsed.policy) || {});
        }
        if (!url.startsWith("https:")) {
            return;
        }
        // Nothing counts of a page that Chromium only prepares, nor of a request without a page.
        // The draft means responses of the network. Chromium does not tell which are of the cache.
        const shown = (details.documentLifecycle ?? "active") === "active";
        if (tabId < 0 || !shown || details.fromCache) {
            return;
        }
        const clear = value("clear-site-data");
        if (clear !== null && (await this.#parse("clear-site-data", clear, url))?.impressions) {
            const tab = await chrome.tabs.get(tabId).catch(() => null);
            if (tab?.incognito === false) {
                await this.#clearing.site(new URL(url).hostname);
            }
        }
        if (!DESTINATIONS.includes(type)) {
            return;
        }
        const save = value("save-impression");
        const measure = value("measure-conversion");
        if (save === null && measure === null) {
            return;
        }
        const caller = await this.#caller(details);
        if (!caller) {
            return;
        }
        const impression = save === null ? null : await this.#parse("save-impression", save, url);
        if (impression) {
            await this.#calls.make("saveImpression", impression.options, caller, arrival);
        }
        const conversion =
            measure === null ? null : await this.#parse("measure-conversion", measure, url);
        if (conversion) {
            const { options, reportUrl } = conversion;
            const answer = await this.#calls.make("measureConversion", options, caller, arrival);
            if (answer.ok && answer.report) {
                await upload(answer.report, reportUrl);
            }
        }
    }

    /**
     * The caller of a header: the site of the response, in the page that asked for it. Returns null
     * if that page is not secure or not known.
     * @param {Details} details
     * @returns {Promise<Caller | null>}
     */
    async #caller(details) {
        const { tabId, documentId, url } = details;
        const path = await pathTo(tabId, documentId);
        const found = await chrome.tabs.get(tabId).catch(() => null);
        const secure = path?.every(({ origin }) => isSecure(origin));
        if (!path || !found || !secure) {
            return null;
        }
        const top = /** @type {string} */ (path[0].origin);
        return { tab: tabId, path, top, caller: originOf(url), inPrivate: found.incognito };
    }

    /**
     * Parses a header. One that is malformed is ignored, as the draft says.
     * @param {string} name
     * @param {string} value
     * @param {string} base
     */
    async #parse(name, value, base) {
        const answer = (await this.#gate).call({ event: "parseHeader", name, value, base });
        return answer.ok ? answer : null;
    }
}

/**
 * The value of a header. Several lines of the same name are one value, with commas.
 * @param {chrome.webRequest.HttpHeader[] | undefined} headers
 * @param {string} name
 */
function header(headers, name) {
    const lines = (headers ?? []).filter((line) => line.name.toLowerCase() === name);
    // A value that is not text has bytes above 127, which no structured field may have.
    const values = lines.map(({ value }) => value ?? "\u{fffd}");
    return values.length > 0 ? values.join(", ") : null;
}

/**
 * Sends a report (the draft's "send a report").
 * @param {string} report The report, in base64.
 * @param {string} url
 */
async function upload(report, url) {
    const body = Uint8Array.from(atob(report), (character) => character.charCodeAt(0));
    for (const pause of RETRIES) {
        await new Promise((resolve) => setTimeout(resolve, pause));
        try {
            await fetch(url, {
                method: "POST",
                headers: { "Content-Type": "application/dap-report" },
                body,
                mode: "cors",
                cache: "no-store",
                credentials: "omit",
                // A fetch that outlives the background may carry at most 64 KiB.
                keepalive: body.length < 60_000,
                referrerPolicy: "no-referrer",
            });
            return;
        } catch {
            // The network failed, so it is tried again. A report counts once, however often it
            // arrives.
        }
    }
}
