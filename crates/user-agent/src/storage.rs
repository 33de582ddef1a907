//! What a user agent keeps, and what keeping it must guarantee.

use std::fmt;
use std::num::NonZeroU32;

use bigbird::{
    AttributionObject, AttributionQuery, Balance, Capacities, Capacity, EpochIndex, EventStore,
    Filter, FilterKind, Impression, LedgerStore, SiteId, Timestamp,
};

use crate::clock::{EpochClock, epoch_ms};
use crate::config::Config;
use crate::shared::SharedConversion;
use crate::site::Site;

/// Where a user agent keeps impressions, budgets and its own state: in memory
/// ([`Memory`](crate::Memory)) or on disk.
///
/// What an implementation guarantees, because the privacy of the whole rests on it:
///
/// * **Atomic.** A transaction that is finished happened as a whole; one that is dropped, or whose
///   process died, did not happen at all.
/// * **Isolated.** What a transaction reads does not change until it ends, also when two processes
///   have the store open.
/// * **Durable before release.** When [`finish`](Transaction::finish) returns, the changes survive
///   a crash and a power cut. The user agent releases a report only then.
/// * **Fail closed.** What cannot be read is an error, never an empty store: a lost ledger would
///   refund every budget.
pub trait Storage {
    /// Why it could not be read or written.
    type Error: std::error::Error + 'static;

    /// A transaction.
    type Transaction<'t>: Transaction<Self::Error>
    where
        Self: 't;

    /// Begins a transaction, waiting for others to end.
    ///
    /// # Errors
    /// If the store cannot be opened or locked.
    fn begin(&mut self) -> Result<Self::Transaction<'_>, Self::Error>;
}

/// One transaction: the ledger and the impressions as the engine reads them, and everything that
/// the user agent changes.
pub trait Transaction<E>: LedgerStore<Error = E> + EventStore<AttributionQuery, Error = E> {
    /// The user agent's own state.
    ///
    /// # Errors
    /// If it cannot be read; so for all that follow.
    fn state(&self) -> Result<State, E>;

    /// Replaces the user agent's own state.
    fn set_state(&mut self, state: &State) -> Result<(), E>;

    /// The number of a site, if it has one.
    fn find_site(&self, site: &Site) -> Result<Option<SiteId>, E>;

    /// The number of a site, which it gets now if it had none. It keeps it as long as anything
    /// stored names it, and within a transaction. `u32::MAX` is given to none.
    fn site_id(&mut self, site: &Site) -> Result<SiteId, E>;

    /// The site of a number.
    fn site(&self, id: SiteId) -> Result<Option<Site>, E>;

    /// Every filter that was charged in an epoch that is kept, with what it holds, by epoch and in
    /// the order of [`Filter`].
    fn filters(&self) -> Result<Vec<(EpochIndex, Filter, Balance)>, E>;

