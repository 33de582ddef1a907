//! History: what the user can see of what happened. Nothing that is measured or paid depends on it,
//! so it is not part of the ledger. An entry is verified when it is read.

use bigbird::EpochIndex;
use bigbird_user_agent::{ForgottenEpochs, HistoryEntry, HistoryKey, HistoryKind, RowPlace, Site};
use rusqlite::{Connection, Row as SqlRow, params};

use crate::checksum::{RowGuard, RowHasher, TableTag};
use crate::error::{Damage, Problem};
use crate::transaction::SqliteTransaction;

/// The table, which version 6 of the schema adds. The index has everything that a rule about the
/// size of history or about clearing needs, so that such a rule reads no bodies.
pub(crate) const MIGRATE_TO_6: &str = "
    CREATE TABLE history (
        number INTEGER PRIMARY KEY,
        epoch INTEGER NOT NULL,
        kind INTEGER NOT NULL,
        site TEXT NOT NULL,
        caller TEXT NOT NULL,
        body TEXT NOT NULL,
        checksum INTEGER NOT NULL
    ) STRICT;
    CREATE INDEX history_by_caller ON history (caller, epoch, site, kind);
";

/// The number of a kind in the table.
fn number_of(kind: HistoryKind) -> i64 {
    match kind {
        HistoryKind::Impression => 0,
        HistoryKind::Conversion => 1,
        HistoryKind::SharedConversion => 2,
        HistoryKind::Share => 3,
    }
}

fn kind_of(number: i64, entry: u64) -> Result<HistoryKind, Problem> {
    let mut kinds = HistoryKind::ALL.into_iter();
    let kind = kinds.find(|kind| number_of(*kind) == number);
    kind.ok_or_else(|| damaged(entry))
}

fn damaged(entry: u64) -> Problem {
    Damage::Row(format!("entry {entry} of history")).into()
}

/// The texts are hashed with their lengths, so that no byte can move from one to another.
fn guard(entry: &HistoryEntry) -> RowGuard {
    let length = |text: &str| i64::try_from(text.len()).unwrap_or(i64::MAX);
    let (site, caller) = (entry.site.as_str(), entry.caller.as_str());
    RowHasher::of(TableTag::History)
        .int(entry.number.cast_signed())
        .int(entry.epoch.0)
        .int(number_of(entry.kind))
        .int(length(site))
        .int(length(caller))
        .bytes(site.as_bytes())
        .bytes(caller.as_bytes())
        .bytes(entry.body.as_bytes())
        .guard()
}

/// Reads and verifies a row.
fn read(row: &SqlRow<'_>) -> Result<HistoryEntry, Problem> {
    let number = row.get::<_, i64>(0)?.cast_unsigned();
    let entry = HistoryEntry {
        number,
        epoch: EpochIndex(row.get(1)?),
        kind: kind_of(row.get(2)?, number)?,
        site: Site::from_stored(row.get::<_, String>(3)?),
        caller: Site::from_stored(row.get::<_, String>(4)?),
        body: row.get(5)?,
    };
    guard(&entry).verify(row.get(6)?, || format!("entry {number} of history"))?;
    Ok(entry)
}

/// Verifies entries and passes each to `each`, in the order of their numbers: those behind the
/// place `behind`, and at most `most` of them. Returns true if more are left.
pub(crate) fn scan(
    connection: &Connection,
    behind: Option<RowPlace>,
    most: usize,
    mut each: impl FnMut(&HistoryEntry) -> Result<(), Problem>,
) -> Result<bool, Problem> {
    let [behind, ..] = behind.unwrap_or([i64::MIN; 3]);
    let mut statement = connection.prepare_cached(
        "SELECT number, epoch, kind, site, caller, body, checksum FROM history
         WHERE number > ? ORDER BY number",
    )?;
    let mut rows = statement.query([behind])?;
    let mut count = 0;
    while let Some(row) = rows.next()? {
        if count == most {
            return Ok(true);
        }
        count += 1;
        each(&read(row)?)?;
    }
    Ok(false)
}

