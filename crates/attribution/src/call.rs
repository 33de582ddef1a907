//! Who calls the API, from where, when, and why.

use bigbird::{EpochIndex, Timestamp, UserAction};

use crate::error::ApiError;
use crate::options::{ConversionOptions, ValidConversion};
use crate::site::{Localhost, Site};

/// Who calls, from where, when, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call<'a> {
    /// The host of the top-level page.
    pub site: &'a str,
    /// The host of the frame or response that calls, if it is not of that site.
    pub intermediary: Option<&'a str>,
    /// The user action that caused the call. Only profiles other than `w3c-draft` look at it. To
    /// them, calls of which it is not known, or whose action has ended, are all of one action: they
    /// share its domain cap, and match nothing that another of them saved.
    pub user_action: Option<Action>,
    /// Who receives the report and whose budget pays.
    pub querier: Querier,
    /// The moment of the call.
    pub now: Timestamp,
}

impl<'a> Call<'a> {
    /// A call by the page itself, without a known user action: outside `w3c-draft`, add one with
    /// [`by`](Self::by), or it will match nothing.
    pub const fn new(site: &'a str, now: Timestamp) -> Self {
        Self {
            site,
            intermediary: None,
            user_action: None,
            querier: Querier::ConversionSite,
            now,
        }
    }

    /// The same call, caused by a user action.
    #[must_use]
    pub const fn by(mut self, action: Action) -> Self {
        self.user_action = Some(action);
        self
    }

    /// The id of its user action in an epoch.
    pub(crate) fn action_id(&self, epoch: EpochIndex) -> UserAction {
        /// Of all calls without one. Real ones begin at 1.
        const UNKNOWN: UserAction = UserAction(0);
        match self.user_action {
            Some(action) if action.epoch == epoch => action.id,
            _ => UNKNOWN,
        }
    }
}

/// An intentional act of the user, such as a click; what it causes carries it. It ends with the
/// epoch in which it began, and its id is never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Action {
    pub(crate) id: UserAction,
    pub(crate) epoch: EpochIndex,
}

/// Who receives a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Querier {
    /// The conversion site, also when an intermediary calls on its behalf (the draft).
    #[default]
    ConversionSite,
    /// The intermediary that calls, for itself: the paper's cross-advertiser queries. Not in
    /// `w3c-draft`.
    Intermediary,
}

/// The sites of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) site: Site,
    pub(crate) intermediary: Option<Site>,
}

impl Caller {
    /// Notes on the draft, row 7: a call from localhost is a `SyntaxError`.
    pub(crate) fn parse(call: &Call<'_>, localhost: Localhost) -> Result<Self, ApiError> {
        let site = Site::parse(call.site, localhost)?;
        let intermediary = match call.intermediary {
            Some(host) => Some(Site::parse(host, localhost)?),
            None => None,
        };
        Ok(Self {
            intermediary: intermediary.filter(|intermediary| *intermediary != site),
            site,
        })
    }
}

/// A conversion call that passed validation.
#[derive(Debug, Clone)]
pub(crate) struct Conversion<'a> {
    pub(crate) call: Call<'a>,
    pub(crate) caller: Caller,
    pub(crate) options: &'a ConversionOptions,
    pub(crate) valid: ValidConversion,
}

impl Conversion<'_> {
    /// The sites that a user can clear to stop it: the conversion site, and the querier.
    pub(crate) fn paying_sites(&self) -> impl Iterator<Item = &Site> {
        let intermediary = self.caller.intermediary.as_ref();
        let querier = intermediary.filter(|_| self.call.querier == Querier::Intermediary);
        [Some(&self.caller.site), querier].into_iter().flatten()
    }
}
