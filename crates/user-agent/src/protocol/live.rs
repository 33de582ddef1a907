//! Serving a stream as a browser needs it: conversions are answered at a fixed time after they
//! arrived, and no site waits for another.
//!
//! There are four threads. One reads and parses: it knows when a call arrived, answers invalid
//! calls, and passes valid ones to the [`Scheduler`]. One makes the calls in their order. One seals
//! reports, those of calls that were made and null ones of calls that were not taken. One writes
//! the answers, each at its moment.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, BufRead, BufWriter, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bigbird::Timestamp;
use serde_json::Value;

use super::answer::{AgentAnswer, Reason};
use super::line::{Line, LineRequest};
use super::player::Player;
use super::request::AgentRequest;
use super::schedule::{ConversionArrival, Moment, Scheduler, Ticket};
use super::serve::{ServeOptions, Server, page_call, read_line};
use crate::agent::PageAnswer;
use crate::call::PageCall;
use crate::error::{ApiError, TooManyReports};
use crate::gate::Gate;
use crate::randomness::Randomness;
use crate::report::{Envelope, UnsealedReport};
use crate::shared::SharedConversion;
use crate::site::Site;
use crate::storage::Storage;

/// The most bytes of calls and answers that are kept. If there are more, reading waits. One thread
/// seals no more than 90 MB of answers within two seconds.
const MOST_BYTES: usize = 128 << 20;

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
struct Reply {
    what: ReplyKind,
    /// The bytes that count for it until it is written.
    bytes: usize,
}

enum ReplyKind {
    /// The answer with its result.
    Line(String),
    /// A null answer whose report is not sealed yet, for a conversion that is not ready.
    Null(Box<NullReply>),
}

impl Reply {
    fn line(line: String) -> Self {
        Self {
            bytes: WAITING + line.len(),
            what: ReplyKind::Line(line),
        }
    }

    /// True if there is a report to seal before it can be written.
    fn is_unsealed(&self) -> bool {
        matches!(&self.what, ReplyKind::Null(null) if null.handle.is_none())
    }
}

#[derive(Clone)]
struct NullReply {
    id: Option<Value>,
    handle: Option<SharedConversion>,
    envelope: Envelope,
}

impl NullReply {
    fn line(self, gate: &Gate) -> String {
        let answer = match self.handle {
            Some(handle) => AgentAnswer::shared(handle),
            None => AgentAnswer::report(&gate.null_report(&self.envelope)),
        };
        answer.with_id(self.id).line()
    }
}

/// A report to seal.
struct SealingTask {
    report: UnsealedReport,
    id: Option<Value>,
    /// True if the call was made. Otherwise it was over a limit or private.
    made: bool,
}

/// The approximate number of bytes of a conversion that waits for its answer.
const WAITING: usize = 512;

struct LiveState {
    scheduler: Scheduler<Task, Reply>,
    /// Sites that asked to be forgotten more often than the limits allow, with the moment when they
    /// are due and the time when they asked. Each is forgotten once, a delay later.
    to_forget: BTreeMap<Site, (Moment, Timestamp)>,
    /// Reports to seal, the first one due first.
    to_seal: BTreeMap<Ticket, SealingTask>,
    /// Null answers that were due before their reports were sealed.
    overdue: VecDeque<NullReply>,
    /// The number of conversions that were not made, because they were over a limit or private, and
    /// whose null reports were not sealed in time.
    late: u64,
    /// Answers that can be written at once.
    ready: VecDeque<String>,
    bytes: usize,
    input_ended: bool,
    all_done: bool,
    /// True once the thread that seals has ended.
    sealing_done: bool,
    output_closed: bool,
}

impl LiveState {
    /// The number of conversions that were not ready at their moment.
    fn missed(&self) -> u64 {
        self.scheduler.missed() + self.late
    }

