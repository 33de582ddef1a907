//! The terms of a conversion: its value, how the value is divided, and the noise.

use std::num::NonZeroU64;

use super::error::QueryError;
use crate::{Epsilon, Noise};

/// The value of a conversion, the shares of credit that divide it, and the noise that hides it.
/// Valid by construction.
#[derive(Debug, Clone, PartialEq)]
pub struct Terms {
    pub(crate) value: u32,
    pub(crate) credit: Vec<f64>,
    pub(crate) noise: Noise,
}

impl Terms {
    /// The terms of a conversion of `value`, which is at most `max_value`. A conversion of
    /// `max_value` costs `epsilon`. The last impression gets the first share of `credit`, and so
    /// on.
    ///
    /// # Errors
    /// If a value is out of range. The error names the value and what is allowed.
    pub fn new(
        epsilon: f64,
        value: u32,
        max_value: u32,
        credit: Vec<f64>,
    ) -> Result<Self, QueryError> {
        let noise = noise(Epsilon::new(epsilon)?, value, max_value)?;
        if credit.is_empty() {
            return Err(QueryError::NoCredit);
        }
        let wrong = |share: &&f64| share.is_nan() || **share <= 0.0;
        if let Some(&got) = credit.iter().find(wrong) {
            return Err(QueryError::Credit { got });
        }
        let sum: f64 = credit.iter().sum();
        if !sum.is_finite() {
            return Err(QueryError::CreditSum { got: sum });
        }
        Ok(Self {
            value,
            credit,
            noise,
        })
    }

    pub(super) fn set_price(
        &mut self,
        epsilon: Epsilon,
        value: u32,
        max_value: u32,
    ) -> Result<(), QueryError> {
        self.noise = noise(epsilon, value, max_value)?;
        self.value = value;
        Ok(())
    }

    /// The value of the conversion.
    pub const fn value(&self) -> u32 {
        self.value
    }

    /// The largest value that a conversion can have.
    pub fn max_value(&self) -> u32 {
        u32::try_from(self.noise.sensitivity().get() / 2).unwrap_or(u32::MAX)
    }

    /// The privacy loss of a conversion of the largest value.
    pub fn epsilon(&self) -> Epsilon {
        self.noise.epsilon()
    }
}

/// The noise that hides a conversion of up to `max_value`, if `value` is one.
fn noise(epsilon: Epsilon, value: u32, max_value: u32) -> Result<Noise, QueryError> {
    match NonZeroU64::new(2 * u64::from(max_value)) {
        Some(sensitivity) if (1..=max_value).contains(&value) => {
            Ok(Noise::new(epsilon, sensitivity))
        }
        _ => Err(QueryError::Value {
            got: value,
            max_value,
        }),
    }
}
