//! Moments, days and epochs (the draft's section Epoch Start Time).
//!
//! A moment is a number of milliseconds since 1970 on the wall clock.

use bigbird::{EpochIndex, Timestamp};

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

/// How long epochs of so many days are; at least one day.
pub(crate) fn epoch_ms(days: u32) -> i64 {
    i64::from(days.max(1)) * DAY_MS
}

/// Translates moments into epochs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EpochClock {
    pub(crate) start: Timestamp,
    pub(crate) period_ms: i64,
}

impl EpochClock {
    /// The epoch of a moment (the draft's "get the current epoch").
    pub(crate) fn epoch(&self, moment: Timestamp) -> EpochIndex {
        let elapsed = i128::from(moment.0) - i128::from(self.start.0);
        let index = elapsed.div_euclid(i128::from(self.period_ms));
        EpochIndex(i64::try_from(index).unwrap_or(if index < 0 { i64::MIN } else { i64::MAX }))
    }

    /// A start that lies `fraction` of an epoch before a moment, at the full hour below it
    /// (notes on the draft, rows 3 and 4: any fraction in [0, 1), floored also before 1970).
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "the draft computes with a random real number; the hour is far from the limits"
    )]
    pub(crate) fn random_start(moment: Timestamp, fraction: f64, period_ms: i64) -> Timestamp {
        let fraction = if (0.0..1.0).contains(&fraction) {
            fraction
        } else {
            0.0
        };
        // In seconds, as recorded scenarios have it: they agree to the last bit.
        let start = moment.0 as f64 / 1000.0 - fraction * (period_ms / 1000) as f64;
        let hour = (start / 3600.0).floor() as i64;
        Timestamp(hour.saturating_mul(HOUR_MS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_are_counted_from_the_start_in_both_directions() {
        let clock = EpochClock {
            start: Timestamp(10 * HOUR_MS),
            period_ms: 7 * DAY_MS,
        };
        assert_eq!(clock.epoch(clock.start), EpochIndex(0));
        assert_eq!(clock.epoch(Timestamp(clock.start.0 - 1)), EpochIndex(-1));
        let second = Timestamp(clock.start.0 + 7 * DAY_MS);
        assert_eq!(clock.epoch(second), EpochIndex(1));
        // Nothing overflows at the ends of time.
        assert!(clock.epoch(Timestamp(i64::MAX)) > EpochIndex(0));
        assert!(clock.epoch(Timestamp(i64::MIN)) < EpochIndex(0));
    }

    /// Notes on the draft, rows 3 and 4.
    #[test]
    fn the_start_is_a_full_hour_for_any_fraction_also_before_1970() {
        for moment in [0, 1, -1, 1_750_000_000_123, -1_750_000_000_123] {
            for fraction in [0.0, 0.1, 1.0 / 3.0, 0.5, 0.999_999_999_999] {
                let start = EpochClock::random_start(Timestamp(moment), fraction, 7 * DAY_MS);
                assert_eq!(start.0.rem_euclid(HOUR_MS), 0);
                assert!(start.0 <= moment, "{start:?} {moment}");
                assert!(start.0 > moment - 7 * DAY_MS - HOUR_MS);
            }
        }
        assert_eq!(
            EpochClock::random_start(Timestamp(-1), 0.0, 7 * DAY_MS),
            Timestamp(-HOUR_MS)
        );
    }
}
