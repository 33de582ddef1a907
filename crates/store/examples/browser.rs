//! The user agent on its durable store, as a browser would embed it.
//!
//! ```sh
//! cargo run -p bigbird-store --example browser
//! ```

use std::error::Error;
use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use bigbird::{Profile, Timestamp};
use bigbird_store::{SqliteStore, StoreOptions};
use bigbird_user_agent::protocol::Scheduler;
use bigbird_user_agent::{
    Call, Config, ConversionOptions, ImpressionOptions, Randomness, Report, Seal, UserAgent,
};

/// Randomness from the operating system; a browser has its own.
struct System;

impl System {
    fn bits() -> u64 {
        // Every `RandomState` has new random keys.
        use std::hash::{BuildHasher as _, RandomState};
        RandomState::new().hash_one(0)
    }

    fn fraction() -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
        let number = (Self::bits() >> 11) as f64;
        number / (1_u64 << 53) as f64
    }
}

impl Randomness for System {
    fn epoch_start(&mut self) -> f64 {
        Self::fraction()
    }

    fn credit(&mut self) -> f64 {
        Self::fraction()
    }

    fn handle(&mut self, _: u64) -> u128 {
        u128::from(Self::bits()) << 64 | u128::from(Self::bits())
    }
}

/// How reports are sealed. A browser encrypts them for the aggregation service; this one, which does
/// not, tells only how many buckets there are.
#[derive(Debug)]
struct Length;

impl Seal for Length {
    fn seal(&self, report: &Report<'_>) -> Vec<u8> {
        let buckets = report.histogram.buckets().len();
        format!("{buckets} buckets for {}", report.querier).into_bytes()
    }
}

fn now() -> Result<Timestamp, Box<dyn Error>> {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(Timestamp(i64::try_from(elapsed.as_millis())?))
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::temp_dir().join(format!("bigbird-browser-{}", std::process::id()));

    // Once, when the browser starts: a store that cannot be used is an error, never replaced.
    let store = SqliteStore::open_or_create(&path, &StoreOptions::default())?;
    // With other rules than last time, say after an update, every epoch keeps those it began with.
    let config = Config::new(Profile::BigBird).with_service("https://agg.example");
    let mut agent = UserAgent::new(config, store, System, now()?)?.sealing(Length);
    // It says when calls are taken and answered, by when they arrive alone. A browser has a thread
    // that parses calls with the gate and hands them to it, one that makes them in their order, and
    // one that answers: `bigbird agent` is such a process.
    let began = Instant::now();
    let mut scheduler = Scheduler::new(agent.config().pace);

    // The user clicks a link to a news site, which shows an ad in a frame of an ad-tech company.
    let click = agent.begin_user_action(now()?)?;
    let ad = Call {
        intermediary: Some("ads.example"),
        ..Call::new("www.news.example", now()?).by(click)
    };
    agent.save_impression(&ad, &ImpressionOptions::new(3))?;

    // Later the user buys something. The page gets its answer at a fixed time after the call,
    // whatever was stored, spent or switched off.
    let click = agent.begin_user_action(now()?)?;
    let bought = Call::new("shop.example", now()?).by(click);
    let options = ConversionOptions {
        epsilon: 0.25,
        ..ConversionOptions::new("https://agg.example", 5)
    };
    let call = agent.gate().conversion(&bought, &options)?;
    let null = agent.gate().null_report(&call.envelope());
    scheduler.conversion(began.elapsed(), call.site(), &bought, null);
    let Some((Some(ticket), bought)) = scheduler.begin() else {
        return Err("the scheduler takes the first conversion".into());
    };
    let answer = agent.measure_conversion(bought, &options)?;
    // From here on the charge is on the disk, also if the power fails.
    scheduler.finish(ticket, answer.report);
    let due = scheduler.next_release().ok_or("it is to be answered")?;
    println!("the page is answered {due:?} after the start");
    thread::sleep(due.saturating_sub(began.elapsed()));
    if let Some(report) = scheduler.release(began.elapsed()) {
        let sealed = String::from_utf8_lossy(&report.bytes);
        println!("the page gets a sealed report: {sealed}");
    }

    // Now and then, while nobody waits: what no request can reach any more goes, slice by slice.
    while agent.is_upkeep_due(now()?) && agent.upkeep(now()?)? {}

    // What a page of the browser's own may show the user.
    for budget in agent.budgets()? {
        let balance = budget.balance;
        println!(
            "epoch {}: {budget} {} of {} consumed",
            budget.epoch, balance.consumed, balance.capacity
        );
    }

    // The user clears everything: traces go, and nothing that was spent comes back.
    agent.clear_browsing_history(&[], true, now()?)?;
    let again = agent.measure_conversion(bought, &options)?;
    println!(
        "after clearing, {} epochs are read",
        again.decision.epochs().count()
    );

    // When the browser ends. If it crashes instead, nothing is lost either.
    agent.into_storage().close()?;
    std::fs::remove_file(&path)?;
    Ok(())
}
