// Records every event that the harness's own tests ask about, and echoes through the native host.

const api = globalThis.browser ?? globalThis.chrome;

/** Everything that happened, oldest first; tests read it with `evaluateInBackground`. */
const events = [];
globalThis.events = events;
globalThis.started = Math.random();

function record(kind, details) {
    events.push({ kind, ...details });
    if (events.length > 20_000) events.shift();
}

let port = null;
let number = 0;
const waiting = new Map();

function connect() {
    port = api.runtime.connectNative("bigbird_stub");
    port.onMessage.addListener((message) => {
        record("native", { message });
        waiting.get(message.id)?.(message);
        waiting.delete(message.id);
    });
    port.onDisconnect.addListener((lost) => {
        const error = lost.error?.message ?? api.runtime.lastError?.message ?? null;
        record("disconnect", { error });
        port = null;
        for (const resolve of waiting.values()) resolve({ disconnected: error });
        waiting.clear();
    });
}

globalThis.echo = (text) => {
    if (port === null) connect();
    const id = number++;
    return new Promise((resolve) => {
        waiting.set(id, resolve);
        port.postMessage({ id, text });
    });
};

api.runtime.onMessage.addListener((message, sender, answer) => {
    const { tab, ...rest } = sender;
    record("message", {
        message,
        sender: {
            ...rest,
            keys: Object.keys(sender).sort(),
            tab: tab && { id: tab.id, url: tab.url, incognito: tab.incognito },
        },
    });
    if (message.what === "slow") {
        setTimeout(() => answer({ slow: message.milliseconds }), message.milliseconds);
        return true;
    }
    if (message.what !== "echo") return false;
    globalThis.echo(message.text).then(answer);
    return true;
});

api.runtime.onConnect.addListener((page) => {
    record("connect", { url: page.sender?.url });
    page.onDisconnect.addListener(() => record("pageDisconnect", { url: page.sender?.url }));
});

const NAVIGATION_EVENTS = [
    "onBeforeNavigate",
    "onCommitted",
    "onDOMContentLoaded",
    "onCompleted",
    "onCreatedNavigationTarget",
    "onHistoryStateUpdated",
    "onReferenceFragmentUpdated",
    "onTabReplaced",
    "onErrorOccurred",
];
for (const name of NAVIGATION_EVENTS) {
    api.webNavigation[name]?.addListener((details) => record(name, details));
}

const FILTER = { urls: ["<all_urls>"] };
api.webRequest.onBeforeRequest.addListener((details) => record("onBeforeRequest", details), FILTER);
for (const name of ["onHeadersReceived", "onBeforeRedirect"]) {
    const extra = ["responseHeaders"];
    if (!api.runtime.getBrowserInfo) extra.push("extraHeaders");
    api.webRequest[name].addListener((details) => record(name, details), FILTER, extra);
}

api.history.onVisited.addListener((item) => record("visited", item));
api.history.onVisitRemoved.addListener((removed) => record("visitRemoved", removed));
api.tabs.onRemoved.addListener((tabId) => record("tabRemoved", { tabId }));
api.runtime.onSuspend?.addListener(() => record("suspend", {}));
