//! The schema of the store, and the migrations from older versions.
//!
//! `docs/store.md` describes the tables.

use rusqlite::Connection;

use crate::error::Problem;
use crate::{device, history, impressions, objects, vfs};

/// The application id, "BigB" in ASCII. SQLite keeps it in the header of the file.
pub(crate) const APPLICATION: i64 = 0x4269_6742;

/// The step from one version of the schema to the next.
#[derive(Clone, Copy)]
pub(crate) enum Migration {
    Sql(&'static str),
    /// A step that SQL cannot do, because rows carry checksums.
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

/// Every migration, starting from an empty file. Never change one that was released. Add another,
/// and add stores of the previous version to `tests/fixtures`.
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
    -- The sites that 64 consecutive user actions were admitted to in an epoch.
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

    -- Impressions, and the tables that find them.
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
    -- The sites that may measure an impression.
    CREATE TABLE reach (
        kind INTEGER NOT NULL,
        id INTEGER NOT NULL,
        epoch INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        PRIMARY KEY (kind, id, epoch, seq)
    ) STRICT, WITHOUT ROWID;
    -- The number of impressions of each epoch, and of each site in it, for the limits.
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

    -- Deliberate resets, for anyone who investigates later.
    CREATE TABLE reset (
        at INTEGER NOT NULL,
        reason TEXT NOT NULL
    ) STRICT;
    ",
    ),
    // 2
    Migration::Code(|connection| {
        // Before epochs began, impressions were stored by hour. Only an agent on a test clock left
        // such impressions. From version 2 on, every impression has an epoch.
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
    // 5
    Migration::Code(device::migrate_to_5),
    // 6
    Migration::Sql(history::MIGRATE_TO_6),
];

/// Makes the settings that cannot be changed once the file has content.
pub(crate) fn prepare_empty(connection: &Connection) -> Result<(), Problem> {
    if !vfs::reserve(connection) {
        return Err(Problem::NotAStore);
    }
    connection.pragma_update(None, "page_size", vfs::PAGE.to_string())?;
    connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    connection.pragma_update(None, "application_id", APPLICATION)?;
    Ok(())
}

/// Brings the schema to the newest version, in one transaction. Returns true if it was older.
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
        // Another process may have migrated the file since.
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
        // If this fails too, closing the connection rolls back.
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

    /// The migrations of an imagined later program.
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
        assert_eq!(version(&connection), 7);
        let row = connection.query_row("SELECT name, colour FROM site", [], |row| {
            Ok((row.get(0)?, row.get(1)?))
        });
        assert_eq!(row, Ok(("a.example".to_owned(), "blue".to_owned())));
        // A program that knows only the older version refuses the file.
        let error = migrate(&connection, MIGRATIONS).unwrap_err();
        assert!(
            matches!(error, Problem::NewerSchema { found: 7, known: 6 }),
            "{error}"
        );
    }

    #[test]
    fn a_migration_that_fails_leaves_everything_as_it_was() {
        let connection = Connection::open_in_memory().unwrap();
        migrate(&connection, MIGRATIONS).unwrap();
        let failing = later("DROP TABLE site; SELECT nonsense");
        migrate(&connection, &failing).unwrap_err();
        assert_eq!(version(&connection), 6);
        assert_eq!(
            connection.query_row("SELECT count(*) FROM site", [], |row| row.get(0)),
            Ok(0)
        );
        assert!(connection.is_autocommit());
    }
}
