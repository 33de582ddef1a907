//! The audiences of an epoch's impressions, each stored once.

use std::cmp::Ordering;
use std::hash::BuildHasher;

use hashbrown::HashTable;
use rustc_hash::FxBuildHasher;

use super::slot::NONE;
use crate::SiteId;

/// The distinct audiences of an epoch's impressions. An audience says who may measure an
/// impression, by a list of conversion sites and a list of conversion callers. Impressions with the
/// same audience share its lists.
#[derive(Debug, Clone, Default)]
pub(super) struct Audiences {
    lists: Vec<SiteId>,
    spans: Vec<Span>,
    /// Points into `spans` if there are more than [`COMPARED`].
    table: HashTable<u32>,
}

#[derive(Debug, Clone, Copy)]
struct Span {
    begin: u32,
    /// The end of the conversion sites and the beginning of the conversion callers.
    middle: u32,
    end: u32,
}

/// Up to this many audiences, comparing with each one is faster than hashing.
const COMPARED: usize = 16;

impl Audiences {
    /// The number of an audience. A new audience is added. The order and repetition of its members
    /// do not matter.
    pub(super) fn intern(&mut self, sites: &[SiteId], callers: &[SiteId]) -> u32 {
        // Consecutive impressions often have the same audience.
        if let Some(newest) = self.newest()
            && self.members(newest) == (sites, callers)
        {
            return newest;
        }
        let increasing = |list: &[SiteId]| list.len() < 2 || list.is_sorted_by(|a, b| a < b);
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

    /// The audience that was added last.
    fn newest(&self) -> Option<u32> {
        let newest = self.spans.len().checked_sub(1)?;
        u32::try_from(newest).ok()
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the limit on impressions keeps the lists far below four billion sites"
    )]
    fn intern_sets(&mut self, sites: &[SiteId], callers: &[SiteId]) -> u32 {
        let known = self.spans.len();
        let same = |id: u32| self.members(id) == (sites, callers);
        let found = if known <= COMPARED {
            (0..known as u32).find(|&id| same(id))
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

    /// The number of sites and callers that an audience names.
    #[inline]
    pub(super) fn size(&self, id: u32) -> u32 {
        let span = self.spans.get(id as usize);
        span.map_or(0, |span| span.end - span.begin)
    }

    /// A function that maps the number of an audience here to its number in `new`. The first call
    /// for an audience adds it to `new`.
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
