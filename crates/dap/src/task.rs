//! A task: everything that a client and both aggregators agree on before the first report.

use bigbird::MicroEpsilon;
use thiserror::Error;

use crate::hpke::input_share_info;
use crate::messages::{
    CodecError, Encode as _, Extension, Extensions, InputShareAad, ReportMetadata,
    TaskConfiguration, TaskId,
};
use crate::role::Role;
use crate::service::AggregationService;
use crate::vdaf::{HistogramVdaf, ParameterError, VdafKind, VdafParameters};

/// What tells the tasks of a service apart: who collects, who paid, and the form of histograms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskTerms<'a> {
    /// The site that called the API: the intermediary, or the conversion site itself.
    pub collector: &'a str,
    /// The site whose budget paid.
    pub budget_source: &'a str,
    /// The number of buckets.
    pub histogram_size: u32,
    /// The largest value of a conversion.
    pub max_value: u32,
    /// The VDAF. The draft's is [`VdafKind::L1BoundSum`].
    pub vdaf: VdafKind,
}

/// A task, with everything that follows from its configuration.
#[derive(Debug, Clone)]
pub struct AggregationTask {
    service: AggregationService,
    configuration: TaskConfiguration,
    encoded: Vec<u8>,
    id: TaskId,
    context: Vec<u8>,
    parameters: VdafParameters,
    vdaf: HistogramVdaf,
}

/// A task that cannot exist.
#[derive(Debug, Error)]
pub enum TaskError {
    /// The VDAF does not exist with these parameters.
    #[error(transparent)]
    Parameters(#[from] ParameterError),
    /// A field is too long to be encoded.
    #[error("the task cannot be encoded: {0}")]
    Encoding(#[from] CodecError),
}

impl AggregationTask {
    /// The task of a service with some terms, as the draft's "construct a DAP report" makes it.
    ///
    /// # Errors
    /// If the VDAF does not exist with these parameters.
    pub fn new(service: &AggregationService, terms: &TaskTerms<'_>) -> Result<Self, TaskError> {
        let parameters = VdafParameters::new(terms.vdaf, terms.histogram_size, terms.max_value);
        let vdaf = parameters.vdaf()?;
        let settings = service.settings();
        let site = |extension_type: u16, site: &str| Extension {
            extension_type,
            data: site.as_bytes().to_vec(),
        };
        let points = settings.code_points;
        let configuration = TaskConfiguration {
            task_info: settings.task_info.clone().into_bytes(),
            leader: service.aggregator(Role::Leader).url.clone(),
            helper: service.aggregator(Role::Helper).url.clone(),
            time_precision: settings.time_precision,
            min_batch_size: settings.min_batch_size,
            batch_mode: settings.batch_mode,
            batch_config: Vec::new(),
            vdaf: parameters.config(),
            extensions: Extensions::new(vec![
                site(points.collector_identity, terms.collector),
                site(points.budget_source, terms.budget_source),
            ])?,
        };
        let encoded = configuration.get_encoded()?;
        let id = configuration.task_id()?;
        let context = [settings.version.tag().as_bytes(), &id.0].concat();
        Ok(Self {
            service: service.clone(),
            configuration,
            encoded,
            id,
            context,
            parameters,
            vdaf,
        })
    }

    /// The id.
    pub fn id(&self) -> TaskId {
        self.id
    }

    /// The service that the task belongs to.
    pub fn service(&self) -> &AggregationService {
        &self.service
    }

    /// The configuration.
    pub fn configuration(&self) -> &TaskConfiguration {
        &self.configuration
    }

    /// The encoded configuration.
    pub fn encoded_configuration(&self) -> &[u8] {
        &self.encoded
    }

    /// The parameters of the VDAF.
    pub fn parameters(&self) -> &VdafParameters {
        &self.parameters
    }

    /// The VDAF.
    pub fn vdaf(&self) -> &HistogramVdaf {
        &self.vdaf
    }

    /// The context in which the VDAF is used: the version of DAP and the id of the task.
    pub fn context(&self) -> &[u8] {
        &self.context
    }

    /// A moment in seconds since 1970, in units of the task's precision. Moments before 1970 count
    /// as 1970.
    pub fn time(&self, seconds: i64) -> u64 {
        u64::try_from(seconds).unwrap_or(0) / self.configuration.time_precision
    }

    /// The extension of a report that says how much was paid for it.
    pub(crate) fn budget_extension(&self, epsilon: MicroEpsilon) -> Extension {
        Extension {
            extension_type: self.service.settings().code_points.privacy_budget,
            // The largest epsilon of a call, 4294, fits into 32 bits.
            data: u32::try_from(epsilon.get())
                .unwrap_or(u32::MAX)
                .to_be_bytes()
                .to_vec(),
        }
    }

    /// What is authenticated with the shares of a report.
    pub(crate) fn aad(
        &self,
        metadata: &ReportMetadata,
        public_share: &[u8],
    ) -> Result<Vec<u8>, CodecError> {
        InputShareAad {
            task_id: self.id,
            task_configuration: &self.encoded,
            metadata,
            public_share,
        }
        .get_encoded()
    }

    /// What is authenticated with the share of one aggregator.
    pub(crate) fn info(&self, role: Role) -> Vec<u8> {
        input_share_info(self.service.settings().version, role)
    }
}
