//! The results of a sweep: as a document, as a table of all runs, and as a figure.

use std::sync::Arc;

use bigbird::{FilterKind, Limit};
use bigbird_chart::{Chart, Series, Stroke};
use bigbird_lab::evaluation::resilience::{Bound, Resilience};
use bigbird_lab::evaluation::results::RunRecord;
use bigbird_lab::evaluation::{
    ConfidenceInterval, Diagnosis, ErrorSource, Experiment, NoiseModel, QuerierCounts,
    QuerierOptions, Remedy, RunResult,
};
use bigbird_lab::workload::Workload;

use super::advice::{advice, larger, mostly, too_small};
use super::source::{WorkloadSource, noise_scale};
use crate::output::{Document, ResultCell, ResultColumn, ResultTable, grouped, percent};

/// One run of a sweep.
pub(crate) struct Run {
    pub(crate) experiment: Experiment,
    pub(crate) seed: u64,
    pub(crate) threads: usize,
    pub(crate) outcome: Arc<RunResult>,
    pub(crate) queriers: QuerierCounts,
}

impl Run {
    pub(crate) fn record(&self, workload: &Workload) -> RunRecord {
        let record = RunRecord::new(
            "simulate",
            &self.experiment,
            self.seed,
            &self.outcome,
            workload,
        );
        RunRecord {
            queriers: Some(self.queriers),
            ..record
        }
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
            Parameter::new(SEED, "seed", Some(self.seed.to_string())),
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

    /// The value, as text.
    fn shown(&self) -> String {
        self.value.clone().unwrap_or_else(|| "–".to_owned())
    }

    /// The value, as a cell of a table.
    fn cell(&self) -> ResultCell {
        match (&self.value, self.value.as_ref().map(|it| it.parse())) {
            (_, Some(Ok(number))) => ResultCell::Number(number),
            (Some(text), _) => ResultCell::text(text),
            (None, _) => ResultCell::Missing,
        }
    }
}

/// The parameters that only attackers have.
const SYBILS: &str = "Sybils";
const FIRST_RANK: &str = "first rank";

/// The parameter over which there are intervals.
const SEED: &str = "seed";

/// Every run of a sweep.
pub(crate) struct Sweep<'a> {
    runs: &'a [Run],
    parameters: Vec<Vec<Parameter>>,
}

/// The number of parameters that figures always name: the profile and the attacker.
const ALWAYS: usize = 2;

/// The runs that differ only in their seed. A table has a row for them.
struct SweepRow<'a> {
    parameters: &'a [Parameter],
    runs: Vec<&'a Run>,
}

impl SweepRow<'_> {
    /// The mean of a number over seeds. None if a run does not have it.
    #[expect(clippy::cast_precision_loss, reason = "a number of seeds")]
    fn mean(&self, number: impl Fn(&Run) -> Option<f64>) -> Option<f64> {
        let numbers: Option<Vec<f64>> = self.runs.iter().map(|run| number(run)).collect();
        let numbers = numbers.filter(|numbers| !numbers.is_empty())?;
        Some(numbers.iter().sum::<f64>() / numbers.len() as f64)
    }

    /// The interval of a percentile of errors over seeds, if there are several.
    fn interval(&self, percent: f64) -> Option<ConfidenceInterval> {
        let errors: Option<Vec<f64>> = self
            .runs
            .iter()
            .map(|run| run.outcome.error(percent))
            .collect();
        ConfidenceInterval::of(&errors?)
    }

    /// A percentile of errors. With several seeds, it has an interval.
    fn error(&self, percent: f64) -> ResultCell {
        match self.interval(percent) {
            Some(interval) => ResultCell::Interval(interval.mean, interval.high - interval.mean),
            None => share(self.mean(|run| run.outcome.error(percent))),
        }
    }

    /// The explanation of the error, over the batches of all seeds.
    fn diagnosis(&self) -> Option<Diagnosis> {
        let batches = self.runs.iter().flat_map(|run| &run.outcome.batches);
        Diagnosis::of(&batches.cloned().collect::<Vec<_>>())
    }

    fn attacked(&self) -> bool {
        self.runs.iter().any(|run| run.outcome.resilience.is_some())
    }

    /// What the resilience theorem says about the runs.
    fn bounds(&self) -> ResultCell {
        let mut found = self
            .runs
            .iter()
            .filter_map(|run| run.outcome.resilience.as_ref());
        if found.clone().any(|it| !it.hold()) {
            return ResultCell::text("BROKEN");
        }
        match found.any(|it| it.bounds.by_quotas.is_some()) {
            true => ResultCell::text("hold"),
            false => ResultCell::Missing,
        }
    }
}

