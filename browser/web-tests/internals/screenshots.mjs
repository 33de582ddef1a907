/**
 * Takes pictures of every section and state: `node screenshots.mjs [FOLDER] [chromium|firefox]`.
 */

import { mkdir } from "node:fs/promises";
import { launch, open, serve } from "./page.mjs";

const [folder = new URL("screenshots", import.meta.url).pathname, name = "chromium"] =
    process.argv.slice(2);
const SECTIONS = ["overview", "budgets", "ads", "conversions", "reports", "actions", "words"];
const OTHERS = ["empty", "host-missing", "store-damaged", "opted-out", "clock-ahead"];

await mkdir(folder, { recursive: true });
const { url, server } = await serve();
const browser = await launch(name);
for (const dark of name === "firefox" ? [false] : [false, true]) {
    for (const width of [1280, 390]) {
        const shots = [
            ...SECTIONS.map((section) => ["rich", section]),
            ...OTHERS.map((scene) => [scene, "overview"]),
            ["empty", "conversions"],
            ["host-missing", "ads"],
        ];
        for (const [scene, section] of shots) {
            const page = await open(browser, url, scene, { section, dark, width });
            if (section === "conversions" && scene === "rich") {
                await page.evaluate(() => {
                    const all = document.querySelectorAll(".entries details");
                    all[1].open = true;
                    all[4].open = true;
                });
                await page.waitForSelector(".decision");
            }
            const look = dark ? "dark" : "light";
            const path = `${folder}/${scene}-${section}-${look}-${width}.png`;
            await page.screenshot({ path, fullPage: true });
            await page.close();
        }
    }
}

/** Things that open, at both widths, and colours that the system forces. */
for (const width of [1280, 390]) {
    const page = await open(browser, url, "rich", { width });
    await page.click(".view:not([hidden]) .word");
    await page.screenshot({ path: `${folder}/open-word-${width}.png` });
    await page.keyboard.press("Escape");
    await page.click(".control > .danger");
    await page.screenshot({ path: `${folder}/open-dialog-${width}.png` });
    await page.click("dialog .danger");
    await page.waitForSelector(".toast.shown");
    await page.$eval("details", (details) => { details.open = true; });
    await page.screenshot({ path: `${folder}/open-toast-${width}.png`, fullPage: true });
    await page.close();
}
if (name === "chromium") {
    for (const section of ["overview", "conversions"]) {
        const page = await open(browser, url, "rich", { section });
        const session = await page.createCDPSession();
        const features = [{ name: "forced-colors", value: "active" }];
        await session.send("Emulation.setEmulatedMedia", { features });
        await page.$$eval("details", (all) => all.forEach((one) => { one.open = true; }));
        await page.screenshot({ path: `${folder}/forced-${section}.png`, fullPage: true });
        await page.close();
    }
}
await browser.close();
server.close();
