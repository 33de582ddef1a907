//! The results of a sweep: as a table, as CSV, and as a figure.

use std::fmt::Write as _;
use std::sync::Arc;

use bigbird::{FilterKind, Limit};
use bigbird_chart::{Chart, Series, Stroke};
use bigbird_lab::evaluation::Experiment;
use bigbird_lab::evaluation::RunResult;
use bigbird_lab::evaluation::resilience::{Bound, Resilience};
use bigbird_lab::evaluation::results::RunRecord;
use bigbird_lab::text::grouped;
use bigbird_lab::workload::Workload;

use super::source::{WorkloadSource, noise_scale};
use crate::output;

/// One run of a sweep.
pub(crate) struct Run {
    pub(crate) experiment: Experiment,
    pub(crate) seed: u64,
    pub(crate) threads: usize,
    pub(crate) outcome: Arc<RunResult>,
}

impl Run {
    pub(crate) fn record(&self, workload: &Workload) -> RunRecord {
        RunRecord::new(
            "simulate",
            &self.experiment,
            self.seed,
            &self.outcome,
            workload,
        )
    }

    /// The parameters that can vary. A parameter that a run does not have has no value.
    fn parameters(&self) -> Vec<Parameter> {
        let experiment = &self.experiment;
        let limit = |kind: FilterKind| {
            let capacity = experiment.capacity(kind).map(|it| it.to_string());
            Parameter::of(kind.limit(), capacity)
        };
        let strength = experiment.strength();
        vec![
            Parameter::new("profile", "profile", Some(experiment.profile.to_string())),
            Parameter::new(
                "attacker",
                "attacker",
                Some(experiment.attacker().to_owned()),
            ),
            limit(FilterKind::QuerierBudget),
            limit(FilterKind::GlobalBudget),
            limit(FilterKind::ImpressionSiteQuota),
            limit(FilterKind::ConversionSiteQuota),
            Parameter::of(
                Limit::DomainCap,
                experiment.domain_cap().map(|it| it.to_string()),
            ),
            Parameter::new(
                "site charging",
                "siteCharging",
                Some(experiment.policy.site_charging().to_string()),
            ),
            Parameter::new(SYBILS, "sybils", strength.map(|it| it.sybils.to_string())),
            Parameter::new(
                FIRST_RANK,
                "firstRank",
                strength.map(|it| it.first_rank.to_string()),
            ),
            Parameter::new("seed", "seed", Some(self.seed.to_string())),
            Parameter::new("threads", "threads", Some(self.threads.to_string())),
        ]
    }
}

/// A parameter that can vary between runs.
#[derive(Clone, PartialEq)]
struct Parameter {
    /// The name in tables and figures.
    name: &'static str,
    /// The name of its column in a CSV file.
    key: &'static str,
    /// The value, or none if a run does not have the parameter.
    value: Option<String>,
}

impl Parameter {
    const fn new(name: &'static str, key: &'static str, value: Option<String>) -> Self {
        Self { name, key, value }
    }

    const fn of(limit: Limit, value: Option<String>) -> Self {
        Self::new(limit.name(), limit.key(), value)
    }

    fn shown(&self) -> String {
        self.value.clone().unwrap_or_else(none)
    }
}

/// The parameters that only attackers have.
const SYBILS: &str = "Sybils";
const FIRST_RANK: &str = "first rank";

/// Every run of a sweep.
pub(crate) struct Sweep<'a> {
    runs: &'a [Run],
    parameters: Vec<Vec<Parameter>>,
}

/// The number of parameters that are always shown: the profile and the attacker.
const ALWAYS: usize = 2;

impl<'a> Sweep<'a> {
    pub(crate) fn new(runs: &'a [Run]) -> Self {
        Self {
            parameters: runs.iter().map(Run::parameters).collect(),
            runs,
        }
    }

    /// True if a parameter differs between runs. For a parameter of attackers, runs without an
    /// attack do not count. For a limit, a run without it counts as different.
    fn varies(&self, column: usize) -> bool {
        let mut values = self
            .parameters
            .iter()
            .map(|run| &run[column])
            .filter(|it| it.value.is_some() || ![SYBILS, FIRST_RANK].contains(&it.name));
        let first = values.next();
        values.any(|value| Some(value) != first)
    }

    fn columns(&self) -> usize {
        self.parameters.first().map_or(0, Vec::len)
    }

