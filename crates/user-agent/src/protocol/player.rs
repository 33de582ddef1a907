//! A player that makes requests to a user agent.

use std::collections::BTreeMap;

use bigbird::{Decision, Timestamp};

use super::request::{AgentRequest, NumberedCall};
use super::serve::page_call;
use crate::activation::Activation;
use crate::agent::{ConversionAnswer, UserAgent};
use crate::call::{Action, Call, PageCall};
use crate::error::{AgentError, ApiError};
use crate::explanation::Explanation;
use crate::options::ConversionOptions;
use crate::randomness::Randomness;
use crate::report::SealedReport;
use crate::shared::SharedConversion;
use crate::storage::Storage;

/// The result of a request.
#[derive(Debug, Clone, PartialEq)]
pub enum PlayResult {
    /// The request returns nothing.
    Done,
    /// A report, with the decision.
    Report(SealedReport, Decision),
    /// The handle of a shared conversion, with the decision.
    Shared(SharedConversion, Decision),
}

/// Makes requests to a user agent, as the tabs of a browser do.
#[derive(Debug)]
pub struct Player<S, R> {
    /// The user agent.
    pub agent: UserAgent<S, R>,
    /// The duration of an activation, if calls that name no tab need one too.
    activation_ms: Option<i64>,
    /// The tabs in which something happened. The tab without a name is `None`.
    tabs: BTreeMap<Option<String>, Activation>,
}

/// The duration of an activation in the W3C's end-to-end tests, in which calls name their tab.
const ACTIVATION_MS: i64 = 1_000_000;

impl<S: Storage, R: Randomness> Player<S, R> {
    /// A player on a user agent. With `activation_ms`, every call needs an activation, which lasts
    /// that long. Otherwise only calls that name their tab need one.
    pub fn new(agent: UserAgent<S, R>, activation_ms: Option<i64>) -> Self {
        Self {
            agent,
            activation_ms,
            tabs: BTreeMap::new(),
        }
    }

    /// Makes a request.
    ///
    /// # Errors
    /// If the call is invalid, or the store failed.
    pub fn play(
        &mut self,
        request: &AgentRequest,
        now: Timestamp,
    ) -> Result<PlayResult, AgentError<S::Error>> {
        if request.is_private() {
            self.check_activation(request, now)?;
            return self.play_private(request, now);
        }
        if let Some((call, options)) = request.impression(now) {
            self.check_activation(request, now)?;
            let call = self.with_action(call)?;
            self.agent.save_impression(&call, options)?;
            return Ok(PlayResult::Done);
        }
        if let Some((call, options)) = request.conversion(now) {
            self.check_activation(request, now)?;
            request.check_share(&call.call, self.agent.config())?;
            let call = self.with_action(call)?;
            return self.measure(request, &call, options);
        }
        match request {
            AgentRequest::ClearImpressionsForSite { site, .. } => {
                let cleared = self.agent.clear_impressions_for_site(site);
                cleared.map_err(AgentError::Store)?;
            }
            AgentRequest::ClearBrowsingHistoryForAttribution {
                sites,
                forget_visits,
            } => self
                .agent
                .clear_browsing_history(sites, *forget_visits, now)?,
            AgentRequest::EnableApi => self.agent.set_enabled(true).map_err(AgentError::Store)?,
            AgentRequest::DisableApi => self.agent.set_enabled(false).map_err(AgentError::Store)?,
            AgentRequest::UpdateActivationTimestamp { .. } => self.tab(request).activate(now),
            AgentRequest::Navigate { from, to, .. } => {
                let config = self.agent.config();
                let site = |host: &Option<String>| config.site(host.as_deref()?).ok();
                let (from, to) = (site(from), site(to));
                self.tab(request).navigate(from.as_ref(), to.as_ref());
            }
            AgentRequest::RestartEpochs => {
                self.agent.restart_epochs(now).map_err(AgentError::Store)?;
            }
            AgentRequest::Maintain => self.agent.maintain(now).map_err(AgentError::Store)?,
            AgentRequest::SaveImpression { .. }
            | AgentRequest::MeasureConversion { .. }
            | AgentRequest::CreateSharedConversion { .. }
            | AgentRequest::TakeShare { .. } => {}
        }
        Ok(PlayResult::Done)
    }

