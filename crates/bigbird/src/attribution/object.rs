//! Attribution objects: one attribution that several queriers share (the paper's appendix
//! "Cross-report Privacy Loss Optimization").

use std::num::NonZeroU64;

use super::query::{AttributionQuery, Histogram, Terms, Touch};
use crate::decision::{Cause, Fate};
use crate::device::Outcome;
use crate::engine::{Payers, Workspace, generate};
use crate::ledger::{Changes, LedgerView, first_short};
use crate::policy::Policies;
use crate::query::{Draws, EventStore, Query, Release, Relevant, Request};
use crate::{
    Capacity, Check, Decision, EpochIndex, Epsilon, EpsilonError, Filter, MicroEpsilon, Noise,
    SiteId,
};

/// One conversion, attributed once, for several queriers with disjoint impressions.
///
/// Creating it pays the shared filters (global budget, conversion-site and impression-site quotas)
/// once, for everything that all queriers together can learn from it. Each querier then takes the
/// credit of its own impressions and pays from its own budget only.
///
/// What this guarantees is the global budget: whatever the queriers do, all of them together learn
/// no more about an epoch than its shared filters paid. A querier's own budget does not bound what
/// it learns from shares: the credit of an epoch it can pay for was divided with other epochs in
/// view, also with one that it cannot pay for.
///
/// Here we depart from the paper on purpose: its `GetReport` attributes again over the epochs each
/// querier could pay for. Queriers with budget in different epochs could then move more value than
/// was charged. Our objects fix the credit of each impression once; an epoch that a querier cannot
/// pay for, or that can no longer be read, loses that epoch's own credit and nothing else.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(
    feature = "serde",
    serde(try_from = "ObjectParts", into = "ObjectParts")
)]
pub struct AttributionObject {
    conversion_site: SiteId,
    created: EpochIndex,
    callers: Vec<SiteId>,
    /// What every share must agree on.
    terms: Terms,
    single_epoch: bool,
    /// The epochs that passed. Each has a relevant impression, which influenced how the value was
    /// divided, so every querier pays in each of them.
    epochs: Vec<EpochIndex>,
    credits: Vec<Credit>,
    /// What was handed out already.
    taken: Vec<Support>,
}

/// Everything an [`AttributionObject`] is made of. It is as private as the ledger, and must be kept
/// as durably: whoever could change it could take a share twice.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub struct ObjectParts {
    /// The conversion site.
    pub conversion_site: SiteId,
    /// The epoch in which it was created.
    pub created: EpochIndex,
    /// Who shares it, at most 64; a bit of [`Credit::permitted`] for each.
    pub callers: Vec<SiteId>,
    /// The value of the conversion.
    pub value: u32,
    /// How it was divided.
    pub credit: Vec<f64>,
    /// The epsilon of the noise.
    pub epsilon: f64,
    /// The sensitivity that the noise is made for: twice the maximal value.
    pub sensitivity: u64,
    /// Whether the window had one epoch.
    pub single_epoch: bool,
    /// The epochs that were paid for.
    pub epochs: Vec<EpochIndex>,
    /// The credit of each impression that got some.
    pub credits: Vec<Credit>,
    /// What was handed out already.
    pub taken: Vec<Support>,
}

/// An impression with the credit it was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub struct Credit {
    /// The epoch it was saved in.
    pub epoch: EpochIndex,
    /// Where it was shown.
    pub site: SiteId,
    /// Who saved it.
    pub caller: SiteId,
    /// Its match value.
    pub match_value: u32,
    /// The bucket that its credit goes to.
    pub histogram_index: u32,
    /// Which of the object's callers may have it, one bit each.
    pub permitted: u64,
    /// Its part of the value.
    pub value: u32,
}

/// The set of impressions that a share asks for, by description. Whether two sets overlap is
/// decided on descriptions, never on what happens to be stored: it would tell.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub struct Support {
    /// Impressions of these sites, sorted; of every site if empty.
    pub impression_sites: Vec<SiteId>,
    /// Impressions that these saved, sorted; whoever saved them if empty.
    pub impression_callers: Vec<SiteId>,
    /// Impressions with one of these match values, sorted; with any if empty.
    pub match_values: Vec<u32>,
}

