// The harness does what it says, in both browsers. Each test rests on the stub extension.

import assert from "node:assert/strict";
import { test } from "../suite.mjs";

/** @typedef {import("../suite.mjs").TestContext} TestContext */

/**
 * The events of the background that mention a host of this test.
 *
 * @param {TestContext} t
 * @param {string} name
 * @returns {Promise<any[]>}
 */
async function eventsOf(t, name) {
    return t.driver.evaluateInBackground((host) => {
        const mine = (/** @type {any} */ event) => {
            const url = event.url ?? event.sender?.url ?? event.urls?.[0] ?? "";
            return url.includes(host);
        };
        return /** @type {any} */ (globalThis).events.filter(mine);
    }, t.host(name));
}

/**
 * Waits for an event of the background.
 *
 * @param {TestContext} t
 * @param {string} name
 * @param {(event: any) => boolean} matches
 * @returns {Promise<any>}
 */
async function event(t, name, matches) {
    return t.driver.eventually("the background records the event", async () =>
        (await eventsOf(t, name)).find(matches));
}

/**
 * Sends text from the page through extension and native host, and back.
 *
 * @param {import("../driver.mjs").Tab} tab
 * @param {string} text
 */
async function echo(tab, text) {
    return tab.evaluate(async (text) => {
        const answer = new Promise((resolve) =>
            addEventListener("harness-answer", (event) =>
                resolve(JSON.parse(/** @type {CustomEvent} */ (event).detail)), { once: true }));
        dispatchEvent(new CustomEvent("harness", { detail: text }));
        return /** @type {Promise<any>} */ (answer);
    }, text);
}

const BLANK = "<!doctype html><title>page</title><body>text";

test("the MAIN world is reached before the page's scripts", async (t) => {
    const html = "<!doctype html><script>globalThis.first = navigator.harness?.early</script>";
    const tab = await t.open(t.page("a", "/", html));
    assert.equal(await tab.evaluate(() => /** @type {any} */ (globalThis).first), true);
});

test("https pages are secure contexts and http pages are not", async (t) => {
    const url = t.page("a", "/", BLANK);
    const tab = await t.open(url);
    assert.equal(await tab.evaluate(() => isSecureContext), true);
    await tab.goto(url.replace("https:", "http:"));
    assert.equal(await tab.evaluate(() => isSecureContext), false);
    assert.equal(await tab.evaluate(() => location.protocol), "http:");
});

test("nothing but .example exists", async (t) => {
    const tab = await t.open(t.page("a", "/", BLANK));
    const fetches = await tab.evaluate(() =>
        Promise.all(["https://example.com/", "https://127.0.0.1/", "https://a.example:8443/"].map(
            (url) => fetch(url, { mode: "no-cors" }).then(() => "answered", () => "refused"))));
    assert.deepEqual(fetches, ["refused", "refused", "refused"]);
});

test("a click is trusted, and a scripted one is not", async (t) => {
    const tab = await t.open(t.page("a", "/", "<!doctype html><button id=b>go</button>"));
    await tab.evaluate(() => document.getElementById("b")?.click());
    await tab.click("#b");
    const clicks = await t.driver.eventually("two clicks", async () => {
        const all = await eventsOf(t, "a");
        const clicks = all.filter((event) => event.message?.type === "click");
        return clicks.length >= 2 && clicks;
    });
    assert.deepEqual(clicks.map((click) => click.message.isTrusted), [false, true]);
});

test("a key is trusted, also in a frame", async (t) => {
    const inner = t.page("inner", "/", "<!doctype html><input id=i>");
    const tab = await t.open(t.page("a", "/", `<!doctype html><iframe src="${inner}"></iframe>`));
    const frame = await tab.child(t.host("inner"));
    await frame.type("#i", "ab");
    await tab.press("Enter");
    const key = await event(t, "inner", (event) => event.message?.type === "keydown");
    assert.equal(key.message.isTrusted, true);
    assert.equal(key.sender.tab.url, t.url("a"));
    assert.notEqual(key.sender.frameId, 0);
    assert.equal(await frame.evaluate(() => document.querySelector("input")?.value), "ab");
});

test("the background sees response headers, also of a redirect", async (t) => {
    const last = t.page("b", "/last", BLANK, { "save-impression": "histogram-index=3" });
    t.server.redirect(t.host("a"), "/first", last, { "save-impression": "histogram-index=1" });
    await t.open(t.url("a", "/first"));
    const header = async (/** @type {string} */ name) => {
        const received = await event(t, name, (event) => event.kind === "onHeadersReceived");
        return received.responseHeaders.find(
            (/** @type {any} */ header) => header.name.toLowerCase() === "save-impression").value;
    };
    assert.equal(await header("a"), "histogram-index=1");
    assert.equal(await header("b"), "histogram-index=3");
});

test("a typed address is told from a link", async (t) => {
    const other = t.page("b", "/", BLANK);
    const tab = await t.open(t.page("a", "/", `<!doctype html><a id=a href="${other}">b</a>`));
    await tab.follow("#a");
    const link = await event(t, "b", (event) => event.kind === "onCommitted");
    assert.equal(link.transitionType, "link");
    await tab.typeAddress(t.page("c", "/", BLANK));
    const typed = await event(t, "c", (event) => event.kind === "onCommitted");
    assert.equal(typed.transitionType, "typed");
});

