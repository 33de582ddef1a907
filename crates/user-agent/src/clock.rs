//! Moments, days and epochs (the draft's section Epoch Start Time), and the rules of each epoch.
//!
//! A moment is a number of milliseconds since 1970 on the wall clock.

use std::fmt;
use std::sync::Arc;

use bigbird::{Capacity, EpochIndex, FilterKind, Policy, SiteCharging, Timestamp};
use serde::{Deserialize, Serialize};

pub(crate) const HOUR_MS: i64 = 3_600_000;
pub(crate) const DAY_MS: i64 = 24 * HOUR_MS;

/// The moment some days before another.
pub(crate) fn days_before(moment: Timestamp, days: u32) -> Timestamp {
    Timestamp(moment.0.saturating_sub(i64::from(days) * DAY_MS))
}

/// The moment some days after another.
pub(crate) fn days_after(moment: Timestamp, days: u32) -> Timestamp {
    Timestamp(moment.0.saturating_add(i64::from(days) * DAY_MS))
}

/// The length of epochs in milliseconds. Epochs last at least one day.
pub(crate) fn period_ms(epoch_days: u32) -> i64 {
    i64::from(epoch_days.max(1)) * DAY_MS
}

/// The epoch after another.
pub(crate) fn next(epoch: EpochIndex) -> EpochIndex {
    EpochIndex(epoch.0.saturating_add(1))
}

/// The rules of an epoch. They hold from its beginning until it is pruned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rules {
    /// The length of an epoch, in days. At least 1.
    pub epoch_days: u32,
    /// The capacities, the domain cap and the charging rules.
    #[serde(flatten)]
    pub policy: Policy,
}

impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.epoch_days {
            1 => write!(f, "epochs of 1 day")?,
            days => write!(f, "epochs of {days} days")?,
        }
        for kind in FilterKind::ALL {
            let capacity = self.policy.capacities().of(kind);
            if capacity != Capacity::Unlimited {
                write!(f, ", {kind} {capacity}")?;
            }
        }
        if let Some(cap) = self.policy.domain_cap() {
            write!(f, ", domain cap {cap}")?;
        }
        match self.policy.site_charging() {
            SiteCharging::Full => Ok(()),
            other => write!(f, ", site charging {other}"),
        }
    }
}

impl Rules {
    /// The maximum length of an epoch, in days. After a store was lost, epochs stay closed for this
    /// long, because the epoch at that time may have been one of this length.
    pub const MAX_EPOCH_DAYS: u32 = 400;

    /// The length of an epoch in milliseconds.
    fn period_ms(&self) -> i64 {
        period_ms(self.epoch_days)
    }

    /// The start of epochs that is `fraction` of an epoch before a moment, rounded down to a full
    /// hour. Any fraction in [0, 1) is allowed, and rounding goes down before 1970 too (notes on
    /// the draft, rows 3 and 4).
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "the draft computes with a random real number; the hour is far from the limits"
    )]
    pub(crate) fn random_start(&self, moment: Timestamp, fraction: f64) -> Timestamp {
        let fraction = if (0.0..1.0).contains(&fraction) {
            fraction
        } else {
            0.0
        };
        // Computed in seconds, as for recorded scenarios, so that results agree to the last bit.
        let start = moment.0 as f64 / 1000.0 - fraction * (self.period_ms() / 1000) as f64;
        let hour = (start / 3600.0).floor() as i64;
        Timestamp(hour.saturating_mul(HOUR_MS))
    }
}

/// Consecutive epochs under the same rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Era {
    /// Its first epoch.
    #[serde(rename = "firstEpoch")]
    pub first: EpochIndex,
    /// The moment when that epoch begins.
    pub begins: Timestamp,
    /// The rules of its epochs.
    #[serde(flatten)]
    pub rules: Rules,
}

impl Era {
    fn epoch(&self, moment: Timestamp) -> EpochIndex {
        let elapsed = i128::from(moment.0) - i128::from(self.begins.0);
        let index = i128::from(self.first.0) + elapsed.div_euclid(self.rules.period_ms().into());
        EpochIndex(i64::try_from(index).unwrap_or(if index < 0 { i64::MIN } else { i64::MAX }))
    }

    fn beginning(&self, epoch: EpochIndex) -> Timestamp {
        let epochs = i128::from(epoch.0) - i128::from(self.first.0);
        let begins = i128::from(self.begins.0) + epochs * i128::from(self.rules.period_ms());
        Timestamp(i64::try_from(begins).unwrap_or(if begins < 0 { i64::MIN } else { i64::MAX }))
    }
}

/// Maps moments to epochs, and epochs to rules.
///
/// A browser may change its rules in the field. An epoch keeps the rules it began with, and its
/// place in time, until it is pruned. So the timeline is a list of eras, in which an earlier moment
/// finds its old epoch and its old rules. Indices only increase and are never used again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeline(Arc<Vec<Era>>);

