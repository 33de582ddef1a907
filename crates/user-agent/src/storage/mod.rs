//! The border between the user agent and its store: rows below, rules above.
//!
//! A call reads the rows of a [`View`] and gives an answer and a [`ChangeSet`], which is data.
//! Every rule is above this border: what the domain cap admits, which filters can pay, what is
//! evicted, which names are unused. A store reads rows and writes change sets, each as a whole or
//! not at all.

mod change_set;
mod rows;
mod state;

use bigbird::attribution::SiteSize;
use bigbird::{AttributionQuery, EpochIndex, EventStore, LedgerView, SiteId};

pub use change_set::{ChangeSet, ForgottenEpochs, SavedImpression, StoredObject};
pub use rows::{ImpressionSelection, ListedRows, RowPlace, RowSet, ViewRow};
pub use state::DeviceState;

use crate::history::HistoryKind;
use crate::shared::SharedConversion;
use crate::site::Site;

/// The place where a user agent keeps impressions, budgets and its own state. It can be in memory
/// ([`MemoryStore`](crate::MemoryStore)), on disk, or anywhere: the example `json_store` uses a
/// JSON file.
///
/// The privacy of the whole user agent depends on these guarantees of an implementation:
///
/// * **Atomic.** A transaction that is committed happened as a whole. One that is dropped, or whose
///   process died, did not happen at all.
/// * **Isolated.** Until a transaction ends, what it reads changes only by its own changes. This
///   also holds when two processes have the store open.
/// * **Durable before release.** When [`commit`](Transaction::commit) returns, the changes survive
///   a crash and a power cut. The user agent releases a report only then.
/// * **Fail closed.** Data that cannot be read is an error, never an empty store: a lost ledger
///   would refund every budget.
pub trait Storage {
    /// The reason why the store could not be read or written.
    type Error: std::error::Error + 'static;

    /// A transaction.
    type Transaction<'t>: Transaction<Self::Error>
    where
        Self: 't;

    /// Begins a transaction, waiting for others to end.
    ///
    /// # Errors
    /// If the store cannot be opened or locked.
    fn begin(&mut self) -> Result<Self::Transaction<'_>, Self::Error>;
}

/// One transaction: what calls see, and what they change.
pub trait Transaction<E>: View<E> {
    /// Writes a change set, in the order of its fields. Later reads of this transaction see the
    /// changes.
    ///
    /// # Errors
    /// If the change set cannot be written. Then nothing of the transaction happens.
    fn apply(&mut self, changes: &ChangeSet) -> Result<(), E>;

    /// Makes the changes durable. It writes even if there are no changes, because it must not show
    /// whether a call changed something. Dropping the transaction instead discards the changes.
    ///
    /// # Errors
    /// If the changes cannot be made durable.
    fn commit(self) -> Result<(), E>;
}

/// The rows of the device that a call may see. The engine reads the ledger and the matching
/// impressions through the supertraits.
pub trait View<E>: LedgerView<Error = E> + EventStore<AttributionQuery, Error = E> {
    /// The user agent's own state.
    ///
    /// # Errors
    /// If the store cannot be read. This holds for all methods of this trait.
    fn state(&self) -> Result<DeviceState, E>;

