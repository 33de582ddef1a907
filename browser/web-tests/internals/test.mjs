/**
 * Tests of the internals page: what it shows, what it sends, and who can use it. Each prints one
 * line if it fails. `node test.mjs [WORDS]` runs those whose names contain the words, in Chromium,
 * or in Firefox with `BROWSER=firefox`.
 */

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { launch, open, serve, settle } from "./page.mjs";

/** A slow machine may take long. A test that waits in vain still ends. */
const PATIENCE = 120_000;

const SECTIONS = ["overview", "budgets", "ads", "conversions", "reports", "actions", "words"];
const SCENES = ["rich", "empty", "host-missing", "store-damaged", "opted-out", "clock-ahead"];
const RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];

const axe = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const { url, server } = await serve();
const browser = await launch(process.env.BROWSER);
/** @type {[string, () => Promise<void>][]} */
const tests = [];
const test = (name, run) => tests.push([name, run]);

/** Runs a test on a page, and fails if the page reports an error. */
const pageTest = (name, scene, options, run) => test(name, async () => {
    const problems = [];
    const page = await open(browser, url, scene, { ...options, problems });
    page.setDefaultTimeout(PATIENCE);
    try {
        await run(page);
        assert.deepEqual(problems, [], "errors of the page");
    } finally {
        await page.close();
    }
});

const text = (page, selector) => page.$eval(selector, (node) => node.textContent);
const visible = (selector) => `.view:not([hidden]) ${selector}`;
const until = (page, check, ...values) => page.waitForFunction(check, { polling: 50 }, ...values);
const sent = (page, event) => page.evaluate((wanted) =>
    globalThis.mock.requests.filter((request) => request.event === wanted), event);
const countOf = (page, selector) => page.$$eval(selector, (nodes) => nodes.length);
const press = async (page, selector) => {
    await page.focus(selector);
    await page.keyboard.press("Enter");
};

/** Opens what is folded, so that its contents are looked at too. */
const unfold = (page) => page.$$eval(visible("details"), (all) => {
    all.forEach((details) => { details.open = true; });
});

// Who can use it.

/** Fails with one line for each violation of the guidelines. */
async function assertAccessible(page) {
    await page.evaluate(axe);
    const found = await page.evaluate((tags) => globalThis.axe.run(document, {
        runOnly: tags,
        resultTypes: ["violations"],
    }), RULES);
    const lines = found.violations.flatMap(({ id, nodes }) =>
        nodes.map(({ target }) => `${id} at ${target.join(" ")}`));
    assert.deepEqual(lines, []);
}

// Contrast depends on the colour scheme and not on the width, so two of the four looks will do.
for (const [dark, width] of [[false, 1280], [true, 320]]) {
    for (const scene of SCENES) {
        for (const section of scene === "rich" ? SECTIONS : ["overview", "conversions"]) {
            const look = `${scene} ${section} ${dark ? "dark" : "light"} ${width}`;
            pageTest(`accessible: ${look}`, scene, { section, dark, width }, async (page) => {
                await unfold(page);
                await assertAccessible(page);
            });
        }
    }
}

pageTest("accessible: a confirmation, and a message", "rich", {}, async (page) => {
    await press(page, ".control > .danger");
    await page.waitForSelector("dialog[open]");
    await assertAccessible(page);
    await press(page, "dialog .danger");
    await page.waitForSelector(".toast.shown");
    await assertAccessible(page);
});

pageTest("accessible: the meaning of a word", "rich", {}, async (page) => {
    await press(page, visible(".word"));
    await page.waitForSelector("#meaning:popover-open");
    await assertAccessible(page);
});

for (const section of SECTIONS) {
    pageTest(`no sideways scrolling: ${section}`, "rich", { section }, async (page) => {
        await unfold(page);
        for (const width of [320, 390, 640, 800, 900, 1024, 1280, 1600]) {
            await page.setViewport({ width, height: 800 });
            const wide = await page.evaluate(() => ({
                page: document.documentElement.scrollWidth - window.innerWidth,
                cut: [...document.querySelectorAll(".view:not([hidden]) *")].filter((node) =>
                    node.getClientRects().length > 0 && !node.closest(".visually-hidden, thead")
                    && node.getBoundingClientRect().right > window.innerWidth + 1)
                    .map((node) => node.className || node.tagName),
            }));
            assert.deepEqual(wide, { page: Math.min(0, wide.page), cut: [] }, `${width} px wide`);
        }
    });
}

