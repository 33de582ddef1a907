//! Reports as they leave the user agent: sealed.

use std::fmt;

use bigbird::{Histogram, HistogramSize, MicroEpsilon, Timestamp};

use crate::site::Site;

/// The report of a conversion: its histogram, and the envelope that is sent along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report<'a> {
    /// The value of the conversion, divided over buckets. All buckets are zero if nothing may be
    /// released.
    pub histogram: &'a Histogram,
    /// The epsilon that a conversion of the largest value costs. It also determines the noise.
    pub epsilon: MicroEpsilon,
    /// The largest value that a conversion can have.
    pub max_value: u32,
    /// The site that receives the report and whose budget paid.
    pub querier: &'a Site,
    /// The site that made the call: the intermediary, or the conversion site itself.
    pub caller: &'a Site,
    /// The site where the conversion happened.
    pub conversion_site: &'a Site,
    /// The URL of the service that sums reports and adds noise.
    pub aggregation_service: &'a str,
    /// The moment of the call.
    pub time: Timestamp,
}

/// Everything that is sent with a report, except its histogram. It follows from the call alone.
#[derive(Debug, Clone, PartialEq)]
pub struct Envelope {
    pub(crate) histogram_size: HistogramSize,
    pub(crate) epsilon: MicroEpsilon,
    pub(crate) max_value: u32,
    pub(crate) querier: Site,
    pub(crate) caller: Site,
    pub(crate) conversion_site: Site,
    pub(crate) aggregation_service: String,
    pub(crate) time: Timestamp,
}

impl Envelope {
    /// The null report with this envelope. To the page it looks like any other.
    pub fn null(&self) -> UnsealedReport {
        UnsealedReport {
            histogram: Histogram::null(self.histogram_size),
            envelope: self.clone(),
        }
    }

    /// The report with this envelope and a histogram.
    pub(crate) fn around<'a>(&'a self, histogram: &'a Histogram) -> Report<'a> {
        Report {
            histogram,
            epsilon: self.epsilon,
            max_value: self.max_value,
            querier: &self.querier,
            caller: &self.caller,
            conversion_site: &self.conversion_site,
            aggregation_service: &self.aggregation_service,
            time: self.time,
        }
    }
}

/// The work to seal a report, in elements of its proof: about half a microsecond each. It grows
/// with the number of buckets and with the bits of the largest value. Encrypting the shares costs
/// as much as some hundred elements.
pub(crate) fn sealing_units(size: HistogramSize, max_value: u32) -> u32 {
    const ENCRYPTION: u32 = 600;
    let bits = u32::BITS - max_value.leading_zeros();
    let elements = size.get().saturating_add(1).saturating_mul(bits);
    elements.saturating_add(ENCRYPTION)
}

/// A report that is not sealed yet. Only a [`Gate`](crate::Gate) can read it. Sealing takes time,
/// and needs neither the store nor the user agent, so another thread can do it.
#[derive(Clone, PartialEq)]
pub struct UnsealedReport {
    pub(crate) envelope: Envelope,
    pub(crate) histogram: Histogram,
}

/// The histogram must not leave the device, not even in a log.
impl fmt::Debug for UnsealedReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnsealedReport")
            .field("envelope", &self.envelope)
            .finish_non_exhaustive()
    }
}

/// Seals reports, so that only the aggregation service can use them.
///
/// Sealing a null report must take the same steps, and give the same number of bytes, as sealing
/// any other report. Otherwise it would show what was found.
pub trait Seal: fmt::Debug {
    /// The report as bytes that may leave the device.
    fn seal(&self, report: &Report<'_>) -> Vec<u8>;

    /// The number of bytes that [`seal`](Self::seal) gives, without sealing. It is the same for
    /// every histogram of the same size. The user sees it in history.
    fn sealed_length(&self, report: &Report<'_>) -> usize {
        let _ = report;
        0
    }
}

/// A sealer that lets nothing leave the device. `bigbird-dap` has the one that encrypts.
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
    /// The bytes that [`Seal`] returned.
    pub bytes: Vec<u8>,
    /// The histogram of the report. It is shown only for testing: see
    /// [`Config::shows_histograms`](crate::Config::shows_histograms).
    pub histogram: Option<Histogram>,
}