/// Verifies the last entries before a place and passes each to `each`, at most `most`. Returns true
/// if there are more before them.
pub(crate) fn scan_last(
    connection: &Connection,
    before: Option<RowPlace>,
    most: usize,
    mut each: impl FnMut(&HistoryEntry),
) -> Result<bool, Problem> {
    let [before, ..] = before.unwrap_or([i64::MAX; 3]);
    let mut statement = connection.prepare_cached(
        "SELECT number, epoch, kind, site, caller, body, checksum FROM history
         WHERE number < ? ORDER BY number DESC",
    )?;
    let mut rows = statement.query([before])?;
    let mut count = 0;
    while let Some(row) = rows.next()? {
        if count == most {
            return Ok(true);
        }
        count += 1;
        each(&read(row)?);
    }
    Ok(false)
}

/// Passes every entry to `each` without its body, in no order. It reads the index alone, which page
/// checksums guard.
pub(crate) fn scan_keys(
    connection: &Connection,
    mut each: impl FnMut(HistoryKey<'_>),
) -> Result<(), Problem> {
    let mut statement = connection.prepare_cached(
        "SELECT number, epoch, kind, site, caller FROM history INDEXED BY history_by_caller",
    )?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let number = row.get::<_, i64>(0)?.cast_unsigned();
        let text = |at| -> Result<&str, Problem> {
            Ok(row.get_ref(at)?.as_str().map_err(rusqlite::Error::from)?)
        };
        each(HistoryKey {
            number,
            epoch: EpochIndex(row.get(1)?),
            kind: kind_of(row.get(2)?, number)?,
            site: text(3)?,
            caller: text(4)?,
        });
    }
    Ok(())
}

impl SqliteTransaction<'_> {
    pub(crate) fn last_number(&self) -> Result<Option<u64>, Problem> {
        let mut statement = self
            .connection()
            .prepare_cached("SELECT max(number) FROM history")?;
        let last: Option<i64> = statement.query_row([], |row| row.get(0))?;
        Ok(last.map(i64::cast_unsigned))
    }

    pub(crate) fn numbers_by(&self, caller: &Site) -> Result<Vec<(u64, HistoryKind)>, Problem> {
        let mut statement = self.connection().prepare_cached(
            "SELECT number, kind FROM history INDEXED BY history_by_caller WHERE caller = ?",
        )?;
        let mut rows = statement.query([caller.as_str()])?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            let number = row.get::<_, i64>(0)?.cast_unsigned();
            found.push((number, kind_of(row.get(1)?, number)?));
        }
        Ok(found)
    }

    pub(crate) fn write_entry(&mut self, entry: &HistoryEntry) -> Result<(), Problem> {
        self.connection()
            .prepare_cached("REPLACE INTO history VALUES (?, ?, ?, ?, ?, ?, ?)")?
            .execute(params![
                entry.number.cast_signed(),
                entry.epoch.0,
                number_of(entry.kind),
                entry.site.as_str(),
                entry.caller.as_str(),
                entry.body,
                guard(entry).checksum,
            ])?;
        Ok(())
    }

    pub(crate) fn delete_entries(&mut self, numbers: &[u64]) -> Result<(), Problem> {
        let mut deleted = 0;
        let mut statement = self
            .connection()
            .prepare_cached("DELETE FROM history WHERE number = ?")?;
        for number in numbers {
            deleted += statement.execute([number.cast_signed()])?;
        }
        drop(statement);
        self.deleted |= deleted > 0;
        Ok(())
    }

    pub(crate) fn delete_history(&mut self) -> Result<(), Problem> {
        // Without a condition, SQLite counts rows only if somebody asks.
        let any = self.last_number()?.is_some();
        self.connection()
            .prepare_cached("DELETE FROM history")?
            .execute([])?;
        self.deleted |= any;
        Ok(())
    }

    /// Removes entries of epochs that no request can reach, a slice at a time.
    pub(crate) fn forget_history(&mut self, forgotten: ForgottenEpochs) -> Result<(), Problem> {
        let mut statement = self.connection().prepare_cached(
            "DELETE FROM history WHERE number IN (
                 SELECT number FROM history INDEXED BY history_by_caller WHERE epoch < ? LIMIT ?)",
        )?;
        let gone = statement.execute(params![forgotten.history.0, forgotten.most])?;
        drop(statement);
        self.deleted |= gone > 0;
        Ok(())
    }
}
