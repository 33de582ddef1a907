//! `bigbird plan`: the error that an advertiser can expect.

use std::path::PathBuf;
use std::str::FromStr;

use bigbird::Limit;
use bigbird_chart::{Chart, Series, Stroke};
use bigbird_lab::describe::Counts;
use bigbird_lab::evaluation::{NoiseModel, QuerierOptions, Remedy};
use bigbird_lab::plan::{ExpectedError, Measurement, reports_of_devices};
use serde_json::{Value, json};

use super::advice::{advice, larger};
use super::source::{WithoutBuckets, WorkloadSource};
use crate::output::{
    Document, FormatArgs, ResultCell, ResultColumn, ResultFormat, ResultTable, grouped, percent,
};
use crate::{CommandError, CommandResult, output};

#[derive(Debug, clap::Args)]
#[command(
    after_help = EXAMPLES,
    after_long_help = format!("{EXAMPLES}\n\n{EXPLANATION}")
)]
pub(crate) struct PlanArgs {
    /// Number of conversions per day
    #[arg(long, value_name = "COUNT")]
    conversions_per_day: f64,
    /// Share of conversions in each bucket; the shares sum to 1 [default: equal shares]
    #[arg(
        long,
        value_name = "SHARE",
        value_delimiter = ',',
        conflicts_with = "buckets"
    )]
    shares: Vec<f64>,
    /// Number of buckets, from 1 to 1048576 [default: that of the workload]
    ///
    /// A synthetic population has 5.
    #[arg(long, value_name = "COUNT")]
    buckets: Option<usize>,
    /// Number of reports in a batch [default: the conversions of --batch-days]
    #[arg(long, value_name = "COUNT", conflicts_with = "batch_days")]
    batch: Option<f64>,
    /// Error to stay within, in percent [default: 5]
    ///
    /// The answer is the smallest epsilon for it.
    #[arg(long, value_name = "PERCENT", conflicts_with = "epsilon")]
    target: Option<Percentage>,
    /// Epsilon of each report
    ///
    /// The answer is the error that it gives.
    #[arg(long)]
    epsilon: Option<f64>,
    #[command(flatten)]
    source: WorkloadSource<WithoutBuckets>,
    #[command(flatten)]
    limits: DeviceLimits,
    #[command(flatten)]
    output: PlanOutputArgs,
}

const EXAMPLES: &str = "\
Examples:
  bigbird plan --conversions-per-day 600 --target 5
  bigbird plan --conversions-per-day 600 --epsilon 0.2 --shares 0.6,0.2,0.1,0.05,0.05
  bigbird plan --conversions-per-day 600 --target 5 --figure plan.svg";

const EXPLANATION: &str = "\
The error is RMSRE, the root of the mean squared relative error of a batch's buckets. A larger
epsilon and a larger batch both reduce the noise. But each report costs the device some epsilon,
and when the device's budget is used up, further reports are blocked. The number of reports of a
device is counted in a workload: a synthetic population, or your own logs.

Exit status: 0, 1 if no epsilon reaches the target, 2 for wrong arguments and for logs that cannot
be read.";

/// The limits of a device.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Limits")]
struct DeviceLimits {
    /// Querier budget of a device, in epsilons
    ///
    /// What one querier can learn about a device in an epoch. A smaller epsilon is more private.
    #[arg(long = Limit::QuerierBudget.flag(), alias = "querier", value_name = "EPSILON", default_value_t = 1.0)]
    querier_budget: f64,
    /// Global budget of a device, in epsilons
    ///
    /// What all queriers together can learn about a device in an epoch.
    #[arg(long = Limit::GlobalBudget.flag(), alias = "global", value_name = "EPSILON", default_value_t = 8.0)]
    global_budget: f64,
    /// Impression-site quota of a device, in epsilons
    ///
    /// The most that reports about ads shown on one site can take from the global budget.
    #[arg(
        long = Limit::ImpressionSiteQuota.flag(),
        alias = "impression-quota",
        value_name = "EPSILON",
        default_value_t = 2.0
    )]
    impression_site_quota: f64,
    /// Conversion-site quota of a device, in epsilons
    ///
    /// The most that conversions on one site can take from the global budget.
    #[arg(
        long = Limit::ConversionSiteQuota.flag(),
        alias = "conversion-quota",
        value_name = "EPSILON",
        default_value_t = 1.0
    )]
    conversion_site_quota: f64,
    /// Epsilon that other sites or attackers have already taken
    ///
    /// It is subtracted from the global budget and from the impression-site quota.
    #[arg(long, value_name = "EPSILON", default_value_t = 0.0)]
    others: f64,
}

