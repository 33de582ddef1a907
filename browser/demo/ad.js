// An ad of the shop in a frame of the ad company. It asks the browser to remember it.
async function save() {
    const ad = Number(new URLSearchParams(location.search).get("ad"));
    const options = { histogramIndex: ad, conversionSites: ["shop.example"] };
    try {
        await navigator.attribution.saveImpression(options);
        return "This ad asked your browser to remember it.";
    } catch (error) {
        return `Your browser refused: ${error.message}`;
    }
}

if ("attribution" in navigator) {
    save().then((told) => {
        document.querySelector("#told").textContent = told;
    });
}
