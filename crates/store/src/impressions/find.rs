//! Finding the impressions that are relevant to a query.

use std::collections::BinaryHeap;

use bigbird::attribution::MatchedImpression;
use bigbird::{AttributionQuery, EpochIndex, Query as _, ReadLimits, Relevant, SiteId};
use bigbird_user_agent::SavedImpression;
use rusqlite::Connection;

use super::reach::reach_of_query;
use super::{columns, read};
use crate::error::Problem;
use crate::transaction::SqliteTransaction;

/// A way to find impressions, by a property such as their site.
struct AccessPath {
    /// A statement that counts the impressions of one epoch with one key, up to a limit.
    count: &'static str,
    /// A statement that returns them.
    visit: &'static str,
    /// The keys that a request asks for.
    keys: Vec<(i64, i64)>,
}

macro_rules! way {
    ($column:literal, $keys:expr) => {
        AccessPath {
            // All paths take the same parameters. This one does not need the first.
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

impl AccessPath {
    /// Every path to the impressions that a request asks for. The last one is by `reach`.
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

    /// The number of impressions of an epoch on this path, up to a limit.
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

    /// A path that is about the shortest in an epoch. `None` if that is the last one, or if every
    /// path has more than `examined` impressions.
    ///
    /// All paths are counted in turn, up to a limit that grows step by step, and the first path
    /// below the limit is taken. So counting costs about as much as walking the shortest path.
    fn shortest(
        mut ways: Vec<Self>,
        connection: &Connection,
        epoch: EpochIndex,
        examined: i64,
    ) -> Result<Option<Self>, Problem> {
        let mut limit = 16;
        while ways.len() > 1 {
            // Counting one more than may be examined shows that a path is too long.
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

/// The impressions that a pair of a conversion site and a caller may measure, in the order of
/// attribution.
const REACHED: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM reach r CROSS JOIN impression i ON i.epoch = r.epoch AND i.seq = r.seq
     WHERE r.site = ?1 AND r.caller = ?2 AND r.epoch = ?3
     ORDER BY r.priority DESC, r.timestamp DESC, r.seq DESC"
);

/// Passes the first `most` impressions that a request may measure to `each`, in the order of
/// attribution. Stops early if `each` returns true.
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
        // All lists are read at the same time, so each needs its own statement. The comment makes
        // the texts differ, and the cache of statements finds each by its text.
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
    /// Finds the impressions of an epoch that are relevant to a query. It examines only those on a
    /// short path.
    pub(crate) fn find_relevant(
        &self,
        epoch: EpochIndex,
        query: &AttributionQuery,
        found: &mut Vec<Relevant<MatchedImpression>>,
    ) -> Result<(), Problem> {
        let connection = self.connection();
        let ReadLimits { examined, .. } = query.read_limits();
        let begin = found.len();
        let mut stop_rule = query.stop_rule();
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
            stop_rule.stops_at(&event)
        };
        match AccessPath::shortest(AccessPath::all(query), connection, epoch, examined.into())? {
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
            // One impression may be listed for two callers.
            found[begin..].sort_unstable_by_key(|event| event.order);
            found.dedup_by_key(|event| (event.epoch, event.order));
        }
        Ok(())
    }
}