impl Support {
    fn of(query: &AttributionQuery) -> Self {
        Self {
            impression_sites: query.impression_sites.clone(),
            impression_callers: query.impression_callers.clone(),
            match_values: query.match_values.clone(),
        }
    }

    /// Whether an impression could belong to both.
    fn overlaps(&self, other: &Self) -> bool {
        fn common<T: PartialEq>(a: &[T], b: &[T]) -> bool {
            a.is_empty() || b.is_empty() || a.iter().any(|item| b.contains(item))
        }
        common(&self.impression_sites, &other.impression_sites)
            && common(&self.impression_callers, &other.impression_callers)
            && common(&self.match_values, &other.match_values)
    }

    fn contains(&self, credit: &Credit) -> bool {
        use super::query::named;
        named(&self.impression_sites, credit.site)
            && named(&self.impression_callers, credit.caller)
            && named(&self.match_values, credit.match_value)
    }
}

impl AttributionObject {
    /// How many shares an object gives: as many as it can have callers.
    pub const MAX_SHARES: usize = AttributionQuery::MAX_CALLERS;

    /// Attributes a conversion once (the paper's `MeasureConversion`): runs the domain cap, charges
    /// the shared filters, and fixes the credit of each matching impression. The query names
    /// everyone who will share as its callers, and matches the impressions of all of them; its
    /// querier pays nothing.
    ///
    /// Apply the changes before any share is released.
    ///
    /// # Errors
    /// Whatever the stores say when they cannot be read.
    pub fn create<E, L>(
        policies: &impl Policies,
        events: &E,
        ledger: &L,
        query: &AttributionQuery,
        draw: &mut dyn FnMut() -> f64,
    ) -> Result<(Self, Decision, Changes), L::Error>
    where
        E: EventStore<AttributionQuery, Error = L::Error>,
        L: LedgerView,
    {
        let snapshot = SnapshotQuery(query);
        let mut workspace = Workspace::default();
        generate(
            policies,
            &Snapshots(events),
            ledger,
            &snapshot,
            Payers::Shared,
            draw,
            &mut workspace,
        )?;
        let (Snapshot(credits), decision, changes) = workspace.into_parts();
        let passed = decision.epochs().filter(|epoch| epoch.fate == Fate::Passed);
        let object = Self {
            conversion_site: query.request.conversion_site,
            created: query.request.window.current(),
            callers: query.callers.clone(),
            terms: query.terms.clone(),
            single_epoch: query.request.window.is_single(),
            epochs: passed.map(|epoch| epoch.epoch).collect(),
            credits,
            taken: Vec::new(),
        };
        Ok((object, decision, changes))
    }

    /// Gives a querier the credit of the impressions that its query names (the paper's
    /// `GetReport`), and what pays for it. Of the query, its moment, window and user action do not
    /// matter any more: they were settled when the object was created.
    ///
    /// The report is null, and costs nothing, when the query asks for impressions that were handed
    /// out already, or disagrees with the object on value, credit or noise, or comes from someone
    /// who does not share it.
    ///
    /// Epochs before `readable_from` can no longer be read: they left the lookback, or the user
    /// cleared them. Such an epoch loses its own credit and pays nothing, as a pruned one does.
    /// Every other epoch is charged all the same: were the share refused as a whole, what one
    /// epoch held and paid would decide what another is charged.
    ///
    /// Apply the changes, and keep the object as durably as the ledger, before the report is
    /// released.
    ///
    /// # Errors
    /// Whatever the ledger says when it cannot be read. Nothing was taken then.
    pub fn share<L: LedgerView>(
        &mut self,
        policies: &impl Policies,
        ledger: &L,
        query: &AttributionQuery,
        readable_from: EpochIndex,
    ) -> Result<(Outcome<Histogram>, Changes), L::Error> {
        let mut outcome = Outcome {
            report: query.null_report(),
            decision: Decision::default(),
        };
        let mut changes = Changes::default();
        let Some((caller, support)) = self.accept(query) else {
            return Ok((outcome, changes));
        };
        let own =
            |credit: &&Credit| credit.permitted & (1 << caller) != 0 && support.contains(credit);
        let querier = Filter::Querier(query.request.querier);
        for &epoch in &self.epochs {
            let credits = || {
                let of_epoch = |credit: &&Credit| credit.epoch == epoch;
                self.credits.iter().filter(of_epoch).filter(own)
            };
            let matched = credits().count();
            let mark = outcome.decision.mark();
            let policy = policies.policy(epoch);
            let Some(policy) = policy.filter(|_| epoch >= readable_from) else {
                let (fate, lost) = (Fate::Dropped(Cause::Pruned), MicroEpsilon::ZERO);
                let decision = &mut outcome.decision;
                decision.record(epoch, matched, lost, fate, (mark, mark));
                continue;
            };
            // As for any report: what it reveals if the window has one epoch, else the worst case.
            let sensitivity = if self.single_epoch {
                let mut alone = query.null_report();
                credits().for_each(|credit| alone.add(credit.histogram_index, credit.value));
                alone.total()
            } else {
                2 * u64::from(query.terms.value)
            };
            let asked = query.terms.noise.loss(sensitivity, policy.arithmetic());
            let capacity = policy.capacities().querier;
            let checks = outcome.decision.checks_mut();
            if !asked.is_zero() && capacity != Capacity::Unlimited {
                checks.push(Check::new(epoch, querier, capacity, asked));
            }
            let fate = match first_short(ledger, epoch, &mut checks[mark..])? {
                Some(short) => Fate::Dropped(Cause::Filter(short)),
                None => Fate::Passed,
            };
            if fate == Fate::Passed {
                let paid = checks[mark..].iter().map(Check::charge);
                changes.charges.extend(paid);
                credits().for_each(|credit| {
                    outcome.report.add(credit.histogram_index, credit.value);
                });
            }
            let decision = &mut outcome.decision;
            decision.record(epoch, matched, asked, fate, (mark, mark));
        }
        self.taken.push(support);
        Ok((outcome, changes))
    }

