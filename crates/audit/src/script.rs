//! Scripts: everything that happens to a device, as data.
//!
//! A script contains the rules, the limits, the start of epochs, the random draws and every step
//! with its time. Both worlds play the same script. They differ in one thing: in world 0, saves
//! that fall into one chosen epoch are called, and leave nothing in that epoch.

use std::num::NonZeroU32;

use bigbird::{Capacity, DepletedSites, FilterKind, MicroEpsilon, Policy, Profile, SiteCharging};
use serde::{Deserialize, Serialize};

/// A site. Scripts name sites by number.
pub type SiteNumber = u8;
/// A user action. Scripts name user actions by number. A number means another action in another
/// epoch.
pub type ActionNumber = u16;

/// One hour in milliseconds.
pub const HOUR: i64 = 3_600_000;
/// One day in milliseconds.
pub const DAY: i64 = 24 * HOUR;

/// The largest distance of a clock from the beginning of epoch 0: some three thousand years.
const MOST_CLOCK: i64 = 1_000_000 * DAY;

/// A life of one device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Script {
    /// The rules and limits of the device.
    #[serde(default)]
    pub setup: ScriptSetup,
    /// The choice of epoch x: an index into the epochs in which something was saved, in the order
    /// of their first save. It wraps around.
    #[serde(default)]
    pub x: usize,
    /// True if the clock may step back. Otherwise, a step back is ignored.
    #[serde(default)]
    pub clock_steps_back: bool,
    /// The seed of the draws by which credit is rounded.
    #[serde(default)]
    pub tape: u64,
    /// The steps, in order.
    pub steps: Vec<Step>,
}

/// The rules and limits of a device. Budgets and quotas are in µε, and `None` means unlimited.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ScriptSetup {
    /// The profile that the policy starts from.
    #[serde(with = "profile_name")]
    pub profile: Profile,
    /// The capacity of each querier budget.
    pub querier_budget: Option<u64>,
    /// The capacity of the global budget.
    pub global_budget: Option<u64>,
    /// The capacity of each impression-site quota.
    pub impression_site_quota: Option<u64>,
    /// The capacity of each conversion-site quota.
    pub conversion_site_quota: Option<u64>,
    /// The capacity of each user-action budget.
    pub user_action_budget: Option<u64>,
    /// The domain cap.
    pub domain_cap: Option<NonZeroU32>,
    /// The rule by which impression sites pay.
    pub site_charging: SiteCharging,
    /// The rule for impression sites that cannot pay.
    pub depleted_sites: DepletedSites,
    /// The length of epochs in days.
    pub epoch_days: u32,
    /// The longest lookback and lifetime in days.
    pub max_lookback_days: u32,
    /// The limit on the impressions of an epoch, in units.
    pub units_per_epoch: NonZeroU32,
    /// The limit on the relevant impressions of an epoch that a request reads.
    pub relevant_per_epoch: u32,
    /// The limit on attribution objects.
    pub max_objects: usize,
    /// The limit on the shares of an attribution object.
    pub max_shares: usize,
    /// The number of names that may be given to sites before upkeep is due.
    pub names_before_upkeep: usize,
    /// The limit on conversions of one site that arrive within one delay. The limit on those of
    /// all sites is twice as high.
    pub conversions_at_once: u32,
}

impl Default for ScriptSetup {
    /// Room for everything. Each budget and quota is worth one request of ε = 1.
    fn default() -> Self {
        Self {
            profile: Profile::BigBird,
            querier_budget: Some(1_000_000),
            global_budget: Some(1_000_000),
            impression_site_quota: Some(1_000_000),
            conversion_site_quota: Some(1_000_000),
            user_action_budget: None,
            domain_cap: None,
            site_charging: SiteCharging::Full,
            depleted_sites: DepletedSites::DropEpoch,
            epoch_days: 2,
            max_lookback_days: 5,
            units_per_epoch: NonZeroU32::MAX,
            relevant_per_epoch: 1000,
            max_objects: 1000,
            max_shares: 64,
            names_before_upkeep: 10_000,
            conversions_at_once: 1000,
        }
    }
}

