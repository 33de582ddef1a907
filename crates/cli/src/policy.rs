//! `bigbird policy`: the capacities of a profile or of a workload, each with its meaning.

use std::fmt::Write as _;
use std::fs;
use std::num::NonZeroU32;
use std::path::Path;

use bigbird::{Capacities, Capacity, FilterKind, MicroEpsilon, Policy, Profile, Workload};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::{Failed, Finished, output};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
With --querier and a workload, the capacities are computed by the paper's closed form:
  bigbird policy --querier 1 --r 0 --conversion-sites 4 --impression-sites 2 --fan-out 4 --cap 2
With --profile they are the profile's; a workload given with it is checked against the paper's
four constraints:
  bigbird policy --profile big-bird --conversion-sites 9 --impression-sites 2 --fan-out 2")]
pub(crate) struct Args {
    /// A profile: big-bird (the default), w3c-draft, cookie-monster or global-only
    #[arg(long, conflicts_with_all = ["querier", "cap"])]
    profile: Option<Profile>,
    /// The querier budget, in epsilons
    #[arg(long, value_name = "EPSILON", allow_negative_numbers = true)]
    querier: Option<f64>,
    /// What intermediaries spend on one conversion site, as a share of a querier budget [default: 0]
    #[arg(
        long,
        value_name = "SHARE",
        allow_negative_numbers = true,
        requires = "conversion_sites"
    )]
    r: Option<f64>,
    /// N: conversion sites that ask one device for reports about one epoch
    #[arg(long, value_name = "N", requires_all = ["impression_sites", "fan_out"])]
    conversion_sites: Option<u32>,
    /// M: impression sites that contribute to those reports
    #[arg(long, value_name = "M", requires_all = ["conversion_sites", "fan_out"])]
    impression_sites: Option<u32>,
    /// n: conversion sites that ask about one impression site
    #[arg(long, value_name = "n", requires_all = ["conversion_sites", "impression_sites"])]
    fan_out: Option<u32>,
    /// κ: sites that one user action may involve [default with --querier: 2]
    #[arg(long, value_name = "SITES", requires = "querier")]
    cap: Option<u32>,
    /// Print the capacities, in microepsilons, as JSON (null: unlimited, or no cap)
    #[arg(long)]
    json: bool,
}

/// What there is to show.
struct Shown {
    title: String,
    policy: Policy,
    /// What is too small for the workload, if it was checked.
    warnings: Option<Vec<String>>,
}

pub(crate) fn run(args: &Args) -> Finished {
    let shown = args.show()?;
    let text = if args.json {
        output::json(&Json::new(&shown))?
    } else {
        tell(&shown)?
    };
    Ok((text, true))
}

impl Args {
    fn show(&self) -> Result<Shown, Failed> {
        let workload = match (self.conversion_sites, self.impression_sites, self.fan_out) {
            (Some(n_conversion), Some(m_impression), Some(fan_out)) => Some(Workload::new(
                n_conversion,
                m_impression,
                fan_out,
                self.r.unwrap_or(0.0),
            )?),
            _ => None,
        };
        match (self.querier, workload) {
            (Some(querier), Some(workload)) => Ok(Shown {
                title: "The smallest capacities for this workload".to_owned(),
                policy: Policy::from_workload(querier, &workload, self.cap.unwrap_or(2))?,
                warnings: None,
            }),
            (Some(_), None) => Err(Failed {
                why: "--querier needs a workload: --conversion-sites N --impression-sites M \
                      --fan-out n"
                    .to_owned(),
                status: 1,
            }),
            (None, workload) => {
                let profile = self.profile.unwrap_or_default();
                let policy = profile.policy();
                let warnings = workload.map(|workload| {
                    let violations = policy.violations(&workload);
                    violations.iter().map(ToString::to_string).collect()
                });
                Ok(Shown {
                    title: format!("Profile {profile}: {}", profile.summary()),
                    warnings,
                    policy,
                })
            }
        }
    }
}

const MEANINGS: [(FilterKind, &str); 4] = [
    (
        FilterKind::Querier,
        "what one querier can learn about a device from an epoch",
    ),
    (
        FilterKind::Global,
        "what all queriers together can learn about it",
    ),
    (
        FilterKind::ImpressionSite,
        "how much of the global budget the ads of one site can help consume",
    ),
    (
        FilterKind::ConversionSite,
        "how much of the global budget conversions on one site can consume",
    ),
];

fn tell(shown: &Shown) -> Result<String, std::fmt::Error> {
    let mut text = format!("{}\n\n", shown.title);
    for (kind, meaning) in MEANINGS {
        let capacity = match shown.policy.capacities().of(kind) {
            Capacity::Finite(amount) => format!("{amount} ε"),
            Capacity::Unlimited => "unlimited".to_owned(),
        };
        writeln!(text, "  {kind:<21}  {capacity:>9}  {meaning}")?;
    }
    let cap = match shown.policy.domain_cap() {
        Some(cap) => cap.to_string(),
        None => "no cap".to_owned(),
    };
    let meaning = "how many sites one user action can involve in an epoch";
    writeln!(text, "  {:<21}  {cap:>9}  {meaning}", "domain cap")?;
    match shown.warnings.as_deref() {
        None => {}
        Some([]) => text.push_str("\nEnough for this workload.\n"),
        Some(warnings) => {
            text.push_str("\nToo small for this workload:\n");
            for warning in warnings {
                writeln!(text, "  {warning}")?;
            }
        }
    }
    Ok(text)
}

