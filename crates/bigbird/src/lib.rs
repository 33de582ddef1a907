//! A budget manager for individual differential privacy on one device.
//!
//! A device keeps private events, such as the ads a person saw. Sites ask it for reports about
//! them, which are later summed over many devices and noised. Each report costs the device some
//! privacy; this library decides what it may cost, and releases nothing that is not paid for. It
//! implements the paper's Alg. 2, of which Cookie Monster is a special case.
//!
//! ```text
//!            events of one epoch          filters of that epoch
//!                    │                              │
//! query ──▶ 1 cap ─▶ 2 match ─▶ 3 losses ─▶ 4 check all, pay all or drop the epoch
//!                                                   │   (for each epoch on its own)
//!                                                   ▼
//!              report ◀── attribute over what passed      decision (stays on the device)
//! ```
//!
//! | to | see |
//! |---|---|
//! | count privacy loss | [`MicroEpsilon`], [`Epsilon`], [`Capacity`] |
//! | choose the rules | [`Policy`], [`Policies`], [`Profile`], [`Workload`] |
//! | keep what was spent | [`Ledger`], [`LedgerView`], [`Filter`] |
//! | measure ads | [`Device`], [`Impression`], [`AttributionQuery`], [`AttributionObject`] |
//! | measure something else | [`Query`], [`EventStore`], [`EventLog`] and the example `location` |
//! | embed it in a store of your own | [`generate_report`], [`Workspace`], [`Changes`] |
//! | understand a null report | [`Decision`], [`Cause`], [`Check`] |
//!
//! It does no I/O and has no clock and no randomness: moments, epochs and random numbers come in
//! as parameters, and sites are numbers. The same calls give the same results everywhere.
//!
//! ```
//! use bigbird::*;
//!
//! let (news, shop) = (SiteId(0), SiteId(1));
//! let mut device = Device::<ImpressionStore>::new(Profile::BigBird.policy());
//! let ad = Impression::new(news, UserAction(1), Timestamp(10), 3);
//! device.save_impression(EpochIndex(0), &ad);
//!
//! let request = Request {
//!     querier: shop,
//!     conversion_site: shop,
//!     user_action: UserAction(2),
//!     window: Window::new(EpochIndex(0), EpochIndex(1))?,
//! };
//! let query = AttributionQuery::builder(request, Timestamp(20), 5).epsilon(0.25).build()?;
//! let outcome = device.report(&query, &mut || 0.5);
//! assert_eq!(outcome.report.buckets(), [0, 0, 0, 1, 0]);
//! let global = device.balance(EpochIndex(0), Filter::Global);
//! assert_eq!(global.remaining(), Some(MicroEpsilon::new(7_750_000)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod attribution;
mod decision;
mod device;
mod engine;
mod epochs;
mod epsilon;
mod event_log;
mod filter;
mod ids;
mod ledger;
mod loss;
mod policy;
mod query;
mod small_map;

pub use attribution::{
    AttributionObject, AttributionQuery, AttributionQueryBuilder, Histogram, HistogramSize,
    Impression, ImpressionStore, QueryError, ReadLimits, StoreLimits, Terms,
};
pub use decision::{Cause, Decision, EpochDecision, Fate};
pub use device::{Device, Outcome, Saved};
pub use engine::{Workspace, generate_report};
pub use epsilon::{Capacity, Epsilon, EpsilonError, MicroEpsilon};
pub use event_log::EventLog;
pub use filter::{Balance, Charge, Check, Filter, FilterKind};
pub use ids::{EpochIndex, SiteId, Timestamp, UserAction, Window, WindowError};
pub use ledger::{
    Admission, Admit, Admitted, Changes, EpochView, Ledger, LedgerView, admission, first_short,
};
pub use loss::Noise;
pub use policy::{
    Arithmetic, Capacities, Constraint, DepletedSites, GlobalCharging, KeptEpochs, Policies,
    Policy, PolicyBuilder, PolicyError, Profile, SiteCharging, UnknownProfile, UnknownSiteCharging,
    Violation, Workload,
};
pub use query::{Draws, EventStore, Query, Release, Relevant, Request};

/// The example of the README, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
