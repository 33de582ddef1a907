//! History: what happened on the device, for the user to see.
//!
//! **No rule reads it.** An entry is written with the call that it is about and only ever shown,
//! cleared or removed. So it is self-contained: it names sites by host and keeps no name in use.
//! Nothing that a page can notice depends on it, whatever is missing from it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use bigbird::{EpochIndex, Limit, MicroEpsilon, Timestamp};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::explanation::Explanation;
use crate::site::Site;

/// An entry of history: a call that was made, and what became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HistoryEntry {
    /// The number of the entry. A later call has a larger number. Numbers begin again when
    /// everything was cleared.
    pub number: u64,
    /// The epoch in which the call was made. Before epochs have begun, it is the smallest index.
    pub epoch: EpochIndex,
    /// The kind of the call.
    pub kind: HistoryKind,
    /// The top-level site.
    pub site: Site,
    /// The site that made the call: the intermediary, or the top-level site.
    pub caller: Site,
    /// What the entry tells, as JSON. Only [`UserAgent::history`](crate::UserAgent::history) reads
    /// it.
    pub body: String,
}

impl HistoryEntry {
    /// The entry without what it tells.
    pub fn key(&self) -> HistoryKey<'_> {
        HistoryKey {
            number: self.number,
            epoch: self.epoch,
            kind: self.kind,
            site: self.site.as_str(),
            caller: self.caller.as_str(),
        }
    }
}

/// An entry of history without what it tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of an entry")]
pub struct HistoryKey<'r> {
    pub number: u64,
    pub epoch: EpochIndex,
    pub kind: HistoryKind,
    pub site: &'r str,
    pub caller: &'r str,
}

/// The kind of a call in history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum HistoryKind {
    /// An impression was saved or dropped.
    Impression,
    /// A conversion was measured.
    Conversion,
    /// A shared conversion was created.
    SharedConversion,
    /// A share of a shared conversion was taken.
    Share,
}

impl HistoryKind {
    /// Every kind.
    pub const ALL: [Self; 4] = [
        Self::Impression,
        Self::Conversion,
        Self::SharedConversion,
        Self::Share,
    ];

    /// The name in JSON, such as `sharedConversion`.
    pub const fn key(self) -> &'static str {
        match self {
            Self::Impression => "impression",
            Self::Conversion => "conversion",
            Self::SharedConversion => "sharedConversion",
            Self::Share => "share",
        }
    }
}

/// The most entries of one epoch.
pub(crate) const ENTRIES_PER_EPOCH: usize = 4096;

/// Room is made after this many new entries, for as many. So making room costs little for each
/// entry, even while a flood keeps an epoch full.
pub(crate) const ROOM: usize = 256;

/// The entries of each site in each epoch, to choose those that go.
#[derive(Debug, Default)]
pub(crate) struct HistorySizes(BTreeMap<EpochIndex, BTreeMap<Box<str>, Vec<u64>>>);

impl HistorySizes {
    pub(crate) fn add(&mut self, key: HistoryKey<'_>) {
        let sites = self.0.entry(key.epoch).or_default();
        match sites.get_mut(key.site) {
            Some(numbers) => numbers.push(key.number),
            None => {
                sites.insert(key.site.into(), vec![key.number]);
            }
        }
    }

    /// The entries that go so that every epoch has room for the next ones. From an epoch with too
    /// many, the oldest entry of the site that has the most goes, again and again. If several sites
    /// have the most, it is the oldest of all theirs. So a site that calls often pushes out its own
    /// entries and leaves those of others.
    pub(crate) fn evicted(self) -> Vec<u64> {
        let mut evicted = Vec::new();
        for sites in self.0.into_values() {
            let mut left: usize = sites.values().map(Vec::len).sum();
            let ranked = |numbers: Vec<u64>| {
                let oldest = numbers.last().copied()?;
                Some((numbers.len(), Reverse(oldest), numbers))
            };
            let oldest_last = |mut numbers: Vec<u64>| {
                numbers.sort_unstable_by_key(|number| Reverse(*number));
                ranked(numbers)
            };
            let mut sites: BinaryHeap<_> = sites.into_values().filter_map(oldest_last).collect();
            while left > ENTRIES_PER_EPOCH - ROOM
                && let Some((_, Reverse(oldest), mut numbers)) = sites.pop()
            {
                evicted.push(oldest);
                left -= 1;
                numbers.pop();
                sites.extend(ranked(numbers));
            }
        }
        evicted
    }
}

