//! Transactions on the store.

use std::cell::{Cell, RefCell};

use bigbird::attribution::{MatchedImpression, SiteSize};
use bigbird::{
    AdmissionState, AttributionQuery, Check, EpochIndex, EventStore, Filter, Impression,
    LedgerView, MicroEpsilon, Relevant, SiteId, UserAction,
};
use bigbird_user_agent::{
    ChangeSet, DeviceState, ForgottenEpochs, HistoryEntry, HistoryKind, ListedRows, RowPlace,
    RowSet, SharedConversion, Site, StoredObject, Transaction, View, ViewRow,
};
use rusqlite::Connection;
use rustc_hash::FxHashMap;

use crate::admissions::LoadedBlock;
use crate::device::DeviceRow;
use crate::error::{Problem, StoreError};
use crate::store::SqliteStore;
use crate::{admissions, filters, history, impressions, objects, sites};

/// A transaction on a [`SqliteStore`].
///
/// It holds the lock from its beginning. Its changes are on the disk when
/// [`commit`](Transaction::commit) returns. If it is dropped before that, it never happened.
#[derive(Debug)]
pub struct SqliteTransaction<'t> {
    pub(crate) store: &'t mut SqliteStore,
    /// The device row as it will be after the commit.
    pub(crate) device: DeviceRow,
    /// The amount consumed of each filter that was read, including the charges of this transaction.
    pub(crate) consumed: RefCell<FxHashMap<(EpochIndex, Filter), MicroEpsilon>>,
    /// The filters that were charged, with the amount consumed before.
    pub(crate) charged: FxHashMap<(EpochIndex, Filter), MicroEpsilon>,
    /// The rows of admissions that were read, including the changes of this transaction.
    pub(crate) blocks: RefCell<FxHashMap<(i64, EpochIndex), LoadedBlock>>,
    /// True if a row was deleted.
    pub(crate) deleted: bool,
    /// True if deleted content must also be erased from the files.
    erase: bool,
    finished: bool,
    /// True if a step failed: a half-done transaction must not be committed.
    failed: Cell<bool>,
}

impl<'t> SqliteTransaction<'t> {
    pub(crate) fn begin(store: &'t mut SqliteStore) -> Result<Self, Problem> {
        let device = store.begin_transaction()?;
        Ok(Self::with(store, device))
    }

    /// A transaction that only reads.
    pub(crate) fn look(store: &'t mut SqliteStore) -> Result<Self, Problem> {
        let device = store.lock()?;
        Ok(Self::with(store, device))
    }

    fn with(store: &'t mut SqliteStore, device: DeviceRow) -> Self {
        Self {
            store,
            device,
            consumed: RefCell::default(),
            charged: FxHashMap::default(),
            blocks: RefCell::default(),
            deleted: false,
            erase: false,
            finished: false,
            failed: Cell::new(false),
        }
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.store.connection
    }

    fn write(&mut self, changes: &ChangeSet) -> Result<(), Problem> {
        if let Some(state) = &changes.state {
            self.device.state.clone_from(state);
        }
        for (id, site) in &changes.named {
            self.name_site(*id, site)?;
        }
        self.charge(&changes.ledger.charges)?;
        for &admit in &changes.ledger.admissions {
            self.write_admission(admit)?;
        }
        for saved in &changes.saved {
            self.append(saved)?;
        }
        for edit in &changes.edited {
            self.edit(edit)?;
        }
        for &(site, until) in &changes.closed {
            self.close(site, until)?;
        }
        for stored in &changes.objects {
            self.write_object(stored)?;
        }
        for &number in &changes.dropped_objects {
            self.delete_object(number)?;
        }
        for entry in &changes.recorded {
            self.write_entry(entry)?;
        }
        self.delete_entries(&changes.unrecorded)?;
        if changes.history_cleared {
            self.delete_history()?;
        }
        if let Some(forgotten) = changes.forgotten {
            self.write_charges()?;
            self.consumed.get_mut().clear();
            self.blocks.get_mut().clear();
            self.forget_filters(forgotten)?;
            self.forget_admissions(forgotten)?;
            self.forget_impressions(forgotten)?;
            self.prune_objects(forgotten.pruned)?;
            self.forget_history(forgotten)?;
        }
        for &id in &changes.unnamed {
            self.forget_name(id)?;
        }
        self.erase |= changes.erase;
        Ok(())
    }

