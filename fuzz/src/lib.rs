//! What the fuzz targets share: how they turn bytes into choices, how they damage files, and where
//! they put them.

mod damage;
mod scratch;

pub use damage::damage;
pub use scratch::FuzzFolder;

use arbitrary::{Arbitrary, Result, Unstructured};

/// True once in `n` times. Input that has ended says no.
pub fn one_in(source: &mut Unstructured<'_>, n: u8) -> Result<bool> {
    Ok(source.int_in_range(0..=n - 1)? == n - 1)
}

/// Nothing more often than not, else a few of the items.
pub fn some_of<T: Clone>(source: &mut Unstructured<'_>, items: &[T]) -> Result<Vec<T>> {
    let picked = u8::arbitrary(source)?;
    if picked & 1 == 0 {
        return Ok(Vec::new());
    }
    let bits = (1..8).cycle().map(|bit| picked >> bit & 1 == 1);
    let chosen = items.iter().zip(bits).filter(|(_, chosen)| *chosen);
    Ok(chosen.map(|(item, _)| item.clone()).collect())
}

/// Many bytes from a few, always the same: a short input can ask for a long history.
pub fn stretch(seed: u16, length: usize) -> Vec<u8> {
    let mut state = u64::from(seed) << 1 | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[2]
    };
    std::iter::repeat_with(next).take(length).collect()
}
