//! Finding the impressions of an epoch that a query names, without looking at the others.
//!
//! Each impression is a link in three chains: of its site, of its caller and of its match value.
//! Chains live in the slots themselves, 24 bytes an impression. Besides, it is listed under every
//! pair of a conversion site and a caller that may measure it ([`Reach`]), in the order of attribution.
//!
//! A query looks through the shortest of these that holds what it asks for. If each of them is longer
//! than the query may examine, it takes what may be measured in the order of attribution, and stops
//! there ([`ReadLimits`]).

use std::cmp::Ordering;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::hash::{BuildHasher, Hash};

use hashbrown::{HashMap, HashTable};
use rustc_hash::FxBuildHasher;

use super::impression::Impression;
use super::query::{AttributionQuery, ReadLimits};
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
    /// The slots before and after it in each of its chains.
    before: [u32; 3],
    after: [u32; 3],
}

/// Priority, then time, then the place in the order of saving.
type Rank = (i32, Timestamp, u32);

/// No slot, or no audience.
pub(super) const NONE: u32 = u32::MAX;

/// The places of the three chains in [`Slot::before`] and [`Slot::after`].
const BY_SITE: usize = 0;
const BY_CALLER: usize = 1;
const BY_MATCH_VALUE: usize = 2;

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
            before: [NONE; 3],
            after: [NONE; 3],
        }
    }

    /// Its place in the order of attribution, of several impressions of one epoch: the highest first.
    fn rank(&self, at: u32) -> Rank {
        (self.priority, self.timestamp, at)
    }

    /// What it counts against the limit of its epoch.
    pub(super) fn units(&self, audiences: &Audiences) -> u32 {
        // As `Impression::units` counts them, without looking at the lists.
        1 + u32::from(self.caller != self.site) + audiences.size(self.audience)
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

    /// How many sites and callers an audience names.
    #[inline]
    fn size(&self, id: u32) -> u32 {
        let span = self.spans.get(id as usize);
        span.map_or(0, |span| span.end - span.begin)
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
    len: u32,
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

impl Chain {
    /// Puts a slot at the end.
    fn push(&mut self, slots: &mut [Slot], by: usize, at: u32) {
        slots[at as usize].before[by] = self.last;
        slots[at as usize].after[by] = NONE;
        match slots.get_mut(self.last as usize) {
            Some(last) => last.after[by] = at,
            None => self.first = at,
        }
        self.last = at;
        self.len += 1;
    }

    /// Takes a slot out.
    fn remove(&mut self, slots: &mut [Slot], by: usize, at: u32) {
        let Slot { before, after, .. } = slots[at as usize];
        match slots.get_mut(before[by] as usize) {
            Some(slot) => slot.after[by] = after[by],
            None => self.first = after[by],
        }
        match slots.get_mut(after[by] as usize) {
            Some(slot) => slot.before[by] = before[by],
            None => self.last = before[by],
        }
        self.len -= 1;
    }
}

/// The chain of a site, and what its impressions count against the limit of the epoch.
#[derive(Debug, Clone, Copy, Default)]
struct SiteChain {
    chain: Chain,
    units: u32,
}

impl SiteChain {
    fn size(&self) -> SiteSize {
        SiteSize {
            units: self.units,
            oldest: self.chain.first,
        }
    }
}

/// Who may measure an impression: a conversion site, or any if none is named; through a caller, or
/// any. An impression that names several is listed under each pair, so that a query finds what it may
/// measure under few keys, and nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Reach {
    site: u64,
    caller: u64,
}

/// Any conversion site, or any caller: no site has so large a number.
const ANY: u64 = u64::MAX;

impl Reach {
    fn new(site: Option<SiteId>, caller: Option<SiteId>) -> Self {
        let number = |site: SiteId| u64::from(site.0);
        Self {
            site: site.map_or(ANY, number),
            caller: caller.map_or(ANY, number),
        }
    }

    /// Every pair that may measure an impression of an audience.
    fn of(sites: &[SiteId], callers: &[SiteId]) -> impl Iterator<Item = Self> {
        fn each(list: &[SiteId]) -> impl Iterator<Item = Option<SiteId>> + Clone {
            let any = list.is_empty().then_some(None);
            any.into_iter().chain(list.iter().copied().map(Some))
        }
        let callers = each(callers);
        each(sites).flat_map(move |site| {
            let callers = callers.clone();
            callers.map(move |caller| Self::new(site, caller))
        })
    }
}

/// The rankings that hold everything that a query may measure. Only with several callers can an impression
/// be in more than one.
struct Rankings<'i> {
    /// For everyone who calls, and for the first caller.
    first: [Option<&'i Ranking>; 4],
    /// For the other callers.
    others: Vec<&'i Ranking>,
}

impl<'i> Rankings<'i> {
    fn of(index: &'i Index, query: &AttributionQuery) -> Self {
        let site = Some(query.request.conversion_site);
        let ranking = |site, caller| index.reach.get(&Reach::new(site, caller));
        let (first, others) = match query.callers.split_first() {
            Some((first, others)) => (Some(*first), others),
            None => (None, &[][..]),
        };
        let of_first = |site| first.and_then(|caller| ranking(site, Some(caller)));
        let mut rankings = Self {
            first: [
                ranking(site, None),
                ranking(None, None),
                of_first(site),
                of_first(None),
            ],
            others: Vec::new(),
        };
        for (at, caller) in others.iter().enumerate() {
            if Some(*caller) != first && !others[..at].contains(caller) {
                let of_caller = [site, None].map(|site| ranking(site, Some(*caller)));
                rankings.others.extend(of_caller.into_iter().flatten());
            }
        }
        rankings
    }

    fn iter(&self) -> impl Iterator<Item = &'i Ranking> {
        let first = self.first.iter().copied().flatten();
        first.chain(self.others.iter().copied())
    }
}

