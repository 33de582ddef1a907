//! A device in memory: a policy, a ledger and a store of events.

use std::convert::Infallible;

use crate::attribution::{AttributionObject, AttributionQuery, Impression, ImpressionStore};
use crate::engine::{Workspace, generate_report};
use crate::event_log::EventLog;
use crate::ledger::{Admission, Admit, Ledger, LedgerView as _};
use crate::policy::KeptEpochs;
use crate::query::{EventStore, Query};
use crate::{
    Balance, Check, Decision, EpochIndex, Filter, Histogram, MicroEpsilon, Policy, SiteId,
    UserAction,
};

/// One device with everything in memory, for applications without a durable store, for tests and
/// for simulations.
///
/// A store on disk implements [`LedgerView`](crate::LedgerView) and [`EventStore`] and calls
/// [`generate_report`] in its transaction instead.
#[derive(Debug, Clone)]
pub struct Device<S> {
    policy: Policy,
    ledger: Ledger,
    events: S,
}

/// What a request gives: the report, and apart from it the decision.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a report that was paid for should be released"]
pub struct Outcome<R> {
    /// What may leave the device.
    pub report: R,
    /// What happened and why. It stays on the device.
    pub decision: Decision,
}

/// What became of a saved event. It stays on the device: a site is never told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Saved {
    /// It is stored.
    Kept,
    /// Its user action has admitted as many sites as it may.
    OverDomainCap,
    /// Its epoch is so old that it was pruned.
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

    /// Answers a query and pays for it. `draw` gives random numbers in [0, 1).
    pub fn report<Q>(&mut self, query: &Q, draw: &mut dyn FnMut() -> f64) -> Outcome<Q::Report>
    where
        Q: Query,
        S: EventStore<Q, Error = Infallible>,
    {
        let mut workspace = Workspace::default();
        self.report_in(query, draw, &mut workspace);
        let (report, decision, _) = workspace.into_parts();
        Outcome { report, decision }
    }

    /// Answers a query and pays for it, in buffers that are used again.
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

    /// What a filter holds. One of an epoch that was pruned has spent everything.
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

    /// The stored events. Removing some refunds nothing.
    pub fn events_mut(&mut self) -> &mut S {
        &mut self.events
    }

    /// Forgets what the user actions with ids below `action` were admitted to; they have ended.
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
    fn admit(&mut self, epoch: EpochIndex, site: SiteId, user_action: UserAction) -> Saved {
        if epoch < self.ledger.first_epoch() {
            return Saved::TooOld;
        }
        let Some(cap) = self.policy.domain_cap() else {
            return Saved::Kept;
        };
        let admit = Admit {
            user_action,
            epoch,
            site,
        };
        match self.ledger.admit_under(cap, admit) {
            Admission::Refused => Saved::OverDomainCap,
            Admission::Granted | Admission::Room => Saved::Kept,
        }
    }
}

impl Device<ImpressionStore> {
    /// Saves an impression in the current epoch (the paper's `SaveImpression`).
    pub fn save_impression(&mut self, epoch: EpochIndex, impression: &Impression<'_>) -> Saved {
        let saved = self.admit(epoch, impression.site, impression.user_action);
        if saved == Saved::Kept {
            self.events.save(epoch, impression);
        }
        saved
    }

    /// Creates the attribution object of a conversion, which several queriers with disjoint
    /// impressions share, and pays for it from the shared filters. See [`AttributionObject`].
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

    /// Gives a querier its share of an attribution object, and pays for it from its own budget.
    pub fn share(
        &mut self,
        object: &mut AttributionObject,
        query: &AttributionQuery,
    ) -> Outcome<Histogram> {
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

    /// Makes it a new device, keeping its buffers.
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
    ) -> Saved {
        let saved = self.admit(epoch, site, user_action);
        if saved == Saved::Kept {
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
