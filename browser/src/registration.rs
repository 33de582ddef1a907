//! The registration of the native host: the manifest by which a browser finds it, and the launcher
//! that the manifest names. Manifests cannot carry arguments, so the launcher has them.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::error::BrowserError;
use crate::extension::{chromium_id, firefox_id};
use crate::kind::BrowserKind;

/// The name by which the extension asks for the host.
pub const HOST_NAME: &str = "org.bigbird.attribution";

/// A program with its arguments that browsers start as the native host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostCommand {
    /// The `bigbird` program.
    pub program: PathBuf,
    /// The arguments after `native-host`, such as the place of the store.
    pub arguments: Vec<OsString>,
}

impl HostCommand {
    /// The launcher: a script that becomes the host.
    ///
    /// # Errors
    /// If an argument is not valid UTF-8.
    pub fn launcher(&self) -> Result<String, BrowserError> {
        let mut words = vec![quoted(self.program.as_os_str())?, "native-host".to_owned()];
        for argument in &self.arguments {
            words.push(quoted(argument)?);
        }
        Ok(format!(
            "#!/bin/sh\n\
             # The browser starts this script for the Big Bird extension. `bigbird browser` wrote \
             it.\n\
             exec {} \"$@\"\n",
            words.join(" ")
        ))
    }
}

/// The manifest that leads a browser to a launcher. Only our extension may start it.
///
/// # Errors
/// If the path is not valid UTF-8.
pub fn host_manifest(kind: BrowserKind, launcher: &Path) -> Result<String, BrowserError> {
    let Some(path) = launcher.to_str() else {
        return Err(BrowserError::Path(launcher.to_owned()));
    };
    let mut manifest = json!({
        "name": HOST_NAME,
        "description": "Privacy budgets of navigator.attribution (Big Bird)",
        "path": path,
        "type": "stdio",
    });
    match kind.is_firefox() {
        true => manifest["allowed_extensions"] = json!([firefox_id()?]),
        false => {
            let origin = format!("chrome-extension://{}/", chromium_id()?);
            manifest["allowed_origins"] = json!([origin]);
        }
    }
    Ok(format!("{manifest:#}\n"))
}

/// The name of the manifest's file, which browsers derive from the name of the host.
pub(crate) fn manifest_file() -> String {
    format!("{HOST_NAME}.json")
}

/// Writes a file, with the folders above it. Only its owner may change it, and run it if it is
/// `executable`.
pub(crate) fn write_file(
    path: &Path,
    content: &[u8],
    executable: bool,
) -> Result<(), BrowserError> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(BrowserError::writing(parent))?;
    }
    fs::write(path, content).map_err(BrowserError::writing(path))?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = if executable { 0o755 } else { 0o644 };
        let set = fs::set_permissions(path, fs::Permissions::from_mode(mode));
        set.map_err(BrowserError::writing(path))?;
    }
    #[cfg(not(unix))]
    let _ = executable;
    Ok(())
}

/// A word of a shell command, quoted if it has to be.
fn quoted(word: &OsStr) -> Result<String, BrowserError> {
    let Some(text) = word.to_str() else {
        return Err(BrowserError::Path(word.into()));
    };
    let plain =
        |character: char| character.is_ascii_alphanumeric() || "/.-_:=,@%+".contains(character);
    Ok(match !text.is_empty() && text.chars().all(plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_launcher_keeps_every_argument() {
        let command = HostCommand {
            program: "/opt/big bird/bigbird".into(),
            arguments: ["--folder", "/home/o'hara/data", "", "$(true) \"x\" `y` \\z"]
                .map(OsString::from)
                .to_vec(),
        };
        let launcher = command.launcher().unwrap();
        let expected = [
            "exec '/opt/big bird/bigbird' native-host --folder",
            r"'/home/o'\''hara/data'",
            "''",
            r#"'$(true) "x" `y` \z'"#,
            "\"$@\"",
        ];
        assert_eq!(launcher.lines().last().unwrap(), expected.join(" "));
    }

    #[test]
    fn a_manifest_allows_our_extension_alone() {
        for kind in BrowserKind::ALL {
            let manifest = host_manifest(kind, Path::new("/data/host")).unwrap();
            let manifest: Value = serde_json::from_str(&manifest).unwrap();
            assert_eq!(manifest["name"], HOST_NAME);
            assert_eq!(manifest["path"], "/data/host");
            assert_eq!(manifest["type"], "stdio");
            let allowed = match kind.is_firefox() {
                true => json!({"allowed_extensions": [firefox_id().unwrap()]}),
                false => json!({
                    "allowed_origins": [format!("chrome-extension://{}/", chromium_id().unwrap())],
                }),
            };
            for (field, value) in allowed.as_object().unwrap() {
                assert_eq!(manifest[field], *value);
            }
            assert_eq!(manifest.as_object().unwrap().len(), 5);
        }
    }
}
