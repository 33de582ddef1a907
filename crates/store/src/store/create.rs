//! Creating a store.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;

use super::connection::{connect, set_up};
use crate::device::DeviceRow;
use crate::error::{Damage, Problem};
use crate::log::{self, LogState};
use crate::schema::{self, MIGRATIONS};
use crate::temporary::Temporary;
use crate::verify;

/// Creates a store at a path where no file exists. It is built completely under another name first,
/// so that nobody ever sees half a store.
pub(crate) fn create(
    path: &Path,
    device: DeviceRow,
    resets: &[(i64, String)],
) -> Result<(), Problem> {
    if fs::exists(log::path_of(path)).unwrap_or(true) && !fs::exists(path).unwrap_or(false) {
        // SQLite would take it for the log of the new file.
        return Err(Damage::Log("exists, but the store does not").into());
    }
    let temporary = Temporary::beside(path)?;
    build(&temporary.path, device, resets)?;
    match temporary.put_at(path) {
        // Another process created the store first.
        Err(Problem::Exists) => Ok(()),
        put => put,
    }
}

/// Writes a new store into an empty file.
pub(crate) fn build(
    path: &Path,
    device: DeviceRow,
    resets: &[(i64, String)],
) -> Result<(), Problem> {
    let connection = connect(path)?;
    schema::prepare_empty(&connection)?;
    set_up(&connection)?;
    schema::migrate(&connection, MIGRATIONS)?;
    let device = DeviceRow {
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

/// Closes a new store, and verifies that all of it is in the file, before the file is put in its
/// place. SQLite does not report when it fails to move the log into the file while closing.
pub(crate) fn finish(connection: Connection, path: &Path) -> Result<(), Problem> {
    let status: i64 =
        connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
    if status != 0 {
        return Err(Problem::busy(Duration::ZERO));
    }
    connection.close().map_err(|(_, error)| error)?;
    if log::inspect(path)? != LogState::Missing {
        return Err(Damage::Log("of the new file could not be moved into the file").into());
    }
    verify::check_at(path).map(|_| ())
}
