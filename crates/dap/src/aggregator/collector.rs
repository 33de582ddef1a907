//! The collector: it puts the two noised shares together.

use prio::field::{Field128, FieldElementWithInteger as _};
use serde::Serialize;

use super::noise::{LaplaceNoise, NoiseSource};
use super::sum::AggregateSum;

/// Puts the shares of a result together. It sees nothing but noised sums.
#[derive(Debug, Clone, Copy, Default)]
pub struct Collector;

/// The result of a query.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NoisedHistogram {
    /// The noised sum of each bucket. It can be negative. A number beyond 64 bits, which no noise
    /// and no sum of 2³¹ reports reaches, is the largest of 64 bits.
    pub buckets: Vec<i64>,
    /// The standard deviation of the noise in each bucket.
    pub standard_deviation: f64,
    /// The number of reports in the sum.
    pub reports: u64,
}

impl Collector {
    /// The result of two noised shares, each from one aggregator.
    pub fn combine(
        self,
        leader: &AggregateSum,
        helper: &AggregateSum,
        reports: u64,
        noise: &LaplaceNoise,
        source: NoiseSource,
    ) -> NoisedHistogram {
        let mut sum = leader.clone();
        sum.add(helper);
        NoisedHistogram {
            buckets: sum.0.iter().map(|bucket| centred(*bucket)).collect(),
            standard_deviation: noise.standard_deviation(source),
            reports,
        }
    }
}

/// The whole number of smallest magnitude that a field element stands for. Sums below zero wrap
/// around the field's modulus.
pub(super) fn centred(element: Field128) -> i64 {
    let (value, modulus) = (u128::from(element), Field128::modulus());
    let magnitude = |value: u128| i64::try_from(value).unwrap_or(i64::MAX);
    match value > modulus / 2 {
        true => -magnitude(modulus - value),
        false => magnitude(value),
    }
}
