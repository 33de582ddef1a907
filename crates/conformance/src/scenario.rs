//! Recorded scenarios: reading them, playing them, and comparing what comes with what was expected.
//!
//! The formats are those of the W3C's end-to-end tests and of the recorded vectors; `docs/vectors.md`
//! describes them, with what we add. A file is data of any origin: reading one never panics.

use std::collections::BTreeMap;
use std::fmt;

use bigbird::{Capacities, Capacity, Decision, MicroEpsilon, Profile, StoreLimits, Timestamp};
use bigbird_user_agent::protocol::{self, ErrorName, Player, Request};
use bigbird_user_agent::{
    AgentError, AggregationProtocol, ApiError, Config, Explanation, Limits, Memory, Randomness,
    SharedConversion, Storage, UserAgent,
};
use serde::Deserialize;
use thiserror::Error;

use crate::case::Mismatch;

/// A history of calls with what each should give.
#[derive(Debug, Clone, Deserialize)]
pub struct Scenario {
    /// Its name; the file's if it has none.
    #[serde(default)]
    pub name: String,
    /// The profile it is for; `w3c-draft` if it does not say.
    #[serde(default)]
    profile: Option<String>,
    /// How the user agent is set up.
    config: Option<ScenarioConfig>,
    /// What happens, in order.
    pub events: Vec<Event>,
}

/// How the user agent of a scenario is set up.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScenarioConfig {
    aggregation_services: BTreeMap<String, String>,
    epoch_start: f64,
    fairly_allocate_credit_fraction: f64,
    global_privacy_budget_per_epoch: u64,
    impression_site_quota_per_epoch: u64,
    per_site_privacy_budget: u64,
    privacy_budget_epoch_days: u32,
    max_lookback_days: u32,
    max_histogram_size: u32,
    max_credit_size: usize,
    max_match_values: usize,
    max_conversion_sites_per_impression: usize,
    max_conversion_callers_per_impression: usize,
    max_impression_sites_for_conversion: usize,
    max_impression_callers_for_conversion: usize,
    /// Ours: the conversion-site quota, in µε; the profile's if absent.
    conversion_site_quota_per_epoch: Option<u64>,
    /// Ours: the domain cap; the profile's if absent.
    domain_cap: Option<u32>,
    /// Ours: how long an activation lasts; without it, calls need none.
    activation_seconds: Option<i64>,
    /// Ours: how many impressions an epoch keeps.
    impressions_per_epoch: Option<std::num::NonZeroU32>,
    /// Ours: how many shared conversions are kept.
    max_shared_conversions: Option<usize>,
}

/// Something that happens at a second, and what it should give.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// Seconds since 1970.
    pub seconds: i64,
    /// What happens.
    #[serde(flatten)]
    pub request: Request,
    /// What a conversion should give.
    expected: Option<Expected>,
    /// The error that another call should give.
    expected_error: Option<ErrorName>,
    /// Ours: the one cause to name.
    expected_cause: Option<String>,
    /// Ours: the random numbers of this report, in order.
    draws: Option<Vec<f64>>,
    /// Ours: the random handle of the shared conversion that is created.
    handle: Option<SharedConversion>,
}

/// What a conversion should give.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Expected {
    /// A histogram.
    Histogram(Vec<u32>),
    /// An error.
    Error(ErrorName),
}

