//! Keys, sealed reports of an agent, their aggregation, and kills at any moment.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use common::{AgentProcess, bigbird, convert, folder, parsed, refused, save};
use serde_json::{Value, json};

/// An epsilon at which the noise is zero, but for a probability far below 2⁻¹⁰⁰⁰.
const NO_NOISE: &str = "4294";

fn base64(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let mut bytes = Vec::new();
    for group in text.as_bytes().chunks(4) {
        let digits: Vec<u32> = group
            .iter()
            .filter(|byte| **byte != b'=')
            .map(|byte| digit(*byte).into())
            .collect();
        let number = digits
            .iter()
            .enumerate()
            .fold(0, |number, (at, digit)| number | digit << (18 - 6 * at));
        bytes.extend(&number.to_be_bytes()[1..digits.len()]);
    }
    bytes
}

/// Runs `bigbird aggregate` for the task of these tests.
fn aggregate(service: &Path, more: &str) -> Output {
    let service = service.display();
    bigbird(&format!(
        "aggregate --service {service} --site shop.example --json {more}"
    ))
}

fn answer(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
}

#[test]
fn an_agents_reports_are_aggregated() {
    let folder = folder();
    let service = folder.file("service");
    let generated = bigbird(&format!("keys generate --out {}", service.display()));
    assert!(generated.status.success(), "{generated:?}");
    // Keys are never overwritten.
    let (status, why) = refused(&format!("keys generate --out {}", service.display()));
    assert_eq!(status, 1);
    assert!(why.contains("keys are never overwritten"), "{why}");
    let mut agent = AgentProcess::start(&[
        "--in-memory".to_owned(),
        "--test-clock".to_owned(),
        "--aggregation-services".to_owned(),
        service.display().to_string(),
    ]);
    let mut lengths = Vec::new();
    let reports = folder.file("reports");
    fs::create_dir_all(reports.join("more")).unwrap();
    for number in 0..24_u64 {
        let now = 1_000_000 + i64::try_from(number).unwrap();
        agent.ask(&save(now, 2 * number, "news.example", 3));
        let answer = agent.ask(&convert(now + 1, 2 * number + 1, "shop.example", 0.04));
        // A page gets the report, and nothing about what is in it.
        assert_eq!(answer["ok"], true);
        assert!(answer.get("histogram").is_none());
        let report = base64(answer["report"].as_str().unwrap());
        lengths.push(report.len());
        let path = match number {
            // Files in folders count too, and so does base64.
            5 => reports.join("more").join("05"),
            _ => reports.join(format!("{number:02}")),
        };
        match number {
            7 => fs::write(path, answer["report"].as_str().unwrap()).unwrap(),
            _ => fs::write(path, report).unwrap(),
        }
    }
    assert!(agent.end());
    assert!(lengths.iter().all(|length| *length == lengths[0]));
    let task = "--histogram-size 5 --now 1000100 --epsilon 0.03 --batch-epsilon 0.04";
    // One more, and one that was altered.
    fs::copy(reports.join("00"), reports.join("copy")).unwrap();
    let mut altered = fs::read(reports.join("01")).unwrap();
    *altered.last_mut().unwrap() ^= 1;
    altered[0] ^= 1;
    fs::write(reports.join("altered"), altered).unwrap();
    let list = folder.file("refused.csv");
    let summed = aggregate(
        &service,
        &format!("{task} --refused {} {}", list.display(), reports.display()),
    );
    assert!(summed.status.success(), "{summed:?}");
    let summed = answer(&summed);
    assert_eq!(summed["accepted"], 24);
    assert_eq!(
        summed["refused"],
        json!({"replayed": 1, "undecryptable": 1})
    );
    assert_eq!(summed["noised"].as_array().unwrap().len(), 5);
    assert_eq!(
        (&summed["budget"], &summed["spent"], &summed["left"]),
        (&json!(0.04), &json!(0.03), &json!(0.01))
    );
    // Two noises of scale 2/0.03.
    let deviation = summed["standardDeviation"].as_f64().unwrap();
    assert!((deviation - 2.0 * 2.0 / 0.03).abs() < 0.1, "{deviation}");
    let list = fs::read_to_string(list).unwrap();
    let rows: Vec<_> = list.lines().collect();
    assert_eq!(rows.len(), 3);
    assert_eq!(rows[0], "file,report,id,reason,explanation");
    assert!(rows[1].contains("altered\",0,") && rows[1].contains(",undecryptable,"));
    assert!(rows[2].contains("copy\",0,") && rows[2].contains(",replayed,"));
    // The rest of the budget, and not more.
    let again = aggregate(&service, "--histogram-size 5 --epsilon 0.01");
    assert!(again.status.success(), "{again:?}");
    let over = aggregate(&service, "--histogram-size 5 --epsilon 0.000001");
    assert_eq!(over.status.code(), Some(1));
    let told = answer(&over);
    assert_eq!(
        told["error"],
        "the batch `default` cannot pay ε = 0.000001: 0 of 0.04 is left"
    );
    assert!(told.get("noised").is_none());
}

