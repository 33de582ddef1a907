// What tests do with a browser, in the same words for Chromium and Firefox.
//
// Input is real: it enters the browser where a mouse's or a keyboard's would, so that events are
// trusted, pages are activated and popups open.

import { randomUUID } from "node:crypto";
import { bidi, evaluateInChrome, withLimit } from "./browser.mjs";

/** @typedef {import("puppeteer-core").Page} Page */
/** @typedef {import("puppeteer-core").Frame} Frame */
/** @typedef {import("./browser.mjs").RunningBrowser} RunningBrowser */

/**
 * Where a page opens: in a tab of the first window unless one of these is given.
 *
 * @typedef {object} TabOptions
 * @property {boolean} [window] in a window of its own
 * @property {boolean} [private] in a private window of its own
 * @property {Tab} [beside] in the window of another tab
 */

/** How long one step may take, on a slow and busy machine. */
const STEP_LIMIT = 30_000;

/** The pause between two looks at something that has no event in both browsers. */
const PAUSE = 25;

export class Driver {
    #browser;
    /** @type {Set<Page>} pages that a `Tab` stands for */
    #claimed = new Set();
    /** @type {Promise<Tab> | undefined} */
    #extensionTab;
    /** @type {Promise<import("puppeteer-core").CDPSession> | undefined} */
    #session;
    /** @type {Promise<Page> | undefined} the tab with which Firefox starts */
    #home;
    /** @type {Promise<unknown>} the last use of the focus */
    #turn = Promise.resolve();

    /** @param {RunningBrowser} browser */
    constructor(browser) {
        this.#browser = browser;
    }

    /** `chromium` or `firefox`. */
    get name() {
        return this.#browser.name;
    }

    get version() {
        return this.#browser.version;
    }

    /** The origin of the extension's pages. */
    get extensionOrigin() {
        return this.#browser.extensionOrigin;
    }

    /** The native host: kill it, take it away, put another in its place. */
    get host() {
        return this.#browser.host;
    }

    /** The throw-away folder: the profile is in it, and it is the home of the native host. */
    get folder() {
        return this.#browser.folder;
    }

    /** How the browser ended, once it has. */
    get ended() {
        return this.#browser.ended;
    }

    /** What the browser printed. */
    get log() {
        return this.#browser.log();
    }

    /**
     * Opens `url` in a new tab, in a window of its own, or in a private window.
     *
     * @param {string} url
     * @param {TabOptions} [options]
     * @returns {Promise<Tab>}
     */
    async open(url, options = {}) {
        const tab = await this.#newTab(options);
        await tab.goto(url);
        return tab;
    }

