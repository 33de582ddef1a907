//! A user agent embedded in a browser: durable store, system randomness, wall clock, and reports
//! that are released at a fixed time after the call.
//!
//! ```sh
//! cargo run -p bigbird-store --example browser
//! ```
//!
//! What each thread may do:
//!
//! * **Any thread that serves pages** keeps a clone of the [`Gate`]. It parses a call, tells the
//!   page at once if the call is invalid, and hands a valid one to the scheduler. It never waits
//!   for the store, so a page learns nothing from how busy the store is.
//! * **One worker thread** owns the [`UserAgent`], which is `Send` and not shared. It makes calls
//!   in the order in which the scheduler gives them. When a call returns, its charge is on disk.
//!   Here it also seals the report. A busy browser lets another thread do that: see
//!   [`Gate::seal`].
//! * **One release thread** gives pages their reports when the scheduler says so, ready or not.
//!
//! The threads share nothing but the scheduler. `bigbird agent` is the same with lines of JSON.

use std::error::Error;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bigbird::{Profile, Timestamp};
use bigbird_dap::{AggregationService, ConfiguredServices, DapSealer};
use bigbird_store::{SqliteStore, StoreOptions};
use bigbird_user_agent::protocol::{ConversionArrival, Pace, Scheduler};
use bigbird_user_agent::{
    Action, Call, Config, ConversionOptions, Gate, ImpressionOptions, PageAnswer, PageCall,
    SealedReport, SystemRandomness, UserAgent,
};

const SERVICE: &str = "https://agg.example";

/// The clock on the wall, which may step. Epochs follow it.
fn now() -> Timestamp {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH);
    let ms = elapsed.map_or(0, |elapsed| elapsed.as_millis());
    Timestamp(i64::try_from(ms).unwrap_or(i64::MAX))
}

/// What the threads share.
struct Browser {
    scheduler: Mutex<Scheduler<PageCall, SealedReport>>,
    changed: Condvar,
    /// A clock that never steps, for delays.
    started: Instant,
}

impl Browser {
    fn new(pace: Pace) -> Self {
        Self {
            scheduler: Mutex::new(Scheduler::new(pace)),
            changed: Condvar::new(),
            started: Instant::now(),
        }
    }

    fn scheduler(&self) -> MutexGuard<'_, Scheduler<PageCall, SealedReport>> {
        self.scheduler
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// A page calls `saveImpression()`. Its promise depends on the options alone.
    fn save(
        &self,
        gate: &Gate,
        call: &Call<'_>,
        options: &ImpressionOptions,
    ) -> Result<(), Box<dyn Error>> {
        let call = gate.impression(call, options)?;
        let (site, units) = (call.site().clone(), call.units());
        let arrival = self.started.elapsed();
        self.scheduler()
            .impression(arrival, &site, units, PageCall::Save(call));
        self.changed.notify_all();
        Ok(())
    }

    /// A page calls `measureConversion()`. It will get a report after the delay in any case.
    fn measure(
        &self,
        gate: &Gate,
        call: &Call<'_>,
        options: &ConversionOptions,
    ) -> Result<(), Box<dyn Error>> {
        let call = gate.conversion(call, options)?;
        let null = gate.null_report(&call.envelope());
        let (site, sealing) = (call.site().clone(), call.sealing_units());
        let (arrival, call) = (self.started.elapsed(), PageCall::Measure(call));
        let arrived = self
            .scheduler()
            .conversion(arrival, &site, sealing, call, null);
        if arrived == ConversionArrival::Rejected {
            return Err("the page asks for too many reports".into());
        }
        self.changed.notify_all();
        Ok(())
    }

