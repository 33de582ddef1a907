//! `bigbird tune`: limits computed from logs, and the errors to expect under them.

use std::fmt::Write as _;
use std::sync::Arc;

use bigbird::{FilterKind, Limit, MicroEpsilon, Policy, Profile};
use bigbird_lab::attack::{Attacker, Strength, attackers};
use bigbird_lab::describe::{Description, Estimate};
use bigbird_lab::evaluation::Experiment;
use bigbird_lab::evaluation::resilience::Resilience;
use bigbird_lab::evaluation::{Laboratory, RunResult};
use bigbird_lab::tune;
use serde_json::{Value, json};

use super::source::{WorkloadSource, noise_scale};
use crate::output::grouped;
use crate::progress::Bar;
use crate::{CommandError, CommandResult, output};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Tuning follows the paper's three steps:
  1. You choose the querier budget.
  2. A percentile of devices gives N conversion sites, M impression sites, and n conversion sites
     for each impression site.
  3. The closed form gives limits that serve these devices.

The workload is then replayed under these limits, under smaller impression-site quotas, and under
twice the global budget. Each is tried without attack and under every attacker. You decide.

  bigbird tune logs.csv --columns device=user,time=ts --time-unit seconds --time-origin 1700000000
  bigbird tune logs.csv --percentile 50,85,99
  bigbird tune --exact --attacker random,omniscient")]
pub(crate) struct TuneArgs {
    #[command(flatten)]
    source: WorkloadSource,
    /// Percentiles of devices to serve, from 0 to 100, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "85")]
    percentile: Vec<f64>,
    /// Run attribution to count which sites pay
    ///
    /// Devices and epochs in which nothing is paid are left out.
    ///
    /// Without this flag, the paper's statistics of devices are used.
    #[arg(long)]
    exact: bool,
    /// Querier budget, in epsilons
    #[arg(long = Limit::QuerierBudget.flag(), alias = "querier", value_name = "EPSILON", default_value_t = 1.0)]
    querier_budget: f64,
    /// r: share that intermediaries spend
    ///
    /// What intermediaries spend on one conversion site, as a share of a querier budget.
    #[arg(
        long,
        alias = "intermediaries",
        value_name = "SHARE",
        default_value_t = 0.0
    )]
    intermediary_share: f64,
    /// Domain cap (κ): sites one user action may involve
    #[arg(long = Limit::DomainCap.flag(), alias = "cap", value_name = "SITES", default_value_t = 2)]
    domain_cap: u32,
    /// Attackers to try, or none [default: all]
    ///
    /// `bigbird simulate --help` lists their names.
    #[arg(long, alias = "attackers", value_name = "NAME", value_delimiter = ',')]
    attacker: Vec<String>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Limits to choose from.
struct Choice {
    /// The percentile that they serve, or none for the variants of such limits.
    percentile: Option<f64>,
    estimate: Estimate,
    policy: Policy,
    /// The results without attack, and under each attacker.
    outcomes: Vec<Arc<RunResult>>,
}

