//! Answers without a store, for a browser whose native host is missing.

use bigbird::Timestamp;
use thiserror::Error;

use super::answer::{AgentAnswer, Reason};
use super::line::{Line, LineRequest};
use super::request::AgentRequest;
use super::schedule::{ConversionArrival, Moment, Scheduler};
use super::serve::{null_answer, page_call};
use crate::call::PageCall;
use crate::error::{AgentError, ApiError, TooManyReports};
use crate::gate::Gate;
use crate::shared::SharedConversion;
use crate::site::Site;

/// A user agent that has nothing stored and spends nothing. A page gets the same error as from any
/// other user agent, or a null report of the same size. A request of the user gets a `StoreError`,
/// because only a store can carry it out.
///
/// Answers are made at once. The caller delays those to conversions by
/// [`Pace::delay`](super::Pace::delay), as a [`Scheduler`] would.
#[derive(Debug)]
pub struct StorelessAgent {
    gate: Gate,
    /// Counts arrivals. Nothing waits in it.
    scheduler: Scheduler<(), ()>,
    /// The moment of the last conversion.
    latest: Timestamp,
}

impl StorelessAgent {
    /// A user agent with the configuration and the sealer of a gate.
    pub fn new(gate: Gate) -> Self {
        Self {
            scheduler: Scheduler::new(gate.config().pace),
            gate,
            latest: Timestamp(i64::MIN),
        }
    }

    /// Its gate.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Answers a line that arrives now, on a wall clock in milliseconds: [`check`](Self::check),
    /// and if that finds nothing wrong, [`null`](Self::null).
    pub fn answer(&mut self, line: &Line, now: Timestamp, handle: SharedConversion) -> AgentAnswer {
        match self.check(line, now) {
            None => self.null(line, now, handle),
            Some(error) => error,
        }
    }

    /// Says what is wrong with a line that arrives now, if anything is: the error that a page gets
    /// at once, whether or not there is a store. A conversion counts against the limit of its site.
    pub fn check(&mut self, line: &Line, now: Timestamp) -> Option<AgentAnswer> {
        let error = match &line.asked {
            _ if line.seconds.is_some() => {
                AgentAnswer::malformed("`seconds` is allowed only with --test-clock")
            }
            LineRequest::Play(request) => {
                let call = page_call(&self.gate, request, now, None);
                let checked = call.and_then(|call| match &call {
                    Some(PageCall::Measure(conversion)) => {
                        let (site, units) = (conversion.site(), conversion.sealing_units());
                        self.arrive(site, units, request.is_private(), now)
                    }
                    _ => Ok(()),
                });
                AgentAnswer::rejected(&checked.err()?)
            }
            _ => return None,
        };
        Some(error.with_id(line.id.clone()))
    }

    /// The answer to a line that was [checked](Self::check) and has no effect. To a page it looks
    /// like any other.
    ///
    /// `handle` is that of a shared conversion, if the line creates one: 128 random bits that pages
    /// cannot predict. Every share of it will be null.
    pub fn null(&self, line: &Line, now: Timestamp, handle: SharedConversion) -> AgentAnswer {
        let answer = match &line.asked {
            LineRequest::Play(request) => match page_call(&self.gate, request, now, Some(handle)) {
                Ok(Some(call)) => null_answer(&self.gate, &call, handle),
                Ok(None) => other_answer(request),
                Err(error) => AgentAnswer::rejected(&error),
            },
            _ => no_store(),
        };
        answer.with_id(line.id.clone())
    }

    /// Counts a conversion. Sealing takes longer in WebAssembly than anywhere, so the limit of a
    /// site matters most where there is no store.
    fn arrive(
        &mut self,
        site: &Site,
        sealing: u32,
        private: bool,
        now: Timestamp,
    ) -> Result<(), ApiError> {
        let pace = self.gate.config().pace;
        if now < self.latest {
            // The clock stepped back. Without this, sites would wait until it is where it was.
            self.scheduler = Scheduler::new(pace);
        }
        self.latest = now;
        let moment = Moment::from_millis(u64::try_from(now.0).unwrap_or(0));
        let scheduler = &mut self.scheduler;
        let arrival = match private {
            true => scheduler.private_conversion(moment, site, sealing, ()),
            false => scheduler.conversion(moment, site, sealing, (), ()),
        };
        while scheduler.begin().is_some() {}
        while scheduler.release(moment).is_some() {}
        match arrival {
            ConversionArrival::Rejected => {
                let delay_ms = pace.delay.as_millis();
                Err(TooManyReports { delay_ms }.into())
            }
            _ => Ok(()),
        }
    }
}

/// The answer to a request that is not a page's call.
fn other_answer(request: &AgentRequest) -> AgentAnswer {
    match request {
        // A response asks for this, so the answer says nothing. There is nothing to clear.
        AgentRequest::ClearImpressionsForSite { .. } => AgentAnswer::done(),
        _ => no_store(),
    }
}

fn no_store() -> AgentAnswer {
    AgentAnswer::failed(&AgentError::Store(NoStore))
}

/// The error of a request that needs a store.
#[derive(Debug, Error)]
#[error("this request needs the store, and there is none here")]
struct NoStore;

impl Reason for NoStore {
    fn reason(&self) -> &'static str {
        "missing"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bigbird::Profile;

    use crate::config::Config;

    const CONVERSION: &str = r#"{"event": "measureConversion", "site": "SITE", "options":
        {"aggregationService": "https://agg.example", "histogramSize": 1024, "maxValue": 255}}"#;

    fn answer(agent: &mut StorelessAgent, site: &str, now: i64) -> String {
        let text = CONVERSION.replace("SITE", site);
        let line = Line::parse(&text, &agent.gate().config().limits).unwrap();
        agent
            .answer(&line, Timestamp(now), SharedConversion(1))
            .line()
    }

    /// Four such reports of one site are sealed within two seconds.
    #[test]
    fn a_site_can_cause_a_limited_amount_of_sealing() {
        let config = Config::new(Profile::BigBird).with_service("https://agg.example");
        let mut agent = StorelessAgent::new(Gate::new(config));
        let (ok, start) = ("{\"ok\":true}\n", 1_790_000_000_000);
        for call in 0..4 {
            assert_eq!(answer(&mut agent, "a.example", start + call), ok);
        }
        let rejected = answer(&mut agent, "www.a.example", start + 1999);
        assert!(rejected.contains(
            "\"QuotaExceededError: this site asked for too many reports; ask again in 2000 ms\""
        ));
        assert_eq!(answer(&mut agent, "b.example", start + 1999), ok);
        assert_eq!(answer(&mut agent, "a.example", start + 2000), ok);
        let rejected = answer(&mut agent, "a.example", start + 2000);
        assert!(rejected.contains("QuotaExceededError"));
        // The clock steps back, and nobody has to wait until it is where it was.
        assert_eq!(answer(&mut agent, "a.example", start - 3_600_000), ok);
    }
}