    fn end(mut self) -> Result<(), Problem> {
        if self.failed.get() {
            return Err(Problem::HalfDone);
        }
        self.write_charges()?;
        self.device.writes = self.device.writes.wrapping_add(1);
        self.device.save(self.connection())?;
        self.connection().prepare_cached("COMMIT")?.execute([])?;
        self.finished = true;
        self.store.unerased |= self.deleted;
        if self.erase && self.store.unerased {
            self.store.erase();
            self.store.unerased = false;
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

    pub(crate) fn visit_rows(
        &self,
        rows: RowSet,
        behind: Option<RowPlace>,
        most: usize,
        mut visit: impl FnMut(ViewRow<'_>),
    ) -> Result<bool, Problem> {
        let connection = self.connection();
        let is_behind = |row: &ViewRow<'_>| Some(row.place()) > behind;
        match rows {
            RowSet::Names => sites::scan(connection, behind, most, |id, name, _| {
                visit(ViewRow::Name(id, &Site::from_stored(name)));
                Ok(())
            }),
            RowSet::Filters => {
                let more = filters::scan(connection, behind, most, |row, _| {
                    // This transaction may have charged it since.
                    let consumed = self.consumed_of(row.epoch, row.filter)?;
                    visit(ViewRow::Filter(row.epoch, row.filter, consumed));
                    Ok(())
                })?;
                for (&(epoch, filter), before) in &self.charged {
                    let row = ViewRow::Filter(epoch, filter, self.consumed_of(epoch, filter)?);
                    if before.is_zero() && is_behind(&row) {
                        visit(row);
                    }
                }
                Ok(more)
            }
            RowSet::Admissions => admissions::scan(connection, behind, most, |block, _| {
                for (action, site) in block.entries() {
                    visit(ViewRow::Admission(action, block.epoch, site));
                }
                Ok(())
            }),
            RowSet::Closings => {
                filters::scan_closed(connection, |site, until, _| {
                    let row = ViewRow::Closing(site, until);
                    if is_behind(&row) {
                        visit(row);
                    }
                    Ok(())
                })?;
                Ok(false)
            }
            RowSet::Objects => {
                objects::scan(connection, |stored, _| {
                    let row = ViewRow::Object(&stored);
                    if is_behind(&row) {
                        visit(row);
                    }
                    Ok(())
                })?;
                Ok(false)
            }
            RowSet::Impressions(selection) => impressions::scan(
                connection,
                selection,
                behind,
                most,
                |epoch, seq, impression| {
                    visit(ViewRow::Impression(epoch, seq, impression));
                    Ok(())
                },
            ),
            RowSet::History => history::scan(connection, behind, most, |entry| {
                visit(ViewRow::History(entry));
                Ok(())
            }),
            RowSet::HistoryKeys => {
                history::scan_keys(connection, |key| {
                    let row = ViewRow::HistoryKey(key);
                    if is_behind(&row) {
                        visit(row);
                    }
                })?;
                Ok(false)
            }
        }
    }

    fn visit_last_rows(
        &self,
        rows: ListedRows,
        before: Option<RowPlace>,
        most: usize,
        visit: &mut dyn FnMut(ViewRow<'_>),
    ) -> Result<bool, Problem> {
        let connection = self.connection();
        match rows {
            ListedRows::History => {
                let each = |entry: &HistoryEntry| visit(ViewRow::History(entry));
                history::scan_last(connection, before, most, each)
            }
            ListedRows::ImpressionsFrom(first) => {
                let each = |epoch, seq, impression: Impression<'_>| {
                    visit(ViewRow::Impression(epoch, seq, impression));
                };
                impressions::scan_last(connection, first, before, most, each)
            }
        }
    }

    fn has_rows(&self, forgotten: ForgottenEpochs) -> Result<bool, Problem> {
        let exists = |sql: &str, epoch: EpochIndex| -> Result<bool, Problem> {
            let mut statement = self.connection().prepare_cached(sql)?;
            Ok(statement.query_row([epoch.0], |row| row.get(0))?)
        };
        let ForgottenEpochs {
            pruned,
            unreachable,
            history,
            ..
        } = forgotten;
        let in_open = "SELECT EXISTS (SELECT 1 FROM impression WHERE epoch < ?)";
        Ok(exists(
            "SELECT EXISTS (SELECT 1 FROM filter WHERE epoch < ?)",
            pruned,
        )? || exists(
            "SELECT EXISTS (SELECT 1 FROM object WHERE created < ?)",
            pruned,
        )? || exists(
            "SELECT EXISTS (SELECT 1 FROM admission WHERE epoch < ?)",
            unreachable,
        )? || exists(
            "SELECT EXISTS (SELECT 1 FROM closed WHERE until < ?)",
            pruned,
        )? || exists(in_open, unreachable)?
            || self.has_impressions_before(pruned)?
            || exists(
                "SELECT EXISTS (SELECT 1 FROM history INDEXED BY history_by_caller
                 WHERE epoch < ?)",
                history,
            )?)
    }
}

impl Drop for SqliteTransaction<'_> {
    fn drop(&mut self) {
        self.roll_back();
    }
}

impl LedgerView for SqliteTransaction<'_> {
    type Error = StoreError;

