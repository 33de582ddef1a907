//! Explanations: why each report of a log is what it is, and what that costs each querier.
//!
//! [`explain`] replays a log and looks at every report. Each becomes an [`ExplainedReport`]: what
//! was released, what limits withheld, which filter could not pay, and which epsilon would have
//! fitted. The rows come out in the order of time, whatever the number of threads and parts, and
//! those that do not fit into memory wait in temporary files. A [`SiteSummary`] adds up the reports
//! of one querier.
//!
//! A row says what [`Explanation`](https://docs.rs/bigbird-user-agent) says on a user agent that
//! gets the same calls: the reason and the epsilon come from the same code
//! ([`Decision::drop_reason`], [`AttributionQuery::largest_epsilon`]).
//!
//! [`Decision::drop_reason`]: bigbird::Decision::drop_reason

mod sorting;
mod summary;
mod writing;

use std::collections::HashMap;
use std::convert::Infallible;

use bigbird::{
    AttributionQuery, Cause, Decision, EpochIndex, Filter, Limit, MicroEpsilon, Policy, SiteId,
    Workspace, generate_report,
};
use serde::Serialize;
use thiserror::Error;

pub use summary::{LogSummary, SiteSummary};
pub use writing::{RowFormat, RowWriter};

use self::sorting::{CompactRow, NO_SITE, NO_VALUE, RowSorter};
use self::summary::SiteCounts;
use super::laboratory::{LabError, Laboratory};
use super::replay::{Observer, ReportRow, Scene, Unlimited};
use crate::attack::Attack;
use crate::workload::Workload;

/// A report of a log, explained. Amounts are in ε.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedReport<'n> {
    /// The site that gets the report.
    pub querier: &'n str,
    /// The device, as the `order` of its first report.
    pub device: u32,
    /// The time of the conversion, in minutes.
    pub minute: u32,
    /// The place of the conversion in the log: its `order`, or the number of its row, counted from
    /// 0, if the log has no such column.
    pub order: u32,
    /// The epoch of the conversion.
    pub epoch: i64,
    /// The value of the conversion.
    pub value: u32,
    /// The epsilon of the request.
    pub epsilon: f64,
    /// The outcome.
    pub outcome: ReportOutcome,
    /// The bucket that has the value. None if the report is null.
    pub bucket: Option<u16>,
    /// The bucket that would have the value without limits.
    pub bucket_without_limits: Option<u16>,
    /// The value that is missing in that bucket.
    pub lost: u32,
    /// The first cause, as the [key](Limit::key) of a limit. None if no epoch was dropped.
    pub cause: Option<&'static str>,
    /// The epoch that was dropped for this cause. If there are several, it is the latest.
    pub dropped_epoch: Option<i64>,
    /// The site of the filter that could not pay. None if the filter belongs to no site.
    pub filter_site: Option<&'n str>,
    /// The amount that the filter was asked to pay.
    pub asked: Option<f64>,
    /// The amount that the filter had paid before.
    pub consumed: Option<f64>,
    /// The capacity of the filter.
    pub capacity: Option<f64>,
    /// The amount that the filter lacked.
    pub missing: Option<f64>,
    /// The largest epsilon that would have fitted. None if nothing was dropped, or no epsilon would
    /// have fitted.
    pub largest_epsilon: Option<f64>,
}

/// What became of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ReportOutcome {
    /// The report is what it would be without limits.
    Complete,
    /// The report is null, also without limits: no ad matched.
    NothingMatched,
    /// The report is null because of a limit.
    Lost,
    /// The value is in another bucket, because a limit hid the ad that it belongs to.
    Moved,
}

impl ReportOutcome {
    const ALL: [Self; 4] = [
        Self::Complete,
        Self::NothingMatched,
        Self::Lost,
        Self::Moved,
    ];

    /// The outcome of a report with its value in `bucket` that would have it in `full`.
    fn new(bucket: Option<u16>, full: Option<u16>) -> Self {
        match (bucket, full) {
            (None, None) => Self::NothingMatched,
            (bucket, full) if bucket == full => Self::Complete,
            (None, Some(_)) => Self::Lost,
            (Some(_), _) => Self::Moved,
        }
    }
}

/// The reason why a log cannot be explained.
#[derive(Debug, Error)]
pub enum ExplainError {
    /// The log cannot be replayed.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// The rows cannot be kept until they are sorted.
    #[error("cannot use a temporary file in {folder}: {cause}")]
    Temporary {
        /// The folder of temporary files.
        folder: String,
        /// The reason.
        cause: std::io::Error,
    },
    /// The rows cannot be written.
    #[error("{path}: {cause}")]
    Write {
        /// The file.
        path: String,
        /// The reason.
        cause: String,
    },
}

