//! Starting over, and copying.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use bigbird::{EpochIndex, Timestamp};
use bigbird_user_agent::{Rules, State};

use crate::device::Device;
use crate::error::{Problem, StoreError};
use crate::log::{self, Log};
use crate::store::{self, SqliteStore, StoreOptions, absolute};
use crate::temporary::{BRIEFLY, Making, REPLACED, Temporary, flush_folder, remove_leftovers};

/// What a reset left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reset {
    /// Where the old file is now.
    pub kept: PathBuf,
    /// Whether the old store still told everything that a reset must know: when its epochs begin and
    /// end, when it was last used, and whether the user lets the API work. Otherwise the worst was
    /// assumed.
    pub remembered: bool,
    /// The new store attributes nothing to any epoch up to and including that of this moment.
    pub closed_until: Timestamp,
    /// Whether the API works. If the old store did not tell, it does not.
    pub enabled: bool,
}

/// What stands in the place of a store while it is being replaced. No program takes it for a store.
const PLACEHOLDER: &str = "This Big Bird store is being reset. If this file stays, the reset was \
interrupted: run `bigbird store reset` again.\nThe old store is ";

/// Starts over, deliberately: the only way to use a path again whose store is damaged. The old file
/// is kept beside it, and `reason` is noted in the new one.
///
/// It applies the rule for clearing browsing history: no epoch up to and including the current one
/// is ever attributed to again, so that nothing that was spent comes back. If the old store does not
/// tell any more when its epochs end, or its log was lost, so that what it tells may be older than what
/// was spent, the worst is assumed. The store was used until the latest of `now` and the times at which
/// its files were last modified, because the clock may be behind. The epoch that it was in is as long
/// as epochs may be ([`Rules::MAX_EPOCH_DAYS`]). The user had disabled the API.
///
/// Processes that have the old store open notice with their next transaction.
///
/// # Errors
/// If there is no file, or the new one cannot be written. Whenever it is interrupted, there is the
/// old store, the new one, or a file that is neither; never none, as one would be created there.
pub fn reset(path: impl AsRef<Path>, reason: &str, now: Timestamp) -> Result<Reset, StoreError> {
    let path = absolute(path.as_ref())?;
    replace(&path, reason, now).map_err(|problem| StoreError::new(&path, problem))
}

fn replace(path: &Path, reason: &str, now: Timestamp) -> Result<Reset, Problem> {
    let metadata = fs::metadata(path).map_err(Problem::io("finding it"))?;
    if !metadata.is_file() {
        return Err(Problem::NotAStore);
    }
    remove_leftovers(path, StoreOptions::default().wait);
    // Nobody takes the second name of the old store for a leftover while we are at it.
    let _making = Making::beside(path)?;
    // Of a reset that was interrupted, go on with the old store.
    let interrupted = kept_by(path);
    if let Some(kept) = &interrupted {
        // Perhaps it was interrupted before the log had followed.
        move_log(path, kept)?;
    }
    let old_path = interrupted.as_deref().unwrap_or(path);
    // Before anybody looks into it.
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
    fs::rename(&placeholder.path, path).map_err(Problem::io("replacing it"))?;
    flush_folder(path)?;
    // Only now: without its log, the old store would have forgotten what was last spent.
    move_log(path, &kept)?;
    let _ = fs::remove_file(log::index_of(path));
    flush_folder(path)?;
    fs::rename(&new.path, path).map_err(Problem::io("replacing it"))?;
    flush_folder(path)?;
    Ok(Reset {
        kept,
        remembered,
        closed_until: closed_until.unwrap_or(now),
        enabled,
    })
}

