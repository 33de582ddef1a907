//! The user agent: everything between a page's call and the budget manager.

use std::collections::BTreeMap;

use bigbird::{
    AttributionObject, AttributionQuery, Capacity, CommitError, Decision, EpochIndex, Filter,
    Histogram, Impression, Policy, Profile, Request, SiteId, StoreLimits, Timestamp, UserAction,
    Window, Workspace, generate_report,
};

use crate::clock::{DAY_MS, EpochClock, days_after, days_before};
use crate::decoy::Decoy;
use crate::error::{AgentError, ApiError, RangeError};
use crate::explain::Explanation;
use crate::memory::Memory;
use crate::options::{
    AggregationProtocol, AggregationServices, ConversionOptions, ImpressionOptions, Limits,
    ValidConversion, ValidImpression,
};
use crate::release::Held;
use crate::site::{Localhost, Site};
use crate::storage::{State, Storage, Transaction};

/// How a user agent is set up.
#[derive(Debug, Clone)]
pub struct Config {
    /// Capacities, cap and charging rules.
    pub policy: Policy,
    /// How much a page may ask for.
    pub limits: Limits,
    /// How long an epoch is, in days; at least 1.
    pub epoch_days: u32,
    /// The aggregation services there are.
    pub aggregation_services: AggregationServices,
    /// Whether localhost is a site, for development.
    pub localhost: Localhost,
    /// How long after the call an answer is released, in milliseconds: whether something was
    /// charged must not show in time.
    pub release_after_ms: i64,
    /// How many impressions are kept.
    pub store_limits: StoreLimits,
}

impl Config {
    /// The draft's epochs of a week, with the policy of a profile and no aggregation service.
    pub fn new(profile: Profile) -> Self {
        Self {
            policy: profile.policy(),
            limits: Limits::default(),
            epoch_days: 7,
            aggregation_services: BTreeMap::new(),
            localhost: Localhost::Refused,
            release_after_ms: 100,
            store_limits: StoreLimits::default(),
        }
    }

    /// The same with one more aggregation service.
    #[must_use]
    pub fn with_service(mut self, url: impl Into<String>) -> Self {
        let protocol = AggregationProtocol::Dap18Histogram;
        self.aggregation_services.insert(url.into(), protocol);
        self
    }

    pub(crate) fn period_ms(&self) -> i64 {
        i64::from(self.epoch_days.max(1)) * DAY_MS
    }
}

/// The random numbers of a user agent, in [0, 1).
pub trait Randomness {
    /// Where in the last epoch the first one began; drawn once in a device's life.
    fn epoch_start(&mut self) -> f64;

    /// How credit is rounded.
    fn credit(&mut self) -> f64;
}

/// Who calls, from where, when, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call<'a> {
    /// The host of the top-level page.
    pub site: &'a str,
    /// The host of the frame or response that calls, if it is not of that site.
    pub intermediary: Option<&'a str>,
    /// The user action that caused the call, as the browser numbers them; one of its own if it is
    /// not known. Only profiles other than `w3c-draft` look at it.
    pub user_action: Option<u64>,
    /// Who receives the report and whose budget pays.
    pub querier: Querier,
    /// The moment of the call.
    pub now: Timestamp,
}

impl<'a> Call<'a> {
    /// A call by the page itself.
    pub const fn new(site: &'a str, now: Timestamp) -> Self {
        Self {
            site,
            intermediary: None,
            user_action: None,
            querier: Querier::ConversionSite,
            now,
        }
    }
}

/// Who receives a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Querier {
    /// The conversion site, also when an intermediary calls on its behalf (the draft).
    #[default]
    ConversionSite,
    /// The intermediary that calls, for itself: the paper's cross-advertiser queries. Not in
    /// `w3c-draft`.
    Intermediary,
}

/// What a conversion gives.
#[derive(Debug, Clone, PartialEq)]
#[must_use = "a report that was paid for should be released"]
pub struct Answer {
    /// The report, held until it is time.
    pub report: Held<Histogram>,
    /// What happened and why; it stays on the device.
    pub decision: Decision,
}

