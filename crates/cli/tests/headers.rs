//! `bigbird headers`.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::process::Output;

use common::with_input;
use serde_json::{Value, json};

fn headers(arguments: &[&str], input: &str) -> Output {
    with_input("headers", arguments, input)
}

/// The status and the standard output.
fn told(arguments: &[&str]) -> (i32, String) {
    let output = headers(arguments, "");
    assert!(output.stderr.is_empty(), "{output:?}");
    (
        output.status.code().unwrap(),
        String::from_utf8(output.stdout).unwrap(),
    )
}

#[test]
fn a_good_header_is_put_into_words() {
    let ad = "Save-Impression: histogram-index=3, conversion-sites=(\"shop.example\"), \
              lifetime-days=90, histogram_index=4, other=1";
    let (status, text) = told(&[ad, "--site", "www.news.example"]);
    assert_eq!(status, 0, "{text}");
    for line in [
        "accepted: An ad on news.example is saved for 30 days. If shop.example measures a conversion, \
         its",
        "credit goes to bucket 3.",
        "  match-value         0               default  conversions can choose ads by this number",
        "note: `lifetime-days` is 90, but a browser uses at most 30",
        "note: `histogram_index` is ignored; did you mean `histogram-index`?",
        "note: `other` is ignored, because the API has no such key",
    ] {
        assert!(text.lines().any(|it| it == line), "{line}\n{text}");
    }
    let buy = "measure-conversion: aggregation-service=\"https://agg.example\", histogram-size=5, \
               report-url=\"/r\", epsilon=0.5, value=2, max-value=8";
    let (status, text) = told(&[buy, "--site", "shop.example"]);
    assert_eq!(status, 0, "{text}");
    let text = text.replace('\n', " ");
    for part in [
        "A conversion on shop.example worth 2 of at most 8 goes to the last ad of the last 30 days. \
         It costs up to 0.125 epsilon in each epoch with an ad that matches.",
        "https://shop.example/r",
        "note: a browser that does not list https://agg.example refuses this with a ReferenceError",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

/// Each mistake exits 1, names the reason, and has its caret at the place.
#[test]
fn a_mistake_has_a_caret() {
    let service = "aggregation-service=\"https://agg.example\"";
    let long = format!("{service}, histogram-size=5, report-url=\"/\"");
    for (header, place, why) in [
        (
            "Save-Impression: histogram-index=3, priority".to_owned(),
            Some("priority"),
            "the value of priority must be an integer in [-2147483648, 2147483647]",
        ),
        (
            "Save-Impression: histogram-index=\"3\"".to_owned(),
            Some("\"3\""),
            "the value of histogram-index must be an integer in [0, 4294967295]",
        ),
        (
            "Save-Impression: histogram-index=3 priority=2".to_owned(),
            Some("priority"),
            "the value is not a structured-field dictionary: trailing characters after member",
        ),
        (
            "Save-Impression: match-value=3".to_owned(),
            None,
            "the header lacks the required key histogram-index",
        ),
        (
            "Save-Impression: match-value=1, histogram-index=5000".to_owned(),
            Some("5000"),
            "RangeError: histogramIndex must be below 1024, got 5000",
        ),
        (
            "Save-Impression: histogram-index=1, conversion-sites=(\"a.example\" \"https://b\")"
                .to_owned(),
            Some("https://b"),
            "SyntaxError: ",
        ),
        (
            format!("Measure-Conversion: {long}, epsilon=0"),
            Some("0"),
            "RangeError: epsilon must be in (0, 4294], got 0",
        ),
        (
            format!("Measure-Conversion: {long}, credit=(1 -1)"),
            Some("(1 -1)"),
            "RangeError: every share of credit must be above 0, got -1",
        ),
        (
            format!("Measure-Conversion: {service}, histogram-size=5, report-url=\"http://a/\""),
            Some("\"http://a/\""),
            "the value of report-url must be an https URL",
        ),
    ] {
        let (status, text) = told(&[&header]);
        assert_eq!(status, 1, "{text}");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], header);
        let column = place.map(|place| header.rfind(place).unwrap());
        let caret = lines[1].ends_with('^').then(|| lines[1].len() - 1);
        assert_eq!(caret, column, "{text}");
        let reason = lines[1 + usize::from(caret.is_some())];
        assert!(
            reason.starts_with(&format!("ignored by user agents: {why}")),
            "{text}"
        );
    }
    let known = "--aggregation-service=https://other.example";
    let (status, text) = told(&[&format!("Measure-Conversion: {long}"), known]);
    assert_eq!(status, 1);
    assert!(
        text.contains("ReferenceError: unknown aggregation service"),
        "{text}"
    );
}

#[test]
fn a_response_is_read_from_standard_input() {
    let response = "HTTP/1.1 200 OK\r\nServer: x\r\nSave-Impression: histogram-index=1\r\n\
                    Save-Impression: priority=7\r\n\r\n";
    let output = headers(&["--json"], response);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told.as_array().unwrap().len(), 1);
    assert_eq!(told[0]["value"], "histogram-index=1, priority=7");
    assert_eq!(told[0]["accepted"], true);
    let priority = json!({"key": "priority", "value": "7", "given": true,
        "meaning": "ads of higher priority get credit first"});
    assert_eq!(told[0]["options"][5], priority);
    let output = headers(&["--json", "Save-Impression: histogram-index=1,"], "");
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told[0]["problem"]["at"], 17);
}

#[test]
fn wrong_usage_exits_2() {
    for (arguments, input, expected) in [
        (
            vec![],
            "HTTP/1.1 200 OK\n",
            "there is no Save-Impression or Measure-Conversion header; give one as \
             `Save-Impression: histogram-index=1`",
        ),
        (
            vec!["histogram-index=1"],
            "",
            "`histogram-index=1` has no name; give the header as `Save-Impression: \
             histogram-index=1`",
        ),
        (
            vec!["Server: x"],
            "",
            "unknown header `Server`; use one of: Save-Impression, Measure-Conversion",
        ),
    ] {
        let output = headers(&arguments, input);
        assert_eq!(output.status.code(), Some(2));
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(error, format!("bigbird: {expected}\n"));
    }
    let output = headers(&["Save-Impression: histogram-index=1", "--site", "com"], "");
    assert_eq!(output.status.code(), Some(2));
}
