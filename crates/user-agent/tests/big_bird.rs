//! The parts of `big-bird` that the draft does not have: shared conversions, user actions,
//! explanations.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::rc::Rc;

use bigbird::attribution::{MatchedImpression, SiteSize};
use bigbird::{
    AdmissionState, AttributionQuery, Cause, Check, EpochIndex, EventStore, Fate, Filter,
    FilterKind, LedgerView, MicroEpsilon, Profile, Relevant, SiteId, Timestamp, UserAction,
};
use bigbird_user_agent::protocol::{AgentRequest, Player};
use bigbird_user_agent::{
    Action, AgentError, Call, ChangeSet, ConversionOptions, DeviceState, Explanation,
    FilterBalance, ForgottenEpochs, HistoryKind, ImpressionOptions, MemoryStore, MemoryTransaction,
    QuerierRole, RowPlace, RowSet, ShareRefusal, SharedConversion, Site, Storage, StoredObject,
    Transaction, UserAgent, View, ViewRow,
};
use common::{FixedRandomness, MemoryAgent, SERVICE, agent, at, measure, released};

fn save(agent: &mut MemoryAgent, site: &str, by: Option<&str>, index: u32, seconds: i64) {
    let Ok(action) = agent.begin_user_action(at(seconds));
    let call = Call {
        intermediary: by,
        ..Call::new(site, at(seconds)).by(action)
    };
    let options = ImpressionOptions::new(index);
    agent.save_impression(&call, &options).unwrap();
}

/// A conversion with a value of 4, of at most 8, that looks back a month. The value is divided
/// evenly over the last two impressions.
fn options(epsilon: f64) -> ConversionOptions {
    ConversionOptions {
        epsilon,
        value: 4,
        max_value: 8,
        credit: vec![1.0, 1.0],
        ..ConversionOptions::new(SERVICE, 3)
    }
}

fn own_ads(adtech: &str, epsilon: f64) -> ConversionOptions {
    ConversionOptions {
        impression_callers: vec![adtech.to_owned()],
        ..options(epsilon)
    }
}

fn share(
    agent: &mut MemoryAgent,
    call: &Call<'_>,
    options: &ConversionOptions,
    participants: &[&str],
) -> SharedConversion {
    let created = agent.create_shared_conversion(call, options, participants);
    created.unwrap().shared
}

fn take(
    agent: &mut MemoryAgent,
    conversion: SharedConversion,
    adtech: &str,
    seconds: i64,
) -> Vec<u32> {
    let call = Call {
        intermediary: Some(adtech),
        ..Call::new("shop.example", at(seconds))
    };
    let answer = agent.take_share(conversion, &call, &own_ads(adtech, 0.5));
    released(answer.unwrap())
}

fn consumed(agent: &mut MemoryAgent, filter: impl Fn(SiteId) -> Filter, site: &str) -> u64 {
    let Ok(tx) = agent.storage_mut().begin();
    let site = Site::from_stored(site);
    let Ok(id) = tx.site_id(&site);
    let filter = filter(id.unwrap());
    let views = agent.storage().ledger().epochs();
    let filters = views.flat_map(|view| view.filters());
    let of = filters.filter(|(other, _)| *other == filter);
    of.map(|(_, consumed)| consumed.get()).sum()
}

/// The paper's example of two intermediaries: each gets the credit of its own ads, each pays from
/// its own budget, and the shared filters pay once.
#[test]
fn intermediaries_share_one_attribution() {
    let mut agent = agent(Profile::BigBird);
    save(&mut agent, "news.example", Some("adtech.example"), 0, 1);
    save(&mut agent, "blog.example", Some("adtech2.example"), 1, 2);
    let call = Call::new("shop.example", at(3));
    let both = ["adtech.example", "adtech2.example"];
    let conversion = share(&mut agent, &call, &options(0.5), &both);
    assert_eq!(take(&mut agent, conversion, "adtech.example", 4), [2, 0, 0]);
    assert_eq!(
        take(&mut agent, conversion, "adtech2.example", 5),
        [0, 2, 0]
    );
    assert_eq!(
        take(&mut agent, conversion, "adtech.example", 6),
        [0, 0, 0],
        "already taken"
    );
    let loss = 250_000;
    for adtech in both {
        assert_eq!(consumed(&mut agent, Filter::QuerierBudget, adtech), loss);
    }
    assert_eq!(
        consumed(&mut agent, |_| Filter::GlobalBudget, "shop.example"),
        loss
    );
    let of_shop = consumed(&mut agent, Filter::ConversionSiteQuota, "shop.example");
    assert_eq!(of_shop, loss);
    assert_eq!(
        consumed(&mut agent, Filter::QuerierBudget, "shop.example"),
        0
    );
}