    fn consumed(&self, epoch: EpochIndex, checks: &mut [Check]) -> Result<(), StoreError> {
        for check in checks {
            check.balance.consumed = self.at(self.consumed_of(epoch, check.filter))?;
        }
        Ok(())
    }

    fn admitted(
        &self,
        action: UserAction,
        epoch: EpochIndex,
        site: SiteId,
    ) -> Result<AdmissionState, StoreError> {
        self.at(self.admitted_to(action, epoch, site))
    }
}

impl EventStore<AttributionQuery> for SqliteTransaction<'_> {
    type Error = StoreError;

    fn find(
        &self,
        epoch: EpochIndex,
        query: &AttributionQuery,
        found: &mut Vec<Relevant<MatchedImpression>>,
    ) -> Result<(), StoreError> {
        self.at(self.find_relevant(epoch, query, found))
    }
}

impl View<StoreError> for SqliteTransaction<'_> {
    fn state(&self) -> Result<DeviceState, StoreError> {
        Ok(self.device.state.clone())
    }

    fn site_id(&self, site: &Site) -> Result<Option<SiteId>, StoreError> {
        self.at(self.site_number(site))
    }

    fn site(&self, id: SiteId) -> Result<Option<Site>, StoreError> {
        self.at(self.site_name(id))
    }

    fn last_site(&self) -> Result<Option<SiteId>, StoreError> {
        self.at(self.largest_number())
    }

    fn closed_until(&self, site: SiteId) -> Result<Option<EpochIndex>, StoreError> {
        self.at(self.closed(site))
    }

    fn revision(&self) -> Result<u64, StoreError> {
        Ok(self.device.writes)
    }

    fn units(&self, epoch: EpochIndex) -> Result<u32, StoreError> {
        self.at(self.units_of(epoch))
    }

    fn largest_site(&self, epoch: EpochIndex) -> Result<Option<SiteSize>, StoreError> {
        self.at(self.largest_of(epoch))
    }

    fn has_rows_before(&self, forgotten: ForgottenEpochs) -> Result<bool, StoreError> {
        self.at(self.has_rows(forgotten))
    }

    fn object(&self, shared: SharedConversion) -> Result<Option<StoredObject>, StoreError> {
        self.at(self.object_of(shared))
    }

    fn objects(&self) -> Result<Vec<(u64, SiteId)>, StoreError> {
        self.at(self.listed_objects())
    }

    fn last_entry(&self) -> Result<Option<u64>, StoreError> {
        self.at(self.last_number())
    }

    fn entries_by(&self, caller: &Site) -> Result<Vec<(u64, HistoryKind)>, StoreError> {
        self.at(self.numbers_by(caller))
    }

    fn visit_last(
        &self,
        rows: ListedRows,
        before: Option<RowPlace>,
        most: usize,
        visit: &mut dyn FnMut(ViewRow<'_>),
    ) -> Result<bool, StoreError> {
        self.at(self.visit_last_rows(rows, before, most, visit))
    }

    fn visit(&self, rows: RowSet, visit: &mut dyn FnMut(ViewRow<'_>)) -> Result<(), StoreError> {
        self.at(self.visit_rows(rows, None, usize::MAX, visit))?;
        Ok(())
    }

    fn visit_some(
        &self,
        rows: RowSet,
        behind: Option<RowPlace>,
        most: usize,
        visit: &mut dyn FnMut(ViewRow<'_>),
    ) -> Result<bool, StoreError> {
        self.at(self.visit_rows(rows, behind, most, visit))
    }
}

impl Transaction<StoreError> for SqliteTransaction<'_> {
    fn apply(&mut self, changes: &ChangeSet) -> Result<(), StoreError> {
        let written = self.write(changes);
        self.at(written)
    }

    fn commit(self) -> Result<(), StoreError> {
        let path = self.store.path().to_owned();
        self.end()
            .map_err(|problem| StoreError::new(&path, problem))
    }
}
