//! The agent, driven by requests on its standard input.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::process::Command;
use std::time::{Duration, Instant};

use bigbird_testing::Folder;
use common::{AgentProcess, SERVICE, arguments, convert, folder, save, without_report};
use serde_json::{Value, json};

fn in_memory(more: &[&str]) -> AgentProcess {
    let fixed = [
        "--in-memory",
        "--test-clock",
        "--aggregation-service",
        SERVICE,
    ];
    let arguments: Vec<String> = fixed
        .iter()
        .chain(more)
        .map(|it| (*it).to_owned())
        .collect();
    AgentProcess::start(&arguments)
}

#[test]
fn every_request_is_answered_in_order() {
    let folder = folder();
    let mut agent = AgentProcess::start(&arguments(&folder.file("store")));
    let mut numbered = convert(60, 2, "shop.example", 0.5);
    numbered["id"] = json!({"any": "thing"});
    let wrong = json!({"event": "saveImpression", "site": "com", "options": {"histogramIndex": 1}});
    let mut unknown = convert(61, 3, "shop.example", 0.5);
    unknown["options"]["aggregationService"] = json!("https://nobody.example");
    let too_large = convert(61, 1 << 48, "shop.example", 0.5);
    let exchange = [
        (save(1, 1, "news.example", 2), json!({"ok": true})),
        (
            numbered,
            json!({"ok": true, "histogram": [0, 0, 1, 0, 0], "id": {"any": "thing"}}),
        ),
        (
            wrong,
            json!({
                "ok": false, "error": "DOMException", "name": "SyntaxError",
                "message": "SyntaxError: `com` is not a site: it is a public suffix",
            }),
        ),
        (
            unknown,
            json!({
                "ok": false, "error": "ReferenceError",
                "message":
                    "ReferenceError: unknown aggregation service `https://nobody.example`; \
                     use the exact URL of a configured one",
            }),
        ),
        (
            too_large,
            json!({
                "ok": false, "error": "RangeError",
                "message":
                    "RangeError: userAction must be at most 281474976710655, got 281474976710656",
            }),
        ),
        (
            json!({"event": "budgets"}),
            json!({"ok": true, "budgets": [
                {"epoch": 0, "filter": "querierBudget", "site": "shop.example",
                 "consumed": 500_000, "capacity": 1_000_000},
                {"epoch": 0, "filter": "globalBudget", "consumed": 500_000, "capacity": 8_000_000},
                {"epoch": 0, "filter": "impressionSiteQuota", "site": "news.example",
                 "consumed": 500_000, "capacity": 2_000_000},
                {"epoch": 0, "filter": "conversionSiteQuota", "site": "shop.example",
                 "consumed": 500_000, "capacity": 1_000_000},
            ]}),
        ),
        (json!({"event": "disableAPI"}), json!({"ok": true})),
        (
            convert(62, 4, "shop.example", 0.1),
            json!({"ok": true, "histogram": [0, 0, 0, 0, 0]}),
        ),
        (json!({"event": "enableAPI"}), json!({"ok": true})),
        (
            json!({"event": "clearImpressionsForSite", "site": "news.example"}),
            json!({"ok": true}),
        ),
        (
            convert(63, 5, "shop.example", 0.1),
            json!({"ok": true, "histogram": [0, 0, 0, 0, 0]}),
        ),
        (
            json!({
                "event": "clearBrowsingHistoryForAttribution", "seconds": 64,
                "sites": [], "forgetVisits": true,
            }),
            json!({"ok": true}),
        ),
        (
            json!({"event": "budgets"}),
            json!({"ok": true, "budgets": []}),
        ),
        (
            json!({"event": "maintain", "seconds": 65}),
            json!({"ok": true}),
        ),
    ];
    // All at once: answers come in the order of the requests.
    for (request, _) in &exchange {
        agent.send(&request.to_string());
    }
    for (request, expected) in &exchange {
        let mut answer = agent.receive();
        if request["event"] == "measureConversion" && answer["ok"] == true {
            answer = without_report(answer);
        }
        if request["event"] == "budgets" {
            let rules = answer.as_object_mut().unwrap().remove("rules").unwrap();
            assert_eq!(rules[0]["capacities"]["globalBudget"], 8_000_000);
        }
        assert_eq!(answer, *expected, "{request}");
    }
    assert!(agent.end());
}

