//! History is shown and never read: it tells what happened, goes when it is cleared, and influences
//! nothing.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use bigbird::{MicroEpsilon, Profile, Timestamp};
use bigbird_user_agent::protocol::{
    AgentRequest, PlayResult, Player, history_json, impression_json,
};
use bigbird_user_agent::{
    Action, Call, ChangeSet, ConversionOptions, ImpressionOptions, RowSet, SharedConversion, Site,
    Storage as _, Transaction as _, View as _, ViewRow,
};
use common::{MemoryAgent, SERVICE, agent, at, released};
use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, RngAlgorithm, TestRng, TestRunner};
use serde_json::{Value, json};

fn call(site: &'static str, action: u64, seconds: i64) -> Call<'static> {
    Call::new(site, at(seconds)).by(Action::numbered(action).unwrap())
}

fn options(epsilon: f64) -> ConversionOptions {
    ConversionOptions {
        epsilon,
        ..ConversionOptions::new(SERVICE, 3)
    }
}

fn save(agent: &mut MemoryAgent, call: Call<'_>) {
    agent
        .save_impression(&call, &ImpressionOptions::new(1))
        .unwrap();
}

/// All of history as the user sees it, newest first, read in small pages.
fn shown(agent: &mut MemoryAgent, site: Option<&str>) -> Vec<Value> {
    let site = site.map(Site::from_stored);
    let (mut all, mut behind) = (Vec::new(), None);
    loop {
        let Ok((page, next)) = agent.history(behind, site.as_ref(), 3);
        assert!(page.len() <= 3);
        all.extend(page.iter().map(history_json));
        behind = next;
        if next.is_none() {
            return all;
        }
    }
}

fn sentences(agent: &mut MemoryAgent) -> Vec<String> {
    let all = shown(agent, None);
    let sentence = |entry: &Value| Some(entry["sentence"].as_str()?.to_owned());
    all.iter().filter_map(sentence).collect()
}

#[test]
fn an_entry_tells_what_happened_and_why() {
    let mut agent = agent(Profile::BigBird);
    let seen = Call {
        intermediary: Some("ads.example"),
        action_label: Some("a click"),
        ..call("news.example", 1, 1)
    };
    save(&mut agent, seen);
    for action in 2..4 {
        let bought = call("shop.example", action, 60);
        let _ = agent.measure_conversion(&bought, &options(0.75)).unwrap();
    }
    let all = shown(&mut agent, None);
    assert_eq!(all.len(), 3);
    assert_eq!(
        all[2],
        json!({
            "number": 1, "time": 1, "epoch": 0, "kind": "impression", "site": "news.example",
            "intermediarySite": "ads.example", "userAction": 1, "actionLabel": "a click",
            "outcome": "saved", "histogramIndex": 1, "matchValue": 0, "priority": 0,
            "lifetimeDays": 30, "conversionSites": [], "conversionCallers": [],
        })
    );
    let (spent, charged) = (&all[0], &all[1]);
    assert_eq!(
        (&charged["outcome"], &charged["cause"]),
        (&json!("charged"), &Value::Null)
    );
    assert_eq!(charged["epsilon"], json!(0.75));
    assert_eq!(
        charged["sentence"],
        "The report was made from 1 ad seen in epoch 0; 0.25 of the 1 epsilon of shop.example's \
         querier budget was left."
    );
    assert_eq!(spent["outcome"], "null");
    assert_eq!(spent["cause"], "querierBudget");
    assert_eq!(
        spent["sentence"],
        "The report was null, because it asked for 0.75 epsilon, and only 0.25 of the 1 epsilon of \
         shop.example's querier budget was left in epoch 0."
    );
    // The explanation is the one that the user would have got just before, which also searched for
    // the epsilon that would have fitted.
    let bought = call("shop.example", 9, 60);
    let explained = agent.explain(&bought, &options(0.75)).unwrap();
    assert_eq!(
        explained.sentence(),
        "The report was null, because it asked for 0.75 epsilon, and only 0.25 of the 1 epsilon of \
         shop.example's querier budget was left in epoch 0; an epsilon of 0.25 or less would have \
         fitted."
    );
    assert_eq!(
        explained.largest_epsilon(),
        Some(MicroEpsilon::new(250_000))
    );
    assert_eq!(spent["explanation"]["cause"], "querierBudget");
    assert_eq!(shown(&mut agent, Some("ads.example")).len(), 1);
    assert_eq!(shown(&mut agent, Some("shop.example")).len(), 2);
    let Ok((listed, next)) = agent.impressions(None, 10);
    assert_eq!((listed.len(), next), (1, None));
    assert_eq!(
        impression_json(&listed[0]),
        json!({
            "epoch": 0, "time": 1, "expires": 30 * 86_400 + 1, "site": "news.example",
            "intermediarySite": "ads.example", "userAction": 1, "histogramIndex": 1,
            "matchValue": 0, "priority": 0, "conversionSites": [], "conversionCallers": [],
        })
    );
}

/// Every cause has its sentence.
#[test]
fn every_cause_has_its_sentence() {
    let mut agent = agent(Profile::BigBird);
    save(&mut agent, call("news.example", 1, 1));
    let measure = |agent: &mut MemoryAgent, site, action, epsilon| {
        let _ = agent
            .measure_conversion(&call(site, action, 60), &options(epsilon))
            .unwrap();
        sentences(agent).remove(0)
    };
    let told = measure(&mut agent, "shop.example", 2, 1.0);
    assert!(told.contains("0 of the 1 epsilon"), "{told}");
    let told = measure(&mut agent, "shop.example", 3, 1.0);
    let spent = "because shop.example's querier budget of 1 epsilon was already spent in epoch 0.";
    assert!(told.ends_with(spent), "{told}");
    let _ = measure(&mut agent, "store.example", 4, 1.0);
    let told = measure(&mut agent, "third.example", 5, 1.0);
    let quota = "news.example's impression-site quota of 2 epsilon was already spent in epoch 0.";
    assert!(told.ends_with(quota), "{told}");
    for site in ["a.example", "b.example"] {
        let _ = measure(&mut agent, site, 6, 0.1);
    }
    let told = measure(&mut agent, "c.example", 6, 0.1);
    assert!(
        told.contains("as many sites as the domain cap allows"),
        "{told}"
    );
    let share = call("shop.example", 7, 61);
    let _ = agent
        .take_share(SharedConversion(7), &share, &options(0.1))
        .unwrap();
    let told = sentences(&mut agent).remove(0);
    assert!(
        told.contains("no shared conversion has this handle"),
        "{told}"
    );
    let Ok(()) = agent.set_enabled(false);
    let told = measure(&mut agent, "shop.example", 8, 0.1);
    assert_eq!(told, "The report was null, because the API is disabled.");
    save(&mut agent, call("other.example", 9, 62));
    assert!(shown(&mut agent, Some("other.example")).is_empty());
    let Ok(()) = agent.set_enabled(true);
    let closed = ["late.example".to_owned()];
    agent
        .clear_browsing_history(&closed, false, at(62))
        .unwrap();
    let told = measure(&mut agent, "late.example", 10, 0.1);
    assert_eq!(
        told,
        "The report was null, because the data of late.example was cleared."
    );
    agent.clear_browsing_history(&[], true, at(63)).unwrap();
    assert_eq!(sentences(&mut agent), Vec::<String>::new());
    let told = measure(&mut agent, "shop.example", 11, 0.1);
    let cleared = "The report was null, because the history that it would read was cleared.";
    assert_eq!(told, cleared);
    // What happens after clearing is shown until nobody can reach its epoch.
    let Ok(()) = agent.maintain(at(86_400));
    assert_eq!(sentences(&mut agent), [cleared]);
    let Ok(()) = agent.maintain(at(60 * 86_400));
    assert_eq!(sentences(&mut agent), Vec::<String>::new());
}

/// Clearing removes exactly the entries that it names. A site cannot erase what the user sees of
/// what left the device.
#[test]
fn clearing_removes_the_entries_that_it_names() {
    fn close(agent: &mut MemoryAgent, site: &str) {
        let sites = [site.to_owned()];
        agent
            .clear_browsing_history(&sites, false, at(100))
            .unwrap();
    }
    /// Its name, what is cleared, and the numbers of the entries that are left.
    type ClearingCase = (&'static str, fn(&mut MemoryAgent), &'static [u64]);
    let cases: [ClearingCase; 7] = [
        ("nothing", |_| {}, &[1, 2, 3, 4]),
        (
            "all visits",
            |agent| agent.clear_browsing_history(&[], true, at(100)).unwrap(),
            &[],
        ),
        (
            "visits of one site",
            |agent| {
                let sites = ["other.example".to_owned()];
                agent.clear_browsing_history(&sites, true, at(100)).unwrap();
            },
            &[],
        ),
        (
            "an impression site",
            |agent| close(agent, "news.example"),
            &[3, 4],
        ),
        (
            "an intermediary",
            |agent| close(agent, "ads.example"),
            &[1, 3],
        ),
        (
            "the request of the conversion site",
            |agent| {
                let Ok(()) = agent.clear_impressions_for_site("shop.example");
            },
            &[1, 2, 3, 4],
        ),
        (
            "the request of the intermediary",
            |agent| {
                let Ok(()) = agent.clear_impressions_for_site("ads.example");
            },
            &[1, 3, 4],
        ),
    ];
    for (name, clear, left) in cases {
        let mut agent = agent(Profile::BigBird);
        let by_ads = |call: Call<'static>| Call {
            intermediary: Some("ads.example"),
            ..call
        };
        save(&mut agent, call("news.example", 1, 1));
        save(&mut agent, by_ads(call("news.example", 1, 2)));
        for bought in [
            call("shop.example", 2, 60),
            by_ads(call("shop.example", 3, 61)),
        ] {
            let _ = agent.measure_conversion(&bought, &options(0.1)).unwrap();
        }
        clear(&mut agent);
        let mut numbers: Vec<u64> = shown(&mut agent, None)
            .iter()
            .map(|entry| entry["number"].as_u64().unwrap())
            .collect();
        numbers.reverse();
        assert_eq!(numbers, left, "{name}");
    }
    let mut agent = agent(Profile::BigBird);
    save(&mut agent, call("news.example", 1, 1));
    let Ok(()) = agent.restart_epochs(at(2));
    assert!(shown(&mut agent, None).is_empty());
}

