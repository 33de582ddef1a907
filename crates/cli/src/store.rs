//! `bigbird store`: looking into the file of a user agent, checking, copying and resetting it.

use std::cmp::Reverse;
use std::fmt::Write as _;
use std::path::PathBuf;

use bigbird::{Balance, Capacity, EpochIndex, Timestamp};
use bigbird_store::{Checked, Contents, EpochContents, Problem, Reset, StoreError};
use bigbird_user_agent::protocol::{budget_json, rules_json};
use bigbird_user_agent::{Budget, Era, Rules};
use serde_json::{Value, json};

use crate::clock::wall_clock;
use crate::{Failed, Finished, output};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Show what it holds: budgets and quotas by epoch, impressions by site
    Show {
        /// The store
        file: PathBuf,
        /// Show every filter and impression site, not only the ten first of each kind
        #[arg(long)]
        all: bool,
        /// Print all of it as JSON
        #[arg(long)]
        json: bool,
    },
    /// Verify every page, every row, the digest and every invariant
    Check {
        /// The store
        file: PathBuf,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// Copy it as it is at one moment, also while it is used
    #[command(after_help = "\
To go on with a copy after the original was used takes back what was spent in between: a copy is
for looking into, and for moving a store that is not used any more.")]
    Backup {
        /// The store
        file: PathBuf,
        /// Where the copy goes; there must be no file
        to: PathBuf,
    },
    /// Start over, closing every epoch up to and including the current one, so that no budget
    /// comes back
    #[command(after_help = "\
The old file is kept beside the new one. Delete it when nobody needs to look into it any more: it
tells what the user has seen.")]
    Reset {
        /// The store
        file: PathBuf,
        /// Why; it is noted in the new store
        #[arg(long)]
        reason: String,
        /// When, in seconds since 1970, for a store that lives on a test clock [default: now]
        #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
        seconds: Option<i64>,
    },
}

