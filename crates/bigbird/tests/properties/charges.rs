//! The atomic check and the charges it lets pass, for charges of any size, order and repetition.

use std::collections::BTreeMap;

use bigbird::{
    Charge, Check, EpochIndex, Filter, Ledger, LedgerChanges, MicroEpsilon, Policy, SiteId,
    first_shortfall,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

type Consumed = BTreeMap<(i64, Filter), u64>;

trait Book {
    fn charge(&mut self, charges: &[Charge]) -> bool;
    fn consumed(&self) -> Consumed;
}

/// The ledger in memory, charged as the engine charges it: all charges are applied if they fit,
/// otherwise none.
impl Book for Ledger {
    fn charge(&mut self, charges: &[Charge]) -> bool {
        let policy = policy();
        let mut charges: Vec<Charge> = charges.to_vec();
        charges.retain(|charge| !charge.amount.is_zero());
        charges.sort_by_key(|charge| (charge.epoch, charge.filter));
        for of_epoch in charges.chunk_by(|a, b| a.epoch == b.epoch) {
            let checks = of_epoch.iter().map(|charge| {
                let capacity = policy.capacities().of(charge.filter.kind());
                Check::new(charge.epoch, charge.filter, capacity, charge.amount)
            });
            let mut checks: Vec<Check> = checks.collect();
            let Ok(short) = first_shortfall(self, of_epoch[0].epoch, &mut checks);
            if short.is_some() {
                return false;
            }
        }
        let admissions = Vec::new();
        self.apply(&LedgerChanges {
            admissions,
            charges,
        });
        true
    }

    fn consumed(&self) -> Consumed {
        let filters = self.epochs().flat_map(|view| {
            let epoch = view.epoch().0;
            let filters = view.filters().into_iter();
            filters.map(move |(filter, consumed)| ((epoch, filter), consumed.get()))
        });
        filters.collect()
    }
}

/// A ledger with one flaw.
struct Twin {
    flaw: ChargeFlaw,
    policy: Policy,
    consumed: Consumed,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum ChargeFlaw {
    /// Sums wrap around, so that a huge charge looks small.
    Wraps,
    /// Each charge is checked as if it were the only one to its filter.
    ForgetsRepetition,
    /// Charges that were applied before a refusal are kept.
    KeepsHalf,
    /// A refusal leaves behind the empty filters that it created.
    LeavesEmpty,
}

impl Book for Twin {
    fn charge(&mut self, charges: &[Charge]) -> bool {
        let before = self.consumed.clone();
        for charge in charges {
            let key = (charge.epoch.0, charge.filter);
            let capacity = self.policy.capacities().of(charge.filter.kind());
            let (Some(capacity), true) = (capacity.amount(), charge.amount.get() > 0) else {
                continue;
            };
            let book = match self.flaw {
                ChargeFlaw::ForgetsRepetition => &before,
                _ => &self.consumed,
            };
            let consumed = book.get(&key).copied().unwrap_or(0);
            let total = match self.flaw {
                ChargeFlaw::Wraps => consumed.wrapping_add(charge.amount.get()),
                _ => consumed.saturating_add(charge.amount.get()),
            };
            if total > capacity.get() {
                match self.flaw {
                    ChargeFlaw::KeepsHalf => {}
                    ChargeFlaw::LeavesEmpty => {
                        let touched: Vec<_> = self.consumed.keys().copied().collect();
                        self.consumed = before;
                        for key in touched {
                            self.consumed.entry(key).or_insert(0);
                        }
                    }
                    _ => self.consumed = before,
                }
                return false;
            }
            *self.consumed.entry(key).or_insert(0) += charge.amount.get();
        }
        true
    }

    fn consumed(&self) -> Consumed {
        self.consumed.clone()
    }
}

fn charges() -> impl Strategy<Value = Vec<Vec<Charge>>> {
    let amount = prop_oneof![
        6 => 0..600_000_u64,
        1 => Just(1_000_000),
        1 => Just(u64::MAX),
        1 => u64::MAX - 1_000_000..=u64::MAX,
    ];
    let filter = prop_oneof![
        (0..3_u32).prop_map(|site| Filter::QuerierBudget(SiteId(site))),
        Just(Filter::GlobalBudget),
        // Enough sites that the ledger uses its hash table.
        (0..40_u32).prop_map(|site| Filter::ImpressionSiteQuota(SiteId(site))),
        (0..3_u32).prop_map(|site| Filter::ConversionSiteQuota(SiteId(site))),
    ];
    let charge = (0..2_i64, filter, amount).prop_map(|(epoch, filter, amount)| Charge {
        epoch: EpochIndex(epoch),
        filter,
        amount: MicroEpsilon::new(amount),
    });
    prop::collection::vec(prop::collection::vec(charge, 0..12), 0..60)
}

fn policy() -> Policy {
    Policy::builder()
        .querier_budget(1.0)
        .global_budget(8.0)
        .impression_site_quota(2.0)
        .conversion_site_quota(1.0)
        .build()
        .unwrap()
}

fn sound(book: &mut dyn Book, sets: &[Vec<Charge>]) -> Result<(), TestCaseError> {
    let mut granted = Consumed::new();
    for set in sets {
        let before = book.consumed();
        if book.charge(set) {
            for charge in set.iter().filter(|charge| charge.amount.get() > 0) {
                let key = (charge.epoch.0, charge.filter);
                let sum = granted.get(&key).copied().unwrap_or(0);
                let sum = sum.checked_add(charge.amount.get());
                prop_assert!(sum.is_some(), "the granted charges overflow");
                granted.insert(key, sum.unwrap());
            }
        } else {
            prop_assert_eq!(
                book.consumed(),
                before,
                "a refused charge changed the ledger"
            );
        }
        prop_assert_eq!(
            &book.consumed(),
            &granted,
            "granted and consumed amounts differ"
        );
    }
    for ((_, filter), sum) in granted {
        let capacity = policy().capacities().of(filter.kind()).amount().unwrap();
        prop_assert!(sum <= capacity.get(), "{:?} exceeds its capacity", filter);
    }
    Ok(())
}

#[test]
fn charges_are_all_or_nothing_and_within_capacity() {
    TestRunner::new(Config {
        cases: 300,
        failure_persistence: None,
        ..Config::default()
    })
    .run(&charges(), |sets| sound(&mut Ledger::new(), &sets))
    .unwrap_or_else(|failure| panic!("{failure}"));

    for flaw in [
        ChargeFlaw::Wraps,
        ChargeFlaw::ForgetsRepetition,
        ChargeFlaw::KeepsHalf,
        ChargeFlaw::LeavesEmpty,
    ] {
        let config = Config {
            cases: 1000,
            max_shrink_iters: 0,
            failure_persistence: None,
            ..Config::default()
        };
        let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
        let noticed = TestRunner::new_with_rng(config, rng).run(&charges(), |sets| {
            let mut twin = Twin {
                flaw,
                policy: policy(),
                consumed: Consumed::new(),
            };
            sound(&mut twin, &sets)
        });
        assert!(noticed.is_err(), "{flaw:?} was not noticed");
    }
}
