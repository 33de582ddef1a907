//! Attackers use visits to popular sites to drain the global budgets that honest queriers need.
//!
//! An attacker has a pool of Sybil domains. It hears of some visits: those to sites it owns, or to
//! pages that embed it. Each such visit is a user action, in which the attacker may lead the user
//! through its Sybils. Each Sybil saves impressions and requests reports, which spends the budget
//! of the device on nothing. An [`AttackStage`] is everything that an attacker can do and know.
//! The attackers of the paper, and some more, are in [`attackers`]. They use nothing that is not
//! public.
//!
//! To add an attacker, implement [`Attacker`]. Its [`Strategy`] acts in each user action, and can
//! remember what it did on a device. This one leads the user to one Sybil at random, and requests a
//! report about every Sybil that it has been to on the device:
//!
//! ```
//! use bigbird::{Profile, SiteId};
//! use bigbird_lab::attack::{Attack, AttackStage, Attacker, Strategy, Strength};
//! use bigbird_lab::evaluation::{Laboratory, QuerierOptions};
//! use bigbird_lab::workload::synthetic::{Population, Preset};
//!
//! struct Wanderer;
//!
//! impl Attacker for Wanderer {
//!     fn name(&self) -> &'static str {
//!         "wanderer"
//!     }
//!
//!     fn strategy(&self, _: &Strength) -> Box<dyn Strategy + '_> {
//!         Box::new(Wandering::default())
//!     }
//! }
//!
//! /// The Sybils that it has been to on the device.
//! #[derive(Default)]
//! struct Wandering(Vec<SiteId>);
//!
//! impl Strategy for Wandering {
//!     fn begin_device(&mut self) {
//!         self.0.clear();
//!     }
//!
//!     fn act(&mut self, stage: &mut AttackStage<'_>) {
//!         let sybil = stage.random_below(stage.strength().sybils);
//!         stage.save(sybil);
//!         stage.request(sybil, &self.0);
//!         if !self.0.contains(&stage.site_of(sybil)) {
//!             self.0.push(stage.site_of(sybil));
//!         }
//!     }
//! }
//!
//! let population = Population { preset: Preset::Published, scale: 0.002, seed: 1 };
//! let workload = population.generate();
//! let options =
//!     QuerierOptions { min_conversions_a_day: 10, min_batch: 200, ..Default::default() };
//! let laboratory = Laboratory::new(&workload, options, 2)?;
//! let attack = Attack { attacker: &Wanderer, strength: Strength::of_paper(Some(2)), seed: 1 };
//! let outcome = laboratory.run(&Profile::BigBird.policy(), Some(attack))?;
//! assert!(outcome.resilience.as_ref().is_some_and(|bounds| bounds.hold()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! An attacker that remembers nothing can be a closure: `Box::new(|stage: &mut AttackStage<'_>|
//! stage.save(0))`.

pub mod attackers;
pub mod bounds;
mod stage;
pub(crate) mod tally;

pub use stage::{AttackStage, SiteVisit, SybilImpression, SybilRequest};
pub(crate) use stage::{StageParts, StageState};

/// An attacker: what it hears of, the quotas that it can use, and its strategy.
pub trait Attacker: Send + Sync {
    /// Its name.
    fn name(&self) -> &'static str;

    /// The visits that it hears of. The default is the visits to the sites it owns.
    fn audience(&self) -> HeardVisits {
        HeardVisits::OwnedSites
    }

    /// The most quotas of each kind that it can use on a device in an epoch (M and N of the
    /// resilience theorem). The default is one quota of each kind for every Sybil. A run in which
    /// it uses more breaks its bounds.
    fn quotas(&self, strength: &Strength) -> Quotas {
        Quotas {
            impression_sites: strength.sybils,
            conversion_sites: strength.sybils,
        }
    }

    /// A strategy that has not seen a device yet. Each thread of a run has its own.
    fn strategy(&self, strength: &Strength) -> Box<dyn Strategy + '_>;
}

/// The strategy of an attacker, with what it remembers about the current device.
///
/// One strategy attacks many devices, one after the other. Results do not depend on how devices are
/// divided among threads, as long as [`begin_device`](Self::begin_device) forgets everything.
/// Buffers may stay, so that an attack on a further device allocates no memory.
pub trait Strategy: Send {
    /// Starts with another device, about which it knows nothing.
    fn begin_device(&mut self) {}

    /// Acts in one user action. It knows only what the stage shows.
    fn act(&mut self, stage: &mut AttackStage<'_>);
}

/// A strategy that remembers nothing.
impl<F: FnMut(&mut AttackStage<'_>) + Send> Strategy for F {
    fn act(&mut self, stage: &mut AttackStage<'_>) {
        self(stage);
    }
}

/// The visits that an attacker hears of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeardVisits {
    /// Impressions and conversions on the sites it owns.
    OwnedSites,
    /// Impressions for, and conversions on, one conversion site: the one at its first rank, which
    /// embeds it.
    OneConversionSite,
    /// Impressions on one impression site, the one at its first rank, which embeds it; and
    /// conversions on the sites it owns.
    OneImpressionSite,
}

/// A number of quotas of each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quotas {
    /// Impression-site quotas (M).
    pub impression_sites: u32,
    /// Conversion-site quotas (N).
    pub conversion_sites: u32,
}

/// The strength of an attacker: the sites and Sybils it owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strength {
    /// The number of its Sybils.
    pub sybils: u32,
    /// The rank of the first site it owns, among impression sites and among queriers. The busiest
    /// site has rank 1.
    pub first_rank: u32,
    /// The number of impression sites it owns, from that rank on.
    pub impression_sites: u32,
    /// The number of queriers' sites it owns, from that rank on.
    pub conversion_sites: u32,
    /// The number of Sybils that it leads the user to in one user action.
    pub visits: u32,
}

impl Strength {
    /// The most Sybils. Larger numbers are clamped.
    pub const MAX_SYBILS: u32 = 10_000;

    /// The strength in the paper: the ten busiest sites of each kind, 25 Sybils, and two more
    /// visits than the domain cap allows, or 20 visits without a cap.
    pub fn of_paper(domain_cap: Option<u32>) -> Self {
        Self {
            sybils: 25,
            first_rank: 1,
            impression_sites: 10,
            conversion_sites: 10,
            visits: domain_cap.map_or(20, |cap| cap.saturating_add(2)),
        }
    }
}

/// An attack on every device.
#[derive(Clone, Copy)]
pub struct Attack<'a> {
    /// The attacker.
    pub attacker: &'a dyn Attacker,
    /// The strength of the attacker.
    pub strength: Strength,
    /// The seed of its random choices.
    pub seed: u64,
}

impl std::fmt::Debug for Attack<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attack")
            .field("attacker", &self.attacker.name())
            .field("strength", &self.strength)
            .field("seed", &self.seed)
            .finish()
    }
}
