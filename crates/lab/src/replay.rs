//! Replays a workload under a policy: the outcome of each report, and what blocked it.
//!
//! Devices are independent of each other, so they are divided among threads. The results are the
//! same for any number of threads. The budget manager is that of the `bigbird` crate.

use std::sync::{Mutex, PoisonError};

use bigbird::{
    AttributionQuery, Cause, Device, EpochIndex, Epsilon, Histogram, Impression, ImpressionStore,
    Limit, Policy, ReportRequest, SiteId, Timestamp, UserAction, Window, Workspace,
};

use crate::attack::{Attack, AttackStage, AttackerMemory, HeardVisits, SiteVisit};
use crate::resilience::{AttackTally, Bounds, Resilience, Spent};
use crate::tune::{Exact, PayingSites};
use crate::workload::read::ReadError;
use crate::workload::{BUCKETS, EventKind, Part, Survey, Workload, WorkloadEvent, mix};

/// The limit that blocked a report, or a part of it, if one of the [five](Limit::ALL) did.
fn blocking_limit(cause: Cause) -> Option<Limit> {
    cause.limit().filter(|limit| Limit::ALL.contains(limit))
}

/// The outcome of a report, in a byte: the bucket of its value, if it has one, and the limit that
/// blocked the report or a part of it, if one did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReportOutcome(u8);

const NO_BUCKET: u8 = 7;

impl ReportOutcome {
    /// A report without a value that no limit blocked.
    pub const NOTHING: Self = Self(NO_BUCKET);

    fn new(bucket: Option<u8>, blocked: Option<Limit>) -> Self {
        let cause = blocked.map_or(0, |blocked| blocked as u8 + 1);
        Self(cause << 3 | bucket.unwrap_or(NO_BUCKET))
    }

    /// The bucket of its value.
    pub fn bucket(self) -> Option<usize> {
        let bucket = self.0 & 7;
        (bucket != NO_BUCKET).then_some(usize::from(bucket))
    }

    /// The limit that blocked the report or a part of it.
    pub fn blocked(self) -> Option<Limit> {
        let cause = usize::from(self.0 >> 3);
        Limit::ALL.get(cause.checked_sub(1)?).copied()
    }
}

/// The parameters of a replay.
#[derive(Debug, Clone)]
pub struct Replay<'a> {
    /// The workload.
    pub workload: &'a Workload,
    /// The survey of the workload.
    pub survey: &'a Survey,
    /// The policy of every device.
    pub policy: &'a Policy,
    /// The number of epochs before its own that a conversion looks at.
    pub lookback_epochs: u16,
    /// The number of threads.
    pub threads: usize,
    /// The attack, or none.
    pub attack: Option<Attack<'a>>,
    /// True to count the sites that pay.
    pub count_sites: bool,
}

/// The results of a replay.
#[derive(Debug)]
pub struct Replayed {
    /// The outcome of the report of each conversion, by the place of its event.
    pub given: Vec<ReportOutcome>,
    /// The amounts that were consumed from global budgets.
    pub spent: Spent,
    /// The bounds on the attack, and the shares of them that it reached. The share of the bound on
    /// sums of reports is not computed yet.
    pub resilience: Option<Resilience>,
    /// The counts of sites that pay. Empty unless they were asked for.
    pub exact: Exact,
}

impl Replay<'_> {
    /// Replays the workload.
    ///
    /// # Errors
    /// If a part of the workload is on disk and cannot be read.
    pub fn run(&self) -> Result<Replayed, ReadError> {
        let mut given = vec![ReportOutcome::NOTHING; self.workload.len()];
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

    /// The parts of the workload, each with the slice for its results.
    fn shares<'g>(
        &self,
        mut given: &'g mut [ReportOutcome],
    ) -> Vec<(usize, &'g mut [ReportOutcome])> {
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
    audience: HeardVisits,
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
            HeardVisits::OneImpressionSite => 1,
            _ => strength.impression_sites,
        };
        let conversion_sites = match audience {
            HeardVisits::OneConversionSite => 1,
            _ => strength.conversion_sites,
        };
        Self {
            audience,
            of: &replay.survey.heard,
            impression_sites: ranked(&replay.survey.impressions, impression_sites),
            conversion_sites: ranked(&measured, conversion_sites),
        }
    }

    /// True if the attacker hears of an event.
    fn hears(&self, event: &WorkloadEvent) -> bool {
        if !self.of[event.conversion_site as usize] {
            return false;
        }
        match event.kind {
            EventKind::Impression { site, .. }
                if self.audience != HeardVisits::OneConversionSite =>
            {
                self.impression_sites[site as usize]
            }
            _ => self.conversion_sites[event.conversion_site as usize],
        }
    }
}

/// The state of one thread. It reuses one device for all devices of the workload.
struct Worker<'a> {
    replay: &'a Replay<'a>,
    /// The number of each conversion site among queriers, if it is a querier.
    queriers: &'a [Option<usize>],
    queries: Vec<Option<AttributionQuery>>,
    device: Device<ImpressionStore>,
    workspace: Workspace<AttributionQuery>,
    tally: AttackTally,
    /// The attack, the visits it hears of, and its memory about the device.
    attack: Option<(Attack<'a>, &'a Heard<'a>, AttackerMemory)>,
    spent: Spent,
    resilience: Option<Resilience>,
    /// The queriers that the current device reports to.
    reports_to: Vec<usize>,
    payers: PayingSites,
    exact: Exact,
}

