//! Cells of tables, in whatever file they are stored: text, a number, or nothing. Parquet files are
//! read as columns of such cells.

use std::fmt::Write as _;
use std::fs::File;
use std::num::IntErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use arrow_array::cast::AsArray as _;
use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type,
    Int32Type, Int64Type, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, BooleanArray, RecordBatch, StringArray};
use arrow_schema::{DataType, TimeUnit};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use parquet::errors::ParquetError;

use crate::workload::columns::{self, missing};
use crate::workload::read::ReadError;

/// A cell of a table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Cell<'a> {
    Nothing,
    Text(&'a str),
    Number(i128),
    /// A floating-point number that is not whole, or too large to be exact.
    Fraction(f64),
}

/// The message for a cell that must not be empty.
pub(crate) const EMPTY: &str = "the cell is empty";

/// The longest name, in bytes.
const MAX_NAME: usize = 65_535;

impl<'a> Cell<'a> {
    /// A field of a CSV file.
    pub(crate) fn of_text(text: &'a str) -> Self {
        match text {
            "" => Self::Nothing,
            text => Self::Text(text),
        }
    }

    /// A floating-point number, which is empty if it is not a number.
    pub(crate) fn of_float(number: f64) -> Self {
        match number {
            nan if nan.is_nan() => Self::Nothing,
            #[expect(clippy::cast_possible_truncation, reason = "it is whole, and small")]
            whole if whole.fract() == 0.0 && whole.abs() < EXACT => Self::Number(whole as i128),
            fraction => Self::Fraction(fraction),
        }
    }

    /// The whole number in the cell, also if it is written as text.
    pub(crate) fn number(self) -> Result<Option<i128>, String> {
        match self {
            Self::Nothing => Ok(None),
            Self::Number(number) => Ok(Some(number)),
            // Some programs write whole numbers as 7.0.
            Self::Text(text) => match text.strip_suffix(".0").unwrap_or(text).parse::<i64>() {
                Ok(number) => Ok(Some(number.into())),
                Err(error) => Err(match error.kind() {
                    IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => {
                        format!("{} does not fit into 64 bits", quoted(text))
                    }
                    _ => format!("{} is not a whole number", quoted(text)),
                }),
            },
            Self::Fraction(number) => Err(format!("{number} is not a whole number below 2^53")),
        }
    }

    /// The name in the cell: text, or a whole number, which is written as text into the buffer.
    pub(crate) fn name<'b>(self, buffer: &'b mut String) -> Result<Option<&'b str>, String>
    where
        'a: 'b,
    {
        match self {
            Self::Nothing => Ok(None),
            Self::Text(text) if text.len() > MAX_NAME => Err(format!(
                "the name has {} bytes; at most {MAX_NAME} are allowed",
                text.len()
            )),
            Self::Text(text) => Ok(Some(text)),
            Self::Number(number) => {
                buffer.clear();
                // Most numbers fit into 64 bits, and those are formatted faster.
                let _ = match i64::try_from(number) {
                    Ok(number) => write!(buffer, "{number}"),
                    Err(_) => write!(buffer, "{number}"),
                };
                Ok(Some(buffer))
            }
            Self::Fraction(number) => Err(format!("{number} is neither text nor a whole number")),
        }
    }
}

/// Text for a message: quoted, on one line, and at most 40 characters of it.
pub(crate) fn quoted(text: &str) -> String {
    let mut characters = text.chars();
    let begin: String = characters.by_ref().take(40).collect();
    match characters.next() {
        None => format!("{begin:?}"),
        Some(_) => format!("{begin:?}…"),
    }
}

/// The type that a column must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holds {
    /// Text or whole numbers.
    Names,
    /// Whole numbers.
    Numbers,
    /// Whole numbers, times, or text that is one of them.
    Times,
    /// Numbers, or text that is one.
    Amounts,
    /// Text, whole numbers, or truth values.
    Words,
    /// Lists of numbers.
    Lists,
}

