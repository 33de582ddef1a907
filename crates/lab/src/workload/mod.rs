//! Workloads: what the devices of a population do, stored in columns, by device and time.
//!
//! A workload is read from tables in CSV or Parquet ([`table`]) or from Criteo's files
//! ([`criteo`]), or it is generated ([`synthetic`]). It can be written to files ([`mod@write`]).
//! Parts that do not fit into memory stay on disk.

mod cells;
pub mod criteo;
mod csv;
mod disk;
mod gather;
pub(crate) mod hash;
pub mod read;
pub mod synthetic;
pub mod table;
pub mod write;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::Path;

use disk::{Section, TempFile};
use hash::hash;
use read::ReadError;

/// The number of buckets of a report: five, as in the paper's evaluation.
pub const BUCKETS: usize = 5;

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
        bucket: u8,
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
    pub const MAX_SITES: u32 = CONVERSION >> BUCKET_BITS;

    /// The largest value of a conversion.
    pub const MAX_VALUE: u32 = CONVERSION - 1;

    /// Packs either kind into two words.
    pub(crate) fn pack(self) -> (u32, u32) {
        match self {
            Self::Impression { site, bucket } => (site << BUCKET_BITS | u32::from(bucket), NOWHERE),
            Self::Conversion { value, came_from } => {
                (CONVERSION | value, came_from.unwrap_or(NOWHERE))
            }
        }
    }

    /// The inverse of [`pack`](Self::pack).
    pub(crate) fn unpack(word: u32, came_from: u32) -> Self {
        if word & CONVERSION != 0 {
            return Self::Conversion {
                value: word & !CONVERSION,
                came_from: (came_from != NOWHERE).then_some(came_from),
            };
        }
        Self::Impression {
            site: word >> BUCKET_BITS,
            bucket: (word & ((1 << BUCKET_BITS) - 1)) as u8,
        }
    }
}

const BUCKET_BITS: u32 = 3;

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

    /// Every event, in order.
    pub fn events(&self) -> impl Iterator<Item = WorkloadEvent> {
        (0..self.len()).map(|at| self.event(at))
    }
}

/// The events of many devices, in parts that are processed one by one.
#[derive(Debug, Default)]
pub struct Workload {
    parts: Vec<PartLocation>,
    devices: usize,
    events: usize,
    epochs: Option<(u16, u16)>,
    /// The temporary file of the parts that are on disk.
    disk: Option<TempFile>,
    /// The name of each conversion site, by number.
    pub conversion_site_names: Vec<String>,
    /// The name of each impression site, by number.
    pub impression_site_names: Vec<String>,
}

/// A part, and the number of events before it.
#[derive(Debug)]
struct PartLocation {
    first_event: usize,
    part: Stored,
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

impl Workload {
    /// Adds a device. Its events may be in any order.
    pub fn push_device(&mut self, events: &mut [WorkloadEvent]) {
        if let Some(last) = self.parts.last_mut()
            && let Stored::InMemory(part) = &mut last.part
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
        for epoch in epochs {
            let (first, last) = self.epochs.unwrap_or((epoch, epoch));
            self.epochs = Some((first.min(epoch), last.max(epoch)));
        }
    }

    fn place(&mut self, devices: usize, events: usize, part: Stored) {
        let first_event = self.events;
        self.devices += devices;
        self.events += events;
        self.parts.push(PartLocation { first_event, part });
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
        match &self.parts[number].part {
            Stored::InMemory(part) => Ok(Cow::Borrowed(part)),
            Stored::OnDisk {
                section,
                devices,
                events,
            } => section.read_part(*devices, *events).map(Cow::Owned),
        }
    }

    /// The number of events before a part.
    pub(crate) fn before(&self, number: usize) -> usize {
        self.parts[number].first_event
    }

    /// The number of events of each part.
    pub(crate) fn part_lens(&self) -> impl Iterator<Item = usize> {
        self.parts.iter().map(|placed| match &placed.part {
            Stored::InMemory(part) => part.len(),
            Stored::OnDisk { events, .. } => *events,
        })
    }

