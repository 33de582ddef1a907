//! An agent under load is killed at random moments, hundreds of times. After each kill, the store
//! is intact, and no deduction of an answered conversion is missing. The store then has the same
//! content as a store in memory after the same requests: those that were answered, and perhaps some
//! that were not.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use bigbird::{Profile, Timestamp};
use bigbird_store::{StoreOptions, StoreSummary};
use bigbird_testing::{Dice, FixedRandomness};
use bigbird_user_agent::protocol::{AgentRequest, Player};
use bigbird_user_agent::{Config, MemoryStore, UserAgent};
use common::{AgentProcess, SERVICE, arguments, folder};
use serde_json::{Value, json};

const ROUNDS: u64 = 250;
const PERIOD: i64 = 7 * 86_400;

/// The content of a store: what each filter has consumed, and the number of impressions of each
/// site.
type StoredTotals = (BTreeMap<(i64, String), u64>, BTreeMap<(i64, String), u64>);

/// The same user agent, in memory.
struct Model(Player<MemoryStore, FixedRandomness>);

impl Model {
    fn new() -> Self {
        let config = Config::new(Profile::BigBird)
            .with_service(SERVICE)
            .for_testing();
        Self(Player::new(
            UserAgent::in_memory(config, FixedRandomness),
            None,
        ))
    }

    fn play(&mut self, request: &Value) {
        let seconds = request["seconds"].as_i64().unwrap();
        let request: AgentRequest = serde_json::from_value(request.clone()).unwrap();
        self.0.play(&request, Timestamp(seconds * 1000)).unwrap();
    }

    fn held(&mut self) -> StoredTotals {
        let Ok(budgets) = self.0.agent.filter_balances();
        let consumed = budgets
            .iter()
            .map(|budget| {
                (
                    (budget.epoch, budget.to_string()),
                    budget.balance.consumed.get(),
                )
            })
            .collect();
        let memory = self.0.agent.storage();
        let mut impressions = BTreeMap::new();
        for epoch in memory.impressions().epochs() {
            for impression in memory.impressions().impressions(epoch) {
                let site = memory.site(impression.site).unwrap().to_string();
                *impressions.entry((epoch.0, site)).or_default() += 1;
            }
        }
        (consumed, impressions)
    }
}

fn held(store: &Path) -> StoredTotals {
    let contents = StoreSummary::read(store).unwrap();
    let (mut consumed, mut impressions) = (BTreeMap::new(), BTreeMap::new());
    for epoch in contents.epochs {
        for budget in epoch.budgets {
            let name = (budget.epoch, budget.to_string());
            consumed.insert(name, budget.balance.consumed.get());
        }
        for (site, count) in epoch.impressions {
            impressions.insert((epoch.epoch.0, site.to_string()), count);
        }
    }
    (consumed, impressions)
}

/// An endless series of requests. Each has its own user action.
struct Load {
    dice: Dice,
    number: u64,
}

impl Load {
    fn next(&mut self) -> Value {
        self.number += 1;
        let action = self.number;
        // An epoch passes every 3,000 requests.
        let seconds = 1_000_000 + i64::try_from(action).unwrap() * PERIOD / 3000;
        let site = |kind: &str, number: u64| format!("{kind}-{number}.example");
        match self.dice.below(40) {
            0 => json!({
                "event": "clearImpressionsForSite",
                "seconds": seconds,
                "site": site("news", self.dice.below(30)),
            }),
            1 => json!({
                "event": "clearBrowsingHistoryForAttribution",
                "seconds": seconds,
                "sites": [site("shop", 100 + self.dice.below(30))],
                "forgetVisits": false,
            }),
            2..22 => common::save(seconds, action, &site("news", self.dice.below(30)), action),
            _ => {
                let epsilon = 0.01 * (1.0 + f64::from(u32::try_from(self.dice.below(5)).unwrap()));
                common::convert(seconds, action, &site("shop", self.dice.below(60)), epsilon)
            }
        }
    }
}

/// Sends requests to an agent, waits for a number of answers, and kills the agent a moment later.
/// Returns the requests that were sent, and the number of requests that were answered.
fn run_and_kill(
    store: &Path,
    load: &mut Load,
    answers: usize,
    moment: Duration,
) -> (Vec<Value>, usize) {
    let mut agent = AgentProcess::start(&arguments(store));
    let requests: Vec<Value> = (0..400).map(|_| load.next()).collect();
    let lines: Vec<String> = requests.iter().map(Value::to_string).collect();
    let mut input = agent.input.take().unwrap();
    let writer = thread::spawn(move || {
        for line in lines {
            // An agent that was killed does not read.
            if writeln!(input, "{line}").is_err() {
                break;
            }
        }
        // The input must not end before the kill, or the agent would stop in the normal way.
        input
    });
    let mut output = agent.output;
    let mut answered = 0;
    let mut receive = || {
        let mut line = String::new();
        // A line without its end is not an answer.
        if output.read_line(&mut line).unwrap() == 0 || !line.ends_with('\n') {
            return false;
        }
        let answer: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(answer["ok"], true, "{answer}");
        answered += 1;
        true
    };
    for _ in 0..answers {
        assert!(receive(), "the agent ended by itself");
    }
    // In the meantime, the agent continues with the next requests.
    thread::sleep(moment);
    agent.process.kill().unwrap();
    agent.process.wait().unwrap();
    while receive() {}
    drop(writer.join().unwrap());
    (requests, answered)
}

