//! A report, and what its shares are encrypted with.

use std::fmt;
use std::io::Cursor;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::opaque::{
    decode_array, decode_opaque_u16, decode_opaque_u32, encode_opaque_u16, encode_opaque_u32,
};
use super::{CodecError, Decode, Encode, Extensions, TaskId};

/// The id of a report: 16 random bytes. It is also the nonce of the VDAF. An aggregator accepts an
/// id of a task once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReportId(pub [u8; 16]);

impl fmt::Display for ReportId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&URL_SAFE_NO_PAD.encode(self.0))
    }
}

/// The part of a report that everybody can read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportMetadata {
    /// The id of the report.
    pub report_id: ReportId,
    /// The time of the conversion, in units of the task's precision.
    pub time: u64,
    /// The extensions of the report that everybody can read.
    pub public_extensions: Extensions,
}

impl Encode for ReportMetadata {
    fn encode(&self, bytes: &mut Vec<u8>) -> Result<(), CodecError> {
        bytes.extend_from_slice(&self.report_id.0);
        self.time.encode(bytes)?;
        self.public_extensions.encode(bytes)
    }
}

impl Decode for ReportMetadata {
    fn decode(bytes: &mut Cursor<&[u8]>) -> Result<Self, CodecError> {
        Ok(Self {
            report_id: ReportId(decode_array(bytes)?),
            time: u64::decode(bytes)?,
            public_extensions: Extensions::decode(bytes)?,
        })
    }
}

/// Something that is encrypted to an aggregator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HpkeCiphertext {
    /// The number of the key: see [`HpkeConfig::id`](super::HpkeConfig::id).
    pub config_id: u8,
    /// The encapsulated key.
    pub encapsulated_key: Vec<u8>,
    /// The ciphertext with its tag.
    pub payload: Vec<u8>,
}

impl Encode for HpkeCiphertext {
    fn encode(&self, bytes: &mut Vec<u8>) -> Result<(), CodecError> {
        self.config_id.encode(bytes)?;
        encode_opaque_u16(bytes, &self.encapsulated_key)?;
        encode_opaque_u32(bytes, &self.payload)
    }

    fn encoded_len(&self) -> Option<usize> {
        Some(1 + 2 + self.encapsulated_key.len() + 4 + self.payload.len())
    }
}

impl Decode for HpkeCiphertext {
    fn decode(bytes: &mut Cursor<&[u8]>) -> Result<Self, CodecError> {
        Ok(Self {
            config_id: u8::decode(bytes)?,
            encapsulated_key: decode_opaque_u16(bytes)?,
            payload: decode_opaque_u32(bytes)?,
        })
    }
}

/// A report, as a client uploads it (DAP, section Upload Request).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DapReport {
    /// What everybody can read.
    pub metadata: ReportMetadata,
    /// The part of the VDAF's output that both aggregators get.
    pub public_share: Vec<u8>,
    /// The share of the leader.
    pub leader_share: HpkeCiphertext,
    /// The share of the helper.
    pub helper_share: HpkeCiphertext,
}

impl Encode for DapReport {
    fn encode(&self, bytes: &mut Vec<u8>) -> Result<(), CodecError> {
        self.metadata.encode(bytes)?;
        encode_opaque_u32(bytes, &self.public_share)?;
        self.leader_share.encode(bytes)?;
        self.helper_share.encode(bytes)
    }
}

impl Decode for DapReport {
    fn decode(bytes: &mut Cursor<&[u8]>) -> Result<Self, CodecError> {
        Ok(Self {
            metadata: ReportMetadata::decode(bytes)?,
            public_share: decode_opaque_u32(bytes)?,
            leader_share: HpkeCiphertext::decode(bytes)?,
            helper_share: HpkeCiphertext::decode(bytes)?,
        })
    }
}

/// What is authenticated with an encrypted share: everything about its report that is not secret
/// (DAP, section Client Behavior).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InputShareAad<'a> {
    /// The id of the task.
    pub task_id: TaskId,
    /// The encoded configuration of the task.
    pub task_configuration: &'a [u8],
    /// What everybody can read.
    pub metadata: &'a ReportMetadata,
    /// The part of the VDAF's output that both aggregators get.
    pub public_share: &'a [u8],
}

impl Encode for InputShareAad<'_> {
    fn encode(&self, bytes: &mut Vec<u8>) -> Result<(), CodecError> {
        self.task_id.encode(bytes)?;
        bytes.extend_from_slice(self.task_configuration);
        self.metadata.encode(bytes)?;
        encode_opaque_u32(bytes, self.public_share)
    }
}

/// What is encrypted: the share of an aggregator, with extensions that only it can read.
#[derive(Clone, PartialEq, Eq)]
pub struct PlaintextInputShare {
    /// The extensions that only this aggregator can read.
    pub private_extensions: Extensions,
    /// The share.
    pub payload: Vec<u8>,
}

/// Shares are secrets, so they are not shown.
impl fmt::Debug for PlaintextInputShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlaintextInputShare")
            .field("private_extensions", &self.private_extensions)
            .finish_non_exhaustive()
    }
}

impl Encode for PlaintextInputShare {
    fn encode(&self, bytes: &mut Vec<u8>) -> Result<(), CodecError> {
        self.private_extensions.encode(bytes)?;
        encode_opaque_u32(bytes, &self.payload)
    }

    fn encoded_len(&self) -> Option<usize> {
        Some(self.private_extensions.encoded_len()? + 4 + self.payload.len())
    }
}

impl Decode for PlaintextInputShare {
    fn decode(bytes: &mut Cursor<&[u8]>) -> Result<Self, CodecError> {
        Ok(Self {
            private_extensions: Extensions::decode(bytes)?,
            payload: decode_opaque_u32(bytes)?,
        })
    }
}
