//! `bigbird conformance`: runs test vectors against the user agent.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use bigbird::Profile;
use bigbird_attribution::scenario::{Case, Mismatch, Scenario, ScenarioConfig};
use bigbird_store::{SqliteStore, StoreOptions};
use clap::ValueEnum;
use serde::Serialize;

use crate::scratch::Scratch;
use crate::{Failed, Finished, output};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A directory with CONFIG.json holds files of the W3C's end-to-end format, which can also be given
one by one; any other directory is searched for .jsonl files. A line of a .jsonl file is a scenario, a header case, a credit case or a
site case, told apart by their keys.

Exit status: 0 if all passed, 1 if any failed, 2 if a path cannot be read.")]
pub(crate) struct Args {
    /// Directories and .jsonl files
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Play all scenarios under this profile [default: the scenario's own, or w3c-draft]
    #[arg(long)]
    profile: Option<Profile>,
    /// Where the user agent keeps its data while a scenario is played
    #[arg(long, value_enum, default_value_t)]
    store: Store,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Where the user agent keeps its data.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum Store {
    /// In memory
    #[default]
    Memory,
    /// In a file, which is gone afterwards
    Sqlite,
}

pub(crate) fn run(args: &Args) -> Finished {
    let mut tally = Tally::default();
    for path in &args.paths {
        let cases = read(path).map_err(Failed::unreadable)?;
        for (file, case) in cases {
            tally.add(&file, &case, args)?;
        }
    }
    let text = if args.json {
        output::json(&tally)?
    } else {
        tally.tell()?
    };
    Ok((text, tally.failed == 0))
}

#[derive(Debug, Default, Serialize)]
struct Tally {
    passed: usize,
    failed: usize,
    failures: Vec<Failure>,
}

#[derive(Debug, Serialize)]
struct Failure {
    file: String,
    case: String,
    at: String,
    expected: String,
    got: String,
}

impl Tally {
    fn add(&mut self, file: &str, case: &Case, args: &Args) -> Result<(), Failed> {
        let mismatches = match (args.store, case) {
            (Store::Sqlite, Case::Scenario(scenario)) => run_in_file(scenario, args.profile),
            _ => case.run(args.profile),
        };
        let mismatches = mismatches
            .map_err(|why| Failed::unreadable(format!("{file}: {}: {why}", case.name())))?;
        if mismatches.is_empty() {
            self.passed += 1;
        } else {
            self.failed += 1;
        }
        let failures = mismatches.into_iter().map(|mismatch| {
            let Mismatch { at, expected, got } = mismatch;
            Failure {
                file: file.to_owned(),
                case: case.name(),
                at,
                expected,
                got,
            }
        });
        self.failures.extend(failures);
        Ok(())
    }

    fn tell(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        for failure in &self.failures {
            let Failure {
                file,
                case,
                at,
                expected,
                got,
            } = failure;
            writeln!(text, "{file}: {case}: {at}")?;
            writeln!(text, "  expected {expected}\n  got      {got}")?;
        }
        writeln!(text, "{} passed, {} failed", self.passed, self.failed)?;
        Ok(text)
    }
}

/// Plays a scenario on a store in a file.
fn run_in_file(scenario: &Scenario, profile: Option<Profile>) -> Result<Vec<Mismatch>, String> {
    let folder = Scratch::new().map_err(|error| format!("a folder for the store: {error}"))?;
    let mut player = scenario.player_on(profile, |config| {
        let options = StoreOptions {
            limits: config.store_limits,
            ..StoreOptions::default()
        };
        let path = folder.path().join("store");
        SqliteStore::open_or_create(path, &options).map_err(|error| error.to_string())
    })?;
    scenario.run_on(&mut player)
}

/// The cases of a path, each with the file it is from.
fn read(path: &Path) -> Result<Vec<(String, Case)>, String> {
    if !path.is_dir() {
        if path
            .extension()
            .is_some_and(|extension| extension == "json")
        {
            let scenario = read_w3c(path)?;
            let shown = path.display().to_string();
            return Ok(vec![(shown, Case::Scenario(Box::new(scenario)))]);
        }
        return read_lines(path);
    }
    let config = path.join("CONFIG.json");
    let w3c = config.exists();
    let extension = if w3c { "json" } else { "jsonl" };
    let mut files: Vec<PathBuf> = fs::read_dir(path)
        .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
        .map_err(|error: io::Error| format!("{}: {error}", path.display()))?;
    files.retain(|file| file.extension().is_some_and(|it| it == extension) && *file != config);
    files.sort();
    if files.is_empty() {
        return Err(format!("{}: no .{extension} files", path.display()));
    }
    let mut cases = Vec::new();
    if w3c {
        for file in files {
            let scenario = read_w3c(&file)?;
            let shown = file.display().to_string();
            cases.push((shown, Case::Scenario(Box::new(scenario))));
        }
    } else {
        for file in files {
            cases.extend(read_lines(&file)?);
        }
    }
    Ok(cases)
}

/// A file of the W3C's format, with `CONFIG.json` beside it unless it has its own configuration.
pub(crate) fn read_w3c(path: &Path) -> Result<Scenario, String> {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let mut scenario = Scenario::parse(&name, &text(path)?)
        .map_err(|error| format!("{}: {error}", path.display()))?;
    if !scenario.has_config() {
        let config = path.with_file_name("CONFIG.json");
        let default = text(&config)
            .map_err(|why| format!("{}: it has no config, and {why}", path.display()))?;
        let default = ScenarioConfig::parse(&default)
            .map_err(|error| format!("{}: {error}", config.display()))?;
        scenario.set_default_config(&default);
    }
    Ok(scenario)
}

/// The cases of a `.jsonl` file.
pub(crate) fn read_lines(path: &Path) -> Result<Vec<(String, Case)>, String> {
    let mut cases = Vec::new();
    for (number, line) in (1..).zip(text(path)?.lines()) {
        if line.trim().is_empty() {
            continue;
        }
        let at = format!("{}:{number}", path.display());
        let case = Case::parse(line).map_err(|error| format!("{at}: {error}"))?;
        cases.push((at, case));
    }
    if cases.is_empty() {
        return Err(format!("{}: no cases", path.display()));
    }
    Ok(cases)
}

fn text(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}
