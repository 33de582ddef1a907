//! A replay allocates memory for its buffers, but not for each event.
#![allow(missing_docs, clippy::unwrap_used)]

use bigbird::Profile;
use bigbird_lab::attack::attackers::{FreeDenial, Omniscient, Random, Strongest};
use bigbird_lab::attack::{Attack, Attacker, Strength};
use bigbird_lab::evaluation::{Laboratory, QuerierOptions};
use bigbird_lab::workload::Workload;
use bigbird_lab::workload::synthetic::{Population, Preset};
use bigbird_testing::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

fn workload(scale: f64) -> Workload {
    let population = Population {
        preset: Preset::Published,
        scale,
        seed: 1,
    };
    population.generate()
}

/// The number of allocations of a replay, and the number of events.
fn allocations(workload: &Workload, attacker: Option<&dyn Attacker>) -> (u64, u64) {
    let options = QuerierOptions {
        min_conversions_a_day: 10,
        ..QuerierOptions::default()
    };
    let laboratory = Laboratory::new(workload, options, 1).unwrap();
    let policy = Profile::BigBird.policy();
    let attack = attacker.map(|attacker| Attack {
        attacker,
        strength: Strength::of_paper(Some(2)),
        seed: 1,
    });
    let before = ALLOCATOR.allocations();
    laboratory.observe(&policy, attack, || ()).unwrap();
    let count = ALLOCATOR.allocations() - before;
    (count, workload.len() as u64)
}

#[test]
fn no_event_allocates_once_buffers_are_large_enough() {
    let (small, large) = (workload(0.01), workload(0.04));
    let random = Random::default();
    let attackers: [&dyn Attacker; 4] = [&random, &Omniscient, &Strongest, &FreeDenial];
    for attacker in std::iter::once(None).chain(attackers.map(Some)) {
        let (few, few_events) = allocations(&small, attacker);
        let (many, many_events) = allocations(&large, attacker);
        // A larger population has more queriers, and each needs a query. Sometimes a device is
        // busier than all before, so that a buffer grows.
        let more = many.saturating_sub(few);
        let events = many_events - few_events;
        assert!(more * 100 < events, "{more} more for {events} more events");
    }
}