pub(crate) fn run(args: &TuneArgs) -> CommandResult {
    let (seed, threads) = args.source.one()?;
    let attackers = args.attackers()?;
    for percentile in &args.percentile {
        if !(0.0..=100.0).contains(percentile) {
            let why = format!("--percentile must be in [0, 100], got {percentile}");
            return Err(CommandError::misused(why));
        }
    }
    if !(args.querier_budget > 0.0 && args.querier_budget.is_finite()) {
        let why = format!(
            "--{} must be a finite number above 0, got {}",
            Limit::QuerierBudget.flag(),
            args.querier_budget
        );
        return Err(CommandError::misused(why));
    }
    let workload = args.source.workload(seed)?;
    let laboratory = args.source.laboratory(&workload, threads)?;
    let description = Description::new(&workload, args.source.lookback_epochs())?;
    let exact = match args.exact {
        true => Some(tune::exact(
            &workload,
            args.source.lookback_epochs(),
            threads,
        )?),
        false => None,
    };
    let mut choices: Vec<Choice> = Vec::new();
    for &percentile in &args.percentile {
        let r = args.intermediary_share;
        let estimate = match &exact {
            Some(exact) => exact.parameters(percentile, r)?,
            None => tune::conservative(&description, percentile, r)?,
        };
        let Some(estimate) = estimate else {
            return Err(CommandError::misused(
                "no device converts after an impression: there is nothing to tune for",
            ));
        };
        let policy =
            Policy::for_workload(args.querier_budget, &estimate.parameters, args.domain_cap)?;
        choices.push(Choice {
            percentile: Some(percentile),
            estimate,
            policy: policy.clone(),
            outcomes: Vec::new(),
        });
        for policy in others(&policy)? {
            choices.push(Choice {
                percentile: None,
                estimate,
                policy,
                outcomes: Vec::new(),
            });
        }
    }
    let mut bar = Bar::new();
    let count = choices.len() * (attackers.len() + 1);
    let mut done = 0_u32;
    for choice in &mut choices {
        for attacker in std::iter::once(None).chain(attackers.iter().map(|it| Some(*it))) {
            let name = attacker.map_or("no", Attacker::name);
            #[expect(clippy::cast_precision_loss, reason = "a handful of runs")]
            bar.show(
                f64::from(done) / count as f64,
                0.0,
                &format!("{name} attacker"),
            );
            let outcome = args.predict(&laboratory, &choice.policy, attacker, seed)?;
            choice.outcomes.push(outcome);
            done += 1;
        }
    }
    bar.clear();
    let text = if args.json {
        output::json(&tuned_json(args, &choices, &attackers))?
    } else {
        tell(args, &description, &choices, &attackers)?
    };
    let outcomes = choices.iter().flat_map(|choice| &choice.outcomes);
    let good = outcomes
        .filter_map(|outcome| outcome.resilience.as_ref())
        .all(Resilience::hold);
    Ok((text, good))
}

/// Variants of the limits of the closed form. The impression-site quota is halved repeatedly, as
/// long as it serves one querier. Each of these quotas is also tried with twice the global budget.
fn others(policy: &Policy) -> Result<Vec<Policy>, CommandError> {
    let capacities = policy.capacities();
    let amounts = [
        capacities.global_budget,
        capacities.impression_site_quota,
        capacities.conversion_site_quota,
    ]
    .map(bigbird::Capacity::amount);
    let [Some(global), Some(quota), Some(least)] = amounts else {
        return Ok(Vec::new());
    };
    let mut quotas = vec![quota];
    while let Some(half) = quotas.last().map(|quota| quota.get() / 2)
        && half >= least.get().max(1)
    {
        quotas.push(MicroEpsilon::new(half));
    }
    let mut others = Vec::new();
    for global in [global, MicroEpsilon::new(global.get().saturating_mul(2))] {
        for quota in &quotas {
            let other = policy
                .to_builder()
                .global_budget(global.to_epsilon())
                .impression_site_quota(quota.to_epsilon())
                .build()?;
            if other != *policy {
                others.push(other);
            }
        }
    }
    Ok(others)
}

impl TuneArgs {
    fn attackers(&self) -> Result<Vec<&'static dyn Attacker>, CommandError> {
        if self.attacker.is_empty() {
            return Ok(attackers::ALL.to_vec());
        }
        self.attacker
            .iter()
            .filter(|name| *name != "none")
            .map(|name| {
                attackers::by_name(name).ok_or_else(|| {
                    let names = attackers::ALL.map(Attacker::name).join(", ");
                    CommandError::misused(format!(
                        "--attacker: unknown attacker `{name}`; use one of: none, {names}"
                    ))
                })
            })
            .collect()
    }

    fn predict(
        &self,
        laboratory: &Laboratory<'_>,
        policy: &Policy,
        attacker: Option<&'static dyn Attacker>,
        seed: u64,
    ) -> Result<Arc<RunResult>, CommandError> {
        let experiment = Experiment {
            profile: Profile::BigBird,
            policy: policy.clone(),
            attack: attacker.map(|attacker| {
                let strength = Strength {
                    conversion_sites: self.source.of_ten_sites(),
                    ..Strength::of_paper(Some(self.domain_cap))
                };
                (attacker, strength)
            }),
        };
        Ok(experiment.run(laboratory, seed)?)
    }
}

