//! Attribution queries: they select impressions and divide a conversion's value over them.

use super::builder::AttributionQueryBuilder;
use super::credit::allocate_credit;
use super::error::QueryError;
use super::histogram::{Histogram, HistogramSize};
use super::impression::Impression;
use super::object::AttributionObject;
use super::read_limits::{ReadLimits, StopRule};
use super::terms::Terms;
use crate::query::{Draws, Query, Relevant, ReportRequest};
use crate::{Epsilon, Noise, SiteId, Timestamp};

/// The data about a matching impression that a report needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatchedImpression {
    pub(crate) timestamp: Timestamp,
    pub(crate) priority: i32,
    pub(crate) histogram_index: u32,
    pub(crate) match_value: u32,
    /// The site that saved the impression.
    pub(crate) caller: SiteId,
    /// The callers of the query that may measure it, one bit each.
    pub(crate) permitted: u64,
}

/// Divides the value of a conversion over the last impressions that match (the draft's sections
/// Common Impression Matching Logic and Last-N-Touch Attribution).
#[derive(Debug, Clone, PartialEq)]
pub struct AttributionQuery {
    pub(crate) request: ReportRequest,
    pub(crate) callers: Vec<SiteId>,
    now: Timestamp,
    not_before: Timestamp,
    /// Sorted, like the two lists that follow.
    pub(crate) impression_sites: Vec<SiteId>,
    pub(crate) impression_callers: Vec<SiteId>,
    pub(crate) match_values: Vec<u32>,
    pub(crate) terms: Terms,
    histogram_size: HistogramSize,
    read_limits: ReadLimits,
    pub(crate) max_shares: usize,
}

impl AttributionQuery {
    /// The largest number of callers of one query, and thus of participants that share one
    /// attribution object.
    pub const MAX_CALLERS: usize = 64;

