//! The paper's figures, as charts and as CSV. The paper's own numbers are marks in the colour of
//! their series.

use std::fmt::Write as _;

use crate::paper::numbers::{PaperMeasure, paper_numbers};
use crate::paper::reproduce::{FinishedRun, Results, Summary};
use crate::paper::suites::{
    CAPS, EvaluatedSystem, QUOTAS, RANKS_OF_ARTIFACT, RANKS_OF_LABEL, SYBILS, Suite,
};
use crate::text::percent;
use bigbird::Limit;
use bigbird_chart::{Chart, Mark, Series, Stroke, Whisker};

/// A figure of the paper.
#[derive(Debug, Clone)]
pub struct Figure {
    /// Its name, such as `5a`.
    pub name: &'static str,
    /// A caption of a few sentences that says what to see.
    pub caption: String,
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
            quotas(results, "5a", "none"),
            causes(results, "5b", "none"),
            quotas(results, "5c", "random"),
            causes(results, "5d", "random"),
        ]);
    }
    if ran(Suite::Fig6a) {
        figures.push(caps(results));
    }
    if ran(Suite::Fig6b) {
        figures.push(strength(results, "6b", Suite::Fig6b, &SYBILS));
    }
    if ran(Suite::Fig6c) {
        figures.push(strength(results, "6c", Suite::Fig6c, &RANKS_OF_ARTIFACT));
        figures.push(strength(results, "6c-ranks", Suite::Fig6c, &RANKS_OF_LABEL));
    }
    figures
}

const ERROR: &str = "error of a batch (RMSRE), %";

/// What the figures of figure 5 have at their horizontal axis.
const QUOTA: &str = "impression-site quota, ε";

/// The series of a chart while it is put together.
#[derive(Default)]
struct Plot<'a> {
    runs: Vec<&'a FinishedRun>,
    series: Vec<Series>,
    whiskers: Vec<Whisker>,
    /// What each series shows.
    shows: Vec<(EvaluatedSystem, &'a str, PaperMeasure)>,
}

