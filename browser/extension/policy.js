// The permissions policy, as far as an extension can see it: the `Permissions-Policy` headers of
// the documents in a tab. The `allow` attribute of a frame is not visible here (docs/browser.md).

import { originOf } from "./tabs.js";

/**
 * @typedef {{all: true} | {self: boolean, origins: string[]}} Allowlist
 * @typedef {{saveImpression?: Allowlist, measureConversion?: Allowlist}} Policy
 * @typedef {"saveImpression" | "measureConversion"} Feature
 */

const KEY = "policies";

export class Policies {
    /** The policies of documents, by tab and frame. @type {Map<number, Map<number, Policy>>} */
    #documents = new Map();
    /** Those of responses whose documents are not committed yet. @type {Map<string, Policy>} */
    #responses = new Map();
    ready;

    constructor() {
        this.ready = this.#load();
    }

    async #load() {
        const stored = await chrome.storage.session.get(KEY);
        const listed = /** @type {[number, [number, Policy][]][]} */ (stored[KEY] ?? []);
        for (const [tab, frames] of listed) {
            this.#documents.set(tab, new Map(frames));
        }
    }

    #keep() {
        const listed = [...this.#documents].map(([tab, frames]) => [tab, [...frames]]);
        chrome.storage.session.set({ [KEY]: listed }).catch(() => undefined);
    }

    /**
     * Notes the policy of a response that will become a document.
     * @param {number} tab
     * @param {number} frame
     * @param {Policy | null} policy
     */
    responded(tab, frame, policy) {
        const place = `${tab} ${frame}`;
        if (policy?.saveImpression || policy?.measureConversion) {
            this.#responses.set(place, policy);
        } else {
            this.#responses.delete(place);
        }
    }

    /**
     * A document is committed.
     * @param {number} tab
     * @param {number} frame
     */
    committed(tab, frame) {
        const place = `${tab} ${frame}`;
        const policy = this.#responses.get(place);
        this.#responses.delete(place);
        let frames = this.#documents.get(tab);
        if (!frames && !policy) {
            return;
        }
        if (!frames || frame === 0) {
            frames = new Map();
            this.#documents.set(tab, frames);
        }
        if (policy) {
            frames.set(frame, policy);
        } else {
            frames.delete(frame);
        }
        if (frames.size === 0) {
            this.#documents.delete(tab);
        }
        this.#keep();
    }

    /** @param {number} tab */
    removed(tab) {
        if (this.#documents.delete(tab)) {
            this.#keep();
        }
    }

    /**
     * True if a document may use a feature: every document above it lets it, and so does its own
     * policy. The default is that all may.
     * @param {Feature} feature
     * @param {number} tab
     * @param {number} frame
     */
    async allows(feature, tab, frame) {
        const declared = this.#documents.get(tab);
        if (!declared) {
            return true;
        }
        const frames = (await chrome.webNavigation.getAllFrames({ tabId: tab })) ?? [];
        /** @type {{id: number, origin: string | null}[]} */
        const path = [];
        for (let id = frame; id >= 0;) {
            const found = frames.find(({ frameId }) => frameId === id);
            if (!found || path.length > frames.length) {
                return false;
            }
            path.unshift({ id, origin: originOf(found.url) });
            id = found.parentFrameId;
        }
        // A frame without an address of its own belongs to the page around it.
        path.forEach((place, at) => (place.origin ??= path[at - 1]?.origin ?? null));
        return path.every(({ id, origin }, at) => {
            const list = declared.get(id)?.[feature];
            const child = path[at + 1];
            return matches(list, origin, origin) && (!child || matches(list, child.origin, origin));
        });
    }
}

/**
 * @param {Allowlist | undefined} list
 * @param {string | null} origin
 * @param {string | null} self
 */
function matches(list, origin, self) {
    if (!list || "all" in list) {
        return true;
    }
    return (list.self && origin === self) || list.origins.some((one) => covers(one, origin));
}

/**
 * True if an origin of a list is the given one, or stands for it with `*.`.
 * @param {string} listed
 * @param {string | null} origin
 */
function covers(listed, origin) {
    const [scheme, rest] = listed.split("://*");
    return rest ? origin?.startsWith(`${scheme}://`) && origin.endsWith(rest) : listed === origin;
}
