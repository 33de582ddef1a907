//! Starting over, and copying.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bigbird::{EpochIndex, Timestamp};
use bigbird_user_agent::State;

use crate::device::Device;
use crate::error::{Problem, StoreError};
use crate::log;
use crate::store::{self, SqliteStore, StoreOptions, absolute};
use crate::temporary::{Making, REPLACED, Temporary, flush_folder, remove_leftovers};

/// What a reset left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reset {
    /// Where the old file is now.
    pub kept: PathBuf,
    /// Whether the old file still told its set-up, when its epochs begin, and whether the user lets
    /// the API work.
    pub remembered: bool,
}

/// What stands in the place of a store while it is being replaced. No program takes it for a store.
const PLACEHOLDER: &str = "This Big Bird store is being reset. If this file stays, the reset was \
interrupted: run `bigbird store reset` again.\nThe old store is ";

/// Starts over, deliberately: the only way to use a path again whose store is damaged. The old file
/// is kept beside it, and `reason` is noted in the new one.
///
/// It applies the rule for clearing browsing history: no epoch up to and including the current one
/// is ever attributed to again, so that nothing that was spent comes back. If the old store does not
/// tell any more when its epochs begin, new ones begin now, so that the current one lasts at least
/// as long as the old one would have, if epochs have not become shorter since. What the old store does
/// tell may be older than what was spent, if its log was lost.
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
    let remembered = remember(interrupted.as_deref().unwrap_or(path));
    let (old, mut resets) = remembered.clone().unwrap_or((Device::new(), Vec::new()));
    resets.push((now.0, reason.to_owned()));
    let device = Device {
        // More than any log of the old store can tell, which would be taken for one of the new one.
        writes: old.writes.saturating_add(1),
        ..closed_until_now(old.state, now)
    };
    let new = Temporary::beside(path)?;
    store::build(&new.path, device, &resets)?;
    new.flush()?;

    let kept = match interrupted {
        Some(kept) => kept,
        None => keep(path)?,
    };
    let placeholder = Temporary::beside(path)?;
    let mut file = fs::File::create(&placeholder.path).map_err(Problem::io("replacing it"))?;
    write!(file, "{PLACEHOLDER}{}", kept.display())
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&placeholder.path, path))
        .map_err(Problem::io("replacing it"))?;
    flush_folder(path)?;
    // Only now: without its log, the old store would have forgotten what was last spent.
    match fs::rename(log::path_of(path), log::path_of(&kept)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(Problem::io("moving the write-ahead log")(error));
        }
        _ => {}
    }
    let _ = fs::remove_file(log::index_of(path));
    flush_folder(path)?;
    fs::rename(&new.path, path).map_err(Problem::io("replacing it"))?;
    flush_folder(path)?;
    Ok(Reset {
        kept,
        remembered: remembered.is_some(),
    })
}

/// The state of a new store in the place of an old one.
fn closed_until_now(old: State, now: Timestamp) -> Device {
    let latest = [Some(now), old.latest, old.latest_use, old.last_clear]
        .into_iter()
        .max()
        .flatten();
    let mut state = State {
        last_clear: latest,
        latest,
        latest_use: latest,
        ..old
    };
    // If it is not known when epochs begin, epoch 0 begins now, and is as long as whoever uses the store
    // next has it.
    let current = latest.and_then(|latest| state.timeline.epoch(latest));
    let after = current.map_or(1, |current| current.0.saturating_add(1));
    state.first_epoch = state.first_epoch.max(EpochIndex(after));
    state.timeline.prune_before(state.first_epoch);
    Device {
        state,
        ..Device::new()
    }
}

/// Where the old store is, if this is what an interrupted reset left.
fn kept_by(path: &Path) -> Option<PathBuf> {
    // No database, so that no lock is lost by reading it.
    let metadata = fs::metadata(path).ok()?;
    let text = (metadata.len() < 10_000).then(|| fs::read_to_string(path).ok())??;
    let kept = PathBuf::from(text.strip_prefix(PLACEHOLDER)?);
    kept.exists().then_some(kept)
}

/// What the old store still tells: the row about the device, if it is intact, and earlier resets.
fn remember(path: &Path) -> Option<(Device, Vec<(i64, String)>)> {
    let connection = store::connect(path).ok()?;
    // It is to be kept as it is.
    store::keep_log(&connection, true).ok()?;
    let device = Device::load_any(&connection);
    // The log may be older than the file.
    let file = store::connect_alone(path).and_then(|file| Device::load_any(&file));
    let found = [device.ok(), file.ok()].into_iter().flatten();
    let device = found.max_by_key(|device| device.writes)?;
    let resets = (|| {
        let mut statement = connection
            .prepare("SELECT at, reason FROM reset ORDER BY at")
            .ok()?;
        let resets = statement
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
            .ok()?;
        resets.collect::<Result<_, _>>().ok()
    })();
    Some((device, resets.unwrap_or_default()))
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
                fs::copy(path, &kept).map_err(Problem::io("keeping the old file"))?;
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
    remove_leftovers(&to, Duration::ZERO);
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
