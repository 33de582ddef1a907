//! The search for scripts that breach an oracle.
//!
//! Random scripts alone find little: most differences between epochs show only to a request for
//! exactly what the richer world has left. So the search keeps scripts that come close, mutates
//! them, asks for boundary values, and exploits every difference that it sees.

mod dice;
mod exploit;
mod grammar;
mod mutate;
mod shrink;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use bigbird::{FilterKind, Profile};

pub(crate) use dice::SearchDice;
use grammar::Grammar;

use crate::manager::{MakeManager, Observation, SnapshotDifference, WorldSnapshot};
use crate::meter::{
    AuditVerdict, Breach, Loss, MixtureLoss, Play, audit, chosen, compare, mixture_loss, play,
};
use crate::script::{Script, ScriptCall, Step, Tape};

/// What scripts are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ingredients {
    /// The profile.
    pub profile: Profile,
    /// True if the clock may step back.
    pub clock_steps_back: bool,
    /// True if there are steps that only a user agent knows: restarts, rules, calls that arrive
    /// together.
    pub user_agent: bool,
}

/// The parts of the search that can be switched off, to see what they are worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tactics {
    /// Ask for exactly what a filter has or has left, and move the clock to edges.
    pub boundary_values: bool,
    /// Exploit differences outside x.
    pub exploit: bool,
}

impl Tactics {
    /// Everything.
    pub const ALL: Self = Self {
        boundary_values: true,
        exploit: true,
    };
}

/// A script that breaches an oracle.
#[derive(Debug, Clone)]
pub struct Finding {
    /// The script, shrunk: no step can be left out.
    pub script: Script,
    /// The comparison of its worlds.
    pub verdict: AuditVerdict,
    /// The breach.
    pub violation: Breach,
    /// The loss with the draws integrated out, if the script draws.
    pub mixture: Option<MixtureLoss>,
    /// The number of scripts after which it was found.
    pub after: u64,
    /// The number of times the last step must be repeated, by fresh sites and user actions, to pass
    /// the capacity. 0 if the script passes it already, `None` if repeating does not help.
    pub repetitions: Option<u8>,
}

/// A search on one manager.
pub struct Search<'m> {
    manager: &'m dyn MakeManager,
    ingredients: Ingredients,
    tactics: Tactics,
    dice: SearchDice,
    /// The fittest scripts, best first.
    fittest: Vec<Kept>,
    /// Scripts that reached something new, newest last.
    novel: Vec<Kept>,
    reached: BTreeSet<u64>,
    /// The number of breaches that could not be proved to leak.
    unproved: usize,
    /// The number of further breaches to look at after the first one.
    refinements: usize,
    /// The number of times each shape of difference was seen.
    futile: BTreeMap<u64, usize>,
    /// The number of scripts so far.
    pub scripts: u64,
    /// The largest loss relative to the capacity, with its script's numbers in µε.
    pub largest_loss: Option<(Loss, u64)>,
    /// The largest loss beyond what x had paid.
    pub largest_excess: Loss,
    /// The first script after which something outside x differed.
    pub unseparated: Option<Script>,
    /// The breach that was found.
    pub finding: Option<Finding>,
}

#[derive(Debug, Clone)]
struct Kept {
    script: Script,
    fitness: Fitness,
}

/// The excess, the stake and the loss, each relative to the capacity.
type Fitness = [f64; 3];

const MOST_FIT: usize = 24;
const MOST_NOVEL: usize = 96;
/// The variants of a script that leaks among which a shorter one is looked for.
const POLISHING: usize = 200;
/// The scripts, and the breaches among them, that are looked at after the first breach, in case one
/// is shorter.
const REFINING: u64 = 2000;
const MOST_REFINEMENTS: usize = 12;
/// The attempts to exploit one script.
const MOST_ATTEMPTS: usize = 160;

impl<'m> Search<'m> {
    /// A search. Searches with the same name and seed make the same scripts.
    pub fn new(
        name: &str,
        manager: &'m dyn MakeManager,
        ingredients: Ingredients,
        tactics: Tactics,
        seed: u64,
    ) -> Self {
        Self {
            manager,
            ingredients,
            tactics,
            dice: SearchDice::new(seed, name),
            fittest: Vec::new(),
            novel: Vec::new(),
            reached: BTreeSet::new(),
            unproved: 0,
            refinements: MOST_REFINEMENTS,
            futile: BTreeMap::new(),
            scripts: 0,
            largest_loss: None,
            largest_excess: Loss::ZERO,
            unseparated: None,
            finding: None,
        }
    }

