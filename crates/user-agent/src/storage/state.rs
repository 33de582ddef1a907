//! The user agent's own state.

use bigbird::{EpochIndex, Policies, Policy, Timestamp};
use serde::{Deserialize, Serialize};

use crate::clock::Timeline;

/// The user agent's own state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceState {
    /// True if the user has not disabled the API.
    pub enabled: bool,
    /// The epochs and the rules of each. Empty until the first valid call while the API is enabled,
    /// or until the user first closes sites.
    pub timeline: Timeline,
    /// The first epoch that was not pruned. Earlier epochs never pay again. If epochs have not
    /// begun and this is 1, the store was reset, and epoch 0 will begin at the moment of
    /// `last_clear`.
    pub first_epoch: EpochIndex,
    /// The moment when browsing history was last cleared.
    pub last_clear: Option<Timestamp>,
    /// The latest moment of a conversion, of a shared conversion that was created, or of a share
    /// that was taken, whatever was found. Closing sites counts too. The moment is kept because a
    /// clock that steps back must not bring budgets back. If it were the moment of the latest
    /// charge, the content of one epoch would decide which other epochs are closed.
    pub latest: Option<Timestamp>,
    /// The latest moment of any valid call while the API was enabled, or of closing sites. Later
    /// epochs are empty, so new rules can begin there.
    pub latest_use: Option<Timestamp>,
    /// The next id of a user action. Ids are never used again.
    pub next_user_action: u64,
    /// The next number of an attribution object.
    pub next_object: u64,
}

impl Default for DeviceState {
    fn default() -> Self {
        Self {
            enabled: true,
            timeline: Timeline::default(),
            first_epoch: EpochIndex(i64::MIN),
            last_clear: None,
            latest: None,
            latest_use: None,
            next_user_action: 1,
            next_object: 1,
        }
    }
}

/// Every epoch keeps the rules it began with, until it is pruned.
impl Policies for DeviceState {
    fn policy(&self, epoch: EpochIndex) -> Option<&Policy> {
        let rules = self.timeline.rules(epoch)?;
        (epoch >= self.first_epoch).then_some(&rules.policy)
    }
}
