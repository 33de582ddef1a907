// Clearing: what the user removes from the browser's history is forgotten, nothing is paid back,
// and one address does not close every site's epochs.

import assert from "node:assert/strict";
import { test } from "../suite.mjs";
import { newDevice } from "./setup.mjs";
import {
    active, ask, CHEAP, consumed, history, historyOf, impressions, measure, seeAd,
} from "./support.mjs";

const ALONE = { alone: true, limit: 120 };

test("removing an address from history forgets its site and no other", ALONE, async (t) => {
    await seeAd(t, "news");
    await seeAd(t, "blog");
    const shop = await active(t, "shop");
    const sites = { impressionSites: [t.host("news"), t.host("blog")] };
    await measure(shop, { ...CHEAP, ...sites });
    const paid = await consumed(t, "shop");
    await t.driver.evaluateInExtension(async (url) => {
        await chrome.history.addUrl({ url });
        await chrome.history.deleteUrl({ url });
    }, t.url("news"));
    await t.driver.eventually("the ads on news go", async () =>
        (await impressions(t, "news")).length === 0);
    assert.equal((await impressions(t, "blog")).length, 1);
    await measure(shop, { ...CHEAP, ...sites });
    const [last] = await historyOf(t, "shop", 2);
    assert.equal(last.outcome, "charged", `blog still counts: ${last.sentence}`);
    assert.equal((await consumed(t, "shop")).querierBudget, 2 * paid.querierBudget);
});

test("removing a shop's last address ends its measuring, not that of others", ALONE, async (t) => {
    await seeAd(t, "news");
    const sites = { ...CHEAP, impressionSites: [t.host("news")] };
    const shop = await active(t, "shop");
    const other = await active(t, "other");
    await measure(shop, sites);
    await historyOf(t, "shop", 1);
    await t.driver.evaluateInExtension(async (url) => {
        await chrome.history.addUrl({ url });
        await chrome.history.deleteUrl({ url });
    }, t.url("shop"));
    await t.driver.eventually("the history of shop goes", async () =>
        (await history(t, "shop")).length === 0);
    await shop.click("#go");
    await measure(shop, sites);
    await other.click("#go");
    await measure(other, sites);
    const [closed] = await historyOf(t, "shop", 1);
    const [open] = await historyOf(t, "other", 1);
    assert.notEqual(closed.outcome, "charged", closed.sentence);
    assert.equal(open.outcome, "charged", open.sentence);
});

test("clearing all history forgets everything and pays nothing back", ALONE, async (t) => {
    await newDevice(t);
    await seeAd(t, "news");
    const shop = await active(t, "shop");
    const options = { ...CHEAP, impressionSites: [t.host("news")] };
    const before = await measure(shop, options);
    await historyOf(t, "shop", 1);
    await t.driver.evaluateInExtension(() => chrome.history.deleteAll());
    await t.driver.eventually("everything goes", async () => {
        const kept = await ask(t, { event: "impressions" });
        const past = await ask(t, { event: "history" });
        return kept.impressions?.length === 0 && past.history?.length === 0;
    });
    const status = await ask(t, { event: "status" });
    assert.ok(status.closedUntil > status.now, "the current epoch is closed");
    await seeAd(t, "news");
    await shop.click("#go");
    const after = await measure(shop, options);
    assert.equal(after.bytes, before.bytes);
    const [entry] = await historyOf(t, "shop", 1);
    assert.notEqual(entry.outcome, "charged", entry.sentence);
});

test("what is cleared while the host is away is cleared when it is back", ALONE, async (t) => {
    await newDevice(t);
    await seeAd(t, "news");
    await t.driver.eventually("the ad is stored", async () =>
        (await impressions(t, "news")).length === 1);
    await t.driver.host.remove();
    await t.driver.host.kill();
    await t.driver.evaluateInExtension(async (url) => {
        await chrome.history.addUrl({ url });
        await chrome.history.deleteUrl({ url });
    }, t.url("news"));
    await t.driver.eventually("the clear is kept", () => t.driver.evaluateInExtension(async () => {
        const { clears } = await chrome.storage.local.get("clears");
        return Array.isArray(clears) && clears.length > 0;
    }));
    // Also if the background is stopped meanwhile.
    await t.driver.stopBackground();
    await t.driver.host.putBack();
    const shop = await active(t, "shop");
    await measure(shop, { ...CHEAP, impressionSites: [t.host("news")] });
    await t.driver.eventually("the ads on news go", async () =>
        (await ask(t, { event: "impressions" })).impressions?.length === 0);
    const entries = await history(t, "shop");
    for (const { outcome } of entries) assert.notEqual(outcome, "charged");
});

test("opting out cannot be seen from a page, and can be undone", ALONE, async (t) => {
    await newDevice(t);
    await seeAd(t, "news");
    const shop = await active(t, "shop");
    const options = { ...CHEAP, impressionSites: [t.host("news")] };
    const before = await measure(shop, options);
    assert.equal((await ask(t, { event: "disableAPI" })).ok, true);
    assert.equal((await ask(t, { event: "status" })).enabled, false);
    const out = await measure(shop, options);
    assert.deepEqual([out.keys, out.bytes], [before.keys, before.bytes]);
    await seeAd(t, "unseen");
    assert.deepEqual(await impressions(t, "unseen"), []);
    const [entry] = await historyOf(t, "shop", 2);
    assert.deepEqual([entry.outcome, entry.cause], ["null", "disabled"]);
    assert.equal((await ask(t, { event: "enableAPI" })).ok, true);
    await measure(shop, options);
    const [again] = await historyOf(t, "shop", 3);
    assert.equal(again.outcome, "charged", again.sentence);
});
