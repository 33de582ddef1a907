//! Timing reveals nothing: the time of an answer, the order in which calls are charged, and the
//! calls that are carried out depend on the arriving calls alone.
//!
//! Two worlds differ in what one epoch holds or has spent, or in the state of the device: one is
//! cleared, disabled, full or failing. The same calls of several sites arrive in both at the same
//! virtual times. A model derives the duration of each call from what it reads. Every answer must
//! be released at the same time and have the same size. Calls must be charged in the same order.
//! Outside the epoch that differs, every answer and every filter must be the same. Flawed hosts
//! must be caught.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use bigbird::{FilterKind, Profile, ReadLimits, Timestamp};
use bigbird_user_agent::protocol::{Arrivals, ConversionArrival, Moment, Pace, Scheduler, Ticket};
use bigbird_user_agent::{
    Action, Call, Config, ConversionOptions, ImpressionOptions, PageAnswer, PageCall, UserAgent,
};
use common::{FixedRandomness, MemoryAgent, SERVICE};

const DAY: i64 = 86_400_000;
/// The wall-clock time of all calls, in epoch 3. Epochs last a week, and epoch 0 begins at time 0.
const NOW: i64 = 22 * DAY;
/// The epoch that differs.
const CHANGED: i64 = 2;
/// An epoch that does not differ.
const OTHER: i64 = 1;

const DELAY: Duration = Duration::from_millis(100);
/// The number of relevant impressions that a query reads in an epoch.
const RELEVANT: u32 = 20;
/// The time that a call takes for each relevant impression.
const ROW: Duration = Duration::from_micros(20);
/// The time that every call takes.
const CALL: Duration = Duration::from_micros(200);
const CONVERSIONS: Arrivals = Arrivals {
    of_site: 12,
    of_all: 60,
};

/// A mistake of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HostFlaw {
    /// Conversions are limited by the number of unfinished calls, not by arrivals.
    LimitsCountUnfinishedWork,
    /// Several calls run at once, and each is charged when it is ready.
    ChargedWhenReady,
    /// A late answer is released when it is ready.
    LaterMultiples,
    /// The answer to an impression waits until the calls before it are done.
    AnswersInOrder,
    /// A query reads every relevant impression.
    UnboundedRows,
}

/// The difference between the second world and the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Difference {
    /// The changed epoch holds nothing.
    Empty,
    /// The sites have spent their budgets of the changed epoch.
    Exhausted,
    /// The user cleared everything.
    Cleared,
    /// The user disabled the API.
    Disabled,
    /// The current epoch holds as many impressions as its limit allows.
    Full,
    /// The store fails.
    Failing,
}

/// A call that arrives.
#[derive(Debug, Clone)]
struct Arrival {
    at: Moment,
    site: usize,
    what: What,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Save,
    /// A conversion that looks back over this many days.
    Measure(u64),
}

impl Arrival {
    fn call(&self, agent: &MemoryAgent, number: u64) -> PageCall {
        let host = format!("site-{}.example", self.site);
        let action = Action::numbered(1_000_000 + number).unwrap();
        let call = Call::new(&host, Timestamp(NOW)).by(action);
        match self.what {
            What::Save => {
                let options = ImpressionOptions::new(3);
                PageCall::Save(agent.gate().impression(&call, &options).unwrap())
            }
            What::Measure(days) => {
                let options = ConversionOptions {
                    epsilon: 0.01,
                    lookback_days: Some(days),
                    ..ConversionOptions::new(SERVICE, 5)
                };
                PageCall::Measure(agent.gate().conversion(&call, &options).unwrap())
            }
        }
    }
}

/// A stream of pseudorandom numbers.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % limit
    }
}

/// Calls of six sites, one of which makes many more than the others.
fn load(seed: u64) -> Vec<Arrival> {
    let mut numbers = Numbers(seed);
    let mut at = Duration::ZERO;
    (0..150)
        .map(|_| {
            at += Duration::from_micros(match numbers.below(4) {
                0 => 8_000,
                _ => numbers.below(900),
            });
            let what = match numbers.below(4) {
                0 => What::Save,
                1 => What::Measure(30),
                2 => What::Measure(14),
                // Reads only the current epoch.
                _ => What::Measure(1),
            };
            let site = usize::try_from(numbers.below(9).saturating_sub(3)).unwrap();
            Arrival { at, site, what }
        })
        .collect()
}

