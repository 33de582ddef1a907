//! How a user agent is set up.

use std::collections::BTreeMap;

use bigbird::{Policy, Profile, StoreLimits, Timestamp};

use crate::clock::{EpochClock, epoch_ms};
use crate::options::{AggregationProtocol, AggregationServices, Limits};
use crate::site::Localhost;

/// How a user agent is set up.
#[derive(Debug, Clone)]
pub struct Config {
    /// Capacities, cap and charging rules.
    pub policy: Policy,
    /// How much a page may ask for.
    pub limits: Limits,
    /// How long an epoch is, in days; at least 1.
    pub epoch_days: u32,
    /// The aggregation services there are.
    pub aggregation_services: AggregationServices,
    /// Whether localhost is a site, for development.
    pub localhost: Localhost,
    /// How long after the call an answer is released, in milliseconds: whether something was
    /// charged must not show in time.
    pub release_after_ms: i64,
    /// How many impressions are kept.
    pub store_limits: StoreLimits,
    /// How many shared conversions are kept; at least 1. A conversion is shared at once or never.
    /// When there are too many, the oldest of the conversion site that has most goes.
    pub max_shared_conversions: usize,
    /// When the start of epochs is chosen.
    pub epoch_start: EpochStart,
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

impl EpochStart {
    /// A start that lies `fraction` of an epoch before a moment, at the full hour below it: what the
    /// draft chooses with a random fraction in [0, 1).
    pub fn before(moment: Timestamp, fraction: f64, epoch_days: u32) -> Self {
        Self::At(EpochClock::random_start(
            moment,
            fraction,
            epoch_ms(epoch_days),
        ))
    }
}

impl Config {
    /// The draft's epochs of a week, with the policy of a profile and no aggregation service.
    pub fn new(profile: Profile) -> Self {
        Self {
            policy: profile.policy(),
            limits: Limits::default(),
            epoch_days: 7,
            aggregation_services: BTreeMap::new(),
            localhost: Localhost::Refused,
            release_after_ms: 100,
            store_limits: StoreLimits::default(),
            max_shared_conversions: 1024,
            epoch_start: EpochStart::default(),
        }
    }

    /// The same with one more aggregation service.
    #[must_use]
    pub fn with_service(mut self, url: impl Into<String>) -> Self {
        let protocol = AggregationProtocol::Dap18Histogram;
        self.aggregation_services.insert(url.into(), protocol);
        self
    }

    pub(crate) fn period_ms(&self) -> i64 {
        epoch_ms(self.epoch_days)
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