impl ScenarioConfig {
    /// Reads a configuration, such as the W3C's `CONFIG.json`.
    ///
    /// # Errors
    /// If it is no JSON, or lacks something.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    fn config(&self, profile: Profile) -> Result<Config, RunError> {
        let finite = |micro| Capacity::Finite(MicroEpsilon::new(micro));
        let base = profile.policy();
        let given = |own: Capacity, micro| match own {
            Capacity::Unlimited => own,
            Capacity::Finite(_) => finite(micro),
        };
        let own = base.capacities();
        let capacities = Capacities {
            querier: finite(self.per_site_privacy_budget),
            global: given(own.global, self.global_privacy_budget_per_epoch),
            impression_site: given(own.impression_site, self.impression_site_quota_per_epoch),
            conversion_site: self
                .conversion_site_quota_per_epoch
                .map_or(own.conversion_site, finite),
            user_action: own.user_action,
        };
        let mut policy = base.to_builder().capacities(capacities);
        if let Some(cap) = self.domain_cap {
            policy = policy.domain_cap(cap);
        }
        let policy = policy.build().map_err(RunError::new)?;
        let services = self.aggregation_services.keys();
        if !(0.0..1.0).contains(&self.epoch_start) {
            return Err(RunError::new(format!(
                "epochStart must be in [0, 1), got {}",
                self.epoch_start
            )));
        }
        let epochs = self.max_lookback_days / self.privacy_budget_epoch_days.max(1);
        if self.privacy_budget_epoch_days == 0 || epochs > 4000 {
            return Err(RunError::new(format!(
                "privacyBudgetEpochDays must be at least 1 and maxLookbackDays at most 4000 \
                 epochs, got {} and {}",
                self.privacy_budget_epoch_days, self.max_lookback_days
            )));
        }
        let mut config = Config {
            policy,
            limits: Limits {
                max_lookback_days: self.max_lookback_days,
                max_histogram_size: self.max_histogram_size,
                max_credit_size: self.max_credit_size,
                max_match_values: self.max_match_values,
                max_conversion_sites_per_impression: self.max_conversion_sites_per_impression,
                max_conversion_callers_per_impression: self.max_conversion_callers_per_impression,
                max_impression_sites_for_conversion: self.max_impression_sites_for_conversion,
                max_impression_callers_for_conversion: self.max_impression_callers_for_conversion,
            },
            epoch_days: self.privacy_budget_epoch_days,
            aggregation_services: services
                .map(|url| (url.clone(), AggregationProtocol::Dap18Histogram))
                .collect(),
            ..Config::new(profile).for_testing()
        };
        if let Some(most) = self.max_shared_conversions {
            config.max_shared_conversions = most;
        }
        if let Some(impressions_per_epoch) = self.impressions_per_epoch {
            config.store_limits = StoreLimits {
                units_per_epoch: impressions_per_epoch,
            };
        }
        Ok(config)
    }
}

/// The random numbers that a scenario prescribes.
#[derive(Debug)]
pub struct Prescribed {
    epoch_start: f64,
    credit: f64,
    draws: std::vec::IntoIter<f64>,
    handle: Option<SharedConversion>,
}

impl Randomness for Prescribed {
    fn handle(&mut self, number: u64) -> u128 {
        self.handle.map_or(number.into(), |handle| handle.0)
    }

    fn epoch_start(&mut self) -> f64 {
        self.epoch_start
    }

    fn credit(&mut self) -> f64 {
        self.draws.next().unwrap_or(self.credit)
    }
}

/// A scenario being played.
pub type ScenarioPlayer<S> = Player<S, Prescribed>;

impl Scenario {
    /// Reads a file of the W3C's format.
    ///
    /// # Errors
    /// If it is no JSON, or no scenario.
    pub fn parse(name: &str, text: &str) -> Result<Self, serde_json::Error> {
        let mut scenario: Self = serde_json::from_str(text)?;
        name.clone_into(&mut scenario.name);
        scenario.check()?;
        Ok(scenario)
    }

    /// A conversion without an expectation would pass whatever it gives.
    pub(crate) fn check(&self) -> Result<(), serde_json::Error> {
        for (number, event) in self.events.iter().enumerate() {
            let reports = matches!(
                event.request,
                Request::MeasureConversion { .. } | Request::TakeShare { .. }
            );
            if reports && event.expected.is_none() {
                let why = format!("event {number}: missing field `expected`");
                return Err(serde::de::Error::custom(why));
            }
        }
        Ok(())
    }

    /// Whether it has a configuration of its own.
    pub fn has_config(&self) -> bool {
        self.config.is_some()
    }

    /// Gives it a configuration, unless it has one.
    pub fn set_default_config(&mut self, default: &ScenarioConfig) {
        self.config.get_or_insert_with(|| default.clone());
    }

