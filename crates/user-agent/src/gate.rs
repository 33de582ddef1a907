//! The gate: everything that follows from a call alone, so that a page can be told at once.

use std::sync::Arc;

use bigbird::{AllowedQueriers, AttributionQuery};

use crate::call::{Call, CallSites, ConversionCall, ImpressionCall, MeasurementKind, QuerierRole};
use crate::config::Config;
use crate::error::{ApiError, RangeError};
use crate::options::{ConversionOptions, ImpressionOptions};
use crate::report::{Envelope, Seal, SealedReport, UnsealedReport, Withhold};
use crate::shared::SharedConversion;
use crate::site::Site;

/// Parses calls and seals reports: the part of a user agent that needs no store. Another thread can
/// use it to tell a page what is wrong with its call, or to give it a null report, whatever the
/// user agent is doing.
#[derive(Debug, Clone)]
pub struct Gate {
    config: Arc<Config>,
    sealer: Arc<dyn Seal + Send + Sync>,
}

impl Gate {
    /// The gate of user agents with a configuration. No report leaves through it until a
    /// [sealer](Self::sealing) is set.
    pub fn new(config: Config) -> Self {
        Self {
            config: Arc::new(config),
            sealer: Arc::new(Withhold),
        }
    }

    /// The same gate, with a sealer for reports.
    #[must_use]
    pub fn sealing(mut self, sealer: impl Seal + Send + Sync + 'static) -> Self {
        self.sealer = Arc::new(sealer);
        self
    }

    /// The configuration of the user agents behind the gate.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Parses a call that saves an impression. The page's promise depends on this result alone.
    ///
    /// # Errors
    /// If the call is invalid.
    pub fn impression(
        &self,
        call: &Call<'_>,
        options: &ImpressionOptions,
    ) -> Result<ImpressionCall, ApiError> {
        Ok(ImpressionCall {
            occasion: call.into(),
            caller: CallSites::parse(call, &self.config)?,
            valid: options.parse(&self.config)?,
        })
    }

    /// Parses a call that measures a conversion, in the draft's order.
    ///
    /// # Errors
    /// If the call is invalid.
    pub fn conversion(
        &self,
        call: &Call<'_>,
        options: &ConversionOptions,
    ) -> Result<ConversionCall, ApiError> {
        let caller = CallSites::parse(call, &self.config)?;
        self.check_querier(call.querier, caller.intermediary.is_some())?;
        Ok(ConversionCall {
            occasion: call.into(),
            caller,
            querier: call.querier,
            valid: options.parse(&self.config)?,
            measurement: MeasurementKind::Conversion,
        })
    }

    /// Parses a call that creates a shared conversion. Its handle may have been chosen in advance.
    ///
    /// # Errors
    /// If the call or a participant is invalid, or the policy does not allow intermediaries as
    /// queriers.
    pub fn shared_conversion(
        &self,
        call: &Call<'_>,
        options: &ConversionOptions,
        participants: &[&str],
        handle: Option<SharedConversion>,
    ) -> Result<ConversionCall, ApiError> {
        let mut conversion = self.conversion(call, options)?;
        conversion.measurement = MeasurementKind::Create {
            participants: self.participants(participants)?,
            handle,
        };
        Ok(conversion)
    }

    /// Parses a call that takes a share of a shared conversion. The caller is the querier.
    ///
    /// # Errors
    /// If the call is invalid, or the policy does not allow intermediaries as queriers.
    pub fn share(
        &self,
        shared: SharedConversion,
        call: &Call<'_>,
        options: &ConversionOptions,
    ) -> Result<ConversionCall, ApiError> {
        self.check_querier(QuerierRole::Intermediary, true)?;
        let mut conversion = self.conversion(call, options)?;
        if conversion.caller.intermediary.is_some() {
            conversion.querier = QuerierRole::Intermediary;
        }
        conversion.measurement = MeasurementKind::Share(shared);
        Ok(conversion)
    }

    /// Parses the participants of a shared conversion.
    fn participants(&self, participants: &[&str]) -> Result<Vec<Site>, ApiError> {
        self.check_querier(QuerierRole::Intermediary, true)?;
        let most = AttributionQuery::MAX_CALLERS;
        if !(1..=most).contains(&participants.len()) {
            let allowed = format!("a list of 1 to {most} sites");
            return Err(RangeError::new("participants", allowed, participants.len()).into());
        }
        Ok(self.config.sites(participants.iter().copied())?)
    }

    fn check_querier(&self, querier: QuerierRole, intermediary: bool) -> Result<(), ApiError> {
        let queriers = self.config.policy.allowed_queriers();
        let allowed = match querier {
            QuerierRole::ConversionSite => return Ok(()),
            _ if queriers == AllowedQueriers::ConversionSiteOnly => {
                "the conversion site under this policy"
            }
            QuerierRole::Intermediary if intermediary => return Ok(()),
            QuerierRole::Intermediary => {
                "the conversion site unless an intermediary makes the call"
            }
        };
        Err(RangeError::new("querier", allowed, "the intermediary").into())
    }

    /// The null report of a conversion. To the page it looks like any other report.
    pub fn null_report(&self, envelope: &Envelope) -> SealedReport {
        self.seal(envelope.null())
    }

    /// The number of bytes of the sealed report of a conversion. It follows from the call alone. A
    /// shared conversion has no report.
    pub(crate) fn report_length(&self, conversion: &ConversionCall) -> usize {
        if conversion.creates_shared() {
            return 0;
        }
        let UnsealedReport {
            envelope,
            histogram,
        } = conversion.envelope().null();
        self.sealer.sealed_length(&envelope.around(&histogram))
    }

    /// Seals the report of a conversion.
    pub fn seal(&self, report: UnsealedReport) -> SealedReport {
        let UnsealedReport {
            envelope,
            histogram,
        } = report;
        let bytes = self.sealer.seal(&envelope.around(&histogram));
        let histogram = self.config.shows_histograms.then_some(histogram);
        SealedReport { bytes, histogram }
    }
}
