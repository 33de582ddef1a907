//! A plain store of any kind of event.

use std::convert::Infallible;

use crate::epochs::{Epochs, Recycle};
use crate::query::{EventStore, Query, Relevant};
use crate::{EpochIndex, SiteId, UserAction};

/// Events in memory, by epoch, in the order in which they were saved.
///
/// A query examines every event of its epochs, so the log suits applications with few events. For
/// ad impressions, use [`ImpressionStore`](crate::ImpressionStore), which has indexes and limits.
#[derive(Debug, Clone)]
pub struct EventLog<E> {
    epochs: Epochs<EpochLog<E>>,
}

#[derive(Debug, Clone)]
struct EpochLog<E>(Vec<(SiteId, UserAction, E)>);

impl<E> Default for EpochLog<E> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<E> Recycle for EpochLog<E> {
    fn recycle(&mut self) {
        self.0.clear();
    }
}

impl<E> Default for EventLog<E> {
    fn default() -> Self {
        Self {
            epochs: Epochs::default(),
        }
    }
}

impl<E> EventLog<E> {
    /// An empty log.
    pub fn new() -> Self {
        Self::default()
    }

    /// Saves an event of `site`, caused by `user_action`. Returns false, and saves nothing, if the
    /// epoch was pruned.
    pub fn save(
        &mut self,
        epoch: EpochIndex,
        site: SiteId,
        user_action: UserAction,
        event: E,
    ) -> bool {
        match self.epochs.get_or_create(epoch) {
            Some(log) => {
                log.0.push((site, user_action, event));
                true
            }
            None => false,
        }
    }

    /// Forgets the epochs before `epoch`, for good.
    pub fn prune_before(&mut self, epoch: EpochIndex) {
        self.epochs.prune_before(epoch);
    }

    /// The events of an epoch, in the order in which they were saved.
    pub fn events(&self, epoch: EpochIndex) -> impl Iterator<Item = &E> {
        self.epochs
            .get(epoch)
            .into_iter()
            .flat_map(|log| log.0.iter().map(|(_, _, event)| event))
    }
}

impl<E: 'static, Q> EventStore<Q> for EventLog<E>
where
    Q: for<'e> Query<Event<'e> = &'e E>,
{
    type Error = Infallible;

    fn find(
        &self,
        epoch: EpochIndex,
        query: &Q,
        found: &mut Vec<Relevant<Q::Detail>>,
    ) -> Result<(), Infallible> {
        let Some(log) = self.epochs.get(epoch) else {
            return Ok(());
        };
        for (order, &(site, user_action, ref event)) in (0..).zip(&log.0) {
            if let Some(detail) = query.relevant(event) {
                found.push(Relevant {
                    epoch,
                    order,
                    site,
                    user_action,
                    detail,
                });
            }
        }
        Ok(())
    }
}
