//! Report generation: the paper's Alg. 2 on one device, for any kind of event and query.
//!
//! [`generate_report`] reads events and filters and decides. It changes neither. The charges and
//! admissions that pay for the report are returned as [`LedgerChanges`]. They must be applied in
//! the same transaction in which they were decided. Everything has been checked by then, so
//! applying them cannot be refused.
//!
//! The guarantee is sound because nothing that is stored in one epoch influences whether another
//! epoch passes or what it is charged. So every epoch is decided on its own, from its own events,
//! filters and caps. The events of different epochs come together only after every decision has
//! been made.

use crate::decision::{Cause, Decision, Fate};
use crate::ledger::{
    Admission, LedgerChanges, LedgerView, NewAdmission, admission, first_shortfall,
};
use crate::loss::{EpochLoss, epoch_loss, site_loss};
use crate::policy::{DepletedSites, OwnActionEvents, Policies, Policy};
use crate::query::{Draws, EventStore, Query, Relevant, ReportRequest};
use crate::{Capacity, Check, EpochIndex, Filter, MicroEpsilon, SiteId};

/// The result of a request, and the buffers it was computed in. Reuse one workspace for many
/// requests.
#[derive(Debug)]
pub struct Workspace<Q: Query> {
    report: Q::Report,
    decision: Decision,
    changes: LedgerChanges,
    /// The relevant events of the epochs that passed, followed by those of the epoch that is being
    /// decided.
    found: Vec<Relevant<Q::Detail>>,
    /// The loss of each relevant impression site of the epoch that is being decided, by site.
    site_losses: Vec<(SiteId, MicroEpsilon)>,
    drawn: Vec<f64>,
}

impl<Q: Query> Default for Workspace<Q> {
    fn default() -> Self {
        Self {
            report: Q::Report::default(),
            decision: Decision::default(),
            changes: LedgerChanges::default(),
            found: Vec::new(),
            site_losses: Vec::new(),
            drawn: Vec::new(),
        }
    }
}

impl<Q: Query> Workspace<Q> {
    /// The report. Release it only after the changes have been applied.
    pub fn report(&self) -> &Q::Report {
        &self.report
    }

    /// The decision: what happened and why. It must stay on the device.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// The charges and admissions that pay for the report.
    pub fn changes(&self) -> &LedgerChanges {
        &self.changes
    }

    /// The report, the decision and the changes, without the buffers.
    pub fn into_parts(self) -> (Q::Report, Decision, LedgerChanges) {
        (self.report, self.decision, self.changes)
    }

    fn clear(&mut self) {
        self.decision.clear();
        self.changes.clear();
        self.found.clear();
        self.drawn.clear();
    }
}

/// Generates the report of a query into `workspace`, together with the changes that pay for the
/// report.
///
/// Each epoch is decided under its own policy. `draw` returns random numbers in [0, 1). Nothing is
/// charged until the changes are applied.
///
/// # Errors
/// If a store cannot be read. The contents of the workspace must not be used then.
pub fn generate_report<Q, E, L>(
    policies: &impl Policies,
    events: &E,
    ledger: &L,
    query: &Q,
    draw: &mut dyn FnMut() -> f64,
    workspace: &mut Workspace<Q>,
) -> Result<(), L::Error>
where
    Q: Query,
    E: EventStore<Q, Error = L::Error>,
    L: LedgerView,
{
    let payers = Payers::All;
    generate(policies, events, ledger, query, payers, draw, workspace)
}

/// The filters that pay for a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Payers {
    /// Every filter.
    All,
    /// All filters except the querier budget. Queriers pay from their own budgets when they take
    /// their shares of an attribution object (appendix, `AtomicFilterCheckAndConsume2`).
    Shared,
}

