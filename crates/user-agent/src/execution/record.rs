//! Recording: what goes into history. Nothing here decides anything.

use bigbird::Decision;

use super::measure::filter_site;
use super::{ConversionQuery, Execution};
use crate::call::{Action, CallSites, ConversionCall, ImpressionCall, MeasurementKind, Occasion};
use crate::explanation::{Explanation, ShareRefusal};
use crate::history::{
    CallRecord, ConversionRecord, HistoryEntry, HistoryKind, ImpressionOutcome, ImpressionRecord,
    RecordedCall,
};
use crate::randomness::Randomness;
use crate::site::Site;
use crate::storage::{RowSet, View, ViewRow};

/// The most impression-site quotas of an epoch that an entry lists. A conversion may match ads of a
/// thousand sites.
pub(crate) const LISTED_QUOTAS: usize = 8;

impl<V: View<E>, E, R: Randomness> Execution<'_, V, E, R> {
    /// Records an impression.
    pub(super) fn record_impression(
        &mut self,
        impression: &ImpressionCall,
        outcome: ImpressionOutcome,
    ) -> Result<(), E> {
        let ImpressionCall {
            occasion,
            caller,
            valid,
        } = impression;
        let call = RecordedCall::Impression(ImpressionRecord {
            outcome,
            histogram_index: valid.histogram_index,
            match_value: valid.match_value,
            priority: valid.priority,
            lifetime_days: valid.lifetime_days,
            conversion_sites: valid.conversion_sites.clone(),
            conversion_callers: valid.conversion_callers.clone(),
        });
        let body = record_of(occasion, call).to_json();
        self.record(HistoryKind::Impression, occasion, caller, body)
    }

    /// Records a call that measures.
    pub(super) fn record_conversion(
        &mut self,
        conversion: &ConversionCall,
        explanation: Explanation,
        report_bytes: usize,
    ) -> Result<(), E> {
        let kind = match conversion.measurement {
            MeasurementKind::Conversion => HistoryKind::Conversion,
            MeasurementKind::Create { .. } => HistoryKind::SharedConversion,
            MeasurementKind::Share(_) => HistoryKind::Share,
        };
        let body = conversion_body(conversion, explanation, report_bytes);
        self.record(kind, &conversion.occasion, &conversion.caller, body)
    }

    /// The explanation of a decision, for history. It does not search for the largest epsilon, and
    /// it lists few impression-site quotas.
    pub(super) fn explained(
        &self,
        conversion: &ConversionCall,
        reading: &ConversionQuery,
        decision: &Decision,
        share_refusal: Option<ShareRefusal>,
    ) -> Result<Explanation, E> {
        let name = |filter| filter_site(self.view, conversion, filter);
        let query = &reading.query;
        let explained = Explanation::of_decision(query, None, decision, LISTED_QUOTAS, &name)?;
        Ok(Explanation {
            closed: reading.closed.clone(),
            share_refusal,
            ..explained
        })
    }

    fn record(
        &mut self,
        kind: HistoryKind,
        occasion: &Occasion,
        caller: &CallSites,
        body: String,
    ) -> Result<(), E> {
        let last = self.view.last_entry()?;
        self.changes.recorded.push(HistoryEntry {
            number: last.map_or(1, |last| last.saturating_add(1)),
            epoch: self.epoch(occasion.now),
            kind,
            site: caller.site.clone(),
            caller: caller.caller().clone(),
            body,
        });
        Ok(())
    }

    /// Removes the entries of impressions that a site saved, at the site's own request. A site
    /// cannot erase what the user sees of what left the device.
    pub(crate) fn forget_impression_entries(&mut self, site: &Site) -> Result<(), E> {
        let entries = self.view.entries_by(site)?.into_iter();
        let impressions = entries.filter(|(_, kind)| *kind == HistoryKind::Impression);
        self.unrecord(impressions.map(|(number, _)| number).collect());
        Ok(())
    }

    /// Removes every entry about a call on one of these sites or by one of them. The querier is one
    /// of the two.
    pub(crate) fn forget_entries_about(&mut self, sites: &[Site]) -> Result<(), E> {
        let names = |name: &str| sites.iter().any(|site| site.as_str() == name);
        let mut numbers = Vec::new();
        self.view.visit(RowSet::HistoryKeys, &mut |row| match row {
            ViewRow::HistoryKey(key) if names(key.site) || names(key.caller) => {
                numbers.push(key.number);
            }
            _ => {}
        })?;
        self.unrecord(numbers);
        Ok(())
    }

    fn unrecord(&mut self, numbers: Vec<u64>) {
        self.changes.erase |= !numbers.is_empty();
        self.changes.unrecorded.extend(numbers);
    }
}

/// What the entry of a call that measures tells, as JSON.
pub(crate) fn conversion_body(
    conversion: &ConversionCall,
    explanation: Explanation,
    report_bytes: usize,
) -> String {
    let valid = &conversion.valid;
    let call = RecordedCall::Conversion(ConversionRecord {
        querier: conversion.querier().clone(),
        aggregation_service: valid.aggregation_service.clone(),
        epsilon: valid.terms.epsilon().micro(),
        histogram_size: valid.histogram_size.get(),
        value: valid.terms.value(),
        max_value: valid.terms.max_value(),
        report_bytes,
        explanation: explanation.into(),
    });
    record_of(&conversion.occasion, call).to_json()
}

fn record_of(occasion: &Occasion, call: RecordedCall) -> CallRecord {
    CallRecord {
        time: occasion.now,
        user_action: occasion.user_action.and_then(Action::shown_number),
        action_label: occasion.action_label.clone(),
        call,
    }
}
