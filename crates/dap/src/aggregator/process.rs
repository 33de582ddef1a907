//! Leader, helper and collector in one process, for local use.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use bigbird::MicroEpsilon;
use rand::Rng;
use rayon::prelude::*;
use thiserror::Error;

use super::collector::{Collector, NoisedHistogram};
use super::noise::{LaplaceNoise, NoiseSource};
use super::refusal::{Acceptance, ReportRefusal, paid};
use super::store::{
    AggregationStore, AggregationStoreError, BatchQueryError, BatchState, BatchSums, VerifiedReport,
};
use super::verify::{Helper, KeyMismatch, Leader, check_keys};
use crate::keys::AggregatorKeys;
use crate::messages::{DapReport, Decode as _, ReportId};
use crate::role::Role;
use crate::task::AggregationTask;

/// A leader and a helper that work on one batch, with their store.
///
/// Whoever runs it has the keys of both, and could read every report. In a deployment, the leader
/// and the helper are run by organisations that do not collude: see `docs/aggregation.md`.
#[derive(Debug)]
pub struct Aggregation {
    pair: AggregatorPair,
    store: AggregationStore,
    batch: BatchState,
    portion: usize,
}

/// What passes between a leader and a helper.
#[derive(Debug)]
struct AggregatorPair {
    leader: Leader,
    helper: Helper,
}

impl AggregatorPair {
    /// Verifies a report, unless it was counted before.
    fn verify(&self, report: DapReport, counted: bool) -> Result<VerifiedReport, ReportRefusal> {
        self.leader.check(&report.metadata)?;
        if counted {
            return Err(ReportRefusal::Replayed);
        }
        let id = report.metadata.report_id;
        let (state, share) = self.leader.begin(report)?;
        let (helper, answer) = self.helper.respond(&share)?;
        let leader = self.leader.finish(id, state, &answer)?;
        Ok(VerifiedReport {
            id,
            sums: BatchSums { leader, helper },
        })
    }
}

/// A batch that cannot be worked on.
#[derive(Debug, Error)]
pub enum AggregationError {
    /// The keys are not those of the service.
    #[error(transparent)]
    Keys(#[from] KeyMismatch),
    /// The aggregators have different verify keys, so no proof would be right.
    #[error("the leader and the helper have different verify keys")]
    VerifyKeys,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] AggregationStoreError),
}

/// Reports that cannot be added.
#[derive(Debug, Error)]
pub enum AddError<E> {
    /// The store failed, or the batch was queried.
    #[error(transparent)]
    Store(#[from] AggregationStoreError),
    /// The reports cannot be read.
    #[error("{0}")]
    Input(E),
}

/// What became of some reports.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReportTally {
    /// The number of reports that were counted.
    pub accepted: u64,
    /// The number of reports that were refused, by reason.
    pub refused: BTreeMap<ReportRefusal, u64>,
    /// The smallest epsilon that was paid for any of them, counted or not, as they say themselves.
    pub least_paid: Option<MicroEpsilon>,
}

/// A report that was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefusedReport {
    /// Its place among the reports, counted from 0.
    pub place: u64,
    /// Its id, if it could be read.
    pub id: Option<ReportId>,
    /// The reason.
    pub reason: ReportRefusal,
}

/// The result of verifying a report.
type VerificationResult = Result<VerifiedReport, (Option<ReportId>, ReportRefusal)>;

/// The id of a report, if it could be read, and why the report was refused, if it was.
type ReportFate = (Option<ReportId>, Option<ReportRefusal>);

/// What became of each report of a portion, and the smallest epsilon that was paid for any.
type PortionResult = (Vec<ReportFate>, Option<MicroEpsilon>);

/// The most reports, and about the most bytes, that are verified before they are written.
const PORTION: usize = 4096;
const PORTION_BYTES: usize = 16 << 20;

impl Aggregation {
    /// Both aggregators of a task, and the batch with a `name`. If it does not exist, it is created
    /// with a `budget`: see [`AggregationStore::batch`]. Reports are accepted if their time is in
    /// `times`, and if at least the batch's budget was paid for each.
    ///
    /// # Errors
    /// If the keys are not those of the task's service, or the store cannot be used.
    pub fn new(
        mut store: AggregationStore,
        [leader, helper]: [AggregatorKeys; 2],
        task: &AggregationTask,
        name: &str,
        budget: Option<MicroEpsilon>,
        times: RangeInclusive<u64>,
    ) -> Result<Self, AggregationError> {
        check_keys(Role::Leader, &leader, task)?;
        check_keys(Role::Helper, &helper, task)?;
        if leader.verify_key != helper.verify_key {
            return Err(AggregationError::VerifyKeys);
        }
        let batch = store.batch(task, name, budget)?;
        let acceptance = Acceptance {
            budget: batch.budget,
            times,
        };
        Ok(Self {
            pair: AggregatorPair {
                leader: Leader::new(leader, task.clone(), acceptance.clone())?,
                helper: Helper::new(helper, task.clone(), acceptance)?,
            },
            store,
            batch,
            portion: PORTION,
        })
    }

    /// The same work, with another number of reports that become durable together. The default is
    /// 4,096. Large reports become durable in smaller portions.
    #[must_use]
    pub fn in_portions_of(mut self, reports: usize) -> Self {
        self.portion = reports.max(1);
        self
    }

    /// The batch as it is now.
    pub fn batch(&self) -> &BatchState {
        &self.batch
    }

