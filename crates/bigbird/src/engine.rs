//! Report generation: the paper's Alg. 2 on one device, for any kind of event and query.
//!
//! [`generate_report`] reads events and filters and decides; it changes neither. What pays for the
//! report comes out as [`Changes`], which are applied in the transaction in which they were decided.
//! Everything was checked by then: nothing is left that could be refused.
//!
//! Nothing that one epoch holds may influence whether another passes or what it is charged: that
//! is what makes the guarantee sound. So every epoch is decided on its own, from its own events,
//! filters and caps, and the events of all epochs meet only after every decision is taken.

use crate::decision::{Cause, Decision, Fate};
use crate::ledger::{Admission, Admit, Changes, LedgerView, admission, first_short};
use crate::loss::{EpochLoss, epoch_loss, site_loss};
use crate::policy::{DepletedSites, Policies, Policy};
use crate::query::{Draws, EventStore, Query, Relevant, Request};
use crate::{Capacity, Check, EpochIndex, Filter, MicroEpsilon, SiteId};

/// The result of a request, and the buffers it was computed in: use one for many requests.
#[derive(Debug)]
pub struct Workspace<Q: Query> {
    report: Q::Report,
    decision: Decision,
    changes: Changes,
    /// Relevant events: of the epochs that passed, then of the epoch at hand.
    found: Vec<Relevant<Q::Detail>>,
    /// What each relevant impression site of the epoch at hand loses, by site.
    site_losses: Vec<(SiteId, MicroEpsilon)>,
    drawn: Vec<f64>,
}

impl<Q: Query> Default for Workspace<Q> {
    fn default() -> Self {
        Self {
            report: Q::Report::default(),
            decision: Decision::default(),
            changes: Changes::default(),
            found: Vec::new(),
            site_losses: Vec::new(),
            drawn: Vec::new(),
        }
    }
}

impl<Q: Query> Workspace<Q> {
    /// The report. Release it only once the changes are applied.
    pub fn report(&self) -> &Q::Report {
        &self.report
    }

    /// What happened and why; it stays on the device.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// What pays for the report.
    pub fn changes(&self) -> &Changes {
        &self.changes
    }

    /// The report, the decision and the changes, when the buffers are not needed any more.
    pub fn into_parts(self) -> (Q::Report, Decision, Changes) {
        (self.report, self.decision, self.changes)
    }

    fn clear(&mut self) {
        self.decision.clear();
        self.changes.clear();
        self.found.clear();
        self.drawn.clear();
    }
}

/// Generates the report of a query into `workspace`, together with what pays for it.
///
/// Each epoch is decided under its own policy. `draw` gives random numbers in [0, 1). Nothing is
/// charged until the changes are applied.
///
/// # Errors
/// Whatever the stores say when they cannot be read. The workspace is of no use then.
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

/// Who pays for a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Payers {
    /// Every filter.
    All,
    /// All but the querier budget: queriers pay for themselves when they take their share of an
    /// attribution object (appendix, `AtomicFilterCheckAndConsume2`).
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
            // The report that was paid for is the one that is released.
            reported = true;
        }
    }
    // Attribute over what passed.
    if !reported {
        generation.compute_report(0);
    }
    Ok(())
}

/// One report in the making.
struct Generation<'a, Q: Query, L> {
    ledger: &'a L,
    query: &'a Q,
    request: Request,
    payers: Payers,
    draw: &'a mut dyn FnMut() -> f64,
    workspace: &'a mut Workspace<Q>,
}

impl<Q: Query, L: LedgerView> Generation<'_, Q, L> {
    /// Admits the conversion site under the user action in this epoch, if the cap has room. An
    /// admission is not taken back by what follows.
    fn admit_conversion_site(
        &mut self,
        policy: &Policy,
        epoch: EpochIndex,
    ) -> Result<bool, L::Error> {
        let Request {
            user_action,
            conversion_site,
            ..
        } = self.request;
        let admission = admission(policy, self.ledger, user_action, epoch, conversion_site)?;
        if admission == Admission::Room {
            self.workspace.changes.admissions.push(Admit {
                user_action,
                epoch,
                site: conversion_site,
            });
        }
        Ok(admission != Admission::Refused)
    }

    /// A request never matches events of its own user action: one action alone would be stock and
    /// flow at once.
    fn exclude_own_action(&mut self, policy: &Policy, begin: usize) {
        if policy.matches_own_action() {
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

    /// Decides whether the epoch, whose relevant events begin at `begin`, passes.
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
        // If every site was depleted, this is the check that could not pass, and says all of why.
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

    /// What the epoch and each of its relevant impression sites lose by this report. With a window
    /// of one epoch the report is computed for it.
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
        if events.len() > 1 {
            events.sort_unstable_by_key(|event| (event.site, event.order));
        }
        let of_one_site = |a: &Relevant<Q::Detail>, b: &Relevant<Q::Detail>| a.site == b.site;
        let sites = events.chunk_by(of_one_site).count();
        for of_site in events.chunk_by(of_one_site) {
            let sensitivity = || self.query.site_sensitivity(of_site);
            let lost = site_loss(policy, noise, loss, single, sites, sensitivity);
            site_losses.push((of_site[0].site, lost));
        }
        loss
    }

    /// Drops the events of the impression sites that cannot pay, and says whether there were any.
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
        let capacity = policy.capacities().impression_site;
        if capacity == Capacity::Unlimited {
            return Ok(false);
        }
        let checks = decision.checks_mut();
        for &(site, asked) in site_losses.iter() {
            let filter = Filter::ImpressionSite(site);
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
            let filter = Filter::ImpressionSite(found[at].site);
            // Both lists are in the order of sites.
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

    /// Asks every filter whether it can pay, in the order in which causes are named, and gives the
    /// first that cannot.
    fn check(
        &mut self,
        policy: &Policy,
        epoch: EpochIndex,
        loss: EpochLoss,
    ) -> Result<Option<Cause>, L::Error> {
        let Request {
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
        let mut ask = |filter: Filter, asked: MicroEpsilon| {
            let capacity = policy.capacities().of(filter.kind());
            if !asked.is_zero() && capacity != Capacity::Unlimited {
                checks.push(Check::new(epoch, filter, capacity, asked));
            }
        };
        ask(Filter::Querier(querier), of_querier);
        ask(Filter::Global, loss.shared);
        for &(site, lost) in site_losses.iter() {
            ask(Filter::ImpressionSite(site), lost);
        }
        ask(Filter::ConversionSite(conversion_site), loss.shared);
        ask(Filter::UserAction(user_action), loss.shared);
        let short = first_short(self.ledger, epoch, &mut checks[mark..])?;
        Ok(short.map(Cause::Filter))
    }

    /// Computes the report from the found events that begin at `begin`.
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
