//! Rows in any order are gathered into the events of devices: in memory if there are few, on disk
//! otherwise.
//!
//! Rows that do not fit into memory are partitioned by a hash of the device into temporary files.
//! Each partition is then read, grouped by device, and written as parts of the workload. The number
//! of partitions, and with it the order of devices, depends only on the input and the options.

use std::path::PathBuf;
use std::sync::Arc;

use arrow_array::builder::StringBuilder;
use arrow_array::cast::AsArray as _;
use arrow_array::types::{UInt16Type, UInt32Type};
use arrow_array::{ArrayRef, UInt16Array, UInt32Array};

use crate::workload::disk::{Section, TempFile};
use crate::workload::hash::{FastMap, FastSet, hash, wide_hash};
use crate::workload::read::ReadError;
use crate::workload::understanding::OutOfOrder;
use crate::workload::{EventKind, Part, Workload, WorkloadEvent};

/// A row of a table, with its cells parsed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TableRow<'a> {
    pub(crate) device: &'a str,
    pub(crate) minute: u32,
    pub(crate) epoch: u16,
    pub(crate) conversion_site: &'a str,
    pub(crate) kind: RowKind<'a>,
    /// Its place among the events of one minute. None if the table does not give one: then the
    /// number of the row decides.
    pub(crate) order: Option<u32>,
}

/// An [`EventKind`] that has the names of sites instead of their numbers.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RowKind<'a> {
    Impression {
        site: &'a str,
        bucket: u16,
    },
    Conversion {
        value: u32,
        came_from: Option<&'a str>,
    },
}

/// The reason why a row is refused.
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

/// Options for gathering rows.
#[derive(Debug, Clone)]
pub(crate) struct GatherOptions {
    /// True if the rows of each device are together, in the order of time.
    pub(crate) sorted: bool,
    /// The most rows that are kept in memory.
    pub(crate) memory_rows: usize,
    /// The folder on whose disk temporary files are created.
    pub(crate) temporary: Option<PathBuf>,
    /// The approximate number of rows to come.
    pub(crate) expected_rows: u64,
    /// The least number of rows to come.
    pub(crate) least_rows: u64,
}

/// The rows that were taken so far, and that become a workload.
pub(crate) struct Gather {
    options: GatherOptions,
    conversion_sites: Names,
    impression_sites: Names,
    rows: u32,
    /// The number of the first row of each file.
    files: Vec<u32>,
    /// True if the table gives the places of some rows. Then their order in the file says nothing.
    ordered: bool,
    to: To,
}

