//! The file of a store: creating, opening, locking, flushing and closing it.

mod checkpoint;
mod connection;
mod create;
mod path;

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bigbird_user_agent::Storage;
use rusqlite::{Connection, OpenFlags};

use crate::device::DeviceRow;
use crate::error::{Damage, Problem, StoreError};
use crate::log::{self, LogState};
use crate::schema::{self, APPLICATION, MIGRATIONS};
use crate::temporary::{BRIEFLY, remove_leftovers};
use crate::transaction::SqliteTransaction;
use crate::{verify, vfs};

pub(crate) use connection::{connect, connect_alone, keep_log, set_up};
pub(crate) use create::{build, create, finish};
use path::links;
pub(crate) use path::{Identity, absolute};

/// Options for opening a store.
#[derive(Debug, Clone, Copy)]
pub struct StoreOptions {
    /// The longest wait for other processes that hold the lock.
    pub wait: Duration,
    /// The number of pages in the write-ahead log after which SQLite moves them into the database
    /// file, as part of the transaction that reaches it. With 0, only [`SqliteStore::checkpoint`]
    /// moves them.
    pub checkpoint_pages: u32,
}

impl Default for StoreOptions {
    /// A wait of 30 seconds, and 1,000 pages (4 MB).
    fn default() -> Self {
        Self {
            wait: Duration::from_secs(30),
            checkpoint_pages: 1000,
        }
    }
}

/// A store in an SQLite file.
///
/// A committed transaction is on the disk: SQLite writes every transaction to its write-ahead log
/// and flushes the log once (`synchronous=FULL`). A row that cannot be read is an error. Several
/// processes may have the store open.
#[derive(Debug)]
pub struct SqliteStore {
    pub(crate) connection: Connection,
    path: PathBuf,
    wait: Duration,
    /// The identity of the file, to notice when another file takes its place.
    identity: Option<Identity>,
    /// True once a transaction has begun. From then on the database file says that there is a log.
    in_use: bool,
    /// True if rows were deleted since deleted content was last erased from the files.
    pub(crate) unerased: bool,
    /// True if a transaction was rolled back because the disk failed. Its frames may still be in
    /// the log.
    interrupted: Cell<bool>,
}

impl SqliteStore {
    /// Opens a store, and verifies its ledger.
    ///
    /// # Errors
    /// If the file does not exist, is damaged, is not a store, has a newer schema than this program
    /// supports, or cannot be written.
    pub fn open(path: impl AsRef<Path>, options: &StoreOptions) -> Result<Self, StoreError> {
        let path = absolute(path.as_ref())?;
        Self::open_at(&path, options).map_err(|problem| StoreError::new(&path, problem))
    }

    /// Opens a store, or creates it if the file does not exist. A file that exists but cannot be
    /// used is an error. It is never replaced, because that would refund its budgets.
    ///
    /// # Errors
    /// If the store cannot be opened or created.
    pub fn open_or_create(
        path: impl AsRef<Path>,
        options: &StoreOptions,
    ) -> Result<Self, StoreError> {
        let path = absolute(path.as_ref())?;
        let opened = match path.try_exists() {
            Ok(false) => {
                remove_leftovers(&path, BRIEFLY);
                create(&path, DeviceRow::new(), &[]).and_then(|()| Self::open_at(&path, options))
            }
            _ => Self::open_at(&path, options),
        };
        opened.map_err(|problem| StoreError::new(&path, problem))
    }

