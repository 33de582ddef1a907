//! Attackers: what they do to a global budget without quotas, and what they can still do with
//! quotas.
#![allow(missing_docs, clippy::unwrap_used)]

use std::collections::HashMap;

use bigbird::{Filter, FilterKind, Limit, Policy, Profile, SiteCharging, SiteId};
use bigbird_lab::attack::attackers::{
    self, DrainConversionSite, DrainImpressionSite, FreeDenial, Omniscient, Random, Strongest,
};
use bigbird_lab::attack::{Attack, AttackStage, Attacker, HeardVisits, Quotas, Strategy, Strength};
use bigbird_lab::evaluation::replay::{Observer, ReportRow, Scene};
use bigbird_lab::evaluation::resilience::Bound;
use bigbird_lab::evaluation::{Laboratory, QuerierOptions, RunResult};
use bigbird_lab::workload::synthetic::{Population, Preset};
use bigbird_lab::workload::{EventKind, Workload, WorkloadEvent};

fn workload() -> Workload {
    let population = Population {
        preset: Preset::Published,
        scale: 0.01,
        seed: 3,
    };
    population.generate()
}

fn options() -> QuerierOptions {
    QuerierOptions {
        min_batch: 2000,
        ..QuerierOptions::default()
    }
}

fn fewer_devices() -> (Workload, QuerierOptions) {
    let population = Population {
        preset: Preset::Published,
        scale: 0.002,
        seed: 3,
    };
    let options = QuerierOptions {
        min_conversions_a_day: 20,
        min_batch: 300,
        ..QuerierOptions::default()
    };
    (population.generate(), options)
}

fn attack<'a>(attacker: &'a dyn Attacker, policy: &Policy) -> Attack<'a> {
    let cap = policy.domain_cap().map(std::num::NonZeroU32::get);
    Attack {
        attacker,
        strength: Strength {
            conversion_sites: 1,
            ..Strength::of_paper(cap)
        },
        seed: 1,
    }
}

fn median(outcome: &RunResult) -> f64 {
    outcome.error(50.0).unwrap()
}

#[test]
fn every_attacker_stays_within_the_resilience_theorem() {
    let (workload, options) = fewer_devices();
    let laboratory = Laboratory::new(&workload, options, 2).unwrap();
    let big_bird = Profile::BigBird.policy();
    let policies = [
        big_bird.clone(),
        big_bird.to_builder().domain_cap(1).build().unwrap(),
        big_bird
            .to_builder()
            .impression_site_quota(5.0)
            .build()
            .unwrap(),
        big_bird.to_builder().no_domain_cap().build().unwrap(),
        Profile::GlobalOnly.policy(),
        Profile::CookieMonster.policy(),
        Profile::W3cDraft.policy(),
    ];
    for policy in &policies {
        for attacker in attackers::ALL {
            let outcome = laboratory.run(policy, Some(attack(attacker, policy)));
            let outcome = outcome.unwrap();
            let resilience = outcome.resilience.as_ref().unwrap();
            assert!(
                resilience.hold(),
                "{}: {resilience:?} under {policy:?}",
                attacker.name()
            );
        }
    }
}

/// An attacker that claims to use one quota of each kind, but acts like the omniscient attacker.
struct Liar;

impl Attacker for Liar {
    fn name(&self) -> &'static str {
        "liar"
    }

    fn audience(&self) -> HeardVisits {
        Omniscient.audience()
    }

    fn quotas(&self, _: &Strength) -> Quotas {
        Quotas {
            impression_sites: 1,
            conversion_sites: 1,
        }
    }

    fn strategy(&self, strength: &Strength) -> Box<dyn Strategy + '_> {
        Omniscient.strategy(strength)
    }
}

#[test]
fn an_attacker_that_uses_more_quotas_than_it_states_is_noticed() {
    let (workload, options) = fewer_devices();
    let laboratory = Laboratory::new(&workload, options, 2).unwrap();
    let policy = Profile::BigBird.policy();
    let outcome = laboratory
        .run(&policy, Some(attack(&Liar, &policy)))
        .unwrap();
    assert!(!outcome.resilience.as_ref().unwrap().hold());
}