    /// True if a breach was found, and a shorter script was looked for.
    pub fn is_done(&self) -> bool {
        self.finding.as_ref().is_some_and(|finding| {
            self.refinements == 0 || self.scripts >= finding.after + REFINING
        })
    }

    /// Tries at least this many more scripts, unless a breach is found.
    pub fn run(&mut self, scripts: u64) {
        let until = self.scripts + scripts;
        while self.scripts < until && !self.is_done() {
            let script = self.next();
            let Some((verdict, snapshots)) = self.evaluate(&script) else {
                continue;
            };
            if self.tactics.exploit && !verdict.differences.is_empty() {
                let shape = shape(&verdict.differences);
                let futile = self.futile.entry(shape).or_default();
                *futile += 1;
                // Differences of the same shape that led nowhere are tried less and less often.
                let percent = 300 / (*futile).clamp(3, 60);
                if self.dice.chance(percent) {
                    self.exploit(&script, &verdict, &snapshots);
                }
            }
        }
    }

    fn next(&mut self) -> Script {
        let mut grammar = Grammar {
            dice: &mut self.dice,
            ingredients: self.ingredients,
            tactics: self.tactics,
        };
        let parents = match grammar.dice.below(10) {
            0..5 => return grammar.script(),
            5..7 => &self.fittest,
            _ => &self.novel,
        };
        if parents.is_empty() {
            return grammar.script();
        }
        let parent = &parents[grammar.dice.below(parents.len())];
        mutate::mutate(&mut grammar, &parent.script, self.manager)
    }

    /// Tries a script. Returns what the worlds held at its end, if nothing was found.
    fn evaluate(&mut self, script: &Script) -> Option<(AuditVerdict, [WorldSnapshot; 2])> {
        self.scripts += 1;
        let one = play(self.manager, script, Tape::new(script.tape), None);
        let x = chosen(script, &one)?;
        let zero = play(self.manager, script, Tape::new(script.tape), Some(x));
        let verdict = compare(script, x, &zero, &one);
        self.note(script, &verdict);
        if self.is_caught(script, &verdict) {
            return None;
        }
        let features = features(script, &zero, &one);
        let snapshots = [zero, one].map(|play| {
            let last = play.records.into_iter().next_back();
            last.map(|record| record.snapshot).unwrap_or_default()
        });
        self.keep(script, &verdict, &features);
        Some((verdict, snapshots))
    }

    /// Notes the largest numbers.
    fn note(&mut self, script: &Script, verdict: &AuditVerdict) {
        if verdict.separation.is_some() && self.unseparated.is_none() {
            self.unseparated = Some(script.clone());
        }
        self.largest_excess = self.largest_excess.max(verdict.excess);
        let (loss, capacity) = (verdict.loss(), verdict.capacity);
        let larger = self
            .largest_loss
            .is_none_or(|(largest, of)| relative(loss, capacity) > relative(largest, of));
        if larger {
            self.largest_loss = Some((loss, capacity));
        }
    }

    fn keep(&mut self, script: &Script, verdict: &AuditVerdict, features: &[u64]) {
        let capacity = verdict.capacity;
        #[expect(clippy::cast_precision_loss, reason = "for ranking only")]
        let stake = verdict.stake(script) as f64 / capacity as f64;
        let kept = || Kept {
            script: script.clone(),
            fitness: [
                relative(verdict.excess, capacity),
                stake,
                relative(verdict.loss(), capacity),
            ],
        };
        let mut new = false;
        for feature in features {
            new |= self.reached.insert(*feature);
        }
        if new {
            if self.novel.len() >= MOST_NOVEL {
                let at = self.dice.below(MOST_NOVEL);
                self.novel.remove(at);
            }
            self.novel.push(kept());
        }
        let candidate = kept();
        if candidate.fitness[..2] == [0.0, 0.0] && !self.dice.chance(5) {
            return;
        }
        let at = self
            .fittest
            .partition_point(|other| other.fitness >= candidate.fitness);
        if at < MOST_FIT && !self.fittest.iter().any(|it| it.script == candidate.script) {
            self.fittest.insert(at, candidate);
            self.fittest.truncate(MOST_FIT);
        }
    }

    /// Tries to turn what differs outside x into a loss.
    fn exploit(&mut self, script: &Script, verdict: &AuditVerdict, snapshots: &[WorldSnapshot; 2]) {
        let attempts = exploit::attempts(script, verdict, snapshots, self.tactics.boundary_values);
        for steps in attempts.into_iter().take(MOST_ATTEMPTS) {
            let mut longer = script.clone();
            longer.steps.extend(steps);
            self.scripts += 1;
            let verdict = audit(self.manager, &longer);
            self.note(&longer, &verdict);
            if self.is_caught(&longer, &verdict) {
                return;
            }
        }
    }