impl<'a> Plot<'a> {
    /// Adds a series. A run is placed at the value of its parameter, or at its place in a list.
    fn add(
        &mut self,
        (name, colour, stroke): (String, u8, Stroke),
        runs: &[&'a FinishedRun],
        measure: PaperMeasure,
        place: impl Fn(Option<f64>) -> f64,
    ) {
        let Some(first) = runs.first() else {
            return;
        };
        let number = self.series.len();
        let mut points = Vec::new();
        for run in runs {
            let x = place(run.planned.x);
            points.push((x, 100.0 * measure.of(&run.summary)));
            let interval = run.interval(|summary| measure.of(summary));
            self.whiskers.extend(interval.map(|interval| Whisker {
                series: number,
                x,
                low: 100.0 * interval.low,
                high: 100.0 * interval.high,
            }));
        }
        self.series.push(Series {
            name,
            colour,
            stroke,
            points,
        });
        let planned = &first.planned;
        self.shows
            .push((planned.system, planned.experiment.attacker(), measure));
    }

    /// Adds lines for the median and the 95th percentile.
    fn add_both(&mut self, name: &str, colour: u8, stroke: Stroke, runs: &[&'a FinishedRun]) {
        self.runs.extend(runs);
        let dashed = match stroke {
            Stroke::Flat => Stroke::FlatDotted,
            _ => Stroke::Dashed,
        };
        // At the right of the frame, the colour says whose percentile it is.
        let (median, p95) = match stroke {
            Stroke::Flat => (name.to_owned(), "95th percentile".to_owned()),
            _ => (
                format!("{name}, median"),
                format!("{name}, 95th percentile"),
            ),
        };
        let place = |x: Option<f64>| x.unwrap_or(0.0);
        self.add((median, colour, stroke), runs, PaperMeasure::Median, place);
        self.add((p95, colour, dashed), runs, PaperMeasure::P95, place);
    }

    /// The paper's numbers of a figure for the series that are there.
    fn marks(&self, figure: &str, place: impl Fn(Option<f64>) -> Option<f64>) -> Vec<Mark> {
        let of_figure = paper_numbers().of_figure(figure);
        of_figure
            .filter_map(|result| {
                let what = (result.system, result.attacker.as_str(), result.measure);
                Some(Mark {
                    series: self.shows.iter().position(|shown| *shown == what)?,
                    x: place(result.x)?,
                    y: result.percent,
                    at_most: result.at_most,
                })
            })
            .collect()
    }

    fn finish(self, name: &'static str, caption: String, varied: &str, chart: Chart) -> Figure {
        Figure {
            name,
            caption,
            csv: csv(&self.runs, varied),
            chart: Chart {
                unit: "%",
                marks_from: "in the paper",
                series: self.series,
                // Bars have no whiskers: their layers stand on each other.
                whiskers: match chart.stacked {
                    true => Vec::new(),
                    false => self.whiskers,
                },
                ..chart
            },
        }
    }
}

/// Places a point of the paper at the value of its parameter.
fn at_value(x: Option<f64>) -> Option<f64> {
    Some(x.unwrap_or(0.0))
}

fn quotas<'a>(results: Results<'a>, name: &'static str, attacker: &'static str) -> Figure {
    let mut plot = Plot::default();
    let of =
        |system| -> Vec<&'a FinishedRun> { results.of(Suite::Fig5, system, attacker).collect() };
    let big_bird = EvaluatedSystem::BigBird;
    plot.add_both(
        big_bird.name(),
        big_bird.colour(),
        Stroke::Solid,
        &of(big_bird),
    );
    for system in [
        EvaluatedSystem::CookieMonster,
        EvaluatedSystem::GlobalOnly,
        EvaluatedSystem::NoImpressionSiteQuota,
    ] {
        plot.add_both(system.name(), system.colour(), Stroke::Flat, &of(system));
    }
    let attacked = attacker != "none";
    let drained = paper_numbers().result(
        name,
        EvaluatedSystem::GlobalOnly,
        attacker,
        None,
        PaperMeasure::Median,
    );
    let caption = if attacked {
        let of_paper = drained.map_or(String::new(), |drained| {
            format!(" (median in the paper: {})", percent(drained.fraction()))
        });
        format!(
            "The random attacker owns the busiest sites and 25 Sybils. It drains a global budget \
             without quotas{of_paper}. Big Bird withstands it, unless the impression-site quota is \
             so large that Sybils get through. Systems without such a quota are named at the right."
        )
    } else {
        "No attack. An impression-site quota that is too small blocks honest reports. From 2 on, \
         it costs nothing: the solid line is as low as that of the systems at the right, which \
         have no such quota."
            .to_owned()
    };
    let chart = Chart {
        title: match attacked {
            true => "Error under the random attacker",
            false => "Error without attack",
        }
        .to_owned(),
        x_label: QUOTA.to_owned(),
        y_label: ERROR.to_owned(),
        ticks: Chart::numbers(QUOTAS),
        marks: plot.marks(name, at_value),
        ..Chart::default()
    };
    plot.finish(name, caption, Limit::ImpressionSiteQuota.key(), chart)
}

/// The colour of a cause.
const fn colour_of(cause: Limit) -> u8 {
    match cause {
        Limit::ImpressionSiteQuota => 0,
        Limit::GlobalBudget => 1,
        Limit::QuerierBudget => 2,
        Limit::ConversionSiteQuota => 3,
        Limit::DomainCap => 4,
        Limit::UserActionBudget => 5,
    }
}

fn causes<'a>(results: Results<'a>, name: &'static str, attacker: &'static str) -> Figure {
    let runs: Vec<&'a FinishedRun> = results
        .of(Suite::Fig5, EvaluatedSystem::BigBird, attacker)
        .collect();
    let attacked = attacker != "none";
    // The layers that the paper has numbers for stand at the bottom, where the axis measures them.
    let measures = match attacked {
        true => [
            PaperMeasure::BlockedByGlobalBudget,
            PaperMeasure::BlockedByImpressionSiteQuota,
            PaperMeasure::BlockedByQuerierBudget,
        ],
        false => [
            PaperMeasure::BlockedByImpressionSiteQuota,
            PaperMeasure::BlockedByQuerierBudget,
            PaperMeasure::BlockedByGlobalBudget,
        ],
    };
    let mut plot = Plot {
        runs: runs.clone(),
        ..Plot::default()
    };
    // Bars have equal distances, whatever the quotas are.
    let index = |x: Option<f64>| {
        let mut places = (0_u32..).zip(QUOTAS);
        let found = places.find(|(_, quota)| x == Some(*quota));
        found.map(|(at, _)| f64::from(at))
    };
    for measure in measures {
        let Some(cause) = measure.limit() else {
            continue;
        };
        let blocks = runs.iter().any(|run| measure.of(&run.summary) > 0.0);
        let mut of_paper = paper_numbers().of_figure(name);
        if blocks || of_paper.any(|result| result.measure == measure) {
            let style = (cause.name().to_owned(), colour_of(cause), Stroke::Solid);
            plot.add(style, &runs, measure, |x| index(x).unwrap_or(0.0));
        }
    }
    // The causes that the paper does not mention, if there is anything to see.
    for cause in Limit::ALL {
        if measures
            .iter()
            .any(|measure| measure.limit() == Some(cause))
        {
            continue;
        }
        let share = |summary: &Summary| summary.blocked_by(cause);
        if runs.iter().any(|run| share(&run.summary) > 0.0) {
            plot.series.push(Series {
                name: cause.name().to_owned(),
                colour: colour_of(cause),
                stroke: Stroke::Solid,
                points: runs
                    .iter()
                    .map(|run| {
                        let x = index(run.planned.x).unwrap_or(0.0);
                        (x, 100.0 * share(&run.summary))
                    })
                    .collect(),
            });
        }
    }
    let caption = if attacked {
        "From an impression-site quota of 3 on, the drained global budget blocks more honest \
         reports than any other limit."
    } else {
        "At an impression-site quota of 0.5, the quota itself blocks honest reports. At larger \
         quotas, it is mostly the querier budgets that block them, and every system has those."
    };
    let chart = Chart {
        title: match attacked {
            true => "Blocked reports under the random attacker",
            false => "Blocked reports without attack",
        }
        .to_owned(),
        x_label: QUOTA.to_owned(),
        y_label: "blocked reports, by first cause, %".to_owned(),
        ticks: Chart::names(QUOTAS.iter().map(ToString::to_string)),
        stacked: true,
        marks: plot.marks(name, index),
        ..Chart::default()
    };
    plot.finish(
        name,
        caption.to_owned(),
        Limit::ImpressionSiteQuota.key(),
        chart,
    )
}

