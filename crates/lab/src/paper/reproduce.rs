//! The paper's evaluation, run by run. The result of each run is kept in a file, so that an
//! interrupted evaluation continues where it stopped. A run that several figures share is made
//! once.

use std::borrow::Cow;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bigbird::Limit;
use serde::{Deserialize, Serialize, Serializer};
use thiserror::Error;

use crate::attack::Strength;
use crate::evaluation::metrics::percentile;
use crate::evaluation::results::RunRecord;
use crate::evaluation::{ConfidenceInterval, LabError, Laboratory};
use crate::paper::claims::Claim;
use crate::paper::suites::{EvaluatedSystem, Planned, Suite};
use crate::workload::hash;

/// A run of a figure, with its results.
#[derive(Debug, Clone)]
pub struct FinishedRun {
    /// The run.
    pub planned: Planned,
    /// The results: with several seeds, their means.
    pub summary: Summary,
    /// The results with each seed.
    pub of_seeds: Vec<Summary>,
}

impl FinishedRun {
    /// A run with its results for one seed or several. None if there are none.
    pub fn new(planned: Planned, of_seeds: Vec<Summary>) -> Option<Self> {
        let summary = Summary::mean(&of_seeds)?;
        Some(Self {
            planned,
            summary,
            of_seeds,
        })
    }

    /// The mean of a number over seeds, with its interval. None if there is one seed.
    pub fn interval(&self, measure: impl Fn(&Summary) -> f64) -> Option<ConfidenceInterval> {
        let numbers: Vec<f64> = self.of_seeds.iter().map(measure).collect();
        ConfidenceInterval::of(&numbers)
    }

    /// The same run with one of its seeds. None if there are not so many.
    pub fn with_seed(&self, number: usize) -> Option<Self> {
        let summary = self.of_seeds.get(number)?.clone();
        Self::new(self.planned.clone(), vec![summary])
    }
}

/// The results of a run that figures and claims need. Errors and shares are fractions.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// The median error over batches.
    pub median: f64,
    /// The 5th percentile.
    pub p5: f64,
    /// The 95th percentile.
    pub p95: f64,
    /// The share of reports that are blocked, by first cause: the mean over batches.
    pub blocked: [f64; Limit::ALL.len()],
    /// The median error over batches from noise alone.
    pub noise: f64,
    /// The number of batches.
    pub batches: usize,
    /// The mean amounts consumed from the global budgets that paid anything, in ε: by honest
    /// reports, and by the attacker.
    pub consumed: Option<(f64, f64)>,
    /// The share of the global budgets from which anything was taken that the attacker touched: it
    /// took something there that honest sites need. None without an attack or a global budget.
    pub touched: Option<f64>,
    /// True if the bounds of the resilience theorem held. None without an attack.
    pub held: Option<bool>,
    /// The largest shares of the bounds that were reached: by quotas (i), by user actions (ii), of
    /// budgets drained (iii) and of a sum changed (iii).
    pub reached: [Option<f64>; 4],
}

impl Summary {
    /// The summary of a run. None if it has no batches.
    pub fn new(run: &RunRecord) -> Option<Self> {
        let mut blocked = [0.0; Limit::ALL.len()];
        for (share, found) in blocked.iter_mut().zip(run.blocked_share.0) {
            *share = found?;
        }
        let reached = run.bounds.map(|bounds| bounds.reached);
        let consumed = run.global_budget_consumed;
        #[expect(clippy::cast_precision_loss, reason = "a share of devices")]
        let touched = run
            .bounds
            .zip(consumed)
            .map(|(bounds, consumed)| bounds.touched as f64 / consumed.device_epochs.max(1) as f64);
        let errors = run.batches.iter().map(|batch| batch.rmsre);
        Some(Self {
            median: run.median?,
            p5: percentile(errors, 5.0)?,
            p95: run.p95?,
            touched,
            blocked,
            noise: run.error_parts?.noise,
            batches: run.batches.len(),
            consumed: consumed.map(|consumed| (consumed.honest, consumed.attacker)),
            held: run.bounds.map(|bounds| bounds.held),
            reached: reached.map_or([None; 4], |reached| {
                [
                    reached.by_quotas,
                    reached.by_user_actions,
                    reached.drained,
                    reached.by_query,
                ]
            }),
        })
    }

