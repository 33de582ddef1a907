//! The leader and the helper: each decrypts its share of a report, and they verify the proof
//! together. Neither sees the histogram.

use std::fmt;

use prio::codec::{Decode as _, Encode as _, ParameterizedDecode as _};
use prio::field::Field128;
use prio::flp::Type;
use prio::topology::ping_pong::{Continued, PingPongMessage, PingPongState, PingPongTopology as _};
use prio::vdaf::OutputShare;
use prio::vdaf::prio3::{Prio3InputShare, Prio3PublicShare, Prio3VerifyState};
use thiserror::Error;

use super::refusal::{Acceptance, ReportRefusal};
use super::sum::AggregateSum;
use crate::hpke::EncryptionError;
use crate::keys::AggregatorKeys;
use crate::messages::{DapReport, HpkeCiphertext, PlaintextInputShare, ReportId, ReportMetadata};
use crate::role::Role;
use crate::task::AggregationTask;
use crate::vdaf::{Prio, VerifyKeyBytes, with_vdaf};

/// Keys that are not those of a service.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("these keys are not the keys of the {role} of {service}")]
pub struct KeyMismatch {
    role: Role,
    service: String,
}

/// Checks that keys are those of an aggregator of a task.
pub(super) fn check_keys(
    role: Role,
    keys: &AggregatorKeys,
    task: &AggregationTask,
) -> Result<(), KeyMismatch> {
    let expected = &task.service().aggregator(role).recipient;
    if keys.role == role && keys.hpke.recipient() == expected {
        return Ok(());
    }
    let service = task.service().url().to_owned();
    Err(KeyMismatch { role, service })
}

/// What both aggregators have.
#[derive(Debug, Clone)]
struct Party {
    keys: AggregatorKeys,
    task: AggregationTask,
    acceptance: Acceptance,
}

impl Party {
    fn new(
        role: Role,
        keys: AggregatorKeys,
        task: AggregationTask,
        acceptance: Acceptance,
    ) -> Result<Self, KeyMismatch> {
        check_keys(role, &keys, &task)?;
        Ok(Self {
            keys,
            task,
            acceptance,
        })
    }

    /// Checks what everybody can read, decrypts the share and parses it.
    fn open(
        &self,
        metadata: &ReportMetadata,
        public_share: &[u8],
        encrypted: &HpkeCiphertext,
    ) -> Result<Vec<u8>, ReportRefusal> {
        self.acceptance.check(&self.task, metadata)?;
        let aad = self.task.aad(metadata, public_share);
        let aad = aad.map_err(|_| ReportRefusal::Malformed)?;
        let info = self.task.info(self.keys.role);
        let opened = self.keys.hpke.open(&info, &aad, encrypted);
        let plaintext = opened.map_err(|error| match error {
            EncryptionError::OtherKey { .. } => ReportRefusal::UnknownKey,
            _ => ReportRefusal::Undecryptable,
        })?;
        let share = PlaintextInputShare::get_decoded(&plaintext);
        let share = share.map_err(|_| ReportRefusal::InvalidShare)?;
        if !share.private_extensions.as_slice().is_empty() {
            return Err(ReportRefusal::Extensions);
        }
        Ok(share.payload)
    }

    fn verification(&self, ReportId(nonce): ReportId) -> Verification<'_> {
        Verification {
            key: &self.keys.verify_key.0,
            context: self.task.context(),
            nonce,
        }
    }
}

/// The leader of a task. It verifies reports and remembers none: whoever runs it must refuse ids
/// that were counted, sum enough reports, and add noise. [`Aggregation`](super::Aggregation) does
/// all that.
#[derive(Debug, Clone)]
pub struct Leader(Party);

/// What the leader keeps of a report while it waits for the helper.
#[derive(Clone)]
pub struct LeaderState(Prio3VerifyState<Field128, 32>);

/// The state holds the leader's share, so it is not shown.
impl fmt::Debug for LeaderState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LeaderState").finish_non_exhaustive()
    }
}

/// What the leader sends the helper of a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportShare {
    /// What everybody can read.
    pub metadata: ReportMetadata,
    /// The part of the VDAF's output that both aggregators get.
    pub public_share: Vec<u8>,
    /// The helper's share, which the leader cannot decrypt.
    pub helper_share: HpkeCiphertext,
    /// The leader's part of the verification, as the VDAF's ping-pong topology encodes it.
    pub message: Vec<u8>,
}

