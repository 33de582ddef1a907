// The demonstration as a process: `bigbird browser demo --no-open`, which serves its sites and
// prepares an extension and a native host for a browser that somebody else starts.

import { spawn } from "node:child_process";
import { readFile, writeFile } from "node:fs/promises";
import path from "node:path";
import { withLimit } from "./browser.mjs";

/** How long it may take to start, on a slow and busy machine. */
const START_LIMIT = 60_000;

/** The time after which reports are released, in ms: enough for a host on a busy machine. */
const RELEASE_AFTER = 5000;

/** The processes that run, which must not outlive this one. @type {Set<Demo>} */
const demos = new Set();

process.on("exit", () => {
    for (const demo of demos) demo.signal();
});

export class Demo {
    #child;
    #output = "";

    /**
     * Starts the demonstration under the rules of a profile.
     *
     * @param {string} program the path of `bigbird`
     * @param {string} profile such as `global-only`
     */
    static async start(program, profile) {
        const demo = new Demo(program, profile);
        try {
            await withLimit(demo.#ready(), START_LIMIT, "start of the demonstration");
            await demo.#allowSlowClicks();
        } catch (error) {
            demo.signal();
            throw error;
        }
        return demo;
    }

    /**
     * @param {string} program
     * @param {string} profile
     */
    constructor(program, profile) {
        const args = ["browser", "demo", "--no-open", "--profile", profile];
        args.push("--release-after", String(RELEASE_AFTER));
        this.#child = spawn(program, args, { stdio: ["ignore", "pipe", "pipe"] });
        for (const stream of [this.#child.stdout, this.#child.stderr]) {
            stream.setEncoding("utf8");
            stream.on("data", (text) => {
                this.#output += text;
                this.#child.emit("output");
            });
        }
        demos.add(this);
        /** @type {Promise<string>} */
        this.ended = new Promise((resolve) => {
            this.#child.once("error", (error) => resolve(`${program}: ${error.message}`));
            this.#child.once("exit", (code) => resolve(`${program} ended with exit code ${code}`));
        });
    }

    /** The address of the first page. */
    get firstPage() {
        return this.#line("First page");
    }

    /** What a browser is started with, so that it reaches the sites and has the extension. */
    get browserOptions() {
        const folder = this.#line("Folder");
        return {
            extension: path.join(folder, "extension"),
            host: { name: "org.bigbird.attribution", command: path.join(folder, "native-host") },
            server: {
                port: Number(new URL(this.#line("Proxy")).port),
                keyHash: this.#line("Key hash"),
            },
        };
    }

    /** Ends the process, which removes its folder. */
    async stop() {
        this.signal();
        await this.ended;
    }

    /** Tells the process to end. */
    signal() {
        demos.delete(this);
        this.#child.kill("SIGINT");
    }

    async #ready() {
        const ended = this.ended.then((how) => {
            throw new Error(`${how}: ${this.#output}`);
        });
        const printed = new Promise((resolve) => {
            this.#child.on("output", () => {
                if (this.#output.includes("Press Ctrl-C")) resolve(undefined);
            });
        });
        await Promise.race([printed, ended]);
    }

    /**
     * Lets a click last longer. A slow machine needs more than 15 seconds for the attacker's
     * twelve redirects, and the last ones would be refused for that reason.
     */
    async #allowSlowClicks() {
        const file = path.join(this.browserOptions.extension, "config.js");
        const config = await readFile(file, "utf8");
        const changed = config.replace(/("activationDuration":\s*)\d+/, "$1600000");
        if (changed === config) throw new Error(`no activationDuration in ${file}`);
        await writeFile(file, changed);
    }

    /** @param {string} name of a line that was printed */
    #line(name) {
        const match = new RegExp(`^${name}: +(\\S+)$`, "m").exec(this.#output);
        if (match === null) throw new Error(`no line "${name}" in: ${this.#output}`);
        return match[1];
    }
}