pageTest("the first Tab offers to skip the menu", "rich", { section: "budgets" }, async (page) => {
    await page.keyboard.press("Tab");
    assert.equal(await page.evaluate(() => document.activeElement.className), "skip");
    await page.keyboard.press("Enter");
    assert.equal(await page.evaluate(() => document.activeElement.id), "main");
    assert.equal(await page.evaluate(() => location.hash), "#budgets");
});

pageTest("sections open by keyboard and by address", "rich", { section: "words" }, async (page) => {
    for (const section of SECTIONS) {
        await press(page, `nav a[href="#${section}"]`);
        await page.waitForSelector(`#section-${section}:not([hidden])`);
        assert.equal(await countOf(page, ".view:not([hidden])"), 1);
        assert.equal(await text(page, "nav [aria-current]"), await text(page, visible("h1")));
        assert.equal(await page.evaluate(() => document.activeElement.id), `title-${section}`);
    }
    await page.evaluate(() => { location.hash = "#no-such-section/%E0%A4%A"; });
    await page.waitForSelector("#section-overview:not([hidden])");
});

pageTest("a word opens its meaning, and Escape closes it", "rich", {}, async (page) => {
    await press(page, visible(".word"));
    await page.waitForSelector("#meaning:popover-open");
    assert.equal(await text(page, "#meaning h2"), "Epoch");
    assert.ok(await page.evaluate(() => document.activeElement.closest("#meaning") !== null));
    await page.keyboard.press("Escape");
    await until(page, () => document.querySelector("#meaning:popover-open") === null);
    assert.equal(await page.evaluate(() => document.activeElement.className), "word");
    await press(page, visible(".word"));
    await page.keyboard.press("Tab");
    await page.keyboard.press("Enter");
    await page.waitForSelector("#section-words:not([hidden]) .marked");
    assert.match(await text(page, ".marked dt"), /^Epoch/);
});

pageTest("every word that is used is explained", "rich", {}, async (page) => {
    for (const section of SECTIONS) {
        await page.evaluate((id) => { location.hash = id; }, section);
        await page.waitForSelector(`#section-${section}:not([hidden])`);
        await settle(page);
        await unfold(page);
        const unknown = await page.evaluate(() =>
            [...document.querySelectorAll(".word")].filter((button) => {
                button.click();
                const link = document.querySelector("#meaning a")?.getAttribute("href") ?? "";
                return !document.querySelector(`#word-${link.split("/")[1]}`);
            }).map((button) => button.textContent));
        assert.deepEqual(unknown, []);
    }
});

// What it shows.

pageTest("overview: state, epoch, budget and numbers", "rich", {}, async (page) => {
    assert.match(await text(page, ".state h2"), /^On/);
    assert.match(await text(page, visible(".bar-numbers")), /^1\.45 of 8 ε used \(18%\)$/);
    const numbers = await page.$$eval(".number", (all) => all.map((node) => node.textContent));
    assert.deepEqual(numbers, ["8", "6", "3"]);
    const meter = await page.$eval(visible("[role=meter]"), (node) =>
        ["min", "now", "max"].map((end) => node.getAttribute(`aria-value${end}`)));
    assert.deepEqual(meter, ["0", "1.450041", "8"]);
});

for (const [scene, kind, words] of [
    ["empty", "on", /first one begins when a site/],
    ["host-missing", "hostMissing", /bigbird browser install/],
    ["store-damaged", "store", /bigbird store reset/],
    ["opted-out", "off", /Sites cannot tell/],
    ["clock-ahead", "paused", /clock of this computer was far ahead/],
]) {
    pageTest(`overview says what is wrong and what to do: ${scene}`, scene, {}, async (page) => {
        assert.equal(await page.$eval(".state", (node) => node.dataset.kind), kind);
        assert.match(await text(page, "#section-overview"), words);
    });
}

