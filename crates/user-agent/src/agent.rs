//! The user agent: everything between a page's call and the budget manager.

use std::fmt;
use std::ops::Range;

use bigbird::{
    AttributionQuery, Balance, Decision, EpochIndex, Filter, Histogram, Timestamp, UserAction,
};
use thiserror::Error;

use crate::call::{Action, Call, Caller, Conversion, Numbering, Querier};
use crate::config::{Config, Randomness};
use crate::decoy::Decoy;
use crate::error::{AgentError, ApiError, RangeError};
use crate::explain::{Explanation, FilterName};
use crate::measure::{Measured, Measurement};
use crate::memory::Memory;
use crate::options::{ConversionOptions, ImpressionOptions, ValidImpression};
use crate::release::Held;
use crate::shared::SharedConversion;
use crate::site::{Localhost, Site};
use crate::storage::{Setup, State, Storage, Transaction};
use crate::work::Work;

/// What a conversion gives.
#[derive(Debug, Clone, PartialEq)]
#[must_use = "a report that was paid for should be released"]
pub struct Answer {
    /// The report, held until it is time.
    pub report: Held<Histogram>,
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
    /// Ids of user actions that this user agent may give out. They are taken from the store many
    /// at a time, so that a click costs no write; what is left at the end is never used.
    reserved: Range<u64>,
    decoy: Decoy,
}

/// How many ids of user actions are taken at a time.
const RESERVED: u64 = 1024;

impl<R: Randomness> UserAgent<Memory, R> {
    /// A user agent that keeps everything in memory.
    pub fn in_memory(config: Config, randomness: R) -> Self {
        let memory = Memory::new(&config.policy, config.store_limits);
        let mut agent = Self::assemble(config, memory, randomness);
        let setup = Setup::of(&agent.config);
        let Ok(()) = agent.begin().and_then(|mut work| {
            work.state.setup = Some(setup);
            work.finish()
        });
        agent
    }
}

impl<S: Storage, R: Randomness> UserAgent<S, R> {
    /// A user agent on a store.
    ///
    /// # Errors
    /// If the store was set up with other epochs or another policy: what is stored would mean
    /// something else, and budgets could come back. Or if the store failed.
    pub fn new(config: Config, storage: S, randomness: R) -> Result<Self, OpenError<S::Error>> {
        let mut agent = Self::assemble(config, storage, randomness);
        let setup = Setup::of(&agent.config);
        let mut work = agent.begin().map_err(OpenError::Store)?;
        match work.state.setup {
            Some(stored) if stored != setup => {
                return Err(OpenError::Setup {
                    stored: Box::new(stored),
                    setup: Box::new(setup),
                });
            }
            _ => work.state.setup = Some(setup),
        }
        work.finish().map_err(OpenError::Store)?;
        Ok(agent)
    }

