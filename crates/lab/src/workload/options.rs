//! Options for reading tables.

use std::num::NonZeroU32;
use std::path::PathBuf;

use crate::workload::DAY;
use crate::workload::amounts::ValueUnit;
use crate::workload::columns::Columns;
use crate::workload::sites::SiteNames;
use crate::workload::time::{TimeOrigin, TimeUnit};

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
    /// The number of buckets, up to 1,000. The default is the paper's, or fewer if a column has
    /// fewer values.
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
    pub(crate) fn named_columns(&self) -> Columns {
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
