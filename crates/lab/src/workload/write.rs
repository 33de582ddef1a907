//! Writes workloads: as a table, or as the files that the paper's artifact prepares.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray, UInt64Array};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use thiserror::Error;

use crate::workload::criteo;
use crate::workload::read::ReadError;
use crate::workload::table::Columns;
use crate::workload::{EventKind, Workload, WorkloadEvent};

/// The reason why a workload cannot be written.
#[derive(Debug, Error)]
pub enum WriteError {
    /// A part of the workload is on disk and cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A file cannot be written.
    #[error("{}: {what}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The reason.
        what: String,
    },
}

impl WriteError {
    fn new(path: &Path, what: &(impl ToString + ?Sized)) -> Self {
        Self::Write {
            path: path.to_owned(),
            what: what.to_string(),
        }
    }

    /// For an error of the disk, the library's prefix is left out.
    fn parquet(path: &Path, cause: &ParquetError) -> Self {
        match cause {
            ParquetError::External(cause) => Self::new(path, cause),
            cause => Self::new(path, cause),
        }
    }
}

/// Writes a table that [`table::read`](crate::workload::table::read) reads with its default
/// options. The end of the file name decides between CSV and Parquet. Times are in minutes, devices
/// are numbered from 1, and rows are sorted by device and time.
///
/// Epochs are not written: they follow from the minutes when the table is read. The column `order`
/// is written only if the order of conversions of one minute is not that of devices.
///
/// # Errors
/// If the file name has another end, if the file cannot be written, or if a part of the workload
/// cannot be read.
pub fn write_table(workload: &Workload, path: &Path) -> Result<(), WriteError> {
    let format = WrittenFormat::of(path)
        .ok_or_else(|| WriteError::new(path, &WrittenFormat::unknown(path)))?;
    let with_order = !rows_follow_devices(workload)?;
    match format {
        WrittenFormat::Csv => write_csv(workload, path, with_order),
        WrittenFormat::Parquet => write_parquet(workload, path, with_order),
    }
}

/// The formats in which tables are written. The extension of the file name decides.
enum WrittenFormat {
    Csv,
    Parquet,
}

impl WrittenFormat {
    fn of(path: &Path) -> Option<Self> {
        let extension = path.extension()?.to_str()?.to_ascii_lowercase();
        match extension.as_str() {
            "csv" => Some(Self::Csv),
            "parquet" | "pqt" => Some(Self::Parquet),
            _ => None,
        }
    }

    /// The message for a file name with an unknown extension.
    fn unknown(path: &Path) -> String {
        let formats = "use .csv, .parquet or .pqt";
        match path.extension() {
            Some(extension) => format!("unknown file type .{}; {formats}", extension.display()),
            None => format!("the file name has no extension; {formats}"),
        }
    }
}

/// Calls `each` with every event and the number of its device, counted from 0.
fn each_event<E: From<ReadError>>(
    workload: &Workload,
    mut each: impl FnMut(u32, WorkloadEvent) -> Result<(), E>,
) -> Result<(), E> {
    let mut number = 0;
    for at in 0..workload.parts() {
        let part = workload.part(at)?;
        for device in 0..part.devices() {
            for at in part.range(device) {
                each(number, part.event(at))?;
            }
            number += 1;
        }
    }
    Ok(())
}

/// True if conversions have the order of devices, whatever their minute.
fn rows_follow_devices(workload: &Workload) -> Result<bool, ReadError> {
    let mut follow = true;
    let (mut current, mut before, mut last) = (None, None, None);
    each_event(workload, |device, event| {
        if matches!(event.kind, EventKind::Conversion { .. }) {
            if current != Some(device) {
                (current, before) = (Some(device), last);
            }
            follow &= before.is_none_or(|before| before < event.row);
            last = last.max(Some(event.row));
        }
        Ok::<(), ReadError>(())
    })?;
    Ok(follow)
}

