//! A flood of calls, and the largest conversions: `cargo bench -p bigbird-store --bench flood`.
//!
//! Every epoch that a conversion can reach is full, and every impression matches every conversion.
//! The first part prints the cost of the largest conversions that arrive together. All conversions
//! that the limits of [`Pace`] accept within one delay must be done within that delay.
//!
//! In the second part, one site and then 25 sites flood a user agent in a process of its own, with
//! limits and without. Meanwhile an honest shop measures conversions, and the user disables and
//! enables the API. `-- --seconds 5` shortens each run.
#![allow(missing_docs, clippy::unwrap_used)]

mod process;

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use bigbird_store::SqliteStore;
use bigbird_testing::Folder;
use bigbird_user_agent::protocol::Pace;
use bigbird_user_agent::{
    ConversionOptions, ImpressionOptions, Storage, SystemRandomness, UserAgent,
};
use process::agent::{
    self, AgentStep, EPOCHS, SERVICE, Setup, Template, moments, wall_clock, with_suffix,
};
use process::numbers::{median, millis};
use process::{Process, UNNOTED, argument, own, page};
use serde_json::json;

/// The impressions per epoch. An epoch can hold a few more, which leaves room for the honest
/// publisher.
const STORED: u32 = 99_900;
const SITES: u32 = 2000;
const BUCKETS: u32 = 1024;

/// An honest shop, and its publisher.
const SHOP: &str = "shop.example";
const PUBLISHER: &str = "honest.example";

/// The time between honest conversions: short enough to see something, long enough for the limit of
/// one site.
const HONEST: Duration = Duration::from_millis(600);
const TOGGLE: Duration = Duration::from_millis(500);

/// The impressions that fill every epoch. Those that a conversion reads first are on a thousand
/// different sites, and lie scattered over the file.
fn contents(now: i64) -> impl Iterator<Item = AgentStep> {
    moments(now).flat_map(|moment| {
        let flood = (0..STORED).map(move |number| {
            // 7,919 is prime, so that this is a permutation.
            let rank = u64::from(number) * 7919 % u64::from(STORED);
            let rank = u32::try_from(rank).unwrap();
            let options = ImpressionOptions {
                priority: i32::try_from(rank).unwrap(),
                ..ImpressionOptions::new(rank % BUCKETS)
            };
            AgentStep::Save(format!("news-{}.example", rank % SITES), options, moment)
        });
        let honest = (0..3)
            .map(move |_| AgentStep::Save(PUBLISHER.to_owned(), ImpressionOptions::new(3), moment));
        flood.chain(honest)
    })
}

/// The options of the largest possible conversion.
fn largest() -> ConversionOptions {
    ConversionOptions {
        epsilon: 1e-5,
        value: 1000,
        max_value: 1000,
        credit: vec![1.0; 16],
        ..ConversionOptions::new(SERVICE, BUCKETS)
    }
}

/// The numbers of largest conversions that arrive together.
const TOGETHER: [usize; 5] = [1, 4, 16, 64, 104];

/// Prints the time of groups of the largest conversions, each on a different site. Returns the time
/// of one conversion in the largest group, in ms.
fn cost<S: Storage>(
    name: &str,
    agent: &mut UserAgent<S, SystemRandomness>,
) -> Result<f64, S::Error> {
    let now = wall_clock();
    let options = largest();
    let mut row = format!("{name:<32}");
    let mut each = 0.0;
    for together in TOGETHER {
        let mut times = Vec::new();
        for _ in 0..5 {
            let mut calls = Vec::new();
            for site in 0..together {
                let site = format!("shop-{site}.example");
                calls.push(agent::conversion(agent, &site, &options, now)?);
            }
            let begin = Instant::now();
            let answers = agent.perform(&calls)?;
            times.push(millis(begin.elapsed()));
            let gate = agent.gate();
            assert!(
                answers
                    .into_iter()
                    .all(|answer| agent::total(gate, answer) > 0)
            );
        }
        let time = median(&mut times);
        each = time / f64::from(u32::try_from(together).unwrap());
        let slowest = times.last().unwrap();
        row += &format!(" {:>15}", format!("{time:.1} ({slowest:.1})"));
    }
    println!("{row}");
    Ok(each)
}

