//! The numbers of sites. They are part of the ledger: a site whose name was lost would get a new
//! number, and with it new budgets.

use std::collections::HashSet;

use bigbird::{Filter, SiteId};
use bigbird_user_agent::Site;
use rusqlite::{Connection, OptionalExtension, params};

use crate::error::Problem;
use crate::seal::{Row, Seal, Table};
use crate::transaction::SqliteTransaction;
use crate::{admissions, filters, impressions, objects};

/// The largest number that a site can have.
const LAST: i64 = u32::MAX as i64 - 1;

pub(crate) fn seal(id: SiteId, name: &str) -> Seal {
    Row::of(Table::Site).site(id).bytes(name.as_bytes()).seal()
}

/// Gives every site with its number, having verified each.
pub(crate) fn scan(
    connection: &Connection,
    mut each: impl FnMut(SiteId, &str, Seal) -> Result<(), Problem>,
) -> Result<(), Problem> {
    let mut statement = connection.prepare_cached("SELECT id, name, checksum FROM site")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let id = SiteId(row.get(0)?);
        let name = row.get_ref(1)?.as_str().map_err(rusqlite::Error::from)?;
        let seal = seal(id, name).verify(row.get(2)?, || format!("the name of site {}", id.0))?;
        each(id, name, seal)?;
    }
    Ok(())
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

    pub(crate) fn number_site(&mut self, site: &Site) -> Result<SiteId, Problem> {
        if let Some(id) = self.site_number(site)? {
            return Ok(id);
        }
        let last: i64 = self
            .connection()
            .prepare_cached("SELECT ifnull(max(id), -1) FROM site")?
            .query_row([], |row| row.get(0))?;
        let id = match u32::try_from(last + 1) {
            Ok(id) if i64::from(id) <= LAST => SiteId(id),
            _ => return Err(Problem::Exhausted("sites")),
        };
        let seal = seal(id, site.as_str());
        self.connection()
            .prepare_cached("INSERT INTO site VALUES (?, ?, ?)")?
            .execute(params![id.0, site.as_str(), seal.checksum])?;
        self.device.digest.add(seal);
        Ok(id)
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

    /// Forgets the names that nothing stored names any more.
    pub(crate) fn sweep_sites(&mut self) -> Result<(), Problem> {
        let used = used_sites(self.connection())?;
        let mut unused = Vec::new();
        scan(self.connection(), |id, _, seal| {
            if !used.contains(&id) {
                unused.push((id, seal));
            }
            Ok(())
        })?;
        let mut statement = self
            .store
            .connection
            .prepare_cached("DELETE FROM site WHERE id = ?")?;
        for (id, seal) in unused {
            statement.execute([id.0])?;
            self.device.digest.remove(seal);
            self.erased = true;
        }
        Ok(())
    }
}

/// Every site that something stored names.
pub(crate) fn used_sites(connection: &Connection) -> Result<HashSet<SiteId>, Problem> {
    let mut used = HashSet::new();
    impressions::scan(connection, |_, _, impression| {
        used.insert(impression.site);
        used.insert(impression.caller());
        used.extend(impression.conversion_sites);
        used.extend(impression.conversion_callers);
        Ok(())
    })?;
    filters::scan(connection, |row, _| {
        if let Filter::Querier(site) | Filter::ImpressionSite(site) | Filter::ConversionSite(site) =
            row.filter
        {
            used.insert(site);
        }
        Ok(())
    })?;
    admissions::scan(connection, |block, _| {
        used.extend(block.entries().map(|(_, site)| site));
        Ok(())
    })?;
    filters::scan_closed(connection, |site, _, _| {
        used.insert(site);
        Ok(())
    })?;
    objects::scan(connection, |stored, _| {
        used.extend(stored.object.sites());
        Ok(())
    })?;
    Ok(used)
}
