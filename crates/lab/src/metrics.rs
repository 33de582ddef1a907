//! Metrics: the error of sums of reports, and its causes.

use crate::replay::ReportOutcome;
use crate::workload::{BUCKETS, Querier, QuerierOptions};
use bigbird::Limit;

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
    pub size: usize,
    /// The sum without any limit.
    pub full: [u64; BUCKETS],
    /// The sum of what was not blocked.
    pub kept: [u64; BUCKETS],
    /// RMSRE_τ: the root of the mean, over buckets, of the squared error relative to the bucket.
    pub rmsre: f64,
    /// The error from noise alone, and from blocking alone.
    pub parts: ErrorParts,
    /// The number of blocked reports, by cause.
    pub blocked: [u32; Limit::ALL.len()],
}

/// The two sources of an error.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ErrorParts {
    /// The error if nothing were blocked.
    pub noise: f64,
    /// The error without noise.
    pub bias: f64,
}

/// The complete batches of all queriers. `full` is the outcome of each report without any limit,
/// and `kept` the outcome of the run.
pub fn batches(
    queriers: &[Querier],
    full: &[ReportOutcome],
    kept: &[ReportOutcome],
    options: &QuerierOptions,
) -> Vec<Batch> {
    let mut batches = Vec::new();
    for querier in queriers {
        for (number, reports) in querier.reports.chunks_exact(querier.batch).enumerate() {
            let first = number * querier.batch;
            let values = querier.values.get(first..first + querier.batch);
            let reports = Reports { reports, values };
            batches.push(batch(querier, reports, full, kept, options));
        }
    }
    batches
}

/// The places of some reports, and their values if one of them is not 1.
#[derive(Clone, Copy)]
struct Reports<'a> {
    reports: &'a [u32],
    values: Option<&'a [u32]>,
}

impl Reports<'_> {
    fn value(&self, number: usize) -> u64 {
        self.values.map_or(1, |values| u64::from(values[number]))
    }

    /// The sum of the outcomes of these reports.
    fn sum(&self, given: &[ReportOutcome]) -> [u64; BUCKETS] {
        let mut sum = [0; BUCKETS];
        for (number, &at) in self.reports.iter().enumerate() {
            if let Some(bucket) = given[at as usize].bucket() {
                sum[bucket] += self.value(number);
            }
        }
        sum
    }

    /// The sum of the values.
    fn worth(&self) -> u64 {
        (0..self.reports.len())
            .map(|number| self.value(number))
            .sum()
    }
}

fn batch(
    querier: &Querier,
    reports: Reports<'_>,
    full: &[ReportOutcome],
    kept: &[ReportOutcome],
    options: &QuerierOptions,
) -> Batch {
    let (full, kept_sum) = (reports.sum(full), reports.sum(kept));
    let mut blocked = [0; Limit::ALL.len()];
    for &at in reports.reports {
        if let Some(cause) = kept[at as usize].blocked() {
            blocked[cause as usize] += 1;
        }
    }
    let scale = options.noise.factor() * querier.noise_scale;
    #[expect(clippy::cast_precision_loss, reason = "sums of values")]
    let floor = options.tau * reports.worth() as f64;
    #[expect(clippy::cast_precision_loss, reason = "sums of values")]
    let error = |variance: f64, biased: bool| {
        let squares: f64 = full
            .iter()
            .zip(kept_sum)
            .map(|(&full, kept)| {
                let bias = if biased {
                    full.abs_diff(kept) as f64
                } else {
                    0.0
                };
                (variance + bias * bias) / (full as f64).max(floor).powi(2)
            })
            .sum();
        (squares / BUCKETS as f64).sqrt()
    };
    let variance = 2.0 * scale * scale;
    Batch {
        conversion_site: querier.site,
        epsilon: querier.epsilon(),
        noise_scale: scale,
        size: reports.reports.len(),
        rmsre: error(variance, true),
        parts: ErrorParts {
            noise: error(variance, false),
            bias: error(0.0, true),
        },
        full,
        kept: kept_sum,
        blocked,
    }
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
