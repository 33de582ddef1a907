//! Impressions: saving, finding and removing them.

mod find;
mod migrate;
mod reach;
mod write;

use bigbird::attribution::{Audience, SiteSize};
use bigbird::{EpochIndex, Impression, SiteId, Timestamp, UserAction};
use bigbird_user_agent::{ImpressionSelection, RowPlace, SavedImpression};
use rusqlite::{Connection, OptionalExtension, Row as SqlRow, params};

use crate::checksum::{RowGuard, RowHasher, TableTag};
use crate::error::{Damage, Problem};
use crate::transaction::SqliteTransaction;

pub(crate) use migrate::migrate_to_4;
pub(crate) use reach::{reach_rows, scan_reach};

/// The columns of an impression, in the order that [`read`] expects.
macro_rules! columns {
    () => {
        "i.epoch, i.seq, i.site, i.caller, i.match_value, i.histogram_index, i.priority, \
         i.timestamp, i.expires, i.user_action, i.audience, i.checksum"
    };
}

use columns;

/// Reads and verifies a row.
fn read(row: &SqlRow<'_>) -> Result<(u32, SavedImpression), Problem> {
    let (epoch, seq) = (EpochIndex(row.get(0)?), row.get(1)?);
    let what = || format!("impression {seq} of epoch {}", epoch.0);
    let audience = row.get_ref(10)?.as_blob().map_err(rusqlite::Error::from)?;
    let (site, caller) = (SiteId(row.get(2)?), SiteId(row.get(3)?));
    let saved = SavedImpression {
        epoch,
        site,
        intermediary: (caller != site).then_some(caller),
        match_value: row.get(4)?,
        histogram_index: row.get(5)?,
        priority: row.get(6)?,
        timestamp: Timestamp(row.get(7)?),
        expires: Timestamp(row.get(8)?),
        user_action: UserAction(row.get::<_, i64>(9)?.cast_unsigned()),
        audience: decode_audience(audience).ok_or_else(|| Damage::Row(what()))?,
    };
    guard(&saved, seq, audience).verify(row.get(11)?, what)?;
    Ok((seq, saved))
}

fn guard(saved: &SavedImpression, seq: u32, audience: &[u8]) -> RowGuard {
    RowHasher::of(TableTag::Impression)
        .int(saved.epoch.0)
        .int(i64::from(seq))
        .site(saved.site)
        .site(saved.impression().caller())
        .int(i64::from(saved.match_value))
        .int(i64::from(saved.histogram_index))
        .int(i64::from(saved.priority))
        .int(saved.timestamp.0)
        .int(saved.expires.0)
        .int(saved.user_action.0.cast_signed())
        .bytes(audience)
        .guard()
}

/// The length of the first list, then both lists. No bytes at all if both lists are empty.
fn encode_audience(audience: &Audience) -> Vec<u8> {
    let (sites, callers) = (&audience.conversion_sites, &audience.conversion_callers);
    if sites.is_empty() && callers.is_empty() {
        return Vec::new();
    }
    let count = u32::try_from(sites.len()).unwrap_or(u32::MAX);
    let lists = sites.iter().chain(callers).map(|site| site.0);
    let words = std::iter::once(count).chain(lists);
    words.flat_map(u32::to_le_bytes).collect()
}

fn decode_audience(bytes: &[u8]) -> Option<Audience> {
    let (words, rest) = bytes.as_chunks::<4>();
    if !rest.is_empty() {
        return None;
    }
    let mut words = words.iter().map(|word| u32::from_le_bytes(*word));
    let count = words.next().unwrap_or_default();
    let mut words = words.map(SiteId);
    Some(Audience {
        conversion_sites: words.by_ref().take(count as usize).collect(),
        conversion_callers: words.collect(),
    })
}

