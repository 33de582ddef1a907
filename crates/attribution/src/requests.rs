//! Calls as JSON, and a player that makes them: for tools, tests and other processes.
//!
//! The names are those of the W3C's end-to-end tests; `docs/vectors.md` describes them, with what
//! we add.

use std::fmt;

use bigbird::{Decision, Histogram, Timestamp};
use serde::{Deserialize, Serialize};

use crate::activation::Activation;
use crate::agent::{Answer, UserAgent};
use crate::call::{Action, Call, Querier};
use crate::config::Randomness;
use crate::error::{AgentError, ApiError};
use crate::explain::Explanation;
use crate::options::{ConversionOptions, ImpressionOptions};
use crate::release::Held;
use crate::site::{Localhost, Site};
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
        site: String,
        intermediary_site: Option<String>,
        user_action: Option<u64>,
        options: ImpressionInput,
    },
    /// A page measures a conversion.
    MeasureConversion {
        site: String,
        intermediary_site: Option<String>,
        user_action: Option<u64>,
        #[serde(default)]
        querier: QuerierInput,
        options: ConversionInput,
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
            Self::ClearImpressionsForSite { .. } => "clearImpressionsForSite",
            Self::ClearBrowsingHistoryForAttribution { .. } => "clearBrowsingHistoryForAttribution",
            Self::EnableApi => "enableAPI",
            Self::DisableApi => "disableAPI",
            Self::Activate => "activate",
            Self::Navigate { .. } => "navigate",
            Self::Maintain => "maintain",
        }
    }

    /// The impression it saves: the call and its options.
    pub fn impression(&self, now: Timestamp) -> Option<(Numbered<'_>, ImpressionOptions)> {
        let Self::SaveImpression {
            site,
            intermediary_site,
            user_action,
            options,
        } = self
        else {
            return None;
        };
        let call = Call {
            intermediary: intermediary_site.as_deref(),
            ..Call::new(site, now)
        };
        Some((
            Numbered {
                call,
                user_action: *user_action,
            },
            options.options(),
        ))
    }

    /// The conversion it measures: the call and its options.
    pub fn conversion(&self, now: Timestamp) -> Option<(Numbered<'_>, ConversionOptions)> {
        let Self::MeasureConversion {
            site,
            intermediary_site,
            user_action,
            querier,
            options,
        } = self
        else {
            return None;
        };
        let call = Call {
            intermediary: intermediary_site.as_deref(),
            querier: match querier {
                QuerierInput::ConversionSite => Querier::ConversionSite,
                QuerierInput::Intermediary => Querier::Intermediary,
            },
            ..Call::new(site, now)
        };
        Some((
            Numbered {
                call,
                user_action: *user_action,
            },
            options.options(),
        ))
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
}

/// Makes requests to a user agent, as one tab of a browser.
#[derive(Debug)]
pub struct Player<S, R> {
    /// The user agent.
    pub agent: UserAgent<S, R>,
    /// Whether calls need a user activation.
    tab: Option<Activation>,
}

impl<S: Storage, R: Randomness> Player<S, R> {
    /// On a user agent, whose calls need an activation that lasts so long, or none.
    pub fn new(agent: UserAgent<S, R>, activation_ms: Option<i64>) -> Self {
        Self {
            agent,
            tab: activation_ms.map(Activation::new),
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
        match request {
            Request::SaveImpression { .. } => {
                if let Some((call, options)) = request.impression(now) {
                    self.check_activation(now)?;
                    let call = self.with_action(call)?;
                    self.agent.save_impression(&call, &options)?;
                }
            }
            Request::MeasureConversion { .. } => {
                if let Some((call, options)) = request.conversion(now) {
                    self.check_activation(now)?;
                    let call = self.with_action(call)?;
                    let Answer { report, decision } =
                        self.agent.measure_conversion(&call, &options)?;
                    return Ok(Outcome::Report(report, decision));
                }
            }
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
            Request::Activate => {
                if let Some(tab) = &mut self.tab {
                    tab.activate(now);
                }
            }
            Request::Navigate { from, to } => {
                let site = |host: &Option<String>| {
                    let host = host.as_deref()?;
                    Site::parse(host, Localhost::Refused).ok()
                };
                if let Some(tab) = &mut self.tab {
                    tab.navigate(site(from).as_ref(), site(to).as_ref());
                }
            }
            Request::Maintain => self.agent.maintain(now).map_err(AgentError::Store)?,
        }
        Ok(Outcome::Done)
    }

    /// Says what the conversion of a request would give, and why, without measuring it; nothing if
    /// it measures none.
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
        let call = self.with_action(call)?;
        self.agent.explain(&call, &options).map(Some)
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
            // Without user actions, beginning one would only choose when epochs begin.
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

    fn check_activation(&mut self, now: Timestamp) -> Result<(), ApiError> {
        match &mut self.tab {
            Some(tab) => Ok(tab.check(now)?),
            None => Ok(()),
        }
    }
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
