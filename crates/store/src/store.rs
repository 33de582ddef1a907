//! The store as a file: creating, opening, locking, flushing and closing it.

use std::cell::Cell;
use std::ffi::CStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bigbird_user_agent::Storage;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use crate::device::Device;
use crate::error::{Damage, Problem, StoreError};
use crate::log::{self, Log};
use crate::schema::{self, APPLICATION, MIGRATIONS};
use crate::temporary::{BRIEFLY, Temporary, remove_leftovers};
use crate::transaction::SqliteTransaction;
use crate::{verify, vfs};

/// How a store is opened.
#[derive(Debug, Clone, Copy)]
pub struct StoreOptions {
    /// How long to wait for other processes that hold the lock.
    pub wait: Duration,
    /// After how many pages of the write-ahead log SQLite moves them into the database file, as
    /// part of the transaction that fills it; 0 leaves it to [`SqliteStore::checkpoint`].
    pub checkpoint_pages: u32,
}

impl Default for StoreOptions {
    /// Half a minute, 4 MB.
    fn default() -> Self {
        Self {
            wait: Duration::from_secs(30),
            checkpoint_pages: 1000,
        }
    }
}

/// A store in an SQLite file.
///
/// What is finished is on the disk: SQLite writes every transaction to its write-ahead log and
/// flushes it once (`synchronous=FULL`). What cannot be read is an error. Several processes may
/// have it open.
#[derive(Debug)]
pub struct SqliteStore {
    pub(crate) connection: Connection,
    path: PathBuf,
    wait: Duration,
    /// Which file it is, to notice when another takes its place.
    identity: Option<Identity>,
    /// Whether a transaction has begun, so that the database file says that there is a log.
    in_use: bool,
    /// Whether something was deleted since what is deleted was last taken out of the files.
    pub(crate) unerased: bool,
    /// Whether a transaction was taken back because the disk failed: what it wrote may still be in the
    /// log.
    interrupted: Cell<bool>,
}

/// How many pages are given back at a time, so that nobody waits for it; the rest is used again, or
/// given back the next time.
const MOST_PAGES: u32 = 1000;

impl SqliteStore {
    /// Opens a store, and verifies its ledger.
    ///
    /// # Errors
    /// If there is none, or it cannot be used: it is damaged, no store, newer than this program, or
    /// cannot be written.
    pub fn open(path: impl AsRef<Path>, options: &StoreOptions) -> Result<Self, StoreError> {
        let path = absolute(path.as_ref())?;
        Self::open_at(&path, options).map_err(|problem| StoreError::new(&path, problem))
    }

    /// Opens a store, or creates it if there is no file. A file that is there and cannot be used is
    /// an error, never replaced: its budgets would come back.
    ///
    /// # Errors
    /// If it cannot be opened or created.
    pub fn open_or_create(
        path: impl AsRef<Path>,
        options: &StoreOptions,
    ) -> Result<Self, StoreError> {
        let path = absolute(path.as_ref())?;
        let opened = match path.try_exists() {
            Ok(false) => {
                remove_leftovers(&path, BRIEFLY);
                create(&path, Device::new(), &[]).and_then(|()| Self::open_at(&path, options))
            }
            _ => Self::open_at(&path, options),
        };
        opened.map_err(|problem| StoreError::new(&path, problem))
    }

