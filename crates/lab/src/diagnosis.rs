//! The doctor of workloads: what is missing, what is odd, and what can be measured.

use std::collections::{BTreeMap, HashSet};

use serde::Serialize;

use crate::evaluation::survey::Survey;
use crate::evaluation::{Querier, QuerierOptions};
use crate::text::{grouped, percent};
use crate::workload::read::ReadError;
use crate::workload::table::host;
use crate::workload::understanding::Understanding;
use crate::workload::{EventKind, Workload};

/// What is missing in a workload, what is odd, and what can be measured with it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadDiagnosis {
    /// What is missing and what is odd, the worst first.
    pub findings: Vec<Symptom>,
    /// What can be measured.
    pub measurable: Measurable,
}

/// Something that is missing or odd.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Symptom {
    /// What it is.
    pub kind: SymptomKind,
    /// How many devices, rows, conversions, impressions or sites it concerns.
    pub count: u64,
    /// Of how many.
    pub of: u64,
    /// Some of them.
    pub examples: Vec<String>,
}

/// The kinds of findings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum SymptomKind {
    /// There are no impressions.
    NoImpressions,
    /// There are no conversions.
    NoConversions,
    /// Conversion sites without any conversion. Counts their impressions.
    NeverConverts,
    /// Conversions without an earlier impression for their site on the device.
    NoEarlierImpression,
    /// Conversions whose earlier impressions all lie before the epochs that they read.
    OutOfReach,
    /// Sites with several names, such as `shop.example` and `www.shop.example`.
    SeveralNames,
    /// Devices with one event.
    SingleEvent,
    /// Devices whose rows are not in the order of time in the file.
    TimeGoesBack,
    /// Conversions whose value was smaller than the unit, and was raised to it.
    RaisedValues,
}

impl Symptom {
    /// The finding in one sentence.
    pub fn text(&self) -> String {
        let count = grouped(self.count);
        #[expect(clippy::cast_precision_loss, reason = "a share is only shown")]
        let share = percent(self.count as f64 / self.of.max(1) as f64);
        let examples = self.examples.join(", ");
        match self.kind {
            SymptomKind::NoImpressions => "there are no impressions: every report is empty; say \
                                           which rows are impressions with --impression-kind or \
                                           --columns impression_site=NAME"
                .to_owned(),
            SymptomKind::NoConversions => {
                "there are no conversions: nothing is measured; say which rows are conversions \
                 with --conversion-kind"
                    .to_owned()
            }
            SymptomKind::NeverConverts => format!(
                "impressions for sites that never convert, such as {examples}: {count} ({share}); if \
                 these sites do convert, their conversions have other names"
            ),
            SymptomKind::NoEarlierImpression => format!(
                "conversions without an earlier impression for their site on the device: {count} \
                 ({share}); their reports are empty"
            ),
            SymptomKind::OutOfReach => format!(
                "conversions that come so long after the last impression for their site that they do \
                 not read its epoch: {count} ({share}); use a larger --epoch-days or \
                 --lookback-epochs"
            ),
            SymptomKind::SeveralNames if self.count == 1 => format!(
                "one site has several names ({examples}), which count as different sites; --sites \
                 registrable makes them one"
            ),
            SymptomKind::SeveralNames => format!(
                "{count} sites have several names each ({examples}), which count as different \
                 sites; --sites registrable makes them one"
            ),
            SymptomKind::SingleEvent => format!("devices with one event only: {count} ({share})"),
            SymptomKind::TimeGoesBack => format!(
                "devices whose rows are not in the order of time in their file: {count} ({share}); \
                 they were sorted"
            ),
            SymptomKind::RaisedValues => format!(
                "conversions with a value below the unit, which count as one unit: {count} ({share})"
            ),
        }
    }
}

/// What can be measured with a workload.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Measurable {
    /// The least number of conversions a day of a querier.
    pub min_conversions_a_day: usize,
    /// The number of conversion sites with conversions.
    pub converting_sites: usize,
    /// The number of those that are queriers.
    pub queriers: usize,
    /// The number of queriers with enough conversions for a batch.
    pub with_a_batch: usize,
    /// The least, the median and the greatest epsilon of those.
    pub epsilon: Option<[f64; 3]>,
    /// The number of those whose epsilon exceeds a querier budget of 1.
    pub above_one: usize,
    /// The conversion site with the most conversions.
    pub busiest: Option<Busiest>,
    /// The flags under which the busiest site reaches a batch, if none does now.
    pub flags: Option<String>,
}

/// The conversion site with the most conversions.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Busiest {
    /// Its name.
    pub site: String,
    /// The number of its conversions.
    pub conversions: u64,
    /// The number of its conversions on a day that has any.
    pub a_day: usize,
    /// The number of reports that its batch needs.
    pub batch: usize,
}

