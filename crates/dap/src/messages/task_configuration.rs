//! The configuration of a task, from which its id follows.

use std::fmt;
use std::io::Cursor;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use prio::codec::encode_u8_items;
use sha2::{Digest as _, Sha256};

use super::opaque::{decode_array, decode_opaque_u8, decode_opaque_u16, encode_opaque_u16};
use super::{CodecError, Decode, Encode, Extensions};

/// The configuration of a task (DAP, section Task Configuration). The client and both aggregators
/// must have the same bytes: they are authenticated with every report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskConfiguration {
    /// Information for people, of at most 255 bytes. DAP-18 forbids that it is empty, DAP-19 allows
    /// it. Both are accepted here.
    pub task_info: Vec<u8>,
    /// The URL of the leader, in ASCII.
    pub leader: String,
    /// The URL of the helper, in ASCII.
    pub helper: String,
    /// The number of seconds that a unit of time has.
    pub time_precision: u64,
    /// The fewest reports that may be aggregated.
    pub min_batch_size: u64,
    /// The code point of the batch mode.
    pub batch_mode: u8,
    /// The configuration of the batch mode.
    pub batch_config: Vec<u8>,
    /// The VDAF.
    pub vdaf: VdafConfig,
    /// The extensions of the task.
    pub extensions: Extensions,
}

impl TaskConfiguration {
    /// The id of the task (draft-ietf-ppm-dap-taskprov, section Task ID): a hash of its
    /// configuration, so that no two configurations share an id.
    ///
    /// # Errors
    /// If a field is too long to be encoded.
    pub fn task_id(&self) -> Result<TaskId, CodecError> {
        let salt = Sha256::digest(b"dap-taskprov task id");
        let mut hash = Sha256::new();
        hash.update(salt);
        hash.update(self.get_encoded()?);
        Ok(TaskId(hash.finalize().into()))
    }
}

impl Encode for TaskConfiguration {
    fn encode(&self, bytes: &mut Vec<u8>) -> Result<(), CodecError> {
        encode_u8_items(bytes, &(), &self.task_info)?;
        encode_opaque_u16(bytes, self.leader.as_bytes())?;
        encode_opaque_u16(bytes, self.helper.as_bytes())?;
        self.time_precision.encode(bytes)?;
        self.min_batch_size.encode(bytes)?;
        self.batch_mode.encode(bytes)?;
        encode_opaque_u16(bytes, &self.batch_config)?;
        self.vdaf.encode(bytes)?;
        self.extensions.encode(bytes)
    }
}

impl Decode for TaskConfiguration {
    fn decode(bytes: &mut Cursor<&[u8]>) -> Result<Self, CodecError> {
        Ok(Self {
            task_info: decode_opaque_u8(bytes)?,
            leader: decode_url(bytes)?,
            helper: decode_url(bytes)?,
            time_precision: match u64::decode(bytes)? {
                0 => return Err(CodecError::UnexpectedValue),
                precision => precision,
            },
            min_batch_size: u64::decode(bytes)?,
            batch_mode: u8::decode(bytes)?,
            batch_config: decode_opaque_u16(bytes)?,
            vdaf: VdafConfig::decode(bytes)?,
            extensions: Extensions::decode(bytes)?,
        })
    }
}

fn decode_url(bytes: &mut Cursor<&[u8]>) -> Result<String, CodecError> {
    let url = decode_opaque_u16(bytes)?;
    match String::from_utf8(url) {
        Ok(url) if !url.is_empty() && url.is_ascii() => Ok(url),
        _ => Err(CodecError::UnexpectedValue),
    }
}

/// A VDAF and its configuration, which depends on the VDAF.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VdafConfig {
    /// The code point of the VDAF.
    pub vdaf_type: u32,
    /// Its parameters.
    pub configuration: Vec<u8>,
}

impl Encode for VdafConfig {
    fn encode(&self, bytes: &mut Vec<u8>) -> Result<(), CodecError> {
        self.vdaf_type.encode(bytes)?;
        encode_opaque_u16(bytes, &self.configuration)
    }
}

impl Decode for VdafConfig {
    fn decode(bytes: &mut Cursor<&[u8]>) -> Result<Self, CodecError> {
        Ok(Self {
            vdaf_type: u32::decode(bytes)?,
            configuration: decode_opaque_u16(bytes)?,
        })
    }
}

/// The id of a task. It prints as in the paths of DAP: base64 for URLs, without padding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub [u8; 32]);

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&URL_SAFE_NO_PAD.encode(self.0))
    }
}

impl Encode for TaskId {
    fn encode(&self, bytes: &mut Vec<u8>) -> Result<(), CodecError> {
        bytes.extend_from_slice(&self.0);
        Ok(())
    }
}

impl Decode for TaskId {
    fn decode(bytes: &mut Cursor<&[u8]>) -> Result<Self, CodecError> {
        Ok(Self(decode_array(bytes)?))
    }
}
