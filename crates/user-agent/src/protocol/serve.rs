//! Serving a stream: lines of JSON in, lines of JSON out.

use std::io::{self, BufRead, BufWriter, Read as _, Write};
use std::slice;
use std::string::FromUtf8Error;

use bigbird::Timestamp;

use super::answer::{AgentAnswer, Reason, StatusCounts};
use super::line::{Line, LineRequest};
use super::live;
use super::player::{PlayResult, Player};
use super::request::AgentRequest;
use crate::agent::{PageAnswer, UserAgent};
use crate::call::PageCall;
use crate::error::{AgentError, ApiError};
use crate::gate::Gate;
use crate::randomness::Randomness;
use crate::shared::SharedConversion;
use crate::storage::Storage;

/// The settings with which a stream is served.
#[derive(Debug, Clone, Copy)]
pub struct ServeOptions {
    /// The clock that gives the time of requests.
    pub clock: StreamClock,
    /// Tells the user's side what no page may learn, such as that the store failed.
    pub warn: fn(&str),
    /// Returns a handle for a shared conversion: 128 random bits that pages cannot predict. On a
    /// wall clock, a handle is chosen when the call arrives, so that the page gets one even if the
    /// call fails.
    pub handle: fn() -> u128,
}

/// The source of the time of requests.
#[derive(Debug, Clone, Copy)]
pub enum StreamClock {
    /// A wall clock, in milliseconds since 1970. A [`Scheduler`](super::Scheduler) decides when
    /// conversions are answered, and slices of upkeep run in between.
    Wall(fn() -> Timestamp),
    /// The `seconds` of requests. Every request is taken, in order, and answered at once.
    Requests,
}

/// Answers requests until the input ends, and returns the player.
///
/// # Errors
/// If answers cannot be written. Output that was closed early is not an error.
pub fn serve<S, R>(
    player: Player<S, R>,
    input: impl BufRead + Send + 'static,
    output: impl Write + Send + 'static,
    serving: ServeOptions,
) -> io::Result<Player<S, R>>
where
    S: Storage<Error: Reason>,
    R: Randomness,
{
    match serving.clock {
        StreamClock::Wall(clock) => live::serve(player, input, output, serving, clock),
        StreamClock::Requests => serve_in_order(player, input, output, serving),
    }
}

/// Answers each request as soon as it is done.
fn serve_in_order<S, R>(
    player: Player<S, R>,
    mut input: impl BufRead,
    output: impl Write,
    serving: ServeOptions,
) -> io::Result<Player<S, R>>
where
    S: Storage<Error: Reason>,
    R: Randomness,
{
    let mut output = BufWriter::new(output);
    let mut server = Server::new(player, serving);
    let mut latest = Timestamp(0);
    let gate = server.agent().gate().clone();
    while let Some((line, _)) = read_line(&mut input, &gate) {
        let answer = line.map(|line| {
            if let Some(seconds) = line.seconds {
                latest = Timestamp(seconds.saturating_mul(1000));
            }
            let id = line.id.clone();
            let answer = server.answer(&line, latest).unwrap_or_else(|error| error);
            answer.with_id(id)
        });
        let written = output
            .write_all(answer.unwrap_or_else(|error| error).line().as_bytes())
            // The sender may wait for this answer before it sends the next request.
            .and_then(|()| output.flush());
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
            written => written?,
        }
    }
    Ok(server.player)
}

/// Reads the next line that is not empty, and returns it with its length in bytes. Returns `None`
/// when the input has ended.
pub(super) fn read_line(
    input: &mut impl BufRead,
    gate: &Gate,
) -> Option<(Result<Line, AgentAnswer>, usize)> {
    let longest = Line::longest(&gate.config().limits);
    loop {
        let mut bytes = Vec::new();
        let read = (&mut *input)
            .take(longest as u64 + 1)
            .read_until(b'\n', &mut bytes);
        let text = match read {
            Ok(0) | Err(_) => return None,
            Ok(length) if length > longest && bytes.last() != Some(&b'\n') => {
                input.skip_until(b'\n').ok()?;
                Err(format!("a line must have at most {longest} bytes"))
            }
            Ok(_) => {
                let place = |error: FromUtf8Error| error.utf8_error().valid_up_to() + 1;
                String::from_utf8(bytes).map_err(|error| {
                    format!("the line is not valid UTF-8 at byte {}", place(error))
                })
            }
        };
        let length = text.as_ref().map_or(0, String::len);
        let line = match text {
            Ok(text) if text.trim().is_empty() => continue,
            Ok(text) => Line::parse(&text, &gate.config().limits),
            Err(why) => Err(AgentAnswer::malformed(&why)),
        };
        return Some((line, length));
    }
}