#[test]
fn a_malformed_line_gets_an_answer_and_the_agent_goes_on() {
    let mut agent = in_memory(&[]);
    for (line, expected) in [
        ("", None),
        ("garbage", Some("expected value")),
        ("[1, 2]", Some("a request must be a JSON object")),
        (
            "{}",
            Some("`event` must be a string that names the request"),
        ),
        (
            r#"{"event": "explode"}"#,
            Some("unknown event `explode`; use one of: saveImpression, "),
        ),
        (
            r#"{"event": "activate"}"#,
            Some("unknown event `activate`; use one of: saveImpression, "),
        ),
        (
            r#"{"event": "budgets", "seconds": 1.5}"#,
            Some("`seconds` must be a whole number"),
        ),
        (
            r#"{"event": "saveImpression", "site": "a.example"}"#,
            Some("saveImpression requires `options` (an object), but it is missing"),
        ),
        (
            r#"{"event": "clearImpressionsForSite", "site": "a.example", "intermediarysite": "b"}"#,
            Some("clearImpressionsForSite has no field `intermediarysite`"),
        ),
        ("\u{feff}{}", Some("expected value")),
    ] {
        agent.send(line);
        if let Some(expected) = expected {
            let answer = agent.receive();
            assert_eq!(answer["error"], "MalformedRequest", "{line}");
            let message = answer["message"].as_str().unwrap();
            assert!(message.contains(expected), "{line}: {message}");
        }
    }
    // A line that is not text, and a line that is too long.
    use std::io::Write as _;
    let input = agent.input.as_mut().unwrap();
    input.write_all(b"\xff\xfe\n").unwrap();
    input.write_all(&vec![b'x'; 3_000_000]).unwrap();
    input.write_all(b"\n").unwrap();
    assert!(
        agent.receive()["message"]
            .as_str()
            .unwrap()
            .contains("UTF-8")
    );
    let answer = agent.receive();
    assert_eq!(answer["message"], "a line must have at most 1052672 bytes");
    let answer = agent.ask(&json!({"event": "budgets", "id": 5}));
    assert_eq!(
        answer,
        json!({"ok": true, "budgets": [], "rules": [], "id": 5})
    );
    assert!(agent.end());
}

/// An option that is null counts as not given.
#[test]
fn options_may_be_null() {
    let mut agent = in_memory(&["--unencrypted-for-testing"]);
    let mut impression = save(1, 1, "news.example", 2);
    impression["options"]["conversionSites"] = Value::Null;
    impression["options"]["lifetimeDays"] = Value::Null;
    assert_eq!(agent.ask(&impression), json!({"ok": true}));
    let mut conversion = convert(2, 2, "shop.example", 0.5);
    for option in ["credit", "value", "maxValue", "matchValues", "lookbackDays"] {
        conversion["options"][option] = Value::Null;
    }
    assert_eq!(agent.ask(&conversion)["histogram"], json!([0, 0, 1, 0, 0]));
    let mut incomplete = convert(3, 3, "shop.example", 0.5);
    incomplete["options"]["histogramSize"] = Value::Null;
    assert_eq!(agent.ask(&incomplete)["error"], "MalformedRequest");
    assert!(agent.end());
}

/// A page gets an encrypted report, and no answer contains a histogram.
#[test]
fn histograms_are_only_for_testing() {
    let mut agent = in_memory(&[]);
    agent.ask(&save(1, 1, "news.example", 2));
    let answer = agent.ask(&convert(2, 2, "shop.example", 0.5));
    let length = answer.to_string().len();
    assert_eq!(without_report(answer), json!({"ok": true}));
    // The budget is spent, which shows in nothing.
    let null = agent.ask(&convert(2, 3, "shop.example", 0.7));
    assert_eq!(null.to_string().len(), length);
    let mut explain = convert(3, 3, "shop.example", 0.7);
    explain["event"] = json!("explain");
    let answer = agent.ask(&explain);
    assert!(!answer.to_string().contains("histogram"), "{answer}");
    let explanation = &answer["explanation"];
    assert_eq!(explanation["cause"], "querierBudget");
    let epoch = &explanation["epochs"][4];
    assert_eq!(
        (&epoch["matched"], &epoch["largestEpsilon"]),
        (&json!(1), &json!(0.5))
    );
    assert!(agent.end());
}

