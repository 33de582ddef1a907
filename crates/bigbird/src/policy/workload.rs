//! The paper's closed form: it computes, from what normal devices do, the capacities that serve
//! them (section "Quota configuration").

use std::fmt;
use std::num::NonZeroU32;

use super::builder::amount;
use super::{Capacities, Policy, PolicyError};
use crate::epsilon::MICRO;
use crate::{Capacity, FilterKind, MicroEpsilon};

/// The activity of a normal device in an epoch: the paper's workload parameters N, M, n and r.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkloadParameters {
    conversion_sites: NonZeroU32,
    impression_sites: NonZeroU32,
    fan_out: NonZeroU32,
    /// (1 + r) in millionths.
    with_intermediaries: u64,
}

impl WorkloadParameters {
    /// The parameters of one epoch, each an upper bound:
    ///
    /// * `conversion_sites` (N): sites that ask for reports that cost something;
    /// * `impression_sites` (M): sites with impressions in those reports;
    /// * `fan_out` (n): conversion sites that ask about one impression site;
    /// * `intermediary_share` (r): what intermediaries spend on one conversion site, as a share of
    ///   a querier budget.
    ///
    /// # Errors
    /// If a count is 0, or the share is negative or not finite.
    pub fn new(
        conversion_sites: u32,
        impression_sites: u32,
        fan_out: u32,
        intermediary_share: f64,
    ) -> Result<Self, PolicyError> {
        let at_least_one =
            |count, parameter| NonZeroU32::new(count).ok_or(PolicyError::Workload { parameter });
        let share = MicroEpsilon::from_epsilon(intermediary_share).map_err(|_| {
            PolicyError::IntermediaryShare {
                got: intermediary_share,
            }
        })?;
        Ok(Self {
            conversion_sites: at_least_one(conversion_sites, "conversion site (N)")?,
            impression_sites: at_least_one(impression_sites, "impression site (M)")?,
            fan_out: at_least_one(fan_out, "conversion site per impression site (n)")?,
            with_intermediaries: share.get().saturating_add(MICRO),
        })
    }

    /// (1 + r) times an amount, rounded up.
    fn with_intermediaries(&self, amount: MicroEpsilon) -> MicroEpsilon {
        let product = u128::from(amount.get()) * u128::from(self.with_intermediaries);
        let rounded_up = product.div_ceil(u128::from(MICRO));
        MicroEpsilon::new(u64::try_from(rounded_up).unwrap_or(u64::MAX))
    }
}

impl Policy {
    /// The smallest capacities that serve a workload: the paper's closed form (table "Big Bird
    /// budget configurations"), for a given querier budget in epsilons and a given domain cap.
    ///
    /// # Errors
    /// If `querier_budget` is not an amount of epsilon, a capacity is too large to count, or
    /// `domain_cap` is 0.
    pub fn for_workload(
        querier_budget: f64,
        workload: &WorkloadParameters,
        domain_cap: u32,
    ) -> Result<Self, PolicyError> {
        let querier_budget = amount(FilterKind::QuerierBudget, querier_budget)?;
        let conversion_site_quota = workload.with_intermediaries(querier_budget);
        let times = |factor: u64| {
            let amount = conversion_site_quota.get().checked_mul(factor);
            let amount = amount.ok_or(PolicyError::TooLarge)?;
            Ok(Capacity::Finite(MicroEpsilon::new(amount)))
        };
        let fan_out = u64::from(workload.fan_out.get());
        let global = u64::from(workload.conversion_sites.get())
            .max(fan_out * u64::from(workload.impression_sites.get()));
        let capacities = Capacities {
            querier_budget: Capacity::Finite(querier_budget),
            global_budget: times(global)?,
            impression_site_quota: times(fan_out)?,
            conversion_site_quota: times(1)?,
            user_action_budget: Capacity::Unlimited,
        };
        Self::builder()
            .capacities(capacities)
            .domain_cap(domain_cap)
            .build()
    }

