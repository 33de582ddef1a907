//! Replaying a workload under a policy: what each report gives, and why not.
//!
//! A device is independent of every other, so devices are shared out among threads; what comes out is
//! the same for any number of them. The budget manager is the core's own.

use std::sync::Mutex;

use bigbird::{
    AttributionQuery, Cause, Device, EpochIndex, FilterKind, Histogram, Impression,
    ImpressionStore, Policy, Request, SiteId, Timestamp, UserAction, Window, Workspace,
};

use crate::attack::{Attacker, Memory, Stage, Strength};
use crate::workload::{BUCKETS, Event, Kind, Querier, Workload};

/// Why a report, or a part of it, was blocked: in the order in which causes are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Blocked {
    /// By the domain cap.
    DomainCap,
    /// By the querier budget.
    Querier,
    /// By the global budget.
    Global,
    /// By an impression-site quota.
    ImpressionSite,
    /// By the conversion-site quota.
    ConversionSite,
}

impl Blocked {
    /// Every cause.
    pub const ALL: [Self; 5] = [
        Self::DomainCap,
        Self::Querier,
        Self::Global,
        Self::ImpressionSite,
        Self::ConversionSite,
    ];

    fn of(cause: Cause) -> Option<Self> {
        match cause {
            Cause::DomainCap => Some(Self::DomainCap),
            Cause::Filter(FilterKind::Querier) => Some(Self::Querier),
            Cause::Filter(FilterKind::Global) => Some(Self::Global),
            Cause::Filter(FilterKind::ImpressionSite) => Some(Self::ImpressionSite),
            Cause::Filter(FilterKind::ConversionSite) => Some(Self::ConversionSite),
            Cause::Filter(FilterKind::UserAction) | Cause::Pruned => None,
        }
    }
}

/// What a report gave, in a byte: the bucket of its value, or none; and the cause that blocked
/// something, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Given(u8);

const NO_BUCKET: u8 = 7;

impl Given {
    /// Nothing, for no reason.
    pub const NOTHING: Self = Self(NO_BUCKET);

    fn new(bucket: Option<u8>, blocked: Option<Blocked>) -> Self {
        let cause = blocked.map_or(0, |blocked| blocked as u8 + 1);
        Self(cause << 3 | bucket.unwrap_or(NO_BUCKET))
    }

    /// The bucket that its value is in.
    pub fn bucket(self) -> Option<usize> {
        let bucket = self.0 & 7;
        (bucket != NO_BUCKET).then_some(usize::from(bucket))
    }

    /// What blocked some of it.
    pub fn blocked(self) -> Option<Blocked> {
        let cause = usize::from(self.0 >> 3);
        Blocked::ALL.get(cause.checked_sub(1)?).copied()
    }
}

/// How a workload is replayed.
#[derive(Debug, Clone)]
pub struct Replay<'a> {
    /// What happens.
    pub workload: &'a Workload,
    /// Who measures.
    pub queriers: &'a [Querier],
    /// The rules of every device.
    pub policy: &'a Policy,
    /// How many epochs before the current one a conversion looks at.
    pub lookback_epochs: u16,
    /// How many threads work.
    pub threads: usize,
    /// Who attacks, if anybody does.
    pub attack: Option<Attack<'a>>,
}

/// An attack on every device.
#[derive(Clone, Copy)]
pub struct Attack<'a> {
    /// What the attacker does.
    pub attacker: &'a dyn Attacker,
    /// How strong it is.
    pub strength: Strength,
    /// What its random choices follow from.
    pub seed: u64,
}

impl std::fmt::Debug for Attack<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attack")
            .field("attacker", &self.attacker.name())
            .field("strength", &self.strength)
            .field("seed", &self.seed)
            .finish()
    }
}

