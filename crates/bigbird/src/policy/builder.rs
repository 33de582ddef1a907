//! Building a policy, and the errors when one cannot be built.

use std::num::NonZeroU32;

use thiserror::Error;

use super::options::{Arithmetic, DepletedSites, GlobalCharging, SiteCharging};
use super::{Capacities, Policy};
use crate::{Capacity, EpsilonError, FilterKind, MicroEpsilon};

/// Builds a [`Policy`]. [`build`](PolicyBuilder::build) reports the first wrong value.
#[derive(Debug, Clone)]
#[must_use]
pub struct PolicyBuilder {
    policy: Policy,
    error: Option<PolicyError>,
}

impl PolicyBuilder {
    pub(super) fn new(policy: Policy) -> Self {
        Self {
            policy,
            error: None,
        }
    }

    /// The capacity of each querier budget, in epsilons.
    pub fn querier_budget(self, epsilon: f64) -> Self {
        self.capacity(FilterKind::QuerierBudget, epsilon)
    }

    /// The capacity of the global budget, in epsilons.
    pub fn global_budget(self, epsilon: f64) -> Self {
        self.capacity(FilterKind::GlobalBudget, epsilon)
    }

    /// The capacity of each impression-site quota, in epsilons.
    pub fn impression_site_quota(self, epsilon: f64) -> Self {
        self.capacity(FilterKind::ImpressionSiteQuota, epsilon)
    }

    /// The capacity of each conversion-site quota, in epsilons.
    pub fn conversion_site_quota(self, epsilon: f64) -> Self {
        self.capacity(FilterKind::ConversionSiteQuota, epsilon)
    }

    /// The capacity of each user-action budget, in epsilons: the most that one user action may cost
    /// an epoch in total. No profile sets this capacity.
    pub fn user_action_budget(self, epsilon: f64) -> Self {
        self.capacity(FilterKind::UserActionBudget, epsilon)
    }

    /// The capacity of one kind of filter, in epsilons.
    pub fn capacity(mut self, kind: FilterKind, epsilon: f64) -> Self {
        match amount(kind, epsilon) {
            Ok(amount) => *self.policy.capacities.of_mut(kind) = Capacity::Finite(amount),
            Err(error) => self.error = self.error.or(Some(error)),
        }
        self
    }

    /// Removes the filters of one kind.
    pub fn unlimited(mut self, kind: FilterKind) -> Self {
        *self.policy.capacities.of_mut(kind) = Capacity::Unlimited;
        self
    }

    /// All capacities at once.
    pub fn capacities(mut self, capacities: Capacities) -> Self {
        self.policy.capacities = capacities;
        self
    }

    /// The number of distinct sites that one user action may admit in an epoch. It must be at least
    /// 1.
    pub fn domain_cap(mut self, sites: u32) -> Self {
        match NonZeroU32::new(sites) {
            Some(cap) => self.policy.domain_cap = Some(cap),
            None => self.error = self.error.or(Some(PolicyError::DomainCap)),
        }
        self
    }

    /// Removes the domain cap.
    pub fn no_domain_cap(mut self) -> Self {
        self.policy.domain_cap = None;
        self
    }

    /// The arithmetic of losses.
    pub fn arithmetic(mut self, arithmetic: Arithmetic) -> Self {
        self.policy.arithmetic = arithmetic;
        self
    }

    /// The rule for what the global budget pays in a window of one epoch.
    pub fn global_charging(mut self, charging: GlobalCharging) -> Self {
        self.policy.global_charging = charging;
        self
    }

    /// The rule for what each relevant impression site pays.
    pub fn site_charging(mut self, charging: SiteCharging) -> Self {
        self.policy.site_charging = charging;
        self
    }

    /// The rule for epochs in which the quota of an impression site is depleted.
    pub fn depleted_sites(mut self, depleted: DepletedSites) -> Self {
        self.policy.depleted_sites = depleted;
        self
    }

    /// The policy.
    ///
    /// # Errors
    /// If a capacity was negative, NaN, infinite or too large, or the domain cap was 0.
    pub fn build(self) -> Result<Policy, PolicyError> {
        match self.error {
            None => Ok(self.policy),
            Some(error) => Err(error),
        }
    }
}

/// An amount of epsilon for filters of a kind.
pub(super) fn amount(kind: FilterKind, epsilon: f64) -> Result<MicroEpsilon, PolicyError> {
    match Capacity::finite(epsilon) {
        Ok(capacity) => Ok(capacity.amount().unwrap_or_default()),
        Err(source) => Err(PolicyError::Capacity { kind, source }),
    }
}

/// The reason why a policy cannot be built.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// A capacity is negative, NaN, infinite or too large.
    #[error("the capacity of the {kind} is invalid: {source}")]
    Capacity {
        /// The kind of filter.
        kind: FilterKind,
        /// The problem with the capacity.
        source: EpsilonError,
    },
    /// A capacity computed from a workload is too large.
    #[error(
        "this workload needs a capacity above the maximum of {max} epsilons",
        max = u64::MAX / crate::epsilon::MICRO
    )]
    TooLarge,
    /// A domain cap of 0 would admit nothing.
    #[error("the domain cap must be at least 1 site per user action, got 0")]
    DomainCap,
    /// A workload parameter is 0.
    #[error("a workload must have at least 1 {parameter}, got 0")]
    Workload {
        /// The parameter.
        parameter: &'static str,
    },
    /// The intermediaries' share is negative, NaN, infinite or too large.
    #[error(
        "the intermediary share (r) must be in [0, {max}], got {got}",
        max = u64::MAX / crate::epsilon::MICRO
    )]
    IntermediaryShare {
        /// The share that was given.
        got: f64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_values_build_nothing() {
        let builder = Policy::builder;
        let refused = [
            builder().querier_budget(-1.0).build(),
            builder().global_budget(f64::NAN).build(),
            builder().impression_site_quota(f64::INFINITY).build(),
            builder().conversion_site_quota(1e300).build(),
            builder().domain_cap(0).build(),
            builder().querier_budget(-1.0).querier_budget(1.0).build(),
        ];
        for refused in refused {
            assert!(refused.is_err());
        }
        assert_eq!(
            builder()
                .global_budget(-2.0)
                .build()
                .unwrap_err()
                .to_string(),
            "the capacity of the global budget is invalid: \
             an amount of epsilon must be in [0, 18446744073709], got -2"
        );
    }
}
