//! `bigbird plan`: what error an advertiser can expect.

use std::fmt::Write as _;
use std::path::PathBuf;

use bigbird_lab::chart::{Chart, Series, Stroke};
use bigbird_lab::describe::Counts;
use bigbird_lab::plan::{Expected, Measurement, reports_of_devices};
use bigbird_lab::workload::{Noise, QuerierOptions};
use serde_json::{Value, json};

use super::source::Source;
use crate::{Failed, Finished, output};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The error is RMSRE, the root of the mean squared relative error of a batch's buckets. Noise falls with
epsilon and with the size of a batch; but each report costs a device epsilon, and when its budget is used
up, further reports are missing. How many reports a device makes is counted in a workload: a synthetic
population, or your own.

  bigbird plan --conversions-per-day 600 --target 5
  bigbird plan --conversions-per-day 600 --epsilon 0.2 --shares 0.6,0.2,0.1,0.05,0.05
  bigbird plan --conversions-per-day 600 --target 5 --figure plan.svg")]
pub(crate) struct Args {
    /// Conversions a day
    #[arg(long, value_name = "COUNT")]
    conversions_per_day: f64,
    /// The share of each bucket among conversions [default: --buckets equal ones]
    #[arg(
        long,
        value_name = "SHARE",
        value_delimiter = ',',
        conflicts_with = "buckets"
    )]
    shares: Vec<f64>,
    /// How many buckets
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    buckets: usize,
    /// The reports that make a batch, instead of days
    #[arg(long, value_name = "COUNT", conflicts_with = "batch_days")]
    batch: Option<f64>,
    /// The error to stay within, in percent: which epsilon does it take? [default: 5]
    #[arg(long, value_name = "PERCENT", conflicts_with = "epsilon", value_parser = percent)]
    target: Option<f64>,
    /// The epsilon of each report: what error does it give?
    #[arg(long)]
    epsilon: Option<f64>,
    /// The querier budget of a device, in epsilons
    #[arg(long, value_name = "EPSILON", default_value_t = 1.0)]
    querier: f64,
    /// The conversion-site quota of a device
    #[arg(long, value_name = "EPSILON", default_value_t = 1.0)]
    conversion_quota: f64,
    /// The impression-site quota of a device
    #[arg(long, value_name = "EPSILON", default_value_t = 2.0)]
    impression_quota: f64,
    /// The global budget of a device
    #[arg(long, value_name = "EPSILON", default_value_t = 8.0)]
    global: f64,
    /// What other sites, or attackers, take of the global budget and the impression-site quota first
    #[arg(long, value_name = "EPSILON", default_value_t = 0.0)]
    others: f64,
    #[command(flatten)]
    source: Source,
    /// Write a figure, as SVG
    #[arg(long, value_name = "FILE")]
    figure: Option<PathBuf>,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Finished {
    args.check()?;
    let (seed, _) = args.source.one()?;
    let workload = args.source.workload(seed)?;
    let counts = reports_of_devices(&workload, None, args.source.lookback_epochs())?;
    if counts.total() == 0 {
        return Err(Failed::because(format!(
            "{} has no conversion after an impression: there is nothing to count",
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
            .map_err(|error| Failed::because(format!("{}: {error}", path.display())))?;
    }
    let text = if args.json {
        let grid: Vec<Value> = grid.iter().map(expected_json).collect();
        output::json(&json!({
            "answer": expected_json(answer.expected()),
            "targetReached": !matches!(answer, Answer::OutOfReach(_)),
            "grid": grid,
        }))?
    } else {
        tell(args, &measurement, batch, &answer, &grid)?
    };
    Ok((text, true))
}

/// More conversions than this nobody has.
const MOST: f64 = 1e12;

/// A number of percent, with or without the sign.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text);
    number
        .parse()
        .map_err(|_| "it must be a number of percent, such as 5".to_owned())
}

/// The answer to what was asked.
enum Answer {
    /// The error of an epsilon.
    OfEpsilon(Expected),
    /// The least epsilon for a target.
    ForTarget(Expected),
    /// No epsilon reaches the target; the best.
    OutOfReach(Expected),
}

impl Answer {
    fn expected(&self) -> &Expected {
        match self {
            Self::OfEpsilon(expected) | Self::ForTarget(expected) | Self::OutOfReach(expected) => {
                expected
            }
        }
    }
}

impl Args {
    fn check(&self) -> Result<(), Failed> {
        let positive = [
            ("--conversions-per-day", Some(self.conversions_per_day)),
            ("--batch", self.batch),
            ("--target", self.target),
            ("--epsilon", self.epsilon),
            ("--querier", Some(self.querier)),
            ("--conversion-quota", Some(self.conversion_quota)),
            ("--impression-quota", Some(self.impression_quota)),
            ("--global", Some(self.global)),
        ];
        for (name, value) in positive {
            if let Some(value) = value
                && !(value > 0.0 && value.is_finite())
            {
                let why = format!("{name} must be a number above 0, got {value}");
                return Err(Failed::because(why));
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
                return Err(Failed::because(why));
            }
        }
        if !(self.others >= 0.0 && self.others < self.global.min(self.impression_quota)) {
            return Err(Failed::because(format!(
                "--others must be less than the global budget and the impression-site quota, got {}",
                self.others
            )));
        }
        if self.buckets == 0 || self.buckets > 1 << 20 {
            let why = format!("--buckets must be in [1, 1048576], got {}", self.buckets);
            return Err(Failed::because(why));
        }
        let sum: f64 = self.shares.iter().sum();
        let bad = self
            .shares
            .iter()
            .find(|share| !(0.0..=1.0).contains(*share));
        if let Some(share) = bad {
            let why = format!("--shares must be in [0, 1], got {share}");
            return Err(Failed::because(why));
        }
        if !self.shares.is_empty() && (sum - 1.0).abs() > 0.01 {
            let why = format!("--shares must sum to 1, got a sum of {sum}");
            return Err(Failed::because(why));
        }
        Ok(())
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
                .querier
                .min(self.conversion_quota)
                .min(self.impression_quota - self.others)
                .min(self.global - self.others),
            reports_of_device,
        }
    }

    fn answer(&self, measurement: &Measurement, batch: f64) -> Answer {
        if let Some(epsilon) = self.epsilon {
            return Answer::OfEpsilon(measurement.expect(epsilon, batch));
        }
        match measurement.epsilon_for(self.target.unwrap_or(5.0) / 100.0, batch) {
            Ok(expected) => Answer::ForTarget(expected),
            Err(best) => Answer::OutOfReach(best),
        }
    }

    /// What else could be done: other epsilons, and other batches.
    fn grid(&self, measurement: &Measurement, batch: f64, answer: &Answer) -> Vec<Expected> {
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

fn expected_json(expected: &Expected) -> Value {
    json!({
        "epsilon": expected.epsilon,
        "batch": expected.batch,
        "noise": expected.noise,
        "blocked": expected.blocked,
        "bias": expected.bias,
        "error": expected.error,
    })
}

/// The error over epsilons around the one that was found, for two sizes of batches.
fn chart(measurement: &Measurement, batch: f64, epsilon: f64) -> Chart {
    let last = (6.0 * epsilon).min(measurement.budget);
    let steps: Vec<f64> = (4..=120)
        .map(|step| f64::from(step) * last / 120.0)
        .collect();
    let of = |value: fn(&Expected) -> f64, batch: f64| -> Vec<(f64, f64)> {
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
        title: "What error to expect".to_owned(),
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
        paper: Vec::new(),
    }
}

fn tell(
    args: &Args,
    measurement: &Measurement,
    batch: f64,
    answer: &Answer,
    grid: &[Expected],
) -> Result<String, Failed> {
    let mut text = String::new();
    let expected = answer.expected();
    let percent = |fraction: f64| format!("{:.1}%", 100.0 * fraction);
    match answer {
        Answer::OfEpsilon(_) => writeln!(
            text,
            "Batches of {batch:.0} reports at epsilon {}: an error of {}.",
            expected.epsilon,
            percent(expected.error)
        )?,
        Answer::ForTarget(_) => writeln!(
            text,
            "Batches of {batch:.0} reports need epsilon {:.4} for an error of {}.",
            expected.epsilon,
            percent(expected.error)
        )?,
        Answer::OutOfReach(_) => writeln!(
            text,
            "No epsilon gives batches of {batch:.0} reports an error of {}%. The best is {:.4}, with \
             {}: sum more reports, or into fewer buckets.",
            args.target.unwrap_or(5.0),
            expected.epsilon,
            percent(expected.error)
        )?,
    }
    writeln!(
        text,
        "Noise of scale {} gives {}. A device pays at most epsilon {} for this advertiser in an epoch (the \
         least of\nits querier budget, quotas and global budget): {} of reports are blocked, which gives \
         {}.\n",
        match measurement.noise {
            Noise::Paper => "1/epsilon",
            Noise::Consistent => "2/epsilon",
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
        "by noise",
        "blocked",
        "by blocking",
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
        "Error: the root of the mean squared relative error of a batch's buckets. How many reports a \
         device\nmakes in an epoch is counted in {}.",
        args.source
    )?;
    if let Some(path) = &args.figure {
        writeln!(text, "The figure: {}", path.display())?;
    }
    Ok(text)
}
