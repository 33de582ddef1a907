//! Attribution histograms: one application of the budget manager.
//!
//! Events are ad [`Impression`]s, kept in an [`ImpressionStore`] with indexes and limits. The query
//! is an [`AttributionQuery`]. It divides the value of a conversion over the last impressions that
//! match, and sums it by histogram bucket. An [`AttributionObject`] lets several queriers share one
//! attribution.

mod audiences;
mod builder;
mod chain;
mod credit;
mod error;
mod eviction;
mod fitting;
mod histogram;
mod impression;
mod index;
mod object;
mod obstacle;
mod query;
mod ranking;
mod read_limits;
mod slot;
mod store;
mod terms;

pub use builder::AttributionQueryBuilder;
pub use credit::allocate_credit;
pub use error::QueryError;
pub use eviction::{SiteSize, StoreLimits};
pub use histogram::{Histogram, HistogramSize};
pub use impression::{Audience, ForgetEffect, Impression};
pub use object::{AttributionObject, AttributionObjectData, CreditedImpression, ShareScope};
pub use obstacle::Obstacle;
pub use query::{AttributionQuery, MatchedImpression};
pub use read_limits::{ReadLimits, StopRule};
pub use store::{ImpressionEdit, ImpressionStore};
pub use terms::Terms;
