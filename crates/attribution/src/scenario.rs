//! Recorded scenarios: reading them, playing them, and comparing what comes with what was expected.
//!
//! The formats are those of the W3C's end-to-end tests and of the recorded vectors; `docs/vectors.md`
//! describes them, with what we add. A file is data of any origin: reading one never panics.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;

use bigbird::attribution::allocate_credit;
use bigbird::{Capacities, Capacity, Decision, MicroEpsilon, Profile, StoreLimits, Timestamp};
use serde::Deserialize;
use serde_json::{Value, json};
use url::Url;

use crate::activation::Activation;
use crate::agent::UserAgent;
use crate::call::{Action as UserAction, Call, Querier};
use crate::config::{Config, EpochStart, Randomness};
use crate::error::{AgentError, ApiError};
use crate::explain::Explanation;
use crate::headers::{parse_measure_conversion, parse_save_impression};
use crate::memory::Memory;
use crate::options::{AggregationProtocol, ConversionOptions, ImpressionOptions, Limits};
use crate::site::{Localhost, Site};

/// One thing to check.
#[derive(Debug, Clone)]
pub enum Case {
    /// A history of calls.
    Scenario(Box<Scenario>),
    /// A header to parse.
    Header(HeaderCase),
    /// Credit to allocate.
    Credit(CreditCase),
    /// A site to parse.
    Site(SiteCase),
}

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
}

/// Something that happens at a second.
#[derive(Debug, Clone, Deserialize)]
pub struct Event {
    /// Seconds since 1970.
    pub seconds: i64,
    /// What happens.
    #[serde(flatten)]
    pub action: Action,
}

/// What happens.
#[derive(Debug, Clone, Deserialize)]
#[serde(
    tag = "event",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
#[allow(missing_docs, reason = "the fields are those of the calls")]
pub enum Action {
    /// A page saves an impression.
    SaveImpression {
        site: String,
        intermediary_site: Option<String>,
        user_action: Option<u64>,
        options: ImpressionInput,
        expected_error: Option<ExpectedError>,
    },
    /// A page measures a conversion.
    MeasureConversion {
        site: String,
        intermediary_site: Option<String>,
        user_action: Option<u64>,
        #[serde(default)]
        querier: QuerierInput,
        options: ConversionInput,
        /// Ours: the random numbers of this report, in order.
        draws: Option<Vec<f64>>,
        expected: Expected,
        /// Ours: the one cause to name.
        expected_cause: Option<String>,
    },
    /// A response asks to clear a site's data.
    ClearImpressionsForSite { site: String },
    /// The user clears browsing history.
    ClearBrowsingHistoryForAttribution {
        sites: Vec<String>,
        forget_visits: bool,
        expected_error: Option<ExpectedError>,
    },
    /// The user enables the API.
    #[serde(rename = "enableAPI")]
    EnableApi,
    /// The user disables the API.
    #[serde(rename = "disableAPI")]
    DisableApi,
    /// Ours: the user interacts with the tab.
    Activate,
    /// Ours: the tab is navigated.
    Navigate {
        from: Option<String>,
        to: Option<String>,
    },
    /// Ours: the user agent cleans up.
    Maintain,
}

/// Who is the querier of a conversion.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum QuerierInput {
    /// The conversion site.
    #[default]
    ConversionSite,
    /// The intermediary.
    Intermediary,
}

/// Options of an impression, in camelCase.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImpressionInput {
    histogram_index: u32,
    match_value: Option<u32>,
    conversion_sites: Option<Vec<String>>,
    conversion_callers: Option<Vec<String>>,
    lifetime_days: Option<u64>,
    priority: Option<i32>,
}

impl ImpressionInput {
    fn options(&self) -> ImpressionOptions {
        let defaults = ImpressionOptions::new(self.histogram_index);
        ImpressionOptions {
            histogram_index: self.histogram_index,
            match_value: self.match_value.unwrap_or(defaults.match_value),
            conversion_sites: self.conversion_sites.clone().unwrap_or_default(),
            conversion_callers: self.conversion_callers.clone().unwrap_or_default(),
            lifetime_days: self.lifetime_days.unwrap_or(defaults.lifetime_days),
            priority: self.priority.unwrap_or(defaults.priority),
        }
    }
}

