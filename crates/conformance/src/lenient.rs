//! Scenarios that people write to ask why: without expectations, without a configuration, and with
//! nothing that can be guessed.
//!
//! Vectors are strict, because a conversion without an expected answer would pass whatever it gives
//! ([`read`](crate::read)). Here everything that has a sensible default may be left out.

use std::collections::BTreeMap;

use bigbird::Profile;
use bigbird_user_agent::protocol::Line;
use bigbird_user_agent::{Config, ConversionOptions, ImpressionOptions, Limits};
use serde_json::{Map, Value, json};

use crate::files::VectorError;
use crate::scenario::{Scenario, ScenarioConfig, ScenarioEvent};

/// A scenario to explain.
#[derive(Debug, Clone)]
pub struct ExplainableScenario {
    /// The scenario, with defaults filled in.
    pub scenario: Scenario,
    /// The line on which each event begins. The events of a scenario that is one JSON object count
    /// as being on the line where it begins.
    pub lines: Vec<usize>,
    /// True for each event that is only asked about: a request `explain` of the agent.
    pub only_asked: Vec<bool>,
    /// Remarks for the author of the file, such as options that are ignored.
    pub notes: Vec<String>,
}

/// The settings that fill in what is left out.
#[derive(Debug, Clone, Copy)]
pub struct EventDefaults<'a> {
    /// The text of a configuration for scenarios without one, such as that of `CONFIG.json`.
    pub config: Option<&'a str>,
    /// The time of the first event, in seconds since 1970.
    pub seconds: i64,
    /// The least number of buckets of a conversion that does not say how many it wants.
    pub buckets: u32,
}

/// The URL of the aggregation service that a conversion names if it does not matter which.
const SERVICE: &str = "https://aggregator.example";

/// The time between two events of which the second has no time, in seconds.
const PAUSE: i64 = 60;

/// Fields of an event that are for tests, and fields that say something to people only.
const NOT_OF_CALLS: [&str; 7] = [
    "expected",
    "expectedError",
    "expectedCause",
    "draws",
    "handle",
    "comment",
    "tags",
];

/// Events that no line of the agent's protocol can be.
const NOT_OF_AGENTS: [&str; 3] = ["navigate", "updateActivationTimestamp", "activate"];

/// Requests of the agent that show something and change nothing.
const SHOWS: [&str; 4] = ["budgets", "history", "impressions", "status"];

/// Reads scenarios to explain. The text is one of these:
///
/// * scenarios, each a JSON object with `events`, as in a `.jsonl` file or in the W3C's format
/// * events, each a JSON object with `event`, such as the lines that `bigbird agent` reads
/// * a JSON array of events
///
/// Cases of another kind, such as headers, are skipped. Events outside of scenarios become one
/// scenario with this name.
///
/// # Errors
/// If the text is not JSON, or something in it is not an event. The error names the line.
pub fn read_lenient(
    name: &str,
    text: &str,
    defaults: EventDefaults<'_>,
) -> Result<Vec<ExplainableScenario>, VectorError> {
    let mut scenarios = Vec::new();
    let mut loose = Vec::new();
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let mut line = Lines::default();
    loop {
        let begin = line.at(text, values.byte_offset());
        let value = match values.next() {
            None => break,
            Some(Ok(value)) => value,
            Some(Err(error)) => {
                return Err(VectorError::new(name, format!("not JSON: {error}")));
            }
        };
        match value {
            Value::Array(events) => {
                let events = (0..).zip(events);
                loose.extend(events.map(|(number, event)| ((begin, Some(number)), event)));
            }
            Value::Object(fields) if fields.contains_key("events") => {
                let reader = EventReader::new(name, defaults);
                scenarios.push(reader.scenario(fields, begin)?);
            }
            Value::Object(fields) if fields.contains_key("event") => {
                loose.push(((begin, None), Value::Object(fields)));
            }
            Value::Object(fields)
                if ["header", "credit", "input"]
                    .iter()
                    .any(|key| fields.contains_key(*key)) => {}
            _ => {
                let why = "not an event; an event is an object with the key `event`, such as \
                           {\"event\": \"saveImpression\", \"site\": \"news.example\"}";
                return Err(VectorError::new(format!("{name}:{begin}"), why));
            }
        }
    }
    if !loose.is_empty() {
        let reader = EventReader::new(name, defaults);
        scenarios.push(reader.loose(loose)?);
    }
    Ok(scenarios)
}

/// The line on which an event begins, and its number in a list if it is in one.
type Place = (usize, Option<usize>);

/// Counts lines, from the beginning of a text on.
#[derive(Default)]
struct Lines {
    offset: usize,
    before: usize,
}

