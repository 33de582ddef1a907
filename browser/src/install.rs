//! Installing the extension and its host for a browser of this user, and removing them again.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::BrowserError;
use crate::extension::{ExtensionConfig, extension_archive, extension_files, firefox_id};
use crate::kind::{BrowserKind, UserFolders};
use crate::registration::{HostCommand, host_manifest, manifest_file, write_file};

/// The list of what was installed, in the folder of the browser. `uninstall` reads it.
const LIST: &str = "installed-files";

/// A file that is installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstalledFile {
    /// Its path.
    pub path: PathBuf,
    /// What it is for, in a few words.
    pub purpose: &'static str,
    content: Vec<u8>,
    executable: bool,
}

/// Everything that an installation writes, before it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installation {
    kind: BrowserKind,
    /// The files, in the order in which they are written.
    pub files: Vec<InstalledFile>,
    /// The folder of the extension.
    pub extension: PathBuf,
    /// The folder with the stores, which are not part of an installation.
    pub stores: PathBuf,
    /// The archive in a profile of Firefox, if there is one.
    pub archive: Option<PathBuf>,
}

/// What an installation is made from.
#[derive(Debug)]
pub struct InstallOptions<'a> {
    /// The browser.
    pub kind: BrowserKind,
    /// The user's folders.
    pub folders: &'a UserFolders,
    /// The profile of Firefox that gets the extension as a file: its folder, or its name.
    pub profile: Option<&'a str>,
    /// The configuration of the extension.
    pub config: &'a ExtensionConfig,
    /// The `bigbird` program.
    pub program: &'a Path,
    /// The arguments of the host, without the place of its store and its services.
    pub arguments: Vec<OsString>,
}

impl Installation {
    /// The files that an installation writes. Nothing is written yet.
    ///
    /// # Errors
    /// If the profile does not exist, or a path cannot be part of a manifest.
    pub fn plan(options: InstallOptions<'_>) -> Result<Self, BrowserError> {
        let InstallOptions {
            kind,
            folders,
            profile,
            config,
            program,
            mut arguments,
        } = options;
        let folder = folder_of(kind, folders);
        let stores = folders.bigbird();
        let extension = folder.join("extension");
        let mut files = Vec::new();
        let mut add = |path: PathBuf, purpose, content, executable| {
            files.push(InstalledFile {
                path,
                purpose,
                content,
                executable,
            });
        };
        for (name, content) in extension_files(config)? {
            add(extension.join(name), "extension", content, false);
        }
        arguments.extend(["--folder".into(), stores.clone().into()]);
        let services = config.services_toml()?;
        if !services.is_empty() {
            let path = folder.join("aggregation-services.toml");
            arguments.extend(["--aggregation-services".into(), path.clone().into()]);
            add(path, "aggregation services", services.into_bytes(), false);
        }
        let launcher = folder.join("native-host");
        let manifest = host_manifest(kind, &launcher)?;
        let command = HostCommand {
            program: program.to_owned(),
            arguments,
        };
        add(
            launcher,
            "launcher of the host",
            command.launcher()?.into_bytes(),
            true,
        );
        let path = kind.host_folder(folders).join(manifest_file());
        add(path, "manifest of the host", manifest.into_bytes(), false);
        let archive = match profile {
            Some(profile) if kind.is_firefox() => {
                let profile = firefox_profile(profile, folders)?;
                let path = profile
                    .join("extensions")
                    .join(format!("{}.xpi", firefox_id()?));
                add(
                    path.clone(),
                    "extension in the profile",
                    extension_archive(config)?,
                    false,
                );
                Some(path)
            }
            _ => None,
        };
        Ok(Self {
            kind,
            files,
            extension,
            stores,
            archive,
        })
    }

    /// Writes the files, and the list of them.
    ///
    /// # Errors
    /// If a file cannot be written. The list then has those that were.
    pub fn write(&self, folders: &UserFolders) -> Result<(), BrowserError> {
        let list = list_of(self.kind, folders);
        // The list comes first, and keeps what an earlier installation wrote, so that whatever
        // happens, `uninstall` finds every file.
        let mut paths = match fs::read_to_string(&list) {
            Ok(text) => text.lines().map(PathBuf::from).collect(),
            Err(_) => Vec::new(),
        };
        for file in &self.files {
            if !paths.contains(&file.path) {
                paths.push(file.path.clone());
            }
        }
        let lines = paths.iter().map(|path| match path.to_str() {
            Some(path) => Ok(format!("{path}\n")),
            None => Err(BrowserError::Path(path.clone())),
        });
        let lines: String = lines.collect::<Result<_, _>>()?;
        write_file(&list, lines.as_bytes(), false)?;
        let mut files = self.files.iter();
        files.try_for_each(|file| write_file(&file.path, &file.content, file.executable))
    }