fn write_csv(workload: &Workload, path: &Path, with_order: bool) -> Result<(), WriteError> {
    let error = |cause: csv::Error| match cause.into_kind() {
        csv::ErrorKind::Io(cause) => WriteError::new(path, &cause),
        kind => WriteError::new(path, &format!("{kind:?}")),
    };
    let file = File::create(path).map_err(|cause| WriteError::new(path, &cause))?;
    let mut file = csv::WriterBuilder::new()
        .buffer_capacity(1 << 16)
        .from_writer(file);
    let [first @ .., order] = Columns::KEYS;
    let order = with_order.then_some(order);
    file.write_record(first.into_iter().chain(order))
        .map_err(error)?;
    let mut digits = [const { String::new() }; 4];
    each_event(workload, |device, event| {
        let mut numbers = digits.iter_mut();
        let mut number = |value: u32| match numbers.next() {
            None => "",
            Some(digits) => {
                digits.clear();
                // Writing to a string never fails.
                let _ = write!(digits, "{value}");
                digits.as_str()
            }
        };
        let (device, minute) = (number(device + 1), number(event.minute));
        let conversion_site =
            workload.conversion_site_names[event.conversion_site as usize].as_str();
        let impression_site = |site: u32| workload.impression_site_names[site as usize].as_str();
        let [site, bucket, kind, value] = match event.kind {
            EventKind::Impression { site, bucket } => [
                impression_site(site),
                number(bucket.into()),
                "impression",
                "",
            ],
            EventKind::Conversion { value, came_from } => {
                let site = came_from.map_or("", impression_site);
                [site, "", "conversion", number(value)]
            }
        };
        let fields = [device, minute, conversion_site, site, bucket, kind, value];
        let order = with_order.then(|| number(event.row));
        file.write_record(fields.into_iter().chain(order))
            .map_err(error)
    })?;
    file.flush().map_err(|cause| WriteError::new(path, &cause))
}

fn write_parquet(workload: &Workload, path: &Path, with_order: bool) -> Result<(), WriteError> {
    let names = (
        &workload.conversion_site_names,
        &workload.impression_site_names,
    );
    let mut rows = ParquetRows::new(path, |events: &[(u32, WorkloadEvent)]| {
        let site = |event: &WorkloadEvent| match event.kind {
            EventKind::Impression { site, .. } => Some(names.1[site as usize].as_str()),
            EventKind::Conversion { came_from, .. } => Some(names.1[came_from? as usize].as_str()),
        };
        let bucket = |event: &WorkloadEvent| match event.kind {
            EventKind::Impression { bucket, .. } => Some(i64::from(bucket)),
            EventKind::Conversion { .. } => None,
        };
        let conversion_site =
            |event: &WorkloadEvent| names.0[event.conversion_site as usize].as_str();
        let kind = |event: &WorkloadEvent| match event.kind {
            EventKind::Impression { .. } => "impression",
            EventKind::Conversion { .. } => "conversion",
        };
        let value = |event: &WorkloadEvent| match event.kind {
            EventKind::Impression { .. } => None,
            EventKind::Conversion { value, .. } => Some(i64::from(value)),
        };
        let of = || events.iter().map(|(_, event)| event);
        let devices = events.iter().map(|(device, _)| i64::from(*device) + 1);
        let sites: StringArray = of().map(site).collect();
        let buckets: Int64Array = of().map(bucket).collect();
        let conversion_sites = StringArray::from_iter_values(of().map(conversion_site));
        let mut columns: Vec<ArrayRef> = vec![
            integers(devices),
            integers(of().map(|event| event.minute.into())),
            Arc::new(conversion_sites),
            Arc::new(sites),
            Arc::new(buckets),
            Arc::new(StringArray::from_iter_values(of().map(kind))),
            Arc::new(of().map(value).collect::<Int64Array>()),
        ];
        if with_order {
            columns.push(integers(of().map(|event| event.row.into())));
        }
        Columns::KEYS.into_iter().zip(columns).collect()
    });
    each_event(workload, |device, event| rows.push((device, event)))?;
    rows.finish()
}

fn integers(values: impl Iterator<Item = i64>) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values(values))
}

fn ids(values: impl Iterator<Item = u64>) -> ArrayRef {
    Arc::new(UInt64Array::from_iter_values(values))
}

/// A Parquet file to which rows are written in batches.
struct ParquetRows<'a, T, F> {
    path: &'a Path,
    columns: F,
    waiting: Vec<T>,
    writer: Option<ArrowWriter<File>>,
}

/// The number of rows that are written at once.
const BATCH: usize = 1 << 16;

