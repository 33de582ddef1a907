//! Planning and tuning: predictions agree with the results of a replay.
#![allow(missing_docs, clippy::unwrap_used)]
#![allow(clippy::cast_precision_loss, reason = "counts of reports")]

use bigbird::{Limit, Policy, Profile};
use bigbird_lab::describe::Description;
use bigbird_lab::evaluation::Laboratory;
use bigbird_lab::evaluation::{NoiseModel, QuerierOptions};
use bigbird_lab::paper::numbers::paper_numbers;
use bigbird_lab::plan::{Measurement, reports_of_devices};
use bigbird_lab::tune;
use bigbird_lab::workload::synthetic::{Population, Preset};
use bigbird_lab::workload::{EventKind, Workload, WorkloadEvent};

fn workload(preset: Preset, seed: u64) -> Workload {
    let population = Population {
        preset,
        scale: 0.05,
        seed,
    };
    population.generate()
}

#[test]
fn the_percentile_table_is_the_papers() {
    for (preset, seed) in [(Preset::Published, 1), (Preset::AttackFitted, 2)] {
        let population = Population {
            preset,
            scale: 0.1,
            seed,
        };
        let description = Description::new(&population.generate(), 1).unwrap();
        for paper in &paper_numbers().workload_table.rows {
            let here = description.at(paper.percentile);
            assert_eq!(
                [2 * here[0], here[1], 2 * here[2]],
                [
                    paper.conversion_sites,
                    paper.impression_sites,
                    paper.fan_out
                ],
                "p{}, {preset:?}",
                paper.percentile
            );
        }
    }
}

#[test]
fn a_plan_predicts_what_a_replay_blocks_and_how_wrong_it_is() {
    let workload = workload(Preset::Published, 1);
    let options = QuerierOptions {
        // A smaller target error than the paper's needs more epsilon, so that budgets matter.
        target_error: 0.02,
        ..QuerierOptions::default()
    };
    let laboratory = Laboratory::new(&workload, options, 2).unwrap();
    let outcome = laboratory
        .run(&Profile::CookieMonster.policy(), None)
        .unwrap();
    let (mut checked, mut off) = (0, 0.0);
    for querier in laboratory.queriers() {
        let batches: Vec<_> = outcome
            .batches
            .iter()
            .filter(|batch| batch.conversion_site == querier.site)
            .collect();
        if batches.is_empty() {
            continue;
        }
        let full: Vec<f64> = (0..5)
            .map(|bucket| batches.iter().map(|batch| batch.full[bucket] as f64).sum())
            .collect();
        let sum: f64 = full.iter().sum();
        let measurement = Measurement {
            shares: full.iter().map(|count| count / sum).collect(),
            tau: options.tau,
            noise: NoiseModel::Paper,
            budget: 1.0,
            reports_of_device: reports_of_devices(&workload, Some(querier.site), 1).unwrap(),
        };
        let expected = measurement.expect(querier.epsilon(), querier.batch as f64);
        let blocked: u64 = batches
            .iter()
            .map(|batch| batch.blocked[Limit::QuerierBudget as usize])
            .sum();
        let reports: u64 = batches.iter().map(|batch| batch.size).sum();
        let share = blocked as f64 / reports as f64;
        assert!(
            (expected.blocked - share).abs() < 0.02,
            "{expected:?}, not {share}"
        );
        let errors: f64 = batches.iter().map(|batch| batch.rmsre).sum();
        off += (expected.error / (errors / batches.len() as f64) - 1.0).abs();
        checked += 1;
    }
    assert!(checked >= 5);
    assert!(
        off / f64::from(checked) < 0.1,
        "{}",
        off / f64::from(checked)
    );
}

