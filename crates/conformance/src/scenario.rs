//! Recorded scenarios: reading them, playing them, and comparing results with expected ones.
//!
//! The formats are those of the W3C's end-to-end tests and of the recorded vectors.
//! `docs/vectors.md` describes them, including our additions. A file may come from anywhere, so
//! reading it never panics.

use std::collections::BTreeMap;
use std::fmt;

use bigbird::{Capacities, Capacity, Decision, MicroEpsilon, Profile, StoreLimits, Timestamp};
use bigbird_user_agent::protocol::{self, AgentRequest, ErrorName, Player};
use bigbird_user_agent::{
    AgentError, AggregationProtocol, ApiError, Config, Explanation, Limits, MemoryStore,
    Randomness, SharedConversion, Storage, UserAgent,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thiserror::Error;

use crate::case::Mismatch;

/// A history of calls, each with its expected result.
#[derive(Debug, Clone, Deserialize)]
pub struct Scenario {
    /// The name of the scenario. In the W3C's format, it is the name of the file.
    #[serde(default)]
    pub name: String,
    /// The profile that the scenario is for, or none for `w3c-draft`.
    #[serde(default)]
    profile: Option<String>,
    /// The configuration of the user agent.
    config: Option<ScenarioConfig>,
    /// The events, in order.
    pub events: Vec<ScenarioEvent>,
}

/// The configuration of the user agent of a scenario.
#[derive(Debug, Clone, Serialize, Deserialize)]
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
    /// Our addition: the conversion-site quota, in µε. The default is the profile's.
    conversion_site_quota_per_epoch: Option<u64>,
    /// Our addition: the domain cap. The default is the profile's.
    domain_cap: Option<u32>,
    /// Our addition: the duration of an activation. Without it, calls that do not name a tab need
    /// no activation.
    activation_seconds: Option<i64>,
    /// Our addition: the number of units that an epoch keeps.
    impressions_per_epoch: Option<std::num::NonZeroU32>,
    /// Our addition: the number of shared conversions that are kept.
    max_shared_conversions: Option<usize>,
}

/// An event at a time in seconds, with its expected result.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScenarioEvent {
    /// The time, in seconds since 1970.
    pub seconds: i64,
    /// The call, or another event.
    #[serde(flatten)]
    pub request: AgentRequest,
    /// The expected answer of a conversion.
    expected: Option<ExpectedAnswer>,
    /// The expected error of any other call.
    expected_error: Option<ErrorName>,
    /// Our addition: the expected first cause that drops an epoch.
    expected_cause: Option<String>,
    /// Our addition: the random numbers of this report, in order.
    draws: Option<Vec<f64>>,
    /// Our addition: the random handle of the shared conversion that is created.
    handle: Option<SharedConversion>,
}

/// The expected answer of a conversion.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum ExpectedAnswer {
    /// A histogram.
    Histogram(Vec<u32>),
    /// An error.
    Error(ErrorName),
}

impl ScenarioConfig {
    /// Reads a configuration, such as the W3C's `CONFIG.json`.
    ///
    /// # Errors
    /// If the text is not JSON, or a key is missing.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// The configuration of a user agent, in which epochs begin in the middle of one and credit is
    /// rounded at one half.
    pub(crate) fn of(config: &Config, aggregation_services: BTreeMap<String, String>) -> Self {
        let capacities = config.policy.capacities();
        let amount = |capacity: Capacity| {
            capacity
                .amount()
                .map_or(u64::from(u32::MAX), MicroEpsilon::get)
        };
        let limits = &config.limits;
        Self {
            aggregation_services,
            epoch_start: 0.5,
            fairly_allocate_credit_fraction: 0.5,
            global_privacy_budget_per_epoch: amount(capacities.global_budget),
            impression_site_quota_per_epoch: amount(capacities.impression_site_quota),
            per_site_privacy_budget: amount(capacities.querier_budget),
            privacy_budget_epoch_days: config.epoch_days,
            max_lookback_days: limits.max_lookback_days,
            max_histogram_size: limits.max_histogram_size,
            max_credit_size: limits.max_credit_size,
            max_match_values: limits.max_match_values,
            max_conversion_sites_per_impression: limits.max_conversion_sites_per_impression,
            max_conversion_callers_per_impression: limits.max_conversion_callers_per_impression,
            max_impression_sites_for_conversion: limits.max_impression_sites_for_conversion,
            max_impression_callers_for_conversion: limits.max_impression_callers_for_conversion,
            conversion_site_quota_per_epoch: None,
            domain_cap: None,
            activation_seconds: None,
            impressions_per_epoch: None,
            max_shared_conversions: None,
        }
    }

    /// The configuration as JSON. A key without a value is null.
    pub(crate) fn to_json(&self) -> Map<String, Value> {
        match serde_json::to_value(self) {
            Ok(Value::Object(fields)) => fields,
            _ => Map::new(),
        }
    }

