//! A slow attacker.

use crate::attack::{AttackStage, Attacker, Strategy, Strength};

/// An attacker that paces itself. In each user action it uses one Sybil, the next of the pool, and
/// asks about the Sybil of the action before. Neither a domain cap nor a limit on bursts notices
/// anything. Only quotas that last for the whole epoch bound it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Slow;

impl Attacker for Slow {
    fn name(&self) -> &'static str {
        "slow"
    }

    fn strategy(&self, _: &Strength) -> Box<dyn Strategy + '_> {
        Box::new(|stage: &mut AttackStage<'_>| {
            let sybils = stage.strength().sybils;
            let sybil = stage.earlier_actions() % sybils;
            stage.save(sybil);
            if let Some(earlier) = stage.earlier_actions().checked_sub(1) {
                stage.request(sybil, &[stage.site_of(earlier % sybils)]);
            }
        })
    }
}
