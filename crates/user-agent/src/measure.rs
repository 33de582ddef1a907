//! The calls that measure: a conversion, a shared conversion, a share of one.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use bigbird::{
    AttributionObject, AttributionQuery, Changes, Decision, Draws, Filter, Histogram, SiteId,
    Workspace, generate_report,
};

use crate::call::{ConversionCall, Measurement};
use crate::config::Randomness;
use crate::decoy::OwnWork;
use crate::explain::{Explanation, ShareRefusal};
use crate::shared::SharedConversion;
use crate::storage::{ChangeSet, StoredObject, View};
use crate::work::{Reading, Work};

/// What measuring gave.
#[derive(Default)]
pub(crate) struct Measured {
    pub(crate) report: Histogram,
    pub(crate) decision: Decision,
    /// The handle of a shared conversion that was created.
    pub(crate) shared: SharedConversion,
    /// What it did on the device itself.
    pub(crate) own: OwnWork,
    /// What it would have changed, if the API were not disabled.
    pub(crate) dropped: Option<ChangeSet>,
}

/// What the budget manager makes of a query: the report, why, what pays for it, and the attribution
/// object that it leaves.
struct Attributed {
    report: Histogram,
    decision: Decision,
    changes: Changes,
    object: Option<AttributionObject>,
}

impl<V: View<E>, E, R: Randomness> Work<'_, V, E, R> {
    /// Measures.
    pub(crate) fn measure(&mut self, conversion: &ConversionCall) -> Result<Measured, E> {
        let measurement = &conversion.measurement;
        let number = self.state.next_object;
        let mut shared = SharedConversion(0);
        if let Measurement::Create { handle, .. } = measurement {
            // Also while the API is disabled: a page cannot tell.
            self.state.next_object = number.saturating_add(1);
            let drawn = || SharedConversion(self.randomness.handle(number));
            shared = handle.unwrap_or_else(drawn);
        }
        let before = self.state.clone();
        let reading = self.read(conversion)?;
        let stored = self.stored(measurement)?;
        let attributed = self.attribute(&reading, &reading.query, measurement, stored.as_ref())?;
        let charged = !attributed.changes.charges.is_empty();
        let found = stored.is_some();
        self.changes.ledger = attributed.changes;
        if let Some(object) = attributed.object {
            let (number, shared) = stored.map_or((number, shared), |it| (it.number, it.shared));
            self.changes.objects.push(StoredObject {
                number,
                shared,
                object,
            });
        }
        if let Measurement::Create { .. } = measurement {
            self.limit_objects()?;
        }
        let mut measured = Measured {
            report: attributed.report,
            decision: attributed.decision,
            shared,
            own: match measurement {
                Measurement::Share(_) => OwnWork::Share { charged, found },
                _ => OwnWork::Pass { charged },
            },
            dropped: None,
        };
        if !self.state.enabled {
            // The same work, of which nothing is left.
            self.state = before;
            measured.dropped = Some(std::mem::take(&mut self.changes));
            measured.report = Histogram::null(conversion.valid.histogram_size);
            measured.decision = Decision::default();
        }
        Ok(measured)
    }

    /// What a call that measures reads.
    fn read(&mut self, conversion: &ConversionCall) -> Result<Reading, E> {
        let now = conversion.occasion.now;
        self.begin_epochs(now);
        self.used_at(now);
        // Whatever is found: see `State::latest`.
        self.state.latest = self.state.latest.max(Some(now));
        let share = matches!(conversion.measurement, Measurement::Share(_));
        let mut reading = self.reading(conversion, share)?;
        if let Measurement::Create { participants, .. } = &conversion.measurement {
            let callers = self.site_ids(participants, true)?;
            reading.query.set_callers(callers);
        }
        Ok(reading)
    }

    /// The attribution object that a share is of.
    fn stored(&self, measurement: &Measurement) -> Result<Option<StoredObject>, E> {
        match measurement {
            Measurement::Share(shared) => self.view.object(*shared),
            _ => Ok(None),
        }
    }

    /// Hands a query to the budget manager. Every time, it sees the same random numbers.
    fn attribute(
        &mut self,
        reading: &Reading,
        query: &AttributionQuery,
        measurement: &Measurement,
        stored: Option<&StoredObject>,
    ) -> Result<Attributed, E> {
        let (policies, view) = (&self.state, self.view);
        let ledger = reading.ledger(view);
        let mut source = || self.randomness.credit();
        let mut draws = Draws::new(&mut source, &mut self.drawn);
        let draw = &mut || draws.draw();
        let mut attributed = Attributed {
            report: query.null_report(),
            decision: Decision::default(),
            changes: Changes::default(),
            object: None,
        };
        match (measurement, stored) {
            (Measurement::Conversion, _) => {
                let mut workspace = Workspace::default();
                generate_report(policies, view, &ledger, query, draw, &mut workspace)?;
                let (report, decision, changes) = workspace.into_parts();
                attributed = Attributed {
                    report,
                    decision,
                    changes,
                    object: None,
                };
            }
            (Measurement::Create { .. }, _) => {
                let created = AttributionObject::create(policies, view, &ledger, query, draw);
                let (object, decision, changes) = created?;
                attributed.decision = decision;
                attributed.changes = changes;
                attributed.object = Some(object);
            }
            (Measurement::Share(_), Some(stored)) => {
                let mut object = stored.object.clone();
                let share = object.share(policies, &ledger, query, reading.readable_from);
                let (outcome, changes) = share?;
                attributed = Attributed {
                    report: outcome.report,
                    decision: outcome.decision,
                    changes,
                    object: Some(object),
                };
            }
            (Measurement::Share(_), None) => {}
        }
        Ok(attributed)
    }

    /// Forgets shared conversions while there are too many, the one that is being created included.
    fn limit_objects(&mut self) -> Result<(), E> {
        let mut objects = self.view.objects()?;
        let created = self.changes.objects.iter();
        objects.extend(created.map(|it| (it.number, it.object.conversion_site())));
        while objects.len() > self.config.max_shared_conversions.max(1) {
            let Some(at) = crowded_out(&objects) else {
                break;
            };
            let (number, _) = objects.swap_remove(at);
            self.changes.dropped_objects.push(number);
        }
        Ok(())
    }

    /// Says what [measuring](Self::measure) would give, and why. What it would change is dropped.
    pub(crate) fn explain(mut self, conversion: &ConversionCall) -> Result<Explanation, E> {
        let measurement = &conversion.measurement;
        let shared = matches!(measurement, Measurement::Create { .. });
        if !self.state.enabled {
            let null = Histogram::null(conversion.valid.histogram_size);
            return Ok(Explanation::disabled((!shared).then_some(null)));
        }
        let reading = self.read(conversion)?;
        let stored = self.stored(measurement)?;
        let share_refusal = match (measurement, &stored) {
            (Measurement::Share(_), Some(stored)) => {
                (!stored.object.fits(&reading.query)).then_some(ShareRefusal::Unfit)
            }
            (Measurement::Share(_), None) => Some(ShareRefusal::Unknown),
            _ => None,
        };
        let view = self.view;
        let name = |filter: Filter| match filter {
            // They may have no number yet.
            Filter::ConversionSite(_) => Ok(Some(conversion.caller.site.clone())),
            Filter::Querier(_) => Ok(Some(conversion.querier().clone())),
            other => other.site().map_or(Ok(None), |id| view.site(id)),
        };
        // A share must agree with the others on epsilon.
        let search = !matches!(measurement, Measurement::Share(_));
        let explained = Explanation::of(&reading.query, search, &name, |query| {
            let attributed = self.attribute(&reading, query, measurement, stored.as_ref())?;
            let report = (!shared).then_some(attributed.report);
            Ok((report, attributed.decision))
        })?;
        Ok(Explanation {
            closed: reading.closed.clone(),
            share_refusal,
            ..explained
        })
    }
}

