// The web of the tests: every host under `.example`, on one loopback port.
//
// Browsers reach it as their HTTP proxy, so that URLs have no ports, every host name is a
// registrable domain of its own, and nothing leaves the machine.

import { execFile } from "node:child_process";
import { createHash, X509Certificate } from "node:crypto";
import { readFile } from "node:fs/promises";
import http from "node:http";
import https from "node:https";
import path from "node:path";
import { promisify } from "node:util";

/**
 * A request as it arrived. `body` is complete when a route sees it.
 *
 * @typedef {object} WebRequest
 * @property {string} scheme `https` or `http`
 * @property {string} host
 * @property {string} method
 * @property {string} path without the query
 * @property {URLSearchParams} query
 * @property {http.IncomingHttpHeaders} headers
 * @property {Buffer} body
 */

/**
 * The answer of a route. A header whose value is an array is sent once for each element.
 *
 * @typedef {object} WebAnswer
 * @property {number} [status] 200 unless given
 * @property {Record<string, string | string[]>} [headers]
 * @property {string | Buffer} [body]
 * @property {number | Promise<unknown>} [delay] milliseconds, or what to wait for
 */

/** @typedef {WebAnswer | ((request: WebRequest) => WebAnswer | Promise<WebAnswer>)} Route */

const MEDIA_TYPES = new Map([
    [".html", "text/html; charset=utf-8"],
    [".js", "text/javascript; charset=utf-8"],
    [".mjs", "text/javascript; charset=utf-8"],
    [".css", "text/css; charset=utf-8"],
    [".json", "application/json"],
    [".svg", "image/svg+xml"],
    [".png", "image/png"],
]);

/** The largest body that is kept, so that a page that floods does not exhaust the tests. */
const BODY_LIMIT = 16 * 1024 * 1024;

export class WebServer {
    /** @type {Map<string, Route>} by `host/path` */
    #routes = new Map();
    /** @type {WebRequest[]} */
    #requests = [];
    /** @type {Set<() => void>} */
    #watchers = new Set();
    #folder;
    #proxy;
    #pages;
    #certificate;