#[test]
fn shares_are_for_participants_of_an_existing_conversion() {
    let mut agent = agent(Profile::BigBird);
    save(&mut agent, "news.example", Some("adtech.example"), 0, 1);
    let call = Call::new("shop.example", at(3));
    let only = ["adtech.example"];
    let conversion = share(&mut agent, &call, &options(0.5), &only);
    assert_eq!(take(&mut agent, conversion, "other.example", 4), [0, 0, 0]);
    let Ok(()) = agent.clear_impressions_for_site("cdn.adtech.example");
    assert_eq!(
        take(&mut agent, conversion, "adtech.example", 5),
        [0, 0, 0],
        "the participant was forgotten"
    );

    // While the API is disabled, a new shared conversion looks the same, but its shares are null.
    let Ok(()) = agent.set_enabled(false);
    let none = share(&mut agent, &call, &options(0.5), &only);
    assert_ne!(none, conversion);
    assert_eq!(take(&mut agent, none, "adtech.example", 6), [0, 0, 0]);
}

#[test]
fn the_draft_has_no_intermediary_queriers() {
    let mut agent = agent(Profile::W3cDraft);
    let call = Call::new("shop.example", at(3));
    let refused = agent.create_shared_conversion(&call, &options(0.5), &["adtech.example"]);
    let Err(AgentError::Api(error)) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(
        error.to_string(),
        "RangeError: querier must be the conversion site under this policy, got the intermediary"
    );
}

/// Ids of user actions are never used again, not even after a restart or in another process.
#[test]
fn user_actions_are_numbered_anew_after_a_restart() {
    let mut agent = agent(Profile::BigBird);
    let mut seen = BTreeSet::new();
    for _ in 0..3_000 {
        let Ok(action) = agent.begin_user_action(at(1));
        assert!(seen.insert(action));
    }
    let config = agent.config().clone();
    let mut restarted =
        UserAgent::new(config, agent.into_storage(), FixedRandomness, at(1)).unwrap();
    for _ in 0..10 {
        let Ok(action) = restarted.begin_user_action(at(1));
        assert!(seen.insert(action), "{action:?} was used again");
    }
}

#[test]
fn a_user_action_ends_with_its_epoch() {
    let mut agent = agent(Profile::BigBird);
    let Ok(action) = agent.begin_user_action(at(0));
    assert_eq!(agent.continue_user_action(action, at(60)), Ok(action));
    let later = at(8 * 86_400);
    let Ok(next) = agent.continue_user_action(action, later);
    assert_ne!(next, action);
    // What an ended action saves counts as saved by an unknown action. A conversion by an unknown
    // action does not match it. A conversion by another action does.
    let late = Call::new("news.example", later).by(action);
    agent
        .save_impression(&late, &ImpressionOptions::new(0))
        .unwrap();
    let unknown = Call::new("shop.example", later);
    let answer = agent.measure_conversion(&unknown, &options(0.1));
    assert_eq!(released(answer.unwrap()), [0, 0, 0]);
    assert_eq!(measure(&mut agent, &unknown, &options(0.1)), [4, 0, 0]);
}

/// If an embedder forgets to pass the user action, all such calls share one domain cap.
#[test]
fn calls_of_no_known_action_share_one_cap() {
    let mut agent = agent(Profile::BigBird);
    for site in 0..50 {
        let site = format!("news-{site}.example");
        let call = Call::new(&site, at(1));
        agent
            .save_impression(&call, &ImpressionOptions::new(0))
            .unwrap();
    }
    assert_eq!(agent.storage().impressions().len(), 2);
}

/// The overlap of two shares follows from what they name. It makes no difference whether anything
/// is stored for a named site.
#[test]
fn whether_shares_overlap_does_not_depend_on_what_is_stored() {
    for stored in [false, true] {
        let mut agent = agent(Profile::BigBird);
        save(&mut agent, "news.example", Some("adtech.example"), 0, 1);
        save(&mut agent, "blog.example", Some("adtech2.example"), 1, 2);
        if stored {
            save(&mut agent, "x.example", None, 2, 2);
        }
        let both = ["adtech.example", "adtech2.example"];
        let call = Call::new("shop.example", at(3));
        let everyones = ConversionOptions {
            impression_callers: both.map(ToOwned::to_owned).to_vec(),
            ..options(0.5)
        };
        let conversion = share(&mut agent, &call, &everyones, &both);
        let mut take = |adtech: &str, sites: [&str; 2]| {
            let call = Call {
                intermediary: Some(adtech),
                ..Call::new("shop.example", at(4))
            };
            let options = ConversionOptions {
                impression_sites: sites.map(ToOwned::to_owned).to_vec(),
                ..options(0.5)
            };
            released(agent.take_share(conversion, &call, &options).unwrap())
        };
        let first = take("adtech.example", ["news.example", "x.example"]);
        let second = take("adtech2.example", ["blog.example", "y.example"]);
        assert_eq!(
            (first, second),
            (vec![2, 0, 0], vec![0, 2, 0]),
            "stored: {stored}"
        );
    }
}

