//! Errors of everything that touches a browser.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// The reason why something with a browser could not be done.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BrowserError {
    /// A file could not be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// The cause of the failure.
        source: io::Error,
    },
    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The cause of the failure.
        source: io::Error,
    },
    /// A file could not be removed.
    #[error("cannot remove {}: {source}", path.display())]
    Remove {
        /// The file or folder.
        path: PathBuf,
        /// The cause of the failure.
        source: io::Error,
    },
    /// A path cannot be part of a manifest, which is JSON.
    #[error("the path {} is not valid UTF-8, which browsers require", .0.display())]
    Path(PathBuf),
    /// No folder of the user is known.
    #[error("HOME does not name a folder; set it to the user's folder")]
    NoHome,
    /// The browser cannot be used on this system.
    #[error("{0} is not supported on this system; use Linux or macOS")]
    System(&'static str),
    /// No program of the browser was found.
    #[error("{name} is not installed: found none of {programs} in PATH; {advice}")]
    NotInstalled {
        /// The browser.
        name: &'static str,
        /// The programs that were looked for.
        programs: String,
        /// What to install.
        advice: &'static str,
    },
    /// No browser was found at all.
    #[error(
        "no browser is installed: found none of {programs} in PATH; install Firefox or Chromium, \
         on Debian and Ubuntu with `apt install firefox-esr` or `apt install chromium`"
    )]
    NoBrowser {
        /// The programs that were looked for.
        programs: String,
    },
    /// The browser could not be started.
    #[error("cannot start {}: {source}", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// The cause of the failure.
        source: io::Error,
    },
    /// The browser ended before it could be used.
    #[error("{0} ended before it could be used; its messages are above")]
    Ended(&'static str),
    /// The browser did not become ready.
    #[error("{name} was not ready after {seconds} s")]
    NotReady {
        /// The browser.
        name: &'static str,
        /// The time that was waited.
        seconds: u64,
    },
    /// Firefox refused a command of its remote control.
    #[error("Firefox refused {command}: {message}")]
    Refused {
        /// The command.
        command: &'static str,
        /// What Firefox said.
        message: String,
    },
    /// The remote control of Firefox could not be used.
    #[error("the remote control of Firefox failed: {0}")]
    Marionette(io::Error),
    /// The profile does not exist.
    #[error("unknown profile `{given}`; use a folder, or one of: {known}")]
    Profile {
        /// The name that was given.
        given: String,
        /// The profiles that exist.
        known: String,
    },
    /// Nothing is installed.
    #[error("nothing is installed for {name}: {} does not exist", list.display())]
    NothingInstalled {
        /// The browser.
        name: &'static str,
        /// The list of installed files.
        list: PathBuf,
    },
    /// The manifest that is compiled in is not one.
    #[error("the manifest of the extension has no valid `{0}`")]
    Manifest(&'static str),
    /// The archive of the extension could not be made.
    #[error("cannot make the archive of the extension: {0}")]
    Archive(String),
    /// The services cannot be written down.
    #[error("cannot write the aggregation services down: {0}")]
    Services(String),
    /// The web server of the demonstration failed.
    #[error("cannot {operation}: {message}")]
    Demo {
        /// What failed.
        operation: &'static str,
        /// The cause of the failure.
        message: String,
    },
}

impl BrowserError {
    pub(crate) fn writing(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Write { path, source }
    }

    pub(crate) fn reading(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Read { path, source }
    }

    pub(crate) fn removing(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Remove { path, source }
    }
}
