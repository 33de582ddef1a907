//! Rules belong to epochs: no change of rules, back and forth, and no step of the clock brings a
//! budget back.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;
#[allow(dead_code, reason = "an example has a main function")]
#[path = "../examples/json_store.rs"]
mod json_store;

use std::collections::BTreeMap;
use std::fs;

use bigbird::{Capacity, EpochIndex, Fate, Policy, Profile, Timestamp};
use bigbird_testing::Folder;
use bigbird_user_agent::{
    Action, Call, ChangeSet, Config, ConversionOptions, ImpressionOptions, Rules, Storage,
    Timeline, Transaction as _, UserAgent, View as _,
};
use common::{FixedRandomness, MemoryAgent, SERVICE, agent, at, measure};
use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, RngAlgorithm, TestRng, TestRunner};

const HOUR: i64 = 3_600_000;
const SITES: [&str; 4] = [
    "news.example",
    "blog.example",
    "shop.example",
    "store.example",
];

#[derive(Debug, Clone)]
enum RulesStep {
    Save {
        site: usize,
    },
    Measure {
        site: usize,
        epsilon: f64,
        days: u64,
    },
    /// The browser is restarted with other rules. If the store does not work at first, they are
    /// put in force by the next call.
    Change {
        rules: usize,
        works_at_first: bool,
    },
    Forget,
    Maintain,
}

/// The rules to change between. They differ in profile, capacities, domain cap and epoch length.
fn rules() -> Vec<Rules> {
    let policy = |querier: f64, global: f64, cap: u32| {
        let policy = Policy::builder()
            .querier_budget(querier)
            .global_budget(global);
        let quotas = policy
            .impression_site_quota(global)
            .conversion_site_quota(global);
        quotas.domain_cap(cap).build().unwrap()
    };
    let with = |epoch_days, policy| Rules { epoch_days, policy };
    vec![
        with(7, policy(1.0, 2.0, 2)),
        with(7, policy(0.5, 1.0, 1)),
        with(1, policy(1.0, 2.0, 2)),
        with(2, policy(3.0, 5.0, 3)),
        with(3, Profile::W3cDraft.policy()),
        with(30, Profile::GlobalOnly.policy()),
    ]
}

fn config(rules: &Rules) -> Config {
    let config = Config {
        policy: rules.policy.clone(),
        epoch_days: rules.epoch_days,
        ..Config::new(Profile::BigBird)
    };
    config.with_service(SERVICE).for_testing()
}

fn steps() -> impl Strategy<Value = Vec<(RulesStep, i64)>> {
    let site = 0..SITES.len();
    let epsilon = prop::sample::select(vec![0.3, 0.5, 1.0]);
    let days = prop::sample::select(vec![1, 7, 30]);
    let step = prop_oneof![
        5 => site.clone().prop_map(|site| RulesStep::Save { site }),
        6 => (site, epsilon, days).prop_map(|(site, epsilon, days)| RulesStep::Measure {
            site,
            epsilon,
            days,
        }),
        3 => (0..rules().len(), any::<bool>()).prop_map(|(rules, works_at_first)| {
            RulesStep::Change {
                rules,
                works_at_first,
            }
        }),
        1 => Just(RulesStep::Forget),
        1 => Just(RulesStep::Maintain),
    ];
    // The clock also steps back.
    let hours = prop_oneof![6 => 0..10_i64, 3 => 0..100_i64, 2 => -200..0_i64];
    prop::collection::vec((step, hours), 1..60)
}

/// A mistake in changing rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RulesFlaw {
    /// New rules apply at once, even in epochs that have begun.
    AtOnce,
    /// New rules come with new epochs, and the charges of the old epochs are forgotten.
    Afresh,
}

/// The rules each epoch was first seen with, and the charges to each of its filters since then.
type SeenRules = BTreeMap<EpochIndex, (Rules, BTreeMap<String, u64>)>;

fn timeline(agent: &mut MemoryAgent) -> Timeline {
    let Ok(state) = agent.storage_mut().begin().and_then(|tx| tx.state());
    state.timeline
}

