//! The calls that measure: a conversion, a shared conversion, a share of one.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use bigbird::{
    AttributionObject, AttributionQuery, Decision, Filter, Histogram, SiteId, Workspace,
    generate_report,
};

use crate::call::Conversion;
use crate::clock::EpochClock;
use crate::config::Randomness;
use crate::decoy::OwnWork;
use crate::explain::{Explanation, ShareRefusal};
use crate::shared::SharedConversion;
use crate::site::Site;
use crate::storage::{StoredObject, Transaction};
use crate::work::{Naming, Work};

/// What is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Measurement<'a> {
    /// A conversion.
    Conversion,
    /// A conversion that these sites share.
    Create(&'a [Site]),
    /// A share of a shared conversion.
    Share(SharedConversion),
}

/// What measuring gave.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) report: Histogram,
    pub(crate) decision: Decision,
    /// The handle of a shared conversion that was created.
    pub(crate) shared: SharedConversion,
}

impl<T: Transaction<E>, E, R: Randomness> Work<'_, T, E, R> {
    /// Measures, and says what work that was.
    pub(crate) fn measure(
        &mut self,
        conversion: &Conversion<'_>,
        measurement: Measurement<'_>,
    ) -> Result<(Measured, OwnWork), E> {
        let mut measured = Measured {
            report: Histogram::null(conversion.options.histogram_size),
            decision: Decision::default(),
            shared: SharedConversion(0),
        };
        let number = self.state.next_object;
        if let Measurement::Create(_) = measurement {
            // Also while the API is disabled: a page cannot tell.
            self.state.next_object = number.saturating_add(1);
            measured.shared = SharedConversion(self.randomness.handle(number));
        }
        let mut own = match measurement {
            Measurement::Share(_) => OwnWork::Share { charged: false },
            _ => OwnWork::Nothing,
        };
        if self.state.enabled {
            let now = conversion.call.now;
            let clock = self.clock(now);
            // Whatever is found: see `State::latest`.
            self.state.latest = self.state.latest.max(Some(now));
            own = match measurement {
                Measurement::Conversion => self.report(clock, conversion, &mut measured)?,
                Measurement::Create(participants) => {
                    self.create(clock, conversion, participants, number, &mut measured)?
                }
                Measurement::Share(shared) => {
                    self.share(clock, conversion, shared, &mut measured)?
                }
            };
        }
        // Also while the API is disabled, these are part of the work.
        match measurement {
            Measurement::Create(_) => self.limit_objects()?,
            Measurement::Share(shared) if !self.state.enabled => {
                self.tx.object(shared)?;
            }
            _ => {}
        }
        Ok((measured, own))
    }

    fn report(
        &mut self,
        clock: EpochClock,
        conversion: &Conversion<'_>,
        measured: &mut Measured,
    ) -> Result<OwnWork, E> {
        let reading = self.reading(clock, conversion, Naming::Callers)?;
        let mut workspace = Workspace::default();
        let ledger = reading.ledger(&self.tx);
        let mut draw = || self.randomness.credit();
        let policy = &self.config.policy;
        let query = &reading.query;
        generate_report(policy, &self.tx, &ledger, query, &mut draw, &mut workspace)?;
        if !self.commit(workspace.changes())? {
            // Not possible within one transaction; if it were, nothing would be released.
            workspace.make_null(query);
        }
        let (report, decision, changes) = workspace.into_parts();
        measured.report = report;
        measured.decision = decision;
        Ok(OwnWork::Pass {
            charged: !changes.charges.is_empty(),
        })
    }

    fn create(
        &mut self,
        clock: EpochClock,
        conversion: &Conversion<'_>,
        participants: &[Site],
        number: u64,
        measured: &mut Measured,
    ) -> Result<OwnWork, E> {
        let mut reading = self.reading(clock, conversion, Naming::Callers)?;
        let callers = self.site_ids(participants, true)?;
        reading.query.set_callers(callers);
        let ledger = reading.ledger(&self.tx);
        let mut draw = || self.randomness.credit();
        let policy = &self.config.policy;
        let query = &reading.query;
        let created = AttributionObject::create(policy, &self.tx, &ledger, query, &mut draw);
        let (object, decision, changes) = created?;
        if self.commit(&changes)? {
            self.tx.put_object(StoredObject {
                number,
                shared: measured.shared,
                object,
            })?;
        }
        measured.decision = decision;
        Ok(OwnWork::Pass {
            charged: !changes.charges.is_empty(),
        })
    }

    fn share(
        &mut self,
        clock: EpochClock,
        conversion: &Conversion<'_>,
        shared: SharedConversion,
        measured: &mut Measured,
    ) -> Result<OwnWork, E> {
        let reading = self.reading(clock, conversion, Naming::Everyone)?;
        let Some(mut stored) = self.tx.object(shared)? else {
            return Ok(OwnWork::Share { charged: false });
        };
        let (outcome, changes) = stored.object.share(
            &self.config.policy,
            &reading.ledger(&self.tx),
            &reading.query,
            reading.readable_from,
        )?;
        if self.commit(&changes)? {
            self.tx.put_object(stored)?;
            measured.report = outcome.report;
            measured.decision = outcome.decision;
        }
        Ok(OwnWork::Share {
            charged: !changes.charges.is_empty(),
        })
    }

    /// Forgets shared conversions while there are too many.
    fn limit_objects(&mut self) -> Result<(), E> {
        let mut objects = self.tx.objects()?;
        while objects.len() > self.config.max_shared_conversions.max(1) {
            let Some(at) = crowded_out(&objects) else {
                break;
            };
            let (number, _) = objects.swap_remove(at);
            self.tx.remove_object(number)?;
        }
        Ok(())
    }

    /// Says what measuring would give, and why. Nothing is committed, and nobody gets a number.
    pub(crate) fn explain(
        mut self,
        conversion: &Conversion<'_>,
        measurement: Measurement<'_>,
    ) -> Result<Explanation, E> {
        let null = Histogram::null(conversion.options.histogram_size);
        let null = (!matches!(measurement, Measurement::Create(_))).then_some(null);
        if !self.state.enabled {
            return Ok(Explanation::disabled(null));
        }
        // If epochs have no start yet, nothing is stored, and any will do.
        let clock = self.clock(conversion.call.now);
        let mut reading = self.reading(clock, conversion, Naming::Nobody)?;
        if let Measurement::Create(participants) = measurement {
            let callers = self.site_ids(participants, false)?;
            reading.query.set_callers(callers);
        }
        let stored = match measurement {
            Measurement::Share(shared) => self.tx.object(shared)?,
            _ => None,
        };
        let (policy, tx) = (&self.config.policy, &self.tx);
        let ledger = reading.ledger(&self.tx);
        let share_refusal = match (measurement, &stored) {
            (Measurement::Share(_), Some(stored)) => {
                (!stored.object.fits(&reading.query)).then_some(ShareRefusal::Unfit)
            }
            (Measurement::Share(_), None) => Some(ShareRefusal::Unknown),
            _ => None,
        };
        let run = |query: &AttributionQuery, draw: &mut dyn FnMut() -> f64| {
            Ok(match measurement {
                Measurement::Conversion => {
                    let mut workspace = Workspace::default();
                    generate_report(policy, tx, &ledger, query, draw, &mut workspace)?;
                    let (report, decision, _) = workspace.into_parts();
                    (Some(report), decision)
                }
                Measurement::Create(_) => {
                    let created = AttributionObject::create(policy, tx, &ledger, query, draw);
                    let (_, decision, _) = created?;
                    (None, decision)
                }
                Measurement::Share(_) => match &stored {
                    Some(stored) => {
                        let mut object = stored.object.clone();
                        let share = object.share(policy, &ledger, query, reading.readable_from);
                        let (outcome, _) = share?;
                        (Some(outcome.report), outcome.decision)
                    }
                    None => (null.clone(), Decision::default()),
                },
            })
        };
        let name = |filter: Filter| match filter {
            // They may have no number yet.
            Filter::ConversionSite(_) => Ok(Some(conversion.caller.site.clone())),
            Filter::Querier(_) => Ok(Some(conversion.querier().clone())),
            other => other.site().map_or(Ok(None), |id| tx.site(id)),
        };
        // A share must agree with the others on epsilon.
        let search = !matches!(measurement, Measurement::Share(_));
        let mut draw = || self.randomness.credit();
        let explained = Explanation::of(&reading.query, search, &mut draw, &name, run)?;
        Ok(Explanation {
            closed: reading.closed,
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