/// Two companies share a conversion. The agent is restarted in between.
#[test]
fn a_conversion_is_shared() {
    let folder = folder();
    let arguments = arguments(&folder.file("store"));
    let mut agent = AgentProcess::start(&arguments);
    for (action, site, company) in [
        (1, "news.example", "ads.example"),
        (2, "blog.example", "more-ads.example"),
    ] {
        let mut ad = save(1, action, site, action);
        ad["intermediarySite"] = json!(company);
        assert_eq!(agent.ask(&ad), json!({"ok": true}));
    }
    let mut create = convert(60, 3, "shop.example", 0.5);
    create["event"] = json!("createSharedConversion");
    create["options"]["credit"] = json!([1, 1]);
    create["options"]["value"] = json!(2);
    create["options"]["maxValue"] = json!(2);
    let missing = agent.ask(&create);
    assert_eq!(missing["error"], "MalformedRequest");
    assert!(
        missing["message"].to_string().contains("participants"),
        "{missing}"
    );
    create["participants"] = json!(["ads.example", "more-ads.example"]);
    let mut explain = create.clone();
    explain["event"] = json!("explain");
    let explained = agent.ask(&explain);
    assert_eq!(
        explained["explanation"]["cause"],
        Value::Null,
        "{explained}"
    );
    assert_eq!(
        explained["explanation"]["epochs"]
            .as_array()
            .unwrap()
            .last()
            .unwrap()["matched"],
        2
    );
    let created = agent.ask(&create);
    let shared = created["shared"].as_str().unwrap().to_owned();
    assert_eq!(created, json!({"ok": true, "shared": shared}));
    assert_eq!(shared.len(), 32);
    assert!(agent.end());

    let mut agent = AgentProcess::start(&arguments);
    let share = |company: &str, event: &str| {
        let mut share = create.clone();
        share.as_object_mut().unwrap().remove("participants");
        share["event"] = json!(event);
        share["shared"] = json!(shared);
        share["intermediarySite"] = json!(company);
        share["options"]["impressionCallers"] = json!([company]);
        share
    };
    let explained = agent.ask(&share("ads.example", "explain"));
    assert_eq!(
        explained["explanation"]["histogram"],
        json!([0, 1, 0, 0, 0])
    );
    let answer = agent.ask(&share("ads.example", "takeShare"));
    let answer = without_report(answer);
    assert_eq!(answer, json!({"ok": true, "histogram": [0, 1, 0, 0, 0]}));
    let again = without_report(agent.ask(&share("ads.example", "takeShare")));
    assert_eq!(again, json!({"ok": true, "histogram": [0, 0, 0, 0, 0]}));
    let explained = agent.ask(&share("ads.example", "explain"));
    assert_eq!(explained["explanation"]["cause"], "unfitShare");
    let answer = without_report(agent.ask(&share("more-ads.example", "takeShare")));
    assert_eq!(answer, json!({"ok": true, "histogram": [0, 0, 1, 0, 0]}));

    let mut unknown = share("ads.example", "explain");
    unknown["shared"] = json!("f".repeat(32));
    assert_eq!(agent.ask(&unknown)["explanation"]["cause"], "unknownShare");
    let mut both = share("ads.example", "explain");
    both["participants"] = json!(["ads.example"]);
    assert_eq!(
        agent.ask(&both)["message"],
        "explain takes `participants` or `shared`, not both"
    );
    let mut wrong = share("ads.example", "takeShare");
    wrong["shared"] = json!(17);
    assert_eq!(
        agent.ask(&wrong)["message"],
        "`shared` must be the handle of a shared conversion, 32 hexadecimal digits, got 17"
    );
    let mut wrong = share("ads.example", "takeShare");
    wrong["querier"] = json!("conversionSite");
    assert_eq!(
        agent.ask(&wrong)["message"],
        "RangeError: querier must be the intermediary because it takes the share, \
         got the conversion site"
    );
    assert!(agent.end());
}

