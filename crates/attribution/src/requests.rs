//! Calls as JSON, and a player that makes them: for tools, tests and other processes.
//!
//! The names are those of the W3C's end-to-end tests; `docs/vectors.md` describes them, with what
//! we add.

use std::collections::BTreeMap;
use std::fmt;

use bigbird::{Decision, Histogram, Timestamp};
use serde::{Deserialize, Serialize};

use crate::activation::Activation;
use crate::agent::{Answer, UserAgent};
use crate::call::{Action, Call, Caller, Querier};
use crate::config::Randomness;
use crate::error::{AgentError, ApiError, RangeError};
use crate::explain::Explanation;
use crate::options::{ConversionOptions, ImpressionOptions};
use crate::release::Held;
use crate::shared::SharedConversion;
use crate::site::Site;
use crate::storage::Storage;

/// What somebody does.
#[derive(Debug, Clone, Deserialize)]
#[serde(
    tag = "event",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
#[allow(missing_docs, reason = "the fields are those of the calls")]
pub enum Request {
    /// A page saves an impression.
    SaveImpression {
        #[serde(flatten)]
        caller: CallerInput,
        options: ImpressionInput,
    },
    /// A page measures a conversion.
    MeasureConversion {
        #[serde(flatten)]
        caller: CallerInput,
        querier: Option<QuerierInput>,
        options: ConversionInput,
    },
    /// Ours: a page creates a conversion that several intermediaries share.
    CreateSharedConversion {
        #[serde(flatten)]
        caller: CallerInput,
        querier: Option<QuerierInput>,
        options: ConversionInput,
        participants: Vec<String>,
    },
    /// Ours: a page takes its share of a shared conversion.
    TakeShare {
        #[serde(flatten)]
        caller: CallerInput,
        querier: Option<QuerierInput>,
        options: ConversionInput,
        shared: SharedConversion,
    },
    /// A response asks to clear a site's data.
    ClearImpressionsForSite { site: String },
    /// The user clears browsing history.
    ClearBrowsingHistoryForAttribution {
        sites: Vec<String>,
        forget_visits: bool,
    },
    /// The user enables the API.
    #[serde(rename = "enableAPI")]
    EnableApi,
    /// The user disables the API.
    #[serde(rename = "disableAPI")]
    DisableApi,
    /// The user interacts with a tab.
    #[serde(alias = "activate")]
    UpdateActivationTimestamp {
        top_level_traversable: Option<String>,
    },
    /// Ours: a tab is navigated.
    Navigate {
        top_level_traversable: Option<String>,
        from: Option<String>,
        to: Option<String>,
    },
    /// Ours: the user agent cleans up.
    Maintain,
}

/// Who makes a call.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CallerInput {
    /// The host of the top-level page.
    pub site: String,
    /// The host of the frame that calls, if it is of another site.
    pub intermediary_site: Option<String>,
    /// The number of the user action that caused the call.
    pub user_action: Option<u64>,
    /// The tab, where that matters: if it is named, the call needs an activation of it.
    pub top_level_traversable: Option<String>,
}

impl CallerInput {
    fn call(&self, now: Timestamp, querier: Querier) -> Numbered<'_> {
        Numbered {
            call: Call {
                intermediary: self.intermediary_site.as_deref(),
                querier,
                ..Call::new(&self.site, now)
            },
            user_action: self.user_action,
        }
    }
}