/// What `bigbird agent` prints can be aggregated as it is. A batch that accepted nothing leaves its
/// name free, and a list of refused reports replaces nothing that is read.
#[test]
fn answers_of_an_agent_are_read_and_mistakes_cost_nothing() {
    let folder = folder();
    let service = folder.file("service");
    let made = bigbird(&format!("keys generate --out {}", service.display()));
    assert!(made.status.success());
    let arguments = ["--in-memory", "--test-clock", "--aggregation-services"];
    let mut arguments = arguments.map(str::to_owned).to_vec();
    arguments.push(service.display().to_string());
    let mut agent = AgentProcess::start(&arguments);
    let mut answers = String::new();
    for number in 0..20 {
        answers += &format!("{}\n", agent.ask(&save(100, 2 * number, "news.example", 1)));
        let answer = agent.ask(&convert(101, 2 * number + 1, "shop.example", 0.05));
        answers += &format!("{answer}\n");
    }
    assert!(agent.end());
    let path = folder.file("answers.jsonl");
    fs::write(&path, &answers).unwrap();
    let path = path.display();
    let flags = "--histogram-size 5 --now 200";
    // More than was paid.
    let spoiled = aggregate(&service, &format!("{flags} --epsilon 2 {path}"));
    assert_eq!(spoiled.status.code(), Some(1));
    assert_eq!(answer(&spoiled)["refused"], json!({"budgetTooSmall": 20}));
    // It would replace what it reads, or the store.
    let store = service.join("aggregator.store");
    for target in [path.to_string(), store.display().to_string()] {
        let flags = format!("{flags} --epsilon 0.05 --refused {target} {path}");
        let refused = aggregate(&service, &flags);
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    }
    let summed = aggregate(&service, &format!("{flags} --epsilon 0.05 {path}"));
    assert!(summed.status.success(), "{summed:?}");
    assert_eq!(answer(&summed)["accepted"], 20);
    assert_eq!(
        fs::read_to_string(folder.file("answers.jsonl")).unwrap(),
        answers
    );
}

#[test]
fn exported_reports_are_summed_from_one_file() {
    let folder = folder();
    for vdaf in ["l1-bound-sum", "sum-vec"] {
        let out = folder.file(vdaf);
        let exported = bigbird(&format!(
            "dap export --out {} --reports 45 --epsilon {NO_NOISE} --vdaf {vdaf}",
            out.display()
        ));
        assert!(exported.status.success(), "{exported:?}");
        let task: Value =
            serde_json::from_slice(&fs::read(out.join("task.json")).unwrap()).unwrap();
        assert_eq!(task["reports"], 45);
        assert_eq!(fs::read(out.join("task-id.bin")).unwrap().len(), 32);
        let uploaded = fs::metadata(out.join("upload-0.bin")).unwrap().len();
        assert_eq!(uploaded, 45 * task["bytesPerReport"].as_u64().unwrap());
        // An aggregator that knows only the older VDAF does not know the extension either.
        let budget = match vdaf {
            "sum-vec" => json!(null),
            _ => json!(4_294_000_000_u64),
        };
        assert_eq!(task["privacyBudget"], budget);
        // The first report is not one, and the others are counted.
        let mut prefixed = fs::read(out.join("reports.bin")).unwrap();
        let mut first = prefixed.clone();
        first[4 + 24..4 + 30].fill(0xff);
        let first_wrong = out.join("first-wrong.bin");
        fs::write(&first_wrong, first).unwrap();
        let flags = format!("--histogram-size 5 --max-value 10 --vdaf {vdaf} --no-query");
        let counted = aggregate(
            &out,
            &format!(
                "{flags} --batch-epsilon 4294 --batch other {}",
                first_wrong.display()
            ),
        );
        let counted = answer(&counted);
        assert_eq!(
            (&counted["accepted"], &counted["reports"]),
            (&json!(44), &json!(44))
        );
        assert_eq!(counted["refused"], json!({"malformed": 1}));
        fs::remove_file(out.join("aggregator.store")).unwrap();
        // The file is cut in the middle of its last report.
        prefixed.truncate(prefixed.len() - 10);
        let cut = out.join("cut.bin");
        fs::write(&cut, prefixed).unwrap();
        let flags = format!(
            "--histogram-size 5 --max-value 10 --epsilon {NO_NOISE} --vdaf {vdaf} --noise leader"
        );
        let summed = aggregate(&out, &format!("{flags} --no-query {}", cut.display()));
        let summed = answer(&summed);
        assert_eq!(summed["accepted"], 44);
        assert_eq!(summed["refused"], json!({"malformed": 1}));
        assert!(summed.get("noised").is_none());
        let whole = out.join("reports.bin");
        let summed = answer(&aggregate(&out, &format!("{flags} {}", whole.display())));
        assert_eq!(summed["accepted"], 1);
        assert_eq!(summed["refused"], json!({"replayed": 44}));
        assert_eq!(summed["noised"], task["sum"]);
    }
}

