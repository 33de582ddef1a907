//! The paper's omniscient attacker.

use bigbird::{EpochIndex, Filter, SaveResult};

use crate::attack::{AttackStage, Attacker, Strategy, Strength, SybilImpression};

/// The paper's omniscient attacker. It knows every quota of the current epoch, and first uses
/// Sybils that have no impression yet. It asks only about Sybils whose impression-site quota still
/// covers a report, about each at most once in a user action.
///
/// It is not the worst case. Requests read several epochs, and it looks at the quotas and the
/// impressions of the current one only, asks for a whole querier budget or for nothing, and asks
/// each Sybil once. Where devices live longer than an epoch, others can take more.
/// [`Strongest`](super::Strongest) looks at every epoch.
#[derive(Debug, Clone, Copy, Default)]
pub struct Omniscient;

impl Attacker for Omniscient {
    fn name(&self) -> &'static str {
        "omniscient"
    }

    fn strategy(&self, _: &Strength) -> Box<dyn Strategy + '_> {
        Box::new(Knowledge {
            epoch: EpochIndex(i64::MIN),
            seen: Vec::new(),
            visited: Vec::new(),
            targets: Vec::new(),
        })
    }
}

/// What it knows about the current epoch.
#[derive(Debug)]
struct Knowledge {
    epoch: EpochIndex,
    /// The Sybils that have an impression, in the order of their first one.
    seen: Vec<u32>,
    visited: Vec<u32>,
    targets: Vec<u32>,
}

impl Strategy for Knowledge {
    fn begin_device(&mut self) {
        self.seen.clear();
    }

    fn act(&mut self, stage: &mut AttackStage<'_>) {
        if self.epoch != stage.epoch() {
            self.epoch = stage.epoch();
            self.seen.clear();
        }
        let Strength { sybils, visits, .. } = stage.strength();
        let seen = &self.seen;
        self.visited.clear();
        self.visited
            .extend((0..sybils).filter(|sybil| !seen.contains(sybil)));
        self.visited.extend_from_slice(seen);
        self.visited.truncate(visits as usize);
        let covered = |sybil: &&u32| {
            let quota = Filter::ImpressionSiteQuota(stage.site_of(**sybil));
            let asked = stage.asking(**sybil).epsilon.micro();
            stage.balance(self.epoch, quota).covers(asked)
        };
        self.targets.clear();
        self.targets.extend(seen.iter().filter(covered));
        let mut targets = self.targets.iter();
        for &sybil in &self.visited {
            let page = stage.site_of(sybil);
            let saved = stage.save_impression(&SybilImpression::on(page));
            if saved == SaveResult::Kept && !self.seen.contains(&sybil) {
                self.seen.push(sybil);
            }
            if let Some(&target) = targets.next() {
                stage.request(sybil, &[stage.site_of(target)]);
            }
        }
    }
}
