//! Filters, and sites that the user closed.

use bigbird::{Charge, EpochIndex, Filter, MicroEpsilon, SiteId};
use bigbird_user_agent::{ForgottenEpochs, RowPlace};
use rusqlite::{Connection, OptionalExtension, params};

use crate::checksum::{RowGuard, RowHasher, TableTag};
use crate::error::{Damage, Problem};
use crate::transaction::SqliteTransaction;

/// The row of a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FilterRow {
    pub(crate) epoch: EpochIndex,
    pub(crate) filter: Filter,
    pub(crate) consumed: MicroEpsilon,
}

impl FilterRow {
    fn guard(&self) -> RowGuard {
        let (kind, id) = key(self.filter);
        RowHasher::of(TableTag::Filter)
            .int(self.epoch.0)
            .int(kind)
            .int(id)
            .int(self.consumed.get().cast_signed())
            .guard()
    }

    fn verify(&self, checksum: i64) -> Result<RowGuard, Problem> {
        self.guard().verify(checksum, || {
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

/// Verifies filters that were charged and passes each to `each`, in the order of epochs: those
/// behind the place `behind`, and at most `most` of them. Returns true if more are left.
pub(crate) fn scan(
    connection: &Connection,
    behind: Option<RowPlace>,
    most: usize,
    mut each: impl FnMut(FilterRow, RowGuard) -> Result<(), Problem>,
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
        let guard = filter.verify(row.get(4)?)?;
        each(filter, guard)?;
    }
    Ok(false)
}

/// Verifies every closed site and passes it to `each`.
pub(crate) fn scan_closed(
    connection: &Connection,
    mut each: impl FnMut(SiteId, EpochIndex, RowGuard) -> Result<(), Problem>,
) -> Result<(), Problem> {
    let mut statement = connection.prepare_cached("SELECT site, until, checksum FROM closed")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (site, until) = (SiteId(row.get(0)?), EpochIndex(row.get(1)?));
        let guard = verify_closed(site, until, row.get(2)?)?;
        each(site, until, guard)?;
    }
    Ok(())
}

fn seal_closed(site: SiteId, until: EpochIndex) -> RowGuard {
    RowHasher::of(TableTag::Closed)
        .site(site)
        .int(until.0)
        .guard()
}

fn verify_closed(site: SiteId, until: EpochIndex, checksum: i64) -> Result<RowGuard, Problem> {
    seal_closed(site, until).verify(checksum, || format!("the closing of site {}", site.0))
}

impl SqliteTransaction<'_> {
    /// The amount consumed of a filter. It is zero if the filter was never charged.
    pub(crate) fn consumed_of(
        &self,
        epoch: EpochIndex,
        filter: Filter,
    ) -> Result<MicroEpsilon, Problem> {
        // Often known: a report reads each filter before it charges it.
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

    /// Charges filters. Each is written once, when the transaction ends, because conversions that
    /// share a transaction often charge the same filters.
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

    /// Writes the filters that were charged.
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
            // A filter that was never charged has no row.
            if !before.is_zero() {
                self.device.digest.remove(row(before).guard());
            }
            let guard = row(consumed).guard();
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
                    guard.checksum,
                ])?;
            self.device.digest.add(guard);
        }
        Ok(())
    }

    /// Removes filters of pruned epochs, a slice at a time, and all closings that end in one.
    pub(crate) fn forget_filters(&mut self, forgotten: ForgottenEpochs) -> Result<(), Problem> {
        let mut gone = Vec::new();
        scan(
            self.connection(),
            None,
            forgotten.most as usize,
            |row, guard| {
                if row.epoch < forgotten.pruned {
                    gone.push((row.epoch, row.filter, guard));
                }
                Ok(())
            },
        )?;
        for (epoch, filter, guard) in gone {
            let (kind, id) = key(filter);
            self.connection()
                .prepare_cached("DELETE FROM filter WHERE epoch = ? AND kind = ? AND id = ?")?
                .execute([epoch.0, kind, id])?;
            self.device.digest.remove(guard);
            self.deleted = true;
        }
        let mut open = Vec::new();
        scan_closed(self.connection(), |site, until, guard| {
            if until < forgotten.pruned {
                open.push((site, guard));
            }
            Ok(())
        })?;
        for (site, guard) in open {
            self.connection()
                .execute("DELETE FROM closed WHERE site = ?", [site.0])?;
            self.device.digest.remove(guard);
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
        let guard = seal_closed(site, until);
        self.connection().execute(
            "REPLACE INTO closed VALUES (?, ?, ?)",
            params![site.0, until.0, guard.checksum],
        )?;
        if let Some(before) = before {
            self.device.digest.remove(seal_closed(site, before));
        }
        self.device.digest.add(guard);
        Ok(())
    }
}
