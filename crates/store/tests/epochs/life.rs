//! Random lives and their steps.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use bigbird::{
    AllowedQueriers, Capacity, Decision, DepletedSites, Epsilon, Fate, Histogram, MicroEpsilon,
    Profile, SiteCharging, StoreLimits, Timestamp,
};
use bigbird_user_agent::{
    Action, Call, Config, ConversionAnswer, ConversionOptions, Explanation, ImpressionOptions,
    QuerierRole, Randomness, SharedConversion, Storage, UserAgent, View as _,
};
use proptest::prelude::*;

use crate::common::{DAY, SERVICE};

pub(crate) const HOUR: i64 = DAY / 24;
pub(crate) const START: i64 = 1000 * DAY;

/// The directions in which clocks step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clocks {
    Forward,
    BothWays,
}

#[derive(Debug, Clone)]
pub(crate) struct Life {
    profile: Profile,
    site_charging: SiteCharging,
    depleted_sites: DepletedSites,
    /// Chooses, among the epochs in which something is saved, the one that has no impressions in
    /// the second world.
    pub(crate) choice: usize,
    /// The steps, each with the hours that pass before it.
    pub(crate) steps: Vec<(LifeStep, i64)>,
}

#[derive(Debug, Clone)]
pub(crate) enum LifeStep {
    Nothing,
    /// Impressions that are saved in one transaction.
    Save(Vec<LifeAd>),
    Measure {
        conversion: LifeConversion,
        intermediary_pays: bool,
    },
    Create {
        conversion: LifeConversion,
        companies: Vec<u8>,
    },
    /// A share of the shared conversion that is `before_last` places before the last one created.
    Take {
        before_last: usize,
        company: u8,
        action: u64,
        ads: Ads,
    },
    ClearSite(u8),
    Clear {
        sites: Vec<u8>,
        forget_visits: bool,
    },
    Enable(bool),
    Maintain,
    Restart,
    /// The process ends, and another begins with the rules of the life, or with other rules.
    ChangeRules {
        others: bool,
    },
}

#[derive(Debug, Clone)]
pub(crate) struct LifeAd {
    site: u8,
    intermediary: Option<u8>,
    action: u64,
    conversion_sites: Vec<u8>,
    conversion_callers: Vec<u8>,
    match_value: u32,
    priority: i32,
    days: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct LifeConversion {
    site: u8,
    intermediary: Option<u8>,
    action: u64,
    epsilon: f64,
    lookback_days: u64,
    histogram_size: u32,
    impression_sites: Vec<u8>,
    match_values: Vec<u32>,
}

/// The impressions that a share asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ads {
    All,
    /// The ones that the company saved.
    Own,
    /// The ones on a site.
    On(u8),
    /// The ones with a match value.
    Of(u32),
}

/// The number of sites.
pub(crate) const SITES: u8 = 4;

pub(crate) fn life(clocks: Clocks) -> impl Strategy<Value = Life> {
    let hours = match clocks {
        Clocks::Forward => prop_oneof![12 => 0..3_i64, 3 => 8..50_i64].boxed(),
        Clocks::BothWays => prop_oneof![12 => 0..3_i64, 4 => 8..60_i64, 2 => -60..0_i64].boxed(),
    };
    let profile = prop_oneof![
        6 => Just(Profile::BigBird),
        1 => Just(Profile::GlobalOnly),
        1 => Just(Profile::W3cDraft),
        1 => Just(Profile::CookieMonster),
    ];
    let rules = (
        prop_oneof![
            3 => Just(SiteCharging::Full),
            1 => Just(SiteCharging::Paper),
            1 => Just(SiteCharging::Uniform),
        ],
        prop_oneof![
            3 => Just(DepletedSites::DropEpoch),
            1 => Just(DepletedSites::DropSite),
        ],
    );
    let steps = prop::collection::vec((step(), hours), 60);
    (profile, rules, 0..1000_usize, steps).prop_map(
        |(profile, (site_charging, depleted_sites), choice, steps)| Life {
            profile,
            site_charging,
            depleted_sites,
            choice,
            steps,
        },
    )
}

