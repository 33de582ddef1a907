//! `bigbird keys`: the keys of an aggregation service.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use bigbird_dap::{AggregationService, AggregatorKeys, DapVersion, TaskSettings};

use crate::service::{SERVICES, keys_file};
use crate::{CommandError, CommandResult};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum KeysCommand {
    /// Generate the keys of a new aggregation service, and the file that browsers need
    #[command(after_help = "\
Writes three files into the folder. Existing files are never overwritten.

  aggregation-services.toml   for browsers and everybody else: URLs and public keys
  leader.toml, helper.toml    secrets of the two aggregators, readable by their owner only

In a deployment, each aggregator makes its own keys and nobody has both files. The folder is for
trying things out: `bigbird agent --aggregation-services DIR` seals reports to it, and
`bigbird aggregate --service DIR` sums them.")]
    Generate(GenerateArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct GenerateArgs {
    /// Folder for the files, created if it does not exist
    #[arg(long, value_name = "DIR", default_value = "service")]
    out: PathBuf,
    /// URL by which pages name the service
    #[arg(long, value_name = "URL", default_value = "https://agg.example")]
    url: String,
    /// URL of the leader
    #[arg(long, value_name = "URL", default_value = "https://leader.example/")]
    leader: String,
    /// URL of the helper
    #[arg(long, value_name = "URL", default_value = "https://helper.example/")]
    helper: String,
    /// Version of DAP: dap-18 or dap-19
    #[arg(long, value_name = "TAG", default_value_t)]
    dap: DapVersion,
    /// Fewest reports that may be aggregated. The draft's number is 20
    #[arg(long, value_name = "N", default_value_t = 20,
          value_parser = clap::value_parser!(u64).range(1..))]
    min_batch_size: u64,
    /// Number by which reports name the keys, from 0 to 255
    #[arg(long, value_name = "N", default_value_t = 1)]
    id: u8,
}

pub(crate) fn run(command: &KeysCommand) -> CommandResult {
    let KeysCommand::Generate(args) = command;
    let (service, keys) = generate(args)?;
    let files = write_service(&args.out, &service, &keys)?;
    let mut text = String::new();
    for (file, what) in files {
        writeln!(text, "{:<40} {what}", file.display().to_string())?;
    }
    let out = args.out.display();
    writeln!(
        text,
        "\nSeal reports:  bigbird agent --in-memory --aggregation-services {out}\n\
         Sum them:      bigbird aggregate --service {out} --help"
    )?;
    Ok((text, true))
}

/// A new service, and the keys of its aggregators.
fn generate(
    args: &GenerateArgs,
) -> Result<(AggregationService, [AggregatorKeys; 2]), CommandError> {
    let keys = AggregatorKeys::generate(args.id)?;
    let [leader, helper] = keys.each_ref().map(|keys| keys.hpke.recipient().clone());
    let mut settings = TaskSettings::new(args.dap);
    settings.min_batch_size = args.min_batch_size;
    let service = AggregationService::new(
        &args.url,
        settings,
        (&args.leader, leader),
        (&args.helper, helper),
    )?;
    Ok((service, keys))
}

/// Writes the files of a service into a folder. Returns the files and what they are.
pub(crate) fn write_service(
    folder: &Path,
    service: &AggregationService,
    keys: &[AggregatorKeys; 2],
) -> Result<Vec<(PathBuf, String)>, CommandError> {
    let mut files = vec![(
        folder.join(SERVICES),
        service.to_toml()?,
        false,
        "URLs and public keys, for browsers".to_owned(),
    )];
    for keys in keys {
        files.push((
            folder.join(keys_file(keys.role)),
            keys.to_toml()?,
            true,
            format!("secrets of the {}", keys.role),
        ));
    }
    let failed = |path: &Path, error: &dyn std::fmt::Display| {
        CommandError::because(format!("cannot write {}: {error}", path.display()))
    };
    fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
    if let Some((path, ..)) = files.iter().find(|(path, ..)| path.exists()) {
        return Err(CommandError::because(format!(
            "{} exists; keys are never overwritten, so choose another folder with --out",
            path.display()
        )));
    }
    for (path, text, secret, _) in &files {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        if *secret {
            std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        }
        #[cfg(not(unix))]
        let _ = secret;
        let mut file = options.open(path).map_err(|error| failed(path, &error))?;
        let written = file
            .write_all(text.as_bytes())
            .and_then(|()| file.sync_all());
        written.map_err(|error| failed(path, &error))?;
    }
    Ok(files
        .into_iter()
        .map(|(path, _, _, what)| (path, what))
        .collect())
}

/// A new service with the draft's settings, for demonstrations.
pub(crate) fn new_service() -> Result<(AggregationService, [AggregatorKeys; 2]), CommandError> {
    generate(&GenerateArgs {
        out: PathBuf::new(),
        url: "https://agg.example".to_owned(),
        leader: "https://leader.example/".to_owned(),
        helper: "https://helper.example/".to_owned(),
        dap: DapVersion::default(),
        min_batch_size: 20,
        id: 1,
    })
}
