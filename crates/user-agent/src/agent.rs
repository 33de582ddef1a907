//! The user agent: everything between a page's call and the budget manager.

use std::fmt;
use std::ops::Range;

use bigbird::attribution::Edit;
use bigbird::{
    Balance, Capacity, Decision, EpochIndex, Filter, Policies as _, Timestamp, UserAction,
};

use crate::call::{Action, Call, ConversionCall, Measurement, Numbering, PageCall};
use crate::clock::{Era, next, period_ms};
use crate::config::{Config, Randomness};
use crate::decoy::Decoy;
use crate::error::{AgentError, ApiError, RangeError};
use crate::explain::{Explanation, FilterName};
use crate::gate::Gate;
use crate::measure::Measured;
use crate::memory::Memory;
use crate::options::{ConversionOptions, ImpressionOptions};
use crate::report::{Seal, SealedReport};
use crate::shared::SharedConversion;
use crate::site::{Localhost, Site};
use crate::storage::{ChangeSet, Place, Row, Rows, Selection, State, Storage, Transaction, View};
use crate::upkeep::Upkeep;
use crate::work::Work;

/// What a conversion gives.
#[derive(Debug, Clone, PartialEq)]
#[must_use = "a report that was paid for should be released"]
pub struct Answer {
    /// The sealed report. When it may be given to the page is not for whoever made it ready to say: see
    /// [`Scheduler`](crate::protocol::Scheduler).
    pub report: SealedReport,
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
    /// The handle by which shares are taken; of its time holds the same as of a report's.
    pub shared: SharedConversion,
    /// What happened and why; it stays on the device.
    pub decision: Decision,
}

impl From<Measured> for SharedAnswer {
    fn from(measured: Measured) -> Self {
        Self {
            shared: measured.shared,
            decision: measured.decision,
        }
    }
}

/// Whether the API works: what people may want to see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// Whether the user lets it work.
    pub enabled: bool,
    /// When the first epoch begins that can be measured, if the current one cannot be: history was
    /// cleared, or something was measured under a clock that was ahead.
    pub closed_until: Option<Timestamp>,
}

/// What a page's call gives.
#[derive(Debug, Clone, PartialEq)]
pub enum PageAnswer {
    /// An impression was saved, or not: nobody is told.
    Saved,
    /// The report of a conversion, or of a share of one.
    Report(Answer),
    /// A shared conversion.
    Shared(SharedAnswer),
}

/// A user agent with a store.
#[derive(Debug)]
pub struct UserAgent<S, R> {
    gate: Gate,
    storage: S,
    randomness: R,
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
    while config.store_limits.is_full(transaction.units(epoch)?)
        && let Some(largest) = transaction.largest_site(epoch)?
    {
        let mut changes = ChangeSet::default();
        changes.edited.push(Edit {
            epoch,
            order: largest.oldest,
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
            let (config, randomness) = ($agent.gate.config(), &mut $agent.randomness);
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
            gate: Gate::new(config),
            storage,
            randomness,
            reserved: 0..0,
            upkeep: Upkeep::default(),
        }
    }

    /// The same user agent, with reports that are sealed so.
    #[must_use]
    pub fn sealing(mut self, sealer: impl Seal + Send + Sync + 'static) -> Self {
        self.gate = self.gate.sealing(sealer);
        self
    }

    /// Its gate, for other threads.
    pub fn gate(&self) -> &Gate {
        &self.gate
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
        self.gate.config()
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
            [] => now.0.abs_diff(at.0) >= period_ms(self.config().epoch_days).unsigned_abs(),
            _ => timeline.epoch(at) != timeline.epoch(now),
        };
        if ended {
            return self.begin_user_action(now);
        }
        Ok(action)
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
            .map(|(call, options)| self.gate.impression(&call, options))
            .collect();
        let good = parsed.iter().flatten().cloned();
        let calls: Vec<PageCall> = good.map(PageCall::Save).collect();
        if !calls.is_empty() {
            self.perform(&calls)?;
        }
        Ok(parsed.into_iter().map(|it| it.map(|_| ())).collect())
    }

    /// Makes calls that came together, in their order, with one write. Each has a user action, or
    /// [gets one](PageCall::or_by) before.
    ///
    /// # Errors
    /// If the store failed; nothing of any of them happened then.
    pub fn perform(&mut self, calls: &[PageCall]) -> Result<Vec<PageAnswer>, S::Error> {
        let measured = self.measure(calls)?;
        let answers = calls.iter().zip(measured).map(|pair| match pair {
            (PageCall::Measure(conversion), Some(measured)) => match conversion.measurement {
                Measurement::Create { .. } => PageAnswer::Shared(measured.into()),
                _ => PageAnswer::Report(self.report(conversion, measured)),
            },
            _ => PageAnswer::Saved,
        });
        Ok(answers.collect())
    }

