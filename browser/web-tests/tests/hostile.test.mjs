// Hostile pages: they get what the draft says and nothing else, and touch nobody's budget but
// their own.

import assert from "node:assert/strict";
import { test } from "../suite.mjs";
import { active, BUTTON, call, CHEAP, history, historyOf, measure, save } from "./support.mjs";

/** Changes everything that a script could use, after the API appeared. */
const POLLUTION = `<!doctype html><title>page</title><button id=go>go</button><script>
    globalThis.kept = {
        parse: JSON.parse, stringify: JSON.stringify, keys: Object.keys, then: Promise.prototype.then,
    };
    const evil = () => { globalThis.reached = true; throw new Error("reached the page's code"); };
    JSON.parse = JSON.stringify = evil;
    Array.prototype.toJSON = evil;
    Array.prototype.push = Array.prototype.map = Array.prototype.join = evil;
    String.prototype.charCodeAt = String.prototype.toWellFormed = evil;
    Map.prototype.get = Map.prototype.set = Map.prototype.has = Map.prototype.delete = evil;
    MessagePort.prototype.postMessage = MessagePort.prototype.start = evil;
    EventTarget.prototype.addEventListener = EventTarget.prototype.dispatchEvent = evil;
    Object.defineProperty(MessageEvent.prototype, "data", { get: evil });
    Reflect.apply = Reflect.construct = Reflect.defineProperty = evil;
    globalThis.atob = globalThis.DOMException = globalThis.RangeError = evil;
    globalThis.Uint8Array = globalThis.Promise = globalThis.MessageChannel = evil;
    // Last, because with it no property can be described any more.
    for (const name of ["toJSON", "ok", "report", "error", "name", "id", "get", "value"]) {
        Object.defineProperty(Object.prototype, name, {
            configurable: true, get() { return undefined; }, set() {},
        });
    }
    document.title = "polluted";
</script>`;

test("a page that changes built-in objects changes nothing in the API", async (t) => {
    const tab = await t.open(t.page("site", "/", POLLUTION));
    assert.equal(await tab.evaluate(() => document.title), "polluted");
    await tab.click("#go");
    // The page's own tools are broken, so it reports in its title.
    await tab.evaluate(() => {
        const { attribution } = /** @type {any} */ (navigator);
        const { then } = /** @type {any} */ (globalThis).kept;
        const options = {
            aggregationService: "https://agg.example", histogramSize: 5, epsilon: 0.01,
        };
        then.call(attribution.saveImpression({ histogramIndex: 1, conversionSites: ["a.example"] }),
            () => then.call(attribution.saveImpression({ histogramIndex: -1 }),
                () => undefined,
                (/** @type {any} */ error) => then.call(attribution.measureConversion(options),
                    (/** @type {any} */ result) => {
                        document.title = `${error.name} ${result.report.length > 500} ` +
                            `${/** @type {any} */ (globalThis).reached === true}`;
                    })));
    });
    await tab.until(() => document.title !== "polluted");
    assert.equal(await tab.evaluate(() => document.title), "RangeError true false");
    const entries = await historyOf(t, "site", 2);
    assert.deepEqual(entries.map(({ kind }) => kind), ["conversion", "impression"]);
});

test("a frame whose parent changed its objects first harms only itself", async (t) => {
    const tab = await active(t, "site");
    const outcome = await tab.evaluate(async () => {
        const frame = document.createElement("iframe");
        document.body.append(frame);
        const inner = /** @type {any} */ (frame.contentWindow);
        inner.MessageChannel = inner.JSON = inner.Promise = undefined;
        inner.postMessage("bigbird-attribution", "*", [new MessageChannel().port1]);
        await new Promise((resolve) => setTimeout(resolve, 100));
        // Where it still works, it works as this page.
        const saved = inner.navigator.attribution?.saveImpression({ histogramIndex: 1 });
        const limit = new Promise((resolve) => setTimeout(resolve, 2000, "no answer"));
        await Promise.race([Promise.resolve(saved).catch(() => undefined), limit]);
        const own = /** @type {any} */ (navigator).attribution;
        return own.saveImpression({ histogramIndex: 2 }).then(() => "ok", String);
    });
    assert.equal(outcome, "ok");
    for (const entry of await historyOf(t, "site", 1)) assert.equal(entry.site, t.host("site"));
});

test("messages that a page makes up reach nobody", async (t) => {
    const tab = await active(t, "site");
    const heard = await tab.evaluate(async () => {
        /** @type {string[]} */
        const heard = [];
        addEventListener("message", ({ data }) => heard.push(`window: ${data}`));
        const { port1, port2 } = new MessageChannel();
        port1.onmessage = ({ data }) => heard.push(`port: ${data}`);
        // What the extension's own script sends, and what the background listens to.
        postMessage("bigbird-attribution", "*", [port2]);
        port1.postMessage(`[1,"measureConversion",{"histogramSize":5}]`);
        for (const type of ["call", "input"]) {
            const detail = { type, act: "click", text: `[1,"saveImpression",{}]` };
            dispatchEvent(new CustomEvent("bigbird-attribution", { detail }));
            postMessage(detail, "*");
        }
        // Web pages have no way to the extension's messages.
        const { chrome, browser } = /** @type {any} */ (globalThis);
        for (const api of [chrome, browser]) {
            if (api?.runtime?.sendMessage) heard.push("runtime.sendMessage");
            if (api?.runtime?.connect) heard.push("runtime.connect");
        }
        await new Promise((resolve) => setTimeout(resolve, 500));
        return heard.filter((text) => !text.startsWith("window: [object"));
    });
    // The page hears its own message, and nothing comes back from the port.
    assert.deepEqual(heard, ["window: bigbird-attribution"]);
    assert.deepEqual(await history(t, "site"), []);
});

