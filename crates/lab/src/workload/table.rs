//! Tables of what devices do, in CSV, TSV, JSON or Parquet files: one row per impression or
//! conversion.
//!
//! | column | for an impression | for a conversion |
//! | --- | --- | --- |
//! | `device` | text or a whole number | the same |
//! | `time` | a date or time, a Unix time, or a whole number from 0 on | the same |
//! | `conversion_site` | the site that the ad is for: text or a whole number | where it happens |
//! | `impression_site` | the site that shows the ad: text or a whole number | the same, if known |
//! | `bucket` | the bucket that its credit goes to | empty |
//! | `kind` | a word such as `impression` | a word such as `conversion` |
//! | `value` | ignored | its value, from 1 on; 1 if empty |
//! | `order` | its place among events of one minute | the same |
//!
//! Columns may have other names, which are recognised if they are usual ([`Columns`] names them
//! otherwise). The last four columns may be missing. Without `kind`, a row with an impression site
//! is an impression. Without `order`, events of one minute have the order of their rows. On a
//! device, impressions always come before conversions of the same minute. Other columns are
//! ignored.
//!
//! Files are looked at before they are read: the first rows of each say how its times are written,
//! and which words stand for impressions. If these rows do not settle everything, all rows are
//! looked at. Nothing that is decided depends on the order of files, and what was decided is said
//! ([`Understanding`]). Where it cannot be decided, the error proposes the options that would do.
//!
//! A table may have more rows than fit into memory: see [`TableOptions::memory_rows`].

use std::cell::Cell as Shared;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::rc::Rc;

use crate::workload::amounts::Amounts;
use crate::workload::buckets::BucketRule;
use crate::workload::cells::{Cell, EMPTY, Holds, ParquetFile};
use crate::workload::columns::{self, Places};
use crate::workload::csv::Csv;
use crate::workload::gather::{Field, Gather, GatherOptions, Refusal, RowKind, TableRow};
use crate::workload::input::{self, Format, LogFile};
use crate::workload::json::{self, each_object};
use crate::workload::kinds::{Kind, KindWords};
use crate::workload::look::{Decision, Look, Plan};
use crate::workload::read::{ReadError, ReadProgress};
use crate::workload::sites::SiteCache;
use crate::workload::time::Clock;
use crate::workload::understanding::{
    BucketsUnderstood, FileLayout, KindsUnderstood, TimesUnderstood, Understanding,
    ValuesUnderstood, named_columns,
};
use crate::workload::{DAY, Workload};

pub use crate::workload::amounts::{NoValueUnit, ValueUnit};
pub use crate::workload::buckets::MAX_BUCKETS;
pub use crate::workload::cells::is_guarded;
pub use crate::workload::columns::{Columns, ColumnsError};
pub use crate::workload::input::Input;
pub use crate::workload::sites::{ReducedNames, SiteNames, host};
pub use crate::workload::time::{NoTimeOrigin, TimeForm, TimeOrigin, TimeUnit, UnknownTimeUnit};

/// Options for reading tables.
#[derive(Debug, Clone)]
pub struct TableOptions {
    /// The names of columns. Columns that are not named are found by their usual names.
    pub columns: Columns,
    /// The unit of times that are numbers, and of `time_origin`. None if it is told by looking.
    pub time_unit: Option<TimeUnit>,
    /// The time that is minute 0. The default is 0 for numbers that are counted from an origin of
    /// their own, and 1970-01-01T00:00Z for all others: epochs of a day are then days in UTC,
    /// whatever the first row is.
    pub time_origin: Option<TimeOrigin>,
    /// The length of an epoch, in minutes.
    pub epoch_minutes: NonZeroU32,
    /// The words for impressions in the column of kinds. If empty, the usual words.
    pub impression_kinds: Vec<String>,
    /// The words for conversions in the column of kinds. If empty, the usual words. If words are
    /// given for both, rows of other kinds are left out.
    pub conversion_kinds: Vec<String>,
    /// The column that holds buckets, or values that are divided into buckets.
    pub bucket_column: Option<String>,
    /// The number of buckets, up to [`MAX_BUCKETS`]. The default is the paper's, or fewer if a
    /// column has fewer values.
    pub buckets: Option<u16>,
    /// The unit of values. A value is rounded to the nearest multiple, halves upwards, and is at
    /// least one unit. Without a unit, values are whole numbers from 1 on, or, if some have
    /// decimals, numbers with up to two decimals, of which the finest gives the unit.
    pub value_unit: Option<ValueUnit>,
    /// The sites that names of sites stand for.
    pub sites: SiteNames,
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
            time_unit: None,
            time_origin: None,
            epoch_minutes: NonZeroU32::MIN.saturating_add(DAY - 1),
            impression_kinds: Vec::new(),
            conversion_kinds: Vec::new(),
            bucket_column: None,
            buckets: None,
            value_unit: None,
            sites: SiteNames::default(),
            sorted: false,
            memory_rows: MEMORY_ROWS,
            temporary: None,
        }
    }
}