mod profile_name {
    use bigbird::Profile;
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(profile: &Profile, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(profile.name())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Profile, D::Error> {
        let name = String::deserialize(from)?;
        name.parse().map_err(D::Error::custom)
    }
}

impl ScriptSetup {
    /// The policy.
    pub fn policy(&self) -> Policy {
        self.policy_with(
            self.conversion_site_quota,
            self.domain_cap,
            self.site_charging,
        )
    }

    /// Other rules, to change to and fro: another conversion-site quota, another domain cap and
    /// another site charging. The global budget stays, so that "the capacity" has one meaning.
    pub fn other_policy(&self) -> Policy {
        let quota = self.conversion_site_quota.map(|quota| quota.div_ceil(2));
        let cap = self.domain_cap.map(|_| NonZeroU32::MIN);
        self.policy_with(quota, cap, SiteCharging::Uniform)
    }

    fn policy_with(
        &self,
        conversion_site_quota: Option<u64>,
        domain_cap: Option<NonZeroU32>,
        site_charging: SiteCharging,
    ) -> Policy {
        let policy = self.profile.policy();
        let mut capacities = *policy.capacities();
        let set = |capacity: &mut Capacity, micro: Option<u64>| {
            *capacity = match micro {
                Some(micro) => Capacity::Finite(MicroEpsilon::new(micro)),
                None => Capacity::Unlimited,
            };
        };
        set(&mut capacities.querier_budget, self.querier_budget);
        set(&mut capacities.global_budget, self.global_budget);
        set(&mut capacities.user_action_budget, self.user_action_budget);
        // A profile without a kind of quota has none, whatever the script says.
        if capacities.impression_site_quota != Capacity::Unlimited {
            let quota = self.impression_site_quota;
            set(&mut capacities.impression_site_quota, quota);
        }
        if capacities.conversion_site_quota != Capacity::Unlimited {
            set(&mut capacities.conversion_site_quota, conversion_site_quota);
        }
        let with_cap = policy.domain_cap().is_some();
        let mut builder = policy.to_builder().capacities(capacities);
        if self.profile != Profile::W3cDraft {
            builder = builder
                .site_charging(site_charging)
                .depleted_sites(self.depleted_sites);
        }
        let builder = match domain_cap.filter(|_| with_cap) {
            Some(cap) => builder.domain_cap(cap.get()),
            None => builder.no_domain_cap(),
        };
        builder.build().unwrap_or(policy)
    }

    /// The capacity of filters of a kind, in µε.
    pub fn capacity(&self, kind: FilterKind) -> Option<u64> {
        let capacity = self.policy().capacities().of(kind);
        capacity.amount().map(MicroEpsilon::get)
    }

    /// The epoch of a moment, if the rules never change.
    pub fn epoch(&self, moment: i64) -> i64 {
        moment.div_euclid(self.epoch_ms())
    }

    /// The length of an epoch in milliseconds.
    pub fn epoch_ms(&self) -> i64 {
        i64::from(self.epoch_days.max(1)) * DAY
    }
}

/// A step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Step {
    /// The clock moves to a moment, in milliseconds since the beginning of epoch 0.
    Clock(i64),
    /// Calls arrive at the same moment, in this order.
    Together(Vec<ScriptCall>),
    /// A site asks to be forgotten (`Clear-Site-Data`).
    ClearSite(SiteNumber),
    /// The user clears history, of some sites or of all.
    ClearHistory(ClearHistory),
    /// The user enables or disables the API.
    Enable(bool),
    /// Upkeep runs to its end.
    Maintain,
    /// Nobody waits: upkeep runs if it is due.
    Idle,
    /// The process ends, and another begins.
    Restart,
    /// The process is killed, and another begins.
    Crash,
    /// The process ends, and another begins with other rules, or with those of the setup.
    ChangeRules {
        /// True for the other rules.
        others: bool,
    },
    /// A call arrives.
    #[serde(untagged)]
    Call(ScriptCall),
}

impl Step {
    /// The calls of the step.
    pub fn calls(&self) -> &[ScriptCall] {
        match self {
            Self::Call(call) => std::slice::from_ref(call),
            Self::Together(calls) => calls.as_slice(),
            _ => &[],
        }
    }

    /// True if the credit of some call may be rounded at random.
    pub(crate) fn draws(&self) -> bool {
        self.calls()
            .iter()
            .any(|call| call.credit() != Credit::Last)
    }

