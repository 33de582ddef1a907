//! Simulations: a workload under a policy and an attacker, and what becomes of honest queriers.

use bigbird::{FilterKind, Policy, PolicyError, Profile};

use crate::attack::{Attacker, Omniscient, Random, Strength};
use crate::metrics::{self, Batch, Noise};
use crate::replay::{Attack, Blocked, Given, Replay};
use crate::workload::{Querier, QuerierOptions, Workload};

/// A workload with what does not depend on a run: its queriers, and what their reports would give
/// without any limit.
#[derive(Debug)]
pub struct Laboratory<'w> {
    workload: &'w Workload,
    queriers: Vec<Querier>,
    options: QuerierOptions,
    full: Vec<Given>,
    threads: usize,
}

/// The days before its own that a conversion looks at, in the paper's evaluation.
const LOOKBACK_EPOCHS: u16 = 1;

impl<'w> Laboratory<'w> {
    /// Prepares a workload.
    ///
    /// # Errors
    /// Never, as long as a policy without limits is valid.
    pub fn new(
        workload: &'w Workload,
        options: QuerierOptions,
        threads: usize,
    ) -> Result<Self, PolicyError> {
        let no_limits = Profile::CookieMonster.policy().to_builder();
        let no_limits = no_limits.unlimited(FilterKind::Querier).build()?;
        let queriers = workload.queriers(&options);
        let full = Replay {
            workload,
            queriers: &queriers,
            policy: &no_limits,
            lookback_epochs: LOOKBACK_EPOCHS,
            threads,
            attack: None,
        }
        .run();
        Ok(Self {
            workload,
            queriers,
            options,
            full,
            threads,
        })
    }

    /// Who measures.
    pub fn queriers(&self) -> &[Querier] {
        &self.queriers
    }

    /// Replays the workload once.
    pub fn run(&self, policy: &Policy, attack: Option<Attack<'_>>, noise: Noise) -> Outcome {
        let kept = Replay {
            workload: self.workload,
            queriers: &self.queriers,
            policy,
            lookback_epochs: LOOKBACK_EPOCHS,
            threads: self.threads,
            attack,
        }
        .run();
        let tau = self.options.tau;
        let batches = metrics::batches(&self.queriers, &self.full, &kept, noise, tau);
        Outcome { batches }
    }
}

/// What a run gave.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Every complete batch.
    pub batches: Vec<Batch>,
}

impl Outcome {
    /// A percentile of the errors of batches; none if there are none.
    pub fn error(&self, percent: f64) -> Option<f64> {
        metrics::percentile(self.batches.iter().map(|batch| batch.rmsre), percent)
    }

    /// How many reports something was blocked of, by cause.
    pub fn blocked(&self) -> [u64; Blocked::ALL.len()] {
        let mut blocked = [0; Blocked::ALL.len()];
        for batch in &self.batches {
            for (sum, count) in blocked.iter_mut().zip(batch.blocked) {
                *sum += u64::from(count);
            }
        }
        blocked
    }

    /// The share of reports something was blocked of by a cause: the mean over batches, as in the
    /// paper's figures.
    pub fn blocked_share(&self, cause: Blocked) -> Option<f64> {
        if self.batches.is_empty() {
            return None;
        }
        #[expect(clippy::cast_precision_loss, reason = "counts of reports and batches")]
        let shares = self
            .batches
            .iter()
            .map(|batch| f64::from(batch.blocked[cause as usize]) / batch.size as f64);
        #[expect(clippy::cast_precision_loss, reason = "counts of reports and batches")]
        let count = self.batches.len() as f64;
        Some(shares.sum::<f64>() / count)
    }
}

/// The attackers that there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttackerKind {
    /// See [`Random`].
    Random,
    /// See [`Omniscient`].
    Omniscient,
}

impl AttackerKind {
    /// Every one.
    pub const ALL: [Self; 2] = [Self::Random, Self::Omniscient];

    /// What it does.
    pub fn attacker(self) -> &'static dyn Attacker {
        const RANDOM: Random = Random { share: 0.35 };
        match self {
            Self::Random => &RANDOM,
            Self::Omniscient => &Omniscient,
        }
    }

    /// Its attack, of a strength, with the random choices that follow from a seed.
    pub fn attack(self, strength: Strength, seed: u64) -> Attack<'static> {
        Attack {
            attacker: self.attacker(),
            strength,
            seed,
        }
    }
}
