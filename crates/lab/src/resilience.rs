//! The paper's resilience theorem: the most that an attack can do. It is stated for an attacker,
//! and checked on every device of a run.
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

use bigbird::{Charge, EpochIndex, Filter, FilterKind, MicroEpsilon, Policy, SiteId, UserAction};

use crate::attack::{Attack, Quotas};
use crate::metrics::Batch;
use crate::workload::Querier;

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
    impression_site: Option<u64>,
    conversion_site: Option<u64>,
    global: Option<u64>,
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
        }
    }
}

fn least(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}

/// The shares of the bounds that an attack reached, over all devices. A share above 1 means that
/// the bound was broken.
#[derive(Debug, Clone, PartialEq)]
pub struct Resilience {
    /// The bounds.
    pub bounds: Bounds,
    /// (i) The largest share of the bound by quotas that was taken from a global budget.
    pub by_quotas: f64,
    /// (ii) The largest share of the bound by user actions that was taken from a global budget.
    pub by_user_actions: f64,
    /// (iii) The budgets drained on a device, as a share of those that its user actions can drain:
    /// the largest over all devices.
    pub drained: f64,
    /// (iii) The change of the sum of a batch, as a share of its bound: the largest over all
    /// batches.
    pub by_query: f64,
    /// The number of global budgets that the attacker drained alone (k).
    pub drained_budgets: u64,
    /// The number of device-epochs in which it took something from a filter that honest sites need.
    pub touched: u64,
    /// For each querier, the number of those device-epochs on devices that report to it.
    touched_by_querier: Vec<u64>,
}

impl Resilience {
    pub(crate) fn new(bounds: Bounds, queriers: usize) -> Self {
        Self {
            bounds,
            by_quotas: 0.0,
            by_user_actions: 0.0,
            drained: 0.0,
            by_query: 0.0,
            drained_budgets: 0,
            touched: 0,
            touched_by_querier: vec![0; queriers],
        }
    }

    /// True if every bound held.
    pub fn hold(&self) -> bool {
        [
            self.by_quotas,
            self.by_user_actions,
            self.drained,
            self.by_query,
        ]
        .iter()
        .all(|share| *share <= 1.0)
    }

    /// Adds what another thread saw. The order of threads does not matter.
    pub(crate) fn add(&mut self, other: &Self) {
        self.by_quotas = self.by_quotas.max(other.by_quotas);
        self.by_user_actions = self.by_user_actions.max(other.by_user_actions);
        self.drained = self.drained.max(other.drained);
        self.drained_budgets += other.drained_budgets;
        self.touched += other.touched;
        for (sum, more) in self
            .touched_by_querier
            .iter_mut()
            .zip(&other.touched_by_querier)
        {
            *sum += more;
        }
    }

    /// (iii) Compares batches with the same batches without the attack. Each of k device-epochs can
    /// change the reports of its device, at most m, by Δ each.
    pub(crate) fn compare(&mut self, queriers: &[Querier], with: &[Batch], without: &[Batch]) {
        for (with, without) in with.iter().zip(without) {
            let found = queriers.binary_search_by_key(&with.conversion_site, |it| it.site);
            let Ok(number) = found else { continue };
            let querier = &queriers[number];
            let change: u64 = with
                .kept
                .iter()
                .zip(without.kept)
                .map(|(with, without)| with.abs_diff(without))
                .sum();
            let sensitivity = 2 * u64::from(querier.max_value);
            let reports = u64::from(querier.most_of_a_device) * self.touched_by_querier[number];
            self.by_query = self
                .by_query
                .max(share(change, reports.saturating_mul(sensitivity)));
        }
    }
}

/// The amount that was taken, as a share of the bound.
#[expect(clippy::cast_precision_loss, reason = "shares are for people")]
fn share(taken: u64, bound: u64) -> f64 {
    match (taken, bound) {
        (0, _) => 0.0,
        (_, 0) => f64::INFINITY,
        // Rounding must not hide that the bound was exceeded.
        _ if taken > bound => (taken as f64 / bound as f64).max(1.0 + f64::EPSILON),
        _ => taken as f64 / bound as f64,
    }
}

