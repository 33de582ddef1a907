//! Test vectors of the W3C Attribution API, and a player that runs them on any store.
//!
//! A vector is a scenario (a history of calls, each with its expected result), a header, credit to
//! allocate, or a site to parse. `docs/vectors.md` describes the formats: the W3C's own, and lines
//! of JSON. [`vectors`] returns our own vectors, which exercise what the W3C's do not.
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
//! | read files | [`read`], [`VectorCase::parse`] |
//! | run cases on a store of your own | [`VectorCase::run_on`], [`Tally`] |
//! | read events that somebody wrote to ask why | [`read_lenient`] |
//! | play a scenario step by step | [`Scenario::player_on`], [`ScenarioEvent`] |
#![forbid(unsafe_code)]

mod case;
mod files;
mod lenient;
mod scenario;
mod tally;

pub use case::{CreditCase, HeaderCase, Mismatch, SiteCase, VectorCase};
pub use files::{VectorError, read, read_lines, read_w3c};
pub use lenient::{EventDefaults, ExplainableScenario, read_lenient};
pub use scenario::{
    EventResult, ExpectedAnswer, RunError, Scenario, ScenarioConfig, ScenarioEvent, ScenarioPlayer,
    ScriptedRandomness,
};
pub use tally::{Failure, Tally};

/// Our own files of vectors, by name.
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

/// Our own vectors, each with its place in the files.
///
/// # Panics
/// Never: the files are part of this crate, and its tests read them.
#[expect(clippy::expect_used, reason = "the files are part of this crate")]
pub fn vectors() -> Vec<(String, VectorCase)> {
    let read = |(file, text)| files::lines(file, text).expect("our vectors are well-formed");
    FILES.into_iter().flat_map(read).collect()
}
