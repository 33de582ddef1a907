//! The files that the paper's artifact prepares: one of impressions and one of conversions. All of
//! their columns hold whole numbers.
//!
//! PreparedReading has three steps, and all threads take part in each of them:
//!
//! 1. Columns are decoded, each on its own, some hundred thousand rows at a time.
//! 2. DecodedRows are packed, and divided by a hash of their user.
//! 3. The rows of a division are sorted by user and time. They become a part of the workload.
//!
//! Neither the divisions nor the numbers of sites depend on the number of threads.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use super::{CONVERSIONS, IMPRESSIONS, bucket};
use crate::threads;
use crate::workload::cells::ParquetFile;
use crate::workload::hash::FastMap;
use crate::workload::read::ReadError;
use crate::workload::whole_numbers::{NumberColumn, NumberError, WholeNumbers};
use crate::workload::{EventKind, Part, Workload};

/// Options for reading prepared files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PreparedOptions {
    /// True if the impression site that a conversion came from is looked up. It is used only for
    /// statistics of the workload, and looking it up takes as long as everything else.
    pub origins: bool,
    /// The number of threads. The result does not depend on it.
    pub threads: usize,
}

impl Default for PreparedOptions {
    fn default() -> Self {
        Self {
            origins: true,
            threads: 1,
        }
    }
}

/// Reads a folder of prepared files.
///
/// # Errors
/// If a file is missing, is not a Parquet file, or has a missing column or a wrong value. The error
/// names the file and the column.
pub fn read_prepared(folder: &Path, options: &PreparedOptions) -> Result<Workload, ReadError> {
    let (impressions, conversions) = (folder.join(IMPRESSIONS), folder.join(CONVERSIONS));
    // The columns that take the longest come first, so that no thread is left with one of them.
    let mut of_conversions = vec![
        ("user_id", ColumnRole::User),
        ("campaign_id", ColumnRole::ConversionSite),
        ("timestamp_min", ColumnRole::Minute),
        ("day_int", ColumnRole::Epoch),
    ];
    let mut of_impressions = vec![("publisher_id", ColumnRole::ImpressionSite)];
    of_impressions.extend(&of_conversions);
    of_impressions.push(("features_ctx_not_constrained_0", ColumnRole::Bucket));
    if options.origins {
        of_impressions.push(("impression_id", ColumnRole::Impression));
        of_conversions.push(("attributed_impression_id", ColumnRole::Impression));
    }
    let shown = ColumnFile::open(&impressions, &of_impressions)?;
    let converted = ColumnFile::open(&conversions, &of_conversions)?;
    let mut reading = PreparedReading {
        threads: options.threads,
        divisions: divisions(shown.rows.saturating_add(converted.rows)),
        conversion_sites: Mutex::default(),
        impression_sites: Mutex::default(),
        shown_on: FastMap::default(),
        chunks: Vec::new(),
    };
    reading.file(&shown, FileKind::Impression)?;
    reading.file(&converted, FileKind::Conversion)?;
    Ok(reading.finish())
}

/// The use of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ColumnRole {
    Minute,
    User,
    Epoch,
    ConversionSite,
    ImpressionSite,
    Bucket,
    /// The id of an impression.
    Impression,
}

/// The kind of all rows of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileKind {
    Impression,
    Conversion,
}

/// A file of which some columns are read, each with a reader of its own.
struct ColumnFile<'a> {
    path: &'a Path,
    rows: u64,
    columns: Vec<(&'a str, ColumnRole, Mutex<NumberColumn>)>,
}

/// The number of rows that are decoded at once.
const ROWS_OF_STEP: usize = 1 << 18;

impl<'a> ColumnFile<'a> {
    fn open(path: &'a Path, columns: &[(&'a str, ColumnRole)]) -> Result<Self, ReadError> {
        let rows = ParquetFile::open(path)?.rows();
        if rows == 0 {
            return Err(ReadError::new(path, "the file has no rows"));
        }
        if rows > u32::MAX.into() {
            let what = format!("the file has more than {} rows", u32::MAX);
            return Err(ReadError::new(path, what));
        }
        let columns = columns.iter().map(|&(name, role)| {
            let reader = NumberColumn::open(ParquetFile::open(path)?, name, ROWS_OF_STEP)?;
            Ok((name, role, Mutex::new(reader)))
        });
        Ok(Self {
            path,
            rows,
            columns: columns.collect::<Result<_, ReadError>>()?,
        })
    }
}

