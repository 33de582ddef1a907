#!/usr/bin/env node
// Makes the tour of the demonstration as a person does, in Chromium and Firefox at the same time:
// clicks through its pages, looks at the internals page, and checks the story that they tell.
//
//     node browser/web-tests/tour.mjs [--browser NAME] [--pictures FOLDER] [--verbose]
//
// The last line is `N passed, M failed`. The environment variable BIGBIRD names the program.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdir, readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs, promisify } from "node:util";
import { browserNames, startBrowser, withLimit } from "./browser.mjs";
import { Demo } from "./demo.mjs";
import { Driver } from "./driver.mjs";
import { ask } from "./tests/support.mjs";

/** @typedef {import("./browser.mjs").BrowserName} BrowserName */
/** @typedef {import("./driver.mjs").Tab} Tab */

const HERE = path.dirname(fileURLToPath(import.meta.url));
const ROOT = path.join(HERE, "..", "..");
const BIGBIRD = process.env.BIGBIRD ?? path.join(ROOT, "target", "release", "bigbird");

/** How long a step may take: far more than one needs. */
const STEP_LIMIT = 120_000;

/** The number of sites that one user action may involve under the rules of Big Bird. */
const DOMAIN_CAP = 2;

const WIDE = { width: 1280, height: 800 };
const LOW = { width: 1280, height: 480 };
const NARROW = { width: 390, height: 844 };

/** The pages of the demonstration. */
const PAGES = [
    "https://guide.example/",
    "https://news.example/",
    "https://blog.example/",
    "https://shop.example/",
    "https://shop.example/results",
    "https://tracker.example/",
    "https://adtech.example/",
    "https://adtech.example/ad?ad=1",
    "https://agg.example/",
];

/**
 * @typedef {object} TourOptions
 * @property {string} [pictures] the folder for pictures, which Chromium takes
 * @property {boolean} [verbose] prints each step
 */

/**
 * Makes the tour in some browsers at the same time.
 *
 * @param {BrowserName[]} names
 * @param {TourOptions} [options]
 * @returns {Promise<{ passed: number, failed: number }>} the number of steps
 */
export async function tour(names, options = {}) {
    const begin = performance.now();
    if (options.pictures !== undefined) await mkdir(options.pictures, { recursive: true });
    const tours = names.flatMap((name) => storiesOf(name).map(([profile, story]) =>
        tell(name, profile, story, options)));
    const results = await Promise.all(tours);
    const passed = results.reduce((sum, result) => sum + result.passed, 0);
    const failed = results.reduce((sum, result) => sum + result.failed, 0);
    const seconds = ((performance.now() - begin) / 1000).toFixed(1);
    console.log(`tour of the demonstration: ${passed} passed, ${failed} failed in ${seconds} s`);
    return { passed, failed };
}

/** A visit of the demonstration with one browser, and what is seen there. */
class Visit {
    /**
     * @param {Driver} driver
     * @param {Tab} tab the tab of the demonstration's pages
     * @param {Tab} internals
     * @param {string | undefined} pictures the folder for pictures, if they are asked for
     */
    constructor(driver, tab, internals, pictures) {
        this.driver = driver;
        this.tab = tab;
        this.internals = internals;
        this.pictures = pictures;
    }

    /**
     * Clicks a link of the page.
     *
     * @param {string} address
     */
    async follow(address) {
        await this.tab.follow(`a[href="${address}"]`);
        const reached = await this.tab.url();
        assert.ok(reached.startsWith(address), `the link to ${address} led to ${reached}`);
    }

    /** Goes back to the first page by the link that every page has. */
    async backToGuide() {
        await this.follow("https://guide.example/");
    }

    /**
     * Waits until an element of a page says something, and returns all that it says.
     *
     * @param {{ evaluate: Tab["evaluate"] }} view
     * @param {string} selector
     * @param {RegExp} words
     */
    async says(view, selector, words) {
        let said = "nothing";
        const found = this.driver.eventually(`${selector} says ${words}`, async () => {
            const read = view.evaluate((selector) =>
                document.querySelector(selector)?.textContent, selector);
            // A page that is on its way elsewhere cannot be asked.
            const text = await read.catch(() => null);
            said = (text ?? "nothing").replaceAll(/\s+/g, " ").trim();
            return words.test(said) ? said : null;
        });
        return found.catch((error) => {
            throw new Error(`${error.message}; it says: ${said}`);
        });
    }