impl<'a> Worker<'a> {
    fn new(
        replay: &'a Replay<'a>,
        queriers: &'a [Option<usize>],
        heard: Option<&'a Heard<'a>>,
    ) -> Self {
        let nobody = SiteId(0);
        let request = ReportRequest {
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
        let capacity = replay.policy.capacities().querier_budget.amount();
        let epsilon = capacity.map_or(1.0, bigbird::MicroEpsilon::to_epsilon);
        let epsilon = epsilon.min(Epsilon::MAX);
        let attack = replay.attack.zip(heard).map(|(attack, heard)| {
            let sybils = attack.strength.sybils;
            let memory = AttackerMemory::new(sybils, first_sybil, epsilon, attack.seed);
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
            tally: AttackTally::new(own_sites),
            spent: Spent::default(),
            resilience,
            reports_to: Vec::new(),
            payers: PayingSites::default(),
            exact: Exact::default(),
            replay,
            queriers,
        }
    }

    fn replay(&mut self, part: &Part, first_event: usize, given: &mut [ReportOutcome]) {
        for device in 0..part.devices() {
            self.device.reset();
            self.tally.begin();
            let first = part.range(device).next().map(|at| part.event(at));
            if let (Some((_, _, memory)), Some(first)) = (&mut self.attack, first) {
                // The random numbers depend on the device's first event, not on the device's place
                // in the workload.
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
                        .filter(|event| matches!(event.kind, EventKind::Conversion { .. }))
                        .filter_map(|event| self.queriers[event.conversion_site as usize]),
                );
                self.reports_to.sort_unstable();
                self.reports_to.dedup();
                self.tally
                    .check(resilience, self.reports_to.iter().copied());
            }
        }
    }

    /// Replays an event. Returns the outcome of its report, if it has one.
    fn happen(&mut self, event: &WorkloadEvent, place: u64) -> ReportOutcome {
        let epoch = EpochIndex(i64::from(event.epoch));
        let now = Timestamp(i64::from(event.minute));
        let user_action = UserAction(place + 1);
        let conversion_site = SiteId(event.conversion_site);
        match event.kind {
            EventKind::Impression { site, bucket } => {
                let impression = Impression {
                    conversion_sites: &[conversion_site],
                    ..Impression::new(self.impression_site(site), user_action, now, bucket.into())
                };
                self.device.save_impression(epoch, &impression);
                ReportOutcome::NOTHING
            }
            EventKind::Conversion { value, .. } => {
                let Some(querier) = self.queriers[event.conversion_site as usize] else {
                    return ReportOutcome::NOTHING;
                };
                let earliest = EpochIndex(epoch.0 - i64::from(self.replay.lookback_epochs));
                let Ok(window) = Window::new(earliest, epoch) else {
                    return ReportOutcome::NOTHING;
                };
                let request = ReportRequest {
                    querier: conversion_site,
                    conversion_site,
                    user_action,
                    window,
                };
                self.measure(querier, request, value, now)
            }
        }
    }

    /// Lets the attacker act on the visit of an event, in a separate user action.
    fn act(&mut self, event: &WorkloadEvent, place: u64) {
        const ATTACK: u64 = 1 << 62;
        let conversion_site = SiteId(event.conversion_site);
        let visit = match event.kind {
            EventKind::Impression { site, .. } => SiteVisit::Impression {
                site: self.impression_site(site),
                conversion_site,
            },
            EventKind::Conversion { .. } => SiteVisit::Conversion { conversion_site },
        };
        if let Some((attack, _, memory)) = &mut self.attack {
            attack.attacker.act(&mut AttackStage {
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

    fn measure(
        &mut self,
        querier: usize,
        request: ReportRequest,
        value: u32,
        now: Timestamp,
    ) -> ReportOutcome {
        let Some(query) = &mut self.queries[querier] else {
            return ReportOutcome::NOTHING;
        };
        let retargeted = query.retarget(request, now, Timestamp(i64::MIN));
        if retargeted.and_then(|()| query.set_value(value)).is_err() {
            return ReportOutcome::NOTHING;
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
            .and_then(blocking_limit);
        ReportOutcome::new(bucket_of(self.workspace.report()), blocked)
    }

    /// The id of an impression site. Impression sites are numbered after conversion sites.
    fn impression_site(&self, site: u32) -> SiteId {
        let conversion_sites = self.queriers.len();
        SiteId(
            u32::try_from(conversion_sites)
                .unwrap_or(u32::MAX)
                .saturating_add(site),
        )
    }
}

/// The bucket of a last-touch report, which has at most one bucket above zero.
fn bucket_of(report: &Histogram) -> Option<u8> {
    let at = report.buckets().iter().position(|value| *value > 0)?;
    u8::try_from(at).ok()
}
