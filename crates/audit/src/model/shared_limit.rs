//! Failure mode 2: a limit that queriers share, with plain filters (Thm. 2).

use bigbird::{
    Capacity, Charge, Check, EpochIndex, Filter, Ledger, LedgerChanges, MicroEpsilon, SiteId,
    first_shortfall,
};
use serde::Serialize;

use super::records::micro;
use super::{error_probability, log_binomial};
use crate::meter::{Outcome, largest_log_ratio};

/// A row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SharedLimitRow {
    /// The promised ε: the capacity of each querier budget.
    pub epsilon: f64,
    /// The capacity of the shared limit, ε_g.
    pub global_epsilon: f64,
    /// What querier n + 1 keeps for its second request.
    pub epsilon0: f64,
    /// What each helper spends on its first request.
    pub epsilon1: f64,
    /// The number of helpers.
    pub n: u32,
    /// The exact loss of querier n + 1: the larger of the two that follow.
    pub exact: f64,
    /// The loss of the event "the first answer is above 1, and the second request is refused".
    pub refused: f64,
    /// The loss of the event "both are answered, with values below 0".
    pub answered: f64,
    /// The paper's bound, derived anew: ε + ln(e^(2n(½−p)²) − 1) with p = p(ε₁).
    pub bound: f64,
    /// The bound as printed: ε + n·(½ − p(ε))².
    pub paper: f64,
    /// What no strategy exceeds: min(ε_g, (n + 1)·ε).
    pub ceiling: f64,
}

/// The loss of querier n + 1. `None` if the construction does not fit: helpers cannot pay, or the
/// limit is too small to be reached.
pub fn shared_limit(
    epsilon: f64,
    global_epsilon: f64,
    epsilon0: f64,
    n: u32,
) -> Option<SharedLimitRow> {
    let model = PlainModel::new(epsilon, global_epsilon, epsilon0, n)?;
    let helpers = f64::from(n);
    let epsilon1 = (global_epsilon - epsilon - epsilon0) / helpers;
    let p = error_probability(epsilon1);
    // The view of querier n + 1: its first answer, and whether the second request is answered.
    let world = |present: bool| -> Vec<(f64, bool)> {
        let hears = if present { 1.0 - p } else { p };
        let cases = log_binomial(n, hears).into_iter().zip(0..);
        cases
            .map(|(log_weight, above)| (log_weight, model.answers(above)))
            .collect()
    };
    let (one, zero) = (world(true), world(false));
    // An absent second answer has no mean. It is 0 in both worlds, so it adds nothing.
    let outcome = |present: bool, answered: bool| {
        let mean = f64::from(u8::from(present));
        move |(log_weight, _): &(f64, bool)| Outcome {
            log_weight: *log_weight,
            symbol: vec![answered.into()],
            means: vec![mean, if answered { mean } else { 0.0 }],
        }
    };
    let scales = [1.0 / (epsilon - epsilon0), 1.0 / epsilon0];
    let loss = |answered: bool| {
        let of = |world: &[(f64, bool)], present: bool| -> Vec<Outcome> {
            let cases = world.iter().filter(|case| case.1 == answered);
            cases.map(outcome(present, answered)).collect()
        };
        largest_log_ratio(&of(&one, true), &of(&zero, false), &scales).value
    };
    let (refused, answered) = (loss(false), loss(true));
    let squared = |p: f64| (0.5 - p).powi(2);
    Some(SharedLimitRow {
        epsilon,
        global_epsilon,
        epsilon0,
        epsilon1,
        n,
        exact: refused.max(answered),
        refused,
        answered,
        bound: epsilon + (2.0 * helpers * squared(p)).exp_m1().ln(),
        paper: epsilon + helpers * squared(error_probability(epsilon)),
        ceiling: global_epsilon.min((helpers + 1.0) * epsilon),
    })
}

/// The amounts of the construction in units of 1/n µε, in which all of them are whole.
struct PlainModel {
    n: u32,
    querier: u64,
    global: u64,
    /// The first and the second amount of querier n + 1.
    own: [u64; 2],
    /// The first and the second amount of each helper.
    helper: [u64; 2],
}

impl PlainModel {
    fn new(epsilon: f64, global_epsilon: f64, epsilon0: f64, n: u32) -> Option<Self> {
        let units = u64::from(n);
        let (epsilon, global, epsilon0) = (micro(epsilon), micro(global_epsilon), micro(epsilon0));
        let first = global.checked_sub(epsilon)?.checked_sub(epsilon0)?;
        let second = 2 * epsilon0;
        let fits = first > 0 && first + second <= epsilon * units && epsilon0 < epsilon;
        fits.then_some(Self {
            n,
            querier: epsilon * units,
            global: global * units,
            own: [(epsilon - epsilon0) * units, epsilon0 * units],
            helper: [first, second],
        })
    }

    /// True if the second request of querier n + 1 is answered when this many helpers heard more
    /// than ½. The filters are really asked. They are plain: they pay whatever the data is.
    fn answers(&self, above: u32) -> bool {
        let mut ledger = Ledger::new();
        let mut granted = true;
        for helper in 0..self.n {
            granted &= self.ask(&mut ledger, helper, self.helper[0]);
        }
        granted &= self.ask(&mut ledger, self.n, self.own[0]);
        for helper in 0..above {
            granted &= self.ask(&mut ledger, helper, self.helper[1]);
        }
        debug_assert!(granted, "no request before the last is refused");
        self.ask(&mut ledger, self.n, self.own[1])
    }

    fn ask(&self, ledger: &mut Ledger, querier: u32, amount: u64) -> bool {
        let epoch = EpochIndex(0);
        let check = |filter, capacity| {
            let capacity = Capacity::Finite(MicroEpsilon::new(capacity));
            Check::new(epoch, filter, capacity, MicroEpsilon::new(amount))
        };
        let mut checks = [
            check(Filter::QuerierBudget(SiteId(querier)), self.querier),
            check(Filter::GlobalBudget, self.global),
        ];
        let Ok(short) = first_shortfall(ledger, epoch, &mut checks);
        if short.is_none() {
            let charges: Vec<Charge> = checks.iter().map(Check::charge).collect();
            ledger.apply(&LedgerChanges {
                charges,
                ..LedgerChanges::default()
            });
        }
        short.is_none()
    }
}
