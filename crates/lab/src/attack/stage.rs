//! The stage: what an attacker can do to one device in one user action, and what it can know.

use bigbird::{
    AttributionQuery, Balance, Device, EpochIndex, Epsilon, Filter, Impression, ImpressionStore,
    Policy, ReportRequest, SaveResult, SiteId, Timestamp, UserAction, Window, Workspace,
};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore as _, SeedableRng as _};

use super::Strength;
use super::tally::AttackTally;

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

/// An impression that an attacker saves. Only its Sybils may measure it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SybilImpression {
    /// The site on which it is saved, and whose quota pays.
    pub site: SiteId,
    /// The Sybil that is embedded in the site and saves it. `None` if the site itself does.
    pub sybil: Option<u32>,
    /// The bucket that its credit goes to. Reports of attackers have one bucket, which is number 0.
    /// Credit for other buckets is lost.
    pub bucket: u32,
    /// A number that requests can select impressions by.
    pub match_value: u32,
}

impl SybilImpression {
    /// An impression that a site saves on its own page.
    pub const fn on(site: SiteId) -> Self {
        Self {
            site,
            sybil: None,
            bucket: 0,
            match_value: 0,
        }
    }

    /// An impression that a Sybil saves on a site that embeds it.
    pub const fn embedded(sybil: u32, site: SiteId) -> Self {
        Self {
            sybil: Some(sybil),
            ..Self::on(site)
        }
    }
}

/// A request for a report by a Sybil. [`AttackStage::asking`] gives one to start from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SybilRequest<'r> {
    /// The Sybil that receives the report and whose querier budget pays.
    pub sybil: u32,
    /// The site on which the Sybil asks: its own, or one that embeds it.
    pub conversion_site: SiteId,
    /// The sites whose impressions match. Without any, nothing is requested.
    pub impression_sites: &'r [SiteId],
    /// The match values of the impressions that match. If empty, every match value does.
    pub match_values: &'r [u32],
    /// The loss of a conversion of the largest value.
    pub epsilon: Epsilon,
    /// The value of the conversion.
    pub value: u32,
    /// The largest value that a conversion can have.
    pub max_value: u32,
    /// The number of epochs before the current one that the request reads. A request reads no more
    /// than those of honest queriers do.
    pub lookback_epochs: u16,
}

/// The interface of an attacker to one device in one user action: what it can do, and what it can
/// know.
///
/// A real attacker knows the policy, the visits that it hears of, and what it did itself. What only
/// the device knows is here too, for attackers that are stronger than any real one, and says so.
pub struct AttackStage<'a>(StageParts<'a>);

/// The parts of a stage. Attackers cannot reach them, the built-in ones neither.
pub(crate) struct StageParts<'a> {
    pub(crate) device: &'a mut Device<ImpressionStore>,
    pub(crate) workspace: &'a mut Workspace<AttributionQuery>,
    pub(crate) state: &'a mut StageState,
    pub(crate) tally: &'a mut AttackTally,
    pub(crate) strength: Strength,
    pub(crate) epoch: EpochIndex,
    pub(crate) lookback_epochs: u16,
    pub(crate) now: Timestamp,
    pub(crate) user_action: UserAction,
    pub(crate) visit: SiteVisit,
}

impl<'a> AttackStage<'a> {
    pub(crate) fn new(parts: StageParts<'a>) -> Self {
        Self(parts)
    }
}

impl std::fmt::Debug for AttackStage<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AttackStage")
            .field("visit", &self.0.visit)
            .field("epoch", &self.0.epoch)
            .field("strength", &self.0.strength)
            .finish_non_exhaustive()
    }
}

