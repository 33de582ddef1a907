//! A player that makes requests to a user agent.

use std::collections::BTreeMap;

use bigbird::{Decision, Timestamp};

use super::request::{Numbered, Request};
use crate::activation::Activation;
use crate::agent::{Answer, UserAgent};
use crate::call::{Action, Call};
use crate::config::Randomness;
use crate::error::{AgentError, ApiError};
use crate::explain::Explanation;
use crate::options::ConversionOptions;
use crate::report::SealedReport;
use crate::shared::SharedConversion;
use crate::storage::Storage;

/// What a request gave.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// A call that gives nothing back.
    Done,
    /// A report, and why.
    Report(SealedReport, Decision),
    /// The handle of a shared conversion, and why.
    Shared(SharedConversion, Decision),
}

/// Makes requests to a user agent, as the tabs of a browser.
#[derive(Debug)]
pub struct Player<S, R> {
    /// The user agent.
    pub agent: UserAgent<S, R>,
    /// How long an activation lasts, if also calls need one that name no tab.
    activation_ms: Option<i64>,
    /// The tabs in which something happened; the one without a name is `None`.
    tabs: BTreeMap<Option<String>, Activation>,
}

/// How long an activation lasts in the W3C's end-to-end tests, in which calls name their tab.
const ACTIVATION_MS: i64 = 1_000_000;

impl<S: Storage, R: Randomness> Player<S, R> {
    /// On a user agent, whose calls need an activation that lasts so long. If it is not said how
    /// long, only calls that name their tab need one.
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
        request: &Request,
        now: Timestamp,
    ) -> Result<Outcome, AgentError<S::Error>> {
        if let Some((call, options)) = request.impression(now) {
            self.check_activation(request, now)?;
            let call = self.with_action(call)?;
            self.agent.save_impression(&call, options)?;
            return Ok(Outcome::Done);
        }
        if let Some((call, options)) = request.conversion(now) {
            self.check_activation(request, now)?;
            request.check_share(&call.call, self.agent.config())?;
            let call = self.with_action(call)?;
            return self.measure(request, &call, options);
        }
        match request {
            Request::ClearImpressionsForSite { site } => {
                let cleared = self.agent.clear_impressions_for_site(site);
                cleared.map_err(AgentError::Store)?;
            }
            Request::ClearBrowsingHistoryForAttribution {
                sites,
                forget_visits,
            } => self
                .agent
                .clear_browsing_history(sites, *forget_visits, now)?,
            Request::EnableApi => self.agent.set_enabled(true).map_err(AgentError::Store)?,
            Request::DisableApi => self.agent.set_enabled(false).map_err(AgentError::Store)?,
            Request::UpdateActivationTimestamp { .. } => self.tab(request).activate(now),
            Request::Navigate { from, to, .. } => {
                let config = self.agent.config();
                let site = |host: &Option<String>| config.site(host.as_deref()?).ok();
                let (from, to) = (site(from), site(to));
                self.tab(request).navigate(from.as_ref(), to.as_ref());
            }
            Request::RestartEpochs => {
                self.agent.restart_epochs(now).map_err(AgentError::Store)?;
            }
            Request::Maintain => self.agent.maintain(now).map_err(AgentError::Store)?,
            Request::SaveImpression { .. }
            | Request::MeasureConversion { .. }
            | Request::CreateSharedConversion { .. }
            | Request::TakeShare { .. } => {}
        }
        Ok(Outcome::Done)
    }

    fn measure(
        &mut self,
        request: &Request,
        call: &Call<'_>,
        options: &ConversionOptions,
    ) -> Result<Outcome, AgentError<S::Error>> {
        let agent = &mut self.agent;
        let Answer { report, decision } = match request {
            Request::CreateSharedConversion { participants, .. } => {
                let created =
                    agent.create_shared_conversion(call, options, &strings(participants))?;
                return Ok(Outcome::Shared(created.shared, created.decision));
            }
            Request::TakeShare { shared, .. } => agent.take_share(*shared, call, options)?,
            _ => agent.measure_conversion(call, options)?,
        };
        Ok(Outcome::Report(report, decision))
    }

    /// Says what a request that measures would give, and why, without measuring; nothing if it
    /// measures nothing.
    ///
    /// # Errors
    /// If the call is invalid, or the store failed.
    pub fn explain(
        &mut self,
        request: &Request,
        now: Timestamp,
    ) -> Result<Option<Explanation>, AgentError<S::Error>> {
        let Some((call, options)) = request.conversion(now) else {
            return Ok(None);
        };
        request.check_share(&call.call, self.agent.config())?;
        let call = &match call.user_action {
            Some(_) => self.with_action(call)?,
            // To begin one would be to store something.
            None => call.call.by(Action::supposed()),
        };
        let agent = &mut self.agent;
        let explained = match request {
            Request::CreateSharedConversion { participants, .. } => {
                agent.explain_shared_conversion(call, options, &strings(participants))
            }
            Request::TakeShare { shared, .. } => agent.explain_share(*shared, call, options),
            _ => agent.explain(call, options),
        };
        explained.map(Some)
    }

    /// The call with its user action: that of its number, or one of its own.
    ///
    /// # Errors
    /// If the number is too large, or the store failed.
    fn with_action<'a>(
        &mut self,
        numbered: Numbered<'a>,
    ) -> Result<Call<'a>, AgentError<S::Error>> {
        let call = numbered.with_action()?;
        if call.user_action.is_some() {
            return Ok(call);
        }
        let action = self.agent.begin_user_action(call.now);
        Ok(call.by(action.map_err(AgentError::Store)?))
    }

    fn check_activation(&mut self, request: &Request, now: Timestamp) -> Result<(), ApiError> {
        if request.tab().is_some() || self.activation_ms.is_some() {
            self.tab(request).check(now)?;
        }
        Ok(())
    }

    /// The tab of a request.
    fn tab(&mut self, request: &Request) -> &mut Activation {
        let lasts = self.activation_ms.unwrap_or(ACTIVATION_MS);
        let tab = self.tabs.entry(request.tab().map(str::to_owned));
        tab.or_insert(Activation::new(lasts))
    }
}

fn strings(list: &[String]) -> Vec<&str> {
    list.iter().map(String::as_str).collect()
}
