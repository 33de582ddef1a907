//! The options of `saveImpression()` and `measureConversion()`, their defaults and their limits
//! (the draft's sections Saving Impressions, Requesting Attribution for a Conversion, and Setting
//! Implementation-Defined Values).

use std::collections::BTreeMap;

use bigbird::{AttributionQuery, Epsilon};

use crate::error::{ApiError, RangeError};
use crate::site::{Localhost, Site};

/// What a page passes to `saveImpression()`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImpressionOptions {
    /// The bucket that its credit goes to.
    pub histogram_index: u32,
    /// A number that conversions can select it by.
    pub match_value: u32,
    /// The sites that may measure it; all if empty.
    pub conversion_sites: Vec<String>,
    /// Who may call for a conversion that measures it; everyone if empty.
    pub conversion_callers: Vec<String>,
    /// How long it can match. A header can say more than 32 bits hold.
    pub lifetime_days: u64,
    /// Higher priorities get credit first.
    pub priority: i32,
}

impl ImpressionOptions {
    /// The draft's defaults.
    pub const fn new(histogram_index: u32) -> Self {
        Self {
            histogram_index,
            match_value: 0,
            conversion_sites: Vec::new(),
            conversion_callers: Vec::new(),
            lifetime_days: 30,
            priority: 0,
        }
    }
}

/// What a page passes to `measureConversion()`.
#[derive(Debug, Clone, PartialEq)]
pub struct ConversionOptions {
    /// The URL of the aggregation service, exactly as the browser lists it.
    pub aggregation_service: String,
    /// What a conversion of the largest value costs.
    pub epsilon: f64,
    /// How many buckets the histogram has.
    pub histogram_size: u32,
    /// How far back impressions can match; the maximum if not given.
    pub lookback_days: Option<u64>,
    /// Only impressions with one of these match values; any if empty.
    pub match_values: Vec<u32>,
    /// Only impressions of these sites; any if empty.
    pub impression_sites: Vec<String>,
    /// Only impressions that these saved; anyone's if empty.
    pub impression_callers: Vec<String>,
    /// How the value is divided over the last impressions.
    pub credit: Vec<f64>,
    /// The value of the conversion.
    pub value: u32,
    /// The largest value that a conversion can have.
    pub max_value: u32,
}

impl ConversionOptions {
    /// The draft's defaults.
    pub fn new(aggregation_service: impl Into<String>, histogram_size: u32) -> Self {
        Self {
            aggregation_service: aggregation_service.into(),
            epsilon: 1.0,
            histogram_size,
            lookback_days: None,
            match_values: Vec::new(),
            impression_sites: Vec::new(),
            impression_callers: Vec::new(),
            credit: vec![1.0],
            value: 1,
            max_value: 1,
        }
    }
}

/// The protocol of an aggregation service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AggregationProtocol {
    /// `dap-18-histogram`.
    Dap18Histogram,
}

/// The aggregation services that the browser knows, by exact URL. They are configured, never
/// fetched: fetching one on demand would tell.
pub type AggregationServices = BTreeMap<String, AggregationProtocol>;

/// How much a page may ask for. The defaults are at or above the draft's minimums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The longest lookback and lifetime, in days.
    pub max_lookback_days: u32,
    /// Buckets of a histogram.
    pub max_histogram_size: u32,
    /// Shares of credit.
    pub max_credit_size: usize,
    /// Match values of a conversion.
    pub max_match_values: usize,
    /// Conversion sites of an impression, duplicates counted, as in the three that follow.
    pub max_conversion_sites_per_impression: usize,
    /// Conversion callers of an impression.
    pub max_conversion_callers_per_impression: usize,
    /// Impression sites of a conversion.
    pub max_impression_sites_for_conversion: usize,
    /// Impression callers of a conversion.
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

/// Options of an impression that passed validation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ValidImpression {
    pub(crate) conversion_sites: Vec<Site>,
    pub(crate) conversion_callers: Vec<Site>,
    pub(crate) lifetime_days: u32,
}

/// Options of a conversion that passed validation.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ValidConversion {
    pub(crate) lookback_days: u32,
    pub(crate) impression_sites: Vec<Site>,
    pub(crate) impression_callers: Vec<Site>,
}