    fn assemble(config: Config, storage: S, randomness: R) -> Self {
        Self {
            decoy: Decoy::new(&config.policy),
            config,
            storage,
            randomness,
            reserved: 0..0,
        }
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
            let mut work = self.begin()?;
            let first = work.state.next_user_action;
            let end = first.saturating_add(RESERVED);
            work.state.next_user_action = end;
            work.finish()?;
            self.reserved = first..end;
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
        let clock = self.begin()?.known_clock();
        let ended = match clock {
            Some(clock) => clock.epoch(at) != clock.epoch(now),
            // Wherever epochs will begin, these moments are in two.
            None => now.0.abs_diff(at.0) >= self.config.period_ms().unsigned_abs(),
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
        self.validate_impression(call, options).map(|_| ())
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
        let validated: Vec<_> = impressions
            .into_iter()
            .map(|(call, options)| (call, options, self.validate_impression(&call, options)))
            .collect();
        if validated.iter().all(|(_, _, validated)| validated.is_err()) {
            return Ok(validated
                .into_iter()
                .map(|(_, _, it)| it.map(|_| ()))
                .collect());
        }
        let mut work = self.begin()?;
        let mut answers = Vec::with_capacity(validated.len());
        for (call, options, validated) in validated {
            answers.push(match validated {
                Ok((caller, valid)) => Ok(work.save(&call, &caller, options, &valid)?),
                Err(error) => Err(error),
            });
        }
        // Whether something was kept must not show.
        work.finish_written()?;
        Ok(answers)
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
        let conversion = self.validate(call, options)?;
        let measured = self.measure(&conversion, Measurement::Conversion);
        self.answer(call, measured)
    }

    /// The answer to a conversion of which nothing comes, for when the store has failed: to the
    /// page it looks like any other.
    ///
    /// # Errors
    /// If the call is invalid.
    pub fn null_answer(
        &self,
        call: &Call<'_>,
        options: &ConversionOptions,
    ) -> Result<Answer, ApiError> {
        self.validate(call, options)?;
        Ok(Answer {
            report: self.hold(call, Histogram::null(options.histogram_size)),
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
        let conversion = self.validate(call, options)?;
        let participants = self.validate_participants(participants)?;
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
        self.validate(call, options)?;
        self.validate_participants(participants)?;
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
        let conversion = self.validate_share(call, options)?;
        let measured = self.measure(&conversion, Measurement::Share(shared));
        self.answer(call, measured)
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
        let conversion = self.validate(call, options)?;
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
        let conversion = self.validate(call, options)?;
        let participants = self.validate_participants(participants)?;
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
        let conversion = self.validate_share(call, options)?;
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
        let Ok(site) = Site::parse(host, Localhost::Allowed) else {
            return Ok(());
        };
        let mut tx = self.storage.begin()?;
        if let Some(id) = tx.find_site(&site)? {
            tx.forget_site(id)?;
        }
        tx.finish()
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
        let parsed: Result<Vec<Site>, _> = sites
            .iter()
            .map(|site| Site::parse(site, self.config.localhost))
            .collect();
        let sites = parsed.map_err(ApiError::from)?;
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

    /// Every filter that was charged, in the epochs that are kept: what people may want to see.
    ///
    /// # Errors
    /// If the store failed.
    pub fn budgets(&mut self) -> Result<Vec<Budget>, S::Error> {
        let tx = self.storage.begin()?;
        let filters = tx.filters()?.into_iter();
        filters
            .map(|(epoch, filter, balance)| {
                let site = match filter.site() {
                    Some(id) => tx.site(id)?,
                    None => None,
                };
                Ok(Budget {
                    epoch: epoch.0,
                    filter,
                    site,
                    balance,
                })
            })
            .collect()
    }

    /// Lets the API work, or stops it (the draft's section Disabling the Attribution API). A page
    /// cannot tell.
    ///
    /// # Errors
    /// If the store failed.
    pub fn set_enabled(&mut self, enabled: bool) -> Result<(), S::Error> {
        let mut work = self.begin()?;
        work.state.enabled = enabled;
        work.finish()
    }

    /// Removes what no request can reach any more: expired impressions, epochs before the longest
    /// lookback, and the names of sites that only they had. To be called now and then.
    ///
    /// An epoch after the latest in which a conversion was measured is not closed by it: a clock
    /// that is wrong while nothing is measured does not end the API for good.
    ///
    /// # Errors
    /// If the store failed.
    pub fn maintain(&mut self, now: Timestamp) -> Result<(), S::Error> {
        let mut work = self.begin()?;
        work.tx.remove_expired(now)?;
        if let (Some(clock), Some(latest)) = (work.known_clock(), work.state.latest) {
            let measured = EpochIndex(clock.epoch(latest).0.saturating_add(1));
            let reachable = work.starting_epoch(clock, now);
            work.tx.prune_before(reachable.min(measured))?;
        }
        work.tx.forget_unused_sites()?;
        work.finish()
    }

    fn answer(
        &self,
        call: &Call<'_>,
        measured: Result<Measured, S::Error>,
    ) -> Result<Answer, AgentError<S::Error>> {
        let measured = measured.map_err(AgentError::Store)?;
        Ok(Answer {
            report: self.hold(call, measured.report),
            decision: measured.decision,
        })
    }

    /// Holds an answer until its time.
    fn hold<T>(&self, call: &Call<'_>, answer: T) -> Held<T> {
        Held::new(answer, call.now, self.config.release_after_ms)
    }

    /// Begins a transaction.
    fn begin(&mut self) -> Result<Work<'_, S::Transaction<'_>, S::Error, R>, S::Error> {
        Work::new(self.storage.begin()?, &self.config, &mut self.randomness)
    }

    fn validate_impression(
        &self,
        call: &Call<'_>,
        options: &ImpressionOptions,
    ) -> Result<(Caller, ValidImpression), ApiError> {
        let localhost = self.config.localhost;
        let caller = Caller::parse(call, localhost)?;
        let valid = self.config.limits.validate_impression(options, localhost)?;
        Ok((caller, valid))
    }

    /// Checks a conversion call, in the draft's order.
    fn validate<'a>(
        &self,
        call: &Call<'a>,
        options: &'a ConversionOptions,
    ) -> Result<Conversion<'a>, ApiError> {
        let caller = Caller::parse(call, self.config.localhost)?;
        self.check_querier(call.querier, caller.intermediary.is_some())?;
        let valid = self.config.limits.validate_conversion(
            options,
            &self.config.aggregation_services,
            self.config.localhost,
        )?;
        Ok(Conversion {
            call: *call,
            caller,
            options,
            valid,
        })
    }

    /// Checks a call that takes a share: whoever calls is the querier.
    fn validate_share<'a>(
        &self,
        call: &Call<'a>,
        options: &'a ConversionOptions,
    ) -> Result<Conversion<'a>, ApiError> {
        self.check_querier(Querier::Intermediary, true)?;
        let mut conversion = self.validate(call, options)?;
        if conversion.caller.intermediary.is_some() {
            conversion.call.querier = Querier::Intermediary;
        }
        Ok(conversion)
    }

