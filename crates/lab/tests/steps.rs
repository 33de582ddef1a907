//! A run in three steps, as a cluster would make it: every step works on one part at a time, on any
//! machine and in any order, and only what is merged travels. The result is that of one machine.
#![allow(missing_docs, clippy::unwrap_used)]

use bigbird::{Policy, Profile};
use bigbird_lab::attack::attackers::{Omniscient, Random};
use bigbird_lab::attack::{Attack, Attacker, Strength};
use bigbird_lab::evaluation::audience::{AttackAudience, HeardVisitCounts};
use bigbird_lab::evaluation::batching::{
    BatchKeys, BatchPlan, BatchTotals, QuerierNumbers, TimeKey,
};
use bigbird_lab::evaluation::metrics::{Batch, evaluate};
use bigbird_lab::evaluation::replay::{
    Observer, Replay, Replayed, Replayer, ReportRow, Scene, Unlimited,
};
use bigbird_lab::evaluation::resilience::Spent;
use bigbird_lab::evaluation::survey::Survey;
use bigbird_lab::evaluation::{Laboratory, Querier, QuerierOptions};
use bigbird_lab::workload::Workload;
use bigbird_lab::workload::synthetic::{Population, Preset};

/// The rows of some parts, as a step hands them to the next.
#[derive(Default)]
struct CollectedRows {
    rows: Vec<(ReportRow, Option<u16>)>,
}

/// Collects rows, each with the bucket that it would have had without limits.
struct Collect<'a> {
    rows: &'a mut CollectedRows,
    unlimited: Unlimited,
}

impl Observer for Collect<'_> {
    fn report(&mut self, row: &ReportRow, scene: &Scene<'_>) {
        let full = self.unlimited.bucket(row, scene);
        self.rows.rows.push((*row, full));
    }
}

/// A cluster of machines, each with some parts of the workload.
struct Cluster<'w> {
    workload: &'w Workload,
    machines: Vec<Vec<usize>>,
    options: QuerierOptions,
}

impl<'w> Cluster<'w> {
    fn queriers(&self) -> Vec<Querier> {
        let surveys = self.machines.iter().map(|parts| {
            let mut survey = Survey::new(self.workload);
            for part in parts {
                survey.add(&self.workload.part(*part).unwrap());
            }
            survey
        });
        let mut sum = Survey::new(self.workload);
        surveys.for_each(|survey| sum.merge(survey));
        sum.queriers(&self.options)
    }

    fn plan(&self, queriers: &[Querier], numbers: &QuerierNumbers) -> BatchPlan {
        let mut sum = BatchKeys::new(queriers);
        for parts in &self.machines {
            let mut keys = BatchKeys::new(queriers);
            for part in parts {
                keys.add(&self.workload.part(*part).unwrap(), numbers);
            }
            sum.merge(keys);
        }
        BatchPlan::new(queriers, sum)
    }

    fn audience(&self, queriers: &[Querier], attack: &Attack<'_>) -> AttackAudience {
        let new = || HeardVisitCounts::new(self.workload, queriers, &self.options);
        let mut sum = new();
        for parts in &self.machines {
            let mut counts = new();
            for part in parts {
                counts.add(&self.workload.part(*part).unwrap());
            }
            sum.merge(&counts);
        }
        AttackAudience::new(attack, self.workload, queriers, &sum)
    }

    /// Replays every part, each with a worker of its own, and returns the rows of all.
    fn replay(&self, replay: Replay<'_>) -> (CollectedRows, Replayed) {
        let mut all = CollectedRows::default();
        let mut sum: Option<Replayed> = None;
        for part in self.machines.iter().flatten() {
            let mut rows = CollectedRows::default();
            let mut collect = Collect {
                rows: &mut rows,
                unlimited: Unlimited::new().unwrap(),
            };
            let mut worker = Replayer::new(replay);
            worker.part(&self.workload.part(*part).unwrap(), &mut collect);
            all.rows.append(&mut rows.rows);
            match &mut sum {
                Some(sum) => sum.merge(worker.finish()),
                None => sum = Some(worker.finish()),
            }
        }
        (all, sum.unwrap())
    }

    /// The sums of what was kept, and of what would have been without limits.
    fn sums(&self, plan: &BatchPlan, rows: &CollectedRows) -> (BatchTotals, BatchTotals) {
        let new = || BatchTotals::new(plan, self.workload.buckets);
        let (mut kept, mut full) = (new(), new());
        for (row, unlimited) in &rows.rows {
            if let Some(batch) = plan.batch(row.querier, TimeKey::of(&row.conversion)) {
                kept.add(batch, row.value, row.bucket, row.blocked);
                full.add(batch, row.value, *unlimited, None);
            }
        }
        (kept, full)
    }

    fn run(&self, policy: &Policy, attack: Option<Attack<'_>>) -> (Vec<Batch>, Spent) {
        let queriers = self.queriers();
        let numbers = QuerierNumbers::new(&queriers, self.workload.conversion_site_names.len());
        let plan = self.plan(&queriers, &numbers);
        let audience = attack.map(|attack| self.audience(&queriers, &attack));
        let replay = Replay {
            queriers: &queriers,
            numbers: &numbers,
            impression_sites: self.workload.impression_site_names.len(),
            buckets: self.workload.buckets,
            policy,
            lookback_epochs: 1,
            attack: None,
        };
        let (rows, mut replayed) = self.replay(replay);
        let (mut kept, full) = self.sums(&plan, &rows);
        if let Some((attack, audience)) = attack.zip(audience.as_ref()) {
            let attack = Some((attack, audience));
            let (rows, attacked) = self.replay(Replay { attack, ..replay });
            (kept, replayed) = (self.sums(&plan, &rows).0, attacked);
        }
        let batches = evaluate(&queriers, &plan, &full, &kept, &self.options);
        (batches, replayed.spent)
    }
}

#[test]
fn machines_that_share_the_parts_compute_what_one_does() {
    let population = Population {
        preset: Preset::Published,
        scale: 0.02,
        seed: 3,
    };
    let workload = population.generate();
    let options = QuerierOptions {
        min_conversions_a_day: 10,
        min_batch: 300,
        ..QuerierOptions::default()
    };
    let parts = workload.parts();
    assert!(parts > 5);
    let laboratory = Laboratory::new(&workload, options, 2).unwrap();
    let policy = Profile::BigBird.policy();
    let random = Random::default();
    let attackers = [None, Some(&random as &dyn Attacker), Some(&Omniscient)];
    for machines in [
        vec![(0..parts).collect::<Vec<_>>()],
        vec![(0..parts).rev().collect()],
        // One machine has every third part, one has the others, and one has none.
        vec![
            (0..parts).filter(|part| part % 3 == 0).collect(),
            Vec::new(),
            (0..parts).filter(|part| part % 3 > 0).rev().collect(),
        ],
    ] {
        let cluster = Cluster {
            workload: &workload,
            machines,
            options,
        };
        for attacker in attackers {
            let attack = attacker.map(|attacker| Attack {
                attacker,
                strength: Strength::of_paper(Some(2)),
                seed: 1,
            });
            let expected = laboratory.run(&policy, attack).unwrap();
            let (batches, spent) = cluster.run(&policy, attack);
            assert!(!batches.is_empty());
            assert_eq!((&batches, spent), (&expected.batches, expected.spent));
        }
    }
    // A cluster that loses a part is noticed.
    let cluster = Cluster {
        workload: &workload,
        machines: vec![(1..parts).collect()],
        options,
    };
    let expected = laboratory.run(&policy, None).unwrap();
    assert_ne!(cluster.run(&policy, None).0, expected.batches);
}
