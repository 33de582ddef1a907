//! Every row of `answers.jsonl` is a request and its answer. The gate gives that answer, and where
//! the protocol of the user agent has the request, `bigbird agent` gives it too. `test.mjs` checks
//! the same rows on the WebAssembly module.
#![allow(missing_docs, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Cursor, Write};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use bigbird::{Profile, Timestamp};
use bigbird_dap::{ConfiguredServices, DapSealer};
use bigbird_testing::FixedRandomness;
use bigbird_user_agent::protocol::{Player, ServeOptions, StreamClock, serve};
use bigbird_user_agent::{Config, SystemRandomness, UserAgent};
use bigbird_wasm::BrowserGate;
use serde_json::{Value, json};

const SERVICES: &str = include_str!("aggregation-services.toml");

fn path() -> String {
    format!("{}/tests/answers.jsonl", env!("CARGO_MANIFEST_DIR"))
}

/// The requests and their answers.
fn rows() -> Vec<(Value, Value)> {
    let text = fs::read_to_string(path()).unwrap();
    text.lines()
        .map(|line| {
            let row: Value = serde_json::from_str(line).unwrap();
            (row["request"].clone(), row["answer"].clone())
        })
        .collect()
}

fn gate() -> BrowserGate {
    let mut gate = BrowserGate::default();
    let configured = gate.configure(&json!({ "services": SERVICES }).to_string());
    assert_eq!(
        configured,
        r#"{"ok":true,"services":["https://agg.example"]}"#
    );
    gate
}

/// The answer with the length of what is random.
fn measured(answer: &str) -> Value {
    let mut answer: Value = serde_json::from_str(answer).unwrap();
    for name in ["report", "shared"] {
        if let Some(random) = answer.get_mut(name) {
            *random = json!(random.as_str().unwrap().len());
        }
    }
    answer
}

fn answer(gate: &mut BrowserGate, request: &Value) -> Value {
    measured(&gate.answer(&request.to_string(), now()))
}

#[test]
fn the_gate_gives_the_answers_of_the_table() {
    let mut gate = gate();
    let rows = rows();
    assert!(rows.len() > 140);
    for (request, expected) in rows {
        assert_eq!(answer(&mut gate, &request), expected, "{request}");
    }
}

#[test]
fn the_user_agent_gives_the_same_answers() {
    let asked: Vec<_> = rows()
        .into_iter()
        .filter(|(request, answer)| {
            let own = ["site", "parseHeader", "activation"].map(|event| json!(event));
            request.is_object()
                && !own.contains(&request["event"])
                // Only a store can answer these.
                && answer["error"] != "StoreError"
                // The limit of an id is tested below.
                && !answer["message"].as_str().is_some_and(|why| why.starts_with("`id`"))
        })
        .collect();
    assert!(asked.len() > 80);
    let mut input = String::new();
    for (number, (request, _)) in asked.iter().enumerate() {
        let mut request = request.clone();
        request["id"] = json!(number);
        input += &format!("{request}\n");
    }
    let answers = served(input);
    for (number, (request, mut expected)) in asked.into_iter().enumerate() {
        expected["id"] = json!(number);
        assert_eq!(answers[&number], expected, "{request}");
    }
}

/// The answers of a user agent on a wall clock, by the number of the request.
fn served(input: String) -> BTreeMap<usize, Value> {
    let sealer = DapSealer::new(ConfiguredServices::parse(SERVICES).unwrap());
    let mut config = Config::new(Profile::BigBird);
    config.aggregation_services = sealer.services().protocols();
    config.pace.delay = Duration::from_millis(1);
    let agent = UserAgent::in_memory(config, FixedRandomness).sealing(sealer);
    let output = OutputBuffer::default();
    let serving = ServeOptions {
        clock: StreamClock::Wall(now),
        warn: |warning| panic!("{warning}"),
        handle: SystemRandomness::handle_bits,
    };
    serve(
        Player::new(agent, None),
        Cursor::new(input),
        output.clone(),
        serving,
    )
    .unwrap();
    let written = String::from_utf8(output.0.lock().unwrap().clone()).unwrap();
    let answers = written.lines().map(measured);
    answers
        .map(|answer| {
            let number = answer["id"].as_u64().unwrap();
            (usize::try_from(number).unwrap(), answer)
        })
        .collect()
}

