//! Impressions: saving within limits, finding by what a request asks for, forgetting.

use std::collections::{BTreeSet, BinaryHeap};

use bigbird::attribution::{Audience, Edit, SiteSize, Touch};
use bigbird::{
    AttributionQuery, EpochIndex, Impression, Query as _, ReadLimits, Relevant, SiteId, Timestamp,
    UserAction,
};
use bigbird_user_agent::{Forgotten, Place, SavedImpression, Selection};
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

/// Who may measure an impression: a conversion site, or any; through a caller, or any. An impression
/// that names several has a row in `reach` for each pair, so that a request finds all that it may
/// measure under few keys, in the order of attribution.
type Reach = (i64, i64);

/// Any conversion site, or any caller.
const ANY: i64 = -1;

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
fn reach(impression: Impression<'_>) -> Vec<Reach> {
    fn each(list: &[SiteId]) -> Vec<i64> {
        match list {
            [] => vec![ANY],
            named => named.iter().map(|site| i64::from(site.0)).collect(),
        }
    }
    let callers = each(impression.conversion_callers);
    let pairs = |site: i64| callers.iter().map(move |caller| (site, *caller));
    each(impression.conversion_sites)
        .into_iter()
        .flat_map(pairs)
        .collect()
}

/// The keys under which a request finds what it may measure. Only if several call can an impression be
/// under more than one.
fn reach_of_query(query: &AttributionQuery) -> Vec<Reach> {
    let site = i64::from(query.request().conversion_site.0);
    let named: BTreeSet<SiteId> = query.callers().iter().copied().collect();
    let callers = named.into_iter().map(|caller| i64::from(caller.0));
    let callers = std::iter::once(ANY).chain(callers);
    callers
        .flat_map(|caller| [(site, caller), (ANY, caller)])
        .collect()
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

/// Gives the impressions of a selection, by epoch and in the order of saving, having verified each: at
/// most so many of those behind a place. Says whether it stopped there.
pub(crate) fn scan(
    connection: &Connection,
    selection: Selection,
    behind: Option<Place>,
    most: usize,
    mut each: impl FnMut(EpochIndex, u32, Impression<'_>) -> Result<(), Problem>,
) -> Result<bool, Problem> {
    let (condition, site, from) = match selection {
        Selection::All => ("?1 IS NOT NULL AND i.epoch >= ?2", 0, i64::MIN),
        Selection::From(epoch) => ("?1 IS NOT NULL AND i.epoch >= ?2", 0, epoch.0),
        Selection::On(site, epoch) => ("i.site = ?1 AND i.epoch >= ?2", site.0, epoch.0),
        Selection::Naming(site) => (
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

/// A row of `reach`: who may measure which impression, with its place in the order of attribution.
pub(crate) type ReachRow = (EpochIndex, Reach, i32, Timestamp, u32);

/// Gives every row of `reach`.
pub(crate) fn scan_reach(
    connection: &Connection,
    mut each: impl FnMut(ReachRow),
) -> Result<(), Problem> {
    let mut statement = connection
        .prepare_cached("SELECT epoch, site, caller, priority, timestamp, seq FROM reach")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        each((
            EpochIndex(row.get(0)?),
            (row.get(1)?, row.get(2)?),
            row.get(3)?,
            Timestamp(row.get(4)?),
            row.get(5)?,
        ));
    }
    Ok(())
}

/// The rows that `reach` should have for an impression.
pub(crate) fn reach_rows(
    epoch: EpochIndex,
    seq: u32,
    impression: Impression<'_>,
) -> impl Iterator<Item = ReachRow> {
    let Impression {
        priority,
        timestamp,
        ..
    } = impression;
    let pairs = reach(impression).into_iter();
    pairs.map(move |pair| (epoch, pair, priority, timestamp, seq))
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
    /// Every way to find what a request asks for; the last is by who may measure.
    fn all(query: &AttributionQuery) -> Vec<Self> {
        fn keys<T: Copy + Into<i64>>(values: impl IntoIterator<Item = T>) -> Vec<(i64, i64)> {
            values.into_iter().map(|value| (0, value.into())).collect()
        }
        let ids = |sites: &[SiteId]| keys(sites.iter().map(|site| site.0));
        let reach = Self {
            count: "SELECT count(*) FROM (SELECT 1 FROM reach
                    WHERE site = ?1 AND caller = ?2 AND epoch = ?3 LIMIT ?4)",
            visit: REACHED,
            keys: reach_of_query(query),
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

    /// The way that leads to the fewest impressions of an epoch, if that is at most `examined`; none if
    /// it is the last one. Counting goes on by steps, each way in turn, so that it costs about as much
    /// as the shortest way does.
    fn shortest(
        mut ways: Vec<Self>,
        connection: &Connection,
        epoch: EpochIndex,
        examined: i64,
    ) -> Result<Option<Self>, Problem> {
        let mut limit = 16;
        while ways.len() > 1 {
            // One more than may be examined tells that there are too many.
            let limited = limit.min(examined + 1);
            for at in 0..ways.len() {
                if ways[at].count(connection, epoch, limited)? < limited {
                    let last = at + 1 == ways.len();
                    return Ok((!last).then(|| ways.swap_remove(at)));
                }
            }
            if limited > examined {
                break;
            }
            limit *= 8;
        }
        Ok(None)
    }
}

/// What a pair of a conversion site and a caller may measure, the first to get credit first.
const REACHED: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM reach r CROSS JOIN impression i ON i.epoch = r.epoch AND i.seq = r.seq
     WHERE r.site = ?1 AND r.caller = ?2 AND r.epoch = ?3
     ORDER BY r.priority DESC, r.timestamp DESC, r.seq DESC"
);

/// Gives the first impressions that a request may measure, in the order of attribution, until that is
/// said to be enough.
fn first_reached(
    connection: &Connection,
    epoch: EpochIndex,
    query: &AttributionQuery,
    most: u32,
    mut each: impl FnMut(u32, &SavedImpression) -> bool,
) -> Result<(), Problem> {
    let keys = reach_of_query(query);
    let mut statements = Vec::with_capacity(keys.len());
    for number in 0..keys.len() {
        // All are read at once, so each is a statement of its own, which is found again by its text.
        let sql = format!("{REACHED} -- {number}");
        statements.push(connection.prepare_cached(&sql)?);
    }
    let mut lists = Vec::with_capacity(keys.len());
    for (statement, (site, caller)) in statements.iter_mut().zip(keys) {
        lists.push(statement.query([site, caller, epoch.0])?);
    }
    let next = |rows: &mut rusqlite::Rows<'_>| -> Result<_, Problem> {
        let Some(row) = rows.next()? else {
            return Ok(None);
        };
        let (seq, saved) = read(row)?;
        Ok(Some(((saved.priority, saved.timestamp, seq), saved)))
    };
    let mut heads = BinaryHeap::new();
    let mut saved = Vec::with_capacity(lists.len());
    for (number, rows) in lists.iter_mut().enumerate() {
        let head = next(rows)?;
        heads.extend(head.as_ref().map(|(rank, _)| (*rank, number)));
        saved.push(head.map(|(_, saved)| saved));
    }
    for _ in 0..most {
        let Some(((_, _, seq), number)) = heads.pop() else {
            break;
        };
        if saved[number].as_ref().is_some_and(|saved| each(seq, saved)) {
            break;
        }
        let head = next(&mut lists[number])?;
        heads.extend(head.as_ref().map(|(rank, _)| (*rank, number)));
        saved[number] = head.map(|(_, saved)| saved);
    }
    Ok(())
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
        let ReadLimits { examined, .. } = query.read_limits();
        let begin = found.len();
        let mut enough = query.enough();
        let mut consider = |order: u32, saved: &SavedImpression| -> bool {
            let Some(detail) = query.relevant(saved.impression()) else {
                return false;
            };
            let event = Relevant {
                epoch,
                order,
                site: saved.site,
                user_action: saved.user_action,
                detail,
            };
            found.push(event);
            enough.with(&event)
        };
        match Way::shortest(Way::all(query), connection, epoch, examined.into())? {
            Some(way) => {
                let mut statement = connection.prepare_cached(way.visit)?;
                for (first, second) in way.keys {
                    let mut rows = statement.query([first, second, epoch.0])?;
                    while let Some(row) = rows.next()? {
                        let (order, saved) = read(row)?;
                        consider(order, &saved);
                    }
                }
            }
            None => first_reached(connection, epoch, query, examined, consider)?,
        }
        if query.callers().len() > 1 {
            // Two callers may share one impression.
            found[begin..].sort_unstable_by_key(|event| event.order);
            found.dedup_by_key(|event| (event.epoch, event.order));
        }
        Ok(())
    }

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

    /// Stores an impression at the end of its epoch.
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
        let seq = u32::try_from(next - 1).map_err(|_| Problem::Exhausted("impressions"))?;
        self.insert(seq, saved)?;
        connection
            .prepare_cached(
                "INSERT INTO site_size VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO UPDATE
                 SET units = units + ?3",
            )?
            .execute(params![epoch.0, saved.site.0, units, seq])?;
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
        let mut statement =
            connection.prepare_cached("INSERT INTO reach VALUES (?, ?, ?, ?, ?, ?)")?;
        for (site, caller) in reach(saved.impression()) {
            let (priority, timestamp) = (saved.priority, saved.timestamp.0);
            statement.execute(params![epoch.0, site, caller, priority, timestamp, seq])?;
        }
        Ok(())
    }

    /// Removes an impression, and all that leads to it.
    fn remove(&mut self, epoch: EpochIndex, seq: u32) -> Result<(), Problem> {
        match self.take(epoch, seq)? {
            Some(stored) => self.shrink(epoch, stored.site, stored.impression().units()),
            None => Ok(()),
        }
    }

    /// Makes an epoch and a site in it smaller.
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
            "DELETE FROM reach WHERE epoch = ? AND site = ? AND caller = ?
             AND priority = ? AND timestamp = ? AND seq = ?",
        )?;
        for (site, caller) in reach(stored.impression()) {
            let (priority, timestamp) = (stored.priority, stored.timestamp.0);
            statement.execute(params![epoch.0, site, caller, priority, timestamp, seq])?;
        }
        Ok(Some(stored))
    }

    /// Removes impressions of epochs that no request can reach, at most so many of each table.
    pub(crate) fn forget_impressions(&mut self, forgotten: Forgotten) -> Result<(), Problem> {
        let Forgotten {
            pruned,
            unreachable,
            most,
        } = forgotten;
        // Epochs that are open must stay in order, one impression after the other.
        let mut gone = Vec::new();
        let open = Selection::From(pruned);
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

    /// Whether an epoch before one has any impression.
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

/// The fourth version of the schema: impressions are found in the order of attribution, and counted in
/// units.
pub(crate) fn migrate_to_4(connection: &Connection) -> Result<(), Problem> {
    connection.execute_batch(
        "DROP TABLE reach;
         -- Who may measure an impression, in the order of attribution; -1 for any.
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

         -- How many units the impressions of an epoch, and of each site in it, have.
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
        Selection::All,
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