/// A flood of one site keeps history within its limit, and leaves the entries of others.
#[test]
fn a_flood_pushes_out_its_own_entries() {
    let mut agent = agent(Profile::BigBird);
    save(&mut agent, call("quiet.example", 1, 1));
    let options = ImpressionOptions::new(0);
    for batch in 0..20 {
        let calls = (0..300).map(|n| (call("loud.example", 2, 2 + batch * 300 + n), &options));
        let Ok(answers) = agent.save_impressions(calls);
        assert_eq!(answers.len(), 300);
        let mut entries = 0;
        let Ok(()) = agent.storage_mut().begin().and_then(|tx| {
            tx.visit(RowSet::HistoryKeys, &mut |row| {
                entries += usize::from(matches!(row, ViewRow::HistoryKey(_)));
            })
        });
        assert!(entries <= 4096, "{entries} entries");
    }
    let Ok((quiet, _)) = agent.history(None, Some(&Site::from_stored("quiet.example")), 10);
    assert_eq!(quiet.len(), 1);
    let Ok((newest, _)) = agent.history(None, None, 1);
    assert_eq!(newest[0].number, 6001);
}

#[derive(Debug, Clone)]
enum HistoryCall {
    Save(usize),
    Measure(usize, f64),
    Create(usize),
    Share(u8, usize),
    ForgetSite(usize),
    Clear(usize, bool),
    Enable(bool),
    Upkeep,
}

