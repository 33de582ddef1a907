//! The ledger in memory.

use std::convert::Infallible;
use std::num::NonZeroU32;

use super::admitted_sites::AdmittedSites;
use super::domain_cap::{Admission, AdmissionState, NewAdmission};
use super::{LedgerChanges, LedgerView};
use crate::epochs::{Epochs, Recycle};
use crate::small_map::SmallMap;
use crate::{Check, EpochIndex, Filter, MicroEpsilon, SiteId, UserAction};

/// The ledger in memory. It holds rows and applies no rules to them.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    epochs: Epochs<EpochRows>,
    /// User actions with smaller ids have ended.
    first_open_action: UserAction,
}

#[derive(Debug, Clone, Default)]
struct EpochRows {
    /// What filters of sites consumed, and the global budget. A key is the kind of the filter above
    /// the 32 bits of the site: one number is found faster than an enum.
    consumed: SmallMap<u64, MicroEpsilon>,
    /// What the budgets of user actions consumed.
    by_action: SmallMap<u64, MicroEpsilon>,
    admitted: AdmittedSites,
}

/// The kind of the budgets of user actions, whose ids have 64 bits.
const OF_ACTION: u8 = Filter::UserActionBudget(UserAction(0)).key().0;

impl EpochRows {
    #[inline]
    fn consumed(&self, filter: Filter) -> MicroEpsilon {
        let consumed = match filter.key() {
            (OF_ACTION, action) => self.by_action.get(action),
            (kind, site) => self.consumed.get(u64::from(kind) << 32 | site),
        };
        consumed.copied().unwrap_or_default()
    }

    #[inline]
    fn consumed_mut(&mut self, filter: Filter) -> &mut MicroEpsilon {
        let (map, key) = match filter.key() {
            (OF_ACTION, action) => (&mut self.by_action, action),
            (kind, site) => (&mut self.consumed, u64::from(kind) << 32 | site),
        };
        let (at, _) = map.entry(key, MicroEpsilon::ZERO);
        map.value_mut(at)
    }

    /// Every filter that was ever charged, with the amount it has consumed.
    fn filters(&self) -> impl Iterator<Item = (Filter, MicroEpsilon)> {
        let sites = self.consumed.iter().map(|(key, consumed)| {
            let kind = u8::try_from(key >> 32).unwrap_or(OF_ACTION);
            (kind, key & u64::from(u32::MAX), *consumed)
        });
        let actions = self.by_action.iter();
        let actions = actions.map(|(action, consumed)| (OF_ACTION, *action, *consumed));
        sites
            .chain(actions)
            .filter_map(|(kind, id, consumed)| Some((Filter::from_key(kind, id)?, consumed)))
    }
}

impl Recycle for EpochRows {
    fn recycle(&mut self) {
        self.consumed.clear();
        self.by_action.clear();
        self.admitted.clear();
    }
}

impl Ledger {
    /// An empty ledger.
    pub fn new() -> Self {
        Self::default()
    }

    /// Applies changes. Changes to pruned epochs are dropped.
    #[inline]
    pub fn apply(&mut self, changes: &LedgerChanges) {
        for of_epoch in changes.charges.chunk_by(|a, b| a.epoch == b.epoch) {
            let Some(record) = self.epochs.get_or_create(of_epoch[0].epoch) else {
                continue;
            };
            for charge in of_epoch {
                *record.consumed_mut(charge.filter) += charge.amount;
            }
        }
        for &admit in &changes.admissions {
            self.admit(admit);
        }
    }

    /// Applies one admission.
    #[inline]
    fn admit(&mut self, admit: NewAdmission) {
        if let Some(record) = self.epochs.get_or_create(admit.epoch) {
            record.admitted.push(admit.user_action, admit.site);
        }
    }

    /// Asks a cap about a site and admits the site if there is room, in one lookup: the same as
    /// [`admission`](super::admission) followed by applying the new admission. Returns the cap's
    /// answer.
    #[inline]
    pub(crate) fn admit_under(&mut self, cap: NonZeroU32, admit: NewAdmission) -> Admission {
        if admit.user_action < self.first_open_action {
            return AdmissionState::ENDED.under(cap);
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

    /// Forgets which sites user actions admitted in the epochs before `epoch`. What was paid stays
    /// paid, and the epochs stay open.
    pub fn forget_admissions_before(&mut self, epoch: EpochIndex) {
        for (index, record) in self.epochs.iter_mut() {
            if index < epoch {
                record.admitted = AdmittedSites::default();
            }
        }
    }

    /// Ends the user actions with ids below `action`, and forgets which sites they admitted. From
    /// then on, they cannot admit any site.
    pub fn end_user_actions_before(&mut self, action: UserAction) {
        if action <= self.first_open_action {
            return;
        }
        self.first_open_action = action;
        for record in self.epochs.values_mut() {
            record.admitted.forget_before(action);
        }
    }

    /// Empties the ledger for another device, keeping its buffers.
    pub fn reset(&mut self) {
        self.epochs.reset();
        self.first_open_action = UserAction(0);
    }

    /// The epochs in which something was charged or admitted, oldest first.
    pub fn epochs(&self) -> impl Iterator<Item = EpochLedger<'_>> {
        self.epochs
            .iter()
            .filter(|(_, record)| {
                !record.consumed.is_empty()
                    || !record.by_action.is_empty()
                    || !record.admitted.is_empty()
            })
            .map(|(epoch, record)| EpochLedger { epoch, record })
    }
}

impl LedgerView for Ledger {
    type Error = Infallible;

    #[inline]
    fn consumed(&self, epoch: EpochIndex, checks: &mut [Check]) -> Result<(), Infallible> {
        let record = self.epochs.get(epoch);
        for check in checks {
            let consumed = record.map(|record| record.consumed(check.filter));
            check.balance.consumed = consumed.unwrap_or_default();
        }
        Ok(())
    }

    #[inline]
    fn admitted(
        &self,
        action: UserAction,
        epoch: EpochIndex,
        site: SiteId,
    ) -> Result<AdmissionState, Infallible> {
        if action < self.first_open_action {
            return Ok(AdmissionState::ENDED);
        }
        let record = self.epochs.get(epoch);
        Ok(record.map_or(AdmissionState::NONE, |record| {
            record.admitted.about(action, site)
        }))
    }
}

/// One epoch of a ledger, for inspection.
#[derive(Debug, Clone, Copy)]
pub struct EpochLedger<'a> {
    epoch: EpochIndex,
    record: &'a EpochRows,
}

impl<'a> EpochLedger<'a> {
    /// The epoch.
    pub fn epoch(&self) -> EpochIndex {
        self.epoch
    }

    /// Every filter that was ever charged, with the amount it has consumed, in the order of
    /// [`Filter`].
    pub fn filters(&self) -> Vec<(Filter, MicroEpsilon)> {
        let mut filters: Vec<_> = self.record.filters().collect();
        filters.sort_unstable_by_key(|(filter, _)| *filter);
        filters
    }

    /// The user actions that admitted a site in this epoch and have not ended, by id.
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

    /// The sites that a user action admitted, newest first.
    pub fn admitted(&self, action: UserAction) -> impl Iterator<Item = SiteId> + use<'a> {
        self.record.admitted.under(action)
    }
}
