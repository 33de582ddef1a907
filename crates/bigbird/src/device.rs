//! A device in memory: a policy, a ledger and a store of events.

use std::convert::Infallible;

use crate::attribution::{AttributionObject, AttributionQuery, Impression, ImpressionStore};
use crate::engine::{Workspace, generate_report};
use crate::event_log::EventLog;
use crate::ledger::{Admission, Ledger, LedgerView as _, NewAdmission};
use crate::policy::KeptEpochs;
use crate::query::{EventStore, Query};
use crate::{
    Balance, Check, Decision, EpochIndex, Filter, Histogram, MicroEpsilon, Policy, SiteId,
    UserAction,
};

/// One device with everything in memory, for applications without a durable store, for tests and
/// for simulations.
///
/// A store on disk implements [`LedgerView`](crate::LedgerView) and [`EventStore`], and calls
/// [`generate_report`] within its transaction.
#[derive(Debug, Clone)]
pub struct Device<S> {
    policy: Policy,
    ledger: Ledger,
    events: S,
}

/// The result of a request: the report, and separately the decision.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a report that was paid for should be released"]
pub struct ReportAndDecision<R> {
    /// The report, which may leave the device.
    pub report: R,
    /// The decision: what happened and why. It must stay on the device.
    pub decision: Decision,
}

/// The outcome of saving an event. It must stay on the device: sites never learn the outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SaveResult {
    /// The event is stored.
    Kept,
    /// The event is not stored: its user action cannot admit another site.
    OverDomainCap,
    /// The event is not stored: its epoch was pruned.
    TooOld,
}

impl<S: Default> Device<S> {
    /// A new device.
    pub fn new(policy: Policy) -> Self {
        Self::with_events(policy, S::default())
    }
}

impl<S> Device<S> {
    /// A new device with a given store of events.
    pub fn with_events(policy: Policy, events: S) -> Self {
        Self {
            ledger: Ledger::new(),
            policy,
            events,
        }
    }

    /// Answers a query and pays for the report. `draw` returns random numbers in [0, 1).
    pub fn report<Q>(
        &mut self,
        query: &Q,
        draw: &mut dyn FnMut() -> f64,
    ) -> ReportAndDecision<Q::Report>
    where
        Q: Query,
        S: EventStore<Q, Error = Infallible>,
    {
        let mut workspace = Workspace::default();
        self.report_in(query, draw, &mut workspace);
        let (report, decision, _) = workspace.into_parts();
        ReportAndDecision { report, decision }
    }

    /// Answers a query and pays for the report, reusing the buffers of `workspace`.
    pub fn report_in<Q>(
        &mut self,
        query: &Q,
        draw: &mut dyn FnMut() -> f64,
        workspace: &mut Workspace<Q>,
    ) where
        Q: Query,
        S: EventStore<Q, Error = Infallible>,
    {
        let Ok(()) = generate_report(
            &self.policies(),
            &self.events,
            &self.ledger,
            query,
            draw,
            workspace,
        );
        self.ledger.apply(workspace.changes());
    }

    /// The policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The ledger.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The balance of a filter. The filters of pruned epochs have spent their whole capacity.
    pub fn balance(&self, epoch: EpochIndex, filter: Filter) -> Balance {
        let capacity = self.policy.capacities().of(filter.kind());
        let mut checks = [Check::new(epoch, filter, capacity, MicroEpsilon::ZERO)];
        let Ok(()) = self.ledger.consumed(epoch, &mut checks);
        let mut balance = checks[0].balance;
        if epoch < self.ledger.first_epoch() {
            balance.consumed = capacity.amount().unwrap_or_default();
        }
        balance
    }

    /// The stored events.
    pub fn events(&self) -> &S {
        &self.events
    }

    /// The stored events. Removing events refunds nothing.
    pub fn events_mut(&mut self) -> &mut S {
        &mut self.events
    }

    /// Ends the user actions with ids below `action`, and forgets which sites they admitted.
    pub fn end_user_actions_before(&mut self, action: UserAction) {
        self.ledger.end_user_actions_before(action);
    }

    fn policies(&self) -> KeptEpochs<'_> {
        KeptEpochs {
            policy: &self.policy,
            first: self.ledger.first_epoch(),
        }
    }

    /// Admits the site of an event that is being saved.
    fn admit(&mut self, epoch: EpochIndex, site: SiteId, user_action: UserAction) -> SaveResult {
        if epoch < self.ledger.first_epoch() {
            return SaveResult::TooOld;
        }
        let Some(cap) = self.policy.domain_cap() else {
            return SaveResult::Kept;
        };
        let admit = NewAdmission {
            user_action,
            epoch,
            site,
        };
        match self.ledger.admit_under(cap, admit) {
            Admission::Refused => SaveResult::OverDomainCap,
            Admission::Granted | Admission::Room => SaveResult::Kept,
        }
    }
}

impl Device<ImpressionStore> {
    /// Saves an impression in the current epoch (the paper's `SaveImpression`).
    pub fn save_impression(
        &mut self,
        epoch: EpochIndex,
        impression: &Impression<'_>,
    ) -> SaveResult {
        let saved = self.admit(epoch, impression.site, impression.user_action);
        if saved == SaveResult::Kept {
            self.events.save(epoch, impression);
        }
        saved
    }

    /// Creates the attribution object of a conversion, and pays for it from the shared filters.
    /// Several queriers with disjoint impressions can then take shares of it: see
    /// [`AttributionObject`].
    pub fn attribute(
        &mut self,
        query: &AttributionQuery,
        draw: &mut dyn FnMut() -> f64,
    ) -> (AttributionObject, Decision) {
        let policies = self.policies();
        let Ok((object, decision, changes)) =
            AttributionObject::create(&policies, &self.events, &self.ledger, query, draw);
        self.ledger.apply(&changes);
        (object, decision)
    }

    /// Gives a querier its share of an attribution object, and pays for it from that querier's
    /// budget.
    pub fn share(
        &mut self,
        object: &mut AttributionObject,
        query: &AttributionQuery,
    ) -> ReportAndDecision<Histogram> {
        let all = EpochIndex(i64::MIN);
        let Ok((outcome, changes)) = object.share(&self.policies(), &self.ledger, query, all);
        self.ledger.apply(&changes);
        outcome
    }

    /// Forgets the impressions and filters of the epochs before `epoch`.
    pub fn prune_before(&mut self, epoch: EpochIndex) {
        self.events.prune_before(epoch);
        self.ledger.prune_before(epoch);
    }

    /// Turns this into a new device, keeping its buffers.
    pub fn reset(&mut self) {
        self.events.reset();
        self.ledger.reset();
    }
}

impl<E> Device<EventLog<E>> {
    /// Saves an event of `site`, caused by `user_action`, in the current epoch.
    pub fn save(
        &mut self,
        epoch: EpochIndex,
        site: SiteId,
        user_action: UserAction,
        event: E,
    ) -> SaveResult {
        let saved = self.admit(epoch, site, user_action);
        if saved == SaveResult::Kept {
            self.events.save(epoch, site, user_action, event);
        }
        saved
    }

    /// Forgets the events and filters of the epochs before `epoch`.
    pub fn prune_before(&mut self, epoch: EpochIndex) {
        self.events.prune_before(epoch);
        self.ledger.prune_before(epoch);
    }
}
