//! The user agent: everything between a page's call and the budget manager.

use std::fmt;
use std::ops::Range;

use bigbird::attribution::Edit;
use bigbird::{
    AttributionQuery, Balance, Capacity, Decision, EpochIndex, Filter, Histogram, Policies as _,
    Timestamp, UserAction,
};

use crate::call::{Action, Call, Caller, ConversionCall, ImpressionCall, Numbering, Querier};
use crate::clock::{Era, next, period_ms};
use crate::config::{Config, Randomness};
use crate::decoy::Decoy;
use crate::error::{AgentError, ApiError, RangeError};
use crate::explain::{Explanation, FilterName};
use crate::measure::{Measured, Measurement};
use crate::memory::Memory;
use crate::options::{ConversionOptions, ImpressionOptions};
use crate::release::Held;
use crate::report::{Report, Seal, SealedReport, Withhold};
use crate::shared::SharedConversion;
use crate::site::{Localhost, Site};
use crate::storage::{ChangeSet, Place, Row, Rows, Selection, State, Storage, Transaction, View};
use crate::upkeep::Upkeep;
use crate::work::Work;

/// What a conversion gives.
#[derive(Debug, Clone, PartialEq)]
#[must_use = "a report that was paid for should be released"]
pub struct Answer {
    /// The sealed report, held until it is time.
    pub report: Held<SealedReport>,
    /// What happened and why; it stays on the device.
    pub decision: Decision,
}

/// One filter of one epoch, with what it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budget {
    /// Which epoch, counted from the start of the device's epochs.
    pub epoch: i64,
    /// Which filter, by the number of its site.
    pub filter: Filter,
    /// Its site, if it is a site's.
    pub site: Option<Site>,
    /// What it holds.
    pub balance: Balance,
}

impl Budget {
    /// Filters that were charged, by epoch and in the order of [`Filter`]: at most so many of those
    /// behind a place, and the place behind which there are more.
    ///
    /// # Errors
    /// If the store failed.
    pub fn page<E>(
        view: &impl View<E>,
        behind: Option<Place>,
        most: usize,
    ) -> Result<(Vec<Self>, Option<Place>), E> {
        let state = view.state()?;
        // Of epochs that were pruned, some may still be on their way out.
        let first = [state.first_epoch.0, i64::MIN, i64::MIN];
        let mut filters = Vec::new();
        let mut visit = |row: Row<'_>| {
            if let Row::Filter(epoch, filter, consumed) = row {
                filters.push((row.place(), epoch, filter, consumed));
            }
        };
        let mut more = view.visit_some(Rows::Filters, behind.max(Some(first)), most, &mut visit)?;
        filters.sort_unstable();
        more |= filters.len() > most;
        filters.truncate(most);
        let last = filters.last().map(|(place, ..)| *place);
        let budget = |(_, epoch, filter, consumed): (Place, EpochIndex, Filter, _)| {
            let policy = state.policy(epoch);
            let capacity = policy.map(|policy| policy.capacities().of(filter.kind()));
            let capacity = capacity.unwrap_or(Capacity::Finite(consumed));
            Ok(Self {
                epoch: epoch.0,
                filter,
                site: match filter.site() {
                    Some(id) => view.site(id)?,
                    None => None,
                },
                balance: Balance { capacity, consumed },
            })
        };
        let budgets: Result<_, _> = filters.into_iter().map(budget).collect();
        Ok((budgets?, last.filter(|_| more)))
    }

    /// Every filter that was charged.
    ///
    /// # Errors
    /// If the store failed.
    pub fn all<E>(view: &impl View<E>) -> Result<Vec<Self>, E> {
        let (budgets, _) = Self::page(view, None, usize::MAX)?;
        Ok(budgets)
    }
}

impl fmt::Display for Budget {
    /// Its name, such as `querier budget of shop.example`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        FilterName(self.filter, self.site.as_ref()).fmt(f)
    }
}

/// What creating a shared conversion gives.
#[derive(Debug, Clone, PartialEq)]
#[must_use = "shares of a conversion that was paid for should be taken"]
pub struct SharedAnswer {
    /// The handle by which shares are taken, held until it is time.
    pub shared: Held<SharedConversion>,
    /// What happened and why; it stays on the device.
    pub decision: Decision,
}