    /// The means of several results. What bounds hold for all of them: the largest shares, and the
    /// least number of batches. None if there are none.
    pub fn mean(of: &[Self]) -> Option<Self> {
        let first = of.first()?;
        if of.len() == 1 {
            return Some(first.clone());
        }
        #[expect(clippy::cast_precision_loss, reason = "a number of seeds")]
        let mean = |measure: &dyn Fn(&Self) -> f64| -> f64 {
            of.iter().map(measure).sum::<f64>() / of.len() as f64
        };
        let mean_of = |measure: &dyn Fn(&Self) -> Option<f64>| -> Option<f64> {
            measure(first)?;
            Some(mean(&|it| measure(it).unwrap_or(0.0)))
        };
        let mut blocked = [0.0; Limit::ALL.len()];
        for (number, share) in blocked.iter_mut().enumerate() {
            *share = mean(&|it| it.blocked[number]);
        }
        let largest = |number: usize| {
            let shares = of.iter().filter_map(|it: &Self| it.reached[number]);
            shares.max_by(f64::total_cmp)
        };
        let honest = mean_of(&|it| it.consumed.map(|(honest, _)| honest));
        let attacker = mean_of(&|it| it.consumed.map(|(_, attacker)| attacker));
        Some(Self {
            median: mean(&|it| it.median),
            p5: mean(&|it| it.p5),
            p95: mean(&|it| it.p95),
            blocked,
            noise: mean(&|it| it.noise),
            batches: of.iter().map(|it| it.batches).min()?,
            consumed: honest.zip(attacker),
            touched: mean_of(&|it| it.touched),
            held: first
                .held
                .map(|_| of.iter().all(|it| it.held != Some(false))),
            reached: [0, 1, 2, 3].map(largest),
        })
    }

    /// The share of reports blocked by a cause.
    pub fn blocked_by(&self, cause: Limit) -> f64 {
        self.blocked[cause as usize]
    }
}

/// The progress of the evaluation.
#[derive(Debug, Clone, Copy)]
pub struct ReproduceProgress<'a> {
    /// The run that starts now, or none at the end.
    pub next: Option<&'a Planned>,
    /// The number of runs, and how many of them are done.
    pub runs: (usize, usize),
    /// The cost of all runs, in an arbitrary unit, and the cost of those that are done.
    pub cost: (f64, f64),
    /// The cost of the runs that were made now. The other finished runs had been made before, or
    /// are shared.
    pub paid_now: f64,
}

/// The reason why the evaluation could not be reproduced.
#[derive(Debug, Error)]
pub enum ReproduceError {
    /// A run failed.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// A file could not be written.
    #[error("{}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A run has no complete batch.
    #[error("no querier has enough reports for one batch; use a larger workload")]
    NoBatches,
}

/// Makes all runs whose results are not in the folder yet, and writes their results there. Returns
/// all runs, and the number of runs that were made now. `context` identifies everything that
/// results depend on apart from the run itself: the program, the workload and the options.
///
/// # Errors
/// If a part of the workload cannot be read, if a result cannot be written, or if a run has no
/// complete batch.
pub fn run_all(
    laboratory: &Laboratory<'_>,
    planned: Vec<Planned>,
    seed: u64,
    folder: &Path,
    context: &str,
    progress: &mut dyn FnMut(ReproduceProgress<'_>),
) -> Result<SeedRuns, ReproduceError> {
    let kept = RunCache {
        folder: folder.to_owned(),
        context: format!("{context} seed {seed}"),
    };
    fs::create_dir_all(folder).map_err(|source| kept.error(folder, source))?;
    let costs: Vec<f64> = planned.iter().map(cost).collect();
    let total: f64 = costs.iter().sum();
    let (mut paid, mut paid_now) = (0.0, 0.0);
    let mut finished: Vec<(Planned, RunRecord)> = Vec::new();
    let mut summaries = Vec::new();
    let runs = planned.len();
    let mut count = 0;
    for (run, cost) in planned.into_iter().zip(costs) {
        progress(ReproduceProgress {
            next: Some(&run),
            runs: (runs, finished.len()),
            cost: (total, paid),
            paid_now,
        });
        let name = run.suite.name();
        let same = finished
            .iter()
            .find(|(earlier, _)| earlier.experiment == run.experiment);
        let (mut record, made) = match same {
            Some((_, record)) => (record.clone(), false),
            None => match kept.find(&run) {
                Some(record) => (record, false),
                None => {
                    let outcome = run.experiment.run(laboratory, seed)?;
                    let workload = laboratory.workload();
                    let record = RunRecord::new(name, &run.experiment, seed, &outcome, workload);
                    kept.keep(&run, &record)?;
                    (record, true)
                }
            },
        };
        name.clone_into(&mut record.suite);
        summaries.push(Summary::new(&record).ok_or(ReproduceError::NoBatches)?);
        paid += cost;
        if made {
            paid_now += cost;
            count += 1;
        }
        finished.push((run, record));
    }
    progress(ReproduceProgress {
        next: None,
        runs: (runs, runs),
        cost: (total, total),
        paid_now,
    });
    let (planned, records) = finished.into_iter().unzip();
    Ok(SeedRuns {
        planned,
        summaries,
        records,
        made: count,
    })
}

/// Every run with one seed.
#[derive(Debug, Clone, Default)]
pub struct SeedRuns {
    /// The runs.
    pub planned: Vec<Planned>,
    /// Their results, as far as figures and claims need them.
    pub summaries: Vec<Summary>,
    /// All their results.
    pub records: Vec<RunRecord>,
    /// The number of runs that were made now.
    pub made: usize,
}

/// The runs of several seeds, each with its results for all seeds. The seeds have the same runs.
pub fn merged(seeds: &[SeedRuns]) -> Vec<FinishedRun> {
    let first = seeds.first().map_or(&[][..], |seed| &seed.planned);
    first
        .iter()
        .enumerate()
        .filter_map(|(number, planned)| {
            let of_seeds = seeds.iter().filter_map(|seed| seed.summaries.get(number));
            FinishedRun::new(planned.clone(), of_seeds.cloned().collect())
        })
        .collect()
}

/// What `results.json` contains.
#[derive(Debug, Serialize)]
pub struct ReproductionRecord<'a> {
    /// The command that was given.
    pub command: &'a str,
    /// The version of the program.
    pub version: &'a str,
    /// Parameters, by name.
    #[serde(serialize_with = "by_name")]
    pub parameters: &'a [(String, String)],
    /// The claims of the paper.
    pub claims: &'a [Claim],
    /// Every run, for one seed after the other.
    pub runs: Vec<&'a RunRecord>,
}