/// The files to write, and the form of what is printed.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Output")]
struct PlanOutputArgs {
    /// SVG file to write a figure to
    #[arg(long, value_name = "FILE")]
    figure: Option<PathBuf>,
    #[command(flatten)]
    format: FormatArgs,
}

pub(crate) fn run(args: &PlanArgs) -> CommandResult {
    args.check()?;
    let (seed, _) = args.source.one()?;
    let workload = args.source.workload_to_replay(seed)?;
    let counts = reports_of_devices(&workload, None, args.source.lookback_epochs())?;
    if counts.total() == 0 {
        return Err(CommandError::misused(format!(
            "no device converts after an impression in {}; there is nothing to count",
            args.source
        )));
    }
    let measurement = args.measurement(counts, usize::from(workload.buckets));
    let batch = args
        .batch
        .unwrap_or(args.conversions_per_day * f64::from(args.source.batch_days));
    let answer = args.answer(&measurement, batch);
    let grid = args.grid(&measurement, batch, &answer);
    if let Some(path) = &args.output.figure {
        let chart = chart(&measurement, batch, answer.expected().epsilon).to_file();
        std::fs::write(path, chart).map_err(|error| {
            CommandError::because(format!("cannot write {}: {error}", path.display()))
        })?;
    }
    let reached = !matches!(answer, PlanAnswer::OutOfReach(_));
    // What would do instead, if the batch is too small.
    let enough = match reached {
        true => None,
        false => measurement.batch_for(args.target() / 100.0),
    };
    let text = match args.output.format.format() {
        ResultFormat::Json => {
            let diagnosis = answer.expected().diagnosis(args.least().0);
            let grid: Vec<Value> = grid.iter().map(expected_json).collect();
            output::json(&json!({
                "answer": expected_json(answer.expected()),
                "targetReached": reached,
                "batchTooSmall": enough.is_some(),
                "smallestBatch": enough.as_ref().map(expected_json),
                "dominant": diagnosis.dominant,
                "noiseShare": diagnosis.noise_share,
                "blockingLimit": args.least().0.key(),
                "buckets": measurement.shares.len(),
                "grid": grid,
            }))?
        }
        format => {
            let found = Plan {
                measurement,
                batch,
                answer,
                grid,
                enough,
            };
            found.tell(args).render(format)
        }
    };
    Ok((text, reached))
}

/// The most conversions that are accepted.
const MOST: f64 = 1e12;

/// A percentage, with or without its sign.
#[derive(Debug, Clone, Copy)]
struct Percentage(f64);

impl FromStr for Percentage {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_suffix('%').unwrap_or(text).parse() {
            Ok(number) => Ok(Self(number)),
            Err(_) => Err("it is not a percentage; use a number, such as 5".to_owned()),
        }
    }
}

/// The answer to the question that the arguments ask.
enum PlanAnswer {
    /// The error that the given epsilon gives.
    OfEpsilon(ExpectedError),
    /// The least epsilon that reaches the target.
    ForTarget(ExpectedError),
    /// The best epsilon, if none reaches the target.
    OutOfReach(ExpectedError),
}

impl PlanAnswer {
    fn expected(&self) -> &ExpectedError {
        match self {
            Self::OfEpsilon(expected) | Self::ForTarget(expected) | Self::OutOfReach(expected) => {
                expected
            }
        }
    }
}