/// Brings the model to the content of the store. It plays all requests that were answered, and then
/// unanswered ones until the content is the same. Returns the number of unanswered requests that
/// were played, or none if the content is never the same.
fn catch_up(
    model: &mut Model,
    requests: &[Value],
    answered: usize,
    found: &StoredTotals,
) -> Option<usize> {
    for request in &requests[..answered] {
        model.play(request);
    }
    for unanswered in 0..=requests.len() - answered {
        if model.held() == *found {
            return Some(unanswered);
        }
        model.play(requests.get(answered + unanswered)?);
    }
    None
}

fn log_of(store: &Path) -> PathBuf {
    let mut name = store.as_os_str().to_owned();
    name.push("-wal");
    name.into()
}

#[test]
fn what_was_answered_survives_a_kill_at_any_moment() {
    let folder = folder();
    let store = folder.file("store");
    let mut load = Load {
        dice: Dice(0x2545_f491_4f6c_dd1d),
        number: 0,
    };
    let mut model = Model::new();
    let mut answered_in_all = 0;
    for round in 0..ROUNDS {
        // A third of the agents are killed while they start.
        let (answers, moment) = match load.dice.below(3) {
            0 => (0, load.dice.below(8_000)),
            _ => (load.dice.below(60), load.dice.below(2_000)),
        };
        let answers = usize::try_from(answers).unwrap();
        let moment = Duration::from_micros(moment);
        let (requests, answered) = run_and_kill(&store, &mut load, answers, moment);
        answered_in_all += answered;
        if !store.exists() {
            // The agent was killed before it created the store.
            assert_eq!(answered, 0);
            continue;
        }
        bigbird_store::check(&store).unwrap();
        let caught_up = catch_up(&mut model, &requests, answered, &held(&store));
        assert!(
            caught_up.is_some(),
            "round {round}: {answered} answered, and the store differs"
        );
    }
    // This holds even on a slow machine, because each round waits for its answers.
    assert!(answered_in_all > 1000, "{answered_in_all} answers");
}

/// A creation, a copy or a reset can be killed at any moment. It leaves a store that opens, no
/// store, or a placeholder text from which another reset continues. Other files that it leaves do
/// not survive the next open.
#[test]
fn what_is_killed_while_it_makes_a_store_leaves_a_good_one() {
    let folder = folder();
    let original = folder.file("original");
    let mut agent = AgentProcess::start(&arguments(&original));
    let mut load = Load {
        dice: Dice(99),
        number: 0,
    };
    for _ in 0..40 {
        assert_eq!(agent.ask(&load.next())["ok"], true);
    }
    assert!(agent.end());
    let expected = held(&original);
    let (mut finished, mut interrupted) = (0, 0);
    for round in 0..120 {
        let within = common::folder();
        let (store, copy) = (within.file("store"), within.file("copy"));
        fs::copy(&original, &store).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_bigbird"));
        match round % 3 {
            0 => command
                .args(["store", "reset", "--reason", "a test"])
                .arg(&store),
            1 => command.args(["store", "backup"]).args([&store, &copy]),
            _ => command.args(["agent", "--store"]).arg(&copy),
        };
        let command = command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut process = command.spawn().unwrap();
        thread::sleep(Duration::from_micros(load.dice.below(60_000)));
        process.kill().unwrap();
        process.wait().unwrap();

        if copy.exists() {
            bigbird_store::check(&copy).unwrap();
        }
        match bigbird_store::check(&store) {
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error.problem().name(), "notAStore", "{error}");
                interrupted += 1;
                let again = bigbird_store::reset(&store, "again", Timestamp(1_000_000_000));
                assert!(again.unwrap().remembered);
                bigbird_store::check(&store).unwrap();
            }
        }
        // The old store still has what was spent, wherever it is now.
        let kept = within.file("store.replaced-1");
        finished += u32::from(kept.exists() || copy.exists());
        let old = if kept.exists() { &kept } else { &store };
        assert_eq!(held(old), expected, "round {round}");
        let copied = bigbird_store::backup(&store, within.file("another"));
        copied.unwrap();
        let _ = bigbird_store::SqliteStore::open_or_create(&copy, &StoreOptions::default());
        for file in fs::read_dir(within.path()).unwrap() {
            let file = file.unwrap().file_name().into_string().unwrap();
            assert!(!file.contains(".new-"), "round {round}: {file}");
        }
    }
    println!("{finished} commands finished, and {interrupted} interrupted resets were continued");
}

/// The first test would notice a store that loses what it has answered. Here the log ends before
/// the last transaction, as if that had never been flushed.
#[test]
fn a_lost_deduction_is_noticed() {
    let folder = folder();
    let store = folder.file("store");
    let mut load = Load {
        dice: Dice(77),
        number: 0,
    };
    let mut agent = AgentProcess::start(&arguments(&store));
    let mut requests: Vec<Value> = (0..40).map(|_| load.next()).collect();
    requests.push(common::save(1_100_000, 1001, "news-1.example", 1));
    requests.push(common::convert(1_100_001, 1002, "shop-1.example", 0.5));
    for request in &requests {
        assert_eq!(agent.ask(request)["ok"], true);
    }
    agent.process.kill().unwrap();
    agent.process.wait().unwrap();
    let last =
        |requests: &[Value]| catch_up(&mut Model::new(), requests, requests.len(), &held(&store));
    assert_eq!(last(&requests), Some(0));
    let log = fs::read(log_of(&store)).unwrap();
    // The last frame of each transaction contains the size of the database.
    let frame = 4096 + 24;
    let frames = (log.len() - 32) / frame;
    let mut ends = (0..frames).filter(|at| log[32 + at * frame + 4..][..4] != [0; 4]);
    ends.next_back();
    let end = ends.next_back().unwrap() + 1;
    fs::write(log_of(&store), &log[..32 + end * frame]).unwrap();
    assert_eq!(last(&requests), None);
}