/// Which shared conversion goes when there are too many: the oldest of the conversion site that has
/// most, and of several such sites, of the one whose oldest is oldest. So a site that creates many
/// displaces its own; and what was found or paid for them does not matter.
fn crowded_out(objects: &[(u64, SiteId)]) -> Option<usize> {
    let mut of_site: BTreeMap<SiteId, u32> = BTreeMap::new();
    for (_, site) in objects {
        *of_site.entry(*site).or_default() += 1;
    }
    let rank = |&at: &usize| {
        let (number, site) = objects[at];
        (of_site.get(&site).copied(), Reverse(number))
    };
    (0..objects.len()).max_by_key(rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_of_the_site_with_most_goes() {
        let gone = |sites: &[u32]| {
            let objects: Vec<_> = (1..).zip(sites.iter().map(|site| SiteId(*site))).collect();
            crowded_out(&objects).map(|at| objects[at].0)
        };
        assert_eq!(gone(&[]), None);
        assert_eq!(gone(&[7, 8, 8, 9]), Some(2));
        // A tie goes by age, not by the number of a site: what has a number may depend on what was
        // stored in some epoch.
        assert_eq!(gone(&[7, 8, 8, 7]), Some(1));
        assert_eq!(gone(&[8, 7, 7, 8]), Some(1));
    }
}
