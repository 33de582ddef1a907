//! The extension: its files, its configuration, and the ids by which browsers know it.

use std::fs;
use std::io::{Cursor, Write as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bigbird_dap::{AggregationService, ConfiguredServices};
use bigbird_user_agent::AggregationProtocol;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use zip::CompressionMethod;
use zip::write::{SimpleFileOptions, ZipWriter};

use crate::error::BrowserError;

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_bytes!(concat!("../extension/", $name)))),*]
    };
}

/// The files of the extension, by their paths in its folder. A test compares the list with the
/// folder.
const FILES: &[(&str, &[u8])] = files![
    "background.js",
    "calls.js",
    "clearing.js",
    "config.js",
    "documents.js",
    "gate.js",
    "gate.wasm",
    "headers.js",
    "host.js",
    "icons/bird-128.png",
    "icons/bird-16.png",
    "icons/bird-32.png",
    "icons/bird-48.png",
    "icons/bird.svg",
    "internals-port.js",
    "internals.css",
    "internals.html",
    "internals/badge.js",
    "internals/bar.js",
    "internals/causes.js",
    "internals/connection.js",
    "internals/dialog.js",
    "internals/dom.js",
    "internals/download.js",
    "internals/format.js",
    "internals/main.js",
    "internals/model.js",
    "internals/protocol.js",
    "internals/record-list.js",
    "internals/state.js",
    "internals/toast.js",
    "internals/toolbar.js",
    "internals/views/actions.js",
    "internals/views/ads.js",
    "internals/views/budgets.js",
    "internals/views/conversions.js",
    "internals/views/glossary.js",
    "internals/views/overview.js",
    "internals/views/reports.js",
    "internals/views/view.js",
    "internals/words.js",
    "manifest.json",
    "page.js",
    "policy.js",
    "relay.js",
    "tabs.js",
];

/// The file that is generated when the extension is written.
const CONFIG: &str = "config.js";

/// The file that describes the extension to browsers.
const MANIFEST: &str = "manifest.json";

/// The time by which the extension answers later than the host, so that the host's answer is there,
/// in milliseconds.
const MARGIN_MS: u64 = 250;

/// The part of the configuration that pages and the extension need before they can ask the host.
#[derive(Debug, Clone, PartialEq)]
pub struct ExtensionConfig {
    /// The aggregation services with their public keys.
    pub services: ConfiguredServices,
    /// The name of the rules, such as `big-bird`.
    pub rules: String,
    /// The delay of the host's answers to conversions, in milliseconds.
    pub release_after_ms: u64,
    /// The time for which an activation lasts, in milliseconds.
    pub activation_ms: u64,
}

impl ExtensionConfig {
    /// The default duration of an activation, in milliseconds.
    pub const ACTIVATION_MS: u64 = 15_000;

    /// The script that sets the configuration. It comes before all others.
    ///
    /// # Errors
    /// Never: keys are short enough to be encoded.
    pub fn to_js(&self) -> Result<String, BrowserError> {
        let service = |service: &AggregationService| {
            let protocol = match service.protocol() {
                AggregationProtocol::Dap18Histogram => "dap-18-histogram",
                AggregationProtocol::Dap19Histogram => "dap-19-histogram",
            };
            (service.url().to_owned(), json!({"protocol": protocol}))
        };
        let services: Map<String, Value> = self.services.iter().map(service).collect();
        let config = json!({
            "services": services,
            "servicesToml": self.services_toml()?,
            "profile": self.rules,
            "releaseAfter": self.release_after_ms,
            "answerAfter": self.release_after_ms + MARGIN_MS,
            "activationDuration": self.activation_ms,
        });
        Ok(format!("globalThis.__bigbirdConfig = {config};\n"))
    }

    /// The services as the content of `aggregation-services.toml`.
    ///
    /// # Errors
    /// Never: keys are short enough to be encoded.
    pub fn services_toml(&self) -> Result<String, BrowserError> {
        let entries = self.services.iter().map(AggregationService::to_toml);
        let entries: Result<Vec<String>, _> = entries.collect();
        let entries = entries.map_err(|error| BrowserError::Services(error.to_string()))?;
        Ok(entries.join("\n"))
    }
}

/// The files of the extension with their content, under a configuration.
///
/// # Errors
/// If the configuration cannot be written down.
pub fn extension_files(
    config: &ExtensionConfig,
) -> Result<Vec<(&'static str, Vec<u8>)>, BrowserError> {
    let content = |(name, bytes): &(&'static str, &[u8])| match *name {
        CONFIG => Ok((*name, config.to_js()?.into_bytes())),
        _ => Ok((*name, bytes.to_vec())),
    };
    FILES.iter().map(content).collect()
}

/// Writes the extension into a folder, which is created. Returns the files.
///
/// # Errors
/// If a file cannot be written.
pub fn write_extension(
    folder: &Path,
    config: &ExtensionConfig,
) -> Result<Vec<PathBuf>, BrowserError> {
    let mut written = Vec::new();
    for (name, content) in extension_files(config)? {
        let path = folder.join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(BrowserError::writing(parent))?;
        }
        fs::write(&path, content).map_err(BrowserError::writing(&path))?;
        written.push(path);
    }
    Ok(written)
}

