//! `bigbird policy`: the limits of a profile or for a workload, each with its meaning.

use std::fs;
use std::num::NonZeroU32;
use std::path::Path;

use bigbird::{
    Capacities, Capacity, FilterKind, Limit, MicroEpsilon, Policy, Profile, WorkloadParameters,
};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::output::{Document, FormatArgs, ResultCell, ResultColumn, ResultFormat, ResultTable};
use crate::{CommandError, CommandResult, output};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A workload is given by --conversion-sites, --impression-sites and --fan-out.

With --querier-budget and a workload, the paper's closed form computes the limits:
  bigbird policy --querier-budget 1 --conversion-sites 4 --impression-sites 2 --fan-out 4

With --profile and a workload, the limits of the profile are checked against the paper's four
constraints:
  bigbird policy --profile big-bird --conversion-sites 9 --impression-sites 2 --fan-out 2

JSON has capacities in microepsilons. Null means unlimited, or no domain cap.

Exit status: 0, 1 if a constraint is violated, 2 for wrong arguments.")]
pub(crate) struct PolicyArgs {
    /// Profile to show [default: big-bird]
    ///
    /// One of big-bird, w3c-draft, cookie-monster and global-only.
    #[arg(long, conflicts_with_all = ["querier_budget", "domain_cap"])]
    profile: Option<Profile>,
    /// Querier budget from which to compute the limits, in epsilons
    #[arg(
        long = Limit::QuerierBudget.flag(),
        alias = "querier",
        value_name = "EPSILON"
    )]
    querier_budget: Option<f64>,
    /// N: conversion sites that ask a device for reports in an epoch
    #[arg(long, value_name = "N", requires_all = ["impression_sites", "fan_out"])]
    conversion_sites: Option<u32>,
    /// M: impression sites that contribute to those reports
    #[arg(long, value_name = "M", requires_all = ["conversion_sites", "fan_out"])]
    impression_sites: Option<u32>,
    /// n: conversion sites that ask about one impression site
    #[arg(long, value_name = "n", requires_all = ["conversion_sites", "impression_sites"])]
    fan_out: Option<u32>,
    /// r: share that intermediaries spend [default: 0]
    ///
    /// What intermediaries spend on one conversion site, as a share of a querier budget. Requires a
    /// workload.
    #[arg(long, alias = "r", value_name = "SHARE", requires = "conversion_sites")]
    intermediary_share: Option<f64>,
    /// Domain cap (κ): sites one user action may involve [default: 2]
    ///
    /// Requires --querier-budget.
    #[arg(long = Limit::DomainCap.flag(), alias = "cap", value_name = "SITES", requires = "querier_budget")]
    domain_cap: Option<u32>,
    #[command(flatten)]
    format: FormatArgs,
}

/// The result of the command.
struct PolicyOutput {
    title: String,
    policy: Policy,
    /// The limits that are too small for the workload, if there is a workload to check.
    warnings: Option<Vec<String>>,
}

pub(crate) fn run(args: &PolicyArgs) -> CommandResult {
    let shown = args.show()?;
    let text = match args.format.format() {
        ResultFormat::Json => output::json(&PolicyJson::new(&shown))?,
        format => tell(&shown).render(format),
    };
    // A workload that the limits do not serve is a negative result.
    Ok((
        text,
        shown.warnings.as_deref().unwrap_or_default().is_empty(),
    ))
}

impl PolicyArgs {
    fn show(&self) -> Result<PolicyOutput, CommandError> {
        let workload = match (self.conversion_sites, self.impression_sites, self.fan_out) {
            (Some(conversion_sites), Some(impression_sites), Some(fan_out)) => {
                let share = self.intermediary_share.unwrap_or(0.0);
                WorkloadParameters::new(conversion_sites, impression_sites, fan_out, share)
                    .map(Some)
                    .map_err(CommandError::misused)?
            }
            _ => None,
        };
        match (self.querier_budget, workload) {
            (Some(querier_budget), Some(workload)) => Ok(PolicyOutput {
                title: "The smallest limits that serve this workload".to_owned(),
                policy: Policy::for_workload(
                    querier_budget,
                    &workload,
                    self.domain_cap.unwrap_or(2),
                )
                .map_err(CommandError::misused)?,
                warnings: None,
            }),
            (Some(_), None) => Err(CommandError::misused(
                "--querier-budget needs a workload: --conversion-sites N --impression-sites M \
                 --fan-out n",
            )),
            (None, workload) => {
                let profile = self.profile.unwrap_or_default();
                let policy = profile.policy();
                let warnings = workload.map(|workload| {
                    let violations = policy.violations(&workload);
                    violations.iter().map(ToString::to_string).collect()
                });
                Ok(PolicyOutput {
                    title: format!("Profile {profile}: {}", profile.summary()),
                    warnings,
                    policy,
                })
            }
        }
    }
}

