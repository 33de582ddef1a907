//! Plans a measurement: the error that an advertiser can expect, from noise and from blocking.
//!
//! The error is the RMSRE of the paper's evaluation. Noise decreases as epsilon grows. But a device
//! pays epsilon for each report, and when its budget is depleted, further reports are blocked and
//! missing from the sum. The number of blocked reports follows from the number of reports that
//! devices make in an epoch, which is counted in a workload.

use bigbird::Limit;

use crate::describe::Counts;
use crate::evaluation::querier::noise_scale;
use crate::evaluation::{Diagnosis, NoiseModel};
use crate::workload::read::ReadError;
use crate::workload::{EventKind, Workload};

/// An advertiser that measures its conversions.
#[derive(Debug, Clone)]
pub struct Measurement {
    /// The share of each bucket among attributed conversions.
    pub shares: Vec<f64>,
    /// τ: errors of buckets below this share of the batch are relative to this share instead of the
    /// bucket.
    pub tau: f64,
    /// The noise that is added to sums.
    pub noise: NoiseModel,
    /// The most that a device can pay for this advertiser in an epoch, in ε: the least of its
    /// budgets and quotas.
    pub budget: f64,
    /// The numbers of reports that devices make in an epoch.
    pub reports_of_device: Counts,
}

/// The error to expect.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpectedError {
    /// The ε of each report.
    pub epsilon: f64,
    /// The number of reports in a batch.
    pub batch: f64,
    /// The error from noise alone.
    pub noise: f64,
    /// The share of reports that are blocked.
    pub blocked: f64,
    /// The error from blocking alone.
    pub bias: f64,
    /// The error from both.
    pub error: f64,
}

impl ExpectedError {
    /// The explanation of the error, if this is the limit that blocks reports.
    pub fn diagnosis(&self, least: Limit) -> Diagnosis {
        Diagnosis::new(self.noise, self.bias, (self.blocked > 0.0).then_some(least))
    }
}

impl Measurement {
    /// The error to expect of batches of `batch` reports, each of which costs `epsilon`.
    pub fn expect(&self, epsilon: f64, batch: f64) -> ExpectedError {
        // The error from noise is proportional to the noise scale.
        let scale_of_error_one = noise_scale(batch, &self.shares, 1.0, self.tau);
        let noise = self.noise.factor() / epsilon / scale_of_error_one;
        let blocked = self.blocked(epsilon);
        let bias = blocked * self.relative();
        ExpectedError {
            epsilon,
            batch,
            noise,
            blocked,
            bias,
            error: noise.hypot(bias),
        }
    }

    /// The share of reports that a device cannot pay for.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "counts of reports"
    )]
    fn blocked(&self, epsilon: f64) -> f64 {
        // Amounts are whole µε, so a budget of 1 pays for ten reports of 0.1.
        let affordable = (self.budget / epsilon + 1e-9).floor() as u64;
        let (mut all, mut over) = (0.0, 0.0);
        for (reports, devices) in self.reports_of_device.iter() {
            all += (reports * devices) as f64;
            over += (reports.saturating_sub(affordable) * devices) as f64;
        }
        if all == 0.0 { 0.0 } else { over / all }
    }

    /// The error if all reports were blocked. It is less than 1 if a bucket is smaller than τ.
    fn relative(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a count of buckets")]
        let buckets = self.shares.len() as f64;
        let squares: f64 = self
            .shares
            .iter()
            .map(|share| (share / share.max(self.tau)).powi(2))
            .sum();
        (squares / buckets).sqrt()
    }

    /// The least epsilon with which batches of `batch` reports have at most the target error.
    ///
    /// # Errors
    /// If no epsilon is good enough. The error value is the best that can be expected.
    pub fn epsilon_for(&self, target: f64, batch: f64) -> Result<ExpectedError, ExpectedError> {
        let mut best: Option<ExpectedError> = None;
        for epsilon in self.epsilons() {
            let expected = self.expect(epsilon, batch);
            if expected.error <= target {
                return Ok(expected);
            }
            if best.is_none_or(|best| expected.error < best.error) {
                best = Some(expected);
            }
        }
        Err(best.unwrap_or_else(|| self.expect(self.budget, batch)))
    }

    /// The smallest batch with which some epsilon gives at most the target error, with that
    /// epsilon. The number of reports is rounded up. None if no batch is large enough.
    pub fn batch_for(&self, target: f64) -> Option<ExpectedError> {
        let least = self
            .epsilons()
            .filter_map(|epsilon| {
                let alone = self.expect(epsilon, 1.0);
                let of_noise = (target * target - alone.bias * alone.bias).sqrt();
                // Noise weighs less in a larger batch, and blocking weighs the same.
                (of_noise > 0.0).then(|| (epsilon, (alone.noise / of_noise).ceil()))
            })
            .min_by(|one, other| one.1.total_cmp(&other.1));
        let (epsilon, batch) = least.filter(|(_, batch)| batch.is_finite())?;
        Some(self.expect(epsilon, batch))
    }

    /// The epsilons to try, from the smallest to all that a device can pay.
    fn epsilons(&self) -> impl Iterator<Item = f64> {
        const STEPS: i32 = 8000;
        const LEAST: f64 = 1e-6;
        (0..=STEPS).map(|step| {
            let share = f64::from(step) / f64::from(STEPS);
            let epsilon = LEAST * (self.budget.max(LEAST) / LEAST).powf(share);
            // An epsilon is a whole number of µε.
            ((epsilon * 1e6).ceil() / 1e6).min(self.budget)
        })
    }
}