    /// The workload constraints (section "Quota configuration") that these capacities do not meet.
    /// They are warnings: such a policy is as private as any other, but honest sites may find its
    /// budgets empty.
    ///
    /// Without a conversion-site quota, a conversion site counts with the amount it would spend: (1
    /// + r) querier budgets. A quota that does not exist is never too small.
    pub fn violations(&self, workload: &WorkloadParameters) -> Vec<Violation> {
        let Capacities {
            querier_budget,
            global_budget,
            impression_site_quota,
            conversion_site_quota,
            ..
        } = *self.capacities();
        let demand = querier_budget
            .amount()
            .map(|amount| workload.with_intermediaries(amount));
        let of_conversion_site = conversion_site_quota.amount().or(demand);
        let times = |amount: Option<MicroEpsilon>, factor: NonZeroU32| {
            amount.map(|amount| amount.saturating_mul(u64::from(factor.get())))
        };
        [
            (Constraint::Intermediaries, conversion_site_quota, demand),
            (
                Constraint::ConversionSites,
                global_budget,
                times(of_conversion_site, workload.conversion_sites),
            ),
            (
                Constraint::ImpressionSites,
                global_budget,
                times(impression_site_quota.amount(), workload.impression_sites),
            ),
            (
                Constraint::FanOut,
                impression_site_quota,
                times(of_conversion_site, workload.fan_out),
            ),
        ]
        .into_iter()
        .filter_map(|(constraint, has, needs)| {
            let violation = Violation {
                constraint,
                has: has.amount()?,
                needs: needs?,
            };
            (violation.has < violation.needs).then_some(violation)
        })
        .collect()
    }
}

/// The paper's four constraints on capacities, (i) to (iv).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Constraint {
    /// (i) A conversion site can spend its whole querier budget and its intermediaries theirs:
    /// conversion-site quota ≥ (1 + r) · querier budget.
    Intermediaries,
    /// (ii) N conversion sites do not drain the global budget:
    /// global budget ≥ N · conversion-site quota.
    ConversionSites,
    /// (iii) M impression sites do not drain the global budget:
    /// global budget ≥ M · impression-site quota.
    ImpressionSites,
    /// (iv) n conversion sites can measure one impression site:
    /// impression-site quota ≥ n · conversion-site quota.
    FanOut,
}

