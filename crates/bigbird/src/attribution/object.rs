//! Attribution objects: one attribution that several queriers share (the paper's appendix
//! "Cross-report Privacy Loss Optimization").

use std::num::NonZeroU64;

use super::histogram::Histogram;
use super::query::{AttributionQuery, MatchedImpression};
use super::terms::Terms;
use crate::decision::{Cause, Fate};
use crate::device::ReportAndDecision;
use crate::engine::{Payers, Workspace, generate};
use crate::ledger::{LedgerChanges, LedgerView, first_shortfall};
use crate::policy::Policies;
use crate::query::{Draws, EventStore, Query, Release, Relevant, ReportRequest};
use crate::{
    Capacity, Check, Decision, EpochIndex, Epsilon, EpsilonError, Filter, MicroEpsilon, Noise,
    SiteId,
};

/// One conversion, attributed once, for several queriers with disjoint impressions.
///
/// Creating the object charges the shared filters once, for everything that all queriers together
/// can learn from the object. These filters are the global budget and the conversion-site and
/// impression-site quotas. Each querier then takes the credit of its own impressions and pays only
/// from its own budget.
///
/// The guarantee is that of the global budget: whatever the queriers do, all of them together learn
/// no more about an epoch than its shared filters paid for. A querier budget does not bound what
/// its querier learns from shares. The value was divided over all epochs together, so the credit
/// that a querier receives for one epoch also depends on epochs that it cannot pay for.
///
/// This departs from the paper on purpose. The paper's `GetReport` attributes again over the epochs
/// that each querier can pay for. Queriers with budget in different epochs could then move more
/// value than was charged. Here the credit of each impression is fixed once. If a querier cannot
/// pay for an epoch, or the epoch can no longer be read, the querier loses only the credit of that
/// epoch.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(
    feature = "serde",
    serde(try_from = "AttributionObjectData", into = "AttributionObjectData")
)]
pub struct AttributionObject {
    conversion_site: SiteId,
    created: EpochIndex,
    callers: Vec<SiteId>,
    /// The terms that every share must agree on.
    terms: Terms,
    single_epoch: bool,
    /// The epochs that passed. Each has a relevant impression, which influenced how the value was
    /// divided, so every querier pays in each of them.
    epochs: Vec<EpochIndex>,
    credits: Vec<CreditedImpression>,
    /// The scopes of the shares that were taken.
    taken: Vec<ShareScope>,
}

/// All data of an [`AttributionObject`]. It is as private as the ledger and must be stored as
/// durably: whoever could change it could take a share twice.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub struct AttributionObjectData {
    /// The conversion site.
    pub conversion_site: SiteId,
    /// The epoch in which the object was created.
    pub created: EpochIndex,
    /// The participants, at most 64. Each has one bit in [`CreditedImpression::permitted`].
    pub callers: Vec<SiteId>,
    /// The value of the conversion.
    pub value: u32,
    /// The shares of credit by which the value was divided.
    pub credit: Vec<f64>,
    /// The epsilon of the noise.
    pub epsilon: f64,
    /// The sensitivity that the noise is made for: twice the largest value.
    pub sensitivity: u64,
    /// True if the window had one epoch.
    pub single_epoch: bool,
    /// The epochs that were paid for.
    pub epochs: Vec<EpochIndex>,
    /// The impressions that got credit.
    pub credits: Vec<CreditedImpression>,
    /// The scopes of the shares that were taken.
    pub taken: Vec<ShareScope>,
}

/// An impression with its credit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub struct CreditedImpression {
    /// The epoch it was saved in.
    pub epoch: EpochIndex,
    /// The site where it was shown.
    pub site: SiteId,
    /// The site that saved it.
    pub caller: SiteId,
    /// Its match value.
    pub match_value: u32,
    /// The bucket that its credit goes to.
    pub histogram_index: u32,
    /// The participants that may take its credit, one bit each.
    pub permitted: u64,
    /// Its part of the conversion's value.
    pub value: u32,
}

/// The impressions that a share asks for, by description. Whether two scopes overlap is decided
/// from the descriptions, never from what is stored: otherwise the answer would reveal what is
/// stored.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub struct ShareScope {
    /// The impression sites, sorted. If empty, every site.
    pub impression_sites: Vec<SiteId>,
    /// The sites that saved the impressions, sorted. If empty, every site.
    pub impression_callers: Vec<SiteId>,
    /// The match values, sorted. If empty, every match value.
    pub match_values: Vec<u32>,
}

impl ShareScope {
    fn of(query: &AttributionQuery) -> Self {
        Self {
            impression_sites: query.impression_sites.clone(),
            impression_callers: query.impression_callers.clone(),
            match_values: query.match_values.clone(),
        }
    }