/// What an entry tells.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CallRecord {
    pub(crate) time: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) user_action: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) action_label: Option<Box<str>>,
    pub(crate) call: RecordedCall,
}

/// The part of a record that depends on the kind of call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum RecordedCall {
    Impression(ImpressionRecord),
    Conversion(ConversionRecord),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ImpressionRecord {
    pub(crate) outcome: ImpressionOutcome,
    pub(crate) histogram_index: u32,
    pub(crate) match_value: u32,
    pub(crate) priority: i32,
    pub(crate) lifetime_days: u32,
    pub(crate) conversion_sites: Vec<Site>,
    pub(crate) conversion_callers: Vec<Site>,
}

impl CallRecord {
    /// The record as JSON.
    pub(crate) fn to_json(&self) -> String {
        // A record has no map whose keys are not strings, which is all that could fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// What became of an impression.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum ImpressionOutcome {
    /// It was saved.
    Saved,
    /// It was dropped, because its user action could not admit another site.
    DomainCap,
    /// It was dropped, because its epoch was cleared or pruned.
    Closed,
}

/// A call that measures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ConversionRecord {
    pub(crate) querier: Site,
    pub(crate) aggregation_service: String,
    pub(crate) epsilon: MicroEpsilon,
    pub(crate) histogram_size: u32,
    pub(crate) value: u32,
    pub(crate) max_value: u32,
    pub(crate) report_bytes: usize,
    pub(crate) explanation: ExplanationRecord,
}

/// An explanation that needs nothing from the store: filters name their sites by host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExplanationRecord {
    pub(crate) enabled: bool,
    /// The name of the cause in JSON, if there is one.
    pub(crate) cause: Option<Box<str>>,
    pub(crate) readable_from: Option<i64>,
    pub(crate) closed: Option<Site>,
    pub(crate) epochs: Vec<EpochAccount>,
}

/// What happened in one epoch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EpochAccount {
    pub(crate) epoch: i64,
    pub(crate) matched: usize,
    pub(crate) passed: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cause: Option<Box<str>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) filters: Vec<FilterAccount>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) filters_left_out: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) largest_epsilon: Option<MicroEpsilon>,
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// The balance of one filter, and what it was asked to pay. It is stored as a list in the order of
/// the fields, because an entry can have many of them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FilterAccount {
    pub(crate) limit: Limit,
    pub(crate) site: Option<Site>,
    pub(crate) user_action: Option<u64>,
    pub(crate) consumed: u64,
    pub(crate) capacity: Option<u64>,
    pub(crate) asked: u64,
}

impl Serialize for FilterAccount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self {
            limit,
            site,
            user_action,
            consumed,
            capacity,
            asked,
        } = self;
        (limit.key(), site, user_action, consumed, capacity, asked).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for FilterAccount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (key, site, user_action, consumed, capacity, asked) =
            <(Box<str>, _, _, _, _, _)>::deserialize(deserializer)?;
        let unknown = || serde::de::Error::custom(format!("unknown limit `{key}`"));
        Ok(Self {
            limit: Limit::from_key(&key).ok_or_else(unknown)?,
            site,
            user_action,
            consumed,
            capacity,
            asked,
        })
    }
}

impl FilterAccount {
    /// The amount that is left before the filter pays, or `None` if it is unlimited.
    fn left(&self) -> Option<u64> {
        Some(self.capacity?.saturating_sub(self.consumed))
    }

    /// The amount that the filter lacks to pay.
    pub(crate) fn short_by(&self) -> u64 {
        self.left()
            .map_or(0, |left| self.asked.saturating_sub(left))
    }

    /// The filter in words, such as `shop.example's querier budget`.
    fn words(&self) -> String {
        match &self.site {
            Some(site) => format!("{site}'s {}", self.limit),
            None => format!("the {}", self.limit),
        }
    }
}

impl ExplanationRecord {
    /// True if an epoch contributes to the report.
    pub(crate) fn any_passed(&self) -> bool {
        self.epochs.iter().any(|epoch| epoch.passed)
    }

