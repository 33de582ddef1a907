//! Attackers use visits to popular sites to drain the global budgets that honest queriers need.
//!
//! An attacker has a pool of Sybil domains. It hears of some visits: those to sites it owns, or to
//! pages that embed it. Each such visit is a user action, in which the attacker may lead the user
//! through its Sybils. Each Sybil saves impressions and requests reports, which spends the budget
//! of the device on nothing. An [`AttackStage`] defines what an attacker can do and what it knows.
//! The attackers of the paper, and some more, are in [`attackers`].
//!
//! To add an attacker, implement [`Attacker`]. This one leads the user to one Sybil at random, and
//! requests a report about every Sybil that has an impression on the device:
//!
//! ```
//! use bigbird::Profile;
//! use bigbird_lab::attack::{Attack, Attacker, AttackStage, Strength};
//! use bigbird_lab::evaluation::Laboratory;
//! use bigbird_lab::workload::synthetic::{Population, Preset};
//! use bigbird_lab::evaluation::QuerierOptions;
//!
//! struct Wanderer;
//!
//! impl Attacker for Wanderer {
//!     fn name(&self) -> &'static str {
//!         "wanderer"
//!     }
//!
//!     fn act(&self, stage: &mut AttackStage<'_>) {
//!         let sybil = stage.random_below(stage.strength().sybils);
//!         let known = stage.with_impression().to_vec();
//!         stage.save(sybil);
//!         stage.request(sybil, &known);
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

pub mod attackers;
pub mod bounds;
pub(crate) mod tally;

use bigbird::{
    AttributionQuery, Device, EpochIndex, Filter, Impression, ImpressionStore, ReportRequest,
    SaveResult, SiteId, Timestamp, UserAction, Window, Workspace,
};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore as _, SeedableRng as _};

use tally::AttackTally;

/// The strategy of an attacker.
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

    /// Acts in one user action. It knows only what the stage shows.
    fn act(&self, stage: &mut AttackStage<'_>);
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

/// The memory of an attacker about a device.
#[derive(Debug)]
pub(crate) struct AttackerMemory {
    rng: ChaCha8Rng,
    seed: u64,
    /// The Sybils to choose from.
    pool: Vec<u32>,
    /// The Sybils that have an impression in `epoch`, in the order of their first impression.
    with_impression: Vec<u32>,
    epoch: EpochIndex,
    sybils: Vec<SiteId>,
    /// The attacker's site that embeds Sybils.
    home: SiteId,
    /// The honest site that it attacks, once the user has visited it.
    target: Option<SiteId>,
    query: Option<AttributionQuery>,
    chosen: Vec<u32>,
    listed: Vec<u32>,
    /// The marks of each Sybil in the current user action.
    marks: Vec<u8>,
}

/// Marks of a Sybil in one user action.
const VISITED: u8 = 1;
const LISTED: u8 = 2;
const LISTED_NOW: u8 = 4;

impl AttackerMemory {
    /// Sybils are numbered after all other sites, starting at `first`.
    pub(crate) fn new(sybils: u32, first: SiteId, epsilon: f64, seed: u64) -> Self {
        let sybils = sybils.clamp(1, Strength::MAX_SYBILS);
        let request = ReportRequest {
            querier: first,
            conversion_site: first,
            user_action: UserAction(0),
            window: Window::single(EpochIndex(0)),
        };
        let query = AttributionQuery::builder(request, Timestamp(0), 1);
        Self {
            rng: ChaCha8Rng::seed_from_u64(seed),
            seed,
            pool: Vec::new(),
            with_impression: Vec::new(),
            epoch: EpochIndex(i64::MIN),
            sybils: (0..sybils)
                .map(|sybil| SiteId(first.0.saturating_add(sybil)))
                .collect(),
            home: SiteId(first.0.saturating_add(sybils)),
            target: None,
            query: query.epsilon(epsilon).build().ok(),
            chosen: Vec::new(),
            listed: Vec::new(),
            marks: vec![0; sybils as usize],
        }
    }

    /// Starts with another device. What the attacker does there depends only on the seed and on the
    /// events of the device.
    pub(crate) fn begin(&mut self, device: u64) {
        self.rng = ChaCha8Rng::seed_from_u64(self.seed);
        self.rng.set_stream(device);
        self.with_impression.clear();
        self.epoch = EpochIndex(i64::MIN);
        self.target = None;
    }

    /// True if the attack comes before the genuine event. Decided at random.
    pub(crate) fn comes_first(&mut self) -> bool {
        self.rng.next_u32() & 1 == 0
    }

    /// The first Sybil. Every site from this number on belongs to the attacker.
    pub(crate) fn first_own_site(&self) -> SiteId {
        self.sybils.first().copied().unwrap_or(self.home)
    }
}

/// A visit that an attacker hears of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SiteVisit {
    /// An impression on a site, for a conversion site.
    Impression {
        /// The impression site.
        site: SiteId,
        /// The site that the ad is for.
        conversion_site: SiteId,
    },
    /// A conversion on a site.
    Conversion {
        /// The site that converts.
        conversion_site: SiteId,
    },
}

