//! Requests and answers as lines of JSON.

use std::convert::Infallible;

use bigbird::{Cause, Fate, Histogram, MicroEpsilon};
use bigbird_attribution::requests::{ErrorName, Request};
use bigbird_attribution::{
    AgentError, ApiError, Budget, Explanation, ShareRefusal, SharedConversion,
};
use bigbird_store::StoreError;
use serde_json::{Map, Value, json};

use crate::output::{budget_json, filter_name};

/// A request.
#[derive(Debug)]
pub(super) struct Parsed {
    /// Whatever the sender tells it by; the answer has it too.
    pub(super) id: Option<Value>,
    /// The moment, on a test clock.
    pub(super) seconds: Option<i64>,
    pub(super) asked: Asked,
}

/// What is asked for.
#[derive(Debug)]
pub(super) enum Asked {
    Play(Request),
    Explain(Request),
    Budgets,
}

/// The fields that each event may have, besides `event`, `id` and `seconds`: those of the call, and
/// its own.
const FIELDS: &[(&str, &[&[&str]])] = &[
    ("saveImpression", &[CALL]),
    ("measureConversion", &[CALL, &["querier"]]),
    (
        "createSharedConversion",
        &[CALL, &["querier", "participants"]],
    ),
    ("takeShare", &[CALL, &["querier", "shared"]]),
    ("explain", &[CALL, &["querier", "participants", "shared"]]),
    ("clearImpressionsForSite", &[&["site"]]),
    (
        "clearBrowsingHistoryForAttribution",
        &[&["sites", "forgetVisits"]],
    ),
    ("enableAPI", &[]),
    ("disableAPI", &[]),
    ("maintain", &[]),
    ("budgets", &[]),
];

/// The fields of a page's call.
const CALL: &[&str] = &["site", "intermediarySite", "userAction", "options"];

/// Reads a request.
pub(super) fn parse(line: Result<String, String>) -> Result<Parsed, Answer> {
    let line = line.map_err(|why| Answer::malformed(&why))?;
    let value: Value = serde_json::from_str(&line)
        .map_err(|error| Answer::malformed(&format!("it is no JSON: {error}")))?;
    let Value::Object(mut fields) = value else {
        return Err(Answer::malformed("a request is an object"));
    };
    let id = fields.remove("id");
    request(fields)
        .map(|(seconds, asked)| Parsed {
            id: id.clone(),
            seconds,
            asked,
        })
        .map_err(|why| Answer::malformed(&why).with_id(id))
}

fn request(mut fields: Map<String, Value>) -> Result<(Option<i64>, Asked), String> {
    let seconds = match fields.remove("seconds") {
        None => None,
        Some(value) => match value.as_i64() {
            Some(seconds) => Some(seconds),
            None => return Err(format!("`seconds` must be a whole number, got {value}")),
        },
    };
    let Some(event) = fields.get("event").and_then(Value::as_str) else {
        return Err("`event` must say what is asked for".to_owned());
    };
    let Some((event, known)) = FIELDS.iter().find(|(name, _)| *name == event) else {
        let names: Vec<_> = FIELDS.iter().map(|(name, _)| *name).collect();
        return Err(format!(
            "there is no event `{event}`; there are {}",
            names.join(", ")
        ));
    };
    let unknown = |name: &&String| {
        name.as_str() != "event" && !known.iter().any(|known| known.contains(&name.as_str()))
    };
    if let Some(name) = fields.keys().find(unknown) {
        return Err(format!("{event} has no field `{name}`"));
    }
    for (name, value) in &fields {
        check(name, value).map_err(|must| format!("`{name}` must be {must}, got {value}"))?;
    }
    let play = |fields: Map<String, Value>| -> Result<Request, String> {
        let parsed = serde_json::from_value(Value::Object(fields.clone()));
        parsed.map_err(|error| match wrong_option(&fields) {
            Some(wrong) => format!("{event}: {wrong}"),
            None => format!("{event}: {error}"),
        })
    };
    let asked = match *event {
        "budgets" => Asked::Budgets,
        "explain" => {
            let explained = match (fields.get("participants"), fields.get("shared")) {
                (Some(_), Some(_)) => {
                    return Err("explain has `participants` or `shared`, not both".to_owned());
                }
                (Some(_), None) => "createSharedConversion",
                (None, Some(_)) => "takeShare",
                (None, None) => "measureConversion",
            };
            fields.insert("event".to_owned(), json!(explained));
            Asked::Explain(play(fields)?)
        }
        _ => Asked::Play(play(fields)?),
    };
    Ok((seconds, asked))
}

/// Says what a field must be, if it is not.
fn check(name: &str, value: &Value) -> Result<(), &'static str> {
    let (good, must) = match name {
        "site" | "intermediarySite" => (value.is_string(), "a host"),
        "userAction" => (value.is_u64(), "a whole number from 0 on"),
        "querier" => (
            value == "conversionSite" || value == "intermediary",
            "\"conversionSite\" or \"intermediary\"",
        ),
        "shared" => {
            let handle = value.as_str().map(str::parse::<SharedConversion>);
            (
                matches!(handle, Some(Ok(_))),
                "the handle of a shared conversion, 32 hexadecimal digits",
            )
        }
        "sites" | "participants" => {
            let hosts = value
                .as_array()
                .is_some_and(|list| list.iter().all(Value::is_string));
            (hosts, "a list of hosts")
        }
        "forgetVisits" => (value.is_boolean(), "true or false"),
        "options" => (value.is_object(), "an object"),
        _ => (true, ""),
    };
    if good { Ok(()) } else { Err(must) }
}

