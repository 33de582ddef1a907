//! The ledger: what every filter and domain cap of one device holds, and the two rules about them.

use std::convert::Infallible;
use std::num::NonZeroU32;

use crate::epochs::{Epochs, Recycle};
use crate::small_map::SmallMap;
use crate::{
    Charge, Check, EpochIndex, Filter, FilterKind, MicroEpsilon, Policy, SiteId, UserAction,
};

/// A device's filters and caps as rows, wherever they are kept: in memory ([`Ledger`]) or on disk.
/// The engine decides from these alone, and changes nothing.
///
/// What an implementation must guarantee, because the proofs need it: the reads of one report, and
/// the application of the [`Changes`] that pay for it, are one transaction, durable before the
/// report is released.
pub trait LedgerView {
    /// Why it could not be read.
    type Error;

    /// Fills in what the filter of each check has consumed: nothing, if it was never charged. All
    /// are of one epoch.
    fn consumed(&self, epoch: EpochIndex, checks: &mut [Check]) -> Result<(), Self::Error>;

    /// What is known of a site under a user action in an epoch.
    fn admitted(
        &self,
        action: UserAction,
        epoch: EpochIndex,
        site: SiteId,
    ) -> Result<Admitted, Self::Error>;
}

/// The sites of a user action in an epoch, as far as one site is concerned (the paper's
/// `accessed[user action][epoch]`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admitted {
    /// Whether the site is among them.
    pub already: bool,
    /// How many there are.
    pub sites: u32,
}

/// What the domain cap says of a site under a user action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It needs no admission: it is admitted already, or there is no cap.
    Granted,
    /// It would be one more, and there is room.
    Room,
    /// The cap is reached, or the action has ended.
    Refused,
}

/// The domain cap (the paper's Def. of the per-action domain cap): whether a user action may involve
/// a site in an epoch that was not pruned.
///
/// # Errors
/// Whatever the ledger says when it cannot be read.
#[inline]
pub fn admission<L: LedgerView>(
    policy: &Policy,
    ledger: &L,
    action: UserAction,
    epoch: EpochIndex,
    site: SiteId,
) -> Result<Admission, L::Error> {
    match policy.domain_cap() {
        None => Ok(Admission::Granted),
        Some(cap) => Ok(ledger.admitted(action, epoch, site)?.under(cap)),
    }
}

impl Admitted {
    /// What a cap says of the site.
    #[inline]
    pub(crate) fn under(self, cap: NonZeroU32) -> Admission {
        match self {
            Self { already: true, .. } => Admission::Granted,
            Self { sites, .. } if sites < cap.get() => Admission::Room,
            Self { .. } => Admission::Refused,
        }
    }
}

/// The atomic check (the paper's appendix, `AtomicFilterCheckAndConsume`): asks every filter of an
/// epoch whether it can pay, and gives the kind of the first that cannot. If there is one, nothing
/// may be charged anywhere in this epoch; if there is none, the charges of all checks together fit.
///
/// The checks are in the order of their filters; several to one filter add up.
///
/// # Errors
/// Whatever the ledger says when it cannot be read.
#[inline]
pub fn first_short<L: LedgerView>(
    ledger: &L,
    epoch: EpochIndex,
    checks: &mut [Check],
) -> Result<Option<FilterKind>, L::Error> {
    ledger.consumed(epoch, checks)?;
    let mut short = None;
    let mut before: Option<&Check> = None;
    for check in checks {
        if let Some(before) = before
            && before.filter == check.filter
        {
            check.balance.consumed = before.balance.consumed + before.asked;
        }
        if short.is_none() && !check.fits() {
            short = Some(check.filter.kind());
        }
        before = Some(check);
    }
    Ok(short)
}

/// A site to admit under a user action, in one epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub struct Admit {
    /// The user action.
    pub user_action: UserAction,
    /// The epoch.
    pub epoch: EpochIndex,
    /// The site.
    pub site: SiteId,
}

/// What one report changes in the ledger. All of it was decided and checked: to apply it is to write
/// it down.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Changes {
    /// Sites that were not admitted under a user action. They stay admitted also when nothing is
    /// charged.
    pub admissions: Vec<Admit>,
    /// Losses that filters pay: what each has consumed grows by the amount, which is never zero.
    pub charges: Vec<Charge>,
}

impl Changes {
    pub(crate) fn clear(&mut self) {
        self.admissions.clear();
        self.charges.clear();
    }
}

