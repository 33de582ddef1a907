//! Cases are read and run, and mismatches are found.
#![allow(missing_docs, clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use bigbird_conformance::{EventDefaults, VectorCase, read_lenient};

/// The examples of `docs/vectors.md` are cases that pass.
#[test]
fn the_documented_examples_pass() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/vectors.md");
    let text = fs::read_to_string(page).unwrap();
    let (vectors, to_explain) = text.split_once("## Files for explain").unwrap();
    let examples: Vec<&str> = vectors
        .lines()
        .filter(|line| line.starts_with('{'))
        .collect();
    assert_eq!(examples.len(), 4);
    for line in examples {
        assert_eq!(
            VectorCase::parse(line).unwrap().run(None),
            Ok(Vec::new()),
            "{line}"
        );
    }
    let events: Vec<&str> = to_explain
        .lines()
        .filter(|line| line.starts_with('{'))
        .collect();
    let defaults = EventDefaults {
        config: None,
        seconds: 0,
        buckets: 1,
    };
    let [found] = &read_lenient("page", &events.join("\n"), defaults).unwrap()[..] else {
        panic!("{events:?}");
    };
    let mut player = found.scenario.player(None).unwrap();
    let results = found
        .scenario
        .events
        .iter()
        .map(|it| it.play(&mut player).unwrap().to_string());
    assert_eq!(results.collect::<Vec<_>>(), ["success", "[0, 0, 1]"]);
}

/// What is filled in for `explain` changes nothing where everything is given.
#[test]
fn our_scenarios_are_read_leniently_too() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors");
    let defaults = EventDefaults {
        config: None,
        seconds: 7,
        buckets: 3,
    };
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        for found in read_lenient("file", &text, defaults).unwrap() {
            let mut player = found.scenario.player(None).unwrap();
            let mismatches = found.scenario.run_on(&mut player);
            assert_eq!(mismatches, Ok(Vec::new()), "{}", found.scenario.name);
            count += 1;
        }
    }
    assert!(count > 30, "{count}");
}

/// A vector with a wrong expectation fails.
#[test]
fn a_wrong_expectation_is_noticed() {
    let wrong = [
        r#"{"input": "www.a.example", "expected": "b.example"}"#,
        r#"{"credit": [1, 1], "value": 4, "fraction": 0.5, "expected": [3, 1]}"#,
        r#"{"header": "Save-Impression", "value": "histogram-index=1", "expected": {"error": true}}"#,
        r#"{"header": "Save-Impression", "value": "histogram-index=1, priority=2",
            "expected": {"histogramIndex": 1}}"#,
        r#"{"header": "Save-Impression", "value": "histogram-index=1",
            "expected": {"histogramIndex": 1, "priority": 2}}"#,
    ];
    for line in wrong {
        let case = VectorCase::parse(line).unwrap();
        assert_eq!(case.run(None).unwrap().len(), 1, "{line}");
    }
}

#[test]
fn what_is_no_case_is_an_error() {
    for line in [
        "",
        "{}",
        "[]",
        "{\"events\": 3}",
        "{\"header\": 1}",
        "{\"credit\": []}",
    ] {
        assert!(VectorCase::parse(line).is_err(), "{line}");
    }
    let unknown = r#"{"name": "x", "profile": "nobody", "events": []}"#;
    let error = VectorCase::parse(unknown).unwrap().run(None).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("unknown profile `nobody`"), "{error}");
}
