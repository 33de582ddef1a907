//! Explanations: why a report was null, and what would have fitted.

use std::fmt;

use bigbird::{
    AttributionQuery, Cause, Check, Decision, Fate, Filter, FilterKind, Histogram, Limit,
    MicroEpsilon, Obstacle, Query as _, Timestamp, UserAction,
};

use crate::history::{EpochAccount, ExplanationRecord, FilterAccount};
use crate::site::Site;

/// An explanation of the report that a conversion would give. It is for developers on the device.
/// It shows what is stored and spent, so nothing here turns it into something to send.
///
/// ```compile_fail
/// fn send(report: impl bigbird::Release) {}
/// fn leak(explanation: bigbird_user_agent::Explanation) {
///     send(explanation)
/// }
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    /// True if the API is enabled.
    pub enabled: bool,
    /// The report that the conversion would give. There is none for a shared conversion, because
    /// shares are taken later.
    pub report: Option<Histogram>,
    /// The first epoch of the window that may be read, if the user cleared a part of the window.
    pub readable_from: Option<i64>,
    /// The site of the call whose data the user cleared, if that hides an epoch of the window.
    /// Under `w3c-draft`, clearing does not hide the epoch but spends the site's budget there.
    pub closed: Option<Site>,
    /// The reason why a share is refused as a whole, if it is refused.
    pub share_refusal: Option<ShareRefusal>,
    /// The cause to report, if an epoch was dropped.
    pub cause: Option<Cause>,
    /// An explanation of each epoch, oldest first.
    pub epochs: Vec<EpochExplanation>,
    /// The newest stored impressions, if none matched, each with the reason.
    pub unmatched: Vec<UnmatchedImpression>,
}

/// A stored impression that did not match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnmatchedImpression {
    /// The site that showed the ad.
    pub site: Site,
    /// The moment when it was saved.
    pub timestamp: Timestamp,
    /// The epoch of that moment.
    pub epoch: i64,
    /// Its bucket.
    pub histogram_index: u32,
    /// Its match value.
    pub match_value: u32,
    /// The reason why it did not match.
    pub obstacle: Obstacle,
}

impl UnmatchedImpression {
    /// The most that an explanation lists.
    pub(crate) const LISTED: usize = 5;

    /// The reason in words, in which `it` is the impression.
    pub fn reason(&self) -> String {
        match self.obstacle {
            Obstacle::OutsideWindow => {
                format!(
                    "it is of epoch {}, which the conversion does not read",
                    self.epoch
                )
            }
            Obstacle::SavedLater => "it was saved after the conversion".to_owned(),
            Obstacle::BeforeLookback => {
                "it was saved before the lookback of the conversion (lookbackDays)".to_owned()
            }
            Obstacle::Expired => "it had expired (its lifetimeDays)".to_owned(),
            Obstacle::ConversionSite => {
                "it allows other conversion sites only (its conversionSites)".to_owned()
            }
            Obstacle::Caller => "it allows other callers only (its conversionCallers)".to_owned(),
            Obstacle::ImpressionSite => {
                "the conversion asks for ads on other sites (impressionSites)".to_owned()
            }
            Obstacle::ImpressionCaller => {
                "the conversion asks for ads that other sites saved (impressionCallers)".to_owned()
            }
            Obstacle::MatchValue => format!(
                "its match value {} is not among those of the conversion (matchValues)",
                self.match_value
            ),
            Obstacle::OwnAction => {
                "the same user action saved it, and an action cannot measure its own ads".to_owned()
            }
        }
    }
}

/// The reason why a share is refused as a whole. Such a share is null and costs nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShareRefusal {
    /// No shared conversion has this handle, or it was removed.
    Unknown,
    /// The share does not fit the shared conversion.
    Unfit,
}

impl fmt::Display for ShareRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Unknown => "no shared conversion has this handle, or it was removed",
            Self::Unfit => {
                "the share does not fit the shared conversion, for one of these reasons: the caller is \
                 not a participant; the conversion site, epsilon, value, maxValue or credit \
                 differs; some of its impressions were already taken; or too many shares were taken"
            }
        })
    }
}

