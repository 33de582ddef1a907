//! `bigbird reproduce`: the paper's evaluation, and a report about it.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use bigbird_lab::describe::Description;
use bigbird_lab::evaluation::Laboratory;
use bigbird_lab::paper::claims::{Claim, claims, reasons, tally};
use bigbird_lab::paper::figures::{NAMES, figures};
use bigbird_lab::paper::numbers::paper_numbers;
use bigbird_lab::paper::report::{Provenance, Subject, report};
use bigbird_lab::paper::reproduce::{
    self, FinishedRun, ReproduceProgress, ReproductionRecord, Results, digest,
};
use bigbird_lab::paper::suites::{Owned, Suite, plan};
use bigbird_lab::text::grouped;
use bigbird_lab::workload::Workload;
use clap::ValueEnum;

use super::source::WorkloadSource;
use crate::progress::{Bar, time};
use crate::{CommandError, CommandResult, machine, output};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The command runs every experiment behind the paper's figures 5 and 6. It writes report.html,
results.json, and for each figure an SVG file and a CSV file. Finished runs are kept in the output
folder and are not run again.

  bigbird reproduce               a tenth of the paper's size
  bigbird reproduce --scale 1     the paper's size
  bigbird reproduce --seed 1,2,3  means over seeds, with their 95% intervals
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
    /// Leave the batches of runs out of results.json, which is then small
    #[arg(long)]
    without_batches: bool,
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
    let threads = args.source.threads();
    let [threads] = *threads.as_slice() else {
        return Err(CommandError::misused(
            "--threads takes one value here; results do not depend on it".to_owned(),
        ));
    };
    let seeds = &args.source.seed;
    if let Some(twice) = (1..seeds.len()).find(|at| seeds[..*at].contains(&seeds[*at])) {
        return Err(CommandError::misused(format!(
            "--seed {} is given twice; intervals need different seeds",
            seeds[twice]
        )));
    }
    let suites: Vec<Suite> = match args.suite.is_empty() {
        true => Suite::ALL.to_vec(),
        false => Suite::ALL
            .into_iter()
            .filter(|suite| args.suite.iter().any(|name| Suite::from(*name) == *suite))
            .collect(),
    };
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
    let mut bar = Bar::new();
    let mut surveyed: Option<SurveyedWorkload> = None;
    let mut of_seeds = Vec::new();
    // A workload that does not follow from the seed is read once for all seeds.
    let one_workload = match args.source.follows_from_seed() {
        true => 1,
        false => seeds.len().max(1),
    };
    for together in seeds.chunks(one_workload) {
        bar.show(
            share(of_seeds.len(), seeds, 0.0),
            0.0,
            "reading the workload",
        );
        let workload = args.source.workload(together[0])?;
        let laboratory = args.source.laboratory(&workload, threads)?;
        if surveyed.is_none() {
            surveyed = Some(SurveyedWorkload::new(args, &workload, &laboratory)?);
        }
        let context = format!("{} {}", program(), laboratory.digest()?);
        for &seed in together {
            let owned = Owned {
                impression_sites: 10,
                conversion_sites: args.source.of_ten_sites(),
            };
            let (planned, done) = (plan(&suites, owned)?, of_seeds.len());
            let mut tell = |progress: ReproduceProgress<'_>| {
                let (total, paid) = progress.cost;
                let (runs, finished) = progress.runs;
                let before = share(done, seeds, (paid - progress.paid_now) / total);
                let what = progress.next.map_or(String::new(), |next| {
                    let attacker = match next.experiment.attacker() {
                        "none" => "no attack",
                        name => name,
                    };
                    let suite = next.suite.name();
                    format!("run {} of {runs}: {suite}, {attacker}", finished + 1)
                });
                bar.show(share(done, seeds, paid / total), before, &what);
            };
            let runs = reproduce::run_all(
                &laboratory,
                planned,
                seed,
                &runs_folder,
                &context,
                &mut tell,
            )?;
            of_seeds.push(runs);
        }
    }
    bar.clear();
    let surveyed = surveyed.ok_or_else(|| CommandError::because("--seed has no value"))?;
    let finished = reproduce::merged(&of_seeds);
    let results = Results(&finished);
    let subject = Subject {
        results,
        description: &surveyed.description,
        preset: args.source.preset(),
        workload: args.source.to_string(),
        queriers: surveyed.queriers,
        queriers_of_paper: surveyed.queriers_of_paper,
        options: args.source.options(),
        parameters: args.source.parameters(),
        command: command(),
        provenance: Provenance {
            version: machine::version(),
            date: machine::date(),
            machine: machine::machine(),
            duration: time(begin.elapsed().as_secs_f64()),
            runs_made: of_seeds.iter().map(|seed| seed.made).sum(),
        },
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
    let claims = claims(results);
    if args.without_batches {
        let records = of_seeds.iter_mut().flat_map(|seed| &mut seed.records);
        records.for_each(|record| record.batches.clear());
    }
    let document = ReproductionRecord {
        command: &subject.command,
        version: &subject.provenance.version,
        parameters: &subject.parameters,
        claims: &claims,
        runs: of_seeds.iter().flat_map(|seed| &seed.records).collect(),
    };
    let document = serde_json::to_string(&document)? + "\n";
    write(&args.output, "results.json", &document)?;
    tell(args, &subject, &claims)
}

