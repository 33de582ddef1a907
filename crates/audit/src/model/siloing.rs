//! The siloing assumption: without shared data and shared limits, per-querier guarantees hold.

use super::records::{Record, micro, policy};
use super::{error_probability, log_binomial};
use crate::meter::{Outcome, largest_log_ratio};

/// The loss of querier n + 1 if it counts only its own records, and there is no shared limit. The
/// data generation reacts to the helpers as in failure mode 1, but inserts into their data only.
pub fn siloed_loss(epsilon: f64, n: u32) -> f64 {
    let cost = micro(epsilon);
    let p = error_probability(epsilon);
    let world = |present: bool| -> Vec<Outcome> {
        let hears = if present { 1.0 - p } else { p };
        let cases = log_binomial(n, hears).into_iter().zip(0..);
        let outcome = |(log_weight, inserted): (f64, u32)| Outcome {
            log_weight,
            symbol: Vec::new(),
            means: vec![f64::from(run(present, n, inserted, cost))],
        };
        cases.map(outcome).collect()
    };
    largest_log_ratio(&world(true), &world(false), &[1.0 / epsilon]).value
}

/// Runs the model on the engine. Returns what querier n + 1 counts of its own records.
fn run(present: bool, n: u32, inserted: u32, cost: u64) -> u32 {
    let policy = policy(cost, None);
    let mut x0 = Record::new(&policy, present);
    for helper in 0..n {
        x0.count(helper, cost);
    }
    let mut others: Vec<Record> = (0..inserted).map(|_| Record::new(&policy, true)).collect();
    for record in &mut others {
        record.count(0, cost);
    }
    x0.count(n, cost)
}