/// Answers requests, one at a time.
pub(super) struct Server<S, R> {
    pub(super) player: Player<S, R>,
    serving: ServeOptions,
    /// True if slices of upkeep remove what is cleared, so that nobody waits.
    pub(super) clears_in_slices: bool,
    /// What the status shows.
    pub(super) counts: StatusCounts,
}

impl<S: Storage<Error: Reason>, R: Randomness> Server<S, R> {
    pub(super) fn new(player: Player<S, R>, serving: ServeOptions) -> Self {
        Self {
            player,
            serving,
            clears_in_slices: false,
            counts: StatusCounts::default(),
        }
    }

    pub(super) fn agent(&mut self) -> &mut UserAgent<S, R> {
        &mut self.player.agent
    }

    /// Answers a line at once.
    fn answer(&mut self, line: &Line, now: Timestamp) -> Result<AgentAnswer, AgentAnswer> {
        if let LineRequest::Play(request) = &line.asked {
            let gate = self.agent().gate().clone();
            let call =
                page_call(&gate, request, now, None).map_err(|it| AgentAnswer::rejected(&it))?;
            if let Some(call) = call {
                let handle = self.serving.handle;
                if request.is_private() {
                    return Ok(null_answer(&gate, &call, SharedConversion(handle())));
                }
                return Ok(match self.perform(slice::from_ref(&call)).pop() {
                    Some(Some(answer)) => page_answer(&gate, answer),
                    _ => null_answer(&gate, &call, SharedConversion(handle())),
                });
            }
        }
        self.own(&line.asked, now)
    }

    /// Makes page calls that arrived together, with one write, and returns their answers. A call
    /// that failed has no answer, and the page must not learn of the failure.
    pub(super) fn perform(&mut self, calls: &[PageCall]) -> Vec<Option<PageAnswer>> {
        match self.try_perform(calls) {
            Ok(answers) => answers.into_iter().map(Some).collect(),
            Err(error) if calls.len() == 1 => {
                self.failed(&error);
                vec![None]
            }
            // One call that fails must not make the others fail, so each is tried alone.
            Err(_) => {
                let alone = calls.iter().map(|call| self.perform(slice::from_ref(call)));
                alone.flatten().collect()
            }
        }
    }

    fn try_perform(&mut self, calls: &[PageCall]) -> Result<Vec<PageAnswer>, S::Error> {
        let agent = self.agent();
        let mut with_actions = Vec::with_capacity(calls.len());
        for call in calls {
            // A call without a user action counts as an action of its own.
            let call = match call.now_without_action() {
                Some(now) => {
                    let action = agent.begin_user_action(now)?;
                    call.clone().or_by(|| action)
                }
                None => call.clone(),
            };
            with_actions.push(call);
        }
        agent.perform(&with_actions)
    }

    fn failed(&mut self, error: &S::Error) {
        self.counts.store_errors += 1;
        self.remember(error);
        (self.serving.warn)(&error.to_string());
    }

    fn remember(&mut self, error: &S::Error) {
        self.counts.last_store_error = Some(error.to_string());
        self.counts.last_advice = error.advice();
    }