impl<'a, T, F: Fn(&[T]) -> Vec<(&'static str, ArrayRef)>> ParquetRows<'a, T, F> {
    fn new(path: &'a Path, columns: F) -> Self {
        Self {
            path,
            columns,
            waiting: Vec::new(),
            writer: None,
        }
    }

    fn push(&mut self, row: T) -> Result<(), WriteError> {
        self.waiting.push(row);
        match self.waiting.len() < BATCH {
            true => Ok(()),
            false => self.write(),
        }
    }

    fn write(&mut self) -> Result<(), WriteError> {
        let path = self.path;
        let batch = RecordBatch::try_from_iter_with_nullable(
            (self.columns)(&self.waiting)
                .into_iter()
                .map(|(name, column)| {
                    let may_miss = matches!(name, "impression_site" | "bucket" | "value");
                    (name, column, may_miss)
                }),
        )
        .map_err(|cause| WriteError::new(path, &cause))?;
        self.waiting.clear();
        let writer = match &mut self.writer {
            Some(writer) => writer,
            none => {
                let file = File::create(path).map_err(|cause| WriteError::new(path, &cause))?;
                let properties = WriterProperties::builder().set_compression(Compression::SNAPPY);
                let writer = ArrowWriter::try_new(file, batch.schema(), Some(properties.build()));
                none.insert(writer.map_err(|cause| WriteError::parquet(path, &cause))?)
            }
        };
        writer
            .write(&batch)
            .map_err(|cause| WriteError::parquet(path, &cause))
    }

    fn finish(mut self) -> Result<(), WriteError> {
        self.write()?;
        let Some(writer) = self.writer else {
            return Ok(());
        };
        let closed = writer.close();
        closed.map_err(|cause| WriteError::parquet(self.path, &cause))?;
        Ok(())
    }
}

/// Writes a folder that [`criteo::read_prepared`] reads, with the columns of the paper's artifact.
///
/// A workload does not contain all of these columns, so some are filled in:
///
/// * Every conversion is written as a click.
/// * A conversion is attributed to the last impression before it on the device that is for its
///   conversion site, and on the impression site that it came from if that is known. If there is no
///   such impression, it is attributed to 0.
/// * The last bucket, which stands for all other features, is written as feature 1.
/// * Users are numbered from 1. Sites keep their names if all names of their kind are numbers, and
///   are numbered from 1 otherwise.
///
/// All rows are kept in memory.
///
/// # Errors
/// If a conversion has a value other than 1, which these files cannot express, if a file cannot be
/// written, or if a part of the workload cannot be read.
pub fn write_prepared(workload: &Workload, folder: &Path) -> Result<(), WriteError> {
    std::fs::create_dir_all(folder).map_err(|cause| {
        let what = format!(
            "cannot create a folder for prepared files (to write a table, use .csv, .parquet or \
             .pqt): {cause}"
        );
        WriteError::new(folder, &what)
    })?;
    let to_impressions = folder.join(criteo::IMPRESSIONS);
    let to_conversions = folder.join(criteo::CONVERSIONS);
    let mut impressions: Vec<Prepared> = Vec::new();
    let mut conversions: Vec<Prepared> = Vec::new();
    let mut current = None;
    // The last impression on the device for each conversion site, and for each pair of a conversion
    // site and an impression site.
    let mut last: HashMap<(u32, Option<u32>), usize> = HashMap::new();
    each_event(workload, |device, event| {
        if current != Some(device) {
            current = Some(device);
            last.clear();
        }
        let mut row = Prepared {
            device,
            event,
            id: 0,
            impression: 0,
        };
        match event.kind {
            EventKind::Impression { site, .. } => {
                impressions.push(row);
                for shown_on in [None, Some(site)] {
                    last.insert((event.conversion_site, shown_on), impressions.len());
                }
            }
            EventKind::Conversion {
                value: 1,
                came_from,
            } => {
                let found = last.get(&(event.conversion_site, came_from));
                row.impression = found.copied().unwrap_or(0);
                conversions.push(row);
            }
            EventKind::Conversion { value, .. } => {
                let what = format!(
                    "prepared files cannot express a conversion of value {value}; the value must \
                     be 1"
                );
                return Err(WriteError::new(&to_conversions, &what));
            }
        }
        Ok(())
    })?;
    for (row, impression) in impressions.iter_mut().zip(1..) {
        row.impression = impression;
    }
    // Maps the place among impressions, counted from 1, to the id in the file.
    let mut impression_ids = vec![0; impressions.len() + 1];
    for rows in [&mut impressions, &mut conversions] {
        rows.sort_by_key(|row| (row.event.minute, row.event.row));
        for (row, id) in rows.iter_mut().zip(1..) {
            row.id = id;
        }
    }
    for row in &impressions {
        impression_ids[row.impression] = row.id;
    }
    write_impressions(workload, impressions, &to_impressions)?;
    write_conversions(workload, conversions, &impression_ids, &to_conversions)
}