/// A constraint that a policy does not meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Violation {
    /// The constraint.
    pub constraint: Constraint,
    /// The capacity that is too small.
    pub has: MicroEpsilon,
    /// The smallest sufficient capacity.
    pub needs: MicroEpsilon,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, formula) = match self.constraint {
            Constraint::Intermediaries => ("(i) conversion-site quota", "(1 + r) · querier budget"),
            Constraint::ConversionSites => ("(ii) global budget", "N · conversion-site quota"),
            Constraint::ImpressionSites => ("(iii) global budget", "M · impression-site quota"),
            Constraint::FanOut => ("(iv) impression-site quota", "n · conversion-site quota"),
        };
        write!(f, "{what} {} is below {formula} = {}", self.has, self.needs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Profile;

    fn epsilons(policy: &Policy) -> [f64; 4] {
        let capacities = policy.capacities();
        [
            capacities.querier_budget,
            capacities.global_budget,
            capacities.impression_site_quota,
            capacities.conversion_site_quota,
        ]
        .map(|capacity| {
            capacity
                .amount()
                .map_or(f64::INFINITY, MicroEpsilon::to_epsilon)
        })
    }

    /// The paper's table of quotas by percentile of the workload (querier 1, r 0).
    #[test]
    fn the_closed_form_gives_the_papers_quota_table() {
        let rows = [
            ((2, 1, 2), 2.0, 2.0),
            ((4, 2, 2), 4.0, 2.0),
            ((4, 2, 4), 8.0, 4.0),
            ((4, 3, 4), 12.0, 4.0),
            ((6, 3, 4), 12.0, 4.0),
            ((8, 4, 8), 32.0, 8.0),
        ];
        for ((n_conversion, m_impression, fan_out), global, impression_site) in rows {
            let workload =
                WorkloadParameters::new(n_conversion, m_impression, fan_out, 0.0).unwrap();
            let policy = Policy::for_workload(1.0, &workload, 2).unwrap();
            assert_eq!(epsilons(&policy), [1.0, global, impression_site, 1.0]);
            assert_eq!(policy.violations(&workload), []);
        }
    }

    #[test]
    fn intermediaries_raise_every_quota() {
        let workload = WorkloadParameters::new(4, 2, 4, 0.5).unwrap();
        let policy = Policy::for_workload(1.0, &workload, 3).unwrap();
        assert_eq!(epsilons(&policy), [1.0, 12.0, 6.0, 1.5]);
        assert_eq!(policy.domain_cap(), NonZeroU32::new(3));
        let thirds = WorkloadParameters::new(1, 1, 1, 1.0 / 3.0).unwrap();
        let policy = Policy::for_workload(0.1, &thirds, 3).unwrap();
        assert_eq!(
            policy.capacities().conversion_site_quota.to_string(),
            "0.133334"
        );
        assert_eq!(policy.violations(&thirds), []);
    }

    #[test]
    fn every_constraint_that_does_not_hold_is_listed() {
        let workload = WorkloadParameters::new(4, 2, 3, 0.5).unwrap();
        let policy = Policy::builder()
            .querier_budget(1.0)
            .global_budget(3.5)
            .impression_site_quota(2.0)
            .conversion_site_quota(1.0)
            .build()
            .unwrap();
        let lines: Vec<_> = policy
            .violations(&workload)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            lines,
            [
                "(i) conversion-site quota 1 is below (1 + r) · querier budget = 1.5",
                "(ii) global budget 3.5 is below N · conversion-site quota = 4",
                "(iii) global budget 3.5 is below M · impression-site quota = 4",
                "(iv) impression-site quota 2 is below n · conversion-site quota = 3",
            ]
        );
    }

    #[test]
    fn what_does_not_exist_is_never_too_small() {
        let one = WorkloadParameters::new(1, 1, 1, 0.0).unwrap();
        let many = WorkloadParameters::new(9, 9, 9, 0.0).unwrap();
        let violated = |profile: Profile, workload| -> Vec<Constraint> {
            let violations = profile.policy().violations(workload);
            violations
                .iter()
                .map(|violation| violation.constraint)
                .collect()
        };
        for profile in Profile::ALL {
            assert_eq!(violated(profile, &one), [], "{profile}");
        }
        use Constraint::{ConversionSites, FanOut, ImpressionSites};
        assert_eq!(violated(Profile::CookieMonster, &many), []);
        assert_eq!(violated(Profile::GlobalOnly, &many), [ConversionSites]);
        let all = [ConversionSites, ImpressionSites, FanOut];
        assert_eq!(violated(Profile::W3cDraft, &many), all);
    }

    #[test]
    fn wrong_parameters_are_refused() {
        assert!(WorkloadParameters::new(0, 1, 1, 0.0).is_err());
        assert!(WorkloadParameters::new(1, 1, 1, -0.5).is_err());
        assert!(WorkloadParameters::new(1, 1, 1, f64::NAN).is_err());
        let workload = WorkloadParameters::new(1, 1, 1, 0.0).unwrap();
        assert!(Policy::for_workload(1.0, &workload, 0).is_err());
        assert!(Policy::for_workload(f64::NAN, &workload, 1).is_err());
        let large = WorkloadParameters::new(4, 1, 1, 0.0).unwrap();
        assert_eq!(
            Policy::for_workload(1e13, &large, 1),
            Err(PolicyError::TooLarge)
        );
    }
}
