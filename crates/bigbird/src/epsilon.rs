//! Privacy loss as integers: [`MicroEpsilon`], [`Epsilon`] and [`Capacity`].
//!
//! Everything that is added, compared or stored is a whole number of microepsilons (µε, 1e-6 ε).
//! Sums of floating-point budgets depend on their order and can exceed a capacity by rounding. Sums
//! of integers cannot. A decimal loss is rounded **up** and a decimal capacity is rounded **down**,
//! so that rounding never weakens privacy.

use std::fmt;
use std::ops::{Add, AddAssign};

use thiserror::Error;

/// The number of microepsilons in one epsilon.
pub(crate) const MICRO: u64 = 1_000_000;

/// An amount of privacy loss in microepsilons (1e-6 ε).
///
/// It prints as a decimal number of epsilons: 400,000 µε is `0.4`.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct MicroEpsilon(u64);

impl MicroEpsilon {
    /// No loss at all.
    pub const ZERO: Self = Self(0);

    /// The largest amount: about 18 trillion ε.
    pub const MAX: Self = Self(u64::MAX);

    /// An amount of `micro` microepsilons.
    pub const fn new(micro: u64) -> Self {
        Self(micro)
    }

    /// The amount of a decimal number of epsilons, rounded up to a whole µε.
    ///
    /// The decimal is the shortest one that denotes the double, that is, what a person wrote: `0.1`
    /// is exactly 100,000 µε, although the double is slightly more than a tenth.
    ///
    /// # Errors
    /// If `epsilon` is negative, not finite, or too large to represent.
    pub fn from_epsilon(epsilon: f64) -> Result<Self, EpsilonError> {
        whole_micro(epsilon)
            .and_then(|(micro, exact)| micro.checked_add(u64::from(!exact)))
            .map(Self)
            .ok_or(EpsilonError::Amount { got: epsilon })
    }

    /// The number of microepsilons.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// True if there is no loss at all.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The amount as a number of epsilons, for display and figures, never for accounting.
    #[expect(
        clippy::cast_precision_loss,
        reason = "for display, where 15 digits are enough"
    )]
    pub fn to_epsilon(self) -> f64 {
        self.0 as f64 / MICRO as f64
    }

    /// The sum, or `None` if it does not fit.
    pub const fn checked_add(self, other: Self) -> Option<Self> {
        match self.0.checked_add(other.0) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }

    /// The difference, or zero if `other` is larger.
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// This amount times `factor`, or the largest amount if the product does not fit.
    pub const fn saturating_mul(self, factor: u64) -> Self {
        Self(self.0.saturating_mul(factor))
    }

    /// One of `parts` equal parts, rounded up, so that the parts never sum to less than the whole.
    pub(crate) fn part_of(self, parts: usize) -> Self {
        Self(self.0.div_ceil(parts.max(1) as u64))
    }
}

impl Add for MicroEpsilon {
    type Output = Self;

    /// The sum, or the largest amount if the sum does not fit: adding never makes a loss smaller.
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for MicroEpsilon {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl std::iter::Sum for MicroEpsilon {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::ZERO, Add::add)
    }
}

impl fmt::Display for MicroEpsilon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, fraction) = (self.0 / MICRO, self.0 % MICRO);
        let digits = format!("{fraction:06}");
        match digits.trim_end_matches('0') {
            "" => f.pad_integral(true, "", &whole.to_string()),
            digits => f.pad_integral(true, "", &format!("{whole}.{digits}")),
        }
    }
}

/// The privacy parameter of one request: positive, finite and at most [`Epsilon::MAX`].
///
/// It is kept in two forms. The exact form, in µε, determines the noise and the losses. The double
/// is the value that the page passed. Only the draft's own arithmetic uses it
/// ([`Arithmetic::Double`](crate::Arithmetic::Double)).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Epsilon {
    value: f64,
    micro: MicroEpsilon,
}

impl Epsilon {
    /// The draft's maximum epsilon. It follows from the draft's 32-bit stores of µε (section
    /// Privacy Budget Store).
    pub const MAX: f64 = 4294.0;

    /// An epsilon of 1, the default of attribution queries.
    pub const ONE: Self = Self {
        value: 1.0,
        micro: MicroEpsilon::new(1_000_000),
    };

    /// Parses the epsilon of a request.
    ///
    /// # Errors
    /// If `epsilon` is not in (0, 4294].
    pub fn new(epsilon: f64) -> Result<Self, EpsilonError> {
        if !(epsilon > 0.0 && epsilon <= Self::MAX) {
            return Err(EpsilonError::Request { got: epsilon });
        }
        let micro = MicroEpsilon::from_epsilon(epsilon)?;
        Ok(Self {
            value: epsilon,
            micro,
        })
    }

