//! What can go wrong when workloads are read: one line that names the file, and where there are any
//! the column and the row.

use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why a file cannot be read.
#[derive(Debug, Error)]
#[error("{}: {what}", path.display())]
pub struct ReadError {
    path: PathBuf,
    what: String,
}

impl ReadError {
    pub(crate) fn new(path: &Path, what: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            what: what.into(),
        }
    }
}