impl Holds {
    fn name(self) -> &'static str {
        match self {
            Self::Names => "text or whole numbers",
            Self::Numbers => "whole numbers",
            Self::Times => "numbers, times or text",
            Self::Amounts => "numbers or text",
            Self::Words => "text, whole numbers or truth values",
            Self::Lists => "lists of numbers",
        }
    }

    fn allows(self, found: &DataType) -> bool {
        match found {
            DataType::Null => true,
            DataType::Utf8 => !matches!(self, Self::Numbers | Self::Lists),
            DataType::Boolean => self == Self::Words,
            DataType::Decimal128(..) => self == Self::Amounts,
            DataType::Timestamp(..) | DataType::Date32 => self == Self::Times,
            DataType::List(of) | DataType::LargeList(of) => {
                self == Self::Lists && Self::Numbers.allows(of.data_type())
            }
            _ if found.is_integer() => self != Self::Lists,
            // Some programs store whole numbers as floating-point numbers if some cells are empty.
            DataType::Float32 | DataType::Float64 => {
                matches!(
                    self,
                    Self::Numbers | Self::Times | Self::Amounts | Self::Words
                )
            }
            _ => false,
        }
    }
}

/// A column of a batch.
#[derive(Debug)]
pub(crate) struct Column {
    array: ArrayRef,
    values: Values,
}

#[derive(Debug)]
enum Values {
    Nothing,
    Text(StringArray),
    Numbers(Vec<i128>),
    Fractions(Vec<f64>),
    Truths(BooleanArray),
}

/// 2^53. Below it, every whole number can be represented exactly as a floating-point number.
const EXACT: f64 = 9_007_199_254_740_992.0;

impl Column {
    /// A column that the file does not have: every cell is empty.
    fn absent() -> Self {
        Self {
            array: arrow_array::new_null_array(&DataType::Null, 0),
            values: Values::Nothing,
        }
    }

    pub(crate) fn new(array: ArrayRef) -> Self {
        let values = if let Some(text) = array.as_string_opt::<i32>() {
            Values::Text(text.clone())
        } else if let Some(fractions) = array.as_primitive_opt::<Float64Type>() {
            Values::Fractions(fractions.values().to_vec())
        } else if let Some(fractions) = array.as_primitive_opt::<Float32Type>() {
            Values::Fractions(fractions.values().iter().copied().map(f64::from).collect())
        } else if let Some(truths) = array.as_boolean_opt() {
            Values::Truths(truths.clone())
        } else if let (Some(decimals), DataType::Decimal128(_, scale)) = (
            array.as_primitive_opt::<Decimal128Type>(),
            array.data_type(),
        ) {
            // The shortest decimal of the quotient is the number that was meant, up to 15 digits.
            let power = 10_f64.powi(i32::from(*scale));
            #[expect(clippy::cast_precision_loss, reason = "values have fewer digits")]
            let quotient = |mantissa: &i128| *mantissa as f64 / power;
            Values::Fractions(decimals.values().iter().map(quotient).collect())
        } else {
            numbers(&array).map_or(Values::Nothing, Values::Numbers)
        };
        Self { array, values }
    }

    /// A cell, by its row in the batch.
    pub(crate) fn cell(&self, at: usize) -> Cell<'_> {
        if self.array.is_null(at) {
            return Cell::Nothing;
        }
        match &self.values {
            Values::Nothing => Cell::Nothing,
            Values::Text(texts) => Cell::of_text(texts.value(at)),
            Values::Numbers(numbers) => Cell::Number(numbers[at]),
            Values::Fractions(fractions) => Cell::of_float(fractions[at]),
            Values::Truths(truths) => Cell::Text(match truths.value(at) {
                true => "true",
                false => "false",
            }),
        }
    }

    /// The nanoseconds in one unit of the column, if it holds times.
    pub(crate) fn tick(&self) -> Option<i128> {
        match self.array.data_type() {
            DataType::Timestamp(unit, _) => Some(match unit {
                TimeUnit::Second => 1_000_000_000,
                TimeUnit::Millisecond => 1_000_000,
                TimeUnit::Microsecond => 1000,
                TimeUnit::Nanosecond => 1,
            }),
            DataType::Date32 => Some(86_400_000_000_000),
            _ => None,
        }
    }

    /// The numbers of a list, by its row in the batch. None if the cell is empty.
    pub(crate) fn list(&self, at: usize) -> Option<Self> {
        if self.array.is_null(at) {
            return None;
        }
        if let Some(lists) = self.array.as_list_opt::<i32>() {
            Some(Self::new(lists.value(at)))
        } else {
            let lists = self.array.as_list_opt::<i64>()?;
            Some(Self::new(lists.value(at)))
        }
    }

    /// The number of cells.
    pub(crate) fn len(&self) -> usize {
        self.array.len()
    }
}

