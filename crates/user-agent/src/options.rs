//! The options of `saveImpression()` and `measureConversion()`, their defaults and their limits
//! (the draft's sections Saving Impressions, Requesting Attribution for a Conversion, and Setting
//! Implementation-Defined Values).

use std::collections::BTreeMap;

use bigbird::{Epsilon, EpsilonError, HistogramSize, QueryError, Terms};
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::error::{ApiError, RangeError};
use crate::site::Site;

/// The options that a page passes to `saveImpression()`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImpressionOptions {
    /// The bucket that gets the credit of the impression.
    pub histogram_index: u32,
    /// A number by which conversions can select the impression.
    #[serde(default)]
    pub match_value: u32,
    /// The conversion sites that may measure the impression. An empty list allows every site.
    #[serde(default)]
    pub conversion_sites: Vec<String>,
    /// The callers that may measure the impression. An empty list allows every caller.
    #[serde(default)]
    pub conversion_callers: Vec<String>,
    /// The number of days for which the impression can match. It has 64 bits because a header can
    /// contain a number that does not fit into 32.
    #[serde(default = "default_lifetime")]
    pub lifetime_days: u64,
    /// The priority. Impressions with a higher priority get credit first.
    #[serde(default)]
    pub priority: i32,
}

impl ImpressionOptions {
    /// Options with the draft's defaults.
    pub const fn new(histogram_index: u32) -> Self {
        Self {
            histogram_index,
            match_value: 0,
            conversion_sites: Vec::new(),
            conversion_callers: Vec::new(),
            lifetime_days: default_lifetime(),
            priority: 0,
        }
    }
}

/// The options that a page passes to `measureConversion()`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConversionOptions {
    /// The URL of the aggregation service, exactly as the browser lists it.
    pub aggregation_service: String,
    /// The epsilon that a conversion of the largest value costs.
    #[serde(default = "default_epsilon")]
    pub epsilon: f64,
    /// The number of buckets of the histogram.
    pub histogram_size: u32,
    /// The number of days that the request looks back. The default is the maximum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lookback_days: Option<u64>,
    /// The match values of the impressions to measure. An empty list selects all impressions.
    #[serde(default)]
    pub match_values: Vec<u32>,
    /// The sites of the impressions to measure. An empty list selects all impressions.
    #[serde(default)]
    pub impression_sites: Vec<String>,
    /// The callers that saved the impressions to measure. An empty list selects all impressions.
    #[serde(default)]
    pub impression_callers: Vec<String>,
    /// The shares in which the value is divided over the last impressions.
    #[serde(default = "default_credit")]
    pub credit: Vec<f64>,
    /// The value of the conversion.
    #[serde(default = "default_value")]
    pub value: u32,
    /// The largest value that a conversion can have.
    #[serde(default = "default_value")]
    pub max_value: u32,
}

impl ConversionOptions {
    /// Options with the draft's defaults.
    pub fn new(aggregation_service: impl Into<String>, histogram_size: u32) -> Self {
        Self {
            aggregation_service: aggregation_service.into(),
            epsilon: default_epsilon(),
            histogram_size,
            lookback_days: None,
            match_values: Vec::new(),
            impression_sites: Vec::new(),
            impression_callers: Vec::new(),
            credit: default_credit(),
            value: default_value(),
            max_value: default_value(),
        }
    }
}

const fn default_lifetime() -> u64 {
    30
}

const fn default_epsilon() -> f64 {
    1.0
}

fn default_credit() -> Vec<f64> {
    vec![1.0]
}

const fn default_value() -> u32 {
    1
}

/// The protocol of an aggregation service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AggregationProtocol {
    /// `dap-18-histogram`.
    Dap18Histogram,
    /// `dap-19-histogram`. The draft does not name it yet.
    Dap19Histogram,
}

/// The aggregation services that the browser knows, by exact URL. They are configured and never
/// fetched: fetching one on demand would reveal that a page asked for it.
pub type AggregationServices = BTreeMap<String, AggregationProtocol>;

/// The limits on what a page may ask for. The defaults are at or above the draft's minimums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The longest lookback and lifetime, in days.
    pub max_lookback_days: u32,
    /// The most buckets of a histogram.
    pub max_histogram_size: u32,
    /// The most shares of credit.
    pub max_credit_size: usize,
    /// The most match values of a conversion.
    pub max_match_values: usize,
    /// The most conversion sites of an impression. In this limit and the next three, duplicates
    /// count.
    pub max_conversion_sites_per_impression: usize,
    /// The most conversion callers of an impression.
    pub max_conversion_callers_per_impression: usize,
    /// The most impression sites of a conversion.
    pub max_impression_sites_for_conversion: usize,
    /// The most impression callers of a conversion.
    pub max_impression_callers_for_conversion: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_lookback_days: 30,
            max_histogram_size: 1024,
            max_credit_size: 16,
            max_match_values: 32,
            max_conversion_sites_per_impression: 8,
            max_conversion_callers_per_impression: 16,
            max_impression_sites_for_conversion: 32,
            max_impression_callers_for_conversion: 16,
        }
    }
}

/// The parsed options of an impression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ValidImpression {
    pub(crate) histogram_index: u32,
    pub(crate) match_value: u32,
    pub(crate) priority: i32,
    pub(crate) lifetime_days: u32,
    pub(crate) conversion_sites: Vec<Site>,
    pub(crate) conversion_callers: Vec<Site>,
}