pub(crate) fn run(command: &Command) -> Finished {
    let text = match command {
        Command::Show { file, all, json } => {
            let contents = Contents::read(file).map_err(|error| unusable(&error))?;
            match json {
                true => output::json(&contents_json(&contents))?,
                false => show(&contents, if *all { usize::MAX } else { SHOWN })?,
            }
        }
        Command::Check { file, json } => {
            let checked = bigbird_store::check(file);
            if *json {
                let good = checked.is_ok();
                return Ok((output::json(&checked_json(&checked))?, good));
            }
            let Checked {
                filters,
                sites,
                impressions,
                objects,
            } = checked.map_err(|error| unusable(&error))?;
            format!(
                "In order: {}, {}, {}, {}.\n",
                count(filters, "filter"),
                count(impressions, "impression"),
                count(objects, "attribution object"),
                count(sites, "site")
            )
        }
        Command::Backup { file, to } => {
            bigbird_store::backup(file, to).map_err(|error| unusable(&error))?;
            format!("Copied to {}.\n", to.display())
        }
        Command::Reset {
            file,
            reason,
            seconds,
        } => {
            if reason.trim().is_empty() {
                return Err(Failed::because("--reason must say why"));
            }
            /// The year 10000.
            const END: i64 = 253_402_300_800;
            if let Some(seconds) = seconds.filter(|seconds| !(-END..END).contains(seconds)) {
                return Err(Failed::because(format!(
                    "--seconds must be within {END} of 1970, got {seconds}"
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

/// What a reset did, and what it had to assume.
fn told_of_reset(reset: &Reset) -> String {
    let kept = reset.kept.display();
    let mut text = format!(
        "The old store is {kept}, with {kept}-wal. It tells what the user has seen: delete both when \
         nobody needs them any more.\n"
    );
    if !reset.remembered {
        let days = Rules::MAX_EPOCH_DAYS;
        text.push_str(&format!(
            "The old store could not be read completely, so the worst was assumed: it was used until \
             now, or until its files were last modified if that is later; its epoch was {days} days \
             long; and the user had disabled the API.\n"
        ));
    }
    let until = date(reset.closed_until);
    text.push_str(&format!(
        "Nothing is attributed to any epoch up to and including the one at {until}.\n"
    ));
    text.push_str(match (reset.enabled, reset.remembered) {
        (true, _) => "",
        (false, true) => "The API stays disabled, as the user had it.\n",
        (false, false) => {
            "The API is disabled. If the user had not disabled it, enable it: `{\"event\": \
             \"enableAPI\"}` to `bigbird agent`.\n"
        }
    });
    text
}

/// One line about a store that cannot be used, and what to do about it.
pub(crate) fn unusable(error: &StoreError) -> Failed {
    let advice = match error.problem() {
        Problem::Damaged(_) => "; `bigbird store reset` starts over without giving budgets back",
        problem if problem.is_transient() => "; nothing was lost, try again",
        _ => "",
    };
    Failed::because(format!("{error}{advice}"))
}

fn checked_json(checked: &Result<Checked, StoreError>) -> Value {
    match checked {
        Ok(checked) => json!({
            "ok": true,
            "filters": checked.filters,
            "impressions": checked.impressions,
            "objects": checked.objects,
            "sites": checked.sites,
        }),
        Err(error) => json!({
            "ok": false,
            "file": error.path().display().to_string(),
            "reason": error.problem().name(),
            "message": error.problem().to_string(),
        }),
    }
}

fn contents_json(contents: &Contents) -> Value {
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

/// How many filters of a kind, and how many impression sites, are shown of an epoch.
const SHOWN: usize = 10;

fn show(contents: &Contents, most: usize) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    let state = &contents.state;
    for Era {
        first,
        begins,
        rules,
    } in state.timeline.eras()
    {
        let (first, begins) = (first.0, date(*begins));
        writeln!(text, "From epoch {first} on, {begins}: {rules}.")?;
    }
    if state.timeline.eras().is_empty() {
        writeln!(text, "Epochs have not begun yet.")?;
    }
    if !state.enabled {
        writeln!(text, "The user has disabled the API.")?;
    }
    if let Some(clear) = state.last_clear {
        if !contents.resets.is_empty() && Some(clear) > state.latest_use {
            // What could be spent before a reset of a store that could not be read.
            let until = date(clear);
            writeln!(text, "Closed up to and including the epoch at {until}.")?;
        } else {
            writeln!(text, "History was last cleared on {}.", date(clear))?;
        }
        if let Some(epoch) = state.timeline.epoch(clear) {
            let next = EpochIndex(epoch.0.saturating_add(1));
            write!(text, "Nothing is measured before epoch {}", next.0)?;
            match state.timeline.beginning(next) {
                Some(begins) => writeln!(text, ", from {}.", date(begins))?,
                None => writeln!(text, ".")?,
            }
        }
    }
    for (at, reason) in &contents.resets {
        writeln!(text, "Reset on {}: {}", date(*at), reason.escape_debug())?;
    }
    for (site, until) in &contents.closed {
        writeln!(text, "The user closed {site} up to epoch {}.", until.0)?;
    }
    if contents.objects > 0 {
        writeln!(text, "{}.", count(contents.objects, "shared conversion"))?;
    }
    writeln!(text, "{} on disk.", size(contents.bytes))?;
    // What people look for is what was last.
    for epoch in contents.epochs.iter().rev() {
        show_epoch(&mut text, epoch, most)?;
    }
    if contents.epochs.is_empty() {
        writeln!(text, "\nNo impressions, and nothing spent.")?;
    }
    Ok(text)
}

fn show_epoch(text: &mut String, epoch: &EpochContents, most: usize) -> std::fmt::Result {
    write!(text, "\nEpoch {}", epoch.epoch.0)?;
    if let Some(begins) = epoch.begins {
        write!(text, ", from {}", date(begins))?;
    }
    writeln!(text)?;
    let mut budgets: Vec<&Budget> = epoch.budgets.iter().collect();
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
        let of = count(sites as u64, "site");
        writeln!(text, "  {} of {of}", count(impressions, "impression"))?;
        for (site, count) in epoch.impressions.iter().take(most) {
            writeln!(text, "    {count:>7}  {site}")?;
        }
        if sites > most {
            writeln!(text, "           and {} more", sites - most)?;
        }
    }
    Ok(())
}

/// So many things.
fn count(number: u64, thing: &str) -> String {
    match number {
        1 => format!("1 {thing}"),
        _ => format!("{number} {thing}s"),
    }
}

/// What is consumed of a capacity, as a bar.
fn bar(balance: &Balance) -> String {
    const WIDTH: u64 = 20;
    let filled = match balance.capacity {
        Capacity::Unlimited => 0,
        Capacity::Finite(capacity) => {
            let (consumed, capacity) = (
                u128::from(balance.consumed.get()),
                u128::from(capacity.get()),
            );
            // Something is never shown as nothing, nor what is left as nothing.
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
    #[expect(clippy::cast_precision_loss, reason = "it is shown with one digit")]
    let bytes_f = bytes as f64;
    match bytes {
        0..10_000 => format!("{bytes} B"),
        10_000..10_000_000 => format!("{:.0} kB", bytes_f / 1e3),
        _ => format!("{:.1} MB", bytes_f / 1e6),
    }
}

/// A moment as a date and time, in UTC.
fn date(moment: Timestamp) -> String {
    let seconds = moment.0.div_euclid(1000);
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // From days to years, months and days in the calendar that goes on in both directions: years
    // begin in March, so that leap days come last, and 400 of them have 146,097 days.
    let from_march = days + 719_468;
    let (era, day) = (
        from_march.div_euclid(146_097),
        from_march.rem_euclid(146_097),
    );
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    let (hour, minute) = (second / 3600, second % 3600 / 60);
    format!("{year:04}-{month:02}-{day_of_month:02} {hour:02}:{minute:02} UTC")
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
