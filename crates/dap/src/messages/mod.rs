//! The messages of DAP that reports are made of, as bytes (draft-ietf-ppm-dap-18, sections 4.2 to
//! 4.4).
//!
//! A message decodes only from bytes that it would be encoded as, and only if all bytes are used.
//! What is opaque to DAP itself, such as the configuration of a VDAF, stays opaque here: whoever
//! knows its meaning parses it.

mod hpke_config;
mod opaque;
mod report;
mod task_configuration;

pub use hpke_config::{HpkeConfig, HpkeConfigList};
pub use prio::codec::{CodecError, Decode, Encode};
pub use report::{
    DapReport, HpkeCiphertext, InputShareAad, PlaintextInputShare, ReportId, ReportMetadata,
};
pub use task_configuration::{TaskConfiguration, TaskId, VdafConfig};

use opaque::{decode_opaque_u16, encode_opaque_u16, nested};
use std::io::Cursor;

/// An extension of a task or of a report: a code point and its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extension {
    /// The code point.
    pub extension_type: u16,
    /// The data.
    pub data: Vec<u8>,
}

impl Encode for Extension {
    fn encode(&self, bytes: &mut Vec<u8>) -> Result<(), CodecError> {
        self.extension_type.encode(bytes)?;
        encode_opaque_u16(bytes, &self.data)
    }

    fn encoded_len(&self) -> Option<usize> {
        Some(4 + self.data.len())
    }
}

impl Decode for Extension {
    fn decode(bytes: &mut Cursor<&[u8]>) -> Result<Self, CodecError> {
        Ok(Self {
            extension_type: u16::decode(bytes)?,
            data: decode_opaque_u16(bytes)?,
        })
    }
}

/// A list of extensions whose types strictly increase, so that none comes twice and a set of
/// extensions has one encoding.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Extensions(Vec<Extension>);

impl Extensions {
    /// The extensions in the order of their types.
    ///
    /// # Errors
    /// If two have the same type.
    pub fn new(mut extensions: Vec<Extension>) -> Result<Self, CodecError> {
        extensions.sort_by_key(|extension| extension.extension_type);
        Self::ordered(extensions)
    }

    fn ordered(extensions: Vec<Extension>) -> Result<Self, CodecError> {
        let increases = extensions.is_sorted_by(|a, b| a.extension_type < b.extension_type);
        increases
            .then_some(Self(extensions))
            .ok_or(CodecError::UnexpectedValue)
    }

    /// The extensions, in the order of their types.
    pub fn as_slice(&self) -> &[Extension] {
        &self.0
    }
}

impl Encode for Extensions {
    fn encode(&self, bytes: &mut Vec<u8>) -> Result<(), CodecError> {
        prio::codec::encode_u16_items(bytes, &(), &self.0)
    }

    fn encoded_len(&self) -> Option<usize> {
        self.0
            .iter()
            .try_fold(2, |sum, extension| Some(sum + extension.encoded_len()?))
    }
}

impl Decode for Extensions {
    fn decode(bytes: &mut Cursor<&[u8]>) -> Result<Self, CodecError> {
        let list = decode_opaque_u16(bytes)?;
        Self::ordered(nested(&list)?)
    }
}
