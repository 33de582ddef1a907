//! The laboratory: what budgets and quotas cost honest queriers, and what attackers can still do.
//!
//! A [`Workload`](workload::Workload) is what a population of devices does: read from the Criteo files
//! of the paper's evaluation ([`criteo`]) or any tables ([`table`]), or generated ([`synthetic`]); and
//! it can be written ([`mod@write`]). A
//! [`Laboratory`](simulate::Laboratory) replays it under a policy, with or without an attacker
//! ([`attack`]), on the core's own budget manager ([`replay`]), and tells how wrong the sums of
//! reports become and what blocked them ([`metrics`]).
//!
//! Devices are independent, so they are shared out among threads; results are the same, byte for
//! byte, for any number of threads, and for the same seed.
//!
//! ```
//! use bigbird::Profile;
//! use bigbird_lab::simulate::Laboratory;
//! use bigbird_lab::synthetic::{Population, Preset};
//! use bigbird_lab::workload::QuerierOptions;
//!
//! let population = Population { preset: Preset::Published, scale: 0.001, seed: 1 };
//! let workload = population.generate();
//! let options = QuerierOptions { min_conversions_a_day: 10, min_batch: 200, ..Default::default() };
//! let laboratory = Laboratory::new(&workload, options, 2)?;
//! let outcome = laboratory.run(&Profile::BigBird.policy(), None)?;
//! assert!(outcome.error(50.0).is_some_and(|median| median > 0.0));
//! # Ok::<(), bigbird_lab::simulate::LabError>(())
//! ```

pub mod attack;
mod cells;
pub mod chart;
pub mod claims;
pub mod criteo;
mod csv;
pub mod describe;
mod disk;
pub mod experiment;
pub mod figures;
mod gather;
mod hash;
pub mod metrics;
pub mod plan;
pub mod read;
pub mod replay;
pub mod report;
pub mod reproduce;
pub mod resilience;
pub mod simulate;
pub mod suites;
pub mod synthetic;
pub mod table;
pub mod tune;
pub mod workload;
pub mod write;