    /// Goes through the events to find out which sites measure, and how busy each site is.
    ///
    /// # Errors
    /// If a part is on disk and cannot be read.
    pub fn survey(&self, options: &QuerierOptions) -> Result<Survey, ReadError> {
        let sites = self.conversion_site_names.len();
        let mut seen = vec![SiteStats::default(); sites];
        let mut on_device: Vec<u32> = vec![0; sites];
        let mut digest = 0_u64;
        for name in self
            .conversion_site_names
            .iter()
            .chain(&self.impression_site_names)
        {
            digest = absorb(digest, hash(name));
        }
        for number in 0..self.parts.len() {
            let part = self.part(number)?;
            let first_event = self.before(number);
            for device in 0..part.devices() {
                digest = absorb(digest, part.range(device).len() as u64);
                for at in part.range(device) {
                    let event = part.event(at);
                    digest = mix(digest, &event);
                    let site = event.conversion_site as usize;
                    match event.kind {
                        EventKind::Conversion { value, .. } => {
                            on_device[site] += 1;
                            seen[site].conversion(&event, value, first_event + at);
                        }
                        EventKind::Impression { bucket, .. } => {
                            seen[site].buckets[usize::from(bucket)] += 1;
                        }
                    }
                }
                for at in part.range(device) {
                    let site = part.conversion_sites[at] as usize;
                    let count = std::mem::take(&mut on_device[site]);
                    seen[site].most_of_a_device = seen[site].most_of_a_device.max(count);
                }
            }
        }
        let queriers: Vec<Querier> = (0..)
            .zip(seen)
            .filter_map(|(site, seen)| seen.querier(site, options))
            .collect();
        let mut heard = vec![options.all_visits; sites];
        for querier in &queriers {
            heard[querier.site as usize] = true;
        }
        Ok(Survey {
            impressions: self.impressions_of(&heard)?,
            queriers,
            heard,
            digest,
        })
    }

    /// The number of impressions on each impression site that are for some conversion sites.
    fn impressions_of(&self, conversion_sites: &[bool]) -> Result<Vec<u64>, ReadError> {
        let mut impressions = vec![0; self.impression_site_names.len()];
        for number in 0..self.parts.len() {
            for event in self.part(number)?.events() {
                if let EventKind::Impression { site, .. } = event.kind
                    && conversion_sites[event.conversion_site as usize]
                {
                    impressions[site as usize] += 1;
                }
            }
        }
        Ok(impressions)
    }
}

/// The statistics of a workload that every run needs.
#[derive(Debug, Clone)]
pub struct Survey {
    /// Every conversion site with at least [`QuerierOptions::min_conversions_a_day`] conversions a
    /// day. The number is the average over the days on which the site has any, rounded down.
    pub queriers: Vec<Querier>,
    /// The number of impressions on each impression site that attackers can hear of.
    pub impressions: Vec<u64>,
    /// The conversion sites whose events attackers can hear of.
    pub(crate) heard: Vec<bool>,
    /// A digest of every event, to tell workloads apart. It does not withstand workloads that are
    /// chosen to collide.
    pub digest: u64,
}

/// Adds an event to a digest.
pub(crate) fn mix(digest: u64, event: &WorkloadEvent) -> u64 {
    let (kind, came_from) = event.kind.pack();
    let words = [
        u64::from(event.minute) << 32 | u64::from(event.row),
        u64::from(event.conversion_site) << 32 | u64::from(kind),
        u64::from(came_from) << 16 | u64::from(event.epoch),
    ];
    words.into_iter().fold(digest, absorb)
}

fn absorb(digest: u64, word: u64) -> u64 {
    (digest ^ word)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(29)
}

/// The statistics of a conversion site.
#[derive(Debug, Clone, Default)]
struct SiteStats {
    /// The minute, the row and the place of each of its conversions.
    conversions: Vec<(u32, u32, u32)>,
    /// The place and the value of each conversion whose value is not 1.
    values: Vec<(u32, u32)>,
    days: BTreeSet<u32>,
    buckets: [u64; BUCKETS],
    most_of_a_device: u32,
}

impl SiteStats {
    fn conversion(&mut self, event: &WorkloadEvent, value: u32, at: usize) {
        let at = u32::try_from(at).unwrap_or(u32::MAX);
        self.conversions.push((event.minute, event.row, at));
        self.days.insert(event.minute / DAY);
        if value != 1 {
            self.values.push((at, value));
        }
    }

