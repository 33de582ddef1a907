//! Answers without a store, for a browser whose native host is missing.

use bigbird::Timestamp;
use thiserror::Error;

use super::answer::{AgentAnswer, Reason};
use super::line::{Line, LineRequest};
use super::request::AgentRequest;
use super::serve::{null_answer, page_call};
use crate::error::AgentError;
use crate::gate::Gate;
use crate::shared::SharedConversion;

/// Answers a line as a user agent that has nothing stored and spends nothing. A page gets the same
/// error as from any user agent, or else a null report of the same size. A request of the user gets
/// a `StoreError`, because only a store can carry it out.
///
/// `handle` is that of a shared conversion, if the line creates one: 128 random bits that pages
/// cannot predict. No share of it will ever have a value.
pub fn answer_without_store(
    gate: &Gate,
    line: &Line,
    now: Timestamp,
    handle: SharedConversion,
) -> AgentAnswer {
    let answer = match &line.asked {
        LineRequest::Play(request) => match page_call(gate, request, now, Some(handle)) {
            Ok(Some(call)) => null_answer(gate, &call, handle),
            Ok(None) => other_answer(request),
            Err(error) => AgentAnswer::rejected(&error),
        },
        _ => no_store(),
    };
    answer.with_id(line.id.clone())
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
