//! Calls as JSON. The names are those of the W3C's end-to-end tests. Those that we add are marked
//! as ours.

use bigbird::Timestamp;
use serde::Deserialize;

use crate::call::{Action, Call, CallSites, QuerierRole};
use crate::config::Config;
use crate::error::{ApiError, RangeError};
use crate::options::{ConversionOptions, ImpressionOptions};
use crate::shared::SharedConversion;

/// A request: something that a page, a site or the user does.
#[derive(Debug, Clone, Deserialize)]
#[serde(
    tag = "event",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
#[allow(missing_docs, reason = "the fields are those of the calls")]
pub enum AgentRequest {
    /// A page saves an impression.
    SaveImpression {
        #[serde(flatten)]
        caller: CallerInput,
        options: ImpressionOptions,
    },
    /// A page measures a conversion.
    MeasureConversion {
        #[serde(flatten)]
        caller: CallerInput,
        querier: Option<QuerierInput>,
        options: ConversionOptions,
    },
    /// Ours: a page creates a conversion that several intermediaries share.
    CreateSharedConversion {
        #[serde(flatten)]
        caller: CallerInput,
        querier: Option<QuerierInput>,
        options: ConversionOptions,
        participants: Vec<String>,
    },
    /// Ours: a page takes its share of a shared conversion.
    TakeShare {
        #[serde(flatten)]
        caller: CallerInput,
        querier: Option<QuerierInput>,
        options: ConversionOptions,
        shared: SharedConversion,
    },
    /// A response asks to clear a site's data.
    ClearImpressionsForSite {
        site: String,
        /// Ours: true if the user asks for it, who is told when it is done.
        #[serde(default)]
        by_user: bool,
    },
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
    /// Ours: the user confirms that the clock is right now, after it was far ahead.
    RestartEpochs,
}

/// The caller of a page's call.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CallerInput {
    /// The host of the top-level page.
    pub site: String,
    /// The host of the frame that calls, if it belongs to another site.
    pub intermediary_site: Option<String>,
    /// The number of the user action that caused the call.
    pub user_action: Option<u64>,
    /// Words for the user action, for history.
    pub action_label: Option<String>,
    /// True if the call comes from a private window. It is answered like any other and does
    /// nothing.
    #[serde(default)]
    pub private: bool,
    /// The tab, if activation matters. A call that names a tab needs an activation of that tab.
    pub top_level_traversable: Option<String>,
}

impl CallerInput {
    fn call(&self, now: Timestamp, querier: QuerierRole) -> NumberedCall<'_> {
        NumberedCall {
            call: Call {
                intermediary: self.intermediary_site.as_deref(),
                action_label: self.action_label.as_deref(),
                querier,
                ..Call::new(&self.site, now)
            },
            user_action: self.user_action,
        }
    }
}

/// The querier of a conversion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum QuerierInput {
    /// The conversion site.
    ConversionSite,
    /// The intermediary.
    Intermediary,
}

impl AgentRequest {
    /// The name of the request.
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
            Self::RestartEpochs => "restartEpochs",
        }
    }

    /// The impression that the request saves: the call and its options.
    pub fn impression(&self, now: Timestamp) -> Option<(NumberedCall<'_>, &ImpressionOptions)> {
        match self {
            Self::SaveImpression { caller, options } => {
                Some((caller.call(now, QuerierRole::default()), options))
            }
            _ => None,
        }
    }

    /// The conversion that the request measures, creates to share, or takes a share of: the call
    /// and its options.
    pub fn conversion(&self, now: Timestamp) -> Option<(NumberedCall<'_>, &ConversionOptions)> {
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
            // The caller of a share receives the report and pays, so there is no querier to choose.
            Self::TakeShare {
                caller, options, ..
            } => (caller, None, options),
            _ => return None,
        };
        let querier = match querier {
            Some(QuerierInput::Intermediary) => QuerierRole::Intermediary,
            Some(QuerierInput::ConversionSite) | None => QuerierRole::ConversionSite,
        };
        Some((caller.call(now, querier), options))
    }

    /// Checks the querier of a request that takes a share. If the request names one, it must be the
    /// caller.
    pub(super) fn check_share(&self, call: &Call<'_>, config: &Config) -> Result<(), ApiError> {
        let Self::TakeShare {
            querier: Some(querier),
            ..
        } = self
        else {
            return Ok(());
        };
        let caller = CallSites::parse(call, config)?;
        let (taker, allowed) = match caller.intermediary {
            Some(_) => (
                QuerierInput::Intermediary,
                "the intermediary because it takes the share",
            ),
            None => (
                QuerierInput::ConversionSite,
                "the conversion site because it takes the share",
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

    /// The caller of a page's call.
    fn caller(&self) -> Option<&CallerInput> {
        match self {
            Self::SaveImpression { caller, .. }
            | Self::MeasureConversion { caller, .. }
            | Self::CreateSharedConversion { caller, .. }
            | Self::TakeShare { caller, .. } => Some(caller),
            _ => None,
        }
    }

    /// True if a page in a private window makes the call.
    pub fn is_private(&self) -> bool {
        self.caller().is_some_and(|caller| caller.private)
    }

    /// The tab that the request names.
    pub(super) fn tab(&self) -> Option<&str> {
        match self {
            Self::UpdateActivationTimestamp {
                top_level_traversable,
            }
            | Self::Navigate {
                top_level_traversable,
                ..
            } => top_level_traversable.as_deref(),
            _ => self.caller()?.top_level_traversable.as_deref(),
        }
    }
}

/// A call, with the number of the user action that caused it if that is known.
#[derive(Debug, Clone, Copy)]
pub struct NumberedCall<'a> {
    /// The call, without the user action.
    pub call: Call<'a>,
    pub(super) user_action: Option<u64>,
}

impl<'a> NumberedCall<'a> {
    /// The call with the user action of its number, if it has one.
    pub(super) fn with_action(self) -> Result<Call<'a>, ApiError> {
        Ok(match self.user_action {
            Some(number) => self.call.by(Action::numbered(number)?),
            None => self.call,
        })
    }
}
