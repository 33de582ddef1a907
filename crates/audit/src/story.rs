//! A script told step by step: what happens, what both worlds answer, what x paid, and the loss.

use std::fmt::Write as _;

use bigbird::FilterKind;

use crate::manager::{FilterId, MakeManager, Observation, SnapshotDifference};
use crate::meter::{Breach, Loss, Play, audit, chosen, compare, play};
use crate::script::{
    Create, Credit, DAY, HOUR, Measure, Save, Scope, Script, ScriptCall, Share, Step, Tape,
};

/// Tells a script.
pub fn story(manager: &dyn MakeManager, script: &Script) -> String {
    let mut text = String::new();
    setup(script, &mut text);
    let one = play(manager, script, Tape::new(script.tape), None);
    let Some(x) = chosen(script, &one) else {
        text.push_str("Nothing is saved, so no epoch differs and nothing can leak.\n");
        return text;
    };
    let zero = play(manager, script, Tape::new(script.tape), Some(x));
    let verdict = compare(script, x, &zero, &one);
    let _ = writeln!(
        text,
        "X is epoch {x}. In world 1 it holds what is saved in it; in world 0 the same saves leave \
         nothing."
    );
    let mut paid_before = 0;
    let mut loss_before = Loss::ZERO;
    for (number, step) in script.steps.iter().enumerate() {
        let _ = write!(
            text,
            "{:>3}. {}",
            number + 1,
            tell(script, step, one.records[number].now)
        );
        answers(&zero, &one, number, &mut text);
        let (paid, loss) = (verdict.granted[number], verdict.losses[number]);
        if paid != paid_before {
            let _ = write!(text, "; X has paid {paid} µε");
        }
        if loss != loss_before {
            let _ = write!(text, "; the loss is {loss}");
        }
        text.push('\n');
        (paid_before, loss_before) = (paid, loss);
        if let Some((at, differences)) = &verdict.separation
            && *at == number
        {
            for difference in differences.iter().take(3) {
                let _ = writeln!(text, "     outside X, {}", tell_difference(difference));
            }
        }
    }
    let (loss, capacity) = (verdict.loss(), verdict.capacity);
    let _ = match verdict.violation {
        None => writeln!(
            text,
            "It holds: the loss is {loss}, X has paid {paid_before} µε, and the capacity is \
             {capacity} µε."
        ),
        Some((_, Breach::Visible)) => writeln!(
            text,
            "It leaks: something that has no noise differs, so the loss is infinite."
        ),
        Some((_, Breach::Theorem)) => writeln!(
            text,
            "It leaks: the loss of {loss} is above the capacity of {capacity} µε."
        ),
        Some((_, Breach::Accounting)) => writeln!(
            text,
            "It leaks: the loss of {loss} is above the {paid_before} µε that X has paid (capacity \
             {capacity} µε)."
        ),
    };
    text
}

/// One line about the breach of a script, or about its absence.
pub fn verdict_line(manager: &dyn MakeManager, script: &Script) -> String {
    let verdict = audit(manager, script);
    let paid = verdict.granted.last().copied().unwrap_or(0);
    format!(
        "loss {}, paid {paid} µε, capacity {} µε",
        verdict.loss(),
        verdict.capacity
    )
}

fn setup(script: &Script, text: &mut String) {
    let setup = &script.setup;
    let _ = write!(text, "Profile {}", setup.profile.name());
    for kind in FilterKind::ALL {
        if let Some(capacity) = setup.capacity(kind) {
            let _ = write!(text, ", {kind} {capacity} µε");
        }
    }
    if let Some(cap) = setup.policy().domain_cap() {
        let _ = write!(text, ", domain cap {cap}");
    }
    let plain = crate::script::ScriptSetup::default();
    for (name, value, default) in [
        (
            "units per epoch",
            u64::from(setup.units_per_epoch.get()),
            u64::from(plain.units_per_epoch.get()),
        ),
        (
            "impressions read per epoch",
            setup.relevant_per_epoch.into(),
            plain.relevant_per_epoch.into(),
        ),
        (
            "shared conversions",
            setup.max_objects as u64,
            plain.max_objects as u64,
        ),
        (
            "shares of one",
            setup.max_shares as u64,
            plain.max_shares as u64,
        ),
        (
            "conversions at once",
            setup.conversions_at_once.into(),
            plain.conversions_at_once.into(),
        ),
        (
            "names before upkeep",
            setup.names_before_upkeep as u64,
            plain.names_before_upkeep as u64,
        ),
    ] {
        if value != default {
            let _ = write!(text, ", at most {value} {name}");
        }
    }
    if setup.site_charging != plain.site_charging {
        let _ = write!(text, ", site charging {}", setup.site_charging);
    }
    if setup.depleted_sites != plain.depleted_sites {
        text.push_str(", depleted sites are dropped");
    }
    let _ = writeln!(
        text,
        ". Epochs of {} days, lookback at most {} days.",
        setup.epoch_days, setup.max_lookback_days
    );
}

/// A moment as days and hours since the beginning of epoch 0.
fn time(moment: i64) -> String {
    let (days, rest) = (moment.div_euclid(DAY), moment.rem_euclid(DAY));
    let (hours, rest) = (rest / HOUR, rest % HOUR);
    match rest {
        0 => format!("day {days}, {hours} h"),
        rest => format!("day {days}, {hours} h {rest} ms"),
    }
}

