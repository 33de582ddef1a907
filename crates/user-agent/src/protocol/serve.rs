//! Serving a stream: lines of JSON in, lines of JSON out.

use std::io::{self, BufRead, BufWriter, Read as _, Write};
use std::slice;

use bigbird::Timestamp;

use super::answer::{Answer, Reason};
use super::line::{Asked, Line};
use super::live;
use super::player::{Outcome, Player};
use super::request::Request;
use crate::agent::{PageAnswer, UserAgent};
use crate::call::PageCall;
use crate::config::Randomness;
use crate::error::{AgentError, ApiError};
use crate::gate::Gate;
use crate::shared::SharedConversion;
use crate::storage::Storage;

/// How a stream is served.
#[derive(Debug, Clone, Copy)]
pub struct Serving {
    /// What time requests are made at.
    pub clock: StreamClock,
    /// Where to tell the user's side what no page may learn, such as that the store failed.
    pub warn: fn(&str),
    /// Gives handles of shared conversions: 128 random bits that pages cannot predict. On a wall clock
    /// a handle is chosen when the call arrives, so that the page gets one whatever comes of it.
    pub handle: fn() -> u128,
}

/// The time of requests.
#[derive(Debug, Clone, Copy)]
pub enum StreamClock {
    /// That of a wall clock, in milliseconds since 1970. Conversions are answered as a
    /// [`Scheduler`](super::Scheduler) says, and what no request can reach any more is removed while
    /// nobody waits.
    Wall(fn() -> Timestamp),
    /// The `seconds` of requests. Every request is taken, in order, and answered at once.
    Requests,
}

/// Answers requests until the input ends, and gives the player back.
///
/// # Errors
/// If answers cannot be written. Who closes the output early has what they wanted.
pub fn serve<S, R>(
    player: Player<S, R>,
    input: impl BufRead + Send + 'static,
    output: impl Write + Send + 'static,
    serving: Serving,
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

/// Answers each request when it is done.
fn serve_in_order<S, R>(
    player: Player<S, R>,
    mut input: impl BufRead,
    output: impl Write,
    serving: Serving,
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
            // Whoever waits for this answer before asking again gets it.
            .and_then(|()| output.flush());
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
            written => written?,
        }
    }
    Ok(server.player)
}

/// Reads the next line that is not empty, and tells how long it is; nothing when the input has ended.
pub(super) fn read_line(
    input: &mut impl BufRead,
    gate: &Gate,
) -> Option<(Result<Line, Answer>, usize)> {
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
                Err(format!("a line has at most {longest} bytes"))
            }
            Ok(_) => String::from_utf8(bytes).map_err(|error| error.to_string()),
        };
        let length = text.as_ref().map_or(0, String::len);
        let line = match text {
            Ok(text) if text.trim().is_empty() => continue,
            Ok(text) => Line::parse(&text, &gate.config().limits),
            Err(why) => Err(Answer::malformed(&why)),
        };
        return Some((line, length));
    }
}

/// Answers requests, one at a time.
pub(super) struct Server<S, R> {
    pub(super) player: Player<S, R>,
    serving: Serving,
    /// Whether what is cleared goes in slices of upkeep, so that nobody waits for it.
    pub(super) clears_in_slices: bool,
    /// How often the store failed, and how the last time.
    store_errors: u64,
    last_store_error: Option<String>,
}

impl<S: Storage<Error: Reason>, R: Randomness> Server<S, R> {
    pub(super) fn new(player: Player<S, R>, serving: Serving) -> Self {
        Self {
            player,
            serving,
            clears_in_slices: false,
            store_errors: 0,
            last_store_error: None,
        }
    }

    pub(super) fn agent(&mut self) -> &mut UserAgent<S, R> {
        &mut self.player.agent
    }

    /// Answers a line at once.
    fn answer(&mut self, line: &Line, now: Timestamp) -> Result<Answer, Answer> {
        if let Asked::Play(request) = &line.asked {
            let gate = self.agent().gate().clone();
            let call = page_call(&gate, request, now, None).map_err(|it| Answer::rejected(&it))?;
            if let Some(call) = call {
                return Ok(match self.perform(slice::from_ref(&call)).pop() {
                    Some(Some(answer)) => answer,
                    _ => null_answer(&gate, &call, SharedConversion((self.serving.handle)())),
                });
            }
        }
        self.own(&line.asked, now, 0)
    }