/// Slots in the order of attribution, the first to get credit last.
#[derive(Debug, Clone)]
enum Ranking {
    /// Most audiences of a long tail have one impression.
    One(u32),
    Many(VecDeque<u32>),
}

impl Ranking {
    fn len(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Many(list) => list.len(),
        }
    }

    fn get(&self, at: usize) -> Option<u32> {
        match self {
            Self::One(slot) => (at == 0).then_some(*slot),
            Self::Many(list) => list.get(at).copied(),
        }
    }

    fn insert(&mut self, slots: &[Slot], at: u32, spare: &mut Vec<VecDeque<u32>>) {
        if let Self::One(first) = self {
            let mut list = spare.pop().unwrap_or_default();
            list.push_back(*first);
            *self = Self::Many(list);
        }
        let Self::Many(list) = self else { return };
        let rank = |&at: &u32| slots[at as usize].rank(at);
        let own = rank(&at);
        match list.back() {
            // Time goes on, and most impressions have the same priority.
            Some(last) if rank(last) < own => list.push_back(at),
            _ => {
                let place = list.partition_point(|other| rank(other) < own);
                list.insert(place, at);
            }
        }
    }

    /// Its buffer, emptied.
    fn into_buffer(self) -> Option<VecDeque<u32>> {
        match self {
            Self::One(_) => None,
            Self::Many(mut list) => {
                list.clear();
                Some(list)
            }
        }
    }

    /// Takes a slot out, and says whether any is left.
    fn remove(&mut self, slots: &[Slot], at: u32) -> bool {
        let Self::Many(list) = self else { return false };
        let rank = |&at: &u32| slots[at as usize].rank(at);
        if let Ok(place) = list.binary_search_by_key(&rank(&at), rank) {
            list.remove(place);
        }
        !list.is_empty()
    }
}

/// How many buffers are kept of rankings that go one by one.
const SPARE: usize = 64;

/// The chains and rankings of an epoch with many impressions.
#[derive(Debug, Clone, Default)]
pub(super) struct Index {
    sites: Map<SiteId, SiteChain>,
    callers: Map<SiteId, Chain>,
    match_values: Map<u32, Chain>,
    reach: Map<Reach, Ranking>,
    /// Buffers of rankings that are gone.
    spare: Vec<VecDeque<u32>>,
    /// The sites by size. Built when the epoch is first full.
    by_size: Option<BTreeSet<(SiteSize, SiteId)>>,
}