/// Options of a conversion, in camelCase.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConversionInput {
    aggregation_service: String,
    histogram_size: u32,
    epsilon: Option<f64>,
    lookback_days: Option<u64>,
    match_values: Option<Vec<u32>>,
    impression_sites: Option<Vec<String>>,
    impression_callers: Option<Vec<String>>,
    credit: Option<Vec<f64>>,
    value: Option<u32>,
    max_value: Option<u32>,
}

impl ConversionInput {
    fn options(&self) -> ConversionOptions {
        let mut options =
            ConversionOptions::new(self.aggregation_service.clone(), self.histogram_size);
        options.epsilon = self.epsilon.unwrap_or(options.epsilon);
        options.lookback_days = self.lookback_days;
        options.match_values = self.match_values.clone().unwrap_or_default();
        options.impression_sites = self.impression_sites.clone().unwrap_or_default();
        options.impression_callers = self.impression_callers.clone().unwrap_or_default();
        if let Some(credit) = &self.credit {
            options.credit.clone_from(credit);
        }
        options.value = self.value.unwrap_or(options.value);
        options.max_value = self.max_value.unwrap_or(options.max_value);
        options
    }
}

/// What a conversion should give.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Expected {
    /// A histogram.
    Histogram(Vec<u32>),
    /// An error.
    Error(ExpectedError),
}

/// The error a call should give.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum ExpectedError {
    /// A plain JavaScript error.
    Plain(String),
    /// A `DOMException`.
    DomException {
        /// Always `DOMException`.
        error: String,
        /// Its name.
        name: String,
    },
}

impl From<&ApiError> for ExpectedError {
    fn from(error: &ApiError) -> Self {
        if error.is_dom_exception() {
            Self::DomException {
                error: "DOMException".to_owned(),
                name: error.name().to_owned(),
            }
        } else {
            Self::Plain(error.name().to_owned())
        }
    }
}

impl fmt::Display for ExpectedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(name) => f.write_str(name),
            Self::DomException { name, .. } => f.write_str(name),
        }
    }
}

/// A header with what it parses to.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HeaderCase {
    header: String,
    value: String,
    base_url: Option<String>,
    expected: Value,
}

/// Credit with what it is allocated to.
#[derive(Debug, Clone, Deserialize)]
pub struct CreditCase {
    credit: Vec<f64>,
    value: u32,
    fraction: Option<f64>,
    fractions: Option<Vec<f64>>,
    expected: Vec<u32>,
}

/// A host with its site.
#[derive(Debug, Clone, Deserialize)]
pub struct SiteCase {
    input: String,
    expected: Value,
}

/// Something that came out otherwise than expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// Where, such as `event 3 (measureConversion at 17 s)`.
    pub at: String,
    /// What was expected.
    pub expected: String,
    /// What came.
    pub got: String,
}

impl Case {
    /// Reads a case from a line of a `.jsonl` file. The keys tell what it is.
    ///
    /// # Errors
    /// If it is no JSON, or no case.
    pub fn parse(line: &str) -> Result<Self, serde_json::Error> {
        let value: Value = serde_json::from_str(line)?;
        let has = |key| value.get(key).is_some();
        if has("header") {
            serde_json::from_value(value).map(Self::Header)
        } else if has("credit") {
            serde_json::from_value(value).map(Self::Credit)
        } else if has("input") {
            serde_json::from_value(value).map(Self::Site)
        } else if has("events") {
            serde_json::from_value(value).map(Self::Scenario)
        } else {
            let why = "no case: it has none of the keys events, header, credit, input";
            Err(serde::de::Error::custom(why))
        }
    }

    /// Its name, if it has one.
    pub fn name(&self) -> String {
        match self {
            Self::Scenario(scenario) => scenario.name.clone(),
            Self::Header(case) => format!("{}: {}", case.header, case.value),
            Self::Credit(case) => format!("credit {:?} of {}", case.credit, case.value),
            Self::Site(case) => format!("site {:?}", case.input),
        }
    }

