//! Serving a stream as a browser needs it: conversions are answered at a fixed time after they
//! arrived, and no site waits for another.
//!
//! There are three threads. One reads and parses: it knows when a call arrived, answers invalid
//! calls, and passes valid ones to the [`Scheduler`]. One makes the calls in their order. One
//! writes the answers, each at its moment.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::{self, BufRead, BufWriter, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bigbird::{HistogramSize, Timestamp};
use serde_json::Value;

use super::answer::{AgentAnswer, Reason};
use super::line::{Line, LineRequest};
use super::player::Player;
use super::request::AgentRequest;
use super::schedule::{Moment, Scheduler, Ticket};
use super::serve::{ServeOptions, Server, page_call, read_line};
use crate::call::PageCall;
use crate::gate::Gate;
use crate::randomness::Randomness;
use crate::report::Envelope;
use crate::shared::SharedConversion;
use crate::site::Site;
use crate::storage::Storage;

/// The most bytes of calls and answers that are kept. If there are more, reading waits.
const MOST_BYTES: usize = 64 << 20;

/// The most calls that share a write.
const GROUP: usize = 256;

/// The longest time between two slices of upkeep while it is due, even if calls wait.
const UPKEEP: Duration = Duration::from_secs(1);

/// A piece of work.
struct Task {
    what: TaskKind,
    id: Option<Value>,
    now: Timestamp,
    bytes: usize,
}

enum TaskKind {
    /// A page's call. The scheduler decides when it is answered.
    Page(PageCall),
    /// A site that asked to be forgotten. It was answered already.
    Forget(Site),
    /// A request of the user.
    Own(LineRequest),
}

/// The answer to a conversion.
enum Reply {
    /// The answer with its result.
    Line(String),
    /// A null answer. Its line is built when it is written, because many answers may wait.
    Null(Box<Null>),
}

struct Null {
    id: Option<Value>,
    handle: Option<SharedConversion>,
    envelope: Envelope,
}

/// The approximate number of bytes of a conversion that waits for its answer.
const WAITING: usize = 512;

/// Builds the lines of null answers. A flood asks for many of one size. They differ only in their
/// `id`, as long as an answer carries no sealed bytes.
struct NullLines<'g> {
    gate: &'g Gate,
    /// The text before the `id` and the text after the `id`, by size.
    around_id: HashMap<HistogramSize, (String, String)>,
}

impl NullLines<'_> {
    /// The most sizes that are remembered.
    const SIZES: usize = 64;

    fn line(&mut self, null: Null) -> String {
        let report = |gate: &Gate| AgentAnswer::report(&gate.null_report(&null.envelope));
        match (null.handle, null.id) {
            (Some(handle), id) => AgentAnswer::shared(handle).with_id(id).line(),
            (None, None) => report(self.gate).line(),
            (None, Some(id)) => {
                let size = null.envelope.histogram_size;
                if self.around_id.len() >= Self::SIZES && !self.around_id.contains_key(&size) {
                    self.around_id.clear();
                }
                let (before, after) = self.around_id.entry(size).or_insert_with(|| {
                    let mark = "here";
                    let line = report(self.gate).with_id(Some(mark.into())).line();
                    let parts = line.split_once("\"here\"");
                    let parts = parts.map(|(before, after)| (before.to_owned(), after.to_owned()));
                    parts.unwrap_or_default()
                });
                [before.as_str(), &id.to_string(), after.as_str()].concat()
            }
        }
    }
}

struct LiveState {
    scheduler: Scheduler<Task, Reply>,
    /// Sites that asked to be forgotten more often than the limits allow, with the moment when they
    /// are due and the time when they asked. Each is forgotten once, a delay later.
    to_forget: BTreeMap<Site, (Moment, Timestamp)>,
    /// Answers that can be written at once.
    ready: VecDeque<String>,
    bytes: usize,
    input_ended: bool,
    all_done: bool,
    output_closed: bool,
}

impl LiveState {
    /// Schedules the forgetting of sites whose time has come. Its place among the calls depends
    /// only on when they arrived. Returns true if there were any.
    fn forget_due(&mut self, now: Moment) -> bool {
        let mut any = false;
        let scheduler = &mut self.scheduler;
        self.to_forget.retain(|site, (due, asked)| {
            if *due > now {
                return true;
            }
            any = true;
            scheduler.own(Task {
                what: TaskKind::Forget(site.clone()),
                id: None,
                now: *asked,
                bytes: 0,
            });
            false
        });
        any
    }
}

