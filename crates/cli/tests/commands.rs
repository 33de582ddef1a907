//! The command as people and scripts see it.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use bigbird_testing::Folder;
use common::{bigbird, folder, parsed, refused};
use serde_json::{Value, json};

#[test]
fn the_example_prints_the_papers_table() {
    let printed = String::from_utf8(bigbird("example").stdout).unwrap();
    let row = |label: &str| -> Vec<String> {
        let mut line = printed
            .lines()
            .filter(|line| line.trim_start().starts_with(label));
        let cells = line.next_back().unwrap().split_whitespace();
        cells.map(ToOwned::to_owned).collect()
    };
    let rows = ["e1", "e2", "e3"].map(row);
    assert_eq!(rows[0].join(" "), "e1 0.4 0.4 0.4 3.8 1.8 2 0.55");
    assert_eq!(rows[1].join(" "), "e2 0.4 0.4 0.4 3.8 2 1.8 0.55");
    assert_eq!(rows[2].join(" "), "e3 0.5 0.5 0.5 4 2 2 0.75");
    assert!(printed.lines().all(|line| line.chars().count() <= 100));
}

#[test]
fn the_example_as_json_says_what_remains_in_microepsilons() {
    let example = parsed("example --json");
    let first = json!({
        "epoch": "e1",
        "querierBudget": {"shoes.ex": 400_000, "adtech.ex": 400_000, "adtech2.ex": 400_000},
        "globalBudget": 3_800_000,
        "impressionSiteQuota": {"news.ex": 1_800_000, "blog.ex": 2_000_000},
        "conversionSiteQuota": {"shoes.ex": 550_000},
    });
    assert_eq!(example["epochs"][0], first);
    assert_eq!(example["epochs"].as_array().unwrap().len(), 3);
}

/// The paper's quota table.
#[test]
fn policies_of_workloads_follow_the_closed_form() {
    let rows = [
        ((2, 1, 2), 2, 2),
        ((4, 2, 2), 4, 2),
        ((4, 2, 4), 8, 4),
        ((4, 3, 4), 12, 4),
        ((6, 3, 4), 12, 4),
        ((8, 4, 8), 32, 8),
    ];
    for ((n_conversion, m_impression, fan_out), global, impression_site) in rows {
        let policy = parsed(&format!(
            "policy --querier-budget 1 --intermediary-share 0 --conversion-sites {n_conversion} \
             --impression-sites {m_impression} --fan-out {fan_out} --domain-cap 2 --json"
        ));
        let expected = json!({
            "querierBudget": 1_000_000,
            "globalBudget": global * 1_000_000,
            "impressionSiteQuota": impression_site * 1_000_000,
            "conversionSiteQuota": 1_000_000,
            "domainCap": 2,
        });
        assert_eq!(policy, expected);
    }
}

#[test]
fn policies_of_profiles_say_null_for_what_they_do_not_have() {
    let cookie_monster = json!({
        "querierBudget": 1_000_000,
        "globalBudget": null,
        "impressionSiteQuota": null,
        "conversionSiteQuota": null,
        "domainCap": null,
    });
    assert_eq!(
        parsed("policy --profile cookie-monster --json"),
        cookie_monster
    );
    assert_eq!(
        parsed("policy --json"),
        parsed("policy --profile big-bird --json")
    );
}

#[test]
fn a_profile_is_checked_against_a_workload() {
    let arguments =
        "policy --profile big-bird --conversion-sites 9 --impression-sites 2 --fan-out 2";
    let output = bigbird(arguments);
    assert_eq!(output.status.code(), Some(1));
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(
        printed.ends_with("(ii) global budget 8 is below N · conversion-site quota = 9\n"),
        "{printed}"
    );
}

#[test]
fn wrong_values_get_one_line_and_a_status() {
    let workload = "--conversion-sites 4 --impression-sites 2 --fan-out 4";
    let cases = [
        (
            format!("policy --querier-budget -1 {workload}"),
            "bigbird: the capacity of the querier budget is invalid: \
             an amount of epsilon must be in [0, 18446744073709], got -1\n",
        ),
        (
            format!("policy --querier-budget 1 --domain-cap 0 {workload}"),
            "bigbird: the domain cap must be at least 1 site per user action, got 0\n",
        ),
        (
            format!("policy --querier-budget 1 --intermediary-share NaN {workload}"),
            "bigbird: the intermediary share (r) must be in [0, 18446744073709], got NaN\n",
        ),
        (
            "policy --querier-budget 1".to_owned(),
            "bigbird: --querier-budget needs a workload: \
             --conversion-sites N --impression-sites M --fan-out n\n",
        ),
    ];
    for (arguments, expected) in cases {
        assert_eq!(refused(&arguments), (2, expected.to_owned()));
    }
    let (status, message) = refused("policy --profile nobody");
    assert_eq!(status, 2);
    assert!(
        message.contains("use one of: big-bird, w3c-draft"),
        "{message}"
    );
}

