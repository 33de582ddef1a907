//! Workloads: what the devices of a population do, stored in columns, by device and time.
//!
//! A workload is read from tables in CSV or Parquet ([`table`]) or from Criteo's files
//! ([`criteo`]), or it is generated ([`synthetic`]). It can be written to files ([`mod@write`]).
//! Parts that do not fit into memory stay on disk.

mod amounts;
mod buckets;
mod cells;
mod columns;
pub mod criteo;
mod csv;
mod disk;
mod gather;
pub(crate) mod hash;
mod input;
mod json;
mod kinds;
mod look;
mod options;
pub mod read;
mod rows;
mod sites;
pub mod synthetic;
pub mod table;
mod time;
pub mod understanding;
mod whole_numbers;
pub mod write;

use std::borrow::Cow;
use std::path::Path;

use disk::{Section, TempFile};
use read::ReadError;

/// The number of buckets of a report in the paper's evaluation.
pub const BUCKETS: u16 = 5;

/// The minutes of a day.
pub const DAY: u32 = 1440;

/// An impression or a conversion on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkloadEvent {
    /// The time, in minutes.
    pub minute: u32,
    /// The epoch it belongs to.
    pub epoch: u16,
    /// The conversion site, by its number among conversion sites: the site that an ad is for, or
    /// that converts.
    pub conversion_site: u32,
    /// The kind of event.
    pub kind: EventKind,
    /// Its place in the source. It decides the order of events that happen in the same minute on
    /// several devices.
    pub row: u32,
}

/// The kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// An ad of the conversion site is shown.
    Impression {
        /// The impression site, by its number among impression sites.
        site: u32,
        /// The bucket that its credit goes to.
        bucket: u16,
    },
    /// Something is bought, or visited.
    Conversion {
        /// The value, from 1 on.
        value: u32,
        /// The number of the impression site that the conversion is known to come from. It is used
        /// only for statistics: the device decides which impression gets the credit.
        came_from: Option<u32>,
    },
}

impl EventKind {
    /// The most impression sites that a workload can have.
    pub const MAX_SITES: u32 = CONVERSION - 1;

    /// The largest value of a conversion.
    pub const MAX_VALUE: u32 = CONVERSION - 1;

    /// Packs either kind into two words. The first has the impression site or the value, and the
    /// second the bucket or the impression site that the conversion came from.
    pub(crate) fn pack(self) -> (u32, u32) {
        match self {
            Self::Impression { site, bucket } => (site, bucket.into()),
            Self::Conversion { value, came_from } => {
                (CONVERSION | value, came_from.unwrap_or(NOWHERE))
            }
        }
    }

    /// The inverse of [`pack`](Self::pack).
    #[inline]
    pub(crate) fn unpack(word: u32, detail: u32) -> Self {
        if Self::is_conversion(word) {
            return Self::Conversion {
                value: word & !CONVERSION,
                came_from: (detail != NOWHERE).then_some(detail),
            };
        }
        #[expect(clippy::cast_possible_truncation, reason = "it was packed")]
        let bucket = detail as u16;
        Self::Impression { site: word, bucket }
    }

    /// True if the first word of a packed kind is that of a conversion.
    #[inline]
    pub(crate) fn is_conversion(word: u32) -> bool {
        word & CONVERSION != 0
    }
}

/// The bit that marks a conversion.
const CONVERSION: u32 = 1 << 31;

/// The number that stands for no impression site.
const NOWHERE: u32 = u32::MAX;

/// The events of some devices, in columns. They are sorted by device, and on each device by time.
/// In the same minute, impressions come first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The index at which the events of each device begin, and the index at which the last ones
    /// end.
    pub(crate) begins: Vec<u32>,
    pub(crate) minutes: Vec<u32>,
    pub(crate) epochs: Vec<u16>,
    pub(crate) conversion_sites: Vec<u32>,
    /// Packed [`EventKind`]s.
    pub(crate) kinds: Vec<u32>,
    pub(crate) came_from: Vec<u32>,
    pub(crate) rows: Vec<u32>,
}

impl Default for Part {
    fn default() -> Self {
        Self {
            begins: vec![0],
            minutes: Vec::new(),
            epochs: Vec::new(),
            conversion_sites: Vec::new(),
            kinds: Vec::new(),
            came_from: Vec::new(),
            rows: Vec::new(),
        }
    }
}

