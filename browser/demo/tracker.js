// The attacker: says what the click just did, because the redirects are too fast to see.
const DONE = new Map([
    ["save", "You were just sent through twelve domains. Each tried to save an ad."],
    ["measure", "You were just sent through twelve domains again. Each tried to measure, twice."],
]);
const done = new URLSearchParams(location.search).get("done");
document.querySelector("#done").textContent = DONE.get(done) ?? "";
