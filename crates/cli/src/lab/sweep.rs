//! What a sweep gave: as a table, as CSV, as a figure.

use std::fmt::Write as _;
use std::sync::Arc;

use bigbird::FilterKind;
use bigbird_lab::chart::{Chart, Series, Stroke};
use bigbird_lab::experiment::Experiment;
use bigbird_lab::replay::Blocked;
use bigbird_lab::resilience::Resilience;
use bigbird_lab::simulate::Outcome;
use bigbird_lab::text::grouped;
use bigbird_lab::workload::Workload;
use serde_json::{Value, json};

use super::source::Source;
use crate::output;

/// One run.
pub(crate) struct Run {
    pub(crate) experiment: Experiment,
    pub(crate) seed: u64,
    pub(crate) threads: usize,
    pub(crate) outcome: Arc<Outcome>,
}

impl Run {
    pub(crate) fn to_json(&self, workload: &Workload) -> Value {
        let mut json = self.experiment.to_json("simulate", &self.outcome, workload);
        json["seed"] = json!(self.seed);
        json
    }

    /// What can be varied, by name; none where a run has no such thing.
    fn parameters(&self) -> Vec<(&'static str, Option<String>)> {
        let experiment = &self.experiment;
        let limit = |kind| experiment.capacity(kind).map(|it| it.to_string());
        let strength = experiment.strength();
        vec![
            ("profile", Some(experiment.profile.to_string())),
            ("attacker", Some(experiment.attacker().to_owned())),
            ("querier", limit(FilterKind::Querier)),
            ("global", limit(FilterKind::Global)),
            ("imp. quota", limit(FilterKind::ImpressionSite)),
            ("conv. quota", limit(FilterKind::ConversionSite)),
            ("cap", experiment.cap().map(|it| it.to_string())),
            (
                "site charging",
                Some(experiment.policy.site_charging().to_string()),
            ),
            ("Sybils", strength.map(|it| it.sybils.to_string())),
            ("first rank", strength.map(|it| it.first_rank.to_string())),
            ("seed", Some(self.seed.to_string())),
            ("threads", Some(self.threads.to_string())),
        ]
    }
}

/// Every run of a sweep.
pub(crate) struct Sweep<'a> {
    runs: &'a [Run],
    parameters: Vec<Vec<(&'static str, Option<String>)>>,
}

/// Profile and attacker are always told.
const ALWAYS: usize = 2;

impl<'a> Sweep<'a> {
    pub(crate) fn new(runs: &'a [Run]) -> Self {
        Self {
            parameters: runs.iter().map(Run::parameters).collect(),
            runs,
        }
    }

    /// Whether a parameter differs between runs. One of the attacker's is not missed in a run without
    /// attack; a limit is.
    fn varies(&self, column: usize) -> bool {
        let mut values = self
            .parameters
            .iter()
            .map(|run| &run[column])
            .filter(|(name, value)| value.is_some() || !["Sybils", "first rank"].contains(name));
        let first = values.next();
        values.any(|value| Some(value) != first)
    }

    fn columns(&self) -> usize {
        self.parameters.first().map_or(0, Vec::len)
    }

