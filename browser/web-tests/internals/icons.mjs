/** Draws the icons of the extension from `icons/bird.svg`. Run it after changing that file. */

import { readFile, writeFile } from "node:fs/promises";
import puppeteer from "puppeteer-core";

const folder = new URL("../../extension/icons/", import.meta.url);
const svg = await readFile(new URL("bird.svg", folder), "utf8");
const browser = await puppeteer.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox", "--headless=new"],
});
const page = await browser.newPage();
for (const size of [16, 32, 48, 128]) {
    await page.setViewport({ width: size, height: size });
    await page.setContent(`<style>body{margin:0}svg{display:block;width:${size}px;height:${size}px}
        </style>${svg}`);
    const png = await page.screenshot({ omitBackground: true });
    await writeFile(new URL(`bird-${size}.png`, folder), png);
    console.log(`bird-${size}.png: ${png.length} bytes`);
}
await browser.close();
