//! `bigbird aggregate`: leader, helper and collector in one process.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read as _, Write as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use bigbird::MicroEpsilon;
use bigbird_dap::messages::{DapReport, Decode as _};
use bigbird_dap::{
    AddError, Aggregation, AggregationStore, AggregationTask, BatchQueryError, BatchState,
    NoiseSource, NoisedHistogram, RefusedReport, ReportRefusal, ReportTally, TaskTerms,
};
use bigbird_user_agent::{Localhost, Site};
use serde::Serialize;
use serde_json::Value;

use crate::clock::wall_clock;
use crate::dap::VdafArg;
use crate::output::{
    Document, FormatArgs, ResultCell, ResultColumn, ResultFormat, ResultTable, grouped,
};
use crate::progress::Bar;
use crate::service::OperatedService;
use crate::{CommandError, CommandResult, output};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Reports are files as a browser posted them: one report in each, or many in one file, each with its
length in four bytes (big-endian) before it. A folder stands for all files in it. Reports in base64
and the answers of `bigbird agent` are read too.

Reports are counted in a batch. A batch has a budget: the epsilon that was paid for each of its
reports. Each query spends a part of it, and adds noise for that part. The first query closes the
batch for reports. Without REPORTS, a batch is queried again. What was counted and spent is kept in
the store, so a report counts once, in whatever batch, even if the process is killed.

  bigbird keys generate --out service
  bigbird aggregate --service service --site shop.example --histogram-size 5 reports/
  bigbird aggregate --service service --site shop.example --histogram-size 5 \\
      --batch monday --batch-epsilon 1 --epsilon 0.5 reports/

This process has the keys of both aggregators, so whoever runs it could read every report. In a
deployment two organisations run one aggregator each: see docs/aggregation.md.

Exit status: 0 if there is a result, 1 if the query was refused or something failed, 2 if a file
cannot be read or the arguments are wrong.")]
pub(crate) struct AggregateArgs {
    /// Folder with the service and the keys of both aggregators, from `bigbird keys generate`
    ///
    /// The file aggregation-services.toml in that folder is accepted too.
    #[arg(long, value_name = "DIR")]
    service: PathBuf,
    /// URL of the service, if the folder has several [default: the first]
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Site whose budget paid: the conversion site, or the intermediary that was the querier
    #[arg(long, value_name = "SITE", alias = "conversion-site")]
    site: String,
    /// Site that made the calls, if it was an intermediary [default: --site]
    #[arg(long, value_name = "SITE")]
    caller: Option<String>,
    /// Number of buckets of each report
    #[arg(
        long,
        value_name = "N",
        alias = "buckets",
        value_parser = clap::value_parser!(u32).range(1..=1 << 20)
    )]
    histogram_size: u32,
    /// Largest value of a conversion
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..))]
    max_value: u32,
    /// Epsilon that this query spends. Noise has the scale 2 · max-value / epsilon
    #[arg(long, value_name = "E", default_value_t = 1.0)]
    epsilon: f64,
    /// Name of the batch
    #[arg(long, value_name = "NAME", default_value = "default")]
    batch: String,
    /// Budget of a new batch, in epsilons [default: --epsilon]
    ///
    /// Reports that paid less are refused, and what they paid beyond it cannot be spent. Choose
    /// what every report paid, to spend it over several queries.
    #[arg(long, value_name = "E")]
    batch_epsilon: Option<f64>,
    /// Aggregators that add noise: both, leader or helper
    ///
    /// With both, the result is private even if one of them is dishonest, and its variance is twice
    /// as large.
    #[arg(long, value_name = "WHO", default_value = "both")]
    noise: NoiseArg,
    /// Count reports, and do not query
    #[arg(long)]
    no_query: bool,
    /// File that keeps what was counted and spent [default: aggregator.store in the folder]
    #[arg(long, value_name = "FILE")]
    store: Option<PathBuf>,
    /// Oldest reports that are accepted, in days
    #[arg(long, value_name = "DAYS", default_value_t = 60)]
    max_age_days: u32,
    /// Current time, in seconds since 1970 [default: now]
    ///
    /// Only for reports that were made on a test clock. Reports may be a minute ahead of it.
    #[arg(long, value_name = "SECONDS")]
    now: Option<i64>,
    /// Number of reports that become durable together
    #[arg(long, value_name = "N", default_value_t = 4096, hide = true)]
    portion: usize,
    /// VDAF of the reports: l1-bound-sum or sum-vec
    ///
    /// With sum-vec, a dishonest device can add --max-value to every bucket.
    #[arg(long, value_name = "NAME", default_value = "l1-bound-sum")]
    vdaf: VdafArg,
    /// CSV file that lists each refused report and why it was refused
    #[arg(long, value_name = "FILE")]
    refused: Option<PathBuf>,
    #[command(flatten)]
    format: FormatArgs,
    /// Files or folders of reports
    #[arg(value_name = "REPORTS")]
    reports: Vec<PathBuf>,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum NoiseArg {
    Both,
    Leader,
    Helper,
}

