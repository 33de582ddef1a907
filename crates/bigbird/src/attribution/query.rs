//! Attribution queries: which impressions match, and how a conversion's value is divided.

use std::num::NonZeroU64;

use thiserror::Error;

use super::credit::allocate_credit;
use super::impression::Impression;
use crate::query::{Draws, Query, Release, Relevant, Request};
use crate::{Epsilon, EpsilonError, Noise, SiteId, Timestamp, UserAction};

/// The report of one conversion: its value, divided over the buckets of a histogram.
///
/// A null report has as many buckets as any other, all zero.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Histogram(Vec<u32>);

impl Release for Histogram {}

impl Histogram {
    /// The null report of this many buckets.
    pub fn null(HistogramSize(size): HistogramSize) -> Self {
        Self(vec![0; size as usize])
    }

    /// The value in each bucket.
    pub fn buckets(&self) -> &[u32] {
        &self.0
    }

    /// Whether every bucket is zero.
    pub fn is_null(&self) -> bool {
        self.0.iter().all(|&value| value == 0)
    }

    /// The sum of all buckets: its L1 norm.
    pub fn total(&self) -> u64 {
        self.0.iter().map(|&value| u64::from(value)).sum()
    }

    pub(crate) fn make_null(&mut self, HistogramSize(size): HistogramSize) {
        self.0.clear();
        self.0.resize(size as usize, 0);
    }

    /// Adds to a bucket; a bucket outside the histogram takes nothing.
    pub(crate) fn add(&mut self, index: u32, value: u32) {
        if let Some(bucket) = self.0.get_mut(index as usize) {
            *bucket = bucket.saturating_add(value);
        }
    }
}

/// What a report needs to know of a matching impression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Touch {
    pub(crate) timestamp: Timestamp,
    pub(crate) priority: i32,
    pub(crate) histogram_index: u32,
    pub(crate) match_value: u32,
    /// Who saved the impression.
    pub(crate) caller: SiteId,
    /// Which of the query's callers may measure it, one bit each.
    pub(crate) permitted: u64,
}

/// Divides the value of a conversion over the last impressions that match (the draft's sections
/// Common Impression Matching Logic and Last-N-Touch Attribution).
#[derive(Debug, Clone, PartialEq)]
pub struct AttributionQuery {
    pub(crate) request: Request,
    pub(crate) callers: Vec<SiteId>,
    now: Timestamp,
    not_before: Timestamp,
    /// Sorted, as the two that follow.
    pub(crate) impression_sites: Vec<SiteId>,
    pub(crate) impression_callers: Vec<SiteId>,
    pub(crate) match_values: Vec<u32>,
    pub(crate) terms: Terms,
    histogram_size: HistogramSize,
    read_limits: ReadLimits,
}

/// How much a query reads of one epoch, so that its work is bounded whatever is stored.
///
/// Impressions are read in the order of attribution: by priority, then the newest, then the later
/// saved. So a query that leaves some out gives the histogram it would have given; only who pays
/// changes, as an impression that is not read has no part in it. The limits are per epoch and never
/// per window: what is read of an epoch is a function of that epoch and the query alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadLimits {
    /// How many relevant impressions count at most. A query never reads fewer than its credit list
    /// has shares.
    pub relevant: u32,
    /// How many impressions are looked at to find them. If more than this are open to the conversion
    /// site, and more have a listed impression site, caller or match value, only the first of those
    /// open to it are looked at, and what comes later is as if it were not stored. At least 32, and
    /// at least as many as count.
    pub examined: u32,
}

impl ReadLimits {
    /// So many are looked at without an index.
    pub(super) const LEAST_EXAMINED: u32 = 32;
}

impl Default for ReadLimits {
    /// 1,000 relevant impressions of 2,000 that are looked at.
    fn default() -> Self {
        Self {
            relevant: 1000,
            examined: 2000,
        }
    }
}

/// What a conversion is worth, how that is divided, and the noise that hides it. Valid by
/// construction.
#[derive(Debug, Clone, PartialEq)]
pub struct Terms {
    pub(crate) value: u32,
    pub(crate) credit: Vec<f64>,
    pub(crate) noise: Noise,
}

