//! Answers as JSON.

use std::convert::Infallible;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bigbird::{EpochIndex, Filter, MicroEpsilon, Profile, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::agent::{FilterBalance, ListedImpression, Status};
use crate::clock::Era;
use crate::config::Config;
use crate::error::{AgentError, ApiError};
use crate::explanation::Explanation;
use crate::history::{
    CallRecord, EpochAccount, ExplanationRecord, FilterAccount, HistoryEntry, HistoryKind,
    RecordedCall,
};
use crate::report::SealedReport;
use crate::shared::SharedConversion;
use crate::storage::RowPlace;

/// What was counted since the process started, and the last failure of the store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StatusCounts {
    /// The number of conversions that were not ready at their moment.
    pub missed: u64,
    /// The number of page calls that were over a limit. Nothing was read, written or recorded for
    /// them.
    pub over_limit: u64,
    /// The number of page calls for which the store failed.
    pub store_errors: u64,
    /// The message of the last failure of the store.
    pub last_store_error: Option<String>,
    /// What the user can do about that failure.
    pub last_advice: Option<String>,
}

/// An answer as a JSON object.
#[derive(Debug, Clone)]
pub struct AgentAnswer(Map<String, Value>);

impl AgentAnswer {
    fn of(value: Value) -> Self {
        match value {
            Value::Object(fields) => Self(fields),
            _ => Self(Map::new()),
        }
    }

    /// The answer to a request that returns nothing.
    pub fn done() -> Self {
        Self::of(json!({"ok": true}))
    }

    /// The answer to a line that is not a request.
    pub fn malformed(why: &str) -> Self {
        Self::of(json!({"ok": false, "error": "MalformedRequest", "message": why}))
    }

    /// A field of the answer.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// The message of an answer that says what is wrong.
    pub fn message(&self) -> Option<&str> {
        self.0.get("message")?.as_str()
    }

    /// The answer to an invalid call, in the words of the W3C's tests.
    pub fn rejected(error: &ApiError) -> Self {
        let mut answer = Self::of(json!({"ok": false}));
        match ErrorName::from(error) {
            ErrorName::Plain(name) => answer.set("error", json!(name)),
            ErrorName::DomException { error, name } => {
                answer.set("error", json!(error));
                answer.set("name", json!(name));
            }
        }
        answer.set("message", json!(error.to_string()));
        answer
    }

    /// The answer to a call that failed. If the store failed, the page must not learn of the
    /// failure.
    pub fn failed<E: Reason>(error: &AgentError<E>) -> Self {
        match error {
            AgentError::Api(error) => Self::rejected(error),
            AgentError::Store(error) => Self::of(json!({
                "ok": false,
                "error": "StoreError",
                "reason": error.reason(),
                "message": error.to_string(),
            }))
            .with_advice(error.advice()),
        }
    }

    /// The answer to a conversion: the sealed report in base64, and its histogram if the report
    /// shows one. There is no report if the sealer lets nothing leave.
    pub fn report(report: &SealedReport) -> Self {
        let mut answer = Self::done();
        if !report.bytes.is_empty() {
            answer.set("report", json!(STANDARD.encode(&report.bytes)));
        }
        if let Some(histogram) = &report.histogram {
            answer.set("histogram", json!(histogram.buckets()));
        }
        answer
    }

    /// The answer to a shared conversion that was created.
    pub fn shared(shared: SharedConversion) -> Self {
        let mut answer = Self::done();
        answer.set("shared", json!(shared));
        answer
    }

    /// A page of the filters that were charged, the place after which there are more, and the rules
    /// of epochs.
    pub fn budgets(budgets: &[FilterBalance], next: Option<RowPlace>, eras: &[Era]) -> Self {
        let mut answer = Self::done();
        answer.set("budgets", budgets.iter().map(budget_json).collect());
        if let Some(next) = next {
            answer.set("next", json!(next));
        }
        answer.set("rules", rules_json(eras));
        answer
    }

    /// The status for the user: whether the API works, if the store can be read, and what went
    /// wrong.
    pub fn status(
        status: Option<&Status>,
        config: &Config,
        now: Timestamp,
        counts: &StatusCounts,
    ) -> Self {
        let mut answer = Self::done();
        let closed_until = status.and_then(|status| status.closed_until);
        answer.set("enabled", json!(status.map(|status| status.enabled)));
        answer.set("closedUntil", json!(closed_until.map(seconds)));
        answer.set("missed", json!(counts.missed));
        answer.set("overLimit", json!(counts.over_limit));
        answer.set("storeErrors", json!(counts.store_errors));
        answer.set("lastStoreError", json!(counts.last_store_error));
        answer.set("revision", json!(status.map(|status| status.revision)));
        answer.set("now", json!(seconds(now)));
        let epoch = status.and_then(|status| status.epoch);
        answer.set("epoch", json!(epoch.map(|epoch| epoch.0)));
        answer.set("version", json!(env!("CARGO_PKG_VERSION")));
        let mut profiles = Profile::ALL.into_iter();
        let profile = profiles.find(|profile| profile.policy() == config.policy);
        answer.set("rules", json!(profile.map(Profile::name)));
        let delay = u64::try_from(config.pace.delay.as_millis()).unwrap_or(u64::MAX);
        answer.set("releaseAfter", json!(delay));
        answer.with_advice(counts.last_advice.clone())
    }

