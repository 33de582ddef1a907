//! `bigbird simulate`: a workload under policies and attackers, one run or a sweep.

use std::path::PathBuf;
use std::str::FromStr;

use bigbird::{Capacity, FilterKind, Policy, Profile, SiteCharging};
use bigbird_lab::attack::{Attacker, Strength, attackers};
use bigbird_lab::experiment::Experiment;
use bigbird_lab::resilience::Resilience;
use bigbird_lab::workload::Workload;
use serde_json::{Value, json};

use super::source::Source;
use super::sweep::{Run, Sweep};
use crate::progress::Bar;
use crate::{Failed, Finished, output};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Every parameter but the workload's may be a list, such as --impression-quota 0.5,1,2,none: then there
is a run for each combination. A limit that is not given is the profile's (`bigbird policy --profile`
lists them); one that a profile does not have is passed over.

  bigbird simulate --scale 0.1 --profile big-bird,global-only --attacker none,random
  bigbird simulate --criteo-prepared DIR --min-conversions-per-day 50 --impression-quota 1,2,3 --json

Errors are RMSRE, the root of the mean squared relative error of a batch's buckets; blocked is the
share of reports of which something was blocked, the mean over batches, by its first cause.")]
pub(crate) struct Args {
    #[command(flatten)]
    source: Source,
    /// Profiles: big-bird, w3c-draft, cookie-monster, global-only
    #[arg(long, value_delimiter = ',', default_value = "big-bird")]
    profile: Vec<Profile>,
    /// Attackers: none, random, omniscient, naive, intermediaries, slow, drain-conversion-site,
    /// drain-impression-site
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',',
        default_value = "none"
    )]
    attacker: Vec<AttackerName>,
    /// Querier budgets, in epsilons [default: the profile's]
    #[arg(long, value_name = "EPSILON", value_delimiter = ',')]
    querier: Vec<Limit>,
    /// Global budgets, in epsilons; none for no such filter, as below [default: the profile's]
    #[arg(long, value_name = "EPSILON", value_delimiter = ',')]
    global: Vec<Limit>,
    /// Impression-site quotas, in epsilons [default: the profile's]
    #[arg(long, value_name = "EPSILON", value_delimiter = ',')]
    impression_quota: Vec<Limit>,
    /// Conversion-site quotas, in epsilons [default: the profile's]
    #[arg(long, value_name = "EPSILON", value_delimiter = ',')]
    conversion_quota: Vec<Limit>,
    /// Domain caps, in sites of a user action [default: the profile's]
    #[arg(long, value_name = "SITES", value_delimiter = ',')]
    cap: Vec<Limit>,
    /// What impression sites pay: full, paper (the paper's literal rule) or uniform [default: full]
    #[arg(long, value_name = "RULE", value_delimiter = ',')]
    site_charging: Vec<SiteCharging>,
    /// How many Sybils an attacker has
    #[arg(
        long,
        value_name = "COUNT",
        value_delimiter = ',',
        default_value = "25",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(Strength::MAX_SYBILS))
    )]
    sybils: Vec<u32>,
    /// The rank of the first site that an attacker owns; 1 is the busiest
    #[arg(
        long,
        value_name = "RANK",
        value_delimiter = ',',
        default_value = "1",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    rank_start: Vec<u32>,
    /// How many sites of each kind it owns [default: 10; of conversion sites, as many of ten as the
    /// scale says]
    #[arg(long, value_name = "COUNT")]
    owned_sites: Option<u32>,
    /// Write the table as CSV
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write a figure as SVG, over the parameter with the most values
    #[arg(long, value_name = "FILE")]
    figure: Option<PathBuf>,
    /// Print the runs with all their batches as JSON
    #[arg(long)]
    json: bool,
}

/// An attacker, or none.
#[derive(Clone, Copy)]
struct AttackerName(Option<&'static dyn Attacker>);

impl std::fmt::Debug for AttackerName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.map_or("none", Attacker::name))
    }
}

impl FromStr for AttackerName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self(None));
        }
        let names = || attackers::ALL.map(Attacker::name).join(", ");
        match attackers::by_name(text) {
            Some(attacker) => Ok(Self(Some(attacker))),
            None => Err(format!(
                "there is none of that name; there are none, {}",
                names()
            )),
        }
    }
}

/// A number, or `none`.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Limit(Option<f64>);

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self(None));
        }
        match text.parse() {
            Ok(number) => Ok(Self(Some(number))),
            Err(_) => Err("it must be a number, or none".to_owned()),
        }
    }
}

