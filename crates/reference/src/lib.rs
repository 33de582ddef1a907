//! The paper's algorithm, read literally: everything is in plain lists and maps, and every request
//! examines every impression.
//!
//! It is the oracle of the differential tests of [`bigbird`] and the baseline of its benchmark. It
//! can be given a [`Flaw`]. For each property that the real device must have, there is a flaw that
//! breaks it, and a test that the property notices.
//!
//! ```
//! use bigbird::Profile;
//! use bigbird_reference::{Ad, Ask, Flaw, Reference};
//!
//! let ad = Ad { site: 1, action: 1, timestamp: 10, ..Ad::default() };
//! let callers = vec![2];
//! let ask =
//!     Ask { querier: 2, conversion_site: 2, callers, action: 2, now: 20, ..Ask::default() };
//!
//! let mut sound = Reference::new(Profile::BigBird.policy(), 1000, None);
//! sound.save(0, &ad);
//! assert_eq!(sound.ask(&ask).histogram, [1]);
//!
//! // A conversion by the user action that saved the impression matches nothing, unless flawed.
//! let own = Ask { action: 1, ..ask };
//! let mut flawed = Reference::new(Profile::BigBird.policy(), 1000, Some(Flaw::OwnAction));
//! flawed.save(0, &ad);
//! assert_eq!((sound.ask(&own).histogram, flawed.ask(&own).histogram), (vec![0], vec![1]));
//! ```
#![forbid(unsafe_code)]

mod device;
mod flaw;
mod object;

use std::collections::{BTreeMap, BTreeSet};

pub use flaw::Flaw;
pub use object::ReferenceObject;

use bigbird::attribution::allocate_credit;
use bigbird::{
    Arithmetic, DepletedSites, Filter, FilterKind, GlobalCharging, OwnActionEvents, Policy,
    ReadLimits, SiteCharging, SiteId, UserAction,
};

/// A saved impression. Sites and actions are plain numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Ad {
    /// The site where it was shown.
    pub site: u32,
    /// The intermediary that saved it, or `None` if the site did.
    pub intermediary: Option<u32>,
    /// The user action that caused it.
    pub action: u64,
    /// The time at which it was saved.
    pub timestamp: i64,
    /// The last moment at which it can match.
    pub expires: i64,
    /// A number that requests can select it by.
    pub match_value: u32,
    /// The bucket that its credit goes to.
    pub index: u32,
    /// The priority. Higher priorities get credit first.
    pub priority: i32,
    /// The conversion sites that may measure the impression. If empty, every site may.
    pub conversion_sites: Vec<u32>,
    /// The sites that may call for a conversion that measures the impression. If empty, every site
    /// may.
    pub conversion_callers: Vec<u32>,
}

impl Ad {
    /// The number of units that it counts against the limit of its epoch: one, and one for each
    /// site that it names in addition to its own.
    fn units(&self) -> usize {
        let names = |list: &[u32]| list.iter().collect::<BTreeSet<_>>().len();
        let lists = names(&self.conversion_sites) + names(&self.conversion_callers);
        1 + lists + usize::from(self.intermediary.is_some())
    }
}

impl Default for Ad {
    /// An impression of site 0 at time 0 that anyone may measure and that never expires.
    fn default() -> Self {
        Self {
            site: 0,
            intermediary: None,
            action: 0,
            timestamp: 0,
            expires: i64::MAX,
            match_value: 0,
            index: 0,
            priority: 0,
            conversion_sites: Vec::new(),
            conversion_callers: Vec::new(),
        }
    }
}

