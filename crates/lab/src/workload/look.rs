//! Tables are looked at before they are read: at their first rows, and at all of them if those do
//! not settle what everything means.

use crate::workload::amounts::{AmountTally, DecimalMark, MOST_DECIMALS, ValueUnit};
use crate::workload::buckets::{BucketOptions, BucketRule, BucketTally};
use crate::workload::columns;
use crate::workload::gather::Field;
use crate::workload::input::Format;
use crate::workload::kinds::{KindTally, KindWords, RowRole};
use crate::workload::options::TableOptions;
use crate::workload::read::ReadError;
use crate::workload::rows::{RowReader, Stop, TableFile, kind_of};
use crate::workload::time::{TimeForm, TimeTally};

/// What everything in the tables means.
#[derive(Debug)]
pub(crate) struct ReadPlan {
    /// The form of times, by file.
    pub(crate) forms: Vec<TimeForm>,
    pub(crate) zoneless: bool,
    pub(crate) kinds: KindWords,
    pub(crate) buckets: BucketRule,
    /// The decimal mark, by file.
    pub(crate) marks: Vec<DecimalMark>,
    pub(crate) value_unit: Option<ValueUnit>,
}

impl ReadPlan {
    /// Minute 0 in seconds since 1970-01-01T00:00Z, if times say when they were.
    pub(crate) fn origin(&self, options: &TableOptions) -> Option<i64> {
        let absolute = self.forms.iter().all(|form| form.is_absolute());
        let form = absolute.then(|| self.forms.first())??;
        match options.time_origin {
            None => Some(0),
            Some(origin) => Some(form.seconds(origin, options.time_unit)),
        }
    }

    pub(crate) fn has_decimal_comma(&self) -> bool {
        self.marks.contains(&DecimalMark::Comma)
    }
}

/// What tables hold.
#[derive(Debug)]
pub(crate) struct Inspection {
    files: Vec<FileInspection>,
    kinds: KindTally,
    buckets: BucketTally,
    words: KindWords,
    /// True if all rows were looked at.
    complete: bool,
}

#[derive(Debug, Default)]
struct FileInspection {
    times: TimeTally,
    /// True if times are timestamps of Parquet.
    timestamps: bool,
    kinds: KindTally,
    amounts: AmountTally,
}

impl Inspection {
    /// Looks at the rows of all tables, up to a limit for each.
    pub(crate) fn at(
        tables: &[TableFile],
        options: &TableOptions,
        rows: &mut RowReader<'_>,
        limit: Option<u64>,
    ) -> Result<Self, ReadError> {
        let words = KindWords::new(&options.impression_kinds, &options.conversion_kinds);
        let words = words.map_err(|what| ReadError::new(&tables[0].file.path, what))?;
        let mut look = Self {
            files: Vec::new(),
            kinds: KindTally::default(),
            buckets: BucketTally::default(),
            words,
            complete: limit.is_none(),
        };
        for table in tables {
            let mut file = FileInspection::default();
            if table.left_out {
                look.files.push(file);
                continue;
            }
            let mark = mark_by_format(table);
            let dated = columns::is_dated(table.column(Field::Time));
            // The decimal mark is known only after the first rows.
            let first_marks = match limit {
                None if mark.is_none() => Some(first_marks(table)?),
                _ => mark,
            };
            let looked = rows.each_row(table, limit, |cells, tick| {
                let kind = kind_of(table, cells, &look.words);
                if table.has(Field::Kind) {
                    file.kinds.add(cells[Field::Kind as usize]);
                    look.kinds.add(cells[Field::Kind as usize]);
                }
                if kind == Some(RowRole::Other) {
                    return Ok(());
                }
                match tick {
                    Some(_) => file.timestamps = true,
                    None => file.times.add(cells[Field::Time as usize], dated),
                }
                if kind == Some(RowRole::Impression) && table.has(Field::Bucket) {
                    look.buckets.add(cells[Field::Bucket as usize]);
                }
                if kind == Some(RowRole::Conversion) {
                    let value = cells[Field::Value as usize];
                    file.amounts.add(value, first_marks);
                }
                Ok(())
            });
            match looked {
                Ok(()) | Err(Stop::Surprise) => {}
                // The reading will come to the same row. Until then there may be other errors.
                Err(Stop::Error(_)) if limit.is_some() => {}
                Err(Stop::Error(error)) => return Err(error),
            }
            look.files.push(file);
        }
        Ok(look)
    }

