#!/usr/bin/env node
// Proves that the tests can fail: makes each mistake of `tests/flaws.mjs` in the extension, and
// expects the test that is named there to fail. One line each, and `N passed, M failed`.
//
//     node browser/web-tests/broken.mjs [--browser chromium|firefox] [--only PATTERN]

import { spawn } from "node:child_process";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { FLAWS } from "./tests/flaws.mjs";

const HERE = path.dirname(fileURLToPath(import.meta.url));

const { values: flags } = parseArgs({
    options: {
        browser: { type: "string", default: "chromium" },
        only: { type: "string", default: "" },
    },
});

let caught = 0;
let missed = 0;
for (const flaw of FLAWS.filter(({ name }) => new RegExp(flags.only).test(name))) {
    const output = await runWith(flaw);
    // The test must fail because of what it checks, not because the browser did not start.
    if (output.includes(`FAILED ${flags.browser}: ${flaw.caughtBy}`)) {
        caught += 1;
    } else {
        missed += 1;
        console.log(`NOT CAUGHT ${flaw.name}, by "${flaw.caughtBy}":\n${output}`);
    }
}
console.log(`${caught} passed, ${missed} failed`);
process.exit(missed === 0 && caught > 0 ? 0 : 1);

/**
 * What the tests print with a flaw in the extension.
 *
 * @param {import("./tests/flaws.mjs").Flaw} flaw
 * @returns {Promise<string>}
 */
function runWith(flaw) {
    const only = flaw.caughtBy.replaceAll(/[.*+?^${}()|[\]\\]/g, "\\$&");
    const args = [path.join(HERE, "run.mjs"), "--browser", flags.browser, "--only", only];
    const child = spawn(process.execPath, args, {
        env: { ...process.env, BIGBIRD_FLAW: flaw.name },
        stdio: ["ignore", "pipe", "inherit"],
    });
    let output = "";
    child.stdout.setEncoding("utf8").on("data", (text) => {
        output += text;
    });
    return new Promise((resolve) => child.on("close", () => resolve(output)));
}