fn costs(setup: &Setup, template: &Template, folder: &Folder) {
    let heads = TOGETHER.map(|count| format!(" {count:>15}")).concat();
    println!("The largest conversions that arrive together, in ms: median (slowest of 5)");
    println!("{:<32}{heads}", "");
    let mut memory = UserAgent::in_memory(setup.config(), SystemRandomness::new().unwrap());
    let Ok(()) = agent::prepare(&mut memory, contents(setup.now));
    let Ok(in_memory) = cost("in memory", &mut memory);
    let paying = memory.filter_balances().map_or(0, |budgets| budgets.len());
    drop(memory);
    let unflushed = Folder::in_memory();
    let mut on_disk = 0.0;
    for (name, folder) in [
        ("in a file that is never flushed", &unflushed),
        ("in a file on disk", folder),
    ] {
        let path = folder.file("cost");
        template.copy(&path);
        let mut opened = agent::open(setup, &path);
        on_disk = cost(name, &mut opened).unwrap();
        write_back(&mut opened, &path);
    }
    println!(
        "{:<32} {:>15.1}",
        "4 kB appended and flushed",
        floor(folder)
    );
    println!("{paying} filters were charged over {EPOCHS} epochs, for all shops together");
    let Pace {
        delay, conversions, ..
    } = setup.pace;
    for (name, each) in [("in memory", in_memory), ("on disk", on_disk)] {
        let time = each * f64::from(conversions.of_all);
        println!(
            "{} conversions {name} {} into the delay of {} ms: {time:.0} ms, {each:.1} ms each",
            conversions.of_all,
            if time < millis(delay) {
                "fit"
            } else {
                "do not fit"
            },
            delay.as_millis(),
        );
    }
    println!("\nCalls of the user, for which all other calls wait");
    let mut memory = UserAgent::in_memory(setup.config(), SystemRandomness::new().unwrap());
    let Ok(()) = own_calls("in memory", &mut memory);
    own_calls("on disk", &mut agent::open(setup, &folder.file("own"))).unwrap();
}

/// Prints how long calls of the user keep all other calls waiting, if one site has filled an epoch:
/// clearing that site, and each slice of upkeep.
fn own_calls<S: Storage>(
    name: &str,
    agent: &mut UserAgent<S, SystemRandomness>,
) -> Result<(), S::Error> {
    const SITE: &str = "flood.example";
    let now = wall_clock();
    let saved =
        (0..STORED).map(|_| AgentStep::Save(SITE.to_owned(), ImpressionOptions::new(0), now));
    agent::prepare(agent, saved)?;
    let begin = Instant::now();
    agent.clear_impressions_for_site(SITE)?;
    let clearing = millis(begin.elapsed());
    agent.start_upkeep();
    let (mut slowest, mut more) = (0.0_f64, true);
    while more {
        let begin = Instant::now();
        more = agent.upkeep(now)?;
        slowest = slowest.max(millis(begin.elapsed()));
    }
    println!(
        "{name:<32} clearing {STORED} impressions: {clearing:.0} ms; slowest slice: {slowest:.1} ms"
    );
    Ok(())
}

/// Prints the size of the log, and the time it takes to move it into the file.
fn write_back(agent: &mut UserAgent<SqliteStore, SystemRandomness>, path: &Path) {
    let log = size(&with_suffix(path, "-wal"));
    let begin = Instant::now();
    agent.storage_mut().checkpoint().unwrap();
    let time = millis(begin.elapsed());
    println!(
        "{:<32} {time:>15.1}   a log of {log:.1} MB",
        "  and a checkpoint"
    );
}

/// The time of the smallest durable write, in ms.
fn floor(folder: &Folder) -> f64 {
    let mut file = File::create(folder.file("floor")).unwrap();
    let mut times = Vec::new();
    for _ in 0..200 {
        let begin = Instant::now();
        file.write_all(&[7; 4096]).unwrap();
        file.sync_data().unwrap();
        times.push(millis(begin.elapsed()));
    }
    median(&mut times)
}

/// The size of a file, in MB.
fn size(path: &Path) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "files are smaller")]
    let bytes = fs::metadata(path).map_or(0.0, |file| file.len() as f64);
    bytes / 1e6
}

/// The calls of one round of the flood: an impression and a conversion from each attacker.
fn flood(attackers: usize, buckets: u32) -> String {
    let conversion = json!({
        "aggregationService": SERVICE, "histogramSize": buckets, "epsilon": 1e-5,
        "value": 1000, "maxValue": 1000, "credit": vec![1.0; 16],
    });
    let impression = json!({"histogramIndex": 5, "priority": 1_000_000});
    let calls = (0..attackers).map(|attacker| {
        let site = format!("attacker-{attacker}.example");
        page(UNNOTED, "saveImpression", &site, &impression)
            + &page(UNNOTED, "measureConversion", &site, &conversion)
    });
    calls.collect()
}