/// A device with many impressions in two epochs. One of the two epochs differs.
fn device(difference: Option<Difference>, flaw: Option<HostFlaw>) -> MemoryAgent {
    let mut config = Config::new(Profile::BigBird)
        .with_service(SERVICE)
        .for_testing()
        .starting_before(Timestamp(0), 0.0);
    let policy = config
        .policy
        .to_builder()
        .unlimited(FilterKind::ImpressionSiteQuota);
    config.policy = policy
        .global_budget(8.0)
        .querier_budget(1.0)
        .build()
        .unwrap();
    config.pace = pace();
    config.store_limits.units_per_epoch = 400.try_into().unwrap();
    config.read_limits = match flaw {
        Some(HostFlaw::UnboundedRows) => ReadLimits {
            relevant: u32::MAX,
            examined: u32::MAX,
        },
        _ => ReadLimits {
            relevant: RELEVANT,
            examined: 2 * RELEVANT,
        },
    };
    let mut agent = UserAgent::in_memory(config, FixedRandomness);
    let mut save = |epoch: i64, count: u64| {
        for number in 0..count {
            let at = Timestamp(epoch * 7 * DAY + DAY);
            let number = u64::try_from(epoch).unwrap() * 1000 + number;
            let site = format!("news-{}.example", number % 7);
            let call = Call::new(&site, at).by(Action::numbered(number).unwrap());
            let options = ImpressionOptions::new(u32::try_from(number % 5).unwrap());
            agent.save_impression(&call, &options).unwrap();
        }
    };
    save(OTHER, 60);
    if difference != Some(Difference::Empty) {
        save(CHANGED, 300);
    }
    if difference == Some(Difference::Full) {
        save(NOW / (7 * DAY), 400);
    }
    // In every world, each site measures once in the changed epoch. In the exhausted world it
    // spends its whole budget there.
    for site in 0..6 {
        let host = format!("site-{site}.example");
        let epsilon = match difference {
            Some(Difference::Exhausted) => 1.0,
            _ => 0.000_001,
        };
        let call = Call::new(&host, Timestamp(CHANGED * 7 * DAY + 2 * DAY));
        let call = call.by(Action::numbered(500_000 + site).unwrap());
        let options = ConversionOptions {
            epsilon,
            lookback_days: Some(1),
            ..ConversionOptions::new(SERVICE, 5)
        };
        let _ = agent.measure_conversion(&call, &options).unwrap();
    }
    match difference {
        Some(Difference::Cleared) => {
            let moment = Timestamp(NOW - 8 * DAY);
            agent.clear_browsing_history(&[], true, moment).unwrap();
        }
        Some(Difference::Disabled) => {
            let Ok(()) = agent.set_enabled(false);
        }
        _ => {}
    }
    agent
}

fn pace() -> Pace {
    Pace {
        delay: DELAY,
        conversions: CONVERSIONS,
        // Some calls of the busiest site are rejected.
        sealing_of_site: 14,
        impressions: Arrivals {
            of_site: 20,
            of_all: 60,
        },
    }
}

/// The parts of a world that must not depend on the difference.
#[derive(Debug, Default, PartialEq)]
struct SeenWorld {
    /// The time of each answer, the number of its call, and the number of its buckets.
    releases: Vec<(Moment, usize, usize)>,
    /// The calls that were carried out, in order.
    made: Vec<usize>,
    /// The histograms of calls that could not read the changed epoch.
    answers: BTreeMap<usize, Vec<u32>>,
    /// The amounts that filters outside the changed epoch have consumed at the end.
    ledger: Vec<(i64, String, u64)>,
    missed: u64,
}

/// A call in progress: the time at which it will be done, and its answer.
struct Making {
    done: Moment,
    number: usize,
    ticket: Option<Ticket>,
    answer: Option<Vec<u32>>,
}

/// A host like `protocol::serve`, in virtual time.
struct Host {
    agent: MemoryAgent,
    flaw: Option<HostFlaw>,
    failing: bool,
    /// The factor by which calls take longer than the machine was configured for.
    slowness: u32,
    scheduler: Scheduler<usize, (usize, Vec<u32>)>,
    /// The calls in progress: at most one, unless the host is flawed.
    making: Vec<Making>,
    unfinished: u32,
    /// The time of the previous answer to an impression, for [`HostFlaw::AnswersInOrder`].
    last: Moment,
    seen: SeenWorld,
}

impl Host {
    fn new(difference: Option<Difference>, flaw: Option<HostFlaw>, slowness: u32) -> Self {
        let mut pace = pace();
        if flaw == Some(HostFlaw::LimitsCountUnfinishedWork) {
            pace.conversions = Arrivals {
                of_site: u32::MAX,
                of_all: u32::MAX,
            };
        }
        Self {
            agent: device(difference, flaw),
            flaw,
            failing: difference == Some(Difference::Failing),
            slowness,
            scheduler: Scheduler::new(pace),
            making: Vec::new(),
            unfinished: 0,
            last: Duration::ZERO,
            seen: SeenWorld::default(),
        }
    }