/// One shop and one newspaper a day, on twenty days. The parameters count sites per epoch, which is
/// a day here.
#[test]
fn parameters_are_of_an_epoch() {
    let mut workload = Workload::default();
    workload.conversion_site_names = (0..20).map(|day| format!("shop{day}")).collect();
    workload.impression_site_names = (0..20).map(|day| format!("news{day}")).collect();
    let mut events = Vec::new();
    for day in 0..20_u16 {
        let (minute, site) = (u32::from(day) * 1440, u32::from(day));
        let event = |minute, kind| WorkloadEvent {
            minute,
            epoch: day,
            conversion_site: site,
            kind,
            row: minute,
        };
        events.push(event(minute, EventKind::Impression { site, bucket: 0 }));
        let conversion = EventKind::Conversion {
            value: 1,
            came_from: None,
        };
        events.push(event(minute + 5, conversion));
        events.push(event(minute + 6, conversion));
    }
    workload.push_device(&mut events);
    let description = Description::new(&workload, 0).unwrap();
    let cheap = tune::conservative(&description, 100.0, 0.0)
        .unwrap()
        .unwrap();
    let exact = tune::exact(&workload, 0, 1).unwrap();
    let exact = exact.parameters(100.0, 0.0).unwrap().unwrap();
    assert_eq!((cheap.numbers, exact.numbers), ([1, 1, 1], [1, 1, 1]));
    // Every day has two reports, also the first one. A longer lookback does not add any, because
    // the days before have no impression for the same shop.
    for lookback in [0, 1, 5] {
        let counts = reports_of_devices(&workload, None, lookback).unwrap();
        assert_eq!(
            counts.iter().filter(|it| it.1 > 0).collect::<Vec<_>>(),
            [(2, 20)]
        );
    }
}

/// Two shops have an ad on the same day. One converts on that day, the other on the next.
#[test]
fn parameters_reach_as_far_as_conversions_look_back() {
    let mut workload = Workload::default();
    workload.conversion_site_names = vec!["early".to_owned(), "late".to_owned()];
    workload.impression_site_names = vec!["news".to_owned()];
    let event = |minute, conversion_site, kind| WorkloadEvent {
        minute,
        epoch: u16::try_from(minute / 1440).unwrap(),
        conversion_site,
        kind,
        row: minute,
    };
    let impression = EventKind::Impression { site: 0, bucket: 0 };
    let conversion = EventKind::Conversion {
        value: 1,
        came_from: Some(0),
    };
    workload.push_device(&mut [
        event(0, 0, impression),
        event(1, 1, impression),
        event(5, 0, conversion),
        event(1445, 1, conversion),
    ]);
    for (lookback, expected) in [(0, [1, 1, 1]), (1, [2, 1, 2])] {
        let description = Description::new(&workload, lookback).unwrap();
        let cheap = tune::conservative(&description, 100.0, 0.0)
            .unwrap()
            .unwrap();
        let exact = tune::exact(&workload, lookback, 1).unwrap();
        let exact = exact.parameters(100.0, 0.0).unwrap().unwrap();
        assert_eq!(
            (cheap.numbers, exact.numbers),
            (expected, expected),
            "{lookback}"
        );
    }
}

/// Conversions have values from 1 to 4. Sums, noise and epsilons take the values into account.
#[test]
fn sums_are_of_values() {
    let mut workload = Workload::default();
    workload.conversion_site_names = vec!["shop".to_owned()];
    workload.impression_site_names = vec!["news".to_owned()];
    let mut sums = [0; 5];
    for device in 0..100_u32 {
        let (bucket, value) = (device % 5, device % 4 + 1);
        sums[bucket as usize] += u64::from(value);
        let event = |minute, kind| WorkloadEvent {
            minute,
            epoch: 0,
            conversion_site: 0,
            kind,
            row: 2 * device,
        };
        let bucket = u16::try_from(bucket).unwrap();
        workload.push_device(&mut [
            event(device, EventKind::Impression { site: 0, bucket }),
            event(
                device + 1,
                EventKind::Conversion {
                    value,
                    came_from: None,
                },
            ),
        ]);
    }
    let options = QuerierOptions {
        min_conversions_a_day: 1,
        batch_days: 1,
        min_batch: 100,
        ..QuerierOptions::default()
    };
    let laboratory = Laboratory::new(&workload, options, 1).unwrap();
    let plenty = Profile::CookieMonster
        .policy()
        .to_builder()
        .querier_budget(100.0)
        .build()
        .unwrap();
    let outcome = laboratory.run(&plenty, None).unwrap();
    let [batch] = outcome.batches.as_slice() else {
        panic!("{outcome:?}");
    };
    assert_eq!((&batch.full[..], &batch.kept[..]), (&sums[..], &sums[..]));
    // The sum of 250 is divided equally over five buckets, and noise alone gives an error of 5%.
    let noise_scale = 0.05 * 250.0 / (2.0_f64 * 25.0).sqrt();
    assert!((batch.noise_scale / noise_scale - 1.0).abs() < 1e-12);
    assert!((batch.epsilon - 4.0 / noise_scale).abs() < 1e-12);
    assert!((batch.rmsre / 0.05 - 1.0).abs() < 0.1, "{}", batch.rmsre);
    // A conversion with a smaller value costs less: a budget of half the epsilon pays for values up
    // to 2.
    let half = Profile::CookieMonster.policy().to_builder();
    let half = half
        .querier_budget(batch.epsilon / 2.0 + 1e-5)
        .build()
        .unwrap();
    let outcome = laboratory.run(&half, None).unwrap();
    let kept: u64 = outcome.batches[0].kept.iter().sum();
    assert_eq!(kept, 25 + 2 * 25);
}

