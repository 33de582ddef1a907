// The background: what the browser tells the extension goes from here to the module that it
// concerns. Listeners are added at once, because the browser starts this script anew for an event.

import "./config.js";
import { callerOf, Calls, failed } from "./calls.js";
import { Clearing } from "./clearing.js";
import { hostOf, originOf } from "./documents.js";
import { Gate } from "./gate.js";
import { Headers } from "./headers.js";
import { Host } from "./host.js";
import { InternalsPort } from "./internals-port.js";
import { Policies } from "./policy.js";
import { Tabs } from "./tabs.js";

/**
 * @typedef {import("./host.js").Answer} Answer
 * @type {{
 *   servicesToml: string, profile: string, releaseAfter: number, answerAfter: number,
 *   activationDuration: number,
 * }}
 */
const config = Reflect.get(globalThis, "__bigbirdConfig");

const gate = Gate.load(chrome.runtime.getURL("gate.wasm"), {
    services: config.servicesToml,
    profile: config.profile,
    releaseAfter: config.releaseAfter,
});
const tabs = new Tabs(gate, config.activationDuration);
const policies = new Policies();
const clearing = new Clearing(gate);
const host = new Host(
    () => internals.tellHost(),
    (send) => clearing.sendKept(send),
);
clearing.through(host);
const internals = new InternalsPort(host, () => calls.fallbacks);
const calls = new Calls({
    host,
    gate,
    tabs,
    policies,
    answerAfter: config.answerAfter,
    changed: () => internals.changed(),
});
const headers = new Headers({ calls, clearing, gate, policies });
const ready = Promise.all([tabs.ready, policies.ready, gate]);

chrome.runtime.onMessage.addListener((message, sender, respond) => {
    const arrival = performance.now();
    if (sender.id !== chrome.runtime.id || sender.tab?.id === undefined) {
        return false;
    }
    if (message?.type === "input") {
        const { act } = message;
        const host = hostOf(sender.origin ?? sender.url) ?? "a page";
        const { id } = sender.tab;
        ready.then(() => tabs.input(id, act === "click" || act === "key" ? act : null, host));
        return false;
    }
    if (message?.type !== "call") {
        return false;
    }
    if (isFlood(sender.tab.id, arrival)) {
        const told = `at most ${MOST_CALLS} calls a second of a tab are taken`;
        respond(answerText(failed("QuotaExceededError", told)));
        return false;
    }
    receiveCall(message, sender, arrival).then((answer) => respond(answerText(answer)));
    return true;
});

/** The most calls of a tab that are taken within a second. */
const MOST_CALLS = 400;

/**
 * The calls of each tab in its current second.
 * @type {Map<number, {since: number, calls: number}>}
 */
const recent = new Map();

/**
 * True if a tab calls so often that others would notice. It depends on the tab's own calls alone.
 * @param {number} tab
 * @param {number} now
 */
function isFlood(tab, now) {
    const known = recent.get(tab);
    if (!known || now - known.since >= 1000) {
        recent.set(tab, { since: now, calls: 1 });
        return false;
    }
    known.calls += 1;
    return known.calls > MOST_CALLS;
}

/**
 * @param {{text: string, lost: unknown}} message
 * @param {chrome.runtime.MessageSender} sender
 * @param {number} arrival
 * @returns {Promise<Answer>}
 */
async function receiveCall({ text, lost }, sender, arrival) {
    await ready;
    /** @type {unknown} */
    let parsed;
    try {
        parsed = JSON.parse(text);
    } catch {
        parsed = null;
    }
    const [, method, options] = Array.isArray(parsed) ? parsed : [];
    const known = method === "saveImpression" || method === "measureConversion";
    if (!known || typeof options !== "object" || options === null || Array.isArray(options)) {
        return { ok: false, error: "TypeError", message: "the call is not one of the API" };
    }
    const caller = await callerOf(sender);
    if (!caller) {
        const message = "the document is not fully active";
        return { ok: false, error: "DOMException", name: "InvalidStateError", message };
    }
    const before = typeof lost === "number" && lost > 0 ? lost : 0;
    return calls.make(method, options, caller, arrival - before, lost !== null);
}

/**
 * What the page's script reads of an answer: the report or null, and what went wrong. Nothing more
 * of an answer ever reaches a page.
 * @param {Answer} answer
 */
function answerText(answer) {
    if (answer.ok) {
        return JSON.stringify(answer.report ?? null);
    }
    // A request that the host calls malformed has an option of a wrong type. The page's script
    // converts options, so only a page that goes round it gets here.
    const error = answer.error === "MalformedRequest" ? "TypeError" : answer.error;
    const parts = [error, answer.name ?? error, answer.message];
    return `null,${parts.map((part) => JSON.stringify(String(part))).join(",")}`;
}

chrome.webRequest.onBeforeRequest.addListener(
    (details) => {
        const { tabId } = details;
        // Firefox calls it `originUrl`. It says nothing for what the user starts.
        const initiator = details.initiator ?? Reflect.get(details, "originUrl");
        ready.then(() => tabs.navigationStarts(tabId, originOf(initiator) ?? undefined));
        return undefined;
    },
    { urls: ["<all_urls>"], types: ["main_frame"] },
);

chrome.webRequest.onHeadersReceived.addListener(
    (details) => {
        const arrival = performance.now();
        ready.then(() => headers.received(details, arrival));
        return undefined;
    },
    { urls: ["<all_urls>"] },
    // Chromium shows `Clear-Site-Data` only to those who ask. Firefox does not know the word.
    "EXTRA_HEADERS" in (chrome.webRequest.OnHeadersReceivedOptions ?? {})
        ? ["responseHeaders", "extraHeaders"]
        : ["responseHeaders"],
);

chrome.webNavigation.onCommitted.addListener((details) => {
    const { tabId, frameId, documentId, timeStamp, url } = details;
    const { transitionType, transitionQualifiers } = details;
    ready.then(() => {
        const arrival = { url: url.split("#")[0], at: timeStamp };
        policies.committed({ tab: tabId, frame: frameId }, arrival, documentId);
        if (frameId === 0) {
            tabs.committed(tabId, url, transitionType, transitionQualifiers);
        }
    });
});

chrome.webNavigation.onCreatedNavigationTarget.addListener(({ tabId, sourceTabId }) => {
    ready.then(() => tabs.opened(tabId, sourceTabId));
});

chrome.webNavigation.onTabReplaced.addListener(({ tabId, replacedTabId }) => {
    ready.then(() => tabs.replaced(tabId, replacedTabId));
});

chrome.tabs.onRemoved.addListener((tabId) => {
    ready.then(() => {
        tabs.removed(tabId);
        policies.removed(tabId);
        recent.delete(tabId);
    });
});

chrome.history.onVisitRemoved.addListener((removed) => {
    ready.then(() => clearing.visits(removed));
});

chrome.runtime.onConnect.addListener((port) => internals.accept(port));

chrome.action.onClicked.addListener(() => {
    chrome.tabs.create({ url: chrome.runtime.getURL("internals.html") });
});
