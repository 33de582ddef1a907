//! The calls that measure: a conversion, a shared conversion, a share of one.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::hint::black_box;

use bigbird::{
    AttributionObject, AttributionQuery, Decision, Draws, Filter, Histogram, LedgerChanges, SiteId,
    Workspace, generate_report,
};

use super::record::conversion_body;
use super::{ConversionQuery, Execution};
use crate::agent::OwnWork;
use crate::call::{ConversionCall, MeasurementKind};
use crate::explanation::{Explanation, ShareRefusal, UnmatchedImpression};
use crate::randomness::Randomness;
use crate::shared::SharedConversion;
use crate::site::Site;
use crate::storage::{ChangeSet, ListedRows, StoredObject, View, ViewRow};

/// The result of a call that measures.
#[derive(Default)]
pub(crate) struct MeasureResult {
    pub(crate) report: Histogram,
    pub(crate) decision: Decision,
    /// The handle of a shared conversion that was created.
    pub(crate) shared: SharedConversion,
    /// The work that the call did on the device itself.
    pub(crate) own: OwnWork,
    /// The changes that were dropped because the API is disabled.
    pub(crate) dropped: Option<ChangeSet>,
}

/// The result of a query: the report, the decision, the charges, and the attribution object that is
/// created or changed.
struct AttributionResult {
    report: Histogram,
    decision: Decision,
    changes: LedgerChanges,
    object: Option<AttributionObject>,
}

impl<V: View<E>, E, R: Randomness> Execution<'_, V, E, R> {
    /// Carries out a call that measures. Its sealed report will have `report_bytes` bytes.
    pub(crate) fn measure(
        &mut self,
        conversion: &ConversionCall,
        report_bytes: usize,
    ) -> Result<MeasureResult, E> {
        let measurement = &conversion.measurement;
        let number = self.state.next_object;
        let mut shared = SharedConversion(0);
        if let MeasurementKind::Create { handle, .. } = measurement {
            // This is also done while the API is disabled, so that a page cannot tell.
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
        // It is also made while the API is disabled, so that the work is the same.
        let refusal = share_refusal(measurement, stored.as_ref(), &reading);
        let decision = &attributed.decision;
        let mut explanation = self.explained(conversion, &reading, decision, refusal)?;
        self.changes.ledger = attributed.changes;
        if let Some(object) = attributed.object {
            let (number, shared) = stored.map_or((number, shared), |it| (it.number, it.shared));
            self.changes.objects.push(StoredObject {
                number,
                shared,
                object,
            });
        }
        if let MeasurementKind::Create { .. } = measurement {
            self.limit_objects()?;
        }
        let mut measured = MeasureResult {
            report: attributed.report,
            decision: attributed.decision,
            shared,
            own: match measurement {
                MeasurementKind::Share(_) => OwnWork::Share { charged, found },
                _ => OwnWork::Pass { charged },
            },
            dropped: None,
        };
        if !self.state.enabled {
            // The work was the same, but nothing of it is kept.
            self.state = before;
            measured.dropped = Some(std::mem::take(&mut self.changes));
            measured.report = Histogram::null(conversion.valid.histogram_size);
            measured.decision = Decision::default();
            let dropped = std::mem::replace(&mut explanation, Explanation::disabled(None));
            black_box(conversion_body(conversion, dropped, report_bytes));
        }
        self.record_conversion(conversion, explanation, report_bytes)?;
        Ok(measured)
    }

    /// The query of a call that measures.
    fn read(&mut self, conversion: &ConversionCall) -> Result<ConversionQuery, E> {
        let now = conversion.occasion.now;
        self.begin_epochs(now);
        self.used_at(now);
        // This does not depend on what is found: see `DeviceState::latest`.
        self.state.latest = self.state.latest.max(Some(now));
        let share = matches!(conversion.measurement, MeasurementKind::Share(_));
        let mut reading = self.conversion_query(conversion, share)?;
        if let MeasurementKind::Create { participants, .. } = &conversion.measurement {
            let callers = self.site_ids(participants, true)?;
            reading.query.set_callers(callers);
        }
        Ok(reading)
    }

    /// The attribution object from which a share is taken.
    fn stored(&self, measurement: &MeasurementKind) -> Result<Option<StoredObject>, E> {
        match measurement {
            MeasurementKind::Share(shared) => self.view.object(*shared),
            _ => Ok(None),
        }
    }

    /// Passes a query to the budget manager, each time with the same random numbers.
    fn attribute(
        &mut self,
        reading: &ConversionQuery,
        query: &AttributionQuery,
        measurement: &MeasurementKind,
        stored: Option<&StoredObject>,
    ) -> Result<AttributionResult, E> {
        let (policies, view) = (&self.state, self.view);
        let ledger = reading.ledger(view);
        let mut source = || self.randomness.credit();
        let mut draws = Draws::new(&mut source, &mut self.drawn);
        let draw = &mut || draws.draw();
        let mut attributed = AttributionResult {
            report: query.null_report(),
            decision: Decision::default(),
            changes: LedgerChanges::default(),
            object: None,
        };
        match (measurement, stored) {
            (MeasurementKind::Conversion, _) => {
                let mut workspace = Workspace::default();
                generate_report(policies, view, &ledger, query, draw, &mut workspace)?;
                let (report, decision, changes) = workspace.into_parts();
                attributed = AttributionResult {
                    report,
                    decision,
                    changes,
                    object: None,
                };
            }
            (MeasurementKind::Create { .. }, _) => {
                let created = AttributionObject::create(policies, view, &ledger, query, draw);
                let (object, decision, changes) = created?;
                attributed.decision = decision;
                attributed.changes = changes;
                attributed.object = Some(object);
            }
            (MeasurementKind::Share(_), Some(stored)) => {
                let mut object = stored.object.clone();
                let share = object.share(policies, &ledger, query, reading.readable_from);
                let (outcome, changes) = share?;
                attributed = AttributionResult {
                    report: outcome.report,
                    decision: outcome.decision,
                    changes,
                    object: Some(object),
                };
            }
            (MeasurementKind::Share(_), None) => {}
        }
        Ok(attributed)
    }

    /// Removes shared conversions while there are too many. The one that is being created counts
    /// too.
    fn limit_objects(&mut self) -> Result<(), E> {
        let mut objects = self.view.objects()?;
        let created = self.changes.objects.iter();
        objects.extend(created.map(|it| (it.number, it.object.conversion_site())));
        while objects.len() > self.config.max_shared_conversions.max(1) {
            let Some(at) = evicted_object(&objects) else {
                break;
            };
            let (number, _) = objects.swap_remove(at);
            self.changes.dropped_objects.push(number);
        }
        Ok(())
    }

    /// Explains what [measuring](Self::measure) would give, and why. The changes are dropped.
    pub(crate) fn explain(mut self, conversion: &ConversionCall) -> Result<Explanation, E> {
        let measurement = &conversion.measurement;
        let shared = matches!(measurement, MeasurementKind::Create { .. });
        if !self.state.enabled {
            let null = Histogram::null(conversion.valid.histogram_size);
            return Ok(Explanation::disabled((!shared).then_some(null)));
        }
        let reading = self.read(conversion)?;
        let stored = self.stored(measurement)?;
        let share_refusal = share_refusal(measurement, stored.as_ref(), &reading);
        let view = self.view;
        let name = |filter| filter_site(view, conversion, filter);
        // A share must have the epsilon of the shared conversion, so there is no other to look for.
        let search = !matches!(measurement, MeasurementKind::Share(_));
        let explained = Explanation::of(&reading.query, search, &name, |query| {
            let attributed = self.attribute(&reading, query, measurement, stored.as_ref())?;
            let report = (!shared).then_some(attributed.report);
            Ok((report, attributed.decision))
        })?;
        let nothing =
            explained.cause.is_none() && explained.epochs.iter().all(|it| it.matched == 0);
        let unmatched = match nothing && search {
            true => self.unmatched(&reading.query)?,
            false => Vec::new(),
        };
        Ok(Explanation {
            closed: reading.closed.clone(),
            share_refusal,
            unmatched,
            ..explained
        })
    }

    /// The newest stored impressions that do not match a query, each with the reason.
    fn unmatched(&self, query: &AttributionQuery) -> Result<Vec<UnmatchedImpression>, E> {
        let rows = ListedRows::ImpressionsFrom(self.state.first_epoch);
        let mut found = Vec::new();
        let most = UnmatchedImpression::LISTED;
        self.view.visit_last(rows, None, most, &mut |row| {
            if let ViewRow::Impression(epoch, _, impression) = row
                && epoch >= self.state.first_epoch
                && let Some(obstacle) = query.obstacle(epoch, impression)
            {
                let unmatched = UnmatchedImpression {
                    site: Site::from_stored(""),
                    timestamp: impression.timestamp,
                    epoch: epoch.0,
                    histogram_index: impression.histogram_index,
                    match_value: impression.match_value,
                    obstacle,
                };
                found.push((row.place(), impression.site, unmatched));
            }
        })?;
        found.sort_unstable_by_key(|(place, ..)| Reverse(*place));
        let named = found.into_iter().map(|(_, id, unmatched)| {
            let unknown = || Site::from_stored(format!("site {}", id.0));
            let site = self.view.site(id)?.unwrap_or_else(unknown);
            Ok(UnmatchedImpression { site, ..unmatched })
        });
        named.collect()
    }
}

