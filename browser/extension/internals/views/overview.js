/** The section Overview: the state, this epoch, three numbers, and what the user can do. */

import { Bar } from "../bar.js";
import { confirm } from "../dialog.js";
import { el, host, setText } from "../dom.js";
import { download, fileName } from "../download.js";
import { count, day, duration, epochDates, epochTimes, eraOf, moment } from "../format.js";
import { messageOf } from "../model.js";
import { stateOf } from "../state.js";
import { say } from "../toast.js";
import { word } from "../words.js";
import { facts, section } from "./view.js";

/** @import {DataSet, DataSetName, Model} from "../model.js" */
/** @import {UserRequest} from "../protocol.js" */
/** @import {ApiState} from "../state.js" */

const SYMBOLS = { good: "✓", neutral: "i", bad: "!" };

export class Overview {
    id = "overview";
    title = "Overview";
    /** @type {DataSetName[]} */
    needs = ["budgets", "impressions", "history"];

    /** @type {Model | null} */
    #model = null;
    #state = el("div", { class: "state card" });
    #stateKey = "";
    #bar = new Bar(word("global-budget"), "Global budget of this epoch", {
        consumed: 0,
        capacity: null,
    });
    #epoch = el("p", { class: "epoch-dates" });
    #left = el("p", { class: "muted" });
    #ads = number("ads", "Ads remembered");
    #sent = number("reports", "Reports sent");
    #carried = number("conversions", "Reports that carried something");
    #switch = el(
        "button",
        { type: "button", role: "switch", "aria-checked": "false", class: "switch" },
        el("span", { class: "switch-track", "aria-hidden": "true" }, el("span")),
        "Measure ads on this device",
    );
    #switchText = el("p", { class: "muted" });
    #clearAll = el("button", { type: "button", class: "danger" }, "Clear everything…");
    #site = el("input", {
        id: "clear-site",
        type: "text",
        inputmode: "url",
        autocomplete: "off",
        spellcheck: "false",
        autocapitalize: "none",
        placeholder: "shop.example",
        "aria-describedby": "clear-site-problem",
    });
    #siteProblem = el("p", { id: "clear-site-problem", class: "field-problem", role: "alert" });
    #clearSite = el("button", { type: "submit" }, "Clear this site…");
    #engineer = el("div");

    constructor() {
        this.#switch.addEventListener("click", () => this.#toggle());
        this.#clearAll.addEventListener("click", () => this.#clearEverything());
        this.element = section(
            this.id,
            this.title,
            [
                "Sites may ask this browser whether their ads worked, without learning what you "
                    + "did. This page shows all that is kept for that, and all that ever left. "
                    + "Words with a dotted line explain themselves when you press them.",
            ],
            this.#state,
            el(
                "div",
                { class: "card" },
                el("h2", null, "This ", word("epoch", "epoch")),
                this.#epoch,
                this.#bar.element,
                this.#left,
            ),
            el(
                "ul",
                { class: "numbers" },
                [this.#ads, this.#sent, this.#carried].map((card) => card.element),
            ),
            el(
                "div",
                { class: "card" },
                el("h2", null, "What you can do"),
                el(
                    "div",
                    { class: "controls" },
                    el(
                        "div",
                        null,
                        el("div", { class: "control" }, this.#switch, this.#switchText),
                        el(
                            "div",
                            { class: "control" },
                            el("h3", null, "Clear everything"),
                            el(
                                "p",
                                { class: "muted" },
                                "Removes all that this page shows. Nothing is measured again "
                                    + "before the next epoch begins.",
                            ),
                            this.#clearAll,
                        ),
                    ),
                    this.#siteForm(),
                ),
            ),
            el(
                "details",
                { class: "card" },
                el("summary", null, el("h2", null, "For engineers")),
                this.#engineer,
                el(
                    "p",
                    { class: "row" },
                    el("button", { type: "button", onclick: () => this.#save() }, "Save as JSON"),
                    el(
                        "button",
                        {
                            type: "button",
                            onclick: () => this.#send(
                                { event: "maintain" },
                                "Old data is being removed.",
                            ),
                        },
                        "Remove what no request can reach",
                    ),
                ),
            ),
        );
    }

    /** @param {Model} model */
    update(model) {
        this.#model = model;
        const state = stateOf(model);
        this.#showState(state);
        this.#showEpoch(model);
        this.#ads.show(total(model.impressions, () => true));
        this.#sent.show(total(model.history, (entry) => (entry.reportBytes ?? 0) > 0));
        this.#carried.show(total(
            model.history,
            (entry) => (entry.reportBytes ?? 0) > 0 && entry.outcome === "charged",
        ));
        const usable = model.host?.state === "connected" && typeof model.status?.enabled
            === "boolean";
        const enabled = model.status?.enabled === true;
        this.#switch.setAttribute("aria-checked", String(enabled));
        for (const control of [this.#switch, this.#clearAll, this.#clearSite]) {
            control.setAttribute("aria-disabled", String(!usable));
        }
        setText(this.#switchText, switchText(usable, enabled));
        this.#showEngineer(model);
    }

    /** @param {ApiState} state */
    #showState(state) {
        const key = JSON.stringify(state);
        if (key === this.#stateKey) {
            return;
        }
        this.#stateKey = key;
        const held = this.#state.contains(document.activeElement);
        this.#state.className = `state card ${state.tone}`;
        this.#state.dataset.kind = state.kind;
        this.#state.replaceChildren(
            el("span", { class: "symbol", "aria-hidden": "true" }, SYMBOLS[state.tone]),
            el(
                "div",
                null,
                el("h2", null, state.title),
                el("p", null, state.text),
                state.detail && el("p", { class: "detail" }, "Details: ", state.detail),
                state.advice && el("p", { class: "advice" }, el("strong", null, "What to do: "),
                    state.advice),
                state.clockWasAhead && el(
                    "button",
                    { type: "button", onclick: () => this.#restart() },
                    "Start the epochs again…",
                ),
            ),
        );
        if (held) {
            this.element.querySelector("h1")?.focus();
        }
    }

    /** @param {Model} model */
    #showEpoch(model) {
        const epoch = model.status?.epoch ?? null;
        const times = epoch === null ? null : epochTimes(model.eras, epoch);
        if (epoch === null || times === null) {
            const known = model.status !== null && model.budgets.error === null;
            const none = known && model.budgets.read;
            setText(this.#epoch, none ? "No epoch has begun" : "Not known now");
            setText(this.#left, none ? "The first one begins when a site first uses the API." : "");
            this.#bar.element.hidden = true;
            return;
        }
        const era = eraOf(model.eras, epoch);
        const balance = model.budgets.items.find((one) =>
            one.epoch === epoch && one.filter === "globalBudget");
        const capacity = balance ? balance.capacity : era?.capacities.globalBudget ?? null;
        const closed = (model.status?.closedUntil ?? null) !== null;
        // An empty bar would promise that there is something to spend.
        this.#bar.element.hidden = closed && balance === undefined;
        this.#bar.update({ consumed: balance?.consumed ?? 0, capacity });
        setText(this.#epoch, epochDates(model.eras, epoch));
        setText(
            this.#left,
            `Epoch ${epoch}${closed ? " is closed, and nothing is measured in it" : ""}. The next `
                + `one begins on ${moment(times.ends)}, in ${duration(times.ends - model.now)}.`,
        );
    }

    /** @param {Model} model */
    #showEngineer(model) {
        const { host: native, extension, status } = model;
        const delay = status?.releaseAfter ?? native?.releaseAfter;
        /** @type {[string, string][]} */
        const entries = [
            ["Extension", extension?.version ?? "not known"],
            ["Native host", status?.version ?? native?.version ?? "not known"],
            ["State of the host", native?.state ?? "not known"],
            ["Rules", status?.rules ?? native?.rules ?? "not known"],
            ["Store", native?.store ?? "not known"],
            ["Answers after", delay === undefined ? "not known" : `${count(delay)} ms`],
            ["Revision", status?.revision === undefined ? "not known" : count(status.revision)],
            ["Conversions not ready in time", counted(status?.missed)],
            ["Calls over a limit", counted(status?.overLimit)],
            ["Failures of the store", counted(status?.storeErrors)],
            ["Last failure of the store", status?.lastStoreError ?? "none"],
            ["Answers without the host", counted(extension?.fallbacks)],
            ["Private windows", extension === null ? "not known"
                : extension.privateAllowed
                    ? "the API is there, and every report is a null report"
                    : "the extension is not allowed there"],
        ];
        if (this.#engineer.firstElementChild === null) {
            this.#engineer.append(facts(entries.map(([name]) => [name, ""])));
        }
        const values = this.#engineer.querySelectorAll("dd");
        entries.forEach(([, value], place) => {
            const node = values[place];
            if (node !== undefined) {
                setText(node, value);
            }
        });
    }

    #siteForm() {
        const kind = (/** @type {string} */ value, /** @type {string} */ name,
            /** @type {string} */ text, /** @type {boolean} */ checked) => el(
            "label",
            { class: "choice" },
            el("input", { type: "radio", name: "clear-kind", value, checked }),
            el("span", null, el("strong", null, name), " ", text),
        );
        const form = el(
            "form",
            { class: "control", novalidate: true },
            el("h3", null, "Clear one site"),
            el("label", { for: "clear-site" }, "Site"),
            this.#site,
            this.#siteProblem,
            el(
                "fieldset",
                null,
                el("legend", null, "What to clear"),
                kind(
                    "impressions",
                    "The ads it showed.",
                    "The ads remembered for this site are removed, so later reports cannot count "
                        + "them. Its conversions are still measured.",
                    true,
                ),
                kind(
                    "conversions",
                    "The conversions on it.",
                    "Nothing from the epochs up to now is ever reported to this site again, and "
                        + "what happened there disappears from this page. Ads that it showed "
                        + "stay, because they belong to the sites they advertise.",
                    false,
                ),
            ),
            this.#clearSite,
        );
        form.addEventListener("submit", (event) => {
            event.preventDefault();
            void this.#clearOne(String(new FormData(form).get("clear-kind")));
        });
        return form;
    }

    async #toggle() {
        if (this.#switch.getAttribute("aria-disabled") === "true") {
            return;
        }
        const enable = this.#switch.getAttribute("aria-checked") !== "true";
        await this.#send(
            { event: enable ? "enableAPI" : "disableAPI" },
            enable ? "Ads are measured again." : "You opted out. Sites cannot tell.",
        );
    }

    /** @param {string} kind */
    async #clearOne(kind) {
        if (this.#clearSite.getAttribute("aria-disabled") === "true") {
            return;
        }
        const name = siteOf(this.#site.value);
        this.#site.setAttribute("aria-invalid", String(name === null));
        setText(this.#siteProblem, name === null
            ? "Enter the name of a site, such as shop.example."
            : "");
        if (name === null) {
            this.#site.focus();
            return;
        }
        const ads = kind === "impressions";
        const sure = await confirm({
            title: ads ? "Remove the ads of this site?" : "Clear the conversions of this site?",
            body: [
                el("p", null, host(name)),
                el("p", null, ads
                    ? "All ads that this site showed are forgotten on this device. This cannot be "
                        + "undone."
                    : "Its conversions are no longer measured in any epoch up to now, and its "
                        + "entries in the lists of this page are removed. This cannot be undone."),
                el("p", null, "Budgets that were spent stay spent. Reports that already left "
                    + "cannot be called back."),
            ],
            action: ads ? "Remove its ads" : "Clear its conversions",
        });
        if (!sure) {
            return;
        }
        const request = ads
            ? { event: "clearImpressionsForSite", site: name, byUser: true }
            : { event: "clearBrowsingHistoryForAttribution", sites: [name], forgetVisits: false };
        if (await this.#send(request, `Cleared ${name}.`)) {
            this.#site.value = "";
        }
    }

    async #clearEverything() {
        const model = this.#model;
        if (model === null || this.#clearAll.getAttribute("aria-disabled") === "true") {
            return;
        }
        const epoch = model.status?.epoch ?? null;
        const ends = epoch === null ? undefined : epochTimes(model.eras, epoch)?.ends;
        const sure = await confirm({
            title: "Clear everything?",
            body: [
                el("p", null, "This does the following, and it cannot be undone:"),
                el(
                    "ul",
                    null,
                    el("li", null, "All remembered ads are removed from this device."),
                    el("li", null, "All conversions, user actions and records of what left are "
                        + "removed from this page."),
                    el("li", null, "No epoch up to now is ever measured again. Until the next one "
                        + `begins${ends === undefined ? "" : ` on ${day(ends)}`}, every report is `
                        + "a null report. Otherwise sites could spend the same budget twice."),
                ),
                el("p", null, "Reports that already left cannot be called back. Your choice to "
                    + "measure ads or not stays as it is."),
            ],
            action: "Clear everything",
        });
        if (sure) {
            await this.#send(
                { event: "clearBrowsingHistoryForAttribution", sites: [], forgetVisits: true },
                "Everything is cleared.",
            );
        }
    }

    async #restart() {
        const sure = await confirm({
            title: "Is the clock of this computer right?",
            body: [
                el("p", null, `This computer says that it is ${moment(Date.now() / 1000)}.`),
                el("p", null, "If that is right, the epochs can start again. Everything that is "
                    + "remembered is removed, and the first epoch that is measured again is the "
                    + "next one. This cannot be undone."),
            ],
            action: "The clock is right: start again",
        });
        if (sure) {
            await this.#send({ event: "restartEpochs" }, "The epochs start again.");
        }
    }

    /**
     * @param {UserRequest} request
     * @param {string} done what to say afterwards
     * @returns {Promise<boolean>} true if it worked
     */
    async #send(request, done) {
        try {
            await this.#model?.change(request);
            say(done, false);
            return true;
        } catch (error) {
            say(`That did not work. ${messageOf(error)}`, true);
            return false;
        }
    }

    #save() {
        const model = this.#model;
        const { host: native, extension, status, statusError, eras } = model ?? {};
        const text = JSON.stringify({ host: native, extension, status, statusError, rules: eras },
            null, 2);
        download(fileName("status", "json"), "application/json", `${text}\n`);
    }
}

