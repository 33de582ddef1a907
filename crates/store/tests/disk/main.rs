//! A power cut, a full disk or a broken one at every write: what was answered stays charged, what was
//! not happened as a whole or not at all, and the store opens.
//!
//! For power cuts, everything that reaches the files is noted, with every flush. Then, for each moment, the files
//! are made again as a disk might have them after a cut at that moment: what was flushed is there;
//! of what came after, each write is there, or is not, or some of its sectors are.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;
mod faults;
mod recorder;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bigbird::{Profile, Timestamp};
use bigbird_store::{Problem, SqliteStore, StoreOptions};
use bigbird_user_agent::{AgentError, Config, ConversionOptions, SharedConversion};
use common::{Agent, DAY, Folder, SERVICE, by, config, consumed, folder, live, measure, open};
use recorder::{Fault, Kind, Log, Operation};
use rusqlite::ffi;

type Budgets = Vec<(i64, String, u64)>;

/// A disk writes whole sectors.
const SECTOR: usize = 512;

/// One recorder serves all tests.
static TURN: Mutex<()> = Mutex::new(());

/// What was noted, and what was answered when.
struct Recording {
    /// The database file before anything was noted.
    before: Vec<u8>,
    log: Log,
    /// The budgets after each step that was answered, and how much had been noted by then.
    answered: Vec<(usize, Budgets)>,
}

/// Uses a store in every way that writes.
fn record(folder: &Folder, config: &Config) -> Recording {
    recorder::install();
    let path = folder.file("store");
    let mut agent = open(&path, config);
    live(&mut agent);
    let start = consumed(&agent.budgets().unwrap());
    agent.into_storage().close().unwrap();

    let before = fs::read(&path).unwrap();
    recorder::start(path.parent().unwrap());
    let mut agent = open(&path, config);
    let mut answered = vec![(recorder::noted(), start)];
    let now = 113 * DAY;
    for step in 0..14_u64 {
        let at = now + i64::try_from(step).unwrap() * 60_000;
        use_once(&mut agent, step, at);
        answered.push((recorder::noted(), consumed(&agent.budgets().unwrap())));
    }
    agent.into_storage().close().unwrap();
    answered.push((recorder::noted(), answered.last().unwrap().1.clone()));
    Recording {
        before,
        log: recorder::stop(),
        answered,
    }
}

fn use_once(agent: &mut Agent, step: u64, at: i64) {
    let call = by("shop-0.example", 300 + step, at);
    match step {
        // A report that is shared, from the object that `live` left.
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
        // A new epoch's impressions, so that there is something to charge.
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

/// What becomes of a write that was not flushed.
#[derive(Debug, Clone, Copy)]
enum Fate {
    Dropped,
    Written,
    /// Any of the above, or some sectors.
    Random,
}

/// How the store is wrong, if it is.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Flaw {
    /// It does not flush its log.
    NoFlush,
}

/// A small source of numbers that are the same each time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 16).unwrap() % bound
    }
}

