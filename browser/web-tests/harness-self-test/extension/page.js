// Shows that the MAIN world is reached before the page's own scripts.
"use strict";

Object.defineProperty(navigator, "harness", { value: { early: !document.body } });
