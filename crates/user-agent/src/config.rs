//! The configuration of a user agent.

use std::collections::BTreeMap;
use std::sync::Arc;

use bigbird::{AttributionObject, Policy, Profile, ReadLimits, StoreLimits, Timestamp};

use crate::clock::Rules;
use crate::options::{AggregationProtocol, AggregationServices, Limits};
use crate::protocol::Pace;
use crate::site::{Localhost, RegistrableDomains, Site, SiteError};

/// The configuration of a user agent.
#[derive(Debug, Clone)]
pub struct Config {
    /// The capacities, the domain cap and the charging rules of the epochs that begin from now on.
    pub policy: Policy,
    /// The limits on what a page may ask for.
    pub limits: Limits,
    /// The length of the epochs that begin from now on, in days. At least 1.
    pub epoch_days: u32,
    /// The aggregation services that the browser knows.
    pub aggregation_services: AggregationServices,
    /// The treatment of localhost, which can be a site for development.
    pub localhost: Localhost,
    /// The list that gives the registrable domain of a host.
    pub domains: Arc<dyn RegistrableDomains>,
    /// The delay of answers to conversions, and the limits on arrivals.
    pub pace: Pace,
    /// The limits on how many impressions are stored.
    pub store_limits: StoreLimits,
    /// The limits on how many impressions of an epoch a conversion reads.
    pub read_limits: ReadLimits,
    /// The maximum number of shared conversions that are stored. At least 1. Shares are taken soon
    /// after the conversion or never. When there are too many, the oldest one of the conversion
    /// site with the most is removed.
    pub max_shared_conversions: usize,
    /// The maximum number of shares that are taken of one shared conversion. At most
    /// [`AttributionObject::MAX_SHARES`](bigbird::AttributionObject::MAX_SHARES), which is the
    /// default.
    pub max_shares: usize,
    /// The number of names that may be given to sites before upkeep is due to remove the names
    /// that are not in use.
    pub names_before_upkeep: usize,
    /// The choice of the start of epochs.
    pub epoch_start: EpochStart,
    /// True if answers show the histogram in addition to the sealed report. For testing only: the
    /// histogram shows what budgets and noise are meant to hide.
    pub shows_histograms: bool,
}

/// The choice of the start of epochs. A page cannot tell when the start is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EpochStart {
    /// At random, with the first impression or conversion. So every impression has an epoch, and
    /// limits are per epoch, from the beginning. Only a call that is valid and made while the API
    /// is enabled chooses the start.
    #[default]
    FirstUse,
    /// At a given moment. This is for recorded scenarios, which depend on the start: the draft
    /// chooses the start with the first conversion.
    At(Timestamp),
}

impl Config {
    /// A configuration with the draft's epochs of a week, the policy of a profile and no
    /// aggregation service. The compiled-in Public Suffix List determines the sites.
    #[cfg(feature = "psl")]
    pub fn new(profile: Profile) -> Self {
        Self::with_domains(profile, Arc::new(crate::site::PublicSuffixList))
    }

    /// The same as [`new`](Self::new), with another list of registrable domains.
    pub fn with_domains(profile: Profile, domains: Arc<dyn RegistrableDomains>) -> Self {
        Self {
            policy: profile.policy(),
            limits: Limits::default(),
            epoch_days: 7,
            aggregation_services: BTreeMap::new(),
            localhost: Localhost::Refused,
            domains,
            pace: Pace::default(),
            store_limits: StoreLimits::default(),
            read_limits: ReadLimits::default(),
            max_shared_conversions: 1024,
            max_shares: AttributionObject::MAX_SHARES,
            names_before_upkeep: 10_000,
            epoch_start: EpochStart::default(),
            shows_histograms: false,
        }
    }

    /// The same configuration with one more aggregation service.
    #[must_use]
    pub fn with_service(mut self, url: impl Into<String>) -> Self {
        let protocol = AggregationProtocol::Dap18Histogram;
        self.aggregation_services.insert(url.into(), protocol);
        self
    }

    /// The same configuration, with answers that show the histogram: see
    /// [`shows_histograms`](Self::shows_histograms).
    #[must_use]
    pub fn for_testing(mut self) -> Self {
        self.shows_histograms = true;
        self
    }

    /// The same configuration, with a start of epochs that is `fraction` of an epoch before a
    /// moment, rounded down to a full hour. The draft chooses the fraction at random in [0, 1).
    /// This is for recorded scenarios.
    #[must_use]
    pub fn starting_before(mut self, moment: Timestamp, fraction: f64) -> Self {
        self.epoch_start = EpochStart::At(self.rules().random_start(moment, fraction));
        self
    }

    /// The rules of the epochs that begin from now on.
    pub fn rules(&self) -> Rules {
        Rules {
            epoch_days: self.epoch_days,
            policy: self.policy.clone(),
        }
    }

    /// The site of a host.
    ///
    /// # Errors
    /// If the host has no site.
    pub fn site(&self, host: &str) -> Result<Site, SiteError> {
        Site::parse_with(host, self.localhost, &*self.domains)
    }

    pub(crate) fn sites<'h>(
        &self,
        hosts: impl IntoIterator<Item = &'h str>,
    ) -> Result<Vec<Site>, SiteError> {
        hosts.into_iter().map(|host| self.site(host)).collect()
    }
}
