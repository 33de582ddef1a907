//! What a hostile site can do: fill memory, crowd out others, look for differences.
#![allow(missing_docs, clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use bigbird::{Profile, Timestamp};
use bigbird_attribution::{
    Call, Config, ConversionOptions, ImpressionOptions, Memory, Randomness, UserAgent,
};

const SERVICE: &str = "https://agg.example";

struct Half;

impl Randomness for Half {
    fn epoch_start(&mut self) -> f64 {
        0.5
    }

    fn credit(&mut self) -> f64 {
        0.5
    }
}

/// One at a time, so that each sees its own memory.
static ALONE: Mutex<()> = Mutex::new(());

const FLOOD: u32 = 1_000_000;

/// A million impressions from one site, a new advertiser and match value for each, while ten other
/// sites have ten impressions each.
fn flood(profile: Profile, with_epochs: bool) {
    let _alone = ALONE.lock();
    let config = Config::new(profile).with_service(SERVICE);
    let limit = config.store_limits.impressions_per_epoch.get() as usize;
    let before = ALLOCATED.load(Ordering::Relaxed);
    let mut agent = UserAgent::in_memory(config, Half);
    let start = 1_700_000_000_000;
    if with_epochs {
        let _ = measure(&mut agent, "shop.example", start);
    }
    let save = |agent: &mut UserAgent<Memory, Half>, site: &str, ms, options: &_| {
        let call = Call::new(site, Timestamp(start + ms));
        agent.save_impression(&call, options).unwrap();
    };
    for site in 0..10 {
        for index in 0..10 {
            let site = format!("honest-{site}.example");
            save(&mut agent, &site, 0, &ImpressionOptions::new(index));
        }
    }
    for number in 0..FLOOD {
        let options = ImpressionOptions {
            match_value: number,
            conversion_sites: vec![format!("victim-{number}.example")],
            ..ImpressionOptions::new(0)
        };
        save(
            &mut agent,
            "spam.example",
            i64::from(number / 1000),
            &options,
        );
    }
    assert!(agent.storage().impression_count() <= limit);
    // A number for each site that is named, twice as many before unused ones are swept out.
    assert!(agent.storage().site_count() <= 2 * limit + 20_000);
    let bytes = ALLOCATED.load(Ordering::Relaxed) - before;
    assert!(bytes < 96 << 20, "{} MiB", bytes >> 20);

    // All hundred of the others are still there.
    for site in 0..10 {
        let options = ConversionOptions {
            impression_sites: vec![format!("honest-{site}.example")],
            credit: vec![1.0; 10],
            value: 10,
            max_value: 1000,
            epsilon: 0.01,
            ..ConversionOptions::new(SERVICE, 10)
        };
        let call = Call::new("shop.example", Timestamp(start + 2_000_000));
        let answer = agent.measure_conversion(&call, &options).unwrap();
        let report = answer.report.release(Timestamp(i64::MAX)).unwrap();
        assert_eq!(report.buckets(), [1; 10], "honest-{site}.example");
    }
}

fn measure(agent: &mut UserAgent<Memory, Half>, site: &str, now: i64) -> Vec<u32> {
    let options = ConversionOptions::new(SERVICE, 4);
    let call = Call::new(site, Timestamp(now));
    let answer = agent.measure_conversion(&call, &options).unwrap();
    let report = answer.report.release(Timestamp(i64::MAX)).unwrap();
    report.buckets().to_vec()
}

#[test]
fn a_flood_fills_no_memory_and_displaces_no_one() {
    flood(Profile::BigBird, true);
}

#[test]
fn a_flood_before_there_are_epochs_does_neither() {
    flood(Profile::W3cDraft, false);
}

/// Conversions that name ever new sites leave nothing behind either.
#[test]
fn naming_sites_in_conversions_fills_no_memory() {
    let _alone = ALONE.lock();
    let config = Config::new(Profile::BigBird).with_service(SERVICE);
    let before = ALLOCATED.load(Ordering::Relaxed);
    let mut agent = UserAgent::in_memory(config, Half);
    for number in 0..100_000 {
        let options = ConversionOptions {
            impression_sites: vec![format!("a-{number}.example")],
            impression_callers: vec![format!("b-{number}.example")],
            ..ConversionOptions::new(SERVICE, 4)
        };
        let site = format!("c-{number}.example");
        let call = Call::new(&site, Timestamp(number));
        let _ = agent.measure_conversion(&call, &options).unwrap();
    }
    assert!(agent.storage().site_count() <= 20_000);
    let bytes = ALLOCATED.load(Ordering::Relaxed) - before;
    assert!(bytes < 8 << 20, "{} MiB", bytes >> 20);
}

/// The system's allocator, counting what is in use.
struct Counting;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

#[allow(unsafe_code, reason = "an allocator that counts must be an allocator")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Ordering::Relaxed);
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
