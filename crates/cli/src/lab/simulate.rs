//! `bigbird simulate`: a workload under policies and attackers, one run or a sweep.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use bigbird::{Capacity, FilterKind, Limit, Policy, Profile, SiteCharging};
use bigbird_lab::attack::{Attacker, Strength, attackers};
use bigbird_lab::evaluation::batch_table::{
    BatchFormat, BatchTableError, RunSetting, write_batches,
};
use bigbird_lab::evaluation::resilience::Resilience;
use bigbird_lab::evaluation::results::RunRecord;
use bigbird_lab::evaluation::seeds::SeedGroup;
use bigbird_lab::evaluation::{Experiment, QuerierCounts};
use bigbird_lab::workload::Workload;
use serde_json::json;

use super::source::WorkloadSource;
use super::sweep::{Run, Sweep};
use super::{estimate, explain_log};
use crate::output::{FormatArgs, ResultFormat};
use crate::progress::Bar;
use crate::{CommandError, CommandResult, output};

#[derive(Debug, clap::Args)]
#[command(
    after_help = EXAMPLES,
    after_long_help = format!("{EXAMPLES}\n\n{EXPLANATION}")
)]
pub(crate) struct SimulateArgs {
    /// Profiles: big-bird, w3c-draft, cookie-monster or global-only
    #[arg(long, value_delimiter = ',', default_value = "big-bird")]
    profile: Vec<Profile>,
    /// Attackers, or none
    ///
    /// The paper's attackers are random and omniscient.
    ///
    /// Others: strongest (takes the most), naive, intermediaries, slow, drain-conversion-site,
    /// drain-impression-site and free-denial.
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',',
        default_value = "none"
    )]
    attacker: Vec<AttackerName>,
    #[command(flatten)]
    source: WorkloadSource,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    strength: StrengthArgs,
    #[command(flatten)]
    output: SweepOutputArgs,
}

const EXAMPLES: &str = "\
Examples:
  bigbird simulate --scale 0.1 --profile big-bird,global-only --attacker none,random
  bigbird simulate --criteo-prepared DIR --impression-site-quota 1,2,3 --json
  bigbird simulate --seed 1,2,3 --batches batches.parquet
  bigbird simulate --scale 0.01 --min-conversions-per-day 20 --epsilon 0.5 --explain why.csv";

const EXPLANATION: &str = "\
Profiles, attackers, limits, --site-charging, --sybils, --first-rank, --seed and --threads can be
lists, such as --impression-site-quota 0.5,1,2,none. There is one run for each combination. A limit
that is not given is the profile's: see `bigbird policy --profile NAME`. A limit that a profile
does not have is ignored for that profile. Several seeds give means with 95% intervals.

Errors are RMSRE, the root of the mean squared relative error of a batch's buckets. A report is
blocked if a limit withheld any part of it. It counts under the first limit that did. Shares of
blocked reports are means over batches.

Exit status: 0 if every bound of the resilience theorem held, 1 if one was broken, 2 for wrong
arguments and for logs that cannot be read or measured.";

/// The limits to try.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Limits")]
struct LimitArgs {
    /// Querier budgets, in epsilons, or none [default: the profile's]
    ///
    /// What one querier can learn about a device in an epoch. A smaller epsilon is more private.
    #[arg(long = Limit::QuerierBudget.flag(), alias = "querier", value_name = "EPSILON", value_delimiter = ',')]
    querier_budget: Vec<LimitValue>,
    /// Global budgets, in epsilons, or none [default: the profile's]
    ///
    /// What all queriers together can learn about a device in an epoch.
    #[arg(long = Limit::GlobalBudget.flag(), alias = "global", value_name = "EPSILON", value_delimiter = ',')]
    global_budget: Vec<LimitValue>,
    /// Impression-site quotas, in epsilons, or none [default: the profile's]
    ///
    /// The most that reports about ads shown on one site can take from a device's global budget in
    /// an epoch. It protects the measurements of other sites.
    #[arg(
        long = Limit::ImpressionSiteQuota.flag(),
        alias = "impression-quota",
        value_name = "EPSILON",
        value_delimiter = ','
    )]
    impression_site_quota: Vec<LimitValue>,
    /// Conversion-site quotas, in epsilons, or none [default: the profile's]
    ///
    /// The most that conversions on one site can take from a device's global budget in an epoch.
    #[arg(
        long = Limit::ConversionSiteQuota.flag(),
        alias = "conversion-quota",
        value_name = "EPSILON",
        value_delimiter = ','
    )]
    conversion_site_quota: Vec<LimitValue>,
    /// Domain caps: sites that one user action may involve, or none [default: the profile's]
    #[arg(long = Limit::DomainCap.flag(), alias = "cap", value_name = "SITES", value_delimiter = ',')]
    domain_cap: Vec<LimitValue>,
    /// Rules for what impression sites pay: full, paper or uniform [default: full]
    ///
    /// `paper` is the paper's literal rule.
    #[arg(long, value_name = "RULE", value_delimiter = ',')]
    site_charging: Vec<SiteCharging>,
}

