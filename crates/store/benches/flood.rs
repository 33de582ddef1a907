//! A flood of calls, and the largest conversions: `cargo bench -p bigbird-store --bench flood`.
//!
//! Every epoch that a conversion can reach is full, and everything in it matches everything. First,
//! the cost of the largest conversions that arrive together: what the limits of [`Pace`] take within one
//! delay has to be done within it. Then a user agent in a process of its own is flooded by one site and
//! by 25, with limits and without, while an honest shop measures conversions, and the user disables and
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
use bigbird_user_agent::{ConversionOptions, ImpressionOptions, Storage, UserAgent};
use process::agent::{
    self, EPOCHS, SERVICE, Setup, Step, System, Template, moments, wall_clock, with_suffix,
};
use process::numbers::{median, millis};
use process::{Process, UNNOTED, argument, own, page};
use serde_json::json;

/// What an epoch holds, nearly: the rest is for the honest publisher.
const STORED: u32 = 99_900;
const SITES: u32 = 2000;
const BUCKETS: u32 = 1024;

/// An honest shop, and its publisher.
const SHOP: &str = "shop.example";
const PUBLISHER: &str = "honest.example";

/// Often enough to see something, seldom enough for the limit of one site.
const HONEST: Duration = Duration::from_millis(600);
const TOGGLE: Duration = Duration::from_millis(500);

/// Fills every epoch. The impressions that a conversion reads first are on a thousand different sites,
/// and lie scattered over the file.
fn contents(now: i64) -> impl Iterator<Item = Step> {
    moments(now).flat_map(|moment| {
        let flood = (0..STORED).map(move |number| {
            // 7,919 is prime, so that this is a permutation.
            let rank = u64::from(number) * 7919 % u64::from(STORED);
            let rank = u32::try_from(rank).unwrap();
            let options = ImpressionOptions {
                priority: i32::try_from(rank).unwrap(),
                ..ImpressionOptions::new(rank % BUCKETS)
            };
            Step::Save(format!("news-{}.example", rank % SITES), options, moment)
        });
        let honest = (0..3)
            .map(move |_| Step::Save(PUBLISHER.to_owned(), ImpressionOptions::new(3), moment));
        flood.chain(honest)
    })
}

/// A conversion of which nothing could be larger.
fn largest() -> ConversionOptions {
    ConversionOptions {
        epsilon: 1e-5,
        value: 1000,
        max_value: 1000,
        credit: vec![1.0; 16],
        ..ConversionOptions::new(SERVICE, BUCKETS)
    }
}

/// How many conversions of the largest kind arrive together.
const TOGETHER: [usize; 5] = [1, 4, 16, 64, 104];

/// Prints the time of groups of the largest conversions, each of a site of its own, and gives the time
/// of one in the largest group, in ms.
fn cost<S: Storage>(name: &str, agent: &mut UserAgent<S, System>) -> Result<f64, S::Error> {
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
            assert!(answers.iter().all(|answer| agent::total(answer) > 0));
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
    println!("The largest conversions that arrive together, ms: median (slowest of 5)");
    println!("{:<32}{heads}", "");
    let mut memory = UserAgent::in_memory(setup.config(), System);
    let Ok(()) = agent::prepare(&mut memory, contents(setup.now));
    let Ok(in_memory) = cost("in memory", &mut memory);
    let paying = memory.budgets().map_or(0, |budgets| budgets.len());
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
    println!("{paying} filters were charged over {EPOCHS} epochs, of all shops together");
    let Pace {
        delay, conversions, ..
    } = setup.pace;
    for (name, each) in [("in memory", in_memory), ("on disk", on_disk)] {
        let time = each * f64::from(conversions.of_all);
        println!(
            "{} conversions {name} within the delay of {} ms: fits: {} ({time:.0} ms, {each:.1} ms each)",
            conversions.of_all,
            delay.as_millis(),
            if time < millis(delay) { "yes" } else { "no" },
        );
    }
    println!("\nCalls of the user's own, which all others wait for");
    let mut memory = UserAgent::in_memory(setup.config(), System);
    let Ok(()) = own_calls("in memory", &mut memory);
    own_calls("on disk", &mut agent::open(setup, &folder.file("own"))).unwrap();
}

/// How long calls of the user's own keep all others waiting, if one site has filled an epoch: its
/// clearing, and each slice of upkeep.
fn own_calls<S: Storage>(name: &str, agent: &mut UserAgent<S, System>) -> Result<(), S::Error> {
    const SITE: &str = "flood.example";
    let now = wall_clock();
    let saved = (0..STORED).map(|_| Step::Save(SITE.to_owned(), ImpressionOptions::new(0), now));
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
    println!("{name:<32} clearing {STORED} impressions {clearing:.0} ms, a slice {slowest:.1} ms");
    Ok(())
}

/// Tells how large the log is, and how long it takes to move it into the file.
fn write_back(agent: &mut UserAgent<SqliteStore, System>, path: &Path) {
    let log = size(&with_suffix(path, "-wal"));
    let begin = Instant::now();
    agent.storage_mut().checkpoint().unwrap();
    let time = millis(begin.elapsed());
    println!(
        "{:<32} {time:>15.1}   a log of {log:.1} MB",
        "  and a checkpoint"
    );
}

/// The bare minimum of a durable write, in ms.
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

/// In MB.
fn size(path: &Path) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "files are smaller")]
    let bytes = fs::metadata(path).map_or(0.0, |file| file.len() as f64);
    bytes / 1e6
}

/// What a round of the flood sends: of each attacker an impression and a conversion.
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

/// Floods an agent for a while, and prints what came of it.
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
            // At once, so that no conversion comes in between.
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

    println!(
        "\nA flood of `sites` that ask for histograms of `buckets`, while an honest shop measures."
    );
    println!("held: the longest that a call waited until the pipe took it");
    println!("late: an honest conversion's answer after the delay, counted from the pipe, in ms");
    println!("disable: the longest that the user waited for disableAPI, in ms");
    println!(
        "{:<26} {:>5} {:>7} {:>9} {:>9} {:>22} {:>12} {:>10} {:>7} {:>9} {:>7} {:>9}",
        "",
        "sites",
        "buckets",
        "calls/s",
        "held ms",
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