fn some_sites() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        3 => Just(Vec::new()),
        1 => prop::collection::vec(0..SITES, 1..3),
    ]
}

fn ad() -> impl Strategy<Value = LifeAd> {
    (
        (0..SITES, prop::option::weighted(0.5, 0..3_u8), 0..14_u64),
        some_sites(),
        prop_oneof![4 => Just(Vec::new()), 1 => prop::collection::vec(0..3_u8, 1..3)],
        (0..2_u32, 0..2_i32, prop::sample::select(vec![1_u64, 30])),
    )
        .prop_map(
            |((site, intermediary, action), sites, callers, (match_value, priority, days))| {
                LifeAd {
                    site,
                    intermediary,
                    action,
                    conversion_sites: sites,
                    conversion_callers: callers,
                    match_value,
                    priority,
                    days,
                }
            },
        )
}

fn conversion() -> impl Strategy<Value = LifeConversion> {
    (
        (0..SITES, prop::option::weighted(0.5, 0..3_u8), 0..14_u64),
        prop::sample::select(vec![0.2, 0.5, 0.9]),
        prop::sample::select(vec![1_u64, 2, 5]),
        // With size 1, some ads are outside the histogram.
        prop::sample::select(vec![1_u32, 4]),
        some_sites(),
        prop_oneof![5 => Just(Vec::new()), 1 => (0..2_u32).prop_map(|value| vec![value])],
    )
        .prop_map(
            |((site, intermediary, action), epsilon, days, size, sites, values)| LifeConversion {
                site,
                intermediary,
                action,
                epsilon,
                lookback_days: days,
                histogram_size: size,
                impression_sites: sites,
                match_values: values,
            },
        )
}

fn step() -> impl Strategy<Value = LifeStep> {
    let ads = prop_oneof![
        3 => Just(Ads::Own),
        1 => Just(Ads::All),
        1 => (0..SITES).prop_map(Ads::On),
        1 => (0..2_u32).prop_map(Ads::Of),
    ];
    let companies = prop_oneof![
        3 => Just(vec![0, 1, 2]),
        1 => prop::collection::vec(0..3_u8, 1..3),
    ];
    prop_oneof![
        1 => Just(LifeStep::Nothing),
        18 => ad().prop_map(|ad| LifeStep::Save(vec![ad])),
        2 => prop::collection::vec(ad(), 2..4).prop_map(LifeStep::Save),
        8 => (conversion(), any::<bool>()).prop_map(|(conversion, intermediary_pays)| {
            LifeStep::Measure { conversion, intermediary_pays }
        }),
        6 => (conversion(), companies).prop_map(|(conversion, companies)| {
            LifeStep::Create { conversion, companies }
        }),
        12 => (0..5_usize, 0..3_u8, 0..14_u64, ads).prop_map(
            |(before_last, company, action, ads)| {
                LifeStep::Take { before_last, company, action, ads }
            }
        ),
        1 => (0..SITES).prop_map(LifeStep::ClearSite),
        2 => (some_sites(), prop::bool::weighted(0.2)).prop_map(|(sites, forget_visits)| {
            LifeStep::Clear { sites, forget_visits }
        }),
        1 => prop::bool::weighted(0.7).prop_map(LifeStep::Enable),
        3 => Just(LifeStep::Maintain),
        1 => Just(LifeStep::Restart),
        1 => any::<bool>().prop_map(|others| LifeStep::ChangeRules { others }),
    ]
}

impl Life {
    /// A configuration with epochs of two days, and with limits that a life reaches.
    pub(crate) fn config(&self) -> Config {
        let mut config = Config::new(self.profile)
            .with_service(SERVICE)
            .for_testing();
        let mut capacities = *config.policy.capacities();
        for (capacity, micro) in [
            (&mut capacities.querier_budget, 700_000),
            (&mut capacities.global_budget, 900_000),
            (&mut capacities.impression_site_quota, 800_000),
            (&mut capacities.conversion_site_quota, 500_000),
        ] {
            if *capacity != Capacity::Unlimited {
                *capacity = Capacity::Finite(MicroEpsilon::new(micro));
            }
        }
        let mut policy = config.policy.to_builder().capacities(capacities);
        if self.profile != Profile::W3cDraft {
            policy = policy
                .site_charging(self.site_charging)
                .depleted_sites(self.depleted_sites);
        }
        config.policy = policy.build().unwrap();
        config.epoch_days = 2;
        config.limits.max_lookback_days = 5;
        config.store_limits = StoreLimits {
            units_per_epoch: 3.try_into().unwrap(),
        };
        config.read_limits.relevant = 2;
        config.max_shared_conversions = 3;
        config
    }

