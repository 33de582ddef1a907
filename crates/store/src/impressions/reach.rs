//! The reach of impressions: the pairs that may measure them, and the pairs of a request.

use std::collections::BTreeSet;

use bigbird::{AttributionQuery, EpochIndex, Impression, Query as _, SiteId, Timestamp};
use rusqlite::Connection;

use crate::error::Problem;

/// A conversion site and a caller that may measure an impression, each a number or [`ANY`].
///
/// An impression has a row in `reach` for each pair. So a request finds everything that it may
/// measure under few keys, in the order of attribution.
pub(super) type ReachPair = (i64, i64);

/// Stands for any conversion site, or any caller.
const ANY: i64 = -1;

/// The pairs that may measure an impression.
pub(super) fn reach(impression: Impression<'_>) -> Vec<ReachPair> {
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

/// The pairs under which a request finds the impressions that it may measure. An impression can be
/// under more than one of them only if the request has several callers.
pub(super) fn reach_of_query(query: &AttributionQuery) -> Vec<ReachPair> {
    let site = i64::from(query.request().conversion_site.0);
    let named: BTreeSet<SiteId> = query.callers().iter().copied().collect();
    let callers = named.into_iter().map(|caller| i64::from(caller.0));
    let callers = std::iter::once(ANY).chain(callers);
    callers
        .flat_map(|caller| [(site, caller), (ANY, caller)])
        .collect()
}

/// A row of `reach`: the epoch, the pair, and the impression's priority, time and number, which
/// define the order of attribution.
pub(crate) type ReachRow = (EpochIndex, ReachPair, i32, Timestamp, u32);

/// Passes every row of `reach` to `each`.
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
