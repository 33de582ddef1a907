//! `bigbird explain`: events, played with an account of what each of them did, and why.

#[cfg_attr(not(feature = "agent"), path = "explain/without_stores.rs")]
mod stored;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use bigbird::{Balance, Cause, Fate, Profile, Timestamp};
use bigbird_conformance::{
    EventDefaults, EventResult, ExplainableScenario, ScenarioEvent, ScenarioPlayer, read_lenient,
};
use bigbird_user_agent::protocol::{
    AgentAnswer, AgentRequest, CallerInput, budget_json, history_json,
};
use bigbird_user_agent::{EpochExplanation, Explanation, FilterBalance, Storage};
use serde_json::{Value, json};
use stored::StoreCopy;

use crate::clock::date;
use crate::{CommandError, CommandResult, output, stdio};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
FILE has events, each a JSON object: one per line as `bigbird agent` reads them, or in an array.
What is left out gets a sensible value: an impression and a conversion are enough to ask why.

  {\"event\": \"saveImpression\", \"site\": \"news.example\", \"options\": {\"histogramIndex\": 2}}
  {\"event\": \"measureConversion\", \"site\": \"shop.example\", \"options\": {\"epsilon\": 0.5}}

Without `seconds`, an event comes one minute after the one before it. Without a tab, it needs no
activation. A conversion asks for as many buckets as the impressions use.

FILE can also be a scenario: a .json file in the W3C's end-to-end format (with CONFIG.json beside it
if it has no `config`), or a .jsonl file with scenarios, of which --name chooses one.

  echo '{\"event\": \"measureConversion\", \"site\": \"shop.example\"}' | bigbird explain -
  bigbird explain crates/conformance/vectors/big-bird.jsonl --list
  bigbird explain crates/conformance/vectors/w3c-draft.jsonl

With --store, the events are played on a copy of a user agent's store, which is not changed, at the
present time unless they have `seconds`. Without FILE, --store shows what the store has recorded
about each conversion.")]
pub(crate) struct ExplainArgs {
    /// File with events or scenarios, or - for standard input
    #[arg(value_name = "FILE", required_unless_present = "store")]
    file: Option<PathBuf>,
    /// Name of the scenario in a file with several [default: the first]
    #[arg(long)]
    name: Option<String>,
    /// List the scenarios of the file
    #[arg(long, requires = "file", conflicts_with_all = ["name", "store"])]
    list: bool,
    /// Profile to play it under [default: the scenario's own or w3c-draft; big-bird for events]
    #[arg(long, conflicts_with = "store")]
    profile: Option<Profile>,
    /// Store file of a user agent, on a copy of which the events are played
    #[arg(long, value_name = "FILE")]
    store: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &ExplainArgs) -> CommandResult {
    let Some(file) = &args.file else {
        return match &args.store {
            Some(store) => stored::recorded(store, args.json),
            None => Ok((String::new(), true)),
        };
    };
    let copied = args.store.as_deref().map(StoreCopy::of).transpose()?;
    let (seconds, buckets) = match &copied {
        Some(copied) => (copied.now(), copied.buckets()?),
        None => (0, 1),
    };
    let scenarios = read(file, seconds, buckets).map_err(CommandError::unreadable)?;
    if args.list {
        return Ok((list(file, &scenarios, args.json)?, true));
    }
    let count = scenarios.len();
    let found = choose(file, scenarios, args.name.as_deref()).map_err(CommandError::unreadable)?;
    let mut notes = found.notes.clone();
    if count > 1 && args.name.is_none() {
        notes.push(format!(
            "this is the first of {count} scenarios; --name chooses another, and --list lists them"
        ));
    }
    let accounts = match (&args.store, copied) {
        (Some(store), Some(copied)) => {
            notes.push(format!(
                "played on a copy of {}, which is not changed",
                store.display()
            ));
            copied.play(&found)?
        }
        _ => {
            let player = found.scenario.player(args.profile);
            let mut player = player
                .map_err(|why| CommandError::unreadable(format!("{}: {why}", shown(file))))?;
            play(&found, &mut player)?
        }
    };
    let text = match args.json {
        true => output::json(&json!({
            "scenario": found.scenario.name,
            "notes": notes,
            "events": accounts.iter().map(EventAccount::json).collect::<Vec<_>>(),
        }))?,
        false => {
            let mut text = format!("{}\n", found.scenario.name);
            for note in notes {
                text.push_str(&wrapped(&format!("note: {note}"), ""));
            }
            for account in &accounts {
                account.tell(&mut text)?;
            }
            text
        }
    };
    Ok((text, true))
}

/// The name of a file, for people.
fn shown(file: &Path) -> String {
    match file.as_os_str() == "-" {
        true => "standard input".to_owned(),
        false => file.display().to_string(),
    }
}

/// Reads a file, or standard input.
fn read(file: &Path, seconds: i64, buckets: u32) -> Result<Vec<ExplainableScenario>, String> {
    let is_json = file
        .extension()
        .is_some_and(|extension| extension == "json");
    let name = match file.file_stem() {
        // The W3C names a scenario after its file.
        Some(stem) if is_json => stem.to_string_lossy().into_owned(),
        _ => shown(file),
    };
    let text = match file.as_os_str() == "-" {
        true => {
            let mut text = String::new();
            let read = stdio::input().read_to_string(&mut text);
            read.map(|_| text)
        }
        false => std::fs::read_to_string(file),
    };
    let text = text.map_err(|error| format!("{}: {error}", shown(file)))?;
    let config = std::fs::read_to_string(file.with_file_name("CONFIG.json"));
    let defaults = EventDefaults {
        config: config.as_deref().ok().filter(|_| is_json),
        seconds,
        buckets,
    };
    let found = read_lenient(&name, &text, defaults).map_err(|error| error.to_string())?;
    if found.is_empty() {
        let what = "nothing to explain; write events such as {\"event\": \"saveImpression\", \
                    \"site\": \"news.example\"}, one per line";
        return Err(format!("{}: {what}", shown(file)));
    }
    Ok(found)
}

fn choose(
    file: &Path,
    scenarios: Vec<ExplainableScenario>,
    name: Option<&str>,
) -> Result<ExplainableScenario, String> {
    let names: Vec<String> = scenarios
        .iter()
        .map(|it| format!("`{}`", it.scenario.name.escape_debug()))
        .collect();
    let mut wanted = scenarios.into_iter();
    let found = match name {
        Some(name) => wanted.find(|it| it.scenario.name == name),
        None => wanted.next(),
    };
    found.ok_or_else(|| {
        format!(
            "{}: unknown scenario `{}`; use one of: {}",
            shown(file),
            name.unwrap_or_default(),
            names.join(", ")
        )
    })
}

/// Lists scenarios by name.
fn list(
    file: &Path,
    scenarios: &[ExplainableScenario],
    as_json: bool,
) -> Result<String, CommandError> {
    if as_json {
        let listed = scenarios
            .iter()
            .map(|it| json!({"name": it.scenario.name, "events": it.scenario.events.len()}));
        return Ok(output::json(&listed.collect::<Vec<_>>())?);
    }
    let count = output::count(scenarios.len() as u64, "scenario");
    let mut text = format!("{count} in {}\n", shown(file));
    for it in scenarios {
        let events = output::count(it.scenario.events.len() as u64, "event");
        writeln!(text, "  {} ({events})", it.scenario.name.escape_debug())?;
    }
    Ok(text)
}

/// What an event did.
struct EventAccount {
    line: usize,
    seconds: i64,
    event: &'static str,
    /// The event in words.
    what: String,
    /// None if the event is only asked about.
    result: Option<EventResult>,
    /// The reason why an impression was not saved.
    not_saved: Option<&'static str>,
    explanation: Option<Explanation>,
    of_share: bool,
    /// Every filter that was charged, with its balance before.
    charged: Vec<(FilterBalance, Balance)>,
}

/// Plays the events of a scenario, and gives an account of each.
fn play<S: Storage<Error: std::error::Error>>(
    found: &ExplainableScenario,
    player: &mut ScenarioPlayer<S>,
) -> Result<Vec<EventAccount>, CommandError> {
    let store = |error: S::Error| CommandError::because(error.to_string());
    let mut accounts = Vec::new();
    let events = found.scenario.events.iter().zip(&found.lines);
    for ((event, &line), &only_asked) in events.zip(&found.only_asked) {
        let before = budgets(player).map_err(store)?;
        let explanation = event.explain(player);
        let result = match only_asked {
            true => None,
            false => Some(event.play(player).map_err(store)?),
        };
        let mut charged = Vec::new();
        for (key, budget) in budgets(player).map_err(store)? {
            let old = before.get(&key).map_or_else(
                || Balance {
                    consumed: bigbird::MicroEpsilon::ZERO,
                    ..budget.balance
                },
                |old| old.balance,
            );
            if old.consumed != budget.balance.consumed {
                charged.push((budget, old));
            }
        }
        let not_saved = match (&event.request, &result) {
            (AgentRequest::SaveImpression { .. }, Some(EventResult::Done)) => {
                not_saved(player).map_err(store)?
            }
            _ => None,
        };
        accounts.push(EventAccount {
            line,
            seconds: event.seconds,
            event: event.request.name(),
            what: what(event),
            not_saved,
            explanation: explanation.filter(|_| !matches!(result, Some(EventResult::Error(_)))),
            of_share: matches!(event.request, AgentRequest::TakeShare { .. }),
            result,
            charged,
        });
    }
    Ok(accounts)
}

/// The reason why the impression that was just saved is not stored, if it is not.
fn not_saved<S: Storage>(player: &mut ScenarioPlayer<S>) -> Result<Option<&'static str>, S::Error> {
    let (entries, _) = player.agent.history(None, None, 1)?;
    let outcome = entries
        .first()
        .map(|entry| history_json(entry)["outcome"].take());
    Ok(match outcome.as_ref().and_then(Value::as_str) {
        Some("domainCap") => Some(
            "not saved: its user action had already involved as many sites as the domain cap \
             allows",
        ),
        Some("closed") => Some("not saved: the user cleared this epoch"),
        _ => None,
    })
}

