//! The errors of attribution queries.

use thiserror::Error;

use super::histogram::HistogramSize;
use super::query::AttributionQuery;
use crate::{EpsilonError, Timestamp};

/// The reason why a query cannot be built. Nothing was charged.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
#[non_exhaustive]
pub enum QueryError {
    /// The epsilon is out of range.
    #[error(transparent)]
    Epsilon(#[from] EpsilonError),
    /// The value is zero or above the largest value.
    #[error("value must be in [1, maxValue = {max_value}], got {got}")]
    Value {
        /// The value that was given.
        got: u32,
        /// The largest value that a conversion can have.
        max_value: u32,
    },
    /// The list of credit is empty.
    #[error("credit must have at least 1 share, got 0")]
    NoCredit,
    /// A share of credit is not positive.
    #[error("every share of credit must be above 0, got {got}")]
    Credit {
        /// The share that was given.
        got: f64,
    },
    /// The sum of the shares of credit overflows.
    #[error("the sum of credit must be finite, got {got}")]
    CreditSum {
        /// The sum.
        got: f64,
    },
    /// The histogram has no buckets, or too many.
    #[error(
        "histogram size must be in [1, {max}], got {got}",
        max = HistogramSize::MAX
    )]
    HistogramSize {
        /// The number of buckets that was given.
        got: u32,
    },
    /// There are no callers, or too many.
    #[error(
        "a query must have 1 to {max} callers, got {got}",
        max = AttributionQuery::MAX_CALLERS
    )]
    Callers {
        /// The number of callers that was given.
        got: usize,
    },
    /// The lookback begins after now.
    #[error(
        "the lookback must not begin after now ({}), got {}",
        now.0, not_before.0
    )]
    Lookback {
        /// The moment of the request.
        now: Timestamp,
        /// The beginning of its lookback.
        not_before: Timestamp,
    },
}
