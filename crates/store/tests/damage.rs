//! Damaged files give an error or the right answer, never a refund, a panic or a hang.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use bigbird::{Profile, Timestamp};
use bigbird_store::{Damage, Problem, SqliteStore, StoreError, StoreOptions, backup, check, reset};
use bigbird_user_agent::{AgentError, Config, UserAgent};
use common::{
    DAY, Folder, SequenceRandomness, SqliteAgent, by, by_hand, config, consumed, folder, live,
    measure, open,
};
use rusqlite::Connection;

const PAGE: usize = 4096;

/// A closed store with rows of every kind, and its configuration.
fn sample(folder: &Folder) -> (PathBuf, Config) {
    let config = config(Profile::BigBird, 1000);
    let path = folder.file("store");
    let mut agent = open(&path, &config);
    live(&mut agent);
    agent.into_storage().close().unwrap();
    assert!(!log_of(&path).exists());
    (path, config)
}

fn log_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    name.into()
}

fn index_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("-shm");
    name.into()
}

fn try_open(path: &Path, config: &Config) -> Result<SqliteAgent, StoreError> {
    let store = SqliteStore::open(path, &StoreOptions::default())?;
    let now = Timestamp(i64::MIN);
    UserAgent::new(config.clone(), store, SequenceRandomness::default(), now)
}

/// What a user of the store sees: each report, and the budgets after it.
type UsedStore = Vec<(Vec<u32>, ConsumedBudgets)>;

type ConsumedBudgets = Vec<(i64, String, u64)>;

fn use_it(path: &Path, config: &Config) -> Result<UsedStore, StoreError> {
    let mut agent = try_open(path, config)?;
    let mut seen = vec![(Vec::new(), consumed(&agent.filter_balances()?))];
    for number in 0..4_u64 {
        let site = format!("shop-{number}.example");
        let at = 113 * DAY + i64::try_from(number).unwrap();
        let report = match measure(&mut agent, &by(&site, 700 + number, at), 0.3) {
            Ok(report) => report,
            Err(AgentError::Store(error)) => return Err(error),
            Err(AgentError::Api(error)) => panic!("{error}"),
        };
        seen.push((report, consumed(&agent.filter_balances()?)));
    }
    agent.clear_impressions_for_site("news-1.example")?;
    agent.maintain(Timestamp(114 * DAY))?;
    seen.push((Vec::new(), consumed(&agent.filter_balances()?)));
    agent.into_storage().close()?;
    Ok(seen)
}

/// Uses damaged copies of a store. Each must give an error, or the same as the intact store.
/// Returns the number of errors.
fn damaged(copies: impl IntoIterator<Item = Vec<u8>>) -> usize {
    let folder = folder();
    let (path, config) = sample(&folder);
    let intact = fs::read(&path).unwrap();
    let expected = use_it(&path, &config).unwrap();
    let copy = folder.file("copy");
    let mut errors = 0;
    for mut content in copies {
        for (byte, flip) in content.iter_mut().zip(&intact) {
            *byte ^= flip;
        }
        let _ = fs::remove_file(log_of(&copy));
        fs::write(&copy, &content).unwrap();
        match use_it(&copy, &config) {
            Ok(seen) => assert_eq!(seen, expected),
            Err(error) => {
                errors += 1;
                let told = error.to_string();
                assert!(told.contains(copy.to_str().unwrap()) && told.lines().count() == 1);
            }
        }
    }
    errors
}

fn sample_size() -> usize {
    let folder = folder();
    let (path, _) = sample(&folder);
    fs::metadata(path).unwrap().len().try_into().unwrap()
}

/// Changes to a file of `size` bytes, one for each place. A change is a mask for the whole file.
fn flips(size: usize, places: impl Iterator<Item = (usize, u8)>) -> impl Iterator<Item = Vec<u8>> {
    places.map(move |(place, flip)| {
        let mut change = vec![0; size];
        change[place] = flip;
        change
    })
}

#[test]
fn every_flipped_byte_of_the_header_page_is_an_error() {
    let places = (0..PAGE).map(|place| (place, 1 << (place % 8)));
    assert_eq!(damaged(flips(sample_size(), places)), PAGE);
    let places = (0..PAGE).map(|place| (place, 0xff));
    assert_eq!(damaged(flips(sample_size(), places)), PAGE);
}

#[test]
fn a_flipped_bit_anywhere_is_an_error_or_does_not_matter() {
    let size = sample_size();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state >> 20).unwrap()
    };
    let places = (0..1000).map(move |_| (PAGE + random() % (size - PAGE), 1 << (random() % 8)));
    // A page that nobody reads may be damaged.
    let errors = damaged(flips(size, places));
    assert!(errors > 500, "{errors} errors");
}

#[test]
fn a_file_that_is_cut_off_is_an_error() {
    let folder = folder();
    let (path, config) = sample(&folder);
    let intact = fs::read(&path).unwrap();
    let cut = folder.file("cut");
    let lengths = (0..intact.len() / PAGE).map(|page| page * PAGE);
    for length in lengths.chain([1, 15, 16, 99, 100, 511, 4095]) {
        fs::write(&cut, &intact[..length]).unwrap();
        let error = use_it(&cut, &config).unwrap_err();
        assert!(
            matches!(error.problem(), Problem::Damaged(_) | Problem::NotAStore),
            "{length}: {error}"
        );
        // The file was left as it was.
        assert_eq!(fs::read(&cut).unwrap(), &intact[..length]);
    }
}

