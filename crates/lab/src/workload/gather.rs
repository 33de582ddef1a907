//! Rows in any order become the events of devices: in memory as long as there are few, on disk else.
//!
//! Rows that do not fit are partitioned by a hash of the device into temporary files. Each partition
//! is then read, grouped by device, and written as parts of the workload. How many partitions there
//! are, and with it the order of devices, follows from the input and the options alone.

use std::path::PathBuf;
use std::sync::Arc;

use arrow_array::builder::StringBuilder;
use arrow_array::cast::AsArray as _;
use arrow_array::types::{UInt16Type, UInt32Type};
use arrow_array::{ArrayRef, UInt16Array, UInt32Array};

use crate::workload::disk::{Section, TempFile};
use crate::workload::hash::{FixedMap, FixedSet, hash, wide_hash};
use crate::workload::read::ReadError;
use crate::workload::{Event, Kind, Part, Workload};

/// A row of a table, understood.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row<'a> {
    pub(crate) device: &'a str,
    pub(crate) minute: u32,
    pub(crate) epoch: u16,
    pub(crate) conversion_site: &'a str,
    pub(crate) kind: RowKind<'a>,
    /// Its place among the events of one minute; that in the source if there is none.
    pub(crate) order: Option<u32>,
}

/// A [`Kind`] whose site has its name.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RowKind<'a> {
    Impression {
        site: &'a str,
        bucket: u8,
    },
    Conversion {
        value: u32,
        came_from: Option<&'a str>,
    },
}

/// Why a row cannot be taken.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// Something is wrong in a column.
    Column(Field, String),
    /// Something is wrong with the row.
    Row(String),
    /// A temporary file cannot be written.
    Disk(ReadError),
}

/// A column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Field {
    Device,
    Time,
    ConversionSite,
    ImpressionSite,
    Bucket,
    Kind,
    Value,
    Order,
}

/// How rows are gathered.
#[derive(Debug, Clone)]
pub(crate) struct GatherOptions {
    /// Whether the rows of a device come together, in the order of time.
    pub(crate) sorted: bool,
    /// How many rows are kept in memory.
    pub(crate) memory_rows: usize,
    /// The folder on whose disk temporary files are.
    pub(crate) temporary: Option<PathBuf>,
    /// How many rows there will be, roughly.
    pub(crate) expected_rows: u64,
    /// How many there will be at least.
    pub(crate) least_rows: u64,
}

/// Rows that become a workload.
pub(crate) struct Gather {
    options: GatherOptions,
    conversion_sites: Names,
    impression_sites: Names,
    rows: u32,
    to: To,
}

/// Where rows go.
enum To {
    Memory { devices: Names, held: Vec<Held> },
    Partitions(Partitions),
    Parts(Box<Parts>),
}

impl Gather {
    pub(crate) fn new(options: GatherOptions) -> Self {
        let to = match options.sorted {
            true => To::Parts(Box::default()),
            false => To::Memory {
                devices: Names::default(),
                held: Vec::new(),
            },
        };
        Self {
            options,
            conversion_sites: Names::default(),
            impression_sites: Names::default(),
            rows: 0,
            to,
        }
    }

    /// Takes a row.
    pub(crate) fn push(&mut self, row: &Row<'_>) -> Result<(), Refusal> {
        if self.rows == u32::MAX {
            let what = format!("with it there are more than {} rows", u32::MAX);
            return Err(Refusal::Row(what));
        }
        let (kind, came_from) = self.kind(row.kind)?.pack();
        let held = Held {
            device: 0,
            minute: row.minute,
            epoch: row.epoch,
            conversion_site: self.conversion_sites.number(row.conversion_site),
            kind,
            came_from,
            row: row.order.unwrap_or(self.rows),
        };
        self.rows += 1;
        let memory_rows = self.options.memory_rows as u64;
        if u64::from(self.rows).max(self.options.least_rows) > memory_rows {
            self.leave_memory().map_err(Refusal::Disk)?;
        }
        match &mut self.to {
            To::Memory {
                devices,
                held: rows,
            } => rows.push(Held {
                device: devices.number(row.device),
                ..held
            }),
            To::Partitions(partitions) => {
                let pushed = partitions.push(row.device, &held);
                pushed.map_err(Refusal::Disk)?;
            }
            To::Parts(parts) => parts.push(row.device, held.event(), &self.options)?,
        }
        Ok(())
    }

