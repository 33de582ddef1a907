// What the browsers of these tests are started with: the extension as it is installed, and the
// native host with a store in the throw-away folder.

import { execFile } from "node:child_process";
import { cp, mkdtemp, readFile, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { SERVICE } from "./support.mjs";

const HERE = path.dirname(fileURLToPath(import.meta.url));
const ROOT = path.join(HERE, "..", "..", "..");
const BIGBIRD = process.env.BIGBIRD ?? path.join(ROOT, "target", "release", "bigbird");

/** The folder of pages that every host serves. */
export const pages = path.join(HERE, "..", "pages");

/** The time after which the host answers conversions. */
const RELEASE_AFTER = 300;

/** The time after which pages get the answer. Far more, so that a busy machine is in time. */
const ANSWER_AFTER = 1500;

export async function options() {
    const folder = await mkdtemp(path.join(tmpdir(), "bigbird-tests-"));
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
        answerAfter: ANSWER_AFTER,
        activationDuration: 600_000,
    };
    const text = `globalThis.__bigbirdConfig = ${JSON.stringify(config)};\n`;
    await writeFile(path.join(extension, "config.js"), text);
    return { extension, host: host(folder, path.join(folder, "device.store"), services, policy) };
}

/**
 * The command of the native host.
 *
 * @param {string} folder
 * @param {string} store
 * @param {string} services
 * @param {string} policy
 */
function host(folder, store, services, policy) {
    const args = ["native-host", "--store", store, "--policy", policy];
    args.push("--aggregation-services", services, "--release-after", String(RELEASE_AFTER));
    args.push("--unencrypted-for-testing");
    return { name: "org.bigbird.attribution", command: BIGBIRD, args };
}
