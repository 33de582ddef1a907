//! The store in a file does what the store in memory does, and it is in order whenever it is looked
//! at.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use bigbird::{Decision, Profile, ReadLimits, Timestamp};
use bigbird_store::{SqliteStore, StoreOptions};
use bigbird_user_agent::{
    Answer, Call, ConversionOptions, ImpressionOptions, Querier, SharedAnswer, SharedConversion,
    Storage, UserAgent, View as _,
};
use common::{DAY, SERVICE, Sequence, by, config, consumed, folder, open, released};
use proptest::prelude::*;

/// Something that happens, at an hour.
#[derive(Debug, Clone)]
enum Event {
    Save {
        site: u8,
        intermediary: Option<u8>,
        action: u64,
        sites: Vec<u8>,
        callers: Vec<u8>,
        match_value: u32,
        priority: i32,
        days: u64,
    },
    Measure {
        conversion: Conversion,
        intermediary_pays: bool,
    },
    Attribute(Conversion),
    Share {
        number: u64,
        conversion: Conversion,
    },
    ForgetSite(u8),
    Clear {
        sites: Vec<u8>,
        forget_visits: bool,
    },
    Enable(bool),
    Maintain,
    /// A slice of it, so that calls come in between.
    Upkeep,
    /// The process ends, and another opens the store.
    Reopen,
}

#[derive(Debug, Clone)]
struct Conversion {
    site: u8,
    intermediary: Option<u8>,
    action: u64,
    epsilon: f64,
    lookback_days: u64,
    impression_sites: Vec<u8>,
    impression_callers: Vec<u8>,
    match_values: Vec<u32>,
}

fn host(site: u8) -> String {
    format!("site-{site}.example")
}

fn hosts(sites: &[u8]) -> Vec<String> {
    sites.iter().copied().map(host).collect()
}

fn some_sites() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        2 => Just(Vec::new()),
        1 => prop::collection::vec(0..6_u8, 1..3),
    ]
}

fn conversion() -> impl Strategy<Value = Conversion> {
    (
        (0..6_u8, prop::option::weighted(0.3, 0..6_u8), 0..12_u64),
        prop::sample::select(vec![0.2, 0.5, 0.9]),
        prop::sample::select(vec![1, 7, 30]),
        some_sites(),
        some_sites(),
        prop_oneof![3 => Just(Vec::new()), 1 => prop::collection::vec(0..3_u32, 1..3)],
    )
        .prop_map(
            |((site, intermediary, action), epsilon, lookback_days, sites, callers, values)| {
                Conversion {
                    site,
                    intermediary,
                    action,
                    epsilon,
                    lookback_days,
                    impression_sites: sites,
                    impression_callers: callers,
                    match_values: values,
                }
            },
        )
}

/// Conversions that agree on what they share.
fn shared() -> impl Strategy<Value = Conversion> {
    (0..4_u8, 0..12_u64, some_sites()).prop_map(|(intermediary, action, impression_sites)| {
        Conversion {
            site: 5,
            intermediary: Some(intermediary),
            action,
            epsilon: 0.2,
            lookback_days: 30,
            impression_sites,
            impression_callers: Vec::new(),
            match_values: Vec::new(),
        }
    })
}

fn event() -> impl Strategy<Value = Event> {
    let save = (
        (0..6_u8, prop::option::weighted(0.3, 0..6_u8), 0..12_u64),
        some_sites(),
        some_sites(),
        (0..3_u32, -1..2_i32, prop::sample::select(vec![1_u64, 30])),
    )
        .prop_map(
            |((site, intermediary, action), sites, callers, (match_value, priority, days))| {
                Event::Save {
                    site,
                    intermediary,
                    action,
                    sites,
                    callers,
                    match_value,
                    priority,
                    days,
                }
            },
        );
    prop_oneof![
        10 => save,
        6 => (conversion(), any::<bool>()).prop_map(|(conversion, intermediary_pays)| {
            Event::Measure { conversion, intermediary_pays }
        }),
        2 => shared().prop_map(Event::Attribute),
        6 => (1..4_u64, shared()).prop_map(|(number, conversion)| {
            Event::Share { number, conversion }
        }),
        1 => (0..6_u8).prop_map(Event::ForgetSite),
        1 => (some_sites(), any::<bool>()).prop_map(|(sites, forget_visits)| {
            Event::Clear { sites, forget_visits }
        }),
        1 => any::<bool>().prop_map(Event::Enable),
        1 => Just(Event::Maintain),
        6 => Just(Event::Upkeep),
        2 => Just(Event::Reopen),
    ]
}

