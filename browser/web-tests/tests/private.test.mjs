// Private windows: they look the same, and nothing that happens there is kept or paid for.

import assert from "node:assert/strict";
import { test } from "../suite.mjs";
import {
    active, CHEAP, consumed, history, historyOf, impressions, measure, save, seeAd,
} from "./support.mjs";

test("in a private window, calls look the same and nothing is kept", async (t) => {
    await seeAd(t, "news", { histogramIndex: 1 });
    const shop = await active(t, "shop");
    const options = { ...CHEAP, impressionSites: [t.host("news")] };
    const normal = await measure(shop, options);
    const paid = await consumed(t, "shop");
    assert.equal(paid.querierBudget, 10_000);

    const hidden = await active(t, "shop", { private: true });
    const secret = await measure(hidden, options);
    assert.deepEqual(secret.keys, normal.keys);
    assert.equal(secret.bytes, normal.bytes);
    assert.deepEqual((await save(hidden, { histogramIndex: 1 })).keys, []);
    assert.equal((await save(hidden, { histogramIndex: -1 })).error, "RangeError");
    const wrong = { ...CHEAP, aggregationService: "https://unknown.example" };
    assert.equal((await measure(hidden, wrong)).error, "ReferenceError");

    // A call of a normal window comes after those, and by then nothing else was done.
    await measure(shop, options);
    const [last, first, ...more] = await historyOf(t, "shop", 2);
    assert.deepEqual([last.outcome, first.outcome, more.length], ["charged", "charged", 0]);
    assert.deepEqual(await consumed(t, "shop"), {
        conversionSiteQuota: 2 * paid.conversionSiteQuota,
        querierBudget: 2 * paid.querierBudget,
    });
    assert.deepEqual(await impressions(t, "shop"), []);
});

test("an ad in a private window is not measured outside", async (t) => {
    const hidden = await active(t, "news", { private: true });
    assert.deepEqual((await save(hidden, { histogramIndex: 1 })).keys, []);
    const shop = await active(t, "shop");
    await measure(shop, { ...CHEAP, impressionSites: [t.host("news")] });
    const [entry] = await historyOf(t, "shop", 1);
    assert.equal(entry.outcome, "nothing");
    assert.deepEqual(await history(t, "news"), []);
});