/// A file that is being read.
struct PreparedReading {
    threads: usize,
    divisions: usize,
    conversion_sites: Mutex<SiteNumbers>,
    impression_sites: Mutex<SiteNumbers>,
    /// The impression site of each impression, by the impression's id.
    shown_on: FastMap<u64, u32>,
    chunks: Vec<Chunk>,
}

/// The decoded cells of a column.
enum Cells {
    /// Numbers that are small, or have been made small.
    Small(Vec<u32>),
    /// Ids.
    Ids(WholeNumbers),
}

/// The cells of the columns of some rows.
#[derive(Default)]
struct DecodedRows {
    minutes: Vec<u32>,
    users: WholeNumbers,
    epochs: Vec<u32>,
    conversion_sites: Vec<u32>,
    /// Empty for conversions.
    impression_sites: Vec<u32>,
    /// Empty for conversions.
    buckets: Vec<u32>,
    /// Empty if origins are not looked up.
    impressions: WholeNumbers,
}

impl PreparedReading {
    fn file(&mut self, file: &ColumnFile<'_>, kind: FileKind) -> Result<(), ReadError> {
        let mut first = 0;
        loop {
            let decoded = threads::map(file.columns.len(), self.threads, |number| {
                self.decode(file, number)
            });
            let mut rows = DecodedRows::default();
            let mut errors = Vec::new();
            for ((_, role, _), cells) in file.columns.iter().zip(decoded) {
                match cells {
                    Ok(cells) => rows.take(*role, cells),
                    Err(error) => errors.push(error),
                }
            }
            // The first error of the rows in their order is the one that a person looks for first.
            if let Some(error) = errors.into_iter().min_by_key(ColumnError::row) {
                return Err(error.of(file.path, first));
            }
            let count = rows.minutes.len();
            if count == 0 {
                return Ok(());
            }
            if let FileKind::Impression = kind {
                for (at, site) in rows.impression_sites.iter().enumerate() {
                    // An id that is not a number from 0 on is no impression's.
                    if let Some(id) = rows.impressions.natural(at) {
                        self.shown_on.insert(id, *site);
                    }
                }
            }
            self.pack(&rows, first, kind);
            #[expect(
                clippy::cast_possible_truncation,
                reason = "a file has u32 rows at most"
            )]
            let count = count as u32;
            first += count;
        }
    }

    /// Decodes the next rows of a column. There are none after the last one.
    fn decode(&self, file: &ColumnFile<'_>, number: usize) -> Result<Cells, ColumnError> {
        let (name, role, reader) = &file.columns[number];
        let mut reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
        let error = |row, what| ColumnError {
            name: (*name).to_owned(),
            cause: NumberError::Cell(row, what),
        };
        let numbers = reader.next().map_err(|cause| ColumnError {
            name: (*name).to_owned(),
            cause,
        })?;
        let small = |most: u32| -> Result<Cells, ColumnError> {
            let cells = (0..numbers.len()).map(|at| match numbers.natural(at) {
                Some(number) if number <= most.into() => {
                    #[expect(clippy::cast_possible_truncation, reason = "it was compared")]
                    let number = number as u32;
                    Ok(number)
                }
                _ => Err(error(at, format!("{} is out of range", numbers.get(at)))),
            });
            Ok(Cells::Small(cells.collect::<Result<_, _>>()?))
        };
        let numbered = |sites: &Mutex<SiteNumbers>| {
            let mut sites = sites.lock().unwrap_or_else(PoisonError::into_inner);
            Cells::Small(sites.numbers(&numbers))
        };
        match role {
            ColumnRole::Minute => small(u32::MAX),
            ColumnRole::Epoch => small(u16::MAX.into()),
            ColumnRole::ConversionSite => Ok(numbered(&self.conversion_sites)),
            ColumnRole::ImpressionSite => Ok(numbered(&self.impression_sites)),
            ColumnRole::Bucket => {
                let buckets = (0..numbers.len()).map(|at| bucket(numbers.get(at)).into());
                Ok(Cells::Small(buckets.collect()))
            }
            ColumnRole::User | ColumnRole::Impression => Ok(Cells::Ids(numbers)),
        }
    }

    /// Packs rows, of which the first has this number in its file.
    fn pack(&mut self, rows: &DecodedRows, first: u32, kind: FileKind) {
        let count = rows.minutes.len();
        let (divisions, shown_on) = (self.divisions, &self.shown_on);
        let chunks = threads::map(count.div_ceil(ROWS_OF_CHUNK), self.threads, |number| {
            let begin = number * ROWS_OF_CHUNK;
            let end = count.min(begin + ROWS_OF_CHUNK);
            Chunk::new(rows, begin..end, first, kind, divisions, shown_on)
        });
        self.chunks.extend(chunks);
    }

    fn finish(self) -> Workload {
        let Self {
            threads, chunks, ..
        } = &self;
        let parts = threads::map(self.divisions, *threads, |division| part(chunks, division));
        let mut workload = Workload::default();
        for part in parts.into_iter().filter(|part| !part.is_empty()) {
            workload.push_part(part);
        }
        let names = |sites: Mutex<SiteNumbers>| {
            let sites = sites.into_inner().unwrap_or_else(PoisonError::into_inner);
            sites.names
        };
        workload.conversion_site_names = names(self.conversion_sites);
        workload.impression_site_names = names(self.impression_sites);
        workload
    }
}

