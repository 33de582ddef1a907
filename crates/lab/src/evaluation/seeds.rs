//! Runs with several seeds: the mean of their errors, with intervals.

use serde::{Deserialize, Serialize};

use super::interval::ConfidenceInterval;
use super::results::{RunLimits, RunRecord};

/// The errors of runs that differ only in their seed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SeedGroup {
    /// The profile that the policy comes from.
    pub profile: String,
    /// The attacker, or `none`.
    pub attacker: String,
    /// The capacities.
    #[serde(flatten)]
    pub limits: RunLimits,
    /// The rule for what impression sites pay.
    pub site_charging: String,
    /// The number of Sybils of the attacker.
    pub sybils: Option<u32>,
    /// The rank of the first site that the attacker owns.
    pub first_rank: Option<u32>,
    /// The seeds.
    pub seeds: Vec<u64>,
    /// The median error of a run: its mean over seeds. None with one seed, or if a run has no
    /// batches.
    pub median: Option<ConfidenceInterval>,
    /// The 95th percentile of a run.
    pub p95: Option<ConfidenceInterval>,
    /// The numbers of these runs in the list of all runs.
    #[serde(skip)]
    pub runs: Vec<usize>,
}

impl SeedGroup {
    /// The groups of some runs, in the order of their first runs.
    pub fn of(runs: &[RunRecord]) -> Vec<Self> {
        let mut groups: Vec<Self> = Vec::new();
        for (number, run) in runs.iter().enumerate() {
            let known = groups.iter_mut().find(|group| group.has(run));
            match known {
                // A seed that was run again, for example with more threads, counts once.
                Some(group) if group.seeds.contains(&run.seed) => {}
                Some(group) => {
                    group.seeds.push(run.seed);
                    group.runs.push(number);
                }
                None => groups.push(Self {
                    profile: run.profile.clone(),
                    attacker: run.attacker.clone(),
                    limits: run.limits,
                    site_charging: run.site_charging.clone(),
                    sybils: run.sybils,
                    first_rank: run.first_rank,
                    seeds: vec![run.seed],
                    median: None,
                    p95: None,
                    runs: vec![number],
                }),
            }
        }
        for group in &mut groups {
            let interval = |error: fn(&RunRecord) -> Option<f64>| {
                let errors = group.runs.iter().map(|number| error(&runs[*number]));
                ConfidenceInterval::of(&errors.collect::<Option<Vec<f64>>>()?)
            };
            (group.median, group.p95) = (interval(|run| run.median), interval(|run| run.p95));
        }
        groups
    }

    /// True if a run belongs to the group.
    pub fn has(&self, run: &RunRecord) -> bool {
        self.profile == run.profile
            && self.attacker == run.attacker
            && self.limits == run.limits
            && self.site_charging == run.site_charging
            && self.sybils == run.sybils
            && self.first_rank == run.first_rank
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluation::{Experiment, Laboratory, QuerierOptions};
    use crate::workload::synthetic::{Population, Preset};

    #[test]
    fn runs_that_differ_in_their_seed_are_one_group() {
        let population = Population {
            preset: Preset::Published,
            scale: 0.001,
            seed: 1,
        };
        let workload = population.generate();
        let laboratory = Laboratory::new(&workload, QuerierOptions::default(), 1).unwrap();
        let experiment = Experiment {
            profile: bigbird::Profile::BigBird,
            policy: bigbird::Profile::BigBird.policy(),
            attack: None,
        };
        let result = experiment.run(&laboratory, 1).unwrap();
        let run = |profile: &str, seed: u64, median: f64| RunRecord {
            profile: profile.to_owned(),
            median: Some(median),
            p95: None,
            ..RunRecord::new("test", &experiment, seed, &result, &workload)
        };
        let runs = [
            run("one", 1, 0.1),
            run("other", 1, 0.5),
            run("one", 2, 0.2),
            // The same seed again, with more threads.
            run("one", 2, 0.2),
        ];
        let groups = SeedGroup::of(&runs);
        assert_eq!(groups.len(), 2);
        assert_eq!(
            (&groups[0].seeds[..], &groups[0].runs[..]),
            (&[1, 2][..], &[0, 2][..])
        );
        let median = groups[0].median.unwrap();
        assert!((median.mean - 0.15).abs() < 1e-12 && median.seeds == 2);
        assert!(
            median.low < 0.1 && median.high > 0.2,
            "two seeds say little"
        );
        assert_eq!((groups[0].p95, groups[1].median), (None, None));
    }
}
