//! Everything that a store holds, by names.

use std::collections::{BTreeMap, BTreeSet};

use bigbird::{EpochIndex, Filter, Impression, LedgerView as _, SiteId};
use bigbird_store::SqliteStore;
use bigbird_user_agent::{Memory, SharedConversion, State, Storage, Transaction};
use rusqlite::Connection;

use crate::common;

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

/// A store that can be looked into.
pub(crate) trait Look {
    fn look(&mut self) -> Looked;
}

/// What any store tells.
fn look_through<S: Storage>(storage: &mut S) -> (Looked, BTreeMap<SiteId, String>) {
    let mut looked = Looked::default();
    let tx = storage.begin().unwrap();
    let mut names = BTreeMap::new();
    for site in 0..crate::life::SITES {
        let site = format!("site-{site}.example");
        let parsed = bigbird_user_agent::Site::from_stored(site.clone());
        if let Some(id) = tx.find_site(&parsed).unwrap() {
            if let Some(until) = tx.closed_until(id).unwrap() {
                looked
                    .shared
                    .push(format!("{site} is closed until {}", until.0));
            }
            names.insert(id, site);
        }
    }
    for (epoch, filter, balance) in tx.filters().unwrap() {
        let name = match filter {
            Filter::Querier(id) | Filter::ImpressionSite(id) | Filter::ConversionSite(id) => {
                format!("{} of {}", filter.kind(), names[&id])
            }
            other => format!("{other:?}"),
        };
        looked
            .of(epoch)
            .consumed
            .insert(name, balance.consumed.get());
    }
    let state: State = tx.state().unwrap();
    looked.shared.push(format!("{state:?}"));
    looked
        .shared
        .push(format!("{:?}", tx.first_epoch().unwrap()));
    let mut objects = tx.objects().unwrap();
    objects.sort_unstable();
    for (number, site) in objects {
        let shared = SharedConversion(number.into());
        let object = tx.object(shared).unwrap().unwrap().object;
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
        let (created, site) = (object.created().0, &names[&site]);
        looked.shared.push(format!(
            "object {number} of {site}, created in {created}, taken {taken:?}"
        ));
    }
    (looked, names)
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

impl Look for Memory {
    fn look(&mut self) -> Looked {
        let (mut looked, names) = look_through(self);
        for epoch in self.impressions().epochs() {
            for impression in self.impressions().impressions(epoch) {
                looked.of(epoch).stored.push(tell(&impression, &names));
            }
        }
        for view in self.ledger().epochs() {
            for action in view.user_actions() {
                for site in view.admitted(action) {
                    let admitted = (action.0, names[&site].clone());
                    looked.of(view.epoch()).admitted.insert(admitted);
                }
            }
        }
        looked
    }
}

impl Look for SqliteStore {
    fn look(&mut self) -> Looked {
        let (mut looked, names) = look_through(self);
        let name = |id: u32| names[&SiteId(id)].clone();
        let connection = common::by_hand(self.path());
        each(
            &connection,
            "SELECT epoch, site, caller, match_value, histogram_index, priority, timestamp,
                    user_action, audience FROM impression ORDER BY epoch, seq",
            |row| {
                let audience: Vec<u8> = row.get(8)?;
                let words: Vec<u32> = words(&audience);
                let (sites, callers) = match words.split_first() {
                    Some((&count, rest)) => rest.split_at(count as usize),
                    None => (&[][..], &[][..]),
                };
                let ids = |list: &[u32]| list.iter().map(|id| SiteId(*id)).collect::<Vec<_>>();
                let (site, caller) = (SiteId(row.get(1)?), SiteId(row.get(2)?));
                let (sites, callers) = (ids(sites), ids(callers));
                let impression = Impression {
                    intermediary: (caller != site).then_some(caller),
                    match_value: row.get(3)?,
                    priority: row.get(5)?,
                    conversion_sites: &sites,
                    conversion_callers: &callers,
                    ..Impression::new(
                        site,
                        bigbird::UserAction(row.get::<_, i64>(7)?.cast_unsigned()),
                        bigbird::Timestamp(row.get(6)?),
                        row.get(4)?,
                    )
                };
                let of_epoch = looked.of(EpochIndex(row.get(0)?));
                of_epoch.stored.push(tell(&impression, &names));
                Ok(())
            },
        );
        each(
            &connection,
            "SELECT block, epoch, entries FROM admission",
            |row| {
                let first = row.get::<_, i64>(0)?.cast_unsigned().wrapping_mul(64);
                let entries: Vec<u8> = row.get(2)?;
                for entry in entries.chunks(5) {
                    let action = first.wrapping_add(entry[0].into());
                    let admitted = (action, name(words(&entry[1..])[0]));
                    looked.of(EpochIndex(row.get(1)?)).admitted.insert(admitted);
                }
                Ok(())
            },
        );
        looked
    }
}

fn words(bytes: &[u8]) -> Vec<u32> {
    let words = bytes.chunks(4);
    words
        .map(|word| u32::from_le_bytes(word.try_into().unwrap()))
        .collect()
}

fn each(
    connection: &Connection,
    sql: &str,
    mut row: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<()>,
) {
    let mut statement = connection.prepare(sql).unwrap();
    let mut rows = statement.query([]).unwrap();
    while let Some(found) = rows.next().unwrap() {
        row(found).unwrap();
    }
}