#[test]
fn attackers_hear_of_queriers_visits_unless_of_all() {
    let (workload, options) = fewer_devices();
    let policy = Profile::BigBird.policy();
    // The attacker owns every site, and needs two visits on a device to take something.
    let attack = Attack {
        strength: Strength {
            impression_sites: u32::MAX,
            conversion_sites: u32::MAX,
            ..Strength::of_paper(Some(2))
        },
        ..attack(&Omniscient, &policy)
    };
    let touched = |options| {
        let laboratory = Laboratory::new(&workload, options, 2).unwrap();
        let outcome = laboratory.run(&policy, Some(attack)).unwrap();
        outcome.resilience.as_ref().unwrap().touched
    };
    let laboratory = Laboratory::new(&workload, options, 2).unwrap();
    let measures = |event: &WorkloadEvent| {
        let site = event.conversion_site;
        laboratory
            .queriers()
            .iter()
            .any(|querier| querier.site == site)
    };
    let mut visited = 0;
    each_device(&workload, |events| {
        let visits = events.iter().filter(|event| measures(event)).count();
        visited += u64::from(visits >= 2);
    });
    let all = QuerierOptions {
        all_visits: true,
        ..options
    };
    let (few, many) = (touched(options), touched(all));
    assert!(0 < few && few <= visited, "{few} and {visited}");
    assert!(many > visited, "{many} and {visited}");
}

#[test]
fn bursts_drain_a_global_budget_and_big_bird_holds_them() {
    let workload = workload();
    let laboratory = Laboratory::new(&workload, options(), 2).unwrap();
    let (global_only, big_bird) = (Profile::GlobalOnly.policy(), Profile::BigBird.policy());
    let alone = median(&laboratory.run(&big_bird, None).unwrap());
    for name in ["random", "naive", "intermediaries"] {
        let attacker = attackers::by_name(name).unwrap();
        let drained = laboratory.run(&global_only, Some(attack(attacker, &global_only)));
        let held = laboratory.run(&big_bird, Some(attack(attacker, &big_bird)));
        let (drained, held) = (median(&drained.unwrap()), median(&held.unwrap()));
        assert!(drained > 3.0 * alone, "{name}: {drained} and {alone}");
        assert!(held < 1.3 * alone, "{name}: {held} and {alone}");
    }
    // The slow attacker gets around the domain cap, so only the quotas of the epoch bound it. It
    // does harm, but less than the omniscient attacker.
    let slow = attackers::by_name("slow").unwrap();
    let paced = laboratory
        .run(&big_bird, Some(attack(slow, &big_bird)))
        .unwrap();
    let omniscient = laboratory
        .run(&big_bird, Some(attack(&Omniscient, &big_bird)))
        .unwrap();
    let (paced, omniscient) = (median(&paced), median(&omniscient));
    assert!(
        alone < paced && paced < omniscient,
        "{alone}, {paced}, {omniscient}"
    );
}

/// The bucket and the blocking limit of every report, by the row of its conversion.
#[derive(Default)]
struct Outcomes(HashMap<u32, (Option<u16>, Option<Limit>)>);

impl Observer for Outcomes {
    fn report(&mut self, row: &ReportRow, _: &Scene<'_>) {
        self.0.insert(row.conversion.row, (row.bucket, row.blocked));
    }
}

impl Outcomes {
    fn of(&self, event: &WorkloadEvent) -> (Option<u16>, Option<Limit>) {
        self.0.get(&event.row).copied().unwrap_or_default()
    }
}

/// The outcome of every report, without and with an attack.
fn both(
    laboratory: &Laboratory<'_>,
    policy: &Policy,
    attacker: &dyn Attacker,
) -> (Outcomes, Outcomes) {
    let replay = |attack| {
        let observed = laboratory.observe(policy, attack, Outcomes::default);
        let mut all = Outcomes::default();
        observed
            .unwrap()
            .into_iter()
            .for_each(|it| all.0.extend(it.0));
        all
    };
    (replay(None), replay(Some(attack(attacker, policy))))
}

/// Calls `each` with the events of every device.
fn each_device(workload: &Workload, mut each: impl FnMut(&[WorkloadEvent])) {
    for number in 0..workload.parts() {
        let part = workload.part(number).unwrap();
        for device in 0..part.devices() {
            let events: Vec<_> = part.range(device).map(|at| part.event(at)).collect();
            each(&events);
        }
    }
}

/// A global budget so large that only quotas matter.
fn quotas_only() -> Policy {
    let policy = Profile::BigBird.policy().to_builder();
    policy
        .capacity(FilterKind::GlobalBudget, 1000.0)
        .build()
        .unwrap()
}