    /// Visits every row of a kind. Impressions of an epoch come in the order of saving.
    fn visit(&self, rows: RowSet, visit: &mut dyn FnMut(ViewRow<'_>)) -> Result<(), E>;

    /// Visits the next rows of a kind after a place, in the order of their [`RowPlace`]s. Returns
    /// true if there are more. This is for work that is done in slices. A store that can visit all
    /// of them in a moment may visit more than `most`.
    fn visit_some(
        &self,
        rows: RowSet,
        behind: Option<RowPlace>,
        most: usize,
        visit: &mut dyn FnMut(ViewRow<'_>),
    ) -> Result<bool, E> {
        let _ = most;
        self.visit(rows, &mut |row| {
            if Some(row.place()) > behind {
                visit(row);
            }
        })?;
        Ok(false)
    }

    /// Visits the last rows of a kind before a place, or the last ones of all: at most `most`, in
    /// any order. Returns true if there are more before them. This is for pages that show the
    /// newest rows first.
    fn visit_last(
        &self,
        rows: ListedRows,
        before: Option<RowPlace>,
        most: usize,
        visit: &mut dyn FnMut(ViewRow<'_>),
    ) -> Result<bool, E> {
        let rows = rows.all();
        let mut places = Vec::new();
        self.visit(rows, &mut |row| {
            let place = row.place();
            if before.is_none_or(|before| place < before) {
                places.push(place);
            }
        })?;
        places.sort_unstable();
        let more = places.len() > most;
        let Some(&first) = places[places.len().saturating_sub(most)..].first() else {
            return Ok(more);
        };
        self.visit(rows, &mut |row| {
            let place = row.place();
            if place >= first && before.is_none_or(|before| place < before) {
                visit(row);
            }
        })?;
        Ok(more)
    }

    /// A number that grows by one with each committed transaction of any process. Work in slices
    /// uses it to notice that another process has changed something in between.
    fn revision(&self) -> Result<u64, E>;

    /// The number of a site, if it has one.
    fn site_id(&self, site: &Site) -> Result<Option<SiteId>, E>;

    /// The site that has a number. The default implementations from here on visit every row of a
    /// kind. A store can have faster ones.
    fn site(&self, id: SiteId) -> Result<Option<Site>, E> {
        self.first(RowSet::Names, |row| match row {
            ViewRow::Name(other, site) if other == id => Some(site.clone()),
            _ => None,
        })
    }

    /// The largest number that a site has.
    fn last_site(&self) -> Result<Option<SiteId>, E> {
        let mut last = None;
        self.visit(RowSet::Names, &mut |row| {
            if let ViewRow::Name(id, _) = row {
                last = last.max(Some(id));
            }
        })?;
        Ok(last)
    }

    /// The last epoch in which no conversion of a site may be measured, if the user cleared the
    /// site's data.
    fn closed_until(&self, site: SiteId) -> Result<Option<EpochIndex>, E> {
        self.first(RowSet::Closings, |row| match row {
            ViewRow::Closing(other, until) if other == site => Some(until),
            _ => None,
        })
    }

    /// The attribution object with a handle.
    fn object(&self, shared: SharedConversion) -> Result<Option<StoredObject>, E> {
        self.first(RowSet::Objects, |row| match row {
            ViewRow::Object(stored) if stored.shared == shared => Some(stored.clone()),
            _ => None,
        })
    }

    /// The number and the conversion site of every attribution object.
    fn objects(&self) -> Result<Vec<(u64, SiteId)>, E> {
        let mut objects = Vec::new();
        self.visit(RowSet::Objects, &mut |row| {
            if let ViewRow::Object(it) = row {
                objects.push((it.number, it.object.conversion_site()));
            }
        })?;
        Ok(objects)
    }

    /// The largest number of an entry of history.
    fn last_entry(&self) -> Result<Option<u64>, E> {
        let mut last = None;
        self.visit(RowSet::HistoryKeys, &mut |row| {
            if let ViewRow::HistoryKey(key) = row {
                last = last.max(Some(key.number));
            }
        })?;
        Ok(last)
    }

    /// The number and the kind of every entry of history about a call that a site made.
    fn entries_by(&self, caller: &Site) -> Result<Vec<(u64, HistoryKind)>, E> {
        let mut entries = Vec::new();
        self.visit(RowSet::HistoryKeys, &mut |row| match row {
            ViewRow::HistoryKey(key) if key.caller == caller.as_str() => {
                entries.push((key.number, key.kind));
            }
            _ => {}
        })?;
        Ok(entries)
    }

    /// The first result of `say` for a row of a kind.
    fn first<A>(
        &self,
        rows: RowSet,
        mut say: impl FnMut(ViewRow<'_>) -> Option<A>,
    ) -> Result<Option<A>, E> {
        let mut said = None;
        self.visit(rows, &mut |row| {
            if said.is_none() {
                said = say(row);
            }
        })?;
        Ok(said)
    }

    /// The total number of [units](bigbird::Impression::units) of the impressions of an epoch.
    fn units(&self, epoch: EpochIndex) -> Result<u32, E>;

    /// The size of the largest site of an epoch.
    fn largest_site(&self, epoch: EpochIndex) -> Result<Option<SiteSize>, E>;

    /// True if any row is left that `forgotten` would remove.
    fn has_rows_before(&self, forgotten: ForgottenEpochs) -> Result<bool, E> {
        let (mut found, pruned) = (false, forgotten.pruned);
        let ForgottenEpochs { unreachable, .. } = forgotten;
        for rows in [
            RowSet::Filters,
            RowSet::Admissions,
            RowSet::Closings,
            RowSet::Objects,
            RowSet::HistoryKeys,
        ] {
            self.visit(rows, &mut |row| {
                found |= match row {
                    ViewRow::Filter(epoch, ..) => epoch < pruned,
                    ViewRow::Object(stored) => stored.object.created() < pruned,
                    ViewRow::Closing(_, until) => until < pruned,
                    ViewRow::Admission(_, epoch, _) => epoch < unreachable,
                    ViewRow::HistoryKey(key) => key.epoch < forgotten.history,
                    ViewRow::Name(..) | ViewRow::Impression(..) | ViewRow::History(_) => false,
                };
            })?;
        }
        self.visit(RowSet::Impressions(ImpressionSelection::All), &mut |row| {
            if let ViewRow::Impression(epoch, ..) = row {
                found |= epoch < unreachable;
            }
        })?;
        Ok(found)
    }
}
