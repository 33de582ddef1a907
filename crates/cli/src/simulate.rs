//! `bigbird simulate`: a workload under policies and attackers, one run or a sweep.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::str::FromStr;

use bigbird::{Capacity, FilterKind, MicroEpsilon, Policy, Profile};
use bigbird_lab::attack::Strength;
use bigbird_lab::criteo;
use bigbird_lab::metrics::{Batch, Noise};
use bigbird_lab::replay::Blocked;
use bigbird_lab::simulate::{AttackerKind, Laboratory, Outcome};
use bigbird_lab::synthetic::{Population, Preset};
use bigbird_lab::workload::{Querier, QuerierOptions, Workload};
use clap::ValueEnum;
use serde_json::{Value, json};

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
    /// The artifact's files 20last_impressions.pqt and 20last_conversions.pqt, instead of a
    /// synthetic population
    #[arg(long, value_name = "DIR", conflicts_with_all = ["scale", "preset"])]
    criteo_prepared: Option<PathBuf>,
    /// The size of the synthetic population; 1 is the paper's 1.4 million devices
    #[arg(long, default_value_t = 0.1)]
    scale: f64,
    /// What the synthetic population is fitted to
    #[arg(long, value_enum, default_value_t)]
    preset: PresetName,
    /// How many conversions a day a site must have to measure
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    min_conversions_per_day: usize,
    /// Profiles: big-bird, w3c-draft, cookie-monster, global-only
    #[arg(long, value_delimiter = ',', default_value = "big-bird")]
    profile: Vec<Profile>,
    /// Attackers: none, random, omniscient
    #[arg(long, value_enum, value_delimiter = ',', default_value = "none")]
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
    /// Noise of scale 1/epsilon, as in the paper's figures, or of twice that, as its accounting
    /// assumes
    #[arg(long, value_enum, default_value_t)]
    noise: NoiseName,
    /// What all random choices follow from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many threads work; results do not depend on it [default: all cores]
    #[arg(long)]
    threads: Option<usize>,
    /// Print the runs with all their batches as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum PresetName {
    /// What is published without attack
    #[default]
    Published,
    /// The paper's results under attack as well: nothing that it gives under attack is a prediction
    AttackFitted,
}