/// What the attacker knows.
impl AttackStage<'_> {
    /// The strength of the attacker. It has at least one Sybil.
    pub fn strength(&self) -> Strength {
        self.0.strength
    }

    /// The policy of the device.
    pub fn policy(&self) -> &Policy {
        self.0.device.policy()
    }

    /// The visit that the attacker acts on.
    pub fn visit(&self) -> SiteVisit {
        self.0.visit
    }

    /// The number of user actions that the attacker had on this device before this one.
    pub fn earlier_actions(&self) -> u32 {
        self.0.tally.actions()
    }

    /// The current epoch.
    pub fn epoch(&self) -> EpochIndex {
        self.0.epoch
    }

    /// The most epochs before the current one that a request can read.
    pub fn lookback_epochs(&self) -> u16 {
        self.0.lookback_epochs
    }

    /// The site of a Sybil.
    ///
    /// # Panics
    /// If there is no such Sybil.
    pub fn site_of(&self, sybil: u32) -> SiteId {
        self.0.state.sybils[sybil as usize]
    }

    /// The attacker's site that embeds Sybils.
    pub fn home(&self) -> SiteId {
        self.0.state.home
    }

    /// The balance of a filter. Nobody outside the device knows it.
    pub fn balance(&self, epoch: EpochIndex, filter: Filter) -> Balance {
        self.0.device.balance(epoch, filter)
    }

    /// The impressions that are stored in an epoch, honest ones too, in the order in which they
    /// were saved. Nobody outside the device knows them.
    pub fn impressions(&self, epoch: EpochIndex) -> impl Iterator<Item = Impression<'_>> {
        self.0.device.events().impressions(epoch)
    }

    /// The user action in which the attacker acts.
    pub fn user_action(&self) -> UserAction {
        self.0.user_action
    }
}

/// Random choices. They depend on the seed, the device, and the choices before them.
impl AttackStage<'_> {
    /// A random number below a bound.
    #[expect(clippy::cast_possible_truncation, reason = "it is below the bound")]
    pub fn random_below(&mut self, bound: u32) -> u32 {
        below(&mut self.0.state.choices, bound as usize) as u32
    }

    /// Moves up to `count` items, chosen at random, from one list to the end of another, in random
    /// order. The order of the items that are left in `from` changes.
    pub fn choose<T>(&mut self, count: usize, from: &mut Vec<T>, into: &mut Vec<T>) {
        for _ in 0..count.min(from.len()) {
            let at = below(&mut self.0.state.choices, from.len());
            into.push(from.swap_remove(at));
        }
    }
}

/// What the attacker can do.
impl AttackStage<'_> {
    /// Leads the user to a Sybil, which saves an impression that every Sybil may measure.
    pub fn save(&mut self, sybil: u32) {
        self.save_impression(&SybilImpression::on(self.site_of(sybil)));
    }

    /// A Sybil that is embedded in a site saves an impression there. Every Sybil may measure it, on
    /// any site.
    pub fn save_embedded(&mut self, sybil: u32, site: SiteId) {
        self.save_impression(&SybilImpression::embedded(sybil, site));
    }

    /// Saves an impression that only Sybils may measure. Nobody outside the device knows whether it
    /// was kept.
    pub fn save_impression(&mut self, impression: &SybilImpression) -> SaveResult {
        // An impression on a Sybil's page lists the Sybils as conversion sites. An impression by an
        // embedded Sybil lists them as callers, so that they may measure it on any site.
        let sybils: &[SiteId] = &self.0.state.sybils;
        let intermediary = impression.sybil.map(|sybil| self.site_of(sybil));
        let (conversion_sites, conversion_callers) = match intermediary {
            None => (sybils, [].as_slice()),
            Some(_) => ([].as_slice(), sybils),
        };
        let impression = Impression {
            intermediary,
            conversion_sites,
            conversion_callers,
            match_value: impression.match_value,
            ..Impression::new(
                impression.site,
                self.0.user_action,
                self.0.now,
                impression.bucket,
            )
        };
        self.0.device.save_impression(self.0.epoch, &impression)
    }

    /// A request by a Sybil, on its own page, with as much ε as a querier budget has, over as many
    /// epochs as possible. It names no impression sites yet.
    pub fn asking(&self, sybil: u32) -> SybilRequest<'static> {
        SybilRequest {
            sybil,
            conversion_site: self.site_of(sybil),
            impression_sites: &[],
            match_values: &[],
            epsilon: self.0.state.epsilon,
            value: 1,
            max_value: 1,
            lookback_epochs: self.0.lookback_epochs,
        }
    }

    /// A Sybil requests a report over the impressions of some sites, on its own page.
    pub fn request(&mut self, sybil: u32, impression_sites: &[SiteId]) {
        self.request_report(&SybilRequest {
            impression_sites,
            ..self.asking(sybil)
        });
    }

    /// A Sybil that is embedded in a conversion site requests a report over the impressions of a
    /// site.
    pub fn request_embedded(&mut self, sybil: u32, conversion_site: SiteId, site: SiteId) {
        self.request_report(&SybilRequest {
            conversion_site,
            impression_sites: &[site],
            ..self.asking(sybil)
        });
    }

    /// Requests a report. A value of 0, or above the largest value, is an error of the caller, who
    /// gets no report.
    pub fn request_report(&mut self, request: &SybilRequest<'_>) {
        let querier = self.site_of(request.sybil);
        let Some(query) = &mut self.0.state.query else {
            return;
        };
        let lookback = request.lookback_epochs.min(self.0.lookback_epochs);
        let earliest = EpochIndex(self.0.epoch.0 - i64::from(lookback));
        let Ok(window) = Window::new(earliest, self.0.epoch) else {
            return;
        };
        let SybilRequest {
            epsilon,
            value,
            max_value,
            ..
        } = *request;
        if request.impression_sites.is_empty()
            || query.set_price(epsilon, value, max_value).is_err()
        {
            return;
        }
        query.set_impression_sites(request.impression_sites.iter().copied());
        query.set_match_values(request.match_values.iter().copied());
        let of_site = ReportRequest {
            querier,
            conversion_site: request.conversion_site,
            user_action: self.0.user_action,
            window,
        };
        if query
            .retarget(of_site, self.0.now, Timestamp(i64::MIN))
            .is_ok()
        {
            query.set_caller(querier);
            self.0
                .device
                .report_in(query, &mut || 0.0, self.0.workspace);
            self.0
                .tally
                .attacked(self.0.user_action, &self.0.workspace.changes().charges);
        }
    }
}

