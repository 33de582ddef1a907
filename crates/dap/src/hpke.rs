//! Encryption to an aggregator: HPKE (RFC 9180) in base mode, one message for each key
//! encapsulation.

use std::fmt;

use hpke_dispatch::{Config, Keypair};
use thiserror::Error;

use crate::messages::Encode as _;
use crate::messages::{HpkeCiphertext, HpkeConfig};
use crate::role::Role;
use crate::version::DapVersion;

/// A failure to encrypt or decrypt. It does not say more, because the reason could help an
/// attacker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum EncryptionError {
    /// The algorithms of a key are not supported.
    #[error(
        "the algorithms {kem_id:#06x}, {kdf_id:#06x}, {aead_id:#06x} are not supported; supported \
         are KEM 0x0020 (X25519), 0x0010 (P-256), 0x0011 (P-384) and 0x0012 (P-521), KDF 0x0001 \
         to 0x0003 (HKDF), AEAD 0x0001 (AES-128-GCM), 0x0002 (AES-256-GCM) and 0x0003 \
         (ChaCha20Poly1305)"
    )]
    Unsupported {
        /// The key encapsulation mechanism.
        kem_id: u16,
        /// The key derivation function.
        kdf_id: u16,
        /// The encryption.
        aead_id: u16,
    },
    /// A public key is not a key of its algorithm.
    #[error("the public key is not a key of KEM {kem_id:#06x}")]
    PublicKey {
        /// The key encapsulation mechanism.
        kem_id: u16,
    },
    /// A private key does not belong to its public key.
    #[error("the private key does not belong to the public key")]
    PrivateKey,
    /// A message names another key.
    #[error("the message is for the key {got}, and this is {expected}")]
    OtherKey {
        /// The number of this key.
        expected: u8,
        /// The number in the message.
        got: u8,
    },
    /// A message cannot be decrypted: it was altered, or it is for another key, role, task or
    /// version.
    #[error("the message cannot be decrypted")]
    Decryption,
}

/// The algorithms and the public key of an aggregator, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipient {
    config: HpkeConfig,
    algorithms: Config,
    /// The bytes that encryption adds to a message.
    overhead: usize,
}

impl Recipient {
    /// The recipient with a public key.
    ///
    /// # Errors
    /// If the algorithms are not supported, or the key is not one of its algorithm.
    pub fn new(config: HpkeConfig) -> Result<Self, EncryptionError> {
        let HpkeConfig {
            kem_id,
            kdf_id,
            aead_id,
            ..
        } = config;
        let algorithms = Config::try_from_ids(aead_id, kdf_id, kem_id);
        let algorithms = algorithms.map_err(|_| EncryptionError::Unsupported {
            kem_id,
            kdf_id,
            aead_id,
        })?;
        let mut recipient = Self {
            config,
            algorithms,
            overhead: 0,
        };
        // From here on, encrypting cannot fail.
        let nothing = recipient.seal(b"", b"", b"")?;
        recipient.overhead = nothing.encoded_len().unwrap_or_default();
        Ok(recipient)
    }

    /// The number of bytes of an encrypted message, encoded, in addition to those of the message.
    pub(crate) fn overhead(&self) -> usize {
        self.overhead
    }

    /// The public key as aggregators publish it.
    pub fn config(&self) -> &HpkeConfig {
        &self.config
    }

    /// Encrypts a message, and authenticates `info` and `aad` with it.
    ///
    /// # Errors
    /// If the public key is not one of its algorithm, which was checked when the recipient was
    /// made.
    pub fn seal(
        &self,
        info: &[u8],
        aad: &[u8],
        plaintext: &[u8],
    ) -> Result<HpkeCiphertext, EncryptionError> {
        let sealed = self
            .algorithms
            .base_mode_seal(&self.config.public_key, info, plaintext, aad);
        let sealed = sealed.map_err(|_| EncryptionError::PublicKey {
            kem_id: self.config.kem_id,
        })?;
        Ok(HpkeCiphertext {
            config_id: self.config.id,
            encapsulated_key: sealed.encapped_key,
            payload: sealed.ciphertext,
        })
    }
}

/// The keys of an aggregator: what it publishes and what it keeps.
#[derive(Clone)]
pub struct HpkeKeys {
    recipient: Recipient,
    private_key: Vec<u8>,
}

/// The private key is not shown.
impl fmt::Debug for HpkeKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HpkeKeys")
            .field("recipient", &self.recipient)
            .finish_non_exhaustive()
    }
}

impl HpkeKeys {
    /// New keys with the algorithms that every implementation of DAP has: X25519, HKDF-SHA256 and
    /// AES-128-GCM.
    ///
    /// # Panics
    /// If the operating system gives no random numbers.
    ///
    /// # Errors
    /// Never: new keys belong together.
    pub fn generate(id: u8) -> Result<Self, EncryptionError> {
        let algorithms = Config {
            aead: hpke_dispatch::Aead::AesGcm128,
            kdf: hpke_dispatch::Kdf::Sha256,
            kem: hpke_dispatch::Kem::X25519HkdfSha256,
        };
        let Keypair {
            public_key,
            private_key,
        } = Keypair::new(algorithms.kem);
        let config = HpkeConfig {
            id,
            kem_id: algorithms.kem as u16,
            kdf_id: algorithms.kdf as u16,
            aead_id: algorithms.aead as u16,
            public_key,
        };
        Self::new(config, private_key)
    }

    /// The keys with a public and a private key.
    ///
    /// # Errors
    /// If the algorithms are not supported, or the keys do not belong together.
    pub fn new(config: HpkeConfig, private_key: Vec<u8>) -> Result<Self, EncryptionError> {
        let keys = Self {
            recipient: Recipient::new(config)?,
            private_key,
        };
        let message = keys.recipient.seal(b"", b"", b"check")?;
        keys.open(b"", b"", &message)
            .map_err(|_| EncryptionError::PrivateKey)?;
        Ok(keys)
    }

    /// The public half.
    pub fn recipient(&self) -> &Recipient {
        &self.recipient
    }

    /// The private half, to be stored where nobody reads it.
    pub fn private_key(&self) -> &[u8] {
        &self.private_key
    }

    /// Decrypts a message.
    ///
    /// # Errors
    /// If the message is for another key, or anything about it was altered.
    pub fn open(
        &self,
        info: &[u8],
        aad: &[u8],
        message: &HpkeCiphertext,
    ) -> Result<Vec<u8>, EncryptionError> {
        let expected = self.recipient.config.id;
        if message.config_id != expected {
            let got = message.config_id;
            return Err(EncryptionError::OtherKey { expected, got });
        }
        self.recipient
            .algorithms
            .base_mode_open(
                &self.private_key,
                &message.encapsulated_key,
                info,
                &message.payload,
                aad,
            )
            .map_err(|_| EncryptionError::Decryption)
    }
}

/// What is authenticated with every share: the version, the purpose, and who sends it to whom (DAP,
/// section Client Behavior). A client has the number 1.
pub fn input_share_info(version: DapVersion, recipient: Role) -> Vec<u8> {
    let purpose = format!("{version} input share");
    [purpose.as_bytes(), &[1, recipient.code()]].concat()
}