    /// The task.
    pub fn task(&self) -> &AggregationTask {
        self.pair.leader.task()
    }

    /// Verifies reports on all cores and counts the good ones. Calls `refused` for each of the
    /// others. Reports are taken in portions, so memory does not grow with their
    /// number, and each portion is durable before the next is read.
    ///
    /// # Errors
    /// If the reports cannot be read, or the store failed. What was counted before stays counted,
    /// and is refused as counted if it comes again.
    pub fn add<E>(
        &mut self,
        reports: impl IntoIterator<Item = Result<Vec<u8>, E>>,
        mut refused: impl FnMut(RefusedReport),
    ) -> Result<ReportTally, AddError<E>> {
        let mut reports = reports.into_iter().peekable();
        if self.batch.queries > 0 && reports.peek().is_some() {
            let name = self.batch.name.clone();
            return Err(AggregationStoreError::Collected(name).into());
        }
        let mut tally = ReportTally::default();
        let mut place = 0;
        // The shares of a verified report have 16 bytes a bucket and aggregator.
        let shares = 32 * self.task().parameters().length as usize;
        loop {
            let (mut chunk, mut bytes) = (Vec::new(), 0);
            while chunk.len() < self.portion
                && bytes < PORTION_BYTES
                && let Some(report) = reports.next()
            {
                let report = report.map_err(AddError::Input)?;
                bytes += report.len().max(shares);
                chunk.push(report);
            }
            if chunk.is_empty() {
                return Ok(tally);
            }
            let (fates, least_paid) = self.count(&chunk)?;
            let least = [tally.least_paid, least_paid].into_iter().flatten().min();
            tally.least_paid = least;
            for (id, reason) in fates {
                match reason {
                    None => tally.accepted += 1,
                    Some(reason) => {
                        *tally.refused.entry(reason).or_default() += 1;
                        refused(RefusedReport { place, id, reason });
                    }
                }
                place += 1;
            }
        }
    }

    /// Verifies and counts some reports.
    fn count(&mut self, chunk: &[Vec<u8>]) -> Result<PortionResult, AggregationStoreError> {
        let decoded: Vec<Option<DapReport>> = chunk
            .par_iter()
            .map(|bytes| DapReport::get_decoded(bytes).ok())
            .collect();
        let readable = decoded.iter().flatten();
        let said = readable.filter_map(|report| paid(self.task(), &report.metadata).ok());
        let least_paid = said.min();
        // What was counted before is not verified again.
        let ids: Vec<ReportId> = decoded
            .iter()
            .flatten()
            .map(|report| report.metadata.report_id)
            .collect();
        let mut counted = self.store.counted(&self.batch, &ids)?.into_iter();
        let with_counted: Vec<(Option<DapReport>, bool)> = decoded
            .into_iter()
            .map(|report| {
                let counted = report.is_some() && counted.next().unwrap_or_default();
                (report, counted)
            })
            .collect();
        let pair = &self.pair;
        let verified: Vec<VerificationResult> = with_counted
            .into_par_iter()
            .map(|(report, counted)| match report {
                Some(report) => {
                    let id = report.metadata.report_id;
                    let verified = pair.verify(report, counted);
                    verified.map_err(|reason| (Some(id), reason))
                }
                None => Err((None, ReportRefusal::Malformed)),
            })
            .collect();
        let mut outcomes = Vec::with_capacity(verified.len());
        let mut good = Vec::with_capacity(verified.len());
        for result in verified {
            match result {
                Ok(report) => {
                    outcomes.push((Some(report.id), None));
                    good.push(report);
                }
                Err((id, reason)) => outcomes.push((id, Some(reason))),
            }
        }
        let new = self.store.add(&mut self.batch, &good)?;
        let taken = outcomes.iter_mut().filter(|(_, reason)| reason.is_none());
        for ((_, reason), new) in taken.zip(new) {
            // The same report may be there twice.
            *reason = (!new).then_some(ReportRefusal::Replayed);
        }
        Ok((outcomes, least_paid))
    }

    /// Removes the batch if it has no reports, so that its name can be used with another budget.
    /// Nothing was spent on it.
    ///
    /// # Errors
    /// If the store failed.
    pub fn discard_if_empty(&mut self) -> Result<bool, AggregationStoreError> {
        self.store.discard_if_empty(&self.batch)
    }

    /// Queries the batch: spends epsilon, lets aggregators add their noise, and puts the result
    /// together. The batch takes no more reports afterwards.
    ///
    /// # Errors
    /// If the batch is too small or cannot pay, or the store failed. Then nothing is spent.
    pub fn query<R: Rng + ?Sized>(
        &mut self,
        epsilon: MicroEpsilon,
        source: NoiseSource,
        rng: &mut R,
    ) -> Result<NoisedHistogram, BatchQueryError> {
        let noise = LaplaceNoise::new(self.task().parameters().max_value, epsilon)?;
        let least = self.task().configuration().min_batch_size;
        let mut sums = self.store.spend(&mut self.batch, epsilon, least)?;
        for (role, share) in [
            (Role::Leader, &mut sums.leader),
            (Role::Helper, &mut sums.helper),
        ] {
            if source.includes(role) {
                noise.add_to(share, rng)?;
            }
        }
        let reports = self.batch.reports;
        Ok(Collector.combine(&sums.leader, &sums.helper, reports, &noise, source))
    }
}
