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

use super::refusal::{Acceptance, Refusal};
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
        let expected = &task.service().aggregator(role).recipient;
        if keys.role != role || keys.hpke.recipient() != expected {
            let service = task.service().url().to_owned();
            return Err(KeyMismatch { role, service });
        }
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
    ) -> Result<Vec<u8>, Refusal> {
        self.acceptance.check(&self.task, metadata)?;
        let aad = self.task.aad(metadata, public_share);
        let aad = aad.map_err(|_| Refusal::Malformed)?;
        let info = self.task.info(self.keys.role);
        let opened = self.keys.hpke.open(&info, &aad, encrypted);
        let plaintext = opened.map_err(|error| match error {
            EncryptionError::OtherKey { .. } => Refusal::UnknownKey,
            _ => Refusal::Undecryptable,
        })?;
        let share = PlaintextInputShare::get_decoded(&plaintext);
        let share = share.map_err(|_| Refusal::InvalidShare)?;
        if !share.private_extensions.as_slice().is_empty() {
            return Err(Refusal::Extensions);
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

/// The leader.
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
    pub fn check(&self, metadata: &ReportMetadata) -> Result<(), Refusal> {
        self.0.acceptance.check(&self.0.task, metadata)
    }

    /// Begins to verify a report.
    ///
    /// # Errors
    /// If the report must be refused.
    pub fn begin(&self, report: DapReport) -> Result<(LeaderState, ReportShare), Refusal> {
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
    ) -> Result<AggregateSum, Refusal> {
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

/// The helper.
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
    pub fn respond(&self, share: &ReportShare) -> Result<(AggregateSum, HelperAnswer), Refusal> {
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
    ) -> Result<(Prio3VerifyState<Field128, 32>, Vec<u8>), Refusal> {
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
        } = begun.map_err(|_| Refusal::InvalidProof)?;
        let message = message.get_encoded();
        Ok((verifier_state, message.map_err(|_| Refusal::InvalidProof)?))
    }

    fn helper<T: Type<Field = Field128>>(
        &self,
        prio: &Prio<T>,
        public_share: &[u8],
        share: &[u8],
        message: &[u8],
    ) -> Result<(AggregateSum, HelperAnswer), Refusal> {
        let (public_share, share) = parse(prio, Role::Helper, public_share, share)?;
        let message = PingPongMessage::get_decoded(message);
        let message = message.map_err(|_| Refusal::InvalidProof)?;
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
                let message = message.map_err(|_| Refusal::InvalidProof)?;
                Ok((sum_of(&output_share), HelperAnswer { message }))
            }
            _ => Err(Refusal::InvalidProof),
        }
    }

    fn leader_finish<T: Type<Field = Field128>>(
        &self,
        prio: &Prio<T>,
        state: Prio3VerifyState<Field128, 32>,
        message: &[u8],
    ) -> Result<AggregateSum, Refusal> {
        let message = PingPongMessage::get_decoded(message);
        let message = message.map_err(|_| Refusal::InvalidProof)?;
        let verified = prio
            .leader_continued(self.context, &(), state, &message)
            .and_then(|continuation| continuation.evaluate(self.context, prio));
        match verified {
            Ok(PingPongState::Finished { output_share }) => Ok(sum_of(&output_share)),
            _ => Err(Refusal::InvalidProof),
        }
    }
}

fn sum_of(output_share: &OutputShare<Field128>) -> AggregateSum {
    AggregateSum(output_share.as_ref().to_vec())
}

type Shares = (Prio3PublicShare<32>, Prio3InputShare<Field128, 32>);

/// Parses the shares of an aggregator.
fn parse<T: Type<Field = Field128>>(
    prio: &Prio<T>,
    role: Role,
    public_share: &[u8],
    share: &[u8],
) -> Result<Shares, Refusal> {
    let public_share = Prio3PublicShare::get_decoded_with_param(prio, public_share);
    let share = Prio3InputShare::get_decoded_with_param(&(prio, role.aggregator()), share);
    match (public_share, share) {
        (Ok(public_share), Ok(share)) => Ok((public_share, share)),
        _ => Err(Refusal::InvalidShare),
    }
}
