//! A power cut, a full disk or a broken disk at every write: what was answered stays charged, what
//! was not answered happened as a whole or not at all, and the store opens.
//!
//! For power cuts, every write and every flush that reaches the files is recorded. Then, for each
//! moment, the files are rebuilt as a disk might have them after a cut at that moment. What was
//! flushed is there. Of what came after, each write is there, or is not, or some of its sectors
//! are.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;
mod faults;
mod pages;
mod recorder;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bigbird::{Profile, Timestamp};
use bigbird_store::{Problem, SqliteStore, StoreOptions};
use bigbird_testing::Dice;
use bigbird_user_agent::{AgentError, Config, ConversionOptions, SharedConversion};
use common::{
    DAY, Folder, SERVICE, SqliteAgent, by, config, consumed, folder, live, measure, open,
};
use recorder::{Fault, Log, Operation, OperationKind};
use rusqlite::ffi;

type ConsumedBudgets = Vec<(i64, String, u64)>;

/// A disk writes whole sectors.
const SECTOR: usize = 512;

/// One recorder serves all tests.
static TURN: Mutex<()> = Mutex::new(());

/// A record of operations, and the answers that were given meanwhile.
struct Recording {
    /// The database file before the record begins.
    before: Vec<u8>,
    log: Log,
    /// The number of operations recorded when a step was answered, and the budgets after that step.
    answered: Vec<(usize, ConsumedBudgets)>,
}

/// Uses a store in every way that writes.
fn record(folder: &Folder, config: &Config) -> Recording {
    recorder::install();
    let path = folder.file("store");
    let mut agent = open(&path, config);
    live(&mut agent);
    let start = consumed(&agent.filter_balances().unwrap());
    agent.into_storage().close().unwrap();

    let before = fs::read(&path).unwrap();
    recorder::start(path.parent().unwrap());
    let mut agent = open(&path, config);
    let mut answered = vec![(recorder::noted(), start)];
    let now = 113 * DAY;
    for step in 0..14_u64 {
        let at = now + i64::try_from(step).unwrap() * 60_000;
        use_once(&mut agent, step, at);
        answered.push((
            recorder::noted(),
            consumed(&agent.filter_balances().unwrap()),
        ));
    }
    agent.into_storage().close().unwrap();
    answered.push((recorder::noted(), answered.last().unwrap().1.clone()));
    Recording {
        before,
        log: recorder::stop(),
        answered,
    }
}

fn use_once(agent: &mut SqliteAgent, step: u64, at: i64) {
    let call = by("shop-0.example", 300 + step, at);
    match step {
        // A share of the object that `live` left.
        3 => {
            let share = bigbird_user_agent::Call {
                intermediary: Some("ads.example"),
                ..by("shop-1.example", 300, at)
            };
            let options = ConversionOptions {
                epsilon: 0.1,
                ..ConversionOptions::new(SERVICE, 5)
            };
            let _ = agent
                .take_share(SharedConversion(1), &share, &options)
                .unwrap();
        }
        4 => agent.storage_mut().checkpoint().unwrap(),
        6 => {
            let options = bigbird_user_agent::ImpressionOptions::new(1);
            let calls = (0..20).map(|number| (by("news-9.example", 400 + number, at), &options));
            let saved = agent.save_impressions(calls).unwrap();
            assert!(saved.iter().all(Result::is_ok));
        }
        8 => agent.clear_impressions_for_site("news-1.example").unwrap(),
        10 => agent.maintain(Timestamp(at + 3 * DAY)).unwrap(),
        // Impressions of a new epoch, so that there is something to charge.
        1 | 7 | 11 => {
            let options = bigbird_user_agent::ImpressionOptions::new(2);
            let call = by("news-2.example", 500 + step, at);
            agent.save_impression(&call, &options).unwrap();
        }
        12 => agent.set_enabled(false).unwrap(),
        _ => {
            let _ = measure(agent, &call, 0.1).unwrap();
        }
    }
}

/// The fate of a write that was not flushed.
#[derive(Debug, Clone, Copy)]
enum SectorFate {
    Dropped,
    Written,
    /// Dropped, written, or written in part.
    Random,
}

/// A flaw of the store that the test must catch.
#[derive(Debug, Clone, Copy, PartialEq)]
enum DiskFlaw {
    /// The store does not flush its log.
    NoFlush,
}

