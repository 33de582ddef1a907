//! One transaction with what it needs: the parts that all calls have in common.

use std::marker::PhantomData;

use bigbird::{
    Admission, Admit, AttributionQuery, Changes, Check, CommitError, EpochIndex, Filter,
    Impression, LedgerView, Request, SiteId, Timestamp, UserAction, Window,
};

use crate::call::{Call, Caller, Conversion, Querier};
use crate::clock::{EpochClock, days_after, days_before};
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
    /// Whether changes were committed.
    wrote: bool,
    error: PhantomData<E>,
}

/// What a conversion reads: the query for the budget manager, and what the user cleared of it.
pub(crate) struct Reading {
    pub(crate) query: AttributionQuery,
    /// The first epoch that may be read: after what the user cleared of everything, of the
    /// conversion site, and of the querier.
    pub(crate) readable_from: EpochIndex,
    /// The site that the user closed, if that hides an epoch which could be read otherwise.
    pub(crate) closed: Option<Site>,
    /// In `w3c-draft`: the site whose querier budgets are spent up to an epoch.
    spent: Option<(SiteId, EpochIndex)>,
}

impl Reading {
    /// The ledger as the conversion sees it.
    pub(crate) fn ledger<'t, T>(&self, tx: &'t T) -> Spending<'t, T> {
        Spending {
            tx,
            spent: self.spent,
        }
    }
}

/// Which of the sites that a conversion names get a number if they have none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Naming {
    /// None: a dry run leaves nothing behind.
    Nobody,
    /// The sites that call, because filters and caps are kept of them.
    Callers,
    /// The sites that the options name, too: whether two shares overlap must follow from what they
    /// name, not from what is stored.
    Everyone,
}

/// The number of a site that nothing is stored of: it matches nothing.
const NOBODY: SiteId = SiteId(u32::MAX);

impl<'a, T: Transaction<E>, E, R: Randomness> Work<'a, T, E, R> {
    pub(crate) fn new(tx: T, config: &'a Config, randomness: &'a mut R) -> Result<Self, E> {
        Ok(Self {
            state: tx.state()?,
            tx,
            config,
            randomness,
            wrote: false,
            error: PhantomData,
        })
    }

    /// Ends the transaction, durably.
    pub(crate) fn finish(mut self) -> Result<(), E> {
        self.tx.set_state(&self.state)?;
        self.tx.finish()
    }

    /// Ends the transaction with a write, also if nothing changed: a call that charged or kept
    /// nothing must not be told from another by that.
    pub(crate) fn finish_written(mut self) -> Result<(), E> {
        if !self.wrote {
            self.commit(&Changes::default())?;
        }
        self.finish()
    }

    /// The clock of epochs, if their start has been chosen.
    pub(crate) fn known_clock(&self) -> Option<EpochClock> {
        let period_ms = self.config.period_ms();
        let start = self.state.epoch_start?;
        Some(EpochClock { start, period_ms })
    }

    /// The clock of epochs, whose start is chosen now if it was not yet.
    ///
    /// A page's call may come here only if it is valid and made while the API is enabled; the user may
    /// close sites at any time.
    pub(crate) fn clock(&mut self, moment: Timestamp) -> EpochClock {
        if let Some(clock) = self.known_clock() {
            return clock;
        }
        let period_ms = self.config.period_ms();
        let start = match self.config.epoch_start {
            EpochStart::At(start) => start,
            EpochStart::FirstUse => {
                EpochClock::random_start(moment, self.randomness.epoch_start(), period_ms)
            }
        };
        self.state.epoch_start = Some(start);
        EpochClock { start, period_ms }
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
        let conversion_sites = self.site_ids(&valid.conversion_sites, true)?;
        let conversion_callers = self.site_ids(&valid.conversion_callers, true)?;
        let clock = self.clock(call.now);
        let epoch = clock.epoch(call.now);
        let impression = Impression {
            site,
            intermediary,
            user_action: call.action_id(clock),
            timestamp: call.now,
            expires: days_after(call.now, valid.lifetime_days),
            match_value: options.match_value,
            histogram_index: options.histogram_index,
            priority: options.priority,
            conversion_sites: &conversion_sites,
            conversion_callers: &conversion_callers,
        };
        // What cannot be admitted is dropped, and the page does not learn of it.
        if self.admit(impression.user_action, epoch, site)? {
            self.tx.save_impression(epoch, &impression)?;
        }
        Ok(())
    }

