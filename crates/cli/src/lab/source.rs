//! Where a workload comes from, who measures on it, and how it is run: what all commands of the
//! laboratory share.

use std::fmt;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use bigbird_lab::simulate::Laboratory;
use bigbird_lab::text::grouped;
use bigbird_lab::workload::criteo::{self, RawOptions};
use bigbird_lab::workload::read::{Progress, ReadError};
use bigbird_lab::workload::synthetic::{Population, Preset};
use bigbird_lab::workload::table::{self, Columns, TableOptions, TimeUnit};
use bigbird_lab::workload::{DAY, Noise, Querier, QuerierOptions, Workload};
use clap::ValueEnum;

use crate::Failed;
use crate::progress::Bar;
use crate::stdio;

#[derive(Debug, clap::Args)]
pub(crate) struct Source {
    /// Logs: tables in CSV or Parquet, or a folder of them, or of Criteo files, raw or prepared
    /// [default: a synthetic population]
    #[arg(value_name = "LOGS", help_heading = "Workload")]
    logs: Vec<PathBuf>,
    /// The artifact's files 20last_impressions.pqt and 20last_conversions.pqt
    #[arg(long, value_name = "DIR", conflicts_with_all = ["logs", "criteo_raw"], help_heading = "Workload")]
    criteo_prepared: Option<PathBuf>,
    /// CriteoPrivateAd as it is published, in folders day_int=1 and so on
    #[arg(
        long,
        value_name = "DIR",
        conflicts_with = "logs",
        help_heading = "Workload"
    )]
    criteo_raw: Option<PathBuf>,
    /// The days to read of it [default: 11-30]
    #[arg(long, value_name = "FIRST-LAST", help_heading = "Workload")]
    days: Option<Days>,
    /// Keep all of its users, instead of as many of each number of displays as there were originally
    #[arg(long, help_heading = "Workload")]
    no_resampling: bool,
    /// What columns of tables are called, such as device=user_id,time=ts
    #[arg(long, value_name = "COLUMN=NAME,...", help_heading = "Workload")]
    columns: Option<Columns>,
    /// What times of tables are counted in: milliseconds, seconds, minutes, hours, days
    /// [default: minutes]
    #[arg(long, value_name = "UNIT", help_heading = "Workload")]
    time_unit: Option<TimeUnit>,
    /// The time of tables from which epochs are counted, such as a Unix time
    #[arg(
        long,
        value_name = "TIME",
        allow_negative_numbers = true,
        help_heading = "Workload"
    )]
    time_origin: Option<i64>,
    /// How many days of tables an epoch has [default: 1]
    #[arg(long, value_name = "DAYS", help_heading = "Workload")]
    epoch_days: Option<u16>,
    /// Tables have all rows of a device together and in the order of time: less work, and checked
    #[arg(long, help_heading = "Workload")]
    sorted: bool,
    /// How many rows of tables are held in memory; more are sorted on disk [default: 4000000]
    #[arg(long, value_name = "COUNT", help_heading = "Workload")]
    memory_rows: Option<usize>,
    /// The size of the synthetic population; 1 is the paper's 1.4 million devices
    #[arg(long, conflicts_with_all = ["logs", "criteo_prepared", "criteo_raw"], default_value_t = 0.1, help_heading = "Workload")]
    scale: f64,
    /// What the synthetic population is fitted to
    #[arg(long, conflicts_with_all = ["logs", "criteo_prepared", "criteo_raw"], value_enum, default_value_t, help_heading = "Workload")]
    preset: PresetName,
    /// What all random choices follow from
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1",
        help_heading = "Workload"
    )]
    pub(crate) seed: Vec<u64>,
    /// How many conversions a day a site must have to measure: 50 in the paper's artifact, 100 in its
    /// text
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 50,
        help_heading = "Measurement"
    )]
    min_conversions_per_day: usize,
    /// How many reports a batch has at least
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 5000,
        help_heading = "Measurement"
    )]
    min_batch: usize,
    /// How many days of conversions make a batch
    #[arg(
        long,
        value_name = "DAYS",
        default_value_t = 10,
        value_parser = clap::value_parser!(u16).range(1..),
        help_heading = "Measurement"
    )]
    pub(crate) batch_days: u16,
    /// Let attackers hear of visits for conversion sites that do not measure as well; the paper's
    /// evaluation leaves those out
    #[arg(long, help_heading = "Measurement")]
    all_visits: bool,
    /// How many epochs before its own a conversion looks at
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 1,
        help_heading = "Measurement"
    )]
    lookback_epochs: u16,
    /// Noise of scale 1/epsilon, as in the paper's figures, or of twice that, as its accounting
    /// assumes [default: paper; for plan, consistent]
    #[arg(long, value_enum, help_heading = "Measurement")]
    noise: Option<NoiseName>,
    /// How many threads work; results do not depend on it [default: all cores]
    #[arg(
        long,
        value_name = "COUNT",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u16).range(1..=1024)
    )]
    threads: Vec<u16>,
}

