//! The secrets of an aggregator, as a file.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use thiserror::Error;

use crate::hpke::{EncryptionError, HpkeKeys};
use crate::messages::{CodecError, Decode as _, Encode as _, HpkeConfig};
use crate::role::Role;
use crate::service::line_of;
use crate::vdaf::VerifyKeyBytes;

/// The key with which both aggregators verify proofs. No client may know it: a client that does can
/// make proofs of anything.
#[derive(Clone, PartialEq, Eq)]
pub struct VerifyKey(pub(crate) VerifyKeyBytes);

/// The key is not shown.
impl fmt::Debug for VerifyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("VerifyKey").finish_non_exhaustive()
    }
}

/// The secrets of one aggregator.
#[derive(Debug, Clone)]
pub struct AggregatorKeys {
    /// Its role.
    pub role: Role,
    /// The keys to which clients encrypt.
    pub hpke: HpkeKeys,
    /// The key that it shares with the other aggregator.
    pub verify_key: VerifyKey,
}

/// Keys that cannot be generated or read.
#[derive(Debug, Error)]
pub enum KeysError {
    /// The operating system gives no random numbers.
    #[error("the operating system gives no random numbers: {0}")]
    Randomness(String),
    /// The file is not one of keys.
    #[error("line {line}: {message}")]
    Form {
        /// The line, counted from 1.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// A value is not one of its kind.
    #[error("{field}: {message}")]
    Value {
        /// The name of the value.
        field: &'static str,
        /// What is wrong.
        message: String,
    },
    /// The keys cannot be used.
    #[error(transparent)]
    Encryption(#[from] EncryptionError),
    /// The keys cannot be encoded.
    #[error("the keys cannot be encoded: {0}")]
    Encoding(#[from] CodecError),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeysFile {
    role: String,
    hpke_config: String,
    hpke_private_key: String,
    vdaf_verify_key: String,
}

impl AggregatorKeys {
    /// New keys of a leader and a helper that work together. `id` is the number by which reports
    /// name the keys.
    ///
    /// # Errors
    /// If the operating system gives no random numbers.
    pub fn generate(id: u8) -> Result<[Self; 2], KeysError> {
        let mut verify_key = [0; 32];
        getrandom::fill(&mut verify_key)
            .map_err(|error| KeysError::Randomness(error.to_string()))?;
        let keys = |role| {
            Ok::<_, KeysError>(Self {
                role,
                hpke: HpkeKeys::generate(id)?,
                verify_key: VerifyKey(verify_key),
            })
        };
        Ok([keys(Role::Leader)?, keys(Role::Helper)?])
    }

    /// The keys as a file.
    ///
    /// # Errors
    /// Never: keys are short enough to be encoded.
    pub fn to_toml(&self) -> Result<String, KeysError> {
        let config = self.hpke.recipient().config().get_encoded()?;
        Ok(format!(
            "# The secrets of the {role}. Keep this file where only the {role} can read it.\n\
             role = \"{role}\"\n\
             # The public key: HpkeConfig of DAP. This and the keys below are in base64 for URLs.\n\
             hpke_config = \"{config}\"\n\
             hpke_private_key = \"{private_key}\"\n\
             # The leader and the helper share this key. Clients must not know it.\n\
             vdaf_verify_key = \"{verify_key}\"\n",
            role = self.role,
            config = URL_SAFE_NO_PAD.encode(config),
            private_key = URL_SAFE_NO_PAD.encode(self.hpke.private_key()),
            verify_key = URL_SAFE_NO_PAD.encode(self.verify_key.0),
        ))
    }

    /// Parses and checks a file of keys.
    ///
    /// # Errors
    /// If anything in the text is wrong.
    pub fn parse(text: &str) -> Result<Self, KeysError> {
        let file: KeysFile = toml::from_str(text).map_err(|error| KeysError::Form {
            line: line_of(text, error.span().unwrap_or_default().start),
            message: error.message().to_owned(),
        })?;
        let value = |field, message: String| KeysError::Value { field, message };
        let bytes = |field, text: &str| {
            let decoded = URL_SAFE_NO_PAD.decode(text.trim_end_matches('='));
            decoded.map_err(|error| value(field, format!("it is not base64 for URLs: {error}")))
        };
        let mut roles = Role::ALL.into_iter();
        let role = roles.find(|role| role.name() == file.role).ok_or_else(|| {
            let message = format!("it must be `leader` or `helper`, got `{}`", file.role);
            value("role", message)
        })?;
        let config = HpkeConfig::get_decoded(&bytes("hpke_config", &file.hpke_config)?)
            .map_err(|error| value("hpke_config", format!("it is not an HpkeConfig: {error}")))?;
        let private_key = bytes("hpke_private_key", &file.hpke_private_key)?;
        let verify_key = bytes("vdaf_verify_key", &file.vdaf_verify_key)?;
        let verify_key = VerifyKeyBytes::try_from(verify_key).map_err(|wrong| {
            let message = format!("it must have 32 bytes, got {}", wrong.len());
            value("vdaf_verify_key", message)
        })?;
        Ok(Self {
            role,
            hpke: HpkeKeys::new(config, private_key)?,
            verify_key: VerifyKey(verify_key),
        })
    }
}