fn restart(
    agent: MemoryAgent,
    rules: &Rules,
    now: i64,
    works_at_first: bool,
    flaw: Option<RulesFlaw>,
) -> MemoryAgent {
    let old = agent.config().rules();
    if flaw == Some(RulesFlaw::Afresh) && old != *rules {
        return UserAgent::in_memory(config(rules), FixedRandomness);
    }
    let (config, storage) = (config(rules), agent.into_storage());
    let mut agent = match works_at_first {
        true => UserAgent::new(config, storage, FixedRandomness, Timestamp(now)).unwrap(),
        false => UserAgent::on(config, storage, FixedRandomness),
    };
    if flaw == Some(RulesFlaw::AtOnce) {
        let Ok(mut tx) = agent.storage_mut().begin();
        let Ok(mut state) = tx.state();
        if let Some(first) = state.timeline.eras().first() {
            state.timeline = Timeline::starting(first.begins, rules.clone());
            let Ok(()) = tx.apply(&ChangeSet {
                state: Some(state),
                ..ChangeSet::default()
            });
        }
    }
    agent
}

fn live(steps: &[(RulesStep, i64)], flaw: Option<RulesFlaw>) -> Result<(), TestCaseError> {
    let rules = rules();
    let mut agent = UserAgent::in_memory(config(&rules[0]), FixedRandomness);
    let mut now = 1000 * 24 * HOUR;
    let mut seen = SeenRules::new();
    // The epoch of each time at which a call was made.
    let mut moments: BTreeMap<i64, EpochIndex> = BTreeMap::new();
    // The end of the last pruned epoch.
    let mut closed = i64::MIN;
    for (number, (step, hours)) in (1..).zip(steps) {
        now += hours * HOUR;
        let action = Action::numbered(number).unwrap();
        match step {
            RulesStep::Save { site } => {
                let call = Call::new(SITES[*site], Timestamp(now)).by(action);
                let options = ImpressionOptions::new(0);
                agent.save_impression(&call, &options).unwrap();
            }
            RulesStep::Measure {
                site,
                epsilon,
                days,
            } => {
                let call = Call::new(SITES[*site], Timestamp(now)).by(action);
                let options = ConversionOptions {
                    epsilon: *epsilon,
                    lookback_days: Some(*days),
                    ..ConversionOptions::new(SERVICE, 2)
                };
                let answer = agent.measure_conversion(&call, &options).unwrap();
                let rules = timeline(&mut agent);
                for epoch in answer.decision.epochs() {
                    let found = rules.rules(epoch.epoch).unwrap().clone();
                    let first = (found, BTreeMap::new());
                    let (_, charged) = seen.entry(epoch.epoch).or_insert(first);
                    if epoch.fate != Fate::Passed {
                        continue;
                    }
                    for check in epoch.checks {
                        let site = check
                            .filter
                            .site()
                            .map(|id| agent.storage().site(id).cloned());
                        let name = format!("{} of {site:?}", check.filter.kind());
                        *charged.entry(name).or_default() += check.asked.get();
                    }
                }
            }
            RulesStep::Change {
                rules: other,
                works_at_first,
            } => agent = restart(agent, &rules[*other], now, *works_at_first, flaw),
            RulesStep::Forget => agent
                .clear_browsing_history(&[], true, Timestamp(now))
                .unwrap(),
            RulesStep::Maintain => {
                let Ok(()) = agent.maintain(Timestamp(now));
            }
        }
        let Ok(state) = agent.storage_mut().begin().and_then(|tx| tx.state());
        if let (RulesStep::Save { .. } | RulesStep::Measure { .. }, Some(epoch)) =
            (step, state.timeline.epoch(Timestamp(now)))
        {
            moments.insert(now, epoch);
        }
        // A time stays in its epoch until that epoch is pruned, and after that in a pruned one.
        for (moment, epoch) in &moments {
            let found = state.timeline.epoch(Timestamp(*moment));
            prop_assert!(found.is_some(), "no epoch at step {}: {:?}", number, step);
            let found = found.unwrap();
            let stays = match *epoch >= state.first_epoch {
                true => found == *epoch,
                false => found < state.first_epoch,
            };
            prop_assert!(
                stays,
                "{:?} became {:?} at step {}: {:?}",
                epoch,
                found,
                number,
                step
            );
        }
        // Pruned epochs stay pruned: the end of the last one never moves back.
        if let Some(ends) = state.timeline.beginning(state.first_epoch)
            && state.first_epoch > EpochIndex(i64::MIN)
        {
            prop_assert!(
                ends.0 >= closed,
                "pruned until {closed}, then only until {}",
                ends.0
            );
            closed = ends.0;
        }
        for (epoch, (rules, charged)) in &seen {
            if *epoch >= state.first_epoch {
                let found = state.timeline.rules(*epoch);
                prop_assert_eq!(found, Some(rules), "epoch {} at step {}", epoch.0, number);
            }
            for (name, charged) in charged {
                let kinds = bigbird::FilterKind::ALL.into_iter();
                let kind = kinds
                    .clone()
                    .find(|kind| name.starts_with(&kind.to_string()));
                let capacity = rules.policy.capacities().of(kind.unwrap());
                let within = match capacity {
                    Capacity::Finite(capacity) => *charged <= capacity.get(),
                    Capacity::Unlimited => true,
                };
                prop_assert!(
                    within,
                    "epoch {}: {} was charged {}, more than its capacity",
                    epoch.0,
                    name,
                    charged
                );
            }
        }
    }
    Ok(())
}