/// What the helper answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HelperAnswer {
    /// The result of the verification, as the VDAF's ping-pong topology encodes it.
    pub message: Vec<u8>,
}

impl Leader {
    /// The leader of a task.
    ///
    /// # Errors
    /// If the keys are not those of the task's leader.
    pub fn new(
        keys: AggregatorKeys,
        task: AggregationTask,
        acceptance: Acceptance,
    ) -> Result<Self, KeyMismatch> {
        Party::new(Role::Leader, keys, task, acceptance).map(Self)
    }

    /// What follows from the readable part of a report.
    ///
    /// # Errors
    /// If the report must be refused.
    pub fn check(&self, metadata: &ReportMetadata) -> Result<(), ReportRefusal> {
        self.0.acceptance.check(&self.0.task, metadata)
    }

    /// Begins to verify a report.
    ///
    /// # Errors
    /// If the report must be refused.
    pub fn begin(&self, report: DapReport) -> Result<(LeaderState, ReportShare), ReportRefusal> {
        let DapReport {
            metadata,
            public_share,
            leader_share,
            helper_share,
        } = report;
        let share = self.0.open(&metadata, &public_share, &leader_share)?;
        let verification = self.0.verification(metadata.report_id);
        let (state, message) = with_vdaf!(&self.0.task.vdaf().0, prio => {
            verification.leader(prio, &public_share, &share)
        })?;
        let share = ReportShare {
            metadata,
            public_share,
            helper_share,
            message,
        };
        Ok((LeaderState(state), share))
    }

    /// Ends the verification with the helper's answer, and returns the leader's share of the
    /// histogram.
    ///
    /// # Errors
    /// If the report must be refused.
    pub fn finish(
        &self,
        id: ReportId,
        LeaderState(state): LeaderState,
        answer: &HelperAnswer,
    ) -> Result<AggregateSum, ReportRefusal> {
        let verification = self.0.verification(id);
        with_vdaf!(&self.0.task.vdaf().0, prio => {
            verification.leader_finish(prio, state, &answer.message)
        })
    }

    /// The task.
    pub fn task(&self) -> &AggregationTask {
        &self.0.task
    }
}

/// The helper of a task. Like the [`Leader`], it remembers nothing.
#[derive(Debug, Clone)]
pub struct Helper(Party);

impl Helper {
    /// The helper of a task.
    ///
    /// # Errors
    /// If the keys are not those of the task's helper.
    pub fn new(
        keys: AggregatorKeys,
        task: AggregationTask,
        acceptance: Acceptance,
    ) -> Result<Self, KeyMismatch> {
        Party::new(Role::Helper, keys, task, acceptance).map(Self)
    }

    /// Verifies a report with the leader, and returns the helper's share of the histogram. The
    /// share counts only if the leader accepts the answer too.
    ///
    /// # Errors
    /// If the report must be refused.
    pub fn respond(
        &self,
        share: &ReportShare,
    ) -> Result<(AggregateSum, HelperAnswer), ReportRefusal> {
        let ReportShare {
            metadata,
            public_share,
            helper_share,
            message,
        } = share;
        let own = self.0.open(metadata, public_share, helper_share)?;
        let verification = self.0.verification(metadata.report_id);
        with_vdaf!(&self.0.task.vdaf().0, prio => {
            verification.helper(prio, public_share, &own, message)
        })
    }
}

/// The verification of one report.
struct Verification<'a> {
    key: &'a VerifyKeyBytes,
    context: &'a [u8],
    nonce: [u8; 16],
}

