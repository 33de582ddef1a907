//! Random choices that are the same on every machine.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore as _, SeedableRng as _};

/// A source of random choices.
#[derive(Debug, Clone)]
pub(crate) struct SearchDice(ChaCha8Rng);

impl SearchDice {
    /// The choices of a seed and a name. Different names give independent choices.
    pub(crate) fn new(seed: u64, name: &str) -> Self {
        // FNV-1a, so that a name means the same everywhere.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8..16].copy_from_slice(&hash.to_le_bytes());
        Self(ChaCha8Rng::from_seed(key))
    }

    /// A number below `limit`, or 0 if the limit is 0.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        let number = u128::from(self.0.next_u64()) * limit as u128;
        usize::try_from(number >> 64).unwrap_or(0)
    }

    /// True with a probability of `percent` in a hundred.
    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// One of several things.
    pub(crate) fn pick<T: Clone>(&mut self, things: &[T]) -> T {
        things[self.below(things.len())].clone()
    }

    /// Any number.
    pub(crate) fn any(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A fraction in [0, 1).
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
    pub(crate) fn fraction(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }
}
