//! The path and the identity of a store's file.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Problem, StoreError};

/// The absolute path of a file, with symbolic links resolved: SQLite puts the log beside the file
/// that a link leads to.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf, StoreError> {
    let found = fs::canonicalize(path).or_else(|_| {
        let absolute = std::path::absolute(path)?;
        Ok(
            match (
                absolute.parent().map(fs::canonicalize),
                absolute.file_name(),
            ) {
                (Some(Ok(folder)), Some(name)) => folder.join(name),
                _ => absolute,
            },
        )
    });
    found.map_err(|error| StoreError::new(path, Problem::io("finding the file")(error)))
}

/// The number of names (hard links) that a file has.
#[cfg(unix)]
pub(super) fn links(metadata: &fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::nlink(metadata)
}

/// Elsewhere the number is not known.
#[cfg(not(unix))]
pub(super) fn links(_: &fs::Metadata) -> u64 {
    1
}

/// The identity of the file at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity(u64, u64);

impl Identity {
    #[cfg(unix)]
    pub(crate) fn of(metadata: &fs::Metadata) -> Option<Self> {
        use std::os::unix::fs::MetadataExt as _;
        Some(Self(metadata.dev(), metadata.ino()))
    }

    /// Elsewhere, a file that is open cannot be replaced.
    #[cfg(not(unix))]
    pub(crate) fn of(_: &fs::Metadata) -> Option<Self> {
        None
    }
}
