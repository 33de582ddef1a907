//! `bigbird agent`: the user agent as a process that is driven by lines of JSON.

use std::io::BufReader;
use std::path::PathBuf;
use std::time::Duration;

use bigbird::{Profile, Timestamp};
use bigbird_dap::{AggregationService, ConfiguredServices, DapSealer};
use bigbird_store::{SqliteStore, StoreOptions};
use bigbird_user_agent::protocol::{
    Arrivals, Pace, Player, Reason, ServeOptions, StreamClock, serve,
};
use bigbird_user_agent::{Config, Randomness, Rules, Storage, SystemRandomness, UserAgent};

use crate::clock::wall_clock;
use crate::{CommandError, CommandResult};
use crate::{policy, service, stdio, store};

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
    /// Profile that sets the rules [default: big-bird]
    ///
    /// One of big-bird, w3c-draft, cookie-monster and global-only. A policy file can name it too.
    #[arg(long)]
    profile: Option<Profile>,
    /// JSON file with limits that replace those of the profile
    ///
    /// It has the form that `bigbird policy --json` prints. Capacities are in microepsilons.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Length of an epoch, in days, from 1 to 400
    #[arg(
        long,
        value_name = "DAYS",
        default_value_t = 7,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(Rules::MAX_EPOCH_DAYS))
    )]
    epoch_days: u32,
    /// File of aggregation services and their public keys [default: none]
    ///
    /// `bigbird keys generate` writes one, aggregation-services.toml. A folder that contains such a
    /// file is enough.
    #[arg(long, value_name = "FILE")]
    aggregation_services: Option<PathBuf>,
    /// Aggregation service that pages may name, without keys [default: none]
    ///
    /// Its reports are real, but encrypted to keys that nobody has. Give the flag once for each
    /// service.
    #[arg(long, value_name = "URL")]
    aggregation_service: Vec<String>,
    /// Delay of answers to conversions, in milliseconds
    ///
    /// From 1 to 60000. The delay begins when the conversion arrives.
    #[arg(
        long,
        value_name = "MS",
        default_value_t = delay_ms(),
        value_parser = clap::value_parser!(u64).range(1..=60_000)
    )]
    release_after: u64,
    /// Limit on the conversions of one top-level site
    ///
    /// Counted over the last --release-after milliseconds. Conversions above the limit get null
    /// reports.
    #[arg(long, value_name = "N", default_value_t = Pace::default().conversions.of_site)]
    conversions_per_site: u32,
    /// Limit on the conversions of all sites together
    ///
    /// Counted over the last --release-after milliseconds. Conversions above the limit get null
    /// reports.
    #[arg(long, value_name = "N", default_value_t = Pace::default().conversions.of_all)]
    conversions: u32,
    /// Limit on the impressions of one top-level site
    ///
    /// Counted over the last --release-after milliseconds. Impressions above the limit are not
    /// saved.
    ///
    /// An impression counts one more for each site that it names in addition to its own.
    #[arg(long, value_name = "N", default_value_t = Pace::default().impressions.of_site)]
    impressions_per_site: u32,
    /// Limit on the impressions of all sites together
    ///
    /// Counted in the same way as --impressions-per-site.
    #[arg(long, value_name = "N", default_value_t = Pace::default().impressions.of_all)]
    impressions: u32,
    /// Add the histogram to the answers to conversions, for tests only
    ///
    /// Pages must never see a histogram, only the encrypted report.
    #[arg(long)]
    unencrypted_for_testing: bool,
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
    let sealer = DapSealer::new(args.services()?);
    let mut config = args.config()?;
    config.aggregation_services = sealer.services().protocols();
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

    fn config(&self) -> Result<Config, CommandError> {
        let file = self.policy.as_deref().map(policy::read).transpose()?;
        let profile = match (self.profile, file.as_ref().and_then(|file| file.profile)) {
            (Some(given), Some(named)) if given != named => {
                return Err(CommandError::because(format!(
                    "--profile is {given}, but the policy file is for {named}; leave out \
                     --profile, or use another policy file"
                )));
            }
            (given, named) => given.or(named).unwrap_or_default(),
        };
        let mut config = Config::new(profile);
        if let Some(file) = file {
            config.policy = file.policy(profile)?;
        }
        config.epoch_days = self.epoch_days;
        config.pace = self.pace();
        config.shows_histograms = self.unencrypted_for_testing;
        Ok(config)
    }

    /// The services with their keys.
    fn services(&self) -> Result<ConfiguredServices, CommandError> {
        let mut services = match &self.aggregation_services {
            Some(path) => service::read_services(path)?,
            None => ConfiguredServices::new(),
        };
        for url in &self.aggregation_service {
            if services.get(url).is_none() {
                services.insert(AggregationService::without_operator(url)?);
            }
        }
        Ok(services)
    }

    fn pace(&self) -> Pace {
        Pace {
            delay: Duration::from_millis(self.release_after),
            conversions: Arrivals {
                of_site: self.conversions_per_site,
                of_all: self.conversions,
            },
            sealing_of_site: Pace::default().sealing_of_site,
            impressions: Arrivals {
                of_site: self.impressions_per_site,
                of_all: self.impressions,
            },
        }
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

/// The default delay before a conversion is answered, in milliseconds.
fn delay_ms() -> u64 {
    u64::try_from(Pace::default().delay.as_millis()).unwrap_or(u64::MAX)
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
