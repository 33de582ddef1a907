//! A snapshot of everything that a store holds, with names instead of site numbers.

use std::collections::{BTreeMap, BTreeSet};

use bigbird::{EpochIndex, Impression, SiteId};
use bigbird_user_agent::{ImpressionSelection, RowSet, Storage, View as _, ViewRow};

/// Everything that a store holds: of each epoch, and shared by all epochs.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct StoreLook {
    epochs: BTreeMap<i64, OfEpoch>,
    /// The user agent's state, the closed sites, and the part of every attribution object that must
    /// not depend on what was found: its conversion site, the epoch of its creation, and the scopes
    /// that were taken.
    shared: Vec<String>,
    /// The epochs in which each attribution object was paid for.
    paid: BTreeMap<u64, Vec<i64>>,
}

/// Everything that is stored, admitted and consumed in an epoch.
#[derive(Debug, Clone, Default, PartialEq)]
struct OfEpoch {
    stored: Vec<String>,
    admitted: BTreeSet<(u64, String)>,
    consumed: BTreeMap<String, u64>,
}

impl StoreLook {
    /// Everything except what concerns one epoch.
    pub(crate) fn elsewhere(mut self, changed: EpochIndex) -> Self {
        self.epochs.remove(&changed.0);
        for paid in self.paid.values_mut() {
            paid.retain(|epoch| *epoch != changed.0);
        }
        self.epochs
            .retain(|_, of_epoch| *of_epoch != OfEpoch::default());
        self
    }

    fn of(&mut self, epoch: EpochIndex) -> &mut OfEpoch {
        self.epochs.entry(epoch.0).or_default()
    }
}

/// Takes a snapshot of a store.
pub(crate) fn look<S: Storage>(storage: &mut S) -> StoreLook {
    let mut looked = StoreLook::default();
    let tx = storage.begin().unwrap();
    let mut names = BTreeMap::new();
    let each = |rows, visit: &mut dyn FnMut(ViewRow<'_>)| tx.visit(rows, visit).unwrap();
    each(RowSet::Names, &mut |row| {
        if let ViewRow::Name(id, site) = row {
            names.insert(id, site.to_string());
        }
    });
    let name = |id: &SiteId| names[id].clone();
    each(RowSet::Closings, &mut |row| {
        if let ViewRow::Closing(site, until) = row {
            let closed = format!("{} is closed until {}", name(&site), until.0);
            looked.shared.push(closed);
        }
    });
    looked.shared.sort();
    each(RowSet::Filters, &mut |row| {
        if let ViewRow::Filter(epoch, filter, consumed) = row {
            let filter = match filter.site() {
                Some(id) => format!("{} of {}", filter.kind(), name(&id)),
                None => format!("{filter:?}"),
            };
            let of_epoch = looked.of(epoch);
            of_epoch.consumed.insert(filter, consumed.get());
        }
    });
    each(RowSet::Admissions, &mut |row| {
        if let ViewRow::Admission(action, epoch, site) = row {
            let admitted = (action.0, name(&site));
            looked.of(epoch).admitted.insert(admitted);
        }
    });
    each(RowSet::Impressions(ImpressionSelection::All), &mut |row| {
        if let ViewRow::Impression(epoch, _, impression) = row {
            let stored = tell(&impression, &names);
            looked.of(epoch).stored.push(stored);
        }
    });
    looked.shared.push(format!("{:?}", tx.state().unwrap()));
    let mut objects = BTreeMap::new();
    each(RowSet::Objects, &mut |row| {
        if let ViewRow::Object(stored) = row {
            objects.insert(stored.number, stored.object.clone());
        }
    });
    for (number, object) in objects {
        let name = |id: &SiteId| names.get(id).cloned();
        let taken: Vec<_> = object
            .parts()
            .taken
            .iter()
            .map(|it| {
                let sites: BTreeSet<_> = it.impression_sites.iter().map(name).collect();
                let callers: BTreeSet<_> = it.impression_callers.iter().map(name).collect();
                (sites, callers, it.match_values.clone())
            })
            .collect();
        let paid = object.epochs().iter().map(|epoch| epoch.0).collect();
        looked.paid.insert(number, paid);
        let (created, site) = (object.created().0, &names[&object.conversion_site()]);
        looked.shared.push(format!(
            "object {number} of {site}, created in {created}, taken {taken:?}"
        ));
    }
    looked
}

fn tell(impression: &Impression<'_>, names: &BTreeMap<SiteId, String>) -> String {
    let name = |id: &SiteId| names.get(id).cloned().unwrap_or_default();
    let set = |list: &[SiteId]| list.iter().map(name).collect::<BTreeSet<_>>();
    format!(
        "{} {} {:?} {:?} {:?} {:?} {} {} {}",
        name(&impression.site),
        name(&impression.caller()),
        set(impression.conversion_sites),
        set(impression.conversion_callers),
        impression.user_action,
        impression.timestamp,
        impression.match_value,
        impression.histogram_index,
        impression.priority
    )
}
