// The native-messaging host of one throw-away profile: its manifest, its launcher, its processes.

import { mkdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import path from "node:path";

/**
 * The program that the browser starts for the extension.
 *
 * @typedef {object} HostCommand
 * @property {string} name the name that the extension connects to
 * @property {string} command an absolute path
 * @property {string[]} [args] the browser appends its own after these
 * @property {Record<string, string>} [env] added to the browser's environment
 */

export class NativeHost {
    #manifest;
    #launcher;
    #pids;
    #host;

    /**
     * @param {string} manifests the folder where this browser looks for manifests
     * @param {string} folder a folder for the launcher
     * @param {HostCommand} host
     */
    constructor(manifests, folder, host) {
        this.#manifest = path.join(manifests, `${host.name}.json`);
        this.#launcher = path.join(folder, "native-host");
        this.#pids = path.join(folder, "native-host.pids");
        this.#host = host;
    }

    /**
     * Writes manifest and launcher. `allow` is the part of the manifest that names the extension.
     *
     * @param {string} manifests
     * @param {string} folder
     * @param {HostCommand} host
     * @param {object} allow
     */
    static async install(manifests, folder, host, allow) {
        const native = new NativeHost(manifests, folder, host);
        await mkdir(manifests, { recursive: true });
        await native.use(host.command, host.args, host.env);
        const manifest = {
            name: host.name,
            description: "The user agent of the tests",
            type: "stdio",
            path: native.#launcher,
            ...allow,
        };
        await writeFile(native.#manifest, JSON.stringify(manifest));
        return native;
    }

    /**
     * Changes what later connections start. Processes that run are not touched.
     *
     * @param {string} command
     * @param {string[]} [args]
     * @param {Record<string, string>} [env]
     */
    async use(command, args = [], env = {}) {
        const variables = Object.entries(env).map(([name, value]) => `${name}=${quote(value)}`);
        const script = [
            "#!/bin/sh",
            `echo $$ >> ${quote(this.#pids)}`,
            ...variables.map((variable) => `export ${variable}`),
            `exec ${[command, ...args].map(quote).join(" ")} "$@"`,
        ];
        // Renamed into place, so that a browser never starts half a script.
        await writeFile(`${this.#launcher}.new`, script.join("\n") + "\n", { mode: 0o755 });
        await rename(`${this.#launcher}.new`, this.#launcher);
    }

    /** Uses the command again with which the browser was started. */
    async restore() {
        await this.use(this.#host.command, this.#host.args, this.#host.env);
        await this.putBack();
    }

    /** Puts the manifest back that was taken away. */
    async putBack() {
        await rename(`${this.#manifest}.away`, this.#manifest).catch(ignoreMissing);
    }

    /** Takes the manifest away: later connections fail as if nothing was ever installed. */
    async remove() {
        await rename(this.#manifest, `${this.#manifest}.away`);
    }

    /** The processes that run, in the order in which they were started. */
    async processes() {
        const text = await readFile(this.#pids, "utf8").catch(ignoreMissing);
        const pids = (text ?? "").split("\n").filter((line) => line !== "").map(Number);
        return pids.filter(isRunning);
    }

    /** Kills every process that runs, without a chance to tidy up. Returns how many there were. */
    async kill() {
        const pids = await this.processes();
        for (const pid of pids) {
            try {
                process.kill(pid, "SIGKILL");
            } catch {
                // It ended by itself in between.
            }
        }
        return pids.length;
    }

    /** Forgets the processes of the past. */
    async close() {
        await this.kill();
        await rm(this.#pids, { force: true });
    }
}

/** @param {string} text */
function quote(text) {
    return `'${text.replaceAll("'", `'\\''`)}'`;
}

/** @param {number} pid */
function isRunning(pid) {
    try {
        return process.kill(pid, 0);
    } catch {
        return false;
    }
}

/** @param {NodeJS.ErrnoException} error */
function ignoreMissing(error) {
    if (error.code !== "ENOENT") throw error;
    return undefined;
}