impl Lines {
    /// The line of the first thing at or after an offset. Offsets only increase.
    fn at(&mut self, text: &str, offset: usize) -> usize {
        let rest = text.get(offset..).unwrap_or_default();
        let begin = offset + (rest.len() - rest.trim_start().len());
        let passed = text.get(self.offset..begin).unwrap_or_default();
        self.before += passed.matches('\n').count();
        self.offset = begin;
        self.before + 1
    }
}

/// Reads the events of one scenario.
struct EventReader<'a> {
    name: &'a str,
    defaults: EventDefaults<'a>,
    notes: Vec<String>,
}

impl<'a> EventReader<'a> {
    fn new(name: &'a str, defaults: EventDefaults<'a>) -> Self {
        Self {
            name,
            defaults,
            notes: Vec::new(),
        }
    }

    /// Reads events that are not part of a scenario. They are played under the rules of the agent.
    fn loose(self, events: Vec<(Place, Value)>) -> Result<ExplainableScenario, VectorError> {
        let mut fields = Map::new();
        fields.insert("name".to_owned(), json!(self.name));
        fields.insert("profile".to_owned(), json!(Profile::default().name()));
        self.read(fields, events, true)
    }

    /// Reads a scenario.
    fn scenario(
        self,
        mut fields: Map<String, Value>,
        line: usize,
    ) -> Result<ExplainableScenario, VectorError> {
        let Some(Value::Array(events)) = fields.remove("events") else {
            let at = format!("{}:{line}", self.name);
            return Err(VectorError::new(at, "`events` must be a list of events"));
        };
        let events = (0..).zip(events);
        let events = events.map(|(number, event)| ((line, Some(number)), event));
        let events = events.collect();
        self.read(fields, events, false)
    }

    fn read(
        mut self,
        mut fields: Map<String, Value>,
        events: Vec<(Place, Value)>,
        strict: bool,
    ) -> Result<ExplainableScenario, VectorError> {
        let mut found: Vec<(Place, Map<String, Value>)> = Vec::new();
        for (place, event) in events {
            match event {
                Value::Object(event) => found.push((place, event)),
                other => {
                    let why = format!("not an event but {other}; an event is an object");
                    return Err(VectorError::new(self.place(place), why));
                }
            }
        }
        let profile = fields.get("profile").and_then(Value::as_str);
        let profile = profile.and_then(|name| name.parse().ok());
        let config = self.config(fields.remove("config"), profile, &found)?;
        let last = found
            .iter()
            .filter_map(|it| bucket(&it.1))
            .max()
            .unwrap_or(0);
        let buckets = last.saturating_add(1).max(self.defaults.buckets.into());
        let service = config.services().next().unwrap_or(SERVICE).to_owned();
        let mut seconds = None;
        let (mut played, mut lines, mut only_asked) = (Vec::new(), Vec::new(), Vec::new());
        for (place, mut event) in found {
            let at = self.place(place);
            let wrong = |why: String| VectorError::new(&at, why);
            let kind = event
                .get("event")
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned();
            if SHOWS.contains(&kind.as_str()) {
                self.notes
                    .push(format!("{at}: `{kind}` changes nothing, and is left out"));
                continue;
            }
            let default = seconds.map_or(self.defaults.seconds, |last: i64| {
                last.saturating_add(PAUSE)
            });
            let given = event.entry("seconds").or_insert(json!(default));
            seconds =
                Some(given.as_i64().ok_or_else(|| {
                    wrong(format!("`seconds` must be a whole number, got {given}"))
                })?);
            let measures = [
                "measureConversion",
                "createSharedConversion",
                "takeShare",
                "explain",
            ];
            if measures.contains(&kind.as_str()) || kind == "saveImpression" {
                let options = event.entry("options").or_insert_with(|| json!({}));
                if let Some(options) = options.as_object_mut() {
                    options.retain(|_, value| !value.is_null());
                    let mut fill = |name: &str, value: Value| {
                        options.entry(name).or_insert(value);
                    };
                    if kind == "saveImpression" {
                        fill("histogramIndex", json!(0));
                    } else {
                        fill("aggregationService", json!(service));
                        fill("histogramSize", json!(buckets));
                    }
                    self.notes.extend(unknown_options(&at, &kind, options));
                }
            }
            let checked = check(&event, &kind);
            if strict {
                checked.clone().map_err(wrong)?;
            }
            if kind == "explain" {
                let asked = match (
                    event.contains_key("participants"),
                    event.contains_key("shared"),
                ) {
                    (true, _) => "createSharedConversion",
                    (_, true) => "takeShare",
                    _ => "measureConversion",
                };
                event.insert("event".to_owned(), json!(asked));
            }
            let parsed = serde_json::from_value::<ScenarioEvent>(Value::Object(event));
            // The check knows better words for what is wrong.
            let told = |error: serde_json::Error| wrong(checked.err().unwrap_or(error.to_string()));
            played.push(parsed.map_err(told)?);
            lines.push(place.0);
            only_asked.push(kind == "explain");
        }
        let at = self.name;
        let mut scenario: Scenario = serde_json::from_value(json!({
            "name": fields.get("name").and_then(Value::as_str).unwrap_or(self.name),
            "profile": fields.get("profile"),
            "events": [],
        }))
        .map_err(|error| VectorError::new(at, error))?;
        scenario.set_default_config(&config);
        scenario.events = played;
        Ok(ExplainableScenario {
            scenario,
            lines,
            only_asked,
            notes: self.notes,
        })
    }

