//! Tuning: the paper's three steps from logs to capacities (section Quota configuration).
//!
//! 1. The querier budget is given.
//! 2. What devices do at a percentile gives N, M and n.
//! 3. The closed form ([`Policy::for_workload`](bigbird::Policy::for_workload)) gives the other
//!    capacities.
//!
//! N, M and n come from the paper's cheap statistics of devices ([`Description`]), or from running
//! attribution ([`exact`]). The statistics of a device bound what it needs, if each conversion
//! concerns only the impression that it comes from. Exact counts cover only the devices and epochs
//! in which something is paid, and every site with an impression that could get credit pays. So
//! exact counts can exceed the paper's statistics.

use bigbird::{Filter, FilterKind, PolicyError, Profile, SiteId};

use crate::describe::{Counts, Description, Estimate};
use crate::evaluation::replay::{Observer, ReportRow, Scene};
use crate::evaluation::{LabError, Laboratory, QuerierOptions};
use crate::workload::Workload;

/// N, M and n of each device and epoch, as the closed form defines them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exact {
    /// The number of conversion sites that request reports that cost something (N).
    pub conversion_sites: Counts,
    /// The number of impression sites with impressions in those reports (M).
    pub impression_sites: Counts,
    /// The number of conversion sites that ask about one impression site (n).
    pub fan_out: Counts,
}

impl Exact {
    pub(crate) fn add(&mut self, other: &Self) {
        self.conversion_sites.add_all(&other.conversion_sites);
        self.impression_sites.add_all(&other.impression_sites);
        self.fan_out.add_all(&other.fan_out);
    }

    /// The parameters that suffice for `percent` percent of devices and epochs. None if no report
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

/// Runs attribution with every conversion site as a querier and without effective limits, and
/// counts which sites pay.
///
/// # Errors
/// If a part of the workload is on disk and cannot be read.
pub fn exact(workload: &Workload, lookback_epochs: u16, threads: usize) -> Result<Exact, LabError> {
    let everyone = QuerierOptions {
        min_conversions_a_day: 0,
        ..QuerierOptions::default()
    };
    // Filters this large never refuse, but they are charged, so the charges can be counted.
    const PLENTY: f64 = 1e6;
    let mut policy = Profile::BigBird.policy().to_builder().no_domain_cap();
    for kind in [
        FilterKind::QuerierBudget,
        FilterKind::GlobalBudget,
        FilterKind::ImpressionSiteQuota,
        FilterKind::ConversionSiteQuota,
    ] {
        policy = policy.capacity(kind, PLENTY);
    }
    let policy = policy.build()?;
    let laboratory = Laboratory::with_lookback(workload, everyone, lookback_epochs, threads)?;
    let mut exact = Exact::default();
    for counted in laboratory.observe(&policy, None, PayingSites::default)? {
        exact.add(&counted.exact);
    }
    Ok(exact)
}

/// Counts the sites that pay.
#[derive(Debug, Default)]
struct PayingSites {
    exact: Exact,
    /// The epoch, the impression site and the conversion site of each charge on the device.
    pairs: Vec<(i64, SiteId, SiteId)>,
    scratch: Vec<SiteId>,
}

impl Observer for PayingSites {
    fn report(&mut self, row: &ReportRow, scene: &Scene<'_>) {
        let conversion_site = SiteId(row.conversion.conversion_site);
        for charge in &scene.workspace.changes().charges {
            if let Filter::ImpressionSiteQuota(site) = charge.filter {
                self.pairs.push((charge.epoch.0, site, conversion_site));
            }
        }
    }

    fn end_device(&mut self) {
        self.pairs.sort_unstable();
        self.pairs.dedup();
        for of_epoch in self.pairs.chunk_by(|one, next| one.0 == next.0) {
            let mut sites = 0;
            for of_site in of_epoch.chunk_by(|one, next| one.1 == next.1) {
                sites += 1;
                self.exact.fan_out.add(of_site.len());
            }
            self.exact.impression_sites.add(sites);
            self.scratch.clear();
            self.scratch.extend(of_epoch.iter().map(|pair| pair.2));
            self.scratch.sort_unstable();
            self.scratch.dedup();
            self.exact.conversion_sites.add(self.scratch.len());
        }
        self.pairs.clear();
    }
}

/// Step 2, with the paper's statistics of devices. None if nothing was counted.
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
