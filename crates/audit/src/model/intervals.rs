//! Confidence intervals for losses that were estimated by sampling.

use serde::Serialize;

/// A confidence interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Interval(
    /// The lower end.
    pub f64,
    /// The upper end.
    pub f64,
);

/// The error probability of each end of an interval. A whole table must hold, so it is small.
const TAIL: f64 = 1e-5;

/// The number of events below which no interval is given.
const LEAST_EVENTS: u32 = 25;

/// The interval of the log-ratio of two probabilities, estimated from events among `samples` each.
/// `None` if an event was too rare.
pub fn log_ratio_interval(one: u32, zero: u32, samples: u32) -> Option<Interval> {
    if one.min(zero) < LEAST_EVENTS {
        return None;
    }
    let (one, zero) = (
        clopper_pearson(one, samples, TAIL),
        clopper_pearson(zero, samples, TAIL),
    );
    Some(Interval((one.0 / zero.1).ln(), (one.1 / zero.0).ln()))
}

/// The Clopper–Pearson interval of a probability from `events` among `samples`, with an error
/// probability of `tail` at each end.
pub fn clopper_pearson(events: u32, samples: u32, tail: f64) -> Interval {
    let (k, n) = (f64::from(events), f64::from(samples));
    let lower = match events {
        0 => 0.0,
        // P[Bin(n, p) ≥ k] = I_p(k, n − k + 1).
        _ => solve(|p| incomplete_beta(p, k, n - k + 1.0) - tail),
    };
    let upper = match events {
        events if events == samples => 1.0,
        // P[Bin(n, p) ≤ k] = 1 − I_p(k + 1, n − k).
        _ => solve(|p| incomplete_beta(p, k + 1.0, n - k) - (1.0 - tail)),
    };
    Interval(lower, upper)
}

/// The zero of an increasing function on [0, 1].
fn solve(function: impl Fn(f64) -> f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..100 {
        let middle = f64::midpoint(low, high);
        if function(middle) < 0.0 {
            low = middle;
        } else {
            high = middle;
        }
    }
    f64::midpoint(low, high)
}

/// The regularised incomplete beta function I_x(a, b), by its continued fraction (Lentz's method).
fn incomplete_beta(x: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    if x >= 1.0 {
        return 1.0;
    }
    let front = log_gamma(a + b) - log_gamma(a) - log_gamma(b) + a * x.ln() + b * (-x).ln_1p();
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - incomplete_beta(1.0 - x, b, a);
    }
    const TINY: f64 = 1e-300;
    let guard = |value: f64| if value.abs() < TINY { TINY } else { value };
    let mut c = 1.0;
    let mut d = 1.0 / guard(1.0 - (a + b) * x / (a + 1.0));
    let mut fraction = d;
    for step in 1..10_000 {
        let m = f64::from(step);
        for term in [
            m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0)),
        ] {
            d = 1.0 / guard(1.0 + term * d);
            c = guard(1.0 + term / c);
            fraction *= c * d;
        }
        if (c * d - 1.0).abs() < 1e-15 {
            break;
        }
    }
    front.exp() * fraction / a
}

/// ln Γ(x) for x > 0, by Stirling's series after shifting x upwards.
fn log_gamma(mut x: f64) -> f64 {
    let mut shift = 0.0;
    while x < 12.0 {
        shift -= x.ln();
        x += 1.0;
    }
    let inverse = 1.0 / x;
    let square = inverse * inverse;
    let series = inverse
        * (1.0 / 12.0 - square * (1.0 / 360.0 - square * (1.0 / 1260.0 - square * (1.0 / 1680.0))));
    (x - 0.5) * x.ln() - x + 0.5 * (2.0 * std::f64::consts::PI).ln() + series + shift
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gamma_agrees_with_factorials() {
        let mut factorial: f64 = 1.0;
        for n in 1..30_u32 {
            factorial *= f64::from(n);
            let gamma = log_gamma(f64::from(n) + 1.0);
            assert!((gamma - factorial.ln()).abs() < 1e-10, "{n}");
        }
    }

    /// The ends of the interval are where the binomial tails are what they should be.
    #[test]
    fn tails_are_as_stated() {
        for (events, samples) in [(3, 20), (25, 60), (0, 10), (10, 10), (1, 1000)] {
            let Interval(low, high) = clopper_pearson(events, samples, 0.01);
            let tail = |p: f64, range: std::ops::RangeInclusive<u32>| -> f64 {
                let logs = super::super::log_binomial(samples, p);
                range.map(|k| logs[k as usize].exp()).sum()
            };
            if events > 0 {
                assert!((tail(low, events..=samples) - 0.01).abs() < 1e-6);
            }
            if events < samples {
                assert!((tail(high, 0..=events) - 0.01).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn rare_events_give_no_interval() {
        assert_eq!(log_ratio_interval(24, 100, 1000), None);
        assert!(log_ratio_interval(100, 50, 1000).is_some());
    }
}
