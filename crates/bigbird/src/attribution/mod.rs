//! Attribution histograms: one application of the budget manager.
//!
//! Events are ad [`Impression`]s, kept in an [`ImpressionStore`] with indexes and limits. The
//! query is an [`AttributionQuery`]: it divides the value of a conversion over the last impressions
//! that match and sums it by histogram bucket. An [`AttributionObject`] lets several queriers
//! share one attribution.

mod credit;
mod impression;
mod index;
mod object;
mod query;
mod store;

pub use credit::allocate_credit;
pub use impression::{Audience, Forgetting, Impression};
pub use object::{AttributionObject, Credit, ObjectParts, Support};
pub use query::{
    AttributionQuery, AttributionQueryBuilder, Enough, Histogram, HistogramSize, QueryError,
    ReadLimits, Terms, Touch,
};
pub use store::{Edit, ImpressionStore, SiteSize, StoreLimits};
