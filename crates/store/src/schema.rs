//! The schema, and how it becomes a newer one.
//!
//! `docs/store.md` tells what each table is for.

use rusqlite::Connection;

use crate::error::Problem;
use crate::{device, impressions, objects, vfs};

/// "BigB": SQLite keeps it in the header of the file.
pub(crate) const APPLICATION: i64 = 0x4269_6742;

/// What makes one version of the schema out of the one before.
#[derive(Clone, Copy)]
pub(crate) enum Migration {
    Sql(&'static str),
    /// What SQL cannot do: rows with checksums of their own.
    Code(fn(&Connection) -> Result<(), Problem>),
}

impl Migration {
    fn run(self, connection: &Connection) -> Result<(), Problem> {
        match self {
            Self::Sql(sql) => Ok(connection.execute_batch(sql)?),
            Self::Code(run) => run(connection),
        }
    }
}

/// Every version, from an empty file on. Never change one that has been released: add another, and
/// a file of the version before to `tests/fixtures`.
pub(crate) const MIGRATIONS: &[Migration] = &[
    // 1
    Migration::Sql(
        "
    -- One row: the user agent's own state, and the digest over the ledger.
    CREATE TABLE device (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        set_up INTEGER NOT NULL,
        epoch_days INTEGER NOT NULL,
        querier INTEGER,
        global INTEGER,
        impression_site INTEGER,
        conversion_site INTEGER,
        user_action INTEGER,
        domain_cap INTEGER,
        enabled INTEGER NOT NULL,
        epoch_start INTEGER,
        last_clear INTEGER,
        latest INTEGER,
        next_user_action INTEGER NOT NULL,
        next_object INTEGER NOT NULL,
        first_epoch INTEGER NOT NULL,
        digest INTEGER NOT NULL,
        ledger_rows INTEGER NOT NULL,
        writes INTEGER NOT NULL,
        closed_cleanly INTEGER NOT NULL,
        checksum INTEGER NOT NULL
    ) STRICT;

    -- The ledger: site, filter, admission, closed, object.
    CREATE TABLE site (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        checksum INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE filter (
        epoch INTEGER NOT NULL,
        kind INTEGER NOT NULL,
        id INTEGER NOT NULL,
        consumed INTEGER NOT NULL,
        checksum INTEGER NOT NULL,
        PRIMARY KEY (epoch, kind, id)
    ) STRICT, WITHOUT ROWID;
    -- What 64 user actions were admitted to in an epoch.
    CREATE TABLE admission (
        block INTEGER NOT NULL,
        epoch INTEGER NOT NULL,
        entries BLOB NOT NULL,
        checksum INTEGER NOT NULL,
        PRIMARY KEY (block, epoch)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE closed (
        site INTEGER PRIMARY KEY,
        until INTEGER NOT NULL,
        checksum INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE object (
        id INTEGER PRIMARY KEY,
        site INTEGER NOT NULL,
        body BLOB NOT NULL,
        checksum INTEGER NOT NULL
    ) STRICT;

    -- Impressions, and the ways to find them.
    CREATE TABLE impression (
        epoch INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        site INTEGER NOT NULL,
        caller INTEGER NOT NULL,
        match_value INTEGER NOT NULL,
        histogram_index INTEGER NOT NULL,
        priority INTEGER NOT NULL,
        timestamp INTEGER NOT NULL,
        expires INTEGER NOT NULL,
        user_action INTEGER NOT NULL,
        audience BLOB NOT NULL,
        checksum INTEGER NOT NULL,
        PRIMARY KEY (epoch, seq)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX impression_by_site ON impression (site, epoch);
    CREATE INDEX impression_by_caller ON impression (caller, epoch);
    CREATE INDEX impression_by_match_value ON impression (match_value, epoch);
    -- Who may measure an impression.
    CREATE TABLE reach (
        kind INTEGER NOT NULL,
        id INTEGER NOT NULL,
        epoch INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        PRIMARY KEY (kind, id, epoch, seq)
    ) STRICT, WITHOUT ROWID;
    -- How many impressions an epoch and each site in it has, for the limits.
    CREATE TABLE epoch_size (
        epoch INTEGER PRIMARY KEY,
        impressions INTEGER NOT NULL,
        next_seq INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE crowd (
        epoch INTEGER NOT NULL,
        site INTEGER NOT NULL,
        impressions INTEGER NOT NULL,
        oldest INTEGER NOT NULL,
        PRIMARY KEY (epoch, site)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX crowd_by_size ON crowd (epoch, impressions DESC, oldest);

    -- Deliberate resets, for whoever looks into what happened.
    CREATE TABLE reset (
        at INTEGER NOT NULL,
        reason TEXT NOT NULL
    ) STRICT;
    ",
    ),
    // 2
    Migration::Code(|connection| {
        // Impressions from before there were epochs, by hour: only an agent on a test clock left
        // such. Now every impression has an epoch.
        for table in ["impression", "reach", "epoch_size", "crowd"] {
            let no_epochs = "(SELECT epoch_start IS NULL FROM device)";
            connection.execute_batch(&format!("DELETE FROM {table} WHERE {no_epochs}"))?;
        }
        objects::migrate_to_2(connection)
    }),
    // 3
    Migration::Code(device::migrate_to_3),
    // 4
    Migration::Code(impressions::migrate_to_4),
];

/// What is decided once, when the file is empty.
pub(crate) fn prepare_empty(connection: &Connection) -> Result<(), Problem> {
    if !vfs::reserve(connection) {
        return Err(Problem::NotAStore);
    }
    connection.pragma_update(None, "page_size", vfs::PAGE.to_string())?;
    connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    connection.pragma_update(None, "application_id", APPLICATION)?;
    Ok(())
}

/// Brings the schema to the newest version, in one transaction. Says whether it was older.
pub(crate) fn migrate(connection: &Connection, migrations: &[Migration]) -> Result<bool, Problem> {
    let known = i64::try_from(migrations.len()).unwrap_or(i64::MAX);
    let version =
        || connection.pragma_query_value(None, "user_version", |row| row.get::<_, i64>(0));
    let refuse_newer = |found: i64| match found {
        found if found > known => Err(Problem::NewerSchema { found, known }),
        found if found < 0 => Err(Problem::NotAStore),
        _ => Ok(()),
    };
    let found = version()?;
    refuse_newer(found)?;
    if found == known {
        return Ok(false);
    }
    connection.execute_batch("BEGIN IMMEDIATE")?;
    let migrated = (|| {
        // Another process may have been faster.
        let found = version()?;
        refuse_newer(found)?;
        for migration in migrations.iter().skip(usize::try_from(found).unwrap_or(0)) {
            migration.run(connection)?;
        }
        connection.pragma_update(None, "user_version", known)?;
        connection.execute_batch("COMMIT")?;
        Ok(true)
    })();
    if migrated.is_err() {
        // If this fails too, closing the connection does it.
        let _ = connection.execute_batch("ROLLBACK");
    }
    migrated
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(connection: &Connection) -> i64 {
        let version = connection.pragma_query_value(None, "user_version", |row| row.get(0));
        version.unwrap()
    }

    /// Migrations as some later program would have them.
    fn later(migration: &'static str) -> Vec<Migration> {
        [MIGRATIONS, &[Migration::Sql(migration)]].concat()
    }

    #[test]
    fn an_older_schema_becomes_a_newer_one_and_keeps_its_rows() {
        let connection = Connection::open_in_memory().unwrap();
        assert!(migrate(&connection, MIGRATIONS).unwrap());
        assert!(!migrate(&connection, MIGRATIONS).unwrap());
        connection
            .execute("INSERT INTO site VALUES (1, 'a.example', 2)", [])
            .unwrap();
        let later = later("ALTER TABLE site ADD COLUMN colour TEXT NOT NULL DEFAULT 'blue'");
        assert!(migrate(&connection, &later).unwrap());
        assert_eq!(version(&connection), 5);
        let row = connection.query_row("SELECT name, colour FROM site", [], |row| {
            Ok((row.get(0)?, row.get(1)?))
        });
        assert_eq!(row, Ok(("a.example".to_owned(), "blue".to_owned())));
        // The program that only knows the older one refuses it.
        let error = migrate(&connection, MIGRATIONS).unwrap_err();
        assert!(
            matches!(error, Problem::NewerSchema { found: 5, known: 4 }),
            "{error}"
        );
    }

    #[test]
    fn a_migration_that_fails_leaves_everything_as_it_was() {
        let connection = Connection::open_in_memory().unwrap();
        migrate(&connection, MIGRATIONS).unwrap();
        let failing = later("DROP TABLE site; SELECT nonsense");
        migrate(&connection, &failing).unwrap_err();
        assert_eq!(version(&connection), 4);
        assert_eq!(
            connection.query_row("SELECT count(*) FROM site", [], |row| row.get(0)),
            Ok(0)
        );
        assert!(connection.is_autocommit());
    }
}
