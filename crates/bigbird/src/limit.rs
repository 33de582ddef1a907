//! The names of the limits, in one place.

use std::fmt;

/// A limit that a policy sets. Its name is the same in prose, on the command line, in JSON and in
/// CSV files. Flags, tables and columns take it from here, and tests compare fields with it.
///
/// The order is the one in which causes are named when several limits were exceeded at once.
///
/// ```
/// use bigbird::Limit;
///
/// let quota = Limit::ImpressionSiteQuota;
/// assert_eq!(quota.name(), "impression-site quota");
/// assert_eq!(quota.key(), "impressionSiteQuota");
/// assert_eq!(quota.flag(), "impression-site-quota");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Limit {
    /// The number of distinct sites that one user action may admit in an epoch (κ).
    DomainCap,
    /// The most that one querier can learn about a device-epoch (ε_querier).
    QuerierBudget,
    /// The most that all queriers together can learn about a device-epoch (ε_global).
    GlobalBudget,
    /// The most that reports about ads shown on one site can take from the global budget
    /// (ε_imp-quota).
    ImpressionSiteQuota,
    /// The most that conversions on one site can take from the global budget (ε_conv-quota).
    ConversionSiteQuota,
    /// The most that one user action may cost an epoch. No profile sets this limit. It exists for
    /// comparison with the domain cap.
    UserActionBudget,
}

impl Limit {
    /// The five limits that profiles set.
    pub const ALL: [Self; 5] = [
        Self::DomainCap,
        Self::QuerierBudget,
        Self::GlobalBudget,
        Self::ImpressionSiteQuota,
        Self::ConversionSiteQuota,
    ];

    /// The name in prose, tables and figures, such as `impression-site quota`.
    pub const fn name(self) -> &'static str {
        self.names().0
    }

    /// The name as a key in JSON and as a column of CSV files, such as `impressionSiteQuota`.
    pub const fn key(self) -> &'static str {
        self.names().1
    }

    /// The name as a flag on the command line, without its dashes, such as
    /// `impression-site-quota`.
    pub const fn flag(self) -> &'static str {
        self.names().2
    }

    /// The limit with this [key](Self::key).
    pub fn from_key(key: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter().chain([Self::UserActionBudget]);
        all.find(|limit| limit.key() == key)
    }

    const fn names(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::DomainCap => ("domain cap", "domainCap", "domain-cap"),
            Self::QuerierBudget => ("querier budget", "querierBudget", "querier-budget"),
            Self::GlobalBudget => ("global budget", "globalBudget", "global-budget"),
            Self::ImpressionSiteQuota => (
                "impression-site quota",
                "impressionSiteQuota",
                "impression-site-quota",
            ),
            Self::ConversionSiteQuota => (
                "conversion-site quota",
                "conversionSiteQuota",
                "conversion-site-quota",
            ),
            Self::UserActionBudget => (
                "user-action budget",
                "userActionBudget",
                "user-action-budget",
            ),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every form of a name follows from the one in prose.
    #[test]
    fn a_limit_has_one_name() {
        for limit in Limit::ALL.into_iter().chain([Limit::UserActionBudget]) {
            let flag = limit.name().replace(' ', "-");
            assert_eq!(limit.flag(), flag);
            let mut words = flag.split('-');
            let mut key = words.next().unwrap_or_default().to_owned();
            for word in words {
                let (first, rest) = word.split_at(1);
                key.push_str(&first.to_uppercase());
                key.push_str(rest);
            }
            assert_eq!(limit.key(), key);
            assert_eq!(format!("{limit:?}").to_lowercase(), key.to_lowercase());
            assert_eq!(Limit::from_key(&key), Some(limit));
        }
        assert_eq!(Limit::from_key("querier"), None);
    }
}