/// A request for a report.
#[derive(Debug, Clone, PartialEq)]
pub struct Ask {
    /// The site that receives the report and whose budget pays.
    pub querier: u32,
    /// The site where the conversion happened.
    pub conversion_site: u32,
    /// The callers: one, or several as for an attribution object.
    pub callers: Vec<u32>,
    /// The user action that caused it.
    pub action: u64,
    /// The first epoch of the window.
    pub earliest: i64,
    /// The last epoch of the window.
    pub current: i64,
    /// The first epoch that is read. Earlier epochs are not read, because the user cleared the
    /// history.
    pub readable_from: i64,
    /// The moment of the request.
    pub now: i64,
    /// Impressions before this moment do not match.
    pub not_before: i64,
    /// The impression sites. Only impressions on these match. If empty, those on every site do.
    pub impression_sites: Vec<u32>,
    /// The impression callers. Only impressions that these saved match. If empty, it does not
    /// matter who saved them.
    pub impression_callers: Vec<u32>,
    /// The match values. Only impressions with one of these match. If empty, every match value
    /// does.
    pub match_values: Vec<u32>,
    /// The shares by which the value is divided.
    pub credit: Vec<f64>,
    /// The value of the conversion.
    pub value: u32,
    /// The largest value that a conversion can have.
    pub max_value: u32,
    /// The epsilon, in µε.
    pub epsilon_micro: u64,
    /// The number of buckets of the histogram.
    pub size: u32,
    /// The limits on what is read of each epoch.
    pub read_limits: ReadLimits,
    /// The random numbers of this report, repeated as often as needed.
    pub draws: Vec<f64>,
}

impl Default for Ask {
    /// A conversion of value 1 at time 0 over epoch 0, for a histogram of one bucket, with ε = 1.
    fn default() -> Self {
        Self {
            querier: 0,
            conversion_site: 0,
            callers: vec![0],
            action: 0,
            earliest: 0,
            current: 0,
            readable_from: i64::MIN,
            now: 0,
            not_before: i64::MIN,
            impression_sites: Vec::new(),
            impression_callers: Vec::new(),
            match_values: Vec::new(),
            credit: vec![1.0],
            value: 1,
            max_value: 1,
            epsilon_micro: 1_000_000,
            size: 1,
            read_limits: ReadLimits::default(),
            draws: Vec::new(),
        }
    }
}

/// The result of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct ReferenceAnswer {
    /// The report.
    pub histogram: Vec<u32>,
    /// The result for each epoch that was read.
    pub epochs: Vec<EpochAnswer>,
}

/// The result for one epoch.
#[derive(Debug, Clone, PartialEq)]
pub struct EpochAnswer {
    /// The epoch.
    pub epoch: i64,
    /// The number of matching impressions.
    pub matched: usize,
    /// True if every filter paid.
    pub passed: bool,
    /// The amount that each filter was asked to pay, and that it paid if the epoch passed.
    pub charges: BTreeMap<Filter, u64>,
}

/// The filters that pay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PayingFilters {
    /// Every filter.
    All,
    /// All filters except the querier budget, for an attribution object.
    Shared,
}

/// The paper's algorithm on one device, read literally, optionally with a flaw.
#[derive(Debug, Clone)]
pub struct Reference {
    policy: Policy,
    limit: usize,
    flaw: Option<Flaw>,
    /// Every stored impression with its epoch, in the order of saving.
    pub ads: Vec<(i64, Ad)>,
    /// The amount that each filter has consumed, by epoch, in µε.
    pub consumed: BTreeMap<(i64, Filter), u64>,
    /// The sites that were admitted, by user action and epoch.
    pub accessed: BTreeMap<(u64, i64), BTreeSet<u32>>,
    /// The amount that the global budget of each epoch has granted, in µε. Nothing is ever taken
    /// back from it, not even when the epoch is pruned.
    pub granted: BTreeMap<i64, u64>,
    /// The amount that each user action has used up over all epochs, in the faulty form of the
    /// user-action budget.
    pub over_epochs: BTreeMap<u64, u64>,
    first_epoch: i64,
    first_open_action: u64,
}

impl Reference {
    /// A new device under a policy. It keeps at most `limit` units of impressions per epoch.
    pub fn new(policy: Policy, limit: usize, flaw: Option<Flaw>) -> Self {
        Self {
            policy,
            limit,
            flaw,
            ads: Vec::new(),
            consumed: BTreeMap::new(),
            accessed: BTreeMap::new(),
            granted: BTreeMap::new(),
            over_epochs: BTreeMap::new(),
            first_epoch: i64::MIN,
            first_open_action: 0,
        }
    }

