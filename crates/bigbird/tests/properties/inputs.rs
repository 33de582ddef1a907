//! Wrong input gives a typed error that names the value and what is allowed. It never panics and
//! never charges.

use std::cell::Cell;

use bigbird::{
    AttributionObject, AttributionQuery, Device, EpochIndex, EventLog, Impression, ImpressionStore,
    Ledger, Policy, Profile, QueryError, ReportRequest, SiteId, Timestamp, UserAction, Window,
    Workspace,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

fn request() -> ReportRequest {
    ReportRequest {
        querier: SiteId(1),
        conversion_site: SiteId(1),
        user_action: UserAction(1),
        window: Window::single(EpochIndex(0)),
    }
}

#[test]
fn errors_name_what_was_given_and_what_is_allowed() {
    let builder = |size| AttributionQuery::builder(request(), Timestamp(10), size);
    let message = |result: Result<AttributionQuery, QueryError>| result.unwrap_err().to_string();
    let cases = [
        (
            builder(5).epsilon(-1.0),
            "epsilon must be in (0, 4294], got -1",
        ),
        (
            builder(5).epsilon(0.0),
            "epsilon must be in (0, 4294], got 0",
        ),
        (
            builder(5).epsilon(f64::NAN),
            "epsilon must be in (0, 4294], got NaN",
        ),
        (
            builder(5).epsilon(f64::INFINITY),
            "epsilon must be in (0, 4294], got inf",
        ),
        (
            builder(5).value(3, 2),
            "value must be in [1, maxValue = 2], got 3",
        ),
        (
            builder(5).value(0, 2),
            "value must be in [1, maxValue = 2], got 0",
        ),
        (
            builder(5).value(0, 0),
            "value must be in [1, maxValue = 0], got 0",
        ),
        (
            builder(5).credit([]),
            "credit must have at least 1 share, got 0",
        ),
        (
            builder(5).credit([1.0, -0.5]),
            "every share of credit must be above 0, got -0.5",
        ),
        (
            builder(5).credit([f64::NAN]),
            "every share of credit must be above 0, got NaN",
        ),
        (
            builder(5).credit([1e308, 1e308]),
            "the sum of credit must be finite, got inf",
        ),
        (builder(0), "histogram size must be in [1, 1048576], got 0"),
        (
            builder(u32::MAX),
            "histogram size must be in [1, 1048576], got 4294967295",
        ),
        (
            builder(5).callers([]),
            "a query must have 1 to 64 callers, got 0",
        ),
        (
            builder(5).not_before(Timestamp(11)),
            "the lookback must not begin after now (10), got 11",
        ),
    ];
    for (builder, expected) in cases {
        assert_eq!(message(builder.build()), expected);
    }
    let mut query = builder(5).build().unwrap();
    let same = query.clone();
    let reversed = query.retarget(request(), Timestamp(1), Timestamp(2));
    assert!(matches!(reversed, Err(QueryError::Lookback { .. })));
    assert_eq!(query, same, "a refused change has no effect");
}

/// All types can be sent to another thread.
#[test]
fn all_types_are_send() {
    fn send<T: Send>() {}
    send::<Device<ImpressionStore>>();
    send::<Device<EventLog<String>>>();
    send::<Ledger>();
    send::<Policy>();
    send::<AttributionQuery>();
    send::<AttributionObject>();
    send::<Workspace<AttributionQuery>>();
}

/// Numbers that are likely to be valid, and edge cases.
fn number() -> impl Strategy<Value = f64> {
    let edges = [
        0.0,
        -0.0,
        5e-324,
        f64::MIN_POSITIVE,
        1e-9,
        4294.0,
        4_294.000_001,
        1e300,
        f64::MAX,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        -1.0,
    ];
    prop_oneof![4 => 0.001..10.0_f64, 1 => prop::sample::select(edges.to_vec())]
}

fn moment() -> impl Strategy<Value = i64> {
    let edges = [i64::MIN, i64::MIN + 1, -1, 0, 1, i64::MAX - 1, i64::MAX];
    prop_oneof![4 => -100..100_i64, 1 => prop::sample::select(edges.to_vec())]
}

fn count() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0..9_u32, 1 => prop::sample::select(vec![u32::MAX, u32::MAX - 1, 1 << 20])]
}

/// Whatever numbers are passed, there is a report or an error that names the wrong value. Enough of
/// them are valid for the test to mean something.
#[test]
fn no_number_makes_it_panic() {
    let cases = (
        [moment(), moment(), moment(), moment(), moment(), moment()],
        [count(), count(), count(), count(), count()],
        prop::collection::vec(number(), 0..4),
        [number(), number(), number(), number(), number()],
        -3..3_i64,
    );
    let (reported, refused) = (Cell::new(0), Cell::new(0));
    TestRunner::new(Config {
        cases: 4000,
        failure_persistence: None,
        ..Config::default()
    })
    .run(&cases, |(moments, counts, credit, numbers, epoch)| {
        let [saved, expires, now, not_before, earliest, current] = moments;
        let [site, match_value, value, max_value, size] = counts;
        let [epsilon, querier, global, impression_site, conversion_site] = numbers;
        let policy = Policy::builder()
            .querier_budget(querier)
            .global_budget(global)
            .impression_site_quota(impression_site)
            .conversion_site_quota(conversion_site)
            .domain_cap(site)
            .build()
            .unwrap_or(Profile::BigBird.policy());
        let mut device = Device::<ImpressionStore>::new(policy);
        let impression = Impression {
            expires: Timestamp(expires),
            match_value,
            ..Impression::new(SiteId(site), UserAction(0), Timestamp(saved), value)
        };
        device.save_impression(EpochIndex(epoch), &impression);
        let window = Window::new(EpochIndex(earliest), EpochIndex(current))
            .unwrap_or(Window::single(EpochIndex(epoch)));
        let request = ReportRequest {
            window,
            ..request()
        };
        let query = AttributionQuery::builder(request, Timestamp(now), size)
            .not_before(Timestamp(not_before))
            .value(value, max_value)
            .epsilon(epsilon)
            .credit(credit)
            .build();
        match query {
            Ok(query) => {
                let outcome = device.report(&query, &mut || 0.5);
                prop_assert_eq!(outcome.report.buckets().len(), size as usize);
                if outcome.decision.any_passed() {
                    reported.set(reported.get() + 1);
                }
            }
            Err(error) => {
                prop_assert!(error.to_string().contains("got"), "{}", error);
                refused.set(refused.get() + 1);
            }
        }
        device.prune_before(EpochIndex(current));
        Ok(())
    })
    .unwrap_or_else(|failure| panic!("{failure}"));
    let (reported, refused) = (reported.get(), refused.get());
    assert!(
        reported > 5 && refused > 500,
        "only {reported} reports and {refused} refusals"
    );
}
