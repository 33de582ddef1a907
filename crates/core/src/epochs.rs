//! Per-epoch records: few, sorted, and reused when an epoch is forgotten.

use crate::EpochIndex;

/// A record that can be emptied and used for another epoch, keeping its buffers.
pub(crate) trait Recycle: Default {
    fn recycle(&mut self);
}

/// The records of the epochs that are kept, in order. A device keeps a handful.
#[derive(Debug, Clone)]
pub(crate) struct Epochs<T> {
    live: Vec<(EpochIndex, T)>,
    spare: Vec<T>,
    first_kept: EpochIndex,
}

impl<T> Default for Epochs<T> {
    fn default() -> Self {
        Self {
            live: Vec::new(),
            spare: Vec::new(),
            first_kept: EpochIndex(i64::MIN),
        }
    }
}

impl<T: Recycle> Epochs<T> {
    pub(crate) fn get(&self, epoch: EpochIndex) -> Option<&T> {
        let at = self.find(epoch).ok()?;
        self.live.get(at).map(|(_, record)| record)
    }

    pub(crate) fn get_mut(&mut self, epoch: EpochIndex) -> Option<&mut T> {
        let at = self.find(epoch).ok()?;
        self.live.get_mut(at).map(|(_, record)| record)
    }

    /// The record of an epoch, empty if there was none; `None` if the epoch was pruned.
    pub(crate) fn get_or_create(&mut self, epoch: EpochIndex) -> Option<&mut T> {
        if epoch < self.first_kept {
            return None;
        }
        let at = self.find(epoch).unwrap_or_else(|at| {
            let record = self.spare.pop().unwrap_or_default();
            self.live.insert(at, (epoch, record));
            at
        });
        self.live.get_mut(at).map(|(_, record)| record)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (EpochIndex, &T)> {
        self.live.iter().map(|(epoch, record)| (*epoch, record))
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.live.iter_mut().map(|(_, record)| record)
    }

    /// The first epoch that has not been pruned.
    pub(crate) fn first_kept(&self) -> EpochIndex {
        self.first_kept
    }

    /// Forgets the epochs before `epoch`, for good: they can not be created again.
    pub(crate) fn prune_before(&mut self, epoch: EpochIndex) {
        self.first_kept = self.first_kept.max(epoch);
        let pruned = self.live.partition_point(|(index, _)| *index < epoch);
        self.recycle_first(pruned);
    }

    /// Forgets everything, as if new, but keeps the buffers.
    pub(crate) fn reset(&mut self) {
        self.first_kept = EpochIndex(i64::MIN);
        self.recycle_first(self.live.len());
    }

    fn recycle_first(&mut self, count: usize) {
        for (_, mut record) in self.live.drain(..count) {
            record.recycle();
            self.spare.push(record);
        }
    }

    /// Where an epoch is, or where it belongs. Most calls are about the newest epochs.
    fn find(&self, epoch: EpochIndex) -> Result<usize, usize> {
        for (at, (index, _)) in self.live.iter().enumerate().rev() {
            match index.cmp(&epoch) {
                std::cmp::Ordering::Equal => return Ok(at),
                std::cmp::Ordering::Less => return Err(at + 1),
                std::cmp::Ordering::Greater => {}
            }
        }
        Err(0)
    }
}
