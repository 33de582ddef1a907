//! `bigbird store`: inspection, checks, copies and resets of the store file of a user agent.

use std::cmp::Reverse;
use std::fmt::Write as _;
use std::path::PathBuf;

use bigbird::{Balance, Capacity, EpochIndex, Timestamp};
use bigbird_store::{CheckReport, EpochSummary, Reset, StoreError, StoreSummary};
use bigbird_user_agent::protocol::{budget_json, rules_json};
use bigbird_user_agent::{Era, FilterBalance, Rules};
use serde_json::{Value, json};

use crate::clock::{date, wall_clock};
use crate::{CommandError, CommandResult, output};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum StoreCommand {
    /// Show the budgets and quotas of each epoch, and the impressions of each site
    Show {
        /// Store file
        file: PathBuf,
        /// Show all budgets, quotas and impression sites [default: the ten largest of each kind]
        #[arg(long)]
        all: bool,
        /// Print everything as JSON
        #[arg(long)]
        json: bool,
    },
    /// Verify every page, every row, the ledger digest and every invariant
    Check {
        /// Store file
        file: PathBuf,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// Copy the store as it is at one moment, even while it is in use
    #[command(after_help = "\
Do not continue with a copy once the original has been used again: the copy does not know what was
spent since. Use a copy to inspect a store, or to move a store that is no longer in use.")]
    Backup {
        /// Store file
        file: PathBuf,
        /// New file for the copy, which must not exist yet
        to: PathBuf,
    },
    /// Start over with an empty store, without giving any budget back
    #[command(after_help = "\
The new store closes every epoch up to and including the current one, so that no budget comes back.

The old file is kept beside the new one. It shows what the user has seen. Delete it when it is no
longer needed.")]
    Reset {
        /// Store file
        file: PathBuf,
        /// Reason for the reset, which the new store records
        #[arg(long)]
        reason: String,
        /// Time of the reset, in seconds since 1970 [default: now]
        ///
        /// Only for a store that was used on a test clock.
        #[arg(long, value_name = "SECONDS")]
        seconds: Option<i64>,
    },
}

pub(crate) fn run(command: &StoreCommand) -> CommandResult {
    let text = match command {
        StoreCommand::Show { file, all, json } => {
            let contents = StoreSummary::read(file).map_err(|error| unusable(&error))?;
            match json {
                true => output::json(&contents_json(&contents))?,
                false => show(&contents, if *all { usize::MAX } else { SHOWN })?,
            }
        }
        StoreCommand::Check { file, json } => {
            let checked = bigbird_store::check(file);
            if *json {
                let good = checked.is_ok();
                return Ok((output::json(&checked_json(&checked))?, good));
            }
            let CheckReport {
                filters,
                sites,
                impressions,
                objects,
                history,
            } = checked.map_err(|error| unusable(&error))?;
            format!(
                "The store is intact: {}, {}, {}, {}, {} of history.\n",
                output::count(filters, "filter"),
                output::count(impressions, "impression"),
                output::count(objects, "attribution object"),
                output::count(sites, "site"),
                output::count(history, "record")
            )
        }
        StoreCommand::Backup { file, to } => {
            bigbird_store::backup(file, to).map_err(|error| unusable(&error))?;
            format!("Copied to {}.\n", to.display())
        }
        StoreCommand::Reset {
            file,
            reason,
            seconds,
        } => {
            if reason.trim().is_empty() {
                return Err(CommandError::because("--reason must not be empty"));
            }
            /// The year 10000.
            const END: i64 = 253_402_300_800;
            if let Some(seconds) = seconds.filter(|seconds| !(-END..END).contains(seconds)) {
                return Err(CommandError::because(format!(
                    "--seconds must be in [-{END}, {END}), got {seconds}"
                )));
            }
            let given = seconds.map(|seconds| Timestamp(seconds.saturating_mul(1000)));
            let now = given.unwrap_or_else(wall_clock);
            let done = bigbird_store::reset(file, reason, now).map_err(|error| unusable(&error))?;
            told_of_reset(&done)
        }
    };
    Ok((text, true))
}

/// Describes what a reset did, and what it had to assume.
fn told_of_reset(reset: &Reset) -> String {
    let kept = reset.kept.display();
    let mut text = match &reset.kept_log {
        Some(log) => format!(
            "The old file is now {kept}, with its log {}.\n\
             They show what the user has seen. Delete both when they are no longer needed.\n",
            log.display()
        ),
        None => format!(
            "The old file is now {kept}.\n\
             It shows what the user has seen. Delete it when it is no longer needed.\n"
        ),
    };
    if !reset.remembered {
        let days = Rules::MAX_EPOCH_DAYS;
        text.push_str(&format!(
            "The old store could not be read completely, so the worst was assumed:\n\
             - It was used until now, or until its files were last modified if that is later.\n\
             - Its current epoch was {days} days long.\n\
             - The user had disabled the API.\n"
        ));
    }
    let until = date(reset.closed_until);
    text.push_str(&format!(
        "Every epoch up to and including the one at {until} is closed.\n"
    ));
    text.push_str(match (reset.enabled, reset.remembered) {
        (true, _) => "",
        (false, true) => "The API stays disabled, because the user had disabled it.\n",
        (false, false) => {
            "The API is disabled. If the user had not disabled it, send `{\"event\": \
             \"enableAPI\"}` to\n`bigbird agent`.\n"
        }
    });
    text
}

/// The error of a store that cannot be used, with advice, in one line.
pub(crate) fn unusable(error: &StoreError) -> CommandError {
    let advice = error.advice().map(|advice| format!("; {advice}"));
    let advice = advice.unwrap_or_default();
    CommandError::because(format!("{error}{advice}"))
}

fn checked_json(checked: &Result<CheckReport, StoreError>) -> Value {
    match checked {
        Ok(checked) => json!({
            "ok": true,
            "filters": checked.filters,
            "impressions": checked.impressions,
            "objects": checked.objects,
            "sites": checked.sites,
            "history": checked.history,
        }),
        Err(error) => json!({
            "ok": false,
            "file": error.path().display().to_string(),
            "reason": error.problem().name(),
            "message": error.problem().to_string(),
        }),
    }
}

fn contents_json(contents: &StoreSummary) -> Value {
    let state = &contents.state;
    let moment = |moment: Option<Timestamp>| moment.map(|moment| moment.0.div_euclid(1000));
    let epochs: Vec<Value> = contents
        .epochs
        .iter()
        .map(|epoch| {
            let sites = epoch.impressions.iter();
            let sites = sites.map(|(site, count)| (site.to_string(), json!(count)));
            json!({
                "epoch": epoch.epoch.0,
                "begins": moment(epoch.begins),
                "budgets": epoch.budgets.iter().map(budget_json).collect::<Vec<_>>(),
                "impressions": Value::Object(sites.collect()),
            })
        })
        .collect();
    let closed = contents.closed.iter();
    let closed = closed.map(|(site, until)| (site.to_string(), json!(until.0)));
    let resets = contents.resets.iter();
    let resets = resets.map(|(at, reason)| json!({"at": moment(Some(*at)), "reason": reason}));
    json!({
        "rules": rules_json(state.timeline.eras()),
        "enabled": state.enabled,
        "epochStart": moment(state.timeline.eras().first().map(|era| era.begins)),
        "lastClear": moment(state.last_clear),
        "epochs": epochs,
        "closedUntil": Value::Object(closed.collect()),
        "objects": contents.objects,
        "resets": resets.collect::<Vec<_>>(),
        "bytes": contents.bytes,
    })
}

/// The number of filters of each kind, and of impression sites, that are shown for an epoch.
const SHOWN: usize = 10;

fn show(contents: &StoreSummary, most: usize) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    let state = &contents.state;
    for Era {
        first,
        begins,
        rules,
    } in state.timeline.eras()
    {
        let (first, begins) = (first.0, date(*begins));
        // On two lines, because one would be too wide.
        let rules = rules
            .to_string()
            .replacen(", impression", ",\n  impression", 1);
        writeln!(text, "From epoch {first} on ({begins}): {rules}.")?;
    }
    if state.timeline.eras().is_empty() {
        writeln!(text, "No epoch has begun yet.")?;
    }
    if !state.enabled {
        writeln!(text, "The user has disabled the API.")?;
    }
    if let Some(clear) = state.last_clear {
        if !contents.resets.is_empty() && Some(clear) >= state.latest_use {
            // The reset was the last clear. It may have closed epochs that are still to come.
            let until = date(clear);
            writeln!(
                text,
                "Every epoch up to and including the one at {until} is closed."
            )?;
        } else {
            writeln!(text, "History was last cleared on {}.", date(clear))?;
        }
        if let Some(epoch) = state.timeline.epoch(clear) {
            let next = EpochIndex(epoch.0.saturating_add(1));
            write!(text, "Nothing is measured before epoch {}", next.0)?;
            match state.timeline.beginning(next) {
                Some(begins) => writeln!(text, ", which begins on {}.", date(begins))?,
                None => writeln!(text, ".")?,
            }
        }
    }
    for (at, reason) in &contents.resets {
        writeln!(text, "Reset on {}: {}", date(*at), reason.escape_debug())?;
    }
    for (site, until) in &contents.closed {
        writeln!(
            text,
            "The user cleared the data of {site}. Its conversions no longer read epochs up to {}.",
            until.0
        )?;
    }
    if contents.objects > 0 {
        writeln!(
            text,
            "{}.",
            output::count(contents.objects, "shared conversion")
        )?;
    }
    writeln!(text, "{} on disk.", size(contents.bytes))?;
    // Newest first, because people usually look for the last epoch.
    for epoch in contents.epochs.iter().rev() {
        show_epoch(&mut text, epoch, most)?;
    }
    if contents.epochs.is_empty() {
        writeln!(text, "\nNo impressions are stored, and nothing was spent.")?;
    }
    Ok(text)
}

