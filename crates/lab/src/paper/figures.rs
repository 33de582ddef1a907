//! The paper's figures, as charts and as CSV.

use std::fmt::Write as _;

use crate::paper::reproduce::{FinishedRun, Results, Summary};
use crate::paper::suites::{
    CAPS, EvaluatedSystem, QUOTAS, RANKS_OF_ARTIFACT, RANKS_OF_LABEL, SYBILS, Suite,
};
use bigbird::Limit;
use bigbird_chart::{Chart, Series, Stroke};

/// A figure of the paper.
#[derive(Debug, Clone)]
pub struct Figure {
    /// Its name, such as `5a`.
    pub name: &'static str,
    /// A caption of a few sentences that says what to see.
    pub caption: &'static str,
    /// The chart.
    pub chart: Chart,
    /// Its numbers as CSV.
    pub csv: String,
}

/// The names of all figures.
pub const NAMES: [&str; 8] = ["5a", "5b", "5c", "5d", "6a", "6b", "6c", "6c-ranks"];

/// The figures of the suites that were run, in the order of the paper.
pub fn figures(results: Results<'_>) -> Vec<Figure> {
    let mut figures = Vec::new();
    let ran = |suite| results.0.iter().any(|run| run.planned.suite == suite);
    if ran(Suite::Fig5) {
        figures.extend([
            quotas(results, "5a", "none", vec![(0.5, 14.0), (2.0, 5.2)]),
            causes(results, "5b", "none"),
            quotas(
                results,
                "5c",
                "random",
                vec![(2.0, 5.5), (3.0, 12.5), (5.0, 20.1), (8.0, 48.5)],
            ),
            causes(results, "5d", "random"),
        ]);
    }
    if ran(Suite::Fig6a) {
        figures.push(caps(results));
    }
    if ran(Suite::Fig6b) {
        figures.push(strength(
            results,
            "6b",
            Suite::Fig6b,
            &SYBILS,
            "number of Sybils",
            vec![(5.0, 5.2), (100.0, 6.4), (10.0, 29.4), (100.0, 29.4)],
        ));
    }
    if ran(Suite::Fig6c) {
        figures.push(strength(
            results,
            "6c",
            Suite::Fig6c,
            &RANKS_OF_ARTIFACT,
            "rank of the first of the attacker's ten sites",
            vec![(1.0, 5.4), (5.0, 5.2), (1.0, 29.0), (5.0, 10.9)],
        ));
        figures.push(strength(
            results,
            "6c-ranks",
            Suite::Fig6c,
            &RANKS_OF_LABEL,
            "rank of the first of the attacker's ten sites",
            Vec::new(),
        ));
    }
    figures
}

const ERROR: &str = "error of a batch (RMSRE), %";

fn quotas(
    results: Results<'_>,
    name: &'static str,
    attacker: &'static str,
    paper: Vec<(f64, f64)>,
) -> Figure {
    let mut runs: Vec<&FinishedRun> = Vec::new();
    let mut series = Vec::new();
    for system in [
        EvaluatedSystem::CookieMonster,
        EvaluatedSystem::GlobalOnly,
        EvaluatedSystem::NoImpressionSiteQuota,
    ] {
        let found = results.of(Suite::Fig5, system, attacker);
        runs.extend(found.clone());
        series.push(Series {
            name: system.name().to_owned(),
            colour: system.colour(),
            stroke: Stroke::Flat,
            points: points(found, |run| run.median),
        });
    }
    let found = results.of(Suite::Fig5, EvaluatedSystem::BigBird, attacker);
    runs.extend(found.clone());
    series.extend(lines(EvaluatedSystem::BigBird.name(), 0, found));
    let attacked = attacker != "none";
    Figure {
        name,
        caption: if attacked {
            "The random attacker owns the busiest sites and 25 Sybils. It drains a global budget \
             without quotas (median error in the paper: 48.5%). Big Bird withstands it, unless the \
             impression-site quota is so large that Sybils get through."
        } else {
            "No attack. An impression-site quota that is too small blocks honest reports. From 2 \
             on, it costs nothing."
        },
        chart: Chart {
            unit: "%",
            title: match attacked {
                true => "Error under the random attacker",
                false => "Error without attack",
            }
            .to_owned(),
            x_label: "impression-site quota, ε".to_owned(),
            y_label: ERROR.to_owned(),
            ticks: Chart::numbers(QUOTAS),
            series,
            stacked: false,
            paper,
        },
        csv: csv(&runs, Limit::ImpressionSiteQuota.key()),
    }
}