#[test]
fn draining_a_conversion_site_harms_that_site_alone() {
    let workload = workload();
    let laboratory = Laboratory::new(&workload, options(), 2).unwrap();
    let busiest = laboratory
        .queriers()
        .iter()
        .max_by_key(|it| it.conversions)
        .unwrap();
    let (alone, attacked) = both(&laboratory, &quotas_only(), &DrainConversionSite);
    let (mut own, mut harmed) = (0, 0);
    each_device(&workload, |events| {
        for event in events {
            if event.conversion_site == busiest.site {
                own += usize::from(alone.of(event).0.is_some());
                harmed += usize::from(attacked.of(event).1 == Some(Limit::ConversionSiteQuota));
            } else if alone.of(event).0.is_some() {
                // Other sites may even gain: what the attacked site could not pay is left in the
                // quotas that they share with it.
                assert_eq!(alone.of(event).0, attacked.of(event).0, "{event:?}");
            }
        }
    });
    assert!(harmed * 10 > own, "{harmed} of {own}");
    // With the paper's global budget, the attack takes at most one epsilon of it, so almost no
    // report of another site changes.
    let policy = Profile::BigBird.policy();
    let (alone, attacked) = both(&laboratory, &policy, &DrainConversionSite);
    let (mut others, mut changed) = (0, 0);
    each_device(&workload, |events| {
        for event in events {
            if event.conversion_site != busiest.site && alone.of(event).0.is_some() {
                others += 1;
                changed += usize::from(alone.of(event).0 != attacked.of(event).0);
            }
        }
    });
    assert!(changed * 1000 < others, "{changed} of {others}");
}

#[test]
fn draining_an_impression_site_harms_only_who_advertised_there() {
    let workload = workload();
    let laboratory = Laboratory::new(&workload, options(), 2).unwrap();
    let measures = |site| laboratory.queriers().iter().any(|it| it.site == site);
    let mut impressions = vec![0; workload.impression_site_names.len()];
    each_device(&workload, |events| {
        for event in events {
            if let EventKind::Impression { site, .. } = event.kind
                && measures(event.conversion_site)
            {
                impressions[site as usize] += 1;
            }
        }
    });
    let names = &workload.impression_site_names;
    let busiest = (0..impressions.len())
        .max_by_key(|site| (impressions[*site], std::cmp::Reverse(&names[*site])))
        .unwrap();
    let (alone, attacked) = both(&laboratory, &quotas_only(), &DrainImpressionSite);
    let (mut related, mut harmed) = (0, 0);
    each_device(&workload, |events| {
        for event in events {
            let EventKind::Conversion { .. } = event.kind else {
                continue;
            };
            let advertised = events.iter().any(|other| {
                other.conversion_site == event.conversion_site
                    && matches!(
                        other.kind,
                        EventKind::Impression { site, .. } if site as usize == busiest
                    )
            });
            if advertised {
                related += usize::from(alone.of(event).0.is_some());
                harmed += usize::from(attacked.of(event).1 == Some(Limit::ImpressionSiteQuota));
            } else {
                assert_eq!(alone.of(event), attacked.of(event), "{event:?}");
            }
        }
    });
    assert!(harmed * 10 > related, "{harmed} of {related}");
}

/// The reports that an attack took, and the bounds that it broke, under a rule for charging sites.
fn denied(rule: SiteCharging) -> (usize, Vec<Bound>) {
    let (workload, options) = fewer_devices();
    let laboratory = Laboratory::new(&workload, options, 2).unwrap();
    let policy = Profile::BigBird.policy().to_builder();
    let policy = policy.site_charging(rule).build().unwrap();
    let outcome = laboratory
        .run(&policy, Some(attack(&FreeDenial, &policy)))
        .unwrap();
    assert_eq!(outcome.spent.attacker, 0, "it pays nothing");
    let (alone, attacked) = both(&laboratory, &policy, &FreeDenial);
    let mut harmed = 0;
    each_device(&workload, |events| {
        for event in events {
            if alone.of(event).0.is_some() && attacked.of(event) != alone.of(event) {
                assert_eq!(attacked.of(event).1, Some(Limit::ImpressionSiteQuota));
                harmed += 1;
            }
        }
    });
    (
        harmed,
        outcome.resilience.as_ref().unwrap().broken().collect(),
    )
}