    /// Forgets the epochs before `epoch`. From then on, they pay nothing.
    pub fn prune_before(&mut self, epoch: i64) {
        self.ads.retain(|(other, _)| *other >= epoch);
        self.consumed.retain(|(other, _), _| *other >= epoch);
        self.accessed.retain(|(_, other), _| *other >= epoch);
        if self.flaw != Some(Flaw::PruningRefunds) {
            self.first_epoch = self.first_epoch.max(epoch);
        }
    }

    /// Clears the history: removes every impression and closes the epochs before `epoch`.
    pub fn clear_before(&mut self, epoch: i64) {
        self.ads.clear();
        if self.flaw == Some(Flaw::ClearingRefunds) {
            self.consumed.clear();
            self.accessed.clear();
        } else {
            self.prune_before(epoch);
        }
    }

    /// The first epoch that was not pruned.
    pub fn first_epoch(&self) -> i64 {
        self.first_epoch
    }

    /// Removes the impressions on a site.
    pub fn remove_site(&mut self, site: u32) {
        self.ads.retain(|(_, ad)| ad.site != site);
    }

    /// Ends the user actions with ids below `action`.
    pub fn end_user_actions_before(&mut self, action: u64) {
        self.first_open_action = self.first_open_action.max(action);
        self.accessed.retain(|(other, _), _| *other >= action);
    }

    /// Turns this into a new device.
    pub fn reset(&mut self) {
        let fresh = Self::new(self.policy.clone(), self.limit, self.flaw);
        let spent = std::mem::replace(self, fresh).consumed;
        if self.flaw == Some(Flaw::ResetKeepsBudgets) {
            self.consumed = spent;
        }
    }

    /// Saves an impression in an epoch.
    pub fn save(&mut self, epoch: i64, ad: &Ad) {
        if epoch < self.first_epoch || !self.admit(ad.action, epoch, ad.site) {
            return;
        }
        self.ads.push((epoch, ad.clone()));
        let counts_together = |other: i64| epoch == other || self.flaw == Some(Flaw::SharedLimit);
        let in_epoch: Vec<usize> = (0..self.ads.len())
            .filter(|&at| counts_together(self.ads[at].0))
            .collect();
        let units = |ads: &[usize]| -> usize { ads.iter().map(|&at| self.ads[at].1.units()).sum() };
        let mut in_epoch = in_epoch;
        let mut gone = Vec::new();
        while units(&in_epoch) > self.limit {
            let mut by_site: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
            for &at in &in_epoch {
                by_site.entry(self.ads[at].1.site).or_default().push(at);
            }
            let largest = by_site
                .values()
                .max_by_key(|ads| (units(ads), std::cmp::Reverse(ads[0])));
            let oldest = largest.map_or(0, |ads| ads[0]);
            in_epoch.retain(|&at| at != oldest);
            gone.push(oldest);
        }
        let mut at = 0;
        self.ads.retain(|_| {
            at += 1;
            !gone.contains(&(at - 1))
        });
    }

    /// Answers a request, and pays for it.
    pub fn ask(&mut self, ask: &Ask) -> ReferenceAnswer {
        let (mut kept, epochs) = self.decide(ask, PayingFilters::All);
        if self.flaw == Some(Flaw::DroppedByCoin) && ask.draws.last() < Some(&0.5) {
            kept.clear();
        }
        let mut released = ask.clone();
        if self.flaw == Some(Flaw::DrawnAgain) && !released.draws.is_empty() {
            released.draws.rotate_left(1);
        }
        let mut histogram = self.attribute(&released, &kept);
        if self.flaw == Some(Flaw::EmptyNull) && kept.is_empty() {
            histogram.clear();
        }
        ReferenceAnswer { histogram, epochs }
    }

