//! A layer below the store that records every write and every flush, so that a test can play a
//! power cut at each of them. It also makes operations fail where a test wants it.
#![allow(unsafe_code, reason = "SQLite's interface for this is C")]

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rusqlite::ffi;

use crate::SECTOR;

/// An operation that reached a file.
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
    /// A flush that failed. What was written before may never reach the disk, even if a later flush
    /// succeeds.
    FailedFlush,
    Delete,
}

/// The kind of an operation on a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OperationKind {
    Read,
    Write,
    Truncate,
    Flush,
    Delete,
}

/// The way in which an operation fails.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    /// Nothing happens.
    Whole(c_int),
    /// Only a part is written.
    Short(c_int),
}

impl Fault {
    fn status(self) -> c_int {
        match self {
            Self::Whole(status) | Self::Short(status) => status,
        }
    }
}

/// Decides which operations fail.
type Faults = Box<dyn FnMut(&Path, OperationKind) -> Option<Fault> + Send>;

/// Everything that was recorded: files and operations.
pub(crate) type Log = Vec<(PathBuf, Operation)>;

struct Recorder {
    log: Log,
    /// The paths of open files.
    files: HashMap<usize, PathBuf>,
    /// The folder whose files are recorded.
    folder: Option<PathBuf>,
    failing: Option<Faults>,
    /// True if flushes are not recorded, as if the store did not flush.
    flushless: bool,
}

static RECORDER: Mutex<Option<Recorder>> = Mutex::new(None);

fn recorder() -> MutexGuard<'static, Option<Recorder>> {
    RECORDER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes the recorder the default layer, below every store that is opened afterwards.
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

/// Starts to record what happens to the files of a folder.
pub(crate) fn start(folder: &Path) {
    let mut recorder = recorder();
    let recorder = recorder.as_mut().unwrap();
    recorder.log.clear();
    recorder.folder = Some(folder.to_owned());
}

/// From now on, operations other than reads on the files of a folder succeed `successes` times, and
/// then fail.
pub(crate) fn fail_after(folder: &Path, successes: usize, status: c_int) {
    start(folder);
    let mut left = successes;
    fail(move |_, kind| {
        if kind == OperationKind::Read {
            return None;
        }
        match left.checked_sub(1) {
            Some(fewer) => left = fewer,
            None => return Some(Fault::Whole(status)),
        }
        None
    });
}

/// Sets a function that decides which operations fail in the recorded folder.
pub(crate) fn fail(faults: impl FnMut(&Path, OperationKind) -> Option<Fault> + Send + 'static) {
    recorder().as_mut().unwrap().failing = Some(Box::new(faults));
}

/// Makes all operations succeed again.
pub(crate) fn recover() {
    recorder().as_mut().unwrap().failing = None;
}

/// Sets whether flushes are left out of the record.
pub(crate) fn pass_over_flushes(flushless: bool) {
    recorder().as_mut().unwrap().flushless = flushless;
}

/// The number of recorded operations.
pub(crate) fn noted() -> usize {
    recorder().as_ref().unwrap().log.len()
}

/// A copy of the record so far.
pub(crate) fn so_far() -> Log {
    recorder().as_ref().unwrap().log.clone()
}

/// Stops recording, and returns the record.
pub(crate) fn stop() -> Log {
    let mut recorder = recorder();
    let recorder = recorder.as_mut().unwrap();
    recorder.folder = None;
    recorder.failing = None;
    std::mem::take(&mut recorder.log)
}

/// Records an operation. If it must fail, returns the fault, and records only what still happens.
fn note(
    path: Option<PathBuf>,
    kind: OperationKind,
    operation: impl FnOnce() -> Operation,
) -> Option<Fault> {
    let mut recorder = recorder();
    let recorder = recorder.as_mut()?;
    let (path, folder) = (path?, recorder.folder.as_ref()?);
    if !path.starts_with(folder) {
        return None;
    }
    let faults = recorder.failing.as_mut();
    let fault = faults.and_then(|faults| faults(&path, kind));
    match (fault, kind) {
        (None, OperationKind::Read) => {}
        (None, OperationKind::Flush) if recorder.flushless => {}
        (None, _) => recorder.log.push((path, operation())),
        (Some(_), OperationKind::Flush) => recorder.log.push((path, Operation::FailedFlush)),
        (Some(Fault::Short(_)), OperationKind::Write) => {
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

/// The number of bytes that a short write still writes: whole sectors.
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

/// The functions of open files, of the default layer and of this one. Databases and logs have
/// different ones, because only databases are locked.
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
    // SAFETY: as for SQLite's `xOpen`. The table of functions of an open file stays valid.
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
        if let Some(fault) = note(Some(path), OperationKind::Delete, || Operation::Delete) {
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
        // A read is not recorded, so the operation does not matter.
        if let Some(fault) = note(path_of(file), OperationKind::Read, || Operation::Flush) {
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
    // SAFETY: as for SQLite's `xWrite`. The buffer has `amount` bytes.
    unsafe {
        let length = usize::try_from(amount).unwrap();
        let operation = || Operation::Write {
            offset: usize::try_from(offset).unwrap(),
            data: std::slice::from_raw_parts(buffer.cast::<u8>(), length).to_vec(),
        };
        let fault = note(path_of(file), OperationKind::Write, operation);
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
        if let Some(fault) = note(path_of(file), OperationKind::Truncate, operation) {
            return fault.status();
        }
        original(file).xTruncate.unwrap()(file, size)
    }
}

unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, flags: c_int) -> c_int {
    // SAFETY: as for SQLite's `xSync`.
    unsafe {
        if let Some(fault) = note(path_of(file), OperationKind::Flush, || Operation::Flush) {
            return fault.status();
        }
        original(file).xSync.unwrap()(file, flags)
    }
}