const MARGIN: &str = "              ";

/// A text in lines of at most 100 columns, each behind a margin.
pub(crate) fn wrapped(words: &str, margin: &str) -> String {
    let mut text = String::new();
    let mut column = 0;
    for word in words.split(' ') {
        let width = word.chars().count();
        if column > 0 && column + 1 + width <= 100 {
            text.push(' ');
            column += 1 + width;
        } else {
            text.push_str(if column > 0 { "\n" } else { "" });
            text.push_str(margin);
            column = margin.chars().count() + width;
        }
        text.push_str(word);
    }
    text + "\n"
}

/// A time, as a date if it is one of our days.
fn when(seconds: i64) -> String {
    match seconds.abs() < 100_000_000 {
        true => format!("{seconds:>10} s"),
        false => date(Timestamp(seconds.saturating_mul(1000))),
    }
}

impl EventAccount {
    fn tell(&self, text: &mut String) -> std::fmt::Result {
        writeln!(text, "\n{}  {}", when(self.seconds), self.what)?;
        match &self.result {
            None => writeln!(text, "{MARGIN}only asked about, not played")?,
            Some(EventResult::Done) => {}
            Some(EventResult::Report(histogram, _)) => {
                writeln!(text, "{MARGIN}report {histogram:?}")?;
            }
            Some(EventResult::Shared(shared, _)) => writeln!(text, "{MARGIN}shared as {shared}")?,
            Some(EventResult::Error(error)) => writeln!(text, "{MARGIN}{error}")?,
        }
        if let Some(why) = self.not_saved {
            writeln!(text, "{MARGIN}{why}")?;
        }
        if let Some(explanation) = &self.explanation {
            text.push_str(&wrapped(&explanation.sentence(), MARGIN));
            tell_why(text, explanation, self.of_share)?;
        }
        for (budget, before) in &self.charged {
            writeln!(
                text,
                "{MARGIN}epoch {}: {budget}: {} → {} of {}",
                budget.epoch, before.consumed, budget.balance.consumed, budget.balance.capacity
            )?;
        }
        Ok(())
    }