/// All numbers of a column of whole numbers or times. Null cells have an arbitrary number.
fn numbers(array: &ArrayRef) -> Option<Vec<i128>> {
    fn of<T: ArrowPrimitiveType>(array: &ArrayRef) -> Option<Vec<i128>>
    where
        i128: From<T::Native>,
    {
        let values = array.as_primitive_opt::<T>()?.values();
        Some(values.iter().map(|value| i128::from(*value)).collect())
    }
    match array.data_type() {
        DataType::Int8 => of::<Int8Type>(array),
        DataType::Int16 => of::<Int16Type>(array),
        DataType::Int32 => of::<Int32Type>(array),
        DataType::Int64 => of::<Int64Type>(array),
        DataType::UInt8 => of::<UInt8Type>(array),
        DataType::UInt16 => of::<UInt16Type>(array),
        DataType::UInt32 => of::<UInt32Type>(array),
        DataType::UInt64 => of::<UInt64Type>(array),
        DataType::Date32 => of::<Date32Type>(array),
        DataType::Timestamp(TimeUnit::Second, _) => of::<TimestampSecondType>(array),
        DataType::Timestamp(TimeUnit::Millisecond, _) => of::<TimestampMillisecondType>(array),
        DataType::Timestamp(TimeUnit::Microsecond, _) => of::<TimestampMicrosecondType>(array),
        DataType::Timestamp(TimeUnit::Nanosecond, _) => of::<TimestampNanosecondType>(array),
        _ => None,
    }
}

/// A Parquet file of which only the metadata has been read.
pub(crate) struct ParquetFile {
    path: PathBuf,
    builder: ParquetRecordBatchReaderBuilder<File>,
}

/// The number of rows in a batch.
const BATCH: usize = 8192;

impl ParquetFile {
    pub(crate) fn open(path: &Path) -> Result<Self, ReadError> {
        let file = File::open(path).map_err(|cause| ReadError::new(path, cause.to_string()))?;
        Self::of(path, file)
    }

    /// Messages call the file by this path.
    pub(crate) fn of(path: &Path, file: File) -> Result<Self, ReadError> {
        // Ignoring the writer's Arrow types gives all text the same type.
        let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
        let builder =
            guarded(|| ParquetRecordBatchReaderBuilder::try_new_with_options(file, options));
        let builder =
            builder.map_err(|what| ReadError::new(path, format!("not a Parquet file: {what}")))?;
        Ok(Self {
            path: path.to_owned(),
            builder,
        })
    }

    /// The number of rows, according to its metadata.
    pub(crate) fn rows(&self) -> u64 {
        let rows = self.builder.metadata().file_metadata().num_rows();
        u64::try_from(rows).unwrap_or(0)
    }

    /// The names of the columns.
    pub(crate) fn names(&self) -> Vec<String> {
        let fields = self.builder.schema().fields().iter();
        fields.map(|field| field.name().clone()).collect()
    }

    /// Reads at most this number of rows.
    pub(crate) fn first(mut self, rows: usize) -> Self {
        self.builder = self.builder.with_limit(rows);
        self
    }

