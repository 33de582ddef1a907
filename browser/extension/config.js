// What is fixed when the extension is installed. `bigbird browser` writes this file anew, with the
// aggregation services of the native host: the draft forbids fetching them on demand.
/** @type {any} */ (globalThis).__bigbirdConfig = {"services":{},"servicesToml":"","profile":"big-bird","releaseAfter":2000,"answerAfter":2250,"activationDuration":15000};
