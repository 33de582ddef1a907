//! Attacks by a hostile site that must fail: filling memory, and displacing what belongs to others.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::sync::Mutex;

use bigbird::{Profile, Timestamp};
use bigbird_testing::CountingAllocator;
use bigbird_user_agent::{Call, Config, ConversionOptions, ImpressionOptions, UserAgent};
use common::{FixedRandomness, MemoryAgent, SERVICE, released};

/// Tests that measure memory run one at a time, so that each sees only its own.
static ALONE: Mutex<()> = Mutex::new(());

const FLOOD: u32 = 1_000_000;

/// Runs a slice of upkeep if it is due, as a browser does when nobody waits.
fn look_after(agent: &mut MemoryAgent, now: Timestamp) {
    if agent.is_upkeep_due(now) {
        let Ok(_) = agent.upkeep(now);
    }
}

/// One site saves a million impressions, each with a new advertiser and a new match value. Ten
/// other sites have ten impressions each.
fn flood(profile: Profile) {
    let _alone = ALONE.lock();
    let config = Config::new(profile).with_service(SERVICE).for_testing();
    let limit = config.store_limits.units_per_epoch.get() as usize;
    let before = ALLOCATOR.bytes();
    let mut agent = UserAgent::in_memory(config, FixedRandomness);
    let start = 1_700_000_000_000;
    let Ok(spam) = agent.begin_user_action(Timestamp(start));
    let Ok(bought) = agent.begin_user_action(Timestamp(start));
    let save = |agent: &mut MemoryAgent, site: &str, by, ms, options: &_| {
        let call = Call::new(site, Timestamp(start + ms)).by(by);
        agent.save_impression(&call, options).unwrap();
    };
    for site in 0..10 {
        let Ok(seen) = agent.begin_user_action(Timestamp(start));
        for index in 0..10 {
            let site = format!("honest-{site}.example");
            save(&mut agent, &site, seen, 0, &ImpressionOptions::new(index));
        }
    }
    for number in 0..FLOOD {
        let options = ImpressionOptions {
            match_value: number,
            conversion_sites: vec![format!("victim-{number}.example")],
            ..ImpressionOptions::new(0)
        };
        let ms = i64::from(number / 1000);
        save(&mut agent, "spam.example", spam, ms, &options);
        look_after(&mut agent, Timestamp(start + ms));
    }
    assert!(agent.storage().impressions().len() <= limit);
    // Each named site has a number. Unused numbers are removed only when more were given out than
    // were in use, so their count can reach twice the limit.
    assert!(agent.storage().site_count() <= 2 * limit + 20_000);
    let bytes = ALLOCATOR.bytes() - before;
    assert!(bytes < 96 << 20, "{} MiB", bytes >> 20);

    // All hundred impressions of the other sites are still stored.
    for site in 0..10 {
        let options = ConversionOptions {
            impression_sites: vec![format!("honest-{site}.example")],
            credit: vec![1.0; 10],
            value: 10,
            max_value: 1000,
            epsilon: 0.01,
            ..ConversionOptions::new(SERVICE, 10)
        };
        let call = Call::new("shop.example", Timestamp(start + 2_000_000)).by(bought);
        let answer = agent.measure_conversion(&call, &options).unwrap();
        assert_eq!(released(answer), [1; 10], "honest-{site}.example");
    }
}

#[test]
fn a_flood_fills_no_memory_and_evicts_nobody_else() {
    flood(Profile::BigBird);
}

#[test]
fn nor_does_it_under_the_draft() {
    flood(Profile::W3cDraft);
}

/// A shared conversion gives a limited number of shares. A site that creates many shared
/// conversions evicts only its own.
#[test]
fn shared_conversions_are_limited_for_each_site() {
    let config = Config::new(Profile::BigBird)
        .with_service(SERVICE)
        .for_testing();
    let mut agent = UserAgent::in_memory(config, FixedRandomness);
    let now = Timestamp(1_700_000_000_000);
    let Ok(seen) = agent.begin_user_action(now);
    let ad = Call {
        intermediary: Some("ads.example"),
        ..Call::new("news.example", now).by(seen)
    };
    agent
        .save_impression(&ad, &ImpressionOptions::new(0))
        .unwrap();
    let options = ConversionOptions {
        epsilon: 0.01,
        ..ConversionOptions::new(SERVICE, 2)
    };
    let ads = ["ads.example"];
    let Ok(bought) = agent.begin_user_action(now);
    let shop = Call::new("shop.example", now).by(bought);
    let ours = agent
        .create_shared_conversion(&shop, &options, &ads)
        .unwrap()
        .shared;
    let Ok(action) = agent.begin_user_action(now);
    let evil = Call::new("evil.example", now).by(action);
    let mut theirs = Vec::new();
    for _ in 0..5_000 {
        theirs.push(
            agent
                .create_shared_conversion(&evil, &options, &ads)
                .unwrap()
                .shared,
        );
    }
    let from = |site| Call {
        intermediary: Some("ads.example"),
        ..Call::new(site, now)
    };
    let answer = agent
        .take_share(ours, &from("shop.example"), &options)
        .unwrap();
    assert_eq!(released(answer), [1, 0]);
    for match_value in 0..1_000 {
        let options = ConversionOptions {
            match_values: vec![match_value + 1],
            ..options.clone()
        };
        let call = from("evil.example");
        let answer = agent.take_share(theirs[4_999], &call, &options).unwrap();
        assert_eq!(released(answer), [0, 0]);
    }
}

/// Conversions that keep naming new sites do not fill memory either.
#[test]
fn naming_sites_in_conversions_fills_no_memory() {
    let _alone = ALONE.lock();
    let config = Config::new(Profile::BigBird)
        .with_service(SERVICE)
        .for_testing();
    let before = ALLOCATOR.bytes();
    let mut agent = UserAgent::in_memory(config, FixedRandomness);
    for number in 0..100_000 {
        let options = ConversionOptions {
            impression_sites: vec![format!("a-{number}.example")],
            impression_callers: vec![format!("b-{number}.example")],
            ..ConversionOptions::new(SERVICE, 4)
        };
        let site = format!("c-{number}.example");
        let call = Call::new(&site, Timestamp(number));
        let _ = agent.measure_conversion(&call, &options).unwrap();
        look_after(&mut agent, Timestamp(number));
    }
    assert!(agent.storage().site_count() <= 20_000);
    let bytes = ALLOCATOR.bytes() - before;
    assert!(bytes < 8 << 20, "{} MiB", bytes >> 20);
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();