    /// The steps that are left to the user, because browsers do not let a program take them.
    pub fn remaining_steps(&self) -> Vec<String> {
        let extension = self.extension.display();
        let mut steps = Vec::new();
        if self.kind.is_firefox() {
            match &self.archive {
                Some(_) => steps.extend([
                    "Firefox ESR, Developer Edition and Nightly take an unsigned extension; other \
                     Firefox refuses it without a message. Open about:config and set \
                     xpinstall.signatures.required to false."
                        .to_owned(),
                    "Start Firefox again, open about:addons and switch on \"Big Bird\".".to_owned(),
                ]),
                None => steps.extend([
                    "Firefox keeps only signed extensions. This one is not signed, so it is loaded \
                     until Firefox ends: open about:debugging#/runtime/this-firefox."
                        .to_owned(),
                    format!(
                        "Choose \"Load Temporary Add-on\" and the file {extension}/manifest.json."
                    ),
                    "Firefox ESR, Developer Edition and Nightly can keep it: run `bigbird browser \
                     install --browser firefox --browser-profile NAME`."
                        .to_owned(),
                ]),
            }
            steps.push(
                "In about:addons, choose \"Big Bird\" and allow \"Run in Private Windows\"; \
                 otherwise pages can tell that a window is private."
                    .to_owned(),
            );
            steps.push(
                "A Firefox from Snap or Flatpak starts hosts through a portal, which asks once; if \
                 it never asks, use a Firefox from another source."
                    .to_owned(),
            );
        } else {
            steps.extend([
                format!(
                    "{} does not let programs install extensions. Open chrome://extensions and \
                     switch on \"Developer mode\".",
                    self.kind.name()
                ),
                format!("Choose \"Load unpacked\" and the folder {extension}."),
                "On the extension's \"Details\", allow it in Incognito; otherwise pages can tell \
                 that a window is private."
                    .to_owned(),
                "A browser from Snap or Flatpak cannot start programs outside of it; use one from \
                 another source."
                    .to_owned(),
            ]);
        }
        steps
    }
}

/// What `uninstall` did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removal {
    /// The files that were removed, or would be.
    pub removed: Vec<PathBuf>,
    /// The files of the list that were gone already.
    pub gone: Vec<PathBuf>,
    /// The folder with the stores, which are kept.
    pub stores: PathBuf,
}

/// Removes what [`Installation::write`] wrote, and nothing more. With `dry_run`, only says what
/// would be removed.
///
/// # Errors
/// If nothing is installed, or a file cannot be removed.
pub fn uninstall(
    kind: BrowserKind,
    folders: &UserFolders,
    dry_run: bool,
) -> Result<Removal, BrowserError> {
    let list = list_of(kind, folders);
    let text = match fs::read_to_string(&list) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let name = kind.name();
            return Err(BrowserError::NothingInstalled { name, list });
        }
        Err(error) => return Err(BrowserError::reading(&list)(error)),
    };
    let (mut removed, mut gone) = (Vec::new(), Vec::new());
    for path in text.lines().map(PathBuf::from).chain([list]) {
        match path.symlink_metadata() {
            Err(_) => gone.push(path),
            Ok(_) => {
                if !dry_run {
                    fs::remove_file(&path).map_err(BrowserError::removing(&path))?;
                }
                removed.push(path);
            }
        }
    }
    if !dry_run {
        // Folders that are empty now and are ours. A folder with other files stays.
        let folder = folder_of(kind, folders);
        let mut empty: Vec<PathBuf> = removed
            .iter()
            .flat_map(|path| path.ancestors().skip(1))
            .filter(|path| path.starts_with(&folder))
            .map(Path::to_owned)
            .collect();
        empty.sort_by_key(|path| std::cmp::Reverse(path.components().count()));
        for folder in empty {
            let _ = fs::remove_dir(folder);
        }
    }
    Ok(Removal {
        removed,
        gone,
        stores: folders.bigbird(),
    })
}

/// The folder of everything that is installed for a browser, except what must be elsewhere.
fn folder_of(kind: BrowserKind, folders: &UserFolders) -> PathBuf {
    folders.bigbird().join("browsers").join(kind.key())
}

fn list_of(kind: BrowserKind, folders: &UserFolders) -> PathBuf {
    folder_of(kind, folders).join(LIST)
}

