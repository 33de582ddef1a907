//! A hash that is the same in every run and on every machine. The order of the devices of a table
//! depends on it. It does not withstand input that is chosen to collide.

use std::hash::{BuildHasherDefault, Hasher};

/// A map with a fixed hash.
pub(crate) type FixedMap<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<Fixed>>;

/// A set with a fixed hash.
pub(crate) type FixedSet<K> = std::collections::HashSet<K, BuildHasherDefault<Fixed>>;

/// The hash of a text.
pub(crate) fn hash(text: &str) -> u64 {
    of_bytes(text.as_bytes())
}

/// The hash of some bytes.
pub(crate) fn of_bytes(bytes: &[u8]) -> u64 {
    absorb(0, bytes)
}

/// A hash that identifies a text: no two of four billion texts are likely to have the same.
pub(crate) fn wide_hash(text: &str) -> u128 {
    let high = absorb(MULTIPLIERS[1], text.as_bytes());
    u128::from(high) << 64 | u128::from(hash(text))
}

/// The state of the hash.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Fixed(u64);

impl Hasher for Fixed {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = absorb(self.0, bytes);
    }

    /// `str` writes a byte to mark its end. Lengths already serve that purpose here.
    fn write_u8(&mut self, byte: u8) {
        self.0 ^= u64::from(byte);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Odd numbers without a pattern, from the digits of π.
const MULTIPLIERS: [u64; 3] = [
    0x243f_6a88_85a3_08d3,
    0x1319_8a2e_0370_7345,
    0xa409_3822_299f_31d1,
];

fn absorb(seed: u64, bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut state = seed ^ (bytes.len() as u64).wrapping_mul(MULTIPLIERS[2]);
    for word in words {
        state = fold(state ^ u64::from_le_bytes(*word), MULTIPLIERS[0]);
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let state = fold(state ^ u64::from_le_bytes(last), MULTIPLIERS[1]);
    fold(state ^ seed, MULTIPLIERS[2])
}

/// The two halves of a product, combined so that every bit can affect every other.
#[expect(clippy::cast_possible_truncation, reason = "the lower half")]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product >> 64) as u64 ^ product as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// These values decide the partitions of a table, and with them the order of its devices.
    #[test]
    fn hashes_never_change() {
        assert_eq!(hash(""), VALUES[0]);
        assert_eq!(hash("device 1"), VALUES[1]);
        assert_eq!(hash("a longer name of a device"), VALUES[2]);
    }

    const VALUES: [u64; 3] = [0, 0xf9ae_dba3_8e09_72d9, 0x0904_7ff6_e3ab_3306];

    #[test]
    fn similar_names_spread_evenly() {
        let mut counts = [0; 16];
        let mut seen = FixedSet::default();
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