/// On a real clock, handles are random, so they do not reveal how many there are.
#[test]
fn handles_are_random() {
    let arguments = [
        "--in-memory",
        "--aggregation-service",
        SERVICE,
        "--release-after",
        "1",
    ];
    let mut agent = AgentProcess::start(&arguments.map(str::to_owned));
    let mut create = convert(0, 1, "shop.example", 0.5);
    create["event"] = json!("createSharedConversion");
    create["participants"] = json!(["ads.example"]);
    create.as_object_mut().unwrap().remove("seconds");
    let mut handles: Vec<u128> = (0..20)
        .map(|_| {
            let answer = agent.ask(&create);
            u128::from_str_radix(answer["shared"].as_str().unwrap(), 16).unwrap()
        })
        .collect();
    assert!(handles.iter().all(|handle| *handle > 1 << 64));
    handles.sort_unstable();
    handles.dedup();
    assert_eq!(handles.len(), 20);
    assert!(agent.end());
}

/// On a real clock, a conversion is answered at a fixed time after the call. Other requests are
/// answered in the meantime, and `seconds` is refused.
#[test]
fn a_conversion_is_answered_at_its_time() {
    let arguments = [
        "--in-memory",
        "--aggregation-service",
        SERVICE,
        "--release-after",
        "300",
    ];
    let mut agent = AgentProcess::start(&arguments.map(str::to_owned));
    assert_eq!(agent.ask(&json!({"event": "budgets"}))["ok"], true);
    let mut request = convert(0, 1, "shop.example", 0.5);
    assert_eq!(
        agent.ask(&request)["message"],
        "`seconds` is allowed only with --test-clock"
    );
    request.as_object_mut().unwrap().remove("seconds");
    let begin = Instant::now();
    request["id"] = json!("later");
    agent.send(&request.to_string());
    agent.send(r#"{"event": "budgets"}"#);
    // The conversion does not delay other requests.
    assert!(agent.receive().get("budgets").is_some());
    let answer = without_report(agent.receive());
    assert_eq!(answer, json!({"ok": true, "id": "later"}));
    assert!(begin.elapsed() >= Duration::from_millis(300));
    assert!(agent.end());
}

#[test]
fn a_store_goes_on_where_it_was_left() {
    let folder = folder();
    let store = folder.file("store");
    let mut agent = AgentProcess::start(&arguments(&store));
    agent.ask(&save(1, 1, "news.example", 2));
    agent.ask(&convert(2, 2, "shop.example", 0.5));
    assert!(agent.end());
    let mut agent = AgentProcess::start(&arguments(&store));
    let answer = agent.ask(&convert(3, 3, "shop.example", 0.5));
    assert_eq!(answer["histogram"], json!([0, 0, 1, 0, 0]));
    // The querier budget is spent, and user action 1 still counts as the same one.
    let answer = agent.ask(&convert(4, 4, "shop.example", 0.5));
    assert_eq!(answer["histogram"], json!([0, 0, 0, 0, 0]));
    let answer = agent.ask(&convert(5, 1, "other.example", 0.5));
    assert_eq!(answer["histogram"], json!([0, 0, 0, 0, 0]));
    let answer = agent.ask(&convert(6, 6, "other.example", 0.5));
    assert_eq!(answer["histogram"], json!([0, 0, 1, 0, 0]));
    assert!(agent.end());
}

fn refused(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_bigbird"))
        .args(arguments)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(message.lines().count(), 1, "{message}");
    message
}

fn agent_refused(folder: &Folder, more: &[&str]) -> String {
    let store = folder.file("store").display().to_string();
    refused(&[&["agent", "--store", &store], more].concat())
}

/// Every epoch keeps the rules that it began with. Other rules begin with the next epoch.
#[test]
fn other_rules_begin_with_the_next_epoch() {
    const DAY: i64 = 86_400;
    let folder = folder();
    let path = folder.file("store");
    let mut agent = AgentProcess::start(&arguments(&path));
    agent.ask(&save(1, 1, "news.example", 2));
    let answer = agent.ask(&convert(2, 2, "shop.example", 1.0));
    assert_eq!(answer["histogram"], json!([0, 0, 1, 0, 0]));
    assert!(agent.end());
    let policy = folder.file("policy.json");
    std::fs::write(
        &policy,
        json!({"querierBudget": 5_000_000, "conversionSiteQuota": 5_000_000}).to_string(),
    )
    .unwrap();
    let policy = policy.display().to_string();
    let path = path.display().to_string();
    let mut other = arguments(&folder.file("store"));
    other.extend(["--policy", &policy, "--epoch-days", "1"].map(ToOwned::to_owned));
    let mut agent = AgentProcess::start(&other);
    // In the current epoch, the old querier budget applies, and it is spent.
    let answer = agent.ask(&convert(3, 3, "shop.example", 1.0));
    assert_eq!(answer["histogram"], json!([0, 0, 0, 0, 0]));
    let rules = agent.ask(&json!({"event": "budgets"}))["rules"].clone();
    let days: Vec<_> = rules
        .as_array()
        .unwrap()
        .iter()
        .map(|era| &era["epochDays"])
        .collect();
    assert_eq!(days, [7, 1]);
    assert_eq!(rules[1]["firstEpoch"], 1);
    assert_eq!(rules[1]["capacities"]["querierBudget"], 5_000_000);
    // In the next epoch, the querier budget is larger.
    agent.ask(&save(6 * DAY, 4, "news.example", 3));
    for action in 5..7 {
        let mut conversion = convert(6 * DAY + 1, action, "shop.example", 1.0);
        conversion["options"]["lookbackDays"] = json!(1);
        let answer = agent.ask(&conversion);
        assert_eq!(answer["histogram"], json!([0, 0, 0, 1, 0]));
    }
    assert!(agent.end());
    let shown = Command::new(env!("CARGO_BIN_EXE_bigbird"))
        .args(["store", "show", &path])
        .output()
        .unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    for line in [
        "From epoch 0 on (1969-12-28 12:00 UTC): epochs of 7 days, querier budget 1,",
        "From epoch 1 on (1970-01-04 12:00 UTC): epochs of 1 day, querier budget 5,",
    ] {
        assert!(shown.contains(line), "{shown}");
    }
}

#[test]
fn a_policy_file_chooses_capacities() {
    let folder = folder();
    let policy = folder.file("policy.json");
    let path = policy.display().to_string();
    let write = |value: &Value| std::fs::write(&policy, value.to_string()).unwrap();
    write(&json!({"querierBudget": 250_000, "impressionSiteQuota": null, "domainCap": 7}));
    let mut agent = in_memory(&["--policy", &path, "--unencrypted-for-testing"]);
    agent.ask(&save(1, 1, "news.example", 2));
    assert_eq!(
        agent.ask(&convert(2, 2, "a.example", 0.5))["histogram"],
        json!([0, 0, 0, 0, 0])
    );
    assert_eq!(
        agent.ask(&convert(3, 3, "a.example", 0.25))["histogram"],
        json!([0, 0, 1, 0, 0])
    );
    let budgets = agent.ask(&json!({"event": "budgets"}));
    let names: Vec<_> = budgets["budgets"].as_array().unwrap().iter().collect();
    assert_eq!(names.len(), 3, "no impression-site quota: {budgets}");
    assert!(agent.end());

    // What `bigbird policy --json` prints is a policy file.
    let printed = Command::new(env!("CARGO_BIN_EXE_bigbird"))
        .args([
            "policy",
            "--querier-budget",
            "1",
            "--conversion-sites",
            "4",
            "--impression-sites",
            "2",
        ])
        .args(["--fan-out", "4", "--json"])
        .output()
        .unwrap();
    std::fs::write(&policy, printed.stdout).unwrap();
    let mut agent = in_memory(&["--policy", &path]);
    assert_eq!(agent.ask(&json!({"event": "budgets"}))["ok"], true);
    assert!(agent.end());

    for (content, expected) in [
        ("{", "policy.json: not valid JSON: EOF"),
        (r#"{"quota": 1}"#, "policy.json: unknown field `quota`"),
        (
            r#"{"querierBudget": -1}"#,
            "policy.json: `querierBudget` must be a whole number of microepsilons",
        ),
        (
            r#"{"profile": "nobody"}"#,
            "policy.json: unknown profile `nobody`",
        ),
    ] {
        std::fs::write(&policy, content).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_bigbird"))
            .args(["agent", "--in-memory", "--policy", &path])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2));
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(
            message.contains(expected) && message.lines().count() == 1,
            "{message}"
        );
    }
    write(&json!({"profile": "w3c-draft"}));
    let message = refused(&[
        "agent",
        "--in-memory",
        "--policy",
        &path,
        "--profile",
        "big-bird",
    ]);
    assert!(message.contains("--profile is big-bird, but the policy file is for w3c-draft"));
    write(&json!({"domainCap": 0}));
    let message = refused(&["agent", "--in-memory", "--policy", &path]);
    assert!(
        message.contains("the domain cap must be at least 1 site"),
        "{message}"
    );
}