    /// The profile to play it under: the given one, or else its own.
    fn profile(&self, given: Option<Profile>) -> Result<Profile, RunError> {
        match (given, &self.profile) {
            (Some(profile), _) => Ok(profile),
            (None, Some(name)) => name.parse().map_err(RunError::new),
            (None, None) => Ok(Profile::W3cDraft),
        }
    }

    /// A user agent to play it on, which keeps everything in memory.
    ///
    /// # Errors
    /// If its profile or configuration is invalid.
    pub fn player(&self, profile: Option<Profile>) -> Result<ScenarioPlayer<Memory>, RunError> {
        self.player_on(profile, || Ok(Memory::new()))
    }

    /// A user agent to play it on, with a store that is empty.
    ///
    /// # Errors
    /// If its profile or configuration is invalid, or there is no store.
    pub fn player_on<S: Storage>(
        &self,
        profile: Option<Profile>,
        storage: impl FnOnce() -> Result<S, RunError>,
    ) -> Result<ScenarioPlayer<S>, RunError> {
        let profile = self.profile(profile)?;
        let Some(config) = &self.config else {
            return Err(RunError::new("the scenario has no config"));
        };
        let prescribed = || Prescribed {
            epoch_start: config.epoch_start,
            credit: config.fairly_allocate_credit_fraction,
            draws: Vec::new().into_iter(),
            handle: None,
        };
        let fraction = config.epoch_start;
        let activation_ms = config.activation_seconds.map(|s| s.saturating_mul(1000));
        let mut config = config.config(profile)?;
        let policy = &config.policy;
        let has_actions = policy.domain_cap().is_some() || !policy.matches_own_action();
        if !has_actions {
            let agent = UserAgent::in_memory(config.clone(), prescribed());
            if let Some(moment) = self.chooses_start(Player::new(agent, activation_ms)) {
                config = config.starting_before(moment, fraction);
            }
        }
        // On an empty store there are no other rules, so it does not matter when that is.
        let agent = UserAgent::new(config, storage()?, prescribed(), Timestamp(0));
        let agent = agent.map_err(|error| RunError::caused_by(&error))?;
        Ok(Player::new(agent, activation_ms))
    }

    /// The moment by which the draft chooses the start of epochs: that of the first conversion, or
    /// the oldest that the first clearing of a site's budgets looks at. Which calls are valid does
    /// not depend on it, so it can be found out by playing.
    fn chooses_start(&self, mut player: ScenarioPlayer<Memory>) -> Option<Timestamp> {
        let mut enabled = true;
        for event in &self.events {
            let (now, request) = (event.moment(), &event.request);
            let done = player.play(request, now).is_ok();
            match request {
                Request::EnableApi => enabled = true,
                Request::DisableApi => enabled = false,
                Request::MeasureConversion { .. } if done && enabled => return Some(now),
                Request::ClearBrowsingHistoryForAttribution {
                    forget_visits: false,
                    ..
                } if done => {
                    let days = player.agent.config().limits.max_lookback_days;
                    let lookback_ms = i64::from(days) * 86_400_000;
                    return Some(Timestamp(now.0.saturating_sub(lookback_ms)));
                }
                _ => {}
            }
        }
        None
    }

    /// Plays it and gives what came out otherwise than expected.
    ///
    /// # Errors
    /// If the store failed.
    pub fn run_on<S: Storage>(
        &self,
        player: &mut ScenarioPlayer<S>,
    ) -> Result<Vec<Mismatch>, RunError> {
        let mut mismatches = Vec::new();
        for (number, event) in self.events.iter().enumerate() {
            let outcome = event
                .play(player)
                .map_err(|error| RunError::caused_by(&error))?;
            if let Some((expected, got)) = event.differs(&outcome) {
                let name = event.request.name();
                mismatches.push(Mismatch {
                    at: format!("event {number} ({name} at {} s)", event.seconds),
                    expected,
                    got,
                });
            }
        }
        Ok(mismatches)
    }
}

/// Why a case could not be run: it makes no sense, or there is no store.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct RunError(String);

impl RunError {
    /// For a reason.
    pub fn new(why: impl fmt::Display) -> Self {
        Self(why.to_string())
    }