    /// Runs it. A scenario is played under `profile`, or under its own if there is none.
    ///
    /// # Errors
    /// If it cannot be run: an unknown profile, say.
    pub fn run(&self, profile: Option<Profile>) -> Result<Vec<Mismatch>, String> {
        match self {
            Self::Scenario(scenario) => scenario.run(profile),
            Self::Header(case) => case.run(),
            Self::Credit(case) => Ok(case.run()),
            Self::Site(case) => Ok(case.run()),
        }
    }
}

impl ScenarioConfig {
    /// Reads a configuration, such as the W3C's `CONFIG.json`.
    ///
    /// # Errors
    /// If it is no JSON, or lacks something.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    fn config(&self, profile: Profile) -> Result<Config, String> {
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
        let policy = policy.build().map_err(|error| error.to_string())?;
        let services = self.aggregation_services.keys();
        if !(0.0..1.0).contains(&self.epoch_start) {
            return Err(format!(
                "epochStart must be in [0, 1), got {}",
                self.epoch_start
            ));
        }
        let epochs = self.max_lookback_days / self.privacy_budget_epoch_days.max(1);
        if self.privacy_budget_epoch_days == 0 || epochs > 4000 {
            return Err(format!(
                "privacyBudgetEpochDays must be at least 1 and maxLookbackDays at most 4000 \
                 epochs, got {} and {}",
                self.privacy_budget_epoch_days, self.max_lookback_days
            ));
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
            epoch_start: EpochStart::FirstConversion,
            ..Config::new(profile)
        };
        if let Some(impressions_per_epoch) = self.impressions_per_epoch {
            config.store_limits = StoreLimits {
                impressions_per_epoch,
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
}

impl Randomness for Prescribed {
    fn epoch_start(&mut self) -> f64 {
        self.epoch_start
    }

    fn credit(&mut self) -> f64 {
        self.draws.next().unwrap_or(self.credit)
    }
}

/// A scenario being played.
#[derive(Debug)]
pub struct Player {
    /// The user agent.
    pub agent: UserAgent<Memory, Prescribed>,
    tab: Option<Activation>,
    /// The user actions that the scenario numbers.
    actions: BTreeMap<u64, UserAction>,
    /// Whether the profile knows user actions: only then does beginning one do anything.
    has_actions: bool,
}

/// What an event gave.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// A call that gives nothing back.
    Done,
    /// A report, and why.
    Report(Vec<u32>, Decision),
    /// An error.
    Error(ApiError),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("success"),
            Self::Report(histogram, _) => write!(f, "{histogram:?}"),
            Self::Error(error) => write!(f, "{error}"),
        }
    }
}

impl Scenario {
    /// Reads a file of the W3C's format.
    ///
    /// # Errors
    /// If it is no JSON, or no scenario.
    pub fn parse(name: &str, text: &str) -> Result<Self, serde_json::Error> {
        let mut scenario: Self = serde_json::from_str(text)?;
        name.clone_into(&mut scenario.name);
        Ok(scenario)
    }

    /// Whether it has a configuration of its own.
    pub fn has_config(&self) -> bool {
        self.config.is_some()
    }

    /// Gives it a configuration, unless it has one.
    pub fn set_default_config(&mut self, default: &ScenarioConfig) {
        self.config.get_or_insert_with(|| default.clone());
    }

    /// A user agent to play it on.
    ///
    /// # Errors
    /// If its profile or configuration is invalid.
    pub fn player(&self, profile: Option<Profile>) -> Result<Player, String> {
        let own = match &self.profile {
            Some(name) => Some(name.parse().map_err(|error| format!("{error}"))?),
            None => None,
        };
        let profile = profile.or(own).unwrap_or(Profile::W3cDraft);
        let Some(config) = &self.config else {
            return Err("the scenario has no config".to_owned());
        };
        let prescribed = Prescribed {
            epoch_start: config.epoch_start,
            credit: config.fairly_allocate_credit_fraction,
            draws: Vec::new().into_iter(),
        };
        let duration_ms = config.activation_seconds.map(|s| s.saturating_mul(1000));
        let config = config.config(profile)?;
        Ok(Player {
            has_actions: !config.policy.matches_own_action(),
            agent: UserAgent::in_memory(config, prescribed),
            tab: duration_ms.map(Activation::new),
            actions: BTreeMap::new(),
        })
    }

