//! Requests to parse a response header.

use bigbird_user_agent::protocol::AgentAnswer;
use bigbird_user_agent::{
    HeaderError, parse_clear_site_data, parse_measure_conversion, parse_permissions_policy,
    parse_save_impression,
};
use serde::Deserialize;
use serde_json::json;
use url::Url;

use crate::gate::error;

/// Asks to parse the value of a response header. Several headers of one name are joined with commas
/// first, as in HTTP.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HeaderRequest {
    name: HeaderName,
    value: String,
    /// The URL of the response, for a header with a relative URL.
    base: Option<String>,
}

/// The headers that concern the API.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum HeaderName {
    SaveImpression,
    MeasureConversion,
    PermissionsPolicy,
    ClearSiteData,
}

impl HeaderRequest {
    pub(crate) fn answer(self) -> AgentAnswer {
        let base = match self.base.as_deref().map(Url::parse) {
            Some(Ok(base)) => Some(base),
            Some(Err(error)) => {
                let why = format!("parseHeader: `base` must be a URL: {error}");
                return AgentAnswer::malformed(&why);
            }
            None => None,
        };
        let answer = match (self.name, base) {
            (HeaderName::MeasureConversion, None) => {
                let why = "parseHeader requires `base` (the URL of the response) for \
                           measure-conversion, but it is missing";
                return AgentAnswer::malformed(why);
            }
            (HeaderName::MeasureConversion, Some(base)) => self.conversion(&base),
            (HeaderName::SaveImpression, _) => parse_save_impression(self.bytes())
                .map(|options| AgentAnswer::done().with("options", json!(options))),
            (HeaderName::PermissionsPolicy, _) => parse_permissions_policy(self.bytes())
                .map(|policy| AgentAnswer::done().with("policy", json!(policy))),
            (HeaderName::ClearSiteData, _) => parse_clear_site_data(self.bytes())
                .map(|clears| AgentAnswer::done().with("impressions", json!(clears))),
        };
        answer.unwrap_or_else(|why| error("HeaderError", &why.to_string()))
    }

    fn conversion(&self, base: &Url) -> Result<AgentAnswer, HeaderError> {
        let (options, report_url) = parse_measure_conversion(self.bytes(), base)?;
        let answer = AgentAnswer::done().with("options", json!(options));
        Ok(answer.with("reportUrl", json!(report_url.as_str())))
    }

    fn bytes(&self) -> &[u8] {
        self.value.as_bytes()
    }
}
