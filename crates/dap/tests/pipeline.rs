//! From histograms to their noised sum.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use bigbird_dap::{NoiseSource, TaskTerms, VdafKind};
use common::{NO_NOISE, TaskSetup, add, micro, terms};

#[test]
fn reports_are_summed() {
    for vdaf in [VdafKind::L1BoundSum, VdafKind::SumVec] {
        let setup = TaskSetup::new(&TaskTerms {
            vdaf,
            ..terms(4, 10)
        });
        let reports: Vec<_> = (0..30)
            .map(|number: u32| {
                let histogram = [number % 3, 0, 1, 10 - number % 3 - 1];
                setup.report(&histogram, NO_NOISE)
            })
            .collect();
        let mut aggregation = setup.in_memory(NO_NOISE);
        let tally = add(&mut aggregation, &reports);
        assert_eq!(tally.accepted, 30);
        assert!(tally.refused.is_empty());
        let result = aggregation
            .query(micro(NO_NOISE), NoiseSource::Both, &mut rand::rng())
            .unwrap();
        assert_eq!(result.buckets, [30, 0, 30, 240]);
        assert_eq!(result.reports, 30);
    }
}