/// The causes that a figure shows, and their colours.
const CAUSES: [(Limit, u8); 5] = [
    (Limit::QuerierBudget, 2),
    (Limit::GlobalBudget, 1),
    (Limit::ImpressionSiteQuota, 0),
    (Limit::ConversionSiteQuota, 3),
    (Limit::DomainCap, 4),
];

fn causes(results: Results<'_>, name: &'static str, attacker: &'static str) -> Figure {
    let runs: Vec<&FinishedRun> = results
        .of(Suite::Fig5, EvaluatedSystem::BigBird, attacker)
        .collect();
    let mut series = Vec::new();
    for (cause, colour) in CAUSES {
        let points = points(runs.iter().copied(), |run| run.blocked_by(cause));
        if points.iter().any(|(_, share)| *share > 0.0) {
            // Bars have equal distances, whatever the quotas are.
            let points = (0_u32..).zip(points).map(|(at, (_, y))| (f64::from(at), y));
            series.push(Series {
                name: cause.name().to_owned(),
                colour,
                stroke: Stroke::Solid,
                points: points.collect(),
            });
        }
    }
    let attacked = attacker != "none";
    Figure {
        name,
        caption: if attacked {
            "From an impression-site quota of 3 on, the drained global budget blocks more honest \
             reports than any other limit."
        } else {
            "At an impression-site quota of 0.5, the quota itself blocks honest reports. At larger \
             quotas, it is mostly the querier budgets that block them, and every system has those."
        },
        chart: Chart {
            unit: "%",
            title: match attacked {
                true => "Blocked reports under the random attacker",
                false => "Blocked reports without attack",
            }
            .to_owned(),
            x_label: "impression-site quota, ε".to_owned(),
            y_label: "reports blocked, by first cause, %".to_owned(),
            ticks: Chart::names(QUOTAS.iter().map(ToString::to_string)),
            series,
            stacked: true,
            paper: Vec::new(),
        },
        csv: csv(&runs, Limit::ImpressionSiteQuota.key()),
    }
}

fn caps(results: Results<'_>) -> Figure {
    let mut runs: Vec<&FinishedRun> = Vec::new();
    let mut series = Vec::new();
    for (attacker, word, colours) in [
        ("omniscient", "omniscient", [4, 5]),
        ("random", "random", [0, 3]),
    ] {
        let systems = [
            EvaluatedSystem::BigBird,
            EvaluatedSystem::NoImpressionSiteQuota,
        ];
        for (system, colour) in systems.into_iter().zip(colours) {
            let found = results.of(Suite::Fig6a, system, attacker);
            runs.extend(found.clone());
            let (name, stroke) = match system {
                EvaluatedSystem::BigBird => (format!("Big Bird, {word}"), Stroke::Solid),
                _ => (format!("no impression-site quotas, {word}"), Stroke::Dashed),
            };
            series.push(Series {
                name,
                colour,
                stroke,
                points: points(found, |run| run.median),
            });
        }
    }
    for system in [EvaluatedSystem::CookieMonster, EvaluatedSystem::GlobalOnly] {
        for attacker in ["random", "omniscient"] {
            runs.extend(results.of(Suite::Fig6a, system, attacker));
        }
        series.push(Series {
            name: system.name().to_owned(),
            colour: system.colour(),
            stroke: Stroke::Flat,
            points: points(results.of(Suite::Fig6a, system, "random"), |run| run.median),
        });
    }
    Figure {
        name: "6a",
        caption: "The domain cap limits how many sites one user action may involve. The omniscient \
                  attacker knows every quota of every device: a worst case that no real attacker \
                  reaches. A domain cap of 1 contains even this attacker.",
        chart: Chart {
            unit: "%",
            title: "Median error by domain cap".to_owned(),
            x_label: "domain cap, sites per user action".to_owned(),
            y_label: ERROR.to_owned(),
            ticks: Chart::numbers(CAPS.map(f64::from)),
            series,
            stacked: false,
            paper: vec![(2.0, 5.4), (1.0, 10.0), (2.0, 28.6), (4.0, 48.4)],
        },
        csv: csv(&runs, Limit::DomainCap.key()),
    }
}