/// A file of capacities, in the form that `--json` prints. What it leaves out is the profile's.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct PolicyFile {
    #[serde(default, deserialize_with = "profile")]
    pub(crate) profile: Option<Profile>,
    #[serde(default, deserialize_with = "given")]
    querier: Option<Option<u64>>,
    #[serde(default, deserialize_with = "given")]
    global: Option<Option<u64>>,
    #[serde(default, deserialize_with = "given")]
    impression_site: Option<Option<u64>>,
    #[serde(default, deserialize_with = "given")]
    conversion_site: Option<Option<u64>>,
    #[serde(default, deserialize_with = "given")]
    cap: Option<Option<u32>>,
    /// Printed with a workload.
    #[serde(default, rename = "warnings")]
    _warnings: Vec<String>,
}

fn profile<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Profile>, D::Error> {
    let name = String::deserialize(from)?;
    name.parse().map(Some).map_err(serde::de::Error::custom)
}

/// What is there, null or not.
fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(from).map(Some)
}

/// Reads a file of capacities.
pub(crate) fn read(path: &Path) -> Result<PolicyFile, Failed> {
    let unreadable = |why: String| Failed::unreadable(format!("{}: {why}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| unreadable(error.to_string()))?;
    parse(&text).map_err(unreadable)
}

fn parse(text: &str) -> Result<PolicyFile, String> {
    let value: Value =
        serde_json::from_str(text).map_err(|error| format!("it is not JSON: {error}"))?;
    let Value::Object(fields) = &value else {
        return Err(format!(
            "it must be an object of capacities, such as {{\"querier\": 1000000}}, got {}",
            clipped(&value)
        ));
    };
    for (name, value) in fields {
        check(name, value)?;
    }
    // Only the text still tells whether a field is given twice.
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// Says what a field of the file must be, if it is not.
fn check(name: &str, value: &Value) -> Result<(), String> {
    let (good, must) = match name {
        "querier" | "global" | "impressionSite" | "conversionSite" => (
            value.is_null() || value.is_u64(),
            format!(
                "a whole number of microepsilons from 0 to {}, or null for unlimited",
                u64::MAX
            ),
        ),
        "cap" => (
            value.is_null() || value.as_u64().is_some_and(|cap| u32::try_from(cap).is_ok()),
            format!(
                "a whole number of sites from 1 to {}, or null for no cap",
                u32::MAX
            ),
        ),
        "profile" => {
            let profile = value.as_str().map(str::parse::<Profile>);
            if let Some(Err(unknown)) = profile {
                return Err(unknown.to_string());
            }
            (profile.is_some(), "the name of a profile".to_owned())
        }
        "warnings" => (
            value
                .as_array()
                .is_some_and(|list| list.iter().all(Value::is_string)),
            "a list of strings, as `bigbird policy --json` prints it".to_owned(),
        ),
        _ => {
            return Err(format!(
                "unknown field `{}`; use some of: querier, global, impressionSite, conversionSite, \
                 cap, profile",
                name.escape_debug()
            ));
        }
    };
    match good {
        true => Ok(()),
        false => Err(format!("`{name}` must be {must}, got {}", clipped(value))),
    }
}

/// A value as it was given, or its beginning if it is long.
fn clipped(value: &Value) -> String {
    const LONGEST: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

impl PolicyFile {
    /// The policy of a profile, with the capacities of the file.
    pub(crate) fn policy(&self, profile: Profile) -> Result<Policy, Failed> {
        let base = profile.policy();
        let own = base.capacities();
        let capacity = |given: Option<Option<u64>>, own: Capacity| match given {
            None => own,
            Some(None) => Capacity::Unlimited,
            Some(Some(micro)) => Capacity::Finite(MicroEpsilon::new(micro)),
        };
        let builder = base.to_builder().capacities(Capacities {
            querier: capacity(self.querier, own.querier),
            global: capacity(self.global, own.global),
            impression_site: capacity(self.impression_site, own.impression_site),
            conversion_site: capacity(self.conversion_site, own.conversion_site),
            user_action: own.user_action,
        });
        let builder = match self.cap {
            None => builder,
            Some(None) => builder.no_domain_cap(),
            Some(Some(cap)) => builder.domain_cap(cap),
        };
        Ok(builder.build()?)
    }
}

/// The capacities in µε; null for unlimited, or no cap.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CapacitiesJson {
    querier: Option<u64>,
    global: Option<u64>,
    impression_site: Option<u64>,
    conversion_site: Option<u64>,
    cap: Option<NonZeroU32>,
}

impl CapacitiesJson {
    pub(crate) fn new(capacities: &Capacities, cap: Option<NonZeroU32>) -> Self {
        let micro = |kind| capacities.of(kind).amount().map(MicroEpsilon::get);
        Self {
            querier: micro(FilterKind::Querier),
            global: micro(FilterKind::Global),
            impression_site: micro(FilterKind::ImpressionSite),
            conversion_site: micro(FilterKind::ConversionSite),
            cap,
        }
    }
}

#[derive(Debug, Serialize)]
struct Json<'a> {
    #[serde(flatten)]
    capacities: CapacitiesJson,
    /// Present when a workload was checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    warnings: Option<&'a [String]>,
}

impl<'a> Json<'a> {
    fn new(shown: &'a Shown) -> Self {
        let policy = &shown.policy;
        Self {
            capacities: CapacitiesJson::new(policy.capacities(), policy.domain_cap()),
            warnings: shown.warnings.as_deref(),
        }
    }
}