    /// The explanation in one sentence, for people. A shared conversion has no report.
    pub(crate) fn sentence(&self, is_shared: bool) -> String {
        let subject = match is_shared {
            true => "The shared conversion",
            false => "The report",
        };
        if !self.any_passed() {
            let (why, fitting) = (self.reason(), self.fitting());
            return format!("{subject} was null, because {why}{fitting}.");
        }
        let passed: Vec<_> = self.epochs.iter().filter(|epoch| epoch.passed).collect();
        let ads = match passed.iter().map(|epoch| epoch.matched).sum::<usize>() {
            1 => "1 ad".to_owned(),
            ads => format!("{ads} ads"),
        };
        let indices: Vec<i64> = passed.iter().map(|epoch| epoch.epoch).collect();
        let mut sentence = format!("{subject} was made from {ads} seen in {}", epochs(&indices));
        if let Some(left) = tightest(&passed) {
            sentence += &left;
        }
        let dropped: Vec<i64> = self
            .epochs
            .iter()
            .filter(|epoch| epoch.cause.is_some())
            .map(|epoch| epoch.epoch)
            .collect();
        if !dropped.is_empty() {
            let (why, fitting) = (self.reason(), self.fitting());
            sentence += &format!(
                "; {} added nothing, because {why}{fitting}",
                epochs(&dropped)
            );
        }
        sentence + "."
    }

    /// The reason why nothing was released, or why an epoch was dropped.
    fn reason(&self) -> String {
        let Some(cause) = self.cause.as_deref() else {
            return match (&self.closed, self.readable_from) {
                (Some(site), _) => format!("the data of {site} was cleared"),
                (None, Some(_)) => {
                    "nothing on this device matched since history was cleared".to_owned()
                }
                (None, None) => "nothing on this device matched".to_owned(),
            };
        };
        let limit = Limit::from_key(cause);
        match (cause, limit) {
            ("disabled", _) => "the API is disabled".to_owned(),
            ("cleared", _) => match &self.closed {
                Some(site) => format!("the data of {site} was cleared"),
                None => "the history that it would read was cleared".to_owned(),
            },
            ("unknownShare", _) => {
                "no shared conversion has this handle, or it was removed".to_owned()
            }
            ("unfitShare", _) => "the share does not fit the shared conversion".to_owned(),
            ("pruned", _) => "what it would read is too old or was cleared".to_owned(),
            (_, Some(limit @ Limit::DomainCap)) => {
                format!("the user action had already involved as many sites as the {limit} allows")
            }
            (_, Some(limit)) => self.spent(limit),
            (other, None) => format!("of {other}"),
        }
    }

    /// The filter to name as the reason, with its epoch. History keeps no decision, so this is
    /// [`Decision::drop_reason`](bigbird::Decision::drop_reason) on what it keeps.
    pub(crate) fn shortfall(&self) -> Option<(i64, &FilterAccount)> {
        let cause = self.cause.as_deref()?;
        let mut dropped = self.epochs.iter().rev();
        let epoch = dropped.find(|epoch| epoch.cause.as_deref() == Some(cause))?;
        let is_short =
            |filter: &&FilterAccount| filter.limit.key() == cause && filter.short_by() > 0;
        Some((epoch.epoch, epoch.filters.iter().find(is_short)?))
    }

    /// The largest epsilon with which no epoch would have been dropped, if that was searched for
    /// and there is one.
    pub(crate) fn largest_epsilon(&self) -> Option<MicroEpsilon> {
        let dropped = self.epochs.iter().filter(|epoch| epoch.cause.is_some());
        let fitting: Option<Vec<_>> = dropped.map(|epoch| epoch.largest_epsilon).collect();
        fitting?.into_iter().min()
    }

    /// The epsilon that would have fitted, as the end of a sentence.
    fn fitting(&self) -> String {
        match self.largest_epsilon() {
            Some(epsilon) => format!("; an epsilon of {epsilon} or less would have fitted"),
            None => String::new(),
        }
    }