    /// Checks who is to share a conversion.
    fn validate_participants(&self, participants: &[&str]) -> Result<Vec<Site>, ApiError> {
        self.check_querier(Querier::Intermediary, true)?;
        let most = AttributionQuery::MAX_CALLERS;
        if !(1..=most).contains(&participants.len()) {
            let allowed = format!("1 to {most} sites");
            return Err(RangeError::new("participants", allowed, participants.len()).into());
        }
        let sites = participants.iter();
        let parsed: Result<Vec<Site>, _> = sites
            .map(|site| Site::parse(site, self.config.localhost))
            .collect();
        Ok(parsed?)
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

    /// What every call that measures does: one transaction with one write, and as much work
    /// whatever it finds.
    fn measure(
        &mut self,
        conversion: &Conversion<'_>,
        measurement: Measurement<'_>,
    ) -> Result<Measured, S::Error> {
        let mut work = self.begin()?;
        let (measured, own) = work.measure(conversion, measurement)?;
        work.finish_written()?;
        self.decoy.even_out(conversion, &self.config, own);
        Ok(measured)
    }

    /// What a call that measures would give. The transaction is never finished.
    fn dry_run(
        &mut self,
        conversion: &Conversion<'_>,
        measurement: Measurement<'_>,
    ) -> Result<Explanation, S::Error> {
        self.begin()?.explain(conversion, measurement)
    }

    /// Clearing with `forget_visits`: traces go, and the epochs they could be about with them.
    fn forget_visits(&mut self, sites: &[Site], now: Timestamp) -> Result<(), S::Error> {
        let mut work = self.begin()?;
        if sites.is_empty() {
            work.tx.remove_impressions(None)?;
        } else {
            let mut known = Vec::new();
            for site in sites {
                known.extend(work.tx.find_site(site)?);
            }
            work.tx.remove_impressions(Some(&known))?;
        }
        let until = work.state.latest_of(now);
        work.state.last_clear = work.state.last_clear.max(Some(until));
        if let (Some(clock), Some(clear)) = (work.known_clock(), work.state.last_clear) {
            let after = EpochIndex(clock.epoch(clear).0.saturating_add(1));
            work.tx.prune_before(after)?;
        }
        work.tx.forget_unused_sites()?;
        work.finish()
    }

    /// Clearing without `forget_visits`: no conversion of the sites is measured any more, whoever
    /// asks, in any epoch up to now.
    fn close_sites(&mut self, sites: &[Site], now: Timestamp) -> Result<(), S::Error> {
        let mut work = self.begin()?;
        // The draft looks at the oldest epoch first, which chooses the start of epochs.
        let oldest = work.oldest(now);
        let clock = work.clock(oldest);
        let until = clock.epoch(work.state.latest_of(now));
        for site in work.site_ids(sites, true)? {
            work.tx.close_site(site, until)?;
        }
        work.finish()
    }
}

/// Why a store cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum OpenError<E> {
    /// It was set up otherwise.
    #[error("the store was set up with {stored}, and cannot be used with {setup}")]
    Setup {
        /// How it was set up.
        stored: Box<Setup>,
        /// How it was to be used.
        setup: Box<Setup>,
    },
    /// It could not be read or written.
    #[error("the store failed")]
    Store(#[source] E),
}

impl State {
    /// The later of a moment and the latest at which anything was measured.
    fn latest_of(&self, now: Timestamp) -> Timestamp {
        self.latest.map_or(now, |latest| latest.max(now))
    }
}
