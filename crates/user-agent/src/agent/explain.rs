//! Explanations: what a call would give, and why.

use super::UserAgent;
use crate::call::{Call, ConversionCall};
use crate::error::AgentError;
use crate::execution::Execution;
use crate::explanation::Explanation;
use crate::options::ConversionOptions;
use crate::randomness::Randomness;
use crate::shared::SharedConversion;
use crate::storage::Storage;

impl<S: Storage, R: Randomness> UserAgent<S, R> {
    /// Explains what a conversion would give, and why. Nothing is charged, stored or chosen. This
    /// is for developers on the device.
    ///
    /// # Errors
    /// If the call is invalid, or the store failed.
    pub fn explain(
        &mut self,
        call: &Call<'_>,
        options: &ConversionOptions,
    ) -> Result<Explanation, AgentError<S::Error>> {
        let conversion = self.gate.conversion(call, options)?;
        self.explain_call(&conversion).map_err(AgentError::Store)
    }

    /// Explains what [creating a shared conversion](Self::create_shared_conversion) would charge,
    /// as [`explain`](Self::explain) does.
    ///
    /// # Errors
    /// If the call or a participant is invalid, or the store failed.
    pub fn explain_shared_conversion(
        &mut self,
        call: &Call<'_>,
        options: &ConversionOptions,
        participants: &[&str],
    ) -> Result<Explanation, AgentError<S::Error>> {
        let conversion = self
            .gate
            .shared_conversion(call, options, participants, None)?;
        self.explain_call(&conversion).map_err(AgentError::Store)
    }

    /// Explains what [taking a share](Self::take_share) would give, and why, as
    /// [`explain`](Self::explain) does.
    ///
    /// # Errors
    /// If the call is invalid, or the store failed.
    pub fn explain_share(
        &mut self,
        shared: SharedConversion,
        call: &Call<'_>,
        options: &ConversionOptions,
    ) -> Result<Explanation, AgentError<S::Error>> {
        let conversion = self.gate.share(shared, call, options)?;
        self.explain_call(&conversion).map_err(AgentError::Store)
    }

    /// Explains a call that measures and was parsed already: it is carried out, and its changes
    /// are not applied.
    ///
    /// # Errors
    /// If the store failed.
    pub fn explain_call(&mut self, conversion: &ConversionCall) -> Result<Explanation, S::Error> {
        let view = self.storage.begin()?;
        let execution = Execution::new(&view, self.gate.config(), &mut self.randomness)?;
        execution.explain(conversion)
    }
}
