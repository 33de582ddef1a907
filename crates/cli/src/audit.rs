//! `bigbird audit`: what leaks and what holds, measured on the real code.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use bigbird_audit::page::{figures, page};
use bigbird_audit::run::{
    AuditPlan, AuditReport, Budget, SearchRow, find_manager, largest_loss_text, run as run_audit,
};
use bigbird_audit::script::Script;
use bigbird_audit::search::leak;
use bigbird_audit::story::story;

use crate::output::{Document, FormatArgs, ResultCell, ResultColumn, ResultFormat, ResultTable};
use crate::progress::Bar;
use crate::{CommandError, CommandResult, output};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Scripts of calls, clears, restarts and clock moves are played in two worlds that differ in what one
epoch holds. The loss of all answers together is computed exactly. Managers with known mistakes must
be caught, and the real ones must hold. The failure modes of per-querier budgets are executed too.

  bigbird audit                                   a minute or two
  bigbird audit --seconds 600 --out audit         ten minutes of search, and a page
  bigbird audit --manager agent --seconds 60      one manager
  bigbird audit --manager winner-pays             the shortest script that catches a mistake
  bigbird audit --manager agent --script FILE     one script, told step by step

Exit status: 0 if every manager did what it should, 1 if not, 2 if the arguments are wrong.")]
pub(crate) struct AuditArgs {
    /// Managers to search, by name [default: all, and the failure modes]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    manager: Vec<String>,
    /// Replay the script in this JSON file on each --manager, and explain it
    #[arg(long, value_name = "FILE", requires = "manager")]
    script: Option<PathBuf>,
    /// Scripts for each manager, rounded up to thousands. SQLite gets a twentieth [default: 10000]
    #[arg(long, value_name = "N", conflicts_with = "seconds")]
    scripts: Option<u64>,
    /// Seconds to search. The search ends after the round in which they are over
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    /// Seed of the search
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of threads [default: all cores]
    #[arg(long)]
    threads: Option<u16>,
    /// Folder for a page with figures, stories and a comparison of the search's tactics
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    format: FormatArgs,
}