    /// The calls of the step, to change them.
    pub fn calls_mut(&mut self) -> &mut [ScriptCall] {
        match self {
            Self::Call(call) => std::slice::from_mut(call),
            Self::Together(calls) => calls.as_mut_slice(),
            _ => &mut [],
        }
    }
}

/// The arguments of [`Step::ClearHistory`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClearHistory {
    /// The sites. If empty, all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sites: Vec<SiteNumber>,
    /// True if visits are forgotten and epochs are closed, false if only the sites are closed.
    #[serde(default)]
    pub forget_visits: bool,
}

/// A call of a page.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ScriptCall {
    /// Saves an impression.
    Save(Save),
    /// Measures a conversion.
    Measure(Measure),
    /// Creates a shared conversion (an attribution object).
    Create(Create),
    /// Takes a share of a shared conversion.
    Share(Share),
}

/// Saves an impression.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Save {
    /// The impression site.
    pub site: SiteNumber,
    /// The intermediary that saves it, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intermediary: Option<SiteNumber>,
    /// The user action that caused it.
    pub action: ActionNumber,
    /// The bucket that gets its credit.
    #[serde(default)]
    pub bucket: u32,
    /// The match value.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub match_value: u32,
    /// The priority.
    #[serde(default, skip_serializing_if = "is_zero_signed")]
    pub priority: i32,
    /// The lifetime in days.
    #[serde(default = "default_days")]
    pub lifetime_days: u32,
    /// The conversion sites that may measure it. If empty, every site may.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conversion_sites: Vec<SiteNumber>,
    /// The callers that may measure it. If empty, every caller may.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conversion_callers: Vec<SiteNumber>,
}

/// Measures a conversion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Measure {
    /// The conversion site.
    pub site: SiteNumber,
    /// The intermediary that asks and pays, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intermediary: Option<SiteNumber>,
    /// The user action that caused it.
    pub action: ActionNumber,
    /// The terms.
    #[serde(flatten)]
    pub terms: AskTerms,
    /// The lookback in days.
    #[serde(default = "default_days")]
    pub lookback_days: u32,
    /// The impressions that are asked for.
    #[serde(flatten)]
    pub scope: Scope,
}

/// The terms of a request, on which all shares of one conversion agree, and the size of the
/// histogram, on which they need not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AskTerms {
    /// The epsilon in µε.
    pub epsilon: u64,
    /// The value of the conversion.
    #[serde(default = "one")]
    pub value: u32,
    /// The largest value.
    #[serde(default = "one")]
    pub max_value: u32,
    /// The way in which the value is divided.
    #[serde(default)]
    pub credit: Credit,
    /// The number of buckets.
    #[serde(default = "two")]
    pub buckets: u32,
}

/// The impressions that a request asks for. Empty lists ask for all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Scope {
    /// The impression sites.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub impression_sites: Vec<SiteNumber>,
    /// The sites that saved the impressions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub impression_callers: Vec<SiteNumber>,
    /// The match values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub match_values: Vec<u32>,
}

/// Creates a shared conversion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Create {
    /// The conversion.
    #[serde(flatten)]
    pub measure: Measure,
    /// The sites that may take shares.
    pub participants: Vec<SiteNumber>,
}

/// Takes a share of a shared conversion. Its terms are those of the conversion, except for the
/// number of buckets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Share {
    /// The shared conversion: the number of [`Create`]s before it. A share of one that was not
    /// created is not called.
    pub object: usize,
    /// The participant that takes it.
    pub querier: SiteNumber,
    /// The user action that caused it.
    pub action: ActionNumber,
    /// The number of buckets.
    #[serde(default = "two")]
    pub buckets: u32,
    /// The impressions that are asked for.
    #[serde(flatten)]
    pub scope: Scope,
}

/// The way in which a value is divided over the last impressions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Credit {
    /// All to the last one: `[1]`.
    #[default]
    Last,
    /// Equally to the last two: `[1, 1]`.
    Even,
    /// Twice as much to the one before the last: `[1, 2]`, a list that is not decreasing.
    Rising,
}

impl Credit {
    /// The list of shares.
    pub fn shares(self) -> &'static [f64] {
        match self {
            Self::Last => &[1.0],
            Self::Even => &[1.0, 1.0],
            Self::Rising => &[1.0, 2.0],
        }
    }
}

