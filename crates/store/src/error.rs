//! Errors of the store. Every error names the file and what is wrong with it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bigbird_user_agent::protocol::Reason;
use rusqlite::ErrorCode;
use rusqlite::ffi;
use thiserror::Error;

use crate::vfs;

/// A problem, and the file that has it.
///
/// No error releases a report or forgets what was spent. The transaction did not happen. If its
/// commit failed, it may have happened, but then nobody got an answer.
#[derive(Debug, Clone, Error)]
#[error("{}: {problem}", path.display())]
pub struct StoreError {
    path: PathBuf,
    // Shared, so that whoever waits before the next attempt can give the same error again.
    problem: Arc<Problem>,
}

impl StoreError {
    pub(crate) fn new(path: &Path, problem: impl Into<Problem>) -> Self {
        Self {
            path: path.to_owned(),
            problem: Arc::new(problem.into()),
        }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The problem with the file.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// What to do about it, as the rest of a sentence. `None` if the message says it already.
    pub fn advice(&self) -> Option<String> {
        let file = self.path.display();
        Some(match self.problem() {
            // A log without its store: a reset would find nothing, and an empty store refunds all.
            Problem::Damaged(_) if !self.path.exists() => {
                "restore the store file beside its log".to_owned()
            }
            Problem::Damaged(_) => format!(
                "`bigbird store reset {file} --reason damaged` starts over without giving budgets \
                 back"
            ),
            // It may be a store of which nothing is left. Moving it away could give budgets back.
            Problem::NotAStore if self.path.is_file() => format!(
                "if it was a store, `bigbird store reset {file} --reason damaged` starts over \
                 without giving budgets back"
            ),
            Problem::NewerSchema { .. } => "update bigbird".to_owned(),
            Problem::ReadOnly => format!("make {file} and its folder writable"),
            Problem::Denied => {
                format!("give the user who runs bigbird access to {file} and its folder")
            }
            Problem::Full => "nothing was lost, free some space and try again".to_owned(),
            Problem::Busy { .. } => {
                "nothing was lost, end the process that holds the lock or try again".to_owned()
            }
            problem if problem.is_transient() => "nothing was lost, try again".to_owned(),
            _ => return None,
        })
    }
}

/// A problem with a store.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Problem {
    /// The file does not exist.
    #[error("the file does not exist")]
    Missing,
    /// The folder of the file does not exist.
    #[error("the folder {} does not exist", .0.display())]
    NoFolder(PathBuf),
    /// A file exists where a new one should be created.
    #[error("the file already exists")]
    Exists,
    /// The file is not an SQLite database, or it is the database of another program.
    #[error("the file is not a Big Bird store; check the path")]
    NotAStore,
    /// The file is a store, but part of its content is not what was written.
    #[error("the store is damaged: {0}")]
    Damaged(Damage),
    /// The file has several names. SQLite's log belongs to a name, so each name would be a store of
    /// its own, and every budget could be spent once under each.
    #[error("the file has {links} names (hard links), but only 1 is allowed; delete the others")]
    Linked {
        /// The number of names that the file has.
        links: u64,
    },
    /// A newer program wrote the store.
    #[error("the schema version is {found}, but this program supports versions up to {known}")]
    NewerSchema {
        /// The version of the file.
        found: i64,
        /// The newest version that this program supports.
        known: i64,
    },
    /// The store cannot be written. SQLite writes beside the file even to read it.
    #[error("the store is read-only, but even reading it needs write access")]
    ReadOnly,
    /// The system does not permit opening the file.
    #[error("permission denied")]
    Denied,
    /// The disk is full.
    #[error("the disk is full")]
    Full,
    /// Another process held the lock for too long.
    #[error("gave up waiting after {waited_ms} ms because another process holds the lock")]
    Busy {
        /// The time spent waiting, in milliseconds.
        waited_ms: u64,
    },
    /// Another file, or none, is at the path of a store that is open. A reset replaces the file.
    #[error("the file was replaced or deleted while it was open, for example by a reset")]
    Replaced,
    /// An earlier step of the same transaction failed.
    #[error("a step of the transaction failed, so the transaction cannot be committed")]
    HalfDone,
    /// The store is full: no number is left for another item of this kind.
    #[error("the store is full: it has no numbers left for {0}")]
    Exhausted(&'static str),
    /// The file system failed.
    #[error("{operation} failed: {source}")]
    Io {
        /// The operation that failed.
        operation: &'static str,
        /// The cause of the failure.
        source: io::Error,
    },
    /// SQLite failed for another reason.
    #[error("{0}")]
    Sqlite(rusqlite::Error),
}

/// The kind of damage that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Damage {
    /// The file has no bytes.
    Empty,
    /// A page of the file does not match its checksum.
    Page,
    /// SQLite reports that the structure of the file is broken.
    Structure(String),
    /// A row does not match its checksum, or its content is invalid.
    Row(String),
    /// The rows of the ledger do not match their digest: some are missing, were added, or are older
    /// than the digest.
    Digest,
    /// The write-ahead log is missing, damaged, or does not belong to the file. Without the right
    /// log, what was spent last would be forgotten.
    Log(&'static str),
    /// The rows together violate an invariant of the store.
    Invariant(String),
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the file is empty"),
            Self::Page => f.write_str("a page does not match its checksum"),
            // SQLite may quote a statement, which has several lines. An error has one.
            Self::Structure(what) => {
                f.write_str(&what.split_whitespace().collect::<Vec<_>>().join(" "))
            }
            Self::Row(what) => write!(
                f,
                "the row for {what} is invalid or does not match its checksum"
            ),
            Self::Digest => f.write_str(
                "the ledger does not match its digest: rows are missing, added or out of date",
            ),
            Self::Log(what) => write!(f, "the write-ahead log {what}"),
            Self::Invariant(what) => f.write_str(what),
        }
    }
}

