//! Resetting and copying stores.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use bigbird::{EpochIndex, Timestamp};
use bigbird_user_agent::{DeviceState, Rules};

use crate::device::DeviceRow;
use crate::error::{Problem, StoreError};
use crate::log::{self, LogState};
use crate::store::{self, SqliteStore, StoreOptions, absolute};
use crate::temporary::{BRIEFLY, FolderLock, REPLACED, Temporary, flush_folder, remove_leftovers};

/// The result of a reset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reset {
    /// The path of the old file, which is kept.
    pub kept: PathBuf,
    /// The path of the old file's log, which is kept beside it, if there is one.
    pub kept_log: Option<PathBuf>,
    /// True if the old store still held everything that a reset must know: when its epochs begin
    /// and end, when it was last used, and whether the user enabled the API. Otherwise the worst
    /// was assumed.
    pub remembered: bool,
    /// The new store attributes nothing to any epoch up to and including the one of this moment.
    pub closed_until: Timestamp,
    /// True if the API is enabled. It is disabled if the old store could not be read completely.
    pub enabled: bool,
}

/// The text at the path of a store while it is being replaced. No program takes it for a store. An
/// interrupted reset is recognized by it, so the text must not change.
const PLACEHOLDER: &str = "This Big Bird store is being reset. If this file stays, the reset was \
interrupted: run `bigbird store reset` again.\nThe old store is ";

/// Replaces a store with an empty one, deliberately. This is the only way to use the path of a
/// damaged store again. The old file is kept beside it, and `reason` is stored in the new one.
///
/// A reset applies the rule for clearing browsing history: nothing is ever attributed again to any
/// epoch up to and including the current one. So nothing that was spent comes back.
///
/// The worst is assumed if the old store cannot be read, or if its log was lost, so that the file
/// may be older than what was spent. Then the reset assumes:
///
/// * The store was used until the latest of `now` and the times at which its files were last
///   modified, because the clock may be behind.
/// * The epoch at that moment was as long as epochs may be ([`Rules::MAX_EPOCH_DAYS`]).
/// * The user had disabled the API.
///
/// A process that has the old store open gets an error in its next transaction.
///
/// # Errors
/// If there is no file, or the new file cannot be written. If a reset is interrupted, the path has
/// the old store, the new store, or a file that is neither. There is always a file, because
/// otherwise the next process would create a store there.
pub fn reset(path: impl AsRef<Path>, reason: &str, now: Timestamp) -> Result<Reset, StoreError> {
    let path = absolute(path.as_ref())?;
    replace(&path, reason, now).map_err(|problem| StoreError::new(&path, problem))
}

fn replace(path: &Path, reason: &str, now: Timestamp) -> Result<Reset, Problem> {
    let metadata = fs::metadata(path).map_err(Problem::io("finding the file"))?;
    if !metadata.is_file() {
        return Err(Problem::NotAStore);
    }
    remove_leftovers(path, StoreOptions::default().wait);
    // Under this lock, no process takes the second name of the old store for a leftover.
    let _making = FolderLock::beside(path)?;
    // If an earlier reset was interrupted, the old store is the one that it kept.
    let interrupted = kept_by(path);
    if let Some(kept) = &interrupted {
        // That reset may have been interrupted before it moved the log.
        move_log(path, kept)?;
    }
    let old_path = interrupted.as_deref().unwrap_or(path);
    // Opening the old store may modify its files, so their times are read first.
    let modified = [path, old_path].map(last_modified);
    let old = remember(old_path);
    let mut resets = old.as_ref().map_or_else(Vec::new, |old| old.resets.clone());
    resets.push((now.0, reason.to_owned()));
    let remembered = old.as_ref().is_some_and(|old| old.whole);
    let device = closed(old, now, modified.into_iter().flatten().max());
    let (closed_until, enabled) = (device.state.last_clear, device.state.enabled);
    let mut new = Temporary::beside(path)?;
    store::build(&new.path, device, &resets)?;
    new.give_owner_of(&metadata)?;
    new.flush()?;

    let kept = match interrupted {
        Some(kept) => kept,
        None => keep(path)?,
    };
    let mut placeholder = Temporary::beside(path)?;
    placeholder.give_owner_of(&metadata)?;
    let text = format!("{PLACEHOLDER}{}", kept.display());
    placeholder.write(text.as_bytes())?;
    placeholder.flush()?;
    fs::rename(&placeholder.path, path).map_err(Problem::io("replacing the file"))?;
    flush_folder(path)?;
    // The log is moved only now. Without its log, the old store would lack what was spent last.
    move_log(path, &kept)?;
    let _ = fs::remove_file(log::index_of(path));
    flush_folder(path)?;
    fs::rename(&new.path, path).map_err(Problem::io("replacing the file"))?;
    flush_folder(path)?;
    let kept_log = log::path_of(&kept);
    Ok(Reset {
        kept_log: kept_log.exists().then_some(kept_log),
        kept,
        remembered,
        closed_until: closed_until.unwrap_or(now),
        enabled,
    })
}

