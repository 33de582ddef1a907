//! The impression store in memory.

use std::collections::BTreeMap;
use std::convert::Infallible;

use super::audiences::Audiences;
use super::eviction::{SiteSize, StoreLimits};
use super::impression::{Audience, Impression};
use super::index::Index;
use super::query::{AttributionQuery, MatchedImpression, named};
use super::read_limits::ReadLimits;
use super::slot::{NONE, Slot};
use crate::epochs::{Epochs, Recycle};
use crate::query::{EventStore, Query, Relevant};
use crate::{EpochIndex, SiteId};

/// A change to a stored impression.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ImpressionEdit {
    /// The epoch it is in.
    pub epoch: EpochIndex,
    /// Its position in the order of saving, as read from the store.
    pub order: u32,
    /// The new audience. `None` removes the impression.
    pub audience: Option<Audience>,
}

/// The impressions of a device, by epoch, with indexes for matching.
///
/// The cost of a query depends on what can match, not on what is stored: an epoch with more than a
/// few impressions has an index by impression site, by caller, by match value and by who may
/// measure. When an epoch is over its limit, impressions are evicted as [`StoreLimits`] describes.
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

    /// Saves an impression, and evicts impressions while the epoch is over its limit. Returns
    /// false, and saves nothing, if the epoch was pruned.
    pub fn save(&mut self, epoch: EpochIndex, impression: &Impression<'_>) -> bool {
        let Some(store) = self.epochs.get_or_create(epoch) else {
            return false;
        };
        store.append(impression);
        while self.limits.is_exceeded_by(store.units)
            && let Some(largest) = store.largest_site()
        {
            store.edit([(largest.oldest, None)]);
        }
        true
    }

    /// Saves an impression without applying the limits, for callers that apply them afterwards.
    /// Saves nothing if the epoch was pruned.
    pub fn append(&mut self, epoch: EpochIndex, impression: &Impression<'_>) {
        if let Some(store) = self.epochs.get_or_create(epoch) {
            store.append(impression);
        }
    }

    /// The total number of units of an epoch's impressions.
    pub fn units(&self, epoch: EpochIndex) -> u32 {
        self.epochs.get(epoch).map_or(0, |store| store.units)
    }

    /// The largest site of an epoch.
    pub fn largest_site(&self, epoch: EpochIndex) -> Option<SiteSize> {
        self.epochs.get(epoch)?.largest_site()
    }

    /// Edits impressions. The positions in `edits` are those before any edit of this call was made.
    pub fn edit<'e>(&mut self, edits: impl IntoIterator<Item = &'e ImpressionEdit>) {
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

    /// The impressions of an epoch, with their positions in the order in which they were saved.
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

    /// The number of stored impressions.
    pub fn len(&self) -> usize {
        self.epochs.iter().map(|(_, store)| store.live).sum()
    }

    /// True if no impressions are stored.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Keeps only the impressions for which `keep` returns true. Returns the number of removed
    /// ones.
    pub fn retain(&mut self, mut keep: impl FnMut(Impression<'_>) -> bool) -> usize {
        let mut edits = Vec::new();
        for epoch in self.epochs() {
            let placed = self.placed(epoch);
            let gone = placed.filter(|(_, impression)| !keep(*impression));
            edits.extend(gone.map(|(order, _)| ImpressionEdit {
                epoch,
                order,
                audience: None,
            }));
        }
        self.edit(&edits);
        edits.len()
    }

    /// Removes the impressions of the epochs before `epoch`. New ones can still be saved there.
    pub fn clear_before(&mut self, epoch: EpochIndex) {
        for (index, store) in self.epochs.iter_mut() {
            if index < epoch {
                store.recycle();
            }
        }
    }

    /// Forgets the epochs before `epoch`, for good.
    pub fn prune_before(&mut self, epoch: EpochIndex) {
        self.epochs.prune_before(epoch);
    }

    /// Empties the store for another device, keeping its buffers.
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
        found: &mut Vec<Relevant<MatchedImpression>>,
    ) -> Result<(), Infallible> {
        if let Some(store) = self.epochs.get(epoch) {
            store.visit(epoch, query, found);
        }
        Ok(())
    }
}

/// An epoch with more impressions than this has an index. With fewer, examining each one is faster,
/// and a simulated device with three impressions does not pay for an index.
const INDEXED: usize = ReadLimits::LEAST_EXAMINED as usize;