    /// The events of all rows, by device.
    pub(crate) fn finish(self) -> Result<Workload, ReadError> {
        let mut workload = match self.to {
            To::Memory { devices, held } => {
                let count = devices.len();
                drop(devices);
                let mut workload = Workload::default();
                group(&held, count, |events| {
                    workload.push_device(events);
                    Ok(())
                })?;
                workload
            }
            To::Partitions(partitions) => partitions.finish(&self.options)?,
            To::Parts(parts) => parts.finish(&self.options)?,
        };
        workload.conversion_site_names = self.conversion_sites.into_names();
        workload.impression_site_names = self.impression_sites.into_names();
        Ok(workload)
    }

    fn kind(&mut self, kind: RowKind<'_>) -> Result<Kind, Refusal> {
        match kind {
            RowKind::Conversion { value, came_from } => Ok(Kind::Conversion {
                value,
                came_from: came_from
                    .map(|site| self.impression_site(site))
                    .transpose()?,
            }),
            RowKind::Impression { site, bucket } => Ok(Kind::Impression {
                site: self.impression_site(site)?,
                bucket,
            }),
        }
    }

    fn impression_site(&mut self, name: &str) -> Result<u32, Refusal> {
        let site = self.impression_sites.number(name);
        if site >= Kind::MAX_SITES {
            let what = format!("it is one of more than {} sites", Kind::MAX_SITES);
            return Err(Refusal::Column(Field::ImpressionSite, what));
        }
        Ok(site)
    }

    /// Partitions what is in memory, if it is to be partitioned.
    fn leave_memory(&mut self) -> Result<(), ReadError> {
        let To::Memory { devices, held } = &mut self.to else {
            return Ok(());
        };
        let mut partitions = Partitions::new(&self.options)?;
        let (devices, held) = (std::mem::take(devices), std::mem::take(held));
        let names = devices.by_number();
        for row in &held {
            partitions.push(names[row.device as usize], row)?;
        }
        self.to = To::Partitions(partitions);
        Ok(())
    }
}

/// Names, numbered in the order in which they come.
#[derive(Debug, Default)]
struct Names {
    known: FixedMap<Box<str>, u32>,
    /// The last one: the next is often the same.
    last: String,
    last_number: u32,
}

impl Names {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a row has one, and there are fewer than four billion rows"
    )]
    fn number(&mut self, name: &str) -> u32 {
        if name == self.last && !self.known.is_empty() {
            return self.last_number;
        }
        let next = self.known.len() as u32;
        let number = match self.known.get(name) {
            Some(number) => *number,
            None => *self.known.entry(name.into()).or_insert(next),
        };
        name.clone_into(&mut self.last);
        self.last_number = number;
        number
    }

    fn len(&self) -> usize {
        self.known.len()
    }

    fn by_number(&self) -> Vec<&str> {
        let mut names = vec![""; self.known.len()];
        for (name, number) in &self.known {
            names[*number as usize] = name;
        }
        names
    }

    fn into_names(self) -> Vec<String> {
        let mut names = vec![String::new(); self.known.len()];
        for (name, number) in self.known {
            names[number as usize] = name.into();
        }
        names
    }
}

/// An [`Event`] of a device, packed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Held {
    device: u32,
    minute: u32,
    conversion_site: u32,
    kind: u32,
    came_from: u32,
    row: u32,
    epoch: u16,
}

impl Held {
    pub(crate) fn new(device: u32, event: &Event) -> Self {
        let (kind, came_from) = event.kind.pack();
        Self {
            device,
            minute: event.minute,
            conversion_site: event.conversion_site,
            kind,
            came_from,
            row: event.row,
            epoch: event.epoch,
        }
    }

    fn event(&self) -> Event {
        Event {
            minute: self.minute,
            epoch: self.epoch,
            conversion_site: self.conversion_site,
            kind: Kind::unpack(self.kind, self.came_from),
            row: self.row,
        }
    }
}