/// The meaning of a limit.
const fn meaning(limit: Limit) -> &'static str {
    match limit {
        Limit::QuerierBudget => "what one querier can learn about a device in an epoch",
        Limit::GlobalBudget => "what all queriers together can learn about a device in an epoch",
        Limit::ImpressionSiteQuota => {
            "the most that reports about ads shown on one site can take from the global budget"
        }
        Limit::ConversionSiteQuota => {
            "the most that conversions on one site can take from the global budget"
        }
        Limit::DomainCap => "how many sites one user action can involve in an epoch",
        Limit::UserActionBudget => "how much one user action can use up in an epoch",
    }
}

/// The kinds of filters that a policy file sets, in the order in which they are listed.
const KINDS: [FilterKind; 4] = [
    FilterKind::QuerierBudget,
    FilterKind::GlobalBudget,
    FilterKind::ImpressionSiteQuota,
    FilterKind::ConversionSiteQuota,
];

fn tell(shown: &PolicyOutput) -> Document {
    let mut document = Document::new();
    document.paragraph(&shown.title);
    let columns = ["limit", "value", "meaning"].map(ResultColumn::named);
    let mut table = ResultTable::new(columns.to_vec());
    let mut row = |limit: Limit, value: ResultCell| {
        table.row(vec![
            ResultCell::text(limit.name()),
            value,
            ResultCell::text(meaning(limit)),
        ]);
    };
    for kind in KINDS {
        let capacity = match shown.policy.capacities().of(kind) {
            Capacity::Finite(amount) => ResultCell::Epsilon(amount.to_epsilon()),
            Capacity::Unlimited => ResultCell::text("unlimited"),
        };
        row(kind.limit(), capacity);
    }
    let cap = shown.policy.domain_cap();
    row(
        Limit::DomainCap,
        cap.map_or(ResultCell::text("none"), |cap| {
            ResultCell::Count(cap.get().into())
        }),
    );
    document.table(table);
    match shown.warnings.as_deref() {
        None => {}
        Some([]) => {
            document.paragraph("These limits are large enough for the workload.");
        }
        Some(warnings) => {
            let warnings: Vec<String> = warnings.iter().map(|it| format!("  {it}")).collect();
            document.paragraph(format!(
                "These limits are too small for the workload:\n{}",
                warnings.join("\n")
            ));
        }
    }
    document
}

/// A policy file, in the form that `--json` prints. Limits that it leaves out are the profile's.
/// The former names of limits are still read.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct PolicyFile {
    #[serde(default, deserialize_with = "profile")]
    pub(crate) profile: Option<Profile>,
    #[serde(default, alias = "querier", deserialize_with = "given")]
    querier_budget: Option<Option<u64>>,
    #[serde(default, alias = "global", deserialize_with = "given")]
    global_budget: Option<Option<u64>>,
    #[serde(default, alias = "impressionSite", deserialize_with = "given")]
    impression_site_quota: Option<Option<u64>>,
    #[serde(default, alias = "conversionSite", deserialize_with = "given")]
    conversion_site_quota: Option<Option<u64>>,
    #[serde(default, alias = "cap", deserialize_with = "given")]
    domain_cap: Option<Option<u32>>,
    /// Ignored. `--json` prints it when a workload is given.
    #[serde(default, rename = "warnings")]
    _warnings: Vec<String>,
}

fn profile<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Profile>, D::Error> {
    let name = String::deserialize(from)?;
    name.parse().map(Some).map_err(serde::de::Error::custom)
}

/// A field that is present, even if it is null.
fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(from).map(Some)
}