pageTest("budgets: global first, used up, unlimited", "rich", { section: "budgets" },
    async (page) => {
        const groups = await page.$$eval(".epoch:first-child .group", (all) =>
            all.map((node) => node.className.replace("group ", "")));
        assert.deepEqual(groups, ["globalBudget", "querierBudget", "impressionSiteQuota",
            "conversionSiteQuota"]);
        const numbers = await page.$$eval(".epoch:last-child .bar-numbers", (all) =>
            all.map((node) => node.textContent));
        assert.deepEqual(numbers, ["8 of 8 ε used: used up", "1 of 1 ε used: used up",
            "1.2 of 2 ε used (60%)", "1 of 1 ε used: used up", "0.3 ε used, no limit"]);
        const almost = await text(page, ".querierBudget .bar-numbers");
        assert.equal(almost, "0.9999 of 1 ε used (99%)", "not rounded up to full");
        await page.type("#filter-budgets", "SHOES");
        await until(page, () => document.querySelectorAll(".epoch").length === 1);
        assert.equal(await countOf(page, ".epoch .bar"), 2);
    });

pageTest("conversions: one sentence, then everything", "rich", { section: "conversions" },
    async (page) => {
        assert.equal(await countOf(page, ".entries > li"), 6);
        const second = ".entries > li:nth-child(2)";
        assert.match(await text(page, `${second} .sentence`), /global budget .* used up/);
        await press(page, `${second} summary`);
        await page.waitForSelector(`${second} .decision`);
        const bars = await page.$$eval(`${second} .bar`, (all) =>
            all.map((node) => node.textContent));
        assert.equal(bars.length, 4);
        assert.match(bars[1], /8 of 8 ε used, 1 ε asked, short by 1 ε/);
        assert.match(await text(page, `${second} .decisions`), /other 4 epochs/);
        await press(page, `${second} a[href^="#budgets/"]`);
        await page.waitForSelector("#section-budgets:not([hidden])");
        await until(page, () => document.querySelectorAll(".epoch").length === 1);
        assert.equal(await page.$eval("#filter-budgets", (node) => node.value), "shoes.example");
    });

pageTest("reports: when, to whom, how large, which epsilon, totals", "rich",
    { section: "reports" }, async (page) => {
        const cells = await page.$$eval("tbody tr:nth-child(2) td", (all) =>
            all.map((node) => node.textContent));
        assert.deepEqual(cells.slice(1), ["shoes.example", "https://aggregation.example",
            "119.4 kB", "1", "✕Null report"]);
        const totals = await page.$$eval(".totals dd", (all) =>
            all.map((node) => node.textContent));
        assert.deepEqual(totals, ["6", "3", "126.4 kB", "6", "1", "0.5"]);
    });

pageTest("user actions: sites in order, and what the domain cap refused", "rich",
    { section: "actions/401" }, async (page) => {
        await until(page, () => document.querySelectorAll(".action").length === 1);
        const steps = await page.$$eval(".chain li", (all) => all.map((node) => [
            node.querySelector(".host").textContent, node.className]));
        assert.deepEqual(steps, [["portal.example", ""], ["sybil-one.example", ""],
            ["sybil-two.example", "refused"], ["sybil-three.example", "refused"]]);
        assert.match(await text(page, ".action"), /4 sites involved, 2 sites refused/);
    });

pageTest("names and labels of others stay text", "rich", { section: "actions" }, async (page) => {
    assert.equal(await countOf(page, "b"), 0);
    assert.ok((await text(page, "#section-actions")).includes("\u{FFFD}evil label\u{FFFD}"));
    const isolated = await page.$$eval(".host", (all) =>
        all.every((node) => node.tagName === "BDI" && node.dir === "ltr"));
    assert.ok(isolated);
});

pageTest("thousands of records come page by page", "many", { section: "ads" }, async (page) => {
    assert.equal(await countOf(page, "tbody tr"), 50);
    assert.equal(await text(page, visible(".count")), "50 of the newest 1,000 ads");
    assert.equal((await sent(page, "impressions")).length, 5);
    await press(page, visible(".more"));
    assert.equal(await countOf(page, "tbody tr"), 100);
    for (let shown = 100; shown < 1000; shown += 50) {
        await page.click(visible(".more"));
    }
    assert.equal(await text(page, visible(".more")), "Show older ones");
    await page.click(visible(".more"));
    await until(page, () =>
        document.querySelector(".view:not([hidden]) .count").textContent.includes("2,000"));
    await page.type("#filter-ads", "site-96.example");
    await until(page, () =>
        document.querySelector(".view:not([hidden]) .count").textContent.startsWith("20 of"));
});

