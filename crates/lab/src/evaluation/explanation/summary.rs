//! Summaries: what limits cost each querier of a log.

use std::collections::BTreeMap;

use bigbird::{Limit, MicroEpsilon};
use serde::Serialize;

use super::{ReportOutcome, asked_epsilon};
use crate::evaluation::laboratory::Laboratory;
use crate::evaluation::results::ByLimit;

/// A log, summed up by querier.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LogSummary {
    /// The queriers, those that lost the most value first.
    pub sites: Vec<SiteSummary>,
}

/// The reports of one querier, summed up.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SiteSummary {
    /// The querier.
    pub site: String,
    /// The epsilon that it asks for when a conversion has its largest value.
    pub epsilon: f64,
    /// The number of reports.
    pub reports: u64,
    /// The reports that are what they would be without limits.
    pub complete: u64,
    /// The reports that are null because no ad matched.
    pub nothing_matched: u64,
    /// The reports that are null because of a limit.
    pub lost: u64,
    /// The reports whose value is in another bucket because of a limit.
    pub moved: u64,
    /// The reports from which a limit withheld something, by first cause. It may have been
    /// something that made no difference.
    pub blocked: ByLimit<u64>,
    /// The value of all conversions to which an ad matched.
    pub value: u64,
    /// The part of this value that is not where it would be without limits.
    pub value_lost: u64,
    /// The largest epsilon with which limits would have withheld nothing from 95% of the reports
    /// to which an ad matched, if this site had asked for it from the beginning and others had
    /// paid what they did. At most the epsilon that the site asks for. None if there is none.
    pub epsilon_for_95_percent: Option<f64>,
}

impl LogSummary {
    pub(super) fn new(laboratory: &Laboratory<'_>, counts: Vec<SiteCounts>) -> Self {
        let names = &laboratory.workload().conversion_site_names;
        let queriers = laboratory.queriers().iter().zip(counts);
        let summaries = queriers.map(|(querier, counts)| {
            let of = |outcome: ReportOutcome| counts.outcomes[outcome as usize];
            SiteSummary {
                site: names[querier.site as usize].clone(),
                epsilon: asked_epsilon(querier),
                reports: counts.outcomes.iter().sum(),
                complete: of(ReportOutcome::Complete),
                nothing_matched: of(ReportOutcome::NothingMatched),
                lost: of(ReportOutcome::Lost),
                moved: of(ReportOutcome::Moved),
                blocked: ByLimit(counts.blocked),
                value: counts.value,
                value_lost: counts.value_lost,
                epsilon_for_95_percent: counts.fitting(95, asked_epsilon(querier)),
            }
        });
        let mut sites: Vec<SiteSummary> = summaries.collect();
        sites.sort_by_key(|site| std::cmp::Reverse(site.value_lost));
        Self { sites }
    }
}

/// Whole numbers about the reports of one querier, which merge.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SiteCounts {
    outcomes: [u64; ReportOutcome::ALL.len()],
    blocked: [u64; Limit::ALL.len()],
    value: u64,
    value_lost: u64,
    /// The number of reports that need a smaller epsilon, by the largest one that fits, in µε.
    smaller: BTreeMap<u64, u64>,
}

impl SiteCounts {
    /// Adds a report. `epsilon` is the largest that fits, in µε, if it has to be smaller than the
    /// one that was asked for.
    pub(super) fn add(
        &mut self,
        value: u32,
        outcome: ReportOutcome,
        lost: u32,
        blocked: Option<Limit>,
        epsilon: Option<u64>,
    ) {
        self.outcomes[outcome as usize] += 1;
        if outcome != ReportOutcome::NothingMatched {
            self.value += u64::from(value);
        }
        self.value_lost += u64::from(lost);
        if let Some(limit) = blocked {
            self.blocked[limit as usize] += 1;
        }
        if let Some(epsilon) = epsilon {
            *self.smaller.entry(three_digits(epsilon)).or_default() += 1;
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        for (sum, more) in self.outcomes.iter_mut().zip(other.outcomes) {
            *sum += more;
        }
        for (sum, more) in self.blocked.iter_mut().zip(other.blocked) {
            *sum += more;
        }
        self.value += other.value;
        self.value_lost += other.value_lost;
        for (epsilon, count) in other.smaller {
            *self.smaller.entry(epsilon).or_default() += count;
        }
    }

    /// The largest epsilon with which this percentage of the reports to which an ad matched would
    /// have passed.
    fn fitting(&self, percent: u64, asked: f64) -> Option<f64> {
        let nothing = self.outcomes[ReportOutcome::NothingMatched as usize];
        let matched = self.outcomes.iter().sum::<u64>() - nothing;
        let enough = |passed: u64| 100 * u128::from(passed) >= u128::from(percent * matched);
        let mut passed = matched - self.smaller.values().sum::<u64>().min(matched);
        if enough(passed) {
            return Some(asked);
        }
        let mut smaller = self
            .smaller
            .iter()
            .rev()
            .filter(|(epsilon, _)| **epsilon > 0);
        smaller.find_map(|(epsilon, count)| {
            passed += count;
            enough(passed).then(|| MicroEpsilon::new(*epsilon).to_epsilon())
        })
    }
}

/// The number with three significant digits, rounded down, so that few numbers are kept.
fn three_digits(number: u64) -> u64 {
    let mut unit = 1;
    while number / unit >= 1000 {
        unit *= 10;
    }
    number / unit * unit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_digits() {
        assert_eq!(
            [0, 7, 999, 1000, 1009, 123_456].map(three_digits),
            [0, 7, 999, 1000, 1000, 123_000]
        );
    }

    /// Of 100 reports with a matching ad, 90 pass, 8 need 0.5 and 2 pass with no epsilon.
    #[test]
    fn the_fitting_epsilon_is_a_percentile() {
        let mut counts = SiteCounts::default();
        let mut add = |count, epsilon| {
            for _ in 0..count {
                counts.add(1, ReportOutcome::Complete, 0, None, epsilon);
            }
        };
        add(90, None);
        add(8, Some(500_000));
        add(2, Some(0));
        for _ in 0..1000 {
            counts.add(1, ReportOutcome::NothingMatched, 0, None, None);
        }
        assert_eq!(counts.fitting(90, 1.0), Some(1.0));
        assert_eq!(counts.fitting(95, 1.0), Some(0.5));
        assert_eq!(counts.fitting(98, 1.0), Some(0.5));
        assert_eq!(counts.fitting(99, 1.0), None);
    }
}
