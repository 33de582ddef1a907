//! The store as a file: creating, opening, locking, flushing and closing it.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bigbird::StoreLimits;
use bigbird_attribution::Storage;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use crate::device::Device;
use crate::error::{Damage, Problem, StoreError};
use crate::log;
use crate::schema::{self, APPLICATION, MIGRATIONS};
use crate::transaction::SqliteTransaction;
use crate::{verify, vfs};

/// How a store is opened.
#[derive(Debug, Clone, Copy)]
pub struct StoreOptions {
    /// How many impressions are kept.
    pub limits: StoreLimits,
    /// How long to wait for other processes that hold the lock.
    pub wait: Duration,
    /// After how many pages of the write-ahead log SQLite moves them into the database file, as
    /// part of the transaction that fills it; 0 leaves it to [`SqliteStore::checkpoint`].
    pub checkpoint_pages: u32,
}

impl Default for StoreOptions {
    /// 100,000 impressions an epoch, half a minute, 4 MB.
    fn default() -> Self {
        Self {
            limits: StoreLimits::default(),
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
    pub(crate) limits: StoreLimits,
    path: PathBuf,
    wait: Duration,
    /// Which file it is, to notice when another takes its place.
    identity: Option<Identity>,
    /// Whether there was a log when it was opened.
    had_log: bool,
    /// Whether a transaction has begun, so that the file says that there is a log.
    in_use: bool,
}

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
                create(&path, Device::new(), &[]).and_then(|()| Self::open_at(&path, options))
            }
            _ => Self::open_at(&path, options),
        };
        opened.map_err(|problem| StoreError::new(&path, problem))
    }

    fn open_at(path: &Path, options: &StoreOptions) -> Result<Self, Problem> {
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
        let metadata = fs::metadata(path).map_err(Problem::io("opening it"))?;
        if !metadata.is_file() {
            return Err(Problem::NotAStore);
        }
        if metadata.len() == 0 {
            return Err(Damage::Empty.into());
        }
        let has_log = log::inspect(path)?;
        let connection = connect(path, OpenFlags::empty())?;
        let mut store = Self {
            connection,
            limits: options.limits,
            path: path.to_owned(),
            wait: options.wait,
            identity: Identity::of(&metadata),
            had_log: has_log,
            in_use: false,
        };
        store.configure(options)?;
        schema::migrate(&store.connection, MIGRATIONS).map_err(|problem| store.waited(problem))?;
        let device = store.lock()?;
        let verified = match has_log || device.closed_cleanly {
            true => verify::ledger(&store.connection, &device),
            false => Err(Damage::Log("is missing").into()),
        };
        store.release_lock();
        verified?;
        Ok(store)
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
        // Else SQLite removes the log when the last connection is closed, also if nobody could
        // write that it may be missing.
        self.keep_log(true)?;
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
        self.checkpoint_as("PASSIVE")
            .map_err(|problem| StoreError::new(&self.path, problem))
    }

    fn checkpoint_as(&self, mode: &str) -> Result<(), Problem> {
        let sql = format!("PRAGMA wal_checkpoint({mode})");
        self.connection.query_row(&sql, [], |_| Ok(()))?;
        Ok(())
    }

    /// Takes what was deleted out of the files. If another process is in the way, its next
    /// checkpoint does it.
    pub(crate) fn erase(&mut self) {
        let _ = self.vacuum();
        // Afterwards the log is empty, as if it were lost.
        if self.mark(true).is_ok() {
            let _ = self.checkpoint_as("TRUNCATE");
        }
    }

    /// Gives pages back that nothing is on.
    fn vacuum(&self) -> Result<(), Problem> {
        let mut statement = self.connection.prepare("PRAGMA incremental_vacuum")?;
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
        self.shut()
            .map_err(|problem| StoreError::new(&self.path, problem))
    }

    fn shut(&mut self) -> Result<(), Problem> {
        // Who only looked leaves everything as it was: without a log, if there was none.
        if std::mem::take(&mut self.in_use) {
            self.mark(true)?;
            self.keep_log(false)?;
        } else if !self.had_log {
            self.keep_log(false)?;
        }
        Ok(())
    }

    fn keep_log(&self, keep: bool) -> Result<(), Problem> {
        self.connection
            .set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, keep)?;
        Ok(())
    }

    /// Takes the lock for a transaction of the user agent, and reads the row about the device.
    pub(crate) fn begin_transaction(&mut self) -> Result<Device, Problem> {
        let mut device = self.lock()?;
        // The first transaction after all had closed it says so in the database file itself: if
        // the log is lost from now on, it will be missed. Others may be closing it just now.
        for _ in 0..3 {
            if !device.closed_cleanly {
                break;
            }
            self.release_lock();
            self.mark(false)?;
            self.checkpoint_as("FULL")?;
            device = self.lock()?;
        }
        self.in_use = true;
        Ok(device)
    }

    /// Takes the lock, waiting for others, and reads the row about the device.
    pub(crate) fn lock(&self) -> Result<Device, Problem> {
        let mut statement = self.connection.prepare_cached("BEGIN IMMEDIATE")?;
        statement
            .execute([])
            .map_err(|error| self.waited(error.into()))?;
        drop(statement);
        let locked = self
            .is_in_place()
            .and_then(|()| Device::load(&self.connection));
        if locked.is_err() {
            self.release_lock();
        }
        locked
    }

    fn is_in_place(&self) -> Result<(), Problem> {
        match fs::metadata(&self.path) {
            Ok(metadata) if Identity::of(&metadata) == self.identity => Ok(()),
            _ => Err(Problem::Replaced),
        }
    }

    fn release_lock(&self) {
        // If it fails, closing the connection does it.
        let _ = self.connection.execute_batch("ROLLBACK");
    }

    /// Writes whether the database file has everything.
    fn mark(&mut self, closed_cleanly: bool) -> Result<(), Problem> {
        let device = Device {
            closed_cleanly,
            ..self.lock()?
        };
        let marked = device.save(&self.connection).and_then(|()| {
            self.connection.execute_batch("COMMIT")?;
            Ok(())
        });
        if marked.is_err() {
            self.release_lock();
        }
        marked
    }

    /// Says of an error that is about waiting how long we waited.
    fn waited(&self, problem: Problem) -> Problem {
        match problem {
            Problem::Sqlite(error)
                if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy) =>
            {
                Problem::Busy {
                    waited_ms: u64::try_from(self.wait.as_millis()).unwrap_or(u64::MAX),
                }
            }
            problem => problem,
        }
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        // If it fails, the log stays, and nothing is lost.
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
    if fs::exists(log::path_of(path)).unwrap_or(true) {
        // It would be taken for the new file's.
        return Err(Damage::Log("is there without the store").into());
    }
    let temporary = Temporary::beside(path)?;
    build(&temporary.0, device, resets)?;
    match temporary.put_at(path) {
        // Another process was faster.
        Err(Problem::Exists) => Ok(()),
        put => put,
    }
}

