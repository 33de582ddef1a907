//! How a user agent is set up.

use std::collections::BTreeMap;
use std::sync::Arc;

use bigbird::{Policy, Profile, ReadLimits, StoreLimits, Timestamp};

use crate::clock::Rules;
use crate::options::{AggregationProtocol, AggregationServices, Limits};
use crate::protocol::Pace;
use crate::site::{Localhost, RegistrableDomains, Site, SiteError};

/// How a user agent is set up.
#[derive(Debug, Clone)]
pub struct Config {
    /// Capacities, cap and charging rules of the epochs that begin from now on.
    pub policy: Policy,
    /// How much a page may ask for.
    pub limits: Limits,
    /// How long an epoch is that begins from now on, in days; at least 1.
    pub epoch_days: u32,
    /// The aggregation services there are.
    pub aggregation_services: AggregationServices,
    /// Whether localhost is a site, for development.
    pub localhost: Localhost,
    /// Which part of a host is its site.
    pub domains: Arc<dyn RegistrableDomains>,
    /// When conversions are answered, and how many calls are taken.
    pub pace: Pace,
    /// How many impressions are kept.
    pub store_limits: StoreLimits,
    /// How many impressions of an epoch a conversion reads.
    pub read_limits: ReadLimits,
    /// How many shared conversions are kept; at least 1. A conversion is shared at once or never.
    /// When there are too many, the oldest of the conversion site that has most goes.
    pub max_shared_conversions: usize,
    /// When the start of epochs is chosen.
    pub epoch_start: EpochStart,
    /// Whether answers show the histogram besides the sealed report. For testing: whoever sees it
    /// knows what budgets and noise are to hide.
    pub shows_histograms: bool,
}

/// When the random start of epochs is chosen. A page cannot tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EpochStart {
    /// With the first impression or conversion, so that every impression has an epoch from the
    /// start, and limits are per epoch from the start. Only a call that is valid and made while the
    /// API is enabled chooses it.
    #[default]
    FirstUse,
    /// It is this moment. For recorded scenarios, which depend on it: the draft chooses it with the
    /// first conversion.
    At(Timestamp),
}

impl Config {
    /// The draft's epochs of a week, with the policy of a profile and no aggregation service. Sites are
    /// told apart by the Public Suffix List that is compiled in.
    #[cfg(feature = "psl")]
    pub fn new(profile: Profile) -> Self {
        Self::with_domains(profile, Arc::new(crate::site::PublicSuffixList))
    }

    /// As [`new`](Self::new), with a list of one's own.
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
            epoch_start: EpochStart::default(),
            shows_histograms: false,
        }
    }

    /// The same with one more aggregation service.
    #[must_use]
    pub fn with_service(mut self, url: impl Into<String>) -> Self {
        let protocol = AggregationProtocol::Dap18Histogram;
        self.aggregation_services.insert(url.into(), protocol);
        self
    }

    /// The same, with answers that show the histogram: see
    /// [`shows_histograms`](Self::shows_histograms).
    #[must_use]
    pub fn for_testing(mut self) -> Self {
        self.shows_histograms = true;
        self
    }

    /// The same, with epochs that begin `fraction` of one before a moment, at the full hour below it:
    /// what the draft chooses with a random fraction in [0, 1). For recorded scenarios.
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

/// The random numbers of a user agent; fractions are in [0, 1).
pub trait Randomness {
    /// Where in the last epoch the first one began. It is drawn when epochs begin; an explanation
    /// before that draws one too, which is not kept.
    fn epoch_start(&mut self) -> f64;

    /// How credit is rounded.
    fn credit(&mut self) -> f64;

    /// The handle of a shared conversion: 128 random bits, from a source that pages cannot predict.
    /// Only a source that is meant to be repeatable, for tests, looks at the `number` of the shared
    /// conversion, which is never given twice.
    fn handle(&mut self, number: u64) -> u128;
}
