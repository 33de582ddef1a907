//! Calls of the API: who calls, from where, when, and why.

use bigbird::{EpochIndex, Timestamp, UserAction};

use crate::clock::Timeline;
use crate::config::Config;
use crate::error::{ApiError, RangeError};
use crate::options::{ValidConversion, ValidImpression};
use crate::report::{Envelope, sealing_units};
use crate::shared::SharedConversion;
use crate::site::Site;

/// A call of the API: who calls, from where, when, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call<'a> {
    /// The host of the top-level page.
    pub site: &'a str,
    /// The host of the frame or response that calls, if it belongs to another site.
    pub intermediary: Option<&'a str>,
    /// The user action that caused the call. Epochs under the rules of `w3c-draft` ignore it. In
    /// other epochs, all calls whose action is unknown or has ended count as one action: they share
    /// its domain cap, and none of them matches what another of them saved.
    pub user_action: Option<Action>,
    /// Words for the user action, such as "a click on Buy". They are only recorded in history, for
    /// the user. Keep them short: they are stored.
    pub action_label: Option<&'a str>,
    /// The role of the site that receives the report and whose budget pays.
    pub querier: QuerierRole,
    /// The moment of the call.
    pub now: Timestamp,
}

impl<'a> Call<'a> {
    /// A call by the page itself, without a known user action. Under every profile except
    /// `w3c-draft`, add the action with [`by`](Self::by). Otherwise the call matches nothing that
    /// other calls without a known action saved.
    pub const fn new(site: &'a str, now: Timestamp) -> Self {
        Self {
            site,
            intermediary: None,
            user_action: None,
            action_label: None,
            querier: QuerierRole::ConversionSite,
            now,
        }
    }

    /// The same call, caused by a user action.
    #[must_use]
    pub const fn by(mut self, action: Action) -> Self {
        self.user_action = Some(action);
        self
    }
}

/// The time and the cause of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Occasion {
    pub(crate) user_action: Option<Action>,
    pub(crate) action_label: Option<Box<str>>,
    pub(crate) now: Timestamp,
}

impl Occasion {
    /// The id of the user action in its epoch.
    pub(crate) fn action_id(&self, timeline: &Timeline) -> UserAction {
        /// The id of all calls without a user action. Ids of real actions begin at 1.
        const UNKNOWN: UserAction = UserAction(0);
        let id = |action: Action| action.id_at(self.now, timeline);
        self.user_action.and_then(id).unwrap_or(UNKNOWN)
    }
}

impl From<&Call<'_>> for Occasion {
    fn from(call: &Call<'_>) -> Self {
        Self {
            user_action: call.user_action,
            action_label: call.action_label.map(Box::from),
            now: call.now,
        }
    }
}

/// An intentional act of the user, such as a click. Everything it causes carries its id. An action
/// ends with the epoch in which it began, and its id is never used again.
///
/// The number comes either from the user agent
/// ([`UserAgent::begin_user_action`](crate::UserAgent::begin_user_action)) or from the application.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Action(pub(crate) Numbering);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Numbering {
    /// Numbered by the user agent, at a moment. The epoch of the action is the epoch of that
    /// moment. Epochs may not have begun yet, and beginning an action does not begin them.
    Begun { id: UserAction, at: Timestamp },
    /// Numbered by the application.
    Given(u64),
    /// Not numbered, because the action is hypothetical.
    Supposed,
}

impl Action {
    /// The largest number that an application can give to an action.
    pub const LAST_NUMBER: u64 = (1 << 48) - 1;

    /// A user action that the application numbers itself. The application must never give a number
    /// to two actions, not even after a restart. After a restart, it may still use the number for
    /// the same action. When the epoch changes, the number stands for a new action.
    ///
    /// # Errors
    /// If the number is larger than [`Action::LAST_NUMBER`].
    pub fn numbered(number: u64) -> Result<Self, RangeError> {
        if number > Self::LAST_NUMBER {
            let allowed = format!("at most {}", Self::LAST_NUMBER);
            return Err(RangeError::new("userAction", allowed, number));
        }
        Ok(Self(Numbering::Given(number)))
    }

    /// A hypothetical user action that has done nothing yet, for explanations. Do not use it for
    /// real calls, because all hypothetical actions have the same id.
    pub const fn supposed() -> Self {
        Self(Numbering::Supposed)
    }

