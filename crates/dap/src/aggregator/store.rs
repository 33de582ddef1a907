//! What the aggregators must not forget: which reports were counted, and what was spent.
//!
//! Everything is in one SQLite file. A report's id and its shares are written in one transaction,
//! so it is counted once or not at all, whenever the process is killed. What a query spends is
//! durable before its result exists.
//!
//! A missing or altered row would count a report twice or refund a budget. So the file is checked
//! when it is opened, rows carry checksums, and the ids of a task are compared with a digest of
//! them when a batch of the task is opened. A store that is not right is not used. It cannot notice
//! that the whole file was replaced by an older copy of itself.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bigbird::MicroEpsilon;
use rusqlite::{
    Connection, OpenFlags, OptionalExtension as _, Transaction, TransactionBehavior, params,
};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use super::sum::AggregateSum;
use crate::messages::{ReportId, TaskId};
use crate::task::AggregationTask;

/// The largest budget of a batch: a report carries the epsilon that was paid for it in 32 bits.
const MAX_BUDGET: MicroEpsilon = MicroEpsilon::new(u32::MAX as u64);

/// The mark in the header of the file: "BBag".
const APPLICATION: i32 = 0x4242_6167;
/// The version of the tables.
const VERSION: i32 = 1;

const TABLES: &str = "
    CREATE TABLE task (
        number INTEGER PRIMARY KEY,
        id BLOB NOT NULL UNIQUE,
        configuration BLOB NOT NULL,
        reports INTEGER NOT NULL,
        digest BLOB NOT NULL,
        checksum BLOB NOT NULL
    ) STRICT;
    CREATE TABLE report (
        task INTEGER NOT NULL,
        id BLOB NOT NULL,
        PRIMARY KEY (task, id)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE batch (
        number INTEGER PRIMARY KEY,
        task INTEGER NOT NULL,
        name TEXT NOT NULL,
        budget INTEGER NOT NULL,
        spent INTEGER NOT NULL,
        queries INTEGER NOT NULL,
        reports INTEGER NOT NULL,
        leader BLOB NOT NULL,
        helper BLOB NOT NULL,
        checksum BLOB NOT NULL,
        UNIQUE (task, name)
    ) STRICT;
";

/// A failure of the aggregators' store.
#[derive(Debug, Error)]
pub enum AggregationStoreError {
    /// SQLite failed.
    #[error("the aggregators' store failed: {0}")]
    Sqlite(#[from] rusqlite::Error),
    /// The file is something else.
    #[error("the file is not a store of aggregators")]
    OtherFile,
    /// The file was written by a newer program.
    #[error("the store has version {got}, and this program supports {VERSION}")]
    Newer {
        /// The version of the file.
        got: i32,
    },
    /// The file is damaged. Using it could count reports twice or refund budgets.
    #[error("the aggregators' store is damaged: {0}. It is not used")]
    Damaged(&'static str),
    /// The budget of a new batch is out of range.
    #[error("the budget of a batch must be in (0, {max}], got {got}", max = MAX_BUDGET)]
    Budget {
        /// The budget that was given.
        got: MicroEpsilon,
    },
    /// The file is empty. A process that is killed does not leave it so.
    #[error("the file is empty, so what it knew is lost; remove it only if it never was a store")]
    Empty,
    /// The file cannot be created.
    #[error("cannot create the aggregators' store: {0}")]
    Create(#[source] std::io::Error),
    /// The batch was queried, so its reports are fixed.
    #[error("the batch `{0}` was queried, so no report can be added; use another batch")]
    Collected(String),
    /// There is no such batch.
    #[error("there is no batch `{name}` of this task; it has {known}")]
    NoBatch {
        /// The name that was given.
        name: String,
        /// The batches that it has.
        known: String,
    },
}

/// A query that is refused. Nothing was spent.
#[derive(Debug, Error)]
pub enum BatchQueryError {
    /// The batch has too few reports.
    #[error("the batch `{name}` has {reports} reports; a query needs at least {least}")]
    TooFewReports {
        /// The name of the batch.
        name: String,
        /// The number of its reports.
        reports: u64,
        /// The minimum.
        least: u64,
    },
    /// The batch cannot pay.
    #[error(
        "the batch `{name}` cannot pay ε = {epsilon}: {left} of {budget} is left",
        left = budget.saturating_sub(*spent)
    )]
    Budget {
        /// The name of the batch.
        name: String,
        /// What was asked for.
        epsilon: MicroEpsilon,
        /// What was spent before.
        spent: MicroEpsilon,
        /// The budget.
        budget: MicroEpsilon,
    },
    /// The query is not private.
    #[error(transparent)]
    Noise(#[from] super::noise::NoiseError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] AggregationStoreError),
}

impl From<rusqlite::Error> for BatchQueryError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Store(error.into())
    }
}

/// A batch: reports that are summed together, and what queries may spend on them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchState {
    number: i64,
    task: i64,
    /// Its name.
    pub name: String,
    /// The epsilon that was paid for each of its reports, at least.
    pub budget: MicroEpsilon,
    /// The epsilon that queries have spent.
    pub spent: MicroEpsilon,
    /// The number of queries.
    pub queries: u64,
    /// The number of its reports.
    pub reports: u64,
}

