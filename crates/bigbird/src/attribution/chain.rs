//! Chains: the impressions of an epoch that share a site, a caller or a match value.

use super::eviction::SiteSize;
use super::slot::{NONE, Slot};

/// The slots that share one property, oldest first.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chain {
    pub(super) first: u32,
    last: u32,
    pub(super) len: u32,
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
    /// Appends a slot.
    pub(super) fn push(&mut self, slots: &mut [Slot], by: usize, at: u32) {
        slots[at as usize].before[by] = self.last;
        slots[at as usize].after[by] = NONE;
        match slots.get_mut(self.last as usize) {
            Some(last) => last.after[by] = at,
            None => self.first = at,
        }
        self.last = at;
        self.len += 1;
    }

    /// Removes a slot.
    pub(super) fn remove(&mut self, slots: &mut [Slot], by: usize, at: u32) {
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

/// The chain of a site, and the units of its impressions.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SiteChain {
    pub(super) chain: Chain,
    pub(super) units: u32,
}

impl SiteChain {
    pub(super) fn size(&self) -> SiteSize {
        SiteSize {
            units: self.units,
            oldest: self.chain.first,
        }
    }
}
