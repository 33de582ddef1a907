/** Files that the user saves from this page. */

/** @typedef {Record<string, unknown>} Row */

/**
 * Offers a file for download.
 *
 * @param {string} name
 * @param {string} type
 * @param {string} text
 */
export function download(name, type, text) {
    const url = URL.createObjectURL(new Blob([text], { type }));
    const link = document.createElement("a");
    link.href = url;
    link.download = name;
    link.click();
    // The browser may still read the file when `click` returns.
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

/**
 * @param {string} subject
 * @param {string} extension
 * @returns {string} for example "big-bird-conversions-2026-10-12.csv"
 */
export function fileName(subject, extension) {
    return `big-bird-${subject}-${new Date().toISOString().slice(0, 10)}.${extension}`;
}

/**
 * Rows as comma-separated values (RFC 4180). Columns are the fields of all rows, in the order in
 * which they first occur.
 *
 * @param {Row[]} rows
 * @returns {string}
 */
export function csv(rows) {
    const columns = [...new Set(rows.flatMap((row) => Object.keys(row)))];
    const lines = rows.map((row) => columns.map((column) => field(row[column])));
    return [columns.map(field), ...lines].map((line) => `${line.join(",")}\r\n`).join("");
}

/**
 * @param {unknown} value
 * @returns {string}
 */
function field(value) {
    if (value === null || value === undefined) {
        return "";
    }
    if (typeof value === "number" || typeof value === "boolean") {
        return String(value);
    }
    let text = Array.isArray(value) ? value.join(" ") : String(value);
    if (/^[\s]*[=+\-@]/.test(text)) {
        // A spreadsheet would run this as a formula, and the text may come from a page.
        text = `'${text}`;
    }
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
