//! The store in memory.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

use bigbird::attribution::{MatchedImpression, SiteSize};
use bigbird::{
    AdmissionState, AttributionQuery, Check, EpochIndex, EventStore, ImpressionStore, Ledger,
    LedgerView, Relevant, SiteId, UserAction,
};
use hashbrown::{HashMap, HashTable};
use rustc_hash::FxBuildHasher;

use crate::history::{HistoryEntry, HistoryKind};
use crate::shared::SharedConversion;
use crate::site::Site;
use crate::storage::{
    ChangeSet, DeviceState, ForgottenEpochs, RowSet, Storage, StoredObject, Transaction, View,
    ViewRow,
};

/// A store in memory. It lasts as long as the process, so it is for tests, simulation and private
/// browsing.
#[derive(Debug, Default)]
pub struct MemoryStore {
    ledger: Ledger,
    impressions: ImpressionStore,
    /// The last epoch in which each conversion site is closed.
    closed: BTreeMap<SiteId, EpochIndex>,
    sites: Sites,
    /// Attribution objects by number, so that the oldest come first.
    objects: BTreeMap<u64, StoredObject>,
    /// Entries of history by number, so that the oldest come first.
    history: BTreeMap<u64, HistoryEntry>,
    state: DeviceState,
    revision: u64,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// The ledger.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The impressions.
    pub fn impressions(&self) -> &ImpressionStore {
        &self.impressions
    }

    /// The count of sites that have a number.
    pub fn site_count(&self) -> usize {
        self.sites.names.len()
    }

    /// The site that has a number.
    pub fn site(&self, id: SiteId) -> Option<&Site> {
        self.sites.names.get(&id)
    }
}

impl Storage for MemoryStore {
    type Error = Infallible;
    type Transaction<'t> = MemoryTransaction<'t>;

    fn begin(&mut self) -> Result<MemoryTransaction<'_>, Infallible> {
        Ok(MemoryTransaction(self))
    }
}

/// A transaction on a [`MemoryStore`]. Nothing can fail, so a transaction is never half done.
/// Dropping it after changes were applied does not undo them.
#[derive(Debug)]
pub struct MemoryTransaction<'t>(&'t mut MemoryStore);

impl LedgerView for MemoryTransaction<'_> {
    type Error = Infallible;

    fn consumed(&self, epoch: EpochIndex, checks: &mut [Check]) -> Result<(), Infallible> {
        self.0.ledger.consumed(epoch, checks)
    }

    fn admitted(
        &self,
        action: UserAction,
        epoch: EpochIndex,
        site: SiteId,
    ) -> Result<AdmissionState, Infallible> {
        self.0.ledger.admitted(action, epoch, site)
    }
}

impl EventStore<AttributionQuery> for MemoryTransaction<'_> {
    type Error = Infallible;

    fn find(
        &self,
        epoch: EpochIndex,
        query: &AttributionQuery,
        found: &mut Vec<Relevant<MatchedImpression>>,
    ) -> Result<(), Infallible> {
        self.0.impressions.find(epoch, query, found)
    }
}

impl View<Infallible> for MemoryTransaction<'_> {
    fn state(&self) -> Result<DeviceState, Infallible> {
        Ok(self.0.state.clone())
    }

    fn site_id(&self, site: &Site) -> Result<Option<SiteId>, Infallible> {
        Ok(self.0.sites.find(site))
    }

    fn site(&self, id: SiteId) -> Result<Option<Site>, Infallible> {
        Ok(self.0.site(id).cloned())
    }

    fn last_site(&self) -> Result<Option<SiteId>, Infallible> {
        Ok(self.0.sites.last)
    }

    fn revision(&self) -> Result<u64, Infallible> {
        Ok(self.0.revision)
    }

    fn object(&self, shared: SharedConversion) -> Result<Option<StoredObject>, Infallible> {
        let mut objects = self.0.objects.values();
        Ok(objects.find(|stored| stored.shared == shared).cloned())
    }

    fn objects(&self) -> Result<Vec<(u64, SiteId)>, Infallible> {
        let objects = self.0.objects.values();
        let listed = |stored: &StoredObject| (stored.number, stored.object.conversion_site());
        Ok(objects.map(listed).collect())
    }

    fn last_entry(&self) -> Result<Option<u64>, Infallible> {
        Ok(self.0.history.last_key_value().map(|(number, _)| *number))
    }

    fn entries_by(&self, caller: &Site) -> Result<Vec<(u64, HistoryKind)>, Infallible> {
        let by_caller = self.0.history.values().filter(|it| it.caller == *caller);
        Ok(by_caller.map(|it| (it.number, it.kind)).collect())
    }

    fn units(&self, epoch: EpochIndex) -> Result<u32, Infallible> {
        Ok(self.0.impressions.units(epoch))
    }

    fn largest_site(&self, epoch: EpochIndex) -> Result<Option<SiteSize>, Infallible> {
        Ok(self.0.impressions.largest_site(epoch))
    }

    fn visit(&self, rows: RowSet, visit: &mut dyn FnMut(ViewRow<'_>)) -> Result<(), Infallible> {
        let MemoryStore {
            ledger,
            impressions,
            closed,
            sites,
            objects,
            history,
            ..
        } = &*self.0;
        match rows {
            RowSet::Names => sites
                .names
                .iter()
                .for_each(|(id, site)| visit(ViewRow::Name(*id, site))),
            RowSet::Filters => ledger.epochs().for_each(|view| {
                for (filter, consumed) in view.filters() {
                    visit(ViewRow::Filter(view.epoch(), filter, consumed));
                }
            }),
            RowSet::Admissions => ledger.epochs().for_each(|view| {
                for action in view.user_actions() {
                    let admitted = view.admitted(action);
                    admitted.for_each(|site| visit(ViewRow::Admission(action, view.epoch(), site)));
                }
            }),
            RowSet::Closings => closed
                .iter()
                .for_each(|(site, until)| visit(ViewRow::Closing(*site, *until))),
            RowSet::Objects => objects
                .values()
                .for_each(|stored| visit(ViewRow::Object(stored))),
            RowSet::Impressions(_) => impressions.epochs().for_each(|epoch| {
                for (order, impression) in impressions.placed(epoch) {
                    visit(ViewRow::Impression(epoch, order, impression));
                }
            }),
            RowSet::History => history
                .values()
                .for_each(|entry| visit(ViewRow::History(entry))),
            RowSet::HistoryKeys => history
                .values()
                .for_each(|entry| visit(ViewRow::HistoryKey(entry.key()))),
        }
        Ok(())
    }
}

