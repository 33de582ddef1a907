//! Tidy tables of batches, for other programs: one row for each batch of each run, with every
//! parameter of the run as a column. CSV and Parquet files have the same columns.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::{ArrayRef, BooleanArray, Float64Array, RecordBatch, StringArray, UInt64Array};
use bigbird::Limit;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use thiserror::Error;

use super::querier::{NoiseModel, QuerierOptions};
use super::results::{BatchRecord, RunRecord};

/// The parameters that all runs of a table share.
#[derive(Debug, Clone, PartialEq)]
pub struct RunSetting {
    /// The workload, in words.
    pub workload: String,
    /// The number of buckets.
    pub buckets: u16,
    /// The options of queriers.
    pub options: QuerierOptions,
    /// The number of epochs before its own that a conversion reads.
    pub lookback_epochs: u16,
}

/// The format of a table, which the end of its file name decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchFormat {
    /// Comma-separated values.
    Csv,
    /// Apache Parquet.
    Parquet,
}

impl BatchFormat {
    /// The format of a file. None if its name has another end.
    pub fn of(path: &Path) -> Option<Self> {
        let end = path.extension()?.to_str()?.to_ascii_lowercase();
        match end.as_str() {
            "csv" => Some(Self::Csv),
            "parquet" | "pqt" => Some(Self::Parquet),
            _ => None,
        }
    }
}

/// The reason why a table cannot be written.
#[derive(Debug, Error)]
pub enum BatchTableError {
    /// The end of the file name says nothing about the format.
    #[error("{}: the name must end in .csv, .parquet or .pqt", path.display())]
    UnknownFormat {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
}

/// A row: a batch of a run.
struct TidyRow<'a> {
    setting: &'a RunSetting,
    run: &'a RunRecord,
    number: u64,
    batch: &'a BatchRecord,
}