    /// Makes page calls that came together, with one write, and gives their answers: none for one that
    /// could not be made, which the page is not to learn of.
    pub(super) fn perform(&mut self, calls: &[PageCall]) -> Vec<Option<Answer>> {
        match self.try_perform(calls) {
            Ok(answers) => answers.iter().map(|it| Some(page_answer(it))).collect(),
            Err(error) if calls.len() == 1 => {
                self.failed(&error);
                vec![None]
            }
            // What is wrong with one is not to be the others' fault.
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
            // A call without one counts as an act of its own.
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
        self.store_errors += 1;
        self.last_store_error = Some(error.to_string());
        (self.serving.warn)(&error.to_string());
    }

    /// Does what the user, or a developer, asks for.
    pub(super) fn own(
        &mut self,
        asked: &Asked,
        now: Timestamp,
        missed: u64,
    ) -> Result<Answer, Answer> {
        let failed = |error: AgentError<S::Error>| Answer::failed(&error);
        let store = |error: S::Error| Answer::failed(&AgentError::Store(error));
        Ok(match asked {
            Asked::Budgets(behind) => {
                /// How many come in one answer.
                const PAGE: usize = 1000;
                let agent = self.agent();
                let (budgets, next) = agent.budgets_page(*behind, PAGE).map_err(store)?;
                Answer::budgets(&budgets, next, &agent.eras().map_err(store)?)
            }
            Asked::Status => {
                let status = match self.agent().status(now) {
                    Ok(status) => Some(status),
                    // What is wrong is what the user wants to know.
                    Err(error) => {
                        self.last_store_error = Some(error.to_string());
                        None
                    }
                };
                let last = self.last_store_error.as_deref();
                Answer::status(status.as_ref(), missed, self.store_errors, last)
            }
            Asked::Explain(request) => match self.player.explain(request, now).map_err(failed)? {
                Some(explanation) => {
                    let shown = self.player.agent.config().shows_histograms;
                    Answer::explanation(&explanation, shown)
                }
                None => Answer::done(),
            },
            Asked::Play(Request::ClearBrowsingHistoryForAttribution {
                sites,
                forget_visits,
            }) if self.clears_in_slices => {
                let cleared = self.agent().start_clearing(sites, *forget_visits, now);
                cleared.map_err(failed)?;
                Answer::done()
            }
            Asked::Play(Request::Maintain) if self.clears_in_slices => {
                self.agent().start_upkeep();
                Answer::done()
            }
            Asked::Play(request) => match self.player.play(request, now).map_err(failed)? {
                Outcome::Done => Answer::done(),
                Outcome::Report(report, _) => Answer::report(&report),
                Outcome::Shared(shared, _) => Answer::shared(shared),
            },
        })
    }

    /// Does a slice of upkeep if it is due, and says whether there is more to do.
    pub(super) fn look_after(&mut self, now: Timestamp) -> bool {
        if !self.agent().is_upkeep_due(now) {
            return false;
        }
        match self.agent().upkeep(now) {
            Ok(more) => more,
            Err(error) => {
                // It is tried again with the next call.
                (self.serving.warn)(&format!("cleaning up: {error}"));
                false
            }
        }
    }
}

/// The page call of a request, parsed, if it is one.
pub(super) fn page_call(
    gate: &Gate,
    request: &Request,
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
        Request::CreateSharedConversion { participants, .. } => {
            let participants: Vec<&str> = participants.iter().map(String::as_str).collect();
            gate.shared_conversion(&call, options, &participants, handle)
        }
        Request::TakeShare { shared, .. } => gate.share(*shared, &call, options),
        _ => gate.conversion(&call, options),
    };
    Ok(Some(PageCall::Measure(conversion?)))
}

fn page_answer(answer: &PageAnswer) -> Answer {
    match answer {
        PageAnswer::Saved => Answer::done(),
        PageAnswer::Report(answer) => Answer::report(&answer.report),
        PageAnswer::Shared(answer) => Answer::shared(answer.shared),
    }
}

/// What a page gets for a call of which nothing comes: what it would look like otherwise.
pub(super) fn null_answer(gate: &Gate, call: &PageCall, handle: SharedConversion) -> Answer {
    match call {
        PageCall::Save(_) => Answer::done(),
        PageCall::Measure(call) if call.creates_shared() => Answer::shared(handle),
        PageCall::Measure(call) => Answer::report(&gate.null_report(&call.envelope())),
    }
}
