//! Filters: the kinds of filters, their balances, and the checks that ask them to pay.

use std::fmt;

use crate::{Capacity, EpochIndex, Limit, MicroEpsilon, SiteId, UserAction};

/// One filter of an epoch: a capacity, and how much of it has been consumed (the paper's Def. of
/// the per-device-epoch state).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub enum Filter {
    /// The budget of one querier. It bounds what that querier learns from its own reports. It does
    /// not bound what the querier learns from shares of an attribution object: see
    /// [`AttributionObject`](crate::AttributionObject).
    QuerierBudget(SiteId),
    /// The budget of the whole device. It bounds what all queriers together learn.
    GlobalBudget,
    /// The quota of one impression site: how much of the global budget reports about its
    /// ads can use up. It protects utility, not privacy.
    ImpressionSiteQuota(SiteId),
    /// The quota of one conversion site: how much of the global budget conversions there can
    /// consume. It protects utility, not privacy.
    ConversionSiteQuota(SiteId),
    /// The budget of one user action: an alternative to the domain cap, kept for comparison
    /// (appendix "Examples of Cap Interactions", corrected form). There is no such filter unless a
    /// policy sets its capacity.
    UserActionBudget(UserAction),
}

impl Filter {
    /// The site that the filter belongs to, or `None` if it does not belong to a site.
    pub const fn site(self) -> Option<SiteId> {
        match self {
            Self::QuerierBudget(site)
            | Self::ImpressionSiteQuota(site)
            | Self::ConversionSiteQuota(site) => Some(site),
            Self::GlobalBudget | Self::UserActionBudget(_) => None,
        }
    }

    /// The number of the filter's kind, in the order of the kinds, and the number of its site or
    /// user action. Stores use it as a key.
    #[inline]
    pub const fn key(self) -> (u8, u64) {
        match self {
            Self::QuerierBudget(site) => (0, site.0 as u64),
            Self::GlobalBudget => (1, 0),
            Self::ImpressionSiteQuota(site) => (2, site.0 as u64),
            Self::ConversionSiteQuota(site) => (3, site.0 as u64),
            Self::UserActionBudget(action) => (4, action.0),
        }
    }

    /// The filter with this [`key`](Self::key), or `None` if there is no such filter.
    pub fn from_key(kind: u8, id: u64) -> Option<Self> {
        let site = || u32::try_from(id).ok().map(SiteId);
        match kind {
            0 => site().map(Self::QuerierBudget),
            1 => (id == 0).then_some(Self::GlobalBudget),
            2 => site().map(Self::ImpressionSiteQuota),
            3 => site().map(Self::ConversionSiteQuota),
            4 => Some(Self::UserActionBudget(UserAction(id))),
            _ => None,
        }
    }

    /// The kind of this filter.
    pub const fn kind(self) -> FilterKind {
        match self {
            Self::QuerierBudget(_) => FilterKind::QuerierBudget,
            Self::GlobalBudget => FilterKind::GlobalBudget,
            Self::ImpressionSiteQuota(_) => FilterKind::ImpressionSiteQuota,
            Self::ConversionSiteQuota(_) => FilterKind::ConversionSiteQuota,
            Self::UserActionBudget(_) => FilterKind::UserActionBudget,
        }
    }
}

/// A kind of filter. All filters of one kind have the same capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FilterKind {
    /// See [`Filter::QuerierBudget`].
    QuerierBudget,
    /// See [`Filter::GlobalBudget`].
    GlobalBudget,
    /// See [`Filter::ImpressionSiteQuota`].
    ImpressionSiteQuota,
    /// See [`Filter::ConversionSiteQuota`].
    ConversionSiteQuota,
    /// See [`Filter::UserActionBudget`].
    UserActionBudget,
}

impl FilterKind {
    /// Every kind, in the order in which causes are reported.
    pub const ALL: [Self; 5] = [
        Self::QuerierBudget,
        Self::GlobalBudget,
        Self::ImpressionSiteQuota,
        Self::ConversionSiteQuota,
        Self::UserActionBudget,
    ];

    /// The limit that the capacity of these filters sets. It has the same name as the filters.
    pub const fn limit(self) -> Limit {
        match self {
            Self::QuerierBudget => Limit::QuerierBudget,
            Self::GlobalBudget => Limit::GlobalBudget,
            Self::ImpressionSiteQuota => Limit::ImpressionSiteQuota,
            Self::ConversionSiteQuota => Limit::ConversionSiteQuota,
            Self::UserActionBudget => Limit::UserActionBudget,
        }
    }
}

impl fmt::Display for FilterKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.limit().fmt(f)
    }
}

/// The capacity of a filter, and how much of it is consumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Balance {
    /// The capacity.
    pub capacity: Capacity,
    /// The amount that the filter has paid so far. It is always zero for an unlimited filter, which
    /// keeps no record.
    pub consumed: MicroEpsilon,
}

impl Balance {
    /// The amount that is left, or `None` if the filter is unlimited.
    pub fn remaining(self) -> Option<MicroEpsilon> {
        self.capacity
            .amount()
            .map(|capacity| capacity.saturating_sub(self.consumed))
    }

    /// True if the filter can pay `asked`.
    pub fn covers(self, asked: MicroEpsilon) -> bool {
        self.capacity.covers(self.consumed, asked)
    }
}

/// A loss that one filter of one epoch pays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Charge {
    /// The epoch whose filter pays.
    pub epoch: EpochIndex,
    /// The filter that pays.
    pub filter: Filter,
    /// The amount.
    pub amount: MicroEpsilon,
}

/// The question whether a filter can pay an amount, with the filter's balance at that time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Check {
    /// The epoch.
    pub epoch: EpochIndex,
    /// The filter.
    pub filter: Filter,
    /// The balance of the filter before it pays.
    pub balance: Balance,
    /// The amount asked.
    pub asked: MicroEpsilon,
}

impl Check {
    /// A check for which the filter's consumption has not been read yet. Until it is read, the
    /// filter counts as depleted, so that a store that forgets a check does not let it pass.
    pub fn new(epoch: EpochIndex, filter: Filter, capacity: Capacity, asked: MicroEpsilon) -> Self {
        let balance = Balance {
            capacity,
            consumed: MicroEpsilon::MAX,
        };
        Self {
            epoch,
            filter,
            balance,
            asked,
        }
    }

    /// The charge that this check is about.
    pub fn charge(&self) -> Charge {
        Charge {
            epoch: self.epoch,
            filter: self.filter,
            amount: self.asked,
        }
    }

    /// True if the filter can pay.
    pub fn fits(&self) -> bool {
        self.balance.covers(self.asked)
    }

    /// The amount that is missing, or zero if the filter can pay.
    pub fn short_by(&self) -> MicroEpsilon {
        match self.balance.remaining() {
            Some(remaining) => self.asked.saturating_sub(remaining),
            None => MicroEpsilon::ZERO,
        }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Balance { capacity, consumed } = self.balance;
        write!(f, "{}", self.filter.kind())?;
        match self.filter {
            Filter::QuerierBudget(SiteId(site))
            | Filter::ImpressionSiteQuota(SiteId(site))
            | Filter::ConversionSiteQuota(SiteId(site)) => write!(f, " of site #{site}")?,
            Filter::UserActionBudget(UserAction(action)) => write!(f, " of action #{action}")?,
            Filter::GlobalBudget => {}
        }
        write!(
            f,
            " in epoch {}: capacity {capacity}, consumed {consumed}, asked for {}",
            self.epoch.0, self.asked
        )
    }
}
