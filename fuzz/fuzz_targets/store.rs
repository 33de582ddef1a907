//! Property: a damaged store is refused, or it holds exactly what it held. It never holds less, and
//! nothing makes it panic.
//!
//! The input says how to damage the file and the write-ahead log of a valid store. The stores are
//! made when the target starts: one that was closed, two as a process leaves them that is killed,
//! and some of older versions. With `reseal` the checksums of damaged pages are made right again,
//! so that what guards the rows is tested too. Some inputs are taken as a file or as a log, byte
//! for byte.
//!
//! What may be lost is what `docs/store.md` says: damage at the end of the log looks like a power
//! cut, and a log may end earlier. Then the store must hold what the log says up to there. Damage
//! before that must be refused, if what follows proves that it is damage.
//!
//! A store that opens is then used, which must not lower any budget. Any store can be reset, after
//! which no epoch of the past can be charged again.
#![no_main]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use arbitrary::{Result, Unstructured};
use bigbird::{Profile, Timestamp};
use bigbird_fuzz::{FuzzFolder, damage, one_in};
use bigbird_store::{SqliteStore, StoreError, StoreOptions, StoreSummary, check, reset};
use bigbird_testing::FixedRandomness;
use bigbird_user_agent::{
    Action, AgentError, Call, Config, ConversionOptions, ImpressionOptions, UserAgent,
};
use libfuzzer_sys::fuzz_target;
use twox_hash::XxHash3_64;

fuzz_target!(|bytes: &[u8]| {
    // Input that ends early is less damage.
    let _ = open_damaged(&mut Unstructured::new(bytes));
});

/// The sizes of SQLite's formats: a page of the file, and the header and a frame of the log.
const PAGE: usize = 4096;
const HEADER: usize = 32;
const FRAME: usize = 24 + PAGE;

fn open_damaged(source: &mut Unstructured<'_>) -> Result<()> {
    let folder = FuzzFolder::new();
    let path = folder.file("store");
    let base = source.choose(&BASES)?;
    let mut file = base.file.clone();
    let mut log = base.log.clone();
    let mut resealed = false;
    match source.int_in_range(0..=15)? {
        0 => {
            file = source.bytes(source.len())?.to_vec();
            log = None;
        }
        1 => log = Some(source.bytes(source.len())?.to_vec()),
        2 => {
            // A write that never reached the disk: the page is intact, and of another time.
            let other = &source.choose(&BASES)?.file;
            let pages = file.len().min(other.len()) / PAGE;
            let at = source.choose_index(pages)? * PAGE;
            file[at..at + PAGE].copy_from_slice(&other[at..at + PAGE]);
        }
        3..=8 => {
            damage(source, &mut file, PAGE)?;
            resealed = source.arbitrary()?;
            if resealed {
                reseal(&mut file, &base.file);
            }
        }
        9 => {
            // Both, as a disk that fails.
            damage(source, &mut file, PAGE)?;
            if let Some(log) = &mut log {
                damage(source, log, FRAME)?;
            }
        }
        _ => match &mut log {
            Some(log) => damage(source, log, FRAME)?,
            None => damage(source, &mut file, PAGE)?,
        },
    }
    write(&path, &file, log.as_deref());
    if one_in(source, 8)? {
        check_reset(&path, source.arbitrary()?);
        return Ok(());
    }
    match Holdings::read(&path) {
        Err(error) => {
            check_error(&error, &path);
            // It can still be looked into, or repaired by hand. Damage to an old one may be found
            // after it was migrated.
            let is_as_before = fs::read(&path).is_ok_and(|now| now == file);
            assert!(is_as_before || base.is_old, "{}: {error}", base.name);
        }
        Ok(holdings) => {
            let Some(expected) = base.expected(log.as_deref()) else {
                panic!("{}: it must be refused, and it opens", base.name);
            };
            assert_eq!(*expected, holdings, "{}", base.name);
            let after = go_on(&path);
            // Pages that are wrong and have the right checksum are not promised to be noticed
            // later.
            if !resealed {
                check_after(&holdings, after);
            }
        }
    }
    Ok(())
}

