//! A store in which something is missing, and which may have a flaw.

use std::cell::Cell;
use std::collections::BTreeMap;

use bigbird::attribution::Touch;
use bigbird::{
    Admission, AttributionQuery, Balance, Changes, Check, CommitError, EpochIndex, EventStore,
    Filter, FilterKind, Impression, LedgerStore, LedgerView, Relevant, SiteId, Timestamp,
    UserAction,
};
use bigbird_user_agent::{SharedConversion, Site, State, Storage, StoredObject, Transaction};

use crate::common::DAY;

/// A leak: the first four there were once, around the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// A share is null and free when one of its paid epochs has left the lookback or was cleared.
    ShareRefusedAsAWhole,
    /// Objects are forgotten when no epoch is left in which they were paid for.
    PrunedByPayment,
    /// When there are too many objects, ties go by the number of a site.
    TiesBySite,
    /// The latest moment moves only when something is charged.
    LatestByCharge,
    /// An epoch that the global budget refuses frees every other of charges.
    FreedByGlobal,
    /// An epoch that the conversion-site quota refuses frees every other of charges.
    FreedByConversionSite,
}

impl Flaw {
    pub(crate) const ALL: [Self; 6] = [
        Self::ShareRefusedAsAWhole,
        Self::PrunedByPayment,
        Self::TiesBySite,
        Self::LatestByCharge,
        Self::FreedByGlobal,
        Self::FreedByConversionSite,
    ];

    /// The kind of filter whose refusal frees others.
    fn frees(self) -> Option<FilterKind> {
        match self {
            Self::FreedByGlobal => Some(FilterKind::Global),
            Self::FreedByConversionSite => Some(FilterKind::ConversionSite),
            _ => None,
        }
    }
}

/// A store that does not keep what is saved in one epoch.
#[derive(Debug)]
pub(crate) struct World<S> {
    pub(crate) inner: S,
    pub(crate) without: Option<EpochIndex>,
    pub(crate) flaw: Option<Flaw>,
    pub(crate) lookback_days: u32,
    pub(crate) history: History,
}

/// What happened in a store, also of what it has forgotten since.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// The epochs in which something was saved, once for each.
    pub(crate) saved: Vec<EpochIndex>,
    /// What each epoch was ever charged from its global budget.
    pub(crate) global: BTreeMap<EpochIndex, u64>,
    /// How many attribution objects were crowded out.
    pub(crate) crowded_out: usize,
}

impl<S> World<S> {
    pub(crate) fn new(
        inner: S,
        without: Option<EpochIndex>,
        flaw: Option<Flaw>,
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
            charged: false,
            refused: Cell::new(false),
        })
    }
}

#[derive(Debug)]
pub(crate) struct WorldTransaction<'t, T> {
    inner: T,
    without: Option<EpochIndex>,
    flaw: Option<Flaw>,
    lookback_days: u32,
    history: &'t mut History,
    charged: bool,
    /// Whether a filter refused that frees others.
    refused: Cell<bool>,
}

impl<T: LedgerView> LedgerView for WorldTransaction<'_, T> {
    type Error = T::Error;

    fn first_epoch(&self) -> Result<EpochIndex, T::Error> {
        self.inner.first_epoch()
    }

    fn look_up(&self, epoch: EpochIndex, checks: &mut [Check]) -> Result<(), T::Error> {
        self.inner.look_up(epoch, checks)?;
        if let Some(kind) = self.flaw.and_then(Flaw::frees) {
            let mut short = checks.iter().filter(|check| !check.fits());
            if short.any(|check| check.filter.kind() == kind) {
                self.refused.set(true);
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
        self.inner.admission(action, epoch, site)
    }
}

impl<T: LedgerStore> LedgerStore for WorldTransaction<'_, T> {
    fn commit(&mut self, changes: &Changes) -> Result<(), CommitError<T::Error>> {
        if self.refused.get() {
            let free = Changes {
                charges: Vec::new(),
                ..changes.clone()
            };
            return self.inner.commit(&free);
        }
        self.charged |= !changes.charges.is_empty();
        for charge in &changes.charges {
            if charge.filter == Filter::Global {
                *self.history.global.entry(charge.epoch).or_default() += charge.amount.get();
            }
        }
        self.inner.commit(changes)
    }
}