impl Measurable {
    fn new(workload: &Workload, options: &QuerierOptions) -> Result<Self, ReadError> {
        let survey = Survey::of(workload)?;
        let queriers = survey.queriers(options);
        let anyone = QuerierOptions {
            min_conversions_a_day: 0,
            ..*options
        };
        let everyone = survey.queriers(&anyone);
        let complete = queriers.iter().filter(|it| it.has_a_batch());
        let mut epsilons: Vec<f64> = complete.map(Querier::epsilon).collect();
        epsilons.sort_by(f64::total_cmp);
        let epsilon = match epsilons.as_slice() {
            [] => None,
            [least, ..] => Some([
                *least,
                epsilons[epsilons.len() / 2],
                epsilons[epsilons.len() - 1],
            ]),
        };
        let busiest = everyone
            .iter()
            .max_by_key(|it| (it.conversions, std::cmp::Reverse(it.site)));
        Ok(Self {
            min_conversions_a_day: options.min_conversions_a_day,
            converting_sites: everyone.len(),
            queriers: queriers.len(),
            with_a_batch: epsilons.len(),
            epsilon,
            above_one: epsilons.iter().filter(|it| **it > 1.0).count(),
            flags: busiest
                .filter(|_| epsilons.is_empty())
                .map(|it| flags(it, options)),
            busiest: busiest.map(|it| Busiest {
                site: workload.conversion_site_names[it.site as usize].clone(),
                conversions: it.conversions,
                a_day: it.a_day,
                batch: it.batch,
            }),
        })
    }

    /// What can be measured, in sentences.
    pub fn sentences(&self) -> Vec<String> {
        let least = self.min_conversions_a_day;
        let mut sentences = vec![format!(
            "{} of {} converting sites have at least {least} conversions a day and measure; {} of \
             them have enough for a batch",
            grouped(self.queriers as u64),
            grouped(self.converting_sites as u64),
            grouped(self.with_a_batch as u64),
        )];
        if let Some([least, median, most]) = self.epsilon {
            sentences.push(format!(
                "their epsilons for an error of 5% from noise are {least:.3} to {most:.3}, with a \
                 median of {median:.3}"
            ));
        }
        if self.above_one > 0 {
            sentences.push(format!(
                "{} of them exceed a querier budget of 1, so that their reports are empty; use a \
                 larger --min-batch or --batch-days, or fewer --buckets",
                grouped(self.above_one as u64)
            ));
        }
        if let (Some(busiest), Some(flags)) = (&self.busiest, &self.flags) {
            sentences.push(format!(
                "the busiest is {} (conversions: {}, {} a day), and a batch needs {}; to measure, \
                 give {flags}",
                busiest.site,
                grouped(busiest.conversions),
                grouped(busiest.a_day as u64),
                grouped(busiest.batch as u64)
            ));
        }
        sentences
    }
}

/// The flags under which a site reaches a batch.
fn flags(busiest: &Querier, options: &QuerierOptions) -> String {
    let conversions = usize::try_from(busiest.conversions).unwrap_or(usize::MAX);
    let mut flags = Vec::new();
    if busiest.a_day < options.min_conversions_a_day {
        flags.push(format!("--min-conversions-per-day {}", busiest.a_day));
    }
    let mut days = options.batch_days;
    if days.saturating_mul(busiest.a_day) > conversions {
        days = (conversions / busiest.a_day.max(1)).max(1);
        flags.push(format!("--batch-days {days}"));
    }
    if options.min_batch > conversions {
        flags.push(format!("--min-batch {}", days * busiest.a_day.max(1)));
    }
    flags.join(" ")
}

/// The most examples of a finding.
const EXAMPLES: usize = 3;

impl WorkloadDiagnosis {
    /// Examines a workload in which a conversion reads its own epoch and the `lookback_epochs`
    /// before.
    ///
    /// # Errors
    /// If a part of the workload is on disk and cannot be read.
    pub fn new(
        workload: &Workload,
        understanding: Option<&Understanding>,
        options: &QuerierOptions,
        lookback_epochs: u16,
    ) -> Result<Self, ReadError> {
        let mut seen = Examination::new(workload, lookback_epochs);
        for number in 0..workload.parts() {
            let part = workload.part(number)?;
            for device in 0..part.devices() {
                seen.device(part.range(device).map(|at| part.event(at)));
            }
        }
        let mut findings = seen.findings(workload);
        findings.extend(several_names(&workload.conversion_site_names));
        findings.extend(several_names(&workload.impression_site_names));
        if let Some(understanding) = understanding {
            let out_of_order = understanding.out_of_order;
            findings.extend(finding(
                SymptomKind::TimeGoesBack,
                out_of_order.devices,
                workload.devices() as u64,
            ));
            findings.extend(finding(
                SymptomKind::RaisedValues,
                understanding.values.raised,
                seen.conversions,
            ));
        }
        Ok(Self {
            findings,
            measurable: Measurable::new(workload, options)?,
        })
    }
}