/// The place where rows are put.
enum To {
    Memory {
        devices: Names,
        held: Vec<PackedEvent>,
    },
    Partitions(Partitions),
    Parts(Box<PartWriter>),
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
            files: Vec::new(),
            ordered: false,
            to,
        }
    }

    /// The rows from here on are those of another file.
    pub(crate) fn begin_file(&mut self) {
        self.files.push(self.rows);
    }

    /// Takes a row.
    pub(crate) fn push(&mut self, row: &TableRow<'_>) -> Result<(), Refusal> {
        if self.rows == u32::MAX {
            let what = format!("there are too many rows; at most {} can be read", u32::MAX);
            return Err(Refusal::Row(what));
        }
        let (kind, came_from) = self.kind(row.kind)?.pack();
        let held = PackedEvent {
            device: 0,
            minute: row.minute,
            epoch: row.epoch,
            conversion_site: self.conversion_sites.number(row.conversion_site),
            kind,
            came_from,
            row: row.order.unwrap_or(self.rows),
        };
        self.rows += 1;
        self.ordered |= row.order.is_some();
        let memory_rows = self.options.memory_rows as u64;
        if u64::from(self.rows).max(self.options.least_rows) > memory_rows {
            self.leave_memory().map_err(Refusal::Disk)?;
        }
        match &mut self.to {
            To::Memory {
                devices,
                held: rows,
            } => rows.push(PackedEvent {
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
        self.finish_counted().map(|(workload, _)| workload)
    }

    /// The same, with the numbers of devices and rows that go back in time.
    pub(crate) fn finish_counted(self) -> Result<(Workload, OutOfOrder), ReadError> {
        let mut order = FileOrder {
            files: if self.ordered { Vec::new() } else { self.files },
            found: OutOfOrder::default(),
        };
        let mut workload = match self.to {
            To::Memory { devices, held } => {
                let count = devices.len();
                drop(devices);
                let mut workload = Workload::default();
                group(&held, count, |events| {
                    order.check(events);
                    workload.push_device(events);
                    Ok(())
                })?;
                workload
            }
            To::Partitions(partitions) => partitions.finish(&self.options, &mut order)?,
            To::Parts(parts) => parts.finish(&self.options)?,
        };
        workload.conversion_site_names = self.conversion_sites.into_names();
        workload.impression_site_names = self.impression_sites.into_names();
        Ok((workload, order.found))
    }

    fn kind(&mut self, kind: RowKind<'_>) -> Result<EventKind, Refusal> {
        match kind {
            RowKind::Conversion { value, came_from } => Ok(EventKind::Conversion {
                value,
                came_from: came_from
                    .map(|site| self.impression_site(site))
                    .transpose()?,
            }),
            RowKind::Impression { site, bucket } => Ok(EventKind::Impression {
                site: self.impression_site(site)?,
                bucket,
            }),
        }
    }

    fn impression_site(&mut self, name: &str) -> Result<u32, Refusal> {
        let site = self.impression_sites.number(name);
        if site >= EventKind::MAX_SITES {
            let what = format!(
                "there are more than {} impression sites",
                EventKind::MAX_SITES
            );
            return Err(Refusal::Column(Field::ImpressionSite, what));
        }
        Ok(site)
    }

    /// Moves the rows from memory into partitions, unless that was done or the table is sorted.
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

/// Looks for rows of a device that are earlier than the one before them in the same file.
struct FileOrder {
    /// The number of the first row of each file. Empty if rows say nothing about the order.
    files: Vec<u32>,
    found: OutOfOrder,
}

impl FileOrder {
    /// Checks the events of a device, in the order of rows.
    fn check(&mut self, events: &[WorkloadEvent]) {
        if self.files.is_empty() {
            return;
        }
        let file = |row: u32| self.files.partition_point(|begin| *begin <= row);
        let back = |pair: &&[WorkloadEvent]| {
            pair[1].minute < pair[0].minute && file(pair[0].row) == file(pair[1].row)
        };
        let rows = events.windows(2).filter(back).count() as u64;
        self.found.rows += rows;
        self.found.devices += u64::from(rows > 0);
    }
}

/// Names, numbered in the order in which they first occur.
#[derive(Debug, Default)]
struct Names {
    known: FastMap<Box<str>, u32>,
    /// The name that was asked for last. The next one is often the same.
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

/// A [`WorkloadEvent`] of a device, packed.
#[derive(Debug, Clone, Copy)]
struct PackedEvent {
    device: u32,
    minute: u32,
    conversion_site: u32,
    kind: u32,
    came_from: u32,
    row: u32,
    epoch: u16,
}

impl PackedEvent {
    fn event(&self) -> WorkloadEvent {
        WorkloadEvent {
            minute: self.minute,
            epoch: self.epoch,
            conversion_site: self.conversion_site,
            kind: EventKind::unpack(self.kind, self.came_from),
            row: self.row,
        }
    }
}

/// Calls `each` with the events of each device, in the order of the devices' numbers.
#[expect(
    clippy::cast_possible_truncation,
    reason = "fewer than four billion rows"
)]
fn group(
    held: &[PackedEvent],
    devices: usize,
    mut each: impl FnMut(&mut [WorkloadEvent]) -> Result<(), ReadError>,
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

/// The approximate limit on the rows of a partition.
const ROWS_OF_PARTITION: usize = 1 << 20;

const MAX_PARTITIONS: u64 = 4096;

/// The number of rows that wait in memory to be written, over all partitions.
const WAITING_ROWS: usize = 1 << 20;

/// The most temporary files that partitions share. There are few, because all of them stay open.
/// There is more than one, because the space of a file is freed only after its last partition was
/// read.
const MAX_FILES: usize = 32;

/// Rows on disk, by a hash of their device.
struct Partitions {
    /// The temporary files. Each holds the rows of neighbouring partitions.
    files: Vec<TempFile>,
    /// The sections that were written of each partition.
    sections: Vec<Vec<Section>>,
    waiting: Vec<PartitionBuffer>,
    /// The number of waiting rows at which a partition is written.
    enough: usize,
}

/// Rows of a partition that are not written yet.
#[derive(Default)]
struct PartitionBuffer {
    devices: StringBuilder,
    minutes: Vec<u32>,
    epochs: Vec<u16>,
    conversion_sites: Vec<u32>,
    kinds: Vec<u32>,
    came_from: Vec<u32>,
    rows: Vec<u32>,
}

/// The number of bytes of device names at which a partition is written: far fewer than a batch can
/// have.
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
            waiting: std::iter::repeat_with(PartitionBuffer::default)
                .take(count)
                .collect(),
            enough: (WAITING_ROWS / count).clamp(1024, 1 << 16),
        })
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "below the number of partitions"
    )]
    fn push(&mut self, device: &str, row: &PackedEvent) -> Result<(), ReadError> {
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

    fn finish(
        mut self,
        options: &GatherOptions,
        order: &mut FileOrder,
    ) -> Result<Workload, ReadError> {
        for number in 0..self.waiting.len() {
            if !self.waiting[number].rows.is_empty() {
                self.write(number)?;
            }
        }
        // From here on, each file is kept only by its sections, and freed when the last of them was
        // read.
        drop(self.files);
        let mut parts = PartWriter::default();
        for sections in self.sections {
            let (held, devices) = read_partition(sections)?;
            group(&held, devices, |events| {
                order.check(events);
                parts.push_device(events, false, options)
            })?;
        }
        parts.finish(options)
    }
}

