//! Reports as they leave a device, and what becomes of them: encrypted for two aggregators,
//! verified without being seen, summed and noised.
//!
//! ```text
//!  device                     leader             helper             collector
//!  histogram ─ DapSealer ─▶ one share          the other share
//!                             └──── verify the proof together ────┘
//!                           sum of shares      sum of shares
//!                           + noise            + noise
//!                             └───────────┬──────────┘
//!                                         └──────────────────────▶ noised histogram
//! ```
//!
//! The device's half follows the W3C draft's section Report Encryption For DAP. It needs no feature
//! and does no I/O:
//!
//! | to | see |
//! |---|---|
//! | seal the reports of a user agent | [`DapSealer`], which is a [`Seal`](bigbird_user_agent::Seal) |
//! | configure services and their keys | [`ConfiguredServices::parse`], [`AggregationService`] |
//! | know what a report is bound to | [`AggregationTask`], [`TaskTerms`] |
//! | read or write messages of DAP | [`messages`] |
//!
//! The other half is the feature `aggregator`, which is on by default:
//!
//! | to | see |
//! |---|---|
//! | verify reports | [`Leader`], [`Helper`], [`ReportRefusal`] |
//! | sum, noise and account for a batch | [`Aggregation`], [`AggregationStore`], [`LaplaceNoise`] |
//! | put the sums together | [`Collector`] |
//!
//! `docs/aggregation.md` says who learns what, and what each party must be trusted with.

#[cfg(feature = "aggregator")]
mod aggregator;
mod hpke;
mod keys;
pub mod messages;
mod role;
mod sealer;
mod service;
mod task;
mod vdaf;
mod version;

#[cfg(feature = "aggregator")]
pub use aggregator::{
    Acceptance, AddError, AggregateSum, Aggregation, AggregationError, AggregationStore,
    AggregationStoreError, BatchQueryError, BatchState, Collector, Helper, HelperAnswer,
    KeyMismatch, LaplaceNoise, Leader, LeaderState, NoiseError, NoiseSource, NoisedHistogram,
    RefusedReport, ReportRefusal, ReportShare, ReportTally,
};
pub use hpke::{EncryptionError, HpkeKeys, Recipient, input_share_info};
pub use keys::{AggregatorKeys, KeysError, VerifyKey};
pub use role::Role;
pub use sealer::{DapSealer, SealError, seal, seal_without_budget};
pub use service::{
    AggregationService, AggregatorEndpoint, ConfiguredServices, ServiceError, ServicesError,
    TaskSettings,
};
pub use task::{AggregationTask, TaskError, TaskTerms};
pub use vdaf::{
    HistogramVdaf, ParameterError, ShardError, ShardedHistogram, VdafKind, VdafParameters,
};
pub use version::{CodePoints, DapVersion, UnknownVersion};
