//! `bigbird tune`: limits computed from logs, and the errors to expect under them.

use std::sync::Arc;

use bigbird::{FilterKind, Limit, MicroEpsilon, Policy, Profile};
use bigbird_lab::attack::{Attacker, Strength, attackers};
use bigbird_lab::describe::{Description, Estimate};
use bigbird_lab::evaluation::resilience::Resilience;
use bigbird_lab::evaluation::results::DiagnosisRecord;
use bigbird_lab::evaluation::{
    Diagnosis, Experiment, Laboratory, QuerierCounts, Remedy, RunResult,
};
use bigbird_lab::tune;
use serde_json::{Value, json};

use super::advice::{advice, larger, mostly, too_small};
use super::estimate;
use super::source::{WorkloadSource, noise_scale};
use super::sweep::change;
use crate::output::{
    Document, FormatArgs, ResultCell, ResultColumn, ResultFormat, ResultTable, grouped,
};
use crate::progress::Bar;
use crate::{CommandError, CommandResult, output};

#[derive(Debug, clap::Args)]
#[command(
    after_help = EXAMPLES,
    after_long_help = format!("{EXAMPLES}\n\n{EXPLANATION}")
)]
pub(crate) struct TuneArgs {
    /// Percentiles of devices to serve, from 0 to 100, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "85")]
    percentile: Vec<f64>,
    /// Attackers to try, or none [default: all]
    ///
    /// `bigbird simulate --help` lists their names.
    #[arg(long, alias = "attackers", value_name = "NAME", value_delimiter = ',')]
    attacker: Vec<String>,
    /// Run attribution to count which sites pay
    ///
    /// Devices and epochs in which nothing is paid are left out.
    ///
    /// Without this flag, the paper's statistics of devices are used.
    #[arg(long)]
    exact: bool,
    #[command(flatten)]
    source: WorkloadSource,
    /// Querier budget, in epsilons
    #[arg(
        long = Limit::QuerierBudget.flag(),
        alias = "querier",
        value_name = "EPSILON",
        default_value_t = 1.0,
        help_heading = "Limits"
    )]
    querier_budget: f64,
    /// r: share that intermediaries spend
    ///
    /// What intermediaries spend on one conversion site, as a share of a querier budget.
    #[arg(
        long,
        alias = "intermediaries",
        value_name = "SHARE",
        default_value_t = 0.0,
        help_heading = "Limits"
    )]
    intermediary_share: f64,
    /// Domain cap (κ): sites one user action may involve
    #[arg(
        long = Limit::DomainCap.flag(),
        alias = "cap",
        value_name = "SITES",
        default_value_t = 2,
        help_heading = "Limits"
    )]
    domain_cap: u32,
    #[command(flatten)]
    format: FormatArgs,
}

const EXAMPLES: &str = "\
Examples:
  bigbird tune logs.csv --columns device=user,time=ts --time-unit seconds --time-origin 1700000000
  bigbird tune logs.csv --percentile 50,85,99
  bigbird tune --exact --attacker random,omniscient";

const EXPLANATION: &str = "\
Tuning follows the paper's three steps:
  1. You choose the querier budget.
  2. A percentile of devices gives N conversion sites, M impression sites, and n conversion sites
     for each impression site.
  3. The closed form gives limits that serve these devices.

The workload is then replayed under these limits, under smaller impression-site quotas, and under
twice the global budget. Each is tried without attack and under every attacker. You decide.

