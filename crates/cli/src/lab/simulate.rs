//! `bigbird simulate`: a workload under policies and attackers, one run or a sweep.

use std::fmt::Write as _;
use std::str::FromStr;
use std::sync::Arc;

use bigbird::{Capacity, FilterKind, Policy, Profile};
use bigbird_lab::attack::{Attacker, Strength, attackers};
use bigbird_lab::experiment::Experiment;
use bigbird_lab::replay::Blocked;
use bigbird_lab::resilience::Resilience;
use bigbird_lab::simulate::Outcome;
use bigbird_lab::workload::Workload;
use serde_json::{Value, json};

use super::source::Source;
use crate::{Failed, Finished, output};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Every parameter but the workload's may be a list, such as --impression-quota 0.5,1,2,none: then there
is a run for each combination. A parameter that a profile does not have is passed over.

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
    /// Querier budgets, in epsilons
    #[arg(
        long,
        value_name = "EPSILON",
        value_delimiter = ',',
        default_value = "1"
    )]
    querier: Vec<Limit>,
    /// Global budgets, in epsilons; none for no such filter, as below
    #[arg(
        long,
        value_name = "EPSILON",
        value_delimiter = ',',
        default_value = "8"
    )]
    global: Vec<Limit>,
    /// Impression-site quotas, in epsilons
    #[arg(
        long,
        value_name = "EPSILON",
        value_delimiter = ',',
        default_value = "2"
    )]
    impression_quota: Vec<Limit>,
    /// Conversion-site quotas, in epsilons
    #[arg(
        long,
        value_name = "EPSILON",
        value_delimiter = ',',
        default_value = "1"
    )]
    conversion_quota: Vec<Limit>,
    /// Domain caps, in sites of a user action
    #[arg(long, value_name = "SITES", value_delimiter = ',', default_value = "2")]
    cap: Vec<Limit>,
    /// How many Sybils an attacker has
    #[arg(
        long,
        value_name = "COUNT",
        value_delimiter = ',',
        default_value = "25"
    )]
    sybils: Vec<u32>,
    /// The rank of the first site that an attacker owns; 1 is the busiest
    #[arg(long, value_name = "RANK", value_delimiter = ',', default_value = "1")]
    rank_start: Vec<u32>,
    /// How many sites of each kind it owns [default: 10; of conversion sites, as many of ten as the
    /// scale says]
    #[arg(long, value_name = "COUNT")]
    owned_sites: Option<u32>,
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
    let workload = args.source.workload()?;
    let laboratory = args.source.laboratory(&workload)?;
    let mut outcomes = Vec::new();
    for experiment in &experiments {
        outcomes.push(experiment.run(&laboratory, args.source.seed)?);
    }
    let good = outcomes.iter().all(|outcome| {
        let resilience = outcome.resilience.as_ref();
        resilience.is_none_or(Resilience::hold)
    });
    let text = if args.json {
        let runs = experiments.iter().zip(&outcomes);
        let runs: Vec<Value> = runs
            .map(|(experiment, outcome)| experiment.to_json("simulate", outcome, &workload))
            .collect();
        output::json(&json!({ "runs": runs }))?
    } else {
        tell(args, &workload, &experiments, &outcomes)?
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
                        if !experiments.contains(&experiment) {
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
            if base.capacities().of(kind) == Capacity::Unlimited {
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
        if base.domain_cap().is_some() {
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

fn tell(
    args: &Args,
    workload: &Workload,
    runs: &[Experiment],
    outcomes: &[Arc<Outcome>],
) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    writeln!(
        text,
        "{} devices and {} events of {}; {} batches.\n",
        workload.devices(),
        workload.len(),
        args.source,
        outcomes.first().map_or(0, |outcome| outcome.batches.len())
    )?;
    let percent = |share: Option<f64>| match share {
        Some(share) => format!("{:.1}%", 100.0 * share),
        None => "–".to_owned(),
    };
    let limits = |run: &Experiment| {
        let limit = |kind| {
            run.capacity(kind)
                .map_or("–".to_owned(), |it| it.to_string())
        };
        let number = |number: Option<u32>| number.map_or("–".to_owned(), |it| it.to_string());
        let strength = run.strength();
        [
            ("querier budget", limit(FilterKind::Querier)),
            ("global budget", limit(FilterKind::Global)),
            ("impression-site quota", limit(FilterKind::ImpressionSite)),
            ("conversion-site quota", limit(FilterKind::ConversionSite)),
            ("cap", number(run.cap())),
            ("Sybils", number(strength.map(|strength| strength.sybils))),
            (
                "first rank",
                number(strength.map(|strength| strength.first_rank)),
            ),
        ]
    };
    // What is the same in all runs needs no column.
    let all: Vec<_> = runs.iter().map(limits).collect();
    let varies = |column: usize| all.iter().any(|run| run[column].1 != all[0][column].1);
    let same: Vec<String> = all
        .first()
        .into_iter()
        .flatten()
        .enumerate()
        .filter(|(column, (_, value))| !varies(*column) && value != "–")
        .map(|(_, (name, value))| format!("{name} {value}"))
        .collect();
    if !same.is_empty() {
        writeln!(text, "In all runs: {}.\n", same.join(", "))?;
    }
    let varying: Vec<usize> = (0..7).filter(|column| varies(*column)).collect();
    let mut header = vec!["profile".to_owned(), "attacker".to_owned()];
    if let Some(first) = all.first() {
        header.extend(varying.iter().map(|column| first[*column].0.to_owned()));
    }
    let measured = ["median", "p95", "by querier", "by global", "by imp. site"];
    header.extend(measured.map(str::to_owned));
    let rows = runs
        .iter()
        .zip(outcomes)
        .zip(&all)
        .map(|((run, outcome), limits)| {
            let mut row = vec![run.profile.to_string(), run.attacker().to_owned()];
            row.extend(varying.iter().map(|column| limits[*column].1.clone()));
            row.push(percent(outcome.error(50.0)));
            row.push(percent(outcome.error(95.0)));
            for cause in [Blocked::Querier, Blocked::Global, Blocked::ImpressionSite] {
                row.push(percent(outcome.blocked_share(cause)));
            }
            row
        });
    let table = output::table(header, rows);
    writeln!(text, "{table}\n")?;
    writeln!(
        text,
        "Limits in epsilons; the error of batches; the share of reports blocked, by first cause."
    )?;
    Ok(text)
}
