//! Workloads: what the devices of a population do, in columns.

use std::collections::BTreeSet;

/// How many buckets a report has: the paper's evaluation has five.
pub const BUCKETS: usize = 5;

/// Minutes of a day.
pub const DAY: u32 = 1440;

/// Something that happens on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// When, in minutes.
    pub minute: u32,
    /// The epoch it belongs to.
    pub epoch: u16,
    /// The conversion site that it is about: by its number among conversion sites.
    pub conversion_site: u32,
    /// What happens.
    pub kind: Kind,
    /// Its place in the source, which decides the order of events of one minute on several devices.
    pub row: u32,
}

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An ad of the conversion site is shown.
    Impression {
        /// Where: by its number among impression sites.
        site: u32,
        /// The bucket that its credit goes to.
        bucket: u8,
    },
    /// Something is bought, or visited.
    Conversion,
}

/// The events of many devices: by device, and by time on each; at equal times impressions come
/// first.
#[derive(Debug, Clone, Default)]
pub struct Workload {
    /// Where the events of each device begin, and where the last end.
    begins: Vec<u32>,
    minutes: Vec<u32>,
    epochs: Vec<u16>,
    conversion_sites: Vec<u32>,
    /// Site and bucket of an impression, or [`CONVERSION`].
    impressions: Vec<u32>,
    rows: Vec<u32>,
    /// The name of each conversion site, by number.
    pub conversion_site_names: Vec<String>,
    /// The name of each impression site, by number.
    pub impression_site_names: Vec<String>,
}

const CONVERSION: u32 = u32::MAX;

impl Workload {
    /// Adds a device, whose events may come in any order.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "fewer than four billion events"
    )]
    pub fn push_device(&mut self, events: &mut [Event]) {
        if self.begins.is_empty() {
            self.begins.push(0);
        }
        let rank = |event: &Event| (event.minute, event.kind == Kind::Conversion, event.row);
        events.sort_unstable_by_key(rank);
        for event in events {
            self.minutes.push(event.minute);
            self.epochs.push(event.epoch);
            self.conversion_sites.push(event.conversion_site);
            self.impressions.push(match event.kind {
                Kind::Impression { site, bucket } => site << 3 | u32::from(bucket),
                Kind::Conversion => CONVERSION,
            });
            self.rows.push(event.row);
        }
        self.begins.push(self.minutes.len() as u32);
    }

    /// How many devices there are.
    pub fn devices(&self) -> usize {
        self.begins.len().saturating_sub(1)
    }

    /// How many events there are.
    pub fn len(&self) -> usize {
        self.minutes.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.minutes.is_empty()
    }

    /// Where the events of a device are.
    pub fn range(&self, device: usize) -> std::ops::Range<usize> {
        self.begins[device] as usize..self.begins[device + 1] as usize
    }

    /// An event, by its place.
    pub fn event(&self, at: usize) -> Event {
        Event {
            minute: self.minutes[at],
            epoch: self.epochs[at],
            conversion_site: self.conversion_sites[at],
            kind: self.kind(at),
            row: self.rows[at],
        }
    }

    fn kind(&self, at: usize) -> Kind {
        match self.impressions[at] {
            CONVERSION => Kind::Conversion,
            packed => Kind::Impression {
                site: packed >> 3,
                bucket: (packed & 7) as u8,
            },
        }
    }

    /// The queriers: every conversion site with at least so many conversions a day, on average over
    /// the days that have any, rounded down; each with its batches.
    pub fn queriers(&self, options: &QuerierOptions) -> Vec<Querier> {
        let sites = self.conversion_site_names.len();
        let mut reports: Vec<Vec<u32>> = vec![Vec::new(); sites];
        let mut days: Vec<BTreeSet<u16>> = vec![BTreeSet::new(); sites];
        let mut buckets = vec![[0_u64; BUCKETS]; sites];
        for at in 0..self.len() {
            let site = self.conversion_sites[at] as usize;
            match self.kind(at) {
                Kind::Conversion => {
                    reports[site].push(u32::try_from(at).unwrap_or(u32::MAX));
                    days[site].insert(self.epochs[at]);
                }
                Kind::Impression { bucket, .. } => buckets[site][usize::from(bucket)] += 1,
            }
        }
        let mut queriers = Vec::new();
        for (site, mut reports) in reports.into_iter().enumerate() {
            let a_day = reports.len().checked_div(days[site].len()).unwrap_or(0);
            if a_day < options.min_conversions_a_day {
                continue;
            }
            reports.sort_unstable_by_key(|&at| {
                let at = at as usize;
                (self.minutes[at], self.rows[at])
            });
            let shown: u64 = buckets[site].iter().sum();
            #[expect(clippy::cast_precision_loss, reason = "counts of events")]
            let shares = buckets[site].map(|count| count as f64 / shown.max(1) as f64);
            let batch = (options.batch_days * a_day).max(options.min_batch);
            queriers.push(Querier {
                site: u32::try_from(site).unwrap_or(u32::MAX),
                a_day,
                batch,
                noise_scale: noise_scale(batch, shares, options),
                reports,
            });
        }
        queriers
    }
}

/// How queriers, their batches and their noise are chosen (the paper's evaluation).
#[derive(Debug, Clone, Copy)]
pub struct QuerierOptions {
    /// How many conversions a day a site must have: 100 in the paper, 50 in its artifact.
    pub min_conversions_a_day: usize,
    /// How many days of conversions make a batch.
    pub batch_days: usize,
    /// How many reports a batch has at least.
    pub min_batch: usize,
    /// The error that a querier wants from noise alone.
    pub target_error: f64,
    /// The share of a batch below which errors are not relative to the bucket any more.
    pub tau: f64,
}

impl Default for QuerierOptions {
    fn default() -> Self {
        Self {
            min_conversions_a_day: 100,
            batch_days: 10,
            min_batch: 5000,
            target_error: 0.05,
            tau: 0.05,
        }
    }
}

/// A conversion site that measures.
#[derive(Debug, Clone)]
pub struct Querier {
    /// Its number among conversion sites.
    pub site: u32,
    /// Its conversions a day.
    pub a_day: usize,
    /// How many reports it sums.
    pub batch: usize,
    /// b: the scale of the noise on each sum.
    pub noise_scale: f64,
    /// The places of its conversions, in the order of time.
    pub reports: Vec<u32>,
}

impl Querier {
    /// What each report costs: 1/b.
    pub fn epsilon(&self) -> f64 {
        1.0 / self.noise_scale
    }
}

/// b such that noise alone gives the wanted error, if buckets have these shares.
#[expect(clippy::cast_precision_loss, reason = "counts of reports")]
fn noise_scale(batch: usize, shares: [f64; BUCKETS], options: &QuerierOptions) -> f64 {
    let squares: f64 = shares
        .iter()
        .map(|share| 1.0 / share.max(options.tau).powi(2))
        .sum();
    options.target_error * batch as f64 / (2.0 / BUCKETS as f64 * squares).sqrt()
}
