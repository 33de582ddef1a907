//! A test for each row of `docs/draft-notes.md`, which lists where the draft or its simulator is
//! wrong or silent.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::convert::Infallible;

use bigbird::{Capacities, Capacity, Cause, Filter, FilterKind, MicroEpsilon, Profile};
use bigbird_user_agent::{
    Activation, AgentError, ApiError, Call, Config, ConversionOptions, EpochStart,
    ImpressionOptions, Localhost, MemoryStore, Randomness, SealedReport, Site, Storage, UserAgent,
    View, parse_save_impression,
};
use common::{SERVICE, at, released};

const DAY: i64 = 86_400;

/// Random numbers in a fixed sequence.
struct DraftRandomness {
    epoch_start: f64,
    credit: Box<dyn FnMut() -> f64>,
}

impl Randomness for DraftRandomness {
    fn epoch_start(&mut self) -> f64 {
        self.epoch_start
    }

    fn credit(&mut self) -> f64 {
        (self.credit)()
    }

    fn handle(&mut self, number: u64) -> u128 {
        number.into()
    }
}

type MemoryAgent = UserAgent<MemoryStore, DraftRandomness>;

fn agent_with(
    change: impl FnOnce(&mut Config),
    credit: impl FnMut() -> f64 + 'static,
) -> MemoryAgent {
    let mut config = Config::new(Profile::W3cDraft)
        .with_service(SERVICE)
        .for_testing();
    change(&mut config);
    let randomness = DraftRandomness {
        epoch_start: 0.5,
        credit: Box::new(credit),
    };
    UserAgent::in_memory(config, randomness)
}

fn agent() -> MemoryAgent {
    agent_with(|_| {}, || 0.5)
}

fn capacities(querier: f64, global: f64, impression_site: f64) -> impl FnOnce(&mut Config) {
    move |config| {
        let finite = |epsilon| Capacity::finite(epsilon).unwrap();
        let capacities = Capacities {
            querier_budget: finite(querier),
            global_budget: finite(global),
            impression_site_quota: finite(impression_site),
            ..*config.policy.capacities()
        };
        let policy = config.policy.to_builder().capacities(capacities);
        config.policy = policy.build().unwrap();
    }
}

fn save(agent: &mut MemoryAgent, site: &str, seconds: i64, options: &ImpressionOptions) {
    let call = Call::new(site, at(seconds));
    agent.save_impression(&call, options).unwrap();
}

fn options(epsilon: f64) -> ConversionOptions {
    ConversionOptions {
        epsilon,
        ..ConversionOptions::new(SERVICE, 3)
    }
}

fn measure(
    agent: &mut MemoryAgent,
    site: &str,
    seconds: i64,
    options: &ConversionOptions,
) -> Result<(Vec<u32>, Option<Cause>), ApiError> {
    let call = Call::new(site, at(seconds));
    match agent.measure_conversion(&call, options) {
        Ok(answer) => {
            let cause = answer.decision.first_cause();
            Ok((released(answer), cause))
        }
        Err(AgentError::Api(error)) => Err(error),
        Err(AgentError::Store(never)) => {
            let never: Infallible = never;
            match never {}
        }
    }
}

fn histogram(
    agent: &mut MemoryAgent,
    site: &str,
    seconds: i64,
    options: &ConversionOptions,
) -> Vec<u32> {
    measure(agent, site, seconds, options).unwrap().0
}

#[test]
fn row_01_the_global_budget_is_enforced_after_the_first_charge() {
    let mut agent = agent_with(capacities(1.0, 1.0, 9.0), || 0.5);
    save(&mut agent, "news.example", 1, &ImpressionOptions::new(0));
    assert_eq!(
        histogram(&mut agent, "a.example", 2, &options(0.7)),
        [1, 0, 0]
    );
    let (report, cause) = measure(&mut agent, "b.example", 3, &options(0.7)).unwrap();
    assert_eq!(report, [0, 0, 0]);
    assert_eq!(cause, Some(Cause::Filter(FilterKind::GlobalBudget)));
}

