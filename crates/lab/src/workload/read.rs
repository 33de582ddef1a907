//! What can go wrong when workloads are read: one line that names the file, and where there are any
//! the column and the row. And how far reading has come.

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
    /// What is said of the file is put on one line, whatever a library says.
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

    /// In a row, counted from 1, and in a column if it is known which.
    pub(crate) fn at(path: &Path, column: Option<&str>, row: u64, what: &str) -> Self {
        match column {
            Some(column) => Self::new(path, format!("column `{column}`, row {row}: {what}")),
            None => Self::new(path, format!("row {row}: {what}")),
        }
    }
}

/// How far reading has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// How many bytes of all files are done, roughly.
    pub bytes_done: u64,
    /// How many they have.
    pub bytes_total: u64,
    /// How many rows were read.
    pub rows: u64,
}
