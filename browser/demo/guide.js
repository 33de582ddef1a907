// The guide: what fits the rules of this browser, and what has happened so far.
const rules = document.querySelector("#rules").textContent;
const known = [...document.querySelectorAll("[data-rules]")];
const fits = known.some((it) => it.dataset.rules === rules) ? rules : "other";
for (const paragraph of known) {
    paragraph.hidden = paragraph.dataset.rules !== fits;
}

async function show() {
    const facts = await (await fetch("/facts.json")).json();
    const { own, people, reports } = facts;
    document.querySelector("#own").textContent = own.length === 0
        ? "The shop has no report of yours yet."
        : `The shop has ${own.length === 1 ? "one report" : `${own.length} reports`} of yours.`;
    document.querySelector("#people").textContent = people === null
        ? "Simulated people are still shopping…"
        : `${people} simulated people and you have sent ${reports} reports.`;
}

async function keepShowing() {
    await show().catch(() => {});
    setTimeout(keepShowing, 2000);
}
keepShowing();
