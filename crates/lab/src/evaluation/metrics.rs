//! Metrics: the error of sums of reports, and its parts.

use bigbird::Limit;

use super::batching::{BatchPlan, BatchTotals};
use super::querier::{Querier, QuerierOptions};

/// A batch of reports of one querier, and the error of their sum.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// The querier's number among conversion sites.
    pub conversion_site: u32,
    /// The ε of a report.
    pub epsilon: f64,
    /// The scale of the noise on each bucket.
    pub noise_scale: f64,
    /// The number of reports.
    pub size: u64,
    /// The sum without any limit.
    pub full: Vec<u64>,
    /// The sum of what was not blocked.
    pub kept: Vec<u64>,
    /// RMSRE_τ: the root of the mean, over buckets, of the squared error relative to the bucket.
    pub rmsre: f64,
    /// The error from noise alone, and from blocking alone.
    pub parts: ErrorParts,
    /// The number of blocked reports, by cause.
    pub blocked: [u64; Limit::ALL.len()],
}

/// The two sources of an error.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ErrorParts {
    /// The error if nothing were blocked.
    pub noise: f64,
    /// The error without noise.
    pub bias: f64,
}

/// The last step of a run: the complete batches of all queriers, with their errors. `full` has the
/// sums without any limit, and `kept` those of the run.
pub fn evaluate(
    queriers: &[Querier],
    plan: &BatchPlan,
    full: &BatchTotals,
    kept: &BatchTotals,
    options: &QuerierOptions,
) -> Vec<Batch> {
    plan.queriers()
        .enumerate()
        .map(|(number, querier)| {
            let sums = (full.sums(number), kept.sums(number));
            let scale = options.noise.factor() * queriers[querier].noise_scale;
            let counts = kept.counts(number);
            #[expect(clippy::cast_precision_loss, reason = "a sum of values")]
            let floor = options.tau * counts.worth as f64;
            let variance = 2.0 * scale * scale;
            Batch {
                conversion_site: queriers[querier].site,
                epsilon: queriers[querier].epsilon(),
                noise_scale: scale,
                size: counts.reports,
                rmsre: error(sums, floor, variance, 1.0),
                parts: ErrorParts {
                    noise: error(sums, floor, variance, 0.0),
                    bias: error(sums, floor, 0.0, 1.0),
                },
                full: sums.0.to_vec(),
                kept: sums.1.to_vec(),
                blocked: counts.blocked,
            }
        })
        .collect()
}

/// RMSRE_τ of sums with noise of this variance. Their bias counts with this weight: 0 or 1.
#[expect(clippy::cast_precision_loss, reason = "sums of values")]
fn error((full, kept): (&[u64], &[u64]), floor: f64, variance: f64, weight: f64) -> f64 {
    let squares: f64 = full
        .iter()
        .zip(kept)
        .map(|(&full, &kept)| {
            let bias = weight * full.abs_diff(kept) as f64;
            (variance + bias * bias) / (full as f64).max(floor).powi(2)
        })
        .sum();
    (squares / full.len() as f64).sqrt()
}

/// A percentile of errors, interpolated between the two nearest ranks. The median of an even number
/// of errors is the mean of the two in the middle. None if there are no errors.
pub fn percentile(errors: impl IntoIterator<Item = f64>, percent: f64) -> Option<f64> {
    let mut errors: Vec<f64> = errors.into_iter().collect();
    errors.sort_by(f64::total_cmp);
    let last = errors.len().checked_sub(1)?;
    #[expect(clippy::cast_precision_loss, reason = "a rank is a small number")]
    let rank = (percent / 100.0).clamp(0.0, 1.0) * last as f64;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rank is between 0 and the number of errors"
    )]
    let (below, above) = (rank.floor() as usize, rank.ceil() as usize);
    let share = rank - rank.floor();
    Some(errors[below] * (1.0 - share) + errors[above] * share)
}