    fn run(&self, profile: Option<Profile>) -> Result<Vec<Mismatch>, String> {
        let mut player = self.player(profile)?;
        let mut mismatches = Vec::new();
        for (number, event) in self.events.iter().enumerate() {
            let outcome = player.play(event);
            if let Some((expected, got)) = event.differs(&outcome) {
                mismatches.push(Mismatch {
                    at: format!("event {number} ({} at {} s)", event.name(), event.seconds),
                    expected,
                    got,
                });
            }
        }
        Ok(mismatches)
    }
}

impl Event {
    /// The name of what happens.
    pub fn name(&self) -> &'static str {
        match self.action {
            Action::SaveImpression { .. } => "saveImpression",
            Action::MeasureConversion { .. } => "measureConversion",
            Action::ClearImpressionsForSite { .. } => "clearImpressionsForSite",
            Action::ClearBrowsingHistoryForAttribution { .. } => {
                "clearBrowsingHistoryForAttribution"
            }
            Action::EnableApi => "enableAPI",
            Action::DisableApi => "disableAPI",
            Action::Activate => "activate",
            Action::Navigate { .. } => "navigate",
            Action::Maintain => "maintain",
        }
    }

    /// The moment it happens.
    pub fn moment(&self) -> Timestamp {
        Timestamp(self.seconds.saturating_mul(1000))
    }

    /// The conversion it measures: the call and its options.
    pub fn conversion(&self) -> Option<(Call<'_>, ConversionOptions)> {
        let Action::MeasureConversion {
            site,
            intermediary_site,
            querier,
            options,
            ..
        } = &self.action
        else {
            return None;
        };
        let call = Call {
            intermediary: intermediary_site.as_deref(),
            querier: match querier {
                QuerierInput::ConversionSite => Querier::ConversionSite,
                QuerierInput::Intermediary => Querier::Intermediary,
            },
            ..Call::new(site, self.moment())
        };
        Some((call, options.options()))
    }

    /// What was expected and what came, if they differ.
    fn differs(&self, outcome: &Outcome) -> Option<(String, String)> {
        let error_of = |outcome: &Outcome| match outcome {
            Outcome::Error(error) => Some(ExpectedError::from(error)),
            _ => None,
        };
        let differ =
            |expected: &dyn fmt::Display| Some((expected.to_string(), outcome.to_string()));
        match &self.action {
            Action::SaveImpression { expected_error, .. }
            | Action::ClearBrowsingHistoryForAttribution { expected_error, .. } => {
                if error_of(outcome) == *expected_error {
                    return None;
                }
                match expected_error {
                    Some(error) => differ(error),
                    None => differ(&"success"),
                }
            }
            Action::MeasureConversion {
                expected,
                expected_cause,
                ..
            } => match (expected, outcome) {
                (Expected::Histogram(histogram), Outcome::Report(report, decision)) => {
                    if histogram != report {
                        return differ(&format!("{histogram:?}"));
                    }
                    let cause = decision.first_cause().map(|cause| cause.to_string());
                    if expected_cause.is_some() && cause != *expected_cause {
                        let name = |cause: &Option<String>| cause.clone().unwrap_or("none".into());
                        return Some((
                            format!("cause {}", name(expected_cause)),
                            format!("cause {}", name(&cause)),
                        ));
                    }
                    None
                }
                (Expected::Histogram(histogram), _) => differ(&format!("{histogram:?}")),
                (Expected::Error(error), _) => {
                    if error_of(outcome).as_ref() == Some(error) {
                        return None;
                    }
                    differ(error)
                }
            },
            _ => error_of(outcome).and_then(|_| differ(&"success")),
        }
    }
}