/// The ledger in memory: rows, and no rule about them.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
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
    /// An empty ledger.
    pub fn new() -> Self {
        Self::default()
    }

    /// Writes changes down. Of an epoch that was pruned nothing is kept.
    #[inline]
    pub fn apply(&mut self, changes: &Changes) {
        for of_epoch in changes.charges.chunk_by(|a, b| a.epoch == b.epoch) {
            let Some(record) = self.epochs.get_or_create(of_epoch[0].epoch) else {
                continue;
            };
            for charge in of_epoch {
                let consumed = &mut record.consumed;
                let (at, _) = consumed.entry(charge.filter.into(), MicroEpsilon::ZERO);
                *consumed.value_mut(at) += charge.amount;
            }
        }
        for &admit in &changes.admissions {
            self.admit(admit);
        }
    }

    /// Writes one admission down.
    #[inline]
    fn admit(&mut self, admit: Admit) {
        if let Some(record) = self.epochs.get_or_create(admit.epoch) {
            record.admitted.push(admit.user_action, admit.site);
        }
    }

    /// Admits a site if a cap has room, and tells what the cap says: [`admission`] and what follows
    /// from it, in one look.
    #[inline]
    pub(crate) fn admit_under(&mut self, cap: NonZeroU32, admit: Admit) -> Admission {
        if admit.user_action < self.first_open_action {
            return ENDED.under(cap);
        }
        let Some(record) = self.epochs.get_or_create(admit.epoch) else {
            return Admission::Refused;
        };
        let admission = record
            .admitted
            .about(admit.user_action, admit.site)
            .under(cap);
        if admission == Admission::Room {
            record.admitted.push(admit.user_action, admit.site);
        }
        admission
    }

    /// Forgets the filters and caps of the epochs before `epoch`, which no request can reach any
    /// more.
    pub fn prune_before(&mut self, epoch: EpochIndex) {
        self.epochs.prune_before(epoch);
    }

    /// The first epoch that has not been pruned.
    pub fn first_epoch(&self) -> EpochIndex {
        self.epochs.first_kept()
    }

    /// Forgets what user actions were admitted to in the epochs before `epoch`. What was paid stays
    /// paid, and the epochs stay open.
    pub fn forget_admissions_before(&mut self, epoch: EpochIndex) {
        for (index, record) in self.epochs.iter_mut() {
            if index < epoch {
                record.admitted = AdmittedSites::default();
            }
        }
    }

    /// Forgets what the user actions with ids below `action` were admitted to. They have ended:
    /// from then on they have room for nothing.
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
            .map(|(epoch, record)| EpochView { epoch, record })
    }
}

impl LedgerView for Ledger {
    type Error = Infallible;

    #[inline]
    fn consumed(&self, epoch: EpochIndex, checks: &mut [Check]) -> Result<(), Infallible> {
        let record = self.epochs.get(epoch).map(|record| &record.consumed);
        for check in checks {
            let consumed = record.and_then(|record| record.get(check.filter.into()));
            check.balance.consumed = consumed.copied().unwrap_or_default();
        }
        Ok(())
    }

    #[inline]
    fn admitted(
        &self,
        action: UserAction,
        epoch: EpochIndex,
        site: SiteId,
    ) -> Result<Admitted, Infallible> {
        if action < self.first_open_action {
            return Ok(ENDED);
        }
        let record = self.epochs.get(epoch);
        Ok(record.map_or(NOBODY, |record| record.admitted.about(action, site)))
    }
}

/// What is known of any site under a user action that was admitted to none.
const NOBODY: Admitted = Admitted {
    already: false,
    sites: 0,
};

/// What is known of any site under a user action that has ended: there is room for nothing.
const ENDED: Admitted = Admitted {
    already: false,
    sites: u32::MAX,
};

/// One epoch of a ledger, for inspection.
#[derive(Debug, Clone, Copy)]
pub struct EpochView<'a> {
    epoch: EpochIndex,
    record: &'a EpochLedger,
}

impl<'a> EpochView<'a> {
    /// The epoch.
    pub fn epoch(&self) -> EpochIndex {
        self.epoch
    }

