//! The paper's formal model, executed: per-querier guarantees and where they fail (§3, appendix A).
//!
//! A record is a device-epoch with one impression. A counting query is a batch with one report from
//! each device. With a window of one epoch and a value equal to the largest one, a request of 2ε
//! costs ε and is answered with Laplace noise of scale 1/ε. So the filters of [`bigbird`] decide,
//! as they do in a browser.
//!
//! The view of one querier is a mixture over what the helpers heard. Helpers only compare an answer
//! with a threshold, so there are finitely many cases. Each is run on the engine, weighted, and
//! measured exactly ([`largest_log_ratio`](crate::meter::largest_log_ratio)).

mod adaptive;
mod individual;
mod intervals;
mod records;
mod shared_limit;
mod siloing;

pub use adaptive::{AdaptiveRow, adaptive};
pub use individual::{IndividualRow, individual, individual_as_printed, many_records};
pub use intervals::{Interval, clopper_pearson, log_ratio_interval};
pub use shared_limit::{SharedLimitRow, shared_limit};
pub use siloing::siloed_loss;

/// The number of helpers of every table.
pub const HELPERS: std::ops::RangeInclusive<u32> = 1..=64;

/// The probability that Laplace noise of scale 1/ε₁ exceeds ½: a helper that asks about an absent
/// record hears more than ½ with this probability, and one that asks about a present record hears
/// at most ½.
pub fn error_probability(epsilon: f64) -> f64 {
    (-epsilon / 2.0).exp() / 2.0
}

/// ε′(p) = ln[(p + (1−p)e^ε)/(1 − p + p·e^ε)], the loss that each helper adds.
pub fn helper_loss(p: f64, epsilon: f64) -> f64 {
    let e = epsilon.exp();
    ((p + (1.0 - p) * e) / (1.0 - p + p * e)).ln()
}

/// The logarithms of the probabilities of 0 to n successes.
pub(crate) fn log_binomial(n: u32, p: f64) -> Vec<f64> {
    let mut log_choose = 0.0;
    (0..=n)
        .map(|k| {
            if k > 0 {
                log_choose += f64::from(n - k + 1).ln() - f64::from(k).ln();
            }
            let part = |count: u32, p: f64| match count {
                0 => 0.0,
                count => f64::from(count) * p.ln(),
            };
            log_choose + part(k, p) + part(n - k, 1.0 - p)
        })
        .collect()
}