pub(crate) fn run(args: &AuditArgs) -> CommandResult {
    if let Some(path) = &args.script {
        return replay(args, path);
    }
    let budget = match (args.seconds, args.scripts) {
        (Some(seconds), _) if !(0.0..=1e6).contains(&seconds) => {
            let why = format!("--seconds must be in [0, 1000000], got {seconds}");
            return Err(CommandError::misused(why));
        }
        (Some(seconds), _) => Budget::Time(Duration::from_secs_f64(seconds)),
        (None, scripts) => Budget::Scripts(scripts.unwrap_or(10_000)),
    };
    if let Some(0) = args.threads {
        return Err(CommandError::misused(
            "--threads must be at least 1, got 0".to_owned(),
        ));
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let plan = AuditPlan {
        seed: args.seed,
        threads: args.threads.map_or(cores, usize::from),
        budget,
        managers: args.manager.clone(),
        compare_tactics: args.out.is_some(),
    };
    let bar = Mutex::new(Bar::new());
    let begin = Instant::now();
    let report = run_audit(&plan, &|done, what| {
        if let Ok(mut bar) = bar.lock() {
            bar.show(done, 0.0, what);
        }
    });
    if let Ok(mut bar) = bar.lock() {
        bar.clear();
    }
    let report = report.map_err(|error| CommandError::misused(error.to_string()))?;
    if let Some(folder) = &args.out {
        write_page(folder, &report, args)?;
    }
    let good = report.search.iter().all(SearchRow::as_expected);
    let text = match args.format.format() {
        ResultFormat::Json => output::json(&report)?,
        format => summary(&report, args, begin.elapsed())?.render(format),
    };
    Ok((text, good))
}

/// Replays one script on each manager.
fn replay(args: &AuditArgs, path: &Path) -> CommandResult {
    let unreadable = |why: String| CommandError::unreadable(why);
    let text = fs::read_to_string(path)
        .map_err(|error| unreadable(format!("cannot read {}: {error}", path.display())))?;
    let script: Script = serde_json::from_str(&text)
        .map_err(|error| unreadable(format!("{} is not a script: {error}", path.display())))?;
    script
        .check()
        .map_err(|why| unreadable(format!("{}: {why}", path.display())))?;
    let mut told = String::new();
    let mut good = true;
    for name in &args.manager {
        let entry = find_manager(name).map_err(|error| CommandError::misused(error.to_string()))?;
        let _ = writeln!(told, "{name}: {}", entry.about);
        told.push_str(&story(&*entry.make, &script));
        let leaked = leak(&*entry.make, &script);
        if let Some((_, Some(mixture))) = leaked {
            let _ = writeln!(
                told,
                "With the draws hidden, over {} tapes, the loss is {:.3} µε.",
                mixture.tapes, mixture.micro
            );
        }
        good &= leaked.is_none();
        told.push('\n');
    }
    Ok((output::fitted(&told), good))
}

fn write_page(folder: &Path, report: &AuditReport, args: &AuditArgs) -> Result<(), CommandError> {
    let cannot = |path: &Path, error: std::io::Error| {
        CommandError::because(format!("cannot write {}: {error}", path.display()))
    };
    fs::create_dir_all(folder).map_err(|error| cannot(folder, error))?;
    let mut files = vec![
        (
            "index.html".to_owned(),
            page(report, &command(report, args)),
        ),
        ("audit.json".to_owned(), output::json(report)?),
    ];
    for figure in figures(report) {
        files.push((format!("{}.svg", figure.name), figure.chart.to_file()));
    }
    for row in &report.search {
        if let Some(script) = &row.script {
            files.push((
                format!("{}.script.json", row.manager),
                output::json(script)?,
            ));
        }
    }
    for (name, contents) in files {
        let path = folder.join(name);
        fs::write(&path, contents).map_err(|error| cannot(&path, error))?;
    }
    Ok(())
}

/// The command that repeats an audit.
fn command(report: &AuditReport, args: &AuditArgs) -> String {
    let mut command = format!(
        "bigbird audit --seed {} --scripts {}",
        report.seed, report.scripts
    );
    if !args.manager.is_empty() {
        let _ = write!(command, " --manager {}", args.manager.join(","));
    }
    command
}

fn summary(
    report: &AuditReport,
    args: &AuditArgs,
    took: Duration,
) -> Result<Document, CommandError> {
    let mut document = Document::new();
    if !report.adaptive.is_empty() {
        document
            .paragraph("The privacy loss of one querier that was promised ε = 1:")
            .table(failure_modes(report));
    }
    let columns = [
        ResultColumn::named("manager"),
        ResultColumn::named("kind"),
        ResultColumn::named("result"),
        ResultColumn::named("separated"),
        ResultColumn::named("scripts"),
        ResultColumn::new("largest loss", "largestLoss"),
        ResultColumn::named("steps"),
    ];
    let mut table = ResultTable::new(columns.to_vec());
    for row in &report.search {
        table.row(vec![
            ResultCell::text(row.manager),
            ResultCell::text(row.kind),
            ResultCell::text(match row.violation {
                Some(violation) => format!("leaks ({violation})"),
                None if row.kind == "broken" => "not caught".to_owned(),
                None => "holds".to_owned(),
            }),
            ResultCell::text(if row.separated { "yes" } else { "no" }),
            ResultCell::Count(row.strategies),
            ResultCell::text(largest_loss_text(row)),
            ResultCell::or_missing(row.script.as_ref(), |it| {
                ResultCell::Count(it.steps.len() as u64)
            }),
        ]);
    }
    document.table(table);
    let mut text = String::new();
    for result in &report.denial {
        let _ = match &result.free {
            None => writeln!(
                text,
                "Free denial under site charging {}: none in {}.",
                result.site_charging,
                output::count(result.attacks, "attack")
            ),
            Some(denial) => writeln!(
                text,
                "Free denial under site charging {}: {} took {} µε from a publisher and paid {} µε.",
                result.site_charging,
                output::count(denial.requests.len() as u64, "request"),
                denial.from_publisher,
                denial.from_own_quota
            ),
        };
    }
    // One manager alone: tell what was found.
    if let ([row], [_]) = (report.search.as_slice(), args.manager.as_slice())
        && let Some(script) = &row.script
    {
        let entry = find_manager(row.manager);
        let entry = entry.map_err(|error| CommandError::because(error.to_string()))?;
        let _ = writeln!(text, "\n{}\n{}", entry.about, story(&*entry.make, script));
    }
    let wrong: Vec<&str> = report
        .search
        .iter()
        .filter(|row| !row.as_expected())
        .map(|row| row.manager)
        .collect();
    let _ = match wrong.as_slice() {
        [] => writeln!(
            text,
            "Everything is as it should be: real managers hold, broken ones are caught, wasteful \
             ones are not reported."
        ),
        wrong => writeln!(text, "NOT as it should be: {}.", wrong.join(", ")),
    };
    let scripts: u64 = report.search.iter().map(|row| row.strategies).sum();
    #[expect(clippy::cast_precision_loss, reason = "for display only")]
    let rate = scripts as f64 / took.as_secs_f64().max(0.001);
    let _ = writeln!(
        text,
        "{} in {:.0} s ({rate:.0} a second). Repeat with: {}",
        output::count(scripts, "script"),
        took.as_secs_f64(),
        command(report, args)
    );
    if let Some(folder) = &args.out {
        let _ = writeln!(text, "Open {}", folder.join("index.html").display());
    }
    document.paragraph(text);
    Ok(document)
}

/// A few rows of the failure modes.
fn failure_modes(report: &AuditReport) -> ResultTable {
    let shown = [1, 4, 16, 64];
    let columns = [
        ResultColumn::named("helpers"),
        ResultColumn::new("adaptive data", "adaptiveData"),
        ResultColumn::new("shared limit, plain filters", "plainFilters"),
        ResultColumn::new("shared limit, individual filters", "individualFilters"),
    ];
    let mut table = ResultTable::new(columns.to_vec());
    for n in shown {
        let adaptive = report
            .adaptive
            .iter()
            .find(|it| it.n == n && it.epsilon == 1.0);
        let plain = report.shared_limit.iter().find(|it| it.n == n);
        let individual = report.shared_limit_individual.iter().find(|it| it.n == n);
        let loss =
            |loss: Option<f64>| ResultCell::or_missing(loss, |loss| ResultCell::Rounded(loss, 3));
        table.row(vec![
            ResultCell::Count(n as u64),
            loss(adaptive.map(|it| it.exact)),
            loss(plain.map(|it| it.exact)),
            loss(individual.map(|it| it.exact)),
        ]);
    }
    table
}