impl TableOptions {
    /// The columns that are named.
    fn named_columns(&self) -> Columns {
        let mut columns = self.columns.clone();
        if let Some(name) = &self.bucket_column {
            columns.set_bucket(name);
        }
        columns
    }

    /// True if the column of buckets is named: then it may hold any values, also in conversions.
    pub(crate) fn names_buckets(&self) -> bool {
        self.bucket_column.is_some() || self.columns.get("bucket").is_some()
    }
}

/// The default for the most rows in memory: about 200 MB while they are read.
pub(crate) const MEMORY_ROWS: usize = 4_000_000;

pub(crate) use crate::workload::input::in_folder;

/// Reads tables: files, and folders of files in the order of their names. All of them form one
/// table. `progress` is called a few times per megabyte.
///
/// # Errors
/// If a file cannot be read or has a wrong value. The error names the file, the column and the row.
/// Rows are counted in each file, from 1 on, without the header. If it cannot be told what a file
/// holds, the error names the options that would say so.
pub fn read(
    paths: &[PathBuf],
    options: &TableOptions,
    progress: &mut dyn FnMut(ReadProgress),
) -> Result<Workload, ReadError> {
    let inputs = paths.iter().map(Input::path).collect();
    read_inputs(inputs, options, progress).map(|(workload, _)| workload)
}

/// Reads tables from files, folders and streams, and says how they were understood.
///
/// # Errors
/// Those of [`read`].
pub fn read_inputs(
    inputs: Vec<Input>,
    options: &TableOptions,
    progress: &mut dyn FnMut(ReadProgress),
) -> Result<(Workload, Understanding), ReadError> {
    let files = input::files(inputs)?;
    let tables = files.into_iter().map(|file| TableFile::new(file, options));
    let tables: Vec<TableFile> = tables.collect::<Result<_, _>>()?;
    check_columns(&tables, options)?;
    let bytes_total = tables.iter().map(|table| table.file.bytes).sum();
    let mut reading = Reading {
        options,
        tables: &tables,
        progress,
        now: ReadProgress {
            bytes_done: 0,
            bytes_total,
            rows: 0,
        },
    };
    let mut plan = match Look::at(&mut reading, Some(SAMPLE))?.decide(&reading)? {
        Decision::Plan(plan) => plan,
        Decision::LookFurther => reading.look_at_everything()?,
    };
    let mut read = reading.read(&mut plan);
    if let Err(Stop::Surprise) = read {
        // Rows after the first ones differ. All rows decide.
        plan = reading.look_at_everything()?;
        read = reading.read(&mut plan);
    }
    read.map_err(|stop| match stop {
        Stop::Error(error) => error,
        Stop::Surprise => reading.changed(),
    })
}

/// Checks that some file has each column that was named, and impression sites.
fn check_columns(tables: &[TableFile], options: &TableOptions) -> Result<(), ReadError> {
    let mut read = tables.iter().filter(|table| !table.left_out);
    let first = read.next();
    let Some(first) = first else {
        let what = "the files have neither impressions nor conversions";
        return Err(ReadError::new(&tables[0].file.path, what));
    };
    let columns = options.named_columns();
    for (field, name) in columns.given() {
        if !tables.iter().any(|table| table.has(field)) {
            let what = columns::missing(name, &first.names.join(", "));
            return Err(ReadError::new(&first.file.path, what));
        }
    }
    if columns.get("impression_site").is_none()
        && !tables.iter().any(|table| table.has(Field::ImpressionSite))
    {
        let what = columns::propose_impression_site(&first.names, &first.places);
        return Err(ReadError::new(&first.file.path, what));
    }
    if options.buckets.is_some_and(|count| count > 1)
        && !tables.iter().any(|table| table.has(Field::Bucket))
    {
        let names = first.names.join(", ");
        let what = columns::missing("bucket", &names).replace(
            "there is no column `bucket`",
            "there is no column `bucket`; give --bucket-column NAME",
        );
        return Err(ReadError::new(&first.file.path, what));
    }
    Ok(())
}

