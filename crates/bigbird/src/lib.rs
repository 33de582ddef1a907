//! A budget manager for individual differential privacy on one device.
//!
//! A device keeps private events, such as the ads that a person saw. Sites ask it for reports about
//! them. The reports of many devices are later summed, and noise is added to the sum. Each report
//! costs the device some privacy. This library decides how much a report may cost, and releases
//! only what has been paid for. It implements the paper's Alg. 2, of which Cookie Monster is a
//! special case.
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
//! | choose the rules | [`Policy`], [`Policies`], [`Profile`], [`WorkloadParameters`] |
//! | record what was spent | [`Ledger`], [`LedgerView`], [`Filter`] |
//! | measure ads | [`Device`], [`Impression`], [`AttributionQuery`], [`AttributionObject`] |
//! | measure something else | [`Query`], [`EventStore`], [`EventLog`] and the example `location` |
//! | use your own store | [`generate_report`], [`Workspace`], [`LedgerChanges`] |
//! | understand a null report | [`Decision`], [`Cause`], [`Check`] |
//!
//! The library does no I/O and has no clock and no source of randomness. Moments, epochs and random
//! numbers are parameters, and sites are numbers. The same calls give the same results everywhere.
//!
//! ```
//! use bigbird::*;
//!
//! let (news, shop) = (SiteId(0), SiteId(1));
//! let mut device = Device::<ImpressionStore>::new(Profile::BigBird.policy());
//! let ad = Impression::new(news, UserAction(1), Timestamp(10), 3);
//! device.save_impression(EpochIndex(0), &ad);
//!
//! let request = ReportRequest {
//!     querier: shop,
//!     conversion_site: shop,
//!     user_action: UserAction(2),
//!     window: Window::new(EpochIndex(0), EpochIndex(1))?,
//! };
//! let query = AttributionQuery::builder(request, Timestamp(20), 5).epsilon(0.25).build()?;
//! let outcome = device.report(&query, &mut || 0.5);
//! assert_eq!(outcome.report.buckets(), [0, 0, 0, 1, 0]);
//! let global = device.balance(EpochIndex(0), Filter::GlobalBudget);
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
mod limit;
mod loss;
mod policy;
mod query;
mod small_map;

pub use attribution::{
    AttributionObject, AttributionQuery, AttributionQueryBuilder, Histogram, HistogramSize,
    Impression, ImpressionStore, Obstacle, QueryError, ReadLimits, StoreLimits, Terms,
};
pub use decision::{Cause, Decision, DropReason, EpochDecision, Fate};
pub use device::{Device, ReportAndDecision, SaveResult};
pub use engine::{Workspace, generate_report};
pub use epsilon::{Capacity, Epsilon, EpsilonError, MicroEpsilon};
pub use event_log::EventLog;
pub use filter::{Balance, Charge, Check, Filter, FilterKind};
pub use ids::{EpochIndex, SiteId, Timestamp, UserAction, Window, WindowError};
pub use ledger::{
    Admission, AdmissionState, EpochLedger, Ledger, LedgerChanges, LedgerView, NewAdmission,
    admission, first_shortfall,
};
pub use limit::Limit;
pub use loss::Noise;
pub use policy::{
    AllowedQueriers, Arithmetic, Capacities, ClosedSites, Constraint, DepletedSites,
    GlobalCharging, KeptEpochs, OwnActionEvents, Policies, Policy, PolicyBuilder, PolicyError,
    Profile, SiteCharging, UnknownProfile, UnknownSiteCharging, Violation, WorkloadParameters,
};
pub use query::{Draws, EventStore, Query, Release, Relevant, ReportRequest};
