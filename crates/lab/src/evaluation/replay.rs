//! The second step of a run: the events of devices, replayed under a policy on the budget manager
//! of the `bigbird` crate. Every report of a querier is shown to an [`Observer`].
//!
//! Devices are independent of each other, so parts can be replayed in any order and on any machine.

use std::convert::Infallible;

use bigbird::{
    AttributionQuery, Cause, Device, EpochIndex, Epsilon, Filter, FilterKind, Histogram,
    Impression, ImpressionStore, Ledger, Limit, Policy, PolicyError, Profile, ReportRequest,
    SiteId, Timestamp, UserAction, Window, Workspace, generate_report,
};

use super::audience::AttackAudience;
use super::batching::QuerierNumbers;
use super::querier::Querier;
use super::resilience::{Resilience, Spent};
use crate::attack::bounds::Bounds;
use crate::attack::tally::AttackTally;
use crate::attack::{Attack, AttackStage, SiteVisit, StageParts, StageState, Strategy, Strength};
use crate::workload::{EventKind, Part, WorkloadEvent};

/// The parameters of a replay.
#[derive(Debug, Clone, Copy)]
pub struct Replay<'a> {
    /// The conversion sites that measure.
    pub queriers: &'a [Querier],
    /// Their numbers.
    pub numbers: &'a QuerierNumbers,
    /// The number of impression sites.
    pub impression_sites: usize,
    /// The number of buckets of a report.
    pub buckets: u16,
    /// The policy of every device.
    pub policy: &'a Policy,
    /// The number of epochs before its own that a conversion looks at.
    pub lookback_epochs: u16,
    /// The attack and the visits that the attacker hears of, or none.
    pub attack: Option<(Attack<'a>, &'a AttackAudience)>,
}

/// A report of a querier: one row of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReportRow {
    /// The number of the querier.
    pub querier: usize,
    /// The conversion.
    pub conversion: WorkloadEvent,
    /// The value of the conversion.
    pub value: u32,
    /// The bucket that has the value, if anything was attributed and released.
    pub bucket: Option<u16>,
    /// The limit that blocked the report or a part of it, if one of the [five](Limit::ALL) did.
    pub blocked: Option<Limit>,
}

/// The device, the request and the decision behind a report, right after it was paid for.
#[derive(Debug)]
pub struct Scene<'a> {
    /// The device.
    pub device: &'a Device<ImpressionStore>,
    /// The request.
    pub query: &'a AttributionQuery,
    /// The decision and the charges.
    pub workspace: &'a Workspace<AttributionQuery>,
}

/// Something that looks at every report of a replay.
pub trait Observer {
    /// Looks at a report.
    fn report(&mut self, row: &ReportRow, scene: &Scene<'_>);

    /// The events of a device have ended.
    fn end_device(&mut self) {}
}

/// An observer that does not look.
impl Observer for () {
    fn report(&mut self, _: &ReportRow, _: &Scene<'_>) {}
}

impl<O: Observer, P: Observer> Observer for (O, P) {
    #[inline]
    fn report(&mut self, row: &ReportRow, scene: &Scene<'_>) {
        self.0.report(row, scene);
        self.1.report(row, scene);
    }

    #[inline]
    fn end_device(&mut self) {
        self.0.end_device();
        self.1.end_device();
    }
}

/// A worker that replays parts. It reuses one device for all devices of the workload.
#[derive(Debug)]
pub struct Replayer<'a> {
    replay: Replay<'a>,
    queries: Vec<Option<AttributionQuery>>,
    device: Device<ImpressionStore>,
    workspace: Workspace<AttributionQuery>,
    attack: Option<AttackState<'a>>,
    spent: Spent,
    /// The queriers that the current device reports to.
    reports_to: Vec<usize>,
    /// The epochs in which the current device has events.
    epochs: Vec<u16>,
}

/// The state of an attack.
struct AttackState<'a> {
    attack: Attack<'a>,
    audience: &'a AttackAudience,
    strategy: Box<dyn Strategy + 'a>,
    stage: StageState,
    tally: AttackTally,
    resilience: Resilience,
}