/// The interface of an attacker to one device in one user action: what it can do, and what it
/// knows.
pub struct AttackStage<'a> {
    pub(crate) device: &'a mut Device<ImpressionStore>,
    pub(crate) workspace: &'a mut Workspace<AttributionQuery>,
    pub(crate) memory: &'a mut AttackerMemory,
    pub(crate) tally: &'a mut AttackTally,
    pub(crate) strength: Strength,
    pub(crate) epoch: EpochIndex,
    pub(crate) lookback_epochs: u16,
    pub(crate) now: Timestamp,
    pub(crate) user_action: UserAction,
    pub(crate) visit: SiteVisit,
}

impl std::fmt::Debug for AttackStage<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stage")
            .field("visit", &self.visit)
            .field("epoch", &self.epoch)
            .field("strength", &self.strength)
            .finish_non_exhaustive()
    }
}

impl AttackStage<'_> {
    /// The strength of the attacker. It has at least one Sybil.
    pub fn strength(&self) -> Strength {
        Strength {
            sybils: u32::try_from(self.memory.sybils.len()).unwrap_or(1),
            ..self.strength
        }
    }

    /// The visit that the attacker acts on.
    pub fn visit(&self) -> SiteVisit {
        self.visit
    }

    /// The number of user actions that the attacker had on this device before this one.
    pub fn earlier_actions(&self) -> u32 {
        self.tally.actions()
    }

    /// The Sybils that have an impression on this device in this epoch.
    pub fn with_impression(&mut self) -> &[u32] {
        if self.memory.epoch != self.epoch {
            self.memory.epoch = self.epoch;
            self.memory.with_impression.clear();
        }
        &self.memory.with_impression
    }

    /// True if the impression-site quota of a Sybil still covers a report. Nobody outside the
    /// device knows this. It is for attackers that are stronger than any real one.
    pub fn quota_covers_a_report(&self, sybil: u32) -> bool {
        let filter = Filter::ImpressionSiteQuota(self.memory.sybils[sybil as usize]);
        let asked = match &self.memory.query {
            Some(query) => query.epsilon().micro(),
            None => return false,
        };
        self.device.balance(self.epoch, filter).covers(asked)
    }

    /// A random number below a bound.
    #[expect(clippy::cast_possible_truncation, reason = "it is below the bound")]
    pub fn random_below(&mut self, bound: u32) -> u32 {
        below(&mut self.memory.rng, bound as usize) as u32
    }

    /// Chooses up to `count` different Sybils at random among those that have none of the marks
    /// `without`, and gives them `marks`.
    fn choose(&mut self, count: usize, without: u8, marks: u8, into: &mut Vec<u32>) {
        let memory = &mut *self.memory;
        memory.pool.clear();
        let of = (0..).zip(&memory.marks);
        memory.pool.extend(
            of.filter(|(_, mark)| **mark & without == 0)
                .map(|(sybil, _)| sybil),
        );
        for _ in 0..count.min(memory.pool.len()) {
            let sybil = memory
                .pool
                .swap_remove(below(&mut memory.rng, memory.pool.len()));
            memory.marks[sybil as usize] |= marks;
            into.push(sybil);
        }
    }

    /// Leads the user to a Sybil, which saves an impression that every Sybil may measure.
    pub fn save(&mut self, sybil: u32) {
        let saved = self.save_on(self.memory.sybils[sybil as usize], None);
        let with_impression = &mut self.memory.with_impression;
        if saved == SaveResult::Kept && !with_impression.contains(&sybil) {
            with_impression.push(sybil);
        }
    }

    /// A Sybil that is embedded in a site saves an impression there. Every Sybil may measure it, on
    /// any site.
    pub fn save_embedded(&mut self, sybil: u32, site: SiteId) {
        let intermediary = self.memory.sybils[sybil as usize];
        self.save_on(site, Some(intermediary));
    }

    /// A Sybil requests a report over the impressions of some Sybils, with as much ε as a querier
    /// budget has. Without Sybils to ask about, it requests nothing.
    pub fn request(&mut self, sybil: u32, impressions_of: &[u32]) {
        if impressions_of.is_empty() {
            return;
        }
        let asking = self.memory.sybils[sybil as usize];
        let AttackerMemory { sybils, query, .. } = &mut *self.memory;
        if let Some(query) = query {
            query.set_impression_sites(impressions_of.iter().map(|it| sybils[*it as usize]));
        }
        self.ask(asking, asking);
    }

    /// A Sybil that is embedded in a conversion site requests a report over the impressions of a
    /// site.
    pub fn request_embedded(&mut self, sybil: u32, conversion_site: SiteId, site: SiteId) {
        let asking = self.memory.sybils[sybil as usize];
        if let Some(query) = &mut self.memory.query {
            query.set_impression_sites([site]);
        }
        self.ask(asking, conversion_site);
    }

    /// A Sybil's own page requests a report over the impressions of a site.
    pub fn request_of(&mut self, sybil: u32, site: SiteId) {
        let asking = self.memory.sybils[sybil as usize];
        self.request_embedded(sybil, asking, site);
    }

    /// The attacker's site that embeds Sybils.
    pub fn home(&self) -> SiteId {
        self.memory.home
    }

    /// The site of a Sybil.
    pub fn site_of(&self, sybil: u32) -> SiteId {
        self.memory.sybils[sybil as usize]
    }

    /// Saves an impression that only Sybils may measure. An impression on a Sybil's page lists the
    /// Sybils as conversion sites. An impression by an embedded Sybil lists them as callers, so
    /// that they may measure it on any site.
    fn save_on(&mut self, site: SiteId, intermediary: Option<SiteId>) -> SaveResult {
        self.with_impression();
        let sybils: &[SiteId] = &self.memory.sybils;
        let (conversion_sites, conversion_callers) = match intermediary {
            None => (sybils, [].as_slice()),
            Some(_) => ([].as_slice(), sybils),
        };
        let impression = Impression {
            intermediary,
            conversion_sites,
            conversion_callers,
            ..Impression::new(site, self.user_action, self.now, 0)
        };
        self.device.save_impression(self.epoch, &impression)
    }

    fn ask(&mut self, querier: SiteId, conversion_site: SiteId) {
        let Some(query) = &mut self.memory.query else {
            return;
        };
        let earliest = EpochIndex(self.epoch.0 - i64::from(self.lookback_epochs));
        let Ok(window) = Window::new(earliest, self.epoch) else {
            return;
        };
        let request = ReportRequest {
            querier,
            conversion_site,
            user_action: self.user_action,
            window,
        };
        if query
            .retarget(request, self.now, Timestamp(i64::MIN))
            .is_ok()
        {
            query.set_caller(querier);
            self.device.report_in(query, &mut || 0.0, self.workspace);
            self.tally
                .attacked(self.user_action, &self.workspace.changes().charges);
        }
    }
}

/// A random number below a bound. All numbers are almost equally likely.
fn below(rng: &mut ChaCha8Rng, bound: usize) -> usize {
    ((u64::from(rng.next_u32()) * bound as u64) >> 32) as usize
}
