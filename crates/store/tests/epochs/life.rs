//! Random lives, and what happens in them.

use std::ops::RangeInclusive;

use bigbird::{Capacity, Histogram, MicroEpsilon, Profile, StoreLimits, Timestamp};
use bigbird_attribution::{
    Action, Answer, Call, Config, ConversionOptions, Held, ImpressionOptions, Querier, Randomness,
    SharedConversion, State, Storage, Transaction as _, UserAgent,
};
use proptest::prelude::*;

use crate::common::{DAY, SERVICE};

pub(crate) const HOUR: i64 = DAY / 24;
pub(crate) const START: i64 = 1000 * DAY;

/// Which way clocks step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clocks {
    Forward,
    BothWays,
}

#[derive(Debug, Clone)]
pub(crate) struct Life {
    profile: Profile,
    /// Of the epochs in which something is saved, the one in which it is not, in the other world.
    pub(crate) choice: usize,
    /// What happens, after so many hours.
    pub(crate) steps: Vec<(Step, i64)>,
}

#[derive(Debug, Clone)]
pub(crate) enum Step {
    Nothing,
    Save {
        site: u8,
        intermediary: Option<u8>,
        action: u64,
        conversion_sites: Vec<u8>,
        conversion_callers: Vec<u8>,
        match_value: u32,
        priority: i32,
        days: u64,
    },
    Measure {
        conversion: Conversion,
        intermediary_pays: bool,
    },
    Create(Conversion),
    /// A share of the shared conversion that was created so many before the last.
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
}

#[derive(Debug, Clone)]
pub(crate) struct Conversion {
    site: u8,
    intermediary: Option<u8>,
    action: u64,
    epsilon: f64,
    lookback_days: u64,
    histogram_size: u32,
    impression_sites: Vec<u8>,
}

/// The impressions that a share asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ads {
    All,
    /// Those that the company saved.
    Own,
    /// Those on a site.
    On(u8),
}

pub(crate) fn life(clocks: Clocks) -> impl Strategy<Value = Life> {
    let hours = match clocks {
        Clocks::Forward => prop_oneof![6 => 0..8_i64, 2 => 8..70_i64].boxed(),
        Clocks::BothWays => prop_oneof![6 => 0..8_i64, 2 => 8..70_i64, 2 => -120..0_i64].boxed(),
    };
    let profile = prop_oneof![
        6 => Just(Profile::BigBird),
        1 => Just(Profile::GlobalOnly),
        1 => Just(Profile::W3cDraft),
    ];
    let steps = prop::collection::vec((step(), hours), 60);
    (profile, 0..1000_usize, steps).prop_map(|(profile, choice, steps)| Life {
        profile,
        choice,
        steps,
    })
}

fn some_sites() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        3 => Just(Vec::new()),
        1 => prop::collection::vec(0..5_u8, 1..3),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let intermediary = || prop::option::weighted(0.5, 0..3_u8);
    let action = || 0..30_u64;
    let save = (
        (0..5_u8, intermediary(), action()),
        some_sites(),
        prop_oneof![4 => Just(Vec::new()), 1 => prop::collection::vec(0..3_u8, 1..3)],
        (0..2_u32, 0..2_i32, prop::sample::select(vec![1_u64, 30])),
    );
    let save = save.prop_map(
        |(
            (site, intermediary, action),
            conversion_sites,
            conversion_callers,
            (match_value, priority, days),
        )| Step::Save {
            site,
            intermediary,
            action,
            conversion_sites,
            conversion_callers,
            match_value,
            priority,
            days,
        },
    );
    let conversion = || {
        (
            (0..5_u8, intermediary(), action()),
            prop::sample::select(vec![0.2, 0.5, 0.9]),
            prop::sample::select(vec![1_u64, 2, 5]),
            // Some ads are outside the histogram.
            prop::sample::select(vec![1_u32, 4]),
            some_sites(),
        )
            .prop_map(
                |((site, intermediary, action), epsilon, days, size, sites)| Conversion {
                    site,
                    intermediary,
                    action,
                    epsilon,
                    lookback_days: days,
                    histogram_size: size,
                    impression_sites: sites,
                },
            )
    };
    let ads = prop_oneof![
        2 => Just(Ads::Own),
        1 => Just(Ads::All),
        1 => (0..5_u8).prop_map(Ads::On),
    ];
    prop_oneof![
        1 => Just(Step::Nothing),
        20 => save,
        8 => (conversion(), any::<bool>()).prop_map(|(conversion, intermediary_pays)| {
            Step::Measure { conversion, intermediary_pays }
        }),
        6 => conversion().prop_map(Step::Create),
        12 => (0..5_usize, 0..3_u8, action(), ads).prop_map(
            |(before_last, company, action, ads)| Step::Take { before_last, company, action, ads }
        ),
        1 => (0..5_u8).prop_map(Step::ClearSite),
        2 => (some_sites(), any::<bool>()).prop_map(|(sites, forget_visits)| {
            Step::Clear { sites, forget_visits }
        }),
        1 => prop::bool::weighted(0.7).prop_map(Step::Enable),
        3 => Just(Step::Maintain),
        1 => Just(Step::Restart),
    ]
}

