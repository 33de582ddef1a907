//! `bigbird agent`: the user agent as a process, driven by lines of JSON.

mod protocol;
mod release;

use std::collections::VecDeque;
use std::io::{self, BufRead, Read as _};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::time::{Duration, Instant};

use bigbird::{Profile, Timestamp};
use bigbird_attribution::requests::{Outcome, Player, Request};
use bigbird_attribution::{
    AgentError, Call, Config, Held, ImpressionOptions, Memory, OpenError, Randomness, Storage,
    UserAgent,
};
use bigbird_store::{SqliteStore, StoreOptions};
use serde_json::Value;

use self::protocol::{Answer, Asked, Parsed, Reason};
use self::release::Output;
use crate::clock::wall_clock;
use crate::{Failed, Finished};
use crate::{policy, store};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
One JSON request a line on standard input, one JSON answer a line on standard output, in order:
  {\"event\": \"saveImpression\", \"site\": \"news.example\", \"userAction\": 1, \"options\": {\"histogramIndex\": 2}}
  {\"event\": \"measureConversion\", \"site\": \"shop.example\", \"userAction\": 2,
   \"options\": {\"aggregationService\": \"https://agg.example\", \"histogramSize\": 5}}
The other events are createSharedConversion, takeShare, clearImpressionsForSite,
clearBrowsingHistoryForAttribution, enableAPI, disableAPI, maintain, budgets and explain.
docs/agent.md has every field and answer.

It stops when its input ends. A line that is no request gets an answer that says why.")]
pub(crate) struct Args {
    /// The file that keeps everything; it is created if there is none
    #[arg(long, value_name = "FILE", required_unless_present = "in_memory")]
    store: Option<PathBuf>,
    /// Keep everything in memory, and nothing afterwards
    #[arg(long, conflicts_with = "store")]
    in_memory: bool,
    /// The rules: big-bird (the default), w3c-draft, cookie-monster or global-only
    #[arg(long)]
    profile: Option<Profile>,
    /// A file of capacities, as `bigbird policy --json` prints them, instead of the profile's
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// How long an epoch is, in days, 1 to 400
    #[arg(long, value_name = "DAYS", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=400))]
    epoch_days: u32,
    /// An aggregation service that pages may name; may be given several times
    #[arg(long, value_name = "URL")]
    aggregation_service: Vec<String>,
    /// How long after a conversion its answer is given, in milliseconds, 1 to 60000
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(i64).range(1..=60_000))]
    release_after: i64,
    /// Answer conversions with their histogram. Pages must never see it, and there are no encrypted
    /// reports yet: without this, a conversion is charged and nothing comes of it
    #[arg(long)]
    unencrypted_for_testing: bool,
    /// Take the time from the `seconds` of requests, answer at once, and use fixed numbers instead
    /// of random ones
    #[arg(long)]
    test_clock: bool,
    /// With --test-clock: where in the last epoch the first one began, in [0, 1)
    #[arg(
        long,
        value_name = "FRACTION",
        requires = "test_clock",
        default_value_t = 0.5
    )]
    epoch_start: f64,
    /// With --test-clock: every random number for the rounding of credit, in [0, 1)
    #[arg(
        long,
        value_name = "FRACTION",
        requires = "test_clock",
        default_value_t = 0.5
    )]
    credit_fraction: f64,
}

pub(crate) fn run(args: &Args) -> Finished {
    let config = args.config()?;
    let randomness = args.randomness()?;
    match &args.store {
        None => {
            let memory = Memory::new(&config.policy, config.store_limits);
            let Ok(agent) = UserAgent::new(config, memory, randomness) else {
                return Err(Failed::because("the store in memory failed"));
            };
            serve(Player::new(agent, None), args)?;
        }
        Some(path) => {
            let options = StoreOptions {
                limits: config.store_limits,
                ..StoreOptions::default()
            };
            let store = SqliteStore::open_or_create(path, &options);
            let store = store.map_err(|error| store::unusable(&error))?;
            let agent = UserAgent::new(config, store, randomness);
            let agent = agent.map_err(|error| match error {
                OpenError::Setup { .. } => Failed::because(format!("{}: {error}", path.display())),
                OpenError::Store(error) => Failed::from(error),
            })?;
            let player = serve(Player::new(agent, None), args)?;
            player.agent.into_storage().close()?;
        }
    }
    Ok((String::new(), true))
}