    /// Catches a breach. Breaches that could not be proved before are looked at less and less
    /// often, because a proof is expensive.
    fn is_caught(&mut self, script: &Script, verdict: &AuditVerdict) -> bool {
        if verdict.violation.is_none() {
            return false;
        }
        // Without draws there is nothing to integrate out, and the breach is a proof.
        let plain = shrink::without_draws(script);
        if plain == *script || audit(self.manager, &plain).violation.is_some() {
            return self.catch(&plain);
        }
        if self.unproved > 0 && !self.dice.chance(100 / self.unproved.min(50)) {
            return false;
        }
        let caught = self.catch(script);
        self.unproved += usize::from(!caught);
        caught
    }

    /// Confirms and shrinks a breach. Returns false if it is not a proof of a leak, because it
    /// needs a tape that the queriers do not know.
    fn catch(&mut self, script: &Script) -> bool {
        let manager = self.manager;
        let mut leaks = |script: &Script| leak(manager, script).is_some();
        // A script that draws too often for a mixture is shrunk first.
        let breaches = &mut |it: &Script| audit(manager, it).violation.is_some();
        let mut script = script.clone();
        if !leaks(&script) {
            script = shrink::shrink(&script, breaches);
            if !leaks(&script) {
                return false;
            }
        }
        let mut script = shrink::shrink(&script, &mut leaks);
        let mut after = self.scripts;
        match &self.finding {
            None => script = self.polish(script),
            // Another script of the same manager is of interest only if it is shorter.
            Some(finding) => {
                self.refinements = self.refinements.saturating_sub(1);
                if script.steps.len() >= finding.script.steps.len() {
                    return true;
                }
                after = finding.after;
            }
        }
        let Some((violation, mixture)) = leak(manager, &script) else {
            return false;
        };
        self.finding = Some(Finding {
            verdict: audit(manager, &script),
            repetitions: repetitions(manager, &script, violation),
            script,
            violation,
            mixture,
            after,
        });
        true
    }
}

impl Search<'_> {
    /// Looks for a shorter script near one that leaks.
    fn polish(&mut self, script: Script) -> Script {
        let manager = self.manager;
        let mut best = script;
        for _ in 0..POLISHING {
            let mut grammar = Grammar {
                dice: &mut self.dice,
                ingredients: self.ingredients,
                tactics: self.tactics,
            };
            let mutated = mutate::mutate(&mut grammar, &best, manager);
            let plain = shrink::without_draws(&mutated);
            for candidate in [plain, mutated] {
                if audit(manager, &candidate).violation.is_none() {
                    continue;
                }
                let mut leaks = |it: &Script| leak(manager, it).is_some();
                if leaks(&candidate) {
                    let candidate = shrink::shrink(&candidate, &mut leaks);
                    if candidate.steps.len() < best.steps.len() {
                        best = candidate;
                    }
                    break;
                }
            }
        }
        best
    }
}

/// The shape of differences: their kinds, without numbers.
fn shape(differences: &[SnapshotDifference]) -> u64 {
    let mut hasher = DefaultHasher::new();
    let kinds: BTreeSet<(u8, Option<FilterKind>, &str)> = differences
        .iter()
        .map(|difference| match difference {
            SnapshotDifference::Filter { filter, .. } => (0, Some(filter.kind), ""),
            SnapshotDifference::Stored { .. } => (1, None, ""),
            SnapshotDifference::Admitted { .. } => (2, None, ""),
            SnapshotDifference::Shared { name, .. } => (3, None, *name),
            SnapshotDifference::Objects => (4, None, ""),
        })
        .collect();
    kinds.hash(&mut hasher);
    hasher.finish()
}

/// Random scripts, as the search begins with.
pub fn random_scripts(ingredients: Ingredients, count: usize, seed: u64) -> Vec<Script> {
    let mut dice = SearchDice::new(seed, "random scripts");
    let mut grammar = Grammar {
        dice: &mut dice,
        ingredients,
        tactics: Tactics::ALL,
    };
    (0..count).map(|_| grammar.script()).collect()
}

