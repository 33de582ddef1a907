//! Failure mode 1: data that depends on past answers of all queriers (Thm. 1).

use serde::Serialize;

use super::intervals::{Interval, log_ratio_interval};
use super::records::{Record, micro, policy};
use super::{error_probability, helper_loss, log_binomial};
use crate::meter::{Outcome, largest_log_ratio};
use crate::search::SearchDice;

/// A row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AdaptiveRow {
    /// The promised ε: the capacity of each querier budget.
    pub epsilon: f64,
    /// The number of helpers.
    pub n: u32,
    /// The exact loss of querier n + 1.
    pub exact: f64,
    /// The paper's closed form, ε + n·ε′(p(ε)).
    pub paper: f64,
    /// The exact loss under data generation that inserts many records only if every helper's answer
    /// is above 1. It tends to (n + 1)·ε, as if all queriers colluded.
    pub collusion: f64,
    /// An interval for the loss from sampling the engine, where the event is likely enough.
    pub interval: Option<Interval>,
}

/// The loss of querier n + 1 under adaptive data generation. With `samples` per world, also an
/// interval from sampling.
pub fn adaptive(epsilon: f64, n: u32, samples: u32, seed: u64) -> AdaptiveRow {
    let cost = micro(epsilon);
    AdaptiveRow {
        epsilon,
        n,
        exact: exact(epsilon, n, cost),
        paper: epsilon + f64::from(n) * helper_loss(error_probability(epsilon), epsilon),
        collusion: collusion(epsilon, n, cost),
        interval: interval(epsilon, n, cost, samples, seed),
    }
}

/// Helpers ask about record x₀ with ε each. Each that hears more than ½ makes the data generation
/// insert one record. Then querier n + 1 counts everything with ε.
fn exact(epsilon: f64, n: u32, cost: u64) -> f64 {
    let p = error_probability(epsilon);
    let world = |present: bool| -> Vec<Outcome> {
        let hears = if present { 1.0 - p } else { p };
        let counts = log_binomial(n, hears).into_iter().zip(0..);
        let outcome = |(log_weight, inserted)| Outcome {
            log_weight,
            symbol: Vec::new(),
            means: vec![f64::from(run(present, n, inserted, cost))],
        };
        counts.map(outcome).collect()
    };
    largest_log_ratio(&world(true), &world(false), &[1.0 / epsilon]).value
}

/// Runs the model on the engine, with a number of records that the data generation inserts. Returns
/// what querier n + 1 counts.
fn run(present: bool, n: u32, inserted: u32, cost: u64) -> u32 {
    let policy = policy(cost, None);
    let mut x0 = Record::new(&policy, present);
    for helper in 0..n {
        let heard = x0.count(helper, cost);
        debug_assert_eq!(heard, u32::from(present), "no filter is short");
    }
    let mut inserted: Vec<Record> = (0..inserted).map(|_| Record::new(&policy, true)).collect();
    let others: u32 = inserted
        .iter_mut()
        .map(|record| record.count(n, cost))
        .sum();
    x0.count(n, cost) + others
}

/// The stronger data generation: it inserts m records only if every helper's answer is above 1,
/// which has the probability 2⁻ⁿ if x₀ is present and (½e^(−ε))ⁿ if not.
fn collusion(epsilon: f64, n: u32, cost: u64) -> f64 {
    let helpers = f64::from(n);
    // So many records that the insertion outweighs everything else even if x₀ is absent.
    let records = ((helpers * (2.0_f64.ln() + epsilon) + 30.0) / epsilon).ceil();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a few hundred"
    )]
    let records = records as u32;
    let world = |present: bool| -> Vec<Outcome> {
        let log_all = match present {
            true => -helpers * 2.0_f64.ln(),
            false => -helpers * (2.0_f64.ln() + epsilon),
        };
        let outcome = |log_weight, inserted| Outcome {
            log_weight,
            symbol: Vec::new(),
            means: vec![f64::from(run(present, n, inserted, cost))],
        };
        vec![
            outcome(log_all, records),
            outcome((-log_all.exp()).ln_1p(), 0),
        ]
    };
    largest_log_ratio(&world(true), &world(false), &[1.0 / epsilon]).value
}

/// The interval of the event "the answer is at least n + 1", from runs of the engine with sampled
/// noise.
fn interval(epsilon: f64, n: u32, cost: u64, samples: u32, seed: u64) -> Option<Interval> {
    let mut dice = SearchDice::new(seed, &format!("adaptive {epsilon} {n}"));
    let mut counts = [0_u32; 2];
    for (present, count) in [false, true].into_iter().zip(&mut counts) {
        for _ in 0..samples {
            let policy = policy(cost, None);
            let mut x0 = Record::new(&policy, present);
            let mut records: Vec<Record> = Vec::new();
            for helper in 0..n {
                let heard = f64::from(x0.count(helper, cost)) + laplace(&mut dice, epsilon);
                if heard > 0.5 {
                    records.push(Record::new(&policy, true));
                }
            }
            let others: u32 = records.iter_mut().map(|record| record.count(n, cost)).sum();
            let total = x0.count(n, cost) + others;
            if f64::from(total) + laplace(&mut dice, epsilon) >= f64::from(n + 1) {
                *count += 1;
            }
        }
    }
    log_ratio_interval(counts[1], counts[0], samples)
}

/// Laplace noise of scale 1/ε, for estimates only. Reports are never noised with it.
fn laplace(dice: &mut SearchDice, epsilon: f64) -> f64 {
    let uniform = dice.fraction() - 0.5;
    let magnitude = -(1.0 - 2.0 * uniform.abs()).max(f64::MIN_POSITIVE).ln() / epsilon;
    magnitude.copysign(uniform)
}