impl DecodedRows {
    fn take(&mut self, role: ColumnRole, cells: Cells) {
        match (role, cells) {
            (ColumnRole::User, Cells::Ids(ids)) => self.users = ids,
            (_, Cells::Ids(ids)) => self.impressions = ids,
            (ColumnRole::Minute, Cells::Small(cells)) => self.minutes = cells,
            (ColumnRole::Epoch, Cells::Small(cells)) => self.epochs = cells,
            (ColumnRole::ConversionSite, Cells::Small(cells)) => self.conversion_sites = cells,
            (ColumnRole::ImpressionSite, Cells::Small(cells)) => self.impression_sites = cells,
            (_, Cells::Small(cells)) => self.buckets = cells,
        }
    }
}

/// The reason why a column cannot be decoded.
struct ColumnError {
    name: String,
    cause: NumberError,
}

impl ColumnError {
    /// The row, counted from 0 among the rows that were decoded at once.
    fn row(&self) -> usize {
        match self.cause {
            NumberError::Cell(row, _) => row,
            NumberError::File(_) => 0,
        }
    }

    fn of(self, path: &Path, first: u32) -> ReadError {
        match self.cause {
            NumberError::Cell(row, what) => {
                let row = u64::from(first) + row as u64 + 1;
                ReadError::at(path, Some(&self.name), row, &what)
            }
            NumberError::File(error) => error,
        }
    }
}

/// Sites, numbered in the order in which they first occur.
#[derive(Debug, Default)]
struct SiteNumbers {
    known: FastMap<i64, u32>,
    /// Sites whose id does not fit into an `i64`.
    large: FastMap<i128, u32>,
    names: Vec<String>,
}

impl SiteNumbers {
    fn numbers(&mut self, ids: &WholeNumbers) -> Vec<u32> {
        let Self {
            known,
            large,
            names,
        } = self;
        let mut new = |id: &dyn std::fmt::Display| {
            names.push(id.to_string());
            u32::try_from(names.len() - 1).unwrap_or(u32::MAX)
        };
        match ids.as_i64() {
            Some(ids) => {
                let numbers = ids
                    .iter()
                    .map(|id| *known.entry(*id).or_insert_with(|| new(id)));
                numbers.collect()
            }
            None => (0..ids.len())
                .map(|at| ids.get(at))
                .map(|id| match i64::try_from(id) {
                    Ok(id) => *known.entry(id).or_insert_with(|| new(&id)),
                    Err(_) => *large.entry(id).or_insert_with(|| new(&id)),
                })
                .collect(),
        }
    }
}

/// The approximate number of rows of a division: so few that sorting them stays in the cache.
const ROWS_OF_DIVISION: u64 = 1 << 14;

/// The most divisions.
const MAX_DIVISIONS: u64 = 1 << 12;

