// The native host: one process of `bigbird native-host`, which has the store, the budgets and the
// keys. The host may be missing, may be killed, and may come back.

const NAME = "org.bigbird.attribution";

/** The times between two attempts to start the host, in milliseconds. */
const PAUSES = [0, 1000, 2000, 5000];

/**
 * @typedef {{ok: boolean, [field: string]: any}} Answer
 * @typedef {{event: string, [field: string]: any}} Request
 * @typedef {{resolve: (answer: Answer) => void, reject: (why: HostError) => void}} Waiting
 * @typedef {(send: (request: Request) => Promise<Answer>) => Promise<void>} Preparation
 * @typedef {{
 *   state: "connected" | "connecting" | "missing" | "failed", message?: string, advice?: string,
 *   version?: string, store?: string, rules?: string, releaseAfter?: number, storeError?: object,
 * }} HostState
 */

/** The host is not there. What it was asked may or may not have been done. */
export class HostError extends Error {}

export class Host {
    /** @type {chrome.runtime.Port | undefined} */
    #port;
    /** @type {Promise<void> | undefined} */
    #connecting;
    /** @type {Map<number, Waiting>} */
    #pending = new Map();
    #last = 0;
    #failures = 0;
    #notBefore = 0;
    /** @type {HostState} */
    #state = { state: "connecting" };
    /** @type {(state: HostState) => void} */
    #tell;
    /** @type {Preparation} */
    #prepare;

    /**
     * @param {(state: HostState) => void} tell Called when the state changes.
     * @param {Preparation} prepare Sends what must come before any call of a page: what the user
     *   cleared while the host was away.
     */
    constructor(tell, prepare) {
        this.#tell = tell;
        this.#prepare = prepare;
    }

    get state() {
        return this.#state;
    }

    /**
     * Sends a request of the user, starting the host if necessary.
     * @param {Request} request
     * @returns {Promise<Answer>}
     */
    async request(request) {
        await this.connect();
        return this.#send(request);
    }

    /** Starts the host unless it runs, or unless it failed a moment ago. */
    connect() {
        this.#connecting ??= this.#start().catch((error) => {
            this.#connecting = undefined;
            throw error;
        });
        return this.#connecting;
    }

    /**
     * Sends a call of a page, after everything that the user cleared before it.
     * @param {Request} request
     * @returns {Promise<Answer>}
     */
    async call(request) {
        await this.flush();
        return this.#send(request);
    }

    /** Sends what was cleared while the host was away, if there is any. */
    async flush() {
        await this.connect();
        await this.#prepare((request) => this.#send(request));
    }

    /** Tries to start the host now, even if it failed a moment ago. */
    retry() {
        this.#notBefore = 0;
        return this.connect();
    }

    async #start() {
        if (performance.now() < this.#notBefore) {
            throw new HostError(this.#state.message ?? "the native host is not running");
        }
        const name = await profile();
        const port = chrome.runtime.connectNative(NAME);
        this.#port = port;
        port.onMessage.addListener((answer) => this.#receive(answer));
        port.onDisconnect.addListener(() => this.#lose(port));
        const answer = await this.#send({ event: "connect", profile: name });
        if (!answer.ok) {
            port.disconnect();
            this.#lose(port, answer.message);
            throw new HostError(answer.message);
        }
        this.#failures = 0;
        const { version, store, rules, releaseAfter, storeError } = answer;
        this.#become({ state: "connected", version, store, rules, releaseAfter, storeError });
        // Calls wait for this as well. If it fails, the next one tries again.
        this.#prepare((request) => this.#send(request)).catch(() => undefined);
    }

    /**
     * @param {Request} request
     * @returns {Promise<Answer>}
     */
    #send(request) {
        const port = this.#port;
        return new Promise((resolve, reject) => {
            if (!port) {
                reject(new HostError(this.#state.message ?? "the native host is not running"));
                return;
            }
            this.#last += 1;
            const id = this.#last;
            this.#pending.set(id, { resolve, reject });
            try {
                port.postMessage({ ...request, id });
            } catch (error) {
                this.#pending.delete(id);
                reject(new HostError(String(error)));
            }
        });
    }

    /** @param {Answer} answer */
    #receive(answer) {
        const waiting = this.#pending.get(answer?.id);
        this.#pending.delete(answer?.id);
        waiting?.resolve(answer);
    }

    /**
     * @param {chrome.runtime.Port} port
     * @param {string} [why]
     */
    #lose(port, why) {
        if (this.#port !== port) {
            return;
        }
        // Chromium and Firefox keep the reason in different places.
        const told = Reflect.get(port, "error")?.message ?? chrome.runtime.lastError?.message;
        const message = why ?? told ?? "the native host stopped";
        this.#port = undefined;
        this.#connecting = undefined;
        const pause = PAUSES[Math.min(this.#failures, PAUSES.length - 1)];
        this.#notBefore = performance.now() + pause;
        this.#failures += 1;
        const pending = [...this.#pending.values()];
        this.#pending.clear();
        // Both browsers say that a host "is not found", "was not found" or that there is "no such
        // native application" if its manifest or its program is missing.
        const missing = /not found|no such native application|not installed/i.test(message);
        this.#become({
            state: missing ? "missing" : "failed",
            message,
            advice: missing
                ? "Run `bigbird browser install` and open this page again."
                : "It is started again with the next call. If it keeps failing, run " +
                  "`bigbird native-host --help` in a terminal to see whether it starts.",
        });
        pending.forEach(({ reject }) => reject(new HostError(message)));
    }

    /** @param {HostState} state */
    #become(state) {
        this.#state = state;
        this.#tell(state);
    }
}

/**
 * The name of this browser profile, under which the host keeps its store. It is random, and stays
 * as long as the extension is installed.
 * @returns {Promise<string>}
 */
async function profile() {
    const stored = await chrome.storage.local.get("profile");
    if (typeof stored.profile === "string") {
        return stored.profile;
    }
    const bytes = crypto.getRandomValues(new Uint8Array(16));
    const name = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
    await chrome.storage.local.set({ profile: name });
    return name;
}
