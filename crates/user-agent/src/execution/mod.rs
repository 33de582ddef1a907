//! The execution of a call: what it sees of the device, and what it has changed so far.

mod conversion_query;
mod forget;
mod measure;
mod record;
mod save;
mod site_numbers;

use std::marker::PhantomData;

use bigbird::{EpochIndex, Timestamp};

pub(crate) use conversion_query::ConversionQuery;
pub(crate) use measure::MeasureResult;
pub(crate) use record::{LISTED_QUOTAS, conversion_body};

use crate::clock::{Timeline, days_before, next};
use crate::config::{Config, EpochStart};
use crate::randomness::Randomness;
use crate::storage::{ChangeSet, DeviceState, View};

/// The execution of a call. It only reads the store. Its changes come out as a [`ChangeSet`].
pub(crate) struct Execution<'a, V, E, R> {
    pub(crate) view: &'a V,
    /// The state after the call.
    pub(crate) state: DeviceState,
    /// The state before the call.
    found: DeviceState,
    pub(crate) config: &'a Config,
    pub(crate) randomness: &'a mut R,
    pub(crate) changes: ChangeSet,
    /// The epoch in which the call saved an impression. If the epoch is then over its limit,
    /// impressions are evicted.
    pub(crate) saved_in: Option<EpochIndex>,
    /// The random numbers that were drawn for the report so far.
    pub(crate) drawn: Vec<f64>,
    error: PhantomData<E>,
}

impl<'a, V: View<E>, E, R: Randomness> Execution<'a, V, E, R> {
    pub(crate) fn new(view: &'a V, config: &'a Config, randomness: &'a mut R) -> Result<Self, E> {
        let found = view.state()?;
        Ok(Self {
            view,
            state: found.clone(),
            found,
            config,
            randomness,
            changes: ChangeSet::default(),
            saved_in: None,
            drawn: Vec::new(),
            error: PhantomData,
        })
    }

    /// The changes of the call.
    pub(crate) fn into_changes(mut self) -> ChangeSet {
        if self.state != self.found {
            self.changes.state = Some(self.state);
        }
        self.changes
    }

    /// Begins epochs if they have not begun.
    ///
    /// Only a valid call while the API is enabled may begin epochs for good. Measuring while the
    /// API is disabled also comes here, but its state is dropped. The user may close sites at any
    /// time, which begins epochs too.
    pub(crate) fn begin_epochs(&mut self, moment: Timestamp) {
        if self.state.timeline.eras().is_empty() {
            let rules = self.config.rules();
            let started_over = self.state.first_epoch > EpochIndex(i64::MIN);
            let start = match (self.config.epoch_start, self.state.last_clear) {
                (EpochStart::At(start), _) => start,
                // The store does not know its old epochs any more. Its first new epoch begins with
                // the reset, and is closed as a whole.
                (EpochStart::FirstUse, Some(reset)) if started_over => {
                    rules.random_start(reset, 0.0)
                }
                (EpochStart::FirstUse, _) => {
                    rules.random_start(moment, self.randomness.epoch_start())
                }
            };
            self.state.timeline = Timeline::starting(start, rules);
        }
    }

    /// The epoch of a moment. Before epochs have begun, it is one in which nothing is stored.
    pub(crate) fn epoch(&self, moment: Timestamp) -> EpochIndex {
        let epoch = self.state.timeline.epoch(moment);
        epoch.unwrap_or(EpochIndex(i64::MIN))
    }

    /// Notes that the API was used.
    pub(crate) fn used_at(&mut self, now: Timestamp) {
        self.state.latest_use = self.state.latest_use.max(Some(now));
    }

    /// The oldest moment that a request can look back to.
    pub(crate) fn oldest(&self, now: Timestamp) -> Timestamp {
        days_before(now, self.config.limits.max_lookback_days)
    }

    /// The first epoch that may be attributed to (the draft's "get the starting epoch for
    /// attribution").
    pub(crate) fn starting_epoch(&self, now: Timestamp) -> EpochIndex {
        let earliest = self.epoch(self.oldest(now));
        match self.state.last_clear {
            Some(clear) => earliest.max(next(self.epoch(clear))),
            None => earliest,
        }
    }
}