impl PlanArgs {
    fn check(&self) -> Result<(), CommandError> {
        let positive = [
            ("--conversions-per-day", Some(self.conversions_per_day)),
            ("--batch", self.batch),
            ("--target", Some(self.target())),
            ("--epsilon", self.epsilon),
        ];
        let positive = positive.map(|(name, value)| (name.to_owned(), value));
        let limits = [
            (Limit::QuerierBudget, self.limits.querier_budget),
            (Limit::GlobalBudget, self.limits.global_budget),
            (
                Limit::ImpressionSiteQuota,
                self.limits.impression_site_quota,
            ),
            (
                Limit::ConversionSiteQuota,
                self.limits.conversion_site_quota,
            ),
        ];
        let limits = limits.map(|(limit, value)| (format!("--{}", limit.flag()), Some(value)));
        for (name, value) in positive.into_iter().chain(limits) {
            if let Some(value) = value
                && !(value > 0.0 && value.is_finite())
            {
                let why = format!("{name} must be a finite number above 0, got {value}");
                return Err(CommandError::misused(why));
            }
        }
        for (name, count) in [
            ("--conversions-per-day", Some(self.conversions_per_day)),
            ("--batch", self.batch),
        ] {
            if let Some(count) = count
                && count > MOST
            {
                let why = format!("{name} must be at most {MOST}, got {count}");
                return Err(CommandError::misused(why));
            }
        }
        let most = self
            .limits
            .global_budget
            .min(self.limits.impression_site_quota);
        if !(self.limits.others >= 0.0 && self.limits.others < most) {
            return Err(CommandError::misused(format!(
                "--others must be in [0, {most}), below the {} and the {}, got {}",
                Limit::GlobalBudget,
                Limit::ImpressionSiteQuota,
                self.limits.others
            )));
        }
        if let Some(buckets) = self.buckets
            && !(1..=1 << 20).contains(&buckets)
        {
            let why = format!("--buckets must be in [1, 1048576], got {buckets}");
            return Err(CommandError::misused(why));
        }
        let sum: f64 = self.shares.iter().sum();
        let bad = self
            .shares
            .iter()
            .find(|share| !(0.0..=1.0).contains(*share));
        if let Some(share) = bad {
            let why = format!("--shares must be in [0, 1], got {share}");
            return Err(CommandError::misused(why));
        }
        if !self.shares.is_empty() && (sum - 1.0).abs() > 0.01 {
            let why = format!("--shares must sum to 1, got a sum of {sum}");
            return Err(CommandError::misused(why));
        }
        Ok(())
    }

    /// The error to stay within, in percent.
    fn target(&self) -> f64 {
        self.target.map_or(5.0, |Percentage(target)| target)
    }

    /// The limit that a device reaches first, and what it leaves for the advertiser.
    fn least(&self) -> (Limit, f64) {
        let limits = &self.limits;
        let left = [
            (Limit::QuerierBudget, limits.querier_budget),
            (Limit::ConversionSiteQuota, limits.conversion_site_quota),
            (
                Limit::ImpressionSiteQuota,
                limits.impression_site_quota - limits.others,
            ),
            (Limit::GlobalBudget, limits.global_budget - limits.others),
        ];
        let [first, rest @ ..] = left;
        rest.into_iter().fold(
            first,
            |least, other| {
                if other.1 < least.1 { other } else { least }
            },
        )
    }

    fn measurement(&self, reports_of_device: Counts, of_workload: usize) -> Measurement {
        let buckets = self.buckets.unwrap_or(of_workload);
        #[expect(clippy::cast_precision_loss, reason = "a count of buckets")]
        let equal = || vec![1.0 / buckets as f64; buckets];
        let options: QuerierOptions = self.source.planned_options();
        Measurement {
            shares: match self.shares.is_empty() {
                true => equal(),
                false => self.shares.clone(),
            },
            tau: options.tau,
            noise: options.noise,
            budget: self.least().1,
            reports_of_device,
        }
    }

    fn answer(&self, measurement: &Measurement, batch: f64) -> PlanAnswer {
        if let Some(epsilon) = self.epsilon {
            return PlanAnswer::OfEpsilon(measurement.expect(epsilon, batch));
        }
        match measurement.epsilon_for(self.target() / 100.0, batch) {
            Ok(expected) => PlanAnswer::ForTarget(expected),
            Err(best) => PlanAnswer::OutOfReach(best),
        }
    }

