//! Random policies and histories, and the interface through which the real device and the reference
//! run them.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use bigbird::{Arithmetic, DepletedSites};
use bigbird::{
    AttributionQuery, Device, EpochIndex, Filter, FilterKind, GlobalCharging, ImpressionStore,
    Policy, Profile, ReadLimits, SiteCharging, SiteId, StoreLimits, UserAction, Workspace,
};
use proptest::prelude::*;

use bigbird_reference::{Ad, Ask, Reference, ReferenceAnswer};

/// A budget manager for one device.
pub trait TestedManager {
    fn save(&mut self, epoch: i64, ad: &Ad);
    fn ask(&mut self, ask: &Ask) -> ReferenceAnswer;
    fn stored(&self, epoch: i64) -> Vec<Ad>;
    fn consumed(&self) -> BTreeMap<(i64, Filter), u64>;
    fn admitted(&self) -> BTreeMap<(u64, i64), BTreeSet<u32>>;
    fn prune_before(&mut self, epoch: i64);
    fn remove_site(&mut self, site: u32);
    fn end_user_actions_before(&mut self, action: u64);
    fn reset(&mut self);

    fn live(&mut self, history: &[HistoryStep]) -> Vec<(Ask, ReferenceAnswer)> {
        let mut answers = Vec::new();
        for step in history {
            match step {
                HistoryStep::Save(epoch, ad) => self.save(*epoch, ad),
                HistoryStep::Ask(ask) => answers.push((ask.clone(), self.ask(ask))),
                other => self.change(other),
            }
        }
        answers
    }

    fn change(&mut self, step: &HistoryStep) {
        match step {
            HistoryStep::Save(epoch, ad) => self.save(*epoch, ad),
            HistoryStep::Ask(_) => {}
            HistoryStep::PruneBefore(epoch) => self.prune_before(*epoch),
            HistoryStep::RemoveSite(site) => self.remove_site(*site),
            HistoryStep::EndActionsBefore(action) => self.end_user_actions_before(*action),
        }
    }
}

#[derive(Debug, Clone)]
pub enum HistoryStep {
    Save(i64, Ad),
    Ask(Ask),
    PruneBefore(i64),
    RemoveSite(u32),
    EndActionsBefore(u64),
}

impl TestedManager for Reference {
    fn save(&mut self, epoch: i64, ad: &Ad) {
        Reference::save(self, epoch, ad);
    }

    fn ask(&mut self, ask: &Ask) -> ReferenceAnswer {
        Reference::ask(self, ask)
    }

    fn stored(&self, epoch: i64) -> Vec<Ad> {
        let of_epoch = self.ads.iter().filter(|(other, _)| *other == epoch);
        of_epoch.map(|(_, ad)| ad.clone()).collect()
    }

    fn consumed(&self) -> BTreeMap<(i64, Filter), u64> {
        self.consumed.clone()
    }

    fn admitted(&self) -> BTreeMap<(u64, i64), BTreeSet<u32>> {
        self.accessed
            .iter()
            .filter(|(_, sites)| !sites.is_empty())
            .map(|(key, sites)| (*key, sites.clone()))
            .collect()
    }

    fn prune_before(&mut self, epoch: i64) {
        Reference::prune_before(self, epoch);
    }

    fn remove_site(&mut self, site: u32) {
        Reference::remove_site(self, site);
    }

    fn end_user_actions_before(&mut self, action: u64) {
        Reference::end_user_actions_before(self, action);
    }

    fn reset(&mut self) {
        Reference::reset(self);
    }
}

/// The real device, with one workspace for all its reports.
pub struct Real {
    device: Device<ImpressionStore>,
    workspace: Workspace<AttributionQuery>,
}

pub fn device(policy: Policy, limit: usize) -> Real {
    let limits = StoreLimits {
        units_per_epoch: NonZeroU32::new(u32::try_from(limit).unwrap()).unwrap(),
    };
    Real {
        device: Device::with_events(policy, ImpressionStore::new(limits)),
        workspace: Workspace::default(),
    }
}