    /// Answers a call from a private window. It is valid or not like any other, and does nothing.
    fn play_private(
        &mut self,
        request: &AgentRequest,
        now: Timestamp,
    ) -> Result<PlayResult, AgentError<S::Error>> {
        let gate = self.agent.gate().clone();
        let Some(PageCall::Measure(call)) = page_call(&gate, request, now, None)? else {
            return Ok(PlayResult::Done);
        };
        if call.creates_shared() {
            let handle = SharedConversion(self.agent.randomness_mut().handle(0));
            return Ok(PlayResult::Shared(handle, Decision::default()));
        }
        let report = gate.null_report(&call.envelope());
        Ok(PlayResult::Report(report, Decision::default()))
    }

    fn measure(
        &mut self,
        request: &AgentRequest,
        call: &Call<'_>,
        options: &ConversionOptions,
    ) -> Result<PlayResult, AgentError<S::Error>> {
        let agent = &mut self.agent;
        let ConversionAnswer { report, decision } = match request {
            AgentRequest::CreateSharedConversion { participants, .. } => {
                let created =
                    agent.create_shared_conversion(call, options, &strings(participants))?;
                return Ok(PlayResult::Shared(created.shared, created.decision));
            }
            AgentRequest::TakeShare { shared, .. } => agent.take_share(*shared, call, options)?,
            _ => agent.measure_conversion(call, options)?,
        };
        Ok(PlayResult::Report(report, decision))
    }

    /// Explains what a request that measures would give, and why, without measuring. Returns `None`
    /// if the request does not measure.
    ///
    /// # Errors
    /// If the call is invalid, or the store failed.
    pub fn explain(
        &mut self,
        request: &AgentRequest,
        now: Timestamp,
    ) -> Result<Option<Explanation>, AgentError<S::Error>> {
        let Some((call, options)) = request.conversion(now) else {
            return Ok(None);
        };
        request.check_share(&call.call, self.agent.config())?;
        let call = &match call.user_action {
            Some(_) => self.with_action(call)?,
            // Beginning a real action would store something.
            None => call.call.by(Action::supposed()),
        };
        let agent = &mut self.agent;
        let explained = match request {
            AgentRequest::CreateSharedConversion { participants, .. } => {
                agent.explain_shared_conversion(call, options, &strings(participants))
            }
            AgentRequest::TakeShare { shared, .. } => agent.explain_share(*shared, call, options),
            _ => agent.explain(call, options),
        };
        explained.map(Some)
    }

    /// The call with its user action: the one with its number, or a new one.
    ///
    /// # Errors
    /// If the number is too large, or the store failed.
    fn with_action<'a>(
        &mut self,
        numbered: NumberedCall<'a>,
    ) -> Result<Call<'a>, AgentError<S::Error>> {
        let call = numbered.with_action()?;
        if call.user_action.is_some() {
            return Ok(call);
        }
        let action = self.agent.begin_user_action(call.now);
        Ok(call.by(action.map_err(AgentError::Store)?))
    }

    fn check_activation(&mut self, request: &AgentRequest, now: Timestamp) -> Result<(), ApiError> {
        if request.tab().is_some() || self.activation_ms.is_some() {
            self.tab(request).check(now)?;
        }
        Ok(())
    }

    /// The tab of a request.
    fn tab(&mut self, request: &AgentRequest) -> &mut Activation {
        let lasts = self.activation_ms.unwrap_or(ACTIVATION_MS);
        let tab = self.tabs.entry(request.tab().map(str::to_owned));
        tab.or_insert(Activation::new(lasts))
    }
}

fn strings(list: &[String]) -> Vec<&str> {
    list.iter().map(String::as_str).collect()
}