/// A site makes a thousand calls at ε = 10 against a budget of 1, with one impression inside the
/// histogram and one outside. Under the draft, a quarter of the histograms are given away. Here,
/// every report that is not null is refused.
#[test]
fn row_02_the_report_that_is_charged_is_the_one_that_is_released() {
    let mut number = 0_u64;
    let coin = move || {
        // Knuth's generator. One bit of it is enough.
        number = number
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        if number >> 63 == 0 { 0.25 } else { 0.75 }
    };
    let mut agent = agent_with(capacities(1.0, 1e6, 1e6), coin);
    save(&mut agent, "news.example", 1, &ImpressionOptions::new(9));
    save(&mut agent, "news.example", 2, &ImpressionOptions::new(0));
    let options = ConversionOptions {
        epsilon: 10.0,
        credit: vec![1.0, 1.0],
        lookback_days: Some(1),
        ..ConversionOptions::new(SERVICE, 1)
    };
    let mut released = 0;
    for call in 0..1000 {
        let report = histogram(&mut agent, "a.example", 3 + call, &options);
        released += report[0];
    }
    assert_eq!(released, 0, "each report would cost 5 of a budget of 1");
}

#[test]
fn row_03_any_fraction_starts_the_epochs() {
    for fraction in [0.0, 1.0 / 3.0, 0.123_456_789, 0.999_999_999] {
        let mut agent = agent();
        agent.randomness_mut().epoch_start = fraction;
        save(&mut agent, "news.example", 1, &ImpressionOptions::new(0));
        assert_eq!(
            histogram(&mut agent, "a.example", 2, &options(0.1)),
            [1, 0, 0]
        );
    }
}

/// The first use is 31 minutes before 1970. The start of epochs is rounded down to the full hour
/// before that, so the impression is in epoch 0. Rounded towards zero, epoch 0 would begin after
/// the impression.
#[test]
fn row_04_the_start_is_rounded_down_also_before_1970() {
    let mut agent = agent();
    agent.randomness_mut().epoch_start = 0.0;
    let now = -1800;
    save(
        &mut agent,
        "news.example",
        now - 60,
        &ImpressionOptions::new(0),
    );
    let one_day = ConversionOptions {
        lookback_days: Some(1),
        ..options(1.0)
    };
    assert_eq!(histogram(&mut agent, "a.example", now, &one_day), [1, 0, 0]);
    let epochs: Vec<_> = agent.storage().ledger().epochs().collect();
    assert_eq!(epochs[0].epoch().0, 0, "saved after the start of epoch 0");
}

#[test]
fn row_05_sites_go_through_the_host_parser() {
    let parse = |host| Site::parse(host, Localhost::Refused);
    for bad in [
        "https://a.example",
        "a.example:8080",
        " a.example",
        "1.2.3.4",
        "127.1",
    ] {
        assert!(parse(bad).is_err(), "{bad}");
    }
    assert_eq!(
        parse("www.BÜCHER.example").unwrap().as_str(),
        "xn--bcher-kva.example"
    );
    assert_eq!(parse("a.github.io").unwrap().as_str(), "a.github.io");
}

#[test]
fn row_06_site_data_is_cleared_for_the_site_of_the_host() {
    let mut agent = agent();
    save(&mut agent, "news.example", 1, &ImpressionOptions::new(0));
    let Ok(()) = agent.clear_impressions_for_site("static.www.news.example");
    assert_eq!(
        histogram(&mut agent, "a.example", 2, &options(0.1)),
        [0, 0, 0]
    );
}

#[test]
fn row_07_localhost_is_a_syntax_error_unless_allowed() {
    for host in ["localhost", "dev.localhost"] {
        let error = measure(&mut agent(), host, 1, &options(1.0)).unwrap_err();
        assert_eq!(error.name(), "SyntaxError");
        let mut agent = agent_with(|config| config.localhost = Localhost::Allowed, || 0.5);
        assert_eq!(histogram(&mut agent, host, 1, &options(1.0)), [0, 0, 0]);
    }
}

#[test]
fn row_08_credit_that_overflows_is_refused_whether_or_not_anything_matches() {
    let huge = ConversionOptions {
        credit: vec![1e308, 1e308],
        ..options(0.1)
    };
    let mut agent = agent();
    let before = measure(&mut agent, "a.example", 1, &huge).unwrap_err();
    save(&mut agent, "news.example", 2, &ImpressionOptions::new(0));
    let after = measure(&mut agent, "a.example", 3, &huge).unwrap_err();
    assert_eq!(before, after);
    assert_eq!(
        after.to_string(),
        "RangeError: the sum of credit must be finite, got inf"
    );
}

#[test]
fn row_09_the_smallest_epsilon_costs_something() {
    let micro = |micro: u64| MicroEpsilon::new(micro).to_epsilon();
    let mut agent = agent_with(capacities(micro(3), 1.0, 1.0), || 0.5);
    save(&mut agent, "news.example", 1, &ImpressionOptions::new(0));
    let reports: Vec<u32> = (0..5)
        .map(|call| histogram(&mut agent, "a.example", 2 + call, &options(1e-310))[0])
        .collect();
    assert_eq!(reports, [1, 1, 1, 0, 0]);
}