struct LiveShared {
    state: Mutex<LiveState>,
    began: Instant,
    /// There is work to do.
    work: Condvar,
    /// There is something to write.
    output: Condvar,
    /// Something was done or written, so there is room.
    room: Condvar,
}

impl LiveShared {
    fn lock(&self) -> MutexGuard<'_, LiveState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Moment {
        self.began.elapsed()
    }

    /// Queues an answer that can be written at once.
    fn answer(&self, answer: AgentAnswer, id: Option<Value>) {
        let line = answer.with_id(id).line();
        let mut state = self.lock();
        state.bytes += line.len();
        state.ready.push_back(line);
        drop(state);
        self.output.notify_one();
    }
}

pub(super) fn serve<S, R>(
    player: Player<S, R>,
    input: impl BufRead + Send + 'static,
    output: impl Write + Send + 'static,
    serving: ServeOptions,
    clock: fn() -> Timestamp,
) -> io::Result<Player<S, R>>
where
    S: Storage<Error: Reason>,
    R: Randomness,
{
    let mut server = Server::new(player, serving);
    server.clears_in_slices = true;
    let gate = server.agent().gate().clone();
    let shared = Arc::new(LiveShared {
        state: Mutex::new(LiveState {
            scheduler: Scheduler::new(gate.config().pace),
            to_forget: BTreeMap::new(),
            ready: VecDeque::new(),
            bytes: 0,
            input_ended: false,
            all_done: false,
            output_closed: false,
        }),
        began: Instant::now(),
        work: Condvar::new(),
        output: Condvar::new(),
        room: Condvar::new(),
    });
    let reader = Reader {
        shared: Arc::clone(&shared),
        gate: gate.clone(),
        clock,
        handle: serving.handle,
    };
    // This thread ends with the process, because it may wait for input that never comes.
    thread::spawn(move || reader.run(input));
    let writer = {
        let (shared, gate) = (Arc::clone(&shared), gate.clone());
        thread::spawn(move || {
            let written = write(&shared, &gate, output);
            let mut state = shared.lock();
            state.output_closed = true;
            state.ready.clear();
            drop(state);
            shared.work.notify_one();
            shared.room.notify_one();
            written
        })
    };
    work(&shared, &mut server, clock);
    shared.lock().all_done = true;
    shared.output.notify_one();
    match writer.join() {
        Ok(Err(error)) if error.kind() == io::ErrorKind::BrokenPipe => {}
        Ok(written) => written?,
        Err(_) => {
            let told = "the thread that writes answers panicked";
            return Err(io::Error::other(told));
        }
    }
    Ok(server.player)
}

struct Reader {
    shared: Arc<LiveShared>,
    gate: Gate,
    clock: fn() -> Timestamp,
    handle: fn() -> u128,
}

impl Reader {
    fn run(&self, mut input: impl BufRead) {
        while let Some((line, bytes)) = read_line(&mut input, &self.gate) {
            let (arrival, now) = (self.shared.now(), (self.clock)());
            match line {
                Ok(line) => self.arrive(line, bytes, arrival, now),
                Err(answer) => self.shared.answer(answer, None),
            }
            let mut state = self.shared.lock();
            while state.bytes > MOST_BYTES && !state.output_closed {
                let room = self.shared.room.wait(state);
                state = room.unwrap_or_else(PoisonError::into_inner);
            }
            if state.output_closed {
                return;
            }
        }
        let mut state = self.shared.lock();
        state.forget_due(Moment::MAX);
        state.input_ended = true;
        drop(state);
        self.shared.work.notify_one();
    }

