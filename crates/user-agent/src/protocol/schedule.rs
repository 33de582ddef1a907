//! When calls are taken and answered: a function of when they arrive, and of nothing else.
//!
//! How long a conversion takes tells what is stored and spent, and so does everything that depends on
//! it: when its answer comes, when the next one's does, whether another is still taken (the draft's
//! section Side Channel Risks in Implementation). So:
//!
//! * Calls are taken in the order in which they arrive, so that filters are charged in that order.
//! * How many are taken is limited by counting arrivals within the last delay, of each top-level site
//!   and of all. Work that is not finished does not count, and nothing else does. So what waits fits
//!   into the delay, if a call takes no longer than the machine was configured for.
//! * A conversion is answered at its arrival plus the delay. One that is not ready by then is answered
//!   null, its work is finished and charged all the same, and the miss is counted: it means a machine
//!   that is slower than configured, and is what remains to be told by time.
//! * A conversion over a limit is answered null at its moment, an impression over a limit as any other,
//!   and nothing is read or written for them.
//!
//! [`Scheduler`] is that rule without a clock, a thread or a store: whoever has them says when a call
//! arrives, what was finished, and what time it is.

use std::collections::VecDeque;
use std::hash::RandomState;
use std::time::Duration;

use hashbrown::HashMap;

use crate::site::Site;

/// A moment on a clock that never steps, counted from whenever it began.
pub type Moment = Duration;

/// When conversions are answered, and how many calls are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// How long after its arrival a conversion is answered.
    pub delay: Duration,
    /// How many conversions are taken within one delay.
    pub conversions: Arrivals,
    /// How many impressions are saved within one delay, in [units](bigbird::Impression::units), as
    /// each name that one brings is work too.
    pub impressions: Arrivals,
}

/// How much is taken within one delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrivals {
    /// Of one top-level site.
    pub of_site: u32,
    /// Of all sites. More than 25 times that of one, so that 25 sites which call as often as they can
    /// keep nobody else from being measured.
    pub of_all: u32,
}

impl Default for Pace {
    /// Two seconds, in which what is taken is done even if every conversion is the largest possible, in
    /// epochs of a week: `cargo bench -p bigbird-store --bench flood` measures it. With shorter epochs
    /// a conversion reads more of them.
    fn default() -> Self {
        Self {
            delay: Duration::from_secs(2),
            conversions: Arrivals {
                of_site: 4,
                of_all: 104,
            },
            impressions: Arrivals {
                of_site: 128,
                of_all: 4096,
            },
        }
    }
}

/// Counts what was taken within the last delay.
#[derive(Debug)]
struct Window {
    limits: Arrivals,
    /// When, of whom, and how much.
    taken: VecDeque<(Moment, Site, u32)>,
    of_all: u32,
    /// Names are chosen by pages, so they are hashed with a key that pages do not know.
    of_site: HashMap<Site, u32, RandomState>,
}

impl Window {
    fn new(limits: Arrivals) -> Self {
        Self {
            limits,
            taken: VecDeque::new(),
            of_all: 0,
            of_site: HashMap::with_hasher(RandomState::new()),
        }
    }

    /// Whether a call of some weight that arrives now is taken. One that is not does not count: else a
    /// flood from one site would use up what all sites have.
    fn take(&mut self, now: Moment, delay: Duration, site: &Site, weight: u32) -> bool {
        while self
            .taken
            .front()
            .is_some_and(|(at, ..)| *at + delay <= now)
            && let Some((_, past, weight)) = self.taken.pop_front()
        {
            self.of_all -= weight;
            if let Some(count) = self.of_site.get_mut(&past) {
                *count -= weight;
                if *count == 0 {
                    self.of_site.remove(&past);
                }
            }
        }
        let of_site = self.of_site.get(site).copied().unwrap_or_default();
        let fits = |before: u32, limit: u32| before <= limit && weight <= limit - before;
        if !fits(of_site, self.limits.of_site) || !fits(self.of_all, self.limits.of_all) {
            return false;
        }
        self.of_all += weight;
        *self.of_site.entry(site.clone()).or_default() += weight;
        self.taken.push_back((now, site.clone(), weight));
        true
    }
}

