//! Saving an impression.

use bigbird::attribution::Audience;
use bigbird::{Admission, EpochIndex, NewAdmission, Policies as _, SiteId, UserAction, admission};

use super::Execution;
use crate::call::ImpressionCall;
use crate::clock::days_after;
use crate::history::ImpressionOutcome;
use crate::randomness::Randomness;
use crate::storage::{SavedImpression, View};

impl<V: View<E>, E, R: Randomness> Execution<'_, V, E, R> {
    /// Saves an impression, if the API is enabled and its user action may involve the site.
    pub(crate) fn save(&mut self, impression: &ImpressionCall) -> Result<(), E> {
        if !self.state.enabled {
            return Ok(());
        }
        let outcome = self.save_enabled(impression)?;
        self.record_impression(impression, outcome)
    }

    fn save_enabled(&mut self, impression: &ImpressionCall) -> Result<ImpressionOutcome, E> {
        let ImpressionCall {
            occasion,
            caller,
            valid,
        } = impression;
        let site = self.number(&caller.site)?;
        let intermediary = match &caller.intermediary {
            Some(intermediary) => Some(self.number(intermediary)?),
            None => None,
        };
        let mut audience = Audience {
            conversion_sites: self.site_ids(&valid.conversion_sites, true)?,
            conversion_callers: self.site_ids(&valid.conversion_callers, true)?,
        };
        for list in [
            &mut audience.conversion_sites,
            &mut audience.conversion_callers,
        ] {
            list.sort_unstable();
            list.dedup();
        }
        self.begin_epochs(occasion.now);
        self.used_at(occasion.now);
        let epoch = self.epoch(occasion.now);
        let user_action = occasion.action_id(&self.state.timeline);
        // An impression that is not admitted is dropped, and the page does not learn that.
        let outcome = self.admit(user_action, epoch, site)?;
        if outcome != ImpressionOutcome::Saved {
            return Ok(outcome);
        }
        self.saved_in = Some(epoch);
        self.changes.saved.push(SavedImpression {
            epoch,
            site,
            intermediary,
            user_action,
            timestamp: occasion.now,
            expires: days_after(occasion.now, valid.lifetime_days),
            match_value: valid.match_value,
            histogram_index: valid.histogram_index,
            priority: valid.priority,
            audience,
        });
        Ok(outcome)
    }

    /// Admits the site of an impression under its user action, if the domain cap has room. A pruned
    /// epoch never admits a site.
    fn admit(
        &mut self,
        user_action: UserAction,
        epoch: EpochIndex,
        site: SiteId,
    ) -> Result<ImpressionOutcome, E> {
        let Some(policy) = self.state.policy(epoch) else {
            return Ok(ImpressionOutcome::Closed);
        };
        let admission = admission(policy, self.view, user_action, epoch, site)?;
        if admission == Admission::Room {
            self.changes.ledger.admissions.push(NewAdmission {
                user_action,
                epoch,
                site,
            });
        }
        Ok(match admission {
            Admission::Refused => ImpressionOutcome::DomainCap,
            _ => ImpressionOutcome::Saved,
        })
    }
}
