//! Lines of input: requests with their id and their time. They are read strictly.

use bigbird::AttributionQuery;
use serde_json::{Map, Value, json};

use super::answer::AgentAnswer;
use super::request::AgentRequest;
use crate::options::Limits;
use crate::shared::SharedConversion;
use crate::storage::RowPlace;

/// A line of input: a request with its id and its time.
#[derive(Debug)]
pub struct Line {
    /// A value by which the sender recognises the answer, which repeats the same value.
    pub id: Option<Value>,
    /// The time of the request in seconds, on a test clock.
    pub seconds: Option<i64>,
    /// The request.
    pub asked: LineRequest,
}

/// The request of a line.
#[derive(Debug)]
pub enum LineRequest {
    /// A call.
    Play(AgentRequest),
    /// The explanation of a call that measures.
    Explain(AgentRequest),
    /// The filters that were charged, after a place if one is given.
    Budgets(Option<RowPlace>),
    /// What happened, newest first: before a place if one is given, and about a site if one is
    /// given.
    History {
        /// The place.
        behind: Option<RowPlace>,
        /// A host of the site.
        site: Option<String>,
    },
    /// The stored impressions, newest first, before a place if one is given.
    Impressions(Option<RowPlace>),
    /// The status: whether the API works, and what went wrong.
    Status,
}

/// The fields of a request, other than `event`, `id` and `seconds`.
struct RequestForm {
    event: &'static str,
    required: &'static [&'static str],
    optional: &'static [&'static str],
    /// The required fields of `options`.
    options: &'static [&'static str],
}

const FORMS: &[RequestForm] = &[
    RequestForm {
        event: "saveImpression",
        required: &["site", "options"],
        optional: &["intermediarySite", "userAction", "actionLabel", "private"],
        options: &["histogramIndex"],
    },
    RequestForm {
        event: "measureConversion",
        required: &["site", "options"],
        optional: MEASURED_CALL,
        options: CONVERSION,
    },
    RequestForm {
        event: "createSharedConversion",
        required: &["site", "participants", "options"],
        optional: MEASURED_CALL,
        options: CONVERSION,
    },
    RequestForm {
        event: "takeShare",
        required: &["site", "shared", "options"],
        optional: MEASURED_CALL,
        options: CONVERSION,
    },
    RequestForm {
        event: "explain",
        required: &["site", "options"],
        optional: &[
            "intermediarySite",
            "userAction",
            "querier",
            "participants",
            "shared",
        ],
        options: CONVERSION,
    },
    RequestForm {
        event: "clearImpressionsForSite",
        required: &["site"],
        optional: &["byUser"],
        ..NOTHING
    },
    RequestForm {
        event: "clearBrowsingHistoryForAttribution",
        required: &["sites", "forgetVisits"],
        ..NOTHING
    },
    RequestForm {
        event: "enableAPI",
        ..NOTHING
    },
    RequestForm {
        event: "disableAPI",
        ..NOTHING
    },
    RequestForm {
        event: "maintain",
        ..NOTHING
    },
    RequestForm {
        event: "budgets",
        optional: &["behind"],
        ..NOTHING
    },
    RequestForm {
        event: "history",
        optional: &["behind", "site"],
        ..NOTHING
    },
    RequestForm {
        event: "impressions",
        optional: &["behind"],
        ..NOTHING
    },
    RequestForm {
        event: "status",
        ..NOTHING
    },
    RequestForm {
        event: "restartEpochs",
        ..NOTHING
    },
];

/// The options that a conversion must have.
const CONVERSION: &[&str] = &["aggregationService", "histogramSize"];

/// A request without fields.
const NOTHING: RequestForm = RequestForm {
    event: "",
    required: &[],
    optional: &[],
    options: &[],
};

/// The optional fields of a page's call that measures.
const MEASURED_CALL: &[&str] = &[
    "intermediarySite",
    "userAction",
    "actionLabel",
    "private",
    "querier",
];

/// The maximum length of the words for a user action, in bytes of UTF-8.
const LONGEST_LABEL: usize = 64;

/// The maximum length of the `id` of a request, in bytes of JSON.
const LONGEST_ID: usize = 256;

/// The maximum length of a host, a number and an address in a request, in bytes of JSON, including
/// the punctuation around it. The limit for a host leaves room for escapes.
const HOST: usize = 1024;
const NUMBER: usize = 32;
const ADDRESS: usize = 2048;

/// The maximum length of the field names and the single values of a request together, in bytes.
const FRAME: usize = 4096;

