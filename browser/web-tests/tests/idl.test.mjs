// The interfaces of the draft's IDL: every option, every conversion, every error.

import assert from "node:assert/strict";
import { test } from "../suite.mjs";
import { active, BUTTON, CHEAP, measure, save, SERVICE } from "./support.mjs";

test("the interfaces have the form of the IDL", async (t) => {
    const tab = await t.open(t.page("site", "/", BUTTON));
    const facts = await tab.evaluate(() => {
        const global = /** @type {any} */ (globalThis);
        const { attribution } = global.navigator;
        const illegal = (/** @type {any} */ type) => {
            try {
                new type();
                return "constructed";
            } catch (error) {
                return /** @type {Error} */ (error).name;
            }
        };
        const own = Object.getOwnPropertyDescriptor(Navigator.prototype, "attribution");
        let stranger = "";
        try {
            own?.get?.call({});
        } catch (error) {
            stranger = /** @type {Error} */ (error).name;
        }
        return {
            same: attribution === global.navigator.attribution,
            instance: attribution instanceof global.Attribution,
            tags: [String(attribution), String(attribution.aggregationServices)],
            services: attribution.aggregationServices
                instanceof global.AttributionAggregationServices,
            sameServices: attribution.aggregationServices === attribution.aggregationServices,
            illegal: [illegal(global.Attribution), illegal(global.AttributionAggregationServices)],
            onPrototype: own !== undefined && own.enumerable && own.set === undefined,
            stranger,
            lengths: [attribution.saveImpression.length, attribution.measureConversion.length],
            left: Object.keys(global).filter((key) => /bigbird/i.test(key)),
        };
    });
    assert.deepEqual(facts, {
        same: true,
        instance: true,
        tags: ["[object Attribution]", "[object AttributionAggregationServices]"],
        services: true,
        sameServices: true,
        illegal: ["TypeError", "TypeError"],
        onPrototype: true,
        stranger: "TypeError",
        lengths: [1, 1],
        left: [],
    });
});

test("aggregationServices is a map that pages can read and not change", async (t) => {
    const tab = await t.open(t.page("site", "/", BUTTON));
    const facts = await tab.evaluate((service) => {
        const { aggregationServices: map } = /** @type {any} */ (navigator).attribution;
        /** @type {unknown[]} */
        const each = [];
        map.forEach((/** @type {any} */ value, /** @type {any} */ key) => each.push([key, value]));
        // As text, because a driver may pass an object that occurs twice only once.
        return JSON.stringify({
            size: map.size,
            entries: [...map],
            keys: [...map.keys()],
            values: [...map.values()],
            each,
            has: [map.has(service), map.has("https://other.example")],
            get: [map.get(service), map.get("https://other.example") ?? null],
            changes: ["set", "delete", "clear"].map((name) => typeof map[name]),
        });
    }, SERVICE);
    const entry = { protocol: "dap-18-histogram" };
    assert.deepEqual(JSON.parse(facts), {
        size: 1,
        entries: [[SERVICE, entry]],
        keys: [SERVICE],
        values: [entry],
        each: [[SERVICE, entry]],
        has: [true, false],
        get: [entry, null],
        changes: ["undefined", "undefined", "undefined"],
    });
});

test("pages that are not secure have no API", async (t) => {
    t.page("plain", "/", BUTTON);
    const tab = await t.open(`http://${t.host("plain")}/`);
    const facts = await tab.evaluate(() => [
        isSecureContext,
        "attribution" in navigator,
        "Attribution" in globalThis,
        "AttributionAggregationServices" in globalThis,
    ]);
    assert.deepEqual(facts, [false, false, false, false]);
});

const index = { histogramIndex: 1 };
/** @param {number} count */
const sites = (count) => Array.from({ length: count }, (_, at) => `site${at}.example`);