/// Replays a log, gives a row for each report to `writer`, and sums up.
///
/// # Errors
/// If the log cannot be read, rows cannot be kept in temporary files, or the writer fails.
pub fn explain(
    laboratory: &Laboratory<'_>,
    policy: &Policy,
    attack: Option<Attack<'_>>,
    writer: Option<RowWriter>,
) -> Result<LogSummary, ExplainError> {
    // Without limits, the policy is valid: the error is found here, before the threads start.
    Unlimited::new().map_err(LabError::from)?;
    let keep_rows = writer.is_some();
    let observers = laboratory.observe(policy, attack, || {
        ReportExplainer::new(laboratory, keep_rows)
    })?;
    let mut sorters = Vec::new();
    let mut counts: Vec<SiteCounts> = Vec::new();
    counts.resize_with(laboratory.queriers().len(), SiteCounts::default);
    for observer in observers {
        for (sum, more) in counts.iter_mut().zip(observer.counts) {
            sum.merge(more);
        }
        sorters.push(observer.rows);
    }
    if let Some(mut writer) = writer {
        let names = NamesOfSites(laboratory.workload());
        let epsilons: Vec<f64> = (laboratory.queriers().iter().map(asked_epsilon)).collect();
        sorting::merge(sorters, |row| writer.push(&names.explained(row, &epsilons)))?;
        writer.finish()?;
    }
    Ok(LogSummary::new(laboratory, counts))
}

/// The ε of a report, as it is asked for: in whole µε.
fn asked_epsilon(querier: &super::querier::Querier) -> f64 {
    bigbird::Epsilon::new(querier.epsilon())
        .map_or(f64::NAN, |epsilon| epsilon.micro().to_epsilon())
}

/// An observer that explains reports.
#[derive(Debug)]
struct ReportExplainer {
    unlimited: Option<Unlimited>,
    /// The conversion site of each querier.
    sites: Vec<u32>,
    counts: Vec<SiteCounts>,
    rows: RowSorter,
    keep_rows: bool,
    /// The `order` of the first report of the current device.
    device: Option<u32>,
    /// What each querier asked on the current device, and paid.
    own: HashMap<(usize, EpochIndex, Filter), OwnUse>,
    workspace: Workspace<AttributionQuery>,
}

/// What one querier asked of a filter, and paid.
#[derive(Debug, Clone, Copy, Default)]
struct OwnUse {
    asked: u64,
    paid: u64,
}

impl ReportExplainer {
    fn new(laboratory: &Laboratory<'_>, keep_rows: bool) -> Self {
        let queriers = laboratory.queriers();
        let mut counts = Vec::new();
        counts.resize_with(queriers.len(), SiteCounts::default);
        Self {
            unlimited: Unlimited::new().ok(),
            sites: queriers.iter().map(|querier| querier.site).collect(),
            counts,
            rows: RowSorter::default(),
            keep_rows,
            device: None,
            own: HashMap::new(),
            workspace: Workspace::default(),
        }
    }

    /// The largest epsilon with which the dropped epochs would have passed.
    ///
    /// The report has been paid for already, but every epoch is decided on its own, and those that
    /// were dropped have paid nothing.
    fn largest_epsilon(&mut self, decision: &Decision, scene: &Scene<'_>) -> Option<MicroEpsilon> {
        if !decision.depends_on_epsilon() {
            return None;
        }
        let (device, workspace) = (scene.device, &mut self.workspace);
        let found = scene.query.largest_epsilon(|query| {
            let (policy, events) = (device.policy(), device.events());
            let ledger = device.ledger();
            let decided: Result<(), Infallible> =
                generate_report(policy, events, ledger, query, &mut || 0.0, workspace);
            let Ok(()) = decided;
            Ok::<_, Infallible>(decision.dropped_pass_in(workspace.decision()))
        });
        let Ok(epsilon) = found;
        epsilon
    }

    /// The largest epsilon with which this report would have passed if its querier had used that
    /// epsilon in all of its requests on this device, and others had paid what they did. Losses are
    /// proportional to epsilon. None if it is not smaller than the epsilon that was used.
    fn site_epsilon(&mut self, querier: usize, decision: &Decision, asked: u64) -> Option<u64> {
        let mut smallest = asked;
        for epoch in decision.epochs() {
            if epoch.fate == bigbird::Fate::Dropped(Cause::DomainCap) {
                smallest = 0;
            }
            for check in epoch.checks {
                let own = self.own.entry((querier, epoch.epoch, check.filter));
                let own = own.or_default();
                own.asked += check.asked.get();
                if let Some(capacity) = check.balance.capacity.amount() {
                    let others = check.balance.consumed.get().saturating_sub(own.paid);
                    let left = capacity.get().saturating_sub(others);
                    if own.asked > left {
                        let epsilon = u128::from(asked) * u128::from(left) / u128::from(own.asked);
                        smallest = smallest.min(u64::try_from(epsilon).unwrap_or(u64::MAX));
                    }
                }
                if epoch.fate == bigbird::Fate::Passed {
                    own.paid += check.asked.get();
                }
            }
        }
        (smallest < asked).then_some(smallest)
    }
}