/// No conversion can be measured any more on a site whose data the user cleared: not for the site,
/// not for an intermediary, and not by a share that was paid for before. This holds whatever the
/// clock says later.
#[test]
fn a_cleared_site_is_closed_to_everyone() {
    for profile in [Profile::BigBird, Profile::GlobalOnly] {
        let mut agent = agent(profile);
        save(&mut agent, "news.example", Some("adtech.example"), 0, 1);
        let call = Call::new("shop.example", at(3));
        let adtech = ["adtech.example"];
        let conversion = share(&mut agent, &call, &options(0.1), &adtech);
        let cleared = ["shop.example".to_owned()];
        // The clock is more than a year ahead.
        let ahead = at(400 * 86_400);
        agent
            .clear_browsing_history(&cleared, false, ahead)
            .unwrap();
        let intermediary = Call {
            intermediary: Some("adtech.example"),
            querier: QuerierRole::Intermediary,
            ..Call::new("shop.example", at(5))
        };
        for call in [Call::new("shop.example", at(4)), intermediary] {
            assert_eq!(measure(&mut agent, &call, &options(0.1)), [0, 0, 0]);
        }
        let share = agent.take_share(conversion, &intermediary, &options(0.1));
        assert_eq!(released(share.unwrap()), [0, 0, 0]);
        // Another site is not closed.
        let other = Call::new("other.example", at(6));
        assert_eq!(measure(&mut agent, &other, &options(0.1)), [4, 0, 0]);
    }
}

/// Forgetting visits leaves no site name behind, not even of a site where nothing was found.
#[test]
fn forgetting_visits_leaves_no_names() {
    let mut agent = agent(Profile::BigBird);
    let Ok(action) = agent.begin_user_action(at(1));
    let call = Call::new("secret.example", at(1)).by(action);
    let _ = agent.measure_conversion(&call, &options(0.1)).unwrap();
    assert_eq!(agent.storage().site_count(), 1);
    agent.clear_browsing_history(&[], true, at(2)).unwrap();
    assert_eq!(agent.storage().site_count(), 0);
}

/// A clock that is wrong once does not end the API for good.
#[test]
fn cleaning_up_at_the_wrong_time_is_not_for_good() {
    let mut agent = agent(Profile::BigBird);
    save(&mut agent, "news.example", None, 0, 1);
    let Ok(action) = agent.begin_user_action(at(2));
    let call = Call::new("shop.example", at(2)).by(action);
    let _ = agent.measure_conversion(&call, &options(0.1)).unwrap();
    let Ok(()) = agent.maintain(at(80 * 365 * 86_400));
    let next_month = 31 * 86_400;
    save(&mut agent, "news.example", None, 0, next_month);
    let call = Call::new("shop.example", at(next_month + 1));
    assert_eq!(measure(&mut agent, &call, &options(0.1)), [4, 0, 0]);
}

/// A clock that is far ahead closes the API until about that time. The user can see this and
/// restart the epochs. The current epoch then stays closed, and no budget comes back.
#[test]
fn a_clock_that_was_far_ahead_is_not_for_good() {
    let week = 7 * 86_400;
    let (now, ahead) = (10 * week, 3_000 * week);
    let mut agent = agent(Profile::BigBird);
    save(&mut agent, "news.example", None, 0, now);
    let call = Call::new("shop.example", at(now + 1));
    assert_eq!(measure(&mut agent, &call, &options(0.9)), [4, 0, 0]);
    let spent = agent.filter_balances().unwrap();
    let wrong = Call::new("shop.example", at(ahead));
    let _ = measure(&mut agent, &wrong, &options(0.1));
    let Ok(()) = agent.maintain(at(ahead));

    let again = |agent: &mut MemoryAgent, seconds: i64| {
        save(agent, "news.example", None, 0, seconds);
        let call = Call::new("shop.example", at(seconds + 1));
        measure(agent, &call, &options(0.9))
    };
    assert_eq!(again(&mut agent, now + 10), [0, 0, 0]);
    let Ok(status) = agent.status(at(now + 20));
    let until = status.closed_until.unwrap();
    assert!(until > at(ahead - 60 * 86_400), "{until:?}");
    assert_eq!(again(&mut agent, now + 20 * week), [0, 0, 0]);

    let now = now + 20 * week + 100;
    let Ok(()) = agent.restart_epochs(at(now));
    let Ok(status) = agent.status(at(now));
    let until = status.closed_until.unwrap();
    assert!(until > at(now) && until <= at(now + week), "{until:?}");
    assert_eq!(again(&mut agent, now + 1), [0, 0, 0]);
    let open = until.0 / 1000;
    assert_eq!(again(&mut agent, open), [4, 0, 0]);
    // The first open epoch pays until it is depleted, like any other. No index was used again.
    let paid = (0..10).map(|number| again(&mut agent, open + 10 * number));
    assert_eq!(paid.last().unwrap(), [0, 0, 0]);
    let indices = |budgets: &[FilterBalance]| budgets.iter().map(|it| it.epoch).max();
    let budgets = agent.filter_balances().unwrap();
    assert!(indices(&budgets) > indices(&spent).map(|last| last + 2_000));
    // Restarting the epochs again and again does not open anything either.
    for _ in 0..5 {
        let Ok(()) = agent.restart_epochs(at(open + 20));
        assert_eq!(again(&mut agent, open + 30), [0, 0, 0]);
    }
    let Ok(status) = agent.status(at(open + 20));
    assert_eq!(status.closed_until, Some(at(open + week)));
}

