//! `bigbird simulate --explain`: its rows say what a user agent says about the same calls.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use common::{AgentProcess, SERVICE, bigbird, folder, parsed, refused};
use serde_json::{Value, json};

/// An event of a log.
#[derive(Clone, Copy)]
struct Event {
    device: u32,
    minute: u32,
    shop: u32,
    kind: LoggedKind,
}

#[derive(Clone, Copy)]
enum LoggedKind {
    Impression { news: u32, bucket: u32 },
    Conversion { value: u32 },
}

impl Event {
    fn shop(&self) -> String {
        format!("shop{}.example", self.shop)
    }
}

/// A log and the way in which it is measured. A user agent only reads the last days before a
/// conversion, to the millisecond. The laboratory reads whole epochs. So that both read the same,
/// the events of each day come earlier than those of the day before.
struct Measured {
    events: Vec<Event>,
    epoch_days: u32,
    lookback_epochs: u32,
}

const DAY: u32 = 1440;

/// Small numbers that look random.
struct SmallNumbers(u64);

impl SmallNumbers {
    fn below(&mut self, end: u32) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        u32::try_from((self.0 >> 33) % u64::from(end)).unwrap()
    }
}

fn events(seed: u64, days: &[u32]) -> Vec<Event> {
    let mut numbers = SmallNumbers(seed);
    let mut events = Vec::new();
    let band = DAY / u32::try_from(days.len()).unwrap();
    for device in 0..25 {
        for (place, day) in (1..).zip(days) {
            for _ in 0..numbers.below(9) {
                let minute = day * DAY + DAY - place * band + numbers.below(band);
                let kind = match numbers.below(2) {
                    0 => LoggedKind::Impression {
                        news: numbers.below(3),
                        bucket: numbers.below(5),
                    },
                    _ => LoggedKind::Conversion {
                        value: 1 + numbers.below(4),
                    },
                };
                events.push(Event {
                    device,
                    minute,
                    shop: numbers.below(3),
                    kind,
                });
            }
        }
    }
    events
}

fn over_two_epochs() -> Measured {
    Measured {
        events: events(1, &[0, 1, 2, 3, 4]),
        epoch_days: 1,
        lookback_epochs: 1,
    }
}

fn within_one_epoch() -> Measured {
    Measured {
        events: events(2, &[3, 10, 17]),
        epoch_days: 7,
        lookback_epochs: 0,
    }
}

const EPSILON: f64 = 0.45;

/// The limits of a policy, in µε.
#[derive(Clone, Copy)]
struct LimitSet([u64; 4]);

const NAMES: [(&str, &str); 4] = [
    ("querierBudget", "querier-budget"),
    ("globalBudget", "global-budget"),
    ("impressionSiteQuota", "impression-site-quota"),
    ("conversionSiteQuota", "conversion-site-quota"),
];

impl LimitSet {
    fn flags(&self) -> String {
        let mut flags = String::new();
        for (micro, (_, flag)) in self.0.iter().zip(NAMES) {
            let (whole, fraction) = (micro / 1_000_000, micro % 1_000_000);
            write!(flags, " --{flag} {whole}.{fraction:06}").unwrap();
        }
        flags
    }

    fn write(&self, path: &Path) {
        let mut fields = json!({"profile": "big-bird"});
        for (micro, (name, _)) in self.0.iter().zip(NAMES) {
            fields[name] = json!(micro);
        }
        std::fs::write(path, fields.to_string()).unwrap();
    }
}

/// The table of a log.
fn table(events: &[Event]) -> String {
    let mut table = "device,time,conversion_site,impression_site,bucket,kind,value\n".to_owned();
    for event in events {
        let (device, minute, shop) = (event.device, event.minute, event.shop());
        let rest = match event.kind {
            LoggedKind::Impression { news, bucket } => {
                format!("news{news}.example,{bucket},impression,")
            }
            LoggedKind::Conversion { value } => format!(",,conversion,{value}"),
        };
        writeln!(table, "d{device},{minute},{shop},{rest}").unwrap();
    }
    table
}