    /// Starts to read some columns. The file must have each of them. An entry of `columns` that is
    /// `None` is read as a column of empty cells.
    pub(crate) fn columns<const N: usize>(
        self,
        columns: [Option<(&str, Holds)>; N],
    ) -> Result<Batches<N>, ReadError> {
        self.columns_by(BATCH, columns)
    }

    /// Starts to read some columns, `rows` rows at a time.
    pub(crate) fn columns_by<const N: usize>(
        self,
        rows: usize,
        columns: [Option<(&str, Holds)>; N],
    ) -> Result<Batches<N>, ReadError> {
        let error = |what: String| ReadError::new(&self.path, what);
        let schema = self.builder.schema();
        let mut roots = [None; N];
        for (root, column) in roots.iter_mut().zip(columns) {
            let Some((name, holds)) = column else {
                continue;
            };
            match schema
                .fields()
                .iter()
                .filter(|it| it.name() == name)
                .count()
            {
                0 => return Err(error(missing(name, &self.names().join(", ")))),
                1 => {}
                count => return Err(error(columns::several(name, count))),
            }
            let found = schema.index_of(name);
            let found = found.map_err(|cause| error(cause.to_string()))?;
            *root = Some(found);
            let found = schema.field(found).data_type();
            if !holds.allows(found) {
                let holds = holds.name();
                return Err(error(format!(
                    "column `{name}` has type {found}, but must hold {holds}"
                )));
            }
        }
        let mut read: Vec<usize> = roots.into_iter().flatten().collect();
        read.sort_unstable();
        read.dedup();
        let places = roots.map(|root| read.binary_search(&root?).ok());
        let mask = ProjectionMask::roots(self.builder.parquet_schema(), read);
        let builder = self.builder.with_projection(mask).with_batch_size(rows);
        let reader = guarded(|| builder.build()).map_err(error)?;
        Ok(Batches {
            path: self.path,
            places,
            reader,
        })
    }
}

/// The batches of some columns.
pub(crate) struct Batches<const N: usize> {
    path: PathBuf,
    /// The index of each column in a batch.
    places: [Option<usize>; N],
    reader: ParquetRecordBatchReader,
}

impl<const N: usize> Batches<N> {
    /// The number of rows in the next batch, and its columns.
    pub(crate) fn next(&mut self) -> Result<Option<(usize, [Column; N])>, ReadError> {
        Ok(self.next_batch()?.map(|batch| {
            let columns = self.places.map(|place| match place {
                Some(place) => Column::new(batch.column(place).clone()),
                None => Column::absent(),
            });
            (batch.num_rows(), columns)
        }))
    }
}

impl<const N: usize> Batches<N> {
    /// The next batch, with the columns in the order of the file.
    pub(crate) fn next_batch(&mut self) -> Result<Option<RecordBatch>, ReadError> {
        let batch = guarded(|| self.reader.next().transpose());
        batch.map_err(|what| ReadError::new(&self.path, format!("the file is damaged: {what}")))
    }
}

/// Turns a panic of the Parquet library into an error. Some damaged files make the library panic.
/// [`is_guarded`] tells the program's panic hook that such a panic will become an error.
fn guarded<T, E: Into<Refused>>(read: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    GUARDED.set(true);
    let read = catch_unwind(AssertUnwindSafe(read));
    GUARDED.set(false);
    match read {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(cause)) => Err(cause.into().0),
        Err(_) => Err("its contents cannot be decoded".to_owned()),
    }
}

thread_local! {
    static GUARDED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// True on a thread on which a panic becomes an error. A program whose panic hook prints nothing
/// then shows the error alone, on one line.
pub fn is_guarded() -> bool {
    GUARDED.get()
}

/// The error message of a library that could not read something.
struct Refused(String);

impl From<ParquetError> for Refused {
    fn from(cause: ParquetError) -> Self {
        Self(cause.to_string())
    }
}

impl From<arrow_schema::ArrowError> for Refused {
    fn from(cause: arrow_schema::ArrowError) -> Self {
        Self(cause.to_string())
    }
}