/// The content of a file as a disk might have it after a cut, or `None` if there is no file.
fn after_cut(
    before: Option<Vec<u8>>,
    operations: &[&Operation],
    fate: SectorFate,
    dice: &mut Dice,
) -> Option<Vec<u8>> {
    // A flush makes durable what was written since the flush before. If a flush fails, the system
    // may give up on what was written since then, and a later flush does not try it again.
    let mut flushed = vec![false; operations.len()];
    let mut since = 0;
    for (at, operation) in operations.iter().enumerate() {
        match operation {
            Operation::Flush => flushed[since..at].fill(true),
            Operation::FailedFlush => {}
            _ => continue,
        }
        since = at;
    }
    let mut file = before;
    for (at, operation) in operations.iter().enumerate() {
        let chance = match (flushed[at], fate) {
            (true, _) | (false, SectorFate::Written) => 2,
            (false, SectorFate::Dropped) => 0,
            (false, SectorFate::Random) => dice.below(4),
        };
        match operation {
            Operation::Flush | Operation::FailedFlush => {}
            Operation::Write { offset, data } => {
                let content = file.get_or_insert_default();
                let end = offset + data.len();
                if chance > 0 && content.len() < end {
                    // The file may have its new length before the new content is there.
                    content.resize(end, 0);
                }
                match chance {
                    0 => {}
                    1 => {
                        for (number, sector) in data.chunks(SECTOR).enumerate() {
                            if dice.below(2) == 0 {
                                let begin = offset + number * SECTOR;
                                content[begin..begin + sector.len()].copy_from_slice(sector);
                            }
                        }
                    }
                    _ => content[*offset..end].copy_from_slice(data),
                }
            }
            Operation::Truncate { size } => {
                if chance > 0 {
                    file.get_or_insert_default().resize(*size, 0);
                }
            }
            Operation::Delete => {
                if chance > 1 {
                    file = None;
                }
            }
        }
    }
    file
}

/// Plays a power cut at every moment, and returns what went wrong.
fn cut_everywhere(recording: &Recording, config: &Config, flaw: Option<DiskFlaw>) -> Vec<String> {
    let mut dice = Dice(0x2545_f491_4f6c_dd1d);
    let mut wrong = Vec::new();
    for moment in 0..=recording.log.len() {
        for fate in [
            SectorFate::Dropped,
            SectorFate::Written,
            SectorFate::Random,
            SectorFate::Random,
        ] {
            let mut of_file: BTreeMap<&Path, Vec<&Operation>> = BTreeMap::new();
            for (path, operation) in &recording.log[..moment] {
                let is_log = path.to_string_lossy().ends_with("-wal");
                if !(is_log
                    && flaw == Some(DiskFlaw::NoFlush)
                    && matches!(operation, Operation::Flush))
                {
                    of_file.entry(path).or_default().push(operation);
                }
            }
            let folder = folder();
            let image = folder.file("store");
            let mut main = Some(recording.before.clone());
            for (path, operations) in of_file {
                let name = path.file_name().unwrap();
                let begin = (name == "store").then(|| main.take()).flatten();
                if let Some(content) = after_cut(begin, &operations, fate, &mut dice) {
                    fs::write(image.with_file_name(name), content).unwrap();
                }
            }
            if let Some(content) = main {
                fs::write(&image, content).unwrap();
            }
            if let Err(why) = survives(&image, config, recording, moment) {
                wrong.push(format!("cut at {moment} ({fate:?}): {why}"));
            }
        }
    }
    wrong
}

/// Opens the store after a cut, and compares its budgets with what was answered before.
fn survives(
    image: &Path,
    config: &Config,
    recording: &Recording,
    moment: usize,
) -> Result<(), String> {
    let checked = bigbird_store::check(image);
    checked.map_err(|error| error.problem().to_string())?;
    let store = SqliteStore::open(image, &StoreOptions::default());
    let store = store.map_err(|error| error.problem().to_string())?;
    let randomness = common::SequenceRandomness::default();
    let now = Timestamp(i64::MIN);
    let agent = bigbird_user_agent::UserAgent::new(config.clone(), store, randomness, now);
    let mut agent = agent.map_err(|error| error.to_string())?;
    let found = consumed(&agent.filter_balances().map_err(|error| error.to_string())?);
    let mut answered = recording.answered.iter();
    let last = answered
        .rposition(|(noted, _)| *noted <= moment)
        .unwrap_or(0);
    let allowed = &recording.answered[last..(last + 2).min(recording.answered.len())];
    if allowed.iter().any(|(_, budgets)| *budgets == found) {
        return Ok(());
    }
    Err(format!("answered {:?}, found {found:?}", allowed[0].1))
}

