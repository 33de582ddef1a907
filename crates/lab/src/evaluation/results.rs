//! The results of runs as data: what `results.json` and `simulate --json` contain.

use bigbird::{FilterKind, Limit, MicroEpsilon};
use serde::de::Error as _;
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::diagnosis::{Diagnosis, ErrorSource, QuerierCounts};
use super::experiment::Experiment;
use super::laboratory::RunResult;
use super::metrics::{Batch, ErrorParts, percentile};
use super::resilience::Resilience;
use crate::workload::Workload;

/// A run and its results. Budgets, quotas and consumed amounts are in ε. Errors and shares are
/// fractions. A value that a policy or a run does not have is null.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunRecord {
    /// The suite of the paper's evaluation that the run belongs to, or `simulate`.
    pub suite: String,
    /// The profile that the policy comes from.
    pub profile: String,
    /// The attacker, or `none`.
    pub attacker: String,
    /// The capacities.
    #[serde(flatten)]
    pub limits: RunLimits,
    /// The rule for what impression sites pay.
    pub site_charging: String,
    /// The number of Sybils of the attacker.
    pub sybils: Option<u32>,
    /// The rank of the first site that the attacker owns.
    pub first_rank: Option<u32>,
    /// The number of impression sites that the attacker owns.
    #[serde(default)]
    pub owned_impression_sites: Option<u32>,
    /// The number of conversion sites that the attacker owns.
    #[serde(default)]
    pub owned_conversion_sites: Option<u32>,
    /// The seed of the attacker's random choices, and of the synthetic population if there is one.
    pub seed: u64,
    /// The median of the errors of batches.
    pub median: Option<f64>,
    /// Their 95th percentile.
    pub p95: Option<f64>,
    /// The medians of the two parts of the error.
    pub error_parts: Option<PartsRecord>,
    /// The shares of the two parts in the squared error, and what they come from.
    #[serde(default)]
    pub diagnosis: Option<DiagnosisRecord>,
    /// The queriers, and those with too few conversions for a batch. None if they were not counted.
    #[serde(default)]
    pub queriers: Option<QuerierCounts>,
    /// The number of blocked reports, by first cause.
    pub blocked: ByLimit<u64>,
    /// The share of blocked reports, by first cause: the mean over batches.
    pub blocked_share: ByLimit<Option<f64>>,
    /// The amounts that were consumed from global budgets.
    pub global_budget_consumed: Option<ConsumedRecord>,
    /// The bounds of the resilience theorem, and the largest share of each that was reached.
    pub bounds: Option<BoundsRecord>,
    /// Every complete batch.
    pub batches: Vec<BatchRecord>,
}

/// The five limits of a policy. A limit that the policy does not have is null.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunLimits {
    /// The querier budget.
    pub querier_budget: Option<f64>,
    /// The global budget.
    pub global_budget: Option<f64>,
    /// The impression-site quota.
    pub impression_site_quota: Option<f64>,
    /// The conversion-site quota.
    pub conversion_site_quota: Option<f64>,
    /// The domain cap.
    pub domain_cap: Option<u32>,
}

/// The two parts of an error.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PartsRecord {
    /// From noise alone.
    pub noise: f64,
    /// From blocking alone.
    pub blocking: f64,
}

/// The explanation of an error.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiagnosisRecord {
    /// The share of the squared error that comes from noise: the mean over batches.
    pub noise_share: f64,
    /// The share that comes from blocking.
    pub blocking_share: f64,
    /// The part that dominates, if one does.
    pub dominant: Option<ErrorSource>,
    /// The key of the limit that was the first to block most of the blocked reports.
    #[serde(with = "limit_key")]
    pub first_cause: Option<Limit>,
}

/// A limit as its [key](Limit::key), or null.
mod limit_key {
    use serde::de::Error as _;

    use super::{Deserialize as _, Deserializer, Limit, Serialize as _, Serializer};

    #[expect(
        clippy::trivially_copy_pass_by_ref,
        reason = "serde passes a reference"
    )]
    pub(super) fn serialize<S: Serializer>(
        limit: &Option<Limit>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        limit.map(Limit::key).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Limit>, D::Error> {
        let key = Option::<String>::deserialize(from)?;
        key.map(|key| {
            Limit::from_key(&key).ok_or_else(|| D::Error::custom(format!("unknown limit `{key}`")))
        })
        .transpose()
    }
}

