//! Handles of conversions that several intermediaries share.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The handle of a conversion that several intermediaries share.
///
/// The handle is random and carries no information. A running number would tell one site how many
/// shared conversions others have created.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(try_from = "String", into = "String")]
pub struct SharedConversion(pub u128);

impl fmt::Display for SharedConversion {
    /// Writes 32 hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for SharedConversion {
    type Err = HandleError;

    fn from_str(text: &str) -> Result<Self, HandleError> {
        let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let parsed = u128::from_str_radix(text, 16).ok().filter(|_| digits);
        parsed.map(Self).ok_or_else(|| HandleError {
            got: text.chars().take(40).collect(),
        })
    }
}

impl TryFrom<String> for SharedConversion {
    type Error = HandleError;

    fn try_from(text: String) -> Result<Self, HandleError> {
        text.parse()
    }
}

impl From<SharedConversion> for String {
    fn from(shared: SharedConversion) -> Self {
        shared.to_string()
    }
}

/// A string that is not a handle.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "the handle of a shared conversion must be 32 hexadecimal digits, got `{}`",
    got.escape_debug()
)]
pub struct HandleError {
    got: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_32_digits() {
        let shared = SharedConversion(0xab);
        let text = "000000000000000000000000000000ab";
        assert_eq!(shared.to_string(), text);
        assert_eq!(text.parse(), Ok(shared));
        assert_eq!(text.to_uppercase().parse(), Ok(shared));
        for wrong in [
            "",
            "ab",
            "+00000000000000000000000000000ab",
            &"0".repeat(33),
        ] {
            assert!(wrong.parse::<SharedConversion>().is_err(), "{wrong}");
        }
    }
}