    /// Answers what follows from the call alone, and schedules the rest.
    fn arrive(&self, line: Line, bytes: usize, arrival: Moment, now: Timestamp) {
        let Line { id, seconds, asked } = line;
        if seconds.is_some() {
            let answer = AgentAnswer::malformed("`seconds` is allowed only with --test-clock");
            return self.shared.answer(answer, id);
        }
        let handle = SharedConversion(match &asked {
            LineRequest::Play(AgentRequest::CreateSharedConversion { .. }) => (self.handle)(),
            _ => 0,
        });
        let parsed = match &asked {
            LineRequest::Play(request) => page_call(&self.gate, request, now, Some(handle)),
            _ => Ok(None),
        };
        let call = match parsed {
            Ok(call) => call,
            Err(error) => return self.shared.answer(AgentAnswer::rejected(&error), id),
        };
        let task = |what, id, bytes| Task {
            what,
            id,
            now,
            bytes,
        };
        match call {
            None => {
                let forgotten = match &asked {
                    LineRequest::Play(AgentRequest::ClearImpressionsForSite { site }) => {
                        self.gate.config().site(site).ok()
                    }
                    _ => None,
                };
                let mut state = self.shared.lock();
                state.forget_due(arrival);
                let Some(site) = forgotten else {
                    state.bytes += bytes;
                    state.scheduler.own(task(TaskKind::Own(asked), id, bytes));
                    drop(state);
                    return self.shared.work.notify_one();
                };
                // A response of the site asks for this, so it counts as an impression and is
                // answered like one.
                let forget = task(TaskKind::Forget(site.clone()), None, 0);
                if !state.scheduler.impression(arrival, &site, 1, forget) {
                    let later = (arrival + self.gate.config().pace.delay, now);
                    state.to_forget.entry(site).or_insert(later);
                }
                let line = AgentAnswer::done().with_id(id).line();
                state.bytes += line.len();
                state.ready.push_back(line);
            }
            Some(PageCall::Save(impression)) => {
                let (site, units) = (impression.site().clone(), impression.units());
                let save = task(TaskKind::Page(PageCall::Save(impression)), None, bytes);
                let line = AgentAnswer::done().with_id(id).line();
                let mut state = self.shared.lock();
                state.forget_due(arrival);
                if state.scheduler.impression(arrival, &site, units, save) {
                    state.bytes += bytes;
                }
                state.bytes += line.len();
                state.ready.push_back(line);
            }
            Some(PageCall::Measure(conversion)) => {
                let site = conversion.site().clone();
                let null = Reply::Null(Box::new(Null {
                    id: id.clone(),
                    handle: conversion.creates_shared().then_some(handle),
                    envelope: conversion.envelope(),
                }));
                let measure = task(TaskKind::Page(PageCall::Measure(conversion)), id, bytes);
                let mut state = self.shared.lock();
                state.forget_due(arrival);
                if state.scheduler.conversion(arrival, &site, measure, null) {
                    state.bytes += bytes;
                }
                state.bytes += WAITING;
            }
        }
        // The writer comes first: a page must not notice how busy the other threads are.
        self.shared.output.notify_one();
        self.shared.work.notify_one();
    }
}

/// Makes calls in the order of arrival until there will be no more, and does upkeep in between.
fn work<S: Storage<Error: Reason>, R: Randomness>(
    shared: &LiveShared,
    server: &mut Server<S, R>,
    clock: fn() -> Timestamp,
) {
    let mut looked_after = Instant::now();
    let mut more = true;
    loop {
        let mut state = shared.lock();
        let mut group: Vec<(Option<Ticket>, Task)> = Vec::new();
        while group.len() < GROUP
            && let Some(next) = state.scheduler.next()
        {
            let alone = !matches!(next.what, TaskKind::Page(_));
            if alone && !group.is_empty() {
                break;
            }
            group.extend(state.scheduler.begin());
            if alone {
                break;
            }
        }
        if state.output_closed || (group.is_empty() && state.input_ended) {
            return;
        }
        if group.is_empty() && !more {
            // Any call wakes this thread. It also wakes without calls, because upkeep is due once a
            // day.
            let waited = shared.work.wait_timeout(state, Duration::from_secs(3600));
            drop(waited.unwrap_or_else(PoisonError::into_inner));
            more = true;
            continue;
        }
        let missed = state.scheduler.missed();
        drop(state);
        let idle = group.is_empty();
        make(shared, server, group, missed);
        if idle || looked_after.elapsed() >= UPKEEP {
            more = server.look_after(clock());
            looked_after = Instant::now();
        } else {
            // The calls may have made upkeep due.
            more = true;
        }
    }
}

