//! The results of many cases.

use std::fmt;

use serde::Serialize;

use crate::case::{Mismatch, VectorCase};
use crate::scenario::RunError;

/// The numbers of cases that passed and failed, and all mismatches.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// The number of cases that passed.
    pub passed: usize,
    /// The number of cases that failed.
    pub failed: usize,
    /// Every mismatch of the cases that failed.
    pub failures: Vec<Failure>,
}

/// A mismatch, and its case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// The place of the case in the files.
    pub file: String,
    /// The name of the case.
    pub case: String,
    /// The mismatch.
    #[serde(flatten)]
    pub mismatch: Mismatch,
}

impl Tally {
    /// Runs cases, each given with its place in the files.
    ///
    /// # Errors
    /// If a case cannot be run. The error names the first such case and its place.
    pub fn of<'c>(
        cases: impl IntoIterator<Item = &'c (String, VectorCase)>,
        mut run: impl FnMut(&VectorCase) -> Result<Vec<Mismatch>, RunError>,
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