impl PartitionBuffer {
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

/// The rows of a partition, and the number of their devices.
fn read_partition(sections: Vec<Section>) -> Result<(Vec<PackedEvent>, usize), ReadError> {
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
            held.push(PackedEvent {
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

/// The number of events at which a part on disk is complete. A part has whole devices, so it may
/// have more events.
const EVENTS_OF_PART: usize = 1 << 18;

/// Builds a workload from devices that come one after the other.
#[derive(Default)]
struct PartWriter {
    workload: Workload,
    /// The part that is written to disk next.
    part: Part,
    device: String,
    events: Vec<WorkloadEvent>,
    /// Every device so far, by a hash that is practically unique.
    seen: FastSet<u128>,
}

impl PartWriter {
    /// Takes a row of a sorted table.
    fn push(
        &mut self,
        device: &str,
        event: WorkloadEvent,
        options: &GatherOptions,
    ) -> Result<(), Refusal> {
        if self.events.is_empty() || self.device != device {
            if !self.seen.insert(wide_hash(device)) {
                let what = "the rows of this device are not together, as --sorted requires";
                return Err(Refusal::Column(Field::Device, what.to_owned()));
            }
            self.end_device(options).map_err(Refusal::Disk)?;
            device.clone_into(&mut self.device);
        }
        if let Some(last) = self.events.last()
            && last.minute > event.minute
        {
            let (minute, before) = (event.minute, last.minute);
            let what = format!(
                "minute {minute} follows minute {before} of the same device; --sorted requires rows \
                 in order of time"
            );
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
        events: &mut [WorkloadEvent],
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
