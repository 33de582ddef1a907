//! The capacity of each kind of filter.

use crate::{Capacity, FilterKind};

/// The capacity of each kind of filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub struct Capacities {
    /// The capacity of each querier budget.
    pub querier_budget: Capacity,
    /// The capacity of the global budget.
    pub global_budget: Capacity,
    /// The capacity of each impression-site quota.
    pub impression_site_quota: Capacity,
    /// The capacity of each conversion-site quota.
    pub conversion_site_quota: Capacity,
    /// The capacity of each user-action budget. It is unlimited in every profile, which means that
    /// there are no such budgets.
    pub user_action_budget: Capacity,
}

impl Capacities {
    /// The capacity of the filters of a kind.
    pub const fn of(&self, kind: FilterKind) -> Capacity {
        match kind {
            FilterKind::QuerierBudget => self.querier_budget,
            FilterKind::GlobalBudget => self.global_budget,
            FilterKind::ImpressionSiteQuota => self.impression_site_quota,
            FilterKind::ConversionSiteQuota => self.conversion_site_quota,
            FilterKind::UserActionBudget => self.user_action_budget,
        }
    }

    pub(super) fn of_mut(&mut self, kind: FilterKind) -> &mut Capacity {
        match kind {
            FilterKind::QuerierBudget => &mut self.querier_budget,
            FilterKind::GlobalBudget => &mut self.global_budget,
            FilterKind::ImpressionSiteQuota => &mut self.impression_site_quota,
            FilterKind::ConversionSiteQuota => &mut self.conversion_site_quota,
            FilterKind::UserActionBudget => &mut self.user_action_budget,
        }
    }
}