fn strength(
    results: Results<'_>,
    name: &'static str,
    suite: Suite,
    values: &[u32],
    varied: &str,
    paper: Vec<(f64, f64)>,
) -> Figure {
    let mut runs: Vec<&FinishedRun> = Vec::new();
    let mut series = Vec::new();
    for (attacker, colour) in [("omniscient", 4), ("random", 0)] {
        let found: Vec<&FinishedRun> = results
            .of(suite, EvaluatedSystem::BigBird, attacker)
            .filter(|run| {
                let x = run.planned.x;
                values.iter().any(|value| x == Some(f64::from(*value)))
            })
            .collect();
        runs.extend(&found);
        series.extend(lines(attacker, colour, found.into_iter()));
    }
    Figure {
        name,
        caption: match (suite, name) {
            (Suite::Fig6b, _) => {
                "More Sybils help the omniscient attacker only until the global budget is drained, \
                 or until the attacker runs out of user actions."
            }
            (_, "6c") => {
                "The sweep of the paper's artifact: the attacker owns ten sites, and the rank of \
                 the first goes from 1 to 5. The attack depends on the busiest sites."
            }
            _ => {
                "The sweep that the paper's label describes: ranks 1–10, 11–20 and so on up to \
                 41–50. The paper gives no numbers for it."
            }
        },
        chart: Chart {
            unit: "%",
            title: match name {
                "6b" => "Error by number of Sybils",
                "6c" => "Error by rank of the attacker's sites, as the artifact sweeps them",
                _ => "Error by rank of the attacker's sites, as the paper labels them",
            }
            .to_owned(),
            x_label: varied.to_owned(),
            y_label: ERROR.to_owned(),
            ticks: Chart::numbers(values.iter().map(|value| f64::from(*value))),
            series,
            stacked: false,
            paper,
        },
        csv: csv(
            &runs,
            match suite {
                Suite::Fig6b => "sybils",
                _ => "firstRank",
            },
        ),
    }
}

/// A line for the median, and a thinner one for the 95th percentile.
fn lines<'a>(
    name: &str,
    colour: u8,
    runs: impl Iterator<Item = &'a FinishedRun> + Clone,
) -> [Series; 2] {
    [
        Series {
            name: format!("{name}, median"),
            colour,
            stroke: Stroke::Solid,
            points: points(runs.clone(), |run| run.median),
        },
        Series {
            name: format!("{name}, 95th percentile"),
            colour,
            stroke: Stroke::Dashed,
            points: points(runs, |run| run.p95),
        },
    ]
}

/// The points of some runs, in percent. A run without a value of the parameter is placed at 0.
fn points<'a>(
    runs: impl Iterator<Item = &'a FinishedRun>,
    measure: impl Fn(&Summary) -> f64,
) -> Vec<(f64, f64)> {
    runs.map(|run| (run.planned.x.unwrap_or(0.0), 100.0 * measure(&run.summary)))
        .collect()
}

/// The numbers of a figure as CSV. Errors and shares are fractions.
fn csv(runs: &[&FinishedRun], varied: &str) -> String {
    let mut csv = format!("system,attacker,{varied},median,p95");
    for cause in Limit::ALL {
        let _ = write!(csv, ",blocked:{}", cause.key());
    }
    csv.push('\n');
    for run in runs {
        let summary = &run.summary;
        let _ = write!(
            csv,
            "{},{},{},{},{}",
            run.planned.system.name(),
            run.planned.experiment.attacker(),
            run.planned.x.map(|x| x.to_string()).unwrap_or_default(),
            summary.median,
            summary.p95
        );
        for cause in Limit::ALL {
            let _ = write!(csv, ",{}", summary.blocked_by(cause));
        }
        csv.push('\n');
    }
    csv
}
