//! `bigbird explain`: events as people write them.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::process::Output;

use common::{AgentProcess, arguments, bigbird, convert, folder, save, with_input};
use serde_json::{Value, json};

const VECTORS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../conformance/vectors");

/// Runs `bigbird explain` with events on standard input.
fn explain(arguments: &[&str], input: &str) -> Output {
    with_input("explain", arguments, input)
}

fn explained(arguments: &[&str], input: &str) -> Value {
    let mut arguments = arguments.to_vec();
    arguments.push("--json");
    let output = explain(&arguments, input);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

const AD: &str =
    r#"{"event": "saveImpression", "site": "news.example", "options": {"histogramIndex": 2}}"#;

fn buy(epsilon: f64) -> String {
    json!({"event": "measureConversion", "site": "shop.example", "options": {"epsilon": epsilon}})
        .to_string()
}

/// An impression and two conversions are enough to ask why the second report was null, as lines, in
/// an array, and as a scenario without a configuration and without expectations.
#[test]
fn why_was_my_report_null() {
    let (first, second) = (buy(0.75), buy(0.75));
    for input in [
        format!("{AD}\n{first}\n{second}\n"),
        format!("[{AD}, {first}, {second}]"),
        format!("{{\"profile\": \"big-bird\", \"events\": [{AD}, {first}, {second}]}}"),
    ] {
        let told = explained(&["-"], &input);
        assert_eq!(told["events"][1]["histogram"], json!([0, 0, 1]));
        let null = &told["events"][2];
        assert_eq!(null["histogram"], json!([0, 0, 0]));
        let explanation = &null["explanation"];
        assert_eq!(explanation["cause"], "querierBudget");
        assert_eq!(explanation["largestEpsilon"], 0.25);
        assert_eq!(
            explanation["shortfall"],
            json!({"filter": "querierBudget", "site": "shop.example", "epoch": 0,
                "asked": 750_000, "consumed": 750_000, "capacity": 1_000_000, "shortBy": 500_000})
        );
    }
    let text = explain(&["-"], &format!("{AD}\n{first}\n{second}\n"));
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("an epsilon of 0.25 or less would"), "{text}");
}

/// A W3C file needs no CONFIG.json, and uses it if it is there.
#[test]
fn a_w3c_file_needs_no_configuration() {
    let folder = folder();
    let file = folder.file("story.json");
    std::fs::write(&file, format!("{{\"events\": [{AD}, {}]}}", buy(0.5))).unwrap();
    let path = file.to_str().unwrap();
    let told = explained(&[path], "");
    assert_eq!(told["scenario"], "story");
    assert_eq!(told["events"][1]["histogram"], json!([0, 0, 1]));
    std::fs::write(
        folder.file("CONFIG.json"),
        "{\"perSitePrivacyBudget\": 400000}",
    )
    .unwrap();
    let told = explained(&[path], "");
    assert_eq!(told["events"][1]["explanation"]["largestEpsilon"], 0.4);
    // Vectors stay strict.
    let conformance = bigbird(&format!("conformance {path}"));
    assert_eq!(conformance.status.code(), Some(2), "{conformance:?}");
}

/// If nothing matched, it says why the impressions do not match.
#[test]
fn impressions_that_do_not_match_have_their_reasons() {
    let ads = r#"{"event": "saveImpression", "site": "news.example", "options": {"matchValue": 3}}
        {"event": "saveImpression", "site": "tv.example", "options": {"conversionSites": ["a.example"]}}
        {"event": "saveImpression", "site": "blog.example", "options": {"lifetimeDays": 1}}
        {"event": "measureConversion", "site": "shop.example", "seconds": 172800,
         "options": {"matchValues": [0]}}
        {"event": "measureConversion", "site": "shop.example", "options": {"lookbackDays": 1}}"#;
    let told = explained(&["-"], ads);
    let reasons = |event: &Value| -> Vec<String> {
        let unmatched = event["explanation"]["unmatched"].as_array().unwrap();
        let told = unmatched
            .iter()
            .map(|it| format!("{}: {}", it["site"], it["why"]));
        told.collect()
    };
    assert_eq!(
        reasons(&told["events"][3]),
        [
            "\"blog.example\": \"it had expired (its lifetimeDays)\"",
            "\"tv.example\": \"it allows other conversion sites only (its conversionSites)\"",
            "\"news.example\": \"its match value 3 is not among those of the conversion \
             (matchValues)\"",
        ]
    );
    let before = "it was saved before the lookback of the conversion (lookbackDays)";
    assert!(reasons(&told["events"][4])[2].contains(before), "{told}");
    let text = explain(&["-"], &buy(0.5)).stdout;
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("no impression is stored"), "{text}");
}