impl From<Damage> for Problem {
    fn from(damage: Damage) -> Self {
        Self::Damaged(damage)
    }
}

impl From<rusqlite::Error> for Problem {
    fn from(error: rusqlite::Error) -> Self {
        let Some(failure) = error.sqlite_error() else {
            // A column has the wrong type, or a row is missing. This program writes neither.
            return Damage::Structure(error.to_string()).into();
        };
        match (failure.code, failure.extended_code) {
            (_, ffi::SQLITE_IOERR_DATA) => Damage::Page.into(),
            (_, ffi::SQLITE_IOERR_SHORT_READ) => {
                Damage::Structure("the file is too short".to_owned()).into()
            }
            // SQLite reports some pages that the system failed to read as damaged.
            (ErrorCode::DatabaseCorrupt, _) if vfs::take_read_failure() => Self::unread(),
            (ErrorCode::DatabaseCorrupt, _) => {
                Damage::Structure("SQLite reports that the file is malformed".to_owned()).into()
            }
            (ErrorCode::NotADatabase, _) => Self::NotAStore,
            (ErrorCode::ReadOnly, code) => read_only(code),
            (ErrorCode::PermissionDenied, _) => Self::Denied,
            (ErrorCode::DiskFull, _) => Self::Full,
            (ErrorCode::CannotOpen | ErrorCode::SystemIoFailure, code) => {
                vfs::take_read_failure();
                system_failure(operation_of(code), vfs::take_system_error(), error)
            }
            // All statements are in this crate. One that does not compile means a foreign schema.
            (ErrorCode::Unknown, _) if failure.extended_code == ffi::SQLITE_ERROR => {
                Damage::Structure(error.to_string()).into()
            }
            _ => Self::Sqlite(error),
        }
    }
}