/// A file of cases, in a folder that is removed when the test ends.
struct Cases(Folder);

impl Cases {
    fn new(text: &str) -> Self {
        let folder = folder();
        std::fs::write(folder.file("cases.jsonl"), text).unwrap();
        Self(folder)
    }

    fn file(&self) -> String {
        self.0.file("cases.jsonl").display().to_string()
    }
}

const VECTORS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../conformance/vectors");

#[test]
fn conformance_passes_our_vectors() {
    let output = bigbird(&format!("conformance {VECTORS}"));
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{printed}");
    assert!(printed.ends_with(" passed, 0 failed\n"), "{printed}");
}

#[test]
fn conformance_says_what_was_expected_and_what_came() {
    let cases = Cases::new(
        r#"{"input": "www.a.example", "expected": "a.example"}
{"input": "www.b.example", "expected": "c.example"}"#,
    );
    let output = bigbird(&format!("conformance {}", cases.file()));
    assert_eq!(output.status.code(), Some(1));
    let printed = String::from_utf8(output.stdout).unwrap();
    let expected = format!(
        "{}:2: site \"www.b.example\": site\n  expected \"c.example\"\n  \
         got      \"b.example\"\n1 passed, 1 failed\n",
        cases.file()
    );
    assert_eq!(printed, expected);
    let json = bigbird(&format!("conformance {} --json", cases.file()));
    assert_eq!(json.status.code(), Some(1));
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((&json["passed"], &json["failed"]), (&json!(1), &json!(1)));
    assert_eq!(json["failures"][0]["got"], json!("\"b.example\""));
}

#[test]
fn conformance_of_what_cannot_be_read_is_status_2() {
    let broken = Cases::new("{\"input\": \"a.example\"");
    let (status, message) = refused(&format!("conformance {}", broken.file()));
    assert_eq!(status, 2);
    assert!(message.starts_with("bigbird: ") && message.contains("cases.jsonl:1: "));
    assert_eq!(message.lines().count(), 1, "{message}");
    let (status, message) = refused("conformance /no/such/place");
    assert_eq!(status, 2);
    assert!(message.contains("/no/such/place"), "{message}");
}

#[test]
fn explain_tells_why_a_report_is_null() {
    let output = bigbird(&format!("explain {VECTORS}/w3c-draft.jsonl"));
    let printed = String::from_utf8(output.stdout).unwrap();
    for line in [
        "3 s  a conversion on b.example: value 1 of 1, epsilon 0.6",
        "epoch 0: dropped (cause: global budget), matching impressions: 1",
        "global budget: 0.6 of 1 consumed, 0.6 asked for, short by 0.2",
        "the largest epsilon that fits: 0.4",
    ] {
        assert!(printed.contains(line), "{line}\n{printed}");
    }
}

/// Each limit has one name: all commands use the same flag for it. The former flags still work, but
/// are not shown.
#[test]
fn limits_have_the_same_flags_everywhere() {
    use bigbird::Limit::{
        ConversionSiteQuota, DomainCap, GlobalBudget, ImpressionSiteQuota, QuerierBudget,
    };
    let old = [
        (QuerierBudget, "querier"),
        (GlobalBudget, "global"),
        (ImpressionSiteQuota, "impression-quota"),
        (ConversionSiteQuota, "conversion-quota"),
        (DomainCap, "cap"),
    ];
    for (command, limits) in [
        ("policy", &[QuerierBudget, DomainCap][..]),
        ("tune", &[QuerierBudget, DomainCap]),
        ("simulate", &bigbird::Limit::ALL),
        (
            "plan",
            &[
                QuerierBudget,
                GlobalBudget,
                ImpressionSiteQuota,
                ConversionSiteQuota,
            ],
        ),
    ] {
        let help = bigbird(&format!("{command} --help")).stdout;
        let help = String::from_utf8(help).unwrap();
        for (limit, old) in old {
            let shown = help.contains(&format!("--{} <", limit.flag()));
            assert_eq!(shown, limits.contains(&limit), "{command}: {limit}");
            assert!(!help.contains(&format!("--{old} <")), "{command}: {old}");
        }
    }
    let workload = "--conversion-sites 4 --impression-sites 2 --fan-out 4 --json";
    let old = format!("policy --querier 1 --r 0.5 --cap 3 {workload}");
    let new =
        format!("policy --querier-budget 1 --intermediary-share 0.5 --domain-cap 3 {workload}");
    assert_eq!(parsed(&old), parsed(&new));
}
