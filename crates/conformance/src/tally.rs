//! Many cases, and what came of them.

use std::fmt;

use serde::Serialize;

use crate::case::{Case, Mismatch};
use crate::scenario::RunError;

/// How many cases passed, and what came out otherwise than expected in the others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// How many passed.
    pub passed: usize,
    /// How many did not.
    pub failed: usize,
    /// Every mismatch of those.
    pub failures: Vec<Failure>,
}

/// A mismatch, and the case that it is of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// Where the case is from.
    pub file: String,
    /// Its name.
    pub case: String,
    /// What came out otherwise.
    #[serde(flatten)]
    pub mismatch: Mismatch,
}

impl Tally {
    /// Runs cases, each with where it is from.
    ///
    /// # Errors
    /// The first case that cannot be run, with where it is from.
    pub fn of<'c>(
        cases: impl IntoIterator<Item = &'c (String, Case)>,
        mut run: impl FnMut(&Case) -> Result<Vec<Mismatch>, RunError>,
    ) -> Result<Self, RunError> {
        let mut tally = Self::default();
        for (file, case) in cases {
            let mismatches = run(case)
                .map_err(|why| RunError::new(format!("{file}: {}: {why}", case.name())))?;
            match mismatches.is_empty() {
                true => tally.passed += 1,
                false => tally.failed += 1,
            }
            let failures = mismatches.into_iter().map(|mismatch| Failure {
                file: file.clone(),
                case: case.name(),
                mismatch,
            });
            tally.failures.extend(failures);
        }
        Ok(tally)
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Failure {
            file,
            case,
            mismatch: Mismatch { at, expected, got },
        } in &self.failures
        {
            writeln!(f, "{file}: {case}: {at}")?;
            writeln!(f, "  expected {expected}\n  got      {got}")?;
        }
        writeln!(f, "{} passed, {} failed", self.passed, self.failed)
    }
}
