//! The numbers that the paper gives. They are in one file, `numbers.json`, and nowhere else.

use std::sync::LazyLock;

use bigbird::Limit;
use serde::Deserialize;

use crate::paper::reproduce::Summary;
use crate::paper::suites::{EvaluatedSystem, Suite};

/// Everything that the paper's evaluation says in numbers.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PaperNumbers {
    /// The place of the numbers.
    pub source: String,
    /// The size of its data.
    pub dataset: PaperDataset,
    /// Its table of workload parameters.
    pub workload_table: PaperWorkloadTable,
    /// The ranks that it names for the last point of figure 6c.
    pub last_ranks_of_label: (u32, u32),
    /// The results.
    pub results: Vec<PaperResult>,
}

/// The data of the paper.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PaperDataset {
    /// The number of devices.
    pub devices: u64,
    /// The number of impressions.
    pub impressions: u64,
    /// The number of conversions.
    pub conversions: u64,
    /// The number of impression sites.
    pub impression_sites: u64,
    /// The number of conversion sites.
    pub conversion_sites: u64,
    /// The number of queriers.
    pub queriers: u64,
    /// The least number of conversions a day that a querier has, in the paper's text.
    pub querier_conversions_a_day: usize,
    /// The most reports in a batch, in the paper's text.
    pub most_reports_in_a_batch: u64,
    /// The number of impressions of the median device.
    pub impressions_of_median_device: u32,
    /// The number of conversions of the median device.
    pub conversions_of_median_device: u32,
}

/// The paper's table of workload parameters, with the capacities that follow from them.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct PaperWorkloadTable {
    /// Its name in the paper.
    pub name: String,
    /// Its title.
    pub title: String,
    /// Its rows.
    pub rows: Vec<PaperWorkloadRow>,
}

/// A row of the paper's table of workload parameters.
///
/// N and n are even at every percentile, which no smooth distribution of sites would give. They
/// look doubled, probably because the paper counts a site once for clicks and once for landed
/// clicks. We count half of each.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PaperWorkloadRow {
    /// The percentile.
    pub percentile: f64,
    /// N: conversion sites.
    pub conversion_sites: u32,
    /// M: impression sites.
    pub impression_sites: u32,
    /// n: conversion sites for one impression site.
    pub fan_out: u32,
    /// The global budget that follows, in ε.
    pub global_budget: u32,
    /// The impression-site quota that follows, in ε.
    pub impression_site_quota: u32,
}

/// A result of the paper: one point of a figure.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PaperResult {
    /// The figure, such as `5a`.
    pub figure: String,
    /// The system.
    pub system: EvaluatedSystem,
    /// The attacker, or `none`.
    pub attacker: String,
    /// The value of the parameter that the figure varies. None for systems without this parameter.
    #[serde(default)]
    pub x: Option<f64>,
    /// The measure.
    pub measure: PaperMeasure,
    /// The value, in percent.
    pub percent: f64,
    /// True if the paper gives only an upper limit.
    #[serde(default)]
    pub at_most: bool,
    /// A remark on where the number belongs.
    #[serde(default)]
    pub note: Option<String>,
}

/// A measure of the paper's evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PaperMeasure {
    /// The median error over batches.
    Median,
    /// The 95th percentile of errors.
    P95,
    /// The share of reports that querier budgets block first.
    BlockedByQuerierBudget,
    /// The share of reports that global budgets block first.
    BlockedByGlobalBudget,
    /// The share of reports that impression-site quotas block first.
    BlockedByImpressionSiteQuota,
}

impl PaperMeasure {
    /// The limit whose blocked reports are measured. None if errors are measured.
    pub fn limit(self) -> Option<Limit> {
        match self {
            Self::Median | Self::P95 => None,
            Self::BlockedByQuerierBudget => Some(Limit::QuerierBudget),
            Self::BlockedByGlobalBudget => Some(Limit::GlobalBudget),
            Self::BlockedByImpressionSiteQuota => Some(Limit::ImpressionSiteQuota),
        }
    }

    /// The measure of a run, as a fraction.
    pub fn of(self, summary: &Summary) -> f64 {
        match (self, self.limit()) {
            (_, Some(limit)) => summary.blocked_by(limit),
            (Self::P95, None) => summary.p95,
            (_, None) => summary.median,
        }
    }
}

impl PaperResult {
    /// The value, as a fraction.
    pub fn fraction(&self) -> f64 {
        self.percent / 100.0
    }

    /// The suite that makes this figure.
    pub fn suite(&self) -> Suite {
        match self.figure.as_str() {
            "6a" => Suite::Fig6a,
            "6b" => Suite::Fig6b,
            "6c" => Suite::Fig6c,
            _ => Suite::Fig5,
        }
    }

    /// True if an attack was running.
    pub fn is_under_attack(&self) -> bool {
        self.attacker != "none"
    }

    /// The point in words.
    pub fn describe(&self) -> String {
        let mut words = vec![match self.attacker.as_str() {
            "none" => "no attack".to_owned(),
            attacker => format!("{attacker} attacker"),
        }];
        words.push(match (self.suite(), self.x) {
            (_, None) => self.system.name().to_owned(),
            (Suite::Fig5, Some(x)) => format!("impression-site quota {x}"),
            (Suite::Fig6a, Some(x)) => format!("domain cap {x}"),
            (Suite::Fig6b, Some(x)) => format!("{x} Sybils"),
            (Suite::Fig6c, Some(x)) => format!("first rank {x}"),
        });
        match (self.measure, self.measure.limit()) {
            (_, Some(limit)) => words.push(format!("blocked by the {}", limit.name())),
            (PaperMeasure::P95, None) => words.push("95th percentile".to_owned()),
            (_, None) => {}
        }
        words.join(", ")
    }
}

impl PaperNumbers {
    /// The results of a figure.
    pub fn of_figure<'a>(&'a self, figure: &'a str) -> impl Iterator<Item = &'a PaperResult> {
        self.results.iter().filter(move |it| it.figure == figure)
    }

    /// A result of a figure.
    pub fn result(
        &self,
        figure: &str,
        system: EvaluatedSystem,
        attacker: &str,
        x: Option<f64>,
        measure: PaperMeasure,
    ) -> Option<&PaperResult> {
        self.results.iter().find(|it| {
            it.figure == figure
                && it.system == system
                && it.attacker == attacker
                && it.x == x
                && it.measure == measure
        })
    }
}

/// The paper's numbers.
pub fn paper_numbers() -> &'static PaperNumbers {
    static NUMBERS: LazyLock<PaperNumbers> = LazyLock::new(|| {
        // The file is part of the program, and a test reads it.
        serde_json::from_str(include_str!("numbers.json")).expect("numbers.json is well formed")
    });
    &NUMBERS
}