    /// The worker thread, for `calls` calls: a browser would go on until it ends.
    fn work(
        &self,
        mut agent: UserAgent<SqliteStore, SystemRandomness>,
        calls: usize,
    ) -> UserAgent<SqliteStore, SystemRandomness> {
        for _ in 0..calls {
            let mut scheduler = self.scheduler();
            let (ticket, call) = loop {
                match scheduler.begin() {
                    Some(next) => break next,
                    None => {
                        let woken = self.changed.wait(scheduler);
                        scheduler = woken.unwrap_or_else(PoisonError::into_inner);
                    }
                }
            };
            // The scheduler is free while the store works.
            drop(scheduler);
            let answer = agent.perform(std::slice::from_ref(&call));
            let report = match answer.ok().and_then(|mut answers| answers.pop()) {
                Some(PageAnswer::Report(report, _)) => Some(agent.gate().seal(report)),
                _ => None,
            };
            let mut scheduler = self.scheduler();
            match (ticket, report) {
                (Some(ticket), Some(report)) => scheduler.finish(ticket, report),
                // The store failed: nothing was charged, and the page gets its null report.
                (Some(ticket), _) => scheduler.fail(ticket),
                (None, _) => {}
            }
        }
        agent
    }

    /// The release thread, for one report. It looks at the time and at nothing else.
    fn release(&self) -> SealedReport {
        loop {
            let now = self.started.elapsed();
            let mut scheduler = self.scheduler();
            if let Some(report) = scheduler.release(now) {
                return report;
            }
            let due = scheduler.next_release();
            drop(scheduler);
            let wait = due.map_or(Duration::from_millis(10), |due| due.saturating_sub(now));
            thread::sleep(wait);
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::temp_dir().join(format!("bigbird-browser-{}", std::process::id()));

    // When the browser starts. A store that cannot be read is an error; it is never replaced
    // silently, because that would refund every budget.
    let store = SqliteStore::open_or_create(&path, &StoreOptions::default())?;
    // A browser ships `aggregation-services.toml`: `ConfiguredServices::parse` reads it. Nobody can
    // open the reports of this service, because nobody has its keys.
    let mut services = ConfiguredServices::new();
    services.insert(AggregationService::without_operator(SERVICE)?);
    let mut config = Config::new(Profile::BigBird);
    config.aggregation_services = services.protocols();
    let agent = UserAgent::new(config, store, SystemRandomness::new()?, now())?
        .sealing(DapSealer::new(services));
    let gate = agent.gate().clone();
    let browser = Arc::new(Browser::new(gate.config().pace));

    let worker = thread::spawn({
        let browser = Arc::clone(&browser);
        move || browser.work(agent, 2)
    });
    let releaser = thread::spawn({
        let browser = Arc::clone(&browser);
        move || browser.release()
    });

    // The user clicks a link to a news site, which shows an ad in a frame of an ad-tech company.
    // The browser numbers user actions; a number is never used for another action.
    let ad = Call {
        intermediary: Some("ads.example"),
        ..Call::new("www.news.example", now()).by(Action::numbered(1)?)
    };
    browser.save(&gate, &ad, &ImpressionOptions::new(3))?;

    // Later the user buys something, after another click.
    let purchase = Call::new("shop.example", now()).by(Action::numbered(2)?);
    let options = ConversionOptions {
        epsilon: 0.25,
        ..ConversionOptions::new(SERVICE, 5)
    };
    let called = browser.started.elapsed();
    browser.measure(&gate, &purchase, &options)?;

    let report = releaser.join().map_err(|_| "the release thread failed")?;
    let waited = browser.started.elapsed() - called;
    println!(
        "after {:.1} s the page gets an encrypted report of {} bytes",
        waited.as_secs_f64(),
        report.bytes.len()
    );
    let mut agent = worker.join().map_err(|_| "the worker thread failed")?;

    // While nobody waits: remove what no request can reach any more, slice by slice.
    while agent.is_upkeep_due(now()) && agent.upkeep(now())? {}

    // What a settings page may show.
    for filter in agent.filter_balances()? {
        let balance = filter.balance;
        println!(
            "epoch {}: {filter}: {} of {} ε consumed",
            filter.epoch, balance.consumed, balance.capacity
        );
    }

    // The user clears everything. Traces go, and nothing that was spent comes back.
    agent.clear_browsing_history(&[], true, now())?;
    let again = agent.measure_conversion(&purchase, &options)?;
    println!(
        "after clearing, a conversion reads {} epochs",
        again.decision.epochs().count()
    );

    // When the browser ends. If it crashes instead, nothing is lost either.
    agent.into_storage().close()?;
    std::fs::remove_file(&path)?;
    Ok(())
}