    /// The aggregation services.
    pub(crate) fn services(&self) -> impl Iterator<Item = &str> {
        self.aggregation_services.keys().map(String::as_str)
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
            querier_budget: finite(self.per_site_privacy_budget),
            global_budget: given(own.global_budget, self.global_privacy_budget_per_epoch),
            impression_site_quota: given(
                own.impression_site_quota,
                self.impression_site_quota_per_epoch,
            ),
            conversion_site_quota: self
                .conversion_site_quota_per_epoch
                .map_or(own.conversion_site_quota, finite),
            user_action_budget: own.user_action_budget,
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
                "privacyBudgetEpochDays must be at least 1, and maxLookbackDays must span at most 4000 \
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

/// A source of randomness that returns the numbers that a scenario prescribes.
#[derive(Debug, Clone)]
pub struct ScriptedRandomness {
    epoch_start: f64,
    credit: f64,
    draws: std::vec::IntoIter<f64>,
    handle: Option<SharedConversion>,
}

impl ScriptedRandomness {
    fn of(config: &ScenarioConfig) -> Self {
        Self {
            epoch_start: config.epoch_start,
            credit: config.fairly_allocate_credit_fraction,
            draws: Vec::new().into_iter(),
            handle: None,
        }
    }
}

impl Randomness for ScriptedRandomness {
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
pub type ScenarioPlayer<S> = Player<S, ScriptedRandomness>;

impl Scenario {
    /// Reads the text of a file in the W3C's format.
    ///
    /// # Errors
    /// If the text is not JSON, or not a scenario.
    pub fn parse(name: &str, text: &str) -> Result<Self, serde_json::Error> {
        let mut scenario: Self = serde_json::from_str(text)?;
        name.clone_into(&mut scenario.name);
        scenario.check()?;
        Ok(scenario)
    }

    /// Refuses a conversion without an expected answer, because it would pass whatever it gives.
    pub(crate) fn check(&self) -> Result<(), serde_json::Error> {
        for (number, event) in self.events.iter().enumerate() {
            let reports = matches!(
                event.request,
                AgentRequest::MeasureConversion { .. } | AgentRequest::TakeShare { .. }
            );
            if reports && event.expected.is_none() {
                let why = format!("event {number}: missing field `expected`");
                return Err(serde::de::Error::custom(why));
            }
        }
        Ok(())
    }

    /// True if the scenario has its own configuration.
    pub fn has_config(&self) -> bool {
        self.config.is_some()
    }

    /// Sets the configuration, unless the scenario has its own.
    pub fn set_default_config(&mut self, default: &ScenarioConfig) {
        self.config.get_or_insert_with(|| default.clone());
    }

    /// The profile to play the scenario under: the given one, otherwise its own.
    fn profile(&self, given: Option<Profile>) -> Result<Profile, RunError> {
        match (given, &self.profile) {
            (Some(profile), _) => Ok(profile),
            (None, Some(name)) => name.parse().map_err(RunError::new),
            (None, None) => Ok(Profile::W3cDraft),
        }
    }

    /// A player for the scenario, whose user agent keeps everything in memory.
    ///
    /// # Errors
    /// If the profile or the configuration is invalid.
    pub fn player(
        &self,
        profile: Option<Profile>,
    ) -> Result<ScenarioPlayer<MemoryStore>, RunError> {
        self.player_on(profile, || Ok(MemoryStore::new()))
    }

    /// A player for the scenario, whose user agent uses the given store, which must be empty.
    ///
    /// # Errors
    /// If the profile or the configuration is invalid, or there is no store.
    pub fn player_on<S: Storage>(
        &self,
        profile: Option<Profile>,
        storage: impl FnOnce() -> Result<S, RunError>,
    ) -> Result<ScenarioPlayer<S>, RunError> {
        let profile = self.profile(profile)?;
        let Some(config) = &self.config else {
            return Err(RunError::new("the scenario has no `config`; add one"));
        };
        let scripted = ScriptedRandomness::of(config);
        let prescribed = || scripted.clone();
        let fraction = config.epoch_start;
        let activation_ms = config.activation_seconds.map(|s| s.saturating_mul(1000));
        let mut config = config.config(profile)?;
        if !config.policy.reads_user_actions() {
            let agent = UserAgent::in_memory(config.clone(), prescribed());
            if let Some(moment) = self.chooses_start(Player::new(agent, activation_ms)) {
                config = config.starting_before(moment, fraction);
            }
        }
        // The time matters only for a change of rules, and an empty store has no rules yet.
        let agent = UserAgent::new(config, storage()?, prescribed(), Timestamp(0));
        let agent = agent.map_err(|error| RunError::caused_by(&error))?;
        Ok(Player::new(agent, activation_ms))
    }

    /// A player for the scenario on a store that may have been used, whose user agent has another
    /// configuration than the scenario's.
    ///
    /// # Errors
    /// If the configuration is invalid, or the store failed.
    pub fn player_in<S: Storage>(
        &self,
        config: Config,
        storage: S,
        now: Timestamp,
    ) -> Result<ScenarioPlayer<S>, RunError> {
        let randomness = match &self.config {
            Some(config) => ScriptedRandomness::of(config),
            None => return Err(RunError::new("the scenario has no `config`; add one")),
        };
        let agent = UserAgent::new(config, storage, randomness, now);
        let agent = agent.map_err(|error| RunError::caused_by(&error))?;
        Ok(Player::new(agent, None))
    }

    /// The time from which the draft chooses the start of epochs. This is the time of the first
    /// conversion, or the oldest time that the first clearing of a site's budgets reads. Whether
    /// calls are valid does not depend on the start, so it can be found by playing the scenario.
    fn chooses_start(&self, mut player: ScenarioPlayer<MemoryStore>) -> Option<Timestamp> {
        let mut enabled = true;
        for event in &self.events {
            let (now, request) = (event.moment(), &event.request);
            let done = player.play(request, now).is_ok();
            match request {
                AgentRequest::EnableApi => enabled = true,
                AgentRequest::DisableApi => enabled = false,
                AgentRequest::MeasureConversion { .. } if done && enabled => return Some(now),
                AgentRequest::ClearBrowsingHistoryForAttribution {
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

    /// Plays the scenario, and returns the mismatches.
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

/// The reason why a case could not be run, such as an invalid configuration or a store that failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct RunError(String);

impl RunError {
    /// An error with a reason.
    pub fn new(why: impl fmt::Display) -> Self {
        Self(why.to_string())
    }

    /// An error with the causes of another error, in one line.
    pub fn caused_by(error: &dyn std::error::Error) -> Self {
        match error.source() {
            Some(source) => Self(format!("{error}: {}", Self::caused_by(source))),
            None => Self::new(error),
        }
    }
}

/// The result of an event.
#[derive(Debug, Clone, PartialEq)]
pub enum EventResult {
    /// The event succeeded, and it has no answer.
    Done,
    /// A report, with the decision behind it.
    Report(Vec<u32>, Decision),
    /// The handle of a shared conversion that was created, with the decision behind it.
    Shared(SharedConversion, Decision),
    /// An error.
    Error(ApiError),
}

impl fmt::Display for EventResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("success"),
            Self::Report(histogram, _) => write!(f, "{histogram:?}"),
            Self::Shared(shared, _) => write!(f, "shared conversion {shared}"),
            Self::Error(error) => write!(f, "{error}"),
        }
    }
}

impl ScenarioEvent {
    /// The time of the event.
    pub fn moment(&self) -> Timestamp {
        Timestamp(self.seconds.saturating_mul(1000))
    }

    /// Plays the event.
    ///
    /// # Errors
    /// If the store failed.
    pub fn play<S: Storage>(
        &self,
        player: &mut ScenarioPlayer<S>,
    ) -> Result<EventResult, S::Error> {
        self.prescribe(player);
        let now = self.moment();
        match player.play(&self.request, now) {
            Ok(protocol::PlayResult::Done) => Ok(EventResult::Done),
            Ok(protocol::PlayResult::Report(report, decision)) => {
                let histogram = report.histogram;
                let buckets = histogram.map(|histogram| histogram.buckets().to_vec());
                Ok(EventResult::Report(buckets.unwrap_or_default(), decision))
            }
            Ok(protocol::PlayResult::Shared(shared, decision)) => {
                Ok(EventResult::Shared(shared, decision))
            }
            Err(AgentError::Api(error)) => Ok(EventResult::Error(error)),
            Err(AgentError::Store(error)) => Err(error),
        }
    }

    /// Explains what the conversion of this event would give, without measuring it.
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

    /// The expected and the actual result, if they differ.
    fn differs(&self, outcome: &EventResult) -> Option<(String, String)> {
        let differ =
            |expected: &dyn fmt::Display| Some((expected.to_string(), outcome.to_string()));
        match (&self.expected, outcome) {
            (Some(ExpectedAnswer::Histogram(histogram)), EventResult::Report(report, decision)) => {
                if histogram != report {
                    return differ(&format!("{histogram:?}"));
                }
                self.differs_in_cause(decision)
            }
            (Some(ExpectedAnswer::Histogram(histogram)), _) => differ(&format!("{histogram:?}")),
            (Some(ExpectedAnswer::Error(expected)), EventResult::Error(error)) => {
                let same = ErrorName::from(error) == *expected;
                if same { None } else { differ(expected) }
            }
            (Some(ExpectedAnswer::Error(expected)), _) => differ(expected),
            (None, EventResult::Shared(_, decision)) if self.expected_error.is_none() => {
                self.differs_in_cause(decision)
            }
            (None, _) => {
                let error = match outcome {
                    EventResult::Error(error) => Some(ErrorName::from(error)),
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

impl ScenarioEvent {
    fn differs_in_cause(&self, decision: &Decision) -> Option<(String, String)> {
        let expected = self.expected_cause.as_ref()?;
        let cause = decision.first_cause().map(|cause| cause.to_string());
        let cause = cause.unwrap_or_else(|| "none".to_owned());
        (cause != *expected).then(|| (format!("cause {expected}"), format!("cause {cause}")))
    }
}
