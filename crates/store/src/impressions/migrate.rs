//! Migration of impressions from earlier versions of the schema.

use bigbird_user_agent::ImpressionSelection;
use rusqlite::{Connection, params};

use super::reach::reach_rows;
use super::scan;
use crate::error::Problem;

/// Migrates to version 4 of the schema: `reach` lists impressions in the order of attribution,
/// sizes are counted in units, and the primary key of `admission` begins with the epoch.
pub(crate) fn migrate_to_4(connection: &Connection) -> Result<(), Problem> {
    connection.execute_batch(
        "DROP TABLE reach;
         -- The pairs that may measure an impression, in the order of attribution; -1 for any.
         CREATE TABLE reach (
             epoch INTEGER NOT NULL,
             site INTEGER NOT NULL,
             caller INTEGER NOT NULL,
             priority INTEGER NOT NULL,
             timestamp INTEGER NOT NULL,
             seq INTEGER NOT NULL,
             PRIMARY KEY (epoch, site, caller, priority DESC, timestamp DESC, seq DESC)
         ) STRICT, WITHOUT ROWID;
         CREATE INDEX reach_by_caller ON reach (caller) WHERE caller >= 0;

         -- The units of the impressions of each epoch, and of each site in it.
         CREATE TABLE units (
             epoch INTEGER PRIMARY KEY,
             units INTEGER NOT NULL,
             next_seq INTEGER NOT NULL
         ) STRICT;
         INSERT INTO units SELECT epoch, 0, next_seq FROM epoch_size;
         DROP TABLE epoch_size;
         ALTER TABLE units RENAME TO epoch_size;
         DROP TABLE crowd;
         CREATE TABLE site_size (
             epoch INTEGER NOT NULL,
             site INTEGER NOT NULL,
             units INTEGER NOT NULL,
             oldest INTEGER NOT NULL,
             PRIMARY KEY (epoch, site)
         ) STRICT, WITHOUT ROWID;
         CREATE INDEX site_size_by_units ON site_size (epoch, units DESC, oldest);

         CREATE TABLE admission_4 (
             block INTEGER NOT NULL,
             epoch INTEGER NOT NULL,
             entries BLOB NOT NULL,
             checksum INTEGER NOT NULL,
             PRIMARY KEY (epoch, block)
         ) STRICT, WITHOUT ROWID;
         INSERT INTO admission_4 SELECT block, epoch, entries, checksum FROM admission;
         DROP TABLE admission;
         ALTER TABLE admission_4 RENAME TO admission;",
    )?;
    let mut list = connection.prepare("INSERT INTO reach VALUES (?, ?, ?, ?, ?, ?)")?;
    let mut enlarge =
        connection.prepare("UPDATE epoch_size SET units = units + ? WHERE epoch = ?")?;
    let mut add = connection.prepare(
        "INSERT INTO site_size VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO UPDATE SET units = units + ?3",
    )?;
    scan(
        connection,
        ImpressionSelection::All,
        None,
        usize::MAX,
        |epoch, seq, impression| {
            for (_, (site, caller), priority, timestamp, _) in reach_rows(epoch, seq, impression) {
                list.execute(params![epoch.0, site, caller, priority, timestamp.0, seq])?;
            }
            let units = impression.units();
            enlarge.execute(params![units, epoch.0])?;
            add.execute(params![epoch.0, impression.site.0, units, seq])?;
            Ok(())
        },
    )?;
    Ok(())
}
