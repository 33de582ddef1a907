//! Rankings: the impressions that one pair of a conversion site and a caller may measure, in the
//! order of attribution.

use std::collections::VecDeque;

use super::index::Index;
use super::query::AttributionQuery;
use super::slot::Slot;
use crate::SiteId;

/// A key of the index: a conversion site, or any site, together with a caller, or any caller. Each
/// impression is listed under every pair that may measure that impression. So a query finds
/// everything that it may measure, and nothing more, under a few keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ReachKey {
    site: u64,
    caller: u64,
}

/// Stands for any conversion site or any caller. No site has so large a number.
const ANY: u64 = u64::MAX;

impl ReachKey {
    pub(super) fn new(site: Option<SiteId>, caller: Option<SiteId>) -> Self {
        let number = |site: SiteId| u64::from(site.0);
        Self {
            site: site.map_or(ANY, number),
            caller: caller.map_or(ANY, number),
        }
    }

    /// Every pair that may measure an impression with this audience.
    pub(super) fn of(sites: &[SiteId], callers: &[SiteId]) -> impl Iterator<Item = Self> {
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

/// The rankings that together contain everything that a query may measure. An impression can be in
/// more than one of them only if the query has several callers.
pub(super) struct Rankings<'i> {
    /// The rankings that are open to every caller, and those of the first caller.
    first: [Option<&'i Ranking>; 4],
    /// The rankings of the other callers.
    others: Vec<&'i Ranking>,
}

impl<'i> Rankings<'i> {
    pub(super) fn of(index: &'i Index, query: &AttributionQuery) -> Self {
        let site = Some(query.request.conversion_site);
        let ranking = |site, caller| index.reach.get(&ReachKey::new(site, caller));
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

    pub(super) fn iter(&self) -> impl Iterator<Item = &'i Ranking> {
        let first = self.first.iter().copied().flatten();
        first.chain(self.others.iter().copied())
    }
}

/// Slots in the order of attribution, reversed: the first to get credit is at the end.
#[derive(Debug, Clone)]
pub(super) enum Ranking {
    /// Saves memory, because most audiences in the long tail have one impression.
    One(u32),
    Many(VecDeque<u32>),
}

impl Ranking {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Many(list) => list.len(),
        }
    }

    pub(super) fn get(&self, at: usize) -> Option<u32> {
        match self {
            Self::One(slot) => (at == 0).then_some(*slot),
            Self::Many(list) => list.get(at).copied(),
        }
    }

    pub(super) fn insert(&mut self, slots: &[Slot], at: u32, spare: &mut Vec<VecDeque<u32>>) {
        if let Self::One(first) = self {
            let mut list = spare.pop().unwrap_or_default();
            list.push_back(*first);
            *self = Self::Many(list);
        }
        let Self::Many(list) = self else { return };
        let rank = |&at: &u32| slots[at as usize].rank(at);
        let own = rank(&at);
        match list.back() {
            // The common case, because most impressions are the newest and have the same priority.
            Some(last) if rank(last) < own => list.push_back(at),
            _ => {
                let place = list.partition_point(|other| rank(other) < own);
                list.insert(place, at);
            }
        }
    }

    /// The buffer, emptied.
    pub(super) fn into_buffer(self) -> Option<VecDeque<u32>> {
        match self {
            Self::One(_) => None,
            Self::Many(mut list) => {
                list.clear();
                Some(list)
            }
        }
    }

    /// Removes a slot. Returns true if any are left.
    pub(super) fn remove(&mut self, slots: &[Slot], at: u32) -> bool {
        let Self::Many(list) = self else { return false };
        let rank = |&at: &u32| slots[at as usize].rank(at);
        if let Ok(place) = list.binary_search_by_key(&rank(&at), rank) {
            list.remove(place);
        }
        !list.is_empty()
    }
}
