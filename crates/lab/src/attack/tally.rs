//! What an attacker took on one device.

use bigbird::{Charge, EpochIndex, Filter, SiteId, UserAction};

/// The amounts that were taken from the global budgets of one device, by epoch.
#[derive(Debug, Default)]
pub(crate) struct AttackTally {
    /// The sites from this number on belong to the attacker.
    first_own_site: Option<SiteId>,
    /// The tally of each epoch. Those from `used` on are kept only for their buffers.
    epochs: Vec<(EpochIndex, EpochTally)>,
    used: usize,
    actions: u32,
}

/// What an attacker took in one epoch of a device.
#[derive(Debug, Default)]
pub(crate) struct EpochTally {
    pub(crate) attacker: u64,
    /// True if the attacker took something from a filter that honest sites need.
    pub(crate) touched: bool,
    /// What the quota of each impression site paid.
    pub(crate) impression_sites: Vec<(SiteId, u64)>,
    /// What the quota of each conversion site paid.
    pub(crate) conversion_sites: Vec<(SiteId, u64)>,
    /// The number of user actions that took something.
    pub(crate) actions: u64,
    /// The last of those user actions.
    last_action: Option<UserAction>,
}

impl EpochTally {
    /// Starts again, and keeps the buffers.
    fn clear(&mut self) {
        let Self {
            mut impression_sites,
            mut conversion_sites,
            ..
        } = std::mem::take(self);
        impression_sites.clear();
        conversion_sites.clear();
        *self = Self {
            impression_sites,
            conversion_sites,
            ..Self::default()
        };
    }
}

impl AttackTally {
    pub(crate) fn new(first_own_site: SiteId) -> Self {
        Self {
            first_own_site: Some(first_own_site),
            ..Self::default()
        }
    }

    /// Starts with another device.
    pub(crate) fn begin(&mut self) {
        self.used = 0;
        self.actions = 0;
    }

    /// Counts a user action of the attacker.
    pub(crate) fn action(&mut self) {
        self.actions += 1;
    }

    /// The number of user actions that the attacker had.
    pub(crate) fn actions(&self) -> u32 {
        self.actions
    }

    /// Records the charges of a report of the attacker.
    pub(crate) fn attacked(&mut self, action: UserAction, charges: &[Charge]) {
        let first_own_site = self.first_own_site;
        for charge in charges {
            let tally = self.epoch(charge.epoch);
            let own = match (charge.filter.site(), first_own_site) {
                (Some(site), Some(first)) => site >= first,
                _ => matches!(charge.filter, Filter::UserActionBudget(_)),
            };
            tally.touched |= !own;
            let amount = charge.amount.get();
            let pay = |sites: &mut Vec<(SiteId, u64)>, site| match sites
                .iter_mut()
                .find(|(of, _)| *of == site)
            {
                Some((_, paid)) => *paid += amount,
                None => sites.push((site, amount)),
            };
            match charge.filter {
                Filter::GlobalBudget => tally.attacker += amount,
                Filter::ImpressionSiteQuota(site) => pay(&mut tally.impression_sites, site),
                Filter::ConversionSiteQuota(site) => pay(&mut tally.conversion_sites, site),
                Filter::QuerierBudget(_) | Filter::UserActionBudget(_) => {}
            }
            if tally.last_action != Some(action) {
                tally.last_action = Some(action);
                tally.actions += 1;
            }
        }
    }

    fn epoch(&mut self, epoch: EpochIndex) -> &mut EpochTally {
        let mut used = self.epochs[..self.used].iter();
        let at = used.position(|(of, _)| *of == epoch).unwrap_or(self.used);
        if at == self.used {
            self.used += 1;
            match self.epochs.get_mut(at) {
                Some((of, tally)) => {
                    *of = epoch;
                    tally.clear();
                }
                None => self.epochs.push((epoch, EpochTally::default())),
            }
        }
        &mut self.epochs[at].1
    }

    /// True if a site belongs to the attacker.
    pub(crate) fn owns(&self, site: SiteId) -> bool {
        self.first_own_site.is_some_and(|first| site >= first)
    }

    /// The epochs in which something was taken, or tried.
    pub(crate) fn epochs(&self) -> impl Iterator<Item = &EpochTally> {
        self.epochs[..self.used].iter().map(|(_, tally)| tally)
    }

    /// The amount that the attacker took from the global budget of an epoch, in µε.
    pub(crate) fn taken(&self, epoch: EpochIndex) -> u64 {
        let mut used = self.epochs[..self.used].iter();
        let found = used.find(|(of, _)| *of == epoch);
        found.map_or(0, |(_, tally)| tally.attacker)
    }
}
