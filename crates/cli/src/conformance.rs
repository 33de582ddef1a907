//! `bigbird conformance`: runs test vectors against the user agent.

use std::path::PathBuf;

use bigbird::Profile;
use bigbird_conformance::{Case, Mismatch, RunError, Tally, read};
use bigbird_store::{SqliteStore, StoreOptions};
use clap::ValueEnum;

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
    let mut cases = Vec::new();
    for path in &args.paths {
        cases.extend(read(path).map_err(|error| Failed::unreadable(error.to_string()))?);
    }
    let tally = Tally::of(&cases, |case| match args.store {
        Store::Memory => case.run(args.profile),
        Store::Sqlite => run_in_file(case, args.profile),
    });
    let tally = tally.map_err(|error| Failed::unreadable(error.to_string()))?;
    let text = match args.json {
        true => output::json(&tally)?,
        false => tally.to_string(),
    };
    Ok((text, tally.failed == 0))
}

/// Runs a case, a scenario on a store in a file.
fn run_in_file(case: &Case, profile: Option<Profile>) -> Result<Vec<Mismatch>, RunError> {
    let folder = Scratch::new()
        .map_err(|error| RunError::new(format!("a folder for the store: {error}")))?;
    case.run_on(profile, || {
        let options = StoreOptions::default();
        let path = folder.path().join("store");
        SqliteStore::open_or_create(path, &options).map_err(|error| RunError::caused_by(&error))
    })
}