impl<'a> AttackState<'a> {
    fn new(replay: &Replay<'a>, attack: Attack<'a>, audience: &'a AttackAudience) -> Self {
        let sites = replay.numbers.sites() + replay.impression_sites;
        let first_sybil = SiteId(u32::try_from(sites).unwrap_or(u32::MAX));
        let capacity = replay.policy.capacities().querier_budget.amount();
        let whole = capacity.and_then(|it| Epsilon::new(it.to_epsilon().min(Epsilon::MAX)).ok());
        let epsilon = whole.unwrap_or(Epsilon::ONE);
        let stage = StageState::new(attack.strength.sybils, first_sybil, epsilon, attack.seed);
        let strength = Strength {
            sybils: stage.sybil_count(),
            ..attack.strength
        };
        let bounds = Bounds::new(replay.policy, &attack);
        Self {
            strategy: attack.attacker.strategy(&strength),
            audience,
            tally: AttackTally::new(stage.first_own_site()),
            stage,
            resilience: Resilience::new(bounds, replay.queriers.len()),
            attack: Attack { strength, ..attack },
        }
    }
}

impl std::fmt::Debug for AttackState<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AttackState")
            .field("attack", &self.attack)
            .field("tally", &self.tally)
            .field("resilience", &self.resilience)
            .finish_non_exhaustive()
    }
}

/// The amounts that a worker saw, over all of its parts.
#[derive(Debug)]
pub struct Replayed {
    /// The amounts that were consumed from global budgets.
    pub spent: Spent,
    /// The bounds on the attack, and the shares of them that it reached. The share of the bound on
    /// sums of reports is not computed yet.
    pub resilience: Option<Resilience>,
}

impl Replayed {
    /// Adds what another worker saw.
    pub fn merge(&mut self, other: Self) {
        self.spent.add(&other.spent);
        match (&mut self.resilience, other.resilience) {
            (Some(sum), Some(more)) => sum.add(&more),
            (sum, more) => *sum = more,
        }
    }
}

impl<'a> Replayer<'a> {
    /// A worker for a replay.
    pub fn new(replay: Replay<'a>) -> Self {
        let nobody = SiteId(0);
        let request = ReportRequest {
            querier: nobody,
            conversion_site: nobody,
            user_action: UserAction(0),
            window: Window::single(EpochIndex(0)),
        };
        let queries = replay.queriers.iter().map(|querier| {
            AttributionQuery::builder(request, Timestamp(0), replay.buckets.into())
                .value(1, querier.max_value)
                .epsilon(querier.epsilon())
                .build()
                .ok()
        });
        let attack = replay.attack;
        let attack = attack.map(|(attack, heard)| AttackState::new(&replay, attack, heard));
        Self {
            queries: queries.collect(),
            device: Device::new(replay.policy.clone()),
            workspace: Workspace::default(),
            attack,
            spent: Spent::default(),
            reports_to: Vec::new(),
            epochs: Vec::new(),
            replay,
        }
    }

    /// Replays the devices of a part.
    pub fn part(&mut self, part: &Part, observer: &mut impl Observer) {
        for device in 0..part.devices() {
            let events = part.range(device);
            self.device.reset();
            if self.attack.is_some() {
                self.attacked_device(part, events.clone(), observer);
            } else {
                for (action, event) in (1..).zip(part.events_of(device)) {
                    self.happen(event, UserAction(action), observer);
                }
            }
            self.tally(&part.epochs[events]);
            observer.end_device();
        }
    }

    /// The amounts that were seen.
    pub fn finish(self) -> Replayed {
        Replayed {
            spent: self.spent,
            resilience: self.attack.map(|attack| attack.resilience),
        }
    }