/// Makes an event happen, and tells what it gave.
fn happen<S: Storage>(agent: &mut UserAgent<S, Sequence>, event: &Event, now: i64) -> String {
    let moment = Timestamp(now);
    match event {
        Event::Save {
            site,
            intermediary,
            action,
            sites,
            callers,
            match_value,
            priority,
            days,
        } => {
            let (site, intermediary) = (host(*site), intermediary.map(host));
            let call = Call {
                intermediary: intermediary.as_deref(),
                ..by(&site, *action, now)
            };
            let options = ImpressionOptions {
                conversion_sites: hosts(sites),
                conversion_callers: hosts(callers),
                match_value: *match_value,
                priority: *priority,
                lifetime_days: *days,
                ..ImpressionOptions::new(match_value + u32::from(priority.unsigned_abs() > 0))
            };
            format!("{:?}", agent.save_impression(&call, &options))
        }
        Event::Measure {
            conversion,
            intermediary_pays,
        } => with_call(conversion, now, |mut call, options| {
            if *intermediary_pays {
                call.querier = Querier::Intermediary;
            }
            told(agent.measure_conversion(&call, &options))
        }),
        Event::Attribute(conversion) => with_call(conversion, now, |call, options| {
            let sharers = hosts(&[0, 1, 2, 3]);
            let options = ConversionOptions {
                impression_sites: Vec::new(),
                ..options
            };
            let sharers: Vec<&str> = sharers.iter().map(String::as_str).collect();
            match agent.create_shared_conversion(&call, &options, &sharers) {
                Ok(SharedAnswer { shared, decision }) => format!("{shared:?} {}", fates(&decision)),
                Err(error) => format!("{error:?}"),
            }
        }),
        Event::Share { number, conversion } => with_call(conversion, now, |call, options| {
            told(agent.take_share(SharedConversion((*number).into()), &call, &options))
        }),
        Event::ForgetSite(site) => format!("{:?}", agent.clear_impressions_for_site(&host(*site))),
        Event::Clear {
            sites,
            forget_visits,
        } => {
            let cleared = agent.clear_browsing_history(&hosts(sites), *forget_visits, moment);
            format!("{cleared:?}")
        }
        Event::Enable(enabled) => format!("{:?}", agent.set_enabled(*enabled)),
        Event::Maintain => format!("{:?}", agent.maintain(moment)),
        Event::Upkeep => {
            // Invisible to whoever calls, and to the budgets.
            agent.upkeep(moment).unwrap();
            String::new()
        }
        Event::Reopen => String::new(),
    }
}