impl From<NoiseArg> for NoiseSource {
    fn from(noise: NoiseArg) -> Self {
        match noise {
            NoiseArg::Both => Self::Both,
            NoiseArg::Leader => Self::Leader,
            NoiseArg::Helper => Self::Helper,
        }
    }
}

/// How far the clock of a browser may be ahead, in seconds.
const AHEAD: i64 = 60;

const DAY: i64 = 24 * 60 * 60;

pub(crate) fn run(args: &AggregateArgs) -> CommandResult {
    check_name(&args.batch)?;
    let epsilon = epsilon("--epsilon", args.epsilon)?;
    let budget = args.batch_epsilon;
    let budget = budget
        .map(|given| self::epsilon("--batch-epsilon", given))
        .transpose()?;
    let operated = OperatedService::read(&args.service, args.url.as_deref())?;
    let (site, caller) = (
        self::site("--site", &args.site)?,
        self::site("--caller", args.caller.as_ref().unwrap_or(&args.site))?,
    );
    let terms = TaskTerms {
        collector: caller.as_str(),
        budget_source: site.as_str(),
        histogram_size: args.histogram_size,
        max_value: args.max_value,
        vdaf: args.vdaf.into(),
    };
    let task = AggregationTask::new(&operated.service, &terms)?;
    let files = files(&args.reports)?;
    let path = args
        .store
        .clone()
        .unwrap_or_else(|| operated.folder.join("aggregator.store"));
    if let Some(list) = &args.refused {
        check_output(list, files.iter().chain([&path]), &operated.folder)?;
    }
    let new_store = !path.exists();
    let store = AggregationStore::open(&path)
        .map_err(|error| CommandError::because(format!("{}: {error}", path.display())))?;
    let now = args.now.unwrap_or_else(|| wall_clock().0.div_euclid(1000));
    let oldest = now.saturating_sub(DAY.saturating_mul(args.max_age_days.into()));
    let times = task.time(oldest)..=task.time(now.saturating_add(AHEAD));
    let name = args.batch.as_str();
    // A batch that is only queried again must exist.
    let if_new = match args.reports.is_empty() {
        true => budget,
        false => budget.or(Some(epsilon)),
    };
    let aggregation = Aggregation::new(store, operated.keys, &task, name, if_new, times)?;
    let state = aggregation.batch();
    if let Some(given) = budget.filter(|given| *given != state.budget) {
        return Err(CommandError::misused(format!(
            "the batch `{name}` has a budget of ε = {}, and --batch-epsilon is {given}",
            state.budget
        )));
    }
    let mut aggregation = aggregation.in_portions_of(args.portion);
    let tally = count(&mut aggregation, &files, args.refused.as_deref())?;
    let empty = aggregation.batch().reports == 0 && !args.reports.is_empty();
    if empty {
        // Its name can be used again, with another budget.
        aggregation.discard_if_empty()?;
    }
    let result = match args.no_query {
        true => None,
        false if empty => Some(Err(BatchQueryError::TooFewReports {
            name: name.to_owned(),
            reports: 0,
            least: task.configuration().min_batch_size,
        })),
        false => Some(aggregation.query(epsilon, args.noise.into(), &mut rand::rng())),
    };
    let refusal = match &result {
        Some(Err(error)) => Some(error.to_string()),
        _ => None,
    };
    let result = result.and_then(Result::ok);
    let good = refusal.is_none();
    let answer = AggregateAnswer::new(&task, &tally, aggregation.batch(), result, refusal);
    let text = match args.format.format() {
        ResultFormat::Json => output::json(&answer)?,
        format => {
            let mut text = match new_store {
                true => format!("Created the store {}.\n", path.display()),
                false => String::new(),
            };
            text += &answer.text(args)?;
            let mut document = Document::new();
            document.lines(text);
            answer.add_sums(&mut document);
            document.render(format)
        }
    };
    Ok((text, good))
}