impl Life {
    /// Epochs of two days, and limits that a life reaches.
    pub(crate) fn config(&self) -> Config {
        let mut config = Config::new(self.profile).with_service(SERVICE);
        let mut capacities = *config.policy.capacities();
        for (capacity, micro) in [
            (&mut capacities.querier, 1_000_000),
            (&mut capacities.global, 2_000_000),
            (&mut capacities.impression_site, 1_200_000),
            (&mut capacities.conversion_site, 1_500_000),
        ] {
            if *capacity != Capacity::Unlimited {
                *capacity = Capacity::Finite(MicroEpsilon::new(micro));
            }
        }
        let policy = config.policy.to_builder().capacities(capacities);
        config.policy = policy.build().unwrap();
        config.epoch_days = 2;
        config.limits.max_lookback_days = 5;
        config.store_limits = StoreLimits {
            impressions_per_epoch: 3.try_into().unwrap(),
        };
        config.max_shared_conversions = 3;
        config
    }
}

/// Random numbers that depend on the step alone: what one report draws does not move the next one's.
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

/// What a page was told, and the epochs that it is about.
#[derive(Debug, PartialEq)]
pub(crate) struct Told {
    /// Nothing, if it must not tell anything.
    pub(crate) epochs: Option<RangeInclusive<i64>>,
    pub(crate) answer: String,
}

/// A conversion that was created to share.
#[derive(Debug)]
pub(crate) struct Shared {
    handle: SharedConversion,
    site: u8,
    options: ConversionOptions,
    epochs: RangeInclusive<i64>,
}

fn host(site: u8) -> String {
    format!("site-{site}.example")
}

fn hosts(sites: &[u8]) -> Vec<String> {
    sites.iter().copied().map(host).collect()
}

const LATER: Timestamp = Timestamp(i64::MAX);

fn released<T: std::fmt::Debug + PartialEq>(held: Held<T>) -> T {
    held.release(Timestamp(0), LATER).unwrap()
}

