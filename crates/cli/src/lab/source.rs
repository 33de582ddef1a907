//! The options that all commands of the laboratory share: the source of the workload, the queriers,
//! and the number of threads.

use std::fmt;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use bigbird_lab::evaluation::{LabError, Laboratory};
use bigbird_lab::evaluation::{NoiseModel, Querier, QuerierOptions};
use bigbird_lab::text::grouped;
use bigbird_lab::workload::criteo::{self, PreparedOptions, RawOptions};
use bigbird_lab::workload::read::{ReadError, ReadProgress};
use bigbird_lab::workload::synthetic::{Population, Preset};
use bigbird_lab::workload::table::{
    self, Columns, Input, MAX_BUCKETS, ReducedNames, SiteNames, TableOptions, TimeForm, TimeOrigin,
    TimeUnit, ValueUnit,
};
use bigbird_lab::workload::understanding::Understanding;
use bigbird_lab::workload::{DAY, Workload};
use bigbird_user_agent::{Localhost, Site};
use clap::ValueEnum;

use crate::CommandError;
use crate::progress::Bar;
use crate::stdio;

#[derive(Debug, clap::Args)]
pub(crate) struct WorkloadSource<B: BucketFlags = BucketArgs> {
    /// Tables or a folder to read, - for standard input [default: a synthetic population]
    ///
    /// Tables are CSV, TSV, JSON or Parquet files, also compressed with gzip or zstd. A folder has
    /// tables, or raw or prepared Criteo files.
    #[arg(value_name = "LOGS", help_heading = "Workload")]
    logs: Vec<PathBuf>,
    /// Folder with prepared Criteo files, as in the paper's artifact
    ///
    /// Their names are 20last_impressions.pqt and 20last_conversions.pqt.
    #[arg(
        long,
        value_name = "DIR",
        conflicts_with_all = ["logs", "criteo_raw"],
        help_heading = "Workload"
    )]
    criteo_prepared: Option<PathBuf>,
    /// Folder with raw Criteo files: CriteoPrivateAd as published
    ///
    /// The days are in folders day_int=1 and so on.
    #[arg(
        long,
        value_name = "DIR",
        conflicts_with = "logs",
        help_heading = "Workload"
    )]
    criteo_raw: Option<PathBuf>,
    /// Days of the raw Criteo files to read [default: 11-30]
    #[arg(long, value_name = "FIRST-LAST", help_heading = "Workload")]
    days: Option<Days>,
    /// Keep all users of the raw Criteo files
    ///
    /// By default, users are resampled to match the original numbers of displays per user.
    #[arg(long, help_heading = "Workload")]
    no_resampling: bool,
    /// Names of the columns in tables, such as device=user_id,time=ts [default: usual names]
    ///
    /// The columns: device, time, conversion_site, impression_site, bucket, kind, value, order. The
    /// name - stands for no column. In JSON, a name with points is a path.
    #[arg(long, value_name = "COLUMN=NAME,...", help_heading = "Workload")]
    columns: Option<Columns>,
    /// Kinds of rows that are impressions [default: impression and the like]
    ///
    /// If the kinds of both impressions and conversions are given, other rows are left out.
    #[arg(
        long,
        value_name = "KIND,...",
        value_delimiter = ',',
        help_heading = "Workload"
    )]
    impression_kind: Vec<String>,
    /// Kinds of rows that are conversions [default: conversion, purchase and the like]
    #[arg(
        long,
        value_name = "KIND,...",
        value_delimiter = ',',
        help_heading = "Workload"
    )]
    conversion_kind: Vec<String>,
    #[command(flatten)]
    buckets: B,
    /// Unit of the values in tables, such as 0.01 [default: values are whole numbers]
    ///
    /// Values are counted in this unit and rounded to the nearest. A smaller value counts as 1.
    #[arg(long, value_name = "NUMBER", help_heading = "Workload")]
    value_unit: Option<ValueUnit>,
    /// Names of sites in tables [default: registrable for URLs, otherwise written]
    #[arg(long, value_enum, value_name = "NAMES", help_heading = "Workload")]
    sites: Option<SiteNaming>,
    /// Unit of the times in tables that are numbers [default: told by looking]
    ///
    /// One of nanoseconds, microseconds, milliseconds, seconds, minutes, hours and days. Large
    /// numbers are Unix times, and small ones are minutes.
    #[arg(long, value_name = "UNIT", help_heading = "Workload")]
    time_unit: Option<TimeUnit>,
    /// Time in tables at which the first epoch begins [default: 0, or 1970-01-01 in UTC]
    ///
    /// A date or time, or a number in --time-unit.
    #[arg(long, value_name = "TIME", help_heading = "Workload")]
    time_origin: Option<TimeOrigin>,
    /// Length of an epoch for tables, in days [default: 1]
    #[arg(long, value_name = "DAYS", help_heading = "Workload")]
    epoch_days: Option<u16>,
    /// Expect sorted tables: the rows of each device together, in order of time
    ///
    /// A table that breaks this order is an error.
    ///
    /// Sorted tables are less work to read.
    #[arg(long, help_heading = "Workload")]
    sorted: bool,
    /// Maximum number of table rows to keep in memory [default: 4000000]
    ///
    /// Larger tables are partitioned on disk.
    #[arg(long, value_name = "COUNT", help_heading = "Workload")]
    memory_rows: Option<usize>,
    /// Size of the synthetic population, up to 10
    ///
    /// 1 is the paper's size: 1.4 million devices.
    #[arg(
        long,
        conflicts_with_all = ["logs", "criteo_prepared", "criteo_raw"],
        default_value_t = 0.1,
        help_heading = "Workload"
    )]
    scale: f64,
    /// Data that the synthetic population is fitted to
    #[arg(
        long,
        conflicts_with_all = ["logs", "criteo_prepared", "criteo_raw"],
        value_enum,
        default_value_t,
        help_heading = "Workload"
    )]
    preset: PresetName,
    /// Seed of all random choices
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1",
        help_heading = "Workload"
    )]
    pub(crate) seed: Vec<u64>,
    /// Conversions per day that a site needs to be a querier
    ///
    /// The paper's artifact uses 50, its text 100.
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 50,
        help_heading = "Measurement"
    )]
    min_conversions_per_day: usize,
    /// Smallest number of reports in a batch
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 5000,
        help_heading = "Measurement"
    )]
    min_batch: usize,
    /// Length of a batch, in days of conversions
    #[arg(
        long,
        value_name = "DAYS",
        default_value_t = 10,
        value_parser = clap::value_parser!(u16).range(1..),
        help_heading = "Measurement"
    )]
    pub(crate) batch_days: u16,
    /// Tell attackers also about events of conversion sites that do not measure
    ///
    /// The paper's evaluation leaves those events out.
    #[arg(long, help_heading = "Measurement")]
    all_visits: bool,
    /// Number of epochs that a conversion reads before its own, up to 4095
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 1,
        help_heading = "Measurement"
    )]
    lookback_epochs: u16,
    /// Noise that is added to sums [default: consistent in `bigbird plan`, otherwise paper]
    #[arg(long, value_enum, help_heading = "Measurement")]
    noise: Option<NoiseName>,
    /// Number of threads, up to 1024 [default: all cores]
    ///
    /// Results do not depend on it.
    #[arg(
        long,
        value_name = "COUNT",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u16).range(1..=1024),
        help_heading = "Measurement"
    )]
    threads: Vec<u16>,
}

