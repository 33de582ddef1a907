//! The paper's random attacker.

use bigbird::SiteId;

use crate::attack::{AttackStage, Attacker, Strategy, Strength};

/// The paper's random attacker. Each request lists a random share of the pool as impression sites:
/// 35% by default. It avoids the Sybils that the user visits in this user action and, as long as
/// possible, those that an earlier request of this user action listed.
#[derive(Debug, Clone, Copy)]
pub struct Random {
    /// The share of the pool that each request lists.
    pub share: f64,
}

impl Default for Random {
    fn default() -> Self {
        Self { share: 0.35 }
    }
}

impl Attacker for Random {
    fn name(&self) -> &'static str {
        "random"
    }

    fn strategy(&self, strength: &Strength) -> Box<dyn Strategy + '_> {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a small number"
        )]
        let listed = (f64::from(strength.sybils) * self.share).round().max(1.0) as usize;
        Box::new(Choices {
            listed,
            ..Choices::default()
        })
    }
}

/// The choices of one user action.
#[derive(Debug, Default)]
struct Choices {
    /// The number of Sybils that each request lists.
    listed: usize,
    /// The Sybils that the user does not visit.
    others: Vec<u32>,
    visited: Vec<u32>,
    /// The sites of those others that no request has listed yet.
    unlisted: Vec<SiteId>,
    /// The sites that an earlier request listed.
    listed_before: Vec<SiteId>,
    list: Vec<SiteId>,
}

impl Strategy for Choices {
    fn act(&mut self, stage: &mut AttackStage<'_>) {
        let Strength { sybils, visits, .. } = stage.strength();
        self.others.clear();
        self.others.extend(0..sybils);
        self.visited.clear();
        stage.choose(visits as usize, &mut self.others, &mut self.visited);
        self.unlisted.clear();
        let others = self.others.iter().map(|&sybil| stage.site_of(sybil));
        self.unlisted.extend(others);
        self.listed_before.clear();
        for &sybil in &self.visited {
            stage.save(sybil);
            stage.choose(self.listed, &mut self.unlisted, &mut self.list);
            // If too few are left, Sybils of earlier requests are listed again.
            let missing = self.listed - self.list.len();
            stage.choose(missing, &mut self.listed_before, &mut self.list);
            stage.request(sybil, &self.list);
            self.listed_before.append(&mut self.list);
        }
    }
}
