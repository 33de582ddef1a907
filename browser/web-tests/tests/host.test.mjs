// The native host: killed, missing, or with a store that does not work. Pages see no difference,
// nothing is released unpaid, the user sees what is wrong, and all comes back by itself.

import assert from "node:assert/strict";
import { chmod, readFile, writeFile } from "node:fs/promises";
import { test } from "../suite.mjs";
import { newDevice } from "./setup.mjs";
import { active, ask, CHEAP, consumed, historyOf, measure, save, seeAd } from "./support.mjs";

/** @typedef {import("../suite.mjs").TestContext} TestContext */
/** @typedef {import("../driver.mjs").Tab} Tab */
/** @typedef {import("./support.mjs").Outcome} Outcome */

const ALONE = { alone: true, limit: 180 };

/**
 * A device with an ad, and a shop that measured it once.
 *
 * @param {TestContext} t
 */
async function device(t) {
    const store = await newDevice(t);
    await seeAd(t, "news");
    const shop = await active(t, "shop");
    const options = { ...CHEAP, impressionSites: [t.host("news")] };
    const usual = await measure(shop, options);
    const [entry] = await historyOf(t, "shop", 1);
    assert.equal(entry.outcome, "charged", entry.sentence);
    return { store, shop, options, usual };
}

/**
 * Whatever is broken, a page sees the same.
 *
 * @param {Tab} tab
 * @param {object} options
 * @param {Outcome} usual
 */
async function looksTheSame(tab, options, usual) {
    const outcome = await measure(tab, options);
    assert.deepEqual(outcome.keys, usual.keys, outcome.message);
    assert.equal(outcome.bytes, usual.bytes);
    assert.ok(outcome.ms >= 1450, `not before its moment: ${outcome.ms} ms`);
    assert.deepEqual((await save(tab, { histogramIndex: 1 })).keys, []);
    assert.equal((await save(tab, { histogramIndex: -1 })).error, "RangeError");
    const wrong = { ...options, aggregationService: "https://unknown.example" };
    assert.equal((await measure(tab, wrong)).error, "ReferenceError");
}

/**
 * What the internals page is told of the host.
 *
 * @param {TestContext} t
 */
async function hostState(t) {
    const page = await t.openExtensionPage("/internals.html");
    const state = await page.evaluate(() => new Promise((resolve) => {
        const port = chrome.runtime.connect({ name: "internals" });
        /** @type {any} */
        let last;
        port.onMessage.addListener((/** @type {any} */ message) => {
            if (message.host) last = message.host;
        });
        port.postMessage({ id: "state", request: { event: "status" } });
        port.onMessage.addListener((/** @type {any} */ message) => {
            if (message.id === "state") setTimeout(() => resolve(JSON.stringify(last)), 50);
        });
    }));
    await page.close();
    return JSON.parse(String(state));
}

test("a host that is killed in the middle of a call", ALONE, async (t) => {
    const { shop, options, usual } = await device(t);
    const paid = await consumed(t, "shop");
    const waiting = measure(shop, options);
    await t.driver.eventually("the host charges", async () => {
        const now = await consumed(t, "shop");
        return now.querierBudget > paid.querierBudget;
    });
    assert.equal(await t.driver.host.kill(), 1);
    const { keys, bytes } = await waiting;
    assert.deepEqual([keys, bytes], [usual.keys, usual.bytes]);
    // The next call starts it again, and nothing was paid back.
    await measure(shop, options);
    await t.driver.eventually("it is charged again", async () =>
        (await consumed(t, "shop")).querierBudget === 3 * paid.querierBudget);
    assert.equal((await hostState(t)).state, "connected");
});

test("a host that is missing, and comes back", ALONE, async (t) => {
    const { shop, options, usual } = await device(t);
    const paid = await consumed(t, "shop");
    await t.driver.host.remove();
    await t.driver.host.kill();
    await looksTheSame(shop, options, usual);
    const state = await hostState(t);
    assert.equal(state.state, "missing", JSON.stringify(state));
    assert.match(state.advice, /bigbird browser install/);
    await t.driver.host.putBack();
    await t.driver.eventually("it comes back", async () => {
        await hostState(t);
        return (await ask(t, { event: "status" })).ok;
    });
    assert.deepEqual(await consumed(t, "shop"), paid, "nothing was charged meanwhile");
    await measure(shop, options);
    const [entry] = await historyOf(t, "shop", 2);
    assert.equal(entry.outcome, "charged", entry.sentence);
});

test("a host that ends at once", ALONE, async (t) => {
    const { shop, options, usual } = await device(t);
    await t.driver.host.use("/bin/false");
    await t.driver.host.kill();
    await looksTheSame(shop, options, usual);
    assert.notEqual((await hostState(t)).state, "connected");
});

test("a store that is damaged, and is repaired", ALONE, async (t) => {
    const { store, shop, options, usual } = await device(t);
    await t.driver.host.kill();
    // Opened and closed once, the file alone is the store.
    await t.driver.eventually("the store is used again", async () =>
        (await ask(t, { event: "status" })).ok);
    const copies = [store, `${store}-wal`];
    await t.driver.host.kill();
    const kept = await Promise.all(copies.map((file) => readFile(file).catch(() => null)));
    await writeFile(store, Buffer.alloc(8192, 7));
    await looksTheSame(shop, options, usual);
    const broken = await ask(t, { event: "status" });
    assert.equal(broken.enabled, null);
    const answer = await ask(t, { event: "budgets" });
    assert.equal(answer.error, "StoreError", JSON.stringify(answer));
    await t.driver.host.kill();
    for (const [at, file] of copies.entries()) {
        const bytes = kept[at];
        if (bytes !== null) await writeFile(file, bytes);
    }
    await t.driver.eventually("it works again", async () => {
        const status = await ask(t, { event: "status" });
        return status.ok && status.enabled === true;
    });
    await measure(shop, options);
    const [entry] = await historyOf(t, "shop", 2);
    assert.equal(entry.outcome, "charged", entry.sentence);
});

test("a store that cannot be written", ALONE, async (t) => {
    const { store, shop, options, usual } = await device(t);
    await t.driver.host.kill();
    await chmod(store, 0o444);
    await looksTheSame(shop, options, usual);
    const broken = await ask(t, { event: "budgets" });
    assert.equal(broken.error, "StoreError", JSON.stringify(broken));
    await chmod(store, 0o644);
    // It is tried again without a restart of anything.
    await t.driver.eventually("it works again", async () =>
        (await ask(t, { event: "budgets" })).ok);
});
