//! Simulations: a workload under a policy, with or without an attacker, and the results of honest
//! queriers.

use std::sync::{Arc, Mutex, PoisonError};

use bigbird::{Epsilon, EpsilonError, FilterKind, Limit, Policy, PolicyError, Profile, Window};
use thiserror::Error;

use crate::attack::Attack;
use crate::metrics::{self, Batch};
use crate::replay::{Replay, ReportOutcome};
use crate::resilience::{Resilience, Spent};
use crate::workload::read::ReadError;
use crate::workload::{Querier, QuerierOptions, Survey, Workload};

/// A workload, with everything that does not depend on a run: its queriers, and the outcome of
/// their reports without any limit.
#[derive(Debug)]
pub struct Laboratory<'w> {
    workload: &'w Workload,
    survey: Survey,
    options: QuerierOptions,
    lookback_epochs: u16,
    full: Vec<ReportOutcome>,
    threads: usize,
    /// The results of policies without attack. Every attack is compared with them.
    unattacked: Mutex<Vec<(Policy, Arc<RunResult>)>>,
}

/// The number of epochs before its own that a conversion looks at in the paper's evaluation.
const LOOKBACK_EPOCHS: u16 = 1;

/// The reason why there is no result.
#[derive(Debug, Error)]
pub enum LabError {
    /// A part of the workload is on disk and cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The policy is invalid.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A conversion looks at more epochs than one request may.
    #[error(
        "a conversion can look back at most {max} epochs, got {got}",
        max = Window::MAX_EPOCHS - 1
    )]
    Lookback {
        /// The lookback that was given, in epochs.
        got: u16,
    },
    /// A querier needs an epsilon that no request can have.
    #[error(
        "the querier {site} needs epsilon {epsilon} for batches of {batch} conversions with values \
         up to {max_value}: {source}"
    )]
    Querier {
        /// The querier.
        site: String,
        /// The epsilon that it needs.
        epsilon: f64,
        /// The number of reports in its batches.
        batch: usize,
        /// The largest value of its conversions.
        max_value: u32,
        /// The reason.
        source: EpsilonError,
    },
}

impl<'w> Laboratory<'w> {
    /// Prepares a workload in which a conversion looks at its own epoch and the one before, as in
    /// the paper.
    ///
    /// # Errors
    /// The same as [`with_lookback`](Self::with_lookback).
    pub fn new(
        workload: &'w Workload,
        options: QuerierOptions,
        threads: usize,
    ) -> Result<Self, LabError> {
        Self::with_lookback(workload, options, LOOKBACK_EPOCHS, threads)
    }

    /// Prepares a workload in which a conversion looks at its own epoch and the `lookback_epochs`
    /// epochs before.
    ///
    /// # Errors
    /// If a request cannot look at this many epochs, if a querier needs more epsilon than a request
    /// can have, or if a part of the workload is on disk and cannot be read.
    pub fn with_lookback(
        workload: &'w Workload,
        options: QuerierOptions,
        lookback_epochs: u16,
        threads: usize,
    ) -> Result<Self, LabError> {
        let no_limits = Profile::CookieMonster.policy().to_builder();
        let no_limits = no_limits.unlimited(FilterKind::QuerierBudget).build()?;
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

    /// The workload.
    pub fn workload(&self) -> &'w Workload {
        self.workload
    }

    /// A digest of everything that results depend on, except the policy and the attack.
    pub fn digest(&self) -> String {
        format!(
            "workload {:016x} {:?} lookback {}",
            self.survey.digest, self.options, self.lookback_epochs
        )
    }

    /// The conversion sites that measure.
    pub fn queriers(&self) -> &[Querier] {
        &self.survey.queriers
    }

    /// Replays the workload. With an attack, it is also replayed without the attack, unless that
    /// was done before, to check the bounds on the attack.
    ///
    /// # Errors
    /// If a part of the workload is on disk and cannot be read.
    pub fn run(
        &self,
        policy: &Policy,
        attack: Option<Attack<'_>>,
    ) -> Result<Arc<RunResult>, LabError> {
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

    /// The run of a policy without attack, which is made once.
    fn unattacked(&self, policy: &Policy) -> Result<Arc<RunResult>, LabError> {
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

    fn replay(&self, policy: &Policy, attack: Option<Attack<'_>>) -> Result<RunResult, LabError> {
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
        Ok(RunResult {
            batches: metrics::batches(queriers, &self.full, &replayed.given, &self.options),
            spent: replayed.spent,
            resilience: replayed.resilience,
        })
    }
}

/// The results of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunResult {
    /// Every complete batch.
    pub batches: Vec<Batch>,
    /// The amounts that were consumed from global budgets.
    pub spent: Spent,
    /// The bounds on the attack, and the shares of them that it reached. None without an attack.
    pub resilience: Option<Resilience>,
}

impl RunResult {
    /// A percentile of the errors of batches. None if there are no batches.
    pub fn error(&self, percent: f64) -> Option<f64> {
        metrics::percentile(self.batches.iter().map(|batch| batch.rmsre), percent)
    }

    /// The number of blocked reports, by first cause.
    pub fn blocked(&self) -> [u64; Limit::ALL.len()] {
        let mut blocked = [0; Limit::ALL.len()];
        for batch in &self.batches {
            for (sum, count) in blocked.iter_mut().zip(batch.blocked) {
                *sum += u64::from(count);
            }
        }
        blocked
    }

    /// The share of reports that a cause was the first to block: the mean over batches, as in the
    /// paper's figures. None if there are no batches.
    pub fn blocked_share(&self, cause: Limit) -> Option<f64> {
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
