//! The traits that an application implements: its events, its queries, and the store of its events.

use crate::{EpochIndex, Noise, SiteId, UserAction, Window};

/// A type that may leave the device. Only reports implement this trait. A
/// [`Decision`](crate::Decision) does not:
///
/// ```compile_fail
/// fn send(report: impl bigbird::Release) {}
/// send(bigbird::Decision::default());
/// ```
pub trait Release {}

/// A question about the events of one device, and the cost of an answer.
///
/// The engine does the rest. It finds the relevant events of each epoch, computes losses from the
/// sensitivities, charges the filters, drops the epochs that cannot pay, and asks for the report
/// over those that passed. The privacy guarantee depends on the sensitivities being correct. They
/// are the paper's (appendix, query model), in the units of the report's numbers.
pub trait Query {
    /// A stored event, as the store shows it to a query.
    type Event<'e>;

    /// The data about a relevant event that the report needs.
    type Detail: Copy;

    /// The report. Null and other reports have the same shape.
    type Report: Release + Default;

    /// The request: who asks, on whose behalf, and about which epochs.
    fn request(&self) -> ReportRequest;

    /// The noise that will be added to the sum of reports.
    fn noise(&self) -> Noise;

    /// The data about this event that the report needs, or `None` if the event is not relevant. It
    /// must not depend on the user action that saved the event: the engine handles user actions.
    fn relevant(&self, event: Self::Event<'_>) -> Option<Self::Detail>;

    /// Limits how many relevant events of one epoch count: removes the others from
    /// `events[begin..]`. Which ones it keeps must depend only on these events and the query. By
    /// default, all count.
    fn keep_first(&self, events: &mut Vec<Relevant<Self::Detail>>, begin: usize) {
        let _ = (events, begin);
    }

    /// Computes the report from relevant events (A of the paper). Without events, it is the null
    /// report.
    ///
    /// The events come in any order and may be reordered. The report must be a function of the
    /// events and the draws alone. It replaces whatever an earlier use left in `report`.
    fn report(
        &self,
        events: &mut [Relevant<Self::Detail>],
        draws: &mut Draws<'_>,
        report: &mut Self::Report,
    );

    /// The distance between this report and the null report: ‖A(F) − A(∅)‖₁.
    fn individual_sensitivity(&self, report: &Self::Report) -> u64;

    /// The most that a report can change when these events, all relevant ones of one epoch, are
    /// removed, whatever is stored in other epochs.
    fn epoch_sensitivity(&self, events: &[Relevant<Self::Detail>]) -> u64;

    /// The most that a report can change when these events, all relevant ones of one impression
    /// site in one epoch, are removed, whatever else is stored.
    fn site_sensitivity(&self, events: &[Relevant<Self::Detail>]) -> u64;
}

/// A request for a report: who asks, on whose behalf, and about which epochs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReportRequest {
    /// The site that receives the report and whose budget pays.
    pub querier: SiteId,
    /// The site where the conversion happened.
    pub conversion_site: SiteId,
    /// The user action that caused the request.
    pub user_action: UserAction,
    /// The epochs that the request reads.
    pub window: Window,
}

/// A relevant event: the site that pays for it, and the data that the report needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Relevant<D> {
    /// The epoch it was saved in.
    pub epoch: EpochIndex,
    /// Its position among the events of the epoch, in the order in which they were saved.
    pub order: u32,
    /// The site whose quota pays for it.
    pub site: SiteId,
    /// The user action that saved it.
    pub user_action: UserAction,
    /// The data that the report needs.
    pub detail: D,
}

/// A store of events that queries of type `Q` can read.
pub trait EventStore<Q: Query> {
    /// The reason why the events could not be read.
    type Error;

    /// Appends the events of `epoch` that are relevant to `query` to `found`, each once, in any
    /// order.
    ///
    /// The result must depend only on the events of this epoch and on the query. In particular,
    /// what is kept in one epoch must not depend on what was saved in another. That is why limits
    /// and eviction are per epoch: otherwise one epoch's data would show in another's.
    fn find(
        &self,
        epoch: EpochIndex,
        query: &Q,
        found: &mut Vec<Relevant<Q::Detail>>,
    ) -> Result<(), Self::Error>;
}

/// The random numbers of one report, each drawn once.
///
/// A report may be computed more than once: to find out its cost, and to release the report. If the
/// random rounding of credit were drawn again, the released report would differ from the one that
/// was paid for, and a device could reveal something that it never charged (notes on the draft, row
/// 2). So only the first computation draws numbers, and every later one sees the same numbers.
pub struct Draws<'a> {
    source: &'a mut dyn FnMut() -> f64,
    drawn: &'a mut Vec<f64>,
    next: usize,
}

impl<'a> Draws<'a> {
    /// Numbers that are first read from `drawn`, then drawn from `source` and kept in `drawn`.
    pub fn new(source: &'a mut dyn FnMut() -> f64, drawn: &'a mut Vec<f64>) -> Self {
        Self {
            source,
            drawn,
            next: 0,
        }
    }

    /// The next number in [0, 1).
    pub fn draw(&mut self) -> f64 {
        let number = match self.drawn.get(self.next) {
            Some(&number) => number,
            None => {
                let number = (self.source)();
                self.drawn.push(number);
                number
            }
        };
        self.next += 1;
        number
    }
}

impl std::fmt::Debug for Draws<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Draws")
            .field("drawn", &self.drawn)
            .finish_non_exhaustive()
    }
}