impl Replay<'_> {
    /// What the report of each conversion gave, by the place of its event.
    pub fn run(&self) -> Vec<Given> {
        let mut given = vec![Given::NOTHING; self.workload.len()];
        let mut queriers = vec![None; self.workload.conversion_site_names.len()];
        for (number, querier) in self.queriers.iter().enumerate() {
            queriers[querier.site as usize] = Some(number);
        }
        let owned = self.attack.map(|attack| Owned::new(self, attack.strength));
        let shares = Mutex::new(self.shares(&mut given));
        let next = || {
            let mut shares = shares
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            shares.pop()
        };
        let work = || {
            let mut worker = Worker::new(self, &queriers, owned.as_ref());
            while let Some((devices, given)) = next() {
                worker.replay(devices, given);
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..self.threads.max(1) {
                scope.spawn(work);
            }
            work();
        });
        given
    }

    /// Splits the devices, each part with the place for its results.
    fn shares<'g>(
        &self,
        mut given: &'g mut [Given],
    ) -> Vec<(std::ops::Range<usize>, &'g mut [Given])> {
        const DEVICES: usize = 4096;
        let mut shares = Vec::new();
        let mut begin = 0;
        while begin < self.workload.devices() {
            let end = (begin + DEVICES).min(self.workload.devices());
            let events = self.workload.range(end - 1).end - self.workload.range(begin).start;
            let (share, rest) = given.split_at_mut(events);
            shares.push((begin..end, share));
            given = rest;
            begin = end;
        }
        shares
    }
}

/// The sites that an attacker owns.
struct Owned {
    impression_sites: Vec<bool>,
    conversion_sites: Vec<bool>,
}

impl Owned {
    fn new(replay: &Replay<'_>, strength: Strength) -> Self {
        let workload = replay.workload;
        let mut shown = vec![0_u32; workload.impression_site_names.len()];
        for at in 0..workload.len() {
            if let Kind::Impression { site, .. } = workload.event(at).kind {
                shown[site as usize] += 1;
            }
        }
        let mut measured = vec![0_u32; workload.conversion_site_names.len()];
        for querier in replay.queriers {
            let reports = u32::try_from(querier.reports.len()).unwrap_or(u32::MAX);
            measured[querier.site as usize] = reports;
        }
        let ranked = |counts: &[u32], owned: u32| {
            let mut sites: Vec<usize> = (0..counts.len()).filter(|at| counts[*at] > 0).collect();
            sites.sort_by_key(|at| (std::cmp::Reverse(counts[*at]), *at));
            let mut is_owned = vec![false; counts.len()];
            let first = strength.first_rank.saturating_sub(1) as usize;
            for site in sites.into_iter().skip(first).take(owned as usize) {
                is_owned[site] = true;
            }
            is_owned
        };
        Self {
            impression_sites: ranked(&shown, strength.impression_sites),
            conversion_sites: ranked(&measured, strength.conversion_sites),
        }
    }

    /// Whether an event happens on a site of the attacker.
    fn hears(&self, event: &Event) -> bool {
        match event.kind {
            Kind::Impression { site, .. } => self.impression_sites[site as usize],
            Kind::Conversion => self.conversion_sites[event.conversion_site as usize],
        }
    }
}

/// One thread's device, used for many.
struct Worker<'a> {
    replay: &'a Replay<'a>,
    /// The number of each conversion site among queriers, if it is one.
    queriers: &'a [Option<usize>],
    queries: Vec<Option<AttributionQuery>>,
    device: Device<ImpressionStore>,
    workspace: Workspace<AttributionQuery>,
    /// The attack, the sites it owns, and what it remembers of the device.
    attack: Option<(Attack<'a>, &'a Owned, Memory)>,
}

impl<'a> Worker<'a> {
    fn new(
        replay: &'a Replay<'a>,
        queriers: &'a [Option<usize>],
        owned: Option<&'a Owned>,
    ) -> Self {
        let nobody = SiteId(0);
        let request = Request {
            querier: nobody,
            conversion_site: nobody,
            user_action: UserAction(0),
            window: Window::single(EpochIndex(0)),
        };
        let queries = replay.queriers.iter().map(|querier| {
            let buckets = u32::try_from(BUCKETS).unwrap_or(u32::MAX);
            let query = AttributionQuery::builder(request, Timestamp(0), buckets);
            query.epsilon(querier.epsilon()).build().ok()
        });
        let sites = queriers.len() + replay.workload.impression_site_names.len();
        let first_sybil = SiteId(u32::try_from(sites).unwrap_or(u32::MAX));
        let capacity = replay.policy.capacities().querier.amount();
        let epsilon = capacity.map_or(1.0, bigbird::MicroEpsilon::to_epsilon);
        let attack = replay.attack.zip(owned).map(|(attack, owned)| {
            let sybils = attack.strength.sybils;
            (
                attack,
                owned,
                Memory::new(sybils, first_sybil, epsilon, attack.seed),
            )
        });
        Self {
            attack,
            queries: queries.collect(),
            device: Device::new(replay.policy.clone()),
            workspace: Workspace::default(),
            replay,
            queriers,
        }
    }

