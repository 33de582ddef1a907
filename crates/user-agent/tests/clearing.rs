//! Clearing never raises what a later request can learn.
//!
//! The test plays random histories of saves, conversions, clears of every kind, disabling and
//! enabling, upkeep, and clock steps in both directions. Whatever happens, the sum of all charges
//! to a filter of a device-epoch stays within its capacity. It may seem right that a user agent
//! starts afresh when the user clears everything. The test must catch one that does.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;

use bigbird::{Capacity, Fate, Filter, Profile, SiteId, Timestamp};
use bigbird_user_agent::{
    Action, Call, Config, ConversionOptions, ImpressionOptions, MemoryStore, QuerierRole, UserAgent,
};
use common::{FixedRandomness, MemoryAgent, SERVICE};
use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, RngAlgorithm, TestRng, TestRunner};

const SITES: [&str; 4] = ["a.example", "b.example", "c.example", "d.example"];
const HOUR: i64 = 3_600_000;

#[derive(Debug, Clone)]
enum ClearingStep {
    /// The clock moves by this many hours, forwards or backwards.
    Clock(i64),
    Save {
        site: usize,
        action: Option<u64>,
    },
    Measure {
        site: usize,
        intermediary: Option<usize>,
        own: bool,
        action: Option<u64>,
        epsilon: f64,
        days: u64,
    },
    ClearSite(usize),
    Clear {
        sites: Vec<usize>,
        forget: bool,
    },
    Enable(bool),
    Maintain,
}

fn step() -> impl Strategy<Value = ClearingStep> {
    let action = || prop::option::weighted(0.5, 0..4_u64);
    prop_oneof![
        4 => prop_oneof![0..48_i64, 100..400_i64, -200..0_i64].prop_map(ClearingStep::Clock),
        8 => (0..4_usize, action()).prop_map(|(site, action)| ClearingStep::Save { site, action }),
        12 => (
            0..4_usize,
            prop::option::weighted(0.4, 0..4_usize),
            any::<bool>(),
            action(),
            prop::sample::select(vec![0.1, 0.3, 0.5, 1.0]),
            1..30_u64,
        )
            .prop_map(|(site, intermediary, own, action, epsilon, days)| ClearingStep::Measure {
                site,
                intermediary,
                own,
                action,
                epsilon,
                days,
            }),
        1 => (0..4_usize).prop_map(ClearingStep::ClearSite),
        3 => (prop::collection::vec(0..4_usize, 0..3), any::<bool>())
            .prop_map(|(sites, forget)| ClearingStep::Clear { sites, forget }),
        1 => any::<bool>().prop_map(ClearingStep::Enable),
        1 => Just(ClearingStep::Maintain),
    ]
}

#[derive(Debug, Clone)]
struct ClearingCase {
    profile: Profile,
    steps: Vec<ClearingStep>,
}

fn case() -> impl Strategy<Value = ClearingCase> {
    let profile = prop::sample::select(vec![Profile::BigBird, Profile::W3cDraft]);
    (profile, prop::collection::vec(step(), 1..80))
        .prop_map(|(profile, steps)| ClearingCase { profile, steps })
}

/// The effect of clearing everything: as implemented, or the flaw of starting afresh.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Clearing {
    AsItIs,
    Afresh,
}

/// The sum of all charges, by epoch and name of the filter. The start of epochs never changes, so
/// their indices are safe keys. Numbers of sites may change, so filters are keyed by name.
type Charged = BTreeMap<(i64, String), (Filter, u64)>;

