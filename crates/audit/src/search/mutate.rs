//! Mutations: small changes of a script, and boundary values that follow from what it left behind.

use bigbird::FilterKind;

use super::exploit::probe;
use super::grammar::Grammar;
use crate::manager::{FilterId, MakeManager};
use crate::meter::{chosen, play};
use crate::script::{Script, ScriptCall, Step, Tape};

/// Longer scripts are not made.
const MOST_STEPS: usize = 18;

/// Changes a script in one to three places.
pub(crate) fn mutate(
    grammar: &mut Grammar<'_>,
    script: &Script,
    manager: &dyn MakeManager,
) -> Script {
    let mut script = script.clone();
    for round in 0..1 + grammar.dice.below(3) {
        let boundary = grammar.tactics.boundary_values && round == 0;
        match grammar.dice.below(if boundary { 14 } else { 11 }) {
            0 | 1 => insert(grammar, &mut script),
            2 => {
                let at = grammar.dice.below(script.steps.len());
                if script.steps.len() > 1 {
                    script.steps.remove(at);
                }
            }
            3 => repeat(grammar, &mut script),
            4 => {
                let (a, b) = (
                    grammar.dice.below(script.steps.len()),
                    grammar.dice.below(script.steps.len()),
                );
                script.steps.swap(a, b);
            }
            5 | 6 => retarget(grammar, &mut script),
            7 => match grammar.dice.below(3) {
                0 => script.x = grammar.dice.below(4),
                1 => script.tape = grammar.dice.any() >> 40,
                _ => script.setup = grammar.script().setup,
            },
            8 => {
                // Whatever was done before, once more after a disturbance.
                let disturbance = grammar.disturbance(&script);
                let begin = grammar.dice.below(script.steps.len());
                let mut again = script.steps[begin..].to_vec();
                again.retain(|step| matches!(step, Step::Call(_)));
                shift_actions(grammar, &mut again);
                script.steps.extend(disturbance);
                script.steps.extend(again);
            }
            9 | 10 => {
                // Later, whatever the grammar would do.
                let moment = grammar.moment(&script);
                script.steps.push(Step::Clock(moment));
                let call = grammar.call(&script);
                script.steps.push(Step::Call(call));
            }
            _ if grammar.dice.chance(50) => fill(grammar, &mut script, manager),
            _ => ask_for_what_is_left(grammar, &mut script, manager),
        }
    }
    script.steps.truncate(MOST_STEPS);
    if script.steps.is_empty() {
        return grammar.script();
    }
    script
}

fn insert(grammar: &mut Grammar<'_>, script: &mut Script) {
    // Steps refer to those before them, so most insertions are at the end.
    let at = match grammar.dice.chance(60) {
        true => script.steps.len(),
        false => grammar.dice.below(script.steps.len() + 1),
    };
    let before = Script {
        steps: script.steps[..at].to_vec(),
        ..script.clone()
    };
    let step = grammar.step(&before);
    script.steps.insert(at, step);
}

/// Appends some of the steps again, by other user actions.
fn repeat(grammar: &mut Grammar<'_>, script: &mut Script) {
    let begin = grammar.dice.below(script.steps.len());
    let count = 1 + grammar.dice.below(4.min(script.steps.len() - begin));
    let mut again = script.steps[begin..begin + count].to_vec();
    shift_actions(grammar, &mut again);
    script.steps.extend(again);
}

/// Gives steps other user actions, most of the time.
fn shift_actions(grammar: &mut Grammar<'_>, steps: &mut [Step]) {
    if grammar.dice.chance(30) {
        return;
    }
    let shift = 1 + u16::try_from(grammar.dice.below(3)).unwrap_or(0);
    for call in steps.iter_mut().flat_map(Step::calls_mut) {
        match call {
            ScriptCall::Save(save) => save.action += shift,
            ScriptCall::Measure(measure) => measure.action += shift,
            ScriptCall::Create(create) => create.measure.action += shift,
            ScriptCall::Share(share) => share.action += shift,
        }
    }
}

/// Changes one call as the grammar would have written it.
fn retarget(grammar: &mut Grammar<'_>, script: &mut Script) {
    let at = grammar.dice.below(script.steps.len());
    let before = Script {
        steps: script.steps[..at].to_vec(),
        ..script.clone()
    };
    let fresh = grammar.measure(&before);
    let dice = &mut *grammar.dice;
    let calls = script.steps[at].calls_mut();
    if calls.is_empty() {
        return;
    }
    let number = dice.below(calls.len());
    match &mut calls[number] {
        ScriptCall::Save(save) => match dice.below(5) {
            0 => save.site = u8::try_from(dice.below(3)).unwrap_or(0),
            1 => save.bucket = u32::try_from(dice.below(3)).unwrap_or(0),
            2 => save.action = fresh.action,
            3 => save.intermediary = fresh.intermediary,
            _ => save.match_value ^= 1,
        },
        ScriptCall::Measure(measure) => match dice.below(6) {
            0 => measure.site = fresh.site,
            1 => measure.intermediary = fresh.intermediary,
            2 => measure.action = fresh.action,
            3 => measure.terms = fresh.terms,
            4 => measure.lookback_days = fresh.lookback_days,
            _ => measure.scope = fresh.scope,
        },
        ScriptCall::Create(create) => match dice.below(3) {
            0 => create.measure.terms = fresh.terms,
            1 => create.measure.lookback_days = fresh.lookback_days,
            _ => create.measure.site = fresh.site,
        },
        ScriptCall::Share(share) => match dice.below(3) {
            0 => share.querier ^= 1,
            1 => share.buckets = fresh.terms.buckets,
            _ => share.scope = fresh.scope,
        },
    }
}