impl Transaction<Infallible> for MemoryTransaction<'_> {
    fn apply(&mut self, changes: &ChangeSet) -> Result<(), Infallible> {
        let MemoryStore {
            ledger,
            impressions,
            closed,
            sites,
            objects,
            history,
            state,
            ..
        } = &mut *self.0;
        if let Some(changed) = &changes.state {
            state.clone_from(changed);
        }
        for (id, site) in &changes.named {
            sites.name(*id, site);
        }
        ledger.apply(&changes.ledger);
        for saved in &changes.saved {
            impressions.append(saved.epoch, &saved.impression());
        }
        impressions.edit(&changes.edited);
        closed.extend(changes.closed.iter().copied());
        for stored in &changes.objects {
            objects.retain(|_, old| old.shared != stored.shared);
            objects.insert(stored.number, stored.clone());
        }
        for number in &changes.dropped_objects {
            objects.remove(number);
        }
        for entry in &changes.recorded {
            history.insert(entry.number, entry.clone());
        }
        for number in &changes.unrecorded {
            history.remove(number);
        }
        if changes.history_cleared {
            history.clear();
        }
        if let Some(forgotten) = changes.forgotten {
            let ForgottenEpochs {
                pruned,
                unreachable,
                history: first_entries,
                ..
            } = forgotten;
            history.retain(|_, entry| entry.epoch >= first_entries);
            ledger.prune_before(pruned);
            ledger.forget_admissions_before(unreachable);
            impressions.prune_before(pruned);
            impressions.clear_before(unreachable);
            closed.retain(|_, until| *until >= pruned);
            objects.retain(|_, stored| stored.object.created() >= pruned);
        }
        sites.forget(&changes.unnamed);
        Ok(())
    }

    fn commit(self) -> Result<(), Infallible> {
        self.0.revision += 1;
        Ok(())
    }
}

/// Sites and their numbers. Each name is stored once.
#[derive(Debug, Default)]
struct Sites {
    names: HashMap<SiteId, Site, FxBuildHasher>,
    ids: HashTable<SiteId>,
    last: Option<SiteId>,
}

impl Sites {
    fn find(&self, site: &Site) -> Option<SiteId> {
        let same = |id: &SiteId| self.names.get(id) == Some(site);
        self.ids.find(hash(site), same).copied()
    }

    fn name(&mut self, id: SiteId, site: &Site) {
        let names = &mut self.names;
        names.insert(id, site.clone());
        let hash_of = |id: &SiteId| names.get(id).map_or(0, hash);
        self.ids.insert_unique(hash(site), id, hash_of);
        self.last = self.last.max(Some(id));
    }

    fn forget(&mut self, ids: &[SiteId]) {
        for id in ids {
            let Some(site) = self.names.remove(id) else {
                continue;
            };
            if let Ok(found) = self.ids.find_entry(hash(&site), |other| other == id) {
                found.remove();
            }
        }
        if !ids.is_empty() {
            self.last = self.names.keys().max().copied();
        }
    }
}

/// Hashes a name with a key that pages do not know, because pages choose the names.
fn hash(site: &Site) -> u64 {
    static KEY: OnceLock<RandomState> = OnceLock::new();
    KEY.get_or_init(RandomState::new).hash_one(site)
}
