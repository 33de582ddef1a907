//! The synthetic population: its results are the same for any number of threads, and it is shaped
//! like the paper's data.
#![allow(missing_docs, clippy::unwrap_used)]

use bigbird::{Limit, Policy, Profile};
use std::sync::Arc;

use bigbird_lab::attack::attackers::{Omniscient, Random};
use bigbird_lab::attack::{Attack, Attacker, Strength};
use bigbird_lab::evaluation::QuerierOptions;
use bigbird_lab::evaluation::{Laboratory, RunResult};
use bigbird_lab::workload::synthetic::{Population, Preset};
use bigbird_lab::workload::{EventKind, Workload};

fn workload() -> Workload {
    Population {
        preset: Preset::Published,
        scale: 0.05,
        seed: 1,
    }
    .generate()
}

const RANDOM: Random = Random { share: 0.35 };

fn attack(attacker: &dyn Attacker, cap: Option<u32>) -> Attack<'_> {
    let strength = Strength {
        conversion_sites: 1,
        ..Strength::of_paper(cap)
    };
    Attack {
        attacker,
        strength,
        seed: 1,
    }
}

#[test]
fn devices_do_what_the_papers_do() {
    let workload = workload();
    let (mut impressions, mut conversions) = (Vec::new(), Vec::new());
    for number in 0..workload.parts() {
        let part = workload.part(number).unwrap();
        for device in 0..part.devices() {
            let shown = part
                .range(device)
                .filter(|at| matches!(part.event(*at).kind, EventKind::Impression { .. }))
                .count();
            impressions.push(shown);
            conversions.push(part.range(device).len() - shown);
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "counts of devices")]
    let mean = |counts: &[usize]| counts.iter().sum::<usize>() as f64 / counts.len() as f64;
    assert!((mean(&impressions) / 3.29 - 1.0).abs() < 0.02);
    assert!((mean(&conversions) / 4.0 - 1.0).abs() < 0.02);
    let median = |counts: Vec<usize>| {
        let mut counts = counts;
        counts.sort_unstable();
        counts[counts.len() / 2]
    };
    assert_eq!(median(impressions), 2);
    let converting: Vec<usize> = conversions.into_iter().filter(|count| *count > 0).collect();
    assert_eq!(median(converting), 4);
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let workload = workload();
    let run = |threads| -> Arc<RunResult> {
        let laboratory = Laboratory::new(&workload, QuerierOptions::default(), threads).unwrap();
        let attack = attack(&RANDOM, Some(2));
        laboratory
            .run(&Profile::BigBird.policy(), Some(attack))
            .unwrap()
    };
    let one = run(1);
    assert!(!one.batches.is_empty());
    assert_eq!(one, run(2));
    assert_eq!(one, run(5));
}

/// The shape of the paper's results.
#[test]
fn quotas_keep_attackers_from_draining_the_global_budget() {
    let workload = workload();
    let laboratory = Laboratory::new(&workload, QuerierOptions::default(), 2).unwrap();
    let quota = |epsilon: f64| {
        let policy = Profile::BigBird.policy().to_builder();
        policy.impression_site_quota(epsilon).build().unwrap()
    };
    let median = |policy: &Policy, attack: Option<Attack<'_>>| {
        let outcome = laboratory.run(policy, attack).unwrap();
        (outcome.error(50.0).unwrap(), outcome)
    };
    let (alone, _) = median(&Profile::CookieMonster.policy(), None);
    let (with_quota, _) = median(&quota(2.0), None);
    assert!(
        (with_quota / alone - 1.0).abs() < 0.02,
        "{with_quota} and {alone}"
    );
    let (too_small, _) = median(&quota(0.5), None);
    assert!(too_small > 2.0 * alone, "{too_small} and {alone}");

    let random = attack(&RANDOM, Some(2));
    let no_cap = attack(&RANDOM, None);
    let (drained, outcome) = median(&Profile::GlobalOnly.policy(), Some(no_cap));
    assert!(drained > 5.0 * alone, "{drained} and {alone}");
    assert!(outcome.blocked_share(Limit::GlobalBudget).unwrap() > 0.3);
    let (held, _) = median(&quota(2.0), Some(random));
    assert!(held < 1.3 * alone, "{held} and {alone}");
    let (at_one, _) = median(&quota(1.0), Some(random));
    assert!(at_one < 1.3 * alone, "{at_one} and {alone}");
    let (at_three, outcome) = median(&quota(3.0), Some(random));
    assert!(at_three > held, "{at_three} and {held}");
    let blocked = |cause| outcome.blocked()[cause as usize];
    assert!(blocked(Limit::GlobalBudget) > blocked(Limit::QuerierBudget));
    let (loose, outcome) = median(&quota(5.0), Some(random));
    assert!(loose > 1.3 * held, "{loose} and {held}");
    let most = Limit::ALL
        .into_iter()
        .max_by_key(|cause| outcome.blocked()[*cause as usize]);
    assert_eq!(most, Some(Limit::GlobalBudget));

    let omniscient = attack(&Omniscient, Some(2));
    let (worse, _) = median(&quota(2.0), Some(omniscient));
    assert!(worse > 2.0 * held, "{worse} and {held}");
    let one = Profile::BigBird
        .policy()
        .to_builder()
        .domain_cap(1)
        .build()
        .unwrap();
    let omniscient = attack(&Omniscient, Some(1));
    let (capped, _) = median(&one, Some(omniscient));
    assert!(capped < 0.6 * worse, "{capped} and {worse}");
    assert!(capped < 2.0 * alone, "{capped} and {alone}");

    let of = |sybils, first_rank| {
        let attack = attack(&Omniscient, Some(2));
        let strength = Strength {
            sybils,
            first_rank,
            ..attack.strength
        };
        median(&quota(2.0), Some(Attack { strength, ..attack })).0
    };
    let (few, many) = (of(25, 1), of(100, 1));
    assert!(
        many < 1.05 * few && of(5, 1) < 0.6 * few,
        "{few} and {many}"
    );
    let (less, least) = (of(25, 5), of(25, 41));
    assert!(less < few && least < less, "{few}, {less} and {least}");
}
