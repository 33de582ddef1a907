//! Tables of what devices do, in CSV or Parquet files: one row per impression or conversion.
//!
//! | column | for an impression | for a conversion |
//! | --- | --- | --- |
//! | `device` | text or a whole number | the same |
//! | `time` | a whole number from 0 on, or a timestamp or date in Parquet | the same |
//! | `conversion_site` | the site that the ad is for: text or a whole number | where it happens |
//! | `impression_site` | the site that shows the ad: text or a whole number | the same, if known |
//! | `bucket` | the bucket that its credit goes to: 0 to 4 | empty |
//! | `kind` | `impression` or `i` | `conversion` or `c` |
//! | `value` | ignored | its value, from 1 on; 1 if empty |
//! | `order` | its place among events of one minute | the same |
//!
//! The last three columns may be missing. Without `kind`, a row with an impression site is an
//! impression. Without `order`, events of one minute have the order of their rows. On a device,
//! impressions always come before conversions of the same minute. Other columns are ignored.
//!
//! A table may have more rows than fit into memory: see [`TableOptions::memory_rows`].

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use thiserror::Error;

use crate::workload::cells::{self, Cell, EMPTY, Holds, ParquetFile, quoted};
use crate::workload::csv::Csv;
use crate::workload::gather::{Field, Gather, GatherOptions, Refusal, RowKind, TableRow};
use crate::workload::read::{ReadError, ReadProgress};
use crate::workload::{BUCKETS, DAY, EventKind, Workload};

/// Options for reading tables.
#[derive(Debug, Clone)]
pub struct TableOptions {
    /// The names of the columns.
    pub columns: Columns,
    /// The unit of times that are numbers, and of `time_origin`.
    pub time_unit: TimeUnit,
    /// The time that is minute 0, in `time_unit`.
    pub time_origin: Option<i64>,
    /// The length of an epoch, in minutes.
    pub epoch_minutes: NonZeroU32,
    /// True if the rows of each device are together and in the order of time. Then nothing needs to
    /// be partitioned, and rows that break this order are an error.
    pub sorted: bool,
    /// The most rows that are kept in memory. Larger tables are partitioned on disk.
    pub memory_rows: usize,
    /// The folder on whose disk temporary files are created. The default is the system's folder for
    /// such files. The files have no name.
    pub temporary: Option<PathBuf>,
}

impl Default for TableOptions {
    fn default() -> Self {
        Self {
            columns: Columns::default(),
            time_unit: TimeUnit::Minutes,
            time_origin: None,
            epoch_minutes: NonZeroU32::MIN.saturating_add(DAY - 1),
            sorted: false,
            memory_rows: MEMORY_ROWS,
            temporary: None,
        }
    }
}

/// The default for the most rows in memory: about 200 MB while they are read.
pub(crate) const MEMORY_ROWS: usize = 4_000_000;

/// The names of the columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Columns {
    /// The device.
    pub device: String,
    /// The time.
    pub time: String,
    /// The conversion site.
    pub conversion_site: String,
    /// The impression site.
    pub impression_site: String,
    /// The bucket that the credit of an impression goes to.
    pub bucket: String,
    /// The kind: impression or conversion.
    pub kind: String,
    /// The value of a conversion.
    pub value: String,
    /// The place among events of one minute.
    pub order: String,
}

impl Default for Columns {
    fn default() -> Self {
        let [
            device,
            time,
            conversion_site,
            impression_site,
            bucket,
            kind,
            value,
            order,
        ] = Self::KEYS.map(str::to_owned);
        Self {
            device,
            time,
            conversion_site,
            impression_site,
            bucket,
            kind,
            value,
            order,
        }
    }
}

impl Columns {
    /// The default names of the columns.
    pub const KEYS: [&str; 8] = [
        "device",
        "time",
        "conversion_site",
        "impression_site",
        "bucket",
        "kind",
        "value",
        "order",
    ];

    /// Sets the name of a column, such as `device=user_id`.
    ///
    /// # Errors
    /// If the column is unknown, or the name is missing.
    pub fn set(&mut self, assignment: &str) -> Result<(), ColumnsError> {
        let named = assignment
            .split_once('=')
            .filter(|(_, name)| !name.is_empty());
        let (key, name) = named.ok_or_else(|| ColumnsError::NoName(assignment.to_owned()))?;
        let column = match key {
            "device" => &mut self.device,
            "time" => &mut self.time,
            "conversion_site" => &mut self.conversion_site,
            "impression_site" => &mut self.impression_site,
            "bucket" => &mut self.bucket,
            "kind" => &mut self.kind,
            "value" => &mut self.value,
            "order" => &mut self.order,
            _ => return Err(ColumnsError::Unknown(key.to_owned())),
        };
        name.clone_into(column);
        Ok(())
    }

