//! A custom store: every row is in one JSON file, which each transaction replaces. The store
//! contains no rules. It only reads rows and writes change sets. It passes every vector.
//!
//! ```sh
//! cargo run -p bigbird-user-agent --example json_store
//! ```

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use bigbird::attribution::{MatchedImpression, SiteSize};
use bigbird::{
    AdmissionState, AttributionQuery, Check, EpochIndex, EventStore, Filter, LedgerView,
    MicroEpsilon, Query as _, Relevant, SiteId, UserAction,
};
use bigbird_conformance::{RunError, Tally, vectors};
use bigbird_user_agent::{
    ChangeSet, DeviceState, HistoryEntry, RowSet, SavedImpression, Site, Storage, StoredObject,
    Transaction, View, ViewRow,
};
use serde::{Deserialize, Serialize};

/// The content of the file.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Tables {
    state: DeviceState,
    names: Vec<(SiteId, Site)>,
    filters: Vec<(EpochIndex, Filter, MicroEpsilon)>,
    admissions: Vec<(UserAction, EpochIndex, SiteId)>,
    /// Each with its epoch and its place in the order of saving.
    impressions: Vec<(EpochIndex, u32, SavedImpression)>,
    closings: Vec<(SiteId, EpochIndex)>,
    objects: Vec<StoredObject>,
    history: Vec<HistoryEntry>,
    revision: u64,
}

impl Tables {
    fn of_epoch(&self, epoch: EpochIndex) -> impl Iterator<Item = (u32, &SavedImpression)> {
        let all = self.impressions.iter();
        all.filter_map(move |(other, order, saved)| (*other == epoch).then_some((*order, saved)))
    }
}

/// A store in a JSON file. One process at a time may use it.
pub(crate) struct JsonStore(pub(crate) PathBuf);

impl Storage for JsonStore {
    type Error = io::Error;
    type Transaction<'t> = JsonTransaction<'t>;

    /// Reads the tables. A file that cannot be read is an error: an empty store in its place would
    /// refund every budget.
    fn begin(&mut self) -> io::Result<JsonTransaction<'_>> {
        let tables = match fs::read(&self.0) {
            Ok(bytes) => serde_json::from_slice(&bytes)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Tables::default(),
            Err(error) => return Err(error),
        };
        Ok(JsonTransaction(&self.0, tables))
    }
}

/// A transaction: the path of the file, and the tables with the changes so far.
pub(crate) struct JsonTransaction<'t>(&'t Path, Tables);

impl LedgerView for JsonTransaction<'_> {
    type Error = io::Error;

    fn consumed(&self, epoch: EpochIndex, checks: &mut [Check]) -> io::Result<()> {
        for check in checks {
            let mut filters = self.1.filters.iter();
            let row = filters.find(|row| (row.0, row.1) == (epoch, check.filter));
            check.balance.consumed = row.map_or(MicroEpsilon::ZERO, |row| row.2);
        }
        Ok(())
    }

    fn admitted(
        &self,
        of: UserAction,
        epoch: EpochIndex,
        site: SiteId,
    ) -> io::Result<AdmissionState> {
        let rows = self.1.admissions.iter();
        let sites = rows.filter(|row| (row.0, row.1) == (of, epoch));
        let sites: Vec<SiteId> = sites.map(|row| row.2).collect();
        Ok(AdmissionState {
            admitted: sites.contains(&site),
            sites: u32::try_from(sites.len()).unwrap_or(u32::MAX),
        })
    }
}

impl EventStore<AttributionQuery> for JsonTransaction<'_> {
    type Error = io::Error;

    fn find(
        &self,
        epoch: EpochIndex,
        query: &AttributionQuery,
        found: &mut Vec<Relevant<MatchedImpression>>,
    ) -> io::Result<()> {
        for (order, saved) in self.1.of_epoch(epoch) {
            if let Some(detail) = query.relevant(saved.impression()) {
                found.push(Relevant {
                    epoch,
                    order,
                    site: saved.site,
                    user_action: saved.user_action,
                    detail,
                });
            }
        }
        Ok(())
    }
}