/// Upkeep removes what no request can reach, even if nothing was ever measured. Admissions,
/// closings and the names of sites show where the user has been.
#[test]
fn what_nobody_can_reach_is_forgotten() {
    let day = 86_400;
    let mut agent = agent(Profile::BigBird);
    for number in 0..100 {
        let site = format!("news-{number}.example");
        save(&mut agent, &site, Some("ads.example"), 0, number * day / 10);
    }
    let closed = ["shop.example".to_owned()];
    agent
        .clear_browsing_history(&closed, false, at(10 * day))
        .unwrap();
    assert!(agent.storage().site_count() > 100);
    let Ok(()) = agent.maintain(at(11 * day));
    assert!(
        agent.storage().site_count() > 100,
        "requests can still reach them"
    );
    // Two years pass without a conversion.
    for days in (11..730).step_by(30) {
        let Ok(()) = agent.maintain(at(days * day));
    }
    assert_eq!(agent.storage().site_count(), 0);
    assert_eq!(agent.storage().impressions().len(), 0);
    let Ok(tx) = agent.storage_mut().begin();
    for rows in [RowSet::Admissions, RowSet::Closings, RowSet::Names] {
        let Ok(()) = tx.visit(rows, &mut |row| panic!("{row:?}"));
    }
    // Epochs after the site's closing are still open: a clock that is wrong while nothing is
    // measured does not end the API. Earlier epochs are closed: upkeep forgot the closing only
    // after it had closed the epochs in which the closing applied.
    for (days, expected) in [(20, [4, 0, 0]), (9, [0, 0, 0])] {
        save(&mut agent, "news.example", None, 0, days * day);
        let call = Call::new("shop.example", at(days * day + 1));
        assert_eq!(measure(&mut agent, &call, &options(0.1)), expected);
    }
}

/// Every call that measures makes the same writes, whether it is charged or null, or the API is
/// disabled.
#[test]
fn every_call_makes_one_write_of_the_same_form() {
    type CountingAgent = UserAgent<CountingStore, FixedRandomness>;
    let mut agent = agent(Profile::BigBird);
    save(&mut agent, "news.example", None, 0, 1);
    let config = agent.config().clone();
    let counting = CountingStore {
        memory: agent.into_storage(),
        writes: Rc::default(),
    };
    let writes = Rc::clone(&counting.writes);
    let mut agent = UserAgent::new(config, counting, FixedRandomness, at(1)).unwrap();
    let count = |agent: &mut CountingAgent,
                 what: &str,
                 measure: &mut dyn FnMut(&mut CountingAgent, &Call<'_>)| {
        let Ok(action) = agent.begin_user_action(at(2));
        let call = Call {
            intermediary: Some("ads.example"),
            ..Call::new("shop.example", at(2)).by(action)
        };
        writes.take();
        measure(agent, &call);
        assert_eq!(writes.take(), ["apply", "commit"], "{what}");
    };
    let mut shared = SharedConversion(7);
    let mut null_histograms = 0;
    for state in ["charged", "disabled", "null"] {
        let Ok(()) = agent.set_enabled(state != "disabled");
        if state == "null" {
            let Ok(()) = agent.clear_impressions_for_site("news.example");
        }
        let about = |call: &str| format!("{call}, {state}");
        count(&mut agent, &about("a conversion"), &mut |agent, call| {
            let answer = agent.measure_conversion(call, &options(0.1)).unwrap();
            null_histograms += u32::from(released(answer) == [0, 0, 0]);
        });
        count(&mut agent, &about("a creation"), &mut |agent, call| {
            let with = ["ads.example"];
            let answer = agent.create_shared_conversion(call, &options(0.1), &with);
            shared = answer.unwrap().shared;
        });
        for what in ["a share", "a share that was taken before"] {
            count(&mut agent, &about(what), &mut |agent, call| {
                let answer = agent.take_share(shared, call, &options(0.1)).unwrap();
                null_histograms += u32::from(released(answer) == [0, 0, 0]);
            });
        }
    }
    assert_eq!(
        null_histograms, 7,
        "only one conversion and one share count"
    );
}

