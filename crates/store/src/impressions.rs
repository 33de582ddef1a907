//! Impressions: saving within limits, finding by what a request asks for, forgetting.

use std::collections::HashSet;

use bigbird::attribution::{Audience, Crowd, Edit, SiteSize, Touch};
use bigbird::{
    AttributionQuery, EpochIndex, Impression, Query as _, Relevant, SiteId, Timestamp, UserAction,
};
use bigbird_user_agent::{SavedImpression, Selection};
use rusqlite::{Connection, OptionalExtension, Row as Found, params};

use crate::error::{Damage, Problem};
use crate::seal::{Row, Seal, Table};
use crate::transaction::SqliteTransaction;

/// The columns of an impression, in the order in which [`read`] wants them.
macro_rules! columns {
    () => {
        "i.epoch, i.seq, i.site, i.caller, i.match_value, i.histogram_index, i.priority, \
         i.timestamp, i.expires, i.user_action, i.audience, i.checksum"
    };
}

/// Why somebody may measure an impression: the kinds of rows of `reach`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i64)]
enum Reach {
    /// Everybody may.
    Anyone = 0,
    /// It names the conversion site.
    Site = 1,
    /// It names the caller, on any conversion site.
    Caller = 2,
    /// It names the caller too, besides conversion sites: only to find it when the caller is
    /// forgotten.
    CallerOnSites = 3,
}

/// Reads and verifies a row.
fn read(row: &Found<'_>) -> Result<(u32, SavedImpression), Problem> {
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
    seal(&saved, seq, audience).verify(row.get(11)?, what)?;
    Ok((seq, saved))
}

fn seal(saved: &SavedImpression, seq: u32, audience: &[u8]) -> Seal {
    Row::of(Table::Impression)
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
        .seal()
}

/// The rows of `reach` of an impression.
fn reach(impression: Impression<'_>) -> impl Iterator<Item = (Reach, SiteId)> {
    let (sites, callers) = (impression.conversion_sites, impression.conversion_callers);
    let by_caller = if sites.is_empty() {
        Reach::Caller
    } else {
        Reach::CallerOnSites
    };
    let open = sites.is_empty() && callers.is_empty();
    let sites = sites.iter().map(|site| (Reach::Site, *site));
    let callers = callers.iter().map(move |site| (by_caller, *site));
    let anyone = open.then_some((Reach::Anyone, SiteId(0)));
    sites.chain(callers).chain(anyone)
}

/// The two lists, after the length of the first; nothing if both are empty.
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

/// Gives the impressions of a selection, by epoch and in the order of saving, having verified each.
pub(crate) fn scan(
    connection: &Connection,
    selection: Selection,
    mut each: impl FnMut(EpochIndex, u32, Impression<'_>) -> Result<(), Problem>,
) -> Result<(), Problem> {
    let (condition, value) = match selection {
        Selection::All => ("?1 IS NOT NULL", 0),
        Selection::On(site) => ("site = ?1", i64::from(site.0)),
        Selection::Naming(site) => (
            "caller = ?1 OR (epoch, seq) IN
             (SELECT epoch, seq FROM reach WHERE kind IN (1, 2, 3) AND id = ?1)",
            i64::from(site.0),
        ),
        Selection::ExpiringBefore(moment) => ("expires < ?1", moment.0),
    };
    let columns = columns!();
    let sql = format!("SELECT {columns} FROM impression i WHERE {condition} ORDER BY epoch, seq");
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query([value])?;
    while let Some(row) = rows.next()? {
        let (seq, saved) = read(row)?;
        each(saved.epoch, seq, saved.impression())?;
    }
    Ok(())
}

/// Gives the impressions that somebody may measure for a reason, as `reach` lists them.
pub(crate) fn scan_reach(
    connection: &Connection,
    mut each: impl FnMut(i64, SiteId, EpochIndex, u32),
) -> Result<(), Problem> {
    let mut statement = connection.prepare_cached("SELECT kind, id, epoch, seq FROM reach")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        each(
            row.get(0)?,
            SiteId(row.get(1)?),
            EpochIndex(row.get(2)?),
            row.get(3)?,
        );
    }
    Ok(())
}

/// The rows that `reach` should have for an impression.
pub(crate) fn reach_of(impression: &Impression<'_>) -> Vec<(i64, SiteId)> {
    reach(*impression)
        .map(|(kind, id)| (kind as i64, id))
        .collect()
}

/// A property that impressions have in common, by which they can be found: a statement that counts
/// those of one epoch up to a limit, one that gives them, and the values that a request asks for.
struct Way {
    count: &'static str,
    visit: &'static str,
    keys: Vec<(i64, i64)>,
}