#[test]
fn what_is_no_store_is_left_alone() {
    let folder = folder();
    let options = StoreOptions::default();
    let path = folder.file("file");
    for content in [
        &b"a diary"[..],
        &[0; 5000],
        b"SQLite format 3\0 but not really",
    ] {
        fs::write(&path, content).unwrap();
        for opened in [
            SqliteStore::open(&path, &options),
            SqliteStore::open_or_create(&path, &options),
        ] {
            let error = opened.unwrap_err();
            assert!(
                matches!(error.problem(), Problem::NotAStore | Problem::Damaged(_)),
                "{error}"
            );
        }
        assert_eq!(fs::read(&path).unwrap(), content);
    }
    // A database of another program.
    fs::remove_file(&path).unwrap();
    let other = Connection::open(&path).unwrap();
    other
        .execute_batch("CREATE TABLE t (x); INSERT INTO t VALUES (1)")
        .unwrap();
    other.close().unwrap();
    let error = SqliteStore::open_or_create(&path, &options).unwrap_err();
    assert!(matches!(error.problem(), Problem::NotAStore), "{error}");
    let other = Connection::open(&path).unwrap();
    assert_eq!(
        other.query_row("SELECT x FROM t", [], |row| row.get(0)),
        Ok(1)
    );

    let error = SqliteStore::open_or_create(folder.file(""), &options).unwrap_err();
    assert!(matches!(error.problem(), Problem::NotAStore), "{error}");
    let error = SqliteStore::open(folder.file("nothing"), &options).unwrap_err();
    assert!(matches!(error.problem(), Problem::Missing), "{error}");
    let error = SqliteStore::open_or_create(folder.file("no/folder"), &options).unwrap_err();
    assert!(matches!(error.problem(), Problem::NoFolder(_)), "{error}");
}

fn problem_after(change: &str) -> Option<String> {
    let folder = folder();
    let (path, config) = sample(&folder);
    let hand = by_hand(&path);
    let changed = hand.execute(change, []).unwrap();
    assert!(changed > 0, "{change} changed nothing");
    hand.close().unwrap();
    let refused = check(&path).err();
    let used = use_it(&path, &config);
    assert_eq!(used.is_err(), refused.is_some(), "{change}");
    refused.map(|error| error.problem().to_string())
}

#[test]
fn rows_that_were_altered_by_hand_are_noticed() {
    for (change, expected) in [
        (
            "UPDATE filter SET consumed = 0 WHERE kind = 1",
            "the global budget in epoch",
        ),
        (
            "UPDATE filter SET consumed = consumed - 1 WHERE kind = 0",
            "the querier budget in epoch",
        ),
        ("UPDATE filter SET epoch = epoch + 100", "in epoch"),
        (
            "UPDATE filter SET kind = 9 WHERE kind = 1",
            "filter 0 of kind 9",
        ),
        (
            "DELETE FROM filter WHERE kind = 1",
            "the ledger does not match its digest",
        ),
        ("DELETE FROM filter", "the ledger does not match its digest"),
        (
            "UPDATE site SET name = 'other.example' WHERE name = 'shop-0.example'",
            "the name of site",
        ),
        (
            "DELETE FROM site WHERE name = 'shop-0.example'",
            "the ledger does not match its digest",
        ),
        (
            "UPDATE admission SET entries = x''",
            "the row for the 64 user actions from",
        ),
        (
            "DELETE FROM admission",
            "the ledger does not match its digest",
        ),
        ("UPDATE closed SET until = until - 1", "the closing of site"),
        ("DELETE FROM closed", "the ledger does not match its digest"),
        (
            "UPDATE object SET body = substr(body, 1, length(body) - 1)",
            "attribution object 1",
        ),
        (
            "UPDATE object SET created = created + 1",
            "attribution object 1",
        ),
        (
            "UPDATE object SET handle = zeroblob(16)",
            "attribution object 1",
        ),
        ("DELETE FROM object", "the ledger does not match its digest"),
        (
            "INSERT INTO closed VALUES (77, 5, 5)",
            "the closing of site 77",
        ),
        (
            "UPDATE device SET next_user_action = 2",
            "the row for the device",
        ),
        (
            "UPDATE device SET first_epoch = first_epoch + 1",
            "the row for the device",
        ),
        ("UPDATE device SET digest = 0", "the row for the device"),
        (
            "UPDATE device SET timeline = replace(timeline, '1000000', '2000000')",
            "the row for the device",
        ),
        ("DELETE FROM device", "the row for the device"),
    ] {
        let problem = problem_after(change).unwrap_or_default();
        assert!(problem.contains(expected), "{change}: {problem}");
    }
    // A program that knows neither the row guards nor the digest would not notice a deleted filter.
    let folder = folder();
    let (path, _) = sample(&folder);
    let hand = by_hand(&path);
    hand.execute("DELETE FROM filter WHERE kind = 1", [])
        .unwrap();
    let spent = hand.query_row(
        "SELECT ifnull(sum(consumed), 0) FROM filter WHERE kind = 1",
        [],
        |row| row.get::<_, i64>(0),
    );
    assert_eq!(spent, Ok(0));
}