    fn name(&self, field: Field) -> &str {
        match field {
            Field::Device => &self.device,
            Field::Time => &self.time,
            Field::ConversionSite => &self.conversion_site,
            Field::ImpressionSite => &self.impression_site,
            Field::Bucket => &self.bucket,
            Field::Kind => &self.kind,
            Field::Value => &self.value,
            Field::Order => &self.order,
        }
    }
}

/// Parses a list with commas, such as `device=user_id,time=ts`.
impl FromStr for Columns {
    type Err = ColumnsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut columns = Self::default();
        for assignment in text.split(',') {
            columns.set(assignment)?;
        }
        Ok(columns)
    }
}

/// The reason why names of columns cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ColumnsError {
    /// The column is unknown.
    #[error("unknown column `{0}`; use one of: {keys}", keys = Columns::KEYS.join(", "))]
    Unknown(String),
    /// The name of the column is missing.
    #[error("`{0}` is not of the form COLUMN=NAME, such as device=user_id")]
    NoName(String),
}

/// A unit of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TimeUnit {
    /// Milliseconds.
    Milliseconds,
    /// Seconds.
    Seconds,
    /// Minutes.
    #[default]
    Minutes,
    /// Hours.
    Hours,
    /// Days.
    Days,
}

impl TimeUnit {
    /// Every unit.
    pub const ALL: [Self; 5] = [
        Self::Milliseconds,
        Self::Seconds,
        Self::Minutes,
        Self::Hours,
        Self::Days,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Milliseconds => "milliseconds",
            Self::Seconds => "seconds",
            Self::Minutes => "minutes",
            Self::Hours => "hours",
            Self::Days => "days",
        }
    }

    const fn nanoseconds(self) -> i128 {
        match self {
            Self::Milliseconds => 1_000_000,
            Self::Seconds => 1_000_000_000,
            Self::Minutes => MINUTE,
            Self::Hours => 60 * MINUTE,
            Self::Days => 1440 * MINUTE,
        }
    }
}

/// A minute in nanoseconds, the finest unit that a file can have.
const MINUTE: i128 = 60_000_000_000;

impl FromStr for TimeUnit {
    type Err = UnknownTimeUnit;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let short = |unit: &Self| match unit {
            Self::Milliseconds => "ms",
            Self::Seconds => "s",
            Self::Minutes => "min",
            Self::Hours => "h",
            Self::Days => "d",
        };
        let mut units = Self::ALL.into_iter();
        let unit = units.find(|unit| unit.name() == name || short(unit) == name);
        unit.ok_or_else(|| UnknownTimeUnit(name.to_owned()))
    }
}

/// The unit of time is unknown.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "unknown unit of time `{0}`; use one of: {names}",
    names = TimeUnit::ALL.map(TimeUnit::name).join(", ")
)]
pub struct UnknownTimeUnit(pub String);

/// Reads tables: files, and folders of files in the order of their names. All of them form one
/// table. `progress` is called a few times per megabyte.
///
/// # Errors
/// If a file cannot be read or has a wrong value. The error names the file, the column and the row.
/// Rows are counted in each file, from 1 on, without the header.
pub fn read(
    paths: &[PathBuf],
    options: &TableOptions,
    progress: &mut dyn FnMut(ReadProgress),
) -> Result<Workload, ReadError> {
    let files = files(paths)?;
    let mut expected_rows: u64 = 0;
    let mut least_rows: u64 = 0;
    let mut bytes_total = 0;
    for file in &files {
        bytes_total += file.bytes;
        expected_rows = expected_rows.saturating_add(match file.format {
            Format::Csv => file.bytes / BYTES_OF_ROW,
            Format::Parquet => {
                let rows = ParquetFile::open(&file.path)?.rows();
                least_rows = least_rows.saturating_add(rows);
                rows
            }
        });
    }
    let gather = Gather::new(GatherOptions {
        sorted: options.sorted,
        memory_rows: options.memory_rows,
        temporary: options.temporary.clone(),
        expected_rows,
        least_rows,
    });
    let mut reading = TableReader {
        options,
        gather,
        progress,
        now: ReadProgress {
            bytes_done: 0,
            bytes_total,
            rows: 0,
        },
    };
    for file in &files {
        let (done, rows) = (reading.now.bytes_done, reading.now.rows);
        match file.format {
            Format::Csv => reading.csv(&file.path)?,
            Format::Parquet => reading.parquet(file)?,
        }
        if reading.now.rows == rows {
            return Err(ReadError::new(&file.path, "the file has no rows"));
        }
        reading.tell(done + file.bytes);
    }
    reading.gather.finish()
}

