//! The aggregators accept what the gate makes, like the reports of any other device.
#![allow(missing_docs, clippy::unwrap_used)]

use std::convert::Infallible;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bigbird::{MicroEpsilon, Timestamp};
use bigbird_dap::{
    Aggregation, AggregationService, AggregationStore, AggregationTask, AggregatorKeys, DapVersion,
    NoiseSource, TaskSettings, TaskTerms, VdafKind,
};
use bigbird_wasm::BrowserGate;
use serde_json::{Value, json};

const SERVICE: &str = "https://agg.example";
const NOW: i64 = 1_790_000_000;

/// An epsilon at which the noise is zero, but for a probability far below 2⁻¹⁰⁰⁰.
const NO_NOISE: f64 = 4294.0;

#[test]
fn the_aggregators_accept_the_reports_of_the_gate() {
    for version in [DapVersion::Dap18, DapVersion::Dap19] {
        for (size, max_value) in [(1, 1), (5, 100), (100, 7), (1024, 1)] {
            aggregates(version, size, max_value);
        }
    }
}

fn aggregates(version: DapVersion, size: u32, max_value: u32) {
    let keys = AggregatorKeys::generate(7).unwrap();
    let [leader, helper] = keys.each_ref().map(|keys| keys.hpke.recipient().clone());
    let service = AggregationService::new(
        SERVICE,
        TaskSettings::new(version),
        ("https://leader.example/", leader),
        ("https://helper.example/", helper),
    )
    .unwrap();
    let reports: Vec<_> = reports(&service, size, max_value);

    let terms = TaskTerms {
        collector: "adtech.example",
        budget_source: "shop.example",
        histogram_size: size,
        max_value,
        vdaf: VdafKind::L1BoundSum,
    };
    let task = AggregationTask::new(&service, &terms).unwrap();
    let budget = MicroEpsilon::from_epsilon(NO_NOISE).unwrap();
    let store = AggregationStore::in_memory().unwrap();
    let times = task.time(NOW - 10)..=task.time(NOW + 200);
    let batch = Aggregation::new(store, keys, &task, "batch", Some(budget), times);
    let mut batch = batch.unwrap();
    let tally = batch.add(reports.into_iter().map(Ok::<_, Infallible>), |_| {});
    let tally = tally.unwrap();
    assert_eq!((tally.accepted, tally.refused.len()), (20, 0));
    let sum = batch.query(budget, NoiseSource::Both, &mut rand::rng());
    assert_eq!(sum.unwrap().buckets, vec![0; size as usize]);
}

/// Null reports of a gate that knows the service from its file.
fn reports(service: &AggregationService, size: u32, max_value: u32) -> Vec<Vec<u8>> {
    let mut gate = BrowserGate::default();
    let file = service.to_toml().unwrap();
    let configured = gate.configure(&json!({ "services": file }).to_string());
    assert!(configured.starts_with(r#"{"ok":true"#), "{configured}");
    let request = json!({
        "event": "measureConversion",
        "site": "www.shop.example",
        "intermediarySite": "adtech.example",
        "options": {
            "aggregationService": SERVICE,
            "histogramSize": size,
            "maxValue": max_value,
            "epsilon": NO_NOISE,
        },
    });
    let request = request.to_string();
    (0..20)
        .map(|call| {
            let now = Timestamp((NOW + 10 * call) * 1000);
            let answer: Value = serde_json::from_str(&gate.answer(&request, now)).unwrap();
            STANDARD.decode(answer["report"].as_str().unwrap()).unwrap()
        })
        .collect()
}
