// The permissions policy, as far as an extension can see it: the `Permissions-Policy` headers of
// the documents in a tab. The `allow` attribute of a frame is not visible here (docs/browser.md).

/**
 * @typedef {{all: true} | {self: boolean, origins: string[]}} Allowlist
 * @typedef {{saveImpression?: Allowlist, measureConversion?: Allowlist}} Policy
 * @typedef {"saveImpression" | "measureConversion"} Feature
 * @typedef {import("./documents.js").Place} Place
 */

const KEY = "policies";

/** The most documents of a tab whose policies are kept. */
const MOST_DOCUMENTS = 1000;

export class Policies {
    /**
     * The policies of documents, by tab and document. A document that is left stays: the user may
     * go back to it.
     * @type {Map<number, Map<string, Policy>>}
     */
    #documents = new Map();
    /** Those of responses whose documents are not committed yet. @type {Map<string, Policy>} */
    #responses = new Map();
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
     * @param {string} document
     */
    committed(tab, frame, document) {
        const place = `${tab} ${frame}`;
        const policy = this.#responses.get(place);
        this.#responses.delete(place);
        if (!policy) {
            return;
        }
        const documents = this.#documents.get(tab) ?? new Map();
        this.#documents.set(tab, documents.set(document, policy));
        if (documents.size > MOST_DOCUMENTS) {
            documents.delete([...documents.keys()][0]);
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
     * @param {Place[]} path the documents from the top down
     */
    allows(feature, path) {
        const policies = [...this.#documents.values()];
        return path.every(({ id, origin }, at) => {
            const list = policies.find((documents) => documents.has(id))?.get(id)?.[feature];
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
