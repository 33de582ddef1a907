//! A stored impression, with its links in the chains of the index.

use super::audiences::Audiences;
use super::impression::Impression;
use crate::{SiteId, Timestamp, UserAction};

/// A stored impression.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    timestamp: Timestamp,
    expires: Timestamp,
    user_action: UserAction,
    pub(super) site: SiteId,
    pub(super) caller: SiteId,
    pub(super) match_value: u32,
    histogram_index: u32,
    priority: i32,
    /// The number of its audience. [`NONE`] if the impression was removed and the slot waits for
    /// compaction.
    pub(super) audience: u32,
    /// The slots before and after it in each of its chains.
    pub(super) before: [u32; 3],
    pub(super) after: [u32; 3],
}

/// The priority, then the time, then the position in the order of saving.
pub(super) type Rank = (i32, Timestamp, u32);

/// The absence of a slot or an audience.
pub(super) const NONE: u32 = u32::MAX;

/// The positions of the three chains in [`Slot::before`] and [`Slot::after`].
pub(super) const BY_SITE: usize = 0;
pub(super) const BY_CALLER: usize = 1;
pub(super) const BY_MATCH_VALUE: usize = 2;

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

    /// The rank in the order of attribution among the impressions of one epoch. The highest comes
    /// first.
    pub(super) fn rank(&self, at: u32) -> Rank {
        (self.priority, self.timestamp, at)
    }

    /// The number of units that it counts against the limit of its epoch.
    pub(super) fn units(&self, audiences: &Audiences) -> u32 {
        // The same as `Impression::units`, without reading the lists.
        1 + u32::from(self.caller != self.site) + audiences.size(self.audience)
    }

    pub(super) fn is_live(&self) -> bool {
        self.audience != NONE
    }

    #[inline]
    pub(super) fn impression<'a>(&self, audiences: &'a Audiences) -> Impression<'a> {
        let (conversion_sites, conversion_callers) = audiences.members(self.audience);
        self.open_to(conversion_sites, conversion_callers)
    }

    /// The impression, with these lists as its audience.
    pub(super) fn open_to<'a>(
        &self,
        conversion_sites: &'a [SiteId],
        conversion_callers: &'a [SiteId],
    ) -> Impression<'a> {
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