/// Reads a policy file.
pub(crate) fn read(path: &Path) -> Result<PolicyFile, CommandError> {
    let unreadable = |why: String| CommandError::unreadable(format!("{}: {why}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| unreadable(error.to_string()))?;
    parse(&text).map_err(unreadable)
}

fn parse(text: &str) -> Result<PolicyFile, String> {
    let value: Value =
        serde_json::from_str(text).map_err(|error| format!("not valid JSON: {error}"))?;
    let Value::Object(fields) = &value else {
        return Err(format!(
            "expected an object of capacities, such as {{\"querierBudget\": 1000000}}, got {}",
            clipped(&value)
        ));
    };
    for (name, value) in fields {
        check(name, value)?;
    }
    // The text is parsed again because a parsed value does not show that a field was given twice.
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// The limit that a field of a policy file sets, by its current or its former name.
fn limit_named(name: &str) -> Option<Limit> {
    match name {
        "querier" => Some(Limit::QuerierBudget),
        "global" => Some(Limit::GlobalBudget),
        "impressionSite" => Some(Limit::ImpressionSiteQuota),
        "conversionSite" => Some(Limit::ConversionSiteQuota),
        "cap" => Some(Limit::DomainCap),
        name => Limit::from_key(name).filter(|limit| Limit::ALL.contains(limit)),
    }
}

/// Checks a field of the file. The error names what is allowed.
fn check(name: &str, value: &Value) -> Result<(), String> {
    let (good, allowed) = match (limit_named(name), name) {
        (Some(Limit::DomainCap), _) => (
            value.is_null() || value.as_u64().is_some_and(|cap| u32::try_from(cap).is_ok()),
            format!(
                "a whole number of sites from 1 to {}, or null for no domain cap",
                u32::MAX
            ),
        ),
        (Some(_), _) => (
            value.is_null() || value.is_u64(),
            format!(
                "a whole number of microepsilons from 0 to {}, or null for unlimited",
                u64::MAX
            ),
        ),
        (None, "profile") => {
            let profile = value.as_str().map(str::parse::<Profile>);
            if let Some(Err(unknown)) = profile {
                return Err(unknown.to_string());
            }
            (profile.is_some(), "the name of a profile".to_owned())
        }
        (None, "warnings") => (
            value
                .as_array()
                .is_some_and(|list| list.iter().all(Value::is_string)),
            "a list of strings, as `bigbird policy --json` prints it".to_owned(),
        ),
        (None, _) => {
            return Err(format!(
                "unknown field `{}`; use one of: {}, domainCap, profile",
                name.escape_debug(),
                KINDS.map(|kind| kind.limit().key()).join(", "),
            ));
        }
    };
    match good {
        true => Ok(()),
        false => Err(format!(
            "`{name}` must be {allowed}, got {}",
            clipped(value)
        )),
    }
}

/// A value as it was given, cut if it is long.
fn clipped(value: &Value) -> String {
    const LONGEST: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

impl PolicyFile {
    /// The policy of a profile, with the limits of the file.
    pub(crate) fn policy(&self, profile: Profile) -> Result<Policy, CommandError> {
        let base = profile.policy();
        let own = base.capacities();
        let capacity = |given: Option<Option<u64>>, own: Capacity| match given {
            None => own,
            Some(None) => Capacity::Unlimited,
            Some(Some(micro)) => Capacity::Finite(MicroEpsilon::new(micro)),
        };
        let builder = base.to_builder().capacities(Capacities {
            querier_budget: capacity(self.querier_budget, own.querier_budget),
            global_budget: capacity(self.global_budget, own.global_budget),
            impression_site_quota: capacity(self.impression_site_quota, own.impression_site_quota),
            conversion_site_quota: capacity(self.conversion_site_quota, own.conversion_site_quota),
            user_action_budget: own.user_action_budget,
        });
        let builder = match self.domain_cap {
            None => builder,
            Some(None) => builder.no_domain_cap(),
            Some(Some(cap)) => builder.domain_cap(cap),
        };
        Ok(builder.build()?)
    }
}

/// The five limits, with capacities in µε. Null means unlimited, or no domain cap.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LimitsJson {
    querier_budget: Option<u64>,
    global_budget: Option<u64>,
    impression_site_quota: Option<u64>,
    conversion_site_quota: Option<u64>,
    domain_cap: Option<NonZeroU32>,
}

impl LimitsJson {
    pub(crate) fn new(capacities: &Capacities, domain_cap: Option<NonZeroU32>) -> Self {
        let micro = |capacity: Capacity| capacity.amount().map(MicroEpsilon::get);
        Self {
            querier_budget: micro(capacities.querier_budget),
            global_budget: micro(capacities.global_budget),
            impression_site_quota: micro(capacities.impression_site_quota),
            conversion_site_quota: micro(capacities.conversion_site_quota),
            domain_cap,
        }
    }
}

#[derive(Debug, Serialize)]
struct PolicyJson<'a> {
    #[serde(flatten)]
    limits: LimitsJson,
    /// Present if a workload was checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    warnings: Option<&'a [String]>,
}

impl<'a> PolicyJson<'a> {
    fn new(shown: &'a PolicyOutput) -> Self {
        let policy = &shown.policy;
        Self {
            limits: LimitsJson::new(policy.capacities(), policy.domain_cap()),
            warnings: shown.warnings.as_deref(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Policies are printed and read under the names of the limits.
    #[test]
    fn limits_have_one_name() {
        let policy = Profile::BigBird.policy();
        let printed = LimitsJson::new(policy.capacities(), policy.domain_cap());
        let printed = serde_json::to_value(printed).unwrap_or_default();
        let fields: Vec<&String> = printed
            .as_object()
            .into_iter()
            .flat_map(|it| it.keys())
            .collect();
        assert_eq!(fields.len(), Limit::ALL.len());
        for limit in Limit::ALL {
            assert!(fields.iter().any(|field| *field == limit.key()), "{limit}");
            assert_eq!(limit_named(limit.key()), Some(limit));
        }
        assert!(parse(&printed.to_string()).is_ok());
    }

    /// Files with the former names of limits keep their meaning.
    #[test]
    fn old_policy_files_are_still_read() {
        let old = r#"{"querier": 250000, "global": 5, "impressionSite": null,
                      "conversionSite": 7, "cap": 7}"#;
        let new = r#"{"querierBudget": 250000, "globalBudget": 5, "impressionSiteQuota": null,
                      "conversionSiteQuota": 7, "domainCap": 7}"#;
        let policy = |text| {
            parse(text)
                .ok()
                .and_then(|file| file.policy(Profile::BigBird).ok())
        };
        assert!(policy(old).is_some());
        assert_eq!(policy(old), policy(new));
        assert!(parse(r#"{"cap": 1, "domainCap": 2}"#).is_err());
    }
}