    /// The value that was given.
    pub const fn value(self) -> f64 {
        self.value
    }

    /// The shortest decimal of the double, rounded up to whole µε. It is at least 1 µε.
    pub const fn micro(self) -> MicroEpsilon {
        self.micro
    }
}

/// The total amount that one filter can pay.
///
/// Capacities are ordered by size: unlimited is more than any finite capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(
    feature = "serde",
    serde(from = "Option<MicroEpsilon>", into = "Option<MicroEpsilon>")
)]
pub enum Capacity {
    /// At most this amount.
    Finite(MicroEpsilon),
    /// No limit: there is no such filter, and no charges to it are recorded.
    Unlimited,
}

impl Capacity {
    /// A finite capacity of a decimal number of epsilons, rounded **down** to a whole µε. Rounded
    /// up, as losses are, it would allow more than was asked for.
    ///
    /// # Errors
    /// If `epsilon` is negative, not finite, or too large to represent.
    pub fn finite(epsilon: f64) -> Result<Self, EpsilonError> {
        match whole_micro(epsilon) {
            Some((micro, _)) => Ok(Self::Finite(MicroEpsilon(micro))),
            None => Err(EpsilonError::Amount { got: epsilon }),
        }
    }

    /// True if a filter that has already paid `consumed` can pay `asked`.
    pub fn covers(self, consumed: MicroEpsilon, asked: MicroEpsilon) -> bool {
        match self {
            Self::Finite(capacity) => consumed
                .checked_add(asked)
                .is_some_and(|total| total <= capacity),
            Self::Unlimited => true,
        }
    }

    /// The amount, or `None` if the capacity is unlimited.
    pub const fn amount(self) -> Option<MicroEpsilon> {
        match self {
            Self::Finite(amount) => Some(amount),
            Self::Unlimited => None,
        }
    }
}

impl From<Option<MicroEpsilon>> for Capacity {
    /// The inverse of [`Capacity::amount`].
    fn from(amount: Option<MicroEpsilon>) -> Self {
        amount.map_or(Self::Unlimited, Self::Finite)
    }
}

impl From<Capacity> for Option<MicroEpsilon> {
    fn from(capacity: Capacity) -> Self {
        capacity.amount()
    }
}

impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Finite(amount) => amount.fmt(f),
            Self::Unlimited => f.pad("unlimited"),
        }
    }
}

/// A number that is not a valid epsilon.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
#[non_exhaustive]
pub enum EpsilonError {
    /// The epsilon of a request is out of range.
    #[error("epsilon must be in (0, {max}], got {got}", max = Epsilon::MAX)]
    Request {
        /// The number that was given.
        got: f64,
    },
    /// An amount of privacy loss or a capacity is out of range.
    #[error("an amount of epsilon must be in [0, {max}], got {got}", max = u64::MAX / MICRO)]
    Amount {
        /// The number that was given.
        got: f64,
    },
}

/// The shortest decimal of a double in whole µε, rounded down, and whether that is exact. `None` if
/// the double is negative, not finite or too large.
fn whole_micro(epsilon: f64) -> Option<(u64, bool)> {
    if !epsilon.is_finite() || epsilon < 0.0 {
        return None;
    }
    if let Some(micro) = few_places(epsilon) {
        return Some((micro, true));
    }
    // The shortest digits and the exponent, such as `1.234e-7`.
    let text = format!("{epsilon:e}");
    let (mantissa, exponent) = text.split_once('e')?;
    let exponent: i32 = exponent.parse().ok()?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let shift = exponent - i32::try_from(fraction.len()).ok()? + 6;
    let (micro, exact) = match u32::try_from(shift) {
        Ok(shift) => (digits.checked_mul(10u128.checked_pow(shift)?)?, true),
        Err(_) => match 10u128.checked_pow(shift.unsigned_abs()) {
            Some(power) => (digits / power, digits.is_multiple_of(power)),
            None => (0, digits == 0),
        },
    };
    Some((u64::try_from(micro).ok()?, exact))
}

