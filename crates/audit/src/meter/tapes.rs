//! Random credit: the draws are hidden from queriers, so a proof of a leak integrates them out.

use std::collections::BTreeMap;

use super::joint::{Play, chosen, play};
use super::mixture::{LogRatio, Outcome, largest_log_ratio};
use crate::manager::{MakeManager, Observation};
use crate::script::{Credit, Script, Tape};

/// The loss of a script when the draws are hidden.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MixtureLoss {
    /// The loss in µε.
    pub micro: f64,
    /// False if it is only a lower bound.
    pub exact: bool,
    /// The largest amount in µε that the global budget of x grants under any draws.
    pub granted: u64,
    /// The number of tapes.
    pub tapes: usize,
}

impl MixtureLoss {
    /// True if the loss is above a number of µε by more than doubles can be wrong.
    pub fn exceeds(&self, micro: u64) -> bool {
        #[expect(clippy::cast_precision_loss, reason = "within the margin")]
        let limit = micro as f64;
        self.micro > limit * (1.0 + 1e-9) + 1e-4
    }
}

/// The number of tapes beyond which a mixture is not computed.
const MOST_TAPES: usize = 300;

/// The loss of a script if nobody knows the draws: every tape is played, and the views are mixed.
/// `None` if the script draws so often that there are too many tapes.
pub fn mixture_loss(manager: &dyn MakeManager, script: &Script) -> Option<MixtureLoss> {
    let tapes = tapes(script)?;
    let count = tapes.len();
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    let log_weight = -(count as f64).ln();
    let (mut ones, mut zeros) = (Vec::new(), Vec::new());
    let mut scales = Vec::new();
    let mut granted = 0;
    for tape in tapes {
        let one = play(manager, script, tape.clone(), None);
        let x = chosen(script, &one)?;
        let zero = play(manager, script, tape, Some(x));
        let last = one.records.last();
        let paid = last.and_then(|last| last.granted.get(&x)).copied();
        granted = granted.max(paid.unwrap_or(0));
        scales = noise_scales(&one);
        ones.push(outcome(&one, log_weight));
        zeros.push(outcome(&zero, log_weight));
    }
    let same_length = |it: &Outcome| it.means.len() == scales.len();
    let LogRatio { value, exact } = match ones.iter().chain(&zeros).all(same_length) {
        true => largest_log_ratio(&ones, &zeros, &scales),
        // Reports of different lengths are visible.
        false => LogRatio {
            value: f64::INFINITY,
            exact: true,
        },
    };
    Some(MixtureLoss {
        micro: value * 1e6,
        exact,
        granted,
        tapes: count,
    })
}

/// Every tape over the draws that the script can use, each equally likely. Two values are exact for
/// halves, six for halves and thirds.
fn tapes(script: &Script) -> Option<Vec<Tape>> {
    let thirds = script.calls().any(|call| call.credit() == Credit::Rising);
    let levels: &[u8] = if thirds { &[0, 1, 2, 3, 4, 5] } else { &[1, 4] };
    let mut tapes = vec![Tape::new(script.tape)];
    let drawing = script.steps.iter().filter(|step| step.draws());
    for (number, step) in drawing.enumerate() {
        // Managers that know how many draws they need take them in a row; the others are given two
        // for each call.
        for draw in 0..u32::try_from(2 * step.calls().len()).ok()? {
            if tapes.len() * levels.len() > MOST_TAPES {
                return None;
            }
            let with = |tape: &Tape| -> Vec<Tape> {
                let levels = levels.iter();
                levels
                    .map(|&level| tape.clone().with(number, draw, level))
                    .collect()
            };
            tapes = tapes.iter().flat_map(with).collect();
        }
    }
    Some(tapes)
}

fn reports(play: &Play) -> impl Iterator<Item = &Observation> {
    play.records.iter().flat_map(|record| &record.seen)
}

/// The scale of the noise of every bucket of every report, in units of the reports.
fn noise_scales(play: &Play) -> Vec<f64> {
    let mut scales = Vec::new();
    for seen in reports(play) {
        if let Observation::Report(report) = seen {
            #[expect(clippy::cast_precision_loss, reason = "far below 2⁵³")]
            let epsilon = report.epsilon as f64 / 1e6;
            let scale = 2.0 * f64::from(report.max_value) / epsilon;
            scales.extend(report.buckets.iter().map(|_| scale));
        }
    }
    scales
}

/// The view of a play: everything that is noised, and everything else as a symbol.
fn outcome(play: &Play, log_weight: f64) -> Outcome {
    let mut symbol = Vec::new();
    let mut means = Vec::new();
    let mut texts: BTreeMap<&str, u64> = BTreeMap::new();
    for seen in reports(play) {
        match seen {
            Observation::Saved => symbol.push(0),
            Observation::Handle(handle, released) => {
                #[expect(clippy::cast_possible_truncation, reason = "both halves are kept")]
                symbol.extend([1, *handle as u64, (*handle >> 64) as u64, *released]);
            }
            Observation::Error(text) => {
                let next = texts.len() as u64;
                let number = *texts.entry(text).or_insert(next);
                symbol.extend([2, number, text.len() as u64]);
            }
            Observation::Report(report) => {
                let sizes = [report.buckets.len(), report.length].map(|it| it as u64);
                symbol.extend([3, report.epsilon, report.max_value.into(), report.released]);
                symbol.extend(sizes);
                means.extend(report.buckets.iter().map(|bucket| f64::from(*bucket)));
            }
        }
    }
    Outcome {
        log_weight,
        symbol,
        means,
    }
}
