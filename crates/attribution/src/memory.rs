//! The store in memory.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::num::NonZeroU32;

use bigbird::attribution::Touch;
use bigbird::{
    Admission, AttributionObject, AttributionQuery, Changes, Check, CommitError, EpochIndex,
    EventStore, Filter, Impression, ImpressionStore, Ledger, LedgerStore, Policy, Relevant, SiteId,
    StoreLimits, Timestamp, UserAction,
};
use hashbrown::{HashMap, HashSet};
use rustc_hash::FxBuildHasher;

use crate::clock::{DAY_MS, EpochClock, HOUR_MS, hour};
use crate::site::Site;
use crate::storage::{State, Storage, Transaction};

/// Everything a user agent keeps, in memory. It lasts as long as the process, so it is for tests,
/// for simulation, and for private browsing.
#[derive(Debug)]
pub struct Memory {
    ledger: Ledger,
    impressions: ImpressionStore,
    /// Impressions saved before there were epochs, by hour.
    held: ImpressionStore,
    sites: Sites,
    objects: BTreeMap<u64, AttributionObject>,
    state: State,
}

/// How many attribution objects are kept: a conversion is shared at once or never.
const OBJECTS: usize = 1024;

impl Memory {
    /// An empty store under a policy.
    pub fn new(policy: &Policy, limits: StoreLimits) -> Self {
        // An epoch of a week has 168 hours: held impressions take no more than assigned ones.
        let hours = u32::try_from(7 * DAY_MS / HOUR_MS).unwrap_or(1);
        let per_hour = limits.impressions_per_epoch.get().div_ceil(hours);
        let held = StoreLimits {
            impressions_per_epoch: NonZeroU32::new(per_hour).unwrap_or(NonZeroU32::MIN),
        };
        Self {
            ledger: Ledger::new(policy),
            impressions: ImpressionStore::new(limits),
            held: ImpressionStore::new(held),
            sites: Sites::default(),
            objects: BTreeMap::new(),
            state: State::default(),
        }
    }

    /// The ledger.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The impressions that have an epoch.
    pub fn impressions(&self) -> &ImpressionStore {
        &self.impressions
    }

    /// How many impressions are stored, with or without an epoch.
    pub fn impression_count(&self) -> usize {
        self.impressions.len() + self.held.len()
    }

    /// How many sites have a number.
    pub fn site_count(&self) -> usize {
        self.sites.ids.len()
    }

    /// The site of a number.
    pub fn site(&self, id: SiteId) -> Option<&Site> {
        self.sites.names.get(id.0 as usize)?.as_ref()
    }

    /// Takes numbers back from sites that nothing names any more, now and then, so that naming ever
    /// new sites does not fill the memory.
    fn forget_unused_sites(&mut self) {
        if self.sites.ids.len() < self.sites.next_sweep {
            return;
        }
        let mut used: HashSet<SiteId, FxBuildHasher> = HashSet::default();
        for store in [&self.impressions, &self.held] {
            for epoch in store.epochs() {
                for impression in store.impressions(epoch) {
                    used.insert(impression.site);
                    used.insert(impression.caller());
                    used.extend(impression.conversion_sites);
                    used.extend(impression.conversion_callers);
                }
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
        for object in self.objects.values() {
            used.extend(object.sites());
        }
        self.sites.sweep(&used);
    }
}

impl Storage for Memory {
    type Error = Infallible;
    type Transaction<'t> = MemoryTransaction<'t>;

    fn begin(&mut self) -> Result<MemoryTransaction<'_>, Infallible> {
        // Only here, where no caller holds a number.
        self.forget_unused_sites();
        Ok(MemoryTransaction(self))
    }
}

/// A transaction on [`Memory`]. Nothing in it can fail, so that none is ever half done; dropping it
/// before the end takes nothing back.
#[derive(Debug)]
pub struct MemoryTransaction<'t>(&'t mut Memory);

