//! One aggregator's share of a sum.

use std::fmt;

use prio::codec::{CodecError, Decode as _, Encode as _};
use prio::field::{Field128, FieldElement as _};

/// One aggregator's share of the sum of histograms. Alone it looks random.
#[derive(Clone, PartialEq, Eq)]
pub struct AggregateSum(pub(crate) Vec<Field128>);

/// A share is half of a secret, so it is not shown.
impl fmt::Debug for AggregateSum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AggregateSum({} buckets)", self.0.len())
    }
}

impl AggregateSum {
    /// The share of an empty sum.
    pub fn zero(buckets: usize) -> Self {
        Self(vec![Field128::zero(); buckets])
    }

    /// Adds another share with as many buckets.
    pub fn add(&mut self, other: &Self) {
        debug_assert_eq!(self.0.len(), other.0.len());
        for (sum, part) in self.0.iter_mut().zip(&other.0) {
            *sum += *part;
        }
    }

    /// The share as bytes, 16 for each bucket, as DAP encodes it.
    ///
    /// # Errors
    /// Never: every bucket can be encoded.
    pub fn to_bytes(&self) -> Result<Vec<u8>, CodecError> {
        let mut bytes = Vec::with_capacity(self.0.len() * Field128::ENCODED_SIZE);
        for bucket in &self.0 {
            bucket.encode(&mut bytes)?;
        }
        Ok(bytes)
    }

    /// The share that some bytes encode.
    ///
    /// # Errors
    /// If they do not encode as many buckets.
    pub fn from_bytes(bytes: &[u8], buckets: usize) -> Result<Self, CodecError> {
        let parts = bytes.chunks(Field128::ENCODED_SIZE);
        if bytes.len() != buckets * Field128::ENCODED_SIZE {
            return Err(CodecError::UnexpectedValue);
        }
        parts
            .map(Field128::get_decoded)
            .collect::<Result<_, _>>()
            .map(Self)
    }
}
