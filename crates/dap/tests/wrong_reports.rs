//! Wrong reports are refused one by one, each with its reason, and the others are summed.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::convert::Infallible;

use bigbird_dap::messages::{
    DapReport, Decode as _, Encode as _, Extension, Extensions, PlaintextInputShare, ReportId,
    ReportMetadata,
};
use bigbird_dap::{
    AggregationTask, DapVersion, NoiseSource, ReportRefusal, Role, TaskSettings, TaskTerms,
    VdafKind, input_share_info, seal,
};
use common::{NO_NOISE, NOW, TaskSetup, add, micro, terms};
use prio::field::Field128;
use prio::flp::gadgets::{Mul, ParallelSum};
use prio::flp::types::L1BoundSum;
use prio::flp::{Flp, FlpError, Gadget, Type};
use prio::vdaf::Client as _;
use prio::vdaf::prio3::Prio3;
use prio::vdaf::xof::XofTurboShake128;

/// The reason for which a report is refused by itself, or `None` if it is counted.
fn fate(setup: &TaskSetup, report: &[u8]) -> Option<ReportRefusal> {
    let mut reasons = Vec::new();
    let mut aggregation = setup.in_memory(1.0);
    let reports = [Ok::<_, Infallible>(report.to_vec())];
    let tally = aggregation
        .add(reports, |refused| reasons.push(refused.reason))
        .unwrap();
    assert_eq!(tally.accepted + reasons.len() as u64, 1);
    reasons.pop()
}

fn decoded(report: &[u8]) -> DapReport {
    DapReport::get_decoded(report).unwrap()
}

/// The report with a change.
fn changed(report: &[u8], change: impl FnOnce(&mut DapReport)) -> Vec<u8> {
    let mut report = decoded(report);
    change(&mut report);
    report.get_encoded().unwrap()
}

/// A report whose shares are what a dishonest client likes, encrypted correctly.
fn forged(
    task: &AggregationTask,
    id: [u8; 16],
    public_share: &[u8],
    shares: &[PlaintextInputShare; 2],
    extensions: Extensions,
) -> Vec<u8> {
    let metadata = ReportMetadata {
        report_id: ReportId(id),
        time: task.time(NOW),
        public_extensions: extensions,
    };
    let aad = [
        &task.id().0[..],
        task.encoded_configuration(),
        &metadata.get_encoded().unwrap(),
        &u32::try_from(public_share.len()).unwrap().to_be_bytes(),
        public_share,
    ]
    .concat();
    let encrypt = |role: Role, share: &PlaintextInputShare| {
        let info = input_share_info(task.service().settings().version, role);
        let recipient = &task.service().aggregator(role).recipient;
        let share = share.get_encoded().unwrap();
        recipient.seal(&info, &aad, &share).unwrap()
    };
    DapReport {
        leader_share: encrypt(Role::Leader, &shares[0]),
        helper_share: encrypt(Role::Helper, &shares[1]),
        metadata,
        public_share: public_share.to_vec(),
    }
    .get_encoded()
    .unwrap()
}

fn plain(payload: &[u8]) -> PlaintextInputShare {
    PlaintextInputShare {
        private_extensions: Extensions::default(),
        payload: payload.to_vec(),
    }
}

fn budget(epsilon: f64) -> Extension {
    let paid = u32::try_from(micro(epsilon).get()).unwrap();
    Extension {
        extension_type: 0xff21,
        data: paid.to_be_bytes().to_vec(),
    }
}

fn extensions(list: impl Into<Vec<Extension>>) -> Extensions {
    Extensions::new(list.into()).unwrap()
}

#[test]
fn a_report_that_is_cut_short_or_too_long_is_not_a_report() {
    let setup = TaskSetup::new(&terms(3, 10));
    let report = setup.report(&[1, 2, 3], 1.0);
    for length in 0..report.len() {
        assert_eq!(
            fate(&setup, &report[..length]),
            Some(ReportRefusal::Malformed),
            "{length} bytes"
        );
    }
    let longer = [&report[..], &[0]].concat();
    assert_eq!(fate(&setup, &longer), Some(ReportRefusal::Malformed));
    assert_eq!(fate(&setup, &report), None);
}

/// Whatever bit of a report is flipped, it is refused, and never counted differently.
#[test]
fn a_report_that_is_altered_anywhere_is_refused() {
    let setup = TaskSetup::new(&terms(3, 10));
    let report = setup.report(&[1, 2, 3], 2.0);
    let mut reasons = std::collections::BTreeSet::new();
    for at in 0..report.len() {
        let mut altered = report.clone();
        altered[at] ^= 1 << (at % 8);
        let reason = fate(&setup, &altered);
        assert!(reason.is_some(), "byte {at}");
        reasons.extend(reason);
    }
    let expected = [
        ReportRefusal::Malformed,
        ReportRefusal::Extensions,
        ReportRefusal::Future,
        ReportRefusal::UnknownKey,
        ReportRefusal::Undecryptable,
    ];
    for reason in expected {
        assert!(reasons.contains(&reason), "{reason:?}");
    }
}