#[test]
fn what_cannot_be_a_store_is_refused_in_one_line() {
    let folder = folder();
    let store = folder.file("store");
    std::fs::write(&store, "a diary").unwrap();
    let message = agent_refused(&folder, &[]);
    assert!(
        message.contains("store: the file is not a Big Bird store; check the path; if it was "),
        "{message}"
    );
    std::fs::write(&store, "").unwrap();
    let message = agent_refused(&folder, &[]);
    assert!(
        message.contains("store: the store is damaged: the file is empty; `bigbird store reset ")
            && message.ends_with("` starts over without giving budgets back\n"),
        "{message}"
    );
    let message = refused(&["agent", "--in-memory", "--test-clock", "--epoch-start", "1"]);
    assert_eq!(message, "bigbird: --epoch-start must be in [0, 1), got 1\n");
}

/// A store without permission to write gives an error and no report. Root may write everything, so
/// as root the test runs the command as another user.
#[cfg(unix)]
#[test]
fn a_store_that_may_not_be_written_is_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::CommandExt as _;
    const NOBODY: u32 = 65_534;
    let folder = folder();
    let store = folder.file("store");
    assert!(AgentProcess::start(&arguments(&store)).end());
    let may = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    may(&store, 0o444);
    // A folder that another user can read.
    let public = std::env::temp_dir().join(format!("bigbird-read-only-{}", std::process::id()));
    std::fs::create_dir(&public).unwrap();
    let (program, file) = (public.join("bigbird"), public.join("store"));
    std::fs::copy(env!("CARGO_BIN_EXE_bigbird"), &program).unwrap();
    std::fs::copy(&store, &file).unwrap();
    may(&public, 0o555);
    let mut command = Command::new(&program);
    command.args(["agent", "--store"]).arg(&file);
    command.stdin(std::process::Stdio::null());
    let mut output = command.output().unwrap();
    if output.status.success() {
        // This is root, for whom nothing is read-only.
        output = command.uid(NOBODY).gid(NOBODY).output().unwrap();
    }
    may(&public, 0o755);
    std::fs::remove_dir_all(&public).unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(
        message.contains(": the store is read-only, but even reading it needs write access; make ")
            && message.ends_with(" and its folder writable\n"),
        "{message}"
    );
    assert!(output.stdout.is_empty());
}

