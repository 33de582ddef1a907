//! How many reports are built and verified, next to the bare cryptography they need.
//!
//! ```sh
//! cargo bench -p bigbird-dap                          # all of it, with 100,000 reports summed
//! cargo bench -p bigbird-dap -- --reports 1000000     # a million reports in one go
//! cargo bench -p bigbird-dap -- --instructions        # whether null reports cost the same
//! ```
//!
//! Rows take turns, so that a busy machine disturbs all of them alike.
#![allow(missing_docs, clippy::unwrap_used, clippy::cast_precision_loss)]

use std::convert::Infallible;
use std::fs::File;
use std::hint::black_box;
use std::io::{BufReader, BufWriter, Read as _, Write as _};
use std::time::{Duration, Instant};

use bigbird::{MicroEpsilon, Timestamp};
use bigbird_dap::messages::{DapReport, Decode as _, Encode as _, ReportId};
use bigbird_dap::{
    Acceptance, Aggregation, AggregationService, AggregationStore, AggregationTask, AggregatorKeys,
    ConfiguredServices, DapSealer, DapVersion, Helper, Leader, NoiseSource, TaskSettings,
    TaskTerms, VdafKind, input_share_info, seal,
};
use bigbird_testing::{FixedRandomness, Folder};
use bigbird_user_agent::{
    Call, Config, ConversionOptions, ImpressionOptions, MemoryStore, UserAgent,
};
use prio::vdaf::prio3::{Prio3, Prio3L1BoundSum};
use prio::vdaf::{Aggregator as _, Client as _, VerifyTransition};
use rayon::prelude::*;

const SERVICE: &str = "https://agg.example";
const NOW: i64 = 1_790_000_000;

/// The number of buckets and the maximum value of the reports that are compared. The last is the
/// largest report that a page can ask for.
const SIZES: [(u32, u32); 4] = [(5, 100), (100, 100), (1000, 100), (1024, u32::MAX)];

struct BenchTask {
    task: AggregationTask,
    keys: [AggregatorKeys; 2],
    services: ConfiguredServices,
}

impl BenchTask {
    fn new(histogram_size: u32, max_value: u32) -> Self {
        let keys = AggregatorKeys::generate(1).unwrap();
        let [leader, helper] = keys.each_ref().map(|keys| keys.hpke.recipient().clone());
        let service = AggregationService::new(
            SERVICE,
            TaskSettings::new(DapVersion::default()),
            ("https://leader.example/", leader),
            ("https://helper.example/", helper),
        )
        .unwrap();
        let terms = TaskTerms {
            collector: "shop.example",
            budget_source: "shop.example",
            histogram_size,
            max_value,
            vdaf: VdafKind::L1BoundSum,
        };
        let task = AggregationTask::new(&service, &terms).unwrap();
        let mut services = ConfiguredServices::new();
        services.insert(service);
        Self {
            task,
            keys,
            services,
        }
    }

    fn acceptance(&self) -> Acceptance {
        let now = self.task.time(NOW);
        Acceptance {
            budget: MicroEpsilon::new(1_000_000),
            times: now - 10..=now + 10,
        }
    }
}

fn main() {
    if let Some((name, times)) = bigbird_testing::asked_to_count() {
        return conversions(&name, times);
    }
    if bigbird_testing::asked_for_instructions() {
        println!("A conversion of 5 buckets with its sealed report, on the whole user agent");
        let names = [
            "charged",
            "budget spent",
            "cleared",
            "disabled",
            "nothing seen",
        ];
        return bigbird_testing::print_instructions(names.map(|name| (name.to_owned(), 20, 120)));
    }
    compare();
    sum_many(argument("--reports", 100_000));
}

/// The number that follows a flag.
fn argument(name: &str, default: usize) -> usize {
    let mut arguments = std::env::args().skip_while(|argument| argument != name);
    arguments.next();
    arguments
        .next()
        .map_or(default, |number| number.parse().unwrap())
}

/// Measures, with rows that take turns. Returns the time of one operation of each row.
fn take_turns(rows: &mut [&mut dyn FnMut()]) -> Vec<Duration> {
    let begin = Instant::now();
    let mut best = vec![Duration::MAX; rows.len()];
    let mut times = vec![1_u32; rows.len()];
    while begin.elapsed() < Duration::from_secs(6) {
        for ((row, best), times) in rows.iter_mut().zip(&mut best).zip(&mut times) {
            let begin = Instant::now();
            for _ in 0..*times {
                row();
            }
            let took = begin.elapsed();
            *best = (*best).min(took / *times);
            // Some 10 ms a turn.
            if took < Duration::from_millis(8) {
                *times *= 2;
            }
        }
    }
    best
}

