//! The impression store in memory.

use std::convert::Infallible;
use std::num::NonZeroU32;

use super::impression::Impression;
use super::index::{Audiences, Index, NONE, Slot};
use super::query::{AttributionQuery, Touch, named};
use crate::epochs::{Epochs, Recycle};
use crate::query::{EventStore, Query, Relevant};
use crate::{EpochIndex, SiteId};

/// How many impressions are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreLimits {
    /// In one epoch. While `sites × 1,000` is at most this, every site keeps at least 1,000.
    pub impressions_per_epoch: NonZeroU32,
}

impl Default for StoreLimits {
    /// 100,000 impressions an epoch: 1,000 for each of 100 sites.
    fn default() -> Self {
        Self {
            impressions_per_epoch: NonZeroU32::MIN.saturating_add(99_999),
        }
    }
}

/// The impressions of a device, by epoch, with indexes for matching.
///
/// The cost of a query follows what can match, not what is stored: an epoch with more than a few
/// impressions has an index by impression site, by caller, by match value and by who may measure.
///
/// When an epoch is full, saving an impression removes the oldest impression of the site that has
/// most; of several such sites, of the one whose oldest impression is oldest. So a flood from one
/// site displaces that site's own impressions, and a site keeps its fair part of the limit; and an
/// epoch never displaces another's: what is kept of an epoch is a function of what was saved in
/// it.
#[derive(Debug, Clone, Default)]
pub struct ImpressionStore {
    limits: StoreLimits,
    epochs: Epochs<EpochStore>,
}

impl ImpressionStore {
    /// An empty store.
    pub fn new(limits: StoreLimits) -> Self {
        Self {
            limits,
            epochs: Epochs::default(),
        }
    }

    /// Saves an impression. Says whether it was: an epoch that was pruned keeps nothing.
    pub fn save(&mut self, epoch: EpochIndex, impression: &Impression<'_>) -> bool {
        let limit = self.limits.impressions_per_epoch.get() as usize;
        match self.epochs.get_or_create(epoch) {
            Some(store) => {
                store.save(impression, limit);
                true
            }
            None => false,
        }
    }

    /// The impressions of an epoch, in the order in which they were saved.
    pub fn impressions(&self, epoch: EpochIndex) -> impl Iterator<Item = Impression<'_>> {
        self.epochs.get(epoch).into_iter().flat_map(|store| {
            let live = store.slots.iter().filter(|slot| slot.is_live());
            live.map(|slot| slot.impression(&store.audiences))
        })
    }

    /// The epochs that have impressions, oldest first.
    pub fn epochs(&self) -> impl Iterator<Item = EpochIndex> {
        self.epochs
            .iter()
            .filter(|(_, store)| store.live > 0)
            .map(|(epoch, _)| epoch)
    }

    /// How many impressions are stored.
    pub fn len(&self) -> usize {
        self.epochs.iter().map(|(_, store)| store.live).sum()
    }

    /// Whether none are.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Keeps only the impressions that `keep` says, and tells how many went.
    pub fn retain(&mut self, mut keep: impl FnMut(Impression<'_>) -> bool) -> usize {
        let before = self.len();
        for store in self.epochs.values_mut() {
            store.retain(&mut keep);
        }
        before - self.len()
    }

    /// Forgets a site, at that site's request (the draft's section `Clear-Site-Data` Integration),
    /// and tells how many impressions went: those it saved itself, and those that no one else may
    /// measure. It is taken off the lists of the others.
    pub fn forget_site(&mut self, site: SiteId) -> usize {
        let before = self.len();
        for store in self.epochs.values_mut() {
            store.forget_site(site);
        }
        before - self.len()
    }

    /// Forgets the epochs before `epoch`.
    pub fn prune_before(&mut self, epoch: EpochIndex) {
        self.epochs.prune_before(epoch);
    }

    /// Empties it for another device, keeping its buffers.
    pub fn reset(&mut self) {
        self.epochs.reset();
    }
}

impl EventStore<AttributionQuery> for ImpressionStore {
    type Error = Infallible;