/// The parsed options of a conversion.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ValidConversion {
    pub(crate) aggregation_service: String,
    pub(crate) terms: Terms,
    pub(crate) histogram_size: HistogramSize,
    pub(crate) lookback_days: u32,
    pub(crate) match_values: Vec<u32>,
    pub(crate) impression_sites: Vec<Site>,
    pub(crate) impression_callers: Vec<Site>,
}

impl ImpressionOptions {
    /// The draft's validation of `saveImpression()`, in its order (section Save Impression
    /// Algorithm).
    pub(crate) fn parse(&self, config: &Config) -> Result<ValidImpression, ApiError> {
        let limits = &config.limits;
        if self.histogram_index >= limits.max_histogram_size {
            let allowed = format!("below {}", limits.max_histogram_size);
            return Err(RangeError::new("histogramIndex", allowed, self.histogram_index).into());
        }
        if self.lifetime_days == 0 {
            return Err(RangeError::new("lifetimeDays", "at least 1", 0).into());
        }
        Ok(ValidImpression {
            histogram_index: self.histogram_index,
            match_value: self.match_value,
            priority: self.priority,
            lifetime_days: limits.clamp_days(self.lifetime_days),
            conversion_sites: parse_sites(
                config,
                "conversionSites",
                &self.conversion_sites,
                limits.max_conversion_sites_per_impression,
            )?,
            conversion_callers: parse_sites(
                config,
                "conversionCallers",
                &self.conversion_callers,
                limits.max_conversion_callers_per_impression,
            )?,
        })
    }
}

impl ConversionOptions {
    /// The draft's validation of `measureConversion()` (section Measure Conversion Algorithm,
    /// validate AttributionConversionOptions). If a call has several errors of one kind, the error
    /// reported here can differ from the one that comes first in the draft's order.
    pub(crate) fn parse(&self, config: &Config) -> Result<ValidConversion, ApiError> {
        let limits = &config.limits;
        let service = &self.aggregation_service;
        if !config.aggregation_services.contains_key(service) {
            return Err(ApiError::ReferenceError {
                service: service.clone(),
            });
        }
        let max_size = limits.max_histogram_size.min(HistogramSize::MAX);
        let histogram_size = match HistogramSize::new(self.histogram_size) {
            Ok(size) if self.histogram_size <= max_size => size,
            _ => {
                let (allowed, got) = (format!("in [1, {max_size}]"), self.histogram_size);
                return Err(RangeError::new("histogramSize", allowed, got).into());
            }
        };
        let shares = self.credit.len();
        if shares > limits.max_credit_size {
            return Err(limits.shares_of_credit(shares).into());
        }
        let terms = Terms::new(
            self.epsilon,
            self.value,
            self.max_value,
            self.credit.clone(),
        );
        let terms = terms.map_err(|error| limits.out_of_range(error))?;
        let lookback_days = match self.lookback_days {
            Some(days) => limits.clamp_days(days),
            None => limits.max_lookback_days,
        };
        if lookback_days == 0 {
            return Err(RangeError::new("lookbackDays", "at least 1", 0).into());
        }
        let values = self.match_values.len();
        within("matchValues", values, limits.max_match_values)?;
        Ok(ValidConversion {
            aggregation_service: service.clone(),
            terms,
            histogram_size,
            lookback_days,
            match_values: self.match_values.clone(),
            impression_sites: parse_sites(
                config,
                "impressionSites",
                &self.impression_sites,
                limits.max_impression_sites_for_conversion,
            )?,
            impression_callers: parse_sites(
                config,
                "impressionCallers",
                &self.impression_callers,
                limits.max_impression_callers_for_conversion,
            )?,
        })
    }
}

impl Limits {
    fn clamp_days(&self, days: u64) -> u32 {
        u32::try_from(days).map_or(self.max_lookback_days, |days| {
            days.min(self.max_lookback_days)
        })
    }

    fn shares_of_credit(&self, got: usize) -> RangeError {
        RangeError::new(
            "credit",
            format!("a list of 1 to {} shares", self.max_credit_size),
            got,
        )
    }

    /// Translates an error of the budget manager into the words of the API.
    fn out_of_range(&self, error: QueryError) -> RangeError {
        match error {
            QueryError::Epsilon(EpsilonError::Request { got }) => {
                RangeError::new("epsilon", format!("in (0, {}]", Epsilon::MAX), got)
            }
            QueryError::Value { max_value: 0, .. } => RangeError::new("maxValue", "at least 1", 0),
            QueryError::Value { got, max_value } => {
                RangeError::new("value", format!("in [1, maxValue = {max_value}]"), got)
            }
            QueryError::NoCredit => self.shares_of_credit(0),
            QueryError::Credit { got } => RangeError::new("every share of credit", "above 0", got),
            // Notes on the draft, row 8: without this, a call would fail only if an impression
            // matches.
            QueryError::CreditSum { got } => RangeError::new("the sum of credit", "finite", got),
            other => RangeError::new("options", "valid", other),
        }
    }
}

fn within(option: &'static str, got: usize, limit: usize) -> Result<(), RangeError> {
    if got > limit {
        let allowed = format!("a list of at most {limit} items");
        return Err(RangeError::new(option, allowed, got));
    }
    Ok(())
}

fn parse_sites(
    config: &Config,
    option: &'static str,
    sites: &[String],
    limit: usize,
) -> Result<Vec<Site>, ApiError> {
    within(option, sites.len(), limit)?;
    Ok(config.sites(sites.iter().map(String::as_str))?)
}
