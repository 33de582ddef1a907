//! Verifying a store: the ledger when it is opened, and everything when somebody asks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use bigbird::{Capacity, EpochIndex, Policies as _, Policy, SiteId};
use bigbird_user_agent::{Row, Rows, Selection};
use rusqlite::{Connection, ffi};

use crate::device::Device;
use crate::error::{Damage, Problem, StoreError};
use crate::seal::Digest;
use crate::store::{SqliteStore, StoreOptions, absolute};
use crate::transaction::SqliteTransaction;
use crate::{admissions, filters, impressions, objects, sites, vfs};

/// Verifies every row of the ledger, the digest over them, and that no filter or cap holds more
/// than it may.
pub(crate) fn ledger(connection: &Connection, device: &Device) -> Result<(), Problem> {
    let mut digest = Digest::default();
    let policy = |epoch| device.state.policy(epoch);
    // Rows of epochs that were pruned are harmless, and on their way out.
    let pruned = |epoch: EpochIndex| epoch < device.state.first_epoch;
    sites::scan(connection, None, usize::MAX, |_, _, seal| {
        digest.add(seal);
        Ok(())
    })?;
    filters::scan(connection, None, usize::MAX, |row, seal| {
        digest.add(seal);
        let policy = policy(row.epoch);
        let capacity = policy.map(|policy| policy.capacities().of(row.filter.kind()));
        let within = match capacity {
            Some(Capacity::Finite(capacity)) => row.consumed <= capacity,
            Some(Capacity::Unlimited) | None => false,
        };
        holds(within || pruned(row.epoch), || {
            let (kind, epoch) = (row.filter.kind(), row.epoch.0);
            format!(
                "the {kind} in epoch {epoch} has consumed {}, more than it may",
                row.consumed
            )
        })
    })?;
    admissions::scan(connection, None, usize::MAX, |block, seal| {
        digest.add(seal);
        let mut of_action: BTreeMap<_, u32> = BTreeMap::new();
        for (action, _) in block.entries() {
            *of_action.entry(action).or_default() += 1;
        }
        let cap = policy(block.epoch).and_then(Policy::domain_cap);
        let within = cap.is_some_and(|cap| of_action.values().all(|&sites| sites <= cap.get()));
        holds(within || pruned(block.epoch), || {
            format!(
                "a user action in epoch {} has more sites than it may",
                block.epoch.0
            )
        })
    })?;
    filters::scan_closed(connection, |_, _, seal| {
        digest.add(seal);
        Ok(())
    })?;
    objects::scan(connection, |_, seal| {
        digest.add(seal);
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

/// What a store that is in order holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Checked {
    /// Filters that were ever charged, in the epochs that are kept.
    pub filters: u64,
    /// Names of sites.
    pub sites: u64,
    /// Impressions.
    pub impressions: u64,
    /// Attribution objects.
    pub objects: u64,
}

/// Verifies everything about a store: the pages and how they fit together, every row, the digest,
/// every invariant, and that what leads to impressions leads to all of them and nowhere else.
///
/// # Errors
/// The first thing that is wrong.
pub fn check(path: impl AsRef<Path>) -> Result<Checked, StoreError> {
    let path = absolute(path.as_ref())?;
    check_at(&path).map_err(|problem| StoreError::new(&path, problem))
}

pub(crate) fn check_at(path: &Path) -> Result<Checked, Problem> {
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
    // SQLite tells only the number of what we said.
    if found.contains(&ffi::SQLITE_IOERR_DATA.to_string()) {
        return Err(Damage::Page.into());
    }
    Err(Damage::Structure(found.lines().collect::<Vec<_>>().join(", ")).into())
}

fn everything(transaction: &SqliteTransaction<'_>) -> Result<Checked, Problem> {
    let (connection, device) = (transaction.connection(), &transaction.device);
    ledger(connection, device)?;
    let mut checked = Checked::default();
    let (mut named, mut used) = (BTreeSet::new(), BTreeSet::new());
    for rows in [
        Rows::Names,
        Rows::Filters,
        Rows::Admissions,
        Rows::Closings,
        Rows::Objects,
        Rows::Impressions(Selection::All),
    ] {
        transaction.visit_rows(rows, None, usize::MAX, |row| {
            row.each_site(&mut |site| used.extend([site]));
            match row {
                Row::Name(id, _) => {
                    named.insert(id);
                }
                Row::Filter(..) => checked.filters += 1,
                Row::Object(_) => checked.objects += 1,
                Row::Impression(..) => checked.impressions += 1,
                Row::Admission(..) | Row::Closing(..) => {}
            }
        })?;
    }
    checked.sites = named.len() as u64;
    for site in used {
        holds(named.contains(&site), || {
            format!("site {} has no name", site.0)
        })?;
    }

    let mut reach = BTreeSet::new();
    let mut sizes: BTreeMap<EpochIndex, (i64, u32)> = BTreeMap::new();
    let mut of_sites: BTreeMap<(EpochIndex, SiteId), (i64, u32)> = BTreeMap::new();
    // Of epochs that were pruned some tables may be further on their way out than others.
    let first = device.state.first_epoch;
    let kept = Selection::From(first);
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
        "who may measure what is not as the impressions say".to_owned()
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
                "the impressions of epoch {} have {counted} units, not {count}",
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
                "the impressions of site {} in epoch {} are counted wrongly",
                site.0, epoch.0
            )
        })?;
    }
    holds(sizes.is_empty() && of_sites.is_empty(), || {
        "some impressions are not counted".to_owned()
    })?;
    Ok(checked)
}