#[inline]
pub(crate) fn generate<Q, E, L>(
    policies: &impl Policies,
    events: &E,
    ledger: &L,
    query: &Q,
    payers: Payers,
    draw: &mut dyn FnMut() -> f64,
    workspace: &mut Workspace<Q>,
) -> Result<(), L::Error>
where
    Q: Query,
    E: EventStore<Q, Error = L::Error>,
    L: LedgerView,
{
    workspace.clear();
    let request = query.request();
    let mut generation = Generation {
        ledger,
        query,
        request,
        payers,
        draw,
        workspace,
    };
    let mut reported = false;
    for epoch in request.window.epochs() {
        let Some(policy) = policies.policy(epoch) else {
            let fate = Fate::Dropped(Cause::Pruned);
            generation.workspace.decision.record_unasked(epoch, fate);
            continue;
        };
        // 1. Domain cap.
        if !generation.admit_conversion_site(policy, epoch)? {
            let fate = Fate::Dropped(Cause::DomainCap);
            generation.workspace.decision.record_unasked(epoch, fate);
            continue;
        }
        // 2. Match.
        let begin = generation.workspace.found.len();
        events.find(epoch, query, &mut generation.workspace.found)?;
        generation.exclude_own_action(policy, begin);
        query.keep_first(&mut generation.workspace.found, begin);
        // 3. Losses, and 4. the check.
        if !generation.decide(policy, epoch, begin)? {
            generation.workspace.found.truncate(begin);
        } else if request.window.is_single() {
            // Release exactly the report that was paid for.
            reported = true;
        }
    }
    // Attribute over the epochs that passed.
    if !reported {
        generation.compute_report(0);
    }
    Ok(())
}

/// A report that is being generated.
struct Generation<'a, Q: Query, L> {
    ledger: &'a L,
    query: &'a Q,
    request: ReportRequest,
    payers: Payers,
    draw: &'a mut dyn FnMut() -> f64,
    workspace: &'a mut Workspace<Q>,
}

