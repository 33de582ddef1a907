//! The bounds of the paper's resilience theorem on what an attack can do.
//!
//! The theorem (section Resilience Guarantee) has three parts:
//!
//! * (i) The quotas that an attacker uses bound what it can take from the global budget of a device
//!   in an epoch.
//! * (ii) Its user actions bound the same amount.
//! * (iii) The number of global budgets that it drains bounds how much a sum of reports can change,
//!   and its user actions bound the number of global budgets that it can drain.
//!
//! The theorem rests on quotas and the domain cap. If a policy lacks them, there is no such bound,
//! and the attacks of the paper succeed.

use bigbird::{FilterKind, MicroEpsilon, Policy};

use super::{Attack, Quotas};

/// The bounds of the theorem under a policy, for the quotas that an attacker can use. A bound is
/// `None` if the policy lacks a limit that it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The most quotas of each kind that the attacker states it can use.
    pub quotas: Quotas,
    /// (i) The most that those quotas allow to be taken from one global budget.
    pub by_quotas: Option<MicroEpsilon>,
    /// (ii) The most that one user action can take from one global budget.
    pub by_user_action: Option<MicroEpsilon>,
    /// (iii) The least number of user actions that can drain one global budget.
    pub actions_to_drain: Option<u64>,
    pub(crate) impression_site: Option<u64>,
    pub(crate) conversion_site: Option<u64>,
    pub(crate) global: Option<u64>,
    /// True if the policy records what reports pay besides impression-site quotas.
    pub(crate) pays: bool,
}

impl Bounds {
    /// The bounds on an attack under a policy.
    pub fn new(policy: &Policy, attack: &Attack<'_>) -> Self {
        let capacity = |kind| policy.capacities().of(kind).amount().map(MicroEpsilon::get);
        let impression_site = capacity(FilterKind::ImpressionSiteQuota);
        let conversion_site = capacity(FilterKind::ConversionSiteQuota);
        let global = capacity(FilterKind::GlobalBudget);
        let cap = policy.domain_cap().map(|cap| u64::from(cap.get()));
        let quotas = attack.attacker.quotas(&attack.strength);
        let drained = |by_quota: u64, cap: u64, global: u64| {
            global.div_ceil(by_quota.saturating_mul(cap).max(1))
        };
        Self {
            quotas,
            by_quotas: least(
                impression_site.map(|quota| quota.saturating_mul(quotas.impression_sites.into())),
                conversion_site.map(|quota| quota.saturating_mul(quotas.conversion_sites.into())),
            )
            .map(MicroEpsilon::new),
            by_user_action: conversion_site
                .zip(cap)
                .map(|(quota, cap)| MicroEpsilon::new(quota.saturating_mul(cap))),
            actions_to_drain: impression_site
                .zip(cap)
                .zip(global)
                .map(|((quota, cap), global)| drained(quota, cap, global)),
            impression_site,
            conversion_site,
            global,
            pays: global.or(conversion_site).is_some(),
        }
    }
}

pub(crate) fn least(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}
