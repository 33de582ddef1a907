//! `bigbird tune`: from logs to capacities, and what to expect of them.

use std::fmt::Write as _;
use std::sync::Arc;

use bigbird::{FilterKind, MicroEpsilon, Policy, Profile};
use bigbird_lab::attack::{Attacker, Strength, attackers};
use bigbird_lab::describe::{Description, Estimate};
use bigbird_lab::experiment::Experiment;
use bigbird_lab::resilience::Resilience;
use bigbird_lab::simulate::{Laboratory, Outcome};
use bigbird_lab::text::grouped;
use bigbird_lab::tune;
use serde_json::{Value, json};

use super::source::Source;
use crate::progress::Bar;
use crate::{Failed, Finished, output};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The paper's three steps: the querier budget is given; what devices do at a percentile gives N conversion
sites, M impression sites and n conversion sites for each impression site; the closed form gives
capacities that serve them. Then the workload is replayed under these capacities, under smaller
impression-site quotas and under twice the global budget, without attack and under every attacker, so
that you can decide.

  bigbird tune logs.parquet --columns device=user,time=ts --time-unit seconds --time-origin 1700000000
  bigbird tune logs.csv --percentile 50,85,99
  bigbird tune --exact --attacker random,omniscient")]
pub(crate) struct Args {
    #[command(flatten)]
    source: Source,
    /// The percentage of devices to serve; several for a table
    #[arg(long, value_delimiter = ',', default_value = "85")]
    percentile: Vec<f64>,
    /// Count which sites really pay, on the devices and in the epochs where anything is paid, by running
    /// attribution, instead of the paper's statistics of devices
    #[arg(long)]
    exact: bool,
    /// The querier budget, in epsilons
    #[arg(long, value_name = "EPSILON", default_value_t = 1.0)]
    querier: f64,
    /// r: the share of a querier budget that intermediaries spend on one conversion site
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    intermediaries: f64,
    /// The domain cap, in sites of a user action
    #[arg(long, value_name = "SITES", default_value_t = 2)]
    cap: u32,
    /// Attackers to try, or none [default: all]
    #[arg(long, alias = "attackers", value_name = "NAME", value_delimiter = ',')]
    attacker: Vec<String>,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

/// Capacities to choose from.
struct Choice {
    /// The percentile they serve, or none for others around it.
    percentile: Option<f64>,
    estimate: Estimate,
    policy: Policy,
    /// Without attack, and under each attacker.
    outcomes: Vec<Arc<Outcome>>,
}

pub(crate) fn run(args: &Args) -> Finished {
    let (seed, threads) = args.source.one()?;
    let attackers = args.attackers()?;
    for percentile in &args.percentile {
        if !(0.0..=100.0).contains(percentile) {
            let why = format!("--percentile must be in [0, 100], got {percentile}");
            return Err(Failed::because(why));
        }
    }
    if !(args.querier > 0.0 && args.querier.is_finite()) {
        let why = format!("--querier must be a number above 0, got {}", args.querier);
        return Err(Failed::because(why));
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
        let r = args.intermediaries;
        let estimate = match &exact {
            Some(exact) => exact.parameters(percentile, r)?,
            None => tune::conservative(&description, percentile, r)?,
        };
        let Some(estimate) = estimate else {
            return Err(Failed::because(
                "no device converts after an impression: there is nothing to tune for",
            ));
        };
        let policy = Policy::from_workload(args.querier, &estimate.parameters, args.cap)?;
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

/// Capacities around those of the closed form: half the impression-site quota, and half of that, as
/// long as it serves one querier; and all of these with twice the global budget.
fn others(policy: &Policy) -> Result<Vec<Policy>, Failed> {
    let capacities = policy.capacities();
    let amounts = [
        capacities.global,
        capacities.impression_site,
        capacities.conversion_site,
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
                .global(global.to_epsilon())
                .impression_site(quota.to_epsilon())
                .build()?;
            if other != *policy {
                others.push(other);
            }
        }
    }
    Ok(others)
}

impl Args {
    fn attackers(&self) -> Result<Vec<&'static dyn Attacker>, Failed> {
        if self.attacker.is_empty() {
            return Ok(attackers::ALL.to_vec());
        }
        self.attacker
            .iter()
            .filter(|name| *name != "none")
            .map(|name| {
                attackers::by_name(name).ok_or_else(|| {
                    let names = attackers::ALL.map(Attacker::name).join(", ");
                    Failed::because(format!(
                        "--attacker: there is no attacker `{name}`; there are none, {names}"
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
    ) -> Result<Arc<Outcome>, Failed> {
        let experiment = Experiment {
            profile: Profile::BigBird,
            policy: policy.clone(),
            attack: attacker.map(|attacker| {
                let strength = Strength {
                    conversion_sites: self.source.of_ten_sites(),
                    ..Strength::of_paper(Some(self.cap))
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

fn tuned_json(args: &Args, choices: &[Choice], attackers: &[&'static dyn Attacker]) -> Value {
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
                "querier": epsilons(&choice.policy, FilterKind::Querier),
                "global": epsilons(&choice.policy, FilterKind::Global),
                "impressionSite": epsilons(&choice.policy, FilterKind::ImpressionSite),
                "conversionSite": epsilons(&choice.policy, FilterKind::ConversionSite),
                "cap": args.cap,
                "predicted": predicted,
            })
        })
        .collect();
    json!({ "exact": args.exact, "choices": choices })
}

fn tell(
    args: &Args,
    description: &Description,
    choices: &[Choice],
    attackers: &[&'static dyn Attacker],
) -> Result<String, Failed> {
    let mut text = String::new();
    writeln!(
        text,
        "{}: {} devices, {} impressions, {} conversions.\n",
        args.source,
        grouped(description.devices),
        grouped(description.impressions),
        grouped(description.conversions)
    )?;
    writeln!(
        text,
        "What devices do{}, and capacities that serve it (querier budget {}, r = {}, cap {}):",
        if args.exact {
            ", by running attribution"
        } else {
            ", by the paper's statistics of devices"
        },
        args.querier,
        args.intermediaries,
        args.cap
    )?;
    let header = [
        "percentile",
        "N",
        "M",
        "n",
        "global budget",
        "impression-site quota",
        "conversion-site quota",
    ];
    let served = choices.iter().filter_map(|choice| {
        let percentile = choice.percentile?;
        let mut row = vec![format!("p{percentile}")];
        row.extend(choice.estimate.numbers.map(|number| number.to_string()));
        row.extend(
            [
                FilterKind::Global,
                FilterKind::ImpressionSite,
                FilterKind::ConversionSite,
            ]
            .map(|kind| epsilons(&choice.policy, kind).to_string()),
        );
        Some(row)
    });
    let header = header.map(str::to_owned).to_vec();
    writeln!(text, "{}\n", output::table(header, served))?;
    writeln!(
        text,
        "The median error of honest batches to expect, without attack and under each attacker:"
    )?;
    let capacities = |choice: &Choice| {
        let global = epsilons(&choice.policy, FilterKind::Global);
        let quota = epsilons(&choice.policy, FilterKind::ImpressionSite);
        let percentile = choice.percentile.map(|it| format!(" (p{it})"));
        format!("{global}, {quota}{}", percentile.unwrap_or_default())
    };
    let mut header = vec!["global budget, impression-site quota".to_owned()];
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
            "Under {} an attacker broke the bounds of the theorem.",
            capacities(choice)
        )?;
    }
    verdict(choices, attackers, &mut text)?;
    Ok(text)
}

/// Attackers that a real one can be: none of them knows more than it can, or was let in by its victim.
const REAL: [&str; 4] = ["random", "naive", "intermediaries", "slow"];

/// Names the most private choice that costs honest sites nothing and holds real attackers.
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
            let global = |choice: &Choice| epsilons(&choice.policy, FilterKind::Global);
            global(one)
                .total_cmp(&global(other))
                .then(worst(one).total_cmp(&worst(other)))
        });
    let names = tried.join(", ");
    match good {
        Some(choice) => writeln!(
            text,
            "\nOf these, a global budget of {} with an impression-site quota of {} is the most private that\n\
             costs nothing without attack and holds ({names}) within {HARM} times that error.",
            epsilons(&choice.policy, FilterKind::Global),
            epsilons(&choice.policy, FilterKind::ImpressionSite),
        ),
        None => writeln!(
            text,
            "\nNone of these costs nothing without attack and holds ({names}) within {HARM} times that\n\
             error. A larger global budget is less private; a cap of 1 involves fewer sites: `bigbird\n\
             simulate` tries both.",
        ),
    }
}
