//! Browsers: their names, their programs, and the folders in which they look for native hosts.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use thiserror::Error;

use crate::error::BrowserError;

/// A browser that Big Bird can be installed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BrowserKind {
    /// Firefox, of any channel.
    Firefox,
    /// Chromium.
    Chromium,
    /// Google Chrome.
    Chrome,
    /// Microsoft Edge.
    Edge,
    /// Brave.
    Brave,
    /// Vivaldi.
    Vivaldi,
}

/// A name that is not the name of a browser.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("unknown browser `{0}`; use one of: {names}", names = BrowserKind::names())]
pub struct UnknownBrowser(String);

/// The user's folders and the system, which decide where a browser looks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserFolders {
    /// The folder of the user.
    pub home: PathBuf,
    /// The folder for settings: $XDG_CONFIG_HOME, or ~/.config.
    pub config: PathBuf,
    /// The folder for data: $XDG_DATA_HOME, or ~/.local/share.
    pub data: PathBuf,
    /// True on macOS.
    pub mac: bool,
}

impl UserFolders {
    /// The folders that the environment names.
    ///
    /// # Errors
    /// If the environment names no folder of the user, or the system is not supported.
    pub fn from_environment() -> Result<Self, BrowserError> {
        if cfg!(windows) {
            return Err(BrowserError::System("bigbird browser"));
        }
        Self::of(|name| env::var_os(name).map(PathBuf::from))
    }

    /// The folders that variables name. A relative path counts as unset, as the XDG specification
    /// says.
    fn of(variable: impl Fn(&str) -> Option<PathBuf>) -> Result<Self, BrowserError> {
        let folder = |name| variable(name).filter(|path| path.is_absolute());
        let home = folder("HOME").ok_or(BrowserError::NoHome)?;
        Ok(Self {
            config: folder("XDG_CONFIG_HOME").unwrap_or_else(|| home.join(".config")),
            data: folder("XDG_DATA_HOME").unwrap_or_else(|| home.join(".local/share")),
            home,
            mac: cfg!(target_os = "macos"),
        })
    }

    /// The folder of Big Bird's own data: the stores, and what is installed for browsers.
    pub fn bigbird(&self) -> PathBuf {
        self.data.join("bigbird")
    }
}

impl BrowserKind {
    /// All browsers, those that load the extension without help first.
    pub const ALL: [Self; 6] = [
        Self::Firefox,
        Self::Chromium,
        Self::Chrome,
        Self::Edge,
        Self::Brave,
        Self::Vivaldi,
    ];

    /// The name on the command line.
    pub fn key(self) -> &'static str {
        match self {
            Self::Firefox => "firefox",
            Self::Chromium => "chromium",
            Self::Chrome => "chrome",
            Self::Edge => "edge",
            Self::Brave => "brave",
            Self::Vivaldi => "vivaldi",
        }
    }

    /// The name of the product.
    pub fn name(self) -> &'static str {
        match self {
            Self::Firefox => "Firefox",
            Self::Chromium => "Chromium",
            Self::Chrome => "Google Chrome",
            Self::Edge => "Microsoft Edge",
            Self::Brave => "Brave",
            Self::Vivaldi => "Vivaldi",
        }
    }

    fn names() -> String {
        Self::ALL.map(Self::key).join(", ")
    }

    /// True for Firefox. All others are made from Chromium.
    pub fn is_firefox(self) -> bool {
        self == Self::Firefox
    }

    /// The programs that start it, those that accept unsigned extensions first.
    pub fn programs(self) -> &'static [&'static str] {
        match self {
            Self::Firefox => &[
                "firefox-esr",
                "firefox-developer-edition",
                "firefox-nightly",
                "firefox",
                "/Applications/Firefox.app/Contents/MacOS/firefox",
            ],
            Self::Chromium => &[
                "chromium",
                "chromium-browser",
                "/Applications/Chromium.app/Contents/MacOS/Chromium",
            ],
            Self::Chrome => &[
                "google-chrome",
                "google-chrome-stable",
                "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
            ],
            Self::Edge => &[
                "microsoft-edge",
                "microsoft-edge-stable",
                "/Applications/Microsoft Edge.app/Contents/MacOS/Microsoft Edge",
            ],
            Self::Brave => &[
                "brave-browser",
                "brave",
                "/Applications/Brave Browser.app/Contents/MacOS/Brave Browser",
            ],
            Self::Vivaldi => &[
                "vivaldi",
                "vivaldi-stable",
                "/Applications/Vivaldi.app/Contents/MacOS/Vivaldi",
            ],
        }
    }

    /// What to install if it is missing.
    fn advice(self) -> &'static str {
        match self {
            Self::Firefox => "on Debian install it with `apt install firefox-esr`",
            Self::Chromium => "on Debian install it with `apt install chromium`",
            _ => "install it, or use --browser firefox or --browser chromium",
        }
    }

    /// The program that starts it.
    ///
    /// # Errors
    /// If none is installed.
    pub fn program(self) -> Result<PathBuf, BrowserError> {
        let found = self.programs().iter().find_map(|name| in_path(name));
        found.ok_or_else(|| BrowserError::NotInstalled {
            name: self.name(),
            programs: self.programs().join(", "),
            advice: self.advice(),
        })
    }

    /// The first browser that is installed, of those that load the extension without help.
    ///
    /// # Errors
    /// If none is installed.
    pub fn any() -> Result<Self, BrowserError> {
        let candidates = [Self::Firefox, Self::Chromium];
        let installed = |kind: &Self| kind.program().is_ok();
        candidates.into_iter().find(installed).ok_or_else(|| {
            let programs: Vec<&str> = candidates
                .iter()
                .flat_map(|it| it.programs())
                .copied()
                .collect();
            BrowserError::NoBrowser {
                programs: programs.join(", "),
            }
        })
    }

    /// The folder in which it looks for manifests of native hosts.
    pub fn host_folder(self, folders: &UserFolders) -> PathBuf {
        let below = match (self, folders.mac) {
            (Self::Firefox, false) => return folders.home.join(".mozilla/native-messaging-hosts"),
            (Self::Firefox, true) => "Mozilla",
            (Self::Chromium, false) => "chromium",
            (Self::Chromium, true) => "Chromium",
            (Self::Chrome, false) => "google-chrome",
            (Self::Chrome, true) => "Google/Chrome",
            (Self::Edge, false) => "microsoft-edge",
            (Self::Edge, true) => "Microsoft Edge",
            (Self::Brave, _) => "BraveSoftware/Brave-Browser",
            (Self::Vivaldi, false) => "vivaldi",
            (Self::Vivaldi, true) => "Vivaldi",
        };
        let settings = match folders.mac {
            true => folders.home.join("Library/Application Support"),
            false => folders.config.clone(),
        };
        settings.join(below).join("NativeMessagingHosts")
    }

    /// The folder with the profiles of Firefox.
    pub(crate) fn firefox_profiles(folders: &UserFolders) -> PathBuf {
        match folders.mac {
            true => folders
                .home
                .join("Library/Application Support/Firefox/Profiles"),
            false => folders.home.join(".mozilla/firefox"),
        }
    }
}