/// Gives every page that differs its checksum.
fn reseal(file: &mut [u8], before: &[u8]) {
    for (number, page) in file.chunks_exact_mut(PAGE).enumerate() {
        let at = number * PAGE;
        if before.get(at..at + PAGE) != Some(page) {
            let (content, sum) = page.split_at_mut(PAGE - 8);
            let seal = XxHash3_64::oneshot_with_seed(at as u64, content);
            sum.copy_from_slice(&seal.to_le_bytes());
        }
    }
}

/// Errors are one line that names the file.
fn check_error(error: &StoreError, path: &Path) {
    let told = error.to_string();
    let name = path.to_str().expect("our own name");
    assert!(told.contains(name) && told.lines().count() == 1, "{told}");
}

/// Goes on with a store, which may meet damage that nobody had to read before. Says what it holds
/// then, if it can be read.
fn go_on(path: &Path) -> Option<Holdings> {
    if let Err(error) = check(path) {
        check_error(&error, path);
    }
    if let Err(error) = make_calls(path) {
        check_error(&error, path);
    }
    Holdings::read(path).ok()
}

fn make_calls(path: &Path) -> std::result::Result<(), StoreError> {
    let mut agent = agent(path)?;
    let api = |error| match error {
        AgentError::Store(error) => error,
        AgentError::Api(error) => panic!("{error}"),
    };
    let seen = by("news-2.example", 700, 113 * DAY);
    let saved = agent.save_impression(&seen, &ImpressionOptions::new(1));
    saved.map_err(api)?;
    let bought = by("shop-2.example", 701, 113 * DAY + 1);
    let measured = agent.measure_conversion(&bought, &conversion());
    let _ = measured.map_err(api)?;
    agent.clear_impressions_for_site("news-1.example")?;
    agent.maintain(Timestamp(114 * DAY))?;
    agent.into_storage().close()
}

/// What was spent stays spent.
fn check_after(before: &Holdings, after: Option<Holdings>) {
    let Some(after) = after else {
        return;
    };
    for (filter, consumed) in &before.budgets {
        let now = after.budgets.get(filter);
        let is_pruned = filter.0 < after.first_epoch;
        assert!(is_pruned || now >= Some(consumed), "{filter:?}: {now:?}");
    }
}

/// A store in the place of another knows nothing of what was spent, and measures nothing in the
/// epochs in which that was.
fn check_reset(path: &Path, ahead: bool) {
    let now = Timestamp(if ahead { 130 } else { 113 } * DAY);
    match reset(path, "fuzzing", now) {
        Err(error) => check_error(&error, path),
        Ok(done) => {
            assert!(done.closed_until >= now && done.kept.exists(), "{done:?}");
            let contents = StoreSummary::read(path).expect("a new store");
            assert_eq!(contents.state.enabled, done.enabled);
            let budgets = contents.epochs.iter().map(|epoch| epoch.budgets.len());
            assert_eq!(budgets.sum::<usize>(), 0);
            let first = contents.state.first_epoch;
            let current = contents.state.timeline.epoch(now);
            assert!(current.is_none_or(|epoch| epoch < first), "{contents:#?}");
        }
    }
}

/// What must not be lost.
#[derive(Debug, Clone, PartialEq)]
struct Holdings {
    /// What every filter consumed.
    budgets: BTreeMap<(i64, String), u64>,
    /// What the user closed.
    closed: Vec<String>,
    first_epoch: i64,
    enabled: bool,
}

impl Holdings {
    fn read(path: &Path) -> std::result::Result<Self, StoreError> {
        let contents = StoreSummary::read(path)?;
        let budgets = contents.epochs.iter().flat_map(|epoch| &epoch.budgets);
        let budgets = budgets.map(|budget| {
            let filter = (budget.epoch, budget.to_string());
            (filter, budget.balance.consumed.get())
        });
        Ok(Self {
            budgets: budgets.collect(),
            closed: contents.closed.iter().map(|it| format!("{it:?}")).collect(),
            first_epoch: contents.state.first_epoch.0,
            enabled: contents.state.enabled,
        })
    }
}