impl Script {
    /// Every call of the script, including those that arrive together.
    pub fn calls(&self) -> impl Iterator<Item = &ScriptCall> {
        self.steps.iter().flat_map(Step::calls)
    }

    /// Checks numbers that no page could pass.
    ///
    /// # Errors
    /// A sentence that names the step and the value.
    pub fn check(&self) -> Result<(), String> {
        if self.setup.global_budget.is_none() {
            return Err("globalBudget must be a number of µε, got null".to_owned());
        }
        for (step, number) in self.steps.iter().zip(1..) {
            if let Step::Clock(to) = step
                && to.unsigned_abs() > MOST_CLOCK.unsigned_abs()
            {
                return Err(format!(
                    "the clock of step {number} must be within {MOST_CLOCK} ms of epoch 0, got {to}"
                ));
            }
            for call in step.calls() {
                let terms = match call {
                    ScriptCall::Measure(measure) => measure.terms,
                    ScriptCall::Create(create) => create.measure.terms,
                    ScriptCall::Save(_) | ScriptCall::Share(_) => continue,
                };
                let step: u32 = number;
                if !(1..=4_294_000_000).contains(&terms.epsilon) {
                    let got = terms.epsilon;
                    return Err(format!(
                        "the epsilon of step {step} must be 1 to 4294000000 µε, got {got}"
                    ));
                }
                if terms.value == 0 || terms.value > terms.max_value {
                    let AskTerms {
                        value, max_value, ..
                    } = terms;
                    return Err(format!(
                        "the value of step {step} must be 1 to maxValue = {max_value}, got {value}"
                    ));
                }
                if !(1..=1024).contains(&terms.buckets) {
                    let got = terms.buckets;
                    return Err(format!(
                        "the buckets of step {step} must be 1 to 1024, got {got}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// The terms of the shared conversions, in the order of their creation.
    pub fn shared_terms(&self) -> Vec<&Create> {
        let created = self.calls().filter_map(|call| match call {
            ScriptCall::Create(create) => Some(create),
            _ => None,
        });
        created.collect()
    }
}

impl Script {
    /// True if the credit of some call may be rounded at random.
    pub(crate) fn draws(&self) -> bool {
        self.steps.iter().any(Step::draws)
    }
}

impl ScriptCall {
    /// The credit that the call divides. Saves divide none, and shares take what was divided.
    pub(crate) fn credit(&self) -> Credit {
        match self {
            Self::Save(_) | Self::Share(_) => Credit::Last,
            Self::Measure(measure) => measure.terms.credit,
            Self::Create(create) => create.measure.terms.credit,
        }
    }
}

/// The draws by which credit is rounded. Every draw is one of six values, which is exact for
/// halves and thirds.
#[derive(Debug, Clone)]
pub struct Tape {
    seed: u64,
    /// Draws that are given, by step and number. All others follow from the seed.
    fixed: std::collections::BTreeMap<(usize, u32), u8>,
}

impl Tape {
    /// The number of different draws.
    pub const LEVELS: u8 = 6;

    /// The tape of a seed.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            fixed: std::collections::BTreeMap::new(),
        }
    }

    /// The same tape with one draw fixed.
    #[must_use]
    pub fn with(mut self, step: usize, draw: u32, level: u8) -> Self {
        self.fixed.insert((step, draw), level % Self::LEVELS);
        self
    }

    /// A draw of a step, in (0, 1).
    pub fn draw(&self, step: usize, draw: u32) -> f64 {
        let level = self.fixed.get(&(step, draw)).copied().unwrap_or_else(|| {
            let mixed = (self.seed ^ (step as u64) << 8 ^ u64::from(draw))
                .wrapping_add(1)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            #[expect(clippy::cast_possible_truncation, reason = "below 6")]
            let level = ((mixed >> 32) % u64::from(Self::LEVELS)) as u8;
            level
        });
        f64::from(2 * level + 1) / f64::from(2 * Self::LEVELS)
    }
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn is_zero_signed(number: &i32) -> bool {
    *number == 0
}

fn one() -> u32 {
    1
}

fn two() -> u32 {
    2
}

fn default_days() -> u32 {
    30
}