#[test]
fn every_wrong_field_has_its_reason() {
    let setup = TaskSetup::new(&terms(3, 10));
    let good = setup.report(&[1, 2, 3], 1.0);
    let other = setup.report(&[3, 2, 1], 1.0);
    let now = setup.task.time(NOW);
    let time = |time: u64| changed(&good, |report| report.metadata.time = time);
    let public = |list: Vec<Extension>| {
        changed(&good, |report| {
            report.metadata.public_extensions = extensions(list);
        })
    };
    let unknown = Extension {
        extension_type: 0xff22,
        data: Vec::new(),
    };
    let short = Extension {
        data: vec![0; 3],
        ..budget(1.0)
    };
    let cases = [
        ("future", time(now + 11), ReportRefusal::Future),
        ("ancient", time(now - 1001), ReportRefusal::Expired),
        // A time that would be accepted is authenticated.
        ("other time", time(now + 1), ReportRefusal::Undecryptable),
        ("no budget", public(vec![]), ReportRefusal::Extensions),
        (
            "short budget",
            public(vec![short]),
            ReportRefusal::Extensions,
        ),
        (
            "unknown extension",
            public(vec![budget(1.0), unknown]),
            ReportRefusal::Extensions,
        ),
        (
            "raised budget",
            public(vec![budget(2.0)]),
            ReportRefusal::Undecryptable,
        ),
        (
            "too small a budget",
            setup.report(&[1, 2, 3], 0.999_999),
            ReportRefusal::BudgetTooSmall,
        ),
        (
            "other id",
            changed(&good, |report| {
                report.metadata.report_id = ReportId([7; 16]);
            }),
            ReportRefusal::Undecryptable,
        ),
        (
            "wrong key of the leader",
            changed(&good, |report| report.leader_share.config_id += 1),
            ReportRefusal::UnknownKey,
        ),
        (
            "wrong key of the helper",
            changed(&good, |report| report.helper_share.config_id += 1),
            ReportRefusal::UnknownKey,
        ),
        (
            "wrong role",
            changed(&good, |report| {
                std::mem::swap(&mut report.leader_share, &mut report.helper_share);
            }),
            ReportRefusal::Undecryptable,
        ),
        (
            "share of another report",
            changed(&good, |report| {
                report.helper_share = decoded(&other).helper_share;
            }),
            ReportRefusal::Undecryptable,
        ),
        (
            "public share of another report",
            changed(&good, |report| {
                report.public_share = decoded(&other).public_share;
            }),
            ReportRefusal::Undecryptable,
        ),
        (
            "encapsulated key that is none",
            changed(&good, |report| report.leader_share.encapsulated_key.clear()),
            ReportRefusal::Undecryptable,
        ),
    ];
    for (name, report, reason) in cases {
        assert_eq!(fate(&setup, &report), Some(reason), "{name}");
    }
}

/// A report is for one task: any other collector, budget source, size, maximum, service, version or
/// code point makes it useless.
#[test]
fn a_report_for_another_task_is_refused() {
    let setup = TaskSetup::new(&terms(3, 10));
    let service = setup.task.service();
    let own = terms(3, 10);
    let other_terms = [
        TaskTerms {
            collector: "other.example",
            ..own
        },
        TaskTerms {
            budget_source: "other.example",
            ..own
        },
        terms(4, 10),
        terms(3, 11),
        TaskTerms {
            vdaf: VdafKind::SumVec,
            ..own
        },
    ];
    for terms in other_terms {
        let task = AggregationTask::new(service, &terms).unwrap();
        assert_ne!(task.id(), setup.task.id());
        let histogram = vec![1; terms.histogram_size as usize];
        let report = seal(&task, &histogram, micro(1.0), NOW).unwrap();
        let report = report.get_encoded().unwrap();
        assert_eq!(fate(&setup, &report), Some(ReportRefusal::Undecryptable));
    }
    let defaults = TaskSettings::new(DapVersion::Dap18);
    let mut points = defaults.code_points;
    points.budget_source = 0xff13;
    let other_settings = [
        TaskSettings::new(DapVersion::Dap19),
        TaskSettings {
            min_batch_size: 21,
            ..defaults.clone()
        },
        TaskSettings {
            batch_mode: 2,
            ..defaults.clone()
        },
        TaskSettings {
            code_points: points,
            ..defaults.clone()
        },
        TaskSettings {
            task_info: "other".to_owned(),
            ..defaults
        },
    ];
    for settings in other_settings {
        let endpoint = |role: Role| {
            let endpoint = service.aggregator(role);
            (endpoint.url.as_str(), endpoint.recipient.clone())
        };
        let other = bigbird_dap::AggregationService::new(
            service.url(),
            settings,
            endpoint(Role::Leader),
            endpoint(Role::Helper),
        )
        .unwrap();
        let task = AggregationTask::new(&other, &own).unwrap();
        let report = seal(&task, &[1, 0, 0], micro(1.0), NOW).unwrap();
        let report = report.get_encoded().unwrap();
        assert_eq!(fate(&setup, &report), Some(ReportRefusal::Undecryptable));
    }
}

