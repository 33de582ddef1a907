//! A store that leaves out the impressions of one epoch, and that may have a flaw.

use std::cell::Cell;
use std::collections::BTreeMap;

use bigbird::attribution::{MatchedImpression, SiteSize};
use bigbird::{
    AdmissionState, AttributionQuery, Check, EpochIndex, EventStore, Filter, FilterKind,
    LedgerView, Relevant, SiteId, Timestamp, UserAction,
};
use bigbird_user_agent::{
    ChangeSet, DeviceState, ForgottenEpochs, RowPlace, RowSet, SharedConversion, Site, Storage,
    StoredObject, Transaction, View, ViewRow,
};

use crate::common::DAY;

/// A leak between epochs. The first four once existed, in the code around the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EpochFlaw {
    /// A share is null and free when one of its paid epochs has left the lookback or was cleared.
    ShareRefusedAsAWhole,
    /// Objects are forgotten when no epoch is left in which they were paid for.
    PrunedByPayment,
    /// When there are too many objects, ties are decided by the number of a site.
    TiesBySite,
    /// The latest moment moves only when something is charged.
    LatestByCharge,
    /// If the global budget refuses an epoch, no other epoch is charged either.
    FreedByGlobal,
    /// If the conversion-site quota refuses an epoch, no other epoch is charged either.
    FreedByConversionSite,
}

impl EpochFlaw {
    pub(crate) const ALL: [Self; 6] = [
        Self::ShareRefusedAsAWhole,
        Self::PrunedByPayment,
        Self::TiesBySite,
        Self::LatestByCharge,
        Self::FreedByGlobal,
        Self::FreedByConversionSite,
    ];

    /// The kind of filter whose refusal cancels all charges.
    fn frees(self) -> Option<FilterKind> {
        match self {
            Self::FreedByGlobal => Some(FilterKind::GlobalBudget),
            Self::FreedByConversionSite => Some(FilterKind::ConversionSiteQuota),
            _ => None,
        }
    }
}

/// A store that does not keep the impressions that are saved in one epoch.
#[derive(Debug)]
pub(crate) struct World<S> {
    pub(crate) inner: S,
    pub(crate) without: Option<EpochIndex>,
    pub(crate) flaw: Option<EpochFlaw>,
    pub(crate) lookback_days: u32,
    pub(crate) history: History,
}

/// What happened in a store, including what it has forgotten since.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// The epochs in which something was saved, each once.
    pub(crate) saved: Vec<EpochIndex>,
    /// The total that each epoch was charged from its global budget, in µε.
    pub(crate) global: BTreeMap<EpochIndex, u64>,
    /// The number of attribution objects that were dropped because there were too many.
    pub(crate) evicted_objects: usize,
}

impl<S> World<S> {
    pub(crate) fn new(
        inner: S,
        without: Option<EpochIndex>,
        flaw: Option<EpochFlaw>,
        lookback_days: u32,
    ) -> Self {
        Self {
            inner,
            without,
            flaw,
            lookback_days,
            history: History::default(),
        }
    }
}

impl<S: Storage> Storage for World<S> {
    type Error = S::Error;
    type Transaction<'t>
        = WorldTransaction<'t, S::Transaction<'t>>
    where
        Self: 't;

    fn begin(&mut self) -> Result<Self::Transaction<'_>, S::Error> {
        Ok(WorldTransaction {
            inner: self.inner.begin()?,
            without: self.without,
            flaw: self.flaw,
            lookback_days: self.lookback_days,
            history: &mut self.history,
            refused: Cell::new(false),
        })
    }
}

#[derive(Debug)]
pub(crate) struct WorldTransaction<'t, T> {
    inner: T,
    without: Option<EpochIndex>,
    flaw: Option<EpochFlaw>,
    lookback_days: u32,
    history: &'t mut History,
    /// True if a filter refused whose refusal cancels all charges.
    refused: Cell<bool>,
}

impl<T: LedgerView> LedgerView for WorldTransaction<'_, T> {
    type Error = T::Error;

    fn consumed(&self, epoch: EpochIndex, checks: &mut [Check]) -> Result<(), T::Error> {
        self.inner.consumed(epoch, checks)?;
        if let Some(kind) = self.flaw.and_then(EpochFlaw::frees) {
            let mut short = checks.iter().filter(|check| !check.fits());
            if short.any(|check| check.filter.kind() == kind) {
                self.refused.set(true);
            }
        }
        Ok(())
    }

    fn admitted(
        &self,
        action: UserAction,
        epoch: EpochIndex,
        site: SiteId,
    ) -> Result<AdmissionState, T::Error> {
        self.inner.admitted(action, epoch, site)
    }
}

