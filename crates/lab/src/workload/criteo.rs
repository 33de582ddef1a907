//! The Criteo files of the paper's evaluation, in two forms: as its artifact prepares them, and as
//! they are published. The prepared files are two Parquet files, one of impressions and one of
//! conversions. All of their columns hold whole numbers.

mod raw;

use std::path::Path;

use crate::workload::cells::{EMPTY, Holds, ParquetFile};
use crate::workload::gather::{PackedEvent, group};
use crate::workload::hash::FixedMap;
use crate::workload::read::ReadError;
use crate::workload::{EventKind, Workload, WorkloadEvent};

pub use raw::{RawOptions, read_raw};

/// The names of the prepared files.
pub(crate) const IMPRESSIONS: &str = "20last_impressions.pqt";
pub(crate) const CONVERSIONS: &str = "20last_conversions.pqt";

/// The values of `features_ctx_not_constrained_0` for buckets 0 to 3. All other values are bucket
/// 4.
const FEATURES: [i64; 4] = [1_158_003_214, 1_668_101_868, 3_880_384_520, 7_687_156];

fn bucket(feature: i128) -> u16 {
    let known = (0..).zip(FEATURES);
    let mut known = known.filter(|(_, value)| i128::from(*value) == feature);
    known.next().map_or(4, |(bucket, _)| bucket)
}

/// A value of the feature that gives this bucket.
pub(crate) fn feature(bucket: u16) -> i64 {
    FEATURES.get(usize::from(bucket)).copied().unwrap_or(1)
}

/// True if a folder has prepared files.
pub fn is_prepared(folder: &Path) -> bool {
    folder.join(IMPRESSIONS).is_file() || folder.join(CONVERSIONS).is_file()
}

/// True if a folder has the files as they are published: a folder for each day.
pub fn is_raw(folder: &Path) -> bool {
    [folder.to_owned(), folder.join("data")]
        .iter()
        .any(|folder| (1..=30).any(|day| folder.join(format!("day_int={day}")).is_dir()))
}

/// Reads a folder of prepared files.
///
/// # Errors
/// If a file is missing, is not a Parquet file, or has a missing column or a wrong value. The error
/// names the file and the column.
pub fn read_prepared(folder: &Path) -> Result<Workload, ReadError> {
    let mut devices = Devices::default();
    let mut conversion_sites = NameNumbers::default();
    let mut impression_sites = NameNumbers::default();
    let mut shown_on: FixedMap<u64, u32> = FixedMap::default();
    let impressions = folder.join(IMPRESSIONS);
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
            if let Ok(id) = u64::try_from(id) {
                shown_on.insert(id, site);
            }
            let event = WorkloadEvent {
                minute: natural(minute, 0)?,
                epoch: natural(day, 2)?,
                conversion_site: conversion_sites.number(campaign),
                kind: EventKind::Impression {
                    site,
                    bucket: bucket(feature),
                },
                row,
            };
            devices.push(user, &event);
            Ok(())
        },
    )?;
    let conversions = folder.join(CONVERSIONS);
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
            let event = WorkloadEvent {
                minute: natural(minute, 0)?,
                epoch: natural(day, 2)?,
                conversion_site: conversion_sites.number(campaign),
                kind: EventKind::Conversion {
                    value: 1,
                    came_from: u64::try_from(attributed)
                        .ok()
                        .and_then(|id| shown_on.get(&id).copied()),
                },
                row,
            };
            devices.push(user, &event);
            Ok(())
        },
    )?;
    drop(shown_on);
    let count = devices.known.len();
    let held = devices.held;
    drop(devices.known);
    let mut workload = Workload::default();
    group(&held, count, |events| {
        workload.push_device(events);
        Ok(())
    })?;
    workload.conversion_site_names = conversion_sites.names;
    workload.impression_site_names = impression_sites.names;
    Ok(workload)
}

fn natural<T: TryFrom<i128>>(value: i128, column: usize) -> Result<T, (usize, String)> {
    T::try_from(value).map_err(|_| (column, format!("{value} is out of range")))
}

/// Events, each with its device. Devices are numbered in the order in which they first occur.
#[derive(Debug, Default)]
struct Devices {
    known: FixedMap<i128, u32>,
    held: Vec<PackedEvent>,
}

impl Devices {
    fn push(&mut self, user: i128, event: &WorkloadEvent) {
        let next = u32::try_from(self.known.len()).unwrap_or(u32::MAX);
        let device = *self.known.entry(user).or_insert(next);
        self.held.push(PackedEvent::new(device, event));
    }
}

/// Numbers names in the order in which they first occur.
#[derive(Debug, Default)]
struct NameNumbers {
    known: FixedMap<i128, u32>,
    names: Vec<String>,
}

impl NameNumbers {
    fn number(&mut self, id: i128) -> u32 {
        *self.known.entry(id).or_insert_with(|| {
            self.names.push(id.to_string());
            u32::try_from(self.names.len() - 1).unwrap_or(u32::MAX)
        })
    }
}

/// Calls `each` with every row of some columns of whole numbers.
fn read_columns<const N: usize>(
    path: &Path,
    names: &[&str; N],
    mut each: impl FnMut(u32, [i128; N]) -> Result<(), (usize, String)>,
) -> Result<(), ReadError> {
    let columns = names.map(|name| Some((name, Holds::Numbers)));
    let mut batches = ParquetFile::open(path)?.columns(columns)?;
    let mut row = 0;
    while let Some((rows, columns)) = batches.next()? {
        for at in 0..rows {
            let error = |column: usize, what: &str| {
                ReadError::at(path, Some(names[column]), u64::from(row) + 1, what)
            };
            let mut values = [0; N];
            for (column, value) in values.iter_mut().enumerate() {
                let number = columns[column].cell(at).number();
                let number = number.map_err(|what| error(column, &what))?;
                *value = number.ok_or_else(|| error(column, EMPTY))?;
            }
            each(row, values).map_err(|(column, what)| error(column, &what))?;
            row = row.checked_add(1).ok_or_else(|| {
                ReadError::new(path, format!("the file has more than {} rows", u32::MAX))
            })?;
        }
    }
    if row == 0 {
        return Err(ReadError::new(path, "the file has no rows"));
    }
    Ok(())
}
