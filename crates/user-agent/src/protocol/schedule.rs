//! The scheduler: it decides when calls are taken and answered, from when they arrive and nothing
//! more.
//!
//! The time that a conversion takes shows what is stored and spent. So does everything that depends
//! on it: when its answer comes, when the next answer comes, and whether another call is still
//! taken (the draft's section Side Channel Risks in Implementation). Therefore:
//!
//! * Calls are taken in the order in which they arrive, so that filters are charged in that order.
//! * The number of calls that are taken is limited by counting arrivals within the last delay, of
//!   each top-level site and of all sites. Nothing more is counted, not even unfinished work. So
//!   what waits fits into the delay, if a call takes no longer than the machine was configured for.
//! * A conversion is answered at its arrival plus the delay. If it is not ready by then, it is
//!   answered null. Its work is finished and charged anyway, and the miss is counted. A miss means
//!   that the machine is slower than configured. Misses are all that time can still show.
//! * A conversion over a limit is answered null at its moment, and an impression over a limit is
//!   answered like any other. Nothing is read or written for them.
//! * A null report must be sealed like any other, and that is work too. So the sealing that one
//!   site can cause is limited as well, and calls beyond that are rejected at once. There is no
//!   such limit for all sites together: one site would notice that others called.
//!
//! * A call from a private window does nothing. It has a limit of its own on sealing, so that it
//!   never changes what becomes of another call.
//!
//! [`Scheduler`] implements these rules without a clock, a thread or a store. Its owner says when a
//! call arrives, what was finished, and what time it is.

use std::collections::VecDeque;
use std::hash::RandomState;
use std::time::Duration;

use hashbrown::HashMap;

use crate::site::Site;

/// A moment on a clock that never steps, counted from any fixed start.
pub type Moment = Duration;

/// The delay of answers to conversions, and the limits on arrivals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// The time between the arrival of a conversion and its answer.
    pub delay: Duration,
    /// The limits on the conversions that are taken within one delay.
    pub conversions: Arrivals,
    /// The limit on the reports of one top-level site that are sealed within one delay, whether or
    /// not its conversions are taken. It counts [units](crate::ConversionCall::sealing_units).
    /// Calls over this limit are rejected. It depends on the calls of that site alone, so it tells
    /// the site nothing. At least one report of the largest size should fit.
    pub sealing_of_site: u32,
    /// The limits on the impressions that are saved within one delay. They count
    /// [units](bigbird::Impression::units), because each name that an impression brings is work
    /// too.
    pub impressions: Arrivals,
}

/// The most that is taken within one delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrivals {
    /// From one top-level site.
    pub of_site: u32,
    /// From all sites. Choose more than 25 times the limit of one site, so that 25 sites that call
    /// as often as they can do not keep any other site from being measured.
    pub of_all: u32,
}

impl Default for Pace {
    /// A delay of two seconds. With epochs of a week, all calls that are taken are done within it,
    /// even if every conversion is the largest possible. With shorter epochs, a conversion reads
    /// more of them. The benchmark `flood` of `bigbird-store` measures this.
    fn default() -> Self {
        Self {
            delay: Duration::from_secs(2),
            conversions: Arrivals {
                of_site: 4,
                of_all: 104,
            },
            // One report of 1,024 buckets and 32 bits, four of 8 bits, or fifty small ones. Sealing
            // them takes some 17 ms, so 25 sites that do so leave time for others.
            sealing_of_site: 36_000,
            impressions: Arrivals {
                of_site: 128,
                of_all: 4096,
            },
        }
    }
}

/// Counts what was taken within the last delay.
#[derive(Debug)]
struct ArrivalWindow {
    limits: Arrivals,
    /// The moment, the site and the weight of each call.
    taken: VecDeque<(Moment, Site, u32)>,
    of_all: u32,
    /// Hashed with a key that pages do not know, because pages choose the names.
    of_site: HashMap<Site, u32, RandomState>,
}

impl ArrivalWindow {
    fn new(limits: Arrivals) -> Self {
        Self {
            limits,
            taken: VecDeque::new(),
            of_all: 0,
            of_site: HashMap::with_hasher(RandomState::new()),
        }
    }

