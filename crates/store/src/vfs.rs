//! Page checksums: a thin layer between SQLite and the file.
//!
//! SQLite does not checksum the pages of its database file. After a flipped bit in a pointer
//! between pages, a later write of anything could overwrite the ledger. So each page ends with
//! eight bytes that SQLite leaves to this layer. They hold a checksum of the page and its offset in
//! the file. It is written with every write of the page and verified with every read. The
//! write-ahead log has checksums of its own. The layer leaves the log, and everything else, to
//! SQLite's default layer.
//!
//! SQLite's interface for this is C: a table of functions for a file system, and one for each open
//! file. The layer copies both tables and replaces five functions. They open a file, read it, write
//! it, report the characteristics of its device, and report the last error of the system.
//!
//! There are two such layers. The second one tells SQLite that a file never changes. SQLite then
//! reads the file alone, without its log and without locks.
#![allow(unsafe_code, reason = "SQLite's interface for this is C")]

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Mutex, OnceLock, PoisonError};

use rusqlite::ffi;
use twox_hash::XxHash3_64;

/// The name by which connections ask for this layer.
pub(crate) const NAME: &CStr = c"bigbird";

/// The name of the layer that shows a file without its write-ahead log.
pub(crate) const FILE_ALONE: &CStr = c"bigbird-file-alone";

/// `SQLITE_IOCAP_SUBPAGE_READ`, which older headers do not have.
const SUBPAGE_READ: c_int = 0x8000;

/// The size of every page.
pub(crate) const PAGE: usize = 4096;

/// The number of bytes of a page that SQLite leaves to this layer.
pub(crate) const RESERVED: u8 = 8;

/// The number of bytes that the checksum covers. The checksum itself follows them.
const CONTENT: usize = PAGE - RESERVED as usize;

/// The size of the file header. SQLite reads it alone, before it knows the size of pages.
const HEADER: i64 = 100;

/// The checksum of a page at an offset of the file.
fn checksum(content: &[u8], offset: i64) -> [u8; RESERVED as usize] {
    XxHash3_64::oneshot_with_seed(offset.cast_unsigned(), content).to_le_bytes()
}

fn is_intact(page: &[u8], offset: i64) -> bool {
    let (content, sum) = page.split_at(CONTENT);
    sum == checksum(content, offset)
}

type OpenMethod = unsafe extern "C" fn(
    *mut ffi::sqlite3_vfs,
    ffi::sqlite3_filename,
    *mut ffi::sqlite3_file,
    c_int,
    *mut c_int,
) -> c_int;
type Read =
    unsafe extern "C" fn(*mut ffi::sqlite3_file, *mut c_void, c_int, ffi::sqlite3_int64) -> c_int;
type Characteristics = unsafe extern "C" fn(*mut ffi::sqlite3_file) -> c_int;
type Write =
    unsafe extern "C" fn(*mut ffi::sqlite3_file, *const c_void, c_int, ffi::sqlite3_int64) -> c_int;

/// The use of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// A database with its log.
    Database,
    /// A database without its log. SQLite is told that it never changes.
    Alone,
    /// The log of a database.
    Log,
}

/// The functions of an open file, and the original functions that they call.
#[repr(C)]
struct VfsMethods {
    /// The first field, so that a pointer to it is also a pointer to the whole struct.
    table: ffi::sqlite3_io_methods,
    original: *const ffi::sqlite3_io_methods,
    used: Use,
    read: Read,
    write: Write,
    characteristics: Characteristics,
}

// SAFETY: the pointer is only compared; the functions are SQLite's own and may be called from any
// thread that may use the file.
unsafe impl Send for VfsMethods {}
// SAFETY: it is never changed.
unsafe impl Sync for VfsMethods {}

/// One entry for each table of functions of the default layer and each use. The default layer has a
/// few tables, for different ways of locking.
static METHODS: Mutex<Vec<&'static VfsMethods>> = Mutex::new(Vec::new());

type LastError = unsafe extern "C" fn(*mut ffi::sqlite3_vfs, c_int, *mut c_char) -> c_int;

/// The default layer's function that reports the last error of the system.
static LAST_ERROR: OnceLock<LastError> = OnceLock::new();

thread_local! {
    /// The system's error code when SQLite last failed in this thread because of the system, or 0.
    static SYSTEM_ERROR: Cell<c_int> = const { Cell::new(0) };

    /// True if the system failed to read something in this thread.
    static READ_FAILED: Cell<bool> = const { Cell::new(false) };
}

/// Returns true if the system failed to read something in this thread since the last call. SQLite
/// does not always distinguish that from damage.
pub(crate) fn take_read_failure() -> bool {
    READ_FAILED.take()
}

/// The system's error when SQLite last failed in this thread. It is returned once. SQLite asks for
/// it when it cannot open, read or write a file, just before it returns.
pub(crate) fn take_system_error() -> Option<std::io::Error> {
    match SYSTEM_ERROR.take() {
        0 => None,
        code => Some(std::io::Error::from_raw_os_error(code)),
    }
}