/// Makes a group of page calls, or carries out one other task.
fn make<S: Storage<Error: Reason>, R: Randomness>(
    shared: &LiveShared,
    server: &mut Server<S, R>,
    group: Vec<(Option<Ticket>, Task)>,
    missed: u64,
) {
    let mut calls = Vec::with_capacity(group.len());
    let mut to_answer = Vec::with_capacity(group.len());
    for (ticket, task) in group {
        let Task {
            what,
            id,
            now,
            bytes,
        } = task;
        match what {
            TaskKind::Own(asked) => {
                let answer = server.own(&asked, now, missed).unwrap_or_else(|it| it);
                shared.lock().bytes -= bytes;
                shared.answer(answer, id);
            }
            TaskKind::Forget(site) => {
                let site = site.as_str().to_owned();
                let forget = LineRequest::Play(AgentRequest::ClearImpressionsForSite { site });
                let _ = server.own(&forget, now, missed);
            }
            TaskKind::Page(call) => {
                calls.push(call);
                to_answer.push((ticket, id, bytes));
            }
        }
    }
    if calls.is_empty() {
        return;
    }
    let answers = server.perform(&calls);
    let mut state = shared.lock();
    for (answer, (ticket, id, bytes)) in answers.into_iter().zip(to_answer) {
        state.bytes -= bytes;
        match (ticket, answer) {
            (Some(ticket), Some(answer)) => {
                let line = answer.with_id(id).line();
                state.scheduler.finish(ticket, Reply::Line(line));
            }
            (Some(ticket), None) => state.scheduler.fail(ticket),
            (None, _) => {}
        }
    }
    drop(state);
    shared.room.notify_one();
}

/// Writes answers. The answer to a conversion is written at its moment.
fn write(shared: &LiveShared, gate: &Gate, output: impl Write) -> io::Result<()> {
    let mut output = BufWriter::new(output);
    let mut nulls = NullLines {
        gate,
        around_id: HashMap::new(),
    };
    let mut lines: Vec<Reply> = Vec::new();
    let mut state = shared.lock();
    loop {
        let now = shared.now();
        if state.forget_due(now) {
            shared.work.notify_one();
        }
        while let Some(reply) = state.scheduler.release(now) {
            state.bytes -= WAITING;
            lines.push(reply);
        }
        while let Some(line) = state.ready.pop_front() {
            state.bytes -= line.len();
            lines.push(Reply::Line(line));
        }
        if lines.is_empty() {
            if state.all_done && state.scheduler.all_answered() {
                return Ok(());
            }
            let forget = state.to_forget.values().map(|(due, _)| *due).min();
            let next = [state.scheduler.next_release(), forget];
            let next = next.into_iter().flatten().min();
            let wait = next.map(|due| due.saturating_sub(now));
            state = match wait {
                Some(wait) => {
                    let waited = shared.output.wait_timeout(state, wait);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => {
                    let waited = shared.output.wait(state);
                    waited.unwrap_or_else(PoisonError::into_inner)
                }
            };
            continue;
        }
        drop(state);
        for reply in lines.drain(..) {
            let line = match reply {
                Reply::Line(line) => line,
                Reply::Null(null) => nulls.line(*null),
            };
            output.write_all(line.as_bytes())?;
        }
        output.flush()?;
        shared.room.notify_one();
        state = shared.lock();
    }
}

#[cfg(all(test, feature = "psl"))]
mod tests {
    use bigbird::Profile;
    use serde_json::json;

    use super::*;
    use crate::call::Call;
    use crate::config::Config;
    use crate::options::ConversionOptions;

    /// A null answer is written like any other, whatever its `id`.
    #[test]
    fn null_lines_are_as_others() {
        let service = "https://agg.example";
        let config = Config::new(Profile::BigBird).with_service(service);
        let gate = Gate::new(config.for_testing());
        let mut nulls = NullLines {
            gate: &gate,
            around_id: HashMap::new(),
        };
        for (size, id) in (1..200).zip(
            [json!(7), json!("here"), json!({"a": [1, "\"here\""]})]
                .iter()
                .cycle(),
        ) {
            let call = Call::new("shop.example", Timestamp(0));
            let call = gate.conversion(&call, &ConversionOptions::new(service, size));
            let envelope = call.unwrap().envelope();
            let expected = AgentAnswer::report(&gate.null_report(&envelope));
            for id in [Some(id.clone()), None] {
                let null = Null {
                    id: id.clone(),
                    handle: None,
                    envelope: envelope.clone(),
                };
                assert_eq!(nulls.line(null), expected.clone().with_id(id).line());
            }
        }
        assert!(nulls.around_id.len() <= NullLines::SIZES);
    }
}
