//! Golden files: a report of each version of DAP, with every byte explained. They pin what goes
//! over the wire, so that no change of ours or of a dependency alters it unnoticed.
//!
//! Reports are random, so the files were written once, by
//! `cargo test -p bigbird-dap --test golden -- --ignored`, and are read ever after. Their keys are
//! for this test and nothing else.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::path::{Path, PathBuf};

use bigbird_dap::messages::{DapReport, Decode as _, Encode as _, InputShareAad};
use bigbird_dap::{
    Acceptance, AggregationService, AggregationTask, AggregatorKeys, Collector, DapVersion, Helper,
    LaplaceNoise, Leader, NoiseSource, Role, TaskSettings, TaskTerms, VdafKind, input_share_info,
    seal,
};
use common::{NO_NOISE, NOW, SERVICE, micro};
use serde_json::{Value, json};

const HISTOGRAM: [u32; 3] = [0, 4, 1];
const EPSILON: f64 = 0.25;

fn path(version: DapVersion) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    folder.join(format!("{version}.json"))
}

fn task(version: DapVersion, keys: &[AggregatorKeys; 2]) -> AggregationTask {
    let [leader, helper] = keys.each_ref().map(|keys| keys.hpke.recipient().clone());
    let service = AggregationService::new(
        SERVICE,
        TaskSettings::new(version),
        ("https://leader.example/", leader),
        ("https://helper.example/", helper),
    )
    .unwrap();
    let terms = TaskTerms {
        collector: "adtech.example",
        budget_source: "shop.example",
        histogram_size: 3,
        max_value: 5,
        vdaf: VdafKind::L1BoundSum,
    };
    AggregationTask::new(&service, &terms).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(byte).collect()
}

/// All bytes of fields, each with its name.
fn joined(fields: &Value) -> Vec<u8> {
    let fields = fields.as_array().unwrap().iter();
    fields
        .flat_map(|field| {
            assert!(!field[1].as_str().unwrap().is_empty());
            bytes(field[0].as_str().unwrap())
        })
        .collect()
}

#[test]
fn golden_reports_are_what_they_were() {
    for version in DapVersion::ALL {
        let text = std::fs::read_to_string(path(version)).unwrap();
        let golden: Value = serde_json::from_str(&text).unwrap();
        let keys = ["leaderKeys", "helperKeys"]
            .map(|name| AggregatorKeys::parse(golden[name].as_str().unwrap()).unwrap());
        let task = task(version, &keys);
        assert_eq!(
            task.encoded_configuration(),
            joined(&golden["taskConfiguration"])
        );
        assert_eq!(hex(&task.id().0), golden["taskId"].as_str().unwrap());
        assert_eq!(hex(task.context()), golden["vdafContext"].as_str().unwrap());
        let encoded = joined(&golden["report"]);
        let report = DapReport::get_decoded(&encoded).unwrap();
        assert_eq!(report.get_encoded().unwrap(), encoded);
        assert_eq!(report.metadata.time, task.time(NOW));
        let aad = InputShareAad {
            task_id: task.id(),
            task_configuration: task.encoded_configuration(),
            metadata: &report.metadata,
            public_share: &report.public_share,
        };
        let aad = aad.get_encoded().unwrap();
        assert_eq!(aad, joined(&golden["aad"]));
        for (keys, share, name) in [
            (&keys[0], &report.leader_share, "leaderShare"),
            (&keys[1], &report.helper_share, "helperShare"),
        ] {
            let info = input_share_info(version, keys.role);
            let golden_info = &golden[format!("{}Info", keys.role)];
            assert_eq!(hex(&info), golden_info.as_str().unwrap());
            let opened = keys.hpke.open(&info, &aad, share).unwrap();
            assert_eq!(opened, joined(&golden[name]));
        }
        // A report that we make today has the same form.
        let today = seal(&task, &HISTOGRAM, micro(EPSILON), NOW).unwrap();
        assert_eq!(today.get_encoded().unwrap().len(), encoded.len());
        assert_eq!(
            today.metadata.public_extensions,
            report.metadata.public_extensions
        );
        // And what is in it is the histogram.
        let [leader, helper] = keys;
        let acceptance = Acceptance {
            budget: micro(EPSILON),
            times: 0..=u64::MAX,
        };
        let leader = Leader::new(leader, task.clone(), acceptance.clone()).unwrap();
        let helper = Helper::new(helper, task, acceptance).unwrap();
        let id = report.metadata.report_id;
        let (state, share) = leader.begin(report).unwrap();
        let (helpers, answer) = helper.respond(&share).unwrap();
        let leaders = leader.finish(id, state, &answer).unwrap();
        let noise = LaplaceNoise::new(5, micro(NO_NOISE)).unwrap();
        let sum = Collector.combine(&leaders, &helpers, 1, &noise, NoiseSource::Both);
        assert_eq!(sum.buckets, HISTOGRAM.map(i64::from));
    }
}