    /// Decides every epoch of a request on its own, and pays. Returns the positions of the ads
    /// that may be attributed to.
    fn decide(&mut self, ask: &Ask, payers: PayingFilters) -> (Vec<usize>, Vec<EpochAnswer>) {
        let mut single = ask.earliest == ask.current;
        if self.flaw == Some(Flaw::SingleByStored) {
            let stored = |epoch| !self.matching(ask, epoch).is_empty();
            single = (ask.earliest..=ask.current).filter(|&e| stored(e)).count() <= 1;
        }
        let readable = ask.readable_from.max(ask.earliest)..=ask.current;
        if self.flaw == Some(Flaw::SingleByReadable) {
            single = readable.clone().count() == 1;
        }
        let winners = self.winners(ask, readable.clone());
        let mut dropped_sites = BTreeSet::new();
        if self.flaw == Some(Flaw::DropSiteEverywhere) {
            for epoch in readable.clone() {
                let matching = self.matching(ask, epoch);
                let charges = self.charges(ask, single, payers, &matching);
                let short = charges.iter().filter(|it| !self.fits(epoch, *it.0, *it.1));
                dropped_sites.extend(short.filter_map(|(filter, _)| match filter {
                    Filter::ImpressionSiteQuota(site) => Some(site.0),
                    _ => None,
                }));
            }
        }
        let mut kept: Vec<(i64, usize)> = Vec::new();
        let mut epochs = Vec::new();
        let mut empty_report = false;
        for epoch in readable {
            let mut answer = EpochAnswer {
                epoch,
                matched: 0,
                passed: false,
                charges: BTreeMap::new(),
            };
            let kept_epoch = epoch >= self.first_epoch;
            let known = self.accessed.get(&(ask.action, epoch)).cloned();
            let admitted = kept_epoch && self.admit(ask.action, epoch, ask.conversion_site);
            empty_report |= kept_epoch && !admitted && self.flaw == Some(Flaw::CapEmptiesReport);
            if admitted {
                let mut matching = self.matching(ask, epoch);
                matching.retain(|&at| !dropped_sites.contains(&self.ads[at].1.site));
                if self.flaw == Some(Flaw::ReadLimitOverWindow) {
                    let most = ask.read_limits.relevant as usize;
                    let left = most.max(ask.credit.len()).saturating_sub(kept.len());
                    matching.truncate(left);
                }
                answer.matched = matching.len();
                let mut charges = self.charges(ask, single, payers, &matching);
                let mut depleted = false;
                if self.policy.depleted_sites() == DepletedSites::DropSite {
                    loop {
                        let kept = matching.iter().copied().filter(|&at| {
                            let filter = Filter::ImpressionSiteQuota(SiteId(self.ads[at].1.site));
                            let asked = charges.get(&filter).copied().unwrap_or(0);
                            self.fits(epoch, filter, asked)
                        });
                        let kept: Vec<usize> = kept.collect();
                        if kept.is_empty() {
                            depleted = !matching.is_empty();
                            break;
                        }
                        if kept.len() == matching.len() {
                            break;
                        }
                        matching = kept;
                        charges = self.charges(ask, single, payers, &matching);
                    }
                }
                if let Some(winners) = &winners
                    && !matching.iter().any(|at| winners.contains(at))
                {
                    charges.clear();
                }
                if !matching.is_empty() {
                    answer.passed = !depleted && self.pay(epoch, &charges);
                    answer.charges = charges;
                    if self.flaw == Some(Flaw::ActionBudgetOverEpochs) {
                        empty_report |= self.over_action_budget(ask, &answer.charges);
                    }
                }
                if answer.passed {
                    kept.extend(matching.into_iter().map(|at| (epoch, at)));
                }
                if !answer.passed && self.flaw == Some(Flaw::AdmissionTakenBack) {
                    match known {
                        Some(known) => self.accessed.insert((ask.action, epoch), known),
                        None => self.accessed.remove(&(ask.action, epoch)),
                    };
                }
            }
            epochs.push(answer);
        }
        if empty_report {
            kept.clear();
            epochs.iter_mut().for_each(|epoch| epoch.passed = false);
        }
        (kept.into_iter().map(|(_, at)| at).collect(), epochs)
    }