/// Who is the querier of a conversion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum QuerierInput {
    /// The conversion site.
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
    pub(crate) fn options(&self) -> ImpressionOptions {
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
    pub(crate) fn options(&self) -> ConversionOptions {
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

impl Request {
    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::SaveImpression { .. } => "saveImpression",
            Self::MeasureConversion { .. } => "measureConversion",
            Self::CreateSharedConversion { .. } => "createSharedConversion",
            Self::TakeShare { .. } => "takeShare",
            Self::ClearImpressionsForSite { .. } => "clearImpressionsForSite",
            Self::ClearBrowsingHistoryForAttribution { .. } => "clearBrowsingHistoryForAttribution",
            Self::EnableApi => "enableAPI",
            Self::DisableApi => "disableAPI",
            Self::UpdateActivationTimestamp { .. } => "updateActivationTimestamp",
            Self::Navigate { .. } => "navigate",
            Self::Maintain => "maintain",
        }
    }

    /// The impression it saves: the call and its options.
    pub fn impression(&self, now: Timestamp) -> Option<(Numbered<'_>, ImpressionOptions)> {
        match self {
            Self::SaveImpression { caller, options } => {
                Some((caller.call(now, Querier::default()), options.options()))
            }
            _ => None,
        }
    }

    /// The conversion it measures, creates to share, or takes a share of: the call and its options.
    pub fn conversion(&self, now: Timestamp) -> Option<(Numbered<'_>, ConversionOptions)> {
        let (caller, querier, options) = match self {
            Self::MeasureConversion {
                caller,
                querier,
                options,
            }
            | Self::CreateSharedConversion {
                caller,
                querier,
                options,
                ..
            } => (caller, *querier, options),
            // Who takes a share receives it and pays, so there is nothing to choose.
            Self::TakeShare {
                caller, options, ..
            } => (caller, None, options),
            _ => return None,
        };
        let querier = match querier {
            Some(QuerierInput::Intermediary) => Querier::Intermediary,
            Some(QuerierInput::ConversionSite) | None => Querier::ConversionSite,
        };
        Some((caller.call(now, querier), options.options()))
    }

    /// The tab that it names.
    fn tab(&self) -> Option<&str> {
        match self {
            Self::SaveImpression { caller, .. }
            | Self::MeasureConversion { caller, .. }
            | Self::CreateSharedConversion { caller, .. }
            | Self::TakeShare { caller, .. } => caller.top_level_traversable.as_deref(),
            Self::UpdateActivationTimestamp {
                top_level_traversable,
            }
            | Self::Navigate {
                top_level_traversable,
                ..
            } => top_level_traversable.as_deref(),
            _ => None,
        }
    }
}

/// A call, and the number of the user action that caused it, if it is known.
#[derive(Debug, Clone, Copy)]
pub struct Numbered<'a> {
    /// The call, without the user action.
    pub call: Call<'a>,
    user_action: Option<u64>,
}

/// What a request gave.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// A call that gives nothing back.
    Done,
    /// A report, held until it is time, and why.
    Report(Held<Histogram>, Decision),
    /// The handle of a shared conversion, held until it is time, and why.
    Shared(Held<SharedConversion>, Decision),
}

/// Makes requests to a user agent, as the tabs of a browser.
#[derive(Debug)]
pub struct Player<S, R> {
    /// The user agent.
    pub agent: UserAgent<S, R>,
    /// How long an activation lasts, if also calls need one that name no tab.
    activation_ms: Option<i64>,
    /// The tabs in which something happened; the one without a name is `None`.
    tabs: BTreeMap<Option<String>, Activation>,
}

/// How long an activation lasts in the W3C's end-to-end tests, in which calls name their tab.
const ACTIVATION_MS: i64 = 1_000_000;

impl<S: Storage, R: Randomness> Player<S, R> {
    /// On a user agent, whose calls need an activation that lasts so long. If it is not said how
    /// long, only calls that name their tab need one.
    pub fn new(agent: UserAgent<S, R>, activation_ms: Option<i64>) -> Self {
        Self {
            agent,
            activation_ms,
            tabs: BTreeMap::new(),
        }
    }

    /// Makes a request.
    ///
    /// # Errors
    /// If the call is invalid, or the store failed.
    pub fn play(
        &mut self,
        request: &Request,
        now: Timestamp,
    ) -> Result<Outcome, AgentError<S::Error>> {
        if let Some((call, options)) = request.impression(now) {
            self.check_activation(request, now)?;
            let call = self.with_action(call)?;
            self.agent.save_impression(&call, &options)?;
            return Ok(Outcome::Done);
        }
        if let Some((call, options)) = request.conversion(now) {
            self.check_activation(request, now)?;
            self.check_share(request, &call.call)?;
            let call = self.with_action(call)?;
            return self.measure(request, &call, &options);
        }
        match request {
            Request::ClearImpressionsForSite { site } => {
                let cleared = self.agent.clear_impressions_for_site(site);
                cleared.map_err(AgentError::Store)?;
            }
            Request::ClearBrowsingHistoryForAttribution {
                sites,
                forget_visits,
            } => self
                .agent
                .clear_browsing_history(sites, *forget_visits, now)?,
            Request::EnableApi => self.agent.set_enabled(true).map_err(AgentError::Store)?,
            Request::DisableApi => self.agent.set_enabled(false).map_err(AgentError::Store)?,
            Request::UpdateActivationTimestamp { .. } => self.tab(request).activate(now),
            Request::Navigate { from, to, .. } => {
                let localhost = self.agent.config().localhost;
                let site = |host: &Option<String>| {
                    let host = host.as_deref()?;
                    Site::parse(host, localhost).ok()
                };
                let tab = self.tab(request);
                tab.navigate(site(from).as_ref(), site(to).as_ref());
            }
            Request::Maintain => self.agent.maintain(now).map_err(AgentError::Store)?,
            Request::SaveImpression { .. }
            | Request::MeasureConversion { .. }
            | Request::CreateSharedConversion { .. }
            | Request::TakeShare { .. } => {}
        }
        Ok(Outcome::Done)
    }