/// The mean amounts that were consumed from the global budgets from which anything was consumed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConsumedRecord {
    /// By honest reports.
    pub honest: f64,
    /// By the attacker.
    pub attacker: f64,
    /// The number of these global budgets.
    pub device_epochs: u64,
}

/// The bounds of the resilience theorem for a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BoundsRecord {
    /// True if every bound held.
    pub held: bool,
    /// The most impression-site quotas that the attacker can use (M).
    pub impression_site_quotas: u32,
    /// The most conversion-site quotas that the attacker can use (N).
    pub conversion_site_quotas: u32,
    /// (i) The most that those quotas allow to be taken from one global budget.
    pub global_budget_by_quotas: Option<f64>,
    /// (ii) The most that one user action can take from one global budget.
    pub global_budget_by_user_action: Option<f64>,
    /// (iii) The least number of user actions that can drain one global budget.
    pub actions_to_drain: Option<u64>,
    /// The number of device-epochs in which something was taken that honest sites need.
    pub touched: u64,
    /// The number of global budgets that the attacker drained alone.
    pub drained: u64,
    /// The largest share of each bound that was reached.
    pub reached: ReachedRecord,
}

/// The largest share of each bound of the resilience theorem that was reached.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReachedRecord {
    /// (i) By quotas.
    pub by_quotas: Option<f64>,
    /// (ii) By user actions.
    pub by_user_actions: Option<f64>,
    /// (iii) Of budgets drained.
    pub drained: Option<f64>,
    /// (iii) Of a sum changed.
    pub by_query: Option<f64>,
    /// Of what was paid, by the quota of an honest impression site. None also if nothing was paid
    /// for what was taken: then the bound is broken by any factor.
    pub by_payment: Option<f64>,
}

/// A batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BatchRecord {
    /// The querier.
    pub conversion_site: SiteName,
    /// The ε of a report.
    pub epsilon: f64,
    /// The scale of the noise on each bucket.
    pub noise_scale: f64,
    /// The number of reports.
    pub size: u64,
    /// The sum without any limit.
    pub full: Vec<u64>,
    /// The sum of what was not blocked.
    pub kept: Vec<u64>,
    /// The error.
    pub rmsre: f64,
    /// The error from noise alone.
    pub rmsre_by_noise: f64,
    /// The error from blocking alone.
    pub rmsre_by_blocking: f64,
    /// The number of blocked reports, by first cause.
    pub blocked: ByLimit<u64>,
}

/// The name of a site: a number in JSON if it is one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SiteName {
    /// A number.
    Number(u64),
    /// Any other name.
    Text(String),
}

impl SiteName {
    fn new(name: &str) -> Self {
        match name.parse::<u64>() {
            Ok(number) if number.to_string() == name => Self::Number(number),
            _ => Self::Text(name.to_owned()),
        }
    }
}

impl std::fmt::Display for SiteName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(name) => f.pad(name),
        }
    }
}

/// A value for each of the [five limits](Limit::ALL). In JSON, each has the limit's
/// [key](Limit::key).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ByLimit<T>(pub [T; Limit::ALL.len()]);

impl<T: Copy> ByLimit<T> {
    /// The value of a limit.
    pub fn of(&self, limit: Limit) -> T {
        self.0[limit as usize]
    }
}

impl<T: Serialize> Serialize for ByLimit<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(Some(self.0.len()))?;
        for (limit, value) in Limit::ALL.into_iter().zip(&self.0) {
            map.serialize_entry(limit.key(), value)?;
        }
        map.end()
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for ByLimit<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut map = std::collections::BTreeMap::<String, T>::deserialize(from)?;
        let values: Option<Vec<T>> = Limit::ALL
            .into_iter()
            .map(|limit| map.remove(limit.key()))
            .collect();
        let values = values.and_then(|values| values.try_into().ok());
        values
            .map(Self)
            .ok_or_else(|| D::Error::custom("a limit is missing"))
    }
}