/// The scale of the noise, in words.
pub(crate) fn noise_scale(noise: NoiseModel) -> &'static str {
    match noise {
        NoiseModel::Paper => "scale 1/ε, as in the paper's figures",
        NoiseModel::Consistent => "scale 2/ε, as the paper's accounting assumes",
    }
}

/// A range of days.
#[derive(Debug, Clone)]
struct Days(RangeInclusive<u8>);

impl FromStr for Days {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (first.parse(), last.parse()) {
            (Ok(first), Ok(last)) if 1 <= first && first <= last => Ok(Self(first..=last)),
            _ => Err(format!(
                "use FIRST-LAST with 1 ≤ FIRST ≤ LAST, such as 11-30, instead of `{text}`"
            )),
        }
    }
}

/// The options for buckets of tables.
pub(crate) trait BucketFlags: clap::Args + fmt::Debug {
    /// Sets the options for reading tables.
    fn apply(&self, options: &mut TableOptions);

    /// Every flag, and whether it was given.
    fn given(&self) -> Vec<(&'static str, bool)>;
}

#[derive(Debug, clap::Args)]
pub(crate) struct BucketArgs {
    /// Column in tables whose values become buckets [default: bucket, if there is one]
    ///
    /// Whole numbers below --buckets are buckets. Of other values the most frequent ones have a
    /// bucket each, and the last bucket has all others.
    #[arg(long, value_name = "NAME", help_heading = "Workload")]
    bucket_column: Option<String>,
    /// Number of buckets in tables, up to 1000 [default: 5, or 1 without a column]
    #[arg(
        long,
        value_name = "COUNT",
        value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_BUCKETS)),
        help_heading = "Workload"
    )]
    buckets: Option<u16>,
}

