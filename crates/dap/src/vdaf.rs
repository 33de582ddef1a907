//! The VDAF: how a histogram is divided into two shares, with a proof that its sum is at most the
//! maximum, and how two aggregators verify the proof without seeing the histogram.
//!
//! The W3C draft uses Prio3L1BoundSum (draft-ietf-ppm-l1-bound-sum). Prio3SumVec is here for
//! aggregators that do not know it yet: it bounds each bucket instead of the sum.

use std::fmt;
use std::io::Cursor;

use prio::codec::{CodecError, Decode, Encode as _};
use prio::flp::Type;
use prio::vdaf::Client as _;
use prio::vdaf::prio3::{Prio3, Prio3L1BoundSum, Prio3SumVec};
use prio::vdaf::xof::XofTurboShake128;
use thiserror::Error;

use crate::messages::{ReportId, VdafConfig};

/// Prio3 for some type of measurement, as all of DAP uses it.
pub(crate) type Prio<T> = Prio3<T, XofTurboShake128, 32>;

/// The secret that both aggregators share, and no client knows.
pub(crate) type VerifyKeyBytes = [u8; 32];

/// The kind of VDAF.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum VdafKind {
    /// Prio3L1BoundSum: the sum of all buckets is at most the maximum. This is the draft's.
    #[default]
    L1BoundSum,
    /// Prio3SumVec: every bucket is at most the maximum, so a dishonest client can contribute the
    /// maximum times the number of buckets. It is for tests with aggregators that know nothing
    /// else.
    SumVec,
}

impl VdafKind {
    /// Its name, as the VDAF drafts spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::L1BoundSum => "Prio3L1BoundSum",
            Self::SumVec => "Prio3SumVec",
        }
    }

    /// Its code point.
    pub const fn code(self) -> u32 {
        match self {
            Self::L1BoundSum => 7,
            Self::SumVec => 3,
        }
    }
}

impl fmt::Display for VdafKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The parameters of a VDAF, which are part of the task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VdafParameters {
    /// The kind.
    pub kind: VdafKind,
    /// The number of buckets.
    pub length: u32,
    /// The largest sum of the buckets, or the largest value of one: see [`VdafKind`].
    pub max_value: u64,
    /// A parameter that balances the size of proofs.
    pub chunk_length: u32,
}

/// Parameters of a VDAF that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ParameterError {
    /// The VDAF is not known.
    #[error(
        "the VDAF {got:#x} is not supported; supported are 7 (Prio3L1BoundSum) and 3 (Prio3SumVec)"
    )]
    Kind {
        /// Its code point.
        got: u32,
    },
    /// The bytes are not a configuration of the VDAF.
    #[error(
        "the configuration of {kind} must have 16 bytes (length, maximum of 8 bytes, chunk \
         length), got {got}"
    )]
    Bytes {
        /// The kind of VDAF.
        kind: VdafKind,
        /// The number of bytes.
        got: usize,
    },
    /// A parameter is out of range.
    #[error(
        "{kind} needs a length in [1, {max_length}], a maximum in [1, {max_value}] and a chunk \
         length of at least 1, got {length}, {got} and {chunk_length}",
        max_length = VdafParameters::MAX_LENGTH,
        max_value = u32::MAX
    )]
    Range {
        /// The kind of VDAF.
        kind: VdafKind,
        /// The number of buckets.
        length: u32,
        /// The maximum.
        got: u64,
        /// The chunk length.
        chunk_length: u32,
    },
}

impl VdafParameters {
    /// The most buckets of a report, as of a [`HistogramSize`](bigbird::HistogramSize).
    pub const MAX_LENGTH: u32 = bigbird::HistogramSize::MAX;

    /// The parameters that the draft chooses for a number of buckets and a largest value (section
    /// Report Encryption For DAP).
    pub fn new(kind: VdafKind, length: u32, max_value: u32) -> Self {
        Self {
            kind,
            length,
            max_value: max_value.into(),
            chunk_length: chunk_length(length, max_value),
        }
    }

    /// The configuration as part of a task: length, maximum and chunk length.
    pub fn config(&self) -> VdafConfig {
        let mut configuration = Vec::with_capacity(16);
        configuration.extend_from_slice(&self.length.to_be_bytes());
        configuration.extend_from_slice(&self.max_value.to_be_bytes());
        configuration.extend_from_slice(&self.chunk_length.to_be_bytes());
        VdafConfig {
            vdaf_type: self.kind.code(),
            configuration,
        }
    }

    /// The parameters in the configuration of a task. The older form of Prio3L1BoundSum, with a
    /// number of bits or a maximum of four bytes, is refused.
    ///
    /// # Errors
    /// If the VDAF is not supported, or its parameters are wrong.
    pub fn parse(config: &VdafConfig) -> Result<Self, ParameterError> {
        let kind = match config.vdaf_type {
            7 => VdafKind::L1BoundSum,
            3 => VdafKind::SumVec,
            got => return Err(ParameterError::Kind { got }),
        };
        let got = config.configuration.len();
        if got != 16 {
            return Err(ParameterError::Bytes { kind, got });
        }
        let mut bytes = Cursor::new(config.configuration.as_slice());
        let mut read = || {
            Ok::<_, CodecError>(Self {
                kind,
                length: u32::decode(&mut bytes)?,
                max_value: u64::decode(&mut bytes)?,
                chunk_length: u32::decode(&mut bytes)?,
            })
        };
        let parameters = read().map_err(|_| ParameterError::Bytes { kind, got })?;
        parameters.vdaf()?;
        Ok(parameters)
    }