fn explain(agent: &mut MemoryAgent, site: &str, seconds: i64, epsilon: f64) -> Explanation {
    let Ok(action) = agent.begin_user_action(at(seconds));
    let call = Call::new(site, at(seconds)).by(action);
    agent.explain(&call, &options(epsilon)).unwrap()
}

#[test]
fn an_explanation_says_what_was_short_and_what_would_have_fitted() {
    let mut agent = agent(Profile::BigBird);
    save(&mut agent, "news.example", None, 1, 1);
    let Ok(action) = agent.begin_user_action(at(2));
    let call = Call::new("shop.example", at(2)).by(action);
    // The value is half of its maximum, so 0.7 of 1 is spent.
    let _ = agent.measure_conversion(&call, &options(1.4)).unwrap();
    let before = consumed(&mut agent, |_| Filter::GlobalBudget, "shop.example");
    let explanation = explain(&mut agent, "shop.example", 3, 1.0);
    assert_eq!(
        consumed(&mut agent, |_| Filter::GlobalBudget, "shop.example"),
        before
    );
    assert!(explanation.report.unwrap().is_null());
    assert_eq!(
        explanation.cause,
        Some(Cause::Filter(FilterKind::QuerierBudget))
    );
    let epoch = explanation
        .epochs
        .iter()
        .find(|epoch| epoch.matched > 0)
        .unwrap();
    assert!(matches!(epoch.fate, Fate::Dropped(_)));
    let short: Vec<String> = epoch
        .filters
        .iter()
        .filter(|filter| !filter.check.fits())
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        short,
        [
            "querier budget of shop.example: 0.7 of 1 consumed, 0.5 asked for, short by 0.2",
            "conversion-site quota of shop.example: 0.7 of 1 consumed, 0.5 asked for, short by 0.2",
        ]
    );
    let largest = epoch.largest_epsilon.unwrap();
    assert_eq!(largest, MicroEpsilon::new(600_000));
    // That epsilon fits, to the last microepsilon. The next one that costs more does not.
    let fits = explain(&mut agent, "shop.example", 3, largest.to_epsilon());
    assert_eq!(fits.report.unwrap().buckets(), [0, 4, 0]);
    let next = MicroEpsilon::new(largest.get() + 2).to_epsilon();
    assert!(
        explain(&mut agent, "shop.example", 3, next)
            .report
            .unwrap()
            .is_null()
    );
}

#[test]
fn an_explanation_while_disabled_says_so() {
    let mut agent = agent(Profile::BigBird);
    let Ok(()) = agent.set_enabled(false);
    let explanation = explain(&mut agent, "shop.example", 3, 1.0);
    assert!(!explanation.enabled && explanation.report.unwrap().is_null());
}

fn state(agent: &mut MemoryAgent) -> DeviceState {
    let Ok(state) = agent.storage_mut().begin().and_then(|tx| tx.state());
    state
}

/// The time at which epochs began.
fn start(agent: &mut MemoryAgent) -> Option<Timestamp> {
    let timeline = state(agent).timeline;
    timeline.eras().first().map(|era| era.begins)
}

/// An explanation changes nothing: not budgets, not names, not the start of epochs. In `w3c-draft`
/// this is also true of a site whose data the user cleared, so that its budgets count as spent.
#[test]
fn an_explanation_changes_nothing() {
    for profile in [Profile::BigBird, Profile::W3cDraft] {
        let mut agent = agent(profile);
        let untouched = state(&mut agent);
        let _ = explain(&mut agent, "shop.example", 1, 0.5);
        assert_eq!(state(&mut agent).timeline, untouched.timeline);
        assert_eq!(agent.storage().site_count(), 0);

        save(&mut agent, "news.example", None, 0, 2);
        let closed = ["shop.example".to_owned()];
        agent.clear_browsing_history(&closed, false, at(3)).unwrap();
        let (before, names) = (state(&mut agent), agent.storage().site_count());
        let explanation = explain(&mut agent, "shop.example", 4, 0.5);
        assert_eq!(explanation.closed, Some(Site::from_stored("shop.example")));
        assert!(explanation.report.unwrap().is_null());
        if profile == Profile::W3cDraft {
            // The explanation treats the budget as spent, but nothing was written.
            assert_eq!(
                explanation.cause,
                Some(Cause::Filter(FilterKind::QuerierBudget))
            );
        }
        let _ = explain(&mut agent, "never-seen.example", 4, 0.5);
        let after = DeviceState {
            next_user_action: before.next_user_action,
            ..state(&mut agent)
        };
        assert_eq!(after, before);
        assert_eq!(agent.storage().site_count(), names);
        let Ok(budgets) = agent.filter_balances();
        assert_eq!(budgets, [], "{profile}");
    }
}

