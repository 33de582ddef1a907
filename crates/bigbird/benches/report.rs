//! Benchmarks of saving and reporting, compared to the plain algorithm on the same work, in one
//! run: `cargo bench -p bigbird`.
//!
//! With `-- --instructions`, this counts the instructions of each row instead.
//!
//! Every row is measured in rounds, and the rows are run in turn, so that a busy machine disturbs
//! all of them equally. The median of the rounds is printed.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "the numbers are small"
)]

use std::hint::black_box;
use std::time::Instant;

use bigbird::{
    AttributionQuery, Device, EpochIndex, Impression, ImpressionStore, Policy, ReadLimits,
    ReportRequest, SiteId, StoreLimits, Timestamp, UserAction, Window, Workspace,
};
use bigbird_reference::{Ad, Ask, Reference};
use bigbird_testing::{
    CountingAllocator, asked_for_instructions, asked_to_count, print_instructions,
};

const EPOCHS: i64 = 5;
const SHOP: SiteId = SiteId(1_000_000);
/// The match value of the ten impressions that a query by match value selects.
const CAMPAIGN: u32 = 7;
const ROUNDS: usize = 41;

fn main() {
    // Cargo passes flags such as `--bench`. Rows cannot be selected by name, because the rows are
    // compared with each other.
    let mut rows = Vec::new();
    for (stored, sites) in [(1_000, 20), (100_000, 1_000)] {
        rows.extend(store_rows(stored, sites));
    }
    rows.extend([full_row(false), full_row(true)]);
    rows.extend(lab_rows());
    if let Some((name, times)) = asked_to_count() {
        let row = rows.iter_mut().find(|row| row.name == name).unwrap();
        for _ in 0..times {
            (row.run)(row.iterations);
        }
        return;
    }
    if asked_for_instructions() {
        let ours = rows.iter().filter(|row| !row.name.contains("plain"));
        // Rounds are long enough to include work that happens only now and then.
        return print_instructions(ours.map(|row| (row.name.clone(), 1, 3)));
    }
    for _ in 0..ROUNDS {
        for row in &mut rows {
            let begin = Instant::now();
            (row.run)(row.iterations);
            row.rounds
                .push(begin.elapsed().as_secs_f64() / row.iterations as f64);
        }
    }
    print(&mut rows);
    print_memory();
}

/// One operation to measure.
struct Row {
    name: String,
    target: Option<f64>,
    /// The name of a row whose time is subtracted, because this row includes the same work.
    minus: Option<&'static str>,
    /// The number of operations in one iteration.
    per_iteration: f64,
    iterations: usize,
    run: Box<dyn FnMut(usize)>,
    rounds: Vec<f64>,
}

fn row(name: impl Into<String>, iterations: usize, run: impl FnMut(usize) + 'static) -> Row {
    Row {
        name: name.into(),
        target: None,
        minus: None,
        per_iteration: 1.0,
        iterations,
        run: Box::new(run),
        rounds: Vec::new(),
    }
}

/// A policy in which all four kinds of filters are finite, but so large that they are never
/// depleted. The domain cap is the paper's.
fn policy() -> Policy {
    Policy::builder()
        .querier_budget(1e9)
        .global_budget(1e9)
        .impression_site_quota(1e9)
        .conversion_site_quota(1e9)
        .domain_cap(2)
        .build()
        .unwrap()
}

/// Impression `number`. Impressions are spread over epochs and sites, and each is for one of a
/// hundred advertisers. Ten of them, two in each epoch, are for the shop, and the same ten belong
/// to the campaign.
fn ad(number: usize, sites: usize) -> (i64, Ad) {
    let epoch = (number as i64) % EPOCHS;
    let ours = number < 10;
    let conversion_site = if ours {
        SHOP.0
    } else {
        2_000_000 + (number % 100) as u32
    };
    let ad = Ad {
        site: ((number * 7919) % sites) as u32,
        intermediary: Some(3_000_000 + (number % 10) as u32),
        action: number as u64,
        timestamp: epoch * 1_000_000 + number as i64,
        expires: i64::MAX,
        match_value: if ours {
            CAMPAIGN
        } else {
            100 + (number % 50) as u32
        },
        index: (number % 20) as u32,
        priority: 0,
        conversion_sites: vec![conversion_site],
        conversion_callers: Vec::new(),
    };
    (epoch, ad)
}