/// Reports the last error of the system, and remembers it.
///
/// # Safety
/// As for SQLite's `xGetLastError`.
unsafe extern "C" fn last_error(
    layer: *mut ffi::sqlite3_vfs,
    length: c_int,
    message: *mut c_char,
) -> c_int {
    let Some(last_error) = LAST_ERROR.get() else {
        return 0;
    };
    // SAFETY: the arguments are SQLite's, and our table is a copy of the default one.
    let code = unsafe { last_error(layer, length, message) };
    SYSTEM_ERROR.set(code);
    code
}

/// The default layer's function that opens files.
static OPEN: OnceLock<OpenMethod> = OnceLock::new();

/// Registers the layers with SQLite, on top of the layer that is the default at the first call.
/// Returns false if SQLite refuses.
pub(crate) fn register() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| {
        // SAFETY: initialising twice does nothing; the default layer, if there is one, is a valid
        // table that is never freed; ours are copies of it, which live forever too.
        unsafe {
            if ffi::sqlite3_initialize() != ffi::SQLITE_OK {
                return false;
            }
            let Some(default) = ffi::sqlite3_vfs_find(std::ptr::null()).as_ref() else {
                return false;
            };
            let Some(open_default) = default.xOpen else {
                return false;
            };
            OPEN.get_or_init(|| open_default);
            if let Some(last_error) = default.xGetLastError {
                LAST_ERROR.get_or_init(|| last_error);
            }
            [(NAME, open as OpenMethod), (FILE_ALONE, open_alone)]
                .into_iter()
                .all(|(name, open)| {
                    let layer = Box::leak(Box::new(ffi::sqlite3_vfs {
                        pNext: std::ptr::null_mut(),
                        zName: name.as_ptr(),
                        xOpen: Some(open),
                        xGetLastError: LAST_ERROR.get().map(|_| last_error as LastError),
                        ..*default
                    }));
                    ffi::sqlite3_vfs_register(layer, 0) == ffi::SQLITE_OK
                })
        }
    })
}

/// Opens a file of the first layer.
///
/// # Safety
/// As for SQLite's `xOpen`: SQLite calls it with a file of the size that the layer asked for.
unsafe extern "C" fn open(
    layer: *mut ffi::sqlite3_vfs,
    name: ffi::sqlite3_filename,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    // SAFETY: the arguments are SQLite's.
    unsafe { take_over(layer, name, file, flags, out_flags, Use::Database) }
}

/// Opens a file of the layer that shows it without its log.
///
/// # Safety
/// As for [`open`].
unsafe extern "C" fn open_alone(
    layer: *mut ffi::sqlite3_vfs,
    name: ffi::sqlite3_filename,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    // SAFETY: the arguments are SQLite's.
    unsafe { take_over(layer, name, file, flags, out_flags, Use::Alone) }
}

/// Opens a file as the default layer does, and replaces its functions if it is a database or a log.
///
/// # Safety
/// As for SQLite's `xOpen`.
unsafe fn take_over(
    layer: *mut ffi::sqlite3_vfs,
    name: ffi::sqlite3_filename,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
    database: Use,
) -> c_int {
    let Some(open_default) = OPEN.get() else {
        return ffi::SQLITE_CANTOPEN;
    };
    // SAFETY: our table is a copy of the default one, whose function only reads the fields that
    // are the same in both. A file that was opened has a table of functions that is never freed.
    unsafe {
        let status = open_default(layer, name, file, flags, out_flags);
        let used = match flags {
            _ if flags & ffi::SQLITE_OPEN_MAIN_DB != 0 => Some(database),
            _ if flags & ffi::SQLITE_OPEN_WAL != 0 => Some(Use::Log),
            _ => None,
        };
        if let (ffi::SQLITE_OK, Some(used)) = (status, used) {
            match methods_for((*file).pMethods, used) {
                Some(methods) => (*file).pMethods = &raw const methods.table,
                None => return ffi::SQLITE_CANTOPEN,
            }
        }
        status
    }
}

/// This layer's version of a table of functions.
///
/// # Safety
/// The table must be valid forever.
unsafe fn methods_for(
    original: *const ffi::sqlite3_io_methods,
    used: Use,
) -> Option<&'static VfsMethods> {
    let mut known = METHODS.lock().unwrap_or_else(PoisonError::into_inner);
    let mut known_ones = known.iter();
    if let Some(methods) = known_ones.find(|it| it.original == original && it.used == used) {
        return Some(methods);
    }
    // SAFETY: the caller guarantees that the table is valid.
    let table = unsafe { original.as_ref()? };
    let ours = match used {
        Use::Log => ffi::sqlite3_io_methods {
            xRead: Some(read_log),
            ..*table
        },
        Use::Database | Use::Alone => ffi::sqlite3_io_methods {
            // Version 3 adds memory mapping, which would bypass this layer.
            iVersion: table.iVersion.min(2),
            xRead: Some(read),
            xWrite: Some(write),
            xDeviceCharacteristics: Some(characteristics),
            ..*table
        },
    };
    let methods = Box::leak(Box::new(VfsMethods {
        table: ours,
        original,
        used,
        read: table.xRead?,
        write: table.xWrite?,
        characteristics: table.xDeviceCharacteristics?,
    }));
    known.push(methods);
    Some(methods)
}