/// The operation in which SQLite could not open, read or write a file.
fn operation_of(extended_code: i32) -> &'static str {
    match extended_code {
        ffi::SQLITE_IOERR_READ | ffi::SQLITE_IOERR_CORRUPTFS => "reading the store",
        ffi::SQLITE_IOERR_WRITE => "writing the store",
        ffi::SQLITE_IOERR_FSYNC | ffi::SQLITE_IOERR_DIR_FSYNC => "flushing the store",
        ffi::SQLITE_IOERR_TRUNCATE => "truncating the store or its log",
        ffi::SQLITE_IOERR_SHMOPEN
        | ffi::SQLITE_IOERR_SHMSIZE
        | ffi::SQLITE_IOERR_SHMLOCK
        | ffi::SQLITE_IOERR_SHMMAP => "using the index of the log (-shm)",
        ffi::SQLITE_IOERR_LOCK | ffi::SQLITE_IOERR_UNLOCK | ffi::SQLITE_IOERR_RDLOCK => {
            "locking the store"
        }
        code if code & 0xff == ffi::SQLITE_CANTOPEN => "opening the store or its log",
        _ => "using the store",
    }
}

/// The problem behind SQLite's "read-only".
///
/// Opening refuses a read-only file first. After that, the error means that SQLite could not open
/// the log or its index for writing, for any reason, and opened it for reading instead.
fn read_only(extended_code: i32) -> Problem {
    match extended_code {
        ffi::SQLITE_READONLY_DIRECTORY => Problem::ReadOnly,
        _ => Problem::Io {
            operation: "opening the log and its index (-wal, -shm) for writing",
            source: io::Error::other("SQLite could open them only for reading"),
        },
    }
}

/// A failure of the system, with the system's own message. Trying again may succeed, so this is not
/// damage.
fn system_failure(
    operation: &'static str,
    source: Option<io::Error>,
    error: rusqlite::Error,
) -> Problem {
    // A file that is open cannot be missing, so this message was about an earlier, other file.
    let earlier = |source: &io::Error| {
        source.kind() == io::ErrorKind::NotFound
            && error.sqlite_error_code() == Some(ErrorCode::SystemIoFailure)
    };
    match source.filter(|source| !earlier(source)) {
        Some(source) => match source.kind() {
            io::ErrorKind::StorageFull => Problem::Full,
            io::ErrorKind::ReadOnlyFilesystem => Problem::ReadOnly,
            io::ErrorKind::PermissionDenied => Problem::Denied,
            _ => Problem::Io { operation, source },
        },
        None => Problem::Io {
            operation,
            source: io::Error::other(error),
        },
    }
}

impl Problem {
    /// A failure of the system to read pages. It is not damage.
    pub(crate) fn unread() -> Self {
        let source = vfs::take_system_error();
        let source = source.unwrap_or_else(|| io::Error::other("disk I/O error"));
        let operation = "reading the store";
        Self::Io { operation, source }
    }

    /// True if trying again may succeed, because the system failed and not the store.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Full | Self::Busy { .. } | Self::Io { .. } | Self::Sqlite(_)
        )
    }

    /// The name of the problem for programs, such as `notAStore`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::NoFolder(_) => "noFolder",
            Self::Exists => "exists",
            Self::NotAStore => "notAStore",
            Self::Damaged(_) => "damaged",
            Self::Linked { .. } => "linked",
            Self::NewerSchema { .. } => "newerSchema",
            Self::ReadOnly => "readOnly",
            Self::Denied => "denied",
            Self::Full => "full",
            Self::Busy { .. } => "busy",
            Self::Replaced => "replaced",
            Self::Exhausted(_) => "exhausted",
            Self::HalfDone | Self::Io { .. } | Self::Sqlite(_) => "failed",
        }
    }

    pub(crate) fn busy(waited: Duration) -> Self {
        Self::Busy {
            waited_ms: u64::try_from(waited.as_millis()).unwrap_or(u64::MAX),
        }
    }

    pub(crate) fn io(operation: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| match source.kind() {
            io::ErrorKind::NotFound => Self::Missing,
            io::ErrorKind::StorageFull => Self::Full,
            io::ErrorKind::ReadOnlyFilesystem => Self::ReadOnly,
            io::ErrorKind::PermissionDenied => Self::Denied,
            io::ErrorKind::AlreadyExists => Self::Exists,
            _ => Self::Io { operation, source },
        }
    }
}

impl Reason for StoreError {
    fn reason(&self) -> &'static str {
        self.problem().name()
    }

    fn advice(&self) -> Option<String> {
        Self::advice(self)
    }
}