/// The extension as one file for Firefox (.xpi): a ZIP archive.
///
/// # Errors
/// If the configuration cannot be written down.
pub fn extension_archive(config: &ExtensionConfig) -> Result<Vec<u8>, BrowserError> {
    let failed = |error: zip::result::ZipError| BrowserError::Archive(error.to_string());
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    // The same content gives the same bytes: entries have no time of their own.
    let options = SimpleFileOptions::DEFAULT.compression_method(CompressionMethod::Stored);
    for (name, content) in extension_files(config)? {
        archive.start_file(name, options).map_err(failed)?;
        let written = archive.write_all(&content);
        written.map_err(|error| BrowserError::Archive(error.to_string()))?;
    }
    Ok(archive.finish().map_err(failed)?.into_inner())
}

/// The id by which Chromium knows the extension: it follows from the `key` in its manifest.
///
/// # Errors
/// If the manifest that is compiled in has no valid key.
pub fn chromium_id() -> Result<String, BrowserError> {
    let key = manifest()?["key"].as_str().map(|key| STANDARD.decode(key));
    let Some(Ok(key)) = key else {
        return Err(BrowserError::Manifest("key"));
    };
    // The first 16 bytes of the hash, with the letters a to p as hexadecimal digits.
    let letter = |digit: u8| char::from(b'a' + digit);
    let hash = Sha256::digest(key);
    let bytes = hash.iter().take(16);
    Ok(bytes
        .flat_map(|byte| [byte >> 4, byte & 15].map(letter))
        .collect())
}

/// The id by which Firefox knows the extension.
///
/// # Errors
/// If the manifest that is compiled in has no such id.
pub fn firefox_id() -> Result<String, BrowserError> {
    let id = &manifest()?["browser_specific_settings"]["gecko"]["id"];
    let id = id.as_str().ok_or(BrowserError::Manifest("id"))?;
    Ok(id.to_owned())
}

fn manifest() -> Result<Value, BrowserError> {
    let file = FILES.iter().find(|(name, _)| *name == MANIFEST);
    let parsed = file.and_then(|(_, bytes)| serde_json::from_slice(bytes).ok());
    parsed.ok_or(BrowserError::Manifest(MANIFEST))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::Read as _;

    use super::*;

    fn config() -> ExtensionConfig {
        let mut services = ConfiguredServices::new();
        for url in ["https://agg.example", "https://other.example/\"</script>"] {
            services.insert(AggregationService::without_operator(url).unwrap());
        }
        ExtensionConfig {
            services,
            rules: "big-bird".to_owned(),
            release_after_ms: 2000,
            activation_ms: ExtensionConfig::ACTIVATION_MS,
        }
    }

    /// The files below a folder, as paths with slashes.
    fn below(folder: &Path, prefix: &str, names: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let name = format!("{prefix}{}", entry.file_name().to_str().unwrap());
            match entry.file_type().unwrap().is_dir() {
                true => below(&entry.path(), &format!("{name}/"), names),
                false => assert!(names.insert(name)),
            }
        }
    }

    /// Notes beside the files that no browser needs.
    const NOT_SHIPPED: [&str; 1] = ["gate.wasm.sources"];

    #[test]
    fn every_file_of_the_folder_is_embedded() {
        let mut names = BTreeSet::new();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("extension");
        below(&folder, "", &mut names);
        names.retain(|name| !NOT_SHIPPED.contains(&name.as_str()));
        let listed: BTreeSet<String> = FILES.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(
            listed, names,
            "the list FILES and the folder browser/extension differ"
        );
    }

    #[test]
    fn the_configuration_is_one_assignment_of_json() {
        let config = config();
        let script = config.to_js().unwrap();
        let assigned = script
            .strip_prefix("globalThis.__bigbirdConfig = ")
            .unwrap();
        let value: Value = serde_json::from_str(assigned.strip_suffix(";\n").unwrap()).unwrap();
        assert_eq!(value["answerAfter"], 2250);
        assert_eq!(value["activationDuration"], 15_000);
        assert_eq!(value["profile"], "big-bird");
        let protocol = json!({"protocol": "dap-18-histogram"});
        assert_eq!(value["services"]["https://agg.example"], protocol);
        // The host and the extension read the same services.
        let toml = value["servicesToml"].as_str().unwrap();
        assert!(toml.contains("url = \"https://agg.example\""), "{toml}");
        assert_eq!(script.lines().count(), 1);
    }

    #[test]
    fn the_archive_has_every_file_with_its_content() {
        let bytes = extension_archive(&config()).unwrap();
        let mut archive = zip::ZipArchive::new(Cursor::new(bytes)).unwrap();
        assert_eq!(archive.len(), FILES.len());
        for (name, content) in extension_files(&config()).unwrap() {
            let mut stored = Vec::new();
            archive
                .by_name(name)
                .unwrap()
                .read_to_end(&mut stored)
                .unwrap();
            match name {
                CONFIG => assert!(stored.starts_with(b"globalThis.")),
                _ => assert_eq!(stored, content, "{name}"),
            }
        }
    }

    #[test]
    fn ids_are_those_of_the_manifest() {
        let id = chromium_id().unwrap();
        assert_eq!(id.len(), 32);
        assert!(id.bytes().all(|byte| (b'a'..=b'p').contains(&byte)), "{id}");
        assert!(firefox_id().unwrap().contains('@'));
    }
}
