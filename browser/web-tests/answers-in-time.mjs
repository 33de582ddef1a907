#!/usr/bin/env node
// Shows in virtual time that a page gets the answer to a conversion at one moment, whatever the
// host does: answers early, late, in the last moment, with an error, never, or is not there. And
// that a variant of the extension that answers when it is ready is caught. `N passed, M failed`.

import assert from "node:assert/strict";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const EXTENSION = path.join(path.dirname(fileURLToPath(import.meta.url)), "..", "extension");
const ANSWER_AFTER = 2250;

/** A clock that only moves when nothing else is left to do. */
class VirtualTime {
    #now = 0;
    /** @type {{ at: number, run: () => void }[]} */
    #timers = [];

    now() {
        return this.#now;
    }

    /** @param {() => void} run @param {number} wait */
    set(run, wait) {
        this.#timers.push({ at: this.#now + Math.max(0, wait), run });
    }

    /** @param {Promise<unknown>} promise */
    async runUntil(promise) {
        let done = false;
        promise.finally(() => {
            done = true;
        });
        for (;;) {
            // Everything that can happen at this moment happens.
            for (let turn = 0; turn < 50; turn += 1) await Promise.resolve();
            if (done) return;
            this.#timers.sort((a, b) => a.at - b.at);
            const next = this.#timers.shift();
            assert.ok(next, "nothing is left to do, and there is no answer");
            this.#now = Math.max(this.#now, next.at);
            next.run();
        }
    }
}

/** What the host does with a conversion, and the report that the page should get. */
const HOSTS = [
    { does: "answers at once", after: 0, report: "host" },
    { does: "answers early", after: 2000, report: "host" },
    { does: "answers while a null report is made", after: 2101, report: "host" },
    { does: "answers in the last moment", after: 2249, report: "host" },
    { does: "answers too late", after: 2251, report: "gate" },
    { does: "never answers", after: Infinity, report: "gate" },
    { does: "is lost at once", fails: 0, report: "gate" },
    { does: "is lost in the middle", fails: 1000, report: "gate" },
    { does: "is lost in the last moment", fails: 2249, report: "gate" },
    { does: "does not understand the call", after: 5, error: "MalformedRequest", report: "gate" },
    { does: "says that the store failed", after: 5, error: "StoreError", report: "gate" },
];

/**
 * The moment and the report of a conversion, with a host.
 *
 * @param {any} Calls
 * @param {any} host
 * @param {boolean} lost
 */
async function converse(Calls, host, lost) {
    const time = new VirtualTime();
    const real = { setTimeout: globalThis.setTimeout, now: performance.now };
    Object.assign(globalThis, { setTimeout: time.set.bind(time) });
    performance.now = () => time.now();
    try {
        const call = () => new Promise((resolve, reject) => {
            const answer = host.error
                ? { ok: false, error: host.error, message: "" }
                : { ok: true, report: "host" };
            if (host.after < Infinity) time.set(() => resolve(answer), host.after);
            if (host.fails !== undefined) time.set(() => reject(new Error("lost")), host.fails);
        });
        const gate = {
            call: (/** @type {any} */ { event }) =>
                event === "null" ? { ok: true, report: "gate" } : { ok: true },
        };
        const calls = new Calls({
            host: { call },
            gate: Promise.resolve(gate),
            tabs: { check: async () => null, action: () => ({ userAction: 1 }) },
            policies: { allows: () => true },
            answerAfter: ANSWER_AFTER,
            changed: () => undefined,
        });
        const caller = {
            tab: 1, path: [], top: "https://a.example", caller: "https://a.example",
            inPrivate: false,
        };
        const made = calls.make("measureConversion", {}, caller, 0, lost);
        await time.runUntil(made);
        return { at: time.now(), report: (await made).report };
    } finally {
        Object.assign(globalThis, { setTimeout: real.setTimeout });
        performance.now = real.now;
    }
}

/** @param {any} Calls */
async function failures(Calls) {
    const failed = [];
    for (const host of HOSTS) {
        const { at, report } = await converse(Calls, host, false);
        if (at !== ANSWER_AFTER || report !== host.report) {
            failed.push(`a host that ${host.does}: ${report} at ${at} ms`);
        }
        const again = await converse(Calls, host, true);
        if (again.at !== ANSWER_AFTER || again.report !== "gate") {
            failed.push(`a call whose answer was lost, with a host that ${host.does}`);
        }
    }
    return failed;
}

/**
 * The calls of an extension with a mistake in it.
 *
 * @param {string} from
 * @param {string} to
 */
async function broken(from, to) {
    const folder = await mkdtemp(path.join(tmpdir(), "bigbird-broken-"));
    try {
        for (const name of ["calls.js", "documents.js"]) {
            const text = await readFile(path.join(EXTENSION, name), "utf8");
            const changed = name === "calls.js" ? text.replace(from, () => to) : text;
            assert.ok(name !== "calls.js" || changed !== text, `calls.js does not say: ${from}`);
            await writeFile(path.join(folder, name.replace(".js", ".mjs")),
                changed.replaceAll(/from "\.\/(\w+)\.js"/g, 'from "./$1.mjs"'));
        }
        return (await import(pathToFileURL(path.join(folder, "calls.mjs")).href)).Calls;
    } finally {
        await rm(folder, { recursive: true });
    }
}

const FLAWS = [
    { name: "answers when it is ready", from: "await delay(due);", to: "" },
    { name: "waits for the host", from: "delay(due - PREPARE)", to: "delay(due + 1e9)" },
    {
        name: "asks the host again for a lost call",
        from: "if (!lost) {\n            this.#host",
        to: "if (true) {\n            this.#host",
    },
];

const { Calls } = await import(pathToFileURL(path.join(EXTENSION, "calls.js")).href);
let passed = 0;
let failed = 0;
const wrong = await failures(Calls);
wrong.forEach((line) => console.log(`FAILED ${line}`));
passed += 2 * HOSTS.length - wrong.length;
failed += wrong.length;
for (const { name, from, to } of FLAWS) {
    const caught = await failures(await broken(from, to)).then(
        (list) => list.length > 0,
        () => true,
    );
    passed += caught ? 1 : 0;
    failed += caught ? 0 : 1;
    if (!caught) console.log(`NOT CAUGHT an extension that ${name}`);
}
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed === 0 ? 0 : 1);
