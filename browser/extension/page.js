// The main world: `navigator.attribution` as pages see it (the draft's interfaces). This script is
// as powerful as the page and no more: it turns the page's arguments into plain values, as Web IDL
// says, and passes them on as text. Nothing here is trusted by what follows.
//
// Everything that it uses later is taken now, before any script of the page runs, so that a page
// that changes built-in objects changes nothing here.
(() => {
    "use strict";

    /** @type {{services: Record<string, {protocol: string}>}} */
    const config = Reflect.get(globalThis, "__bigbirdConfig") ?? { services: {} };
    Reflect.deleteProperty(globalThis, "__bigbirdConfig");
    if (!globalThis.isSecureContext || "attribution" in Navigator.prototype) {
        return;
    }

    const { apply, construct, defineProperty, getOwnPropertyDescriptor, setPrototypeOf } = Reflect;
    const { parse, stringify } = JSON;
    const { isFinite: isFiniteNumber, MAX_SAFE_INTEGER } = Number;
    const { Map, Promise, RangeError, ReferenceError, String, TypeError, Uint8Array } = globalThis;
    const { DOMException, MessageChannel, MessagePort, EventTarget, MessageEvent, Document } =
        globalThis;
    const { document, navigator } = globalThis;
    const decode = globalThis.atob;
    const { iterator } = Symbol;
    const charCodeAt = String.prototype.charCodeAt;
    const toWellFormed = String.prototype.toWellFormed;
    const MapOwn = {
        entries: Map.prototype.entries,
        forEach: Map.prototype.forEach,
        get: Map.prototype.get,
        has: Map.prototype.has,
        keys: Map.prototype.keys,
        set: Map.prototype.set,
        values: Map.prototype.values,
        remove: Map.prototype.delete,
    };
    /** @param {object} owner @param {string} name */
    const getter = (owner, name) =>
        /** @type {() => unknown} */ (getOwnPropertyDescriptor(owner, name)?.get);
    const sizeOf = getter(Map.prototype, "size");
    const dataOf = getter(MessageEvent.prototype, "data");
    const viewOf = getter(Document.prototype, "defaultView");
    const post = MessagePort.prototype.postMessage;

    // The way to the isolated world: a port that no script of the page can reach. The isolated
    // world takes the first port that it is sent, and that is this one.
    const { port1: port, port2: theirs } = new MessageChannel();
    globalThis.postMessage("bigbird-attribution", "*", [theirs]);
    /** @type {Map<number, {resolve: (value: unknown) => void, reject: (why: unknown) => void}>} */
    const pending = new Map();
    let last = 0;
    apply(EventTarget.prototype.addEventListener, port, ["message", receive]);
    apply(MessagePort.prototype.start, port, []);

    /** @param {Event} event */
    function receive(event) {
        // [id, report or null] or [id, null, error, name, message]: a list, because the properties
        // of an object could come from a prototype that the page has changed.
        const answer = parse(/** @type {string} */ (apply(dataOf, event, [])));
        const call = apply(MapOwn.get, pending, [answer[0]]);
        if (!call) {
            return;
        }
        apply(MapOwn.remove, pending, [answer[0]]);
        if (answer.length > 2) {
            call.reject(failure(answer[2], answer[3], answer[4]));
        } else {
            call.resolve(answer[1] === null ? {} : { report: bytes(answer[1]) });
        }
    }

    /** @param {string} error @param {string} name @param {string} message */
    function failure(error, name, message) {
        switch (error) {
            case "RangeError":
                return new RangeError(message);
            case "ReferenceError":
                return new ReferenceError(message);
            case "TypeError":
                return new TypeError(message);
            default:
                return new DOMException(message, name);
        }
    }

    /** @param {string} base64 */
    function bytes(base64) {
        const text = decode(base64);
        const list = new Uint8Array(text.length);
        for (let at = 0; at < text.length; at += 1) {
            list[at] = apply(charCodeAt, text, [at]);
        }
        return list;
    }

    /**
     * Passes a call on.
     * @param {string} method
     * @param {() => object} options
     */
    function call(method, options) {
        return new Promise((resolve, reject) => {
            // An exception here rejects the promise, as Web IDL wants.
            const asked = options();
            if (apply(viewOf, document, []) === null) {
                throw new DOMException("the document is not fully active", "InvalidStateError");
            }
            last = last < MAX_SAFE_INTEGER ? last + 1 : 1;
            const request = plain([last, method, asked]);
            apply(MapOwn.set, pending, [last, { __proto__: null, resolve, reject }]);
            apply(post, port, [stringify(request)]);
        });
    }

    /**
     * The same list without a prototype, so that no `toJSON` of the page is called.
     * @param {unknown[]} list
     */
    function plain(list) {
        setPrototypeOf(list, null);
        return list;
    }

    // ---- Web IDL: page values become plain ones ------------------------------------------------

    /** @typedef {(value: any, where: string) => unknown} Conversion */

    /** @type {Conversion} */
    function unsignedLong(value) {
        return +value >>> 0;
    }

    /** @type {Conversion} */
    function long(value) {
        return +value | 0;
    }

    /** @type {Conversion} */
    function double(value, where) {
        const number = +value;
        if (!isFiniteNumber(number)) {
            throw new TypeError(`${where} must be a finite number`);
        }
        return number;
    }

    /** @type {Conversion} */
    function usvString(value) {
        return apply(toWellFormed, `${value}`, []);
    }

    /** @param {Conversion} of @returns {Conversion} */
    function sequence(of) {
        return (value, where) => {
            const method = isObject(value) ? value[iterator] : undefined;
            if (method === undefined || method === null) {
                throw new TypeError(`${where} must be a sequence`);
            }
            const items = apply(method, value, []);
            if (!isObject(items)) {
                throw new TypeError(`the iterator of ${where} is not an object`);
            }
            const { next } = items;
            /** @type {unknown[]} */
            const list = [];
            for (;;) {
                const step = apply(next, items, []);
                if (!isObject(step)) {
                    throw new TypeError(
                        `the iterator of ${where} gave something other than an object`,
                    );
                }
                if (step.done) {
                    return plain(list);
                }
                const item = of(step.value, `an item of ${where}`);
                defineProperty(list, list.length, own(item));
            }
        };
    }

    /**
     * The description of an ordinary property. It has no prototype that the page could change.
     * @param {unknown} value
     * @returns {PropertyDescriptor}
     */
    function own(value) {
        /** @type {object} */
        const described = {
            __proto__: null,
            configurable: true,
            enumerable: true,
            value,
            writable: true,
        };
        return described;
    }

    /** @param {any} value */
    function isObject(value) {
        return (typeof value === "object" && value !== null) || typeof value === "function";
    }

    /** @typedef {[name: string, of: Conversion, required?: boolean]} Member */

    // Members are read in the order of their names.
    /** @type {Member[]} */
    const impressionMembers = [
        ["conversionCallers", sequence(usvString)],
        ["conversionSites", sequence(usvString)],
        ["histogramIndex", unsignedLong, true],
        ["lifetimeDays", unsignedLong],
        ["matchValue", unsignedLong],
        ["priority", long],
    ];
    /** @type {Member[]} */
    const conversionMembers = [
        ["aggregationService", usvString, true],
        ["credit", sequence(double)],
        ["epsilon", double],
        ["histogramSize", unsignedLong, true],
        ["impressionCallers", sequence(usvString)],
        ["impressionSites", sequence(usvString)],
        ["lookbackDays", unsignedLong],
        ["matchValues", sequence(unsignedLong)],
        ["maxValue", unsignedLong],
        ["value", unsignedLong],
    ];

    /**
     * @param {any} value
     * @param {Member[]} members
     * @param {string} dictionary
     */
    function convert(value, members, dictionary) {
        if (value !== undefined && value !== null && !isObject(value)) {
            throw new TypeError(`${dictionary} must be an object`);
        }
        /** @type {any} */
        const converted = { __proto__: null };
        for (let at = 0; at < members.length; at += 1) {
            const name = members[at][0];
            const given = value === undefined || value === null ? undefined : value[name];
            if (given !== undefined) {
                converted[name] = members[at][1](given, `${dictionary}.${name}`);
            } else if (members[at][2]) {
                throw new TypeError(`${dictionary} requires ${name}, but it is missing`);
            }
        }
        return converted;
    }

    // ---- Interfaces ----------------------------------------------------------------------------

    const secret = {};

    /** @param {unknown} token @param {string} name */
    function onlyHere(token, name) {
        if (token !== secret) {
            throw new TypeError(`Illegal constructor: pages cannot make an ${name}`);
        }
    }

    class AttributionAggregationServices {
        /** @type {Map<string, object>} */
        #services = new Map();

        /** @param {unknown} token */
        constructor(token) {
            onlyHere(token, "AttributionAggregationServices");
            for (const url of Object.keys(config.services)) {
                const { protocol } = config.services[url];
                this.#services.set(url, { protocol });
            }
        }

        get size() {
            return apply(sizeOf, this.#services, []);
        }

        /** @param {string} key */
        get(key) {
            return apply(MapOwn.get, this.#services, [apply(toWellFormed, `${key}`, [])]);
        }

        /** @param {string} key */
        has(key) {
            return apply(MapOwn.has, this.#services, [apply(toWellFormed, `${key}`, [])]);
        }

        entries() {
            return apply(MapOwn.entries, this.#services, []);
        }

        keys() {
            return apply(MapOwn.keys, this.#services, []);
        }

        values() {
            return apply(MapOwn.values, this.#services, []);
        }

        /** @param {Function} callback @param {unknown} thisArgument */
        forEach(callback, thisArgument = undefined) {
            if (typeof callback !== "function") {
                throw new TypeError("the argument of forEach must be a function");
            }
            const each = (/** @type {unknown} */ value, /** @type {unknown} */ key) =>
                apply(callback, thisArgument, [value, key, this]);
            apply(MapOwn.forEach, this.#services, [each]);
        }
    }

    class Attribution {
        #services = new AttributionAggregationServices(secret);

        /** @param {unknown} token */
        constructor(token) {
            onlyHere(token, "Attribution");
        }

        get aggregationServices() {
            return this.#services;
        }

        /** @param {object} options */
        saveImpression(options) {
            const given = arguments.length;
            return call("saveImpression", () => {
                Attribution.#check(this, given, "saveImpression");
                return convert(options, impressionMembers, "AttributionImpressionOptions");
            });
        }

        /** @param {object} options */
        measureConversion(options) {
            const given = arguments.length;
            return call("measureConversion", () => {
                Attribution.#check(this, given, "measureConversion");
                return convert(options, conversionMembers, "AttributionConversionOptions");
            });
        }

        /** @param {unknown} target @param {number} given @param {string} method */
        static #check(target, given, method) {
            if (!isObject(target) || !(#services in /** @type {object} */ (target))) {
                throw new TypeError(`${method} was called on something other than an Attribution`);
            }
            if (given < 1) {
                throw new TypeError(`${method} requires 1 argument, but got 0`);
            }
        }
    }

    /**
     * Gives a class the properties that an interface of Web IDL has.
     * @param {Function} type
     * @param {string[]} members
     */
    function expose(type, members) {
        for (const name of members) {
            const descriptor = getOwnPropertyDescriptor(type.prototype, name);
            defineProperty(type.prototype, name, { ...descriptor, enumerable: true });
        }
        defineProperty(type.prototype, Symbol.toStringTag, {
            configurable: true,
            value: type.name,
        });
        defineProperty(globalThis, type.name, {
            configurable: true,
            enumerable: false,
            value: type,
            writable: true,
        });
        defineProperty(type, "length", { configurable: true, value: 0 });
    }

    expose(Attribution, ["aggregationServices", "measureConversion", "saveImpression"]);
    const maplike = ["entries", "forEach", "get", "has", "keys", "size", "values"];
    expose(AttributionAggregationServices, maplike);
    defineProperty(AttributionAggregationServices.prototype, iterator, {
        configurable: true,
        enumerable: false,
        value: AttributionAggregationServices.prototype.entries,
        writable: true,
    });

    const attribution = construct(Attribution, [secret]);
    const accessor = {
        get attribution() {
            if (/** @type {unknown} */ (this) !== navigator) {
                throw new TypeError(
                    "attribution was read from something other than this navigator",
                );
            }
            return attribution;
        },
    };
    defineProperty(Navigator.prototype, "attribution", {
        configurable: true,
        enumerable: true,
        get: getOwnPropertyDescriptor(accessor, "attribution")?.get,
    });
})();