/// Uses up what a later call will need: the budget of its querier or the quota of its site, in one
/// epoch.
fn fill(grammar: &mut Grammar<'_>, script: &mut Script, manager: &dyn MakeManager) {
    let measuring = |step: &Step| {
        let mut calls = step.calls().iter();
        calls.any(|call| !matches!(call, ScriptCall::Save(_)))
    };
    let places: Vec<usize> = (0..script.steps.len())
        .filter(|&at| measuring(&script.steps[at]))
        .collect();
    if places.is_empty() {
        return;
    }
    let at = grammar.dice.pick(&places);
    let calls = script.steps[at].calls();
    let call = calls[grammar.dice.below(calls.len())].clone();
    let querier = |of: u8| FilterId {
        kind: FilterKind::QuerierBudget,
        of: of.into(),
    };
    let filter = match &call {
        ScriptCall::Save(_) => return,
        ScriptCall::Measure(measure) if grammar.dice.chance(30) => FilterId {
            kind: FilterKind::ConversionSiteQuota,
            of: measure.site.into(),
        },
        ScriptCall::Measure(measure) => querier(measure.intermediary.unwrap_or(measure.site)),
        ScriptCall::Create(create) => querier(grammar.dice.pick(&create.participants)),
        ScriptCall::Share(share) => querier(share.querier),
    };
    let before = Script {
        steps: script.steps[..at].to_vec(),
        ..script.clone()
    };
    let played = play(manager, &before, Tape::new(script.tape), None);
    let Some(last) = played.records.last() else {
        return;
    };
    let stored = last.snapshot.epochs.iter();
    let stored: Vec<_> = stored
        .filter(|(_, epoch)| !epoch.stored.is_empty())
        .collect();
    let Some(capacity) = script
        .setup
        .capacity(filter.kind)
        .filter(|_| !stored.is_empty())
    else {
        return;
    };
    let (epoch, of_epoch) = grammar.dice.pick(&stored);
    let consumed = of_epoch.consumed.get(&filter).copied().unwrap_or(0);
    let left = capacity.saturating_sub(consumed);
    let probes = probe(&before, &last.snapshot, *epoch, Some(filter), left);
    if !probes.is_empty() {
        let steps = grammar.dice.pick(&probes);
        script.steps.splice(at..at, steps);
    }
}

/// Asks for exactly what a filter has left in one of the worlds, or for 1 µε more, at some point of
/// the script.
fn ask_for_what_is_left(grammar: &mut Grammar<'_>, script: &mut Script, manager: &dyn MakeManager) {
    let at = match grammar.dice.chance(60) {
        true => script.steps.len(),
        false => 1 + grammar.dice.below(script.steps.len()),
    };
    let before = Script {
        steps: script.steps[..at].to_vec(),
        ..script.clone()
    };
    let mut played = play(manager, &before, Tape::new(script.tape), None);
    if grammar.dice.chance(30)
        && let Some(x) = chosen(&before, &played)
    {
        played = play(manager, &before, Tape::new(script.tape), Some(x));
    }
    let Some(last) = played.records.last() else {
        return;
    };
    let mut left = Vec::new();
    for (epoch, of_epoch) in &last.snapshot.epochs {
        if of_epoch.stored.is_empty() {
            continue;
        }
        for (filter, consumed) in &of_epoch.consumed {
            let capacity = script.setup.capacity(filter.kind).unwrap_or(0);
            left.push((*epoch, Some(*filter), capacity.saturating_sub(*consumed)));
        }
        for kind in [FilterKind::GlobalBudget, FilterKind::QuerierBudget] {
            if let Some(capacity) = script.setup.capacity(kind) {
                // Of a querier that the script knows, or of a fresh one.
                let of = [6, 7, 3].map(|of| Some(FilterId { kind, of }));
                let filter = match kind {
                    FilterKind::QuerierBudget => grammar.dice.pick(&of),
                    _ => None,
                };
                left.push((*epoch, filter, capacity));
            }
        }
    }
    if left.is_empty() {
        return;
    }
    let (epoch, filter, amount) = grammar.dice.pick(&left);
    let amount = amount + u64::from(grammar.dice.chance(20));
    let probes = probe(&before, &last.snapshot, epoch, filter, amount);
    if !probes.is_empty() {
        let steps = grammar.dice.pick(&probes);
        script.steps.splice(at..at, steps);
    }
}
