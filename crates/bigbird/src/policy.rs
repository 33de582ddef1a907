//! Policies: the capacities, the cap and the charging rules of a device.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use thiserror::Error;

use crate::{Capacity, EpochIndex, EpsilonError, FilterKind, MicroEpsilon};

/// The capacity of each kind of filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub struct Capacities {
    /// Of a querier budget.
    #[cfg_attr(feature = "serde", serde(rename = "querierBudget"))]
    pub querier: Capacity,
    /// Of the global budget.
    #[cfg_attr(feature = "serde", serde(rename = "globalBudget"))]
    pub global: Capacity,
    /// Of an impression-site quota.
    #[cfg_attr(feature = "serde", serde(rename = "impressionSiteQuota"))]
    pub impression_site: Capacity,
    /// Of a conversion-site quota.
    #[cfg_attr(feature = "serde", serde(rename = "conversionSiteQuota"))]
    pub conversion_site: Capacity,
    /// Of a user-action budget; unlimited, that is, absent, in every profile.
    #[cfg_attr(feature = "serde", serde(rename = "userActionBudget"))]
    pub user_action: Capacity,
}

impl Capacities {
    /// The capacity of the filters of a kind.
    pub const fn of(&self, kind: FilterKind) -> Capacity {
        match kind {
            FilterKind::Querier => self.querier,
            FilterKind::Global => self.global,
            FilterKind::ImpressionSite => self.impression_site,
            FilterKind::ConversionSite => self.conversion_site,
            FilterKind::UserAction => self.user_action,
        }
    }

    fn of_mut(&mut self, kind: FilterKind) -> &mut Capacity {
        match kind {
            FilterKind::Querier => &mut self.querier,
            FilterKind::Global => &mut self.global,
            FilterKind::ImpressionSite => &mut self.impression_site,
            FilterKind::ConversionSite => &mut self.conversion_site,
            FilterKind::UserAction => &mut self.user_action,
        }
    }
}

/// How a loss is computed from a sensitivity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum Arithmetic {
    /// In integers: ⌈ε_µ · sensitivity / scale⌉.
    Exact,
    /// In doubles, in the order of the draft's steps, so that implementations of the draft agree.
    Double,
}

/// What the global budget pays for a report over a window of one epoch. Over several epochs the
/// loss is the worst case anyway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum GlobalCharging {
    /// What the report reveals of this device: its individual sensitivity (the paper).
    Individual,
    /// What it could reveal at worst (the draft).
    WorstCase,
}

/// What each relevant impression site's quota pays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum SiteCharging {
    /// What the epoch pays in a window of one epoch; the sensitivity to that site's impressions
    /// over several.
    ///
    /// Here we depart from the paper ([`Paper`](Self::Paper)): what costs its sender nothing takes
    /// nothing from any publisher.
    #[default]
    Full,
    /// The paper's literal rule (`EpochImpSiteBudget`): as [`Full`](Self::Full), but in a window of
    /// one epoch with several relevant sites each pays the sensitivity to its impressions, however
    /// little the epoch pays. One request whose credit all falls outside its histogram then costs
    /// its sender nothing and empties the quota of every relevant publisher, which contradicts the
    /// paper's own claim that this takes n conversion sites. For comparison.
    Paper,
    /// An equal part of what the global budget pays, rounded up. The paper names it as admissible
    /// (after the lemma on allocation consistency): sites pay less, and M sites that share every
    /// report can help consume as much as before.
    Uniform,
}

impl SiteCharging {
    /// Every rule, the default first.
    pub const ALL: [Self; 3] = [Self::Full, Self::Paper, Self::Uniform];

    /// Its name on the command line and in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Paper => "paper",
            Self::Uniform => "uniform",
        }
    }
}

impl fmt::Display for SiteCharging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for SiteCharging {
    type Err = UnknownSiteCharging;

    fn from_str(name: &str) -> Result<Self, UnknownSiteCharging> {
        let found = Self::ALL.into_iter().find(|rule| rule.name() == name);
        found.ok_or_else(|| UnknownSiteCharging(name.to_owned()))
    }
}

