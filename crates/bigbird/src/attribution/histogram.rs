//! Histograms: the reports of conversions.

use super::error::QueryError;
use crate::query::Release;

/// The report of one conversion: its value, divided over the buckets of a histogram.
///
/// A null report has the same number of buckets as any other report of its query, all zero.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Histogram(Vec<u32>);

impl Release for Histogram {}

impl Histogram {
    /// The null report with this many buckets.
    pub fn null(HistogramSize(size): HistogramSize) -> Self {
        Self(vec![0; size as usize])
    }

    /// The value in each bucket.
    pub fn buckets(&self) -> &[u32] {
        &self.0
    }

    /// True if every bucket is zero.
    pub fn is_null(&self) -> bool {
        self.0.iter().all(|&value| value == 0)
    }

    /// The sum of all buckets: the L1 norm.
    pub fn total(&self) -> u64 {
        self.0.iter().map(|&value| u64::from(value)).sum()
    }

    pub(crate) fn make_null(&mut self, HistogramSize(size): HistogramSize) {
        self.0.clear();
        self.0.resize(size as usize, 0);
    }

    /// Adds a value to a bucket. Values for buckets outside the histogram are dropped.
    pub(crate) fn add(&mut self, index: u32, value: u32) {
        if let Some(bucket) = self.0.get_mut(index as usize) {
            *bucket = bucket.saturating_add(value);
        }
    }
}

/// The number of buckets of a histogram: 1 to [`HistogramSize::MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HistogramSize(u32);

impl HistogramSize {
    /// The largest size.
    pub const MAX: u32 = 1 << 20;

    /// A histogram size of `buckets` buckets.
    ///
    /// # Errors
    /// If `buckets` is 0 or more than [`HistogramSize::MAX`].
    pub fn new(buckets: u32) -> Result<Self, QueryError> {
        match buckets {
            1..=Self::MAX => Ok(Self(buckets)),
            got => Err(QueryError::HistogramSize { got }),
        }
    }

    /// The number of buckets.
    pub const fn get(self) -> u32 {
        self.0
    }
}