    /// Decides what everything means. None if the first rows do not settle it.
    pub(crate) fn decide(
        self,
        tables: &[TableFile],
        options: &TableOptions,
    ) -> Result<Option<ReadPlan>, ReadError> {
        let looked = || tables.iter().zip(&self.files);
        let forms: Vec<TimeForm> = looked().map(|(_, file)| file.form(options)).collect();
        mixed_times(tables, &forms)?;
        if let Some(what) = self.words.refuse(&self.kinds) {
            if !self.complete {
                return Ok(None);
            }
            let has_unknown = |file: &FileInspection| self.words.refuse(&file.kinds).is_some();
            let table = looked().find(|(_, file)| has_unknown(file));
            let table = table.map_or(&tables[0], |(table, _)| table);
            let column = table.column(Field::Kind);
            return Err(ReadError::new(
                &table.file.path,
                format!("column `{column}`: {what}"),
            ));
        }
        let bucket_options = BucketOptions {
            count: options.buckets,
            named: options.names_buckets(),
        };
        let with_buckets = tables.iter().find(|table| table.has(Field::Bucket));
        let buckets = match with_buckets {
            None => BucketRule::One(options.buckets.unwrap_or(1)),
            Some(_) if !self.complete && !self.buckets.are_buckets(bucket_options) => {
                return Ok(None);
            }
            Some(table) => {
                let column = table.column(Field::Bucket);
                let rule = self.buckets.rule(bucket_options, column);
                rule.map_err(|what| {
                    ReadError::new(&table.file.path, format!("column `{column}`: {what}"))
                })?
            }
        };
        let marks: Vec<DecimalMark> = looked()
            .map(|(table, file)| mark_by_format(table).unwrap_or_else(|| file.amounts.mark()))
            .collect();
        let mut value_unit = options.value_unit;
        let decimals = looked().filter_map(|(table, file)| Some((file.amounts.decimals()?, table)));
        if let Some(((scale, example), table)) = decimals.max_by_key(|((scale, _), _)| *scale)
            && value_unit.is_none()
        {
            if !self.complete {
                return Ok(None);
            }
            if scale > MOST_DECIMALS {
                let (column, what) = (table.column(Field::Value), ValueUnit::propose(example));
                let what = format!("column `{column}`: {what}");
                return Err(ReadError::new(&table.file.path, what));
            }
            value_unit = Some(ValueUnit::of_decimals(scale));
        }
        let mut kinds = self.words.clone();
        kinds.order(&self.kinds);
        Ok(Some(ReadPlan {
            zoneless: looked().any(|(_, file)| file.times.zoneless()),
            forms,
            kinds,
            buckets,
            marks,
            value_unit,
        }))
    }
}

impl FileInspection {
    fn form(&self, options: &TableOptions) -> TimeForm {
        match (self.timestamps, self.times.form(), options.time_unit) {
            (true, _, _) => TimeForm::Timestamps,
            (false, TimeForm::Text, _) => TimeForm::Text,
            (false, _, Some(unit)) => TimeForm::Counted(unit),
            (false, form, None) => form,
        }
    }
}

/// Refuses files of which some say when their times were and others do not.
fn mixed_times(tables: &[TableFile], forms: &[TimeForm]) -> Result<(), ReadError> {
    let mut read = tables
        .iter()
        .zip(forms)
        .filter(|(table, _)| !table.left_out);
    let Some((first, form)) = read.next() else {
        return Ok(());
    };
    let other = read.find(|(_, other)| other.is_absolute() != form.is_absolute());
    let Some((table, other)) = other else {
        return Ok(());
    };
    let what = format!(
        "column `{}`: times are {other}, but those of {} are {form}; read the files one by one, \
         or give --time-unit",
        table.column(Field::Time),
        first.file.path.display()
    );
    Err(ReadError::new(&table.file.path, what))
}

/// The decimal mark that follows from the format. None if it is told by looking.
fn mark_by_format(table: &TableFile) -> Option<DecimalMark> {
    match table.file.format {
        Format::Delimited(b',') | Format::Json | Format::Parquet => Some(DecimalMark::Point),
        Format::Delimited(_) => None,
    }
}

/// The decimal mark of the first rows.
fn first_marks(table: &TableFile) -> Result<DecimalMark, ReadError> {
    let mut amounts = AmountTally::default();
    let looked = table.each_row(Some(1000), &mut |_, _| (), |cells, _| {
        amounts.add(cells[Field::Value as usize], None);
        Ok(())
    });
    match looked {
        Err(Stop::Error(error)) => Err(error),
        Ok(()) | Err(Stop::Surprise) => Ok(amounts.mark()),
    }
}