    /// Sets the answer of a conversion.
    fn finish(&mut self, ticket: Ticket, line: String) {
        if self.scheduler.is_unanswered(ticket) {
            self.bytes += line.len();
            self.scheduler.finish(ticket, Reply::line(line));
        }
    }

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
    /// There is a report to seal.
    sealing: Condvar,
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
            to_seal: BTreeMap::new(),
            overdue: VecDeque::new(),
            late: 0,
            ready: VecDeque::new(),
            bytes: 0,
            input_ended: false,
            all_done: false,
            sealing_done: false,
            output_closed: false,
        }),
        began: Instant::now(),
        work: Condvar::new(),
        sealing: Condvar::new(),
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
    let sealer = {
        let (shared, gate) = (Arc::clone(&shared), gate.clone());
        thread::spawn(move || {
            let _guard = PanicGuard(&shared);
            seal(&shared, &gate);
            shared.lock().sealing_done = true;
            shared.output.notify_one();
        })
    };
    let writer = {
        let (shared, gate) = (Arc::clone(&shared), gate.clone());
        thread::spawn(move || {
            let _guard = PanicGuard(&shared);
            let written = write(&shared, &gate, output);
            let mut state = shared.lock();
            state.output_closed = true;
            state.ready.clear();
            drop(state);
            shared.work.notify_one();
            shared.sealing.notify_one();
            shared.room.notify_one();
            written
        })
    };
    work(&shared, &mut server, clock);
    shared.lock().all_done = true;
    shared.sealing.notify_one();
    shared.output.notify_one();
    let panicked = |what: &str| io::Error::other(format!("the thread that {what} panicked"));
    let sealed = sealer.join();
    let written = writer.join();
    if sealed.is_err() {
        return Err(panicked("seals reports"));
    }
    match written {
        Ok(Err(error)) if error.kind() == io::ErrorKind::BrokenPipe => {}
        Ok(written) => written?,
        Err(_) => return Err(panicked("writes answers")),
    }
    Ok(server.player)
}

/// Ends all threads if its own panics, so that nobody waits for it.
struct PanicGuard<'a>(&'a LiveShared);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.lock().output_closed = true;
            self.0.work.notify_one();
            self.0.sealing.notify_one();
            self.0.output.notify_one();
            self.0.room.notify_one();
        }
    }
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
        let private = matches!(&asked, LineRequest::Play(request) if request.is_private());
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
                    LineRequest::Play(AgentRequest::ClearImpressionsForSite {
                        site,
                        by_user: false,
                    }) => self.gate.config().site(site).ok(),
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
            // An impression of a private window is answered like any other, and that is all.
            Some(PageCall::Save(_)) if private => {
                return self.shared.answer(AgentAnswer::done(), id);
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
                let (site, units) = (conversion.site().clone(), conversion.sealing_units());
                let envelope = conversion.envelope();
                let handle = conversion.creates_shared().then_some(handle);
                let null = Reply {
                    what: ReplyKind::Null(Box::new(NullReply {
                        id: id.clone(),
                        handle,
                        envelope: envelope.clone(),
                    })),
                    bytes: WAITING,
                };
                let what = TaskKind::Page(PageCall::Measure(conversion));
                let measure = task(what, id.clone(), bytes);
                let mut state = self.shared.lock();
                state.forget_due(arrival);
                let scheduler = &mut state.scheduler;
                let arrived = match private {
                    true => scheduler.private_conversion(arrival, &site, units, null),
                    false => scheduler.conversion(arrival, &site, units, measure, null),
                };
                match arrived {
                    ConversionArrival::Taken(_) => state.bytes += bytes + WAITING,
                    ConversionArrival::Null(ticket) => {
                        state.bytes += WAITING;
                        // A handle needs no sealing.
                        if handle.is_none() {
                            let task = SealingTask {
                                report: envelope.null(),
                                id,
                                made: false,
                            };
                            state.to_seal.insert(ticket, task);
                        }
                    }
                    ConversionArrival::Rejected => {
                        drop(state);
                        let delay_ms = self.gate.config().pace.delay.as_millis();
                        let error = ApiError::from(TooManyReports { delay_ms });
                        return self.shared.answer(AgentAnswer::rejected(&error), id);
                    }
                }
                self.shared.sealing.notify_one();
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
        server.counts.missed = state.missed();
        server.counts.over_limit = state.scheduler.over_limit();
        drop(state);
        let idle = group.is_empty();
        make(shared, server, group);
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
                let answer = server.own(&asked, now).unwrap_or_else(|it| it);
                shared.lock().bytes -= bytes;
                shared.answer(answer, id);
            }
            TaskKind::Forget(site) => {
                let forget = LineRequest::Play(AgentRequest::ClearImpressionsForSite {
                    site: site.as_str().to_owned(),
                    by_user: false,
                });
                if server.own(&forget, now).is_err() {
                    // The site was told that it is forgotten, so this is tried until it is.
                    let later = (shared.now() + Duration::from_secs(1), now);
                    shared.lock().to_forget.entry(site).or_insert(later);
                }
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
    let made = calls.iter().zip(answers).zip(to_answer);
    for ((call, answer), (ticket, id, bytes)) in made {
        state.bytes -= bytes;
        let mut seal = |ticket, report, id| {
            let task = SealingTask {
                report,
                id,
                made: true,
            };
            state.to_seal.insert(ticket, task);
        };
        match (ticket, answer) {
            (Some(ticket), Some(PageAnswer::Report(report, _))) => seal(ticket, report, id),
            (Some(ticket), Some(PageAnswer::Shared(answer))) => {
                let line = AgentAnswer::shared(answer.shared).with_id(id).line();
                state.finish(ticket, line);
            }
            (Some(ticket), None) => {
                // The null report is sealed as any other, not when it is due: a page must not learn
                // that the store failed.
                if let PageCall::Measure(conversion) = call
                    && !conversion.creates_shared()
                {
                    seal(ticket, conversion.envelope().null(), id);
                }
                state.scheduler.fail(ticket);
            }
            (_, Some(PageAnswer::Saved)) | (None, _) => {}
        }
    }
    drop(state);
    shared.sealing.notify_one();
    shared.room.notify_one();
}