/// The maximum length of a list of sites to clear, in bytes. It is large because the list comes
/// from the user, not from a page.
const LONGEST_LIST: usize = 1 << 20;

impl Line {
    /// Reads a line.
    ///
    /// # Errors
    /// If the line is not a request, or is longer than a request of its kind can be. The error is
    /// the answer to send, which gives the reason.
    pub fn parse(line: &str, limits: &Limits) -> Result<Self, AgentAnswer> {
        parse(line, limits)
    }

    /// The maximum length of a line, in bytes.
    pub fn longest(limits: &Limits) -> usize {
        let of_events = FORMS.iter().map(|form| longest(form.event, limits));
        of_events.max().unwrap_or(FRAME)
    }
}

/// The maximum length of a request, in bytes: that of the largest request that the limits allow.
fn longest(event: &str, limits: &Limits) -> usize {
    let impression =
        limits.max_conversion_sites_per_impression + limits.max_conversion_callers_per_impression;
    let hosts =
        limits.max_impression_sites_for_conversion + limits.max_impression_callers_for_conversion;
    let numbers = limits.max_match_values + limits.max_credit_size;
    let conversion = hosts * HOST + numbers * NUMBER + ADDRESS;
    let participants = AttributionQuery::MAX_CALLERS * HOST;
    FRAME
        + match event {
            "saveImpression" => impression * HOST,
            "measureConversion" | "takeShare" => conversion,
            "createSharedConversion" | "explain" => conversion + participants,
            "clearBrowsingHistoryForAttribution" => LONGEST_LIST,
            _ => 0,
        }
}

fn parse(line: &str, limits: &Limits) -> Result<Line, AgentAnswer> {
    let value: Value = serde_json::from_str(line.trim_end())
        .map_err(|error| AgentAnswer::malformed(&format!("the line is not JSON: {error}")))?;
    let Value::Object(mut fields) = value else {
        let told = format!("a request must be a JSON object, got {}", kind_of(&value));
        return Err(AgentAnswer::malformed(&told));
    };
    let id = fields.remove("id");
    if let Some(length) = id.as_ref().map(|id| id.to_string().len())
        && length > LONGEST_ID
    {
        let told = format!("`id` must have at most {LONGEST_ID} bytes of JSON, got {length}");
        return Err(AgentAnswer::malformed(&told));
    }
    if let Some(event) = fields.get("event").and_then(Value::as_str)
        && line.len() > longest(event, limits)
    {
        let (most, got) = (longest(event, limits), line.len());
        let told = format!("a `{event}` request must have at most {most} bytes, got {got}");
        return Err(AgentAnswer::malformed(&told).with_id(id));
    }
    request(fields)
        .map(|(seconds, asked)| Line {
            id: id.clone(),
            seconds,
            asked,
        })
        .map_err(|why| AgentAnswer::malformed(&why).with_id(id))
}

