//! Finding the impressions of an epoch that a query names, without looking at the others.
//!
//! Each impression is a link in four chains: of its site, of its caller, of its match value and of
//! its audience. A query walks the chains of the one property that it restricts most. Chains live
//! in the slots themselves, 16 bytes an impression; besides, the index has an entry for each
//! distinct site, caller, match value and audience of the epoch.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hash};

use hashbrown::{HashMap, HashTable};
use rustc_hash::FxBuildHasher;

use super::impression::Impression;
use super::query::AttributionQuery;
use super::store::SiteSize;
use crate::{SiteId, Timestamp, UserAction};

type Map<K, V> = HashMap<K, V, FxBuildHasher>;

/// A stored impression.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    timestamp: Timestamp,
    expires: Timestamp,
    user_action: UserAction,
    pub(super) site: SiteId,
    caller: SiteId,
    match_value: u32,
    histogram_index: u32,
    priority: i32,
    /// Or [`NONE`], when the impression was removed and the slot waits for compaction.
    pub(super) audience: u32,
    /// The next slot in each of its chains.
    next: [u32; 4],
}

/// No slot, or no audience.
pub(super) const NONE: u32 = u32::MAX;

/// The places of the four chains in [`Slot::next`].
const BY_SITE: usize = 0;
const BY_CALLER: usize = 1;
const BY_MATCH_VALUE: usize = 2;
const BY_AUDIENCE: usize = 3;

impl Slot {
    pub(super) fn new(impression: &Impression<'_>, audience: u32) -> Self {
        Self {
            timestamp: impression.timestamp,
            expires: impression.expires,
            user_action: impression.user_action,
            site: impression.site,
            caller: impression.caller(),
            match_value: impression.match_value,
            histogram_index: impression.histogram_index,
            priority: impression.priority,
            audience,
            next: [NONE; 4],
        }
    }

    pub(super) fn is_live(&self) -> bool {
        self.audience != NONE
    }

    pub(super) fn impression<'a>(&self, audiences: &'a Audiences) -> Impression<'a> {
        let (conversion_sites, conversion_callers) = audiences.members(self.audience);
        Impression {
            site: self.site,
            intermediary: (self.caller != self.site).then_some(self.caller),
            user_action: self.user_action,
            timestamp: self.timestamp,
            expires: self.expires,
            match_value: self.match_value,
            histogram_index: self.histogram_index,
            priority: self.priority,
            conversion_sites,
            conversion_callers,
        }
    }
}

/// The distinct audiences of an epoch's impressions: who may measure them, as a list of conversion
/// sites and a list of conversion callers. Impressions that share an audience share its lists.
#[derive(Debug, Clone, Default)]
pub(super) struct Audiences {
    lists: Vec<SiteId>,
    spans: Vec<Span>,
    /// Points into `spans` once they are many.
    table: HashTable<u32>,
}

#[derive(Debug, Clone, Copy)]
struct Span {
    begin: u32,
    /// Where the conversion sites end and the conversion callers begin.
    middle: u32,
    end: u32,
}

/// Up to this many audiences, comparing with each is faster than hashing.
const COMPARED: usize = 16;

impl Audiences {
    /// The number of an audience, which it gets when it is first seen. Order and repetition of
    /// its members do not matter.
    pub(super) fn intern(&mut self, sites: &[SiteId], callers: &[SiteId]) -> u32 {
        let increasing = |list: &[SiteId]| list.is_sorted_by(|a, b| a < b);
        if increasing(sites) && increasing(callers) {
            return self.intern_sets(sites, callers);
        }
        let set = |list: &[SiteId]| -> Vec<SiteId> {
            let mut list = list.to_vec();
            list.sort_unstable();
            list.dedup();
            list
        };
        self.intern_sets(&set(sites), &set(callers))
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the limit on impressions keeps the lists far below four billion sites"
    )]
    fn intern_sets(&mut self, sites: &[SiteId], callers: &[SiteId]) -> u32 {
        let known = self.spans.len();
        let same = |id: u32| self.members(id) == (sites, callers);
        // Impressions of one advertiser often follow each other.
        let newest = known.wrapping_sub(1) as u32;
        let found = if known == 0 {
            None
        } else if same(newest) {
            Some(newest)
        } else if known <= COMPARED {
            (0..newest).find(|&id| same(id))
        } else {
            let hash = hash_of((sites, callers));
            self.table.find(hash, |&id| same(id)).copied()
        };
        if let Some(id) = found {
            return id;
        }
        let begin = self.lists.len() as u32;
        self.lists.extend_from_slice(sites);
        let middle = self.lists.len() as u32;
        self.lists.extend_from_slice(callers);
        let end = self.lists.len() as u32;
        self.spans.push(Span { begin, middle, end });
        let unlisted = match known.cmp(&COMPARED) {
            Ordering::Less => 0..0,
            Ordering::Equal => 0..known as u32 + 1,
            Ordering::Greater => known as u32..known as u32 + 1,
        };
        let mut table = std::mem::take(&mut self.table);
        for id in unlisted {
            let hash = |&id: &u32| hash_of(self.members(id));
            table.insert_unique(hash(&id), id, hash);
        }
        self.table = table;
        known as u32
    }

    /// The conversion sites and the conversion callers of an audience.
    #[inline]
    pub(super) fn members(&self, id: u32) -> (&[SiteId], &[SiteId]) {
        match self.spans.get(id as usize) {
            Some(span) => (
                &self.lists[span.begin as usize..span.middle as usize],
                &self.lists[span.middle as usize..span.end as usize],
            ),
            None => (&[], &[]),
        }
    }

    /// Gives each audience that is asked about its number in `new`, where it is listed when it is
    /// first asked about.
    pub(super) fn renumbering<'a>(&'a self, new: &'a mut Self) -> impl FnMut(u32) -> u32 + 'a {
        let mut known: Vec<Option<u32>> = vec![None; self.spans.len()];
        move |id| {
            let Some(renumbered) = known.get_mut(id as usize) else {
                return NONE;
            };
            *renumbered.get_or_insert_with(|| {
                let (sites, callers) = self.members(id);
                new.intern_sets(sites, callers)
            })
        }
    }

    pub(super) fn clear(&mut self) {
        self.lists.clear();
        self.spans.clear();
        self.table.clear();
    }
}