fn divisions(rows: u64) -> usize {
    let wanted = rows.div_ceil(ROWS_OF_DIVISION).clamp(1, MAX_DIVISIONS);
    usize::try_from(wanted).unwrap_or(1)
}

/// The number of rows that are packed at once.
const ROWS_OF_CHUNK: usize = 1 << 16;

/// A row of either file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct PackedRow {
    /// DecodedRows are sorted by user, and those of a user by time.
    user: u64,
    /// True if the id of the user is negative, so that no other user has the same.
    negative: bool,
    is_conversion: bool,
    epoch: u16,
    minute: u32,
    row: u32,
    conversion_site: u32,
    /// The two words of a packed [`EventKind`].
    kind: u32,
    detail: u32,
}

/// DecodedRows that are packed, by division.
struct Chunk {
    rows: Vec<PackedRow>,
    /// The place at which each division begins, and the place at which the last one ends.
    begins: Vec<u32>,
}

impl Chunk {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a file has u32 rows at most, and epochs were compared with their limit"
    )]
    fn new(
        from: &DecodedRows,
        range: std::ops::Range<usize>,
        first: u32,
        kind: FileKind,
        divisions: usize,
        shown_on: &FastMap<u64, u32>,
    ) -> Self {
        let mut begins = vec![0_u32; divisions + 1];
        for at in range.clone() {
            begins[division(from.users.word(at), divisions) + 1] += 1;
        }
        for division in 0..divisions {
            begins[division + 1] += begins[division];
        }
        let mut next = begins.clone();
        let mut rows = vec![PackedRow::default(); range.len()];
        for at in range {
            let event = match kind {
                FileKind::Impression => EventKind::Impression {
                    site: from.impression_sites[at],
                    bucket: from.buckets[at] as u16,
                },
                FileKind::Conversion => EventKind::Conversion {
                    value: 1,
                    came_from: match from.impressions.natural(at) {
                        Some(id) => shown_on.get(&id).copied(),
                        None => None,
                    },
                },
            };
            let (word, detail) = event.pack();
            let user = from.users.word(at);
            let place = &mut next[division(user, divisions)];
            rows[*place as usize] = PackedRow {
                user,
                negative: from.users.is_negative(at),
                is_conversion: kind == FileKind::Conversion,
                epoch: from.epochs[at] as u16,
                minute: from.minutes[at],
                row: first + at as u32,
                conversion_site: from.conversion_sites[at],
                kind: word,
                detail,
            };
            *place += 1;
        }
        Self { rows, begins }
    }

    fn of(&self, division: usize) -> &[PackedRow] {
        &self.rows[self.begins[division] as usize..self.begins[division + 1] as usize]
    }
}

/// The division of a user. Neighbouring ids are spread.
#[expect(
    clippy::cast_possible_truncation,
    reason = "below the number of divisions"
)]
fn division(user: u64, divisions: usize) -> usize {
    let hash = user.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((u128::from(hash) * divisions as u128) >> 64) as usize
}

/// The part of the workload with the devices of a division.
#[expect(
    clippy::cast_possible_truncation,
    reason = "files have u32 rows at most"
)]
fn part(chunks: &[Chunk], division: usize) -> Part {
    let count = chunks.iter().map(|chunk| chunk.of(division).len()).sum();
    let mut rows: Vec<PackedRow> = Vec::with_capacity(count);
    for chunk in chunks {
        rows.extend_from_slice(chunk.of(division));
    }
    rows.sort_unstable_by_key(|row| {
        let PackedRow {
            user,
            negative,
            minute,
            is_conversion,
            row,
            ..
        } = *row;
        (user, negative, minute, is_conversion, row)
    });
    let column = |of: fn(&PackedRow) -> u32| rows.iter().map(of).collect();
    let mut part = Part {
        begins: Vec::with_capacity(count / 4),
        minutes: column(|row| row.minute),
        epochs: rows.iter().map(|row| row.epoch).collect(),
        conversion_sites: column(|row| row.conversion_site),
        kinds: column(|row| row.kind),
        came_from: column(|row| row.detail),
        rows: column(|row| row.row),
    };
    let mut last = None;
    for (at, row) in rows.iter().enumerate() {
        let user = Some((row.user, row.negative));
        if user != last {
            part.begins.push(at as u32);
            last = user;
        }
    }
    part.begins.push(count as u32);
    part
}
