//! Every number of the paper, next to ours.

use crate::evaluation::ConfidenceInterval;
use crate::paper::numbers::{PaperResult, paper_numbers};
use crate::paper::reproduce::Results;

/// A number of the paper, next to ours.
#[derive(Debug, Clone, PartialEq)]
pub struct Compared {
    /// The paper's number.
    pub paper: &'static PaperResult,
    /// Our number, as a fraction. With several seeds, it is the mean.
    pub ours: f64,
    /// With several seeds, the 95% interval of our mean.
    pub interval: Option<ConfidenceInterval>,
}

/// Every number that the paper gives for the suites that were run, next to ours.
pub fn compared(results: Results<'_>) -> Vec<Compared> {
    let numbers = paper_numbers().results.iter();
    numbers
        .filter_map(|paper| {
            let run = results.at(paper.suite(), paper.system, &paper.attacker, paper.x)?;
            Some(Compared {
                paper,
                ours: paper.measure.of(&run.summary),
                interval: run.interval(|summary| paper.measure.of(summary)),
            })
        })
        .collect()
}