/// Floods an agent for a while, and prints the results.
fn run(name: &str, setup: &Setup, (attackers, buckets): (usize, u32), time: Duration) {
    let honest = json!({
        "aggregationService": SERVICE, "histogramSize": 8, "epsilon": 1e-5,
        "impressionSites": [PUBLISHER], "value": 5, "maxValue": 5,
    });
    let mut process = Process::start(setup);
    let flood = flood(attackers, buckets);
    let begin = Instant::now();
    let (mut next_honest, mut next_toggle) = (begin + HONEST, begin + TOGGLE);
    let (mut conversions, mut toggles) = (Vec::new(), Vec::new());
    let mut id = UNNOTED;
    while begin.elapsed() < time {
        let now = Instant::now();
        if now >= next_honest {
            id += 1;
            process.send(&page(id, "measureConversion", SHOP, &honest));
            conversions.push((id, next_honest, Instant::now()));
            next_honest = (next_honest + HONEST).max(now);
        } else if now >= next_toggle {
            id += 2;
            // Both are sent at once, so that no conversion comes between them.
            process.send(&(own(id - 1, "disableAPI") + &own(id, "enableAPI")));
            toggles.push((id - 1, Instant::now()));
            next_toggle += TOGGLE;
        } else if attackers > 0 {
            process.send(&flood);
        } else {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let rate = process.unnoted() as f64 / begin.elapsed().as_secs_f64();
    let last = conversions.last().map_or(UNNOTED, |(id, ..)| *id);
    process.wait_for(last, setup.pace.delay + Duration::from_secs(10));
    let status = process.ask(id + 1, "status", Duration::from_secs(10));
    let missed = status.map_or("?".to_owned(), |it| it.json()["missed"].to_string());

    let (mut late, mut held) = (Vec::new(), 0.0_f64);
    let (mut null, mut unanswered) = (0, 0);
    for (id, wanted, sent) in &conversions {
        held = held.max(millis(*sent - *wanted));
        match process.answer(*id) {
            None => unanswered += 1,
            Some(answer) => {
                let due = *sent + setup.pace.delay;
                late.push(millis(answer.at.saturating_duration_since(due)));
                null += u32::from(answer.total() == 0);
            }
        }
    }
    let own = toggles.iter().map(|(id, sent)| match process.answer(*id) {
        Some(answer) => millis(answer.at.saturating_duration_since(*sent)),
        None => f64::INFINITY,
    });
    let slowest = own.fold(0.0, f64::max);
    let middle = median(&mut late);
    let ends = [late.first(), Some(&middle), late.last()].map(|it| it.copied().unwrap_or(f64::NAN));
    let lateness = ends.map(|it| format!("{it:.1}")).join("/");
    let files = setup.store.as_ref().map_or("-".to_owned(), |path| {
        format!("{:.0}+{:.0}", size(path), size(&with_suffix(path, "-wal")))
    });
    println!(
        "{name:<26} {attackers:>5} {buckets:>7} {rate:>9.0} {held:>9.1} {lateness:>22} {null:>4} of {:<4} \
         {unanswered:>10} {missed:>7} {slowest:>9.1} {:>7.0} {files:>9}",
        conversions.len(),
        process.peak_memory().unwrap_or(f64::NAN),
    );
}

fn main() {
    if let Some(setup) = Setup::asked() {
        return agent::serve(&setup, contents(setup.now));
    }
    let time = Duration::from_secs(argument("--seconds", 10));
    let folder = Folder::below(env!("CARGO_TARGET_TMPDIR"));
    let setup = Setup::new(wall_clock().0);
    let template = Template::new(&setup, folder.file("template"), contents(setup.now));
    costs(&setup, &template, &folder);

    println!("\nA flood from `sites` sites, while an honest shop measures conversions");
    println!("buckets: the size of the histograms that the flood asks for");
    println!("pipe: the longest time that an honest call waited to enter the pipe, in ms");
    println!("late: the time from the end of the delay to the answer of an honest conversion");
    println!("null, unanswered: honest conversions with a null report, or without an answer");
    println!("missed: conversions that were not ready at their moment");
    println!("disable: the longest time that the user waited for disableAPI, in ms");
    println!("MB+log: the size of the file and of its log, in MB");
    println!(
        "{:<26} {:>5} {:>7} {:>9} {:>9} {:>22} {:>12} {:>10} {:>7} {:>9} {:>7} {:>9}",
        "",
        "sites",
        "buckets",
        "calls/s",
        "pipe ms",
        "late, ms: min/mid/max",
        "null",
        "unanswered",
        "missed",
        "disable",
        "peak MB",
        "MB+log",
    );
    for (limits, limited) in [
        ("limits", setup.clone()),
        ("no limits", setup.clone().without_arrival_limits()),
    ] {
        for attackers in [(0, 8), (1, BUCKETS), (25, BUCKETS), (25, 8)] {
            run(&format!("in memory, {limits}"), &limited, attackers, time);
            let path = folder.file("flood");
            template.copy(&path);
            let mut on_disk = limited.clone();
            on_disk.store = Some(path);
            run(&format!("on disk, {limits}"), &on_disk, attackers, time);
        }
    }
}
