//! Which reports an aggregator refuses, and why.

use std::fmt;
use std::ops::RangeInclusive;

use bigbird::MicroEpsilon;

use crate::messages::ReportMetadata;
use crate::task::AggregationTask;

/// Why a report was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReportRefusal {
    /// The bytes are not a report.
    Malformed,
    /// The report has extensions other than the ones it must have.
    Extensions,
    /// Less was paid for the report than the batch may spend.
    BudgetTooSmall,
    /// The report is from the future.
    Future,
    /// The report is too old.
    Expired,
    /// The report was already counted, in this batch or in another.
    Replayed,
    /// The report is encrypted to keys that the aggregators do not have.
    UnknownKey,
    /// A share cannot be decrypted: the report was altered, or it is for another task, role,
    /// version or key.
    Undecryptable,
    /// A share is not one of this VDAF.
    InvalidShare,
    /// The proof is wrong: the histogram exceeds the maximum, or the report was altered.
    InvalidProof,
}

impl ReportRefusal {
    /// All reasons, in the order in which they are checked.
    pub const ALL: [Self; 10] = [
        Self::Malformed,
        Self::Extensions,
        Self::BudgetTooSmall,
        Self::Future,
        Self::Expired,
        Self::Replayed,
        Self::UnknownKey,
        Self::Undecryptable,
        Self::InvalidShare,
        Self::InvalidProof,
    ];

    /// The name of the reason in JSON.
    pub const fn key(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Extensions => "extensions",
            Self::BudgetTooSmall => "budgetTooSmall",
            Self::Future => "future",
            Self::Expired => "expired",
            Self::Replayed => "replayed",
            Self::UnknownKey => "unknownKey",
            Self::Undecryptable => "undecryptable",
            Self::InvalidShare => "invalidShare",
            Self::InvalidProof => "invalidProof",
        }
    }
}

impl fmt::Display for ReportRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Malformed => "not a report",
            Self::Extensions => "wrong extensions",
            Self::BudgetTooSmall => "privacy budget too small",
            Self::Future => "from the future",
            Self::Expired => "too old",
            Self::Replayed => "already counted",
            Self::UnknownKey => "encrypted to an unknown key",
            Self::Undecryptable => "altered, or for another task",
            Self::InvalidShare => "not a share of this task",
            Self::InvalidProof => "wrong proof",
        })
    }
}

/// What a report must have to be accepted, as far as everybody can read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acceptance {
    /// The epsilon that must have been paid for it: what its batch may spend.
    pub budget: MicroEpsilon,
    /// The times that are neither too old nor in the future, in units of the task's precision.
    pub times: RangeInclusive<u64>,
}

/// The epsilon that was paid for a report, as it says itself.
///
/// # Errors
/// If it does not say so, or says more that an aggregator does not understand.
pub(super) fn paid(
    task: &AggregationTask,
    metadata: &ReportMetadata,
) -> Result<MicroEpsilon, ReportRefusal> {
    let privacy_budget = task.service().settings().code_points.privacy_budget;
    match metadata.public_extensions.as_slice() {
        [only] if only.extension_type == privacy_budget => {
            let bytes: Result<[u8; 4], _> = only.data.as_slice().try_into();
            let micro = bytes.map_err(|_| ReportRefusal::Extensions)?;
            Ok(MicroEpsilon::new(u32::from_be_bytes(micro).into()))
        }
        _ => Err(ReportRefusal::Extensions),
    }
}

impl Acceptance {
    /// What follows from the readable part of a report.
    ///
    /// # Errors
    /// If the report must be refused.
    pub fn check(
        &self,
        task: &AggregationTask,
        metadata: &ReportMetadata,
    ) -> Result<(), ReportRefusal> {
        if paid(task, metadata)? < self.budget {
            return Err(ReportRefusal::BudgetTooSmall);
        }
        if metadata.time > *self.times.end() {
            return Err(ReportRefusal::Future);
        }
        if metadata.time < *self.times.start() {
            return Err(ReportRefusal::Expired);
        }
        Ok(())
    }
}