    /// Forgets a site at its request, as
    /// [`Impression::without`](crate::Impression::without) says. The credit of the
    /// impressions that it saved goes; it gets no credit any more of impressions that named who may
    /// measure them; and if it is the conversion site, all credit goes, as it is not kept which
    /// impressions were for it alone. What was paid stays paid.
    pub fn forget_site(&mut self, site: SiteId) {
        if site == self.conversion_site {
            self.credits.clear();
        }
        let participant = self.callers.iter().position(|caller| *caller == site);
        self.credits.retain_mut(|credit| {
            if let Some(bit) = participant
                && credit.permitted != u64::MAX
            {
                credit.permitted &= !(1 << bit);
            }
            credit.caller != site && credit.permitted != 0
        });
    }

    /// Every site it remembers, some more than once: whoever numbers sites must not give their
    /// numbers to others.
    pub fn sites(&self) -> impl Iterator<Item = SiteId> {
        let credits = self.credits.iter();
        let of_credits = credits.flat_map(|credit| [credit.site, credit.caller]);
        let taken = self.taken.iter();
        let of_taken = taken.flat_map(|support| {
            let callers = support.impression_callers.iter();
            support.impression_sites.iter().chain(callers).copied()
        });
        let own = [self.conversion_site].into_iter();
        own.chain(self.callers.iter().copied())
            .chain(of_credits)
            .chain(of_taken)
    }

    /// Everything it is made of, for a store to keep.
    pub fn parts(&self) -> ObjectParts {
        self.clone().into()
    }

    /// The conversion site it is about.
    pub fn conversion_site(&self) -> SiteId {
        self.conversion_site
    }

    /// The epoch in which it was created. Whoever keeps objects forgets them by this, never by
    /// what was paid: whether an epoch had anything to pay for must not decide what becomes of the
    /// credit of another.
    pub fn created(&self) -> EpochIndex {
        self.created
    }

    /// Whether a share fits: it comes from one who shares, agrees on value, credit and noise, and
    /// asks for nothing that was handed out already. One that does not is null and costs nothing.
    pub fn fits(&self, query: &AttributionQuery) -> bool {
        self.accept(query).is_some()
    }

    /// The epochs in which it was paid for.
    pub fn epochs(&self) -> &[EpochIndex] {
        &self.epochs
    }

    /// The number of the caller and the set it asks for, if the query fits this object.
    fn accept(&self, query: &AttributionQuery) -> Option<(usize, Support)> {
        let [caller] = query.callers.as_slice() else {
            return None;
        };
        let caller = self.callers.iter().position(|other| other == caller)?;
        let support = Support::of(query);
        let fits = query.request.conversion_site == self.conversion_site
            && self.taken.len() < Self::MAX_SHARES
            && query.terms == self.terms
            && !self.taken.iter().any(|taken| taken.overlaps(&support));
        fits.then_some((caller, support))
    }
}

