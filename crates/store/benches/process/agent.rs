//! The child process: a user agent that is filled, and then serves its standard input.

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bigbird::{FilterKind, Profile, ReadLimits, Timestamp};
use bigbird_dap::{AggregationService, ConfiguredServices, DapSealer};
use bigbird_store::{SqliteStore, StoreOptions};
use bigbird_user_agent::protocol::{
    Arrivals, Pace, Player, Reason, ServeOptions, StreamClock, serve as serve_stream,
};
use bigbird_user_agent::{
    Call, Config, ConversionOptions, EpochStart, Gate, ImpressionOptions, PageAnswer, PageCall,
    Storage, SystemRandomness, UserAgent,
};
use serde_json::{Value, json};

pub const SERVICE: &str = "https://agg.example";
pub const DAY: i64 = 86_400_000;

/// The most epochs of a week that a lookback of 30 days reaches. It reaches that many on the first
/// two days of an epoch.
pub const EPOCHS: i64 = 6;

pub fn wall_clock() -> Timestamp {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Timestamp(i64::try_from(elapsed.as_millis()).unwrap())
}

/// One moment in each epoch that a conversion reaches, oldest first, if the benchmark began at
/// `now`.
pub fn moments(now: i64) -> impl Iterator<Item = Timestamp> {
    // The first epoch began 36 days ago, so this is the second day of the sixth epoch. The first
    // moment is half a day into the lookback. The others follow a week apart, but end before now.
    let half = DAY / 2;
    (0..EPOCHS)
        .map(move |epoch| Timestamp((now - 30 * DAY + half + 7 * DAY * epoch).min(now - half)))
}

/// The configuration of the child.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Its store, or `None` to keep everything in memory.
    pub store: Option<PathBuf>,
    /// The time at which the benchmark began.
    pub now: i64,
    pub pace: Pace,
    pub read_limits: ReadLimits,
}

impl Setup {
    pub fn new(now: i64) -> Self {
        Self {
            store: None,
            now,
            pace: Pace::default(),
            read_limits: ReadLimits::default(),
        }
    }

    /// The same setup without limits on arrivals.
    #[must_use]
    pub fn without_arrival_limits(mut self) -> Self {
        let all = Arrivals {
            of_site: u32::MAX,
            of_all: u32::MAX,
        };
        (self.pace.conversions, self.pace.impressions) = (all, all);
        self.pace.sealing_of_site = u32::MAX;
        self
    }

    /// The same setup without limits on reading.
    #[must_use]
    pub fn without_read_limits(mut self) -> Self {
        self.read_limits = ReadLimits {
            relevant: u32::MAX,
            examined: u32::MAX,
        };
        self
    }

    pub fn config(&self) -> Config {
        let mut config = Config::new(Profile::BigBird)
            .with_service(SERVICE)
            .for_testing();
        // A large global budget, so that many sites can use up their own budgets and quotas first.
        let policy = config.policy.to_builder();
        config.policy = policy
            .capacity(FilterKind::GlobalBudget, 1e6)
            .build()
            .unwrap();
        config.epoch_start = EpochStart::At(Timestamp(self.now - 36 * DAY));
        config.pace = self.pace;
        config.read_limits = self.read_limits;
        config
    }

    /// The setup from the command line, if this program was started as a child.
    pub fn asked() -> Option<Self> {
        let mut arguments = std::env::args().skip_while(|argument| argument != "--agent");
        arguments.next()?;
        let given: Value = serde_json::from_str(&arguments.next()?).unwrap();
        let number = |name: &str| u32::try_from(given[name].as_u64().unwrap()).unwrap();
        let arrivals = |name: &str| Arrivals {
            of_site: number(&format!("{name}OfSite")),
            of_all: number(&format!("{name}OfAll")),
        };
        Some(Self {
            store: given["store"].as_str().map(PathBuf::from),
            now: given["now"].as_i64().unwrap(),
            pace: Pace {
                delay: Duration::from_millis(number("delayMs").into()),
                conversions: arrivals("conversions"),
                sealing_of_site: number("sealingOfSite"),
                impressions: arrivals("impressions"),
            },
            read_limits: ReadLimits {
                relevant: number("relevant"),
                examined: number("examined"),
            },
        })
    }

    /// The argument that [`asked`](Self::asked) reads.
    pub fn argument(&self) -> String {
        let Pace {
            delay,
            conversions,
            sealing_of_site,
            impressions,
        } = self.pace;
        json!({
            "store": self.store.as_ref().map(|path| path.to_str().unwrap()),
            "now": self.now,
            "delayMs": u64::try_from(delay.as_millis()).unwrap(),
            "conversionsOfSite": conversions.of_site,
            "conversionsOfAll": conversions.of_all,
            "sealingOfSite": sealing_of_site,
            "impressionsOfSite": impressions.of_site,
            "impressionsOfAll": impressions.of_all,
            "relevant": self.read_limits.relevant,
            "examined": self.read_limits.examined,
        })
        .to_string()
    }
}