/// The first option that is of the wrong type, with why: tried one by one, as an error about all of
/// them does not tell which.
fn wrong_option(fields: &Map<String, Value>) -> Option<String> {
    let options = fields.get("options")?.as_object()?;
    for (name, value) in options {
        let mut alone = json!({
            "histogramIndex": 0, "aggregationService": "", "histogramSize": 1,
        });
        alone[name] = value.clone();
        let mut request = fields.clone();
        request.insert("options".to_owned(), alone);
        if let Err(error) = serde_json::from_value::<Request>(Value::Object(request)) {
            return Some(format!("options.{name}: {error}"));
        }
    }
    None
}

/// An answer, as an object.
#[derive(Debug, Clone)]
pub(super) struct Answer(Map<String, Value>);

impl Answer {
    fn of(value: Value) -> Self {
        match value {
            Value::Object(fields) => Self(fields),
            _ => Self(Map::new()),
        }
    }

    pub(super) fn done() -> Self {
        Self::of(json!({"ok": true}))
    }

    /// A line that is no request.
    pub(super) fn malformed(why: &str) -> Self {
        Self::of(json!({"ok": false, "error": "MalformedRequest", "message": why}))
    }

    /// A call that a page must be told is wrong, in the words of the W3C's tests.
    pub(super) fn rejected(error: &ApiError) -> Self {
        let mut answer = Self::of(json!({"ok": false}));
        match ErrorName::from(error) {
            ErrorName::Plain(name) => answer.set("error", json!(name)),
            ErrorName::DomException { error, name } => {
                answer.set("error", json!(error));
                answer.set("name", json!(name));
            }
        }
        answer.set("message", json!(error.to_string()));
        answer
    }

    /// A call that failed. If it was the store, the page is not to learn of it.
    pub(super) fn failed<E: Reason>(error: &AgentError<E>) -> Self {
        match error {
            AgentError::Api(error) => Self::rejected(error),
            AgentError::Store(error) => Self::of(json!({
                "ok": false,
                "error": "StoreError",
                "reason": error.reason(),
                "message": error.to_string(),
            })),
        }
    }

    /// The answer to a conversion, with its histogram if that is to be seen.
    pub(super) fn report(histogram: Option<&Histogram>) -> Self {
        let mut answer = Self::done();
        if let Some(histogram) = histogram {
            answer.set("histogram", json!(histogram.buckets()));
        }
        answer
    }

    /// The answer to a shared conversion that was created.
    pub(super) fn shared(shared: Option<SharedConversion>) -> Self {
        let mut answer = Self::done();
        if let Some(shared) = shared {
            answer.set("shared", json!(shared));
        }
        answer
    }

    pub(super) fn budgets(budgets: &[Budget]) -> Self {
        let mut answer = Self::done();
        answer.set("budgets", budgets.iter().map(budget_json).collect());
        answer
    }

    /// Why a conversion would give what it would give, which is there only if it is to be seen.
    pub(super) fn explanation(explanation: &Explanation, shows_histograms: bool) -> Self {
        let epochs: Vec<Value> = explanation
            .epochs
            .iter()
            .map(|epoch| {
                let filters: Vec<Value> = epoch
                    .filters
                    .iter()
                    .map(|filter| {
                        let mut fields = budget_json(&Budget {
                            epoch: epoch.epoch,
                            filter: filter.check.filter,
                            site: filter.site.clone(),
                            balance: filter.check.balance,
                        });
                        fields["asked"] = json!(filter.check.asked.get());
                        fields["shortBy"] = json!(filter.check.short_by().get());
                        fields
                    })
                    .collect();
                json!({
                    "epoch": epoch.epoch,
                    "matched": epoch.matched,
                    "passed": epoch.fate == Fate::Passed,
                    "cause": match epoch.fate {
                        Fate::Dropped(cause) => json!(cause_name(cause)),
                        _ => Value::Null,
                    },
                    "filters": filters,
                    "largestEpsilon": epoch.largest_epsilon.map(MicroEpsilon::to_epsilon),
                })
            })
            .collect();
        let mut explained = Self::of(json!({
            "enabled": explanation.enabled,
            "readableFrom": explanation.readable_from,
            "closed": explanation.closed.as_ref().map(ToString::to_string),
            "cause": match explanation.cause {
                Some(cause) => Some(cause_name(cause)),
                None if !explanation.enabled => Some("disabled"),
                None => match explanation.share_refusal {
                    Some(ShareRefusal::Unknown) => Some("unknownShare"),
                    Some(ShareRefusal::Unfit) => Some("unfitShare"),
                    None if explanation.nothing_readable() => Some("cleared"),
                    None => None,
                },
            },
            "epochs": epochs,
        }));
        if let Some(report) = explanation.report.as_ref().filter(|_| shows_histograms) {
            explained.set("histogram", json!(report.buckets()));
        }
        let mut answer = Self::done();
        answer.set("explanation", Value::Object(explained.0));
        answer
    }

    fn set(&mut self, name: &str, value: Value) {
        self.0.insert(name.to_owned(), value);
    }

    pub(super) fn with_id(mut self, id: Option<Value>) -> Self {
        if let Some(id) = id {
            self.set("id", id);
        }
        self
    }

    /// The line, with its end.
    pub(super) fn line(self) -> String {
        Value::Object(self.0).to_string() + "\n"
    }
}

/// Why a store failed, in a word.
pub(super) trait Reason: std::error::Error {
    fn reason(&self) -> &'static str;
}

impl Reason for StoreError {
    fn reason(&self) -> &'static str {
        self.problem().name()
    }
}

impl Reason for Infallible {
    fn reason(&self) -> &'static str {
        match *self {}
    }
}

fn cause_name(cause: Cause) -> &'static str {
    match cause {
        Cause::DomainCap => "domainCap",
        Cause::Filter(kind) => filter_name(kind),
        Cause::Pruned => "pruned",
    }
}
