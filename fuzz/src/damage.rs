//! Damage to a file: what disks, crashes and other programs do to bytes.

use arbitrary::{Result, Unstructured};

/// Damages bytes in up to eight places: anywhere, at the beginning of a block of `block` bytes
/// (where the pages of a file and the frames of a log say what they hold), or whole blocks.
pub fn damage(source: &mut Unstructured<'_>, bytes: &mut Vec<u8>, block: usize) -> Result<()> {
    for _ in 0..source.int_in_range(1..=8)? {
        if bytes.is_empty() {
            break;
        }
        let last = bytes.len() - 1;
        let blocks = last / block;
        let at = source.int_in_range(0..=last)?;
        let (from, to) = (
            source.int_in_range(0..=blocks)? * block,
            source.int_in_range(0..=blocks)? * block,
        );
        let length = block.min(bytes.len() - from).min(bytes.len() - to);
        match source.int_in_range(0..=9)? {
            0..=2 => bytes[at] ^= 1 << source.int_in_range(0..=7)?,
            3 => bytes[at] = source.arbitrary()?,
            4..=5 => {
                let at = last.min(from + source.int_in_range(0..=15)?);
                bytes[at] ^= 1 << source.int_in_range(0..=7)?;
            }
            6 => {
                let end = bytes.len().min(at + source.int_in_range(1..=64)?);
                bytes[at..end].fill(source.arbitrary()?);
            }
            7 => bytes.copy_within(from..from + length, to),
            8 => bytes[to..to + length].fill(0),
            _ => bytes.truncate(match source.arbitrary()? {
                true => at,
                false => from,
            }),
        }
    }
    Ok(())
}
