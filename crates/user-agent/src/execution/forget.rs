//! Forgetting and closing: what clearing does to rows.

use bigbird::attribution::{ForgetEffect, ImpressionEdit};
use bigbird::{EpochIndex, SiteId};

use super::Execution;
use crate::agent::SLICE;
use crate::randomness::Randomness;
use crate::storage::{ForgottenEpochs, ImpressionSelection, RowSet, StoredObject, View, ViewRow};

impl<V: View<E>, E, R: Randomness> Execution<'_, V, E, R> {
    /// Forgets a site at its own request: removes its impressions, and what it could still measure.
    pub(crate) fn forget_site(&mut self, site: SiteId) -> Result<(), E> {
        let edited = &mut self.changes.edited;
        let naming = RowSet::Impressions(ImpressionSelection::Naming(site));
        self.view.visit(naming, &mut |row| {
            if let ViewRow::Impression(epoch, order, impression) = row {
                let audience = match impression.without(site) {
                    ForgetEffect::Untouched => return,
                    ForgetEffect::Restricted(audience) => Some(audience),
                    ForgetEffect::Removed => None,
                };
                edited.push(ImpressionEdit {
                    epoch,
                    order,
                    audience,
                });
            }
        })?;
        let objects = &mut self.changes.objects;
        self.view.visit(RowSet::Objects, &mut |row| {
            if let ViewRow::Object(stored) = row {
                let mut object = stored.object.clone();
                object.forget_site(site);
                if object != stored.object {
                    objects.push(StoredObject {
                        object,
                        ..stored.clone()
                    });
                }
            }
        })?;
        self.changes.erase = true;
        Ok(())
    }

    /// Removes the selected impressions for which `goes` is true.
    pub(crate) fn remove_impressions(
        &mut self,
        selection: ImpressionSelection,
        goes: impl Fn(&bigbird::Impression<'_>) -> bool,
    ) -> Result<(), E> {
        let edited = &mut self.changes.edited;
        self.view
            .visit(RowSet::Impressions(selection), &mut |row| match row {
                ViewRow::Impression(epoch, order, impression) if goes(&impression) => {
                    edited.push(ImpressionEdit {
                        epoch,
                        order,
                        audience: None,
                    });
                }
                _ => {}
            })?;
        self.changes.erase = true;
        Ok(())
    }

    /// Closes the epochs before one. From then on they never pay, and nothing can reach their rows.
    /// Shared conversions that were created in one of them are removed at once, because they count
    /// against a limit. Upkeep removes the other rows. The moment at which shared conversions are
    /// removed must not depend on what was paid for them. Otherwise the data of one epoch would
    /// show in the budget of another.
    pub(crate) fn close_before(&mut self, epoch: EpochIndex) {
        let first = self.state.first_epoch.max(epoch);
        self.state.first_epoch = first;
        self.state.timeline.prune_before(first);
        self.changes.forgotten = Some(ForgottenEpochs {
            pruned: first,
            unreachable: first,
            history: EpochIndex(i64::MIN),
            most: SLICE,
        });
    }

    /// Closes a conversion site up to and including an epoch. If it is closed for longer already,
    /// that stays.
    pub(crate) fn close_site(&mut self, site: SiteId, until: EpochIndex) -> Result<(), E> {
        let until = self
            .view
            .closed_until(site)?
            .max(Some(until))
            .unwrap_or(until);
        // A site that is named twice is closed once.
        self.changes.closed.retain(|(other, _)| *other != site);
        self.changes.closed.push((site, until));
        Ok(())
    }
}