/// The row about the device of a new store in the place of an old one.
fn closed(old: Option<OldStore>, now: Timestamp, modified: Option<Timestamp>) -> Device {
    let whole = old.as_ref().is_some_and(|old| old.whole);
    let old = old.map_or_else(Device::new, |old| old.device);
    let used = [old.state.latest, old.state.latest_use, Some(now)];
    let mut latest = used.into_iter().max().flatten();
    let mut last_clear = old.state.last_clear.max(latest);
    if !whole {
        latest = latest.max(modified);
        let longest = latest.map(|latest| days_after(latest, Rules::MAX_EPOCH_DAYS));
        last_clear = last_clear.max(longest);
    }
    let mut state = State {
        enabled: whole && old.state.enabled,
        last_clear,
        latest,
        latest_use: latest,
        ..old.state
    };
    // If it is not known when epochs begin, epoch 0 begins at the end of what must be closed, and is
    // closed too, as long as whoever uses the store next has it.
    let last = last_clear.and_then(|last| state.timeline.epoch(last));
    let after = last.map_or(1, |last| last.0.saturating_add(1));
    state.first_epoch = state.first_epoch.max(EpochIndex(after));
    state.timeline.prune_before(state.first_epoch);
    // More than any log of the old store can tell, which would otherwise be taken for one of the new
    // one. No store writes a thousand times a second for as long as there are clocks.
    let unknown = match whole {
        true => 0,
        false => latest.map_or(0, |latest| u64::try_from(latest.0).unwrap_or(0)),
    };
    Device {
        state,
        writes: old.writes.max(unknown).saturating_add(1),
        ..Device::new()
    }
}

fn days_after(moment: Timestamp, days: u32) -> Timestamp {
    const DAY_MS: i64 = 86_400_000;
    Timestamp(moment.0.saturating_add(i64::from(days) * DAY_MS))
}

/// When a store was last written, as the file system tells: the file or its log.
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

/// Where the old store is, if this is what an interrupted reset left.
fn kept_by(path: &Path) -> Option<PathBuf> {
    // No database, so that no lock is lost by reading it.
    let metadata = fs::metadata(path).ok()?;
    let text = (metadata.len() < 10_000).then(|| fs::read_to_string(path).ok())??;
    let kept = PathBuf::from(text.strip_prefix(PLACEHOLDER)?);
    kept.exists().then_some(kept)
}

/// What an old store still tells.
struct OldStore {
    device: Device,
    resets: Vec<(i64, String)>,
    /// Whether nothing later was lost with its log.
    whole: bool,
}

/// What the old store still tells: the row about the device, if it is intact, and earlier resets.
fn remember(path: &Path) -> Option<OldStore> {
    let log = log::inspect(path);
    let connection = store::connect(path).ok()?;
    // It is to be kept as it is.
    store::keep_log(&connection, true).ok()?;
    let logged = Device::load_any(&connection).ok();
    let file = store::connect_alone(path).and_then(|file| Device::load_any(&file));
    let writes = |device: &Option<Device>| device.as_ref().map(|device| device.writes);
    // The log may be older than the file.
    let (device, whole) = match file.ok() {
        file if writes(&file) > writes(&logged) => {
            let device = file?;
            let whole = device.closed_cleanly;
            (device, whole)
        }
        _ => {
            let device = logged?;
            let whole = device.closed_cleanly || matches!(log, Ok(Log::Sound));
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

/// Moves the log of an old store to where the old store is.
fn move_log(path: &Path, kept: &Path) -> Result<(), Problem> {
    match fs::rename(log::path_of(path), log::path_of(kept)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Problem::io("moving the write-ahead log")(error))
        }
        _ => Ok(()),
    }
}

/// Gives the file at a path a second name, and says which.
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

/// Copies a store to a place where there is no file, as it is at one moment, while others use it.
/// The copy is one file.
///
/// To go on with a copy after the original was used is to take back what was spent in between. It is
/// for looking into, and for moving a store that is not used any more.
///
/// # Errors
/// If the store cannot be used, or the copy cannot be written.
pub fn backup(path: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<(), StoreError> {
    let to = absolute(to.as_ref())?;
    let at = |problem: Problem| StoreError::new(&to, problem);
    for taken in [to.clone(), log::path_of(&to)] {
        let taken = fs::exists(taken).map_err(Problem::io("looking for it"));
        if taken.map_err(at)? {
            return Err(at(Problem::Exists));
        }
    }
    remove_leftovers(&to, BRIEFLY);
    let original = SqliteStore::open(path, &StoreOptions::default())?;
    let copy = Temporary::beside(&to).map_err(at)?;
    let Some(name) = copy.path.to_str() else {
        return Err(at(Problem::Io {
            operation: "naming it",
            source: io::Error::other("its name is not UTF-8"),
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

/// Notes in a copy that it needs no log.
fn finish_copy(path: &Path) -> Result<(), Problem> {
    let connection = store::connect(path)?;
    store::set_up(&connection)?;
    let device = Device {
        closed_cleanly: true,
        ..Device::load(&connection)?
    };
    device.save(&connection)?;
    store::finish(connection, path)
}