    fn find(
        &self,
        epoch: EpochIndex,
        query: &AttributionQuery,
        found: &mut Vec<Relevant<Touch>>,
    ) -> Result<(), Infallible> {
        if let Some(store) = self.epochs.get(epoch) {
            store.visit(epoch, query, found);
        }
        Ok(())
    }
}

/// From this many impressions on, an epoch has an index. Below, looking at each is faster, and a
/// simulated device of three impressions pays for nothing.
const INDEXED: usize = 32;

#[derive(Debug, Clone, Default)]
struct EpochStore {
    /// In the order of saving; some may be removed.
    slots: Vec<Slot>,
    /// How many are not.
    live: usize,
    audiences: Audiences,
    index: Option<Box<Index>>,
    /// An empty index, kept for its buffers.
    spare: Option<Box<Index>>,
}

impl Recycle for EpochStore {
    fn recycle(&mut self) {
        if self.slots.capacity() > 1024 {
            *self = Self::default();
            return;
        }
        self.slots.clear();
        self.live = 0;
        self.audiences.clear();
        self.drop_index();
    }
}

impl EpochStore {
    fn save(&mut self, impression: &Impression<'_>, limit: usize) {
        let (sites, callers) = (impression.conversion_sites, impression.conversion_callers);
        let audience = self.audiences.intern(sites, callers);
        if self.slots.len() == self.slots.capacity() && self.slots.len() >= INDEXED {
            // By a quarter instead of doubling: memory is scarcer on a device than copying.
            self.slots.reserve_exact(self.slots.len() / 4);
        }
        self.slots.push(Slot::new(impression, audience));
        self.live += 1;
        let newest = self.slots.len() - 1;
        match &mut self.index {
            Some(index) => index.link(&mut self.slots, &self.audiences, newest),
            None if self.slots.len() > INDEXED => self.rebuild_index(),
            None => {}
        }
        if self.live > limit {
            self.evict();
        }
    }

    fn evict(&mut self) {
        if self.index.is_none() {
            self.rebuild_index();
        }
        let evicted = match &mut self.index {
            Some(index) => index.evict(&self.slots),
            None => None,
        };
        if let Some(slot) = evicted.and_then(|at| self.slots.get_mut(at as usize)) {
            slot.audience = NONE;
            self.live -= 1;
        }
        let removed = self.slots.len() - self.live;
        if removed > INDEXED.max(self.live / 4) {
            self.compact();
        }
    }