fn hash_of(lists: (&[SiteId], &[SiteId])) -> u64 {
    FxBuildHasher.hash_one(lists)
}

/// The slots that have something in common, oldest first.
#[derive(Debug, Clone, Copy)]
struct Chain {
    first: u32,
    last: u32,
    /// How many slots it has; removed ones count until compaction, except by site.
    len: u32,
}

impl Chain {
    fn size(&self) -> SiteSize {
        SiteSize {
            impressions: self.len,
            oldest: self.first,
        }
    }
}

impl Default for Chain {
    fn default() -> Self {
        Self {
            first: NONE,
            last: NONE,
            len: 0,
        }
    }
}

/// The chains of an epoch with many impressions.
#[derive(Debug, Clone, Default)]
pub(super) struct Index {
    sites: Map<SiteId, Chain>,
    callers: Map<SiteId, Chain>,
    match_values: Map<u32, Chain>,
    /// By number of audience.
    audiences: Vec<Chain>,
    /// The audiences that name a conversion site, and the audiences that name none.
    naming_site: Lists,
    any_site: Vec<u32>,
    /// Of the latter, those that name a conversion caller, and those that name none.
    naming_caller: Lists,
    anyone: Vec<u32>,
    /// The sites by size. Built when the epoch is first full.
    crowd: Option<BTreeSet<(SiteSize, SiteId)>>,
}

impl Index {
    /// Forgets everything but its buffers.
    pub(super) fn clear(&mut self) {
        self.sites.clear();
        self.callers.clear();
        self.match_values.clear();
        self.audiences.clear();
        self.naming_site.clear();
        self.any_site.clear();
        self.naming_caller.clear();
        self.anyone.clear();
        self.crowd = None;
    }