    /// A page of history, and the place before which there is more.
    pub fn history(entries: &[HistoryEntry], next: Option<RowPlace>) -> Self {
        let mut answer = Self::done();
        answer.set("history", entries.iter().map(history_json).collect());
        if let Some(next) = next {
            answer.set("next", json!(next));
        }
        answer
    }

    /// A page of the stored impressions, and the place before which there is more.
    pub fn impressions(impressions: &[ListedImpression], next: Option<RowPlace>) -> Self {
        let mut answer = Self::done();
        let listed = impressions.iter().map(impression_json);
        answer.set("impressions", listed.collect());
        if let Some(next) = next {
            answer.set("next", json!(next));
        }
        answer
    }

    /// The explanation of a conversion. It has the histogram only if `shows_histograms` is true.
    pub fn explanation(explanation: &Explanation, shows_histograms: bool) -> Self {
        // Only a shared conversion has no report.
        let is_shared = explanation.report.is_none();
        let mut explained = Self::of(explanation_json(&explanation.clone().into(), is_shared));
        if let Some(report) = explanation.report.as_ref().filter(|_| shows_histograms) {
            explained.set("histogram", json!(report.buckets()));
        }
        let unmatched = explanation.unmatched.iter().map(|impression| {
            json!({
                "epoch": impression.epoch,
                "time": seconds(impression.timestamp),
                "site": impression.site.as_str(),
                "histogramIndex": impression.histogram_index,
                "matchValue": impression.match_value,
                "why": impression.reason(),
            })
        });
        explained.set("unmatched", unmatched.collect());
        let mut answer = Self::done();
        answer.set("explanation", Value::Object(explained.0));
        answer
    }

    fn set(&mut self, name: &str, value: Value) {
        self.0.insert(name.to_owned(), value);
    }

    /// The same answer with one more field, for a binding that answers more than this protocol.
    #[must_use]
    pub fn with(mut self, name: &str, value: Value) -> Self {
        self.set(name, value);
        self
    }

    /// The same answer with the `id` of the request.
    #[must_use]
    pub fn with_id(mut self, id: Option<Value>) -> Self {
        if let Some(id) = id {
            self.set("id", id);
        }
        self
    }

    /// The same answer with words for the user about what to do, if there are any.
    #[must_use]
    pub(super) fn with_advice(mut self, advice: Option<String>) -> Self {
        if let Some(advice) = advice {
            self.set("advice", json!(advice));
        }
        self
    }

    /// The answer as a line, including the line break.
    pub fn line(self) -> String {
        Value::Object(self.0).to_string() + "\n"
    }
}

/// The reason why a store failed, in one word.
pub trait Reason: std::error::Error {
    /// The word.
    fn reason(&self) -> &'static str;

    /// What the user can do about it, as the rest of a sentence, if there is more than the error
    /// says.
    fn advice(&self) -> Option<String> {
        None
    }
}

impl Reason for Infallible {
    fn reason(&self) -> &'static str {
        match *self {}
    }
}

/// An error as JSON: a JavaScript error by its name, a `DOMException` as an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ErrorName {
    /// A plain JavaScript error.
    Plain(String),
    /// A `DOMException`.
    DomException {
        /// Always `DOMException`.
        error: String,
        /// Its name.
        name: String,
    },
}

impl From<&ApiError> for ErrorName {
    fn from(error: &ApiError) -> Self {
        if error.is_dom_exception() {
            Self::DomException {
                error: "DOMException".to_owned(),
                name: error.name().to_owned(),
            }
        } else {
            Self::Plain(error.name().to_owned())
        }
    }
}

impl fmt::Display for ErrorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(name) => f.write_str(name),
            Self::DomException { name, .. } => f.write_str(name),
        }
    }
}

/// A filter and its balance, in µε.
pub fn budget_json(budget: &FilterBalance) -> Value {
    let mut fields = Map::new();
    fields.insert("epoch".to_owned(), json!(budget.epoch));
    fields.insert(
        "filter".to_owned(),
        json!(budget.filter.kind().limit().key()),
    );
    if let Some(site) = &budget.site {
        fields.insert("site".to_owned(), json!(site.as_str()));
    }
    if let Filter::UserActionBudget(action) = budget.filter {
        fields.insert("userAction".to_owned(), json!(action.0));
    }
    let capacity = budget.balance.capacity.amount().map(MicroEpsilon::get);
    fields.insert("consumed".to_owned(), json!(budget.balance.consumed.get()));
    fields.insert("capacity".to_owned(), json!(capacity));
    Value::Object(fields)
}

/// The rules of epochs. Moments are in seconds since 1970.
pub fn rules_json(eras: &[Era]) -> Value {
    let shown = |era: &Era| {
        let mut fields = json!(era);
        fields["begins"] = json!(seconds(era.begins));
        fields
    };
    eras.iter().map(shown).collect()
}