/// The assumed size of a CSV row, to estimate the number of rows.
const BYTES_OF_ROW: u64 = 32;

#[derive(Debug)]
struct TableFile {
    path: PathBuf,
    format: Format,
    bytes: u64,
}

/// The format of a table, which the extension of its file name decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Csv,
    Parquet,
}

impl Format {
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let extension = path.extension()?.to_str()?.to_ascii_lowercase();
        match extension.as_str() {
            "csv" => Some(Self::Csv),
            "parquet" | "pqt" => Some(Self::Parquet),
            _ => None,
        }
    }

    /// The message for a file name with an unknown extension.
    pub(crate) fn unknown(path: &Path) -> String {
        let formats = "use .csv, .parquet or .pqt";
        match path.extension() {
            Some(extension) if extension == "gz" || extension == "zip" => {
                format!("compressed files are not supported; decompress the file, then {formats}")
            }
            Some(extension) => format!("unknown file type .{}; {formats}", extension.display()),
            None => format!("the file name has no extension; {formats}"),
        }
    }
}

fn files(paths: &[PathBuf]) -> Result<Vec<TableFile>, ReadError> {
    let mut files = Vec::new();
    let mut push = |path: PathBuf| {
        let metadata = std::fs::metadata(&path);
        let bytes = metadata
            .map_err(|cause| ReadError::new(&path, cause.to_string()))?
            .len();
        let format =
            Format::of(&path).ok_or_else(|| ReadError::new(&path, Format::unknown(&path)))?;
        files.push(TableFile {
            path,
            format,
            bytes,
        });
        Ok(())
    };
    for path in paths {
        if !path.is_dir() {
            push(path.clone())?;
            continue;
        }
        let mut found = in_folder(path)?;
        found.retain(|path| Format::of(path).is_some() && path.is_file());
        if found.is_empty() {
            let what = "the folder has no .csv, .parquet or .pqt file";
            return Err(ReadError::new(path, what));
        }
        found.into_iter().try_for_each(&mut push)?;
    }
    if files.is_empty() {
        return Err(ReadError::new(Path::new("tables"), "no file was given"));
    }
    Ok(files)
}

/// The paths in a folder, in the order of their names.
pub(crate) fn in_folder(folder: &Path) -> Result<Vec<PathBuf>, ReadError> {
    let error = |cause: std::io::Error| ReadError::new(folder, cause.to_string());
    let entries = std::fs::read_dir(folder).map_err(error)?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let mut paths: Vec<PathBuf> = paths.collect::<Result<_, _>>().map_err(error)?;
    paths.sort();
    Ok(paths)
}

/// A reader of tables.
struct TableReader<'a> {
    options: &'a TableOptions,
    gather: Gather,
    progress: &'a mut dyn FnMut(ReadProgress),
    now: ReadProgress,
}

/// The columns of a table, each with its type. Those that may be missing are last.
const FIELDS: [(Field, Holds); 8] = [
    (Field::Device, Holds::Names),
    (Field::Time, Holds::Times),
    (Field::ConversionSite, Holds::Names),
    (Field::ImpressionSite, Holds::Names),
    (Field::Bucket, Holds::Numbers),
    (Field::Kind, Holds::Text),
    (Field::Value, Holds::Numbers),
    (Field::Order, Holds::Numbers),
];

/// The number of columns that must not be missing.
const NEEDED: usize = 5;