    /// A configuration with longer epochs, other quotas, another domain cap and another site
    /// charging, but the same global budget.
    pub(crate) fn other_config(&self) -> Config {
        let mut config = self.config();
        let mut capacities = *config.policy.capacities();
        if capacities.conversion_site_quota != Capacity::Unlimited {
            capacities.conversion_site_quota = Capacity::Finite(MicroEpsilon::new(300_000));
        }
        capacities.querier_budget = Capacity::Finite(MicroEpsilon::new(900_000));
        let policy = config.policy.to_builder().capacities(capacities);
        let policy = policy.site_charging(SiteCharging::Uniform).domain_cap(1);
        config.policy = policy.build().unwrap();
        config.epoch_days = 3;
        config
    }
}

/// Random numbers that depend on the step alone. The draws of one report do not change those of the
/// next.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tape(u64);

impl Tape {
    pub(crate) fn begin(&mut self, step: usize) {
        self.0 = step as u64;
    }
}

impl Randomness for Tape {
    fn epoch_start(&mut self) -> f64 {
        0.3
    }

    fn credit(&mut self) -> f64 {
        self.0 = (self.0.wrapping_add(1)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        #[expect(clippy::cast_precision_loss, reason = "32 bits fit")]
        let number = (self.0 >> 32) as f64;
        number / (1_u64 << 32) as f64
    }

    fn handle(&mut self, number: u64) -> u128 {
        number.into()
    }
}

/// The result of a call that measures.
#[derive(Debug, PartialEq)]
pub(crate) struct ToldStep {
    /// The epochs that the answer is about. `None` if the answer must not reveal anything.
    pub(crate) epochs: Option<RangeInclusive<i64>>,
    /// The answer that the page got.
    pub(crate) answer: ToldAnswer,
    /// The fate of each epoch, which no page learns.
    pub(crate) fates: BTreeMap<i64, Fate>,
}

/// The answer to a page.
#[derive(Debug, PartialEq)]
pub(crate) enum ToldAnswer {
    Handle(SharedConversion),
    /// A report, and its epsilon in µε.
    Report(Vec<u32>, u64),
}

/// A shared conversion.
#[derive(Debug)]
pub(crate) struct LifeShared {
    handle: SharedConversion,
    site: u8,
    options: ConversionOptions,
    epochs: RangeInclusive<i64>,
}

/// State that lasts from step to step, outside the user agent.
#[derive(Debug, Default)]
pub(crate) struct Memories {
    shared: Vec<LifeShared>,
    /// The user actions that the user agent numbered.
    actions: BTreeMap<u64, Action>,
}

fn host(site: u8) -> String {
    format!("site-{site}.example")
}

fn hosts(sites: &[u8]) -> Vec<String> {
    sites.iter().copied().map(host).collect()
}

/// One step of a life.
pub(crate) struct LifeMoment<'a, S> {
    pub(crate) agent: &'a mut UserAgent<S, Tape>,
    pub(crate) memories: &'a mut Memories,
    pub(crate) number: usize,
    pub(crate) now: i64,
}