#[test]
fn row_10_an_integer_is_an_integer() {
    assert!(parse_save_impression(b"histogram-index=1").is_ok());
    assert!(parse_save_impression(b"histogram-index=1.0").is_err());
}

#[test]
fn row_11_long_lifetimes_are_clamped() {
    let options_of = parse_save_impression(b"histogram-index=0, lifetime-days=5000000000").unwrap();
    let mut agent = agent();
    save(&mut agent, "news.example", 0, &options_of);
    let ask = options(0.1);
    assert_eq!(
        histogram(&mut agent, "a.example", 30 * DAY, &ask),
        [1, 0, 0]
    );
    assert_eq!(
        histogram(&mut agent, "a.example", 30 * DAY + 1, &ask),
        [0, 0, 0]
    );
}

#[test]
fn row_12_cleaning_up_removes_only_what_can_match_no_more() {
    let mut agent = agent();
    let one_day = ImpressionOptions {
        lifetime_days: 1,
        ..ImpressionOptions::new(0)
    };
    save(&mut agent, "news.example", 0, &one_day);
    let Ok(()) = agent.maintain(at(DAY));
    assert_eq!(
        histogram(&mut agent, "a.example", DAY, &options(0.1)),
        [1, 0, 0]
    );
    let Ok(()) = agent.maintain(at(DAY + 1));
    assert_eq!(agent.storage().impressions().len(), 0);
}

/// All epochs of a report are decided and paid for in one transaction. The epoch that cannot pay is
/// left out, and the other pays once.
#[test]
fn row_13_a_report_is_one_transaction() {
    let mut agent = agent();
    for (seconds, index) in [(0, 0), (8 * DAY, 1)] {
        save(
            &mut agent,
            "news.example",
            seconds,
            &ImpressionOptions::new(index),
        );
        let single = ConversionOptions {
            lookback_days: Some(1),
            ..options(if index == 0 { 2.0 } else { 0.5 })
        };
        let _ = histogram(&mut agent, "a.example", seconds + 1, &single);
    }
    let both = ConversionOptions {
        credit: vec![1.0, 1.0],
        ..options(0.5)
    };
    assert_eq!(
        histogram(&mut agent, "a.example", 8 * DAY + 2, &both),
        [0, 1, 0]
    );
}

#[test]
fn row_14_at_equal_priority_and_time_the_later_saved_comes_first() {
    let mut agent = agent();
    for index in [0, 2, 1] {
        save(
            &mut agent,
            "news.example",
            5,
            &ImpressionOptions::new(index),
        );
    }
    assert_eq!(
        histogram(&mut agent, "a.example", 6, &options(0.1)),
        [0, 1, 0]
    );
}

#[test]
fn row_15_forgetting_visits_removes_by_impression_site() {
    let mut agent = agent();
    let for_a = ImpressionOptions {
        conversion_sites: vec!["a.example".to_owned()],
        ..ImpressionOptions::new(0)
    };
    // The clock is ahead when the impression is saved. Clearing therefore closes only epochs before
    // the impression's own, and that does not remove it.
    save(&mut agent, "news.example", 30 * 86_400, &for_a);
    agent
        .clear_browsing_history(&["a.example".to_owned()], true, at(2))
        .unwrap();
    assert_eq!(agent.storage().impressions().len(), 1, "kept");
    agent
        .clear_browsing_history(&["news.example".to_owned()], true, at(3))
        .unwrap();
    assert_eq!(agent.storage().impressions().len(), 0);
}

#[test]
fn row_16_the_future_does_not_match_and_steps_back_refill_nothing() {
    let mut agent = agent();
    save(&mut agent, "news.example", 1000, &ImpressionOptions::new(0));
    assert_eq!(
        histogram(&mut agent, "a.example", 999, &options(0.1)),
        [0, 0, 0]
    );
    assert_eq!(
        histogram(&mut agent, "a.example", 2000, &options(1.0)),
        [1, 0, 0]
    );
    for seconds in [1000, 1500, 2000] {
        let (report, cause) = measure(&mut agent, "a.example", seconds, &options(1e-6)).unwrap();
        assert_eq!(report, [0, 0, 0]);
        assert_eq!(cause, Some(Cause::Filter(FilterKind::QuerierBudget)));
    }
}

