//! The store in memory.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

use bigbird::attribution::Touch;
use bigbird::{
    Admission, AttributionQuery, Balance, Changes, Check, CommitError, EpochIndex, EventStore,
    Filter, Impression, ImpressionStore, Ledger, LedgerStore, LedgerView, Policy, Relevant, SiteId,
    StoreLimits, Timestamp, UserAction,
};
use hashbrown::{HashSet, HashTable};
use rustc_hash::FxBuildHasher;

use crate::shared::SharedConversion;
use crate::site::Site;
use crate::storage::{State, Storage, StoredObject, Transaction};

/// Everything a user agent keeps, in memory. It lasts as long as the process, so it is for tests,
/// for simulation, and for private browsing.
#[derive(Debug)]
pub struct Memory {
    ledger: Ledger,
    impressions: ImpressionStore,
    /// The last epoch in which a conversion site is closed.
    closed: BTreeMap<SiteId, EpochIndex>,
    sites: Sites,
    /// By number, so that the oldest come first.
    objects: BTreeMap<u64, StoredObject>,
    state: State,
}

impl Memory {
    /// An empty store under a policy.
    pub fn new(policy: &Policy, limits: StoreLimits) -> Self {
        Self {
            ledger: Ledger::new(policy),
            impressions: ImpressionStore::new(limits),
            closed: BTreeMap::new(),
            sites: Sites::default(),
            objects: BTreeMap::new(),
            state: State::default(),
        }
    }

    /// The ledger.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The impressions.
    pub fn impressions(&self) -> &ImpressionStore {
        &self.impressions
    }

    /// How many sites have a number.
    pub fn site_count(&self) -> usize {
        self.sites.ids.len()
    }

    /// The site of a number.
    pub fn site(&self, id: SiteId) -> Option<&Site> {
        self.sites.names.get(id.0 as usize)?.as_ref()
    }

    /// Takes numbers back from sites that nothing names any more.
    fn forget_unused_sites(&mut self) {
        let mut used: HashSet<SiteId, FxBuildHasher> = HashSet::default();
        for epoch in self.impressions.epochs() {
            for impression in self.impressions.impressions(epoch) {
                used.insert(impression.site);
                used.insert(impression.caller());
                used.extend(impression.conversion_sites);
                used.extend(impression.conversion_callers);
            }
        }
        for view in self.ledger.epochs() {
            for (filter, _) in view.filters() {
                if let Filter::Querier(site)
                | Filter::ImpressionSite(site)
                | Filter::ConversionSite(site) = filter
                {
                    used.insert(site);
                }
            }
            for action in view.user_actions() {
                used.extend(view.admitted(action));
            }
        }
        for stored in self.objects.values() {
            used.extend(stored.object.sites());
        }
        used.extend(self.closed.keys());
        self.sites.sweep(&used);
    }
}

impl Storage for Memory {
    type Error = Infallible;
    type Transaction<'t> = MemoryTransaction<'t>;

    fn begin(&mut self) -> Result<MemoryTransaction<'_>, Infallible> {
        // Now and then, so that naming ever new sites does not fill the memory; and only here,
        // where no caller holds a number.
        if self.sites.ids.len() >= self.sites.next_sweep {
            self.forget_unused_sites();
        }
        Ok(MemoryTransaction(self))
    }
}

/// A transaction on [`Memory`]. Nothing in it can fail, so that none is ever half done; dropping it
/// before the end takes nothing back.
#[derive(Debug)]
pub struct MemoryTransaction<'t>(&'t mut Memory);

impl LedgerView for MemoryTransaction<'_> {
    type Error = Infallible;

    fn first_epoch(&self) -> Result<EpochIndex, Infallible> {
        Ok(self.0.ledger.first_epoch())
    }

    fn look_up(&self, epoch: EpochIndex, checks: &mut [Check]) -> Result<(), Infallible> {
        self.0.ledger.look_up(epoch, checks)
    }

    fn admission(
        &self,
        action: UserAction,
        epoch: EpochIndex,
        site: SiteId,
    ) -> Result<Admission, Infallible> {
        Ok(self.0.ledger.admission(action, epoch, site))
    }
}

impl LedgerStore for MemoryTransaction<'_> {
    fn commit(&mut self, changes: &Changes) -> Result<(), CommitError<Infallible>> {
        Ok(self.0.ledger.commit(changes)?)
    }
}

impl EventStore<AttributionQuery> for MemoryTransaction<'_> {
    type Error = Infallible;

    fn find(
        &self,
        epoch: EpochIndex,
        query: &AttributionQuery,
        found: &mut Vec<Relevant<Touch>>,
    ) -> Result<(), Infallible> {
        self.0.impressions.find(epoch, query, found)
    }
}

