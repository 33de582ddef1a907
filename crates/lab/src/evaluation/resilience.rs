//! The resilience of a run: the shares of the bounds of the paper's theorem that an attack reached.
//! Every device and every batch of an attacked run is checked.

use bigbird::MicroEpsilon;

use super::metrics::Batch;
use super::querier::Querier;
use crate::attack::bounds::{Bounds, least};
use crate::attack::tally::AttackTally;

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
    /// What was taken from the quota of an honest impression site, as a share of what the attacker
    /// paid for it: the largest over all of those. See [`Bound::Payment`].
    pub by_payment: f64,
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
            by_payment: 0.0,
            drained_budgets: 0,
            touched: 0,
            touched_by_querier: vec![0; queriers],
        }
    }

    /// True if every bound held.
    pub fn hold(&self) -> bool {
        self.broken().next().is_none()
    }

    /// The share of a bound that was reached.
    pub fn share(&self, bound: Bound) -> f64 {
        match bound {
            Bound::Quotas => self.by_quotas,
            Bound::UserActions => self.by_user_actions,
            Bound::Drained => self.drained,
            Bound::Query => self.by_query,
            Bound::Payment => self.by_payment,
        }
    }

    /// The bounds that were broken.
    pub fn broken(&self) -> impl Iterator<Item = Bound> {
        let exceeded = |bound: &Bound| self.share(*bound) > 1.0;
        Bound::ALL.into_iter().filter(exceeded)
    }

    /// Adds what another thread saw. The order of threads does not matter.
    pub(crate) fn add(&mut self, other: &Self) {
        self.by_quotas = self.by_quotas.max(other.by_quotas);
        self.by_user_actions = self.by_user_actions.max(other.by_user_actions);
        self.drained = self.drained.max(other.drained);
        self.by_payment = self.by_payment.max(other.by_payment);
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

    /// Checks the bounds on this device, which reports to some queriers.
    pub(crate) fn check(&mut self, tally: &AttackTally, queriers: impl Iterator<Item = usize>) {
        let bounds = self.bounds;
        let actions = tally.actions();
        let (mut touched, mut drained) = (0, 0);
        for of_epoch in tally.epochs() {
            touched += u64::from(of_epoch.touched);
            if bounds.pays {
                let on_sites: u64 = of_epoch.conversion_sites.iter().map(|(_, it)| it).sum();
                let paid = of_epoch.attacker.max(on_sites);
                let honest = of_epoch.impression_sites.iter();
                let honest = honest.filter(|(site, _)| !tally.owns(*site));
                let most = honest.map(|(_, taken)| *taken).max().unwrap_or(0);
                self.by_payment = self.by_payment.max(share(most, paid));
            }
            let tally = of_epoch;
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
                self.by_quotas = self.by_quotas.max(taken);
            }
            if let Some(each) = bounds.by_user_action {
                let taken = share(tally.attacker, each.get().saturating_mul(tally.actions));
                self.by_user_actions = self.by_user_actions.max(taken);
            }
            drained += u64::from(bounds.global.is_some_and(|global| tally.attacker >= global));
        }
        if let Some(each) = bounds.actions_to_drain {
            let taken = share(drained, u64::from(actions) / each.max(1));
            self.drained = self.drained.max(taken);
        }
        self.drained_budgets += drained;
        self.touched += touched;
        if touched > 0 {
            for querier in queriers {
                self.touched_by_querier[querier] += touched;
            }
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
                .zip(&without.kept)
                .map(|(with, without)| with.abs_diff(*without))
                .sum();
            let sensitivity = 2 * u64::from(querier.max_value);
            let reports = u64::from(querier.most_of_a_device) * self.touched_by_querier[number];
            self.by_query = self
                .by_query
                .max(share(change, reports.saturating_mul(sensitivity)));
        }
    }
}

/// A bound on what an attacker can do. The first four are the parts of the paper's theorem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// (i) The quotas that it uses bound what it takes from a global budget.
    Quotas,
    /// (ii) Its user actions bound the same amount.
    UserActions,
    /// (iii) Its user actions bound how many global budgets it drains.
    Drained,
    /// (iii) The device-epochs that it touched bound how much a sum of reports changes.
    Query,
    /// What it pays bounds what it takes from the quota of one honest impression site. So emptying
    /// such a quota needs the quotas of several conversion sites, as the paper claims. The paper's
    /// literal site charging breaks this in windows of one epoch
    /// ([`FreeDenial`](crate::attack::attackers::FreeDenial)).
    Payment,
}

impl Bound {
    /// All bounds.
    pub const ALL: [Self; 5] = [
        Self::Quotas,
        Self::UserActions,
        Self::Drained,
        Self::Query,
        Self::Payment,
    ];
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Quotas => {
                "(i) the attacker took more from a global budget than the quotas it used allow"
            }
            Self::UserActions => {
                "(ii) the attacker took more from a global budget than its user actions allow"
            }
            Self::Drained => {
                "(iii) the attacker drained more global budgets than its user actions allow"
            }
            Self::Query => {
                "(iii) a sum of reports changed by more than the touched device-epochs allow"
            }
            Self::Payment => {
                "the attacker took more from the quota of an honest impression site than it paid, \
                 which the paper's literal site charging allows"
            }
        })
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
    use bigbird::{Charge, EpochIndex, Filter, Profile, SiteId, UserAction};

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
        let mut tally = AttackTally::new(SYBIL);
        tally.begin();
        let mut last = None;
        for (action, sybil) in reports {
            if last != Some(action) {
                tally.action();
                last = Some(action);
            }
            tally.attacked(UserAction(*action), &charges(3, *sybil));
        }
        resilience.check(&tally, [0].into_iter());
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

    /// Only the paper's literal site charging would allow the second charge.
    #[test]
    fn a_quota_that_is_emptied_for_free_is_noticed() {
        let honest = Filter::ImpressionSiteQuota(SiteId(5));
        let taken = |paid: &[Filter]| {
            let mut resilience = resilience();
            let mut tally = AttackTally::new(SYBIL);
            tally.begin();
            tally.action();
            let charge = |filter: &Filter| Charge {
                epoch: EpochIndex(3),
                filter: *filter,
                amount: MicroEpsilon::new(1_000_000),
            };
            let charges: Vec<Charge> = paid.iter().map(charge).collect();
            tally.attacked(UserAction(1), &charges);
            resilience.check(&tally, std::iter::empty());
            resilience.broken().collect::<Vec<_>>()
        };
        let conversion_site = Filter::ConversionSiteQuota(SYBIL);
        assert_eq!(taken(&[honest, conversion_site, Filter::GlobalBudget]), []);
        assert_eq!(taken(&[honest]), [Bound::Payment]);
        assert_eq!(taken(&[Filter::ImpressionSiteQuota(SYBIL)]), []);
    }

    /// (iii) A sum that changes by more than the reports of the attacked devices can change.
    #[test]
    fn a_sum_that_changes_too_much_is_noticed() {
        let querier = Querier {
            site: 7,
            conversions: 10,
            a_day: 100,
            batch: 10,
            noise_scale: 1.0,
            max_value: 1,
            most_of_a_device: 3,
        };
        let batch = |kept| Batch {
            conversion_site: 7,
            epsilon: 1.0,
            noise_scale: 1.0,
            size: 10,
            full: vec![10, 0, 0, 0, 0],
            kept: vec![kept, 0, 0, 0, 0],
            rmsre: 0.0,
            parts: super::super::metrics::ErrorParts {
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
