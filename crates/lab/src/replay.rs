//! Replaying a workload under a policy: what each report gives, and why not.
//!
//! A device is independent of every other, so devices are shared out among threads; what comes out is
//! the same for any number of them. The budget manager is the core's own.

use std::sync::{Mutex, PoisonError};

use bigbird::{
    AttributionQuery, Cause, Device, EpochIndex, Epsilon, FilterKind, Histogram, Impression,
    ImpressionStore, Policy, Request, SiteId, Timestamp, UserAction, Window, Workspace,
};

use crate::attack::{Attack, Audience, Memory, Stage, Visit};
use crate::resilience::{Bounds, Resilience, Spent, Tally};
use crate::tune::{Exact, Payers};
use crate::workload::read::ReadError;
use crate::workload::{BUCKETS, Event, Kind, Part, Survey, Workload, mix};

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

    /// Its name, as in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::DomainCap => "domainCap",
            Self::Querier => "querier",
            Self::Global => "global",
            Self::ImpressionSite => "impressionSite",
            Self::ConversionSite => "conversionSite",
        }
    }

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
    /// Who measures, and how busy sites are.
    pub survey: &'a Survey,
    /// The rules of every device.
    pub policy: &'a Policy,
    /// How many epochs before the current one a conversion looks at.
    pub lookback_epochs: u16,
    /// How many threads work.
    pub threads: usize,
    /// Who attacks, if anybody does.
    pub attack: Option<Attack<'a>>,
    /// Whether to count which sites pay.
    pub count_sites: bool,
}

/// What came of a replay.
#[derive(Debug)]
pub struct Replayed {
    /// What the report of each conversion gave, by the place of its event.
    pub given: Vec<Given>,
    /// What was spent of global budgets.
    pub spent: Spent,
    /// How near the attack came to its bounds; the one by query is not known yet.
    pub resilience: Option<Resilience>,
    /// Which sites pay, if they were counted.
    pub exact: Exact,
}

impl Replay<'_> {
    /// Makes everything happen.
    ///
    /// # Errors
    /// If a part of the workload is on disk and cannot be read.
    pub fn run(&self) -> Result<Replayed, ReadError> {
        let mut given = vec![Given::NOTHING; self.workload.len()];
        let mut queriers = vec![None; self.workload.conversion_site_names.len()];
        for (number, querier) in self.survey.queriers.iter().enumerate() {
            queriers[querier.site as usize] = Some(number);
        }
        let heard = self.attack.map(|attack| Heard::new(self, &attack));
        let shares = Mutex::new(self.shares(&mut given));
        let next = || shares.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let work = || -> Result<_, ReadError> {
            let mut worker = Worker::new(self, &queriers, heard.as_ref());
            while let Some((number, given)) = next() {
                let part = self.workload.part(number)?;
                worker.replay(&part, self.workload.before(number), given);
            }
            Ok((worker.spent, worker.resilience, worker.exact))
        };
        let results: Vec<_> = std::thread::scope(|scope| {
            let threads = self.threads.clamp(1, self.workload.parts().max(1));
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
            let own = work();
            let others = others.into_iter().map(|thread| match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            std::iter::once(own).chain(others).collect()
        });
        let mut spent = Spent::default();
        let mut resilience: Option<Resilience> = None;
        let mut exact = Exact::default();
        for result in results {
            let (more, of_thread, counted) = result?;
            spent.add(&more);
            exact.add(&counted);
            match (&mut resilience, of_thread) {
                (Some(sum), Some(more)) => sum.add(&more),
                (sum, more) => *sum = more,
            }
        }
        Ok(Replayed {
            given,
            spent,
            resilience,
            exact,
        })
    }

    /// The parts of the workload, each with the place for its results.
    fn shares<'g>(&self, mut given: &'g mut [Given]) -> Vec<(usize, &'g mut [Given])> {
        let mut shares = Vec::new();
        for (number, events) in self.workload.part_lens().enumerate() {
            let (share, rest) = given.split_at_mut(events);
            shares.push((number, share));
            given = rest;
        }
        shares
    }
}