/// A step of the preparation before the benchmark.
pub enum AgentStep {
    Save(String, ImpressionOptions, Timestamp),
    Measure(String, ConversionOptions, Timestamp),
    ClearSite(String),
}

/// Makes the steps happen, with calls in groups.
pub fn prepare<S: Storage>(
    agent: &mut UserAgent<S, SystemRandomness>,
    steps: impl Iterator<Item = AgentStep>,
) -> Result<(), S::Error> {
    const GROUP: usize = 1000;
    let mut group = Vec::new();
    for step in steps {
        match step {
            AgentStep::Save(site, options, now) => {
                let action = agent.begin_user_action(now)?;
                let call = Call::new(&site, now).by(action);
                let call = agent.gate().impression(&call, &options).unwrap();
                group.push(PageCall::Save(call));
            }
            AgentStep::Measure(site, options, now) => {
                group.push(conversion(agent, &site, &options, now)?);
            }
            AgentStep::ClearSite(site) => {
                agent.perform(&std::mem::take(&mut group))?;
                agent.clear_impressions_for_site(&site)?;
            }
        }
        if group.len() == GROUP {
            agent.perform(&std::mem::take(&mut group))?;
        }
    }
    agent.perform(&group)?;
    Ok(())
}

/// A conversion with its own user action.
pub fn conversion<S: Storage>(
    agent: &mut UserAgent<S, SystemRandomness>,
    site: &str,
    options: &ConversionOptions,
    now: Timestamp,
) -> Result<PageCall, S::Error> {
    let action = agent.begin_user_action(now)?;
    let call = Call::new(site, now).by(action);
    let call = agent.gate().conversion(&call, options).unwrap();
    Ok(PageCall::Measure(call))
}

/// The sum of the histogram of an answer.
pub fn total(gate: &Gate, answer: PageAnswer) -> u64 {
    match answer {
        PageAnswer::Report(report, _) => gate.seal(report).histogram.unwrap().total(),
        _ => 0,
    }
}

/// A sealer to keys that nobody has: it does all the work of sealing.
fn sealer() -> DapSealer {
    let mut services = ConfiguredServices::new();
    services.insert(AggregationService::without_operator(SERVICE).unwrap());
    DapSealer::new(services)
}

/// Opens a store, or creates it.
pub fn open(setup: &Setup, path: &Path) -> UserAgent<SqliteStore, SystemRandomness> {
    let store = SqliteStore::open_or_create(path, &StoreOptions::default()).unwrap();
    UserAgent::new(
        setup.config(),
        store,
        SystemRandomness::new().unwrap(),
        wall_clock(),
    )
    .unwrap()
    .sealing(sealer())
}

/// Runs the child: prepares a store in memory, or opens the file, which is already prepared, and
/// then serves.
pub fn serve(setup: &Setup, steps: impl Iterator<Item = AgentStep>) {
    match &setup.store {
        None => {
            let randomness = SystemRandomness::new().unwrap();
            let mut agent = UserAgent::in_memory(setup.config(), randomness).sealing(sealer());
            let Ok(()) = prepare(&mut agent, steps);
            answer(agent);
        }
        Some(path) => {
            let agent = answer(open(setup, path));
            agent.into_storage().close().unwrap();
        }
    }
}

fn answer<S: Storage<Error: Reason>>(
    agent: UserAgent<S, SystemRandomness>,
) -> UserAgent<S, SystemRandomness> {
    let serving = ServeOptions {
        clock: StreamClock::Wall(wall_clock),
        warn: |told| eprintln!("agent: {told}"),
        handle: SystemRandomness::handle_bits,
    };
    let input = BufReader::new(io::stdin());
    let player = Player::new(agent, None);
    serve_stream(player, input, io::stdout(), serving)
        .unwrap()
        .agent
}

/// A store that is prepared once, and copied for each run.
pub struct Template(PathBuf);

impl Template {
    pub fn new(setup: &Setup, path: PathBuf, steps: impl Iterator<Item = AgentStep>) -> Self {
        let mut agent = open(setup, &path);
        prepare(&mut agent, steps).unwrap();
        agent.into_storage().close().unwrap();
        Self(path)
    }

    /// Makes a copy and flushes it, so that the run does not pay for the flush.
    pub fn copy(&self, to: &Path) {
        for suffix in ["", "-wal", "-shm"] {
            let _ = fs::remove_file(with_suffix(to, suffix));
        }
        fs::copy(&self.0, to).unwrap();
        File::open(to).unwrap().sync_all().unwrap();
    }
}

pub fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