    /// Saves an impression in its epoch, within the limits of that epoch.
    fn save_impression(&mut self, epoch: EpochIndex, impression: &Impression<'_>) -> Result<(), E>;

    /// Forgets a site at its own request (the draft's "clear impressions for a site").
    fn forget_site(&mut self, site: SiteId) -> Result<(), E>;

    /// Removes the impressions of these impression sites, or all if `None`. Attribution objects go by
    /// [`prune_before`](Self::prune_before), which follows.
    fn remove_impressions(&mut self, sites: Option<&[SiteId]>) -> Result<(), E>;

    /// Removes the impressions that can not match any more at `now`.
    fn remove_expired(&mut self, now: Timestamp) -> Result<(), E>;

    /// Closes a conversion site up to and including an epoch, or further if it was: see
    /// [`closed_until`](Self::closed_until).
    fn close_site(&mut self, site: SiteId, until: EpochIndex) -> Result<(), E>;

    /// The last epoch in which no conversion of a site is to be measured, the user having cleared
    /// its data.
    fn closed_until(&self, site: SiteId) -> Result<Option<EpochIndex>, E>;

    /// Forgets everything about the epochs before `epoch`, which from then on pay nothing: their
    /// filters and caps, their impressions, sites closed until one of them, and objects created in
    /// one of them. What was paid for an object must not decide when it goes: it would tell one
    /// epoch's data in another's budget.
    fn prune_before(&mut self, epoch: EpochIndex) -> Result<(), E>;

    /// Forgets the names of sites that nothing stored names: they tell where the user has been.
    fn forget_unused_sites(&mut self) -> Result<(), E>;

    /// Keeps an attribution object under a handle, replacing what is there. The number tells its age
    /// among others.
    fn put_object(&mut self, stored: StoredObject) -> Result<(), E>;

    /// The attribution object of a handle.
    fn object(&self, shared: SharedConversion) -> Result<Option<StoredObject>, E>;

    /// The number and the conversion site of every attribution object.
    fn objects(&self) -> Result<Vec<(u64, SiteId)>, E>;

    /// Forgets the attribution object of a number.
    fn remove_object(&mut self, number: u64) -> Result<(), E>;

    /// Makes the changes durable. Dropping the transaction instead forgets them.
    fn finish(self) -> Result<(), E>;
}

/// An attribution object as it is kept.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredObject {
    /// The number under which it was created: the larger, the younger.
    pub number: u64,
    /// The handle by which a site names it.
    pub shared: SharedConversion,
    /// The object.
    pub object: AttributionObject,
}

/// What a user agent knows of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// How the store was set up; set when it is first opened.
    pub setup: Option<Setup>,
    /// Whether the user lets the API work.
    pub enabled: bool,
    /// When epoch 0 begins; chosen by the first valid call while the API is enabled.
    pub epoch_start: Option<Timestamp>,
    /// When browsing history was last cleared.
    pub last_clear: Option<Timestamp>,
    /// The latest moment of a conversion, of a shared conversion that was created, or of a share that
    /// was taken, whatever it found: a clock that steps back must not bring budgets back. Were it
    /// the moment of the latest charge, what one epoch holds would decide which others are closed.
    pub latest: Option<Timestamp>,
    /// The next id of a user action; ids are never used again.
    pub next_user_action: u64,
    /// The next number of an attribution object.
    pub next_object: u64,
}

impl Default for State {
    fn default() -> Self {
        Self {
            setup: None,
            enabled: true,
            epoch_start: None,
            last_clear: None,
            latest: None,
            next_user_action: 1,
            next_object: 1,
        }
    }
}

impl State {
    /// The epoch of a moment, if it is known when epochs begin and how long they are.
    pub fn epoch_of(&self, moment: Timestamp) -> Option<EpochIndex> {
        Some(self.epoch_clock()?.epoch(moment))
    }

    /// When an epoch begins, if that is known.
    pub fn beginning_of(&self, epoch: EpochIndex) -> Option<Timestamp> {
        let EpochClock { start, period_ms } = self.epoch_clock()?;
        let since = epoch.0.checked_mul(period_ms)?;
        Some(Timestamp(start.0.checked_add(since)?))
    }

    fn epoch_clock(&self) -> Option<EpochClock> {
        Some(EpochClock {
            start: self.epoch_start?,
            period_ms: epoch_ms(self.setup?.epoch_days),
        })
    }
}

/// What must not change during the life of a store: it is what the stored numbers mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setup {
    /// How long an epoch is.
    pub epoch_days: u32,
    /// The capacity of each kind of filter.
    pub capacities: Capacities,
    /// How many sites a user action may involve.
    pub domain_cap: Option<NonZeroU32>,
}

impl Setup {
    /// How a configuration sets a store up.
    pub fn of(config: &Config) -> Self {
        Self {
            epoch_days: config.epoch_days,
            capacities: *config.policy.capacities(),
            domain_cap: config.policy.domain_cap(),
        }
    }
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epochs of {} days", self.epoch_days)?;
        for kind in FilterKind::ALL {
            let capacity = self.capacities.of(kind);
            if capacity != Capacity::Unlimited {
                write!(f, ", {kind} {capacity}")?;
            }
        }
        match self.domain_cap {
            Some(cap) => write!(f, ", domain cap {cap}"),
            None => Ok(()),
        }
    }
}