impl Part {
    /// Adds a device. Its events may be in any order.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a part has fewer than four billion events"
    )]
    pub fn push_device(&mut self, events: &mut [WorkloadEvent]) {
        events.sort_unstable_by_key(|event| {
            let is_conversion = matches!(event.kind, EventKind::Conversion { .. });
            (event.minute, is_conversion, event.row)
        });
        for event in events {
            self.minutes.push(event.minute);
            self.epochs.push(event.epoch);
            self.conversion_sites.push(event.conversion_site);
            let (kind, came_from) = event.kind.pack();
            self.kinds.push(kind);
            self.came_from.push(came_from);
            self.rows.push(event.row);
        }
        self.begins.push(self.minutes.len() as u32);
    }

    /// Gives memory back that was kept for more events.
    pub(crate) fn shrink(&mut self) {
        self.begins.shrink_to_fit();
        self.epochs.shrink_to_fit();
        let columns = [
            &mut self.minutes,
            &mut self.conversion_sites,
            &mut self.kinds,
            &mut self.came_from,
            &mut self.rows,
        ];
        columns.into_iter().for_each(Vec::shrink_to_fit);
    }

    /// The number of devices.
    pub fn devices(&self) -> usize {
        self.begins.len() - 1
    }

    /// The number of events.
    pub fn len(&self) -> usize {
        self.minutes.len()
    }

    /// True if there are no events.
    pub fn is_empty(&self) -> bool {
        self.minutes.is_empty()
    }

    /// The indices of the events of a device.
    pub fn range(&self, device: usize) -> std::ops::Range<usize> {
        self.begins[device] as usize..self.begins[device + 1] as usize
    }

    /// An event, by its index.
    pub fn event(&self, at: usize) -> WorkloadEvent {
        WorkloadEvent {
            minute: self.minutes[at],
            epoch: self.epochs[at],
            conversion_site: self.conversion_sites[at],
            kind: EventKind::unpack(self.kinds[at], self.came_from[at]),
            row: self.rows[at],
        }
    }

    /// The events of a device, in order.
    #[inline]
    pub fn events_of(&self, device: usize) -> impl Iterator<Item = WorkloadEvent> + use<'_> {
        let range = self.range(device);
        let words = self.kinds[range.clone()]
            .iter()
            .zip(&self.came_from[range.clone()]);
        let times = self.minutes[range.clone()]
            .iter()
            .zip(&self.epochs[range.clone()]);
        let places = self.conversion_sites[range.clone()]
            .iter()
            .zip(&self.rows[range]);
        let all = words.zip(times).zip(places);
        all.map(
            |(((kind, detail), (minute, epoch)), (site, row))| WorkloadEvent {
                minute: *minute,
                epoch: *epoch,
                conversion_site: *site,
                kind: EventKind::unpack(*kind, *detail),
                row: *row,
            },
        )
    }

    /// Every event, in order.
    pub fn events(&self) -> impl Iterator<Item = WorkloadEvent> {
        (0..self.len()).map(|at| self.event(at))
    }
}

/// The events of many devices, in parts that are processed one by one.
#[derive(Debug)]
pub struct Workload {
    parts: Vec<Stored>,
    devices: usize,
    events: usize,
    epochs: Option<(u16, u16)>,
    /// The temporary file of the parts that are on disk.
    disk: Option<TempFile>,
    /// The number of buckets, from 1 on.
    pub buckets: u16,
    /// The name of each conversion site, by number.
    pub conversion_site_names: Vec<String>,
    /// The name of each impression site, by number.
    pub impression_site_names: Vec<String>,
}

/// The place where a part is stored.
#[derive(Debug)]
enum Stored {
    InMemory(Part),
    OnDisk {
        section: Section,
        devices: usize,
        events: usize,
    },
}

/// The most devices in a part that is in memory.
const DEVICES_OF_PART: usize = 4096;

impl Default for Workload {
    /// An empty workload with the paper's number of buckets.
    fn default() -> Self {
        Self {
            parts: Vec::new(),
            devices: 0,
            events: 0,
            epochs: None,
            disk: None,
            buckets: BUCKETS,
            conversion_site_names: Vec::new(),
            impression_site_names: Vec::new(),
        }
    }
}

impl Workload {
    /// Adds a device. Its events may be in any order.
    pub fn push_device(&mut self, events: &mut [WorkloadEvent]) {
        if let Some(last) = self.parts.last_mut()
            && let Stored::InMemory(part) = last
            && part.devices() < DEVICES_OF_PART
        {
            part.push_device(events);
            self.devices += 1;
            self.events += events.len();
            self.reach(events.iter().map(|event| event.epoch));
        } else {
            let mut part = Part::default();
            part.push_device(events);
            self.push_part(part);
        }
    }

