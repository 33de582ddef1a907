//! Impressions: what a site saved when it showed an ad.

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
    /// Where the ad was shown.
    pub site: SiteId,
    /// The third party that saved it from a frame, if it was not the site itself.
    pub intermediary: Option<SiteId>,
    /// The user action that caused it.
    pub user_action: UserAction,
    /// When it was saved.
    pub timestamp: Timestamp,
    /// The last moment at which it can match.
    pub expires: Timestamp,
    /// A number that requests can select impressions by.
    pub match_value: u32,
    /// The histogram bucket that its credit goes to.
    pub histogram_index: u32,
    /// Higher priorities get credit first.
    pub priority: i32,
    /// The conversion sites that may measure it; every site if empty.
    pub conversion_sites: &'a [SiteId],
    /// Who may call for a conversion that measures it; everyone if empty.
    pub conversion_callers: &'a [SiteId],
}

impl Impression<'_> {
    /// An impression that anyone may measure, of match value and priority 0, that never expires.
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

    /// Who saved it: the intermediary, or else the site.
    pub fn caller(&self) -> SiteId {
        self.intermediary.unwrap_or(self.site)
    }

    /// What it counts against the limit of its epoch: one for itself, and one for each name that it
    /// brings besides its site.
    pub fn units(&self) -> u32 {
        let lists = self.conversion_sites.len() + self.conversion_callers.len();
        let names = lists + usize::from(self.intermediary.is_some());
        u32::try_from(names).unwrap_or(u32::MAX).saturating_add(1)
    }

    /// What becomes of it when a site asks to be forgotten (the draft's section `Clear-Site-Data`
    /// Integration, "clear impressions for a site").
    pub fn without(&self, site: SiteId) -> Forgetting {
        if self.caller() == site {
            return Forgetting::Removed;
        }
        if !self.conversion_sites.contains(&site) && !self.conversion_callers.contains(&site) {
            return Forgetting::Untouched;
        }
        let without = |list: &[SiteId]| -> Option<Vec<SiteId>> {
            let left: Vec<_> = list.iter().copied().filter(|id| *id != site).collect();
            // An empty list names everybody.
            (list.is_empty() || !left.is_empty()).then_some(left)
        };
        match (
            without(self.conversion_sites),
            without(self.conversion_callers),
        ) {
            (Some(conversion_sites), Some(conversion_callers)) => {
                Forgetting::Restricted(Audience {
                    conversion_sites,
                    conversion_callers,
                })
            }
            _ => Forgetting::Removed,
        }
    }
}

/// What becomes of an impression when a site asks to be forgotten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Forgetting {
    /// Nothing: it does not name the site, other than as the place where it was shown.
    Untouched,
    /// The site is taken off its lists.
    Restricted(Audience),
    /// It goes: the site saved it, or nobody else may measure it.
    Removed,
}

/// Who may measure an impression, as sorted lists without repetition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub struct Audience {
    /// The conversion sites that may measure it; every site if empty.
    pub conversion_sites: Vec<SiteId>,
    /// Who may call for a conversion that measures it; everyone if empty.
    pub conversion_callers: Vec<SiteId>,
}
