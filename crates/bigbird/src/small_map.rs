//! A map that is fast with few entries and still works with many.

use std::hash::{BuildHasher, Hash};

use hashbrown::HashTable;
use rustc_hash::FxBuildHasher;

/// Up to this many entries, comparing with each one is faster than hashing.
const SCANNED: usize = 16;

/// A map from small keys to small values, in insertion order.
///
/// Most devices have only a few filters in an epoch, and those are found by comparing with each
/// one. A device under attack has thousands. With more than [`SCANNED`] entries, a hash table
/// points into the entries. Clearing the map keeps the buffers, so that a simulation allocates
/// nothing once its buffers have grown.
#[derive(Debug, Clone)]
pub(crate) struct SmallMap<K, V> {
    entries: Vec<(K, V)>,
    index: HashTable<u32>,
}

impl<K, V> Default for SmallMap<K, V> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            index: HashTable::new(),
        }
    }
}

impl<K: Copy + Eq + Hash, V> SmallMap<K, V> {
    #[inline]
    pub(crate) fn get(&self, key: K) -> Option<&V> {
        self.position(key).map(|at| &self.entries[at].1)
    }

    /// The position of the value of `key`, and true if it is new. A new value is `default`.
    #[inline]
    pub(crate) fn entry(&mut self, key: K, default: V) -> (usize, bool) {
        if let Some(at) = self.position(key) {
            return (at, false);
        }
        let at = self.entries.len();
        self.push(key, default);
        (at, true)
    }

    /// Adds a key that the map does not have.
    #[inline]
    pub(crate) fn push(&mut self, key: K, value: V) {
        let at = self.entries.len();
        self.entries.push((key, value));
        if at >= SCANNED {
            self.index_newest();
        }
    }

    pub(crate) fn value_mut(&mut self, at: usize) -> &mut V {
        &mut self.entries[at].1
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter().map(|(key, value)| (key, value))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.index.clear();
    }

    #[inline]
    fn position(&self, key: K) -> Option<usize> {
        if self.entries.len() <= SCANNED {
            return self.entries.iter().position(|(other, _)| *other == key);
        }
        self.hashed_position(key)
    }

    #[inline(never)]
    fn hashed_position(&self, key: K) -> Option<usize> {
        self.index
            .find(hash(&key), |&at| self.entries[at as usize].0 == key)
            .map(|&at| at as usize)
    }

    #[cold]
    fn index_newest(&mut self) {
        let newest = self.entries.len() - 1;
        let first = if newest == SCANNED { 0 } else { newest };
        (first..=newest).for_each(|at| self.index_entry(at));
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "four billion entries in one epoch would not fit in memory"
    )]
    fn index_entry(&mut self, at: usize) {
        let entries = &self.entries;
        self.index
            .insert_unique(hash(&entries[at].0), at as u32, |&at| {
                hash(&entries[at as usize].0)
            });
    }
}

fn hash<K: Hash>(key: &K) -> u64 {
    FxBuildHasher.hash_one(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Whatever is inserted, the map answers like a plain map.
        #[test]
        fn answers_as_a_plain_map(keys in prop::collection::vec(0..60_u32, 0..200)) {
            let mut map = SmallMap::default();
            let mut model = BTreeMap::new();
            for key in keys {
                if !model.contains_key(&key) && key % 2 == 0 {
                    map.push(key, 1);
                    model.insert(key, 1);
                    continue;
                }
                let (at, new) = map.entry(key, 0_u32);
                *map.value_mut(at) += 1;
                prop_assert_eq!(new, !model.contains_key(&key));
                *model.entry(key).or_insert(0) += 1;
                for key in 0..60 {
                    prop_assert_eq!(map.get(key), model.get(&key));
                }
            }
        }
    }
}
