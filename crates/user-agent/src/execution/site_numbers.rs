//! The numbers by which the budget manager knows sites.

use std::collections::BTreeSet;

use bigbird::SiteId;

use super::Execution;
use crate::randomness::Randomness;
use crate::site::Site;
use crate::storage::{RowSet, View, ViewRow};

/// The number of a site about which nothing is stored. It matches nothing, and is never given to a
/// site.
const NOBODY: SiteId = SiteId(u32::MAX);

impl<V: View<E>, E, R: Randomness> Execution<'_, V, E, R> {
    /// The numbers of sites. With `give`, a site without a number gets one. Otherwise such a site
    /// has a number that matches nothing.
    pub(crate) fn site_ids(&mut self, sites: &[Site], give: bool) -> Result<Vec<SiteId>, E> {
        sites.iter().map(|site| self.site_id(site, give)).collect()
    }

    fn site_id(&mut self, site: &Site, give: bool) -> Result<SiteId, E> {
        if give {
            self.number(site)
        } else {
            Ok(self.view.site_id(site)?.unwrap_or(NOBODY))
        }
    }

    /// The number of a site. A site without a number gets one now. It keeps the number as long as
    /// any row names the site.
    pub(crate) fn number(&mut self, site: &Site) -> Result<SiteId, E> {
        if let Some(id) = self.view.site_id(site)? {
            return Ok(id);
        }
        let named = &self.changes.named;
        if let Some((id, _)) = named.iter().find(|(_, other)| other == site) {
            return Ok(*id);
        }
        let last = match named.last() {
            Some((id, _)) => Some(*id),
            None => self.view.last_site()?,
        };
        let id = match last {
            None => SiteId(0),
            Some(SiteId(last)) if last < NOBODY.0 - 1 => SiteId(last + 1),
            Some(_) => self.free_number()?,
        };
        self.changes.named.push((id, site.clone()));
        Ok(id)
    }

    /// The smallest number that no site has. It is needed once the largest number was given, after
    /// four billion names.
    fn free_number(&self) -> Result<SiteId, E> {
        let named = self.changes.named.iter().map(|(id, _)| *id);
        let mut taken: BTreeSet<SiteId> = named.collect();
        self.view.visit(RowSet::Names, &mut |row| {
            if let ViewRow::Name(id, _) = row {
                taken.insert(id);
            }
        })?;
        let free = (0..NOBODY.0).map(SiteId).find(|id| !taken.contains(id));
        Ok(free.unwrap_or(NOBODY))
    }
}