/// Rows are exchanged for those of an older copy. Each of them is intact.
#[test]
fn rows_of_an_older_copy_are_noticed() {
    let folder = folder();
    let (path, config) = sample(&folder);
    let old = folder.file("old");
    backup(&path, &old).unwrap();
    spend_more(&mut open(&path, &config), 2);
    let hand = by_hand(&path);
    hand.execute("ATTACH ? AS old", [old.to_str().unwrap()])
        .unwrap();
    hand.execute("REPLACE INTO main.filter SELECT * FROM old.filter", [])
        .unwrap();
    hand.close().unwrap();
    let error = check(&path).unwrap_err();
    assert!(
        matches!(error.problem(), Problem::Damaged(Damage::Digest)),
        "{error}"
    );
}

#[test]
fn impressions_that_were_altered_are_noticed_when_they_are_read() {
    for change in [
        "UPDATE impression SET epoch = epoch + 100",
        "UPDATE impression SET histogram_index = 4 - histogram_index",
        "UPDATE impression SET audience = x''",
        "UPDATE impression SET user_action = 9",
    ] {
        let folder = folder();
        let (path, config) = sample(&folder);
        by_hand(&path).execute(change, []).unwrap();
        let problem = check(&path).unwrap_err();
        assert!(problem.to_string().contains("impression"), "{problem}");
        let error = use_it(&path, &config).unwrap_err();
        assert!(
            matches!(error.problem(), Problem::Damaged(Damage::Row(_))),
            "{error}"
        );
    }
    // The lookup tables are not part of the ledger. `check` finds damage there that normal use does
    // not.
    for change in [
        "DELETE FROM reach",
        "DELETE FROM site_size",
        "UPDATE epoch_size SET units = 1",
    ] {
        let folder = folder();
        let (path, _) = sample(&folder);
        by_hand(&path).execute(change, []).unwrap();
        let error = check(&path).unwrap_err();
        assert!(
            matches!(error.problem(), Problem::Damaged(Damage::Invariant(_))),
            "{error}"
        );
    }
}

/// History that was altered is noticed by `check` and when it is shown. Calls go on, because no
/// call reads it. Entries that were deleted are only missing.
#[test]
fn history_that_was_altered_is_noticed_when_it_is_shown() {
    for change in [
        "UPDATE history SET epoch = epoch + 1",
        "UPDATE history SET kind = 1 - kind WHERE kind < 2",
        "UPDATE history SET kind = 9",
        "UPDATE history SET site = site || 'x'",
        "UPDATE history SET caller = site, site = caller || 'x'",
        "UPDATE history SET body = replace(body, 'example', 'elpmaxe')",
        "UPDATE history SET number = number + 1000",
    ] {
        let folder = folder();
        let (path, config) = sample(&folder);
        let altered = by_hand(&path).execute(change, []).unwrap();
        assert!(altered > 0, "{change}");
        let problem = check(&path).unwrap_err();
        assert!(
            problem.to_string().contains("of history"),
            "{change}: {problem}"
        );
        let mut agent = open(&path, &config);
        let error = agent.history(None, None, usize::MAX).unwrap_err();
        assert!(
            matches!(error.problem(), Problem::Damaged(Damage::Row(_))),
            "{change}: {error}"
        );
        measure(&mut agent, &by("shop-9.example", 900, 112 * DAY), 0.1).unwrap();
    }
    let folder = folder();
    let (path, config) = sample(&folder);
    by_hand(&path).execute("DELETE FROM history", []).unwrap();
    assert_eq!(check(&path).unwrap().history, 0);
    use_it(&path, &config).unwrap();
}

/// An error is one line, also if it is about a statement that does not fit the schema.
#[test]
fn a_schema_that_is_not_ours_is_an_error_of_one_line() {
    let folder = folder();
    let (path, _) = sample(&folder);
    let hand = by_hand(&path);
    hand.execute_batch("ALTER TABLE device RENAME COLUMN timeline TO other")
        .unwrap();
    hand.close().unwrap();
    let told = check(&path).unwrap_err().to_string();
    assert!(told.contains("no such column: timeline"), "{told}");
    assert_eq!(told.lines().count(), 1, "{told}");
}

/// A program that does not know the page checksums breaks them when it writes.
#[test]
fn a_store_that_another_program_wrote_is_noticed() {
    let folder = folder();
    let (path, config) = sample(&folder);
    let plain = Connection::open(&path).unwrap();
    plain
        .execute("DELETE FROM filter WHERE kind = 1", [])
        .unwrap();
    plain.close().unwrap();
    let error = use_it(&path, &config).unwrap_err();
    assert!(
        matches!(error.problem(), Problem::Damaged(Damage::Page)),
        "{error}"
    );
}