fn caps(results: Results<'_>) -> Figure {
    let mut plot = Plot::default();
    for (attacker, colours) in [("omniscient", [4, 5]), ("random", [0, 3])] {
        let systems = [
            EvaluatedSystem::BigBird,
            EvaluatedSystem::NoImpressionSiteQuota,
        ];
        for (system, colour) in systems.into_iter().zip(colours) {
            let found: Vec<_> = results.of(Suite::Fig6a, system, attacker).collect();
            let stroke = match system {
                EvaluatedSystem::BigBird => Stroke::Solid,
                _ => Stroke::Dashed,
            };
            plot.runs.extend(&found);
            let style = (format!("{}, {attacker}", system.name()), colour, stroke);
            plot.add(style, &found, PaperMeasure::Median, |x| x.unwrap_or(0.0));
        }
    }
    for system in [EvaluatedSystem::CookieMonster, EvaluatedSystem::GlobalOnly] {
        for attacker in ["random", "omniscient"] {
            let found: Vec<_> = results.of(Suite::Fig6a, system, attacker).collect();
            plot.runs.extend(&found);
            let name = format!("{}, {attacker}", system.name());
            let style = (name, system.colour(), Stroke::Flat);
            plot.add(style, &found, PaperMeasure::Median, |_| 0.0);
        }
    }
    let caption = "The domain cap limits how many sites one user action may involve. The \
                   omniscient attacker knows every quota of every device: a worst case that no \
                   real attacker reaches. A domain cap of 1 contains even this attacker. Systems \
                   without a domain cap are named at the right.";
    let chart = Chart {
        title: "Median error by domain cap".to_owned(),
        x_label: "domain cap, sites per user action".to_owned(),
        y_label: format!("median {ERROR}"),
        ticks: Chart::numbers(CAPS.map(f64::from)),
        marks: plot.marks("6a", at_value),
        ..Chart::default()
    };
    plot.finish("6a", caption.to_owned(), Limit::DomainCap.key(), chart)
}

