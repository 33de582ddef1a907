//! Temporary files for new stores, and the removal of those that killed processes left behind.
//!
//! To create, copy or replace a store, a process first builds a complete new file beside its place,
//! and then gives it the name. Meanwhile it holds a shared lock on the folder. A process that gets
//! the lock exclusively knows that nobody is building a file, so every temporary file there was
//! left by a process that was killed.

use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::error::Problem;
use crate::log;
use crate::store::Identity;

/// Follows the name of the store in the name of a temporary file.
const NEW: &str = ".new-";

/// Follows the name of the store in the name of an old store that a reset kept.
pub(crate) const REPLACED: &str = ".replaced-";

/// The longest wait for a process that is removing leftovers, which normally takes no time.
const WAIT: Duration = Duration::from_secs(30);

/// The longest wait for the lock to remove leftovers when a store is opened. Another process may be
/// building a file, or starting a child process, which shares the lock for a moment.
pub(crate) const BRIEFLY: Duration = Duration::from_millis(100);

/// A shared lock on a folder, held while a file is built in it.
#[derive(Debug)]
pub(crate) struct FolderLock {
    /// `None` where folders cannot be locked. There, leftovers are never removed.
    _folder: Option<File>,
}

impl FolderLock {
    pub(crate) fn beside(path: &Path) -> Result<Self, Problem> {
        let folder = lock_folder(path, WAIT, File::try_lock_shared)?;
        Ok(Self { _folder: folder })
    }
}