    fn live(mut self, arrivals: &[Arrival]) -> SeenWorld {
        let calls = (0..).zip(arrivals);
        let calls: Vec<PageCall> = calls.map(|(at, it)| it.call(&self.agent, at)).collect();
        let mut next = 0;
        loop {
            let arrival = arrivals.get(next).map(|arrival| arrival.at);
            let done = self.making.iter().map(|making| making.done).min();
            let release = self.scheduler.next_release();
            let Some(now) = [done, release, arrival].into_iter().flatten().min() else {
                break;
            };
            // An answer that is ready exactly at its moment is in time, so work is finished first.
            if done == Some(now) {
                self.finish(now, arrivals, &calls);
            } else if release == Some(now) {
                if let Some((number, answer)) = self.scheduler.release(now) {
                    self.release(now, number, answer);
                }
            } else {
                self.arrive(now, next, &arrivals[next], &calls[next]);
                next += 1;
            }
            self.begin(now, &calls);
        }
        self.seen.missed = self.scheduler.missed();
        for budget in self.agent.filter_balances().unwrap() {
            if budget.epoch != CHANGED {
                let name = budget.to_string();
                let consumed = budget.balance.consumed.get();
                self.seen.ledger.push((budget.epoch, name, consumed));
            }
        }
        self.seen.releases.sort();
        self.seen
    }

    fn arrive(&mut self, now: Moment, number: usize, arrival: &Arrival, call: &PageCall) {
        match arrival.what {
            What::Save => {
                if self.scheduler.impression(now, call.site(), 1, number) {
                    self.unfinished += 1;
                }
                // A page gets its answer at once, unless answers wait for the calls before them.
                if self.flaw != Some(HostFlaw::AnswersInOrder) {
                    self.seen.releases.push((now, number, 0));
                }
            }
            What::Measure(_) => {
                let limited = self.flaw == Some(HostFlaw::LimitsCountUnfinishedWork);
                if limited && self.unfinished >= CONVERSIONS.of_all / 15 {
                    self.seen.releases.push((now + DELAY, number, 5));
                } else {
                    let null = (number, vec![0; 5]);
                    match self.scheduler.conversion(now, call.site(), 1, number, null) {
                        ConversionArrival::Taken(_) => self.unfinished += 1,
                        ConversionArrival::Null(_) => {}
                        // An error, at once.
                        ConversionArrival::Rejected => self.seen.releases.push((now, number, 0)),
                    }
                }
            }
        }
    }

    /// Begins the next calls.
    fn begin(&mut self, now: Moment, calls: &[PageCall]) {
        let ready = self.flaw == Some(HostFlaw::ChargedWhenReady);
        while self.making.len() < if ready { 4 } else { 1 }
            && let Some((ticket, number)) = self.scheduler.begin()
        {
            let mut making = Making {
                done: now,
                number,
                ticket,
                answer: None,
            };
            if ready {
                // The call is charged later, so its duration comes from what is stored now.
                making.done += self.cost_of(number);
            } else {
                let cost = self.make(&mut making, &calls[number]);
                making.done += cost * self.slowness;
            }
            self.making.push(making);
        }
    }

    /// Makes a call and returns its duration.
    fn make(&mut self, making: &mut Making, call: &PageCall) -> Duration {
        self.seen.made.push(making.number);
        if self.failing {
            return CALL;
        }
        let Ok(mut answers) = self.agent.perform(std::slice::from_ref(call));
        match answers.pop() {
            Some(PageAnswer::Report(report, decision)) => {
                let rows: usize = decision.epochs().map(|epoch| epoch.matched).sum();
                let sealed = self.agent.gate().seal(report);
                making.answer = Some(sealed.histogram.unwrap().buckets().to_vec());
                CALL + ROW * u32::try_from(rows).unwrap()
            }
            _ => CALL,
        }
    }

    /// The duration of a call, from the number of impressions stored in the changed epoch.
    fn cost_of(&mut self, number: usize) -> Duration {
        let stored = self.agent.storage().impressions();
        let rows = stored.impressions(bigbird::EpochIndex(CHANGED)).count();
        // Only calls with even numbers count as reading that epoch.
        let read = if number.is_multiple_of(2) { rows } else { 0 };
        CALL + ROW * u32::try_from(read).unwrap()
    }

