//! The rows that a store keeps, as calls see them.

use bigbird::{EpochIndex, Filter, Impression, MicroEpsilon, SiteId, UserAction};

use super::StoredObject;
use crate::history::{HistoryEntry, HistoryKey};
use crate::site::Site;

/// The place of a row among the rows of its kind.
pub type RowPlace = [i64; 3];

/// Kinds of rows to visit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowSet {
    /// The names of sites.
    Names,
    /// Filters that were charged.
    Filters,
    /// Sites that were admitted under a user action.
    Admissions,
    /// Sites that the user closed.
    Closings,
    /// Attribution objects.
    Objects,
    /// Impressions. A store may visit more than the selected ones.
    Impressions(ImpressionSelection),
    /// Entries of history. No rule of the API reads them.
    History,
    /// Entries of history without what they tell, so that visiting all of them is cheap.
    HistoryKeys,
}

/// Kinds of rows that are listed for the user, newest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListedRows {
    /// Entries of history.
    History,
    /// The impressions of an epoch and of all later ones. A store may visit more.
    ImpressionsFrom(EpochIndex),
}

impl ListedRows {
    pub(super) fn all(self) -> RowSet {
        match self {
            Self::History => RowSet::History,
            Self::ImpressionsFrom(first) => RowSet::Impressions(ImpressionSelection::From(first)),
        }
    }
}

/// Impressions to visit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImpressionSelection {
    /// All of them.
    All,
    /// Those on a site, in an epoch or later.
    On(SiteId, EpochIndex),
    /// Those that a site saved, and those that list the site in their audience.
    Naming(SiteId),
    /// Those of an epoch and all later ones.
    From(EpochIndex),
}

/// A row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ViewRow<'r> {
    /// The name of a site.
    Name(SiteId, &'r Site),
    /// A filter, and what it has consumed in an epoch.
    Filter(EpochIndex, Filter, MicroEpsilon),
    /// A site that was admitted under a user action.
    Admission(UserAction, EpochIndex, SiteId),
    /// A site that the user closed, up to and including an epoch.
    Closing(SiteId, EpochIndex),
    /// An attribution object.
    Object(&'r StoredObject),
    /// An impression, with its epoch and its place in the order of saving.
    Impression(EpochIndex, u32, Impression<'r>),
    /// An entry of history.
    History(&'r HistoryEntry),
    /// An entry of history without what it tells.
    HistoryKey(HistoryKey<'r>),
}

impl ViewRow<'_> {
    /// The place of this row among the rows of its kind.
    pub fn place(&self) -> RowPlace {
        match *self {
            Self::Name(site, _) | Self::Closing(site, _) => [i64::from(site.0), 0, 0],
            Self::Filter(epoch, filter, _) => {
                let (kind, id) = filter.key();
                [epoch.0, i64::from(kind), id.cast_signed()]
            }
            // Actions that the application numbers have the highest bit set. Flipping it sorts them
            // last as signed numbers, too.
            Self::Admission(action, epoch, site) => {
                let action = (action.0 ^ 1 << 63).cast_signed();
                [epoch.0, action, i64::from(site.0)]
            }
            Self::Object(stored) => [stored.number.cast_signed(), 0, 0],
            Self::Impression(epoch, order, _) => [epoch.0, i64::from(order), 0],
            Self::History(entry) => [entry.number.cast_signed(), 0, 0],
            Self::HistoryKey(key) => [key.number.cast_signed(), 0, 0],
        }
    }

    /// Calls `each` with every site that the row names by number. These sites must keep their
    /// numbers.
    pub fn each_site(&self, each: &mut dyn FnMut(SiteId)) {
        match self {
            Self::Name(..) | Self::History(_) | Self::HistoryKey(_) => {}
            Self::Filter(_, filter, _) => filter.site().into_iter().for_each(each),
            Self::Admission(_, _, site) | Self::Closing(site, _) => each(*site),
            Self::Object(stored) => stored.object.sites().for_each(each),
            Self::Impression(_, _, impression) => {
                each(impression.site);
                each(impression.caller());
                let lists = [impression.conversion_sites, impression.conversion_callers];
                lists.into_iter().flatten().copied().for_each(each);
            }
        }
    }
}
