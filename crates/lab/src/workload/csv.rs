//! CSV files, read row by row: with a header, quotes as in RFC 4180, and any kind of line end.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use csv_core::{ReadRecordResult, Reader, ReaderBuilder};

use crate::workload::cells::Cell;
use crate::workload::read::ReadError;

/// A reader of one CSV file.
pub(crate) struct Csv {
    path: PathBuf,
    text: Box<dyn Read>,
    reader: Reader,
    input: Vec<u8>,
    /// The range of `input` that has not been parsed yet.
    rest: std::ops::Range<usize>,
    at_end: bool,
    output: Vec<u8>,
    ends: Vec<usize>,
    header: Vec<String>,
    row: u64,
}

/// A row: its text, and the positions at which its fields end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CsvRecord<'a> {
    text: &'a str,
    ends: &'a [usize],
}

/// The number of bytes that are read at once.
const INPUT: usize = 256 * 1024;

/// The longest row, in bytes. Without a limit, a quote that is never closed would turn the rest of
/// the file into one row.
const MAX_ROW: usize = 1 << 20;

const MAX_FIELDS: usize = 10_000;

impl Csv {
    /// Opens a file and reads its header.
    pub(crate) fn open(path: &Path, delimiter: u8) -> Result<Self, ReadError> {
        let file = File::open(path).map_err(|cause| ReadError::new(path, cause.to_string()))?;
        Self::new(path, Box::new(file), delimiter)
    }

    /// Reads the header of a text. Messages call it by this path.
    pub(crate) fn new(path: &Path, text: Box<dyn Read>, delimiter: u8) -> Result<Self, ReadError> {
        let mut csv = Self {
            path: path.to_owned(),
            text,
            reader: ReaderBuilder::new().delimiter(delimiter).build(),
            input: vec![0; INPUT],
            rest: 0..0,
            at_end: false,
            output: vec![0; 1024],
            ends: vec![0; MAX_FIELDS],
            header: Vec::new(),
            row: 0,
        };
        let Some((_, fields)) = csv.parse()? else {
            return Err(ReadError::new(path, "the file is empty"));
        };
        let ends = &csv.ends[..fields];
        let begins = std::iter::once(0).chain(ends.iter().copied());
        let names = begins.zip(ends).map(|(begin, end)| {
            let name = std::str::from_utf8(&csv.output[begin..*end]);
            name.map(str::to_owned)
        });
        let header: Result<Vec<String>, _> = names.collect();
        csv.header = header.map_err(|_| ReadError::new(path, "the header is not valid UTF-8"))?;
        // Room for one more field, to detect rows that have too many.
        csv.ends.truncate(fields + 1);
        Ok(csv)
    }

    /// The names of the columns.
    pub(crate) fn header(&self) -> &[String] {
        &self.header
    }

    /// The number of the row that was read last, counted from 1.
    pub(crate) fn row(&self) -> u64 {
        self.row
    }

    /// The next row.
    pub(crate) fn next(&mut self) -> Result<Option<CsvRecord<'_>>, ReadError> {
        self.row += 1;
        let Some((length, fields)) = self.parse()? else {
            return Ok(None);
        };
        if fields != self.header.len() {
            return Err(self.ragged(fields));
        }
        let ends = &self.ends[..fields];
        match std::str::from_utf8(&self.output[..length]) {
            Ok(text) => Ok(Some(CsvRecord { text, ends })),
            Err(_) => Err(self.no_text(length)),
        }
    }

    /// An error in the row that was read last.
    pub(crate) fn error(&self, column: Option<&str>, what: &str) -> ReadError {
        match self.row {
            0 => ReadError::new(&self.path, format!("header: {what}")),
            row => ReadError::at(&self.path, column, row, what),
        }
    }

    fn ragged(&self, fields: usize) -> ReadError {
        let expected = self.header.len();
        let found = match fields > expected {
            true => format!("more than {expected}"),
            false => format!("{fields}"),
        };
        self.error(
            None,
            &format!("found {found} fields; the header has {expected}"),
        )
    }

    fn no_text(&self, length: usize) -> ReadError {
        let mut begin = 0;
        for (end, column) in self.ends.iter().zip(&self.header) {
            let field = self.output[..length].get(begin..*end);
            if field.is_none_or(|field| std::str::from_utf8(field).is_err()) {
                return self.error(Some(column), "the text is not valid UTF-8");
            }
            begin = *end;
        }
        self.error(None, "the text is not valid UTF-8")
    }

    /// Parses a row into `output` and `ends`. Returns its length in bytes and its number of fields.
    fn parse(&mut self) -> Result<Option<(usize, usize)>, ReadError> {
        let (mut length, mut fields) = (0, 0);
        loop {
            if self.rest.is_empty() && !self.refill()? {
                // `refill` appends a line end, which ends the last row unless a quote is open.
                return match (length, fields) {
                    (0, 0) => Ok(None),
                    _ => Err(self.error(None, "a quote is not closed")),
                };
            }
            let (result, read, written, ended) = self.reader.read_record(
                &self.input[self.rest.clone()],
                &mut self.output[length..],
                &mut self.ends[fields..],
            );
            self.rest.start += read;
            length += written;
            fields += ended;
            match result {
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::Record => return Ok(Some((length, fields))),
                ReadRecordResult::End => return Ok(None),
                ReadRecordResult::OutputFull if self.output.len() >= MAX_ROW => {
                    let what = format!(
                        "the row is longer than {MAX_ROW} bytes; check for a quote that is not \
                         closed"
                    );
                    return Err(self.error(None, &what));
                }
                ReadRecordResult::OutputFull => self.output.resize(2 * self.output.len(), 0),
                ReadRecordResult::OutputEndsFull if self.header.is_empty() => {
                    let what = format!("the header has more than {MAX_FIELDS} columns");
                    return Err(ReadError::new(&self.path, what));
                }
                ReadRecordResult::OutputEndsFull => return Err(self.ragged(fields)),
            }
        }
    }

    /// Reads the next bytes of the file. After the end of the file it supplies one more line end,
    /// and then returns false.
    fn refill(&mut self) -> Result<bool, ReadError> {
        if self.at_end {
            return Ok(false);
        }
        let read = loop {
            match self.text.read(&mut self.input) {
                Err(cause) if cause.kind() == std::io::ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        let mut read = read.map_err(|cause| ReadError::new(&self.path, cause.to_string()))?;
        if read == 0 {
            self.at_end = true;
            self.input[0] = b'\n';
            read = 1;
        }
        self.rest = 0..read;
        Ok(true)
    }
}

impl<'a> CsvRecord<'a> {
    /// A field. None if it begins or ends inside a character.
    pub(crate) fn cell(&self, column: usize) -> Option<Cell<'a>> {
        let begin = match column {
            0 => 0,
            column => self.ends[column - 1],
        };
        self.text.get(begin..self.ends[column]).map(Cell::of_text)
    }
}