macro_rules! way {
    ($column:literal, $keys:expr) => {
        Way {
            // The first parameter is not needed here, but is there in each.
            count: concat!(
                "SELECT count(*) FROM (SELECT 1 FROM impression INDEXED BY impression_by_",
                $column,
                " WHERE ?1 = 0 AND ",
                $column,
                " = ?2 AND epoch = ?3 LIMIT ?4)"
            ),
            visit: concat!(
                "SELECT ",
                columns!(),
                " FROM impression i INDEXED BY impression_by_",
                $column,
                " WHERE ?1 = 0 AND i.",
                $column,
                " = ?2 AND i.epoch = ?3"
            ),
            keys: $keys,
        }
    };
}

impl Way {
    /// Every way to find what a request asks for.
    fn all(query: &AttributionQuery) -> Vec<Self> {
        fn keys<T: Copy + Into<i64>>(values: impl IntoIterator<Item = T>) -> Vec<(i64, i64)> {
            values.into_iter().map(|value| (0, value.into())).collect()
        }
        let ids = |sites: &[SiteId]| keys(sites.iter().map(|site| site.0));
        let anyone = (Reach::Anyone as i64, 0);
        let site = (
            Reach::Site as i64,
            i64::from(query.request().conversion_site.0),
        );
        let callers = query.callers().iter();
        let callers = callers.map(|caller| (Reach::Caller as i64, i64::from(caller.0)));
        let reach = Self {
            count: "SELECT count(*) FROM (SELECT 1 FROM reach
                    WHERE kind = ?1 AND id = ?2 AND epoch = ?3 LIMIT ?4)",
            visit: concat!(
                "SELECT ",
                columns!(),
                " FROM reach r CROSS JOIN impression i
                 ON i.epoch = r.epoch AND i.seq = r.seq
                 WHERE r.kind = ?1 AND r.id = ?2 AND r.epoch = ?3"
            ),
            keys: [anyone, site].into_iter().chain(callers).collect(),
        };
        let restricted = [
            way!("site", ids(query.impression_sites())),
            way!("caller", ids(query.impression_callers())),
            way!("match_value", keys(query.match_values().iter().copied())),
        ];
        let restricted = restricted.into_iter().filter(|way| !way.keys.is_empty());
        restricted.chain([reach]).collect()
    }

    /// How many impressions of an epoch it leads to, up to a limit.
    fn count(
        &self,
        connection: &Connection,
        epoch: EpochIndex,
        limit: i64,
    ) -> Result<i64, Problem> {
        let mut statement = connection.prepare_cached(self.count)?;
        let mut count = 0;
        for &(kind, id) in &self.keys {
            if count >= limit {
                break;
            }
            let more: i64 =
                statement.query_row([kind, id, epoch.0, limit - count], |row| row.get(0))?;
            count += more;
        }
        Ok(count)
    }

    /// The way that leads to the fewest impressions of an epoch. Counting goes on by steps, each
    /// way in turn, so that it costs about as much as the shortest way does.
    fn shortest(
        ways: Vec<Self>,
        connection: &Connection,
        epoch: EpochIndex,
    ) -> Result<Option<Self>, Problem> {
        let mut ways = ways;
        if ways.len() < 2 {
            return Ok(ways.pop());
        }
        let mut limit = 16;
        loop {
            for at in 0..ways.len() {
                if ways[at].count(connection, epoch, limit)? < limit {
                    return Ok(Some(ways.swap_remove(at)));
                }
            }
            limit *= 8;
        }
    }
}

