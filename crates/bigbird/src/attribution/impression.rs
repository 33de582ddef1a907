//! Impressions: ads that were shown, as sites save them.

use crate::{SiteId, Timestamp, UserAction};

/// A saved impression (the draft's section Impression Store, Contents).
///
/// ```
/// use bigbird::{Impression, SiteId, Timestamp, UserAction};
///
/// let (news, shop) = (SiteId(1), SiteId(2));
/// let impression = Impression {
///     conversion_sites: &[shop],
///     ..Impression::new(news, UserAction(1), Timestamp(0), 3)
/// };
/// assert_eq!(impression.caller(), news);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Impression<'a> {
    /// The site where the ad was shown.
    pub site: SiteId,
    /// The third party that saved it from a frame, or `None` if the site did.
    pub intermediary: Option<SiteId>,
    /// The user action that caused it.
    pub user_action: UserAction,
    /// The time at which it was saved.
    pub timestamp: Timestamp,
    /// The last moment at which it can match.
    pub expires: Timestamp,
    /// A number that requests can select impressions by.
    pub match_value: u32,
    /// The histogram bucket that its credit goes to.
    pub histogram_index: u32,
    /// The priority. Higher priorities get credit first.
    pub priority: i32,
    /// The conversion sites that may measure the impression. If empty, every site may.
    pub conversion_sites: &'a [SiteId],
    /// The sites that may call for a conversion that measures the impression. If empty, every site
    /// may.
    pub conversion_callers: &'a [SiteId],
}

impl Impression<'_> {
    /// An impression that anyone may measure, with match value 0 and priority 0, that never
    /// expires.
    pub const fn new(
        site: SiteId,
        user_action: UserAction,
        timestamp: Timestamp,
        histogram_index: u32,
    ) -> Self {
        Self {
            site,
            intermediary: None,
            user_action,
            timestamp,
            expires: Timestamp(i64::MAX),
            match_value: 0,
            histogram_index,
            priority: 0,
            conversion_sites: &[],
            conversion_callers: &[],
        }
    }

    /// The site that saved it: the intermediary if there is one, otherwise the site.
    #[inline]
    pub fn caller(&self) -> SiteId {
        self.intermediary.unwrap_or(self.site)
    }

    /// The number of units that it counts against the limit of its epoch: one for itself, and one
    /// for each site that it names in addition to its own.
    pub fn units(&self) -> u32 {
        let lists = self.conversion_sites.len() + self.conversion_callers.len();
        let names = lists + usize::from(self.intermediary.is_some());
        u32::try_from(names).unwrap_or(u32::MAX).saturating_add(1)
    }

    /// The effect on this impression when a site asks to be forgotten (the draft's section
    /// `Clear-Site-Data` Integration, "clear impressions for a site").
    pub fn without(&self, site: SiteId) -> ForgetEffect {
        if self.caller() == site {
            return ForgetEffect::Removed;
        }
        if !self.conversion_sites.contains(&site) && !self.conversion_callers.contains(&site) {
            return ForgetEffect::Untouched;
        }
        let without = |list: &[SiteId]| -> Option<Vec<SiteId>> {
            let left: Vec<_> = list.iter().copied().filter(|id| *id != site).collect();
            // An empty list means everyone, so a list must not become empty.
            (list.is_empty() || !left.is_empty()).then_some(left)
        };
        match (
            without(self.conversion_sites),
            without(self.conversion_callers),
        ) {
            (Some(conversion_sites), Some(conversion_callers)) => {
                ForgetEffect::Restricted(Audience {
                    conversion_sites,
                    conversion_callers,
                })
            }
            _ => ForgetEffect::Removed,
        }
    }
}

/// The effect on an impression when a site asks to be forgotten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ForgetEffect {
    /// No effect: the impression names the site at most as the place where it was shown.
    Untouched,
    /// The site is removed from the impression's lists. The value is the remaining audience.
    Restricted(Audience),
    /// The impression is removed: the site saved it, or nobody but that site may measure the
    /// impression.
    Removed,
}

/// The sites that may measure an impression, as sorted lists without repetition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub struct Audience {
    /// The conversion sites that may measure the impression. If empty, every site may.
    pub conversion_sites: Vec<SiteId>,
    /// The sites that may call for a conversion that measures the impression. If empty, every site
    /// may.
    pub conversion_callers: Vec<SiteId>,
}
