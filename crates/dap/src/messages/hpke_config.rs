//! Public keys of aggregators.

use std::io::Cursor;

use super::opaque::{decode_opaque_u16, encode_opaque_u16, nested};
use super::{CodecError, Decode, Encode};

/// A public key of an aggregator, and the algorithms it is for (DAP, section HPKE Configuration
/// Request). The algorithms may be ones that this crate does not support.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HpkeConfig {
    /// The number by which reports name the key.
    pub id: u8,
    /// The key encapsulation mechanism, as registered for HPKE.
    pub kem_id: u16,
    /// The key derivation function, as registered for HPKE.
    pub kdf_id: u16,
    /// The encryption with additional data, as registered for HPKE.
    pub aead_id: u16,
    /// The public key.
    pub public_key: Vec<u8>,
}

impl Encode for HpkeConfig {
    fn encode(&self, bytes: &mut Vec<u8>) -> Result<(), CodecError> {
        self.id.encode(bytes)?;
        self.kem_id.encode(bytes)?;
        self.kdf_id.encode(bytes)?;
        self.aead_id.encode(bytes)?;
        encode_opaque_u16(bytes, &self.public_key)
    }
}

impl Decode for HpkeConfig {
    fn decode(bytes: &mut Cursor<&[u8]>) -> Result<Self, CodecError> {
        Ok(Self {
            id: u8::decode(bytes)?,
            kem_id: u16::decode(bytes)?,
            kdf_id: u16::decode(bytes)?,
            aead_id: u16::decode(bytes)?,
            public_key: decode_opaque_u16(bytes)?,
        })
    }
}

/// The keys that an aggregator publishes, the preferred one first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HpkeConfigList(pub Vec<HpkeConfig>);

impl Encode for HpkeConfigList {
    fn encode(&self, bytes: &mut Vec<u8>) -> Result<(), CodecError> {
        prio::codec::encode_u16_items(bytes, &(), &self.0)
    }
}

impl Decode for HpkeConfigList {
    fn decode(bytes: &mut Cursor<&[u8]>) -> Result<Self, CodecError> {
        Ok(Self(nested(&decode_opaque_u16(bytes)?)?))
    }
}