/// The device row of the new store.
fn closed(old: Option<OldStore>, now: Timestamp, modified: Option<Timestamp>) -> DeviceRow {
    let whole = old.as_ref().is_some_and(|old| old.whole);
    let old = old.map_or_else(DeviceRow::new, |old| old.device);
    let used = [old.state.latest, old.state.latest_use, Some(now)];
    let mut latest = used.into_iter().max().flatten();
    let mut last_clear = old.state.last_clear.max(latest);
    if !whole {
        latest = latest.max(modified);
        let longest = latest.map(|latest| days_after(latest, Rules::MAX_EPOCH_DAYS));
        last_clear = last_clear.max(longest);
    }
    let mut state = DeviceState {
        enabled: whole && old.state.enabled,
        last_clear,
        latest,
        latest_use: latest,
        ..old.state
    };
    // If the old epochs are not known, epoch 0 begins at the end of the time that must be closed.
    // It is closed too, whatever its length will be under the rules of the next user agent.
    let last = last_clear.and_then(|last| state.timeline.epoch(last));
    let after = last.map_or(1, |last| last.0.saturating_add(1));
    state.first_epoch = state.first_epoch.max(EpochIndex(after));
    state.timeline.prune_before(state.first_epoch);
    // `writes` must be larger than in any log of the old store. Otherwise such a log would be taken
    // for one of the new store. If the old number is not known, the milliseconds since 1970 are
    // large enough: no store has written a thousand times a second since then.
    let unknown = match whole {
        true => 0,
        false => latest.map_or(0, |latest| u64::try_from(latest.0).unwrap_or(0)),
    };
    DeviceRow {
        state,
        writes: old.writes.max(unknown).saturating_add(1),
        ..DeviceRow::new()
    }
}

fn days_after(moment: Timestamp, days: u32) -> Timestamp {
    const DAY_MS: i64 = 86_400_000;
    Timestamp(moment.0.saturating_add(i64::from(days) * DAY_MS))
}

/// The time at which a store, its file or its log, was last modified, from the file system.
fn last_modified(path: &Path) -> Option<Timestamp> {
    let modified = |path: &Path| {
        let modified = fs::metadata(path).ok()?.modified().ok()?;
        let ms = match modified.duration_since(UNIX_EPOCH) {
            Ok(after) => i64::try_from(after.as_millis()).unwrap_or(i64::MAX),
            Err(before) => {
                let before = i64::try_from(before.duration().as_millis());
                before.map_or(i64::MIN, |before| -before)
            }
        };
        Some(Timestamp(ms))
    };
    modified(path).max(modified(&log::path_of(path)))
}

/// The path of the old store, if an interrupted reset left its text at `path`.
fn kept_by(path: &Path) -> Option<PathBuf> {
    // Only a file that is too short for a store is read: closing a file drops the locks that this
    // process holds on it.
    let metadata = fs::metadata(path).ok()?;
    let text = (metadata.len() < 10_000).then(|| fs::read_to_string(path).ok())??;
    let kept = PathBuf::from(text.strip_prefix(PLACEHOLDER)?);
    kept.exists().then_some(kept)
}

/// The contents of an old store that could be read.
struct OldStore {
    device: DeviceRow,
    resets: Vec<(i64, String)>,
    /// True if nothing later can have been lost with the log.
    whole: bool,
}