/// A name that is not the name of a [`SiteCharging`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("unknown site charging `{0}`; use one of: full, paper, uniform")]
pub struct UnknownSiteCharging(String);

/// What happens to an epoch in which the quota of a relevant impression site is depleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum DepletedSites {
    /// The epoch is dropped (the paper): an attacker must choose which impressions to name.
    DropEpoch,
    /// The impressions of the sites that cannot pay are dropped and all losses computed anew,
    /// until every site that is left can pay. Sound, because what is kept depends on this epoch
    /// alone and pays for itself; kinder to honest requests and weaker against attackers.
    DropSite,
}

/// The rules of a device: how much each filter lets through, how many sites a user action may
/// involve, and how losses are computed. Valid by construction.
///
/// ```
/// use bigbird::{Policy, Profile};
///
/// let default = Profile::BigBird.policy();
/// let stricter = Policy::builder().impression_site(1.5).domain_cap(1).build()?;
/// assert!(stricter.capacities().impression_site < default.capacities().impression_site);
/// # Ok::<(), bigbird::PolicyError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub struct Policy {
    capacities: Capacities,
    domain_cap: Option<NonZeroU32>,
    arithmetic: Arithmetic,
    global_charging: GlobalCharging,
    site_charging: SiteCharging,
    depleted_sites: DepletedSites,
    matches_own_action: bool,
}

impl Policy {
    /// A builder that starts from the `big-bird` profile.
    pub fn builder() -> PolicyBuilder {
        Profile::BigBird.policy().to_builder()
    }

    /// A builder that starts from this policy.
    pub fn to_builder(&self) -> PolicyBuilder {
        PolicyBuilder {
            policy: self.clone(),
            error: None,
        }
    }

    /// The smallest capacities that serve a workload: the paper's closed form (table "Big Bird
    /// budget configurations"), with `querier` epsilons for each querier and at most `cap` sites
    /// for each user action.
    ///
    /// # Errors
    /// If `querier` is no amount of epsilon, a capacity is too large to count, or `cap` is 0.
    pub fn from_workload(querier: f64, workload: &Workload, cap: u32) -> Result<Self, PolicyError> {
        let querier = amount(FilterKind::Querier, querier)?;
        let conversion_site = workload.with_intermediaries(querier);
        let times = |factor: u64| {
            let amount = conversion_site.get().checked_mul(factor);
            let amount = amount.ok_or(PolicyError::TooLarge)?;
            Ok(Capacity::Finite(MicroEpsilon::new(amount)))
        };
        let fan_out = u64::from(workload.fan_out.get());
        let global = u64::from(workload.conversion_sites.get())
            .max(fan_out * u64::from(workload.impression_sites.get()));
        let capacities = Capacities {
            querier: Capacity::Finite(querier),
            global: times(global)?,
            impression_site: times(fan_out)?,
            conversion_site: times(1)?,
            user_action: Capacity::Unlimited,
        };
        Self::builder()
            .capacities(capacities)
            .domain_cap(cap)
            .build()
    }

    /// The capacity of each kind of filter.
    pub const fn capacities(&self) -> &Capacities {
        &self.capacities
    }

    /// How many distinct sites one user action may admit in an epoch (κ).
    pub const fn domain_cap(&self) -> Option<NonZeroU32> {
        self.domain_cap
    }

    /// How losses are computed.
    pub const fn arithmetic(&self) -> Arithmetic {
        self.arithmetic
    }

    /// What the global budget pays over one epoch.
    pub const fn global_charging(&self) -> GlobalCharging {
        self.global_charging
    }

    /// What the impression sites pay.
    pub const fn site_charging(&self) -> SiteCharging {
        self.site_charging
    }

    /// What a depleted impression site does to an epoch.
    pub const fn depleted_sites(&self) -> DepletedSites {
        self.depleted_sites
    }

    /// Whether a request matches events of its own user action. Only the draft's does: it has
    /// activation instead of user-action ids.
    pub const fn matches_own_action(&self) -> bool {
        self.matches_own_action
    }

