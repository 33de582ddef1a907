//! A random life on a disk that fails at random, loses power and recovers, next to the same life in
//! memory.
//!
//! A call that succeeds gives the same answer as in memory. A call that fails has happened as a
//! whole or not at all. It is tried again, perhaps smaller, until it succeeds or the process is
//! killed. After a kill or a power cut, the store holds what was answered, and perhaps the call
//! that failed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use bigbird::{Profile, Timestamp};
use bigbird_store::{Problem, SqliteStore, StoreError, StoreOptions, StoreSummary};
use bigbird_testing::{Dice, FixedRandomness};
use bigbird_user_agent::{
    AgentError, Config, DeviceState, ImpressionOptions, MemoryStore, Storage, UserAgent, View as _,
};
use rusqlite::ffi;

use crate::common::{DAY, Folder, by, config, consumed, measure};
use crate::recorder::{self, Fault, Log, Operation, OperationKind};
use crate::{ConsumedBudgets, SectorFate, after_cut, with};

/// A flaw of the store that the test must catch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FaultFlaw {
    /// The store does not flush.
    NoFlush,
}

/// The number of events of each kind in a life.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FaultTally {
    pub(crate) answered: u64,
    pub(crate) failed: u64,
    pub(crate) failed_to_open: u64,
    pub(crate) kills: u64,
    pub(crate) cuts: u64,
    /// Kills and cuts after which a call had happened although it had failed.
    pub(crate) ghosts: u64,
    pub(crate) copies: u64,
}

/// A call.
#[derive(Debug, Clone, Copy)]
enum FaultEvent {
    /// `count` impressions in one transaction.
    Save {
        first: u64,
        count: u64,
    },
    Measure {
        shop: u64,
        action: u64,
    },
    Forget {
        news: u64,
    },
    Clear {
        shop: u64,
    },
    Enable(bool),
    Maintain,
}

impl FaultEvent {
    fn random(dice: &mut Dice, step: u64) -> Self {
        let first = 1 + 100 * step;
        match dice.below(40) {
            0 => Self::Forget {
                news: dice.below(6),
            },
            1 => Self::Clear {
                shop: dice.below(40),
            },
            2 => Self::Enable(dice.below(4) != 0),
            3 => Self::Maintain,
            4 => Self::Save {
                first,
                count: 1 + dice.below(60),
            },
            5..18 => Self::Save {
                first,
                count: 1 + dice.below(2),
            },
            _ => Self::Measure {
                shop: dice.below(6),
                action: first,
            },
        }
    }

    /// The call that is tried after this one failed: the same, or fewer impressions.
    fn again(self, dice: &mut Dice) -> Self {
        match self {
            Self::Save { first, count } if dice.below(2) == 0 => Self::Save {
                first,
                count: count.div_ceil(2),
            },
            other => other,
        }
    }

    /// The parts of the call, in order. Impressions are one part each. Any number of the first
    /// parts may have happened, because a call that failed may have been tried again with fewer
    /// impressions.
    fn parts(self) -> Vec<Self> {
        match self {
            Self::Save { first, count } => (first..first + count)
                .map(|first| Self::Save { first, count: 1 })
                .collect(),
            other => vec![other],
        }
    }

    /// Makes the call, and returns its answer.
    fn happen<S: Storage>(
        self,
        agent: &mut UserAgent<S, FixedRandomness>,
        at: i64,
    ) -> Result<Vec<u32>, S::Error> {
        let given = match self {
            Self::Save { first, count } => {
                let options = ImpressionOptions::new(2);
                let actions = first..first + count;
                let names: Vec<(u64, String)> = actions
                    .map(|action| (action, format!("news-{}.example", action % 7)))
                    .collect();
                let calls = names.iter();
                let calls = calls.map(|(action, name)| (by(name, *action, at), &options));
                let saved = agent.save_impressions(calls)?;
                assert!(saved.iter().all(Result::is_ok));
                Vec::new()
            }
            Self::Measure { shop, action } => {
                let site = format!("shop-{shop}.example");
                match measure(agent, &by(&site, action, at), 0.05) {
                    Ok(report) => report,
                    Err(AgentError::Store(error)) => return Err(error),
                    Err(AgentError::Api(error)) => panic!("{error}"),
                }
            }
            Self::Forget { news } => {
                agent.clear_impressions_for_site(&format!("news-{news}.example"))?;
                Vec::new()
            }
            Self::Clear { shop } => {
                let sites = [format!("shop-{shop}.example")];
                match agent.clear_browsing_history(&sites, false, Timestamp(at)) {
                    Ok(_) => Vec::new(),
                    Err(AgentError::Store(error)) => return Err(error),
                    Err(AgentError::Api(error)) => panic!("{error}"),
                }
            }
            Self::Enable(enabled) => {
                agent.set_enabled(enabled)?;
                Vec::new()
            }
            Self::Maintain => {
                agent.maintain(Timestamp(at))?;
                Vec::new()
            }
        };
        Ok(given)
    }
}