/// The rows that the laboratory writes, by the place of the conversion in the log.
fn laboratory(log: &Measured, policy: LimitSet, more: &str) -> BTreeMap<u64, Value> {
    let folder = folder();
    let (table_file, to) = (folder.file("logs.csv"), folder.file("why.jsonl"));
    std::fs::write(&table_file, table(&log.events)).unwrap();
    let output = bigbird(&format!(
        "simulate {} --time-unit minutes --epoch-days {} --lookback-epochs {} \
         --min-conversions-per-day 1 --epsilon {EPSILON} --explain {} {} {more}",
        table_file.display(),
        log.epoch_days,
        log.lookback_epochs,
        to.display(),
        policy.flags(),
    ));
    assert!(output.status.success(), "{output:?}");
    let rows = std::fs::read_to_string(&to).unwrap();
    let rows = rows
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    rows.map(|row| (row["order"].as_u64().unwrap(), row))
        .collect()
}

/// The explanations that user agents give of the same calls, in the form of the laboratory's rows.
fn agents(log: &Measured, policy: LimitSet) -> BTreeMap<u64, Value> {
    let folder = folder();
    let policy_file = folder.file("policy.json");
    policy.write(&policy_file);
    let mut max_values = BTreeMap::new();
    for event in &log.events {
        if let LoggedKind::Conversion { value } = event.kind {
            let max = max_values.entry(event.shop).or_insert(value);
            *max = value.max(*max);
        }
    }
    let devices: BTreeSet<u32> = log.events.iter().map(|event| event.device).collect();
    let mut explained = BTreeMap::new();
    for device in devices {
        let arguments = [
            "--in-memory",
            "--test-clock",
            "--unencrypted-for-testing",
            "--aggregation-service",
            SERVICE,
            "--epoch-start",
            "0",
            "--epoch-days",
            &log.epoch_days.to_string(),
            "--policy",
            policy_file.to_str().unwrap(),
        ];
        let mut agent = AgentProcess::start(&arguments.map(str::to_owned));
        // Epochs begin with the first call, at the beginning of day 0.
        let first = json!({"event": "saveImpression", "seconds": 0, "userAction": 0,
            "site": "clock.example",
            "options": {"histogramIndex": 0, "conversionSites": ["nobody.example"]}});
        assert_eq!(agent.ask(&first)["ok"], true);
        let of_device = (0..)
            .zip(&log.events)
            .filter(|(_, event)| event.device == device);
        let mut of_device: Vec<(u64, &Event)> = of_device.collect();
        of_device.sort_by_key(|(order, event)| {
            (
                event.minute,
                matches!(event.kind, LoggedKind::Conversion { .. }),
                *order,
            )
        });
        for (action, (order, event)) in (1_u64..).zip(of_device) {
            let seconds = event.minute * 60;
            match event.kind {
                LoggedKind::Impression { news, bucket } => {
                    let saved = agent.ask(&json!({
                        "event": "saveImpression", "seconds": seconds, "userAction": action,
                        "site": format!("news{news}.example"),
                        "options": {"histogramIndex": bucket, "conversionSites": [event.shop()]},
                    }));
                    assert_eq!(saved["ok"], true, "{saved}");
                }
                LoggedKind::Conversion { value } => {
                    let mut call = json!({
                        "event": "explain", "seconds": seconds, "userAction": action,
                        "site": event.shop(),
                        "options": {"aggregationService": SERVICE, "histogramSize": 5,
                            "epsilon": EPSILON, "value": value, "lookbackDays": 1,
                            "maxValue": max_values[&event.shop]},
                    });
                    let explanation = agent.ask(&call)["explanation"].take();
                    call["event"] = json!("measureConversion");
                    let measured = agent.ask(&call);
                    assert_eq!(measured["histogram"], explanation["histogram"]);
                    explained.insert(order, as_row(&explanation, value));
                }
            }
        }
        assert!(agent.end());
    }
    explained
}

/// What both say about a report. Amounts are in µε.
fn as_row(explanation: &Value, value: u32) -> Value {
    let histogram = explanation["histogram"].as_array().unwrap();
    let bucket = histogram
        .iter()
        .position(|in_bucket| *in_bucket == json!(value));
    assert_eq!(
        bucket.is_none(),
        histogram.iter().all(|in_bucket| *in_bucket == json!(0))
    );
    let shortfall = &explanation["shortfall"];
    json!({
        "bucket": bucket,
        "cause": explanation["cause"],
        "filter": shortfall["filter"],
        "epoch": shortfall["epoch"],
        "site": shortfall["site"],
        "asked": shortfall["asked"],
        "consumed": shortfall["consumed"],
        "capacity": shortfall["capacity"],
        "missing": shortfall["shortBy"],
        "largestEpsilon": micro(&explanation["largestEpsilon"]),
    })
}