/// The number of repetitions of the last step after which the loss passes the capacity.
fn repetitions(manager: &dyn MakeManager, script: &Script, violation: Breach) -> Option<u8> {
    if violation != Breach::Accounting {
        return Some(0);
    }
    let last = script.steps.len().saturating_sub(1);
    (1..=8).find(|&times| {
        let longer = exploit::again(script, last, times);
        leak(manager, &longer).is_some_and(|(violation, _)| violation == Breach::Theorem)
    })
}

/// The proof that a script leaks: its breach, and the loss with the draws integrated out if it
/// draws.
pub fn leak(manager: &dyn MakeManager, script: &Script) -> Option<(Breach, Option<MixtureLoss>)> {
    let verdict = audit(manager, script);
    let (_, violation) = verdict.violation?;
    if !script.draws() || violation == Breach::Visible {
        return Some((violation, None));
    }
    let mixture = mixture_loss(manager, script)?;
    let slack = match script.setup.profile {
        Profile::W3cDraft => script.calls().count() as u64,
        _ => 0,
    };
    let violation = if mixture.exceeds(verdict.capacity + slack) {
        Breach::Theorem
    } else if mixture.exceeds(mixture.granted + slack) {
        Breach::Accounting
    } else {
        return None;
    };
    Some((violation, Some(mixture)))
}

#[expect(clippy::cast_precision_loss, reason = "for ranking only")]
fn relative(loss: Loss, capacity: u64) -> f64 {
    loss.micro() / capacity.max(1) as f64
}

/// What a script reached: for each pair of consecutive steps, their kinds, the kinds of filters
/// that paid, whether reports were null, and whether the worlds differ.
fn features(script: &Script, zero: &Play, one: &Play) -> Vec<u64> {
    let mut before: Option<u64> = None;
    let mut features = Vec::new();
    let empty = WorldSnapshot::default();
    for (number, step) in script.steps.iter().enumerate() {
        let (zero, now) = (&zero.records[number], &one.records[number]);
        let last = number
            .checked_sub(1)
            .map(|last| &one.records[last].snapshot);
        let last = last.unwrap_or(&empty);
        let mut hasher = DefaultHasher::new();
        kind(step).hash(&mut hasher);
        let mut paid = BTreeSet::new();
        for (epoch, of_epoch) in &now.snapshot.epochs {
            let old = last.epochs.get(epoch);
            for (filter, consumed) in &of_epoch.consumed {
                if old.and_then(|old| old.consumed.get(filter)) != Some(consumed) {
                    let full = script.setup.capacity(filter.kind) == Some(*consumed);
                    paid.insert((filter.kind, full));
                }
            }
        }
        paid.hash(&mut hasher);
        let nulls = |seen: &[Observation]| -> Vec<bool> {
            let null = |seen: &Observation| match seen {
                Observation::Report(report) => report.buckets.iter().all(|it| *it == 0),
                _ => false,
            };
            seen.iter().map(null).collect()
        };
        nulls(&now.seen).hash(&mut hasher);
        moved(&zero.seen, &now.seen).hash(&mut hasher);
        let stored = |it: &WorldSnapshot| {
            it.epochs
                .values()
                .filter(|it| !it.stored.is_empty())
                .count()
        };
        stored(&now.snapshot).hash(&mut hasher);
        now.snapshot.objects.len().min(3).hash(&mut hasher);
        let feature = hasher.finish();
        if let Some(before) = before {
            (before, feature).hash(&mut hasher);
            features.push(hasher.finish());
        }
        before = Some(feature);
    }
    features
}

/// By how much the reports of a step differ between the worlds.
fn moved(zero: &[Observation], one: &[Observation]) -> u32 {
    let pairs = zero.iter().zip(one);
    let moved = pairs.map(|pair| match pair {
        (Observation::Report(zero), Observation::Report(one)) => {
            let buckets = zero.buckets.iter().zip(&one.buckets);
            buckets.map(|(a, b)| a.abs_diff(*b)).sum()
        }
        _ => 0,
    });
    moved.sum()
}

fn kind(step: &Step) -> u8 {
    match step {
        Step::Clock(_) => 0,
        Step::Together(_) => 1,
        Step::ClearSite(_) => 2,
        Step::ClearHistory(clear) => 3 + u8::from(clear.forget_visits),
        Step::Enable(_) => 5,
        Step::Maintain => 6,
        Step::Idle => 7,
        Step::Restart => 8,
        Step::Crash => 9,
        Step::ChangeRules { .. } => 10,
        Step::Call(ScriptCall::Save(_)) => 11,
        Step::Call(ScriptCall::Measure(_)) => 12,
        Step::Call(ScriptCall::Create(_)) => 13,
        Step::Call(ScriptCall::Share(_)) => 14,
    }
}
