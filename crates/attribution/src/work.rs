//! One transaction with what it needs: the parts that all calls have in common.

use std::marker::PhantomData;

use bigbird::{
    Admission, Admit, AttributionQuery, Changes, Charge, Check, CommitError, EpochIndex, Filter,
    Impression, MicroEpsilon, Request, SiteId, Timestamp, UserAction, Window,
};

use crate::call::{Call, Caller, Conversion, Querier};
use crate::clock::{EpochClock, days_after, days_before, hour};
use crate::config::{Config, EpochStart, Randomness};
use crate::options::{ImpressionOptions, ValidImpression};
use crate::site::Site;
use crate::storage::{State, Transaction};

/// A transaction under way, with the user agent's state as it will be when it ends.
pub(crate) struct Work<'a, T, E, R> {
    pub(crate) tx: T,
    pub(crate) state: State,
    pub(crate) config: &'a Config,
    pub(crate) randomness: &'a mut R,
    error: PhantomData<E>,
}

/// What became of charges.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Charged {
    /// Whether they were made. Within one transaction they always are.
    pub(crate) committed: bool,
    /// Whether there were any.
    pub(crate) anything: bool,
}

impl<'a, T: Transaction<E>, E, R: Randomness> Work<'a, T, E, R> {
    pub(crate) fn new(tx: T, config: &'a Config, randomness: &'a mut R) -> Result<Self, E> {
        Ok(Self {
            state: tx.state()?,
            tx,
            config,
            randomness,
            error: PhantomData,
        })
    }

    /// Ends the transaction, durably.
    pub(crate) fn finish(mut self) -> Result<(), E> {
        self.tx.set_state(&self.state)?;
        self.tx.finish()
    }

    /// The clock of epochs, if their start has been chosen.
    pub(crate) fn known_clock(&self) -> Option<EpochClock> {
        let period_ms = self.config.period_ms();
        let start = self.state.epoch_start?;
        Some(EpochClock { start, period_ms })
    }

    /// The clock of epochs, whose start is chosen now if it was not yet.
    pub(crate) fn clock(&mut self, moment: Timestamp) -> Result<EpochClock, E> {
        if let Some(clock) = self.known_clock() {
            return Ok(clock);
        }
        let period_ms = self.config.period_ms();
        let fraction = self.randomness.epoch_start();
        let start = EpochClock::random_start(moment, fraction, period_ms);
        self.state.epoch_start = Some(start);
        let clock = EpochClock { start, period_ms };
        self.tx.assign_epochs(&|moment| clock.epoch(moment))?;
        Ok(clock)
    }

    /// The oldest moment that a request can look back to.
    pub(crate) fn oldest(&self, now: Timestamp) -> Timestamp {
        days_before(now, self.config.limits.max_lookback_days)
    }

    /// The first epoch that may be attributed to (the draft's "get the starting epoch for
    /// attribution").
    pub(crate) fn starting_epoch(&self, clock: EpochClock, now: Timestamp) -> EpochIndex {
        let earliest = clock.epoch(self.oldest(now));
        match self.state.last_clear {
            Some(clear) => earliest.max(next(clock.epoch(clear))),
            None => earliest,
        }
    }

    /// The first epoch that a call may read: after what the user cleared of everything, of the
    /// conversion site, and of the querier.
    pub(crate) fn readable_from(
        &mut self,
        clock: EpochClock,
        conversion: &Conversion<'_>,
    ) -> Result<EpochIndex, E> {
        let mut readable = self.starting_epoch(clock, conversion.call.now);
        if self.config.policy.matches_own_action() {
            // The draft spends the site's budget instead: see `spend_closed`.
            return Ok(readable);
        }
        for site in conversion.paying_sites() {
            if let Some(id) = self.tx.find_site(site)?
                && let Some(until) = self.tx.closed_until(id)?
            {
                readable = readable.max(next(until));
            }
        }
        Ok(readable)
    }

    /// The site of a call whose data the user cleared, if any.
    pub(crate) fn closed_site(&mut self, conversion: &Conversion<'_>) -> Result<Option<Site>, E> {
        for site in conversion.paying_sites() {
            if let Some(id) = self.tx.find_site(site)?
                && self.tx.closed_until(id)?.is_some()
            {
                return Ok(Some(site.clone()));
            }
        }
        Ok(None)
    }

    /// Saves an impression, if the API is enabled and its user action may involve the site.
    pub(crate) fn save(
        &mut self,
        call: &Call<'_>,
        caller: &Caller,
        options: &ImpressionOptions,
        valid: &ValidImpression,
    ) -> Result<(), E> {
        if !self.state.enabled {
            return Ok(());
        }
        let site = self.tx.site_id(&caller.site)?;
        let intermediary = match &caller.intermediary {
            Some(intermediary) => Some(self.tx.site_id(intermediary)?),
            None => None,
        };
        let conversion_sites = self.site_ids(&valid.conversion_sites)?;
        let conversion_callers = self.site_ids(&valid.conversion_callers)?;
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
        let has_actions = policy.domain_cap().is_some() || !policy.matches_own_action();
        let later = self.config.epoch_start == EpochStart::FirstConversion && !has_actions;
        if later && self.state.epoch_start.is_none() {
            let hour = EpochIndex(hour(call.now));
            self.tx.hold_impression(hour, &impression)?;
            return Ok(());
        }
        let epoch = self.clock(call.now)?.epoch(call.now);
        impression.user_action = call.action_id(epoch);
        // What cannot be admitted is dropped, and the page does not learn of it.
        if self.admit(impression.user_action, epoch, site)? {
            self.tx.save_impression(epoch, &impression)?;
        }
        Ok(())
    }