/// Writes what the gate answers now. Commit it only if the answers are meant to change.
#[test]
#[ignore = "it writes the table anew; commit it only if the answers are meant to change"]
fn write_the_table() {
    let mut gate = gate();
    let mut text = String::new();
    for (request, _) in rows() {
        let answer = answer(&mut gate, &request);
        text += &format!("{{\"request\":{request},\"answer\":{answer}}}\n");
    }
    fs::write(path(), text).unwrap();
}

#[test]
fn text_that_is_not_a_request_is_told_so() {
    let mut gate = gate();
    for (text, why) in [
        ("", "the line is not JSON: EOF while parsing a value"),
        ("{", "the line is not JSON: EOF while parsing an object"),
        ("{\"event\":\"site\"", "the line is not JSON: EOF while"),
        (
            "{\"event\":\"site\",\"host\":\"a.example\"}x",
            "the line is not JSON: trailing",
        ),
        (
            &format!("{{\"event\":\"saveImpression\"{}}}", " ".repeat(70_000)),
            "a `saveImpression` request must have at most ",
        ),
        (
            &"[".repeat(100_000),
            "the line is not JSON: recursion limit",
        ),
    ] {
        let answer: Value = serde_json::from_str(&gate.answer(text, now())).unwrap();
        assert_eq!(answer["error"], "MalformedRequest");
        let message = answer["message"].as_str().unwrap();
        assert!(message.starts_with(why), "{message}");
    }
}

#[test]
fn a_wrong_configuration_changes_nothing() {
    let mut gate = gate();
    for (configuration, why) in [
        (
            json!({"profile": "none"}),
            "unknown profile `none`; use one of: big-bird",
        ),
        (
            json!({"services": "[[service]]\nurl = 'agg.example'\n"}),
            "aggregation-services.toml: line 1: missing field `leader`",
        ),
        (
            json!({"services": 5}),
            "the configuration is not valid: invalid type",
        ),
        (
            json!({"service": ""}),
            "the configuration is not valid: unknown field `service`",
        ),
        (
            json!({"releaseAfter": 0}),
            "releaseAfter must be in [1, 60000] ms, got 0",
        ),
        (json!([]), "the configuration is not valid: "),
    ] {
        let answer = gate.configure(&configuration.to_string());
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(answer["error"], "ConfigurationError");
        let message = answer["message"].as_str().unwrap();
        assert!(message.starts_with(why), "{message}");
    }
    let conversion = json!({"event": "measureConversion", "site": "a.example", "options":
        {"aggregationService": "https://agg.example", "histogramSize": 5}});
    assert!(answer(&mut gate, &conversion)["report"].is_number());
    // Without services, none is known. The draft's profile allows fewer queriers.
    let draft = json!({"services": " \n", "profile": "w3c-draft", "releaseAfter": 500});
    assert_eq!(
        gate.configure(&draft.to_string()),
        r#"{"ok":true,"services":[]}"#
    );
    assert_eq!(answer(&mut gate, &conversion)["error"], "ReferenceError");
    let shared = json!({"event": "createSharedConversion", "site": "a.example",
        "participants": ["b.example"], "options": conversion["options"]});
    assert_eq!(answer(&mut gate, &shared)["error"], "ReferenceError");
}

fn now() -> Timestamp {
    let passed = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis();
    Timestamp(i64::try_from(passed).unwrap())
}

/// Output that the test reads when the user agent has stopped.
#[derive(Clone, Default)]
struct OutputBuffer(Arc<Mutex<Vec<u8>>>);

impl Write for OutputBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