    /// The workload constraints (section "Quota configuration") that these capacities do not meet.
    /// They are warnings: such a policy is as private as any other, but honest sites may find its
    /// budgets empty.
    ///
    /// Where there is no conversion-site quota, a conversion site counts with what it would spend:
    /// (1 + r) querier budgets. A quota that does not exist is never too small.
    pub fn violations(&self, workload: &Workload) -> Vec<Violation> {
        let Capacities {
            querier,
            global,
            impression_site,
            conversion_site,
            ..
        } = self.capacities;
        let demand = querier
            .amount()
            .map(|amount| workload.with_intermediaries(amount));
        let of_conversion_site = conversion_site.amount().or(demand);
        let times = |amount: Option<MicroEpsilon>, factor: NonZeroU32| {
            amount.map(|amount| amount.saturating_mul(u64::from(factor.get())))
        };
        [
            (Constraint::Intermediaries, conversion_site, demand),
            (
                Constraint::ConversionSites,
                global,
                times(of_conversion_site, workload.conversion_sites),
            ),
            (
                Constraint::ImpressionSites,
                global,
                times(impression_site.amount(), workload.impression_sites),
            ),
            (
                Constraint::FanOut,
                impression_site,
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

/// The policy of each epoch of a device.
///
/// What the proofs need: the policy of an epoch never changes, and an epoch that was pruned stays
/// pruned.
pub trait Policies {
    /// The policy of an epoch; `None` once the epoch was pruned. From then on it pays nothing and
    /// admits nobody: forgetting what was spent must never refund it.
    fn policy(&self, epoch: EpochIndex) -> Option<&Policy>;
}

/// One policy for every epoch, none of which was pruned.
impl Policies for Policy {
    #[inline]
    fn policy(&self, _: EpochIndex) -> Option<&Policy> {
        Some(self)
    }
}

/// One policy for every epoch from `first` on; those before were pruned.
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

/// Builds a [`Policy`]. The first wrong value is reported by [`build`](PolicyBuilder::build).
#[derive(Debug, Clone)]
#[must_use]
pub struct PolicyBuilder {
    policy: Policy,
    error: Option<PolicyError>,
}

impl PolicyBuilder {
    /// The capacity of each querier budget, in epsilons.
    pub fn querier(self, epsilon: f64) -> Self {
        self.capacity(FilterKind::Querier, epsilon)
    }

    /// The capacity of the global budget, in epsilons.
    pub fn global(self, epsilon: f64) -> Self {
        self.capacity(FilterKind::Global, epsilon)
    }

    /// The capacity of each impression-site quota, in epsilons.
    pub fn impression_site(self, epsilon: f64) -> Self {
        self.capacity(FilterKind::ImpressionSite, epsilon)
    }

    /// The capacity of each conversion-site quota, in epsilons.
    pub fn conversion_site(self, epsilon: f64) -> Self {
        self.capacity(FilterKind::ConversionSite, epsilon)
    }

    /// The capacity of each user-action budget, in epsilons: what one user action may cost an
    /// epoch in all. No profile has one.
    pub fn user_action(self, epsilon: f64) -> Self {
        self.capacity(FilterKind::UserAction, epsilon)
    }

    /// The capacity of one kind of filter, in epsilons.
    pub fn capacity(mut self, kind: FilterKind, epsilon: f64) -> Self {
        match amount(kind, epsilon) {
            Ok(amount) => *self.policy.capacities.of_mut(kind) = Capacity::Finite(amount),
            Err(error) => self.error = self.error.or(Some(error)),
        }
        self
    }

    /// No filters of this kind.
    pub fn unlimited(mut self, kind: FilterKind) -> Self {
        *self.policy.capacities.of_mut(kind) = Capacity::Unlimited;
        self
    }

    /// All capacities at once.
    pub fn capacities(mut self, capacities: Capacities) -> Self {
        self.policy.capacities = capacities;
        self
    }

    /// How many distinct sites one user action may admit in an epoch; at least 1.
    pub fn domain_cap(mut self, sites: u32) -> Self {
        match NonZeroU32::new(sites) {
            Some(cap) => self.policy.domain_cap = Some(cap),
            None => self.error = self.error.or(Some(PolicyError::DomainCap)),
        }
        self
    }

    /// No limit on the sites of a user action.
    pub fn no_domain_cap(mut self) -> Self {
        self.policy.domain_cap = None;
        self
    }

    /// How losses are computed.
    pub fn arithmetic(mut self, arithmetic: Arithmetic) -> Self {
        self.policy.arithmetic = arithmetic;
        self
    }

    /// What the global budget pays over one epoch.
    pub fn global_charging(mut self, charging: GlobalCharging) -> Self {
        self.policy.global_charging = charging;
        self
    }

    /// What the impression sites pay.
    pub fn site_charging(mut self, charging: SiteCharging) -> Self {
        self.policy.site_charging = charging;
        self
    }

    /// What a depleted impression site does to an epoch.
    pub fn depleted_sites(mut self, depleted: DepletedSites) -> Self {
        self.policy.depleted_sites = depleted;
        self
    }

    /// The policy.
    ///
    /// # Errors
    /// If a capacity was negative, NaN, infinite or too large, or the cap was 0.
    pub fn build(self) -> Result<Policy, PolicyError> {
        match self.error {
            None => Ok(self.policy),
            Some(error) => Err(error),
        }
    }
}

fn amount(kind: FilterKind, epsilon: f64) -> Result<MicroEpsilon, PolicyError> {
    match Capacity::finite(epsilon) {
        Ok(capacity) => Ok(capacity.amount().unwrap_or_default()),
        Err(source) => Err(PolicyError::Capacity { kind, source }),
    }
}

/// Why there is no such policy.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// A capacity is negative, NaN, infinite or too large.
    #[error("the capacity of the {kind} is invalid: {source}")]
    Capacity {
        /// Which.
        kind: FilterKind,
        /// Why.
        source: EpsilonError,
    },
    /// A capacity computed from a workload is too large.
    #[error(
        "the capacities of a workload must be at most {max}",
        max = u64::MAX / crate::epsilon::MICRO
    )]
    TooLarge,
    /// A domain cap of 0 would admit nothing.
    #[error("the domain cap must be at least 1 site per user action, got 0")]
    DomainCap,
    /// A workload parameter is 0.
    #[error("a workload must have at least 1 {parameter}, got 0")]
    Workload {
        /// Which.
        parameter: &'static str,
    },
    /// The share of intermediaries is no number to multiply a budget with.
    #[error("the intermediaries' share r is invalid: {source}")]
    IntermediaryShare {
        /// Why.
        source: EpsilonError,
    },
}

/// Named policies: Big Bird, the draft, and the baselines of the paper's evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Profile {
    /// The paper's Alg. 2 with the defaults of its evaluation.
    #[default]
    BigBird,
    /// The W3C draft of May 2026: no conversion-site quota, no domain cap (it has activation
    /// instead of user-action ids), its own arithmetic.
    W3cDraft,
    /// Querier budgets only. Unsound once there are several queriers, even if they do not collude.
    CookieMonster,
    /// Querier budgets and the global budget, which anyone can drain.
    GlobalOnly,
}

