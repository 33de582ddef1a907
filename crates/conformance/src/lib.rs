//! Test vectors of the W3C Attribution API, and a player that runs them on any store.
//!
//! A vector is a scenario (a history of calls with what each should give), a header, credit to
//! allocate, or a site to parse. `docs/vectors.md` describes the formats: the W3C's own, and lines of
//! JSON. [`vectors`] are ours, which exercise what the W3C's do not.
//!
//! ```
//! use bigbird_conformance::{Tally, vectors};
//!
//! let tally = Tally::of(&vectors(), |case| case.run(None))?;
//! assert_eq!(tally.failed, 0, "{tally}");
//! # Ok::<(), bigbird_conformance::RunError>(())
//! ```
//!
//! | to | see |
//! |---|---|
//! | read files | [`read`], [`Case::parse`] |
//! | run cases on a store of your own | [`Case::run_on`], [`Tally`] |
//! | play a scenario step by step | [`Scenario::player_on`], [`Event`] |
#![forbid(unsafe_code)]

mod case;
mod files;
mod scenario;
mod tally;

pub use case::{Case, CreditCase, HeaderCase, Mismatch, SiteCase};
pub use files::{VectorError, read, read_lines, read_w3c};
pub use scenario::{
    Event, Expected, Outcome, Prescribed, RunError, Scenario, ScenarioConfig, ScenarioPlayer,
};
pub use tally::{Failure, Tally};

/// Our files of vectors, by name.
const FILES: [(&str, &str); 4] = [
    (
        "activation.jsonl",
        include_str!("../vectors/activation.jsonl"),
    ),
    ("big-bird.jsonl", include_str!("../vectors/big-bird.jsonl")),
    (
        "shared-conversions.jsonl",
        include_str!("../vectors/shared-conversions.jsonl"),
    ),
    (
        "w3c-draft.jsonl",
        include_str!("../vectors/w3c-draft.jsonl"),
    ),
];

/// Our own vectors, each with where it is from.
///
/// # Panics
/// Never: they are part of this crate, and its tests read them.
#[expect(clippy::expect_used, reason = "what is read is part of this crate")]
pub fn vectors() -> Vec<(String, Case)> {
    let read = |(file, text)| files::lines(file, text).expect("our vectors are well-formed");
    FILES.into_iter().flat_map(read).collect()
}