/// The aggregator is killed at any moment, while it counts and while it answers queries. No report
/// counts twice, none is lost, and nothing that was spent comes back.
#[test]
fn a_killed_aggregator_counts_nothing_twice_and_refunds_nothing() {
    const REPORTS: u64 = 400;
    let folder = folder();
    let out = folder.file("service");
    let exported = bigbird(&format!(
        "dap export --out {} --reports {REPORTS} --epsilon {NO_NOISE} --histogram-size 3",
        out.display()
    ));
    assert!(exported.status.success(), "{exported:?}");
    let task: Value = serde_json::from_slice(&fs::read(out.join("task.json")).unwrap()).unwrap();
    let reports = out.join("reports.bin").display().to_string();
    let service = out.display().to_string();
    let flags = format!(
        "aggregate --service {service} --site shop.example --histogram-size 3 --max-value 10 \
         --json --portion 8"
    );
    let killed_after = |arguments: &str, delay: u64| {
        let mut process = Command::new(env!("CARGO_BIN_EXE_bigbird"))
            .args(arguments.split_whitespace())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        thread::sleep(Duration::from_micros(delay));
        process.kill().unwrap();
        process.wait_with_output().unwrap()
    };
    let number = |value: &Value| value.as_u64().unwrap();
    // How long a run takes depends on the machine. So each run is killed a little later than the
    // one before, until one ends by itself. The first kills come before anything is written.
    let counting = format!("{flags} --epsilon {NO_NOISE} --no-query {reports}");
    let state = format!("{flags} --no-query");
    let (mut delay, mut counted, mut in_the_middle) = (1_000, 0, 0);
    loop {
        let output = killed_after(&counting, delay);
        if bigbird(&state).status.success() {
            let now = number(&parsed(&state)["reports"]);
            assert!(now >= counted, "{now} after {counted}");
            in_the_middle += u32::from(counted < now && now < REPORTS);
            counted = now;
        }
        if output.status.success() {
            break;
        }
        delay += delay / 4;
    }
    assert!(in_the_middle > 0, "no kill came while reports were counted");
    let again = parsed(&counting);
    assert_eq!(
        (&again["accepted"], &again["reports"]),
        (&json!(0), &json!(REPORTS))
    );
    assert_eq!(again["refused"], json!({"replayed": REPORTS}));

    // Queries: whoever got a result paid for it, also if the process was killed while it printed.
    let query = format!("{flags} --epsilon 5");
    let (mut delay, mut results, mut spent) = (1_000, 0, 0.0);
    while results < 2 {
        let output = killed_after(&query, delay);
        let told: Option<Value> = serde_json::from_slice(&output.stdout).ok();
        let now = parsed(&state)["spent"].as_f64().unwrap();
        assert!(now >= spent, "{now} after {spent}");
        if let Some(told) = told {
            results += 1;
            assert!(now >= spent + 5.0, "{now} after {spent}");
            assert_eq!(told["reports"], REPORTS);
        }
        spent = now;
        delay += delay / 4;
    }
    // The sum itself: each report counted once. The noise of this query is zero.
    let last = parsed(&format!("{flags} --epsilon 4000"));
    assert_eq!(last["noised"], task["sum"]);
    assert!((last["spent"].as_f64().unwrap() - spent - 4000.0).abs() < 1e-6);
}

