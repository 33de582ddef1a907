//! The strongest attacker takes at least as much from global budgets as any other, on random
//! devices, under random policies, lookbacks and strengths.
#![allow(missing_docs, clippy::unwrap_used)]

use bigbird::{DepletedSites, Epsilon, FilterKind, Policy, Profile, SiteCharging, SiteId};
use bigbird_lab::attack::attackers::{self, Omniscient, Strongest};
use bigbird_lab::attack::{
    Attack, AttackStage, Attacker, HeardVisits, Quotas, Strategy, Strength, SybilImpression,
    SybilRequest,
};
use bigbird_lab::evaluation::{Laboratory, QuerierOptions};
use bigbird_lab::workload::{DAY, EventKind, Workload, WorkloadEvent};

/// RandomCases that look random (splitmix64).
struct RandomCases(u64);

impl RandomCases {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let high = u32::try_from((mixed ^ mixed >> 31) >> 32).unwrap();
        high % bound
    }

    fn one_of<T: Clone>(&mut self, items: &[T]) -> T {
        let at = self.below(u32::try_from(items.len()).unwrap());
        items[at as usize].clone()
    }
}

/// One device, so that taking more on another cannot make up for taking less here.
fn device(numbers: &mut RandomCases, epochs: u32) -> Workload {
    let (shops, papers) = (numbers.below(3) + 1, numbers.below(3) + 1);
    let names = |prefix: &str, count: u32| (0..count).map(|it| format!("{prefix}{it}")).collect();
    let mut workload = Workload::default();
    workload.conversion_site_names = names("shop", shops);
    workload.impression_site_names = names("paper", papers);
    let mut events: Vec<WorkloadEvent> = (0..numbers.below(40) + 1)
        .map(|row| {
            let minute = numbers.below(epochs * DAY);
            let kind = match numbers.below(2) {
                0 => EventKind::Impression {
                    site: numbers.below(papers),
                    bucket: u16::try_from(numbers.below(5)).unwrap(),
                },
                _ => EventKind::Conversion {
                    value: numbers.below(3) + 1,
                    came_from: None,
                },
            };
            WorkloadEvent {
                minute,
                epoch: u16::try_from(minute / DAY).unwrap(),
                conversion_site: numbers.below(shops),
                kind,
                row,
            }
        })
        .collect();
    workload.push_device(&mut events);
    workload
}

fn policy(numbers: &mut RandomCases) -> Option<Policy> {
    let profiles = [Profile::BigBird, Profile::BigBird, Profile::W3cDraft];
    let mut policy = numbers.one_of(&profiles).policy().to_builder();
    for kind in [
        FilterKind::QuerierBudget,
        FilterKind::ImpressionSiteQuota,
        FilterKind::ConversionSiteQuota,
        FilterKind::UserActionBudget,
    ] {
        let unlimited = if kind == FilterKind::UserActionBudget {
            5
        } else {
            1
        };
        policy = match numbers.below(6) {
            it if it < unlimited => policy.unlimited(kind),
            _ => policy.capacity(kind, numbers.one_of(&[0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 4.0])),
        };
    }
    let global = numbers.one_of(&[1.0, 2.5, 4.0, 8.0, 20.0]);
    policy = policy.capacity(FilterKind::GlobalBudget, global);
    policy = match numbers.below(5) {
        0 => policy.no_domain_cap(),
        cap => policy.domain_cap(cap),
    };
    policy = policy.site_charging(numbers.one_of(&[
        SiteCharging::Full,
        SiteCharging::Paper,
        SiteCharging::Uniform,
    ]));
    if numbers.below(4) == 0 {
        policy = policy.depleted_sites(DepletedSites::DropSite);
    }
    policy.build().ok()
}

/// An attacker that hears of the visits of another.
struct Hearing<'a>(&'a dyn Attacker, HeardVisits);

impl Attacker for Hearing<'_> {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn audience(&self) -> HeardVisits {
        self.1
    }

    fn quotas(&self, strength: &Strength) -> Quotas {
        self.0.quotas(strength)
    }

    fn strategy(&self, strength: &Strength) -> Box<dyn Strategy + '_> {
        self.0.strategy(strength)
    }
}

/// An attacker that does anything: it saves on, asks on and asks about pages of Sybils at random,
/// with any ε, value and window.
struct Chaotic;