/// A file as a disk might have it: its content, or nothing.
fn after_cut(
    before: Option<Vec<u8>>,
    operations: &[&Operation],
    fate: Fate,
    dice: &mut Dice,
) -> Option<Vec<u8>> {
    // What was written before a flush, since the last one. A flush that fails says that the system may
    // have given up on what was written, which it then does not try again.
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
            (true, _) | (false, Fate::Written) => 2,
            (false, Fate::Dropped) => 0,
            (false, Fate::Random) => dice.below(4),
        };
        match operation {
            Operation::Flush | Operation::FailedFlush => {}
            Operation::Write { offset, data } => {
                let content = file.get_or_insert_default();
                let end = offset + data.len();
                if chance > 0 && content.len() < end {
                    // The file may be longer already while its new part is not there yet.
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

/// Plays a power cut at every moment, and gives what went wrong.
fn cut_everywhere(recording: &Recording, config: &Config, flaw: Option<Flaw>) -> Vec<String> {
    let mut dice = Dice(0x2545_f491_4f6c_dd1d);
    let mut wrong = Vec::new();
    for moment in 0..=recording.log.len() {
        for fate in [Fate::Dropped, Fate::Written, Fate::Random, Fate::Random] {
            let mut of_file: BTreeMap<&Path, Vec<&Operation>> = BTreeMap::new();
            for (path, operation) in &recording.log[..moment] {
                let is_log = path.to_string_lossy().ends_with("-wal");
                if !(is_log && flaw == Some(Flaw::NoFlush) && matches!(operation, Operation::Flush))
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
    let randomness = common::Sequence::default();
    let now = Timestamp(i64::MIN);
    let agent = bigbird_user_agent::UserAgent::new(config.clone(), store, randomness, now);
    let mut agent = agent.map_err(|error| error.to_string())?;
    let found = consumed(&agent.budgets().map_err(|error| error.to_string())?);
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

/// The same, if the log were not flushed: the test above would have noticed.
#[test]
fn a_store_that_does_not_flush_is_caught() {
    let _turn = TURN.lock();
    let folder = folder();
    let config = config(Profile::BigBird, 1000);
    let recording = record(&folder, &config);
    let wrong = cut_everywhere(&recording, &config, Some(Flaw::NoFlush));
    assert!(!wrong.is_empty());
}

/// A conversion is flushed once, whatever it finds; an impression too; a click is not.
#[test]
fn a_conversion_is_one_flush() {
    let _turn = TURN.lock();
    recorder::install();
    let folder = folder();
    let path: PathBuf = folder.file("store");
    let config = config(Profile::BigBird, 1000);
    let mut agent = open(&path, &config);
    live(&mut agent);
    let flushes = |agent: &mut Agent, step: &mut dyn FnMut(&mut Agent)| {
        recorder::start(path.parent().unwrap());
        step(agent);
        let log = recorder::stop();
        log.iter()
            .filter(|(_, it)| matches!(it, Operation::Flush))
            .count()
    };
    let at = 113 * DAY;
    for site in ["shop-0.example", "shop-1.example", "nobody.example"] {
        let mut step = |agent: &mut Agent| {
            let _ = measure(agent, &by(site, 600, at), 0.05).unwrap();
        };
        assert_eq!(flushes(&mut agent, &mut step), 1, "{site}");
    }
    agent.set_enabled(false).unwrap();
    let mut disabled = |agent: &mut Agent| {
        let _ = measure(agent, &by("shop-0.example", 601, at), 0.05).unwrap();
    };
    assert_eq!(flushes(&mut agent, &mut disabled), 1);
    let options = bigbird_user_agent::ImpressionOptions::new(2);
    let mut save = |agent: &mut Agent| {
        agent
            .save_impression(&by("news.example", 602, at), &options)
            .unwrap();
    };
    assert_eq!(flushes(&mut agent, &mut save), 1);
    agent.set_enabled(true).unwrap();
    let mut click = |agent: &mut Agent| {
        let _ = agent.begin_user_action(Timestamp(at)).unwrap();
    };
    // The first takes numbers from the store.
    assert_eq!(
        [
            flushes(&mut agent, &mut click),
            flushes(&mut agent, &mut click)
        ],
        [1, 0]
    );
}

/// A full disk, or one that fails, at every write of a conversion: an error, no report, and nothing
/// half done.
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
            let before = consumed(&agent.budgets().unwrap());

            recorder::fail_after(path.parent().unwrap(), successes, status);
            let measured = measure(&mut agent, &by("shop-0.example", 601, at + 1), 0.1);
            recorder::stop();
            let after = consumed(&agent.budgets().unwrap());
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
            // It goes on when there is room again, and nothing is lost that was there.
            let report = measure(&mut agent, &by("shop-0.example", 602, at + 2), 0.1).unwrap();
            assert_ne!(report, [0; 5]);
            drop(agent);
            bigbird_store::check(&path).unwrap();
        }
        assert!(failures > 4, "{failures}");
    }
}

/// When flushes fail, SQLite takes transactions back, whose frames stay in the log, behind those of the
/// next one. Here each is shorter than the one before, so that the remnants of several lie behind each
/// other when the disk recovers. A kill at that moment leaves a good store.
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
    let save = |agent: &mut Agent, sites: u64| {
        let names: Vec<String> = (0..sites).map(|it| format!("a-{it}.example")).collect();
        let calls = names.iter().enumerate();
        let calls = calls.map(|(number, name)| (by(name, 700 + number as u64, at), &options));
        agent.save_impressions(calls).map(|saved| saved.len())
    };
    save(&mut agent, 1).unwrap();
    recorder::start(path.parent().unwrap());
    recorder::fail(|path, kind| {
        let is_log = path.to_string_lossy().ends_with("-wal");
        (is_log && kind == Kind::Flush).then_some(Fault::Whole(ffi::SQLITE_IOERR_FSYNC))
    });
    for sites in [400, 150, 40] {
        save(&mut agent, sites).unwrap_err();
    }
    recorder::recover();
    let report = measure(&mut agent, &by("shop-0.example", 602, at + 2), 0.1).unwrap();
    assert_ne!(report, [0; 5]);
    recorder::stop();
    let expected = consumed(&agent.budgets().unwrap());
    // As a kill leaves it.
    let image = folder.file("image");
    for name in ["", "-wal"] {
        fs::copy(with(&path, name), with(&image, name)).unwrap();
    }
    bigbird_store::check(&image).unwrap();
    let mut agent = open(&image, &config);
    assert_eq!(consumed(&agent.budgets().unwrap()), expected);
}

fn with(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// A number that whoever runs the tests may set.
fn setting(name: &str, default: u64) -> u64 {
    let set = std::env::var(name);
    set.map_or(default, |set| set.parse().unwrap())
}

/// Nothing that was answered is lost, and nothing is answered wrongly, whatever fails and whenever it
/// ends.
#[test]
fn a_life_on_a_failing_disk_is_as_in_memory() {
    let _turn = TURN.lock();
    let steps = setting("BIGBIRD_FAULT_STEPS", 800);
    let seed = setting("BIGBIRD_FAULT_SEED", 0x2545_f491_4f6c_dd1d);
    let lived = faults::live_on_a_failing_disk(steps, seed, None);
    let tally = lived.unwrap_or_else(|wrong| panic!("{wrong}"));
    println!("{tally:?}");
    assert!(tally.answered > steps / 2, "{tally:?}");
    let faults::Tally {
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

/// The same with a store that does not flush: the test above would have noticed.
#[test]
fn a_life_without_flushes_is_caught() {
    let _turn = TURN.lock();
    let flaw = Some(faults::Flaw::NoFlush);
    faults::live_on_a_failing_disk(800, 0x2545_f491_4f6c_dd1d, flaw).unwrap_err();
}

/// Makes a store where there is one of that name.
type Make = fn(&Path) -> Result<(), bigbird_store::StoreError>;

/// SQLite does not tell when it cannot move the log of a new file into the file while closing. No
/// broken file is put in its place, and nothing is left beside it.
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

/// Makes a store while one operation fails, or all from there on. Says whether there were as many.
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
        if kind == Kind::Read {
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
    // What was there is still good, or was replaced by what is.
    bigbird_store::check(&path).unwrap();
    for file in fs::read_dir(folder.path()).unwrap() {
        let file = file.unwrap().file_name().into_string().unwrap();
        assert!(!file.contains(".new-"), "{file}");
    }
    failed.load(Ordering::Relaxed)
}

/// A read that fails is an error of the system, which may be gone the next time: nobody should start
/// over because of it.
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
                reads += usize::from(kind == Kind::Read);
                (kind == Kind::Read && reads > successes).then_some(Fault::Whole(status))
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
                    assert!(told.starts_with("reading it failed: "), "{told}");
                }
            }
        }
    }
    bigbird_store::check(&path).unwrap();
}
