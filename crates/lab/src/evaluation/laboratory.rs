//! A workload on one machine: the three steps of a run on all of its parts, with several threads.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bigbird::{Epsilon, EpsilonError, Limit, Policy, PolicyError, Window};
use thiserror::Error;

use super::audience::{AttackAudience, HeardVisitCounts};
use super::batching::{BatchKeys, BatchPlan, BatchTotals, QuerierNumbers, TimeKey};
use super::metrics::{self, Batch, evaluate};
use super::querier::{Querier, QuerierOptions};
use super::replay::{Observer, Replay, Replayed, Replayer, ReportRow, Scene, Unlimited};
use super::resilience::{Resilience, Spent};
use super::survey::Survey;
use crate::attack::Attack;
use crate::threads;
use crate::workload::read::ReadError;
use crate::workload::{Part, Workload};

/// A workload, with everything that does not depend on a run: its queriers and their batches.
#[derive(Debug)]
pub struct Laboratory<'w> {
    workload: &'w Workload,
    options: QuerierOptions,
    lookback_epochs: u16,
    threads: usize,
    queriers: Vec<Querier>,
    numbers: QuerierNumbers,
    plan: BatchPlan,
    /// The sums without any limit. The first run without attack computes them.
    full: OnceLock<BatchTotals>,
    visits: OnceLock<HeardVisitCounts>,
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
        if u64::from(lookback_epochs) >= Window::MAX_EPOCHS {
            return Err(LabError::Lookback {
                got: lookback_epochs,
            });
        }
        let surveyed = each_part(workload, threads, || Survey::new(workload), Survey::add)?;
        let survey = surveyed.into_iter().reduce(|mut sum, more| {
            sum.merge(more);
            sum
        });
        let queriers = survey.map_or(Vec::new(), |survey| survey.queriers(&options));
        for querier in &queriers {
            Epsilon::new(querier.epsilon()).map_err(|source| LabError::Querier {
                site: workload.conversion_site_names[querier.site as usize].clone(),
                epsilon: querier.epsilon(),
                batch: querier.batch,
                max_value: querier.max_value,
                source,
            })?;
        }
        let numbers = QuerierNumbers::new(&queriers, workload.conversion_site_names.len());
        let collected = each_part(
            workload,
            threads,
            || BatchKeys::new(&queriers),
            |keys, part| keys.add(part, &numbers),
        )?;
        let mut keys = BatchKeys::new(&queriers);
        for more in collected {
            keys.merge(more);
        }
        Ok(Self {
            workload,
            options,
            lookback_epochs,
            threads,
            plan: BatchPlan::on_threads(&queriers, keys, threads),
            numbers,
            queriers,
            full: OnceLock::new(),
            visits: OnceLock::new(),
            unattacked: Mutex::default(),
        })
    }

    /// The workload.
    pub fn workload(&self) -> &'w Workload {
        self.workload
    }

    /// A digest of everything that results depend on, except the policy and the attack.
    ///
    /// # Errors
    /// If a part of the workload is on disk and cannot be read.
    pub fn digest(&self) -> Result<String, LabError> {
        Ok(format!(
            "workload {:016x} {:?} lookback {}",
            self.workload.digest()?,
            self.options,
            self.lookback_epochs
        ))
    }

    /// The conversion sites that measure.
    pub fn queriers(&self) -> &[Querier] {
        &self.queriers
    }

    /// The number of batches.
    pub fn batches(&self) -> usize {
        self.plan.len()
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
        let unattacked = self.unattacked(policy)?;
        let Some(attack) = attack else {
            return Ok(unattacked);
        };
        let audience = self.audience(&attack)?;
        let observe = || SumObserver::new(self, None);
        let (observers, replayed) = self.replay(policy, Some((attack, &audience)), observe)?;
        let mut result = self.evaluated(observers.into_iter().map(|it| it.kept), replayed);
        if let Some(resilience) = &mut result.resilience {
            resilience.compare(&self.queriers, &result.batches, &unattacked.batches);
        }
        Ok(Arc::new(result))
    }

    /// Replays the workload, and shows every report to observers. Each thread makes its own with
    /// `make`. All of them are returned, in no particular order.
    ///
    /// # Errors
    /// If a part of the workload is on disk and cannot be read.
    pub fn observe<O: Observer + Send>(
        &self,
        policy: &Policy,
        attack: Option<Attack<'_>>,
        make: impl Fn() -> O + Sync,
    ) -> Result<Vec<O>, LabError> {
        let audience = attack.map(|attack| self.audience(&attack)).transpose()?;
        let attack = attack.zip(audience.as_ref());
        Ok(self.replay(policy, attack, make)?.0)
    }

    fn audience(&self, attack: &Attack<'_>) -> Result<AttackAudience, LabError> {
        let counts = match self.visits.get() {
            Some(counts) => counts,
            None => {
                let new = || HeardVisitCounts::new(self.workload, &self.queriers, &self.options);
                let counted = each_part(self.workload, self.threads, new, HeardVisitCounts::add)?;
                let sum = counted.into_iter().reduce(|mut sum, more| {
                    sum.merge(&more);
                    sum
                });
                self.visits.get_or_init(|| sum.unwrap_or_else(new))
            }
        };
        Ok(AttackAudience::new(
            attack,
            self.workload,
            &self.queriers,
            counts,
        ))
    }

    /// The run of a policy without attack, which is made once.
    fn unattacked(&self, policy: &Policy) -> Result<Arc<RunResult>, LabError> {
        let mut known = self
            .unattacked
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some((_, result)) = known.iter().find(|(of, _)| of == policy) {
            return Ok(Arc::clone(result));
        }
        let needs_full = self.full.get().is_none();
        // Without limits, the policy is valid: the error is found here, before the threads start.
        Unlimited::new()?;
        let observe =
            || SumObserver::new(self, needs_full.then(|| Unlimited::new().ok()).flatten());
        let (observers, replayed) = self.replay(policy, None, observe)?;
        let (kept, full): (Vec<_>, Vec<_>) =
            observers.into_iter().map(|it| (it.kept, it.full)).unzip();
        if needs_full {
            let full = self.sum(full.into_iter().flatten().map(|(_, sums)| sums));
            self.full.get_or_init(|| full);
        }
        let result = Arc::new(self.evaluated(kept.into_iter(), replayed));
        known.push((policy.clone(), Arc::clone(&result)));
        Ok(result)
    }

    fn replay<O: Observer + Send>(
        &self,
        policy: &Policy,
        attack: Option<(Attack<'_>, &AttackAudience)>,
        observe: impl Fn() -> O + Sync,
    ) -> Result<(Vec<O>, Replayed), LabError> {
        let replay = Replay {
            queriers: &self.queriers,
            numbers: &self.numbers,
            impression_sites: self.workload.impression_site_names.len(),
            buckets: self.workload.buckets,
            policy,
            lookback_epochs: self.lookback_epochs,
            attack,
        };
        let workers = each_part(
            self.workload,
            self.threads,
            || (Replayer::new(replay), observe()),
            |(replayer, observer), part| replayer.part(part, observer),
        )?;
        let mut observers = Vec::new();
        let mut sum: Option<Replayed> = None;
        for (replayer, observer) in workers {
            observers.push(observer);
            let more = replayer.finish();
            match &mut sum {
                Some(sum) => sum.merge(more),
                None => sum = Some(more),
            }
        }
        let replayed = sum.unwrap_or_else(|| Replayer::new(replay).finish());
        Ok((observers, replayed))
    }

    fn sum(&self, parts: impl Iterator<Item = BatchTotals>) -> BatchTotals {
        let mut sum = BatchTotals::new(&self.plan, self.workload.buckets);
        for more in parts {
            sum.merge(&more);
        }
        sum
    }

    fn evaluated(&self, kept: impl Iterator<Item = BatchTotals>, replayed: Replayed) -> RunResult {
        let kept = self.sum(kept);
        let full = self.full.get().unwrap_or(&kept);
        RunResult {
            batches: evaluate(&self.queriers, &self.plan, full, &kept, &self.options),
            spent: replayed.spent,
            resilience: replayed.resilience,
        }
    }
}

