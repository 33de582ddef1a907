//! Serving a stream: lines of JSON in, lines of JSON out, in order, each not before its time.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufWriter, Read as _, Write};
use std::sync::mpsc::{self, Receiver, SyncSender, TryRecvError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bigbird::Timestamp;
use serde_json::Value;

use super::answer::{Answer, Reason};
use super::line::{Asked, Line};
use super::player::{Outcome, Player};
use super::request::Request;
use crate::call::Call;
use crate::config::Randomness;
use crate::error::AgentError;
use crate::options::ImpressionOptions;
use crate::release::Held;
use crate::storage::Storage;

/// How a stream is served.
#[derive(Debug, Clone, Copy)]
pub struct Serving {
    /// What time requests are made at.
    pub clock: StreamClock,
    /// Where to tell what went wrong that is no request's fault.
    pub warn: fn(&str),
}

/// The time of requests.
#[derive(Debug, Clone, Copy)]
pub enum StreamClock {
    /// That of a wall clock, in milliseconds since 1970. Answers come at their time, and now and
    /// then what no request can reach any more is removed.
    Wall(fn() -> Timestamp),
    /// The `seconds` of requests. Answers come at once.
    Requests,
}

/// How long a line may be, in bytes.
const LONGEST_LINE: u64 = 1 << 20;

/// How many impressions share a write at most.
const GROUP: usize = 1000;

/// Answers requests until the input ends, and gives the player back. It is read on a thread of its
/// own, so that requests that came together can share a write; answers are written on another.
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
    let (sender, lines) = mpsc::sync_channel(4 * GROUP);
    let clock = serving.clock;
    // It ends with the process: it may wait for input that never comes.
    thread::spawn(move || read_lines(input, clock, &sender));
    let mut server = Server {
        player,
        output: Output::start(output),
        serving,
        latest: Timestamp(0),
        maintained: None,
    };
    let mut waiting = Waiting {
        lines,
        next: VecDeque::new(),
    };
    while let Some(asked) = waiting.wait() {
        server.maintain();
        if asked.saves_impression() {
            let mut group = vec![asked];
            while group.len() < GROUP
                && let Some(another) = waiting.another_impression()
            {
                group.push(another);
            }
            server.save(&group);
        } else {
            server.answer(&asked);
        }
        if server.output.is_closed() {
            break;
        }
    }
    let Server { player, output, .. } = server;
    output.finish()?;
    Ok(player)
}

/// Reads lines as they come.
fn read_lines(mut input: impl BufRead, clock: StreamClock, lines: &SyncSender<Timed>) {
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        let text = match (&mut input)
            .take(LONGEST_LINE)
            .read_until(b'\n', &mut bytes)
        {
            Ok(0) => return,
            Ok(_) if bytes.len() as u64 == LONGEST_LINE && bytes.last() != Some(&b'\n') => {
                if input.skip_until(b'\n').is_err() {
                    return;
                }
                Err(format!("a line has at most {LONGEST_LINE} bytes"))
            }
            Ok(_) => String::from_utf8(bytes.clone()).map_err(|error| error.to_string()),
            Err(_) => return,
        };
        if text.as_ref().is_ok_and(|text| text.trim().is_empty()) {
            continue;
        }
        let (read, now) = (Instant::now(), clock.now());
        let line = match text {
            Ok(text) => Line::parse(&text),
            Err(why) => Err(Answer::malformed(&why)),
        };
        if lines.send(Timed { line, read, now }).is_err() {
            return;
        }
    }
}

impl StreamClock {
    /// The time, unless requests say.
    fn now(self) -> Option<Timestamp> {
        match self {
            Self::Wall(clock) => Some(clock()),
            Self::Requests => None,
        }
    }
}

/// A request, and when it came.
struct Timed {
    line: Result<Line, Answer>,
    read: Instant,
    now: Option<Timestamp>,
}

impl Timed {
    /// What the sender tells it by.
    fn id(&self) -> Option<Value> {
        self.line.as_ref().ok()?.id.clone()
    }