    fn querier(mut self, site: u32, options: &QuerierOptions) -> Option<Querier> {
        let count = self.conversions.len();
        let a_day = count.checked_div(self.days.len()).unwrap_or(0);
        if count == 0 || a_day < options.min_conversions_a_day {
            return None;
        }
        self.conversions.sort_unstable();
        let reports: Vec<u32> = self.conversions.iter().map(|(_, _, at)| *at).collect();
        let values = self.values_in_order(&reports);
        let max_value = values.iter().copied().max().unwrap_or(1);
        let shown: u64 = self.buckets.iter().sum();
        let batch = (options.batch_days * a_day).max(options.min_batch).max(1);
        #[expect(clippy::cast_precision_loss, reason = "counts of events")]
        let (shares, worth) = {
            let total: u64 = values.iter().copied().map(u64::from).sum();
            let mean = match values.is_empty() {
                true => 1.0,
                false => total as f64 / count as f64,
            };
            let shares = self.buckets.map(|count| count as f64 / shown.max(1) as f64);
            (shares, batch as f64 * mean)
        };
        Some(Querier {
            site,
            a_day,
            batch,
            noise_scale: noise_scale(worth, &shares, options.target_error, options.tau),
            max_value,
            most_of_a_device: self.most_of_a_device,
            reports,
            values,
        })
    }

    fn values_in_order(&mut self, reports: &[u32]) -> Vec<u32> {
        if self.values.is_empty() {
            return Vec::new();
        }
        self.values.sort_unstable();
        reports
            .iter()
            .map(|at| {
                let found = self.values.binary_search_by_key(at, |(place, _)| *place);
                found.map_or(1, |found| self.values[found].1)
            })
            .collect()
    }
}

/// Options for the choice of queriers, their batches and their noise. The defaults are those of the
/// paper's evaluation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QuerierOptions {
    /// The least number of conversions a day that a site needs to be a querier. It is 50 in the
    /// artifact that made the paper's figures, and 100 in the paper's text. Sites in between have
    /// too few conversions for a batch of the paper's size, but attackers hear of the visits that
    /// concern them.
    pub min_conversions_a_day: usize,
    /// The number of days of conversions in a batch.
    pub batch_days: usize,
    /// The least number of reports in a batch.
    pub min_batch: usize,
    /// The error that a querier wants from noise alone.
    pub target_error: f64,
    /// τ: errors of buckets below this share of the batch are relative to this share instead of the
    /// bucket.
    pub tau: f64,
    /// The noise that is added to sums.
    pub noise: NoiseModel,
    /// True if attackers also hear of events of conversion sites that do not measure. The paper's
    /// evaluation leaves those events out.
    pub all_visits: bool,
}

impl Default for QuerierOptions {
    fn default() -> Self {
        Self {
            min_conversions_a_day: 50,
            batch_days: 10,
            min_batch: 5000,
            target_error: 0.05,
            tau: 0.05,
            noise: NoiseModel::Paper,
            all_visits: false,
        }
    }
}

/// The scale of the noise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NoiseModel {
    /// Scale 1/ε, as in the paper's figures.
    #[default]
    Paper,
    /// Scale 2/ε, as the paper's accounting assumes.
    Consistent,
}

impl NoiseModel {
    /// The scale times ε.
    pub(crate) const fn factor(self) -> f64 {
        match self {
            Self::Paper => 1.0,
            Self::Consistent => 2.0,
        }
    }
}

/// A conversion site that measures.
#[derive(Debug, Clone)]
pub struct Querier {
    /// Its number among conversion sites.
    pub site: u32,
    /// The number of its conversions per day.
    pub a_day: usize,
    /// The number of reports in a batch.
    pub batch: usize,
    /// b: the scale of the noise on each sum.
    pub noise_scale: f64,
    /// The largest value of its conversions.
    pub max_value: u32,
    /// The most of its conversions on one device (m of the resilience theorem).
    pub most_of_a_device: u32,
    /// The places of its conversions, in the order of time.
    pub reports: Vec<u32>,
    /// The values of its conversions, in the same order. Empty if all values are 1.
    pub values: Vec<u32>,
}

impl Querier {
    /// The ε of a report of the largest value: that value divided by b.
    pub fn epsilon(&self) -> f64 {
        f64::from(self.max_value) / self.noise_scale
    }
}

/// The noise scale b at which noise alone gives the target error, as in the paper's evaluation. The
/// sum of a batch is `worth`, the buckets have these shares of it, and `tau` is the τ of RMSRE.
pub fn noise_scale(worth: f64, shares: &[f64], target_error: f64, tau: f64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a count of buckets")]
    let buckets = shares.len() as f64;
    let squares: f64 = shares
        .iter()
        .map(|share| 1.0 / share.max(tau).powi(2))
        .sum();
    target_error * worth / (2.0 / buckets * squares).sqrt()
}