    /// Takes a call of some weight that arrives now, if the limits allow. Returns true if it is
    /// taken. A call that is not taken does not count: otherwise a flood from one site would use up
    /// the limit of all sites.
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

/// The calls between their arrival and their answer. `W` is the work of a call, and `A` its answer.
#[derive(Debug)]
pub struct Scheduler<W, A> {
    pace: Pace,
    conversions: ArrivalWindow,
    sealing: ArrivalWindow,
    /// The sealing of reports for private windows.
    private_sealing: ArrivalWindow,
    impressions: ArrivalWindow,
    over_limit: u64,
    /// The work to do, in the order of arrival.
    waiting: VecDeque<(Option<Ticket>, W)>,
    /// Conversions that are not answered yet, in the order of arrival. All of them wait equally
    /// long.
    unanswered: VecDeque<PendingConversion<A>>,
    /// The number of the ticket of the first unanswered conversion.
    first: u64,
    missed: u64,
}

/// A conversion that waits for its answer. Tickets are ordered by when they are due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

/// What becomes of a conversion that arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConversionArrival {
    /// It is taken.
    Taken(Ticket),
    /// It is over a limit, and is answered null at its moment.
    Null(Ticket),
    /// Its site asked for too many reports. It is not answered with a report.
    Rejected,
}

impl ConversionArrival {
    /// True if the conversion is taken.
    pub const fn is_taken(self) -> bool {
        matches!(self, Self::Taken(_))
    }
}

#[derive(Debug)]
struct PendingConversion<A> {
    due: Moment,
    /// The answer if `ready` is empty.
    null: A,
    ready: Option<A>,
    /// True if it was taken and did not fail.
    taken: bool,
}

impl<W, A> Scheduler<W, A> {
    /// A scheduler without calls.
    pub fn new(pace: Pace) -> Self {
        let sealing = Arrivals {
            of_site: pace.sealing_of_site,
            of_all: u32::MAX,
        };
        Self {
            pace,
            conversions: ArrivalWindow::new(pace.conversions),
            sealing: ArrivalWindow::new(sealing),
            private_sealing: ArrivalWindow::new(sealing),
            over_limit: 0,
            impressions: ArrivalWindow::new(pace.impressions),
            waiting: VecDeque::new(),
            unanswered: VecDeque::new(),
            first: 0,
            missed: 0,
        }
    }

    /// Adds a conversion that arrives now, of a top-level site. Unless it is rejected, it will be
    /// answered after the delay, with `null` if it is not taken or not ready by then. Sealing its
    /// report costs some [units](crate::ConversionCall::sealing_units).
    pub fn conversion(
        &mut self,
        now: Moment,
        site: &Site,
        sealing: u32,
        work: W,
        null: A,
    ) -> ConversionArrival {
        if !self.sealing.take(now, self.pace.delay, site, sealing) {
            self.over_limit += 1;
            return ConversionArrival::Rejected;
        }
        let taken = self.conversions.take(now, self.pace.delay, site, 1);
        let ticket = self.wait(now, null, taken);
        if taken {
            self.waiting.push_back((Some(ticket), work));
            return ConversionArrival::Taken(ticket);
        }
        self.over_limit += 1;
        ConversionArrival::Null(ticket)
    }

    /// Adds a conversion from a private window that arrives now, of a top-level site. Unless it is
    /// rejected, it will be answered with `null` after the delay. It changes nothing for calls that
    /// are not private: it counts against a limit of its own.
    pub fn private_conversion(
        &mut self,
        now: Moment,
        site: &Site,
        sealing: u32,
        null: A,
    ) -> ConversionArrival {
        let delay = self.pace.delay;
        match self.private_sealing.take(now, delay, site, sealing) {
            true => ConversionArrival::Null(self.wait(now, null, false)),
            false => ConversionArrival::Rejected,
        }
    }

    fn wait(&mut self, now: Moment, null: A, taken: bool) -> Ticket {
        let ticket = Ticket(self.first + self.unanswered.len() as u64);
        self.unanswered.push_back(PendingConversion {
            due: now + self.pace.delay,
            null,
            ready: None,
            taken,
        });
        ticket
    }

    /// Adds an impression that arrives now, of a top-level site and of some units. It was answered
    /// already. Returns true if it was taken.
    pub fn impression(&mut self, now: Moment, site: &Site, units: u32, work: W) -> bool {
        let taken = self.impressions.take(now, self.pace.delay, site, units);
        match taken {
            true => self.waiting.push_back((None, work)),
            false => self.over_limit += 1,
        }
        taken
    }

