//! Compares reading and replaying with the least work that can do the same, on a million actions:
//! `cargo bench -p bigbird-lab --bench floor`. The rows take turns, and the medians are printed.
//!
//! * The floor of reading decodes the same columns and sorts the rows by device and time.
//! * The floor of a run is a loop that knows the rules of this one evaluation, and nothing else:
//!   one epoch before, one querier for each conversion, last touch, and no domain cap, which honest
//!   events never reach. It computes the same sums and causes, which is checked.
#![allow(missing_docs, clippy::unwrap_used)]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "a benchmark of known numbers"
)]

use std::fs::File;
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use arrow_array::Array as _;
use arrow_array::cast::AsArray as _;
use arrow_array::types::{Int64Type, UInt64Type};
use bigbird::{FilterKind, Limit, Policy, Profile};
use bigbird_lab::attack::attackers::Random;
use bigbird_lab::attack::{Attack, Strength};
use bigbird_lab::evaluation::metrics::Batch;
use bigbird_lab::evaluation::{Laboratory, QuerierOptions};
use bigbird_lab::workload::criteo::{PreparedOptions, read_prepared};
use bigbird_lab::workload::synthetic::{Population, Preset};
use bigbird_lab::workload::write::write_prepared;
use bigbird_lab::workload::{EventKind, Workload, WorkloadEvent};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

const ROUNDS: usize = 7;

fn main() {
    let folder = tempfile::tempdir().unwrap();
    // At scale 1 there are 10.2 million actions.
    let population = Population {
        preset: Preset::Published,
        scale: 0.098,
        seed: 1,
    };
    write_prepared(&population.generate_on(2), folder.path()).unwrap();
    let path = folder.path();
    let read = |threads| {
        let origins = false;
        read_prepared(path, &PreparedOptions { origins, threads }).unwrap()
    };
    let workload = read(2);
    let policy = Profile::BigBird.policy();
    println!("{} actions in prepared files", workload.len());

    let mut times: [Vec<f64>; 10] = std::array::from_fn(|_| Vec::new());
    let laboratory = Laboratory::new(&workload, QuerierOptions::default(), 1).unwrap();
    let no_quotas = Profile::GlobalOnly.policy();
    let honest = laboratory.run(&policy, None).unwrap();
    laboratory.run(&no_quotas, None).unwrap();
    for _ in 0..ROUNDS {
        let mut row = times.iter_mut();
        let mut time = |work: &mut dyn FnMut()| {
            let begin = Instant::now();
            work();
            let times: &mut Vec<f64> = row.next().unwrap();
            times.push(1e3 * begin.elapsed().as_secs_f64());
        };
        time(&mut || floor_of_reading(path));
        time(&mut || drop(black_box(read(1))));
        let all = PreparedOptions::default();
        time(&mut || drop(black_box(read_prepared(path, &all).unwrap())));
        let mut sums = Vec::new();
        time(&mut || sums = floor_of_a_run(&workload, &laboratory, &policy));
        let same = |batch: &Batch| (batch.kept.clone(), batch.blocked.to_vec());
        assert_eq!(sums, honest.batches.iter().map(same).collect::<Vec<_>>());
        let mut fresh = None;
        time(&mut || {
            fresh = Laboratory::new(&workload, QuerierOptions::default(), 1).ok();
        });
        let fresh = fresh.unwrap();
        time(&mut || drop(black_box(fresh.run(&policy, None).unwrap())));
        let attack = Attack {
            attacker: &Random { share: 0.35 },
            strength: Strength {
                conversion_sites: 1,
                ..Strength::of_paper(None)
            },
            seed: 1,
        };
        time(&mut || drop(black_box(laboratory.run(&no_quotas, Some(attack)).unwrap())));
        for threads in [1, 2] {
            time(&mut || {
                let workload = read(threads);
                let options = QuerierOptions::default();
                let laboratory = Laboratory::new(&workload, options, threads).unwrap();
                drop(black_box(laboratory.run(&policy, None).unwrap()));
            });
        }
    }
    let times = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times.get(ROUNDS / 2).copied().unwrap_or(f64::NAN)
    });
    let [
        floor_read,
        read,
        read_origins,
        floor_run,
        survey,
        run,
        random,
        one,
        two,
        _,
    ] = times;
    let print = |name: &str, time: f64, note: String| println!("{name:<58} {time:>8.0} ms  {note}");
    let times_the_floor = |time: f64, floor: f64, limit: f64| {
        format!("{:.2} times the floor (at most {limit})", time / floor)
    };
    println!("\n{:<58} {:>11}", "one thread", "median");
    print(
        "decoding the columns and sorting by device and time",
        floor_read,
        String::new(),
    );
    print("reading", read, times_the_floor(read, floor_read, 1.5));
    print(
        "reading, with where conversions came from",
        read_origins,
        String::new(),
    );
    print("a plain loop over the events", floor_run, String::new());
    print("survey", survey, String::new());
    print("a run without attack", run, String::new());
    let both = survey + run;
    print(
        "survey and run",
        both,
        times_the_floor(both, floor_run, 2.0),
    );
    print(
        "a run under the random attacker without a cap",
        random,
        String::new(),
    );
    println!("\nreading, survey and run");
    print("one thread", one, String::new());
    print(
        "two threads",
        two,
        format!("{:.2} times as fast (at least 1.8)", one / two),
    );
}