impl Args {
    fn config(&self) -> Result<Config, Failed> {
        let file = self.policy.as_deref().map(policy::read).transpose()?;
        let profile = match (self.profile, file.as_ref().and_then(|file| file.profile)) {
            (Some(given), Some(named)) if given != named => {
                return Err(Failed::because(format!(
                    "--profile is {given}, but the policy file is for {named}"
                )));
            }
            (given, named) => given.or(named).unwrap_or_default(),
        };
        let mut config = Config::new(profile);
        if let Some(file) = file {
            config.policy = file.policy(profile)?;
        }
        config.epoch_days = self.epoch_days;
        config.release_after_ms = self.release_after;
        for url in &self.aggregation_service {
            config = config.with_service(url);
        }
        Ok(config)
    }

    fn randomness(&self) -> Result<Source, Failed> {
        if !self.test_clock {
            return Ok(Source::System);
        }
        for (name, fraction) in [
            ("--epoch-start", self.epoch_start),
            ("--credit-fraction", self.credit_fraction),
        ] {
            if !(0.0..1.0).contains(&fraction) {
                return Err(Failed::because(format!(
                    "{name} must be in [0, 1), got {fraction}"
                )));
            }
        }
        Ok(Source::Fixed {
            epoch_start: self.epoch_start,
            credit: self.credit_fraction,
        })
    }
}

/// Where random numbers come from.
#[derive(Debug)]
enum Source {
    System,
    Fixed { epoch_start: f64, credit: f64 },
}

impl Source {
    /// A number in [0, 1) with all 53 bits of a double.
    fn system() -> f64 {
        // Without randomness a system does not get this far. If it did, the middle is what credit
        // is rounded by on average.
        let bits = getrandom::u64().unwrap_or(1 << 63);
        #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
        let number = (bits >> 11) as f64;
        number / (1_u64 << 53) as f64
    }
}

impl Randomness for Source {
    fn epoch_start(&mut self) -> f64 {
        match self {
            Self::System => Self::system(),
            Self::Fixed { epoch_start, .. } => *epoch_start,
        }
    }

    fn credit(&mut self) -> f64 {
        match self {
            Self::System => Self::system(),
            Self::Fixed { credit, .. } => *credit,
        }
    }

    fn handle(&mut self, number: u64) -> u128 {
        match self {
            Self::System => {
                let bits = || match getrandom::u64() {
                    Ok(bits) => u128::from(bits),
                    Err(error) => {
                        // A handle that can be guessed must not be given out.
                        eprintln!("bigbird: no random numbers: {error}");
                        std::process::exit(1)
                    }
                };
                bits() << 64 | bits()
            }
            Self::Fixed { .. } => number.into(),
        }
    }
}

/// A line of input, with when it came.
struct Line {
    text: Result<String, String>,
    read: Instant,
    clock: Timestamp,
}

/// How long a line may be, in bytes.
const LONGEST_LINE: u64 = 1 << 20;

/// How many impressions share a write at most.
const GROUP: usize = 1000;

/// Reads lines as they come, so that those that came together can share a write.
fn read_lines(lines: &SyncSender<Line>) {
    let mut input = io::stdin().lock();
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
        let line = Line {
            text,
            read: Instant::now(),
            clock: wall_clock(),
        };
        if lines.send(line).is_err() {
            return;
        }
    }
}