Exit status: 0 if every bound of the resilience theorem held, 1 if one was broken, 2 for wrong
arguments and for logs that cannot be read or measured.";

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
            Some(exact) => exact.parameters(percentile, r),
            None => tune::conservative(&description, percentile, r),
        };
        let Some(estimate) = estimate.map_err(CommandError::misused)? else {
            return Err(CommandError::misused(
                "no device converts after an impression: there is nothing to tune for",
            ));
        };
        let policy =
            Policy::for_workload(args.querier_budget, &estimate.parameters, args.domain_cap)
                .map_err(CommandError::misused)?;
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
    let planned: Vec<Experiment> = choices
        .iter()
        .flat_map(|choice| args.experiments(&choice.policy, &attackers))
        .collect();
    bar.announce(estimate::runs(&workload, &planned), threads);
    let mut done = 0_u32;
    for choice in &mut choices {
        for experiment in args.experiments(&choice.policy, &attackers) {
            let name = match experiment.attacker() {
                "none" => "no",
                name => name,
            };
            bar.show(
                f64::from(done) / count as f64,
                0.0,
                &format!("{name} attacker"),
            );
            choice.outcomes.push(experiment.run(&laboratory, seed)?);
            done += 1;
        }
    }
    bar.clear();
    let text = match args.format.format() {
        ResultFormat::Json => {
            let counts = QuerierCounts::of(laboratory.queriers());
            output::json(&tuned_json(args, &choices, &attackers, counts))?
        }
        format => tell(args, &description, &laboratory, &choices, &attackers).render(format),
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

    /// The runs of a choice: without attack, and under each attacker.
    fn experiments(&self, policy: &Policy, attackers: &[&'static dyn Attacker]) -> Vec<Experiment> {
        let attacks = attackers.iter().map(|attacker| {
            let strength = Strength {
                conversion_sites: self.source.of_ten_sites(),
                ..Strength::of_paper(Some(self.domain_cap))
            };
            (*attacker, strength)
        });
        std::iter::once(None)
            .chain(attacks.map(Some))
            .map(|attack| Experiment {
                profile: Profile::BigBird,
                policy: policy.clone(),
                attack,
            })
            .collect()
    }
}

fn epsilons(policy: &Policy, kind: FilterKind) -> f64 {
    let capacity = policy.capacities().of(kind).amount();
    capacity.map_or(f64::INFINITY, MicroEpsilon::to_epsilon)
}

fn tuned_json(
    args: &TuneArgs,
    choices: &[Choice],
    attackers: &[&'static dyn Attacker],
    queriers: QuerierCounts,
) -> Value {
    let choices: Vec<Value> = choices
        .iter()
        .map(|choice| {
            let [conversion_sites, impression_sites, fan_out] = choice.estimate.numbers;
            let names = std::iter::once("none").chain(attackers.iter().map(|it| it.name()));
            let predicted: Vec<Value> = names
                .zip(&choice.outcomes)
                .map(|(attacker, outcome)| {
                    let diagnosis = Diagnosis::of(&outcome.batches);
                    let parts = diagnosis
                        .as_ref()
                        .map(|it| json!({ "noise": it.noise, "blocking": it.blocking }));
                    json!({
                        "attacker": attacker,
                        "median": outcome.error(50.0),
                        "p95": outcome.error(95.0),
                        "errorParts": parts,
                        "diagnosis": diagnosis.map(DiagnosisRecord::from),
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
    json!({ "exact": args.exact, "queriers": queriers, "choices": choices })
}

fn tell(
    args: &TuneArgs,
    description: &Description,
    laboratory: &Laboratory<'_>,
    choices: &[Choice],
    attackers: &[&'static dyn Attacker],
) -> Document {
    let mut document = Document::new();
    let counts = QuerierCounts::of(laboratory.queriers());
    document.paragraph(format!(
        "Workload: {}\n{} devices, {} impressions, {} conversions, {} queriers with {} batches",
        args.source,
        grouped(description.devices),
        grouped(description.impressions),
        grouped(description.conversions),
        counts.with_batch,
        laboratory.batches(),
    ));
    if let Some(sentence) = too_small(counts) {
        document.paragraph(sentence);
    }
    document.paragraph(format!(
        "N, M and n {}, and the limits that serve them (querier budget {}, r = {}, domain cap {}):",
        if args.exact {
            "by running attribution"
        } else {
            "by the paper's statistics of devices"
        },
        args.querier_budget,
        args.intermediary_share,
        args.domain_cap
    ));
    document.table(served(choices));
    document.paragraph(
        "The error of the median batch under these limits and others, without attack and under the \
         attacker that does the most harm. From noise, from blocking: the error without attack if \
         that were the only one.",
    );
    document.table(tried(choices, attackers));
    document.paragraph(format!(
        "Noise has {}. Attackers own {}.",
        noise_scale(args.source.options().noise),
        args.source.owned()
    ));
    document.paragraph("The median error under each attacker:");
    document.table(under_each(choices, attackers));
    if attackers.iter().any(|it| it.name() == CEILING) {
        document.paragraph(format!(
            "No attacker takes more from global budgets than `{CEILING}`, so its row is the ceiling."
        ));
    }
    for choice in choices.iter().filter(|choice| choice.is_broken()) {
        document.paragraph(format!(
            "An attacker broke a bound of the resilience theorem under {} (global budget, \
             impression-site quota).",
            choice.name()
        ));
    }
    if let Some(sentence) = explained(args, laboratory, choices) {
        document.paragraph(sentence);
    }
    if let Some(verdict) = verdict(choices, attackers) {
        document.paragraph(verdict);
    }
    document.data(data(args, choices, attackers));
    document
}

impl Choice {
    /// The two limits that choices differ in, as a heading.
    fn name(&self) -> String {
        let global = epsilons(&self.policy, FilterKind::GlobalBudget);
        let quota = epsilons(&self.policy, FilterKind::ImpressionSiteQuota);
        format!("{global}/{quota}")
    }

    fn is_broken(&self) -> bool {
        let mut outcomes = self.outcomes.iter().filter_map(|it| it.resilience.as_ref());
        outcomes.any(|resilience| !resilience.hold())
    }

    /// The percentile that the limits serve, as a cell.
    fn serves(&self) -> ResultCell {
        ResultCell::or_missing(self.percentile, |it| ResultCell::text(format!("p{it}")))
    }

    fn limit(&self, kind: FilterKind) -> ResultCell {
        ResultCell::Number(epsilons(&self.policy, kind))
    }
}

fn of_limit(limit: Limit) -> ResultColumn {
    ResultColumn::new(limit.name(), limit.key())
}

/// What devices at each percentile need.
fn served(choices: &[Choice]) -> ResultTable {
    let columns = [
        ResultColumn::named("percentile"),
        ResultColumn::new("N", "conversionSites"),
        ResultColumn::new("M", "impressionSites"),
        ResultColumn::new("n", "fanOut"),
        of_limit(Limit::GlobalBudget),
        of_limit(Limit::ImpressionSiteQuota),
        of_limit(Limit::ConversionSiteQuota),
    ];
    let mut table = ResultTable::new(columns.to_vec());
    for choice in choices.iter().filter(|choice| choice.percentile.is_some()) {
        let numbers = choice
            .estimate
            .numbers
            .map(|it| ResultCell::Count(it.into()));
        let limits = [
            FilterKind::GlobalBudget,
            FilterKind::ImpressionSiteQuota,
            FilterKind::ConversionSiteQuota,
        ];
        let mut row = vec![choice.serves()];
        row.extend(numbers);
        row.extend(limits.map(|kind| choice.limit(kind)));
        table.row(row);
    }
    table
}

/// Each choice: its error, and what it consists of.
fn tried(choices: &[Choice], attackers: &[&'static dyn Attacker]) -> ResultTable {
    let columns = [
        of_limit(Limit::GlobalBudget),
        of_limit(Limit::ImpressionSiteQuota),
        ResultColumn::named("serves"),
        ResultColumn::new("no attack", "median"),
        ResultColumn::new("from noise", "noise"),
        ResultColumn::new("from blocking", "blocking"),
        ResultColumn::new("worst attack", "worst"),
        ResultColumn::named("attacker"),
    ];
    let mut table = ResultTable::new(columns.to_vec()).keys(2);
    for choice in choices {
        let median = |run: usize| choice.outcomes.get(run)?.error(50.0);
        let diagnosis = choice.diagnosis();
        let part = |part: fn(&Diagnosis) -> f64| {
            ResultCell::or_missing(diagnosis.as_ref().map(part), ResultCell::Share)
        };
        let worst = (1..)
            .zip(attackers)
            .filter_map(|(run, attacker)| Some((median(run)?, attacker.name())))
            .max_by(|one, other| one.0.total_cmp(&other.0));
        table.row(vec![
            choice.limit(FilterKind::GlobalBudget),
            choice.limit(FilterKind::ImpressionSiteQuota),
            choice.serves(),
            ResultCell::or_missing(median(0), ResultCell::Share),
            part(|it| it.noise),
            part(|it| it.blocking),
            ResultCell::or_missing(worst, |(median, _)| ResultCell::Share(median)),
            ResultCell::or_missing(worst, |(_, name)| ResultCell::text(name)),
        ]);
    }
    table
}

/// The median error of each choice under each attacker.
fn under_each(choices: &[Choice], attackers: &[&'static dyn Attacker]) -> ResultTable {
    let mut columns = vec![ResultColumn::new(
        format!("{} / {}", Limit::GlobalBudget, Limit::ImpressionSiteQuota),
        "attacker",
    )];
    columns.extend(
        choices
            .iter()
            .map(|choice| ResultColumn::named(&choice.name())),
    );
    let mut table = ResultTable::new(columns);
    let names = std::iter::once("no attack").chain(attackers.iter().map(|it| it.name()));
    for (number, name) in names.enumerate() {
        let medians = choices.iter().map(|choice| {
            ResultCell::or_missing(choice.outcomes[number].error(50.0), ResultCell::Share)
        });
        table.row(
            std::iter::once(ResultCell::text(name))
                .chain(medians)
                .collect(),
        );
    }
    table
}

/// One row for each choice and attacker, with every number.
fn data(args: &TuneArgs, choices: &[Choice], attackers: &[&'static dyn Attacker]) -> ResultTable {
    let mut columns = vec![
        ResultColumn::named("percentile"),
        ResultColumn::named("conversionSites"),
        ResultColumn::named("impressionSites"),
        ResultColumn::named("fanOut"),
    ];
    columns.extend(Limit::ALL.map(of_limit));
    columns.extend(
        [
            "attacker",
            "median",
            "p95",
            "noise",
            "blocking",
            "dominant",
            "boundsHeld",
        ]
        .map(ResultColumn::named),
    );
    let mut table = ResultTable::new(columns);
    for choice in choices {
        let names = std::iter::once("none").chain(attackers.iter().map(|it| it.name()));
        for (attacker, outcome) in names.zip(&choice.outcomes) {
            let number = |number: Option<f64>| ResultCell::or_missing(number, ResultCell::Number);
            let diagnosis = Diagnosis::of(&outcome.batches);
            let mut row = vec![number(choice.percentile)];
            row.extend(
                choice
                    .estimate
                    .numbers
                    .map(|it| ResultCell::Count(it.into())),
            );
            row.extend(Limit::ALL.map(|limit| match limit {
                Limit::QuerierBudget => choice.limit(FilterKind::QuerierBudget),
                Limit::GlobalBudget => choice.limit(FilterKind::GlobalBudget),
                Limit::ImpressionSiteQuota => choice.limit(FilterKind::ImpressionSiteQuota),
                Limit::ConversionSiteQuota => choice.limit(FilterKind::ConversionSiteQuota),
                _ => ResultCell::Count(args.domain_cap.into()),
            }));
            let held = outcome.resilience.as_ref().map(Resilience::hold);
            row.extend([
                ResultCell::text(attacker),
                number(outcome.error(50.0)),
                number(outcome.error(95.0)),
                number(diagnosis.as_ref().map(|it| it.noise)),
                number(diagnosis.as_ref().map(|it| it.blocking)),
                ResultCell::or_missing(diagnosis.as_ref(), |it| ResultCell::text(mostly(it))),
                ResultCell::or_missing(held, |held| ResultCell::text(held.to_string())),
            ]);
            table.row(row);
        }
    }
    table
}

impl Choice {
    /// The explanation of the error without attack.
    fn diagnosis(&self) -> Option<Diagnosis> {
        Diagnosis::of(&self.outcomes.first()?.batches)
    }
}

/// A sentence about the error under the first choice, without attack.
fn explained(args: &TuneArgs, laboratory: &Laboratory<'_>, choices: &[Choice]) -> Option<String> {
    let choice = choices.first()?;
    let diagnosis = choice.diagnosis()?;
    let buckets = laboratory.workload().buckets.into();
    let remedies = diagnosis.remedies(buckets, args.source.lookback_epochs());
    let sentence = advice(&diagnosis, &remedies, |remedy| match remedy {
        Remedy::LargerLimit(Limit::QuerierBudget) => Some(larger(Limit::QuerierBudget)),
        Remedy::LargerLimit(Limit::DomainCap) => Some(larger(Limit::DomainCap)),
        Remedy::LargerLimit(limit) => Some(format!(
            "a larger {limit}, which follows from a larger --percentile"
        )),
        Remedy::LargerEpsilon => None,
        remedy => change(remedy),
    });
    let limits = [FilterKind::GlobalBudget, FilterKind::ImpressionSiteQuota];
    let [global, quota] = limits.map(|kind| epsilons(&choice.policy, kind));
    Some(format!(
        "Without attack, under a global budget of {global} and an impression-site quota of {quota}: \
         {sentence}"
    ))
}

/// The attacker that takes the most from global budgets. No real one knows what it knows.
const CEILING: &str = "strongest";

/// The attackers that can exist in reality: they know only what they can know, and no victim has to
/// let them in.
const REAL: [&str; 4] = ["random", "naive", "intermediaries", "slow"];

/// Names the most private choice that costs honest sites nothing and limits the harm that real
/// attackers do.
fn verdict(choices: &[Choice], attackers: &[&'static dyn Attacker]) -> Option<String> {
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
        return None;
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
    Some(match good {
        Some(choice) => format!(
            "Of these choices, a global budget of {} with an impression-site quota of {} is the \
             most private one that costs honest sites nothing without attack and, under attack \
             ({names}), keeps their error within {HARM} times the error without attack.",
            epsilons(&choice.policy, FilterKind::GlobalBudget),
            epsilons(&choice.policy, FilterKind::ImpressionSiteQuota),
        ),
        None => format!(
            "No choice both costs honest sites nothing without attack and, under attack ({names}), \
             keeps their error within {HARM} times the error without attack. A larger global \
             budget is less private. A domain cap of 1 involves fewer sites. Try both with \
             `bigbird simulate`.",
        ),
    })
}