/// It is refused even if another program wrote the version, so that the page does not match its
/// checksum.
#[test]
fn a_newer_schema_is_refused() {
    for connect in [by_hand, |path: &Path| Connection::open(path).unwrap()] {
        refuses_version_99(connect);
    }
}

fn refuses_version_99(connect: impl Fn(&Path) -> Connection) {
    let folder = folder();
    let (path, _) = sample(&folder);
    connect(&path)
        .pragma_update(None, "user_version", 99)
        .unwrap();
    for error in [
        check(&path).unwrap_err(),
        backup(&path, folder.file("copy")).unwrap_err(),
    ] {
        assert_eq!(
            error.problem().to_string(),
            "the schema version is 99, but this program supports versions up to 6"
        );
    }
}

/// Makes conversions that are charged. Returns the budgets before the first and after each.
fn spend_more(agent: &mut SqliteAgent, conversions: u64) -> Vec<ConsumedBudgets> {
    spend_more_from(agent, 0, conversions)
}

fn spend_more_from(agent: &mut SqliteAgent, first: u64, conversions: u64) -> Vec<ConsumedBudgets> {
    let mut history = vec![consumed(&agent.filter_balances().unwrap())];
    for number in first..first + conversions {
        let options = bigbird_user_agent::ImpressionOptions::new(2);
        let at = 115 * DAY + i64::try_from(number).unwrap();
        let site = format!("fresh-{number}.example");
        let seen = by(&site, 800 + number, at);
        agent.save_impression(&seen, &options).unwrap();
        let bought = by("shop-0.example", 900 + number, at + 1000);
        let _ = measure(agent, &bought, 0.05).unwrap();
        history.push(consumed(&agent.filter_balances().unwrap()));
        assert_ne!(history.last(), history.get(history.len() - 2));
    }
    history
}

/// A store as it is while a process has it open: the file and its log, after some conversions.
fn in_use(folder: &Folder, conversions: u64) -> (PathBuf, Config, Vec<ConsumedBudgets>) {
    let (path, config) = sample(folder);
    let mut agent = open(&path, &config);
    let history = spend_more(&mut agent, conversions);
    let image = folder.file("image");
    fs::copy(&path, &image).unwrap();
    fs::copy(log_of(&path), log_of(&image)).unwrap();
    (image, config, history)
}

fn budgets(path: &Path, config: &Config) -> Result<ConsumedBudgets, StoreError> {
    let mut agent = try_open(path, config)?;
    Ok(consumed(&agent.filter_balances()?))
}

/// Damage to the write-ahead log is detected as `docs/store.md` says.
#[test]
fn damage_to_the_log_is_noticed_up_to_the_last_transaction() {
    const FRAME: usize = PAGE + 24;
    let folder = folder();
    let (image, config, history) = in_use(&folder, 6);
    let (file, log) = (fs::read(&image).unwrap(), fs::read(log_of(&image)).unwrap());
    let restore = |log: &[u8]| {
        fs::write(&image, &file).unwrap();
        fs::write(log_of(&image), log).unwrap();
    };
    // The frames that end a transaction. The log holds several.
    let frames = (log.len() - 32) / FRAME;
    let ends: Vec<usize> = (0..frames)
        .filter(|frame| log[32 + frame * FRAME + 4..][..4] != [0; 4])
        .collect();
    assert!(ends.len() > 8, "{ends:?}");
    // The last transaction, and the last two frames of the one before.
    let last = ends[ends.len() - 2] - 1..ends[ends.len() - 1] + 1;
    assert_eq!(last.end, frames);
    restore(&log);
    let full = budgets(&image, &config).unwrap();
    assert_eq!(Some(&full), history.last());

    for frame in 0..frames {
        for place in [0, 5, 9, 17, 24, 2000, FRAME - 1] {
            let mut damaged = log.clone();
            damaged[32 + frame * FRAME + place] ^= 0x10;
            restore(&damaged);
            match budgets(&image, &config) {
                Err(error) => {
                    let problem = error.problem();
                    assert!(
                        matches!(problem, Problem::Damaged(Damage::Log(_))),
                        "{error}"
                    );
                }
                // As after a power cut, the last conversion is lost, and nothing else.
                Ok(found) => {
                    assert!(last.contains(&frame), "frame {frame} at {place}");
                    assert_eq!(found, history[history.len() - 2]);
                }
            }
        }
    }
    // Damage to any byte of the header is detected. SQLite would ignore the whole log.
    for place in 0..32 {
        let mut damaged = log.clone();
        damaged[place] ^= 1;
        restore(&damaged);
        let error = budgets(&image, &config).unwrap_err();
        assert!(
            matches!(error.problem(), Problem::Damaged(Damage::Log(_))),
            "{place}: {error}"
        );
    }
    // A log that is cut short, is all zeros, or lost its first sector, which holds the header and
    // the beginning of the first frame.
    let mut overwritten = log.clone();
    overwritten[..512].fill(0);
    let zeros = vec![0; log.len()];
    for left in [
        &log[..1],
        &log[..31],
        &log[..32],
        &log[..2000],
        &zeros,
        &overwritten,
    ] {
        restore(left);
        let error = budgets(&image, &config).unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("the write-ahead log is damaged"),
            "{error}"
        );
    }
    // A deleted log is detected, unless the store was closed.
    fs::write(&image, &file).unwrap();
    fs::remove_file(log_of(&image)).unwrap();
    let error = budgets(&image, &config).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("the write-ahead log is missing"),
        "{error}"
    );
    // A log that ends earlier cannot be detected.
    let shorter = ends[ends.len() - 3] + 1;
    restore(&log[..32 + shorter * FRAME]);
    let found = budgets(&image, &config).unwrap();
    assert_eq!(found, history[history.len() - 2]);
}