    /// The ads that would get credit if every epoch passed, for [`Flaw::WinnerPays`].
    fn winners(&self, ask: &Ask, epochs: std::ops::RangeInclusive<i64>) -> Option<Vec<usize>> {
        if self.flaw != Some(Flaw::WinnerPays) {
            return None;
        }
        let mut all: Vec<usize> = epochs.flat_map(|it| self.matching(ask, it)).collect();
        all.sort_by_key(|&at| std::cmp::Reverse(self.rank(at)));
        all.truncate(ask.credit.len());
        Some(all)
    }

    fn admit(&mut self, action: u64, epoch: i64, site: u32) -> bool {
        let Some(cap) = self.policy.domain_cap() else {
            return true;
        };
        if action < self.first_open_action {
            return false;
        }
        let slack = u32::from(self.flaw == Some(Flaw::CapOffByOne));
        let accessed = self.accessed.entry((action, epoch)).or_default();
        if !accessed.contains(&site) && accessed.len() >= (cap.get() + slack) as usize {
            return false;
        }
        accessed.insert(site);
        true
    }

    /// The positions of the ads of an epoch that match.
    fn matching(&self, ask: &Ask, epoch: i64) -> Vec<usize> {
        fn any_or<T: PartialEq>(list: &[T], item: &T) -> bool {
            list.is_empty() || list.contains(item)
        }
        let own = self.policy.own_action_events() == OwnActionEvents::Included
            || self.flaw == Some(Flaw::OwnAction);
        let matches = |ad: &Ad| {
            ad.timestamp <= ask.now
                && ad.timestamp >= ask.not_before
                && ad.expires >= ask.now
                && any_or(&ad.conversion_sites, &ask.conversion_site)
                && ask
                    .callers
                    .iter()
                    .any(|caller| any_or(&ad.conversion_callers, caller))
                && any_or(&ask.match_values, &ad.match_value)
                && any_or(&ask.impression_sites, &ad.site)
                && any_or(&ask.impression_callers, &ad.intermediary.unwrap_or(ad.site))
                && (own || ad.action != ask.action)
        };
        let relevant = (ask.read_limits.relevant as usize).max(ask.credit.len());
        let examined = (ask.read_limits.examined as usize).max(relevant).max(32);
        let mut looked_at = self.examined(ask, epoch, examined);
        looked_at.retain(|&at| matches(&self.ads[at].1));
        if self.flaw != Some(Flaw::ReadsOldestFirst) {
            looked_at.sort_by_key(|&at| std::cmp::Reverse(self.rank(at)));
        }
        looked_at.truncate(relevant);
        looked_at.sort_unstable();
        looked_at
    }

    /// The positions of the ads of an epoch that are examined. Normally these are all ads. If every
    /// list by which the request could find its ads is longer than `most`, only the first ads that
    /// it may measure are examined, in the order of attribution.
    fn examined(&self, ask: &Ask, epoch: i64, most: usize) -> Vec<usize> {
        let in_epoch = || (0..self.ads.len()).filter(move |&at| self.ads[at].0 == epoch);
        let callers: BTreeSet<u32> = ask.callers.iter().copied().collect();
        // The number of callers that may measure it, or 1 if anyone may.
        let listed = |ad: &Ad| {
            let sites = &ad.conversion_sites;
            let named = callers
                .iter()
                .filter(|it| ad.conversion_callers.contains(it));
            match sites.is_empty() || sites.contains(&ask.conversion_site) {
                false => 0,
                true if ad.conversion_callers.is_empty() => 1,
                true => named.count(),
            }
        };
        let reach: Vec<usize> = in_epoch()
            .flat_map(|at| std::iter::repeat_n(at, listed(&self.ads[at].1)))
            .collect();
        let count = |list: &[u32], of: &dyn Fn(&Ad) -> u32| -> Option<usize> {
            let listed = in_epoch().filter(|&at| list.contains(&of(&self.ads[at].1)));
            (!list.is_empty()).then(|| listed.count())
        };
        let ways = [
            Some(reach.len()),
            count(&ask.impression_sites, &|ad| ad.site),
            count(&ask.impression_callers, &|ad| {
                ad.intermediary.unwrap_or(ad.site)
            }),
            count(&ask.match_values, &|ad| ad.match_value),
        ];
        if ways.into_iter().flatten().min() <= Some(most) {
            return in_epoch().collect();
        }
        let mut first = reach;
        first.sort_by_key(|&at| std::cmp::Reverse(self.rank(at)));
        first.truncate(most);
        first.dedup();
        first
    }

