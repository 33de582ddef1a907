// From a page, conversions that are charged, null, spent, cleared, disabled or failed cannot be
// told apart by size or error.

import assert from "node:assert/strict";
import { test } from "../suite.mjs";
import { newDevice } from "./setup.mjs";
import { active, ask, CHEAP, historyOf, measure, seeAd } from "./support.mjs";

test("all conversions look the same", { alone: true, limit: 180 }, async (t) => {
    await newDevice(t);
    await seeAd(t, "news");
    const shop = await active(t, "shop");
    const options = { ...CHEAP, epsilon: 1, impressionSites: [t.host("news")] };
    /** @type {string[]} */
    const outcomes = [];
    /** @type {string[]} */
    const names = [];
    const look = async (/** @type {string} */ name, /** @type {object} */ asked = options) => {
        const { keys, bytes, error, message } = await measure(shop, asked);
        outcomes.push(JSON.stringify({ keys, bytes, error, message }));
        names.push(name);
    };
    await look("nothing", { ...options, impressionSites: [t.host("nobody")] });
    await look("charged");
    await look("spent");
    const [spent, charged, nothing] = await historyOf(t, "shop", 3);
    assert.deepEqual(
        [nothing.outcome, charged.outcome, spent.outcome, spent.cause],
        ["nothing", "charged", "null", "querierBudget"],
    );
    await ask(t, { event: "disableAPI" });
    await look("disabled");
    await ask(t, { event: "enableAPI" });
    const event = "clearBrowsingHistoryForAttribution";
    await ask(t, { event, sites: [t.host("shop")], forgetVisits: false });
    await look("closed");
    await ask(t, { event, sites: [], forgetVisits: true });
    await look("cleared");
    await t.driver.host.kill();
    await look("host started again");
    await t.driver.host.remove();
    await t.driver.host.kill();
    await look("host missing");
    assert.deepEqual(new Set(outcomes).size, 1, `${names}: ${outcomes}`);
});
