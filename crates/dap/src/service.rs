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

/// A service that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct ServiceError {
    /// The field of the file of services that is wrong.
    pub field: &'static str,
    /// What is wrong, with the value and what is allowed.
    pub message: String,
}

impl ServiceError {
    fn new(field: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { field, message }
    }
}

impl TaskSettings {
    /// Checks what the drafts demand.
    fn check(&self) -> Result<(), ServiceError> {
        let within = |field, got: u64, least: u64, most: u64| match (least..=most).contains(&got) {
            true => Ok(()),
            false => {
                let told = format!("{field} must be in [{least}, {most}], got {got}");
                Err(ServiceError::new(field, told))
            }
        };
        let (length, version) = (self.task_info.len(), self.version);
        let least = match version {
            DapVersion::Dap18 => 1,
            DapVersion::Dap19 => 0,
        };
        if !(least..=255).contains(&length) {
            let told =
                format!("task_info must have {least} to 255 bytes in {version}, got {length}");
            return Err(ServiceError::new("task_info", told));
        }
        within("time_precision", self.time_precision, 1, 24 * 60 * 60)?;
        within(
            "min_batch_size",
            self.min_batch_size,
            1,
            i64::MAX.unsigned_abs(),
        )?;
        within("batch_mode", self.batch_mode.into(), 1, 255)?;
        let points = self.code_points;
        for (field, point) in [
            ("collector_identity", points.collector_identity),
            ("budget_source", points.budget_source),
            ("privacy_budget", points.privacy_budget),
        ] {
            within(field, point.into(), 1, u16::MAX.into())?;
        }
        if points.collector_identity == points.budget_source {
            let told = format!(
                "collector_identity and budget_source must differ, both are {:#06x}",
                points.budget_source
            );
            return Err(ServiceError::new("budget_source", told));
        }
        Ok(())
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
        let endpoint = |url: &str, keys: &HpkeKeys| AggregatorEndpoint {
            url: url.to_owned(),
            recipient: keys.recipient().clone(),
        };
        Ok(Self {
            url: url.to_owned(),
            settings: TaskSettings::new(DapVersion::default()),
            leader: endpoint("https://leader.invalid/", &keys[0]),
            helper: endpoint("https://helper.invalid/", &keys[1]),
        })
    }

    /// A service with the URLs and keys of its leader and its helper.
    ///
    /// # Errors
    /// If a URL is not one over https, if the leader and the helper have the same URL or the same
    /// key, or if a setting is out of range.
    pub fn new(
        url: &str,
        settings: TaskSettings,
        leader: (&str, Recipient),
        helper: (&str, Recipient),
    ) -> Result<Self, ServiceError> {
        settings.check()?;
        https("url", url)?;
        let endpoint = |field, (url, recipient): (&str, Recipient)| {
            let url = https(field, url)?;
            Ok(AggregatorEndpoint { url, recipient })
        };
        let (leader, helper) = (endpoint("leader", leader)?, endpoint("helper", helper)?);
        if leader.url == helper.url {
            let told = "the leader and the helper must have different URLs";
            return Err(ServiceError::new("helper", told));
        }
        if leader.recipient.config().public_key == helper.recipient.config().public_key {
            let told = "the leader and the helper must have different keys: who has both shares can \
                        read every report";
            return Err(ServiceError::new("helper_hpke_config", told));
        }
        let url = url.to_owned();
        Ok(Self {
            url,
            settings,
            leader,
            helper,
        })
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
                let parsed = tag.get_ref().parse::<DapVersion>();
                parsed.map_err(|error| (tag.span(), error.to_string()))?
            }
            None => DapVersion::default(),
        };
        let mut settings = TaskSettings::new(version);
        if let Some(info) = &self.task_info {
            settings.task_info.clone_from(info.get_ref());
        }
        read_number(
            "time_precision",
            &self.time_precision,
            &mut settings.time_precision,
        )?;
        read_number(
            "min_batch_size",
            &self.min_batch_size,
            &mut settings.min_batch_size,
        )?;
        read_number("batch_mode", &self.batch_mode, &mut settings.batch_mode)?;
        let points = &mut settings.code_points;
        let collector = &mut points.collector_identity;
        read_number("collector_identity", &self.collector_identity, collector)?;
        read_number(
            "budget_source",
            &self.budget_source,
            &mut points.budget_source,
        )?;
        read_number(
            "privacy_budget",
            &self.privacy_budget,
            &mut points.privacy_budget,
        )?;
        let service = AggregationService::new(
            self.url.get_ref(),
            settings,
            (
                self.leader.get_ref(),
                hpke_config(&self.leader_hpke_config)?,
            ),
            (
                self.helper.get_ref(),
                hpke_config(&self.helper_hpke_config)?,
            ),
        );
        service.map_err(|error| {
            let place = self.place_of(error.field).unwrap_or(place);
            (place, error.message)
        })
    }

    /// The place of a field, if it is there.
    fn place_of(&self, field: &str) -> Option<Range<usize>> {
        let number = |given: &Option<Spanned<i64>>| given.as_ref().map(Spanned::span);
        match field {
            "url" => Some(self.url.span()),
            "leader" => Some(self.leader.span()),
            "helper" => Some(self.helper.span()),
            "helper_hpke_config" => Some(self.helper_hpke_config.span()),
            "task_info" => self.task_info.as_ref().map(Spanned::span),
            "time_precision" => number(&self.time_precision),
            "min_batch_size" => number(&self.min_batch_size),
            "batch_mode" => number(&self.batch_mode),
            "collector_identity" => number(&self.collector_identity),
            "privacy_budget" => number(&self.privacy_budget),
            "budget_source" => number(&self.budget_source).or(number(&self.collector_identity)),
            _ => None,
        }
    }
}

/// Reads a number into a field that holds only some.
fn read_number<T: TryFrom<i64> + FileNumber>(
    name: &str,
    given: &Option<Spanned<i64>>,
    field: &mut T,
) -> Result<(), Mistake> {
    if let Some(number) = given {
        let got = *number.get_ref();
        *field = T::try_from(got).map_err(|_| {
            let told = format!("{name} must be in [1, {}], got {got}", T::LARGEST);
            (number.span(), told)
        })?;
    }
    Ok(())
}

/// The largest value of a kind of number in a file.
trait FileNumber {
    const LARGEST: u64;
}

impl FileNumber for u8 {
    const LARGEST: u64 = Self::MAX as u64;
}

impl FileNumber for u16 {
    const LARGEST: u64 = Self::MAX as u64;
}

impl FileNumber for u64 {
    const LARGEST: u64 = i64::MAX.unsigned_abs();
}

/// A URL over https, as the URL standard serialises it.
fn https(field: &'static str, text: &str) -> Result<String, ServiceError> {
    let wrong = |why: &str| ServiceError::new(field, format!("`{text}` {why}"));
    let url = Url::parse(text).map_err(|error| wrong(&format!("is not a URL: {error}")))?;
    if url.scheme() != "https" {
        return Err(wrong("must begin with https:"));
    }
    if url.as_str().len() > usize::from(u16::MAX) {
        return Err(wrong("is longer than 65,535 bytes"));
    }
    Ok(url.to_string())
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
