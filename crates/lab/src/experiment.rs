//! Experiments: a policy with or without an attacker, and the JSON of its results.

use std::sync::Arc;

use bigbird::{FilterKind, Limit, MicroEpsilon, Policy, Profile};
use serde_json::{Value, json};

use crate::attack::{Attack, Attacker, Strength};
use crate::metrics::Batch;
use crate::resilience::Resilience;
use crate::simulate::{LabError, Laboratory, RunResult};
use crate::workload::Workload;

/// The policy and the attacker of a run.
#[derive(Clone)]
pub struct Experiment {
    /// The profile that the policy comes from.
    pub profile: Profile,
    /// The policy of every device.
    pub policy: Policy,
    /// The attacker and its strength, or none.
    pub attack: Option<(&'static dyn Attacker, Strength)>,
}

impl std::fmt::Debug for Experiment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Experiment")
            .field("profile", &self.profile)
            .field("policy", &self.policy)
            .field("attacker", &self.attacker())
            .field("strength", &self.strength())
            .finish()
    }
}

impl PartialEq for Experiment {
    fn eq(&self, other: &Self) -> bool {
        self.policy == other.policy
            && self.attacker() == other.attacker()
            && self.strength() == other.strength()
    }
}

impl Experiment {
    /// The name of the attacker, or `none`.
    pub fn attacker(&self) -> &'static str {
        self.attack.map_or("none", |(attacker, _)| attacker.name())
    }

    /// The strength of the attacker, if there is one.
    pub fn strength(&self) -> Option<Strength> {
        self.attack.map(|(_, strength)| strength)
    }

    /// A capacity in ε. None if it is unlimited.
    pub fn capacity(&self, kind: FilterKind) -> Option<f64> {
        let capacity = self.policy.capacities().of(kind);
        capacity.amount().map(MicroEpsilon::to_epsilon)
    }

    /// The domain cap, if the policy has one.
    pub fn domain_cap(&self) -> Option<u32> {
        self.policy.domain_cap().map(std::num::NonZeroU32::get)
    }

    /// Runs the experiment. The seed decides the attacker's random choices.
    ///
    /// # Errors
    /// If a part of the workload is on disk and cannot be read.
    pub fn run(&self, laboratory: &Laboratory<'_>, seed: u64) -> Result<Arc<RunResult>, LabError> {
        let attack = self.attack.map(|(attacker, strength)| Attack {
            attacker,
            strength,
            seed,
        });
        laboratory.run(&self.policy, attack)
    }

    /// The experiment and its results, as in `results.json`.
    pub fn to_json(&self, suite: &str, outcome: &RunResult, workload: &Workload) -> Value {
        let strength = self.strength();
        let batches: Vec<Value> = outcome
            .batches
            .iter()
            .map(|batch| batch_json(batch, workload))
            .collect();
        let spent = outcome.spent.mean();
        json!({
            "suite": suite,
            "profile": self.profile.to_string(),
            "attacker": self.attacker(),
            Limit::QuerierBudget.key(): self.capacity(FilterKind::QuerierBudget),
            Limit::GlobalBudget.key(): self.capacity(FilterKind::GlobalBudget),
            Limit::ImpressionSiteQuota.key(): self.capacity(FilterKind::ImpressionSiteQuota),
            Limit::ConversionSiteQuota.key(): self.capacity(FilterKind::ConversionSiteQuota),
            Limit::DomainCap.key(): self.policy.domain_cap(),
            "siteCharging": self.policy.site_charging().name(),
            "sybils": strength.map(|strength| strength.sybils),
            "firstRank": strength.map(|strength| strength.first_rank),
            "median": outcome.error(50.0),
            "p95": outcome.error(95.0),
            "blocked": blocked_json(&outcome.blocked()),
            "blockedShare": share_json(outcome),
            "globalBudgetConsumed": spent.map(|(honest, attacker)| json!({
                "honest": honest,
                "attacker": attacker,
                "deviceEpochs": outcome.spent.device_epochs,
            })),
            "bounds": outcome.resilience.as_ref().map(resilience_json),
            "batches": batches,
        })
    }
}

fn batch_json(batch: &Batch, workload: &Workload) -> Value {
    let name = &workload.conversion_site_names[batch.conversion_site as usize];
    json!({
        "conversionSite": name.parse::<u64>().map_or_else(|_| json!(name), |number| json!(number)),
        "epsilon": batch.epsilon,
        "noiseScale": batch.noise_scale,
        "size": batch.size,
        "full": batch.full,
        "kept": batch.kept,
        "rmsre": batch.rmsre,
        "rmsreByNoise": batch.parts.noise,
        "rmsreByBlocking": batch.parts.bias,
        "blocked": blocked_json(&batch.blocked.map(u64::from)),
    })
}

fn blocked_json(blocked: &[u64; Limit::ALL.len()]) -> Value {
    by_cause(|cause| json!(blocked[cause as usize]))
}

fn share_json(outcome: &RunResult) -> Value {
    by_cause(|cause| json!(outcome.blocked_share(cause)))
}

fn by_cause(value: impl Fn(Limit) -> Value) -> Value {
    let fields = Limit::ALL.map(|cause| (cause.key().to_owned(), value(cause)));
    Value::Object(fields.into_iter().collect())
}

/// The bounds of the resilience theorem, and the largest share of each that was reached.
fn resilience_json(resilience: &Resilience) -> Value {
    let bounds = &resilience.bounds;
    let epsilons = |amount: Option<MicroEpsilon>| amount.map(MicroEpsilon::to_epsilon);
    json!({
        "held": resilience.hold(),
        "impressionSiteQuotas": bounds.quotas.impression_sites,
        "conversionSiteQuotas": bounds.quotas.conversion_sites,
        "globalBudgetByQuotas": epsilons(bounds.by_quotas),
        "globalBudgetByUserAction": epsilons(bounds.by_user_action),
        "actionsToDrain": bounds.actions_to_drain,
        "touched": resilience.touched,
        "drained": resilience.drained_budgets,
        "reached": {
            "byQuotas": bounds.by_quotas.map(|_| resilience.by_quotas),
            "byUserActions": bounds.by_user_action.map(|_| resilience.by_user_actions),
            "drained": bounds.actions_to_drain.map(|_| resilience.drained),
            "byQuery": resilience.by_query,
        },
    })
}
