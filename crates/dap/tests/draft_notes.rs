//! One test for each row of `docs/draft-notes.md` that is about encrypted reports.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use bigbird::Epsilon;
use bigbird_dap::messages::{Decode as _, TaskConfiguration};
use bigbird_dap::{ConfiguredServices, DapVersion, TaskSettings, VdafKind, VdafParameters, seal};
use common::{NOW, TaskSetup, micro, terms};

fn configuration(settings: TaskSettings) -> TaskConfiguration {
    let setup = TaskSetup::with(settings, &terms(3, 5));
    TaskConfiguration::get_decoded(setup.task.encoded_configuration()).unwrap()
}

/// The file of services with one line changed.
fn services(settings: TaskSettings, from: &str, to: &str) -> Result<ConfiguredServices, String> {
    let (service, _) = common::service(settings);
    let text = service.to_toml().unwrap();
    assert!(text.contains(from), "{text}");
    ConfiguredServices::parse(&text.replace(from, to)).map_err(|error| error.to_string())
}

#[test]
fn row_30_information_about_a_task_is_legal() {
    let dap_18 = TaskSettings::new(DapVersion::Dap18);
    let dap_19 = TaskSettings::new(DapVersion::Dap19);
    assert_eq!(configuration(dap_18.clone()).task_info, b"attribution");
    assert_eq!(configuration(dap_19.clone()).task_info, b"");
    let given = "task_info = \"attribution\"";
    let refused = services(dap_18.clone(), given, "task_info = \"\"");
    assert_eq!(
        refused.unwrap_err(),
        "line 12: task_info must have 1 to 255 bytes in dap-18, got 0"
    );
    assert!(services(dap_18, given, "task_info = \"other\"").is_ok());
    assert!(services(dap_19, "task_info = \"\"", "task_info = \"other\"").is_ok());
}

/// With a maximum of 5, a client that claims 6 or 7 would have passed under the older bound.
#[test]
fn row_31_the_bound_is_the_maximum_itself() {
    let setup = TaskSetup::new(&terms(3, 5));
    assert!(seal(&setup.task, &[2, 2, 1], micro(1.0), NOW).is_ok());
    for histogram in [[2, 2, 2], [0, 0, 6], [7, 0, 0]] {
        assert!(seal(&setup.task, &histogram, micro(1.0), NOW).is_err());
    }
    // `a_sum_above_the_bound_is_refused` shows that a dishonest client fails too.
    let configured = configuration(TaskSettings::new(DapVersion::Dap18));
    assert_eq!(
        VdafParameters::parse(&configured.vdaf).unwrap().max_value,
        5
    );
}

#[test]
fn row_32_the_batch_mode_is_configuration() {
    let settings = TaskSettings::new(DapVersion::Dap18);
    assert_eq!(configuration(settings.clone()).batch_mode, 1);
    let other = TaskSettings {
        batch_mode: 200,
        ..settings.clone()
    };
    assert_eq!(configuration(other).batch_mode, 200);
    let refused = services(settings, "batch_mode = 1", "batch_mode = 256");
    assert_eq!(
        refused.unwrap_err(),
        "line 15: batch_mode must be in [1, 255], got 256"
    );
}

#[test]
fn row_33_the_epsilon_of_a_report_is_what_the_page_wrote() {
    let setup = TaskSetup::new(&terms(3, 5));
    let doubles = |epsilon: f64| (epsilon * 1e6).ceil();
    assert!(doubles(4.03) > 4_030_000.0, "doubles round 4.03 up");
    for (epsilon, micro) in [
        (4.03, 4_030_000_u32),
        (0.1, 100_000),
        (1e-9, 1),
        (4294.0, 4_294_000_000),
    ] {
        let epsilon = Epsilon::new(epsilon).unwrap();
        let report = seal(&setup.task, &[0; 3], epsilon.micro(), NOW).unwrap();
        let carried = &report.metadata.public_extensions.as_slice()[0].data;
        assert_eq!(carried.as_slice(), micro.to_be_bytes());
    }
}

/// The chunk length is the draft's, for every size: the nearest whole number to a square root.
#[test]
fn the_chunk_length_is_the_drafts() {
    for max_value in [1, 2, 3, 4, 7, 8, 100, 255, 256, 65_535, u32::MAX] {
        for length in 1..=1024 {
            let parameters = VdafParameters::new(VdafKind::L1BoundSum, length, max_value);
            let bits = (f64::from(max_value) + 1.0).log2().ceil();
            let root = ((bits + 1.0) * f64::from(length)).sqrt().round();
            assert!((f64::from(parameters.chunk_length) - root).abs() < 0.5);
            assert!(parameters.vdaf().is_ok());
        }
    }
}