/// The kind of a JSON value, in words.
fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a Boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn request(mut fields: Map<String, Value>) -> Result<(Option<i64>, LineRequest), String> {
    let seconds = match fields.remove("seconds") {
        None => None,
        Some(value) => match value.as_i64() {
            Some(seconds) => Some(seconds),
            None => return Err(format!("`seconds` must be a whole number, got {value}")),
        },
    };
    let Some(event) = fields.get("event").and_then(Value::as_str) else {
        return Err("`event` must be a string that names the request, such as `status`".to_owned());
    };
    let Some(form) = FORMS.iter().find(|form| form.event == event) else {
        let names: Vec<_> = FORMS.iter().map(|form| form.event).collect();
        return Err(format!(
            "unknown event `{event}`; use one of: {}",
            names.join(", ")
        ));
    };
    let event = form.event;
    let unknown = |name: &&String| {
        let name = name.as_str();
        name != "event" && !form.required.contains(&name) && !form.optional.contains(&name)
    };
    if let Some(name) = fields.keys().find(unknown) {
        let known: Vec<_> = form.required.iter().chain(form.optional).collect();
        let use_one = match known.is_empty() {
            true => "it has none besides `id` and `seconds`".to_owned(),
            false => format!(
                "use: {}",
                known.into_iter().copied().collect::<Vec<_>>().join(", ")
            ),
        };
        return Err(format!("{event} has no field `{name}`; {use_one}"));
    }
    for (name, value) in &fields {
        if !is_good(name, value) {
            return Err(format!("`{name}` must be {}, got {value}", must_be(name)));
        }
    }
    if let Some(Value::Object(options)) = fields.get_mut("options") {
        // Some languages send null for an option that is not given.
        options.retain(|_, value| !value.is_null());
    }
    if let Some(name) = missing(form.required, &fields) {
        let must = must_be(name);
        return Err(format!(
            "{event} requires `{name}` ({must}), but it is missing"
        ));
    }
    if let Some(Value::Object(options)) = fields.get("options")
        && let Some(name) = missing(form.options, options)
    {
        let must = must_be(name);
        return Err(format!(
            "{event} requires `options.{name}` ({must}), but it is missing"
        ));
    }
    let play = |fields: Map<String, Value>| -> Result<AgentRequest, String> {
        let parsed = serde_json::from_value(Value::Object(fields.clone()));
        parsed.map_err(|error| match wrong_option(&fields) {
            Some(wrong) => format!("{event}: {wrong}"),
            None => format!("{event}: {error}"),
        })
    };
    let asked = match event {
        "budgets" => LineRequest::Budgets(behind(&mut fields)?),
        "impressions" => LineRequest::Impressions(behind(&mut fields)?),
        "history" => LineRequest::History {
            behind: behind(&mut fields)?,
            site: fields
                .get("site")
                .and_then(Value::as_str)
                .map(str::to_owned),
        },
        "status" => LineRequest::Status,
        "explain" => {
            let explained = match (fields.get("participants"), fields.get("shared")) {
                (Some(_), Some(_)) => {
                    return Err("explain takes `participants` or `shared`, not both".to_owned());
                }
                (Some(_), None) => "createSharedConversion",
                (None, Some(_)) => "takeShare",
                (None, None) => "measureConversion",
            };
            fields.insert("event".to_owned(), json!(explained));
            LineRequest::Explain(play(fields)?)
        }
        _ => LineRequest::Play(play(fields)?),
    };
    Ok((seconds, asked))
}

/// The place behind which a page of a list begins, if one is given.
fn behind(fields: &mut Map<String, Value>) -> Result<Option<RowPlace>, String> {
    let behind = fields.remove("behind").map(serde_json::from_value);
    let place = "`behind` must be the value of `next` in an earlier answer";
    behind.transpose().map_err(|_| place.to_owned())
}

/// The first of these names that is missing from the fields.
fn missing(names: &[&'static str], fields: &Map<String, Value>) -> Option<&'static str> {
    let mut names = names.iter().copied();
    names.find(|name| !fields.contains_key(*name))
}

/// True if a field has an allowed value.
fn is_good(name: &str, value: &Value) -> bool {
    match name {
        "site" | "intermediarySite" => value.is_string(),
        "userAction" => value.is_u64(),
        "querier" => value == "conversionSite" || value == "intermediary",
        "shared" => {
            let handle = value.as_str().map(str::parse::<SharedConversion>);
            matches!(handle, Some(Ok(_)))
        }
        "sites" | "participants" => value
            .as_array()
            .is_some_and(|list| list.iter().all(Value::is_string)),
        "byUser" | "forgetVisits" | "private" => value.is_boolean(),
        "actionLabel" => value
            .as_str()
            .is_some_and(|label| label.len() <= LONGEST_LABEL),
        "options" => value.is_object(),
        _ => true,
    }
}

/// A description of the allowed values of a field or of a required option.
fn must_be(name: &str) -> &'static str {
    match name {
        "site" | "intermediarySite" => "a host",
        "userAction" | "histogramIndex" => "a whole number of at least 0",
        "histogramSize" => "a whole number of at least 1",
        "aggregationService" => "the URL of an aggregation service",
        "querier" => "\"conversionSite\" or \"intermediary\"",
        "shared" => "the handle of a shared conversion, 32 hexadecimal digits",
        "sites" | "participants" => "a list of hosts",
        "byUser" | "forgetVisits" | "private" => "true or false",
        "actionLabel" => "a string of at most 64 bytes",
        "options" => "an object",
        _ => "",
    }
}

/// The form of an option of the API, in words for the author of a page.
fn option_form(name: &str) -> Option<&'static str> {
    Some(match name {
        "aggregationService" => "a string",
        "conversionSites" | "conversionCallers" | "impressionSites" | "impressionCallers" => {
            "a list of hosts"
        }
        "credit" => "a list of numbers",
        "epsilon" => "a number",
        "histogramIndex" | "histogramSize" | "lifetimeDays" | "lookbackDays" | "matchValue"
        | "maxValue" | "value" => "a whole number from 0 to 4294967295",
        "matchValues" => "a list of whole numbers from 0 to 4294967295",
        "priority" => "a whole number from -2147483648 to 2147483647",
        _ => return None,
    })
}