    /// Every filter that was ever charged, with what it has consumed, in the order of [`Filter`].
    pub fn filters(&self) -> Vec<(Filter, MicroEpsilon)> {
        let consumed = self.record.consumed.iter();
        let mut filters: Vec<_> = consumed
            .map(|(&key, &consumed)| (Filter::from(key), consumed))
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

    #[inline]
    fn about(&self, action: UserAction, site: SiteId) -> Admitted {
        let mut about = NOBODY;
        for other in self.under(action) {
            about.already |= other == site;
            about.sites += 1;
        }
        about
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "four billion admissions of an epoch would not fit in memory"
    )]
    fn push(&mut self, action: UserAction, site: SiteId) {
        let link = self.links.len() as u32;
        let (at, _) = self.newest.entry(action, END);
        let newest = self.newest.value_mut(at);
        self.links.push((site, *newest));
        *newest = link;
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
                self.push(action, site);
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
    use crate::Profile;

    const E: EpochIndex = EpochIndex(0);

    fn policy() -> Policy {
        let policy = Policy::builder().querier(1.0).global(2.0).domain_cap(2);
        policy.build().unwrap()
    }

    fn check(filter: Filter, micro: u64) -> Check {
        let capacity = policy().capacities().of(filter.kind());
        Check::new(E, filter, capacity, MicroEpsilon::new(micro))
    }

    fn charged(ledger: &mut Ledger, checks: &[Check]) {
        let charges = checks.iter().map(Check::charge).collect();
        let admissions = Vec::new();
        ledger.apply(&Changes {
            admissions,
            charges,
        });
    }

    /// Admits a site if the cap lets it.
    fn admit(ledger: &mut Ledger, action: u64, epoch: EpochIndex, site: u32) -> bool {
        let (user_action, site) = (UserAction(action), SiteId(site));
        let admit = Admit {
            user_action,
            epoch,
            site,
        };
        let Ok(expected) = admission(&policy(), ledger, user_action, epoch, site);
        let admission = ledger.admit_under(policy().domain_cap().unwrap(), admit);
        assert_eq!(admission, expected);
        admission != Admission::Refused
    }

    #[test]
    fn a_check_names_every_filter_that_cannot_pay() {
        let mut ledger = Ledger::new();
        let a = Filter::Querier(SiteId(1));
        charged(&mut ledger, &[check(a, 900_000)]);
        let mut checks = [
            check(a, 200_000),
            check(Filter::Global, 3_000_000),
            check(Filter::ImpressionSite(SiteId(9)), 1),
            check(Filter::ConversionSite(SiteId(1)), 1),
        ];
        let Ok(short) = first_short(&ledger, E, &mut checks);
        assert_eq!(short, Some(FilterKind::Querier));
        let short: Vec<_> = checks
            .iter()
            .filter(|check| !check.fits())
            .map(|check| (check.filter, check.short_by().get()))
            .collect();
        assert_eq!(short, [(a, 100_000), (Filter::Global, 1_000_000)]);
        assert_eq!(
            checks[0].to_string(),
            "querier budget of site #1 in epoch 0: capacity 1, consumed 0.9, asked 0.2"
        );
    }

    #[test]
    fn charges_to_one_filter_add_up() {
        let mut twice = [check(Filter::Global, 1_500_000); 2];
        let Ok(short) = first_short(&Ledger::new(), E, &mut twice);
        assert_eq!(short, Some(FilterKind::Global));
        assert_eq!(twice[1].balance.consumed.get(), 1_500_000);
        assert!(twice[0].fits());
    }

    #[test]
    fn a_check_that_is_not_looked_up_cannot_pay() {
        for kind in FilterKind::ALL {
            let capacity = Profile::BigBird.policy().capacities().of(kind);
            let asked = MicroEpsilon::new(1);
            let check = Check::new(E, Filter::Global, capacity, asked);
            assert_eq!(check.fits(), capacity == crate::Capacity::Unlimited);
        }
    }

    #[test]
    fn a_pruned_epoch_keeps_nothing() {
        let mut ledger = Ledger::new();
        charged(&mut ledger, &[check(Filter::Global, 2_000_000)]);
        ledger.prune_before(EpochIndex(1));
        charged(&mut ledger, &[check(Filter::Global, 1)]);
        ledger.prune_before(EpochIndex(-5));
        assert_eq!(ledger.first_epoch(), EpochIndex(1));
        assert_eq!(ledger.epochs().count(), 0);
    }

    #[test]
    fn the_cap_counts_distinct_sites_per_action_and_epoch() {
        let mut ledger = Ledger::new();
        for (site, admitted) in [(1, true), (2, true), (1, true), (3, false), (2, true)] {
            assert_eq!(admit(&mut ledger, 1, E, site), admitted, "{site}");
        }
        assert!(admit(&mut ledger, 2, E, 3));
        assert!(admit(&mut ledger, 1, EpochIndex(1), 3));
    }

    #[test]
    fn an_action_that_has_ended_is_admitted_to_nothing() {
        let mut ledger = Ledger::new();
        for action in 1..=3 {
            assert!(admit(&mut ledger, action, E, 1));
            assert!(admit(&mut ledger, action, E, 2));
        }
        ledger.end_user_actions_before(UserAction(3));
        assert!(!admit(&mut ledger, 1, E, 1));
        assert!(!admit(&mut ledger, 2, E, 5));
        assert!(admit(&mut ledger, 3, E, 1));
        assert!(!admit(&mut ledger, 3, E, 5));
        let view = ledger.epochs().next().unwrap();
        assert_eq!(view.user_actions(), [UserAction(3)]);
        assert_eq!(
            view.admitted(UserAction(3)).collect::<Vec<_>>(),
            [SiteId(2), SiteId(1)]
        );
    }
}