/// Reads a page and verifies its checksum.
///
/// # Safety
/// As for SQLite's `xRead`, on a file that [`open`] took over.
unsafe extern "C" fn read(
    file: *mut ffi::sqlite3_file,
    buffer: *mut c_void,
    amount: c_int,
    offset: ffi::sqlite3_int64,
) -> c_int {
    // SAFETY: the file's table of functions is the first field of ours, and `buffer` has `amount`
    // bytes, all of which are filled, with zeros if the file ends before.
    unsafe {
        let methods = &*(*file).pMethods.cast::<VfsMethods>();
        let status = (methods.read)(file, buffer, amount, offset);
        if status != ffi::SQLITE_OK && status != ffi::SQLITE_IOERR_SHORT_READ {
            READ_FAILED.set(true);
            return status;
        }
        match usize::try_from(amount) {
            Ok(PAGE) => {
                let page = std::slice::from_raw_parts(buffer.cast::<u8>(), PAGE);
                // A page behind the end of the file is all zeros.
                let behind = status != ffi::SQLITE_OK && page.iter().all(|byte| *byte == 0);
                // SQLite itself reports a file that is not a database.
                let foreign = offset == 0 && !page.starts_with(b"SQLite format 3\0");
                if behind || foreign || is_intact(page, offset) {
                    return status;
                }
            }
            Ok(amount) if offset >= 0 && offset + amount as i64 <= HEADER => return status,
            // Any other size means that a damaged header gave a wrong page size.
            _ => {}
        }
        ffi::SQLITE_IOERR_DATA
    }
}

/// Reads a part of a log, and remembers a failure of the system.
///
/// # Safety
/// As for SQLite's `xRead`, on a file that [`open`] took over.
unsafe extern "C" fn read_log(
    file: *mut ffi::sqlite3_file,
    buffer: *mut c_void,
    amount: c_int,
    offset: ffi::sqlite3_int64,
) -> c_int {
    // SAFETY: the file's table of functions is the first field of ours.
    let status = unsafe {
        let methods = &*(*file).pMethods.cast::<VfsMethods>();
        (methods.read)(file, buffer, amount, offset)
    };
    if status != ffi::SQLITE_OK && status != ffi::SQLITE_IOERR_SHORT_READ {
        READ_FAILED.set(true);
    }
    status
}

/// Writes a page with its checksum.
///
/// # Safety
/// As for SQLite's `xWrite`, on a file that [`open`] took over.
unsafe extern "C" fn write(
    file: *mut ffi::sqlite3_file,
    buffer: *const c_void,
    amount: c_int,
    offset: ffi::sqlite3_int64,
) -> c_int {
    if usize::try_from(amount) != Ok(PAGE) {
        return ffi::SQLITE_IOERR_WRITE;
    }
    // SAFETY: the file's table of functions is the first field of ours, and `buffer` has `amount`
    // bytes.
    unsafe {
        let methods = &*(*file).pMethods.cast::<VfsMethods>();
        let mut page = [0; PAGE];
        page.copy_from_slice(std::slice::from_raw_parts(buffer.cast::<u8>(), PAGE));
        let sum = checksum(&page[..CONTENT], offset);
        page[CONTENT..].copy_from_slice(&sum);
        (methods.write)(file, page.as_ptr().cast(), amount, offset)
    }
}

/// The characteristics of the file's device, without reads of parts of a page. A part could not be
/// verified.
///
/// # Safety
/// As for SQLite's `xDeviceCharacteristics`, on a file that [`open`] took over.
unsafe extern "C" fn characteristics(file: *mut ffi::sqlite3_file) -> c_int {
    // SAFETY: the file's table of functions is the first field of ours.
    unsafe {
        let methods = &*(*file).pMethods.cast::<VfsMethods>();
        let unchanging = match methods.used {
            Use::Alone => ffi::SQLITE_IOCAP_IMMUTABLE,
            Use::Database | Use::Log => 0,
        };
        (methods.characteristics)(file) & !SUBPAGE_READ | unchanging
    }
}

/// Asks SQLite to leave the last bytes of every page to this layer. The database must still be
/// empty.
pub(crate) fn reserve(connection: &rusqlite::Connection) -> bool {
    let mut bytes = c_int::from(RESERVED);
    // SAFETY: the handle is open, and the argument is what this operation expects.
    unsafe {
        ffi::sqlite3_file_control(
            connection.handle(),
            c"main".as_ptr(),
            ffi::SQLITE_FCNTL_RESERVE_BYTES,
            (&raw mut bytes).cast(),
        ) == ffi::SQLITE_OK
    }
}
