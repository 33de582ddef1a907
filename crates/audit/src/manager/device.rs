//! The core [`Device`] as a manager: the engine without a user agent around it.

use std::collections::BTreeMap;

use bigbird::{
    AttributionObject, AttributionQuery, Decision, Device, EpochIndex, Fate, Filter, Histogram,
    Impression, ImpressionStore, ReadLimits, ReportRequest, SaveResult, SiteId, StoreLimits,
    Timestamp, UserAction, Window,
};

use super::snapshot::{EpochSnapshot, FilterId, ObjectSnapshot, StoredImpression, WorldSnapshot};
use super::{MakeManager, Manager, Observation, SeenReport, StepTime, WorldSetup};
use crate::script::{
    Create, DAY, Measure, Save, Scope, ScriptCall, ScriptSetup, Share, SiteNumber, Step, Tape,
};

/// Makes core devices.
#[derive(Debug, Clone, Copy, Default)]
pub struct DeviceManager;

impl MakeManager for DeviceManager {
    fn make(&self, world: WorldSetup<'_>) -> Box<dyn Manager> {
        let setup = world.script.setup.clone();
        let limits = StoreLimits {
            units_per_epoch: setup.units_per_epoch,
        };
        Box::new(DeviceWorld {
            device: Device::with_events(setup.policy(), ImpressionStore::new(limits)),
            setup,
            tape: world.tape,
            without: world.without,
            enabled: true,
            objects: Vec::new(),
            history: History::default(),
        })
    }
}

/// What happened in a world, including what it has forgotten since.
#[derive(Debug, Default)]
pub(super) struct History {
    pub(super) saved: Vec<i64>,
    pub(super) granted: BTreeMap<i64, u64>,
}

impl History {
    pub(super) fn save(&mut self, epoch: i64) {
        if !self.saved.contains(&epoch) {
            self.saved.push(epoch);
        }
    }
}

struct DeviceWorld {
    device: Device<ImpressionStore>,
    setup: ScriptSetup,
    tape: Tape,
    without: Option<i64>,
    enabled: bool,
    objects: Vec<(Create, AttributionObject)>,
    history: History,
}

/// The user action of a number at a moment: another one in every epoch.
pub(super) fn action(number: u16, epoch: i64) -> u64 {
    (epoch.cast_unsigned() & 0x7fff) << 16 | u64::from(number)
}

fn site(number: SiteNumber) -> SiteId {
    SiteId(number.into())
}

fn sites(numbers: &[SiteNumber]) -> Vec<SiteId> {
    let mut sites: Vec<SiteId> = numbers.iter().copied().map(site).collect();
    sites.sort_unstable();
    sites.dedup();
    sites
}

impl DeviceWorld {
    fn call(&mut self, at: StepTime, draw: &mut u32, call: &ScriptCall) -> Option<Observation> {
        Some(match call {
            ScriptCall::Save(save) => {
                self.save(at.now, save);
                Observation::Saved
            }
            ScriptCall::Measure(measure) => {
                let query = self.query(at.now, measure, &[])?;
                if !self.enabled {
                    return Some(seen(&query.null_report(), measure));
                }
                let tape = &self.tape;
                let answer = self.device.report(&query, &mut || next(tape, at, draw));
                self.grant(&answer.decision);
                seen(&answer.report, measure)
            }
            ScriptCall::Create(create) => {
                let query = self.query(at.now, &create.measure, &create.participants)?;
                let tape = &self.tape;
                let number = self.objects.len() as u128;
                if self.enabled {
                    let (object, decision) =
                        self.device.attribute(&query, &mut || next(tape, at, draw));
                    self.grant(&decision);
                    self.objects.push((create.clone(), object));
                }
                Observation::Handle(number, 0)
            }
            ScriptCall::Share(share) => {
                let (create, object) = self.objects.get(share.object)?;
                let (measure, mut object) = (share.measure(create), object.clone());
                let mut query = self.query(at.now, &measure, &[])?;
                query.set_max_shares(self.setup.max_shares);
                if !self.enabled {
                    return Some(seen(&query.null_report(), &measure));
                }
                let answer = self.device.share(&mut object, &query);
                self.objects[share.object].1 = object;
                seen(&answer.report, &measure)
            }
        })
    }

