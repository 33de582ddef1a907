/**
 * The port to the background. It comes back by itself: browsers stop the background whenever they
 * like, and the port then breaks.
 */

/** @import {Answer, ExtensionState, HostState, UserRequest} from "./protocol.js" */

/** @type {typeof chrome} */
const api = /** @type {any} */ (globalThis).browser ?? globalThis.chrome;

/** The time to wait before connecting again, in milliseconds. */
const RECONNECT_AFTER = 500;

/**
 * The time after which a request counts as lost, in milliseconds. It is longer than the 30 s for
 * which the host waits for a locked store.
 */
const LOST_AFTER = 60_000;

/** An answer that says no, as an error with plain words. */
export class RequestError extends Error {
    /** @param {Answer} answer */
    constructor(answer) {
        super(answer.message || `The host answered with ${answer.error ?? "an unnamed error"}.`);
        this.name = answer.name ?? answer.error ?? "HostError";
        this.reason = answer.reason;
    }
}

export class Connection {
    /** @type {chrome.runtime.Port | null} */
    #port = null;
    #lastId = 0;
    /** @type {Map<number, (answer: Answer) => void>} */
    #waiting = new Map();
    #onChange;
    #onHost;

    /**
     * @param {() => void} onChange called after anything changed
     * @param {(host: HostState, extension: ExtensionState | null) => void} onHost called with the
     *     state of the host, at first and when it changes
     */
    constructor(onChange, onHost) {
        this.#onChange = onChange;
        this.#onHost = onHost;
        this.#connect();
    }

    /**
     * Sends a request and returns its answer.
     *
     * @param {UserRequest} request
     * @returns {Promise<Answer>} an answer with `ok`
     * @throws {RequestError} if the answer says no, or none comes
     */
    async request(request) {
        const answer = await new Promise((/** @type {(answer: Answer) => void} */ resolve) => {
            const port = this.#port;
            if (port === null) {
                resolve(lost("The extension is starting again. Please try again in a moment."));
                return;
            }
            const id = ++this.#lastId;
            const timer = setTimeout(() => {
                this.#waiting.delete(id);
                resolve(lost(`The extension did not answer within ${LOST_AFTER / 1000} seconds.`));
            }, LOST_AFTER);
            this.#waiting.set(id, (answer) => {
                clearTimeout(timer);
                resolve(answer);
            });
            try {
                port.postMessage({ id, request });
            } catch {
                this.#waiting.delete(id);
                clearTimeout(timer);
                resolve(lost("The connection to the extension broke. Please reload this page."));
            }
        });
        if (!answer.ok) {
            throw new RequestError(answer);
        }
        return answer;
    }

    #connect() {
        /** @type {chrome.runtime.Port} */
        let port;
        try {
            port = api.runtime.connect({ name: "internals" });
        } catch {
            // The extension was reloaded or removed. This page cannot reach the new one.
            const message = "The extension was updated or removed.";
            this.#onHost({ state: "failed", message, advice: "Reload this page." }, null);
            return;
        }
        this.#port = port;
        port.onMessage.addListener((message) => this.#receive(message));
        port.onDisconnect.addListener(() => {
            this.#port = null;
            const waiting = [...this.#waiting.values()];
            this.#waiting.clear();
            for (const resolve of waiting) {
                resolve(lost("The connection to the extension broke before the answer came."));
            }
            setTimeout(() => this.#connect(), RECONNECT_AFTER);
        });
    }

    /** @param {any} message */
    #receive(message) {
        if (typeof message !== "object" || message === null) {
            return;
        }
        if ("id" in message) {
            const resolve = this.#waiting.get(message.id);
            this.#waiting.delete(message.id);
            resolve?.(message.answer ?? lost("The extension sent an empty answer."));
        }
        if (message.host) {
            this.#onHost(message.host, message.extension ?? null);
        }
        if (message.changed) {
            this.#onChange();
        }
    }
}

/**
 * @param {string} message
 * @returns {Answer}
 */
function lost(message) {
    return { ok: false, error: "HostError", message };
}