    /// Adds a request of the user. It is always taken, and answered when it is done.
    pub fn own(&mut self, work: W) {
        self.waiting.push_back((None, work));
    }

    /// The next work to do.
    pub fn next(&self) -> Option<&W> {
        self.waiting.front().map(|(_, work)| work)
    }

    /// Removes and returns the next work, which must be done now. A conversion has a ticket.
    pub fn begin(&mut self) -> Option<(Option<Ticket>, W)> {
        self.waiting.pop_front()
    }

    /// Sets the answer of a conversion that is done, or that was not taken. If it was answered
    /// already, this changes nothing.
    pub fn finish(&mut self, ticket: Ticket, answer: A) {
        if let Some(unanswered) = self.unanswered(ticket) {
            unanswered.ready = Some(answer);
        }
    }

    /// Replaces the answer that a conversion gets if it is not ready. If it was answered already,
    /// this changes nothing.
    pub fn set_null(&mut self, ticket: Ticket, null: A) {
        if let Some(unanswered) = self.unanswered(ticket) {
            unanswered.null = null;
        }
    }

    /// True if a conversion was not answered yet.
    pub fn is_unanswered(&self, Ticket(number): Ticket) -> bool {
        number >= self.first
    }

    /// The first conversion that is not ready and whose null answer is `unprepared`, with the
    /// moment when it is due.
    pub fn first_unprepared(
        &self,
        unprepared: impl Fn(&A) -> bool,
    ) -> Option<(Ticket, Moment, &A)> {
        (self.first..)
            .zip(&self.unanswered)
            .find(|(_, it)| it.ready.is_none() && unprepared(&it.null))
            .map(|(number, it)| (Ticket(number), it.due, &it.null))
    }

    /// Notes that a conversion failed. It is answered null at its moment.
    pub fn fail(&mut self, ticket: Ticket) {
        if let Some(unanswered) = self.unanswered(ticket) {
            unanswered.taken = false;
        }
    }