/// Verifies the impressions of a selection and passes each to `each`, by epoch and in the order of
/// saving: those behind the place `behind`, and at most `most` of them. Returns true if more are
/// left.
pub(crate) fn scan(
    connection: &Connection,
    selection: ImpressionSelection,
    behind: Option<RowPlace>,
    most: usize,
    mut each: impl FnMut(EpochIndex, u32, Impression<'_>) -> Result<(), Problem>,
) -> Result<bool, Problem> {
    let (condition, site, from) = match selection {
        ImpressionSelection::All => ("?1 IS NOT NULL AND i.epoch >= ?2", 0, i64::MIN),
        ImpressionSelection::From(epoch) => ("?1 IS NOT NULL AND i.epoch >= ?2", 0, epoch.0),
        ImpressionSelection::On(site, epoch) => ("i.site = ?1 AND i.epoch >= ?2", site.0, epoch.0),
        ImpressionSelection::Naming(site) => (
            "i.epoch >= ?2 AND (i.caller = ?1 OR (i.epoch, i.seq) IN (
                 SELECT r.epoch, r.seq FROM epoch_size e
                 JOIN reach r ON r.epoch = e.epoch AND r.site = ?1
                 UNION SELECT epoch, seq FROM reach WHERE caller = ?1 AND caller >= 0))",
            site.0,
            i64::MIN,
        ),
    };
    let columns = columns!();
    let sql = format!(
        "SELECT {columns} FROM impression i
         WHERE {condition} AND (i.epoch, i.seq) > (?3, ?4) ORDER BY i.epoch, i.seq"
    );
    let [epoch, seq, _] = behind.unwrap_or([i64::MIN; 3]);
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query(params![site, from, epoch, seq])?;
    let mut count = 0;
    while let Some(row) = rows.next()? {
        if count == most {
            return Ok(true);
        }
        count += 1;
        let (seq, saved) = read(row)?;
        each(saved.epoch, seq, saved.impression())?;
    }
    Ok(false)
}

/// Verifies the last impressions before a place and passes each to `each`: at most `most` of those
/// in the epoch `first` or later. Returns true if there are more before them.
pub(crate) fn scan_last(
    connection: &Connection,
    first: EpochIndex,
    before: Option<RowPlace>,
    most: usize,
    mut each: impl FnMut(EpochIndex, u32, Impression<'_>),
) -> Result<bool, Problem> {
    let mut statement = connection.prepare_cached(concat!(
        "SELECT ",
        columns!(),
        " FROM impression i WHERE i.epoch >= ? AND (i.epoch, i.seq) < (?, ?)
         ORDER BY i.epoch DESC, i.seq DESC"
    ))?;
    let [epoch, seq, _] = before.unwrap_or([i64::MAX; 3]);
    let mut rows = statement.query(params![first.0, epoch, seq])?;
    let mut count = 0;
    while let Some(row) = rows.next()? {
        if count == most {
            return Ok(true);
        }
        count += 1;
        let (seq, saved) = read(row)?;
        each(saved.epoch, seq, saved.impression());
    }
    Ok(false)
}

impl SqliteTransaction<'_> {
    pub(crate) fn units_of(&self, epoch: EpochIndex) -> Result<u32, Problem> {
        let mut statement = self
            .connection()
            .prepare_cached("SELECT units FROM epoch_size WHERE epoch = ?")?;
        let units = statement.query_row([epoch.0], |row| row.get(0));
        Ok(units.optional()?.unwrap_or_default())
    }

    pub(crate) fn largest_of(&self, epoch: EpochIndex) -> Result<Option<SiteSize>, Problem> {
        let mut statement = self.connection().prepare_cached(
            "SELECT units, oldest FROM site_size WHERE epoch = ?
             ORDER BY units DESC, oldest LIMIT 1",
        )?;
        let largest = statement.query_row([epoch.0], |row| {
            Ok(SiteSize {
                units: row.get(0)?,
                oldest: row.get(1)?,
            })
        });
        Ok(largest.optional()?)
    }

    /// Returns true if any epoch before `epoch` still has rows of impressions.
    pub(crate) fn has_impressions_before(&self, epoch: EpochIndex) -> Result<bool, Problem> {
        let mut found = false;
        for table in ["impression", "reach", "site_size"] {
            let sql = format!("SELECT EXISTS (SELECT 1 FROM {table} WHERE epoch < ?)");
            let mut statement = self.connection().prepare_cached(&sql)?;
            found |= statement.query_row([epoch.0], |row| row.get::<_, bool>(0))?;
        }
        Ok(found)
    }
}