/// The content of a store: budgets, impressions of each site, and the user agent's state.
type StoreTotals = (ConsumedBudgets, BTreeMap<(i64, String), u64>, DeviceState);

fn held_in_memory(agent: &mut UserAgent<MemoryStore, FixedRandomness>) -> StoreTotals {
    let Ok(budgets) = agent.filter_balances();
    let Ok(state) = agent.storage_mut().begin().and_then(|tx| tx.state());
    let memory = agent.storage();
    let mut impressions = BTreeMap::new();
    for epoch in memory.impressions().epochs() {
        for impression in memory.impressions().impressions(epoch) {
            let site = memory.site(impression.site).unwrap().to_string();
            *impressions.entry((epoch.0, site)).or_default() += 1;
        }
    }
    (consumed(&budgets), impressions, state)
}

/// Describes the difference between two contents.
fn difference(found: &StoreTotals, expected: &StoreTotals) -> String {
    let only = |these: &StoreTotals, those: &StoreTotals| {
        let budgets = these.0.iter().filter(|it| !those.0.contains(it));
        let budgets: Vec<_> = budgets.collect();
        let impressions = these.1.iter();
        let impressions = impressions.filter(|(site, count)| those.1.get(*site) != Some(*count));
        let impressions: Vec<_> = impressions.collect();
        let state = (these.2 != those.2).then_some(&these.2);
        format!("{budgets:?} {impressions:?} {state:?}")
    };
    format!(
        "the store holds {}, expected {}",
        only(found, expected),
        only(expected, found)
    )
}

fn held_on_disk(path: &Path) -> Result<StoreTotals, String> {
    let contents = StoreSummary::read(path).map_err(|error| error.to_string())?;
    let mut impressions = BTreeMap::new();
    let mut budgets = Vec::new();
    for epoch in contents.epochs {
        budgets.extend(epoch.budgets);
        for (site, count) in epoch.impressions {
            impressions.insert((epoch.epoch.0, site.to_string()), count);
        }
    }
    Ok((consumed(&budgets), impressions, contents.state))
}

type SqliteAgent = UserAgent<SqliteStore, FixedRandomness>;

/// A life: the store, and a model of what it should hold.
struct FaultyLife {
    dice: Dice,
    config: Config,
    now: i64,
    folder: Folder,
    /// The content of the files when this process began.
    before: BTreeMap<PathBuf, Vec<u8>>,
    agent: Option<SqliteAgent>,
    model: UserAgent<MemoryStore, FixedRandomness>,
    tally: FaultTally,
}

/// Lives a number of steps. The error describes what went wrong.
pub(crate) fn live_on_a_failing_disk(
    steps: u64,
    seed: u64,
    flaw: Option<FaultFlaw>,
) -> Result<FaultTally, String> {
    recorder::install();
    let config = config(Profile::BigBird, 200);
    let mut life = FaultyLife {
        dice: Dice(seed),
        now: 100 * DAY,
        folder: Folder::in_memory(),
        before: BTreeMap::new(),
        agent: None,
        model: UserAgent::in_memory(config.clone(), FixedRandomness),
        tally: FaultTally::default(),
        config,
    };
    let path = life.path();
    drop(SqliteStore::open_or_create(&path, &StoreOptions::default()).unwrap());
    life.settle_in();
    recorder::pass_over_flushes(flaw == Some(FaultFlaw::NoFlush));
    let lived = life.steps(steps);
    recorder::recover();
    recorder::pass_over_flushes(false);
    recorder::stop();
    lived.map(|()| life.tally)
}

impl FaultyLife {
    fn path(&self) -> PathBuf {
        self.folder.file("store")
    }

    fn steps(&mut self, steps: u64) -> Result<(), String> {
        for step in 0..steps {
            // Each step has its own moment, so that the state shows whether a call has happened.
            self.now += 60_000 * i64::try_from(1 + self.dice.below(40)).unwrap();
            self.step(step)
                .map_err(|wrong| format!("step {step}: {wrong}"))?;
        }
        Ok(())
    }

