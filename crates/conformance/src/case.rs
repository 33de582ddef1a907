//! Cases: the lines of a `.jsonl` file.

use bigbird::Profile;
use bigbird::attribution::allocate_credit;
use bigbird_user_agent::{
    ConversionOptions, ImpressionOptions, Localhost, MemoryStore, Site, Storage,
    parse_measure_conversion, parse_save_impression,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use url::Url;

use crate::scenario::{RunError, Scenario};

/// One thing to check.
#[derive(Debug, Clone)]
pub enum VectorCase {
    /// A history of calls.
    Scenario(Box<Scenario>),
    /// A header to parse.
    Header(HeaderCase),
    /// Credit to allocate.
    Credit(CreditCase),
    /// A site to parse.
    Site(SiteCase),
}

/// A header, with the options that it parses to.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HeaderCase {
    header: String,
    value: String,
    base_url: Option<String>,
    expected: Value,
}

/// Credit, with the result of its allocation.
#[derive(Debug, Clone, Deserialize)]
pub struct CreditCase {
    credit: Vec<f64>,
    value: u32,
    fraction: Option<f64>,
    fractions: Option<Vec<f64>>,
    expected: Vec<u32>,
}

/// A host, with its site.
#[derive(Debug, Clone, Deserialize)]
pub struct SiteCase {
    input: String,
    expected: Value,
}

/// A result that differs from the expected one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mismatch {
    /// The place in the case, such as `event 3 (measureConversion at 17 s)`.
    pub at: String,
    /// The expected result.
    pub expected: String,
    /// The actual result.
    pub got: String,
}

impl VectorCase {
    /// Reads a case from a line of a `.jsonl` file. Its keys show its kind.
    ///
    /// # Errors
    /// If the line is not JSON, or not a case.
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
            let scenario: Scenario = serde_json::from_value(value)?;
            scenario.check()?;
            Ok(Self::Scenario(Box::new(scenario)))
        } else {
            let why = "not a case: use one of the keys: events, header, credit, input";
            Err(serde::de::Error::custom(why))
        }
    }

    /// The name of a scenario, or a description of any other case.
    pub fn name(&self) -> String {
        match self {
            Self::Scenario(scenario) => scenario.name.clone(),
            Self::Header(case) => format!("{}: {}", case.header, case.value),
            Self::Credit(case) => format!("credit {:?} of {}", case.credit, case.value),
            Self::Site(case) => format!("site {:?}", case.input),
        }
    }

    /// Runs the case in memory. A scenario is played under `profile`, or under its own profile if
    /// that is `None`.
    ///
    /// # Errors
    /// If the case cannot be run, for example because its profile is unknown.
    pub fn run(&self, profile: Option<Profile>) -> Result<Vec<Mismatch>, RunError> {
        self.run_on(profile, || Ok(MemoryStore::new()))
    }

    /// Runs the case. A scenario is played on the store that `storage` returns. It must be empty.
    ///
    /// # Errors
    /// If the case cannot be run, for example because its profile is unknown or there is no store.
    pub fn run_on<S: Storage>(
        &self,
        profile: Option<Profile>,
        storage: impl FnOnce() -> Result<S, RunError>,
    ) -> Result<Vec<Mismatch>, RunError> {
        match self {
            Self::Scenario(scenario) => scenario.run_on(&mut scenario.player_on(profile, storage)?),
            Self::Header(case) => case.run(),
            Self::Credit(case) => Ok(case.run()),
            Self::Site(case) => Ok(case.run()),
        }
    }
}

impl HeaderCase {
    fn run(&self) -> Result<Vec<Mismatch>, RunError> {
        let parsed = match self.header.to_ascii_lowercase().as_str() {
            "save-impression" => parse_save_impression(self.value.as_bytes())
                .map(|options| impression_json(&options)),
            "measure-conversion" => {
                let base = self.base_url.as_deref().unwrap_or("https://base.example/");
                let base = Url::parse(base)
                    .map_err(|error| RunError::new(format!("baseUrl {base}: {error}")))?;
                parse_measure_conversion(self.value.as_bytes(), &base)
                    .map(|(options, url)| conversion_json(&options, &url))
            }
            other => {
                return Err(RunError::new(format!(
                    "unknown header `{other}`; use one of: save-impression, measure-conversion"
                )));
            }
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

/// The options of a header, and the default of every option.
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

/// True if every expected key has its value, and every other key has its default.
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

/// True if two JSON values are equal, where 1 equals 1.0.
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
