//! Building an attribution query.

use super::error::QueryError;
use super::histogram::HistogramSize;
use super::query::{AttributionQuery, check_lookback};
use super::terms::Terms;
use crate::query::ReportRequest;
use crate::{SiteId, Timestamp};

/// Builds an [`AttributionQuery`]. [`build`](AttributionQueryBuilder::build) checks every value.
#[derive(Debug, Clone)]
#[must_use]
pub struct AttributionQueryBuilder {
    request: ReportRequest,
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
    pub(super) fn new(request: ReportRequest, now: Timestamp, histogram_size: u32) -> Self {
        Self {
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

    /// The beginning of the lookback, now − lookback. Only impressions saved at this moment or
    /// later match.
    pub fn not_before(mut self, moment: Timestamp) -> Self {
        self.not_before = moment;
        self
    }

    /// The callers: the intermediary if there is one, otherwise the conversion site. An impression
    /// that names its conversion callers matches only if it names one of these. For an attribution
    /// object, name every participant.
    pub fn callers(mut self, callers: impl Into<Vec<SiteId>>) -> Self {
        self.callers = callers.into();
        self
    }

    /// The impression sites. Only impressions of these sites match. If empty, those of every site
    /// do.
    pub fn impression_sites(mut self, sites: impl Into<Vec<SiteId>>) -> Self {
        self.impression_sites = sites.into();
        self
    }

    /// The impression callers. Only impressions that these sites saved match. If empty, it does not
    /// matter who saved them.
    pub fn impression_callers(mut self, callers: impl Into<Vec<SiteId>>) -> Self {
        self.impression_callers = callers.into();
        self
    }

    /// The match values. Only impressions with one of these match. If empty, every match value
    /// does.
    pub fn match_values(mut self, values: impl Into<Vec<u32>>) -> Self {
        self.match_values = values.into();
        self
    }

    /// The shares by which the value is divided: the last impression gets the first share, and so
    /// on.
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

    /// The privacy loss of a conversion of the largest value.
    pub fn epsilon(mut self, epsilon: f64) -> Self {
        self.epsilon = epsilon;
        self
    }

    /// Builds the query.
    ///
    /// # Errors
    /// If a value is out of range. The error names the value and what is allowed.
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
        query.set_not_before(self.not_before);
        query.set_impression_sites(self.impression_sites);
        query.set_impression_callers(self.impression_callers);
        query.set_match_values(self.match_values);
        Ok(query)
    }
}