    /// Adds the devices of a part.
    pub fn push_part(&mut self, part: Part) {
        let (devices, events) = (part.devices(), part.len());
        self.reach(part.epochs.iter().copied());
        self.place(devices, events, Stored::InMemory(part));
    }

    /// Adds the devices of a part, and stores the part on disk.
    ///
    /// All such parts of a workload share one temporary file. It is on the disk of the folder that
    /// was given for the first of them. The default is the system's folder for temporary files. The
    /// file has no name, and is freed with the workload, or however the process ends.
    ///
    /// # Errors
    /// If the part cannot be written.
    pub fn push_part_on_disk(
        &mut self,
        part: Part,
        temporary: Option<&Path>,
    ) -> Result<(), ReadError> {
        let (devices, events) = (part.devices(), part.len());
        self.reach(part.epochs.iter().copied());
        let disk = match &mut self.disk {
            Some(disk) => disk,
            none => none.insert(TempFile::new(temporary)?),
        };
        let section = disk.append_part(part)?;
        let part = Stored::OnDisk {
            section,
            devices,
            events,
        };
        self.place(devices, events, part);
        Ok(())
    }

    /// Extends the range of epochs in which something happens.
    fn reach(&mut self, epochs: impl Iterator<Item = u16>) {
        let range = epochs.fold(None, |range, epoch| {
            let (first, last) = range.unwrap_or((epoch, epoch));
            Some((first.min(epoch), last.max(epoch)))
        });
        if let Some((first, last)) = range {
            let (before, after) = self.epochs.unwrap_or((first, last));
            self.epochs = Some((first.min(before), last.max(after)));
        }
    }

    fn place(&mut self, devices: usize, events: usize, part: Stored) {
        self.devices += devices;
        self.events += events;
        self.parts.push(part);
    }

    /// The number of devices.
    pub fn devices(&self) -> usize {
        self.devices
    }

    /// The number of events.
    pub fn len(&self) -> usize {
        self.events
    }

    /// True if there are no events.
    pub fn is_empty(&self) -> bool {
        self.events == 0
    }

    /// The first and the last epoch in which something happens.
    pub fn epochs(&self) -> Option<(u16, u16)> {
        self.epochs
    }

    /// The number of parts.
    pub fn parts(&self) -> usize {
        self.parts.len()
    }

    /// A part, by its number.
    ///
    /// # Errors
    /// If the part is on disk and cannot be read.
    pub fn part(&self, number: usize) -> Result<Cow<'_, Part>, ReadError> {
        match &self.parts[number] {
            Stored::InMemory(part) => Ok(Cow::Borrowed(part)),
            Stored::OnDisk {
                section,
                devices,
                events,
            } => section.read_part(*devices, *events).map(Cow::Owned),
        }
    }

    /// A digest of every event and every name, to tell workloads apart. It does not withstand
    /// workloads that are chosen to collide.
    ///
    /// # Errors
    /// If a part is on disk and cannot be read.
    pub fn digest(&self) -> Result<u64, ReadError> {
        let mut digest = u64::from(self.buckets);
        let mut bytes = Vec::new();
        for names in [&self.conversion_site_names, &self.impression_site_names] {
            for name in names {
                digest = hash::seeded(digest, name.as_bytes());
            }
        }
        for number in 0..self.parts.len() {
            let part = self.part(number)?;
            for device in 0..part.devices() {
                bytes.clear();
                for at in part.range(device) {
                    bytes.extend(part.event(at).bytes());
                    bytes.extend(part.came_from[at].to_le_bytes());
                }
                digest = hash::seeded(digest, &bytes);
            }
        }
        Ok(digest)
    }
}

impl WorkloadEvent {
    /// A number that follows from the event, for random choices on the device that begins with it.
    /// It does not depend on where a conversion came from, which is not always known.
    pub(crate) fn stream(&self) -> u64 {
        hash::of_bytes(&self.bytes())
    }

    /// Everything but where a conversion came from.
    fn bytes(&self) -> [u8; 22] {
        let (kind, detail) = self.kind.pack();
        let detail = match self.kind {
            EventKind::Impression { .. } => detail,
            EventKind::Conversion { .. } => NOWHERE,
        };
        let words = [self.minute, self.row, self.conversion_site, kind, detail];
        let mut bytes = [0; 22];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes[20..].copy_from_slice(&self.epoch.to_le_bytes());
        bytes
    }
}