impl Terms {
    /// The terms of a conversion of a `value` of at most `max_value`, a conversion of which would
    /// cost `epsilon`. The last impression gets the first share of `credit`, and so on.
    ///
    /// # Errors
    /// If anything is out of range; the error names it, its value and the limit.
    pub fn new(
        epsilon: f64,
        value: u32,
        max_value: u32,
        credit: Vec<f64>,
    ) -> Result<Self, QueryError> {
        let epsilon = Epsilon::new(epsilon)?;
        let sensitivity = NonZeroU64::new(2 * u64::from(max_value));
        let sensitivity = sensitivity.filter(|_| (1..=max_value).contains(&value));
        let Some(sensitivity) = sensitivity else {
            let got = value;
            return Err(QueryError::Value { got, max_value });
        };
        if credit.is_empty() {
            return Err(QueryError::NoCredit);
        }
        let wrong = |share: &&f64| share.is_nan() || **share <= 0.0;
        if let Some(&got) = credit.iter().find(wrong) {
            return Err(QueryError::Credit { got });
        }
        let sum: f64 = credit.iter().sum();
        if !sum.is_finite() {
            return Err(QueryError::CreditSum { got: sum });
        }
        Ok(Self {
            value,
            credit,
            noise: Noise::new(epsilon, sensitivity),
        })
    }

    /// The largest value that a conversion can have.
    pub fn max_value(&self) -> u32 {
        u32::try_from(self.noise.sensitivity().get() / 2).unwrap_or(u32::MAX)
    }

    /// What a conversion of the largest value costs.
    pub fn epsilon(&self) -> Epsilon {
        self.noise.epsilon()
    }
}

/// How many buckets a histogram has: 1 to [`HistogramSize::MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HistogramSize(u32);

impl HistogramSize {
    /// The largest size.
    pub const MAX: u32 = 1 << 20;

    /// So many buckets.
    ///
    /// # Errors
    /// If there are none, or too many.
    pub fn new(buckets: u32) -> Result<Self, QueryError> {
        match buckets {
            1..=Self::MAX => Ok(Self(buckets)),
            got => Err(QueryError::HistogramSize { got }),
        }
    }
}

impl AttributionQuery {
    /// How many callers may share one attribution object.
    pub const MAX_CALLERS: usize = 64;

    /// A query at the moment `now`, on some terms, for a histogram of some size. Until it is told
    /// otherwise, it is called by the conversion site and looks at every impression of its window.
    pub fn new(
        request: Request,
        now: Timestamp,
        terms: Terms,
        histogram_size: HistogramSize,
    ) -> Self {
        Self {
            request,
            callers: vec![request.conversion_site],
            now,
            not_before: Timestamp(i64::MIN),
            impression_sites: Vec::new(),
            impression_callers: Vec::new(),
            match_values: Vec::new(),
            terms,
            histogram_size,
            read_limits: ReadLimits::default(),
        }
    }

    /// Starts a query at the moment `now`, for a histogram of `histogram_size` buckets.
    ///
    /// Unless told otherwise it is called by the conversion site, looks at every impression of its
    /// window, gives all credit to the last one, with value and maximal value 1 and epsilon 1.
    pub fn builder(
        request: Request,
        now: Timestamp,
        histogram_size: u32,
    ) -> AttributionQueryBuilder {
        AttributionQueryBuilder {
            request,
            now,
            histogram_size,
            not_before: Timestamp(i64::MIN),
            callers: vec![request.conversion_site],
            impression_sites: Vec::new(),
            impression_callers: Vec::new(),
            match_values: Vec::new(),
            credit: vec![1.0],
            value: 1,
            max_value: 1,
            epsilon: 1.0,
        }
    }

    /// Asks the same question again for another conversion. For simulations: nothing is allocated.
    ///
    /// # Errors
    /// If `not_before` comes after `now`.
    pub fn retarget(
        &mut self,
        request: Request,
        now: Timestamp,
        not_before: Timestamp,
    ) -> Result<(), QueryError> {
        check_lookback(now, not_before)?;
        if let [caller] = self.callers.as_mut_slice()
            && *caller == self.request.conversion_site
        {
            *caller = request.conversion_site;
        }
        self.request = request;
        self.now = now;
        self.not_before = not_before;
        Ok(())
    }

    /// Asks about the impressions of other sites. For simulations: nothing is allocated once there
    /// was room for as many.
    pub fn set_impression_sites(&mut self, sites: impl IntoIterator<Item = SiteId>) {
        self.impression_sites.clear();
        self.impression_sites.extend(sites);
        sort(&mut self.impression_sites);
    }

    /// Asks about impressions that these saved; whoever saved them if there are none.
    pub fn set_impression_callers(&mut self, callers: Vec<SiteId>) {
        self.impression_callers = callers;
        sort(&mut self.impression_callers);
    }

