//! Attackers: who uses what users do on popular sites to drain other people's budgets.
//!
//! An attacker has a pool of Sybil domains, and hears of some visits: to sites it owns, or to pages
//! it is embedded in. Each such visit is a user action, in which it may lead the user through its
//! Sybils; each saves impressions and asks for reports, so that budget of the device is spent on
//! nothing. What it can do and what it knows is a [`Stage`]; the attackers of the paper, and some
//! more, are in [`attackers`].
//!
//! To add one, implement [`Attacker`]. This one leads the user to one Sybil at random, and asks for
//! whatever is on the device:
//!
//! ```
//! use bigbird::Profile;
//! use bigbird_lab::attack::{Attack, Attacker, Stage, Strength};
//! use bigbird_lab::simulate::Laboratory;
//! use bigbird_lab::workload::synthetic::{Population, Preset};
//! use bigbird_lab::workload::QuerierOptions;
//!
//! struct Wanderer;
//!
//! impl Attacker for Wanderer {
//!     fn name(&self) -> &'static str {
//!         "wanderer"
//!     }
//!
//!     fn act(&self, stage: &mut Stage<'_>) {
//!         let sybil = stage.random_below(stage.strength().sybils);
//!         let known = stage.with_impression().to_vec();
//!         stage.save(sybil);
//!         stage.request(sybil, &known);
//!     }
//! }
//!
//! let population = Population { preset: Preset::Published, scale: 0.002, seed: 1 };
//! let workload = population.generate();
//! let options = QuerierOptions { min_conversions_a_day: 10, min_batch: 200, ..Default::default() };
//! let laboratory = Laboratory::new(&workload, options, 2)?;
//! let attack = Attack { attacker: &Wanderer, strength: Strength::of_paper(Some(2)), seed: 1 };
//! let outcome = laboratory.run(&Profile::BigBird.policy(), Some(attack))?;
//! assert!(outcome.resilience.as_ref().is_some_and(|bounds| bounds.hold()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod attackers;

use bigbird::{
    AttributionQuery, Device, EpochIndex, Filter, Impression, ImpressionStore, Request, Saved,
    SiteId, Timestamp, UserAction, Window, Workspace,
};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore as _, SeedableRng as _};

use crate::resilience::Tally;

/// What an attacker does.
pub trait Attacker: Send + Sync {
    /// Its name.
    fn name(&self) -> &'static str;

    /// The visits that it hears of: unless it says otherwise, those to the sites it owns.
    fn audience(&self) -> Audience {
        Audience::OwnedSites
    }

    /// The most quotas of each kind that it can use on a device in an epoch (M and N of the
    /// resilience theorem): unless it says otherwise, one of each kind for every Sybil. A run in which
    /// it uses more breaks its bounds.
    fn quotas(&self, strength: &Strength) -> Quotas {
        Quotas {
            impression_sites: strength.sybils,
            conversion_sites: strength.sybils,
        }
    }

    /// Does what it does in one user action. It knows no more than the stage shows.
    fn act(&self, stage: &mut Stage<'_>);
}

/// The visits that an attacker hears of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    /// Impressions and conversions on the sites it owns.
    OwnedSites,
    /// Impressions for, and conversions on, the one conversion site of its first rank, which embeds
    /// it.
    OneConversionSite,
    /// Impressions on the one impression site of its first rank, which embeds it, and conversions on
    /// the sites it owns.
    OneImpressionSite,
}

/// How many quotas of each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quotas {
    /// Of impression sites (M).
    pub impression_sites: u32,
    /// Of conversion sites (N).
    pub conversion_sites: u32,
}

/// How strong an attacker is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strength {
    /// How many Sybil domains it has.
    pub sybils: u32,
    /// The rank of the first site it owns, among impression sites and among queriers; 1 is the
    /// busiest.
    pub first_rank: u32,
    /// How many impression sites it owns from there on.
    pub impression_sites: u32,
    /// How many queriers' sites it owns from there on.
    pub conversion_sites: u32,
    /// How many Sybils it visits in one user action.
    pub visits: u32,
}

impl Strength {
    /// How many Sybils there can be: more are as many.
    pub const MAX_SYBILS: u32 = 10_000;

