//! The W3C Attribution API of a user agent.
//!
//! Everything between a page's call and the budget manager ([`bigbird`]): sites, options, the
//! impression store, epochs, clearing, activation and HTTP headers, after the draft of May 2026
//! (`api.bs` of w3c/attribution), corrected where it is wrong or silent (`docs/draft-notes.md`).
//! There is no browser in it: moments, random numbers and storage come in from outside.
//!
//! Outside `w3c-draft`, say of each call which user action caused it ([`Call::by`]): calls without
//! one count as a single action, and match nothing that another of them saved.
//!
//! | to | see |
//! |---|---|
//! | answer a page | [`UserAgent`], [`Call`], [`ImpressionOptions`], [`ConversionOptions`] |
//! | answer a response header | [`parse_save_impression`], [`parse_measure_conversion`] |
//! | know whether a page may call | [`Activation`] |
//! | set it up | [`Config`], [`Limits`], [`bigbird::Profile`] |
//! | keep its data | [`Storage`], [`View`], [`ChangeSet`], [`Memory`] |
//! | change the rules in the field | [`Rules`], [`Timeline`], [`UserAgent::new`] |
//! | let reports leave | [`Report`], [`Seal`] |
//! | share a conversion among intermediaries | [`UserAgent::create_shared_conversion`], [`UserAgent::take_share`] |
//! | drive it by lines of JSON | [`protocol`] |
//! | understand a null report | [`UserAgent::explain`], [`Explanation`] |
//!
//! ```
//! use bigbird::{Profile, Timestamp};
//! use bigbird_user_agent::*;
//!
//! struct Half;
//! impl Randomness for Half {
//!     fn epoch_start(&mut self) -> f64 { 0.5 }
//!     fn credit(&mut self) -> f64 { 0.5 }
//!     fn handle(&mut self, number: u64) -> u128 { number.into() } // for a test; else random bits
//! }
//!
//! let config = Config::new(Profile::BigBird).with_service("https://agg.example").for_testing();
//! let mut agent = UserAgent::in_memory(config, Half);
//! let click = agent.begin_user_action(Timestamp(1_000)).map_err(AgentError::Store)?;
//! let seen = Call::new("news.example", Timestamp(1_000)).by(click);
//! agent.save_impression(&seen, &ImpressionOptions::new(2))?;
//!
//! let click = agent.begin_user_action(Timestamp(60_000)).map_err(AgentError::Store)?;
//! let bought = Call::new("shop.example", Timestamp(60_000)).by(click);
//! let options = ConversionOptions::new("https://agg.example", 4);
//! let answer = agent.measure_conversion(&bought, &options)?;
//! // A page gets it at a fixed time after the call: see `protocol::Scheduler`.
//! assert_eq!(answer.report.histogram.unwrap().buckets(), [0, 0, 1, 0]);
//! # Ok::<(), AgentError<std::convert::Infallible>>(())
//! ```

mod activation;
mod agent;
mod call;
mod clock;
mod config;
mod decoy;
mod error;
mod explain;
mod gate;
mod headers;
mod measure;
mod memory;
mod options;
pub mod protocol;
mod report;
mod shared;
mod site;
mod storage;
mod upkeep;
mod work;

pub use activation::Activation;
pub use agent::{Answer, Budget, PageAnswer, SharedAnswer, Status, UserAgent};
pub use call::{Action, Call, ConversionCall, ImpressionCall, PageCall, Querier};
pub use clock::{Era, Rules, Timeline};
pub use config::{Config, EpochStart, Randomness};
pub use error::{AgentError, ApiError, NotAllowed, RangeError};
pub use explain::{EpochExplanation, Explanation, FilterExplanation, ShareRefusal};
pub use gate::Gate;
pub use headers::{HeaderError, parse_measure_conversion, parse_save_impression};
pub use memory::{Memory, MemoryTransaction};
pub use options::{
    AggregationProtocol, AggregationServices, ConversionOptions, ImpressionOptions, Limits,
};
pub use report::{Envelope, Report, Seal, SealedReport, Withhold};
pub use shared::{HandleError, SharedConversion};
#[cfg(feature = "psl")]
pub use site::PublicSuffixList;
pub use site::{Localhost, RegistrableDomains, Site, SiteError};
pub use storage::{
    ChangeSet, Forgotten, Place, Row, Rows, SavedImpression, Selection, State, Storage,
    StoredObject, Transaction, View,
};
