//! The shop's aggregation service: it verifies reports, sums them, and shows noised sums next to
//! the true ones. It has the keys of both aggregators, which nobody has in a deployment.

use std::collections::HashSet;

use bigbird::{Epsilon, MicroEpsilon, Timestamp};
use bigbird_dap::messages::{DapReport, Decode as _, ReportId};
use bigbird_dap::{
    Acceptance, AggregateSum, AggregationService, AggregationTask, AggregatorKeys, Collector,
    Helper, LaplaceNoise, Leader, NoiseSource, TaskTerms, VdafKind,
};
use serde_json::{Value, json};

use super::population::{ADS, SHOP};
use crate::error::BrowserError;

/// The epsilon of each report, and of the sums.
pub const EPSILON: f64 = 0.5;

/// The sums of all reports, and what each of the visitor's own reports holds.
#[derive(Debug)]
pub(super) struct Aggregates {
    leader: Leader,
    helper: Helper,
    noise: LaplaceNoise,
    /// The sums of the shares, of which each aggregator knows one.
    sums: [AggregateSum; 2],
    counted: HashSet<ReportId>,
    reports: u64,
    people: Option<u32>,
    own: Vec<OwnReport>,
    /// The noised sums, drawn once for each new set of reports.
    noised: Option<Vec<i64>>,
}

/// A report that the visitor's browser made.
#[derive(Debug, Clone)]
struct OwnReport {
    bytes: usize,
    /// The histogram, or why the report was refused.
    content: Result<Vec<i64>, String>,
}

fn failed<E: std::fmt::Display>(operation: &'static str) -> impl Fn(E) -> BrowserError {
    move |error| BrowserError::Demo {
        operation,
        message: error.to_string(),
    }
}

impl Aggregates {
    /// No reports yet.
    pub(super) fn new(
        service: &AggregationService,
        [leader, helper]: [AggregatorKeys; 2],
        now: Timestamp,
    ) -> Result<Self, BrowserError> {
        let terms = TaskTerms {
            collector: SHOP,
            budget_source: SHOP,
            histogram_size: u32::try_from(ADS.len()).unwrap_or(u32::MAX),
            max_value: 1,
            vdaf: VdafKind::L1BoundSum,
        };
        let task = AggregationTask::new(service, &terms).map_err(failed("make the task"))?;
        let epsilon = Epsilon::new(EPSILON).map_err(failed("make the task"))?;
        let (seconds, day) = (now.0.div_euclid(1000), 86_400);
        let acceptance = Acceptance {
            budget: epsilon.micro(),
            times: task.time(seconds - 60 * day)..=task.time(seconds + 60 * day),
        };
        let start = failed("start the aggregators");
        let noise = LaplaceNoise::new(1, MicroEpsilon::new(epsilon.micro().get()));
        Ok(Self {
            leader: Leader::new(leader, task.clone(), acceptance.clone()).map_err(&start)?,
            helper: Helper::new(helper, task, acceptance).map_err(&start)?,
            noise: noise.map_err(failed("start the aggregators"))?,
            sums: [AggregateSum::zero(ADS.len()), AggregateSum::zero(ADS.len())],
            counted: HashSet::new(),
            reports: 0,
            people: None,
            own: Vec::new(),
            noised: None,
        })
    }

    /// Adds the reports of simulated people.
    pub(super) fn add_people(&mut self, people: u32, reports: &[Vec<u8>]) {
        for report in reports {
            // What is refused is not counted, as for anybody.
            let _ = self.add(report);
        }
        self.people = Some(people);
    }

    /// Adds a report that the visitor's browser uploaded.
    pub(super) fn add_own(&mut self, report: &[u8]) {
        let content = self.add(report);
        self.own.push(OwnReport {
            bytes: report.len(),
            content,
        });
    }

    /// Verifies a report and adds its shares to the sums. Returns what it holds, which only
    /// somebody with both keys can know.
    fn add(&mut self, report: &[u8]) -> Result<Vec<i64>, String> {
        let report = DapReport::get_decoded(report).map_err(|_| "not a report".to_owned())?;
        let id = report.metadata.report_id;
        if self.counted.contains(&id) {
            return Err("counted before".to_owned());
        }
        let refused = |refusal: bigbird_dap::ReportRefusal| refusal.to_string();
        self.leader.check(&report.metadata).map_err(refused)?;
        let (state, share) = self.leader.begin(report).map_err(refused)?;
        let (helpers, answer) = self.helper.respond(&share).map_err(refused)?;
        let leaders = self.leader.finish(id, state, &answer).map_err(refused)?;
        self.sums[0].add(&leaders);
        self.sums[1].add(&helpers);
        self.counted.insert(id);
        self.reports += 1;
        self.noised = None;
        Ok(self.together(&leaders, &helpers))
    }

    /// What two shares are together.
    fn together(&self, leader: &AggregateSum, helper: &AggregateSum) -> Vec<i64> {
        let combined = Collector.combine(leader, helper, 0, &self.noise, NoiseSource::Both);
        combined.buckets
    }

    /// Everything that the shop's page shows.
    pub(super) fn facts(&mut self) -> Value {
        let [leader, helper] = self.sums.clone();
        let truth = self.together(&leader, &helper);
        if self.noised.is_none() {
            let [mut leader, mut helper] = self.sums.clone();
            let mut rng = rand::rng();
            let noised = self
                .noise
                .add_to(&mut leader, &mut rng)
                .and_then(|()| self.noise.add_to(&mut helper, &mut rng));
            // Never shown without noise.
            self.noised = noised.ok().map(|()| self.together(&leader, &helper));
        }
        let own: Vec<Value> = self
            .own
            .iter()
            .map(|report| match &report.content {
                Ok(buckets) => json!({"bytes": report.bytes, "buckets": buckets}),
                Err(why) => json!({"bytes": report.bytes, "refused": why}),
            })
            .collect();
        json!({
            "ads": ADS,
            "true": truth,
            "noised": self.noised,
            "standardDeviation": self.noise.standard_deviation(NoiseSource::Both),
            "epsilon": EPSILON,
            "reports": self.reports,
            "people": self.people,
            "own": own,
        })
    }
}
