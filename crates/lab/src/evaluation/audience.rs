//! The visits that an attacker hears of.

use super::querier::{Querier, QuerierOptions};
use crate::attack::{Attack, HeardVisits};
use crate::workload::{EventKind, Part, Workload, WorkloadEvent};

/// The number of impressions on each impression site that attackers can hear of, counted part by
/// part. Attackers own the busiest sites, so these counts decide what they own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeardVisitCounts {
    impressions: Vec<u64>,
    /// The conversion sites whose events attackers can hear of.
    heard: Vec<bool>,
}

impl HeardVisitCounts {
    /// No visits yet.
    pub fn new(workload: &Workload, queriers: &[Querier], options: &QuerierOptions) -> Self {
        let mut heard = vec![options.all_visits; workload.conversion_site_names.len()];
        for querier in queriers {
            heard[querier.site as usize] = true;
        }
        Self {
            impressions: vec![0; workload.impression_site_names.len()],
            heard,
        }
    }

    /// Adds the impressions of a part.
    pub fn add(&mut self, part: &Part) {
        for event in part.events() {
            if let EventKind::Impression { site, .. } = event.kind
                && self.heard[event.conversion_site as usize]
            {
                self.impressions[site as usize] += 1;
            }
        }
    }

    /// Adds the impressions of other parts.
    pub fn merge(&mut self, other: &Self) {
        for (sum, more) in self.impressions.iter_mut().zip(&other.impressions) {
            *sum += more;
        }
    }
}

/// The visits that one attacker hears of.
#[derive(Debug, Clone)]
pub struct AttackAudience {
    visits: HeardVisits,
    /// The conversion sites whose events can be heard of at all.
    heard: Vec<bool>,
    impression_sites: Vec<bool>,
    conversion_sites: Vec<bool>,
}

impl AttackAudience {
    /// The visits to the sites that the attacker owns. Its impression sites have the most
    /// impressions, and its conversion sites the most reports. Sites that are equally busy are
    /// ordered by name.
    pub fn new(
        attack: &Attack<'_>,
        workload: &Workload,
        queriers: &[Querier],
        counts: &HeardVisitCounts,
    ) -> Self {
        let mut measured = vec![0; workload.conversion_site_names.len()];
        for querier in queriers {
            measured[querier.site as usize] = querier.conversions;
        }
        let strength = attack.strength;
        let ranked = |counts: &[u64], names: &[String], owned: u32| {
            let mut sites: Vec<usize> = (0..counts.len()).filter(|at| counts[*at] > 0).collect();
            sites.sort_by(|one, other| {
                let by_count = counts[*other].cmp(&counts[*one]);
                by_count.then_with(|| names[*one].cmp(&names[*other]))
            });
            let mut is_owned = vec![false; counts.len()];
            let first = strength.first_rank.saturating_sub(1) as usize;
            for site in sites.into_iter().skip(first).take(owned as usize) {
                is_owned[site] = true;
            }
            is_owned
        };
        let visits = attack.attacker.audience();
        let impression_sites = match visits {
            HeardVisits::OneImpressionSite => 1,
            _ => strength.impression_sites,
        };
        let conversion_sites = match visits {
            HeardVisits::OneConversionSite => 1,
            _ => strength.conversion_sites,
        };
        Self {
            visits,
            heard: counts.heard.clone(),
            impression_sites: ranked(
                &counts.impressions,
                &workload.impression_site_names,
                impression_sites,
            ),
            conversion_sites: ranked(&measured, &workload.conversion_site_names, conversion_sites),
        }
    }

    /// True if the attacker hears of an event.
    #[inline]
    pub fn hears(&self, event: &WorkloadEvent) -> bool {
        if !self.heard[event.conversion_site as usize] {
            return false;
        }
        match event.kind {
            EventKind::Impression { site, .. } if self.visits != HeardVisits::OneConversionSite => {
                self.impression_sites[site as usize]
            }
            _ => self.conversion_sites[event.conversion_site as usize],
        }
    }
}
