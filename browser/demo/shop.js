// The shop: each purchase is measured, and the report goes to the shop's own server.
const SERVICE = "https://agg.example";
/**
 * The places where the shop advertises. Asked about all sites, a browser would also count ads that
 * an attacker saved, and the attacker's spent quotas would make the report null.
 */
const PLACES = ["news.example", "blog.example"];

/** The number of reports of this visitor that have arrived. */
async function arrived() {
    return (await (await fetch("/results.json")).json()).own.length;
}

document.querySelector("#buy").addEventListener("click", async ({ target }) => {
    const bought = document.querySelector("#bought");
    target.disabled = true;
    bought.className = "";
    bought.textContent = "Thank you! Your browser is making its report…";
    try {
        const options = {
            aggregationService: SERVICE,
            histogramSize: 5,
            epsilon: 0.5,
            impressionSites: PLACES,
        };
        const { report } = await navigator.attribution.measureConversion(options);
        const headers = { "Content-Type": "application/dap-report" };
        await fetch("/reports", { method: "POST", headers, body: report });
        bought.className = "good";
        bought.textContent =
            `Thank you! The shop got ${report.length} encrypted bytes, and cannot read them.`;
    } catch (error) {
        bought.className = "bad";
        bought.textContent = `There is no report: ${error.message}`;
    }
    target.disabled = false;
});

document.querySelector("#letter").addEventListener("click", async ({ target }) => {
    const subscribed = document.querySelector("#subscribed");
    target.disabled = true;
    subscribed.className = "";
    subscribed.textContent = "Welcome! Your browser is making its report…";
    const before = await arrived();
    const picture = new Image();
    picture.src = `/subscribed.svg?${Date.now()}`;
    const until = performance.now() + 20_000;
    while (performance.now() < until && (await arrived()) === before) {
        await new Promise((resolve) => setTimeout(resolve, 300));
    }
    const came = (await arrived()) > before;
    subscribed.className = came ? "good" : "bad";
    subscribed.textContent = came
        ? "Welcome! Your browser sent the report to the shop by itself."
        : "No report came. Does this browser have navigator.attribution?";
    target.disabled = false;
});
