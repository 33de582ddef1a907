//! `bigbird workload`: workloads, described or written to files.

use std::fmt::Write as _;
use std::path::PathBuf;

use bigbird_lab::describe::Description;
use bigbird_lab::diagnosis::{Symptom, WorkloadDiagnosis};
use bigbird_lab::evaluation::QuerierOptions;
use bigbird_lab::evaluation::survey::Survey;
use bigbird_lab::paper::numbers::paper_numbers;
use bigbird_lab::text::grouped;
use bigbird_lab::workload::Workload;
use bigbird_lab::workload::understanding::Understanding;
use bigbird_lab::workload::write;
use serde_json::{Value, json};

use super::source::WorkloadSource;
use crate::{CommandError, CommandResult, output};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum WorkloadCommand {
    /// Describe a workload: what is in it, what is missing or odd, what can be measured
    Describe(DescribeArgs),
    /// Write a workload as a table, or as prepared files like those of the paper's artifact
    Write(WriteArgs),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  bigbird workload write --scale 0.01 --to logs.csv
  bigbird workload write --scale 1 --to prepared
  bigbird workload write --criteo-raw DIR --to logs.parquet")]
pub(crate) struct WriteArgs {
    #[command(flatten)]
    source: WorkloadSource,
    /// File for a table, or folder for prepared files
    ///
    /// A path that ends in .csv, .parquet or .pqt is a table. Any other path is a folder.
    #[arg(long, value_name = "PATH")]
    to: PathBuf,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  bigbird workload describe
  bigbird workload describe logs.csv --impression-kind view --conversion-kind purchase,signup
  bigbird workload describe logs.csv --bucket-column country --buckets 20 --value-unit 0.01
  zcat logs.tsv.gz | bigbird workload describe -")]
pub(crate) struct DescribeArgs {
    #[command(flatten)]
    source: WorkloadSource,
    /// Print the description as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(command: &WorkloadCommand) -> CommandResult {
    match command {
        WorkloadCommand::Describe(args) => describe(args),
        WorkloadCommand::Write(args) => write_workload(args),
    }
}

fn write_workload(args: &WriteArgs) -> CommandResult {
    let (seed, _) = args.source.one()?;
    let workload = args.source.workload(seed)?;
    let extension = args.to.extension().and_then(std::ffi::OsStr::to_str);
    let is_table = extension
        .is_some_and(|end| ["csv", "parquet", "pqt"].contains(&end.to_ascii_lowercase().as_str()));
    match is_table {
        true => write::write_table(&workload, &args.to)?,
        false => write::write_prepared(&workload, &args.to)?,
    }
    let text = format!(
        "Wrote {} and {} to {}\n",
        output::count(workload.devices() as u64, "device"),
        output::count(workload.len() as u64, "event"),
        args.to.display()
    );
    Ok((text, true))
}

fn describe(args: &DescribeArgs) -> CommandResult {
    let (seed, _) = args.source.one()?;
    let (workload, understanding) = args.source.understood(seed)?;
    let description = Description::new(&workload, args.source.lookback_epochs())?;
    let of_paper = QuerierOptions {
        min_conversions_a_day: paper_numbers().dataset.querier_conversions_a_day,
        ..QuerierOptions::default()
    };
    let queriers = Survey::of(&workload)?.queriers(&of_paper).len();
    let diagnosis = WorkloadDiagnosis::new(
        &workload,
        understanding.as_ref(),
        &args.source.options(),
        args.source.lookback_epochs(),
    )?;
    let text = if args.json {
        let mut description = describe_json(&description, &workload, queriers);
        description["buckets"] = json!(workload.buckets);
        description["reading"] = json!(understanding);
        description["diagnosis"] = json!(diagnosis);
        output::json(&description)?
    } else {
        let mut text = tell(
            args,
            &description,
            &workload,
            queriers,
            understanding.as_ref(),
        )?;
        tell_diagnosis(&diagnosis, &mut text)?;
        output::fitted(&text)
    };
    Ok((text, true))
}

fn describe_json(description: &Description, workload: &Workload, queriers: usize) -> Value {
    let busiest = |sites: &[(u32, u64)], names: &[String]| -> Vec<Value> {
        sites
            .iter()
            .map(|(site, count)| json!({ "site": names[*site as usize], "events": count }))
            .collect()
    };
    let percentiles: Vec<Value> = paper_numbers()
        .workload_table
        .rows
        .iter()
        .map(|paper| {
            let [conversion_sites, impression_sites, fan_out] = description.at(paper.percentile);
            json!({
                "percentile": paper.percentile,
                "conversionSites": conversion_sites,
                "impressionSites": impression_sites,
                "fanOut": fan_out,
                "paper": {
                    "conversionSites": paper.conversion_sites,
                    "impressionSites": paper.impression_sites,
                    "fanOut": paper.fan_out,
                },
            })
        })
        .collect();
    json!({
        "devices": description.devices,
        "convertingDevices": description.converting_devices,
        "impressions": description.impressions,
        "conversions": description.conversions,
        "epochs": workload.epochs().map(|(first, last)| [first, last]),
        "impressionSites": description.impression_sites,
        "conversionSites": description.conversion_sites,
        "conversionSitesWith100ADay": queriers,
        "medianImpressions": description.impressions_of_device.percentile(50.0),
        "medianConversions": description.conversions_of_device.percentile(50.0),
        "busiestImpressionSites":
            busiest(&description.busiest_impression_sites, &workload.impression_site_names),
        "busiestConversionSites":
            busiest(&description.busiest_conversion_sites, &workload.conversion_site_names),
        "percentiles": percentiles,
    })
}

fn tell(
    args: &DescribeArgs,
    description: &Description,
    workload: &Workload,
    queriers: usize,
    understanding: Option<&Understanding>,
) -> Result<String, CommandError> {
    let mut text = String::new();
    let size = args.source.size();
    let dataset = &paper_numbers().dataset;
    #[expect(clippy::cast_precision_loss, reason = "counts of millions")]
    let of_paper = |count: u64| size.map_or("–".to_owned(), |size| rounded(count as f64 * size));
    writeln!(text, "Workload: {}\n", args.source)?;
    let median = |percentile: Option<u32>| percentile.map_or("–".to_owned(), |it| it.to_string());
    let rows = [
        (
            "devices",
            grouped(description.devices),
            of_paper(dataset.devices),
        ),
        (
            "impressions",
            grouped(description.impressions),
            of_paper(dataset.impressions),
        ),
        (
            "conversions",
            grouped(description.conversions),
            of_paper(dataset.conversions),
        ),
        (
            "impressions of the median device",
            median(description.impressions_of_device.percentile(50.0)),
            dataset.impressions_of_median_device.to_string(),
        ),
        (
            "conversions of the median converting device",
            median(description.conversions_of_device.percentile(50.0)),
            dataset.conversions_of_median_device.to_string(),
        ),
        (
            "impression sites",
            grouped(description.impression_sites as u64),
            of_paper(dataset.impression_sites),
        ),
        (
            "conversion sites",
            grouped(description.conversion_sites as u64),
            of_paper(dataset.conversion_sites),
        ),
        (
            "of those, with at least 100 conversions a day",
            grouped(queriers as u64),
            of_paper(dataset.queriers),
        ),
    ];
    let mut header = vec![String::new(), "here".to_owned()];
    if let Some(size) = size {
        header.push(match size {
            1.0 => "paper".to_owned(),
            size => format!("paper × {size}"),
        });
    }
    let rows = rows.map(|(what, here, paper)| {
        let mut row = vec![what.to_owned(), here];
        row.extend(size.map(|_| paper));
        row
    });
    writeln!(text, "{}\n", output::table(header, rows))?;
    if let Some((first, last)) = workload.epochs() {
        let date = |epoch| understanding.and_then(|it| it.times.epoch_date(epoch));
        match (date(first), date(last)) {
            (Some(begin), Some(end)) => {
                writeln!(
                    text,
                    "Epochs {first} to {last}, which begin on {begin} and {end}."
                )?;
            }
            _ => writeln!(text, "Epochs {first} to {last}.")?,
        }
    }
    let shares = |sites: &[(u32, u64)], names: &[String], all: u64| {
        #[expect(clippy::cast_precision_loss, reason = "a share is only shown")]
        let share = |count: u64| 100.0 * count as f64 / all.max(1) as f64;
        let of = |(site, count): &(u32, u64)| {
            format!("{} ({:.1}%)", names[*site as usize], share(*count))
        };
        sites.iter().map(of).collect::<Vec<_>>().join(", ")
    };
    writeln!(
        text,
        "Busiest impression sites: {}.\nBusiest conversion sites: {}.\n",
        shares(
            &description.busiest_impression_sites,
            &workload.impression_site_names,
            description.impressions
        ),
        shares(
            &description.busiest_conversion_sites,
            &workload.conversion_site_names,
            description.conversions
        ),
    )?;
    let header = [
        "percentile",
        "N",
        "2N",
        "paper",
        "M",
        "paper",
        "n",
        "2n",
        "paper",
    ];
    let rows = paper_numbers().workload_table.rows.iter().map(|paper| {
        let [conversion_sites, impression_sites, fan_out] = description.at(paper.percentile);
        let mut row = vec![format!("p{}", paper.percentile)];
        let numbers = [
            conversion_sites,
            2 * conversion_sites,
            paper.conversion_sites,
            impression_sites,
            paper.impression_sites,
            fan_out,
            2 * fan_out,
            paper.fan_out,
        ];
        row.extend(numbers.map(|number| number.to_string()));
        row
    });
    let header = header.map(str::to_owned).to_vec();
    writeln!(text, "{}\n", output::table(header, rows))?;
    writeln!(
        text,
        "N, M and n are counted in each epoch of a device.\n\
         N: distinct conversion sites. M: distinct impression sites.\n\
         n: distinct conversion sites for one impression site.\n\
         The paper's N and n are even at every percentile and look doubled, probably because it\n\
         counts clicks and landed clicks separately."
    )?;
    Ok(text)
}

/// Tells what is missing or odd, and what can be measured.
fn tell_diagnosis(diagnosis: &WorkloadDiagnosis, text: &mut String) -> std::fmt::Result {
    let mut sections = vec![("What can be measured:", diagnosis.measurable.sentences())];
    if !diagnosis.findings.is_empty() {
        let findings = diagnosis.findings.iter().map(Symptom::text);
        sections.insert(0, ("What is missing or odd:", findings.collect()));
    }
    for (title, sentences) in sections {
        writeln!(text, "\n{title}")?;
        for sentence in &sentences {
            item_line(text, sentence)?;
        }
    }
    Ok(())
}

/// A sentence as an item of a list.
fn item_line(text: &mut String, sentence: &str) -> std::fmt::Result {
    let mut letters = sentence.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    let first = first.map_or(String::new(), String::from);
    writeln!(text, "* {first}{}.", letters.as_str())
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts"
)]
fn rounded(count: f64) -> String {
    grouped(count.round() as u64)
}