    fn retain(&mut self, keep: &mut dyn FnMut(Impression<'_>) -> bool) {
        let mut removed = false;
        for slot in self.slots.iter_mut().filter(|slot| slot.is_live()) {
            if !keep(slot.impression(&self.audiences)) {
                slot.audience = NONE;
                self.live -= 1;
                removed = true;
            }
        }
        if removed {
            self.compact();
        }
    }

    fn forget_site(&mut self, site: SiteId) {
        for slot in self.slots.iter_mut().filter(|slot| slot.is_live()) {
            if slot.impression(&self.audiences).caller() == site {
                slot.audience = NONE;
                self.live -= 1;
            }
        }
        if self.live < self.slots.len() || self.audiences.names(site) {
            self.rebuild(Some(site));
        }
    }

    /// Forgets removed slots and the audiences that nobody has any more.
    fn compact(&mut self) {
        self.rebuild(None);
    }

    /// Stores what is left anew, taking a site off every list; an impression for which that leaves
    /// nobody to measure it goes.
    fn rebuild(&mut self, forgotten: Option<SiteId>) {
        let old = std::mem::take(&mut self.audiences);
        let audiences = &mut self.audiences;
        let mut renumbered = old.renumbering(audiences, forgotten);
        self.slots.retain_mut(|slot| {
            let Some(audience) = slot.is_live().then(|| renumbered(slot.audience)).flatten() else {
                return false;
            };
            *slot = Slot::new(&slot.impression(&old), audience);
            true
        });
        drop(renumbered);
        self.live = self.slots.len();
        if self.index.is_some() {
            self.drop_index();
            self.rebuild_index();
        }
    }

    fn drop_index(&mut self) {
        if let Some(mut index) = self.index.take() {
            index.clear();
            self.spare = Some(index);
        }
    }

    fn rebuild_index(&mut self) {
        let mut index = self.spare.take().unwrap_or_default();
        for at in 0..self.slots.len() {
            index.link(&mut self.slots, &self.audiences, at);
        }
        self.index = Some(index);
    }

    fn visit(&self, epoch: EpochIndex, query: &AttributionQuery, found: &mut Vec<Relevant<Touch>>) {
        // Impressions that follow each other often have the same audience: it is asked once whether
        // the conversion site belongs to it.
        let (mut asked, mut belongs) = (NONE, false);
        let mut consider = |order: u32, slot: &Slot| {
            if slot.audience != asked {
                asked = slot.audience;
                belongs = slot.is_live()
                    && named(
                        self.audiences.members(asked).0,
                        query.request.conversion_site,
                    );
            }
            if !belongs {
                return;
            }
            let impression = Impression {
                conversion_sites: &[],
                ..slot.impression(&self.audiences)
            };
            if let Some(detail) = query.relevant(impression) {
                found.push(Relevant {
                    epoch,
                    order,
                    site: impression.site,
                    user_action: impression.user_action,
                    detail,
                });
            }
        };
        match &self.index {
            Some(index) => index.visit(&self.slots, &self.audiences, query, |at| {
                consider(at, &self.slots[at as usize]);
            }),
            None => {
                for (order, slot) in (0..).zip(&self.slots) {
                    consider(order, slot);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Timestamp, UserAction};

    const E: EpochIndex = EpochIndex(0);

    fn impression<'a>(
        site: u32,
        intermediary: Option<u32>,
        sites: &'a [SiteId],
        callers: &'a [SiteId],
    ) -> Impression<'a> {
        Impression {
            intermediary: intermediary.map(SiteId),
            conversion_sites: sites,
            conversion_callers: callers,
            ..Impression::new(SiteId(site), UserAction(1), Timestamp(0), 0)
        }
    }

    /// Each step of the draft's "clear impressions for a site", for site 1.
    #[test]
    fn a_site_is_forgotten_step_by_step() {
        const ONE: SiteId = SiteId(1);
        const TWO: SiteId = SiteId(2);
        let cases = [
            ("saved by it", impression(1, None, &[], &[]), None),
            (
                "on it, saved by another",
                impression(1, Some(5), &[], &[]),
                Some(impression(1, Some(5), &[], &[])),
            ),
            (
                "saved by it elsewhere",
                impression(5, Some(1), &[], &[]),
                None,
            ),
            ("only for it", impression(5, None, &[ONE], &[]), None),
            (
                "also for it",
                impression(5, None, &[ONE, TWO], &[]),
                Some(impression(5, None, &[TWO], &[])),
            ),
            (
                "only for it to call",
                impression(5, None, &[TWO], &[ONE]),
                None,
            ),
            (
                "for everyone",
                impression(5, None, &[], &[]),
                Some(impression(5, None, &[], &[])),
            ),
        ];
        for (what, saved, left) in cases {
            let mut store = ImpressionStore::default();
            store.save(E, &saved);
            assert_eq!(
                store.forget_site(ONE),
                usize::from(left.is_none()),
                "{what}"
            );
            let kept: Vec<_> = store.impressions(E).collect();
            assert_eq!(kept, Vec::from_iter(left), "{what}");
        }
    }

    /// An epoch is full: the largest site loses its oldest, also when it is another that saves.
    #[test]
    fn a_site_crowds_out_only_itself() {
        let limits = StoreLimits {
            impressions_per_epoch: NonZeroU32::new(100).unwrap(),
        };
        let mut store = ImpressionStore::new(limits);
        for number in 0..50 {
            store.save(E, &impression(7, None, &[SiteId(number)], &[]));
        }
        for number in 0..1000 {
            let mut flood = impression(8, None, &[], &[]);
            flood.timestamp = Timestamp(number);
            store.save(E, &flood);
        }
        let of = |site| store.impressions(E).filter(move |i| i.site == SiteId(site));
        assert_eq!((of(7).count(), of(8).count()), (50, 50));
        let oldest = of(8).map(|impression| impression.timestamp).min();
        assert_eq!(oldest, Some(Timestamp(950)));
    }
}