impl BatchState {
    /// The epsilon that queries can still spend.
    pub fn left(&self) -> MicroEpsilon {
        self.budget.saturating_sub(self.spent)
    }
}

/// The sums of a batch: each aggregator's share, without noise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BatchSums {
    /// The leader's share.
    pub(crate) leader: AggregateSum,
    /// The helper's share.
    pub(crate) helper: AggregateSum,
}

/// A report whose proof was verified, in shares.
#[derive(Debug, Clone)]
pub(crate) struct VerifiedReport {
    /// Its id.
    pub(crate) id: ReportId,
    /// The shares of its histogram.
    pub(crate) sums: BatchSums,
}

/// The store of a leader and a helper that run in one process.
#[derive(Debug)]
pub struct AggregationStore {
    connection: Connection,
}

impl AggregationStore {
    /// Opens a store, or creates it if the file does not exist.
    ///
    /// # Errors
    /// If the file cannot be used. It is never replaced.
    pub fn open(path: &Path) -> Result<Self, AggregationStoreError> {
        match fs::metadata(path) {
            Ok(metadata) if metadata.len() == 0 => return Err(AggregationStoreError::Empty),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                create(path).map_err(AggregationStoreError::Create)?;
            }
            _ => {}
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        Self::prepare(Connection::open_with_flags(path, flags)?)
    }

    /// A store that is gone with the process, for tests and demonstrations.
    ///
    /// # Errors
    /// If SQLite fails.
    pub fn in_memory() -> Result<Self, AggregationStoreError> {
        Self::prepare(Connection::open_in_memory()?)
    }

    fn prepare(mut connection: Connection) -> Result<Self, AggregationStoreError> {
        connection.busy_timeout(Duration::from_secs(60))?;
        // A rollback journal: what was committed is in the file itself, so no other file can be
        // lost without being missed.
        connection.execute_batch(
            "PRAGMA journal_mode = DELETE;
             PRAGMA synchronous = EXTRA;
             PRAGMA fullfsync = ON;
             PRAGMA temp_store = MEMORY;
             PRAGMA cache_size = -65536;
             PRAGMA trusted_schema = OFF;
             PRAGMA cell_size_check = ON;",
        )?;
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let number = |pragma: &str| transaction.query_row(pragma, [], |row| row.get::<_, i32>(0));
        let application = number("PRAGMA application_id")?;
        let version = number("PRAGMA user_version")?;
        let tables = number("SELECT count(*) FROM sqlite_schema")?;
        match (application, version, tables) {
            (0, 0, 0) => {
                transaction.execute_batch(TABLES)?;
                transaction.pragma_update(None, "application_id", APPLICATION)?;
                transaction.pragma_update(None, "user_version", VERSION)?;
            }
            (APPLICATION, VERSION, _) => {
                // A page that lost a row would make a task or a batch look new. Indexes know of it.
                let found: String =
                    transaction.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
                if found != "ok" {
                    let what = "SQLite found that its pages contradict each other";
                    return Err(AggregationStoreError::Damaged(what));
                }
                let orphans = "SELECT
                    EXISTS (SELECT 1 FROM report WHERE task NOT IN (SELECT number FROM task))
                    OR EXISTS (SELECT 1 FROM batch WHERE task NOT IN (SELECT number FROM task))";
                if transaction.query_row(orphans, [], |row| row.get(0))? {
                    let what = "a task is missing, and its reports are there";
                    return Err(AggregationStoreError::Damaged(what));
                }
            }
            (APPLICATION, got, _) if got > VERSION => {
                return Err(AggregationStoreError::Newer { got });
            }
            _ => return Err(AggregationStoreError::OtherFile),
        }
        transaction.commit()?;
        Ok(Self { connection })
    }

