//! The gate: what a page is told at once, because it follows from the call alone.

use std::sync::Arc;

use bigbird::{AttributionQuery, Histogram};

use crate::call::{Call, Caller, ConversionCall, ImpressionCall, Measurement, Querier};
use crate::config::Config;
use crate::error::{ApiError, RangeError};
use crate::options::{ConversionOptions, ImpressionOptions};
use crate::report::{Envelope, Seal, SealedReport, Withhold};
use crate::shared::SharedConversion;
use crate::site::Site;

/// Parses calls, and makes the reports that leave: all of a user agent that needs no store, so that
/// another thread can tell a page what is wrong with its call, and give it a null report, whatever the
/// user agent is doing.
#[derive(Debug, Clone)]
pub struct Gate {
    config: Arc<Config>,
    sealer: Arc<dyn Seal + Send + Sync>,
}

impl Gate {
    /// The gate of user agents with a configuration. Nothing leaves through it until it is told how
    /// reports are [sealed](Self::sealing).
    pub fn new(config: Config) -> Self {
        Self {
            config: Arc::new(config),
            sealer: Arc::new(Withhold),
        }
    }

    /// The same, with reports that are sealed so.
    #[must_use]
    pub fn sealing(mut self, sealer: impl Seal + Send + Sync + 'static) -> Self {
        self.sealer = Arc::new(sealer);
        self
    }

    /// How user agents behind it are set up.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Parses a call that saves an impression. A page's promise depends on this, and on nothing else.
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
            caller: Caller::parse(call, &self.config)?,
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
        let caller = Caller::parse(call, &self.config)?;
        self.check_querier(call.querier, caller.intermediary.is_some())?;
        Ok(ConversionCall {
            occasion: call.into(),
            caller,
            querier: call.querier,
            valid: options.parse(&self.config)?,
            measurement: Measurement::Conversion,
        })
    }

    /// Parses a call that creates a shared conversion, perhaps with a handle that was chosen before.
    ///
    /// # Errors
    /// If the call or a participant is invalid, or the profile has no intermediaries as queriers.
    pub fn shared_conversion(
        &self,
        call: &Call<'_>,
        options: &ConversionOptions,
        participants: &[&str],
        handle: Option<SharedConversion>,
    ) -> Result<ConversionCall, ApiError> {
        let mut conversion = self.conversion(call, options)?;
        conversion.measurement = Measurement::Create {
            participants: self.participants(participants)?,
            handle,
        };
        Ok(conversion)
    }

    /// Parses a call that takes a share of a shared conversion: whoever calls is the querier.
    ///
    /// # Errors
    /// If the call is invalid, or the profile has no intermediaries as queriers.
    pub fn share(
        &self,
        shared: SharedConversion,
        call: &Call<'_>,
        options: &ConversionOptions,
    ) -> Result<ConversionCall, ApiError> {
        self.check_querier(Querier::Intermediary, true)?;
        let mut conversion = self.conversion(call, options)?;
        if conversion.caller.intermediary.is_some() {
            conversion.querier = Querier::Intermediary;
        }
        conversion.measurement = Measurement::Share(shared);
        Ok(conversion)
    }

    /// Parses who is to share a conversion.
    fn participants(&self, participants: &[&str]) -> Result<Vec<Site>, ApiError> {
        self.check_querier(Querier::Intermediary, true)?;
        let most = AttributionQuery::MAX_CALLERS;
        if !(1..=most).contains(&participants.len()) {
            let allowed = format!("1 to {most} sites");
            return Err(RangeError::new("participants", allowed, participants.len()).into());
        }
        Ok(self.config.sites(participants.iter().copied())?)
    }

    fn check_querier(&self, querier: Querier, intermediary: bool) -> Result<(), ApiError> {
        let allowed = match querier {
            Querier::ConversionSite => return Ok(()),
            _ if self.config.policy.matches_own_action() => "the conversion site in this profile",
            Querier::Intermediary if intermediary => return Ok(()),
            Querier::Intermediary => "the conversion site when no intermediary calls",
        };
        Err(RangeError::new("querier", allowed, "the intermediary").into())
    }

    /// The report of a conversion of which nothing comes: to the page it looks like any other.
    pub fn null_report(&self, envelope: &Envelope) -> SealedReport {
        self.sealed(envelope, Histogram::null(envelope.histogram_size))
    }

    /// Seals the report of a conversion.
    pub(crate) fn sealed(&self, envelope: &Envelope, histogram: Histogram) -> SealedReport {
        let bytes = self.sealer.seal(&envelope.around(&histogram));
        let histogram = self.config.shows_histograms.then_some(histogram);
        SealedReport { bytes, histogram }
    }
}