/// Counts the reports about each epoch of each device, separately for each conversion site, or only
/// for `site`. A conversion makes a report about its own epoch and about each of the
/// `lookback_epochs` epochs before, if the epoch has an earlier impression for the same conversion
/// site. Epochs without a report are not counted.
///
/// # Errors
/// If a part of the workload is on disk and cannot be read.
pub fn reports_of_devices(
    workload: &Workload,
    site: Option<u32>,
    lookback_epochs: u16,
) -> Result<Counts, ReadError> {
    let mut counts = Counts::default();
    let mut shown: Vec<(u32, u16)> = Vec::new();
    let mut reports: Vec<(u32, u16)> = Vec::new();
    for number in 0..workload.parts() {
        let part = workload.part(number)?;
        for device in 0..part.devices() {
            shown.clear();
            reports.clear();
            for at in part.range(device) {
                let event = part.event(at);
                if site.is_some_and(|site| site != event.conversion_site) {
                    continue;
                }
                match event.kind {
                    EventKind::Impression { .. } => {
                        shown.push((event.conversion_site, event.epoch));
                    }
                    EventKind::Conversion { .. } => {
                        for epoch in event.epoch.saturating_sub(lookback_epochs)..=event.epoch {
                            let pays = (event.conversion_site, epoch);
                            if shown.contains(&pays) {
                                reports.push(pays);
                            }
                        }
                    }
                }
            }
            reports.sort_unstable();
            for of_epoch in reports.chunk_by(|one, next| one == next) {
                counts.add(of_epoch.len());
            }
        }
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluation::ErrorSource;

    fn measurement() -> Measurement {
        let mut reports_of_device = Counts::default();
        for reports in [1, 1, 2, 4] {
            reports_of_device.add(reports);
        }
        Measurement {
            shares: vec![0.5, 0.3, 0.2],
            tau: 0.05,
            noise: NoiseModel::Paper,
            budget: 1.0,
            reports_of_device,
        }
    }

    #[test]
    fn noise_falls_and_blocking_rises_with_epsilon() {
        let plan = measurement();
        let (small, large) = (plan.expect(0.1, 5000.0), plan.expect(0.5, 5000.0));
        assert!(small.noise > large.noise);
        assert_eq!(small.blocked, 0.0);
        // Two of eight reports are blocked: two of the device that makes four.
        assert!((large.blocked - 0.25).abs() < 1e-12);
        assert!((large.bias - 0.25).abs() < 1e-12);
        let double = Measurement {
            noise: NoiseModel::Consistent,
            ..plan
        };
        assert!((double.expect(0.1, 5000.0).noise / small.noise - 2.0).abs() < 1e-12);
    }

    #[test]
    fn the_least_epsilon_that_is_good_enough() {
        let plan = measurement();
        let found = plan.epsilon_for(0.05, 5000.0).unwrap();
        assert!(found.error <= 0.05 && plan.expect(found.epsilon * 0.97, 5000.0).error > 0.05);
        let best = plan.epsilon_for(0.000_01, 100.0).unwrap_err();
        assert!(best.error > 0.000_01);
    }

    #[test]
    fn the_smallest_batch_that_is_good_enough() {
        let plan = measurement();
        assert!(plan.epsilon_for(0.05, 20.0).is_err());
        let found = plan.batch_for(0.05).unwrap();
        assert!(found.error <= 0.05, "{found:?}");
        assert!(plan.epsilon_for(0.05, found.batch).is_ok());
        assert!(plan.epsilon_for(0.05, found.batch - 1.0).is_err());
        assert_eq!(plan.batch_for(0.0), None);
    }

    #[test]
    fn an_expected_error_is_explained() {
        let plan = measurement();
        let noisy = plan.expect(0.01, 100.0).diagnosis(Limit::QuerierBudget);
        assert_eq!(noisy.dominant, Some(ErrorSource::Noise));
        assert_eq!(noisy.first_cause, None);
        let blocked = plan.expect(1.0, 1e6).diagnosis(Limit::QuerierBudget);
        assert_eq!(blocked.dominant, Some(ErrorSource::Blocking));
        assert_eq!(blocked.first_cause, Some(Limit::QuerierBudget));
    }
}
