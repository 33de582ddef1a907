//! The changes of a call, as data.

use bigbird::attribution::{Audience, ImpressionEdit};
use bigbird::{
    AttributionObject, EpochIndex, Impression, LedgerChanges, SiteId, Timestamp, UserAction,
};
use serde::{Deserialize, Serialize};

use super::{DeviceState, ViewRow};
use crate::history::HistoryEntry;
use crate::shared::SharedConversion;
use crate::site::Site;

/// The changes of one call: rows, and nothing that could be refused. A store applies them in the
/// order of the fields.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ChangeSet {
    /// The new state, if it changes.
    pub state: Option<DeviceState>,
    /// Sites that get a number.
    pub named: Vec<(SiteId, Site)>,
    /// The charges of filters, and the sites that are admitted under user actions.
    pub ledger: LedgerChanges,
    /// Impressions to save, each at the end of its epoch.
    pub saved: Vec<SavedImpression>,
    /// Impressions to remove, or whose audience becomes smaller. Places are those of the view.
    pub edited: Vec<ImpressionEdit>,
    /// Sites to close up to and including an epoch. An entry replaces the earlier one of its site.
    pub closed: Vec<(SiteId, EpochIndex)>,
    /// Attribution objects to store. Each replaces an object with its number or its handle.
    pub objects: Vec<StoredObject>,
    /// Attribution objects to remove, by number.
    pub dropped_objects: Vec<u64>,
    /// Entries of history to store. They name sites by host, so they keep no name in use.
    pub recorded: Vec<HistoryEntry>,
    /// Entries of history to remove, by number.
    pub unrecorded: Vec<u64>,
    /// True if every entry of history is removed.
    pub history_cleared: bool,
    /// Epochs whose rows are removed.
    pub forgotten: Option<ForgottenEpochs>,
    /// Sites that lose their number.
    pub unnamed: Vec<SiteId>,
    /// True if removed rows must be erased for good, so that nobody finds them on the disk. This is
    /// the case if they were cleared or cleaned up, and not just evicted.
    pub erase: bool,
}

impl ChangeSet {
    /// Calls `each` with every site that the changes name by number.
    pub(crate) fn each_site(&self, each: &mut dyn FnMut(SiteId)) {
        self.named.iter().for_each(|(id, _)| each(*id));
        let charged = self.ledger.charges.iter();
        charged
            .filter_map(|it| it.filter.site())
            .for_each(&mut *each);
        self.ledger.admissions.iter().for_each(|it| each(it.site));
        for saved in &self.saved {
            ViewRow::Impression(saved.epoch, 0, saved.impression()).each_site(each);
        }
        for audience in self.edited.iter().filter_map(|edit| edit.audience.as_ref()) {
            let lists = [&audience.conversion_sites, &audience.conversion_callers];
            lists.into_iter().flatten().copied().for_each(&mut *each);
        }
        self.closed.iter().for_each(|(site, _)| each(*site));
        for stored in &self.objects {
            ViewRow::Object(stored).each_site(each);
        }
    }
}

/// Epochs whose rows are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ForgottenEpochs {
    /// Every row of an epoch before this one is removed: filters, admissions, impressions, sites
    /// closed until one of these epochs, and objects created in one of them. These epochs never pay
    /// again.
    pub pruned: EpochIndex,
    /// No request can reach an epoch before this one, because time has passed. Such an epoch is not
    /// closed unless it is before `pruned`, so that a wrong clock does not stop the API for good.
    /// Its admissions and impressions are removed. What it paid stays, and so do sites closed until
    /// then.
    pub unreachable: EpochIndex,
    /// Entries of history of epochs before this one are removed, because no request can reach these
    /// epochs any more. An epoch that the user cleared does not count: its entries went at once,
    /// and what happens in the rest of it is shown like anything else.
    pub history: EpochIndex,
    /// The most rows of each kind that are removed at a time, except objects. A store that can
    /// remove all of them in a moment may remove more.
    pub most: u32,
}

/// An impression to save.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the fields are those of an impression")]
pub struct SavedImpression {
    /// The epoch it is saved in.
    pub epoch: EpochIndex,
    pub site: SiteId,
    pub intermediary: Option<SiteId>,
    pub user_action: UserAction,
    pub timestamp: Timestamp,
    pub expires: Timestamp,
    pub match_value: u32,
    pub histogram_index: u32,
    pub priority: i32,
    pub audience: Audience,
}

impl SavedImpression {
    /// The impression.
    pub fn impression(&self) -> Impression<'_> {
        Impression {
            intermediary: self.intermediary,
            expires: self.expires,
            match_value: self.match_value,
            priority: self.priority,
            conversion_sites: &self.audience.conversion_sites,
            conversion_callers: &self.audience.conversion_callers,
            ..Impression::new(
                self.site,
                self.user_action,
                self.timestamp,
                self.histogram_index,
            )
        }
    }
}

/// An attribution object in a store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredObject {
    /// The number under which the object was created. A newer object has a larger number.
    pub number: u64,
    /// The handle by which sites name the object.
    pub shared: SharedConversion,
    /// The object.
    pub object: AttributionObject,
}