    /// The filter of a limit that could not pay, in words.
    fn spent(&self, limit: Limit) -> String {
        let Some((epoch, filter)) = self.shortfall() else {
            return format!("the {limit} was spent");
        };
        let words = filter.words();
        let capacity = micro(filter.capacity.unwrap_or_default());
        match filter.left().unwrap_or_default() {
            0 => format!("{words} of {capacity} epsilon was already spent in epoch {epoch}"),
            left => format!(
                "it asked for {} epsilon, and only {} of the {capacity} epsilon of {words} was left \
                 in epoch {epoch}",
                micro(filter.asked),
                micro(left),
            ),
        }
    }
}

/// What is left of the budget that a report was charged to, in the epoch where the least is left.
/// It is the querier budget, or the global budget if the querier's was not asked.
fn tightest(passed: &[&EpochAccount]) -> Option<String> {
    let budgets = [Limit::QuerierBudget, Limit::GlobalBudget];
    budgets.into_iter().find_map(|limit| {
        let filters = passed.iter().flat_map(|epoch| &epoch.filters);
        let of_limit = filters.filter(|filter| filter.limit == limit);
        let left = of_limit.filter_map(|filter| Some((filter.left()?, filter)));
        let (left, filter) = left.min_by_key(|(left, filter)| left.saturating_sub(filter.asked))?;
        Some(format!(
            "; {} of the {} epsilon of {} was left",
            micro(left.saturating_sub(filter.asked)),
            micro(filter.capacity?),
            filter.words(),
        ))
    })
}

/// An amount in epsilons.
fn micro(amount: u64) -> MicroEpsilon {
    MicroEpsilon::new(amount)
}

/// Epochs in words, such as `epochs 2 and 3`.
fn epochs(indices: &[i64]) -> String {
    match indices {
        [only] => format!("epoch {only}"),
        [first @ .., last] => {
            let first: Vec<String> = first.iter().map(i64::to_string).collect();
            format!("epochs {} and {last}", first.join(", "))
        }
        [] => "no epoch".to_owned(),
    }
}

impl From<Explanation> for ExplanationRecord {
    fn from(explanation: Explanation) -> Self {
        Self {
            enabled: explanation.enabled,
            cause: explanation.cause_name().map(Box::from),
            readable_from: explanation.readable_from,
            closed: explanation.closed,
            epochs: explanation
                .epochs
                .into_iter()
                .map(EpochAccount::from)
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The entries that a way of making room leaves, after a loud site has called so often that
    /// there are too many.
    fn quiet_entries_left(evicted: impl Fn(&[HistoryKey<'_>]) -> Vec<u64>) -> usize {
        let key = |number: u64| HistoryKey {
            number,
            epoch: EpochIndex(i64::from(number == 7)),
            kind: HistoryKind::Impression,
            site: match number % 500 {
                3 => "quiet.example",
                _ => "loud.example",
            },
            caller: "ads.example",
        };
        let keys: Vec<_> = (1..=5000).map(key).collect();
        let evicted = evicted(&keys);
        let left = keys.iter().filter(|key| !evicted.contains(&key.number));
        let left: Vec<_> = left.collect();
        let of_epoch = left.iter().filter(|key| key.epoch == EpochIndex(0)).count();
        assert_eq!(of_epoch, ENTRIES_PER_EPOCH - ROOM);
        assert!(left.iter().any(|key| key.epoch == EpochIndex(1)));
        left.iter()
            .filter(|key| key.site == "quiet.example")
            .count()
    }

    /// A site that calls often does not push out the entries of others. Evicting the oldest entry
    /// whoever called would.
    #[test]
    fn a_loud_site_pushes_out_its_own_entries() {
        let ours = quiet_entries_left(|keys| {
            let mut sizes = HistorySizes::default();
            keys.iter().for_each(|key| sizes.add(*key));
            sizes.evicted()
        });
        assert_eq!(ours, 10);
        let oldest_first = quiet_entries_left(|keys| {
            let of_epoch = keys.iter().filter(|key| key.epoch == EpochIndex(0));
            let numbers: Vec<u64> = of_epoch.map(|key| key.number).collect();
            numbers[..numbers.len() + ROOM - ENTRIES_PER_EPOCH].to_vec()
        });
        assert!(oldest_first < 10, "evicting the oldest was not caught");
    }
}