fn row_of_laboratory(row: &Value) -> Value {
    json!({
        "bucket": row["bucket"],
        "cause": row["cause"],
        "filter": row["cause"],
        "epoch": row["droppedEpoch"],
        "site": row["filterSite"],
        "asked": micro(&row["asked"]),
        "consumed": micro(&row["consumed"]),
        "capacity": micro(&row["capacity"]),
        "missing": micro(&row["missing"]),
        "largestEpsilon": micro(&row["largestEpsilon"]),
    })
}

fn micro(epsilon: &Value) -> Option<u64> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is rounded"
    )]
    epsilon
        .as_f64()
        .map(|epsilon| (epsilon * 1e6).round() as u64)
}

/// The reports about which the two differ.
fn differences(laboratory: &BTreeMap<u64, Value>, agents: &BTreeMap<u64, Value>) -> Vec<String> {
    assert!(laboratory.keys().eq(agents.keys()));
    let pairs = laboratory.iter().zip(agents.values());
    let pairs = pairs.map(|((order, row), agent)| (order, row_of_laboratory(row), agent));
    let differ = pairs.filter(|(_, row, agent)| row != *agent);
    differ
        .map(|(order, row, agent)| format!("{order}:\n{row}\n{agent}"))
        .collect()
}

/// A row of `simulate --explain` and the explanation of the same call by `bigbird agent` say the
/// same: what was released, the cause, the filter and its epoch, what it was asked to pay, had
/// paid, can pay and lacked, and the largest epsilon that would have fitted. If one of them had
/// slightly other limits, they would not.
#[test]
fn a_row_says_what_the_agent_says() {
    let mut causes = BTreeSet::new();
    for (log, policy) in [
        (
            over_two_epochs(),
            LimitSet([1_000_000, 2_000_000, 900_000, 1_000_000]),
        ),
        (
            over_two_epochs(),
            LimitSet([1_000_000, 1_100_000, 1_500_000, 700_000]),
        ),
        (
            within_one_epoch(),
            LimitSet([500_000, 700_000, 450_000, 400_000]),
        ),
    ] {
        let rows = laboratory(&log, policy, "");
        let explained = agents(&log, policy);
        assert!(rows.len() > 100);
        let differ = differences(&rows, &explained);
        assert!(
            differ.is_empty(),
            "{} differ:\n{}",
            differ.len(),
            differ.join("\n")
        );
        for row in rows.values() {
            causes.extend(row["cause"].as_str().map(str::to_owned));
        }
        for (limit, (name, _)) in NAMES.into_iter().enumerate() {
            let mut altered = policy;
            altered.0[limit] += 1;
            let differ = differences(&laboratory(&log, altered, ""), &explained);
            let is_named = rows.values().any(|row| row["cause"] == name);
            assert!(
                !is_named || !differ.is_empty(),
                "another {name} was not noticed"
            );
        }
    }
    let all: Vec<&str> = causes.iter().map(String::as_str).collect();
    let mut names = NAMES.map(|(name, _)| name);
    names.sort_unstable();
    assert_eq!(all, names, "every limit is a cause");
}