#[test]
fn a_laboratory_refuses_what_it_cannot_ask() {
    let mut workload = Workload::default();
    workload.conversion_site_names = vec!["shop".to_owned()];
    workload.impression_site_names = vec!["news".to_owned()];
    let conversion = |minute, value| WorkloadEvent {
        minute,
        epoch: 0,
        conversion_site: 0,
        kind: EventKind::Conversion {
            value,
            came_from: None,
        },
        row: minute,
    };
    workload.push_device(&mut [
        conversion(0, 1),
        conversion(1, 1),
        conversion(2, u32::MAX >> 1),
    ]);
    let options = QuerierOptions {
        min_conversions_a_day: 1,
        min_batch: 1,
        batch_days: 1,
        target_error: 1e-6,
        ..QuerierOptions::default()
    };
    let error = Laboratory::new(&workload, options, 1)
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("the querier shop needs epsilon "),
        "{error}"
    );
    assert!(
        error.contains(": epsilon must be in (0, 4294], got "),
        "{error}"
    );
    let error = Laboratory::with_lookback(&workload, options, 4096, 1).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a conversion can look back at most 4095 epochs, got 4096"
    );
}

/// The digest keeps results of another workload from being used again.
#[test]
fn a_digest_tells_workloads_apart() {
    let event = |minute| WorkloadEvent {
        minute,
        epoch: 0,
        conversion_site: 0,
        kind: EventKind::Impression { site: 0, bucket: 0 },
        row: minute,
    };
    let digest = |devices: &[&[u32]], site: &str| {
        let mut workload = Workload::default();
        workload.conversion_site_names = vec![site.to_owned()];
        workload.impression_site_names = vec!["news".to_owned()];
        for minutes in devices {
            let mut events: Vec<WorkloadEvent> =
                minutes.iter().map(|minute| event(*minute)).collect();
            workload.push_device(&mut events);
        }
        workload.digest().unwrap()
    };
    let first = digest(&[&[1, 2], &[3]], "shop");
    assert_eq!(first, digest(&[&[1, 2], &[3]], "shop"));
    assert_ne!(first, digest(&[&[1], &[2, 3]], "shop"));
    assert_ne!(first, digest(&[&[1, 2], &[3]], "stop"));
    assert_ne!(first, digest(&[&[1, 2], &[4]], "shop"));
}

#[test]
fn capacities_of_a_percentile_serve_it() {
    let workload = workload(Preset::Published, 1);
    let description = Description::new(&workload, 1).unwrap();
    let exact = tune::exact(&workload, 1, 2).unwrap();
    for percentile in paper_numbers()
        .workload_table
        .rows
        .iter()
        .map(|row| row.percentile)
    {
        let cheap = tune::conservative(&description, percentile, 0.0)
            .unwrap()
            .unwrap();
        let policy = Policy::for_workload(1.0, &cheap.parameters, 2).unwrap();
        assert!(policy.violations(&cheap.parameters).is_empty());
        let exact = exact.parameters(percentile, 0.0).unwrap().unwrap();
        // Exact counts of M leave out devices that never convert, so they can be larger.
        let [conversion_sites, _, fan_out] = exact.numbers;
        assert!(
            conversion_sites <= cheap.numbers[0] && fan_out <= cheap.numbers[2],
            "p{percentile}"
        );
    }
    // At the highest percentile, only querier budgets block reports.
    let all = tune::conservative(&description, 100.0, 0.0)
        .unwrap()
        .unwrap();
    let policy = Policy::for_workload(1.0, &all.parameters, 2).unwrap();
    let laboratory = Laboratory::new(&workload, QuerierOptions::default(), 2).unwrap();
    let outcome = laboratory.run(&policy, None).unwrap();
    for cause in [
        Limit::GlobalBudget,
        Limit::ImpressionSiteQuota,
        Limit::ConversionSiteQuota,
    ] {
        assert_eq!(outcome.blocked()[cause as usize], 0, "{cause:?}");
    }
}