/// The same calls succeed and fail, and their answers have the same shape. `no_bits.rs` tests the
/// time of answers, and the benchmark measures the work.
#[test]
fn row_17_a_page_cannot_tell_that_the_api_is_disabled() {
    let calls: [(&str, ConversionOptions); 5] = [
        ("a.example", options(0.5)),
        ("a.example", options(-1.0)),
        ("localhost", options(0.5)),
        (
            "a.example",
            ConversionOptions::new("https://unknown.example", 3),
        ),
        ("b.example", ConversionOptions::new(SERVICE, 1000)),
    ];
    let shapes = |enabled: bool| -> Vec<_> {
        let mut agent = agent();
        let Ok(()) = agent.set_enabled(enabled);
        save(&mut agent, "news.example", 1, &ImpressionOptions::new(0));
        let bad = ImpressionOptions::new(u32::MAX);
        let call = Call::new("news.example", at(1));
        let refused = agent.save_impression(&call, &bad).unwrap_err().to_string();
        // The gate, which needs no store, refuses the call with the same message.
        let told = agent
            .gate()
            .impression(&call, &bad)
            .unwrap_err()
            .to_string();
        assert_eq!(told, refused);
        let good = ImpressionOptions::new(0);
        assert!(agent.gate().impression(&call, &good).is_ok());
        let answers = calls.iter().map(|(site, options)| {
            let call = Call::new(site, at(2));
            let answer = agent.measure_conversion(&call, options);
            // The null report that a page gets when the store has failed has the same shape.
            let null = agent.gate().conversion(&call, options);
            let null = null.map(|call| agent.gate().null_report(&call.envelope()));
            let size = |report: &SealedReport| {
                let buckets = report.histogram.as_ref().unwrap().buckets().len();
                (report.bytes.len(), buckets)
            };
            let sizes = answer.map(|answer| size(&answer.report));
            let sizes = sizes.map_err(|error| error.to_string());
            let null = null.map(|null| size(&null));
            assert_eq!(sizes, null.map_err(|error| error.to_string()));
            sizes
        });
        let mut shapes: Vec<_> = answers.collect();
        shapes.push(Err(refused));
        shapes
    };
    assert_eq!(shapes(true), shapes(false));
}

#[test]
fn row_18_refusals_by_global_budget_and_quota_are_exercised() {
    let mut agent = agent_with(capacities(1.0, 9.0, 0.5), || 0.5);
    save(&mut agent, "news.example", 1, &ImpressionOptions::new(0));
    save(&mut agent, "blog.example", 2, &ImpressionOptions::new(1));
    let on = |site: &str, epsilon| ConversionOptions {
        impression_sites: vec![site.to_owned()],
        ..options(epsilon)
    };
    let news = on("news.example", 0.5);
    assert_eq!(histogram(&mut agent, "a.example", 3, &news), [1, 0, 0]);
    let (report, cause) = measure(&mut agent, "b.example", 4, &news).unwrap();
    assert_eq!(report, [0, 0, 0]);
    assert_eq!(cause, Some(Cause::Filter(FilterKind::ImpressionSiteQuota)));
    let blog = on("blog.example", 0.5);
    assert_eq!(histogram(&mut agent, "b.example", 5, &blog), [0, 1, 0]);
}

/// Each of five reports costs 2/(10/1.1). In doubles they cost 5 × 220,001 µε, which is more than
/// the budget. Exactly, they cost 5 × 220,000 µε, which is the budget.
#[test]
fn row_19_the_draft_counts_in_doubles_and_big_bird_exactly() {
    let last = |profile: Profile| {
        let change = move |config: &mut Config| {
            let base = Config::new(profile);
            let builder = base
                .policy
                .to_builder()
                .querier_budget(1.1)
                .conversion_site_quota(9.0);
            config.policy = builder.build().unwrap();
        };
        let mut agent = agent_with(change, || 0.5);
        let Ok(seen) = agent.begin_user_action(at(1));
        let call = Call::new("news.example", at(1)).by(seen);
        let impression = ImpressionOptions::new(0);
        agent.save_impression(&call, &impression).unwrap();
        let options = ConversionOptions {
            value: 1,
            max_value: 5,
            ..options(1.1)
        };
        (0..5)
            .map(|call| histogram(&mut agent, "a.example", 2 + call, &options)[0])
            .last()
            .unwrap()
    };
    assert_eq!(last(Profile::BigBird), 1);
    assert_eq!(last(Profile::W3cDraft), 0);
}

