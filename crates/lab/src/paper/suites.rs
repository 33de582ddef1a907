//! The suites of the paper's evaluation: every run of its figures 5 and 6.

use bigbird::{FilterKind, Policy, PolicyError, Profile};
use serde::Deserialize;

use crate::attack::attackers::{Omniscient, Random};
use crate::attack::{Attacker, Strength};
use crate::evaluation::Experiment;

/// The runs behind a figure of the paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suite {
    /// Figure 5: impression-site quotas, without attack and under the random attacker.
    Fig5,
    /// Figure 6a: domain caps under both attackers.
    Fig6a,
    /// Figure 6b: numbers of Sybils.
    Fig6b,
    /// Figure 6c: the popularity of the attacker's sites.
    Fig6c,
}

impl Suite {
    /// Every suite.
    pub const ALL: [Self; 4] = [Self::Fig5, Self::Fig6a, Self::Fig6b, Self::Fig6c];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fig5 => "fig5",
            Self::Fig6a => "fig6a",
            Self::Fig6b => "fig6b",
            Self::Fig6c => "fig6c",
        }
    }
}

/// One run of a suite: its place in the figure, and its experiment.
#[derive(Debug, Clone)]
pub struct Planned {
    /// The suite.
    pub suite: Suite,
    /// The system that is run.
    pub system: EvaluatedSystem,
    /// The value of the parameter that the suite varies. None for systems without this parameter.
    pub x: Option<f64>,
    /// The policy and the attacker.
    pub experiment: Experiment,
}

/// A system that the paper's figures compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EvaluatedSystem {
    /// Querier budgets only.
    CookieMonster,
    /// Querier budgets and a global budget, without quotas.
    GlobalOnly,
    /// Big Bird without impression-site quotas.
    NoImpressionSiteQuota,
    /// Big Bird.
    BigBird,
}

impl EvaluatedSystem {
    /// Its name in figures.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CookieMonster => "Cookie Monster",
            Self::GlobalOnly => "global budget only",
            Self::NoImpressionSiteQuota => "no impression-site quotas",
            Self::BigBird => "Big Bird",
        }
    }

    /// Its colour in figures.
    pub const fn colour(self) -> u8 {
        match self {
            Self::BigBird => 0,
            Self::GlobalOnly => 1,
            Self::CookieMonster => 2,
            Self::NoImpressionSiteQuota => 3,
        }
    }

    fn profile(self) -> Profile {
        match self {
            Self::CookieMonster => Profile::CookieMonster,
            Self::GlobalOnly => Profile::GlobalOnly,
            Self::NoImpressionSiteQuota | Self::BigBird => Profile::BigBird,
        }
    }
}

/// The impression-site quotas of figure 5.
pub const QUOTAS: [f64; 10] = [0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 7.5, 8.0];
/// The domain caps of figure 6a.
pub const CAPS: [u32; 4] = [1, 2, 3, 4];
/// The numbers of Sybils of figure 6b.
pub const SYBILS: [u32; 6] = [5, 10, 25, 50, 75, 100];
/// The first ranks of figure 6c, as the artifact sweeps them.
pub const RANKS_OF_ARTIFACT: [u32; 5] = [1, 2, 3, 4, 5];
/// The first ranks of figure 6c, as the paper's label describes them.
pub const RANKS_OF_LABEL: [u32; 5] = [1, 11, 21, 31, 41];

const RANDOM: &Random = &Random { share: 0.35 };
const ATTACKERS: [&dyn Attacker; 2] = [RANDOM, &Omniscient];

/// The number of sites of each kind that attackers own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owned {
    /// Impression sites.
    pub impression_sites: u32,
    /// Conversion sites.
    pub conversion_sites: u32,
}

/// Every run of some suites, in the order of the paper. A run that several suites share is listed
/// for each of them.
///
/// # Errors
/// If a policy of the paper is invalid, which does not happen.
pub fn plan(suites: &[Suite], owned: Owned) -> Result<Vec<Planned>, PolicyError> {
    let mut runs = Vec::new();
    for &suite in suites {
        let mut planner = Planner {
            suite,
            owned,
            runs: &mut runs,
        };
        match suite {
            Suite::Fig5 => planner.fig5()?,
            Suite::Fig6a => planner.fig6a()?,
            Suite::Fig6b => planner.fig6b()?,
            Suite::Fig6c => planner.fig6c()?,
        }
    }
    Ok(runs)
}

struct Planner<'a> {
    suite: Suite,
    owned: Owned,
    runs: &'a mut Vec<Planned>,
}