    /// The number of bytes of the public share, and of the shares of the leader and of the helper.
    /// It is computed without making any share.
    pub(crate) fn share_lengths(&self) -> (usize, [usize; 2]) {
        /// The lengths of an element of the field and of a seed.
        const ELEMENT: usize = 16;
        const SEED: usize = 32;
        let bits = (u64::BITS - self.max_value.leading_zeros()) as usize;
        let values = match self.kind {
            // The sum is encoded after the buckets.
            VdafKind::L1BoundSum => self.length as usize + 1,
            VdafKind::SumVec => self.length as usize,
        };
        let (measurement, chunk) = (bits * values, (self.chunk_length as usize).max(1));
        // The proof of a circuit that calls one gadget of degree 2 for each chunk: a seed for every
        // wire, and the gadget's polynomial (VDAF, section FLP Proof System).
        let calls = measurement.div_ceil(chunk);
        let proof = 2 * chunk + 2 * ((1 + calls).next_power_of_two() - 1) + 1;
        let leader = (measurement + proof) * ELEMENT + SEED;
        (2 * SEED, [leader, 2 * SEED])
    }

    /// The VDAF with these parameters.
    ///
    /// # Errors
    /// If a parameter is out of range.
    pub fn vdaf(&self) -> Result<HistogramVdaf, ParameterError> {
        let Self {
            kind,
            length,
            max_value,
            chunk_length,
        } = *self;
        let out_of_range = ParameterError::Range {
            kind,
            length,
            got: max_value,
            chunk_length,
        };
        if !(1..=Self::MAX_LENGTH).contains(&length) || !(1..=u32::MAX.into()).contains(&max_value)
        {
            return Err(out_of_range);
        }
        // A chunk that is longer than the measurement would only be filled up.
        let longest = (length + 1).saturating_mul(32);
        if !(1..=longest).contains(&chunk_length) {
            return Err(out_of_range);
        }
        let (size, chunk) = (length as usize, chunk_length as usize);
        let vdaf = match kind {
            VdafKind::L1BoundSum => {
                Prio3::new_l1_bound_sum(2, max_value.into(), size, chunk).map(AnyVdaf::L1BoundSum)
            }
            VdafKind::SumVec => {
                Prio3::new_sum_vec(2, max_value.into(), size, chunk).map(AnyVdaf::SumVec)
            }
        };
        match vdaf {
            Ok(vdaf) => Ok(HistogramVdaf(vdaf)),
            Err(_) => Err(out_of_range),
        }
    }
}

/// The draft's chunk length: the square root of (⌈log₂(maximum + 1)⌉ + 1) · length, rounded to the
/// nearest whole number. It is computed in integers, so that all implementations agree.
fn chunk_length(length: u32, max_value: u32) -> u32 {
    // ⌈log₂(n + 1)⌉ is the number of bits of n.
    let bits = u64::from(u32::BITS - max_value.leading_zeros());
    let product = (bits + 1) * u64::from(length);
    let root = product.isqrt();
    // (root + ½)² is root² + root + ¼.
    let nearest = root + u64::from(product > root * root + root);
    u32::try_from(nearest).unwrap_or(u32::MAX)
}

/// A VDAF for histograms.
#[derive(Debug, Clone)]
pub struct HistogramVdaf(pub(crate) AnyVdaf);

#[derive(Debug, Clone)]
pub(crate) enum AnyVdaf {
    L1BoundSum(Prio3L1BoundSum),
    SumVec(Prio3SumVec),
}

/// Calls a function that is generic in the type of measurement.
macro_rules! with_vdaf {
    ($vdaf:expr, $prio:ident => $body:expr) => {
        match $vdaf {
            $crate::vdaf::AnyVdaf::L1BoundSum($prio) => $body,
            $crate::vdaf::AnyVdaf::SumVec($prio) => $body,
        }
    };
}
#[cfg(feature = "aggregator")]
pub(crate) use with_vdaf;

/// A histogram in shares: each alone looks random.
#[derive(Clone)]
pub struct ShardedHistogram {
    /// The part that both aggregators get.
    pub public_share: Vec<u8>,
    /// The shares of the leader and of the helper.
    pub input_shares: [Vec<u8>; 2],
}

/// Both shares together are the histogram, so they are not shown.
impl fmt::Debug for ShardedHistogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardedHistogram").finish_non_exhaustive()
    }
}

/// A histogram that cannot be divided into shares.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the histogram cannot be divided into shares: {0}")]
pub struct ShardError(pub(crate) String);

impl HistogramVdaf {
    /// Divides a histogram into two shares, with a proof. The `context` is that of the task.
    ///
    /// # Errors
    /// If the histogram has another length, or exceeds the maximum.
    pub fn shard(
        &self,
        context: &[u8],
        histogram: &[u32],
        report_id: ReportId,
    ) -> Result<ShardedHistogram, ShardError> {
        let measurement: Vec<u128> = histogram.iter().map(|bucket| (*bucket).into()).collect();
        with_vdaf!(&self.0, prio => shard(prio, context, &measurement, report_id))
    }
}

fn shard<T: Type<Measurement = Vec<u128>>>(
    prio: &Prio<T>,
    context: &[u8],
    measurement: &Vec<u128>,
    ReportId(nonce): ReportId,
) -> Result<ShardedHistogram, ShardError> {
    let failed = |error: &dyn fmt::Display| ShardError(error.to_string());
    let (public_share, input_shares) = prio
        .shard(context, measurement, &nonce)
        .map_err(|error| failed(&error))?;
    let public_share = public_share.get_encoded().map_err(|error| failed(&error))?;
    let [leader, helper] = input_shares.as_slice() else {
        return Err(ShardError("there are not two shares".to_owned()));
    };
    let leader = leader.get_encoded().map_err(|error| failed(&error))?;
    let helper = helper.get_encoded().map_err(|error| failed(&error))?;
    Ok(ShardedHistogram {
        public_share,
        input_shares: [leader, helper],
    })
}