/// The µε of a double whose shortest decimal has at most six places after the point. This is the
/// fast path.
///
/// It is correct because two decimals of at most 15 significant digits never denote the same
/// double. If `micro / 1e6`, correctly rounded, gives the double back, then it is its shortest
/// decimal.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "the number is in [0, 1e15], where every whole number is a double"
)]
fn few_places(epsilon: f64) -> Option<u64> {
    let micro = (epsilon * MICRO as f64).round();
    (micro < 1e15 && micro / MICRO as f64 == epsilon).then_some(micro as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn micro(epsilon: f64) -> u64 {
        MicroEpsilon::from_epsilon(epsilon).unwrap().get()
    }

    #[test]
    fn decimals_are_exact() {
        let cases = [
            (0.0, 0),
            (0.1, 100_000),
            (0.2, 200_000),
            (0.3, 300_000),
            (0.7, 700_000),
            (1.0, MICRO),
            (0.000_001, 1),
            (4.35, 4_350_000),
            (1.1, 1_100_000),
            (4294.0, 4_294_000_000),
            (1e13, 10_000_000_000_000_000_000),
        ];
        for (epsilon, expected) in cases {
            assert_eq!(micro(epsilon), expected, "{epsilon}");
        }
    }

    #[test]
    fn what_is_finer_than_a_microepsilon_is_rounded_up() {
        assert_eq!(micro(0.100_000_1), 100_001);
        assert_eq!(micro(0.1 + 0.2), 300_001, "0.30000000000000004");
        assert_eq!(micro(1e-9), 1);
        assert_eq!(micro(f64::MIN_POSITIVE), 1);
        assert_eq!(micro(5e-324), 1);
        assert_eq!(micro(1.0 / 3.0), 333_334);
    }

    #[test]
    fn capacities_are_rounded_down() {
        let finite = |epsilon| Capacity::finite(epsilon).unwrap();
        assert_eq!(finite(0.1), Capacity::Finite(MicroEpsilon(100_000)));
        assert_eq!(finite(1.0 / 3.0), Capacity::Finite(MicroEpsilon(333_333)));
        assert_eq!(finite(1e-9), Capacity::Finite(MicroEpsilon(0)));
    }

    #[test]
    fn wrong_numbers_are_refused_with_value_and_limit() {
        for bad in [
            -1.0,
            -0.1,
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
            1e300,
        ] {
            assert!(MicroEpsilon::from_epsilon(bad).is_err(), "{bad}");
            assert!(Capacity::finite(bad).is_err(), "{bad}");
            assert!(Epsilon::new(bad).is_err(), "{bad}");
        }
        assert!(Epsilon::new(0.0).is_err());
        assert!(Epsilon::new(4294.1).is_err());
        assert_eq!(
            Epsilon::new(-1.0).unwrap_err().to_string(),
            "epsilon must be in (0, 4294], got -1"
        );
        assert_eq!(
            Capacity::finite(f64::NAN).unwrap_err().to_string(),
            "an amount of epsilon must be in [0, 18446744073709], got NaN"
        );
    }

    #[test]
    fn amounts_print_as_decimals() {
        assert_eq!(MicroEpsilon(400_000).to_string(), "0.4");
        assert_eq!(MicroEpsilon(3_800_000).to_string(), "3.8");
        assert_eq!(MicroEpsilon(2_000_000).to_string(), "2");
        assert_eq!(MicroEpsilon(1).to_string(), "0.000001");
        assert_eq!(format!("{:>5}", MicroEpsilon(400_000)), "  0.4");
    }

    #[test]
    fn a_capacity_covers_up_to_itself_and_never_overflows() {
        let capacity = Capacity::Finite(MicroEpsilon(10));
        assert!(capacity.covers(MicroEpsilon(4), MicroEpsilon(6)));
        assert!(!capacity.covers(MicroEpsilon(4), MicroEpsilon(7)));
        assert!(!capacity.covers(MicroEpsilon(4), MicroEpsilon::MAX));
        assert!(Capacity::Unlimited.covers(MicroEpsilon::MAX, MicroEpsilon::MAX));
        assert!(capacity < Capacity::Unlimited);
    }

    proptest! {
        /// A decimal that a person writes with six places is counted exactly.
        #[test]
        fn every_whole_microepsilon_survives_the_double(micro in 0..=4_294_000_000_u64) {
            let written = format!("{}.{:06}", micro / MICRO, micro % MICRO);
            let double: f64 = written.parse().unwrap();
            prop_assert_eq!(whole_micro(double), Some((micro, true)));
        }

        /// The result is never less than the double itself, and less than one µε above it.
        #[test]
        fn rounding_is_up_and_by_less_than_one(epsilon in 0.0..4294.0) {
            let micro = micro(epsilon);
            #[expect(clippy::cast_precision_loss)]
            let excess = micro as f64 - epsilon * 1e6;
            prop_assert!((-1e-5..1.0 + 1e-5).contains(&excess), "{} {}", epsilon, excess);
        }
    }
}