/** @type {[object, string][]} the options, and the name of the error or `ok` */
const IMPRESSIONS = [
    [index, "ok"],
    [{}, "TypeError"],
    [{ histogramIndex: "3" }, "ok"],
    [{ histogramIndex: -1 }, "RangeError"],
    [{ histogramIndex: 2 ** 32 }, "ok"],
    [{ histogramIndex: 1e6 }, "RangeError"],
    [{ histogramIndex: 1.9 }, "ok"],
    [{ ...index, matchValue: 2 ** 32 + 7 }, "ok"],
    [{ ...index, matchValue: -1 }, "ok"],
    [{ ...index, lifetimeDays: 0 }, "RangeError"],
    [{ ...index, lifetimeDays: 1 }, "ok"],
    [{ ...index, lifetimeDays: 4_000_000_000 }, "ok"],
    [{ ...index, priority: 2 ** 31 }, "ok"],
    [{ ...index, priority: -(2 ** 31) }, "ok"],
    [{ ...index, conversionSites: "shop.example" }, "TypeError"],
    [{ ...index, conversionSites: 7 }, "TypeError"],
    [{ ...index, conversionSites: {} }, "TypeError"],
    [{ ...index, conversionSites: [] }, "ok"],
    [{ ...index, conversionSites: ["shop.example", "www.shop.example"] }, "ok"],
    [{ ...index, conversionSites: ["example"] }, "SyntaxError"],
    [{ ...index, conversionSites: ["https://shop.example"] }, "SyntaxError"],
    [{ ...index, conversionSites: ["bücher.example"] }, "ok"],
    [{ ...index, conversionSites: [null] }, "SyntaxError"],
    [{ ...index, conversionSites: sites(1000) }, "RangeError"],
    [{ ...index, conversionCallers: ["ads.example"] }, "ok"],
    [{ ...index, conversionCallers: ["not a site"] }, "SyntaxError"],
    [{ ...index, conversionCallers: sites(1000) }, "RangeError"],
    [{ ...index, unknown: "ignored" }, "ok"],
];

test("saveImpression converts and checks its options", async (t) => {
    const tab = await active(t, "news");
    for (const [options, expected] of IMPRESSIONS) {
        const { keys, error, type, message } = await save(tab, options);
        const name = JSON.stringify(options).slice(0, 80);
        assert.equal(error ?? "ok", expected, `${name}: ${message}`);
        const constructor = expected === "SyntaxError" ? "DOMException" : expected;
        assert.equal(type ?? "ok", constructor, name);
        if (expected === "ok") assert.deepEqual(keys, []);
    }
});

/** @type {[object, string][]} */
const CONVERSIONS = [
    [{}, "TypeError"],
    [{ aggregationService: SERVICE }, "TypeError"],
    [{ histogramSize: 5 }, "TypeError"],
    [{ ...CHEAP, aggregationService: "https://unknown.example" }, "ReferenceError"],
    [{ ...CHEAP, aggregationService: `${SERVICE}/` }, "ReferenceError"],
    [{ ...CHEAP, epsilon: 0 }, "RangeError"],
    [{ ...CHEAP, epsilon: -1 }, "RangeError"],
    [{ ...CHEAP, epsilon: 1e9 }, "RangeError"],
    [{ ...CHEAP, epsilon: "not a number" }, "TypeError"],
    [{ ...CHEAP, histogramSize: 0 }, "RangeError"],
    [{ ...CHEAP, histogramSize: 1_000_000 }, "RangeError"],
    [{ ...CHEAP, lookbackDays: 0 }, "RangeError"],
    [{ ...CHEAP, matchValues: 1 }, "TypeError"],
    [{ ...CHEAP, matchValues: Array.from({ length: 100_00 }, (_, at) => at) }, "RangeError"],
    [{ ...CHEAP, impressionSites: ["com"] }, "SyntaxError"],
    [{ ...CHEAP, impressionSites: sites(1000) }, "RangeError"],
    [{ ...CHEAP, impressionCallers: ["a b"] }, "SyntaxError"],
    [{ ...CHEAP, impressionCallers: sites(1000) }, "RangeError"],
    [{ ...CHEAP, credit: [] }, "RangeError"],
    [{ ...CHEAP, credit: [0] }, "RangeError"],
    [{ ...CHEAP, credit: [1, -1] }, "RangeError"],
    [{ ...CHEAP, credit: ["x"] }, "TypeError"],
    [{ ...CHEAP, credit: [1e308, 1e308] }, "RangeError"],
    [{ ...CHEAP, value: 0 }, "RangeError"],
    [{ ...CHEAP, value: 2 }, "RangeError"],
    [{ ...CHEAP, maxValue: 0 }, "RangeError"],
];

