//! What makes the guarantee sound, on the whole user agent: nothing outside an epoch depends on what
//! that epoch holds or paid.
//!
//! Two worlds live the same random life: saves, conversions, shared conversions and shares, clears
//! of every kind, switching off and on, cleaning up, restarts, and clocks that step. In the other
//! world, what is saved in one epoch is called and not stored. After every step, what is stored,
//! admitted and consumed in every other epoch is the same, so is the state that epochs share, and so
//! is every report about other epochs alone. Limits are small enough to be reached.
//!
//! The search stops at the first life that shows a difference, and at `BIGBIRD_LIVES` lives of each
//! kind. A user agent with one of the flaws that were once found is caught.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;
mod life;
mod look;
mod world;

use bigbird::EpochIndex;
use bigbird_attribution::{Config, Storage, UserAgent};
use bigbird_store::SqliteStore;
use common::{Folder, options};
use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, RngAlgorithm, TestRng, TestRunner};

use life::{Clocks, Life, Step, Tape, Told, life};
use look::{Look, Looked};
use world::{Flaw, World};

/// Opens a store, or opens it again.
trait Home {
    type Store: Storage + Look;

    fn open(&mut self, config: &Config) -> Self::Store;

    /// The process ends: the store is closed, and what it leaves behind is opened.
    fn reopen(&mut self, store: Self::Store, config: &Config) -> Self::Store;
}

struct InMemory;

impl Home for InMemory {
    type Store = bigbird_attribution::Memory;

    fn open(&mut self, config: &Config) -> Self::Store {
        bigbird_attribution::Memory::new(&config.policy, config.store_limits)
    }

    fn reopen(&mut self, store: Self::Store, _: &Config) -> Self::Store {
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
            // Nothing crashes here, so memory will do, if the system has such a folder.
            folder: Folder::in_memory(),
            opened: 0,
        }
    }
}

impl Home for OnDisk {
    type Store = SqliteStore;

    fn open(&mut self, config: &Config) -> SqliteStore {
        self.opened += 1;
        let path = self.folder.file(&format!("store-{}", self.opened));
        SqliteStore::open_or_create(path, &options(config)).unwrap()
    }

    fn reopen(&mut self, store: SqliteStore, config: &Config) -> SqliteStore {
        let path = store.path().to_owned();
        store.close().unwrap();
        SqliteStore::open(path, &options(config)).unwrap()
    }
}

/// What came of a step: what a page was told, and everything that is stored.
struct Seen {
    told: Option<Told>,
    looked: Looked,
}

/// Lives a life, without what is saved in an epoch, and says also which epochs were saved in.
fn live<H: Home>(
    home: &mut H,
    life: &Life,
    without: Option<EpochIndex>,
    flaw: Option<Flaw>,
) -> (Vec<Seen>, Vec<EpochIndex>) {
    let config = life.config();
    let world = |store| World::new(store, without, flaw, config.limits.max_lookback_days);
    let storage = world(home.open(&config));
    let mut agent = UserAgent::new(config.clone(), storage, Tape::default()).unwrap();
    let mut now = life::START;
    let mut seen = Vec::new();
    let mut conversions = Vec::new();
    for (number, (step, hours)) in life.steps.iter().enumerate() {
        now += hours * life::HOUR;
        agent.randomness_mut().begin(number);
        if matches!(step, Step::Restart) {
            let World { inner, saved, .. } = agent.into_storage();
            let storage = World {
                saved,
                ..world(home.reopen(inner, &config))
            };
            agent = UserAgent::new(config.clone(), storage, Tape::default()).unwrap();
        }
        let told = life::happen(&mut agent, step, now, &mut conversions);
        let looked = agent.storage_mut().inner.look();
        seen.push(Seen { told, looked });
    }
    (seen, agent.into_storage().saved)
}

/// Compares the two worlds of a life.
fn one_epoch_never_shows_in_another<H: Home>(
    home: &mut H,
    life: &Life,
    flaw: Option<Flaw>,
) -> Result<(), TestCaseError> {
    let (with, saved) = live(home, life, None, flaw);
    let Some(&changed) = saved.get(life.choice % saved.len().max(1)) else {
        return Ok(());
    };
    let (without, _) = live(home, life, Some(changed), flaw);
    for (number, (one, other)) in with.into_iter().zip(without).enumerate() {
        let step = &life.steps[number];
        let at = format!("epoch {} shows at step {number}, {step:?}", changed.0);
        prop_assert_eq!(
            one.looked.elsewhere(changed),
            other.looked.elsewhere(changed),
            "{}",
            at
        );
        let (Some(one), Some(other)) = (one.told, other.told) else {
            continue;
        };
        prop_assert_eq!(&one.epochs, &other.epochs, "{}", at);
        let about = one
            .epochs
            .as_ref()
            .is_some_and(|it| it.contains(&changed.0));
        if !about {
            prop_assert_eq!(one.answer, other.answer, "{}", at);
        }
    }
    Ok(())
}

/// How many lives are tried.
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
    search(Clocks::Forward, 1200, || InMemory);
}

#[test]
fn one_epoch_never_shows_in_another_in_memory_with_clocks_that_step_back() {
    search(Clocks::BothWays, 1200, || InMemory);
}

#[test]
fn one_epoch_never_shows_in_another_on_disk() {
    search(Clocks::Forward, 40, OnDisk::new);
}

#[test]
fn one_epoch_never_shows_in_another_on_disk_with_clocks_that_step_back() {
    search(Clocks::BothWays, 40, OnDisk::new);
}

/// Each of the leaks that there were is found.
#[test]
fn every_flaw_is_noticed() {
    for flaw in Flaw::ALL {
        let cases = Cases {
            cases: 60_000,
            max_shrink_iters: 0,
            failure_persistence: None,
            ..Cases::default()
        };
        // Always the same lives: it stops at the first that shows the flaw.
        let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
        let noticed = TestRunner::new_with_rng(cases, rng).run(&life(Clocks::BothWays), |life| {
            one_epoch_never_shows_in_another(&mut InMemory, &life, Some(flaw))
        });
        assert!(noticed.is_err(), "{flaw:?} was not noticed");
    }
}