const SITES: [&str; 4] = ["a.example", "b.example", "c.example", "d.example"];

fn history_calls() -> impl Strategy<Value = Vec<(HistoryCall, i64, u8)>> {
    let site = || 0..SITES.len();
    let step = prop_oneof![
        6 => site().prop_map(HistoryCall::Save),
        6 => (site(), prop::sample::select(vec![0.2, 0.5, 1.0]))
            .prop_map(|(site, epsilon)| HistoryCall::Measure(site, epsilon)),
        1 => site().prop_map(HistoryCall::Create),
        2 => (1..4_u8, site()).prop_map(|(number, site)| HistoryCall::Share(number, site)),
        1 => site().prop_map(HistoryCall::ForgetSite),
        1 => (site(), any::<bool>()).prop_map(|(site, forget)| HistoryCall::Clear(site, forget)),
        1 => any::<bool>().prop_map(HistoryCall::Enable),
        3 => Just(HistoryCall::Upkeep),
    ];
    let hours = prop_oneof![6 => 0..10_i64, 3 => 0..200_i64, 1 => -100..0_i64];
    prop::collection::vec((step, hours, any::<u8>()), 1..40)
}

/// Makes calls and returns everything that they gave and left, except history itself. With `lossy`,
/// entries of history disappear at random between calls. With `reads`, a rule reads history: a site
/// that has an entry is not measured.
fn outcome(steps: &[(HistoryCall, i64, u8)], lossy: bool, reads: bool) -> Vec<String> {
    let mut agent = agent(Profile::BigBird);
    let mut told = Vec::new();
    let mut seconds = 1_000_000;
    for (number, (step, hours, chance)) in (1..).zip(steps) {
        seconds += hours * 3600;
        let now = Timestamp(seconds * 1000);
        let by = |site: usize| call(SITES[site], number, seconds);
        told.push(match step {
            HistoryCall::Save(site) => {
                let saved = agent.save_impression(&by(*site), &ImpressionOptions::new(1));
                format!("{saved:?}")
            }
            HistoryCall::Measure(site, epsilon) => {
                let known = !shown(&mut agent, Some(SITES[*site])).is_empty();
                if reads && known {
                    continue;
                }
                let answer = agent
                    .measure_conversion(&by(*site), &options(*epsilon))
                    .unwrap();
                format!("{:?} {:?}", answer.decision.clone(), released(answer))
            }
            HistoryCall::Create(site) => {
                let created =
                    agent.create_shared_conversion(&by(*site), &options(0.2), &["a.example"]);
                format!("{created:?}")
            }
            HistoryCall::Share(number, site) => {
                let shared = SharedConversion((*number).into());
                let answer = agent.take_share(shared, &by(*site), &options(0.2)).unwrap();
                format!("{:?} {:?}", answer.decision.clone(), released(answer))
            }
            HistoryCall::ForgetSite(site) => {
                let Ok(()) = agent.clear_impressions_for_site(SITES[*site]);
                String::new()
            }
            HistoryCall::Clear(site, forget) => {
                let sites = [SITES[*site].to_owned()];
                agent.clear_browsing_history(&sites, *forget, now).unwrap();
                String::new()
            }
            HistoryCall::Enable(enabled) => {
                let Ok(()) = agent.set_enabled(*enabled);
                String::new()
            }
            HistoryCall::Upkeep => {
                // As a whole: the number of slices, and so of writes, follows what is removed.
                let Ok(()) = agent.maintain(now);
                String::new()
            }
        });
        if lossy {
            let Ok((entries, _)) = agent.history(None, None, usize::MAX);
            let goes = |number: u64| (number ^ u64::from(*chance)).is_multiple_of(3);
            let Ok(mut tx) = agent.storage_mut().begin();
            let Ok(()) = tx.apply(&ChangeSet {
                unrecorded: entries
                    .iter()
                    .map(|it| it.number)
                    .filter(|it| goes(*it))
                    .collect(),
                history_cleared: *chance > 250,
                ..ChangeSet::default()
            });
        }
        let Ok(budgets) = agent.filter_balances();
        let Ok(tx) = agent.storage_mut().begin();
        let Ok(state) = tx.state();
        let mut rows = Vec::new();
        for kind in [
            RowSet::Names,
            RowSet::Admissions,
            RowSet::Closings,
            RowSet::Objects,
        ] {
            let Ok(()) = tx.visit(kind, &mut |row| rows.push(format!("{row:?}")));
        }
        rows.sort();
        let stored = agent.storage().impressions().len();
        told.push(format!("{budgets:?} {state:?} {stored} {rows:?}"));
    }
    told
}

