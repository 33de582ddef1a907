//! The ledger: every filter and domain cap of one device.

use std::convert::Infallible;
use std::num::NonZeroU32;

use thiserror::Error;

use crate::epochs::{Epochs, Recycle};
use crate::small_map::SmallMap;
use crate::{
    Balance, Capacities, Capacity, Charge, Check, EpochIndex, Filter, FilterKind, MicroEpsilon,
    Policy, SiteId, UserAction,
};

/// A device's filters and caps as the engine reads them. It decides from these alone, and changes
/// nothing.
///
/// What an implementation must guarantee, because the proofs need it:
///
/// * the capacity of a filter never changes, and a filter that was never charged has consumed
///   nothing;
/// * an epoch that was pruned stays pruned: its filters pay nothing ever again.
pub trait LedgerView {
    /// Why it could not be read.
    type Error;

    /// The first epoch whose filters are still kept.
    fn first_epoch(&self) -> Result<EpochIndex, Self::Error>;

    /// Fills in what the filter of each check holds. All are of one epoch.
    fn look_up(&self, epoch: EpochIndex, checks: &mut [Check]) -> Result<(), Self::Error>;

    /// Whether a user action may involve one more site in an epoch.
    fn admission(
        &self,
        action: UserAction,
        epoch: EpochIndex,
        site: SiteId,
    ) -> Result<Admission, Self::Error>;
}

/// Where a device's filters and caps are kept: in memory ([`Ledger`]) or on disk.
///
/// A report is made in two steps. The engine reads through a [`LedgerView`] and decides; then the
/// store commits the [`Changes`] that pay for the report. What an implementation must guarantee
/// besides:
///
/// * the reads of one report and the commit of its changes are one transaction: nothing else is
///   committed between them;
/// * a commit is all or nothing, and durable before the report is released.
pub trait LedgerStore: LedgerView {
    /// Makes all changes, or none of them.
    fn commit(&mut self, changes: &Changes) -> Result<(), CommitError<Self::Error>>;
}

/// What the domain cap says of a site under a user action (the paper's Def. of the per-action
/// domain cap).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It needs no admission: it is admitted already, or there is no cap.
    Granted,
    /// It would be one more, and there is room.
    Room,
    /// The cap is reached, or the action has ended.
    Refused,
}

/// A site to admit under a user action, in one epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admit {
    /// The user action.
    pub user_action: UserAction,
    /// The epoch.
    pub epoch: EpochIndex,
    /// The site.
    pub site: SiteId,
}

/// What one report changes in the ledger.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Sites admitted under a user action. They stay admitted also when nothing is charged.
    pub admissions: Vec<Admit>,
    /// Losses to take, all or none.
    pub charges: Vec<Charge>,
}

impl Changes {
    pub(crate) fn clear(&mut self) {
        self.admissions.clear();
        self.charges.clear();
    }
}

/// Why changes were not committed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CommitError<E> {
    /// Some filters could not pay. It cannot happen while reads and commit are one transaction.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The store failed.
    #[error("the ledger could not be written")]
    Store(#[source] E),
}

/// Why changes were refused. None was made.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refusal {
    /// Filters that could not pay, with what each held and what was asked of it; never empty.
    #[error(
        "{} of the charged filters cannot pay; {}",
        .0.len(),
        .0.first().map(ToString::to_string).unwrap_or_default()
    )]
    Filters(Vec<Check>),
    /// A user action that may not involve the site.
    #[error(
        "user action #{} may not involve site #{} in epoch {}",
        .0.user_action.0, .0.site.0, .0.epoch.0
    )]
    Admission(Admit),
}

/// The ledger in memory.
///
/// Filters come into being when they are first charged; an unlimited filter always pays and keeps
/// no record.
#[derive(Debug, Clone)]
pub struct Ledger {
    capacities: Capacities,
    domain_cap: Option<NonZeroU32>,
    epochs: Epochs<EpochLedger>,
    /// User actions with smaller ids have ended.
    first_open_action: UserAction,
}

#[derive(Debug, Clone, Default)]
struct EpochLedger {
    consumed: SmallMap<FilterKey, MicroEpsilon>,
    admitted: AdmittedSites,
}

impl Recycle for EpochLedger {
    fn recycle(&mut self) {
        self.consumed.clear();
        self.admitted.clear();
    }
}

impl Ledger {
    /// An empty ledger with the capacities and the domain cap of a policy.
    pub fn new(policy: &Policy) -> Self {
        Self {
            capacities: *policy.capacities(),
            domain_cap: policy.domain_cap(),
            epochs: Epochs::default(),
            first_open_action: UserAction(0),
        }
    }