    /// The place of an event.
    fn place(&self, (line, number): Place) -> String {
        match number {
            Some(number) => format!("{}:{line}: event {number}", self.name),
            None => format!("{}:{line}", self.name),
        }
    }

    /// The configuration: what is given, on top of the file's default, on top of the user agent's.
    fn config(
        &mut self,
        given: Option<Value>,
        profile: Option<Profile>,
        events: &[(Place, Map<String, Value>)],
    ) -> Result<ScenarioConfig, VectorError> {
        let mut named = BTreeMap::new();
        for (_, event) in events {
            let service = event
                .get("options")
                .and_then(|it| it.get("aggregationService"));
            if let Some(service) = service.and_then(Value::as_str) {
                named.insert(service.to_owned(), "dap-18-histogram".to_owned());
            }
        }
        if named.is_empty() {
            named.insert(SERVICE.to_owned(), "dap-18-histogram".to_owned());
        }
        let base = Config::new(profile.unwrap_or(Profile::W3cDraft));
        let mut fields = ScenarioConfig::of(&base, named).to_json();
        let file = match self.defaults.config.filter(|_| given.is_none()) {
            Some(text) => Some(
                serde_json::from_str::<Value>(text)
                    .map_err(|error| VectorError::new("CONFIG.json", error))?,
            ),
            None => None,
        };
        for source in [file, given].into_iter().flatten() {
            let Value::Object(source) = source else {
                return Err(VectorError::new(self.name, "`config` must be an object"));
            };
            for (key, value) in source {
                if !fields.contains_key(&key) {
                    let note = format!(
                        "{}: `config` has no key `{key}`, so it is ignored",
                        self.name
                    );
                    self.notes.push(note);
                }
                fields.insert(key, value);
            }
        }
        let config = serde_json::from_value(Value::Object(fields));
        config.map_err(|error| VectorError::new(self.name, format!("config: {error}")))
    }
}

/// The bucket of an event that saves an impression.
fn bucket(event: &Map<String, Value>) -> Option<u64> {
    event.get("options")?.get("histogramIndex")?.as_u64()
}

/// Checks an event as the agent would, and says what is wrong with it.
fn check(event: &Map<String, Value>, kind: &str) -> Result<(), String> {
    if NOT_OF_AGENTS.contains(&kind) || event.contains_key("topLevelTraversable") {
        return Ok(());
    }
    let mut call = event.clone();
    call.retain(|name, _| !NOT_OF_CALLS.contains(&name.as_str()));
    match Line::parse(&Value::Object(call).to_string(), &Limits::default()) {
        Ok(_) => Ok(()),
        Err(answer) => Err(answer.message().unwrap_or_default().to_owned()),
    }
}

