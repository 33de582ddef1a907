//! What a workload contains: counts, and the paper's workload parameters at percentiles.

use bigbird::{PolicyError, Workload as Parameters};

use crate::workload::read::ReadError;
use crate::workload::{Event, Kind, Workload};

/// The percentiles of the paper's table of workload parameters.
pub const PERCENTILES: [f64; 6] = [50.0, 80.0, 85.0, 90.0, 95.0, 99.0];

/// The paper's table (section Quota Configuration on Criteo): N, M and n at those percentiles.
///
/// N and n are even at every percentile, which no smooth distribution of sites gives: they look
/// doubled, probably because it counts a site once for clicks and once for landed clicks. Half of
/// each is what we count.
pub const OF_PAPER: [[u32; 3]; 6] = [
    [2, 1, 2],
    [4, 2, 2],
    [4, 2, 4],
    [4, 3, 4],
    [6, 3, 4],
    [8, 4, 8],
];

/// What a workload contains.
#[derive(Debug, Clone, Default)]
pub struct Description {
    /// How many devices there are.
    pub devices: u64,
    /// How many of them convert.
    pub converting_devices: u64,
    /// How many impressions.
    pub impressions: u64,
    /// How many conversions.
    pub conversions: u64,
    /// How many impression sites have an impression.
    pub impression_sites: usize,
    /// How many conversion sites have an impression or a conversion.
    pub conversion_sites: usize,
    /// The impressions of the busiest impression sites, by number, busiest first.
    pub busiest_impression_sites: Vec<(u32, u64)>,
    /// The conversions of the busiest conversion sites, by number, busiest first.
    pub busiest_conversion_sites: Vec<(u32, u64)>,
    /// Impressions of each device.
    pub impressions_of_device: Counts,
    /// Conversions of each device that converts.
    pub conversions_of_device: Counts,
    /// Unique conversion sites that convert within reach of an epoch's impressions, for each device and
    /// epoch with any: bounds N.
    pub conversion_sites_of_device: Counts,
    /// Unique impression sites of each device and epoch: bounds M.
    pub impression_sites_of_device: Counts,
    /// Unique conversion sites that convert after an impression on one site, for each device, epoch and
    /// impression site with any: bounds n. Where it is not known which impression a conversion comes
    /// from, every site of the device that advertised it counts.
    pub fan_out: Counts,
}

/// How often each small number was counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    of: Vec<u64>,
    total: u64,
}

impl Counts {
    /// Counts one more of a number.
    pub fn add(&mut self, number: usize) {
        if self.of.len() <= number {
            self.of.resize(number + 1, 0);
        }
        self.of[number] += 1;
        self.total += 1;
    }

    /// Counts all that were counted elsewhere.
    pub(crate) fn add_all(&mut self, other: &Self) {
        if self.of.len() < other.of.len() {
            self.of.resize(other.of.len(), 0);
        }
        for (sum, more) in self.of.iter_mut().zip(&other.of) {
            *sum += more;
        }
        self.total += other.total;
    }

    /// Every number, with how often it was counted.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        (0..).zip(self.of.iter().copied())
    }

    /// How many were counted.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The number at a percentile, by the nearest rank; none if nothing was counted.
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

/// How many of the busiest sites a description names.
const BUSIEST: usize = 8;

impl Description {
    /// Looks through a workload, in which a conversion looks at its own epoch and so many before.
    ///
    /// # Errors
    /// If a part is on disk and cannot be read.
    pub fn new(workload: &Workload, lookback_epochs: u16) -> Result<Self, ReadError> {
        let mut looked = Looked {
            lookback_epochs,
            shown: vec![0; workload.impression_site_names.len()],
            advertised: vec![0; workload.conversion_site_names.len()],
            converted: vec![0; workload.conversion_site_names.len()],
            ..Looked::default()
        };
        for number in 0..workload.parts() {
            let part = workload.part(number)?;
            for device in 0..part.devices() {
                looked.device(part.range(device).map(|at| part.event(at)));
            }
        }
        let Looked {
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

    /// N, M and n at a percentile; 0 where nothing was counted.
    pub fn at(&self, percentile: f64) -> [u32; 3] {
        self.parameters()
            .map(|counts| counts.percentile(percentile).unwrap_or(0))
    }
}

/// Workload parameters: N, M and n, and the same for the closed form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Estimate {
    /// N, M and n.
    pub numbers: [u32; 3],
    /// As the closed form wants them.
    pub parameters: Parameters,
}

impl Estimate {
    /// What is at a percentile of counts of N, M and n, if intermediaries spend a share `r` of a
    /// querier budget; none if nothing was counted.
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
            parameters: Parameters::new(numbers[0], numbers[1], numbers[2], r)?,
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
struct Looked {
    description: Description,
    lookback_epochs: u16,
    shown: Vec<u64>,
    advertised: Vec<u64>,
    converted: Vec<u64>,
    /// The impressions of a device.
    impressions: Vec<Impressed>,
    /// Its conversions.
    conversions: Vec<Converted>,
    converting: Vec<u32>,
    pairs: Vec<(u32, u32)>,
}

/// Epoch, impression site, conversion site.
type Impressed = (u16, u32, u32);

/// Epoch, conversion site, and the impression site it came from.
type Converted = (u16, u32, Option<u32>);

impl Looked {
    fn device(&mut self, events: impl Iterator<Item = Event>) {
        self.impressions.clear();
        self.conversions.clear();
        let description = &mut self.description;
        for event in events {
            let conversion_site = event.conversion_site;
            match event.kind {
                Kind::Impression { site, .. } => {
                    self.shown[site as usize] += 1;
                    self.advertised[conversion_site as usize] += 1;
                    self.impressions.push((event.epoch, site, conversion_site));
                }
                Kind::Conversion { came_from, .. } => {
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

    /// What a device does about the impressions of one epoch.
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
