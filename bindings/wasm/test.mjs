// Checks that gate.wasm gives the answers of tests/answers.jsonl, which are those of the native
// user agent (tests/answers.rs). Run it with `node bindings/wasm/test.mjs`, Node 20 or newer.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";

import { Gate } from "../../browser/extension/gate.js";

const file = (path) => new URL(path, import.meta.url);
const wasm = await readFile(file("../../browser/extension/gate.wasm"));
const services = await readFile(file("tests/aggregation-services.toml"), "utf8");
const rows = (await readFile(file("tests/answers.jsonl"), "utf8"))
  .trim()
  .split("\n")
  .map((line) => JSON.parse(line));

const conversion = (site) => ({
  event: "measureConversion",
  site,
  options: { aggregationService: "https://agg.example", histogramSize: 5 },
});

/** The answer with the length of what is random. */
function measured(answer) {
  const lengths = {};
  for (const name of ["report", "shared"]) {
    if (name in answer) lengths[name] = answer[name].length;
  }
  return { ...answer, ...lengths };
}

test("every answer is that of the native user agent", async () => {
  const gate = await Gate.load(wasm, { services, profile: "big-bird" });
  assert.ok(rows.length > 140);
  for (const { request, answer } of rows) {
    assert.deepEqual(measured(gate.call(request)), answer, JSON.stringify(request));
  }
});

test("no two reports are equal, and neither are two handles", async () => {
  const gate = await Gate.load(wasm, { services });
  const report = () => gate.call(conversion("shop.example")).report;
  assert.notEqual(report(), report());
  const shared = {
    ...conversion("shop.example"),
    event: "createSharedConversion",
    participants: ["adtech.example"],
  };
  assert.notEqual(gate.call(shared).shared, gate.call(shared).shared);
});

test("memory does not grow with the number of calls", async () => {
  let memory;
  const { instantiate } = WebAssembly;
  WebAssembly.instantiate = async (...given) => {
    const loaded = await instantiate.apply(WebAssembly, given);
    ({ memory } = loaded.instance.exports);
    return loaded;
  };
  const gate = await Gate.load(wasm, { services });
  WebAssembly.instantiate = instantiate;
  const header = { event: "parseHeader", name: "save-impression", value: "x".repeat(60_000) };
  const calls = () => {
    for (let count = 0; count < 500; count += 1) gate.call(header);
    return memory.buffer.byteLength;
  };
  const before = calls();
  assert.equal(calls(), before);
});

test("a gate that is not configured knows no service", async () => {
  const gate = await Gate.load(wasm);
  assert.equal(gate.call(conversion("shop.example")).error, "ReferenceError");
});

test("a wrong configuration is an error, and the gate stays as it was", async () => {
  const gate = await Gate.load(wasm, { services });
  assert.throws(() => gate.configure({ profile: "none" }), /unknown profile `none`/);
  assert.equal(gate.call(conversion("shop.example")).ok, true);
  await assert.rejects(Gate.load(wasm, { services: "url" }), /aggregation-services.toml: line 1/);
});
