//! The theorems, as properties of random histories under random policies.
//!
//! Each property is a function of a [`TestedManager`]. It must hold for the real device, and it
//! must notice the flaws it is meant to catch: the same function is run on a reference with each
//! flaw, and must fail there.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "the numbers are small"
)]

mod charges;
mod history;
mod inputs;
mod objects;
mod options;

use std::collections::{BTreeMap, BTreeSet};

use bigbird::{
    Arithmetic, Capacity, Filter, FilterKind, OwnActionEvents, Policy, SiteCharging, SiteId,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use bigbird_reference::{Ask, Flaw, Reference, ReferenceAnswer};
use history::{EPOCHS, HistoryStep, TestedManager, device, history, policy};

type Verdict = Result<(), TestCaseError>;

/// The input of a property.
#[derive(Debug, Clone)]
struct PropertyCase {
    policy: Policy,
    /// The number of units that an epoch keeps.
    limit: usize,
    history: Vec<HistoryStep>,
}

fn case() -> impl Strategy<Value = PropertyCase> {
    let limit = prop_oneof![1..6_usize, Just(1000)];
    (policy(), limit, history(40)).prop_map(|(policy, limit, history)| PropertyCase {
        policy,
        limit,
        history,
    })
}

/// A few user actions that ask from many conversion sites, for as much as the quotas allow.
fn attack() -> impl Strategy<Value = PropertyCase> {
    (case(), 1..4_u32).prop_map(|(mut case, cap)| {
        case.policy = Policy::builder()
            .global_budget(100.0)
            .conversion_site_quota(0.1)
            .unlimited(FilterKind::ImpressionSiteQuota)
            .domain_cap(cap)
            .build()
            .unwrap();
        case.limit = 1000;
        for (at, step) in case.history.iter_mut().enumerate() {
            match step {
                HistoryStep::Save(_, ad) => {
                    ad.action = 1000 + at as u64;
                    ad.expires = i64::MAX;
                    ad.conversion_sites.clear();
                    ad.conversion_callers.clear();
                }
                HistoryStep::Ask(ask) => {
                    ask.action &= !3;
                    ask.impression_sites.clear();
                    ask.impression_callers.clear();
                    ask.match_values.clear();
                    ask.max_value = ask.value;
                    ask.epsilon_micro = 100_000;
                    ask.readable_from = i64::MIN;
                }
                HistoryStep::PruneBefore(_)
                | HistoryStep::RemoveSite(_)
                | HistoryStep::EndActionsBefore(_) => {}
            }
        }
        case
    })
}

/// A history that is repeated after everything was pruned.
fn twice() -> impl Strategy<Value = PropertyCase> {
    case().prop_map(|mut case| {
        let again = case.history.clone();
        case.history.push(HistoryStep::PruneBefore(EPOCHS));
        case.history.extend(again);
        case
    })
}

/// Tries a property on the device, where it must hold, and on a reference with each flaw, where it
/// must fail.
fn holds_and_notices(
    flaws: &[Flaw],
    property: impl Fn(&PropertyCase, &dyn Fn(&PropertyCase) -> Box<dyn TestedManager>) -> Verdict,
) {
    holds_in_and_notices(case, flaws, property);
}

fn holds_in_and_notices<S: Strategy<Value = PropertyCase>>(
    cases: fn() -> S,
    flaws: &[Flaw],
    property: impl Fn(&PropertyCase, &dyn Fn(&PropertyCase) -> Box<dyn TestedManager>) -> Verdict,
) {
    let config = Config {
        cases: 4000,
        failure_persistence: None,
        ..Config::default()
    };
    let real = |case: &PropertyCase| -> Box<dyn TestedManager> {
        Box::new(device(case.policy.clone(), case.limit))
    };
    TestRunner::new(config.clone())
        .run(&cases(), |case| property(&case, &real))
        .unwrap_or_else(|failure| panic!("{failure}"));
    for &flaw in flaws {
        let flawed = |case: &PropertyCase| -> Box<dyn TestedManager> {
            let policy = case.policy.clone();
            Box::new(Reference::new(policy, case.limit, Some(flaw)))
        };
        // The same cases in every run. There are many, but the run stops at the first that shows
        // the flaw.
        let config = Config {
            cases: 20_000,
            max_shrink_iters: 0,
            ..config.clone()
        };
        let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
        let noticed =
            TestRunner::new_with_rng(config, rng).run(&cases(), |case| property(&case, &flawed));
        assert!(noticed.is_err(), "{flaw:?} was not noticed");
    }
}

/// The oracle: the device does exactly what the paper's algorithm, read literally, does.
#[test]
fn the_device_agrees_with_the_literal_algorithm() {
    let flaws = [
        Flaw::Overdraft,
        Flaw::HalfPaid,
        Flaw::PartsRoundedDown,
        Flaw::SharedLimit,
        Flaw::ActionBudgetOverEpochs,
        Flaw::SingleByStored,
        Flaw::SingleByReadable,
        Flaw::OwnAction,
        Flaw::CapOffByOne,
        Flaw::LenientImpressionSites,
        Flaw::LenientConversionSites,
        Flaw::EmptyNull,
        Flaw::FreeDenial,
    ];
    holds_and_notices(&flaws, |case, manager| agree(case, &mut *manager(case)));
}

/// The same with hundreds of impressions per epoch, so that the indexes are used, and with so many
/// that impressions are also listed by who may measure them.
#[test]
fn the_indexes_find_what_a_scan_finds() {
    for (cases, longest) in [(200, 1500), (24, 8000)] {
        let config = Config {
            cases,
            failure_persistence: None,
            ..Config::default()
        };
        let limit = prop_oneof![20..80_usize, Just(100_000)];
        let cases = (policy(), limit, history(longest));
        TestRunner::new(config)
            .run(&cases, |(policy, limit, history)| {
                let policy = policy.to_builder().no_domain_cap().build().unwrap();
                let case = PropertyCase {
                    policy,
                    limit,
                    history,
                };
                let mut real = device(case.policy.clone(), limit);
                agree(&case, &mut real)
            })
            .unwrap_or_else(|failure| panic!("{failure}"));
    }
}

fn agree(case: &PropertyCase, manager: &mut dyn TestedManager) -> Verdict {
    let mut oracle = Reference::new(case.policy.clone(), case.limit, None);
    for step in &case.history {
        match step {
            HistoryStep::Save(epoch, ad) => {
                manager.save(*epoch, ad);
                oracle.save(*epoch, ad);
            }
            HistoryStep::Ask(ask) => prop_assert_eq!(manager.ask(ask), oracle.ask(ask)),
            other => {
                manager.change(other);
                oracle.change(other);
            }
        }
    }
    prop_assert_eq!(manager.consumed(), TestedManager::consumed(&oracle));
    prop_assert_eq!(manager.admitted(), TestedManager::admitted(&oracle));
    for epoch in 0..EPOCHS {
        prop_assert_eq!(manager.stored(epoch), TestedManager::stored(&oracle, epoch));
    }
    Ok(())
}

/// Everything that was ever granted counts, even if it was forgotten since.
#[test]
fn no_filter_exceeds_its_capacity() {
    holds_and_notices(&[Flaw::Overdraft], within_capacity);
    holds_in_and_notices(twice, &[Flaw::PruningRefunds], within_capacity);
}

fn within_capacity(
    case: &PropertyCase,
    manager: &dyn Fn(&PropertyCase) -> Box<dyn TestedManager>,
) -> Verdict {
    let answers = manager(case).live(&case.history);
    for ((_, filter), granted) in granted(&answers) {
        if let Capacity::Finite(capacity) = case.policy.capacities().of(filter.kind()) {
            prop_assert!(
                granted <= capacity.get(),
                "{:?} exceeds its capacity",
                filter
            );
        }
    }
    Ok(())
}

fn granted(answers: &[(Ask, ReferenceAnswer)]) -> BTreeMap<(i64, Filter), u64> {
    let mut granted = BTreeMap::new();
    let epochs = answers.iter().flat_map(|(_, answer)| &answer.epochs);
    for epoch in epochs.filter(|epoch| epoch.passed) {
        for (filter, amount) in &epoch.charges {
            *granted.entry((epoch.epoch, *filter)).or_default() += amount;
        }
    }
    granted
}

#[test]
fn an_epoch_that_is_dropped_consumes_nothing_anywhere() {
    holds_and_notices(&[Flaw::HalfPaid], |case, manager| {
        let mut manager = manager(case);
        let mut expected = granted(&manager.live(&case.history));
        for step in &case.history {
            if let HistoryStep::PruneBefore(first) = step {
                expected.retain(|(epoch, _), _| epoch >= first);
            }
        }
        prop_assert_eq!(manager.consumed(), expected);
        Ok(())
    });
}

/// Notes on the draft, row 2: with a window of one epoch, a report costs its own norm, and the
/// released report is the one that was paid for.
#[test]
fn the_report_that_is_released_is_the_one_that_was_paid_for() {
    holds_and_notices(&[Flaw::DrawnAgain], |case, manager| {
        let individual = case.policy.arithmetic() == Arithmetic::Exact
            && case.policy.capacities().querier_budget != Capacity::Unlimited;
        if !individual {
            return Ok(());
        }
        for (ask, answer) in manager(case).live(&case.history) {
            if ask.earliest != ask.current {
                continue;
            }
            let norm: u64 = answer.histogram.iter().map(|&value| u64::from(value)).sum();
            let cost = (norm * ask.epsilon_micro).div_ceil(2 * u64::from(ask.max_value));
            let querier = Filter::QuerierBudget(SiteId(ask.querier));
            let passed = answer.epochs.iter().filter(|epoch| epoch.passed);
            let paid: u64 = passed
                .map(|epoch| epoch.charges.get(&querier).copied().unwrap_or(0))
                .sum();
            prop_assert_eq!(paid, cost);
        }
        Ok(())
    });
}

/// A simulation reuses one device for many. Nothing of the previous one may be left.
#[test]
fn a_reset_device_is_a_new_one() {
    holds_and_notices(&[Flaw::ResetKeepsBudgets], |case, manager| {
        let (mut used, mut new) = (manager(case), manager(case));
        used.live(&case.history);
        used.reset();
        prop_assert_eq!(used.live(&case.history), new.live(&case.history));
        prop_assert_eq!(used.consumed(), new.consumed());
        prop_assert_eq!(used.admitted(), new.admitted());
        for epoch in 0..EPOCHS {
            prop_assert_eq!(used.stored(epoch), new.stored(epoch));
        }
        Ok(())
    });
}

/// The lemma on allocation consistency, on which the impression-side bound of resilience depends.
#[test]
fn the_sites_of_an_epoch_pay_at_least_what_the_epoch_pays() {
    holds_and_notices(&[Flaw::PartsRoundedDown], |case, manager| {
        let finite = |kind| case.policy.capacities().of(kind) != Capacity::Unlimited;
        if !finite(FilterKind::ImpressionSiteQuota) || !finite(FilterKind::GlobalBudget) {
            return Ok(());
        }
        for (_, answer) in manager(case).live(&case.history) {
            for epoch in answer.epochs {
                let sum = |kind| -> u64 {
                    let charges = epoch.charges.iter();
                    let of_kind = charges.filter(|(filter, _)| filter.kind() == kind);
                    of_kind.map(|(_, amount)| amount).sum()
                };
                let (global, sites) = (
                    sum(FilterKind::GlobalBudget),
                    sum(FilterKind::ImpressionSiteQuota),
                );
                prop_assert!(global <= sites, "global {} > sites {}", global, sites);
            }
        }
        Ok(())
    });
}

/// No free denial: a report that costs its querier and the global budget nothing in an epoch takes
/// nothing there from any publisher. Under the paper's literal rule, one site could empty every
/// quota that way.
#[test]
fn what_costs_nothing_takes_nothing() {
    holds_and_notices(&[Flaw::FreeDenial], |case, manager| {
        let finite = |kind| case.policy.capacities().of(kind) != Capacity::Unlimited;
        if case.policy.site_charging() == SiteCharging::Paper || !finite(FilterKind::GlobalBudget) {
            return Ok(());
        }
        for (_, answer) in manager(case).live(&case.history) {
            for epoch in answer.epochs {
                let free = !epoch.charges.contains_key(&Filter::GlobalBudget);
                prop_assert!(!free || epoch.charges.is_empty(), "{:?}", epoch.charges);
            }
        }
        Ok(())
    });
}

/// The property that makes the guarantee sound. If the impressions of one epoch are removed,
/// nothing changes in any other epoch: not what is stored, not whether it passes, not what it is
/// charged.
#[test]
fn one_epoch_never_shows_in_another() {
    let flaws = [
        Flaw::SharedLimit,
        Flaw::ActionBudgetOverEpochs,
        Flaw::SingleByStored,
        Flaw::ReadLimitOverWindow,
    ];
    holds_and_notices(&flaws, |case, manager| {
        for changed in 0..EPOCHS {
            let without: Vec<HistoryStep> = case
                .history
                .iter()
                .filter(|step| !matches!(step, HistoryStep::Save(epoch, _) if *epoch == changed))
                .cloned()
                .collect();
            let (mut one, mut other) = (manager(case), manager(case));
            let others = |answers: Vec<(Ask, ReferenceAnswer)>| -> Vec<_> {
                let epochs = answers.into_iter().flat_map(|(_, answer)| answer.epochs);
                epochs.filter(|epoch| epoch.epoch != changed).collect()
            };
            prop_assert_eq!(
                others(one.live(&case.history)),
                others(other.live(&without))
            );
            for epoch in (0..EPOCHS).filter(|epoch| *epoch != changed) {
                prop_assert_eq!(one.stored(epoch), other.stored(epoch));
            }
            let elsewhere = |manager: &dyn TestedManager| {
                let (mut consumed, mut admitted) = (manager.consumed(), manager.admitted());
                consumed.retain(|(epoch, _), _| *epoch != changed);
                admitted.retain(|(_, epoch), _| *epoch != changed);
                (consumed, admitted)
            };
            prop_assert_eq!(elsewhere(&*one), elsewhere(&*other));
        }
        Ok(())
    });
}

/// A request that reads only a limited number of relevant impressions of an epoch gives the same
/// histogram as if it had read all of them. Only who pays changes.
#[test]
fn reading_less_gives_the_same_histogram() {
    holds_and_notices(&[Flaw::ReadsOldestFirst], |case, manager| {
        let mut case = case.clone();
        let unlimited = FilterKind::ALL.into_iter();
        let policy = unlimited.fold(case.policy.to_builder(), |policy, kind| {
            policy.unlimited(kind)
        });
        case.policy = policy.build().unwrap();
        let mut everything = case.clone();
        for (step, all) in case.history.iter_mut().zip(&mut everything.history) {
            if let (HistoryStep::Ask(some), HistoryStep::Ask(all)) = (step, all) {
                some.read_limits.examined = u32::MAX;
                all.read_limits.relevant = u32::MAX;
                all.read_limits.examined = u32::MAX;
            }
        }
        let histograms = |case: &PropertyCase| -> Vec<_> {
            let answers = manager(case).live(&case.history);
            answers
                .into_iter()
                .map(|(_, answer)| answer.histogram)
                .collect()
        };
        prop_assert_eq!(histograms(&case), histograms(&everything));
        Ok(())
    });
}

/// If the only stored impressions are those that the request's own user action saved, nothing
/// matches.
#[test]
fn a_request_never_matches_its_own_user_action() {
    holds_and_notices(&[Flaw::OwnAction], |case, manager| {
        if case.policy.own_action_events() == OwnActionEvents::Included {
            return Ok(());
        }
        for step in &case.history {
            let HistoryStep::Ask(ask) = step else {
                continue;
            };
            let mut manager = manager(case);
            for step in &case.history {
                if let HistoryStep::Save(epoch, ad) = step
                    && ad.action == ask.action
                {
                    manager.save(*epoch, ad);
                }
            }
            let answer = manager.ask(ask);
            prop_assert!(answer.epochs.iter().all(|epoch| epoch.matched == 0));
            prop_assert!(answer.histogram.iter().all(|&value| value == 0));
        }
        Ok(())
    });
}

#[test]
fn a_user_action_admits_at_most_the_cap() {
    holds_and_notices(&[Flaw::CapOffByOne], |case, manager| {
        let Some(cap) = case.policy.domain_cap() else {
            return Ok(());
        };
        let mut manager = manager(case);
        let answers = manager.live(&case.history);
        for sites in manager.admitted().values() {
            prop_assert!(sites.len() <= cap.get() as usize);
        }
        // Only admitted sites are involved anywhere: in a stored impression, or in an epoch with
        // matches.
        let mut involved: BTreeMap<(u64, i64), BTreeSet<u32>> = BTreeMap::new();
        for epoch in 0..EPOCHS {
            for ad in manager.stored(epoch) {
                involved
                    .entry((ad.action, epoch))
                    .or_default()
                    .insert(ad.site);
            }
        }
        for (ask, answer) in answers {
            for epoch in answer.epochs.iter().filter(|epoch| epoch.matched > 0) {
                let sites = involved.entry((ask.action, epoch.epoch)).or_default();
                sites.insert(ask.conversion_site);
            }
        }
        for sites in involved.values() {
            prop_assert!(sites.len() <= cap.get() as usize);
        }
        Ok(())
    });
}

/// The resilience theorem, (i) and (ii), for any set of reports and any device-epoch.
#[test]
fn depletion_is_bounded_by_sites_and_user_actions() {
    let flaws = [Flaw::LenientImpressionSites, Flaw::LenientConversionSites];
    holds_and_notices(&flaws, depletion_is_bounded);
    holds_in_and_notices(attack, &[Flaw::CapOffByOne], depletion_is_bounded);
}

fn depletion_is_bounded(
    case: &PropertyCase,
    manager: &dyn Fn(&PropertyCase) -> Box<dyn TestedManager>,
) -> Verdict {
    let capacity = |kind| case.policy.capacities().of(kind).amount();
    if capacity(FilterKind::GlobalBudget).is_none() {
        return Ok(());
    }
    let answers = manager(case).live(&case.history);
    // The theorem holds for any set of reports. Try all reports, those of each conversion site, and
    // those of each user action.
    let mut sets: Vec<Vec<&(Ask, ReferenceAnswer)>> = vec![answers.iter().collect()];
    for (ask, _) in &answers {
        let of =
            |same: &dyn Fn(&Ask) -> bool| answers.iter().filter(|(other, _)| same(other)).collect();
        sets.push(of(&|other| other.conversion_site == ask.conversion_site));
        sets.push(of(&|other| other.action == ask.action));
    }
    for set in sets {
        for epoch in 0..EPOCHS {
            let mut consumed = 0;
            let (mut impression, mut conversion, mut actions) =
                (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
            for (ask, answer) in &set {
                let passed = answer
                    .epochs
                    .iter()
                    .filter(|e| e.epoch == epoch && e.passed);
                for passed in passed {
                    consumed += passed.charges.get(&Filter::GlobalBudget).unwrap_or(&0);
                    conversion.insert(ask.conversion_site);
                    actions.insert(ask.action);
                    let filters = passed.charges.keys().copied();
                    impression.extend(
                        filters.filter(|filter| filter.kind() == FilterKind::ImpressionSiteQuota),
                    );
                }
            }
            let bounded = |count: usize, quota: Option<bigbird::MicroEpsilon>| {
                quota.is_none_or(|quota| consumed <= count as u64 * quota.get())
            };
            let of_impressions = capacity(FilterKind::ImpressionSiteQuota);
            let of_conversions = capacity(FilterKind::ConversionSiteQuota);
            prop_assert!(
                bounded(impression.len(), of_impressions),
                "impression sites"
            );
            prop_assert!(
                bounded(conversion.len(), of_conversions),
                "conversion sites"
            );
            if let Some(cap) = case.policy.domain_cap() {
                let sites = cap.get() as usize * actions.len();
                prop_assert!(bounded(sites, of_conversions), "user actions");
            }
        }
    }
    Ok(())
}

#[test]
fn a_null_report_and_a_full_one_have_the_same_shape() {
    holds_and_notices(&[Flaw::EmptyNull], |case, manager| {
        for (ask, answer) in manager(case).live(&case.history) {
            prop_assert_eq!(answer.histogram.len(), ask.size as usize);
        }
        Ok(())
    });
}
