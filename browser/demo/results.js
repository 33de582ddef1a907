// The shop's results: noised sums next to true ones, and what the visitor's own reports hold.
const element = (name, text, kind) => {
    const made = document.createElement(name);
    made.textContent = text ?? "";
    made.className = kind ?? "";
    return made;
};

function bar(kind, value, largest) {
    const made = element("div", "", `bar ${kind}`);
    made.style.width = `${(100 * Math.max(value, 0)) / largest}%`;
    return made;
}

function show(facts) {
    const { ads, noised, own, people, reports, standardDeviation, epsilon } = facts;
    const truth = facts.true;
    document.querySelector("#summary").textContent = people === null
        ? "The aggregators are counting the reports of simulated people…"
        : `${reports} reports of ${people} simulated people and you, at ε = ${epsilon} each.`;
    document.querySelector("#noise").textContent =
        `Noise with a standard deviation of ${standardDeviation.toFixed(1)} is added to each sum.`;
    const largest = Math.max(1, ...truth, ...(noised ?? []));
    document.querySelector("#rows").replaceChildren(...ads.map((ad, index) => {
        const row = element("tr");
        const name = element("th", ad);
        name.scope = "row";
        const bars = element("td", "", "bars");
        bars.setAttribute("aria-hidden", "true");
        const seenBar = bar("noised", noised?.[index] ?? 0, largest);
        bars.append(seenBar, bar("true", truth[index], largest));
        const seen = element("td", noised ? `${noised[index]}` : "…", "number");
        row.append(name, seen, element("td", `${truth[index]}`, "number"), bars);
        return row;
    }));
    document.querySelector("#none").hidden = own.length > 0;
    document.querySelector("#own").replaceChildren(...own.map((report) => {
        const { buckets, bytes, refused } = report;
        const held = refused ? null : ads.filter((_, index) => buckets[index] !== 0);
        const item = element("li", `${bytes.toLocaleString("en")} encrypted bytes. `);
        if (refused) {
            item.append(element("span", `The aggregators refused it: ${refused}.`, "bad"));
        } else if (held.length === 0) {
            item.append(element("span", "It says nothing: the report is null.", "bad"));
        } else {
            item.append(element("span", `It says: ${held.join(", ")}.`, "good"));
        }
        return item;
    }));
}

let last = "";
async function keepShowing() {
    try {
        const text = await (await fetch("/results.json")).text();
        if (text !== last) {
            last = text;
            show(JSON.parse(text));
        }
    } catch {
        // The demonstration has ended, or begins again in a moment.
    }
    setTimeout(keepShowing, 1500);
}
keepShowing();
