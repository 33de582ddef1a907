//! Columns of whole numbers, decoded as fast as the file allows.

use arrow_array::cast::AsArray as _;
use arrow_array::types::{Int64Type, UInt64Type};
use arrow_array::{Array as _, ArrayRef};
use arrow_buffer::ScalarBuffer;

use crate::workload::cells::{Batches, Cell, Column, EMPTY, Holds, ParquetFile};
use crate::workload::read::ReadError;

/// Whole numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WholeNumbers {
    /// All of them fit into an `i64`. They are not copied from what was decoded.
    Fit(ScalarBuffer<i64>),
    /// Some of them are larger.
    Large(Vec<i128>),
}

impl Default for WholeNumbers {
    fn default() -> Self {
        Self::Fit(Vec::new().into())
    }
}

impl WholeNumbers {
    /// The number of numbers.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Fit(numbers) => numbers.len(),
            Self::Large(numbers) => numbers.len(),
        }
    }

    /// All numbers, if they fit.
    pub(crate) fn as_i64(&self) -> Option<&[i64]> {
        match self {
            Self::Fit(numbers) => Some(numbers),
            Self::Large(_) => None,
        }
    }

    /// A number.
    #[inline]
    pub(crate) fn get(&self, at: usize) -> i128 {
        match self {
            Self::Fit(numbers) => numbers[at].into(),
            Self::Large(numbers) => numbers[at],
        }
    }

    /// A number, if it is from 0 on and fits into 64 bits. None if there is no such row.
    #[inline]
    pub(crate) fn natural(&self, at: usize) -> Option<u64> {
        match self {
            Self::Fit(numbers) => u64::try_from(*numbers.get(at)?).ok(),
            Self::Large(numbers) => u64::try_from(*numbers.get(at)?).ok(),
        }
    }

    /// The lower 64 bits of a number. Together with its sign they identify it.
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the lower 64 bits"
    )]
    pub(crate) fn word(&self, at: usize) -> u64 {
        match self {
            Self::Fit(numbers) => numbers[at] as u64,
            Self::Large(numbers) => numbers[at] as u64,
        }
    }

    /// True if a number is negative.
    #[inline]
    pub(crate) fn is_negative(&self, at: usize) -> bool {
        match self {
            Self::Fit(numbers) => numbers[at] < 0,
            Self::Large(numbers) => numbers[at] < 0,
        }
    }
}

/// A column of whole numbers in a Parquet file.
pub(crate) struct NumberColumn {
    batches: Batches<1>,
}

/// A cell that is not a whole number, or the file that cannot be read.
#[derive(Debug)]
pub(crate) enum NumberError {
    /// The row, counted from 0 in what was decoded, and what is wrong with its cell.
    Cell(usize, String),
    /// The file.
    File(ReadError),
}

impl NumberColumn {
    /// Starts to read a column, `rows` rows at a time.
    pub(crate) fn open(file: ParquetFile, name: &str, rows: usize) -> Result<Self, ReadError> {
        let batches = file.columns_by(rows, [Some((name, Holds::Numbers))])?;
        Ok(Self { batches })
    }

    /// The next numbers. There are none after the last ones.
    pub(crate) fn next(&mut self) -> Result<WholeNumbers, NumberError> {
        let batch = self.batches.next_batch().map_err(NumberError::File)?;
        let Some(batch) = batch else {
            return Ok(WholeNumbers::default());
        };
        decode(batch.column(0))
    }
}

fn decode(array: &ArrayRef) -> Result<WholeNumbers, NumberError> {
    if array.null_count() == 0 {
        if let Some(array) = array.as_primitive_opt::<Int64Type>() {
            return Ok(WholeNumbers::Fit(array.values().clone()));
        }
        if let Some(array) = array.as_primitive_opt::<UInt64Type>()
            && array
                .values()
                .iter()
                .all(|number| *number <= i64::MAX as u64)
        {
            let numbers = array.values();
            return Ok(WholeNumbers::Fit(ScalarBuffer::from(
                numbers.inner().clone(),
            )));
        }
    }
    // Other types are rare, and take the way of all tables.
    let column = Column::new(array.clone());
    let mut numbers = Vec::with_capacity(array.len());
    for at in 0..array.len() {
        let number = match column.cell(at) {
            Cell::Nothing => Err(EMPTY.to_owned()),
            cell => cell.number().map(Option::unwrap_or_default),
        };
        numbers.push(number.map_err(|what| NumberError::Cell(at, what))?);
    }
    let fit: Result<Vec<i64>, _> = numbers
        .iter()
        .map(|number| i64::try_from(*number))
        .collect();
    Ok(match fit {
        Ok(fit) => WholeNumbers::Fit(fit.into()),
        Err(_) => WholeNumbers::Large(numbers),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{Float64Array, Int8Array, Int64Array, UInt64Array};

    use super::*;

    fn all(array: impl arrow_array::Array + 'static) -> Result<Vec<i128>, String> {
        match decode(&(Arc::new(array) as ArrayRef)) {
            Ok(numbers) => Ok((0..numbers.len()).map(|at| numbers.get(at)).collect()),
            Err(NumberError::Cell(row, what)) => Err(format!("row {row}: {what}")),
            Err(NumberError::File(error)) => Err(error.to_string()),
        }
    }

    #[test]
    fn every_type_gives_the_same_numbers() {
        assert_eq!(all(Int64Array::from(vec![1, -2])), Ok(vec![1, -2]));
        assert_eq!(all(UInt64Array::from(vec![1, 2])), Ok(vec![1, 2]));
        assert_eq!(all(Int8Array::from(vec![1, -2])), Ok(vec![1, -2]));
        assert_eq!(all(Float64Array::from(vec![1.0, -2.0])), Ok(vec![1, -2]));
        let large = i128::from(u64::MAX);
        assert_eq!(
            all(UInt64Array::from(vec![1, u64::MAX])),
            Ok(vec![1, large])
        );
    }

    #[test]
    fn a_wrong_cell_is_named() {
        let empty = Int64Array::from(vec![Some(1), None]);
        assert_eq!(all(empty), Err(format!("row 1: {EMPTY}")));
        let half = Float64Array::from(vec![0.5]);
        assert!(all(half).unwrap_err().starts_with("row 0: 0.5"));
    }

    /// Ids that have the same lower 64 bits differ by their sign.
    #[test]
    fn large_ids_are_not_confused_with_negative_ones() {
        let one = decode(&(Arc::new(UInt64Array::from(vec![u64::MAX])) as ArrayRef)).unwrap();
        let other = decode(&(Arc::new(Int64Array::from(vec![-1])) as ArrayRef)).unwrap();
        assert_eq!(one.word(0), other.word(0));
        assert_ne!(one.is_negative(0), other.is_negative(0));
    }
}
