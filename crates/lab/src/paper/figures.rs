//! The paper's figures, drawn and as tables.

use std::fmt::Write as _;

use crate::chart::{Chart, Series, Stroke};
use crate::paper::reproduce::{Finished, Results, Summary};
use crate::paper::suites::{
    CAPS, QUOTAS, RANKS_OF_ARTIFACT, RANKS_OF_LABEL, SYBILS, Suite, System,
};
use crate::replay::Blocked;

/// A figure: its name, such as `5a`, the chart, and its numbers.
#[derive(Debug, Clone)]
pub struct Figure {
    /// Its name.
    pub name: &'static str,
    /// What it shows, in a sentence or two.
    pub caption: &'static str,
    /// The chart.
    pub chart: Chart,
    /// Its numbers as CSV.
    pub csv: String,
}

/// The names that figures can have.
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
            "Sybils",
            vec![(5.0, 5.2), (100.0, 6.4), (10.0, 29.4), (100.0, 29.4)],
        ));
    }
    if ran(Suite::Fig6c) {
        figures.push(strength(
            results,
            "6c",
            Suite::Fig6c,
            &RANKS_OF_ARTIFACT,
            "rank of the first of ten sites that the attacker owns",
            vec![(1.0, 5.4), (5.0, 5.2), (1.0, 29.0), (5.0, 10.9)],
        ));
        figures.push(strength(
            results,
            "6c-ranks",
            Suite::Fig6c,
            &RANKS_OF_LABEL,
            "rank of the first of ten sites that the attacker owns",
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
    let mut runs: Vec<&Finished> = Vec::new();
    let mut series = Vec::new();
    for system in [
        System::CookieMonster,
        System::GlobalOnly,
        System::NoImpressionQuota,
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
    let found = results.of(Suite::Fig5, System::BigBird, attacker);
    runs.extend(found.clone());
    series.extend(lines(System::BigBird.name(), 0, found));
    let attacked = attacker != "none";
    Figure {
        name,
        caption: if attacked {
            "The random attacker owns the busiest sites and 25 Sybils. A global budget alone is \
             drained (the paper: 48.5%). Big Bird holds it, unless its quota is so large that Sybils get through."
        } else {
            "Nobody attacks. A quota that is too small blocks honest reports; from 2 on it costs \
             nothing."
        },
        chart: Chart {
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
        csv: csv(&runs, "impressionSiteQuota"),
    }
}

/// The causes that a figure shows, with a colour each.
const CAUSES: [(Blocked, &str, u8); 5] = [
    (Blocked::Querier, "querier budget", 2),
    (Blocked::Global, "global budget", 1),
    (Blocked::ImpressionSite, "impression-site quota", 0),
    (Blocked::ConversionSite, "conversion-site quota", 3),
    (Blocked::DomainCap, "domain cap", 4),
];

fn causes(results: Results<'_>, name: &'static str, attacker: &'static str) -> Figure {
    let runs: Vec<&Finished> = results.of(Suite::Fig5, System::BigBird, attacker).collect();
    let mut series = Vec::new();
    for (cause, label, colour) in CAUSES {
        let points = points(runs.iter().copied(), |run| run.blocked_by(cause));
        if points.iter().any(|(_, share)| *share > 0.0) {
            // Bars stand side by side, whatever the quotas are.
            let points = (0_u32..).zip(points).map(|(at, (_, y))| (f64::from(at), y));
            series.push(Series {
                name: label.to_owned(),
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
            "From quota 3 on the drained global budget is what blocks honest reports."
        } else {
            "At quota 0.5 it is the quota; what remains are querier budgets, which every system has."
        },
        chart: Chart {
            title: match attacked {
                true => "What blocks reports under the random attacker",
                false => "What blocks reports without attack",
            }
            .to_owned(),
            x_label: "impression-site quota, ε".to_owned(),
            y_label: "reports blocked, by first cause, %".to_owned(),
            ticks: Chart::names(QUOTAS.iter().map(ToString::to_string)),
            series,
            stacked: true,
            paper: Vec::new(),
        },
        csv: csv(&runs, "impressionSiteQuota"),
    }
}

fn caps(results: Results<'_>) -> Figure {
    let mut runs: Vec<&Finished> = Vec::new();
    let mut series = Vec::new();
    for (attacker, word, colours) in [
        ("omniscient", "omniscient", [4, 5]),
        ("random", "random", [0, 3]),
    ] {
        let systems = [System::BigBird, System::NoImpressionQuota];
        for (system, colour) in systems.into_iter().zip(colours) {
            let found = results.of(Suite::Fig6a, system, attacker);
            runs.extend(found.clone());
            let (name, stroke) = match system {
                System::BigBird => (format!("Big Bird, {word}"), Stroke::Solid),
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
    for system in [System::CookieMonster, System::GlobalOnly] {
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
        caption: "How many domains one user action may involve. An attacker that knows every quota of \
                  every device is a worst case that no real one reaches; a cap of 1 holds even that.",
        chart: Chart {
            title: "Domain caps, median error".to_owned(),
            x_label: "domain cap, sites per user action".to_owned(),
            y_label: ERROR.to_owned(),
            ticks: Chart::numbers(CAPS.map(f64::from)),
            series,
            stacked: false,
            paper: vec![(2.0, 5.4), (1.0, 10.0), (2.0, 28.6), (4.0, 48.4)],
        },
        csv: csv(&runs, "domainCap"),
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
    let mut runs: Vec<&Finished> = Vec::new();
    let mut series = Vec::new();
    for (attacker, colour) in [("omniscient", 4), ("random", 0)] {
        let found: Vec<&Finished> = results
            .of(suite, System::BigBird, attacker)
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
                "More Sybils help the omniscient attacker only until the global budget or its user \
                 actions are used up."
            }
            (_, "6c") => {
                "The sweep of the paper's artifact: a window of ten sites that begins at ranks 1 to 5. \
                 The busiest sites are what the attack lives from."
            }
            _ => {
                "The sweep that the paper's label describes: ranks 1–10, 11–20 and so on to 41–50. The \
                 paper has no numbers for it."
            }
        },
        chart: Chart {
            title: match name {
                "6b" => "More Sybils",
                "6c" => "Less popular sites, as the artifact sweeps them",
                _ => "Less popular sites, as the paper labels them",
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
    runs: impl Iterator<Item = &'a Finished> + Clone,
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

/// Points in percent; a run without a place stands at 0.
fn points<'a>(
    runs: impl Iterator<Item = &'a Finished>,
    measure: impl Fn(&Summary) -> f64,
) -> Vec<(f64, f64)> {
    runs.map(|run| (run.planned.x.unwrap_or(0.0), 100.0 * measure(&run.summary)))
        .collect()
}

/// Numbers as CSV; errors and shares are fractions.
fn csv(runs: &[&Finished], varied: &str) -> String {
    let mut csv = format!("system,attacker,{varied},median,p95");
    for cause in Blocked::ALL {
        let _ = write!(csv, ",blocked:{}", cause.name());
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
        for cause in Blocked::ALL {
            let _ = write!(csv, ",{}", summary.blocked_by(cause));
        }
        csv.push('\n');
    }
    csv
}
