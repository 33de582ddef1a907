//! Privacy loss as an exact number.

use std::cmp::Ordering;
use std::fmt;
use std::ops::AddAssign;

/// A privacy loss in µε: a fraction, or infinite.
///
/// The loss of a report is the difference of its means in the two worlds over the scale of its
/// noise: ‖a¹ − a⁰‖₁ · ε / (2 · largest value). The denominators of a script are few and small, so
/// sums stay exact. A sum that does not fit counts as infinite, which no oracle accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// A numerator and a denominator, which is not 0.
    Finite(u128, u128),
    /// Something other than the noised values differs.
    Infinite,
}

impl Loss {
    /// No loss.
    pub const ZERO: Self = Self::Finite(0, 1);

    /// The loss of a report whose means differ by `difference` in total, with `epsilon` in µε.
    pub fn of_report(difference: u64, epsilon: u64, max_value: u32) -> Self {
        let scale = 2 * u128::from(max_value.max(1));
        reduced(u128::from(difference) * u128::from(epsilon), scale)
    }

    /// True if the loss is above a number of µε.
    pub fn exceeds(self, micro: u64) -> bool {
        match self {
            Self::Finite(numerator, denominator) => u128::from(micro)
                .checked_mul(denominator)
                .is_some_and(|limit| numerator > limit),
            Self::Infinite => true,
        }
    }

    /// The loss beyond a number of µε. It is 0 if the loss is not above it.
    #[must_use]
    pub fn beyond(self, micro: u64) -> Self {
        match self {
            Self::Finite(numerator, denominator) => {
                let limit = u128::from(micro).saturating_mul(denominator);
                reduced(numerator.saturating_sub(limit), denominator)
            }
            Self::Infinite => Self::Infinite,
        }
    }

    /// The loss in µε, rounded to a double.
    #[expect(clippy::cast_precision_loss, reason = "for display and ranking only")]
    pub fn micro(self) -> f64 {
        match self {
            Self::Finite(numerator, denominator) => numerator as f64 / denominator as f64,
            Self::Infinite => f64::INFINITY,
        }
    }
}

fn reduced(numerator: u128, denominator: u128) -> Loss {
    let divisor = greatest_divisor(numerator, denominator).max(1);
    Loss::Finite(numerator / divisor, denominator / divisor)
}

fn greatest_divisor(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl AddAssign for Loss {
    fn add_assign(&mut self, other: Self) {
        let (Self::Finite(a, b), Self::Finite(c, d)) = (*self, other) else {
            *self = Self::Infinite;
            return;
        };
        let common = b / greatest_divisor(b, d) * d;
        let sum = a.checked_mul(common / b).zip(c.checked_mul(common / d));
        let sum = sum.and_then(|(a, c)| a.checked_add(c));
        *self = sum.map_or(Self::Infinite, |sum| reduced(sum, common));
    }
}

impl Ord for Loss {
    fn cmp(&self, other: &Self) -> Ordering {
        match (*self, *other) {
            (Self::Infinite, Self::Infinite) => Ordering::Equal,
            (Self::Infinite, _) => Ordering::Greater,
            (_, Self::Infinite) => Ordering::Less,
            (Self::Finite(a, b), Self::Finite(c, d)) => {
                match (a.checked_mul(d), c.checked_mul(b)) {
                    (Some(one), Some(other)) => one.cmp(&other),
                    _ => self.micro().total_cmp(&other.micro()),
                }
            }
        }
    }
}

impl PartialOrd for Loss {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Finite(numerator, 1) => write!(f, "{numerator} µε"),
            Self::Finite(numerator, 2) => write!(f, "{}.5 µε", numerator / 2),
            Self::Finite(numerator, denominator) => {
                write!(f, "{numerator}/{denominator} µε")
            }
            Self::Infinite => f.write_str("infinite"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_exact() {
        let mut loss = Loss::of_report(1, 1, 1);
        assert_eq!(loss, Loss::Finite(1, 2));
        assert!(loss.exceeds(0) && !loss.exceeds(1));
        loss += Loss::of_report(1, 1, 3);
        assert_eq!(loss, Loss::Finite(2, 3));
        loss += Loss::of_report(2, 1, 3);
        assert_eq!(loss, Loss::Finite(1, 1));
        assert!(!loss.exceeds(1) && loss.beyond(1) == Loss::ZERO);
        assert!(Loss::Finite(2, 3) < loss && loss < Loss::Infinite);
    }

    #[test]
    fn a_sum_that_does_not_fit_is_infinite() {
        let mut loss = Loss::Finite(u128::MAX, 1);
        loss += Loss::Finite(1, 3);
        assert_eq!(loss, Loss::Infinite);
    }
}
