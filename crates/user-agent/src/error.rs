//! The errors with which a page's call can be rejected.

use std::fmt;

use thiserror::Error;

use crate::site::SiteError;

/// The error of a call, one variant for each kind that the draft names.
///
/// A call fails only because of what the page passed, because it lacks user activation, or because
/// its top-level site made too many calls. The page knows all of these, or its site does. Nothing
/// that is stored, spent or disabled can make a call fail.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum ApiError {
    /// A `RangeError`.
    #[error("RangeError: {0}")]
    RangeError(#[from] RangeError),
    /// A `ReferenceError`.
    #[error(
        "ReferenceError: unknown aggregation service `{service}`; \
         use the exact URL of a configured one"
    )]
    ReferenceError {
        /// The URL that the page passed.
        service: String,
    },
    /// A `DOMException` named `SyntaxError`.
    #[error("SyntaxError: {0}")]
    SyntaxError(#[from] SiteError),
    /// A `DOMException` named `NotAllowedError`.
    #[error("NotAllowedError: {0}")]
    NotAllowedError(#[from] NotAllowed),
    /// A `DOMException` named `QuotaExceededError`. The draft does not name it: see
    /// [`Pace::sealing_of_site`](crate::protocol::Pace::sealing_of_site).
    #[error("QuotaExceededError: {0}")]
    QuotaExceededError(#[from] TooManyReports),
}

impl ApiError {
    /// The name of the JavaScript error.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::RangeError(_) => "RangeError",
            Self::ReferenceError { .. } => "ReferenceError",
            Self::SyntaxError(_) => "SyntaxError",
            Self::NotAllowedError(_) => "NotAllowedError",
            Self::QuotaExceededError(_) => "QuotaExceededError",
        }
    }

    /// True if the JavaScript error is a `DOMException` with that name.
    pub const fn is_dom_exception(&self) -> bool {
        matches!(
            self,
            Self::SyntaxError(_) | Self::NotAllowedError(_) | Self::QuotaExceededError(_)
        )
    }
}

/// An option that is out of range.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{option} must be {allowed}, got {got}")]
pub struct RangeError {
    option: &'static str,
    allowed: String,
    got: String,
}

impl RangeError {
    /// The name of the option, or words that contain it.
    pub const fn option(&self) -> &'static str {
        self.option
    }

    pub(crate) fn new(
        option: &'static str,
        allowed: impl Into<String>,
        got: impl fmt::Display,
    ) -> Self {
        Self {
            option,
            allowed: allowed.into(),
            got: format!("{got}"),
        }
    }
}

/// A call without the user activation it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub struct NotAllowed {
    /// The time since the last activation, if there was one.
    pub(crate) ago_ms: Option<i64>,
    pub(crate) allowed_ms: i64,
}

impl fmt::Display for NotAllowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let allowed = self.allowed_ms;
        match self.ago_ms {
            Some(ago) => write!(
                f,
                "the last user activation was {ago} ms ago, but at most {allowed} ms are allowed"
            ),
            None => write!(
                f,
                "there was no user activation, but one within the last {allowed} ms is needed"
            ),
        }
    }
}

/// A conversion of a site that asked for more reports, or larger ones, than can be made for one
/// site within the delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("this site asked for too many reports; ask again in {delay_ms} ms")]
pub struct TooManyReports {
    pub(crate) delay_ms: u128,
}

/// The reason why a call has no answer: the page made a mistake, or the store failed.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum AgentError<E> {
    /// An error that is passed on to the page.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The store could not be read or written. Nothing is released, and the page must not learn of
    /// the failure.
    #[error("the store failed")]
    Store(#[source] E),
}