impl Limits {
    /// The draft's validation of `saveImpression()`, in its order (section Save Impression
    /// Algorithm).
    pub(crate) fn validate_impression(
        &self,
        options: &ImpressionOptions,
        localhost: Localhost,
    ) -> Result<ValidImpression, ApiError> {
        if options.histogram_index >= self.max_histogram_size {
            let allowed = format!("below {}", self.max_histogram_size);
            return Err(RangeError::new("histogramIndex", allowed, options.histogram_index).into());
        }
        if options.lifetime_days == 0 {
            return Err(RangeError::new("lifetimeDays", "at least 1", 0).into());
        }
        let lifetime_days = self.clamp_days(options.lifetime_days);
        let conversion_sites = parse_sites(
            "conversionSites",
            &options.conversion_sites,
            self.max_conversion_sites_per_impression,
            localhost,
        )?;
        let conversion_callers = parse_sites(
            "conversionCallers",
            &options.conversion_callers,
            self.max_conversion_callers_per_impression,
            localhost,
        )?;
        Ok(ValidImpression {
            conversion_sites,
            conversion_callers,
            lifetime_days,
        })
    }

    /// The draft's validation of `measureConversion()`, in its order (section Measure Conversion
    /// Algorithm, validate AttributionConversionOptions).
    pub(crate) fn validate_conversion(
        &self,
        options: &ConversionOptions,
        services: &AggregationServices,
        localhost: Localhost,
    ) -> Result<ValidConversion, ApiError> {
        let out_of = |option, allowed: String, got: &dyn std::fmt::Display| {
            Err(RangeError::new(option, allowed, got).into())
        };
        if !services.contains_key(&options.aggregation_service) {
            return Err(ApiError::ReferenceError {
                service: options.aggregation_service.clone(),
            });
        }
        if Epsilon::new(options.epsilon).is_err() {
            let allowed = format!("in (0, {}]", Epsilon::MAX);
            return out_of("epsilon", allowed, &options.epsilon);
        }
        let max_size = self
            .max_histogram_size
            .min(AttributionQuery::MAX_HISTOGRAM_SIZE);
        if !(1..=max_size).contains(&options.histogram_size) {
            let allowed = format!("in [1, {max_size}]");
            return out_of("histogramSize", allowed, &options.histogram_size);
        }
        if options.value == 0 || options.value > options.max_value {
            let allowed = format!("in [1, maxValue = {}]", options.max_value);
            return out_of("value", allowed, &options.value);
        }
        let shares = options.credit.len();
        if !(1..=self.max_credit_size).contains(&shares) {
            let allowed = format!("1 to {} shares", self.max_credit_size);
            return out_of("credit", allowed, &shares);
        }
        let positive = |share: &&f64| **share > 0.0;
        if let Some(share) = options.credit.iter().find(|share| !positive(share)) {
            return out_of("credit", "above 0".to_owned(), share);
        }
        // Notes on the draft, row 8: otherwise it fails only when an impression matches.
        let sum: f64 = options.credit.iter().sum();
        if !sum.is_finite() {
            return out_of("the sum of credit", "finite".to_owned(), &sum);
        }
        let lookback_days = match options.lookback_days {
            Some(days) => self.clamp_days(days),
            None => self.max_lookback_days,
        };
        if lookback_days == 0 {
            return out_of("lookbackDays", "at least 1".to_owned(), &0);
        }
        within(
            "matchValues",
            options.match_values.len(),
            self.max_match_values,
        )?;
        let impression_sites = parse_sites(
            "impressionSites",
            &options.impression_sites,
            self.max_impression_sites_for_conversion,
            localhost,
        )?;
        let impression_callers = parse_sites(
            "impressionCallers",
            &options.impression_callers,
            self.max_impression_callers_for_conversion,
            localhost,
        )?;
        Ok(ValidConversion {
            lookback_days,
            impression_sites,
            impression_callers,
        })
    }

    fn clamp_days(&self, days: u64) -> u32 {
        u32::try_from(days).map_or(self.max_lookback_days, |days| {
            days.min(self.max_lookback_days)
        })
    }
}

fn within(option: &'static str, got: usize, limit: usize) -> Result<(), RangeError> {
    if got > limit {
        return Err(RangeError::new(
            option,
            format!("at most {limit} items"),
            got,
        ));
    }
    Ok(())
}

fn parse_sites(
    option: &'static str,
    sites: &[String],
    limit: usize,
    localhost: Localhost,
) -> Result<Vec<Site>, ApiError> {
    within(option, sites.len(), limit)?;
    let parsed: Result<Vec<Site>, _> = sites
        .iter()
        .map(|site| Site::parse(site, localhost))
        .collect();
    Ok(parsed?)
}