/// An explanation of one epoch.
#[derive(Debug, Clone, PartialEq)]
pub struct EpochExplanation {
    /// The index of the epoch, counted from the start of the device's epochs.
    pub epoch: i64,
    /// The number of impressions that matched.
    pub matched: usize,
    /// The fate of the epoch: how it ended.
    pub fate: Fate,
    /// The filters that were asked to pay. History leaves out some impression-site quotas if there
    /// are many.
    pub filters: Vec<FilterExplanation>,
    /// The number of filters that are left out.
    pub filters_left_out: usize,
    /// The largest epsilon with which the epoch would have passed, if it was dropped and there is
    /// one.
    pub largest_epsilon: Option<MicroEpsilon>,
}

/// The balance of one filter, and the loss that it was asked to pay.
#[derive(Debug, Clone, PartialEq)]
pub struct FilterExplanation {
    /// The site of the filter, if the filter belongs to a site.
    pub site: Option<Site>,
    /// The balance, and the loss that was asked.
    pub check: Check,
}

impl fmt::Display for FilterExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Check { balance, asked, .. } = &self.check;
        let name = FilterName(self.check.filter, self.site.as_ref());
        write!(
            f,
            "{name}: {} of {} consumed, {asked} asked for",
            balance.consumed, balance.capacity
        )?;
        let short_by = self.check.short_by();
        if !short_by.is_zero() {
            write!(f, ", short by {short_by}")?;
        }
        Ok(())
    }
}

/// The name of a filter, such as `querier budget of shop.example`.
pub(crate) struct FilterName<'a>(pub(crate) Filter, pub(crate) Option<&'a Site>);

impl fmt::Display for FilterName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(filter, site) = self;
        write!(f, "{}", filter.kind())?;
        match (site, filter, filter.site()) {
            (Some(site), ..) => write!(f, " of {site}"),
            (None, Filter::UserActionBudget(UserAction(id)), _) => write!(f, " of action {id}"),
            (None, _, Some(id)) => write!(f, " of site {}", id.0),
            (None, _, None) => Ok(()),
        }
    }
}

/// The result of a dry run: the report, if there is one, and the decision.
pub(crate) type DryRun = (Option<Histogram>, Decision);

impl Explanation {
    /// True if the user cleared every epoch that the conversion would read.
    pub fn nothing_readable(&self) -> bool {
        self.readable_from.is_some() && self.epochs.is_empty()
    }

    /// The explanation of a request while the API is disabled.
    pub(crate) fn disabled(report: Option<Histogram>) -> Self {
        Self {
            enabled: false,
            readable_from: None,
            closed: None,
            share_refusal: None,
            report,
            cause: None,
            epochs: Vec::new(),
            unmatched: Vec::new(),
        }
    }