    /// True if an impression could be in both scopes.
    fn overlaps(&self, other: &Self) -> bool {
        fn common<T: PartialEq>(a: &[T], b: &[T]) -> bool {
            a.is_empty() || b.is_empty() || a.iter().any(|item| b.contains(item))
        }
        common(&self.impression_sites, &other.impression_sites)
            && common(&self.impression_callers, &other.impression_callers)
            && common(&self.match_values, &other.match_values)
    }

    fn contains(&self, credit: &CreditedImpression) -> bool {
        use super::query::named;
        named(&self.impression_sites, credit.site)
            && named(&self.impression_callers, credit.caller)
            && named(&self.match_values, credit.match_value)
    }
}

impl AttributionObject {
    /// The largest number of shares that can be taken from an object, unless the query
    /// [sets](AttributionQuery::set_max_shares) a smaller one. It equals the largest number of
    /// callers.
    pub const MAX_SHARES: usize = AttributionQuery::MAX_CALLERS;

    /// Attributes a conversion once (the paper's `MeasureConversion`): applies the domain cap,
    /// charges the shared filters, and fixes the credit of each matching impression. The callers of
    /// the query are the participants, and the query matches the impressions of all of them. Its
    /// querier pays nothing.
    ///
    /// Apply the changes before any share is released.
    ///
    /// # Errors
    /// If a store cannot be read.
    pub fn create<E, L>(
        policies: &impl Policies,
        events: &E,
        ledger: &L,
        query: &AttributionQuery,
        draw: &mut dyn FnMut() -> f64,
    ) -> Result<(Self, Decision, LedgerChanges), L::Error>
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
    /// `GetReport`), together with the changes that pay for the report. The moment, window and user
    /// action of the query have no effect: they were fixed when the object was created.
    ///
    /// If the query does not [fit](Self::fits) the object, the report is null and costs nothing.
    ///
    /// Epochs before `readable_from` can no longer be read: they left the lookback, or the user
    /// cleared them. Such an epoch loses its credit and pays nothing, like a pruned one. Every
    /// other epoch is charged as usual. If the whole share were refused, the contents and charges
    /// of one epoch would decide what another is charged.
    ///
    /// Before the report is released, apply the changes and store the object as durably as the
    /// ledger.
    ///
    /// # Errors
    /// If the ledger cannot be read. Then no share was taken.
    pub fn share<L: LedgerView>(
        &mut self,
        policies: &impl Policies,
        ledger: &L,
        query: &AttributionQuery,
        readable_from: EpochIndex,
    ) -> Result<(ReportAndDecision<Histogram>, LedgerChanges), L::Error> {
        let mut outcome = ReportAndDecision {
            report: query.null_report(),
            decision: Decision::default(),
        };
        let mut changes = LedgerChanges::default();
        let Some((caller, scope)) = self.accept(query) else {
            return Ok((outcome, changes));
        };
        let own = |credit: &&CreditedImpression| {
            credit.permitted & (1 << caller) != 0 && scope.contains(credit)
        };
        let querier = Filter::QuerierBudget(query.request.querier);
        for &epoch in &self.epochs {
            let credits = || {
                let of_epoch = |credit: &&CreditedImpression| credit.epoch == epoch;
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
            // As for any report: the individual sensitivity if the window has one epoch, otherwise
            // the worst case.
            let sensitivity = if self.single_epoch {
                let mut alone = query.null_report();
                credits().for_each(|credit| alone.add(credit.histogram_index, credit.value));
                alone.total()
            } else {
                2 * u64::from(query.terms.value)
            };
            let asked = query.terms.noise.loss(sensitivity, policy.arithmetic());
            let capacity = policy.capacities().querier_budget;
            let checks = outcome.decision.checks_mut();
            if !asked.is_zero() && capacity != Capacity::Unlimited {
                checks.push(Check::new(epoch, querier, capacity, asked));
            }
            let fate = match first_shortfall(ledger, epoch, &mut checks[mark..])? {
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
        self.taken.push(scope);
        Ok((outcome, changes))
    }

    /// Forgets a site at its request, as [`Impression::without`](crate::Impression::without) does
    /// for impressions.
    ///
    /// The credit of impressions that the site saved is removed. The site can no longer take the
    /// credit of impressions that name their conversion callers. If it is the conversion site, all
    /// credit is removed, because the object does not record which impressions only that site may
    /// measure. What was paid stays paid.
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

    /// Every site that the object refers to, some more than once. The application must not give
    /// their numbers to other sites.
    pub fn sites(&self) -> impl Iterator<Item = SiteId> {
        let credits = self.credits.iter();
        let of_credits = credits.flat_map(|credit| [credit.site, credit.caller]);
        let taken = self.taken.iter();
        let of_taken = taken.flat_map(|scope| {
            let callers = scope.impression_callers.iter();
            scope.impression_sites.iter().chain(callers).copied()
        });
        let own = [self.conversion_site].into_iter();
        own.chain(self.callers.iter().copied())
            .chain(of_credits)
            .chain(of_taken)
    }

    /// All data of the object, for a store.
    pub fn parts(&self) -> AttributionObjectData {
        self.clone().into()
    }

    /// The conversion site.
    pub fn conversion_site(&self) -> SiteId {
        self.conversion_site
    }

    /// The epoch in which the object was created. A store must decide by this, and never by what
    /// was paid, when to forget an object. Otherwise the credit of one epoch would depend on
    /// whether another had anything to pay for.
    pub fn created(&self) -> EpochIndex {
        self.created
    }

    /// True if a share fits: it comes from exactly one caller, and that caller is a participant. It
    /// agrees with the object on the conversion site, value, credit and noise. It asks for nothing
    /// that was taken before, and fewer shares were taken than the query allows. A
    /// share that does not fit is null and costs nothing.
    pub fn fits(&self, query: &AttributionQuery) -> bool {
        self.accept(query).is_some()
    }

    /// The epochs that were paid for when the object was created.
    pub fn epochs(&self) -> &[EpochIndex] {
        &self.epochs
    }

    /// The index of the caller and the scope it asks for, or `None` if the query does not fit.
    fn accept(&self, query: &AttributionQuery) -> Option<(usize, ShareScope)> {
        let [caller] = query.callers.as_slice() else {
            return None;
        };
        let caller = self.callers.iter().position(|other| other == caller)?;
        let scope = ShareScope::of(query);
        let fits = query.request.conversion_site == self.conversion_site
            && self.taken.len() < query.max_shares
            && query.terms == self.terms
            && !self.taken.iter().any(|taken| taken.overlaps(&scope));
        fits.then_some((caller, scope))
    }
}

/// All data of the object, for a store.
impl From<AttributionObject> for AttributionObjectData {
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

/// The object that a store has kept. Fails if its epsilon is out of range or its sensitivity is 0.
impl TryFrom<AttributionObjectData> for AttributionObject {
    type Error = EpsilonError;

    fn try_from(parts: AttributionObjectData) -> Result<Self, EpsilonError> {
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

/// The impressions that get credit.
#[derive(Debug, Default)]
struct Snapshot(Vec<CreditedImpression>);

/// Needed so that the engine can compute it. It is private to this file and stays in the object.
impl Release for Snapshot {}

/// An attribution whose result is the credit of each impression, for all queriers together.
struct SnapshotQuery<'q>(&'q AttributionQuery);

/// A store that finds the same events for a [`SnapshotQuery`] as for the query it wraps.
struct Snapshots<'e, E>(&'e E);

impl<E: EventStore<AttributionQuery>> EventStore<SnapshotQuery<'_>> for Snapshots<'_, E> {
    type Error = E::Error;

    fn find(
        &self,
        epoch: EpochIndex,
        query: &SnapshotQuery<'_>,
        found: &mut Vec<Relevant<MatchedImpression>>,
    ) -> Result<(), E::Error> {
        self.0.find(epoch, query.0, found)
    }
}

impl Query for SnapshotQuery<'_> {
    type Event<'e> = super::Impression<'e>;
    type Detail = MatchedImpression;
    type Report = Snapshot;

    fn request(&self) -> ReportRequest {
        self.0.request()
    }

    fn noise(&self) -> Noise {
        self.0.noise()
    }

    fn relevant(&self, impression: super::Impression<'_>) -> Option<MatchedImpression> {
        self.0.relevant(impression)
    }

    fn keep_first(&self, events: &mut Vec<Relevant<MatchedImpression>>, begin: usize) {
        self.0.keep_first(events, begin);
    }

    fn report(
        &self,
        events: &mut [Relevant<MatchedImpression>],
        draws: &mut Draws<'_>,
        Snapshot(credits): &mut Snapshot,
    ) {
        credits.clear();
        let credited = self
            .0
            .credited(events, draws)
            .map(|(event, value)| CreditedImpression {
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

    /// The total credit. Each querier chooses its own buckets, so no credit counts as outside the
    /// histogram.
    fn individual_sensitivity(&self, Snapshot(credits): &Snapshot) -> u64 {
        credits.iter().map(|credit| u64::from(credit.value)).sum()
    }

    fn epoch_sensitivity(&self, events: &[Relevant<MatchedImpression>]) -> u64 {
        self.0.epoch_sensitivity(events)
    }

    fn site_sensitivity(&self, events: &[Relevant<MatchedImpression>]) -> u64 {
        self.0.site_sensitivity(events)
    }
}