    /// What a filter holds.
    #[inline]
    pub fn balance(&self, epoch: EpochIndex, filter: Filter) -> Balance {
        let mut check = [Check::new(epoch, filter, MicroEpsilon::ZERO)];
        let Ok(()) = self.look_up(epoch, &mut check);
        check[0].balance
    }

    /// Takes every charge from its filter, or none of them: the paper's atomic check (appendix,
    /// `AtomicFilterCheckAndConsume`). Zero charges touch nothing; several charges to one filter
    /// add up.
    ///
    /// # Errors
    /// If a filter cannot pay: all that could not, with what each held. Nothing has changed then.
    pub fn charge(&mut self, charges: &[Charge]) -> Result<(), Refusal> {
        let mut applied = 0;
        for of_epoch in charges.chunk_by(|a, b| a.epoch == b.epoch) {
            let mut record = self.epochs.get_or_create(of_epoch[0].epoch);
            for charge in of_epoch {
                let record = record.as_deref_mut();
                if apply(&self.capacities, record, charge).is_err() {
                    return Err(self.refuse(charges, applied));
                }
                applied += 1;
            }
        }
        Ok(())
    }

    /// What the domain cap says of `site` under `action`.
    #[inline]
    pub fn admission(&self, action: UserAction, epoch: EpochIndex, site: SiteId) -> Admission {
        let Some(cap) = self.domain_cap else {
            return Admission::Granted;
        };
        if action < self.first_open_action || epoch < self.epochs.first_kept() {
            return Admission::Refused;
        }
        let mut others = 0;
        if let Some(record) = self.epochs.get(epoch) {
            for admitted in record.admitted.under(action) {
                if admitted == site {
                    return Admission::Granted;
                }
                others += 1;
            }
        }
        if others < cap.get() as usize {
            Admission::Room
        } else {
            Admission::Refused
        }
    }

    /// Admits `site` under `action` if the domain cap has room, and says whether it is admitted.
    pub fn try_admit(&mut self, admit: Admit) -> bool {
        let Admit {
            user_action,
            epoch,
            site,
        } = admit;
        let Some(cap) = self.domain_cap else {
            return true;
        };
        if user_action < self.first_open_action {
            return false;
        }
        match self.epochs.get_or_create(epoch) {
            Some(record) => record.admitted.try_push(user_action, site, cap),
            None => false,
        }
    }

    /// Makes all changes, or none.
    ///
    /// # Errors
    /// If a site cannot be admitted, or a filter cannot pay.
    pub fn commit(&mut self, changes: &Changes) -> Result<(), Refusal> {
        for &admit in &changes.admissions {
            let Admit {
                user_action,
                epoch,
                site,
            } = admit;
            if self.admission(user_action, epoch, site) == Admission::Refused {
                return Err(Refusal::Admission(admit));
            }
        }
        self.charge(&changes.charges)?;
        for &admit in &changes.admissions {
            // The admissions of a request are in different epochs, so that none takes the room
            // of another.
            self.try_admit(admit);
        }
        Ok(())
    }

    /// Forgets the filters and caps of the epochs before `epoch`, which no request can reach any
    /// more. From then on those epochs pay nothing: forgetting must never refund.
    pub fn prune_before(&mut self, epoch: EpochIndex) {
        self.epochs.prune_before(epoch);
    }

    /// The first epoch that has not been pruned.
    pub fn first_epoch(&self) -> EpochIndex {
        self.epochs.first_kept()
    }

    /// Forgets what the user actions with ids below `action` were admitted to. They have ended:
    /// from then on they are admitted to nothing.
    pub fn end_user_actions_before(&mut self, action: UserAction) {
        if action <= self.first_open_action {
            return;
        }
        self.first_open_action = action;
        for record in self.epochs.values_mut() {
            record.admitted.forget_before(action);
        }
    }

    /// Empties it for another device, keeping its buffers.
    pub fn reset(&mut self) {
        self.epochs.reset();
        self.first_open_action = UserAction(0);
    }