fn share(share: Option<f64>) -> ResultCell {
    ResultCell::or_missing(share, ResultCell::Share)
}

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

    /// True if a table needs a column for a parameter: it differs between runs of one profile, or
    /// it is the profile. The seed has intervals instead.
    fn needs_column(&self, column: usize) -> bool {
        let name = self.parameters[0][column].name;
        let of_one_profile = || {
            let same_profile = |one: &Vec<Parameter>, other: &Vec<Parameter>| one[0] == other[0];
            self.parameters.iter().any(|run| {
                self.parameters
                    .iter()
                    .any(|other| same_profile(run, other) && run[column] != other[column])
            })
        };
        self.varies(column)
            && name != SEED
            && (column == 0 || !Limit::ALL.iter().any(|it| it.name() == name) || of_one_profile())
    }

    fn columns(&self) -> usize {
        self.parameters.first().map_or(0, Vec::len)
    }

    /// One row for all runs that differ only in their seed, in the order of the first of them.
    fn rows(&self) -> Vec<SweepRow<'_>> {
        let mut rows: Vec<SweepRow<'_>> = Vec::new();
        for (run, parameters) in self.runs.iter().zip(&self.parameters) {
            let same = |row: &&mut SweepRow<'_>| {
                let mut both = row.parameters.iter().zip(parameters);
                both.all(|(one, other)| one == other || one.name == SEED)
            };
            match rows.iter_mut().find(same) {
                Some(row) => row.runs.push(run),
                None => rows.push(SweepRow {
                    parameters,
                    runs: vec![run],
                }),
            }
        }
        rows
    }

    pub(crate) fn tell(&self, source: &WorkloadSource, workload: &Workload) -> Document {
        let mut document = Document::new();
        let rows = self.rows();
        let seeds = rows.iter().map(|row| row.runs.len()).max().unwrap_or(0);
        let first = self.runs.first();
        let batches = first.map_or(0, |run| run.outcome.batches.len());
        let counts = first.map(|run| run.queriers).unwrap_or_default();
        document.paragraph(format!(
            "Workload: {source}\n{} devices, {} events, {batches} batches of {} queriers{}",
            grouped(workload.devices() as u64),
            grouped(workload.len() as u64),
            counts.with_batch,
            match seeds > 1 && source.follows_from_seed() {
                true => ", with the first seed",
                false => "",
            }
        ));
        if let Some(sentence) = too_small(counts) {
            document.paragraph(sentence);
        }
        let same = self.same_in_all_runs();
        if !same.is_empty() {
            let all = if self.runs.len() > 1 {
                "In all runs: "
            } else {
                ""
            };
            document.paragraph(format!("{all}{}.", same.join(", ")));
        }
        let shown: Vec<usize> = (0..self.columns())
            .filter(|column| self.needs_column(*column))
            .collect();
        document.table(self.errors(&rows, &shown));
        let interval = match seeds {
            0 | 1 => String::new(),
            seeds => format!(
                " Both are means over {seeds} seeds, with 95% intervals for these means, in \
                 percentage points."
            ),
        };
        document.paragraph(format!(
            "Median and p95 are errors (RMSRE) of batches.{interval} Limits are in epsilons. Noise \
             has {}.",
            noise_scale(source.options().noise)
        ));
        if rows.iter().any(SweepRow::attacked) {
            document.paragraph(format!(
                "Taken: the mean epsilon that attackers consumed of each global budget that was \
                 used. Bounds: whether the resilience theorem held on every device and batch. The \
                 theorem needs quotas. By default, attackers own {}.",
                source.owned()
            ));
            let resilience = self
                .runs
                .iter()
                .filter_map(|run| run.outcome.resilience.as_ref());
            let mut broken: Vec<Bound> = Vec::new();
            for bound in resilience.flat_map(Resilience::broken) {
                if !broken.contains(&bound) {
                    broken.push(bound);
                    document.paragraph(format!("BROKEN: {bound}."));
                }
            }
        }
        document.table(self.parts(&rows, &shown));
        let limits_of_profiles = self.varies(0)
            && (0..self.columns()).any(|column| {
                self.varies(column)
                    && !shown.contains(&column)
                    && self.parameters[0][column].name != SEED
            });
        if limits_of_profiles {
            document.paragraph(
                "Other limits are those of each profile: `bigbird policy --profile NAME` shows them.",
            );
        }
        document.paragraph(
            "From noise, from blocking: the median error if that were the only one. By …: the share \
             of reports that are blocked, by the first limit that withheld something.",
        );
        for sentence in self.sentences(&rows, &shown, source, workload.buckets) {
            document.paragraph(sentence);
        }
        document.data(self.data());
        document
    }

    /// The parameters that do not differ, with their values. They need no column.
    fn same_in_all_runs(&self) -> Vec<String> {
        (0..self.columns())
            .filter(|column| !self.varies(*column))
            .filter_map(|column| {
                let mut runs = self.parameters.iter().map(|run| &run[column]);
                let Parameter { name, value, .. } = runs.find(|it| it.value.is_some())?;
                (*name != "threads").then_some(())?;
                Some(match (*name, value.as_deref()?) {
                    ("attacker", "none") => "no attack".to_owned(),
                    (name, value) => format!("{name} {value}"),
                })
            })
            .collect()
    }

    /// A table with a row for each run, or for each group of runs with several seeds.
    fn table_of<'r>(
        &self,
        rows: &'r [SweepRow<'r>],
        shown: &[usize],
        columns: &[ResultColumn],
        cells: impl Fn(&SweepRow<'r>) -> Vec<ResultCell>,
    ) -> ResultTable {
        let parameters = shown.iter().map(|column| {
            let Parameter { name, key, .. } = self.parameters[0][*column];
            ResultColumn::new(name, key)
        });
        let columns = parameters.chain(columns.iter().cloned()).collect();
        let mut table = ResultTable::new(columns).keys(shown.len());
        for row in rows {
            let parameters = shown.iter().map(|column| row.parameters[*column].cell());
            table.row(parameters.chain(cells(row)).collect());
        }
        table
    }

    fn errors(&self, rows: &[SweepRow<'_>], shown: &[usize]) -> ResultTable {
        let attacked = rows.iter().any(SweepRow::attacked);
        let mut columns = ["median", "p95"].map(ResultColumn::named).to_vec();
        if attacked {
            columns.extend(["taken", "bounds"].map(ResultColumn::named));
        }
        self.table_of(rows, shown, &columns, |row| {
            let mut cells = vec![row.error(50.0), row.error(95.0)];
            if attacked {
                let taken = row.mean(|run| {
                    run.outcome.resilience.as_ref()?;
                    Some(run.outcome.spent.mean()?.1)
                });
                cells.push(ResultCell::or_missing(taken, |taken| {
                    ResultCell::Rounded(taken, 2)
                }));
                cells.push(row.bounds());
            }
            cells
        })
    }

    fn parts(&self, rows: &[SweepRow<'_>], shown: &[usize]) -> ResultTable {
        let causes: Vec<Limit> = Limit::ALL
            .into_iter()
            .filter(|cause| {
                // A share that is shown as 0.0% in every row needs no column.
                let blocked = |run: &Run| run.outcome.blocked_share(*cause);
                self.runs
                    .iter()
                    .filter_map(blocked)
                    .any(|share| share >= 0.000_5)
            })
            .collect();
        let mut columns = ["from noise", "from blocking", "mostly"]
            .map(ResultColumn::named)
            .to_vec();
        let by = causes
            .iter()
            .map(|cause| ResultColumn::new(format!("by {cause}"), cause.key()));
        columns.extend(by);
        self.table_of(rows, shown, &columns, |row| {
            let diagnosis = row.diagnosis();
            let mut cells = vec![
                share(diagnosis.as_ref().map(|it| it.noise)),
                share(diagnosis.as_ref().map(|it| it.blocking)),
                ResultCell::or_missing(diagnosis.as_ref(), |it| ResultCell::text(mostly(it))),
            ];
            let blocked = causes
                .iter()
                .map(|cause| share(row.mean(|run| run.outcome.blocked_share(*cause))));
            cells.extend(blocked);
            cells
        })
    }

    /// A sentence for each way in which errors come about: about the first run of which it is true.
    fn sentences(
        &self,
        rows: &[SweepRow<'_>],
        shown: &[usize],
        source: &WorkloadSource,
        buckets: u16,
    ) -> Vec<String> {
        let mut told = Vec::new();
        let mut sentences = Vec::new();
        for row in rows {
            let Some(diagnosis) = row.diagnosis() else {
                continue;
            };
            let kind = (diagnosis.dominant, diagnosis.first_cause);
            if told.contains(&kind) {
                continue;
            }
            told.push(kind);
            let sentence = match diagnosis.dominant {
                Some(ErrorSource::Noise) => {
                    format!(
                        "{} {}",
                        advice(&diagnosis, &[], change),
                        planned(source.options())
                    )
                }
                _ => {
                    let lookback = source.lookback_epochs();
                    let remedies = diagnosis.remedies(buckets.into(), lookback);
                    advice(&diagnosis, &remedies, change)
                }
            };
            let of: Vec<String> = shown
                .iter()
                .map(|column| &row.parameters[*column])
                .filter(|parameter| parameter.value.is_some())
                .map(|parameter| match (parameter.name, parameter.shown()) {
                    ("attacker", name) if name == "none" => "no attack".to_owned(),
                    ("profile" | "attacker", name) => name,
                    (name, value) => format!("{name} {value}"),
                })
                .collect();
            sentences.push(match rows.len() {
                0 | 1 => sentence,
                _ => format!("{}: {sentence}", of.join(", ")),
            });
        }
        sentences
    }

    /// All parameters and results of all runs. Errors and shares are fractions.
    pub(crate) fn data(&self) -> ResultTable {
        let names = self.parameters.first().into_iter().flatten();
        let mut columns: Vec<ResultColumn> = names.map(|it| ResultColumn::named(it.key)).collect();
        columns.extend(["median", "p95", "batches"].map(ResultColumn::named));
        let blocked = Limit::ALL.map(|cause| format!("blocked:{}", cause.key()));
        columns.extend(blocked.iter().map(|name| ResultColumn::named(name)));
        columns.extend(
            [
                "globalBudgetConsumed:honest",
                "globalBudgetConsumed:attacker",
                "boundsHeld",
                "noise",
                "blocking",
                "noiseShare",
                "dominant",
                "queriers",
                "queriersWithoutBatch",
                "median:mean",
                "median:low",
                "median:high",
                "p95:mean",
                "p95:low",
                "p95:high",
            ]
            .map(ResultColumn::named),
        );
        let mut table = ResultTable::new(columns);
        let number = |number: Option<f64>| ResultCell::or_missing(number, ResultCell::Number);
        let rows = self.rows();
        for (run, parameters) in self.runs.iter().zip(&self.parameters) {
            let outcome = &run.outcome;
            let mut cells: Vec<ResultCell> = parameters
                .iter()
                .map(|it| ResultCell::or_missing(it.value.as_ref(), ResultCell::text))
                .collect();
            cells.extend([outcome.error(50.0), outcome.error(95.0)].map(number));
            cells.push(ResultCell::Count(outcome.batches.len() as u64));
            cells.extend(Limit::ALL.map(|cause| number(outcome.blocked_share(cause))));
            let (honest, attacker) = outcome.spent.mean().unzip();
            cells.extend([honest, attacker].map(number));
            let held = outcome.resilience.as_ref().map(Resilience::hold);
            cells.push(ResultCell::or_missing(held, |held| {
                ResultCell::text(held.to_string())
            }));
            let diagnosis = Diagnosis::of(&outcome.batches);
            cells.extend([
                number(diagnosis.as_ref().map(|it| it.noise)),
                number(diagnosis.as_ref().map(|it| it.blocking)),
                number(diagnosis.as_ref().map(|it| it.noise_share)),
                ResultCell::or_missing(diagnosis.as_ref(), |it| ResultCell::text(mostly(it))),
                ResultCell::Count(run.queriers.with_batch as u64),
                ResultCell::Count(run.queriers.too_few_conversions as u64),
            ]);
            let of_seeds = rows
                .iter()
                .find(|row| row.runs.iter().any(|it| std::ptr::eq(*it, run)));
            for percent in [50.0, 95.0] {
                let interval = of_seeds.and_then(|row| row.interval(percent));
                cells.extend([
                    number(interval.map(|it| it.mean)),
                    number(interval.map(|it| it.low)),
                    number(interval.map(|it| it.high)),
                ]);
            }
            table.row(cells);
        }
        table
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

/// The noise that queriers plan for.
fn planned(options: QuerierOptions) -> String {
    let target = percent(options.target_error);
    match options.noise {
        NoiseModel::Paper => format!(
            "That is what queriers plan for: they choose epsilon so that noise alone gives an error \
             of {target}."
        ),
        NoiseModel::Consistent => format!(
            "Queriers choose epsilon so that noise of scale 1/ε would give an error of {target}. \
             The noise that the accounting assumes is twice as large."
        ),
    }
}

/// A change that `simulate` and `tune` can make. Queriers choose their epsilon for a certain error
/// from noise, so the size of batches decides it.
pub(crate) fn change(remedy: Remedy) -> Option<String> {
    match remedy {
        Remedy::LargerBatch | Remedy::SmallerEpsilon => Some(
            "larger batches (--batch-days, --min-batch), because they need less epsilon".to_owned(),
        ),
        Remedy::LargerLimit(limit) => Some(larger(limit)),
        Remedy::SmallerLookback => Some("a shorter lookback (--lookback-epochs)".to_owned()),
        Remedy::FewerBuckets => Some("fewer buckets".to_owned()),
        Remedy::LargerEpsilon => None,
    }
}
