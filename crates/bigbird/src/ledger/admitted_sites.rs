//! The sites that were admitted under each user action of one epoch.

use super::domain_cap::AdmissionState;
use crate::small_map::SmallMap;
use crate::{SiteId, UserAction};

/// `accessed[user action]` of one epoch: a chain of sites for each action.
#[derive(Debug, Clone, Default)]
pub(super) struct AdmittedSites {
    /// The newest link of each action's chain.
    pub(super) newest: SmallMap<UserAction, u32>,
    links: Vec<(SiteId, u32)>,
    /// The greatest action. Ids increase, so most actions that are asked about are new ones, which
    /// need not be looked up.
    greatest: Option<UserAction>,
}

/// The end of a chain.
const END: u32 = u32::MAX;

impl AdmittedSites {
    pub(super) fn under(&self, action: UserAction) -> impl Iterator<Item = SiteId> + use<'_> {
        let mut next = self.newest.get(action).copied().unwrap_or(END);
        std::iter::from_fn(move || {
            let &(site, earlier) = self.links.get(next as usize)?;
            next = earlier;
            Some(site)
        })
    }

    /// True if the action is greater than all that admitted a site.
    #[inline]
    fn is_new(&self, action: UserAction) -> bool {
        self.greatest.is_none_or(|greatest| action > greatest)
    }

    #[inline]
    pub(super) fn about(&self, action: UserAction, site: SiteId) -> AdmissionState {
        let mut about = AdmissionState::NONE;
        if self.is_new(action) {
            return about;
        }
        for other in self.under(action) {
            about.admitted |= other == site;
            about.sites += 1;
        }
        about
    }

    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "four billion admissions in one epoch would not fit in memory"
    )]
    pub(super) fn push(&mut self, action: UserAction, site: SiteId) {
        let link = self.links.len() as u32;
        if self.is_new(action) {
            self.greatest = Some(action);
            self.newest.push(action, link);
            self.links.push((site, END));
            return;
        }
        let (at, _) = self.newest.entry(action, END);
        let newest = self.newest.value_mut(at);
        self.links.push((site, *newest));
        *newest = link;
    }

    pub(super) fn forget_before(&mut self, action: UserAction) {
        let kept: Vec<(UserAction, Vec<SiteId>)> = self
            .newest
            .iter()
            .filter(|(other, _)| **other >= action)
            .map(|(&other, _)| (other, self.under(other).collect()))
            .collect();
        self.clear();
        for (action, sites) in kept {
            for site in sites.into_iter().rev() {
                self.push(action, site);
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.newest.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.newest.clear();
        self.links.clear();
        self.greatest = None;
    }
}