/// A dishonest client that encrypts correctly, but lies in its shares.
#[test]
fn a_lie_in_the_shares_is_caught_by_the_proof() {
    let setup = TaskSetup::new(&terms(3, 5));
    let task = &setup.task;
    let id = [9; 16];
    let honest = task
        .vdaf()
        .shard(task.context(), &[1, 0, 0], ReportId(id))
        .unwrap();
    let [leader, helper] = honest.input_shares.clone();
    let send = |public_share: &[u8], leader: &[u8], helper: &[u8]| {
        let shares = [plain(leader), plain(helper)];
        let report = forged(task, id, public_share, &shares, extensions([budget(1.0)]));
        fate(&setup, &report)
    };
    assert_eq!(send(&honest.public_share, &leader, &helper), None);
    // One more in the first bucket of the leader's share.
    let mut raised = leader.clone();
    raised[0] ^= 1;
    assert_eq!(
        send(&honest.public_share, &raised, &helper),
        Some(ReportRefusal::InvalidProof)
    );
    // The helper's share is the seed of random numbers.
    let mut reseeded = helper.clone();
    reseeded[0] ^= 1;
    assert_eq!(
        send(&honest.public_share, &leader, &reseeded),
        Some(ReportRefusal::InvalidProof)
    );
    let mut public = honest.public_share.clone();
    public[0] ^= 1;
    assert_eq!(
        send(&public, &leader, &helper),
        Some(ReportRefusal::InvalidProof)
    );
    // Shares of another length.
    assert_eq!(
        send(&honest.public_share, &leader[1..], &helper),
        Some(ReportRefusal::InvalidShare)
    );
    assert_eq!(
        send(&honest.public_share, &leader, &leader),
        Some(ReportRefusal::InvalidShare)
    );
    assert_eq!(
        send(&honest.public_share[1..], &leader, &helper),
        Some(ReportRefusal::InvalidShare)
    );
    // The proof is bound to the id and to the task.
    let elsewhere = task
        .vdaf()
        .shard(b"elsewhere", &[1, 0, 0], ReportId(id))
        .unwrap();
    let [leader, helper] = elsewhere.input_shares;
    assert_eq!(
        send(&elsewhere.public_share, &leader, &helper),
        Some(ReportRefusal::InvalidProof)
    );
    // A secret extension that the aggregators do not know.
    let [leader, helper] = honest.input_shares;
    let mut shares = [plain(&leader), plain(&helper)];
    shares[1].private_extensions = extensions([budget(1.0)]);
    let public = extensions([budget(1.0)]);
    let report = forged(task, id, &honest.public_share, &shares, public);
    assert_eq!(fate(&setup, &report), Some(ReportRefusal::Extensions));
}

/// A VDAF for clients that encode what they like and prove it as well as they can. Everything but
/// the encoding is that of Prio3L1BoundSum.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LyingType(L1BoundSum<Field128, ParallelSum<Field128, Mul>>);

impl Flp for LyingType {
    type Field = Field128;

    fn gadget(&self) -> Vec<Box<dyn Gadget<Field128>>> {
        self.0.gadget()
    }

    fn num_gadgets(&self) -> usize {
        self.0.num_gadgets()
    }

    fn valid(
        &self,
        gadgets: &mut Vec<Box<dyn Gadget<Field128>>>,
        input: &[Field128],
        joint_rand: &[Field128],
        num_shares: usize,
    ) -> Result<Vec<Field128>, FlpError> {
        self.0.valid(gadgets, input, joint_rand, num_shares)
    }

    fn input_len(&self) -> usize {
        self.0.input_len()
    }

    fn proof_len(&self) -> usize {
        self.0.proof_len()
    }

    fn verifier_len(&self) -> usize {
        self.0.verifier_len()
    }

    fn joint_rand_len(&self) -> usize {
        self.0.joint_rand_len()
    }

