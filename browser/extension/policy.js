// The permissions policy, as far as an extension can see it: the `Permissions-Policy` headers of
// the documents in a tab. The `allow` attribute of a frame is not visible here (docs/browser.md).

/**
 * @typedef {{all: true} | {self: boolean, origins: string[]}} Allowlist
 * @typedef {{saveImpression?: Allowlist, measureConversion?: Allowlist}} Policy
 * @typedef {"saveImpression" | "measureConversion"} Feature
 * @typedef {import("./documents.js").Place} Place
 * @typedef {{tab: number, frame: number}} Frame
 * @typedef {{url: string, at: number}} Arrival an address without its fragment, and the time
 * @typedef {{
 *   response?: Arrival & {policy: Policy}, document?: Arrival & {id: string},
 * }} FrameState
 */

const KEY = "policies";

/** The most documents of a tab whose policies are kept. */
const MOST_DOCUMENTS = 1000;

/** The most origins of a list. A longer list allows nobody. */
const MOST_ORIGINS = 100;

/** Stands for all documents of a tab that had too many policies. */
const FULL = "full";

/** @type {Allowlist} */
const NOBODY = { self: false, origins: [] };

export class Policies {
    /**
     * The policies of documents, by tab and document. A document that is left stays: the user may
     * go back to it.
     * @type {Map<number, Map<string, Policy>>}
     */
    #documents = new Map();
    /**
     * The last response and the last committed document of each frame. Browsers do not promise
     * which of the two is told first.
     * @type {Map<string, FrameState>}
     */
    #frames = new Map();
    ready;

    constructor() {
        this.ready = this.#load();
    }

    async #load() {
        const stored = await chrome.storage.session.get(KEY);
        const listed = /** @type {[number, [string, Policy][]][]} */ (stored[KEY] ?? []);
        for (const [tab, documents] of listed) {
            this.#documents.set(tab, new Map(documents));
        }
    }

    #keep() {
        const listed = [...this.#documents].map(([tab, documents]) => [tab, [...documents]]);
        chrome.storage.session.set({ [KEY]: listed }).catch(() => undefined);
    }

    /**
     * Notes the policy of a response that becomes a document.
     * @param {Frame} frame
     * @param {Arrival} arrival
     * @param {Policy} policy
     */
    responded(frame, arrival, policy) {
        const known = this.#frame(frame);
        const { document } = known;
        if (document && document.url === arrival.url && document.at >= arrival.at) {
            this.#set(frame.tab, document.id, policy);
        } else {
            known.response = { ...arrival, policy };
        }
    }

    /**
     * A document is committed.
     * @param {Frame} frame
     * @param {Arrival} arrival
     * @param {string} id
     */
    committed(frame, arrival, id) {
        const known = this.#frame(frame);
        if (frame.frame === 0) {
            // The frames of the page before are gone.
            this.#forget(frame.tab, `${frame.tab} 0`);
        }
        const { response } = known;
        known.response = undefined;
        known.document = { ...arrival, id };
        if (response && response.url === arrival.url) {
            this.#set(frame.tab, id, response.policy);
        }
    }

    /**
     * @param {number} tab
     * @param {string} [except] the place that stays
     */
    #forget(tab, except) {
        for (const place of this.#frames.keys()) {
            if (place.startsWith(`${tab} `) && place !== except) {
                this.#frames.delete(place);
            }
        }
    }

    /** @param {Frame} frame */
    #frame({ tab, frame }) {
        const place = `${tab} ${frame}`;
        const known = this.#frames.get(place) ?? {};
        this.#frames.set(place, known);
        return known;
    }

    /**
     * @param {number} tab
     * @param {string} document
     * @param {Policy} policy
     */
    #set(tab, document, policy) {
        if (!policy.saveImpression && !policy.measureConversion) {
            return;
        }
        const documents = this.#documents.get(tab) ?? new Map();
        this.#documents.set(tab, documents.set(document, bounded(policy)));
        if (documents.size > MOST_DOCUMENTS) {
            // A policy that is forgotten must not become none: nobody in this tab may call now.
            documents.clear();
            documents.set(FULL, { saveImpression: NOBODY, measureConversion: NOBODY });
        }
        this.#keep();
    }

    /** @param {number} tab */
    removed(tab) {
        this.#forget(tab);
        if (this.#documents.delete(tab)) {
            this.#keep();
        }
    }

    /**
     * True if a document may use a feature: every document above it lets it, and so does its own
     * policy. The default is that all may.
     * @param {Feature} feature
     * @param {number} tab
     * @param {Place[]} path the documents from the top down
     */
    allows(feature, tab, path) {
        const documents = this.#documents.get(tab);
        if (documents?.has(FULL)) {
            return false;
        }
        return path.every(({ id, origin }, at) => {
            const list = documents?.get(id)?.[feature];
            const child = path[at + 1];
            return matches(list, origin, origin) && (!child || matches(list, child.origin, origin));
        });
    }
}

/**
 * The same policy, with lists of a bounded size.
 * @param {Policy} policy
 * @returns {Policy}
 */
function bounded(policy) {
    const fits = (/** @type {Allowlist | undefined} */ list) =>
        !list || "all" in list || list.origins.length <= MOST_ORIGINS ? list : NOBODY;
    return {
        saveImpression: fits(policy.saveImpression),
        measureConversion: fits(policy.measureConversion),
    };
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
