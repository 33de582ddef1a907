//! The impression store in memory.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::num::NonZeroU32;

use super::impression::{Audience, Impression};
use super::index::{Audiences, Index, NONE, Slot};
use super::query::{AttributionQuery, ReadLimits, Touch, named};
use crate::epochs::{Epochs, Recycle};
use crate::query::{EventStore, Query, Relevant};
use crate::{EpochIndex, SiteId};

/// How many impressions are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreLimits {
    /// In one epoch, in [units](Impression::units): one for an impression and one for each name that
    /// it brings. While `sites × 1,000` is at most this, every site keeps at least 1,000.
    ///
    /// When an epoch has more, the oldest impression of the site that has most of it goes; of several
    /// such sites, of the one whose oldest impression is oldest; and so on until the rest fits. So a
    /// flood from one site displaces that site's own impressions, and a site keeps its fair part of
    /// the limit; and an epoch never displaces another's: what is kept of an epoch is a function of
    /// what was saved in it.
    pub units_per_epoch: NonZeroU32,
}

impl Default for StoreLimits {
    /// 100,000 units an epoch: 1,000 impressions for each of 100 sites.
    fn default() -> Self {
        Self {
            units_per_epoch: NonZeroU32::MIN.saturating_add(99_999),
        }
    }
}

impl StoreLimits {
    /// Whether an epoch with so many units has to lose an impression: the oldest of its largest site.
    pub fn is_full(&self, units: u32) -> bool {
        units > self.units_per_epoch.get()
    }
}

/// How much of an epoch a site has. The larger one has more, or an older oldest impression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SiteSize {
    /// How many units its impressions have together.
    pub units: u32,
    /// The place of the oldest in the order of saving.
    pub oldest: u32,
}

impl Ord for SiteSize {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_age = other.oldest.cmp(&self.oldest);
        self.units.cmp(&other.units).then(by_age)
    }
}

impl PartialOrd for SiteSize {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A change to a stored impression.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Edit {
    /// The epoch it is in.
    pub epoch: EpochIndex,
    /// Its place in the order of saving, as it was read.
    pub order: u32,
    /// Who may measure it from now on; if nobody, it goes.
    pub audience: Option<Audience>,
}

/// The impressions of a device, by epoch, with indexes for matching.
///
/// The cost of a query follows what can match, not what is stored: an epoch with more than a few
/// impressions has an index by impression site, by caller, by match value and by who may measure.
/// When an epoch is full, [`StoreLimits`] says what goes.
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

    /// Saves an impression, within the limits. Says whether it was: an epoch that was pruned keeps
    /// nothing.
    pub fn save(&mut self, epoch: EpochIndex, impression: &Impression<'_>) -> bool {
        let Some(store) = self.epochs.get_or_create(epoch) else {
            return false;
        };
        store.append(impression);
        while self.limits.is_full(store.units)
            && let Some(largest) = store.largest_site()
        {
            store.edit([(largest.oldest, None)]);
        }
        true
    }

    /// Saves an impression, whatever the limits: for whoever applies them afterwards. An epoch that
    /// was pruned keeps nothing.
    pub fn append(&mut self, epoch: EpochIndex, impression: &Impression<'_>) {
        if let Some(store) = self.epochs.get_or_create(epoch) {
            store.append(impression);
        }
    }

    /// How many units the impressions of an epoch have.
    pub fn units(&self, epoch: EpochIndex) -> u32 {
        self.epochs.get(epoch).map_or(0, |store| store.units)
    }

    /// The largest site of an epoch.
    pub fn largest_site(&self, epoch: EpochIndex) -> Option<SiteSize> {
        self.epochs.get(epoch)?.largest_site()
    }

