/**
 * The shapes of what the background and the host send. They follow `docs/agent.md`. This file has
 * no code: it exists for the type checker and for readers.
 *
 * Amounts of privacy loss are in µε unless a name says otherwise. Times are seconds since 1970.
 */

/**
 * @typedef {"querierBudget" | "globalBudget" | "impressionSiteQuota" | "conversionSiteQuota"
 *     | "userActionBudget"} FilterName
 */

/**
 * A filter and what it has paid.
 *
 * @typedef {object} Balance
 * @property {number} epoch
 * @property {FilterName} filter
 * @property {string} [site]
 * @property {number} [userAction]
 * @property {number} consumed
 * @property {number | null} capacity null is unlimited
 */

/**
 * What a request asked of a filter.
 *
 * @typedef {Balance & {asked: number, shortBy: number}} FilterCheck
 */

/**
 * The rules of consecutive epochs.
 *
 * @typedef {object} Era
 * @property {number} firstEpoch
 * @property {number} begins
 * @property {number} epochDays
 * @property {Partial<Record<FilterName, number | null>>} capacities
 * @property {number | null} domainCap
 */

/**
 * @typedef {object} EpochDecision
 * @property {number} epoch
 * @property {number} matched
 * @property {boolean} passed
 * @property {string | null} cause
 * @property {FilterCheck[]} filters
 */

/**
 * @typedef {object} Explanation
 * @property {boolean} enabled
 * @property {string | null} cause
 * @property {number | null} readableFrom
 * @property {string | null} closed
 * @property {EpochDecision[]} epochs
 * @property {string} [sentence]
 */

/**
 * One thing that happened, as the store's history keeps it.
 *
 * @typedef {object} HistoryEntry
 * @property {number} number
 * @property {number} time
 * @property {number} epoch
 * @property {"impression" | "conversion" | "sharedConversion" | "share"} kind
 * @property {string} site
 * @property {string} [intermediarySite]
 * @property {number} [userAction]
 * @property {string} [actionLabel]
 * @property {string} outcome
 * @property {number} [histogramIndex]
 * @property {number} [matchValue]
 * @property {number} [priority]
 * @property {number} [lifetimeDays]
 * @property {string[]} [conversionSites]
 * @property {string[]} [conversionCallers]
 * @property {string} [querier]
 * @property {string} [aggregationService]
 * @property {number} [epsilon] in ε, as the page gave it
 * @property {number} [histogramSize]
 * @property {number} [value]
 * @property {number} [maxValue]
 * @property {number} [reportBytes]
 * @property {string | null} [cause]
 * @property {string} [sentence]
 * @property {Explanation} [explanation]
 */

/**
 * @typedef {object} StoredImpression
 * @property {number} epoch
 * @property {number} time
 * @property {number} expires
 * @property {string} site
 * @property {string} [intermediarySite]
 * @property {number} userAction
 * @property {number} histogramIndex
 * @property {number} matchValue
 * @property {number} priority
 * @property {string[]} conversionSites
 * @property {string[]} conversionCallers
 */

/**
 * @typedef {object} Status
 * @property {boolean | null} enabled
 * @property {number | null} closedUntil
 * @property {number} missed
 * @property {number} storeErrors
 * @property {string | null} lastStoreError
 * @property {number} [revision]
 * @property {number} [now]
 * @property {number | null} [epoch]
 * @property {string} [version]
 * @property {string | null} [rules]
 * @property {number} [releaseAfter] milliseconds
 * @property {number} [overLimit]
 */

/** @typedef {{reason?: string, message?: string, advice?: string}} StoreError */

/**
 * @typedef {object} HostState
 * @property {"connected" | "connecting" | "missing" | "failed"} state
 * @property {string} [message]
 * @property {string} [advice]
 * @property {string} [version]
 * @property {string} [store]
 * @property {string} [rules]
 * @property {number} [releaseAfter] milliseconds
 * @property {StoreError | null} [storeError]
 */

/** @typedef {{version: string, privateAllowed: boolean, fallbacks: number}} ExtensionState */

/**
 * A request of the user, as the host takes it.
 *
 * @typedef {{event: string, [field: string]: unknown}} UserRequest
 */

/**
 * An answer of the host, or of the background if there is no host.
 *
 * @typedef {{ok: boolean, error?: string, name?: string, reason?: string, message?: string,
 *     [field: string]: any}} Answer
 */

export {};
