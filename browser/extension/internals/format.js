/** Numbers, dates and names as a person reads them. */

/** @import {Era} from "./protocol.js" */

/** The page is in English, so dates and numbers are too, in the reader's own variety of it. */
const LOCALE = navigator.languages.find((tag) => /^en\b/i.test(tag)) ?? "en-GB";

const COUNT = new Intl.NumberFormat(LOCALE);
const EPSILON = new Intl.NumberFormat(LOCALE, { maximumFractionDigits: 4 });
const SMALL = new Intl.NumberFormat(LOCALE, { maximumFractionDigits: 1 });
const DAY = new Intl.DateTimeFormat(LOCALE, { day: "numeric", month: "short", year: "numeric" });
const MOMENT = new Intl.DateTimeFormat(LOCALE, {
    day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit",
});
const MOMENT_LONG = new Intl.DateTimeFormat(LOCALE, { dateStyle: "full", timeStyle: "long" });

/** Control characters, lone surrogates, invisible spaces, and marks that set the direction. */
const HIDDEN =
    /[\p{Cc}\p{Cs}\p{Zl}\p{Zp}\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]/gu;

/** The smallest amount of epsilon that {@link epsilon} shows with digits, in µε. */
const SMALLEST_EPSILON = 100;

export const SECONDS_OF_A_DAY = 86_400;

/**
 * @param {number} value
 * @returns {string}
 */
export function count(value) {
    return COUNT.format(value);
}

/**
 * A number of things with the right form of their name.
 *
 * @param {number} value
 * @param {string} one
 * @param {string} [many]
 * @returns {string} for example "1 site" or "2,000 sites"
 */
export function plural(value, one, many = `${one}s`) {
    return `${COUNT.format(value)} ${value === 1 ? one : many}`;
}

/**
 * An amount of privacy loss, without its unit.
 *
 * @param {number} microepsilon
 * @returns {string} for example "0.25"
 */
export function epsilon(microepsilon) {
    if (microepsilon > 0 && microepsilon < SMALLEST_EPSILON) {
        return `< ${EPSILON.format(SMALLEST_EPSILON / 1e6)}`;
    }
    // Rounded down, so that only what is used up looks used up.
    return EPSILON.format(Math.floor(microepsilon / SMALLEST_EPSILON) / 1e4);
}

/**
 * How much of a capacity is consumed. Full means full: 99.9% is not rounded up to 100%.
 *
 * @param {number} consumed
 * @param {number} capacity
 * @returns {string} for example "25%"
 */
export function share(consumed, capacity) {
    if (capacity <= 0 || consumed >= capacity) {
        return "100%";
    }
    const percent = (100 * consumed) / capacity;
    if (percent > 0 && percent < 1) {
        return "under 1%";
    }
    return `${Math.min(99, Math.round(percent))}%`;
}

/**
 * @param {number} size
 * @returns {string} for example "1.4 kB"
 */
export function bytes(size) {
    if (size < 1000) {
        return plural(size, "byte");
    }
    return size < 1e6 ? `${SMALL.format(size / 1e3)} kB` : `${SMALL.format(size / 1e6)} MB`;
}

/**
 * @param {number} seconds
 * @returns {string} for example "12 Oct 2026, 14:05"
 */
export function moment(seconds) {
    return MOMENT.format(seconds * 1000);
}

/**
 * @param {number} seconds
 * @returns {string} the moment with its seconds and time zone
 */
export function exactMoment(seconds) {
    return MOMENT_LONG.format(seconds * 1000);
}

/**
 * @param {number} seconds
 * @returns {string} for example "12 Oct 2026"
 */
export function day(seconds) {
    return DAY.format(seconds * 1000);
}

/**
 * @param {number} from
 * @param {number} to
 * @returns {string} for example "12 – 18 Oct 2026"
 */
export function dayRange(from, to) {
    return DAY.formatRange(from * 1000, to * 1000);
}

/**
 * The time that is left, in the largest unit that fits.
 *
 * @param {number} seconds
 * @returns {string} for example "3 days"
 */
export function duration(seconds) {
    const left = Math.max(0, seconds);
    if (left >= 2 * SECONDS_OF_A_DAY) {
        return plural(Math.floor(left / SECONDS_OF_A_DAY), "day");
    }
    if (left >= 7200) {
        return plural(Math.floor(left / 3600), "hour");
    }
    return plural(Math.max(1, Math.ceil(left / 60)), "minute");
}

/**
 * Text of others, without characters that have no shape of their own or turn text around. A site
 * could otherwise make its name look like another one's.
 *
 * @param {string} text
 * @returns {string}
 */
export function visible(text) {
    return text.replace(HIDDEN, "\u{FFFD}");
}

/**
 * The era that an epoch belongs to. Epochs before the first era have its length.
 *
 * @param {Era[]} eras oldest first
 * @param {number} epoch
 * @returns {Era | undefined}
 */
export function eraOf(eras, epoch) {
    return eras.findLast((era) => era.firstEpoch <= epoch) ?? eras[0];
}

/**
 * When an epoch begins and ends.
 *
 * @param {Era[]} eras oldest first
 * @param {number} epoch
 * @returns {{begins: number, ends: number} | null} null if no rules are known
 */
export function epochTimes(eras, epoch) {
    const era = eraOf(eras, epoch);
    if (era === undefined) {
        return null;
    }
    const length = era.epochDays * SECONDS_OF_A_DAY;
    const begins = era.begins + (epoch - era.firstEpoch) * length;
    const next = eras.find((later) => later.firstEpoch === epoch + 1);
    return { begins, ends: next?.begins ?? begins + length };
}

/**
 * @param {Era[]} eras oldest first
 * @param {number} epoch
 * @returns {string} the dates of the epoch, or its number if they are not known
 */
export function epochDates(eras, epoch) {
    const times = epochTimes(eras, epoch);
    return times === null ? `Epoch ${epoch}` : dayRange(times.begins, times.ends - 1);
}