fn with_call(
    conversion: &Conversion,
    now: i64,
    then: impl FnOnce(Call<'_>, ConversionOptions) -> String,
) -> String {
    let (site, intermediary) = (host(conversion.site), conversion.intermediary.map(host));
    let call = Call {
        intermediary: intermediary.as_deref(),
        ..by(&site, conversion.action, now)
    };
    let options = ConversionOptions {
        epsilon: conversion.epsilon,
        lookback_days: Some(conversion.lookback_days),
        impression_sites: hosts(&conversion.impression_sites),
        impression_callers: hosts(&conversion.impression_callers),
        match_values: conversion.match_values.clone(),
        value: 3,
        max_value: 5,
        credit: vec![0.5, 0.3, 0.2],
        ..ConversionOptions::new(SERVICE, 5)
    };
    then(call, options)
}

fn told<E: std::fmt::Debug>(answer: Result<Answer, E>) -> String {
    match answer {
        Ok(answer) => {
            let fates = fates(&answer.decision);
            format!("{:?} {fates}", released(answer))
        }
        Err(error) => format!("{error:?}"),
    }
}

/// What happened in each epoch. Numbers of sites may differ.
fn fates(decision: &Decision) -> String {
    let epochs = decision.epochs();
    let epochs: Vec<_> = epochs.map(|it| (it.epoch, it.matched, it.fate)).collect();
    format!("{epochs:?}")
}

fn agree(profile: Profile, limit: u32, history: &[(Event, i64)]) {
    let folder = folder();
    let path = folder.file("store");
    let mut config = config(profile, limit);
    // So little that both have to choose, and must choose alike.
    config.read_limits = ReadLimits {
        relevant: 3,
        examined: 32,
    };
    config.max_shared_conversions = 2;
    let mut file = Some(open(&path, &config));
    let mut memory = UserAgent::in_memory(config.clone(), Sequence::default());
    let mut now = 1000 * DAY;
    for (event, hours) in history {
        now += hours * 3_600_000;
        if matches!(event, Event::Reopen) {
            let agent = file.take().unwrap();
            let draws = memory.randomness_mut().clone();
            agent.into_storage().close().unwrap();
            bigbird_store::check(&path).unwrap();
            let store = SqliteStore::open(&path, &StoreOptions::default()).unwrap();
            let reopened = UserAgent::new(config.clone(), store, draws, Timestamp(now));
            file = Some(reopened.unwrap());
            // Under a clock that steps back it matters when a round of upkeep begins.
            memory.start_upkeep();
        }
        let agent = file.as_mut().unwrap();
        let (got, expected) = (happen(agent, event, now), happen(&mut memory, event, now));
        assert_eq!(got, expected, "{event:?}");
        let Ok(in_memory) = memory.budgets();
        assert_eq!(
            consumed(&agent.budgets().unwrap()),
            consumed(&in_memory),
            "{event:?}"
        );
    }
    let Ok(()) = memory.maintain(Timestamp(now));
    file.as_mut().unwrap().maintain(Timestamp(now)).unwrap();
    drop(file);
    let checked = bigbird_store::check(&path).unwrap();
    assert_eq!(
        checked.impressions,
        memory.storage().impressions().len() as u64
    );
    let Ok(objects) = memory.storage_mut().begin().and_then(|tx| tx.objects());
    assert_eq!(checked.objects, objects.len() as u64);
}

fn histories() -> impl Strategy<Value = Vec<(Event, i64)>> {
    // Clocks step back, too.
    let hours = prop_oneof![9 => 0..60_i64, 1 => -400..0_i64];
    prop::collection::vec((event(), hours), 1..60)
}

/// With a clock that is behind, a conversion is shared in an epoch that was pruned; it goes with the
/// next pruning, in a file as in memory.
#[test]
fn what_is_created_in_a_pruned_epoch_goes_too() {
    let conversion = Conversion {
        site: 5,
        intermediary: None,
        action: 1,
        epsilon: 0.2,
        lookback_days: 30,
        impression_sites: Vec::new(),
        impression_callers: Vec::new(),
        match_values: Vec::new(),
    };
    let measure = Event::Measure {
        conversion: conversion.clone(),
        intermediary_pays: false,
    };
    let week = 7 * 24;
    let history = [
        (measure, 10 * week),
        (Event::Maintain, 30 * week),
        (Event::Attribute(conversion), -31 * week),
        (Event::Maintain, 31 * week),
    ];
    agree(Profile::BigBird, 100, &history);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, ..ProptestConfig::default() })]

    /// So many impressions in an epoch that no query can look at all of them.
    #[test]
    fn crowded_epochs(history in prop::collection::vec((crowding_event(), 0..1_i64), 300..400)) {
        agree(Profile::W3cDraft, 400, &history);
    }
}

/// Saves and conversions, nothing that empties an epoch.
fn crowding_event() -> impl Strategy<Value = Event> {
    let keeps = |event: &Event| matches!(event, Event::Save { .. } | Event::Measure { .. });
    event().prop_filter("it keeps what is there", keeps)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn big_bird(limit in prop::sample::select(vec![4_u32, 100]), history in histories()) {
        agree(Profile::BigBird, limit, &history);
    }

    #[test]
    fn w3c_draft(limit in prop::sample::select(vec![4_u32, 100]), history in histories()) {
        agree(Profile::W3cDraft, limit, &history);
    }

    #[test]
    fn cookie_monster(history in histories()) {
        agree(Profile::CookieMonster, 100, &history);
    }
}
