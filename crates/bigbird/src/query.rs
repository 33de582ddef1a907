//! What an application brings: its events, its queries, and where its events are stored.

use crate::{EpochIndex, Noise, SiteId, UserAction, Window};

/// What may leave the device: reports, and nothing else. A [`Decision`](crate::Decision) is not:
///
/// ```compile_fail
/// fn send(report: impl bigbird::Release) {}
/// send(bigbird::Decision::default());
/// ```
pub trait Release {}

/// A question about the events of one device, and what it costs to answer it.
///
/// The engine does the rest: it matches per epoch, computes losses from the sensitivities, charges
/// the filters, drops what cannot be paid for, and asks for the report of what is left. The
/// sensitivities are a promise that the privacy guarantee rests on; they are the paper's
/// (appendix, query model), in the units of the report's numbers.
pub trait Query {
    /// A stored event, as the store shows it to a query.
    type Event<'e>;

    /// What the report needs to know of a relevant event.
    type Detail: Copy;

    /// The report. A null one and a full one have the same shape.
    type Report: Release + Default;

    /// Who asks, on whose behalf, and of which epochs.
    fn request(&self) -> Request;

    /// The noise that will be added to the sum of reports.
    fn noise(&self) -> Noise;

    /// What the report needs of this event, or `None` if it is not relevant. It must not depend
    /// on the user action that saved the event: the engine takes care of that.
    fn relevant(&self, event: Self::Event<'_>) -> Option<Self::Detail>;

    /// Keeps the relevant events of an epoch that count, of those from `begin` on: for queries that
    /// read no more than so many. Which are kept must be a function of these events and the query.
    fn keep_first(&self, events: &mut Vec<Relevant<Self::Detail>>, begin: usize) {
        let _ = (events, begin);
    }

    /// Computes the report from relevant events (A of the paper); with no events, the null report.
    ///
    /// The events come in no particular order and may be reordered. The report must be a function
    /// of them and the draws alone: whatever is left in `report` from an earlier use is replaced.
    fn report(
        &self,
        events: &mut [Relevant<Self::Detail>],
        draws: &mut Draws<'_>,
        report: &mut Self::Report,
    );

    /// By how much this report differs from the null report: ‖A(F) − A(∅)‖₁.
    fn individual_sensitivity(&self, report: &Self::Report) -> u64;

    /// By how much removing these events, all relevant ones of one epoch, can change a report at
    /// most, whatever other epochs hold.
    fn epoch_sensitivity(&self, events: &[Relevant<Self::Detail>]) -> u64;

    /// By how much removing these events, all relevant ones of one impression site in one epoch,
    /// can change a report at most, whatever else is stored.
    fn site_sensitivity(&self, events: &[Relevant<Self::Detail>]) -> u64;
}

/// Who asks for a report, on whose behalf, and of which epochs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Who receives the report and whose budget pays.
    pub querier: SiteId,
    /// Where the conversion happened.
    pub conversion_site: SiteId,
    /// The user action that caused the request.
    pub user_action: UserAction,
    /// The epochs to look back over.
    pub window: Window,
}

/// A relevant event: who pays for it, and what the report needs of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Relevant<D> {
    /// The epoch it was saved in.
    pub epoch: EpochIndex,
    /// Its place in the order in which the events of the epoch were saved.
    pub order: u32,
    /// The site whose quota pays for it.
    pub site: SiteId,
    /// The user action that saved it.
    pub user_action: UserAction,
    /// What the report needs of it.
    pub detail: D,
}

/// Stored events, as far as queries of type `Q` are concerned.
pub trait EventStore<Q: Query> {
    /// Why they could not be read.
    type Error;

    /// Appends the events of `epoch` that are relevant to `query`, each once, in any order.
    ///
    /// What it finds must be a function of this epoch's events and the query. In particular, what
    /// is kept of one epoch must not depend on what was saved in another: limits and eviction are
    /// per epoch, or one epoch's data would show in another's.
    fn find(
        &self,
        epoch: EpochIndex,
        query: &Q,
        found: &mut Vec<Relevant<Q::Detail>>,
    ) -> Result<(), Self::Error>;
}

/// The random numbers of one report, each drawn once.
///
/// A report may be computed more than once: to know its cost, and to release it. Were the random
/// rounding of credit drawn anew, the report that was paid for would not be the one that is
/// released, and a device could give away what it never charged (notes on the draft, row 2). So
/// the first computation draws, and every further one sees the same numbers.
pub struct Draws<'a> {
    source: &'a mut dyn FnMut() -> f64,
    drawn: &'a mut Vec<f64>,
    next: usize,
}

impl<'a> Draws<'a> {
    /// Numbers from `source`, which are kept in `drawn` and read from there first.
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
