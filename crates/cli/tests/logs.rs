//! Logs as they are, read by the command: what it says about them, and what it proposes.
#![allow(missing_docs, clippy::unwrap_used)]

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn bigbird(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_bigbird"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The command may end without reading.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

const LOGS: &str = "user_id,event_time,advertiser,publisher,country,event,revenue\n\
                    u1,2026-01-03T23:41:00Z,shop.example,https://a.news.example/x,de,view,\n\
                    u1,2026-01-04T00:41:00Z,shop.example,,de,purchase,12.34\n\
                    u2,2026-01-04T00:42:00Z,www.shop.example,,fr,signup,\n";

/// Reading on from a refusal takes two flags, which it names.
#[test]
fn a_refusal_names_the_flags_that_would_do() {
    let refused = bigbird(&["workload", "describe", "-"], LOGS.as_bytes());
    assert_eq!(refused.status.code(), Some(2));
    assert_eq!(
        text(&refused.stderr),
        "bigbird: standard input: column `event`: the kinds of rows are purchase (1), signup (1), \
         view (1); say which of them are impressions and which are conversions, for example \
         --impression-kind view --conversion-kind purchase,signup, or --columns kind=NAME for \
         another column\n"
    );
    let mut arguments = vec!["workload", "describe", "-"];
    arguments.extend([
        "--impression-kind",
        "view",
        "--conversion-kind",
        "purchase,signup",
    ]);
    let described = bigbird(&arguments, LOGS.as_bytes());
    assert!(described.status.success(), "{described:?}");
    assert_eq!(
        text(&described.stderr),
        "bigbird: read 3 rows of CSV: device=user_id, time=event_time, \
         conversion_site=advertiser, impression_site=publisher, kind=event, value=revenue; \
         sites of names in impression_site\n\
         bigbird: times: ISO 8601, from 2026-01-03 23:41 to 2026-01-04 00:42 UTC; epochs of 1 \
         day, counted from 1970-01-01 UTC on\n\
         bigbird: impressions: view (1); conversions: purchase (1), signup (1); one bucket; \
         values: 1 to 1,234 in units of 0.01 of `revenue`\n"
    );
    // Long lines are broken.
    let told = text(&described.stdout);
    let told = told.split_whitespace().collect::<Vec<_>>().join(" ");
    for expected in [
        "Epochs 20456 to 20457, which begin on 2026-01-03 and 2026-01-04.",
        "Busiest impression sites: news.example (100.0%).",
        "What is missing or odd:",
        "* One site has several names (shop.example and www.shop.example)",
        "* Conversions without an earlier impression for their site on the device: 1 (50.0%)",
        "What can be measured:",
        "to measure, give --min-conversions-per-day 1 --batch-days 1 --min-batch 1.",
    ] {
        assert!(told.contains(expected), "{expected}\n{told}");
    }

    // What the doctor proposes makes the two names one site.
    arguments.extend(["--sites", "registrable", "--json"]);
    let described = bigbird(&arguments, LOGS.as_bytes());
    let described: Value = serde_json::from_slice(&described.stdout).unwrap();
    assert_eq!(described["conversionSites"], 1);
    assert_eq!(described["buckets"], 1);
    assert_eq!(described["reading"]["values"]["unit"], "0.01");
    assert_eq!(described["reading"]["times"]["origin"], 0);
    let findings = described["diagnosis"]["findings"].as_array().unwrap();
    assert!(
        findings.iter().all(|it| it["kind"] != "severalNames"),
        "{findings:?}"
    );
    assert_eq!(described["diagnosis"]["measurable"]["queriers"], 0);
}

#[test]
fn buckets_and_values_are_chosen_by_flags() {
    let mut arguments = vec!["workload", "describe", "-", "--json"];
    arguments.extend(["--impression-kind", "view", "--bucket-column", "country"]);
    arguments.extend(["--buckets", "20", "--value-unit", "1"]);
    let described = bigbird(&arguments, LOGS.as_bytes());
    let described: Value = serde_json::from_slice(&described.stdout).unwrap();
    assert_eq!(described["buckets"], 20);
    assert_eq!(described["reading"]["values"]["rounded"], 1);
    for (flags, expected) in [
        (["--buckets", "0"], "0 is not in 1..=1000"),
        (["--buckets", "1001"], "1001 is not in 1..=1000"),
        (
            ["--value-unit", "0"],
            "`0` is not a positive number, such as 0.01",
        ),
        (
            ["--time-origin", "yesterday"],
            "`yesterday` is neither a whole number nor a date",
        ),
        (["--columns", "user=x"], "unknown column `user`"),
    ] {
        let refused = bigbird(
            &[&["workload", "describe", "x.csv"], &flags[..]].concat(),
            b"",
        );
        assert_eq!(refused.status.code(), Some(2));
        let told = text(&refused.stderr);
        assert!(told.contains(expected), "{told}");
    }
    // Of a plan, the buckets are those of the measurement.
    let mut arguments = vec![
        "plan",
        "--conversions-per-day",
        "600",
        "--buckets",
        "8",
        "-",
    ];
    arguments.extend(["--impression-kind", "view", "--json"]);
    let planned = bigbird(&arguments, LOGS.as_bytes());
    assert!(planned.status.success(), "{planned:?}");
}

/// A Parquet file that makes its library panic prints one line.
#[test]
fn panics_of_a_library_print_nothing() {
    let folder = std::env::temp_dir().join(format!("bigbird-logs-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("table.parquet");
    let name = path.to_str().unwrap();
    let written = bigbird(
        &["workload", "write", "--scale", "0.0002", "--to", name],
        b"",
    );
    assert!(written.status.success());
    let whole = std::fs::read(&path).unwrap();
    let mut refusals = 0;
    for at in (0..whole.len()).step_by(whole.len() / 60) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x40;
        std::fs::write(&path, bytes).unwrap();
        let read = bigbird(&["workload", "describe", name, "--json"], b"");
        if !read.status.success() {
            refusals += 1;
            assert_eq!(
                text(&read.stderr).lines().count(),
                1,
                "{}",
                text(&read.stderr)
            );
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(refusals > 0);
}