/// The strength of the attacker.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Attack")]
struct StrengthArgs {
    /// Number of Sybils of an attacker, from 1 to 10000
    #[arg(
        long,
        value_name = "COUNT",
        value_delimiter = ',',
        default_value = "25",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(Strength::MAX_SYBILS))
    )]
    sybils: Vec<u32>,
    /// Rank of the first site that an attacker owns, where 1 is the busiest
    #[arg(
        long,
        alias = "rank-start",
        value_name = "RANK",
        value_delimiter = ',',
        default_value = "1",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    first_rank: Vec<u32>,
    /// Number of sites of each kind that an attacker owns [default: 10]
    ///
    /// In a synthetic population, the default for conversion sites is 10 times --scale.
    #[arg(
        long,
        value_name = "COUNT",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    owned_sites: Option<u32>,
}

/// The files to write, and the form of what is printed.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Output")]
struct SweepOutputArgs {
    /// CSV file to write the results to, one row for each run
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// CSV or Parquet file to write all batches to
    ///
    /// It has one row for each batch of each run, with every parameter as a column.
    #[arg(long, value_name = "FILE")]
    batches: Option<PathBuf>,
    /// SVG file to write a figure to
    ///
    /// It shows the error for each value of the parameter with the most values.
    #[arg(long, value_name = "FILE")]
    figure: Option<PathBuf>,
    /// File to write one row for each report to, which says why it is what it is
    ///
    /// A .csv, .jsonl or .parquet file. Prints a summary by site instead of errors.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["csv", "batches", "figure"])]
    explain: Option<PathBuf>,
    /// Epsilon of a report of the largest value [default: the one that gives an error of 5%]
    ///
    /// It needs --explain.
    #[arg(long, value_name = "EPSILON", requires = "explain")]
    epsilon: Option<f64>,
    #[command(flatten)]
    format: FormatArgs,
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
                "unknown attacker `{text}`; use one of: none, {}",
                names()
            )),
        }
    }
}

/// A number, or `none`.
#[derive(Debug, Clone, Copy, PartialEq)]
struct LimitValue(Option<f64>);

impl FromStr for LimitValue {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self(None));
        }
        match text.parse() {
            Ok(number) => Ok(Self(Some(number))),
            Err(_) => Err(format!("`{text}` is not a number; use a number or none")),
        }
    }
}

pub(crate) fn run(args: &SimulateArgs) -> CommandResult {
    let experiments = args.experiments()?;
    if let Some(to) = &args.output.explain {
        let (epsilon, format) = (args.output.epsilon, args.output.format.format());
        return explain_log::run(&args.source, &experiments, epsilon, to, format);
    }
    let files = &args.output;
    if let Some(path) = files.batches.as_ref()
        && BatchFormat::of(path).is_none()
    {
        let path = path.to_owned();
        return Err(CommandError::misused(BatchTableError::UnknownFormat {
            path,
        }));
    }
    let mut bar = Bar::new();
    let (seeds, threads) = (once(&args.source.seed), once(&args.source.threads()));
    let count = experiments.len() * seeds.len() * threads.len();
    let mut workload: Option<Workload> = None;
    let mut runs: Vec<Run> = Vec::new();
    for &seed in &seeds {
        let known = workload.take().filter(|_| !args.source.follows_from_seed());
        let known = match known {
            Some(known) => known,
            None => args.source.workload_to_replay(seed)?,
        };
        for &threads in &threads {
            let laboratory = args.source.laboratory(&known, threads)?;
            if runs.is_empty() {
                let seconds = estimate::runs(&known, &experiments);
                bar.announce(seconds * (count / experiments.len().max(1)) as f64, threads);
            }
            let queriers = QuerierCounts::of(laboratory.queriers());
            for experiment in &experiments {
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
                    queriers,
                });
            }
        }
        workload = Some(known);
    }
    bar.clear();
    let Some(workload) = workload else {
        return Err(CommandError::misused("--seed needs a value"));
    };
    let sweep = Sweep::new(&runs);
    let good = runs.iter().all(|run| {
        let resilience = run.outcome.resilience.as_ref();
        resilience.is_none_or(Resilience::hold)
    });
    if let Some(path) = &files.csv {
        write(path, &sweep.data().csv())?;
    }
    if let Some(path) = &files.figure {
        write(path, &sweep.to_figure())?;
    }
    let format = files.format.format();
    let records: Vec<RunRecord> = match (format, &files.batches) {
        (ResultFormat::Json, _) | (_, Some(_)) => {
            runs.iter().map(|run| run.record(&workload)).collect()
        }
        _ => Vec::new(),
    };
    if let Some(path) = &files.batches {
        let setting = RunSetting {
            workload: args.source.to_string(),
            buckets: workload.buckets,
            options: args.source.options(),
            lookback_epochs: args.source.lookback_epochs(),
        };
        write_batches(path, &setting, &records)?;
    }
    let text = match format {
        ResultFormat::Json => {
            let mut document = json!({ "runs": records });
            if seeds.len() > 1 {
                document["overSeeds"] = json!(SeedGroup::of(&records));
            }
            output::json(&document)?
        }
        format => sweep.tell(&args.source, &workload).render(format),
    };
    Ok((text, good))
}

