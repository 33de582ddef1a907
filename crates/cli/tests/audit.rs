//! `bigbird audit` as people and scripts see it.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{bigbird, folder, parsed, refused};
use serde_json::json;

#[test]
fn a_mistake_is_caught_and_told() {
    let output = bigbird("audit --manager winner-pays --scripts 1000");
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{told}");
    for part in [
        "winner-pays",
        "leaks",
        "X is epoch",
        "world 0",
        "as it should be",
    ] {
        assert!(told.contains(part), "no `{part}` in {told}");
    }
}

#[test]
fn the_result_as_json_has_the_documented_form() {
    let report = parsed("audit --manager device,visible-null,not-atomic --scripts 1000 --json");
    let rows = report["search"].as_array().unwrap();
    let of = |manager: &str| rows.iter().find(|row| row["manager"] == manager).unwrap();
    assert_eq!(of("device")["kind"], "real");
    assert_eq!(of("device")["violation"], json!(null));
    assert_eq!(of("device")["separated"], true);
    assert_eq!(of("visible-null")["violation"], "visible");
    assert_eq!(of("visible-null")["largestLoss"], json!(null));
    assert_eq!(of("not-atomic")["kind"], "wasteful");
    for key in [
        "strategies",
        "largestLoss",
        "largestExcess",
        "capacity",
        "script",
    ] {
        assert!(of("not-atomic").get(key).is_some(), "{key}");
    }
    for key in ["adaptive", "sharedLimit", "sharedLimitIndividual"] {
        assert!(report[key].is_array(), "{key}");
    }
}

#[test]
fn a_script_is_replayed_and_explained() {
    let folder = folder();
    let path = folder.file("script.json");
    let script = json!({
        "setup": {"impressionSiteQuota": null},
        "steps": [
            {"save": {"site": 0, "action": 1}},
            {"clock": 86_400_000},
            {"measure": {"site": 1, "action": 2, "epsilon": 2_000_000, "lookbackDays": 1}},
            {"measure": {"site": 2, "action": 3, "epsilon": 2_000_000, "lookbackDays": 1}},
        ],
    });
    std::fs::write(&path, script.to_string()).unwrap();
    let replay = |manager: &str| {
        let output = bigbird(&format!(
            "audit --manager {manager} --script {}",
            path.display()
        ));
        (
            output.status.success(),
            String::from_utf8(output.stdout).unwrap(),
        )
    };
    let (good, told) = replay("agent");
    assert!(
        good && told.contains("It holds: the loss is 1000000 µε"),
        "{told}"
    );
    let (good, told) = replay("released-unpaid");
    assert!(
        !good && told.contains("It leaks: the loss of 2000000 µε"),
        "{told}"
    );
}

#[test]
fn wrong_arguments_are_one_line() {
    let (status, why) = refused("audit --manager nobody");
    assert_eq!(status, 2);
    assert!(
        why.contains("unknown manager `nobody`; use one of: device, "),
        "{why}"
    );
    let (status, why) = refused("audit --manager device --seconds -1");
    assert_eq!(status, 2);
    assert!(
        why.contains("--seconds must be in [0, 1000000], got -1"),
        "{why}"
    );
    let (status, why) = refused("audit --threads 0");
    assert_eq!(status, 2);
    assert!(why.contains("--threads must be at least 1, got 0"), "{why}");

    let folder = folder();
    let path = folder.file("bad.json");
    let replay = |contents: &str| {
        std::fs::write(&path, contents).unwrap();
        refused(&format!(
            "audit --manager device --script {}",
            path.display()
        ))
    };
    let (status, why) = replay("{");
    assert_eq!(status, 2);
    assert!(why.contains("is not a script"), "{why}");
    let free = r#"{"steps": [{"measure": {"site": 1, "action": 1, "epsilon": 0}}]}"#;
    let (_, why) = replay(free);
    assert!(
        why.contains("the epsilon of step 1 must be 1 to 4294000000 µε, got 0"),
        "{why}"
    );
    let (_, why) = replay(r#"{"setup": {"globalBudget": null}, "steps": []}"#);
    assert!(
        why.contains("globalBudget must be a number of µε, got null"),
        "{why}"
    );
    let (status, why) = refused("audit --manager device --script /nowhere/at.json");
    assert_eq!(status, 2);
    assert!(why.contains("cannot read /nowhere/at.json"), "{why}");
}