    fn json(&self) -> Value {
        let mut fields = json!({
            "line": self.line,
            "seconds": self.seconds,
            "event": self.event,
            "words": self.what,
        });
        match &self.result {
            None | Some(EventResult::Done) => {}
            Some(EventResult::Report(histogram, _)) => fields["histogram"] = json!(histogram),
            Some(EventResult::Shared(shared, _)) => fields["shared"] = json!(shared),
            Some(EventResult::Error(error)) => fields["error"] = json!(error.to_string()),
        }
        if let Some(why) = self.not_saved {
            fields["notSaved"] = json!(why);
        }
        if let Some(explanation) = &self.explanation {
            let answer = AgentAnswer::explanation(explanation, true);
            fields["explanation"] = answer.get("explanation").cloned().unwrap_or_default();
        }
        let charged = self.charged.iter().map(|(budget, before)| {
            let mut fields = budget_json(budget);
            fields["before"] = json!(before.consumed.get());
            fields
        });
        fields["charged"] = charged.collect();
        fields
    }
}

/// Explains a report, epoch by epoch. Epochs in which nothing matched are left out.
fn tell_why(text: &mut String, explanation: &Explanation, of_share: bool) -> std::fmt::Result {
    if !explanation.enabled {
        return Ok(());
    }
    match (explanation.readable_from, &explanation.closed) {
        (Some(epoch), Some(site)) => {
            let until = epoch - 1;
            writeln!(
                text,
                "{MARGIN}the user cleared the data of {site}: no epoch up to {until} is read"
            )?;
        }
        (Some(epoch), None) => {
            writeln!(
                text,
                "{MARGIN}the user cleared everything before epoch {epoch}"
            )?;
        }
        (None, _) => {}
    }
    if let Some(refusal) = explanation.share_refusal {
        return writeln!(text, "{MARGIN}{refusal}");
    }
    if explanation.nothing_readable() {
        return Ok(());
    }
    let capped = |epoch: &&EpochExplanation| epoch.fate == Fate::Dropped(Cause::DomainCap);
    let mut over_cap = explanation.epochs.iter().filter(capped);
    if let (Some(first), last) = (over_cap.next(), over_cap.next_back()) {
        let epochs = match last {
            Some(last) => format!("epochs {} to {}", first.epoch, last.epoch),
            None => format!("epoch {}", first.epoch),
        };
        writeln!(
            text,
            "{MARGIN}{epochs}: not read, because the user action has reached its domain cap"
        )?;
    }
    let matched = explanation.epochs.iter().any(|epoch| epoch.matched > 0);
    if !matched && explanation.cause.is_none() {
        return tell_unmatched(text, explanation);
    }
    for epoch in explanation.epochs.iter().filter(|epoch| !capped(epoch)) {
        let Fate::Dropped(cause) = epoch.fate else {
            if epoch.matched > 0 {
                writeln!(
                    text,
                    "{MARGIN}epoch {}: matching impressions: {}",
                    epoch.epoch, epoch.matched
                )?;
            }
            continue;
        };
        writeln!(
            text,
            "{MARGIN}epoch {}: {}, matching impressions: {}",
            epoch.epoch, epoch.fate, epoch.matched
        )?;
        for filter in &epoch.filters {
            if !filter.check.fits() {
                writeln!(text, "{MARGIN}  {filter}")?;
            }
        }
        match epoch.largest_epsilon {
            Some(epsilon) => writeln!(text, "{MARGIN}  the largest epsilon that fits: {epsilon}")?,
            // All shares of a conversion have the same epsilon, so another one cannot be tried.
            None if matches!(cause, Cause::Filter(_)) && !of_share => {
                writeln!(text, "{MARGIN}  no epsilon fits")?;
            }
            None => {}
        }
    }
    Ok(())
}

