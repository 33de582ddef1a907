//! Shrinking: the shortest and plainest script that still shows the same breach.

use crate::script::{AskTerms, Credit, Scope, Script, ScriptCall, ScriptSetup, Step};

/// Shrinks a script as long as `breaches` is true of it. Afterwards no step can be left out.
pub(crate) fn shrink(script: &Script, breaches: &mut dyn FnMut(&Script) -> bool) -> Script {
    let mut best = script.clone();
    loop {
        let before = best.clone();
        drop_steps(&mut best, breaches);
        // Each success begins the list anew, because it was made for the script before.
        while let Some(plainer) = simpler(&best)
            .into_iter()
            .find(|candidate| *candidate != best && breaches(candidate))
        {
            best = plainer;
        }
        if best == before {
            return best;
        }
    }
}

/// The same script in which all credit goes to the last impression.
pub(crate) fn without_draws(script: &Script) -> Script {
    let mut plain = script.clone();
    for call in plain.steps.iter_mut().flat_map(Step::calls_mut) {
        match call {
            ScriptCall::Measure(measure) => measure.terms.credit = Credit::Last,
            ScriptCall::Create(create) => create.measure.terms.credit = Credit::Last,
            ScriptCall::Save(_) | ScriptCall::Share(_) => {}
        }
    }
    plain
}

fn drop_steps(best: &mut Script, breaches: &mut dyn FnMut(&Script) -> bool) {
    let mut at = best.steps.len();
    while at > 0 {
        at -= 1;
        if let Some(shorter) = without(best, at).into_iter().find(|it| breaches(it)) {
            *best = shorter;
            continue;
        }
        // Two at once, because some steps only make sense together.
        for other in 0..at {
            let both = without(best, at).into_iter().next();
            let both = both.map(|it| without(&it, other)).unwrap_or_default();
            if let Some(shorter) = both.into_iter().find(|it| breaches(it)) {
                *best = shorter;
                at -= 1;
                break;
            }
        }
    }
}

/// The script without a step. Shares refer to the same shared conversions as before, and x may be
/// one place further down.
fn without(script: &Script, at: usize) -> Vec<Script> {
    let creates = |step: &Step| {
        let calls = step.calls().iter();
        calls
            .filter(|call| matches!(call, ScriptCall::Create(_)))
            .count()
    };
    let before: usize = script.steps[..at].iter().map(creates).sum();
    let mut shorter = script.clone();
    let gone = creates(&shorter.steps.remove(at));
    for call in shorter.steps.iter_mut().flat_map(Step::calls_mut) {
        if let ScriptCall::Share(share) = call
            && share.object >= before + gone
        {
            share.object -= gone;
        }
    }
    let mut candidates = vec![shorter.clone()];
    if shorter.x > 0
        && script.steps[at]
            .calls()
            .iter()
            .any(|it| matches!(it, ScriptCall::Save(_)))
    {
        shorter.x -= 1;
        candidates.push(shorter);
    }
    candidates
}

/// Scripts in which two requests are one that asks for as much as both.
fn merged(script: &Script) -> Vec<Script> {
    let epsilon = |at: usize| match &script.steps[at] {
        Step::Call(ScriptCall::Measure(measure)) => Some(measure.terms.epsilon),
        _ => None,
    };
    let mut candidates = Vec::new();
    for later in 1..script.steps.len() {
        for earlier in 0..later {
            let Some((one, two)) = epsilon(earlier).zip(epsilon(later)) else {
                continue;
            };
            let mut merged = script.clone();
            if let Step::Call(ScriptCall::Measure(measure)) = &mut merged.steps[later] {
                measure.terms.epsilon = one + two;
            }
            merged.steps.remove(earlier);
            candidates.push(merged.clone());
            merged.setup.conversion_site_quota = None;
            candidates.push(merged.clone());
            merged.setup.querier_budget = None;
            candidates.push(merged);
        }
    }
    candidates
}

/// Scripts with one thing made plainer.
fn simpler(script: &Script) -> Vec<Script> {
    let mut candidates = merged(script);
    let mut with = |change: &dyn Fn(&mut Script)| {
        let mut candidate = script.clone();
        change(&mut candidate);
        candidates.push(candidate);
    };
    let plain = ScriptSetup::default();
    with(&|it| it.setup.units_per_epoch = plain.units_per_epoch);
    with(&|it| it.setup.relevant_per_epoch = plain.relevant_per_epoch);
    with(&|it| it.setup.max_objects = plain.max_objects);
    with(&|it| it.setup.max_shares = plain.max_shares);
    with(&|it| it.setup.names_before_upkeep = plain.names_before_upkeep);
    with(&|it| it.setup.conversions_at_once = plain.conversions_at_once);
    with(&|it| it.setup.domain_cap = None);
    with(&|it| it.setup.user_action_budget = None);
    with(&|it| it.setup.impression_site_quota = None);
    with(&|it| it.setup.conversion_site_quota = None);
    with(&|it| it.setup.querier_budget = None);
    with(&|it| it.setup.site_charging = plain.site_charging);
    with(&|it| it.setup.depleted_sites = plain.depleted_sites);
    with(&|it| it.tape = 0);
    for x in 0..script.x.min(3) {
        with(&move |it| it.x = x);
    }
    for (at, step) in script.steps.iter().enumerate() {
        if let Step::Together(calls) = step {
            for (number, call) in calls.iter().enumerate() {
                let call = call.clone();
                with(&move |it| it.steps[at] = Step::Call(call.clone()));
                with(&move |it| {
                    if let Step::Together(calls) = &mut it.steps[at]
                        && calls.len() > 1
                    {
                        calls.remove(number);
                    }
                });
            }
        }
        for (number, call) in step.calls().iter().enumerate() {
            for plainer in plainer_calls(call) {
                with(&move |it| it.steps[at].calls_mut()[number] = plainer.clone());
            }
        }
    }
    candidates
}

fn plainer_calls(call: &ScriptCall) -> Vec<ScriptCall> {
    let mut candidates = Vec::new();
    match call {
        ScriptCall::Save(save) => {
            let mut with = |change: &dyn Fn(&mut crate::script::Save)| {
                let mut candidate = save.clone();
                change(&mut candidate);
                candidates.push(ScriptCall::Save(candidate));
            };
            with(&|it| it.intermediary = None);
            with(&|it| it.match_value = 0);
            with(&|it| it.priority = 0);
            with(&|it| it.lifetime_days = 30);
            with(&|it| it.conversion_sites.clear());
            with(&|it| it.conversion_callers.clear());
            with(&|it| it.bucket = 0);
        }
        ScriptCall::Measure(measure) => {
            let mut with = |change: &dyn Fn(&mut crate::script::Measure)| {
                let mut candidate = measure.clone();
                change(&mut candidate);
                candidates.push(ScriptCall::Measure(candidate));
            };
            with(&|it| it.intermediary = None);
            with(&|it| it.scope = Scope::default());
            with(&|it| it.terms.credit = Credit::Last);
            with(&|it| {
                it.terms = AskTerms {
                    value: 1,
                    max_value: 1,
                    ..it.terms
                };
            });
        }
        ScriptCall::Create(create) => {
            let mut plainer = create.clone();
            plainer.measure.terms.credit = Credit::Last;
            candidates.push(ScriptCall::Create(plainer));
        }
        ScriptCall::Share(_) => {}
    }
    candidates
}
