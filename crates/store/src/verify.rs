//! Verification: of the ledger when a store is opened, and of everything by [`check`].

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use bigbird::{Capacity, EpochIndex, Policies as _, Policy, SiteId};
use bigbird_user_agent::{ImpressionSelection, RowSet, ViewRow};
use rusqlite::{Connection, ffi};

use crate::checksum::LedgerDigest;
use crate::device::DeviceRow;
use crate::error::{Damage, Problem, StoreError};
use crate::store::{SqliteStore, StoreOptions, absolute};
use crate::transaction::SqliteTransaction;
use crate::{admissions, filters, impressions, objects, sites, vfs};

/// Verifies every row of the ledger, the digest over them, and that no filter exceeds its capacity
/// and no user action exceeds the domain cap.
pub(crate) fn ledger(connection: &Connection, device: &DeviceRow) -> Result<(), Problem> {
    let mut digest = LedgerDigest::default();
    let policy = |epoch| device.state.policy(epoch);
    // Rows of pruned epochs are harmless: nothing reads them, and upkeep removes them.
    let pruned = |epoch: EpochIndex| epoch < device.state.first_epoch;
    sites::scan(connection, None, usize::MAX, |_, _, guard| {
        digest.add(guard);
        Ok(())
    })?;
    filters::scan(connection, None, usize::MAX, |row, guard| {
        digest.add(guard);
        let policy = policy(row.epoch);
        let capacity = policy.map(|policy| policy.capacities().of(row.filter.kind()));
        let within = match capacity {
            Some(Capacity::Finite(capacity)) => row.consumed <= capacity,
            Some(Capacity::Unlimited) | None => false,
        };
        holds(within || pruned(row.epoch), || {
            let (kind, epoch) = (row.filter.kind(), row.epoch.0);
            format!(
                "the {kind} in epoch {epoch} has paid {}, more than its capacity",
                row.consumed
            )
        })
    })?;
    admissions::scan(connection, None, usize::MAX, |block, guard| {
        digest.add(guard);
        let mut of_action: BTreeMap<_, u32> = BTreeMap::new();
        for (action, _) in block.entries() {
            *of_action.entry(action).or_default() += 1;
        }
        let cap = policy(block.epoch).and_then(Policy::domain_cap);
        let within = cap.is_some_and(|cap| of_action.values().all(|&sites| sites <= cap.get()));
        holds(within || pruned(block.epoch), || {
            format!(
                "a user action in epoch {} involves more sites than the domain cap allows",
                block.epoch.0
            )
        })
    })?;
    filters::scan_closed(connection, |_, _, guard| {
        digest.add(guard);
        Ok(())
    })?;
    objects::scan(connection, |_, guard| {
        digest.add(guard);
        Ok(())
    })?;
    if digest != device.digest {
        return Err(Damage::Digest.into());
    }
    Ok(())
}

fn holds(condition: bool, what: impl FnOnce() -> String) -> Result<(), Problem> {
    match condition {
        true => Ok(()),
        false => Err(Damage::Invariant(what()).into()),
    }
}

/// The number of rows of each kind in a store that passed every check.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// The number of filters that were charged, in the epochs that are kept.
    pub filters: u64,
    /// The number of sites that have a name.
    pub sites: u64,
    /// The number of impressions.
    pub impressions: u64,
    /// The number of attribution objects.
    pub objects: u64,
    /// The number of entries of history.
    pub history: u64,
}

/// Verifies everything about a store: all pages and the structure they form, every row, the digest,
/// and every invariant. In particular, the lookup tables list every impression, and nothing that
/// does not exist.
///
/// # Errors
/// The first problem that was found.
pub fn check(path: impl AsRef<Path>) -> Result<CheckReport, StoreError> {
    let path = absolute(path.as_ref())?;
    check_at(&path).map_err(|problem| StoreError::new(&path, problem))
}

pub(crate) fn check_at(path: &Path) -> Result<CheckReport, Problem> {
    let mut store = SqliteStore::open_at(path, &StoreOptions::default())?;
    let transaction = SqliteTransaction::look(&mut store)?;
    structure(transaction.connection())?;
    everything(&transaction)
}

