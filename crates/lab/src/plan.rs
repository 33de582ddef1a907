//! Planning a measurement: what error an advertiser can expect, from noise and from blocking.
//!
//! The error is the RMSRE of the paper's evaluation. Noise falls with epsilon; but a device pays
//! epsilon for each report, and when its budget is used up, further reports are blocked and missing
//! from the sum. How many that are follows from how many reports a device makes in an epoch, which
//! is counted in a workload.

use crate::describe::Counts;
use crate::workload::read::ReadError;
use crate::workload::{Kind, Noise, Workload, noise_scale};

/// An advertiser that measures its conversions.
#[derive(Debug, Clone)]
pub struct Measurement {
    /// The share of each bucket among attributed conversions.
    pub shares: Vec<f64>,
    /// The share of a batch below which errors are not relative to the bucket any more.
    pub tau: f64,
    /// How much noise is added.
    pub noise: Noise,
    /// What a device can pay for this advertiser in an epoch: the least of its budgets and quotas.
    pub budget: f64,
    /// How many reports a device makes in an epoch.
    pub reports_of_device: Counts,
}

/// What to expect.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Expected {
    /// What each report costs.
    pub epsilon: f64,
    /// How many reports are summed.
    pub batch: f64,
    /// The error from noise alone.
    pub noise: f64,
    /// The share of reports that is blocked.
    pub blocked: f64,
    /// The error from blocking alone.
    pub bias: f64,
    /// The error of both.
    pub error: f64,
}

impl Measurement {
    /// What to expect of batches of so many reports, each of which costs `epsilon`.
    pub fn expect(&self, epsilon: f64, batch: f64) -> Expected {
        // The error is proportional to the scale.
        let scale_of_error_one = noise_scale(batch, &self.shares, 1.0, self.tau);
        let noise = self.noise.factor() / epsilon / scale_of_error_one;
        let blocked = self.blocked(epsilon);
        let bias = blocked * self.relative();
        Expected {
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

    /// The error if all reports were blocked: less than 1 if buckets are smaller than τ.
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

    /// The least epsilon with which batches of so many reports have at most the wanted error; if there
    /// is none, the one with the least error.
    ///
    /// # Errors
    /// With what is best, if no epsilon is good enough.
    pub fn epsilon_for(&self, target: f64, batch: f64) -> Result<Expected, Expected> {
        const STEPS: i32 = 8000;
        const LEAST: f64 = 1e-6;
        let mut best: Option<Expected> = None;
        for step in 0..=STEPS {
            let share = f64::from(step) / f64::from(STEPS);
            let epsilon = LEAST * (self.budget.max(LEAST) / LEAST).powf(share);
            // Epsilons are whole µε.
            let epsilon = ((epsilon * 1e6).ceil() / 1e6).min(self.budget);
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
}

/// How many reports devices ask of an epoch for one conversion site that they ask any for: those of
/// conversions in it and so many after, if it has an impression of the site.
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
                    Kind::Impression { .. } => shown.push((event.conversion_site, event.epoch)),
                    Kind::Conversion { .. } => {
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

    fn measurement() -> Measurement {
        let mut reports_of_device = Counts::default();
        for reports in [1, 1, 2, 4] {
            reports_of_device.add(reports);
        }
        Measurement {
            shares: vec![0.5, 0.3, 0.2],
            tau: 0.05,
            noise: Noise::Paper,
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
        // Two of eight reports: those of the device with four.
        assert!((large.blocked - 0.25).abs() < 1e-12);
        assert!((large.bias - 0.25).abs() < 1e-12);
        let double = Measurement {
            noise: Noise::Consistent,
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
}
