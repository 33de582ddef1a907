//! A whole audit: the failure modes, the search on every manager, and free denial.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bigbird::SiteCharging;
use serde::Serialize;
use thiserror::Error;

use crate::catalogue::{Entry, Kind, catalogue};
use crate::denial::{DenialResult, search_denial};
use crate::meter::Loss;
use crate::model::{
    AdaptiveRow, HELPERS, IndividualRow, SharedLimitRow, adaptive, individual, shared_limit,
};
use crate::script::Script;
use crate::search::{Finding, Search, Tactics};

/// The extent of an audit.
#[derive(Debug, Clone)]
pub struct AuditPlan {
    /// The seed. The same seed and number of scripts give the same result on any number of threads.
    pub seed: u64,
    /// The number of threads.
    pub threads: usize,
    /// The end of the search.
    pub budget: Budget,
    /// The managers to search, by name. If empty, all of them, and everything else too.
    pub managers: Vec<String>,
    /// True to search the broken managers again with each tactic switched off.
    pub compare_tactics: bool,
}

/// The end of a search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Budget {
    /// After this many scripts for each manager, rounded up to whole rounds.
    Scripts(u64),
    /// After the first round that ends later than this.
    Time(Duration),
}

/// The scripts of a manager in one round.
pub const ROUND: u64 = 1000;

/// The scripts after which the comparison of tactics gives a broken manager up, at least. It gives
/// up after twice the number that all tactics needed.
pub const COMPARED_SCRIPTS: u64 = 500;

/// The samples per world of the estimates.
const SAMPLES: u32 = 100_000;

/// A name that is not in the catalogue.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("unknown manager `{name}`; use one of: {known}")]
pub struct UnknownManager {
    name: String,
    known: String,
}

/// The manager with a name.
///
/// # Errors
/// If there is none.
pub fn find_manager(name: &str) -> Result<Entry, UnknownManager> {
    let mut entries = catalogue();
    match entries.iter().position(|entry| entry.name == name) {
        Some(at) => Ok(entries.swap_remove(at)),
        None => Err(UnknownManager {
            name: name.to_owned(),
            known: entries
                .iter()
                .map(|entry| entry.name)
                .collect::<Vec<_>>()
                .join(", "),
        }),
    }
}

/// The result of an audit.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditReport {
    /// The seed.
    pub seed: u64,
    /// The scripts for each manager in memory that was not caught. Give this number to repeat the
    /// audit.
    pub scripts: u64,
    /// Failure mode 1.
    pub adaptive: Vec<AdaptiveRow>,
    /// Failure mode 2 with plain filters.
    pub shared_limit: Vec<SharedLimitRow>,
    /// Failure mode 2 with individual filters.
    pub shared_limit_individual: Vec<IndividualRow>,
    /// The search on each manager.
    pub search: Vec<SearchRow>,
    /// Free denial under each rule of site charging.
    pub denial: Vec<DenialResult>,
    /// The worth of each tactic of the search.
    pub tactics: Vec<TacticsRow>,
}

/// The result of the search on one manager.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SearchRow {
    /// Its name.
    pub manager: &'static str,
    /// Its kind: `real`, `broken` or `wasteful`.
    pub kind: &'static str,
    /// The breach: `accounting`, `theorem` or `visible`.
    pub violation: Option<&'static str>,
    /// True if nothing outside x ever differed (oracle i).
    pub separated: bool,
    /// The number of scripts.
    pub strategies: u64,
    /// The largest loss relative to the capacity, in µε. `null` if infinite.
    pub largest_loss: Option<f64>,
    /// The largest loss beyond what x had paid, in µε. `null` if infinite.
    pub largest_excess: Option<f64>,
    /// The capacity of the script with the largest loss, in µε.
    pub capacity: Option<u64>,
    /// The shortest script that breaches an oracle.
    pub script: Option<Script>,
    /// The loss of that script with the draws integrated out, in µε, if it draws.
    pub mixture: Option<f64>,
    /// The entry of the catalogue says what the manager is.
    #[serde(skip)]
    pub about: &'static str,
    /// The steps of the shortest script that is known.
    #[serde(skip)]
    pub witness: usize,
    /// The finding, for stories.
    #[serde(skip)]
    pub finding: Option<Finding>,
}

impl SearchRow {
    /// True if the manager did what its kind promises.
    pub fn as_expected(&self) -> bool {
        match self.kind {
            "real" => self.violation.is_none() && self.separated,
            "broken" => self.violation.is_some(),
            _ => self.violation.is_none(),
        }
    }
}

