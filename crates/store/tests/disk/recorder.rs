//! A layer below the store that notes every write and every flush, so that a power cut can be
//! played at each of them; and that fails where a test wants it to.
#![allow(unsafe_code, reason = "SQLite's interface for this is C")]

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rusqlite::ffi;

use crate::SECTOR;

/// What reached a file.
#[derive(Debug, Clone)]
pub(crate) enum Operation {
    Write {
        offset: usize,
        data: Vec<u8>,
    },
    Truncate {
        size: usize,
    },
    Flush,
    /// A flush that failed: what was written before need not reach the disk, also with a later one.
    FailedFlush,
    Delete,
}

/// What is done to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    Truncate,
    Flush,
    Delete,
}

/// How something fails.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    /// Nothing of it happens.
    Whole(c_int),
    /// A part of what was to be written is.
    Short(c_int),
}

impl Fault {
    fn status(self) -> c_int {
        match self {
            Self::Whole(status) | Self::Short(status) => status,
        }
    }
}

/// Decides what fails.
type Faults = Box<dyn FnMut(&Path, Kind) -> Option<Fault> + Send>;

/// Everything that was noted: which file, and what.
pub(crate) type Log = Vec<(PathBuf, Operation)>;

struct Recorder {
    log: Log,
    /// The paths of open files.
    files: HashMap<usize, PathBuf>,
    /// The folder whose files are noted.
    folder: Option<PathBuf>,
    failing: Option<Faults>,
    /// Whether flushes are passed over, as by a store that does not flush.
    flushless: bool,
}

static RECORDER: Mutex<Option<Recorder>> = Mutex::new(None);

fn recorder() -> MutexGuard<'static, Option<Recorder>> {
    RECORDER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes it the default layer, below every store that is opened afterwards.
pub(crate) fn install() {
    static INSTALLED: OnceLock<()> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        *recorder() = Some(Recorder {
            log: Vec::new(),
            files: HashMap::new(),
            folder: None,
            failing: None,
            flushless: false,
        });
        // SAFETY: the default layer is a valid table that is never freed; ours is a copy of it that
        // lives forever.
        unsafe {
            assert_eq!(ffi::sqlite3_initialize(), ffi::SQLITE_OK);
            let default = &*ffi::sqlite3_vfs_find(std::ptr::null());
            DEFAULT.get_or_init(|| (default.xOpen.unwrap(), default.xDelete.unwrap()));
            let layer = Box::leak(Box::new(ffi::sqlite3_vfs {
                pNext: std::ptr::null_mut(),
                zName: c"recorder".as_ptr(),
                xOpen: Some(open),
                xDelete: Some(delete),
                ..*default
            }));
            assert_eq!(ffi::sqlite3_vfs_register(layer, 1), ffi::SQLITE_OK);
        }
    });
}

/// Notes what happens to the files of a folder from now on.
pub(crate) fn start(folder: &Path) {
    let mut recorder = recorder();
    let recorder = recorder.as_mut().unwrap();
    recorder.log.clear();
    recorder.folder = Some(folder.to_owned());
}

/// From now on, writes and flushes to the files of a folder succeed so many times, and then fail.
pub(crate) fn fail_after(folder: &Path, successes: usize, status: c_int) {
    start(folder);
    let mut left = successes;
    fail(move |_, kind| {
        if kind == Kind::Read {
            return None;
        }
        match left.checked_sub(1) {
            Some(fewer) => left = fewer,
            None => return Some(Fault::Whole(status)),
        }
        None
    });
}

/// Lets something decide what fails, in the folder whose files are noted.
pub(crate) fn fail(faults: impl FnMut(&Path, Kind) -> Option<Fault> + Send + 'static) {
    recorder().as_mut().unwrap().failing = Some(Box::new(faults));
}

/// Nothing fails any more.
pub(crate) fn recover() {
    recorder().as_mut().unwrap().failing = None;
}

/// From now on flushes do nothing, or something again.
pub(crate) fn pass_over_flushes(flushless: bool) {
    recorder().as_mut().unwrap().flushless = flushless;
}

/// How much was noted.
pub(crate) fn noted() -> usize {
    recorder().as_ref().unwrap().log.len()
}

/// What was noted.
pub(crate) fn so_far() -> Log {
    recorder().as_ref().unwrap().log.clone()
}

/// Ends, and gives what was noted.
pub(crate) fn stop() -> Log {
    let mut recorder = recorder();
    let recorder = recorder.as_mut().unwrap();
    recorder.folder = None;
    recorder.failing = None;
    std::mem::take(&mut recorder.log)
}

/// Notes an operation, unless it is to fail: then it gives how.
fn note(path: Option<PathBuf>, kind: Kind, operation: impl FnOnce() -> Operation) -> Option<Fault> {
    let mut recorder = recorder();
    let recorder = recorder.as_mut()?;
    let (path, folder) = (path?, recorder.folder.as_ref()?);
    if !path.starts_with(folder) {
        return None;
    }
    let faults = recorder.failing.as_mut();
    let fault = faults.and_then(|faults| faults(&path, kind));
    match (fault, kind) {
        (None, Kind::Read) => {}
        (None, Kind::Flush) if recorder.flushless => {}
        (None, _) => recorder.log.push((path, operation())),
        (Some(_), Kind::Flush) => recorder.log.push((path, Operation::FailedFlush)),
        (Some(Fault::Short(_)), Kind::Write) => {
            if let Operation::Write { offset, mut data } = operation()
                && short(data.len()) > 0
            {
                data.truncate(short(data.len()));
                recorder.log.push((path, Operation::Write { offset, data }));
            }
        }
        (Some(_), _) => {}
    }
    fault
}