fn strength(results: Results<'_>, name: &'static str, suite: Suite, values: &[u32]) -> Figure {
    let mut plot = Plot::default();
    for (attacker, colour) in [("omniscient", 4), ("random", 0)] {
        let found: Vec<&FinishedRun> = results
            .of(suite, EvaluatedSystem::BigBird, attacker)
            .filter(|run| {
                let x = run.planned.x;
                values.iter().any(|value| x == Some(f64::from(*value)))
            })
            .collect();
        plot.add_both(attacker, colour, Stroke::Solid, &found);
    }
    let (from, to) = paper_numbers().last_ranks_of_label;
    let caption = match (suite, name) {
        (Suite::Fig6b, _) => "More Sybils help the omniscient attacker only until the global \
                              budget is drained, or until the attacker runs out of user actions."
            .to_owned(),
        (_, "6c") => {
            "The sweep of the paper's artifact: the attacker owns ten sites, and the rank \
                      of the first goes from 1 to 5. The attack depends on the busiest sites."
                .to_owned()
        }
        _ => format!(
            "The sweep that the paper's label describes: ranks 1–10, 11–20 and so on up to \
             {from}–{to}. The paper gives no numbers for it."
        ),
    };
    let chart = Chart {
        title: match name {
            "6b" => "Error by number of Sybils",
            "6c" => "Error by rank of the attacker's sites, as the artifact sweeps them",
            _ => "Error by rank of the attacker's sites, as the paper labels them",
        }
        .to_owned(),
        x_label: match suite {
            Suite::Fig6b => "number of Sybils",
            _ => "rank of the first of the attacker's ten sites",
        }
        .to_owned(),
        y_label: ERROR.to_owned(),
        ticks: Chart::numbers(values.iter().map(|value| f64::from(*value))),
        marks: plot.marks(name, at_value),
        ..Chart::default()
    };
    let varied = match suite {
        Suite::Fig6b => "sybils",
        _ => "firstRank",
    };
    plot.finish(name, caption, varied, chart)
}

/// The numbers of a figure as CSV. Errors and shares are fractions. With several seeds, they are
/// means, and the ends of the 95% intervals of errors follow.
fn csv(runs: &[&FinishedRun], varied: &str) -> String {
    let mut csv = format!("system,attacker,{varied},median,p95");
    let several = runs.iter().any(|run| run.of_seeds.len() > 1);
    if several {
        csv.push_str(",median:low,median:high,p95:low,p95:high");
    }
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
        if several {
            for interval in [run.interval(|it| it.median), run.interval(|it| it.p95)] {
                let ends = interval.map(|it| format!("{},{}", it.low, it.high));
                let _ = write!(csv, ",{}", ends.unwrap_or_else(|| ",".to_owned()));
            }
        }
        for cause in Limit::ALL {
            let _ = write!(csv, ",{}", summary.blocked_by(cause));
        }
        csv.push('\n');
    }
    csv
}
