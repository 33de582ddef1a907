//! The store of a user agent in one of two worlds: in world 0, it keeps nothing of what is saved in
//! epoch x. It may have a flaw.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use bigbird::attribution::{MatchedImpression, SiteSize};
use bigbird::{
    AdmissionState, AttributionQuery, Charge, Check, EpochIndex, EventStore, Filter, FilterKind,
    LedgerView, MicroEpsilon, Relevant, SiteId, Timestamp, UserAction,
};
use bigbird_user_agent::{
    ChangeSet, DeviceState, ForgottenEpochs, HistoryKind, RowPlace, RowSet, SharedConversion, Site,
    Storage, StoredObject, Transaction, View, ViewRow,
};

use super::device::History;
use crate::script::DAY;

/// A mistake of a store, or of a rule that reads it. The user agent above is the real one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreFlaw {
    /// A share is null and free when one of its paid epochs can no longer be read.
    ShareRefusedWhole,
    /// When there are too many attribution objects, one that nothing was paid for goes first.
    ObjectsByPayment,
    /// Attribution objects are forgotten when no epoch is left that paid for them.
    PrunedByPayment,
    /// The latest moment moves only when something is charged.
    LatestByCharge,
    /// If this kind of filter refuses an epoch, no epoch of the request is charged.
    FreedBy(FilterKind),
    /// The charges of a request are written with the next request.
    LateCommit,
    /// The charges of a request are written after its report was released. A crash loses them.
    ChargedAfterRelease,
    /// A change of rules renews every epoch.
    RulesRenew,
}

/// A store in one of two worlds.
#[derive(Debug)]
pub(super) struct WorldStore<S> {
    pub(super) inner: S,
    pub(super) life: WorldLife,
}

/// Everything about a world that outlives its process.
#[derive(Debug)]
pub(super) struct WorldLife {
    pub(super) without: Option<EpochIndex>,
    pub(super) flaw: Option<StoreFlaw>,
    pub(super) lookback_days: u32,
    /// The moment of the step.
    pub(super) now: Timestamp,
    pub(super) history: History,
    /// Charges that were granted and are not written yet.
    late: Vec<Charge>,
    /// The amounts that a change of rules has forgiven.
    forgiven: BTreeMap<(EpochIndex, Filter), u64>,
}

impl WorldLife {
    pub(super) fn new(without: Option<i64>, flaw: Option<StoreFlaw>, lookback_days: u32) -> Self {
        Self {
            without: without.map(EpochIndex),
            flaw,
            lookback_days,
            now: Timestamp(0),
            history: History::default(),
            late: Vec::new(),
            forgiven: BTreeMap::new(),
        }
    }

    /// The process was killed.
    pub(super) fn crash(&mut self) {
        if self.flaw == Some(StoreFlaw::ChargedAfterRelease) {
            self.late.clear();
        }
    }
}

impl<S: Storage> WorldStore<S> {
    /// Forgives what was spent so far, if the store has that flaw.
    pub(super) fn change_rules(&mut self) -> Result<(), S::Error> {
        if self.life.flaw != Some(StoreFlaw::RulesRenew) {
            return Ok(());
        }
        let forgiven = &mut self.life.forgiven;
        let transaction = self.inner.begin()?;
        transaction.visit(RowSet::Filters, &mut |row| {
            if let ViewRow::Filter(epoch, filter, consumed) = row {
                forgiven.insert((epoch, filter), consumed.get());
            }
        })
    }
}

impl<S: Storage> Storage for WorldStore<S> {
    type Error = S::Error;
    type Transaction<'t>
        = WorldTransaction<'t, S::Transaction<'t>>
    where
        Self: 't;

    fn begin(&mut self) -> Result<Self::Transaction<'_>, S::Error> {
        Ok(WorldTransaction {
            inner: self.inner.begin()?,
            life: RefCell::new(&mut self.life),
            refused: Cell::new(false),
        })
    }
}

#[derive(Debug)]
pub(super) struct WorldTransaction<'t, T> {
    inner: T,
    life: RefCell<&'t mut WorldLife>,
    /// True if a filter refused whose refusal cancels all charges.
    refused: Cell<bool>,
}