#[test]
fn the_papers_site_charging_lets_quotas_be_emptied_for_free() {
    let (harmed, broken) = denied(SiteCharging::Paper);
    assert!(
        harmed > 0 && broken == [Bound::Payment],
        "{harmed} {broken:?}"
    );
}

#[test]
fn what_costs_nothing_takes_nothing() {
    for rule in [SiteCharging::Full, SiteCharging::Uniform] {
        assert_eq!(denied(rule), (0, Vec::new()), "{rule:?}");
    }
}

/// The random attacker, written with the public interface.
struct OwnRandom;

impl Attacker for OwnRandom {
    fn name(&self) -> &'static str {
        "own-random"
    }

    fn strategy(&self, _: &Strength) -> Box<dyn Strategy + '_> {
        Box::new(|stage: &mut AttackStage<'_>| {
            let Strength { sybils, visits, .. } = stage.strength();
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a share of a small number"
            )]
            let share = (0.35 * f64::from(sybils)).round() as usize;
            let (mut others, mut visited) = ((0..sybils).collect(), Vec::new());
            stage.choose(visits as usize, &mut others, &mut visited);
            let mut old: Vec<SiteId> = Vec::new();
            let mut new: Vec<SiteId> = others.iter().map(|it| stage.site_of(*it)).collect();
            for sybil in visited {
                stage.save(sybil);
                let mut listed = Vec::new();
                stage.choose(share, &mut new, &mut listed);
                stage.choose(share - listed.len(), &mut old, &mut listed);
                stage.request(sybil, &listed);
                old.extend(listed);
            }
        })
    }
}

/// The omniscient attacker, written with the public interface.
struct OwnOmniscient;

impl Attacker for OwnOmniscient {
    fn name(&self) -> &'static str {
        "own-omniscient"
    }

    fn strategy(&self, _: &Strength) -> Box<dyn Strategy + '_> {
        Box::new(|stage: &mut AttackStage<'_>| {
            let Strength { sybils, visits, .. } = stage.strength();
            let (epoch, first) = (stage.epoch(), stage.site_of(0));
            let mut seen: Vec<u32> = Vec::new();
            for impression in stage.impressions(epoch).filter(|it| it.site >= first) {
                let sybil = impression.site.0 - first.0;
                if !seen.contains(&sybil) {
                    seen.push(sybil);
                }
            }
            let mut rich: Vec<SiteId> = seen.iter().map(|it| stage.site_of(*it)).collect();
            let epsilon = stage.asking(0).epsilon.micro();
            rich.retain(|site| {
                let quota = Filter::ImpressionSiteQuota(*site);
                stage.balance(epoch, quota).covers(epsilon)
            });
            let fresh = (0..sybils).filter(|sybil| !seen.contains(sybil));
            let visited: Vec<u32> = fresh.chain(seen.iter().copied()).collect();
            for (number, sybil) in visited.into_iter().take(visits as usize).enumerate() {
                stage.save(sybil);
                stage.request(sybil, rich.get(number..=number).unwrap_or_default());
            }
        })
    }
}

#[test]
fn the_public_interface_is_enough_for_the_papers_attackers() {
    let (workload, options) = fewer_devices();
    let laboratory = Laboratory::new(&workload, options, 2).unwrap();
    let pairs: [(&dyn Attacker, &dyn Attacker); 2] = [
        (&Random { share: 0.35 }, &OwnRandom),
        (&Omniscient, &OwnOmniscient),
    ];
    for profile in [Profile::BigBird, Profile::GlobalOnly] {
        let policy = profile.policy();
        for (ours, theirs) in pairs {
            let [ours, theirs] = [ours, theirs].map(|attacker| {
                laboratory
                    .run(&policy, Some(attack(attacker, &policy)))
                    .unwrap()
            });
            assert!(ours.spent.attacker > 0);
            assert_eq!(ours, theirs, "{profile}");
        }
    }
}

#[test]
fn the_strongest_attacker_does_more_harm_than_the_omniscient_one() {
    let (workload, options) = fewer_devices();
    let laboratory = Laboratory::with_lookback(&workload, options, 3, 2).unwrap();
    let policy = Profile::BigBird.policy();
    let [strongest, omniscient] = [&Strongest as &dyn Attacker, &Omniscient].map(|attacker| {
        laboratory
            .run(&policy, Some(attack(attacker, &policy)))
            .unwrap()
    });
    assert!(strongest.spent.attacker > omniscient.spent.attacker);
    assert!(median(&strongest) > median(&omniscient));
}