    /// What a conversion reads.
    pub(crate) fn reading(
        &mut self,
        clock: EpochClock,
        conversion: &Conversion<'_>,
        naming: Naming,
    ) -> Result<Reading, E> {
        let Conversion {
            call,
            caller,
            options,
            valid,
        } = conversion;
        let callers = naming != Naming::Nobody;
        let conversion_site = self.site_id(&caller.site, callers)?;
        let caller_id = match &caller.intermediary {
            Some(intermediary) => self.site_id(intermediary, callers)?,
            None => conversion_site,
        };
        let querier = match call.querier {
            Querier::ConversionSite => conversion_site,
            Querier::Intermediary => caller_id,
        };
        let not_before = days_before(call.now, valid.lookback_days);
        let (earliest, current) = (clock.epoch(not_before), clock.epoch(call.now));
        let starting = self.starting_epoch(clock, call.now);

        // Of the sites that pay, the one that the user closed for longest.
        let mut closing: Option<(&Site, EpochIndex)> = None;
        for (id, site) in [conversion_site, querier]
            .into_iter()
            .zip(conversion.paying_sites())
        {
            if let Some(until) = self.tx.closed_until(id)?
                && closing.is_none_or(|(_, longest)| longest < until)
            {
                closing = Some((site, until));
            }
        }
        // The draft spends the site's budget instead: a report that says nothing, and costs the
        // querier nothing, still charges the others for it.
        let spends = self.config.policy.matches_own_action();
        let readable_from = match closing {
            Some((_, until)) if !spends => starting.max(next(until)),
            _ => starting,
        };
        let hides = |until: EpochIndex| until >= earliest.max(starting);
        let window = Window::new(earliest, current).unwrap_or(Window::single(current));
        let request = Request {
            querier,
            conversion_site,
            user_action: call.action_id(clock),
            window: window.readable_from(readable_from),
        };
        let everyone = naming == Naming::Everyone;
        let query = AttributionQuery::builder(request, call.now, options.histogram_size)
            .not_before(not_before)
            .callers([caller_id])
            .impression_sites(self.site_ids(&valid.impression_sites, everyone)?)
            .impression_callers(self.site_ids(&valid.impression_callers, everyone)?)
            .match_values(options.match_values.as_slice())
            .credit(options.credit.as_slice())
            .value(options.value, options.max_value)
            .epsilon(options.epsilon)
            .build();
        Ok(Reading {
            // Validation was stricter. If it were not, a query of nothing is the safe answer.
            query: query.unwrap_or_else(|_| AttributionQuery::nothing(request, call.now)),
            readable_from,
            closed: closing
                .filter(|(_, until)| hides(*until))
                .map(|(site, _)| site.clone()),
            spent: closing
                .filter(|_| spends)
                .map(|(_, until)| (querier, until)),
        })
    }

    /// The numbers of sites; of one that has none and gets none, a number that matches nothing.
    pub(crate) fn site_ids(&mut self, sites: &[Site], give: bool) -> Result<Vec<SiteId>, E> {
        sites.iter().map(|site| self.site_id(site, give)).collect()
    }

    fn site_id(&mut self, site: &Site, give: bool) -> Result<SiteId, E> {
        if give {
            self.tx.site_id(site)
        } else {
            Ok(self.tx.find_site(site)?.unwrap_or(NOBODY))
        }
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

    /// Commits changes; false if they were refused, which cannot happen within one transaction.
    pub(crate) fn commit(&mut self, changes: &Changes) -> Result<bool, E> {
        self.wrote = true;
        match self.tx.commit(changes) {
            Ok(()) => Ok(true),
            Err(CommitError::Refused(_)) => Ok(false),
            Err(CommitError::Store(error)) => Err(error),
        }
    }
}

/// A ledger in which the querier budgets of one site are spent up to an epoch (the draft's section
/// Clearing Site Data, which sets them to 0). Nothing need be written for that, so that an
/// explanation sees it too.
pub(crate) struct Spending<'t, T> {
    tx: &'t T,
    spent: Option<(SiteId, EpochIndex)>,
}

impl<T: LedgerView> LedgerView for Spending<'_, T> {
    type Error = T::Error;

    fn first_epoch(&self) -> Result<EpochIndex, T::Error> {
        self.tx.first_epoch()
    }

    fn look_up(&self, epoch: EpochIndex, checks: &mut [Check]) -> Result<(), T::Error> {
        self.tx.look_up(epoch, checks)?;
        if let Some((site, until)) = self.spent
            && epoch <= until
        {
            let of_site = |check: &&mut Check| check.filter == Filter::Querier(site);
            for Check { balance, .. } in checks.iter_mut().filter(of_site) {
                balance.consumed = balance.capacity.amount().unwrap_or(balance.consumed);
            }
        }
        Ok(())
    }

    fn admission(
        &self,
        action: UserAction,
        epoch: EpochIndex,
        site: SiteId,
    ) -> Result<Admission, T::Error> {
        self.tx.admission(action, epoch, site)
    }
}

fn next(epoch: EpochIndex) -> EpochIndex {
    EpochIndex(epoch.0.saturating_add(1))
}