impl Verification<'_> {
    fn leader<T: Type<Field = Field128>>(
        &self,
        prio: &Prio<T>,
        public_share: &[u8],
        share: &[u8],
    ) -> Result<(Prio3VerifyState<Field128, 32>, Vec<u8>), ReportRefusal> {
        let (public_share, share) = parse(prio, Role::Leader, public_share, share)?;
        let begun = prio.leader_initialized(
            self.key,
            self.context,
            &(),
            &self.nonce,
            &public_share,
            &share,
        );
        let Continued {
            message,
            verifier_state,
        } = begun.map_err(|_| ReportRefusal::InvalidProof)?;
        let message = message.get_encoded();
        Ok((
            verifier_state,
            message.map_err(|_| ReportRefusal::InvalidProof)?,
        ))
    }

    fn helper<T: Type<Field = Field128>>(
        &self,
        prio: &Prio<T>,
        public_share: &[u8],
        share: &[u8],
        message: &[u8],
    ) -> Result<(AggregateSum, HelperAnswer), ReportRefusal> {
        let (public_share, share) = parse(prio, Role::Helper, public_share, share)?;
        let message = PingPongMessage::get_decoded(message);
        let message = message.map_err(|_| ReportRefusal::InvalidProof)?;
        let verified = prio
            .helper_initialized(
                self.key,
                self.context,
                &(),
                &self.nonce,
                &public_share,
                &share,
                &message,
            )
            .and_then(|continuation| continuation.evaluate(self.context, prio));
        match verified {
            Ok(PingPongState::FinishedWithOutbound {
                output_share,
                message,
            }) => {
                let message = message.get_encoded();
                let message = message.map_err(|_| ReportRefusal::InvalidProof)?;
                Ok((sum_of(&output_share), HelperAnswer { message }))
            }
            _ => Err(ReportRefusal::InvalidProof),
        }
    }

    fn leader_finish<T: Type<Field = Field128>>(
        &self,
        prio: &Prio<T>,
        state: Prio3VerifyState<Field128, 32>,
        message: &[u8],
    ) -> Result<AggregateSum, ReportRefusal> {
        let message = PingPongMessage::get_decoded(message);
        let message = message.map_err(|_| ReportRefusal::InvalidProof)?;
        let verified = prio
            .leader_continued(self.context, &(), state, &message)
            .and_then(|continuation| continuation.evaluate(self.context, prio));
        match verified {
            Ok(PingPongState::Finished { output_share }) => Ok(sum_of(&output_share)),
            _ => Err(ReportRefusal::InvalidProof),
        }
    }
}

fn sum_of(output_share: &OutputShare<Field128>) -> AggregateSum {
    AggregateSum(output_share.as_ref().to_vec())
}

type ParsedShares = (Prio3PublicShare<32>, Prio3InputShare<Field128, 32>);

/// Parses the shares of an aggregator.
fn parse<T: Type<Field = Field128>>(
    prio: &Prio<T>,
    role: Role,
    public_share: &[u8],
    share: &[u8],
) -> Result<ParsedShares, ReportRefusal> {
    let public_share = Prio3PublicShare::get_decoded_with_param(prio, public_share);
    let share = Prio3InputShare::get_decoded_with_param(&(prio, role.aggregator()), share);
    match (public_share, share) {
        (Ok(public_share), Ok(share)) => Ok((public_share, share)),
        _ => Err(ReportRefusal::InvalidShare),
    }
}

#[cfg(test)]
mod tests {
    //! The VDAF's own test vectors, run through the code that verifies reports. They run if they
    //! are in `shared/vectors` beside the repository.
    #![allow(clippy::unwrap_used, reason = "this is for tests, which may fail here")]

    use std::fs;
    use std::path::Path;

    use prio::vdaf::Collector as _;
    use prio::vdaf::prio3::{Prio3, Prio3Histogram};
    use prio::vdaf::test_utils::TestVectorClient as _;
    use serde_json::Value;

    use super::*;
    use crate::aggregator::collector::centred;
    use crate::messages::VdafConfig;
    use crate::vdaf::{AnyVdaf, ParameterError, VdafKind, VdafParameters};

    fn vector(name: &str) -> Option<Value> {
        let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/vectors");
        let Ok(text) = fs::read_to_string(shared.join(name)) else {
            println!("skipped: shared/vectors/{name} does not exist beside the repository");
            return None;
        };
        Some(serde_json::from_str(&text).unwrap())
    }

    fn hex(value: &Value) -> Vec<u8> {
        let text = value.as_str().unwrap();
        let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
        (0..text.len()).step_by(2).map(byte).collect()
    }

    fn numbers(value: &Value) -> Vec<u128> {
        let list = value.as_array().unwrap().iter();
        list.map(|number| number.as_u64().unwrap().into()).collect()
    }