/// Makes a step happen.
pub(crate) fn happen<S: Storage>(
    agent: &mut UserAgent<S, Tape>,
    step: &Step,
    now: i64,
    conversions: &mut Vec<Shared>,
) -> Option<Told> {
    let moment = Timestamp(now);
    let by = |action: u64| Action::numbered(action).unwrap();
    // The epochs that a conversion now looks back over, once they have begun.
    let window = |agent: &mut UserAgent<S, Tape>, days: u64| {
        let state: State = agent.storage_mut().begin().unwrap().state().unwrap();
        let lookback = i64::try_from(days).unwrap() * DAY;
        let epoch = |moment| state.epoch_of(Timestamp(moment)).map_or(0, |epoch| epoch.0);
        epoch(now - lookback)..=epoch(now)
    };
    match step {
        Step::Nothing | Step::Restart => {}
        Step::Save {
            site,
            intermediary,
            action,
            conversion_sites,
            conversion_callers,
            match_value,
            priority,
            days,
        } => {
            let (site, intermediary) = (host(*site), intermediary.map(host));
            let call = Call {
                intermediary: intermediary.as_deref(),
                ..Call::new(&site, moment).by(by(*action))
            };
            let options = ImpressionOptions {
                conversion_sites: hosts(conversion_sites),
                conversion_callers: hosts(conversion_callers),
                match_value: *match_value,
                priority: *priority,
                lifetime_days: *days,
                ..ImpressionOptions::new(match_value + 2 * u32::from(*priority > 0))
            };
            agent.save_impression(&call, &options).unwrap();
        }
        Step::Measure {
            conversion,
            intermediary_pays,
        } => {
            let (site, intermediary) = (host(conversion.site), conversion.intermediary.map(host));
            let draft = agent.config().policy.matches_own_action();
            let other = intermediary.as_ref().is_some_and(|it| *it != site);
            let call = Call {
                intermediary: intermediary.as_deref(),
                querier: match *intermediary_pays && other && !draft {
                    true => Querier::Intermediary,
                    false => Querier::ConversionSite,
                },
                ..Call::new(&site, moment).by(by(conversion.action))
            };
            let options = conversion.options();
            let answer = agent.measure_conversion(&call, &options).unwrap();
            return Some(Told {
                epochs: Some(window(agent, conversion.lookback_days)),
                answer: histogram(answer),
            });
        }
        Step::Create(conversion) => {
            let (site, intermediary) = (host(conversion.site), conversion.intermediary.map(host));
            let call = Call {
                intermediary: intermediary.as_deref(),
                ..Call::new(&site, moment).by(by(conversion.action))
            };
            let options = conversion.options();
            let companies = hosts(&[0, 1, 2]);
            let companies: Vec<&str> = companies.iter().map(String::as_str).collect();
            // The draft has none.
            let created = agent
                .create_shared_conversion(&call, &options, &companies)
                .ok()?;
            let shared = Shared {
                handle: released(created.shared),
                site: conversion.site,
                options,
                epochs: window(agent, conversion.lookback_days),
            };
            let answer = shared.handle.to_string();
            conversions.push(shared);
            // A handle says nothing.
            return Some(Told {
                epochs: None,
                answer,
            });
        }
        Step::Take {
            before_last,
            company,
            action,
            ads,
        } => {
            let shared = conversions.iter().rev().nth(*before_last)?;
            let (site, company) = (host(shared.site), host(*company));
            let call = Call {
                intermediary: Some(&company),
                ..Call::new(&site, moment).by(by(*action))
            };
            let mut options = ConversionOptions {
                impression_sites: Vec::new(),
                ..shared.options.clone()
            };
            match ads {
                Ads::All => {}
                Ads::Own => options.impression_callers = vec![company.clone()],
                Ads::On(site) => options.impression_sites = vec![host(*site)],
            }
            let answer = agent.take_share(shared.handle, &call, &options).unwrap();
            return Some(Told {
                epochs: Some(shared.epochs.clone()),
                answer: histogram(answer),
            });
        }
        Step::ClearSite(site) => agent.clear_impressions_for_site(&host(*site)).unwrap(),
        Step::Clear {
            sites,
            forget_visits,
        } => {
            if *forget_visits || !sites.is_empty() {
                let cleared = agent.clear_browsing_history(&hosts(sites), *forget_visits, moment);
                cleared.unwrap();
            }
        }
        Step::Enable(enabled) => agent.set_enabled(*enabled).unwrap(),
        Step::Maintain => agent.maintain(moment).unwrap(),
    }
    None
}

impl Conversion {
    fn options(&self) -> ConversionOptions {
        ConversionOptions {
            epsilon: self.epsilon,
            lookback_days: Some(self.lookback_days),
            impression_sites: hosts(&self.impression_sites),
            value: 3,
            max_value: 5,
            credit: vec![0.5, 0.3, 0.2],
            ..ConversionOptions::new(SERVICE, self.histogram_size)
        }
    }
}

fn histogram(answer: Answer) -> String {
    let report: Histogram = released(answer.report);
    format!("{:?}", report.buckets())
}
