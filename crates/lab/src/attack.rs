//! Attackers: who owns popular sites, and uses what users do there to drain other people's budgets.
//!
//! An attacker owns a few sites, and a pool of Sybil domains. Each visit of a user to one of its sites
//! is a user action, in which it leads the user through some of its Sybils; each saves an impression
//! and asks for a report, so that the global budget of the device is spent on nothing.
//!
//! To add one, implement [`Attacker`]: what it does in one user action, through a [`Stage`].

use bigbird::{
    AttributionQuery, Device, EpochIndex, Filter, Impression, ImpressionStore, Request, Saved,
    SiteId, Timestamp, UserAction, Window, Workspace,
};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore as _, SeedableRng as _};

/// What an attacker does.
pub trait Attacker: Send + Sync {
    /// Its name.
    fn name(&self) -> &'static str;

    /// Leads the user through its Sybils, in one user action. It knows no more than the stage shows.
    fn act(&self, stage: &mut Stage<'_>);
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
    /// As in the paper: the ten busiest sites of each kind, 25 Sybils, and two more visits than the
    /// domain cap lets pass, or 20 if there is none.
    pub fn of_paper(domain_cap: Option<u32>) -> Self {
        Self {
            sybils: 25,
            first_rank: 1,
            impression_sites: 10,
            conversion_sites: 10,
            visits: domain_cap.map_or(20, |cap| cap + 2),
        }
    }
}

/// A device under attack: what the attacker remembers of it.
#[derive(Debug)]
pub(crate) struct Memory {
    rng: ChaCha8Rng,
    seed: u64,
    /// The Sybils, in an order that choosing from them changes.
    pool: Vec<u32>,
    /// The Sybils that have an impression in `epoch`, in the order in which they got it.
    with_impression: Vec<u32>,
    epoch: EpochIndex,
    sybils: Vec<SiteId>,
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
            pool: (0..sybils).collect(),
            with_impression: Vec::new(),
            epoch: EpochIndex(i64::MIN),
            sybils: (0..sybils).map(|sybil| SiteId(first.0 + sybil)).collect(),
            query: query.epsilon(epsilon).build().ok(),
            chosen: Vec::new(),
            listed: Vec::new(),
            marks: vec![0; sybils as usize],
        }
    }

    /// Begins with another device. What happens on it depends on the seed and the device alone.
    pub(crate) fn begin(&mut self, device: u64) {
        self.rng = ChaCha8Rng::seed_from_u64(self.seed);
        self.rng.set_stream(device);
        for (at, sybil) in (0..).zip(&mut self.pool) {
            *sybil = at;
        }
        self.with_impression.clear();
        self.epoch = EpochIndex(i64::MIN);
    }

    /// Whether the attack comes before the genuine event.
    pub(crate) fn comes_first(&mut self) -> bool {
        self.rng.next_u32() & 1 == 0
    }
}

/// What an attacker can do in one user action on one device, and what it knows.
pub struct Stage<'a> {
    pub(crate) device: &'a mut Device<ImpressionStore>,
    pub(crate) workspace: &'a mut Workspace<AttributionQuery>,
    pub(crate) memory: &'a mut Memory,
    pub(crate) strength: Strength,
    pub(crate) epoch: EpochIndex,
    pub(crate) lookback_epochs: u16,
    pub(crate) now: Timestamp,
    pub(crate) user_action: UserAction,
}

impl std::fmt::Debug for Stage<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stage")
            .field("epoch", &self.epoch)
            .field("strength", &self.strength)
            .finish_non_exhaustive()
    }
}