    /**
     * Opens a section of the internals page by its link, waits until it says something, and
     * returns all that it says.
     *
     * @param {string} section such as `budgets`
     * @param {RegExp} words
     */
    async internalsSay(section, words) {
        await this.internals.click(`nav a[href="#${section}"]`);
        return this.says(this.internals, `#section-${section}:not([hidden])`, words);
    }

    /**
     * What the history has about some hosts, oldest first.
     *
     * @param {RegExp} hosts
     * @param {"impression" | "conversion"} kind
     * @returns {Promise<any[]>}
     */
    async history(hosts, kind) {
        const answer = await ask(this, { event: "history" });
        assert.equal(answer.ok, true, answer.message);
        const fits = (/** @type {any} */ entry) => entry.kind === kind && hosts.test(entry.site);
        return answer.history.filter(fits).reverse();
    }

    /**
     * Waits until the history has so many entries about some hosts. Returns them, oldest first.
     *
     * @param {RegExp} hosts
     * @param {"impression" | "conversion"} kind
     * @param {number} count
     */
    async historyHas(hosts, kind, count) {
        return this.driver.eventually(`${count} entries (${kind}) of ${hosts}`, async () => {
            const entries = await this.history(hosts, kind);
            return entries.length >= count ? entries : null;
        });
    }

    /** The global budget of this week: what is consumed, and of how much, in µε. */
    async globalBudget() {
        const answer = await ask(this, { event: "budgets" });
        assert.equal(answer.ok, true, answer.message);
        const found = answer.budgets.find((/** @type {any} */ one) =>
            one.filter === "globalBudget" && one.consumed > 0);
        return found ?? { consumed: 0, capacity: null };
    }

    /**
     * Writes a picture of a page for the documentation, if that is asked for.
     *
     * @param {string} name
     * @param {Tab} tab
     * @param {{ width: number, height: number }} [viewport]
     * @param {"light" | "dark"} [scheme]
     */

    async picture(name, tab, viewport = WIDE, scheme = "light") {
        if (this.pictures === undefined) return;
        const file = path.join(this.pictures, `browser-${name}.png`);
        await this.look(tab, viewport, scheme, () => tab.screenshot(file));
        // Few colours are enough, and a third of the bytes.
        const shrink = ["--force", "--skip-if-larger", "--strip", "--ext", ".png", file];
        await promisify(execFile)("pngquant", shrink).catch((error) => {
            console.log(`${file} is not made smaller: ${oneLine(error)}`);
        });
    }

    /**
     * Does something while a page has another size and colours. Only Chromium can change colours.
     *
     * @param {Tab} tab
     * @param {{ width: number, height: number }} viewport
     * @param {"light" | "dark"} scheme
     * @param {() => Promise<unknown>} action
     */
    async look(tab, viewport, scheme, action) {
        const { page } = tab;
        await page.setViewport({ ...viewport, deviceScaleFactor: 1 });
        const features = [{ name: "prefers-color-scheme", value: scheme }];
        await page.emulateMediaFeatures(features);
        await tab.evaluate(() => window.scrollTo(0, 0));
        await action();
        await page.emulateMediaFeatures([]);
        await page.setViewport(null);
    }

    /**
     * What is wrong with a page for people who see little, or use a keyboard or a narrow screen.
     *
     * @returns {Promise<string[]>}
     */
    async problems() {
        const script = createRequire(import.meta.url).resolve("axe-core/axe.min.js");
        const source = await readFile(script, "utf8");
        await this.tab.page.evaluate(source);
        return this.tab.evaluate(async () => {
            const runOnly = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"];
            const { violations } = await /** @type {any} */ (globalThis).axe.run(document, {
                runOnly,
                resultTypes: ["violations"],
            });
            const found = violations.flatMap((/** @type {any} */ { id, nodes }) =>
                nodes.map((/** @type {any} */ { target }) => `${id} at ${target.join(" ")}`));
            const wider = document.documentElement.scrollWidth - window.innerWidth;
            return wider > 0 ? [...found, `${wider} pixels too wide`] : found;
        });
    }
}