    /// Makes changes to impressions. Places are those from before the first of them.
    pub fn edit<'e>(&mut self, edits: impl IntoIterator<Item = &'e Edit>) {
        let mut by_epoch: BTreeMap<EpochIndex, Vec<(u32, Option<&Audience>)>> = BTreeMap::new();
        for edit in edits {
            let of_epoch = by_epoch.entry(edit.epoch).or_default();
            of_epoch.push((edit.order, edit.audience.as_ref()));
        }
        for (epoch, edits) in by_epoch {
            if let Some(store) = self.epochs.get_or_create(epoch) {
                store.edit(edits);
            }
        }
    }

    /// The impressions of an epoch, in the order in which they were saved.
    pub fn impressions(&self, epoch: EpochIndex) -> impl Iterator<Item = Impression<'_>> {
        self.placed(epoch).map(|(_, impression)| impression)
    }

    /// The impressions of an epoch with their places in the order in which they were saved.
    pub fn placed(&self, epoch: EpochIndex) -> impl Iterator<Item = (u32, Impression<'_>)> {
        self.epochs.get(epoch).into_iter().flat_map(|store| {
            let placed = (0..).zip(&store.slots);
            let live = placed.filter(|(_, slot)| slot.is_live());
            live.map(|(order, slot)| (order, slot.impression(&store.audiences)))
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
        let mut edits = Vec::new();
        for epoch in self.epochs() {
            let placed = self.placed(epoch);
            let gone = placed.filter(|(_, impression)| !keep(*impression));
            edits.extend(gone.map(|(order, _)| Edit {
                epoch,
                order,
                audience: None,
            }));
        }
        self.edit(&edits);
        edits.len()
    }

    /// Forgets the impressions of the epochs before `epoch`, which may get new ones.
    pub fn clear_before(&mut self, epoch: EpochIndex) {
        for (index, store) in self.epochs.iter_mut() {
            if index < epoch {
                store.recycle();
            }
        }
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
const INDEXED: usize = ReadLimits::LEAST_EXAMINED as usize;

#[derive(Debug, Clone, Default)]
struct EpochStore {
    /// In the order of saving; some may be removed.
    slots: Vec<Slot>,
    /// How many are not.
    live: usize,
    /// What those count against the limit.
    units: u32,
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
        self.units = 0;
        self.audiences.clear();
        self.drop_index();
    }
}

impl EpochStore {
    fn append(&mut self, impression: &Impression<'_>) {
        let (sites, callers) = (impression.conversion_sites, impression.conversion_callers);
        let audience = self.audiences.intern(sites, callers);
        if self.slots.len() == self.slots.capacity() && self.slots.len() >= INDEXED {
            // By a quarter instead of doubling: memory is scarcer on a device than copying.
            self.slots.reserve_exact(self.slots.len() / 4);
        }
        let slot = Slot::new(impression, audience);
        self.slots.push(slot);
        self.live += 1;
        self.units = self.units.saturating_add(slot.units(&self.audiences));
        let newest = self.slots.len() - 1;
        match &mut self.index {
            Some(index) => index.link(&mut self.slots, &self.audiences, newest),
            None if self.slots.len() > INDEXED => self.rebuild_index(),
            None => {}
        }
    }

    fn largest_site(&self) -> Option<SiteSize> {
        if let Some(index) = &self.index {
            return index.largest_site();
        }
        let mut sites: BTreeMap<SiteId, SiteSize> = BTreeMap::new();
        for (order, slot) in (0..).zip(&self.slots).filter(|(_, slot)| slot.is_live()) {
            let size = sites.entry(slot.site).or_insert(SiteSize {
                units: 0,
                oldest: order,
            });
            size.units += slot.units(&self.audiences);
        }
        sites.into_values().max()
    }

    /// Removes impressions, or changes who may measure them.
    fn edit<'e>(&mut self, edits: impl IntoIterator<Item = (u32, Option<&'e Audience>)>) {
        for (order, audience) in edits {
            let at = order as usize;
            if !self.slots.get(at).is_some_and(Slot::is_live) {
                continue;
            }
            let audience = audience.map(|audience| {
                let (sites, callers) = (&audience.conversion_sites, &audience.conversion_callers);
                self.audiences.intern(sites, callers)
            });
            self.units -= self.slots[at].units(&self.audiences);
            match (audience, &mut self.index) {
                (Some(audience), Some(index)) => {
                    index.change_audience(&mut self.slots, &self.audiences, order, audience);
                }
                (None, Some(index)) => index.unlink(&mut self.slots, &self.audiences, order),
                (_, None) => {}
            }
            let slot = &mut self.slots[at];
            slot.audience = audience.unwrap_or(NONE);
            match audience {
                Some(_) => self.units += slot.units(&self.audiences),
                None => self.live -= 1,
            }
        }
        let removed = self.slots.len() - self.live;
        if removed > INDEXED.max(self.live / 4) {
            self.compact();
        }
    }

    /// Forgets removed slots and the audiences that nobody has any more.
    fn compact(&mut self) {
        let old = std::mem::take(&mut self.audiences);
        let mut renumbered = old.renumbering(&mut self.audiences);
        self.slots.retain_mut(|slot| {
            let live = slot.is_live();
            if live {
                *slot = Slot::new(&slot.impression(&old), renumbered(slot.audience));
            }
            live
        });
        drop(renumbered);
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
            if !self.slots[at].is_live() {
                continue;
            }
            index.link(&mut self.slots, &self.audiences, at);
        }
        self.index = Some(index);
    }

    fn visit(&self, epoch: EpochIndex, query: &AttributionQuery, found: &mut Vec<Relevant<Touch>>) {
        let begin = found.len();
        // Impressions that follow each other often have the same audience: it is asked once whether
        // the conversion site belongs to it.
        let (mut asked, mut belongs) = (NONE, false);
        let mut consider = |order: u32, slot: &Slot| -> Option<Relevant<Touch>> {
            if slot.audience != asked {
                asked = slot.audience;
                belongs = slot.is_live()
                    && named(
                        self.audiences.members(asked).0,
                        query.request.conversion_site,
                    );
            }
            if !belongs {
                return None;
            }
            let impression = Impression {
                conversion_sites: &[],
                ..slot.impression(&self.audiences)
            };
            Some(Relevant {
                epoch,
                order,
                site: impression.site,
                user_action: impression.user_action,
                detail: query.relevant(impression)?,
            })
        };
        let Some(index) = &self.index else {
            for (order, slot) in (0..).zip(&self.slots) {
                found.extend(consider(order, slot));
            }
            return;
        };
        let mut enough = query.enough();
        index.visit(&self.slots, query, |at| {
            let event = consider(at, &self.slots[at as usize]);
            found.extend(event);
            event.is_some_and(|event| enough.with(&event))
        });
        if query.callers.len() > 1 {
            // Two callers may share one impression.
            found[begin..].sort_unstable_by_key(|event| event.order);
            found.dedup_by_key(|event| (event.epoch, event.order));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::impression::Forgetting;
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
            let audience = match saved.without(ONE) {
                Forgetting::Untouched => Some(Audience {
                    conversion_sites: saved.conversion_sites.to_vec(),
                    conversion_callers: saved.conversion_callers.to_vec(),
                }),
                Forgetting::Restricted(audience) => Some(audience),
                Forgetting::Removed => None,
            };
            assert_eq!(audience.is_none(), left.is_none(), "{what}");
            store.edit([&Edit {
                epoch: E,
                order: 0,
                audience,
            }]);
            let kept: Vec<_> = store.impressions(E).collect();
            assert_eq!(kept, Vec::from_iter(left), "{what}");
        }
    }

    /// An epoch is full: the largest site loses its oldest, also when it is another that saves.
    #[test]
    fn a_site_crowds_out_only_itself() {
        let limits = StoreLimits {
            units_per_epoch: NonZeroU32::new(100).unwrap(),
        };
        let mut store = ImpressionStore::new(limits);
        // Each with a name: 50 units.
        for number in 0..25 {
            store.save(E, &impression(7, None, &[SiteId(number)], &[]));
        }
        for number in 0..1000 {
            let mut flood = impression(8, None, &[], &[]);
            flood.timestamp = Timestamp(number);
            store.save(E, &flood);
        }
        let of = |site| store.impressions(E).filter(move |i| i.site == SiteId(site));
        assert_eq!((of(7).count(), of(8).count()), (25, 50));
        let oldest = of(8).map(|impression| impression.timestamp).min();
        assert_eq!(oldest, Some(Timestamp(950)));
        // One that brings many names needs the room of many, all of it from the largest site.
        let names: Vec<SiteId> = (0..19).map(SiteId).collect();
        store.save(E, &impression(9, None, &names, &[]));
        let of = |site| store.impressions(E).filter(move |i| i.site == SiteId(site));
        assert_eq!((of(7).count(), of(8).count(), of(9).count()), (20, 40, 1));
        assert_eq!(store.units(E), 100);
    }
}
