//! Files of services and keys: what is written is read again, and every mistake is named with its
//! line.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use bigbird_dap::messages::{Encode as _, HpkeConfigList};
use bigbird_dap::{AggregatorKeys, ConfiguredServices, DapVersion, HpkeKeys, Role, TaskSettings};
use bigbird_user_agent::AggregationProtocol;
use common::SERVICE;

fn url_base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes)
}

#[test]
fn what_is_written_is_read_again() {
    for version in DapVersion::ALL {
        let mut settings = TaskSettings::new(version);
        settings.task_info = "a \"quoted\" \\ name".to_owned();
        settings.min_batch_size = 1000;
        settings.batch_mode = 2;
        settings.code_points.privacy_budget = 0xabcd;
        let (service, keys) = common::service(settings);
        let services = ConfiguredServices::parse(&service.to_toml().unwrap()).unwrap();
        assert_eq!(services.get(SERVICE), Some(&service));
        let expected = match version {
            DapVersion::Dap18 => AggregationProtocol::Dap18Histogram,
            DapVersion::Dap19 => AggregationProtocol::Dap19Histogram,
        };
        assert_eq!(services.protocols()[SERVICE], expected);
        for keys in keys {
            let read = AggregatorKeys::parse(&keys.to_toml().unwrap()).unwrap();
            assert_eq!(read.role, keys.role);
            assert_eq!(read.hpke.recipient(), keys.hpke.recipient());
            assert_eq!(read.hpke.private_key(), keys.hpke.private_key());
            assert_eq!(read.verify_key, keys.verify_key);
            // Secrets are not shown.
            let shown = format!("{read:?}");
            assert!(!shown.contains("private_key"), "{shown}");
        }
    }
}

#[test]
fn a_file_needs_only_urls_and_keys() {
    let (service, _) = common::service(TaskSettings::new(DapVersion::Dap18));
    let key = |role: Role| {
        let config = service.aggregator(role).recipient.config();
        // As an aggregator publishes it: a list, of which some keys may be unknown.
        let unknown = bigbird_dap::messages::HpkeConfig {
            kem_id: 0x9999,
            ..config.clone()
        };
        let list = HpkeConfigList(vec![unknown, config.clone()]);
        url_base64(&list.get_encoded().unwrap())
    };
    let text = format!(
        "[[service]]\nurl = '{SERVICE}'\nleader = 'https://leader.example'\n\
         helper = 'https://helper.example'\nleader_hpke_config = '{}'\n\
         helper_hpke_config = '{}'\n",
        key(Role::Leader),
        key(Role::Helper)
    );
    let services = ConfiguredServices::parse(&text).unwrap();
    // URLs are serialised as the URL standard does, with the slash.
    assert_eq!(services.get(SERVICE), Some(&service));
}

