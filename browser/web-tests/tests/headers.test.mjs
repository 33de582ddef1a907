// Response headers: Save-Impression, Measure-Conversion with its upload, Clear-Site-Data.

import assert from "node:assert/strict";
import { test } from "../suite.mjs";
import {
    active, CHEAP, history, historyOf, impressions, measure, save, seeAd, SERVICE,
} from "./support.mjs";

/** @typedef {import("../driver.mjs").Tab} Tab */

const OPEN = { "access-control-allow-origin": "*" };
const PIXEL = Buffer.from("R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7", "base64");

/** @param {Tab} tab @param {string} url */
const showImage = (tab, url) => tab.evaluate((url) => new Promise((resolve) => {
    const image = new Image();
    image.onload = image.onerror = resolve;
    image.src = url;
    document.body.append(image);
}).then(() => undefined), url);

/** @param {Tab} tab @param {string} url */
const fetchFrom = (tab, url) => tab.evaluate((url) => fetch(url).then(() => undefined), url);

test("an image saves an impression for the site that served it", async (t) => {
    const tab = await active(t, "news");
    const value = `histogram-index=3, match-value=7, conversion-sites=("${t.host("shop")}")`;
    const headers = { "content-type": "image/gif", "save-impression": value };
    await showImage(tab, t.route("ads", "/ad.gif", { headers, body: PIXEL }));
    const [entry] = await historyOf(t, "news", 1);
    assert.equal(entry.kind, "impression");
    assert.equal(entry.intermediarySite, t.host("ads"));
    assert.equal(entry.histogramIndex, 3);
    assert.equal(entry.matchValue, 7);
    assert.deepEqual(entry.conversionSites, [t.host("shop")]);
});

test("fetch, scripts and redirects save impressions, documents and styles do not", async (t) => {
    const tab = await active(t, "news");
    /** @param {number} index @param {string} type @param {object} [more] */
    const answer = (index, type, more) => ({
        ...more,
        headers: { ...OPEN, "content-type": type, "save-impression": `histogram-index=${index}`,
            .../** @type {any} */ (more)?.headers },
    });
    const plain = t.route("news", "/plain", { body: "x", headers: OPEN });
    await fetchFrom(tab, t.route("news", "/fetch", answer(1, "text/plain")));
    const redirect = { status: 302, headers: { location: plain } };
    await fetchFrom(tab, t.route("news", "/redirect", answer(2, "text/plain", redirect)));
    const script = t.route("news", "/script.js", answer(3, "text/javascript", { body: "" }));
    const style = t.route("news", "/style.css", answer(4, "text/css", { body: "" }));
    const frame = t.route("news", "/frame", answer(5, "text/html", { body: "frame" }));
    await tab.evaluate(async (script, style, frame) => {
        const load = (/** @type {any} */ element) => new Promise((resolve) => {
            element.onload = element.onerror = resolve;
            document.body.append(element);
        });
        const link = Object.assign(document.createElement("link"),
            { rel: "stylesheet", href: style });
        await load(link);
        await load(Object.assign(document.createElement("iframe"), { src: frame }));
        await load(Object.assign(document.createElement("script"), { src: script }));
    }, script, style, frame);
    const entries = await historyOf(t, "news", 3);
    const saved = entries.map(({ histogramIndex }) => histogramIndex).sort();
    assert.deepEqual(saved, [1, 2, 3]);
});

test("a header that is malformed is ignored", async (t) => {
    const tab = await active(t, "news");
    const bad = ["histogram-index=1.0", "histogram-index", "index=1", "=", "histogram-index=-1"];
    for (const [at, value] of bad.entries()) {
        const headers = { ...OPEN, "save-impression": value };
        await fetchFrom(tab, t.route("news", `/bad${at}`, { headers }));
    }
    const headers = { ...OPEN, "save-impression": "histogram-index=9" };
    await fetchFrom(tab, t.route("news", "/good", { headers }));
    const entries = await historyOf(t, "news", 1);
    assert.deepEqual(entries.map(({ histogramIndex }) => histogramIndex), [9]);
});

test("headers need an activation and a policy too", async (t) => {
    const opener = await active(t, "opener");
    const headers = { ...OPEN, "save-impression": "histogram-index=1" };
    const ad = t.route("news", "/ad", { headers });
    const page = t.page("news", "/", "<!doctype html><title>page</title><button id=go>go</button>");
    const popup = await t.popup(opener, () => opener.evaluate((url) => void open(url), page));
    await popup.until(() => document.title === "page");
    await fetchFrom(popup, ad);
    await popup.click("#go");
    await fetchFrom(popup, ad);
    const forbidding = { "permissions-policy": "save-impression=()" };
    await popup.goto(t.page("news", "/closed", "<button id=go>go</button>", forbidding));
    await popup.click("#go");
    await fetchFrom(popup, ad);
    assert.equal((await save(popup, { histogramIndex: 1 })).error, "NotAllowedError");
    const entries = await historyOf(t, "news", 1);
    assert.equal(entries.length, 1);
});

test("a conversion by header is uploaded", async (t) => {
    await seeAd(t, "news", { histogramIndex: 4 });
    const tab = await active(t, "shop");
    /** @type {(request: import("../server.mjs").WebRequest) => void} */
    let arrived = () => undefined;
    /** @type {Promise<import("../server.mjs").WebRequest>} */
    const upload = new Promise((resolve) => {
        arrived = resolve;
    });
    t.route("shop", "/reports", (request) => {
        if (request.method === "POST") arrived(request);
        return { headers: { ...OPEN, "access-control-allow-headers": "*" } };
    });
    const value = `aggregation-service="${SERVICE}", histogram-size=5, epsilon=0.01, ` +
        `impression-sites=("${t.host("news")}"), report-url="/reports"`;
    const headers = { ...OPEN, "measure-conversion": value };
    await fetchFrom(tab, t.route("shop", "/thanks", { headers }));
    const request = await upload;
    assert.equal(request.headers["content-type"], "application/dap-report");
    assert.equal(request.headers.cookie, undefined);
    assert.equal(request.headers.referer, undefined);
    const [entry] = await historyOf(t, "shop", 1);
    assert.equal(entry.outcome, "charged", entry.sentence);
    assert.equal(request.body.length, entry.reportBytes);
    // A page that measures itself gets a report of the same size.
    const { bytes } = await measure(tab, CHEAP);
    assert.equal(bytes, request.body.length);
});

test("Clear-Site-Data removes the impressions of its site and nothing that left", async (t) => {
    const tab = await seeAd(t, "news");
    await seeAd(t, "blog");
    await measure(tab, CHEAP);
    await historyOf(t, "news", 2);
    const headers = { ...OPEN, "clear-site-data": `"impressions"` };
    await fetchFrom(tab, t.route("news", "/clear", { headers }));
    await t.driver.eventually("the impressions go", async () =>
        (await impressions(t, "news")).length === 0);
    assert.equal((await impressions(t, "blog")).length, 1);
    const left = await history(t, "news");
    assert.deepEqual(left.map(({ kind }) => kind), ["conversion"]);
    const other = { ...OPEN, "clear-site-data": `"cache"` };
    await fetchFrom(tab, t.route("blog", "/clear", { headers: other }));
    await fetchFrom(tab, t.route("blog", "/again", { headers: other }));
    assert.equal((await impressions(t, "blog")).length, 1);
});