/**
 * A step of a story.
 *
 * @typedef {[name: string, run: (visit: Visit) => Promise<void>]} Step
 */

/** @type {Step} */
const START = ["the first page waits for the visitor", async (visit) => {
    await visit.driver.eventually("the host works", async () =>
        (await ask(visit, { event: "status" })).ok);
    await visit.says(visit.tab, "#own", /no report of yours yet/);
    // Simulated people keep the machine busy, and all reports must be ready in time.
    await visit.says(visit.tab, "#people", /^\d+ simulated people and you have sent \d+ reports/);
}];

/** @type {Step} */
const SEE_AD = ["the newspaper's ad asks to be remembered", async (visit) => {
    await visit.follow("https://news.example/");
    const ad = await visit.tab.child("adtech.example/ad");
    await visit.says(ad, "#told", /^This ad asked your browser to remember it/);
    const [saved] = await visit.historyHas(/^news\.example$/, "impression", 1);
    assert.equal(saved.outcome, "saved");
    assert.equal(saved.intermediarySite, "adtech.example");
    assert.deepEqual(saved.conversionSites, ["shop.example"]);
}];

/** @type {Step} */
const SEE_AD_WITHOUT_SCRIPT = ["the blog's ad is remembered without a script", async (visit) => {
    await visit.picture("demo-news", visit.tab);
    await visit.backToGuide();
    await visit.picture("demo-guide", visit.tab);
    await visit.follow("https://blog.example/");
    const [saved] = await visit.historyHas(/^blog\.example$/, "impression", 1);
    assert.equal(saved.outcome, "saved");
    await visit.internalsSay("ads", /blog\.example.*news\.example/);
}];

/** @type {Step} */
const BUY = ["the shop gets a report, and budgets pay for it", async (visit) => {
    await visit.backToGuide();
    await visit.follow("https://shop.example/");
    await visit.tab.click("#buy");
    await visit.says(visit.tab, "#bought.good", /encrypted bytes/);
    const [bought] = await visit.historyHas(/^shop\.example$/, "conversion", 1);
    assert.equal(bought.outcome, "charged", bought.sentence);
    const { consumed, capacity } = await visit.globalBudget();
    assert.ok(consumed > 0 && consumed < capacity, `${consumed} of ${capacity} is consumed`);
}];

/** @type {Step} */
const LOOK = ["the internals page says why, what it cost and what left", async (visit) => {
    const [bought] = await visit.history(/^shop\.example$/, "conversion");
    const conversions = await visit.internalsSay("conversions", /shop\.example/);
    assert.ok(conversions.includes(bought.sentence), `"${bought.sentence}" in: ${conversions}`);
    await visit.picture("internals-conversions", visit.internals, LOW);
    await visit.internalsSay("budgets", /Global budget.*shop\.example/);
    const left = await visit.internalsSay("reports", /shop\.example/);
    assert.match(left, /agg\.example/);
}];

/** @type {Step} */
const ATTACK = ["the attacker sends the visitor through its Sybils, twice", async (visit) => {
    await visit.backToGuide();
    await visit.follow("https://tracker.example/");
    for (const act of ["save", "measure"]) {
        await visit.tab.click(`a[href="https://sybil1.example/?do=${act}"]`);
        await visit.tab.until((act) =>
            location.href === `https://tracker.example/?done=${act}`
            && document.readyState === "complete", act);
    }
    // Calls are made in the order of the redirects, so the last domain's are the last ones.
    await visit.historyHas(/^sybil12\.example$/, "impression", 1);
    await visit.historyHas(/^sybil12\.example$/, "conversion", 2);
    await visit.says(visit.tab, "#done", /twelve domains again/);
}];

/**
 * Subscribes at the shop, and returns the record of that conversion.
 *
 * @param {Visit} visit
 */