    fn unanswered(&mut self, Ticket(number): Ticket) -> Option<&mut PendingConversion<A>> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.unanswered.get_mut(at)
    }

    /// True if every conversion was answered.
    pub fn all_answered(&self) -> bool {
        self.unanswered.is_empty()
    }

    /// The moment when the next conversion is answered.
    pub fn next_release(&self) -> Option<Moment> {
        self.unanswered.front().map(|next| next.due)
    }

    /// Removes and returns the next answer whose moment has come.
    pub fn release(&mut self, now: Moment) -> Option<A> {
        self.unanswered.front().filter(|next| next.due <= now)?;
        let next = self.unanswered.pop_front()?;
        self.first += 1;
        if next.taken && next.ready.is_none() {
            self.missed += 1;
        }
        Some(next.ready.unwrap_or(next.null))
    }

    /// The number of calls that were over a limit. Calls from private windows do not count.
    pub fn over_limit(&self) -> u64 {
        self.over_limit
    }

    /// The number of conversions that were taken but not ready at their moment.
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
            sealing_of_site: 100,
            impressions: Arrivals {
                of_site: 1,
                of_all: 2,
            },
        })
    }

    /// Adds a conversion whose report is cheap to seal. Returns true if it is taken.
    fn arrive(
        scheduler: &mut Scheduler<u32, &'static str>,
        now: u64,
        site: &Site,
        work: u32,
    ) -> bool {
        scheduler
            .conversion(ms(now), site, 1, work, "null")
            .is_taken()
    }

    #[test]
    fn a_conversion_is_answered_after_the_delay_and_never_before_or_later() {
        let mut scheduler = scheduler();
        assert!(arrive(&mut scheduler, 5, &site("a.example"), 1));
        assert!(arrive(&mut scheduler, 6, &site("a.example"), 2));
        assert_eq!(scheduler.next_release(), Some(ms(105)));
        let (first, work) = scheduler.begin().unwrap();
        assert_eq!(work, 1);
        scheduler.finish(first.unwrap(), "one");
        assert_eq!(scheduler.release(ms(104)), None);
        assert_eq!(scheduler.release(ms(105)), Some("one"));
        // The second is not ready. It is answered null anyway, and done afterwards.
        assert_eq!(scheduler.release(ms(106)), Some("null"));
        assert_eq!(scheduler.missed(), 1);
        let (second, work) = scheduler.begin().unwrap();
        assert_eq!(work, 2);
        scheduler.finish(second.unwrap(), "two");
        assert_eq!((scheduler.release(ms(999)), scheduler.missed()), (None, 1));
    }

    /// Conversions from private windows have a limit of their own. If they were scheduled like any
    /// other, they would take it from calls that are not private.
    #[test]
    fn a_private_conversion_takes_nothing_from_other_calls() {
        let a = site("a.example");
        let private = |scheduler: &mut Scheduler<u32, &'static str>, sealing| {
            scheduler.private_conversion(ms(0), &a, sealing, "private")
        };
        let like_any_other = |scheduler: &mut Scheduler<u32, &'static str>, sealing| {
            scheduler.conversion(ms(0), &a, sealing, 9, "private")
        };
        let taken = |add: &dyn Fn(&mut _, u32) -> ConversionArrival| {
            let mut scheduler = scheduler();
            for _ in 0..3 {
                assert_ne!(add(&mut scheduler, 33), ConversionArrival::Rejected);
            }
            assert_eq!(add(&mut scheduler, 2), ConversionArrival::Rejected);
            let taken = (0..2).all(|work| arrive(&mut scheduler, 1, &a, work));
            (taken, scheduler)
        };
        let (both, mut scheduler) = taken(&private);
        assert!(both, "calls that are not private are taken");
        assert_eq!(scheduler.over_limit(), 0);
        // It is answered null at its moment, is never work, and is never missed.
        assert_eq!(scheduler.next(), Some(&0));
        assert_eq!(scheduler.release(ms(99)), None);
        assert_eq!(scheduler.release(ms(100)), Some("private"));
        assert_eq!(scheduler.missed(), 0);
        let (both, scheduler) = taken(&like_any_other);
        assert!(!both, "a private conversion like any other was not caught");
        assert!(scheduler.over_limit() > 0);
    }

    #[test]
    fn limits_count_arrivals_whether_or_not_they_are_done() {
        let mut scheduler = scheduler();
        let [a, b, c] = ["a.example", "b.example", "c.example"].map(site);
        let mut arrive = |now, site: &Site| arrive(&mut scheduler, now, site, 0);
        assert!(arrive(0, &a) && arrive(0, &a));
        // The limit of one site. Calls over the limit take nothing from other sites.
        assert!(!arrive(10, &a) && !arrive(10, &a) && arrive(10, &b));
        // The limit of all sites.
        assert!(!arrive(20, &c));
        // Only the last delay counts: calls of moment 0 count until moment 100.
        assert!(!arrive(99, &c) && arrive(100, &c) && arrive(100, &a));
        while let Some((ticket, _)) = scheduler.begin() {
            scheduler.finish(ticket.unwrap(), "done");
        }
        assert!(
            !scheduler.conversion(ms(109), &b, 1, 0, "null").is_taken(),
            "finished calls count"
        );
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
        assert!(arrive(&mut scheduler, 1, &b, 2));
        scheduler.own(3);
        assert!(!scheduler.impression(ms(2), &a, 1, 4));
        // This impression brings more names than there is room for.
        assert!(!scheduler.impression(ms(2), &b, 2, 4));
        assert!(scheduler.impression(ms(2), &b, 1, 5));
        let order: Vec<u32> = std::iter::from_fn(|| Some(scheduler.begin()?.1)).collect();
        assert_eq!(order, [1, 2, 3, 5]);
    }

    #[test]
    fn a_site_that_asks_for_too_many_reports_is_rejected_whatever_others_do() {
        let mut scheduler = scheduler();
        let [a, b] = ["a.example", "b.example"].map(site);
        let mut arrive = |now, site: &Site, sealing| {
            let null = "null";
            scheduler.conversion(ms(now), site, sealing, 0, null)
        };
        assert!(arrive(0, &a, 60).is_taken());
        assert_eq!(arrive(1, &a, 41), ConversionArrival::Rejected);
        // Rejected calls do not count, and calls that are not taken do.
        assert!(arrive(2, &a, 20).is_taken());
        assert!(matches!(arrive(3, &a, 20), ConversionArrival::Null(_)));
        assert_eq!(arrive(4, &a, 1), ConversionArrival::Rejected);
        assert!(arrive(5, &b, 100).is_taken());
        assert!(arrive(100, &a, 60).is_taken());
        let answers = std::iter::from_fn(|| scheduler.release(ms(999))).count();
        assert_eq!(answers, 5);
    }
}