/// A valid store.
struct Base {
    name: &'static str,
    /// Whether it is of an older version.
    is_old: bool,
    file: Vec<u8>,
    log: Option<Vec<u8>>,
    /// For each frame of the log that SQLite reads: whether it ends a transaction.
    ends: Vec<bool>,
    /// What the store holds after that many transactions of the log. Nothing if it is refused then.
    holdings: Vec<Option<Holdings>>,
}

static BASES: LazyLock<Vec<Base>> = LazyLock::new(|| {
    let folder = FuzzFolder::new();
    let path = folder.file("store");
    let mut agent = agent_or_new(&path);
    live(&mut agent, 0);
    agent.into_storage().close().expect("a disk that works");
    let closed = Base::new("closed", read(&path), None);
    let mut agent = self::agent(&path).expect("a store in order");
    live(&mut agent, 1);
    let in_use = Base::new("in use", read(&path), Some(read(&log_of(&path))));
    agent.storage_mut().checkpoint().expect("a disk that works");
    live(&mut agent, 2);
    let begun_anew = Base::new("log begun anew", read(&path), Some(read(&log_of(&path))));
    let fixture = |name, file: &[u8], log: Option<&[u8]>| {
        Base::new(name, file.to_vec(), log.map(<[u8]>::to_vec))
    };
    macro_rules! old {
        ($name:literal) => {
            include_bytes!(concat!("../../crates/store/tests/fixtures/", $name))
        };
    }
    vec![
        closed,
        in_use,
        begun_anew,
        fixture("version 1", old!("v1.store"), None),
        fixture(
            "version 3 in use",
            old!("v3-killed.store"),
            Some(old!("v3-killed.store-wal")),
        ),
    ]
});

impl Base {
    fn new(name: &'static str, file: Vec<u8>, log: Option<Vec<u8>>) -> Self {
        let salts = |bytes: &[u8], at: usize| bytes.get(at..at + 8).map(<[u8]>::to_vec);
        let frames = log.as_deref().map(|log| {
            let frames = log[HEADER..].chunks_exact(FRAME);
            let read = frames.take_while(|frame| salts(frame, 8) == salts(log, 16));
            read.map(|frame| frame[4..8] != [0; 4]).collect()
        });
        let mut base = Self {
            name,
            is_old: name.starts_with("version"),
            file,
            log,
            ends: frames.unwrap_or_default(),
            holdings: Vec::new(),
        };
        let at_end = base.open(base.log.as_deref());
        assert!(at_end.is_some_and(|it| !it.budgets.is_empty()), "{name}");
        base.holdings = match &base.log {
            None => vec![base.open(None)],
            Some(log) => {
                // A first frame that was never flushed is as none.
                let mut none = log[..HEADER + FRAME].to_vec();
                none[HEADER..].fill(0);
                let ends = (0..).zip(&base.ends).filter(|(_, ends)| **ends);
                let cut = ends.map(|(frame, _): (usize, _)| &log[..HEADER + (frame + 1) * FRAME]);
                let logs = std::iter::once(&*none).chain(cut);
                logs.map(|log| base.open(Some(log))).collect()
            }
        };
        base
    }

    fn open(&self, log: Option<&[u8]>) -> Option<Holdings> {
        let folder = FuzzFolder::new();
        let path = folder.file("store");
        write(&path, &self.file, log);
        Holdings::read(&path).ok()
    }

