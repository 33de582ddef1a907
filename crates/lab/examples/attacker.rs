//! An attacker that is not built in: `cargo run --release -p bigbird-lab --example attacker`.
//!
//! This one leads the user to one Sybil at random, and requests a report about every Sybil that it
//! has been to on the device.

use bigbird::{Profile, SiteId};
use bigbird_lab::attack::{Attack, AttackStage, Attacker, Strategy, Strength};
use bigbird_lab::evaluation::resilience::Resilience;
use bigbird_lab::evaluation::{Laboratory, QuerierOptions};
use bigbird_lab::workload::synthetic::{Population, Preset};

struct Wanderer;

impl Attacker for Wanderer {
    fn name(&self) -> &'static str {
        "wanderer"
    }

    fn strategy(&self, _: &Strength) -> Box<dyn Strategy + '_> {
        Box::new(Wandering::default())
    }
}

/// The sites of the Sybils that it has been to on the current device.
#[derive(Default)]
struct Wandering(Vec<SiteId>);

impl Strategy for Wandering {
    fn begin_device(&mut self) {
        self.0.clear();
    }

    fn act(&mut self, stage: &mut AttackStage<'_>) {
        let sybil = stage.random_below(stage.strength().sybils);
        stage.save(sybil);
        stage.request(sybil, &self.0);
        if !self.0.contains(&stage.site_of(sybil)) {
            self.0.push(stage.site_of(sybil));
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let population = Population {
        preset: Preset::Published,
        scale: 0.1,
        seed: 1,
    };
    let workload = population.generate();
    let laboratory = Laboratory::new(&workload, QuerierOptions::default(), 2)?;
    for profile in [Profile::BigBird, Profile::GlobalOnly] {
        let policy = profile.policy();
        let cap = policy.domain_cap().map(std::num::NonZeroU32::get);
        let attack = Attack {
            attacker: &Wanderer,
            strength: Strength::of_paper(cap),
            seed: 1,
        };
        let percent = |error: Option<f64>| 100.0 * error.unwrap_or(f64::NAN);
        let alone = laboratory.run(&policy, None)?;
        let attacked = laboratory.run(&policy, Some(attack))?;
        let held = attacked.resilience.as_ref().is_some_and(Resilience::hold);
        println!(
            "{profile}: median error {:.1}% without attack, {:.1}% with; bounds {}",
            percent(alone.error(50.0)),
            percent(attacked.error(50.0)),
            if held { "hold" } else { "are broken" }
        );
    }
    Ok(())
}