test("measureConversion converts and checks its options", async (t) => {
    const tab = await active(t, "shop");
    for (const [options, expected] of CONVERSIONS) {
        const { error, type, message } = await measure(tab, options);
        const name = JSON.stringify(options).slice(0, 80);
        assert.equal(error ?? "ok", expected, `${name}: ${message}`);
        const constructor = expected === "SyntaxError" ? "DOMException" : expected;
        assert.equal(type, constructor, name);
    }
});

test("measureConversion takes every option and gives a Uint8Array", async (t) => {
    const tab = await active(t, "shop");
    const all = {
        ...CHEAP,
        lookbackDays: 7,
        matchValues: [1, 2],
        impressionSites: ["news.example"],
        impressionCallers: ["ads.example"],
        credit: [0.5, 0.25, 0.25],
        value: 3,
        maxValue: 7,
    };
    const facts = await tab.evaluate(async (options) => {
        const { attribution } = /** @type {any} */ (navigator);
        const result = await attribution.measureConversion(options);
        const plain = Object.getPrototypeOf(result) === Object.prototype;
        return [plain, Object.keys(result), result.report instanceof Uint8Array,
            result.report.length > 500];
    }, all);
    assert.deepEqual(facts, [true, ["report"], true, true]);
});

test("values that JSON cannot carry are converted as Web IDL says", async (t) => {
    const tab = await active(t, "news");
    const outcomes = await tab.evaluate(async () => {
        const { attribution } = /** @type {any} */ (navigator);
        const own = new Error("thrown by the page");
        const tries = {
            nothing: () => attribution.saveImpression(),
            null: () => attribution.saveImpression(null),
            text: () => attribution.saveImpression("options"),
            symbol: () => attribution.saveImpression({ histogramIndex: Symbol("x") }),
            bigint: () => attribution.saveImpression({ histogramIndex: 1n }),
            nan: () => attribution.saveImpression({ histogramIndex: NaN }),
            object: () => attribution.saveImpression({ histogramIndex: { valueOf: () => 3 } }),
            set: () => attribution.saveImpression({
                histogramIndex: 0,
                conversionSites: new Set(["shop.example"]),
            }),
            generator: () => attribution.saveImpression({
                histogramIndex: 0,
                conversionSites: (function* () {
                    yield "shop.example";
                })(),
            }),
            throws: () => attribution.saveImpression({
                get histogramIndex() {
                    throw own;
                },
            }),
            surrogate: () => attribution.saveImpression({
                histogramIndex: 0,
                conversionSites: ["\ud800.example"],
            }),
            infinite: () => attribution.measureConversion({
                aggregationService: "https://agg.example",
                histogramSize: 5,
                epsilon: Infinity,
            }),
            stranger: () => attribution.saveImpression.call({}, { histogramIndex: 1 }),
        };
        /** @type {Record<string, string>} */
        const outcomes = {};
        for (const [name, attempt] of Object.entries(tries)) {
            try {
                // A call never throws: what is wrong rejects its promise.
                const promise = attempt();
                outcomes[name] = await promise.then(() => "ok", (/** @type {any} */ error) =>
                    error === own ? "own" : error.name);
            } catch {
                outcomes[name] = "thrown";
            }
        }
        return outcomes;
    });
    assert.deepEqual(outcomes, {
        nothing: "TypeError",
        null: "TypeError",
        text: "TypeError",
        symbol: "TypeError",
        bigint: "TypeError",
        nan: "ok",
        object: "ok",
        set: "ok",
        generator: "ok",
        throws: "own",
        surrogate: "SyntaxError",
        infinite: "TypeError",
        stranger: "TypeError",
    });
});
