//! The attackers of the paper's evaluation, of its examples and of its limitations, a slow one, one
//! that takes the most, and one that shows what the paper's literal site charging allows.
//!
//! All of them use the public interface of [`attack`](super) and nothing else.

mod denial;
mod drain;
mod intermediaries;
mod naive;
mod omniscient;
mod random;
mod slow;
mod strongest;

pub use denial::FreeDenial;
pub use drain::{DrainConversionSite, DrainImpressionSite};
pub use intermediaries::Intermediaries;
pub use naive::Naive;
pub use omniscient::Omniscient;
pub use random::Random;
pub use slow::Slow;
pub use strongest::Strongest;

use super::Attacker;

/// All attackers.
pub const ALL: [&'static dyn Attacker; 9] = [
    &Random { share: 0.35 },
    &Omniscient,
    &Strongest,
    &Naive,
    &Intermediaries,
    &Slow,
    &DrainConversionSite,
    &DrainImpressionSite,
    &FreeDenial,
];

/// The attacker with this name.
pub fn by_name(name: &str) -> Option<&'static dyn Attacker> {
    ALL.into_iter().find(|attacker| attacker.name() == name)
}