#[test]
fn no_change_of_rules_brings_a_budget_back() {
    let cases = Cases {
        cases: 3000,
        failure_persistence: None,
        ..Cases::default()
    };
    TestRunner::new(cases.clone())
        .run(&steps(), |steps| live(&steps, None))
        .unwrap_or_else(|failure| panic!("{failure}"));
    for flaw in [RulesFlaw::AtOnce, RulesFlaw::Afresh] {
        let cases = Cases {
            max_shrink_iters: 0,
            ..cases.clone()
        };
        let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
        let noticed =
            TestRunner::new_with_rng(cases, rng).run(&steps(), |steps| live(&steps, Some(flaw)));
        assert!(noticed.is_err(), "{flaw:?} was not caught");
    }
}

/// A browser raises a budget. The epoch that has begun keeps the old budget, and the next epoch has
/// the new one.
#[test]
fn a_larger_budget_begins_with_the_next_epoch() {
    let day = 86_400;
    let mut agent = agent(Profile::BigBird);
    let options = ConversionOptions::new(SERVICE, 2);
    let seen = Call::new("news.example", at(0));
    agent
        .save_impression(&seen, &ImpressionOptions::new(1))
        .unwrap();
    let bought = Call::new("shop.example", at(60));
    assert_eq!(measure(&mut agent, &bought, &options), [0, 1]);
    assert_eq!(measure(&mut agent, &bought, &options), [0, 0], "spent");
    let larger = Policy::builder()
        .querier_budget(2.0)
        .conversion_site_quota(2.0);
    let config = Config {
        policy: larger.build().unwrap(),
        ..agent.config().clone()
    };
    let mut agent = UserAgent::new(config, agent.into_storage(), FixedRandomness, at(120)).unwrap();
    assert_eq!(
        measure(&mut agent, &bought, &options),
        [0, 0],
        "still spent"
    );
    let seen = Call::new("news.example", at(8 * day));
    agent
        .save_impression(&seen, &ImpressionOptions::new(1))
        .unwrap();
    let bought = Call::new("shop.example", at(8 * day + 60));
    assert_eq!(measure(&mut agent, &bought, &options), [0, 1]);
    assert_eq!(measure(&mut agent, &bought, &options), [0, 1]);
    assert_eq!(measure(&mut agent, &bought, &options), [0, 0]);
}

/// A store that does not work at first is used later under the rules of the configuration, from the
/// next epoch on. Until it works, every call is an error.
#[test]
fn a_store_that_does_not_work_at_first_gets_the_rules_with_its_first_call() {
    let day = 86_400;
    let folder = Folder::in_memory();
    let path = folder.file("device.json");
    let store = || json_store::JsonStore(path.clone());
    let rules = rules();
    let seen = |seconds| Call::new("news.example", at(seconds));
    let impression = ImpressionOptions::new(0);
    let mut agent = UserAgent::new(config(&rules[0]), store(), FixedRandomness, at(0)).unwrap();
    agent.save_impression(&seen(0), &impression).unwrap();

    let sound = fs::read(&path).unwrap();
    fs::write(&path, b"{").unwrap();
    let mut agent = UserAgent::on(config(&rules[1]), store(), FixedRandomness);
    assert!(agent.save_impression(&seen(60), &impression).is_err());
    assert!(agent.begin_user_action(at(60)).is_err());
    assert!(agent.upkeep(at(60)).is_err());
    assert!(agent.status(at(60)).is_err());

    fs::write(&path, sound).unwrap();
    assert_eq!(agent.eras().unwrap().len(), 1, "reading changes nothing");
    agent.save_impression(&seen(120), &impression).unwrap();
    let eras = agent.eras().unwrap();
    let in_force: Vec<&Rules> = eras.iter().map(|era| &era.rules).collect();
    assert_eq!(in_force, [&rules[0], &rules[1]]);
    assert!(eras[1].begins > at(120) && eras[1].begins <= at(120 + 7 * day));
}
