// Clearing: what the user and sites clear becomes clear operations of the native host. What cannot
// be sent now is kept and sent before anything else, so that nothing that was cleared is measured.
// docs/browser.md has the table of what becomes what, and why.

import { hostOf } from "./documents.js";

/**
 * @typedef {import("./host.js").Answer} Answer
 * @typedef {import("./host.js").Host} Host
 * @typedef {import("./host.js").Request} Request
 * @typedef {import("./gate.js").Gate} Gate
 */

const KEY = "clears";

/** The most sites of one request, which must not be longer than the host reads. */
const MOST_SITES = 1000;

export class Clearing {
    /** @type {Host | undefined} */
    #host;
    #gate;
    /** What is to be sent. @type {Promise<Request[]> | undefined} */
    #list;
    /** The last change of the list. @type {Promise<unknown>} */
    #turn = Promise.resolve();

    /** @param {Promise<Gate>} gate */
    constructor(gate) {
        this.#gate = gate;
    }

    /** @param {Host} host */
    through(host) {
        this.#host = host;
    }

    /**
     * A site asked for its impressions to be removed, with `Clear-Site-Data`.
     * @param {string} host
     */
    async site(host) {
        const answer = (await this.#gate).call({ event: "site", host });
        if (answer.ok) {
            await this.#clear([{ event: "clearImpressionsForSite", site: answer.site }]);
        }
    }

    /**
     * The user removed visits from the history of the browser.
     * @param {{allHistory: boolean, urls?: string[]}} removed
     */
    async visits({ allHistory, urls = [] }) {
        if (allHistory) {
            const event = "clearBrowsingHistoryForAttribution";
            await this.#clear([{ event, sites: [], forgetVisits: true }]);
            return;
        }
        const gate = await this.#gate;
        const sites = new Set();
        for (const url of urls) {
            const host = hostOf(url);
            const answer = host ? gate.call({ event: "site", host }) : null;
            if (answer?.ok) {
                sites.add(answer.site);
            }
        }
        // This first, because looking through the history takes its time.
        const event = "clearImpressionsForSite";
        await this.#clear(Array.from(sites, (site) => ({ event, site, byUser: true })));
        const unvisited = [];
        for (const site of sites) {
            if (!(await isVisited(site, gate))) {
                unvisited.push(site);
            }
        }
        for (let at = 0; at < unvisited.length; at += MOST_SITES) {
            const event = "clearBrowsingHistoryForAttribution";
            const sites = unvisited.slice(at, at + MOST_SITES);
            await this.#clear([{ event, sites, forgetVisits: false }]);
        }
    }

    /**
     * Sends what was kept, oldest first. Throws if something could not be cleared.
     * @param {(request: Request) => Promise<Answer>} send
     */
    sendKept(send) {
        return this.#inTurn(async () => {
            const list = await this.#kept();
            while (list.length > 0) {
                const answer = await send(list[0]);
                // A request that the host refuses for good would be refused again. Anything else
                // may be done later.
                const forGood = ["DOMException", "RangeError"].includes(answer.error);
                if (!answer.ok && !forGood) {
                    throw new Error(answer.message);
                }
                list.shift();
                await chrome.storage.local.set({ [KEY]: list });
            }
        });
    }

    /** @param {Request[]} requests */
    async #clear(requests) {
        if (requests.length === 0) {
            return;
        }
        // It is kept first: the host, the background or the browser may end at any moment.
        await this.#inTurn(async () => {
            const list = await this.#kept();
            // A site may ask as often as it likes, and is forgotten once.
            const known = new Set(list.map((request) => JSON.stringify(request)));
            const added = requests.filter((request) => !known.has(JSON.stringify(request)));
            if (added.length > 0) {
                list.push(...added);
                await chrome.storage.local.set({ [KEY]: list });
            }
        });
        await this.#host?.flush().catch(() => undefined);
    }

    /** @returns {Promise<Request[]>} */
    #kept() {
        this.#list ??= (async () => {
            const stored = await chrome.storage.local.get(KEY);
            return /** @type {Request[]} */ (stored[KEY] ?? []);
        })();
        return this.#list;
    }

    /**
     * Changes the list, one change after another.
     * @param {() => Promise<void>} change
     */
    #inTurn(change) {
        const changed = this.#turn.then(change);
        this.#turn = changed.catch(() => undefined);
        return changed;
    }
}

/**
 * True if the history of the browser still has a visit to a site.
 * @param {string} site
 * @param {Gate} gate
 */
async function isVisited(site, gate) {
    const found = await chrome.history.search({ text: site, startTime: 0, maxResults: 1000 });
    return found.some(({ url }) => {
        const host = hostOf(url);
        const answer = host ? gate.call({ event: "site", host }) : null;
        return answer?.ok && answer.site === site;
    });
}