/// Puts an older log beside a store, as a restore of missing files does. The store is refused.
fn restored_log(path: &Path, log: &[u8]) -> StoreError {
    fs::write(log_of(path), log).unwrap();
    let refused = check(path).unwrap_err();
    assert!(
        matches!(refused.problem(), Problem::Damaged(Damage::Log(_))),
        "{refused}"
    );
    // The log was left as it was.
    assert_eq!(fs::read(log_of(path)).unwrap(), log);
    refused
}

/// A log that was copied while the store was in use lies beside the file as it was closed later. It
/// would refund everything that was spent in between.
#[test]
fn an_older_log_beside_a_newer_file_is_refused() {
    let folder = folder();
    let (path, config) = sample(&folder);
    let mut agent = open(&path, &config);
    spend_more(&mut agent, 2);
    let old = fs::read(log_of(&path)).unwrap();
    spend_more_from(&mut agent, 300, 3);
    let spent = consumed(&agent.filter_balances().unwrap());
    agent.into_storage().close().unwrap();
    assert!(!log_of(&path).exists());
    let refused = restored_log(&path, &old);
    assert!(
        refused
            .to_string()
            .contains("moving the log away repairs the store"),
        "{refused}"
    );
    // The advice in the message is right.
    fs::remove_file(log_of(&path)).unwrap();
    assert_eq!(budgets(&path, &config).unwrap(), spent);

    // Used again by a process that is killed at once, and by one that spends more before.
    for conversions in [0, 2] {
        let mut agent = open(&path, &config);
        let first = by("shop-0.example", 5000, 115 * DAY + 5000);
        let _ = measure(&mut agent, &first, 0.001).unwrap();
        spend_more_from(&mut agent, 600 + 300 * conversions, conversions);
        let killed = folder.file(&format!("killed-{conversions}"));
        fs::copy(&path, &killed).unwrap();
        let newest = fs::read(log_of(&path)).unwrap();
        let spent = consumed(&agent.filter_balances().unwrap());
        let refused = restored_log(&killed, &old);
        assert!(
            refused.to_string().ends_with("is older than the file"),
            "{refused}"
        );
        // With its own log, the store is in order and holds what was spent.
        fs::write(log_of(&killed), &newest).unwrap();
        assert_eq!(budgets(&killed, &config).unwrap(), spent);
    }

    // The old log is also refused beside a copy, and beside a store after a reset.
    let copy = folder.file("copy");
    backup(&path, &copy).unwrap();
    restored_log(&copy, &old);
    reset(&copy, "a test", Timestamp(116 * DAY)).unwrap();
    restored_log(&copy, &old);
}

/// If an older log lies beside a store, a reset remembers the state of the file, not of the log.
#[test]
fn a_reset_is_not_taken_back_by_an_older_log() {
    let folder = folder();
    let (path, config) = sample(&folder);
    let mut agent = open(&path, &config);
    spend_more(&mut agent, 2);
    let old = fs::read(log_of(&path)).unwrap();
    agent.set_enabled(false).unwrap();
    agent.into_storage().close().unwrap();
    restored_log(&path, &old);
    reset(&path, "a test", Timestamp(116 * DAY)).unwrap();
    assert!(
        !bigbird_store::StoreSummary::read(&path)
            .unwrap()
            .state
            .enabled
    );
}

/// A file with two names would have two logs, and every budget could be spent twice.
#[cfg(unix)]
#[test]
fn a_file_with_two_names_is_refused() {
    let folder = folder();
    let (path, config) = sample(&folder);
    let second = folder.file("second");
    fs::hard_link(&path, &second).unwrap();
    for name in [&path, &second] {
        let error = try_open(name, &config).unwrap_err();
        assert_eq!(error.problem().name(), "linked");
        assert_eq!(
            error.problem().to_string(),
            "the file has 2 names (hard links), but only 1 is allowed; delete the others"
        );
        assert!(check(name).is_err());
    }
    fs::remove_file(&second).unwrap();
    budgets(&path, &config).unwrap();
}

