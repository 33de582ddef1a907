//! What a workload contains: counts, and the paper's workload parameters at percentiles.

use bigbird::{PolicyError, Workload as Parameters};

use crate::read::ReadError;
use crate::workload::{Kind, Workload};

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
    /// The first and the last epoch in which something happens.
    pub epochs: Option<(u16, u16)>,
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
    /// Unique conversion sites of each device that converts: bounds N.
    pub conversion_sites_of_device: Counts,
    /// Unique impression sites of each device: bounds M.
    pub impression_sites_of_device: Counts,
    /// Unique conversion sites that convert after an impression on one site, for each device and
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
    /// Looks through a workload.
    ///
    /// # Errors
    /// If a part is on disk and cannot be read.
    pub fn new(workload: &Workload) -> Result<Self, ReadError> {
        let mut looked = Looked {
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
    shown: Vec<u64>,
    advertised: Vec<u64>,
    converted: Vec<u64>,
    /// Impression site and conversion site of each impression of a device.
    shown_pairs: Vec<(u32, u32)>,
    /// The same of each conversion, as far as they are known.
    converted_pairs: Vec<(u32, u32)>,
    converting: Vec<u32>,
}

impl Looked {
    fn device(&mut self, events: impl Iterator<Item = crate::workload::Event>) {
        self.shown_pairs.clear();
        self.converted_pairs.clear();
        self.converting.clear();
        let description = &mut self.description;
        let mut all_known = true;
        for event in events {
            let (first, last) = description.epochs.unwrap_or((event.epoch, event.epoch));
            description.epochs = Some((first.min(event.epoch), last.max(event.epoch)));
            let conversion_site = event.conversion_site;
            match event.kind {
                Kind::Impression { site, .. } => {
                    self.shown[site as usize] += 1;
                    self.advertised[conversion_site as usize] += 1;
                    self.shown_pairs.push((site, conversion_site));
                }
                Kind::Conversion { came_from, .. } => {
                    self.converted[conversion_site as usize] += 1;
                    self.converting.push(conversion_site);
                    match came_from {
                        Some(site) => self.converted_pairs.push((site, conversion_site)),
                        None => all_known = false,
                    }
                }
            }
        }
        let (impressions, conversions) = (self.shown_pairs.len(), self.converting.len());
        description.devices += 1;
        description.impressions += impressions as u64;
        description.conversions += conversions as u64;
        description.impressions_of_device.add(impressions);
        for pairs in [&mut self.shown_pairs, &mut self.converted_pairs] {
            pairs.sort_unstable();
            pairs.dedup();
        }
        self.converting.sort_unstable();
        self.converting.dedup();
        let sites = self.shown_pairs.chunk_by(same_site).count();
        description.impression_sites_of_device.add(sites);
        if conversions > 0 {
            description.converting_devices += 1;
            description.conversions_of_device.add(conversions);
            description
                .conversion_sites_of_device
                .add(self.converting.len());
        }
        let pairs = if all_known {
            &self.converted_pairs
        } else {
            let converting = &self.converting;
            self.shown_pairs
                .retain(|(_, advertised)| converting.binary_search(advertised).is_ok());
            &self.shown_pairs
        };
        for of_site in pairs.chunk_by(same_site) {
            description.fan_out.add(of_site.len());
        }
    }
}

fn same_site(one: &(u32, u32), next: &(u32, u32)) -> bool {
    one.0 == next.0
}