fn show_epoch(text: &mut String, epoch: &EpochSummary, most: usize) -> std::fmt::Result {
    write!(text, "\nEpoch {}", epoch.epoch.0)?;
    if let Some(begins) = epoch.begins {
        write!(text, ", from {}", date(begins))?;
    }
    writeln!(text)?;
    let mut budgets: Vec<&FilterBalance> = epoch.budgets.iter().collect();
    budgets.sort_by_key(|it| (it.filter.kind(), Reverse(it.balance.consumed)));
    let shown = budgets.chunk_by(|a, b| a.filter.kind() == b.filter.kind());
    let width = shown
        .clone()
        .flat_map(|kind| kind.iter().take(most))
        .map(|it| it.to_string().chars().count())
        .max()
        .unwrap_or(0);
    for kind in shown {
        for budget in kind.iter().take(most) {
            let balance = &budget.balance;
            writeln!(
                text,
                "  {:<width$}  {}  {} of {}",
                budget.to_string(),
                bar(balance),
                balance.consumed,
                balance.capacity
            )?;
        }
        if kind.len() > most {
            writeln!(text, "  and {} more", kind.len() - most)?;
        }
    }
    let impressions: u64 = epoch.impressions.iter().map(|(_, count)| count).sum();
    if impressions > 0 {
        let sites = epoch.impressions.len();
        let of = output::count(sites as u64, "site");
        writeln!(
            text,
            "  {} of {of}",
            output::count(impressions, "impression")
        )?;
        for (site, count) in epoch.impressions.iter().take(most) {
            writeln!(text, "    {count:>7}  {site}")?;
        }
        if sites > most {
            writeln!(text, "           and {} more", sites - most)?;
        }
    }
    Ok(())
}

