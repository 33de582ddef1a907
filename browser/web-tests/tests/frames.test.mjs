// Frames: who calls, and what the page above may forbid.

import assert from "node:assert/strict";
import { test } from "../suite.mjs";
import { BUTTON, CHEAP, history, historyOf, measure, save } from "./support.mjs";

/** @typedef {import("../suite.mjs").TestContext} TestContext */

/**
 * A page with one frame, after a click in the page.
 *
 * @param {TestContext} t
 * @param {string} frame the HTML of the frame
 * @param {Record<string, string>} [headers]
 */
async function pageWith(t, frame, headers) {
    const tab = await t.open(t.page("top", "/", BUTTON + frame, headers));
    await tab.click("#go");
    return tab;
}

/**
 * @param {TestContext} t
 * @param {Record<string, string>} [headers]
 * @param {string} [attributes]
 */
function crossSite(t, headers, attributes = "") {
    const url = t.page("ads", "/frame", "<!doctype html><title>frame</title>", headers);
    return `<iframe src="${url}" ${attributes}></iframe>`;
}

test("a frame of another site is an intermediary", async (t) => {
    const tab = await pageWith(t, crossSite(t));
    const frame = await tab.child("/frame");
    assert.equal((await save(frame, { histogramIndex: 1 })).error, undefined);
    assert.equal((await measure(frame, CHEAP)).error, undefined);
    const entries = await historyOf(t, "top", 2);
    for (const { site, intermediarySite, kind, querier } of entries) {
        assert.equal(site, t.host("top"));
        assert.equal(intermediarySite, t.host("ads"));
        if (kind === "conversion") assert.equal(querier, t.host("top"));
    }
});

test("a frame of the same site is not an intermediary", async (t) => {
    const inner = t.host("top");
    t.server.page(`www.${inner}`, "/frame", "<!doctype html><title>frame</title>");
    const tab = await pageWith(t, `<iframe src="https://www.${inner}/frame"></iframe>`);
    const frame = await tab.child("/frame");
    assert.equal((await save(frame, { histogramIndex: 1 })).error, undefined);
    const [entry] = await historyOf(t, "top", 1);
    assert.equal(entry.intermediarySite, undefined);
});

test("frames without an address belong to the page around them", async (t) => {
    const srcdoc = `<iframe id=doc srcdoc="<!doctype html><title>inner</title>"></iframe>`;
    const tab = await pageWith(t, `${srcdoc}<iframe id=blank></iframe>`);
    const outcomes = await tab.evaluate(async () => {
        const frames = [...document.querySelectorAll("iframe")];
        return Promise.all(frames.map(async (frame) => {
            const { navigator } = /** @type {any} */ (frame.contentWindow);
            const saved = navigator.attribution?.saveImpression({ histogramIndex: 1 });
            return saved?.then(() => "ok", (/** @type {Error} */ error) => error.name) ?? "none";
        }));
    });
    assert.deepEqual(outcomes, ["ok", "ok"]);
    for (const { site, intermediarySite } of await historyOf(t, "top", 2)) {
        assert.equal(site, t.host("top"));
        assert.equal(intermediarySite, undefined);
    }
});

test("a sandboxed frame has no site", async (t) => {
    const tab = await pageWith(t, crossSite(t, undefined, `sandbox="allow-scripts"`));
    const frame = await tab.child("/frame");
    const { error } = await save(frame, { histogramIndex: 1 });
    assert.equal(error, "SyntaxError");
    assert.deepEqual(await history(t, "top"), []);
});

test("Permissions-Policy of the page forbids the API to all", async (t) => {
    const headers = { "permissions-policy": "save-impression=(), measure-conversion=()" };
    const tab = await pageWith(t, crossSite(t), headers);
    const frame = await tab.child("/frame");
    for (const view of [tab, frame]) {
        assert.equal((await save(view, { histogramIndex: 1 })).error, "NotAllowedError");
        assert.equal((await measure(view, CHEAP)).error, "NotAllowedError");
    }
    assert.deepEqual(await history(t, "top"), []);
});

test("Permissions-Policy of the page forbids one feature to frames", async (t) => {
    const headers = { "permissions-policy": "measure-conversion=(self), geolocation=*" };
    const tab = await pageWith(t, crossSite(t), headers);
    const frame = await tab.child("/frame");
    assert.equal((await save(frame, { histogramIndex: 1 })).error, undefined);
    assert.equal((await measure(frame, CHEAP)).error, "NotAllowedError");
    assert.equal((await measure(tab, CHEAP)).error, undefined);
});

test("Permissions-Policy may name the frames that are allowed", async (t) => {
    const allowed = `"https://${t.host("ads")}"`;
    const headers = { "permissions-policy": `save-impression=(self ${allowed})` };
    const url = t.page("others", "/other", "<!doctype html><title>frame</title>");
    const frames = `${crossSite(t)}<iframe src="${url}"></iframe>`;
    const tab = await pageWith(t, frames, headers);
    const named = await tab.child("/frame");
    const other = await tab.child("/other");
    assert.equal((await save(named, { histogramIndex: 1 })).error, undefined);
    assert.equal((await save(other, { histogramIndex: 1 })).error, "NotAllowedError");
});

test("a frame's own Permissions-Policy binds the frame alone", async (t) => {
    const tab = await pageWith(t, crossSite(t, { "permissions-policy": "save-impression=()" }));
    const frame = await tab.child("/frame");
    assert.equal((await save(frame, { histogramIndex: 1 })).error, "NotAllowedError");
    assert.equal((await save(tab, { histogramIndex: 1 })).error, undefined);
});

test("a policy ends with its page", async (t) => {
    const headers = { "permissions-policy": "save-impression=()" };
    const tab = await pageWith(t, "", headers);
    assert.equal((await save(tab, { histogramIndex: 1 })).error, "NotAllowedError");
    await tab.goto(t.page("top", "/free", BUTTON));
    await tab.click("#go");
    assert.equal((await save(tab, { histogramIndex: 1 })).error, undefined);
});

test("a click in a frame activates the whole page", async (t) => {
    const opener = await t.open(t.page("opener", "/", BUTTON));
    await opener.click("#go");
    const url = t.page("ads", "/frame", BUTTON);
    const html = `<!doctype html><title>top</title><iframe src="${url}"></iframe>`;
    const top = t.page("top", "/", html);
    const popup = await t.popup(opener, () => opener.evaluate((url) => void open(url), top));
    const frame = await popup.child("/frame");
    assert.equal((await save(popup, { histogramIndex: 1 })).error, "NotAllowedError");
    await frame.click("#go");
    assert.equal((await save(popup, { histogramIndex: 1 })).error, undefined);
    assert.equal((await save(frame, { histogramIndex: 1 })).error, undefined);
});

test("a frame that outlives its page cannot call", async (t) => {
    const tab = await pageWith(t, `<iframe id=blank></iframe>`);
    const outcome = await tab.evaluate(async () => {
        const frame = /** @type {HTMLIFrameElement} */ (document.querySelector("#blank"));
        const { attribution } = /** @type {any} */ (frame.contentWindow).navigator;
        frame.remove();
        return attribution.saveImpression({ histogramIndex: 1 }).then(
            () => "ok",
            (/** @type {Error} */ error) => error.name,
        );
    });
    assert.equal(outcome, "InvalidStateError");
    assert.deepEqual(await history(t, "top"), []);
});