    /**
     * Opens a page of the extension in a tab.
     *
     * @param {string} path such as `/internals.html`
     * @returns {Promise<Tab>}
     */
    async openExtensionPage(path) {
        const tab = await this.#newTab({});
        const url = this.extensionOrigin + path;
        if (this.name === "chromium") {
            await tab.page.goto(url);
        } else {
            // Firefox sends no events about the extension's pages.
            const context = contextOf(tab.page);
            await bidi(this.#browser.puppeteer, "browsingContext.navigate", {
                context,
                url,
                wait: "none",
            });
            await tab.until((wanted) =>
                location.href.startsWith(wanted) && document.readyState === "complete", url);
        }
        return tab;
    }

    /**
     * Runs a function in a page of the extension, where `chrome` has the extension's powers.
     * Arguments and result pass as JSON.
     *
     * @template {any[]} A
     * @template R
     * @param {(...args: A) => R} code
     * @param {A} args
     * @returns {Promise<Awaited<R>>}
     */
    async evaluateInExtension(code, ...args) {
        // The manifest is a page that every extension has and that runs no code of its own.
        this.#extensionTab ??= this.openExtensionPage("/manifest.json");
        const tab = await this.#extensionTab;
        return tab.evaluate(code, ...args);
    }

    /**
     * Runs a function in the background: the service worker of Chromium, the event page of
     * Firefox. It sees the background's globals, and is started if it does not run. Arguments and
     * result pass as JSON.
     *
     * @template {any[]} A
     * @template R
     * @param {(...args: A) => R} code
     * @param {A} args
     * @returns {Promise<Awaited<R>>}
     */
    async evaluateInBackground(code, ...args) {
        const source = `(${code})(...${JSON.stringify(args)})`;
        if (this.name === "chromium") {
            return this.#evaluateInWorker(source);
        }
        const answer = await evaluateInChrome(
            this.#browser.puppeteer,
            evaluateInEventPage,
            this.#browser.extensionId,
            source,
            randomUUID(),
        );
        if ("error" in answer) throw new Error(`in the event page: ${answer.error}`);
        return JSON.parse(answer.result ?? "null");
    }

    /** Whether the background runs. */
    async backgroundRuns() {
        if (this.name === "chromium") return (await this.#workers()).length > 0;
        return evaluateInChrome(
            this.#browser.puppeteer,
            (id) => WebExtensionPolicy.getByID(id).extension.backgroundState === "running",
            this.#browser.extensionId,
        );
    }

    /**
     * Stops the background as the browser does when it was idle for long. The next event starts
     * it again.
     */
    async stopBackground() {
        if (this.name === "chromium") {
            const session = await this.#devtools();
            const workers = await this.#workers();
            for (const targetId of workers) await session.send("Target.closeTarget", { targetId });
            // Another may run already, if there was an event in between.
            await this.eventually("the service worker stops", async () =>
                (await this.#workers()).every((worker) => !workers.includes(worker)));
            return;
        }
        await evaluateInChrome(
            this.#browser.puppeteer,
            (id) =>
                WebExtensionPolicy.getByID(id).extension.terminateBackground({
                    ignoreDevToolsAttached: true,
                    disableResetIdleForTest: true,
                }),
            this.#browser.extensionId,
        );
    }

    /**
     * Waits until `check` returns something that is neither false, null nor undefined.
     *
     * @template T
     * @param {string} what for the error
     * @param {() => Promise<T> | T} check
     * @param {number} [limit] milliseconds
     * @returns {Promise<Exclude<T, false | null | undefined>>}
     */
    async eventually(what, check, limit = STEP_LIMIT) {
        const end = performance.now() + limit;
        for (;;) {
            const value = await withLimit(Promise.resolve(check()), limit, what);
            if (value !== false && value !== null && value !== undefined) {
                return /** @type {Exclude<T, false | null | undefined>} */ (value);
            }
            if (performance.now() > end) throw new Error(`${what}: not within ${limit / 1000} s`);
            await pause();
        }
    }

    /**
     * Takes over a page that the browser opened by itself.
     *
     * @param {Page} page
     * @returns {Tab}
     */
    adopt(page) {
        this.#claimed.add(page);
        page.once("close", () => this.#claimed.delete(page));
        return new Tab(this, this.#browser, page);
    }

    /**
     * Does something that needs the browser's focus, when nothing else does.
     *
     * @param {() => Promise<unknown>} action
     */
    async takeTurn(action) {
        const turn = this.#turn.then(action);
        this.#turn = turn.catch(() => undefined);
        await turn;
    }

    /** @param {TabOptions} options */
    async #newTab(options) {
        if (options.private) return this.#newPrivateWindow();
        if (options.beside !== undefined && this.name === "chromium") {
            return this.#newChromiumTab(options.beside);
        }
        // Chromium: always a window, because tests run at the same time, and a tab that another
        // covers never finishes a click. Firefox: windows take seconds, and tabs take clicks.
        if (options.window || this.name === "chromium") {
            return this.adopt(await this.#browser.puppeteer.newPage({ type: "window" }));
        }
        return this.#newFirefoxTab(options.beside);
    }

    async #newPrivateWindow() {
        const url = `about:blank#${randomUUID()}`;
        await this.evaluateInExtension(async (url) => {
            const made = await chrome.windows.create({ url, incognito: true });
            if (!made?.incognito) throw new Error("the browser opened no private window");
        }, url);
        return this.adopt(await this.eventually("the new window", () => this.#pageAt(url)));
    }

    /** @param {Tab | undefined} beside */
    async #newFirefoxTab(beside) {
        // Puppeteer's `newPage` takes whatever window is in front, which may be a private one.
        const browser = this.#browser.puppeteer;
        this.#home ??= browser.pages().then((pages) => pages[0]);
        const referenceContext = contextOf(beside?.page ?? await this.#home);
        const { context } = await retryDiscarded(() =>
            bidi(browser, "browsingContext.create", {
                type: "tab",
                referenceContext,
                background: true,
            }));
        const page = await this.eventually("the new tab", async () =>
            (await browser.pages()).find((page) => contextOf(page) === context));
        return this.adopt(page);
    }

    /** @param {Tab} beside */
    async #newChromiumTab(beside) {
        const url = `about:blank#${randomUUID()}`;
        await this.evaluateInExtension(async (windowId, url) => {
            await chrome.tabs.create({ windowId, url });
        }, await beside.windowId(), url);
        return this.adopt(await this.eventually("the new tab", () => this.#pageAt(url)));
    }

    /**
     * The page whose address is `url`, which puppeteer may not know yet.
     *
     * @param {string} url
     */
    async #pageAt(url) {
        for (const page of await this.#browser.puppeteer.pages()) {
            if (this.#claimed.has(page)) continue;
            const address = page.evaluate(() => location.href);
            const found = await withLimit(address, 1000, "look at a tab").catch(() => "");
            if (found === url) return page;
        }
        return undefined;
    }

    /** Chromium's own protocol, for the browser as a whole. */
    #devtools() {
        this.#session ??= this.#browser.puppeteer.target().createCDPSession();
        return this.#session;
    }

    /** The ids of the service workers that run: none or one. */
    async #workers() {
        // Puppeteer's list of targets loses workers when the extension is loaded anew.
        const session = await this.#devtools();
        const { targetInfos } = await session.send("Target.getTargets");
        return targetInfos
            .filter(({ type, url }) =>
                type === "service_worker" && url.startsWith(this.extensionOrigin))
            .map(({ targetId }) => targetId);
    }

    /**
     * @param {string} source
     * @returns {Promise<any>}
     */
    async #evaluateInWorker(source) {
        const targetId = await this.eventually("the service worker starts", async () => {
            const [worker] = await this.#workers();
            if (worker !== undefined) return worker;
            // A message wakes it, and whether anyone answers does not matter.
            await this.evaluateInExtension(() => {
                chrome.runtime.sendMessage({ what: "wake" }).catch(() => undefined);
            });
            return undefined;
        });
        const session = await this.#devtools();
        const { sessionId } = await session.send("Target.attachToTarget", {
            targetId,
            flatten: true,
        });
        const worker = session.connection()?.session(sessionId);
        if (!worker) throw new Error("the service worker ended while it was asked");
        try {
            return await evaluateInSession(worker, source);
        } finally {
            // A worker that is debugged never stops.
            await session.send("Target.detachFromTarget", { sessionId }).catch(() => undefined);
        }
    }
}

/** A frame of a page, or the page itself: what one document shows. */
class View {
    /** @param {Driver} driver */
    constructor(driver) {
        this.driver = driver;
    }

    /** @returns {Frame} */
    get frame() {
        throw new Error("a view has a frame");
    }

    /** @returns {Page} */
    get page() {
        return this.frame.page();
    }

    /** The address of the document. */
    async url() {
        return this.evaluate(() => location.href);
    }

    /**
     * Runs a function in the document, in the page's own world.
     *
     * @template {any[]} A
     * @template R
     * @param {(...args: A) => R} code
     * @param {A} args
     * @returns {Promise<Awaited<R>>}
     */
    async evaluate(code, ...args) {
        return /** @type {any} */ (this.frame).evaluate(code, ...args);
    }

    /**
     * Waits until a function of the document is true, also across navigations.
     *
     * @template {any[]} A
     * @param {(...args: A) => unknown} code
     * @param {A} args
     */
    async until(code, ...args) {
        await this.driver.eventually(`the page reaches ${code}`, async () => {
            const answer = this.evaluate(code, ...args);
            return withLimit(answer.then(Boolean), 5000, "the page").catch(() => false);
        });
    }

    /**
     * Clicks the middle of an element with the mouse.
     *
     * @param {string} selector
     */
    async click(selector) {
        await this.#input(`click on ${selector}`, () => this.#click(selector));
    }

    /**
     * Clicks an element that takes text, and types.
     *
     * @param {string} selector
     * @param {string} text
     */
    async type(selector, text) {
        await this.#input(`typing in ${selector}`, async () => {
            await this.#click(selector);
            if (this.driver.name === "chromium") await this.page.keyboard.type(text);
            else await this.#perform("key", [...text].flatMap(keyStrokes));
        });
    }

    /**
     * Presses and releases a key in this document.
     *
     * @param {string} key a character, `Enter`, `Tab`, `Escape` or `Space`
     */
    async press(key) {
        await this.#input(`key ${key}`, async () => {
            const { keyboard } = this.page;
            if (this.driver.name === "chromium") await keyboard.press(/** @type {any} */ (key));
            else await this.#perform("key", keyStrokes(KEY_CODES.get(key) ?? key));
        });
    }

    /** @param {string} selector */
    async #click(selector) {
        if (this.driver.name === "chromium") {
            await this.frame.click(selector);
            return;
        }
        // Puppeteer clicks in the page around a frame, and Firefox does not pass that on to a
        // frame of another site.
        const [x, y] = await this.evaluate((selector) => {
            const element = document.querySelector(selector);
            if (element === null) throw new Error(`no element ${selector}`);
            element.scrollIntoView({ block: "center", inline: "center", behavior: "instant" });
            const { left, top, width, height } = element.getBoundingClientRect();
            return [left + width / 2, top + height / 2];
        }, selector);
        await this.#perform("pointer", [
            { type: "pointerMove", x: Math.floor(x), y: Math.floor(y) },
            { type: "pointerDown", button: 0 },
            { type: "pointerUp", button: 0 },
        ]);
    }

    /**
     * @param {"pointer" | "key"} type
     * @param {object[]} actions
     */
    async #perform(type, actions) {
        const context = contextOf(this.frame);
        const source = { type, id: `tests-${type}`, actions };
        await bidi(this.page.browser(), "input.performActions", { context, actions: [source] });
    }

    /**
     * Brings the tab to the front and uses mouse or keyboard, of which a browser has only one.
     *
     * @param {string} what
     * @param {() => Promise<unknown>} action
     */
    async #input(what, action) {
        await this.driver.takeTurn(async () => {
            await this.bringToFront();
            await withLimit(action(), STEP_LIMIT, what);
        });
    }

    /** Brings the tab to the front of its window; see `takeTurn`. */
    async bringToFront() {
        await retryDiscarded(() =>
            withLimit(this.page.bringToFront(), STEP_LIMIT, "bringing a tab to the front"));
    }

    /**
     * A frame inside, once its document is complete.
     *
     * @param {string | ((frame: Frame) => boolean)} which part of its address, or a test
     * @returns {Promise<View>}
     */
    async child(which) {
        const matches = typeof which === "function"
            ? which
            : (/** @type {Frame} */ frame) => frame.url().includes(which);
        // The frame is looked up anew each time: while it moves to another process, a driver may
        // show one that never answers.
        return this.driver.eventually(`a frame like ${which}`, async () => {
            const frame = this.frame.childFrames().find(matches);
            if (frame === undefined) return null;
            const view = new FrameView(this.driver, frame);
            const ready = view.evaluate(() => document.readyState === "complete");
            return (await withLimit(ready, 2000, "the frame").catch(() => false)) ? view : null;
        });
    }
}

