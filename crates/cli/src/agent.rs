//! `bigbird agent`: the user agent as a process, driven by lines of JSON.

use std::io::BufReader;
use std::path::PathBuf;
use std::time::Duration;

use bigbird::{Profile, Timestamp};
use bigbird_store::{SqliteStore, StoreOptions};
use bigbird_user_agent::protocol::{Arrivals, Pace, Player, Reason, Serving, StreamClock, serve};
use bigbird_user_agent::{Config, Randomness, Rules, Storage, UserAgent};

use crate::clock::wall_clock;
use crate::{Failed, Finished};
use crate::{policy, stdio, store};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
One JSON request a line on standard input, one JSON answer a line on standard output. Conversions are
answered --release-after milliseconds after they came, other requests when they are done: give each an
`id`, which its answer repeats.
  {\"event\": \"saveImpression\", \"site\": \"news.example\", \"userAction\": 1, \"options\": {\"histogramIndex\": 2}}
  {\"event\": \"measureConversion\", \"site\": \"shop.example\", \"userAction\": 2,
   \"options\": {\"aggregationService\": \"https://agg.example\", \"histogramSize\": 5}}
The other events are createSharedConversion, takeShare, clearImpressionsForSite,
clearBrowsingHistoryForAttribution, enableAPI, disableAPI, maintain, budgets, status, restartEpochs and explain.
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
    #[arg(long, value_name = "DAYS", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=i64::from(Rules::MAX_EPOCH_DAYS)))]
    epoch_days: u32,
    /// An aggregation service that pages may name; may be given several times
    #[arg(long, value_name = "URL")]
    aggregation_service: Vec<String>,
    /// How long after its arrival a conversion is answered, in milliseconds, 1 to 60000
    #[arg(long, value_name = "MS", default_value_t = delay_ms(), value_parser = clap::value_parser!(u64).range(1..=60_000))]
    release_after: u64,
    /// How many conversions of one top-level site are measured within --release-after
    #[arg(long, value_name = "N", default_value_t = Pace::default().conversions.of_site)]
    conversions_per_site: u32,
    /// How many conversions of all sites are measured within --release-after
    #[arg(long, value_name = "N", default_value_t = Pace::default().conversions.of_all)]
    conversions: u32,
    /// How many impressions of one top-level site are saved within --release-after; each name that one
    /// brings counts as another
    #[arg(long, value_name = "N", default_value_t = Pace::default().impressions.of_site)]
    impressions_per_site: u32,
    /// How many impressions of all sites are saved within --release-after, counted likewise
    #[arg(long, value_name = "N", default_value_t = Pace::default().impressions.of_all)]
    impressions: u32,
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
            args.serve(UserAgent::in_memory(config, randomness))?;
        }
        Some(path) => {
            let store = SqliteStore::open_or_create(path, &StoreOptions::default());
            let store = store.map_err(|error| store::unusable(&error))?;
            // On a test clock, whatever was last.
            let now = match args.test_clock {
                true => Timestamp(i64::MIN),
                false => wall_clock(),
            };
            let agent = UserAgent::new(config, store, randomness, now)?;
            args.serve(agent)?.into_storage().close()?;
        }
    }
    Ok((String::new(), true))
}

impl Args {
    /// Answers what comes on standard input until it ends.
    fn serve<S: Storage<Error: Reason>>(
        &self,
        agent: UserAgent<S, Source>,
    ) -> Result<UserAgent<S, Source>, Failed> {
        let serving = Serving {
            clock: match self.test_clock {
                true => StreamClock::Requests,
                false => StreamClock::Wall(wall_clock),
            },
            warn: stdio::tell,
            handle: Source::handle_bits,
        };
        let input = BufReader::new(stdio::input());
        let served = serve(Player::new(agent, None), input, stdio::output(), serving);
        let player =
            served.map_err(|error| Failed::because(format!("writing answers: {error}")))?;
        Ok(player.agent)
    }

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
        config.pace = self.pace();
        config.shows_histograms = self.unencrypted_for_testing;
        for url in &self.aggregation_service {
            config = config.with_service(url);
        }
        Ok(config)
    }

    fn pace(&self) -> Pace {
        Pace {
            delay: Duration::from_millis(self.release_after),
            conversions: Arrivals {
                of_site: self.conversions_per_site,
                of_all: self.conversions,
            },
            impressions: Arrivals {
                of_site: self.impressions_per_site,
                of_all: self.impressions,
            },
        }
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

/// How long a conversion waits for its answer unless told otherwise.
fn delay_ms() -> u64 {
    u64::try_from(Pace::default().delay.as_millis()).unwrap_or(u64::MAX)
}

/// Where random numbers come from.
#[derive(Debug)]
enum Source {
    System,
    Fixed { epoch_start: f64, credit: f64 },
}

impl Source {
    /// The handle of a shared conversion.
    fn handle_bits() -> u128 {
        let bits = || match getrandom::u64() {
            Ok(bits) => u128::from(bits),
            Err(error) => {
                // A handle that can be guessed must not be given out.
                stdio::tell(&format!("no random numbers: {error}"));
                std::process::exit(1)
            }
        };
        bits() << 64 | bits()
    }

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
            Self::System => Self::handle_bits(),
            Self::Fixed { .. } => number.into(),
        }
    }
}