    /// The alternatives to the answer: other epsilons, and other sizes of batches.
    fn grid(
        &self,
        measurement: &Measurement,
        batch: f64,
        answer: &PlanAnswer,
    ) -> Vec<ExpectedError> {
        let of_answer = answer.expected().epsilon;
        let mut grid = Vec::new();
        for share in [0.5, 1.0, 2.0, 4.0] {
            for factor in [0.25, 0.5, 1.0, 2.0, 4.0] {
                let epsilon = (of_answer * factor * 1e6).round().max(1.0) / 1e6;
                if epsilon <= measurement.budget || factor == 1.0 {
                    grid.push(measurement.expect(epsilon, batch * share));
                }
            }
        }
        grid
    }
}

fn expected_json(expected: &ExpectedError) -> Value {
    json!({
        "epsilon": expected.epsilon,
        "batch": expected.batch,
        "noise": expected.noise,
        "blocked": expected.blocked,
        "bias": expected.bias,
        "error": expected.error,
    })
}

/// A chart of the error over epsilon, around the answer, for two sizes of batches.
fn chart(measurement: &Measurement, batch: f64, epsilon: f64) -> Chart {
    let last = (6.0 * epsilon).min(measurement.budget);
    let steps: Vec<f64> = (4..=120)
        .map(|step| f64::from(step) * last / 120.0)
        .collect();
    let of = |value: fn(&ExpectedError) -> f64, batch: f64| -> Vec<(f64, f64)> {
        steps
            .iter()
            .map(|epsilon| {
                (
                    *epsilon,
                    100.0 * value(&measurement.expect(*epsilon, batch)),
                )
            })
            .collect()
    };
    let line = |name: String, colour, stroke, points| Series {
        name,
        colour,
        stroke,
        points,
    };
    Chart {
        unit: "%",
        title: "The error to expect".to_owned(),
        x_label: "epsilon of a report".to_owned(),
        y_label: "error of a batch (RMSRE), %".to_owned(),
        ticks: Chart::round_numbers(last),
        series: vec![
            line(
                format!("batches of {batch:.0}"),
                0,
                Stroke::Solid,
                of(|it| it.error, batch),
            ),
            line(
                "from noise alone".to_owned(),
                2,
                Stroke::Dashed,
                of(|it| it.noise, batch),
            ),
            line(
                "from blocking alone".to_owned(),
                1,
                Stroke::Dashed,
                of(|it| it.bias, batch),
            ),
            line(
                format!("batches of {:.0}", 4.0 * batch),
                3,
                Stroke::Dashed,
                of(|it| it.error, 4.0 * batch),
            ),
        ],
        stacked: false,
        ..Chart::default()
    }
}

/// The answer, with everything that is shown beside it.
struct Plan {
    measurement: Measurement,
    batch: f64,
    answer: PlanAnswer,
    grid: Vec<ExpectedError>,
    /// The smallest batch that reaches the target, if the given one is too small.
    enough: Option<ExpectedError>,
}