    /// The epochs in which something was charged or admitted, oldest first.
    pub fn epochs(&self) -> impl Iterator<Item = EpochView<'_>> {
        self.epochs
            .iter()
            .filter(|(_, record)| !record.consumed.is_empty() || !record.admitted.is_empty())
            .map(|(epoch, record)| EpochView {
                ledger: self,
                epoch,
                record,
            })
    }

    /// Takes back the charges before `failed`, having asked the others, to name all that cannot
    /// pay.
    #[cold]
    fn refuse(&mut self, charges: &[Charge], failed: usize) -> Refusal {
        let mut applied: Vec<Charge> = charges[..failed].to_vec();
        let mut checks = Vec::new();
        for &charge in &charges[failed..] {
            let record = self.epochs.get_or_create(charge.epoch);
            match apply(&self.capacities, record, &charge) {
                Ok(()) => applied.push(charge),
                Err(check) => checks.push(check),
            }
        }
        // Newest first: an entry that a charge created is then the last one again.
        for charge in applied.into_iter().rev() {
            self.take_back(charge);
        }
        Refusal::Filters(checks)
    }

    fn take_back(&mut self, charge: Charge) {
        let unlimited = self.capacities.of(charge.filter.kind()) == Capacity::Unlimited;
        let record = match self.epochs.get_mut(charge.epoch) {
            Some(record) if !unlimited && !charge.amount.is_zero() => record,
            _ => return,
        };
        let (at, _) = record
            .consumed
            .entry(charge.filter.into(), MicroEpsilon::ZERO);
        let consumed = record.consumed.value_mut(at);
        *consumed = consumed.saturating_sub(charge.amount);
        if consumed.is_zero() {
            // No filter has an entry before it is charged, so this charge created it.
            record.consumed.pop();
        }
    }
}

/// Takes a charge from its filter in the record of its epoch, if the filter can pay.
#[inline]
fn apply(
    capacities: &Capacities,
    record: Option<&mut EpochLedger>,
    charge: &Charge,
) -> Result<(), Check> {
    let capacity = capacities.of(charge.filter.kind());
    if charge.amount.is_zero() || capacity == Capacity::Unlimited {
        return Ok(());
    }
    let refused = |consumed| Check {
        epoch: charge.epoch,
        filter: charge.filter,
        balance: Balance { capacity, consumed },
        asked: charge.amount,
    };
    let Some(record) = record else {
        // Pruned, hence spent.
        return Err(refused(capacity.amount().unwrap_or_default()));
    };
    let (at, created) = record
        .consumed
        .entry(charge.filter.into(), MicroEpsilon::ZERO);
    let consumed = record.consumed.value_mut(at);
    if !capacity.covers(*consumed, charge.amount) {
        let check = refused(*consumed);
        if created {
            record.consumed.pop();
        }
        return Err(check);
    }
    *consumed += charge.amount;
    Ok(())
}

impl LedgerView for Ledger {
    type Error = Infallible;

    #[inline]
    fn first_epoch(&self) -> Result<EpochIndex, Infallible> {
        Ok(Ledger::first_epoch(self))
    }

    #[inline]
    fn look_up(&self, epoch: EpochIndex, checks: &mut [Check]) -> Result<(), Infallible> {
        let spent = epoch < self.epochs.first_kept();
        let record = self.epochs.get(epoch).map(|record| &record.consumed);
        for check in checks {
            let capacity = self.capacities.of(check.filter.kind());
            let consumed = match (capacity, record) {
                (Capacity::Unlimited, _) => MicroEpsilon::ZERO,
                (Capacity::Finite(capacity), _) if spent => capacity,
                (Capacity::Finite(_), None) => MicroEpsilon::ZERO,
                (Capacity::Finite(_), Some(record)) => {
                    record.get(check.filter.into()).copied().unwrap_or_default()
                }
            };
            check.balance = Balance { capacity, consumed };
        }
        Ok(())
    }

    #[inline]
    fn admission(
        &self,
        action: UserAction,
        epoch: EpochIndex,
        site: SiteId,
    ) -> Result<Admission, Infallible> {
        Ok(Ledger::admission(self, action, epoch, site))
    }
}

impl LedgerStore for Ledger {
    #[inline]
    fn commit(&mut self, changes: &Changes) -> Result<(), CommitError<Infallible>> {
        Ok(Ledger::commit(self, changes)?)
    }
}

/// One epoch of a ledger, for inspection.
#[derive(Debug, Clone, Copy)]
pub struct EpochView<'a> {
    ledger: &'a Ledger,
    epoch: EpochIndex,
    record: &'a EpochLedger,
}

impl<'a> EpochView<'a> {
    /// Which epoch it is.
    pub fn epoch(&self) -> EpochIndex {
        self.epoch
    }

    /// Every filter that was ever charged, with what it holds, in the order of [`Filter`].
    pub fn filters(&self) -> Vec<(Filter, Balance)> {
        let mut filters: Vec<_> = self
            .record
            .consumed
            .iter()
            .map(|(&key, &consumed)| {
                let filter = Filter::from(key);
                let capacity = self.ledger.capacities.of(filter.kind());
                (filter, Balance { capacity, consumed })
            })
            .collect();
        filters.sort_unstable_by_key(|(filter, _)| *filter);
        filters
    }