/// Gives the events of each device, in the order of devices.
#[expect(
    clippy::cast_possible_truncation,
    reason = "fewer than four billion rows"
)]
pub(crate) fn group(
    held: &[Held],
    devices: usize,
    mut each: impl FnMut(&mut [Event]) -> Result<(), ReadError>,
) -> Result<(), ReadError> {
    let mut begins = vec![0_u32; devices + 1];
    for row in held {
        begins[row.device as usize + 1] += 1;
    }
    for device in 0..devices {
        begins[device + 1] += begins[device];
    }
    let mut next = begins.clone();
    let mut by_device = vec![0_u32; held.len()];
    for (at, row) in held.iter().enumerate() {
        let place = &mut next[row.device as usize];
        by_device[*place as usize] = at as u32;
        *place += 1;
    }
    let mut events = Vec::new();
    for ends in begins.windows(2) {
        events.clear();
        let rows = &by_device[ends[0] as usize..ends[1] as usize];
        events.extend(rows.iter().map(|at| held[*at as usize].event()));
        each(&mut events)?;
    }
    Ok(())
}

/// How many rows a partition has at most, roughly.
const ROWS_OF_PARTITION: usize = 1 << 20;

const MAX_PARTITIONS: u64 = 4096;

/// How many rows wait in memory to be written, over all partitions.
const WAITING_ROWS: usize = 1 << 20;

/// How many temporary files partitions share at most: few, as all stay open, and not one, as the space
/// of a file is free again only after the last of its partitions.
const MAX_FILES: usize = 32;

/// Rows on disk, by a hash of their device.
struct Partitions {
    /// Each has the rows of neighbouring partitions.
    files: Vec<TempFile>,
    /// What is written of each partition.
    sections: Vec<Vec<Section>>,
    waiting: Vec<Waiting>,
    /// How many rows of a partition wait.
    enough: usize,
}

/// Rows of a partition that are not written yet.
#[derive(Default)]
struct Waiting {
    devices: StringBuilder,
    minutes: Vec<u32>,
    epochs: Vec<u16>,
    conversion_sites: Vec<u32>,
    kinds: Vec<u32>,
    came_from: Vec<u32>,
    rows: Vec<u32>,
}

/// How many bytes of names a partition waits with: far fewer than a batch can have.
const ENOUGH_BYTES: usize = 1 << 24;

impl Partitions {
    fn new(options: &GatherOptions) -> Result<Self, ReadError> {
        let size = options.memory_rows.clamp(1, ROWS_OF_PARTITION);
        let count = options.expected_rows.div_ceil(size as u64);
        let count = usize::try_from(count.clamp(1, MAX_PARTITIONS)).unwrap_or(1);
        let temporary = options.temporary.as_deref();
        let files = (0..count.min(MAX_FILES)).map(|_| TempFile::new(temporary));
        Ok(Self {
            files: files.collect::<Result<_, ReadError>>()?,
            sections: std::iter::repeat_with(Vec::new).take(count).collect(),
            waiting: std::iter::repeat_with(Waiting::default)
                .take(count)
                .collect(),
            enough: (WAITING_ROWS / count).clamp(1024, 1 << 16),
        })
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "below the number of partitions"
    )]
    fn push(&mut self, device: &str, row: &Held) -> Result<(), ReadError> {
        let count = self.waiting.len() as u128;
        let number = ((u128::from(hash(device)) * count) >> 64) as usize;
        let waiting = &mut self.waiting[number];
        waiting.devices.append_value(device);
        waiting.minutes.push(row.minute);
        waiting.epochs.push(row.epoch);
        waiting.conversion_sites.push(row.conversion_site);
        waiting.kinds.push(row.kind);
        waiting.came_from.push(row.came_from);
        waiting.rows.push(row.row);
        let bytes = waiting.devices.values_slice().len();
        if waiting.rows.len() >= self.enough || bytes >= ENOUGH_BYTES {
            self.write(number)?;
        }
        Ok(())
    }

    /// Writes the waiting rows of a partition.
    fn write(&mut self, number: usize) -> Result<(), ReadError> {
        let file = number * self.files.len() / self.waiting.len();
        let waiting = std::mem::take(&mut self.waiting[number]);
        let section = self.files[file].append(waiting.columns())?;
        self.sections[number].push(section);
        Ok(())
    }

    fn finish(mut self, options: &GatherOptions) -> Result<Workload, ReadError> {
        for number in 0..self.waiting.len() {
            if !self.waiting[number].rows.is_empty() {
                self.write(number)?;
            }
        }
        // From here on a file lasts until its last partition is read.
        drop(self.files);
        let mut parts = Parts::default();
        for sections in self.sections {
            let (held, devices) = read_partition(sections)?;
            group(&held, devices, |events| {
                parts.push_device(events, false, options)
            })?;
        }
        parts.finish(options)
    }
}