test("a popup that a click opens is seen with its opener", async (t) => {
    const other = t.page("b", "/", BLANK);
    const html = `<!doctype html><button id=b onclick="window.open('${other}')">go</button>`;
    const tab = await t.open(t.page("a", "/", html));
    const popup = await t.popup(tab, () => tab.click("#b"));
    assert.equal(await popup.url(), other);
    const created = await event(t, "b", (event) => event.kind === "onCreatedNavigationTarget");
    const opener = await event(t, "a", (event) => event.kind === "onCommitted");
    assert.equal(created.sourceTabId, opener.tabId);
});

test("a private window says so", async (t) => {
    const url = t.page("a", "/", "<!doctype html><button id=b>go</button>");
    const tab = await t.open(url, { private: true });
    const start = await event(t, "a", (event) => event.message?.what === "start");
    assert.equal(start.sender.tab.incognito, true);
    await tab.click("#b");
    const click = await event(t, "a", (event) => event.message?.type === "click");
    assert.equal(click.message.isTrusted, true);
});

test("a tab opens beside another, in the same window", async (t) => {
    const first = await t.open(t.page("a", "/", BLANK), { window: true });
    const second = await t.open(t.page("b", "/", "<!doctype html><button id=b>go</button>"), {
        beside: first,
    });
    assert.equal(await second.windowId(), await first.windowId());
    await second.click("#b");
    await event(t, "b", (event) => event.message?.isTrusted === true);
    await first.click("body");
    await event(t, "a", (event) => event.message?.isTrusted === true);
});

test("going back restores a page from the cache", async (t) => {
    const tab = await t.open(t.page("a", "/", BLANK));
    await tab.goto(t.page("b", "/", BLANK));
    assert.equal(await tab.back(), true);
    assert.equal(await tab.url(), t.url("a"));
    await event(t, "a", ({ message }) => message?.what === "pageshow" && message.persisted);
    assert.equal(await tab.forward(), true);
    assert.equal(await tab.url(), t.url("b"));
    await tab.reload();
    await tab.goto(t.page("c", "/", BLANK));
    assert.equal(await tab.url(), t.url("c"));
});

test("uploads and delays", async (t) => {
    t.route("a", "/late", { body: "late", delay: 300 });
    t.route("a", "/upload", { status: 204 });
    const tab = await t.open(t.page("a", "/", BLANK));
    assert.equal(await tab.evaluate(async () => (await fetch("/late")).text()), "late");
    await tab.evaluate(() => fetch("/upload", { method: "POST", body: "report" }).then(() => 0));
    const [upload] = await t.server.arrivals(t.host("a"), "/upload");
    assert.equal(upload.method, "POST");
    assert.equal(upload.body.toString(), "report");
});

test("the native host answers, and is started with the launcher's arguments", async (t) => {
    const tab = await t.open(t.page("a", "/", BLANK));
    const answer = await echo(tab, "hello");
    assert.equal(answer.text, "hello");
    assert.equal(answer.args[0], "--from-the-launcher");
});

test("a killed host is noticed, and started again", { alone: true }, async (t) => {
    const tab = await t.open(t.page("a", "/", BLANK));
    const { pid } = await echo(tab, "one");
    const count = () => t.driver.evaluateInBackground(() =>
        /** @type {any} */ (globalThis).events.filter(
            (/** @type {any} */ event) => event.kind === "disconnect").length);
    const before = await count();
    assert.equal(await t.driver.host.kill(), 1);
    await t.driver.eventually("the disconnection", async () => (await count()) > before);
    const again = await echo(tab, "two");
    assert.equal(again.text, "two");
    assert.notEqual(again.pid, pid);
});

test("a host that is not installed is an error, until it is", { alone: true }, async (t) => {
    const tab = await t.open(t.page("a", "/", BLANK));
    t.after(() => t.driver.host.restore());
    await t.driver.host.remove();
    await t.driver.host.kill();
    await t.driver.eventually("the loss", async () => {
        const answer = await echo(tab, "three");
        return answer === null || answer.disconnected !== undefined;
    });
    await t.driver.host.restore();
    assert.equal((await echo(tab, "four")).text, "four");
});

test("the background stops, and the next message starts it", { alone: true }, async (t) => {
    const tab = await t.open(t.page("a", "/", BLANK));
    const number = () => t.driver.evaluateInBackground(() =>
        /** @type {any} */ (globalThis).started);
    const before = await number();
    await t.driver.stopBackground();
    assert.equal((await echo(tab, "five")).text, "five");
    assert.notEqual(await number(), before);
});

test("the extension's powers are at hand", async (t) => {
    const url = t.page("a", "/", BLANK);
    await t.open(url);
    await t.driver.eventually("the visit", async () =>
        t.driver.evaluateInExtension(async (url) =>
            (await chrome.history.getVisits({ url })).length > 0, url));
    await t.driver.evaluateInExtension((url) => chrome.history.deleteUrl({ url }), url);
    await event(t, "a", (event) => event.kind === "visitRemoved");
});