/// Writes a new store into an empty file.
pub(crate) fn build(path: &Path, device: Device, resets: &[(i64, String)]) -> Result<(), Problem> {
    let connection = connect(path, OpenFlags::empty())?;
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
    connection.close().map_err(|(_, error)| error)?;
    Ok(())
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
    let header = || -> rusqlite::Result<(i64, i64)> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let plain = Connection::open_with_flags(path, flags)?;
        plain.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
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
pub(crate) fn connect(path: &Path, flags: OpenFlags) -> Result<Connection, Problem> {
    if !vfs::register() {
        let source = io::Error::other("SQLite did not accept the layer of page checksums");
        return Err(Problem::Io {
            operation: "opening it",
            source,
        });
    }
    let flags = flags | OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags_and_vfs(path, flags, vfs::NAME)?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
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
         PRAGMA secure_delete = ON;
         PRAGMA temp_store = MEMORY;
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

/// Flushes the folder of a file, so that its name is as durable as its content.
pub(crate) fn flush_folder(path: &Path) -> Result<(), Problem> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    // Not every system can.
    if let Ok(folder) = File::open(folder) {
        folder
            .sync_all()
            .map_err(Problem::io("flushing the folder"))?;
    }
    Ok(())
}

/// A database file that is being made, and goes away unless it is put in its place.
#[derive(Debug)]
pub(crate) struct Temporary(pub(crate) PathBuf);

impl Temporary {
    /// An empty file beside the one that it is for. Only its owner may read it, as it tells what
    /// the user has seen; SQLite makes the files beside it alike.
    pub(crate) fn beside(path: &Path) -> Result<Self, Problem> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".new-{}-{count}", std::process::id()));
        let temporary = Self(name.into());
        let mut options = File::options();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        options
            .open(&temporary.0)
            .map_err(|error| match path.parent() {
                Some(folder) if error.kind() == io::ErrorKind::NotFound => {
                    Problem::NoFolder(folder.to_owned())
                }
                _ => Problem::io("creating it")(error),
            })?;
        Ok(temporary)
    }

    /// Flushes it, now that no connection to it is open.
    pub(crate) fn flush(&self) -> Result<(), Problem> {
        let file = File::options().write(true).open(&self.0);
        file.and_then(|file| file.sync_all())
            .map_err(Problem::io("flushing the new file"))
    }

    /// Puts it where there is no file.
    pub(crate) fn put_at(self, path: &Path) -> Result<(), Problem> {
        self.flush()?;
        match fs::hard_link(&self.0, path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(Problem::Exists);
            }
            // Not every file system has links.
            Err(_) => fs::rename(&self.0, path).map_err(Problem::io("creating it"))?,
        }
        flush_folder(path)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        for path in [
            self.0.clone(),
            log::path_of(&self.0),
            log::index_of(&self.0),
        ] {
            let _ = fs::remove_file(path);
        }
    }
}

/// Which file a path leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity(u64, u64);

impl Identity {
    #[cfg(unix)]
    fn of(metadata: &fs::Metadata) -> Option<Self> {
        use std::os::unix::fs::MetadataExt as _;
        Some(Self(metadata.dev(), metadata.ino()))
    }

    /// Elsewhere, a file that is open cannot be replaced.
    #[cfg(not(unix))]
    fn of(_: &fs::Metadata) -> Option<Self> {
        None
    }
}