/// Creations and resets use second names themselves. One that is killed in between does not make
/// the store unusable. The files that it left, which reveal what the user has seen, are removed.
#[test]
fn what_killed_processes_left_is_removed() {
    let folder = folder();
    let (path, config) = sample(&folder);
    let files = |folder: &Folder| {
        let files = fs::read_dir(folder.path()).unwrap();
        let mut files: Vec<String> = files
            .map(|it| it.unwrap().file_name().into_string().unwrap())
            .collect();
        files.sort();
        files
    };
    let leave = || {
        // From a creation or a copy that was put in its place, and from one that was not.
        fs::hard_link(&path, folder.file("store.new-1-0")).unwrap();
        for name in ["store.new-1-1", "store.new-1-1-wal", "store.new-1-1-shm"] {
            fs::write(folder.file(name), "history").unwrap();
        }
        // From a reset that had not replaced the old store yet.
        fs::hard_link(&path, folder.file("store.replaced-1")).unwrap();
        // A foreign file, and a store that a reset kept. Both must stay.
        fs::write(folder.file("store.new-idea"), "a diary").unwrap();
        fs::write(folder.file("store.replaced-2"), "an old store").unwrap();
    };
    let stays = ["store", "store.new-idea", "store.replaced-2"];
    leave();
    budgets(&path, &config).unwrap();
    assert_eq!(files(&folder), stays);
    leave();
    backup(&path, folder.file("copy")).unwrap();
    fs::remove_file(folder.file("copy")).unwrap();
    assert_eq!(files(&folder), stays);
    leave();
    let kept = reset(&path, "a test", Timestamp(113 * DAY)).unwrap().kept;
    assert_eq!(kept, folder.file("store.replaced-1"));
    budgets(&path, &config).unwrap();
    assert_eq!(
        files(&folder),
        [
            "store",
            "store.new-idea",
            "store.replaced-1",
            "store.replaced-1-wal",
            "store.replaced-2"
        ]
    );
    // Leftovers are also removed when the store itself is gone.
    fs::remove_file(&path).unwrap();
    fs::write(folder.file("store.new-1-1"), "history").unwrap();
    drop(open(&path, &config));
    assert_eq!(files(&folder).len(), 5);
}

/// A file that another process is building is not removed.
#[cfg(unix)]
#[test]
fn what_is_being_made_is_not_a_leftover() {
    let folder = folder();
    let (path, config) = sample(&folder);
    let making = folder.file("store.new-1-0");
    fs::write(&making, "history").unwrap();
    let lock = fs::File::open(folder.path()).unwrap();
    lock.lock_shared().unwrap();
    budgets(&path, &config).unwrap();
    assert!(making.exists());
    lock.unlock().unwrap();
    budgets(&path, &config).unwrap();
    assert!(!making.exists());
}

/// SQLite would take a log without its store for the log of the new store.
#[test]
fn a_store_is_not_created_beside_an_old_log() {
    let folder = folder();
    let (image, _, _) = in_use(&folder, 1);
    fs::remove_file(&image).unwrap();
    let error = SqliteStore::open_or_create(&image, &StoreOptions::default()).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("the write-ahead log exists, but the store does not"),
        "{error}"
    );
    assert!(!image.exists());
}

/// Sets the time at which a file was last modified.
fn touch(path: &Path, at: i64) {
    let file = fs::File::options().append(true).open(path).unwrap();
    let since = Duration::from_millis(u64::try_from(at).unwrap());
    file.set_modified(UNIX_EPOCH + since).unwrap();
}

/// The last moment at which an ad and a purchase give an empty report. One moment is tried in each
/// of `periods` periods.
fn closed_until(agent: &mut SqliteAgent, from: i64, period: i64, periods: i64) -> i64 {
    let options = bigbird_user_agent::ImpressionOptions::new(1);
    let mut last_null = from;
    for number in 0..periods {
        let at = from + number * period;
        let action = 2000 + 2 * u64::try_from(number).unwrap();
        agent
            .save_impression(&by("news-1.example", action, at), &options)
            .unwrap();
        let call = by("shop-1.example", action + 1, at + 1);
        let report = measure(agent, &call, 0.001).unwrap();
        if report.iter().all(|bucket| *bucket == 0) {
            last_null = at;
        }
    }
    last_null
}

/// A reset refunds nothing: the epochs continue, and measuring starts after the current one.
#[test]
fn a_reset_brings_no_budget_back() {
    const HOUR: i64 = DAY / 24;
    let folder = folder();
    let (path, config) = sample(&folder);
    let now = 113 * DAY;
    let done = reset(&path, "a test", Timestamp(now)).unwrap();
    assert!(done.remembered && done.enabled);
    assert!(done.kept.exists());
    check(&path).unwrap();
    let mut agent = try_open(&path, &config).unwrap();
    let last_null = closed_until(&mut agent, now, HOUR, 3 * 7 * 24);
    // This epoch had begun two days before.
    let closed = last_null - now;
    assert!((4 * DAY..6 * DAY).contains(&closed), "{}", closed / DAY);
    assert_eq!(done.closed_until, Timestamp(now));
}