    pub(crate) fn tell(
        &self,
        source: &WorkloadSource,
        workload: &Workload,
    ) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        let batches = self.runs.first().map_or(0, |run| run.outcome.batches.len());
        writeln!(
            text,
            "Workload: {source}\n{} devices, {} events, {batches} batches\n",
            grouped(workload.devices() as u64),
            grouped(workload.len() as u64),
        )?;
        // A parameter that is the same in all runs needs no column.
        let same: Vec<String> = (ALWAYS..self.columns())
            .filter(|column| !self.varies(*column))
            .filter_map(|column| {
                let mut runs = self.parameters.iter().map(|run| &run[column]);
                let Parameter { name, value, .. } = runs.find(|it| it.value.is_some())?;
                (*name != "threads").then_some(())?;
                Some(format!("{name} {}", value.as_ref()?))
            })
            .collect();
        if !same.is_empty() {
            // Four to a line, so that no line is wider than 100 columns.
            let lines: Vec<String> = same.chunks(4).map(|line| line.join(", ")).collect();
            writeln!(text, "In all runs:\n  {}\n", lines.join(",\n  "))?;
        }
        let shown: Vec<usize> = (0..self.columns())
            .filter(|column| *column < ALWAYS || self.varies(*column))
            .collect();
        let causes: Vec<Limit> = Limit::ALL
            .into_iter()
            .filter(|cause| {
                *cause == Limit::QuerierBudget
                    || self
                        .runs
                        .iter()
                        .any(|run| run.outcome.blocked()[*cause as usize] > 0)
            })
            .collect();
        let attacked = self.runs.iter().any(|run| run.outcome.resilience.is_some());
        let mut header: Vec<String> = shown
            .iter()
            .map(|column| in_two_lines(self.parameters[0][*column].name))
            .collect();
        header.extend(["median", "p95"].map(str::to_owned));
        header.extend(
            causes
                .iter()
                .map(|cause| in_two_lines(&format!("by {cause}"))),
        );
        if attacked {
            header.extend(["taken", "bounds"].map(str::to_owned));
        }
        let rows = self
            .runs
            .iter()
            .zip(&self.parameters)
            .map(|(run, parameters)| {
                let outcome = &run.outcome;
                let mut row: Vec<String> = shown
                    .iter()
                    .map(|column| parameters[*column].shown())
                    .collect();
                row.extend([outcome.error(50.0), outcome.error(95.0)].map(percent));
                row.extend(
                    causes
                        .iter()
                        .map(|cause| percent(outcome.blocked_share(*cause))),
                );
                if attacked {
                    let took = outcome
                        .spent
                        .mean()
                        .filter(|_| outcome.resilience.is_some());
                    row.push(took.map_or_else(none, |(_, took)| format!("{took:.2}")));
                    let resilience = outcome.resilience.as_ref();
                    row.push(match resilience {
                        Some(it) if !it.hold() => "BROKEN".to_owned(),
                        Some(it) if it.bounds.by_quotas.is_some() => "hold".to_owned(),
                        _ => none(),
                    });
                }
                row
            });
        writeln!(text, "{}\n", output::table(header, rows))?;
        writeln!(
            text,
            "Limits are in epsilons. Median and p95 are errors of batches. The columns \"by …\" \
             are the\nshares of reports that were blocked, by first cause. Noise has {}.",
            noise_scale(source.options().noise)
        )?;
        if attacked {
            writeln!(
                text,
                "Taken: the mean epsilon that attackers consumed of each global budget that was \
                 used.\n\
                 Bounds: whether the resilience theorem held on every device and batch. The \
                 theorem\nneeds quotas.\n\
                 By default, attackers own {}.",
                source.owned()
            )?;
            let mut broken: Vec<Bound> = Vec::new();
            let resilience = self
                .runs
                .iter()
                .filter_map(|run| run.outcome.resilience.as_ref());
            for bound in resilience.flat_map(Resilience::broken) {
                if !broken.contains(&bound) {
                    broken.push(bound);
                    writeln!(text, "BROKEN: {bound}.")?;
                }
            }
        }
        Ok(text)
    }

    /// All parameters and results as CSV. Errors and shares are fractions.
    pub(crate) fn to_csv(&self) -> String {
        let mut csv = String::new();
        let names = self.parameters.first().into_iter().flatten();
        let mut header: Vec<String> = names.map(|it| it.key.to_owned()).collect();
        header.extend(["median", "p95", "batches"].map(str::to_owned));
        header.extend(Limit::ALL.map(|cause| format!("blocked:{}", cause.key())));
        header.extend(
            [
                "globalBudgetConsumed:honest",
                "globalBudgetConsumed:attacker",
                "boundsHeld",
            ]
            .map(str::to_owned),
        );
        csv.push_str(&header.join(","));
        csv.push('\n');
        for (run, parameters) in self.runs.iter().zip(&self.parameters) {
            let outcome = &run.outcome;
            let number = |number: Option<f64>| number.map(|it| it.to_string()).unwrap_or_default();
            let mut row: Vec<String> = parameters
                .iter()
                .map(|it| it.value.clone().unwrap_or_default())
                .collect();
            row.extend([outcome.error(50.0), outcome.error(95.0)].map(number));
            row.push(outcome.batches.len().to_string());
            row.extend(Limit::ALL.map(|cause| number(outcome.blocked_share(cause))));
            let (honest, attacker) = outcome.spent.mean().unzip();
            row.extend([honest, attacker].map(number));
            let held = outcome.resilience.as_ref().map(Resilience::hold);
            row.push(held.map(|it| it.to_string()).unwrap_or_default());
            csv.push_str(&row.join(","));
            csv.push('\n');
        }
        csv
    }

    /// A figure over the parameter with the most values. Each combination of the others is a line.
    pub(crate) fn to_figure(&self) -> String {
        let values = |column: usize| -> Vec<String> {
            let mut values: Vec<String> = Vec::new();
            for run in &self.parameters {
                let value = run[column].shown();
                if !values.contains(&value) {
                    values.push(value);
                }
            }
            values
        };
        let most = (0..self.columns())
            .rev()
            .max_by_key(|column| values(*column).len())
            .unwrap_or(0);
        let names = values(most);
        let numbers: Option<Vec<f64>> = names.iter().map(|name| name.parse().ok()).collect();
        let ticks = match numbers {
            Some(numbers) => Chart::numbers(numbers),
            None => Chart::names(names.clone()),
        };
        let place = |parameter: &Parameter| {
            let value = parameter.shown();
            let at = names.iter().position(|name| *name == value).unwrap_or(0);
            ticks[at].0
        };
        let mut series: Vec<Series> = Vec::new();
        for (run, parameters) in self.runs.iter().zip(&self.parameters) {
            let others: Vec<String> = (0..self.columns())
                .filter(|column| *column != most && (*column < ALWAYS || self.varies(*column)))
                .map(|column| {
                    let parameter = &parameters[column];
                    match (parameter.name, parameter.shown()) {
                        ("attacker", name) if name == "none" => "no attack".to_owned(),
                        ("profile" | "attacker", name) => name,
                        (name, value) => format!("{name} {value}"),
                    }
                })
                .collect();
            let name = others.join(", ");
            let (Some(median), Some(p95)) = (run.outcome.error(50.0), run.outcome.error(95.0))
            else {
                continue;
            };
            let x = place(&parameters[most]);
            for (name, stroke, y) in [
                (format!("{name}, median"), Stroke::Solid, median),
                (format!("{name}, p95"), Stroke::Dashed, p95),
            ] {
                let point = (x, 100.0 * y);
                match series.iter_mut().find(|it| it.name == name) {
                    Some(line) => line.points.push(point),
                    None => {
                        #[expect(clippy::cast_possible_truncation, reason = "below six")]
                        let colour = (series.len() / 2 % 6) as u8;
                        series.push(Series {
                            name,
                            colour,
                            stroke,
                            points: vec![point],
                        });
                    }
                }
            }
        }
        for line in &mut series {
            line.points.sort_by(|one, next| one.0.total_cmp(&next.0));
        }
        let mut ticks = ticks;
        ticks.sort_by(|one, next| one.0.total_cmp(&next.0));
        let name = self.parameters.first().map_or("", |run| run[most].name);
        let chart = Chart {
            unit: "%",
            title: format!("Error over {name}"),
            x_label: name.to_owned(),
            y_label: "error of a batch (RMSRE), %".to_owned(),
            ticks,
            series,
            ..Chart::default()
        };
        chart.to_file()
    }
}

fn none() -> String {
    "–".to_owned()
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(none, |share| format!("{:.1}%", 100.0 * share))
}

/// A heading on two lines, which keeps its column narrow.
fn in_two_lines(name: &str) -> String {
    let middle = name.len() / 2;
    let breaks = name.match_indices([' ', '-']);
    match breaks.min_by_key(|(at, _)| at.abs_diff(middle)) {
        Some((at, "-")) => format!("{}-\n{}", &name[..at], &name[at + 1..]),
        Some((at, _)) => format!("{}\n{}", &name[..at], &name[at + 1..]),
        None => name.to_owned(),
    }
}