/// Says why the newest impressions do not match.
fn tell_unmatched(text: &mut String, explanation: &Explanation) -> std::fmt::Result {
    if explanation.unmatched.is_empty() {
        return match explanation.readable_from {
            None => writeln!(text, "{MARGIN}no impression is stored"),
            Some(_) => Ok(()),
        };
    }
    writeln!(
        text,
        "{MARGIN}no impression matches; the newest ones do not, because:"
    )?;
    for impression in &explanation.unmatched {
        let at = when(impression.timestamp.0.div_euclid(1000));
        writeln!(
            text,
            "{MARGIN}  {} at {}, bucket {}:",
            impression.site,
            at.trim_start(),
            impression.histogram_index,
        )?;
        writeln!(text, "{MARGIN}    {}", impression.reason())?;
    }
    Ok(())
}

/// An event in words.
fn what(event: &ScenarioEvent) -> String {
    let from = |caller: &CallerInput| match &caller.intermediary_site {
        Some(intermediary) => format!("{}, by {intermediary}", caller.site),
        None => caller.site.clone(),
    };
    let details = || match event.request.conversion(event.moment()) {
        Some((_, options)) => format!(
            ": value {} of {}, epsilon {}",
            options.value, options.max_value, options.epsilon
        ),
        None => String::new(),
    };
    match &event.request {
        AgentRequest::SaveImpression { caller, .. } => format!("an impression on {}", from(caller)),
        AgentRequest::MeasureConversion { caller, .. } => {
            format!("a conversion on {}{}", from(caller), details())
        }
        AgentRequest::CreateSharedConversion {
            caller,
            participants,
            ..
        } => {
            let participants = participants.join(", ");
            let from = from(caller);
            format!(
                "a conversion on {from},\n{MARGIN}shared by {participants}{}",
                details()
            )
        }
        AgentRequest::TakeShare { caller, shared, .. } => {
            format!(
                "a share of {shared}\n{MARGIN}on {}{}",
                from(caller),
                details()
            )
        }
        AgentRequest::ClearImpressionsForSite { site, .. } => {
            format!("{site} clears its impressions")
        }
        AgentRequest::ClearBrowsingHistoryForAttribution {
            sites,
            forget_visits,
            ..
        } => {
            let sites = match sites.as_slice() {
                [] => "all sites".to_owned(),
                sites => sites.join(", "),
            };
            match forget_visits {
                true => format!("the user deletes the visits to {sites} from the history"),
                false => format!("the user clears the data of {sites}"),
            }
        }
        AgentRequest::EnableApi => "the user enables the API".to_owned(),
        AgentRequest::DisableApi => "the user disables the API".to_owned(),
        AgentRequest::UpdateActivationTimestamp { .. } => {
            "the user interacts with the page".to_owned()
        }
        AgentRequest::Navigate { to, .. } => match to {
            Some(site) => format!("the tab navigates to {site}"),
            None => "the tab navigates to a page without a site".to_owned(),
        },
        AgentRequest::Maintain => "the user agent cleans up".to_owned(),
        AgentRequest::RestartEpochs => "the user confirms that the clock is correct".to_owned(),
    }
}

/// Every filter that was charged, by epoch and name.
fn budgets<S: Storage>(
    player: &mut ScenarioPlayer<S>,
) -> Result<BTreeMap<(i64, String), FilterBalance>, S::Error> {
    let budgets = player.agent.filter_balances()?.into_iter();
    Ok(budgets
        .map(|budget| ((budget.epoch, budget.to_string()), budget))
        .collect())
}