/// A store that cannot be read does not say how long its epoch was, how late it was used, or
/// whether the user had disabled the API. The clock of the reset may be behind, and the next
/// program may have shorter epochs.
#[test]
fn a_reset_assumes_the_worst_of_what_cannot_be_read() {
    const UNREADABLE: fn(&Path) = |path| fs::write(path, vec![7; 3 * PAGE]).unwrap();
    const HEADER: fn(&Path) = |path| {
        let mut content = fs::read(path).unwrap();
        content[50] ^= 1;
        fs::write(path, content).unwrap();
    };
    // The file alone may be older than what was spent, and so may its rules.
    const LOG_LOST: fn(&Path) = |path| fs::remove_file(log_of(path)).unwrap();
    let late = 130 * DAY;
    for (damage, killed) in [(UNREADABLE, false), (HEADER, false), (LOG_LOST, true)] {
        // The clock is right, or behind.
        for now in [late, 113 * DAY, 50 * DAY] {
            let folder = folder();
            let (path, config) = sample(&folder);
            let mut agent = open(&path, &config);
            spend_more(&mut agent, 1);
            let path = if killed {
                let image = folder.file("killed");
                fs::copy(&path, &image).unwrap();
                fs::copy(log_of(&path), log_of(&image)).unwrap();
                image
            } else {
                agent.into_storage().close().unwrap();
                path
            };
            damage(&path);
            touch(&path, late);
            let done = reset(&path, "a test", Timestamp(now)).unwrap();
            assert!(!done.remembered && !done.enabled);
            check(&path).unwrap();

            for epoch_days in [1, 7, 30] {
                let config = Config {
                    epoch_days,
                    ..config.clone()
                };
                let copy = folder.file(&format!("copy-{epoch_days}"));
                backup(&path, &copy).unwrap();
                let mut agent = try_open(&copy, &config).unwrap();
                // The API is disabled until the user enables it.
                let after = late + 500 * DAY;
                assert_eq!(closed_until(&mut agent, after, DAY, 2), after + DAY);
                drop(agent);
                fs::remove_file(&copy).unwrap();
                backup(&path, &copy).unwrap();
                let mut agent = try_open(&copy, &config).unwrap();
                agent.set_enabled(true).unwrap();
                let last_null = closed_until(&mut agent, now, DAY, (late - now) / DAY + 440);
                let closed = (last_null - late) / DAY;
                // The epoch at the end of the 400 days is closed as a whole.
                let longest = 400 + i64::from(epoch_days.max(7));
                assert!((400..=longest).contains(&closed), "{closed} days");
                assert_eq!(done.closed_until, Timestamp(late + 400 * DAY));
            }
        }
    }
}

/// A reset by root, for example by a service, leaves a store that its owner can use.
#[cfg(unix)]
#[test]
fn a_reset_keeps_the_owner_and_the_permissions() {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
    let folder = folder();
    let (path, _) = sample(&folder);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    // Only root may give files away.
    let given = chown(&path, Some(12_345), Some(54_321)).is_ok();
    let of = |path: &Path| {
        let metadata = fs::metadata(path).unwrap();
        (metadata.uid(), metadata.gid(), metadata.mode())
    };
    let before = of(&path);
    assert!(!given || before.0 == 12_345);
    reset(&path, "a test", Timestamp(113 * DAY)).unwrap();
    assert_eq!(of(&path), before);
}

/// A process that has the old store open when it is replaced cannot continue with it.
#[test]
fn a_reset_is_noticed_by_who_has_the_store_open() {
    let folder = folder();
    let (path, config) = sample(&folder);
    let mut agent = open(&path, &config);
    let _ = measure(&mut agent, &by("shop-0.example", 700, 113 * DAY), 0.1).unwrap();
    reset(&path, "a test", Timestamp(113 * DAY)).unwrap();
    match measure(&mut agent, &by("shop-0.example", 701, 113 * DAY), 0.1) {
        Err(AgentError::Store(error)) => {
            assert!(matches!(error.problem(), Problem::Replaced), "{error}");
        }
        other => panic!("{other:?}"),
    }
    drop(agent);
    check(&path).unwrap();
}

#[test]
fn a_copy_is_a_store() {
    let folder = folder();
    let (path, config) = sample(&folder);
    let copy = folder.file("copy");
    backup(&path, &copy).unwrap();
    assert_eq!(check(&copy).unwrap(), check(&path).unwrap());
    assert_eq!(
        budgets(&copy, &config).unwrap(),
        budgets(&path, &config).unwrap()
    );
    let error = backup(&path, &copy).unwrap_err();
    assert!(matches!(error.problem(), Problem::Exists), "{error}");
    // A store that is in use can be copied too.
    let (image, config, history) = in_use(&folder, 2);
    let copy = folder.file("another");
    backup(&image, &copy).unwrap();
    assert_eq!(Some(&budgets(&copy, &config).unwrap()), history.last());
}

/// Checking a read-only store leaves no file that its owner cannot write later.
#[cfg(unix)]
#[test]
fn a_look_at_a_read_only_store_leaves_no_index() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = folder();
    let (image, config, history) = in_use(&folder, 1);
    let may = |mode| fs::set_permissions(&image, fs::Permissions::from_mode(mode)).unwrap();
    may(0o444);
    let error = check(&image).unwrap_err();
    assert!(matches!(error.problem(), Problem::ReadOnly), "{error}");
    assert!(!index_of(&image).exists());
    may(0o600);
    assert_eq!(Some(&budgets(&image, &config).unwrap()), history.last());
}

