//! What a store has recorded, and events that are played on a copy of it.

use std::fmt::Write as _;
use std::path::Path;

use bigbird::{Profile, Timestamp};
use bigbird_conformance::ExplainableScenario;
use bigbird_store::{SqliteStore, StoreOptions, StoreSummary};
use bigbird_user_agent::protocol::history_json;
use bigbird_user_agent::{Config, HistoryKind, UserAgent};
use serde_json::Value;

use super::{EventAccount, MARGIN, play, wrapped};
use crate::clock::{date, wall_clock};
use crate::scratch::Scratch;
use crate::store::unusable;
use crate::{CommandError, CommandResult, output};

/// A copy of a store, in a temporary folder.
pub(super) struct StoreCopy {
    folder: Scratch,
}

impl StoreCopy {
    /// Copies a store.
    pub(super) fn of(store: &Path) -> Result<Self, CommandError> {
        let copy = Self {
            folder: Scratch::new()?,
        };
        bigbird_store::backup(store, copy.path()).map_err(|error| unusable(&error))?;
        Ok(copy)
    }

    fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("copy")
    }

    fn open(&self) -> Result<SqliteStore, CommandError> {
        let opened = SqliteStore::open(self.path(), &StoreOptions::default());
        opened.map_err(|error| unusable(&error))
    }

    /// A user agent that only reads it.
    fn reader(&self) -> Result<UserAgent<SqliteStore, NoRandomness>, CommandError> {
        let store = self.open()?;
        let config = config_of(&store)?;
        let agent = UserAgent::new(config, store, NoRandomness, Timestamp(i64::MIN));
        agent.map_err(|error| unusable(&error))
    }

    /// The present time in whole seconds, not before what was just stored.
    #[expect(
        clippy::unused_self,
        reason = "a build without stores has no such copy"
    )]
    pub(super) fn now(&self) -> i64 {
        wall_clock().0.div_euclid(1000) + 1
    }

    /// The number of buckets that the newest impressions use.
    pub(super) fn buckets(&self) -> Result<u32, CommandError> {
        /// The most impressions that are looked at.
        const MOST: usize = 1000;
        let page = self.reader()?.impressions(None, MOST);
        let (impressions, _) = page.map_err(|error| unusable(&error))?;
        let used = impressions.iter().map(|it| it.histogram_index).max();
        Ok(used.map_or(1, |last| last.saturating_add(1)))
    }

    /// Plays events, under the rules that the store has.
    pub(super) fn play(
        self,
        found: &ExplainableScenario,
    ) -> Result<Vec<EventAccount>, CommandError> {
        let store = self.open()?;
        let mut config = config_of(&store)?;
        let calls = found.scenario.events.iter();
        for (_, options) in calls.filter_map(|it| it.request.conversion(it.moment())) {
            config = config.with_service(options.aggregation_service.clone());
        }
        let player = found.scenario.player_in(config, store, Timestamp(i64::MIN));
        let mut player = player.map_err(|why| CommandError::because(why.to_string()))?;
        play(found, &mut player)
    }
}

/// The configuration of the user agent that used a store last.
fn config_of(store: &SqliteStore) -> Result<Config, CommandError> {
    let summary = StoreSummary::read(store.path()).map_err(|error| unusable(&error))?;
    let mut config = Config::new(Profile::default()).for_testing();
    if let Some(era) = summary.state.timeline.eras().last() {
        config.policy = era.rules.policy.clone();
        config.epoch_days = era.rules.epoch_days;
    }
    Ok(config)
}

/// The calls that measured, as a store has recorded them, oldest first.
pub(super) fn recorded(store: &Path, as_json: bool) -> CommandResult {
    /// The most conversions that are shown in words.
    const SHOWN: usize = 50;
    let copied = StoreCopy::of(store)?;
    let mut agent = copied.reader()?;
    let (mut entries, mut behind) = (Vec::new(), None);
    loop {
        let (page, next) = agent.history(behind, None, 200)?;
        let measured = |kind| kind != HistoryKind::Impression;
        entries.extend(page.into_iter().filter(|entry| measured(entry.kind)));
        behind = next;
        let enough = !as_json && entries.len() >= SHOWN;
        if behind.is_none() || enough {
            break;
        }
    }
    let more = behind.is_some() || (!as_json && entries.len() > SHOWN);
    entries.truncate(if as_json { usize::MAX } else { SHOWN });
    entries.reverse();
    let accounts: Vec<Value> = entries.iter().map(history_json).collect();
    if as_json {
        return Ok((output::json(&accounts)?, true));
    }
    let mut text = String::new();
    if accounts.is_empty() {
        text.push_str("The store has recorded no conversion.\n");
    }
    if more {
        writeln!(
            text,
            "The last {SHOWN} conversions. --json prints all of them."
        )?;
    }
    for account in &accounts {
        let time = account["time"]
            .as_i64()
            .map_or("unknown time".to_owned(), |seconds| {
                date(Timestamp(seconds.saturating_mul(1000)))
            });
        let words = |name: &str| account[name].as_str().unwrap_or_default().to_owned();
        let by = match account["intermediarySite"].as_str() {
            Some(intermediary) => format!(", by {intermediary}"),
            None => String::new(),
        };
        writeln!(
            text,
            "\n{time}  a {} on {}{by}: value {} of {}, epsilon {}",
            match words("kind").as_str() {
                "share" => "share",
                "sharedConversion" => "shared conversion",
                _ => "conversion",
            },
            words("site"),
            account["value"],
            account["maxValue"],
            account["epsilon"],
        )?;
        text.push_str(&wrapped(&words("sentence"), MARGIN));
    }
    if !accounts.is_empty() {
        text.push_str(
            "\nThe largest epsilon that would fit now: write the call to a file, and give both \
             the file and\n--store.\n",
        );
    }
    Ok((text, true))
}

/// Randomness that nothing asks for, because only history is read.
struct NoRandomness;

impl bigbird_user_agent::Randomness for NoRandomness {
    fn epoch_start(&mut self) -> f64 {
        0.0
    }

    fn credit(&mut self) -> f64 {
        0.0
    }

    fn handle(&mut self, number: u64) -> u128 {
        number.into()
    }
}
