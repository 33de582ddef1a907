//! The joint meter: two worlds play one script, and every answer of every querier is compared.
//!
//! Given the same past answers, both worlds get the same next step. So a transcript fixes a script,
//! and its log-likelihood ratio is Σ_t Σ_i (|y_ti − a⁰_ti| − |y_ti − a¹_ti|)/λ_t. Its supremum over
//! all transcripts is Σ_t ‖a¹_t − a⁰_t‖₁/λ_t, and its infimum is minus that. The loss of all
//! queriers together, under any adaptive strategy, is therefore the maximum of this sum over fixed
//! scripts. No noise is sampled. `docs/audit.md` has the proof.

use std::collections::BTreeMap;

use bigbird::{FilterKind, Profile};

use super::loss::Loss;
use crate::manager::{
    MakeManager, Observation, SnapshotDifference, StepTime, WorldSetup, WorldSnapshot,
};
use crate::script::{Script, Step, Tape};

/// A script as one world played it.
#[derive(Debug, Clone)]
pub struct Play {
    /// What happened in each step.
    pub records: Vec<StepRecord>,
    /// The epochs in which something was saved, in the order of their first save.
    pub saved: Vec<i64>,
}

/// A step as one world played it.
#[derive(Debug, Clone)]
pub struct StepRecord {
    /// What callers observed.
    pub seen: Vec<Observation>,
    /// Everything that was stored afterwards.
    pub snapshot: WorldSnapshot,
    /// The amount in µε that the global budget of each epoch had granted.
    pub granted: BTreeMap<i64, u64>,
    /// The moment of the step on the device's clock.
    pub now: i64,
}

/// Plays a script in one world.
pub fn play(manager: &dyn MakeManager, script: &Script, tape: Tape, without: Option<i64>) -> Play {
    let mut manager = manager.make(WorldSetup {
        script,
        tape,
        without,
    });
    let (mut now, mut drawing) = (0, 0);
    let mut records = Vec::with_capacity(script.steps.len());
    for (number, step) in script.steps.iter().enumerate() {
        if let Step::Clock(to) = step
            && (script.clock_steps_back || *to > now)
        {
            now = *to;
        }
        let at = StepTime {
            number,
            drawing,
            now,
        };
        drawing += usize::from(step.draws());
        let seen = manager.perform(at, step);
        records.push(StepRecord {
            seen,
            snapshot: manager.snapshot(),
            granted: manager.granted().clone(),
            now,
        });
    }
    Play {
        records,
        saved: manager.saved().to_vec(),
    }
}

/// The oracles that a script can breach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Breach {
    /// The loss is above what the global budget of x has granted.
    Accounting,
    /// The loss is above the capacity of the global budget.
    Theorem,
    /// Something other than noised values shows x.
    Visible,
}

impl Breach {
    /// Its name in results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Accounting => "accounting",
            Self::Theorem => "theorem",
            Self::Visible => "visible",
        }
    }
}

/// The result of comparing two worlds.
#[derive(Debug, Clone)]
pub struct AuditVerdict {
    /// The epoch that differs. `None` if nothing was saved.
    pub x: Option<i64>,
    /// The loss after each step.
    pub losses: Vec<Loss>,
    /// The amount in µε that the global budget of x had granted after each step.
    pub granted: Vec<u64>,
    /// The capacity of the global budget in µε.
    pub capacity: u64,
    /// The first step after which something outside x differed (oracle i), and what did.
    pub separation: Option<(usize, Vec<SnapshotDifference>)>,
    /// What differs outside x after the last step.
    pub differences: Vec<SnapshotDifference>,
    /// The worst breach of oracles ii and iii, with the step after which it was first seen.
    pub violation: Option<(usize, Breach)>,
    /// The largest loss beyond what x had paid.
    pub excess: Loss,
}

impl AuditVerdict {
    fn nothing(capacity: u64) -> Self {
        Self {
            x: None,
            losses: Vec::new(),
            granted: Vec::new(),
            capacity,
            separation: None,
            differences: Vec::new(),
            violation: None,
            excess: Loss::ZERO,
        }
    }