impl Timeline {
    /// A timeline whose first epoch begins at a moment and has index 0.
    pub fn starting(begins: Timestamp, rules: Rules) -> Self {
        let first = EpochIndex(0);
        Self(Arc::new(vec![Era {
            first,
            begins,
            rules,
        }]))
    }

    /// The eras, oldest first. The first one reaches back forever.
    pub fn eras(&self) -> &[Era] {
        &self.0
    }

    /// The epoch of a moment (the draft's "get the current epoch"), if epochs have begun.
    pub fn epoch(&self, moment: Timestamp) -> Option<EpochIndex> {
        Some(self.era(|era| era.begins <= moment)?.epoch(moment))
    }

    /// The moment when an epoch begins, if epochs have begun.
    pub fn beginning(&self, epoch: EpochIndex) -> Option<Timestamp> {
        Some(self.era(|era| era.first <= epoch)?.beginning(epoch))
    }

    /// The rules of an epoch, if epochs have begun.
    pub fn rules(&self, epoch: EpochIndex) -> Option<&Rules> {
        Some(&self.era(|era| era.first <= epoch)?.rules)
    }

    /// The last era for which `holds` is true, or the first era.
    fn era(&self, holds: impl Fn(&Era) -> bool) -> Option<&Era> {
        match self.0.as_slice() {
            [only] => Some(only),
            eras => eras.iter().rfind(|era| holds(era)).or(eras.first()),
        }
    }

    /// Puts other rules in force from the first epoch that begins after a moment. They replace what
    /// was planned from then on: of several changes before that epoch, the last one counts.
    pub fn change(&mut self, rules: &Rules, after: Timestamp) {
        let Some(current) = self.epoch(after) else {
            return;
        };
        let (begun, ends) = (self.beginning(current), self.beginning(next(current)));
        let eras = Arc::make_mut(&mut self.0);
        // The first era reaches back forever. It must have begun by the current epoch, or it would
        // be removed below.
        if let (Some(first), Some(begun)) = (eras.first_mut(), begun)
            && current < first.first
        {
            (first.first, first.begins) = (current, begun);
        }
        eras.retain(|era| era.first <= current);
        if let Some(begins) = ends.filter(|ends| *ends > after)
            && eras.last().is_some_and(|old| old.rules != *rules)
        {
            eras.push(Era {
                first: next(current),
                begins,
                rules: rules.clone(),
            });
        }
    }

    /// Gives new indices to the epoch of a moment and to every later one, from `first` on. `first`
    /// must be larger than any index that was used. The epoch of the moment keeps its place in time
    /// and its rules. Later epochs get the new rules.
    pub(crate) fn renumber(&mut self, rules: &Rules, now: Timestamp, first: EpochIndex) {
        let current = self.epoch(now);
        let begins = current.and_then(|current| self.beginning(current));
        let old = current.and_then(|current| self.rules(current).cloned());
        let (Some(begins), Some(old)) = (begins, old) else {
            return;
        };
        let eras = Arc::make_mut(&mut self.0);
        eras.retain(|era| era.begins < begins);
        eras.push(Era {
            first,
            begins,
            rules: old,
        });
        self.change(rules, now);
    }