/// The visits that an attacker hears of.
struct Heard<'a> {
    audience: Audience,
    /// The conversion sites whose events can be heard of at all.
    of: &'a [bool],
    impression_sites: Vec<bool>,
    conversion_sites: Vec<bool>,
}

impl<'a> Heard<'a> {
    fn new(replay: &Replay<'a>, attack: &Attack<'_>) -> Self {
        let mut measured = vec![0_u64; replay.workload.conversion_site_names.len()];
        for querier in &replay.survey.queriers {
            measured[querier.site as usize] = querier.reports.len() as u64;
        }
        let strength = attack.strength;
        let ranked = |counts: &[u64], owned: u32| {
            let mut sites: Vec<usize> = (0..counts.len()).filter(|at| counts[*at] > 0).collect();
            sites.sort_by_key(|at| (std::cmp::Reverse(counts[*at]), *at));
            let mut is_owned = vec![false; counts.len()];
            let first = strength.first_rank.saturating_sub(1) as usize;
            for site in sites.into_iter().skip(first).take(owned as usize) {
                is_owned[site] = true;
            }
            is_owned
        };
        let audience = attack.attacker.audience();
        let impression_sites = match audience {
            Audience::OneImpressionSite => 1,
            _ => strength.impression_sites,
        };
        let conversion_sites = match audience {
            Audience::OneConversionSite => 1,
            _ => strength.conversion_sites,
        };
        Self {
            audience,
            of: &replay.survey.heard,
            impression_sites: ranked(&replay.survey.impressions, impression_sites),
            conversion_sites: ranked(&measured, conversion_sites),
        }
    }