    /// The number of the action, to show to the user, if it has one.
    pub(crate) const fn shown_number(self) -> Option<u64> {
        match self.0 {
            Numbering::Begun { id, .. } => Some(id.0),
            Numbering::Given(number) => Some(number),
            Numbering::Supposed => None,
        }
    }

    /// The id of the action at a moment, unless the action had ended by then.
    fn id_at(self, now: Timestamp, timeline: &Timeline) -> Option<UserAction> {
        let epoch = timeline.epoch(now)?;
        match self.0 {
            Numbering::Begun { id, at } => (timeline.epoch(at)? == epoch).then_some(id),
            Numbering::Given(number) => Some(numbered_id(number, epoch)),
            // The user agent counts up from 1 and never reaches this id.
            Numbering::Supposed => Some(UserAction((1 << 63) - 1)),
        }
    }
}

/// The id of an action that the application numbers. Consecutive numbers have consecutive ids, far
/// above those of the user agent. The epoch field wraps after 32,768 epochs, some 600 years of
/// weeks.
fn numbered_id(number: u64, EpochIndex(epoch): EpochIndex) -> UserAction {
    let epoch = epoch.cast_unsigned() & 0x7fff;
    UserAction(1 << 63 | epoch << 48 | number)
}

/// The number of a user action with this id, to show to the user. It is the one that the
/// application gave, if the application numbers actions.
pub(crate) const fn number_of(UserAction(id): UserAction) -> u64 {
    match id >> 63 {
        1 => id & Action::LAST_NUMBER,
        _ => id,
    }
}

/// The role of the site that receives a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum QuerierRole {
    /// The conversion site, even when an intermediary calls on its behalf (the draft).
    #[default]
    ConversionSite,
    /// The intermediary that calls, on its own behalf: the paper's cross-advertiser queries. Not
    /// allowed under `w3c-draft`.
    Intermediary,
}

/// The sites of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallSites {
    pub(crate) site: Site,
    pub(crate) intermediary: Option<Site>,
}

impl CallSites {
    /// Parses the sites of a call. A call from localhost is a `SyntaxError` (notes on the draft,
    /// row 7).
    pub(crate) fn parse(call: &Call<'_>, config: &Config) -> Result<Self, ApiError> {
        let site = config.site(call.site)?;
        let intermediary = match call.intermediary {
            Some(host) => Some(config.site(host)?),
            None => None,
        };
        Ok(Self {
            intermediary: intermediary.filter(|intermediary| *intermediary != site),
            site,
        })
    }
}

impl CallSites {
    /// The site that makes the call: the intermediary, or the top-level site.
    pub(crate) fn caller(&self) -> &Site {
        self.intermediary.as_ref().unwrap_or(&self.site)
    }
}

/// A call that saves an impression, parsed by a [`Gate`](crate::Gate) and thus valid.
#[derive(Debug, Clone)]
pub struct ImpressionCall {
    pub(crate) occasion: Occasion,
    pub(crate) caller: CallSites,
    pub(crate) valid: ValidImpression,
}

impl ImpressionCall {
    /// The units of the impression: one, plus one for each name that it brings in addition to its
    /// site. They are counted as for a [stored impression](bigbird::Impression::units).
    pub fn units(&self) -> u32 {
        let lists = self.valid.conversion_sites.len() + self.valid.conversion_callers.len();
        let names = lists + usize::from(self.caller.intermediary.is_some());
        u32::try_from(names).unwrap_or(u32::MAX).saturating_add(1)
    }

    /// The number of days for which the impression can match: the one that the page asked for, or
    /// the most that the user agent allows.
    pub fn lifetime_days(&self) -> u32 {
        self.valid.lifetime_days
    }

    /// The top-level site.
    pub fn site(&self) -> &Site {
        &self.caller.site
    }
}

/// A call that measures, parsed by a [`Gate`](crate::Gate) and thus valid.
#[derive(Debug, Clone)]
pub struct ConversionCall {
    pub(crate) occasion: Occasion,
    pub(crate) caller: CallSites,
    pub(crate) querier: QuerierRole,
    pub(crate) valid: ValidConversion,
    pub(crate) measurement: MeasurementKind,
}

