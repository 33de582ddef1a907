//! The paper's evaluation, run by run. The result of each run is kept in a file, so that an
//! interrupted evaluation continues where it stopped. A run that several figures share is made
//! once.

use std::borrow::Cow;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bigbird::Limit;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::attack::Strength;
use crate::evaluation::results::RunRecord;
use crate::evaluation::{LabError, Laboratory};
use crate::paper::suites::{EvaluatedSystem, Planned, Suite};
use crate::workload::hash;

/// A run of a figure, with its results.
#[derive(Debug, Clone)]
pub struct FinishedRun {
    /// The run.
    pub planned: Planned,
    /// The results that figures and claims need.
    pub summary: Summary,
    /// All results.
    pub record: RunRecord,
}

/// The results of a run that figures and claims need. Errors and shares are fractions.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// The median error over batches.
    pub median: f64,
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
        Some(Self {
            median: run.median?,
            p95: run.p95?,
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
) -> Result<(Vec<FinishedRun>, usize), ReproduceError> {
    let kept = RunCache {
        folder: folder.to_owned(),
        context: format!("{context} seed {seed}"),
    };
    fs::create_dir_all(folder).map_err(|source| kept.error(folder, source))?;
    let costs: Vec<f64> = planned.iter().map(cost).collect();
    let total: f64 = costs.iter().sum();
    let (mut paid, mut paid_now) = (0.0, 0.0);
    let mut finished: Vec<FinishedRun> = Vec::new();
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
            .find(|earlier| earlier.planned.experiment == run.experiment);
        let (mut record, made) = match same {
            Some(earlier) => (earlier.record.clone(), false),
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
        let summary = Summary::new(&record).ok_or(ReproduceError::NoBatches)?;
        paid += cost;
        if made {
            paid_now += cost;
            count += 1;
        }
        finished.push(FinishedRun {
            planned: run,
            summary,
            record,
        });
    }
    progress(ReproduceProgress {
        next: None,
        runs: (runs, runs),
        cost: (total, total),
        paid_now,
    });
    Ok((finished, count))
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
    ) -> Option<&'a Summary> {
        self.of(suite, system, attacker)
            .find(|run| run.planned.x == x)
            .map(|run| &run.summary)
    }
}