/// A user agent with a store.
#[derive(Debug)]
pub struct UserAgent<S, R> {
    config: Config,
    storage: S,
    randomness: R,
    actions: Actions,
    decoy: Decoy,
}

/// The user actions that are under way: the browser's number, and ours, which is never used again.
#[derive(Debug, Default)]
struct Actions {
    epoch: Option<EpochIndex>,
    ids: BTreeMap<u64, UserAction>,
}

/// How many user actions can be under way: tabs that were clicked in this epoch.
const ACTIONS: usize = 4096;

impl<R: Randomness> UserAgent<Memory, R> {
    /// A user agent that keeps everything in memory.
    pub fn in_memory(config: Config, randomness: R) -> Self {
        let memory = Memory::new(&config.policy, config.store_limits);
        Self::new(config, memory, randomness)
    }
}

impl<S: Storage, R: Randomness> UserAgent<S, R> {
    /// A user agent on a store.
    pub fn new(config: Config, storage: S, randomness: R) -> Self {
        Self {
            decoy: Decoy::new(&config.policy),
            config,
            storage,
            randomness,
            actions: Actions::default(),
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

    /// Saves an impression (the draft's "save an impression"). The page learns whether its options
    /// were valid, and nothing else: not whether the impression was kept, nor whether the API is
    /// enabled.
    ///
    /// # Errors
    /// If the call is invalid, or the store failed.
    pub fn save_impression(
        &mut self,
        call: &Call<'_>,
        options: &ImpressionOptions,
    ) -> Result<(), AgentError<S::Error>> {
        let caller = self.parse_caller(call)?;
        let localhost = self.config.localhost;
        let valid = self.config.limits.validate_impression(options, localhost)?;
        self.save(call, &caller, options, &valid)
            .map_err(AgentError::Store)
    }

    /// Measures a conversion (the draft's "measure a conversion"). What is charged is durable when
    /// this returns.
    ///
    /// A call that is valid gives a report, whatever is stored, spent or switched off; only what is
    /// in it differs. Every call makes the same two passes, one that charges and one that finds
    /// nothing: one over the device, the other over a decoy.
    ///
    /// # Errors
    /// If the call is invalid, or the store failed; nothing is charged then.
    pub fn measure_conversion(
        &mut self,
        call: &Call<'_>,
        options: &ConversionOptions,
    ) -> Result<Answer, AgentError<S::Error>> {
        let (caller, valid) = self.validate(call, options)?;
        let mut workspace = Workspace::default();
        let measured = self.measure(call, &caller, options, &valid, &mut workspace);
        let charged = measured.map_err(AgentError::Store)?;
        let (report, decision) = match charged {
            Some(charged) => {
                self.decoy.pass(options, &valid, &self.config, !charged);
                let (report, decision, _) = workspace.into_parts();
                (report, decision)
            }
            None => {
                self.decoy.pass(options, &valid, &self.config, true);
                let null = self.decoy.pass(options, &valid, &self.config, false);
                (null, Decision::default())
            }
        };
        Ok(Answer {
            report: Held::new(report, call.now, self.config.release_after_ms),
            decision,
        })
    }

    /// Says what a conversion would give and why, without charging anything. For developers on the
    /// device. Like any first use, it may choose when the device's epochs begin.
    ///
    /// # Errors
    /// If the call is invalid, or the store failed.
    pub fn explain(
        &mut self,
        call: &Call<'_>,
        options: &ConversionOptions,
    ) -> Result<Explanation, AgentError<S::Error>> {
        let (caller, valid) = self.validate(call, options)?;
        self.dry_run(call, &caller, options, &valid)
            .map_err(AgentError::Store)
    }

    /// Creates the attribution object of a conversion that several intermediaries share, each as
    /// its own querier (the paper's cross-report optimisation). The shared filters pay here, once.
    ///
    /// # Errors
    /// If the call or a participant is invalid, the profile has no intermediaries as queriers, or
    /// the store failed.
    pub fn attribute_shared(
        &mut self,
        call: &Call<'_>,
        options: &ConversionOptions,
        participants: &[&str],
    ) -> Result<SharedConversion, AgentError<S::Error>> {
        let (caller, valid) = self.validate(call, options)?;
        self.check_querier(Querier::Intermediary, true)?;
        let most = AttributionQuery::MAX_CALLERS;
        if !(1..=most).contains(&participants.len()) {
            let allowed = format!("1 to {most} sites");
            let error = RangeError::new("participants", allowed, participants.len());
            return Err(ApiError::from(error).into());
        }
        let participants: Result<Vec<Site>, _> = participants
            .iter()
            .map(|site| Site::parse(site, self.config.localhost))
            .collect();
        let participants = participants.map_err(ApiError::from)?;
        self.create_shared(call, &caller, options, &valid, &participants)
            .map_err(AgentError::Store)
    }

    /// Gives an intermediary its share of a shared conversion: the credit of the impressions its
    /// options name, paid from its own budget.
    ///
    /// # Errors
    /// If the call is invalid, the profile has no intermediaries as queriers, or the store failed.
    pub fn share(
        &mut self,
        conversion: SharedConversion,
        call: &Call<'_>,
        options: &ConversionOptions,
    ) -> Result<Answer, AgentError<S::Error>> {
        let call = &Call {
            querier: Querier::Intermediary,
            ..*call
        };
        let (caller, valid) = self.validate(call, options)?;
        let taken = self.take_share(conversion, call, &caller, options, &valid);
        let (report, decision) = taken.map_err(AgentError::Store)?;
        Ok(Answer {
            report: Held::new(report, call.now, self.config.release_after_ms),
            decision,
        })
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
    /// spent need not be remembered. Without, the sites' budgets are spent instead, and at least
    /// one must be named.
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
            self.spend_budgets(&sites, now)
        };
        cleared.map_err(AgentError::Store)
    }

    /// Lets the API work, or stops it (the draft's section Disabling the Attribution API). A page
    /// cannot tell.
    ///
    /// # Errors
    /// If the store failed.
    pub fn set_enabled(&mut self, enabled: bool) -> Result<(), S::Error> {
        let mut tx = self.storage.begin()?;
        let state = State {
            enabled,
            ..tx.state()?
        };
        tx.set_state(&state)?;
        tx.finish()
    }

    /// Removes what no request can reach any more: expired impressions, and epochs before the
    /// longest lookback. To be called now and then.
    ///
    /// # Errors
    /// If the store failed.
    pub fn maintain(&mut self, now: Timestamp) -> Result<(), S::Error> {
        let mut tx = self.storage.begin()?;
        tx.remove_expired(now)?;
        let state = tx.state()?;
        if let Some(start) = state.epoch_start {
            let period_ms = self.config.period_ms();
            let clock = EpochClock { start, period_ms };
            let max_lookback = self.config.limits.max_lookback_days;
            let reachable = starting_epoch(&state, clock, now, max_lookback);
            tx.prune_before(reachable)?;
        }
        tx.finish()
    }

    /// The parts of a conversion call, checked in the draft's order.
    fn validate(
        &self,
        call: &Call<'_>,
        options: &ConversionOptions,
    ) -> Result<(Caller, ValidConversion), ApiError> {
        let caller = self.parse_caller(call)?;
        self.check_querier(call.querier, caller.intermediary.is_some())?;
        let valid = self.config.limits.validate_conversion(
            options,
            &self.config.aggregation_services,
            self.config.localhost,
        )?;
        Ok((caller, valid))
    }

    /// Notes on the draft, row 7: a call from localhost is a `SyntaxError`.
    fn parse_caller(&self, call: &Call<'_>) -> Result<Caller, ApiError> {
        let site = Site::parse(call.site, self.config.localhost)?;
        let intermediary = match call.intermediary {
            Some(host) => Some(Site::parse(host, self.config.localhost)?),
            None => None,
        };
        Ok(Caller {
            intermediary: intermediary.filter(|intermediary| *intermediary != site),
            site,
        })
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

    fn save(
        &mut self,
        call: &Call<'_>,
        caller: &Caller,
        options: &ImpressionOptions,
        valid: &ValidImpression,
    ) -> Result<(), S::Error> {
        let mut tx = self.storage.begin()?;
        let mut state = tx.state()?;
        if !state.enabled {
            return Ok(());
        }
        let site = tx.site_id(&caller.site)?;
        let intermediary = match &caller.intermediary {
            Some(intermediary) => Some(tx.site_id(intermediary)?),
            None => None,
        };
        let conversion_sites = site_ids(&mut tx, &valid.conversion_sites)?;
        let conversion_callers = site_ids(&mut tx, &valid.conversion_callers)?;
        let mut impression = Impression {
            site,
            intermediary,
            user_action: UserAction(0),
            timestamp: call.now,
            expires: days_after(call.now, valid.lifetime_days),
            match_value: options.match_value,
            histogram_index: options.histogram_index,
            priority: options.priority,
            conversion_sites: &conversion_sites,
            conversion_callers: &conversion_callers,
        };
        let policy = &self.config.policy;
        let knows_actions = policy.domain_cap().is_some() || !policy.matches_own_action();
        if !knows_actions && state.epoch_start.is_none() {
            // The draft chooses the start of epochs when a conversion first needs it.
            tx.hold_impression(&impression)?;
            return tx.finish();
        }
        let period_ms = self.config.period_ms();
        let clock = epoch_clock(
            &mut tx,
            &mut state,
            &mut self.randomness,
            call.now,
            period_ms,
        )?;
        let epoch = clock.epoch(call.now);
        if knows_actions {
            impression.user_action =
                self.actions
                    .id(&mut tx, &mut state, call.user_action, epoch)?;
            // An action of its own has room for its first site, and never comes back.
            if call.user_action.is_some() && !admit(&mut tx, impression.user_action, epoch, site)? {
                tx.set_state(&state)?;
                return tx.finish();
            }
        }
        tx.save_impression(epoch, &impression)?;
        tx.set_state(&state)?;
        tx.finish()
    }

    fn dry_run(
        &mut self,
        call: &Call<'_>,
        caller: &Caller,
        options: &ConversionOptions,
        valid: &ValidConversion,
    ) -> Result<Explanation, S::Error> {
        let mut tx = self.storage.begin()?;
        let mut state = tx.state()?;
        if !state.enabled {
            return Ok(Explanation::disabled(options.histogram_size));
        }
        let period_ms = self.config.period_ms();
        let clock = epoch_clock(
            &mut tx,
            &mut state,
            &mut self.randomness,
            call.now,
            period_ms,
        )?;
        let epoch = clock.epoch(call.now);
        let action = self.actions.peek(&state, call.user_action, epoch);
        let query = self
            .config
            .query(&mut tx, &state, clock, call, caller, options, valid, action)?;
        let mut draw = || self.randomness.credit();
        let explanation = Explanation::of(&self.config.policy, &tx, &query, &mut draw)?;
        tx.finish()?;
        Ok(explanation)
    }

    fn create_shared(
        &mut self,
        call: &Call<'_>,
        caller: &Caller,
        options: &ConversionOptions,
        valid: &ValidConversion,
        participants: &[Site],
    ) -> Result<SharedConversion, S::Error> {
        let mut tx = self.storage.begin()?;
        let mut state = tx.state()?;
        let id = state.next_object;
        state.next_object += 1;
        if !state.enabled {
            tx.set_state(&state)?;
            tx.finish()?;
            return Ok(SharedConversion(id));
        }
        let period_ms = self.config.period_ms();
        let clock = epoch_clock(
            &mut tx,
            &mut state,
            &mut self.randomness,
            call.now,
            period_ms,
        )?;
        let epoch = clock.epoch(call.now);
        let action = self
            .actions
            .id(&mut tx, &mut state, call.user_action, epoch)?;
        let mut query = self
            .config
            .query(&mut tx, &state, clock, call, caller, options, valid, action)?;
        query.set_callers(site_ids(&mut tx, participants)?);
        let policy = &self.config.policy;
        let mut draw = || self.randomness.credit();
        let (object, _, mut changes) =
            AttributionObject::create(policy, &tx, &tx, &query, &mut draw)?;
        if call.user_action.is_none() {
            changes.admissions.clear();
        }
        if !changes.charges.is_empty() {
            state.latest = state.latest.max(Some(call.now));
        }
        if commit(&mut tx, &changes)? {
            tx.put_object(id, object)?;
        }
        tx.set_state(&state)?;
        tx.finish()?;
        Ok(SharedConversion(id))
    }

    fn take_share(
        &mut self,
        conversion: SharedConversion,
        call: &Call<'_>,
        caller: &Caller,
        options: &ConversionOptions,
        valid: &ValidConversion,
    ) -> Result<(Histogram, Decision), S::Error> {
        let mut tx = self.storage.begin()?;
        let state = tx.state()?;
        let clock = EpochClock {
            start: state.epoch_start.unwrap_or(call.now),
            period_ms: self.config.period_ms(),
        };
        let action = UserAction(0);
        let query = self
            .config
            .query(&mut tx, &state, clock, call, caller, options, valid, action)?;
        let null = (query.null_report(), Decision::default());
        let Some(mut object) = tx.object(conversion.0)?.filter(|_| state.enabled) else {
            return Ok(null);
        };
        let (outcome, changes) = object.share(&self.config.policy, &tx, &query)?;
        if !commit(&mut tx, &changes)? {
            return Ok(null);
        }
        tx.put_object(conversion.0, object)?;
        tx.finish()?;
        Ok((outcome.report, outcome.decision))
    }

    /// Clearing with `forget_visits`: traces go, and the epochs they could be about with them.
    fn forget_visits(&mut self, sites: &[Site], now: Timestamp) -> Result<(), S::Error> {
        let mut tx = self.storage.begin()?;
        let mut state = tx.state()?;
        forget_impressions_of(&mut tx, sites)?;
        state.last_clear = state.last_clear.max(Some(state.latest_of(now)));
        if let (Some(start), Some(clear)) = (state.epoch_start, state.last_clear) {
            let period_ms = self.config.period_ms();
            let cleared = EpochClock { start, period_ms }.epoch(clear);
            tx.prune_before(EpochIndex(cleared.0.saturating_add(1)))?;
        }
        tx.set_state(&state)?;
        tx.finish()
    }

    /// Clearing without `forget_visits`: nothing is left of the sites' budgets, so that no
    /// conversion there is measured any more, whoever asks.
    fn spend_budgets(&mut self, sites: &[Site], now: Timestamp) -> Result<(), S::Error> {
        let mut tx = self.storage.begin()?;
        let mut state = tx.state()?;
        let max_lookback = self.config.limits.max_lookback_days;
        let period_ms = self.config.period_ms();
        let oldest = days_before(now, max_lookback);
        let clock = epoch_clock(&mut tx, &mut state, &mut self.randomness, oldest, period_ms)?;
        let from = starting_epoch(&state, clock, now, max_lookback);
        let until = clock.epoch(state.latest_of(now));
        for site in site_ids(&mut tx, sites)? {
            for epoch in (from.0..=until.0).map(EpochIndex) {
                tx.exhaust(epoch, Filter::Querier(site))?;
                tx.exhaust(epoch, Filter::ConversionSite(site))?;
            }
        }
        tx.set_state(&state)?;
        tx.finish()
    }

    /// The pass over the device: whether it charged something, or `None` while disabled.
    fn measure(
        &mut self,
        call: &Call<'_>,
        caller: &Caller,
        options: &ConversionOptions,
        valid: &ValidConversion,
        workspace: &mut Workspace<AttributionQuery>,
    ) -> Result<Option<bool>, S::Error> {
        let mut tx = self.storage.begin()?;
        let mut state = tx.state()?;
        if !state.enabled {
            return Ok(None);
        }
        let period_ms = self.config.period_ms();
        let clock = epoch_clock(
            &mut tx,
            &mut state,
            &mut self.randomness,
            call.now,
            period_ms,
        )?;
        let epoch = clock.epoch(call.now);
        let action = self
            .actions
            .id(&mut tx, &mut state, call.user_action, epoch)?;
        let query = self
            .config
            .query(&mut tx, &state, clock, call, caller, options, valid, action)?;
        let mut draw = || self.randomness.credit();
        generate_report(&self.config.policy, &tx, &tx, &query, &mut draw, workspace)?;
        let charged = !workspace.changes().charges.is_empty();
        if call.user_action.is_none() {
            workspace.changes_mut().admissions.clear();
        }
        if charged {
            state.latest = state.latest.max(Some(call.now));
        }
        if !commit(&mut tx, workspace.changes())? {
            // Not possible within one transaction; if it were, nothing would be released.
            workspace.make_null(&query);
        }
        tx.set_state(&state)?;
        tx.finish()?;
        Ok(Some(charged))
    }
}

/// The sites of a call.
struct Caller {
    site: Site,
    intermediary: Option<Site>,
}

/// A conversion that several intermediaries share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SharedConversion(u64);

impl Config {
    /// The query of a conversion for the budget manager.
    #[expect(clippy::too_many_arguments, reason = "the parts of one call")]
    fn query<T: Transaction<E>, E>(
        &self,
        tx: &mut T,
        state: &State,
        clock: EpochClock,
        call: &Call<'_>,
        caller: &Caller,
        options: &ConversionOptions,
        valid: &ValidConversion,
        user_action: UserAction,
    ) -> Result<AttributionQuery, E> {
        /// The number of a site that is not stored anywhere, hence matches nothing.
        const NOBODY: SiteId = SiteId(u32::MAX);
        let conversion_site = tx.site_id(&caller.site)?;
        let caller_id = match &caller.intermediary {
            Some(intermediary) => tx.site_id(intermediary)?,
            None => conversion_site,
        };
        let known = |sites: &[Site]| -> Result<Vec<SiteId>, E> {
            let ids = sites.iter().map(|site| tx.find_site(site));
            ids.map(|id| Ok(id?.unwrap_or(NOBODY))).collect()
        };
        let not_before = days_before(call.now, valid.lookback_days);
        let (earliest, current) = (clock.epoch(not_before), clock.epoch(call.now));
        let start = starting_epoch(state, clock, call.now, self.limits.max_lookback_days);
        let window = Window::new(earliest, current).unwrap_or(Window::single(current));
        let request = Request {
            querier: match call.querier {
                Querier::ConversionSite => conversion_site,
                Querier::Intermediary => caller_id,
            },
            conversion_site,
            user_action,
            window: window.readable_from(start),
        };
        let query = AttributionQuery::builder(request, call.now, options.histogram_size)
            .not_before(not_before)
            .callers([caller_id])
            .impression_sites(known(&valid.impression_sites)?)
            .impression_callers(known(&valid.impression_callers)?)
            .match_values(options.match_values.as_slice())
            .credit(options.credit.as_slice())
            .value(options.value, options.max_value)
            .epsilon(options.epsilon)
            .build();
        // Validation was stricter. If it were not, a query of nothing is the safe answer.
        Ok(query.unwrap_or_else(|_| AttributionQuery::nothing(request, call.now)))
    }
}

impl Actions {
    /// Our id of a user action. It ends at the epoch change at the latest: what the browser still
    /// calls the same action is another one then.
    fn id<T: Transaction<E>, E>(
        &mut self,
        tx: &mut T,
        state: &mut State,
        action: Option<u64>,
        epoch: EpochIndex,
    ) -> Result<UserAction, E> {
        if self.epoch != Some(epoch) || self.ids.len() > ACTIONS {
            self.epoch = Some(epoch);
            self.ids.clear();
            tx.end_user_actions_before(UserAction(state.next_user_action))?;
        }
        let mut fresh = || {
            let id = UserAction(state.next_user_action);
            state.next_user_action += 1;
            id
        };
        Ok(match action {
            Some(action) => *self.ids.entry(action).or_insert_with(fresh),
            None => fresh(),
        })
    }

    /// The id that [`id`](Actions::id) would give, without giving it.
    fn peek(&self, state: &State, action: Option<u64>, epoch: EpochIndex) -> UserAction {
        let known = action.filter(|_| self.epoch == Some(epoch));
        let known = known.and_then(|action| self.ids.get(&action));
        known.copied().unwrap_or(UserAction(state.next_user_action))
    }
}

/// The clock of epochs, whose start is chosen now if it was not yet.
fn epoch_clock<T: Transaction<E>, E>(
    tx: &mut T,
    state: &mut State,
    randomness: &mut impl Randomness,
    moment: Timestamp,
    period_ms: i64,
) -> Result<EpochClock, E> {
    let start = match state.epoch_start {
        Some(start) => start,
        None => {
            let fraction = randomness.epoch_start();
            let start = EpochClock::random_start(moment, fraction, period_ms);
            state.epoch_start = Some(start);
            tx.set_state(state)?;
            tx.assign_epochs(start, period_ms)?;
            start
        }
    };
    Ok(EpochClock { start, period_ms })
}

/// The first epoch that may be attributed to (the draft's "get the starting epoch for
/// attribution").
fn starting_epoch(
    state: &State,
    clock: EpochClock,
    now: Timestamp,
    max_lookback_days: u32,
) -> EpochIndex {
    let earliest = clock.epoch(days_before(now, max_lookback_days));
    match state.last_clear {
        Some(clear) => earliest.max(EpochIndex(clock.epoch(clear).0.saturating_add(1))),
        None => earliest,
    }
}

/// The second half of the draft's "clear browsing history for attribution". Budgets need no
/// clearing of their own: the epochs they are about are pruned as a whole.
fn forget_impressions_of<T: Transaction<E>, E>(tx: &mut T, sites: &[Site]) -> Result<(), E> {
    if sites.is_empty() {
        return tx.remove_impressions(None);
    }
    let mut known = Vec::new();
    for site in sites {
        known.extend(tx.find_site(site)?);
    }
    tx.remove_impressions(Some(&known))
}

fn site_ids<T: Transaction<E>, E>(tx: &mut T, sites: &[Site]) -> Result<Vec<SiteId>, E> {
    sites.iter().map(|site| tx.site_id(site)).collect()
}

/// Admits the site of an impression under its user action, if the domain cap has room.
fn admit<T: Transaction<E>, E>(
    tx: &mut T,
    user_action: UserAction,
    epoch: EpochIndex,
    site: SiteId,
) -> Result<bool, E> {
    use bigbird::{Admission, Admit, Changes};
    match tx.admission(user_action, epoch, site)? {
        Admission::Granted => Ok(true),
        Admission::Refused => Ok(false),
        Admission::Room => commit(
            tx,
            &Changes {
                admissions: vec![Admit {
                    user_action,
                    epoch,
                    site,
                }],
                charges: Vec::new(),
            },
        ),
    }
}

/// Commits changes; false if a filter refused, which cannot happen within one transaction.
fn commit<T: Transaction<E>, E>(tx: &mut T, changes: &bigbird::Changes) -> Result<bool, E> {
    match tx.commit(changes) {
        Ok(()) => Ok(true),
        Err(CommitError::Refused(_)) => Ok(false),
        Err(CommitError::Store(error)) => Err(error),
    }
}

/// Whether a policy has filters of a kind.
pub(crate) fn is_limited(capacity: Capacity) -> bool {
    capacity != Capacity::Unlimited
}
