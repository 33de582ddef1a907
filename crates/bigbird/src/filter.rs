//! Filters: what each of them is for, and what it says when it is asked to pay.

use std::fmt;

use crate::{Capacity, EpochIndex, MicroEpsilon, SiteId, UserAction};

/// One filter of an epoch: a capacity, and what has been consumed of it (the paper's Def. of the
/// per-device-epoch state).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub enum Filter {
    /// The budget of one querier. It bounds what reports of its own reveal to that querier. (Of
    /// a shared attribution it bounds less: see [`AttributionObject`](crate::AttributionObject).)
    Querier(SiteId),
    /// The budget of the whole device. It bounds what all queriers together learn.
    Global,
    /// The quota of one impression site: how much of the global budget it can help consume by
    /// showing ads. It protects utility, not privacy.
    ImpressionSite(SiteId),
    /// The quota of one conversion site: how much of the global budget conversions there can
    /// consume. It protects utility, not privacy.
    ConversionSite(SiteId),
    /// The budget of one user action: an alternative to the domain cap, kept for comparison
    /// (appendix "Examples of Cap Interactions", corrected form). Off unless a policy sets it.
    UserAction(UserAction),
}

impl Filter {
    /// The site it belongs to, if it is a site's.
    pub const fn site(self) -> Option<SiteId> {
        match self {
            Self::Querier(site) | Self::ImpressionSite(site) | Self::ConversionSite(site) => {
                Some(site)
            }
            Self::Global | Self::UserAction(_) => None,
        }
    }

    /// The number of its kind, in the order of the kinds, and of its site or user action: for stores.
    pub const fn key(self) -> (u8, u64) {
        match self {
            Self::Querier(site) => (0, site.0 as u64),
            Self::Global => (1, 0),
            Self::ImpressionSite(site) => (2, site.0 as u64),
            Self::ConversionSite(site) => (3, site.0 as u64),
            Self::UserAction(action) => (4, action.0),
        }
    }

    /// The filter of a [`key`](Self::key), if there is one.
    pub fn from_key(kind: u8, id: u64) -> Option<Self> {
        let site = || u32::try_from(id).ok().map(SiteId);
        match kind {
            0 => site().map(Self::Querier),
            1 => (id == 0).then_some(Self::Global),
            2 => site().map(Self::ImpressionSite),
            3 => site().map(Self::ConversionSite),
            4 => Some(Self::UserAction(UserAction(id))),
            _ => None,
        }
    }

    /// What kind of filter it is.
    pub const fn kind(self) -> FilterKind {
        match self {
            Self::Querier(_) => FilterKind::Querier,
            Self::Global => FilterKind::Global,
            Self::ImpressionSite(_) => FilterKind::ImpressionSite,
            Self::ConversionSite(_) => FilterKind::ConversionSite,
            Self::UserAction(_) => FilterKind::UserAction,
        }
    }
}

/// The kinds of filters. All filters of a kind have one capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FilterKind {
    /// See [`Filter::Querier`].
    Querier,
    /// See [`Filter::Global`].
    Global,
    /// See [`Filter::ImpressionSite`].
    ImpressionSite,
    /// See [`Filter::ConversionSite`].
    ConversionSite,
    /// See [`Filter::UserAction`].
    UserAction,
}

impl FilterKind {
    /// Every kind, in the order in which refusals are named.
    pub const ALL: [Self; 5] = [
        Self::Querier,
        Self::Global,
        Self::ImpressionSite,
        Self::ConversionSite,
        Self::UserAction,
    ];
}

impl fmt::Display for FilterKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Querier => "querier budget",
            Self::Global => "global budget",
            Self::ImpressionSite => "impression-site quota",
            Self::ConversionSite => "conversion-site quota",
            Self::UserAction => "user-action budget",
        })
    }
}

/// What a filter holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Balance {
    /// How much it lets through in all.
    pub capacity: Capacity,
    /// How much has passed already. Always zero for an unlimited filter, which keeps no record.
    pub consumed: MicroEpsilon,
}

impl Balance {
    /// What is left, or `None` when it is unlimited.
    pub fn remaining(self) -> Option<MicroEpsilon> {
        self.capacity
            .amount()
            .map(|capacity| capacity.saturating_sub(self.consumed))
    }

    /// Whether `asked` more fits.
    pub fn covers(self, asked: MicroEpsilon) -> bool {
        self.capacity.covers(self.consumed, asked)
    }
}

/// A loss to take from one filter of one epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Charge {
    /// The epoch whose filter pays.
    pub epoch: EpochIndex,
    /// The filter that pays.
    pub filter: Filter,
    /// How much.
    pub amount: MicroEpsilon,
}

/// What a filter held when it was asked to pay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Check {
    /// The epoch.
    pub epoch: EpochIndex,
    /// The filter.
    pub filter: Filter,
    /// What it held before.
    pub balance: Balance,
    /// What was asked of it.
    pub asked: MicroEpsilon,
}

impl Check {
    /// A check of which it is still to be read what the filter has consumed. Until it is, the filter
    /// has nothing to pay with: a store that forgets one must not let it pass.
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

    /// The charge it is about.
    pub fn charge(&self) -> Charge {
        Charge {
            epoch: self.epoch,
            filter: self.filter,
            amount: self.asked,
        }
    }

    /// Whether it can pay.
    pub fn fits(&self) -> bool {
        self.balance.covers(self.asked)
    }

    /// How much is missing; zero when it can pay.
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
            Filter::Querier(SiteId(site))
            | Filter::ImpressionSite(SiteId(site))
            | Filter::ConversionSite(SiteId(site)) => write!(f, " of site #{site}")?,
            Filter::UserAction(UserAction(action)) => write!(f, " of action #{action}")?,
            Filter::Global => {}
        }
        write!(
            f,
            " in epoch {}: capacity {capacity}, consumed {consumed}, asked {}",
            self.epoch.0, self.asked
        )
    }
}