#[test]
fn a_power_cut_at_any_write_loses_no_answered_deduction() {
    let _turn = TURN.lock();
    let folder = folder();
    let config = config(Profile::BigBird, 1000);
    let recording = record(&folder, &config);
    let flushes = |log: &Log| {
        log.iter()
            .filter(|(_, it)| matches!(it, Operation::Flush))
            .count()
    };
    assert!(recording.log.len() > 100 && flushes(&recording.log) > 14);
    let wrong = cut_everywhere(&recording, &config, None);
    assert_eq!(wrong, Vec::<String>::new());
}

/// If the log were not flushed, the test above would fail.
#[test]
fn a_store_that_does_not_flush_is_caught() {
    let _turn = TURN.lock();
    let folder = folder();
    let config = config(Profile::BigBird, 1000);
    let recording = record(&folder, &config);
    let wrong = cut_everywhere(&recording, &config, Some(DiskFlaw::NoFlush));
    assert!(!wrong.is_empty());
}

/// A call that measures is flushed once, whatever it finds, and so is an impression. A click is
/// not flushed.
#[test]
fn a_conversion_is_one_flush() {
    let _turn = TURN.lock();
    recorder::install();
    let folder = folder();
    let path: PathBuf = folder.file("store");
    let config = config(Profile::BigBird, 1000);
    let mut agent = open(&path, &config);
    live(&mut agent);
    let flushes = |agent: &mut SqliteAgent, step: &mut dyn FnMut(&mut SqliteAgent)| {
        recorder::start(path.parent().unwrap());
        step(agent);
        let log = recorder::stop();
        log.iter()
            .filter(|(_, it)| matches!(it, Operation::Flush))
            .count()
    };
    let at = 113 * DAY;
    for site in ["shop-0.example", "shop-1.example", "nobody.example"] {
        let mut step = |agent: &mut SqliteAgent| {
            let _ = measure(agent, &by(site, 600, at), 0.05).unwrap();
        };
        assert_eq!(flushes(&mut agent, &mut step), 1, "{site}");
    }
    let options = ConversionOptions {
        epsilon: 0.05,
        ..ConversionOptions::new(SERVICE, 5)
    };
    let call = bigbird_user_agent::Call {
        intermediary: Some("ads.example"),
        ..by("shop-1.example", 603, at)
    };
    let mut handle = SharedConversion(0);
    let mut create = |agent: &mut SqliteAgent| {
        let created = agent.create_shared_conversion(&call, &options, &["ads.example"]);
        handle = created.unwrap().shared;
    };
    assert_eq!(flushes(&mut agent, &mut create), 1);
    for number in 0..2 {
        let mut share = |agent: &mut SqliteAgent| {
            let _ = agent.take_share(handle, &call, &options).unwrap();
        };
        assert_eq!(flushes(&mut agent, &mut share), 1, "share {number}");
    }
    agent.set_enabled(false).unwrap();
    let mut disabled = |agent: &mut SqliteAgent| {
        let _ = measure(agent, &by("shop-0.example", 601, at), 0.05).unwrap();
    };
    assert_eq!(flushes(&mut agent, &mut disabled), 1);
    let options = bigbird_user_agent::ImpressionOptions::new(2);
    let mut save = |agent: &mut SqliteAgent| {
        agent
            .save_impression(&by("news.example", 602, at), &options)
            .unwrap();
    };
    assert_eq!(flushes(&mut agent, &mut save), 1);
    agent.set_enabled(true).unwrap();
    let mut click = |agent: &mut SqliteAgent| {
        let _ = agent.begin_user_action(Timestamp(at)).unwrap();
    };
    // The first click reserves numbers in the store.
    assert_eq!(
        [
            flushes(&mut agent, &mut click),
            flushes(&mut agent, &mut click)
        ],
        [1, 0]
    );
}