    fn save(&mut self, now: i64, save: &Save) {
        let epoch = self.setup.epoch(now);
        if !self.enabled {
            return;
        }
        self.history.save(epoch);
        if self.without == Some(epoch) {
            return;
        }
        let days = save.lifetime_days.min(self.setup.max_lookback_days);
        let impression = Impression {
            intermediary: save.intermediary.filter(|it| *it != save.site).map(site),
            expires: Timestamp(now + i64::from(days) * DAY),
            match_value: save.match_value,
            priority: save.priority,
            conversion_sites: &sites(&save.conversion_sites),
            conversion_callers: &sites(&save.conversion_callers),
            ..Impression::new(
                site(save.site),
                UserAction(action(save.action, epoch)),
                Timestamp(now),
                save.bucket,
            )
        };
        let _: SaveResult = self.device.save_impression(EpochIndex(epoch), &impression);
    }

    fn query(
        &self,
        now: i64,
        measure: &Measure,
        participants: &[SiteNumber],
    ) -> Option<AttributionQuery> {
        let setup = &self.setup;
        let current = setup.epoch(now);
        let days = measure.lookback_days.min(setup.max_lookback_days);
        let not_before = now - i64::from(days) * DAY;
        let caller = measure.intermediary.unwrap_or(measure.site);
        let request = ReportRequest {
            querier: site(setup.querier(measure)),
            conversion_site: site(measure.site),
            user_action: UserAction(action(measure.action, current)),
            window: Window::between(EpochIndex(setup.epoch(not_before)), EpochIndex(current)),
        };
        let terms = &measure.terms;
        let callers = match participants {
            [] => vec![site(caller)],
            participants => sites(participants),
        };
        #[expect(clippy::cast_precision_loss, reason = "far below 2⁵³")]
        let epsilon = terms.epsilon as f64 / 1e6;
        let query = AttributionQuery::builder(request, Timestamp(now), terms.buckets)
            .not_before(Timestamp(not_before))
            .callers(callers)
            .impression_sites(sites(&measure.scope.impression_sites))
            .impression_callers(sites(&measure.scope.impression_callers))
            .match_values(measure.scope.match_values.clone())
            .credit(terms.credit.shares().to_vec())
            .value(terms.value, terms.max_value)
            .epsilon(epsilon)
            .build();
        let mut query = query.ok()?;
        query.set_read_limits(ReadLimits {
            relevant: setup.relevant_per_epoch,
            ..ReadLimits::default()
        });
        Some(query)
    }

    /// Notes what the global budgets granted.
    fn grant(&mut self, decision: &Decision) {
        for epoch in decision.epochs().filter(|it| it.fate == Fate::Passed) {
            let global = epoch.checks.iter();
            for check in global.filter(|check| check.filter == Filter::GlobalBudget) {
                *self.history.granted.entry(epoch.epoch.0).or_default() += check.asked.get();
            }
        }
    }

    fn prune_before(&mut self, epoch: i64) {
        self.device.prune_before(EpochIndex(epoch));
    }
}

fn next(tape: &Tape, at: StepTime, draw: &mut u32) -> f64 {
    let drawn = tape.draw(at.drawing, *draw);
    *draw += 1;
    drawn
}

fn seen(report: &Histogram, measure: &Measure) -> Observation {
    Observation::Report(SeenReport {
        buckets: report.buckets().to_vec(),
        epsilon: measure.terms.epsilon,
        max_value: measure.terms.max_value,
        length: 0,
        released: 0,
    })
}

impl ScriptSetup {
    /// The site that pays and receives the report.
    pub(super) fn querier(&self, measure: &Measure) -> SiteNumber {
        match self.profile {
            // The draft has no other queriers.
            bigbird::Profile::W3cDraft => measure.site,
            _ => measure.intermediary.unwrap_or(measure.site),
        }
    }
}

impl Share {
    /// The request of a share, with the terms of its conversion.
    pub(super) fn measure(&self, create: &Create) -> Measure {
        let Measure {
            site,
            terms,
            lookback_days,
            ..
        } = create.measure;
        Measure {
            site,
            intermediary: (self.querier != site).then_some(self.querier),
            action: self.action,
            terms: crate::script::AskTerms {
                buckets: self.buckets,
                ..terms
            },
            lookback_days,
            scope: Scope::clone(&self.scope),
        }
    }
}

