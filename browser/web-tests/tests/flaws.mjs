// Deliberate mistakes in the extension, and the test that must notice each of them. A test that
// cannot fail is worse than none: `broken.mjs` makes every mistake and expects the test to fail.

/**
 * @typedef {object} Flaw
 * @property {string} name
 * @property {string} file a file of the extension
 * @property {string} from what it says
 * @property {string} to what the broken variant says
 * @property {{ file: string, from: string, to: string }} [also] a second change
 * @property {string} caughtBy the file and the name of the test that fails
 */

/** @type {Flaw[]} */
export const FLAWS = [
    {
        name: "events that pages make up count as input",
        file: "relay.js",
        from: "if (!event.isTrusted) {",
        to: "if (false) {",
        caughtBy: "activation: without an act of the user, calls are not allowed",
    },
    {
        name: "every navigation begins a user action",
        file: "tabs.js",
        from: "if (!own && !initiator && (words",
        to: "if (true || (words",
        caughtBy: "activation: a chain of redirects over five sites involves two of them",
    },
    {
        name: "a window that a page opens begins a user action of its own",
        file: "tabs.js",
        from: "const { action, label } = this.#tab(source);",
        to: "const { label } = this.#tab(source); const action = newAction();",
        caughtBy: "activation: windows that a page opens carry its user action",
    },
    {
        name: "private windows are like others",
        file: "calls.js",
        from: "...(inPrivate ? { private: true } : {}),",
        to: "",
        caughtBy: "private: in a private window, calls look the same and nothing is kept",
    },
    {
        name: "options of a page may replace what the browser says",
        file: "calls.js",
        from: "            options,\n        };\n    }",
        to: "            ...options,\n            options,\n        };\n    }",
        caughtBy: "hostile: sites, user actions and privacy cannot be claimed in options",
    },
    {
        name: "the page's script uses built-in objects when it is called",
        file: "page.js",
        from: "apply(post, port, [stringify(request)]);",
        to: "port.postMessage(JSON.stringify(request));",
        caughtBy: "hostile: a page that changes built-in objects changes nothing in the API",
    },
    {
        name: "the relay listens in pages that are not secure, and nobody looks",
        file: "relay.js",
        from: "if (!globalThis.isSecureContext) {",
        to: "if (false) {",
        also: {
            file: "documents.js",
            from: 'origin.startsWith("https://")',
            to: 'origin.startsWith("http")',
        },
        caughtBy: "hostile: a page that is not secure finds no way to the API",
    },
    {
        name: "policies are not enforced",
        file: "calls.js",
        from: "if (!this.#policies.allows(feature, caller.tab, caller.path)) {",
        to: "if (false) {",
        caughtBy: "frames: Permissions-Policy of the page forbids the API to all",
    },
    {
        name: "nothing answers for a host that is missing",
        file: "calls.js",
        from: 'ready.answer = gate.call({ event: "null", call: request });',
        to: 'ready.answer = { ok: true, report: "" };',
        caughtBy: "host: a host that is missing, and comes back",
    },
    {
        name: "answers are released when they are ready",
        file: "calls.js",
        from: "await delay(due);",
        to: "",
        caughtBy: "host: a host that ends at once",
    },
    {
        name: "what is cleared while the host is away is forgotten",
        file: "clearing.js",
        from: "list.push(...added);",
        to: "",
        caughtBy: "clearing: what is cleared while the host is away is cleared when it is back",
    },
];