#[test]
fn row_20_an_activation_is_not_used_up() {
    let mut tab = Activation::new(5_000);
    let site = |host| Site::parse(host, Localhost::Refused).unwrap();
    tab.activate(at(10));
    assert!(tab.check(at(11)).is_ok());
    tab.navigate(Some(&site("a.example")), Some(&site("b.example")));
    assert!(tab.check(at(12)).is_ok());
}

#[test]
fn row_21_clearing_with_a_clock_that_is_behind_gives_nothing_back() {
    let mut agent = agent();
    save(&mut agent, "news.example", 0, &ImpressionOptions::new(0));
    let _ = histogram(&mut agent, "a.example", 1, &options(0.1));
    // The clock is three weeks ahead for a while.
    let ahead = 21 * DAY;
    save(
        &mut agent,
        "news.example",
        ahead,
        &ImpressionOptions::new(1),
    );
    assert_eq!(
        histogram(&mut agent, "a.example", ahead, &options(1.0)),
        [0, 1, 0]
    );
    agent.clear_browsing_history(&[], true, at(100)).unwrap();
    save(
        &mut agent,
        "news.example",
        ahead + 1,
        &ImpressionOptions::new(2),
    );
    assert_eq!(
        histogram(&mut agent, "a.example", ahead + 2, &options(0.1)),
        [0, 0, 0]
    );
}

#[test]
fn row_22_a_clock_that_starts_at_zero_counts_as_activated() {
    assert!(Activation::new(5_000).check(at(5)).is_ok());
    assert!(Activation::new(5_000).check(at(6)).is_err());
}

#[test]
fn row_23_empty_labels_are_no_site() {
    for host in ["a..example.com", ".example.com", "example.com..", "."] {
        assert!(Site::parse(host, Localhost::Refused).is_err(), "{host}");
    }
}

#[test]
fn row_24_hosts_have_a_longest_length() {
    let host = format!("{}.example", "a".repeat(300));
    let options = ImpressionOptions {
        conversion_sites: vec![host],
        ..ImpressionOptions::new(0)
    };
    let refused = agent().save_impression(&Call::new("news.example", at(1)), &options);
    let Err(AgentError::Api(error)) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(error.name(), "SyntaxError");
}

/// A site whose data was cleared asks for a report that is null. Under the draft, the other
/// filters still pay for it. Under `big-bird`, no filter does.
#[test]
fn row_25_a_cleared_site_still_charges_the_others_under_the_draft() {
    for (profile, spent) in [(Profile::W3cDraft, 500_000), (Profile::BigBird, 0)] {
        let change = move |config: &mut Config| config.policy = profile.policy();
        let mut agent = agent_with(change, || 0.5);
        let Ok(seen) = agent.begin_user_action(at(1));
        let call = Call::new("news.example", at(1)).by(seen);
        let outside = ImpressionOptions::new(9);
        agent.save_impression(&call, &outside).unwrap();
        let cleared = ["a.example".to_owned()];
        agent
            .clear_browsing_history(&cleared, false, at(2))
            .unwrap();
        let one_day = ConversionOptions {
            lookback_days: Some(1),
            ..options(0.5)
        };
        assert_eq!(histogram(&mut agent, "a.example", 3, &one_day), [0, 0, 0]);
        let views = agent.storage().ledger().epochs();
        let filters = views.flat_map(|view| view.filters());
        let global = filters.filter(|(filter, _)| *filter == Filter::GlobalBudget);
        let consumed: u64 = global.map(|(_, consumed)| consumed.get()).sum();
        assert_eq!(consumed, spent, "{profile}");
    }
}

/// The draft chooses the start of epochs with the first conversion. Recorded scenarios depend on
/// that start, so it can be configured.
#[test]
fn row_26_epochs_begin_with_the_first_use_unless_told_otherwise() {
    let hour = 3_600;
    for (start, begins) in [
        (EpochStart::FirstUse, -84 * hour),
        (EpochStart::At(at(-5 * hour)), -5 * hour),
    ] {
        let mut agent = agent_with(move |config| config.epoch_start = start, || 0.5);
        save(&mut agent, "news.example", 1, &ImpressionOptions::new(0));
        let Ok(state) = agent.storage_mut().begin().and_then(|tx| tx.state());
        assert_eq!(state.timeline.eras()[0].begins, at(begins));
        assert_eq!(agent.storage().impressions().len(), 1);
        assert_eq!(
            histogram(&mut agent, "a.example", 2, &options(0.1)),
            [1, 0, 0]
        );
    }
}