impl Waiting {
    fn columns(mut self) -> [(&'static str, ArrayRef); 7] {
        let numbers = |values| Arc::new(UInt32Array::from(values)) as ArrayRef;
        [
            ("device", Arc::new(self.devices.finish()) as ArrayRef),
            ("minute", numbers(self.minutes)),
            (
                "epoch",
                Arc::new(UInt16Array::from(self.epochs)) as ArrayRef,
            ),
            ("conversion_site", numbers(self.conversion_sites)),
            ("kind", numbers(self.kinds)),
            ("came_from", numbers(self.came_from)),
            ("row", numbers(self.rows)),
        ]
    }
}

/// The rows of a partition, and how many devices they are of.
fn read_partition(sections: Vec<Section>) -> Result<(Vec<Held>, usize), ReadError> {
    let mut devices = Names::default();
    let mut held = Vec::new();
    for section in sections {
        let batch = section.read()?;
        let names = batch.column(0).as_string::<i32>();
        let numbers = |column: usize| batch.column(column).as_primitive::<UInt32Type>().values();
        let epochs = batch.column(2).as_primitive::<UInt16Type>().values();
        let (minutes, sites) = (numbers(1), numbers(3));
        let (kinds, came_from, rows) = (numbers(4), numbers(5), numbers(6));
        held.reserve(batch.num_rows());
        for at in 0..batch.num_rows() {
            held.push(Held {
                device: devices.number(names.value(at)),
                minute: minutes[at],
                epoch: epochs[at],
                conversion_site: sites[at],
                kind: kinds[at],
                came_from: came_from[at],
                row: rows[at],
            });
        }
    }
    Ok((held, devices.len()))
}

/// How many events a part on disk has, and whole devices.
const EVENTS_OF_PART: usize = 1 << 18;

/// Devices that come one after the other.
#[derive(Default)]
struct Parts {
    workload: Workload,
    /// What goes to disk next.
    part: Part,
    device: String,
    events: Vec<Event>,
    /// Every device so far, by a hash that is as good as its name.
    seen: FixedSet<u128>,
}

impl Parts {
    /// Takes a row of a sorted table.
    fn push(&mut self, device: &str, event: Event, options: &GatherOptions) -> Result<(), Refusal> {
        if self.events.is_empty() || self.device != device {
            if !self.seen.insert(wide_hash(device)) {
                let what = "it has rows before, and another device in between";
                return Err(Refusal::Column(Field::Device, what.to_owned()));
            }
            self.end_device(options).map_err(Refusal::Disk)?;
            device.clone_into(&mut self.device);
        }
        if let Some(last) = self.events.last()
            && last.minute > event.minute
        {
            let (minute, before) = (event.minute, last.minute);
            let what = format!("it is minute {minute}, after minute {before} of the same device");
            return Err(Refusal::Column(Field::Time, what));
        }
        self.events.push(event);
        Ok(())
    }

    fn end_device(&mut self, options: &GatherOptions) -> Result<(), ReadError> {
        if self.events.is_empty() {
            return Ok(());
        }
        let mut events = std::mem::take(&mut self.events);
        let fits = self.workload.len() + self.part.len() + events.len() <= options.memory_rows;
        self.push_device(&mut events, fits, options)?;
        events.clear();
        self.events = events;
        Ok(())
    }

    fn push_device(
        &mut self,
        events: &mut [Event],
        in_memory: bool,
        options: &GatherOptions,
    ) -> Result<(), ReadError> {
        if in_memory {
            self.workload.push_device(events);
            return Ok(());
        }
        self.part.push_device(events);
        if self.part.len() >= EVENTS_OF_PART.min(options.memory_rows.max(1)) {
            self.end_part(options)?;
        }
        Ok(())
    }

    fn end_part(&mut self, options: &GatherOptions) -> Result<(), ReadError> {
        let part = std::mem::take(&mut self.part);
        let temporary = options.temporary.as_deref();
        self.workload.push_part_on_disk(part, temporary)
    }

    fn finish(mut self, options: &GatherOptions) -> Result<Workload, ReadError> {
        self.end_device(options)?;
        if !self.part.is_empty() {
            self.end_part(options)?;
        }
        Ok(self.workload)
    }
}