    /**
     * @param {string} folder pages that every host serves unless a route says otherwise
     * @param {{ key: Buffer, cert: Buffer }} certificate
     */
    constructor(folder, certificate) {
        this.#folder = folder;
        this.#certificate = certificate.cert;
        this.#pages = https.createServer(certificate, (request, response) => {
            const host = request.headers.host ?? "";
            this.#serve("https", host, request.url ?? "/", request, response);
        });
        this.#proxy = http.createServer((request, response) => {
            const target = request.url ?? "";
            const url = new URL(URL.canParse(target) ? target : "about:blank");
            if (!isOurs(url.hostname) || url.port !== "") {
                response.writeHead(403, { "content-type": "text/plain" });
                response.end(`the tests' proxy serves http://*.example/, not ${request.url}\n`);
                return;
            }
            this.#serve("http", url.hostname, url.pathname + url.search, request, response);
        });
        this.#proxy.on("connect", (request, socket, head) => {
            socket.on("error", () => socket.destroy());
            const [host, port] = (request.url ?? "").split(":");
            if (!isOurs(host) || port !== "443") {
                socket.end("HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n");
                return;
            }
            socket.write("HTTP/1.1 200 Connection established\r\n\r\n");
            if (head.length > 0) socket.unshift(head);
            this.#pages.emit("connection", socket);
        });
        // A browser may close a connection at any moment, and that is not an event of the tests.
        this.#proxy.on("clientError", (_, socket) => socket.destroy());
        this.#pages.on("clientError", (_, socket) => socket.destroy());
        this.#pages.on("tlsClientError", (_, socket) => socket.destroy());
    }

    /**
     * Makes a certificate and listens on a free loopback port.
     *
     * @param {string} folder pages that every host serves unless a route says otherwise
     */
    static async start(folder) {
        const server = new WebServer(folder, await makeCertificate());
        await new Promise((resolve, reject) => {
            server.#proxy.once("error", reject);
            server.#proxy.listen(0, "127.0.0.1", () => resolve(undefined));
        });
        return server;
    }

    /** The port of the proxy. */
    get port() {
        const address = this.#proxy.address();
        if (address === null || typeof address === "string") throw new Error("not listening");
        return address.port;
    }

    /** The hash of the certificate's public key, in the form that Chromium's switch takes. */
    get keyHash() {
        const key = new X509Certificate(this.#certificate).publicKey;
        const der = key.export({ type: "spki", format: "der" });
        return createHash("sha256").update(der).digest("base64");
    }

    /**
     * Answers `host` + `path` with `route`, a fixed answer or a function of the request.
     *
     * @param {string} host
     * @param {string} path
     * @param {Route} route
     */
    route(host, path, route) {
        this.#routes.set(host + path, route);
    }

    /**
     * Serves a page of HTML.
     *
     * @param {string} host
     * @param {string} path
     * @param {string} html
     * @param {Record<string, string | string[]>} [headers]
     */
    page(host, path, html, headers = {}) {
        const type = { "content-type": "text/html; charset=utf-8" };
        this.route(host, path, { headers: { ...type, ...headers }, body: html });
    }

    /**
     * Redirects `host` + `path`.
     *
     * @param {string} host
     * @param {string} path
     * @param {string} location
     * @param {Record<string, string | string[]>} [headers]
     */
    redirect(host, path, location, headers = {}) {
        this.route(host, path, { status: 302, headers: { ...headers, location } });
    }

    /**
     * The requests that arrived for `host`, oldest first.
     *
     * @param {string} host
     * @param {string} [path] all paths unless given
     * @returns {WebRequest[]}
     */
    requests(host, path) {
        return this.#requests.filter(
            (request) => request.host === host && (path === undefined || request.path === path),
        );
    }

    /**
     * Waits until `count` requests arrived for `host` + `path`.
     *
     * @param {string} host
     * @param {string} path
     * @param {number} [count]
     * @returns {Promise<WebRequest[]>}
     */
    async arrivals(host, path, count = 1) {
        for (;;) {
            const found = this.requests(host, path);
            if (found.length >= count) return found;
            await new Promise((resolve) => {
                const watcher = () => {
                    this.#watchers.delete(watcher);
                    resolve(undefined);
                };
                this.#watchers.add(watcher);
            });
        }
    }

    /** Drops the routes and the records of the hosts that `mine` accepts. */
    forget(/** @type {(host: string) => boolean} */ mine) {
        for (const key of this.#routes.keys()) {
            if (mine(key.slice(0, key.indexOf("/")))) this.#routes.delete(key);
        }
        this.#requests = this.#requests.filter((request) => !mine(request.host));
    }

    async stop() {
        this.#proxy.closeAllConnections();
        this.#pages.closeAllConnections();
        await new Promise((resolve) => this.#proxy.close(() => resolve(undefined)));
    }

    /**
     * @param {string} scheme
     * @param {string} host
     * @param {string} target
     * @param {http.IncomingMessage} message
     * @param {http.ServerResponse} response
     */
    async #serve(scheme, host, target, message, response) {
        try {
            const url = new URL(target, `${scheme}://${host}`);
            const request = {
                scheme,
                host,
                method: message.method ?? "GET",
                path: url.pathname,
                query: url.searchParams,
                headers: message.headers,
                body: await bodyOf(message),
            };
            this.#requests.push(request);
            for (const watcher of [...this.#watchers]) watcher();
            const answer = await this.#answer(request);
            if (typeof answer.delay === "number") {
                await new Promise((resolve) => setTimeout(resolve, Number(answer.delay)));
            } else {
                await answer.delay;
            }
            // Pages are always fetched anew, except where a route wants the cache. Not
            // `no-store`, which would keep pages out of the back/forward cache.
            const headers = { "cache-control": "no-cache", ...answer.headers };
            response.writeHead(answer.status ?? 200, headers);
            response.end(answer.body ?? "");
        } catch (error) {
            if (!response.headersSent) response.writeHead(500, { "content-type": "text/plain" });
            response.end(`the test's route failed: ${error}\n`);
        }
    }

    /**
     * @param {WebRequest} request
     * @returns {Promise<WebAnswer>}
     */
    async #answer(request) {
        const route = this.#routes.get(request.host + request.path);
        if (typeof route === "function") return route(request);
        if (route !== undefined) return route;
        const name = request.path === "/" ? "index.html" : path.basename(request.path);
        const type = MEDIA_TYPES.get(path.extname(name));
        if (type !== undefined) {
            try {
                const body = await readFile(path.join(this.#folder, name));
                return { headers: { "content-type": type }, body };
            } catch {
                // Falls through: there is no such page.
            }
        }
        const headers = { "content-type": "text/plain" };
        return { status: 404, headers, body: `no route for ${request.host}${request.path}\n` };
    }
}

/** @param {string} host */
function isOurs(host) {
    return host.endsWith(".example");
}

/** @param {http.IncomingMessage} message */
async function bodyOf(message) {
    const chunks = [];
    let length = 0;
    for await (const chunk of message) {
        length += chunk.length;
        if (length <= BODY_LIMIT) chunks.push(chunk);
    }
    return Buffer.concat(chunks);
}

/**
 * A key and a certificate for this run only. Its names do not matter: browsers are told to
 * accept it, by its key or altogether.
 */
async function makeCertificate() {
    const { stdout } = await promisify(execFile)(
        "openssl",
        [
            ...["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"],
            ...["-nodes", "-days", "30", "-subj", "/CN=tests.example", "-keyout", "-", "-out", "-"],
            ...["-addext", "subjectAltName=DNS:*.example"],
        ],
        { encoding: "buffer" },
    );
    return { key: stdout, cert: stdout };
}