/// Prints what a report costs, and what the bare cryptography costs.
fn compare() {
    println!("One core. The fastest of many turns.\n");
    println!(
        "{:>8} {:>10} {:>9}   {:<9} {:>10} {:>10} {:>10} {:>10} {:>10}",
        "buckets", "maximum", "bytes", "", "prio", "HPKE", "ours", "reports/s", "overhead"
    );
    for (size, max_value) in SIZES {
        let setup = BenchTask::new(size, max_value);
        let task = &setup.task;
        let mut histogram = vec![0; size as usize];
        histogram[1] = 40;
        histogram[2] = 60;
        let measurement: Vec<u128> = histogram.iter().map(|it| u128::from(*it)).collect();
        let (context, nonce, key) = (b"bench", [3; 16], [7; 32]);
        let parameters = *task.parameters();
        let prio: Prio3L1BoundSum = Prio3::new_l1_bound_sum(
            2,
            parameters.max_value.into(),
            size as usize,
            parameters.chunk_length as usize,
        )
        .unwrap();
        let (public_share, shares) = prio.shard(context, &measurement, &nonce).unwrap();
        let plain = [0, 1].map(|at: usize| shares[at].get_encoded().unwrap());
        let info = input_share_info(DapVersion::default(), bigbird_dap::Role::Leader);
        let aad = vec![0; 250 + public_share.get_encoded().unwrap().len()];
        let recipients = setup.keys.each_ref().map(|keys| keys.hpke.recipient());
        let encrypted = [0, 1].map(|at| recipients[at].seal(&info, &aad, &plain[at]).unwrap());
        let report = seal(task, &histogram, MicroEpsilon::new(1_000_000), NOW).unwrap();
        let bytes = report.get_encoded().unwrap();
        let [leader, helper] = setup.keys.clone();
        let leader = Leader::new(leader, task.clone(), setup.acceptance()).unwrap();
        let helper = Helper::new(helper, task.clone(), setup.acceptance()).unwrap();
        let times = take_turns(&mut [
            &mut || {
                black_box(prio.shard(context, &measurement, &nonce).unwrap());
            },
            &mut || {
                for at in [0, 1] {
                    black_box(recipients[at].seal(&info, &aad, &plain[at]).unwrap());
                }
            },
            &mut || {
                let epsilon = MicroEpsilon::new(1_000_000);
                let report = seal(task, &histogram, epsilon, NOW).unwrap();
                black_box(report.get_encoded().unwrap());
            },
            &mut || {
                let init = |at: usize| {
                    prio.verify_init(&key, context, at, &(), &nonce, &public_share, &shares[at])
                };
                let (first, first_share) = init(0).unwrap();
                let (second, second_share) = init(1).unwrap();
                let message = prio
                    .verifier_shares_to_message(context, &(), [first_share, second_share])
                    .unwrap();
                for state in [first, second] {
                    let next = prio.verify_next(context, state, message.clone()).unwrap();
                    let VerifyTransition::Finish(output) = next else {
                        panic!("one round is enough");
                    };
                    black_box(output);
                }
            },
            &mut || {
                for at in [0, 1] {
                    let keys = &setup.keys[at].hpke;
                    black_box(keys.open(&info, &aad, &encrypted[at]).unwrap());
                }
            },
            &mut || {
                let report = DapReport::get_decoded(&bytes).unwrap();
                let id: ReportId = report.metadata.report_id;
                let (state, share) = leader.begin(report).unwrap();
                let (second, answer) = helper.respond(&share).unwrap();
                black_box((leader.finish(id, state, &answer).unwrap(), second));
            },
        ]);
        for (what, row) in [("built", &times[..3]), ("verified", &times[3..])] {
            let micro = |at: usize| row[at].as_secs_f64() * 1e6;
            let (bare, ours) = (micro(0) + micro(1), micro(2));
            println!(
                "{size:>8} {max_value:>10} {:>9}   {what:<9} {:>7.0} µs {:>7.0} µs {ours:>7.0} µs {:>10.0} \
                 {:>9.0}%",
                bytes.len(),
                micro(0),
                micro(1),
                1e6 / ours,
                100.0 * (ours / bare - 1.0)
            );
        }
    }
    println!(
        "\nOverhead is ours over bare prio plus HPKE. Verifying is the work of both aggregators."
    );
}