impl Profile {
    /// Every profile, the default first.
    pub const ALL: [Self; 4] = [
        Self::BigBird,
        Self::W3cDraft,
        Self::CookieMonster,
        Self::GlobalOnly,
    ];

    /// Its name on the command line and in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BigBird => "big-bird",
            Self::W3cDraft => "w3c-draft",
            Self::CookieMonster => "cookie-monster",
            Self::GlobalOnly => "global-only",
        }
    }

    /// What it is, in a line.
    pub const fn summary(self) -> &'static str {
        match self {
            Self::BigBird => "querier and global budgets, protected by quotas and the domain cap",
            Self::W3cDraft => "the W3C draft of May 2026, with its arithmetic",
            Self::CookieMonster => {
                "querier budgets only; unsound with several queriers, even honest ones"
            }
            Self::GlobalOnly => "querier and global budgets without quotas; anyone can drain it",
        }
    }

    /// The policy of this name.
    pub const fn policy(self) -> Policy {
        const fn finite(epsilons: u64) -> Capacity {
            Capacity::Finite(MicroEpsilon::new(epsilons * crate::epsilon::MICRO))
        }
        let big_bird = Policy {
            capacities: Capacities {
                querier: finite(1),
                global: finite(8),
                impression_site: finite(2),
                conversion_site: finite(1),
                user_action: Capacity::Unlimited,
            },
            domain_cap: NonZeroU32::new(2),
            arithmetic: Arithmetic::Exact,
            global_charging: GlobalCharging::Individual,
            site_charging: SiteCharging::Full,
            depleted_sites: DepletedSites::DropEpoch,
            matches_own_action: false,
        };
        let unlimited = Capacity::Unlimited;
        match self {
            Self::BigBird => big_bird,
            Self::W3cDraft => Policy {
                capacities: Capacities {
                    impression_site: finite(4),
                    conversion_site: unlimited,
                    ..big_bird.capacities
                },
                domain_cap: None,
                arithmetic: Arithmetic::Double,
                global_charging: GlobalCharging::WorstCase,
                matches_own_action: true,
                ..big_bird
            },
            Self::GlobalOnly => Policy {
                capacities: Capacities {
                    impression_site: unlimited,
                    conversion_site: unlimited,
                    ..big_bird.capacities
                },
                domain_cap: None,
                ..big_bird
            },
            Self::CookieMonster => Policy {
                capacities: Capacities {
                    global: unlimited,
                    impression_site: unlimited,
                    conversion_site: unlimited,
                    ..big_bird.capacities
                },
                domain_cap: None,
                ..big_bird
            },
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Profile {
    type Err = UnknownProfile;

    fn from_str(name: &str) -> Result<Self, UnknownProfile> {
        Self::ALL
            .into_iter()
            .find(|profile| profile.name() == name)
            .ok_or_else(|| UnknownProfile {
                name: name.to_owned(),
            })
    }
}

/// A name that is no profile's.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "there is no profile `{name}`; there are {}",
    Profile::ALL.map(Profile::name).join(", ")
)]
pub struct UnknownProfile {
    name: String,
}

