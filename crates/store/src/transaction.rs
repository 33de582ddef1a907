//! One transaction on the store.

use std::cell::{Cell, RefCell};

use bigbird::attribution::Touch;
use bigbird::{
    Admission, AttributionQuery, Balance, Changes, Check, CommitError, EpochIndex, EventStore,
    Filter, Impression, LedgerStore, LedgerView, MicroEpsilon, Refusal, Relevant, SiteId,
    Timestamp, UserAction,
};
use bigbird_user_agent::{SharedConversion, Site, State, StoredObject, Transaction};
use rusqlite::Connection;
use rustc_hash::FxHashMap;

use crate::admissions::Known;
use crate::device::Device;
use crate::error::{Problem, StoreError};
use crate::store::SqliteStore;

/// A transaction on a [`SqliteStore`]: it holds the lock from its beginning, and what it changes is
/// on the disk when [`finish`](Transaction::finish) returns. Dropped before, it never happened.
#[derive(Debug)]
pub struct SqliteTransaction<'t> {
    pub(crate) store: &'t mut SqliteStore,
    /// As it will be.
    pub(crate) device: Device,
    /// As it is.
    loaded: Device,
    /// What it has read of filters and caps, and written since.
    pub(crate) consumed: RefCell<FxHashMap<(EpochIndex, Filter), MicroEpsilon>>,
    pub(crate) blocks: RefCell<FxHashMap<(i64, EpochIndex), Known>>,
    /// Whether it writes also if nothing changed: a conversion that charged nothing must not be
    /// told from another by its write.
    writes: bool,
    /// Whether something was deleted that should not be found in the file any more.
    pub(crate) erased: bool,
    finished: bool,
    /// Whether something failed: what is half done must not be finished.
    failed: Cell<bool>,
}

impl<'t> SqliteTransaction<'t> {
    pub(crate) fn begin(store: &'t mut SqliteStore) -> Result<Self, Problem> {
        let device = store.begin_transaction()?;
        Ok(Self::with(store, device))
    }

    /// A transaction that is not going to change anything.
    pub(crate) fn look(store: &'t mut SqliteStore) -> Result<Self, Problem> {
        let device = store.lock()?;
        Ok(Self::with(store, device))
    }

    fn with(store: &'t mut SqliteStore, device: Device) -> Self {
        Self {
            store,
            device,
            loaded: device,
            consumed: RefCell::default(),
            blocks: RefCell::default(),
            writes: false,
            erased: false,
            finished: false,
            failed: Cell::new(false),
        }
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.store.connection
    }

    fn end(mut self) -> Result<(), Problem> {
        if self.failed.get() {
            return Err(Problem::HalfDone);
        }
        if self.writes || self.device != self.loaded {
            self.device.writes = self.device.writes.wrapping_add(1);
            self.device.save(self.connection())?;
        }
        self.connection().prepare_cached("COMMIT")?.execute([])?;
        self.finished = true;
        if self.erased {
            self.store.erase();
        }
        Ok(())
    }

    fn roll_back(&mut self) {
        if !self.finished {
            self.finished = true;
            self.store.release_lock();
        }
    }

    fn at<T>(&self, done: Result<T, Problem>) -> Result<T, StoreError> {
        done.map_err(|problem| {
            self.failed.set(true);
            StoreError::new(self.store.path(), problem)
        })
    }

    fn commit_changes(&mut self, changes: &Changes) -> Result<Result<(), Refusal>, Problem> {
        self.writes = true;
        for &admit in &changes.admissions {
            let admission = self.admission_of(admit.user_action, admit.epoch, admit.site)?;
            if admission == Admission::Refused {
                return Ok(Err(Refusal::Admission(admit)));
            }
        }
        let charged = match self.after(&changes.charges)? {
            Ok(charged) => charged,
            Err(refusal) => return Ok(Err(refusal)),
        };
        self.write_charged(&charged)?;
        for &admit in &changes.admissions {
            // The same admission twice is one.
            if self.admission_of(admit.user_action, admit.epoch, admit.site)? == Admission::Room {
                self.write_admission(admit)?;
            }
        }
        Ok(Ok(()))
    }

    fn prune(&mut self, epoch: EpochIndex) -> Result<(), Problem> {
        if epoch > self.device.first_epoch {
            self.device.first_epoch = epoch;
            self.consumed.get_mut().clear();
            self.blocks.get_mut().clear();
            self.prune_filters(epoch)?;
            self.prune_admissions(epoch)?;
            self.prune_impressions(epoch)?;
        }
        // With a clock that is behind, one may have been created since.
        let first = self.device.first_epoch;
        self.update_objects(|object| (object.created() >= first).then_some(object))
    }
}

