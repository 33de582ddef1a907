//! A call in the making: what it sees of the device, and what it changes so far.

use std::collections::BTreeSet;
use std::marker::PhantomData;

use bigbird::attribution::{Audience, Edit, Forgetting};
use bigbird::{
    Admission, Admit, Admitted, AttributionQuery, Capacity, Check, EpochIndex, Filter, LedgerView,
    Policies, Request, SiteId, Timestamp, UserAction, Window, admission,
};

use crate::call::{ConversionCall, ImpressionCall, Querier};
use crate::clock::{Timeline, days_after, days_before, next};
use crate::config::{Config, EpochStart, Randomness};
use crate::site::Site;
use crate::storage::{
    ChangeSet, Forgotten, Row, Rows, SavedImpression, Selection, State, StoredObject, View,
};
use crate::upkeep::SLICE;

/// A call in the making. Whatever it does, the store is only read; what it changes comes out as a
/// [`ChangeSet`].
pub(crate) struct Work<'a, V, E, R> {
    pub(crate) view: &'a V,
    /// As it will be.
    pub(crate) state: State,
    /// As it is.
    found: State,
    pub(crate) config: &'a Config,
    pub(crate) randomness: &'a mut R,
    pub(crate) changes: ChangeSet,
    /// The epoch in which it saved something: if that is over the limit, something goes after it.
    pub(crate) saved_in: Option<EpochIndex>,
    /// The random numbers of the report so far.
    pub(crate) drawn: Vec<f64>,
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
    pub(crate) fn ledger<'v, V>(&self, view: &'v V) -> Spending<'v, V> {
        Spending {
            view,
            spent: self.spent,
        }
    }
}

/// The number of a site that nothing is stored of: it matches nothing, and is given to none.
const NOBODY: SiteId = SiteId(u32::MAX);

impl<'a, V: View<E>, E, R: Randomness> Work<'a, V, E, R> {
    pub(crate) fn new(view: &'a V, config: &'a Config, randomness: &'a mut R) -> Result<Self, E> {
        let found = view.state()?;
        Ok(Self {
            view,
            state: found.clone(),
            found,
            config,
            randomness,
            changes: ChangeSet::default(),
            saved_in: None,
            drawn: Vec::new(),
            error: PhantomData,
        })
    }

    /// What the call changes.
    pub(crate) fn into_changes(mut self) -> ChangeSet {
        if self.state != self.found {
            self.changes.state = Some(self.state);
        }
        self.changes
    }

    /// Lets epochs begin if they have not begun.
    ///
    /// A page's call may come here only if it is valid and made while the API is enabled; the user
    /// may close sites at any time.
    pub(crate) fn begin_epochs(&mut self, moment: Timestamp) {
        if self.state.timeline.eras().is_empty() {
            let rules = self.config.rules();
            let started_over = self.state.first_epoch > EpochIndex(i64::MIN);
            let start = match (self.config.epoch_start, self.state.last_clear) {
                (EpochStart::At(start), _) => start,
                // The store does not know its old epochs any more. Its first new one begins with
                // the reset, and is closed as a whole.
                (EpochStart::FirstUse, Some(reset)) if started_over => {
                    rules.random_start(reset, 0.0)
                }
                (EpochStart::FirstUse, _) => {
                    rules.random_start(moment, self.randomness.epoch_start())
                }
            };
            self.state.timeline = Timeline::starting(start, rules);
        }
    }

    /// The epoch of a moment; before epochs have begun, none that anything is stored in.
    pub(crate) fn epoch(&self, moment: Timestamp) -> EpochIndex {
        let epoch = self.state.timeline.epoch(moment);
        epoch.unwrap_or(EpochIndex(i64::MIN))
    }

    /// Notes that the API was used.
    pub(crate) fn used_at(&mut self, now: Timestamp) {
        self.state.latest_use = self.state.latest_use.max(Some(now));
    }

    /// The oldest moment that a request can look back to.
    pub(crate) fn oldest(&self, now: Timestamp) -> Timestamp {
        days_before(now, self.config.limits.max_lookback_days)
    }

    /// The first epoch that may be attributed to (the draft's "get the starting epoch for
    /// attribution").
    pub(crate) fn starting_epoch(&self, now: Timestamp) -> EpochIndex {
        let earliest = self.epoch(self.oldest(now));
        match self.state.last_clear {
            Some(clear) => earliest.max(next(self.epoch(clear))),
            None => earliest,
        }
    }

