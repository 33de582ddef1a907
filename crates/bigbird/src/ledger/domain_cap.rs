//! The domain cap: how many distinct sites one user action may involve in an epoch (κ).
//!
//! For each user action and epoch the ledger keeps the set of sites that were admitted.
//! [`admission`] decides whether one more site fits. It is asked in two places:
//!
//! * when an impression is saved, about its impression site, in the current epoch (`save` of a user
//!   agent's `execution`, and of [`Device`](crate::Device)). If the site is refused, the impression
//!   is silently dropped;
//! * when a conversion is measured, about its conversion site, in each epoch of the window (step 1
//!   in `engine.rs`). If the site is refused, that epoch is left out of the report.
//!
//! An admission stays, whatever the rest of the call finds. A user action must end with its epoch
//! (see [`UserAction`]): whoever numbers them sees to it. A user agent gives calls of an ended
//! action the id of calls without one.
//! A [`Device`](crate::Device) in memory asks and admits in one step, with the same answer.

use std::num::NonZeroU32;

use super::LedgerView;
use crate::{EpochIndex, Policy, SiteId, UserAction};

/// Decides whether a user action may involve a site in an epoch that was not pruned (the paper's
/// definition of the per-action domain cap).
///
/// # Errors
/// If the ledger cannot be read.
#[inline]
pub fn admission<L: LedgerView>(
    policy: &Policy,
    ledger: &L,
    action: UserAction,
    epoch: EpochIndex,
    site: SiteId,
) -> Result<Admission, L::Error> {
    match policy.domain_cap() {
        None => Ok(Admission::Granted),
        Some(cap) => Ok(ledger.admitted(action, epoch, site)?.under(cap)),
    }
}

/// The domain cap's answer for one site under one user action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// The site needs no new admission: it is admitted already, or there is no cap.
    Granted,
    /// The site is not admitted yet, and there is room for it.
    Room,
    /// The cap is reached, or the action has ended.
    Refused,
}

/// The record of one site under one user action in one epoch. In the paper it is
/// `accessed[user action][epoch]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdmissionState {
    /// True if this site was admitted.
    pub admitted: bool,
    /// The number of sites that were admitted, including this one if it was.
    pub sites: u32,
}

impl AdmissionState {
    /// The state of every site under a user action that has not admitted any site.
    pub(super) const NONE: Self = Self {
        admitted: false,
        sites: 0,
    };

    /// The state of every site under a user action that has ended: there is no room left.
    pub(super) const ENDED: Self = Self {
        admitted: false,
        sites: u32::MAX,
    };

    /// The answer of a cap.
    #[inline]
    pub(crate) fn under(self, cap: NonZeroU32) -> Admission {
        match self {
            Self { admitted: true, .. } => Admission::Granted,
            Self { sites, .. } if sites < cap.get() => Admission::Room,
            Self { .. } => Admission::Refused,
        }
    }
}

/// A site to admit under a user action, in one epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub struct NewAdmission {
    /// The user action.
    pub user_action: UserAction,
    /// The epoch.
    pub epoch: EpochIndex,
    /// The site.
    pub site: SiteId,
}