/// What the stage of an attack on many devices needs: the sites of the attacker, random numbers,
/// and buffers.
#[derive(Debug)]
pub(crate) struct StageState {
    seed: u64,
    /// Decides whether an attack comes before its event. It has random numbers of its own, so that
    /// every attacker finds the same order of events.
    orders: ChaCha8Rng,
    /// Decides what attackers leave to chance.
    choices: ChaCha8Rng,
    sybils: Vec<SiteId>,
    home: SiteId,
    epsilon: Epsilon,
    query: Option<AttributionQuery>,
}

impl StageState {
    /// Sybils are numbered after all other sites, starting at `first`. By default, they ask for
    /// reports of `epsilon`.
    pub(crate) fn new(sybils: u32, first: SiteId, epsilon: Epsilon, seed: u64) -> Self {
        let sybils = sybils.clamp(1, Strength::MAX_SYBILS);
        let request = ReportRequest {
            querier: first,
            conversion_site: first,
            user_action: UserAction(0),
            window: Window::single(EpochIndex(0)),
        };
        let query = AttributionQuery::builder(request, Timestamp(0), 1);
        Self {
            seed,
            orders: ChaCha8Rng::seed_from_u64(seed),
            choices: ChaCha8Rng::seed_from_u64(!seed),
            sybils: (0..sybils)
                .map(|sybil| SiteId(first.0.saturating_add(sybil)))
                .collect(),
            home: SiteId(first.0.saturating_add(sybils)),
            epsilon,
            query: query.build().ok(),
        }
    }

    /// Starts with another device. What happens there depends only on the seed and on the events of
    /// the device.
    pub(crate) fn begin(&mut self, device: u64) {
        self.orders = ChaCha8Rng::seed_from_u64(self.seed);
        self.orders.set_stream(device);
        self.choices = ChaCha8Rng::seed_from_u64(!self.seed);
        self.choices.set_stream(device);
    }

    /// True if the attack comes before the genuine event. Decided at random.
    pub(crate) fn comes_first(&mut self) -> bool {
        self.orders.next_u32() & 1 == 0
    }

    /// The first Sybil. Every site from this number on belongs to the attacker.
    pub(crate) fn first_own_site(&self) -> SiteId {
        self.sybils.first().copied().unwrap_or(self.home)
    }

    /// The number of Sybils: at least one.
    pub(crate) fn sybil_count(&self) -> u32 {
        u32::try_from(self.sybils.len()).unwrap_or(1)
    }
}

/// A random number below a bound. All numbers are almost equally likely.
fn below(rng: &mut ChaCha8Rng, bound: usize) -> usize {
    ((u64::from(rng.next_u32()) * bound as u64) >> 32) as usize
}
