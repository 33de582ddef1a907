//! Filters, and sites that the user closed.

use bigbird::{Charge, EpochIndex, Filter, MicroEpsilon, SiteId};
use bigbird_user_agent::{Forgotten, Place};
use rusqlite::{Connection, OptionalExtension, params};

use crate::error::{Damage, Problem};
use crate::seal::{Row, Seal, Table};
use crate::transaction::SqliteTransaction;

/// A filter as a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FilterRow {
    pub(crate) epoch: EpochIndex,
    pub(crate) filter: Filter,
    pub(crate) consumed: MicroEpsilon,
}

impl FilterRow {
    fn seal(&self) -> Seal {
        let (kind, id) = key(self.filter);
        Row::of(Table::Filter)
            .int(self.epoch.0)
            .int(kind)
            .int(id)
            .int(self.consumed.get().cast_signed())
            .seal()
    }

    fn verify(&self, checksum: i64) -> Result<Seal, Problem> {
        self.seal().verify(checksum, || {
            format!("the {} in epoch {}", self.filter.kind(), self.epoch.0)
        })
    }
}

/// The kind and the id of a filter, as they are stored.
fn key(filter: Filter) -> (i64, i64) {
    let (kind, id) = filter.key();
    (i64::from(kind), id.cast_signed())
}

fn from_key(kind: i64, id: i64) -> Result<Filter, Problem> {
    let known = u8::try_from(kind).ok();
    let filter = known.and_then(|kind| Filter::from_key(kind, id.cast_unsigned()));
    filter.ok_or_else(|| Damage::Row(format!("filter {id} of kind {kind}")).into())
}

/// Gives every filter that was charged, by epoch, having verified each: at most so many of those behind
/// a place. Says whether it stopped there.
pub(crate) fn scan(
    connection: &Connection,
    behind: Option<Place>,
    most: usize,
    mut each: impl FnMut(FilterRow, Seal) -> Result<(), Problem>,
) -> Result<bool, Problem> {
    let mut statement = connection.prepare_cached(
        "SELECT epoch, kind, id, consumed, checksum FROM filter
         WHERE (epoch, kind, id) > (?, ?, ?) ORDER BY epoch, kind, id",
    )?;
    let mut rows = statement.query(behind.unwrap_or([i64::MIN; 3]))?;
    let mut count = 0;
    while let Some(row) = rows.next()? {
        if count == most {
            return Ok(true);
        }
        count += 1;
        let filter = FilterRow {
            epoch: EpochIndex(row.get(0)?),
            filter: from_key(row.get(1)?, row.get(2)?)?,
            consumed: MicroEpsilon::new(row.get::<_, i64>(3)?.cast_unsigned()),
        };
        let seal = filter.verify(row.get(4)?)?;
        each(filter, seal)?;
    }
    Ok(false)
}

/// Gives every closed site, having verified each.
pub(crate) fn scan_closed(
    connection: &Connection,
    mut each: impl FnMut(SiteId, EpochIndex, Seal) -> Result<(), Problem>,
) -> Result<(), Problem> {
    let mut statement = connection.prepare_cached("SELECT site, until, checksum FROM closed")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (site, until) = (SiteId(row.get(0)?), EpochIndex(row.get(1)?));
        let seal = verify_closed(site, until, row.get(2)?)?;
        each(site, until, seal)?;
    }
    Ok(())
}

fn seal_closed(site: SiteId, until: EpochIndex) -> Seal {
    Row::of(Table::Closed).site(site).int(until.0).seal()
}

fn verify_closed(site: SiteId, until: EpochIndex, checksum: i64) -> Result<Seal, Problem> {
    seal_closed(site, until).verify(checksum, || format!("the closing of site {}", site.0))
}