/// Differences from the paper's defaults.
#[derive(Debug, Clone, Copy, Default)]
struct Setting {
    quota: Option<f64>,
    cap: Option<u32>,
    sybils: Option<u32>,
    first_rank: Option<u32>,
}

impl Planner<'_> {
    fn fig5(&mut self) -> Result<(), PolicyError> {
        let random: Option<&'static dyn Attacker> = Some(RANDOM);
        for attacker in [None, random] {
            for system in [
                EvaluatedSystem::CookieMonster,
                EvaluatedSystem::GlobalOnly,
                EvaluatedSystem::NoImpressionSiteQuota,
            ] {
                self.push(system, None, attacker, Setting::default())?;
            }
            for quota in QUOTAS {
                let setting = Setting {
                    quota: Some(quota),
                    ..Setting::default()
                };
                self.push(EvaluatedSystem::BigBird, Some(quota), attacker, setting)?;
            }
        }
        Ok(())
    }

    fn fig6a(&mut self) -> Result<(), PolicyError> {
        for attacker in ATTACKERS {
            for system in [EvaluatedSystem::CookieMonster, EvaluatedSystem::GlobalOnly] {
                self.push(system, None, Some(attacker), Setting::default())?;
            }
            for system in [
                EvaluatedSystem::BigBird,
                EvaluatedSystem::NoImpressionSiteQuota,
            ] {
                for cap in CAPS {
                    let setting = Setting {
                        cap: Some(cap),
                        ..Setting::default()
                    };
                    self.push(system, Some(cap.into()), Some(attacker), setting)?;
                }
            }
        }
        Ok(())
    }

    fn fig6b(&mut self) -> Result<(), PolicyError> {
        for attacker in ATTACKERS {
            for sybils in SYBILS {
                let setting = Setting {
                    sybils: Some(sybils),
                    ..Setting::default()
                };
                self.push(
                    EvaluatedSystem::BigBird,
                    Some(sybils.into()),
                    Some(attacker),
                    setting,
                )?;
            }
        }
        Ok(())
    }

    fn fig6c(&mut self) -> Result<(), PolicyError> {
        let mut ranks: Vec<u32> = RANKS_OF_ARTIFACT
            .into_iter()
            .chain(RANKS_OF_LABEL)
            .collect();
        ranks.sort_unstable();
        ranks.dedup();
        for attacker in ATTACKERS {
            for &rank in &ranks {
                let setting = Setting {
                    first_rank: Some(rank),
                    ..Setting::default()
                };
                self.push(
                    EvaluatedSystem::BigBird,
                    Some(rank.into()),
                    Some(attacker),
                    setting,
                )?;
            }
        }
        Ok(())
    }

    fn push(
        &mut self,
        system: EvaluatedSystem,
        x: Option<f64>,
        attacker: Option<&'static dyn Attacker>,
        setting: Setting,
    ) -> Result<(), PolicyError> {
        let policy = policy(system, setting)?;
        let cap = policy.domain_cap().map(std::num::NonZeroU32::get);
        let paper = Strength::of_paper(cap);
        let attack = attacker.map(|attacker| {
            let strength = Strength {
                sybils: setting.sybils.unwrap_or(paper.sybils),
                first_rank: setting.first_rank.unwrap_or(paper.first_rank),
                impression_sites: self.owned.impression_sites,
                conversion_sites: self.owned.conversion_sites,
                ..paper
            };
            (attacker, strength)
        });
        self.runs.push(Planned {
            suite: self.suite,
            system,
            x,
            experiment: Experiment {
                profile: system.profile(),
                policy,
                attack,
            },
        });
        Ok(())
    }
}

fn policy(system: EvaluatedSystem, setting: Setting) -> Result<Policy, PolicyError> {
    let mut policy = system.profile().policy().to_builder();
    if system == EvaluatedSystem::NoImpressionSiteQuota {
        policy = policy.unlimited(FilterKind::ImpressionSiteQuota);
    }
    if let Some(quota) = setting.quota {
        policy = policy.impression_site_quota(quota);
    }
    if let Some(cap) = setting.cap {
        policy = policy.domain_cap(cap);
    }
    policy.build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_paper_has_68_runs_and_we_eight_more() {
        let owned = Owned {
            impression_sites: 10,
            conversion_sites: 10,
        };
        let runs = plan(&Suite::ALL, owned).unwrap_or_default();
        let of = |suite| runs.iter().filter(|run| run.suite == suite).count();
        // Rank 1 is in both sweeps of figure 6c.
        assert_eq!(Suite::ALL.map(of), [26, 20, 12, 18]);
    }
}
