// What the browsers of these tests are started with: the extension as it is installed, and the
// native host with a store in the throw-away folder.

import { execFile } from "node:child_process";
import { rmSync } from "node:fs";
import { cp, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { FLAWS } from "./flaws.mjs";
import { ask, SERVICE } from "./support.mjs";

const HERE = path.dirname(fileURLToPath(import.meta.url));
const ROOT = path.join(HERE, "..", "..", "..");
const BIGBIRD = process.env.BIGBIRD ?? path.join(ROOT, "target", "release", "bigbird");

/** The folder of pages that every host serves. */
export const pages = path.join(HERE, "..", "pages");

/** The time after which the host answers conversions. */
const RELEASE_AFTER = 300;

/** The time after which pages get the answer. Far more, so that a busy machine is in time. */
const ANSWER_AFTER = 1500;

/** The hosts' commands, by browser. @type {Map<string, import("../native-host.mjs").HostCommand>} */
const hosts = new Map();

/** @param {import("../browser.mjs").BrowserName} name */
export async function options(name) {
    const folder = await mkdtemp(path.join(tmpdir(), "bigbird-tests-"));
    process.once("exit", () => rmSync(folder, { recursive: true, force: true }));
    const service = path.join(folder, "service");
    await promisify(execFile)(BIGBIRD, ["keys", "generate", "--out", service, "--url", SERVICE]);
    const policy = path.join(folder, "policy.json");
    // Tests share a device, and must not spend each other's global budget.
    const limits = { profile: "big-bird", globalBudget: 1_000_000_000 };
    await writeFile(policy, JSON.stringify(limits));
    const extension = path.join(folder, "extension");
    await cp(path.join(ROOT, "browser", "extension"), extension, { recursive: true });
    const services = path.join(service, "aggregation-services.toml");
    const config = {
        services: { [SERVICE]: { protocol: "dap-18-histogram" } },
        servicesToml: await readFile(services, "utf8"),
        profile: "big-bird",
        releaseAfter: RELEASE_AFTER,
        answerAfter: ANSWER_AFTER,
        activationDuration: 600_000,
    };
    const text = `globalThis.__bigbirdConfig = ${JSON.stringify(config)};\n`;
    await writeFile(path.join(extension, "config.js"), text);
    if (process.env.BIGBIRD_FLAW) await breakExtension(extension, process.env.BIGBIRD_FLAW);
    const command = host(path.join(folder, "device.store"), services, policy);
    hosts.set(name, command);
    return { extension, host: command };
}

/**
 * Makes a deliberate mistake in a copy of the extension.
 *
 * @param {string} folder
 * @param {string} name
 */
async function breakExtension(folder, name) {
    const flaw = FLAWS.find((flaw) => flaw.name === name);
    if (flaw === undefined) throw new Error(`unknown flaw \`${name}\``);
    for (const { file, from, to } of [flaw, ...(flaw.also ? [flaw.also] : [])]) {
        const text = await readFile(path.join(folder, file), "utf8");
        if (text.split(from).length !== 2) throw new Error(`${file} must have this once: ${from}`);
        await writeFile(path.join(folder, file), text.replace(from, () => to));
    }
}

/**
 * Gives the browser a device of its own for a test that must be alone, and the old one afterwards.
 *
 * @param {import("../suite.mjs").TestContext} t
 * @param {string[]} [more] more arguments of the host
 * @returns {Promise<string>} the file of the new store
 */
export async function newDevice(t, more = []) {
    const { command, args } = /** @type {any} */ (hosts.get(t.browser));
    const folder = await mkdtemp(path.join(tmpdir(), "bigbird-device-"));
    const store = path.join(folder, "device.store");
    const changed = [...args];
    changed[changed.indexOf("--store") + 1] = store;
    await t.driver.host.use(command, [...changed, ...more]);
    await t.driver.host.kill();
    await hostWorks(t);
    t.after(async () => {
        await t.driver.host.restore();
        await t.driver.host.kill();
        await hostWorks(t);
        await rm(folder, { recursive: true, force: true, maxRetries: 5 });
    });
    return store;
}

/**
 * Waits until the host runs with a store that works. After failures, the extension waits for some
 * seconds before it starts the host again.
 *
 * @param {import("../suite.mjs").TestContext} t
 */
async function hostWorks(t) {
    await t.driver.eventually("the host works", async () => {
        const { ok, enabled } = await ask(t, { event: "status" });
        return ok && enabled !== null;
    });
}

/**
 * The command of the native host.
 *
 * @param {string} store
 * @param {string} services
 * @param {string} policy
 */
function host(store, services, policy) {
    const args = ["native-host", "--store", store, "--policy", policy];
    args.push("--aggregation-services", services, "--release-after", String(RELEASE_AFTER));
    args.push("--unencrypted-for-testing");
    return { name: "org.bigbird.attribution", command: BIGBIRD, args };
}