/// Calls between their arrival and their answer. `W` is what is to be done for one, `A` its answer.
#[derive(Debug)]
pub struct Scheduler<W, A> {
    pace: Pace,
    conversions: Window,
    impressions: Window,
    /// What is to be done, in the order of arrival.
    waiting: VecDeque<(Option<Ticket>, W)>,
    /// Conversions that are not answered, in the order of arrival: all wait for as long.
    unanswered: VecDeque<Unanswered<A>>,
    /// The ticket of the first of them.
    first: u64,
    missed: u64,
}

/// A conversion that is to be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket(u64);

#[derive(Debug)]
struct Unanswered<A> {
    due: Moment,
    /// What is answered if nothing else is ready.
    null: A,
    ready: Option<A>,
    /// Whether it was taken, and could be done.
    taken: bool,
}

impl<W, A> Scheduler<W, A> {
    /// One that has nothing to do.
    pub fn new(pace: Pace) -> Self {
        Self {
            pace,
            conversions: Window::new(pace.conversions),
            impressions: Window::new(pace.impressions),
            waiting: VecDeque::new(),
            unanswered: VecDeque::new(),
            first: 0,
            missed: 0,
        }
    }

    /// A conversion of a top-level site arrives. It will be answered after the delay, with `null` if
    /// it is not taken or not ready by then. Says whether it was taken.
    pub fn conversion(&mut self, now: Moment, site: &Site, work: W, null: A) -> bool {
        let taken = self.conversions.take(now, self.pace.delay, site, 1);
        if taken {
            let ticket = Ticket(self.first + self.unanswered.len() as u64);
            self.waiting.push_back((Some(ticket), work));
        }
        self.unanswered.push_back(Unanswered {
            due: now + self.pace.delay,
            null,
            ready: None,
            taken,
        });
        taken
    }

    /// An impression of a top-level site and of some units arrives, which was answered already. Says
    /// whether it was taken.
    pub fn impression(&mut self, now: Moment, site: &Site, units: u32, work: W) -> bool {
        let taken = self.impressions.take(now, self.pace.delay, site, units);
        if taken {
            self.waiting.push_back((None, work));
        }
        taken
    }

    /// A call of the user's own arrives. It is always taken, and answered when it is done.
    pub fn own(&mut self, work: W) {
        self.waiting.push_back((None, work));
    }

    /// What is to be done next.
    pub fn next(&self) -> Option<&W> {
        self.waiting.front().map(|(_, work)| work)
    }

    /// Takes what is to be done next, to be done now. A conversion has a ticket.
    pub fn begin(&mut self) -> Option<(Option<Ticket>, W)> {
        self.waiting.pop_front()
    }

    /// A conversion is done. If it was answered already, this changes nothing.
    pub fn finish(&mut self, ticket: Ticket, answer: A) {
        if let Some(unanswered) = self.unanswered(ticket) {
            unanswered.ready = Some(answer);
        }
    }

    /// A conversion could not be done: it is answered null at its moment.
    pub fn fail(&mut self, ticket: Ticket) {
        if let Some(unanswered) = self.unanswered(ticket) {
            unanswered.taken = false;
        }
    }