/// What a normal device does in an epoch (the paper's workload parameters).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workload {
    conversion_sites: NonZeroU32,
    impression_sites: NonZeroU32,
    fan_out: NonZeroU32,
    /// (1 + r) in millionths.
    with_intermediaries: u64,
}

impl Workload {
    /// A workload in which, in an epoch, at most `conversion_sites` (N) sites ask for reports that
    /// cost something, at most `impression_sites` (M) sites have impressions in them, at most
    /// `fan_out` (n) conversion sites ask about one impression site, and intermediaries spend at
    /// most a share `intermediaries` (r) of a querier budget on one conversion site.
    ///
    /// # Errors
    /// If a count is 0, or the share is negative or not finite.
    pub fn new(
        conversion_sites: u32,
        impression_sites: u32,
        fan_out: u32,
        intermediaries: f64,
    ) -> Result<Self, PolicyError> {
        let at_least_one =
            |count, parameter| NonZeroU32::new(count).ok_or(PolicyError::Workload { parameter });
        let share = MicroEpsilon::from_epsilon(intermediaries)
            .map_err(|source| PolicyError::IntermediaryShare { source })?;
        Ok(Self {
            conversion_sites: at_least_one(conversion_sites, "conversion site (N)")?,
            impression_sites: at_least_one(impression_sites, "impression site (M)")?,
            fan_out: at_least_one(fan_out, "conversion site per impression site (n)")?,
            with_intermediaries: share.get().saturating_add(crate::epsilon::MICRO),
        })
    }

