#!/usr/bin/env node
// Measures the extension: where the time of a call goes, what memory it takes, what a flood does to
// others, and how many bits per call the time of an answer tells. It prints numbers and asserts
// nothing. Not part of CI.
//
//     node browser/web-tests/bench.mjs [--browser NAME] [--samples N] [--only PART|PART…]
//
// The parts are: parts, memory, flood, bits.

import { spawn } from "node:child_process";
import { readdir, readFile } from "node:fs/promises";
import { parseArgs } from "node:util";
import { startBrowser } from "./browser.mjs";
import { Driver, pause } from "./driver.mjs";
import { WebServer } from "./server.mjs";
import { TestContext } from "./suite.mjs";
import * as setup from "./tests/setup.mjs";
import { active, ask, CHEAP, measure, save, seeAd } from "./tests/support.mjs";

/** @typedef {import("./browser.mjs").BrowserName} BrowserName */

const { values: flags } = parseArgs({
    options: {
        browser: { type: "string" },
        samples: { type: "string", default: "2000" },
        only: { type: "string", default: "parts|memory|flood|bits" },
    },
});

const wanted = new RegExp(flags.only);
/** @type {BrowserName[]} */
const browsers = flags.browser ? [/** @type {BrowserName} */ (flags.browser)]
    : ["chromium", "firefox"];
if (wanted.test("parts")) await hostParts();
for (const name of browsers) await inBrowser(name);

/** @param {number[]} values */
function summary(values) {
    const sorted = [...values].sort((a, b) => a - b);
    const at = (/** @type {number} */ share) =>
        sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))].toFixed(1);
    return `median ${at(0.5)} ms, 95% ${at(0.95)} ms, most ${at(1)} ms (${sorted.length} calls)`;
}

/** What the host takes, without a browser: frames in, frames out. */
async function hostParts() {
    const { host } = await setup.options("chromium");
    const args = [...(host.args ?? [])];
    args[args.indexOf("--release-after") + 1] = "1";
    const child = spawn(host.command, args, { stdio: ["pipe", "pipe", "inherit"] });
    /** @type {Map<number, (answer: any) => void>} */
    const waiting = new Map();
    let held = Buffer.alloc(0);
    child.stdout.on("data", (bytes) => {
        held = Buffer.concat([held, bytes]);
        while (held.length >= 4 && held.length >= 4 + held.readUInt32LE(0)) {
            const end = 4 + held.readUInt32LE(0);
            const answer = JSON.parse(held.subarray(4, end).toString());
            held = held.subarray(end);
            waiting.get(answer.id)?.(answer);
        }
    });
    let last = 0;
    const send = (/** @type {object} */ request) => new Promise((resolve) => {
        last += 1;
        waiting.set(last, resolve);
        const text = Buffer.from(JSON.stringify({ ...request, id: last }));
        const length = Buffer.alloc(4);
        length.writeUInt32LE(text.length);
        child.stdin.write(Buffer.concat([length, text]));
    });
    /** @param {string} name @param {(at: number) => object} make */
    const timed = async (name, make) => {
        const times = [];
        for (let at = 0; at < 200; at += 1) {
            const begin = performance.now();
            await send(make(at));
            times.push(performance.now() - begin);
        }
        console.log(`host alone: ${name}: ${summary(times)}`);
    };
    await send({ event: "connect", profile: "bench" });
    await timed("an invalid call (frames and parsing)", () =>
        ({ event: "saveImpression", site: "a.example", options: { histogramIndex: 1e9 } }));
    await timed("status (and a look at the store)", () => ({ event: "status" }));
    for (const histogramSize of [5, 100, 1000]) {
        const options = { ...CHEAP, histogramSize };
        await timed(`a conversion of ${histogramSize} buckets (store, flush and sealing)`, (at) =>
            ({ event: "measureConversion", site: `shop${at}.example`, userAction: at, options }));
    }
    child.stdin.end();
}

/** @param {BrowserName} name */
async function inBrowser(name) {
    const server = await WebServer.start(setup.pages);
    const browser = await startBrowser(name, { ...(await setup.options(name)), server });
    const driver = new Driver(browser);
    const t = new TestContext(driver, server);
    try {
        if (wanted.test("parts")) await relay(name, t);
        if (wanted.test("memory")) await memory(name, t);
        if (wanted.test("flood")) await flood(name, t);
        if (wanted.test("bits")) await bits(name, t);
    } finally {
        await t.finish();
        await browser.close();
        await server.stop();
    }
}

/**
 * @param {BrowserName} name
 * @param {TestContext} t
 */
async function relay(name, t) {
    const tab = await active(t, "relay");
    await save(tab, { histogramIndex: 1 });
    const times = [];
    for (let at = 0; at < 200; at += 1) times.push((await save(tab, { histogramIndex: -1 })).ms);
    console.log(`${name}: page to background and back, with all checks: ${summary(times)}`);
    const late = [];
    for (let at = 0; at < 40; at += 1) late.push((await measure(tab, CHEAP)).ms - 1500);
    console.log(`${name}: a conversion, beyond the fixed time: ${summary(late)}`);
    const looks = [];
    for (let at = 0; at < 100; at += 1) {
        const begin = performance.now();
        await ask(t, { event: "status" });
        looks.push(performance.now() - begin);
    }
    console.log(`${name}: the internals page to the host and back, with the driver: ` +
        summary(looks));
}