    /// Asks about impressions with one of these match values; with any if there are none.
    pub fn set_match_values(&mut self, values: Vec<u32>) {
        self.match_values = values;
        sort(&mut self.match_values);
    }

    /// Asks about impressions saved at this moment or later: now − lookback.
    pub fn set_not_before(&mut self, moment: Timestamp) {
        self.not_before = moment;
    }

    /// Reads at most so much of an epoch.
    pub fn set_read_limits(&mut self, limits: ReadLimits) {
        self.read_limits = limits;
    }

    /// How much it reads of an epoch.
    pub fn read_limits(&self) -> ReadLimits {
        let shares = u32::try_from(self.terms.credit.len()).unwrap_or(u32::MAX);
        let relevant = self.read_limits.relevant.max(shares);
        let least = relevant.max(ReadLimits::LEAST_EXAMINED);
        ReadLimits {
            relevant,
            examined: self.read_limits.examined.max(least),
        }
    }

    /// What tells a store that reads an epoch in the order of attribution when to stop.
    pub fn enough(&self) -> Enough {
        Enough {
            own: self.request.user_action,
            left: self.read_limits().relevant,
            last: None,
        }
    }

    /// Asks about a conversion of another value. For simulations.
    ///
    /// # Errors
    /// If the value is 0 or above the largest that a conversion can have.
    pub fn set_value(&mut self, value: u32) -> Result<(), QueryError> {
        let max_value = self.terms.max_value();
        if !(1..=max_value).contains(&value) {
            let got = value;
            return Err(QueryError::Value { got, max_value });
        }
        self.terms.value = value;
        Ok(())
    }

    /// The same question with another epsilon: what would that have cost?
    #[must_use]
    pub fn with_epsilon(&self, epsilon: Epsilon) -> Self {
        let mut other = self.clone();
        other.terms.noise = Noise::new(epsilon, self.terms.noise.sensitivity());
        other
    }

    /// Replaces who calls, for an attribution object that several share. More than
    /// [`MAX_CALLERS`](Self::MAX_CALLERS) are cut off.
    pub fn set_callers(&mut self, mut callers: Vec<SiteId>) {
        callers.truncate(Self::MAX_CALLERS);
        self.callers = callers;
    }

    /// Makes one caller ask alone. For simulations: nothing is allocated.
    pub fn set_caller(&mut self, caller: SiteId) {
        self.callers.clear();
        self.callers.push(caller);
    }

    /// What a conversion of the largest value costs.
    pub fn epsilon(&self) -> Epsilon {
        self.terms.epsilon()
    }

    /// The moment of the request: impressions from its future do not match.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Impressions saved before this moment do not match.
    pub fn not_before(&self) -> Timestamp {
        self.not_before
    }

    /// Who calls.
    pub fn callers(&self) -> &[SiteId] {
        &self.callers
    }

    /// Only impressions of these sites match, sorted; of every site if empty.
    pub fn impression_sites(&self) -> &[SiteId] {
        &self.impression_sites
    }

    /// Only impressions that these saved match, sorted; whoever saved them if empty.
    pub fn impression_callers(&self) -> &[SiteId] {
        &self.impression_callers
    }

    /// Only impressions with one of these match values match, sorted; with any if empty.
    pub fn match_values(&self) -> &[u32] {
        &self.match_values
    }

    /// The report of nothing.
    pub fn null_report(&self) -> Histogram {
        Histogram::null(self.histogram_size)
    }

    /// The largest value of a conversion that the noise is made for, doubled: how far a histogram
    /// can move.
    fn worst_case(&self) -> u64 {
        2 * u64::from(self.terms.value)
    }

    /// Gives the impressions that get credit, the first to get it first, each with its part.
    pub(crate) fn credited<'e>(
        &self,
        events: &'e mut [Relevant<Touch>],
        draws: &mut Draws<'_>,
    ) -> impl Iterator<Item = (&'e Relevant<Touch>, u32)> + use<'e> {
        let count = events.len().min(self.terms.credit.len());
        if count > 0 && count < events.len() {
            events.select_nth_unstable_by_key(count - 1, rank);
        }
        let chosen = &mut events[..count];
        let one = (count == 1).then_some(self.terms.value);
        let many = (count > 1).then(|| {
            chosen.sort_unstable_by_key(rank);
            allocate_credit(&self.terms.credit[..count], self.terms.value, || {
                draws.draw()
            })
        });
        chosen
            .iter()
            .zip(one.into_iter().chain(many.into_iter().flatten()))
    }
}