    pub(crate) fn tell(
        &self,
        source: &Source,
        workload: &Workload,
    ) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        let batches = self.runs.first().map_or(0, |run| run.outcome.batches.len());
        writeln!(
            text,
            "{} devices and {} events of {source}; {batches} batches.\n",
            grouped(workload.devices() as u64),
            grouped(workload.len() as u64),
        )?;
        // What is the same in all runs needs no column.
        let same: Vec<String> = (ALWAYS..self.columns())
            .filter(|column| !self.varies(*column))
            .filter_map(|column| {
                let mut runs = self.parameters.iter().map(|run| &run[column]);
                let (name, value) = runs.find(|(_, value)| value.is_some())?;
                (*name != "threads").then_some(())?;
                Some(format!("{name} {}", value.as_ref()?))
            })
            .collect();
        if !same.is_empty() {
            writeln!(text, "In all runs: {}.\n", same.join(", "))?;
        }
        let shown: Vec<usize> = (0..self.columns())
            .filter(|column| *column < ALWAYS || self.varies(*column))
            .collect();
        let causes: Vec<Blocked> = Blocked::ALL
            .into_iter()
            .filter(|cause| {
                *cause == Blocked::Querier
                    || self
                        .runs
                        .iter()
                        .any(|run| run.outcome.blocked()[*cause as usize] > 0)
            })
            .collect();
        let attacked = self.runs.iter().any(|run| run.outcome.resilience.is_some());
        let mut header: Vec<String> = shown
            .iter()
            .map(|column| self.parameters[0][*column].0.to_owned())
            .collect();
        header.extend(["median", "p95"].map(str::to_owned));
        header.extend(
            causes
                .iter()
                .map(|cause| format!("by {}", short_name(*cause))),
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
                    .map(|column| parameters[*column].1.clone().unwrap_or_else(none))
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
            "Limits in epsilons; the error of batches; the share of reports blocked, by first cause."
        )?;
        if attacked {
            writeln!(
                text,
                "Taken: what attackers took, on average, of the global budgets that anything was taken \
                 from.\nBounds: whether the resilience theorem held on every device and batch; without \
                 quotas it says nothing.\nUnless told otherwise, attackers own {}.",
                source.owned()
            )?;
        }
        Ok(text)
    }

    /// Every parameter and result; errors and shares are fractions.
    pub(crate) fn to_csv(&self) -> String {
        let mut csv = String::new();
        let names = self.parameters.first().into_iter().flatten();
        let mut header: Vec<String> = names.map(|(name, _)| (*name).to_owned()).collect();
        header.extend(["median", "p95", "batches"].map(str::to_owned));
        header.extend(Blocked::ALL.map(|cause| format!("blocked:{}", cause.name())));
        header.extend(
            [
                "globalConsumed:honest",
                "globalConsumed:attacker",
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
                .map(|(_, value)| value.clone().unwrap_or_default())
                .collect();
            row.extend([outcome.error(50.0), outcome.error(95.0)].map(number));
            row.push(outcome.batches.len().to_string());
            row.extend(Blocked::ALL.map(|cause| number(outcome.blocked_share(cause))));
            let (honest, attacker) = outcome.spent.mean().unzip();
            row.extend([honest, attacker].map(number));
            let held = outcome.resilience.as_ref().map(Resilience::hold);
            row.push(held.map(|it| it.to_string()).unwrap_or_default());
            csv.push_str(&row.join(","));
            csv.push('\n');
        }
        csv
    }

    /// A line for each combination of the other parameters, over the one with the most values.
    pub(crate) fn to_figure(&self) -> String {
        let values = |column: usize| -> Vec<String> {
            let mut values: Vec<String> = Vec::new();
            for run in &self.parameters {
                let value = run[column].1.clone().unwrap_or_else(none);
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
        let place = |value: &Option<String>| {
            let value = value.clone().unwrap_or_else(none);
            let at = names.iter().position(|name| *name == value).unwrap_or(0);
            ticks[at].0
        };
        let mut series: Vec<Series> = Vec::new();
        for (run, parameters) in self.runs.iter().zip(&self.parameters) {
            let others: Vec<String> = (0..self.columns())
                .filter(|column| *column != most && (*column < ALWAYS || self.varies(*column)))
                .map(|column| match &parameters[column] {
                    ("profile", value) => value.clone().unwrap_or_else(none),
                    ("attacker", Some(name)) if name == "none" => "no attack".to_owned(),
                    ("attacker", value) => value.clone().unwrap_or_else(none),
                    (name, value) => {
                        format!("{name} {}", value.clone().unwrap_or_else(none))
                    }
                })
                .collect();
            let name = others.join(", ");
            let (Some(median), Some(p95)) = (run.outcome.error(50.0), run.outcome.error(95.0))
            else {
                continue;
            };
            let x = place(&parameters[most].1);
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
        let name = self.parameters.first().map_or("", |run| run[most].0);
        let chart = Chart {
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

fn short_name(cause: Blocked) -> &'static str {
    match cause {
        Blocked::DomainCap => "cap",
        Blocked::Querier => "querier",
        Blocked::Global => "global",
        Blocked::ImpressionSite => "imp. site",
        Blocked::ConversionSite => "conv. site",
    }
}
