//! Policy files that are wrong.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{folder, refused};

/// Each file is refused in one line that names the file, the field, the allowed values and the
/// given value. An agent must not run under rules that nobody intended.
#[test]
fn what_is_no_policy_is_refused() {
    let amount = "must be a whole number of microepsilons from 0 to 18446744073709551615, or null \
                  for unlimited, got";
    let sites =
        "must be a whole number of sites from 1 to 4294967295, or null for no domain cap, got";
    let object = r#"expected an object of capacities, such as {"querierBudget": 1000000}, got"#;
    let long = format!(r#"{{"globalBudget": "{}"}}"#, "x\\n".repeat(1000));
    for (content, expected) in [
        ("[]", format!("{object} []\n")),
        ("[1000000, null]", format!("{object} [1000000,null]\n")),
        ("1000000", format!("{object} 1000000\n")),
        (r#""big-bird""#, format!("{object} \"big-bird\"\n")),
        ("null", format!("{object} null\n")),
        ("true", format!("{object} true\n")),
        (
            r#"{"querierBudget": -1}"#,
            format!("`querierBudget` {amount} -1\n"),
        ),
        (
            r#"{"globalBudget": 1.5}"#,
            format!("`globalBudget` {amount} 1.5\n"),
        ),
        (
            r#"{"globalBudget": 8.0}"#,
            format!("`globalBudget` {amount} 8.0\n"),
        ),
        (
            r#"{"globalBudget": 18446744073709551616}"#,
            format!("`globalBudget` {amount} 1.8446744073709552e+19\n"),
        ),
        (
            r#"{"impressionSiteQuota": "2"}"#,
            format!("`impressionSiteQuota` {amount} \"2\"\n"),
        ),
        (
            r#"{"conversionSiteQuota": [1]}"#,
            format!("`conversionSiteQuota` {amount} [1]\n"),
        ),
        (r#"{"domainCap": -2}"#, format!("`domainCap` {sites} -2\n")),
        (
            r#"{"domainCap": 2.5}"#,
            format!("`domainCap` {sites} 2.5\n"),
        ),
        (
            r#"{"cap": 4294967296}"#,
            format!("`cap` {sites} 4294967296\n"),
        ),
        (
            r#"{"domainCap": "two"}"#,
            format!("`domainCap` {sites} \"two\"\n"),
        ),
        (
            r#"{"profile": 1}"#,
            "`profile` must be the name of a profile, got 1\n".to_owned(),
        ),
        (
            r#"{"profile": null}"#,
            "`profile` must be the name of a profile, got null\n".to_owned(),
        ),
        (
            r#"{"Querier": 1000000}"#,
            "unknown field `Querier`; use one of: querierBudget, globalBudget, \
             impressionSiteQuota, conversionSiteQuota, domainCap, profile\n"
                .to_owned(),
        ),
        (
            r#"{"que\nrier": 1}"#,
            r"unknown field `que\nrier`; use one of:".to_owned(),
        ),
        (
            r#"{"querierBudget": 1, "querierBudget": 2}"#,
            "duplicate field `querierBudget`".to_owned(),
        ),
        (
            r#"{"warnings": 1}"#,
            "`warnings` must be a list of strings, as `bigbird policy --json` prints it, got 1\n"
                .to_owned(),
        ),
        ("", "not valid JSON: EOF while parsing a value".to_owned()),
        ("{} {}", "not valid JSON: trailing characters".to_owned()),
        (long.as_str(), format!("`globalBudget` {amount} \"x\\nx\\n")),
    ] {
        let folder = folder();
        let policy = folder.file("policy.json");
        std::fs::write(&policy, content).unwrap();
        let path = policy.display();
        let (status, message) = refused(&format!("agent --in-memory --policy {path}"));
        assert_eq!(status, 2, "{content}");
        let expected = format!("bigbird: {path}: {expected}");
        assert!(
            message.starts_with(&expected),
            "{content}\n{message}{expected}"
        );
        assert!(message.ends_with('\n') && message.lines().count() == 1);
        assert!(message.len() < 500);
    }
}
