//! Hashes that are the same in every run and on every machine: XXH3, as in the store. The order of
//! the devices of a table depends on them. They do not withstand input that is chosen to collide.
//!
//! Maps do not need such a hash, because nothing depends on their order. They have the fastest one.

use twox_hash::{XxHash3_64, XxHash3_128};

/// A map from numbers or short names.
pub(crate) type FastMap<K, V> = rustc_hash::FxHashMap<K, V>;

/// A set of numbers or short names.
pub(crate) type FastSet<K> = rustc_hash::FxHashSet<K>;

/// The hash of a text.
pub(crate) fn hash(text: &str) -> u64 {
    of_bytes(text.as_bytes())
}

/// The hash of some bytes.
pub(crate) fn of_bytes(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

/// The hash of some bytes that follow others, whose hash is the seed.
pub(crate) fn seeded(seed: u64, bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(seed, bytes)
}

/// A hash that identifies a text: no two of four billion texts are likely to have the same.
pub(crate) fn wide_hash(text: &str) -> u128 {
    XxHash3_128::oneshot(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// These values decide the partitions of a table, and with them the order of its devices. The
    /// first is published with the algorithm.
    #[test]
    fn hashes_never_change() {
        assert_eq!(hash(""), 0x2d06_8005_38d3_94c2);
        assert_eq!(hash("device 1"), VALUES[0]);
        assert_eq!(hash("a longer name of a device"), VALUES[1]);
    }

    const VALUES: [u64; 2] = [0x5f98_7cb2_d17c_4fef, 0x8f2c_fbfa_7cb5_07f1];

    #[test]
    fn similar_names_spread_evenly() {
        let mut counts = [0; 16];
        let mut seen = FastSet::default();
        for number in 0..16_000 {
            let name = number.to_string();
            counts[(hash(&name) >> 60) as usize] += 1;
            assert!(seen.insert(wide_hash(&name)));
        }
        for count in counts {
            assert!((800..1200).contains(&count), "{counts:?}");
        }
    }
}