impl LedgerStore for MemoryTransaction<'_> {
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
        Ok(self.0.sites.ids.get(site).copied())
    }

    fn site_id(&mut self, site: &Site) -> Result<SiteId, Infallible> {
        Ok(self.0.sites.intern(site))
    }

    fn site(&self, id: SiteId) -> Result<Option<Site>, Infallible> {
        Ok(self.0.site(id).cloned())
    }

    fn save_impression(
        &mut self,
        epoch: EpochIndex,
        impression: &Impression<'_>,
    ) -> Result<(), Infallible> {
        self.0.impressions.save(epoch, impression);
        Ok(())
    }

    fn hold_impression(&mut self, impression: &Impression<'_>) -> Result<(), Infallible> {
        let hour = EpochIndex(hour(impression.timestamp));
        self.0.held.save(hour, impression);
        Ok(())
    }

    fn assign_epochs(&mut self, start: Timestamp, period_ms: i64) -> Result<(), Infallible> {
        let clock = EpochClock { start, period_ms };
        let Memory {
            held, impressions, ..
        } = &mut *self.0;
        for hour in held.epochs() {
            for impression in held.impressions(hour) {
                impressions.save(clock.epoch(impression.timestamp), &impression);
            }
        }
        held.reset();
        Ok(())
    }

    fn forget_site(&mut self, site: SiteId) -> Result<(), Infallible> {
        self.0.impressions.forget_site(site);
        self.0.held.forget_site(site);
        let objects = self.0.objects.values_mut();
        objects.for_each(|object| object.forget_site(site));
        Ok(())
    }

    fn remove_impressions(&mut self, sites: Option<&[SiteId]>) -> Result<(), Infallible> {
        let keep = |impression: Impression<'_>| {
            sites.is_some_and(|sites| !sites.contains(&impression.site))
        };
        self.0.impressions.retain(keep);
        self.0.held.retain(keep);
        match sites {
            None => self.0.objects.clear(),
            Some(sites) => {
                let objects = self.0.objects.values_mut();
                objects.for_each(|object| object.forget_impression_sites(sites));
            }
        }
        Ok(())
    }

    fn remove_expired(&mut self, now: Timestamp) -> Result<(), Infallible> {
        // It can match at the very moment of its expiry (notes on the draft, row 12).
        let keep = |impression: Impression<'_>| impression.expires >= now;
        self.0.impressions.retain(keep);
        self.0.held.retain(keep);
        Ok(())
    }

    fn exhaust(&mut self, epoch: EpochIndex, filter: Filter) -> Result<(), Infallible> {
        self.0.ledger.exhaust(epoch, filter);
        Ok(())
    }

    fn prune_before(&mut self, epoch: EpochIndex) -> Result<(), Infallible> {
        self.0.ledger.prune_before(epoch);
        self.0.impressions.prune_before(epoch);
        let reachable =
            |object: &AttributionObject| object.epochs().iter().any(|paid| *paid >= epoch);
        self.0.objects.retain(|_, object| reachable(object));
        Ok(())
    }

    fn end_user_actions_before(&mut self, action: UserAction) -> Result<(), Infallible> {
        self.0.ledger.end_user_actions_before(action);
        Ok(())
    }

    fn put_object(&mut self, id: u64, object: AttributionObject) -> Result<(), Infallible> {
        self.0.objects.insert(id, object);
        while self.0.objects.len() > OBJECTS {
            self.0.objects.pop_first();
        }
        Ok(())
    }

    fn object(&self, id: u64) -> Result<Option<AttributionObject>, Infallible> {
        Ok(self.0.objects.get(&id).cloned())
    }

    fn finish(self) -> Result<(), Infallible> {
        Ok(())
    }
}

/// The numbers of sites.
#[derive(Debug)]
struct Sites {
    ids: HashMap<Site, SiteId, FxBuildHasher>,
    names: Vec<Option<Site>>,
    free: Vec<SiteId>,
    /// How many sites there may be before unused ones are looked for.
    next_sweep: usize,
}

/// Below this many sites, nobody looks for unused ones.
const FIRST_SWEEP: usize = 10_000;

impl Default for Sites {
    fn default() -> Self {
        Self {
            ids: HashMap::default(),
            names: Vec::new(),
            free: Vec::new(),
            next_sweep: FIRST_SWEEP,
        }
    }
}

impl Sites {
    fn intern(&mut self, site: &Site) -> SiteId {
        if let Some(&id) = self.ids.get(site) {
            return id;
        }
        let id = self.free.pop().unwrap_or_else(|| {
            let id = SiteId(u32::try_from(self.names.len()).unwrap_or(u32::MAX - 1));
            self.names.push(None);
            id
        });
        if let Some(name) = self.names.get_mut(id.0 as usize) {
            *name = Some(site.clone());
        }
        self.ids.insert(site.clone(), id);
        id
    }

    fn sweep(&mut self, used: &HashSet<SiteId, FxBuildHasher>) {
        let Self {
            ids, names, free, ..
        } = self;
        ids.retain(|_, id| {
            let keep = used.contains(id);
            if !keep {
                if let Some(name) = names.get_mut(id.0 as usize) {
                    *name = None;
                }
                free.push(*id);
            }
            keep
        });
        self.next_sweep = FIRST_SWEEP.max(2 * self.ids.len());
    }
}