impl Observer for ReportExplainer {
    fn report(&mut self, row: &ReportRow, scene: &Scene<'_>) {
        let decision = scene.workspace.decision();
        let full = match &mut self.unlimited {
            Some(unlimited) => unlimited.bucket(row, scene),
            None => row.bucket,
        };
        let outcome = ReportOutcome::new(row.bucket, full);
        let lost = match outcome {
            ReportOutcome::Lost | ReportOutcome::Moved if full.is_some() => row.value,
            _ => 0,
        };
        let reason = decision.drop_reason();
        let asked = scene.query.epsilon().micro().get();
        let site_epsilon = self.site_epsilon(row.querier, decision, asked);
        let blocked = row.blocked;
        self.counts[row.querier].add(row.value, outcome, lost, blocked, full.and(site_epsilon));
        let device = *self.device.get_or_insert(row.conversion.row);
        if !self.keep_rows {
            return;
        }
        let largest = match reason {
            Some(_) => self.largest_epsilon(decision, scene),
            None => None,
        };
        let check = reason.and_then(|reason| reason.shortfall);
        let amount = |amount: fn(&bigbird::Check) -> MicroEpsilon| {
            check.as_ref().map_or(NO_VALUE, |check| amount(check).get())
        };
        self.rows.push(CompactRow {
            minute: row.conversion.minute,
            order: row.conversion.row,
            querier: self.sites[row.querier],
            querier_number: u32::try_from(row.querier).unwrap_or(u32::MAX),
            device,
            epoch: row.conversion.epoch,
            value: row.value,
            bucket: row.bucket.unwrap_or(u16::MAX),
            full: full.unwrap_or(u16::MAX),
            outcome: outcome as u8,
            lost,
            cause: blocked.map_or(u8::MAX, |limit| limit as u8),
            dropped_epoch: reason.map_or(NO_VALUE, |reason| reason.epoch.0.cast_unsigned()),
            filter_site: check
                .and_then(|it| it.filter.site())
                .map_or(NO_SITE, |it| it.0),
            asked: amount(|check| check.asked),
            consumed: amount(|check| check.balance.consumed),
            capacity: amount(|check| check.balance.capacity.amount().unwrap_or_default()),
            missing: amount(bigbird::Check::short_by),
            largest_epsilon: largest.map_or(NO_VALUE, MicroEpsilon::get),
        });
    }

    fn end_device(&mut self) {
        self.device = None;
        self.own.clear();
    }
}

/// The names of the sites of a workload.
struct NamesOfSites<'w>(&'w Workload);

impl<'w> NamesOfSites<'w> {
    /// The name of a site by its id on a device. Impression sites are numbered after conversion
    /// sites, and the sites that an attacker made up after those.
    fn site(&self, SiteId(id): SiteId) -> &'w str {
        let (conversion_sites, impression_sites) =
            (&self.0.conversion_site_names, &self.0.impression_site_names);
        let id = id as usize;
        let name = conversion_sites
            .get(id)
            .or_else(|| impression_sites.get(id - conversion_sites.len()));
        name.map_or("a site of the attacker", String::as_str)
    }

    fn explained(&self, row: &CompactRow, epsilons: &[f64]) -> ExplainedReport<'w> {
        let bucket = |bucket: u16| (bucket != u16::MAX).then_some(bucket);
        let epsilon = |micro: u64| {
            let known = (micro != NO_VALUE).then_some(micro);
            known.map(|micro| MicroEpsilon::new(micro).to_epsilon())
        };
        let site = (row.filter_site != NO_SITE).then_some(SiteId(row.filter_site));
        let cause = Limit::ALL.get(usize::from(row.cause));
        let dropped = (row.dropped_epoch != NO_VALUE).then(|| row.dropped_epoch.cast_signed());
        ExplainedReport {
            querier: self.site(SiteId(row.querier)),
            device: row.device,
            minute: row.minute,
            order: row.order,
            epoch: row.epoch.into(),
            value: row.value,
            epsilon: epsilons[row.querier_number as usize],
            outcome: ReportOutcome::ALL[usize::from(row.outcome)],
            bucket: bucket(row.bucket),
            bucket_without_limits: bucket(row.full),
            lost: row.lost,
            cause: cause.map(|limit| limit.key()),
            dropped_epoch: dropped,
            filter_site: site.map(|site| self.site(site)),
            asked: epsilon(row.asked),
            consumed: epsilon(row.consumed),
            capacity: epsilon(row.capacity),
            missing: epsilon(row.missing),
            largest_epsilon: epsilon(row.largest_epsilon),
        }
    }
}