    fn begin(&mut self) -> Result<Transaction<'_>, rusqlite::Error> {
        let immediate = TransactionBehavior::Immediate;
        self.connection.transaction_with_behavior(immediate)
    }

    /// The batch of a task with a name. If it does not exist, it is created with a `budget`. One
    /// that exists keeps its own. The ids of the task's reports are compared with their digest.
    ///
    /// # Errors
    /// If the batch does not exist and there is no budget for it, or the store is damaged.
    pub fn batch(
        &mut self,
        task: &AggregationTask,
        name: &str,
        budget: Option<MicroEpsilon>,
    ) -> Result<BatchState, AggregationStoreError> {
        if let Some(got) = budget.filter(|got| got.is_zero() || *got > MAX_BUDGET) {
            return Err(AggregationStoreError::Budget { got });
        }
        let transaction = self.begin()?;
        let row = match TaskRow::find(&transaction, task.id())? {
            Some(row) => row,
            None if budget.is_none() => {
                let (name, known) = (name.to_owned(), "none".to_owned());
                return Err(AggregationStoreError::NoBatch { name, known });
            }
            None => TaskRow::create(&transaction, task)?,
        };
        row.verify(&transaction)?;
        let batch = match BatchRow::find(&transaction, row.number, name)? {
            Some(batch) => batch,
            None => {
                let Some(budget) = budget else {
                    let (name, known) = (name.to_owned(), row.batches(&transaction)?);
                    return Err(AggregationStoreError::NoBatch { name, known });
                };
                BatchRow::create(&transaction, &row, task, name, budget)?
            }
        };
        transaction.commit()?;
        Ok(batch.state)
    }

    /// Removes a batch without reports and queries. Returns true if it did.
    pub(crate) fn discard_if_empty(
        &mut self,
        batch: &BatchState,
    ) -> Result<bool, AggregationStoreError> {
        let removed = self.connection.execute(
            "DELETE FROM batch WHERE number = ? AND reports = 0 AND queries = 0 AND spent = 0",
            [batch.number],
        )?;
        Ok(removed > 0)
    }

    /// For each id, whether the report was counted in any batch of the task.
    ///
    /// # Errors
    /// If SQLite fails.
    pub(crate) fn counted(
        &self,
        batch: &BatchState,
        ids: &[ReportId],
    ) -> Result<Vec<bool>, AggregationStoreError> {
        let mut statement = self
            .connection
            .prepare_cached("SELECT 1 FROM report WHERE task = ? AND id = ?")?;
        let counted = |id: &ReportId| statement.exists(params![batch.task, id.0]);
        Ok(ids.iter().map(counted).collect::<Result<_, _>>()?)
    }

    /// Counts reports, all in one transaction. Returns for each whether it was counted: one that
    /// was counted before is not counted again.
    ///
    /// # Errors
    /// If the batch was queried, or the store failed. Then none is counted.
    pub(crate) fn add(
        &mut self,
        batch: &mut BatchState,
        reports: &[VerifiedReport],
    ) -> Result<Vec<bool>, AggregationStoreError> {
        let transaction = self.begin()?;
        let mut task = TaskRow::of(&transaction, batch.task)?;
        let mut row = BatchRow::of(&transaction, batch)?;
        if row.state.queries > 0 {
            return Err(AggregationStoreError::Collected(row.state.name));
        }
        let mut counted = Vec::with_capacity(reports.len());
        {
            let mut insert = transaction
                .prepare_cached("INSERT OR IGNORE INTO report (task, id) VALUES (?, ?)")?;
            for report in reports {
                let new = insert.execute(params![batch.task, report.id.0])? == 1;
                if new {
                    task.count(report.id);
                    row.state.reports += 1;
                    row.sums.leader.add(&report.sums.leader);
                    row.sums.helper.add(&report.sums.helper);
                }
                counted.push(new);
            }
        }
        task.save(&transaction)?;
        row.save(&transaction)?;
        transaction.commit()?;
        *batch = row.state;
        Ok(counted)
    }

    /// Spends epsilon on a query of a batch, and returns the sums that noise must be added to. What
    /// was spent is durable when this returns, and never comes back.
    ///
    /// # Errors
    /// If the batch is too small or cannot pay, or the store failed. Then nothing is spent.
    pub(crate) fn spend(
        &mut self,
        batch: &mut BatchState,
        epsilon: MicroEpsilon,
        min_batch_size: u64,
    ) -> Result<BatchSums, BatchQueryError> {
        let transaction = self.begin()?;
        let mut row = BatchRow::of(&transaction, batch)?;
        let state = &mut row.state;
        if state.reports < min_batch_size {
            return Err(BatchQueryError::TooFewReports {
                name: state.name.clone(),
                reports: state.reports,
                least: min_batch_size,
            });
        }
        let spent = state.spent.checked_add(epsilon);
        let Some(spent) = spent.filter(|spent| *spent <= state.budget) else {
            return Err(BatchQueryError::Budget {
                name: state.name.clone(),
                epsilon,
                spent: state.spent,
                budget: state.budget,
            });
        };
        state.spent = spent;
        state.queries += 1;
        row.save(&transaction)?;
        transaction.commit()?;
        *batch = row.state;
        Ok(row.sums)
    }
}