/// Checks the name of a batch.
fn check_name(name: &str) -> Result<(), CommandError> {
    const LONGEST: usize = 100;
    if (1..=LONGEST).contains(&name.len()) && !name.contains(char::is_control) {
        return Ok(());
    }
    Err(CommandError::misused(format!(
        "--batch must have 1 to {LONGEST} printable characters, got {name:?}"
    )))
}

/// Checks that the list of refused reports replaces none of the files that are read.
fn check_output<'a>(
    list: &Path,
    mut files: impl Iterator<Item = &'a PathBuf>,
    folder: &Path,
) -> Result<(), CommandError> {
    let Ok(list) = fs::canonicalize(list) else {
        return Ok(());
    };
    let is_list = |file: &Path| fs::canonicalize(file).is_ok_and(|file| file == list);
    let in_service = list.parent() == fs::canonicalize(folder).ok().as_deref()
        && list.extension().is_some_and(|it| it == "toml");
    if in_service || files.any(|file| is_list(file)) {
        return Err(CommandError::misused(format!(
            "--refused would replace {}, which is read",
            list.display()
        )));
    }
    Ok(())
}

/// Counts the reports of files.
fn count(
    aggregation: &mut Aggregation,
    files: &[PathBuf],
    refused: Option<&Path>,
) -> Result<ReportTally, CommandError> {
    let unwritable = |path: &Path, error: &io::Error| {
        CommandError::because(format!("cannot write {}: {error}", path.display()))
    };
    let mut list = match refused {
        Some(path) => {
            let file = File::create(new_name(path)).map_err(|error| unwritable(path, &error))?;
            let mut list = BufWriter::new(file);
            let header = writeln!(list, "file,report,id,reason,explanation");
            header.map_err(|error| unwritable(path, &error))?;
            Some((path, list))
        }
        None => None,
    };
    let mut reader = ReportFiles::new(files);
    // The place of the first report of each file, which the reader knows as soon as it opens one.
    let starts = std::cell::RefCell::new(Vec::<u64>::new());
    let mut failed = Ok(());
    let mut bar = Bar::new();
    let (mut place, total) = (0, reader.total_bytes.max(1));
    let reports = std::iter::from_fn(|| {
        let next = reader.next()?;
        let mut starts = starts.borrow_mut();
        starts.resize(reader.opened, place);
        place += 1;
        #[expect(clippy::cast_precision_loss, reason = "for display")]
        bar.show(reader.read_bytes as f64 / total as f64, 0.0, "reports");
        Some(next)
    });
    let added = aggregation.add(reports, |report| {
        if let Some((path, list)) = &mut list
            && failed.is_ok()
        {
            let starts = starts.borrow();
            let file = starts.partition_point(|start| *start <= report.place) - 1;
            let row = refused_row(&files[file], report.place - starts[file], &report);
            failed = writeln!(list, "{row}").map_err(|error| unwritable(path, &error));
        }
    });
    bar.clear();
    let written = failed.and_then(|()| match &mut list {
        Some((path, list)) => list.flush().map_err(|error| unwritable(path, &error)),
        None => Ok(()),
    });
    if let Some((path, _)) = list {
        // An older list stays as it was if there is no new one.
        let placed = match added.is_ok() && written.is_ok() {
            true => fs::rename(new_name(path), path),
            false => fs::remove_file(new_name(path)),
        };
        placed.map_err(|error| unwritable(path, &error))?;
    }
    written?;
    added.map_err(|error| match error {
        AddError::Input(error) => CommandError::unreadable(error.to_string()),
        AddError::Store(error) => CommandError::because(error.to_string()),
    })
}