/// The kind of measurement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MeasurementKind {
    /// A conversion.
    Conversion,
    /// A new conversion that these sites share. Its handle may have been chosen in advance.
    Create {
        participants: Vec<Site>,
        handle: Option<SharedConversion>,
    },
    /// A share of a shared conversion.
    Share(SharedConversion),
}

/// A parsed call of a page.
#[derive(Debug, Clone)]
pub enum PageCall {
    /// A call that saves an impression.
    Save(ImpressionCall),
    /// A call that measures.
    Measure(ConversionCall),
}

impl PageCall {
    /// The top-level site.
    pub fn site(&self) -> &Site {
        match self {
            Self::Save(call) => call.site(),
            Self::Measure(call) => call.site(),
        }
    }

    fn occasion(&self) -> &Occasion {
        match self {
            Self::Save(call) => &call.occasion,
            Self::Measure(call) => &call.occasion,
        }
    }

    /// The time of the call.
    pub(crate) fn now(&self) -> Timestamp {
        self.occasion().now
    }

    /// The time of the call, if its user action is not known.
    pub(crate) fn now_without_action(&self) -> Option<Timestamp> {
        let occasion = self.occasion();
        occasion.user_action.is_none().then_some(occasion.now)
    }

    /// The same call. If it has no user action, it gets this one.
    #[must_use]
    pub fn or_by(mut self, action: impl FnOnce() -> Action) -> Self {
        let occasion = match &mut self {
            Self::Save(call) => &mut call.occasion,
            Self::Measure(call) => &mut call.occasion,
        };
        occasion.user_action.get_or_insert_with(action);
        self
    }
}

impl ConversionCall {
    /// The top-level site.
    pub fn site(&self) -> &Site {
        &self.caller.site
    }

    /// The number of days that the conversion looks back: the one that the page asked for, or the
    /// most that the user agent allows.
    pub fn lookback_days(&self) -> u32 {
        self.valid.lookback_days
    }

    /// The envelope of its report.
    pub fn envelope(&self) -> Envelope {
        Envelope {
            histogram_size: self.valid.histogram_size,
            epsilon: self.valid.terms.epsilon().micro(),
            max_value: self.valid.terms.max_value(),
            querier: self.querier().clone(),
            caller: self.caller.caller().clone(),
            conversion_site: self.caller.site.clone(),
            aggregation_service: self.valid.aggregation_service.clone(),
            time: self.occasion.now,
        }
    }

    /// The work to seal its report: about half a microsecond for each unit. A shared conversion has
    /// no report.
    pub fn sealing_units(&self) -> u32 {
        if self.creates_shared() {
            return 1;
        }
        sealing_units(self.valid.histogram_size, self.valid.terms.max_value())
    }

    /// True if the call creates a shared conversion.
    pub(crate) fn creates_shared(&self) -> bool {
        matches!(self.measurement, MeasurementKind::Create { .. })
    }

    /// The site that receives the report and whose budget pays.
    pub(crate) fn querier(&self) -> &Site {
        match (self.querier, &self.caller.intermediary) {
            (QuerierRole::Intermediary, Some(intermediary)) => intermediary,
            _ => &self.caller.site,
        }
    }

    /// The sites whose data the user can clear to stop the call: the conversion site and the
    /// querier.
    pub(crate) fn paying_sites(&self) -> [&Site; 2] {
        [&self.caller.site, self.querier()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_one_action_in_an_epoch_and_another_in_the_next() {
        let id = |number, epoch| {
            assert!(Action::numbered(number).is_ok());
            numbered_id(number, EpochIndex(epoch))
        };
        assert_eq!(id(7, 3), id(7, 3));
        assert_ne!(id(7, 3), id(7, 4));
        assert_ne!(id(7, 3), id(8, 3));
        assert_ne!(id(7, -1), id(7, 0));
        assert_ne!(id(0, 0), id(Action::LAST_NUMBER, 0));
        // Far from the ids that the user agent gives, which begin at 1.
        assert!(id(0, 0) >= UserAction(1 << 63));
        let error = Action::numbered(Action::LAST_NUMBER + 1).unwrap_err();
        assert_eq!(
            error.to_string(),
            "userAction must be at most 281474976710655, got 281474976710656"
        );
    }
}