impl Manager for DeviceWorld {
    fn perform(&mut self, at: StepTime, step: &Step) -> Vec<Observation> {
        let mut draw = 0;
        match step {
            Step::Call(call) => return self.call(at, &mut draw, call).into_iter().collect(),
            Step::Together(calls) => {
                let seen = calls
                    .iter()
                    .filter_map(|call| self.call(at, &mut draw, call));
                return seen.collect();
            }
            Step::ClearSite(number) => {
                let events = self.device.events_mut();
                events.retain(|impression| impression.site != site(*number));
                for (_, object) in &mut self.objects {
                    object.forget_site(site(*number));
                }
            }
            Step::ClearHistory(clear) if clear.forget_visits => {
                self.device.events_mut().retain(|_| false);
                self.prune_before(self.setup.epoch(at.now) + 1);
            }
            Step::Enable(enabled) => self.enabled = *enabled,
            Step::Maintain => {
                let days = i64::from(self.setup.max_lookback_days);
                self.prune_before(self.setup.epoch(at.now - days * DAY));
            }
            // These steps exist only with a user agent or a store.
            Step::Clock(_)
            | Step::ClearHistory(_)
            | Step::Idle
            | Step::Restart
            | Step::Crash
            | Step::ChangeRules { .. } => {}
        }
        Vec::new()
    }

    fn snapshot(&mut self) -> WorldSnapshot {
        let mut snapshot = WorldSnapshot::default();
        let first = self.device.ledger().first_epoch().0;
        snapshot.shared.push(("first epoch", first));
        for view in self.device.ledger().epochs() {
            let epoch = snapshot.epochs.entry(view.epoch().0).or_default();
            for (filter, consumed) in view.filters() {
                epoch.consumed.insert(filter_name(filter), consumed.get());
            }
            for action in view.user_actions() {
                let admitted = view.admitted(action);
                let admitted = admitted.map(|site| (action.0, number(site)));
                epoch.admitted.extend(admitted);
            }
        }
        let events = self.device.events();
        for epoch in events.epochs() {
            let stored = &mut snapshot.epochs.entry(epoch.0).or_default().stored;
            stored.extend(
                events
                    .impressions(epoch)
                    .map(|it| stored_impression(&it, &number)),
            );
        }
        for (at, (create, object)) in (0..).zip(&self.objects) {
            for epoch in object.epochs() {
                let epoch = snapshot.epochs.entry(epoch.0).or_default();
                epoch.objects.insert(at);
            }
            let object = ObjectSnapshot {
                site: create.measure.site,
                created: object.created().0,
                taken: object.parts().taken.len(),
            };
            snapshot.objects.insert(at, object);
        }
        snapshot
            .epochs
            .retain(|_, epoch| *epoch != EpochSnapshot::default());
        snapshot
    }

    fn granted(&self) -> &BTreeMap<i64, u64> {
        &self.history.granted
    }

    fn saved(&self) -> &[i64] {
        &self.history.saved
    }
}

fn number(site: SiteId) -> SiteNumber {
    SiteNumber::try_from(site.0).unwrap_or(SiteNumber::MAX)
}

pub(super) fn filter_name(filter: Filter) -> FilterId {
    FilterId {
        kind: filter.kind(),
        of: match filter {
            Filter::GlobalBudget => 0,
            Filter::UserActionBudget(action) => action.0,
            other => other.site().map_or(0, |site| site.0.into()),
        },
    }
}

pub(super) fn stored_impression(
    impression: &Impression<'_>,
    number: &impl Fn(SiteId) -> SiteNumber,
) -> StoredImpression {
    let set = |sites: &[SiteId]| sites.iter().copied().map(number).collect();
    StoredImpression {
        site: number(impression.site),
        caller: number(impression.caller()),
        action: impression.user_action.0,
        timestamp: impression.timestamp.0,
        expires: impression.expires.0,
        numbers: (
            impression.histogram_index,
            impression.match_value,
            impression.priority,
        ),
        audience: (
            set(impression.conversion_sites),
            set(impression.conversion_callers),
        ),
    }
}