    fn unanswered(&mut self, Ticket(number): Ticket) -> Option<&mut Unanswered<A>> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.unanswered.get_mut(at)
    }

    /// Whether every conversion was answered.
    pub fn all_answered(&self) -> bool {
        self.unanswered.is_empty()
    }

    /// When the next conversion is answered.
    pub fn next_release(&self) -> Option<Moment> {
        self.unanswered.front().map(|next| next.due)
    }

    /// The next answer whose moment has come.
    pub fn release(&mut self, now: Moment) -> Option<A> {
        self.unanswered.front().filter(|next| next.due <= now)?;
        let next = self.unanswered.pop_front()?;
        self.first += 1;
        if next.taken && next.ready.is_none() {
            self.missed += 1;
        }
        Some(next.ready.unwrap_or(next.null))
    }

    /// How many conversions were taken and not ready at their moment.
    pub fn missed(&self) -> u64 {
        self.missed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::Localhost;

    fn site(name: &str) -> Site {
        Site::parse(name, Localhost::Refused).unwrap()
    }

    fn ms(ms: u64) -> Moment {
        Duration::from_millis(ms)
    }

    fn scheduler() -> Scheduler<u32, &'static str> {
        Scheduler::new(Pace {
            delay: ms(100),
            conversions: Arrivals {
                of_site: 2,
                of_all: 3,
            },
            impressions: Arrivals {
                of_site: 1,
                of_all: 2,
            },
        })
    }

    #[test]
    fn a_conversion_is_answered_after_the_delay_and_never_before_or_later() {
        let mut scheduler = scheduler();
        assert!(scheduler.conversion(ms(5), &site("a.example"), 1, "null"));
        assert!(scheduler.conversion(ms(6), &site("a.example"), 2, "null"));
        assert_eq!(scheduler.next_release(), Some(ms(105)));
        let (first, work) = scheduler.begin().unwrap();
        assert_eq!(work, 1);
        scheduler.finish(first.unwrap(), "one");
        assert_eq!(scheduler.release(ms(104)), None);
        assert_eq!(scheduler.release(ms(105)), Some("one"));
        // The second is not ready: it is answered null all the same, and done afterwards.
        assert_eq!(scheduler.release(ms(106)), Some("null"));
        assert_eq!(scheduler.missed(), 1);
        let (second, work) = scheduler.begin().unwrap();
        assert_eq!(work, 2);
        scheduler.finish(second.unwrap(), "two");
        assert_eq!((scheduler.release(ms(999)), scheduler.missed()), (None, 1));
    }

    #[test]
    fn limits_count_arrivals_whether_or_not_they_are_done() {
        let mut scheduler = scheduler();
        let [a, b, c] = ["a.example", "b.example", "c.example"].map(site);
        let mut arrive = |now, site: &Site| scheduler.conversion(ms(now), site, 0, "null");
        assert!(arrive(0, &a) && arrive(0, &a));
        // Its own limit; and what is over it takes nothing from others.
        assert!(!arrive(10, &a) && !arrive(10, &a) && arrive(10, &b));
        // The limit of all.
        assert!(!arrive(20, &c));
        // Within the last delay: those of moment 0 count until 100.
        assert!(!arrive(99, &c) && arrive(100, &c) && arrive(100, &a));
        while let Some((ticket, _)) = scheduler.begin() {
            scheduler.finish(ticket.unwrap(), "done");
        }
        assert!(!scheduler.conversion(ms(109), &b, 0, "null"), "done or not");
        // Each is answered at its moment, whether it was taken or not.
        let answers: Vec<_> = std::iter::from_fn(|| scheduler.release(ms(210))).collect();
        let expected = [
            "done", "done", "null", "null", "done", "null", "null", "done", "done", "null",
        ];
        assert_eq!(answers, expected);
        assert_eq!(scheduler.missed(), 0);
    }

    #[test]
    fn calls_are_taken_in_the_order_of_arrival_saves_and_the_users_own_included() {
        let mut scheduler = scheduler();
        let [a, b] = ["a.example", "b.example"].map(site);
        assert!(scheduler.impression(ms(0), &a, 1, 1));
        assert!(scheduler.conversion(ms(1), &b, 2, "null"));
        scheduler.own(3);
        assert!(!scheduler.impression(ms(2), &a, 1, 4));
        // It brings more names than there is room for.
        assert!(!scheduler.impression(ms(2), &b, 2, 4));
        assert!(scheduler.impression(ms(2), &b, 1, 5));
        let order: Vec<u32> = std::iter::from_fn(|| Some(scheduler.begin()?.1)).collect();
        assert_eq!(order, [1, 2, 3, 5]);
    }
}
