//! Clearing data at the request of sites and of the user, and starting over.

use bigbird::Timestamp;

use super::{UserAgent, execute};
use crate::clock::next;
use crate::error::{AgentError, ApiError, RangeError};
use crate::randomness::Randomness;
use crate::site::{Localhost, Site};
use crate::storage::{DeviceState, ImpressionSelection, Storage, View};

impl<S: Storage, R: Randomness> UserAgent<S, R> {
    /// Removes the impressions of a site at the site's own request, by a `Clear-Site-Data` response
    /// from one of its hosts (the draft's "clear impressions for a site"). Budgets are not changed.
    ///
    /// # Errors
    /// If the store failed. A host without a site is not an error, because it has no impressions.
    pub fn clear_impressions_for_site(&mut self, host: &str) -> Result<(), S::Error> {
        // Localhost is accepted whatever the configuration, so that what was saved can be cleared.
        let site = Site::parse_with(host, Localhost::Allowed, &*self.config().domains);
        let Ok(site) = site else {
            return Ok(());
        };
        execute!(self, |execution| {
            execution.forget_impression_entries(&site)?;
            match execution.view.site_id(&site)? {
                Some(id) => execution.forget_site(id),
                None => Ok(()),
            }
        })
    }

    /// Clears browsing history for attribution at the user's request (the draft's algorithm of
    /// that name).
    ///
    /// With `forget_visits`, traces of the sites are removed, or of all sites if none is named.
    /// No epoch up to and including the current one is ever attributed to again, so that what was
    /// spent need not be remembered. Without `forget_visits`, no conversion of the sites is
    /// measured in those epochs any more, and at least one site must be named.
    ///
    /// # Errors
    /// If a site is invalid, no site is named without `forget_visits`, or the store failed.
    pub fn clear_browsing_history(
        &mut self,
        sites: &[String],
        forget_visits: bool,
        now: Timestamp,
    ) -> Result<(), AgentError<S::Error>> {
        self.start_clearing(sites, forget_visits, now)?;
        if forget_visits {
            while self.upkeep(now).map_err(AgentError::Store)? {}
        }
        Ok(())
    }

    /// Starts what [`clear_browsing_history`](Self::clear_browsing_history) does, without waiting
    /// for its end. When this returns, clearing is in force for every call that follows. The slices
    /// of [`upkeep`](Self::upkeep), which is due from then on, remove the rows, so that nobody
    /// waits.
    ///
    /// # Errors
    /// The same as for [`clear_browsing_history`](Self::clear_browsing_history).
    pub fn start_clearing(
        &mut self,
        sites: &[String],
        forget_visits: bool,
        now: Timestamp,
    ) -> Result<(), AgentError<S::Error>> {
        let sites = self.config().sites(sites.iter().map(String::as_str));
        let sites = sites.map_err(ApiError::from)?;
        if !forget_visits && sites.is_empty() {
            let allowed = "a list of at least 1 site unless forgetVisits is true";
            let error = RangeError::new("sites", allowed, 0);
            return Err(ApiError::from(error).into());
        }
        self.adopt_rules(now).map_err(AgentError::Store)?;
        let cleared = if forget_visits {
            self.forget_visits(&sites, now)
        } else {
            self.close_sites(&sites, now)
        };
        cleared.map_err(AgentError::Store)
    }

    /// Starts over after the clock was far ahead. What was measured then has closed every epoch
    /// until that time (see [`Status::closed_until`](super::Status::closed_until)). By this call,
    /// the user confirms that the clock is right now.
    ///
    /// Everything is forgotten, as when all history is [cleared](Self::clear_browsing_history): no
    /// epoch up to and including the current one is ever measured again. Later epochs get new
    /// indices, so none of them was ever charged, and nothing that was spent comes back. If the
    /// clock is behind instead, a week of the future can be paid for twice, but never for the same
    /// impressions.
    ///
    /// # Errors
    /// If the store failed.
    pub fn restart_epochs(&mut self, now: Timestamp) -> Result<(), S::Error> {
        self.adopt_rules(now)?;
        self.upkeep.start_over();
        execute!(self, |execution| {
            let DeviceState {
                last_clear,
                latest,
                latest_use,
                first_epoch,
                ..
            } = execution.state;
            execution.changes.history_cleared = true;
            let moments = [last_clear, latest, latest_use].into_iter().flatten();
            let last = moments.fold(now, Timestamp::max);
            let unused = next(execution.epoch(last)).max(first_epoch);
            if execution.state.timeline.eras().is_empty() {
                // Either the API was never used, or the store was reset and what is closed must
                // stay closed.
                return Ok(());
            }
            let rules = execution.config.rules();
            execution.state.timeline.renumber(&rules, now, unused);
            execution.state.last_clear = Some(now);
            execution.state.latest = latest.map(|_| now);
            execution.state.latest_use = Some(now);
            execution.close_before(next(unused));
            Ok(())
        })
    }

    /// Clears with `forget_visits`. The epochs that can contain traces are closed, so that no
    /// request reaches them any more. The next slices of upkeep remove the traces.
    fn forget_visits(&mut self, sites: &[Site], now: Timestamp) -> Result<(), S::Error> {
        self.upkeep.start_over();
        execute!(self, |execution| {
            execution.changes.history_cleared = true;
            let until = execution.state.latest_of(now);
            execution.state.last_clear = execution.state.last_clear.max(Some(until));
            if let Some(clear) = execution.state.last_clear
                && !execution.state.timeline.eras().is_empty()
            {
                execution.close_before(next(execution.epoch(clear)));
            }
            // Later epochs contain something only if the clock was ahead.
            let open = execution.state.first_epoch;
            if sites.is_empty() {
                execution.remove_impressions(ImpressionSelection::From(open), |_| true)?;
            }
            for site in sites {
                if let Some(id) = execution.view.site_id(site)? {
                    let on_site = ImpressionSelection::On(id, open);
                    execution.remove_impressions(on_site, |impression| impression.site == id)?;
                }
            }
            Ok(())
        })
    }

    /// Clears without `forget_visits`. No conversion of the sites is measured any more in any epoch
    /// up to now, whoever asks.
    fn close_sites(&mut self, sites: &[Site], now: Timestamp) -> Result<(), S::Error> {
        execute!(self, |execution| {
            // The draft looks at the oldest epoch first, and that chooses the start of epochs.
            execution.begin_epochs(execution.oldest(now));
            execution.used_at(now);
            // A closing must not be forgotten while the epochs that it covers are open. The latest
            // moment makes upkeep close those epochs when nobody can reach them any more.
            execution.state.latest = execution.state.latest.max(Some(now));
            let until = execution.epoch(execution.state.latest_of(now));
            execution.forget_entries_about(sites)?;
            for site in execution.site_ids(sites, true)? {
                execution.close_site(site, until)?;
            }
            Ok(())
        })
    }
}

impl DeviceState {
    /// The later of a moment and the latest moment of the device.
    fn latest_of(&self, now: Timestamp) -> Timestamp {
        self.latest.map_or(now, |latest| latest.max(now))
    }
}