/// The amounts that were taken from the global budgets of one device, by epoch.
#[derive(Debug, Default)]
pub(crate) struct AttackTally {
    /// The sites from this number on belong to the attacker.
    first_own_site: Option<SiteId>,
    /// The tally of each epoch. Those from `used` on are kept only for their buffers.
    epochs: Vec<(EpochIndex, EpochTally)>,
    used: usize,
    actions: u32,
}

#[derive(Debug, Default)]
struct EpochTally {
    honest: u64,
    attacker: u64,
    /// True if the attacker took something from a filter that honest sites need.
    touched: bool,
    impression_sites: Vec<SiteId>,
    conversion_sites: Vec<SiteId>,
    /// The number of user actions that took something.
    actions: u64,
    /// The last of those user actions.
    last_action: Option<UserAction>,
}

impl EpochTally {
    /// Starts again, and keeps the buffers.
    fn clear(&mut self) {
        let Self {
            mut impression_sites,
            mut conversion_sites,
            ..
        } = std::mem::take(self);
        impression_sites.clear();
        conversion_sites.clear();
        *self = Self {
            impression_sites,
            conversion_sites,
            ..Self::default()
        };
    }
}

impl AttackTally {
    pub(crate) fn new(first_own_site: Option<SiteId>) -> Self {
        Self {
            first_own_site,
            ..Self::default()
        }
    }

    /// Starts with another device.
    pub(crate) fn begin(&mut self) {
        self.used = 0;
        self.actions = 0;
    }

    /// Counts a user action of the attacker.
    pub(crate) fn action(&mut self) {
        self.actions += 1;
    }

    /// The number of user actions that the attacker had.
    pub(crate) fn actions(&self) -> u32 {
        self.actions
    }

    /// Records the charges of an honest report.
    pub(crate) fn honest(&mut self, charges: &[Charge]) {
        for charge in charges {
            if charge.filter == Filter::GlobalBudget {
                self.epoch(charge.epoch).honest += charge.amount.get();
            }
        }
    }

    /// Records the charges of a report of the attacker.
    pub(crate) fn attacked(&mut self, action: UserAction, charges: &[Charge]) {
        let first_own_site = self.first_own_site;
        for charge in charges {
            let tally = self.epoch(charge.epoch);
            let own = match (charge.filter.site(), first_own_site) {
                (Some(site), Some(first)) => site >= first,
                _ => matches!(charge.filter, Filter::UserActionBudget(_)),
            };
            tally.touched |= !own;
            let once = |sites: &mut Vec<SiteId>, site| {
                if !sites.contains(&site) {
                    sites.push(site);
                }
            };
            match charge.filter {
                Filter::GlobalBudget => tally.attacker += charge.amount.get(),
                Filter::ImpressionSiteQuota(site) => once(&mut tally.impression_sites, site),
                Filter::ConversionSiteQuota(site) => once(&mut tally.conversion_sites, site),
                Filter::QuerierBudget(_) | Filter::UserActionBudget(_) => {}
            }
            if tally.last_action != Some(action) {
                tally.last_action = Some(action);
                tally.actions += 1;
            }
        }
    }

    fn epoch(&mut self, epoch: EpochIndex) -> &mut EpochTally {
        let mut used = self.epochs[..self.used].iter();
        let at = used.position(|(of, _)| *of == epoch).unwrap_or(self.used);
        if at == self.used {
            self.used += 1;
            match self.epochs.get_mut(at) {
                Some((of, tally)) => {
                    *of = epoch;
                    tally.clear();
                }
                None => self.epochs.push((epoch, EpochTally::default())),
            }
        }
        &mut self.epochs[at].1
    }

