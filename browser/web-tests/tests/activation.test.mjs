// Activation and user actions: only what the user really does counts, and everything that an act
// causes carries its number.

import assert from "node:assert/strict";
import { test } from "../suite.mjs";
import { active, BUTTON, CHEAP, historyOf, measure, save, seeAd } from "./support.mjs";

test("without an act of the user, calls are not allowed", async (t) => {
    const opener = await active(t, "opener");
    const url = t.page("site", "/", BUTTON);
    const popup = await t.popup(opener, () => opener.evaluate((url) => void open(url), url));
    await popup.until(() => document.readyState === "complete");
    for (const outcome of [
        await save(popup, { histogramIndex: 1 }),
        await measure(popup, CHEAP),
    ]) {
        assert.equal(outcome.error, "NotAllowedError", outcome.message);
        assert.equal(outcome.type, "DOMException");
    }
    // Events that a page makes up are not acts of the user.
    await popup.evaluate(() => {
        const button = /** @type {HTMLElement} */ (document.querySelector("#go"));
        button.click();
        for (const type of ["pointerdown", "pointerup", "mousedown"]) {
            button.dispatchEvent(new PointerEvent(type, { bubbles: true, pointerType: "mouse" }));
        }
        button.dispatchEvent(new KeyboardEvent("keydown", { bubbles: true, key: "Enter" }));
    });
    assert.equal((await save(popup, { histogramIndex: 1 })).error, "NotAllowedError");
    await popup.click("#go");
    assert.equal((await save(popup, { histogramIndex: 1 })).error, undefined);
});

test("keys and typed addresses activate too", async (t) => {
    const opener = await active(t, "opener");
    const url = t.page("site", "/", BUTTON);
    const popup = await t.popup(opener, () => opener.evaluate((url) => void open(url), url));
    await popup.until(() => document.readyState === "complete");
    assert.equal((await save(popup, { histogramIndex: 1 })).error, "NotAllowedError");
    await popup.press("a");
    assert.equal((await save(popup, { histogramIndex: 1 })).error, undefined);

    // Browsers let a page open one window for a click.
    await opener.click("#go");
    const typed = await t.popup(opener, () => opener.evaluate((url) => void open(url), url));
    await typed.typeAddress(t.page("other", "/", BUTTON));
    assert.equal((await save(typed, { histogramIndex: 1 })).error, undefined);
});

test("each act has a number of its own, and a page keeps it until the next", async (t) => {
    const tab = await active(t, "site");
    await save(tab, { histogramIndex: 1 });
    await save(tab, { histogramIndex: 2 });
    await tab.press("x");
    await save(tab, { histogramIndex: 3 });
    await tab.click("#go");
    await save(tab, { histogramIndex: 4 });
    const entries = (await historyOf(t, "site", 4)).reverse();
    const [first, second, typed, clicked] = entries.map(({ userAction }) => userAction);
    assert.equal(first, second);
    assert.equal(first, typed, "typing text is not an act of its own");
    assert.notEqual(first, clicked);
    assert.match(entries[3].actionLabel, /^a click on site-/);
});

test("a chain of redirects over five sites involves two of them", async (t) => {
    const hops = ["a", "b", "c", "d", "e"];
    hops.forEach((name, at) => {
        const next = at + 1 < hops.length ? t.url(hops[at + 1]) : null;
        t.page(name, "/", `<!doctype html><title>hop</title><script>
            navigator.attribution.saveImpression({ histogramIndex: ${at} }).then(
                () => ${next ? `location.replace(${JSON.stringify(next)})` : "document.title = 'end'"},
                (error) => { document.title = error.name; },
            );
        </script>`);
    });
    const html = `<!doctype html><title>start</title><a id=go href="${t.url("a")}">go</a>`;
    const tab = await t.open(t.page("start", "/", html));
    await tab.click("#go");
    await tab.until(() => document.title === "end");
    const outcomes = [];
    const actions = new Set();
    for (const name of hops) {
        const [{ outcome, userAction }] = await historyOf(t, name, 1);
        outcomes.push(outcome);
        actions.add(userAction);
    }
    assert.deepEqual(outcomes, ["saved", "saved", "domainCap", "domainCap", "domainCap"]);
    assert.equal(actions.size, 1, "one click, one user action");
});

test("redirects by the server belong to the act too", async (t) => {
    t.route("first", "/", { status: 302, headers: { location: t.url("second") } });
    t.page("second", "/", BUTTON);
    const html = `<!doctype html><title>start</title><a id=go href="${t.url("first")}">go</a>`;
    const tab = await t.open(t.page("start", "/", html));
    await tab.click("#go");
    await tab.until(() => document.title === "page");
    await save(tab, { histogramIndex: 1 });
    const [{ actionLabel }] = await historyOf(t, "second", 1);
    assert.match(actionLabel, /^a click on start-/);
});

test("windows that a page opens carry its user action", async (t) => {
    const opener = await seeAd(t, "opener");
    const url = t.page("popup", "/", BUTTON);
    const popup = await t.popup(opener, () => opener.evaluate((url) => void open(url), url));
    await popup.until(() => document.readyState === "complete");
    // A letter activates the page without being an act of its own.
    await popup.press("x");
    await save(popup, { histogramIndex: 1 });
    await popup.evaluate((url) => location.assign(url), t.page("third", "/", BUTTON));
    await popup.until((host) => location.hostname === host && document.title === "page",
        t.host("third"));
    await save(popup, { histogramIndex: 1 });
    const [first] = await historyOf(t, "opener", 1);
    const [second] = await historyOf(t, "popup", 1);
    const [third] = await historyOf(t, "third", 1);
    assert.equal(first.userAction, second.userAction);
    assert.equal(first.userAction, third.userAction);
    assert.deepEqual([first, second, third].map(({ outcome }) => outcome),
        ["saved", "saved", "domainCap"]);
});

test("reloading and going back begin no user action", async (t) => {
    const tab = await seeAd(t, "site");
    await tab.evaluate(() => location.reload());
    await tab.until(() => performance.getEntriesByType("navigation").some(
        (entry) => /** @type {any} */ (entry).type === "reload"));
    await save(tab, { histogramIndex: 1 });
    const [after, before] = await historyOf(t, "site", 2);
    assert.equal(after.userAction, before.userAction);
});

test("an ad that is seen and a purchase of another act match", async (t) => {
    await seeAd(t, "news", { histogramIndex: 3 });
    const shop = await active(t, "shop");
    const { bytes, keys } = await measure(shop, {
        ...CHEAP,
        impressionSites: [t.host("news")],
    });
    assert.deepEqual(keys, ["report"]);
    assert.ok((bytes ?? 0) > 500);
    const [entry] = await historyOf(t, "shop", 1);
    assert.equal(entry.outcome, "charged", entry.sentence);
    const passed = entry.explanation.epochs.filter((/** @type {any} */ epoch) => epoch.passed);
    assert.deepEqual(passed.map((/** @type {any} */ epoch) => epoch.matched), [1]);
    assert.equal(entry.reportBytes, bytes);
});

test("an ad and a purchase of the same act do not match", async (t) => {
    const tab = await active(t, "both");
    await save(tab, { histogramIndex: 3 });
    await measure(tab, { ...CHEAP, impressionSites: [t.host("both")] });
    const [conversion] = await historyOf(t, "both", 2);
    assert.equal(conversion.outcome, "nothing");
});