    /// The rank in the order of attribution: the highest gets credit first.
    fn rank(&self, at: usize) -> (i32, i64, i64, usize) {
        let (epoch, ad) = &self.ads[at];
        (ad.priority, ad.timestamp, *epoch, at)
    }

    /// The amount that each filter is asked to pay for an epoch with these ads.
    fn charges(
        &self,
        ask: &Ask,
        single: bool,
        payers: PayingFilters,
        ads: &[usize],
    ) -> BTreeMap<Filter, u64> {
        let mut charges = BTreeMap::new();
        if ads.is_empty() {
            return charges;
        }
        let loss = |sensitivity| self.loss(ask, sensitivity);
        let worst_case = 2 * u64::from(ask.value);
        let inside: u64 = self.attribute(ask, ads).into_iter().map(u64::from).sum();
        // The queriers of an attribution object choose their own histograms, so all credit counts.
        let norm = match payers {
            PayingFilters::Shared if self.flaw != Some(Flaw::ObjectChargedInRange) => {
                ask.value.into()
            }
            _ => inside,
        };
        let individual = single && self.flaw != Some(Flaw::AlwaysWorstCase);
        let querier = loss(if individual { norm } else { worst_case });
        let shared = match self.policy.global_charging() {
            GlobalCharging::Individual => querier,
            GlobalCharging::WorstCase => loss(worst_case),
        };
        let sites: BTreeSet<u32> = ads.iter().map(|&at| self.ads[at].1.site).collect();
        let count = sites.len() as u64;
        let rule = match self.policy.site_charging() {
            SiteCharging::Full if self.flaw == Some(Flaw::FreeDenial) => SiteCharging::Paper,
            rule => rule,
        };
        let of_site = match rule {
            SiteCharging::Uniform if self.flaw == Some(Flaw::PartsRoundedDown) => shared / count,
            SiteCharging::Uniform => shared.div_ceil(count),
            SiteCharging::Full if single => shared,
            SiteCharging::Paper if single && count == 1 => shared,
            SiteCharging::Full | SiteCharging::Paper => loss(worst_case),
        };
        if payers == PayingFilters::All {
            charges.insert(Filter::QuerierBudget(SiteId(ask.querier)), querier);
        }
        charges.insert(Filter::GlobalBudget, shared);
        charges.insert(
            Filter::ConversionSiteQuota(SiteId(ask.conversion_site)),
            shared,
        );
        charges.insert(Filter::UserActionBudget(UserAction(ask.action)), shared);
        for site in sites {
            charges.insert(Filter::ImpressionSiteQuota(SiteId(site)), of_site);
        }
        charges.retain(|filter, amount| *amount > 0 && self.capacity(*filter).is_some());
        charges
    }