    /// Carries out a request of the user or of a developer.
    pub(super) fn own(
        &mut self,
        asked: &LineRequest,
        now: Timestamp,
    ) -> Result<AgentAnswer, AgentAnswer> {
        let failed = |error: AgentError<S::Error>| AgentAnswer::failed(&error);
        let store = |error: S::Error| AgentAnswer::failed(&AgentError::Store(error));
        /// The most filters in one answer.
        const PAGE: usize = 1000;
        /// The most entries of history or impressions in one answer.
        const LISTED: usize = 200;
        Ok(match asked {
            LineRequest::Budgets(behind) => {
                let agent = self.agent();
                let (budgets, next) = agent.filter_balances_page(*behind, PAGE).map_err(store)?;
                AgentAnswer::budgets(&budgets, next, &agent.eras().map_err(store)?)
            }
            LineRequest::Status => {
                let status = match self.agent().status(now) {
                    Ok(status) => Some(status),
                    // The status reports the failure, so this is not an error.
                    Err(error) => {
                        self.remember(&error);
                        None
                    }
                };
                let config = self.player.agent.config();
                AgentAnswer::status(status.as_ref(), config, now, &self.counts)
            }
            LineRequest::History { behind, site } => {
                let site = site.as_deref().map(|host| self.agent().config().site(host));
                let site = site
                    .transpose()
                    .map_err(|error| failed(ApiError::from(error).into()))?;
                let page = self.agent().history(*behind, site.as_ref(), LISTED);
                let (entries, next) = page.map_err(store)?;
                AgentAnswer::history(&entries, next)
            }
            LineRequest::Impressions(behind) => {
                let page = self.agent().impressions(*behind, LISTED);
                let (impressions, next) = page.map_err(store)?;
                AgentAnswer::impressions(&impressions, next)
            }
            LineRequest::Explain(request) => {
                match self.player.explain(request, now).map_err(failed)? {
                    Some(explanation) => {
                        let shown = self.player.agent.config().shows_histograms;
                        AgentAnswer::explanation(&explanation, shown)
                    }
                    None => AgentAnswer::done(),
                }
            }
            LineRequest::Play(AgentRequest::ClearBrowsingHistoryForAttribution {
                sites,
                forget_visits,
            }) if self.clears_in_slices => {
                let cleared = self.agent().start_clearing(sites, *forget_visits, now);
                cleared.map_err(failed)?;
                AgentAnswer::done()
            }
            LineRequest::Play(AgentRequest::Maintain) if self.clears_in_slices => {
                self.agent().start_upkeep();
                AgentAnswer::done()
            }
            LineRequest::Play(request) => match self.player.play(request, now).map_err(failed)? {
                PlayResult::Done => AgentAnswer::done(),
                PlayResult::Report(report, _) => AgentAnswer::report(&report),
                PlayResult::Shared(shared, _) => AgentAnswer::shared(shared),
            },
        })
    }

    /// Does a slice of upkeep if it is due. Returns true if there is more to do.
    pub(super) fn look_after(&mut self, now: Timestamp) -> bool {
        if !self.agent().is_upkeep_due(now) {
            return false;
        }
        match self.agent().upkeep(now) {
            Ok(more) => more,
            Err(error) => {
                // The next call tries again.
                (self.serving.warn)(&format!("upkeep failed: {error}"));
                false
            }
        }
    }
}

/// The parsed page call of a request, or `None` for any other request.
pub(super) fn page_call(
    gate: &Gate,
    request: &AgentRequest,
    now: Timestamp,
    handle: Option<SharedConversion>,
) -> Result<Option<PageCall>, ApiError> {
    if let Some((call, options)) = request.impression(now) {
        let call = gate.impression(&call.with_action()?, options)?;
        return Ok(Some(PageCall::Save(call)));
    }
    let Some((call, options)) = request.conversion(now) else {
        return Ok(None);
    };
    request.check_share(&call.call, gate.config())?;
    let call = call.with_action()?;
    let conversion = match request {
        AgentRequest::CreateSharedConversion { participants, .. } => {
            let participants: Vec<&str> = participants.iter().map(String::as_str).collect();
            gate.shared_conversion(&call, options, &participants, handle)
        }
        AgentRequest::TakeShare { shared, .. } => gate.share(*shared, &call, options),
        _ => gate.conversion(&call, options),
    };
    Ok(Some(PageCall::Measure(conversion?)))
}

/// The answer to a page's call, with its report sealed.
fn page_answer(gate: &Gate, answer: PageAnswer) -> AgentAnswer {
    match answer {
        PageAnswer::Saved => AgentAnswer::done(),
        PageAnswer::Report(report, _) => AgentAnswer::report(&gate.seal(report)),
        PageAnswer::Shared(answer) => AgentAnswer::shared(answer.shared),
    }
}

/// The answer to a page's call that has no effect. It looks like the answer to any other such call.
pub(super) fn null_answer(gate: &Gate, call: &PageCall, handle: SharedConversion) -> AgentAnswer {
    match call {
        PageCall::Save(_) => AgentAnswer::done(),
        PageCall::Measure(call) if call.creates_shared() => AgentAnswer::shared(handle),
        PageCall::Measure(call) => AgentAnswer::report(&gate.null_report(&call.envelope())),
    }
}
