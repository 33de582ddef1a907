//! Errors and progress of reading workloads. An error is one line that names the file, and the
//! column and the row if they are known.

use std::path::{Path, PathBuf};

use thiserror::Error;

/// The reason why a file cannot be read.
#[derive(Debug, Error)]
#[error("{}: {what}", path.display())]
pub struct ReadError {
    path: PathBuf,
    what: String,
}

impl ReadError {
    /// Control characters in the message, which may come from a library, become spaces: an error is
    /// always one line.
    pub(crate) fn new(path: &Path, what: impl Into<String>) -> Self {
        let mut what: String = what.into();
        if what.contains(char::is_control) {
            let words: Vec<&str> = what
                .split(char::is_control)
                .filter(|w| !w.is_empty())
                .collect();
            what = words.join(" ");
        }
        Self {
            path: path.to_owned(),
            what,
        }
    }

    /// An error in a row, counted from 1, and in a column if it is known.
    pub(crate) fn at(path: &Path, column: Option<&str>, row: u64, what: &str) -> Self {
        match column {
            Some(column) => Self::new(path, format!("column `{column}`, row {row}: {what}")),
            None => Self::new(path, format!("row {row}: {what}")),
        }
    }
}

/// The progress of reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadProgress {
    /// The approximate number of bytes that have been read, over all files.
    pub bytes_done: u64,
    /// The total size of all files, in bytes.
    pub bytes_total: u64,
    /// The number of rows that have been read.
    pub rows: u64,
}
