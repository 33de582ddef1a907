//! Nothing about a sealed report shows what was found: charged, null, cleared and disabled
//! conversions give reports of one length and one form. `cargo bench -p bigbird-dap --
//! --instructions` compares the instructions that it takes to make them.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use bigbird::{Histogram, HistogramSize, Profile, Timestamp};
use bigbird_dap::messages::{DapReport, Decode as _};
use bigbird_dap::{
    AggregationService, AggregatorKeys, ConfiguredServices, DapSealer, DapVersion, NoiseSource,
    TaskSettings,
};
use bigbird_testing::FixedRandomness;
use bigbird_user_agent::{
    Call, Config, ConversionOptions, ImpressionOptions, MemoryStore, Report, Seal as _,
    SealedReport, Site, UserAgent,
};
use common::{NO_NOISE, SERVICE, TaskSetup, add, micro};

const NOW: i64 = common::NOW * 1000;

fn agent(services: &ConfiguredServices) -> UserAgent<MemoryStore, FixedRandomness> {
    let mut config = Config::new(Profile::BigBird);
    config.aggregation_services = services.protocols();
    let mut agent =
        UserAgent::in_memory(config, FixedRandomness).sealing(DapSealer::new(services.clone()));
    let at = Timestamp(NOW - 1000);
    let action = agent.begin_user_action(at).unwrap();
    let seen = Call::new("news.example", at).by(action);
    agent
        .save_impression(&seen, &ImpressionOptions::new(1))
        .unwrap();
    agent
}

fn measure(
    agent: &mut UserAgent<MemoryStore, FixedRandomness>,
    size: u32,
    max_value: u32,
) -> SealedReport {
    let action = agent.begin_user_action(Timestamp(NOW)).unwrap();
    let call = Call {
        intermediary: Some("adtech.example"),
        ..Call::new("shop.example", Timestamp(NOW)).by(action)
    };
    let options = ConversionOptions {
        epsilon: 1.0,
        value: max_value,
        max_value,
        ..ConversionOptions::new(SERVICE, size)
    };
    agent.measure_conversion(&call, &options).unwrap().report
}

#[test]
fn reports_have_one_length_whatever_was_found() {
    let (service, _) = common::service(TaskSettings::new(DapVersion::default()));
    let mut services = ConfiguredServices::new();
    services.insert(service);
    for (size, max_value) in [(1, 1), (5, 1), (5, 100), (100, 7), (1000, 1), (2, u32::MAX)] {
        let mut lengths = Vec::new();
        let mut note = |report: &SealedReport| {
            assert!(report.histogram.is_none());
            let decoded = DapReport::get_decoded(&report.bytes).unwrap();
            lengths.push([
                report.bytes.len(),
                decoded.public_share.len(),
                decoded.leader_share.payload.len(),
                decoded.helper_share.payload.len(),
            ]);
        };
        let mut charged = agent(&services);
        note(&measure(&mut charged, size, max_value));
        // The budget is spent now.
        note(&measure(&mut charged, size, max_value));
        let mut disabled = agent(&services);
        disabled.set_enabled(false).unwrap();
        note(&measure(&mut disabled, size, max_value));
        let mut cleared = agent(&services);
        cleared
            .clear_browsing_history(&[], true, Timestamp(NOW))
            .unwrap();
        note(&measure(&mut cleared, size, max_value));
        // One that never took any work: over a limit, or with a store that failed.
        let call = Call {
            intermediary: Some("adtech.example"),
            ..Call::new("shop.example", Timestamp(NOW))
        };
        let options = ConversionOptions {
            value: max_value,
            max_value,
            ..ConversionOptions::new(SERVICE, size)
        };
        let call = cleared.gate().conversion(&call, &options).unwrap();
        note(&cleared.gate().null_report(&call.envelope()));
        assert!(
            lengths.windows(2).all(|pair| pair[0] == pair[1]),
            "{lengths:?}"
        );
    }
}

