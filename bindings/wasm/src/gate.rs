//! Requests and answers.

use std::time::Duration;

use bigbird::{Profile, Timestamp};
use bigbird_dap::{AggregationService, ConfiguredServices, DapSealer};
use bigbird_user_agent::protocol::{AgentAnswer, Line, StorelessAgent};
use bigbird_user_agent::{ApiError, Config, Gate, SharedConversion, SystemRandomness};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::activation::ActivationRequest;
use crate::headers::HeaderRequest;

/// The gate of a user agent without a store. Until it is configured, it knows no aggregation
/// service, so every conversion is rejected.
#[derive(Debug)]
pub struct BrowserGate {
    agent: StorelessAgent,
}

impl Default for BrowserGate {
    fn default() -> Self {
        Self::new(Config::new(Profile::default()), ConfiguredServices::new())
    }
}

impl BrowserGate {
    fn new(mut config: Config, services: ConfiguredServices) -> Self {
        config.aggregation_services = services.protocols();
        let gate = Gate::new(config).sealing(DapSealer::new(services));
        Self {
            agent: StorelessAgent::new(gate),
        }
    }

    /// Configures the gate with a JSON object. All its fields are optional: `services` is the text
    /// of `aggregation-services.toml`, `profile` is the name of a profile, and `releaseAfter` is
    /// the delay of answers to conversions in milliseconds. The defaults are those of `bigbird
    /// agent`. The answer lists the URLs of the services. If it is an error, the gate stays as it
    /// was.
    pub fn configure(&mut self, request: &str) -> String {
        let answer = match self.try_configure(request) {
            Ok(urls) => AgentAnswer::done().with("services", json!(urls)),
            Err(why) => error("ConfigurationError", &why),
        };
        text(answer)
    }

    fn try_configure(&mut self, request: &str) -> Result<Vec<String>, String> {
        let form: ConfigurationForm = serde_json::from_str(request)
            .map_err(|error| format!("the configuration is not valid: {error}"))?;
        let profile = match form.profile {
            Some(name) => name.parse::<Profile>().map_err(|error| error.to_string())?,
            None => Profile::default(),
        };
        let mut config = Config::new(profile);
        if let Some(delay) = form.release_after {
            if !(1..=60_000).contains(&delay) {
                return Err(format!(
                    "releaseAfter must be in [1, 60000] ms, got {delay}"
                ));
            }
            config.pace.delay = Duration::from_millis(delay);
        }
        let file = form.services.unwrap_or_default();
        let services = match file.trim().is_empty() {
            true => ConfiguredServices::new(),
            false => ConfiguredServices::parse(&file)
                .map_err(|error| format!("aggregation-services.toml: {error}"))?,
        };
        let urls = services.iter().map(AggregationService::url);
        let urls = urls.map(str::to_owned).collect();
        *self = Self::new(config, services);
        Ok(urls)
    }

    /// Answers a request that arrives now, in milliseconds since 1970.
    pub fn answer(&mut self, request: &str, now: Timestamp) -> String {
        let event = serde_json::from_str::<EventForm>(request);
        let event = event.map_or_else(|_| String::new(), |form| form.event);
        let gate = self.agent.gate().clone();
        let config = gate.config();
        text(match event.as_str() {
            "parseHeader" => own(request, HeaderRequest::answer),
            "activation" => own(request, |tab: ActivationRequest| tab.answer(config)),
            "site" => own(request, |form: SiteRequest| match config.site(&form.host) {
                Ok(site) => AgentAnswer::done().with("site", json!(site)),
                Err(error) => AgentAnswer::rejected(&ApiError::from(error)),
            }),
            "check" => own(request, |form: CallRequest| {
                let checked = form.line(config).map(|line| self.agent.check(&line, now));
                checked.map_or_else(|error| error, |error| error.unwrap_or(AgentAnswer::done()))
            }),
            "null" => own(request, |form: CallRequest| match form.line(config) {
                Ok(line) => self.agent.null(&line, now, random_handle()),
                Err(error) => error,
            }),
            _ => match Line::parse(request, &config.limits) {
                Ok(line) => self.agent.answer(&line, now, random_handle()),
                Err(answer) => answer,
            },
        })
    }
}

/// A handle that pages cannot predict.
fn random_handle() -> SharedConversion {
    SharedConversion(SystemRandomness::handle_bits())
}

/// The answer to text that is not UTF-8.
#[cfg(target_arch = "wasm32")]
pub(crate) fn not_text(error: std::str::Utf8Error) -> String {
    let place = error.valid_up_to() + 1;
    let why = format!("the request is not valid UTF-8 at byte {place}");
    text(AgentAnswer::malformed(&why))
}

/// An answer that is an error.
pub(crate) fn error(name: &str, message: &str) -> AgentAnswer {
    AgentAnswer::malformed(message).with("error", json!(name))
}

/// Answers a request that the protocol of the user agent does not have.
fn own<T: DeserializeOwned>(request: &str, answer: impl FnOnce(T) -> AgentAnswer) -> AgentAnswer {
    let malformed = |why: String| AgentAnswer::malformed(&why);
    let mut fields: serde_json::Map<String, Value> = match serde_json::from_str(request) {
        Ok(fields) => fields,
        Err(error) => return malformed(format!("the request is not a JSON object: {error}")),
    };
    let id = fields.remove("id");
    let event = fields.remove("event").unwrap_or_default();
    let answer = match serde_json::from_value(Value::Object(fields)) {
        Ok(form) => answer(form),
        Err(error) => malformed(format!("{}: {error}", event.as_str().unwrap_or_default())),
    };
    answer.with_id(id)
}

/// The answer as text, without a line break.
fn text(answer: AgentAnswer) -> String {
    let mut line = answer.line();
    line.truncate(line.trim_end().len());
    line
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ConfigurationForm {
    services: Option<String>,
    profile: Option<String>,
    release_after: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct EventForm {
    event: String,
}

/// Asks about a page's call: what is wrong with it, or its null answer.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CallRequest {
    call: Value,
}

impl CallRequest {
    fn line(&self, config: &Config) -> Result<Line, AgentAnswer> {
        Line::parse(&self.call.to_string(), &config.limits)
    }
}

/// Asks for the site of a host.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SiteRequest {
    host: String,
}