/// Says when a query that reads relevant events in the order of attribution has enough of them.
#[derive(Debug)]
pub struct Enough {
    own: UserAction,
    left: u32,
    last: Option<u32>,
}

impl Enough {
    /// Whether no event after this one can count. Those of the query's own user action may not count
    /// at all, which is for the policy to say; and one that several may call for comes several times.
    pub fn with(&mut self, event: &Relevant<Touch>) -> bool {
        if event.user_action != self.own && self.last != Some(event.order) {
            self.left = self.left.saturating_sub(1);
        }
        self.last = Some(event.order);
        self.left == 0
    }
}

/// The order of attribution: the least gets credit first. At equal priority and time, the later saved
/// comes first (notes on the draft, row 14).
fn rank(event: &Relevant<Touch>) -> impl Ord + use<> {
    let Touch {
        priority,
        timestamp,
        ..
    } = event.detail;
    std::cmp::Reverse((priority, timestamp, event.epoch, event.order))
}

impl Query for AttributionQuery {
    type Event<'e> = Impression<'e>;
    type Detail = Touch;
    type Report = Histogram;

    fn request(&self) -> Request {
        self.request
    }

    fn noise(&self) -> Noise {
        self.terms.noise
    }

    fn relevant(&self, impression: Impression<'_>) -> Option<Touch> {
        let in_time = impression.timestamp <= self.now
            && impression.timestamp >= self.not_before
            && impression.expires >= self.now;
        let caller = impression.caller();
        let asked_for = named(&self.impression_sites, impression.site)
            && named(&self.impression_callers, caller)
            && named(&self.match_values, impression.match_value);
        let open_to_site = impression.conversion_sites.is_empty()
            || impression
                .conversion_sites
                .contains(&self.request.conversion_site);
        if !(in_time && asked_for && open_to_site) {
            return None;
        }
        let permitted = if impression.conversion_callers.is_empty() {
            u64::MAX
        } else {
            (0..)
                .zip(&self.callers)
                .filter(|(_, caller)| impression.conversion_callers.contains(caller))
                .fold(0, |bits, (bit, _)| bits | 1 << bit)
        };
        (permitted != 0).then_some(Touch {
            timestamp: impression.timestamp,
            priority: impression.priority,
            histogram_index: impression.histogram_index,
            match_value: impression.match_value,
            caller,
            permitted,
        })
    }

    fn keep_first(&self, events: &mut Vec<Relevant<Touch>>, begin: usize) {
        let found = events.len() - begin;
        if found <= self.read_limits.relevant as usize {
            return;
        }
        let most = self.read_limits().relevant as usize;
        if found > most {
            events[begin..].select_nth_unstable_by_key(most, rank);
            events.truncate(begin + most);
        }
    }

    fn report(
        &self,
        events: &mut [Relevant<Touch>],
        draws: &mut Draws<'_>,
        report: &mut Histogram,
    ) {
        report.make_null(self.histogram_size);
        for (event, credit) in self.credited(events, draws) {
            report.add(event.detail.histogram_index, credit);
        }
    }

    fn individual_sensitivity(&self, report: &Histogram) -> u64 {
        report.total()
    }

    /// Twice the value: removing impressions can move all of it from one bucket to another.
    fn epoch_sensitivity(&self, _: &[Relevant<Touch>]) -> u64 {
        self.worst_case()
    }

    fn site_sensitivity(&self, _: &[Relevant<Touch>]) -> u64 {
        self.worst_case()
    }
}

/// Whether a sorted list names an item; the empty list names everything.
pub(crate) fn named<T: Ord + Copy>(list: &[T], item: T) -> bool {
    list.is_empty() || list.binary_search(&item).is_ok()
}

fn check_lookback(now: Timestamp, not_before: Timestamp) -> Result<(), QueryError> {
    if not_before > now {
        return Err(QueryError::Lookback { now, not_before });
    }
    Ok(())
}

/// Builds an [`AttributionQuery`]; [`build`](AttributionQueryBuilder::build) checks all of it.
#[derive(Debug, Clone)]
#[must_use]
pub struct AttributionQueryBuilder {
    request: Request,
    now: Timestamp,
    histogram_size: u32,
    not_before: Timestamp,
    callers: Vec<SiteId>,
    impression_sites: Vec<SiteId>,
    impression_callers: Vec<SiteId>,
    match_values: Vec<u32>,
    credit: Vec<f64>,
    value: u32,
    max_value: u32,
    epsilon: f64,
}

