//! The rows of a file, whatever its format.

use std::cell::Cell as Shared;
use std::rc::Rc;

use crate::workload::cells::{Cell, Holds, ParquetFile};
use crate::workload::columns::{self, Places};
use crate::workload::csv::Csv;
use crate::workload::gather::{Field, Refusal};
use crate::workload::input::{Format, LogFile};
use crate::workload::json::{self, each_object};
use crate::workload::kinds::{KindWords, RowRole};
use crate::workload::options::TableOptions;
use crate::workload::read::{ReadError, ReadProgress};

/// The number of rows of each file that are looked at first.
pub(crate) const SAMPLE: u64 = 1000;

/// A file, and the columns in which it holds what.
#[derive(Debug)]
pub(crate) struct TableFile {
    pub(crate) file: LogFile,
    pub(crate) names: Vec<String>,
    pub(crate) places: Places,
    /// True if its rows are neither impressions nor conversions.
    pub(crate) left_out: bool,
    /// The format, in words.
    pub(crate) format: String,
    /// The number of rows of a Parquet file.
    pub(crate) rows: Option<u64>,
}

impl TableFile {
    pub(crate) fn new(file: LogFile, options: &TableOptions) -> Result<Self, ReadError> {
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

/// Reads the rows of files one after the other, and reports progress.
pub(crate) struct RowReader<'a> {
    progress: &'a mut dyn FnMut(ReadProgress),
    pub(crate) now: ReadProgress,
}

impl<'a> RowReader<'a> {
    pub(crate) fn new(progress: &'a mut dyn FnMut(ReadProgress), bytes_total: u64) -> Self {
        let now = ReadProgress {
            bytes_done: 0,
            bytes_total,
            rows: 0,
        };
        Self { progress, now }
    }

    /// Reports progress.
    pub(crate) fn tell(&mut self) {
        (self.progress)(self.now);
    }

    /// Calls `each` with every row of a file. Rows up to a limit are no progress.
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
}

/// The kind of a row while tables are looked at.
pub(crate) fn kind_of(
    table: &TableFile,
    cells: &[Cell<'_>; 8],
    kinds: &KindWords,
) -> Option<RowRole> {
    match table.has(Field::Kind) {
        true => {
            let mut buffer = String::new();
            let word = cells[Field::Kind as usize].name(&mut buffer).ok()??;
            kinds.known(word)
        }
        false => Some(match cells[Field::ImpressionSite as usize] {
            Cell::Nothing => RowRole::Conversion,
            _ => RowRole::Impression,
        }),
    }
}
