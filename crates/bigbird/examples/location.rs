//! On-device location analytics with the same budget manager: `cargo run --example location`.
//!
//! A phone remembers which places its owner visited. An analytics service asks how often people in
//! a city go to cafés, parks, shops and gyms. The phone answers with a bounded vector of counts,
//! one number per category. The vectors of many phones are summed, and noise is added to the sum.
//!
//! An application has to define three things, which differ here from ad measurement:
//!
//! * The event is a [`Visit`], and the "impression site" that pays for it is the venue.
//! * The report is a vector of counts, each clipped to a bound, not a value that is divided.
//! * Removing visits can only make counts smaller, by at most the number removed. So the loss of an
//!   epoch depends on what is stored in *that epoch*, even when a query spans several epochs. An
//!   attribution over several epochs always pays the worst case.

use std::num::NonZeroU64;

use bigbird::{
    Device, Draws, EpochIndex, Epsilon, EpsilonError, EventLog, Filter, Noise, Profile, Query,
    Release, Relevant, ReportRequest, SiteId, UserAction, Window,
};

/// The kind of place that was visited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Category {
    Cafe,
    Park,
    Shop,
    Gym,
}

const CATEGORIES: usize = 4;

/// One visit to a place.
#[derive(Debug, Clone, Copy)]
struct Visit {
    category: Category,
    minutes: u32,
}

/// A query for the number of visits per category, each of at least some minutes, clipped to
/// `bound`.
#[derive(Debug)]
struct CountVisits {
    request: ReportRequest,
    at_least_minutes: u32,
    bound: u32,
    epsilon: Epsilon,
}

/// The report: the number of visits of each category.
#[derive(Debug, Default, PartialEq, Eq)]
struct VisitCounts([u32; CATEGORIES]);

impl Release for VisitCounts {}

impl CountVisits {
    fn counts(&self, visits: &[Relevant<Category>]) -> VisitCounts {
        let mut counts = [0; CATEGORIES];
        for visit in visits {
            let count = &mut counts[visit.detail as usize];
            *count = self.bound.min(*count + 1);
        }
        VisitCounts(counts)
    }
}

fn total(counts: &VisitCounts) -> u64 {
    counts.0.iter().map(|&count| u64::from(count)).sum()
}

impl Query for CountVisits {
    type Event<'e> = &'e Visit;
    type Detail = Category;
    type Report = VisitCounts;

    fn request(&self) -> ReportRequest {
        self.request
    }

    /// The noise hides the largest vector that one phone can report.
    fn noise(&self) -> Noise {
        let most = u64::from(self.bound) * CATEGORIES as u64;
        Noise::new(
            self.epsilon,
            NonZeroU64::new(most).unwrap_or(NonZeroU64::MIN),
        )
    }

    fn relevant(&self, visit: &Visit) -> Option<Category> {
        (visit.minutes >= self.at_least_minutes).then_some(visit.category)
    }

    fn report(
        &self,
        visits: &mut [Relevant<Category>],
        _: &mut Draws<'_>,
        report: &mut VisitCounts,
    ) {
        *report = self.counts(visits);
    }

    fn individual_sensitivity(&self, report: &VisitCounts) -> u64 {
        total(report)
    }

    /// A clipped count falls by at most the clipped number of removed visits.
    fn epoch_sensitivity(&self, visits: &[Relevant<Category>]) -> u64 {
        total(&self.counts(visits))
    }

    fn site_sensitivity(&self, visits: &[Relevant<Category>]) -> u64 {
        total(&self.counts(visits))
    }
}

const CITY: SiteId = SiteId(0);

/// A phone with two visits in the first epoch and five in the second.
fn phone() -> Device<EventLog<Visit>> {
    let mut phone = Device::new(Profile::BigBird.policy());
    let visits = [
        (0, 10, Category::Cafe, 45),
        (0, 11, Category::Park, 60),
        (1, 10, Category::Cafe, 30),
        (1, 12, Category::Cafe, 3),
        (1, 12, Category::Shop, 25),
        (1, 10, Category::Cafe, 20),
        (1, 13, Category::Gym, 70),
    ];
    for (action, (epoch, venue, category, minutes)) in (0..).zip(visits) {
        let visit = Visit { category, minutes };
        phone.save(EpochIndex(epoch), SiteId(venue), UserAction(action), visit);
    }
    phone
}

