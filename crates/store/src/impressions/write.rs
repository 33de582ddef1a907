//! Saving, changing and removing impressions.

use bigbird::attribution::ImpressionEdit;
use bigbird::{EpochIndex, SiteId};
use bigbird_user_agent::{ForgottenEpochs, ImpressionSelection, SavedImpression};
use rusqlite::params;

use super::reach::reach;
use super::{columns, encode_audience, guard, read, scan};
use crate::error::Problem;
use crate::transaction::SqliteTransaction;

impl SqliteTransaction<'_> {
    /// Saves an impression as the last one of its epoch.
    pub(crate) fn append(&mut self, saved: &SavedImpression) -> Result<(), Problem> {
        let (epoch, units) = (saved.epoch, saved.impression().units());
        let connection = self.connection();
        let next: i64 = connection
            .prepare_cached(
                "INSERT INTO epoch_size VALUES (?1, ?2, 1) ON CONFLICT DO UPDATE
                 SET units = units + ?2, next_seq = next_seq + 1
                 RETURNING next_seq",
            )?
            .query_row(params![epoch.0, units], |row| row.get(0))?;
        let seq =
            u32::try_from(next - 1).map_err(|_| Problem::Exhausted("impressions of an epoch"))?;
        self.insert(seq, saved)?;
        connection
            .prepare_cached(
                "INSERT INTO site_size VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO UPDATE
                 SET units = units + ?3",
            )?
            .execute(params![epoch.0, saved.site.0, units, seq])?;
        Ok(())
    }

    /// Removes an impression, or changes its audience.
    pub(crate) fn edit(&mut self, edit: &ImpressionEdit) -> Result<(), Problem> {
        let ImpressionEdit {
            epoch,
            order,
            audience,
        } = edit;
        self.deleted = true;
        match audience {
            None => self.remove(*epoch, *order),
            Some(audience) => {
                let Some(mut saved) = self.take(*epoch, *order)? else {
                    return Ok(());
                };
                let before = saved.impression().units();
                saved.audience.clone_from(audience);
                let fewer = before.saturating_sub(saved.impression().units());
                self.insert(*order, &saved)?;
                self.shrink(*epoch, saved.site, fewer)
            }
        }
    }

    fn insert(&self, seq: u32, saved: &SavedImpression) -> Result<(), Problem> {
        let (connection, epoch) = (self.connection(), saved.epoch);
        let audience = encode_audience(&saved.audience);
        let guard = guard(saved, seq, &audience);
        connection
            .prepare_cached("INSERT INTO impression VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")?
            .execute(params![
                epoch.0,
                seq,
                saved.site.0,
                saved.impression().caller().0,
                saved.match_value,
                saved.histogram_index,
                saved.priority,
                saved.timestamp.0,
                saved.expires.0,
                saved.user_action.0.cast_signed(),
                audience,
                guard.checksum,
            ])?;
        let mut statement =
            connection.prepare_cached("INSERT INTO reach VALUES (?, ?, ?, ?, ?, ?)")?;
        for (site, caller) in reach(saved.impression()) {
            let (priority, timestamp) = (saved.priority, saved.timestamp.0);
            statement.execute(params![epoch.0, site, caller, priority, timestamp, seq])?;
        }
        Ok(())
    }

    /// Removes an impression, its rows of `reach`, and its units.
    fn remove(&mut self, epoch: EpochIndex, seq: u32) -> Result<(), Problem> {
        match self.take(epoch, seq)? {
            Some(stored) => self.shrink(epoch, stored.site, stored.impression().units()),
            None => Ok(()),
        }
    }

    /// Subtracts units from the sizes of an epoch and of a site in it.
    fn shrink(&self, epoch: EpochIndex, site: SiteId, units: u32) -> Result<(), Problem> {
        let connection = self.connection();
        connection
            .prepare_cached("UPDATE epoch_size SET units = units - ? WHERE epoch = ?")?
            .execute(params![units, epoch.0])?;
        let oldest: Option<u32> = connection
            .prepare_cached("SELECT min(seq) FROM impression WHERE site = ? AND epoch = ?")?
            .query_row(params![site.0, epoch.0], |row| row.get(0))?;
        match oldest {
            Some(oldest) => connection
                .prepare_cached(
                    "UPDATE site_size SET units = units - ?3, oldest = ?4
                     WHERE epoch = ?1 AND site = ?2",
                )?
                .execute(params![epoch.0, site.0, units, oldest])?,
            None => connection
                .prepare_cached("DELETE FROM site_size WHERE epoch = ? AND site = ?")?
                .execute(params![epoch.0, site.0])?,
        };
        Ok(())
    }

    /// Removes an impression and its rows of `reach`, and returns it. The sizes stay as they are.
    fn take(&mut self, epoch: EpochIndex, seq: u32) -> Result<Option<SavedImpression>, Problem> {
        let connection = self.connection();
        let mut statement = connection.prepare_cached(concat!(
            "SELECT ",
            columns!(),
            " FROM impression i WHERE epoch = ? AND seq = ?"
        ))?;
        let mut rows = statement.query(params![epoch.0, seq])?;
        let Some(row) = rows.next()? else {
            return Ok(None);
        };
        let (_, stored) = read(row)?;
        drop(rows);
        connection
            .prepare_cached("DELETE FROM impression WHERE epoch = ? AND seq = ?")?
            .execute(params![epoch.0, seq])?;
        let mut statement = connection.prepare_cached(
            "DELETE FROM reach WHERE epoch = ? AND site = ? AND caller = ?
             AND priority = ? AND timestamp = ? AND seq = ?",
        )?;
        for (site, caller) in reach(stored.impression()) {
            let (priority, timestamp) = (stored.priority, stored.timestamp.0);
            statement.execute(params![epoch.0, site, caller, priority, timestamp, seq])?;
        }
        Ok(Some(stored))
    }

    /// Removes impressions of epochs that no request can reach, at most `most` rows of each table.
    pub(crate) fn forget_impressions(&mut self, forgotten: ForgottenEpochs) -> Result<(), Problem> {
        let ForgottenEpochs {
            pruned,
            unreachable,
            most,
            ..
        } = forgotten;
        // An epoch that was not pruned must stay consistent, so its impressions are removed one by
        // one, with their rows of `reach` and their units.
        let mut gone = Vec::new();
        let open = ImpressionSelection::From(pruned);
        scan(
            self.connection(),
            open,
            None,
            most as usize,
            |epoch, seq, _| {
                if epoch < unreachable {
                    gone.push((epoch, seq));
                }
                Ok(())
            },
        )?;
        for (epoch, seq) in gone {
            self.remove(epoch, seq)?;
            self.deleted = true;
        }
        for (table, key) in [
            ("impression", "epoch, seq"),
            ("reach", "epoch, site, caller, priority, timestamp, seq"),
            ("site_size", "epoch, site"),
        ] {
            let sql = format!(
                "DELETE FROM {table} WHERE ({key}) IN
                 (SELECT {key} FROM {table} WHERE epoch < ? LIMIT ?)"
            );
            let mut statement = self.connection().prepare_cached(&sql)?;
            let gone = statement.execute(params![pruned.0, most])?;
            drop(statement);
            self.deleted |= gone > 0;
        }
        self.connection()
            .execute("DELETE FROM epoch_size WHERE epoch < ?", [pruned.0])?;
        Ok(())
    }
}