/// The name of a file while it is written.
fn new_name(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

/// A row of the list of refused reports.
fn refused_row(file: &Path, number: u64, report: &RefusedReport) -> String {
    let file = file.display().to_string().replace('"', "\"\"");
    let id = report.id.map(|id| id.to_string()).unwrap_or_default();
    let (key, why) = (report.reason.key(), report.reason);
    format!("\"{file}\",{number},{id},{key},\"{why}\"")
}

/// Parses an epsilon.
fn epsilon(flag: &str, given: f64) -> Result<MicroEpsilon, CommandError> {
    let parsed = bigbird::Epsilon::new(given);
    let parsed = parsed.map_err(|_| {
        let most = bigbird::Epsilon::MAX;
        CommandError::misused(format!("{flag} must be in (0, {most}], got {given}"))
    })?;
    Ok(parsed.micro())
}

/// Parses a site.
pub(crate) fn site(flag: &str, given: &str) -> Result<Site, CommandError> {
    Site::parse(given, Localhost::Refused)
        .map_err(|error| CommandError::misused(format!("{flag}: {error}")))
}

/// The files among some paths. A folder stands for all files in it and in its folders, by name.
fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>, CommandError> {
    let mut files = Vec::new();
    for path in paths {
        let before = files.len();
        collect(path, &mut files)?;
        if files.len() == before {
            let told = format!("there are no files in {}", path.display());
            return Err(CommandError::unreadable(told));
        }
    }
    Ok(files)
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) -> Result<(), CommandError> {
    let failed = |error: io::Error| {
        CommandError::unreadable(format!("cannot read {}: {error}", path.display()))
    };
    let metadata = fs::metadata(path).map_err(failed)?;
    if metadata.is_file() {
        files.push(path.to_owned());
    } else if metadata.is_dir() {
        let entries = fs::read_dir(path).map_err(failed)?;
        let inside: io::Result<Vec<PathBuf>> = entries
            .map(|entry| entry.map(|entry| entry.path()))
            .collect();
        let mut inside = inside.map_err(failed)?;
        inside.sort();
        for path in inside {
            collect(&path, files)?;
        }
    } else {
        let told = format!("{} is neither a file nor a folder", path.display());
        return Err(CommandError::unreadable(told));
    }
    Ok(())
}

/// Reads reports from files, one at a time.
struct ReportFiles<'a> {
    files: &'a [PathBuf],
    /// The number of files that were opened so far.
    opened: usize,
    /// The rest of a file with many reports.
    many: Option<BufReader<File>>,
    /// The rest of a file of text.
    list: VecDeque<Vec<u8>>,
    read_bytes: u64,
    total_bytes: u64,
}

/// The largest report that is read. One of 1,024 buckets and 32 bits has 560 kB.
const LARGEST: u64 = 1 << 28;

impl<'a> ReportFiles<'a> {
    fn new(files: &'a [PathBuf]) -> Self {
        let sizes = files.iter().filter_map(|file| fs::metadata(file).ok());
        Self {
            files,
            opened: 0,
            many: None,
            list: VecDeque::new(),
            read_bytes: 0,
            total_bytes: sizes.map(|metadata| metadata.len()).sum(),
        }
    }

