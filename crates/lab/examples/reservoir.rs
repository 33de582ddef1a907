//! Compares two ways of choosing Sybils at random, over several seeds:
//! `cargo run --release -p bigbird-lab --example reservoir -- [PREPARED-FOLDER] [SEEDS]`.
//!
//! Our random attacker visits Sybils in random order. The paper's artifact chooses them with a
//! reservoir (`choose_multiple` of the crate `rand`), which returns a random *set* in an order that
//! is not random: an item that begins in the reservoir keeps its place in it. The domain cap lets
//! only the first ones pass, so in the artifact some Sybils act twice as often as others, and some
//! never. See `docs/adr/0043-random-means-uniform.md`.
//!
//! The folder has Criteo files as the artifact prepares them. Without one, the population is
//! synthetic.

use bigbird::{FilterKind, Policy, PolicyError, Profile, SiteId};
use bigbird_lab::attack::attackers::Random;
use bigbird_lab::attack::{Attack, AttackStage, Attacker, Strategy, Strength};
use bigbird_lab::evaluation::{ConfidenceInterval, Laboratory, QuerierOptions};
use bigbird_lab::workload::criteo::{PreparedOptions, read_prepared};
use bigbird_lab::workload::synthetic::{Population, Preset};

/// The random attacker of the artifact.
struct Reservoir;

impl Attacker for Reservoir {
    fn name(&self) -> &'static str {
        "reservoir"
    }

    fn strategy(&self, _: &Strength) -> Box<dyn Strategy + '_> {
        Box::new(|stage: &mut AttackStage<'_>| {
            let Strength { sybils, visits, .. } = stage.strength();
            let listed = (sybils * 35 + 50) / 100;
            let visited = choose_multiple(stage, 0..sybils, visits);
            let mut converted: Vec<u32> = Vec::new();
            for &sybil in &visited {
                stage.save(sybil);
                let others = (0..sybils).filter(|it| !visited.contains(it));
                let fresh = others.clone().filter(|it| !converted.contains(it));
                let mut list = choose_multiple(stage, fresh, listed);
                let short = listed.saturating_sub(u32::try_from(list.len()).unwrap_or(u32::MAX));
                let known = list.clone();
                let rest = others.filter(|it| !known.contains(it));
                list.extend(choose_multiple(stage, rest, short));
                let sites: Vec<SiteId> = list.iter().map(|it| stage.site_of(*it)).collect();
                stage.request(sybil, &sites);
                converted.extend(list);
            }
        })
    }
}

/// What `IteratorRandom::choose_multiple` of `rand` 0.8 does.
fn choose_multiple(
    stage: &mut AttackStage<'_>,
    mut items: impl Iterator<Item = u32>,
    amount: u32,
) -> Vec<u32> {
    let mut reservoir: Vec<u32> = items.by_ref().take(amount as usize).collect();
    for (number, item) in (amount..).zip(items) {
        let place = stage.random_below(number + 1);
        if let Some(slot) = reservoir.get_mut(place as usize) {
            *slot = item;
        }
    }
    reservoir
}

/// The paper's policy with another impression-site quota.
fn policy(quota: Option<f64>) -> Result<Policy, PolicyError> {
    let policy = Profile::BigBird.policy().to_builder();
    match quota {
        Some(quota) => policy.impression_site_quota(quota),
        None => policy.unlimited(FilterKind::ImpressionSiteQuota),
    }
    .build()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let workload = match arguments.next() {
        Some(folder) => read_prepared(folder.as_ref(), &PreparedOptions::default())?,
        None => {
            let population = Population {
                preset: Preset::Published,
                scale: 0.05,
                seed: 1,
            };
            population.generate()
        }
    };
    let seeds: u64 = match arguments.next() {
        Some(seeds) => seeds.parse()?,
        None => 8,
    };
    let laboratory = Laboratory::new(&workload, QuerierOptions::default(), 2)?;
    println!("quota  visits   median error: mean over {seeds} seeds, 95% interval");
    for quota in [Some(2.0), Some(3.0), Some(4.0), None] {
        let policy = policy(quota)?;
        let random = Random::default();
        let mut means = Vec::new();
        for attacker in [&random as &dyn Attacker, &Reservoir] {
            let mut medians = Vec::new();
            for seed in 1..=seeds {
                let attack = Attack {
                    attacker,
                    strength: Strength::of_paper(Some(2)),
                    seed,
                };
                let outcome = laboratory.run(&policy, Some(attack))?;
                medians.extend(outcome.error(50.0).map(|median| 100.0 * median));
            }
            let Some(interval) = ConfidenceInterval::of(&medians) else {
                continue;
            };
            let quota = quota.map_or("none".to_owned(), |quota| quota.to_string());
            let ConfidenceInterval {
                mean, low, high, ..
            } = interval;
            let name = attacker.name();
            println!("{quota:<6} {name:<9} {mean:.3}% ({low:.3} to {high:.3})");
            means.push(medians.iter().sum::<f64>());
        }
        if let [ours, theirs] = means[..] {
            println!(
                "       ours is {:+.1}% above",
                100.0 * (ours / theirs - 1.0)
            );
        }
    }
    Ok(())
}
