// The internals page: it is the only one that may ask for what is stored. Pages of the web and
// other extensions have no way to it: the page is not web-accessible, and nothing listens to
// messages from outside.

/**
 * @typedef {import("./host.js").Host} Host
 * @typedef {import("./host.js").Request} Request
 */

/** What the page may ask of the host. */
const EVENTS = [
    "budgets",
    "clearBrowsingHistoryForAttribution",
    "clearImpressionsForSite",
    "disableAPI",
    "enableAPI",
    "explain",
    "history",
    "impressions",
    "maintain",
    "restartEpochs",
    "status",
];

export class InternalsPort {
    #host;
    #fallbacks;
    /** @type {Set<chrome.runtime.Port>} */
    #ports = new Set();
    #told = false;

    /**
     * @param {Host} host
     * @param {() => number} fallbacks
     */
    constructor(host, fallbacks) {
        this.#host = host;
        this.#fallbacks = fallbacks;
    }

    /** @param {chrome.runtime.Port} port */
    accept(port) {
        const page = chrome.runtime.getURL("internals.html");
        const { id, url } = port.sender ?? {};
        if (port.name !== "internals" || id !== chrome.runtime.id || url?.split("#")[0] !== page) {
            port.disconnect();
            return;
        }
        this.#ports.add(port);
        port.onDisconnect.addListener(() => this.#ports.delete(port));
        port.onMessage.addListener(async ({ id, request }) => {
            port.postMessage({ id, answer: await this.#answer(request) });
        });
        this.#host.retry().catch(() => undefined);
        this.tellHost();
    }

    /** @param {Request} request */
    async #answer(request) {
        if (!EVENTS.includes(request?.event)) {
            const message = `the internals page may not ask for \`${request?.event}\``;
            return { ok: false, error: "HostError", message };
        }
        try {
            const answer = await this.#host.request(request);
            if (/^(clear|disable|enable|maintain|restart)/.test(request.event)) {
                this.changed();
            }
            return answer;
        } catch (error) {
            const message = error instanceof Error ? error.message : String(error);
            return { ok: false, error: "HostError", message };
        }
    }

    /** Tells open pages that something changed, at most ten times a second. */
    changed() {
        if (this.#told || this.#ports.size === 0) {
            return;
        }
        this.#told = true;
        setTimeout(() => {
            this.#told = false;
            this.#post({ changed: true });
        }, 100);
    }

    /** Tells open pages how the host is. */
    async tellHost() {
        const privateAllowed = await chrome.extension.isAllowedIncognitoAccess();
        const { version } = chrome.runtime.getManifest();
        const extension = { version, privateAllowed, fallbacks: this.#fallbacks() };
        this.#post({ host: this.#host.state, extension });
    }

    /** @param {object} message */
    #post(message) {
        for (const port of this.#ports) {
            port.postMessage(message);
        }
    }
}
