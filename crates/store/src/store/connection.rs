//! Connections to SQLite, and their settings.

use std::ffi::CStr;
use std::io;
use std::path::Path;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use crate::error::Problem;
use crate::vfs;

/// Connects to a database file through the layer of page checksums.
pub(crate) fn connect(path: &Path) -> Result<Connection, Problem> {
    connect_through(vfs::NAME, OpenFlags::SQLITE_OPEN_READ_WRITE, path)
}

/// Connects to a database file without its log and without locks. It shows what is in the file
/// alone at this moment.
pub(crate) fn connect_alone(path: &Path) -> Result<Connection, Problem> {
    connect_through(vfs::FILE_ALONE, OpenFlags::SQLITE_OPEN_READ_ONLY, path)
}

fn connect_through(layer: &CStr, flags: OpenFlags, path: &Path) -> Result<Connection, Problem> {
    if !vfs::register() {
        let source = io::Error::other("SQLite did not accept the layer of page checksums");
        return Err(Problem::Io {
            operation: "opening the store",
            source,
        });
    }
    vfs::take_read_failure();
    let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags_and_vfs(path, flags, layer)?;
    connection.set_prepared_statement_cache_capacity(256);
    Ok(connection)
}

/// Sets whether SQLite keeps the log when the last connection is closed.
pub(crate) fn keep_log(connection: &Connection, keep: bool) -> Result<(), Problem> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, keep)?;
    Ok(())
}

/// Makes the settings that every connection needs.
pub(crate) fn set_up(connection: &Connection) -> Result<(), Problem> {
    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if mode != "wal" {
        return Err(Problem::ReadOnly);
    }
    // Otherwise SQLite may plan a statement again for each value that is bound to it.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    connection.execute_batch(
        "PRAGMA synchronous = FULL;
         -- On macOS, a flush lets the disk decide when to write. These two ask the disk itself.
         -- Elsewhere they have no effect.
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
