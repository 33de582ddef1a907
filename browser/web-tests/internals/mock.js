/**
 * A background for the internals page that answers from made-up data. The page under test gets it
 * as `globalThis.chrome`. The function is sent to the browser as text, so it uses nothing around
 * it.
 *
 * @param {{scene: string, now: number}} options `scene` is one of `SCENES` in `test.mjs`, `now` is
 *     in seconds since 1970
 */
export function installMock({ scene, now }) {
    const DAY = 86_400;
    const WEEK = 7 * DAY;
    const EPOCH = 12;
    const begins = now - 3.4 * DAY;
    const LIMITS = {
        globalBudget: 8e6,
        querierBudget: 1e6,
        impressionSiteQuota: 2e6,
        conversionSiteQuota: 1e6,
        userActionBudget: null,
    };
    const SERVICE = "https://aggregation.example";
    const LONG = `${"no-one-can-read-this-aloud-".repeat(9).slice(0, 239)}.example`;
    const RTL = "\u05d7\u05e0\u05d5\u05ea-\u05d4\u05e1\u05e4\u05e8\u05d9\u05dd.example";
    const rules = [{
        firstEpoch: 7,
        begins: begins - 5 * WEEK,
        epochDays: 7,
        capacities: LIMITS,
        domainCap: 2,
        siteCharging: "full",
    }];

    const state = {
        enabled: true,
        closedUntil: null,
        revision: 41,
        missed: 0,
        storeErrors: 0,
        lastStoreError: null,
        overLimit: 3,
        budgets: [],
        history: [],
        impressions: [],
    };
    let host = {
        state: "connected",
        version: "0.1.0",
        store: "/home/kim/.local/share/bigbird/k3j9x0.store",
        rules: "big-bird",
        releaseAfter: 2000,
    };
    const extension = { version: "0.1.0", privateAllowed: false, fallbacks: 0 };

    const check = (epoch, filter, site, asked, consumed) => {
        const capacity = LIMITS[filter];
        const shortBy = capacity === null ? 0 : Math.max(0, asked + consumed - capacity);
        return { epoch, filter, site, asked, consumed, capacity, shortBy };
    };

    /** The decision of an epoch, with the filters of one querier and one impression site. */
    const decision = (epoch, matched, cause, shop, ad, asked, consumed) => ({
        epoch,
        matched,
        passed: cause === null && matched > 0,
        cause,
        filters: matched === 0 || cause === "domainCap" ? [] : [
            check(epoch, "querierBudget", shop, asked, consumed[0]),
            { ...check(epoch, "globalBudget", undefined, asked, consumed[1]) },
            check(epoch, "impressionSiteQuota", ad, asked, consumed[2]),
            check(epoch, "conversionSiteQuota", shop, asked, consumed[3]),
        ],
    });

    const empty = (...epochs) => epochs.map((epoch) => decision(epoch, 0, null, "", "", 0, []));

    let number = 0;
    const record = (entry) => {
        state.history.unshift({ number: ++number, epoch: EPOCH, ...entry });
    };

    const impression = (ago, site, userAction, actionLabel, more = {}) => {
        const time = now - ago;
        const { outcome = "saved", ...rest } = more;
        const epoch = time >= begins ? EPOCH : EPOCH - 1;
        const saved = {
            site,
            userAction,
            histogramIndex: 2,
            matchValue: 0,
            priority: 0,
            conversionSites: ["shop.example"],
            conversionCallers: [],
            ...rest,
        };
        const lifetimeDays = 30;
        record({ ...saved, time, epoch, kind: "impression", actionLabel, outcome, lifetimeDays });
        if (outcome === "saved") {
            state.impressions.unshift({ ...saved, epoch, time, expires: time + 30 * DAY });
        }
    };

    const conversion = (ago, site, userAction, actionLabel, outcome, cause, sentence, epochs,
        more) => {
        record({
            time: now - ago,
            kind: "conversion",
            site,
            querier: site,
            userAction,
            actionLabel,
            outcome,
            cause,
            sentence,
            aggregationService: SERVICE,
            epsilon: 0.25,
            histogramSize: 5,
            value: 1,
            maxValue: 1,
            reportBytes: 1402,
            explanation: {
                enabled: cause !== "disabled",
                cause,
                readableFrom: null,
                closed: null,
                sentence,
                epochs,
            },
            ...more,
        });
    };

    const balance = (epoch, filter, site, consumed) =>
        state.budgets.push({ epoch, filter, ...(site && { site }), consumed,
            capacity: LIMITS[filter] });

    function fillRich() {
        impression(9 * DAY, "news.example", 101, "Click on “Sport” (news.example)");
        impression(8.2 * DAY, "video.example", 102, undefined, { histogramIndex: 4, priority: 10 });
        conversion(6 * DAY, "books.example", 103, "Click on “Buy now” (books.example)", "nothing",
            null, "No ad that was remembered matched this conversion, so the report was empty and "
            + "cost nothing.", empty(8, 9, 10, 11));
        impression(2.5 * DAY, "news.example", 201, "Typed address (news.example)", {
            intermediarySite: "ads.example",
            conversionSites: ["shop.example", "books.example", "shoes.example"],
            conversionCallers: ["ads.example", "measure.example"],
            histogramIndex: 1,
            matchValue: 7,
        });
        conversion(2.2 * DAY, "shop.example", 202, "Click on “Pay” (shop.example)", "charged", null,
            "An ad on news.example matched, and every budget could pay 0.25 ε.", [
                ...empty(8, 9, 10),
                decision(11, 1, null, "shop.example", "news.example", 250_000,
                    [0, 1.5e6, 250_000, 0]),
                decision(12, 2, null, "shop.example", "news.example", 250_000, [0, 1e6, 0, 0]),
            ]);
        conversion(1.5 * DAY, "shop.example", 203, "Click on “Pay” (shop.example)", "charged",
            "querierBudget", "Ads of 2 epochs matched. One of them was left out, because the "
            + "querier budget of shop.example had 0.1 ε left and 0.25 ε was asked.", [
                ...empty(8, 9, 10),
                decision(11, 1, "querierBudget", "shop.example", "news.example", 250_000,
                    [900_000, 1.5e6, 250_000, 900_000]),
                decision(12, 2, null, "shop.example", "news.example", 250_000,
                    [250_000, 1.2e6, 250_000, 250_000]),
            ], { intermediarySite: "measure.example", querier: "measure.example" });
        impression(0.9 * DAY, RTL, 301, "\u202eevil label\u202c with <b>markup</b>", {
            conversionSites: [],
        });
        impression(0.8 * DAY, LONG, 302, `Click on “${"long words ".repeat(5)}”`, {
            conversionSites: [LONG],
        });
        impression(0.5 * DAY, "portal.example", 401, "Click on “Win a prize” (portal.example)");
        impression(0.5 * DAY - 1, "sybil-one.example", 401, undefined);
        impression(0.5 * DAY - 2, "sybil-two.example", 401, undefined, { outcome: "domainCap" });
        conversion(0.5 * DAY - 3, "sybil-three.example", 401, undefined, "null", "domainCap",
            "The user action had already involved 2 sites, and the domain cap allows 2, so this "
            + "site was refused.", [
                ...empty(8, 9, 10),
                decision(11, 3, "domainCap", "", "", 0, []),
                decision(12, 2, "domainCap", "", "", 0, []),
            ], { reportBytes: 1402 });
        conversion(7200, "shoes.example", 501, "Click on “Order” (shoes.example)", "null",
            "globalBudget", "An ad matched, but the global budget of its epoch was used up.", [
                ...empty(8, 9),
                decision(10, 4, "globalBudget", "shoes.example", "video.example", 1e6,
                    [0, 8e6, 1.2e6, 0]),
                ...empty(11, 12),
            ], {
                epsilon: 1,
                histogramSize: 1024,
                value: 99,
                maxValue: 65_535,
                reportBytes: 119_402,
            });
        conversion(600, RTL, 502, undefined, "charged", null, "An ad matched and was paid for.", [
            ...empty(8, 9, 10, 11),
            decision(12, 1, null, RTL, LONG, 41, [0, 1.2e6, 0, 0]),
        ], { epsilon: 0.000041 });
        impression(60, "video.example", 601, "Click on “Play” (video.example)");

        balance(12, "globalBudget", "", 1_450_041);
        balance(12, "querierBudget", "shop.example", 500_000);
        balance(12, "querierBudget", "measure.example", 250_000);
        balance(12, "querierBudget", RTL, 41);
        balance(12, "querierBudget", LONG, 999_960);
        for (let shop = 1; shop <= 30; shop++) {
            balance(12, "querierBudget", `shop-${shop}.example`, shop * 31_337);
        }
        balance(12, "impressionSiteQuota", "news.example", 750_000);
        balance(12, "impressionSiteQuota", LONG, 41);
        balance(12, "conversionSiteQuota", "shop.example", 750_000);
        balance(11, "globalBudget", "", 1_750_000);
        balance(11, "querierBudget", "shop.example", 900_000);
        balance(11, "impressionSiteQuota", "news.example", 500_000);
        balance(11, "conversionSiteQuota", "shop.example", 900_000);
        balance(10, "globalBudget", "", 8e6);
        balance(10, "querierBudget", "shoes.example", 1e6);
        balance(10, "impressionSiteQuota", "video.example", 1.2e6);
        balance(10, "conversionSiteQuota", "shoes.example", 1e6);
        state.budgets.push({ epoch: 10, filter: "userActionBudget", userAction: 77,
            consumed: 300_000, capacity: null });
    }

    function fillMany() {
        for (let place = 0; place < 3000; place++) {
            impression((3000 - place) * 60, `site-${place % 97}.example`, 10_000 + place);
        }
        for (let place = 0; place < 2500; place++) {
            balance(place % 2 ? 12 : 11, "querierBudget", `site-${place}.example`, place * 100);
        }
        balance(12, "globalBudget", "", 5e6);
    }

    switch (scene) {
        case "empty":
            state.epoch = null;
            rules.length = 0;
            break;
        case "host-missing":
            host = {
                state: "missing",
                message: "Specified native messaging host not found.",
                advice: "Run “bigbird browser install chromium” in a terminal. This page notices "
                    + "by itself when the host is there.",
            };
            break;
        case "store-damaged":
            host.storeError = {
                reason: "damaged",
                message: "the store /home/kim/.local/share/bigbird/k3j9x0.store is damaged: page 7 "
                    + "has checksum 5f1c22aa, expected 09d3e871",
                advice: "Run “bigbird store reset k3j9x0.store --reason TEXT” to start over with "
                    + "an empty store. Measuring goes on with the next epoch.",
            };
            state.enabled = null;
            state.storeErrors = 12;
            state.lastStoreError = host.storeError.message;
            break;
        case "opted-out":
            fillRich();
            state.enabled = false;
            break;
        case "clock-ahead":
            fillRich();
            state.closedUntil = now + 400 * DAY;
            break;
        case "many":
            fillMany();
            break;
        default:
            fillRich();
    }

    /** A page of a list, as the host hands it out. `next` is the place of the last item. */
    const page = (name, request, size) => {
        const first = request.behind === undefined ? 0 : request.behind + 1;
        const items = state[name].slice(first, first + size);
        const last = first + items.length - 1;
        const more = last + 1 < state[name].length;
        return { ok: true, [name]: items, ...(more && { next: last }) };
    };

    const ports = new Set();
    const change = () => {
        state.revision++;
        for (const port of ports) {
            port.push({ changed: true });
        }
    };

    const answer = (request) => {
        if (host.state !== "connected") {
            return { ok: false, error: "HostError", message: "The native host is not running." };
        }
        if (host.storeError && request.event !== "status") {
            const { reason, message } = host.storeError;
            return { ok: false, error: "StoreError", reason, message };
        }
        switch (request.event) {
            case "status":
                return {
                    ok: true,
                    enabled: state.enabled,
                    closedUntil: state.closedUntil,
                    missed: state.missed,
                    storeErrors: state.storeErrors,
                    lastStoreError: state.lastStoreError,
                    revision: state.revision,
                    now,
                    epoch: scene === "empty" ? null : EPOCH,
                    version: "0.1.0",
                    rules: "big-bird",
                    releaseAfter: 2000,
                    overLimit: state.overLimit,
                };
            case "budgets":
                return { ...page("budgets", request, 1000), rules };
            case "history":
            case "impressions":
                return page(request.event, request, 200);
            case "enableAPI":
            case "disableAPI":
                state.enabled = request.event === "enableAPI";
                change();
                return { ok: true };
            case "clearImpressionsForSite":
                if (!request.site.includes(".")) {
                    return { ok: false, error: "DOMException", name: "SyntaxError",
                        message: `“${request.site}” is not a site` };
                }
                state.impressions = state.impressions.filter(({ site }) => site !== request.site);
                state.history = state.history.filter(({ kind, site }) =>
                    kind !== "impression" || site !== request.site);
                change();
                return { ok: true };
            case "clearBrowsingHistoryForAttribution":
                if (request.forgetVisits) {
                    Object.assign(state, { impressions: [], history: [], budgets: [] });
                    state.closedUntil = begins + WEEK;
                } else {
                    state.history = state.history.filter(({ site, querier }) =>
                        !request.sites.includes(site) && !request.sites.includes(querier));
                }
                change();
                return { ok: true };
            case "restartEpochs":
                Object.assign(state, { impressions: [], history: [], budgets: [] });
                state.closedUntil = begins + WEEK;
                change();
                return { ok: true };
            case "maintain":
                return { ok: true };
            default:
                return { ok: false, error: "MalformedRequest",
                    message: `unknown event “${request.event}”` };
        }
    };

    const listeners = () => {
        const all = new Set();
        return { all, addListener: (listener) => all.add(listener) };
    };

    const connect = ({ name }) => {
        const onMessage = listeners();
        const onDisconnect = listeners();
        const push = (message) => setTimeout(() => {
            const copy = JSON.parse(JSON.stringify(message));
            onMessage.all.forEach((listener) => listener(copy));
        });
        const port = {
            name,
            onMessage,
            onDisconnect,
            push,
            postMessage: ({ id, request }) => {
                mock.requests.push(request);
                push({ id, answer: answer(request) });
            },
            disconnect: () => {
                ports.delete(port);
                onDisconnect.all.forEach((listener) => listener(port));
            },
        };
        ports.add(port);
        push({ host, extension });
        return port;
    };

    /** What tests use to look behind the page, and to change what it shows. */
    const mock = {
        requests: [],
        state,
        change,
        convert: (site) => {
            conversion(0, site, 900 + number, "Click on “Buy”", "nothing", null,
                "No ad matched.", empty(11, 12));
            change();
        },
        charge: (amount) => {
            const global = state.budgets.find(({ epoch, filter }) =>
                epoch === EPOCH && filter === "globalBudget");
            global.consumed += amount;
            change();
        },
        silentCharge: (amount) => {
            state.budgets.find(({ filter }) => filter === "globalBudget").consumed += amount;
            state.revision++;
        },
        setHost: (next) => {
            host = next;
            ports.forEach((port) => port.push({ host, extension }));
        },
        breakPorts: () => [...ports].forEach((port) => port.disconnect()),
    };
    globalThis.mock = mock;
    globalThis.chrome = { runtime: { connect } };
    delete globalThis.browser;
}