#[test]
fn a_demonstration_runs() {
    let told = parsed("demo --json --devices 200 --seed 5");
    let numbers = |key: &str| -> Vec<i64> {
        let list = told[key].as_array().unwrap().iter();
        list.map(|number| number.as_i64().unwrap()).collect()
    };
    assert_eq!((numbers("true").len(), numbers("noised").len()), (5, 5));
    assert!(told["accepted"].as_u64().unwrap() > 50);
    assert_eq!(
        told["refused"],
        json!({"malformed": 1, "replayed": 3, "undecryptable": 2})
    );
    // Two Laplace variables of scale 2 add up to more than 150 with a probability below e⁻⁶⁰.
    for (truth, noised) in numbers("true").iter().zip(numbers("noised")) {
        assert!((truth - noised).abs() < 150, "{told}");
    }
    assert!((told["standardDeviation"].as_f64().unwrap() - 3.96).abs() < 0.01);
    let folder = folder();
    let out = folder.file("demo");
    let output = bigbird(&format!("demo --devices 100 --out {}", out.display()));
    assert!(output.status.success(), "{output:?}");
    let page = fs::read_to_string(out.join("demo.html")).unwrap();
    assert!(page.contains("What each party saw") && page.contains("<svg"));
    assert!(
        fs::read_to_string(out.join("demo.svg"))
            .unwrap()
            .starts_with("<svg")
    );
}

#[test]
fn mistakes_are_told_in_one_line() {
    let folder = folder();
    let service = folder.file("service");
    let made = bigbird(&format!("keys generate --out {}", service.display()));
    assert!(made.status.success());
    let flags = format!(
        "aggregate --service {} --histogram-size 5",
        service.display()
    );
    let missing = folder.file("missing");
    let empty = folder.file("empty");
    fs::create_dir(&empty).unwrap();
    let missing = missing.display();
    for (arguments, status, told) in [
        (
            format!("{flags} --site shop.example --epsilon 0"),
            2,
            "--epsilon must be in (0, 4294], got 0",
        ),
        (
            format!("{flags} --site shop.example --epsilon NaN"),
            2,
            "--epsilon must be in (0, 4294], got NaN",
        ),
        (format!("{flags} --site com"), 2, "--site: "),
        (
            format!("{flags} --site shop.example {missing}"),
            2,
            "No such file",
        ),
        (
            format!("{flags} --site shop.example {}", empty.display()),
            2,
            "there are no files in ",
        ),
        ("demo --devices 3".to_owned(), 1, "3 devices made "),
        (
            format!("{flags} --site shop.example --batch="),
            2,
            "--batch must have 1 to 100 printable characters, got \"\"",
        ),
        (
            "demo --epsilon 1.5".to_owned(),
            2,
            "--epsilon must be at most 1, the querier budget of a device, got 1.5",
        ),
        (
            format!("{flags} --site shop.example"),
            1,
            "there is no batch `default` of this task; it has none",
        ),
        (
            format!("{flags} --site shop.example --url https://other.example"),
            2,
            "unknown service `https://other.example`; use one of: https://agg.example",
        ),
        (
            format!("aggregate --service {missing} --site shop.example --histogram-size 5"),
            2,
            "No such file",
        ),
        (
            format!("keys generate --url http://agg.example --out {missing}"),
            1,
            "`http://agg.example` must begin with https:",
        ),
        (
            "agent --in-memory --aggregation-services Cargo.toml".to_owned(),
            2,
            "Cargo.toml: line ",
        ),
    ] {
        let (code, why) = refused(&arguments);
        assert_eq!(code, status, "{arguments}: {why}");
        assert!(why.contains(told), "{arguments}: {why}");
        assert_eq!(why.lines().count(), 1, "{why}");
    }
    // Keys of another service.
    let other = folder.file("other");
    assert!(
        bigbird(&format!("keys generate --out {}", other.display()))
            .status
            .success()
    );
    fs::copy(other.join("helper.toml"), service.join("helper.toml")).unwrap();
    let (code, why) = refused(&format!(
        "{flags} --site shop.example {}",
        service.display()
    ));
    assert_eq!(code, 1);
    assert!(
        why.contains("these keys are not the keys of the helper of https://agg.example"),
        "{why}"
    );
    // A file of services with a mistake on its fifth line.
    let path = service.join("aggregation-services.toml");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(
        &path,
        text.replace("version = \"dap-18\"", "version = \"dap-17\""),
    )
    .unwrap();
    let (code, why) = refused(&format!("{flags} --site shop.example"));
    assert_eq!(code, 2);
    assert!(
        why.contains("line 5: unknown version `dap-17` of DAP; use one of: dap-18, dap-19"),
        "{why}"
    );
}
