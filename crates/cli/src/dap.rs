//! `bigbird dap`: what other implementations of DAP need to work with our reports.

use std::fs;
use std::path::{Path, PathBuf};

use bigbird::Epsilon;
use bigbird_dap::messages::Encode as _;
use bigbird_dap::{
    AggregationService, AggregationTask, Role, TaskTerms, VdafKind, seal, seal_without_budget,
};
use serde_json::json;

use crate::aggregate::site;
use crate::clock::wall_clock;
use crate::{CommandError, CommandResult, keys, service};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum DapCommand {
    /// Write a task and reports for another implementation, such as Janus
    #[command(after_help = "\
Writes into the folder:

  task-configuration.bin   the encoded TaskConfiguration, which both aggregators need byte for byte
  task-id.bin              the id of the task, 32 bytes
  upload-N.bin             bodies of upload requests, of at most 100 reports each: POST them to
                           {leader}/tasks/{task id}/reports with the content type
                           application/ppm-dap;message=upload-req
  reports.bin              the same histograms as reports, with lengths, for `bigbird aggregate`
  task.json                what is in them, and the true sum

Without --aggregation-services it also generates keys, and writes leader.toml, helper.toml and
aggregation-services.toml. To send reports to a running aggregator, put the public keys it
publishes into a file of services and name that file.")]
    Export(ExportArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct ExportArgs {
    /// Folder for the files, which must not exist or be empty
    #[arg(long, value_name = "DIR", default_value = "dap-export")]
    out: PathBuf,
    /// File of aggregation services and their public keys [default: new keys]
    #[arg(long, value_name = "FILE")]
    aggregation_services: Option<PathBuf>,
    /// URL of the service, if the file has several [default: the first]
    #[arg(long, value_name = "URL", requires = "aggregation_services")]
    url: Option<String>,
    /// Site whose budget paid
    #[arg(long, value_name = "SITE", default_value = "shop.example")]
    site: String,
    /// Site that made the calls [default: --site]
    #[arg(long, value_name = "SITE")]
    caller: Option<String>,
    /// Number of buckets of each report
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    histogram_size: u32,
    /// Largest value of a conversion
    #[arg(long, value_name = "N", default_value_t = 10,
          value_parser = clap::value_parser!(u32).range(1..))]
    max_value: u32,
    /// Epsilon that was paid for each report
    #[arg(long, value_name = "E", default_value_t = 1.0)]
    epsilon: f64,
    /// Number of reports
    #[arg(long, value_name = "N", default_value_t = 40,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    reports: u32,
    /// VDAF: l1-bound-sum, or sum-vec for an aggregator that does not know the first
    #[arg(long, value_name = "NAME", default_value = "l1-bound-sum")]
    vdaf: VdafArg,
    /// Put the privacy budget into uploaded reports, as the draft says: yes or no
    ///
    /// [default: yes with l1-bound-sum, no with sum-vec]
    ///
    /// An aggregator that does not know this extension refuses the report.
    #[arg(long, value_name = "WHETHER", hide_possible_values = true)]
    privacy_budget: Option<YesOrNo>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum YesOrNo {
    Yes,
    No,
}

/// The name of a VDAF on the command line.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum VdafArg {
    L1BoundSum,
    SumVec,
}

impl From<VdafArg> for VdafKind {
    fn from(vdaf: VdafArg) -> Self {
        match vdaf {
            VdafArg::L1BoundSum => Self::L1BoundSum,
            VdafArg::SumVec => Self::SumVec,
        }
    }
}

/// The most reports of one upload request.
const UPLOAD: usize = 100;

