//! The paper's naive attacker.

use bigbird::SiteId;

use crate::attack::{AttackStage, Attacker, Strategy, Strength};

/// The paper's naive attacker. It leads the user through [`Strength::visits`] Sybils, and each asks
/// about all Sybils at once. Where charges are atomic, one Sybil whose quota is depleted makes the
/// whole request fail.
#[derive(Debug, Clone, Copy, Default)]
pub struct Naive;

impl Attacker for Naive {
    fn name(&self) -> &'static str {
        "naive"
    }

    fn strategy(&self, _: &Strength) -> Box<dyn Strategy + '_> {
        Box::new(Everyone::default())
    }
}

#[derive(Debug, Default)]
struct Everyone {
    others: Vec<u32>,
    visited: Vec<u32>,
    all: Vec<SiteId>,
}

impl Strategy for Everyone {
    fn act(&mut self, stage: &mut AttackStage<'_>) {
        let Strength { sybils, visits, .. } = stage.strength();
        self.others.clear();
        self.others.extend(0..sybils);
        self.all.clear();
        let all = (0..sybils).map(|sybil| stage.site_of(sybil));
        self.all.extend(all);
        self.visited.clear();
        stage.choose(visits as usize, &mut self.others, &mut self.visited);
        for &sybil in &self.visited {
            stage.save(sybil);
            stage.request(sybil, &self.all);
        }
    }
}