/// The sum that all filters of a kind have consumed.
fn consumed(agent: &MemoryAgent, kind: FilterKind) -> u64 {
    let views = agent.storage().ledger().epochs();
    let filters = views.flat_map(|view| view.filters());
    let of_kind = filters.filter(|(filter, _)| filter.kind() == kind);
    of_kind.map(|(_, consumed)| consumed.get()).sum()
}

/// One site asks for eight reports, which are all null. Under the draft they drain the global
/// budget, but cost the site nothing. Under `big-bird` they cost nothing at all.
#[test]
fn row_27_what_costs_nothing_takes_nothing() {
    for (profile, taken) in [(Profile::W3cDraft, 8_000_000), (Profile::BigBird, 0)] {
        let change = move |config: &mut Config| config.policy = profile.policy();
        let mut agent = agent_with(change, || 0.5);
        for (site, seconds) in [("news.example", 1), ("blog.example", 2)] {
            let Ok(seen) = agent.begin_user_action(at(seconds));
            let call = Call::new(site, at(seconds)).by(seen);
            agent
                .save_impression(&call, &ImpressionOptions::new(9))
                .unwrap();
        }
        for number in 0..8 {
            let site = if number % 2 == 0 {
                "news.example"
            } else {
                "blog.example"
            };
            let one_day = ConversionOptions {
                lookback_days: Some(1),
                impression_sites: vec![site.to_owned()],
                ..options(1.0)
            };
            let Ok(action) = agent.begin_user_action(at(3 + number));
            let call = Call::new("stranger.example", at(3 + number)).by(action);
            let answer = agent.measure_conversion(&call, &one_day).unwrap();
            assert_eq!(released(answer), [0, 0, 0]);
        }
        assert_eq!(consumed(&agent, FilterKind::QuerierBudget), 0, "{profile}");
        assert_eq!(
            consumed(&agent, FilterKind::GlobalBudget),
            taken,
            "{profile}"
        );
        assert_eq!(
            consumed(&agent, FilterKind::ImpressionSiteQuota),
            taken,
            "{profile}"
        );
    }
}

#[test]
fn row_29_a_flood_makes_nobody_wait_and_changes_no_histogram() {
    let mut agent = agent();
    let (flood, read) = (1_500, 1_000);
    for number in 0..flood {
        let site = format!("news-{number}.example");
        save(&mut agent, &site, 1, &ImpressionOptions::new(number % 2));
    }
    let options = ConversionOptions {
        credit: vec![1.0, 1.0],
        value: 2,
        max_value: 2,
        ..ConversionOptions::new(SERVICE, 2)
    };
    let call = Call::new("shop.example", at(2));
    let answer = agent.measure_conversion(&call, &options).unwrap();
    let matched: usize = answer.decision.epochs().map(|epoch| epoch.matched).sum();
    assert_eq!(matched, read);
    // The last two impressions get the credit, as if all had been read.
    assert_eq!(released(answer), [1, 1]);
    let budgets = agent.filter_balances().unwrap();
    let paid = budgets
        .iter()
        .filter(|budget| budget.filter.kind() == FilterKind::ImpressionSiteQuota);
    assert_eq!(paid.count(), read);
}

/// A page asks for an epsilon of 10.1 µε, and the report carries 11 µε. The conversion is worth 99
/// of 100, so the loss is 10.89 µε and `big-bird` charges 11 µε. The draft computes with 10.1 µε
/// and charges 10 µε.
#[test]
fn row_28_what_is_charged_follows_from_what_the_report_carries() {
    for (profile, charged) in [(Profile::W3cDraft, 10), (Profile::BigBird, 11)] {
        let change = move |config: &mut Config| config.policy = profile.policy();
        let mut agent = agent_with(change, || 0.5);
        let Ok(seen) = agent.begin_user_action(at(1));
        let call = Call::new("news.example", at(1)).by(seen);
        agent
            .save_impression(&call, &ImpressionOptions::new(0))
            .unwrap();
        let Ok(bought) = agent.begin_user_action(at(2));
        let call = Call::new("a.example", at(2)).by(bought);
        let tiny = ConversionOptions {
            value: 99,
            max_value: 100,
            lookback_days: Some(30),
            ..options(10.1e-6)
        };
        let _ = agent.measure_conversion(&call, &tiny).unwrap();
        assert_eq!(
            consumed(&agent, FilterKind::QuerierBudget),
            charged,
            "{profile}"
        );
    }
}