/// A user agent with a store.
#[derive(Debug)]
pub struct UserAgent<S, R> {
    config: Config,
    storage: S,
    randomness: R,
    sealer: Box<dyn Seal + Send>,
    /// Ids of user actions that this user agent may give out. They are taken from the store many
    /// at a time, so that a click costs no write; what is left at the end is never used.
    reserved: Range<u64>,
    decoy: Decoy,
    pub(crate) upkeep: Upkeep,
}

/// How many ids of user actions are taken at a time.
const RESERVED: u64 = 1024;

/// Makes a call: what it changes is written down, and durable when this returns. **Every call writes
/// once**, also if nothing changed: a call that charged or kept nothing must not be told from another
/// by that.
fn perform<T: Transaction<E>, E, R: Randomness, A>(
    mut transaction: T,
    config: &Config,
    randomness: &mut R,
    upkeep: &mut Upkeep,
    call: impl FnOnce(&mut Work<'_, T, E, R>) -> Result<A, E>,
) -> Result<A, E> {
    let answer = prepare(&mut transaction, config, randomness, upkeep, call)?;
    upkeep.commit(transaction)?;
    Ok(answer)
}

/// One of several calls that are made durable together.
fn prepare<T: Transaction<E>, E, R: Randomness, A>(
    transaction: &mut T,
    config: &Config,
    randomness: &mut R,
    upkeep: &mut Upkeep,
    call: impl FnOnce(&mut Work<'_, T, E, R>) -> Result<A, E>,
) -> Result<A, E> {
    let mut work = Work::new(transaction, config, randomness)?;
    let answer = call(&mut work)?;
    let saved_in = work.saved_in;
    let changes = work.into_changes();
    transaction.apply(&changes)?;
    upkeep.note(&changes);
    if let Some(epoch) = saved_in {
        make_room(transaction, config, epoch)?;
    }
    Ok(answer)
}

/// Lets impressions go while an epoch has more than the limit: one for each unit of the impression that
/// was saved, at most.
fn make_room<T: Transaction<E>, E>(
    transaction: &mut T,
    config: &Config,
    epoch: EpochIndex,
) -> Result<(), E> {
    let displaced = |transaction: &T| -> Result<Option<u32>, E> {
        let units = transaction.units(epoch)?;
        let largest = match config.store_limits.is_full(units) {
            true => transaction.largest_site(epoch)?,
            false => None,
        };
        Ok(config.store_limits.displaced(units, largest))
    };
    while let Some(order) = displaced(transaction)? {
        let mut changes = ChangeSet::default();
        changes.edited.push(Edit {
            epoch,
            order,
            audience: None,
        });
        transaction.apply(&changes)?;
    }
    Ok(())
}

/// Makes a call on a user agent.
macro_rules! perform {
    ($agent:expr, $call:expr) => {
        $agent.storage.begin().and_then(|transaction| {
            let (config, randomness) = (&$agent.config, &mut $agent.randomness);
            perform(transaction, config, randomness, &mut $agent.upkeep, $call)
        })
    };
}

impl<R: Randomness> UserAgent<Memory, R> {
    /// A user agent that keeps everything in memory.
    pub fn in_memory(config: Config, randomness: R) -> Self {
        Self::assemble(config, Memory::new(), randomness)
    }
}

impl<S: Storage, R: Randomness> UserAgent<S, R> {
    /// A user agent on a store, opened at a moment.
    ///
    /// If the store was used under other rules (capacities, cap, charging rules or length of epochs),
    /// those of this configuration hold from the first epoch that begins after now and after the
    /// latest call; of several changes before then, the last one counts. Every epoch keeps the rules
    /// it began with, so that no change of rules brings a budget back.
    ///
    /// # Errors
    /// If the store failed.
    pub fn new(
        config: Config,
        storage: S,
        randomness: R,
        now: Timestamp,
    ) -> Result<Self, S::Error> {
        let mut agent = Self::assemble(config, storage, randomness);
        perform!(agent, |work| {
            let State {
                last_clear,
                latest,
                latest_use,
                ..
            } = work.state;
            let moments = [last_clear, latest, latest_use].into_iter().flatten();
            let after = moments.fold(now, Timestamp::max);
            work.state.timeline.change(&work.config.rules(), after);
            Ok(())
        })?;
        Ok(agent)
    }

    fn assemble(config: Config, storage: S, randomness: R) -> Self {
        Self {
            decoy: Decoy::new(&config.policy),
            config,
            storage,
            randomness,
            sealer: Box::new(Withhold),
            reserved: 0..0,
            upkeep: Upkeep::default(),
        }
    }

    /// The same user agent, with reports that are sealed so.
    #[must_use]
    pub fn sealing(mut self, sealer: impl Seal + Send + 'static) -> Self {
        self.sealer = Box::new(sealer);
        self
    }

    /// The store.
    pub fn storage(&self) -> &S {
        &self.storage
    }

    /// The store, for maintenance of its own. Whatever is changed behind the user agent's back, a
    /// budget must not come back by it.
    pub fn storage_mut(&mut self) -> &mut S {
        &mut self.storage
    }

    /// The store, when the user agent ends.
    pub fn into_storage(self) -> S {
        self.storage
    }

    /// Where its random numbers come from.
    pub fn randomness_mut(&mut self) -> &mut R {
        &mut self.randomness
    }

    /// How it is set up.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// A user action begins: the user clicked, or typed an address.
    ///
    /// # Errors
    /// If the store failed.
    pub fn begin_user_action(&mut self, now: Timestamp) -> Result<Action, S::Error> {
        if self.reserved.is_empty() {
            self.reserved = perform!(self, |work| {
                let first = work.state.next_user_action;
                work.state.next_user_action = first.saturating_add(RESERVED);
                Ok(first..work.state.next_user_action)
            })?;
        }
        let id = UserAction(self.reserved.next().unwrap_or(u64::MAX));
        Ok(Action(Numbering::Begun { id, at: now }))
    }

    /// The same user action, or a new one if it has ended with its epoch: for a page that stays
    /// open over the change.
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
            // Wherever epochs will begin, these moments are in two.
            [] => now.0.abs_diff(at.0) >= period_ms(self.config.epoch_days).unsigned_abs(),
            _ => timeline.epoch(at) != timeline.epoch(now),
        };
        if ended {
            return self.begin_user_action(now);
        }
        Ok(action)
    }

    /// Whether an impression could be saved: what a page's promise depends on, and all of it. A
    /// browser can answer the page with this and save afterwards.
    ///
    /// # Errors
    /// If the call is invalid.
    pub fn check_impression(
        &self,
        call: &Call<'_>,
        options: &ImpressionOptions,
    ) -> Result<(), ApiError> {
        self.parse_impression(*call, options).map(|_| ())
    }

    /// Saves an impression (the draft's "save an impression"). The page learns whether its options
    /// were valid, and nothing else: not whether the impression was kept, nor whether the API is
    /// enabled. One write is made in any case.
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

    /// Saves many impressions with one write, and says of each what
    /// [`save_impression`](Self::save_impression) would have said.
    ///
    /// # Errors
    /// If the store failed; none is saved then.
    pub fn save_impressions<'a>(
        &mut self,
        impressions: impl IntoIterator<Item = (Call<'a>, &'a ImpressionOptions)>,
    ) -> Result<Vec<Result<(), ApiError>>, S::Error> {
        let parsed: Vec<_> = impressions
            .into_iter()
            .map(|(call, options)| self.parse_impression(call, options))
            .collect();
        if parsed.iter().any(Result::is_ok) {
            let (config, randomness) = (&self.config, &mut self.randomness);
            let mut transaction = self.storage.begin()?;
            for impression in parsed.iter().flatten() {
                prepare(
                    &mut transaction,
                    config,
                    randomness,
                    &mut self.upkeep,
                    |work| work.save(impression),
                )?;
            }
            self.upkeep.commit(transaction)?;
        }
        Ok(parsed.into_iter().map(|it| it.map(|_| ())).collect())
    }

    /// Measures a conversion (the draft's "measure a conversion"). What is charged is durable when
    /// this returns.
    ///
    /// A call that is valid gives a report, whatever is stored, spent or switched off; only what is
    /// in it differs. Every call makes one write, and the same two passes, one that charges and one
    /// that finds nothing: one over the device, the other over a decoy.
    ///
    /// # Errors
    /// If the call is invalid, or the store failed; nothing is charged then, and
    /// [`null_answer`](Self::null_answer) is what the page should get.
    pub fn measure_conversion(
        &mut self,
        call: &Call<'_>,
        options: &ConversionOptions,
    ) -> Result<Answer, AgentError<S::Error>> {
        let conversion = self.parse(call, options)?;
        self.answer(&conversion, Measurement::Conversion)
    }

    /// The answer to a conversion of which nothing comes, for when the store has failed: to the
    /// page it looks like any other.
    ///
    /// # Errors
    /// If the call is invalid.
    pub fn null_answer(
        &mut self,
        call: &Call<'_>,
        options: &ConversionOptions,
    ) -> Result<Answer, ApiError> {
        let conversion = self.parse(call, options)?;
        let null = Histogram::null(conversion.valid.histogram_size);
        Ok(Answer {
            report: self.sealed(&conversion, null),
            decision: Decision::default(),
        })
    }

    /// Creates the attribution object of a conversion that several intermediaries share, each as
    /// its own querier (the paper's cross-report optimisation). The shared filters pay here, once.
    ///
    /// # Errors
    /// If the call or a participant is invalid, the profile has no intermediaries as queriers, or
    /// the store failed; then [`null_shared_answer`](Self::null_shared_answer) is what the page
    /// should get.
    pub fn create_shared_conversion(
        &mut self,
        call: &Call<'_>,
        options: &ConversionOptions,
        participants: &[&str],
    ) -> Result<SharedAnswer, AgentError<S::Error>> {
        let conversion = self.parse(call, options)?;
        let participants = self.parse_participants(participants)?;
        let measured = self.measure(&conversion, Measurement::Create(&participants));
        let measured = measured.map_err(AgentError::Store)?;
        Ok(SharedAnswer {
            shared: self.hold(call, measured.shared),
            decision: measured.decision,
        })
    }

    /// The answer to a shared conversion of which nothing comes, for when the store has failed: a
    /// handle that leads nowhere.
    ///
    /// # Errors
    /// If the call is invalid.
    pub fn null_shared_answer(
        &mut self,
        call: &Call<'_>,
        options: &ConversionOptions,
        participants: &[&str],
    ) -> Result<SharedAnswer, ApiError> {
        self.parse(call, options)?;
        self.parse_participants(participants)?;
        let shared = SharedConversion(self.randomness.handle(0));
        Ok(SharedAnswer {
            shared: self.hold(call, shared),
            decision: Decision::default(),
        })
    }

    /// Gives a participant its share of a shared conversion: the credit of the impressions its
    /// options name, paid from its own budget. Whoever calls receives the report and pays: the
    /// intermediary, or the conversion site if it calls itself.
    ///
    /// # Errors
    /// If the call is invalid, the profile has no intermediaries as queriers, or the store failed.
    pub fn take_share(
        &mut self,
        shared: SharedConversion,
        call: &Call<'_>,
        options: &ConversionOptions,
    ) -> Result<Answer, AgentError<S::Error>> {
        let conversion = self.parse_share(call, options)?;
        self.answer(&conversion, Measurement::Share(shared))
    }

    /// Says what a conversion would give and why. Nothing is charged, stored or chosen. For
    /// developers on the device.
    ///
    /// # Errors
    /// If the call is invalid, or the store failed.
    pub fn explain(
        &mut self,
        call: &Call<'_>,
        options: &ConversionOptions,
    ) -> Result<Explanation, AgentError<S::Error>> {
        let conversion = self.parse(call, options)?;
        let explained = self.dry_run(&conversion, Measurement::Conversion);
        explained.map_err(AgentError::Store)
    }

    /// Says what [creating a shared conversion](Self::create_shared_conversion) would charge, as
    /// [`explain`](Self::explain) does.
    ///
    /// # Errors
    /// If the call or a participant is invalid, or the store failed.
    pub fn explain_shared_conversion(
        &mut self,
        call: &Call<'_>,
        options: &ConversionOptions,
        participants: &[&str],
    ) -> Result<Explanation, AgentError<S::Error>> {
        let conversion = self.parse(call, options)?;
        let participants = self.parse_participants(participants)?;
        let explained = self.dry_run(&conversion, Measurement::Create(&participants));
        explained.map_err(AgentError::Store)
    }

    /// Says what [taking a share](Self::take_share) would give and why, as
    /// [`explain`](Self::explain) does.
    ///
    /// # Errors
    /// If the call is invalid, or the store failed.
    pub fn explain_share(
        &mut self,
        shared: SharedConversion,
        call: &Call<'_>,
        options: &ConversionOptions,
    ) -> Result<Explanation, AgentError<S::Error>> {
        let conversion = self.parse_share(call, options)?;
        let explained = self.dry_run(&conversion, Measurement::Share(shared));
        explained.map_err(AgentError::Store)
    }

    /// Removes the impressions of a site at the site's own request, by a `Clear-Site-Data` response
    /// from one of its hosts (the draft's "clear impressions for a site"). Budgets stay.
    ///
    /// # Errors
    /// If the store failed. A host that has no site has no impressions.
    pub fn clear_impressions_for_site(&mut self, host: &str) -> Result<(), S::Error> {
        // Whatever the development switch says, so that what was saved can be cleared.
        let site = Site::parse_with(host, Localhost::Allowed, &*self.config.domains);
        let Ok(site) = site else {
            return Ok(());
        };
        perform!(self, |work| match work.view.site_id(&site)? {
            Some(id) => work.forget_site(id),
            None => Ok(()),
        })
    }

    /// Clears browsing history for attribution at the user's request (the draft's algorithm of
    /// that name).
    ///
    /// With `forget_visits`, traces of the sites go, or of all sites if none are named; and no
    /// epoch up to and including the current one is ever attributed to again, so that what was
    /// spent need not be remembered. Without, no conversion of the sites is measured in those
    /// epochs any more, and at least one must be named.
    ///
    /// # Errors
    /// If a site is invalid, none is named where one must be, or the store failed.
    pub fn clear_browsing_history(
        &mut self,
        sites: &[String],
        forget_visits: bool,
        now: Timestamp,
    ) -> Result<(), AgentError<S::Error>> {
        self.start_clearing(sites, forget_visits, now)?;
        if forget_visits {
            while self.upkeep(now).map_err(AgentError::Store)? {}
        }
        Ok(())
    }

    /// As [`clear_browsing_history`](Self::clear_browsing_history): when it returns, clearing is in
    /// force for every call that follows; but what is stored goes with the slices of
    /// [`upkeep`](Self::upkeep), which is due from then on, so that nobody waits for it.
    ///
    /// # Errors
    /// As there.
    pub fn start_clearing(
        &mut self,
        sites: &[String],
        forget_visits: bool,
        now: Timestamp,
    ) -> Result<(), AgentError<S::Error>> {
        let sites = self.config.sites(sites.iter().map(String::as_str));
        let sites = sites.map_err(ApiError::from)?;
        if !forget_visits && sites.is_empty() {
            let error = RangeError::new("sites", "at least 1 unless visits are forgotten", 0);
            return Err(ApiError::from(error).into());
        }
        let cleared = if forget_visits {
            self.forget_visits(&sites, now)
        } else {
            self.close_sites(&sites, now)
        };
        cleared.map_err(AgentError::Store)
    }

    /// Every filter that was charged, in the epochs that are kept, by epoch and in the order of
    /// [`Filter`]: what people may want to see.
    ///
    /// # Errors
    /// If the store failed.
    pub fn budgets(&mut self) -> Result<Vec<Budget>, S::Error> {
        Budget::all(&self.storage.begin()?)
    }

    /// A page of [`budgets`](Self::budgets): see [`Budget::page`].
    ///
    /// # Errors
    /// If the store failed.
    pub fn budgets_page(
        &mut self,
        behind: Option<Place>,
        most: usize,
    ) -> Result<(Vec<Budget>, Option<Place>), S::Error> {
        Budget::page(&self.storage.begin()?, behind, most)
    }

    /// The rules of epochs, from the first that is kept: each era has its own. The last one may still
    /// be to come.
    ///
    /// # Errors
    /// If the store failed.
    pub fn eras(&mut self) -> Result<Vec<Era>, S::Error> {
        Ok(self.storage.begin()?.state()?.timeline.eras().to_vec())
    }

    /// Lets the API work, or stops it (the draft's section Disabling the Attribution API). A page
    /// cannot tell.
    ///
    /// # Errors
    /// If the store failed.
    pub fn set_enabled(&mut self, enabled: bool) -> Result<(), S::Error> {
        perform!(self, |work| {
            work.state.enabled = enabled;
            Ok(())
        })
    }

    /// Removes what no request can reach any more, all of it: see [`upkeep`](Self::upkeep), which a
    /// browser calls instead, as it does so in slices.
    ///
    /// # Errors
    /// If the store failed.
    pub fn maintain(&mut self, now: Timestamp) -> Result<(), S::Error> {
        self.upkeep.start_over();
        while self.upkeep(now)? {}
        Ok(())
    }

    /// Whether [`upkeep`](Self::upkeep) has something to do: once a day, after history was cleared, and
    /// when many names were given.
    pub fn is_upkeep_due(&self, now: Timestamp) -> bool {
        self.upkeep.is_due(now)
    }

    /// Removes a slice of what no request can reach any more, and says whether there is more to do:
    /// rows of epochs before the longest lookback, whether or not anything was ever charged in them,
    /// expired impressions, and the names of sites that nothing else names. To be called while it is
    /// [due](Self::is_upkeep_due) and nobody waits. No call can tell whether it was.
    ///
    /// An epoch after the latest in which a conversion was measured is not closed by it: a clock
    /// that is wrong while nothing is measured does not end the API for good.
    ///
    /// # Errors
    /// If the store failed. It begins anew with the next call then.
    pub fn upkeep(&mut self, now: Timestamp) -> Result<bool, S::Error> {
        let transaction = self.storage.begin()?;
        self.upkeep
            .slice(transaction, &self.config, &mut self.randomness, now)
    }

    fn answer(
        &mut self,
        conversion: &ConversionCall<'_>,
        measurement: Measurement<'_>,
    ) -> Result<Answer, AgentError<S::Error>> {
        let measured = self.measure(conversion, measurement);
        let measured = measured.map_err(AgentError::Store)?;
        Ok(Answer {
            report: self.sealed(conversion, measured.report),
            decision: measured.decision,
        })
    }

    /// Seals the report of a conversion.
    fn sealed(
        &mut self,
        conversion: &ConversionCall<'_>,
        histogram: Histogram,
    ) -> Held<SealedReport> {
        let ConversionCall { call, valid, .. } = conversion;
        let report = Report {
            histogram: &histogram,
            epsilon: valid.terms.epsilon().micro(),
            max_value: valid.terms.max_value(),
            querier: conversion.querier(),
            conversion_site: &conversion.caller.site,
            aggregation_service: &valid.aggregation_service,
        };
        let bytes = self.sealer.seal(&report);
        let histogram = self.config.shows_histograms.then_some(histogram);
        self.hold(call, SealedReport { bytes, histogram })
    }

    /// Holds an answer until its time.
    fn hold<T>(&self, call: &Call<'_>, answer: T) -> Held<T> {
        Held::new(answer, call.now, self.config.release_after_ms)
    }

    fn parse_impression<'a>(
        &self,
        call: Call<'a>,
        options: &ImpressionOptions,
    ) -> Result<ImpressionCall<'a>, ApiError> {
        Ok(ImpressionCall {
            call,
            caller: Caller::parse(&call, &self.config)?,
            valid: options.parse(&self.config)?,
        })
    }

    /// Parses a conversion call, in the draft's order.
    fn parse<'a>(
        &self,
        call: &Call<'a>,
        options: &ConversionOptions,
    ) -> Result<ConversionCall<'a>, ApiError> {
        let caller = Caller::parse(call, &self.config)?;
        self.check_querier(call.querier, caller.intermediary.is_some())?;
        Ok(ConversionCall {
            call: *call,
            caller,
            valid: options.parse(&self.config)?,
        })
    }

    /// Parses a call that takes a share: whoever calls is the querier.
    fn parse_share<'a>(
        &self,
        call: &Call<'a>,
        options: &ConversionOptions,
    ) -> Result<ConversionCall<'a>, ApiError> {
        self.check_querier(Querier::Intermediary, true)?;
        let mut conversion = self.parse(call, options)?;
        if conversion.caller.intermediary.is_some() {
            conversion.call.querier = Querier::Intermediary;
        }
        Ok(conversion)
    }

    /// Parses who is to share a conversion.
    fn parse_participants(&self, participants: &[&str]) -> Result<Vec<Site>, ApiError> {
        self.check_querier(Querier::Intermediary, true)?;
        let most = AttributionQuery::MAX_CALLERS;
        if !(1..=most).contains(&participants.len()) {
            let allowed = format!("1 to {most} sites");
            return Err(RangeError::new("participants", allowed, participants.len()).into());
        }
        Ok(self.config.sites(participants.iter().copied())?)
    }

    fn check_querier(&self, querier: Querier, intermediary: bool) -> Result<(), ApiError> {
        let allowed = match querier {
            Querier::ConversionSite => return Ok(()),
            _ if self.config.policy.matches_own_action() => "the conversion site in this profile",
            Querier::Intermediary if intermediary => return Ok(()),
            Querier::Intermediary => "the conversion site when no intermediary calls",
        };
        Err(RangeError::new("querier", allowed, "the intermediary").into())
    }

    /// What every call that measures does: as much work, whatever it finds.
    fn measure(
        &mut self,
        conversion: &ConversionCall<'_>,
        measurement: Measurement<'_>,
    ) -> Result<Measured, S::Error> {
        let measured = perform!(self, |work| work.measure(conversion, measurement))?;
        let Measured { own, dropped, .. } = &measured;
        let dropped = dropped.as_ref();
        self.decoy.even_out(conversion, &self.config, *own, dropped);
        Ok(measured)
    }

    /// What a call that measures would give: the same, of which nothing is applied.
    fn dry_run(
        &mut self,
        conversion: &ConversionCall<'_>,
        measurement: Measurement<'_>,
    ) -> Result<Explanation, S::Error> {
        let view = self.storage.begin()?;
        let work = Work::new(&view, &self.config, &mut self.randomness)?;
        work.explain(conversion, measurement)
    }

    /// Clearing with `forget_visits`: the epochs that traces could be about are closed, so that no
    /// request reaches them any more, and the traces go with the next slices of upkeep.
    fn forget_visits(&mut self, sites: &[Site], now: Timestamp) -> Result<(), S::Error> {
        self.upkeep.start_over();
        perform!(self, |work| {
            let until = work.state.latest_of(now);
            work.state.last_clear = work.state.last_clear.max(Some(until));
            if let Some(clear) = work.state.last_clear
                && !work.state.timeline.eras().is_empty()
            {
                work.close_before(next(work.epoch(clear)));
            }
            // Only under a clock that was ahead is there anything in later epochs.
            let open = work.state.first_epoch;
            if sites.is_empty() {
                work.remove_impressions(Selection::From(open), |_| true)?;
            }
            for site in sites {
                if let Some(id) = work.view.site_id(site)? {
                    let on_site = Selection::On(id, open);
                    work.remove_impressions(on_site, |impression| impression.site == id)?;
                }
            }
            Ok(())
        })
    }

    /// Clearing without `forget_visits`: no conversion of the sites is measured any more, whoever
    /// asks, in any epoch up to now.
    fn close_sites(&mut self, sites: &[Site], now: Timestamp) -> Result<(), S::Error> {
        perform!(self, |work| {
            // The draft looks at the oldest epoch first, which chooses the start of epochs.
            work.begin_epochs(work.oldest(now));
            work.used_at(now);
            let until = work.epoch(work.state.latest_of(now));
            for site in work.site_ids(sites, true)? {
                work.close_site(site, until)?;
            }
            Ok(())
        })
    }
}

impl State {
    /// The later of a moment and the latest at which anything was measured.
    fn latest_of(&self, now: Timestamp) -> Timestamp {
        self.latest.map_or(now, |latest| latest.max(now))
    }
}