/// The reason why a share is refused as a whole, if it is refused.
pub(super) fn share_refusal(
    measurement: &MeasurementKind,
    stored: Option<&StoredObject>,
    reading: &ConversionQuery,
) -> Option<ShareRefusal> {
    match (measurement, stored) {
        (MeasurementKind::Share(_), Some(stored)) => {
            (!stored.object.fits(&reading.query)).then_some(ShareRefusal::Unfit)
        }
        (MeasurementKind::Share(_), None) => Some(ShareRefusal::Unknown),
        _ => None,
    }
}

/// The site of a filter that a conversion asked to pay.
pub(super) fn filter_site<E>(
    view: &impl View<E>,
    conversion: &ConversionCall,
    filter: Filter,
) -> Result<Option<Site>, E> {
    match filter {
        // These sites may have no number yet.
        Filter::ConversionSiteQuota(_) => Ok(Some(conversion.caller.site.clone())),
        Filter::QuerierBudget(_) => Ok(Some(conversion.querier().clone())),
        other => other.site().map_or(Ok(None), |id| view.site(id)),
    }
}

/// The index of the shared conversion to remove when there are too many: the oldest of the
/// conversion site that has the most. If several sites have the most, it is the oldest of all
/// theirs. So a site that creates many evicts its own, and it does not matter what was found or
/// paid.
fn evicted_object(objects: &[(u64, SiteId)]) -> Option<usize> {
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
            evicted_object(&objects).map(|at| objects[at].0)
        };
        assert_eq!(gone(&[]), None);
        assert_eq!(gone(&[7, 8, 8, 9]), Some(2));
        // Age breaks a tie, not the number of a site: which sites have numbers may depend on what
        // was stored in some epoch.
        assert_eq!(gone(&[7, 8, 8, 7]), Some(1));
        assert_eq!(gone(&[8, 7, 7, 8]), Some(1));
    }
}