    /// Adds the amounts of this device to the totals.
    pub(crate) fn spent(&self, spent: &mut Spent) {
        for (_, tally) in &self.epochs[..self.used] {
            if tally.honest + tally.attacker > 0 {
                spent.device_epochs += 1;
                spent.honest += tally.honest;
                spent.attacker += tally.attacker;
            }
        }
    }

    /// Checks the bounds on this device, which reports to some queriers.
    pub(crate) fn check(&self, resilience: &mut Resilience, queriers: impl Iterator<Item = usize>) {
        let bounds = resilience.bounds;
        let (mut touched, mut drained) = (0, 0);
        for (_, tally) in &self.epochs[..self.used] {
            touched += u64::from(tally.touched);
            if tally.attacker == 0 {
                continue;
            }
            let times =
                |quota: Option<u64>, count: usize| quota.map(|it| it.saturating_mul(count as u64));
            let by_quotas = least(
                times(bounds.impression_site, tally.impression_sites.len()),
                times(bounds.conversion_site, tally.conversion_sites.len()),
            );
            if let Some(bound) = by_quotas {
                let stated = bounds.by_quotas.map_or(bound, MicroEpsilon::get);
                let taken = share(tally.attacker, bound.min(stated));
                resilience.by_quotas = resilience.by_quotas.max(taken);
            }
            if let Some(each) = bounds.by_user_action {
                let taken = share(tally.attacker, each.get().saturating_mul(tally.actions));
                resilience.by_user_actions = resilience.by_user_actions.max(taken);
            }
            drained += u64::from(bounds.global.is_some_and(|global| tally.attacker >= global));
        }
        if let Some(each) = bounds.actions_to_drain {
            let taken = share(drained, u64::from(self.actions) / each.max(1));
            resilience.drained = resilience.drained.max(taken);
        }
        resilience.drained_budgets += drained;
        resilience.touched += touched;
        if touched > 0 {
            for querier in queriers {
                resilience.touched_by_querier[querier] += touched;
            }
        }
    }
}

/// The amounts that were consumed from global budgets, over all devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Spent {
    /// The number of device-epochs whose global budget paid something.
    pub device_epochs: u64,
    /// The amount that honest reports consumed, in µε.
    pub honest: u64,
    /// The amount that the attacker consumed, in µε.
    pub attacker: u64,
}

impl Spent {
    pub(crate) fn add(&mut self, other: &Self) {
        self.device_epochs += other.device_epochs;
        self.honest += other.honest;
        self.attacker += other.attacker;
    }

    /// The amounts that each of those device-epochs paid on average, in ε: for honest reports, and
    /// for the attacker. None if there is no global budget, or if nothing was consumed.
    #[expect(clippy::cast_precision_loss, reason = "averages are for people")]
    pub fn mean(&self) -> Option<(f64, f64)> {
        let count = self.device_epochs as f64 * 1e6;
        (self.device_epochs > 0).then(|| (self.honest as f64 / count, self.attacker as f64 / count))
    }
}

#[cfg(test)]
mod tests {
    use bigbird::Profile;

    use super::*;
    use crate::attack::attackers::Omniscient;
    use crate::attack::{Attack, Strength};

    const SYBIL: SiteId = SiteId(100);

    fn resilience() -> Resilience {
        let policy = Profile::BigBird.policy();
        let attack = Attack {
            attacker: &Omniscient,
            strength: Strength::of_paper(Some(2)),
            seed: 1,
        };
        Resilience::new(Bounds::new(&policy, &attack), 1)
    }

    /// The charges of a Sybil's report: 1 ε each to the global budget and to two quotas.
    fn charges(epoch: i64, sybil: u32) -> [Charge; 3] {
        let sybil = SiteId(SYBIL.0 + sybil);
        [
            Filter::GlobalBudget,
            Filter::ImpressionSiteQuota(sybil),
            Filter::ConversionSiteQuota(sybil),
        ]
        .map(|filter| Charge {
            epoch: EpochIndex(epoch),
            filter,
            amount: MicroEpsilon::new(1_000_000),
        })
    }

