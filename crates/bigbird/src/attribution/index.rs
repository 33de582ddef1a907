//! Finding the impressions of an epoch that a query names, without examining the others.
//!
//! Each impression is a link in three chains: of its site, of its caller and of its match value.
//! Chains are stored in the slots themselves and take 24 bytes per impression. Each impression is
//! also listed under every pair of a conversion site and a caller that may measure it
//! ([`ReachKey`]), in the order of attribution. Those lists cost most, because an impression can
//! name many sites. So they begin when the epoch has more impressions than [`RANKED`]. Until then,
//! a query can walk the whole epoch instead.
//!
//! A query walks the shortest chains or lists that contain everything it can match. If even those
//! are longer than the query may examine, it examines the impressions it may measure, in the order
//! of attribution, up to its limit ([`ReadLimits`]).

use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::hash::Hash;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::audiences::Audiences;
use super::chain::{Chain, SiteChain};
use super::eviction::SiteSize;
use super::query::{AttributionQuery, named};
use super::ranking::{Ranking, Rankings, ReachKey};
use super::read_limits::ReadLimits;
use super::slot::{BY_CALLER, BY_MATCH_VALUE, BY_SITE, Rank, Slot};
use crate::SiteId;

type Map<K, V> = HashMap<K, V, FxBuildHasher>;

/// An epoch with more impressions than this lists them by who may measure them.
const RANKED: usize = 512;

/// The number of buffers that are kept when rankings are removed one by one.
const SPARE: usize = 64;

/// The chains and rankings of an epoch with many impressions.
#[derive(Debug, Clone, Default)]
pub(super) struct Index {
    sites: Map<SiteId, SiteChain>,
    callers: Map<SiteId, Chain>,
    match_values: Map<u32, Chain>,
    pub(super) reach: Map<ReachKey, Ranking>,
    /// True if every slot is listed in `reach`.
    ranked: bool,
    /// Buffers of removed rankings.
    spare: Vec<VecDeque<u32>>,
    /// The sites by size. It is built when the first impression is removed.
    by_size: Option<BTreeSet<(SiteSize, SiteId)>>,
}

impl Index {
    /// Forgets everything but keeps the buffers.
    pub(super) fn clear(&mut self) {
        self.sites.clear();
        self.callers.clear();
        self.match_values.clear();
        let rankings = self.reach.drain();
        self.spare
            .extend(rankings.filter_map(|(_, ranking)| ranking.into_buffer()));
        self.ranked = false;
        self.by_size = None;
    }