    /// A query at the moment `now`. Unless changed, its caller is the conversion site, and it
    /// matches every impression of its window.
    pub fn new(
        request: ReportRequest,
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
            max_shares: AttributionObject::MAX_SHARES,
        }
    }

    /// Starts a query at the moment `now`, for a histogram of `histogram_size` buckets.
    ///
    /// By default, its caller is the conversion site, it matches every impression of its window,
    /// and it gives all credit to the last one. The value, the largest value and epsilon are 1.
    pub fn builder(
        request: ReportRequest,
        now: Timestamp,
        histogram_size: u32,
    ) -> AttributionQueryBuilder {
        AttributionQueryBuilder::new(request, now, histogram_size)
    }

    /// Changes the query to ask the same question for another conversion. Meant for simulations: it
    /// allocates nothing.
    ///
    /// # Errors
    /// If `not_before` is after `now`.
    pub fn retarget(
        &mut self,
        request: ReportRequest,
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

    /// Replaces the impression sites. If empty, impressions of every site match. Meant for
    /// simulations: it reuses the list's memory.
    pub fn set_impression_sites(&mut self, sites: impl IntoIterator<Item = SiteId>) {
        self.impression_sites.clear();
        self.impression_sites.extend(sites);
        sort(&mut self.impression_sites);
    }

    /// Replaces the impression callers. If empty, it does not matter who saved an impression.
    pub fn set_impression_callers(&mut self, callers: Vec<SiteId>) {
        self.impression_callers = callers;
        sort(&mut self.impression_callers);
    }

    /// Replaces the match values. If empty, every match value matches. It reuses the list's memory.
    pub fn set_match_values(&mut self, values: impl IntoIterator<Item = u32>) {
        self.match_values.clear();
        self.match_values.extend(values);
        sort(&mut self.match_values);
    }

    /// Sets the beginning of the lookback, now − lookback. Only impressions saved at this moment or
    /// later match.
    pub fn set_not_before(&mut self, moment: Timestamp) {
        self.not_before = moment;
    }

    /// Sets the limits on what is read of each epoch.
    pub fn set_read_limits(&mut self, limits: ReadLimits) {
        self.read_limits = limits;
    }

    /// Sets the number of shares that can be taken from an attribution object. Larger numbers than
    /// [`AttributionObject::MAX_SHARES`] count as that.
    pub fn set_max_shares(&mut self, shares: usize) {
        self.max_shares = shares.min(AttributionObject::MAX_SHARES);
    }

    /// The limits on what is read of each epoch, after applying their minimum values.
    pub fn read_limits(&self) -> ReadLimits {
        let shares = u32::try_from(self.terms.credit.len()).unwrap_or(u32::MAX);
        let relevant = self.read_limits.relevant.max(shares);
        let least = relevant.max(ReadLimits::LEAST_EXAMINED);
        ReadLimits {
            relevant,
            examined: self.read_limits.examined.max(least),
        }
    }

    /// The rule that tells a store when to stop reading an epoch in the order of attribution.
    pub fn stop_rule(&self) -> StopRule {
        StopRule::new(self.request.user_action, self.read_limits().relevant)
    }

    /// Sets the value of the conversion. Meant for simulations.
    ///
    /// # Errors
    /// If the value is 0 or above the largest value that a conversion can have.
    pub fn set_value(&mut self, value: u32) -> Result<(), QueryError> {
        let max_value = self.terms.max_value();
        if !(1..=max_value).contains(&value) {
            let got = value;
            return Err(QueryError::Value { got, max_value });
        }
        self.terms.value = value;
        Ok(())
    }

    /// Sets epsilon, the value of the conversion, and the largest value that a conversion can have.
    /// Meant for simulations: it allocates nothing.
    ///
    /// # Errors
    /// If the value is 0 or above the largest value.
    pub fn set_price(
        &mut self,
        epsilon: Epsilon,
        value: u32,
        max_value: u32,
    ) -> Result<(), QueryError> {
        self.terms.set_price(epsilon, value, max_value)
    }

    /// The same query with another epsilon, to find out what it would have cost.
    #[must_use]
    pub fn with_epsilon(&self, epsilon: Epsilon) -> Self {
        let mut other = self.clone();
        other.terms.noise = Noise::new(epsilon, self.terms.noise.sensitivity());
        other
    }

    /// Replaces the callers, for an attribution object with several participants. Callers beyond
    /// [`MAX_CALLERS`](Self::MAX_CALLERS) are ignored.
    pub fn set_callers(&mut self, mut callers: Vec<SiteId>) {
        callers.truncate(Self::MAX_CALLERS);
        self.callers = callers;
    }

    /// Replaces the callers by one caller. Meant for simulations: it allocates nothing.
    pub fn set_caller(&mut self, caller: SiteId) {
        self.callers.clear();
        self.callers.push(caller);
    }

    /// The privacy loss of a conversion of the largest value.
    pub fn epsilon(&self) -> Epsilon {
        self.terms.epsilon()
    }

    /// The moment of the request. Impressions saved later do not match.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// The beginning of the lookback. Impressions saved before this moment do not match.
    pub fn not_before(&self) -> Timestamp {
        self.not_before
    }

    /// The callers.
    pub fn callers(&self) -> &[SiteId] {
        &self.callers
    }

    /// The impression sites, sorted. Only their impressions match. If empty, those of every site
    /// do.
    pub fn impression_sites(&self) -> &[SiteId] {
        &self.impression_sites
    }

    /// The impression callers, sorted. Only impressions that they saved match. If empty, it does
    /// not matter who saved them.
    pub fn impression_callers(&self) -> &[SiteId] {
        &self.impression_callers
    }

    /// The match values, sorted. Only impressions with one of these match. If empty, every match
    /// value does.
    pub fn match_values(&self) -> &[u32] {
        &self.match_values
    }

    /// The null report of this query.
    pub fn null_report(&self) -> Histogram {
        Histogram::null(self.histogram_size)
    }

    /// The most that a histogram can change: twice the value of the conversion.
    fn worst_case(&self) -> u64 {
        2 * u64::from(self.terms.value)
    }

    /// The impressions that get credit, in the order of attribution, each with its part of the
    /// value.
    pub(crate) fn credited<'e>(
        &self,
        events: &'e mut [Relevant<MatchedImpression>],
        draws: &mut Draws<'_>,
    ) -> impl Iterator<Item = (&'e Relevant<MatchedImpression>, u32)> + use<'e> {
        let count = events.len().min(self.terms.credit.len());
        if count == 1 {
            // Last touch, the common case: the smallest key is found in one pass.
            let first = (1..events.len()).fold(0, |first, at| {
                match rank(&events[at]) < rank(&events[first]) {
                    true => at,
                    false => first,
                }
            });
            events.swap(0, first);
        } else if count > 0 && count < events.len() {
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

/// The sort key of the order of attribution: the smallest key gets credit first. At equal priority
/// and time, the impression that was saved later comes first (notes on the draft, row 14).
fn rank(event: &Relevant<MatchedImpression>) -> impl Ord + use<> {
    let MatchedImpression {
        priority,
        timestamp,
        ..
    } = event.detail;
    std::cmp::Reverse((priority, timestamp, event.epoch, event.order))
}

impl Query for AttributionQuery {
    type Event<'e> = Impression<'e>;
    type Detail = MatchedImpression;
    type Report = Histogram;

    fn request(&self) -> ReportRequest {
        self.request
    }

    fn noise(&self) -> Noise {
        self.terms.noise
    }

    #[inline]
    fn relevant(&self, impression: Impression<'_>) -> Option<MatchedImpression> {
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
        (permitted != 0).then_some(MatchedImpression {
            timestamp: impression.timestamp,
            priority: impression.priority,
            histogram_index: impression.histogram_index,
            match_value: impression.match_value,
            caller,
            permitted,
        })
    }

    fn keep_first(&self, events: &mut Vec<Relevant<MatchedImpression>>, begin: usize) {
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
        events: &mut [Relevant<MatchedImpression>],
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

    /// Twice the value: removing impressions can move the whole value from one bucket to another.
    fn epoch_sensitivity(&self, _: &[Relevant<MatchedImpression>]) -> u64 {
        self.worst_case()
    }

    fn site_sensitivity(&self, _: &[Relevant<MatchedImpression>]) -> u64 {
        self.worst_case()
    }
}

/// True if a sorted list names an item. The empty list names everything.
#[inline]
pub(crate) fn named<T: Ord + Copy>(list: &[T], item: T) -> bool {
    match list {
        [] => true,
        [only] => *only == item,
        list => list.binary_search(&item).is_ok(),
    }
}

pub(super) fn check_lookback(now: Timestamp, not_before: Timestamp) -> Result<(), QueryError> {
    if not_before > now {
        return Err(QueryError::Lookback { now, not_before });
    }
    Ok(())
}

fn sort<T: Ord>(list: &mut Vec<T>) {
    list.sort_unstable();
    list.dedup();
}
