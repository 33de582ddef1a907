//! Evaluations: what a policy costs honest queriers, with or without an attack.
//!
//! A run has three steps. Each of them works on one part of a workload at a time, and its results
//! are merged, so that a cluster can do the same as one machine:
//!
//! 1. [`Survey`](survey::Survey) counts what conversion sites do. This decides who measures
//!    ([`Querier`]) and where batches end ([`BatchPlan`](batching::BatchPlan)).
//! 2. [`Replayer`](replay::Replayer) replays the devices of a part under a policy, and shows each
//!    report to an [`Observer`](replay::Observer): one [`ReportRow`](replay::ReportRow) per report.
//! 3. [`BatchTotals`](batching::BatchTotals) adds the reports of all parts to the sums of their
//!    batches, and [`evaluate`](metrics::evaluate) gives their errors.
//!
//! Everything that is merged is a whole number, so results do not depend on how a workload is
//! divided. A [`Laboratory`] does all three steps with several threads.

pub mod audience;
pub mod batch_table;
pub mod batching;
pub mod diagnosis;
pub mod experiment;
pub mod explanation;
pub mod interval;
pub mod laboratory;
pub mod metrics;
pub mod querier;
pub mod replay;
pub mod resilience;
pub mod results;
pub mod seeds;
pub mod survey;

pub use diagnosis::{Diagnosis, ErrorSource, QuerierCounts, Remedy};
pub use experiment::Experiment;
pub use interval::ConfidenceInterval;
pub use laboratory::{LabError, Laboratory, RunResult};
pub use querier::{NoiseModel, Querier, QuerierOptions};