impl Transaction<Infallible> for MemoryTransaction<'_> {
    fn state(&self) -> Result<State, Infallible> {
        Ok(self.0.state)
    }

    fn set_state(&mut self, state: &State) -> Result<(), Infallible> {
        self.0.state = *state;
        Ok(())
    }

    fn find_site(&self, site: &Site) -> Result<Option<SiteId>, Infallible> {
        Ok(self.0.sites.find(site))
    }

    fn site_id(&mut self, site: &Site) -> Result<SiteId, Infallible> {
        Ok(self.0.sites.intern(site))
    }

    fn site(&self, id: SiteId) -> Result<Option<Site>, Infallible> {
        Ok(self.0.site(id).cloned())
    }

    fn filters(&self) -> Result<Vec<(EpochIndex, Filter, Balance)>, Infallible> {
        let mut all = Vec::new();
        for view in self.0.ledger.epochs() {
            let of_epoch = view.filters().into_iter();
            all.extend(of_epoch.map(|(filter, balance)| (view.epoch(), filter, balance)));
        }
        Ok(all)
    }

    fn save_impression(
        &mut self,
        epoch: EpochIndex,
        impression: &Impression<'_>,
    ) -> Result<(), Infallible> {
        self.0.impressions.save(epoch, impression);
        Ok(())
    }

    fn forget_site(&mut self, site: SiteId) -> Result<(), Infallible> {
        self.0.impressions.forget_site(site);
        let objects = self.0.objects.values_mut();
        objects.for_each(|stored| stored.object.forget_site(site));
        Ok(())
    }

    fn remove_impressions(&mut self, sites: Option<&[SiteId]>) -> Result<(), Infallible> {
        let keep = |impression: Impression<'_>| {
            sites.is_some_and(|sites| !sites.contains(&impression.site))
        };
        self.0.impressions.retain(keep);
        Ok(())
    }

    fn remove_expired(&mut self, now: Timestamp) -> Result<(), Infallible> {
        // It can match at the very moment of its expiry (notes on the draft, row 12).
        let keep = |impression: Impression<'_>| impression.expires >= now;
        self.0.impressions.retain(keep);
        Ok(())
    }

    fn close_site(&mut self, site: SiteId, until: EpochIndex) -> Result<(), Infallible> {
        let closed = self.0.closed.entry(site).or_insert(until);
        *closed = until.max(*closed);
        Ok(())
    }

    fn closed_until(&self, site: SiteId) -> Result<Option<EpochIndex>, Infallible> {
        Ok(self.0.closed.get(&site).copied())
    }

    fn prune_before(&mut self, epoch: EpochIndex) -> Result<(), Infallible> {
        self.0.ledger.prune_before(epoch);
        self.0.impressions.prune_before(epoch);
        let first = self.0.ledger.first_epoch();
        let kept = |stored: &StoredObject| stored.object.created() >= first;
        self.0.objects.retain(|_, stored| kept(stored));
        self.0.closed.retain(|_, until| *until >= epoch);
        Ok(())
    }

    fn forget_unused_sites(&mut self) -> Result<(), Infallible> {
        self.0.forget_unused_sites();
        Ok(())
    }

    fn put_object(&mut self, stored: StoredObject) -> Result<(), Infallible> {
        let other = |old: &StoredObject| old.shared != stored.shared;
        self.0.objects.retain(|_, old| other(old));
        self.0.objects.insert(stored.number, stored);
        Ok(())
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

    fn remove_object(&mut self, number: u64) -> Result<(), Infallible> {
        self.0.objects.remove(&number);
        Ok(())
    }

    fn finish(self) -> Result<(), Infallible> {
        Ok(())
    }
}

/// The numbers of sites, and each name once.
#[derive(Debug)]
struct Sites {
    names: Vec<Option<Site>>,
    ids: HashTable<SiteId>,
    free: Vec<SiteId>,
    /// How many sites there may be before unused ones are looked for.
    next_sweep: usize,
}

/// Below this many sites, nobody looks for unused ones.
const FIRST_SWEEP: usize = 10_000;

impl Default for Sites {
    fn default() -> Self {
        Self {
            names: Vec::new(),
            ids: HashTable::new(),
            free: Vec::new(),
            next_sweep: FIRST_SWEEP,
        }
    }
}

impl Sites {
    fn find(&self, site: &Site) -> Option<SiteId> {
        let same = |id: &SiteId| self.names[id.0 as usize].as_ref() == Some(site);
        self.ids.find(hash(site), same).copied()
    }

    fn intern(&mut self, site: &Site) -> SiteId {
        if let Some(id) = self.find(site) {
            return id;
        }
        let id = self.free.pop().unwrap_or_else(|| {
            // Four billion names do not fit in memory.
            let id = SiteId(u32::try_from(self.names.len()).unwrap_or(u32::MAX - 1));
            self.names.push(None);
            id
        });
        self.names[id.0 as usize] = Some(site.clone());
        let names = &self.names;
        let hash_of = |id: &SiteId| names[id.0 as usize].as_ref().map_or(0, hash);
        self.ids.insert_unique(hash(site), id, hash_of);
        id
    }

    fn sweep(&mut self, used: &HashSet<SiteId, FxBuildHasher>) {
        let Self {
            ids, names, free, ..
        } = self;
        ids.retain(|id| {
            let keep = used.contains(id);
            if !keep {
                names[id.0 as usize] = None;
                free.push(*id);
            }
            keep
        });
        self.next_sweep = FIRST_SWEEP.max(2 * self.ids.len());
    }
}

/// Names are chosen by pages, so they are hashed with a key that pages do not know.
fn hash(site: &Site) -> u64 {
    static KEY: OnceLock<RandomState> = OnceLock::new();
    KEY.get_or_init(RandomState::new).hash_one(site)
}
