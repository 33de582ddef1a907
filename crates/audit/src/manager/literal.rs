//! The literal reference as a manager, sound or with one of its flaws.

use std::collections::BTreeMap;

use bigbird::ReadLimits;
use bigbird_reference::{Ad, Ask, Flaw, Reference, ReferenceAnswer, ReferenceObject};

use super::device::{History, action, filter_name};
use super::snapshot::{EpochSnapshot, ObjectSnapshot, StoredImpression, WorldSnapshot};
use super::{MakeManager, Manager, Observation, SeenReport, StepTime, WorldSetup};
use crate::script::{Create, DAY, Measure, Save, ScriptCall, ScriptSetup, SiteNumber, Step, Tape};

/// Makes references.
#[derive(Debug, Clone, Copy, Default)]
pub struct LiteralManager {
    /// The flaw, if any.
    pub flaw: Option<Flaw>,
}

impl MakeManager for LiteralManager {
    fn make(&self, world: WorldSetup<'_>) -> Box<dyn Manager> {
        let setup = world.script.setup.clone();
        let limit = setup.units_per_epoch.get() as usize;
        Box::new(LiteralWorld {
            reference: Reference::new(setup.policy(), limit, self.flaw),
            setup,
            tape: world.tape,
            without: world.without,
            enabled: true,
            objects: Vec::new(),
            history: History::default(),
        })
    }
}

struct LiteralWorld {
    reference: Reference,
    setup: ScriptSetup,
    tape: Tape,
    without: Option<i64>,
    enabled: bool,
    objects: Vec<(Create, ReferenceObject)>,
    history: History,
}