/// Calls `then` with the same impression in the form that the store takes.
fn with_impression<R>(ad: &Ad, then: impl FnOnce(&Impression<'_>) -> R) -> R {
    then(black_box(&Impression {
        intermediary: ad.intermediary.map(SiteId),
        match_value: ad.match_value,
        conversion_sites: &[SiteId(ad.conversion_sites[0])],
        ..Impression::new(
            SiteId(ad.site),
            UserAction(ad.action),
            Timestamp(ad.timestamp),
            ad.index,
        )
    }))
}

fn save(device: &mut Device<ImpressionStore>, epoch: i64, ad: &Ad) {
    with_impression(ad, |impression| {
        device.save_impression(EpochIndex(epoch), impression);
    });
}

fn filled(stored: usize, sites: usize) -> Device<ImpressionStore> {
    let mut device = Device::with_events(policy(), ImpressionStore::new(StoreLimits::default()));
    for number in 0..stored {
        let (epoch, ad) = ad(number, sites);
        save(&mut device, epoch, &ad);
    }
    assert_eq!(device.events().len(), stored);
    device
}

fn query(action: u64, by_campaign: bool) -> AttributionQuery {
    let request = request(action, EPOCHS - 1);
    let query = AttributionQuery::builder(request, Timestamp(i64::MAX), 20)
        .credit([0.5, 0.3, 0.2])
        .value(3, 10)
        .epsilon(0.1);
    let campaign = if by_campaign {
        vec![CAMPAIGN]
    } else {
        Vec::new()
    };
    query.match_values(campaign).build().unwrap()
}

fn request(action: u64, current: i64) -> ReportRequest {
    ReportRequest {
        querier: SHOP,
        conversion_site: SHOP,
        user_action: UserAction(action),
        window: Window::new(EpochIndex(0), EpochIndex(current)).unwrap(),
    }
}

fn reports(stored: usize, sites: usize, by_campaign: bool) -> impl FnMut(usize) {
    let mut device = filled(stored, sites);
    let mut action = 1_000_000_000;
    let mut query = query(action, by_campaign);
    let mut workspace = Workspace::default();
    move |iterations| {
        for _ in 0..iterations {
            action += 1;
            let (now, not_before) = (Timestamp(i64::MAX), Timestamp(i64::MIN));
            query
                .retarget(request(action, EPOCHS - 1), now, not_before)
                .unwrap();
            device.report_in(black_box(&query), &mut || 0.5, &mut workspace);
            assert_eq!(workspace.report().total(), 3);
            if action % 1024 == 0 {
                device.end_user_actions_before(UserAction(action));
            }
        }
    }
}

/// Saves into a store. The small store starts empty, so this includes building its indexes. The
/// large store starts with `stored` impressions.
fn save_row(stored: usize, sites: usize) -> Row {
    const SAVES: usize = 1_000;
    let from_empty = stored == SAVES;
    let mut device = filled(stored, sites);
    let mut next = stored as u64;
    let mut ads: Vec<_> = (0..SAVES).map(|number| ad(10 + number, sites)).collect();
    let name = match from_empty {
        true => format!("save, from 0 to {stored} stored"),
        false => format!("save, with {stored} stored"),
    };
    row(name, SAVES, move |_| {
        if from_empty {
            device.reset();
        }
        for (epoch, ad) in &mut ads {
            next += 1;
            ad.action = next;
            save(&mut device, *epoch, ad);
        }
        device.end_user_actions_before(UserAction(next));
    })
}

/// Saves into a full epoch, so that every save evicts an impression. Evicted impressions are
/// compacted now and then, and a round is long enough to include that.
fn full_row(distinct: bool) -> Row {
    const FULL: u32 = 20_000;
    let limits = StoreLimits {
        units_per_epoch: FULL.try_into().unwrap(),
    };
    let mut store = ImpressionStore::new(limits);
    let mut next = 0;
    let mut save = move |iterations: usize| {
        for _ in 0..iterations {
            next += 1;
            let (_, mut ad) = ad(next, 500);
            if distinct {
                ad.conversion_sites = vec![next as u32];
            }
            with_impression(&ad, |impression| store.save(EpochIndex(0), impression));
        }
    };
    save(FULL as usize);
    let what = if distinct {
        "all different"
    } else {
        "100 advertisers"
    };
    row(
        format!("save into a full epoch of {FULL}, {what}"),
        10_000,
        save,
    )
}

fn store_rows(stored: usize, sites: usize) -> Vec<Row> {
    let mut plain = Reference::new(policy(), usize::MAX, None);
    plain.ads = (0..stored).map(|number| ad(number, sites)).collect();
    let mut ask = Ask {
        querier: SHOP.0,
        conversion_site: SHOP.0,
        callers: vec![SHOP.0],
        action: 1_000_000_000,
        earliest: 0,
        current: EPOCHS - 1,
        readable_from: i64::MIN,
        now: i64::MAX,
        not_before: i64::MIN,
        impression_sites: Vec::new(),
        impression_callers: Vec::new(),
        match_values: Vec::new(),
        credit: vec![0.5, 0.3, 0.2],
        value: 3,
        max_value: 10,
        epsilon_micro: 100_000,
        size: 20,
        read_limits: ReadLimits::default(),
        draws: vec![0.5],
    };
    let reporting = row(
        format!("report, {stored} stored, 10 match by conversion site"),
        2_000,
        reports(stored, sites, false),
    );
    let by_campaign = row(
        format!("report, {stored} stored, 10 match by match value"),
        2_000,
        reports(stored, sites, true),
    );
    let target = Some(10e-6).filter(|_| stored == 1_000);
    vec![
        Row {
            target: Some(1e-6),
            ..save_row(stored, sites)
        },
        Row {
            target,
            ..reporting
        },
        Row {
            target,
            ..by_campaign
        },
        row(
            format!("  the same with the plain algorithm, {stored} stored"),
            (100_000 / stored).min(20),
            move |iterations| {
                for _ in 0..iterations {
                    ask.action += 1;
                    let answer = plain.ask(black_box(&ask));
                    assert_eq!(answer.histogram.iter().sum::<u32>(), 3);
                }
            },
        ),
    ]
}

/// A simulated device: 3 impressions over 2 epochs and one report, with reused buffers.
fn lab_rows() -> Vec<Row> {
    fn run(saves: usize, reports: usize) -> impl FnMut(usize) {
        let mut device = Device::<ImpressionStore>::new(policy());
        let mut workspace = Workspace::default();
        let build = AttributionQuery::builder(request(9, 1), Timestamp(100), 5).epsilon(0.5);
        let mut query = build.build().unwrap();
        move |iterations| {
            for number in 0..iterations as u64 {
                device.reset();
                for save in 0..saves as u64 {
                    let impression = Impression {
                        conversion_sites: &[SHOP],
                        ..Impression::new(
                            SiteId((number + save) as u32 % 100),
                            UserAction(save),
                            Timestamp(save as i64),
                            (number % 5) as u32,
                        )
                    };
                    let epoch = EpochIndex((save / 2) as i64);
                    device.save_impression(epoch, black_box(&impression));
                }
                for _ in 0..reports {
                    let (now, not_before) = (Timestamp(100), Timestamp(0));
                    query.retarget(request(9, 1), now, not_before).unwrap();
                    device.report_in(black_box(&query), &mut || 0.5, &mut workspace);
                    assert_eq!(workspace.report().total(), 1);
                }
            }
        }
    }
    vec![
        row("lab: reset of the device", 20_000, run(0, 0)),
        Row {
            target: Some(50e-9),
            minus: Some("lab: reset of the device"),
            per_iteration: 3.0,
            ..row("lab: save (one of three)", 20_000, run(3, 0))
        },
        row("lab: reset and three saves", 20_000, run(3, 0)),
        Row {
            target: Some(300e-9),
            minus: Some("lab: reset and three saves"),
            ..row("lab: report over 2 epochs, all 3 match", 20_000, run(3, 1))
        },
    ]
}

fn print(rows: &mut [Row]) {
    for row in rows.iter_mut() {
        row.rounds.sort_by(f64::total_cmp);
    }
    let median = |row: &Row| row.rounds[row.rounds.len() / 2];
    println!(
        "{:<55} {:>12} {:>12}",
        "operation (median)", "time", "target"
    );
    for row in &*rows {
        let contained = row.minus.map_or(0.0, |name| {
            median(rows.iter().find(|other| other.name == name).unwrap())
        });
        let time = (median(row) - contained) / row.per_iteration;
        let target = row.target.map_or(String::new(), duration);
        println!("{:<55} {:>12} {:>12}", row.name, duration(time), target);
    }
    let time = |name: &str| median(rows.iter().find(|row| row.name.contains(name)).unwrap());
    for by in ["conversion site", "match value"] {
        let few = time(&format!("report, 1000 stored, 10 match by {by}"));
        let many = time(&format!("report, 100000 stored, 10 match by {by}"));
        println!(
            "{:<55} {:>11.1}× {:>11}×",
            format!("100,000 stored compared to 1,000, by {by}"),
            many / few,
            5
        );
    }
    for stored in ["1000", "100000"] {
        let plain = time(&format!("plain algorithm, {stored} stored"));
        let ours = time(&format!("report, {stored} stored, 10 match by conversion"));
        let name = format!("plain algorithm compared to ours, {stored} stored");
        println!("{name:<55} {:>11.0}×", plain / ours);
    }
}

fn duration(seconds: f64) -> String {
    if seconds < 1e-6 {
        format!("{:.0} ns", seconds * 1e9)
    } else if seconds < 1e-3 {
        format!("{:.2} µs", seconds * 1e6)
    } else {
        format!("{:.2} ms", seconds * 1e3)
    }
}

fn print_memory() {
    let limit = |applies: bool| if applies { "96 B" } else { "" };
    for (stored, sites) in [(1_000, 20), (100_000, 1_000)] {
        let bytes = memory(|| {
            let mut store = ImpressionStore::new(StoreLimits::default());
            for number in 0..stored {
                let (epoch, ad) = ad(number, sites);
                with_impression(&ad, |impression| store.save(EpochIndex(epoch), impression));
            }
            store
        });
        let name = format!("memory per impression, {stored} stored");
        println!(
            "{name:<55} {:>9} B {:>12}",
            bytes.div_ceil(stored),
            limit(true)
        );
        let bytes = memory(|| filled(stored, sites));
        let name = "  including the admissions of user actions";
        println!("{name:<55} {:>9} B", bytes.div_ceil(stored));
        // Each impression has its own match value and its own advertiser.
        let bytes = memory(|| {
            let mut store = ImpressionStore::new(StoreLimits::default());
            for number in 0..stored {
                let (epoch, mut ad) = ad(number, sites);
                ad.match_value = number as u32;
                ad.conversion_sites = vec![number as u32];
                with_impression(&ad, |impression| store.save(EpochIndex(epoch), impression));
            }
            store
        });
        let name = "  if impressions have nothing in common";
        println!("{name:<55} {:>9} B", bytes.div_ceil(stored));
    }
}

/// The number of bytes that the built value takes.
fn memory<T>(build: impl FnOnce() -> T) -> usize {
    let before = ALLOCATOR.bytes();
    let built = build();
    let bytes = ALLOCATOR.bytes() - before;
    drop(black_box(built));
    bytes
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();