    /// The loss of the whole script.
    pub fn loss(&self) -> Loss {
        self.losses.last().copied().unwrap_or(Loss::ZERO)
    }

    /// The capacity in µε that is at stake in what differs outside x.
    pub fn stake(&self, script: &Script) -> u64 {
        let stake = |difference: &SnapshotDifference| match difference {
            SnapshotDifference::Filter {
                filter, consumed, ..
            } => {
                let capacity = script.setup.capacity(filter.kind).unwrap_or(0);
                capacity.saturating_sub(consumed[0].min(consumed[1]))
            }
            _ => self.capacity,
        };
        self.differences.iter().map(stake).max().unwrap_or(0)
    }
}

/// Plays a script in both worlds and compares them.
pub fn audit(manager: &dyn MakeManager, script: &Script) -> AuditVerdict {
    let tape = || Tape::new(script.tape);
    let one = play(manager, script, tape(), None);
    let Some(x) = chosen(script, &one) else {
        let capacity = script.setup.capacity(FilterKind::GlobalBudget);
        return AuditVerdict::nothing(capacity.unwrap_or(u64::MAX));
    };
    let zero = play(manager, script, tape(), Some(x));
    compare(script, x, &zero, &one)
}

/// The epoch that a script chooses.
pub(crate) fn chosen(script: &Script, one: &Play) -> Option<i64> {
    let at = script.x.checked_rem(one.saved.len())?;
    one.saved.get(at).copied()
}

/// Compares world 0 with world 1.
pub fn compare(script: &Script, x: i64, zero: &Play, one: &Play) -> AuditVerdict {
    let capacity = script.setup.capacity(FilterKind::GlobalBudget);
    let mut verdict = AuditVerdict::nothing(capacity.unwrap_or(u64::MAX));
    verdict.x = Some(x);
    // The draft deducts with the page's epsilon and puts it on the wire rounded up to whole µε. So
    // each report may lose up to 1 µε more than was deducted.
    let tolerance = u64::from(script.setup.profile == Profile::W3cDraft);
    let (mut loss, mut reports) = (Loss::ZERO, 0);
    for (number, (zero, one)) in zero.records.iter().zip(&one.records).enumerate() {
        loss += step_loss(&zero.seen, &one.seen);
        reports += one.seen.len() as u64;
        let granted = one.granted.get(&x).copied().unwrap_or(0);
        let slack = tolerance * reports;
        let violation = if loss == Loss::Infinite {
            Some(Breach::Visible)
        } else if loss.exceeds(verdict.capacity.saturating_add(slack)) {
            Some(Breach::Theorem)
        } else if loss.exceeds(granted.saturating_add(slack)) {
            Some(Breach::Accounting)
        } else {
            None
        };
        if violation > verdict.violation.map(|(_, violation)| violation) {
            verdict.violation = violation.map(|violation| (number, violation));
        }
        verdict.excess = verdict
            .excess
            .max(loss.beyond(granted.saturating_add(slack)));
        verdict.losses.push(loss);
        verdict.granted.push(granted);
        let differences = zero.snapshot.differences(&one.snapshot, x);
        if verdict.separation.is_none() && !differences.is_empty() {
            verdict.separation = Some((number, differences.clone()));
        }
        verdict.differences = differences;
    }
    verdict
}

/// The loss of the answers of one step.
fn step_loss(zero: &[Observation], one: &[Observation]) -> Loss {
    if zero.len() != one.len() {
        return Loss::Infinite;
    }
    let mut loss = Loss::ZERO;
    for pair in zero.iter().zip(one) {
        match pair {
            (Observation::Report(zero), Observation::Report(one))
                if zero.buckets.len() == one.buckets.len() =>
            {
                let (mut a, mut b) = (zero.clone(), one.clone());
                (a.buckets, b.buckets) = (Vec::new(), Vec::new());
                if a != b {
                    return Loss::Infinite;
                }
                let moved = zero.buckets.iter().zip(&one.buckets);
                let moved = moved.map(|(a, b)| u64::from(a.abs_diff(*b))).sum();
                loss += Loss::of_report(moved, one.epsilon, one.max_value);
            }
            (zero, one) if zero == one => {}
            _ => return Loss::Infinite,
        }
    }
    loss
}