#[derive(Debug, Clone, Copy, PartialEq, ValueEnum)]
enum AttackerName {
    None,
    Random,
    Omniscient,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum NoiseName {
    #[default]
    Paper,
    Consistent,
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

/// One run.
#[derive(Debug, Clone, PartialEq)]
struct Run {
    profile: Profile,
    policy: Policy,
    attack: Option<(AttackerKind, Strength)>,
}

pub(crate) fn run(args: &Args) -> Finished {
    if !(args.scale > 0.0 && args.scale <= 10.0) {
        let why = format!("--scale must be in (0, 10], got {}", args.scale);
        return Err(Failed::because(why));
    }
    let runs = args.runs()?;
    let workload = args.workload()?;
    let options = QuerierOptions {
        min_conversions_a_day: args.min_conversions_per_day,
        ..QuerierOptions::default()
    };
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let threads = args.threads.unwrap_or_else(cores);
    let laboratory = Laboratory::new(&workload, options, threads)?;
    if laboratory.queriers().is_empty() {
        return Err(Failed::because(format!(
            "no conversion site has {} conversions a day: --min-conversions-per-day must be less",
            args.min_conversions_per_day
        )));
    }
    let complete = |querier: &Querier| querier.reports.len() >= querier.batch;
    if !laboratory.queriers().iter().any(complete) {
        return Err(Failed::because(format!(
            "no querier has conversions for one batch of at least {} reports: the workload must be \
             larger",
            options.min_batch
        )));
    }
    let noise = match args.noise {
        NoiseName::Paper => Noise::Paper,
        NoiseName::Consistent => Noise::Consistent,
    };
    let outcomes: Vec<Outcome> = runs
        .iter()
        .map(|run| {
            let attack = run
                .attack
                .map(|(kind, strength)| kind.attack(strength, args.seed));
            laboratory.run(&run.policy, attack, noise)
        })
        .collect();
    let text = if args.json {
        let runs = runs.iter().zip(&outcomes);
        let runs: Vec<Value> = runs.map(|(run, it)| run_json(run, it, &workload)).collect();
        output::json(&json!({ "runs": runs }))?
    } else {
        tell(args, &workload, &runs, &outcomes)?
    };
    Ok((text, true))
}

impl Args {
    fn workload(&self) -> Result<Workload, Failed> {
        if let Some(folder) = &self.criteo_prepared {
            return criteo::read_prepared(folder)
                .map_err(|error| Failed::unreadable(error.to_string()));
        }
        let preset = match self.preset {
            PresetName::Published => Preset::Published,
            PresetName::AttackFitted => Preset::AttackFitted,
        };
        let population = Population {
            preset,
            scale: self.scale,
            seed: self.seed,
        };
        Ok(population.generate())
    }

    /// Every combination that differs from those before it.
    fn runs(&self) -> Result<Vec<Run>, Failed> {
        let mut runs: Vec<Run> = Vec::new();
        for &profile in &self.profile {
            for policy in self.policies(profile)? {
                for &attacker in &self.attacker {
                    for attack in self.attacks(attacker, &policy) {
                        let policy = policy.clone();
                        let run = Run {
                            profile,
                            policy,
                            attack,
                        };
                        if !runs.contains(&run) {
                            runs.push(run);
                        }
                    }
                }
            }
        }
        Ok(runs)
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
        attacker: AttackerName,
        policy: &Policy,
    ) -> Vec<Option<(AttackerKind, Strength)>> {
        let kind = match attacker {
            AttackerName::None => return vec![None],
            AttackerName::Random => AttackerKind::Random,
            AttackerName::Omniscient => AttackerKind::Omniscient,
        };
        let cap = policy.domain_cap().map(std::num::NonZeroU32::get);
        // A smaller population has fewer conversion sites, each as busy as before.
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a part of ten"
        )]
        let of_ten = match self.criteo_prepared {
            Some(_) => 10,
            None => (10.0 * self.scale).round().max(1.0) as u32,
        };
        let mut attacks = Vec::new();
        for &sybils in &self.sybils {
            for &first_rank in &self.rank_start {
                let strength = Strength {
                    sybils,
                    first_rank,
                    impression_sites: self.owned_sites.unwrap_or(10),
                    conversion_sites: self.owned_sites.unwrap_or(of_ten),
                    ..Strength::of_paper(cap)
                };
                attacks.push(Some((kind, strength)));
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

fn attacker(run: &Run) -> &'static str {
    run.attack
        .map_or("none", |(kind, _)| kind.attacker().name())
}

fn epsilons(policy: &Policy, kind: FilterKind) -> Option<f64> {
    policy
        .capacities()
        .of(kind)
        .amount()
        .map(MicroEpsilon::to_epsilon)
}

fn run_json(run: &Run, outcome: &Outcome, workload: &Workload) -> Value {
    let strength = run.attack.map(|(_, strength)| strength);
    let batches: Vec<Value> = outcome
        .batches
        .iter()
        .map(|it| batch_json(it, workload))
        .collect();
    json!({
        "suite": "simulate",
        "profile": run.profile.to_string(),
        "attacker": attacker(run),
        "querier": epsilons(&run.policy, FilterKind::Querier),
        "global": epsilons(&run.policy, FilterKind::Global),
        "impressionSite": epsilons(&run.policy, FilterKind::ImpressionSite),
        "conversionSite": epsilons(&run.policy, FilterKind::ConversionSite),
        "cap": run.policy.domain_cap(),
        "sybils": strength.map(|strength| strength.sybils),
        "rankStart": strength.map(|strength| strength.first_rank),
        "median": outcome.error(50.0),
        "p95": outcome.error(95.0),
        "blocked": blocked_json(&outcome.blocked()),
        "batches": batches,
    })
}

fn batch_json(batch: &Batch, workload: &Workload) -> Value {
    let name = &workload.conversion_site_names[batch.conversion_site as usize];
    json!({
        "conversionSite": name.parse::<u64>().map_or_else(|_| json!(name), |number| json!(number)),
        "epsilon": batch.epsilon,
        "noiseScale": batch.noise_scale,
        "size": batch.size,
        "full": batch.full,
        "kept": batch.kept,
        "rmsre": batch.rmsre,
        "rmsreByNoise": batch.parts.noise,
        "rmsreByBlocking": batch.parts.bias,
        "blocked": blocked_json(&batch.blocked.map(u64::from)),
    })
}

fn blocked_json(blocked: &[u64; Blocked::ALL.len()]) -> Value {
    let count = |cause: Blocked| blocked[cause as usize];
    json!({
        "domainCap": count(Blocked::DomainCap),
        "querier": count(Blocked::Querier),
        "global": count(Blocked::Global),
        "impressionSite": count(Blocked::ImpressionSite),
        "conversionSite": count(Blocked::ConversionSite),
    })
}

fn tell(
    args: &Args,
    workload: &Workload,
    runs: &[Run],
    outcomes: &[Outcome],
) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    let source = match (&args.criteo_prepared, args.preset) {
        (Some(folder), _) => folder.display().to_string(),
        (None, PresetName::Published) => "a synthetic population".to_owned(),
        (None, PresetName::AttackFitted) => {
            "a synthetic population that was fitted to results under attack".to_owned()
        }
    };
    writeln!(
        text,
        "{} devices and {} events of {source}; {} batches.\n",
        workload.devices(),
        workload.len(),
        outcomes.first().map_or(0, |outcome| outcome.batches.len())
    )?;
    let percent = |share: Option<f64>| match share {
        Some(share) => format!("{:.1}%", 100.0 * share),
        None => "–".to_owned(),
    };
    let limits = |run: &Run| {
        let limit =
            |kind| epsilons(&run.policy, kind).map_or("–".to_owned(), |it| it.to_string());
        let number = |number: Option<u32>| number.map_or("–".to_owned(), |it| it.to_string());
        let strength = run.attack.map(|(_, strength)| strength);
        [
            ("querier budget", limit(FilterKind::Querier)),
            ("global budget", limit(FilterKind::Global)),
            ("impression-site quota", limit(FilterKind::ImpressionSite)),
            ("conversion-site quota", limit(FilterKind::ConversionSite)),
            (
                "cap",
                number(run.policy.domain_cap().map(std::num::NonZeroU32::get)),
            ),
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
            let mut row = vec![run.profile.to_string(), attacker(run).to_owned()];
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