impl<T: EventStore<AttributionQuery>> EventStore<AttributionQuery> for WorldTransaction<'_, T> {
    type Error = T::Error;

    fn find(
        &self,
        epoch: EpochIndex,
        query: &AttributionQuery,
        found: &mut Vec<Relevant<MatchedImpression>>,
    ) -> Result<(), T::Error> {
        self.inner.find(epoch, query, found)
    }
}

/// Forwards methods to the inner store.
macro_rules! pass_on {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $out:ty;)*) => {
        $(fn $name(&self $(, $arg: $ty)*) -> Result<$out, E> {
            self.inner.$name($($arg),*)
        })*
    };
}

impl<T: View<E>, E> View<E> for WorldTransaction<'_, T> {
    fn object(&self, shared: SharedConversion) -> Result<Option<StoredObject>, E> {
        let stored = self.inner.object(shared)?;
        if self.flaw != Some(EpochFlaw::ShareRefusedAsAWhole) {
            return Ok(stored);
        }
        let state = self.inner.state()?;
        let lookback = i64::from(self.lookback_days) * DAY;
        let earliest = state.latest.map(|latest| Timestamp(latest.0 - lookback));
        let earliest = earliest.and_then(|earliest| state.timeline.epoch(earliest));
        let readable = state
            .first_epoch
            .max(earliest.unwrap_or(EpochIndex(i64::MIN)));
        Ok(stored.filter(|it| it.object.epochs().iter().all(|paid| *paid >= readable)))
    }

    pass_on! {
        state() -> DeviceState;
        site_id(site: &Site) -> Option<SiteId>;
        site(id: SiteId) -> Option<Site>;
        last_site() -> Option<SiteId>;
        revision() -> u64;
        closed_until(site: SiteId) -> Option<EpochIndex>;
        units(epoch: EpochIndex) -> u32;
        largest_site(epoch: EpochIndex) -> Option<SiteSize>;
        has_rows_before(forgotten: ForgottenEpochs) -> bool;
        objects() -> Vec<(u64, SiteId)>;
        visit(rows: RowSet, visit: &mut dyn FnMut(ViewRow<'_>)) -> ();
        visit_some(
            rows: RowSet,
            behind: Option<RowPlace>,
            most: usize,
            visit: &mut dyn FnMut(ViewRow<'_>)
        ) -> bool;
    }
}

impl<T: Transaction<E>, E> Transaction<E> for WorldTransaction<'_, T> {
    fn apply(&mut self, changes: &ChangeSet) -> Result<(), E> {
        let mut changes = changes.clone();
        for saved in &changes.saved {
            if !self.history.saved.contains(&saved.epoch) {
                self.history.saved.push(saved.epoch);
            }
        }
        changes.saved.retain(|it| self.without != Some(it.epoch));
        self.history.evicted_objects += changes.dropped_objects.len();
        if self.refused.take() {
            changes.ledger.charges.clear();
        }
        for charge in &changes.ledger.charges {
            if charge.filter == Filter::GlobalBudget {
                *self.history.global.entry(charge.epoch).or_default() += charge.amount.get();
            }
        }
        match self.flaw {
            Some(EpochFlaw::LatestByCharge) if changes.ledger.charges.is_empty() => {
                let latest = self.inner.state()?.latest;
                if let Some(state) = &mut changes.state {
                    state.latest = latest;
                }
            }
            Some(EpochFlaw::TiesBySite) if !changes.dropped_objects.is_empty() => {
                let mut of_site: BTreeMap<SiteId, Vec<u64>> = BTreeMap::new();
                let created = changes.objects.iter();
                let created = created.map(|it| (it.number, it.object.conversion_site()));
                for (number, site) in self.inner.objects()?.into_iter().chain(created) {
                    of_site.entry(site).or_default().push(number);
                }
                let most = of_site.into_values().max_by_key(Vec::len).unwrap();
                changes.dropped_objects = most.into_iter().min().into_iter().collect();
            }
            Some(EpochFlaw::PrunedByPayment) => {
                if let Some(first) = changes.forgotten.map(|gone| gone.pruned) {
                    for (number, _) in self.inner.objects()? {
                        // In this test, the handle of an object is its number.
                        let stored = self.inner.object(SharedConversion(number.into()))?;
                        let paid = |it: StoredObject| it.object.epochs().to_vec();
                        let paid = stored.map(paid).unwrap_or_default();
                        if paid.iter().all(|paid| *paid < first) {
                            changes.dropped_objects.push(number);
                        }
                    }
                }
            }
            _ => {}
        }
        self.inner.apply(&changes)
    }

    fn commit(self) -> Result<(), E> {
        self.inner.commit()
    }
}
