//! The Criteo files of the paper's evaluation, as its artifact prepares them: two Parquet files, one
//! of impressions and one of conversions, all columns whole numbers.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

use arrow_array::Array as _;
use arrow_array::cast::AsArray as _;
use arrow_array::types::{Int32Type, Int64Type, UInt32Type, UInt64Type};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use crate::read::ReadError;
use crate::workload::{Event, Kind, Workload};

/// The values of `features_ctx_not_constrained_0` that are buckets 0 to 3; all others are bucket 4.
const BUCKETS: [i64; 4] = [1_158_003_214, 1_668_101_868, 3_880_384_520, 7_687_156];

/// Reads a folder of prepared files.
///
/// # Errors
/// If a file is missing, no Parquet, or lacks a column; the error names it.
pub fn read_prepared(folder: &Path) -> Result<Workload, ReadError> {
    let mut devices = Devices::default();
    let mut conversion_sites = Numbers::default();
    let mut impression_sites = Numbers::default();
    let mut shown_on: HashMap<i64, u32> = HashMap::new();
    let impressions = folder.join("20last_impressions.pqt");
    let columns = [
        "timestamp_min",
        "user_id",
        "day_int",
        "campaign_id",
        "publisher_id",
        "features_ctx_not_constrained_0",
        "impression_id",
    ];
    read_columns(
        &impressions,
        &columns,
        |row, [minute, user, day, campaign, publisher, feature, id]| {
            let site = impression_sites.number(publisher);
            shown_on.insert(id, site);
            let bucket = BUCKETS
                .iter()
                .position(|value| *value == feature)
                .unwrap_or(4);
            let event = Event {
                minute: natural(minute, "timestamp_min")?,
                epoch: natural(day, "day_int")?,
                conversion_site: conversion_sites.number(campaign),
                kind: Kind::Impression {
                    site,
                    bucket: u8::try_from(bucket).unwrap_or(4),
                },
                row,
            };
            devices.push(user, event);
            Ok(())
        },
    )?;
    let conversions = folder.join("20last_conversions.pqt");
    let columns = [
        "timestamp_min",
        "user_id",
        "day_int",
        "campaign_id",
        "attributed_impression_id",
    ];
    read_columns(
        &conversions,
        &columns,
        |row, [minute, user, day, campaign, attributed]| {
            let event = Event {
                minute: natural(minute, "timestamp_min")?,
                epoch: natural(day, "day_int")?,
                conversion_site: conversion_sites.number(campaign),
                kind: Kind::Conversion {
                    value: 1,
                    came_from: shown_on.get(&attributed).copied(),
                },
                row,
            };
            devices.push(user, event);
            Ok(())
        },
    )?;
    let mut workload = Workload::default();
    for events in &mut devices.events {
        workload.push_device(events);
    }
    workload.conversion_site_names = conversion_sites.names;
    workload.impression_site_names = impression_sites.names;
    Ok(workload)
}

fn natural<T: TryFrom<i64>>(value: i64, column: &str) -> Result<T, String> {
    T::try_from(value).map_err(|_| format!("{column} is {value}, which is out of range"))
}

/// The events of each device, in the order in which devices first appear.
#[derive(Debug, Default)]
struct Devices {
    known: HashMap<i64, usize>,
    events: Vec<Vec<Event>>,
}

impl Devices {
    fn push(&mut self, user: i64, event: Event) {
        let device = *self.known.entry(user).or_insert_with(|| {
            self.events.push(Vec::new());
            self.events.len() - 1
        });
        self.events[device].push(event);
    }
}

/// Numbers names as they come.
#[derive(Debug, Default)]
struct Numbers {
    known: HashMap<i64, u32>,
    names: Vec<String>,
}

impl Numbers {
    fn number(&mut self, id: i64) -> u32 {
        *self.known.entry(id).or_insert_with(|| {
            self.names.push(id.to_string());
            u32::try_from(self.names.len() - 1).unwrap_or(u32::MAX)
        })
    }
}

/// Gives every row of some columns of whole numbers.
fn read_columns<const N: usize>(
    path: &Path,
    names: &[&str; N],
    mut each: impl FnMut(u32, [i64; N]) -> Result<(), String>,
) -> Result<(), ReadError> {
    let error = |what: String| ReadError::new(path, what);
    let file = File::open(path).map_err(|cause| error(cause.to_string()))?;
    let builder = ParquetRecordBatchReaderBuilder::try_new(file)
        .map_err(|cause| error(format!("it is no Parquet file: {cause}")))?;
    for name in names {
        if builder.schema().index_of(name).is_err() {
            return Err(error(format!("it has no column `{name}`")));
        }
    }
    let mask = ProjectionMask::columns(builder.parquet_schema(), names.iter().copied());
    let reader = builder.with_projection(mask).build();
    let reader = reader.map_err(|cause| error(cause.to_string()))?;
    let mut row = 0;
    for batch in reader {
        let batch = batch.map_err(|cause| error(cause.to_string()))?;
        let mut columns: [Vec<i64>; N] = std::array::from_fn(|_| Vec::new());
        for (column, name) in columns.iter_mut().zip(names) {
            let array = batch.column_by_name(name);
            let array = array.ok_or_else(|| error(format!("it has no column `{name}`")))?;
            if let Some(null) = (0..array.len()).find(|at| array.is_null(*at)) {
                return Err(error(format!(
                    "column `{name}`, row {}: it is null",
                    row as usize + null
                )));
            }
            *column = if let Some(values) = array.as_primitive_opt::<Int64Type>() {
                values.values().to_vec()
            } else if let Some(values) = array.as_primitive_opt::<Int32Type>() {
                values
                    .values()
                    .iter()
                    .map(|value| i64::from(*value))
                    .collect()
            } else if let Some(values) = array.as_primitive_opt::<UInt32Type>() {
                values
                    .values()
                    .iter()
                    .map(|value| i64::from(*value))
                    .collect()
            } else if let Some(values) = array.as_primitive_opt::<UInt64Type>() {
                values
                    .values()
                    .iter()
                    .map(|value| value.cast_signed())
                    .collect()
            } else {
                let found = array.data_type();
                return Err(error(format!(
                    "column `{name}` must hold whole numbers, not {found}"
                )));
            };
        }
        let mut columns = columns.map(Vec::into_iter);
        for _ in 0..batch.num_rows() {
            let values = columns
                .each_mut()
                .map(|column| column.next().unwrap_or_default());
            each(row, values).map_err(|what| error(format!("row {row}: {what}")))?;
            row += 1;
        }
    }
    Ok(())
}