/// If the disk is full or fails at any write of a conversion, there is an error and no report, and
/// nothing is half done.
#[test]
fn a_disk_that_fails_at_any_write_releases_nothing() {
    let _turn = TURN.lock();
    recorder::install();
    for (status, is_expected) in [
        (
            ffi::SQLITE_FULL,
            (|problem| matches!(problem, Problem::Full)) as fn(&Problem) -> bool,
        ),
        (ffi::SQLITE_IOERR_WRITE, |problem| {
            matches!(problem, Problem::Io { .. })
        }),
    ] {
        let mut failures = 0;
        for successes in 0.. {
            let folder = folder();
            let path = folder.file("store");
            let config = config(Profile::BigBird, 1000);
            let mut agent = open(&path, &config);
            live(&mut agent);
            let options = bigbird_user_agent::ImpressionOptions::new(2);
            let at = 115 * DAY;
            agent
                .save_impression(&by("fresh.example", 600, at), &options)
                .unwrap();
            let before = consumed(&agent.filter_balances().unwrap());

            recorder::fail_after(path.parent().unwrap(), successes, status);
            let measured = measure(&mut agent, &by("shop-0.example", 601, at + 1), 0.1);
            recorder::stop();
            let after = consumed(&agent.filter_balances().unwrap());
            let error = match measured {
                Ok(report) => {
                    assert_ne!(report, [0; 5]);
                    assert_ne!(before, after);
                    break;
                }
                Err(AgentError::Store(error)) => error,
                Err(AgentError::Api(error)) => panic!("{error}"),
            };
            failures += 1;
            assert!(is_expected(error.problem()), "{error}");
            assert!(error.to_string().contains("store: "), "{error}");
            assert_eq!(before, after);
            // It works when there is space again, and nothing was lost.
            let report = measure(&mut agent, &by("shop-0.example", 602, at + 2), 0.1).unwrap();
            assert_ne!(report, [0; 5]);
            drop(agent);
            bigbird_store::check(&path).unwrap();
        }
        assert!(failures > 4, "{failures}");
    }
}

/// When a flush fails, SQLite rolls the transaction back, and its frames stay in the log behind
/// those of the next one. Here each transaction is shorter than the one before, so the remnants of
/// several lie behind each other when the disk recovers. A kill at that moment leaves a good store.
#[test]
fn failed_flushes_do_not_make_a_good_store_damaged() {
    let _turn = TURN.lock();
    recorder::install();
    let folder = folder();
    let path = folder.file("store");
    let config = config(Profile::BigBird, 1000);
    let mut agent = open(&path, &config);
    live(&mut agent);
    let options = bigbird_user_agent::ImpressionOptions::new(2);
    let at = 115 * DAY;
    let save = |agent: &mut SqliteAgent, sites: u64| {
        let names: Vec<String> = (0..sites).map(|it| format!("a-{it}.example")).collect();
        let calls = names.iter().enumerate();
        let calls = calls.map(|(number, name)| (by(name, 700 + number as u64, at), &options));
        agent.save_impressions(calls).map(|saved| saved.len())
    };
    save(&mut agent, 1).unwrap();
    recorder::start(path.parent().unwrap());
    recorder::fail(|path, kind| {
        let is_log = path.to_string_lossy().ends_with("-wal");
        (is_log && kind == OperationKind::Flush).then_some(Fault::Whole(ffi::SQLITE_IOERR_FSYNC))
    });
    for sites in [400, 150, 40] {
        save(&mut agent, sites).unwrap_err();
    }
    recorder::recover();
    let report = measure(&mut agent, &by("shop-0.example", 602, at + 2), 0.1).unwrap();
    assert_ne!(report, [0; 5]);
    recorder::stop();
    let expected = consumed(&agent.filter_balances().unwrap());
    // The files as a kill leaves them.
    let image = folder.file("image");
    for name in ["", "-wal"] {
        fs::copy(with(&path, name), with(&image, name)).unwrap();
    }
    bigbird_store::check(&image).unwrap();
    let mut agent = open(&image, &config);
    assert_eq!(consumed(&agent.filter_balances().unwrap()), expected);
}

