//! Attribution objects: all queriers together learn no more than was charged.

use std::collections::BTreeMap;

use bigbird::{
    AttributionObject, AttributionQuery, Charge, EpochIndex, Fate, Filter, Impression,
    ImpressionStore, Ledger, MicroEpsilon, Policy, Profile, Request, SiteId, Timestamp, UserAction,
    Window,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

const SHOP: SiteId = SiteId(9);
const ADTECHS: [SiteId; 3] = [SiteId(20), SiteId(21), SiteId(22)];
const EPOCHS: i64 = 3;
const VALUE: u32 = 6;
const SIZE: u32 = 4;

/// The ads of three companies over three epochs, and which of them has nothing left where.
#[derive(Debug, Clone)]
struct Case {
    /// Epoch, impression site, company, time, bucket.
    ads: Vec<(i64, u32, usize, i64, u32)>,
    /// Company and epoch.
    broke: Vec<(usize, i64)>,
    credit: Vec<f64>,
    first_epoch: i64,
}

fn case() -> impl Strategy<Value = Case> {
    let ad = (0..EPOCHS, 0..3_u32, 0..3_usize, 0..100_i64, 0..SIZE);
    (
        prop::collection::vec(ad, 0..8),
        prop::collection::vec((0..3_usize, 0..EPOCHS), 0..6),
        prop::collection::vec(0.1..1.0_f64, 1..4),
        0..EPOCHS,
    )
        .prop_map(|(ads, broke, credit, first_epoch)| Case {
            ads,
            broke,
            credit,
            first_epoch,
        })
}

impl Case {
    fn without(&self, epoch: i64) -> Self {
        let mut case = self.clone();
        case.ads.retain(|ad| ad.0 != epoch);
        case
    }

    fn store(&self) -> ImpressionStore {
        let mut store = ImpressionStore::default();
        for (action, &(epoch, site, company, time, bucket)) in (0..).zip(&self.ads) {
            let time = Timestamp(epoch * 100 + time);
            let impression = Impression {
                intermediary: Some(ADTECHS[company]),
                ..Impression::new(SiteId(site), UserAction(action), time, bucket)
            };
            store.save(EpochIndex(epoch), &impression);
        }
        store
    }

    fn ledger(&self, policy: &Policy) -> Ledger {
        let mut ledger = Ledger::new(policy);
        let all = policy.capacities().querier.amount().unwrap();
        for &(company, epoch) in &self.broke {
            let charge = Charge {
                epoch: EpochIndex(epoch),
                filter: Filter::Querier(ADTECHS[company]),
                amount: all,
            };
            // The second time there is nothing left to take.
            let _ = ledger.charge(&[charge]);
        }
        ledger
    }

    fn query(&self, querier: SiteId, callers: &[SiteId]) -> AttributionQuery {
        let request = Request {
            querier,
            conversion_site: SHOP,
            user_action: UserAction(1000),
            window: Window::new(EpochIndex(self.first_epoch), EpochIndex(EPOCHS - 1)).unwrap(),
        };
        AttributionQuery::builder(request, Timestamp(1000), SIZE)
            .callers(callers)
            .impression_callers(callers)
            .credit(self.credit.clone())
            .value(VALUE, 10)
            .epsilon(0.5)
            .build()
            .unwrap()
    }
}

/// What each company gets, and which epochs passed when the object was created.
struct Shares {
    histograms: Vec<Vec<u32>>,
    passed: Vec<i64>,
}

/// The real thing.
fn shares(case: &Case) -> Shares {
    let policy = Profile::BigBird.policy();
    let (store, mut ledger) = (case.store(), case.ledger(&policy));
    let all = case.query(SHOP, &ADTECHS);
    let Ok((mut object, decision, changes)) =
        AttributionObject::create(&policy, &store, &ledger, &all, &mut || 0.5);
    ledger.commit(&changes).unwrap();
    let histograms = ADTECHS.map(|company| {
        let Ok((outcome, changes)) =
            object.share(&policy, &ledger, &case.query(company, &[company]));
        ledger.commit(&changes).unwrap();
        outcome.report.buckets().to_vec()
    });
    let passed = decision.epochs().filter(|epoch| epoch.fate == Fate::Passed);
    Shares {
        passed: passed.map(|epoch| epoch.epoch.0).collect(),
        histograms: histograms.to_vec(),
    }
}

/// The paper's `GetReport`: each company attributes again, over the epochs it can pay for.
fn shares_attributed_again(case: &Case) -> Shares {
    let real = shares(case);
    let histograms = (0..3).map(|company| {
        let mut affordable = case.clone();
        affordable
            .ads
            .retain(|ad| real.passed.contains(&ad.0) && !case.broke.contains(&(company, ad.0)));
        affordable.broke.clear();
        shares(&affordable).histograms[company].clone()
    });
    Shares {
        histograms: histograms.collect(),
        passed: real.passed,
    }
}

/// Removing the ads of one epoch moves at most what that epoch was charged for: twice the value,
/// or with a window of one epoch the value; and nothing if it did not pass.
fn moves_at_most_what_is_charged(
    case: &Case,
    shares: fn(&Case) -> Shares,
) -> Result<(), TestCaseError> {
    let with = shares(case);
    for epoch in 0..EPOCHS {
        let without = shares(&case.without(epoch));
        let moved: u32 = with
            .histograms
            .iter()
            .flatten()
            .zip(without.histograms.iter().flatten())
            .map(|(a, b)| a.abs_diff(*b))
            .sum();
        let charged = match with.passed.contains(&epoch) {
            false => 0,
            true if case.first_epoch == EPOCHS - 1 => VALUE,
            true => 2 * VALUE,
        };
        prop_assert!(
            moved <= charged,
            "epoch {} moved {} for {}",
            epoch,
            moved,
            charged
        );
    }
    Ok(())
}

#[test]
fn all_queriers_together_move_at_most_what_was_charged() {
    let config = Config {
        cases: 500,
        failure_persistence: None,
        ..Config::default()
    };
    TestRunner::new(config.clone())
        .run(&case(), |case| moves_at_most_what_is_charged(&case, shares))
        .unwrap_or_else(|failure| panic!("{failure}"));

    let config = Config {
        cases: 20_000,
        max_shrink_iters: 0,
        ..config
    };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let noticed = TestRunner::new_with_rng(config, rng).run(&case(), |case| {
        moves_at_most_what_is_charged(&case, shares_attributed_again)
    });
    assert!(noticed.is_err(), "attributing again was not noticed");
}

/// Two companies with one ad each in different epochs.
fn two_companies() -> Case {
    Case {
        ads: vec![(0, 1, 0, 10, 1), (1, 2, 1, 10, 2)],
        broke: Vec::new(),
        credit: vec![1.0, 1.0],
        first_epoch: 0,
    }
}

struct Shared {
    policy: Policy,
    ledger: Ledger,
    object: AttributionObject,
}

impl Shared {
    fn new(case: &Case) -> Self {
        let policy = Profile::BigBird.policy();
        let (store, mut ledger) = (case.store(), case.ledger(&policy));
        let all = case.query(SHOP, &ADTECHS[..2]);
        let Ok((object, _, changes)) =
            AttributionObject::create(&policy, &store, &ledger, &all, &mut || 0.5);
        ledger.commit(&changes).unwrap();
        Self {
            policy,
            ledger,
            object,
        }
    }

    fn share(&mut self, query: &AttributionQuery) -> (Vec<u32>, usize) {
        let Ok((outcome, changes)) = self.object.share(&self.policy, &self.ledger, query);
        self.ledger.commit(&changes).unwrap();
        (outcome.report.buckets().to_vec(), changes.charges.len())
    }

    fn consumed(&self) -> BTreeMap<(i64, Filter), MicroEpsilon> {
        let views = self.ledger.epochs();
        let filters = views.flat_map(|view| {
            let epoch = view.epoch().0;
            view.filters()
                .into_iter()
                .map(move |(filter, balance)| ((epoch, filter), balance.consumed))
        });
        filters.collect()
    }
}

#[test]
fn creating_charges_the_shared_filters_once_and_each_share_its_own_querier() {
    let case = two_companies();
    let mut shared = Shared::new(&case);
    let loss = MicroEpsilon::new(300_000);
    let of_epoch = |epoch, site| {
        [
            ((epoch, Filter::Global), loss),
            ((epoch, Filter::ImpressionSite(SiteId(site))), loss),
            ((epoch, Filter::ConversionSite(SHOP)), loss),
        ]
    };
    let mut expected: BTreeMap<_, _> = of_epoch(0, 1).into_iter().chain(of_epoch(1, 2)).collect();
    assert_eq!(shared.consumed(), expected);
    for (company, histogram) in [(0, [0, 3, 0, 0]), (1, [0, 0, 3, 0])] {
        let query = case.query(ADTECHS[company], &[ADTECHS[company]]);
        assert_eq!(shared.share(&query), (histogram.to_vec(), 2));
        // Both epochs influenced how the value was divided, so both pay.
        for epoch in 0..2 {
            expected.insert((epoch, Filter::Querier(ADTECHS[company])), loss);
        }
        assert_eq!(shared.consumed(), expected);
    }
}

#[test]
fn a_share_that_does_not_fit_is_null_and_costs_nothing() {
    let case = two_companies();
    let null = (vec![0; SIZE as usize], 0);
    let own = case.query(ADTECHS[0], &ADTECHS[..1]);
    let builder = || {
        AttributionQuery::builder(
            Request {
                querier: ADTECHS[0],
                conversion_site: SHOP,
                user_action: UserAction(1000),
                window: Window::new(EpochIndex(0), EpochIndex(2)).unwrap(),
            },
            Timestamp(1000),
            SIZE,
        )
        .callers(&ADTECHS[..1])
        .impression_callers(&ADTECHS[..1])
        .credit(case.credit.clone())
        .value(VALUE, 10)
        .epsilon(0.5)
    };
    let misfits = [
        ("another epsilon", builder().epsilon(0.6)),
        ("another maximal value", builder().value(VALUE, 11)),
        ("another value", builder().value(VALUE - 1, 10)),
        ("another credit", builder().credit([1.0, 2.0])),
        ("nobody who shares", builder().callers([ADTECHS[2]])),
        ("several callers", builder().callers(&ADTECHS[..2])),
    ];
    for (what, query) in misfits {
        let mut shared = Shared::new(&case);
        assert_eq!(shared.share(&query.build().unwrap()), null, "{what}");
        assert_eq!(shared.share(&own).0, [0, 3, 0, 0], "{what} took nothing");
    }
    let mut shared = Shared::new(&case);
    assert_eq!(shared.share(&own).0, [0, 3, 0, 0]);
    let before = shared.consumed();
    assert_eq!(shared.share(&own), null, "taken already");
    let everything = builder().impression_callers([]).build().unwrap();
    assert_eq!(shared.share(&everything), null, "some of it taken already");
    assert_eq!(shared.consumed(), before);
}

#[test]
fn an_impression_is_handed_only_to_callers_it_permits() {
    let policy = Profile::BigBird.policy();
    let mut store = ImpressionStore::default();
    let impression = Impression {
        conversion_callers: &[ADTECHS[1]],
        ..Impression::new(SiteId(1), UserAction(1), Timestamp(5), 2)
    };
    store.save(EpochIndex(0), &impression);
    let case = Case {
        credit: vec![1.0],
        ..two_companies()
    };
    for (company, value) in [(0, 0), (1, VALUE)] {
        let ledger = Ledger::new(&policy);
        let query = |callers: &[SiteId]| {
            let request = Request {
                querier: ADTECHS[company],
                conversion_site: SHOP,
                user_action: UserAction(1000),
                window: Window::new(EpochIndex(0), EpochIndex(2)).unwrap(),
            };
            AttributionQuery::builder(request, Timestamp(1000), SIZE)
                .callers(callers)
                .credit(case.credit.clone())
                .value(VALUE, 10)
                .build()
                .unwrap()
        };
        let all = query(&ADTECHS[..2]);
        let Ok((mut object, _, _)) =
            AttributionObject::create(&policy, &store, &ledger, &all, &mut || 0.5);
        let Ok((outcome, _)) = object.share(&policy, &ledger, &query(&[ADTECHS[company]]));
        assert_eq!(outcome.report.buckets(), [0, 0, value, 0]);
    }
}