    fn replay(&mut self, devices: std::ops::Range<usize>, given: &mut [Given]) {
        let begin = self.replay.workload.range(devices.start).start;
        for device in devices {
            self.device.reset();
            if let Some((_, _, memory)) = &mut self.attack {
                memory.begin(device as u64);
            }
            for at in self.replay.workload.range(device) {
                let attacked = self.attack.as_mut().and_then(|(_, owned, memory)| {
                    let event = self.replay.workload.event(at);
                    owned.hears(&event).then(|| memory.comes_first())
                });
                if attacked == Some(true) {
                    self.act(at);
                }
                given[at - begin] = self.happen(at);
                if attacked == Some(false) {
                    self.act(at);
                }
            }
        }
    }

    /// Makes an event happen; says what its report gives, if it has one.
    fn happen(&mut self, at: usize) -> Given {
        let event = self.replay.workload.event(at);
        let epoch = EpochIndex(i64::from(event.epoch));
        let now = Timestamp(i64::from(event.minute));
        let user_action = UserAction(at as u64 + 1);
        let conversion_site = SiteId(event.conversion_site);
        match event.kind {
            Kind::Impression { site, bucket } => {
                let impression = Impression {
                    conversion_sites: &[conversion_site],
                    ..Impression::new(self.impression_site(site), user_action, now, bucket.into())
                };
                self.device.save_impression(epoch, &impression);
                Given::NOTHING
            }
            Kind::Conversion => {
                let Some(querier) = self.queriers[event.conversion_site as usize] else {
                    return Given::NOTHING;
                };
                let earliest = EpochIndex(epoch.0 - i64::from(self.replay.lookback_epochs));
                let Ok(window) = Window::new(earliest, epoch) else {
                    return Given::NOTHING;
                };
                let request = Request {
                    querier: conversion_site,
                    conversion_site,
                    user_action,
                    window,
                };
                self.measure(querier, request, now)
            }
        }
    }

    /// Lets the attacker act on the visit of an event: in a user action of its own.
    fn act(&mut self, at: usize) {
        const ATTACK: u64 = 1 << 62;
        let event = self.replay.workload.event(at);
        if let Some((attack, _, memory)) = &mut self.attack {
            attack.attacker.act(&mut Stage {
                device: &mut self.device,
                workspace: &mut self.workspace,
                memory,
                strength: attack.strength,
                epoch: EpochIndex(i64::from(event.epoch)),
                lookback_epochs: self.replay.lookback_epochs,
                now: Timestamp(i64::from(event.minute)),
                user_action: UserAction(ATTACK + at as u64),
            });
        }
    }

    fn measure(&mut self, querier: usize, request: Request, now: Timestamp) -> Given {
        let Some(query) = &mut self.queries[querier] else {
            return Given::NOTHING;
        };
        if query.retarget(request, now, Timestamp(i64::MIN)).is_err() {
            return Given::NOTHING;
        }
        self.device
            .report_in(query, &mut || 0.0, &mut self.workspace);
        let blocked = self
            .workspace
            .decision()
            .first_cause()
            .and_then(Blocked::of);
        Given::new(bucket_of(self.workspace.report()), blocked)
    }

    /// Impression sites are numbered behind conversion sites.
    fn impression_site(&self, site: u32) -> SiteId {
        let conversion_sites = self.queriers.len();
        SiteId(
            u32::try_from(conversion_sites)
                .unwrap_or(u32::MAX)
                .saturating_add(site),
        )
    }
}

/// The bucket of a report of value 1.
fn bucket_of(report: &Histogram) -> Option<u8> {
    let at = report.buckets().iter().position(|value| *value > 0)?;
    u8::try_from(at).ok()
}