impl TableReader<'_> {
    fn tell(&mut self, bytes_done: u64) {
        self.now.bytes_done = bytes_done;
        (self.progress)(self.now);
    }

    fn csv(&mut self, path: &Path) -> Result<(), ReadError> {
        let begin = self.now.bytes_done;
        let mut csv = Csv::open(path, b',')?;
        let columns = &self.options.columns;
        let mut places = [None; FIELDS.len()];
        for (number, (place, (field, _))) in places.iter_mut().zip(FIELDS).enumerate() {
            let name = columns.name(field);
            let header = csv.header().iter();
            match header.filter(|column| *column == name).count() {
                0 if number < NEEDED => {
                    let found = csv.header().join(", ");
                    return Err(ReadError::new(path, missing(name, &found)));
                }
                0 | 1 => *place = csv.header().iter().position(|column| column == name),
                count => return Err(cells::several(path, name, count)),
            }
        }
        let mut interpreter = Interpreter::new(self.options, None, places[KIND].is_some());
        let mut told = 0;
        loop {
            let Some(record) = csv.next()? else {
                return Ok(());
            };
            let mut row = [Cell::Nothing; FIELDS.len()];
            let mut cut = None;
            for (number, (cell, place)) in row.iter_mut().zip(places).enumerate() {
                let Some(place) = place else { continue };
                match record.cell(place) {
                    Some(found) => *cell = found,
                    None => cut = cut.or(Some(number)),
                }
            }
            let taken = match cut {
                Some(number) => Err(Refusal::Column(
                    FIELDS[number].0,
                    "the text is not valid UTF-8".to_owned(),
                )),
                None => interpreter.row(&row).and_then(|row| self.gather.push(&row)),
            };
            if let Err(refusal) = taken {
                return Err(self.refused(path, csv.row(), refusal));
            }
            self.now.rows += 1;
            if csv.bytes() != told {
                told = csv.bytes();
                self.tell(begin + told);
            }
        }
    }

    fn parquet(&mut self, table: &TableFile) -> Result<(), ReadError> {
        let begin = self.now.bytes_done;
        let file = ParquetFile::open(&table.path)?;
        let columns = &self.options.columns;
        let expected = file.rows().max(1);
        let mut wanted = FIELDS.map(|(field, holds)| Some((columns.name(field), holds)));
        for column in &mut wanted[NEEDED..] {
            if let Some((name, _)) = *column
                && !file.has(name)?
            {
                *column = None;
            }
        }
        let has_kind = wanted[KIND].is_some();
        let mut batches = file.columns(wanted)?;
        let mut interpreter = None;
        let mut row = 0;
        while let Some((rows, columns)) = batches.next()? {
            let tick = columns[TIME].tick();
            let interpreter =
                interpreter.get_or_insert_with(|| Interpreter::new(self.options, tick, has_kind));
            for at in 0..rows {
                row += 1;
                let cells = columns.each_ref().map(|column| column.cell(at));
                let taken = interpreter
                    .row(&cells)
                    .and_then(|row| self.gather.push(&row));
                if let Err(refusal) = taken {
                    return Err(self.refused(&table.path, row, refusal));
                }
            }
            self.now.rows += rows as u64;
            let share = u128::from(table.bytes) * u128::from(row) / u128::from(expected);
            let done = u64::try_from(share).unwrap_or(u64::MAX).min(table.bytes);
            self.tell(begin + done);
        }
        Ok(())
    }

    fn refused(&self, path: &Path, row: u64, refusal: Refusal) -> ReadError {
        match refusal {
            Refusal::Column(field, what) => {
                ReadError::at(path, Some(self.options.columns.name(field)), row, &what)
            }
            Refusal::Row(what) => ReadError::at(path, None, row, &what),
            Refusal::Disk(error) => error,
        }
    }
}

/// The message for a missing column. It lists the columns that were found, up to 200 characters.
pub(crate) fn missing(name: &str, found: &str) -> String {
    let found: String = match found.char_indices().nth(200) {
        Some((end, _)) => format!("{}…", &found[..end]),
        None => found.to_owned(),
    };
    format!("there is no column `{name}`; the columns are: {found}")
}

/// The indices of some columns in [`FIELDS`].
const TIME: usize = 1;
const KIND: usize = 5;

/// Parses the cells of rows.
struct Interpreter {
    /// The unit of times, in nanoseconds.
    tick: i128,
    /// The time that is minute 0, in nanoseconds.
    origin: i128,
    time_origin: Option<i64>,
    epoch_minutes: u32,
    has_kind: bool,
    device: String,
    conversion_site: String,
    impression_site: String,
}

impl Interpreter {
    fn new(options: &TableOptions, tick: Option<i128>, has_kind: bool) -> Self {
        let unit = options.time_unit.nanoseconds();
        Self {
            tick: tick.unwrap_or(unit),
            origin: i128::from(options.time_origin.unwrap_or(0)) * unit,
            time_origin: options.time_origin,
            epoch_minutes: options.epoch_minutes.get(),
            has_kind,
            device: String::new(),
            conversion_site: String::new(),
            impression_site: String::new(),
        }
    }