test("a page that is not secure finds no way to the API", async (t) => {
    t.page("plain", "/", BUTTON);
    const tab = await t.open(`http://${t.host("plain")}/`);
    await tab.click("#go");
    const heard = await tab.evaluate(async () => {
        /** @type {string[]} */
        const heard = [];
        const { port1, port2 } = new MessageChannel();
        port1.onmessage = ({ data }) => heard.push(data);
        // What the extension's own script would send in a secure page.
        postMessage("bigbird-attribution", "*", [port2]);
        await new Promise((resolve) => setTimeout(resolve, 100));
        port1.postMessage(`[1,"saveImpression",{"histogramIndex":1}]`);
        await new Promise((resolve) => setTimeout(resolve, 1000));
        return heard;
    });
    assert.deepEqual(heard, []);
    assert.deepEqual(await history(t, "plain"), []);
});

test("sites, user actions and privacy cannot be claimed in options", async (t) => {
    const tab = await active(t, "site");
    const claims = {
        site: t.host("bank"),
        intermediarySite: t.host("bank"),
        userAction: 7,
        actionLabel: "made up",
        private: true,
        querier: "intermediary",
        event: "clearBrowsingHistoryForAttribution",
        id: 1,
    };
    assert.equal((await save(tab, { histogramIndex: 1, ...claims })).error, undefined);
    assert.equal((await measure(tab, { ...CHEAP, ...claims })).error, undefined);
    const entries = await historyOf(t, "site", 2);
    for (const { site, intermediarySite, userAction, actionLabel } of entries) {
        assert.equal(site, t.host("site"));
        assert.equal(intermediarySite, undefined);
        assert.notEqual(userAction, 7);
        assert.match(actionLabel, /^a click on /);
    }
    assert.deepEqual(await history(t, "bank"), []);
});

test("calls that are too large are refused, and the next one works", async (t) => {
    const tab = await active(t, "site");
    const long = "x".repeat(1_000_000);
    const outcomes = [
        await save(tab, { histogramIndex: 1, conversionSites: [long] }),
        await measure(tab, { ...CHEAP, aggregationService: long }),
        await call(tab, "measureConversion", {
            ...CHEAP,
            credit: Array.from({ length: 50_000 }, () => 0.5),
        }),
    ];
    for (const { error } of outcomes) {
        assert.match(error ?? "ok", /^(QuotaExceededError|RangeError|SyntaxError)$/);
    }
    assert.equal((await save(tab, { histogramIndex: 1 })).error, undefined);
});

test("a page that floods is refused, and others notice nothing", { limit: 120 }, async (t) => {
    const flooder = await active(t, "flooder");
    const shop = await active(t, "shop");
    const flood = flooder.evaluate(async (options) => {
        const { attribution } = /** @type {any} */ (navigator);
        /** @type {Record<string, number>} */
        const counts = {};
        const count = (/** @type {string} */ name) => {
            counts[name] = (counts[name] ?? 0) + 1;
        };
        const calls = [];
        for (let at = 0; at < 3000; at += 1) {
            const made = at % 2
                ? attribution.measureConversion(options)
                : attribution.saveImpression({ histogramIndex: 1 });
            calls.push(made.then(
                (/** @type {any} */ result) => count(result.report ? "report" : "saved"),
                (/** @type {any} */ error) => count(error.name),
            ));
        }
        await Promise.all(calls);
        return counts;
    }, CHEAP);
    const honest = await measure(shop, { ...CHEAP, impressionSites: [t.host("nobody")] });
    assert.deepEqual(honest.keys, ["report"], honest.message);
    const counts = await flood;
    const allowed = ["QuotaExceededError", "report", "saved"];
    for (const name of Object.keys(counts)) assert.ok(allowed.includes(name), name);
    const sum = Object.values(counts).reduce((sum, count) => sum + count, 0);
    assert.equal(sum, 3000);
    assert.ok(counts.QuotaExceededError > 0);
    const [entry] = await historyOf(t, "shop", 1);
    assert.equal(entry.outcome, "nothing", "the honest conversion was taken");
});

test("pages cannot open or read the extension's own pages", async (t) => {
    const tab = await active(t, "site");
    const url = `${t.driver.extensionOrigin}/internals.html`;
    const facts = await tab.evaluate(async (url) => {
        const fetched = await fetch(url).then(() => "read", () => "refused");
        const frame = document.createElement("iframe");
        const loaded = new Promise((resolve) => {
            frame.onload = () => resolve("loaded");
            frame.onerror = () => resolve("refused");
            setTimeout(resolve, 1000, "refused");
        });
        frame.src = url;
        document.body.append(frame);
        await loaded;
        let inside = "refused";
        try {
            inside = frame.contentDocument?.querySelector("main") ? "read" : "refused";
        } catch {
            // It is another origin.
        }
        return [fetched, inside];
    }, url);
    assert.deepEqual(facts, ["refused", "refused"]);
});