    fn next(&mut self) -> Option<io::Result<Vec<u8>>> {
        loop {
            if let Some(report) = self.list.pop_front() {
                self.read_bytes += report.len() as u64;
                return Some(Ok(report));
            }
            if let Some(file) = &mut self.many {
                match next_of_many(file) {
                    Ok(Some(report)) => {
                        self.read_bytes += 4 + report.len() as u64;
                        return Some(Ok(report));
                    }
                    Ok(None) => self.many = None,
                    Err(error) => return Some(Err(named(&self.files[self.opened - 1], &error))),
                }
            }
            let path = self.files.get(self.opened)?;
            self.opened += 1;
            match open(path) {
                Ok(Opened::One(report)) => {
                    self.read_bytes += report.len() as u64;
                    return Some(Ok(report));
                }
                Ok(Opened::List(reports)) => self.list = reports,
                Ok(Opened::Many(file)) => self.many = Some(file),
                Err(error) => return Some(Err(named(path, &error))),
            }
        }
    }
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::other(format!("{}: {error}", path.display()))
}

enum Opened {
    One(Vec<u8>),
    List(VecDeque<Vec<u8>>),
    Many(BufReader<File>),
}

/// Opens a file, and tells by looking what it has: many reports with their lengths, one report, or
/// reports in base64, as `bigbird agent` prints them. A report begins with random bytes, so it does
/// not look like a length and as many bytes.
fn open(path: &Path) -> io::Result<Opened> {
    let size = fs::metadata(path)?.len();
    let mut file = BufReader::with_capacity(1 << 20, File::open(path)?);
    let first = next_of_many(&mut file)?.unwrap_or_default();
    let many = || {
        let file = BufReader::with_capacity(1 << 20, File::open(path)?);
        Ok(Opened::Many(file))
    };
    if DapReport::get_decoded(&first).is_ok() {
        return many();
    }
    let mut report = Vec::new();
    // What is too large to be a report is not read.
    if size <= LARGEST {
        File::open(path)?.take(LARGEST).read_to_end(&mut report)?;
    }
    if DapReport::get_decoded(&report).is_ok() {
        return Ok(Opened::One(report));
    }
    if let Some(reports) = std::str::from_utf8(&report).ok().and_then(from_text) {
        return Ok(Opened::List(reports.into()));
    }
    match first.is_empty() || first.len() as u64 + 4 > size {
        true => Ok(Opened::One(report)),
        // The first report is wrong, and the others may be right.
        false => many(),
    }
}

/// The reports in a text: one in base64, one in base64 on each line, or the answers of
/// `bigbird agent`, some of which have one.
fn from_text(text: &str) -> Option<Vec<Vec<u8>>> {
    let decode = |text: &str| {
        let compact: String = text.split_whitespace().collect();
        let standard = STANDARD.decode(&compact);
        let decoded = standard.or_else(|_| URL_SAFE_NO_PAD.decode(compact.trim_end_matches('=')));
        decoded.ok().filter(|decoded| !decoded.is_empty())
    };
    if let Some(one) = decode(text).filter(|it| DapReport::get_decoded(it).is_ok()) {
        return Some(vec![one]);
    }
    let mut reports = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        match serde_json::from_str::<Value>(line) {
            Ok(Value::Object(answer)) => {
                if let Some(report) = answer.get("report").and_then(Value::as_str) {
                    reports.push(decode(report)?);
                }
            }
            _ => reports.push(decode(line)?),
        }
    }
    (!reports.is_empty()).then_some(reports)
}

/// The next report of a file with many. A report that is cut short is returned as far as it goes.
fn next_of_many(file: &mut BufReader<File>) -> io::Result<Option<Vec<u8>>> {
    let mut length = Vec::with_capacity(4);
    file.by_ref().take(4).read_to_end(&mut length)?;
    let Ok(length) = <[u8; 4]>::try_from(length.as_slice()) else {
        // Fewer than four bytes are left, which are not a report unless there are none.
        return Ok((!length.is_empty()).then_some(length));
    };
    let length = u64::from(u32::from_be_bytes(length));
    let mut report = Vec::new();
    if length <= LARGEST {
        file.by_ref().take(length).read_to_end(&mut report)?;
    } else {
        // Nothing after this can be told apart.
        io::copy(file, &mut io::sink())?;
    }
    Ok(Some(report))
}

