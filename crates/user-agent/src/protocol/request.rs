//! Calls as JSON. The names are those of the W3C's end-to-end tests, with what we add.

use bigbird::Timestamp;
use serde::Deserialize;

use crate::call::{Call, Querier};
use crate::options::{ConversionOptions, ImpressionOptions};
use crate::shared::SharedConversion;

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
    pub(super) fn tab(&self) -> Option<&str> {
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
    pub(super) user_action: Option<u64>,
}