    pub(crate) fn open_at(path: &Path, options: &StoreOptions) -> Result<Self, Problem> {
        remove_leftovers(path, BRIEFLY);
        // The log is inspected without a lock, while another process may be writing, opening or
        // closing it. Real damage is still there when the log is inspected again.
        const LOOKS: usize = 5;
        let mut opened = Self::try_open(path, options);
        for _ in 1..LOOKS {
            if !matches!(opened, Err(Problem::Damaged(Damage::Log(_)))) {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
            opened = Self::try_open(path, options);
        }
        opened.map_err(|problem| diagnose(path, problem))
    }

    fn try_open(path: &Path, options: &StoreOptions) -> Result<Self, Problem> {
        let mut metadata = fs::metadata(path).map_err(Problem::io("opening the file"))?;
        if !metadata.is_file() {
            return Err(Problem::NotAStore);
        }
        if links(&metadata) > 1 {
            // A process may be creating or resetting the store, or may have been killed doing so.
            remove_leftovers(path, options.wait);
            metadata = fs::metadata(path).map_err(Problem::io("opening the file"))?;
        }
        match links(&metadata) {
            0 | 1 => {}
            links => return Err(Problem::Linked { links }),
        }
        if metadata.len() == 0 {
            return Err(Damage::Empty.into());
        }
        let log = log::inspect(path)?;
        let connection = connect(path)?;
        // Opening a read-only store would leave an index beside it with the same permissions, which
        // its owner could not write later. The same holds for root, although root could write.
        if metadata.permissions().readonly() || connection.is_readonly("main")? {
            return Err(Problem::ReadOnly);
        }
        // This comes before anything is read. Otherwise SQLite would remove the log when the last
        // connection is closed, even after an error.
        keep_log(&connection, true)?;
        let mut store = Self {
            connection,
            path: path.to_owned(),
            wait: options.wait,
            identity: Identity::of(&metadata),
            in_use: false,
            unerased: false,
            interrupted: Cell::new(false),
        };
        store.configure(options)?;
        if log == LogState::Sound {
            store.refuse_older_log()?;
        }
        let check_log = |device: &DeviceRow| match log {
            LogState::Missing if !device.closed_cleanly => Err(Damage::Log("is missing").into()),
            LogState::Unsound if !device.closed_cleanly => Err(Damage::Log("is damaged").into()),
            _ => Ok(()),
        };
        // This comes before a migration, which begins a log. The next time the store is opened,
        // that log would pass for the lost one.
        if let Ok(device) = DeviceRow::load_any(&store.connection) {
            check_log(&device)?;
        }
        schema::migrate(&store.connection, MIGRATIONS).map_err(|problem| store.waited(problem))?;
        let device = store.lock()?;
        let verified = check_log(&device).and_then(|()| verify::ledger(&store.connection, &device));
        store.release_lock();
        verified?;
        Ok(store)
    }

    /// Refuses a log that is older than the file. It would take the file back to an earlier state.
    ///
    /// Everything in the file came out of its log, and the log was flushed before. So the file with
    /// its log is never older than the file alone. A file that cannot be read alone may belong to a
    /// process that was killed while it moved the log into the file. Then the log still has the
    /// pages that belong there.
    fn refuse_older_log(&self) -> Result<(), Problem> {
        // Under the lock, so that no process can write a transaction and move it into the file in
        // between.
        self.begin_immediate()?;
        let with_log = DeviceRow::load_any(&self.connection);
        let alone = connect_alone(&self.path).and_then(|file| DeviceRow::load_any(&file));
        let compared = match (with_log, alone) {
            // The file was closed. Since then, nothing was written but the record that there is a
            // log. So the file needs nothing from this log.
            (Err(Problem::Damaged(_)), Ok(alone)) if alone.closed_cleanly => Err(Damage::Log(
                "does not belong to the file; the file was closed and needs no log, so moving the \
                 log away repairs the store",
            )
            .into()),
            (Ok(with_log), Ok(alone)) if with_log.writes < alone.writes => {
                Err(Damage::Log(match alone.closed_cleanly {
                    true => {
                        "is older than the file; the file was closed and needs no log, so moving \
                         the log away repairs the store"
                    }
                    false => "is older than the file",
                })
                .into())
            }
            (Err(problem), _) => Err(problem),
            (Ok(_), Ok(_) | Err(Problem::Damaged(_) | Problem::NotAStore)) => Ok(()),
            (Ok(_), Err(problem)) => Err(problem),
        };
        self.release_lock();
        compared
    }

    fn configure(&mut self, options: &StoreOptions) -> Result<(), Problem> {
        let wait = options.wait;
        let mut since = Instant::now();
        self.connection.busy_handler(Some(move |tries: i32| {
            if tries == 0 {
                since = Instant::now();
            }
            // A conversion takes less than a millisecond.
            let pause = if tries < 50 { 100 } else { 1000 };
            std::thread::sleep(Duration::from_micros(pause));
            since.elapsed() < wait
        }))?;
        // Nothing else is read or set before it is certain that this is a store.
        let application: i64 =
            self.connection
                .pragma_query_value(None, "application_id", |row| row.get(0))?;
        if application != APPLICATION {
            return Err(Problem::NotAStore);
        }
        set_up(&self.connection)?;
        let pages = options.checkpoint_pages;
        self.connection
            .query_row(&format!("PRAGMA wal_autocheckpoint = {pages}"), [], |_| {
                Ok(())
            })?;
        Ok(())
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes the lock for a transaction of the user agent, and reads the device row.
    pub(crate) fn begin_transaction(&mut self) -> Result<DeviceRow, Problem> {
        if !self.in_use || self.interrupted.get() {
            // The first transaction records in the database file itself that there is a log. A log
            // that is lost from then on is detected. If another process was killed just before, the
            // record may be in the log alone. So the log is moved into the file in any case.
            //
            // A transaction that was rolled back because the disk failed may have left intact
            // frames in the log. The log starts over, so that none of them is ever taken for a
            // transaction that was answered.
            let device = self.lock()?;
            if device.closed_cleanly {
                self.write_back(&DeviceRow {
                    closed_cleanly: false,
                    writes: device.writes.wrapping_add(1),
                    ..device
                })?;
            } else {
                self.release_lock();
            }
            self.checkpoint_completely()?;
            self.in_use = true;
            self.interrupted.set(false);
        }
        self.lock()
    }

    /// Takes the lock, waiting for other processes, and reads the device row.
    pub(crate) fn lock(&self) -> Result<DeviceRow, Problem> {
        self.begin_immediate()?;
        let locked = self
            .is_in_place()
            .and_then(|()| DeviceRow::load(&self.connection));
        if locked.is_err() {
            self.release_lock();
        }
        locked
    }

    fn begin_immediate(&self) -> Result<(), Problem> {
        // A read that failed earlier, for example while closing, does not explain damage from here
        // on.
        vfs::take_read_failure();
        let mut statement = self.connection.prepare_cached("BEGIN IMMEDIATE")?;
        let begun = statement.execute([]);
        begun.map_err(|error| self.waited(error.into()))?;
        Ok(())
    }

    fn is_in_place(&self) -> Result<(), Problem> {
        match fs::metadata(&self.path) {
            Ok(metadata) if Identity::of(&metadata) == self.identity => Ok(()),
            _ => Err(Problem::Replaced),
        }
    }

    /// Rolls a transaction back.
    pub(crate) fn release_lock(&self) {
        // If the disk failed, SQLite has rolled back already.
        if self.connection.is_autocommit() || self.connection.execute_batch("ROLLBACK").is_err() {
            self.interrupted.set(true);
        }
    }

    /// Adds the time spent waiting to SQLite's "busy" error.
    fn waited(&self, problem: Problem) -> Problem {
        match problem {
            Problem::Sqlite(error)
                if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy) =>
            {
                self.busy()
            }
            problem => problem,
        }
    }

    fn busy(&self) -> Problem {
        Problem::busy(self.wait)
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        // If this fails, the log stays, and nothing is lost. After `close` it changes nothing.
        let _ = self.shut();
    }
}

impl Storage for SqliteStore {
    type Error = StoreError;
    type Transaction<'t> = SqliteTransaction<'t>;

    fn begin(&mut self) -> Result<SqliteTransaction<'_>, StoreError> {
        let path = self.path.clone();
        SqliteTransaction::begin(self).map_err(|problem| StoreError::new(&path, problem))
    }
}

/// Finds a better explanation for a file that looks damaged: it may belong to another program, or
/// to a newer version of this one. The first page shows that even if it does not match its
/// checksum.
fn diagnose(path: &Path, problem: Problem) -> Problem {
    if !matches!(
        problem,
        Problem::Damaged(Damage::Page | Damage::Structure(_))
    ) {
        return problem;
    }
    let header = || -> Result<(i64, i64), Problem> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let plain = Connection::open_with_flags(path, flags)?;
        keep_log(&plain, true)?;
        let read = |name| plain.pragma_query_value(None, name, |row| row.get(0));
        Ok((read("application_id")?, read("user_version")?))
    };
    let known = i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX);
    match header() {
        // A version of 1,000 or more is not a newer program but a flipped bit.
        Ok((APPLICATION, found)) if (known + 1..1000).contains(&found) => {
            Problem::NewerSchema { found, known }
        }
        Ok((application, _)) if application != APPLICATION => Problem::NotAStore,
        _ => problem,
    }
}