    /// The name in JSON of the cause to report, if there is one.
    pub fn cause_name(&self) -> Option<&'static str> {
        match (self.cause, self.share_refusal) {
            (Some(cause), _) => Some(cause_name(cause)),
            (None, _) if !self.enabled => Some("disabled"),
            (None, Some(ShareRefusal::Unknown)) => Some("unknownShare"),
            (None, Some(ShareRefusal::Unfit)) => Some("unfitShare"),
            (None, None) if self.nothing_readable() => Some("cleared"),
            (None, None) => None,
        }
    }

    /// The largest epsilon with which no epoch would have been dropped, if epochs were dropped and
    /// there is one.
    pub fn largest_epsilon(&self) -> Option<MicroEpsilon> {
        ExplanationRecord::from(self.clone()).largest_epsilon()
    }

    /// The explanation in one sentence, for the user.
    pub fn sentence(&self) -> String {
        // Only a shared conversion has no report.
        ExplanationRecord::from(self.clone()).sentence(self.report.is_none())
    }

    /// Explains a decision. `name` gives the site of a filter. In each epoch at most `quotas`
    /// impression-site quotas are listed, those that could not pay first.
    pub(crate) fn of_decision<E>(
        query: &AttributionQuery,
        report: Option<Histogram>,
        decision: &Decision,
        quotas: usize,
        name: &dyn Fn(Filter) -> Result<Option<Site>, E>,
    ) -> Result<Self, E> {
        let mut epochs = Vec::new();
        for epoch in decision.epochs() {
            let all = epoch.checks.iter().chain(epoch.dropped_sites);
            let is_quota = |check: &Check| check.filter.kind() == FilterKind::ImpressionSiteQuota;
            let is_short = |check: &&Check| is_quota(check) && !check.fits();
            let mut short = all.clone().filter(is_short).count().min(quotas);
            let mut paying = quotas - short;
            let mut left_out = 0;
            let listed = all.filter(|check| {
                let room = match check.fits() {
                    _ if !is_quota(check) => return true,
                    true => &mut paying,
                    false => &mut short,
                };
                left_out += usize::from(*room == 0);
                *room > 0 && {
                    *room -= 1;
                    true
                }
            });
            let filters: Result<Vec<_>, E> = listed
                .map(|check| {
                    Ok(FilterExplanation {
                        site: name(check.filter)?,
                        check: *check,
                    })
                })
                .collect();
            epochs.push(EpochExplanation {
                epoch: epoch.epoch.0,
                matched: epoch.matched,
                fate: epoch.fate,
                filters: filters?,
                filters_left_out: left_out,
                largest_epsilon: None,
            });
        }
        Ok(Self {
            enabled: true,
            readable_from: query.request().window.first_readable().map(|epoch| epoch.0),
            closed: None,
            share_refusal: None,
            cause: decision.first_cause(),
            report,
            epochs,
            unmatched: Vec::new(),
        })
    }

    /// Explains the result that `run` gives for a query. `name` gives the site of a filter.
    ///
    /// With `search`, it looks for the largest epsilon with which a dropped epoch would have
    /// passed.
    pub(crate) fn of<E>(
        query: &AttributionQuery,
        search: bool,
        name: &dyn Fn(Filter) -> Result<Option<Site>, E>,
        mut run: impl FnMut(&AttributionQuery) -> Result<DryRun, E>,
    ) -> Result<Self, E> {
        let (report, decision) = run(query)?;
        let mut explained = Self::of_decision(query, report, &decision, usize::MAX, name)?;
        for (at, epoch) in explained.epochs.iter_mut().enumerate() {
            let refused = matches!(epoch.fate, Fate::Dropped(Cause::Filter(_)));
            if search && refused {
                epoch.largest_epsilon = query.largest_epsilon(|query| {
                    let (_, decision) = run(query)?;
                    let fate = decision.epochs().nth(at).map(|epoch| epoch.fate);
                    Ok(fate == Some(Fate::Passed))
                })?;
            }
        }
        Ok(explained)
    }
}

impl From<EpochExplanation> for EpochAccount {
    fn from(explained: EpochExplanation) -> Self {
        Self {
            epoch: explained.epoch,
            matched: explained.matched,
            passed: explained.fate == Fate::Passed,
            cause: match explained.fate {
                Fate::Dropped(cause) => Some(cause_name(cause).into()),
                _ => None,
            },
            filters: explained
                .filters
                .into_iter()
                .map(FilterAccount::from)
                .collect(),
            filters_left_out: explained.filters_left_out,
            largest_epsilon: explained.largest_epsilon,
        }
    }
}

impl From<FilterExplanation> for FilterAccount {
    fn from(explained: FilterExplanation) -> Self {
        let Check {
            filter,
            balance,
            asked,
            ..
        } = explained.check;
        Self {
            limit: filter.kind().limit(),
            site: explained.site,
            user_action: match filter {
                Filter::UserActionBudget(action) => Some(action.0),
                _ => None,
            },
            consumed: balance.consumed.get(),
            capacity: balance.capacity.amount().map(MicroEpsilon::get),
            asked: asked.get(),
        }
    }
}

/// The name of a cause in JSON.
fn cause_name(cause: Cause) -> &'static str {
    cause.limit().map_or("pruned", Limit::key)
}