    pub(crate) fn open_at(path: &Path, options: &StoreOptions) -> Result<Self, Problem> {
        remove_leftovers(path, BRIEFLY);
        // The log is looked at without a lock, while another process may be writing, opening or
        // closing it. Damage is still there at a second look.
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
        let mut metadata = fs::metadata(path).map_err(Problem::io("opening it"))?;
        if !metadata.is_file() {
            return Err(Problem::NotAStore);
        }
        if links(&metadata) > 1 {
            // Perhaps somebody is creating or resetting it just now, or was killed doing so.
            remove_leftovers(path, options.wait);
            metadata = fs::metadata(path).map_err(Problem::io("opening it"))?;
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
        // Whoever may not write the store would leave an index beside it that has the same
        // permissions, and that its owner cannot write later. The same holds for root, who could
        // write it all the same.
        if metadata.permissions().readonly() || connection.is_readonly("main")? {
            return Err(Problem::ReadOnly);
        }
        // Before anything is read: else SQLite removes the log when this connection is closed and
        // no other is open, whatever went wrong.
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
        if log == Log::Sound {
            store.refuse_older_log()?;
        }
        schema::migrate(&store.connection, MIGRATIONS).map_err(|problem| store.waited(problem))?;
        let device = store.lock()?;
        let verified = match log {
            Log::Missing if !device.closed_cleanly => Err(Damage::Log("is missing").into()),
            Log::Unsound if !device.closed_cleanly => Err(Damage::Log("is damaged").into()),
            _ => verify::ledger(&store.connection, &device),
        };
        store.release_lock();
        verified?;
        Ok(store)
    }

    /// Refuses a log that is older than the file, which would take the file back to an earlier state.
    ///
    /// Whatever is in the file came out of its log, which was flushed before. So the log leads to what
    /// the file alone says, or to something later, however the store was left. A file that cannot be
    /// read alone may be one whose process was killed while it moved the log into it: then the log has
    /// what belongs there.
    fn refuse_older_log(&self) -> Result<(), Problem> {
        // Under the lock, so that nobody writes a transaction, and moves it into the file, in between.
        self.begin_immediate()?;
        let with_log = Device::load_any(&self.connection);
        let alone = connect_alone(&self.path).and_then(|file| Device::load_any(&file));
        let compared = match (with_log, alone) {
            // The file was closed, and nothing was written since but that there is a log.
            (Err(Problem::Damaged(_)), Ok(alone)) if alone.closed_cleanly => Err(Damage::Log(
                "does not belong to the file, which was closed and needs none: move the log away",
            )
            .into()),
            (Ok(with_log), Ok(alone)) if with_log.writes < alone.writes => {
                Err(Damage::Log(match alone.closed_cleanly {
                    true => {
                        "is older than the file, which was closed and needs none: move the log away"
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
        // Before it is believed that this is a database of ours.
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

    /// Moves the write-ahead log into the database file, at a quiet moment: else a conversion will
    /// have to, now and then.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn checkpoint(&mut self) -> Result<(), StoreError> {
        match self.checkpoint_as("PASSIVE") {
            Ok(_) => Ok(()),
            Err(problem) => Err(StoreError::new(&self.path, problem)),
        }
    }

    /// Says whether all of the log is in the database file now.
    fn checkpoint_as(&self, mode: &str) -> Result<bool, Problem> {
        let sql = format!("PRAGMA wal_checkpoint({mode})");
        let result = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
        let (busy, in_log, moved): (i64, i64, i64) = self.connection.query_row(&sql, [], result)?;
        Ok(busy == 0 && in_log == moved)
    }

    /// Moves all of the log into the database file, waiting for others. After something was taken back,
    /// the next transaction also begins the log anew, which others who read from it delay.
    fn checkpoint_completely(&self) -> Result<(), Problem> {
        let since = Instant::now();
        let mode = match self.interrupted.get() {
            true => "RESTART",
            false => "FULL",
        };
        while !self
            .checkpoint_as(mode)
            .map_err(|problem| self.waited(problem))?
        {
            if since.elapsed() > self.wait {
                return Err(self.busy());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Takes what was deleted out of the files, as far as other processes let it: else their next
    /// checkpoint does it.
    pub(crate) fn erase(&mut self) {
        if self.vacuum().is_err() {
            self.interrupted.set(true);
        }
        // With this limit, the first transaction of a log that begins anew cuts it off behind
        // itself. It must never be empty, as if it were lost.
        let limit = |bytes: i64| {
            let sql = format!("PRAGMA journal_size_limit = {bytes}");
            self.connection.query_row(&sql, [], |_| Ok(()))
        };
        if limit(0).is_ok() {
            let _ = self.checkpoint_as("RESTART");
            // It changes nothing, so it does not count either.
            let _ = self.lock().and_then(|device| self.write_back(&device));
            let _ = limit(-1);
        }
    }

    /// Gives pages back that nothing is on. What was on them is overwritten already.
    fn vacuum(&self) -> Result<(), Problem> {
        let sql = format!("PRAGMA incremental_vacuum({MOST_PAGES})");
        let mut statement = self.connection.prepare(&sql)?;
        let mut rows = statement.query([])?;
        // Each step gives one back.
        while rows.next()?.is_some() {}
        Ok(())
    }

    /// Closes it, so that all of it is in the database file, if no other process has it open.
    ///
    /// # Errors
    /// If it cannot be written. Nothing is lost then: the write-ahead log stays.
    pub fn close(mut self) -> Result<(), StoreError> {
        let shut = self.shut();
        self.in_use = false;
        shut.map_err(|problem| StoreError::new(&self.path, problem))
    }

    /// If this is the last connection, notes in the file that there is no log, and lets SQLite remove
    /// it, all under a lock that nobody else gets in between: the note would be wrong.
    fn shut(&mut self) -> Result<(), Problem> {
        self.connection.busy_timeout(Duration::ZERO)?;
        let exclusive = "PRAGMA locking_mode = EXCLUSIVE";
        self.connection.query_row(exclusive, [], |_| Ok(()))?;
        let device = match self.lock() {
            Ok(device) => device,
            // Somebody else closes it, or another store is in its place.
            Err(Problem::Busy { .. } | Problem::Replaced) => return Ok(()),
            Err(problem) => return Err(problem),
        };
        if self.in_use {
            self.write_back(&Device {
                closed_cleanly: true,
                writes: device.writes.wrapping_add(1),
                ..device
            })?;
        } else {
            self.release_lock();
            if !device.closed_cleanly {
                // Who only looked leaves everything as it was.
                return Ok(());
            }
        }
        keep_log(&self.connection, false)
    }

    /// Takes the lock for a transaction of the user agent, and reads the row about the device.
    pub(crate) fn begin_transaction(&mut self) -> Result<Device, Problem> {
        if !self.in_use || self.interrupted.get() {
            // The first transaction says in the database file itself that there is a log: if it is
            // lost from now on, it will be missed. The note may be in the log alone, if another
            // process was killed just before.
            //
            // A transaction that was taken back when the disk failed may have left intact frames in
            // the log. It begins anew, so that none of them is ever taken for what was answered.
            let device = self.lock()?;
            if device.closed_cleanly {
                self.write_back(&Device {
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

    /// Takes the lock, waiting for others, and reads the row about the device.
    pub(crate) fn lock(&self) -> Result<Device, Problem> {
        self.begin_immediate()?;
        let locked = self
            .is_in_place()
            .and_then(|()| Device::load(&self.connection));
        if locked.is_err() {
            self.release_lock();
        }
        locked
    }

    fn begin_immediate(&self) -> Result<(), Problem> {
        // What could not be read before, while closing for example, does not explain damage from here on.
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

    /// Ends a transaction as if it had never begun.
    pub(crate) fn release_lock(&self) {
        // When the disk fails, SQLite has done it already.
        if self.connection.is_autocommit() || self.connection.execute_batch("ROLLBACK").is_err() {
            self.interrupted.set(true);
        }
    }

    /// Writes the row about the device, and ends the transaction.
    fn write_back(&self, device: &Device) -> Result<(), Problem> {
        let written = device.save(&self.connection).and_then(|()| {
            self.connection.execute_batch("COMMIT")?;
            Ok(())
        });
        if written.is_err() {
            self.release_lock();
        }
        written
    }

    /// Says of an error that is about waiting how long we waited.
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
        // If it fails, the log stays, and nothing is lost. After `close` it changes nothing more.
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

/// Makes a store at a path where there is none: first elsewhere and completely, so that nobody ever
/// sees half of one.
pub(crate) fn create(path: &Path, device: Device, resets: &[(i64, String)]) -> Result<(), Problem> {
    if fs::exists(log::path_of(path)).unwrap_or(true) && !fs::exists(path).unwrap_or(false) {
        // It would be taken for the new file's.
        return Err(Damage::Log("is there without the store").into());
    }
    let temporary = Temporary::beside(path)?;
    build(&temporary.path, device, resets)?;
    match temporary.put_at(path) {
        // Another process was faster.
        Err(Problem::Exists) => Ok(()),
        put => put,
    }
}

/// Writes a new store into an empty file.
pub(crate) fn build(path: &Path, device: Device, resets: &[(i64, String)]) -> Result<(), Problem> {
    let connection = connect(path)?;
    schema::prepare_empty(&connection)?;
    set_up(&connection)?;
    schema::migrate(&connection, MIGRATIONS)?;
    let device = Device {
        closed_cleanly: true,
        ..device
    };
    device.save(&connection)?;
    for (at, reason) in resets {
        connection.execute(
            "INSERT INTO reset VALUES (?, ?)",
            rusqlite::params![at, reason],
        )?;
    }
    finish(connection, path)
}

/// Closes a new store, and makes sure that all of it is in the file, as it must be before the file is
/// put in its place: SQLite does not tell when it fails to move the log into the file while closing.
pub(crate) fn finish(connection: Connection, path: &Path) -> Result<(), Problem> {
    let status: i64 =
        connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
    if status != 0 {
        return Err(Problem::busy(Duration::ZERO));
    }
    connection.close().map_err(|(_, error)| error)?;
    if log::inspect(path)? != Log::Missing {
        return Err(Damage::Log("of the new file could not be moved into it").into());
    }
    verify::check_at(path).map(|_| ())
}

/// Says more about a file that could not be opened: whether it is of another program or of a newer
/// one, which its first page tells also if it does not match its checksum.
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
        // A flipped bit makes a version that no program will have.
        Ok((APPLICATION, found)) if (known + 1..1000).contains(&found) => {
            Problem::NewerSchema { found, known }
        }
        Ok((application, _)) if application != APPLICATION => Problem::NotAStore,
        _ => problem,
    }
}

/// Connects to a database file through our layer.
pub(crate) fn connect(path: &Path) -> Result<Connection, Problem> {
    connect_through(vfs::NAME, OpenFlags::SQLITE_OPEN_READ_WRITE, path)
}

/// Connects to a database file without its log, and without locks: to what is in the file at this
/// moment.
pub(crate) fn connect_alone(path: &Path) -> Result<Connection, Problem> {
    connect_through(vfs::FILE_ALONE, OpenFlags::SQLITE_OPEN_READ_ONLY, path)
}

fn connect_through(layer: &CStr, flags: OpenFlags, path: &Path) -> Result<Connection, Problem> {
    if !vfs::register() {
        let source = io::Error::other("SQLite did not accept the layer of page checksums");
        return Err(Problem::Io {
            operation: "opening it",
            source,
        });
    }
    vfs::take_read_failure();
    let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags_and_vfs(path, flags, layer)?;
    connection.set_prepared_statement_cache_capacity(256);
    Ok(connection)
}

/// Whether SQLite leaves the log where it is when the last connection is closed.
pub(crate) fn keep_log(connection: &Connection, keep: bool) -> Result<(), Problem> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, keep)?;
    Ok(())
}

/// What holds for every connection.
pub(crate) fn set_up(connection: &Connection) -> Result<(), Problem> {
    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if mode != "wal" {
        return Err(Problem::ReadOnly);
    }
    // Else SQLite plans a statement anew for each value that is bound to it.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    connection.execute_batch(
        "PRAGMA synchronous = FULL;
         -- Where flushing leaves it to the disk when to write (macOS), ask the disk too. Elsewhere
         -- these do nothing.
         PRAGMA fullfsync = ON;
         PRAGMA checkpoint_fullfsync = ON;
         PRAGMA secure_delete = ON;
         PRAGMA temp_store = MEMORY;
         PRAGMA cache_size = -32768;
         PRAGMA trusted_schema = OFF;
         PRAGMA cell_size_check = ON;",
    )?;
    Ok(())
}

/// The one path of a file: SQLite puts the log beside what a link leads to.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf, StoreError> {
    let found = fs::canonicalize(path).or_else(|_| {
        let absolute = std::path::absolute(path)?;
        Ok(
            match (
                absolute.parent().map(fs::canonicalize),
                absolute.file_name(),
            ) {
                (Some(Ok(folder)), Some(name)) => folder.join(name),
                _ => absolute,
            },
        )
    });
    found.map_err(|error| StoreError::new(path, Problem::io("finding it")(error)))
}

/// How many names a file has.
#[cfg(unix)]
fn links(metadata: &fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::nlink(metadata)
}

/// Elsewhere it is not known.
#[cfg(not(unix))]
fn links(_: &fs::Metadata) -> u64 {
    1
}

/// Which file a path leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity(u64, u64);

impl Identity {
    #[cfg(unix)]
    pub(crate) fn of(metadata: &fs::Metadata) -> Option<Self> {
        use std::os::unix::fs::MetadataExt as _;
        Some(Self(metadata.dev(), metadata.ino()))
    }

    /// Elsewhere, a file that is open cannot be replaced.
    #[cfg(not(unix))]
    pub(crate) fn of(_: &fs::Metadata) -> Option<Self> {
        None
    }
}