    fn step(&mut self, step: u64) -> Result<(), String> {
        match self.dice.below(60) {
            0 => return self.end(End::Kill, &[]),
            1 => return self.end(End::Cut, &[]),
            2 => return self.reopen(),
            3 => return self.copy(),
            4 => {
                let _ = self.agent()?.storage_mut().checkpoint();
            }
            _ => {}
        }
        let event = FaultEvent::random(&mut self.dice, step);
        if self.dice.below(3) != 0 {
            return self.succeed(event);
        }
        if self.dice.below(4) == 0 {
            self.agent = None;
        }
        // The disk fails for a while, rarely or often.
        let one_in = 1 + self.dice.below(12);
        self.fail(one_in);
        let mut tried = Vec::new();
        let mut event = event;
        for _ in 0..1 + self.dice.below(4) {
            let _ = self.open();
            let Some(agent) = self.agent.as_mut() else {
                continue;
            };
            match event.happen(agent, self.now) {
                Ok(given) => {
                    recorder::recover();
                    return self.answered(event, &given);
                }
                Err(error) => {
                    self.tally.failed += 1;
                    is_honest(&error)?;
                    tried.push(event);
                }
            }
            event = event.again(&mut self.dice);
            match self.dice.below(12) {
                0 => return self.end(End::Kill, &tried),
                1 => return self.end(End::Cut, &tried),
                // Closing may fail too.
                2 => {
                    self.agent = None;
                    break;
                }
                _ => {}
            }
        }
        recorder::recover();
        // The call has happened or not. If not, it is made now.
        self.open().map_err(|error| error.to_string())?;
        let found = held_on_disk(&self.path())?;
        if self.catch_up(&found, &tried)? {
            self.tally.answered += 1;
            return Ok(());
        }
        self.succeed(event)
    }

    /// Makes a call that must succeed.
    fn succeed(&mut self, event: FaultEvent) -> Result<(), String> {
        let now = self.now;
        let given = event.happen(self.agent()?, now);
        let given = given.map_err(|error| format!("{event:?}: {error}"))?;
        self.answered(event, &given)
    }

    /// Compares an answer, and the budgets after it, with those of the model.
    fn answered(&mut self, event: FaultEvent, given: &[u32]) -> Result<(), String> {
        self.tally.answered += 1;
        let Ok(expected) = event.happen(&mut self.model, self.now);
        if given != expected {
            return Err(format!("{event:?} gave {given:?}, not {expected:?}"));
        }
        let Ok(expected) = self.model.filter_balances();
        let found = self.agent()?.filter_balances();
        let found = found.map_err(|error| error.to_string())?;
        match consumed(&found) == consumed(&expected) {
            true => Ok(()),
            false => Err(format!("{event:?}: the budgets differ from the model")),
        }
    }

    fn agent(&mut self) -> Result<&mut SqliteAgent, String> {
        if self.agent.is_none() {
            self.open().map_err(|error| error.to_string())?;
        }
        self.agent.as_mut().ok_or_else(|| "no agent".to_owned())
    }

    fn open(&mut self) -> Result<(), StoreError> {
        if self.agent.is_some() {
            return Ok(());
        }
        let options = StoreOptions {
            checkpoint_pages: 60,
            ..StoreOptions::default()
        };
        let opened = SqliteStore::open(self.path(), &options).and_then(|store| {
            UserAgent::new(
                self.config.clone(),
                store,
                FixedRandomness,
                Timestamp(self.now),
            )
        });
        match opened {
            Ok(agent) => {
                self.agent = Some(agent);
                Ok(())
            }
            Err(error) => {
                self.tally.failed_to_open += 1;
                if let Err(wrong) = is_honest(&error) {
                    panic!("{wrong}");
                }
                Err(error)
            }
        }
    }

    /// From now on, one operation in `one_in` fails, at random. Reads fail only in some cases.
    fn fail(&mut self, one_in: u64) {
        let mut dice = Dice(1 + self.dice.below(u64::MAX / 2));
        let reads = self.dice.below(4) == 0;
        recorder::fail(move |_, kind| {
            if dice.below(one_in) != 0 || kind == OperationKind::Read && !reads {
                return None;
            }
            let full = dice.below(3) == 0;
            let status = match kind {
                OperationKind::Read => ffi::SQLITE_IOERR_READ,
                OperationKind::Write if full => ffi::SQLITE_FULL,
                OperationKind::Write => ffi::SQLITE_IOERR_WRITE,
                OperationKind::Truncate => ffi::SQLITE_IOERR_TRUNCATE,
                OperationKind::Flush => ffi::SQLITE_IOERR_FSYNC,
                OperationKind::Delete => ffi::SQLITE_IOERR_DELETE,
            };
            Some(match dice.below(2) {
                0 => Fault::Short(status),
                _ => Fault::Whole(status),
            })
        });
    }

    /// The process closes the store, and another opens it.
    fn reopen(&mut self) -> Result<(), String> {
        if let Some(agent) = self.agent.take() {
            let closed = agent.into_storage().close();
            closed.map_err(|error| error.to_string())?;
        }
        self.settle_in();
        self.holds(&[])
    }

