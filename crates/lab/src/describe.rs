//! Descriptions of workloads: counts, and the paper's workload parameters at percentiles.

use bigbird::{PolicyError, WorkloadParameters};

use crate::workload::read::ReadError;
use crate::workload::{EventKind, Workload, WorkloadEvent};

/// The contents of a workload.
#[derive(Debug, Clone, Default)]
pub struct Description {
    /// The number of devices.
    pub devices: u64,
    /// The number of devices with a conversion.
    pub converting_devices: u64,
    /// The number of impressions.
    pub impressions: u64,
    /// The number of conversions.
    pub conversions: u64,
    /// The number of impression sites with an impression.
    pub impression_sites: usize,
    /// The number of conversion sites with an impression or a conversion.
    pub conversion_sites: usize,
    /// The busiest impression sites, each with its number of impressions, busiest first.
    pub busiest_impression_sites: Vec<(u32, u64)>,
    /// The busiest conversion sites, each with its number of conversions, busiest first.
    pub busiest_conversion_sites: Vec<(u32, u64)>,
    /// The number of impressions of each device.
    pub impressions_of_device: Counts,
    /// The number of conversions of each device that has any.
    pub conversions_of_device: Counts,
    /// The number of unique conversion sites that convert while an epoch's impressions are within
    /// the lookback, for each device and epoch that has any. It bounds N.
    pub conversion_sites_of_device: Counts,
    /// The number of unique impression sites of each device and epoch. It bounds M.
    pub impression_sites_of_device: Counts,
    /// The number of unique conversion sites that convert after an impression on one site, for each
    /// device, epoch and impression site that has any. It bounds n. If it is not known which
    /// impression site a conversion came from, every site counts that showed the device an ad for
    /// the conversion site in the epoch.
    pub fan_out: Counts,
}

/// A histogram of small numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    of: Vec<u64>,
    total: u64,
}

impl Counts {
    /// Adds a number.
    pub fn add(&mut self, number: usize) {
        if self.of.len() <= number {
            self.of.resize(number + 1, 0);
        }
        self.of[number] += 1;
        self.total += 1;
    }

    /// Adds all numbers of another histogram.
    pub(crate) fn add_all(&mut self, other: &Self) {
        if self.of.len() < other.of.len() {
            self.of.resize(other.of.len(), 0);
        }
        for (sum, more) in self.of.iter_mut().zip(&other.of) {
            *sum += more;
        }
        self.total += other.total;
    }

    /// Every number, with how often it was added.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        (0..).zip(self.of.iter().copied())
    }

    /// The number of numbers that were added.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The number at a percentile, by the nearest rank. None if nothing was added.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "ranks among devices"
    )]
    pub fn percentile(&self, percent: f64) -> Option<u32> {
        let last = self.total.checked_sub(1)?;
        let rank = (last as f64 * percent.clamp(0.0, 100.0) / 100.0).round() as u64;
        let mut below = 0;
        for (number, count) in (0..).zip(&self.of) {
            below += count;
            if below > rank {
                return Some(number);
            }
        }
        None
    }
}

/// The number of busiest sites that a description lists.
const BUSIEST: usize = 8;

impl Description {
    /// Describes a workload in which a conversion looks at its own epoch and the `lookback_epochs`
    /// epochs before.
    ///
    /// # Errors
    /// If a part of the workload is on disk and cannot be read.
    pub fn new(workload: &Workload, lookback_epochs: u16) -> Result<Self, ReadError> {
        let mut looked = DescriptionBuilder {
            lookback_epochs,
            shown: vec![0; workload.impression_site_names.len()],
            advertised: vec![0; workload.conversion_site_names.len()],
            converted: vec![0; workload.conversion_site_names.len()],
            ..DescriptionBuilder::default()
        };
        for number in 0..workload.parts() {
            let part = workload.part(number)?;
            for device in 0..part.devices() {
                looked.device(part.range(device).map(|at| part.event(at)));
            }
        }
        let DescriptionBuilder {
            shown,
            advertised,
            converted,
            mut description,
            ..
        } = looked;
        let used = |counts: &[u64]| counts.iter().filter(|count| **count > 0).count();
        description.impression_sites = used(&shown);
        let both: Vec<u64> = advertised
            .iter()
            .zip(&converted)
            .map(|(one, other)| one + other)
            .collect();
        description.conversion_sites = used(&both);
        description.busiest_impression_sites = busiest(&shown);
        description.busiest_conversion_sites = busiest(&converted);
        Ok(description)
    }
}

impl Description {
    /// The counts of N, M and n.
    pub(crate) fn parameters(&self) -> [&Counts; 3] {
        [
            &self.conversion_sites_of_device,
            &self.impression_sites_of_device,
            &self.fan_out,
        ]
    }

    /// N, M and n at a percentile. 0 if nothing was counted.
    pub fn at(&self, percentile: f64) -> [u32; 3] {
        self.parameters()
            .map(|counts| counts.percentile(percentile).unwrap_or(0))
    }
}