    fn row<'r>(&'r mut self, cells: &[Cell<'r>; FIELDS.len()]) -> Result<TableRow<'r>, Refusal> {
        let [
            device,
            time,
            conversion_site,
            impression_site,
            bucket,
            kind,
            value,
            order,
        ] = *cells;
        let (minute, epoch) = self.time(time).map_err(wrong(Field::Time))?;
        let is_impression = match self.has_kind {
            true => is_impression(kind).map_err(wrong(Field::Kind))?,
            false => impression_site != Cell::Nothing,
        };
        let kind = if is_impression {
            let site = impression_site.name(&mut self.impression_site);
            RowKind::Impression {
                site: needed(site).map_err(wrong(Field::ImpressionSite))?,
                bucket: self::bucket(bucket).map_err(wrong(Field::Bucket))?,
            }
        } else {
            if bucket != Cell::Nothing {
                let what = "the bucket of a conversion must be empty".to_owned();
                return Err(Refusal::Column(Field::Bucket, what));
            }
            let came_from = impression_site.name(&mut self.impression_site);
            RowKind::Conversion {
                value: self::value(value).map_err(wrong(Field::Value))?,
                came_from: came_from.map_err(wrong(Field::ImpressionSite))?,
            }
        };
        let order = order.number().and_then(|order| match order {
            None => Ok(None),
            Some(order) => u32::try_from(order)
                .map(Some)
                .map_err(|_| format!("{order} is out of range; use 0 to {}", u32::MAX)),
        });
        let conversion_site = needed(conversion_site.name(&mut self.conversion_site));
        Ok(TableRow {
            device: needed(device.name(&mut self.device)).map_err(wrong(Field::Device))?,
            minute,
            epoch,
            conversion_site: conversion_site.map_err(wrong(Field::ConversionSite))?,
            kind,
            order: order.map_err(wrong(Field::Order))?,
        })
    }

    /// The minute and the epoch of a time.
    fn time(&self, cell: Cell<'_>) -> Result<(u32, u16), String> {
        let time = needed(cell.number())?;
        let nanoseconds = time * self.tick - self.origin;
        if nanoseconds < 0 {
            return Err(match self.time_origin {
                None => format!("{time} is negative; set --time-origin to the earliest time"),
                Some(origin) => format!("{time} is before --time-origin {origin}"),
            });
        }
        let minute = nanoseconds / MINUTE;
        let minutes = u32::try_from(minute).map_err(|_| {
            let last = u32::MAX;
            format!(
                "{time} is minute {minute}, and the last possible one is {last}; set --time-unit \
                 or --time-origin"
            )
        })?;
        let epoch = minutes / self.epoch_minutes;
        let epoch = u16::try_from(epoch).map_err(|_| {
            let last = u16::MAX;
            format!(
                "{time} is in epoch {epoch}, and the last possible one is {last}; set --time-unit \
                 or --time-origin"
            )
        })?;
        Ok((minutes, epoch))
    }
}

fn wrong(field: Field) -> impl FnOnce(String) -> Refusal {
    move |what| Refusal::Column(field, what)
}

fn needed<T>(found: Result<Option<T>, String>) -> Result<T, String> {
    found?.ok_or_else(|| EMPTY.to_owned())
}

fn is_impression(cell: Cell<'_>) -> Result<bool, String> {
    let kind = match cell {
        Cell::Text(kind) => kind,
        Cell::Nothing => return Err(EMPTY.to_owned()),
        Cell::Number(_) | Cell::Fraction(_) => "a number",
    };
    let is = |names: [&str; 2]| names.iter().any(|name| kind.eq_ignore_ascii_case(name));
    match (is(["impression", "i"]), is(["conversion", "c"])) {
        (true, _) => Ok(true),
        (_, true) => Ok(false),
        _ => Err(format!(
            "{} is neither impression nor conversion",
            quoted(kind)
        )),
    }
}

fn bucket(cell: Cell<'_>) -> Result<u16, String> {
    let bucket = needed(cell.number())?;
    let known = u16::try_from(bucket)
        .ok()
        .filter(|bucket| *bucket < BUCKETS);
    known.ok_or_else(|| format!("bucket {bucket} is out of range; use 0 to {}", BUCKETS - 1))
}

fn value(cell: Cell<'_>) -> Result<u32, String> {
    let Some(value) = cell.number()? else {
        return Ok(1);
    };
    let known = u32::try_from(value)
        .ok()
        .filter(|value| (1..=EventKind::MAX_VALUE).contains(value));
    known.ok_or_else(|| {
        format!(
            "value {value} is out of range; use 1 to {}",
            EventKind::MAX_VALUE
        )
    })
}