/// Rows do not depend on threads and parts, and every format has the same ones.
#[test]
fn rows_are_the_same_in_every_way() {
    let folder = folder();
    let explained = |flags: &str, name: &str| {
        let to = folder.file(name);
        let output = bigbird(&format!(
            "simulate --scale 0.005 --min-conversions-per-day 10 --epsilon 0.4 --attacker random \
             {flags} --explain {}",
            to.display()
        ));
        assert!(output.status.success(), "{output:?}");
        std::fs::read(to).unwrap()
    };
    let one = explained("--threads 1", "one.csv");
    assert_eq!(one, explained("--threads 3", "three.csv"));
    let csv = String::from_utf8(one).unwrap();
    let header: Vec<&str> = csv.lines().next().unwrap().split(',').collect();
    let lines = String::from_utf8(explained("", "why.jsonl")).unwrap();
    assert_eq!(csv.lines().count(), 1 + lines.lines().count());
    assert!(lines.lines().count() > 1000);
    for (row, line) in csv.lines().skip(1).zip(lines.lines()) {
        let line: Value = serde_json::from_str(line).unwrap();
        for (name, cell) in header.iter().zip(row.split(',')) {
            let expected = match &line[name] {
                Value::Null => String::new(),
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            assert_eq!(cell, expected, "{name}");
        }
    }
    let parquet = explained("", "why.parquet");
    assert!(parquet.starts_with(b"PAR1") && parquet.ends_with(b"PAR1"));
}

/// The summary adds up the rows, and the epsilon that it advises keeps its promise: with it, 95% of
/// the reports to which an ad matched get through, and with a larger one fewer do.
#[test]
fn the_summary_adds_up_and_its_advice_helps() {
    let mut log = over_two_epochs();
    // One site alone, so that only its own epsilon counts.
    log.events.retain(|event| event.shop == 0);
    let policy = LimitSet([1_000_000, 8_000_000, 2_000_000, 1_000_000]);
    let folder = folder();
    let (table_file, to) = (folder.file("logs.csv"), folder.file("why.jsonl"));
    std::fs::write(&table_file, table(&log.events)).unwrap();
    let site = |epsilon: f64| {
        let summary = parsed(&format!(
            "simulate {} --time-unit minutes --epoch-days 1 --min-conversions-per-day 1 \
             --epsilon {epsilon} --explain {} {} --json",
            table_file.display(),
            to.display(),
            policy.flags(),
        ));
        assert_eq!(summary["sites"].as_array().unwrap().len(), 1);
        summary["sites"][0].clone()
    };
    let passed = |site: &Value| {
        let blocked = site["blocked"].as_object().unwrap().values();
        let blocked: f64 = blocked.map(|count| count.as_f64().unwrap()).sum();
        let matched = site["reports"].as_f64().unwrap() - site["nothingMatched"].as_f64().unwrap();
        1.0 - blocked / matched
    };
    let before = site(0.9);
    let rows = std::fs::read_to_string(&to).unwrap();
    let rows = rows
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let rows: Vec<Value> = rows.collect();
    let count = |outcome: &str| rows.iter().filter(|row| row["outcome"] == outcome).count();
    assert_eq!(before["reports"], rows.len());
    for (name, outcome) in [
        ("complete", "complete"),
        ("nothingMatched", "nothingMatched"),
        ("lost", "lost"),
        ("moved", "moved"),
    ] {
        assert_eq!(before[name], count(outcome), "{name}");
    }
    let lost: u64 = rows.iter().map(|row| row["lost"].as_u64().unwrap()).sum();
    assert_eq!(before["valueLost"], lost);
    assert!(count("lost") > 0 && count("moved") > 0 && lost > 0);

    let advised = before["epsilonFor95Percent"].as_f64().unwrap();
    assert!(passed(&before) < 0.8 && advised < 0.9, "{before}");
    assert!(passed(&site(advised)) >= 0.95);
    assert!(passed(&site(1.3 * advised)) < 0.95);
}

#[test]
fn what_cannot_be_explained_is_refused_in_one_line() {
    for (arguments, status, expected) in [
        (
            "simulate --explain why.txt",
            2,
            "bigbird: --explain writes .csv, .jsonl or .parquet, got `why.txt`\n",
        ),
        (
            "simulate --explain why.csv --seed 1,2 --impression-site-quota 1,2,3",
            2,
            "bigbird: --explain explains one run, got 6; give each flag one value\n",
        ),
        (
            "simulate --explain why.csv --epsilon 0",
            2,
            "bigbird: --epsilon: epsilon must be in (0, 4294], got 0\n",
        ),
        (
            "simulate --scale 0.001 --explain /no/such/folder/why.csv --min-conversions-per-day 1",
            2,
            "bigbird: /no/such/folder/why.csv: No such file or directory (os error 2)\n",
        ),
    ] {
        assert_eq!(
            refused(arguments),
            (status, expected.to_owned()),
            "{arguments}"
        );
    }
}