/// Reads the device row of an old store, if it is intact, and its earlier resets.
fn remember(path: &Path) -> Option<OldStore> {
    let log = log::inspect(path);
    let connection = store::connect(path).ok()?;
    // The old store is kept as it is.
    store::keep_log(&connection, true).ok()?;
    let logged = DeviceRow::load_any(&connection).ok();
    let file = store::connect_alone(path).and_then(|file| DeviceRow::load_any(&file));
    let writes = |device: &Option<DeviceRow>| device.as_ref().map(|device| device.writes);
    // The log may be older than the file.
    let (device, whole) = match file.ok() {
        file if writes(&file) > writes(&logged) => {
            let device = file?;
            let whole = device.closed_cleanly;
            (device, whole)
        }
        _ => {
            let device = logged?;
            let whole = device.closed_cleanly || matches!(log, Ok(LogState::Sound));
            (device, whole && log.is_ok())
        }
    };
    let resets = (|| {
        let mut statement = connection
            .prepare("SELECT at, reason FROM reset ORDER BY at")
            .ok()?;
        let resets = statement
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
            .ok()?;
        resets.collect::<Result<_, _>>().ok()
    })();
    Some(OldStore {
        device,
        resets: resets.unwrap_or_default(),
        whole,
    })
}

/// Moves the log of an old store to its place beside the kept file.
fn move_log(path: &Path, kept: &Path) -> Result<(), Problem> {
    match fs::rename(log::path_of(path), log::path_of(kept)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Problem::io("moving the write-ahead log")(error))
        }
        _ => Ok(()),
    }
}

/// Gives the file at a path a second name, and returns that name.
fn keep(path: &Path) -> Result<PathBuf, Problem> {
    for number in 1.. {
        let mut name = path.as_os_str().to_owned();
        name.push(format!("{REPLACED}{number}"));
        let kept = PathBuf::from(name);
        if fs::exists(log::path_of(&kept)).unwrap_or(true) {
            continue;
        }
        match fs::hard_link(path, &kept) {
            Ok(()) => return Ok(kept),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            // Not every file system has links.
            Err(_) if !fs::exists(&kept).unwrap_or(true) => {
                let copied = fs::copy(path, &kept)
                    .and_then(|_| fs::File::options().append(true).open(&kept)?.sync_all());
                copied.map_err(Problem::io("keeping the old file"))?;
                return Ok(kept);
            }
            Err(_) => {}
        }
    }
    Err(Problem::Exists)
}

/// Copies a store, as it is at one moment, to a path where no file exists. Other processes may use
/// the store meanwhile. The copy is one file.
///
/// Do not continue with a copy after the original was used: that would refund what was spent in
/// between. A copy is for inspection, and for moving a store that is no longer used.
///
/// # Errors
/// If the store cannot be used, or the copy cannot be written.
pub fn backup(path: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<(), StoreError> {
    let to = absolute(to.as_ref())?;
    let at = |problem: Problem| StoreError::new(&to, problem);
    for taken in [to.clone(), log::path_of(&to)] {
        let taken = fs::exists(taken).map_err(Problem::io("looking for the copy"));
        if taken.map_err(at)? {
            return Err(at(Problem::Exists));
        }
    }
    remove_leftovers(&to, BRIEFLY);
    let original = SqliteStore::open(path, &StoreOptions::default())?;
    let copy = Temporary::beside(&to).map_err(at)?;
    let Some(name) = copy.path.to_str() else {
        return Err(at(Problem::Io {
            operation: "naming the copy",
            source: io::Error::other("the path is not valid UTF-8"),
        }));
    };
    let copied = original.connection.execute("VACUUM INTO ?", [name]);
    copied.map_err(|error| match Problem::from(error) {
        problem @ Problem::Damaged(_) => StoreError::new(original.path(), problem),
        problem => at(problem),
    })?;
    finish_copy(&copy.path).map_err(at)?;
    copy.put_at(&to).map_err(at)
}

/// Records in a copy that it needs no log, and finishes it.
fn finish_copy(path: &Path) -> Result<(), Problem> {
    let connection = store::connect(path)?;
    store::set_up(&connection)?;
    let device = DeviceRow {
        closed_cleanly: true,
        ..DeviceRow::load(&connection)?
    };
    device.save(&connection)?;
    store::finish(connection, path)
}
