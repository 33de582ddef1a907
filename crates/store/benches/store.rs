//! The cost of durability: `cargo bench -p bigbird-store`.
//!
//! Two operations take turns on the same disk: the smallest durable write (4 kB appended to a file
//! and flushed), and a conversion. The benchmark prints medians, because a shared disk has bad
//! moments. Moving the write-ahead log into the database file is measured separately.
#![allow(missing_docs, clippy::unwrap_used)]
#![allow(clippy::cast_precision_loss, reason = "small numbers")]

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::time::Instant;

use bigbird::Timestamp;
use bigbird_store::{SqliteStore, StoreOptions};
use bigbird_testing::{
    FixedRandomness, Folder, asked_for_instructions, asked_to_count, endless, print_instructions,
};
use bigbird_user_agent::{Call, ConversionOptions, ImpressionOptions, UserAgent};

const SERVICE: &str = "https://agg.example";
const STORED: [u32; 2] = [1_000, 100_000];
const DAY: i64 = 86_400_000;
const NOW: i64 = 20_000 * DAY;

type SqliteAgent = UserAgent<SqliteStore, FixedRandomness>;

fn open(path: &Path) -> SqliteAgent {
    let options = StoreOptions {
        checkpoint_pages: 0,
        ..StoreOptions::default()
    };
    let store = SqliteStore::open_or_create(path, &options).unwrap();
    UserAgent::new(endless(SERVICE), store, FixedRandomness, Timestamp(0)).unwrap()
}

/// Saves `stored` impressions, in groups, over 28 days and five epochs. Each has its own user
/// action. Ten of them are for the shop.
fn fill(agent: &mut SqliteAgent, stored: u32, group: usize) {
    let saved: Vec<(String, ImpressionOptions, i64)> = (0..stored)
        .map(|number| {
            let advertiser = match number % (stored / 10) {
                0 => "shop.example".to_owned(),
                other => format!("advertiser-{}.example", other % 300),
            };
            let options = ImpressionOptions {
                conversion_sites: vec![advertiser],
                match_value: number % 50,
                ..ImpressionOptions::new(number % 20)
            };
            let age = 28 * DAY * i64::from(number) / i64::from(stored);
            (format!("news-{}.example", number % 500), options, NOW - age)
        })
        .collect();
    for group in saved.chunks(group) {
        let calls: Vec<_> = group
            .iter()
            .map(|(site, options, at)| {
                let click = agent.begin_user_action(Timestamp(*at)).unwrap();
                (Call::new(site, Timestamp(*at)).by(click), options)
            })
            .collect();
        for answer in agent.save_impressions(calls).unwrap() {
            answer.unwrap();
        }
    }
}

/// Makes a conversion with its own user action, which begins before the call. Returns the time of
/// the call, in µs.
fn measure(agent: &mut SqliteAgent) -> f64 {
    let bought = agent.begin_user_action(Timestamp(NOW + 1)).unwrap();
    let options = ConversionOptions {
        epsilon: 0.1,
        value: 3,
        max_value: 10,
        credit: vec![0.5, 0.3, 0.2],
        ..ConversionOptions::new(SERVICE, 20)
    };
    let call = Call::new("shop.example", Timestamp(NOW + 1)).by(bought);
    let begin = Instant::now();
    let answer = agent.measure_conversion(&call, &options).unwrap();
    let time = micros(begin);
    assert_eq!(answer.report.histogram.unwrap().total(), 3);
    time
}

fn micros(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e6
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn row(name: &str, value: &str, limit: &str) {
    println!("{name:<52} {value:>14}  {limit}");
}

/// Does the work whose instructions are counted.
fn work(folder: &Folder, name: &str, times: u32) {
    let stored = match name.contains("100000") {
        true => 100_000,
        false => 1_000,
    };
    let mut agent = open(&folder.file("counted"));
    if name.starts_with("save") {
        for _ in 0..times {
            fill(&mut agent, stored, 1_000);
        }
    } else {
        fill(&mut agent, stored, 1_000);
        for _ in 0..times {
            measure(&mut agent);
        }
    }
}

fn main() {
    let folder = Folder::below(env!("CARGO_TARGET_TMPDIR"));
    if let Some((name, times)) = asked_to_count() {
        return work(&folder, &name, times);
    }
    if asked_for_instructions() {
        let names = [
            ("save 1000 impressions in one group", 1, 3),
            ("a durable conversion, 1000 impressions stored", 10, 110),
            ("a durable conversion, 100000 impressions stored", 10, 110),
        ];
        return print_instructions(names.map(|(name, few, many)| (name.to_owned(), few, many)));
    }
    let saving = Instant::now();
    let mut agents = STORED.map(|stored| {
        let mut agent = open(&folder.file(&stored.to_string()));
        fill(&mut agent, stored, 1_000);
        agent
    });
    let saved = f64::from(STORED.iter().sum::<u32>());
    let rate = saved / saving.elapsed().as_secs_f64();
    conversions(&folder, &mut agents);

    println!();
    row(
        "impressions saved in groups of 1,000",
        &format!("{rate:.0} a second"),
        "(at least 20,000)",
    );
    for (stored, agent) in STORED.into_iter().zip(agents) {
        agent.into_storage().close().unwrap();
        let path = folder.file(&stored.to_string());
        let mut times: Vec<f64> = (0..21)
            .map(|_| {
                let begin = Instant::now();
                let store = SqliteStore::open(&path, &StoreOptions::default()).unwrap();
                let time = micros(begin);
                store.close().unwrap();
                time
            })
            .collect();
        row(
            &format!("opening {stored} impressions, ledger verified"),
            &format!("{:.1} ms", median(&mut times) / 1e3),
            "(under 20 ms)",
        );
        let bytes = fs::metadata(&path).unwrap().len() as f64;
        row(
            &format!("size on disk of {stored} impressions"),
            &format!("{:.0} B each", bytes / f64::from(stored)),
            "",
        );
    }
}

fn conversions(folder: &Folder, agents: &mut [SqliteAgent; 2]) {
    const ROUNDS: usize = 400;
    /// The conversions between checkpoints. SQLite would make one about as often by itself, every
    /// 1,000 pages.
    const CHECKPOINT: usize = 100;
    let mut file = File::create(folder.file("floor")).unwrap();
    let mut floor = Vec::new();
    let mut times = [Vec::new(), Vec::new()];
    let mut checkpoints = [Vec::new(), Vec::new()];
    for round in 0..ROUNDS {
        let begin = Instant::now();
        file.write_all(&[7; 4096]).unwrap();
        file.sync_data().unwrap();
        floor.push(micros(begin));
        for (at, agent) in agents.iter_mut().enumerate() {
            times[at].push(measure(agent));
            if round % CHECKPOINT == 0 {
                let begin = Instant::now();
                agent.storage_mut().checkpoint().unwrap();
                checkpoints[at].push(micros(begin));
            }
        }
    }
    let floor = median(&mut floor);
    row("4 kB appended and flushed", &format!("{floor:.0} µs"), "");
    for (at, stored) in STORED.into_iter().enumerate() {
        let time = median(&mut times[at]);
        row(
            &format!("a durable conversion, {stored} impressions stored"),
            &format!("{time:.0} µs"),
            &format!("{:.2}× (at most 2×)", time / floor),
        );
    }
    for (at, stored) in STORED.into_iter().enumerate() {
        row(
            &format!("a checkpoint every {CHECKPOINT} conversions, {stored} stored"),
            &format!("{:.0} µs", median(&mut checkpoints[at])),
            "",
        );
    }
}
