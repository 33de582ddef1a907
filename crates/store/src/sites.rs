//! The numbers of sites. They are part of the ledger: a site whose name was lost would get a new
//! number, and with it new budgets.

use bigbird::SiteId;
use bigbird_user_agent::{Place, Site};
use rusqlite::{Connection, OptionalExtension, params};

use crate::error::Problem;
use crate::seal::{Row, Seal, Table};
use crate::transaction::SqliteTransaction;

pub(crate) fn seal(id: SiteId, name: &str) -> Seal {
    Row::of(Table::Site).site(id).bytes(name.as_bytes()).seal()
}

/// Gives every site with its number, having verified each: at most so many of those behind a place. Says
/// whether it stopped there.
pub(crate) fn scan(
    connection: &Connection,
    behind: Option<Place>,
    most: usize,
    mut each: impl FnMut(SiteId, &str, Seal) -> Result<(), Problem>,
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
        let seal = seal(id, name).verify(row.get(2)?, || format!("the name of site {}", id.0))?;
        each(id, name, seal)?;
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
        seal(SiteId(id), site.as_str()).verify(checksum, || format!("the name of site {id}"))?;
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
        let seal = seal(id, site.as_str());
        self.connection()
            .prepare_cached("INSERT INTO site VALUES (?, ?, ?)")?
            .execute(params![id.0, site.as_str(), seal.checksum])?;
        self.device.digest.add(seal);
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
        seal(id, &name).verify(checksum, || format!("the name of site {}", id.0))?;
        Ok(Some(Site::from_stored(name)))
    }

    pub(crate) fn forget_name(&mut self, id: SiteId) -> Result<(), Problem> {
        if let Some(site) = self.site_name(id)? {
            self.connection()
                .prepare_cached("DELETE FROM site WHERE id = ?")?
                .execute([id.0])?;
            self.device.digest.remove(seal(id, site.as_str()));
            self.deleted = true;
        }
        Ok(())
    }
}