impl Index {
    /// Forgets everything but its buffers.
    pub(super) fn clear(&mut self) {
        self.sites.clear();
        self.callers.clear();
        self.match_values.clear();
        let rankings = self.reach.drain();
        self.spare
            .extend(rankings.filter_map(|(_, ranking)| ranking.into_buffer()));
        self.by_size = None;
    }

    /// Adds the slot at `at`, newer than all that are there.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the limit on impressions keeps slots below four billion"
    )]
    pub(super) fn link(&mut self, slots: &mut [Slot], audiences: &Audiences, at: usize) {
        let (slot, at) = (slots[at], at as u32);
        let caller = self.callers.entry(slot.caller).or_default();
        caller.push(slots, BY_CALLER, at);
        let match_value = self.match_values.entry(slot.match_value).or_default();
        match_value.push(slots, BY_MATCH_VALUE, at);
        self.resize(slot.site, |site| {
            site.chain.push(slots, BY_SITE, at);
            site.units += slot.units(audiences);
        });
        self.list(slots, audiences, at);
    }

    /// Takes a slot out, before it is emptied.
    pub(super) fn unlink(&mut self, slots: &mut [Slot], audiences: &Audiences, at: u32) {
        fn take<K: Eq + Hash>(
            map: &mut Map<K, Chain>,
            key: &K,
            slots: &mut [Slot],
            by: usize,
            at: u32,
        ) {
            if let Some(chain) = map.get_mut(key) {
                chain.remove(slots, by, at);
                if chain.len == 0 {
                    map.remove(key);
                }
            }
        }
        let slot = slots[at as usize];
        self.unlist(slots, audiences, at);
        take(&mut self.callers, &slot.caller, slots, BY_CALLER, at);
        let match_values = &mut self.match_values;
        take(match_values, &slot.match_value, slots, BY_MATCH_VALUE, at);
        self.by_size();
        self.resize(slot.site, |site| {
            site.chain.remove(slots, BY_SITE, at);
            site.units -= slot.units(audiences);
        });
    }

    /// Replaces who may measure the slot at `at`.
    pub(super) fn change_audience(
        &mut self,
        slots: &mut [Slot],
        audiences: &Audiences,
        at: u32,
        audience: u32,
    ) {
        self.unlist(slots, audiences, at);
        let before = slots[at as usize].units(audiences);
        slots[at as usize].audience = audience;
        let slot = slots[at as usize];
        self.resize(slot.site, |site| {
            site.units = site.units - before + slot.units(audiences);
        });
        self.list(slots, audiences, at);
    }

    /// Lists a slot under everyone who may measure it.
    fn list(&mut self, slots: &[Slot], audiences: &Audiences, at: u32) {
        let (sites, callers) = audiences.members(slots[at as usize].audience);
        for reach in Reach::of(sites, callers) {
            let spare = &mut self.spare;
            let ranking = self.reach.entry(reach);
            ranking
                .and_modify(|ranking| ranking.insert(slots, at, spare))
                .or_insert(Ranking::One(at));
        }
    }

    fn unlist(&mut self, slots: &[Slot], audiences: &Audiences, at: u32) {
        let (sites, callers) = audiences.members(slots[at as usize].audience);
        for reach in Reach::of(sites, callers) {
            if let Some(ranking) = self.reach.get_mut(&reach)
                && !ranking.remove(slots, at)
                && let Some(gone) = self.reach.remove(&reach)
                && self.spare.len() < SPARE
            {
                self.spare.extend(gone.into_buffer());
            }
        }
    }

    /// Changes the impressions of a site, and its place among the sites by size.
    fn resize(&mut self, site: SiteId, change: impl FnOnce(&mut SiteChain)) {
        let of_site = self.sites.entry(site).or_default();
        let before = of_site.size();
        change(of_site);
        let after = of_site.size();
        let empty = of_site.chain.len == 0;
        if empty {
            self.sites.remove(&site);
        }
        if let Some(by_size) = &mut self.by_size {
            // Most often it is the largest.
            if by_size.last() == Some(&(before, site)) {
                by_size.pop_last();
            } else {
                by_size.remove(&(before, site));
            }
            if !empty {
                by_size.insert((after, site));
            }
        }
    }

    /// The largest site.
    pub(super) fn largest_site(&self) -> Option<SiteSize> {
        match &self.by_size {
            Some(by_size) => by_size.last().map(|(size, _)| *size),
            None => self.sites.values().map(SiteChain::size).max(),
        }
    }

    fn by_size(&mut self) {
        let sites = &self.sites;
        self.by_size.get_or_insert_with(|| {
            let sizes = sites.iter().map(|(&site, chain)| (chain.size(), site));
            sizes.collect()
        });
    }

    /// Visits the slots that a query may match: all that share the property which the query restricts
    /// most, if they are no more than it may examine; else the first that it may measure, in the
    /// order of attribution, until `visit` says that these are enough. Some may be visited twice if
    /// several call.
    pub(super) fn visit(
        &self,
        slots: &[Slot],
        query: &AttributionQuery,
        mut visit: impl FnMut(u32) -> bool,
    ) {
        let ReadLimits { examined, .. } = query.read_limits();
        let rankings = Rankings::of(self, query);
        let mut fewest: u64 = rankings.iter().map(|ranking| ranking.len() as u64).sum();
        let mut best = None;
        let sites = &self.sites;
        let of_site = |site: &SiteId| sites.get(site).map(|site| &site.chain);
        let restricted = [
            (BY_SITE, total(&query.impression_sites, of_site)),
            (
                BY_CALLER,
                total(&query.impression_callers, |it| self.callers.get(it)),
            ),
            (
                BY_MATCH_VALUE,
                total(&query.match_values, |it| self.match_values.get(it)),
            ),
        ];
        for (by, count) in restricted {
            if let Some(count) = count.filter(|&count| count < fewest) {
                (best, fewest) = (Some(by), count);
            }
        }
        if fewest > u64::from(examined) {
            return first_ranked(slots, rankings.iter(), examined, visit);
        }
        let Some(best) = best else {
            for ranking in rankings.iter() {
                (0..ranking.len())
                    .filter_map(|at| ranking.get(at))
                    .for_each(|at| {
                        visit(at);
                    });
            }
            return;
        };
        let mut walk = |chain: &Chain| {
            let mut at = chain.first;
            while let Some(slot) = slots.get(at as usize) {
                visit(at);
                at = slot.after[best];
            }
        };
        match best {
            BY_SITE => chains(&query.impression_sites, of_site).for_each(&mut walk),
            BY_CALLER => {
                let callers = chains(&query.impression_callers, |it| self.callers.get(it));
                callers.for_each(&mut walk);
            }
            _ => {
                let values = chains(&query.match_values, |it| self.match_values.get(it));
                values.for_each(&mut walk);
            }
        }
    }
}