/// Builds many reports into a file, and sums them in one go on all cores.
fn sum_many(count: usize) {
    let setup = BenchTask::new(5, 1);
    let folder = Folder::below(std::env::temp_dir());
    let path = folder.file("reports");
    let begin = Instant::now();
    let mut file = BufWriter::new(File::create(&path).unwrap());
    let mut left = count;
    while left > 0 {
        let portion = left.min(20_000);
        let reports: Vec<Vec<u8>> = (0..portion)
            .into_par_iter()
            .map(|number| {
                let mut histogram = [0; 5];
                histogram[number % 5] = u32::from(number % 2 == 0);
                let report = seal(&setup.task, &histogram, MicroEpsilon::new(1_000_000), NOW);
                report.unwrap().get_encoded().unwrap()
            })
            .collect();
        for report in reports {
            let length = u32::try_from(report.len()).unwrap();
            file.write_all(&length.to_be_bytes()).unwrap();
            file.write_all(&report).unwrap();
        }
        left -= portion;
    }
    file.flush().unwrap();
    drop(file);
    let built = begin.elapsed().as_secs_f64();
    let cores = rayon::current_num_threads();
    println!("\n{count} reports of 5 buckets, {cores} cores");
    println!(
        "built     {built:>8.1} s {:>9.0} reports/s",
        count as f64 / built
    );
    println!("(memory so far: {:.0} MB)", peak_memory());
    let mut so_far = 0.0;
    // Twice: the first tenth, and the rest. The rate must be the same.
    let store = AggregationStore::open(&folder.file("aggregator.store")).unwrap();
    let times = setup.acceptance().times;
    let (keys, budget) = (setup.keys.clone(), Some(MicroEpsilon::new(1_000_000)));
    let mut aggregation =
        Aggregation::new(store, keys, &setup.task, "bench", budget, times).unwrap();
    let mut file = BufReader::with_capacity(1 << 20, File::open(&path).unwrap());
    for (name, portion) in [("a tenth", count / 10), ("the rest", count - count / 10)] {
        let begin = Instant::now();
        let reports = (0..portion).map(|_| {
            let mut length = [0; 4];
            file.read_exact(&mut length).unwrap();
            let mut report = vec![0; u32::from_be_bytes(length) as usize];
            file.read_exact(&mut report).unwrap();
            Ok::<_, Infallible>(report)
        });
        let tally = aggregation.add(reports, |_| {}).unwrap();
        assert_eq!(tally.accepted, portion as u64);
        let took = begin.elapsed().as_secs_f64();
        so_far += took;
        println!(
            "summed    {took:>8.1} s {:>9.0} reports/s   {name}, peak memory {:.0} MB",
            portion as f64 / took,
            peak_memory()
        );
    }
    let result = aggregation
        .query(
            MicroEpsilon::new(1_000_000),
            NoiseSource::Both,
            &mut rand::rng(),
        )
        .unwrap();
    println!(
        "in all    {so_far:>8.1} s {:>9.0} reports/s   {:?} ± {:.1}",
        count as f64 / so_far,
        result.buckets,
        result.standard_deviation
    );
}

/// The peak memory of this process in MB, if the system reports it.
fn peak_memory() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<f64>().ok());
    kilobytes.unwrap_or(f64::NAN) / 1024.0
}

/// Measures conversions of one kind on a user agent, each with its sealed report.
fn conversions(kind: &str, times: u32) {
    let setup = BenchTask::new(5, 1);
    let mut config: Config = bigbird_testing::endless(SERVICE);
    config.shows_histograms = false;
    config.aggregation_services = setup.services.protocols();
    if kind == "budget spent" {
        let policy = config.policy.to_builder().querier_budget(0.000_001);
        config.policy = policy.build().unwrap();
    }
    let mut agent: UserAgent<MemoryStore, FixedRandomness> =
        UserAgent::in_memory(config, FixedRandomness)
            .sealing(DapSealer::new(setup.services.clone()));
    let day = 86_400_000;
    if kind != "nothing seen" {
        for number in 0..2 {
            let at = Timestamp(NOW * 1000 - number * 8 * day - day);
            let action = agent.begin_user_action(at).unwrap();
            let seen = Call::new("news.example", at).by(action);
            agent
                .save_impression(&seen, &ImpressionOptions::new(1))
                .unwrap();
        }
    }
    let now = Timestamp(NOW * 1000);
    match kind {
        "disabled" => agent.set_enabled(false).unwrap(),
        "cleared" => agent.clear_browsing_history(&[], true, now).unwrap(),
        _ => {}
    }
    let options = ConversionOptions {
        epsilon: 0.5,
        ..ConversionOptions::new(SERVICE, 5)
    };
    for _ in 0..times {
        let action = agent.begin_user_action(now).unwrap();
        let bought = Call::new("shop.example", now).by(action);
        let answer = agent.measure_conversion(&bought, &options).unwrap();
        assert_eq!(answer.report.bytes.len(), 624);
    }
}