impl Stage<'_> {
    /// How strong the attacker is.
    pub fn strength(&self) -> Strength {
        self.strength
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
        self.device
            .ledger()
            .balance(self.epoch, filter)
            .covers(asked)
    }

    /// Some Sybils at random, all different, none that has one of some marks; each gets marks.
    fn choose(&mut self, count: usize, without: u8, marks: u8, into: &mut Vec<u32>) {
        let memory = &mut *self.memory;
        let mut left = count;
        let mut end = memory.pool.len();
        while left > 0 && end > 0 {
            // Any of those that were not looked at yet, which goes to the end.
            let at = below(&mut memory.rng, end);
            end -= 1;
            memory.pool.swap(at, end);
            let sybil = memory.pool[end];
            let mark = &mut memory.marks[sybil as usize];
            if *mark & without == 0 {
                *mark |= marks;
                into.push(sybil);
                left -= 1;
            }
        }
    }

    /// The user is led to a Sybil, which saves an impression that every Sybil may measure.
    pub fn save(&mut self, sybil: u32) {
        self.with_impression();
        let memory = &mut *self.memory;
        let impression = Impression {
            conversion_sites: &memory.sybils,
            ..Impression::new(memory.sybils[sybil as usize], self.user_action, self.now, 0)
        };
        let saved = self.device.save_impression(self.epoch, &impression);
        if saved == Saved::Kept && !memory.with_impression.contains(&sybil) {
            memory.with_impression.push(sybil);
        }
    }

    /// A Sybil asks for a report over the impressions of some Sybils, as large as a querier may.
    pub fn request(&mut self, sybil: u32, impressions_of: &[u32]) {
        let Memory { sybils, query, .. } = &mut *self.memory;
        let Some(query) = query else {
            return;
        };
        let asking = sybils[sybil as usize];
        let earliest = EpochIndex(self.epoch.0 - i64::from(self.lookback_epochs));
        let Ok(window) = Window::new(earliest, self.epoch) else {
            return;
        };
        let request = Request {
            querier: asking,
            conversion_site: asking,
            user_action: self.user_action,
            window,
        };
        let sites = impressions_of.iter().map(|sybil| sybils[*sybil as usize]);
        query.set_impression_sites(sites);
        if query
            .retarget(request, self.now, Timestamp(i64::MIN))
            .is_ok()
        {
            self.device.report_in(query, &mut || 0.0, self.workspace);
        }
    }
}

/// A number below a bound, of all with nearly the same chance.
fn below(rng: &mut ChaCha8Rng, bound: usize) -> usize {
    ((u64::from(rng.next_u32()) * bound as u64) >> 32) as usize
}

/// The paper's random attacker: each request lists a random 35% of the pool as impression sites,
/// avoiding Sybils of this user action and, as long as possible, those already listed in it.
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

    fn act(&self, stage: &mut Stage<'_>) {
        let Strength { sybils, visits, .. } = stage.strength();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a small number"
        )]
        let listed = (f64::from(sybils) * self.share).round().max(1.0) as usize;
        let mut visited = std::mem::take(&mut stage.memory.chosen);
        let mut list = std::mem::take(&mut stage.memory.listed);
        visited.clear();
        stage.memory.marks.fill(0);
        stage.choose(visits as usize, 0, VISITED, &mut visited);
        for &sybil in &visited {
            stage.save(sybil);
            list.clear();
            stage.choose(listed, VISITED | LISTED, LISTED_NOW, &mut list);
            // Too few are left: again those of earlier requests.
            let missing = listed - list.len();
            if missing > 0 {
                stage.choose(missing, VISITED | LISTED_NOW, LISTED_NOW, &mut list);
            }
            for &other in &list {
                stage.memory.marks[other as usize] = LISTED;
            }
            stage.request(sybil, &list);
        }
        stage.memory.chosen = visited;
        stage.memory.listed = list;
    }
}

/// The paper's omniscient attacker: it knows every quota, uses Sybils without an impression first,
/// and asks only about Sybils whose quota still covers a report, each at most once in a user action.
#[derive(Debug, Clone, Copy, Default)]
pub struct Omniscient;

impl Attacker for Omniscient {
    fn name(&self) -> &'static str {
        "omniscient"
    }

    fn act(&self, stage: &mut Stage<'_>) {
        let Strength { sybils, visits, .. } = stage.strength();
        let mut targets = std::mem::take(&mut stage.memory.listed);
        let mut visited = std::mem::take(&mut stage.memory.chosen);
        targets.clear();
        visited.clear();
        let seen = stage.with_impression();
        visited.extend((0..sybils).filter(|sybil| !seen.contains(sybil)));
        visited.extend_from_slice(seen);
        visited.truncate(visits as usize);
        targets.extend_from_slice(seen);
        targets.retain(|sybil| stage.quota_covers_a_report(*sybil));
        let mut next = targets.iter();
        for &sybil in &visited {
            stage.save(sybil);
            if let Some(&target) = next.next() {
                stage.request(sybil, &[target]);
            }
        }
        stage.memory.listed = targets;
        stage.memory.chosen = visited;
    }
}
