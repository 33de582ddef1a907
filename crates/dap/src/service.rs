//! Aggregation services: who they are and what their keys are. They are configured, never fetched:
//! fetching on demand would show that a page asked for a service (the draft's section Report
//! Encryption For DAP).

use std::collections::BTreeMap;
use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bigbird_user_agent::{AggregationProtocol, AggregationServices};
use serde::Deserialize;
use thiserror::Error;
use toml::Spanned;
use url::Url;

use crate::hpke::{EncryptionError, HpkeKeys, Recipient};
use crate::messages::{Decode as _, Encode as _, HpkeConfig, HpkeConfigList};
use crate::role::Role;
use crate::version::{CodePoints, DapVersion};

/// An aggregator, as a client knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AggregatorEndpoint {
    /// Its URL, serialised as the URL standard does.
    pub url: String,
    /// Its public key.
    pub recipient: Recipient,
}

/// What enters the configuration of every task of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskSettings {
    /// The version of DAP.
    pub version: DapVersion,
    /// Information for people.
    pub task_info: String,
    /// The number of seconds that a unit of time has.
    pub time_precision: u64,
    /// The fewest reports that may be aggregated.
    pub min_batch_size: u64,
    /// The code point of the batch mode: 1 is time-interval, 2 leader-selected. The draft's own
    /// mode has no code point yet, and no aggregator knows it.
    pub batch_mode: u8,
    /// The code points of extensions.
    pub code_points: CodePoints,
}

impl TaskSettings {
    /// The draft's settings, under a version of DAP.
    pub fn new(version: DapVersion) -> Self {
        Self {
            version,
            task_info: version.default_task_info().to_owned(),
            time_precision: 5,
            min_batch_size: 20,
            batch_mode: 1,
            code_points: CodePoints::default(),
        }
    }
}

/// An aggregation service: a leader and a helper that two organisations operate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AggregationService {
    url: String,
    settings: TaskSettings,
    leader: AggregatorEndpoint,
    helper: AggregatorEndpoint,
}

impl AggregationService {
    /// A service that nobody operates: its reports are encrypted to keys whose private halves were
    /// forgotten at once. To a page it looks like any other service.
    ///
    /// # Errors
    /// If the operating system gives no random numbers.
    pub fn without_operator(url: &str) -> Result<Self, EncryptionError> {
        let keys = [HpkeKeys::generate(0)?, HpkeKeys::generate(0)?];
        let [leader, helper] = keys.map(|keys| keys.recipient().clone());
        Ok(Self::new(
            url,
            TaskSettings::new(DapVersion::default()),
            ("https://leader.invalid/", leader),
            ("https://helper.invalid/", helper),
        ))
    }

    /// A service with the URLs and keys of its leader and its helper.
    pub fn new(
        url: &str,
        settings: TaskSettings,
        leader: (&str, Recipient),
        helper: (&str, Recipient),
    ) -> Self {
        let endpoint = |(url, recipient): (&str, Recipient)| AggregatorEndpoint {
            url: url.to_owned(),
            recipient,
        };
        Self {
            url: url.to_owned(),
            settings,
            leader: endpoint(leader),
            helper: endpoint(helper),
        }
    }

    /// The URL by which pages name the service.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// What enters the configuration of its tasks.
    pub fn settings(&self) -> &TaskSettings {
        &self.settings
    }

    /// One of its aggregators.
    pub fn aggregator(&self, role: Role) -> &AggregatorEndpoint {
        match role {
            Role::Leader => &self.leader,
            Role::Helper => &self.helper,
        }
    }

    /// The protocol that pages see.
    pub fn protocol(&self) -> AggregationProtocol {
        match self.settings.version {
            DapVersion::Dap18 => AggregationProtocol::Dap18Histogram,
            DapVersion::Dap19 => AggregationProtocol::Dap19Histogram,
        }
    }

    /// The service as an entry of `aggregation-services.toml`.
    ///
    /// # Errors
    /// Never: keys are short enough to be encoded.
    pub fn to_toml(&self) -> Result<String, prio::codec::CodecError> {
        let settings = &self.settings;
        let key = |role: Role| {
            let config = self.aggregator(role).recipient.config().get_encoded()?;
            Ok::<_, prio::codec::CodecError>(URL_SAFE_NO_PAD.encode(config))
        };
        let points = settings.code_points;
        let text = |text: &str| toml_string(text);
        Ok(format!(
            "[[service]]\n\
             # The name by which pages choose the service.\n\
             url = {url}\n\
             # dap-18 or dap-19. Like all that follows, it must be the same for everybody.\n\
             version = \"{version}\"\n\
             leader = {leader}\n\
             helper = {helper}\n\
             # The public keys: HpkeConfig of DAP, in base64 for URLs.\n\
             leader_hpke_config = \"{leader_key}\"\n\
             helper_hpke_config = \"{helper_key}\"\n\
             # Not settled by the drafts. They enter the id of every task.\n\
             task_info = {task_info}\n\
             time_precision = {precision}\n\
             min_batch_size = {batch}\n\
             batch_mode = {mode}\n\
             collector_identity = {collector:#06x}\n\
             budget_source = {source:#06x}\n\
             privacy_budget = {budget:#06x}\n",
            url = text(&self.url),
            version = settings.version,
            leader = text(&self.leader.url),
            helper = text(&self.helper.url),
            leader_key = key(Role::Leader)?,
            helper_key = key(Role::Helper)?,
            task_info = text(&settings.task_info),
            precision = settings.time_precision,
            batch = settings.min_batch_size,
            mode = settings.batch_mode,
            collector = points.collector_identity,
            source = points.budget_source,
            budget = points.privacy_budget,
        ))
    }
}

