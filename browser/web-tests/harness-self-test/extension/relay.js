// Tells the background what an isolated world sees.
"use strict";

{
    const api = globalThis.browser ?? globalThis.chrome;
    let order = 0;
    const say = (what, more = {}) => {
        const ancestors = globalThis.location.ancestorOrigins;
        const message = {
            what,
            order: order++,
            href: location.href,
            origin: globalThis.origin,
            secure: isSecureContext,
            ancestorOrigins: ancestors && [...ancestors],
            ...more,
        };
        return api.runtime.sendMessage(message).catch(() => undefined);
    };

    say("start");
    for (const type of ["pointerdown", "mousedown", "mouseup", "click", "keydown", "submit"]) {
        addEventListener(
            type,
            (event) => {
                if (!event.isTrusted && type !== "click") return;
                const { isActive, hasBeenActive } = navigator.userActivation ?? {};
                say("input", { type, isTrusted: event.isTrusted, isActive, hasBeenActive });
            },
            true,
        );
    }
    addEventListener("pageshow", (event) => say("pageshow", { persisted: event.persisted }));
    addEventListener("pagehide", (event) => say("pagehide", { persisted: event.persisted }));
    addEventListener("harness-slow", (event) => {
        api.runtime.sendMessage({ what: "slow", milliseconds: Number(event.detail) }).then(
            (answer) => document.documentElement?.setAttribute("slow", JSON.stringify(answer)),
            (error) => document.documentElement?.setAttribute("slow", `rejected: ${error.message}`),
        );
    });
    addEventListener("harness-connect", () => {
        const port = api.runtime.connect({ name: "page" });
        port.onDisconnect.addListener(() => {
            document.documentElement?.setAttribute("port", "disconnected");
        });
    });
    addEventListener("harness", async (event) => {
        const answer = await api.runtime.sendMessage({ what: "echo", text: event.detail });
        dispatchEvent(new CustomEvent("harness-answer", { detail: JSON.stringify(answer) }));
    });
}