/// The largest loss of a search, as a share of the capacity.
pub fn largest_loss_text(row: &SearchRow) -> String {
    match (row.largest_loss, row.capacity) {
        (Some(loss), Some(capacity)) => {
            #[expect(clippy::cast_precision_loss, reason = "for display only")]
            let share = 100.0 * loss / capacity.max(1) as f64;
            match share {
                share if share > 1000.0 => format!("{:.0}×", share / 100.0),
                share => format!("{share:.1}%"),
            }
        }
        (None, Some(_)) => "infinite".to_owned(),
        _ => "none".to_owned(),
    }
}

/// The number of scripts after which a broken manager was caught, with all tactics and without one.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TacticsRow {
    /// The manager.
    pub manager: &'static str,
    /// With all tactics. `null` if it was missed.
    pub all: Option<u64>,
    /// Without the exploit.
    pub without_exploit: Option<u64>,
    /// Without boundary values.
    pub without_boundary_values: Option<u64>,
}

/// Runs an audit. `progress` is told the share that is done and what is going on.
///
/// # Errors
/// If a manager is not known.
pub fn run(
    plan: &AuditPlan,
    progress: &(dyn Fn(f64, &str) + Sync),
) -> Result<AuditReport, UnknownManager> {
    let whole = plan.managers.is_empty();
    let mut entries = Vec::new();
    for name in &plan.managers {
        entries.push(find_manager(name)?);
    }
    if whole {
        entries = catalogue();
    }
    let mut report = AuditReport {
        seed: plan.seed,
        scripts: 0,
        adaptive: Vec::new(),
        shared_limit: Vec::new(),
        shared_limit_individual: Vec::new(),
        search: Vec::new(),
        denial: Vec::new(),
        tactics: Vec::new(),
    };
    if whole {
        progress(0.0, "failure modes");
        failure_modes(plan, &mut report);
        for rule in SiteCharging::ALL {
            report.denial.push(search_denial(rule, 20_000, plan.seed));
        }
    }
    search(plan, &entries, &mut report, progress);
    if plan.compare_tactics {
        compare_tactics(plan, &entries, &mut report, progress);
    }
    Ok(report)
}

fn failure_modes(plan: &AuditPlan, report: &mut AuditReport) {
    let mut cases = Vec::new();
    for epsilon in [0.5, 1.0, 2.0] {
        cases.extend(HELPERS.map(|n| (epsilon, n)));
    }
    report.adaptive = in_parallel(plan.threads, &cases, |&(epsilon, n)| {
        // Beyond a handful of helpers the event is too rare to be sampled.
        let samples = if n <= 6 { SAMPLES } else { 0 };
        adaptive(epsilon, n, samples, plan.seed)
    });
    let (epsilon, epsilon0) = (1.0, 0.1);
    // A limit that grows with the number of helpers, and one that does not.
    let growing = HELPERS.filter_map(|n| shared_limit(epsilon, f64::from(n) + 0.9, epsilon0, n));
    let fixed = HELPERS.filter_map(|n| shared_limit(epsilon, 8.0, epsilon0, n));
    report.shared_limit = growing.chain(fixed).collect();
    let growing = HELPERS.filter_map(|n| individual(epsilon, f64::from(n), n));
    let fixed = HELPERS.filter_map(|n| individual(epsilon, 8.0, n));
    report.shared_limit_individual = growing.chain(fixed).collect();
}

/// Applies a function to every item, on several threads, and returns the results in order.
fn in_parallel<T: Sync, A: Send>(
    threads: usize,
    items: &[T],
    apply: impl Fn(&T) -> A + Sync,
) -> Vec<A> {
    let next = AtomicUsize::new(0);
    let results: Vec<Mutex<Option<A>>> = items.iter().map(|_| Mutex::new(None)).collect();
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(at) else {
                        break;
                    };
                    let result = apply(item);
                    if let Ok(mut slot) = results[at].lock() {
                        *slot = Some(result);
                    }
                }
            });
        }
    });
    let results = results.into_iter();
    results
        .filter_map(|slot| slot.into_inner().ok().flatten())
        .collect()
}

impl Entry {
    /// The scripts of a round. A store on disk is slower.
    fn round(&self) -> u64 {
        if self.name.starts_with("sqlite") {
            ROUND / 20
        } else {
            ROUND
        }
    }

    /// The number of scripts after which a broken manager must have been caught: what a minute is
    /// enough for on one core.
    pub fn within(&self) -> u64 {
        if self.ingredients.user_agent {
            120_000
        } else {
            600_000
        }
    }
}