    fn loss(&self, ask: &Ask, sensitivity: u64) -> u64 {
        if sensitivity == 0 {
            return 0;
        }
        match self.policy.arithmetic() {
            Arithmetic::Exact => {
                let product = u128::from(ask.epsilon_micro) * u128::from(sensitivity);
                let scale = 2 * u128::from(ask.max_value).max(1);
                let lost = match self.flaw {
                    Some(Flaw::RoundedDown) => product / scale,
                    _ => product.div_ceil(scale),
                };
                u64::try_from(lost).unwrap_or(u64::MAX)
            }
            Arithmetic::Double => {
                let scale = 2.0 * f64::from(ask.max_value) / (ask.epsilon_micro as f64 / 1e6);
                let lost = (sensitivity as f64 / scale * 1e6).ceil();
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "the number is not negative, and the cast saturates"
                )]
                let lost = lost as u64;
                lost.max(1)
            }
        }
    }

    fn capacity(&self, filter: Filter) -> Option<u64> {
        let capacity = self.policy.capacities().of(filter.kind());
        capacity.amount().map(bigbird::MicroEpsilon::get)
    }

    fn fits(&self, epoch: i64, filter: Filter, asked: u64) -> bool {
        let consumed = self.consumed.get(&(epoch, filter)).copied().unwrap_or(0);
        match self.capacity(filter) {
            None => true,
            Some(capacity) if self.flaw == Some(Flaw::Overdraft) => consumed < capacity,
            Some(_) if self.counts_once(epoch, filter) => true,
            Some(capacity) => consumed + asked <= capacity,
        }
    }

    fn pay(&mut self, epoch: i64, charges: &BTreeMap<Filter, u64>) -> bool {
        let lenient = |filter: Filter| match self.flaw {
            Some(Flaw::LenientImpressionSites) => filter.kind() == FilterKind::ImpressionSiteQuota,
            Some(Flaw::LenientConversionSites) => filter.kind() == FilterKind::ConversionSiteQuota,
            Some(Flaw::ActionBudgetOverEpochs) => filter.kind() == FilterKind::UserActionBudget,
            Some(Flaw::ReleasedUnpaid) => filter.kind() == FilterKind::GlobalBudget,
            _ => false,
        };
        let mut payable = Vec::new();
        let (mut all, mut emptied) = (true, true);
        for (&filter, &amount) in charges {
            if self.fits(epoch, filter, amount) {
                payable.push((filter, amount));
            } else if !lenient(filter) {
                all = false;
                emptied &= filter.kind() == FilterKind::UserActionBudget;
                if self.flaw == Some(Flaw::HalfPaid) {
                    break;
                }
            }
        }
        let charges_all_the_same = match self.flaw {
            Some(Flaw::HalfPaid) => true,
            Some(Flaw::ChargesWhatItEmpties) => emptied,
            _ => false,
        };
        if all || charges_all_the_same {
            for (filter, amount) in payable {
                if !self.counts_once(epoch, filter) {
                    *self.consumed.entry((epoch, filter)).or_default() += amount;
                }
                if filter == Filter::GlobalBudget {
                    *self.granted.entry(epoch).or_default() += amount;
                }
            }
        }
        all
    }

    /// True if a filter notes no charge after its first one.
    fn counts_once(&self, epoch: i64, filter: Filter) -> bool {
        self.flaw == Some(Flaw::GlobalChargedOnce)
            && filter == Filter::GlobalBudget
            && self.consumed.contains_key(&(epoch, filter))
    }

    /// The appendix's faulty listing: one sum over all epochs, and no report at all if it exceeds
    /// the budget.
    fn over_action_budget(&mut self, ask: &Ask, charges: &BTreeMap<Filter, u64>) -> bool {
        let filter = Filter::UserActionBudget(UserAction(ask.action));
        let Some(capacity) = self.capacity(filter) else {
            return false;
        };
        let consumed = self.over_epochs.entry(ask.action).or_default();
        let asked = charges.get(&filter).copied().unwrap_or(0);
        if *consumed + asked > capacity {
            return true;
        }
        *consumed += asked;
        false
    }

    /// The histogram of an attribution over these ads.
    fn attribute(&self, ask: &Ask, ads: &[usize]) -> Vec<u32> {
        let mut histogram = vec![0; ask.size as usize];
        for (at, part) in self.credits(ask, ads) {
            if let Some(bucket) = histogram.get_mut(self.ads[at].1.index as usize) {
                *bucket += part;
            }
        }
        histogram
    }

    /// The ads that get credit, and how much.
    fn credits(&self, ask: &Ask, ads: &[usize]) -> Vec<(usize, u32)> {
        let mut sorted = ads.to_vec();
        sorted.sort_by_key(|&at| std::cmp::Reverse(self.rank(at)));
        sorted.truncate(ask.credit.len());
        if sorted.is_empty() {
            return Vec::new();
        }
        let mut draws = ask.draws.iter().copied().cycle();
        let draw = || draws.next().unwrap_or(0.5);
        let parts = allocate_credit(&ask.credit[..sorted.len()], ask.value, draw);
        sorted.into_iter().zip(parts).collect()
    }
}