fn numbers(sites: &[SiteNumber]) -> Vec<u32> {
    let mut numbers: Vec<u32> = sites.iter().map(|&site| site.into()).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

impl LiteralWorld {
    fn call(&mut self, at: StepTime, first_draw: u32, call: &ScriptCall) -> Option<Observation> {
        Some(match call {
            ScriptCall::Save(save) => {
                self.save(at.now, save);
                Observation::Saved
            }
            ScriptCall::Measure(measure) => {
                let ask = self.ask(at, first_draw, measure, &[]);
                if !self.enabled {
                    return Some(seen(&vec![0; ask.size as usize], measure));
                }
                let ReferenceAnswer { histogram, .. } = self.reference.ask(&ask);
                seen(&histogram, measure)
            }
            ScriptCall::Create(create) => {
                let number = self.objects.len() as u128;
                if self.enabled {
                    let participants = &create.participants;
                    let ask = self.ask(at, first_draw, &create.measure, participants);
                    let mut object = self.reference.create(&ask);
                    object.max_shares = self.setup.max_shares;
                    self.objects.push((create.clone(), object));
                }
                Observation::Handle(number, 0)
            }
            ScriptCall::Share(share) => {
                let (create, object) = self.objects.get(share.object)?;
                let (measure, mut object) = (share.measure(create), object.clone());
                let ask = self.ask(at, first_draw, &measure, &[]);
                if !self.enabled {
                    return Some(seen(&vec![0; ask.size as usize], &measure));
                }
                let ReferenceAnswer { histogram, .. } = self.reference.share(&mut object, &ask);
                self.objects[share.object].1 = object;
                seen(&histogram, &measure)
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
        let ad = Ad {
            site: save.site.into(),
            intermediary: save
                .intermediary
                .filter(|it| *it != save.site)
                .map(Into::into),
            action: action(save.action, epoch),
            timestamp: now,
            expires: now + i64::from(days) * DAY,
            match_value: save.match_value,
            index: save.bucket,
            priority: save.priority,
            conversion_sites: numbers(&save.conversion_sites),
            conversion_callers: numbers(&save.conversion_callers),
        };
        self.reference.save(epoch, &ad);
    }

    fn ask(
        &self,
        at: StepTime,
        first_draw: u32,
        measure: &Measure,
        participants: &[SiteNumber],
    ) -> Ask {
        let (setup, now) = (&self.setup, at.now);
        let current = setup.epoch(now);
        let days = measure.lookback_days.min(setup.max_lookback_days);
        let not_before = now - i64::from(days) * DAY;
        let caller = measure.intermediary.unwrap_or(measure.site);
        let terms = &measure.terms;
        let draws = (0..DRAWS).map(|draw| self.tape.draw(at.drawing, first_draw + draw));
        Ask {
            querier: setup.querier(measure).into(),
            conversion_site: measure.site.into(),
            callers: match participants {
                [] => vec![caller.into()],
                participants => numbers(participants),
            },
            action: action(measure.action, current),
            earliest: setup.epoch(not_before),
            current,
            readable_from: i64::MIN,
            now,
            not_before,
            impression_sites: numbers(&measure.scope.impression_sites),
            impression_callers: numbers(&measure.scope.impression_callers),
            match_values: measure.scope.match_values.clone(),
            credit: terms.credit.shares().to_vec(),
            value: terms.value,
            max_value: terms.max_value,
            epsilon_micro: terms.epsilon,
            size: terms.buckets,
            read_limits: ReadLimits {
                relevant: setup.relevant_per_epoch,
                ..ReadLimits::default()
            },
            draws: draws.collect(),
        }
    }
}

/// The number of draws that a request is given: one to charge with, and one for a manager that
/// draws again.
pub(crate) const DRAWS: u32 = 2;

fn seen(histogram: &[u32], measure: &Measure) -> Observation {
    Observation::Report(SeenReport {
        buckets: histogram.to_vec(),
        epsilon: measure.terms.epsilon,
        max_value: measure.terms.max_value,
        length: 0,
        released: 0,
    })
}

impl Manager for LiteralWorld {
    fn perform(&mut self, at: StepTime, step: &Step) -> Vec<Observation> {
        match step {
            Step::Call(call) => return self.call(at, 0, call).into_iter().collect(),
            Step::Together(calls) => {
                let numbered = (0..).zip(calls);
                let seen = numbered.filter_map(|(n, call)| self.call(at, n * DRAWS, call));
                return seen.collect();
            }
            Step::ClearSite(site) => {
                self.reference.remove_site((*site).into());
                for (_, object) in &mut self.objects {
                    object.forget_site((*site).into());
                }
            }
            Step::ClearHistory(clear) if clear.forget_visits => {
                self.reference.clear_before(self.setup.epoch(at.now) + 1);
            }
            Step::Enable(enabled) => self.enabled = *enabled,
            Step::Maintain => {
                let days = i64::from(self.setup.max_lookback_days);
                let reachable = self.setup.epoch(at.now - days * DAY);
                self.reference.prune_before(reachable);
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
        let first = self.reference.first_epoch();
        snapshot.shared.push(("first epoch", first));
        for used in self.reference.over_epochs.values() {
            let used = i64::try_from(*used).unwrap_or(i64::MAX);
            snapshot
                .shared
                .push(("a user action's budget over all epochs", used));
        }
        let number = |site: u32| SiteNumber::try_from(site).unwrap_or(SiteNumber::MAX);
        for ((epoch, filter), consumed) in &self.reference.consumed {
            let epoch = snapshot.epochs.entry(*epoch).or_default();
            epoch.consumed.insert(filter_name(*filter), *consumed);
        }
        for ((action, epoch), sites) in &self.reference.accessed {
            let epoch = snapshot.epochs.entry(*epoch).or_default();
            let admitted = sites.iter().map(|site| (*action, number(*site)));
            epoch.admitted.extend(admitted);
        }
        for (epoch, ad) in &self.reference.ads {
            let set = |sites: &[u32]| sites.iter().copied().map(number).collect();
            let stored = StoredImpression {
                site: number(ad.site),
                caller: number(ad.intermediary.unwrap_or(ad.site)),
                action: ad.action,
                timestamp: ad.timestamp,
                expires: ad.expires,
                numbers: (ad.index, ad.match_value, ad.priority),
                audience: (set(&ad.conversion_sites), set(&ad.conversion_callers)),
            };
            snapshot
                .epochs
                .entry(*epoch)
                .or_default()
                .stored
                .push(stored);
        }
        for (at, (create, object)) in (0..).zip(&self.objects) {
            for epoch in &object.epochs {
                let epoch = snapshot.epochs.entry(*epoch).or_default();
                epoch.objects.insert(at);
            }
            let object = ObjectSnapshot {
                site: create.measure.site,
                created: object.ask.current,
                taken: object.taken.len(),
            };
            snapshot.objects.insert(at, object);
        }
        snapshot
            .epochs
            .retain(|_, epoch| *epoch != EpochSnapshot::default());
        snapshot
    }

    fn granted(&self) -> &BTreeMap<i64, u64> {
        &self.reference.granted
    }

    fn saved(&self) -> &[i64] {
        &self.history.saved
    }
}