impl AttributionQueryBuilder {
    /// Only impressions saved at this moment or later match: now − lookback.
    pub fn not_before(mut self, moment: Timestamp) -> Self {
        self.not_before = moment;
        self
    }

    /// Who calls: an intermediary, or the conversion site. Of an impression that names its
    /// conversion callers, it must be one. For an attribution object, everyone who will share it.
    pub fn callers(mut self, callers: impl Into<Vec<SiteId>>) -> Self {
        self.callers = callers.into();
        self
    }

    /// Only impressions of these sites match; of every site if empty.
    pub fn impression_sites(mut self, sites: impl Into<Vec<SiteId>>) -> Self {
        self.impression_sites = sites.into();
        self
    }

    /// Only impressions that these saved match; whoever saved them if empty.
    pub fn impression_callers(mut self, callers: impl Into<Vec<SiteId>>) -> Self {
        self.impression_callers = callers.into();
        self
    }

    /// Only impressions with one of these match values match; with any if empty.
    pub fn match_values(mut self, values: impl Into<Vec<u32>>) -> Self {
        self.match_values = values.into();
        self
    }

    /// How credit is divided: the last impression gets the first share, and so on.
    pub fn credit(mut self, credit: impl Into<Vec<f64>>) -> Self {
        self.credit = credit.into();
        self
    }

    /// The value of the conversion, and the largest value that a conversion can have.
    pub fn value(mut self, value: u32, max_value: u32) -> Self {
        self.value = value;
        self.max_value = max_value;
        self
    }

    /// What a conversion of the largest value costs.
    pub fn epsilon(mut self, epsilon: f64) -> Self {
        self.epsilon = epsilon;
        self
    }

    /// The query.
    ///
    /// # Errors
    /// If anything is out of range; the error names it, its value and the limit.
    pub fn build(self) -> Result<AttributionQuery, QueryError> {
        let terms = Terms::new(self.epsilon, self.value, self.max_value, self.credit)?;
        check_lookback(self.now, self.not_before)?;
        let histogram_size = HistogramSize::new(self.histogram_size)?;
        if !(1..=AttributionQuery::MAX_CALLERS).contains(&self.callers.len()) {
            return Err(QueryError::Callers {
                got: self.callers.len(),
            });
        }
        let mut query = AttributionQuery::new(self.request, self.now, terms, histogram_size);
        query.callers = self.callers;
        query.not_before = self.not_before;
        query.set_impression_sites(self.impression_sites);
        query.set_impression_callers(self.impression_callers);
        query.set_match_values(self.match_values);
        Ok(query)
    }
}

fn sort<T: Ord>(list: &mut Vec<T>) {
    list.sort_unstable();
    list.dedup();
}

/// Why there is no such query. Nothing was charged.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
#[non_exhaustive]
pub enum QueryError {
    /// The epsilon is out of range.
    #[error(transparent)]
    Epsilon(#[from] EpsilonError),
    /// The value is zero or above the maximal value.
    #[error("value must be in [1, maxValue = {max_value}], got {got}")]
    Value {
        /// What was given.
        got: u32,
        /// The largest value a conversion can have.
        max_value: u32,
    },
    /// There is no credit to give.
    #[error("credit must have at least 1 share, got 0")]
    NoCredit,
    /// A share of credit is not positive.
    #[error("every share of credit must be above 0, got {got}")]
    Credit {
        /// What was given.
        got: f64,
    },
    /// The shares of credit are too large to divide with.
    #[error("the sum of credit must be finite, got {got}")]
    CreditSum {
        /// The sum.
        got: f64,
    },
    /// The histogram has no buckets, or too many.
    #[error(
        "histogram size must be in [1, {max}], got {got}",
        max = HistogramSize::MAX
    )]
    HistogramSize {
        /// What was given.
        got: u32,
    },
    /// Nobody calls, or too many do.
    #[error(
        "the callers must be 1 to {max}, got {got}",
        max = AttributionQuery::MAX_CALLERS
    )]
    Callers {
        /// How many were given.
        got: usize,
    },
    /// The lookback begins after now.
    #[error(
        "the lookback must not begin after now, got {} after {}",
        not_before.0, now.0
    )]
    Lookback {
        /// The moment of the request.
        now: Timestamp,
        /// Where its lookback begins.
        not_before: Timestamp,
    },
}