/**
 * A card with one number that leads to a section.
 *
 * @param {string} target
 * @param {string} label
 */
function number(target, label) {
    const value = el("span", { class: "number" }, "–");
    const element = el(
        "li",
        null,
        el("a", { class: "card", href: `#${target}` }, value, el("span", null, label)),
    );
    return { element, show: (/** @type {string} */ text) => setText(value, text) };
}

/**
 * @template T
 * @param {DataSet<T>} set
 * @param {(item: T) => boolean} counts
 * @returns {string} the number of items that count, or at least that many
 */
function total(set, counts) {
    if (!set.read || set.error !== null) {
        return "–";
    }
    return count(set.items.filter(counts).length) + (set.incomplete ? "+" : "");
}

/**
 * @param {number | undefined} value
 * @returns {string}
 */
function counted(value) {
    return value === undefined ? "not known" : count(value);
}

/**
 * @param {boolean} usable
 * @param {boolean} enabled
 * @returns {string}
 */
function switchText(usable, enabled) {
    if (!usable) {
        return "This needs the native host and its store. See above what to do.";
    }
    return enabled
        ? "Turn this off to opt out: no ad is remembered any more, and every report is a null "
            + "report. Sites cannot tell. What is remembered stays until it expires or you clear "
            + "it."
        : "Turn this on to remember ads and to let sites measure them within the budgets.";
}

/**
 * The host that the user means: a name, or the address of a page.
 *
 * @param {string} text
 * @returns {string | null}
 */
function siteOf(text) {
    const trimmed = text.trim();
    if (trimmed === "" || /\s/.test(trimmed)) {
        return null;
    }
    try {
        const url = new URL(/^[a-z][a-z0-9+.-]*:\/\//i.test(trimmed)
            ? trimmed
            : `https://${trimmed}`);
        return url.hostname === "" ? null : url.hostname;
    } catch {
        return null;
    }
}