/// An entry of history. Moments are in seconds since 1970. If the store has no body that can be
/// read, the entry tells only who called.
pub fn history_json(entry: &HistoryEntry) -> Value {
    let mut fields = json!({
        "number": entry.number,
        // Before epochs have begun, there is no epoch to show.
        "epoch": (entry.epoch > EpochIndex(i64::MIN)).then_some(entry.epoch.0),
        "kind": entry.kind.key(),
        "site": entry.site.as_str(),
    });
    if entry.caller != entry.site {
        fields["intermediarySite"] = json!(entry.caller.as_str());
    }
    let Ok(record) = serde_json::from_str::<CallRecord>(&entry.body) else {
        return fields;
    };
    fields["time"] = json!(seconds(record.time));
    if let Some(number) = record.user_action {
        fields["userAction"] = json!(number);
    }
    if let Some(label) = record.action_label {
        fields["actionLabel"] = json!(label);
    }
    match record.call {
        RecordedCall::Impression(impression) => {
            fields["outcome"] = json!(impression.outcome);
            fields["histogramIndex"] = json!(impression.histogram_index);
            fields["matchValue"] = json!(impression.match_value);
            fields["priority"] = json!(impression.priority);
            fields["lifetimeDays"] = json!(impression.lifetime_days);
            fields["conversionSites"] = json!(impression.conversion_sites);
            fields["conversionCallers"] = json!(impression.conversion_callers);
        }
        RecordedCall::Conversion(conversion) => {
            let explanation = &conversion.explanation;
            let is_shared = entry.kind == HistoryKind::SharedConversion;
            fields["querier"] = json!(conversion.querier.as_str());
            fields["aggregationService"] = json!(conversion.aggregation_service);
            fields["epsilon"] = json!(conversion.epsilon.to_epsilon());
            fields["histogramSize"] = json!(conversion.histogram_size);
            fields["value"] = json!(conversion.value);
            fields["maxValue"] = json!(conversion.max_value);
            fields["reportBytes"] = json!(conversion.report_bytes);
            fields["outcome"] = json!(match &explanation.cause {
                _ if explanation.any_passed() => "charged",
                Some(_) => "null",
                None => "nothing",
            });
            if let Some(cause) = &explanation.cause {
                fields["cause"] = json!(cause);
            }
            fields["sentence"] = json!(explanation.sentence(is_shared));
            fields["explanation"] = explanation_json(explanation, is_shared);
        }
    }
    fields
}

/// A stored impression. Moments are in seconds since 1970.
pub fn impression_json(impression: &ListedImpression) -> Value {
    let mut fields = json!({
        "epoch": impression.epoch.0,
        "time": seconds(impression.timestamp),
        "expires": seconds(impression.expires),
        "site": impression.site.as_str(),
        "userAction": impression.user_action,
        "histogramIndex": impression.histogram_index,
        "matchValue": impression.match_value,
        "priority": impression.priority,
        "conversionSites": impression.conversion_sites,
        "conversionCallers": impression.conversion_callers,
    });
    if let Some(intermediary) = &impression.intermediary {
        fields["intermediarySite"] = json!(intermediary.as_str());
    }
    fields
}

/// An explanation, of a call that was made or of one that would be made.
fn explanation_json(explained: &ExplanationRecord, is_shared: bool) -> Value {
    let epochs: Vec<Value> = explained.epochs.iter().map(epoch_json).collect();
    let shortfall = explained.shortfall();
    json!({
        "enabled": explained.enabled,
        "readableFrom": explained.readable_from,
        "closed": explained.closed,
        "cause": explained.cause,
        "sentence": explained.sentence(is_shared),
        "shortfall": shortfall.map(|(epoch, filter)| filter_json(epoch, filter)),
        "largestEpsilon": explained.largest_epsilon().map(MicroEpsilon::to_epsilon),
        "epochs": epochs,
    })
}

/// A filter that was asked to pay in an epoch.
fn filter_json(epoch: i64, filter: &FilterAccount) -> Value {
    let mut fields = json!({
        "epoch": epoch,
        "filter": filter.limit.key(),
        "consumed": filter.consumed,
        "capacity": filter.capacity,
        "asked": filter.asked,
        "shortBy": filter.short_by(),
    });
    if let Some(site) = &filter.site {
        fields["site"] = json!(site.as_str());
    }
    if let Some(action) = filter.user_action {
        fields["userAction"] = json!(action);
    }
    fields
}

fn epoch_json(epoch: &EpochAccount) -> Value {
    let filters = epoch.filters.iter();
    let filters: Vec<Value> = filters.map(|it| filter_json(epoch.epoch, it)).collect();
    let mut fields = json!({
        "epoch": epoch.epoch,
        "matched": epoch.matched,
        "passed": epoch.passed,
        "cause": epoch.cause,
        "filters": filters,
        "largestEpsilon": epoch.largest_epsilon.map(MicroEpsilon::to_epsilon),
    });
    if epoch.filters_left_out > 0 {
        fields["filtersLeftOut"] = json!(epoch.filters_left_out);
    }
    fields
}

/// A moment in seconds since 1970.
fn seconds(moment: Timestamp) -> i64 {
    moment.0.div_euclid(1000)
}