/// Creates a store at a path where no file exists. It is built under another name first, so that
/// nobody ever takes half a store for a new one. Both shares of a sum are in the file, so nobody
/// but its owner may read it.
fn create(path: &Path) -> io::Result<()> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".new-{}-{count}", std::process::id()));
    let temporary = path.with_file_name(name);
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(&temporary)?;
    let built = Connection::open(&temporary)
        .map_err(AggregationStoreError::from)
        .and_then(AggregationStore::prepare)
        .and_then(|store| Ok(store.connection.close().map_err(|(_, error)| error)?))
        .map_err(io::Error::other);
    // If another process was faster, its store is taken.
    let linked = built.and_then(|()| match fs::hard_link(&temporary, path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    });
    let removed = fs::remove_file(&temporary);
    linked.and(removed)
}

const DAMAGED_TASK: AggregationStoreError =
    AggregationStoreError::Damaged("the row of a task does not match its checksum");
const DAMAGED_BATCH: AggregationStoreError =
    AggregationStoreError::Damaged("the row of a batch does not match its checksum");

/// A checksum of fields, each with its length.
fn checksum(fields: &[&[u8]]) -> [u8; 16] {
    let mut hash = Sha256::new();
    for field in fields {
        hash.update((field.len() as u64).to_be_bytes());
        hash.update(field);
    }
    let mut sum = [0; 16];
    sum.copy_from_slice(&hash.finalize()[..16]);
    sum
}

/// A task: how many reports were counted in all its batches, and the exclusive or of their ids.
struct TaskRow {
    number: i64,
    id: TaskId,
    reports: u64,
    digest: [u8; 16],
}

impl TaskRow {
    fn checksum(&self) -> [u8; 16] {
        checksum(&[
            &self.number.to_be_bytes(),
            &self.id.0,
            &self.reports.to_be_bytes(),
            &self.digest,
        ])
    }

    fn create(
        transaction: &Transaction<'_>,
        task: &AggregationTask,
    ) -> Result<Self, AggregationStoreError> {
        transaction.execute(
            "INSERT INTO task (id, configuration, reports, digest, checksum)
             VALUES (?, ?, 0, x'', x'')",
            params![task.id().0, task.encoded_configuration()],
        )?;
        let row = Self {
            number: transaction.last_insert_rowid(),
            id: task.id(),
            reports: 0,
            digest: [0; 16],
        };
        row.save(transaction)?;
        Ok(row)
    }

    fn find(
        transaction: &Transaction<'_>,
        id: TaskId,
    ) -> Result<Option<Self>, AggregationStoreError> {
        let number = transaction
            .query_row("SELECT number FROM task WHERE id = ?", [id.0], |row| {
                row.get(0)
            })
            .optional()?;
        number
            .map(|number| Self::of(transaction, number))
            .transpose()
    }