    /// As in the paper: the ten busiest sites of each kind, 25 Sybils, and two more visits than the
    /// domain cap lets pass, or 20 if there is none.
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
    /// What the attacker does.
    pub attacker: &'a dyn Attacker,
    /// How strong it is.
    pub strength: Strength,
    /// What its random choices follow from.
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

/// What an attacker remembers of a device.
#[derive(Debug)]
pub(crate) struct Memory {
    rng: ChaCha8Rng,
    seed: u64,
    /// The Sybils to choose from.
    pool: Vec<u32>,
    /// The Sybils that have an impression in `epoch`, in the order in which they got it.
    with_impression: Vec<u32>,
    epoch: EpochIndex,
    sybils: Vec<SiteId>,
    /// A site of its own that embeds Sybils.
    home: SiteId,
    /// A site of others that it is after, once it was there.
    target: Option<SiteId>,
    query: Option<AttributionQuery>,
    chosen: Vec<u32>,
    listed: Vec<u32>,
    /// What is remembered of each Sybil during one user action.
    marks: Vec<u8>,
}

/// Marks of a Sybil in one user action.
const VISITED: u8 = 1;
const LISTED: u8 = 2;
const LISTED_NOW: u8 = 4;

impl Memory {
    /// The Sybils are numbered behind all other sites.
    pub(crate) fn new(sybils: u32, first: SiteId, epsilon: f64, seed: u64) -> Self {
        let sybils = sybils.clamp(1, Strength::MAX_SYBILS);
        let request = Request {
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

    /// Begins with another device. What happens on it depends on the seed and what happens on it.
    pub(crate) fn begin(&mut self, device: u64) {
        self.rng = ChaCha8Rng::seed_from_u64(self.seed);
        self.rng.set_stream(device);
        self.with_impression.clear();
        self.epoch = EpochIndex(i64::MIN);
        self.target = None;
    }

    /// Whether the attack comes before the genuine event.
    pub(crate) fn comes_first(&mut self) -> bool {
        self.rng.next_u32() & 1 == 0
    }

    /// The number of the first Sybil: every site from there on is the attacker's.
    pub(crate) fn first_own_site(&self) -> SiteId {
        self.sybils.first().copied().unwrap_or(self.home)
    }
}

/// A visit that an attacker hears of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visit {
    /// An impression on a site, for a conversion site.
    Impression {
        /// Where it is shown.
        site: SiteId,
        /// What it advertises.
        conversion_site: SiteId,
    },
    /// A conversion on a site.
    Conversion {
        /// Where.
        conversion_site: SiteId,
    },
}

/// What an attacker can do in one user action on one device, and what it knows.
pub struct Stage<'a> {
    pub(crate) device: &'a mut Device<ImpressionStore>,
    pub(crate) workspace: &'a mut Workspace<AttributionQuery>,
    pub(crate) memory: &'a mut Memory,
    pub(crate) tally: &'a mut Tally,
    pub(crate) strength: Strength,
    pub(crate) epoch: EpochIndex,
    pub(crate) lookback_epochs: u16,
    pub(crate) now: Timestamp,
    pub(crate) user_action: UserAction,
    pub(crate) visit: Visit,
}

impl std::fmt::Debug for Stage<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stage")
            .field("visit", &self.visit)
            .field("epoch", &self.epoch)
            .field("strength", &self.strength)
            .finish_non_exhaustive()
    }
}

impl Stage<'_> {
    /// How strong the attacker is. It has at least one Sybil.
    pub fn strength(&self) -> Strength {
        Strength {
            sybils: u32::try_from(self.memory.sybils.len()).unwrap_or(1),
            ..self.strength
        }
    }

    /// The visit that it acts on.
    pub fn visit(&self) -> Visit {
        self.visit
    }

    /// How many user actions the attacker had on this device before this one.
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

    /// Whether the quota of a Sybil still covers a report. Nobody outside the device knows this: it
    /// is for attackers that are stronger than any real one.
    pub fn quota_covers_a_report(&self, sybil: u32) -> bool {
        let filter = Filter::ImpressionSite(self.memory.sybils[sybil as usize]);
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

    /// Some Sybils at random, all different, none that has one of some marks; each gets marks.
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

    /// The user is led to a Sybil, which saves an impression that every Sybil may measure.
    pub fn save(&mut self, sybil: u32) {
        let saved = self.save_on(self.memory.sybils[sybil as usize], None);
        let with_impression = &mut self.memory.with_impression;
        if saved == Saved::Kept && !with_impression.contains(&sybil) {
            with_impression.push(sybil);
        }
    }

    /// A Sybil that is embedded in a site saves an impression there, which every Sybil may measure
    /// on any site.
    pub fn save_embedded(&mut self, sybil: u32, site: SiteId) {
        let intermediary = self.memory.sybils[sybil as usize];
        self.save_on(site, Some(intermediary));
    }

    /// A Sybil asks for a report over the impressions of some Sybils, as large as a querier may; of
    /// none, for nothing.
    pub fn request(&mut self, sybil: u32, impressions_of: &[u32]) {
        if impressions_of.is_empty() {
            return;
        }
        let asking = self.memory.sybils[sybil as usize];
        let Memory { sybils, query, .. } = &mut *self.memory;
        if let Some(query) = query {
            query.set_impression_sites(impressions_of.iter().map(|it| sybils[*it as usize]));
        }
        self.ask(asking, asking);
    }

    /// A Sybil that is embedded in a conversion site asks for a report over the impressions of a
    /// site.
    pub fn request_embedded(&mut self, sybil: u32, conversion_site: SiteId, site: SiteId) {
        let asking = self.memory.sybils[sybil as usize];
        if let Some(query) = &mut self.memory.query {
            query.set_impression_sites([site]);
        }
        self.ask(asking, conversion_site);
    }

    /// A Sybil's own page asks for a report over the impressions of a site.
    pub fn request_of(&mut self, sybil: u32, site: SiteId) {
        let asking = self.memory.sybils[sybil as usize];
        self.request_embedded(sybil, asking, site);
    }

    /// The site of the attacker's own that embeds Sybils.
    pub fn home(&self) -> SiteId {
        self.memory.home
    }

    /// The site of a Sybil.
    pub fn site_of(&self, sybil: u32) -> SiteId {
        self.memory.sybils[sybil as usize]
    }

    /// Honest sites never measure what an attacker saves: a Sybil's page measures on its own site,
    /// an embedded Sybil calls, whatever the site.
    fn save_on(&mut self, site: SiteId, intermediary: Option<SiteId>) -> Saved {
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
        let request = Request {
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

/// A number below a bound, of all with nearly the same chance.
fn below(rng: &mut ChaCha8Rng, bound: usize) -> usize {
    ((u64::from(rng.next_u32()) * bound as u64) >> 32) as usize
}
