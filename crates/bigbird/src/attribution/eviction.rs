//! Eviction: the limit on the impressions of an epoch, and which impression is removed when the
//! epoch is over its limit.
//!
//! The limit is per epoch, so that what is kept in one epoch never depends on another. It is
//! counted in units, because the names that an impression carries take room too. While an epoch is
//! over its limit, the oldest impression of its largest site is removed. [`SiteSize`] defines the
//! largest site.
//!
//! This module has the limit and the order. Whoever saves applies them: the user agent in the
//! transaction of the call, on any store (`make_room` in `crates/user-agent/src/agent/mod.rs`); a
//! [`Device`](crate::Device) without a user agent in
//! [`ImpressionStore::save`](super::ImpressionStore).

use std::cmp::Ordering;
use std::num::NonZeroU32;

/// The limit on stored impressions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreLimits {
    /// The largest number of [units](super::Impression::units) in one epoch: one for each
    /// impression, and one for each further site that it names. In an epoch with n sites, only a
    /// site with more than limit ÷ n units loses impressions.
    ///
    /// When an epoch has more units than this, the oldest impression of the largest site is
    /// removed, until the rest fits. Among sites of equal size, the one with the older oldest
    /// impression counts as larger. So a flood takes nothing from a site that has no more than its
    /// fair part of the limit. An epoch never evicts the impressions of another: what is kept
    /// in an epoch is a function of what was saved in it.
    pub units_per_epoch: NonZeroU32,
}

impl Default for StoreLimits {
    /// 100,000 units per epoch: 1,000 impressions for each of 100 sites.
    fn default() -> Self {
        Self {
            units_per_epoch: NonZeroU32::MIN.saturating_add(99_999),
        }
    }
}

impl StoreLimits {
    /// True if an epoch with this many units is over its limit and must evict an impression.
    pub fn is_exceeded_by(&self, units: u32) -> bool {
        units > self.units_per_epoch.get()
    }
}

/// The size of a site in an epoch. Of two sites, the one with more units is larger. At equal units,
/// the one with the older oldest impression is larger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SiteSize {
    /// The total number of units of its impressions.
    pub units: u32,
    /// The position of its oldest impression in the order of saving.
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
