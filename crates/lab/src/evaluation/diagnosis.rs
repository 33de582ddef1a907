//! Diagnoses: what an error consists of, which part dominates, and what would reduce it.

use bigbird::Limit;
use serde::{Deserialize, Serialize};

use super::metrics::{Batch, percentile};
use super::querier::Querier;

/// A source of error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ErrorSource {
    /// Noise is too large for the sums of a batch. A larger batch has larger sums.
    Noise,
    /// Limits blocked reports, so sums are too small.
    Blocking,
}

/// A change that reduces an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// More reports in a batch. The same noise then weighs less, or each report needs less ε.
    LargerBatch,
    /// More ε for each report.
    LargerEpsilon,
    /// Less ε for each report, so that devices can pay for more reports.
    SmallerEpsilon,
    /// A larger limit.
    LargerLimit(Limit),
    /// Fewer epochs that a conversion reads: each of them pays.
    SmallerLookback,
    /// Fewer buckets: each of them then has a larger sum.
    FewerBuckets,
}

/// The error of a typical batch, explained.
#[derive(Debug, Clone, PartialEq)]
pub struct Diagnosis {
    /// The error from noise alone.
    pub noise: f64,
    /// The error from blocking alone.
    pub blocking: f64,
    /// The share of the squared error that comes from noise. The rest comes from blocking.
    pub noise_share: f64,
    /// The source of most of the error: the one that alone gives at least twice the error of the
    /// other. None if neither does.
    pub dominant: Option<ErrorSource>,
    /// The limit that was the first to block most of the blocked reports. None if none was blocked.
    pub first_cause: Option<Limit>,
}

impl Diagnosis {
    /// The diagnosis of one error.
    pub fn new(noise: f64, blocking: f64, first_cause: Option<Limit>) -> Self {
        let both = noise * noise + blocking * blocking;
        let noise_share = if both > 0.0 {
            noise * noise / both
        } else {
            0.5
        };
        Self::with_share(noise, blocking, noise_share, first_cause)
    }

    /// The diagnosis of a run: the medians of both parts over its batches, and the mean of their
    /// shares. None if there are no batches.
    pub fn of(batches: &[Batch]) -> Option<Self> {
        let median = |part: fn(&Batch) -> f64| percentile(batches.iter().map(part), 50.0);
        let (noise, blocking) = (
            median(|batch| batch.parts.noise)?,
            median(|batch| batch.parts.bias)?,
        );
        let shares = batches
            .iter()
            .map(|batch| Self::new(batch.parts.noise, batch.parts.bias, None).noise_share);
        #[expect(clippy::cast_precision_loss, reason = "a number of batches")]
        let noise_share = shares.sum::<f64>() / batches.len() as f64;
        let blocked_by = |cause: Limit| -> u64 {
            let counts = batches.iter().map(|batch| batch.blocked[cause as usize]);
            counts.sum()
        };
        let most = Limit::ALL
            .into_iter()
            .max_by_key(|cause| blocked_by(*cause));
        let first_cause = most.filter(|cause| blocked_by(*cause) > 0);
        Some(Self::with_share(noise, blocking, noise_share, first_cause))
    }

    fn with_share(noise: f64, blocking: f64, noise_share: f64, first_cause: Option<Limit>) -> Self {
        let dominant = if noise > 0.0 && noise >= 2.0 * blocking {
            Some(ErrorSource::Noise)
        } else if blocking > 0.0 && blocking >= 2.0 * noise {
            Some(ErrorSource::Blocking)
        } else {
            None
        };
        Self {
            noise,
            blocking,
            noise_share,
            dominant,
            first_cause,
        }
    }

    /// The changes that would reduce the error most, the best first. They suit measurements with
    /// this number of buckets, whose conversions read this number of epochs before their own.
    ///
    /// If a querier chooses its ε for a certain error from noise, a larger batch reduces the ε, and
    /// therefore the blocking.
    pub fn remedies(&self, buckets: usize, lookback_epochs: u16) -> Vec<Remedy> {
        let noise = [Remedy::LargerBatch, Remedy::LargerEpsilon];
        let fewer = (buckets > 1).then_some(Remedy::FewerBuckets);
        let limit = self.first_cause.map(Remedy::LargerLimit);
        let lookback = (lookback_epochs > 0).then_some(Remedy::SmallerLookback);
        match self.dominant {
            Some(ErrorSource::Noise) => noise.into_iter().chain(fewer).collect(),
            Some(ErrorSource::Blocking) => limit
                .into_iter()
                .chain([Remedy::SmallerEpsilon])
                .chain(lookback)
                .collect(),
            // What reduces one of them and leaves the other as it is.
            None => [Remedy::LargerBatch]
                .into_iter()
                .chain(limit)
                .chain(fewer)
                .collect(),
        }
    }
}

/// The queriers of a workload, and those whose batches are too small: they have too few conversions
/// for one complete batch, and learn nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QuerierCounts {
    /// The number of queriers with a complete batch.
    pub with_batch: usize,
    /// The number of queriers with too few conversions for a batch.
    pub too_few_conversions: usize,
}

impl QuerierCounts {
    /// Counts queriers.
    pub fn of(queriers: &[Querier]) -> Self {
        let with_batch = queriers.iter().filter(|it| it.has_a_batch()).count();
        Self {
            with_batch,
            too_few_conversions: queriers.len() - with_batch,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::metrics::ErrorParts;
    use super::*;

    fn batch(noise: f64, bias: f64, blocked: [u64; 5]) -> Batch {
        Batch {
            conversion_site: 0,
            epsilon: 0.1,
            noise_scale: 10.0,
            size: 100,
            full: vec![100],
            kept: vec![100],
            rmsre: noise.hypot(bias),
            parts: ErrorParts { noise, bias },
            blocked,
        }
    }

    #[test]
    fn the_larger_part_dominates_and_has_a_remedy() {
        let noisy = Diagnosis::new(0.05, 0.01, Some(Limit::QuerierBudget));
        assert_eq!(noisy.dominant, Some(ErrorSource::Noise));
        assert!(!noisy.remedies(1, 0).contains(&Remedy::FewerBuckets));
        assert!(noisy.remedies(5, 0).contains(&Remedy::FewerBuckets));

        let blocked = [3, 0, 7, 0, 0];
        let most = Limit::ALL.into_iter().find(|limit| *limit as usize == 2);
        let batches = [batch(0.05, 0.3, blocked), batch(0.05, 0.5, blocked)];
        let blocking = Diagnosis::of(&batches).unwrap();
        assert_eq!((blocking.noise, blocking.blocking), (0.05, 0.4));
        assert_eq!(blocking.dominant, Some(ErrorSource::Blocking));
        assert_eq!(blocking.first_cause, most);
        assert_eq!(
            blocking.remedies(5, 1),
            [
                Remedy::LargerLimit(most.unwrap()),
                Remedy::SmallerEpsilon,
                Remedy::SmallerLookback
            ]
        );
    }

    #[test]
    fn equal_parts_do_not_dominate() {
        let even = Diagnosis::of(&[batch(0.05, 0.05, [0; 5])]).unwrap();
        assert_eq!((even.dominant, even.first_cause), (None, None));
        assert!((even.noise_share - 0.5).abs() < 1e-12);
        assert_eq!(Diagnosis::of(&[]), None);
        // Nothing blocked and no noise: there is nothing to divide.
        assert_eq!(Diagnosis::new(0.0, 0.0, None).dominant, None);
    }
}
