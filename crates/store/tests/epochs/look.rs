//! Everything that a store holds, by names.

use std::collections::{BTreeMap, BTreeSet};

use bigbird::{EpochIndex, Impression, SiteId};
use bigbird_user_agent::{Row, Rows, Selection, Storage, View as _};

/// What a store holds of one epoch, and what its epochs share.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Looked {
    epochs: BTreeMap<i64, OfEpoch>,
    /// The user agent's state, the first epoch that is kept, sites that are closed, and of every
    /// attribution object what must not depend on what was found: who it is for, when it was
    /// created, and what was taken.
    shared: Vec<String>,
    /// The epochs in which each attribution object was paid for.
    paid: BTreeMap<u64, Vec<i64>>,
}

/// What is stored, admitted and consumed in an epoch.
#[derive(Debug, Clone, Default, PartialEq)]
struct OfEpoch {
    stored: Vec<String>,
    admitted: BTreeSet<(u64, String)>,
    consumed: BTreeMap<String, u64>,
}

impl Looked {
    /// All but what is in an epoch.
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

/// Everything that a store holds.
pub(crate) fn look<S: Storage>(storage: &mut S) -> Looked {
    let mut looked = Looked::default();
    let tx = storage.begin().unwrap();
    let mut names = BTreeMap::new();
    let each = |rows, visit: &mut dyn FnMut(Row<'_>)| tx.visit(rows, visit).unwrap();
    each(Rows::Names, &mut |row| {
        if let Row::Name(id, site) = row {
            names.insert(id, site.to_string());
        }
    });
    let name = |id: &SiteId| names[id].clone();
    each(Rows::Closings, &mut |row| {
        if let Row::Closing(site, until) = row {
            let closed = format!("{} is closed until {}", name(&site), until.0);
            looked.shared.push(closed);
        }
    });
    looked.shared.sort();
    each(Rows::Filters, &mut |row| {
        if let Row::Filter(epoch, filter, consumed) = row {
            let filter = match filter.site() {
                Some(id) => format!("{} of {}", filter.kind(), name(&id)),
                None => format!("{filter:?}"),
            };
            let of_epoch = looked.of(epoch);
            of_epoch.consumed.insert(filter, consumed.get());
        }
    });
    each(Rows::Admissions, &mut |row| {
        if let Row::Admission(action, epoch, site) = row {
            let admitted = (action.0, name(&site));
            looked.of(epoch).admitted.insert(admitted);
        }
    });
    each(Rows::Impressions(Selection::All), &mut |row| {
        if let Row::Impression(epoch, _, impression) = row {
            let stored = tell(&impression, &names);
            looked.of(epoch).stored.push(stored);
        }
    });
    looked.shared.push(format!("{:?}", tx.state().unwrap()));
    let mut objects = BTreeMap::new();
    each(Rows::Objects, &mut |row| {
        if let Row::Object(stored) = row {
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