/// The number of rows of each file that are looked at first.
const SAMPLE: u64 = 1000;

/// A file, and the columns in which it holds what.
#[derive(Debug)]
pub(crate) struct TableFile {
    pub(crate) file: LogFile,
    pub(crate) names: Vec<String>,
    pub(crate) places: Places,
    /// True if its rows are neither impressions nor conversions.
    pub(crate) left_out: bool,
    /// The format, in words.
    format: String,
    /// The number of rows of a Parquet file.
    rows: Option<u64>,
}

impl TableFile {
    fn new(file: LogFile, options: &TableOptions) -> Result<Self, ReadError> {
        let mut table = Self {
            format: file.format_name(),
            file,
            names: Vec::new(),
            places: Places::default(),
            left_out: false,
            rows: None,
        };
        let path = &table.file.path;
        let columns = options.named_columns();
        let mut preset = Vec::new();
        match table.file.format {
            Format::Delimited(delimiter) => {
                let text = table.file.text(&Rc::default())?;
                table.names = Csv::new(path, text, delimiter)?.header().to_vec();
            }
            Format::Parquet => {
                let parquet = ParquetFile::of(path, table.file.raw()?)?;
                table.rows = Some(parquet.rows());
                table.names = parquet.names();
            }
            Format::Json => {
                let given = columns.given().map(|(_, name)| name);
                let text = table.file.text(&Rc::default())?;
                table.names = json::names(path, text, given, SAMPLE)?;
                preset = columns::simulation_library(&table.names);
                if !preset.is_empty() {
                    table.format = table.format.replace(
                        "JSON",
                        "JSON of the Attribution Reporting simulation library",
                    );
                }
                let has = |name: &str| table.names.iter().any(|it| it == name);
                if preset.is_empty() && has("uri") && has("action") && has("user_id") {
                    // The simulation library's events of apps: installs.
                    table.left_out = true;
                    return Ok(table);
                }
            }
        }
        let places = columns::places(&table.names, &columns, &preset);
        table.places = places.map_err(|what| ReadError::new(path, what))?;
        Ok(table)
    }

    pub(crate) fn has(&self, field: Field) -> bool {
        !self.places[field as usize].is_empty()
    }

    /// The name of the column that holds a field, or its default name.
    pub(crate) fn column(&self, field: Field) -> &str {
        let place = self.places[field as usize].first();
        place.map_or(field.key(), |place| &self.names[*place])
    }