    /// A copy holds what the store holds. A copy that fails leaves no file.
    fn copy(&mut self) -> Result<(), String> {
        let copy = self.folder.file("copy");
        let fails = self.dice.below(2) == 0;
        if fails {
            let one_in = 1 + self.dice.below(60);
            self.fail(one_in);
        }
        let copied = bigbird_store::backup(self.path(), &copy);
        recorder::recover();
        match copied {
            Ok(()) => {
                let found = held_on_disk(&copy)?;
                if found != held_in_memory(&mut self.model) {
                    return Err("the copy differs from the model".to_owned());
                }
                fs::remove_file(&copy).unwrap();
                self.tally.copies += 1;
                Ok(())
            }
            Err(error) if fails && !copy.exists() => is_honest(&error),
            Err(error) => Err(error.to_string()),
        }
    }

    /// The process is killed, or the power is cut. The calls in `tried` had failed since the last
    /// call that succeeded.
    fn end(&mut self, end: End, tried: &[FaultEvent]) -> Result<(), String> {
        let files = self.files_after(end);
        // The process that was killed must not change the files of the next one.
        let next = Folder::in_memory();
        recorder::recover();
        let log = recorder::stop();
        drop(log);
        self.agent = None;
        self.folder = next;
        for (name, content) in files {
            fs::write(self.folder.file(&name), content).unwrap();
        }
        match end {
            End::Kill => self.tally.kills += 1,
            End::Cut => self.tally.cuts += 1,
        }
        self.settle_in();
        self.holds(tried)
            .map_err(|wrong| format!("after a {end:?}: {wrong}"))
    }

    /// The files after the end of the process, by name.
    fn files_after(&mut self, end: End) -> Vec<(String, Vec<u8>)> {
        let path = self.path();
        let paths = ["", "-wal"].map(|suffix| with(&path, suffix));
        let mut files = Vec::new();
        let log: Log = recorder::so_far();
        let fate = match self.dice.below(4) {
            0 => SectorFate::Dropped,
            1 => SectorFate::Written,
            _ => SectorFate::Random,
        };
        let mut dice = Dice(1 + self.dice.below(u64::MAX / 2));
        for path in paths {
            let content = match end {
                End::Kill => fs::read(&path).ok(),
                End::Cut => {
                    let operations: Vec<&Operation> = log
                        .iter()
                        .filter(|(of, _)| *of == path)
                        .map(|(_, operation)| operation)
                        .collect();
                    after_cut(
                        self.before.get(&path).cloned(),
                        &operations,
                        fate,
                        &mut dice,
                    )
                }
            };
            if let Some(content) = content {
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                files.push((name, content));
            }
        }
        files
    }

    /// Takes the present content of the files as durable, and records what happens from now on.
    fn settle_in(&mut self) {
        let path = self.path();
        let paths = ["", "-wal"].map(|suffix| with(&path, suffix));
        let files = paths.into_iter();
        self.before = files
            .filter_map(|path| Some((path.clone(), fs::read(&path).ok()?)))
            .collect();
        recorder::start(self.folder.path());
    }

    /// Verifies that the store passes every check, and holds what was answered and perhaps a call
    /// that had failed.
    fn holds(&mut self, tried: &[FaultEvent]) -> Result<(), String> {
        let checked = bigbird_store::check(self.path());
        checked.map_err(|error| error.to_string())?;
        let found = held_on_disk(&self.path())?;
        if self.catch_up(&found, tried)? {
            self.tally.ghosts += 1;
        }
        // This writes, so that everything is on the disk in any case.
        let now = self.now;
        let given = FaultEvent::Maintain.happen(self.agent()?, now);
        let given = given.map_err(|error| error.to_string())?;
        self.answered(FaultEvent::Maintain, &given)
    }

    /// Brings the model to what the store holds: unchanged, or with a call that had failed. Returns
    /// true in the second case.
    fn catch_up(&mut self, found: &StoreTotals, tried: &[FaultEvent]) -> Result<bool, String> {
        if *found == held_in_memory(&mut self.model) {
            return Ok(false);
        }
        // The later calls in `tried` are parts of the first.
        let parts = tried.first().map_or(Vec::new(), |event| event.parts());
        for part in parts {
            let Ok(_) = part.happen(&mut self.model, self.now);
            if *found == held_in_memory(&mut self.model) {
                return Ok(true);
            }
        }
        let expected = held_in_memory(&mut self.model);
        Err(format!(
            "after {tried:?} failed: {}",
            difference(found, &expected)
        ))
    }
}

#[derive(Debug, Clone, Copy)]
enum End {
    Kill,
    Cut,
}

/// Verifies that an error which the disk caused does not claim that the store is damaged.
fn is_honest(error: &StoreError) -> Result<(), String> {
    match error.problem() {
        Problem::Full | Problem::Io { .. } | Problem::Sqlite(_) | Problem::HalfDone => Ok(()),
        _ => Err(format!("an error of the disk is reported as: {error}")),
    }
}
