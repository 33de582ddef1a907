//! Experiments: a policy with or without an attacker.

use std::sync::Arc;

use bigbird::{FilterKind, MicroEpsilon, Policy, Profile};

use super::laboratory::{LabError, Laboratory, RunResult};
use crate::attack::{Attack, Attacker, Strength};

/// The policy and the attacker of a run.
#[derive(Clone)]
pub struct Experiment {
    /// The profile that the policy comes from.
    pub profile: Profile,
    /// The policy of every device.
    pub policy: Policy,
    /// The attacker and its strength, or none.
    pub attack: Option<(&'static dyn Attacker, Strength)>,
}

impl std::fmt::Debug for Experiment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Experiment")
            .field("profile", &self.profile)
            .field("policy", &self.policy)
            .field("attacker", &self.attacker())
            .field("strength", &self.strength())
            .finish()
    }
}

impl PartialEq for Experiment {
    fn eq(&self, other: &Self) -> bool {
        self.policy == other.policy
            && self.attacker() == other.attacker()
            && self.strength() == other.strength()
    }
}

impl Experiment {
    /// The name of the attacker, or `none`.
    pub fn attacker(&self) -> &'static str {
        self.attack.map_or("none", |(attacker, _)| attacker.name())
    }

    /// The strength of the attacker, if there is one.
    pub fn strength(&self) -> Option<Strength> {
        self.attack.map(|(_, strength)| strength)
    }

    /// A capacity in ε. None if it is unlimited.
    pub fn capacity(&self, kind: FilterKind) -> Option<f64> {
        let capacity = self.policy.capacities().of(kind);
        capacity.amount().map(MicroEpsilon::to_epsilon)
    }

    /// The domain cap, if the policy has one.
    pub fn domain_cap(&self) -> Option<u32> {
        self.policy.domain_cap().map(std::num::NonZeroU32::get)
    }

    /// Runs the experiment. The seed decides the attacker's random choices.
    ///
    /// # Errors
    /// If a part of the workload is on disk and cannot be read.
    pub fn run(&self, laboratory: &Laboratory<'_>, seed: u64) -> Result<Arc<RunResult>, LabError> {
        let attack = self.attack.map(|(attacker, strength)| Attack {
            attacker,
            strength,
            seed,
        });
        laboratory.run(&self.policy, attack)
    }
}