/// Visits the first `count` slots of several rankings, in the order of attribution.
fn first_ranked<'r>(
    slots: &[Slot],
    rankings: impl Iterator<Item = &'r Ranking>,
    count: u32,
    mut visit: impl FnMut(u32) -> bool,
) {
    let head = |ranking: &'r Ranking, left: usize| {
        let at = ranking.get(left.checked_sub(1)?)?;
        Some((slots[at as usize].rank(at), left))
    };
    let rankings: Vec<&Ranking> = rankings.collect();
    let heads = rankings.iter().enumerate().filter_map(|(number, ranking)| {
        head(ranking, ranking.len()).map(|(rank, left)| (rank, number, left))
    });
    let mut heads: BinaryHeap<(Rank, usize, usize)> = heads.collect();
    for _ in 0..count {
        let Some(((_, _, at), number, left)) = heads.pop() else {
            return;
        };
        if visit(at) {
            return;
        }
        if let Some((rank, left)) = head(rankings[number], left - 1) {
            heads.push((rank, number, left));
        }
    }
}

fn chains<'a, K>(
    names: &'a [K],
    chain: impl Fn(&K) -> Option<&'a Chain>,
) -> impl Iterator<Item = &'a Chain> {
    names.iter().filter_map(chain)
}

/// How many slots the named chains have together; `None` when nothing is named.
fn total<'a, K>(names: &'a [K], chain: impl Fn(&K) -> Option<&'a Chain>) -> Option<u64> {
    (!names.is_empty()).then(|| chains(names, chain).map(|chain| u64::from(chain.len)).sum())
}
