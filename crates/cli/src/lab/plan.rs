//! `bigbird plan`: the error that an advertiser can expect.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::str::FromStr;

use bigbird::Limit;
use bigbird_chart::{Chart, Series, Stroke};
use bigbird_lab::describe::Counts;
use bigbird_lab::evaluation::{NoiseModel, QuerierOptions};
use bigbird_lab::plan::{ExpectedError, Measurement, reports_of_devices};
use serde_json::{Value, json};

use super::source::{WithoutBuckets, WorkloadSource};
use crate::{CommandError, CommandResult, output};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The error is RMSRE, the root of the mean squared relative error of a batch's buckets. A larger
epsilon and a larger batch both reduce the noise. But each report costs the device some epsilon,
and when the device's budget is used up, further reports are blocked. The number of reports of a
device is counted in a workload: a synthetic population, or your own logs.

  bigbird plan --conversions-per-day 600 --target 5
  bigbird plan --conversions-per-day 600 --epsilon 0.2 --shares 0.6,0.2,0.1,0.05,0.05
  bigbird plan --conversions-per-day 600 --target 5 --figure plan.svg")]
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
    /// Number of buckets, from 1 to 1048576
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    buckets: usize,
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
    #[command(flatten)]
    source: WorkloadSource<WithoutBuckets>,
    /// SVG file to write a figure to
    #[arg(long, value_name = "FILE")]
    figure: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &PlanArgs) -> CommandResult {
    args.check()?;
    let (seed, _) = args.source.one()?;
    let workload = args.source.workload_to_replay(seed)?;
    let counts = reports_of_devices(&workload, None, args.source.lookback_epochs())?;
    if counts.total() == 0 {
        return Err(CommandError::because(format!(
            "no device converts after an impression in {}; there is nothing to count",
            args.source
        )));
    }
    let measurement = args.measurement(counts);
    let batch = args
        .batch
        .unwrap_or(args.conversions_per_day * f64::from(args.source.batch_days));
    let answer = args.answer(&measurement, batch);
    let grid = args.grid(&measurement, batch, &answer);
    if let Some(path) = &args.figure {
        let chart = chart(&measurement, batch, answer.expected().epsilon).to_file();
        std::fs::write(path, chart)
            .map_err(|error| CommandError::because(format!("{}: {error}", path.display())))?;
    }
    let text = if args.json {
        let grid: Vec<Value> = grid.iter().map(expected_json).collect();
        output::json(&json!({
            "answer": expected_json(answer.expected()),
            "targetReached": !matches!(answer, PlanAnswer::OutOfReach(_)),
            "grid": grid,
        }))?
    } else {
        tell(args, &measurement, batch, &answer, &grid)?
    };
    Ok((text, true))
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
            (Limit::QuerierBudget, self.querier_budget),
            (Limit::GlobalBudget, self.global_budget),
            (Limit::ImpressionSiteQuota, self.impression_site_quota),
            (Limit::ConversionSiteQuota, self.conversion_site_quota),
        ];
        let limits = limits.map(|(limit, value)| (format!("--{}", limit.flag()), Some(value)));
        for (name, value) in positive.into_iter().chain(limits) {
            if let Some(value) = value
                && !(value > 0.0 && value.is_finite())
            {
                let why = format!("{name} must be a finite number above 0, got {value}");
                return Err(CommandError::because(why));
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
                return Err(CommandError::because(why));
            }
        }
        let most = self.global_budget.min(self.impression_site_quota);
        if !(self.others >= 0.0 && self.others < most) {
            return Err(CommandError::because(format!(
                "--others must be in [0, {most}), below the {} and the {}, got {}",
                Limit::GlobalBudget,
                Limit::ImpressionSiteQuota,
                self.others
            )));
        }
        if self.buckets == 0 || self.buckets > 1 << 20 {
            let why = format!("--buckets must be in [1, 1048576], got {}", self.buckets);
            return Err(CommandError::because(why));
        }
        let sum: f64 = self.shares.iter().sum();
        let bad = self
            .shares
            .iter()
            .find(|share| !(0.0..=1.0).contains(*share));
        if let Some(share) = bad {
            let why = format!("--shares must be in [0, 1], got {share}");
            return Err(CommandError::because(why));
        }
        if !self.shares.is_empty() && (sum - 1.0).abs() > 0.01 {
            let why = format!("--shares must sum to 1, got a sum of {sum}");
            return Err(CommandError::because(why));
        }
        Ok(())
    }

    /// The error to stay within, in percent.
    fn target(&self) -> f64 {
        self.target.map_or(5.0, |Percentage(target)| target)
    }

    fn measurement(&self, reports_of_device: Counts) -> Measurement {
        #[expect(clippy::cast_precision_loss, reason = "a count of buckets")]
        let equal = || vec![1.0 / self.buckets as f64; self.buckets];
        let options: QuerierOptions = self.source.planned_options();
        Measurement {
            shares: match self.shares.is_empty() {
                true => equal(),
                false => self.shares.clone(),
            },
            tau: options.tau,
            noise: options.noise,
            budget: self
                .querier_budget
                .min(self.conversion_site_quota)
                .min(self.impression_site_quota - self.others)
                .min(self.global_budget - self.others),
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

fn tell(
    args: &PlanArgs,
    measurement: &Measurement,
    batch: f64,
    answer: &PlanAnswer,
    grid: &[ExpectedError],
) -> Result<String, CommandError> {
    let mut text = String::new();
    let expected = answer.expected();
    let percent = |fraction: f64| format!("{:.1}%", 100.0 * fraction);
    match answer {
        PlanAnswer::OfEpsilon(_) => writeln!(
            text,
            "Batches of {batch:.0} reports with epsilon {} have an error of {}.",
            expected.epsilon,
            percent(expected.error)
        )?,
        PlanAnswer::ForTarget(_) => writeln!(
            text,
            "Batches of {batch:.0} reports need epsilon {:.4} for an error of {}.",
            expected.epsilon,
            percent(expected.error)
        )?,
        PlanAnswer::OutOfReach(_) => writeln!(
            text,
            "No epsilon gives batches of {batch:.0} reports an error of {}%.\nThe best is epsilon \
             {:.4}, with an error of {}. Use larger batches, or fewer buckets.",
            args.target(),
            expected.epsilon,
            percent(expected.error)
        )?,
    }
    writeln!(
        text,
        "Noise of scale {} alone gives an error of {}.\n\
         A device pays at most epsilon {} for this advertiser in an epoch: the least of its\n\
         querier budget, quotas and global budget.\n\
         So {} of reports are blocked, which alone gives an error of {}.\n",
        match measurement.noise {
            NoiseModel::Paper => "1/epsilon",
            NoiseModel::Consistent => "2/epsilon",
        },
        percent(expected.noise),
        measurement.budget,
        percent(expected.blocked),
        percent(expected.bias)
    )?;
    let header = [
        "batch",
        "days",
        "epsilon",
        "from noise",
        "blocked",
        "from blocking",
        "error",
        "",
    ];
    let rows = grid.iter().map(|row| {
        vec![
            format!("{:.0}", row.batch),
            format!("{:.1}", row.batch / args.conversions_per_day),
            format!("{:.4}", row.epsilon),
            percent(row.noise),
            percent(row.blocked),
            percent(row.bias),
            percent(row.error),
            match row.epsilon == expected.epsilon && row.batch == expected.batch {
                true => "◀".to_owned(),
                false => String::new(),
            },
        ]
    });
    let header = header.map(str::to_owned).to_vec();
    writeln!(text, "{}\n", output::table(header, rows))?;
    writeln!(
        text,
        "Error: the root of the mean squared relative error of a batch's buckets.\n\
         The number of reports of a device in an epoch is counted in this workload:\n{}.",
        args.source
    )?;
    if let Some(path) = &args.figure {
        writeln!(text, "Figure: {}", path.display())?;
    }
    Ok(text)
}
