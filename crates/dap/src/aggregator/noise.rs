//! Noise: the discrete Laplace distribution, sampled exactly.
//!
//! A report moves the sum by at most 2·maxValue (from one bucket to another), so noise of scale λ =
//! 2·maxValue/ε makes the sum ε-differentially private. That is the same λ by which devices charge
//! their budgets. The scale is a ratio of integers, and no step of sampling uses floating-point
//! numbers (Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy", 2020).
//! Floating-point samplers leak: which doubles can come out depends on the true value.

use bigbird::MicroEpsilon;
use num_bigint::BigInt;
use prio::dp::Rational;
use prio::dp::distributions::DiscreteLaplace;
use prio::field::Field128;
use rand::Rng;
use rand::distr::Distribution as _;
use thiserror::Error;

use super::sum::AggregateSum;
use crate::role::Role;

/// Who adds noise.
///
/// | source | if one aggregator is dishonest | variance |
/// |---|---|---|
/// | [`Both`](Self::Both) | the result is still private | twice that of one noise |
/// | [`Leader`](Self::Leader) | private only if the leader is honest | that of one noise |
/// | [`Helper`](Self::Helper) | private only if the helper is honest | that of one noise |
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NoiseSource {
    /// Each aggregator adds its own noise.
    #[default]
    Both,
    /// Only the leader adds noise.
    Leader,
    /// Only the helper adds noise.
    Helper,
}

impl NoiseSource {
    /// True if an aggregator adds noise.
    pub fn includes(self, role: Role) -> bool {
        match self {
            Self::Both => true,
            Self::Leader => role == Role::Leader,
            Self::Helper => role == Role::Helper,
        }
    }

    /// The number of aggregators that add noise.
    pub fn noises(self) -> u32 {
        match self {
            Self::Both => 2,
            Self::Leader | Self::Helper => 1,
        }
    }
}

/// The noise of one query: discrete Laplace of scale 2·maxValue/ε.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaplaceNoise {
    max_value: u64,
    epsilon: MicroEpsilon,
}

/// Noise that does not exist. Without it there is no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "there is no noise for a maximum value of {max_value} and ε = {epsilon}; both must be above 0"
)]
pub struct NoiseError {
    max_value: u64,
    epsilon: MicroEpsilon,
}

/// The number of microepsilons in one epsilon.
const MICRO: u128 = 1_000_000;

impl LaplaceNoise {
    /// The noise for reports of at most `max_value`, at an epsilon.
    ///
    /// # Errors
    /// If one of them is zero.
    pub fn new(max_value: u64, epsilon: MicroEpsilon) -> Result<Self, NoiseError> {
        let noise = Self { max_value, epsilon };
        noise.distribution()?;
        Ok(noise)
    }

    fn distribution(&self) -> Result<DiscreteLaplace, NoiseError> {
        let (numerator, denominator) = self.scale();
        Rational::from_unsigned(numerator, denominator)
            .and_then(DiscreteLaplace::new)
            .map_err(|_| NoiseError {
                max_value: self.max_value,
                epsilon: self.epsilon,
            })
    }

    /// The scale λ = 2·maxValue/ε as numerator and denominator.
    pub fn scale(&self) -> (u128, u128) {
        let numerator = 2 * u128::from(self.max_value) * MICRO;
        (numerator, self.epsilon.get().into())
    }

    /// The variance of one bucket's noise from one aggregator: 2q/(1−q)² with q = exp(−1/λ). It is
    /// for display.
    #[expect(clippy::cast_precision_loss, reason = "for display")]
    pub fn variance(&self) -> f64 {
        let (numerator, denominator) = self.scale();
        let inverse = denominator as f64 / numerator as f64;
        // 1 − q, without losing digits when λ is large.
        let rest = -(-inverse).exp_m1();
        2.0 * (1.0 - rest) / (rest * rest)
    }

    /// The standard deviation of one bucket of a result.
    pub fn standard_deviation(&self, source: NoiseSource) -> f64 {
        (f64::from(source.noises()) * self.variance()).sqrt()
    }

    /// Adds noise to every bucket of one aggregator's share.
    ///
    /// # Errors
    /// Never: the distribution was checked when the noise was made.
    pub fn add_to<R: Rng + ?Sized>(
        &self,
        share: &mut AggregateSum,
        rng: &mut R,
    ) -> Result<(), NoiseError> {
        let distribution = self.distribution()?;
        for bucket in &mut share.0 {
            let noise = sample(&distribution, rng);
            let magnitude = Field128::from(noise.unsigned_abs());
            if noise < 0 {
                *bucket -= magnitude;
            } else {
                *bucket += magnitude;
            }
        }
        Ok(())
    }
}

/// One sample.
fn sample<R: Rng + ?Sized>(distribution: &DiscreteLaplace, rng: &mut R) -> i128 {
    loop {
        // A sample beyond 100 bits has a probability below exp(−2⁴⁰).
        let sample: BigInt = distribution.sample(rng);
        if let Ok(sample) = i128::try_from(sample)
            && sample.unsigned_abs() < 1 << 100
        {
            return sample;
        }
    }
}
