//! The command as people and scripts see it.
#![allow(missing_docs, clippy::unwrap_used)]

use std::process::{Command, Output};

use serde_json::{Value, json};

fn bigbird(arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bigbird"))
        .args(arguments.split_whitespace())
        .output()
        .unwrap()
}

fn parsed(arguments: &str) -> Value {
    let output = bigbird(arguments);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Exit status and what standard error says.
fn refused(arguments: &str) -> (i32, String) {
    let output = bigbird(arguments);
    assert!(output.stdout.is_empty(), "{output:?}");
    (
        output.status.code().unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

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
        "querier": {"shoes.ex": 400_000, "adtech.ex": 400_000, "adtech2.ex": 400_000},
        "global": 3_800_000,
        "impressionSite": {"news.ex": 1_800_000, "blog.ex": 2_000_000},
        "conversionSite": {"shoes.ex": 550_000},
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
            "policy --querier 1 --r 0 --conversion-sites {n_conversion} \
             --impression-sites {m_impression} --fan-out {fan_out} --cap 2 --json"
        ));
        let expected = json!({
            "querier": 1_000_000,
            "global": global * 1_000_000,
            "impressionSite": impression_site * 1_000_000,
            "conversionSite": 1_000_000,
            "cap": 2,
        });
        assert_eq!(policy, expected);
    }
}

#[test]
fn policies_of_profiles_say_null_for_what_they_do_not_have() {
    let cookie_monster = json!({
        "querier": 1_000_000,
        "global": null,
        "impressionSite": null,
        "conversionSite": null,
        "cap": null,
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
    let printed = String::from_utf8(bigbird(arguments).stdout).unwrap();
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
            format!("policy --querier -1 {workload}"),
            "bigbird: the capacity of the querier budget is invalid: \
             an amount of epsilon must be in [0, 18446744073709], got -1\n",
        ),
        (
            format!("policy --querier 1 --cap 0 {workload}"),
            "bigbird: the domain cap must be at least 1 site per user action, got 0\n",
        ),
        (
            format!("policy --querier 1 --r NaN {workload}"),
            "bigbird: the intermediaries' share r is invalid: \
             an amount of epsilon must be in [0, 18446744073709], got NaN\n",
        ),
        (
            "policy --querier 1".to_owned(),
            "bigbird: --querier needs a workload: \
             --conversion-sites N --impression-sites M --fan-out n\n",
        ),
    ];
    for (arguments, expected) in cases {
        assert_eq!(refused(&arguments), (1, expected.to_owned()));
    }
    let (status, message) = refused("policy --profile nobody");
    assert_eq!(status, 2);
    assert!(
        message.contains("there are big-bird, w3c-draft"),
        "{message}"
    );
}