/// The result of the command.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AggregateAnswer {
    task: String,
    batch: String,
    /// The number of reports in the batch.
    reports: u64,
    accepted: u64,
    refused: BTreeMap<&'static str, u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    noised: Option<Vec<i64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    standard_deviation: Option<f64>,
    /// Epsilons.
    budget: f64,
    spent: f64,
    left: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip)]
    reasons: Vec<(ReportRefusal, u64)>,
    #[serde(skip)]
    state: BatchState,
    #[serde(skip)]
    least_paid: Option<MicroEpsilon>,
}

impl AggregateAnswer {
    fn new(
        task: &AggregationTask,
        tally: &ReportTally,
        batch: &BatchState,
        result: Option<NoisedHistogram>,
        error: Option<String>,
    ) -> Self {
        let reasons = || {
            tally
                .refused
                .iter()
                .map(|(reason, count)| (*reason, *count))
        };
        Self {
            task: task.id().to_string(),
            batch: batch.name.clone(),
            reports: batch.reports,
            accepted: tally.accepted,
            refused: reasons()
                .map(|(reason, count)| (reason.key(), count))
                .collect(),
            standard_deviation: result.as_ref().map(|result| result.standard_deviation),
            noised: result.map(|result| result.buckets),
            budget: batch.budget.to_epsilon(),
            spent: batch.spent.to_epsilon(),
            left: batch.left().to_epsilon(),
            error,
            reasons: reasons().collect(),
            state: batch.clone(),
            least_paid: tally.least_paid,
        }
    }

    fn text(&self, args: &AggregateArgs) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        let refused: u64 = self.refused.values().sum();
        if self.accepted + refused > 0 {
            writeln!(
                text,
                "{} accepted, {} refused.",
                output::count(self.accepted, "report"),
                grouped(refused)
            )?;
        }
        for (reason, count) in &self.reasons {
            writeln!(text, "  {:>9}  {reason}", grouped(*count))?;
        }
        let state = &self.state;
        let all = self.accepted == 0 && refused > 0;
        if all
            && self
                .refused
                .contains_key(ReportRefusal::Undecryptable.key())
        {
            writeln!(
                text,
                "None could be decrypted. Check --site, --caller, --histogram-size, --max-value, \
                 --vdaf\nand the settings of the service: a report is for one task alone."
            )?;
        }
        match self.least_paid {
            Some(paid) if paid < state.budget && all => writeln!(
                text,
                "The budget of the batch is ε = {}, and some reports paid only {paid}.",
                state.budget
            )?,
            Some(paid) if paid > state.budget => writeln!(
                text,
                "Every report paid at least ε = {paid}, and the budget of the batch is {}. The rest \
                 cannot\nbe spent. To spend it in several queries, give a new batch --batch-epsilon.",
                state.budget
            )?,
            _ => {}
        }
        writeln!(
            text,
            "Batch `{}` of {}: {}, ε = {} left of {}.",
            self.batch,
            args.site,
            output::count(self.reports, "report"),
            state.left(),
            state.budget
        )?;
        if let Some(error) = &self.error {
            writeln!(text, "\nNo result: {error}.")?;
        }
        Ok(text)
    }

    /// Adds the noised sums to a document, if there are any.
    fn add_sums(&self, document: &mut Document) {
        let (Some(noised), Some(deviation)) = (&self.noised, self.standard_deviation) else {
            return;
        };
        let columns = [
            ResultColumn::named("bucket"),
            ResultColumn::new("noised sum", "noisedSum"),
        ];
        let mut table = ResultTable::new(columns.to_vec());
        for (bucket, noised) in (0_u64..).zip(noised) {
            table.row(vec![ResultCell::Count(bucket), ResultCell::Signed(*noised)]);
        }
        document.table(table).paragraph(format!(
            "The noise has a standard deviation of {deviation:.1} in each bucket."
        ));
    }
}
