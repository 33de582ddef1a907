//! The user agent: everything between a page's call and the budget manager.

mod answer;
mod balance;
mod clearing;
mod decoy;
mod explain;
mod listing;
mod upkeep;

use std::ops::Range;

use bigbird::attribution::ImpressionEdit;
use bigbird::{EpochIndex, Histogram, Timestamp, UserAction};

pub use answer::{ConversionAnswer, PageAnswer, SharedConversionAnswer, Status};
pub use balance::FilterBalance;
pub(crate) use decoy::OwnWork;
pub use listing::{ListPage, ListedImpression};
pub(crate) use upkeep::SLICE;

use crate::call::{Action, Call, ConversionCall, MeasurementKind, Numbering, PageCall};
use crate::clock::{Era, next, period_ms};
use crate::config::Config;
use crate::error::{AgentError, ApiError};
use crate::execution::{Execution, MeasureResult};
use crate::gate::Gate;
use crate::history::{HistorySizes, ROOM};
use crate::memory::MemoryStore;
use crate::options::{ConversionOptions, ImpressionOptions};
use crate::randomness::Randomness;
use crate::report::{Seal, UnsealedReport};
use crate::shared::SharedConversion;
use crate::storage::{ChangeSet, DeviceState, RowSet, Storage, Transaction, View, ViewRow};
use decoy::Decoy;
use upkeep::Upkeep;

/// A user agent with a store.
#[derive(Debug)]
pub struct UserAgent<S, R> {
    gate: Gate,
    storage: S,
    randomness: R,
    /// Ids of user actions that this user agent may give. They are taken from the store many at a
    /// time, so that a click costs no write. Ids that are left at the end are never used.
    reserved: Range<u64>,
    decoy: Decoy,
    pub(crate) upkeep: Upkeep,
    /// False until the rules of the configuration are those of the store's coming epochs.
    adopted: bool,
}

/// The number of ids of user actions that are taken at a time.
const RESERVED: u64 = 1024;

