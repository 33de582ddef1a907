//! The atomic check: every filter of an epoch can pay, or none is charged.

use super::LedgerView;
use crate::{Check, EpochIndex, FilterKind};

/// Asks every filter of an epoch whether it can pay, and returns the kind of the first one that
/// cannot (the paper's appendix, `AtomicFilterCheckAndConsume`).
///
/// If any filter cannot pay, nothing may be charged anywhere in this epoch. If all can, the charges
/// of all checks fit together.
///
/// The checks must be sorted by filter. Several checks of one filter add up.
///
/// # Errors
/// If the ledger cannot be read.
#[inline]
pub fn first_shortfall<L: LedgerView>(
    ledger: &L,
    epoch: EpochIndex,
    checks: &mut [Check],
) -> Result<Option<FilterKind>, L::Error> {
    ledger.consumed(epoch, checks)?;
    let mut short = None;
    let mut before: Option<&Check> = None;
    for check in checks {
        if let Some(before) = before
            && before.filter == check.filter
        {
            check.balance.consumed = before.balance.consumed + before.asked;
        }
        if short.is_none() && !check.fits() {
            short = Some(check.filter.kind());
        }
        before = Some(check);
    }
    Ok(short)
}
