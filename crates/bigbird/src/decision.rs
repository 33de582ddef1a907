//! Decisions: what happened in each epoch of a request, and why.

use std::fmt;
use std::ops::Range;

use crate::{Check, EpochIndex, FilterKind, MicroEpsilon};

/// What happened in each epoch of a request and why.
///
/// It is for the person at the device and for tools there. It tells what is stored and spent, so
/// it must never leave the device: it is no [`Release`](crate::Release), and nothing here turns it
/// into bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    epochs: Vec<Record>,
    /// Of all epochs, so that a decision that is reused allocates nothing.
    checks: Vec<Check>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Record {
    epoch: EpochIndex,
    matched: usize,
    loss: MicroEpsilon,
    fate: Fate,
    dropped_sites: Range<usize>,
    checks: Range<usize>,
}

impl Decision {
    /// The epochs of the request, oldest first.
    pub fn epochs(&self) -> impl Iterator<Item = EpochDecision<'_>> {
        self.epochs.iter().map(|record| EpochDecision {
            epoch: record.epoch,
            matched: record.matched,
            loss: record.loss,
            fate: record.fate,
            dropped_sites: &self.checks[record.dropped_sites.clone()],
            checks: &self.checks[record.checks.clone()],
        })
    }

    /// The one cause to name when epochs were dropped: the first, in the order of [`Cause`], over
    /// all dropped epochs.
    pub fn first_cause(&self) -> Option<Cause> {
        self.epochs
            .iter()
            .filter_map(|record| match record.fate {
                Fate::Dropped(cause) => Some(cause),
                _ => None,
            })
            .min()
    }

    /// Whether any epoch passed, that is, contributes to the report.
    pub fn any_passed(&self) -> bool {
        self.epochs.iter().any(|record| record.fate == Fate::Passed)
    }

    pub(crate) fn clear(&mut self) {
        self.epochs.clear();
        self.checks.clear();
    }

    /// Where the checks of the next epoch begin.
    pub(crate) fn mark(&self) -> usize {
        self.checks.len()
    }

    pub(crate) fn checks_since(&self, mark: usize) -> &[Check] {
        &self.checks[mark..]
    }

    /// The checks of all epochs so far, to add to.
    pub(crate) fn checks_mut(&mut self) -> &mut Vec<Check> {
        &mut self.checks
    }

    /// Closes an epoch in which nothing was asked of any filter.
    pub(crate) fn record_unasked(&mut self, epoch: EpochIndex, fate: Fate) {
        let end = self.checks.len();
        self.epochs.push(Record {
            epoch,
            matched: 0,
            loss: MicroEpsilon::ZERO,
            fate,
            dropped_sites: end..end,
            checks: end..end,
        });
    }

    /// Closes an epoch: the checks from `begin` are about dropped sites, those from `asked` about
    /// the charge that decided.
    pub(crate) fn record(
        &mut self,
        epoch: EpochIndex,
        matched: usize,
        loss: MicroEpsilon,
        fate: Fate,
        (begin, asked): (usize, usize),
    ) {
        self.epochs.push(Record {
            epoch,
            matched,
            loss,
            fate,
            dropped_sites: begin..asked,
            checks: asked..self.checks.len(),
        });
    }
}

/// What happened in one epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpochDecision<'a> {
    /// The epoch.
    pub epoch: EpochIndex,
    /// How many events were relevant, before any were dropped.
    pub matched: usize,
    /// What was asked of the global budget, or would have been if there were one.
    pub loss: MicroEpsilon,
    /// How it ended.
    pub fate: Fate,
    /// The depleted impression sites whose events were dropped to save the others, if the policy
    /// says so ([`DepletedSites::DropSite`](crate::DepletedSites)), with what they held.
    pub dropped_sites: &'a [Check],
    /// Every filter that was asked to pay, with what it held before and what was asked.
    pub checks: &'a [Check],
}

impl EpochDecision<'_> {
    /// The filters that could not pay.
    pub fn shortfalls(&self) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(|check| !check.fits())
    }
}

/// How an epoch of a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Nothing relevant was stored; nothing was asked of any filter.
    NothingRelevant,
    /// Every filter paid, and the epoch contributes to the report.
    Passed,
    /// It contributes nothing, and no filter paid.
    Dropped(Cause),
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NothingRelevant => f.pad("nothing relevant"),
            Self::Passed => f.pad("passed"),
            Self::Dropped(cause) => f.pad(&format!("dropped by the {cause}")),
        }
    }
}

/// Why an epoch was dropped, in the order in which one cause is named for several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// The user action has admitted as many sites as it may.
    DomainCap,
    /// A filter of this kind could not pay.
    Filter(FilterKind),
    /// The epoch can no longer be read: it is older than the longest lookback, or the user cleared
    /// it.
    Pruned,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DomainCap => f.pad("domain cap"),
            Self::Filter(kind) => kind.fmt(f),
            Self::Pruned => f.pad("age or clearing of the epoch"),
        }
    }
}
