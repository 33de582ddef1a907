//! The query that a conversion makes to the budget manager.

use bigbird::{
    AdmissionState, AttributionQuery, Capacity, Check, ClosedSites, EpochIndex, Filter, LedgerView,
    ReportRequest, SiteId, UserAction, Window,
};

use super::Execution;
use crate::call::{ConversionCall, QuerierRole};
use crate::clock::{days_before, next};
use crate::randomness::Randomness;
use crate::site::Site;
use crate::storage::View;

/// The query for the budget manager, and what the user cleared of the epochs that it reads.
pub(crate) struct ConversionQuery {
    pub(crate) query: AttributionQuery,
    /// The first epoch that may be read. It comes after the epochs that the user cleared for all
    /// sites, for the conversion site and for the querier.
    pub(crate) readable_from: EpochIndex,
    /// The site that the user closed, if that hides an epoch that could otherwise be read.
    pub(crate) closed: Option<Site>,
    /// Under `w3c-draft`, the site whose querier budgets count as spent, up to and including an
    /// epoch.
    spent: Option<(SiteId, EpochIndex)>,
}

impl ConversionQuery {
    /// The ledger that the conversion sees.
    pub(crate) fn ledger<'v, V>(&self, view: &'v V) -> ClosedSiteLedger<'v, V> {
        ClosedSiteLedger {
            view,
            spent: self.spent,
        }
    }
}

impl<V: View<E>, E, R: Randomness> Execution<'_, V, E, R> {
    /// The query of a conversion. The sites that call get a number if they have none, because
    /// filters and domain caps are kept for them. For a `share`, the sites that the options name
    /// get a number too: whether two shares overlap must follow from what they name, not from what
    /// is stored.
    pub(crate) fn conversion_query(
        &mut self,
        conversion: &ConversionCall,
        share: bool,
    ) -> Result<ConversionQuery, E> {
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
            QuerierRole::ConversionSite => conversion_site,
            QuerierRole::Intermediary => caller_id,
        };
        let not_before = days_before(occasion.now, valid.lookback_days);
        let (earliest, current) = (self.epoch(not_before), self.epoch(occasion.now));
        let starting = self.starting_epoch(occasion.now);

        // The paying site that the user closed for longest.
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
        // The draft spends the site's budget instead. So a report that reveals nothing, and costs
        // the querier nothing, still charges the other filters.
        let mut eras = self.state.timeline.eras().iter();
        let spends = eras.all(|era| {
            let policy = &era.rules.policy;
            policy.closed_sites() == ClosedSites::SpendQuerierBudget
                && policy.capacities().querier_budget != Capacity::Unlimited
        });
        let readable_from = match closing {
            Some((_, until)) if !spends => starting.max(next(until)),
            _ => starting,
        };
        let hides = |until: EpochIndex| until >= earliest.max(starting);
        let request = ReportRequest {
            querier,
            conversion_site,
            user_action: occasion.action_id(&self.state.timeline),
            window: Window::between(earliest, current).readable_from(readable_from),
        };
        let terms = valid.terms.clone();
        let mut query = AttributionQuery::new(request, occasion.now, terms, valid.histogram_size);
        query.set_not_before(not_before);
        query.set_read_limits(self.config.read_limits);
        query.set_max_shares(self.config.max_shares);
        query.set_caller(caller_id);
        query.set_impression_sites(self.site_ids(&valid.impression_sites, share)?);
        query.set_impression_callers(self.site_ids(&valid.impression_callers, share)?);
        query.set_match_values(valid.match_values.clone());
        Ok(ConversionQuery {
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
}

/// A ledger in which the querier budgets of one site count as spent up to an epoch (the draft's
/// section Clearing Site Data, which sets them to 0). Nothing is written for this, so that an
/// explanation sees the same.
pub(crate) struct ClosedSiteLedger<'v, V> {
    view: &'v V,
    spent: Option<(SiteId, EpochIndex)>,
}

impl<V: LedgerView> LedgerView for ClosedSiteLedger<'_, V> {
    type Error = V::Error;

    fn consumed(&self, epoch: EpochIndex, checks: &mut [Check]) -> Result<(), V::Error> {
        self.view.consumed(epoch, checks)?;
        if let Some((site, until)) = self.spent
            && epoch <= until
        {
            let of_site = |check: &&mut Check| check.filter == Filter::QuerierBudget(site);
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
    ) -> Result<AdmissionState, V::Error> {
        self.view.admitted(action, epoch, site)
    }
}
