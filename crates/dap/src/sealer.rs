//! Sealing reports on the device: the draft's "construct a DAP report".

use bigbird::MicroEpsilon;
use bigbird_user_agent::{Report, Seal};
use thiserror::Error;

use crate::hpke::EncryptionError;
use crate::messages::{
    CodecError, DapReport, Encode as _, Extensions, PlaintextInputShare, ReportId, ReportMetadata,
};
use crate::role::Role;
use crate::service::{AggregationService, ConfiguredServices};
use crate::task::{AggregationTask, TaskError, TaskTerms};
use crate::vdaf::{ShardError, VdafKind, VdafParameters};

/// Seals the reports of a user agent for aggregation services.
///
/// Sealing takes the same steps, and gives the same number of bytes, for every histogram of a task.
/// Nothing is fetched: the keys are those of the configuration.
#[derive(Debug, Clone)]
pub struct DapSealer {
    services: ConfiguredServices,
}

/// A report that cannot be sealed. With reports of a user agent and a service that exists, this
/// does not happen: services and keys are checked when they are configured, and the sum of a
/// histogram is at most its maximum.
#[derive(Debug, Error)]
pub enum SealError {
    /// The service is not configured.
    #[error("the aggregation service {0} is not configured")]
    Service(String),
    /// The task cannot exist.
    #[error(transparent)]
    Task(#[from] TaskError),
    /// The histogram does not fit the task. The user agent makes no such histogram.
    #[error(transparent)]
    Shard(#[from] ShardError),
    /// The shares cannot be encrypted. The keys were checked when the services were configured.
    #[error(transparent)]
    Encryption(#[from] EncryptionError),
    /// A field is too long to be encoded.
    #[error("the report cannot be encoded: {0}")]
    Encoding(#[from] CodecError),
    /// The operating system gives no random numbers.
    #[error("the operating system gives no random numbers: {0}")]
    Randomness(String),
}

impl DapSealer {
    /// A sealer for reports to these services.
    pub fn new(services: ConfiguredServices) -> Self {
        Self { services }
    }

    /// The services.
    pub fn services(&self) -> &ConfiguredServices {
        &self.services
    }

    /// The report as a message, sealed.
    ///
    /// # Errors
    /// If the service is not configured. Other errors do not occur with reports of a user agent.
    pub fn report(&self, report: &Report<'_>) -> Result<DapReport, SealError> {
        let service = self.services.get(report.aggregation_service);
        let service =
            service.ok_or_else(|| SealError::Service(report.aggregation_service.to_owned()))?;
        let histogram = report.histogram.buckets();
        let terms = TaskTerms {
            collector: report.caller.as_str(),
            budget_source: report.querier.as_str(),
            histogram_size: u32::try_from(histogram.len()).unwrap_or(u32::MAX),
            max_value: report.max_value,
            vdaf: VdafKind::L1BoundSum,
        };
        let task = AggregationTask::new(service, &terms)?;
        let seconds = report.time.0.div_euclid(1000);
        seal(&task, histogram, report.epsilon, seconds)
    }
}

impl Seal for DapSealer {
    /// The encoded report. If a report could not be sealed, this would be empty, which no
    /// aggregator accepts: see [`SealError`] for why that does not happen.
    fn seal(&self, report: &Report<'_>) -> Vec<u8> {
        let sealed = self.report(report).ok();
        let bytes = sealed.and_then(|report| report.get_encoded().ok());
        bytes.unwrap_or_default()
    }

    fn sealed_length(&self, report: &Report<'_>) -> usize {
        let service = self.services.get(report.aggregation_service);
        service.map_or(0, |service| {
            let size = u32::try_from(report.histogram.buckets().len()).unwrap_or(u32::MAX);
            let vdaf = VdafParameters::new(VdafKind::L1BoundSum, size, report.max_value);
            sealed_length(service, &vdaf)
        })
    }
}

/// The number of bytes of a report to a service. Only the form of its histogram and the algorithms
/// of the service's keys matter.
fn sealed_length(service: &AggregationService, vdaf: &VdafParameters) -> usize {
    /// The id, the time, and the list of extensions with the one about the budget.
    const METADATA: usize = 16 + 8 + (2 + 2 + 2 + 4);
    /// The list of private extensions, which is empty, and the length of the share.
    const PLAINTEXT: usize = 2 + 4;
    const LENGTH: usize = 4;
    let (public_share, [leader, helper]) = vdaf.share_lengths();
    let sealed = |role: Role, share: usize| {
        service.aggregator(role).recipient.overhead() + PLAINTEXT + share
    };
    METADATA + LENGTH + public_share + sealed(Role::Leader, leader) + sealed(Role::Helper, helper)
}

/// Makes the report of a histogram: divides it into shares, and encrypts one to each aggregator.
/// The moment is in seconds since 1970.
///
/// # Errors
/// If the histogram does not fit the task.
pub fn seal(
    task: &AggregationTask,
    histogram: &[u32],
    epsilon: MicroEpsilon,
    seconds: i64,
) -> Result<DapReport, SealError> {
    let extensions = Extensions::new(vec![task.budget_extension(epsilon)])?;
    seal_with(task, histogram, extensions, seconds)
}

/// Makes a report that does not say what was paid for it, and otherwise is like [`seal`]'s. It is
/// for tests with aggregators that refuse extensions they do not know. Ours refuse such a report.
///
/// # Errors
/// If the histogram does not fit the task.
pub fn seal_without_budget(
    task: &AggregationTask,
    histogram: &[u32],
    seconds: i64,
) -> Result<DapReport, SealError> {
    seal_with(task, histogram, Extensions::default(), seconds)
}

fn seal_with(
    task: &AggregationTask,
    histogram: &[u32],
    public_extensions: Extensions,
    seconds: i64,
) -> Result<DapReport, SealError> {
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(|error| SealError::Randomness(error.to_string()))?;
    let metadata = ReportMetadata {
        report_id: ReportId(id),
        time: task.time(seconds),
        public_extensions,
    };
    let sharded = task
        .vdaf()
        .shard(task.context(), histogram, metadata.report_id)?;
    let [leader, helper] = sharded.input_shares;
    let aad = task.aad(&metadata, &sharded.public_share)?;
    let encrypt = |role: Role, payload: Vec<u8>| {
        let share = PlaintextInputShare {
            private_extensions: Extensions::default(),
            payload,
        };
        let recipient = &task.service().aggregator(role).recipient;
        let sealed = recipient.seal(&task.info(role), &aad, &share.get_encoded()?)?;
        Ok::<_, SealError>(sealed)
    };
    Ok(DapReport {
        leader_share: encrypt(Role::Leader, leader)?,
        helper_share: encrypt(Role::Helper, helper)?,
        metadata,
        public_share: sharded.public_share,
    })
}