/// A string in TOML.
fn toml_string(text: &str) -> String {
    let mut quoted = String::from('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            control if control.is_control() => {
                quoted.push_str(&format!("\\u{:04X}", u32::from(control)));
            }
            other => quoted.push(other),
        }
    }
    quoted + "\""
}

/// The aggregation services that a user agent knows, by URL.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConfiguredServices(BTreeMap<String, AggregationService>);

/// A mistake in a file of services, with its line.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("line {line}: {message}")]
pub struct ServicesError {
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong.
    pub message: String,
}

impl ConfiguredServices {
    /// No service.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a service. One with the same URL is replaced.
    pub fn insert(&mut self, service: AggregationService) {
        self.0.insert(service.url.clone(), service);
    }

    /// The service with a URL.
    pub fn get(&self, url: &str) -> Option<&AggregationService> {
        self.0.get(url)
    }

    /// The services, in the order of their URLs.
    pub fn iter(&self) -> impl Iterator<Item = &AggregationService> {
        self.0.values()
    }

    /// The services as the configuration of a user agent has them.
    pub fn protocols(&self) -> AggregationServices {
        let entry = |service: &AggregationService| (service.url.clone(), service.protocol());
        self.iter().map(entry).collect()
    }

    /// Parses and checks `aggregation-services.toml`.
    ///
    /// ```
    /// use bigbird_dap::ConfiguredServices;
    ///
    /// let error = ConfiguredServices::parse("[[service]]\nurl = 'agg.example'\n").unwrap_err();
    /// assert_eq!(
    ///     error.to_string(),
    ///     "line 1: missing field `leader`"
    /// );
    /// ```
    ///
    /// # Errors
    /// If anything in the text is wrong.
    pub fn parse(text: &str) -> Result<Self, ServicesError> {
        let file: ServicesFile = toml::from_str(text).map_err(|error| ServicesError {
            line: line_of(text, error.span().unwrap_or_default().start),
            message: error.message().to_owned(),
        })?;
        let mut services = Self::new();
        for form in file.service {
            let parsed = form.get_ref().parse(form.span());
            let service = parsed.map_err(|(span, message)| ServicesError {
                line: line_of(text, span.start),
                message,
            })?;
            if services.0.contains_key(&service.url) {
                return Err(ServicesError {
                    line: line_of(text, form.get_ref().url.span().start),
                    message: format!("the service {} is there twice", service.url),
                });
            }
            services.insert(service);
        }
        if services.0.is_empty() {
            return Err(ServicesError {
                line: 1,
                message: "there is no [[service]]".to_owned(),
            });
        }
        Ok(services)
    }
}