    /// Saves an impression, if the API is enabled and its user action may involve the site.
    pub(crate) fn save(&mut self, impression: &ImpressionCall) -> Result<(), E> {
        if !self.state.enabled {
            return Ok(());
        }
        let ImpressionCall {
            occasion,
            caller,
            valid,
        } = impression;
        let site = self.number(&caller.site)?;
        let intermediary = match &caller.intermediary {
            Some(intermediary) => Some(self.number(intermediary)?),
            None => None,
        };
        let mut audience = Audience {
            conversion_sites: self.site_ids(&valid.conversion_sites, true)?,
            conversion_callers: self.site_ids(&valid.conversion_callers, true)?,
        };
        for list in [
            &mut audience.conversion_sites,
            &mut audience.conversion_callers,
        ] {
            list.sort_unstable();
            list.dedup();
        }
        self.begin_epochs(occasion.now);
        self.used_at(occasion.now);
        let epoch = self.epoch(occasion.now);
        let user_action = occasion.action_id(&self.state.timeline);
        // What cannot be admitted is dropped, and the page does not learn of it.
        if !self.admit(user_action, epoch, site)? {
            return Ok(());
        }
        self.saved_in = Some(epoch);
        self.changes.saved.push(SavedImpression {
            epoch,
            site,
            intermediary,
            user_action,
            timestamp: occasion.now,
            expires: days_after(occasion.now, valid.lifetime_days),
            match_value: valid.match_value,
            histogram_index: valid.histogram_index,
            priority: valid.priority,
            audience,
        });
        Ok(())
    }

    /// Admits the site of an impression under its user action, if the domain cap has room. An epoch
    /// that was pruned admits nobody.
    fn admit(
        &mut self,
        user_action: UserAction,
        epoch: EpochIndex,
        site: SiteId,
    ) -> Result<bool, E> {
        let Some(policy) = self.state.policy(epoch) else {
            return Ok(false);
        };
        let admission = admission(policy, self.view, user_action, epoch, site)?;
        if admission == Admission::Room {
            self.changes.ledger.admissions.push(Admit {
                user_action,
                epoch,
                site,
            });
        }
        Ok(admission != Admission::Refused)
    }

