//! The names of sites, and the number of each. They are part of the ledger: a site whose name was
//! lost would get a new number, and with it new budgets.

use bigbird::SiteId;
use bigbird_user_agent::{RowPlace, Site};
use rusqlite::{Connection, OptionalExtension, params};

use crate::checksum::{RowGuard, RowHasher, TableTag};
use crate::error::Problem;
use crate::transaction::SqliteTransaction;

pub(crate) fn guard(id: SiteId, name: &str) -> RowGuard {
    RowHasher::of(TableTag::Site)
        .site(id)
        .bytes(name.as_bytes())
        .guard()
}

/// Verifies sites and passes each to `each` with its number, in the order of numbers: those behind
/// the place `behind`, and at most `most` of them. Returns true if more are left.
pub(crate) fn scan(
    connection: &Connection,
    behind: Option<RowPlace>,
    most: usize,
    mut each: impl FnMut(SiteId, &str, RowGuard) -> Result<(), Problem>,
) -> Result<bool, Problem> {
    let [id, ..] = behind.unwrap_or([-1; 3]);
    let sql = "SELECT id, name, checksum FROM site WHERE id > ? ORDER BY id";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([id])?;
    let mut count = 0;
    while let Some(row) = rows.next()? {
        if count == most {
            return Ok(true);
        }
        count += 1;
        let id = SiteId(row.get(0)?);
        let name = row.get_ref(1)?.as_str().map_err(rusqlite::Error::from)?;
        let guard = guard(id, name).verify(row.get(2)?, || format!("the name of site {}", id.0))?;
        each(id, name, guard)?;
    }
    Ok(false)
}

impl SqliteTransaction<'_> {
    pub(crate) fn site_number(&self, site: &Site) -> Result<Option<SiteId>, Problem> {
        let mut statement = self
            .connection()
            .prepare_cached("SELECT id, checksum FROM site WHERE name = ?")?;
        let found: Option<(u32, i64)> = statement
            .query_row([site.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        let Some((id, checksum)) = found else {
            return Ok(None);
        };
        guard(SiteId(id), site.as_str()).verify(checksum, || format!("the name of site {id}"))?;
        Ok(Some(SiteId(id)))
    }

    pub(crate) fn largest_number(&self) -> Result<Option<SiteId>, Problem> {
        let mut statement = self
            .connection()
            .prepare_cached("SELECT max(id) FROM site")?;
        let last: Option<u32> = statement.query_row([], |row| row.get(0))?;
        Ok(last.map(SiteId))
    }

    pub(crate) fn name_site(&mut self, id: SiteId, site: &Site) -> Result<(), Problem> {
        let guard = guard(id, site.as_str());
        self.connection()
            .prepare_cached("INSERT INTO site VALUES (?, ?, ?)")?
            .execute(params![id.0, site.as_str(), guard.checksum])?;
        self.device.digest.add(guard);
        Ok(())
    }

    pub(crate) fn site_name(&self, id: SiteId) -> Result<Option<Site>, Problem> {
        let mut statement = self
            .connection()
            .prepare_cached("SELECT name, checksum FROM site WHERE id = ?")?;
        let found: Option<(String, i64)> = statement
            .query_row([id.0], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        let Some((name, checksum)) = found else {
            return Ok(None);
        };
        guard(id, &name).verify(checksum, || format!("the name of site {}", id.0))?;
        Ok(Some(Site::from_stored(name)))
    }

    pub(crate) fn forget_name(&mut self, id: SiteId) -> Result<(), Problem> {
        if let Some(site) = self.site_name(id)? {
            self.connection()
                .prepare_cached("DELETE FROM site WHERE id = ?")?
                .execute([id.0])?;
            self.device.digest.remove(guard(id, site.as_str()));
            self.deleted = true;
        }
        Ok(())
    }
}