impl SqliteTransaction<'_> {
    /// Finds what is relevant to a query in an epoch, looking only at impressions that have
    /// something in common which the query asks for.
    pub(crate) fn find_relevant(
        &self,
        epoch: EpochIndex,
        query: &AttributionQuery,
        found: &mut Vec<Relevant<Touch>>,
    ) -> Result<(), Problem> {
        let connection = self.connection();
        let Some(way) = Way::shortest(Way::all(query), connection, epoch)? else {
            return Ok(());
        };
        let mut statement = connection.prepare_cached(way.visit)?;
        // Two callers may share one impression.
        let mut seen = (query.callers().len() > 1).then(HashSet::new);
        for (kind, id) in way.keys {
            let mut rows = statement.query([kind, id, epoch.0])?;
            while let Some(row) = rows.next()? {
                let (order, stored) = read(row)?;
                if !seen.as_mut().is_none_or(|seen| seen.insert(order)) {
                    continue;
                }
                if let Some(detail) = query.relevant(stored.impression()) {
                    found.push(Relevant {
                        epoch,
                        order,
                        site: stored.site,
                        user_action: stored.user_action,
                        detail,
                    });
                }
            }
        }
        Ok(())
    }

    pub(crate) fn count_of(&self, epoch: EpochIndex) -> Result<u32, Problem> {
        let mut statement = self
            .connection()
            .prepare_cached("SELECT impressions FROM epoch_size WHERE epoch = ?")?;
        let count = statement.query_row([epoch.0], |row| row.get(0));
        Ok(count.optional()?.unwrap_or_default())
    }

    pub(crate) fn crowd_of(&self, epoch: EpochIndex, site: SiteId) -> Result<Crowd, Problem> {
        let find = |sql: &str, values: &[i64]| -> Result<Option<SiteSize>, Problem> {
            let values = rusqlite::params_from_iter(values);
            let mut statement = self.connection().prepare_cached(sql)?;
            let found = statement.query_row(values, |row| {
                Ok(SiteSize {
                    impressions: row.get(0)?,
                    oldest: row.get(1)?,
                })
            });
            Ok(found.optional()?)
        };
        Ok(Crowd {
            largest: find(
                "SELECT impressions, oldest FROM crowd WHERE epoch = ?
                 ORDER BY impressions DESC, oldest LIMIT 1",
                &[epoch.0],
            )?,
            own: find(
                "SELECT impressions, oldest FROM crowd WHERE epoch = ? AND site = ?",
                &[epoch.0, i64::from(site.0)],
            )?,
        })
    }

    /// Stores an impression at the end of its epoch.
    pub(crate) fn append(&mut self, saved: &SavedImpression) -> Result<(), Problem> {
        let epoch = saved.epoch;
        let connection = self.connection();
        let next: i64 = connection
            .prepare_cached(
                "INSERT INTO epoch_size VALUES (?, 1, 1) ON CONFLICT DO UPDATE
                 SET impressions = impressions + 1, next_seq = next_seq + 1
                 RETURNING next_seq",
            )?
            .query_row([epoch.0], |row| row.get(0))?;
        let seq = u32::try_from(next - 1).map_err(|_| Problem::Exhausted("impressions"))?;
        self.insert(seq, saved)?;
        connection
            .prepare_cached(
                "INSERT INTO crowd VALUES (?, ?, 1, ?) ON CONFLICT DO UPDATE
                 SET impressions = impressions + 1",
            )?
            .execute(params![epoch.0, saved.site.0, seq])?;
        Ok(())
    }

    /// Removes an impression, or changes who may measure it.
    pub(crate) fn edit(&mut self, edit: &Edit) -> Result<(), Problem> {
        let Edit {
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
                saved.audience.clone_from(audience);
                self.insert(*order, &saved)
            }
        }
    }

    fn insert(&self, seq: u32, saved: &SavedImpression) -> Result<(), Problem> {
        let (connection, epoch) = (self.connection(), saved.epoch);
        let audience = encode_audience(&saved.audience);
        let seal = seal(saved, seq, &audience);
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
                seal.checksum,
            ])?;
        let mut statement = connection.prepare_cached("INSERT INTO reach VALUES (?, ?, ?, ?)")?;
        for (kind, id) in reach(saved.impression()) {
            statement.execute(params![kind as i64, id.0, epoch.0, seq])?;
        }
        Ok(())
    }

    /// Removes an impression, and all that leads to it.
    fn remove(&mut self, epoch: EpochIndex, seq: u32) -> Result<(), Problem> {
        let Some(stored) = self.take(epoch, seq)? else {
            return Ok(());
        };
        let connection = self.connection();
        connection
            .prepare_cached("UPDATE epoch_size SET impressions = impressions - 1 WHERE epoch = ?")?
            .execute([epoch.0])?;
        let oldest: Option<u32> = connection
            .prepare_cached("SELECT min(seq) FROM impression WHERE site = ? AND epoch = ?")?
            .query_row(params![stored.site.0, epoch.0], |row| row.get(0))?;
        let of_site = params![epoch.0, stored.site.0, oldest];
        let update = match oldest {
            Some(_) => {
                "UPDATE crowd SET impressions = impressions - 1, oldest = ?3
                 WHERE epoch = ?1 AND site = ?2"
            }
            None => "DELETE FROM crowd WHERE epoch = ?1 AND site = ?2 AND ?3 IS NULL",
        };
        connection.prepare_cached(update)?.execute(of_site)?;
        Ok(())
    }

    /// Removes an impression, leaving the sizes of its epoch as they are.
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
            "DELETE FROM reach WHERE kind = ? AND id = ? AND epoch = ? AND seq = ?",
        )?;
        for (kind, id) in reach(stored.impression()) {
            statement.execute(params![kind as i64, id.0, epoch.0, seq])?;
        }
        Ok(Some(stored))
    }

    pub(crate) fn prune_impressions(&mut self, epoch: EpochIndex) -> Result<(), Problem> {
        for table in ["impression", "reach", "crowd", "epoch_size"] {
            let sql = format!("DELETE FROM {table} WHERE epoch < ?");
            let gone = self.connection().execute(&sql, [epoch.0])?;
            self.deleted |= gone > 0;
        }
        Ok(())
    }
}