/// Random read limits, often so small that some impressions are not read.
fn read_limits() -> impl Strategy<Value = ReadLimits> {
    prop_oneof![
        Just(ReadLimits::default()),
        (1..5_u32, 1..60_u32).prop_map(|(relevant, examined)| ReadLimits { relevant, examined }),
    ]
}

impl TestedManager for Real {
    fn save(&mut self, epoch: i64, ad: &Ad) {
        ad.save_on(&mut self.device, epoch);
    }

    fn ask(&mut self, ask: &Ask) -> ReferenceAnswer {
        let answer = ask.ask_device(&mut self.device, &mut self.workspace);
        answer.unwrap()
    }

    fn stored(&self, epoch: i64) -> Vec<Ad> {
        let plain = |ids: &[SiteId]| ids.iter().map(|id| id.0).collect();
        self.device
            .events()
            .impressions(EpochIndex(epoch))
            .map(|impression| Ad {
                site: impression.site.0,
                intermediary: impression.intermediary.map(|id| id.0),
                action: impression.user_action.0,
                timestamp: impression.timestamp.0,
                expires: impression.expires.0,
                match_value: impression.match_value,
                index: impression.histogram_index,
                priority: impression.priority,
                conversion_sites: plain(impression.conversion_sites),
                conversion_callers: plain(impression.conversion_callers),
            })
            .collect()
    }

    fn consumed(&self) -> BTreeMap<(i64, Filter), u64> {
        let mut consumed = BTreeMap::new();
        for view in self.device.ledger().epochs() {
            for (filter, amount) in view.filters() {
                consumed.insert((view.epoch().0, filter), amount.get());
            }
        }
        consumed
    }

    fn admitted(&self) -> BTreeMap<(u64, i64), BTreeSet<u32>> {
        let mut admitted = BTreeMap::new();
        for view in self.device.ledger().epochs() {
            for action in view.user_actions() {
                let sites = view.admitted(action).map(|site| site.0).collect();
                admitted.insert((action.0, view.epoch().0), sites);
            }
        }
        admitted
    }

    fn prune_before(&mut self, epoch: i64) {
        self.device.prune_before(EpochIndex(epoch));
    }

    fn remove_site(&mut self, site: u32) {
        let events = self.device.events_mut();
        events.retain(|impression| impression.site != SiteId(site));
    }

    fn end_user_actions_before(&mut self, action: u64) {
        self.device.end_user_actions_before(UserAction(action));
    }

    fn reset(&mut self) {
        self.device.reset();
    }
}

/// The number of epochs in a history. Each epoch has four user actions with ids of its own.
pub const EPOCHS: i64 = 4;

fn action_of(epoch: i64) -> impl Strategy<Value = u64> {
    (0..4_u64).prop_map(move |action| epoch.unsigned_abs() * 4 + action)
}

fn some_of(items: &'static [u32]) -> impl Strategy<Value = Vec<u32>> {
    prop_oneof![
        2 => Just(Vec::new()),
        1 => proptest::sample::subsequence(items, 1..=2),
    ]
}

fn ad() -> impl Strategy<Value = HistoryStep> {
    (0..EPOCHS).prop_flat_map(|epoch| {
        (
            (0..5_u32, prop::option::weighted(0.3, 20..22_u32)),
            action_of(epoch),
            (0..100_i64, 0..400_i64),
            (0..3_u32, 0..6_u32, -1..2_i32),
            (some_of(&[1, 2, 3]), some_of(&[1, 2, 20, 21])),
        )
            .prop_map(move |(sites, action, times, numbers, audience)| {
                let ad = Ad {
                    site: sites.0,
                    intermediary: sites.1,
                    action,
                    timestamp: epoch * 100 + times.0,
                    expires: epoch * 100 + times.0 + times.1,
                    match_value: numbers.0,
                    index: numbers.1,
                    priority: numbers.2,
                    conversion_sites: audience.0,
                    conversion_callers: audience.1,
                };
                HistoryStep::Save(epoch, ad)
            })
    })
}

