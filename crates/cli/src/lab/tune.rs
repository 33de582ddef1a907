//! `bigbird tune`: from logs to capacities, and what to expect of them.

use std::fmt::Write as _;
use std::sync::Arc;

use bigbird::{FilterKind, Policy, Profile};
use bigbird_lab::attack::{Attacker, Strength, attackers};
use bigbird_lab::describe::{Description, Estimate};
use bigbird_lab::experiment::Experiment;
use bigbird_lab::report::grouped;
use bigbird_lab::resilience::Resilience;
use bigbird_lab::simulate::{Laboratory, Outcome};
use bigbird_lab::tune;
use serde_json::{Value, json};

use super::source::Source;
use crate::progress::Bar;
use crate::{Failed, Finished, output};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The paper's three steps: the querier budget is given; what devices do at a percentile gives N conversion
sites, M impression sites and n conversion sites for each impression site; the closed form gives
capacities that serve them. Then the workload is replayed under these capacities, and under smaller
impression-site quotas, without attack and under every attacker, so that you can decide.

  bigbird tune logs.parquet --columns device=user,time=ts --time-unit seconds --time-origin 1700000000
  bigbird tune logs.csv --percentile 50,85,99
  bigbird tune --exact --attackers random,omniscient")]
pub(crate) struct Args {
    #[command(flatten)]
    source: Source,
    /// The percentage of devices to serve; several for a table
    #[arg(long, value_delimiter = ',', default_value = "85")]
    percentile: Vec<f64>,
    /// Count who really pays, by running attribution, instead of cheap statistics that are never too
    /// small
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
    /// Attackers to try [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    attackers: Vec<String>,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

/// Capacities to choose from.
struct Choice {
    /// The percentile they serve, or none for a smaller quota than that.
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
        let policy = tune::capacities(args.querier, &estimate, args.cap)?;
        choices.push(Choice {
            percentile: Some(percentile),
            estimate,
            policy: policy.clone(),
            outcomes: Vec::new(),
        });
        for policy in smaller_quotas(&policy)? {
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
    Ok((text, true))
}

/// The same with half the impression-site quota, and half of that, as long as it serves one querier.
fn smaller_quotas(policy: &Policy) -> Result<Vec<Policy>, Failed> {
    let mut smaller = Vec::new();
    let quota = |policy: &Policy| policy.capacities().impression_site.amount();
    let least = policy.capacities().conversion_site.amount();
    let Some((mut quota, least)) = quota(policy).zip(least) else {
        return Ok(smaller);
    };
    while quota.get() / 2 >= least.get() {
        quota = bigbird::MicroEpsilon::new(quota.get() / 2);
        let builder = policy.to_builder().impression_site(quota.to_epsilon());
        smaller.push(builder.build()?);
    }
    Ok(smaller)
}

impl Args {
    fn attackers(&self) -> Result<Vec<&'static dyn Attacker>, Failed> {
        if self.attackers.is_empty() {
            return Ok(attackers::ALL.to_vec());
        }
        self.attackers
            .iter()
            .map(|name| {
                attackers::by_name(name).ok_or_else(|| {
                    let names = attackers::ALL.map(Attacker::name).join(", ");
                    Failed::because(format!(
                        "--attackers: there is no attacker `{name}`; there are {names}"
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
    capacity.map_or(f64::INFINITY, bigbird::MicroEpsilon::to_epsilon)
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
            ", by statistics that are never too small"
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
    let mut header = vec![
        "global budget, impression-site quota".to_owned(),
        "no attack".to_owned(),
    ];
    header.extend(
        attackers
            .iter()
            .map(|attacker| attacker.name().replace('-', " ")),
    );
    let rows = choices.iter().map(|choice| {
        let mut row = vec![format!(
            "{}, {}{}",
            epsilons(&choice.policy, FilterKind::Global),
            epsilons(&choice.policy, FilterKind::ImpressionSite),
            match choice.percentile {
                Some(percentile) => format!("  (p{percentile})"),
                None => String::new(),
            }
        )];
        row.extend(choice.outcomes.iter().map(|outcome| {
            let median = outcome.error(50.0);
            median.map_or("–".to_owned(), |it| format!("{:.1}%", 100.0 * it))
        }));
        row
    });
    writeln!(text, "{}\n", output::table(header, rows))?;
    writeln!(
        text,
        "A smaller global budget protects people better. A smaller impression-site quota leaves more of\n\
         it to honest sites under attack, until it blocks them without one. `bigbird simulate` tries any\n\
         other capacities."
    )?;
    Ok(text)
}
