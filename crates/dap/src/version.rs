//! What the drafts have not settled: the version of DAP, and code points of extensions.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// The version of DAP. Its tag is part of everything that is encrypted or proved, so clients and
/// aggregators of different versions do not understand each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DapVersion {
    /// draft-ietf-ppm-dap-18, which the W3C draft of May 2026 names.
    #[default]
    Dap18,
    /// draft-ietf-ppm-dap-19.
    Dap19,
}

impl DapVersion {
    /// Every version that is known.
    pub const ALL: [Self; 2] = [Self::Dap18, Self::Dap19];

    /// The tag of the version.
    pub const fn tag(self) -> &'static str {
        match self {
            Self::Dap18 => "dap-18",
            Self::Dap19 => "dap-19",
        }
    }

    /// The default information about a task. The W3C draft leaves it empty. DAP-18 forbids that,
    /// so there it is one word (notes on the draft, row 30).
    pub const fn default_task_info(self) -> &'static str {
        match self {
            Self::Dap18 => "attribution",
            Self::Dap19 => "",
        }
    }
}

impl fmt::Display for DapVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.tag())
    }
}

/// A version of DAP that is not known.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("unknown version `{0}` of DAP; use one of: dap-18, dap-19")]
pub struct UnknownVersion(String);

impl FromStr for DapVersion {
    type Err = UnknownVersion;

    fn from_str(tag: &str) -> Result<Self, Self::Err> {
        let mut all = Self::ALL.into_iter();
        all.find(|version| version.tag() == tag)
            .ok_or_else(|| UnknownVersion(tag.to_owned()))
    }
}

/// The code points of the extensions that the W3C draft needs (its section DAP Extensions). None is
/// registered yet, so they are configuration. Those of a task enter its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodePoints {
    /// In a task: the site that calls the API and collects results.
    pub collector_identity: u16,
    /// In a task: the site whose budget pays.
    pub budget_source: u16,
    /// In a report: the epsilon that was paid for, in µε, as four bytes.
    pub privacy_budget: u16,
}

impl Default for CodePoints {
    fn default() -> Self {
        Self {
            collector_identity: 0xff11,
            budget_source: 0xff12,
            privacy_budget: 0xff21,
        }
    }
}