/// Calls `work` for every part of a workload, on several threads. Each thread has a state of its
/// own. All states are returned.
fn each_part<S: Send>(
    workload: &Workload,
    threads: usize,
    new: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, &Part) + Sync,
) -> Result<Vec<S>, ReadError> {
    threads::divide(workload.parts(), threads, new, |state, number| {
        work(state, &*workload.part(number)?);
        Ok(())
    })
}

/// Adds reports to the sums of their batches.
#[derive(Debug)]
struct SumObserver<'a> {
    plan: &'a BatchPlan,
    kept: BatchTotals,
    /// The sums without any limit, if they are asked for.
    full: Option<(Unlimited, BatchTotals)>,
}

impl<'a> SumObserver<'a> {
    fn new(laboratory: &'a Laboratory<'_>, full: Option<Unlimited>) -> Self {
        let empty = BatchTotals::new(&laboratory.plan, laboratory.workload.buckets);
        Self {
            plan: &laboratory.plan,
            full: full.map(|unlimited| (unlimited, empty.clone())),
            kept: empty,
        }
    }
}

impl Observer for SumObserver<'_> {
    #[inline]
    fn report(&mut self, row: &ReportRow, scene: &Scene<'_>) {
        let Some(batch) = self.plan.batch(row.querier, TimeKey::of(&row.conversion)) else {
            return;
        };
        self.kept.add(batch, row.value, row.bucket, row.blocked);
        if let Some((unlimited, sums)) = &mut self.full {
            sums.add(batch, row.value, unlimited.bucket(row, scene), None);
        }
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

    /// The median error from noise alone, and from blocking alone. None if there are no batches.
    pub fn error_parts(&self) -> Option<metrics::ErrorParts> {
        let median =
            |part: fn(&Batch) -> f64| metrics::percentile(self.batches.iter().map(part), 50.0);
        Some(metrics::ErrorParts {
            noise: median(|batch| batch.parts.noise)?,
            bias: median(|batch| batch.parts.bias)?,
        })
    }

    /// The number of blocked reports, by first cause.
    pub fn blocked(&self) -> [u64; Limit::ALL.len()] {
        let mut blocked = [0; Limit::ALL.len()];
        for batch in &self.batches {
            for (sum, count) in blocked.iter_mut().zip(batch.blocked) {
                *sum += count;
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
            .map(|batch| batch.blocked[cause as usize] as f64 / batch.size as f64);
        #[expect(clippy::cast_precision_loss, reason = "counts of reports and batches")]
        let count = self.batches.len() as f64;
        Some(shares.sum::<f64>() / count)
    }
}