fn ask() -> impl Strategy<Value = HistoryStep> {
    let epsilons = prop::sample::select(&[1, 1_000, 100_000, 333_333, 700_000, 1_000_000][..]);
    (0..EPOCHS).prop_flat_map(move |current| {
        (
            (1..5_u32, prop::option::of(20..22_u32), any::<bool>()),
            (action_of(current), 0..3_i64, 0..100_i64, 0..400_i64),
            (
                some_of(&[0, 1, 2, 3, 4]),
                some_of(&[0, 1, 2, 20, 21]),
                some_of(&[0, 1, 2]),
            ),
            prop::collection::vec(0.1..1.0_f64, 1..4),
            (1..10_u32, 0..10_u32, 1..5_u32),
            (
                prop::collection::vec(0.0..1.0_f64, 1..4),
                prop::collection::vec(20..22_u32, 0..2),
                prop::option::weighted(0.2, 0..EPOCHS),
                epsilons.clone(),
                read_limits(),
            ),
        )
            .prop_map(move |(who, when, names, credit, numbers, rest)| {
                let now = current * 100 + when.2;
                let (draws, mut callers, readable_from, epsilon_micro, read_limits) = rest;
                callers.push(who.1.unwrap_or(who.0));
                HistoryStep::Ask(Ask {
                    querier: if who.2 { who.1.unwrap_or(who.0) } else { who.0 },
                    conversion_site: who.0,
                    callers,
                    action: when.0,
                    earliest: current - when.1,
                    current,
                    readable_from: readable_from.unwrap_or(i64::MIN),
                    now,
                    not_before: now - when.3,
                    impression_sites: names.0,
                    impression_callers: names.1,
                    match_values: names.2,
                    credit,
                    value: numbers.0,
                    max_value: numbers.0 + numbers.1,
                    epsilon_micro,
                    size: numbers.2,
                    read_limits,
                    draws,
                })
            })
    })
}

/// A random mix of saves and requests. Times are not in order: the clock may step back.
pub fn history(longest: usize) -> impl Strategy<Value = Vec<HistoryStep>> {
    let other = prop_oneof![
        (0..EPOCHS).prop_map(HistoryStep::PruneBefore),
        (0..5_u32).prop_map(HistoryStep::RemoveSite),
        (0..16_u64).prop_map(HistoryStep::EndActionsBefore),
    ];
    prop::collection::vec(prop_oneof![60 => ad(), 40 => ask(), 3 => other], 1..longest)
}

/// A random policy.
pub fn policy() -> impl Strategy<Value = Policy> {
    let capacity = || {
        prop_oneof![
            4 => prop::sample::select(&[0.0, 0.05, 0.1, 0.5, 1.0, 2.0][..]).prop_map(Some),
            1 => Just(None),
        ]
    };
    (
        prop::sample::select(&Profile::ALL[..]),
        [capacity(), capacity(), capacity(), capacity()],
        prop::option::weighted(0.4, prop::sample::select(&[0.1, 0.5, 1.0][..])),
        prop::option::weighted(0.6, 1..4_u32),
        any::<[bool; 3]>(),
        prop::sample::select(&SiteCharging::ALL[..]),
    )
        .prop_map(
            |(profile, capacities, of_action, cap, options, site_charging)| {
                let [exact, individual, drop_epoch] = options;
                let mut builder = profile.policy().to_builder();
                for (kind, capacity) in FilterKind::ALL.into_iter().zip(capacities) {
                    builder = match capacity {
                        Some(epsilon) => builder.capacity(kind, epsilon),
                        None => builder.unlimited(kind),
                    };
                }
                if let Some(epsilon) = of_action {
                    builder = builder.user_action_budget(epsilon);
                }
                builder = match cap {
                    Some(cap) => builder.domain_cap(cap),
                    None => builder.no_domain_cap(),
                };
                builder
                    .arithmetic(if exact {
                        Arithmetic::Exact
                    } else {
                        Arithmetic::Double
                    })
                    .global_charging(if individual {
                        GlobalCharging::Individual
                    } else {
                        GlobalCharging::WorstCase
                    })
                    .site_charging(site_charging)
                    .depleted_sites(if drop_epoch {
                        DepletedSites::DropEpoch
                    } else {
                        DepletedSites::DropSite
                    })
                    .build()
                    .unwrap()
            },
        )
}