    fn saves_impression(&self) -> bool {
        let asked = self.line.as_ref().map(|line| &line.asked);
        matches!(asked, Ok(Asked::Play(Request::SaveImpression { .. })))
    }
}

/// The requests that have come and are not answered.
struct Waiting {
    lines: Receiver<Timed>,
    next: VecDeque<Timed>,
}

impl Waiting {
    fn wait(&mut self) -> Option<Timed> {
        self.next.pop_front().or_else(|| self.lines.recv().ok())
    }

    /// The next request, if it is here already and saves an impression.
    fn another_impression(&mut self) -> Option<Timed> {
        let next = self.lines.try_recv().ok()?;
        if next.saves_impression() {
            return Some(next);
        }
        self.next.push_back(next);
        None
    }
}

struct Server<S, R> {
    player: Player<S, R>,
    output: Output,
    serving: Serving,
    /// The time of the last request with one, on a test clock.
    latest: Timestamp,
    maintained: Option<Instant>,
}

impl<S: Storage<Error: Reason>, R: Randomness> Server<S, R> {
    /// Once a day, on a real clock, removes what no request can reach any more.
    fn maintain(&mut self) {
        const DAY: Duration = Duration::from_secs(86_400);
        let Some(now) = self.serving.clock.now() else {
            return;
        };
        if self.maintained.is_some_and(|last| last.elapsed() < DAY) {
            return;
        }
        self.maintained = Some(Instant::now());
        if let Err(error) = self.player.agent.maintain(now) {
            (self.serving.warn)(&format!("cleaning up: {error}"));
        }
    }

    /// The moment of a request.
    fn moment(&mut self, timed: &Timed, seconds: Option<i64>) -> Result<Timestamp, Answer> {
        match (timed.now, seconds) {
            (None, Some(seconds)) => {
                self.latest = Timestamp(seconds.saturating_mul(1000));
                Ok(self.latest)
            }
            (None, None) => Ok(self.latest),
            (Some(now), None) => Ok(now),
            (Some(_), Some(_)) => Err(Answer::malformed("`seconds` is for --test-clock")),
        }
    }

    /// Saves impressions with one write, and answers each.
    fn save(&mut self, group: &[Timed]) {
        let calls: Vec<Result<_, Answer>> =
            group.iter().map(|timed| self.impression(timed)).collect();
        let batch = calls
            .iter()
            .flatten()
            .map(|(call, options)| (*call, *options));
        let saved = self.player.agent.save_impressions(batch);
        let mut saved = saved.map(Vec::into_iter).map_err(AgentError::Store);
        for (timed, call) in group.iter().zip(calls) {
            let answer = match (call, &mut saved) {
                (Err(answer), _) => answer,
                (Ok(_), Err(error)) => Answer::failed(error),
                (Ok(_), Ok(answers)) => match answers.next() {
                    Some(Err(error)) => Answer::rejected(&error),
                    _ => Answer::done(),
                },
            };
            self.output.send(None, answer.with_id(timed.id()));
        }
    }