impl Attacker for Chaotic {
    fn name(&self) -> &'static str {
        "chaotic"
    }

    fn strategy(&self, _: &Strength) -> Box<dyn Strategy + '_> {
        Box::new(|stage: &mut AttackStage<'_>| {
            let sybils = stage.strength().sybils;
            for _ in 0..stage.random_below(12) {
                let sybil = stage.random_below(sybils);
                let page = stage.random_below(sybils);
                let page = stage.site_of(page);
                if stage.random_below(3) == 0 {
                    let embedded = stage.random_below(2) == 0;
                    let impression = SybilImpression {
                        sybil: embedded.then_some(sybil),
                        bucket: stage.random_below(8) / 7,
                        match_value: stage.random_below(2),
                        ..SybilImpression::on(page)
                    };
                    stage.save_impression(&impression);
                    continue;
                }
                let mut pool: Vec<SiteId> = (0..sybils).map(|it| stage.site_of(it)).collect();
                let mut list = Vec::new();
                let count = stage.random_below(3) + 1;
                stage.choose(count as usize, &mut pool, &mut list);
                let max_value = stage.random_below(4) + 1;
                let epsilon = f64::from(stage.random_below(40) + 1) / 10.0;
                let value = stage.random_below(max_value) + 1;
                let window = u32::from(stage.lookback_epochs()) + 1;
                let lookback = stage.random_below(window);
                stage.request_report(&SybilRequest {
                    conversion_site: page,
                    impression_sites: &list,
                    epsilon: Epsilon::new(epsilon).unwrap(),
                    value,
                    max_value,
                    lookback_epochs: u16::try_from(lookback).unwrap(),
                    ..stage.asking(sybil)
                });
            }
        })
    }
}

/// The comparisons in which another attacker took more than the champion, and their number.
fn beaten(champion: &dyn Attacker, cases: u64) -> (Vec<String>, u32) {
    let rivals: Vec<&dyn Attacker> = attackers::ALL
        .into_iter()
        .filter(|rival| rival.name() != "strongest")
        .chain(std::iter::once(&Chaotic as &dyn Attacker))
        .collect();
    let (mut found, mut compared) = (Vec::new(), 0);
    for case in 0..cases {
        let mut numbers = RandomCases(case);
        let epochs = numbers.below(5) + 1;
        let workload = device(&mut numbers, epochs);
        let Some(policy) = policy(&mut numbers) else {
            continue;
        };
        let options = QuerierOptions {
            min_conversions_a_day: 0,
            min_batch: numbers.one_of(&[300, 1000, 5000]),
            all_visits: true,
            ..QuerierOptions::default()
        };
        let lookback = u16::try_from(numbers.below(4)).unwrap();
        let laboratory = Laboratory::with_lookback(&workload, options, lookback, 1).unwrap();
        let cap = policy.domain_cap().map(std::num::NonZeroU32::get);
        let strength = Strength {
            sybils: numbers.one_of(&[1, 2, 3, 5, 8, 20]),
            ..Strength::of_paper(cap)
        };
        let taken = |attacker: &dyn Attacker| {
            let attack = Attack {
                attacker,
                strength,
                seed: case,
            };
            laboratory
                .run(&policy, Some(attack))
                .unwrap()
                .spent
                .attacker
        };
        for rival in &rivals {
            compared += 1;
            let most = taken(&Hearing(champion, rival.audience()));
            let other = taken(*rival);
            if other > most {
                let what = format!(
                    "case {case}: {} takes {other}, {} takes {most}, lookback {lookback}, \
                     {strength:?}, {policy:?}",
                    rival.name(),
                    champion.name()
                );
                found.push(what);
            }
        }
    }
    (found, compared)
}

#[test]
fn no_attacker_takes_more_than_the_strongest() {
    let (found, compared) = beaten(&Strongest, 1500);
    assert!(compared > 5000, "{compared}");
    assert!(
        found.is_empty(),
        "{} of {compared}:\n{}",
        found.len(),
        found.join("\n")
    );
}

/// The paper's omniscient attacker looks at the current epoch only. The test above would notice.
#[test]
fn the_omniscient_attacker_is_not_the_worst() {
    let (found, _) = beaten(&Omniscient, 300);
    let by = |name: &str| {
        found
            .iter()
            .any(|it| it.contains(&format!(": {name} takes")))
    };
    assert!(
        by("random") && by("slow") && by("naive"),
        "{}",
        found.join("\n")
    );
}
