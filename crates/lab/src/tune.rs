//! Tuning: the paper's three steps from logs to capacities (section Quota configuration).
//!
//! A querier budget is given; what devices do, at a percentile, gives N, M and n; the closed form
//! ([`Policy::from_workload`](bigbird::Policy::from_workload)) gives the other capacities. N, M and n come from the paper's cheap statistics of devices
//! ([`Description`]), or from running attribution ([`exact`]). The statistics of a device bound what it
//! needs, if each conversion has to do with the one impression that it comes from. Exact counts are over
//! those devices and epochs alone where something is paid, and every site with an impression that could
//! get credit pays: they may ask for more.

use bigbird::{Charge, Filter, FilterKind, PolicyError, Profile, SiteId};

use crate::describe::{Counts, Description, Estimate};
use crate::replay::Replay;
use crate::simulate::LabError;
use crate::workload::{QuerierOptions, Workload};

/// N, M and n of each device and epoch, as the closed form means them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exact {
    /// How many conversion sites ask for reports that cost something (N).
    pub conversion_sites: Counts,
    /// How many impression sites have impressions in them (M).
    pub impression_sites: Counts,
    /// How many conversion sites ask about one impression site (n).
    pub fan_out: Counts,
}

impl Exact {
    pub(crate) fn add(&mut self, other: &Self) {
        self.conversion_sites.add_all(&other.conversion_sites);
        self.impression_sites.add_all(&other.impression_sites);
        self.fan_out.add_all(&other.fan_out);
    }

    /// The parameters that so many percent of devices and epochs stay within; none if no report
    /// costs anything.
    ///
    /// # Errors
    /// If the share `r` is negative or not finite.
    pub fn parameters(&self, percent: f64, r: f64) -> Result<Option<Estimate>, PolicyError> {
        Estimate::at(
            [
                &self.conversion_sites,
                &self.impression_sites,
                &self.fan_out,
            ],
            percent,
            r,
        )
    }
}

/// Runs attribution without limits, every conversion site measuring, and counts who pays for what.
///
/// # Errors
/// If a part of the workload is on disk and cannot be read.
pub fn exact(workload: &Workload, lookback_epochs: u16, threads: usize) -> Result<Exact, LabError> {
    let everyone = QuerierOptions {
        min_conversions_a_day: 0,
        ..QuerierOptions::default()
    };
    let survey = workload.survey(&everyone)?;
    // Filters that never refuse, but are charged.
    const PLENTY: f64 = 1e6;
    let mut policy = Profile::BigBird.policy().to_builder().no_domain_cap();
    for kind in [
        FilterKind::Querier,
        FilterKind::Global,
        FilterKind::ImpressionSite,
        FilterKind::ConversionSite,
    ] {
        policy = policy.capacity(kind, PLENTY);
    }
    let policy = policy.build()?;
    let replayed = Replay {
        workload,
        survey: &survey,
        policy: &policy,
        lookback_epochs,
        threads,
        attack: None,
        count_sites: true,
    }
    .run()?;
    Ok(replayed.exact)
}

/// Collects who pays on one device.
#[derive(Debug, Default)]
pub(crate) struct Payers {
    /// Epoch, impression site and conversion site of each charge.
    pairs: Vec<(i64, SiteId, SiteId)>,
    scratch: Vec<SiteId>,
}

impl Payers {
    pub(crate) fn begin(&mut self) {
        self.pairs.clear();
    }

    /// A report was paid for.
    pub(crate) fn paid(&mut self, conversion_site: SiteId, charges: &[Charge]) {
        for charge in charges {
            if let Filter::ImpressionSite(site) = charge.filter {
                self.pairs.push((charge.epoch.0, site, conversion_site));
            }
        }
    }

    pub(crate) fn count(&mut self, exact: &mut Exact) {
        self.pairs.sort_unstable();
        self.pairs.dedup();
        for of_epoch in self.pairs.chunk_by(|one, next| one.0 == next.0) {
            let mut sites = 0;
            for of_site in of_epoch.chunk_by(|one, next| one.1 == next.1) {
                sites += 1;
                exact.fan_out.add(of_site.len());
            }
            exact.impression_sites.add(sites);
            self.scratch.clear();
            self.scratch.extend(of_epoch.iter().map(|pair| pair.2));
            self.scratch.sort_unstable();
            self.scratch.dedup();
            exact.conversion_sites.add(self.scratch.len());
        }
    }
}

/// Step 2, by the paper's statistics of devices.
///
/// # Errors
/// If the share `r` is negative or not finite.
pub fn conservative(
    description: &Description,
    percent: f64,
    r: f64,
) -> Result<Option<Estimate>, PolicyError> {
    Estimate::at(description.parameters(), percent, r)
}
