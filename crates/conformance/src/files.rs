//! Files of vectors.

use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use thiserror::Error;

use crate::case::VectorCase;
use crate::scenario::{Scenario, ScenarioConfig};

/// Reads the cases of a path, each with its place in the files.
///
/// The path is a `.json` file in the W3C's format, a folder with `CONFIG.json` and such files, a
/// `.jsonl` file, or a folder with `.jsonl` files.
///
/// # Errors
/// If the path cannot be read, or contains no case.
pub fn read(path: &Path) -> Result<Vec<(String, VectorCase)>, VectorError> {
    if !path.is_dir() {
        if path
            .extension()
            .is_some_and(|extension| extension == "json")
        {
            let scenario = read_w3c(path)?;
            let shown = path.display().to_string();
            return Ok(vec![(shown, VectorCase::Scenario(Box::new(scenario)))]);
        }
        return read_lines(path);
    }
    let config = path.join("CONFIG.json");
    let w3c = config.exists();
    let extension = if w3c { "json" } else { "jsonl" };
    let mut files: Vec<PathBuf> = fs::read_dir(path)
        .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
        .map_err(|error: io::Error| VectorError::new(path.display(), error))?;
    files.retain(|file| file.extension().is_some_and(|it| it == extension) && *file != config);
    files.sort();
    if files.is_empty() {
        let why = format!("the folder contains no .{extension} files");
        return Err(VectorError::new(path.display(), why));
    }
    let mut cases = Vec::new();
    if w3c {
        for file in files {
            let scenario = read_w3c(&file)?;
            let shown = file.display().to_string();
            cases.push((shown, VectorCase::Scenario(Box::new(scenario))));
        }
    } else {
        for file in files {
            cases.extend(read_lines(&file)?);
        }
    }
    Ok(cases)
}

/// Reads a file in the W3C's format. If it has no configuration, that of `CONFIG.json` in the same
/// folder is used.
///
/// # Errors
/// If the file cannot be read, or is not a scenario.
pub fn read_w3c(path: &Path) -> Result<Scenario, VectorError> {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let mut scenario = Scenario::parse(&name, &text(path)?)
        .map_err(|error| VectorError::new(path.display(), error))?;
    if !scenario.has_config() {
        let config = path.with_file_name("CONFIG.json");
        let default = text(&config).map_err(|why| {
            VectorError::new(path.display(), format!("the file has no config, and {why}"))
        })?;
        let default = ScenarioConfig::parse(&default)
            .map_err(|error| VectorError::new(config.display(), error))?;
        scenario.set_default_config(&default);
    }
    Ok(scenario)
}

/// Reads the cases of a `.jsonl` file, each with the file and the number of its line.
///
/// # Errors
/// If the file cannot be read or contains no case, or if a line is not a case.
pub fn read_lines(path: &Path) -> Result<Vec<(String, VectorCase)>, VectorError> {
    lines(&path.display().to_string(), &text(path)?)
}

/// Reads the cases of the text of a `.jsonl` file, each with the file and the number of its line.
pub(crate) fn lines(file: &str, text: &str) -> Result<Vec<(String, VectorCase)>, VectorError> {
    let mut cases = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim().is_empty() {
            continue;
        }
        let at = format!("{file}:{number}");
        let case = VectorCase::parse(line).map_err(|error| VectorError::new(&at, error))?;
        cases.push((at, case));
    }
    if cases.is_empty() {
        return Err(VectorError::new(file, "the file contains no cases"));
    }
    Ok(cases)
}

fn text(path: &Path) -> Result<String, VectorError> {
    fs::read_to_string(path).map_err(|error| VectorError::new(path.display(), error))
}

/// The error of a file that cannot be read as vectors.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{at}: {why}")]
pub struct VectorError {
    at: String,
    why: String,
}

impl VectorError {
    pub(crate) fn new(at: impl fmt::Display, why: impl fmt::Display) -> Self {
        Self {
            at: at.to_string(),
            why: why.to_string(),
        }
    }
}