#[test]
fn every_mistake_in_a_file_of_services_has_its_line() {
    let (service, _) = common::service(TaskSettings::new(DapVersion::Dap18));
    let text = service.to_toml().unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let line_of = |name: &str| {
        1 + lines
            .iter()
            .position(|line| line.starts_with(name))
            .unwrap()
    };
    let leader_key = lines[line_of("leader_hpke_config") - 1];
    let same_key = leader_key.replace("leader_hpke_config", "helper_hpke_config");
    let other_kem = HpkeKeys::generate(1).unwrap().recipient().config().clone();
    let other_kem = bigbird_dap::messages::HpkeConfig {
        kem_id: 0x0021,
        ..other_kem
    };
    let other_kem = url_base64(&other_kem.get_encoded().unwrap());
    let other_kem = format!("leader_hpke_config = \"{other_kem}\"");
    let cases = [
        (
            "url",
            "url = 7",
            "invalid type: integer `7`, expected a string",
        ),
        (
            "url",
            "url = 'agg'",
            "`agg` is not a URL: relative URL without a base",
        ),
        (
            "url",
            "url = 'http://agg.example'",
            "`http://agg.example` must begin with https:",
        ),
        (
            "version",
            "version = 'dap-9'",
            "unknown version `dap-9` of DAP; use one of: dap-18, dap-19",
        ),
        (
            "leader =",
            "leader = ''",
            "`` is not a URL: relative URL without a base",
        ),
        (
            "helper =",
            "helper = 'https://leader.example'",
            "the leader and the helper must have different URLs",
        ),
        (
            "leader_hpke_config",
            "leader_hpke_config = '!'",
            "the key is not base64 for URLs: Invalid symbol 33, offset 0.",
        ),
        (
            "leader_hpke_config",
            "leader_hpke_config = 'AAAA'",
            "the key is neither an HpkeConfig nor an HpkeConfigList of DAP",
        ),
        (
            "leader_hpke_config",
            other_kem.as_str(),
            "the algorithms 0x0021, 0x0001, 0x0001 are not supported; supported are KEM 0x0020",
        ),
        (
            "helper_hpke_config",
            same_key.as_str(),
            "the leader and the helper must have different keys",
        ),
        (
            "time_precision",
            "time_precision = 0",
            "time_precision must be in [1, 86400], got 0",
        ),
        (
            "min_batch_size",
            "min_batch_size = -1",
            "min_batch_size must be in [1, ",
        ),
        (
            "batch_mode",
            "batch_mode = 300",
            "batch_mode must be in [1, 255], got 300",
        ),
        (
            "privacy_budget",
            "privacy_budget = 70000",
            "privacy_budget must be in [1, 65535], got 70000",
        ),
        (
            "budget_source",
            "budget_source = 0xff11",
            "collector_identity and budget_source must differ, both are 0xff11",
        ),
        (
            "budget_source",
            "budget_sauce = 1",
            "unknown field `budget_sauce`",
        ),
        ("batch_mode", "batch_mode = ", ""),
    ];
    for (name, changed, told) in cases {
        let line = line_of(name);
        let mut changed_lines = lines.clone();
        changed_lines[line - 1] = changed;
        let error = ConfiguredServices::parse(&changed_lines.join("\n")).unwrap_err();
        assert_eq!(error.line, line, "{changed}: {error}");
        assert!(error.message.contains(told), "{changed}: {error}");
        assert_eq!(error.to_string().lines().count(), 1, "{error}");
    }
    let twice = format!("{text}{text}");
    let error = ConfiguredServices::parse(&twice).unwrap_err();
    assert_eq!(error.line, lines.len() + line_of("url"));
    assert_eq!(
        error.message,
        "the service https://agg.example is there twice"
    );
    let error = ConfiguredServices::parse("").unwrap_err();
    assert_eq!(error.to_string(), "line 1: there is no [[service]]");
}

#[test]
fn every_mistake_in_a_file_of_keys_is_named() {
    let [leader, _] = AggregatorKeys::generate(1).unwrap();
    let [other, _] = AggregatorKeys::generate(1).unwrap();
    let text = leader.to_toml().unwrap();
    let private = url_base64(leader.hpke.private_key());
    let other = url_base64(other.hpke.private_key());
    for (from, to, told) in [
        (
            "role = \"leader\"",
            "role = \"boss\"",
            "role: it must be `leader` or `helper`, got `boss`",
        ),
        ("role = \"leader\"", "", "line 1: missing field `role`"),
        (
            private.as_str(),
            other.as_str(),
            "the private key does not belong to the public key",
        ),
        (
            private.as_str(),
            "%",
            "hpke_private_key: it is not base64 for URLs",
        ),
        (
            "vdaf_verify_key = \"",
            "vdaf_verify_key = \"AA",
            "vdaf_verify_key: it ",
        ),
        (
            "hpke_config = \"",
            "hpke_config = \"AAAA",
            "hpke_config: it is not an HpkeConfig",
        ),
    ] {
        assert!(text.contains(from), "{text}");
        let error = AggregatorKeys::parse(&text.replace(from, to)).unwrap_err();
        let error = error.to_string();
        assert!(error.contains(told), "{to}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}
