// What the user did in each tab: the user action that everything in the tab belongs to, and the
// activation that the draft asks for. Both come from the browser's own signals. A page cannot make
// one up.

import { hostOf } from "./documents.js";

/**
 * @typedef {{enabled: boolean, activated: number | null}} Activation
 * @typedef {{
 *   action: number, label: string, activation: Activation,
 * }} Tab
 * @typedef {import("./gate.js").Gate} Gate
 */

/** The kinds of navigation that the user starts in the browser's own interface. */
const FROM_BROWSER = new Map([
    ["typed", "an address was typed"],
    ["auto_bookmark", "a bookmark was opened"],
    ["generated", "an address was chosen"],
    ["keyword", "a search was typed"],
    ["keyword_generated", "a search was typed"],
    ["start_page", "the browser was started"],
    ["auto_toplevel", "the browser was started"],
]);

const KEY = "tabs";

export class Tabs {
    /** @type {Map<number, Tab>} */
    #tabs = new Map();
    /** The origins that started the navigations that are under way. @type {Map<number, string>} */
    #initiators = new Map();
    /** @type {Promise<Gate>} */
    #gate;
    #duration;
    /** Resolves when what an earlier background knew is read. */
    ready;

    /**
     * @param {Promise<Gate>} gate
     * @param {number} duration The duration of an activation, in milliseconds.
     */
    constructor(gate, duration) {
        this.#gate = gate;
        this.#duration = duration;
        this.ready = this.#load();
    }

    async #load() {
        const stored = await chrome.storage.session.get(KEY);
        const listed = /** @type {[number, Tab][]} */ (stored[KEY] ?? []);
        for (const [id, tab] of listed) {
            this.#tabs.set(id, tab);
        }
    }

    /** Keeps the state for a background that is started again. */
    #keep() {
        chrome.storage.session.set({ [KEY]: [...this.#tabs] }).catch(() => undefined);
    }

    /**
     * A tab. One that is seen for the first time begins a user action of its own.
     * @param {number} id
     * @returns {Tab}
     */
    #tab(id) {
        const known = this.#tabs.get(id);
        if (known) {
            return known;
        }
        const activation = { enabled: false, activated: null };
        const tab = { action: newAction(), label: "the tab was opened", activation };
        this.#tabs.set(id, tab);
        return tab;
    }

    /**
     * The user action of a tab, with words for people.
     * @param {number} id
     */
    action(id) {
        const { action, label } = this.#tab(id);
        return { userAction: action, actionLabel: label };
    }

    /**
     * The user acted on a page of a tab. An act begins a user action. Typing text only keeps the
     * page active.
     * @param {number} id
     * @param {"click" | "key" | null} act
     * @param {string} host
     */
    async input(id, act, host) {
        const tab = this.#tab(id);
        if (act) {
            tab.action = newAction();
            tab.label = label(
                act === "key" ? `a key was pressed on ${host}` : `a click on ${host}`,
            );
        }
        await this.#activate(tab, "activate");
        this.#keep();
    }

    /**
     * A navigation of a tab begins. The page that starts it is known now, not when it is committed.
     * @param {number} id
     * @param {string | undefined} initiator
     */
    navigationStarts(id, initiator) {
        if (initiator) {
            this.#initiators.set(id, initiator);
        } else {
            this.#initiators.delete(id);
        }
    }

    /**
     * A navigation of a tab is committed.
     * @param {number} id
     * @param {string} url
     * @param {string} [type]
     * @param {string[]} [qualifiers]
     */
    async committed(id, url, type, qualifiers = []) {
        const tab = this.#tab(id);
        const initiator = this.#initiators.get(id);
        this.#initiators.delete(id);
        await this.#activate(tab, "navigate", hostOf(initiator), hostOf(url));
        // A page that redirects itself goes on with the action that led to it, whatever that was.
        // So does one that is reloaded, or that is reached by going back: a page can do that too.
        const own = qualifiers.includes("client_redirect") || qualifiers.includes("forward_back");
        const words = FROM_BROWSER.get(type ?? "");
        if (!own && !initiator && (words || qualifiers.includes("from_address_bar"))) {
            tab.action = newAction();
            tab.label = label(words ?? "an address was typed");
            await this.#activate(tab, "activate");
        }
        this.#keep();
    }

    /**
     * A page opened a tab or a window. What happens there was caused by the same user action.
     * @param {number} id
     * @param {number} source
     */
    opened(id, source) {
        const { action, label } = this.#tab(source);
        const activation = { enabled: false, activated: null };
        this.#tabs.set(id, { action, label, activation });
        this.#keep();
    }

    /**
     * A tab takes the place of another, which the browser had prepared.
     * @param {number} added
     * @param {number} removed
     */
    replaced(added, removed) {
        const tab = this.#tabs.get(removed);
        if (tab) {
            this.#tabs.set(added, tab);
        }
        this.removed(removed);
    }

    /** @param {number} id */
    removed(id) {
        this.#tabs.delete(id);
        this.#initiators.delete(id);
        this.#keep();
    }

    /**
     * Checks that pages of a tab may call the API now (the draft's "check attribution API
     * activation"). Returns the error if they may not.
     * @param {number} id
     * @returns {Promise<import("./host.js").Answer | null>}
     */
    async check(id) {
        const tab = this.#tab(id);
        const { enabled } = tab.activation;
        const refused = await this.#activate(tab, "check");
        if (tab.activation.enabled !== enabled) {
            this.#keep();
        }
        return refused;
    }

    /**
     * @param {Tab} tab
     * @param {"activate" | "navigate" | "check"} act
     * @param {string | null} [initiator]
     * @param {string | null} [response]
     */
    async #activate(tab, act, initiator, response) {
        const gate = await this.#gate;
        const answer = gate.call({
            event: "activation",
            act,
            tab: tab.activation,
            duration: this.#duration,
            now: Date.now(),
            ...(initiator ? { initiator } : {}),
            ...(response ? { response } : {}),
        });
        if (!answer.ok) {
            return answer;
        }
        tab.activation = answer.tab;
        return null;
    }
}

/**
 * A number for a user action: 48 random bits. No other action of the same epoch gets the same one,
 * also after a restart, but for a chance of one in a billion for a thousand actions.
 */
function newAction() {
    const [high, low] = crypto.getRandomValues(new Uint32Array(2));
    return (high & 0xffff) * 2 ** 32 + low;
}

/**
 * Words for a user action, as long as the native host allows.
 * @param {string} words
 */
function label(words) {
    const limit = 64;
    // A host name has only ASCII characters here, so characters are bytes.
    return words.length <= limit ? words : `${words.slice(0, limit - 3)}...`;
}
