/** Opens the internals page in a browser, with the mock as its background. */

import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { extname, normalize } from "node:path";
import puppeteer from "puppeteer-core";
import { installMock } from "./mock.js";

/** The moment at which all scenes take place: Thursday, 15 October 2026, 10:26 UTC. */
export const NOW = 1_792_059_960;

/** The policy that browsers give extension pages, so that what it forbids fails here too. */
const POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'";

const TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".png": "image/png",
    ".svg": "image/svg+xml",
};

/** Serves the folder of the extension on a free port of the loopback interface. */
export async function serve() {
    const folder = new URL("../../extension/", import.meta.url);
    const server = createServer(async (request, response) => {
        const path = normalize(new URL(request.url, "http://localhost").pathname);
        try {
            const body = await readFile(new URL(`.${path}`, folder));
            const type = TYPES[extname(path)] ?? "application/octet-stream";
            response.writeHead(200, { "Content-Type": type, "Content-Security-Policy": POLICY });
            response.end(body);
        } catch {
            response.writeHead(404).end();
        }
    });
    await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
    return { url: `http://127.0.0.1:${server.address().port}/internals.html`, server };
}

/** Starts a browser: Chromium, or Firefox if the argument says so. */
export function launch(name = "chromium") {
    if (name === "firefox") {
        return puppeteer.launch({
            browser: "firefox",
            executablePath: process.env.FIREFOX ?? "/usr/bin/firefox-esr",
            headless: true,
        });
    }
    return puppeteer.launch({
        executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
        args: ["--no-sandbox", "--headless=new", "--lang=en-GB"],
        env: { ...process.env, TZ: "UTC" },
    });
}

/**
 * Opens a scene. Errors of the page are added to `problems`.
 *
 * @returns the page, once it shows what the scene has
 */
export async function open(browser, url, scene, { section = "overview", dark = false, width = 1280,
    height = 900, problems = [], reducedMotion = true } = {}) {
    const page = await browser.newPage();
    page.on("pageerror", (error) => problems.push(`${scene}: ${error.message}`));
    page.on("console", (message) => {
        if (message.type() === "error") {
            problems.push(`${scene}: ${message.text()}`);
        }
    });
    await page.setViewport({ width, height });
    if (page.emulateMediaFeatures && browser.process()?.spawnfile.includes("chrom")) {
        await page.emulateMediaFeatures([
            { name: "prefers-color-scheme", value: dark ? "dark" : "light" },
            { name: "prefers-reduced-motion", value: reducedMotion ? "reduce" : "no-preference" },
        ]);
    }
    await page.evaluateOnNewDocument(installMock, { scene, now: NOW });
    await page.goto(`${url}#${section}`);
    await settle(page);
    return page;
}

/** Waits until the page shows all that its background has: no list waits to be read. */
export async function settle(page) {
    await page.waitForFunction(() => {
        const kind = document.querySelector(".state")?.dataset.kind;
        const visible = document.querySelector(".view:not([hidden])");
        const waiting = visible?.querySelector(".notice:not([hidden]) .notice-title");
        return visible && document.querySelector("#brief-state").textContent !== "Connecting"
            && (visible.id !== "section-overview" || (kind !== undefined && kind !== "waiting"))
            && waiting?.textContent !== "Reading…"
            && globalThis.mock.requests.some(({ event }) => event === "status");
    });
    // What was asked for is answered in a later turn of the event loop.
    await page.evaluate(() => new Promise((resolve) => setTimeout(resolve, 50)));
}