    /// What a conversion reads. The sites that call get a number if they have none, because filters and
    /// caps are kept of them; and for a `share` the sites that the options name, too: whether two
    /// shares overlap must follow from what they name, not from what is stored.
    pub(crate) fn reading(
        &mut self,
        conversion: &ConversionCall,
        share: bool,
    ) -> Result<Reading, E> {
        let ConversionCall {
            occasion,
            caller,
            valid,
            ..
        } = conversion;
        let conversion_site = self.number(&caller.site)?;
        let caller_id = match &caller.intermediary {
            Some(intermediary) => self.number(intermediary)?,
            None => conversion_site,
        };
        let querier = match conversion.querier {
            Querier::ConversionSite => conversion_site,
            Querier::Intermediary => caller_id,
        };
        let not_before = days_before(occasion.now, valid.lookback_days);
        let (earliest, current) = (self.epoch(not_before), self.epoch(occasion.now));
        let starting = self.starting_epoch(occasion.now);

        // Of the sites that pay, the one that the user closed for longest.
        let mut closing: Option<(&Site, EpochIndex)> = None;
        for (id, site) in [conversion_site, querier]
            .into_iter()
            .zip(conversion.paying_sites())
        {
            if let Some(until) = self.view.closed_until(id)?
                && closing.is_none_or(|(_, longest)| longest < until)
            {
                closing = Some((site, until));
            }
        }
        // The draft spends the site's budget instead: a report that says nothing, and costs the
        // querier nothing, still charges the others for it.
        let mut eras = self.state.timeline.eras().iter();
        let spends = eras.all(|era| {
            let policy = &era.rules.policy;
            policy.matches_own_action() && policy.capacities().querier != Capacity::Unlimited
        });
        let readable_from = match closing {
            Some((_, until)) if !spends => starting.max(next(until)),
            _ => starting,
        };
        let hides = |until: EpochIndex| until >= earliest.max(starting);
        let request = Request {
            querier,
            conversion_site,
            user_action: occasion.action_id(&self.state.timeline),
            window: Window::between(earliest, current).readable_from(readable_from),
        };
        let terms = valid.terms.clone();
        let mut query = AttributionQuery::new(request, occasion.now, terms, valid.histogram_size);
        query.set_not_before(not_before);
        query.set_read_limits(self.config.read_limits);
        query.set_caller(caller_id);
        query.set_impression_sites(self.site_ids(&valid.impression_sites, share)?);
        query.set_impression_callers(self.site_ids(&valid.impression_callers, share)?);
        query.set_match_values(valid.match_values.clone());
        Ok(Reading {
            query,
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
            self.number(site)
        } else {
            Ok(self.view.site_id(site)?.unwrap_or(NOBODY))
        }
    }

    /// The number of a site, which it gets now if it had none. It keeps it as long as anything stored
    /// names it.
    pub(crate) fn number(&mut self, site: &Site) -> Result<SiteId, E> {
        if let Some(id) = self.view.site_id(site)? {
            return Ok(id);
        }
        let named = &self.changes.named;
        if let Some((id, _)) = named.iter().find(|(_, other)| other == site) {
            return Ok(*id);
        }
        let last = match named.last() {
            Some((id, _)) => Some(*id),
            None => self.view.last_site()?,
        };
        let id = match last {
            None => SiteId(0),
            Some(SiteId(last)) if last < NOBODY.0 - 1 => SiteId(last + 1),
            Some(_) => self.free_number()?,
        };
        self.changes.named.push((id, site.clone()));
        Ok(id)
    }

    /// The smallest number that no site has, when the largest one is given: four billion names after
    /// the first.
    fn free_number(&self) -> Result<SiteId, E> {
        let named = self.changes.named.iter().map(|(id, _)| *id);
        let mut taken: BTreeSet<SiteId> = named.collect();
        self.view.visit(Rows::Names, &mut |row| {
            if let Row::Name(id, _) = row {
                taken.insert(id);
            }
        })?;
        let free = (0..NOBODY.0).map(SiteId).find(|id| !taken.contains(id));
        Ok(free.unwrap_or(NOBODY))
    }

    /// Forgets a site at its own request: its impressions, and what it could still measure.
    pub(crate) fn forget_site(&mut self, site: SiteId) -> Result<(), E> {
        let edited = &mut self.changes.edited;
        let naming = Rows::Impressions(Selection::Naming(site));
        self.view.visit(naming, &mut |row| {
            if let Row::Impression(epoch, order, impression) = row {
                let audience = match impression.without(site) {
                    Forgetting::Untouched => return,
                    Forgetting::Restricted(audience) => Some(audience),
                    Forgetting::Removed => None,
                };
                edited.push(Edit {
                    epoch,
                    order,
                    audience,
                });
            }
        })?;
        let objects = &mut self.changes.objects;
        self.view.visit(Rows::Objects, &mut |row| {
            if let Row::Object(stored) = row {
                let mut object = stored.object.clone();
                object.forget_site(site);
                if object != stored.object {
                    objects.push(StoredObject {
                        object,
                        ..stored.clone()
                    });
                }
            }
        })?;
        self.changes.erase = true;
        Ok(())
    }

    /// Removes the impressions of which something holds, of those that are selected.
    pub(crate) fn remove_impressions(
        &mut self,
        selection: Selection,
        goes: impl Fn(&bigbird::Impression<'_>) -> bool,
    ) -> Result<(), E> {
        let edited = &mut self.changes.edited;
        self.view
            .visit(Rows::Impressions(selection), &mut |row| match row {
                Row::Impression(epoch, order, impression) if goes(&impression) => {
                    edited.push(Edit {
                        epoch,
                        order,
                        audience: None,
                    });
                }
                _ => {}
            })?;
        self.changes.erase = true;
        Ok(())
    }

    /// Closes the epochs before one: from then on they pay nothing, and nothing can reach what is
    /// stored of them. Shared conversions created in one go at once, as they count against a limit;
    /// the rest goes with upkeep. What was paid for them must not decide when they go, or it would tell
    /// one epoch's data in another's budget.
    pub(crate) fn close_before(&mut self, epoch: EpochIndex) {
        let first = self.state.first_epoch.max(epoch);
        self.state.first_epoch = first;
        self.state.timeline.prune_before(first);
        self.changes.forgotten = Some(Forgotten {
            pruned: first,
            unreachable: first,
            most: SLICE,
        });
    }

    /// Closes a conversion site up to and including an epoch, or further if it was.
    pub(crate) fn close_site(&mut self, site: SiteId, until: EpochIndex) -> Result<(), E> {
        let until = self
            .view
            .closed_until(site)?
            .max(Some(until))
            .unwrap_or(until);
        // A site that is named twice is closed once.
        self.changes.closed.retain(|(other, _)| *other != site);
        self.changes.closed.push((site, until));
        Ok(())
    }
}

/// A ledger in which the querier budgets of one site are spent up to an epoch (the draft's section
/// Clearing Site Data, which sets them to 0). Nothing need be written for that, so that an
/// explanation sees it too.
pub(crate) struct Spending<'v, V> {
    view: &'v V,
    spent: Option<(SiteId, EpochIndex)>,
}

impl<V: LedgerView> LedgerView for Spending<'_, V> {
    type Error = V::Error;

    fn consumed(&self, epoch: EpochIndex, checks: &mut [Check]) -> Result<(), V::Error> {
        self.view.consumed(epoch, checks)?;
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

    fn admitted(
        &self,
        action: UserAction,
        epoch: EpochIndex,
        site: SiteId,
    ) -> Result<Admitted, V::Error> {
        self.view.admitted(action, epoch, site)
    }
}