fn write(path: &Path, content: &str) -> Result<(), CommandError> {
    std::fs::write(path, content)
        .map_err(|error| CommandError::because(format!("cannot write {}: {error}", path.display())))
}

/// The values of a list without repetitions.
fn once<T: Copy + PartialEq>(values: &[T]) -> Vec<T> {
    let mut once: Vec<T> = Vec::new();
    for value in values {
        if !once.contains(value) {
            once.push(*value);
        }
    }
    once
}

impl SimulateArgs {
    /// All combinations, without repetitions.
    fn experiments(&self) -> Result<Vec<Experiment>, CommandError> {
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

    fn policies(&self, profile: Profile) -> Result<Vec<Policy>, CommandError> {
        let base = profile.policy();
        let mut policies = vec![base.clone()];
        let kinds = [
            (FilterKind::QuerierBudget, &self.limits.querier_budget),
            (FilterKind::GlobalBudget, &self.limits.global_budget),
            (
                FilterKind::ImpressionSiteQuota,
                &self.limits.impression_site_quota,
            ),
            (
                FilterKind::ConversionSiteQuota,
                &self.limits.conversion_site_quota,
            ),
        ];
        for (kind, limits) in kinds {
            if base.capacities().of(kind) == Capacity::Unlimited || limits.is_empty() {
                continue;
            }
            let mut more = Vec::new();
            for policy in &policies {
                for LimitValue(limit) in limits {
                    let policy = policy.to_builder();
                    let policy = match limit {
                        Some(epsilon) => policy.capacity(kind, *epsilon),
                        None => policy.unlimited(kind),
                    };
                    more.push(policy.build().map_err(CommandError::misused)?);
                }
            }
            policies = more;
        }
        if base.domain_cap().is_some() && !self.limits.domain_cap.is_empty() {
            let mut more = Vec::new();
            for policy in &policies {
                for LimitValue(cap) in &self.limits.domain_cap {
                    let policy = policy.to_builder();
                    let policy = match cap {
                        Some(cap) => policy.domain_cap(whole(*cap)?),
                        None => policy.no_domain_cap(),
                    };
                    more.push(policy.build().map_err(CommandError::misused)?);
                }
            }
            policies = more;
        }
        if !self.limits.site_charging.is_empty() {
            let mut more = Vec::new();
            for policy in &policies {
                for &rule in &self.limits.site_charging {
                    let policy = policy.to_builder().site_charging(rule).build();
                    more.push(policy.map_err(CommandError::misused)?);
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
        for &sybils in &self.strength.sybils {
            for &first_rank in &self.strength.first_rank {
                let strength = Strength {
                    sybils,
                    first_rank,
                    impression_sites: self.strength.owned_sites.unwrap_or(10),
                    conversion_sites: self
                        .strength
                        .owned_sites
                        .unwrap_or(self.source.of_ten_sites()),
                    ..Strength::of_paper(cap)
                };
                attacks.push(Some((attacker, strength)));
            }
        }
        attacks
    }
}

/// A domain cap as a whole number.
fn whole(number: f64) -> Result<u32, CommandError> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the result is compared with the number"
    )]
    let whole = number as u32;
    if number.fract() == 0.0 && f64::from(whole) == number {
        return Ok(whole);
    }
    Err(CommandError::misused(format!(
        "--domain-cap must be a whole number of sites, got {number}"
    )))
}
