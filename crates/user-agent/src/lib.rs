//! The W3C Attribution API of a user agent.
//!
//! This crate is everything between a page's call and the budget manager ([`bigbird`]): sites,
//! options, the impression store, epochs, clearing, activation and HTTP headers. It follows the
//! draft of May 2026 (`api.bs` of w3c/attribution), and corrects the draft where that is wrong or
//! silent (`docs/draft-notes.md`). The crate contains no browser: moments, random numbers and
//! storage come in from outside.
//!
//! Under every profile except `w3c-draft`, name the user action that caused each call
//! ([`Call::by`]). All calls without one count as a single action, and none of them matches what
//! another of them saved.
//!
//! | to | see |
//! |---|---|
//! | answer a page | [`UserAgent`], [`Call`], [`ImpressionOptions`], [`ConversionOptions`] |
//! | answer a response header | [`parse_save_impression`], [`parse_measure_conversion`], [`parse_permissions_policy`], [`parse_clear_site_data`] |
//! | check that a page may call the API | [`Activation`] |
//! | configure a user agent | [`Config`], [`Limits`], [`bigbird::Profile`] |
//! | store its data | [`Storage`], [`View`], [`ChangeSet`], [`MemoryStore`] |
//! | change the rules of epochs in the field | [`Rules`], [`Timeline`], [`UserAgent::new`] |
//! | seal reports, so that they may leave the device | [`Report`], [`Seal`]; `bigbird-dap` encrypts them |
//! | share a conversion among intermediaries | [`UserAgent::create_shared_conversion`], [`UserAgent::take_share`] |
//! | drive a user agent with lines of JSON | [`protocol`] |
//! | understand a null report | [`UserAgent::explain`], [`Explanation`] |
//! | show people what happened | [`UserAgent::history`], [`UserAgent::impressions`] |
//!
//! ```
//! use bigbird::{Profile, Timestamp};
//! use bigbird_user_agent::*;
//!
//! struct FixedRandomness;
//! impl Randomness for FixedRandomness {
//!     fn epoch_start(&mut self) -> f64 { 0.5 }
//!     fn credit(&mut self) -> f64 { 0.5 }
//!     fn handle(&mut self, number: u64) -> u128 { number.into() } // outside tests: random bits
//! }
//!
//! let config = Config::new(Profile::BigBird).with_service("https://agg.example").for_testing();
//! let mut agent = UserAgent::in_memory(config, FixedRandomness);
//! let click = agent.begin_user_action(Timestamp(1_000)).map_err(AgentError::Store)?;
//! let seen = Call::new("news.example", Timestamp(1_000)).by(click);
//! agent.save_impression(&seen, &ImpressionOptions::new(2))?;
//!
//! let click = agent.begin_user_action(Timestamp(60_000)).map_err(AgentError::Store)?;
//! let bought = Call::new("shop.example", Timestamp(60_000)).by(click);
//! let options = ConversionOptions::new("https://agg.example", 4);
//! let answer = agent.measure_conversion(&bought, &options)?;
//! // The page gets the report at a fixed time after its call: see `protocol::Scheduler`.
//! assert_eq!(answer.report.histogram.unwrap().buckets(), [0, 0, 1, 0]);
//! # Ok::<(), AgentError<std::convert::Infallible>>(())
//! ```

mod activation;
mod agent;
mod call;
mod clock;
mod config;
mod error;
mod execution;
mod explanation;
mod gate;
mod headers;
mod history;
mod memory;
mod options;
pub mod protocol;
mod randomness;
mod report;
mod shared;
mod site;
mod storage;

pub use activation::Activation;
pub use agent::{
    ConversionAnswer, FilterBalance, ListPage, ListedImpression, PageAnswer,
    SharedConversionAnswer, Status, UserAgent,
};
pub use call::{Action, Call, ConversionCall, ImpressionCall, PageCall, QuerierRole};
pub use clock::{Era, Rules, Timeline};
pub use config::{Config, EpochStart};
pub use error::{AgentError, ApiError, NotAllowed, RangeError, TooManyReports};
pub use explanation::{
    EpochExplanation, Explanation, FilterExplanation, ShareRefusal, UnmatchedImpression,
};
pub use gate::Gate;
pub use headers::{
    Allowlist, ApiHeader, HeaderError, HeaderKey, PolicyDeclarations, header_keys,
    parse_clear_site_data, parse_measure_conversion, parse_permissions_policy,
    parse_save_impression,
};
pub use history::{HistoryEntry, HistoryKey, HistoryKind};
pub use memory::{MemoryStore, MemoryTransaction};
pub use options::{
    AggregationProtocol, AggregationServices, ConversionOptions, ImpressionOptions, Limits,
};
pub use randomness::Randomness;
#[cfg(feature = "system-randomness")]
pub use randomness::{RandomnessError, SystemRandomness};
pub use report::{Envelope, Report, Seal, SealedReport, UnsealedReport, Withhold};
pub use shared::{HandleError, SharedConversion};
#[cfg(feature = "psl")]
pub use site::PublicSuffixList;
pub use site::{Localhost, RegistrableDomains, Site, SiteError};
pub use storage::{
    ChangeSet, DeviceState, ForgottenEpochs, ImpressionSelection, ListedRows, RowPlace, RowSet,
    SavedImpression, Storage, StoredObject, Transaction, View, ViewRow,
};
