// What the tests of the extension share: calls of a page, and looks behind them.

import assert from "node:assert/strict";

/** @typedef {import("../suite.mjs").TestContext} TestContext */
/** @typedef {import("../driver.mjs").Tab} Tab */

/** The aggregation service that the tests' extension knows. */
export const SERVICE = "https://agg.example";

/** A page with a button, because pages need an activation. */
export const BUTTON = "<!doctype html><title>page</title><button id=go>go</button>";

/** Options of a conversion that costs little, so that tests do not spend each other's budget. */
export const CHEAP = { aggregationService: SERVICE, histogramSize: 5, epsilon: 0.01 };

/**
 * What a call gave: the size of its report, or its error.
 *
 * @typedef {object} Outcome
 * @property {string[]} [keys] the keys of the result
 * @property {number} [bytes] the length of the report
 * @property {string} [error] the name of the error
 * @property {string} [type] the name of the error's constructor
 * @property {string} [message]
 * @property {number} ms how long it took
 */

/**
 * Calls the API in a page.
 *
 * @param {{ evaluate: Tab["evaluate"] }} view
 * @param {"saveImpression" | "measureConversion"} method
 * @param {object} options
 * @returns {Promise<Outcome>}
 */
export function call(view, method, options) {
    return view.evaluate(async (method, options) => {
        const begin = performance.now();
        try {
            const result = await /** @type {any} */ (navigator).attribution[method](options);
            const ms = performance.now() - begin;
            return { keys: Object.keys(result), bytes: result.report?.length, ms };
        } catch (thrown) {
            const error = /** @type {Error} */ (thrown);
            const ms = performance.now() - begin;
            const type = error.constructor.name;
            return { error: error.name, type, message: error.message, ms };
        }
    }, method, options);
}

/** @param {{ evaluate: Tab["evaluate"] }} view @param {object} options */
export const save = (view, options) => call(view, "saveImpression", options);

/** @param {{ evaluate: Tab["evaluate"] }} view @param {object} options */
export const measure = (view, options) => call(view, "measureConversion", options);

/**
 * Opens a page and clicks into it.
 *
 * @param {TestContext} t
 * @param {string} name
 * @param {Parameters<TestContext["open"]>[1]} [options]
 */
export async function active(t, name, options) {
    const tab = await t.open(t.page(name, "/", BUTTON), options);
    await tab.click("#go");
    return tab;
}

/**
 * Saves an impression on one site, for a conversion on another.
 *
 * @param {TestContext} t
 * @param {string} publisher
 * @param {object} [options]
 */
export async function seeAd(t, publisher, options = {}) {
    const tab = await active(t, publisher);
    const saved = await save(tab, { histogramIndex: 2, ...options });
    assert.deepEqual(saved.keys, [], saved.message);
    return tab;
}

/** @type {WeakMap<object, Promise<Tab>>} */
const pages = new WeakMap();

/**
 * Asks the host as the internals page does.
 *
 * @param {{ driver: import("../driver.mjs").Driver }} t
 * @param {object} request
 * @returns {Promise<any>}
 */
export async function ask(t, request) {
    let page = pages.get(t.driver);
    if (!page) {
        page = t.driver.openExtensionPage("/internals.html");
        pages.set(t.driver, page);
    }
    return (await page).evaluate((request) => new Promise((resolve) => {
        const port = chrome.runtime.connect({ name: "internals" });
        const done = (/** @type {any} */ answer) => {
            port.disconnect();
            resolve(answer);
        };
        port.onMessage.addListener((/** @type {any} */ message) => {
            if (message.id === "test") done(message.answer);
        });
        port.onDisconnect.addListener(() => resolve({ ok: false, error: "lost" }));
        port.postMessage({ id: "test", request });
    }), request);
}

/**
 * What the history has about a host, newest first.
 *
 * @param {TestContext} t
 * @param {string} name
 * @returns {Promise<any[]>}
 */
export async function history(t, name) {
    const answer = await ask(t, { event: "history", site: t.host(name) });
    assert.equal(answer.ok, true, answer.message);
    return answer.history;
}

/**
 * Waits until the history has so many entries about a host, and returns them, newest first.
 *
 * @param {TestContext} t
 * @param {string} name
 * @param {number} count
 */
export async function historyOf(t, name, count) {
    return t.driver.eventually(`${count} entries about ${name}`, async () => {
        const entries = await history(t, name);
        return entries.length >= count ? entries : null;
    });
}

/**
 * What is stored about ads on a host.
 *
 * @param {TestContext} t
 * @param {string} name
 * @returns {Promise<any[]>}
 */
export async function impressions(t, name) {
    const found = [];
    let behind;
    do {
        const request = { event: "impressions", ...(behind ? { behind } : {}) };
        const answer = await ask(t, request);
        assert.equal(answer.ok, true, answer.message);
        found.push(...answer.impressions);
        behind = answer.next;
    } while (behind);
    return found.filter(({ site }) => site === t.host(name));
}

/**
 * What the filters of a host have consumed, in µε, by the names of the filters.
 *
 * @param {TestContext} t
 * @param {string} name
 * @returns {Promise<Record<string, number>>}
 */
export async function consumed(t, name) {
    /** @type {Record<string, number>} */
    const sums = {};
    let behind;
    do {
        const request = { event: "budgets", ...(behind ? { behind } : {}) };
        const answer = await ask(t, request);
        assert.equal(answer.ok, true, answer.message);
        for (const { filter, site, consumed } of answer.budgets) {
            if (site === t.host(name)) sums[filter] = (sums[filter] ?? 0) + consumed;
        }
        behind = answer.next;
    } while (behind);
    return sums;
}