    /// Calls `each` with the cells of every row, up to a limit, and `tell` with the number of bytes
    /// that were read so far, and of rows since the last call.
    pub(crate) fn each_row(
        &self,
        limit: Option<u64>,
        tell: &mut dyn FnMut(u64, u64),
        each: impl FnMut(&[Cell<'_>; 8], Option<i128>) -> Result<(), Halt>,
    ) -> Result<(), Stop> {
        let read = match self.file.format {
            Format::Delimited(delimiter) => self.delimited(delimiter, limit, tell, each),
            Format::Json => self.json(limit, tell, each),
            Format::Parquet => self.parquet(limit, tell, each),
        };
        match read {
            Err(RowStop::Enough) | Ok(()) => Ok(()),
            Err(RowStop::Stop(stop)) => Err(stop),
        }
    }

    fn delimited(
        &self,
        delimiter: u8,
        limit: Option<u64>,
        tell: &mut dyn FnMut(u64, u64),
        mut each: impl FnMut(&[Cell<'_>; 8], Option<i128>) -> Result<(), Halt>,
    ) -> Result<(), RowStop> {
        let count = Rc::<Shared<u64>>::default();
        let mut csv = Csv::new(&self.file.path, self.file.text(&count)?, delimiter)?;
        let places = self.places.each_ref().map(|places| places.first().copied());
        let limit = limit.unwrap_or(u64::MAX);
        let mut told = (0, 0);
        loop {
            if csv.row() >= limit {
                return Err(RowStop::Enough);
            }
            let Some(record) = csv.next()? else {
                tell(count.get(), csv.row() - 1 - told.1);
                return Ok(());
            };
            let mut row = [Cell::Nothing; 8];
            let mut cut = None;
            for (number, (cell, place)) in row.iter_mut().zip(places).enumerate() {
                let Some(place) = place else { continue };
                match record.cell(place) {
                    Some(found) => *cell = found,
                    None => cut = cut.or(Some(number)),
                }
            }
            let taken = match cut {
                Some(number) => Err(Halt::Refused(Refusal::Column(
                    Field::ALL[number],
                    "the text is not valid UTF-8".to_owned(),
                ))),
                None => each(&row, None),
            };
            taken.map_err(|halt| self.halted(csv.row(), halt))?;
            if count.get() != told.0 {
                tell(count.get(), csv.row() - told.1);
                told = (count.get(), csv.row());
            }
        }
    }

    fn json(
        &self,
        limit: Option<u64>,
        tell: &mut dyn FnMut(u64, u64),
        mut each: impl FnMut(&[Cell<'_>; 8], Option<i128>) -> Result<(), Halt>,
    ) -> Result<(), RowStop> {
        let count = Rc::<Shared<u64>>::default();
        let text = self.file.text(&count)?;
        let limit = limit.unwrap_or(u64::MAX);
        let (mut row, mut told) = (0, (0, 0));
        each_object(&self.file.path, text, |object| {
            if row >= limit {
                return Err(RowStop::Enough);
            }
            row += 1;
            let cells = self.places.each_ref().map(|places| {
                let values = places
                    .iter()
                    .filter_map(|place| json::at(object, &self.names[*place]));
                let mut cells = values.map(json::cell);
                cells
                    .find(|cell| *cell != Cell::Nothing)
                    .unwrap_or(Cell::Nothing)
            });
            each(&cells, None).map_err(|halt| self.halted(row, halt))?;
            if count.get() != told.0 {
                tell(count.get(), row - told.1);
                told = (count.get(), row);
            }
            Ok(())
        })?;
        tell(count.get(), row - told.1);
        Ok(())
    }

    fn parquet(
        &self,
        limit: Option<u64>,
        tell: &mut dyn FnMut(u64, u64),
        mut each: impl FnMut(&[Cell<'_>; 8], Option<i128>) -> Result<(), Halt>,
    ) -> Result<(), RowStop> {
        let mut file = ParquetFile::of(&self.file.path, self.file.raw()?)?;
        let expected = file.rows().max(1);
        if let Some(rows) = limit {
            file = file.first(usize::try_from(rows).unwrap_or(usize::MAX));
        }
        let mut wanted = HOLDS.map(Some).map(|holds| holds.map(|holds| ("", holds)));
        for (column, places) in wanted.iter_mut().zip(&self.places) {
            match (column.as_mut(), places.first()) {
                (Some(column), Some(place)) => column.0 = &self.names[*place],
                _ => *column = None,
            }
        }
        let mut batches = file.columns(wanted)?;
        let mut row = 0;
        while let Some((rows, columns)) = batches.next()? {
            let tick = columns[Field::Time as usize].tick();
            for at in 0..rows {
                row += 1;
                let cells = columns.each_ref().map(|column| column.cell(at));
                each(&cells, tick).map_err(|halt| self.halted(row, halt))?;
            }
            let share = u128::from(self.file.bytes) * u128::from(row) / u128::from(expected);
            let done = u64::try_from(share)
                .unwrap_or(u64::MAX)
                .min(self.file.bytes);
            tell(done, rows as u64);
        }
        Ok(())
    }

    fn halted(&self, row: u64, halt: Halt) -> RowStop {
        let path = &self.file.path;
        let error = match halt {
            Halt::Surprise => return RowStop::Stop(Stop::Surprise),
            Halt::Refused(Refusal::Column(field, what)) => {
                ReadError::at(path, Some(self.column(field)), row, &what)
            }
            Halt::Refused(Refusal::Row(what)) => ReadError::at(path, None, row, &what),
            Halt::Refused(Refusal::Disk(error)) => error,
        };
        RowStop::Stop(Stop::Error(error))
    }
}

/// What each column must hold, by field.
const HOLDS: [Holds; 8] = [
    Holds::Names,
    Holds::Times,
    Holds::Names,
    Holds::Names,
    Holds::Words,
    Holds::Words,
    Holds::Amounts,
    Holds::Numbers,
];

/// The reason why rows are not read further.
#[derive(Debug)]
pub(crate) enum Stop {
    Error(ReadError),
    /// A row differs from the first ones, so that all rows have to be looked at.
    Surprise,
}

impl From<ReadError> for Stop {
    fn from(error: ReadError) -> Self {
        Self::Error(error)
    }
}

/// The same, or that enough rows were read.
#[derive(Debug)]
enum RowStop {
    Stop(Stop),
    Enough,
}

impl From<ReadError> for RowStop {
    fn from(error: ReadError) -> Self {
        Self::Stop(Stop::Error(error))
    }
}

/// The reason why a row stops the reading.
#[derive(Debug)]
pub(crate) enum Halt {
    Refused(Refusal),
    Surprise,
}

impl From<Refusal> for Halt {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Tables that are being read.
pub(crate) struct Reading<'a> {
    pub(crate) options: &'a TableOptions,
    pub(crate) tables: &'a [TableFile],
    progress: &'a mut dyn FnMut(ReadProgress),
    now: ReadProgress,
}

/// The assumed size of a row of text, to estimate the number of rows.
const BYTES_OF_ROW: u64 = 32;

/// How many times smaller text becomes by compression, roughly.
const COMPRESSED: u64 = 5;

impl Reading<'_> {
    /// Looks at all rows, and decides.
    fn look_at_everything(&mut self) -> Result<Plan, ReadError> {
        let whole: u64 = self.tables.iter().map(|table| table.file.bytes).sum();
        // Everything is read twice from here on.
        self.now.bytes_total = self.now.bytes_done + 2 * whole;
        let look = Look::at(self, None)?;
        self.now.bytes_done = self.now.bytes_total - whole;
        match look.decide(self)? {
            Decision::Plan(plan) => Ok(plan),
            Decision::LookFurther => Err(self.changed()),
        }
    }

    /// The error for rows that are not those that were looked at.
    fn changed(&self) -> ReadError {
        let path = &self.tables[0].file.path;
        ReadError::new(path, "the rows changed while they were read")
    }

    /// Calls `each` with every row of a table, and reports progress.
    pub(crate) fn each_row(
        &mut self,
        table: &TableFile,
        limit: Option<u64>,
        each: impl FnMut(&[Cell<'_>; 8], Option<i128>) -> Result<(), Halt>,
    ) -> Result<(), Stop> {
        let begin = self.now.bytes_done;
        let (progress, now) = (&mut *self.progress, &mut self.now);
        table.each_row(
            limit,
            &mut |bytes, rows| {
                if limit.is_none() {
                    now.bytes_done = (begin + bytes).min(now.bytes_total);
                    now.rows += rows;
                    progress(*now);
                }
            },
            each,
        )?;
        if limit.is_none() {
            self.now.bytes_done = begin + table.file.bytes;
        }
        Ok(())
    }

    fn gather(&self) -> Gather {
        let mut expected_rows: u64 = 0;
        let mut least_rows: u64 = 0;
        for table in self.tables {
            let rows = match (table.rows, table.file.compression) {
                (Some(rows), _) => {
                    least_rows = least_rows.saturating_add(rows);
                    rows
                }
                (None, None) => table.file.bytes / BYTES_OF_ROW,
                (None, Some(_)) => table.file.bytes.saturating_mul(COMPRESSED) / BYTES_OF_ROW,
            };
            expected_rows = expected_rows.saturating_add(rows);
        }
        if self.leaves_rows_out() {
            least_rows = 0;
        }
        Gather::new(GatherOptions {
            sorted: self.options.sorted,
            memory_rows: self.options.memory_rows,
            temporary: self.options.temporary.clone(),
            expected_rows,
            least_rows,
        })
    }

    fn leaves_rows_out(&self) -> bool {
        !self.options.impression_kinds.is_empty() && !self.options.conversion_kinds.is_empty()
    }

    fn read(&mut self, plan: &mut Plan) -> Result<(Workload, Understanding), Stop> {
        let mut gather = self.gather();
        let mut minutes: Option<(u32, u32)> = None;
        let mut amounts = Vec::new();
        let mut replaced = [false; 2];
        self.now.rows = 0;
        let tables = self.tables;
        for (number, table) in tables.iter().enumerate() {
            if table.left_out {
                self.now.bytes_done += table.file.bytes;
                continue;
            }
            gather.begin_file();
            let mut interpreter = Interpreter::new(self.options, plan, table, number);
            let mut seen = 0_u64;
            self.each_row(table, None, |cells, tick| {
                seen += 1;
                if let Some(tick) = tick {
                    interpreter.clock.set_tick(tick);
                }
                let Some(row) = interpreter.row(cells)? else {
                    return Ok(());
                };
                let (first, last) = minutes.unwrap_or((row.minute, row.minute));
                minutes = Some((first.min(row.minute), last.max(row.minute)));
                gather.push(&row)?;
                Ok(())
            })?;
            amounts.push(interpreter.amounts.clone());
            replaced[0] |= interpreter.conversion_sites.replaced;
            replaced[1] |= interpreter.impression_sites.replaced;
            if seen == 0 {
                return Err(ReadError::new(&table.file.path, "the file has no rows").into());
            }
            (self.progress)(self.now);
        }
        // The last file may have been left out.
        (self.progress)(self.now);
        let (mut workload, out_of_order) = gather.finish_counted()?;
        workload.buckets = plan.buckets.count();
        let column = |field: Field| {
            let mut having = tables.iter().filter(|table| table.has(field));
            having.next().map(|table| table.column(field).to_owned())
        };
        let with_kinds = |kind| plan.kinds.counted(kind);
        let forms = || tables.iter().zip(&plan.forms);
        let mut occurring: Vec<TimeForm> = Vec::new();
        for (table, form) in forms() {
            if !table.left_out && !occurring.contains(form) {
                occurring.push(*form);
            }
        }
        let mut range: Option<(u32, u32)> = None;
        for (least, most) in amounts.iter().filter_map(|it| it.least_and_most) {
            let (first, last) = range.unwrap_or((least, most));
            range = Some((first.min(least), last.max(most)));
        }
        let understanding = Understanding {
            files: tables.len(),
            rows: workload.len() as u64,
            layouts: layouts(tables),
            times: TimesUnderstood {
                zoneless: plan.zoneless,
                minutes,
                origin: plan.origin(self.options),
                epoch_minutes: self.options.epoch_minutes.get(),
                forms: occurring,
            },
            kinds: KindsUnderstood {
                impressions: with_kinds(Kind::Impression),
                conversions: with_kinds(Kind::Conversion),
                left_out: with_kinds(Kind::Other),
                by_impression_site: tables
                    .iter()
                    .any(|table| !table.left_out && !table.has(Field::Kind)),
            },
            buckets: BucketsUnderstood {
                count: plan.buckets.count(),
                column: column(Field::Bucket),
                names: plan.buckets.names(),
            },
            values: ValuesUnderstood {
                column: column(Field::Value),
                unit: plan.value_unit.map(|unit| unit.to_string()),
                decimal_comma: plan.has_decimal_comma(),
                range,
                rounded: amounts.iter().map(|it| it.rounded).sum(),
                raised: amounts.iter().map(|it| it.raised).sum(),
            },
            sites_from_urls: [Field::ConversionSite, Field::ImpressionSite]
                .into_iter()
                .zip(replaced)
                .filter(|(_, replaced)| *replaced)
                .map(|(field, _)| field.key())
                .collect(),
            out_of_order,
        };
        Ok((workload, understanding))
    }
}

fn layouts(tables: &[TableFile]) -> Vec<FileLayout> {
    let mut layouts: Vec<FileLayout> = Vec::new();
    for table in tables {
        let layout = FileLayout {
            format: table.format.clone(),
            files: 1,
            columns: named_columns(&table.names, &table.places),
            left_out: table.left_out,
        };
        let same = |it: &&mut FileLayout| {
            (&it.format, &it.columns, it.left_out)
                == (&layout.format, &layout.columns, layout.left_out)
        };
        match layouts.iter_mut().find(same) {
            Some(known) => known.files += 1,
            None => layouts.push(layout),
        }
    }
    layouts
}

/// Parses the cells of the rows of one file.
struct Interpreter<'p> {
    kinds: &'p mut KindWords,
    buckets: &'p BucketRule,
    clock: Clock,
    amounts: Amounts,
    has_kind: bool,
    /// True if the column of buckets was named: then it may also have values in conversions.
    bucket_named: bool,
    device: String,
    conversion_site: String,
    impression_site: String,
    bucket: String,
    conversion_sites: SiteCache,
    impression_sites: SiteCache,
}

impl<'p> Interpreter<'p> {
    fn new(options: &TableOptions, plan: &'p mut Plan, table: &TableFile, number: usize) -> Self {
        let form = plan.forms[number];
        let mut clock = Clock::new(form, None, options.time_origin, options.epoch_minutes.get());
        if let Some(unit) = options.time_unit {
            clock.set_origin_unit(unit);
        }
        Self {
            kinds: &mut plan.kinds,
            buckets: &plan.buckets,
            clock,
            amounts: Amounts::new(plan.value_unit, plan.marks[number]),
            has_kind: table.has(Field::Kind),
            bucket_named: options.names_buckets(),
            device: String::new(),
            conversion_site: String::new(),
            impression_site: String::new(),
            bucket: String::new(),
            conversion_sites: SiteCache::new(options.sites),
            impression_sites: SiteCache::new(options.sites),
        }
    }

    /// The row. None if it is left out.
    fn row<'r>(&'r mut self, cells: &[Cell<'r>; 8]) -> Result<Option<TableRow<'r>>, Halt> {
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
        let kind = match self.has_kind {
            true => {
                let kind = self.kinds.kind(kind).map_err(wrong(Field::Kind))?;
                kind.ok_or(Halt::Surprise)?
            }
            false if impression_site == Cell::Nothing => Kind::Conversion,
            false => Kind::Impression,
        };
        if kind == Kind::Other {
            return Ok(None);
        }
        let (minute, epoch) = self.clock.time(time).map_err(wrong(Field::Time))?;
        let impression_site = impression_site
            .name(&mut self.impression_site)
            .map(|site| site.map(|site| self.impression_sites.site(site)));
        let kind = if kind == Kind::Impression {
            let rule = self.buckets;
            let bucket = rule.bucket(bucket, self.bucket_named, &mut self.bucket);
            RowKind::Impression {
                site: needed(impression_site).map_err(wrong(Field::ImpressionSite))?,
                bucket: bucket
                    .map_err(wrong(Field::Bucket))?
                    .ok_or(Halt::Surprise)?,
            }
        } else {
            if bucket != Cell::Nothing && !self.bucket_named {
                let what = "the bucket of a conversion must be empty; name the column with \
                            --bucket-column to ignore it";
                return Err(Refusal::Column(Field::Bucket, what.to_owned()).into());
            }
            let value = self.amounts.value(value).map_err(wrong(Field::Value))?;
            RowKind::Conversion {
                value: value.ok_or(Halt::Surprise)?,
                came_from: impression_site.map_err(wrong(Field::ImpressionSite))?,
            }
        };
        let order = order.number().and_then(|order| match order {
            None => Ok(None),
            Some(order) => u32::try_from(order)
                .map(Some)
                .map_err(|_| format!("{order} is out of range; use 0 to {}", u32::MAX)),
        });
        let conversion_site = needed(conversion_site.name(&mut self.conversion_site));
        let conversion_site = conversion_site.map_err(wrong(Field::ConversionSite))?;
        Ok(Some(TableRow {
            device: needed(device.name(&mut self.device)).map_err(wrong(Field::Device))?,
            minute,
            epoch,
            conversion_site: self.conversion_sites.site(conversion_site),
            kind,
            order: order.map_err(wrong(Field::Order))?,
        }))
    }
}

fn wrong(field: Field) -> impl FnOnce(String) -> Refusal {
    move |what| Refusal::Column(field, what)
}

fn needed<T>(found: Result<Option<T>, String>) -> Result<T, String> {
    found?.ok_or_else(|| EMPTY.to_owned())
}

/// The kind of a row while tables are looked at.
pub(crate) fn kind_of(table: &TableFile, cells: &[Cell<'_>; 8], kinds: &KindWords) -> Option<Kind> {
    match table.has(Field::Kind) {
        true => {
            let mut buffer = String::new();
            let word = cells[Field::Kind as usize].name(&mut buffer).ok()??;
            kinds.known(word)
        }
        false => Some(match cells[Field::ImpressionSite as usize] {
            Cell::Nothing => Kind::Conversion,
            _ => Kind::Impression,
        }),
    }
}