    /// Adds the slot at `at`, which must be newer than all slots in the index.
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
        if self.ranked {
            self.list(slots, audiences, at);
        } else if at as usize >= RANKED {
            self.ranked = true;
            for (at, _) in (0..=at).zip(&*slots).filter(|(_, slot)| slot.is_live()) {
                self.list(slots, audiences, at);
            }
        }
    }

    /// Removes a slot from the index. Call this before the slot is emptied.
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
        if self.ranked {
            self.unlist(slots, audiences, at);
        }
        take(&mut self.callers, &slot.caller, slots, BY_CALLER, at);
        let match_values = &mut self.match_values;
        take(match_values, &slot.match_value, slots, BY_MATCH_VALUE, at);
        self.by_size();
        self.resize(slot.site, |site| {
            site.chain.remove(slots, BY_SITE, at);
            site.units -= slot.units(audiences);
        });
    }

    /// Changes the audience of the slot at `at`.
    pub(super) fn change_audience(
        &mut self,
        slots: &mut [Slot],
        audiences: &Audiences,
        at: u32,
        audience: u32,
    ) {
        if self.ranked {
            self.unlist(slots, audiences, at);
        }
        let before = slots[at as usize].units(audiences);
        slots[at as usize].audience = audience;
        let slot = slots[at as usize];
        self.resize(slot.site, |site| {
            site.units = site.units - before + slot.units(audiences);
        });
        if self.ranked {
            self.list(slots, audiences, at);
        }
    }

    /// Lists a slot under every pair that may measure the impression.
    fn list(&mut self, slots: &[Slot], audiences: &Audiences, at: u32) {
        let (sites, callers) = audiences.members(slots[at as usize].audience);
        for reach in ReachKey::of(sites, callers) {
            let spare = &mut self.spare;
            let ranking = self.reach.entry(reach);
            ranking
                .and_modify(|ranking| ranking.insert(slots, at, spare))
                .or_insert(Ranking::One(at));
        }
    }

    fn unlist(&mut self, slots: &[Slot], audiences: &Audiences, at: u32) {
        let (sites, callers) = audiences.members(slots[at as usize].audience);
        for reach in ReachKey::of(sites, callers) {
            if let Some(ranking) = self.reach.get_mut(&reach)
                && !ranking.remove(slots, at)
                && let Some(gone) = self.reach.remove(&reach)
                && self.spare.len() < SPARE
            {
                self.spare.extend(gone.into_buffer());
            }
        }
    }

    /// Changes the impressions of a site, and updates its place among the sites by size.
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
            // Usually it is the largest site.
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

    /// Visits the slots that a query may match.
    ///
    /// Of the lists by site, by caller, by match value and by reach, this visits all slots of the
    /// shortest, if the query may examine that many. A list by reach that does not exist yet counts
    /// as the whole epoch. Choosing never costs more than walking: a query that names more sites
    /// than there are slots to walk does not look them up. Otherwise it visits only slots that the
    /// query may measure, in the order of attribution, until `visit` returns true or the limit is
    /// reached. `visit` is told whether they come in that order. With several callers, a slot may
    /// be visited more than once.
    pub(super) fn visit(
        &self,
        slots: &[Slot],
        audiences: &Audiences,
        query: &AttributionQuery,
        mut visit: impl FnMut(u32, bool) -> bool,
    ) {
        let ReadLimits { examined, .. } = query.read_limits();
        let rankings = self.ranked.then(|| Rankings::of(self, query));
        let mut fewest = match &rankings {
            Some(rankings) => rankings.iter().map(|ranking| ranking.len() as u64).sum(),
            None => slots.len() as u64,
        };
        let mut best = None;
        let sites = &self.sites;
        let of_site = |site: &SiteId| sites.get(site).map(|site| &site.chain);
        let mut compare = |by, count: Option<u64>| {
            if let Some(count) = count
                && count < fewest
            {
                (best, fewest) = (Some(by), count);
            }
            // An epoch that is too long to walk must be looked up.
            if fewest > u64::from(examined) {
                u64::MAX
            } else {
                fewest
            }
        };
        let left = compare(BY_SITE, None);
        let left = compare(BY_SITE, total(&query.impression_sites, left, of_site));
        let of_caller = |caller: &SiteId| self.callers.get(caller);
        let left = compare(BY_CALLER, total(&query.impression_callers, left, of_caller));
        let of_value = |value: &u32| self.match_values.get(value);
        compare(BY_MATCH_VALUE, total(&query.match_values, left, of_value));
        if fewest > u64::from(examined) {
            return match rankings {
                Some(rankings) => first_ranked(slots, rankings.iter(), examined, visit),
                None => first_unranked(slots, audiences, query, examined, visit),
            };
        }
        let Some(best) = best else {
            let Some(rankings) = rankings else {
                for (at, _) in (0..).zip(slots) {
                    visit(at, false);
                }
                return;
            };
            for ranking in rankings.iter() {
                (0..ranking.len())
                    .filter_map(|at| ranking.get(at))
                    .for_each(|at| {
                        visit(at, false);
                    });
            }
            return;
        };
        let mut walk = |chain: &Chain| {
            let mut at = chain.first;
            while let Some(slot) = slots.get(at as usize) {
                visit(at, false);
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
    mut visit: impl FnMut(u32, bool) -> bool,
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
        if visit(at, true) {
            return;
        }
        if let Some((rank, left)) = head(rankings[number], left - 1) {
            heads.push((rank, number, left));
        }
    }
}

/// Does the same as [`first_ranked`] in an epoch without rankings.
fn first_unranked(
    slots: &[Slot],
    audiences: &Audiences,
    query: &AttributionQuery,
    count: u32,
    mut visit: impl FnMut(u32, bool) -> bool,
) {
    let mut reached: Vec<Rank> = Vec::new();
    for (at, slot) in (0..).zip(slots).filter(|(_, slot)| slot.is_live()) {
        let (sites, callers) = audiences.members(slot.audience);
        if !named(sites, query.request.conversion_site) {
            continue;
        }
        let rankings = if callers.is_empty() {
            1
        } else {
            let asking = query.callers.iter().enumerate();
            let distinct = asking.filter(|(at, caller)| !query.callers[..*at].contains(caller));
            distinct
                .filter(|(_, caller)| named(callers, **caller))
                .count()
        };
        reached.extend(std::iter::repeat_n(slot.rank(at), rankings));
    }
    reached.sort_unstable_by(|one, other| other.cmp(one));
    for (_, _, at) in reached.into_iter().take(count as usize) {
        if visit(at, true) {
            return;
        }
    }
}

fn chains<'a, K>(
    names: &'a [K],
    chain: impl Fn(&K) -> Option<&'a Chain>,
) -> impl Iterator<Item = &'a Chain> {
    names.iter().filter_map(chain)
}

/// The total number of slots in the named chains. `None` if nothing is named, or if looking the
/// names up costs more than walking `walk` slots.
fn total<'a, K>(names: &'a [K], walk: u64, chain: impl Fn(&K) -> Option<&'a Chain>) -> Option<u64> {
    let worth = !names.is_empty() && (names.len() as u64) < walk;
    worth.then(|| chains(names, chain).map(|chain| u64::from(chain.len)).sum())
}