/// Makes a call and writes its changes, which are durable when this returns. **Every call writes
/// once**, even if nothing changed. Otherwise a missing write would show that a call charged or
/// stored nothing.
fn perform<T: Transaction<E>, E, R: Randomness, A>(
    mut transaction: T,
    config: &Config,
    randomness: &mut R,
    upkeep: &mut Upkeep,
    call: impl FnOnce(&mut Execution<'_, T, E, R>) -> Result<A, E>,
) -> Result<A, E> {
    let answer = prepare(&mut transaction, config, randomness, upkeep, call)?;
    upkeep.commit(transaction)?;
    Ok(answer)
}

/// Makes one of several calls that become durable together.
fn prepare<T: Transaction<E>, E, R: Randomness, A>(
    transaction: &mut T,
    config: &Config,
    randomness: &mut R,
    upkeep: &mut Upkeep,
    call: impl FnOnce(&mut Execution<'_, T, E, R>) -> Result<A, E>,
) -> Result<A, E> {
    let mut execution = Execution::new(transaction, config, randomness)?;
    let answer = call(&mut execution)?;
    let saved_in = execution.saved_in;
    let changes = execution.into_changes();
    transaction.apply(&changes)?;
    upkeep.note(&changes);
    if let Some(epoch) = saved_in {
        make_room(transaction, config, epoch)?;
    }
    if let Some(entry) = changes.recorded.last() {
        make_room_for_entries(transaction, entry.number)?;
    }
    Ok(answer)
}

/// Evicts entries of history so that no epoch has more than its limit. Entries have consecutive
/// numbers, so this looks once in a while.
fn make_room_for_entries<T: Transaction<E>, E>(transaction: &mut T, number: u64) -> Result<(), E> {
    if !number.is_multiple_of(ROOM as u64) {
        return Ok(());
    }
    let mut sizes = HistorySizes::default();
    transaction.visit(RowSet::HistoryKeys, &mut |row| {
        if let ViewRow::HistoryKey(key) = row {
            sizes.add(key);
        }
    })?;
    let unrecorded = sizes.evicted();
    if unrecorded.is_empty() {
        return Ok(());
    }
    transaction.apply(&ChangeSet {
        unrecorded,
        ..ChangeSet::default()
    })
}

/// Evicts impressions while an epoch is over its limit: at most one for each unit of the impression
/// that was saved.
fn make_room<T: Transaction<E>, E>(
    transaction: &mut T,
    config: &Config,
    epoch: EpochIndex,
) -> Result<(), E> {
    while config
        .store_limits
        .is_exceeded_by(transaction.units(epoch)?)
        && let Some(largest) = transaction.largest_site(epoch)?
    {
        let mut changes = ChangeSet::default();
        changes.edited.push(ImpressionEdit {
            epoch,
            order: largest.oldest,
            audience: None,
        });
        transaction.apply(&changes)?;
    }
    Ok(())
}

/// The report of a conversion.
fn unsealed(conversion: &ConversionCall, histogram: Histogram) -> UnsealedReport {
    UnsealedReport {
        envelope: conversion.envelope(),
        histogram,
    }
}

/// Makes a call on a user agent.
macro_rules! execute {
    ($agent:expr, $call:expr) => {
        $agent.storage.begin().and_then(|transaction| {
            let (config, randomness) = ($agent.gate.config(), &mut $agent.randomness);
            $crate::agent::perform(transaction, config, randomness, &mut $agent.upkeep, $call)
        })
    };
}
use execute;

impl<R: Randomness> UserAgent<MemoryStore, R> {
    /// A user agent that keeps everything in memory.
    pub fn in_memory(config: Config, randomness: R) -> Self {
        let mut agent = Self::on(config, MemoryStore::new(), randomness);
        // An empty store has no other rules.
        agent.adopted = true;
        agent
    }
}

impl<S: Storage, R: Randomness> UserAgent<S, R> {
    /// A user agent on a store, opened at a moment.
    ///
    /// If the store was used under other rules (capacities, domain cap, charging rules or length of
    /// epochs), the rules of this configuration hold from the first epoch that begins after now and
    /// after the latest call. Of several changes before then, the last one counts. Every epoch
    /// keeps the rules it began with, so no change of rules brings a budget back.
    ///
    /// # Errors
    /// If the store failed.
    pub fn new(
        config: Config,
        storage: S,
        randomness: R,
        now: Timestamp,
    ) -> Result<Self, S::Error> {
        let mut agent = Self::on(config, storage, randomness);
        agent.adopt_rules(now)?;
        Ok(agent)
    }

    /// A user agent on a store that may not work yet, such as a file that another process keeps
    /// locked. Nothing is read or written before the first call. The first call for which the store
    /// works puts the rules of this configuration in force, as [`new`](Self::new) does, before
    /// anything else happens on the store.
    pub fn on(config: Config, storage: S, randomness: R) -> Self {
        Self {
            decoy: Decoy::new(&config.policy),
            gate: Gate::new(config),
            storage,
            randomness,
            reserved: 0..0,
            upkeep: Upkeep::default(),
            adopted: false,
        }
    }

    /// Puts the rules of the configuration in force from the next epoch on, unless that is done.
    /// The rules of the current epoch do not change, so calls that only read need not do this.
    fn adopt_rules(&mut self, now: Timestamp) -> Result<(), S::Error> {
        if self.adopted {
            return Ok(());
        }
        execute!(self, |execution| {
            let DeviceState {
                last_clear,
                latest,
                latest_use,
                ..
            } = execution.state;
            let moments = [last_clear, latest, latest_use].into_iter().flatten();
            let after = moments.fold(now, Timestamp::max);
            execution
                .state
                .timeline
                .change(&execution.config.rules(), after);
            Ok(())
        })?;
        self.adopted = true;
        Ok(())
    }

    /// The same user agent, with a sealer for reports.
    #[must_use]
    pub fn sealing(mut self, sealer: impl Seal + Send + Sync + 'static) -> Self {
        self.gate = self.gate.sealing(sealer);
        self
    }

    /// The gate, which other threads can use.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// The store.
    pub fn storage(&self) -> &S {
        &self.storage
    }

    /// The store, for its own maintenance. No change made this way may bring a budget back.
    pub fn storage_mut(&mut self) -> &mut S {
        &mut self.storage
    }

    /// Ends the user agent and returns its store.
    pub fn into_storage(self) -> S {
        self.storage
    }

    /// The source of its random numbers.
    pub fn randomness_mut(&mut self) -> &mut R {
        &mut self.randomness
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        self.gate.config()
    }

    /// Begins a user action: the user clicked, or typed an address.
    ///
    /// # Errors
    /// If the store failed.
    pub fn begin_user_action(&mut self, now: Timestamp) -> Result<Action, S::Error> {
        self.adopt_rules(now)?;
        if self.reserved.is_empty() {
            self.reserved = execute!(self, |execution| {
                let first = execution.state.next_user_action;
                execution.state.next_user_action = first.saturating_add(RESERVED);
                Ok(first..execution.state.next_user_action)
            })?;
        }
        let id = UserAction(self.reserved.next().unwrap_or(u64::MAX));
        Ok(Action(Numbering::Begun { id, at: now }))
    }

    /// Continues a user action, or begins a new one if the action ended with its epoch. This is for
    /// a page that stays open while the epoch changes.
    ///
    /// # Errors
    /// If the store failed.
    pub fn continue_user_action(
        &mut self,
        action: Action,
        now: Timestamp,
    ) -> Result<Action, S::Error> {
        let Numbering::Begun { at, .. } = action.0 else {
            return Ok(action);
        };
        let timeline = self.storage.begin()?.state()?.timeline;
        let ended = match timeline.eras() {
            // Wherever epochs will begin, these moments will be in different epochs.
            [] => now.0.abs_diff(at.0) >= period_ms(self.config().epoch_days).unsigned_abs(),
            _ => timeline.epoch(at) != timeline.epoch(now),
        };
        if ended {
            return self.begin_user_action(now);
        }
        Ok(action)
    }

    /// Saves an impression (the draft's "save an impression"). The page learns only whether its
    /// options were valid. It does not learn whether the impression was kept, or whether the API is
    /// enabled. Every valid call makes one write.
    ///
    /// # Errors
    /// If the call is invalid, or the store failed.
    pub fn save_impression(
        &mut self,
        call: &Call<'_>,
        options: &ImpressionOptions,
    ) -> Result<(), AgentError<S::Error>> {
        let saved = self.save_impressions([(*call, options)]);
        let answers = saved.map_err(AgentError::Store)?;
        Ok(answers.into_iter().collect::<Result<(), _>>()?)
    }

    /// Saves many impressions with one write. Returns for each what
    /// [`save_impression`](Self::save_impression) would have returned.
    ///
    /// # Errors
    /// If the store failed. Then none is saved.
    pub fn save_impressions<'a>(
        &mut self,
        impressions: impl IntoIterator<Item = (Call<'a>, &'a ImpressionOptions)>,
    ) -> Result<Vec<Result<(), ApiError>>, S::Error> {
        let parsed: Vec<_> = impressions
            .into_iter()
            .map(|(call, options)| self.gate.impression(&call, options))
            .collect();
        let good = parsed.iter().flatten().cloned();
        let calls: Vec<PageCall> = good.map(PageCall::Save).collect();
        if !calls.is_empty() {
            self.perform(&calls)?;
        }
        Ok(parsed.into_iter().map(|it| it.map(|_| ())).collect())
    }

    /// Makes calls that arrived together, in their order, with one write. Each call should have a
    /// user action: [`PageCall::or_by`] adds one. Reports are not sealed yet, so that the next
    /// calls need not wait for it.
    ///
    /// # Errors
    /// If the store failed. Then none of the calls has any effect.
    pub fn perform(&mut self, calls: &[PageCall]) -> Result<Vec<PageAnswer>, S::Error> {
        let measured = self.measure(calls)?;
        let answers = calls.iter().zip(measured).map(|pair| match pair {
            (PageCall::Measure(conversion), Some(measured)) => match conversion.measurement {
                MeasurementKind::Create { .. } => PageAnswer::Shared(measured.into()),
                _ => {
                    let report = unsealed(conversion, measured.report);
                    PageAnswer::Report(report, measured.decision)
                }
            },
            _ => PageAnswer::Saved,
        });
        Ok(answers.collect())
    }

    /// Makes calls. Returns a result for each call that measures.
    fn measure(&mut self, calls: &[PageCall]) -> Result<Vec<Option<MeasureResult>>, S::Error> {
        if let Some(first) = calls.first() {
            self.adopt_rules(first.now())?;
        }
        let Self {
            gate,
            storage,
            randomness,
            upkeep,
            decoy,
            ..
        } = self;
        let config = gate.config();
        let mut transaction = storage.begin()?;
        let mut done = Vec::with_capacity(calls.len());
        for call in calls {
            let measured = prepare(&mut transaction, config, randomness, upkeep, |execution| {
                Ok(match call {
                    PageCall::Save(impression) => {
                        execution.save(impression)?;
                        None
                    }
                    PageCall::Measure(conversion) => {
                        let report_bytes = gate.report_length(conversion);
                        Some(execution.measure(conversion, report_bytes)?)
                    }
                })
            })?;
            done.push(measured);
        }
        upkeep.commit(transaction)?;
        for (call, measured) in calls.iter().zip(&done) {
            if let (PageCall::Measure(conversion), Some(measured)) = (call, measured) {
                let dropped = measured.dropped.as_ref();
                decoy.even_out(conversion, config, measured.own, dropped);
            }
        }
        Ok(done)
    }

    /// Makes one call that measures.
    fn measure_one(&mut self, call: &PageCall) -> Result<MeasureResult, AgentError<S::Error>> {
        let measured = self.measure(std::slice::from_ref(call));
        let measured = measured.map_err(AgentError::Store)?.pop().flatten();
        Ok(measured.unwrap_or_default())
    }

    /// Measures a conversion and seals its report.
    fn answer(
        &mut self,
        conversion: &ConversionCall,
    ) -> Result<ConversionAnswer, AgentError<S::Error>> {
        let measured = self.measure_one(&PageCall::Measure(conversion.clone()))?;
        Ok(ConversionAnswer {
            report: self.gate.seal(unsealed(conversion, measured.report)),
            decision: measured.decision,
        })
    }

    /// Measures a conversion (the draft's "measure a conversion"). What is charged is durable when
    /// this returns.
    ///
    /// A valid call gives a report, whatever is stored, spent or disabled. Only the content of the
    /// report differs. Every valid call makes one write and two passes: one that charges and one
    /// that finds nothing. One of the passes is over the device, the other over a decoy.
    ///
    /// # Errors
    /// If the call is invalid, or the store failed. Then nothing is charged. If the store failed,
    /// give the page the gate's [null report](Gate::null_report).
    pub fn measure_conversion(
        &mut self,
        call: &Call<'_>,
        options: &ConversionOptions,
    ) -> Result<ConversionAnswer, AgentError<S::Error>> {
        let conversion = self.gate.conversion(call, options)?;
        self.answer(&conversion)
    }

    /// Creates the attribution object of a conversion that several intermediaries share, each as
    /// its own querier (the paper's cross-report optimisation). The shared filters pay here, once.
    ///
    /// # Errors
    /// If the call or a participant is invalid, the policy does not allow intermediaries as
    /// queriers, or the store failed. If the store failed, give the page a random handle.
    pub fn create_shared_conversion(
        &mut self,
        call: &Call<'_>,
        options: &ConversionOptions,
        participants: &[&str],
    ) -> Result<SharedConversionAnswer, AgentError<S::Error>> {
        let conversion = self
            .gate
            .shared_conversion(call, options, participants, None)?;
        Ok(self.measure_one(&PageCall::Measure(conversion))?.into())
    }

    /// Gives a participant its share of a shared conversion: the credit of the impressions that its
    /// options name. The caller receives the report, and its querier budget pays. The caller is the
    /// intermediary, or the conversion site if it calls itself.
    ///
    /// # Errors
    /// If the call is invalid, the policy does not allow intermediaries as queriers, or the store
    /// failed.
    pub fn take_share(
        &mut self,
        shared: SharedConversion,
        call: &Call<'_>,
        options: &ConversionOptions,
    ) -> Result<ConversionAnswer, AgentError<S::Error>> {
        let conversion = self.gate.share(shared, call, options)?;
        self.answer(&conversion)
    }

    /// The eras of the epochs that are kept, oldest first, with the rules of each. The last era may
    /// not have begun yet.
    ///
    /// # Errors
    /// If the store failed.
    pub fn eras(&mut self) -> Result<Vec<Era>, S::Error> {
        Ok(self.storage.begin()?.state()?.timeline.eras().to_vec())
    }

    /// The status of the API: whether it is enabled, and when it can measure again if it cannot
    /// now.
    ///
    /// # Errors
    /// If the store failed.
    pub fn status(&mut self, now: Timestamp) -> Result<Status, S::Error> {
        let view = self.storage.begin()?;
        let (state, revision) = (view.state()?, view.revision()?);
        let current = state.timeline.epoch(now);
        let first = match state
            .last_clear
            .and_then(|clear| state.timeline.epoch(clear))
        {
            Some(cleared) => state.first_epoch.max(next(cleared)),
            None => state.first_epoch,
        };
        let closed = current.is_some_and(|current| current < first);
        Ok(Status {
            enabled: state.enabled,
            closed_until: state.timeline.beginning(first).filter(|_| closed),
            epoch: current,
            revision,
        })
    }

    /// Enables or disables the API (the draft's section Disabling the Attribution API). A page
    /// cannot tell.
    ///
    /// # Errors
    /// If the store failed.
    pub fn set_enabled(&mut self, enabled: bool) -> Result<(), S::Error> {
        execute!(self, |execution| {
            execution.state.enabled = enabled;
            Ok(())
        })
    }
}
