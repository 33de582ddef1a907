//! The deliberate mistakes that the reference can be given.

/// A deliberate mistake that a test must catch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// A filter pays as long as anything is left.
    Overdraft,
    /// Filters pay one after the other, and keep what they paid when a later one refuses.
    HalfPaid,
    /// The equal parts of the impression sites are rounded down.
    PartsRoundedDown,
    /// One limit applies to the impressions of all epochs together.
    SharedLimit,
    /// The user-action budget counts over all epochs (the appendix's faulty form).
    ActionBudgetOverEpochs,
    /// The stored impressions decide whether a window counts as one of a single epoch.
    SingleByStored,
    /// A request matches impressions that its own user action saved.
    OwnAction,
    /// The domain cap admits one site too many.
    CapOffByOne,
    /// Depleted impression-site quotas are skipped instead of refusing.
    LenientImpressionSites,
    /// Depleted conversion-site quotas are skipped instead of refusing.
    LenientConversionSites,
    /// A null report has no buckets.
    EmptyNull,
    /// The released report is drawn again, after another one was paid for (the draft).
    DrawnAgain,
    /// A window with only one readable epoch counts as a window of one epoch.
    SingleByReadable,
    /// A pruned epoch becomes usable again with full budgets.
    PruningRefunds,
    /// A device that is reused for another keeps what the first one spent.
    ResetKeepsBudgets,
    /// In a window of one epoch, several impression sites each pay the worst case, however little
    /// the epoch pays (the paper's literal rule).
    FreeDenial,
    /// The read limit is counted over the whole window instead of per epoch.
    ReadLimitOverWindow,
    /// A request that cannot read everything reads the impressions that were saved first.
    ReadsOldestFirst,
    /// The refusal of the global budget is ignored: the report is released, and not paid for.
    ReleasedUnpaid,
    /// The global budget notes its first charge only. Later ones compare with an undefined number,
    /// which is never too large (the draft's simulator).
    GlobalChargedOnce,
    /// If the domain cap refuses one epoch, the whole report is null.
    CapEmptiesReport,
    /// Losses are rounded down.
    RoundedDown,
    /// Only epochs whose impressions get credit are charged.
    WinnerPays,
    /// A site that is depleted in one epoch of the window loses its impressions in every epoch.
    DropSiteEverywhere,
    /// Clearing all history forgets what was spent instead of closing epochs.
    ClearingRefunds,
    /// Each share of an attribution object attributes again, over the epochs that its querier can
    /// pay for (the paper's `GetReport`).
    AttributesAgain,
    /// The creation of an attribution object charges only the credit inside the histogram that its
    /// creator asked for.
    ObjectChargedInRange,
    /// A share pays only in epochs where it gets credit.
    PaysForOwnCredit,
    /// An epoch over the user-action budget is emptied, and charged all the same (the paper's
    /// corrected listing). It wastes budget.
    ChargesWhatItEmpties,
    /// The admission of a conversion site is taken back if its epoch is dropped. It wastes work.
    AdmissionTakenBack,
    /// Every window is charged the worst case. It wastes budget.
    AlwaysWorstCase,
    /// A coin that does not look at data empties reports that were paid for. It wastes budget.
    DroppedByCoin,
}
