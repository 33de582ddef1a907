//! Policies: the capacities, the domain cap and the charging rules of a device.

mod builder;
mod capacities;
mod options;
mod profile;
mod workload;

use std::num::NonZeroU32;

pub use builder::{PolicyBuilder, PolicyError};
pub use capacities::Capacities;
pub use options::{
    AllowedQueriers, Arithmetic, ClosedSites, DepletedSites, GlobalCharging, OwnActionEvents,
    SiteCharging, UnknownSiteCharging,
};
pub use profile::{Profile, UnknownProfile};
pub use workload::{Constraint, Violation, WorkloadParameters};

use crate::{Capacity, EpochIndex};

/// The rules of a device: the capacity of each filter, the number of sites that a user action may
/// involve, how losses are computed, what matches, and who may ask. Valid by construction.
///
/// ```
/// use bigbird::{Policy, Profile};
///
/// let default = Profile::BigBird.policy();
/// let stricter = Policy::builder().impression_site_quota(1.5).domain_cap(1).build()?;
/// let quota = |policy: &Policy| policy.capacities().impression_site_quota;
/// assert!(quota(&stricter) < quota(&default));
/// # Ok::<(), bigbird::PolicyError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(
    feature = "serde",
    serde(rename_all = "camelCase", try_from = "stored::StoredPolicy")
)]
pub struct Policy {
    capacities: Capacities,
    domain_cap: Option<NonZeroU32>,
    arithmetic: Arithmetic,
    global_charging: GlobalCharging,
    site_charging: SiteCharging,
    depleted_sites: DepletedSites,
    own_action_events: OwnActionEvents,
    closed_sites: ClosedSites,
    allowed_queriers: AllowedQueriers,
}

impl Policy {
    /// A builder that starts from the `big-bird` profile.
    pub fn builder() -> PolicyBuilder {
        Profile::BigBird.policy().to_builder()
    }

    /// A builder that starts from this policy.
    pub fn to_builder(&self) -> PolicyBuilder {
        PolicyBuilder::new(self.clone())
    }

    /// The capacity of each kind of filter.
    pub const fn capacities(&self) -> &Capacities {
        &self.capacities
    }

    /// The number of distinct sites that one user action may admit in an epoch (κ).
    pub const fn domain_cap(&self) -> Option<NonZeroU32> {
        self.domain_cap
    }

    /// The arithmetic of losses.
    pub const fn arithmetic(&self) -> Arithmetic {
        self.arithmetic
    }

    /// The rule for what the global budget pays in a window of one epoch.
    pub const fn global_charging(&self) -> GlobalCharging {
        self.global_charging
    }

    /// The rule for what each relevant impression site pays.
    pub const fn site_charging(&self) -> SiteCharging {
        self.site_charging
    }

    /// The rule for epochs in which the quota of an impression site is depleted.
    pub const fn depleted_sites(&self) -> DepletedSites {
        self.depleted_sites
    }

    /// The rule for events that a request's own user action saved.
    pub const fn own_action_events(&self) -> OwnActionEvents {
        self.own_action_events
    }

    /// The effect of closing a site for epochs.
    pub const fn closed_sites(&self) -> ClosedSites {
        self.closed_sites
    }

    /// The sites that may receive reports and pay for them.
    pub const fn allowed_queriers(&self) -> AllowedQueriers {
        self.allowed_queriers
    }

    /// True if any rule of this policy depends on the user action of a call. If none does, calls
    /// need not name the user action that caused them.
    pub fn reads_user_actions(&self) -> bool {
        self.domain_cap.is_some()
            || self.own_action_events == OwnActionEvents::Excluded
            || self.capacities.user_action_budget != Capacity::Unlimited
    }
}

/// The policy of each epoch of a device.
///
/// The proofs need two guarantees from an implementation: the policy of an epoch never changes,
/// and an epoch that was pruned stays pruned.
pub trait Policies {
    /// The policy of an epoch, or `None` once the epoch was pruned. A pruned epoch pays nothing
    /// and admits no site: forgetting what it spent must never refund it.
    fn policy(&self, epoch: EpochIndex) -> Option<&Policy>;
}

/// One policy for every epoch, none of which was pruned.
impl Policies for Policy {
    #[inline]
    fn policy(&self, _: EpochIndex) -> Option<&Policy> {
        Some(self)
    }
}

/// One policy for every epoch from `first` on; earlier epochs were pruned.
#[derive(Debug, Clone, Copy)]
pub struct KeptEpochs<'a> {
    /// The policy.
    pub policy: &'a Policy,
    /// The first epoch that was not pruned.
    pub first: EpochIndex,
}

impl Policies for KeptEpochs<'_> {
    #[inline]
    fn policy(&self, epoch: EpochIndex) -> Option<&Policy> {
        (epoch >= self.first).then_some(self.policy)
    }
}

/// Policies as data, including those that earlier versions wrote.
#[cfg(feature = "serde")]
mod stored {
    use super::*;

    /// The fields of a policy, old and new.
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    pub(super) struct StoredPolicy {
        capacities: Capacities,
        domain_cap: Option<NonZeroU32>,
        arithmetic: Arithmetic,
        global_charging: GlobalCharging,
        site_charging: SiteCharging,
        depleted_sites: DepletedSites,
        own_action_events: Option<OwnActionEvents>,
        closed_sites: Option<ClosedSites>,
        allowed_queriers: Option<AllowedQueriers>,
        /// The field that earlier versions had instead of the three above: true for the draft's
        /// rules, false for the paper's.
        matches_own_action: Option<bool>,
    }

    impl TryFrom<StoredPolicy> for Policy {
        type Error = &'static str;

        fn try_from(stored: StoredPolicy) -> Result<Self, &'static str> {
            let profile = match stored.matches_own_action {
                Some(true) => Some(Profile::W3cDraft),
                Some(false) => Some(Profile::BigBird),
                None => None,
            };
            let old = profile.map(Profile::policy);
            let old = old.as_ref();
            Ok(Self {
                capacities: stored.capacities,
                domain_cap: stored.domain_cap,
                arithmetic: stored.arithmetic,
                global_charging: stored.global_charging,
                site_charging: stored.site_charging,
                depleted_sites: stored.depleted_sites,
                own_action_events: stored
                    .own_action_events
                    .or(old.map(Policy::own_action_events))
                    .ok_or("missing field `ownActionEvents`")?,
                closed_sites: stored
                    .closed_sites
                    .or(old.map(Policy::closed_sites))
                    .ok_or("missing field `closedSites`")?,
                allowed_queriers: stored
                    .allowed_queriers
                    .or(old.map(Policy::allowed_queriers))
                    .ok_or("missing field `allowedQueriers`")?,
            })
        }
    }
}