async function subscribe(visit) {
    await visit.backToGuide();
    await visit.follow("https://shop.example/#subscribe");
    await visit.tab.click("#letter");
    await visit.says(visit.tab, "#subscribed.good", /sent the report/);
    const [, subscribed] = await visit.historyHas(/^shop\.example$/, "conversion", 2);
    return subscribed;
}

/**
 * Opens the shop's results, and checks that the visitor's two reports say what they should.
 *
 * @param {Visit} visit
 * @param {[RegExp, RegExp]} own
 */
async function openResults(visit, own) {
    await visit.tab.follow('a[href="/results"]');
    await visit.says(visit.tab, "#summary", /^\d+ reports of \d+ simulated people and you/);
    const rows = await visit.tab.evaluate(() =>
        [...document.querySelectorAll("#rows tr")].map((row) =>
            [...row.querySelectorAll(".number")].map((cell) => Number(cell.textContent))));
    assert.equal(rows.length, 5, "one row for each ad");
    assert.ok(rows.flat().every(Number.isInteger), `sums are numbers: ${JSON.stringify(rows)}`);
    assert.ok(rows.some(([noised, truth]) => noised !== truth), "the sums have noise");
    await visit.says(visit.tab, "#own li:nth-child(1)", own[0]);
    await visit.says(visit.tab, "#own li:nth-child(2)", own[1]);
}

/** True for a call that the domain cap refused. */
const refusedByCap = (/** @type {any} */ { outcome, cause }) =>
    outcome === "domainCap" || cause === "domainCap";

