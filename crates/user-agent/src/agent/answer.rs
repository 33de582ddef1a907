//! The answers that a user agent gives.

use bigbird::{Decision, EpochIndex, Timestamp};

use crate::execution::MeasureResult;
use crate::report::{SealedReport, UnsealedReport};
use crate::shared::SharedConversion;

/// The answer to a conversion.
#[derive(Debug, Clone, PartialEq)]
#[must_use = "a report that was paid for should be released"]
pub struct ConversionAnswer {
    /// The sealed report. The page must not get it at once: a
    /// [`Scheduler`](crate::protocol::Scheduler) decides when.
    pub report: SealedReport,
    /// The decision: what happened, and why. It stays on the device.
    pub decision: Decision,
}

/// The answer to the creation of a shared conversion.
#[derive(Debug, Clone, PartialEq)]
#[must_use = "shares of a conversion that was paid for should be taken"]
pub struct SharedConversionAnswer {
    /// The handle by which shares are taken. The page gets it when a scheduler decides, as for a
    /// report.
    pub shared: SharedConversion,
    /// The decision: what happened, and why. It stays on the device.
    pub decision: Decision,
}

impl From<MeasureResult> for SharedConversionAnswer {
    fn from(measured: MeasureResult) -> Self {
        Self {
            shared: measured.shared,
            decision: measured.decision,
        }
    }
}

/// The status of the API, to show to the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// True if the user has not disabled the API.
    pub enabled: bool,
    /// The beginning of the first epoch that can be measured, if the current one cannot. In that
    /// case history was cleared, or something was measured while the clock was ahead.
    pub closed_until: Option<Timestamp>,
    /// The current epoch, if epochs have begun.
    pub epoch: Option<EpochIndex>,
    /// A number that grows with every change, and with every call of a page, whatever it changed.
    pub revision: u64,
}

/// The answer to a page's call.
#[derive(Debug, Clone, PartialEq)]
pub enum PageAnswer {
    /// An impression was saved or dropped. Nobody learns which.
    Saved,
    /// The report of a conversion, or of a share of one, which a
    /// [`Gate`](crate::Gate::seal) seals. The decision stays on the device.
    Report(UnsealedReport, Decision),
    /// A shared conversion.
    Shared(SharedConversionAnswer),
}