    fn attacked_device(
        &mut self,
        part: &Part,
        events: std::ops::Range<usize>,
        observer: &mut impl Observer,
    ) {
        if let (Some(attack), Some(first)) = (&mut self.attack, events.clone().next()) {
            // The random numbers depend on the device's first event, not on the device's place in
            // the workload.
            attack.stage.begin(part.event(first).stream());
            attack.strategy.begin_device();
            attack.tally.begin();
        }
        let mut attacked = false;
        for (number, at) in (1..).zip(events.clone()) {
            let event = part.event(at);
            let comes_first = self.attack.as_mut().and_then(|attack| {
                let hears = attack.audience.hears(&event);
                hears.then(|| attack.stage.comes_first())
            });
            attacked |= comes_first.is_some();
            if comes_first == Some(true) {
                self.act(&event, number);
            }
            self.happen(event, UserAction(number), observer);
            if comes_first == Some(false) {
                self.act(&event, number);
            }
        }
        if attacked && let Some(attack) = &mut self.attack {
            let numbers = self.replay.numbers;
            let conversions = events.filter(|at| EventKind::is_conversion(part.kinds[*at]));
            self.reports_to.clear();
            self.reports_to
                .extend(conversions.filter_map(|at| numbers.get(part.conversion_sites[at])));
            self.reports_to.sort_unstable();
            self.reports_to.dedup();
            let queriers = self.reports_to.iter().copied();
            attack.resilience.check(&attack.tally, queriers);
        }
    }

    /// Replays an event.
    #[inline]
    fn happen(&mut self, event: WorkloadEvent, action: UserAction, observer: &mut impl Observer) {
        let epoch = EpochIndex(i64::from(event.epoch));
        let now = Timestamp(i64::from(event.minute));
        let conversion_site = SiteId(event.conversion_site);
        match event.kind {
            EventKind::Impression { site, bucket } => {
                let impression = Impression {
                    conversion_sites: &[conversion_site],
                    ..Impression::new(self.impression_site(site), action, now, bucket.into())
                };
                self.device.save_impression(epoch, &impression);
            }
            EventKind::Conversion { value, .. } => {
                let Some(querier) = self.replay.numbers.get(event.conversion_site) else {
                    return;
                };
                let row = ReportRow {
                    querier,
                    conversion: event,
                    value,
                    bucket: None,
                    blocked: None,
                };
                self.measure(row, action, observer);
            }
        }
    }

    #[inline]
    fn measure(&mut self, mut row: ReportRow, action: UserAction, observer: &mut impl Observer) {
        let event = &row.conversion;
        let epoch = EpochIndex(i64::from(event.epoch));
        let earliest = EpochIndex(epoch.0 - i64::from(self.replay.lookback_epochs));
        let now = Timestamp(i64::from(event.minute));
        let (Ok(window), Some(query)) =
            (Window::new(earliest, epoch), &mut self.queries[row.querier])
        else {
            return;
        };
        let conversion_site = SiteId(event.conversion_site);
        let request = ReportRequest {
            querier: conversion_site,
            conversion_site,
            user_action: action,
            window,
        };
        let retargeted = query.retarget(request, now, Timestamp(i64::MIN));
        if retargeted
            .and_then(|()| query.set_value(row.value))
            .is_err()
        {
            return;
        }
        self.device
            .report_in(query, &mut || 0.0, &mut self.workspace);
        let cause = self.workspace.decision().first_cause();
        row.blocked = cause.and_then(blocking_limit);
        row.bucket = bucket_of(self.workspace.report());
        let scene = Scene {
            device: &self.device,
            query,
            workspace: &self.workspace,
        };
        observer.report(&row, &scene);
    }