    /// Shards, verifies and sums the reports of a vector, and compares every byte.
    fn run<T>(prio: &Prio<T>, vector: &Value)
    where
        T: Type<Field = Field128, Measurement = Vec<u128>, AggregateResult = Vec<u128>>,
    {
        let key: VerifyKeyBytes = hex(&vector["verify_key"]).try_into().unwrap();
        let context = hex(&vector["ctx"]);
        let reports = vector["reports"].as_array().unwrap();
        assert!(!reports.is_empty());
        let mut sums: Option<[AggregateSum; 2]> = None;
        for report in reports {
            let nonce: [u8; 16] = hex(&report["nonce"]).try_into().unwrap();
            let measurement = numbers(&report["measurement"]);
            let rand = hex(&report["rand"]);
            let (public_share, shares) = prio
                .shard_with_random(&context, &measurement, &nonce, &rand)
                .unwrap();
            let public_share = public_share.get_encoded().unwrap();
            assert_eq!(public_share, hex(&report["public_share"]));
            let shares: Vec<_> = shares.iter().map(|it| it.get_encoded().unwrap()).collect();
            for (share, expected) in shares
                .iter()
                .zip(report["input_shares"].as_array().unwrap())
            {
                assert_eq!(*share, hex(expected));
            }
            let verification = Verification {
                key: &key,
                context: &context,
                nonce,
            };
            let (state, message) = verification
                .leader(prio, &public_share, &shares[0])
                .unwrap();
            let expected = PingPongMessage::Initialize {
                verifier_share: hex(&report["verifier_shares"][0][0]),
            };
            assert_eq!(message, expected.get_encoded().unwrap());
            let (helper, answer) = verification
                .helper(prio, &public_share, &shares[1], &message)
                .unwrap();
            let expected = PingPongMessage::Finish {
                verifier_message: hex(&report["verifier_messages"][0]),
            };
            assert_eq!(answer.message, expected.get_encoded().unwrap());
            let leader = verification
                .leader_finish(prio, state, &answer.message)
                .unwrap();
            for (share, expected) in [&leader, &helper].into_iter().zip([0, 1]) {
                // Each bucket of an output share is an element of its own in the file.
                let expected = match &report["out_shares"][expected] {
                    Value::Array(elements) => elements.iter().flat_map(hex).collect(),
                    whole => hex(whole),
                };
                assert_eq!(share.to_bytes().unwrap(), expected);
            }
            sums = Some(match sums {
                None => [leader, helper],
                Some([mut leaders, mut helpers]) => {
                    leaders.add(&leader);
                    helpers.add(&helper);
                    [leaders, helpers]
                }
            });
        }
        let [mut sum, helper] = sums.unwrap();
        for (share, expected) in [&sum, &helper].into_iter().zip([0, 1]) {
            assert_eq!(
                share.to_bytes().unwrap(),
                hex(&vector["agg_shares"][expected])
            );
        }
        let shares = [&sum, &helper].map(|share| share.0.clone().into());
        let unsharded = prio.unshard(&(), shares, reports.len()).unwrap();
        sum.add(&helper);
        let expected = numbers(&vector["agg_result"]);
        assert_eq!(unsharded, expected);
        let ours = sum
            .0
            .iter()
            .map(|bucket| u128::try_from(centred(*bucket)).unwrap());
        assert_eq!(ours.collect::<Vec<_>>(), expected);
    }

    fn number(value: &Value) -> u32 {
        value.as_u64().unwrap().try_into().unwrap()
    }

    #[test]
    fn the_vectors_of_prio3_l1_bound_sum_pass() {
        let Some(vector) = vector("prio/Prio3L1BoundSum_0.json") else {
            return;
        };
        let parameters = VdafParameters {
            kind: VdafKind::L1BoundSum,
            length: number(&vector["length"]),
            max_value: vector["max_value"].as_u64().unwrap(),
            chunk_length: number(&vector["chunk_length"]),
        };
        // The parameters as part of a task are those of the vector too.
        assert_eq!(VdafParameters::parse(&parameters.config()), Ok(parameters));
        let AnyVdaf::L1BoundSum(prio) = parameters.vdaf().unwrap().0 else {
            panic!("another VDAF");
        };
        run(&prio, &vector);
    }

