//! A replay allocates for its buffers, and nothing for each event.
#![allow(missing_docs, clippy::unwrap_used)]
#![allow(unsafe_code, reason = "a counting allocator cannot be written without")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use bigbird::Profile;
use bigbird_lab::attack::attackers::{Omniscient, Random};
use bigbird_lab::attack::{Attack, Attacker, Strength};
use bigbird_lab::replay::Replay;
use bigbird_lab::workload::synthetic::{Population, Preset};
use bigbird_lab::workload::{QuerierOptions, Workload};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn workload(scale: f64) -> Workload {
    let population = Population {
        preset: Preset::Published,
        scale,
        seed: 1,
    };
    population.generate()
}

/// How often memory is asked for, and for how many events.
fn allocations(workload: &Workload, attacker: Option<&dyn Attacker>) -> (u64, u64) {
    let options = QuerierOptions {
        min_conversions_a_day: 10,
        ..QuerierOptions::default()
    };
    let survey = workload.survey(&options).unwrap();
    let policy = Profile::BigBird.policy();
    let replay = Replay {
        workload,
        survey: &survey,
        policy: &policy,
        lookback_epochs: 1,
        threads: 1,
        attack: attacker.map(|attacker| Attack {
            attacker,
            strength: Strength::of_paper(Some(2)),
            seed: 1,
        }),
        count_sites: false,
    };
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    let replayed = replay.run().unwrap();
    let count = ALLOCATIONS.load(Ordering::Relaxed) - before;
    (count, replayed.given.len() as u64)
}

#[test]
fn no_event_allocates_once_buffers_are_large_enough() {
    let (small, large) = (workload(0.01), workload(0.04));
    let random = Random::default();
    for attacker in [None, Some(&random as &dyn Attacker), Some(&Omniscient)] {
        let (few, few_events) = allocations(&small, attacker);
        let (many, many_events) = allocations(&large, attacker);
        // There are more queriers in a larger population, and each has a query; and now and then a
        // device is busier than all before.
        let more = many.saturating_sub(few);
        let events = many_events - few_events;
        assert!(more * 100 < events, "{more} more for {events} more events");
    }
}
