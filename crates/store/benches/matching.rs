//! The cost of a conversion when few, many and very many impressions match:
//! `cargo bench -p bigbird-store --bench matching`.
//!
//! All impressions are in one epoch and on a thousand sites, so that as many filters pay as
//! possible. A query reads at most 1,000 of them, so 100,000 should cost little more than 1,000.
//! The cost of the flush is visible too: conversions are made alone, with one flush each, and in
//! groups of 50 with one flush.
#![allow(missing_docs, clippy::unwrap_used)]

use std::time::Instant;

use bigbird::{ReadLimits, Timestamp};
use bigbird_store::{SqliteStore, StoreOptions};
use bigbird_testing::{FixedRandomness, Folder, endless};
use bigbird_user_agent::{
    Call, Config, ConversionOptions, ImpressionOptions, PageCall, Storage, UserAgent,
};

const SERVICE: &str = "https://agg.example";
const NOW: i64 = 20_000 * 86_400_000;
const MATCHING: [u32; 3] = [10, 1_000, 100_000];
const GROUP: usize = 50;

/// The configuration, with or without the limits on reading.
fn config(bounded: bool) -> Config {
    let mut config = endless(SERVICE);
    if !bounded {
        config.read_limits = ReadLimits {
            relevant: u32::MAX,
            examined: u32::MAX,
        };
    }
    config
}

fn fill<S: Storage>(agent: &mut UserAgent<S, FixedRandomness>, matching: u32) {
    let sites: Vec<String> = (0..1000)
        .map(|site| format!("news-{site}.example"))
        .collect();
    let numbers: Vec<u32> = (0..matching).collect();
    for group in numbers.chunks(1_000) {
        let calls: Vec<_> = group
            .iter()
            .map(|number| {
                let at = Timestamp(NOW + i64::from(*number));
                let click = agent.begin_user_action(at).unwrap();
                let options = ImpressionOptions {
                    // The order of attribution differs from the order of saving.
                    priority: i32::try_from(number * 7919 % 101).unwrap(),
                    ..ImpressionOptions::new(number % 20)
                };
                let site = &sites[*number as usize % sites.len()];
                let call = Call::new(site, at).by(click);
                PageCall::Save(agent.gate().impression(&call, &options).unwrap())
            })
            .collect();
        agent.perform(&calls).unwrap();
    }
}

/// The median time of one conversion, in µs, if `group` of them are made together.
fn measure<S: Storage>(
    agent: &mut UserAgent<S, FixedRandomness>,
    group: usize,
    rounds: usize,
) -> f64 {
    let options = ConversionOptions {
        epsilon: 0.001,
        ..ConversionOptions::new(SERVICE, 20)
    };
    let at = Timestamp(NOW + 1_000_000);
    let mut times: Vec<f64> = (0..rounds)
        .map(|_| {
            let calls: Vec<PageCall> = (0..group)
                .map(|_| {
                    let bought = agent.begin_user_action(at).unwrap();
                    let call = Call::new("shop.example", at).by(bought);
                    PageCall::Measure(agent.gate().conversion(&call, &options).unwrap())
                })
                .collect();
            let begin = Instant::now();
            agent.perform(&calls).unwrap();
            #[expect(clippy::cast_precision_loss, reason = "small numbers")]
            let of_one = begin.elapsed().as_secs_f64() * 1e6 / group as f64;
            of_one
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn rows(name: &str, times: [f64; 3]) {
    print!("{name:<44}");
    for time in times {
        print!(" {time:>9.0} µs");
    }
    println!("  {:>6.2}×", times[2] / times[1]);
}

fn main() {
    let folder = Folder::below(env!("CARGO_TARGET_TMPDIR"));
    print!("{:<44}", "one conversion, by matching impressions");
    MATCHING
        .iter()
        .for_each(|matching| print!(" {matching:>12}"));
    println!("  ratio of 100,000 to 1,000");
    for bounded in [true, false] {
        let told = if bounded { "" } else { ", no read limits" };
        let rounds = if bounded { 100 } else { 5 };
        let times = MATCHING.map(|matching| {
            let mut agent = UserAgent::in_memory(config(bounded), FixedRandomness);
            fill(&mut agent, matching);
            measure(&mut agent, 1, rounds)
        });
        rows(&format!("in memory{told}"), times);
        let mut alone = [0.0; 3];
        let mut grouped = [0.0; 3];
        for (at, matching) in MATCHING.into_iter().enumerate() {
            let path = folder.file(&format!("{matching}-{bounded}"));
            let store = SqliteStore::open_or_create(&path, &StoreOptions::default()).unwrap();
            let agent = UserAgent::new(config(bounded), store, FixedRandomness, Timestamp(0));
            let mut agent = agent.unwrap();
            fill(&mut agent, matching);
            alone[at] = measure(&mut agent, 1, rounds);
            grouped[at] = measure(&mut agent, GROUP, rounds.div_ceil(10));
        }
        rows(&format!("on disk, one flush each{told}"), alone);
        rows(&format!("on disk, one flush per {GROUP}{told}"), grouped);
    }
}