/// A row of a prepared file.
struct Prepared {
    device: u32,
    event: WorkloadEvent,
    /// Its id in the file.
    id: u64,
    /// For an impression, its place among impressions, counted from 1. For a conversion, the place
    /// of the impression that it is attributed to, or 0.
    impression: usize,
}

fn write_impressions(
    workload: &Workload,
    impressions: Vec<Prepared>,
    path: &Path,
) -> Result<(), WriteError> {
    let campaigns: Vec<i64> = numbered(&workload.conversion_site_names);
    let publishers: Vec<u64> = numbered(&workload.impression_site_names);
    let shown = |row: &Prepared| match row.event.kind {
        EventKind::Impression { site, bucket } => (publishers[site as usize], bucket),
        EventKind::Conversion { .. } => (0, 0),
    };
    let feature = |row: &Prepared| criteo::feature(shown(row).1);
    let mut rows = ParquetRows::new(path, |rows: &[Prepared]| {
        let mut columns = about(rows, "impression_id", &campaigns).to_vec();
        columns.extend([
            ("publisher_id", ids(rows.iter().map(|row| shown(row).0))),
            (
                "features_ctx_not_constrained_0",
                integers(rows.iter().map(feature)),
            ),
        ]);
        columns
    });
    impressions.into_iter().try_for_each(|row| rows.push(row))?;
    rows.finish()
}

fn write_conversions(
    workload: &Workload,
    conversions: Vec<Prepared>,
    impression_ids: &[u64],
    path: &Path,
) -> Result<(), WriteError> {
    let campaigns: Vec<i64> = numbered(&workload.conversion_site_names);
    let mut rows = ParquetRows::new(path, |rows: &[Prepared]| {
        let all = |value: i64| integers(rows.iter().map(move |_| value));
        let attributed = rows.iter().map(|row| impression_ids[row.impression]);
        let mut columns = about(rows, "conversion_id", &campaigns).to_vec();
        columns.extend([
            ("is_click", all(1)),
            ("is_landed", all(0)),
            ("is_visit", all(0)),
            ("is_sale", all(0)),
            ("nb_sales", all(0)),
            ("attributed_impression_id", ids(attributed)),
        ]);
        columns
    });
    conversions.into_iter().try_for_each(|row| rows.push(row))?;
    rows.finish()
}

/// The columns that both files have.
fn about(rows: &[Prepared], id: &'static str, campaigns: &[i64]) -> [(&'static str, ArrayRef); 5] {
    let events = || rows.iter().map(|row| &row.event);
    let campaign = |event: &WorkloadEvent| campaigns[event.conversion_site as usize];
    let minutes = events().map(|event| i64::from(event.minute));
    [
        ("timestamp_min", integers(minutes)),
        (
            "user_id",
            ids(rows.iter().map(|row| u64::from(row.device) + 1)),
        ),
        (id, ids(rows.iter().map(|row| row.id))),
        (
            "day_int",
            integers(events().map(|event| event.epoch.into())),
        ),
        ("campaign_id", integers(events().map(campaign))),
    ]
}

/// The names as numbers, or the numbers from 1 on if a name is not a number.
fn numbered<T>(names: &[String]) -> Vec<T>
where
    T: std::str::FromStr + ToString + TryFrom<u64> + Default,
{
    let number = |name: &String| {
        let number: T = name.parse().ok()?;
        (number.to_string() == *name).then_some(number)
    };
    let numbers: Option<Vec<T>> = names.iter().map(number).collect();
    numbers.unwrap_or_else(|| {
        let numbers = (1..).take(names.len());
        numbers
            .map(|number| T::try_from(number).unwrap_or_default())
            .collect()
    })
}