impl<S: Storage> LifeMoment<'_, S> {
    /// Makes the step happen.
    pub(crate) fn happen(&mut self, step: &LifeStep) -> Option<ToldStep> {
        let now = Timestamp(self.now);
        match step {
            LifeStep::Nothing | LifeStep::Restart | LifeStep::ChangeRules { .. } => {}
            LifeStep::Save(ads) => self.save(ads),
            LifeStep::Measure {
                conversion,
                intermediary_pays,
            } => return Some(self.measure(conversion, *intermediary_pays)),
            LifeStep::Create {
                conversion,
                companies,
            } => return self.create(conversion, companies),
            LifeStep::Take {
                before_last,
                company,
                action,
                ads,
            } => return self.take(*before_last, *company, *action, *ads),
            LifeStep::ClearSite(site) => {
                let cleared = self.agent.clear_impressions_for_site(&host(*site));
                cleared.unwrap();
            }
            LifeStep::Clear {
                sites,
                forget_visits,
            } => {
                if *forget_visits || !sites.is_empty() {
                    let sites = hosts(sites);
                    let cleared = self
                        .agent
                        .clear_browsing_history(&sites, *forget_visits, now);
                    cleared.unwrap();
                }
            }
            LifeStep::Enable(enabled) => self.agent.set_enabled(*enabled).unwrap(),
            LifeStep::Maintain => self.agent.maintain(now).unwrap(),
        }
        None
    }

    /// A user action. The application numbers half of them, and the user agent the others. Of the
    /// latter, some continue as new actions when their epoch has ended, and some do not.
    fn action(&mut self, number: u64) -> Action {
        if number < 7 {
            return Action::numbered(number).unwrap();
        }
        let now = Timestamp(self.now);
        let action = match self.memories.actions.get(&number) {
            None => self.agent.begin_user_action(now).unwrap(),
            Some(begun) if number.is_multiple_of(2) => {
                self.agent.continue_user_action(*begun, now).unwrap()
            }
            Some(begun) => *begun,
        };
        self.memories.actions.insert(number, action);
        action
    }

    /// The window of a conversion at this moment. Before epochs begin, it is epoch 0.
    fn window(&mut self, days: u64) -> RangeInclusive<i64> {
        let tx = self.agent.storage_mut().begin().unwrap();
        let state = tx.state().unwrap();
        let lookback = i64::try_from(days).unwrap() * DAY;
        let epoch = |moment| {
            let epoch = state.timeline.epoch(Timestamp(moment));
            epoch.map_or(0, |epoch| epoch.0)
        };
        epoch(self.now - lookback)..=epoch(self.now)
    }

    fn save(&mut self, ads: &[LifeAd]) {
        let prepared: Vec<_> = ads
            .iter()
            .map(|ad| {
                let options = ImpressionOptions {
                    conversion_sites: hosts(&ad.conversion_sites),
                    conversion_callers: hosts(&ad.conversion_callers),
                    match_value: ad.match_value,
                    priority: ad.priority,
                    lifetime_days: ad.days,
                    ..ImpressionOptions::new(ad.match_value + 2 * u32::from(ad.priority > 0))
                };
                let intermediary = ad.intermediary.map(host);
                (host(ad.site), intermediary, self.action(ad.action), options)
            })
            .collect();
        let now = Timestamp(self.now);
        let calls = prepared
            .iter()
            .map(|(site, intermediary, action, options)| {
                let call = Call {
                    intermediary: intermediary.as_deref(),
                    ..Call::new(site, now).by(*action)
                };
                (call, options)
            });
        let saved = self.agent.save_impressions(calls).unwrap();
        assert!(saved.iter().all(Result::is_ok));
    }

    fn measure(&mut self, conversion: &LifeConversion, intermediary_pays: bool) -> ToldStep {
        let action = self.action(conversion.action);
        let (site, intermediary) = (host(conversion.site), conversion.intermediary.map(host));
        let queriers = self.agent.config().policy.allowed_queriers();
        let draft = queriers == AllowedQueriers::ConversionSiteOnly;
        let other = intermediary.as_ref().is_some_and(|it| *it != site);
        let call = Call {
            intermediary: intermediary.as_deref(),
            querier: match intermediary_pays && other && !draft {
                true => QuerierRole::Intermediary,
                false => QuerierRole::ConversionSite,
            },
            ..Call::new(&site, Timestamp(self.now)).by(action)
        };
        let options = conversion.options();
        let explained = self.agent.explain(&call, &options).unwrap();
        self.agent.randomness_mut().begin(self.number);
        let answer = self.agent.measure_conversion(&call, &options).unwrap();
        let epochs = self.window(conversion.lookback_days);
        told(answer, &explained, epochs, &options)
    }

    fn create(&mut self, conversion: &LifeConversion, companies: &[u8]) -> Option<ToldStep> {
        let queriers = self.agent.config().policy.allowed_queriers();
        if queriers == AllowedQueriers::ConversionSiteOnly {
            // The draft has no shared conversions.
            return None;
        }
        let action = self.action(conversion.action);
        let (site, intermediary) = (host(conversion.site), conversion.intermediary.map(host));
        let call = Call {
            intermediary: intermediary.as_deref(),
            ..Call::new(&site, Timestamp(self.now)).by(action)
        };
        let options = conversion.options();
        let companies = hosts(companies);
        let companies: Vec<&str> = companies.iter().map(String::as_str).collect();
        let agent = &mut *self.agent;
        let explained = agent.explain_shared_conversion(&call, &options, &companies);
        agent.randomness_mut().begin(self.number);
        let created = agent.create_shared_conversion(&call, &options, &companies);
        let created = created.unwrap();
        let fates = agreed(&explained.unwrap(), None, &created.decision);
        let handle = created.shared;
        let shared = LifeShared {
            handle,
            site: conversion.site,
            options,
            epochs: self.window(conversion.lookback_days),
        };
        self.memories.shared.push(shared);
        // A handle must not reveal anything.
        Some(ToldStep {
            epochs: None,
            answer: ToldAnswer::Handle(handle),
            fates,
        })
    }

    fn take(&mut self, before_last: usize, company: u8, action: u64, ads: Ads) -> Option<ToldStep> {
        let action = self.action(action);
        let shared = self.memories.shared.iter().rev().nth(before_last)?;
        let (site, company) = (host(shared.site), host(company));
        let call = Call {
            intermediary: Some(&company),
            ..Call::new(&site, Timestamp(self.now)).by(action)
        };
        let mut options = ConversionOptions {
            impression_sites: Vec::new(),
            match_values: Vec::new(),
            ..shared.options.clone()
        };
        match ads {
            Ads::All => {}
            Ads::Own => options.impression_callers = vec![company.clone()],
            Ads::On(site) => options.impression_sites = vec![host(site)],
            Ads::Of(value) => options.match_values = vec![value],
        }
        let explained = self.agent.explain_share(shared.handle, &call, &options);
        self.agent.randomness_mut().begin(self.number);
        let answer = self.agent.take_share(shared.handle, &call, &options);
        let epochs = shared.epochs.clone();
        Some(told(answer.unwrap(), &explained.unwrap(), epochs, &options))
    }
}