/** @type {Step[]} */
const UNDER_BIG_BIRD = [
    START,
    SEE_AD,
    SEE_AD_WITHOUT_SCRIPT,
    BUY,
    LOOK,
    ATTACK,
    ["the domain cap refuses all Sybils but two", async (visit) => {
        for (const kind of /** @type {const} */ (["impression", "conversion"])) {
            const entries = await visit.history(/^sybil/, kind);
            const actions = new Set(entries.map(({ userAction }) => userAction));
            assert.equal(actions.size, 1, `all redirects belong to one click: ${[...actions]}`);
            const admitted = entries.filter((entry) => !refusedByCap(entry));
            const sites = new Set(admitted.map(({ site }) => site));
            assert.deepEqual([...sites], ["sybil1.example", "sybil2.example"], kind);
            assert.ok(entries.length > admitted.length, `${kind}: others are refused`);
        }
        await visit.internalsSay("actions", /sites refused \(the domain cap allows 2/);
        await visit.picture("internals-actions", visit.internals);
    }],
    ["the budgets hold", async (visit) => {
        const { consumed, capacity } = await visit.globalBudget();
        const [bought] = await visit.history(/^shop\.example$/, "conversion");
        // Each of the two Sybils can spend its own budget, which is 1.
        const most = 1_000_000 * (bought.epsilon + DOMAIN_CAP);
        assert.ok(consumed <= most && most < capacity, `${consumed} of ${capacity} is consumed`);
        await visit.internalsSay("budgets", /sybil2\.example/);
        await visit.picture("internals-budgets", visit.internals);
        await visit.picture("internals-budgets-narrow", visit.internals, NARROW);
        await visit.internalsSay("overview", /4 ?Ads remembered/);
        await visit.picture("internals-overview-dark", visit.internals, WIDE, "dark");
    }],
    ["the shop's second report is paid as well", async (visit) => {
        const subscribed = await subscribe(visit);
        assert.equal(subscribed.outcome, "charged", subscribed.sentence);
    }],
    ["the shop's results show noised sums next to true ones", async (visit) => {
        await openResults(visit, [/It says: /, /It says: /]);
        await visit.picture("demo-results", visit.tab);
    }],
];

/** @type {Step[]} */
const UNDER_GLOBAL_ONLY = [
    START,
    SEE_AD,
    BUY,
    ATTACK,
    ["the attacker drains the budget that all sites share", async (visit) => {
        const { consumed, capacity } = await visit.globalBudget();
        assert.equal(consumed, capacity);
        const saved = await visit.history(/^sybil/, "impression");
        assert.ok(saved.every(({ outcome }) => outcome === "saved"), "nothing is refused");
    }],
    ["the shop's second report is null, and the internals page says why", async (visit) => {
        const subscribed = await subscribe(visit);
        assert.equal(subscribed.outcome, "null", subscribed.sentence);
        assert.equal(subscribed.cause, "globalBudget", subscribed.sentence);
        const conversions = await visit.internalsSay("conversions", /shop\.example/);
        assert.ok(conversions.includes(subscribed.sentence), `no sentence in: ${conversions}`);
        await visit.picture("internals-null-report", visit.internals, LOW);
    }],
    ["the shop's results show that it says nothing", async (visit) => {
        await openResults(visit, [/It says: /, /It says nothing/]);
    }],
];

/** @type {Step} */
const LOOK_AROUND = ["every page is for everybody: contrast, names, narrow", async (visit) => {
    for (const page of PAGES) {
        await visit.tab.goto(page);
        const check = async () => assert.deepEqual(await visit.problems(), [], page);
        await visit.look(visit.tab, WIDE, "light", check);
        await visit.look(visit.tab, NARROW, "dark", check);
    }
}];

/**
 * The stories that a browser plays, by the profile that sets the rules. Only Chromium can be told
 * to prefer dark pages, so it looks around.
 *
 * @param {BrowserName} name
 * @returns {[profile: string, story: Step[]][]}
 */
const storiesOf = (name) => [
    ["big-bird", UNDER_BIG_BIRD],
    ["global-only", [...UNDER_GLOBAL_ONLY, ...(name === "chromium" ? [LOOK_AROUND] : [])]],
];

if (process.argv[1] === fileURLToPath(import.meta.url)) process.exit((await main()) ? 0 : 1);

async function main() {
    const { values: flags } = parseArgs({
        options: {
            browser: { type: "string" },
            pictures: { type: "string" },
            verbose: { type: "boolean", default: false },
        },
    });
    // What a step still waits for when it fails is rejected with its tabs, and is not news.
    process.on("unhandledRejection", (reason) => {
        if (flags.verbose) console.log(`rejected, and nobody waits for it: ${oneLine(reason)}`);
    });
    const { passed, failed } = await tour(browserNames(flags.browser), flags);
    console.log(`${passed} passed, ${failed} failed`);
    return failed === 0 && passed > 0;
}

/**
 * Plays a story in a browser, until a step fails. The steps that are left count as failed.
 *
 * @param {BrowserName} name
 * @param {string} profile
 * @param {Step[]} story
 * @param {TourOptions} options
 */
async function tell(name, profile, story, { pictures, verbose }) {
    let passed = 0;
    let step = "the start";
    /** @type {(() => Promise<void>)[]} */
    const endings = [];
    try {
        const demo = await Demo.start(BIGBIRD, profile);
        endings.push(() => demo.stop());
        const browser = await startBrowser(name, {
            ...demo.browserOptions,
            // Pictures show pages, not what surrounds them.
            args: name === "chromium" ? ["--hide-scrollbars"] : [],
        });
        endings.push(() => browser.close());
        const driver = new Driver(browser);
        const internals = await driver.openExtensionPage("/internals.html");
        const tab = await driver.open(demo.firstPage);
        const visit = new Visit(driver, tab, internals, name === "chromium" ? pictures : undefined);
        const ended = driver.ended.then((how) => {
            throw new Error(how);
        });
        for (const [title, run] of story) {
            step = title;
            const begin = performance.now();
            await withLimit(Promise.race([run(visit), ended]), STEP_LIMIT, "the step");
            passed += 1;
            const seconds = ((performance.now() - begin) / 1000).toFixed(1);
            if (verbose) console.log(`passed ${name}: tour, ${profile}: ${title} (${seconds} s)`);
        }
    } catch (error) {
        console.log(`FAILED ${name}: tour, ${profile}: ${step}: ${oneLine(error)}`);
        if (verbose && error instanceof Error) console.log(error.stack);
    }
    for (const end of endings.reverse()) {
        await end().catch((error) => console.log(`${name}: ${oneLine(error)}`));
    }
    return { passed, failed: story.length - passed };
}

/** @param {unknown} error */
function oneLine(error) {
    const text = error instanceof Error ? error.message : String(error);
    return text.replaceAll(/\s+/g, " ").trim().slice(0, 600);
}