    /// Makes calls, and gives what those measured that do.
    fn measure(&mut self, calls: &[PageCall]) -> Result<Vec<Option<Measured>>, S::Error> {
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
            let measured = prepare(&mut transaction, config, randomness, upkeep, |work| {
                Ok(match call {
                    PageCall::Save(impression) => {
                        work.save(impression)?;
                        None
                    }
                    PageCall::Measure(conversion) => Some(work.measure(conversion)?),
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
    fn measure_one(&mut self, call: &PageCall) -> Result<Measured, AgentError<S::Error>> {
        let measured = self.measure(std::slice::from_ref(call));
        let measured = measured.map_err(AgentError::Store)?.pop().flatten();
        Ok(measured.unwrap_or_default())
    }

    fn report(&self, conversion: &ConversionCall, measured: Measured) -> Answer {
        Answer {
            report: self.gate.sealed(&conversion.envelope(), measured.report),
            decision: measured.decision,
        }
    }

    /// Measures, and gives the report.
    fn answer(&mut self, conversion: &ConversionCall) -> Result<Answer, AgentError<S::Error>> {
        let measured = self.measure_one(&PageCall::Measure(conversion.clone()))?;
        Ok(self.report(conversion, measured))
    }

    /// Measures a conversion (the draft's "measure a conversion"). What is charged is durable when
    /// this returns.
    ///
    /// A call that is valid gives a report, whatever is stored, spent or switched off; only what is
    /// in it differs. Every call makes one write, and the same two passes, one that charges and one
    /// that finds nothing: one over the device, the other over a decoy.
    ///
    /// # Errors
    /// If the call is invalid, or the store failed; nothing is charged then, and the gate's
    /// [null report](Gate::null_report) is what the page should get.
    pub fn measure_conversion(
        &mut self,
        call: &Call<'_>,
        options: &ConversionOptions,
    ) -> Result<Answer, AgentError<S::Error>> {
        let conversion = self.gate.conversion(call, options)?;
        self.answer(&conversion)
    }

    /// Creates the attribution object of a conversion that several intermediaries share, each as
    /// its own querier (the paper's cross-report optimisation). The shared filters pay here, once.
    ///
    /// # Errors
    /// If the call or a participant is invalid, the profile has no intermediaries as queriers, or
    /// the store failed; then a random handle is what the page should get.
    pub fn create_shared_conversion(
        &mut self,
        call: &Call<'_>,
        options: &ConversionOptions,
        participants: &[&str],
    ) -> Result<SharedAnswer, AgentError<S::Error>> {
        let conversion = self
            .gate
            .shared_conversion(call, options, participants, None)?;
        Ok(self.measure_one(&PageCall::Measure(conversion))?.into())
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
        let conversion = self.gate.share(shared, call, options)?;
        self.answer(&conversion)
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
        let conversion = self.gate.conversion(call, options)?;
        self.dry_run(&conversion).map_err(AgentError::Store)
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
        let conversion = self
            .gate
            .shared_conversion(call, options, participants, None)?;
        self.dry_run(&conversion).map_err(AgentError::Store)
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
        let conversion = self.gate.share(shared, call, options)?;
        self.dry_run(&conversion).map_err(AgentError::Store)
    }

    /// Removes the impressions of a site at the site's own request, by a `Clear-Site-Data` response
    /// from one of its hosts (the draft's "clear impressions for a site"). Budgets stay.
    ///
    /// # Errors
    /// If the store failed. A host that has no site has no impressions.
    pub fn clear_impressions_for_site(&mut self, host: &str) -> Result<(), S::Error> {
        // Whatever the development switch says, so that what was saved can be cleared.
        let site = Site::parse_with(host, Localhost::Allowed, &*self.config().domains);
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
        let sites = self.config().sites(sites.iter().map(String::as_str));
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

    /// Begins anew after a clock that was far ahead: what was measured then has closed every epoch until
    /// that time (see [`Status::closed_until`]). The user says that the clock is right now.
    ///
    /// Everything is forgotten, as when all history is [cleared](Self::clear_browsing_history): no epoch up
    /// to and including the current one is ever measured again. Those that follow get new indices, so
    /// that none of them was ever charged, and nothing that was spent comes back. If the clock is
    /// behind instead, a week of the future can be paid for twice, though never for the same
    /// impressions.
    ///
    /// # Errors
    /// If the store failed.
    pub fn restart_epochs(&mut self, now: Timestamp) -> Result<(), S::Error> {
        self.upkeep.start_over();
        perform!(self, |work| {
            let State {
                last_clear,
                latest,
                latest_use,
                first_epoch,
                ..
            } = work.state;
            let moments = [last_clear, latest, latest_use].into_iter().flatten();
            let last = moments.fold(now, Timestamp::max);
            let unused = next(work.epoch(last)).max(first_epoch);
            if work.state.timeline.eras().is_empty() {
                // Nothing was used; or the store was reset, and what is closed must stay so.
                return Ok(());
            }
            let rules = work.config.rules();
            work.state.timeline.renumber(&rules, now, unused);
            work.state.last_clear = Some(now);
            work.state.latest = latest.map(|_| now);
            work.state.latest_use = Some(now);
            work.close_before(next(unused));
            Ok(())
        })
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

    /// Whether the API works, and if not, from when on.
    ///
    /// # Errors
    /// If the store failed.
    pub fn status(&mut self, now: Timestamp) -> Result<Status, S::Error> {
        let state = self.storage.begin()?.state()?;
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
        })
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
        self.start_upkeep();
        while self.upkeep(now)? {}
        Ok(())
    }

    /// Lets [`upkeep`](Self::upkeep) be due.
    pub fn start_upkeep(&mut self) {
        self.upkeep.start_over();
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
        let config = self.gate.config();
        let randomness = &mut self.randomness;
        let done = self.upkeep.slice(transaction, config, randomness, now);
        if done.is_err() {
            self.upkeep.start_over();
        }
        done
    }

    /// What a call that measures would give: the same, of which nothing is applied.
    fn dry_run(&mut self, conversion: &ConversionCall) -> Result<Explanation, S::Error> {
        let view = self.storage.begin()?;
        let work = Work::new(&view, self.gate.config(), &mut self.randomness)?;
        work.explain(conversion)
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
            // A closing must not be forgotten while the epochs are open in which it holds: with this
            // they are closed when nobody can reach them any more.
            work.state.latest = work.state.latest.max(Some(now));
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
