//! Where a workload comes from, who measures on it, and how it is run: what all commands of the
//! laboratory share.

use std::fmt;
use std::path::PathBuf;

use bigbird_lab::criteo;
use bigbird_lab::simulate::Laboratory;
use bigbird_lab::synthetic::{Population, Preset};
use bigbird_lab::workload::{Noise, Querier, QuerierOptions, Workload};
use clap::ValueEnum;

use crate::Failed;

#[derive(Debug, clap::Args)]
pub(crate) struct Source {
    /// The artifact's files 20last_impressions.pqt and 20last_conversions.pqt, instead of a
    /// synthetic population
    #[arg(long, value_name = "DIR", conflicts_with_all = ["scale", "preset"])]
    criteo_prepared: Option<PathBuf>,
    /// The size of the synthetic population; 1 is the paper's 1.4 million devices
    #[arg(long, default_value_t = 0.1)]
    scale: f64,
    /// What the synthetic population is fitted to
    #[arg(long, value_enum, default_value_t)]
    preset: PresetName,
    /// How many epochs before its own a conversion looks at
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    lookback_epochs: u16,
    /// How many conversions a day a site must have to measure
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    min_conversions_per_day: usize,
    /// Noise of scale 1/epsilon, as in the paper's figures, or of twice that, as its accounting
    /// assumes
    #[arg(long, value_enum, default_value_t)]
    noise: NoiseName,
    /// What all random choices follow from
    #[arg(long, value_delimiter = ',', default_value = "1")]
    pub(crate) seed: Vec<u64>,
    /// How many threads work; results do not depend on it [default: all cores]
    #[arg(long, value_name = "COUNT", value_delimiter = ',')]
    threads: Vec<usize>,
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

    /// Reads or generates the workload; a generated one follows from the seed.
    pub(crate) fn workload(&self, seed: u64) -> Result<Workload, Failed> {
        if let Some(folder) = &self.criteo_prepared {
            return criteo::read_prepared(folder)
                .map_err(|error| Failed::unreadable(error.to_string()));
        }
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

    /// How queriers measure.
    pub(crate) fn options(&self) -> QuerierOptions {
        QuerierOptions {
            min_conversions_a_day: self.min_conversions_per_day,
            noise: match self.noise {
                NoiseName::Paper => Noise::Paper,
                NoiseName::Consistent => Noise::Consistent,
            },
            ..QuerierOptions::default()
        }
    }

    /// How many epochs before its own a conversion looks at.
    pub(crate) fn lookback_epochs(&self) -> u16 {
        self.lookback_epochs
    }

    /// The size of a synthetic population, against the paper's.
    pub(crate) fn size(&self) -> Option<f64> {
        self.criteo_prepared.is_none().then_some(self.scale)
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
            return Err(Failed::because(format!(
                "no querier has conversions for one batch of at least {} reports: the workload must \
                 be larger",
                options.min_batch
            )));
        }
        Ok(laboratory)
    }

    /// The preset of a synthetic population.
    pub(crate) fn preset(&self) -> Option<Preset> {
        self.criteo_prepared.is_none().then(|| self.preset.into())
    }

    /// Every parameter, by name.
    pub(crate) fn parameters(&self) -> Vec<(String, String)> {
        let mut parameters = vec![("workload", self.to_string())];
        let options = QuerierOptions::default();
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
                match self.noise {
                    NoiseName::Paper => "scale 1/ε, as in the paper's figures",
                    NoiseName::Consistent => "scale 2/ε, as the paper's accounting assumes",
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
                    "own the 10 busiest impression sites and the {} busiest queriers; 25 Sybils; \
                     visit two more than the cap allows, or 20",
                    self.of_ten_sites()
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
            false => self.threads.clone(),
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
        match self.criteo_prepared {
            Some(_) => 10,
            None => (10.0 * self.scale).round().max(1.0) as u32,
        }
    }
}

/// What it is, in words.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.criteo_prepared, self.preset) {
            (Some(folder), _) => write!(f, "{}", folder.display()),
            (None, PresetName::Published) => {
                write!(
                    f,
                    "a synthetic population, {} of the paper's size",
                    self.scale
                )
            }
            (None, PresetName::AttackFitted) => write!(
                f,
                "a synthetic population, {} of the paper's size, that was fitted to results under \
                 attack",
                self.scale
            ),
        }
    }
}
