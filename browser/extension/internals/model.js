/** What this page knows of the device, and how it stays up to date. */

import { Connection, RequestError } from "./connection.js";

/**
 * @import {Balance, Era, ExtensionState, HistoryEntry, HostState, Status, StoredImpression,
 *     UserRequest} from "./protocol.js"
 */

/** @typedef {"budgets" | "history" | "impressions"} DataSetName */

/** The time between two looks at the revision, in milliseconds. */
const POLL_EVERY = 2000;

/** The shortest time between two rounds of reading, in milliseconds. */
const READ_AGAIN_AFTER = 300;

/** The number of answers that are read at first, and with each "Show more". */
const PAGES_PER_STEP = 5;

/** More filters than any store keeps that was not attacked: 100 answers of 1,000. */
const PAGES_OF_BUDGETS = 100;

/**
 * A list that the host hands out page by page.
 *
 * @template T
 */
export class DataSet {
    /** @type {T[]} */
    items = [];
    /** The message of the last attempt to read, if it failed. @type {string | null} */
    error = null;
    /** False until the first attempt to read is over. */
    read = false;
    /** True if something may have changed since the list was read. */
    stale = true;
    /** Where the rest begins that was not read, or undefined if there is none. @type {unknown} */
    next = undefined;

    #name;
    #pages;

    /**
     * @param {DataSetName} name
     * @param {number} pages the number of answers to read at first
     */
    constructor(name, pages) {
        this.#name = name;
        this.#pages = pages;
    }

    /** True if there are items that were not read. */
    get incomplete() {
        return this.next !== undefined;
    }

    /** Asks for more items than before. They come with the next round of reading. */
    extend() {
        this.#pages += PAGES_PER_STEP;
        this.stale = true;
    }

    /**
     * Reads the list again.
     *
     * @param {Connection} connection
     * @returns {Promise<Record<string, any> | null>} the last answer, or null if reading failed
     */
    async load(connection) {
        this.stale = false;
        /** @type {T[]} */
        const items = [];
        /** @type {unknown} */
        let next = undefined;
        let answer = null;
        try {
            for (let page = 0; page < this.#pages; page++) {
                /** @type {UserRequest} */
                const request = { event: this.#name };
                if (next !== undefined) {
                    request.behind = next;
                }
                answer = await connection.request(request);
                const found = answer[this.#name];
                items.push(...(Array.isArray(found) ? found : []));
                next = answer.next ?? undefined;
                if (next === undefined) {
                    break;
                }
            }
        } catch (error) {
            this.items = [];
            this.next = undefined;
            this.error = messageOf(error);
            this.read = true;
            return null;
        }
        this.items = items;
        this.next = next;
        this.error = null;
        this.read = true;
        return answer;
    }
}

export class Model {
    /** @type {HostState | null} */
    host = null;
    /** @type {ExtensionState | null} */
    extension = null;
    /** @type {Status | null} */
    status = null;
    /** Why the status could not be read. @type {string | null} */
    statusError = null;
    /** The rules of epochs, oldest first. @type {Era[]} */
    eras = [];
    /** @type {DataSet<Balance>} */
    budgets = new DataSet("budgets", PAGES_OF_BUDGETS);
    /** @type {DataSet<HistoryEntry>} */
    history = new DataSet("history", PAGES_PER_STEP);
    /** @type {DataSet<StoredImpression>} */
    impressions = new DataSet("impressions", PAGES_PER_STEP);

    #connection;
    #onUpdate;
    /** @type {DataSetName[]} */
    #needs = [];
    #reading = false;
    #again = false;

    /** @param {() => void} onUpdate called when anything here has changed */
    constructor(onUpdate) {
        this.#onUpdate = onUpdate;
        this.#connection = new Connection(
            () => this.invalidate(),
            (host, extension) => {
                this.host = host;
                this.extension = extension ?? this.extension;
                this.invalidate();
                this.#onUpdate();
            },
        );
        setInterval(() => this.#poll(), POLL_EVERY);
        document.addEventListener("visibilitychange", () => this.#poll());
    }

    /** The current time by the clock of the host, which a test may set. Seconds since 1970. */
    get now() {
        return this.status?.now ?? Date.now() / 1000;
    }

    /**
     * Says which lists are shown. Only those are read.
     *
     * @param {DataSetName[]} needs
     */
    show(needs) {
        this.#needs = needs;
        void this.#readAll();
    }

    /** Reads everything that is shown again. */
    invalidate() {
        this.#markStale();
        void this.#readAll();
    }

    /**
     * Reads further items of a list.
     *
     * @param {DataSetName} name
     */
    more(name) {
        this[name].extend();
        void this.#readAll();
    }

    /**
     * Sends a request that changes something, and reads again what it changed.
     *
     * @param {UserRequest} request
     * @throws {RequestError} if it was refused
     */
    async change(request) {
        await this.#connection.request(request);
        this.invalidate();
    }

    #markStale() {
        for (const set of [this.budgets, this.history, this.impressions]) {
            set.stale = true;
        }
    }

    async #poll() {
        if (document.visibilityState !== "visible") {
            return;
        }
        await this.#readStatus();
        if (this.#needs.some((name) => this[name].stale)) {
            void this.#readAll();
        }
        this.#onUpdate();
    }

    /** Reads the status, and notes that lists are stale if its revision is a new one. */
    async #readStatus() {
        const revision = this.status?.revision;
        const failure = this.statusError;
        try {
            const answer = await this.#connection.request({ event: "status" });
            this.status = /** @type {Status} */ (/** @type {unknown} */ (answer));
            this.statusError = null;
        } catch (error) {
            this.status = null;
            this.statusError = messageOf(error);
        }
        if (this.status?.revision !== revision || this.statusError !== failure) {
            this.#markStale();
        }
    }

    async #readAll() {
        if (this.#reading) {
            this.#again = true;
            return;
        }
        this.#reading = true;
        do {
            this.#again = false;
            await this.#readStatus();
            for (const name of this.#needs) {
                const set = this[name];
                if (set.stale) {
                    const answer = await set.load(this.#connection);
                    if (name === "budgets") {
                        this.eras = answer?.rules ?? [];
                    }
                }
            }
            this.#onUpdate();
            await new Promise((resolve) => setTimeout(resolve, READ_AGAIN_AFTER));
        } while (this.#again);
        this.#reading = false;
    }
}

/**
 * @param {unknown} error
 * @returns {string}
 */
export function messageOf(error) {
    return error instanceof RequestError ? error.message : `This page failed: ${String(error)}`;
}
