//! An auditor for privacy budget managers: it measures exactly what leaks and what holds.
//!
//! The paper's first contribution is that per-querier guarantees are unsound and the global one
//! holds. This crate makes that checkable, on the real engine and on the whole user agent.
//!
//! ```text
//!  script ──▶ world 1: plays all of it ──────────────▶ answers a¹, what is stored, what X paid
//!         └─▶ world 0: saves in epoch X leave nothing ▶ answers a⁰, what is stored
//!                                   │
//!                 loss = Σ ‖a¹ − a⁰‖₁ / λ, exactly, over all answers of all queriers
//!                                   │
//!   (i) separation: nothing outside X differs      a trail to follow
//!  (ii) accounting: loss ≤ what X has paid         a breach is a leak
//! (iii) theorem:    loss ≤ the global capacity     a breach is a leak
//! ```
//!
//! | to | see |
//! |---|---|
//! | write a life of a device down | [`script`] |
//! | audit a manager | [`manager::Manager`], [`manager::MakeManager`] |
//! | measure a script | [`meter::audit`], [`meter::mixture_loss`] |
//! | search for a script that leaks | [`search::Search`] |
//! | see every real, broken and wasteful manager | [`catalogue::catalogue`] |
//! | execute the failure modes of per-querier budgets | [`model`] |
//! | search for denial that costs nothing | [`denial`] |
//! | run everything | [`run::run`], [`page::page`] |
//!
//! `docs/audit.md` explains the method, with proofs, and its limits.
//!
//! ```
//! use bigbird_audit::manager::{DeviceManager, LiteralManager};
//! use bigbird_audit::meter::{Breach, audit};
//! use bigbird_audit::script::Script;
//! use bigbird_reference::Flaw;
//!
//! // One impression, and two requests by different sites for the whole global budget. Within one
//! // epoch, a request costs half its epsilon.
//! let script: Script = serde_json::from_str(r#"{
//!     "setup": {"impressionSiteQuota": null},
//!     "steps": [
//!         {"clock": 3600000},
//!         {"save": {"site": 0, "action": 1}},
//!         {"clock": 90000000},
//!         {"measure": {"site": 1, "action": 2, "epsilon": 2000000, "lookbackDays": 1}},
//!         {"measure": {"site": 2, "action": 3, "epsilon": 2000000, "lookbackDays": 1}}
//!     ]
//! }"#)?;
//! assert_eq!(audit(&DeviceManager, &script).violation, None);
//! // A manager that ignores a refusal releases the second report too: twice the capacity.
//! let flawed = LiteralManager { flaw: Some(Flaw::ReleasedUnpaid) };
//! assert_eq!(audit(&flawed, &script).violation, Some((4, Breach::Theorem)));
//! # Ok::<(), serde_json::Error>(())
//! ```
#![forbid(unsafe_code)]

pub mod catalogue;
pub mod denial;
pub mod manager;
pub mod meter;
pub mod model;
pub mod page;
pub mod run;
pub mod script;
pub mod search;
pub mod story;