    /// What the store must hold if it opens with this log. Nothing if it must be refused.
    fn expected(&self, log: Option<&[u8]>) -> Option<&Holdings> {
        let (Some(before), Some(log)) = (&self.log, log) else {
            // A file that was closed needs no log. One that another program writes beside it does
            // not belong to it.
            return match (&self.log, log) {
                (None, _) => self.holdings[0].as_ref(),
                (Some(_), _) => None,
            };
        };
        if log.len() < HEADER + FRAME || log[..HEADER] != before[..HEADER] {
            return None;
        }
        let intact = |frame: usize| {
            let at = HEADER + frame * FRAME;
            frame < self.ends.len() && log.get(at..at + FRAME) == before.get(at..at + FRAME)
        };
        let first = (0..self.ends.len()).find(|frame| !intact(*frame));
        let first = first.unwrap_or(self.ends.len());
        // A transaction behind the damage that another one follows was flushed: it may not be lost.
        let mut behind = first + 2..self.ends.len();
        if behind.any(|end| self.ends[end] && (end - 1..=end + 1).all(intact)) {
            return None;
        }
        let transactions = self.ends[..first].iter().filter(|ends| **ends).count();
        self.holdings[transactions].as_ref()
    }
}

const DAY: i64 = 86_400_000;
const SERVICE: &str = "https://agg.example";

/// The same things each time, a little later and at other sites.
fn live(agent: &mut UserAgent<SqliteStore, FixedRandomness>, part: u32) {
    let begin = 100 * DAY + i64::from(part) * 5 * DAY;
    for number in 0..8_u32 {
        let at = begin + i64::from(number) * DAY / 4;
        let site = format!("news-{}.example", number % 3 + part);
        let options = ImpressionOptions {
            conversion_sites: match number % 2 {
                0 => Vec::new(),
                _ => vec!["shop-1.example".to_owned(), "shop-2.example".to_owned()],
            },
            ..ImpressionOptions::new(number % 4)
        };
        let call = by(&site, u64::from(100 * part + number), at);
        agent.save_impression(&call, &options).expect("it is valid");
    }
    let at = begin + 3 * DAY;
    let action = u64::from(100 * part + 50);
    let shared = by("shop-1.example", action, at);
    let participants = ["ads.example", "more-ads.example"];
    let created = agent.create_shared_conversion(&shared, &conversion(), &participants);
    let _ = created.expect("it is valid");
    for number in 0..3 {
        let site = format!("shop-{}.example", number % 3);
        let call = by(&site, action + 1 + number, at + 1);
        let _ = agent
            .measure_conversion(&call, &conversion())
            .expect("it is valid");
    }
    let closed = [format!("shop-{}.example", 7 + part)];
    let now = Timestamp(at + 2);
    agent
        .clear_browsing_history(&closed, false, now)
        .expect("it is valid");
}

fn conversion() -> ConversionOptions {
    ConversionOptions {
        epsilon: 0.05,
        ..ConversionOptions::new(SERVICE, 4)
    }
}

fn by(site: &str, action: u64, at: i64) -> Call<'_> {
    let action = Action::numbered(action).expect("it is small");
    Call::new(site, Timestamp(at)).by(action)
}

fn agent(path: &Path) -> std::result::Result<UserAgent<SqliteStore, FixedRandomness>, StoreError> {
    let store = SqliteStore::open(path, &options())?;
    let config = Config::new(Profile::BigBird).with_service(SERVICE);
    // Before anything happens, as on a test clock.
    UserAgent::new(config, store, FixedRandomness, Timestamp(i64::MIN))
}

fn agent_or_new(path: &Path) -> UserAgent<SqliteStore, FixedRandomness> {
    drop(SqliteStore::open_or_create(path, &options()).expect("a disk that works"));
    agent(path).expect("a new store")
}

/// Nobody else has these files open.
fn options() -> StoreOptions {
    StoreOptions {
        wait: Duration::ZERO,
        ..StoreOptions::default()
    }
}

fn write(path: &Path, file: &[u8], log: Option<&[u8]>) {
    fs::write(path, file).expect("a disk that works");
    if let Some(log) = log {
        fs::write(log_of(path), log).expect("a disk that works");
    }
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).expect("a disk that works")
}

fn log_of(path: &Path) -> PathBuf {
    path.with_file_name("store-wal")
}