/// Seals reports until there will be no more, the first one due first.
///
/// A conversion that is not done a quarter of the delay before its moment may be missed. Its null
/// report is sealed then, so that a miss does not show in time.
fn seal(shared: &LiveShared, gate: &Gate) {
    let margin = gate.config().pace.delay / 4;
    let mut state = shared.lock();
    // What is late must not make the rest late, and must come all the same: so they take turns.
    let mut late_first = false;
    loop {
        if state.output_closed {
            return;
        }
        let now = shared.now();
        late_first = !late_first;
        if (late_first || state.to_seal.is_empty())
            && let Some(null) = state.overdue.pop_front()
        {
            drop(state);
            let line = null.line(gate);
            state = shared.lock();
            state.bytes += line.len();
            state.ready.push_back(line);
            shared.output.notify_one();
        } else if let Some((ticket, task)) = state.to_seal.pop_first() {
            if !state.scheduler.is_unanswered(ticket) {
                state.late += u64::from(!task.made);
                continue;
            }
            drop(state);
            let report = gate.seal(task.report);
            let line = AgentAnswer::report(&report).with_id(task.id).line();
            state = shared.lock();
            state.finish(ticket, line);
        } else if let Some((ticket, due, reply)) =
            state.scheduler.first_unprepared(Reply::is_unsealed)
            && !state.all_done
        {
            let prepare_at = due.saturating_sub(margin);
            if now < prepare_at {
                let waited = shared.sealing.wait_timeout(state, prepare_at - now);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            } else if let ReplyKind::Null(null) = &reply.what {
                let null = NullReply::clone(null);
                drop(state);
                let line = null.line(gate);
                state = shared.lock();
                let what = ReplyKind::Line(line);
                let bytes = WAITING;
                state.scheduler.set_null(ticket, Reply { what, bytes });
            }
        } else if state.all_done {
            return;
        } else {
            let waited = shared.sealing.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Writes answers. The answer to a conversion is written at its moment.
fn write(shared: &LiveShared, gate: &Gate, output: impl Write) -> io::Result<()> {
    let mut output = BufWriter::new(output);
    let mut lines: Vec<String> = Vec::new();
    let mut state = shared.lock();
    loop {
        if state.output_closed {
            return Ok(());
        }
        let now = shared.now();
        if state.forget_due(now) {
            shared.work.notify_one();
        }
        while let Some(reply) = state.scheduler.release(now) {
            state.bytes -= reply.bytes;
            match reply.what {
                ReplyKind::Line(line) => lines.push(line),
                // Sealing would make others wait.
                ReplyKind::Null(null) if null.handle.is_none() => {
                    state.overdue.push_back(*null);
                    shared.sealing.notify_one();
                }
                ReplyKind::Null(null) => lines.push(null.line(gate)),
            }
        }
        while let Some(line) = state.ready.pop_front() {
            state.bytes -= line.len();
            lines.push(line);
        }
        if lines.is_empty() {
            let sealed = state.overdue.is_empty() && state.sealing_done;
            if state.all_done && state.scheduler.all_answered() && sealed {
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
        for line in lines.drain(..) {
            output.write_all(line.as_bytes())?;
        }
        output.flush()?;
        shared.room.notify_one();
        state = shared.lock();
    }
}