/**
 * @param {BrowserName} name
 * @param {TestContext} t
 */
async function memory(name, t) {
    const tab = await active(t, "memory");
    await measure(tab, CHEAP);
    for (const pid of await t.driver.host.processes()) {
        console.log(`${name}: memory of the native host: ${await resident(pid)}`);
    }
    const heap = await t.driver.evaluateInBackground(() =>
        /** @type {any} */ (performance).memory?.usedJSHeapSize ?? null);
    if (heap) console.log(`${name}: heap of the background: ${(heap / 1e6).toFixed(1)} MB`);
    const folder = t.driver.folder;
    for (const entry of await readdir("/proc")) {
        if (!/^\d+$/.test(entry)) continue;
        const file = await readFile(`/proc/${entry}/cmdline`, "utf8").catch(() => "");
        const extension = /--extension-process|extension$|webextension/i.test(file);
        if (extension && file.includes(folder.split("/").at(-1) ?? folder)) {
            console.log(`${name}: memory of the extension's process: ${await resident(entry)}`);
        }
    }
}

/** @param {string | number} pid */
async function resident(pid) {
    const status = await readFile(`/proc/${pid}/status`, "utf8").catch(() => "");
    const kilobytes = Number(/VmRSS:\s+(\d+)/.exec(status)?.[1] ?? 0);
    return `${(kilobytes / 1000).toFixed(0)} MB`;
}

/**
 * Pages call more and more often. Another site's conversions must be on time, and taken.
 *
 * @param {BrowserName} name
 * @param {TestContext} t
 */
async function flood(name, t) {
    const flooder = await active(t, "flooder");
    const honest = await active(t, "honest");
    for (const rate of [0, 10, 100, 1000, 10_000]) {
        await flooder.evaluate((rate, options) => {
            const global = /** @type {any} */ (globalThis);
            clearInterval(global.flooding);
            let calls = 0;
            const begin = performance.now();
            if (rate > 0) {
                global.flooding = setInterval(() => {
                    const due = ((performance.now() - begin) * rate) / 1000;
                    for (; calls < due; calls += 1) {
                        global.navigator.attribution.measureConversion(options)
                            .catch(() => undefined);
                    }
                }, 10);
            }
        }, rate, CHEAP);
        const late = [];
        for (let at = 0; at < 6; at += 1) late.push((await measure(honest, CHEAP)).ms - 1500);
        const { missed } = await ask(t, { event: "status" });
        const found = await ask(t, { event: "history", site: t.host("honest") });
        console.log(`${name}: another page makes ${rate} conversions a second: honest ones are ` +
            `late by ${summary(late)}; ${found.history.length} taken so far, ${missed} missed`);
    }
    await flooder.evaluate(() => clearInterval(/** @type {any} */ (globalThis).flooding));
    await pause(2000);
}

/**
 * Estimates how many bits the time of an answer tells about whether it was charged: the best
 * threshold on one half of the samples is tried on the other half.
 *
 * @param {BrowserName} name
 * @param {TestContext} t
 */
async function bits(name, t) {
    const samples = Number(flags.samples);
    await seeAd(t, "news");
    const tabs = [];
    for (let at = 0; at < 4; at += 1) tabs.push(await active(t, `shop${at}`));
    /** @type {{ charged: boolean, ms: number }[]} */
    const seen = [];
    let made = 0;
    const one = async (/** @type {import("./driver.mjs").Tab} */ tab) => {
        while (made < samples) {
            made += 1;
            const charged = Math.random() < 0.5;
            const impressionSites = [t.host(charged ? "news" : "nobody")];
            const { ms } = await measure(tab, { ...CHEAP, epsilon: 1e-4, impressionSites });
            seen.push({ charged, ms });
        }
    };
    // Four calls of a site may be on their way at once.
    await Promise.all(tabs.flatMap((tab) => [one(tab), one(tab), one(tab)]));
    const half = Math.floor(seen.length / 2);
    const [learn, use] = [seen.slice(0, half), seen.slice(half)];
    const right = (/** @type {typeof seen} */ list, /** @type {number} */ limit) =>
        list.filter(({ charged, ms }) => charged === ms > limit).length / list.length;
    let best = 0;
    let limit = 0;
    for (const { ms } of learn) {
        const share = Math.abs(right(learn, ms) - 0.5);
        if (share > best) [best, limit] = [share, ms];
    }
    const share = right(use, limit);
    const entropy = (/** @type {number} */ p) =>
        p <= 0 || p >= 1 ? 0 : -p * Math.log2(p) - (1 - p) * Math.log2(1 - p);
    const margin = 1.96 * Math.sqrt(0.25 / use.length);
    const ofKind = (/** @type {boolean} */ kind) =>
        seen.filter(({ charged }) => charged === kind).map(({ ms }) => ms - 1500);
    console.log(`${name}: beyond the fixed time, charged: ${summary(ofKind(true))}`);
    console.log(`${name}: beyond the fixed time, nothing found: ${summary(ofKind(false))}`);
    console.log(`${name}: guessing from time is right in ${(100 * share).toFixed(1)}% ` +
        `(±${(100 * margin).toFixed(1)}): ${(1 - entropy(share)).toFixed(4)} bits per call; ` +
        `without any signal up to ${(1 - entropy(0.5 + margin)).toFixed(4)} would show`);
}