fn by_name<S: Serializer>(pairs: &[(String, String)], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(pairs.iter().map(|(name, value)| (name, value)))
}

/// The cost of a run, in seconds for a million actions. Only the proportions matter.
fn cost(run: &Planned) -> f64 {
    let Some(Strength { visits, sybils, .. }) = run.experiment.strength() else {
        return 0.1;
    };
    let each = match run.experiment.attacker() {
        "random" => 0.14 + f64::from(sybils) * 0.0005,
        _ => 0.07,
    };
    0.15 + each * f64::from(visits)
}

/// A result in a file, with everything that it depends on.
#[derive(Serialize, Deserialize)]
struct CachedRun<'a, R> {
    key: Cow<'a, str>,
    run: R,
}

/// The results of runs, kept in a folder.
struct RunCache {
    folder: PathBuf,
    context: String,
}

impl RunCache {
    /// A text that contains everything that the result of a run depends on.
    fn key(&self, run: &Planned) -> String {
        format!("{} {:?}", self.context, run.experiment)
    }

    fn path(&self, key: &str) -> PathBuf {
        self.folder
            .join(format!("{:016x}.json", digest(key.as_bytes())))
    }

    fn find(&self, run: &Planned) -> Option<RunRecord> {
        let key = self.key(run);
        let text = fs::read_to_string(self.path(&key)).ok()?;
        let kept: CachedRun<'_, RunRecord> = serde_json::from_str(&text).ok()?;
        (kept.key == key).then_some(kept.run)
    }

    /// Writes a result to another file first and renames it, so that a file never contains half a
    /// result.
    fn keep(&self, run: &Planned, record: &RunRecord) -> Result<(), ReproduceError> {
        let key = self.key(run);
        let path = self.path(&key);
        let aside = path.with_extension("part");
        let kept = CachedRun {
            key: key.into(),
            run: record,
        };
        serde_json::to_string(&kept)
            .map_err(io::Error::from)
            .and_then(|text| fs::write(&aside, text))
            .and_then(|()| fs::rename(&aside, &path))
            .map_err(|source| self.error(&path, source))
    }

    fn error(&self, path: &Path, source: io::Error) -> ReproduceError {
        ReproduceError::Write {
            path: path.to_owned(),
            source,
        }
    }
}

/// A digest, to tell bytes apart that differ by accident. It does not withstand bytes that are
/// chosen to collide.
pub fn digest(bytes: &[u8]) -> u64 {
    hash::of_bytes(bytes)
}

/// Finished runs, with functions to find some of them.
#[derive(Debug, Clone, Copy)]
pub struct Results<'a>(pub &'a [FinishedRun]);

impl<'a> Results<'a> {
    /// The runs of a suite, a system and an attacker, in order. The attacker `none` finds runs
    /// without attack.
    pub fn of(
        self,
        suite: Suite,
        system: EvaluatedSystem,
        attacker: &'a str,
    ) -> impl Iterator<Item = &'a FinishedRun> + Clone {
        self.0.iter().filter(move |run| {
            run.planned.suite == suite
                && run.planned.system == system
                && run.planned.experiment.attacker() == attacker
        })
    }

    /// The run at a point of a figure.
    pub fn at(
        self,
        suite: Suite,
        system: EvaluatedSystem,
        attacker: &'a str,
        x: Option<f64>,
    ) -> Option<&'a FinishedRun> {
        self.of(suite, system, attacker)
            .find(|run| run.planned.x == x)
    }

    /// The number of seeds.
    pub fn seeds(self) -> usize {
        self.0.first().map_or(0, |run| run.of_seeds.len())
    }
}