/// The line of a byte, counted from 1.
pub(crate) fn line_of(text: &str, byte: usize) -> usize {
    let before = text.as_bytes().get(..byte).unwrap_or(text.as_bytes());
    1 + before.iter().filter(|byte| **byte == b'\n').count()
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ServicesFile {
    #[serde(default)]
    service: Vec<Spanned<ServiceEntry>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ServiceEntry {
    url: Spanned<String>,
    version: Option<Spanned<String>>,
    leader: Spanned<String>,
    helper: Spanned<String>,
    leader_hpke_config: Spanned<String>,
    helper_hpke_config: Spanned<String>,
    task_info: Option<Spanned<String>>,
    time_precision: Option<Spanned<i64>>,
    min_batch_size: Option<Spanned<i64>>,
    batch_mode: Option<Spanned<i64>>,
    collector_identity: Option<Spanned<i64>>,
    budget_source: Option<Spanned<i64>>,
    privacy_budget: Option<Spanned<i64>>,
}

/// A mistake and its place.
type Mistake = (Range<usize>, String);

impl ServiceEntry {
    fn parse(&self, place: Range<usize>) -> Result<AggregationService, Mistake> {
        let version = match &self.version {
            Some(tag) => {
                let parsed = tag.get_ref().parse();
                parsed.map_err(|error: crate::version::UnknownVersion| {
                    (tag.span(), error.to_string())
                })?
            }
            None => DapVersion::default(),
        };
        let mut settings = TaskSettings::new(version);
        if let Some(info) = &self.task_info {
            let allowed = match version {
                DapVersion::Dap18 => 1..=255,
                DapVersion::Dap19 => 0..=255,
            };
            let length = info.get_ref().len();
            if !allowed.contains(&length) {
                let (least, most) = (allowed.start(), allowed.end());
                return Err((
                    info.span(),
                    format!(
                        "task_info must have {least} to {most} bytes in {version}, got {length}"
                    ),
                ));
            }
            settings.task_info.clone_from(info.get_ref());
        }
        let within = |name: &str, given: &Option<Spanned<i64>>, least: i64, most: i64| {
            let Some(number) = given else {
                return Ok(None);
            };
            let got = *number.get_ref();
            if !(least..=most).contains(&got) {
                return Err((
                    number.span(),
                    format!("{name} must be in [{least}, {most}], got {got}"),
                ));
            }
            Ok(Some(got.unsigned_abs()))
        };
        let day = 24 * 60 * 60;
        if let Some(seconds) = within("time_precision", &self.time_precision, 1, day)? {
            settings.time_precision = seconds;
        }
        if let Some(size) = within("min_batch_size", &self.min_batch_size, 1, i64::MAX)? {
            settings.min_batch_size = size;
        }
        if let Some(mode) = within("batch_mode", &self.batch_mode, 1, 255)? {
            settings.batch_mode = u8::try_from(mode).unwrap_or(u8::MAX);
        }
        let points = &mut settings.code_points;
        for (name, given, point) in [
            (
                "collector_identity",
                &self.collector_identity,
                &mut points.collector_identity,
            ),
            (
                "budget_source",
                &self.budget_source,
                &mut points.budget_source,
            ),
            (
                "privacy_budget",
                &self.privacy_budget,
                &mut points.privacy_budget,
            ),
        ] {
            if let Some(given) = within(name, given, 1, 0xffff)? {
                *point = u16::try_from(given).unwrap_or(u16::MAX);
            }
        }
        if points.collector_identity == points.budget_source {
            let second = self
                .budget_source
                .as_ref()
                .or(self.collector_identity.as_ref());
            return Err((
                second.map_or(place, Spanned::span),
                format!(
                    "collector_identity and budget_source must differ, both are {:#06x}",
                    points.budget_source
                ),
            ));
        }
        if https(&self.leader)?.1 == https(&self.helper)?.1 {
            let told = "the leader and the helper must have different URLs";
            return Err((self.helper.span(), told.to_owned()));
        }
        let key = |given| hpke_config(given).map(|recipient| recipient.config().public_key.clone());
        if key(&self.leader_hpke_config)? == key(&self.helper_hpke_config)? {
            let told = "the leader and the helper must have different keys: who has both shares can \
                        read every report";
            return Err((self.helper_hpke_config.span(), told.to_owned()));
        }
        Ok(AggregationService::new(
            &https(&self.url)?.0,
            settings,
            (
                &https(&self.leader)?.1,
                hpke_config(&self.leader_hpke_config)?,
            ),
            (
                &https(&self.helper)?.1,
                hpke_config(&self.helper_hpke_config)?,
            ),
        ))
    }
}

/// A URL as it was given, and as the URL standard serialises it.
fn https(given: &Spanned<String>) -> Result<(String, String), Mistake> {
    let text = given.get_ref();
    let wrong = |why: &str| (given.span(), format!("`{text}` {why}"));
    let url = Url::parse(text).map_err(|error| wrong(&format!("is not a URL: {error}")))?;
    if url.scheme() != "https" {
        return Err(wrong("must begin with https:"));
    }
    if url.as_str().len() > usize::from(u16::MAX) {
        return Err(wrong("is longer than 65,535 bytes"));
    }
    Ok((text.clone(), url.to_string()))
}

/// A public key: an `HpkeConfig`, or the `HpkeConfigList` that an aggregator publishes, of which
/// the first supported key counts.
fn hpke_config(given: &Spanned<String>) -> Result<Recipient, Mistake> {
    let wrong = |why: String| (given.span(), why);
    let bytes = URL_SAFE_NO_PAD
        .decode(given.get_ref().trim_end_matches('='))
        .map_err(|error| wrong(format!("the key is not base64 for URLs: {error}")))?;
    if let Ok(config) = HpkeConfig::get_decoded(&bytes) {
        return Recipient::new(config).map_err(|error| wrong(error.to_string()));
    }
    let Ok(HpkeConfigList(list)) = HpkeConfigList::get_decoded(&bytes) else {
        let told = "the key is neither an HpkeConfig nor an HpkeConfigList of DAP";
        return Err(wrong(told.to_owned()));
    };
    let mut last = wrong("the list of keys is empty".to_owned());
    for config in list {
        match Recipient::new(config) {
            Ok(recipient) => return Ok(recipient),
            Err(error) => last = wrong(error.to_string()),
        }
    }
    Err(last)
}
