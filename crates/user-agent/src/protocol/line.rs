//! Lines of input: requests with everything that may come with them, strictly read.

use serde_json::{Map, Value, json};

use super::answer::Answer;
use super::request::Request;
use crate::shared::SharedConversion;

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
    /// Every filter that was charged.
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

impl Line {
    /// Reads a line.
    ///
    /// # Errors
    /// If it is no request: the answer that says why.
    pub fn parse(line: &str) -> Result<Self, Answer> {
        parse(line)
    }
}

fn parse(line: &str) -> Result<Line, Answer> {
    let value: Value = serde_json::from_str(line)
        .map_err(|error| Answer::malformed(&format!("it is no JSON: {error}")))?;
    let Value::Object(mut fields) = value else {
        return Err(Answer::malformed("a request is an object"));
    };
    let id = fields.remove("id");
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
    if let Some(Value::Object(options)) = fields.get_mut("options") {
        // Not every language leaves out what is not given.
        options.retain(|_, value| !value.is_null());
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