    fn of(transaction: &Transaction<'_>, number: i64) -> Result<Self, AggregationStoreError> {
        let row = transaction
            .query_row(
                "SELECT id, reports, digest, checksum FROM task WHERE number = ?",
                [number],
                |row| {
                    let (id, reports): (Vec<u8>, i64) = (row.get(0)?, row.get(1)?);
                    let (digest, checksum): (Vec<u8>, Vec<u8>) = (row.get(2)?, row.get(3)?);
                    Ok((id, reports, digest, checksum))
                },
            )
            .optional()?;
        let (id, reports, digest, sum) = row.ok_or(DAMAGED_TASK)?;
        let row = Self {
            number,
            id: TaskId(id.try_into().map_err(|_| DAMAGED_TASK)?),
            reports: u64::try_from(reports).map_err(|_| DAMAGED_TASK)?,
            digest: digest.try_into().map_err(|_| DAMAGED_TASK)?,
        };
        match row.checksum().as_slice() == sum.as_slice() {
            true => Ok(row),
            false => Err(DAMAGED_TASK),
        }
    }

    /// The names of its batches, for people.
    fn batches(&self, transaction: &Transaction<'_>) -> Result<String, AggregationStoreError> {
        let mut statement = transaction
            .prepare("SELECT name FROM batch WHERE task = ? ORDER BY number DESC LIMIT 10")?;
        let names = statement.query_map([self.number], |row| row.get::<_, String>(0))?;
        let names: Vec<String> = names.collect::<Result<_, _>>()?;
        Ok(match names.is_empty() {
            true => "none".to_owned(),
            false => names.join(", "),
        })
    }

    fn count(&mut self, ReportId(id): ReportId) {
        self.reports += 1;
        for (digest, byte) in self.digest.iter_mut().zip(id) {
            *digest ^= byte;
        }
    }

    fn save(&self, transaction: &Transaction<'_>) -> Result<(), AggregationStoreError> {
        transaction.execute(
            "UPDATE task SET reports = ?, digest = ?, checksum = ? WHERE number = ?",
            params![
                i64::try_from(self.reports).map_err(|_| DAMAGED_TASK)?,
                self.digest,
                self.checksum(),
                self.number
            ],
        )?;
        Ok(())
    }

    /// Compares the ids of the task's reports with their digest, and every batch with its checksum.
    fn verify(&self, transaction: &Transaction<'_>) -> Result<(), AggregationStoreError> {
        let mut found = Self {
            number: self.number,
            id: self.id,
            reports: 0,
            digest: [0; 16],
        };
        let mut statement = transaction.prepare("SELECT id FROM report WHERE task = ?")?;
        let mut rows = statement.query([self.number])?;
        while let Some(row) = rows.next()? {
            let id: [u8; 16] = row.get(0)?;
            found.count(ReportId(id));
        }
        let mut in_batches = 0;
        let mut batches = transaction.prepare("SELECT number FROM batch WHERE task = ?")?;
        let mut rows = batches.query([self.number])?;
        while let Some(row) = rows.next()? {
            let batch = BatchRow::numbered(transaction, self.number, row.get(0)?)?;
            in_batches += batch.state.reports;
        }
        let right = found.checksum() == self.checksum() && in_batches == self.reports;
        match right {
            true => Ok(()),
            false => Err(AggregationStoreError::Damaged(
                "the reports that were counted do not match their digest",
            )),
        }
    }
}

struct BatchRow {
    state: BatchState,
    sums: BatchSums,
}

impl BatchRow {
    fn create(
        transaction: &Transaction<'_>,
        row: &TaskRow,
        task: &AggregationTask,
        name: &str,
        budget: MicroEpsilon,
    ) -> Result<Self, AggregationStoreError> {
        transaction.execute(
            "INSERT INTO batch
                (task, name, budget, spent, queries, reports, leader, helper, checksum)
             VALUES (?, ?, 0, 0, 0, 0, x'', x'', x'')",
            params![row.number, name],
        )?;
        let zero = AggregateSum::zero(task.parameters().length as usize);
        let batch = Self {
            state: BatchState {
                number: transaction.last_insert_rowid(),
                task: row.number,
                name: name.to_owned(),
                budget,
                spent: MicroEpsilon::ZERO,
                queries: 0,
                reports: 0,
            },
            sums: BatchSums {
                leader: zero.clone(),
                helper: zero,
            },
        };
        batch.save(transaction)?;
        Ok(batch)
    }