impl View<io::Error> for JsonTransaction<'_> {
    fn state(&self) -> io::Result<DeviceState> {
        Ok(self.1.state.clone())
    }

    fn visit(&self, rows: RowSet, visit: &mut dyn FnMut(ViewRow<'_>)) -> io::Result<()> {
        let all = &self.1;
        match rows {
            RowSet::Names => all
                .names
                .iter()
                .for_each(|(id, it)| visit(ViewRow::Name(*id, it))),
            RowSet::Filters => all
                .filters
                .iter()
                .for_each(|it| visit(ViewRow::Filter(it.0, it.1, it.2))),
            RowSet::Admissions => {
                let rows = all.admissions.iter();
                rows.for_each(|it| visit(ViewRow::Admission(it.0, it.1, it.2)));
            }
            RowSet::Closings => all
                .closings
                .iter()
                .for_each(|it| visit(ViewRow::Closing(it.0, it.1))),
            RowSet::Objects => all.objects.iter().for_each(|it| visit(ViewRow::Object(it))),
            RowSet::Impressions(_) => {
                let rows = all.impressions.iter();
                rows.for_each(|it| visit(ViewRow::Impression(it.0, it.1, it.2.impression())));
            }
            RowSet::History => all
                .history
                .iter()
                .for_each(|it| visit(ViewRow::History(it))),
            RowSet::HistoryKeys => {
                let rows = all.history.iter();
                rows.for_each(|it| visit(ViewRow::HistoryKey(it.key())));
            }
        }
        Ok(())
    }

    fn site_id(&self, site: &Site) -> io::Result<Option<SiteId>> {
        let mut names = self.1.names.iter();
        Ok(names.find(|row| row.1 == *site).map(|row| row.0))
    }

    fn revision(&self) -> io::Result<u64> {
        Ok(self.1.revision)
    }

    fn units(&self, epoch: EpochIndex) -> io::Result<u32> {
        let of_epoch = self.1.of_epoch(epoch);
        Ok(of_epoch.map(|(_, saved)| saved.impression().units()).sum())
    }

    fn largest_site(&self, epoch: EpochIndex) -> io::Result<Option<SiteSize>> {
        let mut sizes: BTreeMap<SiteId, SiteSize> = BTreeMap::new();
        for (oldest, saved) in self.1.of_epoch(epoch) {
            let before = sizes.get(&saved.site).copied();
            let new = SiteSize {
                units: before.map_or(0, |size| size.units) + saved.impression().units(),
                oldest: before.map_or(oldest, |size| size.oldest),
            };
            sizes.insert(saved.site, new);
        }
        Ok(sizes.into_values().max())
    }
}

impl Transaction<io::Error> for JsonTransaction<'_> {
    fn apply(&mut self, changes: &ChangeSet) -> io::Result<()> {
        let all = &mut self.1;
        all.state = changes.state.clone().unwrap_or(all.state.clone());
        all.names.extend(changes.named.iter().cloned());
        for charge in &changes.ledger.charges {
            let key = (charge.epoch, charge.filter);
            match all.filters.iter_mut().find(|row| (row.0, row.1) == key) {
                Some(row) => row.2 += charge.amount,
                None => all.filters.push((key.0, key.1, charge.amount)),
            }
        }
        let admissions = changes.ledger.admissions.iter();
        all.admissions
            .extend(admissions.map(|it| (it.user_action, it.epoch, it.site)));
        for saved in &changes.saved {
            let order = all.of_epoch(saved.epoch).last().map_or(0, |it| it.0 + 1);
            all.impressions.push((saved.epoch, order, saved.clone()));
        }
        for edit in &changes.edited {
            let at = |row: &(EpochIndex, u32, _)| (row.0, row.1) == (edit.epoch, edit.order);
            match &edit.audience {
                None => all.impressions.retain(|row| !at(row)),
                Some(audience) => {
                    let edited = all.impressions.iter_mut().find(|row| at(row));
                    edited
                        .into_iter()
                        .for_each(|row| row.2.audience = audience.clone());
                }
            }
        }
        for closing in &changes.closed {
            all.closings.retain(|row| row.0 != closing.0);
            all.closings.push(*closing);
        }
        for stored in &changes.objects {
            let same =
                |old: &StoredObject| old.number == stored.number || old.shared == stored.shared;
            all.objects.retain(|old| !same(old));
            all.objects.push(stored.clone());
        }
        let dropped = &changes.dropped_objects;
        all.objects
            .retain(|stored| !dropped.contains(&stored.number));
        all.history.extend(changes.recorded.iter().cloned());
        all.history.retain(|entry| {
            !changes.history_cleared && !changes.unrecorded.contains(&entry.number)
        });
        if let Some(gone) = changes.forgotten {
            all.history.retain(|entry| entry.epoch >= gone.history);
            all.filters.retain(|row| row.0 >= gone.pruned);
            all.admissions.retain(|row| row.1 >= gone.unreachable);
            all.impressions.retain(|row| row.0 >= gone.unreachable);
            all.closings.retain(|row| row.1 >= gone.pruned);
            all.objects
                .retain(|stored| stored.object.created() >= gone.pruned);
        }
        all.names.retain(|row| !changes.unnamed.contains(&row.0));
        Ok(())
    }

    /// Writes and flushes a new file, and replaces the old one with the new one.
    fn commit(mut self) -> io::Result<()> {
        self.1.revision += 1;
        let new = self.0.with_extension("new");
        let mut file = File::create(&new)?;
        file.write_all(&serde_json::to_vec(&self.1)?)?;
        file.sync_all()?;
        fs::rename(&new, self.0)
    }
}

fn main() -> Result<(), RunError> {
    let path = std::env::temp_dir().join(format!("bigbird-{}.json", std::process::id()));
    let tally = Tally::of(&vectors(), |case| {
        let played = case.run_on(None, || Ok(JsonStore(path.clone())));
        let _ = fs::remove_file(&path);
        played
    })?;
    print!("{tally}");
    Ok(())
}