/// The same calls give the same answers, charges and rows, whatever history holds. A rule that read
/// history would be noticed.
#[test]
fn history_never_influences_anything() {
    let cases = Cases {
        cases: 200,
        failure_persistence: None,
        ..Cases::default()
    };
    let same = |reads: bool| {
        move |steps: Vec<(HistoryCall, i64, u8)>| {
            let (whole, lossy) = (outcome(&steps, false, reads), outcome(&steps, true, reads));
            prop_assert_eq!(whole, lossy);
            Ok(())
        }
    };
    TestRunner::new(cases.clone())
        .run(&history_calls(), same(false))
        .unwrap_or_else(|failure| panic!("{failure}"));
    let cases = Cases {
        max_shrink_iters: 0,
        ..cases
    };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let noticed = TestRunner::new_with_rng(cases, rng).run(&history_calls(), same(true));
    assert!(noticed.is_err(), "a rule that reads history was not caught");
}

/// A call from a private window is valid or not like any other, and does nothing.
#[test]
fn a_private_call_changes_nothing() {
    let mut agent = agent(Profile::BigBird);
    save(&mut agent, call("news.example", 1, 1));
    let rows = |agent: &mut MemoryAgent| {
        let Ok((history, _)) = agent.history(None, None, 100);
        let Ok(budgets) = agent.filter_balances();
        let names = agent.storage().site_count();
        let Ok(tx) = agent.storage_mut().begin();
        format!(
            "{:?} {:?} {history:?} {budgets:?} {names}",
            tx.state(),
            tx.revision()
        )
    };
    let before = rows(&mut agent);
    let mut player = Player::new(agent, None);
    let conversion = json!({"aggregationService": SERVICE, "histogramSize": 3});
    for (event, more) in [
        ("saveImpression", json!({"options": {"histogramIndex": 1}})),
        ("measureConversion", json!({"options": conversion})),
        (
            "createSharedConversion",
            json!({"options": conversion, "participants": ["ads.example"]}),
        ),
        (
            "takeShare",
            json!({"options": conversion, "shared": "00000000000000000000000000000001"}),
        ),
    ] {
        let mut request = more;
        request["event"] = json!(event);
        request["site"] = json!("shop.example");
        request["private"] = json!(true);
        let request: AgentRequest = serde_json::from_value(request).unwrap();
        match player.play(&request, at(60)).unwrap() {
            PlayResult::Report(report, _) => {
                assert_eq!(report.histogram.unwrap().buckets(), [0, 0, 0], "{event}");
            }
            PlayResult::Shared(..) => assert_eq!(event, "createSharedConversion"),
            PlayResult::Done => assert_eq!(event, "saveImpression"),
        }
        assert_eq!(rows(&mut player.agent), before, "{event}");
    }
    // The same conversion is charged when it is not private.
    let request = json!({"event": "measureConversion", "site": "shop.example",
        "userAction": 5, "options": conversion});
    let request: AgentRequest = serde_json::from_value(request).unwrap();
    let PlayResult::Report(report, _) = player.play(&request, at(60)).unwrap() else {
        panic!("a conversion has a report");
    };
    assert_eq!(report.histogram.unwrap().buckets(), [0, 1, 0]);
    assert_ne!(rows(&mut player.agent), before);
}