impl RunRecord {
    /// The record of a run.
    pub fn new(
        suite: &str,
        experiment: &Experiment,
        seed: u64,
        result: &RunResult,
        workload: &Workload,
    ) -> Self {
        let strength = experiment.strength();
        Self {
            suite: suite.to_owned(),
            profile: experiment.profile.to_string(),
            attacker: experiment.attacker().to_owned(),
            limits: RunLimits::of(experiment),
            site_charging: experiment.policy.site_charging().name().to_owned(),
            sybils: strength.map(|strength| strength.sybils),
            first_rank: strength.map(|strength| strength.first_rank),
            owned_impression_sites: strength.map(|strength| strength.impression_sites),
            owned_conversion_sites: strength.map(|strength| strength.conversion_sites),
            seed,
            median: result.error(50.0),
            p95: result.error(95.0),
            error_parts: result.error_parts().map(PartsRecord::from),
            diagnosis: Diagnosis::of(&result.batches).map(DiagnosisRecord::from),
            queriers: None,
            blocked: ByLimit(result.blocked()),
            blocked_share: ByLimit(Limit::ALL.map(|cause| result.blocked_share(cause))),
            global_budget_consumed: result
                .spent
                .mean()
                .map(|(honest, attacker)| ConsumedRecord {
                    honest,
                    attacker,
                    device_epochs: result.spent.device_epochs,
                }),
            bounds: result.resilience.as_ref().map(BoundsRecord::from),
            batches: result
                .batches
                .iter()
                .map(|batch| BatchRecord::new(batch, workload))
                .collect(),
        }
    }

    /// A percentile of the errors of batches from noise alone. None if there are no batches.
    pub fn noise(&self, percent: f64) -> Option<f64> {
        percentile(
            self.batches.iter().map(|batch| batch.rmsre_by_noise),
            percent,
        )
    }
}

impl RunLimits {
    /// The limits of an experiment.
    pub fn of(experiment: &Experiment) -> Self {
        Self {
            querier_budget: experiment.capacity(FilterKind::QuerierBudget),
            global_budget: experiment.capacity(FilterKind::GlobalBudget),
            impression_site_quota: experiment.capacity(FilterKind::ImpressionSiteQuota),
            conversion_site_quota: experiment.capacity(FilterKind::ConversionSiteQuota),
            domain_cap: experiment.domain_cap(),
        }
    }
}

impl From<ErrorParts> for PartsRecord {
    fn from(parts: ErrorParts) -> Self {
        Self {
            noise: parts.noise,
            blocking: parts.bias,
        }
    }
}

impl From<Diagnosis> for DiagnosisRecord {
    fn from(diagnosis: Diagnosis) -> Self {
        Self {
            noise_share: diagnosis.noise_share,
            blocking_share: 1.0 - diagnosis.noise_share,
            dominant: diagnosis.dominant,
            first_cause: diagnosis.first_cause,
        }
    }
}

impl From<&Resilience> for BoundsRecord {
    fn from(resilience: &Resilience) -> Self {
        let bounds = &resilience.bounds;
        let epsilons = |amount: Option<MicroEpsilon>| amount.map(MicroEpsilon::to_epsilon);
        Self {
            held: resilience.hold(),
            impression_site_quotas: bounds.quotas.impression_sites,
            conversion_site_quotas: bounds.quotas.conversion_sites,
            global_budget_by_quotas: epsilons(bounds.by_quotas),
            global_budget_by_user_action: epsilons(bounds.by_user_action),
            actions_to_drain: bounds.actions_to_drain,
            touched: resilience.touched,
            drained: resilience.drained_budgets,
            reached: ReachedRecord {
                by_quotas: bounds.by_quotas.map(|_| resilience.by_quotas),
                by_user_actions: bounds.by_user_action.map(|_| resilience.by_user_actions),
                drained: bounds.actions_to_drain.map(|_| resilience.drained),
                by_query: Some(resilience.by_query),
                by_payment: Some(resilience.by_payment)
                    .filter(|share| bounds.pays && share.is_finite()),
            },
        }
    }
}

impl BatchRecord {
    fn new(batch: &Batch, workload: &Workload) -> Self {
        let name = &workload.conversion_site_names[batch.conversion_site as usize];
        Self {
            conversion_site: SiteName::new(name),
            epsilon: batch.epsilon,
            noise_scale: batch.noise_scale,
            size: batch.size,
            full: batch.full.clone(),
            kept: batch.kept.clone(),
            rmsre: batch.rmsre,
            rmsre_by_noise: batch.parts.noise,
            rmsre_by_blocking: batch.parts.bias,
            blocked: ByLimit(batch.blocked),
        }
    }
}
