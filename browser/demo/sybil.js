// One of the attacker's domains: it saves or measures, and sends the visitor on to the next one.
const LAST = 12;
/** The least time on a domain, in milliseconds. */
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
    // All of its own budget, which is 1. The shop asks for 0.5: halves leave not even that behind.
    const options = { aggregationService, histogramSize: 5, epsilon: 0.5 };
    for (let half = 0; half < 2; half += 1) {
        attribution.measureConversion(options).catch(() => {});
    }
}

/**
 * Waits until the browser has seen the calls. Reports take two seconds, which are not waited for.
 * An invalid call is refused at once, and after those before it were seen.
 */
const seen = attribution
    ?.saveImpression({ histogramIndex: 0, conversionSites: ["not a site"] })
    .catch(() => {});
const pause = new Promise((resolve) => setTimeout(resolve, PAUSE));
Promise.all([seen, pause]).then(() => {
    const next = `https://sybil${number + 1}.example/?do=${what}`;
    location.replace(number < LAST ? next : `https://tracker.example/?done=${what}`);
});