/// The first option of the wrong type, with the reason. Options are tried one by one, because an
/// error about all of them does not name the option.
fn wrong_option(fields: &Map<String, Value>) -> Option<String> {
    let options = fields.get("options")?.as_object()?;
    for (name, value) in options {
        let mut alone = json!({
            "histogramIndex": 0, "aggregationService": "", "histogramSize": 1,
        });
        alone[name] = value.clone();
        let mut request = fields.clone();
        request.insert("options".to_owned(), alone);
        if let Err(error) = serde_json::from_value::<AgentRequest>(Value::Object(request)) {
            return Some(match option_form(name) {
                Some(form) => format!("`options.{name}` must be {form}, got {value}"),
                None => format!("options.{name}: {error}"),
            });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(request: &Value) -> String {
        let answer = Line::parse(&request.to_string(), &Limits::default())
            .unwrap_err()
            .line();
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(answer["error"], "MalformedRequest");
        answer["message"].as_str().unwrap().to_owned()
    }

    /// A minimal request of each event, with its required fields and nothing more.
    fn requests() -> Vec<Value> {
        let conversion = json!({"aggregationService": "https://agg.example", "histogramSize": 5});
        vec![
            json!({"event": "saveImpression", "site": "a.example",
                "options": {"histogramIndex": 1}}),
            json!({"event": "measureConversion", "site": "a.example", "options": conversion}),
            json!({"event": "createSharedConversion", "site": "a.example", "participants": [],
                "options": conversion}),
            json!({"event": "takeShare", "site": "a.example", "shared": "0".repeat(32),
                "options": conversion}),
            json!({"event": "explain", "site": "a.example", "options": conversion}),
            json!({"event": "explain", "site": "a.example", "participants": [],
                "options": conversion}),
            json!({"event": "explain", "site": "a.example", "shared": "0".repeat(32),
                "options": conversion}),
            json!({"event": "clearImpressionsForSite", "site": "a.example"}),
            json!({"event": "clearBrowsingHistoryForAttribution", "sites": [],
                "forgetVisits": false}),
            json!({"event": "enableAPI"}),
            json!({"event": "disableAPI"}),
            json!({"event": "maintain"}),
            json!({"event": "budgets"}),
            json!({"event": "history"}),
            json!({"event": "impressions"}),
            json!({"event": "status"}),
            json!({"event": "restartEpochs"}),
        ]
    }

    /// The error names the missing field and says what it must be.
    #[test]
    fn what_is_missing_is_named() {
        let mut seen = std::collections::BTreeSet::new();
        for request in requests() {
            assert!(
                Line::parse(&request.to_string(), &Limits::default()).is_ok(),
                "{request}"
            );
            let event = request["event"].as_str().unwrap();
            let form = FORMS.iter().find(|form| form.event == event).unwrap();
            for name in form.required {
                let mut incomplete = request.clone();
                incomplete.as_object_mut().unwrap().remove(*name).unwrap();
                let must = must_be(name);
                assert_eq!(
                    message(&incomplete),
                    format!("{event} requires `{name}` ({must}), but it is missing")
                );
                assert!(!must.is_empty());
                seen.insert(*name);
            }
            for name in form.options {
                let mut incomplete = request.clone();
                // Some languages send null for an option that is not given. It counts as missing.
                incomplete["options"][name] = Value::Null;
                let must = must_be(name);
                let expected =
                    format!("{event} requires `options.{name}` ({must}), but it is missing");
                assert_eq!(message(&incomplete), expected);
                incomplete["options"] = json!({"epsilon": 0.5});
                let first = form.options[0];
                let first = format!("{event} requires `options.{first}` (");
                assert!(message(&incomplete).starts_with(&first));
                assert!(!must.is_empty());
                seen.insert(*name);
            }
        }
        let all = [
            "aggregationService",
            "forgetVisits",
            "histogramIndex",
            "histogramSize",
            "options",
            "participants",
            "shared",
            "site",
            "sites",
        ];
        assert_eq!(Vec::from_iter(seen), all);
    }

    /// A new form needs a request above.
    #[test]
    fn every_form_is_tried() {
        let events: Vec<Value> = requests().iter().map(|it| it["event"].clone()).collect();
        for form in FORMS {
            assert!(events.contains(&json!(form.event)), "{}", form.event);
        }
    }
}