impl fmt::Display for BrowserKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.key())
    }
}

impl FromStr for BrowserKind {
    type Err = UnknownBrowser;

    fn from_str(text: &str) -> Result<Self, UnknownBrowser> {
        let found = Self::ALL.into_iter().find(|kind| kind.key() == text);
        found.ok_or_else(|| UnknownBrowser(text.to_owned()))
    }
}

/// A program in PATH, or at a path of its own.
fn in_path(name: &str) -> Option<PathBuf> {
    if Path::new(name).is_absolute() {
        return Path::new(name).is_file().then(|| name.into());
    }
    let path = env::var_os("PATH")?;
    let candidates = env::split_paths(&path).map(|folder| folder.join(name));
    candidates.into_iter().find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folders(mac: bool) -> UserFolders {
        UserFolders {
            home: "/home/ada".into(),
            config: "/home/ada/.config".into(),
            data: "/home/ada/.local/share".into(),
            mac,
        }
    }

    #[test]
    fn hosts_are_where_each_browser_looks() {
        for (kind, mac, expected) in [
            (
                BrowserKind::Firefox,
                false,
                ".mozilla/native-messaging-hosts",
            ),
            (
                BrowserKind::Chromium,
                false,
                ".config/chromium/NativeMessagingHosts",
            ),
            (
                BrowserKind::Chrome,
                false,
                ".config/google-chrome/NativeMessagingHosts",
            ),
            (
                BrowserKind::Edge,
                false,
                ".config/microsoft-edge/NativeMessagingHosts",
            ),
            (
                BrowserKind::Firefox,
                true,
                "Library/Application Support/Mozilla/NativeMessagingHosts",
            ),
            (
                BrowserKind::Chrome,
                true,
                "Library/Application Support/Google/Chrome/NativeMessagingHosts",
            ),
        ] {
            let folder = kind.host_folder(&folders(mac));
            assert_eq!(folder, Path::new("/home/ada").join(expected));
        }
    }

    #[test]
    fn names_are_read_back_and_others_refused() {
        for kind in BrowserKind::ALL {
            assert_eq!(kind.key().parse(), Ok(kind));
        }
        assert_eq!(
            "lynx".parse::<BrowserKind>().unwrap_err().to_string(),
            "unknown browser `lynx`; use one of: firefox, chromium, chrome, edge, brave, vivaldi"
        );
    }

    #[test]
    fn the_environment_names_folders() {
        let set = |name: &str| match name {
            "HOME" => Some("/home/ada".into()),
            "XDG_DATA_HOME" => Some("/data".into()),
            "XDG_CONFIG_HOME" => Some("relative".into()),
            _ => None,
        };
        let folders = UserFolders::of(set).unwrap();
        assert_eq!(folders.bigbird(), Path::new("/data/bigbird"));
        assert_eq!(folders.config, Path::new("/home/ada/.config"));
        assert!(UserFolders::of(|_| None).is_err());
    }
}