/// Days, from the first to the last.
#[derive(Debug, Clone)]
struct Days(RangeInclusive<u8>);

impl FromStr for Days {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (first.parse(), last.parse()) {
            (Ok(first), Ok(last)) if 1 <= first && first <= last => Ok(Self(first..=last)),
            _ => Err("it must be two days, such as 11-30".to_owned()),
        }
    }
}

/// What a workload is read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin<'a> {
    Tables,
    Prepared(&'a Path),
    Raw(&'a Path),
    Synthetic,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum PresetName {
    /// What is published without attack
    #[default]
    Published,
    /// The paper's results under attack as well: nothing that it gives under attack is a prediction
    AttackFitted,
}

impl From<PresetName> for Preset {
    fn from(name: PresetName) -> Self {
        match name {
            PresetName::Published => Self::Published,
            PresetName::AttackFitted => Self::AttackFitted,
        }
    }
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum NoiseName {
    #[default]
    Paper,
    Consistent,
}

impl Source {
    /// The seed and the number of threads of a command that takes one of each.
    pub(crate) fn one(&self) -> Result<(u64, usize), Failed> {
        match (self.seed.as_slice(), self.threads().as_slice()) {
            ([seed], [threads]) => Ok((*seed, *threads)),
            _ => Err(Failed::because(
                "--seed and --threads take one value each here; `bigbird simulate` takes several",
            )),
        }
    }

    fn origin(&self) -> Origin<'_> {
        match (
            &self.criteo_prepared,
            &self.criteo_raw,
            self.logs.as_slice(),
        ) {
            (Some(folder), _, _) => Origin::Prepared(folder),
            (_, Some(folder), _) => Origin::Raw(folder),
            (_, _, []) => Origin::Synthetic,
            (_, _, [folder]) if criteo::is_prepared(folder) => Origin::Prepared(folder),
            (_, _, [folder]) if criteo::is_raw(folder) => Origin::Raw(folder),
            _ => Origin::Tables,
        }
    }

    /// Reads or generates the workload; a generated one follows from the seed. Says so where its epochs
    /// are unlikely.
    pub(crate) fn workload(&self, seed: u64) -> Result<Workload, Failed> {
        self.refuse_unused_options()?;
        let workload = self.read(seed)?;
        if self.origin() == Origin::Tables
            && let Some((first, last)) = workload.epochs()
            && (first == last || last - first > 400)
        {
            stdio::tell(&format!(
                "note: events lie in {} epochs of {} days: are --time-unit {} and --epoch-days \
                 right?",
                last - first + 1,
                self.epoch_days(),
                self.time_unit().name()
            ));
        }
        Ok(workload)
    }

    /// An option that would have no effect is a mistake: probably of what is to be read.
    fn refuse_unused_options(&self) -> Result<(), Failed> {
        let for_tables = [
            ("--columns", self.columns.is_some()),
            ("--time-unit", self.time_unit.is_some()),
            ("--time-origin", self.time_origin.is_some()),
            ("--epoch-days", self.epoch_days.is_some()),
            ("--sorted", self.sorted),
            ("--memory-rows", self.memory_rows.is_some()),
        ];
        let for_raw = [
            ("--days", self.days.is_some()),
            ("--no-resampling", self.no_resampling),
        ];
        let given = |options: &[(&'static str, bool)]| {
            let given = options.iter().find(|(_, given)| *given);
            given.map(|(option, _)| *option)
        };
        let origin = self.origin();
        let unused = if let Some(option) = given(&for_tables)
            && origin != Origin::Tables
        {
            Some((
                option,
                "tables",
                "name the tables to read, such as logs.csv",
            ))
        } else if let Some(option) = given(&for_raw)
            && !matches!(origin, Origin::Raw(_))
        {
            Some((option, "raw Criteo files", "give --criteo-raw DIR"))
        } else {
            None
        };
        let Some((option, what, remedy)) = unused else {
            return Ok(());
        };
        let workload = match origin {
            Origin::Synthetic => "a synthetic population".to_owned(),
            Origin::Tables => format!("read from tables, {self}"),
            Origin::Prepared(_) => format!("read from prepared Criteo files, {self}"),
            Origin::Raw(_) => format!("read from raw Criteo files, {self}"),
        };
        Err(Failed::misused(format!(
            "{option} is for {what}, but the workload is {workload}: {remedy}, or leave it out"
        )))
    }

    fn time_unit(&self) -> TimeUnit {
        self.time_unit.unwrap_or_default()
    }

    fn epoch_days(&self) -> u16 {
        self.epoch_days.unwrap_or(1)
    }

    fn read(&self, seed: u64) -> Result<Workload, Failed> {
        let mut bar = Bar::new();
        let mut progress = |progress: Progress| {
            #[expect(clippy::cast_precision_loss, reason = "a share of bytes")]
            let done = progress.bytes_done as f64 / progress.bytes_total.max(1) as f64;
            bar.show(done, 0.0, &format!("{} rows read", grouped(progress.rows)));
        };
        let unreadable = |error: ReadError| Failed::unreadable(error.to_string());
        match self.origin() {
            Origin::Prepared(folder) => criteo::read_prepared(folder).map_err(unreadable),
            Origin::Raw(folder) => {
                let options = RawOptions {
                    days: self.days.as_ref().map_or(11..=30, |days| days.0.clone()),
                    resample: !self.no_resampling,
                    seed,
                    ..RawOptions::default()
                };
                criteo::read_raw(folder, &options, &mut progress).map_err(unreadable)
            }
            Origin::Tables => {
                let epoch_minutes = NonZeroU32::new(u32::from(self.epoch_days()) * DAY);
                let options = TableOptions {
                    columns: self.columns.clone().unwrap_or_default(),
                    time_unit: self.time_unit(),
                    time_origin: self.time_origin,
                    epoch_minutes: epoch_minutes
                        .ok_or_else(|| Failed::because("--epoch-days must be at least 1, got 0"))?,
                    sorted: self.sorted,
                    memory_rows: self.memory_rows.unwrap_or(4_000_000),
                    ..TableOptions::default()
                };
                table::read(&self.logs, &options, &mut progress).map_err(unreadable)
            }
            Origin::Synthetic => {
                if !(self.scale > 0.0 && self.scale <= 10.0) {
                    let why = format!("--scale must be in (0, 10], got {}", self.scale);
                    return Err(Failed::because(why));
                }
                let population = Population {
                    preset: self.preset.into(),
                    scale: self.scale,
                    seed,
                };
                Ok(population.generate())
            }
        }
    }

    /// How queriers measure.
    pub(crate) fn options(&self) -> QuerierOptions {
        QuerierOptions {
            min_conversions_a_day: self.min_conversions_per_day,
            batch_days: usize::from(self.batch_days),
            min_batch: self.min_batch,
            all_visits: self.all_visits,
            noise: match self.noise {
                Some(NoiseName::Consistent) => Noise::Consistent,
                Some(NoiseName::Paper) | None => Noise::Paper,
            },
            ..QuerierOptions::default()
        }
    }

    /// How many epochs before its own a conversion looks at.
    pub(crate) fn lookback_epochs(&self) -> u16 {
        self.lookback_epochs
    }

    /// How queriers measure in a plan: by default with the noise that is accounted for.
    pub(crate) fn planned_options(&self) -> QuerierOptions {
        let options = self.options();
        match self.noise {
            None => QuerierOptions {
                noise: Noise::Consistent,
                ..options
            },
            Some(_) => options,
        }
    }

    /// What an attacker owns unless it is said, in words.
    pub(crate) fn owned(&self) -> String {
        format!(
            "the 10 busiest impression sites and the {} busiest conversion sites",
            self.of_ten_sites()
        )
    }

    /// The size of a synthetic population, against the paper's.
    pub(crate) fn size(&self) -> Option<f64> {
        (self.origin() == Origin::Synthetic).then_some(self.scale)
    }

    /// A laboratory for it, in which somebody measures.
    pub(crate) fn laboratory<'w>(
        &self,
        workload: &'w Workload,
        threads: usize,
    ) -> Result<Laboratory<'w>, Failed> {
        let options = self.options();
        let laboratory =
            Laboratory::with_lookback(workload, options, self.lookback_epochs, threads)?;
        if laboratory.queriers().is_empty() {
            return Err(Failed::because(format!(
                "no conversion site has {} conversions a day: --min-conversions-per-day must be \
                 less",
                self.min_conversions_per_day
            )));
        }
        let complete = |querier: &Querier| querier.reports.len() >= querier.batch;
        if !laboratory.queriers().iter().any(complete) {
            let busiest = laboratory
                .queriers()
                .iter()
                .max_by_key(|it| it.reports.len());
            let (reports, batch) = busiest.map_or((0, 0), |it| (it.reports.len(), it.batch));
            return Err(Failed::because(format!(
                "no querier has conversions for one batch: the busiest has {reports}, and a batch is \
                 {batch}: those of --batch-days {}, and at least --min-batch {}",
                options.batch_days, options.min_batch
            )));
        }
        Ok(laboratory)
    }

    /// Whether another seed gives another workload.
    pub(crate) fn follows_from_seed(&self) -> bool {
        match self.origin() {
            Origin::Synthetic => true,
            Origin::Raw(_) => !self.no_resampling,
            Origin::Tables | Origin::Prepared(_) => false,
        }
    }

    /// The preset of a synthetic population.
    pub(crate) fn preset(&self) -> Option<Preset> {
        (self.origin() == Origin::Synthetic).then(|| self.preset.into())
    }

    /// Every parameter, by name.
    pub(crate) fn parameters(&self) -> Vec<(String, String)> {
        let mut parameters = vec![("workload", self.to_string())];
        let options = self.options();
        parameters.extend([
            ("seed", self.seed.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")),
            (
                "queriers",
                format!(
                    "conversion sites with at least {} conversions a day",
                    self.min_conversions_per_day
                ),
            ),
            (
                "batch",
                format!(
                    "{} days of conversions, at least {} reports, in the order of time",
                    options.batch_days, options.min_batch
                ),
            ),
            (
                "epsilon",
                format!(
                    "such that noise alone gives an error of {}%, τ = {}",
                    100.0 * options.target_error,
                    options.tau
                ),
            ),
            (
                "noise",
                match options.noise {
                    Noise::Paper => "scale 1/ε, as in the paper's figures",
                    Noise::Consistent => "scale 2/ε, as the paper's accounting assumes",
                }
                .to_owned(),
            ),
            (
                "epoch",
                format!(
                    "a conversion asks for its own epoch and {} before",
                    self.lookback_epochs
                ),
            ),
            (
                "defaults",
                "querier budget 1, global budget 8, impression-site quota 2, conversion-site quota \
                 1, domain cap 2"
                    .to_owned(),
            ),
            (
                "attackers",
                format!(
                    "own the 10 busiest impression sites and the {} busiest queriers; hear of visits \
                     for {}; 25 Sybils; visit two more than the cap allows, or 20",
                    self.of_ten_sites(),
                    match self.all_visits {
                        true => "any conversion site",
                        false => "queriers",
                    }
                ),
            ),
        ]);
        parameters
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }

    /// How many threads work, each number in turn.
    pub(crate) fn threads(&self) -> Vec<usize> {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        match self.threads.is_empty() {
            true => vec![cores()],
            false => self.threads.iter().copied().map(usize::from).collect(),
        }
    }

    /// How many conversion sites are as many as ten of the paper's: a smaller population has fewer,
    /// each as busy as there.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a part of ten"
    )]
    pub(crate) fn of_ten_sites(&self) -> u32 {
        match self.size() {
            Some(scale) => (10.0 * scale).round().max(1.0) as u32,
            None => 10,
        }
    }
}

/// What it is, in words.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.origin(), self.preset) {
            (Origin::Prepared(folder) | Origin::Raw(folder), _) => {
                write!(f, "{}", folder.display())
            }
            (Origin::Tables, _) => {
                let paths = self.logs.iter().map(|path| path.display().to_string());
                f.write_str(&paths.collect::<Vec<_>>().join(", "))
            }
            (Origin::Synthetic, preset) => {
                let size = match self.scale {
                    1.0 => "of the paper's size".to_owned(),
                    0.1 => "a tenth of the paper's size".to_owned(),
                    scale => format!("{scale} of the paper's size"),
                };
                let fitted = match preset {
                    PresetName::Published => "",
                    PresetName::AttackFitted => ", that was fitted to results under attack",
                };
                write!(f, "a synthetic population, {size}{fitted}")
            }
        }
    }
}