fn tell(script: &Script, step: &Step, now: i64) -> String {
    match step {
        Step::Clock(to) if *to == now => {
            format!(
                "The clock moves to {} (epoch {})",
                time(now),
                script.setup.epoch(now)
            )
        }
        Step::Clock(_) => format!("The clock stays at {}", time(now)),
        Step::Call(call) => tell_call(script, call),
        Step::Together(calls) => {
            let calls: Vec<String> = calls.iter().map(|call| tell_call(script, call)).collect();
            format!("At the same moment: {}", calls.join("; "))
        }
        Step::ClearSite(site) => format!("Site {site} asks to be forgotten"),
        Step::ClearHistory(clear) => {
            let how = match clear.forget_visits {
                true => "forgetting visits",
                false => "closing sites",
            };
            match clear.sites.as_slice() {
                [] => format!("The user clears all history, {how}"),
                sites => format!("The user clears the history of sites {sites:?}, {how}"),
            }
        }
        Step::Enable(true) => "The user enables the API".to_owned(),
        Step::Enable(false) => "The user disables the API".to_owned(),
        Step::Maintain => "Upkeep runs".to_owned(),
        Step::Idle => "Nobody waits: upkeep runs if it is due".to_owned(),
        Step::Restart => "The process restarts".to_owned(),
        Step::Crash => "The process is killed and starts again".to_owned(),
        Step::ChangeRules { others: true } => "The rules change".to_owned(),
        Step::ChangeRules { others: false } => "The rules change back".to_owned(),
    }
}

fn tell_call(script: &Script, call: &ScriptCall) -> String {
    match call {
        ScriptCall::Save(Save {
            site,
            intermediary,
            action,
            bucket,
            ..
        }) => {
            let by = intermediary.map_or(String::new(), |by| format!(" through site {by}"));
            format!("Site {site}{by} saves an impression for bucket {bucket}, by action {action}")
        }
        ScriptCall::Measure(measure) => tell_measure(measure),
        ScriptCall::Create(Create {
            measure,
            participants,
        }) => format!(
            "{}, to be shared by sites {participants:?}",
            tell_measure(measure)
        ),
        ScriptCall::Share(Share {
            object,
            querier,
            buckets,
            scope,
            ..
        }) => {
            let known = object < &script.shared_terms().len();
            let what = if known { "" } else { " (which does not exist)" };
            format!(
                "Site {querier} takes a share of shared conversion {object}{what}, {buckets} \
                 buckets{}",
                tell_scope(scope)
            )
        }
    }
}

fn tell_measure(measure: &Measure) -> String {
    let Measure {
        site,
        intermediary,
        action,
        terms,
        lookback_days,
        scope,
    } = measure;
    let by = intermediary.map_or(String::new(), |by| format!(" for querier {by}"));
    let value = match (terms.value, terms.max_value) {
        (1, 1) => String::new(),
        (value, most) => format!(", value {value} of {most}"),
    };
    let credit = match terms.credit {
        Credit::Last => "",
        Credit::Even => ", credit [1, 1]",
        Credit::Rising => ", credit [1, 2]",
    };
    format!(
        "Site {site} measures{by} with ε = {} µε over {lookback_days} days, {} buckets{value}\
         {credit}{}, by action {action}",
        terms.epsilon,
        terms.buckets,
        tell_scope(scope)
    )
}

fn tell_scope(scope: &Scope) -> String {
    let mut text = String::new();
    if !scope.impression_sites.is_empty() {
        let _ = write!(text, ", only sites {:?}", scope.impression_sites);
    }
    if !scope.impression_callers.is_empty() {
        let _ = write!(text, ", only saved by {:?}", scope.impression_callers);
    }
    if !scope.match_values.is_empty() {
        let _ = write!(text, ", only match values {:?}", scope.match_values);
    }
    text
}

fn answers(zero: &Play, one: &Play, number: usize, text: &mut String) {
    let tell = |seen: &[Observation]| -> String {
        let told: Vec<String> = seen
            .iter()
            .filter_map(|seen| match seen {
                Observation::Saved => None,
                Observation::Report(report) => Some(format!("{:?}", report.buckets)),
                Observation::Handle(..) => Some("a handle".to_owned()),
                Observation::Error(error) => Some(format!("error: {error}")),
            })
            .collect();
        told.join(", ")
    };
    let told = [zero, one].map(|play| tell(&play.records[number].seen));
    if told[0] == told[1] {
        if !told[0].is_empty() {
            let _ = write!(text, ": {} in both worlds", told[0]);
        }
    } else {
        let _ = write!(text, ": {} in world 0, {} in world 1", told[0], told[1]);
    }
}

/// A difference between the worlds, in words.
pub fn tell_difference(difference: &SnapshotDifference) -> String {
    match difference {
        SnapshotDifference::Filter {
            epoch,
            filter: FilterId { kind, of },
            consumed: [zero, one],
        } => {
            let of = match kind {
                FilterKind::GlobalBudget => String::new(),
                FilterKind::UserActionBudget => format!(" of action {of}"),
                _ => format!(" of site {of}"),
            };
            format!(
                "the {kind}{of} in epoch {epoch} has paid {zero} µε in world 0, {one} in world 1"
            )
        }
        SnapshotDifference::Stored { epoch } => {
            format!("epoch {epoch} holds different impressions")
        }
        SnapshotDifference::Admitted { epoch } => {
            format!("epoch {epoch} has admitted different sites")
        }
        SnapshotDifference::Shared { name, .. } => format!("{name} differs"),
        SnapshotDifference::Objects => "shared conversions differ".to_owned(),
    }
}
