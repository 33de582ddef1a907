//! The cost of a conversion, depending on how much is stored, and whether that cost reveals what
//! happened: `cargo bench -p bigbird-user-agent`.
//!
//! The user agents of all sizes take turns in rounds, and the median of each is printed. Valgrind
//! counts the instructions of this program, which are the same on every run.
#![allow(missing_docs, clippy::unwrap_used)]
#![allow(clippy::cast_precision_loss, reason = "small numbers")]

use std::hint::black_box;
use std::time::Instant;

use bigbird::Timestamp;
use bigbird_testing::{FixedRandomness, endless, instructions};
use bigbird_user_agent::{
    Action, Call, ConversionOptions, ImpressionOptions, MemoryStore, SharedConversion, UserAgent,
};

const SERVICE: &str = "https://agg.example";
const STORED: [u32; 4] = [100, 1_000, 10_000, 100_000];
const ROUNDS: usize = 31;
/// A day in milliseconds.
const DAY: i64 = 86_400_000;
const NOW: i64 = 20_000 * DAY;

type MemoryAgent = UserAgent<MemoryStore, FixedRandomness>;

/// A user agent with `stored` impressions over 28 days, in five epochs of a week. Ten of them are
/// for the shop. The budgets are finite and never run dry.
fn agent(stored: u32) -> (MemoryAgent, Action) {
    let mut agent = UserAgent::in_memory(endless(SERVICE), FixedRandomness);
    for number in 0..stored {
        let site = format!("news-{}.example", number % 500);
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
        let Ok(action) = agent.begin_user_action(Timestamp(NOW - age));
        let call = Call::new(&site, Timestamp(NOW - age)).by(action);
        agent.save_impression(&call, &options).unwrap();
    }
    let Ok(bought) = agent.begin_user_action(Timestamp(NOW + 1));
    (agent, bought)
}

fn options() -> ConversionOptions {
    ConversionOptions {
        epsilon: 0.1,
        value: 3,
        max_value: 10,
        credit: vec![0.5, 0.3, 0.2],
        ..ConversionOptions::new(SERVICE, 20)
    }
}

fn measure((agent, bought): &mut (MemoryAgent, Action), site: &str) -> u64 {
    let options = options();
    let call = Call::new(site, Timestamp(NOW + 1)).by(*bought);
    let answer = agent
        .measure_conversion(black_box(&call), &options)
        .unwrap();
    answer.report.histogram.unwrap().total()
}

/// Creates a shared conversion and returns its handle.
fn create((agent, bought): &mut (MemoryAgent, Action), site: &str) -> SharedConversion {
    let call = Call::new(site, Timestamp(NOW + 1)).by(*bought);
    let created = agent.create_shared_conversion(black_box(&call), &options(), &["ads.example"]);
    created.unwrap().shared
}

fn take((agent, bought): &mut (MemoryAgent, Action), site: &str, shared: SharedConversion) -> u64 {
    let call = Call {
        intermediary: Some("ads.example"),
        ..Call::new(site, Timestamp(NOW + 1)).by(*bought)
    };
    let taken = agent.take_share(black_box(shared), &call, &options());
    taken.unwrap().report.histogram.unwrap().total()
}

/// The cases of each call that pages must not be able to tell apart.
const KINDS: [(&str, &[CallCase]); 3] = [
    (
        "measure",
        &[
            ("charged", "shop.example", true, true),
            ("null", "nobody.example", true, true),
            ("disabled", "shop.example", false, true),
        ],
    ),
    (
        "create",
        &[
            ("charged", "shop.example", true, true),
            ("null", "nobody.example", true, true),
            ("disabled", "shop.example", false, true),
        ],
    ),
    (
        "take",
        &[
            ("charged", "shop.example", true, true),
            ("null", "nobody.example", true, true),
            ("unknown", "shop.example", true, false),
            ("disabled", "shop.example", false, true),
        ],
    ),
];

/// The name of a case, the site that calls, whether the API is enabled, and for a share whether the
/// handle belongs to a shared conversion.
type CallCase = (&'static str, &'static str, bool, bool);

/// The largest number of calls whose instructions are counted.
const CALLS: u32 = 110;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == "--count") {
        let [call, kind, calls] = &arguments[at + 1..at + 4] else {
            return;
        };
        return work(call, kind, calls.parse().unwrap());
    }
    time();
    count();
}

fn time() {
    const CALLS: u32 = 200;
    let mut agents = STORED.map(agent);
    let mut rounds = STORED.map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for (agent, rounds) in agents.iter_mut().zip(&mut rounds) {
            let begin = Instant::now();
            for _ in 0..CALLS {
                assert_eq!(measure(agent, "shop.example"), 3);
            }
            rounds.push(begin.elapsed().as_secs_f64() * 1e6 / f64::from(CALLS));
        }
    }
    let medians = rounds.map(|mut rounds| {
        rounds.sort_by(f64::total_cmp);
        rounds[rounds.len() / 2]
    });
    println!("{:<44} {:>10}", "measure_conversion, 10 match", "median");
    for (stored, median) in STORED.into_iter().zip(medians) {
        let name = format!("{stored} impressions stored");
        println!("{name:<44} {median:>7.1} µs");
    }
    let growth = medians[STORED.len() - 1] / medians[0];
    println!(
        "{:<44} {growth:>9.1}×  (at most 5×)\n",
        "growth from the first to the last"
    );
}

/// The work whose instructions are counted: the preparation, then the calls.
fn work(call: &str, kind: &str, calls: u32) {
    let (_, kinds) = KINDS.into_iter().find(|known| known.0 == call).unwrap();
    let (_, site, enabled, known) = kinds.iter().find(|known| known.0 == kind).unwrap();
    let mut agent = agent(1_000);
    measure(&mut agent, site);
    let handles: Vec<_> = (0..CALLS).map(|_| create(&mut agent, site)).collect();
    let Ok(()) = agent.0.set_enabled(*enabled);
    for handle in handles.into_iter().take(calls as usize) {
        match call {
            "measure" => {
                black_box(measure(&mut agent, site));
            }
            "create" => {
                black_box(create(&mut agent, site));
            }
            _ => {
                let unknown = SharedConversion(u128::MAX - handle.0);
                let handle = if *known { handle } else { unknown };
                black_box(take(&mut agent, site, handle));
            }
        }
    }
}

fn count() {
    for (call, kinds) in KINDS {
        let counts = kinds.iter().map(|(kind, ..)| {
            // The difference cancels the instructions of the preparation.
            let counted = |calls: u32| instructions(&["--count", call, kind, &calls.to_string()]);
            let (few, many) = (counted(10)?, counted(CALLS)?);
            Some((many - few) as f64 / f64::from(CALLS - 10))
        });
        let Some(counts) = counts.collect::<Option<Vec<f64>>>() else {
            println!("instructions: not counted, because valgrind is not installed");
            return;
        };
        let name = format!("instructions per call: {call}");
        println!("{name:<44} {:>10}", "count");
        let largest = counts.iter().copied().fold(0.0, f64::max);
        for ((kind, ..), count) in kinds.iter().zip(counts) {
            let below = 100.0 * (1.0 - count / largest);
            println!("{kind:<44} {count:>10.0}  {below:.1}% below the largest (at most 10%)");
        }
        println!();
    }
}
