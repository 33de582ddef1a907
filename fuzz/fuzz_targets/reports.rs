//! No bytes make an aggregator panic, and only reports that a client sealed are counted.
//!
//! The input is one of four things: a message of DAP, which must be encoded as the same bytes
//! again; damage to a report, which must be refused; shares that a dishonest client made up and
//! encrypted correctly; or a file of services or keys.
#![no_main]

use std::convert::Infallible;
use std::sync::OnceLock;

use arbitrary::{Arbitrary as _, Unstructured};
use bigbird::MicroEpsilon;
use bigbird_dap::messages::{
    DapReport, Decode, Encode, Extension, Extensions, HpkeCiphertext, HpkeConfig, HpkeConfigList,
    InputShareAad, PlaintextInputShare, ReportId, ReportMetadata, TaskConfiguration, VdafConfig,
};
use bigbird_dap::{
    Aggregation, AggregationService, AggregationStore, AggregationTask, AggregatorKeys,
    ConfiguredServices, DapVersion, Role, TaskSettings, TaskTerms, VdafKind, VdafParameters,
    input_share_info, seal,
};
use bigbird_fuzz::damage;
use libfuzzer_sys::fuzz_target;

const NOW: i64 = 1_790_000_000;

struct FuzzTask {
    task: AggregationTask,
    keys: [AggregatorKeys; 2],
    report: Vec<u8>,
}

fn setup() -> &'static FuzzTask {
    static SETUP: OnceLock<FuzzTask> = OnceLock::new();
    SETUP.get_or_init(|| {
        let keys = AggregatorKeys::generate(1).expect("random numbers");
        let [leader, helper] = keys.each_ref().map(|keys| keys.hpke.recipient().clone());
        let service = AggregationService::new(
            "https://agg.example",
            TaskSettings::new(DapVersion::default()),
            ("https://leader.example/", leader),
            ("https://helper.example/", helper),
        )
        .expect("a service");
        let terms = TaskTerms {
            collector: "shop.example",
            budget_source: "shop.example",
            histogram_size: 2,
            max_value: 5,
            vdaf: VdafKind::L1BoundSum,
        };
        let task = AggregationTask::new(&service, &terms).expect("a task");
        let report = seal(&task, &[3, 2], MicroEpsilon::new(1_000_000), NOW);
        let report = report.expect("a report").get_encoded().expect("bytes");
        FuzzTask { task, keys, report }
    })
}

/// The number of reports among some that are counted.
fn counted(reports: &[Vec<u8>]) -> u64 {
    let FuzzTask { task, keys, .. } = setup();
    let store = AggregationStore::in_memory().expect("memory");
    let now = task.time(NOW);
    let budget = Some(MicroEpsilon::new(1_000_000));
    let times = now - 10..=now + 10;
    let aggregation = Aggregation::new(store, keys.clone(), task, "batch", budget, times);
    let mut aggregation = aggregation.expect("its keys");
    let reports = reports.iter().cloned().map(Ok::<_, Infallible>);
    let mut refused = 0;
    let tally = aggregation.add(reports, |_| refused += 1).expect("memory");
    assert_eq!(tally.refused.values().sum::<u64>(), refused);
    tally.accepted
}

/// A message that decodes is encoded as the same bytes again.
fn message<T: Decode + Encode>(bytes: &[u8]) {
    if let Ok(message) = T::get_decoded(bytes) {
        assert_eq!(message.get_encoded().expect("it fits"), bytes);
    }
}

/// Shares that a client made up, encrypted as it should.
fn forged(source: &mut Unstructured<'_>) -> arbitrary::Result<Vec<u8>> {
    let FuzzTask { task, .. } = setup();
    let metadata = ReportMetadata {
        report_id: ReportId(source.arbitrary()?),
        time: task.time(NOW),
        public_extensions: Extensions::new(vec![Extension {
            extension_type: 0xff21,
            data: 1_000_000_u32.to_be_bytes().to_vec(),
        }])
        .expect("one extension"),
    };
    // Begin with honest shares, and change some of their bytes.
    let honest = task
        .vdaf()
        .shard(task.context(), &[1, 1], metadata.report_id)
        .expect("a histogram");
    let mut parts = [
        honest.public_share.clone(),
        honest.input_shares[0].clone(),
        honest.input_shares[1].clone(),
    ];
    for _ in 0..source.int_in_range(1..=4)? {
        let part = &mut parts[source.int_in_range(0..=2)?];
        match source.int_in_range(0..=3)? {
            0 => *part = Vec::arbitrary(source)?,
            1 => part.truncate(source.int_in_range(0..=part.len())?),
            _ if !part.is_empty() => {
                let at = source.int_in_range(0..=part.len() - 1)?;
                part[at] ^= source.int_in_range(1..=255)?;
            }
            _ => {}
        }
    }
    let same = parts[0] == honest.public_share
        && parts[1] == honest.input_shares[0]
        && parts[2] == honest.input_shares[1];
    if same {
        return Err(arbitrary::Error::IncorrectFormat);
    }
    let [public_share, leader, helper] = parts;
    let aad = InputShareAad {
        task_id: task.id(),
        task_configuration: task.encoded_configuration(),
        metadata: &metadata,
        public_share: &public_share,
    };
    let aad = aad.get_encoded().expect("it fits");
    let encrypt = |role: Role, payload: Vec<u8>| {
        let share = PlaintextInputShare {
            private_extensions: Extensions::default(),
            payload,
        };
        let info = input_share_info(DapVersion::default(), role);
        let recipient = &task.service().aggregator(role).recipient;
        recipient
            .seal(&info, &aad, &share.get_encoded().expect("it fits"))
            .expect("a key")
    };
    let report = DapReport {
        leader_share: encrypt(Role::Leader, leader),
        helper_share: encrypt(Role::Helper, helper),
        metadata,
        public_share,
    };
    Ok(report.get_encoded().expect("it fits"))
}

fuzz_target!(|input: &[u8]| {
    let Some((kind, bytes)) = input.split_first() else {
        return;
    };
    match kind % 4 {
        0 => {
            message::<DapReport>(bytes);
            message::<TaskConfiguration>(bytes);
            message::<ReportMetadata>(bytes);
            message::<Extensions>(bytes);
            message::<HpkeCiphertext>(bytes);
            message::<HpkeConfig>(bytes);
            message::<HpkeConfigList>(bytes);
            message::<PlaintextInputShare>(bytes);
            message::<VdafConfig>(bytes);
            if let Ok(config) = VdafConfig::get_decoded(bytes)
                && let Ok(parameters) = VdafParameters::parse(&config)
            {
                assert_eq!(parameters.config(), config);
            }
            assert_eq!(counted(&[bytes.to_vec()]), 0);
        }
        1 => {
            let report = &setup().report;
            let mut damaged = report.clone();
            let _ = damage(&mut Unstructured::new(bytes), &mut damaged, 64);
            let unharmed = u64::from(damaged == *report);
            assert_eq!(counted(&[damaged.clone()]), unharmed);
            // Whatever comes with it, the report itself counts once.
            assert_eq!(counted(&[damaged, report.clone(), report.clone()]), 1);
        }
        2 => {
            if let Ok(report) = forged(&mut Unstructured::new(bytes)) {
                assert_eq!(counted(&[report]), 0);
            }
        }
        _ => {
            let text = String::from_utf8_lossy(bytes);
            if let Err(error) = ConfiguredServices::parse(&text) {
                assert!(error.line >= 1 && error.line <= 1 + text.matches('\n').count());
            }
            let _ = AggregatorKeys::parse(&text);
        }
    }
});
