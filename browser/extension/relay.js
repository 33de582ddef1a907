// The isolated world: between the page and the background. Pages cannot reach the objects of this
// world. It passes on what the page asks as text, and what the browser itself says: that the user
// really did something here.
(() => {
    "use strict";

    /** The longest call, in UTF-16 units. The native host has tighter limits for each kind. */
    const LONGEST_CALL = 128 * 1024;
    /** The most calls of a document that wait for an answer. */
    const MOST_PENDING = 256;
    /** The pauses before a call is asked for, again after the background was lost, in ms. */
    const PAUSES = [0, 50, 200, 500, 1000];

    if (!globalThis.isSecureContext) {
        return;
    }

    let pending = 0;
    /** @type {MessagePort | undefined} */
    let page;

    // The first message comes from our script in the main world, before any script of the page.
    globalThis.addEventListener("message", receivePort, true);

    /** @param {MessageEvent} event */
    function receivePort(event) {
        const fromHere = event.source === globalThis.window && event.data === "bigbird-attribution";
        if (!event.isTrusted || !fromHere || event.ports.length !== 1) {
            return;
        }
        event.stopImmediatePropagation();
        globalThis.removeEventListener("message", receivePort, true);
        page = event.ports[0];
        page.onmessage = (message) => receiveCall(message.data);
    }

    /** @param {unknown} text */
    async function receiveCall(text) {
        if (typeof text !== "string") {
            return;
        }
        const id = /^\[(\d{1,16}),/.exec(text)?.[1];
        if (id === undefined) {
            return;
        }
        const quota = (/** @type {string} */ message) =>
            page?.postMessage(
                `[${id},null,"DOMException","QuotaExceededError",${JSON.stringify(message)}]`,
            );
        if (text.length > LONGEST_CALL) {
            quota(`a call must have at most ${LONGEST_CALL} characters, got ${text.length}`);
            return;
        }
        if (pending >= MOST_PENDING) {
            quota(`at most ${MOST_PENDING} calls of a document may wait for an answer`);
            return;
        }
        pending += 1;
        const answer = await ask(text);
        pending -= 1;
        page?.postMessage(`[${id},${answer}]`);
    }

    /**
     * Asks the background. If it is lost on the way, the call may have been charged already, so it
     * is asked for again as one that may only be answered null.
     * @param {string} text
     * @returns {Promise<string>}
     */
    async function ask(text) {
        const since = performance.now();
        for (const [tried, pause] of PAUSES.entries()) {
            if (pause > 0) {
                await new Promise((resolve) => setTimeout(resolve, pause));
            }
            const lost = tried === 0 ? null : performance.now() - since;
            /** @type {() => void} */
            let giveUp = () => undefined;
            // A page in the back/forward cache gets no answers, in Chromium without an error.
            /** @type {Promise<void>} */
            const restored = new Promise((resolve) => {
                giveUp = resolve;
                waiting.add(giveUp);
            });
            try {
                const message = chrome.runtime.sendMessage({ type: "call", text, lost });
                const answer = await Promise.race([message, restored]);
                if (typeof answer === "string") {
                    return answer;
                }
            } catch {
                // The background stopped.
            } finally {
                waiting.delete(giveUp);
            }
        }
        return 'null,"DOMException","InvalidStateError","the extension was removed or updated"';
    }

    /** Called when this page comes back from the back/forward cache. @type {Set<() => void>} */
    const waiting = new Set();
    globalThis.addEventListener("pageshow", ({ persisted }) => {
        if (persisted) {
            waiting.forEach((resolve) => resolve());
            waiting.clear();
        }
    });

    // Events by which the user activates a page (HTML, "activation triggering input event"). The
    // browser says whether the user really caused one; a page cannot make up such an event.
    for (const type of ["keydown", "pointerdown", "pointerup"]) {
        globalThis.addEventListener(type, noteInput, { capture: true, passive: true });
    }

    /** @param {Event} event */
    function noteInput(event) {
        if (!event.isTrusted) {
            return;
        }
        let act = null;
        if (event instanceof KeyboardEvent) {
            if (event.repeat || event.key === "Escape") {
                return;
            }
            // Keys that operate a control are an act of their own. Typing text is not.
            act = event.key === "Enter" || event.key === " " ? "key" : null;
        } else if (event instanceof PointerEvent) {
            const mouse = event.pointerType === "mouse";
            if (mouse !== (event.type === "pointerdown")) {
                return;
            }
            act = "click";
        }
        // After the extension was removed or updated, nobody is there to be told.
        chrome.runtime?.sendMessage({ type: "input", act }).catch(() => undefined);
    }
})();
