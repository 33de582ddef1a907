//! The aggregation side: verifying, summing, noising, and the account of what was spent.

mod collector;
mod noise;
mod process;
mod refusal;
mod store;
mod sum;
mod verify;

pub use collector::{Collector, NoisedHistogram};
pub use noise::{LaplaceNoise, NoiseError, NoiseSource};
pub use process::{AddError, Aggregation, AggregationError, RefusedReport, ReportTally};
pub use refusal::{Acceptance, ReportRefusal};
pub use store::{AggregationStore, AggregationStoreError, BatchQueryError, BatchState};
pub use sum::AggregateSum;
pub use verify::{Helper, HelperAnswer, KeyMismatch, Leader, LeaderState, ReportShare};