/// Locks the folder of a file, waiting for other processes. `None` where folders cannot be locked.
fn lock_folder(
    path: &Path,
    wait: Duration,
    lock: impl Fn(&File) -> Result<(), TryLockError>,
) -> Result<Option<File>, Problem> {
    let Ok(folder) = File::open(folder_of(path)) else {
        return Ok(None);
    };
    let since = Instant::now();
    loop {
        match lock(&folder) {
            Ok(()) => return Ok(Some(folder)),
            Err(TryLockError::Error(_)) => return Ok(None),
            Err(TryLockError::WouldBlock) if since.elapsed() >= wait => {
                return Err(Problem::busy(wait));
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Removes the files that killed processes left beside a store, unless another process holds the
/// lock for longer than `wait`.
///
/// They are removed because they reveal what the user has seen, and because a second name of the
/// store would be a second store. An old store that a reset kept is not removed. The exception is a
/// reset that was interrupted before it replaced the file: then the kept file is only a second name
/// of the store.
pub(crate) fn remove_leftovers(path: &Path, wait: Duration) {
    let Some(store_name) = path.file_name() else {
        return;
    };
    let leftovers = || {
        let entries = fs::read_dir(folder_of(path)).into_iter().flatten();
        entries.flatten().filter_map(|entry| {
            let name = entry.file_name();
            let left = is_new(&name, store_name)
                || is_kept(&name, store_name) && same_file(&entry.path(), path);
            left.then(|| entry.path())
        })
    };
    // Usually there are none, and then no lock is needed.
    if leftovers().next().is_none() {
        return;
    }
    if let Ok(Some(_folder)) = lock_folder(path, wait, File::try_lock) {
        for path in leftovers() {
            let _ = fs::remove_file(path);
        }
    }
}

/// Returns true for the name of a temporary file, or of a file that SQLite puts beside one.
fn is_new(name: &OsStr, store_name: &OsStr) -> bool {
    let Some(rest) = suffix(name, store_name, NEW) else {
        return false;
    };
    let mut parts = rest.split('-');
    let numbers = [parts.next(), parts.next()];
    numbers.into_iter().all(|part| part.is_some_and(is_number))
        && matches!(
            (parts.next(), parts.next()),
            (None | Some("wal" | "shm" | "journal"), None)
        )
}

fn is_kept(name: &OsStr, store_name: &OsStr) -> bool {
    suffix(name, store_name, REPLACED).is_some_and(is_number)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The rest of a name after the name of the store and `words`.
fn suffix<'a>(name: &'a OsStr, store_name: &OsStr, words: &str) -> Option<&'a str> {
    let rest = name.as_encoded_bytes();
    let rest = rest.strip_prefix(store_name.as_encoded_bytes())?;
    str::from_utf8(rest.strip_prefix(words.as_bytes())?).ok()
}

fn same_file(one: &Path, other: &Path) -> bool {
    let identity = |path| {
        let metadata = fs::symlink_metadata(path).ok()?;
        Identity::of(&metadata)
    };
    identity(one).is_some_and(|it| Some(it) == identity(other))
}

fn folder_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

/// Flushes the folder of a file, so that its name is as durable as its content.
pub(crate) fn flush_folder(path: &Path) -> Result<(), Problem> {
    // Not every system can open a folder.
    if let Ok(folder) = File::open(folder_of(path)) {
        folder
            .sync_all()
            .map_err(Problem::io("flushing the folder"))?;
    }
    Ok(())
}

/// A new file that is being built. It is deleted unless it is put in its place.
#[derive(Debug)]
pub(crate) struct Temporary {
    pub(crate) path: PathBuf,
    /// The file as it was created. The path may lead to another file by now, if others can write to
    /// the folder. This handle is closed before the file is put in its place: closing it later
    /// would drop the locks that this process holds on the file by then.
    file: Option<File>,
    _making: FolderLock,
}

impl Temporary {
    /// Creates an empty file beside the path that it is for. Only its owner may read it, because a
    /// store reveals what the user has seen. SQLite gives the files beside it the same permissions.
    pub(crate) fn beside(path: &Path) -> Result<Self, Problem> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let making = FolderLock::beside(path)?;
        loop {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let mut name = path.as_os_str().to_owned();
            name.push(format!("{NEW}{}-{count}", std::process::id()));
            let name = PathBuf::from(name);
            match create_new(&name) {
                Ok(file) => {
                    return Ok(Self {
                        path: name,
                        file: Some(file),
                        _making: making,
                    });
                }
                // Left by a killed process that had the same process id.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(Problem::NoFolder(folder_of(path).to_owned()));
                }
                Err(error) => return Err(Problem::io("creating the new file")(error)),
            }
        }
    }

    /// Writes text to the file.
    pub(crate) fn write(&mut self, text: &[u8]) -> Result<(), Problem> {
        match &mut self.file {
            Some(file) => file
                .write_all(text)
                .map_err(Problem::io("writing the new file")),
            None => Ok(()),
        }
    }

    /// Flushes and closes the file, once no connection to it is open.
    pub(crate) fn flush(&mut self) -> Result<(), Problem> {
        match self.file.take() {
            Some(file) => file
                .sync_all()
                .map_err(Problem::io("flushing the new file")),
            None => Ok(()),
        }
    }

    /// Gives the file the owner, the group and the permissions of another. A reset by another user,
    /// such as root, then leaves a store that its owner can use.
    #[cfg(unix)]
    pub(crate) fn give_owner_of(&self, old: &fs::Metadata) -> Result<(), Problem> {
        use std::os::unix::fs::{MetadataExt as _, fchown};
        let Some(file) = &self.file else {
            return Ok(());
        };
        let given = file.metadata().and_then(|new| {
            if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
                fchown(file, Some(old.uid()), Some(old.gid()))?;
            }
            file.set_permissions(old.permissions())
        });
        given.map_err(Problem::io("giving the new file the owner of the old one"))
    }

    #[cfg(not(unix))]
    pub(crate) fn give_owner_of(&self, _: &fs::Metadata) -> Result<(), Problem> {
        Ok(())
    }

    /// Puts the file at a path where no file exists.
    pub(crate) fn put_at(mut self, path: &Path) -> Result<(), Problem> {
        self.flush()?;
        match fs::hard_link(&self.path, path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(Problem::Exists);
            }
            // Not every file system has links. A process that opens the path in between finds an
            // empty file and refuses it.
            Err(_) => create_new(path)
                .and_then(|_| fs::rename(&self.path, path))
                .map_err(Problem::io("putting the new file in its place"))?,
        }
        flush_folder(path)
    }
}

/// Creates an empty file that only its owner may read. Fails if the file exists.
fn create_new(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

impl Drop for Temporary {
    fn drop(&mut self) {
        for suffix in ["", "-wal", "-shm", "-journal"] {
            let _ = fs::remove_file(log::suffixed(&self.path, suffix));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_we_give_are_leftovers() {
        let is_left = |name: &str| is_new(OsStr::new(name), OsStr::new("a.store"));
        for name in [
            "a.store.new-1-0",
            "a.store.new-123-45-wal",
            "a.store.new-1-0-shm",
            "a.store.new-1-0-journal",
        ] {
            assert!(is_left(name), "{name}");
        }
        for name in [
            "a.store",
            "a.store-wal",
            "a.store.new-",
            "a.store.new-1",
            "a.store.new-1-",
            "a.store.new-1-x",
            "a.store.new-1-0-old",
            "a.store.new-1-0-wal-1",
            "b.store.new-1-0",
            "a.store.replaced-1",
            "a.store.newer-1-0",
        ] {
            assert!(!is_left(name), "{name}");
        }
        assert!(is_kept(
            OsStr::new("a.store.replaced-12"),
            OsStr::new("a.store")
        ));
        assert!(!is_kept(
            OsStr::new("a.store.replaced-1-wal"),
            OsStr::new("a.store")
        ));
    }
}
