//! Planning and tuning: what is predicted is what a replay gives.
#![allow(missing_docs, clippy::unwrap_used)]
#![allow(clippy::cast_precision_loss, reason = "counts of reports")]

use bigbird::Profile;
use bigbird_lab::describe::{Description, OF_PAPER, PERCENTILES};
use bigbird_lab::plan::{Measurement, reports_of_devices};
use bigbird_lab::replay::Blocked;
use bigbird_lab::simulate::Laboratory;
use bigbird_lab::synthetic::{Population, Preset};
use bigbird_lab::tune;
use bigbird_lab::workload::{Noise, QuerierOptions, Workload};

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
        let description = Description::new(&workload(preset, seed), 1).unwrap();
        for (percentile, paper) in PERCENTILES.into_iter().zip(OF_PAPER) {
            let here = [
                &description.conversion_sites_of_device,
                &description.impression_sites_of_device,
                &description.fan_out,
            ]
            .map(|counts| counts.percentile(percentile).unwrap());
            assert_eq!(
                [2 * here[0], here[1], 2 * here[2]],
                paper,
                "p{percentile}, {preset:?}"
            );
        }
    }
}

#[test]
fn a_plan_predicts_what_a_replay_blocks_and_how_wrong_it_is() {
    let workload = workload(Preset::Published, 1);
    let options = QuerierOptions {
        // More epsilon than the paper's queriers take, so that budgets matter.
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
            noise: Noise::Paper,
            budget: 1.0,
            reports_of_device: reports_of_devices(&workload, Some(querier.site)).unwrap(),
        };
        let expected = measurement.expect(querier.epsilon(), querier.batch as f64);
        let blocked: u32 = batches
            .iter()
            .map(|batch| batch.blocked[Blocked::Querier as usize])
            .sum();
        let reports: usize = batches.iter().map(|batch| batch.size).sum();
        let share = f64::from(blocked) / reports as f64;
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

#[test]
fn capacities_of_a_percentile_serve_it() {
    let workload = workload(Preset::Published, 1);
    let description = Description::new(&workload, 1).unwrap();
    let exact = tune::exact(&workload, 1, 2).unwrap();
    for percentile in PERCENTILES {
        let cheap = tune::conservative(&description, percentile, 0.0)
            .unwrap()
            .unwrap();
        let policy = tune::capacities(1.0, &cheap, 2).unwrap();
        assert!(policy.violations(&cheap.parameters).is_empty());
        let exact = exact.parameters(percentile, 0.0).unwrap().unwrap();
        let [conversion_sites, _, fan_out] = exact.numbers;
        assert!(
            conversion_sites <= cheap.numbers[0] && fan_out <= cheap.numbers[2],
            "p{percentile}"
        );
    }
    // At the highest percentile nothing is blocked but by querier budgets.
    let all = tune::conservative(&description, 100.0, 0.0)
        .unwrap()
        .unwrap();
    let policy = tune::capacities(1.0, &all, 2).unwrap();
    let laboratory = Laboratory::new(&workload, QuerierOptions::default(), 2).unwrap();
    let outcome = laboratory.run(&policy, None).unwrap();
    for cause in [
        Blocked::Global,
        Blocked::ImpressionSite,
        Blocked::ConversionSite,
    ] {
        assert_eq!(outcome.blocked()[cause as usize], 0, "{cause:?}");
    }
}