/// A finding, if it concerns anything.
fn finding(kind: SymptomKind, count: u64, of: u64) -> Option<Symptom> {
    (count > 0).then(|| Symptom {
        kind,
        count,
        of,
        examples: Vec::new(),
    })
}

/// Counts of what devices do.
struct Examination {
    lookback_epochs: u16,
    devices: u64,
    single: u64,
    impressions: u64,
    conversions: u64,
    without_impression: u64,
    out_of_reach: u64,
    /// The impressions for each conversion site.
    advertised: Vec<u64>,
    converts: Vec<bool>,
    /// The last epoch with an impression for each conversion site on the device.
    last: BTreeMap<u32, u16>,
}

impl Examination {
    fn new(workload: &Workload, lookback_epochs: u16) -> Self {
        let sites = workload.conversion_site_names.len();
        Self {
            lookback_epochs,
            devices: 0,
            single: 0,
            impressions: 0,
            conversions: 0,
            without_impression: 0,
            out_of_reach: 0,
            advertised: vec![0; sites],
            converts: vec![false; sites],
            last: BTreeMap::new(),
        }
    }

    /// Looks at the events of a device, in the order of time.
    fn device(&mut self, events: impl Iterator<Item = crate::workload::WorkloadEvent>) {
        self.last.clear();
        let mut count = 0_u64;
        for event in events {
            count += 1;
            let site = event.conversion_site;
            match event.kind {
                EventKind::Impression { .. } => {
                    self.impressions += 1;
                    self.advertised[site as usize] += 1;
                    self.last.insert(site, event.epoch);
                }
                EventKind::Conversion { .. } => {
                    self.conversions += 1;
                    self.converts[site as usize] = true;
                    let earliest = event.epoch.saturating_sub(self.lookback_epochs);
                    match self.last.get(&site) {
                        None => self.without_impression += 1,
                        Some(last) => self.out_of_reach += u64::from(*last < earliest),
                    }
                }
            }
        }
        self.devices += 1;
        self.single += u64::from(count == 1);
    }

    fn findings(&self, workload: &Workload) -> Vec<Symptom> {
        let nothing = |kind, count: u64| {
            (count == 0).then(|| Symptom {
                kind,
                count: 0,
                of: workload.len() as u64,
                examples: Vec::new(),
            })
        };
        let mut never: Vec<(u64, &str)> = Vec::new();
        let sites = self.advertised.iter().zip(&self.converts);
        for ((shown, converts), name) in sites.zip(&workload.conversion_site_names) {
            if *shown > 0 && !converts {
                never.push((*shown, name));
            }
        }
        never.sort_by(|one, other| (other.0, one.1).cmp(&(one.0, other.1)));
        let mut findings = Vec::new();
        findings.extend(nothing(SymptomKind::NoImpressions, self.impressions));
        findings.extend(nothing(SymptomKind::NoConversions, self.conversions));
        let shown = never.iter().map(|(shown, _)| shown).sum();
        let never_converts = finding(SymptomKind::NeverConverts, shown, self.impressions);
        findings.extend(never_converts.map(|finding| {
            Symptom {
                examples: never
                    .iter()
                    .take(EXAMPLES)
                    .map(|(_, name)| (*name).to_owned())
                    .collect(),
                ..finding
            }
        }));
        findings.extend(finding(
            SymptomKind::NoEarlierImpression,
            self.without_impression,
            self.conversions,
        ));
        findings.extend(finding(
            SymptomKind::OutOfReach,
            self.out_of_reach,
            self.conversions,
        ));
        findings.extend(finding(SymptomKind::SingleEvent, self.single, self.devices));
        findings
    }
}

/// Sites that have several names: with and without `www.`, in upper and lower case, with a point at
/// the end, with a scheme, or with a port.
fn several_names(names: &[String]) -> Option<Symptom> {
    let mut by_site: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    let mut seen = HashSet::new();
    for name in names {
        if seen.insert(name)
            && let Some(host) = host(name)
        {
            let site = host.strip_prefix("www.").unwrap_or(&host).to_owned();
            by_site.entry(site).or_default().push(name);
        }
    }
    by_site.retain(|_, names| names.len() > 1);
    let examples = by_site.values().take(EXAMPLES).map(|names| {
        let mut names = names.clone();
        names.sort_unstable();
        names.truncate(EXAMPLES);
        names.join(" and ")
    });
    let examples = examples.collect();
    let found = finding(
        SymptomKind::SeveralNames,
        by_site.len() as u64,
        names.len() as u64,
    );
    found.map(|finding| Symptom {
        examples,
        ..finding
    })
}