fn live(case: &ClearingCase, clearing: Clearing) -> Result<(), TestCaseError> {
    let config = Config::new(case.profile)
        .with_service(SERVICE)
        .for_testing();
    let policy = config.policy.clone();
    let mut agent = UserAgent::in_memory(config.clone(), FixedRandomness);
    let mut now = 1_000_000 * HOUR;
    let mut charged = Charged::new();
    let mut actions: BTreeMap<u64, Action> = BTreeMap::new();
    // The user action with this number, or a new one.
    let mut caused_by = |agent: &mut MemoryAgent, number: &Option<u64>, now| {
        let known = number.and_then(|number| actions.get(&number).copied());
        let Ok(action) = match known {
            Some(action) => agent.continue_user_action(action, Timestamp(now)),
            None => agent.begin_user_action(Timestamp(now)),
        };
        if let Some(number) = number {
            actions.insert(*number, action);
        }
        action
    };
    for step in &case.steps {
        match step {
            ClearingStep::Clock(hours) => now += hours * HOUR,
            ClearingStep::Save { site, action } => {
                let action = caused_by(&mut agent, action, now);
                let call = Call::new(SITES[*site], Timestamp(now)).by(action);
                let options = ImpressionOptions::new(u32::try_from(*site).unwrap());
                agent.save_impression(&call, &options).unwrap();
            }
            ClearingStep::Measure {
                site,
                intermediary,
                own,
                action,
                epsilon,
                days,
            } => {
                let intermediary = intermediary.filter(|other| other != site);
                let for_itself = *own && intermediary.is_some();
                let action = caused_by(&mut agent, action, now);
                let call = Call {
                    intermediary: intermediary.map(|site| SITES[site]),
                    querier: match for_itself && case.profile == Profile::BigBird {
                        true => QuerierRole::Intermediary,
                        false => QuerierRole::ConversionSite,
                    },
                    ..Call::new(SITES[*site], Timestamp(now)).by(action)
                };
                let options = ConversionOptions {
                    epsilon: *epsilon,
                    lookback_days: Some(*days),
                    ..ConversionOptions::new(SERVICE, 4)
                };
                let answer = agent.measure_conversion(&call, &options).unwrap();
                let passed = answer.decision.epochs().filter(|e| e.fate == Fate::Passed);
                for check in passed.flat_map(|epoch| epoch.checks) {
                    let name = name(agent.storage(), check.filter);
                    let (_, sum) = charged
                        .entry((check.epoch.0, name))
                        .or_insert((check.filter, 0));
                    *sum += check.asked.get();
                }
            }
            ClearingStep::ClearSite(site) => {
                let Ok(()) = agent.clear_impressions_for_site(SITES[*site]);
            }
            ClearingStep::Clear { sites, forget } => {
                let sites: Vec<String> = sites.iter().map(|&site| SITES[site].to_owned()).collect();
                if sites.is_empty() && *forget && clearing == Clearing::Afresh {
                    agent = UserAgent::in_memory(config.clone(), FixedRandomness);
                } else if *forget || !sites.is_empty() {
                    agent
                        .clear_browsing_history(&sites, *forget, Timestamp(now))
                        .unwrap();
                }
            }
            ClearingStep::Enable(enabled) => {
                let Ok(()) = agent.set_enabled(*enabled);
            }
            ClearingStep::Maintain => {
                let Ok(()) = agent.maintain(Timestamp(now));
            }
        }
    }
    for ((epoch, name), (filter, sum)) in charged {
        if let Capacity::Finite(capacity) = policy.capacities().of(filter.kind()) {
            prop_assert!(
                sum <= capacity.get(),
                "{} in epoch {} was charged {} of {}",
                name,
                epoch,
                sum,
                capacity
            );
        }
    }
    Ok(())
}

fn name(memory: &MemoryStore, filter: Filter) -> String {
    let site = |id: SiteId| memory.site(id).unwrap().to_string();
    let limit = filter.kind().limit();
    match filter {
        Filter::GlobalBudget => limit.to_string(),
        Filter::UserActionBudget(action) => format!("{limit} of {}", action.0),
        Filter::QuerierBudget(id)
        | Filter::ImpressionSiteQuota(id)
        | Filter::ConversionSiteQuota(id) => format!("{limit} of {}", site(id)),
    }
}

#[test]
fn clearing_never_brings_a_budget_back() {
    let cases = Cases {
        cases: 1500,
        failure_persistence: None,
        ..Cases::default()
    };
    TestRunner::new(cases.clone())
        .run(&case(), |case| live(&case, Clearing::AsItIs))
        .unwrap_or_else(|failure| panic!("{failure}"));

    let cases = Cases {
        cases: 20_000,
        max_shrink_iters: 0,
        ..cases
    };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let noticed =
        TestRunner::new_with_rng(cases, rng).run(&case(), |case| live(&case, Clearing::Afresh));
    assert!(noticed.is_err(), "starting afresh was not caught");
}

/// Under the draft, clearing a site's data spends the site's querier budget. A site whose querier
/// budget is unlimited is closed instead.
#[test]
fn a_site_without_a_budget_is_closed_all_the_same() {
    let policy = Profile::W3cDraft.policy().to_builder();
    let policy = policy.unlimited(bigbird::FilterKind::QuerierBudget).build();
    let config = Config {
        policy: policy.unwrap(),
        ..Config::new(Profile::W3cDraft)
    };
    let mut agent =
        UserAgent::in_memory(config.with_service(SERVICE).for_testing(), FixedRandomness);
    let seen = Call::new("news.example", Timestamp(HOUR));
    let options = ImpressionOptions::new(1);
    agent.save_impression(&seen, &options).unwrap();
    let bought = Call::new("a.example", Timestamp(2 * HOUR));
    let options = ConversionOptions::new(SERVICE, 2);
    let passed = |agent: &mut MemoryAgent| {
        let answer = agent.measure_conversion(&bought, &options).unwrap();
        answer.decision.any_passed()
    };
    assert!(passed(&mut agent));
    let closed = ["a.example".to_owned()];
    agent
        .clear_browsing_history(&closed, false, Timestamp(2 * HOUR))
        .unwrap();
    assert!(!passed(&mut agent));
}