/// The content of a column: how to get it from a row, or nothing if the run does not have it.
enum Content {
    Text(fn(&TidyRow<'_>) -> Option<String>),
    Whole(fn(&TidyRow<'_>) -> Option<u64>),
    Number(fn(&TidyRow<'_>) -> Option<f64>),
    Flag(fn(&TidyRow<'_>) -> Option<bool>),
    /// The number of reports of the batch that this limit was the first to block.
    BlockedBy(Limit),
}

/// Every column, in order: the parameters, and then the results.
fn columns() -> Vec<(String, Content)> {
    use Content::{BlockedBy, Flag, Number, Text, Whole};
    let limit = |limit: Limit| limit.key();
    let mut columns = vec![
        ("workload", Text(|row| Some(row.setting.workload.clone()))),
        ("profile", Text(|row| Some(row.run.profile.clone()))),
        ("attacker", Text(|row| Some(row.run.attacker.clone()))),
        (
            limit(Limit::QuerierBudget),
            Number(|row| row.run.limits.querier_budget),
        ),
        (
            limit(Limit::GlobalBudget),
            Number(|row| row.run.limits.global_budget),
        ),
        (
            limit(Limit::ImpressionSiteQuota),
            Number(|row| row.run.limits.impression_site_quota),
        ),
        (
            limit(Limit::ConversionSiteQuota),
            Number(|row| row.run.limits.conversion_site_quota),
        ),
        (
            limit(Limit::DomainCap),
            Whole(|row| row.run.limits.domain_cap.map(u64::from)),
        ),
        (
            "siteCharging",
            Text(|row| Some(row.run.site_charging.clone())),
        ),
        ("sybils", Whole(|row| row.run.sybils.map(u64::from))),
        ("firstRank", Whole(|row| row.run.first_rank.map(u64::from))),
        (
            "ownedImpressionSites",
            Whole(|row| row.run.owned_impression_sites.map(u64::from)),
        ),
        (
            "ownedConversionSites",
            Whole(|row| row.run.owned_conversion_sites.map(u64::from)),
        ),
        (
            "allVisits",
            Flag(|row| Some(row.setting.options.all_visits)),
        ),
        ("seed", Whole(|row| Some(row.run.seed))),
        ("buckets", Whole(|row| Some(row.setting.buckets.into()))),
        (
            "lookbackEpochs",
            Whole(|row| Some(row.setting.lookback_epochs.into())),
        ),
        (
            "minConversionsPerDay",
            Whole(|row| Some(row.setting.options.min_conversions_a_day as u64)),
        ),
        (
            "batchDays",
            Whole(|row| Some(row.setting.options.batch_days as u64)),
        ),
        (
            "minBatch",
            Whole(|row| Some(row.setting.options.min_batch as u64)),
        ),
        (
            "targetError",
            Number(|row| Some(row.setting.options.target_error)),
        ),
        ("tau", Number(|row| Some(row.setting.options.tau))),
        (
            "noise",
            Text(|row| {
                let name = match row.setting.options.noise {
                    NoiseModel::Paper => "paper",
                    NoiseModel::Consistent => "consistent",
                };
                Some(name.to_owned())
            }),
        ),
        ("batch", Whole(|row| Some(row.number))),
        (
            "conversionSite",
            Text(|row| Some(row.batch.conversion_site.to_string())),
        ),
        ("epsilon", Number(|row| Some(row.batch.epsilon))),
        ("noiseScale", Number(|row| Some(row.batch.noise_scale))),
        ("size", Whole(|row| Some(row.batch.size))),
        ("fullSum", Whole(|row| Some(row.batch.full.iter().sum()))),
        ("keptSum", Whole(|row| Some(row.batch.kept.iter().sum()))),
        ("rmsre", Number(|row| Some(row.batch.rmsre))),
        ("rmsreByNoise", Number(|row| Some(row.batch.rmsre_by_noise))),
        (
            "rmsreByBlocking",
            Number(|row| Some(row.batch.rmsre_by_blocking)),
        ),
    ]
    .into_iter()
    .map(|(name, content)| (name.to_owned(), content))
    .collect::<Vec<_>>();
    columns.extend(Limit::ALL.map(|limit| (format!("blocked:{}", limit.key()), BlockedBy(limit))));
    columns
}

/// The rows of some runs.
fn rows<'a>(setting: &'a RunSetting, runs: &'a [RunRecord]) -> impl Iterator<Item = TidyRow<'a>> {
    runs.iter().flat_map(move |run| {
        (0..).zip(&run.batches).map(move |(number, batch)| TidyRow {
            setting,
            run,
            number,
            batch,
        })
    })
}

/// Writes the batches of some runs to a file. The end of its name decides the format.
///
/// # Errors
/// If the file name has another end, or if the file cannot be written.
pub fn write_batches(
    path: &Path,
    setting: &RunSetting,
    runs: &[RunRecord],
) -> Result<(), BatchTableError> {
    let Some(format) = BatchFormat::of(path) else {
        let path = path.to_owned();
        return Err(BatchTableError::UnknownFormat { path });
    };
    let failed = |source: io::Error| BatchTableError::Write {
        path: path.to_owned(),
        source,
    };
    let file = File::create(path).map_err(failed)?;
    match format {
        BatchFormat::Csv => write_csv(file, setting, runs).map_err(failed),
        BatchFormat::Parquet => write_parquet(file, setting, runs).map_err(|error| {
            failed(match error {
                ParquetError::External(cause) => io::Error::other(cause),
                cause => io::Error::other(cause),
            })
        }),
    }
}

fn write_csv(file: File, setting: &RunSetting, runs: &[RunRecord]) -> io::Result<()> {
    let columns = columns();
    let mut csv = csv::Writer::from_writer(file);
    csv.write_record(columns.iter().map(|(name, _)| name))?;
    for row in rows(setting, runs) {
        csv.write_record(columns.iter().map(|(_, content)| {
            fn text<T: ToString>(value: Option<T>) -> String {
                value.map_or_else(String::new, |value| value.to_string())
            }
            match content {
                Content::Text(of) => of(&row).unwrap_or_default(),
                Content::Whole(of) => text(of(&row)),
                Content::Number(of) => text(of(&row)),
                Content::Flag(of) => text(of(&row)),
                Content::BlockedBy(limit) => row.batch.blocked.of(*limit).to_string(),
            }
        }))?;
    }
    csv.flush()
}

fn write_parquet(file: File, setting: &RunSetting, runs: &[RunRecord]) -> Result<(), ParquetError> {
    let of = || rows(setting, runs);
    let columns = columns().into_iter().map(|(name, content)| {
        let array: ArrayRef = match content {
            Content::Text(get) => Arc::new(of().map(|row| get(&row)).collect::<StringArray>()),
            Content::Whole(get) => Arc::new(of().map(|row| get(&row)).collect::<UInt64Array>()),
            Content::Number(get) => Arc::new(of().map(|row| get(&row)).collect::<Float64Array>()),
            Content::Flag(get) => Arc::new(of().map(|row| get(&row)).collect::<BooleanArray>()),
            Content::BlockedBy(limit) => {
                let blocked = of().map(|row| row.batch.blocked.of(limit));
                Arc::new(UInt64Array::from_iter_values(blocked))
            }
        };
        // A column may have missing values in one file and none in another: its type is the same.
        (name, array, true)
    });
    let table = RecordBatch::try_from_iter_with_nullable(columns)?;
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .build();
    let mut writer = ArrowWriter::try_new(file, table.schema(), Some(properties))?;
    writer.write(&table)?;
    writer.close()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use arrow_array::Array as _;
    use arrow_array::cast::AsArray as _;
    use arrow_array::types::Float64Type;
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

    use super::*;
    use crate::evaluation::{Experiment, Laboratory};
    use crate::workload::synthetic::{Population, Preset};

    /// A run with some batches, and the setting that it was made in.
    fn run() -> (RunSetting, RunRecord) {
        let population = Population {
            preset: Preset::Published,
            scale: 0.002,
            seed: 1,
        };
        let mut workload = population.generate();
        // Nothing counts on the five buckets of the paper.
        workload.buckets = 12;
        let options = QuerierOptions {
            min_conversions_a_day: 10,
            min_batch: 200,
            ..QuerierOptions::default()
        };
        let laboratory = Laboratory::new(&workload, options, 1).unwrap();
        let experiment = Experiment {
            profile: bigbird::Profile::W3cDraft,
            policy: bigbird::Profile::W3cDraft.policy(),
            attack: None,
        };
        let result = experiment.run(&laboratory, 1).unwrap();
        let setting = RunSetting {
            workload: "a, \"b\"".to_owned(),
            buckets: workload.buckets,
            options,
            lookback_epochs: 1,
        };
        let record = RunRecord::new("test", &experiment, 1, &result, &workload);
        (setting, record)
    }

    #[test]
    fn csv_and_parquet_have_the_same_rows() {
        let (setting, run) = run();
        assert!(run.batches.len() > 1);
        let runs = [run.clone(), run];
        let folder = tempfile::tempdir().unwrap();
        let [csv, parquet] = ["b.csv", "b.parquet"].map(|name| folder.path().join(name));
        for path in [&csv, &parquet] {
            write_batches(path, &setting, &runs).unwrap();
        }
        let mut rows = csv::Reader::from_path(&csv).unwrap();
        let names: Vec<String> = rows.headers().unwrap().iter().map(str::to_owned).collect();
        let rows: Vec<csv::StringRecord> = rows.records().map(Result::unwrap).collect();
        let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(&parquet).unwrap());
        let mut reader = reader.unwrap().build().unwrap();
        let table = reader.next().unwrap().unwrap();
        let of_parquet: Vec<String> = table
            .schema()
            .fields()
            .iter()
            .map(|field| field.name().clone())
            .collect();
        assert_eq!(names, of_parquet);
        assert_eq!(rows.len(), 2 * runs[0].batches.len());
        assert_eq!(rows.len(), table.num_rows());
        let at = |name: &str| names.iter().position(|it| it == name).unwrap();
        for limit in Limit::ALL {
            at(limit.key());
            at(&format!("blocked:{}", limit.key()));
        }
        let errors = table.column(at("rmsre")).as_primitive::<Float64Type>();
        let batches = runs.iter().flat_map(|run| &run.batches);
        for ((row, error), batch) in rows.iter().zip(errors.iter()).zip(batches) {
            assert_eq!(&row[at("workload")], "a, \"b\"");
            assert_eq!(row[at("rmsre")].parse::<f64>().ok(), error);
            assert_eq!(error, Some(batch.rmsre));
            assert_eq!((batch.full.len(), &row[at("buckets")]), (12, "12"));
            // The draft has no conversion-site quota: there is nothing, and not a zero.
            assert_eq!(&row[at("conversionSiteQuota")], "");
        }
        assert_eq!(
            table.column(at("conversionSiteQuota")).null_count(),
            rows.len()
        );
    }

    #[test]
    fn another_name_is_refused() {
        let (setting, run) = run();
        let refused = write_batches(Path::new("b.txt"), &setting, &[run]);
        assert_eq!(
            refused.unwrap_err().to_string(),
            "b.txt: the name must end in .csv, .parquet or .pqt"
        );
    }
}