/// The share of the work that is done: some seeds, and a share of one more.
#[expect(clippy::cast_precision_loss, reason = "a handful of seeds")]
fn share(done: usize, seeds: &[u64], of_next: f64) -> f64 {
    (done as f64 + of_next) / seeds.len().max(1) as f64
}

/// What the report says about the workload.
struct SurveyedWorkload {
    description: Description,
    queriers: usize,
    queriers_of_paper: usize,
}

impl SurveyedWorkload {
    fn new(
        args: &ReproduceArgs,
        workload: &Workload,
        laboratory: &Laboratory<'_>,
    ) -> Result<Self, CommandError> {
        let least = paper_numbers().dataset.querier_conversions_a_day;
        let queriers = laboratory.queriers();
        Ok(Self {
            description: Description::new(workload, args.source.lookback_epochs())?,
            queriers: queriers.len(),
            queriers_of_paper: queriers.iter().filter(|it| it.a_day >= least).count(),
        })
    }
}

fn tell(args: &ReproduceArgs, subject: &Subject<'_>, claims: &[Claim]) -> CommandResult {
    let mut text = String::new();
    let description = subject.description;
    writeln!(
        text,
        "Workload: {}\n\
         {} devices, {} impressions, {} conversions\n\n\
         The claims of the paper. Numbers are the error of the median honest measurement, or the\n\
         share of blocked reports{}.\n",
        args.source,
        grouped(description.devices),
        grouped(description.impressions),
        grouped(description.conversions),
        match subject.results.seeds() {
            0 | 1 => String::new(),
            seeds => format!(": means over {seeds} seeds, and half of their 95% intervals"),
        }
    )?;
    for (claim, why) in claims.iter().zip(reasons(claims)) {
        let (sign, name) = (claim.verdict.sign(), claim.verdict.name());
        writeln!(text, "{sign} {:<8} {}", claim.figure, claim.says)?;
        writeln!(
            text,
            "           here:  {}\n           paper: {}",
            claim.ours, claim.paper
        )?;
        if let Some((held, seeds)) = claim.seeds {
            writeln!(text, "           holds with {held} of {seeds} seeds")?;
        }
        if let Some(why) = why {
            writeln!(text, "           {name}: {why}")?;
        }
    }
    let seeds = subject.results.seeds();
    writeln!(
        text,
        "\n{}.\n\
         {} runs in {}, {} of them new. A run that was finished earlier, or that\n\
         figures share, is not repeated.\n\n\
         Report: {}",
        tally(claims),
        seeds * subject.results.0.len(),
        subject.provenance.duration,
        subject.provenance.runs_made,
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