/// How much of a write that falls short is written: whole sectors.
fn short(length: usize) -> usize {
    length / 2 / SECTOR * SECTOR
}

fn path_of(file: *mut ffi::sqlite3_file) -> Option<PathBuf> {
    recorder().as_ref()?.files.get(&(file as usize)).cloned()
}

type Open = unsafe extern "C" fn(
    *mut ffi::sqlite3_vfs,
    ffi::sqlite3_filename,
    *mut ffi::sqlite3_file,
    c_int,
    *mut c_int,
) -> c_int;
type Delete = unsafe extern "C" fn(*mut ffi::sqlite3_vfs, *const c_char, c_int) -> c_int;

static DEFAULT: OnceLock<(Open, Delete)> = OnceLock::new();

/// The functions of open files as the default layer has them, and as we have them: of databases,
/// which are locked, and of logs, which are not.
static DATABASE: OnceLock<Methods> = OnceLock::new();
static LOG: OnceLock<Methods> = OnceLock::new();

struct Methods {
    original: ffi::sqlite3_io_methods,
    ours: ffi::sqlite3_io_methods,
}

fn original(file: *mut ffi::sqlite3_file) -> &'static ffi::sqlite3_io_methods {
    let is_log = path_of(file).unwrap().to_string_lossy().ends_with("-wal");
    let methods = if is_log { &LOG } else { &DATABASE };
    &methods.get().unwrap().original
}

unsafe extern "C" fn open(
    layer: *mut ffi::sqlite3_vfs,
    name: ffi::sqlite3_filename,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    // SAFETY: as for SQLite's `xOpen`; a table of functions that was opened with stays valid.
    unsafe {
        let status = DEFAULT.get().unwrap().0(layer, name, file, flags, out_flags);
        let watched = ffi::SQLITE_OPEN_MAIN_DB | ffi::SQLITE_OPEN_WAL;
        if status == ffi::SQLITE_OK && flags & watched != 0 && !name.is_null() {
            let path = PathBuf::from(CStr::from_ptr(name).to_str().unwrap());
            recorder()
                .as_mut()
                .unwrap()
                .files
                .insert(file as usize, path);
            let known = if flags & ffi::SQLITE_OPEN_WAL != 0 {
                &LOG
            } else {
                &DATABASE
            };
            let original = *(*file).pMethods;
            let methods = known.get_or_init(|| Methods {
                original,
                ours: ffi::sqlite3_io_methods {
                    xClose: Some(close),
                    xRead: Some(read),
                    xWrite: Some(write),
                    xTruncate: Some(truncate),
                    xSync: Some(sync),
                    ..original
                },
            });
            (*file).pMethods = &raw const methods.ours;
        }
        status
    }
}

unsafe extern "C" fn delete(
    layer: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    sync_folder: c_int,
) -> c_int {
    // SAFETY: as for SQLite's `xDelete`.
    unsafe {
        let path = PathBuf::from(CStr::from_ptr(name).to_str().unwrap());
        if let Some(fault) = note(Some(path), Kind::Delete, || Operation::Delete) {
            return fault.status();
        }
        DEFAULT.get().unwrap().1(layer, name, sync_folder)
    }
}

unsafe extern "C" fn close(file: *mut ffi::sqlite3_file) -> c_int {
    // SAFETY: as for SQLite's `xClose`.
    unsafe {
        let status = original(file).xClose.unwrap()(file);
        recorder().as_mut().unwrap().files.remove(&(file as usize));
        status
    }
}

unsafe extern "C" fn read(
    file: *mut ffi::sqlite3_file,
    buffer: *mut c_void,
    amount: c_int,
    offset: ffi::sqlite3_int64,
) -> c_int {
    // SAFETY: as for SQLite's `xRead`.
    unsafe {
        // Nothing is noted of it.
        if let Some(fault) = note(path_of(file), Kind::Read, || Operation::Flush) {
            return fault.status();
        }
        original(file).xRead.unwrap()(file, buffer, amount, offset)
    }
}

unsafe extern "C" fn write(
    file: *mut ffi::sqlite3_file,
    buffer: *const c_void,
    amount: c_int,
    offset: ffi::sqlite3_int64,
) -> c_int {
    // SAFETY: as for SQLite's `xWrite`: the buffer has that many bytes.
    unsafe {
        let length = usize::try_from(amount).unwrap();
        let operation = || Operation::Write {
            offset: usize::try_from(offset).unwrap(),
            data: std::slice::from_raw_parts(buffer.cast::<u8>(), length).to_vec(),
        };
        let fault = note(path_of(file), Kind::Write, operation);
        let amount = match fault {
            None => amount,
            Some(Fault::Short(_)) if short(length) > 0 => c_int::try_from(short(length)).unwrap(),
            Some(fault) => return fault.status(),
        };
        let status = original(file).xWrite.unwrap()(file, buffer, amount, offset);
        fault.map_or(status, Fault::status)
    }
}

unsafe extern "C" fn truncate(file: *mut ffi::sqlite3_file, size: ffi::sqlite3_int64) -> c_int {
    // SAFETY: as for SQLite's `xTruncate`.
    unsafe {
        let new_size = usize::try_from(size).unwrap();
        let operation = || Operation::Truncate { size: new_size };
        if let Some(fault) = note(path_of(file), Kind::Truncate, operation) {
            return fault.status();
        }
        original(file).xTruncate.unwrap()(file, size)
    }
}

unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, flags: c_int) -> c_int {
    // SAFETY: as for SQLite's `xSync`.
    unsafe {
        if let Some(fault) = note(path_of(file), Kind::Flush, || Operation::Flush) {
            return fault.status();
        }
        original(file).xSync.unwrap()(file, flags)
    }
}