    /// The user actions that were admitted to a site here and have not ended, by id.
    pub fn user_actions(&self) -> Vec<UserAction> {
        let mut actions: Vec<_> = self
            .record
            .admitted
            .newest
            .iter()
            .map(|(action, _)| *action)
            .collect();
        actions.sort_unstable();
        actions
    }

    /// The sites a user action was admitted to, newest first.
    pub fn admitted(&self, action: UserAction) -> impl Iterator<Item = SiteId> + use<'a> {
        self.record.admitted.under(action)
    }
}

/// A filter as two words, which are compared and hashed faster than an enum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct FilterKey {
    kind: FilterKind,
    id: u64,
}

impl From<Filter> for FilterKey {
    #[inline]
    fn from(filter: Filter) -> Self {
        let id = match filter {
            Filter::Global => 0,
            Filter::Querier(SiteId(id))
            | Filter::ImpressionSite(SiteId(id))
            | Filter::ConversionSite(SiteId(id)) => u64::from(id),
            Filter::UserAction(UserAction(id)) => id,
        };
        Self {
            kind: filter.kind(),
            id,
        }
    }
}

impl From<FilterKey> for Filter {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the id of a site was made from 32 bits"
    )]
    fn from(FilterKey { kind, id }: FilterKey) -> Self {
        match kind {
            FilterKind::Global => Self::Global,
            FilterKind::Querier => Self::Querier(SiteId(id as u32)),
            FilterKind::ImpressionSite => Self::ImpressionSite(SiteId(id as u32)),
            FilterKind::ConversionSite => Self::ConversionSite(SiteId(id as u32)),
            FilterKind::UserAction => Self::UserAction(UserAction(id)),
        }
    }
}

/// `accessed[user action]` of one epoch: a chain of sites for each action.
#[derive(Debug, Clone, Default)]
struct AdmittedSites {
    /// The newest link of each action's chain.
    newest: SmallMap<UserAction, u32>,
    links: Vec<(SiteId, u32)>,
}

/// Where a chain ends.
const END: u32 = u32::MAX;

