//! Lists for the user: what happened, and which impressions are stored.

use bigbird::{EpochIndex, SiteId, Timestamp};

use super::UserAgent;
use crate::call::number_of;
use crate::history::HistoryEntry;
use crate::randomness::Randomness;
use crate::site::Site;
use crate::storage::{ListedRows, RowPlace, Storage, View, ViewRow};

/// The most entries that are examined for one page of the history of a site.
const EXAMINED: usize = 4096;

/// The entries that are read at a time while a page of history is filled.
const READ: usize = 512;

/// A stored impression, with the names of its sites, to show to the user.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of an impression")]
pub struct ListedImpression {
    pub epoch: EpochIndex,
    pub site: Site,
    pub intermediary: Option<Site>,
    /// The number of the user action.
    pub user_action: u64,
    pub timestamp: Timestamp,
    pub expires: Timestamp,
    pub match_value: u32,
    pub histogram_index: u32,
    pub priority: i32,
    pub conversion_sites: Vec<Site>,
    pub conversion_callers: Vec<Site>,
}

/// A page of a list, and the place before which there is more, if there is more.
pub type ListPage<T> = (Vec<T>, Option<RowPlace>);

impl<S: Storage, R: Randomness> UserAgent<S, R> {
    /// A page of history, newest first: at most `most` entries before the place `behind`. With a
    /// site, only entries about calls on that site or by that site. A page of a site can have fewer
    /// entries than `most`, or none, although there are more.
    ///
    /// This is for the user. No page may learn any of it.
    ///
    /// # Errors
    /// If the store failed.
    pub fn history(
        &mut self,
        behind: Option<RowPlace>,
        site: Option<&Site>,
        most: usize,
    ) -> Result<ListPage<HistoryEntry>, S::Error> {
        let view = self.storage.begin()?;
        let is_about = |entry: &HistoryEntry| {
            site.is_none_or(|site| [&entry.site, &entry.caller].contains(&site))
        };
        let mut entries: Vec<HistoryEntry> = Vec::new();
        let (mut next, mut examined) = (behind, 0);
        loop {
            let mut read: Vec<HistoryEntry> = Vec::new();
            let wanted = match site {
                Some(_) => READ,
                None => most,
            };
            let more = view.visit_last(ListedRows::History, next, wanted, &mut |row| {
                if let ViewRow::History(entry) = row {
                    read.push(entry.clone());
                }
            })?;
            read.sort_unstable_by_key(|entry| std::cmp::Reverse(entry.number));
            for entry in &read {
                examined += 1;
                next = Some(ViewRow::History(entry).place());
                if is_about(entry) {
                    entries.push(entry.clone());
                    if entries.len() >= most {
                        let is_last = read.last().map(|it| it.number) == Some(entry.number);
                        return Ok((entries, next.filter(|_| more || !is_last)));
                    }
                }
            }
            if !more {
                return Ok((entries, None));
            }
            if examined >= EXAMINED {
                return Ok((entries, next));
            }
        }
    }

    /// A page of the stored impressions, newest epoch first and newest first: at most `most` before
    /// the place `behind`.
    ///
    /// # Errors
    /// If the store failed.
    pub fn impressions(
        &mut self,
        behind: Option<RowPlace>,
        most: usize,
    ) -> Result<ListPage<ListedImpression>, S::Error> {
        let view = self.storage.begin()?;
        // Some rows of pruned epochs may not have been removed yet.
        let first = view.state()?.first_epoch;
        let mut found = Vec::new();
        let rows = ListedRows::ImpressionsFrom(first);
        let more = view.visit_last(rows, behind, most, &mut |row| {
            if let ViewRow::Impression(epoch, _, impression) = row
                && epoch >= first
            {
                found.push((
                    row.place(),
                    (impression.site, impression.intermediary),
                    ListedImpression {
                        epoch,
                        site: Site::from_stored(""),
                        intermediary: None,
                        user_action: number_of(impression.user_action),
                        timestamp: impression.timestamp,
                        expires: impression.expires,
                        match_value: impression.match_value,
                        histogram_index: impression.histogram_index,
                        priority: impression.priority,
                        conversion_sites: Vec::new(),
                        conversion_callers: Vec::new(),
                    },
                    (
                        impression.conversion_sites.to_vec(),
                        impression.conversion_callers.to_vec(),
                    ),
                ));
            }
        })?;
        found.sort_unstable_by_key(|(place, ..)| std::cmp::Reverse(*place));
        let last = found.last().map(|(place, ..)| *place);
        let name = |id: SiteId| -> Result<Site, S::Error> {
            let unknown = || Site::from_stored(format!("site {}", id.0));
            Ok(view.site(id)?.unwrap_or_else(unknown))
        };
        let names = |ids: Vec<SiteId>| {
            let mut names: Vec<Site> = ids.into_iter().map(name).collect::<Result<_, _>>()?;
            names.sort_unstable();
            Ok(names)
        };
        let mut listed = Vec::with_capacity(found.len());
        for (_, (site, intermediary), impression, (sites, callers)) in found {
            listed.push(ListedImpression {
                site: name(site)?,
                intermediary: intermediary.map(name).transpose()?,
                conversion_sites: names(sites)?,
                conversion_callers: names(callers)?,
                ..impression
            });
        }
        Ok((listed, last.filter(|_| more)))
    }
}
