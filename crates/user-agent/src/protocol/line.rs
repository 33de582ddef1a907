//! Lines of input: requests with everything that may come with them, strictly read.

use bigbird::AttributionQuery;
use serde_json::{Map, Value, json};

use super::answer::Answer;
use super::request::Request;
use crate::options::Limits;
use crate::shared::SharedConversion;
use crate::storage::Place;

/// A line of input: a request, and what comes with it.
#[derive(Debug)]
pub struct Line {
    /// Whatever the sender tells it by; the answer has it too.
    pub id: Option<Value>,
    /// The moment, on a test clock.
    pub seconds: Option<i64>,
    /// What is asked for.
    pub asked: Asked,
}

/// What is asked for.
#[derive(Debug)]
pub enum Asked {
    /// A call.
    Play(Request),
    /// What a call that measures would give.
    Explain(Request),
    /// Filters that were charged, behind a place.
    Budgets(Option<Place>),
    /// Whether the API works, and what went wrong.
    Status,
}

/// What the request of an event has, besides `event`, `id` and `seconds`.
struct Form {
    event: &'static str,
    required: &'static [&'static str],
    optional: &'static [&'static str],
    /// What its `options` must have.
    options: &'static [&'static str],
}

const FORMS: &[Form] = &[
    Form {
        event: "saveImpression",
        required: &["site", "options"],
        optional: &["intermediarySite", "userAction"],
        options: &["histogramIndex"],
    },
    Form {
        event: "measureConversion",
        required: &["site", "options"],
        optional: &["intermediarySite", "userAction", "querier"],
        options: CONVERSION,
    },
    Form {
        event: "createSharedConversion",
        required: &["site", "participants", "options"],
        optional: &["intermediarySite", "userAction", "querier"],
        options: CONVERSION,
    },
    Form {
        event: "takeShare",
        required: &["site", "shared", "options"],
        optional: &["intermediarySite", "userAction", "querier"],
        options: CONVERSION,
    },
    Form {
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
    Form {
        event: "clearImpressionsForSite",
        required: &["site"],
        ..NOTHING
    },
    Form {
        event: "clearBrowsingHistoryForAttribution",
        required: &["sites", "forgetVisits"],
        ..NOTHING
    },
    Form {
        event: "enableAPI",
        ..NOTHING
    },
    Form {
        event: "disableAPI",
        ..NOTHING
    },
    Form {
        event: "maintain",
        ..NOTHING
    },
    Form {
        event: "budgets",
        optional: &["behind"],
        ..NOTHING
    },
    Form {
        event: "status",
        ..NOTHING
    },
    Form {
        event: "restartEpochs",
        ..NOTHING
    },
];

/// The options that a conversion must have.
const CONVERSION: &[&str] = &["aggregationService", "histogramSize"];

/// An event without fields.
const NOTHING: Form = Form {
    event: "",
    required: &[],
    optional: &[],
    options: &[],
};

/// How long the `id` of a request may be, as JSON.
const LONGEST_ID: usize = 256;

/// How long a host, a number or an address may be in a request, as JSON with everything around it: hosts
/// may come with escapes.
const HOST: usize = 1024;
const NUMBER: usize = 32;
const ADDRESS: usize = 2048;

/// How long the names and single values of a request may be.
const FRAME: usize = 4096;

/// How long a list of sites to be cleared may be: it is the user's own.
const LONGEST_LIST: usize = 1 << 20;

impl Line {
    /// Reads a line.
    ///
    /// # Errors
    /// If it is no request, or longer than a request of its kind can be: the answer that says why.
    pub fn parse(line: &str, limits: &Limits) -> Result<Self, Answer> {
        parse(line, limits)
    }

    /// How long the longest line may be, in bytes.
    pub fn longest(limits: &Limits) -> usize {
        let of_events = FORMS.iter().map(|form| longest(form.event, limits));
        of_events.max().unwrap_or(FRAME)
    }
}

/// How long a request may be: as long as the largest that its options allow.
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

fn parse(line: &str, limits: &Limits) -> Result<Line, Answer> {
    let value: Value = serde_json::from_str(line)
        .map_err(|error| Answer::malformed(&format!("it is no JSON: {error}")))?;
    let Value::Object(mut fields) = value else {
        return Err(Answer::malformed("a request is an object"));
    };
    let id = fields.remove("id");
    if let Some(length) = id.as_ref().map(|id| id.to_string().len())
        && length > LONGEST_ID
    {
        let told = format!("`id` must have at most {LONGEST_ID} bytes, got {length}");
        return Err(Answer::malformed(&told));
    }
    if let Some(event) = fields.get("event").and_then(Value::as_str)
        && line.len() > longest(event, limits)
    {
        let (most, got) = (longest(event, limits), line.len());
        let told = format!("{event} must have at most {most} bytes, got {got}");
        return Err(Answer::malformed(&told).with_id(id));
    }
    request(fields)
        .map(|(seconds, asked)| Line {
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
    let Some(form) = FORMS.iter().find(|form| form.event == event) else {
        let names: Vec<_> = FORMS.iter().map(|form| form.event).collect();
        return Err(format!(
            "there is no event `{event}`; there are {}",
            names.join(", ")
        ));
    };
    let event = form.event;
    let unknown = |name: &&String| {
        let name = name.as_str();
        name != "event" && !form.required.contains(&name) && !form.optional.contains(&name)
    };
    if let Some(name) = fields.keys().find(unknown) {
        return Err(format!("{event} has no field `{name}`"));
    }
    for (name, value) in &fields {
        if !is_good(name, value) {
            return Err(format!("`{name}` must be {}, got {value}", must_be(name)));
        }
    }
    if let Some(Value::Object(options)) = fields.get_mut("options") {
        // Not every language leaves out what is not given.
        options.retain(|_, value| !value.is_null());
    }
    if let Some(name) = missing(form.required, &fields) {
        let must = must_be(name);
        return Err(format!("{event}: `{name}` is missing; it must be {must}"));
    }
    if let Some(Value::Object(options)) = fields.get("options")
        && let Some(name) = missing(form.options, options)
    {
        let must = must_be(name);
        return Err(format!(
            "{event}: `options.{name}` is missing; it must be {must}"
        ));
    }
    let play = |fields: Map<String, Value>| -> Result<Request, String> {
        let parsed = serde_json::from_value(Value::Object(fields.clone()));
        parsed.map_err(|error| match wrong_option(&fields) {
            Some(wrong) => format!("{event}: {wrong}"),
            None => format!("{event}: {error}"),
        })
    };
    let asked = match event {
        "budgets" => {
            let behind = fields.remove("behind").map(serde_json::from_value);
            let place = "`behind` must be the `next` of an answer";
            Asked::Budgets(behind.transpose().map_err(|_| place.to_owned())?)
        }
        "status" => Asked::Status,
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

/// The first of these names that is not among the fields.
fn missing(names: &[&'static str], fields: &Map<String, Value>) -> Option<&'static str> {
    let mut names = names.iter().copied();
    names.find(|name| !fields.contains_key(*name))
}

/// Whether a field is what it must be.
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
        "forgetVisits" => value.is_boolean(),
        "options" => value.is_object(),
        _ => true,
    }
}

/// What a field or a required option must be, in words.
fn must_be(name: &str) -> &'static str {
    match name {
        "site" | "intermediarySite" => "a host",
        "userAction" | "histogramIndex" => "a whole number from 0 on",
        "histogramSize" => "a whole number from 1 on",
        "aggregationService" => "the URL of an aggregation service",
        "querier" => "\"conversionSite\" or \"intermediary\"",
        "shared" => "the handle of a shared conversion, 32 hexadecimal digits",
        "sites" | "participants" => "a list of hosts",
        "forgetVisits" => "true or false",
        "options" => "an object",
        _ => "",
    }
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

    /// A request of each event with everything that it must have, and nothing more.
    fn requests() -> Vec<Value> {
        let conversion = json!({"aggregationService": "https://agg.example", "histogramSize": 5});
        vec![
            json!({"event": "saveImpression", "site": "a.example", "options": {"histogramIndex": 1}}),
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
            json!({"event": "status"}),
            json!({"event": "restartEpochs"}),
        ]
    }

    /// Whatever must be there and is not is named, with what it must be.
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
                    format!("{event}: `{name}` is missing; it must be {must}")
                );
                assert!(!must.is_empty());
                seen.insert(*name);
            }
            for name in form.options {
                let mut incomplete = request.clone();
                // Null is what some languages send for nothing.
                incomplete["options"][name] = Value::Null;
                let must = must_be(name);
                let expected = format!("{event}: `options.{name}` is missing; it must be {must}");
                assert_eq!(message(&incomplete), expected);
                incomplete["options"] = json!({"epsilon": 0.5});
                let first = form.options[0];
                let first = format!("{event}: `options.{first}` is missing; ");
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