    /// Lets the attacker act on the visit of an event, in a separate user action.
    fn act(&mut self, event: &WorkloadEvent, number: u64) {
        const ATTACK: u64 = 1 << 62;
        let conversion_site = SiteId(event.conversion_site);
        let visit = match event.kind {
            EventKind::Impression { site, .. } => SiteVisit::Impression {
                site: self.impression_site(site),
                conversion_site,
            },
            EventKind::Conversion { .. } => SiteVisit::Conversion { conversion_site },
        };
        let Some(state) = &mut self.attack else {
            return;
        };
        state.strategy.act(&mut AttackStage::new(StageParts {
            device: &mut self.device,
            workspace: &mut self.workspace,
            state: &mut state.stage,
            tally: &mut state.tally,
            strength: state.attack.strength,
            epoch: EpochIndex(i64::from(event.epoch)),
            lookback_epochs: self.replay.lookback_epochs,
            now: Timestamp(i64::from(event.minute)),
            user_action: UserAction(ATTACK + number),
            visit,
        }));
        state.tally.action();
    }

    /// Adds what was taken from the global budgets of the device, which had events in these epochs.
    /// Only epochs with impressions pay, so these are all.
    #[inline]
    fn tally(&mut self, epochs: &[u16]) {
        self.epochs.clear();
        for &epoch in epochs {
            if self.epochs.last() == Some(&epoch) || self.epochs.contains(&epoch) {
                continue;
            }
            self.epochs.push(epoch);
            let epoch = EpochIndex(i64::from(epoch));
            let consumed = self.device.balance(epoch, Filter::GlobalBudget).consumed;
            if consumed.is_zero() {
                continue;
            }
            let taken = self.attack.as_ref().map(|attack| attack.tally.taken(epoch));
            let taken = taken.unwrap_or(0);
            self.spent.device_epochs += 1;
            self.spent.attacker += taken;
            self.spent.honest += consumed.get() - taken;
        }
    }

    /// The id of an impression site. Impression sites are numbered after conversion sites.
    fn impression_site(&self, site: u32) -> SiteId {
        let conversion_sites = self.replay.numbers.sites();
        let first = u32::try_from(conversion_sites).unwrap_or(u32::MAX);
        SiteId(first.saturating_add(site))
    }
}

/// The limit that blocked a report, or a part of it, if one of the [five](Limit::ALL) did.
fn blocking_limit(cause: Cause) -> Option<Limit> {
    cause.limit().filter(|limit| Limit::ALL.contains(limit))
}

/// The bucket of a last-touch report, which has at most one bucket above zero.
fn bucket_of(report: &Histogram) -> Option<u16> {
    let at = report.buckets().iter().position(|value| *value > 0)?;
    u16::try_from(at).ok()
}

/// Computes what a report would have been without any limit.
///
/// Honest events have separate user actions, so no limit keeps an impression from being saved. So
/// as long as there is no attacker, a device without limits would have the same impressions, and
/// only reports that were blocked differ.
#[derive(Debug)]
pub struct Unlimited {
    policy: Policy,
    ledger: Ledger,
    workspace: Workspace<AttributionQuery>,
}

impl Unlimited {
    /// Without limits.
    ///
    /// # Errors
    /// If a policy without limits is invalid, which does not happen.
    pub fn new() -> Result<Self, PolicyError> {
        let no_limits = Profile::CookieMonster.policy().to_builder();
        Ok(Self {
            policy: no_limits.unlimited(FilterKind::QuerierBudget).build()?,
            ledger: Ledger::new(),
            workspace: Workspace::default(),
        })
    }

    /// The bucket that would have had the value.
    #[inline]
    pub fn bucket(&mut self, row: &ReportRow, scene: &Scene<'_>) -> Option<u16> {
        if row.blocked.is_none() {
            return row.bucket;
        }
        let (events, workspace) = (scene.device.events(), &mut self.workspace);
        let (policy, ledger) = (&self.policy, &self.ledger);
        let made: Result<(), Infallible> =
            generate_report(policy, events, ledger, scene.query, &mut || 0.0, workspace);
        let Ok(()) = made;
        bucket_of(self.workspace.report())
    }
}