pageTest("an overview that has not read everything says so", "many", {}, async (page) => {
    await until(page, () => document.querySelector(".number").textContent === "1,000+");
    assert.match(await text(page, visible(".bar-numbers")), /^5 of 8 ε/);
});

// What it keeps while it changes.

pageTest("an update keeps open rows, focus and scroll", "rich",
    { section: "conversions", height: 400 }, async (page) => {
        const last = ".entries > li:last-child";
        await press(page, `${last} summary`);
        await page.waitForSelector(`${last} .decisions`);
        await page.$eval(`${last} summary`, (node) => node.scrollIntoView({ block: "center" }));
        const place = () => page.$eval(`${last} summary`, (node) =>
            Math.round(node.getBoundingClientRect().top));
        const before = await place();
        await page.evaluate(() => globalThis.mock.convert("new.example"));
        await until(page, () => document.querySelector(".entries .host").textContent
            === "new.example");
        assert.ok(await page.$eval(`${last} details`, (node) => node.open));
        assert.ok(await page.$eval(`${last} summary`, (node) => node === document.activeElement));
        await until(page, (selector, top) => Math.abs(Math.round(
            document.querySelector(selector).getBoundingClientRect().top) - top) <= 2,
        `${last} summary`, before);
    });

pageTest("a changed revision is noticed without a push", "rich", {}, async (page) => {
    await page.evaluate(() => globalThis.mock.silentCharge(500_000));
    await until(page, () => document.querySelector(".bar-numbers").textContent
        .startsWith("1.95 of 8"));
});

pageTest("news are announced", "rich", { section: "conversions" }, async (page) => {
    await page.evaluate(() => globalThis.mock.convert("new.example"));
    await until(page, () => document.querySelector("#live").textContent
        .includes("1 new conversion"));
});

pageTest("the page recovers when the background restarts", "rich", {}, async (page) => {
    await page.evaluate(() => {
        globalThis.mock.breakPorts();
        globalThis.mock.charge(500_000);
    });
    await until(page, () => document.querySelector(".bar-numbers").textContent
        .startsWith("1.95 of 8"));
});

pageTest("the page recovers when the host comes", "host-missing", {}, async (page) => {
    assert.equal(await text(page, ".number"), "–");
    await page.evaluate(() => globalThis.mock.setHost({ state: "connected" }));
    await until(page, () => document.querySelector(".state").dataset.kind === "on"
        && document.querySelector(".number").textContent === "0");
});

pageTest("a list that cannot be read says why", "store-damaged", { section: "ads" },
    async (page) => {
        assert.match(await text(page, visible(".notice")), /cannot be read now.*page 7 has check/);
    });

// What it sends.

pageTest("the switch opts out and in", "rich", {}, async (page) => {
    await press(page, ".switch");
    await until(page, () => document.querySelector(".state").dataset.kind === "off");
    assert.equal((await sent(page, "disableAPI")).length, 1);
    assert.equal(await page.$eval(".switch", (node) => node.ariaChecked), "false");
    await press(page, ".switch");
    await until(page, () => document.querySelector(".state").dataset.kind === "on");
    assert.equal((await sent(page, "enableAPI")).length, 1);
});

pageTest("without a host, the controls send nothing", "host-missing", {}, async (page) => {
    await press(page, ".switch");
    await press(page, ".control > .danger");
    assert.equal(await countOf(page, "dialog"), 0);
    assert.deepEqual(await sent(page, "disableAPI"), []);
});

pageTest("everything is cleared only after a confirmation", "rich", {}, async (page) => {
    await press(page, ".control > .danger");
    await page.waitForSelector("dialog[open]");
    assert.equal(await page.evaluate(() => document.activeElement.textContent), "Cancel");
    await page.keyboard.press("Escape");
    await until(page, () => document.querySelector("dialog") === null);
    assert.deepEqual(await sent(page, "clearBrowsingHistoryForAttribution"), []);
    await press(page, ".control > .danger");
    await page.waitForSelector("dialog[open]");
    assert.match(await text(page, "dialog"), /next one begins on/);
    await press(page, "dialog .danger");
    await until(page, () => document.querySelector(".number").textContent === "0"
        && document.querySelector(".state").dataset.kind === "paused");
    assert.deepEqual(await sent(page, "clearBrowsingHistoryForAttribution"),
        [{ event: "clearBrowsingHistoryForAttribution", sites: [], forgetVisits: true }]);
    assert.equal(await text(page, ".toast p"), "Everything is cleared.");
});

