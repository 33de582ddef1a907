//! A summary of what a store holds, for people to read.

use std::collections::BTreeMap;
use std::path::Path;

use bigbird::{EpochIndex, SiteId, Timestamp};
use bigbird_user_agent::{DeviceState, FilterBalance, Site};

use crate::error::{Problem, StoreError};
use crate::filters;
use crate::log;
use crate::store::{SqliteStore, StoreOptions};
use crate::transaction::SqliteTransaction;

/// A summary of what a store holds. It is as sensitive as a
/// browser's history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreSummary {
    /// The user agent's own state.
    pub state: DeviceState,
    /// The epochs that have impressions or filters, oldest first.
    pub epochs: Vec<EpochSummary>,
    /// The number of attribution objects, of which shares can still be taken.
    pub objects: u64,
    /// Conversion sites that the user closed, each with the last epoch for which it is closed.
    pub closed: Vec<(Site, EpochIndex)>,
    /// The time of each reset of the store, and its reason.
    pub resets: Vec<(Timestamp, String)>,
    /// The size of the file together with its write-ahead log, in bytes.
    pub bytes: u64,
}

/// A summary of one epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EpochSummary {
    /// The index of the epoch, counted from the start of the device's epochs.
    pub epoch: EpochIndex,
    /// The time at which the epoch begins, if it is known.
    pub begins: Option<Timestamp>,
    /// Every filter that was charged.
    pub budgets: Vec<FilterBalance>,
    /// The number of impressions of each impression site, largest first.
    pub impressions: Vec<(Site, u64)>,
}

impl StoreSummary {
    /// Reads the summary of a store.
    ///
    /// # Errors
    /// If the store cannot be used.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        let mut store = SqliteStore::open(path, &StoreOptions::default())?;
        let path = store.path().to_owned();
        let failed = |problem| StoreError::new(&path, problem);
        let transaction = SqliteTransaction::look(&mut store).map_err(failed)?;
        let budgets = FilterBalance::all(&transaction)?;
        let mut contents = read(&transaction, budgets).map_err(failed)?;
        let size = |path: &Path| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
        contents.bytes = size(&path) + size(&log::path_of(&path));
        Ok(contents)
    }
}

fn read(tx: &SqliteTransaction<'_>, budgets: Vec<FilterBalance>) -> Result<StoreSummary, Problem> {
    let state = tx.device.state.clone();
    let connection = tx.connection();
    let name = |id: SiteId| -> Result<Site, Problem> {
        let site = tx.site_name(id)?;
        Ok(site.unwrap_or_else(|| Site::from_stored(format!("site {}", id.0))))
    };
    let mut epochs: BTreeMap<EpochIndex, EpochSummary> = BTreeMap::new();
    let empty = |epoch| EpochSummary {
        epoch,
        begins: state.timeline.beginning(epoch),
        budgets: Vec::new(),
        impressions: Vec::new(),
    };
    for budget in budgets {
        let epoch = EpochIndex(budget.epoch);
        let of_epoch = epochs.entry(epoch).or_insert_with(|| empty(epoch));
        of_epoch.budgets.push(budget);
    }
    let mut statement = connection.prepare(
        "SELECT s.epoch, s.site,
             (SELECT count(*) FROM impression i WHERE i.site = s.site AND i.epoch = s.epoch) AS own
         FROM site_size s WHERE s.epoch >= ? ORDER BY s.epoch, own DESC, s.oldest",
    )?;
    let mut rows = statement.query([state.first_epoch.0])?;
    while let Some(row) = rows.next()? {
        let (epoch, site) = (EpochIndex(row.get(0)?), name(SiteId(row.get(1)?))?);
        let of_epoch = epochs.entry(epoch).or_insert_with(|| empty(epoch));
        of_epoch
            .impressions
            .push((site, row.get::<_, u32>(2)?.into()));
    }
    let mut closed = Vec::new();
    filters::scan_closed(connection, |site, until, _| {
        closed.push((name(site)?, until));
        Ok(())
    })?;
    closed.sort();
    let objects: u32 = connection.query_row("SELECT count(*) FROM object", [], |row| row.get(0))?;
    let mut statement = connection.prepare("SELECT at, reason FROM reset ORDER BY at")?;
    let resets = statement
        .query_map([], |row| Ok((Timestamp(row.get(0)?), row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    Ok(StoreSummary {
        state,
        epochs: epochs.into_values().collect(),
        objects: objects.into(),
        closed,
        resets,
        bytes: 0,
    })
}