impl<Q: Query, L: LedgerView> Generation<'_, Q, L> {
    /// Admits the conversion site under the user action in this epoch, if the cap has room. The
    /// admission stands even if the epoch is dropped later.
    fn admit_conversion_site(
        &mut self,
        policy: &Policy,
        epoch: EpochIndex,
    ) -> Result<bool, L::Error> {
        let ReportRequest {
            user_action,
            conversion_site,
            ..
        } = self.request;
        let admission = admission(policy, self.ledger, user_action, epoch, conversion_site)?;
        if admission == Admission::Room {
            self.workspace.changes.admissions.push(NewAdmission {
                user_action,
                epoch,
                site: conversion_site,
            });
        }
        Ok(admission != Admission::Refused)
    }

    /// Removes events that the request's own user action saved, unless the policy includes them.
    fn exclude_own_action(&mut self, policy: &Policy, begin: usize) {
        if policy.own_action_events() == OwnActionEvents::Included {
            return;
        }
        let found = &mut self.workspace.found;
        let mut at = begin;
        while let Some(event) = found.get(at) {
            if event.user_action == self.request.user_action {
                found.swap_remove(at);
            } else {
                at += 1;
            }
        }
    }

    /// Decides whether the epoch whose relevant events begin at `begin` passes.
    fn decide(
        &mut self,
        policy: &Policy,
        epoch: EpochIndex,
        begin: usize,
    ) -> Result<bool, L::Error> {
        let matched = self.workspace.found.len() - begin;
        if matched == 0 {
            let decision = &mut self.workspace.decision;
            decision.record_unasked(epoch, Fate::NothingRelevant);
            return Ok(false);
        }
        let first_check = self.workspace.decision.mark();
        let mut loss = self.losses(policy, begin);
        if policy.depleted_sites() == DepletedSites::DropSite {
            while self.drop_depleted_sites(policy, epoch, begin)? {
                loss = self.losses(policy, begin);
            }
        }
        let asked = self.workspace.decision.mark();
        // If every site was depleted, this check fails, and it lists every filter that cannot pay.
        let fate = match self.check(policy, epoch, loss)? {
            None => Fate::Passed,
            Some(cause) => Fate::Dropped(cause),
        };
        let Workspace {
            decision, changes, ..
        } = &mut *self.workspace;
        if fate == Fate::Passed {
            let paid = decision.checks_since(asked).iter().map(Check::charge);
            changes.charges.extend(paid);
        }
        decision.record(epoch, matched, loss.shared, fate, (first_check, asked));
        Ok(fate == Fate::Passed)
    }

    /// The losses that this report causes to the epoch and to each of its relevant impression
    /// sites. If the window has one epoch, this also computes the report, because the loss depends
    /// on the report.
    fn losses(&mut self, policy: &Policy, begin: usize) -> EpochLoss {
        let single = self.request.window.is_single();
        let individual = single.then(|| {
            self.compute_report(begin);
            self.query.individual_sensitivity(&self.workspace.report)
        });
        let Workspace {
            found, site_losses, ..
        } = &mut *self.workspace;
        let events = &mut found[begin..];
        let noise = self.query.noise();
        let worst_case = self.query.epoch_sensitivity(events);
        let loss = epoch_loss(policy, noise, worst_case, individual);

        site_losses.clear();
        if policy.capacities().impression_site_quota == Capacity::Unlimited {
            // Nobody asks for them.
            return loss;
        }
        let first = events.first().map(|event| event.site);
        if let Some(first) = first
            && events.iter().all(|event| event.site == first)
        {
            // The common case needs no order.
            let sensitivity = || self.query.site_sensitivity(events);
            let lost = site_loss(policy, noise, loss, single, 1, sensitivity);
            site_losses.push((first, lost));
            return loss;
        }
        events.sort_unstable_by_key(|event| (event.site, event.order));
        let of_one_site = |a: &Relevant<Q::Detail>, b: &Relevant<Q::Detail>| a.site == b.site;
        let sites = events.chunk_by(of_one_site).count();
        for of_site in events.chunk_by(of_one_site) {
            let sensitivity = || self.query.site_sensitivity(of_site);
            let lost = site_loss(policy, noise, loss, single, sites, sensitivity);
            site_losses.push((of_site[0].site, lost));
        }
        loss
    }

    /// Drops the events of the impression sites that cannot pay. Returns true if some were dropped
    /// and others are left.
    fn drop_depleted_sites(
        &mut self,
        policy: &Policy,
        epoch: EpochIndex,
        begin: usize,
    ) -> Result<bool, L::Error> {
        let Workspace {
            found,
            site_losses,
            decision,
            ..
        } = &mut *self.workspace;
        let mark = decision.mark();
        let capacity = policy.capacities().impression_site_quota;
        if capacity == Capacity::Unlimited {
            return Ok(false);
        }
        let checks = decision.checks_mut();
        for &(site, asked) in site_losses.iter() {
            let filter = Filter::ImpressionSiteQuota(site);
            checks.push(Check::new(epoch, filter, capacity, asked));
        }
        self.ledger.consumed(epoch, &mut checks[mark..])?;
        let mut at = 0;
        checks.retain(|check| {
            at += 1;
            at <= mark || !check.fits()
        });
        let depleted = decision.checks_since(mark);
        if depleted.is_empty() {
            return Ok(false);
        }
        let mut kept = begin;
        for at in begin..found.len() {
            let filter = Filter::ImpressionSiteQuota(found[at].site);
            // Both lists are sorted by site.
            if depleted
                .binary_search_by_key(&filter, |check| check.filter)
                .is_err()
            {
                found.swap(kept, at);
                kept += 1;
            }
        }
        found.truncate(kept);
        Ok(kept > begin)
    }

    /// Asks every filter whether it can pay, in the order in which causes are reported, and returns
    /// the first cause, if any.
    fn check(
        &mut self,
        policy: &Policy,
        epoch: EpochIndex,
        loss: EpochLoss,
    ) -> Result<Option<Cause>, L::Error> {
        let ReportRequest {
            querier,
            conversion_site,
            user_action,
            ..
        } = self.request;
        let of_querier = match self.payers {
            Payers::All => loss.querier,
            Payers::Shared => MicroEpsilon::ZERO,
        };
        let Workspace {
            decision,
            site_losses,
            ..
        } = &mut *self.workspace;
        let mark = decision.mark();
        let checks = decision.checks_mut();
        let capacities = policy.capacities();
        let mut ask = |filter: Filter, capacity: Capacity, asked: MicroEpsilon| {
            if capacity != Capacity::Unlimited && !asked.is_zero() {
                checks.push(Check::new(epoch, filter, capacity, asked));
            }
        };
        let filter = Filter::QuerierBudget(querier);
        ask(filter, capacities.querier_budget, of_querier);
        ask(Filter::GlobalBudget, capacities.global_budget, loss.shared);
        for &(site, lost) in site_losses.iter() {
            let filter = Filter::ImpressionSiteQuota(site);
            ask(filter, capacities.impression_site_quota, lost);
        }
        let filter = Filter::ConversionSiteQuota(conversion_site);
        ask(filter, capacities.conversion_site_quota, loss.shared);
        let filter = Filter::UserActionBudget(user_action);
        ask(filter, capacities.user_action_budget, loss.shared);
        let short = first_shortfall(self.ledger, epoch, &mut checks[mark..])?;
        Ok(short.map(Cause::Filter))
    }

    /// Computes the report from the found events from `begin` on.
    fn compute_report(&mut self, begin: usize) {
        let Workspace {
            report,
            found,
            drawn,
            ..
        } = &mut *self.workspace;
        let mut draws = Draws::new(self.draw, drawn);
        self.query.report(&mut found[begin..], &mut draws, report);
    }
}