    /// (1 + r) times an amount, rounded up.
    fn with_intermediaries(&self, amount: MicroEpsilon) -> MicroEpsilon {
        let micro = u128::from(crate::epsilon::MICRO);
        let product = u128::from(amount.get()) * u128::from(self.with_intermediaries);
        MicroEpsilon::new(u64::try_from(product.div_ceil(micro)).unwrap_or(u64::MAX))
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
    /// Which.
    pub constraint: Constraint,
    /// The capacity that is too small.
    pub has: MicroEpsilon,
    /// What it would have to be.
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

    fn epsilons(policy: &Policy) -> [f64; 4] {
        let Capacities {
            querier,
            global,
            impression_site,
            conversion_site,
            ..
        } = *policy.capacities();
        [querier, global, impression_site, conversion_site].map(|capacity| {
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
            let workload = Workload::new(n_conversion, m_impression, fan_out, 0.0).unwrap();
            let policy = Policy::from_workload(1.0, &workload, 2).unwrap();
            assert_eq!(epsilons(&policy), [1.0, global, impression_site, 1.0]);
            assert_eq!(policy.violations(&workload), []);
        }
    }

    #[test]
    fn intermediaries_raise_every_quota() {
        let workload = Workload::new(4, 2, 4, 0.5).unwrap();
        let policy = Policy::from_workload(1.0, &workload, 3).unwrap();
        assert_eq!(epsilons(&policy), [1.0, 12.0, 6.0, 1.5]);
        assert_eq!(policy.domain_cap(), NonZeroU32::new(3));
        let thirds = Workload::new(1, 1, 1, 1.0 / 3.0).unwrap();
        let policy = Policy::from_workload(0.1, &thirds, 3).unwrap();
        assert_eq!(policy.capacities().conversion_site.to_string(), "0.133334");
        assert_eq!(policy.violations(&thirds), []);
    }

    #[test]
    fn every_constraint_that_does_not_hold_is_listed() {
        let workload = Workload::new(4, 2, 3, 0.5).unwrap();
        let policy = Policy::builder()
            .querier(1.0)
            .global(3.5)
            .impression_site(2.0)
            .conversion_site(1.0)
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
        let one = Workload::new(1, 1, 1, 0.0).unwrap();
        let many = Workload::new(9, 9, 9, 0.0).unwrap();
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

    /// What sets the draft's rules apart from the paper's (design of the profiles).
    #[test]
    fn profiles_have_their_rules() {
        let draft = Profile::W3cDraft.policy();
        assert!(draft.matches_own_action());
        assert_eq!(draft.arithmetic(), Arithmetic::Double);
        assert_eq!(draft.global_charging(), GlobalCharging::WorstCase);
        assert_eq!(draft.domain_cap(), None);
        for profile in [
            Profile::BigBird,
            Profile::CookieMonster,
            Profile::GlobalOnly,
        ] {
            let policy = profile.policy();
            assert!(!policy.matches_own_action(), "{profile}");
            assert_eq!(policy.arithmetic(), Arithmetic::Exact);
            assert_eq!(policy.global_charging(), GlobalCharging::Individual);
            assert_eq!(policy.site_charging(), SiteCharging::Full);
            assert_eq!(policy.depleted_sites(), DepletedSites::DropEpoch);
            assert_eq!(policy.domain_cap().is_some(), profile == Profile::BigBird);
        }
    }

    #[test]
    fn wrong_values_build_nothing() {
        let builder = Policy::builder;
        let refused = [
            builder().querier(-1.0).build(),
            builder().global(f64::NAN).build(),
            builder().impression_site(f64::INFINITY).build(),
            builder().conversion_site(1e300).build(),
            builder().domain_cap(0).build(),
            builder().querier(-1.0).querier(1.0).build(),
        ];
        for refused in refused {
            assert!(refused.is_err());
        }
        assert_eq!(
            builder().global(-2.0).build().unwrap_err().to_string(),
            "the capacity of the global budget is invalid: \
             an amount of epsilon must be in [0, 18446744073709], got -2"
        );
        assert!(Workload::new(0, 1, 1, 0.0).is_err());
        assert!(Workload::new(1, 1, 1, -0.5).is_err());
        assert!(Workload::new(1, 1, 1, f64::NAN).is_err());
        let workload = Workload::new(1, 1, 1, 0.0).unwrap();
        assert!(Policy::from_workload(1.0, &workload, 0).is_err());
        assert!(Policy::from_workload(f64::NAN, &workload, 1).is_err());
        let large = Workload::new(4, 1, 1, 0.0).unwrap();
        assert_eq!(
            Policy::from_workload(1e13, &large, 1),
            Err(PolicyError::TooLarge)
        );
    }

    #[test]
    fn profiles_have_names() {
        for profile in Profile::ALL {
            assert_eq!(profile.name().parse(), Ok(profile));
        }
        assert_eq!(
            "bigbird".parse::<Profile>().unwrap_err().to_string(),
            "there is no profile `bigbird`; \
             there are big-bird, w3c-draft, cookie-monster, global-only"
        );
    }
}
