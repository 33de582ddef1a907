//! Reports as they leave the user agent: sealed.

use std::fmt;

use bigbird::{Histogram, HistogramSize, MicroEpsilon};

use crate::site::Site;

/// The report of a conversion, with everything that goes over the wire with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report<'a> {
    /// The value of the conversion, divided over buckets; null if nothing may be released.
    pub histogram: &'a Histogram,
    /// What a conversion of the largest value costs: the noise follows it.
    pub epsilon: MicroEpsilon,
    /// The largest value that a conversion can have.
    pub max_value: u32,
    /// Who receives it, and whose budget paid.
    pub querier: &'a Site,
    /// Where the conversion happened.
    pub conversion_site: &'a Site,
    /// The URL of the service that sums and noises it.
    pub aggregation_service: &'a str,
}

/// What goes over the wire with a report: everything but its histogram. It follows from the call alone.
#[derive(Debug, Clone, PartialEq)]
pub struct Envelope {
    pub(crate) histogram_size: HistogramSize,
    pub(crate) epsilon: MicroEpsilon,
    pub(crate) max_value: u32,
    pub(crate) querier: Site,
    pub(crate) conversion_site: Site,
    pub(crate) aggregation_service: String,
}

impl Envelope {
    /// The report with a histogram.
    pub(crate) fn around<'a>(&'a self, histogram: &'a Histogram) -> Report<'a> {
        Report {
            histogram,
            epsilon: self.epsilon,
            max_value: self.max_value,
            querier: &self.querier,
            conversion_site: &self.conversion_site,
            aggregation_service: &self.aggregation_service,
        }
    }
}

/// How reports are sealed, so that only the aggregation service can make something of them.
///
/// Sealing a null report must take the same steps, and give as many bytes, as sealing any other: what
/// was found must not show.
pub trait Seal: fmt::Debug {
    /// The report as bytes that may leave the device.
    fn seal(&self, report: &Report<'_>) -> Vec<u8>;
}

/// Lets nothing leave the device: what there is until reports are encrypted.
#[derive(Debug, Clone, Copy, Default)]
pub struct Withhold;

impl Seal for Withhold {
    fn seal(&self, _: &Report<'_>) -> Vec<u8> {
        Vec::new()
    }
}

/// A report that may leave the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedReport {
    /// What [`Seal`] made of it.
    pub bytes: Vec<u8>,
    /// What is in it, if the user agent [shows histograms](crate::Config::shows_histograms), for
    /// testing.
    pub histogram: Option<Histogram>,
}