    fn eval_output_len(&self) -> usize {
        self.0.eval_output_len()
    }

    fn prove_rand_len(&self) -> usize {
        self.0.prove_rand_len()
    }
}

impl Type for LyingType {
    type Measurement = Vec<u128>;
    type AggregateResult = Vec<u128>;

    fn encode_measurement(&self, digits: &Vec<u128>) -> Result<Vec<Field128>, FlpError> {
        Ok(digits.iter().map(|digit| Field128::from(*digit)).collect())
    }

    fn truncate(&self, input: Vec<Field128>) -> Result<Vec<Field128>, FlpError> {
        self.0.truncate(input)
    }

    fn decode_result(&self, data: &[Field128], count: usize) -> Result<Vec<u128>, FlpError> {
        self.0.decode_result(data, count)
    }

    fn output_len(&self) -> usize {
        self.0.output_len()
    }
}

/// A sum above the bound cannot be proved. The bound is the maximum itself, not the next power of
/// two as in older drafts: 6 and 7 have as many bits as 5.
#[test]
fn a_sum_above_the_bound_is_refused() {
    let setup = TaskSetup::new(&terms(2, 5));
    let task = &setup.task;
    let honest = seal(task, &[5, 1], micro(1.0), NOW);
    assert!(honest.is_err(), "an honest client");
    for histogram in [[5, 0], [4, 1], [0, 0]] {
        assert_eq!(fate(&setup, &setup.report(&histogram, 1.0)), None);
    }
    let chunk = task.parameters().chunk_length as usize;
    let liar = LyingType(L1BoundSum::new(5, 2, chunk).unwrap());
    let liar: Prio3<LyingType, XofTurboShake128, 32> = Prio3::new(2, 1, 7, liar).unwrap();
    // Each bucket has three digits, which count 1, 2 and 2. Then comes the sum, in the same form.
    let cases = [
        ("honest", [1, 0, 0, 1, 1, 0, 0, 1, 1], None),
        ("5 and 1, sum 5", [1, 1, 1, 1, 0, 0, 1, 1, 1], Some(())),
        ("5 and 5, sum 5", [1, 1, 1, 1, 1, 1, 1, 1, 1], Some(())),
        ("6 in one digit", [6, 0, 0, 0, 0, 0, 6, 0, 0], Some(())),
        (
            "a sum that is too small",
            [1, 1, 0, 0, 0, 0, 1, 0, 0],
            Some(()),
        ),
    ];
    for (number, (name, digits, refused)) in (0..).zip(cases) {
        let id = [number; 16];
        let (public_share, shares) = liar.shard(task.context(), &digits.to_vec(), &id).unwrap();
        let public_share = public_share.get_encoded().unwrap();
        let shares = [0, 1].map(|at: usize| plain(&shares[at].get_encoded().unwrap()));
        let public = extensions([budget(1.0)]);
        let report = forged(task, id, &public_share, &shares, public);
        let expected = refused.map(|()| ReportRefusal::InvalidProof);
        assert_eq!(fate(&setup, &report), expected, "{name}");
    }
}

/// All of them together with good ones: each refusal is counted once, and the sum is that of the
/// good ones.
#[test]
fn wrong_reports_do_not_disturb_the_others() {
    let setup = TaskSetup::new(&terms(3, 10));
    let good: Vec<_> = (0..40)
        .map(|_| setup.report(&[1, 2, 3], NO_NOISE))
        .collect();
    let other = TaskSetup::new(&terms(3, 10));
    let mut reports = good.clone();
    reports.push(good[0].clone()); // a copy beside the original
    reports.insert(1, good[1].clone());
    reports.insert(5, b"nonsense".to_vec());
    reports.insert(9, other.report(&[1, 0, 0], NO_NOISE)); // for other keys
    reports.insert(20, setup.report(&[9, 0, 0], 4293.9));
    let mut altered = good[7].clone();
    *altered.last_mut().unwrap() ^= 1;
    // It comes before the report whose id it has, and must not push it out.
    reports.insert(0, altered);
    let mut aggregation = setup.in_memory(NO_NOISE);
    let tally = add(&mut aggregation, &reports);
    assert_eq!(tally.accepted, 40);
    let refused: Vec<_> = tally.refused.into_iter().collect();
    assert_eq!(
        refused,
        [
            (ReportRefusal::Malformed, 1),
            (ReportRefusal::BudgetTooSmall, 1),
            (ReportRefusal::Replayed, 2),
            (ReportRefusal::Undecryptable, 2),
        ]
    );
    let epsilon = micro(NO_NOISE);
    let result = aggregation.query(epsilon, NoiseSource::Both, &mut rand::rng());
    assert_eq!(result.unwrap().buckets, [40, 80, 120]);
}