/// The length that history shows is the one that a report has, whatever its form and wherever its
/// service is. It is known without sealing.
#[test]
fn the_length_of_a_report_is_known_before_it_is_sealed() {
    let keys = AggregatorKeys::generate(7).unwrap();
    let [leader, helper] = keys.each_ref().map(|keys| keys.hpke.recipient().clone());
    let far = "a-very-long-path/".repeat(60);
    let service = AggregationService::new(
        SERVICE,
        TaskSettings::new(DapVersion::default()),
        (&format!("https://leader.example/{far}"), leader),
        (&format!("https://helper.example/{far}"), helper),
    );
    let (near, _) = common::service(TaskSettings::new(DapVersion::default()));
    let site = Site::from_stored("shop.example");
    let mut forms: Vec<(u32, u32)> = (1..=1024).step_by(93).map(|size| (size, 1)).collect();
    forms.extend((0..32).map(|bits| (3, 1 << bits)));
    forms.extend((1..=32).map(|bits| (7, u32::MAX >> (32 - bits))));
    forms.extend([
        (1, 1),
        (2, 1),
        (1024, 1),
        (1024, 255),
        (1024, u32::MAX),
        (1, u32::MAX),
    ]);
    for service in [near, service.unwrap()] {
        let mut services = ConfiguredServices::new();
        services.insert(service);
        let sealer = DapSealer::new(services);
        for (size, max_value) in forms.iter().copied() {
            let histogram = Histogram::null(HistogramSize::new(size).unwrap());
            let report = Report {
                histogram: &histogram,
                epsilon: micro(0.25),
                max_value,
                querier: &site,
                caller: &site,
                conversion_site: &site,
                aggregation_service: SERVICE,
                time: Timestamp(NOW),
            };
            let sealed = sealer.seal(&report);
            assert!(!sealed.is_empty());
            assert_eq!(
                sealer.sealed_length(&report),
                sealed.len(),
                "{size} buckets, at most {max_value}"
            );
        }
    }
    let unknown = Report {
        histogram: &Histogram::null(HistogramSize::new(2).unwrap()),
        epsilon: micro(0.25),
        max_value: 1,
        querier: &site,
        caller: &site,
        conversion_site: &site,
        aggregation_service: "https://other.example",
        time: Timestamp(NOW),
    };
    let sealer = DapSealer::new(ConfiguredServices::new());
    let length = sealer.sealed_length(&unknown);
    assert_eq!((length, sealer.seal(&unknown).len()), (0, 0));
}

/// The sealer gives what the aggregators of the task expect: who calls, who pays, and the value.
#[test]
fn a_user_agents_reports_are_summed() {
    let setup = TaskSetup::new(&common::terms(4, 3));
    let mut services = ConfiguredServices::new();
    services.insert(setup.task.service().clone());
    let mut reports = Vec::new();
    for number in 0..30 {
        let mut agent = agent(&services);
        if number % 3 == 0 {
            agent.set_enabled(false).unwrap();
        }
        let action = agent.begin_user_action(Timestamp(NOW)).unwrap();
        let call = Call {
            intermediary: Some("adtech.example"),
            ..Call::new("shop.example", Timestamp(NOW)).by(action)
        };
        let options = ConversionOptions {
            epsilon: 1.0,
            value: 2,
            max_value: 3,
            ..ConversionOptions::new(SERVICE, 4)
        };
        let answer = agent.measure_conversion(&call, &options).unwrap();
        reports.push(answer.report.bytes);
    }
    let mut batch = setup.in_memory(1.0);
    assert_eq!(add(&mut batch, &reports).accepted, 30);
    // Nobody paid for a result without noise.
    assert!(
        batch
            .query(micro(NO_NOISE), NoiseSource::Both, &mut rand::rng())
            .is_err()
    );
    let result = batch.query(micro(1.0), NoiseSource::Leader, &mut rand::rng());
    let result = result.unwrap();
    // 20 devices, value 2, bucket 1. A Laplace variable of scale 6 exceeds 300 with e⁻⁵⁰.
    for (bucket, expected) in result.buckets.iter().zip([0, 40, 0, 0]) {
        assert!((bucket - expected).abs() < 300, "{:?}", result.buckets);
    }
}