/// The number of visits of ten minutes or more in two epochs, at most two per category.
fn question(action: u64) -> Result<CountVisits, EpsilonError> {
    let request = ReportRequest {
        querier: CITY,
        conversion_site: CITY,
        user_action: UserAction(action),
        window: Window::new(EpochIndex(0), EpochIndex(1)).unwrap_or(Window::single(EpochIndex(1))),
    };
    Ok(CountVisits {
        request,
        at_least_minutes: 10,
        bound: 2,
        epsilon: Epsilon::new(0.8)?,
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut phone = phone();
    for action in 100..103 {
        let outcome = phone.report(&question(action)?, &mut || 0.5);
        println!("report {:?}", outcome.report.0);
        for epoch in outcome.decision.epochs() {
            println!(
                "  epoch {}: {} visits, loss {}, {}",
                epoch.epoch.0, epoch.matched, epoch.loss, epoch.fate
            );
        }
    }
    for epoch in [EpochIndex(0), EpochIndex(1)] {
        let left = phone
            .balance(epoch, Filter::QuerierBudget(CITY))
            .remaining();
        println!(
            "querier budget left to the city in epoch {}: {}",
            epoch.0,
            left.unwrap_or_default()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bigbird::{Fate, MicroEpsilon};

    #[test]
    fn counts_are_clipped_and_short_visits_left_out() {
        let outcome = phone().report(&question(100).unwrap(), &mut || 0.5);
        assert_eq!(outcome.report, VisitCounts([2, 1, 1, 1]));
    }

    /// The vector sums to at most 8 and ε is 0.8, so each visit that counts costs 0.1, in its own
    /// epoch.
    #[test]
    fn an_epoch_pays_for_its_own_visits() {
        let outcome = phone().report(&question(100).unwrap(), &mut || 0.5);
        let losses: Vec<_> = outcome.decision.epochs().map(|epoch| epoch.loss).collect();
        assert_eq!(
            losses,
            [MicroEpsilon::new(200_000), MicroEpsilon::new(400_000)]
        );
    }

    /// A budget of 1 ε pays for the four visits of the second epoch twice, and for the two visits
    /// of the first epoch more often.
    #[test]
    fn an_epoch_that_cannot_pay_is_left_out_alone() {
        let mut phone = phone();
        let mut reports = Vec::new();
        for action in 100..103 {
            let outcome = phone.report(&question(action).unwrap(), &mut || 0.5);
            reports.push(outcome.report.0);
        }
        assert_eq!(reports, [[2, 1, 1, 1], [2, 1, 1, 1], [1, 1, 0, 0]]);
        let outcome = phone.report(&question(103).unwrap(), &mut || 0.5);
        let fates: Vec<_> = outcome.decision.epochs().map(|epoch| epoch.fate).collect();
        assert_eq!(fates[0], Fate::Passed);
        assert!(matches!(fates[1], Fate::Dropped(_)));
    }

    /// The sensitivities are correct: removing one epoch changes the report by at most its
    /// sensitivity.
    #[test]
    fn removing_an_epoch_moves_no_more_than_its_sensitivity() {
        let question = question(100).unwrap();
        let full = phone().report(&question, &mut || 0.5).report;
        for (removed, sensitivity) in [(0, 2), (1, 4)] {
            let mut query = question.request;
            query.window = Window::single(EpochIndex(1 - removed));
            let rest = CountVisits {
                request: query,
                ..self::question(100).unwrap()
            };
            let rest = phone().report(&rest, &mut || 0.5).report;
            let moved: u32 = full.0.iter().zip(rest.0).map(|(a, b)| a.abs_diff(b)).sum();
            assert!(moved <= sensitivity, "{moved}");
        }
    }
}
