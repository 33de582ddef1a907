//! Who calls the API, from where, when, and why.

use bigbird::{EpochIndex, Timestamp, UserAction};

use crate::clock::Timeline;
use crate::config::Config;
use crate::error::{ApiError, RangeError};
use crate::options::{ValidConversion, ValidImpression};
use crate::report::Envelope;
use crate::shared::SharedConversion;
use crate::site::Site;

/// Who calls, from where, when, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call<'a> {
    /// The host of the top-level page.
    pub site: &'a str,
    /// The host of the frame or response that calls, if it is not of that site.
    pub intermediary: Option<&'a str>,
    /// The user action that caused the call. Epochs under the rules of `w3c-draft` do not look at it.
    /// In others, calls of which it is not known, or whose action has ended, are all of one action: they
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
}

/// When and why a call was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Occasion {
    pub(crate) user_action: Option<Action>,
    pub(crate) now: Timestamp,
}

impl Occasion {
    /// The id of the user action in its epoch.
    pub(crate) fn action_id(&self, timeline: &Timeline) -> UserAction {
        /// Of all calls without one. Real ones begin at 1.
        const UNKNOWN: UserAction = UserAction(0);
        let id = |action: Action| action.id_at(self.now, timeline);
        self.user_action.and_then(id).unwrap_or(UNKNOWN)
    }
}

impl From<&Call<'_>> for Occasion {
    fn from(call: &Call<'_>) -> Self {
        Self {
            user_action: call.user_action,
            now: call.now,
        }
    }
}

/// An intentional act of the user, such as a click; what it causes carries it. It ends with the
/// epoch in which it began, and its id is never used again.
///
/// Either the user agent numbers it ([`UserAgent::begin_user_action`](crate::UserAgent)), or the
/// application does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Action(pub(crate) Numbering);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Numbering {
    /// By the user agent, at a moment. Its epoch is that of the moment; it may not be known yet
    /// when epochs begin, and beginning an action does not decide it.
    Begun { id: UserAction, at: Timestamp },
    /// By the application.
    Given(u64),
    /// By nobody: it is only supposed.
    Supposed,
}

impl Action {
    /// The largest number that an application can give.
    pub const LAST_NUMBER: u64 = (1 << 48) - 1;

    /// A user action that the application numbers itself. It must never give a number to another
    /// action, also not after a restart, and may give it to the same action after a restart. When
    /// the epoch changes, the number stands for a new action.
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

    /// A user action that is only supposed, as one that has done nothing yet: for explanations. Use it
    /// for nothing else, as every such action is the same.
    pub const fn supposed() -> Self {
        Self(Numbering::Supposed)
    }

    /// Its id at a moment, unless it ended before.
    fn id_at(self, now: Timestamp, timeline: &Timeline) -> Option<UserAction> {
        let epoch = timeline.epoch(now)?;
        match self.0 {
            Numbering::Begun { id, at } => (timeline.epoch(at)? == epoch).then_some(id),
            Numbering::Given(number) => Some(numbered_id(number, epoch)),
            // The user agent counts up from 1, and never gets there.
            Numbering::Supposed => Some(UserAction((1 << 63) - 1)),
        }
    }
}

/// The id of an action that the application numbers. Consecutive numbers have consecutive ids, far
/// above those of the user agent. The epoch field wraps after 32,768 epochs, some 600 years of weeks.
fn numbered_id(number: u64, EpochIndex(epoch): EpochIndex) -> UserAction {
    let epoch = epoch.cast_unsigned() & 0x7fff;
    UserAction(1 << 63 | epoch << 48 | number)
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

/// A call that saves an impression, parsed by a [`Gate`](crate::Gate): from here on nothing about it can
/// be wrong.
#[derive(Debug, Clone)]
pub struct ImpressionCall {
    pub(crate) occasion: Occasion,
    pub(crate) caller: Caller,
    pub(crate) valid: ValidImpression,
}

impl ImpressionCall {
    /// What it counts: one, and one for each name that it brings besides its site, as
    /// [an impression](bigbird::Impression::units) does.
    pub fn units(&self) -> u32 {
        let lists = self.valid.conversion_sites.len() + self.valid.conversion_callers.len();
        let names = lists + usize::from(self.caller.intermediary.is_some());
        u32::try_from(names).unwrap_or(u32::MAX).saturating_add(1)
    }

    /// The top-level site.
    pub fn site(&self) -> &Site {
        &self.caller.site
    }
}

/// A call that measures, parsed by a [`Gate`](crate::Gate): from here on nothing about it can be wrong.
#[derive(Debug, Clone)]
pub struct ConversionCall {
    pub(crate) occasion: Occasion,
    pub(crate) caller: Caller,
    pub(crate) querier: Querier,
    pub(crate) valid: ValidConversion,
    pub(crate) measurement: Measurement,
}

/// What is measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Measurement {
    /// A conversion.
    Conversion,
    /// A conversion that these sites share. Its handle may be chosen before.
    Create {
        participants: Vec<Site>,
        handle: Option<SharedConversion>,
    },
    /// A share of a shared conversion.
    Share(SharedConversion),
}

/// A page's call, parsed.
#[derive(Debug, Clone)]
pub enum PageCall {
    /// It saves an impression.
    Save(ImpressionCall),
    /// It measures.
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

    /// When it was made, if nobody said which user action caused it.
    pub(crate) fn now_without_action(&self) -> Option<Timestamp> {
        let occasion = match self {
            Self::Save(call) => call.occasion,
            Self::Measure(call) => call.occasion,
        };
        occasion.user_action.is_none().then_some(occasion.now)
    }

    /// The same call, caused by a user action, if it has none.
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

    /// What goes over the wire with its report.
    pub fn envelope(&self) -> Envelope {
        Envelope {
            histogram_size: self.valid.histogram_size,
            epsilon: self.valid.terms.epsilon().micro(),
            max_value: self.valid.terms.max_value(),
            querier: self.querier().clone(),
            conversion_site: self.caller.site.clone(),
            aggregation_service: self.valid.aggregation_service.clone(),
        }
    }

    /// Whether it creates a conversion that several share.
    pub(crate) fn creates_shared(&self) -> bool {
        matches!(self.measurement, Measurement::Create { .. })
    }

    /// Who receives the report, and whose budget pays.
    pub(crate) fn querier(&self) -> &Site {
        match (self.querier, &self.caller.intermediary) {
            (Querier::Intermediary, Some(intermediary)) => intermediary,
            _ => &self.caller.site,
        }
    }

    /// The sites that a user can clear to stop it: the conversion site, and the querier.
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
        // Far from what the user agent gives out, which begins at 1.
        assert!(id(0, 0) >= UserAction(1 << 63));
        let error = Action::numbered(Action::LAST_NUMBER + 1).unwrap_err();
        assert_eq!(
            error.to_string(),
            "userAction must be at most 281474976710655, got 281474976710656"
        );
    }
}
