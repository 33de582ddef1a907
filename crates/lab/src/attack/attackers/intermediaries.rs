//! Sybils as intermediaries.

use crate::attack::{AttackStage, Attacker, Quotas, Strategy, Strength};

/// The paper's other example (figure "Sybils as intermediaries"). Sybils that are embedded in one
/// site of the attacker save impressions there and request reports there, each with its own querier
/// budget. The domain cap counts only that one site, and the two quotas of that site pay for all
/// Sybils.
#[derive(Debug, Clone, Copy, Default)]
pub struct Intermediaries;

impl Attacker for Intermediaries {
    fn name(&self) -> &'static str {
        "intermediaries"
    }

    fn quotas(&self, _: &Strength) -> Quotas {
        Quotas {
            impression_sites: 1,
            conversion_sites: 1,
        }
    }

    fn strategy(&self, _: &Strength) -> Box<dyn Strategy + '_> {
        Box::new(|stage: &mut AttackStage<'_>| {
            let home = stage.home();
            for sybil in 0..stage.strength().sybils {
                stage.save_embedded(sybil, home);
                stage.request_embedded(sybil, home, home);
            }
        })
    }
}