    /// The query of a conversion for the budget manager.
    pub(crate) fn query(
        &mut self,
        clock: EpochClock,
        conversion: &Conversion<'_>,
    ) -> Result<AttributionQuery, E> {
        let Conversion {
            call,
            caller,
            options,
            valid,
        } = conversion;
        let readable = self.readable_from(clock, conversion)?;
        let conversion_site = self.tx.site_id(&caller.site)?;
        let caller_id = match &caller.intermediary {
            Some(intermediary) => self.tx.site_id(intermediary)?,
            None => conversion_site,
        };
        let not_before = days_before(call.now, valid.lookback_days);
        let (earliest, current) = (clock.epoch(not_before), clock.epoch(call.now));
        let window = Window::new(earliest, current).unwrap_or(Window::single(current));
        let request = Request {
            querier: match call.querier {
                Querier::ConversionSite => conversion_site,
                Querier::Intermediary => caller_id,
            },
            conversion_site,
            user_action: call.action_id(current),
            window: window.readable_from(readable),
        };
        if self.config.policy.matches_own_action() {
            self.spend_closed(request)?;
        }
        let query = AttributionQuery::builder(request, call.now, options.histogram_size)
            .not_before(not_before)
            .callers([caller_id])
            .impression_sites(self.known(&valid.impression_sites)?)
            .impression_callers(self.known(&valid.impression_callers)?)
            .match_values(options.match_values.as_slice())
            .credit(options.credit.as_slice())
            .value(options.value, options.max_value)
            .epsilon(options.epsilon)
            .build();
        // Validation was stricter. If it were not, a query of nothing is the safe answer.
        Ok(query.unwrap_or_else(|_| AttributionQuery::nothing(request, call.now)))
    }

    /// Takes what is left of the querier budgets of a closed site, in the epochs of a request (the
    /// draft's section Clearing Site Data, which sets them to 0). To a report that says nothing, and
    /// costs the querier nothing, that makes a difference: the draft charges the others for it.
    fn spend_closed(&mut self, request: Request) -> Result<(), E> {
        let Some(until) = self.tx.closed_until(request.querier)? else {
            return Ok(());
        };
        let first = self.tx.first_epoch()?;
        let epochs = request.window.epochs();
        let mut changes = Changes::default();
        for epoch in epochs.filter(|epoch| (first..=until).contains(epoch)) {
            let filter = Filter::Querier(request.querier);
            let mut check = [Check::new(epoch, filter, MicroEpsilon::ZERO)];
            self.tx.look_up(epoch, &mut check)?;
            let left = check[0].balance.remaining();
            changes.charges.extend(left.map(|amount| Charge {
                epoch,
                filter,
                amount,
            }));
        }
        self.commit(&changes)?;
        Ok(())
    }

    /// Gives a number to every site that the options name.
    pub(crate) fn number_sites(&mut self, conversion: &Conversion<'_>) -> Result<(), E> {
        self.site_ids(&conversion.valid.impression_sites)?;
        self.site_ids(&conversion.valid.impression_callers)?;
        Ok(())
    }

    pub(crate) fn site_ids(&mut self, sites: &[Site]) -> Result<Vec<SiteId>, E> {
        sites.iter().map(|site| self.tx.site_id(site)).collect()
    }

    /// The numbers of sites that a query names; of one that is not stored anywhere, a number that
    /// matches nothing.
    fn known(&self, sites: &[Site]) -> Result<Vec<SiteId>, E> {
        const NOBODY: SiteId = SiteId(u32::MAX);
        let ids = sites.iter().map(|site| self.tx.find_site(site));
        ids.map(|id| Ok(id?.unwrap_or(NOBODY))).collect()
    }

    /// Admits the site of an impression under its user action, if the domain cap has room.
    pub(crate) fn admit(
        &mut self,
        user_action: UserAction,
        epoch: EpochIndex,
        site: SiteId,
    ) -> Result<bool, E> {
        match self.tx.admission(user_action, epoch, site)? {
            Admission::Granted => Ok(true),
            Admission::Refused => Ok(false),
            Admission::Room => self.commit(&Changes {
                admissions: vec![Admit {
                    user_action,
                    epoch,
                    site,
                }],
                charges: Vec::new(),
            }),
        }
    }

    /// Commits the changes of a report, remembering when something was charged.
    pub(crate) fn commit_for(&mut self, changes: &Changes, now: Timestamp) -> Result<Charged, E> {
        let anything = !changes.charges.is_empty();
        if anything {
            self.state.latest = self.state.latest.max(Some(now));
        }
        Ok(Charged {
            committed: self.commit(changes)?,
            anything,
        })
    }

    /// Ends the transaction having charged nothing, with the same write as if something had been.
    pub(crate) fn finish_uncharged(mut self) -> Result<(), E> {
        self.commit(&Changes::default())?;
        self.finish()
    }

    /// Commits changes; false if they were refused, which cannot happen within one transaction.
    pub(crate) fn commit(&mut self, changes: &Changes) -> Result<bool, E> {
        match self.tx.commit(changes) {
            Ok(()) => Ok(true),
            Err(CommitError::Refused(_)) => Ok(false),
            Err(CommitError::Store(error)) => Err(error),
        }
    }
}

fn next(epoch: EpochIndex) -> EpochIndex {
    EpochIndex(epoch.0.saturating_add(1))
}