fn epsilons(policy: &Policy, kind: FilterKind) -> f64 {
    let capacity = policy.capacities().of(kind).amount();
    capacity.map_or(f64::INFINITY, MicroEpsilon::to_epsilon)
}

fn tuned_json(args: &TuneArgs, choices: &[Choice], attackers: &[&'static dyn Attacker]) -> Value {
    let choices: Vec<Value> = choices
        .iter()
        .map(|choice| {
            let [conversion_sites, impression_sites, fan_out] = choice.estimate.numbers;
            let names = std::iter::once("none").chain(attackers.iter().map(|it| it.name()));
            let predicted: Vec<Value> = names
                .zip(&choice.outcomes)
                .map(|(attacker, outcome)| {
                    json!({
                        "attacker": attacker,
                        "median": outcome.error(50.0),
                        "p95": outcome.error(95.0),
                        "boundsHeld": outcome.resilience.as_ref().map(Resilience::hold),
                    })
                })
                .collect();
            json!({
                "percentile": choice.percentile,
                "conversionSites": conversion_sites,
                "impressionSites": impression_sites,
                "fanOut": fan_out,
                Limit::QuerierBudget.key(): epsilons(&choice.policy, FilterKind::QuerierBudget),
                Limit::GlobalBudget.key(): epsilons(&choice.policy, FilterKind::GlobalBudget),
                Limit::ImpressionSiteQuota.key():
                    epsilons(&choice.policy, FilterKind::ImpressionSiteQuota),
                Limit::ConversionSiteQuota.key():
                    epsilons(&choice.policy, FilterKind::ConversionSiteQuota),
                Limit::DomainCap.key(): args.domain_cap,
                "predicted": predicted,
            })
        })
        .collect();
    json!({ "exact": args.exact, "choices": choices })
}

fn tell(
    args: &TuneArgs,
    description: &Description,
    choices: &[Choice],
    attackers: &[&'static dyn Attacker],
) -> Result<String, CommandError> {
    let mut text = String::new();
    writeln!(
        text,
        "Workload: {}\n{} devices, {} impressions, {} conversions\n",
        args.source,
        grouped(description.devices),
        grouped(description.impressions),
        grouped(description.conversions)
    )?;
    writeln!(
        text,
        "N, M and n {}, and the limits that serve them\n\
         (querier budget {}, r = {}, domain cap {}):",
        if args.exact {
            "by running attribution"
        } else {
            "by the paper's statistics of devices"
        },
        args.querier_budget,
        args.intermediary_share,
        args.domain_cap
    )?;
    let header = [
        "percentile",
        "N",
        "M",
        "n",
        Limit::GlobalBudget.name(),
        Limit::ImpressionSiteQuota.name(),
        Limit::ConversionSiteQuota.name(),
    ];
    let served = choices.iter().filter_map(|choice| {
        let percentile = choice.percentile?;
        let mut row = vec![format!("p{percentile}")];
        row.extend(choice.estimate.numbers.map(|number| number.to_string()));
        row.extend(
            [
                FilterKind::GlobalBudget,
                FilterKind::ImpressionSiteQuota,
                FilterKind::ConversionSiteQuota,
            ]
            .map(|kind| epsilons(&choice.policy, kind).to_string()),
        );
        Some(row)
    });
    let header = header.map(str::to_owned).to_vec();
    writeln!(text, "{}\n", output::table(header, served))?;
    writeln!(
        text,
        "The expected median error of honest batches, without attack and under each attacker\n\
         (noise of {}):",
        noise_scale(args.source.options().noise)
    )?;
    let capacities = |choice: &Choice| {
        let global = epsilons(&choice.policy, FilterKind::GlobalBudget);
        let quota = epsilons(&choice.policy, FilterKind::ImpressionSiteQuota);
        let percentile = choice.percentile.map(|it| format!(" (p{it})"));
        format!("{global}, {quota}{}", percentile.unwrap_or_default())
    };
    let mut header = vec![format!(
        "{}, {}",
        Limit::GlobalBudget,
        Limit::ImpressionSiteQuota
    )];
    header.extend(choices.iter().map(capacities));
    let names = std::iter::once("no attack").chain(attackers.iter().map(|it| it.name()));
    let rows = names.enumerate().map(|(number, name)| {
        let mut row = vec![name.to_owned()];
        row.extend(choices.iter().map(|choice| {
            let median = choice.outcomes[number].error(50.0);
            median.map_or("–".to_owned(), |it| format!("{:.1}%", 100.0 * it))
        }));
        row
    });
    writeln!(text, "{}\n", output::table(header, rows))?;
    writeln!(text, "Attackers own {}.", args.source.owned())?;
    let broken = |choice: &&Choice| {
        let mut outcomes = choice
            .outcomes
            .iter()
            .filter_map(|it| it.resilience.as_ref());
        outcomes.any(|resilience| !resilience.hold())
    };
    for choice in choices.iter().filter(broken) {
        writeln!(
            text,
            "An attacker broke a bound of the resilience theorem under {} (global budget, \
             impression-site quota).",
            capacities(choice)
        )?;
    }
    verdict(choices, attackers, &mut text)?;
    Ok(text)
}

/// The attackers that can exist in reality: they know only what they can know, and no victim has to
/// let them in.
const REAL: [&str; 4] = ["random", "naive", "intermediaries", "slow"];

/// Names the most private choice that costs honest sites nothing and limits the harm that real
/// attackers do.
fn verdict(
    choices: &[Choice],
    attackers: &[&'static dyn Attacker],
    text: &mut String,
) -> std::fmt::Result {
    const COST: f64 = 1.02;
    const HARM: f64 = 1.3;
    let tried: Vec<&str> = attackers
        .iter()
        .map(|attacker| attacker.name())
        .filter(|name| REAL.contains(name))
        .collect();
    let median = |choice: &Choice, run: usize| choice.outcomes[run].error(50.0).unwrap_or(f64::NAN);
    let best = choices
        .iter()
        .map(|choice| median(choice, 0))
        .fold(f64::INFINITY, f64::min);
    if tried.is_empty() || !best.is_finite() {
        return Ok(());
    }
    let worst = |choice: &Choice| {
        let runs = (1..).zip(attackers);
        runs.filter(|(_, attacker)| REAL.contains(&attacker.name()))
            .map(|(run, _)| median(choice, run))
            .fold(0.0, f64::max)
    };
    let good = choices
        .iter()
        .filter(|choice| median(choice, 0) <= COST * best && worst(choice) <= HARM * best)
        .min_by(|one, other| {
            let global = |choice: &Choice| epsilons(&choice.policy, FilterKind::GlobalBudget);
            global(one)
                .total_cmp(&global(other))
                .then(worst(one).total_cmp(&worst(other)))
        });
    let names = tried.join(", ");
    match good {
        Some(choice) => writeln!(
            text,
            "\nOf these choices, a global budget of {} with an impression-site quota of {} is the\n\
             most private one that costs honest sites nothing without attack and, under attack\n\
             ({names}), keeps their error within {HARM} times the error without attack.",
            epsilons(&choice.policy, FilterKind::GlobalBudget),
            epsilons(&choice.policy, FilterKind::ImpressionSiteQuota),
        ),
        None => writeln!(
            text,
            "\nNo choice both costs honest sites nothing without attack and, under attack\n\
             ({names}), keeps their error within {HARM} times the error without attack.\n\
             A larger global budget is less private. A domain cap of 1 involves fewer sites.\n\
             Try both with `bigbird simulate`.",
        ),
    }
}
