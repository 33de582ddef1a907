//! Plain sentences about errors: which part dominates, and what would help.

use bigbird::Limit;
use bigbird_lab::evaluation::{Diagnosis, ErrorSource, QuerierCounts, Remedy};

use crate::output::percent;

/// The part of an error that dominates, as a word for tables.
pub(crate) fn mostly(diagnosis: &Diagnosis) -> &'static str {
    match diagnosis.dominant {
        Some(ErrorSource::Noise) => "noise",
        Some(ErrorSource::Blocking) => "blocking",
        None => "both",
    }
}

/// A sentence or two about an error. `phrase` says how the user makes a change. It gives nothing
/// for a change that the command does not have.
pub(crate) fn advice(
    diagnosis: &Diagnosis,
    remedies: &[Remedy],
    phrase: impl Fn(Remedy) -> Option<String>,
) -> String {
    let (noise, blocking) = (percent(diagnosis.noise), percent(diagnosis.blocking));
    let what = match (diagnosis.dominant, diagnosis.first_cause) {
        (Some(ErrorSource::Noise), None) => {
            format!("Noise is the whole error ({noise}): no limit blocks a report.")
        }
        (Some(ErrorSource::Noise), Some(_)) => format!(
            "Noise dominates: alone it gives an error of {noise}, and blocking alone {blocking}."
        ),
        (Some(ErrorSource::Blocking), cause) => {
            let cause = cause.map_or(String::new(), |cause| format!(", mostly by the {cause}"));
            format!(
                "Blocking dominates{cause}: alone it gives an error of {blocking}, and noise alone \
                 {noise}."
            )
        }
        (None, cause) => {
            let cause = cause.map_or(String::new(), |cause| {
                format!(" Most blocked reports are blocked by the {cause}.")
            });
            format!("Noise ({noise} alone) and blocking ({blocking} alone) both matter.{cause}")
        }
    };
    let changes: Vec<String> = remedies.iter().copied().filter_map(phrase).collect();
    match changes.is_empty() {
        true => what,
        false => format!("{what} {}.", what_helps(&changes)),
    }
}

fn what_helps(changes: &[String]) -> String {
    match changes {
        [] => String::new(),
        [only] => format!("What would help: {only}"),
        [first @ .., last] => format!("What would help: {}; or {last}", first.join("; ")),
    }
}

/// A larger limit, with its flag, and its price.
pub(crate) fn larger(limit: Limit) -> String {
    let price = match limit {
        Limit::QuerierBudget | Limit::GlobalBudget => ", which is less private",
        _ => "",
    };
    format!("a larger {limit} (--{}){price}", limit.flag())
}

/// A sentence about queriers whose batches are too small. Nothing if there are none.
pub(crate) fn too_small(counts: QuerierCounts) -> Option<String> {
    let QuerierCounts {
        with_batch,
        too_few_conversions,
    } = counts;
    let all = with_batch + too_few_conversions;
    (too_few_conversions > 0).then(|| {
        format!(
            "Batch too small: {too_few_conversions} of {all} queriers, with too few conversions for \
             a batch. They measure nothing, and no error below includes them. Smaller batches \
             (--batch-days, --min-batch) would include them, but need a larger epsilon."
        )
    })
}
