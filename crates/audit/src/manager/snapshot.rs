//! Snapshots of everything that a manager stores, by epoch, and their comparison.

use std::collections::{BTreeMap, BTreeSet};

use bigbird::FilterKind;

use crate::script::SiteNumber;

/// A filter: its kind and the number of its site or user action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FilterId {
    /// The kind.
    pub kind: FilterKind,
    /// The site or user action it belongs to. 0 for the global budget.
    pub of: u64,
}

/// Everything that a manager stores.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WorldSnapshot {
    /// The contents of each epoch.
    pub epochs: BTreeMap<i64, EpochSnapshot>,
    /// Numbers that all epochs share, with their names.
    pub shared: Vec<(&'static str, i64)>,
    /// The attribution objects by number, without what is in them.
    pub objects: BTreeMap<u64, ObjectSnapshot>,
}

/// Everything that is stored, admitted and consumed in an epoch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EpochSnapshot {
    /// The impressions, in the order of saving.
    pub stored: Vec<StoredImpression>,
    /// The sites that each user action admitted.
    pub admitted: BTreeSet<(u64, SiteNumber)>,
    /// The amount that each filter has consumed, in µε. A filter that consumed nothing is left out.
    pub consumed: BTreeMap<FilterId, u64>,
    /// The attribution objects that the epoch paid for.
    pub objects: BTreeSet<u64>,
}

/// A stored impression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredImpression {
    /// The site where it was shown.
    pub site: SiteNumber,
    /// The site that saved it.
    pub caller: SiteNumber,
    /// The user action.
    pub action: u64,
    /// The moment at which it was saved.
    pub timestamp: i64,
    /// The last moment at which it can match.
    pub expires: i64,
    /// The bucket, match value and priority.
    pub numbers: (u32, u32, i32),
    /// The conversion sites and callers that may measure it.
    pub audience: (BTreeSet<SiteNumber>, BTreeSet<SiteNumber>),
}

/// The parts of an attribution object that may not depend on what was found: not its credit, and
/// not the epochs that paid for it, which [`EpochSnapshot::objects`] has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectSnapshot {
    /// The conversion site.
    pub site: SiteNumber,
    /// The epoch in which it was created.
    pub created: i64,
    /// The number of shares that were taken.
    pub taken: usize,
}

/// A difference between two worlds outside epoch x.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SnapshotDifference {
    /// A filter consumed different amounts.
    Filter {
        /// The epoch.
        epoch: i64,
        /// The filter.
        filter: FilterId,
        /// The amounts in µε, in worlds 0 and 1.
        consumed: [u64; 2],
    },
    /// Different impressions are stored.
    Stored {
        /// The epoch.
        epoch: i64,
    },
    /// Different sites are admitted.
    Admitted {
        /// The epoch.
        epoch: i64,
    },
    /// A number that all epochs share differs.
    Shared {
        /// The name of the number.
        name: &'static str,
        /// The number in worlds 0 and 1, if there is one.
        values: [Option<i64>; 2],
    },
    /// Attribution objects differ, or an epoch paid for different ones.
    Objects,
}

impl WorldSnapshot {
    /// Everything that differs from the snapshot of world 1 outside epoch `x`. This snapshot is the
    /// one of world 0.
    pub fn differences(&self, one: &Self, x: i64) -> Vec<SnapshotDifference> {
        let mut found = Vec::new();
        let empty = EpochSnapshot::default();
        let epochs: BTreeSet<i64> = self
            .epochs
            .keys()
            .chain(one.epochs.keys())
            .copied()
            .collect();
        for epoch in epochs.into_iter().filter(|epoch| *epoch != x) {
            let of = |snapshot: &'_ Self| snapshot.epochs.get(&epoch).cloned();
            let (zero, one) = match (self.epochs.get(&epoch), one.epochs.get(&epoch)) {
                (Some(zero), Some(other)) if zero == other => continue,
                _ => (
                    of(self).unwrap_or_else(|| empty.clone()),
                    of(one).unwrap_or_else(|| empty.clone()),
                ),
            };
            if zero.stored != one.stored {
                found.push(SnapshotDifference::Stored { epoch });
            }
            if zero.admitted != one.admitted {
                found.push(SnapshotDifference::Admitted { epoch });
            }
            if zero.objects != one.objects {
                found.push(SnapshotDifference::Objects);
            }
            let filters: BTreeSet<_> = zero.consumed.keys().chain(one.consumed.keys()).collect();
            for &filter in filters {
                let consumed = [&zero, &one].map(|it| it.consumed.get(&filter).copied());
                let consumed = consumed.map(|it| it.unwrap_or(0));
                if consumed[0] != consumed[1] {
                    found.push(SnapshotDifference::Filter {
                        epoch,
                        filter,
                        consumed,
                    });
                }
            }
        }
        if self.shared != one.shared {
            let mut zeros = self.shared.iter();
            let mut ones = one.shared.iter();
            loop {
                let values = [zeros.next(), ones.next()];
                let Some((name, _)) = values[0].or(values[1]) else {
                    break;
                };
                if values[0] != values[1] {
                    let values = values.map(|it| it.map(|(_, value)| *value));
                    found.push(SnapshotDifference::Shared { name, values });
                }
            }
        }
        if self.objects != one.objects {
            found.push(SnapshotDifference::Objects);
        }
        found
    }
}