impl LifeConversion {
    fn options(&self) -> ConversionOptions {
        ConversionOptions {
            epsilon: self.epsilon,
            lookback_days: Some(self.lookback_days),
            impression_sites: hosts(&self.impression_sites),
            match_values: self.match_values.clone(),
            value: 3,
            max_value: MAX_VALUE,
            credit: vec![0.5, 0.3, 0.2],
            ..ConversionOptions::new(SERVICE, self.histogram_size)
        }
    }
}

pub(crate) const MAX_VALUE: u32 = 5;

fn told(
    answer: ConversionAnswer,
    explained: &Explanation,
    epochs: RangeInclusive<i64>,
    options: &ConversionOptions,
) -> ToldStep {
    let histogram = answer.report.histogram.unwrap();
    let fates = agreed(explained, Some(&histogram), &answer.decision);
    let epsilon = Epsilon::new(options.epsilon).unwrap().micro().get();
    ToldStep {
        epochs: Some(epochs),
        answer: ToldAnswer::Report(histogram.buckets().to_vec(), epsilon),
        fates,
    }
}

/// The fate of each epoch. The explanation just before must have predicted it.
fn agreed(
    explained: &Explanation,
    report: Option<&Histogram>,
    decision: &Decision,
) -> BTreeMap<i64, Fate> {
    let fates = decision.epochs().map(|epoch| (epoch.epoch.0, epoch.fate));
    let fates: BTreeMap<_, _> = fates.collect();
    let said = explained
        .epochs
        .iter()
        .map(|epoch| (epoch.epoch, epoch.fate));
    assert_eq!(said.collect::<BTreeMap<_, _>>(), fates);
    assert_eq!(explained.report.as_ref(), report);
    fates
}