/// A remark about each option that the draft does not know.
fn unknown_options(at: &str, kind: &str, options: &Map<String, Value>) -> Vec<String> {
    let known = match kind {
        "saveImpression" => serde_json::to_value(ImpressionOptions::new(0)),
        _ => serde_json::to_value(ConversionOptions {
            lookback_days: Some(1),
            ..ConversionOptions::new("", 1)
        }),
    };
    let Ok(Value::Object(known)) = known else {
        return Vec::new();
    };
    let names: Vec<&str> = known.keys().map(String::as_str).collect();
    let unknown = options.keys().filter(|name| !known.contains_key(*name));
    let told = unknown.map(|name| {
        let names = names.join(", ");
        format!("{at}: `{name}` is not an option of {kind}, so it is ignored; options are: {names}")
    });
    told.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<ExplainableScenario>, VectorError> {
        let defaults = EventDefaults {
            config: None,
            seconds: 0,
            buckets: 1,
        };
        read_lenient("f", text, defaults)
    }

    const EVENTS: [&str; 2] = [
        r#"{"event": "saveImpression", "site": "news.example", "options": {"histogramIndex": 2}}"#,
        r#"{"event": "measureConversion", "site": "shop.example"}"#,
    ];

    /// Lines, an array, a W3C file and a scenario with part of a configuration say the same.
    #[test]
    fn an_impression_and_a_conversion_are_enough() {
        let [ad, buy] = EVENTS;
        for text in [
            format!("{ad}\n{buy}\n"),
            format!("\n{ad}\n\n{buy}"),
            format!("[{ad},\n{buy}]"),
            format!("{{\"events\": [{ad}, {buy}]}}"),
            format!(
                "{{\"name\": \"x\", \"config\": {{\"privacyBudgetEpochDays\": 1}}, \"events\": [{ad}, {buy}]}}"
            ),
        ] {
            let read = read(&text).unwrap();
            let [found] = read.as_slice() else {
                panic!("{text}");
            };
            assert_eq!(found.notes, Vec::<String>::new());
            let mut player = found.scenario.player(None).unwrap();
            let reports: Vec<String> = found
                .scenario
                .events
                .iter()
                .map(|event| event.play(&mut player).unwrap().to_string())
                .collect();
            assert_eq!(reports, ["success", "[0, 0, 1]"], "{text}");
        }
    }

    #[test]
    fn errors_name_the_line_and_the_field() {
        let [ad, buy] = EVENTS;
        for (text, expected) in [
            (
                "{",
                "f: not JSON: EOF while parsing an object at line 1 column 1",
            ),
            (
                "\n\n{\"site\": 1}",
                "f:3: not an event; an event is an object with the key `event`, such as \
                 {\"event\": \"saveImpression\", \"site\": \"news.example\"}",
            ),
            (
                &format!("{ad}\n{{\"event\": \"measureConversion\"}}"),
                "f:2: measureConversion requires `site` (a host), but it is missing",
            ),
            (
                &format!("{ad}\n{buy}\n{{\"event\": \"buy\"}}"),
                "f:3: unknown event `buy`; use one of: ",
            ),
            (
                r#"{"event": "saveImpression", "site": "a.example", "seconds": 1.5}"#,
                "f:1: `seconds` must be a whole number, got 1.5",
            ),
            (
                r#"{"event": "saveImpression", "site": "a.example", "bucket": 3}"#,
                "f:1: saveImpression has no field `bucket`; use: site, options, ",
            ),
            (
                r#"{"event": "measureConversion", "site": "a.example", "options": {"epsilon": "x"}}"#,
                "f:1: measureConversion: `options.epsilon` must be a number, got \"x\"",
            ),
            (
                "[1]",
                "f:1: event 0: not an event but 1; an event is an object",
            ),
            (
                r#"{"events": [{"event": "measureConversion"}]}"#,
                "f:1: event 0: measureConversion requires `site` (a host), but it is missing",
            ),
            (r#"{"events": 3}"#, "f:1: `events` must be a list of events"),
            (
                r#"{"config": {"maxCreditSize": "x"}, "events": []}"#,
                "f: config: invalid type: string \"x\", expected usize",
            ),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text}\n{error}");
        }
    }

    /// Numbers at the ends of their ranges overflow nothing.
    #[test]
    fn large_numbers_overflow_nothing() {
        let last = i64::MAX;
        let text = format!(
            "{{\"event\": \"enableAPI\", \"seconds\": {last}}} {{\"event\": \"enableAPI\"}}"
        );
        assert_eq!(read(&text).unwrap()[0].scenario.events[1].seconds, last);
        let bucket = u64::MAX;
        let text = format!(
            "[{{\"event\": \"saveImpression\", \"site\": \"a.example\", \
             \"options\": {{\"histogramIndex\": {bucket}}}}}]"
        );
        assert!(read(&text).is_err());
    }

    #[test]
    fn what_is_ignored_is_told() {
        let text = r#"{"event": "measureConversion", "site": "a.example", "options": {"lookback": 3}}
            {"event": "budgets"}"#;
        let read = read(text).unwrap();
        assert!(read[0].notes[0].starts_with(
            "f:1: `lookback` is not an option of measureConversion, so it is ignored; \
             options are: aggregationService, "
        ));
        assert_eq!(
            read[0].notes[1],
            "f:2: `budgets` changes nothing, and is left out"
        );
    }

    /// Vectors stay strict.
    #[test]
    fn vectors_need_their_expectations() {
        let [ad, buy] = EVENTS;
        for text in [ad.to_owned(), format!("{{\"events\": [{ad}, {buy}]}}")] {
            assert!(crate::VectorCase::parse(&text).is_err());
        }
    }
}
