//! What the tests of this crate share.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::convert::Infallible;

use bigbird::MicroEpsilon;
use bigbird_dap::messages::Encode as _;
use bigbird_dap::{
    Aggregation, AggregationService, AggregationStore, AggregationTask, AggregatorKeys, DapVersion,
    ReportTally, TaskSettings, TaskTerms, VdafKind, seal,
};

pub(crate) const SERVICE: &str = "https://agg.example";

/// The moment of reports, in seconds since 1970.
pub(crate) const NOW: i64 = 1_790_000_000;

/// A service with its keys.
pub(crate) fn service(settings: TaskSettings) -> (AggregationService, [AggregatorKeys; 2]) {
    let keys = AggregatorKeys::generate(7).unwrap();
    let [leader, helper] = keys.each_ref().map(|keys| keys.hpke.recipient().clone());
    let service = AggregationService::new(
        SERVICE,
        settings,
        ("https://leader.example/", leader),
        ("https://helper.example/", helper),
    );
    (service.unwrap(), keys)
}

/// A task, the keys of its aggregators, and batches of it.
pub(crate) struct TaskSetup {
    pub(crate) task: AggregationTask,
    pub(crate) keys: [AggregatorKeys; 2],
}

pub(crate) fn terms(histogram_size: u32, max_value: u32) -> TaskTerms<'static> {
    TaskTerms {
        collector: "adtech.example",
        budget_source: "shop.example",
        histogram_size,
        max_value,
        vdaf: VdafKind::L1BoundSum,
    }
}

pub(crate) fn micro(epsilon: f64) -> MicroEpsilon {
    MicroEpsilon::from_epsilon(epsilon).unwrap()
}

impl TaskSetup {
    pub(crate) fn new(terms: &TaskTerms<'_>) -> Self {
        Self::with(TaskSettings::new(DapVersion::default()), terms)
    }

    pub(crate) fn with(settings: TaskSettings, terms: &TaskTerms<'_>) -> Self {
        let (service, keys) = service(settings);
        let task = AggregationTask::new(&service, terms).unwrap();
        Self { task, keys }
    }

    /// An encoded report.
    pub(crate) fn report(&self, histogram: &[u32], epsilon: f64) -> Vec<u8> {
        let report = seal(&self.task, histogram, micro(epsilon), NOW).unwrap();
        report.get_encoded().unwrap()
    }

    /// Both aggregators, on a batch of some budget.
    pub(crate) fn aggregation(
        &self,
        store: AggregationStore,
        batch: &str,
        budget: f64,
    ) -> Aggregation {
        let now = self.task.time(NOW);
        let budget = Some(micro(budget));
        let times = now - 1000..=now + 10;
        let keys = self.keys.clone();
        Aggregation::new(store, keys, &self.task, batch, budget, times).unwrap()
    }

    pub(crate) fn in_memory(&self, budget: f64) -> Aggregation {
        self.aggregation(AggregationStore::in_memory().unwrap(), "batch", budget)
    }
}

/// Adds reports.
pub(crate) fn add(aggregation: &mut Aggregation, reports: &[Vec<u8>]) -> ReportTally {
    let reports = reports.iter().cloned().map(Ok::<_, Infallible>);
    aggregation.add(reports, |_| {}).unwrap()
}

/// An epsilon at which the noise is zero, but for a probability far below 2⁻¹⁰⁰⁰.
pub(crate) const NO_NOISE: f64 = 4294.0;
