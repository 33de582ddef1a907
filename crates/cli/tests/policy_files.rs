//! Files of capacities that are wrong.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{folder, refused};

/// Each is refused in one line that names the file, the field, what it must be and what was given: an
/// agent must not run under other rules than were meant.
#[test]
fn what_is_no_policy_is_refused() {
    let amount = "must be a whole number of microepsilons from 0 to 18446744073709551615, or null for \
                  unlimited, got";
    let sites = "must be a whole number of sites from 1 to 4294967295, or null for no cap, got";
    let object = r#"it must be an object of capacities, such as {"querier": 1000000}, got"#;
    let long = format!(r#"{{"global": "{}"}}"#, "x\\n".repeat(1000));
    for (content, expected) in [
        ("[]", format!("{object} []\n")),
        ("[1000000, null]", format!("{object} [1000000,null]\n")),
        ("1000000", format!("{object} 1000000\n")),
        (r#""big-bird""#, format!("{object} \"big-bird\"\n")),
        ("null", format!("{object} null\n")),
        ("true", format!("{object} true\n")),
        (r#"{"querier": -1}"#, format!("`querier` {amount} -1\n")),
        (r#"{"global": 1.5}"#, format!("`global` {amount} 1.5\n")),
        (r#"{"global": 8.0}"#, format!("`global` {amount} 8.0\n")),
        (
            r#"{"global": 18446744073709551616}"#,
            format!("`global` {amount} 1.8446744073709552e+19\n"),
        ),
        (
            r#"{"impressionSite": "2"}"#,
            format!("`impressionSite` {amount} \"2\"\n"),
        ),
        (
            r#"{"conversionSite": [1]}"#,
            format!("`conversionSite` {amount} [1]\n"),
        ),
        (r#"{"cap": -2}"#, format!("`cap` {sites} -2\n")),
        (r#"{"cap": 2.5}"#, format!("`cap` {sites} 2.5\n")),
        (
            r#"{"cap": 4294967296}"#,
            format!("`cap` {sites} 4294967296\n"),
        ),
        (r#"{"cap": "two"}"#, format!("`cap` {sites} \"two\"\n")),
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
            "unknown field `Querier`; use some of: querier, global, impressionSite, conversionSite, \
             cap, profile\n"
                .to_owned(),
        ),
        (
            r#"{"que\nrier": 1}"#,
            r"unknown field `que\nrier`; use some of:".to_owned(),
        ),
        (
            r#"{"querier": 1, "querier": 2}"#,
            "duplicate field `querier`".to_owned(),
        ),
        (
            r#"{"warnings": 1}"#,
            "`warnings` must be a list of strings, as `bigbird policy --json` prints it, got 1\n"
                .to_owned(),
        ),
        ("", "it is not JSON: EOF while parsing a value".to_owned()),
        ("{} {}", "it is not JSON: trailing characters".to_owned()),
        (long.as_str(), format!("`global` {amount} \"x\\nx\\n")),
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