/// Explaining a request that does not name a user action changes nothing either. Beginning an
/// action would store something, so the request is explained as if a new action had caused it.
#[test]
fn explaining_a_request_begins_no_user_action() {
    let mut agent = agent(Profile::BigBird);
    save(&mut agent, "news.example", None, 0, 1);
    let before = state(&mut agent);
    let request: AgentRequest = serde_json::from_value(serde_json::json!({
        "event": "measureConversion", "site": "shop.example",
        "options": {"aggregationService": SERVICE, "histogramSize": 3},
    }))
    .unwrap();
    let mut player = Player::new(agent, None);
    let explanation = player.explain(&request, at(2)).unwrap().unwrap();
    assert_eq!(explanation.report.unwrap().buckets(), [1, 0, 0]);
    assert_eq!(state(&mut player.agent), before);
}

/// A page whose call failed gets a null report, or a handle without a shared conversion, whose
/// shares are null.
#[test]
fn a_handle_of_nothing_gives_null_reports() {
    let mut agent = agent(Profile::BigBird);
    let call = Call::new("shop.example", at(2));
    let conversion = agent.gate().conversion(&call, &options(0.5)).unwrap();
    let null = agent.gate().null_report(&conversion.envelope());
    assert_eq!(null.histogram.unwrap().buckets(), [0, 0, 0]);
    let shared = SharedConversion(7);
    assert_eq!(take(&mut agent, shared, "adtech.example", 3), [0, 0, 0]);
}

/// An explanation names a site that the user cleared only if that is what hides an epoch.
#[test]
fn only_a_closed_site_that_hides_something_is_named() {
    let mut agent = agent(Profile::BigBird);
    save(&mut agent, "news.example", None, 0, 1);
    let closed = ["shop.example".to_owned()];
    agent.clear_browsing_history(&closed, false, at(2)).unwrap();
    let shop = Some(Site::from_stored("shop.example"));
    assert_eq!(explain(&mut agent, "shop.example", 3, 0.1).closed, shop);
    // Two months later, the lookback begins after the cleared epochs.
    let later = 60 * 86_400;
    save(&mut agent, "news.example", None, 0, later);
    let explanation = explain(&mut agent, "shop.example", later + 1, 0.1);
    assert_eq!(
        (explanation.closed, explanation.readable_from),
        (None, None)
    );
    assert_eq!(explanation.report.unwrap().buckets(), [4, 0, 0]);
    // Clearing all history hides every epoch that clearing the site hides, so it is the reason.
    agent
        .clear_browsing_history(&[], true, at(later + 2))
        .unwrap();
    agent
        .clear_browsing_history(&closed, false, at(later + 2))
        .unwrap();
    assert_eq!(
        explain(&mut agent, "shop.example", later + 3, 0.1).closed,
        None
    );
}

/// Shared conversions and their shares are explained in the same words as any other conversion.
#[test]
fn shared_conversions_are_explained() {
    let mut agent = agent(Profile::BigBird);
    save(&mut agent, "news.example", Some("adtech.example"), 0, 1);
    let Ok(bought) = agent.begin_user_action(at(2));
    let call = Call::new("shop.example", at(2)).by(bought);
    let only = ["adtech.example"];
    let created = agent
        .explain_shared_conversion(&call, &options(0.5), &only)
        .unwrap();
    assert_eq!((created.report, created.cause), (None, None));
    let asked: Vec<String> = created
        .epochs
        .iter()
        .flat_map(|it| &it.filters)
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        asked,
        [
            "global budget: 0 of 8 consumed, 0.25 asked for",
            "impression-site quota of news.example: 0 of 2 consumed, 0.25 asked for",
            "conversion-site quota of shop.example: 0 of 1 consumed, 0.25 asked for",
        ]
    );
    let share = |agent: &mut MemoryAgent, handle, adtech: &'static str| {
        let call = Call {
            intermediary: Some(adtech),
            ..Call::new("shop.example", at(3)).by(bought)
        };
        agent
            .explain_share(handle, &call, &own_ads(adtech, 0.5))
            .unwrap()
    };
    let nothing = share(&mut agent, SharedConversion(7), "adtech.example");
    assert_eq!(nothing.share_refusal, Some(ShareRefusal::Unknown));
    let handle = share_of(&mut agent, &call, &only);
    let other = share(&mut agent, handle, "other.example");
    assert_eq!(other.share_refusal, Some(ShareRefusal::Unfit));
    let own = share(&mut agent, handle, "adtech.example");
    assert_eq!(own.share_refusal, None);
    assert_eq!(own.report.unwrap().buckets(), [4, 0, 0]);
    // Explaining did not take the share.
    assert_eq!(take(&mut agent, handle, "adtech.example", 3), [4, 0, 0]);
    let taken = share(&mut agent, handle, "adtech.example");
    assert_eq!(taken.share_refusal, Some(ShareRefusal::Unfit));
}

