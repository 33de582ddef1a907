//! Rows in the order of time, in bounded memory: sorted runs in temporary files, which are merged.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};

use super::ExplainError;

/// The number that stands for no amount.
pub(super) const NO_VALUE: u64 = u64::MAX;

/// The number that stands for no site.
pub(super) const NO_SITE: u32 = u32::MAX;

/// A row as numbers. Rows are sorted by all of their fields, so their order does not depend on
/// where they come from: the time comes first, then the place in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CompactRow {
    pub(super) minute: u32,
    pub(super) order: u32,
    pub(super) device: u32,
    /// The number of the querier among conversion sites.
    pub(super) querier: u32,
    /// Its number among queriers.
    pub(super) querier_number: u32,
    pub(super) epoch: u16,
    pub(super) value: u32,
    /// `u16::MAX` stands for none, here and in `full`.
    pub(super) bucket: u16,
    pub(super) full: u16,
    pub(super) outcome: u8,
    pub(super) lost: u32,
    /// The number of the limit among the five. A larger number stands for none.
    pub(super) cause: u8,
    pub(super) dropped_epoch: u64,
    pub(super) filter_site: u32,
    pub(super) asked: u64,
    pub(super) consumed: u64,
    pub(super) capacity: u64,
    pub(super) missing: u64,
    pub(super) largest_epsilon: u64,
}

/// Writes a struct of integers as bytes, and reads it back.
macro_rules! packed {
    ($row:ident { $($field:ident: $kind:ty),* $(,)? }) => {
        impl $row {
            /// The bytes of a row.
            const BYTES: usize = 0 $(+ size_of::<$kind>())*;

            fn pack(&self, to: &mut Vec<u8>) {
                $(to.extend_from_slice(&self.$field.to_le_bytes());)*
            }

            fn unpack(mut from: &[u8]) -> Option<Self> {
                Some(Self {
                    $($field: {
                        let (bytes, rest) = from.split_first_chunk()?;
                        from = rest;
                        <$kind>::from_le_bytes(*bytes)
                    },)*
                })
                .filter(|_| from.is_empty())
            }
        }
    };
}

packed!(CompactRow {
    minute: u32,
    order: u32,
    device: u32,
    querier: u32,
    querier_number: u32,
    epoch: u16,
    value: u32,
    bucket: u16,
    full: u16,
    outcome: u8,
    lost: u32,
    cause: u8,
    dropped_epoch: u64,
    filter_site: u32,
    asked: u64,
    consumed: u64,
    capacity: u64,
    missing: u64,
    largest_epsilon: u64,
});

/// Rows that are being collected. At most [`RUN`] of them are in memory.
#[derive(Debug, Default)]
pub(super) struct RowSorter {
    rows: Vec<CompactRow>,
    /// A file without a name, with sorted runs one after the other.
    file: Option<File>,
    /// The place of each run in the file, in bytes, and its number of rows.
    runs: Vec<(u64, usize)>,
    failed: Option<io::Error>,
}

/// The most rows that a sorter keeps in memory.
const RUN: usize = 1 << 17;

/// The rows of a run that are read at once when runs are merged.
const BLOCK: usize = 256;

impl RowSorter {
    /// Takes a row. A failure is told when the rows are merged.
    pub(super) fn push(&mut self, row: CompactRow) {
        self.rows.push(row);
        if self.rows.len() >= RUN && self.failed.is_none() {
            self.failed = self.spill().err();
        }
        if self.failed.is_some() {
            self.rows.clear();
        }
    }

    /// Writes the rows in memory as a run.
    fn spill(&mut self) -> io::Result<()> {
        self.rows.sort_unstable();
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(tempfile::tempfile()?),
        };
        let begin = file.seek(SeekFrom::End(0))?;
        self.runs.push((begin, self.rows.len()));
        let mut bytes = Vec::with_capacity(BLOCK * CompactRow::BYTES);
        for rows in self.rows.chunks(BLOCK) {
            bytes.clear();
            rows.iter().for_each(|row| row.pack(&mut bytes));
            file.write_all(&bytes)?;
        }
        self.rows.clear();
        Ok(())
    }
}