    fn finish(&mut self, now: Moment, arrivals: &[Arrival], calls: &[PageCall]) {
        let at = self.making.iter().position(|making| making.done == now);
        let mut making = self.making.remove(at.unwrap());
        if self.flaw == Some(HostFlaw::ChargedWhenReady) {
            let call = &calls[making.number];
            self.make(&mut making, call);
        }
        self.unfinished -= 1;
        match (making.ticket, making.answer) {
            (Some(ticket), Some(answer)) => {
                let late = now.saturating_sub(arrivals[making.number].at) > DELAY;
                if self.flaw == Some(HostFlaw::LaterMultiples) && late {
                    self.seen.releases.push((now, making.number, 5));
                }
                self.scheduler.finish(ticket, (making.number, answer));
            }
            (Some(ticket), None) => self.scheduler.fail(ticket),
            (None, _) if self.flaw == Some(HostFlaw::AnswersInOrder) => {
                self.last = self.last.max(now);
                self.seen.releases.push((self.last, making.number, 0));
            }
            (None, _) => {}
        }
    }

    fn release(&mut self, now: Moment, number: usize, answer: Vec<u32>) {
        self.seen.releases.push((now, number, answer.len()));
        self.seen.answers.insert(number, answer);
    }
}

/// The parts of a world that must not depend on the difference. What calls learn by reading the
/// changed epoch is left out.
fn seen(
    load: &[Arrival],
    difference: Option<Difference>,
    flaw: Option<HostFlaw>,
    slowness: u32,
) -> SeenWorld {
    let mut seen = Host::new(difference, flaw, slowness).live(load);
    if slowness > 1 {
        // A machine that is slower than configured still reveals which conversions were missed, so
        // this is not compared.
        seen.missed = 0;
        seen.answers.clear();
    }
    // A conversion that looks back one day reads only the current epoch.
    seen.answers
        .retain(|number, _| load[*number].what == What::Measure(1));
    if !matches!(
        difference,
        None | Some(Difference::Empty | Difference::Exhausted)
    ) {
        seen.answers.clear();
        seen.ledger.clear();
    }
    seen
}

/// Compares the same calls in a world with the difference and in a world without it.
fn compare(
    seed: u64,
    difference: Difference,
    flaw: Option<HostFlaw>,
    slowness: u32,
) -> Result<(), String> {
    let load = load(seed);
    let other = seen(&load, Some(difference), flaw, slowness);
    let mut one = seen(&load, None, flaw, slowness);
    if other.answers.is_empty() {
        one.answers.clear();
    }
    if other.ledger.is_empty() {
        one.ledger.clear();
    }
    if one == other {
        return Ok(());
    }
    Err(format!("{difference:?}, load {seed}:\n{one:?}\n{other:?}"))
}

const DIFFERENCES: [Difference; 6] = [
    Difference::Empty,
    Difference::Exhausted,
    Difference::Cleared,
    Difference::Disabled,
    Difference::Full,
    Difference::Failing,
];

#[test]
fn no_difference_shows_in_time_order_or_size() {
    for difference in DIFFERENCES {
        for (seed, slowness) in (0..60).zip([1, 1, 30].into_iter().cycle()) {
            if let Err(told) = compare(seed, difference, None, slowness) {
                panic!("{told}");
            }
        }
    }
}

/// The loads reach the limits, work waits, and nothing is missed. Otherwise the comparison would be
/// vacuous. On a machine that is 30 times slower, conversions are missed.
#[test]
fn the_loads_are_heavy_and_fit() {
    let (mut refused, mut read) = (0, 0);
    for seed in 0..60 {
        let load = load(seed);
        let seen = Host::new(None, None, 1).live(&load);
        assert_eq!(seen.missed, 0, "load {seed}");
        let slow = Host::new(None, None, 30).live(&load);
        assert!(slow.missed > 0, "load {seed}");
        refused += load.len() - seen.made.len();
        let charged = seen.ledger.iter().filter(|(epoch, ..)| *epoch == OTHER);
        read += charged.count();
    }
    assert!(refused > 60 && read > 60, "{refused} refused, {read} read");
}

#[test]
fn hosts_that_get_it_wrong_are_caught() {
    for flaw in [
        HostFlaw::LimitsCountUnfinishedWork,
        HostFlaw::ChargedWhenReady,
        HostFlaw::LaterMultiples,
        HostFlaw::AnswersInOrder,
        HostFlaw::UnboundedRows,
    ] {
        // Only late answers show this flaw, so calls must take longer.
        let slowness = if flaw == HostFlaw::LaterMultiples {
            30
        } else {
            1
        };
        let differs = |seed| compare(seed, Difference::Empty, Some(flaw), slowness).is_err();
        assert!((0..60).any(differs), "{flaw:?} was not caught");
    }
}
