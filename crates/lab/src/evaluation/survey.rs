//! The first step of a run: the statistics of conversion sites, which decide who measures.
//!
//! Each part of a workload is surveyed on its own, and the results are merged. Everything that is
//! counted is a whole number, so the order of parts does not matter.

use super::querier::{Querier, QuerierOptions, noise_scale};
use crate::workload::read::ReadError;
use crate::workload::{DAY, EventKind, Part, Workload};

/// The statistics of the conversion sites of some parts.
#[derive(Debug, Clone, PartialEq)]
pub struct Survey {
    sites: Vec<SiteStats>,
    buckets: usize,
    /// The number of devices that were surveyed.
    devices: u64,
    /// The day that the first bit of every [`SiteStats::days`] stands for.
    first_day: Option<u32>,
}

/// The statistics of a conversion site.
#[derive(Debug, Clone, Default, PartialEq)]
struct SiteStats {
    conversions: u64,
    /// The sum of the values of its conversions.
    value: u64,
    max_value: u32,
    /// The most of its conversions on one device.
    most_of_a_device: u32,
    /// Its conversions on the device that converted last, and the number of that device.
    on_device: (u32, u64),
    /// The days on which it has conversions: one bit for each day.
    days: Vec<u64>,
    /// The number of impressions for it, by bucket. Empty if it has none.
    impressions: Vec<u64>,
}

impl Survey {
    /// An empty survey for a workload.
    pub fn new(workload: &Workload) -> Self {
        Self {
            sites: vec![SiteStats::default(); workload.conversion_site_names.len()],
            buckets: usize::from(workload.buckets),
            devices: 0,
            first_day: None,
        }
    }

    /// Surveys a whole workload.
    ///
    /// # Errors
    /// If a part of the workload is on disk and cannot be read.
    pub fn of(workload: &Workload) -> Result<Self, ReadError> {
        let mut survey = Self::new(workload);
        for number in 0..workload.parts() {
            survey.add(&*workload.part(number)?);
        }
        Ok(survey)
    }

    /// Adds the events of a part.
    pub fn add(&mut self, part: &Part) {
        let Some(first) = part.minutes.iter().min() else {
            return;
        };
        let first_day = self.extend_to(first / DAY);
        for device in 0..part.devices() {
            self.devices += 1;
            for event in part.events_of(device) {
                let site = &mut self.sites[event.conversion_site as usize];
                match event.kind {
                    EventKind::Conversion { value, .. } => {
                        let day = (event.minute / DAY - first_day) as usize;
                        if site.days.len() <= day / 64 {
                            site.days.resize(day / 64 + 1, 0);
                        }
                        site.days[day / 64] |= 1 << (day % 64);
                        site.conversions += 1;
                        site.value += u64::from(value);
                        site.max_value = site.max_value.max(value);
                        let (before, of) = site.on_device;
                        let on_device = if of == self.devices { before + 1 } else { 1 };
                        site.on_device = (on_device, self.devices);
                        site.most_of_a_device = site.most_of_a_device.max(on_device);
                    }
                    EventKind::Impression { bucket, .. } => {
                        if site.impressions.is_empty() {
                            site.impressions.resize(self.buckets, 0);
                        }
                        site.impressions[usize::from(bucket)] += 1;
                    }
                }
            }
        }
    }

    /// Adds what another survey of the same workload counted on other parts.
    pub fn merge(&mut self, mut other: Self) {
        let (Some(ours), Some(theirs)) = (self.first_day, other.first_day) else {
            if self.first_day.is_none() {
                *self = other;
            }
            return;
        };
        self.extend_to(theirs);
        other.extend_to(ours);
        for (site, more) in self.sites.iter_mut().zip(other.sites) {
            site.conversions += more.conversions;
            site.value += more.value;
            site.max_value = site.max_value.max(more.max_value);
            site.most_of_a_device = site.most_of_a_device.max(more.most_of_a_device);
            add(&mut site.impressions, &more.impressions, |sum, more| {
                *sum += more;
            });
            add(&mut site.days, &more.days, |days, more| *days |= more);
        }
    }

    /// Makes room for days from this one on. Returns the day of the first bit.
    fn extend_to(&mut self, day: u32) -> u32 {
        // Whole words are inserted, so that bits need not be shifted.
        let wanted = day / 64 * 64;
        let first = *self.first_day.get_or_insert(wanted);
        if wanted < first {
            let words = ((first - wanted) / 64) as usize;
            for site in self.sites.iter_mut().filter(|site| !site.days.is_empty()) {
                site.days.splice(0..0, std::iter::repeat_n(0, words));
            }
            self.first_day = Some(wanted);
        }
        wanted.min(first)
    }

    /// The conversion sites that measure, by number.
    pub fn queriers(&self, options: &QuerierOptions) -> Vec<Querier> {
        (0..)
            .zip(&self.sites)
            .filter_map(|(site, stats)| stats.querier(site, self.buckets, options))
            .collect()
    }
}

/// Combines two lists of numbers, of which the shorter one is continued with zeros.
fn add(sums: &mut Vec<u64>, more: &[u64], combine: impl Fn(&mut u64, u64)) {
    if sums.len() < more.len() {
        sums.resize(more.len(), 0);
    }
    for (sum, more) in sums.iter_mut().zip(more) {
        combine(sum, *more);
    }
}

impl SiteStats {
    fn querier(&self, site: u32, buckets: usize, options: &QuerierOptions) -> Option<Querier> {
        let days: u32 = self.days.iter().map(|days| days.count_ones()).sum();
        let a_day = self.conversions.checked_div(days.into()).unwrap_or(0);
        let a_day = usize::try_from(a_day).unwrap_or(usize::MAX);
        if self.conversions == 0 || a_day < options.min_conversions_a_day {
            return None;
        }
        let batch = options
            .batch_days
            .saturating_mul(a_day)
            .max(options.min_batch)
            .max(1);
        let shown: u64 = self.impressions.iter().sum();
        #[expect(clippy::cast_precision_loss, reason = "counts of events")]
        let (shares, worth) = {
            let share = |count: u64| count as f64 / shown.max(1) as f64;
            let mut shares: Vec<f64> = self.impressions.iter().copied().map(share).collect();
            shares.resize(buckets, 0.0);
            let mean = self.value as f64 / self.conversions as f64;
            (shares, batch as f64 * mean)
        };
        Some(Querier {
            site,
            conversions: self.conversions,
            a_day,
            batch,
            noise_scale: match options.epsilon {
                Some(epsilon) => f64::from(self.max_value) / epsilon,
                None => noise_scale(worth, &shares, options.target_error, options.tau),
            },
            max_value: self.max_value,
            most_of_a_device: self.most_of_a_device,
        })
    }
}
