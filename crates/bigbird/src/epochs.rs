//! Per-epoch records. They are few and sorted, and the record of a forgotten epoch is reused.

use crate::EpochIndex;

/// A record that can be emptied and reused for another epoch, keeping its buffers.
pub(crate) trait Recycle: Default {
    fn recycle(&mut self);
}

/// The records of the epochs that are kept, in order. A device has only a few.
#[derive(Debug, Clone)]
pub(crate) struct Epochs<T> {
    /// The records in use, sorted, followed by those that wait for reuse.
    records: Vec<(EpochIndex, T)>,
    used: usize,
    first_kept: EpochIndex,
}

impl<T> Default for Epochs<T> {
    fn default() -> Self {
        Self {
            records: Vec::new(),
            used: 0,
            first_kept: EpochIndex(i64::MIN),
        }
    }
}

impl<T: Recycle> Epochs<T> {
    #[inline]
    pub(crate) fn get(&self, epoch: EpochIndex) -> Option<&T> {
        let at = self.find(epoch).ok()?;
        Some(&self.records[at].1)
    }

    /// The record of an epoch, created empty if there was none. `None` if the epoch was pruned.
    #[inline]
    pub(crate) fn get_or_create(&mut self, epoch: EpochIndex) -> Option<&mut T> {
        if epoch < self.first_kept {
            return None;
        }
        let at = match self.find(epoch) {
            Ok(at) => at,
            Err(at) => self.create(at, epoch),
        };
        Some(&mut self.records[at].1)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (EpochIndex, &T)> {
        let used = self.records[..self.used].iter();
        used.map(|(epoch, record)| (*epoch, record))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (EpochIndex, &mut T)> {
        let used = self.records[..self.used].iter_mut();
        used.map(|(epoch, record)| (*epoch, record))
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.iter_mut().map(|(_, record)| record)
    }

    /// The first epoch that has not been pruned.
    #[inline]
    pub(crate) fn first_kept(&self) -> EpochIndex {
        self.first_kept
    }

    /// Forgets the epochs before `epoch` for good: they cannot be created again.
    pub(crate) fn prune_before(&mut self, epoch: EpochIndex) {
        self.first_kept = self.first_kept.max(epoch);
        let used = &mut self.records[..self.used];
        let pruned = used.partition_point(|(index, _)| *index < epoch);
        used[..pruned]
            .iter_mut()
            .for_each(|(_, record)| record.recycle());
        used.rotate_left(pruned);
        self.used -= pruned;
    }

    /// Forgets everything, including which epochs were pruned, but keeps the buffers.
    pub(crate) fn reset(&mut self) {
        self.first_kept = EpochIndex(i64::MIN);
        self.values_mut().for_each(Recycle::recycle);
        self.used = 0;
    }

    fn create(&mut self, at: usize, epoch: EpochIndex) -> usize {
        match self.records.get_mut(self.used) {
            Some(record) => record.0 = epoch,
            None => self.records.push((epoch, T::default())),
        }
        self.used += 1;
        self.records[at..self.used].rotate_right(1);
        at
    }

    /// The position of an epoch, or the position at which it would be inserted. Most calls are
    /// about the newest epochs, so those are searched first.
    #[inline]
    fn find(&self, epoch: EpochIndex) -> Result<usize, usize> {
        let mut at = self.used;
        let far = at.saturating_sub(NEAR);
        while at > far {
            let found = self.records[at - 1].0;
            if found <= epoch {
                return if found == epoch { Ok(at - 1) } else { Err(at) };
            }
            at -= 1;
        }
        self.records[..far].binary_search_by_key(&epoch, |(index, _)| *index)
    }
}

/// The number of newest epochs that are searched one by one.
const NEAR: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    impl Recycle for Vec<i64> {
        fn recycle(&mut self) {
            self.clear();
        }
    }

    proptest! {
        /// Whatever is created, pruned and reset, the records are those of a plain map.
        #[test]
        fn holds_what_a_plain_map_holds(
            steps in prop::collection::vec((0..40_u8, -14..18_i64), 0..90),
        ) {
            let mut epochs: Epochs<Vec<i64>> = Epochs::default();
            let mut model: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
            let mut first = i64::MIN;
            for (what, epoch) in steps {
                match what {
                    0 => {
                        epochs.prune_before(EpochIndex(epoch));
                        first = first.max(epoch);
                        model.retain(|&other, _| other >= first);
                    }
                    1 => {
                        epochs.reset();
                        first = i64::MIN;
                        model.clear();
                    }
                    _ => match epochs.get_or_create(EpochIndex(epoch)) {
                        Some(record) => {
                            record.push(epoch);
                            model.entry(epoch).or_default().push(epoch);
                        }
                        None => prop_assert!(epoch < first),
                    },
                }
                let all: Vec<_> = epochs.iter().map(|(epoch, record)| (epoch.0, record)).collect();
                let expected: Vec<_> =
                    model.iter().map(|(epoch, record)| (*epoch, record)).collect();
                prop_assert_eq!(all, expected);
                for epoch in -14..18 {
                    prop_assert_eq!(epochs.get(EpochIndex(epoch)), model.get(&epoch));
                }
            }
        }
    }
}
