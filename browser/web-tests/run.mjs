#!/usr/bin/env node
// Runs the tests of the extension in Chromium and Firefox, at the same time, and then the tour of
// the demonstration. With --only or --self-test there is no tour.
//
//     node browser/web-tests/run.mjs [--browser NAME] [--only PATTERN] [--jobs N] [--self-test]

import { readdir } from "node:fs/promises";
import path from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { parseArgs } from "node:util";
import { browserNames, startBrowser, withLimit } from "./browser.mjs";
import { Driver } from "./driver.mjs";
import { WebServer } from "./server.mjs";
import { beginFile, TestContext, tests } from "./suite.mjs";
import { tour } from "./tour.mjs";

/** @typedef {import("./browser.mjs").BrowserName} BrowserName */
/** @typedef {import("./suite.mjs").TestCase} TestCase */

const HERE = path.dirname(fileURLToPath(import.meta.url));

/** How long a test may take unless it says otherwise: ten times what one needs. */
const TEST_LIMIT = 60;

const { values: flags } = parseArgs({
    options: {
        browser: { type: "string" },
        only: { type: "string" },
        jobs: { type: "string", default: "4" },
        "self-test": { type: "boolean", default: false },
        verbose: { type: "boolean", default: false },
    },
});

// What a test still waits for when it fails or ends is rejected with its tabs, and is not news.
process.on("unhandledRejection", (reason) => {
    if (flags.verbose) console.log(`rejected, and nobody waits for it: ${oneLine(reason)}`);
});

process.exit((await main()) ? 0 : 1);

async function main() {
    const folder = path.join(HERE, flags["self-test"] ? "harness-self-test" : "tests");
    const setup = await import(pathToFileURL(path.join(folder, "setup.mjs")).href);
    await loadTests(folder);
    const pattern = new RegExp(flags.only ?? "", "i");
    const chosen = tests.filter(({ file, name }) => pattern.test(`${file}: ${name}`));
    const names = browserNames(flags.browser);
    const results = await Promise.all(names.map((name) => runBrowser(name, setup, chosen)));
    for (const { name, version, passed, failed, seconds } of results) {
        console.log(`${name} (${version}): ${passed} passed, ${failed} failed in ${seconds} s`);
    }
    // The tour comes last and alone, because it is about what a person sees.
    const whole = flags.only === undefined && !flags["self-test"];
    const counts = whole ? [...results, await tour(names, { verbose: flags.verbose })] : results;
    const passed = counts.reduce((sum, result) => sum + result.passed, 0);
    const failed = counts.reduce((sum, result) => sum + result.failed, 0);
    console.log(`${passed} passed, ${failed} failed`);
    return failed === 0 && passed > 0;
}

/** @param {string} folder */
async function loadTests(folder) {
    const files = (await readdir(folder)).filter((name) => name.endsWith(".test.mjs")).sort();
    for (const file of files) {
        beginFile(file.replace(".test.mjs", ""));
        await import(pathToFileURL(path.join(folder, file)).href);
    }
}

/**
 * Runs the tests in one browser. A browser that dies or does not start fails all that is left.
 *
 * @param {BrowserName} name
 * @param {{ options: (name: BrowserName) => Promise<any>, pages: string }} setup
 * @param {TestCase[]} chosen
 */
async function runBrowser(name, setup, chosen) {
    const begin = performance.now();
    const mine = chosen.filter(({ options }) => options.browsers?.includes(name) ?? true);
    const result = { name, version: "not started", passed: 0, failed: 0, seconds: "0" };
    const server = await WebServer.start(setup.pages);
    try {
        const options = await setup.options(name);
        const browser = await startBrowser(name, { ...options, server });
        result.version = browser.version;
        try {
            await runTests(new Driver(browser), server, mine, result);
        } finally {
            await browser.close();
        }
    } catch (error) {
        console.log(`${name}: ${oneLine(error)}`);
    }
    await server.stop();
    result.failed = mine.length - result.passed;
    result.seconds = ((performance.now() - begin) / 1000).toFixed(1);
    return result;
}

/**
 * Runs tests beside each other, and then one by one those that want to be alone.
 *
 * @param {Driver} driver
 * @param {WebServer} server
 * @param {TestCase[]} mine
 * @param {{ passed: number }} result
 */
async function runTests(driver, server, mine, result) {
    let dead = false;
    driver.ended.then(() => {
        dead = true;
    });
    const runFrom = async (/** @type {TestCase[]} */ queue) => {
        for (let next = queue.shift(); next !== undefined && !dead; next = queue.shift()) {
            // A driver may lose a frame or a window on a busy machine. What is really broken fails
            // twice.
            const passed = (await runTest(driver, server, next, "RETRIED")) ||
                (!dead && (await runTest(driver, server, next, "FAILED")));
            if (passed) result.passed += 1;
        }
    };
    const shared = mine.filter(({ options }) => !options.alone);
    const lanes = Array.from({ length: Number(flags.jobs) }, () => runFrom(shared));
    await Promise.all(lanes);
    await runFrom(mine.filter(({ options }) => options.alone));
    if (dead) throw new Error(`${await driver.ended}; the tests that were left count as failed`);
}

/**
 * Runs one test, and prints a line if it fails.
 *
 * @param {Driver} driver
 * @param {WebServer} server
 * @param {TestCase} test
 * @param {"FAILED" | "RETRIED"} word what a failure is called
 */
async function runTest(driver, server, { file, name, options, run }, word) {
    const begin = performance.now();
    const context = new TestContext(driver, server);
    const ended = driver.ended.then((how) => {
        throw new Error(how);
    });
    /** @type {unknown} */
    let failure;
    try {
        const limit = 1000 * (options.limit ?? TEST_LIMIT);
        await withLimit(Promise.race([run(context), ended]), limit, "the test");
    } catch (error) {
        failure = error;
    }
    try {
        await withLimit(Promise.race([context.finish(), ended]), 30_000, "closing the test's tabs");
    } catch (error) {
        failure ??= error;
    }
    const seconds = ((performance.now() - begin) / 1000).toFixed(1);
    const title = `${driver.name}: ${file}: ${name}`;
    if (failure !== undefined) {
        console.log(`${word} ${title} (${seconds} s): ${oneLine(failure)}`);
        if (flags.verbose && failure instanceof Error) console.log(failure.stack);
    } else if (flags.verbose) {
        console.log(`passed ${title} (${seconds} s)`);
    }
    return failure === undefined;
}

/** @param {unknown} error */
function oneLine(error) {
    const text = error instanceof Error ? error.message : String(error);
    return text.replaceAll(/\s+/g, " ").trim().slice(0, 600);
}
