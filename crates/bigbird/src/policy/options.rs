//! The rules that a policy chooses between: how losses are computed, who pays them, what matches,
//! and who may ask.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// The arithmetic that computes a loss from a sensitivity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum Arithmetic {
    /// In integers: ⌈ε_µ · sensitivity / scale⌉.
    Exact,
    /// In doubles, in the order of the draft's steps, so that implementations of the draft agree.
    Double,
}

/// The rule for what the global budget pays for a report over a window of one epoch. Over several
/// epochs the loss is always the worst case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum GlobalCharging {
    /// The loss that the report causes on this device, by its individual sensitivity (the paper).
    Individual,
    /// The largest loss that it could cause (the draft).
    WorstCase,
}

/// The rule for what the quota of each relevant impression site pays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum SiteCharging {
    /// In a window of one epoch, each site pays what the epoch pays. In a longer window, it pays
    /// the sensitivity to its own impressions.
    ///
    /// This departs from the paper's rule ([`Paper`](Self::Paper)): a request that costs its
    /// sender nothing takes nothing from any publisher.
    #[default]
    Full,
    /// The paper's literal rule (`EpochImpSiteBudget`), for comparison.
    ///
    /// It is the same as [`Full`](Self::Full), except in a window of one epoch with several
    /// relevant sites: there each site pays the sensitivity to its impressions, however little the
    /// epoch pays. One request whose credit all falls outside its histogram then costs its sender
    /// nothing and empties the quota of every relevant publisher. That contradicts the paper's own
    /// claim that this takes n conversion sites.
    Paper,
    /// An equal part of what the global budget pays, rounded up. The paper calls it admissible
    /// (after the lemma on allocation consistency): sites pay less, and M sites that share every
    /// report can help consume as much as before.
    Uniform,
}

impl SiteCharging {
    /// Every rule, the default first.
    pub const ALL: [Self; 3] = [Self::Full, Self::Paper, Self::Uniform];

    /// The name of the rule on the command line and in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Paper => "paper",
            Self::Uniform => "uniform",
        }
    }
}

impl fmt::Display for SiteCharging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for SiteCharging {
    type Err = UnknownSiteCharging;

    fn from_str(name: &str) -> Result<Self, UnknownSiteCharging> {
        let found = Self::ALL.into_iter().find(|rule| rule.name() == name);
        found.ok_or_else(|| UnknownSiteCharging(name.to_owned()))
    }
}

/// A name that is not the name of a [`SiteCharging`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("unknown site charging `{0}`; use one of: full, paper, uniform")]
pub struct UnknownSiteCharging(String);

/// The rule for epochs in which the quota of a relevant impression site is depleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum DepletedSites {
    /// The epoch is dropped (the paper). An attacker must choose which impressions to name.
    DropEpoch,
    /// The impressions of the sites that cannot pay are dropped and all losses are computed again,
    /// until every remaining site can pay.
    ///
    /// This is sound: what is kept depends on this epoch alone, and the losses are those of what
    /// is kept. It is kinder to honest requests and weaker against attackers.
    DropSite,
}

/// The rule for events that a request's own user action saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum OwnActionEvents {
    /// The request does not match them (the paper). Otherwise one user action could both create
    /// impressions (the paper's stock) and spend on them (flow).
    Excluded,
    /// The request matches them (the draft, which has activation instead of user-action ids).
    Included,
}

/// The effect of closing a site for epochs, which happens when the user clears its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum ClosedSites {
    /// The conversions of the site no longer read those epochs.
    HideEpochs,
    /// The site's querier budget in those epochs counts as spent (the draft's section Clearing Site
    /// Data). A report that costs the querier nothing still charges the other filters.
    SpendQuerierBudget,
}

/// The sites that may receive reports and pay for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum AllowedQueriers {
    /// The conversion site, or an intermediary that calls for itself (the paper's cross-advertiser
    /// queries and shared conversions).
    ConversionSiteOrIntermediary,
    /// Only the conversion site, even if an intermediary calls on its behalf (the draft).
    ConversionSiteOnly,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn site_charging_has_names() {
        for rule in SiteCharging::ALL {
            assert_eq!(rule.name().parse(), Ok(rule));
        }
        let error = "fair".parse::<SiteCharging>().unwrap_err().to_string();
        let names = SiteCharging::ALL.map(SiteCharging::name).join(", ");
        assert_eq!(
            error,
            format!("unknown site charging `fair`; use one of: {names}")
        );
    }
}
