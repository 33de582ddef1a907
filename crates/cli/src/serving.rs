//! The options of a user agent that serves, whatever the stream: rules, services, time and limits.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use bigbird::Profile;
use bigbird_dap::{AggregationService, ConfiguredServices, DapSealer};
use bigbird_user_agent::protocol::{Arrivals, Pace};
use bigbird_user_agent::{Config, Rules};

use crate::{CommandError, policy, service};

#[derive(Debug, clap::Args)]
pub(crate) struct ServingArgs {
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
}

/// What the options say, with the files that they name.
pub(crate) struct ServingSetup {
    pub(crate) config: Config,
    pub(crate) profile: Profile,
    pub(crate) sealer: DapSealer,
}

impl ServingArgs {
    /// Reads the files that the options name.
    pub(crate) fn read(&self) -> Result<ServingSetup, CommandError> {
        let sealer = DapSealer::new(self.services()?);
        let (mut config, profile) = self.config()?;
        config.aggregation_services = sealer.services().protocols();
        Ok(ServingSetup {
            config,
            profile,
            sealer,
        })
    }

    /// The delay of answers to conversions, in milliseconds.
    pub(crate) fn release_after(&self) -> u64 {
        self.release_after
    }

    /// The same options as arguments for another process, without the services.
    pub(crate) fn host_arguments(&self) -> Result<Vec<OsString>, CommandError> {
        let mut arguments: Vec<OsString> = Vec::new();
        let mut add = |name: &str, value: OsString| arguments.extend([name.into(), value]);
        if let Some(profile) = self.profile {
            add("--profile", profile.to_string().into());
        }
        if let Some(policy) = &self.policy {
            let policy = policy.canonicalize().map_err(|error| {
                CommandError::unreadable(format!("cannot read {}: {error}", policy.display()))
            })?;
            add("--policy", policy.into());
        }
        let pace = self.pace();
        let numbers = [
            ("--epoch-days", u64::from(self.epoch_days)),
            ("--release-after", self.release_after),
            ("--conversions-per-site", pace.conversions.of_site.into()),
            ("--conversions", pace.conversions.of_all.into()),
            ("--impressions-per-site", pace.impressions.of_site.into()),
            ("--impressions", pace.impressions.of_all.into()),
        ];
        for (name, number) in numbers {
            add(name, number.to_string().into());
        }
        if self.unencrypted_for_testing {
            arguments.push("--unencrypted-for-testing".into());
        }
        Ok(arguments)
    }

    fn config(&self) -> Result<(Config, Profile), CommandError> {
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
        Ok((config, profile))
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
}

/// The default delay before a conversion is answered, in milliseconds.
fn delay_ms() -> u64 {
    u64::try_from(Pace::default().delay.as_millis()).unwrap_or(u64::MAX)
}
