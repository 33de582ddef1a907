//! The ledger: the state of every filter and domain cap of one device, and the two rules about
//! them.
//!
//! * [`admission`] is the domain cap.
//! * [`first_shortfall`] is the atomic check of all filters of an epoch.

mod admitted_sites;
mod atomic_check;
mod domain_cap;
mod memory;

pub use atomic_check::first_shortfall;
pub use domain_cap::{Admission, AdmissionState, NewAdmission, admission};
pub use memory::{EpochLedger, Ledger};

use crate::{Charge, Check, EpochIndex, SiteId, UserAction};

/// A device's filters and caps as rows, wherever they are kept: in memory ([`Ledger`]) or on disk.
/// The engine decides from these rows alone, and does not change them.
///
/// The proofs need one guarantee from an implementation: the reads of one report, and the
/// application of the [`LedgerChanges`] that pay for it, are one transaction, which is durable
/// before the report is released.
pub trait LedgerView {
    /// The reason why the ledger could not be read.
    type Error;

    /// Fills in how much the filter of each check has consumed: zero if it was never charged. All
    /// checks are about filters of `epoch`.
    fn consumed(&self, epoch: EpochIndex, checks: &mut [Check]) -> Result<(), Self::Error>;

    /// The state of a site under a user action in an epoch.
    fn admitted(
        &self,
        action: UserAction,
        epoch: EpochIndex,
        site: SiteId,
    ) -> Result<AdmissionState, Self::Error>;
}

/// The changes that one report makes to the ledger. All of them were decided and checked. Applying
/// them only writes them down.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LedgerChanges {
    /// Sites to admit under a user action. They stay admitted even if nothing is charged.
    pub admissions: Vec<NewAdmission>,
    /// Losses that filters pay. Each adds its amount, which is never zero, to what the filter has
    /// consumed.
    pub charges: Vec<Charge>,
}

impl LedgerChanges {
    pub(crate) fn clear(&mut self) {
        self.admissions.clear();
        self.charges.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Filter, FilterKind, MicroEpsilon, Policy, Profile};

    const E: EpochIndex = EpochIndex(0);

    fn policy() -> Policy {
        let policy = Policy::builder()
            .querier_budget(1.0)
            .global_budget(2.0)
            .domain_cap(2);
        policy.build().unwrap()
    }

    fn check(filter: Filter, micro: u64) -> Check {
        let capacity = policy().capacities().of(filter.kind());
        Check::new(E, filter, capacity, MicroEpsilon::new(micro))
    }

    fn charged(ledger: &mut Ledger, checks: &[Check]) {
        let charges = checks.iter().map(Check::charge).collect();
        let admissions = Vec::new();
        ledger.apply(&LedgerChanges {
            admissions,
            charges,
        });
    }

    /// Admits a site if the cap allows it.
    fn admit(ledger: &mut Ledger, action: u64, epoch: EpochIndex, site: u32) -> bool {
        let (user_action, site) = (UserAction(action), SiteId(site));
        let admit = NewAdmission {
            user_action,
            epoch,
            site,
        };
        let Ok(expected) = admission(&policy(), ledger, user_action, epoch, site);
        let admission = ledger.admit_under(policy().domain_cap().unwrap(), admit);
        assert_eq!(admission, expected);
        admission != Admission::Refused
    }

    #[test]
    fn a_check_names_every_filter_that_cannot_pay() {
        let mut ledger = Ledger::new();
        let a = Filter::QuerierBudget(SiteId(1));
        charged(&mut ledger, &[check(a, 900_000)]);
        let mut checks = [
            check(a, 200_000),
            check(Filter::GlobalBudget, 3_000_000),
            check(Filter::ImpressionSiteQuota(SiteId(9)), 1),
            check(Filter::ConversionSiteQuota(SiteId(1)), 1),
        ];
        let Ok(short) = first_shortfall(&ledger, E, &mut checks);
        assert_eq!(short, Some(FilterKind::QuerierBudget));
        let short: Vec<_> = checks
            .iter()
            .filter(|check| !check.fits())
            .map(|check| (check.filter, check.short_by().get()))
            .collect();
        assert_eq!(short, [(a, 100_000), (Filter::GlobalBudget, 1_000_000)]);
        assert_eq!(
            checks[0].to_string(),
            "querier budget of site #1 in epoch 0: capacity 1, consumed 0.9, asked for 0.2"
        );
    }

    #[test]
    fn charges_to_one_filter_add_up() {
        let mut twice = [check(Filter::GlobalBudget, 1_500_000); 2];
        let Ok(short) = first_shortfall(&Ledger::new(), E, &mut twice);
        assert_eq!(short, Some(FilterKind::GlobalBudget));
        assert_eq!(twice[1].balance.consumed.get(), 1_500_000);
        assert!(twice[0].fits());
    }

    #[test]
    fn a_check_that_is_not_looked_up_cannot_pay() {
        for kind in FilterKind::ALL {
            let capacity = Profile::BigBird.policy().capacities().of(kind);
            let asked = MicroEpsilon::new(1);
            let check = Check::new(E, Filter::GlobalBudget, capacity, asked);
            assert_eq!(check.fits(), capacity == crate::Capacity::Unlimited);
        }
    }

    #[test]
    fn a_pruned_epoch_keeps_nothing() {
        let mut ledger = Ledger::new();
        charged(&mut ledger, &[check(Filter::GlobalBudget, 2_000_000)]);
        ledger.prune_before(EpochIndex(1));
        charged(&mut ledger, &[check(Filter::GlobalBudget, 1)]);
        ledger.prune_before(EpochIndex(-5));
        assert_eq!(ledger.first_epoch(), EpochIndex(1));
        assert_eq!(ledger.epochs().count(), 0);
    }

    #[test]
    fn the_cap_counts_distinct_sites_per_action_and_epoch() {
        let mut ledger = Ledger::new();
        for (site, admitted) in [(1, true), (2, true), (1, true), (3, false), (2, true)] {
            assert_eq!(admit(&mut ledger, 1, E, site), admitted, "{site}");
        }
        assert!(admit(&mut ledger, 2, E, 3));
        assert!(admit(&mut ledger, 1, EpochIndex(1), 3));
    }

    #[test]
    fn an_action_that_has_ended_is_admitted_to_nothing() {
        let mut ledger = Ledger::new();
        for action in 1..=3 {
            assert!(admit(&mut ledger, action, E, 1));
            assert!(admit(&mut ledger, action, E, 2));
        }
        ledger.end_user_actions_before(UserAction(3));
        assert!(!admit(&mut ledger, 1, E, 1));
        assert!(!admit(&mut ledger, 2, E, 5));
        assert!(admit(&mut ledger, 3, E, 1));
        assert!(!admit(&mut ledger, 3, E, 5));
        let view = ledger.epochs().next().unwrap();
        assert_eq!(view.user_actions(), [UserAction(3)]);
        assert_eq!(
            view.admitted(UserAction(3)).collect::<Vec<_>>(),
            [SiteId(2), SiteId(1)]
        );
    }
}
