//! Meters: how much the answers of a script reveal about the chosen epoch.

mod joint;
mod loss;
mod mixture;
mod tapes;

pub(crate) use joint::chosen;
pub use joint::{AuditVerdict, Breach, Play, StepRecord, audit, compare, play};
pub use loss::Loss;
pub use mixture::{LogRatio, Outcome, largest_log_ratio};
pub use tapes::{MixtureLoss, mixture_loss};