    fn checked(reports: &[(u64, u32)]) -> Resilience {
        let mut resilience = resilience();
        let mut tally = AttackTally::new(Some(SYBIL));
        tally.begin();
        let mut last = None;
        for (action, sybil) in reports {
            if last != Some(action) {
                tally.action();
                last = Some(action);
            }
            tally.attacked(UserAction(*action), &charges(3, *sybil));
        }
        tally.check(&mut resilience, [0].into_iter());
        resilience
    }

    #[test]
    fn bounds_of_the_papers_defaults() {
        let bounds = resilience().bounds;
        assert_eq!(bounds.by_quotas, Some(MicroEpsilon::new(25_000_000)));
        assert_eq!(bounds.by_user_action, Some(MicroEpsilon::new(2_000_000)));
        assert_eq!(bounds.actions_to_drain, Some(2));
    }

    #[test]
    fn what_quotas_and_caps_allow_is_within_bounds() {
        // Each user action involves two sites, and each site pays once.
        let all = [
            (1, 0),
            (1, 1),
            (2, 2),
            (2, 3),
            (3, 4),
            (3, 5),
            (4, 6),
            (4, 7),
        ];
        let resilience = checked(&all);
        assert!(resilience.hold(), "{resilience:?}");
        assert_eq!((resilience.touched, resilience.drained_budgets), (1, 1));
    }

    /// Only a broken budget manager would allow these charges.
    #[test]
    fn what_they_do_not_allow_is_noticed() {
        // (i) A conversion-site quota of 1 ε that paid 1 ε twice.
        let twice = checked(&[(1, 0), (2, 0)]);
        assert!(twice.by_quotas > 1.0 && !twice.hold());
        // (ii) A user action that involved three sites.
        let three = checked(&[(1, 0), (1, 1), (1, 2)]);
        assert!(three.by_user_actions > 1.0 && !three.hold());
        // (iii) A global budget of 8 ε that one user action drained.
        let drained = checked(&[
            (1, 0),
            (1, 1),
            (1, 2),
            (1, 3),
            (1, 4),
            (1, 5),
            (1, 6),
            (1, 7),
        ]);
        assert!(drained.drained > 1.0 && !drained.hold());
    }

    /// (iii) A sum that changes by more than the reports of the attacked devices can change.
    #[test]
    fn a_sum_that_changes_too_much_is_noticed() {
        let querier = Querier {
            site: 7,
            a_day: 100,
            batch: 10,
            noise_scale: 1.0,
            max_value: 1,
            most_of_a_device: 3,
            reports: Vec::new(),
            values: Vec::new(),
        };
        let batch = |kept| Batch {
            conversion_site: 7,
            epsilon: 1.0,
            noise_scale: 1.0,
            size: 10,
            full: [10, 0, 0, 0, 0],
            kept: [kept, 0, 0, 0, 0],
            rmsre: 0.0,
            parts: crate::metrics::ErrorParts {
                noise: 0.0,
                bias: 0.0,
            },
            blocked: [0; 5],
        };
        // One device-epoch with three reports, each of which can change by at most 2.
        let mut resilience = checked(&[(1, 0)]);
        resilience.compare(std::slice::from_ref(&querier), &[batch(4)], &[batch(10)]);
        assert!(resilience.hold() && resilience.by_query == 1.0);
        resilience.compare(&[querier], &[batch(3)], &[batch(10)]);
        assert!(!resilience.hold());
    }

    #[test]
    fn shares_over_the_bound_are_over_one() {
        assert_eq!(share(0, 0), 0.0);
        assert!(share(1, 0) > 1.0);
        assert!(share(u64::MAX, u64::MAX - 1) > 1.0);
        assert!(share(u64::MAX - 1, u64::MAX) <= 1.0);
    }
}
