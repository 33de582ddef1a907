// What a test file imports: `test`, and the context that a test gets.

import { randomBytes } from "node:crypto";

/**
 * @typedef {object} TestOptions
 * @property {boolean} [alone] runs while no other test of the same browser does: for tests that
 *     stop the background, kill the host or clear the browser's history
 * @property {("chromium" | "firefox")[]} [browsers] both unless given
 * @property {number} [limit] seconds; 60 unless given
 */

/**
 * @typedef {object} TestCase
 * @property {string} file
 * @property {string} name
 * @property {TestOptions} options
 * @property {(t: TestContext) => Promise<void>} run
 */

/** @type {TestCase[]} */
export const tests = [];

/** @type {string} */
let currentFile = "";

/** @param {string} file */
export function beginFile(file) {
    currentFile = file;
}

/**
 * Registers a test that runs in both browsers.
 *
 * @overload
 * @param {string} name
 * @param {(t: TestContext) => Promise<void>} run
 * @returns {void}
 */
/**
 * @overload
 * @param {string} name
 * @param {TestOptions} options
 * @param {(t: TestContext) => Promise<void>} run
 * @returns {void}
 */
/**
 * @param {string} name
 * @param {any} optionsOrRun
 * @param {any} [run]
 */
export function test(name, optionsOrRun, run) {
    const [options, body] = run === undefined ? [{}, optionsOrRun] : [optionsOrRun, run];
    tests.push({ file: currentFile, name, options, run: body });
}

/** The world of one test: a browser that it shares, and host names that nobody else uses. */
export class TestContext {
    #prefix = `t${randomBytes(4).toString("hex")}`;
    /** @type {Set<import("./driver.mjs").Tab>} */
    #tabs = new Set();
    /** @type {(() => Promise<unknown>)[]} */
    #cleanups = [];

    /**
     * @param {import("./driver.mjs").Driver} driver
     * @param {import("./server.mjs").WebServer} server
     */
    constructor(driver, server) {
        this.driver = driver;
        this.server = server;
    }

    /** `chromium` or `firefox`. */
    get browser() {
        return this.driver.name;
    }

    /**
     * A registrable domain of this test alone.
     *
     * @param {string} name such as `shop`
     */
    host(name) {
        return `${name}-${this.#prefix}.example`;
    }

    /**
     * The address of a page on `host(name)`.
     *
     * @param {string} name
     * @param {string} [path]
     */
    url(name, path = "/") {
        return `https://${this.host(name)}${path}`;
    }

    /**
     * Serves a page on `host(name)` and returns its address.
     *
     * @param {string} name
     * @param {string} path
     * @param {string} html
     * @param {Record<string, string | string[]>} [headers]
     */
    page(name, path, html, headers) {
        this.server.page(this.host(name), path, html, headers);
        return this.url(name, path);
    }

    /**
     * Answers a path on `host(name)` and returns its address.
     *
     * @param {string} name
     * @param {string} path
     * @param {import("./server.mjs").Route} route
     */
    route(name, path, route) {
        this.server.route(this.host(name), path, route);
        return this.url(name, path);
    }

    /**
     * Opens a tab that is closed after the test.
     *
     * @param {string} url
     * @param {import("./driver.mjs").TabOptions} [options]
     */
    async open(url, options) {
        const tab = await this.driver.open(url, options);
        this.#tabs.add(tab);
        return tab;
    }

    /**
     * Opens a page of the extension that is closed after the test.
     *
     * @param {string} path
     */
    async openExtensionPage(path) {
        const tab = await this.driver.openExtensionPage(path);
        this.#tabs.add(tab);
        return tab;
    }

    /**
     * Does something that opens a window or tab, which is closed after the test.
     *
     * @param {import("./driver.mjs").Tab} opener
     * @param {() => Promise<unknown>} action
     */
    async popup(opener, action) {
        const tab = await opener.popup(action);
        this.#tabs.add(tab);
        return tab;
    }

    /**
     * Does something after the test, whether it passes or not.
     *
     * @param {() => Promise<unknown>} cleanup
     */
    after(cleanup) {
        this.#cleanups.push(cleanup);
    }

    /** Closes and forgets what the test left. */
    async finish() {
        const closing = [...this.#tabs].map((tab) => tab.close());
        const results = await Promise.allSettled(closing);
        for (const cleanup of this.#cleanups.reverse()) await cleanup();
        this.server.forget((host) => host.endsWith(`-${this.#prefix}.example`));
        const failed = results.find((result) => result.status === "rejected");
        if (failed?.status === "rejected") throw failed.reason;
    }
}
