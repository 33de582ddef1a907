// The gate of the user agent, in WebAssembly: the errors and null reports that the native host
// would give, the parsers of response headers, and the rules of activation. The README of
// bindings/wasm describes the requests. This module knows neither a browser nor a page.

/**
 * What WebAssembly exports. Pointers and lengths are in bytes; a packed number has the pointer in
 * its upper and the length in its lower 32 bits.
 *
 * @typedef {object} GateExports
 * @property {WebAssembly.Memory} memory
 * @property {(length: number) => number} alloc
 * @property {(pointer: number, length: number) => void} free
 * @property {(pointer: number, length: number) => bigint} configure
 * @property {(pointer: number, length: number) => bigint} call
 */

/**
 * @typedef {object} GateConfiguration
 * @property {string} [services] The text of aggregation-services.toml.
 * @property {string} [profile] The name of the profile, big-bird if it is left out.
 * @property {number} [releaseAfter] The native host's delay of conversions, 2000 ms if left out.
 */

/** @typedef {{ok: boolean, [field: string]: any}} GateAnswer */

/** The most bytes that `crypto.getRandomValues` fills at once. */
const MOST_RANDOM_BYTES = 65536;

/** Answers requests without a native host. */
export class Gate {
    /** @type {GateExports} */
    #exports;

    /** @param {GateExports} exports */
    constructor(exports) {
        this.#exports = exports;
    }

    /**
     * Loads gate.wasm from a URL, or from its bytes, and configures it.
     *
     * @param {BufferSource | string | URL} source
     * @param {GateConfiguration} [configuration]
     * @returns {Promise<Gate>}
     * @throws {Error} If the file cannot be loaded, or the configuration is wrong.
     */
    static async load(source, configuration = {}) {
        /** @type {GateExports | undefined} */
        let exports;
        const env = {
            /** @type {(pointer: number, length: number) => void} */
            random(pointer, length) {
                if (!exports) throw new Error("gate.wasm asked for random bytes too early");
                const bytes = new Uint8Array(exports.memory.buffer, pointer >>> 0, length >>> 0);
                for (let start = 0; start < bytes.length; start += MOST_RANDOM_BYTES) {
                    crypto.getRandomValues(bytes.subarray(start, start + MOST_RANDOM_BYTES));
                }
            },
            now: () => Date.now(),
        };
        const bytes = await bytesOf(source);
        const { instance } = await WebAssembly.instantiate(bytes, { env });
        exports = /** @type {GateExports} */ (/** @type {unknown} */ (instance.exports));
        const gate = new Gate(exports);
        gate.configure(configuration);
        return gate;
    }

    /**
     * Replaces the configuration.
     *
     * @param {GateConfiguration} configuration
     * @returns {string[]} The URLs of the services.
     * @throws {Error} If the configuration is wrong. The gate then stays as it was.
     */
    configure(configuration) {
        const answer = this.#send(this.#exports.configure, configuration);
        if (!answer.ok) throw new Error(answer.message);
        return answer.services;
    }

    /**
     * Answers a request. A wrong request is an answer too.
     *
     * @param {object} request
     * @returns {GateAnswer}
     */
    call(request) {
        return this.#send(this.#exports.call, request);
    }

    /**
     * @param {(pointer: number, length: number) => bigint} answer
     * @param {object} request
     * @returns {GateAnswer}
     */
    #send(answer, request) {
        const { memory, alloc, free } = this.#exports;
        const sent = new TextEncoder().encode(JSON.stringify(request));
        const pointer = alloc(sent.length) >>> 0;
        new Uint8Array(memory.buffer, pointer, sent.length).set(sent);
        const packed = BigInt.asUintN(64, answer(pointer, sent.length));
        free(pointer, sent.length);
        const [start, length] = [Number(packed >> 32n), Number(packed & 0xffffffffn)];
        const text = new TextDecoder().decode(new Uint8Array(memory.buffer, start, length));
        free(start, length);
        return JSON.parse(text);
    }
}

/**
 * @param {BufferSource | string | URL} source
 * @returns {Promise<BufferSource>}
 */
async function bytesOf(source) {
    if (typeof source !== "string" && !(source instanceof URL)) return source;
    const response = await fetch(source);
    if (!response.ok) throw new Error(`cannot load ${source}: HTTP status ${response.status}`);
    return response.arrayBuffer();
}