    /// Whether the attacker hears of an event.
    fn hears(&self, event: &Event) -> bool {
        if !self.of[event.conversion_site as usize] {
            return false;
        }
        match event.kind {
            Kind::Impression { site, .. } if self.audience != Audience::OneConversionSite => {
                self.impression_sites[site as usize]
            }
            _ => self.conversion_sites[event.conversion_site as usize],
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
    tally: Tally,
    /// The attack, the visits it hears of, and what it remembers of the device.
    attack: Option<(Attack<'a>, &'a Heard<'a>, Memory)>,
    spent: Spent,
    resilience: Option<Resilience>,
    /// The queriers that the device reports to.
    reports_to: Vec<usize>,
    payers: Payers,
    exact: Exact,
}

impl<'a> Worker<'a> {
    fn new(
        replay: &'a Replay<'a>,
        queriers: &'a [Option<usize>],
        heard: Option<&'a Heard<'a>>,
    ) -> Self {
        let nobody = SiteId(0);
        let request = Request {
            querier: nobody,
            conversion_site: nobody,
            user_action: UserAction(0),
            window: Window::single(EpochIndex(0)),
        };
        let queries = replay.survey.queriers.iter().map(|querier| {
            let buckets = u32::try_from(BUCKETS).unwrap_or(u32::MAX);
            AttributionQuery::builder(request, Timestamp(0), buckets)
                .value(1, querier.max_value)
                .epsilon(querier.epsilon())
                .build()
                .ok()
        });
        let sites = queriers.len() + replay.workload.impression_site_names.len();
        let first_sybil = SiteId(u32::try_from(sites).unwrap_or(u32::MAX));
        let capacity = replay.policy.capacities().querier.amount();
        let epsilon = capacity.map_or(1.0, bigbird::MicroEpsilon::to_epsilon);
        let epsilon = epsilon.min(Epsilon::MAX);
        let attack = replay.attack.zip(heard).map(|(attack, heard)| {
            let sybils = attack.strength.sybils;
            let memory = Memory::new(sybils, first_sybil, epsilon, attack.seed);
            (attack, heard, memory)
        });
        let own_sites = attack
            .as_ref()
            .map(|(_, _, memory)| memory.first_own_site());
        let resilience = replay.attack.map(|attack| {
            let bounds = Bounds::new(replay.policy, &attack);
            Resilience::new(bounds, replay.survey.queriers.len())
        });
        Self {
            attack,
            queries: queries.collect(),
            device: Device::new(replay.policy.clone()),
            workspace: Workspace::default(),
            tally: Tally::new(own_sites),
            spent: Spent::default(),
            resilience,
            reports_to: Vec::new(),
            payers: Payers::default(),
            exact: Exact::default(),
            replay,
            queriers,
        }
    }

    fn replay(&mut self, part: &Part, first_event: usize, given: &mut [Given]) {
        for device in 0..part.devices() {
            self.device.reset();
            self.tally.begin();
            let first = part.range(device).next().map(|at| part.event(at));
            if let (Some((_, _, memory)), Some(first)) = (&mut self.attack, first) {
                // Whatever comes before it in the workload, and wherever it is stored.
                memory.begin(mix(0, &first));
            }
            let mut attacked = false;
            for at in part.range(device) {
                let event = part.event(at);
                let place = (first_event + at) as u64;
                let attack = self
                    .attack
                    .as_mut()
                    .filter(|(_, heard, _)| heard.hears(&event))
                    .map(|(_, _, memory)| memory.comes_first());
                attacked |= attack.is_some();
                if attack == Some(true) {
                    self.act(&event, place);
                }
                given[at] = self.happen(&event, place);
                if attack == Some(false) {
                    self.act(&event, place);
                }
            }
            self.tally.spent(&mut self.spent);
            if self.replay.count_sites {
                self.payers.count(&mut self.exact);
                self.payers.begin();
            }
            if attacked && let Some(resilience) = &mut self.resilience {
                self.reports_to.clear();
                let events = part.range(device).map(|at| part.event(at));
                self.reports_to.extend(
                    events
                        .filter(|event| matches!(event.kind, Kind::Conversion { .. }))
                        .filter_map(|event| self.queriers[event.conversion_site as usize]),
                );
                self.reports_to.sort_unstable();
                self.reports_to.dedup();
                self.tally
                    .check(resilience, self.reports_to.iter().copied());
            }
        }
    }

    /// Makes an event happen; says what its report gives, if it has one.
    fn happen(&mut self, event: &Event, place: u64) -> Given {
        let epoch = EpochIndex(i64::from(event.epoch));
        let now = Timestamp(i64::from(event.minute));
        let user_action = UserAction(place + 1);
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
            Kind::Conversion { value, .. } => {
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
                self.measure(querier, request, value, now)
            }
        }
    }

    /// Lets the attacker act on the visit of an event: in a user action of its own.
    fn act(&mut self, event: &Event, place: u64) {
        const ATTACK: u64 = 1 << 62;
        let conversion_site = SiteId(event.conversion_site);
        let visit = match event.kind {
            Kind::Impression { site, .. } => Visit::Impression {
                site: self.impression_site(site),
                conversion_site,
            },
            Kind::Conversion { .. } => Visit::Conversion { conversion_site },
        };
        if let Some((attack, _, memory)) = &mut self.attack {
            attack.attacker.act(&mut Stage {
                device: &mut self.device,
                workspace: &mut self.workspace,
                memory,
                tally: &mut self.tally,
                strength: attack.strength,
                epoch: EpochIndex(i64::from(event.epoch)),
                lookback_epochs: self.replay.lookback_epochs,
                now: Timestamp(i64::from(event.minute)),
                user_action: UserAction(ATTACK + place),
                visit,
            });
            self.tally.action();
        }
    }

    fn measure(&mut self, querier: usize, request: Request, value: u32, now: Timestamp) -> Given {
        let Some(query) = &mut self.queries[querier] else {
            return Given::NOTHING;
        };
        let retargeted = query.retarget(request, now, Timestamp(i64::MIN));
        if retargeted.and_then(|()| query.set_value(value)).is_err() {
            return Given::NOTHING;
        }
        self.device
            .report_in(query, &mut || 0.0, &mut self.workspace);
        let charges = &self.workspace.changes().charges;
        self.tally.honest(charges);
        if self.replay.count_sites {
            self.payers.paid(request.conversion_site, charges);
        }
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

/// The bucket of a last-touch report.
fn bucket_of(report: &Histogram) -> Option<u8> {
    let at = report.buckets().iter().position(|value| *value > 0)?;
    u8::try_from(at).ok()
}