class FrameView extends View {
    #frame;

    /**
     * @param {Driver} driver
     * @param {Frame} frame
     */
    constructor(driver, frame) {
        super(driver);
        this.#frame = frame;
    }

    get frame() {
        return this.#frame;
    }
}

/** A tab of a window. */
export class Tab extends View {
    #browser;
    #page;

    /**
     * @param {Driver} driver
     * @param {RunningBrowser} browser
     * @param {Page} page
     */
    constructor(driver, browser, page) {
        super(driver);
        this.#browser = browser;
        this.#page = page;
    }

    get page() {
        return this.#page;
    }

    get frame() {
        return this.#page.mainFrame();
    }

    /**
     * Goes to an address as a bookmark or another program would. Both browsers report it as a
     * `link` or a `typed` navigation without a page that caused it; `typeAddress` is the user's.
     *
     * @param {string} url
     */
    async goto(url) {
        if (this.#browser.name === "chromium") {
            await this.#page.goto(url, { waitUntil: "load", timeout: STEP_LIMIT });
            return;
        }
        // Puppeteer loses track of Firefox's navigations after a page from the cache.
        await this.#navigate("browsingContext.navigate", { url });
    }

    /**
     * Goes to an address as if it was typed in the address bar.
     *
     * Firefox: the address bar's own code runs, from the text in it to the load. Chromium has no
     * way to reach the bar: the navigation is started with the transition that the bar would use.
     *
     * @param {string} url
     */
    async typeAddress(url) {
        if (this.#browser.name === "chromium") {
            await this.settles(async () => {
                const session = await this.#page.createCDPSession();
                await session.send("Page.navigate", { url, transitionType: "typed" });
                await session.detach();
            });
            return;
        }
        // Firefox takes a navigation for typed if it begins in the window in front.
        await this.driver.takeTurn(async () => {
            await this.bringToFront();
            await this.settles(() => this.#inWindow((tab, url) => {
                const window = tab.ownerDocument.defaultView;
                window.gURLBar.focus();
                window.gURLBar.value = url;
                window.gURLBar.handleCommand(new window.KeyboardEvent("keydown", { key: "Enter" }));
            }, url));
        });
    }

    /** Goes back, and says whether the page came out of the back/forward cache. */
    async back() {
        return this.#traverse(-1);
    }

    /** Goes forward, and says whether the page came out of the back/forward cache. */
    async forward() {
        return this.#traverse(1);
    }

    /** Loads the page again as the button does. */
    async reload() {
        if (this.#browser.name === "chromium") {
            await this.#page.reload({ waitUntil: "load", timeout: STEP_LIMIT });
            return;
        }
        await this.#navigate("browsingContext.reload", {});
    }

    /**
     * Does something that leads to another document, and waits until that is complete.
     *
     * @param {() => Promise<unknown>} action
     */
    async settles(action) {
        const before = await this.evaluate(() => performance.timeOrigin);
        await action();
        await this.until(
            (before) =>
                performance.timeOrigin !== before
                && document.readyState === "complete"
                && location.href !== "about:blank",
            before,
        );
    }

    /**
     * Clicks something that leads to another document, and waits until that is complete.
     *
     * @param {string} selector
     */
    async follow(selector) {
        await this.settles(() => this.click(selector));
    }

    /**
     * Does something that opens a window or tab, and returns that once its document is complete.
     *
     * @param {() => Promise<unknown>} action
     * @returns {Promise<Tab>}
     */
    async popup(action) {
        /** @type {Promise<Page>} */
        const opened = new Promise((resolve) =>
            this.#page.once("popup", (page) => page && resolve(page)));
        await action();
        const tab = this.driver.adopt(await withLimit(opened, STEP_LIMIT, "the popup"));
        await tab.until(() =>
            document.readyState === "complete" && location.href !== "about:blank");
        return tab;
    }

    /** The window's number in the extension API. */
    async windowId() {
        if (this.#browser.name === "chromium") {
            const session = await this.#page.createCDPSession();
            const { windowId } = await session.send("Browser.getWindowForTarget");
            await session.detach();
            return windowId;
        }
        return this.#inWindow((tab) => {
            const { ExtensionParent } = ChromeUtils.importESModule(
                "resource://gre/modules/ExtensionParent.sys.mjs",
            );
            const { windowTracker } = ExtensionParent.apiManager.global;
            return windowTracker.getId(tab.ownerDocument.defaultView);
        });
    }

    /**
     * A picture of what is visible, as PNG.
     *
     * @param {string} path
     */
    async screenshot(path) {
        await this.driver.takeTurn(async () => {
            await this.bringToFront();
            await this.#page.screenshot({ path: /** @type {`${string}.png`} */ (path) });
        });
    }

    async close() {
        if (!this.#page.isClosed()) await this.#page.close();
    }

    /**
     * @param {string} method
     * @param {object} params
     */
    async #navigate(method, params) {
        const context = contextOf(this.#page);
        const command = { ...params, context, wait: "complete" };
        await withLimit(bidi(this.#browser.puppeteer, method, command), STEP_LIMIT, method);
    }

    /** @param {-1 | 1} steps */
    async #traverse(steps) {
        const left = await this.evaluate(() => performance.timeOrigin + performance.now());
        await this.settles(async () => {
            // Puppeteer's own methods wait for a load, which a page from the cache does not have.
            if (this.#browser.name === "chromium") {
                const session = await this.#page.createCDPSession();
                const { currentIndex, entries } = await session.send("Page.getNavigationHistory");
                const entryId = entries[currentIndex + steps].id;
                await session.send("Page.navigateToHistoryEntry", { entryId });
                await session.detach().catch(() => undefined);
                return;
            }
            await bidi(this.#browser.puppeteer, "browsingContext.traverseHistory", {
                context: contextOf(this.#page),
                delta: steps,
            });
        });
        return this.evaluate((left) => performance.timeOrigin < left, left);
    }

    /**
     * Runs a function in Firefox's own window, with this tab as its first argument.
     *
     * @template {any[]} A
     * @template R
     * @param {(tab: any, ...args: A) => R} code
     * @param {A} args
     * @returns {Promise<Awaited<R>>}
     */
    async #inWindow(code, ...args) {
        return /** @type {any} */ (evaluateInChrome)(
            this.#browser.puppeteer,
            `async (context, args) => {
                const { NavigableManager } = ChromeUtils.importESModule(
                    "chrome://remote/content/shared/NavigableManager.sys.mjs",
                );
                const browser = NavigableManager.getBrowserById(context);
                const window = browser.ownerDocument.defaultView;
                const tab = window.gBrowser.getTabForBrowser(browser);
                return (${code})(tab, ...args);
            }`,
            contextOf(this.#page),
            args,
        );
    }
}

/**
 * @param {import("puppeteer-core").CDPSession} session
 * @param {string} source
 */
async function evaluateInSession(session, source) {
    const { result, exceptionDetails } = await session.send("Runtime.evaluate", {
        expression: `(async () => JSON.stringify(await ${source}))()`,
        awaitPromise: true,
        returnByValue: true,
    });
    if (exceptionDetails !== undefined) {
        const { exception, text } = exceptionDetails;
        throw new Error(`in the service worker: ${exception?.description ?? text}`);
    }
    return JSON.parse(result.value ?? "null");
}

/**
 * Repeats a command that fails because Firefox waits for the tab in front to become hidden, and
 * another test closes that.
 *
 * @template T
 * @param {() => Promise<T>} command
 * @returns {Promise<T>}
 */
async function retryDiscarded(command) {
    for (let attempt = 1; ; attempt += 1) {
        try {
            return await command();
        } catch (error) {
            if (attempt === 5 || !String(error).includes("DiscardedBrowsingContext")) throw error;
        }
    }
}

/** @param {number} [milliseconds] */
export function pause(milliseconds = PAUSE) {
    return new Promise((resolve) => setTimeout(resolve, milliseconds));
}

/**
 * The id of a document in WebDriver BiDi.
 *
 * @param {Page | Frame} view
 * @returns {string}
 */
function contextOf(view) {
    const frame = "mainFrame" in view ? view.mainFrame() : view;
    return /** @type {any} */ (frame)._id;
}

/** The codes of WebDriver for keys that are not characters. */
const KEY_CODES = new Map([
    ["Enter", "\uE007"],
    ["Tab", "\uE004"],
    ["Escape", "\uE00C"],
    ["Space", " "],
]);

/** @param {string} value */
function keyStrokes(value) {
    return [{ type: "keyDown", value }, { type: "keyUp", value }];
}

/**
 * Runs in Firefox's window: evaluates `source` in the event page of an extension.
 *
 * @param {string} id
 * @param {string} source
 * @param {string} answer the name of the message that brings the answer
 * @returns {Promise<{ result?: string } | { error: string }>}
 */
async function evaluateInEventPage(id, source, answer) {
    const extension = WebExtensionPolicy.getByID(id).extension;
    await extension.wakeupBackground?.();
    const manager = extension.backgroundContext.xulBrowser.messageManager;
    const script = `(async () => {
        try {
            const options = { sandboxPrototype: content.wrappedJSObject, wantXrays: false };
            const sandbox = Cu.Sandbox(content, options);
            const code = "(async () => JSON.stringify(await " + ${JSON.stringify(source)} + "))()";
            const result = await Cu.evalInSandbox(code, sandbox);
            sendAsyncMessage(${JSON.stringify(answer)}, { result });
        } catch (error) {
            sendAsyncMessage(${JSON.stringify(answer)}, { error: String(error) });
        }
    })()`;
    return new Promise((resolve) => {
        manager.addMessageListener(answer, function listener(/** @type {any} */ message) {
            manager.removeMessageListener(answer, listener);
            resolve(message.data);
        });
        manager.loadFrameScript(`data:,${encodeURIComponent(script)}`, false);
    });
}