/// Divides bytes into named fields.
struct NamedFields<'a> {
    rest: &'a [u8],
    fields: Vec<Value>,
}

impl<'a> NamedFields<'a> {
    fn new(rest: &'a [u8]) -> Self {
        let fields = Vec::new();
        Self { rest, fields }
    }

    fn take(mut self, length: usize, name: &str) -> Self {
        let (field, rest) = self.rest.split_at(length);
        self.rest = rest;
        self.fields.push(json!([hex(field), name]));
        self
    }

    /// A length in some bytes, and as many bytes.
    fn opaque(self, prefix: usize, name: &str) -> Self {
        let length = self.rest[..prefix].iter();
        let length = length.fold(0, |sum, byte| sum << 8 | usize::from(*byte));
        let named = self.take(prefix, &format!("length of {name}"));
        match length {
            0 => named,
            _ => named.take(length, name),
        }
    }

    fn end(self) -> Value {
        assert!(self.rest.is_empty());
        Value::Array(self.fields)
    }
}

fn task_fields(fields: NamedFields<'_>) -> NamedFields<'_> {
    fields
        .opaque(1, "task_info")
        .opaque(2, "URL of the leader")
        .opaque(2, "URL of the helper")
        .take(8, "time_precision: 5 seconds")
        .take(8, "min_batch_size: 20")
        .take(1, "batch_mode: time-interval")
        .opaque(2, "batch_config")
        .take(4, "vdaf_type: Prio3L1BoundSum")
        .take(2, "length of vdaf_config")
        .take(4, "length: 3 buckets")
        .take(8, "max_value: 5")
        .take(4, "chunk_length: the square root of (3 + 1) · 3, rounded")
        .take(2, "length of the task's extensions")
        .take(2, "extension: collector identity")
        .opaque(2, "the site that called")
        .take(2, "extension: budget source")
        .opaque(2, "the site whose budget paid")
}

fn metadata_fields(fields: NamedFields<'_>) -> NamedFields<'_> {
    fields
        .take(16, "report_id: random, also the nonce of the VDAF")
        .take(8, "time: seconds since 1970, divided by 5")
        .take(2, "length of the report's extensions")
        .take(2, "extension: privacy budget")
        .take(2, "length of the privacy budget")
        .take(4, "250,000 µε")
}

fn ciphertext_fields<'a>(fields: NamedFields<'a>, role: &str) -> NamedFields<'a> {
    fields
        .take(1, &format!("number of the {role}'s key"))
        .opaque(2, &format!("encapsulated key for the {role}"))
        .opaque(4, &format!("encrypted share of the {role}, with its tag"))
}

#[test]
#[ignore = "it writes new golden files; commit them only if the wire is meant to change"]
fn write_golden_files() {
    for version in DapVersion::ALL {
        let keys = AggregatorKeys::generate(7).unwrap();
        let task = task(version, &keys);
        let report = seal(&task, &HISTOGRAM, micro(EPSILON), NOW).unwrap();
        let encoded = report.get_encoded().unwrap();
        let aad = InputShareAad {
            task_id: task.id(),
            task_configuration: task.encoded_configuration(),
            metadata: &report.metadata,
            public_share: &report.public_share,
        };
        let aad = aad.get_encoded().unwrap();
        let open = |role: Role, share| {
            let info = input_share_info(version, role);
            keys[role.aggregator()]
                .hpke
                .open(&info, &aad, share)
                .unwrap()
        };
        let leader = open(Role::Leader, &report.leader_share);
        let helper = open(Role::Helper, &report.helper_share);
        let info = |role: Role| hex(&input_share_info(version, role));
        let fields = metadata_fields(NamedFields::new(&encoded));
        let fields = fields.opaque(4, "public share: two joint randomness parts");
        let fields = ciphertext_fields(ciphertext_fields(fields, "leader"), "helper");
        let golden = json!({
            "about": format!("A report of {version}: 4 in bucket 1 and 1 in bucket 2, of at most 5"),
            "histogram": HISTOGRAM,
            "leaderKeys": keys[0].to_toml().unwrap(),
            "helperKeys": keys[1].to_toml().unwrap(),
            "taskConfiguration": task_fields(NamedFields::new(task.encoded_configuration())).end(),
            "taskId": hex(&task.id().0),
            "vdafContext": hex(task.context()),
            "leaderInfo": info(Role::Leader),
            "helperInfo": info(Role::Helper),
            "report": fields.end(),
            "aad": metadata_fields(task_fields(NamedFields::new(&aad).take(32, "task id")))
                .opaque(4, "public share")
                .end(),
            "leaderShare": NamedFields::new(&leader)
                .opaque(2, "private extensions")
                .opaque(4, "the leader's share: measurement, proof and blind")
                .end(),
            "helperShare": NamedFields::new(&helper)
                .opaque(2, "private extensions")
                .opaque(4, "the helper's share: two seeds")
                .end(),
        });
        let text = serde_json::to_string_pretty(&golden).unwrap() + "\n";
        std::fs::write(path(version), text).unwrap();
    }
}