    /// The impression that a request saves.
    fn impression<'a>(
        &mut self,
        timed: &'a Timed,
    ) -> Result<(Call<'a>, &'a ImpressionOptions), Answer> {
        let line = timed.line.as_ref().map_err(Clone::clone)?;
        let now = self.moment(timed, line.seconds)?;
        let Asked::Play(request) = &line.asked else {
            return Err(Answer::done());
        };
        let Some((call, options)) = request.impression(now) else {
            return Err(Answer::done());
        };
        let call = self.player.with_action(call);
        Ok((call.map_err(|error| Answer::failed(&error))?, options))
    }

    /// Answers a request.
    fn answer(&mut self, timed: &Timed) {
        let (answer, release) = match self.perform(timed) {
            Ok(answered) => answered,
            Err(answer) => (answer, None),
        };
        self.output.send(release, answer.with_id(timed.id()));
    }

    /// The answer to a request, and when it may be given.
    fn perform(&mut self, timed: &Timed) -> Result<(Answer, Option<Instant>), Answer> {
        let line = timed.line.as_ref().map_err(Clone::clone)?;
        let now = self.moment(timed, line.seconds)?;
        let failed = |error: AgentError<S::Error>| Answer::failed(&error);
        let answer = match &line.asked {
            Asked::Budgets => {
                let agent = &mut self.player.agent;
                let budgets = agent.budgets().map_err(AgentError::Store).map_err(failed)?;
                let eras = agent.eras().map_err(AgentError::Store).map_err(failed)?;
                Answer::budgets(&budgets, &eras)
            }
            Asked::Explain(request) => match self.player.explain(request, now).map_err(failed)? {
                Some(explanation) => {
                    let shown = self.player.agent.config().shows_histograms;
                    Answer::explanation(&explanation, shown)
                }
                None => Answer::done(),
            },
            Asked::Play(request) => match self.player.play(request, now).map_err(failed)? {
                Outcome::Done => Answer::done(),
                Outcome::Report(report, _) => {
                    let (report, release) = self.release(timed, now, report);
                    return Ok((Answer::report(report.as_ref()), release));
                }
                Outcome::Shared(shared, _) => {
                    let (shared, release) = self.release(timed, now, shared);
                    return Ok((Answer::shared(shared), release));
                }
            },
        };
        Ok((answer, None))
    }

    /// What a call that measures gives, and when it may be given: at a time that depends on the call
    /// alone.
    fn release<T>(
        &self,
        timed: &Timed,
        now: Timestamp,
        held: Held<T>,
    ) -> (Option<T>, Option<Instant>) {
        let milliseconds = |elapsed: i64| Duration::from_millis(elapsed.unsigned_abs());
        let (ready, release) = if timed.now.is_none() {
            (now, None)
        } else {
            let elapsed = timed.read.elapsed().as_millis();
            let ready = Timestamp(now.0 + i64::try_from(elapsed).unwrap_or(i64::MAX));
            let wait = milliseconds(held.release_at(ready).0 - now.0);
            (ready, Some(timed.read + wait))
        };
        let at = held.release_at(ready);
        (held.release(ready, at).ok(), release)
    }
}

/// Writes answers while others are being made.
struct Output {
    answers: SyncSender<(Option<Instant>, String)>,
    writer: JoinHandle<io::Result<()>>,
}

impl Output {
    fn start(output: impl Write + Send + 'static) -> Self {
        let (answers, waiting) = mpsc::sync_channel(4096);
        Self {
            answers,
            writer: thread::spawn(move || write(output, &waiting)),
        }
    }

    /// Writes an answer after all before it, and not before a moment.
    fn send(&self, release: Option<Instant>, answer: Answer) {
        // If the writer has ended, nobody reads answers any more.
        let _ = self.answers.send((release, answer.line()));
    }

    /// Whether nobody reads answers any more.
    fn is_closed(&self) -> bool {
        self.writer.is_finished()
    }

    /// Waits until all are written.
    fn finish(self) -> io::Result<()> {
        drop(self.answers);
        match self.writer.join() {
            Ok(Err(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            Ok(written) => written,
            Err(_) => Err(io::Error::other(
                "the thread that writes answers has panicked",
            )),
        }
    }
}

fn write(output: impl Write, answers: &Receiver<(Option<Instant>, String)>) -> io::Result<()> {
    let mut output = BufWriter::new(output);
    loop {
        let next = match answers.try_recv() {
            Ok(next) => next,
            Err(TryRecvError::Disconnected) => return output.flush(),
            Err(TryRecvError::Empty) => {
                output.flush()?;
                match answers.recv() {
                    Ok(next) => next,
                    Err(_) => return Ok(()),
                }
            }
        };
        let (release, line) = next;
        if let Some(wait) = release.map(|at| at.saturating_duration_since(Instant::now()))
            && !wait.is_zero()
        {
            output.flush()?;
            thread::sleep(wait);
        }
        output.write_all(line.as_bytes())?;
    }
}