pub(crate) fn run(command: &DapCommand) -> CommandResult {
    let DapCommand::Export(args) = command;
    let epsilon =
        Epsilon::new(args.epsilon).map_err(|error| CommandError::misused(format!("--{error}")))?;
    let budget_source = site("--site", &args.site)?;
    let collector = site("--caller", args.caller.as_ref().unwrap_or(&args.site))?;
    let folder = args.out.as_path();
    let unwritable = |path: &Path, error: &std::io::Error| {
        CommandError::because(format!("cannot write {}: {error}", path.display()))
    };
    fs::create_dir_all(folder).map_err(|error| unwritable(folder, &error))?;
    let mut entries = fs::read_dir(folder).map_err(|error| unwritable(folder, &error))?;
    if entries.next().is_some() {
        return Err(CommandError::because(format!(
            "{} is not empty; choose another folder with --out",
            folder.display()
        )));
    }
    let service = args.service(folder)?;
    let terms = TaskTerms {
        collector: collector.as_str(),
        budget_source: budget_source.as_str(),
        histogram_size: args.histogram_size,
        max_value: args.max_value,
        vdaf: args.vdaf.into(),
    };
    let task = AggregationTask::new(&service, &terms)?;
    let seconds = wall_clock().0.div_euclid(1000);
    let mut sum = vec![0_u64; args.histogram_size as usize];
    let (mut uploads, mut reports) = (Vec::new(), Vec::new());
    let with_budget = match (args.privacy_budget, args.vdaf) {
        (Some(given), _) => given == YesOrNo::Yes,
        (None, vdaf) => matches!(vdaf, VdafArg::L1BoundSum),
    };
    for number in 0..args.reports {
        let histogram = histogram(number, args.histogram_size, args.max_value);
        for (sum, bucket) in sum.iter_mut().zip(&histogram) {
            *sum += u64::from(*bucket);
        }
        let report = seal(&task, &histogram, epsilon.micro(), seconds)?.get_encoded()?;
        uploads.push(match with_budget {
            true => report.clone(),
            false => seal_without_budget(&task, &histogram, seconds)?.get_encoded()?,
        });
        reports.push(report);
    }
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        fs::write(&path, bytes).map_err(|error| unwritable(&path, &error))
    };
    write("task-configuration.bin", task.encoded_configuration())?;
    write("task-id.bin", &task.id().0)?;
    for (number, body) in uploads.chunks(UPLOAD).enumerate() {
        write(&format!("upload-{number}.bin"), &body.concat())?;
    }
    let mut prefixed = Vec::new();
    for report in &reports {
        let length = u32::try_from(report.len()).unwrap_or(u32::MAX);
        prefixed.extend_from_slice(&length.to_be_bytes());
        prefixed.extend_from_slice(report);
    }
    write("reports.bin", &prefixed)?;
    let (parameters, time) = (task.parameters(), task.time(seconds));
    let settings = service.settings();
    let description = json!({
        "taskId": task.id().to_string(),
        "version": settings.version.tag(),
        "leader": service.aggregator(Role::Leader).url,
        "helper": service.aggregator(Role::Helper).url,
        "timePrecision": settings.time_precision,
        "minBatchSize": settings.min_batch_size,
        "batchMode": settings.batch_mode,
        "vdaf": {
            "type": parameters.kind.name(),
            "length": parameters.length,
            "maxValue": parameters.max_value,
            "chunkLength": parameters.chunk_length,
        },
        "collector": collector.as_str(),
        "budgetSource": budget_source.as_str(),
        "privacyBudget": with_budget.then_some(epsilon.micro().get()),
        "reports": reports.len(),
        "bytesPerReport": uploads.first().map_or(0, Vec::len),
        "firstTime": time,
        "lastTime": time,
        "sum": sum,
    });
    write("task.json", crate::output::json(&description)?.as_bytes())?;
    let text = format!(
        "Wrote {} of task {} to {}. task.json has their true sum.\n",
        crate::output::count(reports.len() as u64, "report"),
        task.id(),
        folder.display()
    );
    Ok((text, true))
}

impl ExportArgs {
    /// The service of the file, or a new one, whose keys are written.
    fn service(&self, folder: &Path) -> Result<AggregationService, CommandError> {
        let Some(path) = &self.aggregation_services else {
            let (service, keys) = keys::new_service()?;
            keys::write_service(folder, &service, &keys)?;
            return Ok(service);
        };
        let services = service::read_services(path)?;
        let found = match &self.url {
            Some(url) => services.get(url),
            None => services.iter().next(),
        };
        found.cloned().ok_or_else(|| {
            let url = self.url.clone().unwrap_or_default();
            CommandError::because(format!("{}: unknown service `{url}`", path.display()))
        })
    }
}

/// The histogram of a report: every fourth is null, some have one bucket, some divide the largest
/// value over two.
fn histogram(number: u32, size: u32, max_value: u32) -> Vec<u32> {
    let mut histogram = vec![0; size as usize];
    // Squares, so that buckets get different sums.
    let at = |place: u32| (u64::from(place) * u64::from(place) / 7 % u64::from(size)) as usize;
    match number % 4 {
        0 => {}
        1 => histogram[at(number)] = 1,
        2 => histogram[at(number)] = max_value,
        _ => {
            histogram[at(number)] += max_value / 2;
            histogram[at(number / 4)] += max_value - max_value / 2;
        }
    }
    histogram
}
