//! What a store holds, for people.

use std::collections::BTreeMap;
use std::path::Path;

use bigbird::{EpochIndex, SiteId, Timestamp};
use bigbird_user_agent::{Budget, Site, State};

use crate::error::{Problem, StoreError};
use crate::filters;
use crate::log;
use crate::store::{SqliteStore, StoreOptions};
use crate::transaction::SqliteTransaction;

/// What a store holds. It is as private as the history of a browser.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contents {
    /// The user agent's own state.
    pub state: State,
    /// The epochs that have impressions or filters, oldest first.
    pub epochs: Vec<EpochContents>,
    /// How many attribution objects are waiting for shares.
    pub objects: u64,
    /// Conversion sites that the user closed, and the last epoch in which they are.
    pub closed: Vec<(Site, EpochIndex)>,
    /// When the store was reset, and why.
    pub resets: Vec<(Timestamp, String)>,
    /// The size of the file and its write-ahead log, in bytes.
    pub bytes: u64,
}

/// What a store holds of an epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EpochContents {
    /// Which epoch, counted from the start of the device's epochs.
    pub epoch: EpochIndex,
    /// When it begins, if that is known.
    pub begins: Option<Timestamp>,
    /// Every filter that was charged.
    pub budgets: Vec<Budget>,
    /// How many impressions there are of each impression site, most first.
    pub impressions: Vec<(Site, u64)>,
}

impl Contents {
    /// Reads a store.
    ///
    /// # Errors
    /// If it cannot be used.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        let mut store = SqliteStore::open(path, &StoreOptions::default())?;
        let path = store.path().to_owned();
        let failed = |problem| StoreError::new(&path, problem);
        let transaction = SqliteTransaction::look(&mut store).map_err(failed)?;
        let budgets = Budget::all(&transaction)?;
        let mut contents = read(&transaction, budgets).map_err(failed)?;
        let size = |path: &Path| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
        contents.bytes = size(&path) + size(&log::path_of(&path));
        Ok(contents)
    }
}

fn read(tx: &SqliteTransaction<'_>, budgets: Vec<Budget>) -> Result<Contents, Problem> {
    let state = tx.device.state.clone();
    let connection = tx.connection();
    let name = |id: SiteId| -> Result<Site, Problem> {
        let site = tx.site_name(id)?;
        Ok(site.unwrap_or_else(|| Site::from_stored(format!("site {}", id.0))))
    };
    let mut epochs: BTreeMap<EpochIndex, EpochContents> = BTreeMap::new();
    let empty = |epoch| EpochContents {
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
    Ok(Contents {
        state,
        epochs: epochs.into_values().collect(),
        objects: objects.into(),
        closed,
        resets,
        bytes: 0,
    })
}
