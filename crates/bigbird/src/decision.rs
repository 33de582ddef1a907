//! Decisions: what happened in each epoch of a request, and why.

use std::fmt;
use std::ops::Range;

use crate::{Check, EpochIndex, FilterKind, Limit, MicroEpsilon};

/// A record of what happened in each epoch of a request, and why.
///
/// It is meant for the user of the device and for tools on the device. It reveals what is stored
/// and spent, so it must never leave the device. It is not a [`Release`](crate::Release), and
/// nothing here turns it into bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    epochs: Vec<EpochRecord>,
    /// The checks of all epochs, in one list, so that a decision that is reused allocates nothing.
    checks: Vec<Check>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct EpochRecord {
    epoch: EpochIndex,
    matched: usize,
    loss: MicroEpsilon,
    fate: Fate,
    dropped_sites: Range<usize>,
    checks: Range<usize>,
}

impl Decision {
    /// The epochs of the request, oldest first.
    pub fn epochs(&self) -> impl DoubleEndedIterator<Item = EpochDecision<'_>> {
        self.epochs.iter().map(|record| EpochDecision {
            epoch: record.epoch,
            matched: record.matched,
            loss: record.loss,
            fate: record.fate,
            dropped_sites: &self.checks[record.dropped_sites.clone()],
            checks: &self.checks[record.checks.clone()],
        })
    }

    /// The cause to report when epochs were dropped: the first one, in the order of [`Cause`],
    /// among all dropped epochs.
    pub fn first_cause(&self) -> Option<Cause> {
        self.epochs
            .iter()
            .filter_map(|record| match record.fate {
                Fate::Dropped(cause) => Some(cause),
                _ => None,
            })
            .min()
    }

    /// The reason to name when epochs were dropped: the [first cause](Self::first_cause), in the
    /// latest epoch that was dropped for it, with the first filter that could not pay there.
    pub fn drop_reason(&self) -> Option<DropReason> {
        let cause = self.first_cause()?;
        let mut dropped = self.epochs().filter(|it| it.fate == Fate::Dropped(cause));
        let epoch = dropped.next_back()?;
        let of_cause = |check: &&Check| Cause::Filter(check.filter.kind()) == cause;
        Some(DropReason {
            cause,
            epoch: epoch.epoch,
            shortfall: epoch.shortfalls().find(of_cause).copied(),
        })
    }

    /// True if another epsilon may let the dropped epochs pass: filters dropped all of them.
    pub fn depends_on_epsilon(&self) -> bool {
        let mut dropped = self.epochs.iter().filter_map(|record| match record.fate {
            Fate::Dropped(cause) => Some(cause),
            _ => None,
        });
        dropped.all(|cause| matches!(cause, Cause::Filter(_)))
    }

    /// True if every epoch that was dropped here passes in another decision about the same window.
    pub fn dropped_pass_in(&self, other: &Self) -> bool {
        let fates = self.epochs.iter().zip(&other.epochs);
        fates
            .filter(|(here, _)| matches!(here.fate, Fate::Dropped(_)))
            .all(|(_, there)| there.fate == Fate::Passed)
    }

    /// True if at least one epoch passed and thus contributes to the report.
    pub fn any_passed(&self) -> bool {
        self.epochs.iter().any(|record| record.fate == Fate::Passed)
    }

    pub(crate) fn clear(&mut self) {
        self.epochs.clear();
        self.checks.clear();
    }

    /// The position at which the checks of the next epoch begin.
    pub(crate) fn mark(&self) -> usize {
        self.checks.len()
    }

    pub(crate) fn checks_since(&self, mark: usize) -> &[Check] {
        &self.checks[mark..]
    }

    /// The checks of all epochs so far, for appending more.
    pub(crate) fn checks_mut(&mut self) -> &mut Vec<Check> {
        &mut self.checks
    }

    /// Records an epoch in which no filter was asked to pay.
    pub(crate) fn record_unasked(&mut self, epoch: EpochIndex, fate: Fate) {
        let end = self.checks.len();
        self.epochs.push(EpochRecord {
            epoch,
            matched: 0,
            loss: MicroEpsilon::ZERO,
            fate,
            dropped_sites: end..end,
            checks: end..end,
        });
    }

    /// Records an epoch. Its checks from `begin` on are those of dropped sites. Its checks from
    /// `asked` on are those of the charge that decided its fate.
    pub(crate) fn record(
        &mut self,
        epoch: EpochIndex,
        matched: usize,
        loss: MicroEpsilon,
        fate: Fate,
        (begin, asked): (usize, usize),
    ) {
        self.epochs.push(EpochRecord {
            epoch,
            matched,
            loss,
            fate,
            dropped_sites: begin..asked,
            checks: asked..self.checks.len(),
        });
    }
}

/// The reason why epochs were dropped, if one is to be named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DropReason {
    /// The cause.
    pub cause: Cause,
    /// The latest epoch that was dropped for this cause.
    pub epoch: EpochIndex,
    /// The filter that could not pay in that epoch, if the cause is a filter.
    pub shortfall: Option<Check>,
}

/// The record of one epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpochDecision<'a> {
    /// The epoch.
    pub epoch: EpochIndex,
    /// The number of relevant events, before any were dropped.
    pub matched: usize,
    /// The amount asked of the global budget, or that would have been asked if there were one.
    pub loss: MicroEpsilon,
    /// The fate of the epoch.
    pub fate: Fate,
    /// The depleted impression sites whose events were dropped to keep those of the others, each
    /// with the balance of its quota. It is empty unless the policy drops sites
    /// ([`DepletedSites::DropSite`](crate::DepletedSites)).
    pub dropped_sites: &'a [Check],
    /// Every filter that was asked to pay, with its balance before and the amount asked.
    pub checks: &'a [Check],
}

impl EpochDecision<'_> {
    /// The filters that could not pay.
    pub fn shortfalls(&self) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(|check| !check.fits())
    }
}

/// The outcome of one epoch of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Nothing relevant was stored, so no filter was asked to pay.
    NothingRelevant,
    /// Every filter paid, and the epoch contributes to the report.
    Passed,
    /// The epoch contributes nothing, and no filter paid.
    Dropped(Cause),
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NothingRelevant => f.pad("nothing relevant"),
            Self::Passed => f.pad("passed"),
            Self::Dropped(cause) => f.pad(&format!("dropped (cause: {cause})")),
        }
    }
}

/// The reason why an epoch was dropped. If several apply, the first in this order is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// The user action cannot admit another site.
    DomainCap,
    /// A filter of this kind could not pay.
    Filter(FilterKind),
    /// The epoch can no longer be read: it is older than the longest lookback, or the user cleared
    /// it.
    Pruned,
}

impl Cause {
    /// The limit that was reached, if that was the cause.
    pub const fn limit(self) -> Option<Limit> {
        match self {
            Self::DomainCap => Some(Limit::DomainCap),
            Self::Filter(kind) => Some(kind.limit()),
            Self::Pruned => None,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.limit() {
            Some(limit) => limit.fmt(f),
            None => f.pad("closed epoch"),
        }
    }
}
