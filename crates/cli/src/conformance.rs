//! `bigbird conformance`: test vectors, run against the user agent.

use std::path::PathBuf;

use bigbird::Profile;
#[cfg(feature = "agent")]
use bigbird_conformance::{Mismatch, RunError, VectorCase};
use bigbird_conformance::{Tally, read};
#[cfg(feature = "agent")]
use bigbird_store::{SqliteStore, StoreOptions};
use clap::ValueEnum;

#[cfg(feature = "agent")]
use crate::scratch::Scratch;
use crate::{CommandError, CommandResult, output};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A directory that contains CONFIG.json holds .json files in the W3C's end-to-end format. Such files
can also be given one by one. In any other directory, all .jsonl files are read. Each line of a
.jsonl file is one test case. Its keys decide what it tests: a scenario, an HTTP header, how credit
is divided, or how a host becomes a site.

Exit status: 0 if all cases passed, 1 if any failed, 2 if a path cannot be read.")]
pub(crate) struct ConformanceArgs {
    /// Directories, .jsonl files and .json files with test vectors
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Profile for all scenarios [default: the scenario's own, or w3c-draft]
    #[arg(long)]
    profile: Option<Profile>,
    /// Store that scenarios run on
    #[arg(long, value_enum, default_value_t)]
    store: StoreKind,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// The store that the user agent uses.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum StoreKind {
    /// A store in memory
    #[default]
    Memory,
    /// A store in a temporary file
    #[cfg(feature = "agent")]
    Sqlite,
}

pub(crate) fn run(args: &ConformanceArgs) -> CommandResult {
    let mut cases = Vec::new();
    for path in &args.paths {
        cases.extend(read(path).map_err(|error| CommandError::unreadable(error.to_string()))?);
    }
    let tally = Tally::of(&cases, |case| match args.store {
        StoreKind::Memory => case.run(args.profile),
        #[cfg(feature = "agent")]
        StoreKind::Sqlite => run_in_file(case, args.profile),
    });
    let tally = tally.map_err(|error| CommandError::unreadable(error.to_string()))?;
    let text = match args.json {
        true => output::json(&tally)?,
        false => tally.to_string(),
    };
    Ok((text, tally.failed == 0))
}

/// Runs a case. A scenario runs on a store in a temporary file.
#[cfg(feature = "agent")]
fn run_in_file(case: &VectorCase, profile: Option<Profile>) -> Result<Vec<Mismatch>, RunError> {
    let folder = Scratch::new()
        .map_err(|error| RunError::new(format!("cannot create a temporary folder: {error}")))?;
    case.run_on(profile, || {
        let options = StoreOptions::default();
        let path = folder.path().join("store");
        SqliteStore::open_or_create(path, &options).map_err(|error| RunError::caused_by(&error))
    })
}