fn structure(connection: &Connection) -> Result<(), Problem> {
    vfs::take_read_failure();
    let found: String = connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
    if found == "ok" {
        return Ok(());
    }
    if vfs::take_read_failure() {
        return Err(Problem::unread());
    }
    // SQLite reports only the number of the error that our layer returned.
    if found.contains(&ffi::SQLITE_IOERR_DATA.to_string()) {
        return Err(Damage::Page.into());
    }
    Err(Damage::Structure(found.lines().collect::<Vec<_>>().join(", ")).into())
}

fn everything(transaction: &SqliteTransaction<'_>) -> Result<CheckReport, Problem> {
    let (connection, device) = (transaction.connection(), &transaction.device);
    ledger(connection, device)?;
    let mut checked = CheckReport::default();
    let (mut named, mut used) = (BTreeSet::new(), BTreeSet::new());
    for rows in [
        RowSet::Names,
        RowSet::Filters,
        RowSet::Admissions,
        RowSet::Closings,
        RowSet::Objects,
        RowSet::Impressions(ImpressionSelection::All),
        RowSet::History,
    ] {
        transaction.visit_rows(rows, None, usize::MAX, |row| {
            row.each_site(&mut |site| used.extend([site]));
            match row {
                ViewRow::Name(id, _) => {
                    named.insert(id);
                }
                ViewRow::Filter(..) => checked.filters += 1,
                ViewRow::Object(_) => checked.objects += 1,
                ViewRow::Impression(..) => checked.impressions += 1,
                ViewRow::History(_) => checked.history += 1,
                ViewRow::Admission(..) | ViewRow::Closing(..) | ViewRow::HistoryKey(_) => {}
            }
        })?;
    }
    checked.sites = named.len() as u64;
    for site in used {
        holds(named.contains(&site), || {
            format!("site {} is used but has no name", site.0)
        })?;
    }

    let mut reach = BTreeSet::new();
    let mut sizes: BTreeMap<EpochIndex, (i64, u32)> = BTreeMap::new();
    let mut of_sites: BTreeMap<(EpochIndex, SiteId), (i64, u32)> = BTreeMap::new();
    // Upkeep may have removed the rows of a pruned epoch from some of the tables already.
    let first = device.state.first_epoch;
    let kept = ImpressionSelection::From(first);
    impressions::scan(
        connection,
        kept,
        None,
        usize::MAX,
        |epoch, seq, impression| {
            reach.extend(impressions::reach_rows(epoch, seq, impression));
            let units = i64::from(impression.units());
            let size = sizes.entry(epoch).or_default();
            *size = (size.0 + units, seq);
            let of_site = of_sites.entry((epoch, impression.site)).or_insert((0, seq));
            of_site.0 += units;
            Ok(())
        },
    )?;
    let mut stored = BTreeSet::new();
    impressions::scan_reach(connection, |row| {
        if row.0 >= first {
            stored.insert(row);
        }
    })?;
    holds(stored == reach, || {
        "table `reach` does not match the impressions".to_owned()
    })?;
    let mut statement =
        connection.prepare("SELECT epoch, units, next_seq FROM epoch_size WHERE epoch >= ?")?;
    let mut rows = statement.query([first.0])?;
    while let Some(row) = rows.next()? {
        let (epoch, count, next): (_, i64, i64) =
            (EpochIndex(row.get(0)?), row.get(1)?, row.get(2)?);
        let (counted, last) = match sizes.remove(&epoch) {
            Some((counted, last)) => (counted, i64::from(last)),
            None => (0, -1),
        };
        holds(count == counted && next > last, || {
            format!(
                "table `epoch_size` is wrong for epoch {}: it has {count} units and next number \
                 {next}, but the impressions have {counted} units and last number {last}",
                epoch.0
            )
        })?;
    }
    let sql = "SELECT epoch, site, units, oldest FROM site_size WHERE epoch >= ?";
    let mut statement = connection.prepare(sql)?;
    let mut rows = statement.query([first.0])?;
    while let Some(row) = rows.next()? {
        let (epoch, site) = (EpochIndex(row.get(0)?), SiteId(row.get(1)?));
        let found = Some((row.get(2)?, row.get(3)?));
        holds(of_sites.remove(&(epoch, site)) == found, || {
            format!(
                "table `site_size` does not match the impressions of site {} in epoch {}",
                site.0, epoch.0
            )
        })?;
    }
    holds(sizes.is_empty() && of_sites.is_empty(), || {
        "tables `epoch_size` and `site_size` do not count all impressions".to_owned()
    })?;
    Ok(checked)
}
