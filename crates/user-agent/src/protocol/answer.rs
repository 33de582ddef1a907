//! Answers as JSON.

use std::convert::Infallible;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bigbird::{Cause, Fate, Filter, Limit, MicroEpsilon, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::agent::{FilterBalance, Status};
use crate::clock::Era;
use crate::error::{AgentError, ApiError};
use crate::explanation::{Explanation, ShareRefusal};
use crate::report::SealedReport;
use crate::shared::SharedConversion;
use crate::storage::RowPlace;

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
        missed: u64,
        store_errors: u64,
        last_store_error: Option<&str>,
    ) -> Self {
        let mut answer = Self::done();
        let seconds = |moment: Timestamp| moment.0.div_euclid(1000);
        let closed_until = status.and_then(|status| status.closed_until);
        answer.set("enabled", json!(status.map(|status| status.enabled)));
        answer.set("closedUntil", json!(closed_until.map(seconds)));
        answer.set("missed", json!(missed));
        answer.set("storeErrors", json!(store_errors));
        answer.set("lastStoreError", json!(last_store_error));
        answer
    }

    /// The explanation of a conversion. It has the histogram only if `shows_histograms` is true.
    pub fn explanation(explanation: &Explanation, shows_histograms: bool) -> Self {
        let epochs: Vec<Value> = explanation
            .epochs
            .iter()
            .map(|epoch| {
                let filters: Vec<Value> = epoch
                    .filters
                    .iter()
                    .map(|filter| {
                        let mut fields = budget_json(&FilterBalance {
                            epoch: epoch.epoch,
                            filter: filter.check.filter,
                            site: filter.site.clone(),
                            balance: filter.check.balance,
                        });
                        fields["asked"] = json!(filter.check.asked.get());
                        fields["shortBy"] = json!(filter.check.short_by().get());
                        fields
                    })
                    .collect();
                json!({
                    "epoch": epoch.epoch,
                    "matched": epoch.matched,
                    "passed": epoch.fate == Fate::Passed,
                    "cause": match epoch.fate {
                        Fate::Dropped(cause) => json!(cause_name(cause)),
                        _ => Value::Null,
                    },
                    "filters": filters,
                    "largestEpsilon": epoch.largest_epsilon.map(MicroEpsilon::to_epsilon),
                })
            })
            .collect();
        let mut explained = Self::of(json!({
            "enabled": explanation.enabled,
            "readableFrom": explanation.readable_from,
            "closed": explanation.closed.as_ref().map(ToString::to_string),
            "cause": match explanation.cause {
                Some(cause) => Some(cause_name(cause)),
                None if !explanation.enabled => Some("disabled"),
                None => match explanation.share_refusal {
                    Some(ShareRefusal::Unknown) => Some("unknownShare"),
                    Some(ShareRefusal::Unfit) => Some("unfitShare"),
                    None if explanation.nothing_readable() => Some("cleared"),
                    None => None,
                },
            },
            "epochs": epochs,
        }));
        if let Some(report) = explanation.report.as_ref().filter(|_| shows_histograms) {
            explained.set("histogram", json!(report.buckets()));
        }
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
    let seconds = |era: &Era| {
        let mut fields = json!(era);
        fields["begins"] = json!(era.begins.0.div_euclid(1000));
        fields
    };
    eras.iter().map(seconds).collect()
}

/// The name of a cause in JSON.
fn cause_name(cause: Cause) -> &'static str {
    cause.limit().map_or("pruned", Limit::key)
}