impl Player {
    /// Says what the conversion of an event would give, and why, without playing it.
    pub fn explain(&mut self, event: &Event) -> Option<Explanation> {
        let Action::MeasureConversion {
            draws, user_action, ..
        } = &event.action
        else {
            return None;
        };
        let (mut call, options) = event.conversion()?;
        let known = user_action.and_then(|number| self.actions.get(&number));
        // One that has not begun yet has done nothing yet.
        call.user_action = match known {
            Some(action) => Some(*action),
            None => self.user_action(None, event.moment()),
        };
        self.prescribe(draws.as_deref());
        self.agent.explain(&call, &options).ok()
    }

    /// The user action of a number, or one of its own.
    fn user_action(&mut self, number: Option<u64>, now: Timestamp) -> Option<UserAction> {
        if !self.has_actions {
            return None;
        }
        let known = number.and_then(|number| self.actions.get(&number));
        let Ok(action) = match known {
            Some(&action) => self.agent.continue_user_action(action, now),
            None => self.agent.begin_user_action(now),
        };
        if let Some(number) = number {
            self.actions.insert(number, action);
        }
        Some(action)
    }

    fn prescribe(&mut self, draws: Option<&[f64]>) {
        let draws = draws.unwrap_or_default().to_vec();
        self.agent.randomness_mut().draws = draws.into_iter();
    }

    /// Plays one event.
    pub fn play(&mut self, event: &Event) -> Outcome {
        let now = event.moment();
        match self.try_play(event, now) {
            Ok(outcome) => outcome,
            Err(AgentError::Api(error)) => Outcome::Error(error),
            Err(AgentError::Store(never)) => match never {},
        }
    }

    fn try_play(
        &mut self,
        event: &Event,
        now: Timestamp,
    ) -> Result<Outcome, AgentError<Infallible>> {
        match &event.action {
            Action::SaveImpression {
                site,
                intermediary_site,
                user_action,
                options,
                ..
            } => {
                check_activation(&mut self.tab, now)?;
                let call = Call {
                    intermediary: intermediary_site.as_deref(),
                    user_action: self.user_action(*user_action, now),
                    ..Call::new(site, now)
                };
                self.agent.save_impression(&call, &options.options())?;
            }
            Action::MeasureConversion {
                draws, user_action, ..
            } => {
                check_activation(&mut self.tab, now)?;
                let Some((mut call, options)) = event.conversion() else {
                    return Ok(Outcome::Done);
                };
                call.user_action = self.user_action(*user_action, now);
                self.prescribe(draws.as_deref());
                let answer = self.agent.measure_conversion(&call, &options)?;
                let released = answer.report.release(now, Timestamp(i64::MAX));
                let histogram = released.map(|report| report.buckets().to_vec());
                return Ok(Outcome::Report(
                    histogram.unwrap_or_default(),
                    answer.decision,
                ));
            }
            Action::ClearImpressionsForSite { site } => {
                let Ok(()) = self.agent.clear_impressions_for_site(site);
            }
            Action::ClearBrowsingHistoryForAttribution {
                sites,
                forget_visits,
                ..
            } => self
                .agent
                .clear_browsing_history(sites, *forget_visits, now)?,
            Action::EnableApi => {
                let Ok(()) = self.agent.set_enabled(true);
            }
            Action::DisableApi => {
                let Ok(()) = self.agent.set_enabled(false);
            }
            Action::Activate => {
                if let Some(tab) = &mut self.tab {
                    tab.activate(now);
                }
            }
            Action::Navigate { from, to } => {
                let site = |host: &Option<String>| {
                    let host = host.as_deref()?;
                    Site::parse(host, Localhost::Refused).ok()
                };
                if let Some(tab) = &mut self.tab {
                    tab.navigate(site(from).as_ref(), site(to).as_ref());
                }
            }
            Action::Maintain => {
                let Ok(()) = self.agent.maintain(now);
            }
        }
        Ok(Outcome::Done)
    }
}

fn check_activation(tab: &mut Option<Activation>, now: Timestamp) -> Result<(), ApiError> {
    match tab {
        Some(tab) => Ok(tab.check(now)?),
        None => Ok(()),
    }
}