impl<T: LedgerView> LedgerView for WorldTransaction<'_, T> {
    type Error = T::Error;

    fn consumed(&self, epoch: EpochIndex, checks: &mut [Check]) -> Result<(), T::Error> {
        self.inner.consumed(epoch, checks)?;
        let life = self.life.borrow();
        match life.flaw {
            Some(StoreFlaw::FreedBy(kind)) => {
                let mut short = checks.iter().filter(|check| !check.fits());
                if short.any(|check| check.filter.kind() == kind) {
                    self.refused.set(true);
                }
            }
            Some(StoreFlaw::RulesRenew) => {
                for check in checks {
                    let forgiven = life.forgiven.get(&(epoch, check.filter)).copied();
                    let consumed = check.balance.consumed.get();
                    let left = consumed.saturating_sub(forgiven.unwrap_or(0));
                    check.balance.consumed = MicroEpsilon::new(left);
                }
            }
            _ => {}
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
        let life = self.life.borrow();
        if life.flaw != Some(StoreFlaw::ShareRefusedWhole) {
            return Ok(stored);
        }
        let state = self.inner.state()?;
        let lookback = i64::from(life.lookback_days) * DAY;
        let earliest = state.timeline.epoch(Timestamp(life.now.0 - lookback));
        let readable = earliest.map_or(state.first_epoch, |it| it.max(state.first_epoch));
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
        last_entry() -> Option<u64>;
        entries_by(caller: &Site) -> Vec<(u64, HistoryKind)>;
        visit(rows: RowSet, visit: &mut dyn FnMut(ViewRow<'_>)) -> ();
        visit_some(
            rows: RowSet,
            behind: Option<RowPlace>,
            most: usize,
            visit: &mut dyn FnMut(ViewRow<'_>)
        ) -> bool;
    }
}

impl<T> WorldTransaction<'_, T> {
    /// The epochs that paid for an object. In an audit, the handle of an object is its number.
    fn paid<E>(&self, number: u64, changes: &ChangeSet) -> Result<Vec<EpochIndex>, E>
    where
        T: Transaction<E>,
    {
        let new = changes.objects.iter().find(|it| it.number == number);
        let stored = match new {
            Some(stored) => Some(stored.clone()),
            None => self.inner.object(SharedConversion(number.into()))?,
        };
        Ok(stored.map_or_else(Vec::new, |it| it.object.epochs().to_vec()))
    }

    /// Every object after the changes, with its conversion site.
    fn objects_after<E>(&self, changes: &ChangeSet) -> Result<Vec<(u64, SiteId)>, E>
    where
        T: Transaction<E>,
    {
        let mut objects = self.inner.objects()?;
        for new in &changes.objects {
            if !objects.iter().any(|(number, _)| *number == new.number) {
                objects.push((new.number, new.object.conversion_site()));
            }
        }
        Ok(objects)
    }

    /// Changes the changes as the flaw wants it.
    fn spoil<E>(&self, flaw: StoreFlaw, changes: &mut ChangeSet) -> Result<(), E>
    where
        T: Transaction<E>,
    {
        match flaw {
            StoreFlaw::LatestByCharge if changes.ledger.charges.is_empty() => {
                let latest = self.inner.state()?.latest;
                if let Some(state) = &mut changes.state {
                    state.latest = latest;
                }
            }
            StoreFlaw::ObjectsByPayment if !changes.dropped_objects.is_empty() => {
                let mut unpaid = Vec::new();
                for (number, _) in self.objects_after(changes)? {
                    if self.paid(number, changes)?.is_empty() {
                        unpaid.push(number);
                    }
                }
                if let Some(oldest) = unpaid.into_iter().min() {
                    changes.dropped_objects = vec![oldest];
                }
            }
            StoreFlaw::PrunedByPayment => {
                if let Some(first) = changes.forgotten.map(|gone| gone.pruned) {
                    for (number, _) in self.inner.objects()? {
                        let paid = self.paid(number, changes)?;
                        if paid.iter().all(|paid| *paid < first) {
                            changes.dropped_objects.push(number);
                        }
                    }
                }
            }
            StoreFlaw::FreedBy(_) if self.refused.take() => changes.ledger.charges.clear(),
            _ => {}
        }
        Ok(())
    }
}

impl<T: Transaction<E>, E> Transaction<E> for WorldTransaction<'_, T> {
    fn apply(&mut self, changes: &ChangeSet) -> Result<(), E> {
        let mut changes = changes.clone();
        let flaw = self.life.borrow().flaw;
        if let Some(flaw) = flaw {
            self.spoil(flaw, &mut changes)?;
        }
        let mut life = self.life.borrow_mut();
        for saved in &changes.saved {
            life.history.save(saved.epoch.0);
        }
        if changes
            .saved
            .iter()
            .any(|it| life.without == Some(it.epoch))
        {
            // The call of a save has no other effect in its epoch than these two.
            changes.saved.clear();
            changes.ledger.admissions.clear();
        }
        for charge in &changes.ledger.charges {
            if charge.filter == Filter::GlobalBudget {
                let granted = &mut life.history.granted;
                *granted.entry(charge.epoch.0).or_default() += charge.amount.get();
            }
        }
        if let Some(StoreFlaw::LateCommit | StoreFlaw::ChargedAfterRelease) = flaw {
            let now = std::mem::take(&mut changes.ledger.charges);
            changes.ledger.charges = std::mem::replace(&mut life.late, now);
        }
        drop(life);
        self.inner.apply(&changes)
    }

    fn commit(self) -> Result<(), E> {
        self.inner.commit()
    }
}