/// Everything it is made of, for a store to keep.
impl From<AttributionObject> for ObjectParts {
    fn from(object: AttributionObject) -> Self {
        Self {
            conversion_site: object.conversion_site,
            created: object.created,
            callers: object.callers,
            value: object.terms.value,
            credit: object.terms.credit,
            epsilon: object.terms.noise.epsilon().value(),
            sensitivity: object.terms.noise.sensitivity().get(),
            single_epoch: object.single_epoch,
            epochs: object.epochs,
            credits: object.credits,
            taken: object.taken,
        }
    }
}

/// The object that a store has kept; an error if its epsilon is out of range, or its noise hides
/// nothing.
impl TryFrom<ObjectParts> for AttributionObject {
    type Error = EpsilonError;

    fn try_from(parts: ObjectParts) -> Result<Self, EpsilonError> {
        let epsilon = Epsilon::new(parts.epsilon)?;
        let sensitivity = NonZeroU64::new(parts.sensitivity);
        let sensitivity = sensitivity.ok_or(EpsilonError::Amount { got: 0.0 })?;
        Ok(Self {
            conversion_site: parts.conversion_site,
            created: parts.created,
            callers: parts.callers,
            terms: Terms {
                value: parts.value,
                credit: parts.credit,
                noise: Noise::new(epsilon, sensitivity),
            },
            single_epoch: parts.single_epoch,
            epochs: parts.epochs,
            credits: parts.credits,
            taken: parts.taken,
        })
    }
}

/// The credit of each impression that gets some.
#[derive(Debug, Default)]
struct Snapshot(Vec<Credit>);

/// So that the engine can compute it. It is private to this file, and stays in the object.
impl Release for Snapshot {}

/// An attribution whose result is the credit of each impression, for all queriers together.
struct SnapshotQuery<'q>(&'q AttributionQuery);

/// A store that finds for a [`SnapshotQuery`] what it finds for its attribution.
struct Snapshots<'e, E>(&'e E);

impl<E: EventStore<AttributionQuery>> EventStore<SnapshotQuery<'_>> for Snapshots<'_, E> {
    type Error = E::Error;

    fn find(
        &self,
        epoch: EpochIndex,
        query: &SnapshotQuery<'_>,
        found: &mut Vec<Relevant<Touch>>,
    ) -> Result<(), E::Error> {
        self.0.find(epoch, query.0, found)
    }
}

impl Query for SnapshotQuery<'_> {
    type Event<'e> = super::Impression<'e>;
    type Detail = Touch;
    type Report = Snapshot;

    fn request(&self) -> Request {
        self.0.request()
    }

    fn noise(&self) -> Noise {
        self.0.noise()
    }

    fn relevant(&self, impression: super::Impression<'_>) -> Option<Touch> {
        self.0.relevant(impression)
    }

    fn keep_first(&self, events: &mut Vec<Relevant<Touch>>, begin: usize) {
        self.0.keep_first(events, begin);
    }

    fn report(
        &self,
        events: &mut [Relevant<Touch>],
        draws: &mut Draws<'_>,
        Snapshot(credits): &mut Snapshot,
    ) {
        credits.clear();
        let credited = self.0.credited(events, draws).map(|(event, value)| Credit {
            epoch: event.epoch,
            site: event.site,
            caller: event.detail.caller,
            match_value: event.detail.match_value,
            histogram_index: event.detail.histogram_index,
            permitted: event.detail.permitted,
            value,
        });
        credits.extend(credited);
    }

    /// The total credit: each querier chooses its own buckets, so none of it counts as outside.
    fn individual_sensitivity(&self, Snapshot(credits): &Snapshot) -> u64 {
        credits.iter().map(|credit| u64::from(credit.value)).sum()
    }

    fn epoch_sensitivity(&self, events: &[Relevant<Touch>]) -> u64 {
        self.0.epoch_sensitivity(events)
    }

    fn site_sensitivity(&self, events: &[Relevant<Touch>]) -> u64 {
        self.0.site_sensitivity(events)
    }
}