/// An error of the system is reported as such, and not as a missing permission.
#[cfg(target_os = "linux")]
#[test]
fn an_error_of_the_system_is_told_as_it_is() {
    let folder = folder();
    let (image, config, history) = in_use(&folder, 1);
    // SQLite cannot open its index where a folder is.
    fs::create_dir(index_of(&image)).unwrap();
    let error = budgets(&image, &config).unwrap_err();
    let told = error.problem().to_string();
    assert!(
        told.starts_with("opening the log and its index (-wal, -shm) for writing failed"),
        "{told}"
    );
    fs::remove_dir(index_of(&image)).unwrap();
    assert_eq!(Some(&budgets(&image, &config).unwrap()), history.last());
}

/// An error while a store is opened after a crash does not delete its log.
#[test]
fn an_error_while_opening_loses_nothing() {
    let folder = folder();
    let (image, config, history) = in_use(&folder, 3);
    let index = index_of(&image);
    // SQLite cannot create its index where a folder is.
    fs::create_dir(&index).unwrap();
    assert!(budgets(&image, &config).is_err());
    fs::remove_dir(&index).unwrap();
    assert_eq!(Some(&budgets(&image, &config).unwrap()), history.last());
}

/// The text at the path of a store that is being reset.
fn placeholder(kept: &Path) -> String {
    format!(
        "This Big Bird store is being reset. If this file stays, the reset was interrupted: run \
         `bigbird store reset` again.\nThe old store is {}",
        kept.display()
    )
}

/// A reset that was interrupted left a text at the path of the store. Another reset continues it.
#[test]
fn an_interrupted_reset_is_taken_up() {
    let folder = folder();
    let (path, config) = sample(&folder);
    let mut agent = open(&path, &config);
    agent.set_enabled(false).unwrap();
    drop(agent);
    let kept = reset(&path, "first", Timestamp(113 * DAY)).unwrap().kept;
    // The state before the new store was put in its place.
    fs::write(&path, placeholder(&kept)).unwrap();
    let error = check(&path).unwrap_err();
    assert!(matches!(error.problem(), Problem::NotAStore), "{error}");
    let done = reset(&path, "second", Timestamp(113 * DAY)).unwrap();
    assert_eq!((done.kept, done.remembered), (kept, true));
    // The user had disabled the API, and it is still disabled.
    assert!(
        !bigbird_store::StoreSummary::read(&path)
            .unwrap()
            .state
            .enabled
    );
}

/// A reset that was interrupted before it moved the log is continued too. Without its log, the old
/// store is not complete.
#[test]
fn an_interrupted_reset_finds_the_log_of_the_old_store() {
    let folder = folder();
    let (image, _, _) = in_use(&folder, 2);
    let kept = folder.file("image.replaced-1");
    fs::rename(&image, &kept).unwrap();
    fs::write(&image, placeholder(&kept)).unwrap();
    let done = reset(&image, "second", Timestamp(116 * DAY)).unwrap();
    assert!(done.remembered && done.enabled);
    assert_eq!(done.kept, kept);
    assert!(log_of(&kept).exists() && !log_of(&image).exists());
    assert_eq!(done.kept_log, Some(log_of(&kept)));
}

/// A half-done transaction cannot be committed, even by a caller that ignores an error.
#[test]
fn a_transaction_that_failed_cannot_be_finished() {
    use bigbird::{Capacity, Filter, LedgerView as _};
    use bigbird_user_agent::{ChangeSet, Storage as _, Transaction as _, View as _};
    let folder = folder();
    let (path, config) = sample(&folder);
    let mut agent = open(&path, &config);
    // Changed by another program while the store is open.
    by_hand(&path)
        .execute("UPDATE filter SET consumed = 1 WHERE kind = 1", [])
        .unwrap();
    let mut tx = agent.storage_mut().begin().unwrap();
    let timeline = tx.state().unwrap().timeline;
    let epoch = timeline.epoch(Timestamp(110 * DAY)).unwrap();
    let asked = bigbird::MicroEpsilon::new(1);
    let unread = bigbird::Check::new(epoch, Filter::GlobalBudget, Capacity::Finite(asked), asked);
    assert!(tx.consumed(epoch, &mut [unread]).is_err());
    tx.apply(&ChangeSet::default()).unwrap();
    let error = tx.commit().unwrap_err();
    assert!(matches!(error.problem(), Problem::HalfDone), "{error}");
}

/// A reset can read what it must know from a store of an earlier version.
#[test]
fn a_reset_remembers_stores_of_earlier_versions() {
    for name in ["v1", "v2"] {
        let folder = folder();
        let path = folder.file("store");
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        fs::copy(fixtures.join(format!("{name}.store")), &path).unwrap();
        let done = reset(&path, "old", Timestamp(116 * DAY)).unwrap();
        assert!(done.remembered, "{name}");
        let state = bigbird_store::StoreSummary::read(&path).unwrap().state;
        assert!(state.next_user_action > 1, "{name}");
        let epoch = state.timeline.epoch(Timestamp(116 * DAY)).unwrap();
        assert_eq!(state.first_epoch.0, epoch.0 + 1, "{name}");
    }
}
