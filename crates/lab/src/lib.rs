//! The laboratory measures what budgets and quotas cost honest queriers, and what attackers can
//! still do.
//!
//! * A [`Workload`](workload::Workload) is what a population of devices does. It is read from
//!   tables of any size or from Criteo's files, or generated.
//! * A [`Laboratory`](evaluation::Laboratory) replays it on the budget manager of the `bigbird`
//!   crate, under a policy, with or without an attacker ([`attack`]). It reports the error of sums
//!   of reports, which limits blocked reports, and whether the attacker stayed within the bounds of
//!   the resilience theorem ([`evaluation`]).
//! * It serves to reproduce the [`paper`]'s evaluation, to find capacities for what devices do
//!   ([`describe`], [`tune`]), and to plan an advertiser's measurement ([`mod@plan`]).
//!
//! Devices are independent, so they are divided among threads. For the same seed, results are the
//! same, byte for byte, with any number of threads.
//!
//! ```
//! use bigbird::Profile;
//! use bigbird_lab::evaluation::{Laboratory, QuerierOptions};
//! use bigbird_lab::workload::synthetic::{Population, Preset};
//!
//! let population = Population { preset: Preset::Published, scale: 0.001, seed: 1 };
//! let workload = population.generate();
//! let options =
//!     QuerierOptions { min_conversions_a_day: 10, min_batch: 200, ..Default::default() };
//! let laboratory = Laboratory::new(&workload, options, 2)?;
//! let outcome = laboratory.run(&Profile::BigBird.policy(), None)?;
//! assert!(outcome.error(50.0).is_some_and(|median| median > 0.0));
//! # Ok::<(), bigbird_lab::evaluation::LabError>(())
//! ```

pub mod attack;
pub mod describe;
pub mod diagnosis;
pub mod evaluation;
pub mod paper;
pub mod plan;
pub mod text;
mod threads;
pub mod tune;
pub mod workload;