/// Workload parameters, as numbers and as the closed form takes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Estimate {
    /// N, M and n.
    pub numbers: [u32; 3],
    /// The same as parameters of the closed form.
    pub parameters: WorkloadParameters,
}

impl Estimate {
    /// The parameters at a percentile of the counts of N, M and n, if intermediaries spend a share
    /// `r` of a querier budget. None if nothing was counted.
    pub(crate) fn at(
        counts: [&Counts; 3],
        percent: f64,
        r: f64,
    ) -> Result<Option<Self>, PolicyError> {
        let [
            Some(conversion_sites),
            Some(impression_sites),
            Some(fan_out),
        ] = counts.map(|counts| counts.percentile(percent))
        else {
            return Ok(None);
        };
        let numbers = [conversion_sites, impression_sites, fan_out].map(|number| number.max(1));
        Ok(Some(Self {
            numbers,
            parameters: WorkloadParameters::new(numbers[0], numbers[1], numbers[2], r)?,
        }))
    }
}

fn busiest(counts: &[u64]) -> Vec<(u32, u64)> {
    let mut sites: Vec<(u32, u64)> = (0..).zip(counts.iter().copied()).collect();
    sites.retain(|(_, count)| *count > 0);
    sites.sort_by_key(|(site, count)| (std::cmp::Reverse(*count), *site));
    sites.truncate(BUSIEST);
    sites
}

#[derive(Default)]
struct DescriptionBuilder {
    description: Description,
    lookback_epochs: u16,
    shown: Vec<u64>,
    advertised: Vec<u64>,
    converted: Vec<u64>,
    /// The impressions of the current device.
    impressions: Vec<Impressed>,
    /// The conversions of the current device.
    conversions: Vec<Converted>,
    converting: Vec<u32>,
    pairs: Vec<(u32, u32)>,
}

/// An impression: its epoch, impression site and conversion site.
type Impressed = (u16, u32, u32);

/// A conversion: its epoch, its conversion site, and the impression site it came from.
type Converted = (u16, u32, Option<u32>);

impl DescriptionBuilder {
    fn device(&mut self, events: impl Iterator<Item = WorkloadEvent>) {
        self.impressions.clear();
        self.conversions.clear();
        let description = &mut self.description;
        for event in events {
            let conversion_site = event.conversion_site;
            match event.kind {
                EventKind::Impression { site, .. } => {
                    self.shown[site as usize] += 1;
                    self.advertised[conversion_site as usize] += 1;
                    self.impressions.push((event.epoch, site, conversion_site));
                }
                EventKind::Conversion { came_from, .. } => {
                    self.converted[conversion_site as usize] += 1;
                    self.conversions
                        .push((event.epoch, conversion_site, came_from));
                }
            }
        }
        description.devices += 1;
        description.impressions += self.impressions.len() as u64;
        description.conversions += self.conversions.len() as u64;
        description
            .impressions_of_device
            .add(self.impressions.len());
        if !self.conversions.is_empty() {
            description.converting_devices += 1;
            description
                .conversions_of_device
                .add(self.conversions.len());
        }
        self.impressions.sort_unstable();
        self.impressions.dedup();
        let impressions = std::mem::take(&mut self.impressions);
        for of_epoch in impressions.chunk_by(|one, next| one.0 == next.0) {
            self.epoch(of_epoch);
        }
        self.impressions = impressions;
    }

    /// Counts what a device does about the impressions of one epoch.
    fn epoch(&mut self, impressions: &[Impressed]) {
        let epoch = impressions[0].0;
        let reach = epoch..=epoch.saturating_add(self.lookback_epochs);
        let within = || self.conversions.iter().filter(|it| reach.contains(&it.0));
        let description = &mut self.description;
        let same_site = |one: &Impressed, next: &Impressed| one.1 == next.1;
        let sites = impressions.chunk_by(same_site).count();
        description.impression_sites_of_device.add(sites);
        self.converting.clear();
        self.converting.extend(within().map(|it| it.1));
        self.converting.sort_unstable();
        self.converting.dedup();
        if self.converting.is_empty() {
            return;
        }
        description
            .conversion_sites_of_device
            .add(self.converting.len());
        self.pairs.clear();
        if within().all(|it| it.2.is_some()) {
            let known = within().filter_map(|it| Some((it.2?, it.1)));
            self.pairs.extend(known);
        } else {
            let converts = |site: &u32| self.converting.binary_search(site).is_ok();
            let possible = impressions.iter().filter(|it| converts(&it.2));
            self.pairs.extend(possible.map(|it| (it.1, it.2)));
        }
        self.pairs.sort_unstable();
        self.pairs.dedup();
        for of_site in self.pairs.chunk_by(|one, next| one.0 == next.0) {
            description.fan_out.add(of_site.len());
        }
    }
}