/// Answers requests until the input ends.
fn serve<S: Storage<Error: Reason>>(
    player: Player<S, Source>,
    args: &Args,
) -> Result<Player<S, Source>, Failed> {
    let (sender, lines) = mpsc::sync_channel(4 * GROUP);
    // It ends with the process: it may wait for input that never comes.
    std::thread::spawn(move || read_lines(&sender));
    let mut server = Server {
        player,
        output: Output::start(),
        test_clock: args.test_clock,
        shows_histograms: args.unencrypted_for_testing,
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

/// A request, and when it came.
struct Timed {
    parsed: Result<Parsed, Answer>,
    read: Instant,
    clock: Timestamp,
}

impl From<Line> for Timed {
    fn from(line: Line) -> Self {
        Self {
            parsed: protocol::parse(line.text),
            read: line.read,
            clock: line.clock,
        }
    }
}

impl Timed {
    /// What the sender tells it by.
    fn id(&self) -> Option<Value> {
        self.parsed.as_ref().ok()?.id.clone()
    }

    fn saves_impression(&self) -> bool {
        let asked = self.parsed.as_ref().map(|parsed| &parsed.asked);
        matches!(asked, Ok(Asked::Play(Request::SaveImpression { .. })))
    }
}

/// The requests that have come and are not answered.
struct Waiting {
    lines: Receiver<Line>,
    next: VecDeque<Timed>,
}

impl Waiting {
    fn wait(&mut self) -> Option<Timed> {
        self.next
            .pop_front()
            .or_else(|| self.lines.recv().ok().map(Timed::from))
    }

    /// The next request, if it is here already and saves an impression.
    fn another_impression(&mut self) -> Option<Timed> {
        let next = Timed::from(self.lines.try_recv().ok()?);
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
    test_clock: bool,
    shows_histograms: bool,
    /// The time of the last request with one, on a test clock.
    latest: Timestamp,
    maintained: Option<Instant>,
}

impl<S: Storage<Error: Reason>, R: Randomness> Server<S, R> {
    /// Once a day, on a real clock, removes what no request can reach any more.
    fn maintain(&mut self) {
        const DAY: Duration = Duration::from_secs(86_400);
        if self.test_clock || self.maintained.is_some_and(|last| last.elapsed() < DAY) {
            return;
        }
        self.maintained = Some(Instant::now());
        if let Err(error) = self.player.agent.maintain(wall_clock()) {
            eprintln!("bigbird: cleaning up: {error}");
        }
    }

    /// The moment of a request.
    fn moment(&mut self, timed: &Timed, seconds: Option<i64>) -> Result<Timestamp, Answer> {
        match (self.test_clock, seconds) {
            (true, Some(seconds)) => {
                self.latest = Timestamp(seconds.saturating_mul(1000));
                Ok(self.latest)
            }
            (true, None) => Ok(self.latest),
            (false, None) => Ok(timed.clock),
            (false, Some(_)) => Err(Answer::malformed("`seconds` is for --test-clock")),
        }
    }

    /// Saves impressions with one write, and answers each.
    fn save(&mut self, group: &[Timed]) {
        let calls: Vec<Result<_, Answer>> =
            group.iter().map(|timed| self.impression(timed)).collect();
        let batch = calls
            .iter()
            .flatten()
            .map(|(call, options)| (*call, options));
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
    ) -> Result<(Call<'a>, ImpressionOptions), Answer> {
        let parsed = timed.parsed.as_ref().map_err(Clone::clone)?;
        let now = self.moment(timed, parsed.seconds)?;
        let Asked::Play(request) = &parsed.asked else {
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
        let parsed = timed.parsed.as_ref().map_err(Clone::clone)?;
        let now = self.moment(timed, parsed.seconds)?;
        let failed = |error: AgentError<S::Error>| Answer::failed(&error);
        let answer = match &parsed.asked {
            Asked::Budgets => {
                let budgets = self.player.agent.budgets();
                Answer::budgets(&budgets.map_err(AgentError::Store).map_err(failed)?)
            }
            Asked::Explain(request) => match self.player.explain(request, now).map_err(failed)? {
                Some(explanation) => Answer::explanation(&explanation, self.shows_histograms),
                None => Answer::done(),
            },
            Asked::Play(request) => match self.player.play(request, now).map_err(failed)? {
                Outcome::Done => Answer::done(),
                Outcome::Report(report, _) => {
                    let (report, release) = self.release(timed, now, report);
                    let shown = report.filter(|_| self.shows_histograms);
                    return Ok((Answer::report(shown.as_ref()), release));
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
        let (ready, release) = if self.test_clock {
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
