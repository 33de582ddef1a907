//! `bigbird reproduce`: the paper's evaluation, and a report about it.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use bigbird_lab::describe::Description;
use bigbird_lab::evaluation::results::RunRecord;
use bigbird_lab::paper::claims::claims;
use bigbird_lab::paper::figures::{NAMES, figures};
use bigbird_lab::paper::report::{Subject, report};
use bigbird_lab::paper::reproduce::{self, FinishedRun, Results, digest};
use bigbird_lab::paper::suites::{Owned, Suite, plan};
use bigbird_lab::text::grouped;
use clap::ValueEnum;
use serde_json::{Value, json};

use super::source::WorkloadSource;
use crate::progress::{Bar, time};
use crate::{CommandError, CommandResult, output};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The command runs every experiment behind the paper's figures 5 and 6. It writes report.html,
results.json, and for each figure an SVG file and a CSV file. Finished runs are kept in the output
folder and are not run again.

  bigbird reproduce               a tenth of the paper's size
  bigbird reproduce --scale 1     the paper's size
  bigbird reproduce --criteo-prepared DIR --min-conversions-per-day 50")]
pub(crate) struct ReproduceArgs {
    #[command(flatten)]
    source: WorkloadSource,
    /// Suites to run [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    suite: Vec<SuiteName>,
    /// Folder to write to
    #[arg(long, value_name = "DIR", default_value = "reproduction")]
    output: PathBuf,
    /// Run everything again, including finished runs
    #[arg(long)]
    fresh: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum SuiteName {
    /// Impression-site quotas, without attack and under the random attacker
    Fig5,
    /// Domain caps, under both attackers
    Fig6a,
    /// Numbers of Sybils
    Fig6b,
    /// Popularity of the attacker's sites
    Fig6c,
}

impl From<SuiteName> for Suite {
    fn from(name: SuiteName) -> Self {
        match name {
            SuiteName::Fig5 => Self::Fig5,
            SuiteName::Fig6a => Self::Fig6a,
            SuiteName::Fig6b => Self::Fig6b,
            SuiteName::Fig6c => Self::Fig6c,
        }
    }
}

pub(crate) fn run(args: &ReproduceArgs) -> CommandResult {
    let begin = Instant::now();
    let (seed, threads) = args.source.one()?;
    let suites: Vec<Suite> = match args.suite.is_empty() {
        true => Suite::ALL.to_vec(),
        false => Suite::ALL
            .into_iter()
            .filter(|suite| args.suite.iter().any(|name| Suite::from(*name) == *suite))
            .collect(),
    };
    let mut bar = Bar::new();
    bar.show(0.0, 0.0, "reading the workload");
    let workload = args.source.workload(seed)?;
    let description = Description::new(&workload, args.source.lookback_epochs())?;
    let laboratory = args.source.laboratory(&workload, threads)?;
    let owned = Owned {
        impression_sites: 10,
        conversion_sites: args.source.of_ten_sites(),
    };
    let planned = plan(&suites, owned)?;
    let runs_folder = args.output.join("runs");
    if args.fresh && runs_folder.exists() {
        remove(&runs_folder, |name| {
            let stem = name
                .strip_suffix(".json")
                .or_else(|| name.strip_suffix(".part"));
            stem.is_some_and(|stem| {
                stem.len() == 16 && stem.bytes().all(|it| it.is_ascii_hexdigit())
            })
        })?;
    }
    let context = format!("{} {}", program(), laboratory.digest()?);
    let (finished, made) = reproduce::run_all(
        &laboratory,
        planned,
        seed,
        &runs_folder,
        &context,
        &mut |progress| {
            let (total, done) = progress.cost;
            let (runs, finished) = progress.runs;
            let before = done - progress.paid_now;
            let what = progress.next.map_or(String::new(), |next| {
                let attacker = match next.experiment.attacker() {
                    "none" => "no attack",
                    name => name,
                };
                let suite = next.suite.name();
                format!("run {} of {runs}: {suite}, {attacker}", finished + 1)
            });
            bar.show(done / total, before / total, &what);
        },
    )?;
    bar.clear();
    let results = Results(&finished);
    let command = command();
    let subject = Subject {
        results,
        description: &description,
        preset: args.source.preset(),
        workload: args.source.to_string(),
        queriers: laboratory.queriers().len(),
        parameters: args.source.parameters(),
        command: command.clone(),
    };
    remove(&args.output, |name| {
        let stem = name
            .strip_suffix(".svg")
            .or_else(|| name.strip_suffix(".csv"));
        stem.and_then(|stem| stem.strip_prefix("fig"))
            .is_some_and(|figure| NAMES.contains(&figure))
    })?;
    write(&args.output, "report.html", &report(&subject))?;
    for figure in figures(results) {
        let name = |extension: &str| format!("fig{}.{extension}", figure.name);
        write(&args.output, &name("svg"), &figure.chart.to_file())?;
        write(&args.output, &name("csv"), &figure.csv)?;
    }
    let document = results_json(args, &finished, &command);
    write(&args.output, "results.json", &(document.to_string() + "\n"))?;
    tell(args, &subject, begin.elapsed().as_secs_f64(), made)
}

fn results_json(args: &ReproduceArgs, finished: &[FinishedRun], command: &str) -> Value {
    let runs: Vec<&RunRecord> = finished.iter().map(|run| &run.record).collect();
    let parameters: serde_json::Map<String, Value> = args
        .source
        .parameters()
        .into_iter()
        .map(|(name, value)| (name, json!(value)))
        .collect();
    let claims: Vec<Value> = claims(Results(finished))
        .iter()
        .map(|claim| {
            json!({
                "figure": claim.figure,
                "claim": claim.says,
                "test": claim.test,
                "holds": claim.holds,
                "here": claim.ours,
                "paper": claim.paper,
            })
        })
        .collect();
    json!({
        "command": command,
        "parameters": parameters,
        "claims": claims,
        "runs": runs,
    })
}

fn tell(args: &ReproduceArgs, subject: &Subject<'_>, seconds: f64, made: usize) -> CommandResult {
    let mut text = String::new();
    let description = subject.description;
    writeln!(
        text,
        "Workload: {}\n\
         {} devices, {} impressions, {} conversions\n\n\
         The claims of the paper. Numbers are the error of the median honest measurement, or the\n\
         share of blocked reports.\n",
        args.source,
        grouped(description.devices),
        grouped(description.impressions),
        grouped(description.conversions)
    )?;
    let claims = claims(subject.results);
    for claim in &claims {
        let mark = if claim.holds { "✓" } else { "✗" };
        writeln!(text, "{mark} {:<8} {}", claim.figure, claim.says)?;
        writeln!(
            text,
            "           here:  {}\n           paper: {}",
            claim.ours, claim.paper
        )?;
        if !claim.holds {
            writeln!(text, "           {}", claim.otherwise)?;
        }
    }
    let holding = claims.iter().filter(|claim| claim.holds).count();
    writeln!(
        text,
        "\n{holding} of {} claims of the paper hold.\n\
         {} runs in {}, {made} of them new. A run that was finished earlier, or that\n\
         figures share, is not repeated.\n\n\
         Report: {}",
        claims.len(),
        subject.results.0.len(),
        time(seconds),
        args.output.join("report.html").display()
    )?;
    // A claim that does not hold on a workload is a result. A broken bound is a failure.
    let broken = |run: &FinishedRun| run.summary.held == Some(false);
    Ok((output::fitted(&text), !subject.results.0.iter().any(broken)))
}

/// An identifier of this program. Results of another program are not used again.
fn program() -> String {
    let bytes = std::env::current_exe().and_then(fs::read);
    bytes.map_or_else(
        |_| env!("CARGO_PKG_VERSION").to_owned(),
        |bytes| format!("{:016x}", digest(&bytes)),
    )
}

/// The command line, as it was given.
fn command() -> String {
    let arguments = std::env::args().skip(1).map(|argument| {
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./,=:".contains(letter);
        match argument.chars().all(plain) && !argument.is_empty() {
            true => argument,
            false => format!("'{}'", argument.replace('\'', "'\\''")),
        }
    });
    let mut command = "bigbird".to_owned();
    for argument in arguments {
        command.push(' ');
        command.push_str(&argument);
    }
    command
}

/// Removes only those files of an earlier report that have certain names.
fn remove(folder: &Path, is_ours: impl Fn(&str) -> bool) -> Result<(), CommandError> {
    let entries = fs::read_dir(folder).map_err(|error| failed(folder, &error))?;
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        if is_ours(name) && path.is_file() {
            fs::remove_file(&path).map_err(|error| failed(&path, &error))?;
        }
    }
    Ok(())
}

fn write(folder: &Path, name: &str, text: &str) -> Result<(), CommandError> {
    let path = folder.join(name);
    fs::write(&path, text).map_err(|error| failed(&path, &error))
}

fn failed(path: &Path, error: &std::io::Error) -> CommandError {
    CommandError::because(format!("{}: {error}", path.display()))
}