/// An impression that the domain cap drops is not silently missing.
#[test]
fn an_impression_that_is_not_saved_says_so() {
    let ad =
        |site: &str| json!({"event": "saveImpression", "site": site, "userAction": 1}).to_string();
    let ads = ["a.example", "b.example", "c.example"].map(ad).join("\n");
    let told = explained(&["-"], &ads);
    assert_eq!(told["events"][1].get("notSaved"), None);
    let why = told["events"][2]["notSaved"].as_str().unwrap();
    assert!(why.contains("domain cap"), "{why}");
}

#[test]
fn scenarios_are_listed_and_chosen() {
    let file = format!("{VECTORS}/w3c-draft.jsonl");
    let listed = explain(&[&file, "--list"], "");
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(
        listed.contains("\n  one epoch refuses, the other answers ("),
        "{listed}"
    );
    let told = explained(
        &[&file, "--name", "one epoch refuses, the other answers"],
        "",
    );
    assert_eq!(told["scenario"], "one epoch refuses, the other answers");
    assert_eq!(told["notes"], json!([]));
    let output = explain(&[&file, "--name", "nobody"], "");
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("unknown scenario `nobody`; use one of: `global budget refuses`, `"));
}

#[test]
fn errors_have_one_line_with_the_place() {
    let folder = folder();
    let file = folder.file("e.jsonl");
    for (input, expected) in [
        (
            format!("{AD}\n{{\"event\": \"measureConversion\"}}\n"),
            ":2: measureConversion requires `site` (a host), but it is missing\n",
        ),
        (
            format!("{AD}\n{{"),
            ": not JSON: EOF while parsing an object at line 2 column 1\n",
        ),
        (String::new(), ": nothing to explain; write events such as"),
    ] {
        std::fs::write(&file, input).unwrap();
        let output = explain(&[file.to_str().unwrap()], "");
        assert_eq!(output.status.code(), Some(2));
        let error = String::from_utf8(output.stderr).unwrap();
        let expected = format!("bigbird: {}{expected}", file.display());
        assert!(
            error.starts_with(&expected) && error.lines().count() == 1,
            "{error}"
        );
    }
}

/// A store is explained without being changed: what it recorded, and what a call would give now.
#[test]
fn a_store_is_explained_and_not_changed() {
    let folder = folder();
    let store = folder.file("profile.store");
    let mut flags = arguments(&store);
    // Not the default rules: the ones that the store was used with count.
    flags.extend(["--profile", "w3c-draft", "--epoch-days", "3"].map(str::to_owned));
    let mut agent = AgentProcess::start(&flags);
    assert_eq!(agent.ask(&save(10, 1, "news.example", 3))["ok"], true);
    assert_eq!(agent.ask(&convert(20, 2, "shop.example", 0.75))["ok"], true);
    assert_eq!(agent.ask(&convert(30, 3, "shop.example", 0.75))["ok"], true);
    let mut call = convert(40, 4, "shop.example", 0.5);
    let measure = call.to_string();
    call["event"] = json!("explain");
    let expected = agent.ask(&call)["explanation"].take();
    assert!(agent.end());
    let bytes = std::fs::read(&store).unwrap();
    let path = store.to_str().unwrap();

    let recorded = explained(&["--store", path], "");
    assert_eq!(recorded.as_array().unwrap().len(), 2);
    assert_eq!(recorded[0]["outcome"], "charged");
    assert_eq!(recorded[1]["cause"], "querierBudget");
    let text = String::from_utf8(explain(&["--store", path], "").stdout).unwrap();
    assert!(
        text.contains("a conversion on shop.example: value 1 of 1, epsilon 0.75"),
        "{text}"
    );

    let told = explained(&["-", "--store", path], &measure);
    assert_eq!(told["events"][0]["explanation"], expected);
    assert_eq!(expected["largestEpsilon"], 0.25);
    // Without a number of buckets, there are enough for the impressions that are stored.
    let short = r#"{"event": "measureConversion", "site": "other.example", "seconds": 40}"#;
    let told = explained(&["-", "--store", path], short);
    assert_eq!(told["events"][0]["histogram"], json!([0, 0, 0, 1]));
    assert_eq!(std::fs::read(&store).unwrap(), bytes);
}
