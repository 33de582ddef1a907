//! Failure mode 2 with individual filters: records that cannot pay are dropped silently (Thm. 3).

use bigbird::Policy;
use serde::Serialize;

use super::records::{Record, micro, policy};
use super::{error_probability, helper_loss, log_binomial};
use crate::meter::{Outcome, largest_log_ratio};

/// A row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct IndividualRow {
    /// The promised ε: the capacity of each querier budget.
    pub epsilon: f64,
    /// The capacity of the shared limit of each record, ε_g.
    pub global_epsilon: f64,
    /// What each helper spends on x₀.
    pub epsilon1: f64,
    /// The number of helpers.
    pub n: u32,
    /// The exact loss of querier n + 1 under the corrected construction.
    pub exact: f64,
    /// The loss that the paper derives: ε + n·ε′(p(ε)).
    pub paper: f64,
    /// What no strategy exceeds: min(ε_g, (n + 1)·ε).
    pub ceiling: f64,
}

/// The loss of querier n + 1 under the corrected construction. `None` if the other helpers cannot
/// spend ε_g − ε of a record, or the limit is not above ε.
pub fn individual(epsilon: f64, global_epsilon: f64, n: u32) -> Option<IndividualRow> {
    let helpers = f64::from(n);
    let epsilon1 = epsilon.min((global_epsilon - epsilon) / helpers);
    let (cost, global) = (micro(epsilon), micro(global_epsilon));
    let model = IndividualModel {
        n,
        cost,
        // Rounded down, so that x₀ can pay for all of them.
        first: cost.min(global.saturating_sub(cost) / u64::from(n.max(1))),
        global,
        others_spend: true,
    };
    if !model.fits() {
        return None;
    }
    // The filters decide in whole µε, and the loss is computed from the exact ε₁.
    let p = error_probability(epsilon1);
    Some(IndividualRow {
        epsilon,
        global_epsilon,
        epsilon1,
        n,
        exact: model.loss(epsilon, p),
        paper: epsilon + helpers * helper_loss(error_probability(epsilon), epsilon),
        ceiling: global_epsilon.min((helpers + 1.0) * epsilon),
    })
}

/// The loss of querier n + 1 under the construction as it is printed: everyone asks about x₀ with
/// ε, and helper k asks for x_k with ε if it heard at most ½.
pub fn individual_as_printed(epsilon: f64, global_epsilon: f64, n: u32) -> f64 {
    let cost = micro(epsilon);
    let model = IndividualModel {
        n,
        cost,
        first: cost,
        global: micro(global_epsilon),
        others_spend: false,
    };
    model.loss(epsilon, error_probability(epsilon))
}

/// The loss if each helper encodes what it heard in many records instead of one: ε + n·ln((1−p)/p)
/// in the limit, which tends to ε_g as n grows.
pub fn many_records(epsilon: f64, global_epsilon: f64, n: u32) -> f64 {
    let helpers = f64::from(n);
    let p = error_probability(epsilon.min((global_epsilon - epsilon) / helpers));
    epsilon + helpers * ((1.0 - p) / p).ln()
}

struct IndividualModel {
    n: u32,
    /// The cost of the querier's requests, in µε.
    cost: u64,
    /// The cost of each helper's request about x₀.
    first: u64,
    /// The capacity of the shared limit.
    global: u64,
    /// True if the other helpers spend ε_g − ε of each x_k, whatever they heard.
    others_spend: bool,
}

impl IndividualModel {
    fn fits(&self) -> bool {
        let others = u64::from(self.n - 1) * self.cost;
        self.first > 0 && self.global > self.cost && others >= self.global - self.cost
    }

    fn loss(&self, epsilon: f64, p: f64) -> f64 {
        let policy = policy(self.cost, Some(self.global));
        let [low, high] = [false, true].map(|heard_above| self.kept(&policy, heard_above));
        let world = |present: bool| -> Vec<Outcome> {
            let first = f64::from(self.first_answer(&policy, present));
            let hears = if present { 1.0 - p } else { p };
            let cases = log_binomial(self.n, hears).into_iter().zip(0..);
            let outcome = |(log_weight, above): (f64, u32)| Outcome {
                log_weight,
                symbol: Vec::new(),
                means: vec![first, f64::from(above * high + (self.n - above) * low)],
            };
            cases.map(outcome).collect()
        };
        let scales = [1.0 / epsilon; 2];
        largest_log_ratio(&world(true), &world(false), &scales).value
    }

    /// The answer to the querier's request about x₀, before noise.
    fn first_answer(&self, policy: &Policy, present: bool) -> u32 {
        let mut x0 = Record::new(policy, present);
        for helper in 0..self.n {
            x0.count(helper, self.first);
        }
        x0.count(self.n, self.cost)
    }

    /// 1 if x_k is counted by the querier, when helper k heard more than ½ or not.
    fn kept(&self, policy: &Policy, heard_above: bool) -> u32 {
        let mut record = Record::new(policy, true);
        let own = 0;
        if self.others_spend {
            let mut left = self.global - self.cost;
            for other in 1..self.n {
                let spent = left.min(self.cost);
                if spent > 0 {
                    record.count(other, spent);
                }
                left -= spent;
            }
        }
        if !heard_above {
            let more = if self.others_spend { 1 } else { self.cost };
            record.count(own, more);
        }
        record.count(self.n, self.cost)
    }
}