/// A sorted run that is being read.
struct SortedRun {
    /// The number of its sorter.
    sorter: usize,
    /// The place of the next block in the file, and the number of rows that are left there.
    next: (u64, usize),
    /// The rows that were read, the last one first.
    waiting: Vec<CompactRow>,
}

impl SortedRun {
    /// The next row.
    fn next(&mut self, files: &[Option<File>]) -> io::Result<Option<CompactRow>> {
        let (place, left) = self.next;
        if self.waiting.is_empty()
            && left > 0
            && let Some(mut file) = files[self.sorter].as_ref()
        {
            let count = left.min(BLOCK);
            let mut bytes = vec![0; count * CompactRow::BYTES];
            file.seek(SeekFrom::Start(place))?;
            file.read_exact(&mut bytes)?;
            self.next = (place + bytes.len() as u64, left - count);
            let rows = bytes.chunks_exact(CompactRow::BYTES).rev();
            self.waiting.extend(rows.filter_map(CompactRow::unpack));
        }
        Ok(self.waiting.pop())
    }
}

/// Gives the rows of all sorters to `take`, in order.
pub(super) fn merge(
    mut sorters: Vec<RowSorter>,
    mut take: impl FnMut(&CompactRow) -> Result<(), ExplainError>,
) -> Result<(), ExplainError> {
    let temporary = |cause| ExplainError::Temporary {
        folder: std::env::temp_dir().display().to_string(),
        cause,
    };
    let mut runs = Vec::new();
    let mut files = Vec::new();
    for (number, sorter) in sorters.iter_mut().enumerate() {
        if let Some(cause) = sorter.failed.take() {
            return Err(temporary(cause));
        }
        sorter.rows.sort_unstable_by(|a, b| b.cmp(a));
        let places = sorter.runs.iter().map(|&place| (place, Vec::new()));
        let in_memory = ((0, 0), std::mem::take(&mut sorter.rows));
        for (next, waiting) in places.chain([in_memory]) {
            runs.push(SortedRun {
                sorter: number,
                next,
                waiting,
            });
        }
        files.push(sorter.file.take());
    }
    let mut first = BinaryHeap::new();
    for (number, run) in runs.iter_mut().enumerate() {
        let row = run.next(&files).map_err(temporary)?;
        first.extend(row.map(|row| Reverse((row, number))));
    }
    while let Some(Reverse((row, number))) = first.pop() {
        take(&row)?;
        let row = runs[number].next(&files).map_err(temporary)?;
        first.extend(row.map(|row| Reverse((row, number))));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(minute: u32, order: u32) -> CompactRow {
        CompactRow {
            minute,
            order,
            device: 1,
            querier: 2,
            querier_number: 3,
            epoch: 4,
            value: 5,
            bucket: 6,
            full: 7,
            outcome: 8,
            lost: 9,
            cause: 10,
            dropped_epoch: 11_u64.wrapping_neg(),
            filter_site: 12,
            asked: 13,
            consumed: 14,
            capacity: 15,
            missing: 16,
            largest_epsilon: NO_VALUE,
        }
    }

    #[test]
    fn rows_are_read_as_they_were_written() {
        let mut bytes = Vec::new();
        row(17, 18).pack(&mut bytes);
        assert_eq!(bytes.len(), CompactRow::BYTES);
        assert_eq!(CompactRow::unpack(&bytes), Some(row(17, 18)));
        assert_eq!(CompactRow::unpack(&bytes[1..]), None);
    }

    /// Several runs in files and in memory, over several sorters, come out as one sorted list.
    #[test]
    fn runs_merge_in_order() {
        let count = u32::try_from(2 * RUN + RUN / 2).unwrap();
        let mut sorters = [(); 3].map(|()| RowSorter::default());
        for number in 0..count {
            // A permutation, because the factor and the count have no common divisor.
            let minute = u32::try_from(u64::from(number) * 7919 % u64::from(count)).unwrap();
            let sorter = match number % 8 {
                0 => 1,
                1 => 2,
                _ => 0,
            };
            sorters[sorter].push(row(minute, number));
        }
        assert!(sorters[0].runs.len() == 1 && sorters[1].runs.is_empty());
        let mut next = 0;
        merge(sorters.into(), |row| {
            assert_eq!(row.minute, next);
            next += 1;
            Ok(())
        })
        .unwrap();
        assert_eq!(next, count);
    }
}