impl Drop for SqliteTransaction<'_> {
    fn drop(&mut self) {
        self.roll_back();
    }
}

impl LedgerView for SqliteTransaction<'_> {
    type Error = StoreError;

    fn first_epoch(&self) -> Result<EpochIndex, StoreError> {
        Ok(self.device.first_epoch)
    }

    fn look_up(&self, epoch: EpochIndex, checks: &mut [Check]) -> Result<(), StoreError> {
        for check in checks {
            check.balance = self.at(self.balance(epoch, check.filter))?;
        }
        Ok(())
    }

    fn admission(
        &self,
        action: UserAction,
        epoch: EpochIndex,
        site: SiteId,
    ) -> Result<Admission, StoreError> {
        self.at(self.admission_of(action, epoch, site))
    }
}

impl LedgerStore for SqliteTransaction<'_> {
    fn commit(&mut self, changes: &Changes) -> Result<(), CommitError<StoreError>> {
        let committed = self.commit_changes(changes);
        self.at(committed)
            .map_err(CommitError::Store)?
            .map_err(CommitError::Refused)
    }
}

impl EventStore<AttributionQuery> for SqliteTransaction<'_> {
    type Error = StoreError;

    fn find(
        &self,
        epoch: EpochIndex,
        query: &AttributionQuery,
        found: &mut Vec<Relevant<Touch>>,
    ) -> Result<(), StoreError> {
        self.at(self.find_relevant(epoch, query, found))
    }
}

impl Transaction<StoreError> for SqliteTransaction<'_> {
    fn state(&self) -> Result<State, StoreError> {
        Ok(self.device.state)
    }

    fn set_state(&mut self, state: &State) -> Result<(), StoreError> {
        self.device.state = *state;
        Ok(())
    }

    fn find_site(&self, site: &Site) -> Result<Option<SiteId>, StoreError> {
        self.at(self.site_number(site))
    }

    fn site_id(&mut self, site: &Site) -> Result<SiteId, StoreError> {
        let id = self.number_site(site);
        self.at(id)
    }

    fn site(&self, id: SiteId) -> Result<Option<Site>, StoreError> {
        self.at(self.site_name(id))
    }

    fn filters(&self) -> Result<Vec<(EpochIndex, Filter, Balance)>, StoreError> {
        self.at(self.charged())
    }

    fn save_impression(
        &mut self,
        epoch: EpochIndex,
        impression: &Impression<'_>,
    ) -> Result<(), StoreError> {
        let saved = self.write_impression(epoch, impression);
        self.at(saved)
    }

    fn forget_site(&mut self, site: SiteId) -> Result<(), StoreError> {
        let forgotten = self.forget_impressions_of(site).and_then(|()| {
            self.update_objects(|mut object| {
                object.forget_site(site);
                Some(object)
            })
        });
        self.at(forgotten)
    }

    fn remove_impressions(&mut self, sites: Option<&[SiteId]>) -> Result<(), StoreError> {
        let removed = self.remove_of(sites);
        self.at(removed)
    }

    fn remove_expired(&mut self, now: Timestamp) -> Result<(), StoreError> {
        let removed = self.remove_expired_at(now);
        self.at(removed)
    }

    fn close_site(&mut self, site: SiteId, until: EpochIndex) -> Result<(), StoreError> {
        let closed = self.close(site, until);
        self.at(closed)
    }

    fn closed_until(&self, site: SiteId) -> Result<Option<EpochIndex>, StoreError> {
        self.at(self.closed(site))
    }

    fn prune_before(&mut self, epoch: EpochIndex) -> Result<(), StoreError> {
        let pruned = self.prune(epoch);
        self.at(pruned)
    }

    fn forget_unused_sites(&mut self) -> Result<(), StoreError> {
        let swept = self.sweep_sites();
        self.at(swept)
    }

    fn put_object(&mut self, stored: StoredObject) -> Result<(), StoreError> {
        let put = self.write_object(&stored);
        self.at(put)
    }

    fn object(&self, shared: SharedConversion) -> Result<Option<StoredObject>, StoreError> {
        self.at(self.object_of(shared))
    }

    fn objects(&self) -> Result<Vec<(u64, SiteId)>, StoreError> {
        self.at(self.listed_objects())
    }

    fn remove_object(&mut self, number: u64) -> Result<(), StoreError> {
        let removed = self.delete_object(number);
        self.at(removed)
    }

    fn finish(self) -> Result<(), StoreError> {
        let path = self.store.path().to_owned();
        self.end()
            .map_err(|problem| StoreError::new(&path, problem))
    }
}