impl BucketFlags for BucketArgs {
    fn apply(&self, options: &mut TableOptions) {
        options.bucket_column.clone_from(&self.bucket_column);
        options.buckets = self.buckets;
    }

    fn given(&self) -> Vec<(&'static str, bool)> {
        vec![
            ("--bucket-column", self.bucket_column.is_some()),
            ("--buckets", self.buckets.is_some()),
        ]
    }
}

/// For commands that do not look at the buckets of tables.
#[derive(Debug, clap::Args)]
pub(crate) struct WithoutBuckets {}

impl BucketFlags for WithoutBuckets {
    fn apply(&self, options: &mut TableOptions) {
        if options.columns.get("bucket").is_none() {
            // Setting a column that exists never fails.
            let _ = options.columns.set("bucket=-");
        }
    }

    fn given(&self) -> Vec<(&'static str, bool)> {
        Vec::new()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SiteNaming {
    /// As they are written, also URLs
    Written,
    /// As their registrable domain: https://www.shop.example/cart is shop.example
    Registrable,
}

/// The registrable domain of a URL or a host, or the host if it has none.
fn registrable(name: &str) -> Option<String> {
    let host = table::host(name)?;
    let site = Site::parse(&host, Localhost::Allowed);
    Some(site.map_or(host, |site| site.as_str().to_owned()))
}

/// The source of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin<'a> {
    Tables,
    Prepared(&'a Path),
    Raw(&'a Path),
    Synthetic,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum PresetName {
    /// Published numbers that do not involve an attack
    #[default]
    Published,
    /// Also the paper's results under attack, so results under attack are not predictions
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
    /// Scale 1/epsilon, as in the paper's figures
    #[default]
    Paper,
    /// Scale 2/epsilon, as the paper's accounting assumes
    Consistent,
}

impl<B: BucketFlags> WorkloadSource<B> {
    /// The seed and the number of threads, for a command that takes one of each.
    pub(crate) fn one(&self) -> Result<(u64, usize), CommandError> {
        match (self.seed.as_slice(), self.threads().as_slice()) {
            ([seed], [threads]) => Ok((*seed, *threads)),
            _ => Err(CommandError::misused(
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

    /// Reads the workload, or generates it from the seed. Says how tables were understood, and
    /// prints a note if their epochs look wrong.
    pub(crate) fn workload(&self, seed: u64) -> Result<Workload, CommandError> {
        self.understood(seed).map(|(workload, _)| workload)
    }

    /// The same for a replay, which takes less time: a replay does not use where conversions came
    /// from.
    pub(crate) fn workload_to_replay(&self, seed: u64) -> Result<Workload, CommandError> {
        self.understood_for(seed, false)
            .map(|(workload, _)| workload)
    }

    /// The same as [`workload`](Self::workload), with how tables were understood.
    pub(crate) fn understood(
        &self,
        seed: u64,
    ) -> Result<(Workload, Option<Understanding>), CommandError> {
        self.understood_for(seed, true)
    }

    fn understood_for(
        &self,
        seed: u64,
        origins: bool,
    ) -> Result<(Workload, Option<Understanding>), CommandError> {
        self.refuse_unused_options()?;
        let (workload, understanding) = self.read(seed, origins)?;
        if let Some(understanding) = &understanding {
            understanding
                .lines()
                .iter()
                .for_each(|line| stdio::tell(line));
            let times = &understanding.times;
            let is_counted = |form: &TimeForm| matches!(form, TimeForm::Counted(_));
            if times.forms.iter().any(is_counted)
                && let Some((first, last)) = workload.epochs()
                && (first == last || last - first > 400)
            {
                let where_they_lie = match first == last {
                    true => format!("all events lie in epoch {first}"),
                    false => format!("the events lie in epochs {first} to {last}"),
                };
                stdio::tell(&format!(
                    "note: {where_they_lie}; check that --time-unit {} and --epoch-days {} are right",
                    self.time_unit.unwrap_or_default().name(),
                    self.epoch_days()
                ));
            }
        }
        Ok((workload, understanding))
    }

    /// Refuses options that would have no effect: the user probably intended another source.
    fn refuse_unused_options(&self) -> Result<(), CommandError> {
        let mut for_tables = vec![
            ("--columns", self.columns.is_some()),
            ("--impression-kind", !self.impression_kind.is_empty()),
            ("--conversion-kind", !self.conversion_kind.is_empty()),
            ("--value-unit", self.value_unit.is_some()),
            ("--sites", self.sites.is_some()),
            ("--time-unit", self.time_unit.is_some()),
            ("--time-origin", self.time_origin.is_some()),
            ("--epoch-days", self.epoch_days.is_some()),
            ("--sorted", self.sorted),
            ("--memory-rows", self.memory_rows.is_some()),
        ];
        for_tables.extend(self.buckets.given());
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
                "give the tables to read, such as logs.csv",
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
        Err(CommandError::misused(format!(
            "{option} is for {what}, but the workload is {workload}; {remedy}, or leave out \
             {option}"
        )))
    }

    fn epoch_days(&self) -> u16 {
        self.epoch_days.unwrap_or(1)
    }

    fn read(
        &self,
        seed: u64,
        origins: bool,
    ) -> Result<(Workload, Option<Understanding>), CommandError> {
        let threads = self.threads().into_iter().max().unwrap_or(1);
        let mut bar = Bar::new();
        let mut progress = |progress: ReadProgress| {
            #[expect(clippy::cast_precision_loss, reason = "a share of bytes")]
            let done = progress.bytes_done as f64 / progress.bytes_total.max(1) as f64;
            bar.show(done, 0.0, &format!("{} rows read", grouped(progress.rows)));
        };
        let unreadable = |error: ReadError| CommandError::unreadable(error.to_string());
        match self.origin() {
            Origin::Prepared(folder) => {
                let options = PreparedOptions { origins, threads };
                let workload = criteo::read_prepared(folder, &options).map_err(unreadable)?;
                Ok((workload, None))
            }
            Origin::Raw(folder) => {
                let options = RawOptions {
                    days: self.days.as_ref().map_or(11..=30, |days| days.0.clone()),
                    resample: !self.no_resampling,
                    seed,
                    ..RawOptions::default()
                };
                let workload = criteo::read_raw(folder, &options, &mut progress);
                Ok((workload.map_err(unreadable)?, None))
            }
            Origin::Tables => {
                let epoch_minutes = NonZeroU32::new(u32::from(self.epoch_days()) * DAY);
                let mut options = TableOptions {
                    columns: self.columns.clone().unwrap_or_default(),
                    time_unit: self.time_unit,
                    time_origin: self.time_origin,
                    epoch_minutes: epoch_minutes.ok_or_else(|| {
                        CommandError::misused("--epoch-days must be at least 1, got 0")
                    })?,
                    impression_kinds: self.impression_kind.clone(),
                    conversion_kinds: self.conversion_kind.clone(),
                    value_unit: self.value_unit,
                    sites: SiteNames {
                        reduce: registrable,
                        which: match self.sites {
                            None => ReducedNames::Urls,
                            Some(SiteNaming::Written) => ReducedNames::None,
                            Some(SiteNaming::Registrable) => ReducedNames::All,
                        },
                    },
                    sorted: self.sorted,
                    memory_rows: self.memory_rows.unwrap_or(4_000_000),
                    ..TableOptions::default()
                };
                self.buckets.apply(&mut options);
                let mut inputs = Vec::new();
                for path in &self.logs {
                    inputs.push(match path.as_os_str() == "-" {
                        true => Input::stream("standard input", &mut stdio::input(), None)
                            .map_err(unreadable)?,
                        false => Input::path(path),
                    });
                }
                let read = table::read_inputs(inputs, &options, &mut progress);
                let (workload, understanding) = read.map_err(unreadable)?;
                Ok((workload, Some(understanding)))
            }
            Origin::Synthetic => {
                if !(self.scale > 0.0 && self.scale <= 10.0) {
                    let why = format!("--scale must be in (0, 10], got {}", self.scale);
                    return Err(CommandError::misused(why));
                }
                let population = Population {
                    preset: self.preset.into(),
                    scale: self.scale,
                    seed,
                };
                Ok((population.generate_on(threads), None))
            }
        }
    }

    /// The options of queriers.
    pub(crate) fn options(&self) -> QuerierOptions {
        QuerierOptions {
            min_conversions_a_day: self.min_conversions_per_day,
            batch_days: usize::from(self.batch_days),
            min_batch: self.min_batch,
            all_visits: self.all_visits,
            noise: match self.noise {
                Some(NoiseName::Consistent) => NoiseModel::Consistent,
                Some(NoiseName::Paper) | None => NoiseModel::Paper,
            },
            ..QuerierOptions::default()
        }
    }

    /// The number of epochs before its own that a conversion reads.
    pub(crate) fn lookback_epochs(&self) -> u16 {
        self.lookback_epochs
    }

    /// The options of queriers in a plan. Its default noise is the one that the accounting assumes.
    pub(crate) fn planned_options(&self) -> QuerierOptions {
        let options = self.options();
        match self.noise {
            None => QuerierOptions {
                noise: NoiseModel::Consistent,
                ..options
            },
            Some(_) => options,
        }
    }

    /// The sites that an attacker owns by default, in words.
    pub(crate) fn owned(&self) -> String {
        match self.of_ten_sites() {
            1 => "the 10 busiest impression sites and the busiest conversion site".to_owned(),
            count => {
                format!("the 10 busiest impression sites and the {count} busiest conversion sites")
            }
        }
    }

    /// The size of a synthetic population, relative to the paper's.
    pub(crate) fn size(&self) -> Option<f64> {
        (self.origin() == Origin::Synthetic).then_some(self.scale)
    }

    /// A laboratory for the workload. It is an error if no querier has a complete batch.
    pub(crate) fn laboratory<'w>(
        &self,
        workload: &'w Workload,
        threads: usize,
    ) -> Result<Laboratory<'w>, CommandError> {
        let options = self.options();
        let laboratory =
            Laboratory::with_lookback(workload, options, self.lookback_epochs, threads).map_err(
                |error| match error {
                    LabError::Read(error) => CommandError::unreadable(error),
                    error => CommandError::misused(error),
                },
            )?;
        if laboratory.queriers().is_empty() && self.min_conversions_per_day == 0 {
            return Err(CommandError::misused("the workload has no conversions"));
        }
        if laboratory.queriers().is_empty() {
            return Err(CommandError::misused(format!(
                "no conversion site has {} conversions a day; use a smaller \
                 --min-conversions-per-day",
                self.min_conversions_per_day
            )));
        }
        if !laboratory.queriers().iter().any(Querier::has_a_batch) {
            let busiest = laboratory.queriers().iter().max_by_key(|it| it.conversions);
            let (reports, batch) = busiest.map_or((0, 0), |it| (it.conversions, it.batch));
            return Err(CommandError::misused(format!(
                "no querier has enough conversions for one batch: the busiest has {reports}, and a \
                 batch needs {batch}; use smaller values than --batch-days {} and --min-batch {}",
                options.batch_days, options.min_batch
            )));
        }
        Ok(laboratory)
    }

    /// True if another seed gives another workload.
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
                noise_scale(options.noise).to_owned(),
            ),
            (
                "epoch",
                match self.lookback_epochs {
                    0 => "a conversion reads its own epoch".to_owned(),
                    1 => "a conversion reads its own epoch and the one before it".to_owned(),
                    more => format!("a conversion reads its own epoch and the {more} before it"),
                },
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
                    "own {} and 25 Sybils, hear of events of {}, and lead each user action to two \
                     Sybils more than the domain cap allows, or to 20 without a cap",
                    self.owned(),
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

    /// The numbers of threads to run with, one after the other.
    pub(crate) fn threads(&self) -> Vec<usize> {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        match self.threads.is_empty() {
            true => vec![cores()],
            false => self.threads.iter().copied().map(usize::from).collect(),
        }
    }

    /// The number of conversion sites that corresponds to ten of the paper's. A smaller population
    /// has fewer conversion sites, each as busy as the paper's.
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

/// The workload in words.
impl<B: BucketFlags> fmt::Display for WorkloadSource<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.origin(), self.preset) {
            (Origin::Prepared(folder) | Origin::Raw(folder), _) => {
                write!(f, "{}", folder.display())
            }
            (Origin::Tables, _) => {
                let paths = self.logs.iter().map(|path| match path.as_os_str() == "-" {
                    true => "standard input".to_owned(),
                    false => path.display().to_string(),
                });
                f.write_str(&paths.collect::<Vec<_>>().join(", "))
            }
            (Origin::Synthetic, preset) => {
                let size = match self.scale {
                    1.0 => "as large as the paper's".to_owned(),
                    0.1 => "a tenth of the paper's size".to_owned(),
                    scale => format!("{scale} times the paper's size"),
                };
                let fitted = match preset {
                    PresetName::Published => "",
                    PresetName::AttackFitted => ", fitted to results under attack",
                };
                write!(f, "a synthetic population, {size}{fitted}")
            }
        }
    }
}
