//! `bigbird agent`: the user agent as a process that is driven by lines of JSON.

use std::io::BufReader;
use std::path::PathBuf;

use bigbird::Timestamp;
use bigbird_store::{SqliteStore, StoreOptions};
use bigbird_user_agent::protocol::{Player, Reason, ServeOptions, StreamClock, serve};
use bigbird_user_agent::{Randomness, Storage, SystemRandomness, UserAgent};

use crate::clock::wall_clock;
use crate::serving::{ServingArgs, ServingSetup};
use crate::{CommandError, CommandResult, stdio, store};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The agent reads one JSON request per line from standard input and writes one JSON answer per line
to standard output. It answers a conversion --release-after milliseconds after its arrival, and
any other request as soon as it is carried out. Answers can therefore come in a different order
from the requests. Give each request an `id`: its answer repeats it.

Two requests, each wrapped here but sent as one line:
  {\"event\": \"saveImpression\", \"site\": \"news.example\", \"userAction\": 1,
   \"options\": {\"histogramIndex\": 2}}
  {\"event\": \"measureConversion\", \"site\": \"shop.example\", \"userAction\": 2,
   \"options\": {\"aggregationService\": \"https://agg.example\", \"histogramSize\": 5}}

The answer to the second has the encrypted `report`, in base64. With --unencrypted-for-testing it
also has the histogram.

The other events are createSharedConversion, takeShare, clearImpressionsForSite,
clearBrowsingHistoryForAttribution, enableAPI, disableAPI, maintain, budgets, status,
restartEpochs and explain. docs/agent.md describes every field and every answer.

The agent stops when its input ends. A line that is not a valid request gets an answer that says
why.")]
#[command(group = clap::ArgGroup::new("where").required(true).args(["store", "in_memory"]))]
pub(crate) struct AgentArgs {
    /// File that keeps everything, created if it does not exist
    #[arg(long, value_name = "FILE")]
    store: Option<PathBuf>,
    /// Keep everything in memory, and nothing after the agent stops
    #[arg(long, conflicts_with = "store")]
    in_memory: bool,
    #[command(flatten)]
    serving: ServingArgs,
    /// Take the time from the `seconds` of requests, for tests only
    ///
    /// The agent then answers at once, and uses fixed numbers instead of random ones.
    #[arg(long)]
    test_clock: bool,
    /// Share of the first epoch that has already passed
    ///
    /// Requires --test-clock. A number in [0, 1): 0.5 starts in the middle of an epoch.
    #[arg(
        long,
        value_name = "FRACTION",
        requires = "test_clock",
        default_value_t = 0.5
    )]
    epoch_start: f64,
    /// Number that replaces random ones when credit is rounded
    ///
    /// Requires --test-clock. A number in [0, 1) that every draw returns.
    #[arg(
        long,
        value_name = "FRACTION",
        requires = "test_clock",
        default_value_t = 0.5
    )]
    credit_fraction: f64,
}

pub(crate) fn run(args: &AgentArgs) -> CommandResult {
    let ServingSetup { config, sealer, .. } = args.serving.read()?;
    let randomness = args.randomness()?;
    match &args.store {
        None => {
            args.serve(UserAgent::in_memory(config, randomness).sealing(sealer))?;
        }
        Some(path) => {
            let store = SqliteStore::open_or_create(path, &StoreOptions::default());
            let store = store.map_err(|error| store::unusable(&error))?;
            // A test clock has no current time yet. Changed rules then begin after the latest call.
            let now = match args.test_clock {
                true => Timestamp(i64::MIN),
                false => wall_clock(),
            };
            let agent = UserAgent::new(config, store, randomness, now)?.sealing(sealer);
            args.serve(agent)?.into_storage().close()?;
        }
    }
    Ok((String::new(), true))
}

impl AgentArgs {
    /// Answers requests from standard input until it ends.
    fn serve<S: Storage<Error: Reason>>(
        &self,
        agent: UserAgent<S, RandomSource>,
    ) -> Result<UserAgent<S, RandomSource>, CommandError> {
        let serving = ServeOptions {
            clock: match self.test_clock {
                true => StreamClock::Requests,
                false => StreamClock::Wall(wall_clock),
            },
            warn: stdio::tell,
            handle: SystemRandomness::handle_bits,
        };
        let input = BufReader::new(stdio::input());
        let served = serve(Player::new(agent, None), input, stdio::output(), serving);
        let player = served
            .map_err(|error| CommandError::because(format!("cannot write answers: {error}")))?;
        Ok(player.agent)
    }

    fn randomness(&self) -> Result<RandomSource, CommandError> {
        if !self.test_clock {
            let system = SystemRandomness::new();
            let system = system.map_err(|error| CommandError::because(error.to_string()))?;
            return Ok(RandomSource::System(system));
        }
        for (name, fraction) in [
            ("--epoch-start", self.epoch_start),
            ("--credit-fraction", self.credit_fraction),
        ] {
            if !(0.0..1.0).contains(&fraction) {
                return Err(CommandError::because(format!(
                    "{name} must be in [0, 1), got {fraction}"
                )));
            }
        }
        Ok(RandomSource::Fixed {
            epoch_start: self.epoch_start,
            credit: self.credit_fraction,
        })
    }
}

/// The source of random numbers.
#[derive(Debug)]
enum RandomSource {
    System(SystemRandomness),
    Fixed { epoch_start: f64, credit: f64 },
}

impl Randomness for RandomSource {
    fn epoch_start(&mut self) -> f64 {
        match self {
            Self::System(system) => system.epoch_start(),
            Self::Fixed { epoch_start, .. } => *epoch_start,
        }
    }

    fn credit(&mut self) -> f64 {
        match self {
            Self::System(system) => system.credit(),
            Self::Fixed { credit, .. } => *credit,
        }
    }

    fn handle(&mut self, number: u64) -> u128 {
        match self {
            Self::System(system) => system.handle(number),
            Self::Fixed { .. } => number.into(),
        }
    }
}
