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

use std::path::PathBuf;

use crate::workload::Workload;
use crate::workload::amounts::Amounts;
use crate::workload::buckets::BucketRule;
use crate::workload::cells::{Cell, EMPTY};
use crate::workload::columns;
use crate::workload::gather::{Field, Gather, GatherOptions, Refusal, RowKind, TableRow};
use crate::workload::input;
use crate::workload::kinds::{KindWords, RowRole};
use crate::workload::look::{Inspection, ReadPlan};
use crate::workload::read::{ReadError, ReadProgress};
use crate::workload::rows::{Halt, RowReader, SAMPLE, Stop, TableFile};
use crate::workload::sites::SiteCache;
use crate::workload::time::Clock;
use crate::workload::understanding::{
    BucketsUnderstood, FileLayout, KindsUnderstood, TimesUnderstood, Understanding,
    ValuesUnderstood, named_columns,
};

pub use crate::workload::amounts::{NoValueUnit, ValueUnit};
pub use crate::workload::buckets::MAX_BUCKETS;
pub use crate::workload::cells::is_guarded;
pub use crate::workload::columns::{Columns, ColumnsError};
pub use crate::workload::input::Input;
pub use crate::workload::options::TableOptions;
pub use crate::workload::sites::{ReducedNames, SiteNames, host};
pub use crate::workload::time::{NoTimeOrigin, TimeForm, TimeOrigin, TimeUnit, UnknownTimeUnit};

pub(crate) use crate::workload::input::in_folder;
pub(crate) use crate::workload::options::MEMORY_ROWS;

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
        rows: RowReader::new(progress, bytes_total),
    };
    let look = Inspection::at(&tables, options, &mut reading.rows, Some(SAMPLE))?;
    let mut plan = match look.decide(&tables, options)? {
        Some(plan) => plan,
        None => reading.look_at_everything()?,
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

/// Tables that are being read.
struct Reading<'a> {
    options: &'a TableOptions,
    tables: &'a [TableFile],
    rows: RowReader<'a>,
}

/// The assumed size of a row of text, to estimate the number of rows.
const BYTES_OF_ROW: u64 = 32;

/// How many times smaller text becomes by compression, roughly.
const COMPRESSED: u64 = 5;

impl Reading<'_> {
    /// Looks at all rows, and decides.
    fn look_at_everything(&mut self) -> Result<ReadPlan, ReadError> {
        let whole: u64 = self.tables.iter().map(|table| table.file.bytes).sum();
        // Everything is read twice from here on.
        let now = &mut self.rows.now;
        now.bytes_total = now.bytes_done + 2 * whole;
        let look = Inspection::at(self.tables, self.options, &mut self.rows, None)?;
        let now = &mut self.rows.now;
        now.bytes_done = now.bytes_total - whole;
        match look.decide(self.tables, self.options)? {
            Some(plan) => Ok(plan),
            None => Err(self.changed()),
        }
    }

    /// The error for rows that are not those that were looked at.
    fn changed(&self) -> ReadError {
        let path = &self.tables[0].file.path;
        ReadError::new(path, "the rows changed while they were read")
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

    fn read(&mut self, plan: &mut ReadPlan) -> Result<(Workload, Understanding), Stop> {
        let mut gather = self.gather();
        let mut minutes: Option<(u32, u32)> = None;
        let mut amounts = Vec::new();
        let mut replaced = [false; 2];
        self.rows.now.rows = 0;
        let tables = self.tables;
        for (number, table) in tables.iter().enumerate() {
            if table.left_out {
                self.rows.now.bytes_done += table.file.bytes;
                continue;
            }
            gather.begin_file();
            let mut interpreter = Interpreter::new(self.options, plan, table, number);
            let mut seen = 0_u64;
            self.rows.each_row(table, None, |cells, tick| {
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
            self.rows.tell();
        }
        // The last file may have been left out.
        self.rows.tell();
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
                impressions: with_kinds(RowRole::Impression),
                conversions: with_kinds(RowRole::Conversion),
                left_out: with_kinds(RowRole::Other),
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
    fn new(
        options: &TableOptions,
        plan: &'p mut ReadPlan,
        table: &TableFile,
        number: usize,
    ) -> Self {
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
            false if impression_site == Cell::Nothing => RowRole::Conversion,
            false => RowRole::Impression,
        };
        if kind == RowRole::Other {
            return Ok(None);
        }
        let (minute, epoch) = self.clock.time(time).map_err(wrong(Field::Time))?;
        let impression_site = impression_site
            .name(&mut self.impression_site)
            .map(|site| site.map(|site| self.impression_sites.site(site)));
        let kind = if kind == RowRole::Impression {
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
