//! Statistics of measurements.
#![allow(clippy::cast_precision_loss, reason = "small numbers")]

use std::time::Duration;

/// The median of some numbers. It sorts them.
pub fn median(numbers: &mut [f64]) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(f64::NAN)
}

pub fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The bits that one call reveals. The threshold that is best on half of the calls is tried on the
/// other half, and the other way around.
pub fn bits(seen: &[(bool, f64)]) -> f64 {
    let half = |odd: usize| seen.iter().skip(odd).step_by(2);
    let errors = |odd: usize, threshold: f64, above: bool| {
        let wrong = |&&(bit, value): &&(bool, f64)| ((value > threshold) == above) != bit;
        half(odd).filter(wrong).count()
    };
    let tried = |odd: usize| {
        let candidates = half(odd).flat_map(|(_, value)| [(*value, true), (*value, false)]);
        let best = candidates.min_by_key(|(threshold, above)| errors(odd, *threshold, *above));
        best.map_or(0, |(threshold, above)| errors(1 - odd, threshold, above))
    };
    let (wrong, all) = (tried(0) + tried(1), seen.len());
    if at_most(wrong, all, 0.5) > 1e-3 {
        return 0.0;
    }
    let entropy = |p: f64| if p > 0.0 { -p * p.log2() } else { 0.0 };
    let rate = wrong as f64 / all as f64;
    1.0 - entropy(rate) - entropy(1.0 - rate)
}

/// The probability of at most `errors` errors in `all` calls, if each call has an error with
/// `probability`.
fn at_most(errors: usize, all: usize, probability: f64) -> f64 {
    let mut term = (1.0 - probability).powi(i32::try_from(all).unwrap());
    let mut sum = term;
    for error in 0..errors {
        term *= (all - error) as f64 / (error + 1) as f64 * probability / (1.0 - probability);
        sum += term;
    }
    sum
}