fn with(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// A number that can be set by an environment variable.
fn setting(name: &str, default: u64) -> u64 {
    let set = std::env::var(name);
    set.map_or(default, |set| set.parse().unwrap())
}

/// Nothing that was answered is lost, and nothing is answered wrongly, whatever fails and whenever
/// the process ends.
#[test]
fn a_life_on_a_failing_disk_is_as_in_memory() {
    let _turn = TURN.lock();
    let steps = setting("BIGBIRD_FAULT_STEPS", 800);
    let seed = setting("BIGBIRD_FAULT_SEED", 0x2545_f491_4f6c_dd1d);
    let lived = faults::live_on_a_failing_disk(steps, seed, None);
    let tally = lived.unwrap_or_else(|wrong| panic!("{wrong}"));
    println!("{tally:?}");
    assert!(tally.answered > steps / 2, "{tally:?}");
    let faults::FaultTally {
        failed,
        kills,
        cuts,
        copies,
        ..
    } = tally;
    assert!(
        failed > 0 && kills > 0 && cuts > 0 && copies > 0,
        "{tally:?}"
    );
}

/// If the store did not flush, the test above would fail.
#[test]
fn a_life_without_flushes_is_caught() {
    let _turn = TURN.lock();
    let flaw = Some(faults::FaultFlaw::NoFlush);
    faults::live_on_a_failing_disk(800, 0x2545_f491_4f6c_dd1d, flaw).unwrap_err();
}

/// Creates, copies or resets a store, given the path of an existing one.
type Make = fn(&Path) -> Result<(), bigbird_store::StoreError>;

/// SQLite does not report when it cannot move the log of a new file into the file while closing.
/// Even so, no broken file is put in its place, and nothing is left beside it.
#[test]
fn a_disk_that_fails_while_a_store_is_made_leaves_none_or_a_whole_one() {
    let create: Make = |path| {
        let made = path.with_file_name("made");
        SqliteStore::open_or_create(made, &StoreOptions::default()).map(drop)
    };
    let backup: Make = |path| bigbird_store::backup(path, path.with_file_name("made"));
    let reset: Make = |path| bigbird_store::reset(path, "a test", Timestamp(113 * DAY)).map(drop);
    let _turn = TURN.lock();
    recorder::install();
    let folder = folder();
    let path = folder.file("store");
    let mut agent = open(&path, &config(Profile::BigBird, 1000));
    live(&mut agent);
    agent.into_storage().close().unwrap();
    for (make, name) in [(create, "made"), (backup, "made"), (reset, "store")] {
        for (status, once) in [(ffi::SQLITE_FULL, true), (ffi::SQLITE_IOERR_WRITE, false)] {
            let failures =
                (0..).take_while(|successes| fails(make, name, &path, *successes, status, once));
            assert!(failures.count() > 10);
        }
    }
}

/// Makes a store while one operation after `successes` others fails, or all from there on. Returns
/// true if an operation failed.
fn fails(
    make: Make,
    name: &str,
    original: &Path,
    successes: usize,
    status: i32,
    once: bool,
) -> bool {
    let folder = folder();
    let path = folder.file("store");
    fs::copy(original, &path).unwrap();
    let failed = Arc::new(AtomicBool::new(false));
    let fails_now = Arc::clone(&failed);
    let mut met = 0;
    recorder::start(folder.path());
    recorder::fail(move |_, kind| {
        if kind == OperationKind::Read {
            return None;
        }
        met += 1;
        let fails = met == successes + 1 || !once && met > successes;
        fails_now.fetch_or(fails, Ordering::Relaxed);
        fails.then_some(Fault::Whole(status))
    });
    let made = make(&path);
    recorder::recover();
    recorder::stop();
    let made_at = folder.file(name);
    match &made {
        Ok(()) => drop(bigbird_store::check(&made_at).unwrap()),
        Err(error) => {
            assert!(failed.load(Ordering::Relaxed), "{error}");
            assert_eq!(error.to_string().lines().count(), 1, "{error}");
            assert!(name == "store" || !made_at.exists(), "{error}");
        }
    }
    // The store that existed before is still good, or was replaced by a good one.
    bigbird_store::check(&path).unwrap();
    for file in fs::read_dir(folder.path()).unwrap() {
        let file = file.unwrap().file_name().into_string().unwrap();
        assert!(!file.contains(".new-"), "{file}");
    }
    failed.load(Ordering::Relaxed)
}

/// A read that fails is an error of the system, and trying again may succeed. Nobody should reset a
/// store because of it.
#[test]
fn a_read_that_fails_is_not_damage() {
    let _turn = TURN.lock();
    recorder::install();
    let folder = folder();
    let path = folder.file("store");
    let config = config(Profile::BigBird, 1000);
    let mut agent = open(&path, &config);
    live(&mut agent);
    drop(agent);
    for status in [ffi::SQLITE_IOERR_READ, ffi::SQLITE_IOERR_CORRUPTFS] {
        for successes in 0.. {
            recorder::start(folder.path());
            let mut reads = 0;
            recorder::fail(move |_, kind| {
                reads += usize::from(kind == OperationKind::Read);
                (kind == OperationKind::Read && reads > successes).then_some(Fault::Whole(status))
            });
            let checked = bigbird_store::check(&path);
            recorder::recover();
            recorder::stop();
            match checked {
                Ok(_) => {
                    assert!(successes > 20, "{successes}");
                    break;
                }
                Err(error) => {
                    assert!(error.problem().is_transient(), "{successes}: {error}");
                    let told = error.problem().to_string();
                    assert!(told.starts_with("reading the store failed: "), "{told}");
                }
            }
        }
    }
    bigbird_store::check(&path).unwrap();
}