    /// Forgets the eras that ended before the last epoch that was pruned. Moments in those eras
    /// still belong to pruned epochs.
    pub fn prune_before(&mut self, epoch: EpochIndex) {
        let pruned = self.0.partition_point(|era| era.first < epoch);
        if pruned > 1 {
            Arc::make_mut(&mut self.0).drain(..pruned - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bigbird::{Limit, Profile};

    fn rules(epoch_days: u32) -> Rules {
        let policy = Profile::BigBird.policy();
        Rules { epoch_days, policy }
    }

    /// Stored rules use the one name of each limit.
    #[test]
    fn stored_rules_use_the_names_of_limits() {
        let stored = serde_json::to_value(rules(7)).unwrap();
        for limit in Limit::ALL {
            let fields = match limit {
                Limit::DomainCap => &stored,
                _ => &stored["capacities"],
            };
            assert!(fields.get(limit.key()).is_some(), "{limit}: {stored}");
        }
    }

    /// Until version 4 of the store's schema, one flag stood for three rules: true for the draft's,
    /// false for the paper's.
    #[test]
    fn rules_that_earlier_versions_stored_are_read() {
        for (profile, flag) in [(Profile::W3cDraft, true), (Profile::BigBird, false)] {
            let rules = Rules {
                epoch_days: 7,
                policy: profile.policy(),
            };
            let mut stored = serde_json::to_value(&rules).unwrap();
            let fields = stored.as_object_mut().unwrap();
            for name in ["ownActionEvents", "closedSites", "allowedQueriers"] {
                assert!(fields.remove(name).is_some(), "{name}");
            }
            assert!(serde_json::from_value::<Rules>(stored.clone()).is_err());
            stored["matchesOwnAction"] = flag.into();
            assert_eq!(serde_json::from_value::<Rules>(stored).unwrap(), rules);
        }
    }

    #[test]
    fn epochs_are_counted_from_the_start_in_both_directions() {
        let start = Timestamp(10 * HOUR_MS);
        let timeline = Timeline::starting(start, rules(7));
        let epoch = |moment| timeline.epoch(Timestamp(moment)).unwrap();
        assert_eq!(epoch(start.0), EpochIndex(0));
        assert_eq!(epoch(start.0 - 1), EpochIndex(-1));
        assert_eq!(epoch(start.0 + 7 * DAY_MS), EpochIndex(1));
        // Nothing overflows at the ends of time.
        assert!(epoch(i64::MAX) > EpochIndex(0));
        assert!(epoch(i64::MIN) < EpochIndex(0));
    }

    /// Notes on the draft, rows 3 and 4.
    #[test]
    fn the_start_is_a_full_hour_for_any_fraction_also_before_1970() {
        for moment in [0, 1, -1, 1_750_000_000_123, -1_750_000_000_123] {
            for fraction in [0.0, 0.1, 1.0 / 3.0, 0.5, 0.999_999_999_999] {
                let start = rules(7).random_start(Timestamp(moment), fraction);
                assert_eq!(start.0.rem_euclid(HOUR_MS), 0);
                assert!(start.0 <= moment, "{start:?} {moment}");
                assert!(start.0 > moment - 7 * DAY_MS - HOUR_MS);
            }
        }
        let start = rules(7).random_start(Timestamp(-1), 0.0);
        assert_eq!(start, Timestamp(-HOUR_MS));
    }

    #[test]
    fn new_rules_hold_from_the_next_epoch_and_old_moments_find_old_epochs() {
        let day = |days: i64| Timestamp(days * DAY_MS);
        let mut timeline = Timeline::starting(day(0), rules(7));
        timeline.change(&rules(1), day(10));
        // Epoch 1 ends on day 14. From then on, an epoch lasts a day.
        let at = |timeline: &Timeline, days| {
            let epoch = timeline.epoch(day(days)).unwrap();
            (epoch.0, timeline.rules(epoch).unwrap().epoch_days)
        };
        for (days, expected) in [(-1, (-1, 7)), (6, (0, 7)), (13, (1, 7)), (14, (2, 1))] {
            assert_eq!(at(&timeline, days), expected, "day {days}");
        }
        assert_eq!(at(&timeline, 20), (8, 1));
        for epoch in -3..10 {
            let begins = timeline.beginning(EpochIndex(epoch)).unwrap();
            assert_eq!(timeline.epoch(begins), Some(EpochIndex(epoch)));
            let before = Timestamp(begins.0 - 1);
            assert_eq!(timeline.epoch(before), Some(EpochIndex(epoch - 1)));
        }
        // Before day 14, the last change counts. Changing back leaves no trace.
        let mut other = timeline.clone();
        other.change(&rules(30), day(12));
        assert_eq!(at(&other, 20), (2, 30));
        other.change(&rules(7), day(12));
        assert_eq!(other, Timeline::starting(day(0), rules(7)));
        // After day 14, the epochs so far stay as they are.
        timeline.change(&rules(30), day(15));
        assert_eq!(at(&timeline, 15), (3, 1));
        assert_eq!(at(&timeline, 16), (4, 30));
        assert_eq!(timeline.eras().len(), 3);
        timeline.prune_before(EpochIndex(3));
        assert_eq!(timeline.eras().len(), 2);
        assert!(at(&timeline, 13).0 < 3);
        assert_eq!(at(&timeline, 16), (4, 30));
        // The last epoch that was pruned keeps its place, even if other rules follow.
        timeline.prune_before(EpochIndex(4));
        assert_eq!(at(&timeline, 15), (3, 1));
        let mut same = timeline.clone();
        same.change(&rules(30), day(15));
        assert_eq!(same, timeline);
        // The clock is before the first epoch, and no call was ever made. The era counts as begun
        // anyway.
        let mut early = Timeline::starting(day(0), rules(7));
        early.change(&rules(1), day(-30));
        assert_eq!((at(&early, -30), at(&early, -28)), ((-5, 7), (-4, 1)));
        early.change(&rules(7), day(-30));
        assert_eq!((at(&early, -30), at(&early, 0)), ((-5, 7), (0, 7)));
        // At the end of time there is no next epoch.
        timeline.change(&rules(2), Timestamp(i64::MAX));
        assert_eq!(timeline.eras().len(), 2);
    }

    /// The current epoch keeps its end under other rules, so that no part of it opens again.
    #[test]
    fn renumbered_epochs_keep_their_places() {
        let day = |days: i64| Timestamp(days * DAY_MS);
        let mut timeline = Timeline::starting(day(0), rules(30));
        timeline.renumber(&rules(7), day(20), EpochIndex(1000));
        let at = |days| timeline.epoch(day(days)).unwrap().0;
        assert_eq!((at(0), at(20), at(29)), (1000, 1000, 1000));
        assert_eq!((at(30), at(36), at(37)), (1001, 1001, 1002));
        assert!(at(-1) < 1000);
        assert_eq!(timeline.beginning(EpochIndex(1001)), Some(day(30)));
    }
}
