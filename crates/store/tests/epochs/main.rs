//! The property that the privacy guarantee rests on, tested on the whole user agent: nothing
//! outside an epoch depends on what that epoch holds or paid.
//!
//! Two worlds live the same random life. It has saves, conversions, shared conversions and shares,
//! clears of every kind, disabling and enabling, upkeep, restarts, changes of rules, and clocks
//! that step. In the second world, calls that save an impression in one chosen epoch are made, but
//! nothing is stored.
//!
//! After every step, the two worlds agree on what is stored, admitted and consumed in every other
//! epoch, on the state that epochs share, and on every report that is about other epochs only. In
//! the end, all reports together differ by no more than the epoch paid from its global budget, and
//! that is within its capacity. Before every call that measures, an explanation must predict its
//! result. The limits are small enough to be reached.
//!
//! The search stops at the first life that shows a difference, or after `BIGBIRD_LIVES` lives of
//! each kind. A user agent with one of the flaws that were once found is caught.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;
mod life;
mod look;
mod world;

use std::collections::BTreeMap;

use bigbird::{Capacity, EpochIndex, Timestamp};
use bigbird_store::{SqliteStore, StoreOptions};
use bigbird_user_agent::{Storage, UserAgent};
use common::Folder;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config as Cases, RngAlgorithm, TestRng, TestRunner};

use life::{Clocks, Life, LifeMoment, LifeStep, Memories, Tape, ToldAnswer, ToldStep, life};
use look::{StoreLook, look};
use world::{EpochFlaw, History, World};

/// Opens stores, and opens them again.
trait Home {
    type Store: Storage;

    fn open(&mut self) -> Self::Store;

    /// Closes a store, as if the process ended, and opens it again.
    fn reopen(&mut self, store: Self::Store) -> Self::Store;
}

struct InMemory;

impl Home for InMemory {
    type Store = bigbird_user_agent::MemoryStore;

    fn open(&mut self) -> Self::Store {
        bigbird_user_agent::MemoryStore::new()
    }

    fn reopen(&mut self, store: Self::Store) -> Self::Store {
        store
    }
}

struct OnDisk {
    folder: Folder,
    opened: u32,
}

impl OnDisk {
    fn new() -> Self {
        Self {
            // Nothing crashes here, so a folder in memory is enough, if the system has one.
            folder: Folder::in_memory(),
            opened: 0,
        }
    }
}

impl Home for OnDisk {
    type Store = SqliteStore;

    fn open(&mut self) -> SqliteStore {
        self.opened += 1;
        let path = self.folder.file(&format!("store-{}", self.opened));
        SqliteStore::open_or_create(path, &StoreOptions::default()).unwrap()
    }

    fn reopen(&mut self, store: SqliteStore) -> SqliteStore {
        let path = store.path().to_owned();
        store.close().unwrap();
        SqliteStore::open(path, &StoreOptions::default()).unwrap()
    }
}

/// The result of a step: the answer, if it was a call that measures, and everything that is stored.
struct SeenStep {
    told: Option<ToldStep>,
    looked: StoreLook,
}

/// Lives a life. Impressions that are saved in the epoch `without` are not stored.
fn live<H: Home>(
    home: &mut H,
    life: &Life,
    without: Option<EpochIndex>,
    flaw: Option<EpochFlaw>,
) -> (Vec<SeenStep>, History) {
    let mut config = life.config();
    let lookback_days = config.limits.max_lookback_days;
    let world = |store| World::new(store, without, flaw, lookback_days);
    let storage = world(home.open());
    let mut now = life::START;
    let moment = Timestamp(now);
    let mut agent = UserAgent::new(config.clone(), storage, Tape::default(), moment).unwrap();
    let mut seen = Vec::new();
    let mut memories = Memories::default();
    for (number, (step, hours)) in life.steps.iter().enumerate() {
        now += hours * life::HOUR;
        if let LifeStep::ChangeRules { others } = step {
            config = match others {
                true => life.other_config(),
                false => life.config(),
            };
        }
        if matches!(step, LifeStep::Restart | LifeStep::ChangeRules { .. }) {
            let World { inner, history, .. } = agent.into_storage();
            let storage = World {
                history,
                ..world(home.reopen(inner))
            };
            let moment = Timestamp(now);
            agent = UserAgent::new(config.clone(), storage, Tape::default(), moment).unwrap();
        }
        agent.randomness_mut().begin(number);
        let mut moment = LifeMoment {
            agent: &mut agent,
            memories: &mut memories,
            number,
            now,
        };
        let told = moment.happen(step);
        let looked = look(&mut agent.storage_mut().inner);
        seen.push(SeenStep { told, looked });
    }
    (seen, agent.into_storage().history)
}

