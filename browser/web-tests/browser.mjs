// Starts an installed browser with a throw-away profile, the extension and its native host.

import { spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import puppeteer from "puppeteer-core";
import { NativeHost } from "./native-host.mjs";

/** @typedef {"chromium" | "firefox"} BrowserName */

/** @typedef {import("./native-host.mjs").HostCommand} HostCommand */

/**
 * What a browser is started with.
 *
 * @typedef {object} BrowserOptions
 * @property {string} extension the folder of the unpacked extension
 * @property {HostCommand} host
 * @property {{ port: number, keyHash: string }} server the proxy to the web that the browser sees,
 *     and the hash of its public key
 * @property {boolean} [privateAllowed] the extension may run in private windows; true unless given
 * @property {string[]} [args] more command-line arguments
 * @property {Record<string, string | number | boolean>} [prefs] more preferences of Firefox
 */

/**
 * A browser that runs.
 *
 * @typedef {object} RunningBrowser
 * @property {BrowserName} name
 * @property {string} version
 * @property {import("puppeteer-core").Browser} puppeteer
 * @property {string} extensionId
 * @property {string} extensionOrigin such as `moz-extension://…`
 * @property {NativeHost} host
 * @property {string} folder the throw-away folder, with the profile in it
 * @property {Promise<string>} ended how the process ended, once it has
 * @property {() => string} log what the browser wrote to its standard streams
 * @property {() => Promise<void>} close
 */

/**
 * The browsers that a command line asks for: both unless one is named.
 *
 * @param {string | undefined} given
 * @returns {BrowserName[]}
 */
export function browserNames(given) {
    if (given === undefined) return ["chromium", "firefox"];
    if (given === "chromium" || given === "firefox") return [given];
    throw new Error(`unknown browser \`${given}\`; use one of: chromium, firefox`);
}

/** How long a browser may take to start, on a slow and busy machine. */
const START_LIMIT = 120_000;

/**
 * @param {BrowserName} name
 * @param {BrowserOptions} options
 * @returns {Promise<RunningBrowser>}
 */
export async function startBrowser(name, options) {
    const folder = await mkdtemp(path.join(tmpdir(), `bigbird-${name}-`));
    try {
        return await (name === "chromium" ? startChromium : startFirefox)(folder, options);
    } catch (error) {
        await rm(folder, { recursive: true, force: true, maxRetries: 5 });
        throw error;
    }
}

/**
 * @param {string} folder
 * @param {BrowserOptions} options
 * @returns {Promise<RunningBrowser>}
 */
async function startChromium(folder, options) {
    const profile = path.join(folder, "profile");
    const extension = path.resolve(options.extension);
    const manifest = JSON.parse(await readFile(path.join(extension, "manifest.json"), "utf8"));
    const extensionId = chromiumExtensionId(manifest.key, extension);
    const extensionOrigin = `chrome-extension://${extensionId}`;
    const host = await NativeHost.install(
        path.join(profile, "NativeMessagingHosts"),
        folder,
        options.host,
        { allowed_origins: [`${extensionOrigin}/`] },
    );
    const off = [
        // Without it, branded builds ignore --load-extension.
        "DisableLoadExtensionCommandLineSwitch",
        // Plain http pages are part of the tests.
        "HttpsUpgrades",
        "HttpsFirstBalancedModeAutoEnable",
        // Nothing of the browser's own traffic is of interest.
        "Translate",
        "MediaRouter",
        "OptimizationHints",
    ];
    const program = new Program("chromium", [
        "--headless=new",
        // Chromium's sandbox refuses to run as root, which containers of CI do.
        ...(process.getuid?.() === 0 ? ["--no-sandbox"] : []),
        `--user-data-dir=${profile}`,
        "--remote-debugging-port=0",
        `--load-extension=${extension}`,
        `--disable-extensions-except=${extension}`,
        `--disable-features=${off.join(",")}`,
        `--proxy-server=http://127.0.0.1:${options.server.port}`,
        "--proxy-bypass-list=<-loopback>",
        `--ignore-certificate-errors-spki-list=${options.server.keyHash}`,
        // Tests run beside each other in tabs that nobody sees.
        "--disable-background-timer-throttling",
        "--disable-backgrounding-occluded-windows",
        "--disable-renderer-backgrounding",
        "--disable-ipc-flooding-protection",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-gpu",
        "--no-first-run",
        "--no-default-browser-check",
        "--password-store=basic",
        "--use-mock-keychain",
        "--window-size=1280,900",
        ...(options.args ?? []),
        "about:blank",
    ], { ...process.env, HOME: folder });
    try {
        const endpoint = await program.line(/DevTools listening on (ws:\S+)/);
        const browser = await puppeteer.connect({
            browserWSEndpoint: endpoint,
            defaultViewport: null,
            protocolTimeout: START_LIMIT,
        });
        if (options.privateAllowed ?? true) await allowIncognito(browser, extensionId);
        return {
            name: "chromium",
            version: await browser.version(),
            puppeteer: browser,
            extensionId,
            extensionOrigin,
            host,
            folder,
            ended: program.ended,
            log: () => program.output,
            close: () => close(browser, program, host, folder),
        };
    } catch (error) {
        await program.kill();
        throw error;
    }
}

/**
 * @param {string} folder
 * @param {BrowserOptions} options
 * @returns {Promise<RunningBrowser>}
 */
async function startFirefox(folder, options) {
    const profile = path.join(folder, "profile");
    const extension = path.resolve(options.extension);
    const manifest = JSON.parse(await readFile(path.join(extension, "manifest.json"), "utf8"));
    const extensionId = manifest.browser_specific_settings.gecko.id;
    const host = await NativeHost.install(
        path.join(folder, ".mozilla", "native-messaging-hosts"),
        folder,
        options.host,
        { allowed_extensions: [extensionId] },
    );
    await mkdir(profile);
    const prefs = { ...firefoxPrefs(options.server.port), ...options.prefs };
    const lines = Object.entries(prefs).map(
        ([name, value]) => `user_pref(${JSON.stringify(name)}, ${JSON.stringify(value)});`,
    );
    await writeFile(path.join(profile, "user.js"), lines.join("\n") + "\n");
    const program = new Program("firefox-esr", [
        "--headless",
        "--no-remote",
        "--profile",
        profile,
        "--remote-debugging-port=0",
        // The address bar, private windows and the event page are reached from the browser's own
        // windows; see `evaluateInChrome`.
        "--remote-allow-system-access",
        ...(options.args ?? []),
        "about:blank",
    ], {
        ...process.env,
        HOME: folder,
        XDG_CONFIG_HOME: undefined,
        XDG_CACHE_HOME: undefined,
        MOZ_HEADLESS_WIDTH: "1280",
        MOZ_HEADLESS_HEIGHT: "900",
        MOZ_CRASHREPORTER_DISABLE: "1",
    });
    try {
        const endpoint = await program.line(/WebDriver BiDi listening on (ws:\S+)/);
        const browser = await puppeteer.connect({
            browserWSEndpoint: `${endpoint}/session`,
            protocol: "webDriverBiDi",
            acceptInsecureCerts: true,
            defaultViewport: null,
            protocolTimeout: START_LIMIT,
        });
        await bidi(browser, "webExtension.install", {
            extensionData: { type: "path", path: extension },
            "moz:allowPrivateBrowsing": options.privateAllowed ?? true,
        });
        const uuid = await evaluateInChrome(
            browser,
            (id) => WebExtensionPolicy.getByID(id).mozExtensionHostname,
            extensionId,
        );
        return {
            name: "firefox",
            version: await browser.version(),
            puppeteer: browser,
            extensionId,
            extensionOrigin: `moz-extension://${uuid}`,
            host,
            folder,
            ended: program.ended,
            log: () => program.output,
            close: () => close(browser, program, host, folder),
        };
    } catch (error) {
        await program.kill();
        throw error;
    }
}

/**
 * Sends a command of WebDriver BiDi for which puppeteer has no method.
 *
 * @param {import("puppeteer-core").Browser} browser
 * @param {string} method
 * @param {object} params
 * @returns {Promise<any>}
 */
export async function bidi(browser, method, params) {
    const { result } = await /** @type {any} */ (browser).connection.send(method, params);
    return result;
}

/**
 * Runs a function in Firefox's own window, with the browser's powers: `gBrowser`, `Services` and
 * so on. Arguments and result pass as JSON.
 *
 * @template {any[]} A
 * @template R
 * @param {import("puppeteer-core").Browser} browser
 * @param {(...args: A) => R} code
 * @param {A} args
 * @returns {Promise<Awaited<R>>}
 */
export async function evaluateInChrome(browser, code, ...args) {
    const { contexts } = await bidi(browser, "browsingContext.getTree", {
        "moz:scope": "chrome",
        maxDepth: 0,
    });
    const { result, exceptionDetails } = await bidi(browser, "script.callFunction", {
        target: { context: contexts[0].context },
        awaitPromise: true,
        functionDeclaration: `async (args) => {
            const result = await (${code})(...JSON.parse(args));
            return JSON.stringify(result) ?? "null";
        }`,
        arguments: [{ type: "string", value: JSON.stringify(args) }],
    });
    if (exceptionDetails) throw new Error(`in Firefox's window: ${exceptionDetails.text}`);
    return JSON.parse(result.value);
}

/** The programs that run, which must not outlive the tests. @type {Set<Program>} */
const programs = new Set();

process.on("exit", () => {
    for (const program of programs) program.signal();
});
for (const signal of /** @type {const} */ (["SIGINT", "SIGTERM", "SIGHUP"])) {
    process.once(signal, () => process.exit(1));
}

/** A process of a browser, and what it prints. */
class Program {
    output = "";
    #child;
    #command;

    /**
     * @param {string} command
     * @param {string[]} args
     * @param {NodeJS.ProcessEnv} env
     */
    constructor(command, args, env) {
        this.#command = command;
        this.#child = spawn(command, args, {
            env,
            stdio: ["ignore", "pipe", "pipe"],
            // A group of its own, so that all of the browser's processes can be ended.
            detached: true,
        });
        for (const stream of [this.#child.stdout, this.#child.stderr]) {
            stream.setEncoding("utf8");
            stream.on("data", (text) => {
                this.output = (this.output + text).slice(-100_000);
                this.#child.emit("output");
            });
        }
        programs.add(this);
        /** @type {Promise<string>} */
        this.ended = new Promise((resolve) => {
            this.#child.once("error", (error) => resolve(`${command}: ${error.message}`));
            this.#child.once("exit", (code, signal) =>
                resolve(`${command} ended with ${signal ?? `exit code ${code}`}`));
        });
    }

    /**
     * Waits for a line that the process prints, and returns the first group of `pattern`.
     *
     * @param {RegExp} pattern
     * @returns {Promise<string>}
     */
    async line(pattern) {
        /** @type {Promise<string>} */
        const found = new Promise((resolve) => {
            const look = () => {
                const match = pattern.exec(this.output);
                if (match !== null) resolve(match[1]);
            };
            this.#child.on("output", look);
        });
        const failed = this.ended.then((how) => {
            throw new Error(`${how} before it was ready:\n${this.output}`);
        });
        return withLimit(Promise.race([found, failed]), START_LIMIT, `start of ${this.#command}`);
    }

    /** Ends the browser and every process that it started. */
    async kill() {
        this.signal();
        await this.ended;
    }

    /** Tells the browser and every process that it started to end. */
    signal() {
        programs.delete(this);
        if (this.#child.pid === undefined) return;
        try {
            // The group: browsers are started through scripts, and consist of many processes.
            process.kill(-this.#child.pid, "SIGKILL");
        } catch {
            // It ended by itself.
        }
    }
}

/**
 * Rejects if `promise` is not settled after `limit` milliseconds.
 *
 * @template T
 * @param {Promise<T>} promise
 * @param {number} limit
 * @param {string} what
 * @returns {Promise<T>}
 */
export async function withLimit(promise, limit, what) {
    /** @type {NodeJS.Timeout | undefined} */
    let timer;
    const late = new Promise((_, reject) => {
        const message = `${what} took more than ${limit / 1000} s`;
        timer = setTimeout(() => reject(new Error(message)), limit);
    });
    try {
        return await /** @type {Promise<T>} */ (Promise.race([promise, late]));
    } finally {
        clearTimeout(timer);
    }
}

/**
 * @param {import("puppeteer-core").Browser} browser
 * @param {Program} program
 * @param {NativeHost} host
 * @param {string} folder
 */
async function close(browser, program, host, folder) {
    await browser.disconnect().catch(() => undefined);
    await program.kill();
    await host.close();
    await rm(folder, { recursive: true, force: true, maxRetries: 10, retryDelay: 200 });
}

/**
 * The id that Chromium gives an unpacked extension: of its key, or else of its path.
 *
 * @param {string | undefined} key
 * @param {string} folder
 */
function chromiumExtensionId(key, folder) {
    const bytes = key === undefined ? Buffer.from(folder) : Buffer.from(key, "base64");
    const hash = createHash("sha256").update(bytes).digest("hex").slice(0, 32);
    return [...hash].map((digit) => "abcdefghijklmnop"[parseInt(digit, 16)]).join("");
}

/**
 * Ticks "Allow in Incognito", which only the page of extensions can. That loads the extension
 * anew, and Chromium then disables unpacked ones unless developer mode is on.
 *
 * @param {import("puppeteer-core").Browser} browser
 * @param {string} extensionId
 */
async function allowIncognito(browser, extensionId) {
    const page = await browser.newPage();
    await page.goto("chrome://extensions");
    await page.evaluate(async (id) => {
        const api = /** @type {any} */ (chrome).developerPrivate;
        await api.updateProfileConfiguration({ inDeveloperMode: true });
        await api.updateExtensionConfiguration({ extensionId: id, incognitoAccess: true });
        // A page that opens before the extension is back would talk to the one that is gone.
        for (;;) {
            const { state, incognitoAccess } = await api.getExtensionInfo(id);
            if (state === "ENABLED" && incognitoAccess.isActive) break;
            await new Promise((resolve) => setTimeout(resolve, 25));
        }
    }, extensionId);
    await page.close();
}

/** @param {number} port the proxy's */
function firefoxPrefs(port) {
    return {
        "network.proxy.type": 1,
        "network.proxy.http": "127.0.0.1",
        "network.proxy.http_port": port,
        "network.proxy.ssl": "127.0.0.1",
        "network.proxy.ssl_port": port,
        "network.proxy.no_proxies_on": "",
        "network.proxy.allow_hijacking_localhost": true,
        // Plain http pages are part of the tests.
        "dom.security.https_first": false,
        "dom.security.https_first_schemeless": false,
        // Tests run beside each other in tabs that nobody sees.
        "dom.min_background_timeout_value": 4,
        "dom.timeout.enable_budget_timer_throttling": false,
        // Tests open and close many popups and windows.
        "dom.disable_open_during_load": true,
        "dom.popup_maximum": 1000,
        "browser.tabs.warnOnClose": false,
        "browser.sessionstore.resume_from_crash": false,
        // The manifest, opened in a tab, is a page of every extension: without the viewer.
        "devtools.jsonview.enabled": false,
        // Nothing of the browser's own traffic or first steps is of interest.
        "app.normandy.enabled": false,
        "app.update.disabledForTesting": true,
        "browser.aboutwelcome.enabled": false,
        "browser.newtabpage.enabled": false,
        "browser.safebrowsing.blockedURIs.enabled": false,
        "browser.safebrowsing.malware.enabled": false,
        "browser.safebrowsing.phishing.enabled": false,
        "browser.search.update": false,
        "browser.shell.checkDefaultBrowser": false,
        "browser.startup.homepage_override.mstone": "ignore",
        "browser.startup.page": 0,
        "browser.urlbar.quicksuggest.enabled": false,
        "browser.urlbar.suggest.searches": false,
        "datareporting.policy.dataSubmissionEnabled": false,
        "extensions.getAddons.cache.enabled": false,
        "extensions.systemAddon.update.enabled": false,
        "extensions.update.enabled": false,
        "network.captive-portal-service.enabled": false,
        "network.connectivity-service.enabled": false,
        "network.dns.disablePrefetch": true,
        "network.prefetch-next": false,
        "services.settings.server": "data:,#remote-settings-dummy/v1",
        "toolkit.telemetry.reportingpolicy.firstRun": false,
        "trailhead.firstrun.didSeeAboutWelcome": true,
    };
}
