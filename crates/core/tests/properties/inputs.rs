//! Wrong input is a typed error that names value and limit; it never panics and never charges.

use bigbird::{
    AttributionObject, AttributionQuery, Device, EpochIndex, EventLog, Impression, ImpressionStore,
    Ledger, Policy, Profile, QueryError, Request, SiteId, Timestamp, UserAction, Window, Workspace,
};
use proptest::prelude::*;

fn request() -> Request {
    Request {
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
        (builder(5).callers([]), "the callers must be 1 to 64, got 0"),
        (
            builder(5).not_before(Timestamp(11)),
            "the lookback must not begin after now, got 11 after 10",
        ),
    ];
    for (builder, expected) in cases {
        assert_eq!(message(builder.build()), expected);
    }
    let mut query = builder(5).build().unwrap();
    let same = query.clone();
    let reversed = query.retarget(request(), Timestamp(1), Timestamp(2));
    assert!(matches!(reversed, Err(QueryError::Lookback { .. })));
    assert_eq!(query, same, "a refused change changes nothing");
}

/// Everything can be handed to another thread.
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

proptest! {
    /// Whatever numbers come in, there is an answer or an error.
    #[test]
    fn no_number_makes_it_panic(
        epochs in any::<(i64, i64, i64)>(),
        times in any::<(i64, i64, i64, i64)>(),
        numbers in any::<(u32, u32, u32, i32)>(),
        values in (any::<u32>(), any::<u32>(), any::<f64>()),
        credit in prop::collection::vec(any::<f64>(), 0..4),
        size in prop_oneof![any::<u32>(), 0..9_u32],
        budgets in any::<(f64, f64, f64, f64, u32)>(),
    ) {
        let built = Policy::builder()
            .querier(budgets.0)
            .global(budgets.1)
            .impression_site(budgets.2)
            .conversion_site(budgets.3)
            .domain_cap(budgets.4)
            .build();
        let mut device =
            Device::<ImpressionStore>::new(built.unwrap_or(Profile::BigBird.policy()));
        let impression = Impression {
            expires: Timestamp(times.1),
            match_value: numbers.1,
            priority: numbers.3,
            ..Impression::new(SiteId(numbers.0), UserAction(0), Timestamp(times.0), numbers.2)
        };
        device.save_impression(EpochIndex(epochs.0), &impression);
        let before = device.ledger().epochs().map(|view| view.filters()).collect::<Vec<_>>();
        let window = Window::new(EpochIndex(epochs.1), EpochIndex(epochs.2))
            .unwrap_or(Window::single(EpochIndex(epochs.0)));
        let request = Request { window, ..request() };
        let query = AttributionQuery::builder(request, Timestamp(times.2), size)
            .not_before(Timestamp(times.3))
            .value(values.0, values.1)
            .epsilon(values.2)
            .credit(credit)
            .build();
        match query {
            Ok(query) => {
                let outcome = device.report(&query, &mut || 0.5);
                prop_assert_eq!(outcome.report.buckets().len(), size as usize);
            }
            Err(error) => {
                prop_assert!(error.to_string().contains("got"));
                let after = device.ledger().epochs().map(|view| view.filters()).collect::<Vec<_>>();
                prop_assert_eq!(after, before);
            }
        }
        device.prune_before(EpochIndex(epochs.2));
    }
}
