//! The paper's evaluation, run by run: each is kept in a file, so that a run that was interrupted goes
//! on where it stopped, and runs that several figures share are made once.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use thiserror::Error;

use crate::attack::Strength;
use crate::metrics::percentile;
use crate::paper::suites::{Planned, Suite, System};
use crate::replay::Blocked;
use crate::simulate::{LabError, Laboratory};
use crate::workload::hash;

/// A run of a figure, and what came of it.
#[derive(Debug, Clone)]
pub struct Finished {
    /// Where it stands in the figure.
    pub planned: Planned,
    /// What figures and claims need of it.
    pub summary: Summary,
    /// All of it, as in `results.json`.
    pub json: Value,
}

/// What figures and claims need of a run. Errors and shares are fractions.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// The median error over batches.
    pub median: f64,
    /// The 95th percentile.
    pub p95: f64,
    /// The share of reports blocked, by first cause: the mean over batches.
    pub blocked: [f64; Blocked::ALL.len()],
    /// The median error over batches from noise alone.
    pub noise: f64,
    /// How many batches there are.
    pub batches: usize,
    /// What each device-epoch paid of its global budget, in epsilons: for honest reports and for the
    /// attacker.
    pub consumed: Option<(f64, f64)>,
    /// Whether the bounds of the resilience theorem held.
    pub held: Option<bool>,
    /// The largest shares of the bounds that were reached: by quotas (i), by user actions (ii), of
    /// budgets drained and of a query changed (iii).
    pub reached: [Option<f64>; 4],
}

impl Summary {
    /// From a run of `results.json`; none if something is missing.
    pub fn from_json(run: &Value) -> Option<Self> {
        let number = |value: &Value| value.as_f64();
        let reached = &run["bounds"]["reached"];
        let mut blocked = [0.0; Blocked::ALL.len()];
        for cause in Blocked::ALL {
            blocked[cause as usize] = number(&run["blockedShare"][cause.name()])?;
        }
        let consumed = &run["globalConsumed"];
        let batches = run["batches"].as_array()?;
        Some(Self {
            median: number(&run["median"])?,
            p95: number(&run["p95"])?,
            blocked,
            noise: percentile(
                batches
                    .iter()
                    .filter_map(|batch| batch["rmsreByNoise"].as_f64()),
                50.0,
            )?,
            batches: batches.len(),
            consumed: number(&consumed["honest"]).zip(number(&consumed["attacker"])),
            held: run["bounds"]["held"].as_bool(),
            reached: ["byQuotas", "byUserActions", "drained", "byQuery"]
                .map(|name| number(&reached[name])),
        })
    }

    /// The share of reports blocked by a cause.
    pub fn blocked_by(&self, cause: Blocked) -> f64 {
        self.blocked[cause as usize]
    }
}

/// How far it is.
#[derive(Debug, Clone, Copy)]
pub struct Progress<'a> {
    /// The run that begins, or none at the end.
    pub next: Option<&'a Planned>,
    /// How many runs there are, and how many are done.
    pub runs: (usize, usize),
    /// What they cost, in some unit, and how much of it was paid.
    pub cost: (f64, f64),
    /// How much of that was paid now; the rest had been done before.
    pub paid_now: f64,
}

/// Why it could not be reproduced.
#[derive(Debug, Error)]
pub enum ReproduceError {
    /// A run has no result.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// A file could not be written.
    #[error("{}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A run without a complete batch.
    #[error("no querier has a complete batch: the workload must be larger")]
    NoBatches,
}

/// Makes all runs that are not kept in a folder yet, and keeps them there; says how many those were.
/// `context` names everything
/// that results depend on besides the run itself: program, workload, options.
///
/// # Errors
/// If a part of the workload cannot be read, or a result cannot be written.
pub fn run_all(
    laboratory: &Laboratory<'_>,
    planned: Vec<Planned>,
    seed: u64,
    folder: &Path,
    context: &str,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<(Vec<Finished>, usize), ReproduceError> {
    let kept = Kept {
        folder: folder.to_owned(),
        context: format!("{context} seed {seed}"),
    };
    fs::create_dir_all(folder).map_err(|source| kept.error(folder, source))?;
    let costs: Vec<f64> = planned.iter().map(cost).collect();
    let total: f64 = costs.iter().sum();
    let (mut paid, mut paid_now) = (0.0, 0.0);
    let mut finished: Vec<Finished> = Vec::new();
    let runs = planned.len();
    let mut count = 0;
    for (run, cost) in planned.into_iter().zip(costs) {
        progress(Progress {
            next: Some(&run),
            runs: (runs, finished.len()),
            cost: (total, paid),
            paid_now,
        });
        let name = run.suite.name();
        let same = finished
            .iter()
            .find(|earlier| earlier.planned.experiment == run.experiment);
        let (mut json, made) = match same {
            Some(earlier) => (earlier.json.clone(), false),
            None => match kept.find(&run) {
                Some(json) => (json, false),
                None => {
                    let outcome = run.experiment.run(laboratory, seed)?;
                    let workload = laboratory.workload();
                    let json = run.experiment.to_json(name, &outcome, workload);
                    kept.keep(&run, &json)?;
                    (json, true)
                }
            },
        };
        json["suite"] = json!(name);
        let summary = Summary::from_json(&json).ok_or(ReproduceError::NoBatches)?;
        paid += cost;
        if made {
            paid_now += cost;
            count += 1;
        }
        finished.push(Finished {
            planned: run,
            summary,
            json,
        });
    }
    progress(Progress {
        next: None,
        runs: (runs, runs),
        cost: (total, total),
        paid_now,
    });
    Ok((finished, count))
}

/// What a run costs, in seconds for a million actions: only proportions matter.
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

/// The results that are kept in a folder.
struct Kept {
    folder: PathBuf,
    context: String,
}

impl Kept {
    /// Everything that the result of a run depends on.
    fn key(&self, run: &Planned) -> String {
        format!("{} {:?}", self.context, run.experiment)
    }

    fn path(&self, key: &str) -> PathBuf {
        self.folder
            .join(format!("{:016x}.json", digest(key.as_bytes())))
    }

    fn find(&self, run: &Planned) -> Option<Value> {
        let key = self.key(run);
        let text = fs::read_to_string(self.path(&key)).ok()?;
        let mut kept: Value = serde_json::from_str(&text).ok()?;
        (kept["key"].as_str() == Some(&key)).then(|| kept["run"].take())
    }

    /// Written aside and renamed, so that a file is never half a result.
    fn keep(&self, run: &Planned, json: &Value) -> Result<(), ReproduceError> {
        let key = self.key(run);
        let path = self.path(&key);
        let aside = path.with_extension("part");
        let text = json!({ "key": key, "run": json }).to_string();
        fs::write(&aside, text)
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

/// A digest: what differs by accident differs in it. It is no protection against intent.
pub fn digest(bytes: &[u8]) -> u64 {
    hash::of_bytes(bytes)
}

/// Finished runs, to look things up in.
#[derive(Debug, Clone, Copy)]
pub struct Results<'a>(pub &'a [Finished]);

impl<'a> Results<'a> {
    /// The runs of a suite, a system and an attacker (`none` for none), in order.
    pub fn of(
        self,
        suite: Suite,
        system: System,
        attacker: &'a str,
    ) -> impl Iterator<Item = &'a Finished> + Clone {
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
        system: System,
        attacker: &'a str,
        x: Option<f64>,
    ) -> Option<&'a Summary> {
        self.of(suite, system, attacker)
            .find(|run| run.planned.x == x)
            .map(|run| &run.summary)
    }
}