impl Plan {
    fn tell(&self, args: &PlanArgs) -> Document {
        let mut document = Document::new();
        let (batch, expected) = (reports(self.batch), self.answer.expected());
        document.paragraph(match &self.answer {
            PlanAnswer::OfEpsilon(_) => format!(
                "Batches of {batch} reports with epsilon {} have an error of {}.",
                expected.epsilon,
                percent(expected.error)
            ),
            PlanAnswer::ForTarget(_) => format!(
                "Batches of {batch} reports need epsilon {:.4} for an error of {}.",
                expected.epsilon,
                percent(expected.error)
            ),
            PlanAnswer::OutOfReach(_) => format!(
                "No epsilon gives batches of {batch} reports an error of {}%. The best is epsilon \
                 {:.4}, with an error of {}.",
                args.target(),
                expected.epsilon,
                percent(expected.error)
            ),
        });
        let (limit, budget) = args.least();
        document.paragraph(format!(
            "A device pays at most epsilon {budget} for this advertiser in an epoch, because of its \
             {limit}. So {} of reports are blocked. Noise has scale {}.",
            percent(expected.blocked),
            match self.measurement.noise {
                NoiseModel::Paper => "1/epsilon",
                NoiseModel::Consistent => "2/epsilon",
            },
        ));
        let diagnosis = expected.diagnosis(limit);
        let lookback = args.source.lookback_epochs();
        let remedies = diagnosis.remedies(self.measurement.shares.len(), lookback);
        let helps = |remedy| self.helps(remedy).then(|| change(remedy, args));
        document.paragraph(advice(&diagnosis, &remedies, helps));
        if let Some(enough) = &self.enough {
            document.paragraph(format!(
                "The batch is too small for {}%: at least {} reports are needed, the conversions of \
                 {}, with epsilon {:.4}.",
                args.target(),
                reports(enough.batch),
                days(enough.batch / args.conversions_per_day),
                enough.epsilon
            ));
        }
        document.table(self.alternatives(args));
        document.paragraph(format!(
            "Error: the root of the mean squared relative error of a batch's buckets, of which there \
             {}. From noise, from blocking: the error if that were the only one. The number of \
             reports of a device in an epoch is counted in this workload: {}.",
            match self.measurement.shares.len() {
                1 => "is one".to_owned(),
                count => format!("are {}", grouped(count as u64)),
            },
            args.source
        ));
        if let Some(path) = &args.output.figure {
            document.paragraph(format!("Figure: {}", path.display()));
        }
        document
    }

    /// True unless a change would increase the error. A larger epsilon reduces noise, but it can
    /// block more than it helps, and the other way around.
    fn helps(&self, remedy: Remedy) -> bool {
        let expected = self.answer.expected();
        let error = |factor: f64| {
            let other = self
                .measurement
                .expect(expected.epsilon * factor, expected.batch);
            other.error
        };
        match remedy {
            Remedy::LargerEpsilon => error(1.25) < expected.error,
            Remedy::SmallerEpsilon => error(0.8) < expected.error,
            _ => true,
        }
    }

    /// The answer among other batches and epsilons.
    fn alternatives(&self, args: &PlanArgs) -> ResultTable {
        let columns = [
            ResultColumn::named("batch"),
            ResultColumn::named("days"),
            ResultColumn::named("epsilon"),
            ResultColumn::new("from noise", "noise"),
            ResultColumn::named("blocked"),
            ResultColumn::new("from blocking", "blocking"),
            ResultColumn::named("error"),
            ResultColumn::new("", "answer"),
        ];
        let mut table = ResultTable::new(columns.to_vec());
        let expected = self.answer.expected();
        for row in &self.grid {
            let is_answer = row.epsilon == expected.epsilon && row.batch == expected.batch;
            table.row(vec![
                ResultCell::Count(whole(row.batch)),
                ResultCell::Rounded(row.batch / args.conversions_per_day, 1),
                ResultCell::Rounded(row.epsilon, 4),
                ResultCell::Share(row.noise),
                ResultCell::Share(row.blocked),
                ResultCell::Share(row.bias),
                ResultCell::Share(row.error),
                ResultCell::text(if is_answer { "◀" } else { "" }),
            ]);
        }
        table
    }
}

/// A number of reports.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "at most a million million"
)]
fn whole(count: f64) -> u64 {
    count.round() as u64
}

fn reports(count: f64) -> String {
    grouped(whole(count))
}

fn days(days: f64) -> String {
    match days {
        days if days < 1.0 => "less than a day".to_owned(),
        days if days < 10.0 => format!("{days:.1} days"),
        days => format!("{days:.0} days"),
    }
}

/// A change that the user of `plan` can make.
fn change(remedy: Remedy, args: &PlanArgs) -> String {
    let batch = match args.batch {
        Some(_) => "--batch",
        None => "--batch-days",
    };
    match remedy {
        Remedy::LargerBatch => format!("a larger batch ({batch})"),
        Remedy::LargerEpsilon => "a larger epsilon, which is less private".to_owned(),
        Remedy::SmallerEpsilon => "a smaller epsilon".to_owned(),
        Remedy::LargerLimit(limit) => larger(limit),
        Remedy::SmallerLookback => "a shorter lookback (--lookback-epochs)".to_owned(),
        Remedy::FewerBuckets => "fewer buckets (--buckets)".to_owned(),
    }
}
