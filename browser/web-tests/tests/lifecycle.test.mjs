// Pages and backgrounds that come and go: the back/forward cache, a background that the browser
// stops, tabs and windows beside each other.

import assert from "node:assert/strict";
import { test } from "../suite.mjs";
import { active, BUTTON, CHEAP, historyOf, measure, save, seeAd } from "./support.mjs";

const ALONE = { alone: true, limit: 120 };

test("a page from the back/forward cache goes on with the API", async (t) => {
    const tab = await seeAd(t, "site");
    await tab.evaluate(() => {
        document.title = "was here";
    });
    await tab.goto(t.page("elsewhere", "/", BUTTON));
    const cached = await tab.back();
    await tab.click("#go");
    const { keys, error } = await measure(tab, CHEAP);
    assert.deepEqual(keys, ["report"], error);
    await historyOf(t, "site", 2);
    if (cached) assert.equal(await tab.evaluate(() => document.title), "was here");
});

test("a call that was on its way when its page was left touches nobody else", async (t) => {
    const tab = await active(t, "site");
    await tab.evaluate((options) => {
        /** @type {any} */ (navigator).attribution.measureConversion(options);
    }, CHEAP);
    await tab.goto(t.page("elsewhere", "/", BUTTON));
    const [entry] = await historyOf(t, "site", 1);
    assert.equal(entry.site, t.host("site"));
    await tab.click("#go");
    assert.deepEqual((await measure(tab, CHEAP)).keys, ["report"]);
    assert.equal((await historyOf(t, "elsewhere", 1)).length, 1);
});

test("a background that was stopped knows tabs, actions and policies again", ALONE, async (t) => {
    const tab = await seeAd(t, "site");
    const headers = { "permissions-policy": "save-impression=()" };
    const closed = await t.open(t.page("closed", "/", BUTTON, headers));
    await closed.click("#go");
    assert.equal((await save(closed, { histogramIndex: 1 })).error, "NotAllowedError");
    await t.driver.stopBackground();
    assert.equal((await save(tab, { histogramIndex: 2 })).error, undefined);
    assert.equal((await save(closed, { histogramIndex: 1 })).error, "NotAllowedError");
    const [after, before] = await historyOf(t, "site", 2);
    assert.equal(after.userAction, before.userAction);
});

test("a conversion survives a background that is stopped meanwhile", ALONE, async (t) => {
    const tab = await active(t, "shop");
    const usual = await measure(tab, CHEAP);
    const waiting = measure(tab, CHEAP);
    await historyOf(t, "shop", 2);
    await t.driver.stopBackground();
    const { keys, bytes, error } = await waiting;
    assert.deepEqual(keys, ["report"], error);
    assert.equal(bytes, usual.bytes);
});

test("tabs and windows beside each other get their own answers", async (t) => {
    await seeAd(t, "news");
    const window = await active(t, "shop");
    const beside = await t.open(t.page("second", "/", BUTTON), { beside: window });
    await beside.click("#go");
    const other = await active(t, "third");
    const sizes = [5, 10, 20];
    const options = { ...CHEAP, impressionSites: [t.host("news")] };
    const outcomes = await Promise.all([window, beside, other].map((tab, at) =>
        measure(tab, { ...options, histogramSize: sizes[at] })));
    const [small, medium, large] = outcomes.map(({ bytes }) => bytes ?? 0);
    assert.ok(0 < small && small < medium && medium < large, `${small} ${medium} ${large}`);
    for (const [at, name] of ["shop", "second", "third"].entries()) {
        const [entry] = await historyOf(t, name, 1);
        assert.equal(entry.histogramSize, sizes[at]);
        assert.equal(entry.outcome, "charged", entry.sentence);
    }
});

test("the tabs of one window have user actions of their own", async (t) => {
    const first = await active(t, "first");
    const second = await t.open(t.page("second", "/", BUTTON), { beside: first });
    await second.click("#go");
    await save(first, { histogramIndex: 1 });
    await save(second, { histogramIndex: 1 });
    const [one] = await historyOf(t, "first", 1);
    const [two] = await historyOf(t, "second", 1);
    assert.notEqual(one.userAction, two.userAction);
});
