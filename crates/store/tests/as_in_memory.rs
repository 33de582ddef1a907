//! The store in a file does what the store in memory does, and it passes every check.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use bigbird::{Decision, Profile, ReadLimits, Timestamp};
use bigbird_store::{SqliteStore, StoreOptions};
use bigbird_user_agent::{
    Call, ConversionAnswer, ConversionOptions, ImpressionOptions, QuerierRole, SharedConversion,
    SharedConversionAnswer, Site, Storage, UserAgent, View as _,
};
use common::{DAY, SERVICE, SequenceRandomness, by, config, consumed, folder, open, released};
use proptest::prelude::*;

/// An event of a random history.
#[derive(Debug, Clone)]
enum HistoryEvent {
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
        conversion: HistoryConversion,
        intermediary_pays: bool,
    },
    Attribute(HistoryConversion),
    Share {
        number: u64,
        conversion: HistoryConversion,
    },
    ForgetSite(u8),
    Clear {
        sites: Vec<u8>,
        forget_visits: bool,
    },
    Enable(bool),
    Maintain,
    /// One slice of upkeep, so that calls can come between slices.
    Upkeep,
    /// The process ends, and another opens the store.
    Reopen,
}

#[derive(Debug, Clone)]
struct HistoryConversion {
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

fn conversion() -> impl Strategy<Value = HistoryConversion> {
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
                HistoryConversion {
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

/// A conversion whose options agree with those of the shared conversion.
fn shared() -> impl Strategy<Value = HistoryConversion> {
    (0..4_u8, 0..12_u64, some_sites()).prop_map(|(intermediary, action, impression_sites)| {
        HistoryConversion {
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

fn event() -> impl Strategy<Value = HistoryEvent> {
    let save = (
        (0..6_u8, prop::option::weighted(0.3, 0..6_u8), 0..12_u64),
        some_sites(),
        some_sites(),
        (0..3_u32, -1..2_i32, prop::sample::select(vec![1_u64, 30])),
    )
        .prop_map(
            |((site, intermediary, action), sites, callers, (match_value, priority, days))| {
                HistoryEvent::Save {
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
            HistoryEvent::Measure { conversion, intermediary_pays }
        }),
        2 => shared().prop_map(HistoryEvent::Attribute),
        6 => (1..4_u64, shared()).prop_map(|(number, conversion)| {
            HistoryEvent::Share { number, conversion }
        }),
        1 => (0..6_u8).prop_map(HistoryEvent::ForgetSite),
        1 => (some_sites(), any::<bool>()).prop_map(|(sites, forget_visits)| {
            HistoryEvent::Clear { sites, forget_visits }
        }),
        1 => any::<bool>().prop_map(HistoryEvent::Enable),
        1 => Just(HistoryEvent::Maintain),
        6 => Just(HistoryEvent::Upkeep),
        2 => Just(HistoryEvent::Reopen),
    ]
}

/// Makes an event happen, and returns its result as text.
fn happen<S: Storage>(
    agent: &mut UserAgent<S, SequenceRandomness>,
    event: &HistoryEvent,
    now: i64,
) -> String {
    let moment = Timestamp(now);
    match event {
        HistoryEvent::Save {
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
        HistoryEvent::Measure {
            conversion,
            intermediary_pays,
        } => with_call(conversion, now, |mut call, options| {
            if *intermediary_pays {
                call.querier = QuerierRole::Intermediary;
            }
            told(agent.measure_conversion(&call, &options))
        }),
        HistoryEvent::Attribute(conversion) => with_call(conversion, now, |call, options| {
            let sharers = hosts(&[0, 1, 2, 3]);
            let options = ConversionOptions {
                impression_sites: Vec::new(),
                ..options
            };
            let sharers: Vec<&str> = sharers.iter().map(String::as_str).collect();
            match agent.create_shared_conversion(&call, &options, &sharers) {
                Ok(SharedConversionAnswer { shared, decision }) => {
                    format!("{shared:?} {}", fates(&decision))
                }
                Err(error) => format!("{error:?}"),
            }
        }),
        HistoryEvent::Share { number, conversion } => {
            with_call(conversion, now, |call, options| {
                told(agent.take_share(SharedConversion((*number).into()), &call, &options))
            })
        }
        HistoryEvent::ForgetSite(site) => {
            format!("{:?}", agent.clear_impressions_for_site(&host(*site)))
        }
        HistoryEvent::Clear {
            sites,
            forget_visits,
        } => {
            let cleared = agent.clear_browsing_history(&hosts(sites), *forget_visits, moment);
            format!("{cleared:?}")
        }
        HistoryEvent::Enable(enabled) => format!("{:?}", agent.set_enabled(*enabled)),
        HistoryEvent::Maintain => format!("{:?}", agent.maintain(moment)),
        HistoryEvent::Upkeep => {
            // It shows neither in answers nor in budgets.
            agent.upkeep(moment).unwrap();
            String::new()
        }
        HistoryEvent::Reopen => String::new(),
    }
}

fn with_call(
    conversion: &HistoryConversion,
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

fn told<E: std::fmt::Debug>(answer: Result<ConversionAnswer, E>) -> String {
    match answer {
        Ok(answer) => {
            let fates = fates(&answer.decision);
            format!("{:?} {fates}", released(answer))
        }
        Err(error) => format!("{error:?}"),
    }
}

/// The fate of each epoch. Site numbers are left out, because they may differ between stores.
fn fates(decision: &Decision) -> String {
    let epochs = decision.epochs();
    let epochs: Vec<_> = epochs.map(|it| (it.epoch, it.matched, it.fate)).collect();
    format!("{epochs:?}")
}

fn agree(profile: Profile, limit: u32, history: &[(HistoryEvent, i64)]) {
    let folder = folder();
    let path = folder.file("store");
    let mut config = config(profile, limit);
    // Such small limits force both stores to choose, and they must choose the same.
    config.read_limits = ReadLimits {
        relevant: 3,
        examined: 32,
    };
    config.max_shared_conversions = 2;
    let mut file = Some(open(&path, &config));
    let mut memory = UserAgent::in_memory(config.clone(), SequenceRandomness::default());
    let mut now = 1000 * DAY;
    for (event, hours) in history {
        now += hours * 3_600_000;
        if matches!(event, HistoryEvent::Reopen) {
            let agent = file.take().unwrap();
            let draws = memory.randomness_mut().clone();
            agent.into_storage().close().unwrap();
            bigbird_store::check(&path).unwrap();
            let store = SqliteStore::open(&path, &StoreOptions::default()).unwrap();
            let reopened = UserAgent::new(config.clone(), store, draws, Timestamp(now));
            file = Some(reopened.unwrap());
            // If the clock steps back, the result depends on when a round of upkeep begins.
            memory.start_upkeep();
        }
        let agent = file.as_mut().unwrap();
        let (got, expected) = (happen(agent, event, now), happen(&mut memory, event, now));
        assert_eq!(got, expected, "{event:?}");
        let Ok(in_memory) = memory.filter_balances();
        assert_eq!(
            consumed(&agent.filter_balances().unwrap()),
            consumed(&in_memory),
            "{event:?}"
        );
        let Ok((in_memory, next)) = memory.history(None, None, 7);
        let in_file = agent.history(None, None, 7).unwrap();
        assert_eq!(in_file, (in_memory, next), "{event:?}");
    }
    let agent = file.as_mut().unwrap();
    let site = Site::from_stored(host(1));
    for site in [None, Some(&site)] {
        let Ok(in_memory) = memory.history(None, site, usize::MAX);
        assert_eq!(agent.history(None, site, usize::MAX).unwrap(), in_memory);
    }
    // Each store has places of its own.
    let mut behind = (None, None);
    loop {
        let (in_file, next) = agent.impressions(behind.0, 5).unwrap();
        let Ok((in_memory, in_memory_next)) = memory.impressions(behind.1, 5);
        assert_eq!(in_file, in_memory);
        assert_eq!(next.is_some(), in_memory_next.is_some());
        behind = (next, in_memory_next);
        if next.is_none() {
            break;
        }
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
    let Ok((entries, _)) = memory.history(None, None, usize::MAX);
    assert_eq!(checked.history, entries.len() as u64);
}

fn histories() -> impl Strategy<Value = Vec<(HistoryEvent, i64)>> {
    // Clocks also step back.
    let hours = prop_oneof![9 => 0..60_i64, 1 => -400..0_i64];
    prop::collection::vec((event(), hours), 1..60)
}

/// If the clock is behind, a shared conversion can be created in an epoch that was pruned. The next
/// pruning removes it, in a file and in memory.
#[test]
fn what_is_created_in_a_pruned_epoch_goes_too() {
    let conversion = HistoryConversion {
        site: 5,
        intermediary: None,
        action: 1,
        epsilon: 0.2,
        lookback_days: 30,
        impression_sites: Vec::new(),
        impression_callers: Vec::new(),
        match_values: Vec::new(),
    };
    let measure = HistoryEvent::Measure {
        conversion: conversion.clone(),
        intermediary_pays: false,
    };
    let week = 7 * 24;
    let history = [
        (measure, 10 * week),
        (HistoryEvent::Maintain, 30 * week),
        (HistoryEvent::Attribute(conversion), -31 * week),
        (HistoryEvent::Maintain, 31 * week),
    ];
    agree(Profile::BigBird, 100, &history);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, ..ProptestConfig::default() })]

    /// An epoch has too many impressions for a query to examine them all.
    #[test]
    fn crowded_epochs(history in prop::collection::vec((crowding_event(), 0..1_i64), 300..400)) {
        agree(Profile::W3cDraft, 400, &history);
    }
}

/// A save or a conversion, but nothing that removes impressions.
fn crowding_event() -> impl Strategy<Value = HistoryEvent> {
    let keeps = |event: &HistoryEvent| {
        matches!(
            event,
            HistoryEvent::Save { .. } | HistoryEvent::Measure { .. }
        )
    };
    event().prop_filter("the event must not remove impressions", keeps)
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
