//! Writing of rows, as CSV, JSON lines or Parquet.

use std::fmt;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use serde_json::Value;

use super::{ExplainError, ExplainedReport};

/// The format of a file of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowFormat {
    /// A table with a header.
    Csv,
    /// One JSON object per line.
    JsonLines,
    /// Columns.
    Parquet,
}

impl RowFormat {
    /// The format of a file with this name, by its extension.
    pub fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "csv" => Some(Self::Csv),
            "jsonl" | "ndjson" => Some(Self::JsonLines),
            "parquet" => Some(Self::Parquet),
            _ => None,
        }
    }
}

/// A file to which rows are written.
pub struct RowWriter {
    path: PathBuf,
    to: RowTarget,
}

impl fmt::Debug for RowWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RowWriter").field(&self.path).finish()
    }
}

enum RowTarget {
    Csv(Box<csv::Writer<File>>),
    JsonLines(BufWriter<File>),
    Parquet(Box<ColumnWriter>),
}

impl RowWriter {
    /// Creates the file.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn create(path: &Path, format: RowFormat) -> Result<Self, ExplainError> {
        let file = File::create(path).map_err(|cause| failed(path, &cause))?;
        let to = match format {
            RowFormat::Csv => RowTarget::Csv(Box::new(csv::Writer::from_writer(file))),
            RowFormat::JsonLines => RowTarget::JsonLines(BufWriter::new(file)),
            RowFormat::Parquet => RowTarget::Parquet(Box::new(ColumnWriter {
                file: Some(file),
                waiting: Vec::new(),
                writer: None,
            })),
        };
        Ok(Self {
            path: path.to_owned(),
            to,
        })
    }

    /// Writes a row.
    pub(super) fn push(&mut self, row: &ExplainedReport<'_>) -> Result<(), ExplainError> {
        let path = &self.path;
        match &mut self.to {
            RowTarget::Csv(writer) => writer.serialize(row).map_err(|cause| failed(path, &cause)),
            RowTarget::JsonLines(writer) => serde_json::to_writer(&mut *writer, row)
                .map_err(std::io::Error::from)
                .and_then(|()| writer.write_all(b"\n"))
                .map_err(|cause| failed(path, &cause)),
            RowTarget::Parquet(writer) => writer.push(row).map_err(|cause| failed(path, &cause)),
        }
    }

    /// Writes what is left.
    pub(super) fn finish(self) -> Result<(), ExplainError> {
        let path = &self.path;
        match self.to {
            RowTarget::Csv(mut writer) => writer.flush().map_err(|cause| failed(path, &cause)),
            RowTarget::JsonLines(mut writer) => {
                writer.flush().map_err(|cause| failed(path, &cause))
            }
            RowTarget::Parquet(writer) => writer.finish().map_err(|cause| failed(path, &cause)),
        }
    }
}

fn failed(path: &Path, cause: &impl fmt::Display) -> ExplainError {
    ExplainError::Write {
        path: path.display().to_string(),
        cause: cause.to_string(),
    }
}

/// A Parquet file to which rows are written in batches. The names of columns are those of the
/// fields in JSON.
struct ColumnWriter {
    file: Option<File>,
    waiting: Vec<Value>,
    writer: Option<ArrowWriter<File>>,
}

/// The number of rows that are written at once.
const BATCH: usize = 1 << 14;

/// The columns, in the order of the fields, and the kind of each.
const COLUMNS: [(&str, ColumnKind); 19] = [
    ("querier", ColumnKind::Text),
    ("device", ColumnKind::Integer),
    ("minute", ColumnKind::Integer),
    ("order", ColumnKind::Integer),
    ("epoch", ColumnKind::Integer),
    ("value", ColumnKind::Integer),
    ("epsilon", ColumnKind::Number),
    ("outcome", ColumnKind::Text),
    ("bucket", ColumnKind::Integer),
    ("bucketWithoutLimits", ColumnKind::Integer),
    ("lost", ColumnKind::Integer),
    ("cause", ColumnKind::Text),
    ("droppedEpoch", ColumnKind::Integer),
    ("filterSite", ColumnKind::Text),
    ("asked", ColumnKind::Number),
    ("consumed", ColumnKind::Number),
    ("capacity", ColumnKind::Number),
    ("missing", ColumnKind::Number),
    ("largestEpsilon", ColumnKind::Number),
];

#[derive(Clone, Copy)]
enum ColumnKind {
    Text,
    Integer,
    Number,
}

type ParquetResult<T> = Result<T, parquet::errors::ParquetError>;

impl ColumnWriter {
    fn push(&mut self, row: &ExplainedReport<'_>) -> ParquetResult<()> {
        let row = serde_json::to_value(row);
        let row = row.map_err(|cause| parquet::errors::ParquetError::External(cause.into()))?;
        self.waiting.push(row);
        match self.waiting.len() < BATCH {
            true => Ok(()),
            false => self.write(),
        }
    }

    fn write(&mut self) -> ParquetResult<()> {
        let columns = COLUMNS.map(|(name, kind)| {
            let cells = self.waiting.iter().map(|row| &row[name]);
            let column: ArrayRef = match kind {
                ColumnKind::Text => Arc::new(cells.map(Value::as_str).collect::<StringArray>()),
                ColumnKind::Integer => Arc::new(cells.map(Value::as_i64).collect::<Int64Array>()),
                ColumnKind::Number => Arc::new(cells.map(Value::as_f64).collect::<Float64Array>()),
            };
            (name, column, true)
        });
        let batch = RecordBatch::try_from_iter_with_nullable(columns)?;
        self.waiting.clear();
        if let Some(file) = self.file.take() {
            let properties = WriterProperties::builder().set_compression(Compression::SNAPPY);
            let writer = ArrowWriter::try_new(file, batch.schema(), Some(properties.build()))?;
            self.writer = Some(writer);
        }
        match &mut self.writer {
            Some(writer) => writer.write(&batch),
            None => Ok(()),
        }
    }

    fn finish(mut self) -> ParquetResult<()> {
        self.write()?;
        if let Some(writer) = self.writer {
            writer.close()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluation::explanation::ReportOutcome;

    /// The columns of a Parquet file are the fields of a row, in their order, and of their kind.
    #[test]
    fn columns_are_fields() {
        let row = ExplainedReport {
            querier: "shop.example",
            device: 1,
            minute: 2,
            order: 3,
            epoch: 4,
            value: 5,
            epsilon: 0.5,
            outcome: ReportOutcome::Moved,
            bucket: Some(1),
            bucket_without_limits: Some(2),
            lost: 5,
            cause: Some("globalBudget"),
            dropped_epoch: Some(3),
            filter_site: Some("news.example"),
            asked: Some(0.5),
            consumed: Some(0.75),
            capacity: Some(1.5),
            missing: Some(0.25),
            largest_epsilon: Some(0.1),
        };
        let mut csv = csv::Writer::from_writer(Vec::new());
        csv.serialize(row).unwrap();
        let csv = String::from_utf8(csv.into_inner().unwrap()).unwrap();
        let header: Vec<&str> = csv.lines().next().unwrap().split(',').collect();
        assert_eq!(header, COLUMNS.map(|(name, _)| name));
        let json = serde_json::to_value(row).unwrap();
        for (name, kind) in COLUMNS {
            let cell = &json[name];
            let is_kind = match kind {
                ColumnKind::Text => cell.is_string(),
                ColumnKind::Integer => cell.is_i64(),
                ColumnKind::Number => cell.is_f64(),
            };
            assert!(is_kind, "{name}: {cell}");
        }
    }
}