/// Decodes the columns that a replay needs, and sorts the rows by device and time.
fn floor_of_reading(folder: &Path) {
    let mut keys: Vec<(u64, u32, u32)> = Vec::new();
    let mut columns: Vec<Vec<u64>> = Vec::new();
    for (file, names) in [
        (
            "20last_impressions.pqt",
            &[
                "user_id",
                "timestamp_min",
                "day_int",
                "campaign_id",
                "publisher_id",
                "features_ctx_not_constrained_0",
            ] as &[&str],
        ),
        (
            "20last_conversions.pqt",
            &["user_id", "timestamp_min", "day_int", "campaign_id"],
        ),
    ] {
        let file = File::open(folder.join(file)).unwrap();
        let builder = ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
        let mask = ProjectionMask::columns(builder.parquet_schema(), names.iter().copied());
        let mut of_file = vec![Vec::new(); names.len()];
        for batch in builder
            .with_projection(mask)
            .with_batch_size(1 << 14)
            .build()
            .unwrap()
        {
            let batch = batch.unwrap();
            for (name, column) in names.iter().zip(&mut of_file) {
                let array = batch.column_by_name(name).unwrap();
                match array.as_primitive_opt::<Int64Type>() {
                    Some(array) => column.extend(array.values().iter().map(|it| *it as u64)),
                    None => column.extend(array.as_primitive::<UInt64Type>().values()),
                }
                assert_eq!(array.null_count(), 0);
            }
        }
        for (user, minute) in of_file[0].iter().zip(&of_file[1]) {
            keys.push((*user, *minute as u32, keys.len() as u32));
        }
        columns.extend(of_file);
    }
    keys.sort_unstable();
    black_box((keys, columns));
}

/// An impression in the plain loop: its epoch, impression site, conversion site and bucket.
type Seen = (u16, u32, u32, u16);

/// The sum of each bucket of a batch, and the number of blocked reports by first cause.
type Sums = (Vec<u64>, Vec<u64>);

/// A report in the plain loop: its place in time, its bucket, and its first cause.
type LoopReport = (u64, Option<u16>, Option<usize>);

/// Computes the sums of all batches by a loop that knows the rules of this evaluation.
fn floor_of_a_run(workload: &Workload, laboratory: &Laboratory<'_>, policy: &Policy) -> Vec<Sums> {
    // The order of causes.
    let kinds = [
        FilterKind::QuerierBudget,
        FilterKind::GlobalBudget,
        FilterKind::ImpressionSiteQuota,
        FilterKind::ConversionSiteQuota,
    ];
    let capacities = kinds.map(|kind| policy.capacities().of(kind).amount().unwrap().get());
    let queriers = laboratory.queriers();
    let mut number_of = vec![u32::MAX; workload.conversion_site_names.len()];
    for (number, querier) in queriers.iter().enumerate() {
        number_of[querier.site as usize] = number as u32;
    }
    let losses: Vec<u64> = queriers
        .iter()
        .map(|querier| (1e6 * querier.epsilon()).ceil() as u64)
        .collect();
    let mut reports: Vec<Vec<LoopReport>> = vec![Vec::new(); queriers.len()];
    let mut seen: Vec<Seen> = Vec::new();
    // A filter: its kind and site in one word, and its epoch.
    let mut spent: Vec<(u64, u16, u64)> = Vec::new();
    let mut asked: Vec<(usize, u32)> = Vec::new();
    for number in 0..workload.parts() {
        let part = workload.part(number).unwrap();
        for device in 0..part.devices() {
            seen.clear();
            spent.clear();
            for event in part.events_of(device) {
                let WorkloadEvent {
                    epoch,
                    conversion_site: converting,
                    ..
                } = event;
                if let EventKind::Impression { site, bucket } = event.kind {
                    seen.push((epoch, site, converting, bucket));
                    continue;
                }
                let number = number_of[converting as usize];
                if number == u32::MAX {
                    continue;
                }
                let loss = losses[number as usize];
                let (mut last, mut first_cause) = (None, None);
                for read in epoch - 1..=epoch {
                    asked.clear();
                    asked.extend([(0, converting), (1, 0)]);
                    let mut newest = None;
                    for (of, site, for_site, bucket) in &seen {
                        if *of == read && *for_site == converting {
                            newest = Some(*bucket);
                            if !asked[2..].contains(&(2, *site)) {
                                asked.push((2, *site));
                            }
                        }
                    }
                    if newest.is_none() {
                        continue;
                    }
                    asked.push((3, converting));
                    let word = |(kind, site): (usize, u32)| (kind as u64) << 32 | u64::from(site);
                    let short = asked.iter().find(|filter| {
                        let found = spent
                            .iter()
                            .find(|it| it.0 == word(**filter) && it.1 == read);
                        found.map_or(0, |it| it.2) + loss > capacities[filter.0]
                    });
                    if let Some((kind, _)) = short {
                        first_cause = Some(first_cause.map_or(*kind, |it: usize| it.min(*kind)));
                        continue;
                    }
                    for filter in &asked {
                        match spent
                            .iter_mut()
                            .find(|it| it.0 == word(*filter) && it.1 == read)
                        {
                            Some(found) => found.2 += loss,
                            None => spent.push((word(*filter), read, loss)),
                        }
                    }
                    last = newest;
                }
                let key = u64::from(event.minute) << 32 | u64::from(event.row);
                reports[number as usize].push((key, last, first_cause));
            }
        }
    }
    let mut sums = Vec::new();
    for (querier, reports) in queriers.iter().zip(&mut reports) {
        reports.sort_unstable();
        for batch in reports.chunks_exact(querier.batch) {
            let mut kept = vec![0; usize::from(workload.buckets)];
            let mut blocked = vec![0; Limit::ALL.len()];
            for (_, bucket, cause) in batch {
                if let Some(bucket) = bucket {
                    kept[usize::from(*bucket)] += 1;
                }
                if let Some(cause) = cause {
                    blocked[kinds[*cause].limit() as usize] += 1;
                }
            }
            sums.push((kept, blocked));
        }
    }
    sums
}