pageTest("one site is cleared, in two ways", "rich", {}, async (page) => {
    await press(page, "form [type=submit]");
    assert.match(await text(page, ".field-problem"), /Enter the name of a site/);
    await page.type("#clear-site", "https://news.example/a/page?q=1");
    await page.keyboard.press("Enter");
    await page.waitForSelector("dialog[open]");
    assert.match(await text(page, "dialog"), /news\.example/);
    await press(page, "dialog .danger");
    await until(page, () => document.querySelector(".number").textContent === "6");
    assert.deepEqual(await sent(page, "clearImpressionsForSite"),
        [{ event: "clearImpressionsForSite", site: "news.example", byUser: true }]);
    await page.type("#clear-site", "shop.example");
    await page.click("input[value=conversions]");
    await press(page, "form [type=submit]");
    await press(page, "dialog .danger");
    await until(page, () => document.querySelectorAll(".number")[1].textContent === "4");
    assert.deepEqual(await sent(page, "clearBrowsingHistoryForAttribution"), [{
        event: "clearBrowsingHistoryForAttribution",
        sites: ["shop.example"],
        forgetVisits: false,
    }]);
});

pageTest("a refusal is told in plain words", "rich", {}, async (page) => {
    await page.type("#clear-site", "localhost");
    await page.keyboard.press("Enter");
    await page.waitForSelector("dialog[open]");
    await press(page, "dialog .danger");
    await page.waitForSelector(".toast.shown.problem");
    assert.equal(await text(page, ".toast p"), "That did not work. “localhost” is not a site");
});

pageTest("epochs start again after the clock was ahead", "clock-ahead", {}, async (page) => {
    await press(page, ".state button");
    await page.waitForSelector("dialog[open]");
    await press(page, "dialog .danger");
    await until(page, () => document.querySelector(".state h2").textContent
        === "On, but this epoch is closed");
    assert.equal((await sent(page, "restartEpochs")).length, 1);
});

pageTest("what is shown is saved as JSON and CSV", "rich", { section: "actions" },
    async (page) => {
        await page.evaluate(() => {
            globalThis.saved = [];
            URL.createObjectURL = (blob) => {
                globalThis.saved.push(blob);
                return "blob:none";
            };
            HTMLAnchorElement.prototype.click = function click() {
                globalThis.saved.push(this.download);
            };
            globalThis.mock.state.history[0].actionLabel = "=HYPERLINK(\"https://x.example\")";
            globalThis.mock.change();
        });
        await page.type("#filter-user-actions", "video.example");
        await until(page, () => document.querySelectorAll(".action").length === 2);
        const buttons = await page.$$(visible(".toolbar button"));
        const files = async () => page.evaluate(async () => {
            const [blob, name] = globalThis.saved.splice(0);
            return { name, text: await blob.text() };
        });
        await buttons[0].click();
        const json = await files();
        assert.match(json.name, /^big-bird-user-actions-\d{4}-\d\d-\d\d\.json$/);
        assert.deepEqual(JSON.parse(json.text).map(({ userAction }) => userAction), [601, 102]);
        await buttons[1].click();
        const csv = await files();
        const lines = csv.text.split("\r\n");
        assert.equal(lines.length, 4);
        assert.match(lines[0], /^userAction,actionLabel,number,time,epoch,kind,site/);
    });

test("a spreadsheet does not run what a page wrote", async () => {
    globalThis.document = {};
    const { csv } = await import("../../extension/internals/download.js");
    assert.equal(csv([{ a: "=1+1", b: -5, c: "x,\"y\"" }, { a: ["p", "q"], d: null }]),
        "a,b,c,d\r\n'=1+1,-5,\"x,\"\"y\"\"\",\r\np q,,,\r\n");
});

const wanted = process.argv.slice(2).join(" ");
let passed = 0;
let failed = 0;
for (const [name, run] of tests.filter(([title]) => title.includes(wanted))) {
    try {
        await run();
        passed++;
    } catch (error) {
        failed++;
        console.log(`FAILED ${name}: ${error.message.replaceAll(/\s+/g, " ").slice(0, 600)}`);
    }
}
await browser.close();
server.close();
console.log(`${passed} passed, ${failed} failed`);
process.exitCode = failed === 0 ? 0 : 1;