impl<T: EventStore<AttributionQuery>> EventStore<AttributionQuery> for WorldTransaction<'_, T> {
    type Error = T::Error;

    fn find(
        &self,
        epoch: EpochIndex,
        query: &AttributionQuery,
        found: &mut Vec<Relevant<Touch>>,
    ) -> Result<(), T::Error> {
        self.inner.find(epoch, query, found)
    }
}

/// Passes calls on.
macro_rules! pass_on {
    ($($name:ident($me:ty $(, $arg:ident: $ty:ty)*) -> $out:ty;)*) => {
        $(fn $name(self: $me $(, $arg: $ty)*) -> Result<$out, E> {
            self.inner.$name($($arg),*)
        })*
    };
}

impl<T: Transaction<E>, E> Transaction<E> for WorldTransaction<'_, T> {
    fn set_state(&mut self, state: &State) -> Result<(), E> {
        let mut state = *state;
        if self.flaw == Some(Flaw::LatestByCharge) && !self.charged {
            state.latest = self.inner.state()?.latest;
        }
        self.inner.set_state(&state)
    }

    fn save_impression(&mut self, epoch: EpochIndex, impression: &Impression<'_>) -> Result<(), E> {
        if !self.history.saved.contains(&epoch) {
            self.history.saved.push(epoch);
        }
        if self.without == Some(epoch) {
            return Ok(());
        }
        self.inner.save_impression(epoch, impression)
    }

    fn prune_before(&mut self, epoch: EpochIndex) -> Result<(), E> {
        self.inner.prune_before(epoch)?;
        if self.flaw == Some(Flaw::PrunedByPayment) {
            for (number, _) in self.inner.objects()? {
                // Handles are numbers here.
                let stored = self.inner.object(SharedConversion(number.into()))?;
                if stored.is_some_and(|it| it.object.epochs().iter().all(|paid| *paid < epoch)) {
                    self.inner.remove_object(number)?;
                }
            }
        }
        Ok(())
    }

    fn object(&self, shared: SharedConversion) -> Result<Option<StoredObject>, E> {
        let stored = self.inner.object(shared)?;
        if self.flaw != Some(Flaw::ShareRefusedAsAWhole) {
            return Ok(stored);
        }
        let state = self.inner.state()?;
        let lookback = i64::from(self.lookback_days) * DAY;
        let earliest = state.latest.map(|latest| Timestamp(latest.0 - lookback));
        let earliest = earliest.and_then(|earliest| state.epoch_of(earliest));
        let readable = self
            .inner
            .first_epoch()?
            .max(earliest.unwrap_or(EpochIndex(i64::MIN)));
        Ok(stored.filter(|it| it.object.epochs().iter().all(|paid| *paid >= readable)))
    }

    fn remove_object(&mut self, number: u64) -> Result<(), E> {
        self.history.crowded_out += 1;
        let mut number = number;
        if self.flaw == Some(Flaw::TiesBySite) {
            let mut of_site: BTreeMap<SiteId, Vec<u64>> = BTreeMap::new();
            for (number, site) in self.inner.objects()? {
                of_site.entry(site).or_default().push(number);
            }
            let most = of_site.into_values().max_by_key(Vec::len).unwrap();
            number = most.into_iter().min().unwrap();
        }
        self.inner.remove_object(number)
    }

    fn finish(self) -> Result<(), E> {
        self.inner.finish()
    }

    pass_on! {
        state(&Self) -> State;
        find_site(&Self, site: &Site) -> Option<SiteId>;
        site_id(&mut Self, site: &Site) -> SiteId;
        site(&Self, id: SiteId) -> Option<Site>;
        filters(&Self) -> Vec<(EpochIndex, Filter, Balance)>;
        forget_site(&mut Self, site: SiteId) -> ();
        remove_impressions(&mut Self, sites: Option<&[SiteId]>) -> ();
        remove_expired(&mut Self, now: Timestamp) -> ();
        close_site(&mut Self, site: SiteId, until: EpochIndex) -> ();
        closed_until(&Self, site: SiteId) -> Option<EpochIndex>;
        forget_unused_sites(&mut Self) -> ();
        put_object(&mut Self, stored: StoredObject) -> ();
        objects(&Self) -> Vec<(u64, SiteId)>;
    }
}