fn search(
    plan: &AuditPlan,
    entries: &[Entry],
    report: &mut AuditReport,
    progress: &(dyn Fn(f64, &str) + Sync),
) {
    let mut searches = Vec::new();
    for entry in entries {
        searches.push(Mutex::new(new_search(entry, Tactics::ALL, plan.seed)));
    }
    let pairs: Vec<(&Entry, &Mutex<Search<'_>>)> = entries.iter().zip(&searches).collect();
    let begin = Instant::now();
    let mut rounds = 0;
    loop {
        // A broken manager is searched until it is caught, the others until the budget is used up.
        let within_budget = match plan.budget {
            Budget::Scripts(scripts) => rounds * ROUND < scripts,
            Budget::Time(time) => rounds == 0 || begin.elapsed() < time,
        };
        let due: Vec<_> = pairs
            .iter()
            .filter(|(entry, search)| {
                let open = match search.lock() {
                    Ok(search) => !search.is_done() && search.scripts < entry.within(),
                    Err(_) => false,
                };
                match entry.kind {
                    Kind::Broken => open,
                    _ => within_budget && search.lock().is_ok_and(|it| it.finding.is_none()),
                }
            })
            .collect();
        if due.is_empty() {
            break;
        }
        let share = match plan.budget {
            #[expect(clippy::cast_precision_loss, reason = "for display only")]
            Budget::Scripts(scripts) => (rounds * ROUND) as f64 / scripts.max(1) as f64,
            Budget::Time(time) => begin.elapsed().as_secs_f64() / time.as_secs_f64(),
        };
        let what = match due.as_slice() {
            [(entry, _)] => format!("searching {}", entry.name),
            due => format!("searching {} managers", due.len()),
        };
        progress(share.min(0.99), &what);
        in_parallel(plan.threads, &due, |(entry, search)| {
            if let Ok(mut search) = search.lock() {
                search.run(entry.round());
            }
        });
        rounds += u64::from(within_budget);
    }
    report.scripts = rounds * ROUND;
    for (entry, search) in entries.iter().zip(searches) {
        if let Ok(search) = search.into_inner() {
            report.search.push(row(entry, search));
        }
    }
}

fn new_search(entry: &Entry, tactics: Tactics, seed: u64) -> Search<'_> {
    Search::new(entry.name, &*entry.make, entry.ingredients, tactics, seed)
}

fn row(entry: &Entry, search: Search<'_>) -> SearchRow {
    let finite = |loss: Loss| Some(loss.micro()).filter(|micro| micro.is_finite());
    SearchRow {
        manager: entry.name,
        kind: entry.kind.name(),
        violation: search.finding.as_ref().map(|it| it.violation.name()),
        separated: search.unseparated.is_none(),
        strategies: search.scripts,
        largest_loss: search.largest_loss.and_then(|(loss, _)| finite(loss)),
        largest_excess: finite(search.largest_excess),
        capacity: search.largest_loss.map(|(_, capacity)| capacity),
        script: search.finding.as_ref().map(|it| it.script.clone()),
        mixture: search
            .finding
            .as_ref()
            .and_then(|it| it.mixture)
            .map(|it| it.micro),
        about: entry.about,
        witness: entry.witness,
        finding: search.finding,
    }
}

fn compare_tactics(
    plan: &AuditPlan,
    entries: &[Entry],
    report: &mut AuditReport,
    progress: &(dyn Fn(f64, &str) + Sync),
) {
    progress(0.99, "searching with tactics switched off");
    let rows = entries.iter().zip(&report.search);
    let broken: Vec<(&Entry, Option<u64>)> = rows
        .filter(|(entry, _)| entry.kind == Kind::Broken)
        .map(|(entry, row)| (entry, row.finding.as_ref().map(|it| it.after)))
        .collect();
    let after = |entry: &Entry, all: Option<u64>, tactics| {
        let most = COMPARED_SCRIPTS.max(2 * all.unwrap_or(0));
        let mut search = new_search(entry, tactics, plan.seed);
        search.run(most);
        let finding = search.finding.filter(|finding| finding.after <= most);
        finding.map(|finding| finding.after)
    };
    let compared = in_parallel(plan.threads, &broken, |&(entry, all)| TacticsRow {
        manager: entry.name,
        all,
        without_exploit: after(
            entry,
            all,
            Tactics {
                exploit: false,
                ..Tactics::ALL
            },
        ),
        without_boundary_values: after(
            entry,
            all,
            Tactics {
                boundary_values: false,
                ..Tactics::ALL
            },
        ),
    });
    report.tactics = compared;
}
