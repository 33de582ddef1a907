/**
 * Elements from data. Nothing here parses markup: the names of sites are chosen by strangers, so
 * they only ever become text.
 */

import { exactMoment, moment, visible } from "./format.js";

/** @typedef {Node | string | number | null | undefined | false} Child */

/**
 * Creates an element. Attributes that are null, undefined or false are left out; `on…` attributes
 * with a function are event listeners.
 *
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {Record<string, unknown> | null} [attributes]
 * @param {...(Child | Child[])} children
 * @returns {HTMLElementTagNameMap[T]}
 */
export function el(tag, attributes, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes ?? {})) {
        if (typeof value === "function") {
            const listener = /** @type {EventListener} */ (value);
            element.addEventListener(name.replace(/^on/, ""), listener);
        } else if (value === true) {
            element.setAttribute(name, "");
        } else if (value !== null && value !== undefined && value !== false) {
            element.setAttribute(name, String(value));
        }
    }
    element.append(...nodes(children));
    return element;
}

/**
 * Children without those that are left out.
 *
 * @param {(Child | Child[])[]} children
 * @returns {(Node | string)[]}
 */
export function nodes(children) {
    /** @type {(Node | string)[]} */
    const kept = [];
    for (const child of children.flat()) {
        if (child instanceof Node) {
            kept.push(child);
        } else if (child !== null && child !== undefined && child !== false && child !== "") {
            kept.push(String(child));
        }
    }
    return kept;
}

/**
 * Sets the text of a node, and leaves the node alone if it has that text. Assistive technology
 * reads a live region again even if the new text is the old one.
 *
 * @param {Node} node
 * @param {string} text
 */
export function setText(node, text) {
    if (node.textContent !== text) {
        node.textContent = text;
    }
}

/**
 * The name of a site. It reads from left to right and cannot change the direction of what is
 * around it.
 *
 * @param {string} name
 * @returns {HTMLElement}
 */
export function host(name) {
    return el("bdi", { class: "host", dir: "ltr" }, visible(name));
}

/**
 * Text of others, in its own direction.
 *
 * @param {string} text
 * @returns {HTMLElement}
 */
export function foreign(text) {
    return el("bdi", { class: "foreign" }, visible(text));
}

/**
 * The names of sites, one after the other.
 *
 * @param {string[]} names
 * @param {string} none what to say if there is none
 * @returns {Child[]}
 */
export function hosts(names, none) {
    if (names.length === 0) {
        return [none];
    }
    return names.flatMap((name, place) => (place === 0 ? [host(name)] : [", ", host(name)]));
}

/**
 * A moment, with its seconds on hover.
 *
 * @param {number} seconds
 * @returns {HTMLElement}
 */
export function time(seconds) {
    const iso = new Date(seconds * 1000).toISOString();
    return el("time", { datetime: iso, title: exactMoment(seconds) }, moment(seconds));
}

/**
 * Changes the page without moving what the user looks at: the element with the focus, or else what
 * is in the middle of the window. At the top of the page, new things may push others down.
 *
 * @param {() => void} change
 */
export function keepPlace(change) {
    const anchor = window.scrollY === 0 ? null : placeToKeep();
    const before = anchor?.getBoundingClientRect().top ?? 0;
    change();
    if (anchor?.isConnected) {
        const moved = anchor.getBoundingClientRect().top - before;
        if (moved !== 0) {
            window.scrollBy({ top: moved, behavior: "instant" });
        }
    }
}

/** @returns {Element | null} */
function placeToKeep() {
    const active = document.activeElement;
    if (active?.closest("main section")) {
        const { top, bottom } = active.getBoundingClientRect();
        if (bottom > 0 && top < window.innerHeight) {
            return active;
        }
    }
    const { left, width } = document.body.getBoundingClientRect();
    const middle = document.elementFromPoint(left + width / 2, window.innerHeight / 2);
    return middle?.closest("main [data-key]") ?? middle;
}

/**
 * Makes the children of an element those of a list. A child that stays keeps its node, and with
 * it focus, open rows and selected text.
 *
 * @template T
 * @param {Element} parent
 * @param {T[]} items
 * @param {(item: T) => string} key different for any two items
 * @param {(item: T) => HTMLElement} create
 * @param {(node: HTMLElement, item: T) => void} [update] called for each node that stays
 */
export function reconcile(parent, items, key, create, update) {
    /** @type {Map<string, HTMLElement>} */
    const old = new Map();
    for (const child of parent.children) {
        if (child instanceof HTMLElement) {
            old.set(child.dataset.key ?? "", child);
        }
    }
    /** @type {HTMLElement[]} */
    const wanted = items.map((item) => {
        const name = key(item);
        const kept = old.get(name);
        if (kept !== undefined) {
            old.delete(name);
            update?.(kept, item);
            return kept;
        }
        const node = create(item);
        node.dataset.key = name;
        return node;
    });
    for (const gone of old.values()) {
        gone.remove();
    }
    // A node that is moved loses focus, so only nodes in the wrong place are moved.
    let next = parent.firstElementChild;
    for (const node of wanted) {
        if (node === next) {
            next = next.nextElementSibling;
        } else {
            parent.insertBefore(node, next);
        }
    }
}