    fn measure(
        &mut self,
        request: &Request,
        call: &Call<'_>,
        options: &ConversionOptions,
    ) -> Result<Outcome, AgentError<S::Error>> {
        let agent = &mut self.agent;
        let Answer { report, decision } = match request {
            Request::CreateSharedConversion { participants, .. } => {
                let created =
                    agent.create_shared_conversion(call, options, &strings(participants))?;
                return Ok(Outcome::Shared(created.shared, created.decision));
            }
            Request::TakeShare { shared, .. } => agent.take_share(*shared, call, options)?,
            _ => agent.measure_conversion(call, options)?,
        };
        Ok(Outcome::Report(report, decision))
    }

    /// Says what a request that measures would give, and why, without measuring; nothing if it
    /// measures nothing.
    ///
    /// # Errors
    /// If the call is invalid, or the store failed.
    pub fn explain(
        &mut self,
        request: &Request,
        now: Timestamp,
    ) -> Result<Option<Explanation>, AgentError<S::Error>> {
        let Some((call, options)) = request.conversion(now) else {
            return Ok(None);
        };
        self.check_share(request, &call.call)?;
        let call = &match call.user_action {
            Some(_) => self.with_action(call)?,
            // To begin one would be to store something.
            None => call.call.by(Action::supposed()),
        };
        let agent = &mut self.agent;
        let explained = match request {
            Request::CreateSharedConversion { participants, .. } => {
                agent.explain_shared_conversion(call, &options, &strings(participants))
            }
            Request::TakeShare { shared, .. } => agent.explain_share(*shared, call, &options),
            _ => agent.explain(call, &options),
        };
        explained.map(Some)
    }

    /// The call with its user action: that of its number, or one of its own.
    ///
    /// # Errors
    /// If the number is too large, or the store failed.
    pub fn with_action<'a>(
        &mut self,
        numbered: Numbered<'a>,
    ) -> Result<Call<'a>, AgentError<S::Error>> {
        let Numbered { call, user_action } = numbered;
        if self.agent.config().policy.matches_own_action() {
            // It does not look at user actions.
            return Ok(call);
        }
        let action = match user_action {
            Some(number) => Action::numbered(number).map_err(ApiError::from)?,
            None => self
                .agent
                .begin_user_action(call.now)
                .map_err(AgentError::Store)?,
        };
        Ok(call.by(action))
    }

    /// Whoever takes a share is its querier: a request that says otherwise is wrong.
    fn check_share(&self, request: &Request, call: &Call<'_>) -> Result<(), ApiError> {
        let Request::TakeShare {
            querier: Some(querier),
            ..
        } = request
        else {
            return Ok(());
        };
        let caller = Caller::parse(call, self.agent.config().localhost)?;
        let (taker, allowed) = match caller.intermediary {
            Some(_) => (
                QuerierInput::Intermediary,
                "the intermediary, which takes the share",
            ),
            None => (
                QuerierInput::ConversionSite,
                "the conversion site, which takes the share",
            ),
        };
        if *querier == taker {
            return Ok(());
        }
        let got = match querier {
            QuerierInput::ConversionSite => "the conversion site",
            QuerierInput::Intermediary => "the intermediary",
        };
        Err(RangeError::new("querier", allowed, got).into())
    }

    fn check_activation(&mut self, request: &Request, now: Timestamp) -> Result<(), ApiError> {
        if request.tab().is_some() || self.activation_ms.is_some() {
            self.tab(request).check(now)?;
        }
        Ok(())
    }

    /// The tab of a request.
    fn tab(&mut self, request: &Request) -> &mut Activation {
        let lasts = self.activation_ms.unwrap_or(ACTIVATION_MS);
        let tab = self.tabs.entry(request.tab().map(str::to_owned));
        tab.or_insert(Activation::new(lasts))
    }
}

fn strings(list: &[String]) -> Vec<&str> {
    list.iter().map(String::as_str).collect()
}

/// An error as JSON: a JavaScript error by its name, a `DOMException` as an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ErrorName {
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

impl From<&ApiError> for ErrorName {
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

impl fmt::Display for ErrorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(name) => f.write_str(name),
            Self::DomException { name, .. } => f.write_str(name),
        }
    }
}
