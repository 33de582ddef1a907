//! `bigbird explain`: one scenario, played with an account of what each event did.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use bigbird::{Balance, Cause, Fate, Profile};
use bigbird_conformance::{
    EventResult, Scenario, ScenarioEvent, ScenarioPlayer, VectorCase, read_lines, read_w3c,
};
use bigbird_user_agent::protocol::{AgentRequest, CallerInput};
use bigbird_user_agent::{EpochExplanation, Explanation, MemoryStore};

use crate::{CommandError, CommandResult};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
SCENARIO is a .json file in the W3C's end-to-end format, with CONFIG.json in the same directory,
or a .jsonl file with scenarios. --name chooses one of those.")]
pub(crate) struct ExplainArgs {
    /// File with the scenario
    scenario: PathBuf,
    /// Name of the scenario in a .jsonl file [default: the first]
    #[arg(long)]
    name: Option<String>,
    /// Profile to play it under [default: the scenario's own, or w3c-draft]
    #[arg(long)]
    profile: Option<Profile>,
}

pub(crate) fn run(args: &ExplainArgs) -> CommandResult {
    let scenario = read(args).map_err(CommandError::unreadable)?;
    let mut player = scenario
        .player(args.profile)
        .map_err(|why| CommandError::unreadable(format!("{}: {why}", args.scenario.display())))?;
    let mut text = format!("{}\n", scenario.name);
    for event in &scenario.events {
        tell(&mut text, &mut player, event)?;
    }
    Ok((text, true))
}

fn read(args: &ExplainArgs) -> Result<Scenario, String> {
    let path = &args.scenario;
    if path
        .extension()
        .is_some_and(|extension| extension == "json")
    {
        return read_w3c(path).map_err(|error| error.to_string());
    }
    let cases = read_lines(path)
        .map_err(|error| error.to_string())?
        .into_iter();
    let scenarios: Vec<Scenario> = cases
        .filter_map(|(_, case)| match case {
            VectorCase::Scenario(scenario) => Some(*scenario),
            _ => None,
        })
        .collect();
    let named = scenarios.iter().filter(|it| !it.name.is_empty());
    let names: Vec<String> = named
        .map(|it| format!("`{}`", it.name.escape_debug()))
        .collect();
    let mut wanted = scenarios.into_iter().filter(|scenario| match &args.name {
        Some(name) => scenario.name == *name,
        None => true,
    });
    wanted.next().ok_or_else(|| match &args.name {
        Some(name) => format!(
            "{}: unknown scenario `{name}`; use one of: {}",
            path.display(),
            names.join(", ")
        ),
        None => format!("{}: the file contains no scenario", path.display()),
    })
}

/// Plays an event and describes what it did.
fn tell(
    text: &mut String,
    player: &mut ScenarioPlayer<MemoryStore>,
    event: &ScenarioEvent,
) -> std::fmt::Result {
    let before = budgets(player);
    let explanation = event.explain(player);
    let Ok(outcome) = event.play(player);
    let after = budgets(player);

    writeln!(text, "\n{:>10} s  {}", event.seconds, what(event))?;
    match &outcome {
        EventResult::Done => {}
        EventResult::Report(histogram, _) => writeln!(text, "{MARGIN}report {histogram:?}")?,
        EventResult::Shared(shared, _) => writeln!(text, "{MARGIN}shared as {shared}")?,
        EventResult::Error(error) => writeln!(text, "{MARGIN}{error}")?,
    }
    if let (EventResult::Report(..) | EventResult::Shared(..), Some(explanation)) =
        (&outcome, explanation)
    {
        let of_share = matches!(event.request, AgentRequest::TakeShare { .. });
        tell_why(text, &explanation, of_share)?;
    }
    for (key, balance) in &after {
        let spent = before
            .get(key)
            .map_or(Default::default(), |old| old.consumed);
        if spent != balance.consumed {
            let (epoch, name) = key;
            writeln!(
                text,
                "{MARGIN}epoch {epoch}: {name}: {spent} → {} of {}",
                balance.consumed, balance.capacity
            )?;
        }
    }
    Ok(())
}

const MARGIN: &str = "              ";

/// Explains a report, epoch by epoch. Epochs in which nothing matched are left out.
fn tell_why(text: &mut String, explanation: &Explanation, of_share: bool) -> std::fmt::Result {
    if !explanation.enabled {
        return writeln!(text, "{MARGIN}the API is disabled");
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
        return writeln!(text, "{MARGIN}no impression matches");
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
fn budgets(player: &mut ScenarioPlayer<MemoryStore>) -> BTreeMap<(i64, String), Balance> {
    let Ok(budgets) = player.agent.filter_balances();
    let named = budgets.into_iter();
    named
        .map(|budget| ((budget.epoch, budget.to_string()), budget.balance))
        .collect()
}