    #[test]
    fn the_vectors_of_prio3_sum_vec_pass() {
        let Some(vector) = vector("vdaf/Prio3SumVec_0.json") else {
            return;
        };
        let parameters = VdafParameters {
            kind: VdafKind::SumVec,
            length: number(&vector["length"]),
            max_value: vector["max_measurement"].as_u64().unwrap(),
            chunk_length: number(&vector["chunk_length"]),
        };
        let AnyVdaf::SumVec(prio) = parameters.vdaf().unwrap().0 else {
            panic!("another VDAF");
        };
        run(&prio, &vector);
    }

    /// The older form bounds sums by a number of bits. Neither its parameters nor its reports are
    /// accepted.
    #[test]
    fn the_older_form_is_refused() {
        let Some(vector) = vector("prio/Prio3L1BoundSum_0.draft-thomson.json") else {
            return;
        };
        let (length, chunk_length) = (number(&vector["length"]), number(&vector["chunk_length"]));
        let bits = u8::try_from(number(&vector["bits"])).unwrap();
        let old = [
            &length.to_be_bytes()[..],
            &[bits],
            &chunk_length.to_be_bytes(),
        ];
        // Before April 2026 the maximum had four bytes.
        let narrow = [
            &length.to_be_bytes()[..],
            &255_u32.to_be_bytes(),
            &chunk_length.to_be_bytes(),
        ];
        for parts in [old, narrow] {
            let config = VdafConfig {
                vdaf_type: 7,
                configuration: parts.concat(),
            };
            let got = config.configuration.len();
            let kind = VdafKind::L1BoundSum;
            let expected = ParameterError::Bytes { kind, got };
            assert_eq!(VdafParameters::parse(&config), Err(expected));
        }
        let prio = Prio3::new_l1_bound_sum(2, (1 << bits) - 1, length as usize, 9).unwrap();
        let key: VerifyKeyBytes = hex(&vector["verify_key"]).try_into().unwrap();
        let context = hex(&vector["ctx"]);
        for report in vector["prep"].as_array().unwrap() {
            let verification = Verification {
                key: &key,
                context: &context,
                nonce: hex(&report["nonce"]).try_into().unwrap(),
            };
            let public_share = hex(&report["public_share"]);
            let shares = &report["input_shares"];
            let begun = verification.leader(&prio, &public_share, &hex(&shares[0]));
            let refused = begun.and_then(|(_, message)| {
                verification.helper(&prio, &public_share, &hex(&shares[1]), &message)
            });
            assert!(refused.is_err());
        }
    }

    /// The VDAF's negative vectors fail where they say.
    #[test]
    fn the_negative_vectors_fail() {
        for (name, fails_at) in [
            ("bad_helper_jr_blind", "helper"),
            ("bad_leader_jr_blind", "helper"),
            ("bad_public_share", "helper"),
            ("bad_verifier_message", "leader"),
        ] {
            let Some(vector) = vector(&format!("vdaf/Prio3Histogram_{name}.json")) else {
                return;
            };
            let prio: Prio3Histogram = Prio3::new_histogram(
                2,
                number(&vector["length"]) as usize,
                number(&vector["chunk_length"]) as usize,
            )
            .unwrap();
            let key: VerifyKeyBytes = hex(&vector["verify_key"]).try_into().unwrap();
            let context = hex(&vector["ctx"]);
            let report = &vector["reports"][0];
            let verification = Verification {
                key: &key,
                context: &context,
                nonce: hex(&report["nonce"]).try_into().unwrap(),
            };
            let public_share = hex(&report["public_share"]);
            let shares = &report["input_shares"];
            let (state, message) = verification
                .leader(&prio, &public_share, &hex(&shares[0]))
                .unwrap();
            assert_eq!(
                message,
                PingPongMessage::Initialize {
                    verifier_share: hex(&report["verifier_shares"][0][0])
                }
                .get_encoded()
                .unwrap(),
                "{name}"
            );
            let refusal = match fails_at {
                "helper" => verification
                    .helper(&prio, &public_share, &hex(&shares[1]), &message)
                    .map(|_| ()),
                _ => {
                    let verifier_message = hex(&report["verifier_messages"][0]);
                    let message = PingPongMessage::Finish { verifier_message };
                    let message = message.get_encoded().unwrap();
                    verification
                        .leader_finish(&prio, state, &message)
                        .map(|_| ())
                }
            };
            assert_eq!(refusal, Err(ReportRefusal::InvalidProof), "{name}");
        }
    }
}