impl HeaderCase {
    fn run(&self) -> Result<Vec<Mismatch>, String> {
        let parsed = match self.header.to_ascii_lowercase().as_str() {
            "save-impression" => parse_save_impression(self.value.as_bytes())
                .map(|options| impression_json(&options)),
            "measure-conversion" => {
                let base = self.base_url.as_deref().unwrap_or("https://base.example/");
                let base = Url::parse(base).map_err(|error| format!("baseUrl {base}: {error}"))?;
                parse_measure_conversion(self.value.as_bytes(), &base)
                    .map(|(options, url)| conversion_json(&options, &url))
            }
            other => return Err(format!("there is no header {other}")),
        };
        let expects_error = self.expected.get("error").is_some();
        let same = match &parsed {
            Err(_) => expects_error,
            Ok((got, defaults)) => !expects_error && present(&self.expected, got, defaults),
        };
        if same {
            return Ok(Vec::new());
        }
        Ok(vec![Mismatch {
            at: self.header.clone(),
            expected: self.expected.to_string(),
            got: match parsed {
                Ok((got, _)) => got.to_string(),
                Err(error) => error.to_string(),
            },
        }])
    }
}

/// The options of a header, and which of them are defaults.
fn impression_json(options: &ImpressionOptions) -> (Value, Value) {
    let json = |options: &ImpressionOptions| {
        json!({
            "histogramIndex": options.histogram_index,
            "matchValue": options.match_value,
            "conversionSites": options.conversion_sites,
            "conversionCallers": options.conversion_callers,
            "lifetimeDays": options.lifetime_days,
            "priority": options.priority,
        })
    };
    let defaults = ImpressionOptions::new(options.histogram_index);
    (json(options), json(&defaults))
}

fn conversion_json(options: &ConversionOptions, url: &Url) -> (Value, Value) {
    let json = |options: &ConversionOptions| {
        json!({
            "aggregationService": options.aggregation_service,
            "histogramSize": options.histogram_size,
            "epsilon": options.epsilon,
            "lookbackDays": options.lookback_days,
            "matchValues": options.match_values,
            "impressionSites": options.impression_sites,
            "impressionCallers": options.impression_callers,
            "credit": options.credit,
            "value": options.value,
            "maxValue": options.max_value,
            "reportUrl": url.as_str(),
        })
    };
    let service = options.aggregation_service.clone();
    let defaults = ConversionOptions::new(service, options.histogram_size);
    (json(options), json(&defaults))
}

/// Whether every expected key has its value, and every other its default.
fn present(expected: &Value, got: &Value, defaults: &Value) -> bool {
    let (Some(expected), Some(got)) = (expected.as_object(), got.as_object()) else {
        return false;
    };
    expected.keys().all(|key| got.contains_key(key))
        && got.iter().all(|(key, value)| {
            let wanted = expected.get(key).or(defaults.get(key));
            wanted.is_some_and(|wanted| equal(wanted, value))
        })
}

/// Equality of JSON in which 1 is 1.0.
fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b))
        }
        _ => a == b,
    }
}

impl CreditCase {
    fn run(&self) -> Vec<Mismatch> {
        let mut draws = self.fractions.clone().unwrap_or_default().into_iter();
        let constant = self.fraction.unwrap_or_default();
        let draw = || draws.next().unwrap_or(constant);
        let got = allocate_credit(&self.credit, self.value, draw);
        mismatch("credit", format!("{:?}", self.expected), format!("{got:?}"))
    }
}

impl SiteCase {
    fn run(&self) -> Vec<Mismatch> {
        let got = match Site::parse(&self.input, Localhost::Refused) {
            Ok(site) => json!(site.as_str()),
            Err(_) => json!({"error": "SyntaxError"}),
        };
        mismatch("site", self.expected.to_string(), got.to_string())
    }
}

fn mismatch(at: &str, expected: String, got: String) -> Vec<Mismatch> {
    if expected == got {
        return Vec::new();
    }
    vec![Mismatch {
        at: at.to_owned(),
        expected,
        got,
    }]
}