/// Compares the two worlds of a life.
fn one_epoch_never_shows_in_another<H: Home>(
    home: &mut H,
    life: &Life,
    flaw: Option<EpochFlaw>,
) -> Result<(), TestCaseError> {
    let (with, history) = live(home, life, None, flaw);
    let Some(changed) = changed(life, &history) else {
        return Ok(());
    };
    let (without, _) = live(home, life, Some(changed), flaw);
    // The difference of all reports together, in µε times twice the largest value.
    let mut moved = 0;
    for (number, (one, other)) in with.into_iter().zip(without).enumerate() {
        let step = &life.steps[number];
        let at = format!("epoch {} shows at step {number}, {step:?}", changed.0);
        prop_assert_eq!(
            one.looked.elsewhere(changed),
            other.looked.elsewhere(changed),
            "{}",
            at
        );
        let (mut one, mut other) = match (one.told, other.told) {
            (Some(one), Some(other)) => (one, other),
            (one, other) => {
                prop_assert_eq!(one, other, "{}", at);
                continue;
            }
        };
        prop_assert_eq!(&one.epochs, &other.epochs, "{}", at);
        if let (ToldAnswer::Report(one, epsilon), ToldAnswer::Report(other, _)) =
            (&one.answer, &other.answer)
        {
            let buckets = one.iter().zip(other);
            moved += buckets.map(|(a, b)| u64::from(a.abs_diff(*b))).sum::<u64>() * epsilon;
        }
        let about = |told: &ToldStep| {
            told.epochs
                .as_ref()
                .is_some_and(|it| it.contains(&changed.0))
        };
        if !about(&one) {
            prop_assert_eq!(&one.answer, &other.answer, "{}", at);
        }
        // The shares of an object that was paid for in the changed epoch list that epoch.
        one.fates.remove(&changed.0);
        other.fates.remove(&changed.0);
        prop_assert_eq!(one.fates, other.fates, "{}", at);
    }
    let config = life.config();
    if config.policy.capacities().global_budget != Capacity::Unlimited {
        // The guarantee itself: even if all queriers collude, everything that is released differs
        // by no more than the epoch paid.
        let paid = history.global.get(&changed).copied().unwrap_or(0);
        let scale = 2 * u64::from(life::MAX_VALUE);
        prop_assert!(
            moved <= paid * scale,
            "epoch {} paid {} µε, but all reports together differ by {} µε",
            changed.0,
            paid,
            moved / scale
        );
        let capacity = config
            .policy
            .capacities()
            .global_budget
            .amount()
            .unwrap()
            .get();
        for (epoch, charged) in history.global {
            prop_assert!(charged <= capacity, "epoch {} paid {} µε", epoch.0, charged);
        }
    }
    Ok(())
}

/// The epoch that has no impressions in the second world.
fn changed(life: &Life, History { saved, .. }: &History) -> Option<EpochIndex> {
    saved.get(life.choice % saved.len().max(1)).copied()
}

/// The number of lives to try.
fn lives(usually: u32) -> u32 {
    let given = std::env::var("BIGBIRD_LIVES").ok();
    given.map_or(usually, |lives| lives.parse().unwrap())
}

fn search<H: Home>(clocks: Clocks, usually: u32, home: impl Fn() -> H) {
    let cases = Cases {
        cases: lives(usually),
        failure_persistence: None,
        ..Cases::default()
    };
    TestRunner::new(cases)
        .run(&life(clocks), |life| {
            one_epoch_never_shows_in_another(&mut home(), &life, None)
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn one_epoch_never_shows_in_another_in_memory() {
    search(Clocks::Forward, 2000, || InMemory);
}

#[test]
fn one_epoch_never_shows_in_another_in_memory_with_clocks_that_step_back() {
    search(Clocks::BothWays, 2000, || InMemory);
}

#[test]
fn one_epoch_never_shows_in_another_on_disk() {
    search(Clocks::Forward, 100, OnDisk::new);
}

#[test]
fn one_epoch_never_shows_in_another_on_disk_with_clocks_that_step_back() {
    search(Clocks::BothWays, 100, OnDisk::new);
}

/// The lives reach every limit in the epoch that differs. Otherwise the search would not test it.
#[test]
fn lives_reach_every_limit() {
    let mut causes: BTreeMap<String, u32> = BTreeMap::new();
    let mut evicted_objects = 0;
    let mut runner = TestRunner::deterministic();
    for _ in 0..400 {
        let life = life(Clocks::BothWays)
            .new_tree(&mut runner)
            .unwrap()
            .current();
        let (seen, history) = live(&mut InMemory, &life, None, None);
        evicted_objects += history.evicted_objects;
        let Some(changed) = changed(&life, &history) else {
            continue;
        };
        for told in seen.into_iter().filter_map(|seen| seen.told) {
            if let Some(fate) = told.fates.get(&changed.0) {
                *causes.entry(format!("{fate:?}")).or_default() += 1;
            }
        }
    }
    let expected = [
        "Dropped(DomainCap)",
        "Dropped(Filter(ConversionSiteQuota))",
        "Dropped(Filter(GlobalBudget))",
        "Dropped(Filter(ImpressionSiteQuota))",
        "Dropped(Filter(QuerierBudget))",
        "Dropped(Pruned)",
        "NothingRelevant",
        "Passed",
    ];
    for cause in expected {
        assert!(
            causes.get(cause).is_some_and(|&count| count >= 5),
            "{cause}: {causes:?}"
        );
    }
    assert!(
        evicted_objects > 100,
        "only {evicted_objects} objects dropped"
    );
}

/// The search finds every leak of [`EpochFlaw`].
#[test]
fn every_flaw_is_noticed() {
    for flaw in EpochFlaw::ALL {
        let cases = Cases {
            cases: 60_000,
            max_shrink_iters: 0,
            failure_persistence: None,
            ..Cases::default()
        };
        // The lives are the same in every run. The search stops at the first that shows the flaw.
        let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
        let noticed = TestRunner::new_with_rng(cases, rng).run(&life(Clocks::BothWays), |life| {
            one_epoch_never_shows_in_another(&mut InMemory, &life, Some(flaw))
        });
        assert!(noticed.is_err(), "{flaw:?} was not noticed");
    }
}
