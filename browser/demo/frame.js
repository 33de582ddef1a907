// Says so if this browser has no `navigator.attribution`.
for (const notice of document.querySelectorAll("[data-missing]")) {
    notice.hidden = "attribution" in navigator;
}