    /// Puts the slot at `at`, newer than all that are linked, at the end of its chains.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the limit on impressions keeps slots below four billion"
    )]
    pub(super) fn link(&mut self, slots: &mut [Slot], audiences: &Audiences, at: usize) {
        let slot = slots[at];
        while self.audiences.len() <= slot.audience as usize {
            let id = self.audiences.len() as u32;
            self.audiences.push(Chain::default());
            self.list_audience(id, audiences);
        }
        let before = self.sites.get(&slot.site).copied();
        let chains = [
            self.sites.entry(slot.site).or_default(),
            self.callers.entry(slot.caller).or_default(),
            self.match_values.entry(slot.match_value).or_default(),
            &mut self.audiences[slot.audience as usize],
        ];
        for (by, chain) in chains.into_iter().enumerate() {
            if chain.first == NONE {
                chain.first = at as u32;
            } else {
                slots[chain.last as usize].next[by] = at as u32;
            }
            chain.last = at as u32;
            chain.len += 1;
        }
        if let Some(crowd) = &mut self.crowd {
            let after = self.sites[&slot.site];
            if let Some(before) = before {
                crowd.remove(&(before.size(), slot.site));
            }
            crowd.insert((after.size(), slot.site));
        }
    }

    /// How many impressions a site has.
    pub(super) fn site(&self, site: SiteId) -> Option<SiteSize> {
        self.sites.get(&site).map(Chain::size)
    }

    /// The largest site.
    pub(super) fn largest_site(&self) -> Option<SiteSize> {
        match &self.crowd {
            Some(crowd) => crowd.last().map(|(size, _)| *size),
            None => self.sites.values().map(Chain::size).max(),
        }
    }

    /// Takes a slot out of its site's chain, if it is the oldest there, and says whether it was.
    pub(super) fn unlink_oldest(&mut self, slots: &[Slot], at: u32) -> bool {
        let site = slots[at as usize].site;
        let sites = &mut self.sites;
        let crowd = self.crowd.get_or_insert_with(|| {
            let sizes = sites.iter().map(|(&site, chain)| (chain.size(), site));
            sizes.collect()
        });
        let Some(chain) = sites.get_mut(&site).filter(|chain| chain.first == at) else {
            return false;
        };
        // Most often it is the largest.
        let size = chain.size();
        if crowd.last().is_some_and(|largest| *largest == (size, site)) {
            crowd.pop_last();
        } else {
            crowd.remove(&(size, site));
        }
        chain.first = slots[at as usize].next[BY_SITE];
        chain.len -= 1;
        if chain.len == 0 {
            sites.remove(&site);
        } else {
            crowd.insert((chain.size(), site));
        }
        true
    }

    /// Visits every slot that a query may match: all that share the property which the query
    /// restricts most.
    pub(super) fn visit(
        &self,
        slots: &[Slot],
        audiences: &Audiences,
        query: &AttributionQuery,
        mut visit: impl FnMut(u32),
    ) {
        let mut fewest = 0;
        self.visit_audiences(audiences, query, |chain| fewest += u64::from(chain.len));
        let mut best = BY_AUDIENCE;
        let restricted = [
            (BY_SITE, total(&self.sites, &query.impression_sites)),
            (BY_CALLER, total(&self.callers, &query.impression_callers)),
            (
                BY_MATCH_VALUE,
                total(&self.match_values, &query.match_values),
            ),
        ];
        for (by, count) in restricted {
            if let Some(count) = count.filter(|&count| count < fewest) {
                (best, fewest) = (by, count);
            }
        }
        let mut walk = |chain: &Chain| {
            let mut at = chain.first;
            while let Some(slot) = slots.get(at as usize) {
                visit(at);
                at = slot.next[best];
            }
        };
        match best {
            BY_SITE => chains(&self.sites, &query.impression_sites).for_each(&mut walk),
            BY_CALLER => chains(&self.callers, &query.impression_callers).for_each(&mut walk),
            BY_MATCH_VALUE => chains(&self.match_values, &query.match_values).for_each(&mut walk),
            _ => self.visit_audiences(audiences, query, walk),
        }
    }

    /// Visits the chain of each audience that the conversion site and a caller belong to.
    fn visit_audiences(
        &self,
        audiences: &Audiences,
        query: &AttributionQuery,
        mut visit: impl FnMut(&Chain),
    ) {
        let mut visit_permitted = |id: u32| {
            let (_, callers) = audiences.members(id);
            let permitted = |caller: &SiteId| callers.is_empty() || callers.contains(caller);
            if query.callers.iter().any(permitted) {
                visit(&self.audiences[id as usize]);
            }
        };
        match query.callers.as_slice() {
            [caller] => {
                self.anyone.iter().copied().for_each(&mut visit_permitted);
                self.naming_caller
                    .of(*caller)
                    .for_each(&mut visit_permitted);
            }
            _ => self.any_site.iter().copied().for_each(&mut visit_permitted),
        }
        let site = query.request.conversion_site;
        self.naming_site.of(site).for_each(&mut visit_permitted);
    }

    fn list_audience(&mut self, id: u32, audiences: &Audiences) {
        let (sites, callers) = audiences.members(id);
        for &site in sites {
            self.naming_site.push(site, id);
        }
        if sites.is_empty() {
            self.any_site.push(id);
            if callers.is_empty() {
                self.anyone.push(id);
            }
            for &caller in callers {
                self.naming_caller.push(caller, id);
            }
        }
    }
}

/// A list of numbers for each site, most of them short: links of all lists in one vector.
#[derive(Debug, Clone, Default)]
struct Lists {
    newest: Map<SiteId, u32>,
    links: Vec<(u32, u32)>,
}

impl Lists {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the limit on impressions keeps the links below four billion"
    )]
    fn push(&mut self, site: SiteId, number: u32) {
        let newest = self.newest.entry(site).or_insert(NONE);
        let link = self.links.len() as u32;
        self.links.push((number, *newest));
        *newest = link;
    }

    fn clear(&mut self) {
        self.newest.clear();
        self.links.clear();
    }

    fn of(&self, site: SiteId) -> impl Iterator<Item = u32> {
        let mut next = self.newest.get(&site).copied().unwrap_or(NONE);
        std::iter::from_fn(move || {
            let &(number, earlier) = self.links.get(next as usize)?;
            next = earlier;
            Some(number)
        })
    }
}

fn chains<'a, K: Eq + Hash>(
    map: &'a Map<K, Chain>,
    names: &'a [K],
) -> impl Iterator<Item = &'a Chain> {
    names.iter().filter_map(|name| map.get(name))
}

/// How many slots the named chains have together; `None` when nothing is named.
fn total<K: Eq + Hash>(map: &Map<K, Chain>, names: &[K]) -> Option<u64> {
    (!names.is_empty()).then(|| chains(map, names).map(|chain| u64::from(chain.len)).sum())
}