fn share_of(agent: &mut MemoryAgent, call: &Call<'_>, participants: &[&str]) -> SharedConversion {
    share(agent, call, &options(0.5), participants)
}

/// A call that is refused does not choose the start of epochs. A call while the API is disabled
/// does not either.
#[test]
fn epochs_begin_with_the_first_valid_call_while_enabled() {
    let mut agent = agent(Profile::BigBird);
    let hour = 3_600;
    let Ok(click) = agent.begin_user_action(at(hour));
    let Ok(_) = agent.continue_user_action(click, at(2 * hour));
    let invalid = ImpressionOptions {
        conversion_sites: vec!["com".to_owned()],
        ..ImpressionOptions::new(0)
    };
    let call = Call::new("news.example", at(3 * hour)).by(click);
    agent.save_impression(&call, &invalid).unwrap_err();
    let call = Call::new("shop.example", at(4 * hour)).by(click);
    agent.measure_conversion(&call, &options(-1.0)).unwrap_err();
    let Ok(()) = agent.set_enabled(false);
    save(&mut agent, "news.example", None, 0, 5 * hour);
    assert_eq!(measure(&mut agent, &call, &options(0.1)), [0, 0, 0]);
    let _ = share_of(&mut agent, &call, &["adtech.example"]);
    assert_eq!(
        take(&mut agent, SharedConversion(1), "adtech.example", 4 * hour),
        [0, 0, 0]
    );
    let Ok(()) = agent.maintain(at(6 * hour));
    assert_eq!(start(&mut agent), None);
    assert_eq!(state(&mut agent).latest, None);
    let Ok(()) = agent.set_enabled(true);
    save(&mut agent, "news.example", None, 0, 7 * hour);
    assert_eq!(start(&mut agent), Some(at((7 - 84) * hour)));
}

/// Impressions that are saved together get the same epochs as impressions that are saved one by
/// one, whoever numbered their user actions.
#[test]
fn impressions_get_the_same_epochs_together_and_one_by_one() {
    let day = 86_400;
    let options = ImpressionOptions::new(0);
    let stored = |together: bool| {
        let mut agent = agent(Profile::BigBird);
        let numbered = Call::new("news.example", at(0)).by(Action::numbered(1).unwrap());
        let begun = |agent: &mut MemoryAgent| {
            let Ok(action) = agent.begin_user_action(at(5 * day));
            Call::new("blog.example", at(5 * day)).by(action)
        };
        if together {
            let calls = [numbered, begun(&mut agent)].map(|call| (call, &options));
            let Ok(answers) = agent.save_impressions(calls);
            assert!(answers.iter().all(Result::is_ok));
        } else {
            agent.save_impression(&numbered, &options).unwrap();
            let call = begun(&mut agent);
            agent.save_impression(&call, &options).unwrap();
        }
        let epochs: Vec<_> = agent.storage().impressions().epochs().collect();
        (start(&mut agent), epochs)
    };
    assert_eq!(stored(true), stored(false));
    assert_eq!(stored(true).1, [EpochIndex(0), EpochIndex(1)]);
}

/// The latest moment moves with every call that measures, whatever it finds. If only charges moved
/// it, what one epoch holds would decide which other epochs clearing closes.
#[test]
fn a_conversion_that_finds_nothing_moves_the_latest_moment() {
    let mut agent = agent(Profile::BigBird);
    let day = 86_400;
    save(&mut agent, "news.example", Some("adtech.example"), 0, 1);
    // With the clock two months ahead, nothing is found.
    let call = Call::new("shop.example", at(60 * day));
    assert_eq!(measure(&mut agent, &call, &options(0.1)), [0, 0, 0]);
    assert_eq!(state(&mut agent).latest, Some(call.now));
    let call = Call::new("shop.example", at(61 * day));
    let handle = share_of(&mut agent, &call, &["adtech.example"]);
    assert_eq!(state(&mut agent).latest, Some(call.now));
    assert_eq!(
        take(&mut agent, handle, "adtech.example", 62 * day),
        [0, 0, 0]
    );
    assert_eq!(state(&mut agent).latest, Some(at(62 * day)));
    assert_eq!(
        take(&mut agent, SharedConversion(9), "adtech.example", 63 * day),
        [0, 0, 0]
    );
    assert_eq!(state(&mut agent).latest, Some(at(63 * day)));
    // Clearing, with the clock right again, closes every epoch up to that moment.
    agent.clear_browsing_history(&[], true, at(day)).unwrap();
    assert_eq!(state(&mut agent).last_clear, Some(at(63 * day)));
}