#[derive(Debug, Clone, Default)]
struct EpochStore {
    /// The slots in the order of saving. Some may be removed.
    slots: Vec<Slot>,
    /// The number of slots that are not removed.
    live: usize,
    /// The total number of units of those.
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
            // Grow by a quarter instead of doubling: on a device, memory matters more than the cost
            // of copying.
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

    /// Removes impressions or changes their audiences.
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

    /// Forgets removed slots and unused audiences.
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

    fn visit(
        &self,
        epoch: EpochIndex,
        query: &AttributionQuery,
        found: &mut Vec<Relevant<MatchedImpression>>,
    ) {
        let begin = found.len();
        // Consecutive impressions often have the same audience, so remember whether it includes the
        // conversion site, and its callers.
        let (mut asked, mut belongs, mut callers) = (NONE, false, [].as_slice());
        let mut consider = |order: u32, slot: &Slot| -> Option<Relevant<MatchedImpression>> {
            if slot.audience != asked {
                asked = slot.audience;
                let (sites, list) = self.audiences.members(asked);
                belongs = slot.is_live() && named(sites, query.request.conversion_site);
                callers = list;
            }
            if !belongs {
                return None;
            }
            let impression = slot.open_to(&[], callers);
            Some(Relevant {
                epoch,
                order,
                site: impression.site,
                user_action: impression.user_action,
                detail: query.relevant(impression)?,
            })
        };
        let Some(index) = &self.index else {
            for (order, slot) in self.slots.iter().enumerate() {
                // Most impressions are of other sites than a query names.
                if !named(&query.impression_sites, slot.site) {
                    continue;
                }
                #[expect(clippy::cast_possible_truncation, reason = "there are few")]
                if let Some(event) = consider(order as u32, slot) {
                    found.push(event);
                }
            }
            return;
        };
        let mut stop_rule = query.stop_rule();
        index.visit(&self.slots, &self.audiences, query, |at, in_order| {
            let Some(event) = consider(at, &self.slots[at as usize]) else {
                return false;
            };
            found.push(event);
            in_order && stop_rule.stops_at(&event)
        });
        if query.callers.len() > 1 {
            // An impression that several callers may measure was found several times.
            found[begin..].sort_unstable_by_key(|event| event.order);
            found.dedup_by_key(|event| (event.epoch, event.order));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::super::impression::ForgetEffect;
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
            ("saved by the site", impression(1, None, &[], &[]), None),
            (
                "shown on the site, saved by another",
                impression(1, Some(5), &[], &[]),
                Some(impression(1, Some(5), &[], &[])),
            ),
            (
                "shown elsewhere, saved by the site",
                impression(5, Some(1), &[], &[]),
                None,
            ),
            ("only for the site", impression(5, None, &[ONE], &[]), None),
            (
                "also for the site",
                impression(5, None, &[ONE, TWO], &[]),
                Some(impression(5, None, &[TWO], &[])),
            ),
            (
                "only the site may call",
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
                ForgetEffect::Untouched => Some(Audience {
                    conversion_sites: saved.conversion_sites.to_vec(),
                    conversion_callers: saved.conversion_callers.to_vec(),
                }),
                ForgetEffect::Restricted(audience) => Some(audience),
                ForgetEffect::Removed => None,
            };
            assert_eq!(audience.is_none(), left.is_none(), "{what}");
            store.edit([&ImpressionEdit {
                epoch: E,
                order: 0,
                audience,
            }]);
            let kept: Vec<_> = store.impressions(E).collect();
            assert_eq!(kept, Vec::from_iter(left), "{what}");
        }
    }

    /// When an epoch is over its limit, the largest site loses its oldest impression, even if
    /// another site saves.
    #[test]
    fn a_site_crowds_out_only_itself() {
        let limits = StoreLimits {
            units_per_epoch: NonZeroU32::new(100).unwrap(),
        };
        let mut store = ImpressionStore::new(limits);
        // Each of these names one conversion site and so counts 2 units, 50 in total.
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
        // An impression with 19 names counts 20 units. Each eviction takes from the site that is
        // largest at that point, in total 10 units from each of the two sites.
        let names: Vec<SiteId> = (0..19).map(SiteId).collect();
        store.save(E, &impression(9, None, &names, &[]));
        let of = |site| store.impressions(E).filter(move |i| i.site == SiteId(site));
        assert_eq!((of(7).count(), of(8).count(), of(9).count()), (20, 40, 1));
        assert_eq!(store.units(E), 100);
    }
}