pub(crate) fn run(args: &Args) -> Finished {
    let experiments = args.experiments()?;
    let mut bar = Bar::new();
    let (seeds, threads) = (&args.source.seed, args.source.threads());
    let count = experiments.len() * seeds.len() * threads.len();
    let mut workload: Option<Workload> = None;
    let mut runs: Vec<Run> = Vec::new();
    for &seed in seeds {
        let known = workload.take().filter(|_| !args.source.follows_from_seed());
        let known = match known {
            Some(known) => known,
            None => args.source.workload(seed)?,
        };
        for &threads in &threads {
            let laboratory = args.source.laboratory(&known, threads)?;
            for experiment in &experiments {
                #[expect(clippy::cast_precision_loss, reason = "a number of runs")]
                let done = runs.len() as f64 / count as f64;
                let attacker = match experiment.attacker() {
                    "none" => "no",
                    name => name,
                };
                let what = format!("{}, {attacker} attacker", experiment.profile);
                bar.show(done, 0.0, &what);
                runs.push(Run {
                    outcome: experiment.run(&laboratory, seed)?,
                    experiment: experiment.clone(),
                    seed,
                    threads,
                });
            }
        }
        workload = Some(known);
    }
    bar.clear();
    let sweep = Sweep::new(&runs);
    for (path, content) in [
        (&args.csv, args.csv.as_ref().map(|_| sweep.to_csv())),
        (
            &args.figure,
            args.figure.as_ref().map(|_| sweep.to_figure()),
        ),
    ] {
        if let Some((path, content)) = path.as_ref().zip(content) {
            std::fs::write(path, content)
                .map_err(|error| Failed::because(format!("{}: {error}", path.display())))?;
        }
    }
    let good = runs.iter().all(|run| {
        let resilience = run.outcome.resilience.as_ref();
        resilience.is_none_or(Resilience::hold)
    });
    let text = match (&workload, args.json) {
        (Some(workload), true) => {
            let runs: Vec<Value> = runs.iter().map(|run| run.to_json(workload)).collect();
            output::json(&json!({ "runs": runs }))?
        }
        (Some(workload), false) => sweep.tell(&args.source, workload)?,
        (None, _) => String::new(),
    };
    Ok((text, good))
}

impl Args {
    /// Every combination that differs from those before it.
    fn experiments(&self) -> Result<Vec<Experiment>, Failed> {
        let mut experiments: Vec<Experiment> = Vec::new();
        for &profile in &self.profile {
            for policy in self.policies(profile)? {
                for &AttackerName(attacker) in &self.attacker {
                    for attack in self.attacks(attacker, &policy) {
                        let policy = policy.clone();
                        let experiment = Experiment {
                            profile,
                            policy,
                            attack,
                        };
                        let same = |other: &Experiment| {
                            other.profile == experiment.profile && *other == experiment
                        };
                        if !experiments.iter().any(same) {
                            experiments.push(experiment);
                        }
                    }
                }
            }
        }
        Ok(experiments)
    }

    fn policies(&self, profile: Profile) -> Result<Vec<Policy>, Failed> {
        let base = profile.policy();
        let mut policies = vec![base.clone()];
        let kinds = [
            (FilterKind::Querier, &self.querier),
            (FilterKind::Global, &self.global),
            (FilterKind::ImpressionSite, &self.impression_quota),
            (FilterKind::ConversionSite, &self.conversion_quota),
        ];
        for (kind, limits) in kinds {
            if base.capacities().of(kind) == Capacity::Unlimited || limits.is_empty() {
                continue;
            }
            let mut more = Vec::new();
            for policy in &policies {
                for Limit(limit) in limits {
                    let policy = policy.to_builder();
                    let policy = match limit {
                        Some(epsilon) => policy.capacity(kind, *epsilon),
                        None => policy.unlimited(kind),
                    };
                    more.push(policy.build()?);
                }
            }
            policies = more;
        }
        if base.domain_cap().is_some() && !self.cap.is_empty() {
            let mut more = Vec::new();
            for policy in &policies {
                for Limit(cap) in &self.cap {
                    let policy = policy.to_builder();
                    let policy = match cap {
                        Some(cap) => policy.domain_cap(whole(*cap)?),
                        None => policy.no_domain_cap(),
                    };
                    more.push(policy.build()?);
                }
            }
            policies = more;
        }
        if !self.site_charging.is_empty() {
            let mut more = Vec::new();
            for policy in &policies {
                for &rule in &self.site_charging {
                    more.push(policy.to_builder().site_charging(rule).build()?);
                }
            }
            policies = more;
        }
        Ok(policies)
    }

    fn attacks(
        &self,
        attacker: Option<&'static dyn Attacker>,
        policy: &Policy,
    ) -> Vec<Option<(&'static dyn Attacker, Strength)>> {
        let Some(attacker) = attacker else {
            return vec![None];
        };
        let cap = policy.domain_cap().map(std::num::NonZeroU32::get);
        let mut attacks = Vec::new();
        for &sybils in &self.sybils {
            for &first_rank in &self.rank_start {
                let strength = Strength {
                    sybils,
                    first_rank,
                    impression_sites: self.owned_sites.unwrap_or(10),
                    conversion_sites: self.owned_sites.unwrap_or(self.source.of_ten_sites()),
                    ..Strength::of_paper(cap)
                };
                attacks.push(Some((attacker, strength)));
            }
        }
        attacks
    }
}

/// A whole number from 1 on.
fn whole(number: f64) -> Result<u32, Failed> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is compared with what it came from"
    )]
    let whole = number as u32;
    if number.fract() == 0.0 && f64::from(whole) == number {
        return Ok(whole);
    }
    Err(Failed::because(format!(
        "--cap must be a whole number of sites, got {number}"
    )))
}