/// If one of the two epochs that paid for a share is out of reach, the share is charged in the
/// other epoch and gives the credit of that epoch.
#[test]
fn a_share_outlives_the_older_of_its_epochs() {
    let mut agent = agent(Profile::BigBird);
    let day = 86_400;
    save(&mut agent, "news.example", Some("adtech.example"), 0, 0);
    save(
        &mut agent,
        "blog.example",
        Some("adtech.example"),
        1,
        8 * day,
    );
    let Ok(bought) = agent.begin_user_action(at(9 * day));
    let call = Call::new("shop.example", at(9 * day)).by(bought);
    let handle = share_of(&mut agent, &call, &["adtech.example"]);
    // More than a month after the first ad, its epoch is out of reach.
    let Ok(()) = agent.maintain(at(36 * day));
    assert_eq!(
        take(&mut agent, handle, "adtech.example", 36 * day),
        [0, 2, 0]
    );
    assert_eq!(
        consumed(&mut agent, Filter::QuerierBudget, "adtech.example"),
        250_000
    );
}

/// A [`MemoryStore`] that records its writes.
struct CountingStore {
    memory: MemoryStore,
    writes: Rc<RefCell<Vec<&'static str>>>,
}

struct CountingTransaction<'t> {
    inner: MemoryTransaction<'t>,
    writes: Rc<RefCell<Vec<&'static str>>>,
}

impl Storage for CountingStore {
    type Error = Infallible;
    type Transaction<'t> = CountingTransaction<'t>;

    fn begin(&mut self) -> Result<CountingTransaction<'_>, Infallible> {
        Ok(CountingTransaction {
            inner: self.memory.begin()?,
            writes: Rc::clone(&self.writes),
        })
    }
}

impl LedgerView for CountingTransaction<'_> {
    type Error = Infallible;

    fn consumed(&self, epoch: EpochIndex, checks: &mut [Check]) -> Result<(), Infallible> {
        self.inner.consumed(epoch, checks)
    }

    fn admitted(
        &self,
        action: UserAction,
        epoch: EpochIndex,
        site: SiteId,
    ) -> Result<AdmissionState, Infallible> {
        self.inner.admitted(action, epoch, site)
    }
}

impl EventStore<AttributionQuery> for CountingTransaction<'_> {
    type Error = Infallible;

    fn find(
        &self,
        epoch: EpochIndex,
        query: &AttributionQuery,
        found: &mut Vec<Relevant<MatchedImpression>>,
    ) -> Result<(), Infallible> {
        self.inner.find(epoch, query, found)
    }
}

/// Forwards methods to the inner transaction.
macro_rules! pass_on {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $out:ty;)*) => {
        $(fn $name(&self $(, $arg: $ty)*) -> Result<$out, Infallible> {
            self.inner.$name($($arg),*)
        })*
    };
}

impl View<Infallible> for CountingTransaction<'_> {
    pass_on! {
        state() -> DeviceState;
        site_id(site: &Site) -> Option<SiteId>;
        site(id: SiteId) -> Option<Site>;
        last_site() -> Option<SiteId>;
        revision() -> u64;
        closed_until(site: SiteId) -> Option<EpochIndex>;
        units(epoch: EpochIndex) -> u32;
        largest_site(epoch: EpochIndex) -> Option<SiteSize>;
        has_rows_before(forgotten: ForgottenEpochs) -> bool;
        object(shared: SharedConversion) -> Option<StoredObject>;
        objects() -> Vec<(u64, SiteId)>;
        last_entry() -> Option<u64>;
        entries_by(caller: &Site) -> Vec<(u64, HistoryKind)>;
        visit(rows: RowSet, visit: &mut dyn FnMut(ViewRow<'_>)) -> ();
        visit_some(
            rows: RowSet,
            behind: Option<RowPlace>,
            most: usize,
            visit: &mut dyn FnMut(ViewRow<'_>)
        ) -> bool;
    }
}

impl Transaction<Infallible> for CountingTransaction<'_> {
    fn apply(&mut self, changes: &ChangeSet) -> Result<(), Infallible> {
        self.writes.borrow_mut().push("apply");
        self.inner.apply(changes)
    }

    fn commit(self) -> Result<(), Infallible> {
        self.writes.borrow_mut().push("commit");
        self.inner.commit()
    }
}

/// Many impressions are saved with one write. Each gets its own answer, and an invalid one does not
/// stop the others.
#[test]
fn impressions_are_saved_together() {
    let mut agent = agent(Profile::BigBird);
    let options = ImpressionOptions::new(1);
    let moment = Timestamp(1_000);
    let Ok(click) = agent.begin_user_action(moment);
    let call = |site| Call::new(site, moment).by(click);
    let batch =
        ["news.example", "com", "blog.example", "third.example"].map(|site| (call(site), &options));
    let Ok(answers) = agent.save_impressions(batch);
    let good: Vec<bool> = answers.iter().map(Result::is_ok).collect();
    // The last one is over the domain cap, but its answer does not show that.
    assert_eq!(good, [true, false, true, true]);
    assert_eq!(agent.storage().impressions().len(), 2);
    let Ok(none) = agent.save_impressions([]);
    assert!(none.is_empty());
}
