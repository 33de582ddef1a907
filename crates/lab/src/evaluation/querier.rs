//! Queriers: conversion sites that measure, the sizes of their batches, and their noise.

use serde::{Deserialize, Serialize};

/// Options for the choice of queriers, their batches and their noise. The defaults are those of the
/// paper's evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QuerierOptions {
    /// The least number of conversions a day that a site needs to be a querier. It is 50 in the
    /// artifact that made the paper's figures, and 100 in the paper's text. Sites in between have
    /// too few conversions for a batch of the paper's size, but attackers hear of the visits that
    /// concern them.
    pub min_conversions_a_day: usize,
    /// The number of days of conversions in a batch.
    pub batch_days: usize,
    /// The least number of reports in a batch.
    pub min_batch: usize,
    /// The error that a querier wants from noise alone. It decides the epsilon of reports, unless
    /// that is given.
    pub target_error: f64,
    /// The epsilon that every querier asks for when a conversion has its largest value.
    pub epsilon: Option<f64>,
    /// τ: errors of buckets below this share of the batch are relative to this share instead of the
    /// bucket.
    pub tau: f64,
    /// The noise that is added to sums.
    pub noise: NoiseModel,
    /// True if attackers also hear of events of conversion sites that do not measure. The paper's
    /// evaluation leaves those events out.
    pub all_visits: bool,
}

impl Default for QuerierOptions {
    fn default() -> Self {
        Self {
            min_conversions_a_day: 50,
            batch_days: 10,
            min_batch: 5000,
            target_error: 0.05,
            epsilon: None,
            tau: 0.05,
            noise: NoiseModel::Paper,
            all_visits: false,
        }
    }
}

/// The scale of the noise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum NoiseModel {
    /// Scale 1/ε, as in the paper's figures.
    #[default]
    Paper,
    /// Scale 2/ε, as the paper's accounting assumes.
    Consistent,
}

impl NoiseModel {
    /// The scale times ε.
    pub(crate) const fn factor(self) -> f64 {
        match self {
            Self::Paper => 1.0,
            Self::Consistent => 2.0,
        }
    }
}

/// A conversion site that measures.
#[derive(Debug, Clone, PartialEq)]
pub struct Querier {
    /// Its number among conversion sites.
    pub site: u32,
    /// The number of its conversions.
    pub conversions: u64,
    /// The number of its conversions per day: the average over the days on which it has any,
    /// rounded down.
    pub a_day: usize,
    /// The number of reports in a batch.
    pub batch: usize,
    /// b: the scale of the noise on each sum.
    pub noise_scale: f64,
    /// The largest value of its conversions.
    pub max_value: u32,
    /// The most of its conversions on one device (m of the resilience theorem).
    pub most_of_a_device: u32,
}

impl Querier {
    /// The ε of a report of the largest value: that value divided by b.
    pub fn epsilon(&self) -> f64 {
        f64::from(self.max_value) / self.noise_scale
    }

    /// True if it has enough conversions for a batch.
    pub fn has_a_batch(&self) -> bool {
        self.conversions >= self.batch as u64
    }
}

/// The noise scale b at which noise alone gives the target error, as in the paper's evaluation. The
/// sum of a batch is `worth`, the buckets have these shares of it, and `tau` is the τ of RMSRE.
pub fn noise_scale(worth: f64, shares: &[f64], target_error: f64, tau: f64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a count of buckets")]
    let buckets = shares.len() as f64;
    let squares: f64 = shares
        .iter()
        .map(|share| 1.0 / share.max(tau).powi(2))
        .sum();
    target_error * worth / (2.0 / buckets * squares).sqrt()
}