    fn find(
        transaction: &Transaction<'_>,
        task: i64,
        name: &str,
    ) -> Result<Option<Self>, AggregationStoreError> {
        let number = transaction
            .query_row(
                "SELECT number FROM batch WHERE task = ? AND name = ?",
                params![task, name],
                |row| row.get(0),
            )
            .optional()?;
        number
            .map(|number| Self::numbered(transaction, task, number))
            .transpose()
    }

    fn of(
        transaction: &Transaction<'_>,
        batch: &BatchState,
    ) -> Result<Self, AggregationStoreError> {
        // Another process may have removed it while it was empty.
        let there: bool = transaction.query_row(
            "SELECT EXISTS (SELECT 1 FROM batch WHERE number = ? AND name = ?)",
            params![batch.number, batch.name],
            |row| row.get(0),
        )?;
        if !there {
            let name = batch.name.clone();
            let known = TaskRow::of(transaction, batch.task)?.batches(transaction)?;
            return Err(AggregationStoreError::NoBatch { name, known });
        }
        Self::numbered(transaction, batch.task, batch.number)
    }

    fn numbered(
        transaction: &Transaction<'_>,
        task: i64,
        number: i64,
    ) -> Result<Self, AggregationStoreError> {
        let row = transaction
            .query_row(
                "SELECT name, budget, spent, queries, reports, leader, helper, checksum
                 FROM batch WHERE number = ? AND task = ?",
                [number, task],
                |row| {
                    let numbers: [i64; 4] = [row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?];
                    let shares: [Vec<u8>; 3] = [row.get(5)?, row.get(6)?, row.get(7)?];
                    Ok((row.get::<_, String>(0)?, numbers, shares))
                },
            )
            .optional()?;
        let (name, numbers, [leader, helper, sum]) = row.ok_or(DAMAGED_BATCH)?;
        let number_of = |at: usize| u64::try_from(numbers[at]).map_err(|_| DAMAGED_BATCH);
        let share = |bytes: &[u8]| {
            AggregateSum::from_bytes(bytes, bytes.len() / 16).map_err(|_| DAMAGED_BATCH)
        };
        let row = Self {
            state: BatchState {
                number,
                task,
                name,
                budget: MicroEpsilon::new(number_of(0)?),
                spent: MicroEpsilon::new(number_of(1)?),
                queries: number_of(2)?,
                reports: number_of(3)?,
            },
            sums: BatchSums {
                leader: share(&leader)?,
                helper: share(&helper)?,
            },
        };
        match row.checksum(&leader, &helper).as_slice() == sum.as_slice() {
            true => Ok(row),
            false => Err(DAMAGED_BATCH),
        }
    }

    fn checksum(&self, leader: &[u8], helper: &[u8]) -> [u8; 16] {
        let state = &self.state;
        checksum(&[
            &state.number.to_be_bytes(),
            &state.task.to_be_bytes(),
            state.name.as_bytes(),
            &state.budget.get().to_be_bytes(),
            &state.spent.get().to_be_bytes(),
            &state.queries.to_be_bytes(),
            &state.reports.to_be_bytes(),
            leader,
            helper,
        ])
    }

    fn save(&self, transaction: &Transaction<'_>) -> Result<(), AggregationStoreError> {
        let bytes = |share: &AggregateSum| share.to_bytes().map_err(|_| DAMAGED_BATCH);
        let (leader, helper) = (bytes(&self.sums.leader)?, bytes(&self.sums.helper)?);
        let state = &self.state;
        let whole = |number: u64| i64::try_from(number).map_err(|_| DAMAGED_BATCH);
        transaction.execute(
            "UPDATE batch SET budget = ?, spent = ?, queries = ?, reports = ?, leader = ?,
                              helper = ?, checksum = ?
             WHERE number = ?",
            params![
                whole(state.budget.get())?,
                whole(state.spent.get())?,
                whole(state.queries)?,
                whole(state.reports)?,
                leader,
                helper,
                self.checksum(&leader, &helper),
                state.number
            ],
        )?;
        Ok(())
    }
}
