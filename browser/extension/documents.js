// Documents: which page a document belongs to, as the browser's own tree of frames says.
//
// The address of a tab does not tell: it is the address at the moment when a message arrives, and
// the tab may have gone to another page since the message was sent.

/**
 * A document in the tree of its page.
 *
 * @typedef {object} Place
 * @property {string} id
 * @property {string | null} origin the origin, or null if it has none of its own
 */

/**
 * The way from the page at the top down to a document. Returns null if the document is not shown
 * any more: it was removed, left, or put into the back/forward cache.
 *
 * @param {number} tab
 * @param {string | undefined} documentId Firefox does not tell it for requests of workers, whose
 *   page is therefore not known.
 * @returns {Promise<Place[] | null>}
 */
export async function pathTo(tab, documentId) {
    const listed = await chrome.webNavigation.getAllFrames({ tabId: tab }).catch(() => null);
    const frames = listed ?? [];
    /** @type {Place[]} */
    const path = [];
    let found = frames.find((frame) => frame.documentId === documentId);
    while (found && path.length <= frames.length) {
        path.unshift({ id: found.documentId, origin: originOf(found.url) });
        const { parentDocumentId, parentFrameId } = found;
        if (parentFrameId < 0) {
            // A frame without an address of its own belongs to the page around it.
            path.forEach((place, at) => (place.origin ??= path[at - 1]?.origin ?? null));
            return path;
        }
        found = frames.find((frame) => frame.documentId === parentDocumentId);
    }
    return null;
}

/**
 * The origin of an address that can have a site, or null.
 * @param {string | undefined | null} address
 */
export function originOf(address) {
    if (!address || !URL.canParse(address)) {
        return null;
    }
    const { origin, protocol } = new URL(address);
    return protocol === "https:" || protocol === "http:" ? origin : null;
}

/**
 * True if an origin is potentially trustworthy: https, or this machine. Only secure contexts have
 * the API.
 * @param {string | null} origin
 */
export function isSecure(origin) {
    const own = /^http:\/\/(localhost|127\.0\.0\.1|\[::1\])(:\d+)?$/;
    return origin !== null && (origin.startsWith("https://") || own.test(origin));
}

/**
 * The host of an origin, or null.
 * @param {string | undefined | null} origin
 */
export function hostOf(origin) {
    return originOf(origin) ? new URL(/** @type {string} */ (origin)).hostname : null;
}
