//! The limits on what a query reads of one epoch.

use super::query::MatchedImpression;
use crate::UserAction;
use crate::query::Relevant;

/// The limits on what a query reads of one epoch. They bound its work, whatever is stored.
///
/// Impressions are read in the order of attribution: by priority, then the newest first, then the
/// one saved later. So a query that stops after `relevant` impressions gives the histogram it would
/// have given anyway. Only who pays changes, because an impression that is not read has no part in
/// the report.
///
/// The limits are per epoch and never per window: what is read of an epoch is a function of that
/// epoch and the query alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadLimits {
    /// The number of relevant impressions that count. A query always reads at least as many as its
    /// credit list has shares.
    pub relevant: u32,
    /// The number of impressions that are examined to find the relevant ones. It is at least 32,
    /// and at least `relevant`.
    ///
    /// If every index leads to more impressions than this, only the first ones that the conversion
    /// site may measure are examined, in the order of attribution. The others are treated as if
    /// they were not stored.
    pub examined: u32,
}

impl ReadLimits {
    /// The number of impressions that are examined without an index.
    pub(super) const LEAST_EXAMINED: u32 = 32;
}

impl Default for ReadLimits {
    /// 1,000 relevant impressions out of 2,000 examined ones.
    fn default() -> Self {
        Self {
            relevant: 1000,
            examined: 2000,
        }
    }
}

/// Tells a query that reads relevant events in the order of attribution when to stop.
#[derive(Debug)]
pub struct StopRule {
    own: UserAction,
    left: u32,
    last: Option<u32>,
}

impl StopRule {
    /// The rule of a query that a user action caused and that reads `relevant` relevant events.
    pub(super) fn new(own: UserAction, relevant: u32) -> Self {
        Self {
            own,
            left: relevant,
            last: None,
        }
    }

    /// Counts a relevant event. Returns true if no later event can count.
    ///
    /// Events of the query's own user action are not counted, because the policy may exclude them.
    /// An event that several callers may measure can come several times in a row, and is counted
    /// once.
    pub fn stops_at(&mut self, event: &Relevant<MatchedImpression>) -> bool {
        if event.user_action != self.own && self.last != Some(event.order) {
            self.left = self.left.saturating_sub(1);
        }
        self.last = Some(event.order);
        self.left == 0
    }
}
