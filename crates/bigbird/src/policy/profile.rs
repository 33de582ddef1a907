//! Profiles: policies with a name.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use thiserror::Error;

use super::options::{
    AllowedQueriers, Arithmetic, ClosedSites, DepletedSites, GlobalCharging, OwnActionEvents,
    SiteCharging,
};
use super::{Capacities, Policy};
use crate::{Capacity, MicroEpsilon};

/// A named policy: Big Bird, the draft, or a baseline of the paper's evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Profile {
    /// The paper's Alg. 2 with the defaults of its evaluation.
    #[default]
    BigBird,
    /// The W3C draft of May 2026. It has no conversion-site quota, activation instead of a domain
    /// cap, and arithmetic of its own.
    W3cDraft,
    /// Querier budgets only. It is unsound once there are several queriers, even if they do not
    /// collude.
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

    /// The name on the command line and in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BigBird => "big-bird",
            Self::W3cDraft => "w3c-draft",
            Self::CookieMonster => "cookie-monster",
            Self::GlobalOnly => "global-only",
        }
    }

    /// A description in one line.
    pub const fn summary(self) -> &'static str {
        match self {
            Self::BigBird => "querier and global budgets, protected by quotas and the domain cap",
            Self::W3cDraft => "the W3C draft of May 2026, with its arithmetic",
            Self::CookieMonster => {
                "querier budgets only; unsound with several queriers, even honest ones"
            }
            Self::GlobalOnly => "querier and global budgets without quotas; anyone can drain them",
        }
    }

    /// The policy of this profile.
    pub const fn policy(self) -> Policy {
        const fn finite(epsilons: u64) -> Capacity {
            Capacity::Finite(MicroEpsilon::new(epsilons * crate::epsilon::MICRO))
        }
        let big_bird = Policy {
            capacities: Capacities {
                querier_budget: finite(1),
                global_budget: finite(8),
                impression_site_quota: finite(2),
                conversion_site_quota: finite(1),
                user_action_budget: Capacity::Unlimited,
            },
            domain_cap: NonZeroU32::new(2),
            arithmetic: Arithmetic::Exact,
            global_charging: GlobalCharging::Individual,
            site_charging: SiteCharging::Full,
            depleted_sites: DepletedSites::DropEpoch,
            own_action_events: OwnActionEvents::Excluded,
            closed_sites: ClosedSites::HideEpochs,
            allowed_queriers: AllowedQueriers::ConversionSiteOrIntermediary,
        };
        let unlimited = Capacity::Unlimited;
        match self {
            Self::BigBird => big_bird,
            Self::W3cDraft => Policy {
                capacities: Capacities {
                    impression_site_quota: finite(4),
                    conversion_site_quota: unlimited,
                    ..big_bird.capacities
                },
                domain_cap: None,
                arithmetic: Arithmetic::Double,
                global_charging: GlobalCharging::WorstCase,
                own_action_events: OwnActionEvents::Included,
                closed_sites: ClosedSites::SpendQuerierBudget,
                allowed_queriers: AllowedQueriers::ConversionSiteOnly,
                ..big_bird
            },
            Self::GlobalOnly => Policy {
                capacities: Capacities {
                    impression_site_quota: unlimited,
                    conversion_site_quota: unlimited,
                    ..big_bird.capacities
                },
                domain_cap: None,
                ..big_bird
            },
            Self::CookieMonster => Policy {
                capacities: Capacities {
                    global_budget: unlimited,
                    impression_site_quota: unlimited,
                    conversion_site_quota: unlimited,
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

/// A name that is not the name of a [`Profile`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "unknown profile `{name}`; use one of: {}",
    Profile::ALL.map(Profile::name).join(", ")
)]
pub struct UnknownProfile {
    name: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rules in which the draft differs from the paper (design of the profiles).
    #[test]
    fn profiles_have_their_rules() {
        let draft = Profile::W3cDraft.policy();
        assert_eq!(draft.own_action_events(), OwnActionEvents::Included);
        assert_eq!(draft.closed_sites(), ClosedSites::SpendQuerierBudget);
        assert_eq!(
            draft.allowed_queriers(),
            AllowedQueriers::ConversionSiteOnly
        );
        assert_eq!(draft.arithmetic(), Arithmetic::Double);
        assert_eq!(draft.global_charging(), GlobalCharging::WorstCase);
        assert_eq!(draft.domain_cap(), None);
        assert!(!draft.reads_user_actions());
        for profile in [
            Profile::BigBird,
            Profile::CookieMonster,
            Profile::GlobalOnly,
        ] {
            let policy = profile.policy();
            assert_eq!(policy.own_action_events(), OwnActionEvents::Excluded);
            assert_eq!(policy.closed_sites(), ClosedSites::HideEpochs);
            assert_eq!(
                policy.allowed_queriers(),
                AllowedQueriers::ConversionSiteOrIntermediary
            );
            assert!(policy.reads_user_actions(), "{profile}");
            assert_eq!(policy.arithmetic(), Arithmetic::Exact);
            assert_eq!(policy.global_charging(), GlobalCharging::Individual);
            assert_eq!(policy.site_charging(), SiteCharging::Full);
            assert_eq!(policy.depleted_sites(), DepletedSites::DropEpoch);
            assert_eq!(policy.domain_cap().is_some(), profile == Profile::BigBird);
        }
    }

    #[test]
    fn profiles_have_names() {
        for profile in Profile::ALL {
            assert_eq!(profile.name().parse(), Ok(profile));
        }
        assert_eq!(
            "bigbird".parse::<Profile>().unwrap_err().to_string(),
            "unknown profile `bigbird`; \
             use one of: big-bird, w3c-draft, cookie-monster, global-only"
        );
    }
}