    /// For an error with its causes, in one line.
    pub fn caused_by(error: &dyn std::error::Error) -> Self {
        match error.source() {
            Some(source) => Self(format!("{error}: {}", Self::caused_by(source))),
            None => Self::new(error),
        }
    }
}

/// What an event gave.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// A call that gives nothing back.
    Done,
    /// A report, and why.
    Report(Vec<u32>, Decision),
    /// A shared conversion was created, and why.
    Shared(SharedConversion, Decision),
    /// An error.
    Error(ApiError),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("success"),
            Self::Report(histogram, _) => write!(f, "{histogram:?}"),
            Self::Shared(shared, _) => write!(f, "shared conversion {shared}"),
            Self::Error(error) => write!(f, "{error}"),
        }
    }
}

impl Event {
    /// The moment it happens.
    pub fn moment(&self) -> Timestamp {
        Timestamp(self.seconds.saturating_mul(1000))
    }

    /// Plays it.
    ///
    /// # Errors
    /// If the store failed.
    pub fn play<S: Storage>(&self, player: &mut ScenarioPlayer<S>) -> Result<Outcome, S::Error> {
        self.prescribe(player);
        let now = self.moment();
        match player.play(&self.request, now) {
            Ok(protocol::Outcome::Done) => Ok(Outcome::Done),
            Ok(protocol::Outcome::Report(report, decision)) => {
                let histogram = report.histogram;
                let buckets = histogram.map(|histogram| histogram.buckets().to_vec());
                Ok(Outcome::Report(buckets.unwrap_or_default(), decision))
            }
            Ok(protocol::Outcome::Shared(shared, decision)) => {
                Ok(Outcome::Shared(shared, decision))
            }
            Err(AgentError::Api(error)) => Ok(Outcome::Error(error)),
            Err(AgentError::Store(error)) => Err(error),
        }
    }

    /// Says what its conversion would give, and why, without measuring it.
    pub fn explain<S: Storage>(&self, player: &mut ScenarioPlayer<S>) -> Option<Explanation> {
        self.prescribe(player);
        player.explain(&self.request, self.moment()).ok().flatten()
    }

    fn prescribe<S: Storage>(&self, player: &mut ScenarioPlayer<S>) {
        let draws = self.draws.clone().unwrap_or_default();
        let randomness = player.agent.randomness_mut();
        randomness.draws = draws.into_iter();
        randomness.handle = self.handle;
    }

    /// What was expected and what came, if they differ.
    fn differs(&self, outcome: &Outcome) -> Option<(String, String)> {
        let differ =
            |expected: &dyn fmt::Display| Some((expected.to_string(), outcome.to_string()));
        match (&self.expected, outcome) {
            (Some(Expected::Histogram(histogram)), Outcome::Report(report, decision)) => {
                if histogram != report {
                    return differ(&format!("{histogram:?}"));
                }
                self.differs_in_cause(decision)
            }
            (Some(Expected::Histogram(histogram)), _) => differ(&format!("{histogram:?}")),
            (Some(Expected::Error(expected)), Outcome::Error(error)) => {
                let same = ErrorName::from(error) == *expected;
                if same { None } else { differ(expected) }
            }
            (Some(Expected::Error(expected)), _) => differ(expected),
            (None, Outcome::Shared(_, decision)) if self.expected_error.is_none() => {
                self.differs_in_cause(decision)
            }
            (None, _) => {
                let error = match outcome {
                    Outcome::Error(error) => Some(ErrorName::from(error)),
                    _ => None,
                };
                match &self.expected_error {
                    expected if *expected == error => None,
                    Some(expected) => differ(expected),
                    None => differ(&"success"),
                }
            }
        }
    }
}

impl Event {
    fn differs_in_cause(&self, decision: &Decision) -> Option<(String, String)> {
        let expected = self.expected_cause.as_ref()?;
        let cause = decision.first_cause().map(|cause| cause.to_string());
        let cause = cause.unwrap_or_else(|| "none".to_owned());
        (cause != *expected).then(|| (format!("cause {expected}"), format!("cause {cause}")))
    }
}
