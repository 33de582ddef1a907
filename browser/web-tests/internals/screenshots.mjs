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
await browser.close();
server.close();
