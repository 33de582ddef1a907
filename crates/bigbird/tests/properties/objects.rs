//! Attribution objects: all queriers together learn no more than was charged.

use std::collections::{BTreeMap, BTreeSet};

use bigbird::Query as _;
use bigbird::{
    AttributionObject, AttributionQuery, Cause, Charge, EpochIndex, Fate, Filter, Impression,
    ImpressionStore, KeptEpochs, Ledger, LedgerChanges, MicroEpsilon, Policy, Profile,
    ReportRequest, SiteId, Timestamp, UserAction, Window,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

const SHOP: SiteId = SiteId(9);
const ADTECHS: [SiteId; 3] = [SiteId(20), SiteId(21), SiteId(22)];
const EPOCHS: i64 = 3;
const VALUE: u32 = 6;
const MAX_VALUE: u32 = 10;
const EPSILON_MICRO: u64 = 500_000;
const SIZE: u32 = 4;

/// The ads of three companies over three epochs, and the epochs in which a company's budget is
/// empty.
#[derive(Debug, Clone)]
struct SharingCase {
    /// The epoch, impression site, company, time and bucket of each ad.
    ads: Vec<(i64, u32, usize, i64, u32)>,
    /// The companies and epochs whose querier budget is empty.
    broke: Vec<(usize, i64)>,
    credit: Vec<f64>,
    first_epoch: i64,
    /// The global budget in epsilons: enough for one object, or too little.
    global: f64,
}

fn case() -> impl Strategy<Value = SharingCase> {
    let ad = (0..EPOCHS, 0..3_u32, 0..3_usize, 0..100_i64, 0..SIZE);
    (
        prop::collection::vec(ad, 0..8),
        prop::collection::vec((0..3_usize, 0..EPOCHS), 0..6),
        prop::collection::vec(0.1..1.0_f64, 1..4),
        0..EPOCHS,
        prop::sample::select(vec![8.0, 0.31, 0.2, 0.1]),
    )
        .prop_map(|(ads, broke, credit, first_epoch, global)| SharingCase {
            ads,
            broke,
            credit,
            first_epoch,
            global,
        })
}

impl SharingCase {
    fn without(&self, epoch: i64) -> Self {
        let mut case = self.clone();
        case.ads.retain(|ad| ad.0 != epoch);
        case
    }

    fn policy(&self) -> Policy {
        Policy::builder()
            .global_budget(self.global)
            .build()
            .unwrap()
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
        let mut ledger = Ledger::new();
        let all = policy.capacities().querier_budget.amount().unwrap();
        // A budget can be emptied only once, so drop duplicates.
        let broke: BTreeSet<_> = self.broke.iter().collect();
        let charges = broke.into_iter().map(|&(company, epoch)| Charge {
            epoch: EpochIndex(epoch),
            filter: Filter::QuerierBudget(ADTECHS[company]),
            amount: all,
        });
        ledger.apply(&LedgerChanges {
            admissions: Vec::new(),
            charges: charges.collect(),
        });
        ledger
    }

    fn query(&self, querier: SiteId, callers: &[SiteId]) -> AttributionQuery {
        let request = ReportRequest {
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

/// Every epoch can be read.
const EVERYTHING: EpochIndex = EpochIndex(i64::MIN);

/// The share of each company, the epochs that passed when the object was created, and the charges.
struct Shares {
    histograms: Vec<Vec<u32>>,
    passed: Vec<i64>,
    /// The charge to the global budget when the object was created, by epoch, in µε.
    paid: BTreeMap<i64, u64>,
    /// The charge to each company's querier budget, by company and epoch, in µε.
    paid_by: BTreeMap<(usize, i64), u64>,
}

/// The shares of the real implementation.
fn shares(case: &SharingCase) -> Shares {
    let policy = case.policy();
    let (store, mut ledger) = (case.store(), case.ledger(&policy));
    let all = case.query(SHOP, &ADTECHS);
    let Ok((mut object, decision, changes)) =
        AttributionObject::create(&policy, &store, &ledger, &all, &mut || 0.5);
    ledger.apply(&changes);
    let global = changes
        .charges
        .iter()
        .filter(|charge| charge.filter == Filter::GlobalBudget);
    let paid = global
        .map(|charge| (charge.epoch.0, charge.amount.get()))
        .collect();
    let mut paid_by = BTreeMap::new();
    let mut histograms = Vec::new();
    for (company, &querier) in ADTECHS.iter().enumerate() {
        // Convert to data and back, as a store does.
        object = AttributionObject::try_from(object.parts()).unwrap();
        let Ok((outcome, changes)) = object.share(
            &policy,
            &ledger,
            &case.query(querier, &[querier]),
            EVERYTHING,
        );
        ledger.apply(&changes);
        histograms.push(outcome.report.buckets().to_vec());
        for charge in changes.charges {
            assert_eq!(charge.filter, Filter::QuerierBudget(querier));
            paid_by.insert((company, charge.epoch.0), charge.amount.get());
        }
    }
    let passed = decision.epochs().filter(|epoch| epoch.fate == Fate::Passed);
    Shares {
        passed: passed.map(|epoch| epoch.epoch.0).collect(),
        histograms,
        paid,
        paid_by,
    }
}

/// A flaw, the paper's `GetReport`: each company attributes again, over the epochs it can pay for.
fn shares_attributed_again(case: &SharingCase) -> Shares {
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
        ..real
    }
}

/// A flaw: with a window of one epoch, the object costs nothing.
fn shares_for_free(case: &SharingCase) -> Shares {
    let mut shares = shares(case);
    if case.first_epoch == EPOCHS - 1 {
        shares.paid.clear();
    }
    shares
}

/// A flaw: shares cost their queriers nothing.
fn shares_free_for_queriers(case: &SharingCase) -> Shares {
    Shares {
        paid_by: BTreeMap::new(),
        ..shares(case)
    }
}

/// Removing the ads of one epoch changes the shares by at most what that epoch was charged for. A
/// change of m costs m · ε / 2V, because λ = 2V / ε.
fn moves_at_most_what_is_charged(
    case: &SharingCase,
    shares: fn(&SharingCase) -> Shares,
) -> Result<(), TestCaseError> {
    let with = shares(case);
    for epoch in 0..EPOCHS {
        let without = shares(&case.without(epoch));
        let moved = |company: usize| -> u64 {
            let (a, b) = (&with.histograms[company], &without.histograms[company]);
            a.iter()
                .zip(b)
                .map(|(a, b)| u64::from(a.abs_diff(*b)))
                .sum()
        };
        let cost = |moved: u64| moved * EPSILON_MICRO / (2 * u64::from(MAX_VALUE));
        let paid = with.paid.get(&epoch).copied().unwrap_or(0);
        let all = cost((0..ADTECHS.len()).map(moved).sum());
        prop_assert!(
            all <= paid,
            "epoch {} moved {} but paid {}",
            epoch,
            all,
            paid
        );
        for company in 0..ADTECHS.len() {
            // A company that could pay for every epoch pays for everything it learns.
            if !case.broke.iter().any(|(broke, _)| *broke == company) {
                let own = with.paid_by.get(&(company, epoch)).copied().unwrap_or(0);
                let moved = cost(moved(company));
                prop_assert!(
                    moved <= own,
                    "company {} learned {} but paid {}",
                    company,
                    moved,
                    own
                );
            }
        }
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
    type Variant = fn(&SharingCase) -> Shares;
    let flaws: [(&str, Variant); 3] = [
        ("attributing again", shares_attributed_again),
        ("a free object", shares_for_free),
        ("a free share", shares_free_for_queriers),
    ];
    for (name, flawed) in flaws {
        let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
        let noticed = TestRunner::new_with_rng(config.clone(), rng)
            .run(&case(), |case| moves_at_most_what_is_charged(&case, flawed));
        assert!(noticed.is_err(), "{name} was not noticed");
    }
}

/// Two companies with one ad each, in different epochs.
fn two_companies() -> SharingCase {
    SharingCase {
        ads: vec![(0, 1, 0, 10, 1), (1, 2, 1, 10, 2)],
        broke: Vec::new(),
        credit: vec![1.0, 1.0],
        first_epoch: 0,
        global: 8.0,
    }
}

struct SharedObject {
    policy: Policy,
    ledger: Ledger,
    object: AttributionObject,
}

impl SharedObject {
    fn new(case: &SharingCase) -> Self {
        let policy = case.policy();
        let (store, mut ledger) = (case.store(), case.ledger(&policy));
        let all = case.query(SHOP, &ADTECHS[..2]);
        let Ok((object, _, changes)) =
            AttributionObject::create(&policy, &store, &ledger, &all, &mut || 0.5);
        ledger.apply(&changes);
        Self {
            policy,
            ledger,
            object,
        }
    }

    fn share(&mut self, query: &AttributionQuery) -> (Vec<u32>, usize) {
        let kept = KeptEpochs {
            policy: &self.policy,
            first: self.ledger.first_epoch(),
        };
        let Ok((outcome, changes)) = self.object.share(&kept, &self.ledger, query, EVERYTHING);
        self.ledger.apply(&changes);
        (outcome.report.buckets().to_vec(), changes.charges.len())
    }

    fn consumed(&self) -> BTreeMap<(i64, Filter), MicroEpsilon> {
        let views = self.ledger.epochs();
        let filters = views.flat_map(|view| {
            let epoch = view.epoch().0;
            view.filters()
                .into_iter()
                .map(move |(filter, consumed)| ((epoch, filter), consumed))
        });
        filters.collect()
    }
}

#[test]
fn creating_charges_the_shared_filters_once_and_each_share_its_own_querier() {
    let case = two_companies();
    let mut shared = SharedObject::new(&case);
    let loss = MicroEpsilon::new(300_000);
    let of_epoch = |epoch, site| {
        [
            ((epoch, Filter::GlobalBudget), loss),
            ((epoch, Filter::ImpressionSiteQuota(SiteId(site))), loss),
            ((epoch, Filter::ConversionSiteQuota(SHOP)), loss),
        ]
    };
    let mut expected: BTreeMap<_, _> = of_epoch(0, 1).into_iter().chain(of_epoch(1, 2)).collect();
    assert_eq!(shared.consumed(), expected);
    for (company, histogram) in [(0, [0, 3, 0, 0]), (1, [0, 0, 3, 0])] {
        let query = case.query(ADTECHS[company], &[ADTECHS[company]]);
        assert_eq!(shared.share(&query), (histogram.to_vec(), 2));
        // Both epochs influenced how the value was divided, so both pay.
        for epoch in 0..2 {
            expected.insert((epoch, Filter::QuerierBudget(ADTECHS[company])), loss);
        }
        assert_eq!(shared.consumed(), expected);
    }
}

/// An epoch that can no longer be read loses only its own credit. Whether it had anything to pay
/// for must not decide what the other epoch is charged.
#[test]
fn an_epoch_out_of_reach_is_lost_alone() {
    let case = two_companies();
    let query = |company: usize| case.query(ADTECHS[company], &[ADTECHS[company]]);
    let querier = |company: usize| Filter::QuerierBudget(ADTECHS[company]);
    let pruned = |mut shared: SharedObject| {
        shared.ledger.prune_before(EpochIndex(1));
        (shared, EVERYTHING)
    };
    let cleared = |shared: SharedObject| (shared, EpochIndex(1));
    for out_of_reach in [
        &pruned as &dyn Fn(SharedObject) -> (SharedObject, EpochIndex),
        &cleared,
    ] {
        let (mut shared, readable_from) = out_of_reach(SharedObject::new(&case));
        for (company, histogram) in [(0, [0, 0, 0, 0]), (1, [0, 0, 3, 0])] {
            let share = &query(company);
            let kept = KeptEpochs {
                policy: &shared.policy,
                first: shared.ledger.first_epoch(),
            };
            let object = &mut shared.object;
            let Ok((outcome, changes)) = object.share(&kept, &shared.ledger, share, readable_from);
            assert_eq!(outcome.report.buckets(), histogram);
            let charged: Vec<_> = changes
                .charges
                .iter()
                .map(|it| (it.epoch.0, it.filter))
                .collect();
            assert_eq!(charged, [(1, querier(company))]);
            assert_eq!(outcome.decision.first_cause(), Some(Cause::Pruned));
        }
    }
}

#[test]
fn a_share_that_does_not_fit_is_null_and_costs_nothing() {
    let case = two_companies();
    let null = (vec![0; SIZE as usize], 0);
    let own = case.query(ADTECHS[0], &ADTECHS[..1]);
    let builder = || {
        AttributionQuery::builder(
            ReportRequest {
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
        (
            "a caller that does not share",
            builder().callers([ADTECHS[2]]),
        ),
        ("several callers", builder().callers(&ADTECHS[..2])),
    ];
    let elsewhere = ReportRequest {
        conversion_site: SiteId(77),
        ..own.request()
    };
    let mut shared = SharedObject::new(&case);
    let mut of_another_site = own.clone();
    of_another_site
        .retarget(elsewhere, Timestamp(1000), Timestamp(0))
        .unwrap();
    assert_eq!(
        shared.share(&of_another_site),
        null,
        "another conversion site"
    );
    for (what, query) in misfits {
        let mut shared = SharedObject::new(&case);
        assert_eq!(shared.share(&query.build().unwrap()), null, "{what}");
        assert_eq!(shared.share(&own).0, [0, 3, 0, 0], "{what} took nothing");
    }
    let mut shared = SharedObject::new(&case);
    assert_eq!(shared.share(&own).0, [0, 3, 0, 0]);
    let before = shared.consumed();
    assert_eq!(shared.share(&own), null, "taken already");
    let everything = builder().impression_callers([]).build().unwrap();
    assert_eq!(shared.share(&everything), null, "partly taken already");
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
    let case = SharingCase {
        credit: vec![1.0],
        ..two_companies()
    };
    for (company, value) in [(0, 0), (1, VALUE)] {
        let ledger = Ledger::new();
        let query = |callers: &[SiteId]| {
            let request = ReportRequest {
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
        let Ok((outcome, _)) =
            object.share(&policy, &ledger, &query(&[ADTECHS[company]]), EVERYTHING);
        assert_eq!(outcome.report.buckets(), [0, 0, value, 0]);
    }
}

/// In a window of one epoch, an object costs the credit that was given, not the worst case. A
/// pruned epoch gives nothing any more. A site that asks to be forgotten is forgotten.
#[test]
fn an_object_of_one_epoch_costs_its_credit_and_forgets() {
    let case = SharingCase {
        ads: vec![(2, 1, 0, 10, 1), (2, 1, 1, 11, 2)],
        first_epoch: 2,
        ..two_companies()
    };
    let mut shared = SharedObject::new(&case);
    let consumed = shared.consumed();
    // The value is 6 of at most 10, and ε is 0.5. The charge is for the value, not for twice the
    // value.
    let paid = MicroEpsilon::new(150_000);
    assert_eq!(consumed[&(2, Filter::GlobalBudget)], paid);
    assert_eq!(consumed[&(2, Filter::ImpressionSiteQuota(SiteId(1)))], paid);

    let mut forgetting = shared.object.clone();
    forgetting.forget_site(ADTECHS[0]);
    let query = |company: usize| case.query(ADTECHS[company], &[ADTECHS[company]]);
    let Ok((outcome, _)) = forgetting.share(&shared.policy, &shared.ledger, &query(0), EVERYTHING);
    assert!(outcome.report.is_null());

    let own = shared.share(&query(0));
    assert_eq!(own.0, [0, 3, 0, 0]);
    let querier = Filter::QuerierBudget(ADTECHS[0]);
    assert_eq!(shared.consumed()[&(2, querier)], MicroEpsilon::new(75_000));
    shared.ledger.prune_before(EpochIndex(3));
    assert_eq!(shared.share(&query(1)), (vec![0; SIZE as usize], 0));
}

/// A site that asks to be forgotten loses the credit of what it saved, and of impressions that
/// named that site. If it is the conversion site, all credit is removed.
#[test]
fn a_site_is_forgotten_by_an_object() {
    let case = two_companies();
    let credit = |object: &AttributionObject| -> u32 {
        object
            .parts()
            .credits
            .iter()
            .map(|credit| credit.value)
            .sum()
    };
    let mut parts = SharedObject::new(&case).object.parts();
    assert_eq!(parts.credits.len(), 2);
    // Both impressions name the second company as the one that may measure them.
    for credit in &mut parts.credits {
        credit.permitted = 0b10;
    }
    let object = AttributionObject::try_from(parts).unwrap();
    for (site, left) in [(ADTECHS[0], 3), (ADTECHS[1], 0), (SHOP, 0), (SiteId(77), 6)] {
        let mut object = object.clone();
        object.forget_site(site);
        assert_eq!(credit(&object), left, "{site:?}");
        assert_eq!(object.epochs().len(), 2, "what was paid stays paid");
    }
    // Impressions that are open to everyone stay open to the others.
    let mut open = SharedObject::new(&case).object;
    open.forget_site(ADTECHS[1]);
    assert_eq!(credit(&open), 3);
}

#[test]
fn parts_that_are_of_no_object_are_refused() {
    let object = SharedObject::new(&two_companies()).object;
    assert_eq!(
        AttributionObject::try_from(object.parts()).as_ref(),
        Ok(&object)
    );
    let mut parts = object.parts();
    parts.epsilon = f64::NAN;
    assert!(AttributionObject::try_from(parts).is_err());
    let mut parts = object.parts();
    parts.sensitivity = 0;
    assert!(AttributionObject::try_from(parts).is_err());
}
