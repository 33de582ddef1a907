//! `bigbird explain`: plays one scenario and tells what each event did.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use bigbird::{Balance, Cause, Fate, Profile};
use bigbird_conformance::{Case, Event, Outcome, Scenario, ScenarioPlayer, read_lines, read_w3c};
use bigbird_user_agent::protocol::{CallerInput, Request};
use bigbird_user_agent::{EpochExplanation, Explanation, Memory};

use crate::{Failed, Finished};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
SCENARIO is a file of the W3C's end-to-end format, with CONFIG.json beside it, or a .jsonl file of
scenarios, of which --name chooses one.")]
pub(crate) struct Args {
    /// The scenario's file
    scenario: PathBuf,
    /// The scenario's name, in a .jsonl file of several [default: the first]
    #[arg(long)]
    name: Option<String>,
    /// Play it under this profile [default: the scenario's own, or w3c-draft]
    #[arg(long)]
    profile: Option<Profile>,
}

pub(crate) fn run(args: &Args) -> Finished {
    let scenario = read(args).map_err(Failed::unreadable)?;
    let mut player = scenario
        .player(args.profile)
        .map_err(|why| Failed::unreadable(format!("{}: {why}", scenario.name)))?;
    let mut text = format!("{}\n", scenario.name);
    for event in &scenario.events {
        tell(&mut text, &mut player, event)?;
    }
    Ok((text, true))
}

fn read(args: &Args) -> Result<Scenario, String> {
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
            Case::Scenario(scenario) => Some(*scenario),
            _ => None,
        })
        .collect();
    let names: Vec<String> = scenarios
        .iter()
        .map(|it| format!("  {}", it.name))
        .collect();
    let mut wanted = scenarios.into_iter().filter(|scenario| match &args.name {
        Some(name) => scenario.name == *name,
        None => true,
    });
    wanted.next().ok_or_else(|| match &args.name {
        Some(name) => format!(
            "{}: no scenario is named {name}; there are\n{}",
            path.display(),
            names.join("\n")
        ),
        None => format!("{}: no scenario", path.display()),
    })
}

/// Plays an event and writes what it did.
fn tell(text: &mut String, player: &mut ScenarioPlayer<Memory>, event: &Event) -> std::fmt::Result {
    let before = budgets(player);
    let explanation = event.explain(player);
    let Ok(outcome) = event.play(player);
    let after = budgets(player);

    writeln!(text, "\n{:>10} s  {}", event.seconds, what(event))?;
    match &outcome {
        Outcome::Done => {}
        Outcome::Report(histogram, _) => writeln!(text, "{MARGIN}report {histogram:?}")?,
        Outcome::Shared(shared, _) => writeln!(text, "{MARGIN}shared as {shared}")?,
        Outcome::Error(error) => writeln!(text, "{MARGIN}{error}")?,
    }
    if let (Outcome::Report(..) | Outcome::Shared(..), Some(explanation)) = (&outcome, explanation)
    {
        let of_share = matches!(event.request, Request::TakeShare { .. });
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
                "{MARGIN}epoch {epoch}: {name} {spent} → {} of {}",
                balance.consumed, balance.capacity
            )?;
        }
    }
    Ok(())
}

const MARGIN: &str = "              ";

/// Why a report is what it is, epoch by epoch; nothing about epochs where nothing matched.
fn tell_why(text: &mut String, explanation: &Explanation, of_share: bool) -> std::fmt::Result {
    if !explanation.enabled {
        return writeln!(text, "{MARGIN}the API is disabled");
    }
    match (explanation.readable_from, &explanation.closed) {
        (Some(epoch), Some(site)) => {
            let until = epoch - 1;
            writeln!(
                text,
                "{MARGIN}the user cleared the data of {site}: nothing is read up to epoch {until}"
            )?;
        }
        (Some(epoch), None) => {
            writeln!(
                text,
                "{MARGIN}the user cleared what was before epoch {epoch}"
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
        let last = last.unwrap_or(first);
        writeln!(
            text,
            "{MARGIN}epochs {} to {}: not read, the user action has involved as many sites as it may",
            first.epoch, last.epoch
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
                    "{MARGIN}epoch {}: {} match",
                    epoch.epoch, epoch.matched
                )?;
            }
            continue;
        };
        writeln!(
            text,
            "{MARGIN}epoch {}: {} match, dropped by the {cause}",
            epoch.epoch, epoch.matched
        )?;
        for filter in &epoch.filters {
            if !filter.check.fits() {
                writeln!(text, "{MARGIN}  {filter}")?;
            }
        }
        match epoch.largest_epsilon {
            Some(epsilon) => writeln!(text, "{MARGIN}  it would fit with epsilon {epsilon}")?,
            // The shares of a conversion have one epsilon: there is nothing to try.
            None if matches!(cause, Cause::Filter(_)) && !of_share => {
                writeln!(text, "{MARGIN}  no epsilon would fit")?;
            }
            None => {}
        }
    }
    Ok(())
}

/// The event in words.
fn what(event: &Event) -> String {
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
        Request::SaveImpression { caller, .. } => format!("an impression on {}", from(caller)),
        Request::MeasureConversion { caller, .. } => {
            format!("a conversion on {}{}", from(caller), details())
        }
        Request::CreateSharedConversion {
            caller,
            participants,
            ..
        } => {
            let participants = participants.join(", ");
            let from = from(caller);
            format!(
                "a conversion on {from}, shared by {participants}{}",
                details()
            )
        }
        Request::TakeShare { caller, shared, .. } => {
            format!("a share of {shared} on {}{}", from(caller), details())
        }
        Request::ClearImpressionsForSite { site } => format!("{site} clears its impressions"),
        Request::ClearBrowsingHistoryForAttribution {
            sites,
            forget_visits,
            ..
        } => {
            let sites = match sites.as_slice() {
                [] => "all sites".to_owned(),
                sites => sites.join(", "),
            };
            match forget_visits {
                true => format!("the user forgets visits of {sites}"),
                false => format!("the user clears data of {sites}"),
            }
        }
        Request::EnableApi => "the user enables the API".to_owned(),
        Request::DisableApi => "the user disables the API".to_owned(),
        Request::UpdateActivationTimestamp { .. } => "the user interacts with the page".to_owned(),
        Request::Navigate { to, .. } => match to {
            Some(site) => format!("the tab goes to {site}"),
            None => "the tab goes to a page without a site".to_owned(),
        },
        Request::Maintain => "the user agent cleans up".to_owned(),
        Request::RestartEpochs => "the user says that the clock is right now".to_owned(),
    }
}

/// Every filter that was charged, by epoch and name.
fn budgets(player: &mut ScenarioPlayer<Memory>) -> BTreeMap<(i64, String), Balance> {
    let Ok(budgets) = player.agent.budgets();
    let named = budgets.into_iter();
    named
        .map(|budget| ((budget.epoch, budget.to_string()), budget.balance))
        .collect()
}
