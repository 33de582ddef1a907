//! Simulations: a workload under a policy and an attacker, and what becomes of honest queriers.

use std::sync::{Arc, Mutex, PoisonError};

use bigbird::{Epsilon, EpsilonError, FilterKind, Policy, PolicyError, Profile, Window};
use thiserror::Error;

use crate::attack::Attack;
use crate::metrics::{self, Batch};
use crate::replay::{Blocked, Given, Replay};
use crate::resilience::{Resilience, Spent};
use crate::workload::read::ReadError;
use crate::workload::{Querier, QuerierOptions, Survey, Workload};

/// A workload with what does not depend on a run: its queriers, and what their reports would give
/// without any limit.
#[derive(Debug)]
pub struct Laboratory<'w> {
    workload: &'w Workload,
    survey: Survey,
    options: QuerierOptions,
    lookback_epochs: u16,
    full: Vec<Given>,
    threads: usize,
    /// What policies give without an attack: every attack is compared with that.
    unattacked: Mutex<Vec<(Policy, Arc<Outcome>)>>,
}

/// The days before its own that a conversion looks at, in the paper's evaluation.
const LOOKBACK_EPOCHS: u16 = 1;

/// Why there is no result.
#[derive(Debug, Error)]
pub enum LabError {
    /// A part of the workload is on disk and cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// There is no such policy.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A conversion looks at more epochs than one request may.
    #[error("a conversion may look at most {max} epochs back, got {got}", max = Window::MAX_EPOCHS - 1)]
    Lookback {
        /// How many were asked for.
        got: u16,
    },
    /// A querier cannot ask with the epsilon that it needs.
    #[error(
        "the querier {site} needs epsilon {epsilon} for batches of {batch} with conversions worth up to \
         {max_value}: {source}"
    )]
    Querier {
        /// Which.
        site: String,
        /// Its epsilon.
        epsilon: f64,
        /// Its batches.
        batch: usize,
        /// The most that one of its conversions is worth.
        max_value: u32,
        /// Why not.
        source: EpsilonError,
    },
}

impl<'w> Laboratory<'w> {
    /// Prepares a workload, in which a conversion looks at its own epoch and the one before, as in
    /// the paper.
    ///
    /// # Errors
    /// As [`with_lookback`](Self::with_lookback).
    pub fn new(
        workload: &'w Workload,
        options: QuerierOptions,
        threads: usize,
    ) -> Result<Self, LabError> {
        Self::with_lookback(workload, options, LOOKBACK_EPOCHS, threads)
    }

    /// Prepares a workload, in which a conversion looks at so many epochs before its own.
    ///
    /// # Errors
    /// If so many epochs are more than a request may look at, if a querier would need more epsilon than
    /// a request may have, or if a part of the workload is on disk and cannot be read.
    pub fn with_lookback(
        workload: &'w Workload,
        options: QuerierOptions,
        lookback_epochs: u16,
        threads: usize,
    ) -> Result<Self, LabError> {
        let no_limits = Profile::CookieMonster.policy().to_builder();
        let no_limits = no_limits.unlimited(FilterKind::Querier).build()?;
        if u64::from(lookback_epochs) >= Window::MAX_EPOCHS {
            return Err(LabError::Lookback {
                got: lookback_epochs,
            });
        }
        let survey = workload.survey(&options)?;
        for querier in &survey.queriers {
            Epsilon::new(querier.epsilon()).map_err(|source| LabError::Querier {
                site: workload.conversion_site_names[querier.site as usize].clone(),
                epsilon: querier.epsilon(),
                batch: querier.batch,
                max_value: querier.max_value,
                source,
            })?;
        }
        let replayed = Replay {
            workload,
            survey: &survey,
            policy: &no_limits,
            lookback_epochs,
            threads,
            attack: None,
            count_sites: false,
        }
        .run()?;
        Ok(Self {
            workload,
            survey,
            options,
            lookback_epochs,
            full: replayed.given,
            threads,
            unattacked: Mutex::default(),
        })
    }

    /// What happens in it.
    pub fn workload(&self) -> &'w Workload {
        self.workload
    }

    /// A digest of the workload and of everything else that its results depend on, besides policy
    /// and attack.
    pub fn digest(&self) -> String {
        format!(
            "workload {:016x} {:?} lookback {}",
            self.survey.digest, self.options, self.lookback_epochs
        )
    }

    /// Who measures.
    pub fn queriers(&self) -> &[Querier] {
        &self.survey.queriers
    }

    /// Replays the workload once; under an attack also without it, unless that was done, to check
    /// what the attack could do at most.
    ///
    /// # Errors
    /// If a part of the workload is on disk and cannot be read.
    pub fn run(
        &self,
        policy: &Policy,
        attack: Option<Attack<'_>>,
    ) -> Result<Arc<Outcome>, LabError> {
        let Some(attack) = attack else {
            return self.unattacked(policy);
        };
        let mut outcome = self.replay(policy, Some(attack))?;
        let unattacked = self.unattacked(policy)?;
        if let Some(resilience) = &mut outcome.resilience {
            let (with, without) = (&outcome.batches, &unattacked.batches);
            resilience.compare(&self.survey.queriers, with, without);
        }
        Ok(Arc::new(outcome))
    }

    /// A run without attack, which is made once.
    fn unattacked(&self, policy: &Policy) -> Result<Arc<Outcome>, LabError> {
        let mut known = self
            .unattacked
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some((_, outcome)) = known.iter().find(|(of, _)| of == policy) {
            return Ok(Arc::clone(outcome));
        }
        let outcome = Arc::new(self.replay(policy, None)?);
        known.push((policy.clone(), Arc::clone(&outcome)));
        Ok(outcome)
    }

    fn replay(&self, policy: &Policy, attack: Option<Attack<'_>>) -> Result<Outcome, LabError> {
        let replayed = Replay {
            workload: self.workload,
            survey: &self.survey,
            policy,
            lookback_epochs: self.lookback_epochs,
            threads: self.threads,
            attack,
            count_sites: false,
        }
        .run()?;
        let queriers = &self.survey.queriers;
        Ok(Outcome {
            batches: metrics::batches(queriers, &self.full, &replayed.given, &self.options),
            spent: replayed.spent,
            resilience: replayed.resilience,
        })
    }
}

/// What a run gave.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Every complete batch.
    pub batches: Vec<Batch>,
    /// What was spent of global budgets.
    pub spent: Spent,
    /// How near the attack came to its bounds.
    pub resilience: Option<Resilience>,
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