impl AdmittedSites {
    fn under(&self, action: UserAction) -> impl Iterator<Item = SiteId> + use<'_> {
        let mut next = self.newest.get(action).copied().unwrap_or(END);
        std::iter::from_fn(move || {
            let &(site, earlier) = self.links.get(next as usize)?;
            next = earlier;
            Some(site)
        })
    }

    /// Adds a site under an action, if it is there already or the cap has room.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "four billion admissions of an epoch would not fit in memory"
    )]
    fn try_push(&mut self, action: UserAction, site: SiteId, cap: NonZeroU32) -> bool {
        let link = self.links.len() as u32;
        let (at, _) = self.newest.entry(action, END);
        let newest = self.newest.value_mut(at);
        let (mut next, mut others) = (*newest, 0);
        while let Some(&(admitted, earlier)) = self.links.get(next as usize) {
            if admitted == site {
                return true;
            }
            others += 1;
            next = earlier;
        }
        if others >= cap.get() {
            return false;
        }
        self.links.push((site, *newest));
        *newest = link;
        true
    }

    fn forget_before(&mut self, action: UserAction) {
        let kept: Vec<(UserAction, Vec<SiteId>)> = self
            .newest
            .iter()
            .filter(|(other, _)| **other >= action)
            .map(|(&other, _)| (other, self.under(other).collect()))
            .collect();
        self.clear();
        for (action, sites) in kept {
            for site in sites.into_iter().rev() {
                self.try_push(action, site, NonZeroU32::MAX);
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.newest.is_empty()
    }

    fn clear(&mut self) {
        self.newest.clear();
        self.links.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const E: EpochIndex = EpochIndex(0);

    fn ledger() -> Ledger {
        let policy = Policy::builder()
            .querier(1.0)
            .global(2.0)
            .domain_cap(2)
            .build()
            .unwrap();
        Ledger::new(&policy)
    }

    fn charge(filter: Filter, micro: u64) -> Charge {
        Charge {
            epoch: E,
            filter,
            amount: MicroEpsilon::new(micro),
        }
    }

    fn admit(action: u64, epoch: EpochIndex, site: u32) -> Admit {
        Admit {
            user_action: UserAction(action),
            epoch,
            site: SiteId(site),
        }
    }

    #[test]
    fn a_refusal_names_every_filter_that_cannot_pay_and_changes_nothing() {
        let mut ledger = ledger();
        let a = Filter::Querier(SiteId(1));
        ledger.charge(&[charge(a, 900_000)]).unwrap();
        let before = ledger.clone();
        let refusal = ledger
            .charge(&[
                charge(Filter::ImpressionSite(SiteId(9)), 1),
                charge(a, 200_000),
                charge(Filter::Global, 3_000_000),
                charge(Filter::ConversionSite(SiteId(1)), 1),
            ])
            .unwrap_err();
        let Refusal::Filters(checks) = &refusal else {
            panic!("{refusal}")
        };
        let short: Vec<_> = checks
            .iter()
            .map(|check| (check.filter, check.short_by().get()))
            .collect();
        assert_eq!(short, [(a, 100_000), (Filter::Global, 1_000_000)]);
        assert_eq!(
            refusal.to_string(),
            "2 of the charged filters cannot pay; querier budget of site #1 in epoch 0: \
             capacity 1, consumed 0.9, asked 0.2"
        );
        let filters = |ledger: &Ledger| ledger.epochs().next().unwrap().filters();
        assert_eq!(filters(&ledger), filters(&before));
    }

    #[test]
    fn charges_to_one_filter_add_up() {
        let mut ledger = ledger();
        let twice = [charge(Filter::Global, 1_500_000); 2];
        let Err(Refusal::Filters(checks)) = ledger.charge(&twice) else {
            panic!("charged twice")
        };
        assert_eq!(checks[0].balance.consumed.get(), 1_500_000);
        assert_eq!(ledger.epochs().count(), 0);
    }

    #[test]
    fn pruning_never_refunds() {
        let mut ledger = ledger();
        ledger.charge(&[charge(Filter::Global, 2_000_000)]).unwrap();
        ledger.prune_before(EpochIndex(1));
        assert!(ledger.charge(&[charge(Filter::Global, 1)]).is_err());
        let balance = ledger.balance(E, Filter::Global);
        assert_eq!(balance.remaining(), Some(MicroEpsilon::ZERO));
        assert!(!ledger.try_admit(admit(1, E, 1)));
        ledger.prune_before(EpochIndex(-5));
        assert!(ledger.charge(&[charge(Filter::Global, 1)]).is_err());
    }

    #[test]
    fn changes_are_made_as_a_whole_or_not_at_all() {
        let mut ledger = ledger();
        for site in [1, 2] {
            assert!(ledger.try_admit(admit(1, E, site)));
        }
        let changes = Changes {
            admissions: vec![admit(1, E, 3)],
            charges: vec![charge(Filter::Global, 1)],
        };
        let refusal = ledger.commit(&changes).unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "user action #1 may not involve site #3 in epoch 0"
        );
        let changes = Changes {
            admissions: vec![admit(2, E, 3)],
            charges: vec![charge(Filter::Global, 2_000_001)],
        };
        assert!(ledger.commit(&changes).is_err());
        let view = ledger.epochs().next().unwrap();
        assert_eq!(view.filters(), []);
        assert_eq!(view.user_actions(), [UserAction(1)]);
    }

    #[test]
    fn the_cap_counts_distinct_sites_per_action_and_epoch() {
        let mut ledger = ledger();
        for (site, admitted) in [(1, true), (2, true), (1, true), (3, false), (2, true)] {
            assert_eq!(ledger.try_admit(admit(1, E, site)), admitted, "{site}");
        }
        assert!(ledger.try_admit(admit(2, E, 3)));
        assert!(ledger.try_admit(admit(1, EpochIndex(1), 3)));
    }

    #[test]
    fn an_action_that_has_ended_is_admitted_to_nothing() {
        let mut ledger = ledger();
        for action in 1..=3 {
            assert!(ledger.try_admit(admit(action, E, 1)));
            assert!(ledger.try_admit(admit(action, E, 2)));
        }
        ledger.end_user_actions_before(UserAction(3));
        assert!(!ledger.try_admit(admit(1, E, 1)));
        assert!(!ledger.try_admit(admit(2, E, 5)));
        assert!(ledger.try_admit(admit(3, E, 1)));
        assert!(!ledger.try_admit(admit(3, E, 5)));
        let view = ledger.epochs().next().unwrap();
        assert_eq!(view.user_actions(), [UserAction(3)]);
        assert_eq!(
            view.admitted(UserAction(3)).collect::<Vec<_>>(),
            [SiteId(2), SiteId(1)]
        );
    }
}