/// Too many open files are neither damage nor a missing permission. The error says so, and advises
/// to try again.
#[cfg(unix)]
#[test]
fn too_many_open_files_are_told_as_such() {
    let folder = folder();
    let store = folder.file("store");
    assert!(AgentProcess::start(&arguments(&store)).end());
    let mut told_of = 0;
    for files in 3..20 {
        let output = Command::new("sh")
            .args(["-c", "ulimit -n $0; exec \"$1\" store check \"$2\""])
            .arg(files.to_string())
            .arg(env!("CARGO_BIN_EXE_bigbird"))
            .arg(&store)
            .output()
            .unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        // With too few files, the program does not even start.
        if message.contains("store: ") {
            told_of += 1;
            assert!(
                message.ends_with("; nothing was lost, try again\n"),
                "{files}: {message}"
            );
        }
    }
    assert!(told_of > 0);
    let output = Command::new(env!("CARGO_BIN_EXE_bigbird"))
        .args(["store", "check"])
        .arg(&store)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_store_can_be_looked_into_checked_copied_and_reset() {
    let folder = folder();
    let store = folder.file("store");
    let path = store.display().to_string();
    let copy = folder.file("copy").display().to_string();
    let mut agent = AgentProcess::start(&arguments(&store));
    agent.ask(&save(1, 1, "news.example", 2));
    agent.ask(&convert(2, 2, "shop.example", 0.5));
    assert!(agent.end());
    let bigbird = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_bigbird"))
            .args(arguments)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let shown = bigbird(&["store", "show", &path]);
    for line in [
        "From epoch 0 on (1969-12-28 12:00 UTC): epochs of 7 days, querier budget 1,",
        "Epoch 0, from 1969-12-28 12:00 UTC",
        "  global budget                          ██░░░░░░░░░░░░░░░░░░  0.5 of 8",
        "  1 impression of 1 site",
        "          1  news.example",
    ] {
        assert!(shown.contains(line), "{line}\n{shown}");
    }
    let shown: Value = serde_json::from_str(&bigbird(&["store", "show", &path, "--json"])).unwrap();
    assert_eq!(
        shown["epochs"][0]["impressions"],
        json!({"news.example": 1})
    );
    let global =
        json!({"epoch": 0, "filter": "globalBudget", "consumed": 500_000, "capacity": 8_000_000});
    assert_eq!(shown["epochs"][0]["budgets"][1], global);
    let checked = "The store is intact: 4 filters, 1 impression, 0 attribution objects, 2 sites, \
         2 records of history.\n";
    assert_eq!(bigbird(&["store", "check", &path]), checked);
    bigbird(&["store", "backup", &path, &copy]);
    assert_eq!(bigbird(&["store", "check", &copy]), checked);
    let message = refused(&["store", "backup", &path, &copy]);
    assert!(
        message.ends_with("copy: the file already exists\n"),
        "{message}"
    );

    // A damaged store can only be reset.
    let mut content = std::fs::read(&store).unwrap();
    content[200] ^= 1;
    std::fs::write(&store, content).unwrap();
    let message = refused(&["store", "check", &path]);
    assert!(
        message.contains("is damaged: a page does not match its checksum; `bigbird store reset"),
        "{message}"
    );
    let mut command = Command::new(env!("CARGO_BIN_EXE_bigbird"));
    let checked = command
        .args(["store", "check", &path, "--json"])
        .output()
        .unwrap();
    assert_eq!(checked.status.code(), Some(1));
    let checked: Value = serde_json::from_slice(&checked.stdout).unwrap();
    assert_eq!(checked["ok"], false);
    assert_eq!(
        refused(&["store", "reset", &path, "--reason", " "]),
        "bigbird: --reason must not be empty\n"
    );
    let told = bigbird(&[
        "store",
        "reset",
        &path,
        "--reason",
        "bit rot",
        "--seconds",
        "100",
    ]);
    assert!(told.contains("store.replaced-1"), "{told}");
    // The store could not be read. It may have been used until its file was last written, which is
    // now.
    assert!(
        told.contains("Its current epoch was 400 days long")
            && told.contains("The API is disabled."),
        "{told}"
    );
    let mut agent = AgentProcess::start(&arguments(&store));
    let converts = |agent: &mut AgentProcess, seconds: i64, action: u64| {
        agent.ask(&save(seconds, action, "news.example", 2));
        let answer = agent.ask(&convert(seconds + 1, action + 1, "shop.example", 0.5));
        answer["histogram"].clone()
    };
    let (null, day) = (json!([0, 0, 0, 0, 0]), 86_400);
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let now = i64::try_from(now.as_secs()).unwrap();
    assert_eq!(converts(&mut agent, 101, 10), null);
    assert_eq!(converts(&mut agent, now + 410 * day, 12), null);
    agent.ask(&json!({"event": "enableAPI"}));
    assert_eq!(converts(&mut agent, 101, 14), null);
    assert_eq!(converts(&mut agent, now + 399 * day, 16), null);
    let open = converts(&mut agent, now + 410 * day, 18);
    assert_eq!(open, json!([0, 0, 1, 0, 0]));
    assert!(agent.end());
    assert!(bigbird(&["store", "show", &path]).contains("Reset on 1970-01-01 00:01 UTC: bit rot"));
    let message = refused(&[
        "store",
        "reset",
        &folder.file("nothing").display().to_string(),
        "--reason",
        "x",
    ]);
    assert!(
        message.ends_with("nothing: the file does not exist\n"),
        "{message}"
    );
}

/// The example of `docs/agent.md`.
#[test]
fn the_documented_example_works() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/agent.md");
    let text = std::fs::read_to_string(page).unwrap();
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("{\"event\""))
        .collect();
    assert_eq!(lines.len(), 3);
    let arguments = ["--in-memory", "--aggregation-service", SERVICE].map(str::to_owned);
    let mut agent = AgentProcess::start(&arguments);
    for line in lines {
        agent.send(line);
        assert_eq!(agent.receive()["ok"], true, "{line}");
    }
    assert!(agent.end());
}