/// The folder of a profile of Firefox, by its path or by its name, such as `default-esr`.
fn firefox_profile(given: &str, folders: &UserFolders) -> Result<PathBuf, BrowserError> {
    let path = Path::new(given);
    if path.is_absolute() && path.is_dir() {
        return Ok(path.to_owned());
    }
    let profiles = BrowserKind::firefox_profiles(folders);
    let mut known = Vec::new();
    for entry in fs::read_dir(&profiles).into_iter().flatten().flatten() {
        // A folder is named `x1y2z3.default-esr`. One with `prefs.js` is a profile in use.
        let (name, path) = (entry.file_name(), entry.path());
        let Some(name) = name.to_str().filter(|_| path.join("prefs.js").is_file()) else {
            continue;
        };
        let short = name.split_once('.').map_or(name, |(_, short)| short);
        if given == name || given == short {
            return Ok(path);
        }
        known.push(short.to_owned());
    }
    known.sort();
    let known = match known.is_empty() {
        true => format!("none in {}", profiles.display()),
        false => known.join(", "),
    };
    let given = given.to_owned();
    Err(BrowserError::Profile { given, known })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use bigbird_dap::{AggregationService, ConfiguredServices};
    use bigbird_testing::Folder;

    use super::*;

    fn config() -> ExtensionConfig {
        let mut services = ConfiguredServices::new();
        services.insert(AggregationService::without_operator("https://agg.example").unwrap());
        ExtensionConfig {
            services,
            rules: "big-bird".to_owned(),
            release_after_ms: 2000,
            activation_ms: ExtensionConfig::ACTIVATION_MS,
        }
    }

    fn folders(home: &Path) -> UserFolders {
        UserFolders {
            home: home.to_owned(),
            config: home.join(".config"),
            data: home.join(".local/share"),
            mac: false,
        }
    }

    fn plan(kind: BrowserKind, folders: &UserFolders, profile: Option<&str>) -> Installation {
        let planned = Installation::plan(InstallOptions {
            kind,
            folders,
            profile,
            config: &config(),
            program: Path::new("/usr/bin/bigbird"),
            arguments: vec!["--profile".into(), "big-bird".into()],
        });
        planned.unwrap()
    }

    fn files_below(folder: &Path, files: &mut BTreeSet<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            match entry.path().is_dir() {
                true => files_below(&entry.path(), files),
                false => assert!(files.insert(entry.path())),
            }
        }
    }

    #[test]
    fn what_is_installed_is_removed_and_nothing_more() {
        for kind in BrowserKind::ALL {
            let home = Folder::in_memory();
            let folders = folders(home.path());
            // Files that were there before, among them a store.
            let store = folders.bigbird().join("p1.store");
            let other = kind.host_folder(&folders).join("other.json");
            for path in [&store, &other] {
                write_file(path, b"mine", false).unwrap();
            }
            let mut before = BTreeSet::new();
            files_below(home.path(), &mut before);

            // Twice, because an update is an installation over another.
            for _ in 0..2 {
                plan(kind, &folders, None).write(&folders).unwrap();
            }
            let would = uninstall(kind, &folders, true).unwrap();
            let done = uninstall(kind, &folders, false).unwrap();
            assert_eq!(would, done);
            assert!(done.gone.is_empty());
            let mut after = BTreeSet::new();
            files_below(home.path(), &mut after);
            assert_eq!(before, after);
            assert!(uninstall(kind, &folders, false).is_err());
        }
    }

    #[test]
    fn the_launcher_starts_the_host_with_the_services_of_the_extension() {
        let home = Folder::in_memory();
        let folders = folders(home.path());
        let installation = plan(BrowserKind::Chromium, &folders, None);
        installation.write(&folders).unwrap();
        let launcher = installation.files.iter().find(|it| it.executable).unwrap();
        let text = String::from_utf8(launcher.content.clone()).unwrap();
        let base = folders.bigbird();
        let expected = format!(
            "exec /usr/bin/bigbird native-host --profile big-bird --folder {base} \
             --aggregation-services {base}/browsers/chromium/aggregation-services.toml \"$@\"",
            base = base.display()
        );
        assert_eq!(text.lines().last(), Some(expected.as_str()));
        let services = base.join("browsers/chromium/aggregation-services.toml");
        let services = fs::read_to_string(services).unwrap();
        assert!(ConfiguredServices::parse(&services).is_ok());
    }

    #[test]
    fn a_profile_of_firefox_is_found_by_its_name() {
        let home = Folder::in_memory();
        let folders = folders(home.path());
        let profile = home.path().join(".mozilla/firefox/abc.default-esr");
        write_file(&profile.join("prefs.js"), b"", false).unwrap();
        for name in ["default-esr", "abc.default-esr", profile.to_str().unwrap()] {
            let installation = plan(BrowserKind::Firefox, &folders, Some(name));
            let archive = installation.archive.unwrap();
            assert!(archive.starts_with(&profile), "{}", archive.display());
        }
        let error = firefox_profile("work", &folders).unwrap_err().to_string();
        assert_eq!(
            error,
            "unknown profile `work`; use a folder, or one of: default-esr"
        );
    }
}
