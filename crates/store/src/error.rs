//! Why a store cannot be used: every error names the file and what is wrong with it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bigbird_user_agent::protocol::Reason;
use rusqlite::ErrorCode;
use rusqlite::ffi;
use thiserror::Error;

use crate::vfs;

/// What failed, and on which file.
///
/// Whatever it is, nothing was released and nothing was forgotten: the transaction did not happen,
/// or, if its very end failed, may have happened without an answer.
#[derive(Debug, Error)]
#[error("{}: {problem}", path.display())]
pub struct StoreError {
    path: PathBuf,
    problem: Problem,
}

impl StoreError {
    pub(crate) fn new(path: &Path, problem: impl Into<Problem>) -> Self {
        Self {
            path: path.to_owned(),
            problem: problem.into(),
        }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is wrong.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }
}

/// What is wrong with a store.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Problem {
    /// There is no file.
    #[error("there is no such file")]
    Missing,
    /// There is no folder for it.
    #[error("there is no folder {}", .0.display())]
    NoFolder(PathBuf),
    /// There is a file where none should be.
    #[error("the file exists already")]
    Exists,
    /// Not a database, or not one of ours.
    #[error("it is no Big Bird store")]
    NotAStore,
    /// It is one, and something in it is not what was written.
    #[error("it is damaged: {0}")]
    Damaged(Damage),
    /// The file has several names. SQLite's log belongs to a name, so that each would be a store of its
    /// own, and every budget could be spent once under each.
    #[error("the file has {links} names (hard links), but only 1 is allowed; delete the others")]
    Linked {
        /// How many names it has.
        links: u64,
    },
    /// A newer program wrote it.
    #[error("its schema is of version {found}, this program knows up to {known}")]
    NewerSchema {
        /// The version of the file.
        found: i64,
        /// The newest version that this program knows.
        known: i64,
    },
    /// It may not be written.
    #[error("it is read-only")]
    ReadOnly,
    /// It may not be opened.
    #[error("permission denied")]
    Denied,
    /// The disk is full.
    #[error("the disk is full")]
    Full,
    /// Another process kept it locked.
    #[error("another process has kept it locked for {waited_ms} ms")]
    Busy {
        /// For how long we waited.
        waited_ms: u64,
    },
    /// Another file is in its place, since a reset.
    #[error("the file was replaced while it was open")]
    Replaced,
    /// Something failed before in the same transaction.
    #[error("a transaction of which something failed cannot be finished")]
    HalfDone,
    /// It holds as much as it can: a number ran out.
    #[error("there are no more numbers for {0}")]
    Exhausted(&'static str),
    /// The file system failed.
    #[error("{operation} failed: {source}")]
    Io {
        /// What was tried.
        operation: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// SQLite failed for another reason.
    #[error("{0}")]
    Sqlite(rusqlite::Error),
}

/// What is damaged.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Damage {
    /// The file has no bytes.
    Empty,
    /// A page of the file does not match its checksum.
    Page,
    /// SQLite finds the structure of the file broken.
    Structure(String),
    /// A row does not match its checksum, or holds what cannot be.
    Row(String),
    /// The rows of the ledger do not match their digest: some are missing, or were added.
    Digest,
    /// The write-ahead log, without which what was last spent would come back.
    Log(&'static str),
    /// Something that must hold of the whole does not.
    Invariant(String),
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the file is empty"),
            Self::Page => f.write_str("a page does not match its checksum"),
            Self::Structure(what) => write!(f, "{what}"),
            Self::Row(what) => write!(f, "{what} does not match its checksum"),
            Self::Digest => f.write_str("rows of the ledger are missing or were added"),
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
            // A column of another type, or a row that is not there: we wrote neither.
            return Damage::Structure(error.to_string()).into();
        };
        match (failure.code, failure.extended_code) {
            (_, ffi::SQLITE_IOERR_DATA) => Damage::Page.into(),
            (_, ffi::SQLITE_IOERR_SHORT_READ) => {
                Damage::Structure("the file is too short".to_owned()).into()
            }
            // SQLite takes some pages for damaged that the system failed to read.
            (ErrorCode::DatabaseCorrupt, _) if vfs::take_read_failure() => Self::unread(),
            (ErrorCode::DatabaseCorrupt, _) => {
                Damage::Structure("its pages do not fit together".to_owned()).into()
            }
            (ErrorCode::NotADatabase, _) => Self::NotAStore,
            (ErrorCode::ReadOnly, code) => read_only(code),
            (ErrorCode::PermissionDenied, _) => Self::Denied,
            (ErrorCode::DiskFull, _) => Self::Full,
            (ErrorCode::CannotOpen | ErrorCode::SystemIoFailure, code) => {
                vfs::take_read_failure();
                system_failure(operation_of(code), vfs::take_system_error(), error)
            }
            // Every statement is our own: if one does not fit, the schema is not ours.
            (ErrorCode::Unknown, _) if failure.extended_code == ffi::SQLITE_ERROR => {
                Damage::Structure(error.to_string()).into()
            }
            _ => Self::Sqlite(error),
        }
    }
}

/// What SQLite tried when it could not open, read or write a file.
fn operation_of(extended_code: i32) -> &'static str {
    match extended_code {
        ffi::SQLITE_IOERR_READ | ffi::SQLITE_IOERR_CORRUPTFS => "reading it",
        ffi::SQLITE_IOERR_WRITE => "writing it",
        ffi::SQLITE_IOERR_FSYNC | ffi::SQLITE_IOERR_DIR_FSYNC => "flushing it",
        ffi::SQLITE_IOERR_TRUNCATE => "cutting it off",
        ffi::SQLITE_IOERR_SHMOPEN
        | ffi::SQLITE_IOERR_SHMSIZE
        | ffi::SQLITE_IOERR_SHMLOCK
        | ffi::SQLITE_IOERR_SHMMAP => "using the index of its log",
        ffi::SQLITE_IOERR_LOCK | ffi::SQLITE_IOERR_UNLOCK | ffi::SQLITE_IOERR_RDLOCK => {
            "locking it"
        }
        code if code & 0xff == ffi::SQLITE_CANTOPEN => "opening it or its log",
        _ => "using it",
    }
}

/// A store that may not be written is refused before anything else. After that, it is the log or its
/// index that SQLite could not open for writing, for whatever reason, and opened for reading instead.
fn read_only(extended_code: i32) -> Problem {
    match extended_code {
        ffi::SQLITE_READONLY_DIRECTORY => Problem::ReadOnly,
        _ => Problem::Io {
            operation: "opening its log and the index of the log (-wal, -shm) for writing",
            source: io::Error::other("SQLite could only read them"),
        },
    }
}

/// A failure of the system, as the system tells it. It may be gone when somebody tries again, so it is
/// not damage.
fn system_failure(
    operation: &'static str,
    source: Option<io::Error>,
    error: rusqlite::Error,
) -> Problem {
    // A file that is open cannot be missing: then the system had said so earlier, of another file.
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
    /// A failure of the system to read pages, which is not damage.
    pub(crate) fn unread() -> Self {
        let source = vfs::take_system_error();
        let source = source.unwrap_or_else(|| io::Error::other("disk I/O error"));
        let operation = "reading it";
        Self::Io { operation, source }
    }

    /// Whether it may be gone when somebody tries again, because the system failed and not the store.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Full | Self::Busy { .. } | Self::Io { .. } | Self::Sqlite(_)
        )
    }

    /// What is wrong, in a word: for programs.
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
}