/// The consumed share of a capacity, as a bar.
fn bar(balance: &Balance) -> String {
    const WIDTH: u64 = 20;
    let filled = match balance.capacity {
        Capacity::Unlimited => 0,
        Capacity::Finite(capacity) => {
            let (consumed, capacity) = (
                u128::from(balance.consumed.get()),
                u128::from(capacity.get()),
            );
            // The bar is empty only if nothing is consumed, and full only if nothing is left.
            let share = (consumed * u128::from(WIDTH)).div_ceil(capacity.max(1));
            let most = if consumed < capacity {
                WIDTH - 1
            } else {
                WIDTH
            };
            u64::try_from(share).unwrap_or(WIDTH).min(most)
        }
    };
    (0..WIDTH)
        .map(|at| if at < filled { '█' } else { '░' })
        .collect()
}

fn size(bytes: u64) -> String {
    #[expect(
        clippy::cast_precision_loss,
        reason = "the size is shown with one digit"
    )]
    let bytes_f = bytes as f64;
    match bytes {
        0..10_000 => format!("{bytes} B"),
        10_000..10_000_000 => format!("{:.0} kB", bytes_f / 1e3),
        _ => format!("{:.1} MB", bytes_f / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bigbird::MicroEpsilon;

    #[test]
    fn moments_become_dates() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00 UTC"),
            (-1, "1969-12-31 23:59 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (1_772_323_199, "2026-02-28 23:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(date(Timestamp(seconds * 1000)), expected);
        }
        // Nothing overflows at the ends of time.
        date(Timestamp(i64::MAX));
        date(Timestamp(i64::MIN));
    }

    #[test]
    fn a_bar_is_empty_or_full_only_if_the_filter_is() {
        let of = |consumed, capacity| {
            let balance = Balance {
                capacity: Capacity::Finite(MicroEpsilon::new(capacity)),
                consumed: MicroEpsilon::new(consumed),
            };
            bar(&balance).chars().filter(|it| *it == '█').count()
        };
        assert_eq!(
            [
                of(0, 100),
                of(1, 100),
                of(50, 100),
                of(99, 100),
                of(100, 100)
            ],
            [0, 1, 10, 19, 20]
        );
        assert_eq!(of(u64::MAX, u64::MAX), 20);
        assert_eq!(of(0, 0), 0);
    }
}
