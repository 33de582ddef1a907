//! Intervals for the mean of a number that was measured with several seeds.

use serde::{Deserialize, Serialize};

/// The mean of a number over several seeds, with its 95% confidence interval.
///
/// The interval is Student's: it assumes that the number varies between seeds like a normal
/// variable of unknown variance.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ConfidenceInterval {
    /// The mean.
    pub mean: f64,
    /// The lower end of the interval.
    pub low: f64,
    /// The upper end of the interval.
    pub high: f64,
    /// The number of seeds.
    pub seeds: usize,
}

impl ConfidenceInterval {
    /// The interval for some numbers, one for each seed. None if there are fewer than two.
    #[expect(clippy::cast_precision_loss, reason = "a number of seeds")]
    pub fn of(numbers: &[f64]) -> Option<Self> {
        let freedom = numbers.len().checked_sub(1).filter(|it| *it > 0)?;
        let count = numbers.len() as f64;
        let mean = numbers.iter().sum::<f64>() / count;
        let squares: f64 = numbers.iter().map(|number| (number - mean).powi(2)).sum();
        let reach = quantile(freedom) * (squares / freedom as f64 / count).sqrt();
        Some(Self {
            mean,
            low: mean - reach,
            high: mean + reach,
            seeds: numbers.len(),
        })
    }
}

/// The 97.5% quantile of Student's t distribution. Between the numbers of a table, it is that of
/// the next lower degree of freedom, so intervals are never too short.
fn quantile(freedom: usize) -> f64 {
    const FIRST: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
        2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
        2.052, 2.048, 2.045, 2.042,
    ];
    match freedom {
        0 => f64::INFINITY,
        1..=30 => FIRST[freedom - 1],
        31..=59 => FIRST[29],
        60..=119 => 2.000,
        _ => 1.980,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Student's own data: the additional sleep of ten patients under the second drug.
    #[test]
    fn the_interval_of_a_textbook() {
        let sleep = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4];
        let interval = ConfidenceInterval::of(&sleep).unwrap();
        assert!((interval.mean - 2.33).abs() < 1e-12);
        assert!((interval.low - 0.898).abs() < 1e-3, "{interval:?}");
        assert!((interval.high - 3.762).abs() < 1e-3, "{interval:?}");
    }

    #[test]
    fn one_seed_has_no_interval() {
        assert_eq!(ConfidenceInterval::of(&[]), None);
        assert_eq!(ConfidenceInterval::of(&[1.0]), None);
        let same = ConfidenceInterval::of(&[1.0, 1.0]).unwrap();
        assert_eq!((same.low, same.high), (1.0, 1.0));
    }
}