impl SqliteTransaction<'_> {
    /// What was consumed of a filter; nothing if it was never charged.
    pub(crate) fn consumed_of(
        &self,
        epoch: EpochIndex,
        filter: Filter,
    ) -> Result<MicroEpsilon, Problem> {
        // A report looks each filter up before it charges it.
        if let Some(known) = self.consumed.borrow().get(&(epoch, filter)) {
            return Ok(*known);
        }
        let consumed = self.read_consumed(epoch, filter)?.unwrap_or_default();
        self.consumed.borrow_mut().insert((epoch, filter), consumed);
        Ok(consumed)
    }

    fn read_consumed(
        &self,
        epoch: EpochIndex,
        filter: Filter,
    ) -> Result<Option<MicroEpsilon>, Problem> {
        let (kind, id) = key(filter);
        let mut statement = self.connection().prepare_cached(
            "SELECT consumed, checksum FROM filter WHERE epoch = ? AND kind = ? AND id = ?",
        )?;
        let found: Option<(i64, i64)> = statement
            .query_row([epoch.0, kind, id], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        let Some((consumed, checksum)) = found else {
            return Ok(None);
        };
        let consumed = MicroEpsilon::new(consumed.cast_unsigned());
        let row = FilterRow {
            epoch,
            filter,
            consumed,
        };
        row.verify(checksum)?;
        Ok(Some(consumed))
    }

    /// Charges filters. They are written down when the transaction ends, each once: conversions that
    /// came together often charge the same ones.
    pub(crate) fn charge(&mut self, charges: &[Charge]) -> Result<(), Problem> {
        for &Charge {
            epoch,
            filter,
            amount,
        } in charges
        {
            let before = self.consumed_of(epoch, filter)?;
            let mut known = self.consumed.borrow_mut();
            known.insert((epoch, filter), before + amount);
            self.charged.entry((epoch, filter)).or_insert(before);
        }
        Ok(())
    }

    /// Writes down what filters were charged.
    pub(crate) fn write_charges(&mut self) -> Result<(), Problem> {
        let mut charged: Vec<_> = self.charged.drain().collect();
        charged.sort_unstable();
        for ((epoch, filter), before) in charged {
            let consumed = self.consumed_of(epoch, filter)?;
            let row = |consumed| FilterRow {
                epoch,
                filter,
                consumed,
            };
            // No filter has a row before it is charged.
            if !before.is_zero() {
                self.device.digest.remove(row(before).seal());
            }
            let seal = row(consumed).seal();
            let (kind, id) = key(filter);
            self.connection()
                .prepare_cached(
                    "INSERT INTO filter VALUES (?1, ?2, ?3, ?4, ?5)
                     ON CONFLICT DO UPDATE SET consumed = ?4, checksum = ?5",
                )?
                .execute([
                    epoch.0,
                    kind,
                    id,
                    consumed.get().cast_signed(),
                    seal.checksum,
                ])?;
            self.device.digest.add(seal);
        }
        Ok(())
    }

    /// Removes filters and closings of epochs that were pruned, at most so many.
    pub(crate) fn forget_filters(&mut self, forgotten: Forgotten) -> Result<(), Problem> {
        let mut gone = Vec::new();
        scan(
            self.connection(),
            None,
            forgotten.most as usize,
            |row, seal| {
                if row.epoch < forgotten.pruned {
                    gone.push((row.epoch, row.filter, seal));
                }
                Ok(())
            },
        )?;
        for (epoch, filter, seal) in gone {
            let (kind, id) = key(filter);
            self.connection()
                .prepare_cached("DELETE FROM filter WHERE epoch = ? AND kind = ? AND id = ?")?
                .execute([epoch.0, kind, id])?;
            self.device.digest.remove(seal);
            self.deleted = true;
        }
        let mut open = Vec::new();
        scan_closed(self.connection(), |site, until, seal| {
            if until < forgotten.pruned {
                open.push((site, seal));
            }
            Ok(())
        })?;
        for (site, seal) in open {
            self.connection()
                .execute("DELETE FROM closed WHERE site = ?", [site.0])?;
            self.device.digest.remove(seal);
            self.deleted = true;
        }
        Ok(())
    }

    pub(crate) fn closed(&self, site: SiteId) -> Result<Option<EpochIndex>, Problem> {
        let mut statement = self
            .connection()
            .prepare_cached("SELECT until, checksum FROM closed WHERE site = ?")?;
        let found: Option<(i64, i64)> = statement
            .query_row([site.0], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        let Some((until, checksum)) = found else {
            return Ok(None);
        };
        verify_closed(site, EpochIndex(until), checksum)?;
        Ok(Some(EpochIndex(until)))
    }

    pub(crate) fn close(&mut self, site: SiteId, until: EpochIndex) -> Result<(), Problem> {
        let before = self.closed(site)?;
        let seal = seal_closed(site, until);
        self.connection().execute(
            "REPLACE INTO closed VALUES (?, ?, ?)",
            params![site.0, until.0, seal.checksum],
        )?;
        if let Some(before) = before {
            self.device.digest.remove(seal_closed(site, before));
        }
        self.device.digest.add(seal);
        Ok(())
    }
}
